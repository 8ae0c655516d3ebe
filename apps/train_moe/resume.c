/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * resume.c: checkpoints: everything that a run is made of gets a name, so that another run can take
 * its place. Data and samples are drawn by step and seed, so there is no state of random numbers
 * beside these two. */
#include "settings.h"
#include "train_moe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dp_status_t register_job(trainer_t *t, const char *name, void *memory, dp_dtype_t dtype, size_t count,
                                int optional)
{
    const dp_state_t state = {
        .struct_size = sizeof(state),
        .name = name,
        .scope = DP_STATE_JOB,
        .host = 1,
        .memory = memory,
        .dtype = dtype,
        .count = count,
        .optional = optional,
    };

    return dp_pipeline_register_state(t->pipeline, &state);
}

static dp_status_t register_optimizer(trainer_t *t)
{
    dp_status_t status = DP_OK;

    for (int32_t c = 0; c < t->nchunks; c++) {
        const held_chunk_t *chunk = &t->chunks[c];
        const char *const names[] = {"adam.mean", "adam.squares", "master"};
        void *const memory[] = {chunk->mean, chunk->squares, chunk->master};

        for (int i = 0; i < 3 && status == DP_OK; i++) {
            const dp_state_t state = {
                .struct_size = sizeof(state),
                .name = names[i],
                .scope = DP_STATE_SHARDS,
                .chunk = c,
                .memory = memory[i],
                .dtype = dp_dtype_accumulator(t->options->dtype),
            };
            if (memory[i] != NULL)
                status = dp_pipeline_register_state(t->pipeline, &state);
        }
    }
    return status;
}

/* Where experts are spread or replicated: other layouts may have none of it, or other numbers of
 * replicas. */
static dp_status_t register_balance(trainer_t *t)
{
    balance_t *b = &t->balance;
    const size_t replicas = (size_t)b->shape.layers * (size_t)b->shape.replicas;
    dp_status_t status;

    if (balance_count(b) == 0)
        return DP_OK;
    status = register_job(t, "balance.loads", b->loads, DP_F32, balance_count(b), 1);
    if (status == DP_OK)
        status = register_job(t, "balance.observed", &b->observed, DP_I64, 1, 1);
    if (status == DP_OK && t->options->replicas > 0)
        status = register_job(t, "balance.placement", b->placement, DP_U8, replicas * sizeof(*b->placement), 1);
    return status;
}

/* What has an entry for each step. */
typedef struct list {
    const char *name;
    void *memory;
    dp_dtype_t dtype;
} list_t;

enum { LISTS = 6 };

static void list_history(const history_t *h, list_t lists_out[LISTS])
{
    const list_t lists[LISTS] = {
        {"history.loss", h->loss, DP_F64},
        {"history.norm", h->norm, DP_F64},
        {"history.imbalance", h->imbalance, DP_F64},
        {"history.step_seconds", h->step_seconds, DP_F64},
        {"history.valid_step", h->valid_step, DP_I64},
        {"history.valid_loss", h->valid_loss, DP_F64},
    };

    memcpy(lists_out, lists, sizeof(lists));
}

static dp_status_t register_history(trainer_t *t, history_t *h)
{
    const size_t steps = (size_t)t->options->steps;
    const struct {
        const char *name;
        void *memory;
        dp_dtype_t dtype;
        size_t count;
    } rows[] = {
        {"history.seconds", &h->seconds, DP_F64, 1},
        {"history.nvalid", &h->nvalid, DP_I64, 1},
    };
    list_t lists[LISTS];
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && status == DP_OK; i++)
        status = register_job(t, rows[i].name, rows[i].memory, rows[i].dtype, rows[i].count, 0);
    list_history(h, lists);
    /* a checkpoint of fewer steps has shorter ones: read_history */
    for (int i = 0; i < LISTS && status == DP_OK; i++)
        status = register_job(t, lists[i].name, lists[i].memory, lists[i].dtype, steps, 1);
    if (status == DP_OK)
        status = register_job(t, "history.begun", &h->begun, DP_I64, 1, 1);
    return status == DP_OK ? register_job(t, SETTINGS_NAME, h->settings, DP_U8, strlen(h->settings), 1) : status;
}

/* The newest that can be opened. */
static dp_status_t open_newest(const char *folder, dp_checkpoint_t **checkpoint_out)
{
    uint64_t step = UINT64_MAX;
    dp_status_t status;

    while ((status = dp_checkpoint_newest(folder, step, &step)) == DP_OK)
        if (dp_checkpoint_open(folder, step, checkpoint_out) == DP_OK)
            return DP_OK;
    return status;
}

bool checkpoint_is_ours(const options_t *options, uint64_t job)
{
    dp_checkpoint_t *checkpoint;
    bool ours;

    if (*options->checkpoint == '\0' || open_newest(options->checkpoint, &checkpoint) != DP_OK)
        return false;
    ours = dp_checkpoint_run(checkpoint) == job;
    dp_checkpoint_close(checkpoint);
    return ours;
}

int64_t checkpoint_microbatches(const options_t *options)
{
    dp_checkpoint_t *checkpoint;
    char *settings;
    int64_t number;

    if (open_newest(options->checkpoint, &checkpoint) != DP_OK)
        return 0;
    settings = settings_read(checkpoint);
    number = settings != NULL ? settings_number(settings, "--microbatches") : 0;
    free(settings);
    dp_checkpoint_close(checkpoint);
    return number;
}

/* Of a run that was to have fewer steps. */
static dp_status_t read_history(const history_t *h, dp_checkpoint_t *checkpoint, int64_t steps)
{
    dp_checkpoint_tensor_t tensor = {.struct_size = sizeof(tensor)};
    list_t lists[LISTS];

    list_history(h, lists);
    for (int k = 0; k < LISTS; k++) {
        const int64_t i = dp_checkpoint_find(checkpoint, lists[k].name);
        dp_status_t status = i < 0 ? DP_ERR_INVALID : dp_checkpoint_tensor(checkpoint, (uint32_t)i, &tensor);

        if (status < 0 || tensor.dtype != lists[k].dtype || tensor.count > (uint64_t)steps)
            return dp_fail(DP_ERR_MISMATCH, "%s of at most %lld steps is not in it", lists[k].name, (long long)steps);
        if (tensor.count < (uint64_t)steps)
            status = dp_checkpoint_read(checkpoint, (uint32_t)i, lists[k].memory, tensor.count * 8);
        if (status < 0)
            return status;
    }
    return DP_OK;
}

/* Whether the checkpoint that was loaded is of this run. here: its settings; the load may have put
 * the other ones in their place. */
static dp_status_t check_taken(const trainer_t *t, history_t *h, const char *here, uint64_t step)
{
    const char *folder = t->options->checkpoint;
    const bool tell = dp_group_rank(t->group) == 0;
    dp_checkpoint_t *checkpoint;
    char *there;
    dp_status_t status = dp_checkpoint_open(folder, step, &checkpoint);

    if (status < 0)
        return status;
    there = settings_read(checkpoint);
    if (there != NULL)
        status = settings_compare(here, there, folder, tell);
    else if (tell)
        fprintf(stderr, "train_moe: step %llu in %s has no settings to compare with: an earlier version saved it\n",
                (unsigned long long)step, folder);
    free(there);
    if (status == DP_OK)
        status = read_history(h, checkpoint, t->options->steps);
    dp_checkpoint_close(checkpoint);
    memcpy(h->settings, here, strlen(here));
    return status;
}

/* The placement in the checkpoint becomes the one in use. */
static dp_status_t load_checkpoint(trainer_t *t, history_t *h, int64_t *first_out)
{
    char *here = options_run(t->options, t->text->hash);
    balance_t *b = &t->balance;
    const size_t bytes =
        balance_count(b) == 0 ? 0 : (size_t)b->shape.layers * (size_t)b->shape.replicas * sizeof(int32_t);
    uint64_t step = 0;
    dp_status_t status;

    if (here == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a list of settings");
    if (bytes > 0)
        memcpy(b->next, b->placement, bytes);
    status = dp_pipeline_load(t->pipeline, t->options->checkpoint, &step);
    if (status == DP_OK)
        status = check_taken(t, h, here, step);
    free(here);
    if (status != DP_OK)
        return status;
    *first_out = (int64_t)step;
    status = dp_pipeline_set_step(t->pipeline, (uint32_t)(step * (uint64_t)t->options->accumulate));
    if (status < 0)
        return status;
    if (t->options->replicas == 0 || memcmp(b->next, b->placement, bytes) == 0)
        return DP_OK;
    memcpy(b->next, b->placement, bytes);
    return trainer_place(t);
}

dp_status_t checkpoint_register(trainer_t *t, history_t *h)
{
    dp_status_t status;

    h->settings = options_run(t->options, t->text->hash);
    if (h->settings == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a list of settings");
    status = register_optimizer(t);
    if (status == DP_OK)
        status = register_balance(t);
    return status == DP_OK ? register_history(t, h) : status;
}

dp_status_t checkpoint_load(trainer_t *t, history_t *h, int64_t *step_out)
{
    const options_t *o = t->options;
    int64_t step = 0;
    dp_status_t status = load_checkpoint(t, h, &step);

    if (status == DP_PENDING)
        status = trainer_begin_again(t);
    if (status >= 0 && o->resume && step >= o->steps)
        status = dp_fail(DP_ERR_INVALID, "--resume: the run in %s has had its %lld steps", o->checkpoint,
                         (long long)o->steps);
    if (status < 0)
        return status;
    if (dp_group_rank(t->group) == 0 && !o->quiet)
        printf(step > 0 ? "resumed after %lld steps from %s\n" : "begun at step %lld: no checkpoint is in %s\n",
               (long long)step, o->checkpoint);
    *step_out = h->begun = step;
    return DP_OK;
}

/* Of an earlier run: ours has not saved anything yet. A later run would resume from it instead of
 * ours. */
static dp_status_t check_folder(const trainer_t *t)
{
    uint64_t step;

    if (dp_group_rank(t->group) != 0 || dp_checkpoint_newest(t->options->checkpoint, UINT64_MAX, &step) != DP_OK)
        return DP_OK;
    return dp_fail(DP_ERR_INVALID,
                   "--checkpoint: %s has a checkpoint after %llu steps: --resume goes on with it, another folder "
                   "begins anew",
                   t->options->checkpoint, (unsigned long long)step);
}

dp_status_t checkpoint_begin(trainer_t *t, int64_t step)
{
    const options_t *o = t->options;
    const dp_save_options_t save = {.struct_size = sizeof(save), .folder = o->checkpoint, .keep = (int32_t)o->keep};
    dp_status_t status;

    if (*o->checkpoint == '\0')
        return DP_OK;
    status = dp_pipeline_save_open(t->pipeline, &save);
    /* behind it no other job saves there */
    return status == DP_OK && step == 0 && !o->resume ? check_folder(t) : status;
}

dp_status_t checkpoint_save(trainer_t *t, history_t *h, int64_t steps, bool last)
{
    const options_t *o = t->options;
    dp_status_t status;

    if (*o->checkpoint == '\0' || (steps % o->every != 0 && !last))
        return DP_OK;
    /* the last one is not left out for an earlier one; a warning tells when that one failed */
    if (last && dp_pipeline_save_wait(t->pipeline) < 0 && dp_group_health(t->group) < 0)
        return dp_group_health(t->group);
    status = dp_pipeline_save(t->pipeline, (uint64_t)steps);
    h->saves++;
    h->left_out += status == DP_PENDING;
    return status < 0 ? status : DP_OK;
}
