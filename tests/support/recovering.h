/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * recovering.h: a whole trainer of the small model that recovers from deaths, with momentum as the
 * optimizer's state, and a plan of who kills himself where. What it comes to lies in memory that
 * the test shares: losses of all steps, and all that ranks hold at the end, bit by bit. */
#ifndef DP_TESTS_RECOVERING_H
#define DP_TESTS_RECOVERING_H

#include "tests/support/forked.h"
#include "tests/support/residual_model.h"

#include <dualpipe/recover.h>
#include <dualpipe/state.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { R_RANKS = 4, R_MICROBATCHES = 8, R_STEPS = 5, R_DEATHS = 4 };

/* Where a process ends. AT_KERNEL: in the n-th kernel of the step; SENDING: rank 0, when it has
 * told n others that a step counts; IN_SAVE: before the n-th change of files by the save behind the
 * step. The last five are of a process that comes in a dead one's place, or of one that lives while
 * another does. */
typedef enum r_moment {
    R_AT_KERNEL,
    R_AFTER_STEP,
    R_SENDING,
    R_IN_UPDATE,
    R_IN_SAVE,
    R_AFTER_UPDATE,
    R_BEFORE_JOINING,
    R_AFTER_JOINING,
    R_BUILDING,
    R_BEFORE_RECOVERING,
    R_RETIRING,
    R_MOMENTS
} r_moment_t;

typedef struct r_death {
    int32_t rank, life; /* its first process, its second, ... */
    r_moment_t moment;
    int32_t step, n; /* BUILDING: n-th call */
} r_death_t;

/* Forward-only steps before a training step, of a request of one token and then one more: from the
 * begin, or after a recovery from where its rank was, which has forgotten it. */
typedef enum r_asks { R_NO_REQUEST, R_ASKS_ANEW, R_ASKS_ON } r_asks_t;

/* Memory of a rank in which a bit changes by itself, before a step (PARAM, STATE) or behind it
 * (GRADIENT). RESTLESS: a parameter that goes on changing while its step is committed. SAVED: STATE
 * behind the update, before a save. */
typedef enum r_memory { R_NO_MEMORY, R_PARAM, R_GRADIENT, R_STATE, R_RESTLESS, R_SAVED } r_memory_t;

typedef struct r_flip {
    r_memory_t memory;
    int32_t rank, step, times; /* so many times that the step is taken */
    bool expert;               /* with ep: of w2 */
} r_flip_t;

typedef struct r_setting {
    const char *method;
    int32_t dp, ep; /* ep: w2 is an expert's; 0: 1 */
    int32_t check_bits;
    r_flip_t flip;
    bool reads_checkpoint; /* begins anew where state was lost */
    bool zero, buddy;
    r_asks_t asks;
    bool buddy_dies; /* what it has of a dead rank is lost as well */
    /* a checkpoint behind each step, in this folder; goes on after the newest; NULL: none */
    const char *saves;
} r_setting_t;

typedef struct r_shared {
    r_setting_t setting;
    r_death_t deaths[R_DEATHS];
    int32_t n;
    int memory[R_RANKS]; /* as the launcher hands it down */
    volatile int32_t lives[R_RANKS], died, flips;
    volatile int32_t lost[R_RANKS];
    /* when somebody died last; when a rank was ready again */
    volatile int64_t died_ns, back_ns[R_RANKS];
    double losses[R_RANKS][R_STEPS];
    uint64_t digest[R_RANKS];
} r_shared_t;

typedef struct r_rank {
    forked_t *forked;
    r_shared_t *shared;
    int32_t life;
    dp_group_t *group;
    dp_pipeline_t *pipeline;
    residual_part_t part;
    dp_stage_t *stages[64];
    int nstages, builds;
    double *mean[DP_MAX_CHUNKS];
    int64_t history_steps;
    double history[R_STEPS], tally;
    double tensors[R_MICROBATCHES][TENSOR];
} r_rank_t;

static r_rank_t r_self;
static int32_t r_sends_left = -1; /* of a rank 0 that dies while it sends; -1: it lives */

static void r_die(void)
{
    r_self.shared->died_ns = forked_now_ns();
    __atomic_add_fetch(&r_self.shared->died, 1, __ATOMIC_SEQ_CST);
    kill(getpid(), SIGKILL);
}

static dp_status_t r_die_in_kernel(void)
{
    r_die();
    return DP_OK;
}

/* In the place of libc's: rank 0 may end between two frames. */
ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    const int32_t left = __atomic_load_n(&r_sends_left, __ATOMIC_ACQUIRE);

    if (left == 0)
        r_die();
    if (left > 0)
        __atomic_store_n(&r_sends_left, left - 1, __ATOMIC_RELEASE);
    return sendto(fd, data, bytes, flags, NULL, 0);
}

/* Of the trainer's thread: changes whenever that allocates memory. NULL: nothing does. */
static _Thread_local unsigned char *r_restless;

static void *r_allocate(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    if (r_restless != NULL)
        ++*r_restless;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void r_release(void *user, void *memory)
{
    (void)user;
    free(memory);
}

static int32_t r_changes_left = -1; /* of files, by one who dies while he saves; -1: he lives */

static void r_change(void)
{
    const int32_t left = __atomic_load_n(&r_changes_left, __ATOMIC_ACQUIRE);

    if (left == 0)
        r_die();
    if (left > 0)
        __atomic_store_n(&r_changes_left, left - 1, __ATOMIC_RELEASE);
}

/* In the place of libc's, as send() is: what a save changes files with. */
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    r_change();
    return syscall(SYS_pwrite64, fd, data, bytes, at);
}
int fsync(int fd)
{
    r_change();
    return (int)syscall(SYS_fsync, fd);
}
int rename(const char *from, const char *to)
{
    r_change();
    return (int)syscall(SYS_rename, from, to);
}
int mkdir(const char *path, mode_t mode)
{
    r_change();
    return (int)syscall(SYS_mkdir, path, mode);
}
int unlinkat(int fd, const char *path, int flags)
{
    r_change();
    return (int)syscall(SYS_unlinkat, fd, path, flags);
}
int rmdir(const char *path)
{
    r_change();
    return (int)syscall(SYS_rmdir, path);
}

static const r_death_t *r_due(r_moment_t moment, int64_t step)
{
    for (int i = 0; i < r_self.shared->n; i++) {
        const r_death_t *d = &r_self.shared->deaths[i];

        if (d->rank == r_self.forked->rank && d->life == r_self.life && d->moment == moment &&
            (moment > R_AFTER_UPDATE || d->step == step))
            return d;
    }
    return NULL;
}

static void r_perhaps_die(r_moment_t moment, int64_t step)
{
    if (r_due(moment, step) != NULL)
        r_die();
}

static int32_t r_pipelines(void)
{
    return r_self.shared->setting.dp * (r_self.shared->setting.ep > 1 ? r_self.shared->setting.ep : 1);
}

static dp_status_t r_build(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                           dp_stage_t **stage_out)
{
    const r_death_t *death = r_due(R_BUILDING, 0);
    dp_status_t status;

    (void)user;
    if (death != NULL && r_self.builds++ == death->n)
        r_die();
    r_self.part.device = context->device_vt;
    r_self.part.shard = r_self.shared->setting.ep > 1;
    if (r_self.nstages == (int)(sizeof(r_self.stages) / sizeof(r_self.stages[0])))
        return dp_fail(DP_ERR_NOMEM, "more stages than the test has room for");
    status = residual_stage(&r_self.part, stage, stages, stage_out);
    if (status >= 0)
        r_self.stages[r_self.nstages++] = *stage_out;
    return status;
}

static void r_retire(void *user)
{
    (void)user;
    r_perhaps_die(R_RETIRING, 0);
}

static dp_status_t r_view(int32_t c, dp_chunk_view_t *view_out)
{
    view_out->struct_size = sizeof(*view_out);
    return dp_pipeline_chunk(r_self.pipeline, c, view_out);
}

/* What a run begins with: also what stands for a checkpoint here. */
static dp_status_t r_begin(void)
{
    dp_status_t status = DP_OK;

    for (int32_t c = 0; c < dp_pipeline_chunks(r_self.pipeline) && status >= 0; c++) {
        dp_chunk_view_t view;

        status = r_view(c, &view);
        for (uint32_t i = 0; i < view.nparams && status >= 0; i++) {
            double all[LAYER_PARAMS];

            residual_params(all, view.stage * (LAYERS / view.stages) + (int)i / 2, 1);
            memcpy((double *)view.params + view.param_list[i].offset, all + (i % 2) * WEIGHTS,
                   WEIGHTS * sizeof(double));
        }
        memset(r_self.mean[c], 0, view.shard_count * sizeof(double));
    }
    memset(r_self.history, 0, sizeof(r_self.history));
    r_self.tally = 0;
    return status;
}

static dp_status_t r_register(void)
{
    const dp_state_t history = {.struct_size = sizeof(history),
                                .name = "history",
                                .scope = DP_STATE_JOB,
                                .host = 1,
                                .memory = r_self.history,
                                .dtype = DP_F64,
                                .count = R_STEPS};
    const dp_state_t tally = {.struct_size = sizeof(tally),
                              .name = "tally",
                              .scope = DP_STATE_PIPELINE,
                              .host = 1,
                              .memory = &r_self.tally,
                              .dtype = DP_F64,
                              .count = 1};
    dp_status_t status = DP_OK;

    for (int32_t c = 0; c < dp_pipeline_chunks(r_self.pipeline) && status >= 0; c++) {
        dp_chunk_view_t view;
        dp_state_t mean = {.struct_size = sizeof(mean),
                           .name = "mean",
                           .scope = DP_STATE_SHARDS,
                           .chunk = c,
                           .host = 1,
                           .dtype = DP_F64};

        status = r_view(c, &view);
        if (status >= 0)
            mean.memory = r_self.mean[c] = calloc(view.shard_count + 1, sizeof(double));
        if (status >= 0)
            status = dp_pipeline_register_state(r_self.pipeline, &mean);
    }
    if (status >= 0)
        status = dp_pipeline_register_state(r_self.pipeline, &history);
    return status >= 0 ? dp_pipeline_register_state(r_self.pipeline, &tally) : status;
}

static void r_update_shard(const dp_chunk_view_t *view, const dp_shard_t *shard, double *mean, int64_t step)
{
    const size_t first = view->param_list[shard->param].offset + shard->first;

    for (size_t i = 0; i < shard->count; i++) {
        if (i == shard->count / 2)
            r_perhaps_die(R_IN_UPDATE, step);
        mean[shard->at + i] = 0.5 * mean[shard->at + i] + ((const double *)view->grads)[first + i];
        ((double *)view->params)[first + i] -= 0.01 * mean[shard->at + i];
    }
}

static dp_status_t r_update(int64_t step, double loss)
{
    dp_status_t gathered;

    for (int32_t c = 0; c < dp_pipeline_chunks(r_self.pipeline); c++) {
        dp_chunk_view_t view;
        dp_status_t status = r_view(c, &view);

        if (status < 0)
            return status;
        for (uint32_t i = 0; i < view.nshards; i++)
            r_update_shard(&view, &view.shard_list[i], r_self.mean[c], step);
    }
    gathered = dp_pipeline_gather(r_self.pipeline); /* nothing without shards: whoever has died */
    if (gathered < 0)
        return gathered;
    r_self.history[step] = loss;
    r_self.tally += loss;
    r_perhaps_die(R_AFTER_UPDATE, step);
    return DP_OK;
}

/* A bit in the middle of what the first chunk has. */
static dp_status_t r_flip(r_memory_t memory, int64_t step)
{
    const r_flip_t *f = &r_self.shared->setting.flip;
    dp_chunk_view_t view;
    unsigned char *at;
    dp_status_t status;

    if (f->memory != memory || f->rank != r_self.forked->rank || f->step != step || r_self.shared->flips == f->times)
        return DP_OK;
    status = r_view(0, &view);
    if (status < 0)
        return status;
    at = (unsigned char *)(memory == R_GRADIENT                     ? view.grads
                           : memory == R_STATE || memory == R_SAVED ? r_self.mean[0]
                                                                    : view.params) +
         ((view.param_count / 2 + (f->expert ? WEIGHTS : 0)) * sizeof(double) + 5);
    *at ^= 4;
    r_self.shared->flips++;
    if (memory == R_RESTLESS)
        r_restless = at;
    return DP_OK;
}

static dp_status_t r_commit(int64_t step)
{
    const r_death_t *death = r_due(R_SENDING, step);
    dp_status_t status;

    if (death != NULL)
        __atomic_store_n(&r_sends_left, death->n, __ATOMIC_RELEASE);
    status = dp_pipeline_commit(r_self.pipeline);
    r_restless = NULL;
    return status;
}

/* Each is on the disk before the next begins. */
static dp_status_t r_save(int64_t step)
{
    const r_death_t *death = r_due(R_IN_SAVE, step);
    dp_status_t status = dp_pipeline_save_wait(r_self.pipeline);

    if (status >= 0)
        status = r_flip(R_SAVED, step);
    if (status >= 0)
        status = dp_pipeline_save(r_self.pipeline, (uint64_t)step + 1);
    __atomic_store_n(&r_changes_left, death != NULL ? death->n : -1, __ATOMIC_RELEASE);
    return status;
}

/* Slot 0 goes on at token `past` by one; the other micro-batches are of no request. */
static dp_status_t r_ask_for(const void **data, uint32_t past)
{
    static const uint32_t end = 1, none = 0, slot = 0, no_slot = DP_NO_SLOT;
    dp_documents_t documents[R_MICROBATCHES];
    dp_requests_t requests[R_MICROBATCHES];
    dp_step_t s = {.struct_size = sizeof(s),
                   .inputs = data,
                   .targets = data,
                   .documents = documents,
                   .requests = requests,
                   .forward_only = 1};

    for (int i = 0; i < R_MICROBATCHES; i++) {
        documents[i] = (dp_documents_t){.ends = &end, .count = 1};
        requests[i] = (dp_requests_t){.slots = i == 0 ? &slot : &no_slot, .past = i == 0 ? &past : &none};
    }
    return dp_pipeline_step(r_self.pipeline, &s);
}

static dp_status_t r_ask(const void **data)
{
    const r_asks_t asks = r_self.shared->setting.asks;
    dp_status_t status = DP_OK;

    if (asks != R_NO_REQUEST)
        status = r_ask_for(data, asks == R_ASKS_ON && r_self.shared->died > 0);
    return status >= 0 && asks != R_NO_REQUEST ? r_ask_for(data, 1) : status;
}

/* Behind the last one nothing is left but to wait until all have come so far. */
static dp_status_t r_step(int64_t step)
{
    const r_death_t *death = r_due(R_AT_KERNEL, step);
    const void *data[R_MICROBATCHES];
    dp_step_t s = {.struct_size = sizeof(s), .inputs = data, .targets = data};
    double sum;
    dp_status_t status;

    if (step == R_STEPS)
        return dp_group_barrier(r_self.group);
    for (int i = 0; i < R_MICROBATCHES; i++) {
        residual_tensor(r_self.tensors[i], 1 + (unsigned)step,
                        (unsigned)(r_self.forked->rank * r_pipelines() / R_RANKS), (unsigned)i);
        data[i] = r_self.tensors[i];
    }
    if (death != NULL) {
        r_self.part.countdown = 1 + death->n;
        r_self.part.fault = r_die_in_kernel;
    }
    status = r_ask(data);
    if (status >= 0)
        status = r_flip(R_PARAM, step);
    if (status >= 0)
        status = r_flip(R_STATE, step);
    if (status >= 0)
        status = dp_pipeline_step(r_self.pipeline, &s);
    r_perhaps_die(R_AFTER_STEP, step);
    sum = s.loss;
    if (status >= 0)
        status = dp_pipeline_sum(r_self.pipeline, &sum, 1);
    if (status >= 0)
        status = r_flip(R_GRADIENT, step);
    if (status >= 0)
        status = r_flip(R_RESTLESS, step);
    if (status >= 0)
        status = r_commit(step);
    if (status >= 0)
        status = r_update(step, s.loss);
    return status >= 0 && r_self.shared->setting.saves != NULL ? r_save(step) : status;
}

static uint64_t r_mix(uint64_t h, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ ((const unsigned char *)data)[i]) * 1099511628211u;
    return h;
}

static dp_status_t r_digest(void)
{
    uint64_t h = 14695981039346656037u;
    dp_status_t status = DP_OK;

    for (int32_t c = 0; c < dp_pipeline_chunks(r_self.pipeline) && status >= 0; c++) {
        dp_chunk_view_t view;

        status = r_view(c, &view);
        h = r_mix(h, view.params, view.param_count * sizeof(double));
        h = r_mix(h, r_self.mean[c], view.shard_count * sizeof(double));
    }
    h = r_mix(h, r_self.history, sizeof(r_self.history));
    memcpy(r_self.shared->losses[r_self.forked->rank], r_self.history, sizeof(r_self.history));
    r_self.shared->digest[r_self.forked->rank] = r_mix(h, &r_self.tally, sizeof(r_self.tally));
    return status;
}

static dp_status_t r_load(int64_t *step)
{
    uint64_t saved = 0;
    dp_status_t status = dp_pipeline_load(r_self.pipeline, r_self.shared->setting.saves, &saved);

    if (status == DP_PENDING)
        status = r_begin();
    if (status >= 0)
        *step = (int64_t)saved;
    return status;
}

static dp_status_t r_ready(dp_status_t status, int64_t *step)
{
    const dp_save_options_t save = {.struct_size = sizeof(save), .folder = r_self.shared->setting.saves, .keep = 2};

    for (;;) {
        status = dp_pipeline_recover(r_self.pipeline, status, step);
        if (save.folder == NULL || (status < 0 && status != DP_ERR_LOST))
            return status;
        if (status == DP_ERR_LOST) {
            *step = -1;
            status = r_load(step);
            continue;
        }
        status = dp_pipeline_save_open(r_self.pipeline, &save);
        if (status >= 0 || dp_group_health(r_self.group) == DP_OK)
            return status;
    }
}

/* Copies have the room that was measured before the first step. */
static dp_status_t r_register_late(void)
{
    static double value;
    const dp_state_t late = {.struct_size = sizeof(late),
                             .name = "late",
                             .scope = DP_STATE_JOB,
                             .host = 1,
                             .memory = &value,
                             .dtype = DP_F64,
                             .count = 1};
    const dp_status_t status = dp_pipeline_register_state(r_self.pipeline, &late);

    if (status == DP_ERR_INVALID && strstr(dp_last_error(), "after dp_pipeline_recover") != NULL)
        return DP_OK;
    return dp_fail(DP_ERR_INVALID, "a state registered after dp_pipeline_recover: status %d", (int)status);
}

static dp_status_t r_train(void)
{
    int64_t step = r_self.shared->setting.saves != NULL ? -1 : 0;
    dp_status_t status = r_begin();

    r_perhaps_die(R_BEFORE_RECOVERING, 0);
    if (status >= 0)
        status = r_ready(DP_OK, &step);
    if (status >= 0 && r_self.shared->setting.buddy)
        status = r_register_late();
    r_self.shared->back_ns[r_self.forked->rank] = forked_now_ns();
    while (status == DP_ERR_LOST || (status >= 0 && step <= R_STEPS)) {
        if (status == DP_ERR_LOST) {
            r_self.shared->lost[r_self.forked->rank]++;
            if (!r_self.shared->setting.reads_checkpoint)
                return status;
            step = 0;
            status = r_begin();
            if (status >= 0)
                status = dp_pipeline_recover(r_self.pipeline, DP_OK, &step);
            continue;
        }
        status = r_step(step);
        if (status >= 0) {
            step++;
        } else {
            status = r_ready(status, &step);
            r_self.shared->back_ns[r_self.forked->rank] = forked_now_ns();
        }
    }
    return status >= 0 ? r_digest() : status;
}

static dp_status_t r_body(forked_t *forked)
{
    static const dp_allocator_t hooks = {NULL, r_allocate, r_release};
    dp_group_options_t options = forked_options(forked);
    const bool asks = ((const r_shared_t *)forked->shared)->setting.asks != R_NO_REQUEST;
    char message[1024];
    dp_status_t status;

    if (((const r_shared_t *)forked->shared)->setting.flip.memory == R_RESTLESS)
        dp_set_allocator(&hooks);
    r_self = (r_rank_t){.forked = forked, .shared = forked->shared};
    r_self.life = __atomic_add_fetch(&r_self.shared->lives[forked->rank], 1, __ATOMIC_SEQ_CST);
    if (r_self.shared->setting.buddy)
        forked_launch("memory", r_self.shared->memory[forked->rank]);
    r_perhaps_die(R_BEFORE_JOINING, 0);
    status = dp_group_join(&options, &r_self.group);
    r_perhaps_die(R_AFTER_JOINING, 0);
    if (status >= 0)
        status = dp_pipeline_open(&(dp_pipeline_options_t){.struct_size = sizeof(dp_pipeline_options_t),
                                                           .group = r_self.group,
                                                           .method = r_self.shared->setting.method,
                                                           .dp = r_self.shared->setting.dp,
                                                           .ep = r_self.shared->setting.ep,
                                                           .zero = r_self.shared->setting.zero,
                                                           .buddy = r_self.shared->setting.buddy,
                                                           .microbatches = R_MICROBATCHES,
                                                           .boundary_bytes = TENSOR * sizeof(double),
                                                           .dtype = DP_F64,
                                                           .tokens = asks ? ROWS : 0,
                                                           .documents = asks,
                                                           .cache_slots = asks,
                                                           .cache_tokens = asks ? ROWS : 0,
                                                           .build = r_build,
                                                           .retire = r_retire,
                                                           .check_bits = r_self.shared->setting.check_bits},
                                  &r_self.pipeline);
    if (status >= 0)
        status = r_register();
    if (status >= 0)
        status = r_train();
    snprintf(message, sizeof(message), "%s", dp_last_error());
    dp_pipeline_close(r_self.pipeline);
    for (int i = 0; i < r_self.nstages; i++)
        dp_stage_free(r_self.stages[i]);
    for (int c = 0; c < DP_MAX_CHUNKS; c++)
        free(r_self.mean[c]);
    dp_group_leave(r_self.group);
    return status < 0 ? dp_fail(status, "%s", message) : status;
}

/* ---- as the test sees it ---- */

static inline void r_start_once(forked_job_t *job, const r_setting_t *setting, const r_death_t *deaths, int n)
{
    r_shared_t *shared;

    forked_begin(job, R_RANKS);
    shared = job->shared;
    shared->setting = *setting;
    shared->n = n;
    if (n > 0)
        memcpy(shared->deaths, deaths, (size_t)n * sizeof(*deaths));
    for (int32_t r = 0; r < R_RANKS && setting->buddy; r++)
        ck_assert_int_ge(shared->memory[r] = memfd_create("test-buddy", 0), 0);
    for (int32_t r = 0; r < R_RANKS; r++)
        forked_start(job, r, r_body, 0);
}

/* The same, and a process again for each that ends by a signal, `seconds` long at most. */
static void r_start(forked_job_t *job, const r_setting_t *setting, const r_death_t *deaths, int n, double seconds)
{
    int64_t end = forked_now_ns() + (int64_t)(seconds * 1e9);
    const r_shared_t *shared;
    bool running = true;

    r_start_once(job, setting, deaths, n);
    shared = job->shared;
    while (n > 0 && running && forked_now_ns() < end) {
        running = false;
        for (int32_t r = 0; r < R_RANKS && n > 0; r++) {
            if (job->waits[r] == -1 && waitpid(job->pids[r], &job->waits[r], WNOHANG) == job->pids[r] &&
                WIFSIGNALED(job->waits[r])) {
                if (setting->buddy_dies)
                    ck_assert_int_eq(ftruncate(shared->memory[r], 0), 0);
                forked_start(job, r, r_body, 0);
                n--;
            }
            running = running || job->waits[r] == -1;
        }
        forked_nap(1);
    }
    for (int32_t r = 0; r < R_RANKS && setting->buddy; r++)
        close(shared->memory[r]);
}

static inline void r_run(forked_job_t *job, const r_setting_t *setting, const r_death_t *deaths, int n)
{
    r_start(job, setting, deaths, n, 40 * forked_scale());
    forked_finish(job, 40);
}

/* One test in this process, which starts the ranks. What main returns. */
static inline int r_sweep(const char *name, const TTest *sweep)
{
    Suite *suite = suite_create(name);
    TCase *all = tcase_create("sweep");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_add_test(all, sweep);
    suite_add_tcase(suite, all);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_SILENT);
    srunner_print(runner, CK_MINIMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

#endif
