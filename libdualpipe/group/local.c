/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * local.c: a job of ranks that are threads of one process: everything is shared memory under one
 * mutex. */
#include "base/do.h"
#include "base/memory.h"
#include "group/last_spans.h"
#include "group/pace.h"
#include "group/recorder.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct place {
    const void *mine;
    size_t bytes;
    bool here, left;
    dp__recorder_t *recorders;
} place_t;

typedef struct job {
    dp__cause_t cause;
    dp__kv_t kv;
    pthread_mutex_t mutex; /* all below */
    int32_t size, alive, arrived;
    dp__control_t control; /* that is gathering, from whoever came first */
    dp_signal_t controls;  /* how many are over */
    dp__verdict_t verdict; /* of the root of collect */
    dp__step_calls_t *said;
    dp__pace_t *paces; /* [size] */
    int32_t straggler; /* 0: none, else 1 more than its rank */
    place_t places[];
} job_t;

typedef struct local_group {
    dp_group_t group;
    job_t *job;
} local_group_t;

static job_t *job_of(const dp_group_t *group)
{
    return ((const local_group_t *)group)->job;
}

/* ---- key-value store ---- */

static dp_status_t local_put(dp_group_t *group, const char *key, const void *data, size_t bytes)
{
    DO(dp__cause_check(group->cause));
    return dp__kv_put(&job_of(group)->kv, key, data, bytes, __atomic_load_n(&group->opening, __ATOMIC_ACQUIRE) != 0);
}

static dp_status_t local_get(dp_group_t *group, const char *key, void *data, size_t bytes)
{
    return dp__kv_wait(&job_of(group)->kv, group->cause, group->rank, group->hang_ns, key, data, bytes);
}

/* ---- a job that makes no progress ---- */

/* The first who has waited too long writes what all did last. */
static void end_hang(dp_group_t *group, const char *message)
{
    job_t *job = job_of(group);
    dp__last_spans_t last = {.timeline = NULL};
    char file[DP__LAST_SPANS_TEXT];

    if (!dp__cause_is_set(group->cause) && dp__last_spans_open(&last, job->size)) {
        pthread_mutex_lock(&job->mutex);
        for (int32_t r = 0; r < job->size; r++)
            (void)dp__last_spans_take(job->places[r].recorders, r, last.timeline, r);
        pthread_mutex_unlock(&job->mutex);
    }
    dp__last_spans_name(&last, file, sizeof(file));
    if (dp__cause_set(group->cause, DP_ERR_TIMEOUT, "%.600s%s", message, file))
        dp__last_spans_write(&last);
    dp__last_spans_drop(&last);
}

/* ---- control collectives ---- */

/* With the mutex: false when this control collective can never be complete; then the job ends. */
static bool check_control(job_t *job, const dp__control_t *control)
{
    for (int32_t r = 0; r < job->size; r++)
        if (job->places[r].left) {
            dp__cause_set(&job->cause, DP_ERR_PEER, "rank %d has left the job while rank %d is in %s", r, control->rank,
                          dp__control_name(control->kind));
            return false;
        }
    return dp__control_match(&job->cause, &job->control, control);
}

/* What the others may read of ours after the next control collective and until the one after it. */
static void show_bytes(dp_group_t *group, const void *mine, size_t bytes)
{
    place_t *place = &job_of(group)->places[group->rank];

    place->mine = mine;
    place->bytes = bytes;
}

static dp_status_t run_control(dp_group_t *group, uint32_t kind, uint32_t root, size_t bytes)
{
    job_t *job = job_of(group);
    const dp__control_t own = {kind, root, bytes, group->rank};
    dp__rank_list_t missing = {0};
    char what[256];
    uint32_t control;
    dp_status_t status;

    pthread_mutex_lock(&job->mutex);
    if (job->arrived == 0)
        job->control = own;
    if (!check_control(job, &own)) {
        pthread_mutex_unlock(&job->mutex);
        return dp__cause_check(group->cause);
    }
    control = dp__signal_value(&job->controls);
    job->places[group->rank].here = true;
    if (++job->arrived == job->size) {
        job->arrived = 0;
        if (kind == DP__CONTROL_SETTLE)
            dp__kv_settle(&job->kv);
        for (int32_t r = 0; r < job->size; r++)
            job->places[r].here = false;
        dp__signal_post(&job->controls, control + 1);
    }
    pthread_mutex_unlock(&job->mutex);

    status = dp__group_wait(group, &job->controls, control + 1, group->hang_ns, "a control collective");
    if (status != DP_ERR_TIMEOUT)
        return status;
    pthread_mutex_lock(&job->mutex);
    for (int32_t r = 0; r < job->size; r++)
        if (!job->places[r].here)
            dp__rank_list_add(&missing, r);
    pthread_mutex_unlock(&job->mutex);
    snprintf(what, sizeof(what), "rank %d waited %.3g s in %s for ranks %s", group->rank, (double)group->hang_ns * 1e-9,
             dp__control_name(kind), dp__rank_list_text(&missing));
    end_hang(group, what);
    return dp__cause_check(group->cause);
}

static dp_status_t local_gather(dp_group_t *group, dp__control_kind_t kind, const void *mine, size_t bytes,
                                void *all_out)
{
    job_t *job = job_of(group);
    dp_status_t status;

    show_bytes(group, mine, bytes);
    status = run_control(group, kind, 0, bytes);
    if (status != DP_OK || bytes == 0)
        return status;
    for (int32_t r = 0; r < group->size; r++)
        memcpy((char *)all_out + (size_t)r * bytes, job->places[r].mine, bytes);
    /* nobody takes his bytes back before all have read them */
    return run_control(group, kind, 0, bytes);
}

static void receive_all(job_t *job, dp__receive_fn receive, void *user)
{
    dp_status_t status = DP_OK;

    for (int32_t r = 0; r < job->size && status == DP_OK; r++)
        status = receive(user, r, job->places[r].mine, job->places[r].bytes);
    job->verdict.status = status;
    snprintf(job->verdict.message, sizeof(job->verdict.message), "%s", status != DP_OK ? dp_last_error() : "");
}

static dp_status_t local_collect(dp_group_t *group, int32_t root, const void *mine, size_t bytes,
                                 dp__receive_fn receive, void *user)
{
    job_t *job = job_of(group);
    dp_status_t status;

    show_bytes(group, mine, bytes);
    DO(run_control(group, DP__CONTROL_COLLECT, (uint32_t)root, 0));
    if (group->rank == root)
        receive_all(job, receive, user);
    status = run_control(group, DP__CONTROL_COLLECT, (uint32_t)root, 0);
    if (status == DP_OK && job->verdict.status != DP_OK)
        return dp_fail(job->verdict.status, "collect at rank %d: %s", root, job->verdict.message);
    return status;
}

static void local_tell_step(dp_group_t *group, const dp__step_call_t *call)
{
    job_t *job = job_of(group);
    char text[DP__CAUSE_BYTES];

    pthread_mutex_lock(&job->mutex);
    if (!dp__steps_hear(job->said, job->size, group->rank, call, text, sizeof(text)))
        dp__cause_set(group->cause, DP_ERR_MISMATCH, "%s", text);
    dp__pace_hear(job->paces, job->size, group->rank, call);
    pthread_mutex_unlock(&job->mutex);
}

static void local_straggler(dp_group_t *group, dp_straggler_t *found)
{
    job_t *job = job_of(group);
    char host[DP__HOST_BYTES];
    dp__straggler_t now;

    pthread_mutex_lock(&job->mutex);
    now = dp__pace_straggler(job->paces, job->size, job->straggler - 1);
    job->straggler = now.rank + 1;
    pthread_mutex_unlock(&job->mutex);
    if (now.rank < 0)
        return;
    found->rank = now.rank;
    found->times = now.times;
    dp__host_name(host);
    snprintf(found->name, sizeof(found->name), "rank %d (a thread of pid %d on %s)", now.rank, (int)getpid(), host);
}

/* ---- the end ---- */

static void local_abort(dp_group_t *group, dp_status_t status, const char *message)
{
    if (status == DP_ERR_TIMEOUT)
        end_hang(group, message);
    else
        dp__cause_set(group->cause, status, "%s", message);
}

static void local_interrupt(dp_group_t *group)
{
    dp__cause_interrupt(group->cause, group->rank);
}

static void free_recorder(dp__recorder_t *recorder)
{
    if (recorder != NULL)
        dp__free(recorder->memory);
    dp__free(recorder);
}

static void free_recorders(dp__recorder_t *recorder)
{
    while (recorder != NULL) {
        dp__recorder_t *next = recorder->next;

        free_recorder(recorder);
        recorder = next;
    }
}

static void free_job(job_t *job)
{
    for (int32_t r = 0; r < job->size; r++)
        free_recorders(job->places[r].recorders);
    dp__free(job->said);
    dp__free(job->paces);
    dp__kv_fini(&job->kv);
    pthread_mutex_destroy(&job->mutex);
    dp__free(job);
}

/* Nobody can take a thread that leaves for a death, so there is nobody to wait for. */
static void local_leave(dp_group_t *group)
{
    job_t *job = job_of(group);
    bool last;

    if (group->pinned)
        return;
    pthread_mutex_lock(&job->mutex);
    job->places[group->rank].left = true;
    if (job->arrived > 0)
        (void)check_control(job, &job->control);
    last = --job->alive == 0;
    pthread_mutex_unlock(&job->mutex);
    if (last)
        free_job(job);
    dp__group_free_places(group);
    dp__free(group);
}

/* ---- flight recorder ---- */

static void local_describe(const dp_group_t *group, int32_t rank, char *text, size_t bytes)
{
    job_t *job = job_of(group);

    pthread_mutex_lock(&job->mutex);
    (void)dp__recorder_describe(job->places[rank].recorders, rank, text, bytes);
    pthread_mutex_unlock(&job->mutex);
}

static int64_t local_latest(const dp_group_t *group)
{
    job_t *job = job_of(group);
    int64_t latest = 0;

    pthread_mutex_lock(&job->mutex);
    for (int32_t r = 0; r < job->size; r++) {
        int64_t t = dp__recorder_latest(job->places[r].recorders, r);

        latest = t > latest ? t : latest;
    }
    pthread_mutex_unlock(&job->mutex);
    return latest;
}

static void local_name_spans(dp_group_t *group, uint16_t name, const char *text)
{
    job_t *job = job_of(group);

    pthread_mutex_lock(&job->mutex);
    for (dp__recorder_t *recorder = job->places[group->rank].recorders; recorder != NULL; recorder = recorder->next)
        dp__recorder_set_name(recorder, name, text);
    pthread_mutex_unlock(&job->mutex);
}

static void local_close_recorder(dp_group_t *group, const dp_span_t *records)
{
    job_t *job = job_of(group);
    dp__recorder_t *recorder;

    pthread_mutex_lock(&job->mutex);
    recorder = dp__recorder_take(&job->places[group->rank].recorders, records);
    pthread_mutex_unlock(&job->mutex);
    free_recorder(recorder);
}

static dp_status_t local_recorder(dp_group_t *group, uint32_t capacity, dp_span_t **records_out)
{
    static const uint8_t no_mark[16];
    place_t *place = &job_of(group)->places[group->rank];
    dp__recorder_t *recorder;
    void *memory = NULL;
    size_t bytes;

    DO(dp__recorder_bytes(capacity, &bytes));
    recorder = dp__calloc(1, sizeof(*recorder));
    if (recorder != NULL)
        memory = dp__calloc(1, bytes);
    if (memory == NULL) {
        dp__free(recorder);
        return dp_fail(DP_ERR_NOMEM, "rank %d: no memory for a flight recorder of %u records", group->rank, capacity);
    }
    dp__recorder_format(memory, bytes, capacity, no_mark, recorder);
    pthread_mutex_lock(&job_of(group)->mutex);
    recorder->rank = group->rank;
    recorder->next = place->recorders;
    place->recorders = recorder;
    pthread_mutex_unlock(&job_of(group)->mutex);
    *records_out = recorder->records;
    return run_control(group, DP__CONTROL_RECORDER, 0, 0);
}

static const char *local_apart(const dp_group_t *group, int32_t a, int32_t b)
{
    (void)group, (void)a, (void)b;
    return NULL;
}

static dp_status_t local_clock(dp_group_t *group, int64_t since_ns, dp__clock_sample_t *samples_out, size_t *count_out)
{
    (void)group, (void)since_ns, (void)samples_out;
    *count_out = 0;
    return DP_OK;
}

static const dp__group_link_t local_link = {
    .put = local_put,
    .get = local_get,
    .gather = local_gather,
    .collect = local_collect,
    .abort = local_abort,
    .interrupt = local_interrupt,
    .recorder = local_recorder,
    .close_recorder = local_close_recorder,
    .name_spans = local_name_spans,
    .describe = local_describe,
    .latest = local_latest,
    .apart = local_apart,
    .clock = local_clock,
    .tell_step = local_tell_step,
    .straggler = local_straggler,
    .leave = local_leave,
};

/* ---- making a job ---- */

static dp_status_t make_groups(job_t *job, int64_t hang_ns, dp_group_t **groups_out)
{
    for (int32_t r = 0; r < job->size; r++) {
        local_group_t *mine = dp__calloc(1, sizeof(*mine));

        if (mine == NULL) {
            while (r-- > 0)
                dp__free(groups_out[r]);
            return dp_fail(DP_ERR_NOMEM, "no memory for a job of %d ranks", job->size);
        }
        mine->job = job;
        dp__group_init(&mine->group, r, job->size, hang_ns, &job->cause, &local_link);
        groups_out[r] = &mine->group;
    }
    return DP_OK;
}

dp_status_t dp_group_local(int32_t size, const dp_group_options_t *options, dp_group_t **groups_out)
{
    dp_group_options_t settled;
    job_t *job;
    dp_status_t status;

    DO(dp__group_options(options, &settled));
    if (size < 1 || size > DP_MAX_RANKS)
        return dp_fail(DP_ERR_INVALID, "a job of %d ranks: 1 to %d are possible", size, DP_MAX_RANKS);
    job = dp__calloc(1, sizeof(*job) + (size_t)size * sizeof(place_t));
    if (job == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a job of %d ranks", size);
    job->size = job->alive = size;
    dp__kv_init(&job->kv);
    pthread_mutex_init(&job->mutex, NULL);
    job->said = dp__calloc((size_t)size, sizeof(*job->said));
    job->paces = dp__calloc((size_t)size, sizeof(*job->paces));
    status = job->said != NULL && job->paces != NULL ? make_groups(job, dp__scaled_ns(settled.hang_seconds), groups_out)
                                                     : dp_fail(DP_ERR_NOMEM, "no memory for a job of %d ranks", size);
    if (status != DP_OK)
        free_job(job);
    return status;
}
