/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * resume.c: checkpoints: everything that a run is made of gets a name, so that another run can take
 * its place. Data and samples are drawn by step and seed, so there is no state of random numbers
 * beside these two. */
#include "train_moe.h"

#include <stdio.h>
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

static dp_status_t register_history(trainer_t *t, history_t *h)
{
    const size_t steps = (size_t)t->options->steps;
    const struct {
        const char *name;
        void *memory;
        dp_dtype_t dtype;
        size_t count;
    } rows[] = {
        {"run", h->run, DP_I64, sizeof(h->run) / sizeof(h->run[0])},
        {"history.loss", h->loss, DP_F64, steps},
        {"history.norm", h->norm, DP_F64, steps},
        {"history.imbalance", h->imbalance, DP_F64, steps},
        {"history.step_seconds", h->step_seconds, DP_F64, steps},
        {"history.seconds", &h->seconds, DP_F64, 1},
        {"history.nvalid", &h->nvalid, DP_I64, 1},
        {"history.valid_step", h->valid_step, DP_I64, steps},
        {"history.valid_loss", h->valid_loss, DP_F64, steps},
    };
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && status == DP_OK; i++)
        status = register_job(t, rows[i].name, rows[i].memory, rows[i].dtype, rows[i].count, 0);
    if (status == DP_OK)
        status = register_job(t, "history.begun", &h->begun, DP_I64, 1, 1);
    return status;
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

/* What it says under a name. */
static dp_status_t read_newest(const char *folder, const char *name, int64_t *values, size_t bytes)
{
    dp_checkpoint_t *checkpoint;
    dp_status_t status = open_newest(folder, &checkpoint);
    int64_t i;

    if (status != DP_OK)
        return status;
    i = dp_checkpoint_find(checkpoint, name);
    status = i < 0 ? dp_fail(DP_ERR_INVALID, "%s: the newest checkpoint has no %s", folder, name)
                   : dp_checkpoint_read(checkpoint, (uint32_t)i, values, bytes);
    dp_checkpoint_close(checkpoint);
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

/* What a run cannot change and still be the one that it takes the place of. A checkpoint that
 * cannot be read is left to loading. */
static dp_status_t compare_run(const trainer_t *t, const int64_t run[RUN_FACTS])
{
    static const char *const names[] = {"--steps", "--seed", "the text's hash"};
    int64_t there[RUN_FACTS];
    const dp_status_t status = read_newest(t->options->checkpoint, "run", there, sizeof(there));

    for (int k = 0; k < RUN_FACTS && status == DP_OK; k++)
        if (there[k] != run[k])
            return dp_fail(DP_ERR_INVALID,
                           "--resume: %s is %lld, that of the run in %s was %lld: it would not be the same run",
                           names[k], (long long)run[k], t->options->checkpoint, (long long)there[k]);
    return DP_OK;
}

/* The placement in the checkpoint becomes the one in use. */
static dp_status_t load_checkpoint(trainer_t *t, int64_t *first_out)
{
    balance_t *b = &t->balance;
    const size_t bytes =
        balance_count(b) == 0 ? 0 : (size_t)b->shape.layers * (size_t)b->shape.replicas * sizeof(int32_t);
    uint64_t step = 0;
    dp_status_t status;

    if (bytes > 0)
        memcpy(b->next, b->placement, bytes);
    status = dp_pipeline_load(t->pipeline, t->options->checkpoint, &step);
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
    const options_t *o = t->options;
    dp_status_t status;

    h->run[0] = o->steps, h->run[1] = o->seed, h->run[2] = (int64_t)t->text->hash;
    status = register_optimizer(t);
    if (status == DP_OK)
        status = register_balance(t);
    return status == DP_OK ? register_history(t, h) : status;
}

dp_status_t checkpoint_load(trainer_t *t, history_t *h, int64_t *step_out)
{
    const options_t *o = t->options;
    int64_t step = 0;
    dp_status_t status = compare_run(t, h->run);

    if (status == DP_OK)
        status = load_checkpoint(t, &step);
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

dp_status_t checkpoint_save(trainer_t *t, int64_t steps, bool last)
{
    const options_t *o = t->options;
    dp_status_t status;

    if (*o->checkpoint == '\0' || (steps % o->every != 0 && !last))
        return DP_OK;
    /* the last one is not left out for an earlier one; a warning tells when that one failed */
    if (last && dp_pipeline_save_wait(t->pipeline) < 0 && dp_group_health(t->group) < 0)
        return dp_group_health(t->group);
    status = dp_pipeline_save(t->pipeline, (uint64_t)steps);
    return status < 0 ? status : DP_OK;
}
