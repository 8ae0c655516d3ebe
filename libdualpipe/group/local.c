/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * local.c: a job of ranks that are threads of one process: everything is shared memory under one mutex. */
#include "base/environment.h"
#include "base/memory.h"
#include "group/blackbox.h"
#include "group/last_spans.h"

#include <stdio.h>
#include <string.h>

typedef struct place {
    const void *mine;
    size_t bytes;
    bool here, left;
    dp__box_t *boxes;
} place_t;

typedef struct job {
    dp__cause_t cause;
    dp__board_t board;
    pthread_mutex_t mutex; /* all below */
    int32_t size, alive, arrived;
    uint32_t kind, root; /* of the meeting that is gathering, from whoever came first */
    size_t bytes;
    int32_t first;
    dp_signal_t meetings;  /* how many are over */
    dp__verdict_t verdict; /* of the root of collect */
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

/* ---- blackboard ---- */

static dp_status_t local_put(dp_group_t *group, const char *key, const void *data, size_t bytes)
{
    dp_status_t status = dp__cause_check(group->cause);

    return status == DP_OK ? dp__board_put(&job_of(group)->board, key, data, bytes,
                                           __atomic_load_n(&group->opening, __ATOMIC_ACQUIRE) != 0)
                           : status;
}

static dp_status_t local_get(dp_group_t *group, const char *key, void *data, size_t bytes)
{
    return dp__board_wait(&job_of(group)->board, group->cause, group->rank, group->hang_ns, key, data, bytes);
}

/* ---- a job that does not get on ---- */

/* The first who has waited too long writes what all did last. */
static void end_hang(dp_group_t *group, const char *message)
{
    job_t *job = job_of(group);
    dp__last_spans_t last = {.timeline = NULL};
    char text[DP__CAUSE_BYTES], file[DP__LAST_SPANS_TEXT];

    if (!dp__cause_is_set(group->cause) && dp__last_spans_open(&last, job->size)) {
        pthread_mutex_lock(&job->mutex);
        for (int32_t r = 0; r < job->size; r++)
            (void)dp__last_spans_take(job->places[r].boxes, r, last.timeline, r);
        pthread_mutex_unlock(&job->mutex);
    }
    dp__last_spans_name(&last, file, sizeof(file));
    snprintf(text, sizeof(text), "%.600s%s", message, file);
    if (dp__cause_set(group->cause, DP_ERR_TIMEOUT, text))
        dp__last_spans_write(&last);
    dp__last_spans_drop(&last);
}

/* ---- meetings ---- */

/* With the mutex: false when this meeting can never be complete; then the job ends. */
static bool check_meeting(job_t *job, int32_t rank, uint32_t kind, uint32_t root, size_t bytes)
{
    char text[256];

    for (int32_t r = 0; r < job->size; r++)
        if (job->places[r].left) {
            snprintf(text, sizeof(text), "rank %d has left the job while rank %d is in %s", r, rank,
                     dp__meeting_name(kind));
            dp__cause_set(&job->cause, DP_ERR_PEER, text);
            return false;
        }
    if (job->kind == kind && job->root == root && job->bytes == bytes)
        return true;
    snprintf(text, sizeof(text), "rank %d is in %s of %zu bytes (root %u), rank %d in %s of %zu bytes (root %u)",
             job->first, dp__meeting_name(job->kind), job->bytes, job->root, rank, dp__meeting_name(kind), bytes, root);
    dp__cause_set(&job->cause, DP_ERR_PROTOCOL, text);
    return false;
}

/* What the others may read of ours after the next meeting and until the one after it. */
static void show(dp_group_t *group, const void *mine, size_t bytes)
{
    place_t *place = &job_of(group)->places[group->rank];

    place->mine = mine;
    place->bytes = bytes;
}

static dp_status_t meet(dp_group_t *group, uint32_t kind, uint32_t root, size_t bytes)
{
    job_t *job = job_of(group);
    dp__rank_list_t missing = {0};
    char what[256];
    uint32_t meeting;
    dp_status_t status;

    pthread_mutex_lock(&job->mutex);
    if (job->arrived == 0) {
        job->kind = kind;
        job->root = root;
        job->bytes = bytes;
        job->first = group->rank;
    }
    if (!check_meeting(job, group->rank, kind, root, bytes)) {
        pthread_mutex_unlock(&job->mutex);
        return dp__cause_check(group->cause);
    }
    meeting = dp__signal_value(&job->meetings);
    job->places[group->rank].here = true;
    if (++job->arrived == job->size) {
        job->arrived = 0;
        if (kind == DP__MEET_SETTLE)
            dp__board_settle(&job->board);
        for (int32_t r = 0; r < job->size; r++)
            job->places[r].here = false;
        dp__signal_post(&job->meetings, meeting + 1);
    }
    pthread_mutex_unlock(&job->mutex);

    status = dp__group_wait(group, &job->meetings, meeting + 1, group->hang_ns, "a meeting");
    if (status != DP_ERR_TIMEOUT)
        return status;
    pthread_mutex_lock(&job->mutex);
    for (int32_t r = 0; r < job->size; r++)
        if (!job->places[r].here)
            dp__rank_list_add(&missing, r);
    pthread_mutex_unlock(&job->mutex);
    snprintf(what, sizeof(what), "rank %d waited %.3g s in %s for ranks %s", group->rank, (double)group->hang_ns * 1e-9,
             dp__meeting_name(kind), dp__rank_list_text(&missing));
    end_hang(group, what);
    return dp__cause_check(group->cause);
}

static dp_status_t local_gather(dp_group_t *group, dp__meeting_t meeting, const void *mine, size_t bytes, void *all_out)
{
    job_t *job = job_of(group);
    dp_status_t status;

    show(group, mine, bytes);
    status = meet(group, meeting, 0, bytes);
    if (status != DP_OK || bytes == 0)
        return status;
    for (int32_t r = 0; r < group->size; r++)
        memcpy((char *)all_out + (size_t)r * bytes, job->places[r].mine, bytes);
    return meet(group, meeting, 0, bytes); /* nobody takes his bytes back before all have read them */
}

static void receive_all(job_t *job, dp_receive_fn receive, void *user)
{
    dp_status_t status = DP_OK;

    for (int32_t r = 0; r < job->size && status == DP_OK; r++)
        status = receive(user, r, job->places[r].mine, job->places[r].bytes);
    job->verdict.status = status;
    snprintf(job->verdict.message, sizeof(job->verdict.message), "%s", status != DP_OK ? dp_last_error() : "");
}

static dp_status_t local_collect(dp_group_t *group, int32_t root, const void *mine, size_t bytes, dp_receive_fn receive,
                                 void *user)
{
    job_t *job = job_of(group);
    dp_status_t status;

    show(group, mine, bytes);
    status = meet(group, DP__MEET_COLLECT, (uint32_t)root, 0);
    if (status != DP_OK)
        return status;
    if (group->rank == root)
        receive_all(job, receive, user);
    status = meet(group, DP__MEET_COLLECT, (uint32_t)root, 0);
    if (status == DP_OK && job->verdict.status != DP_OK)
        return dp_fail(job->verdict.status, "collect at rank %d: %s", root, job->verdict.message);
    return status;
}

/* ---- the end ---- */

static void local_abort(dp_group_t *group, dp_status_t status, const char *message)
{
    if (status == DP_ERR_TIMEOUT)
        end_hang(group, message);
    else
        dp__cause_set(group->cause, status, message);
}

static void local_interrupt(dp_group_t *group)
{
    dp__cause_interrupt(group->cause, group->rank);
}

static void free_box(dp__box_t *box)
{
    if (box != NULL)
        dp__free(box->memory);
    dp__free(box);
}

static void free_boxes(dp__box_t *box)
{
    while (box != NULL) {
        dp__box_t *next = box->next;

        free_box(box);
        box = next;
    }
}

static void free_job(job_t *job)
{
    for (int32_t r = 0; r < job->size; r++)
        free_boxes(job->places[r].boxes);
    dp__board_fini(&job->board);
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
        (void)check_meeting(job, job->first, job->kind, job->root, job->bytes);
    last = --job->alive == 0;
    pthread_mutex_unlock(&job->mutex);
    if (last)
        free_job(job);
    dp__group_free_places(group);
    dp__free(group);
}

/* ---- black box ---- */

static void local_describe(const dp_group_t *group, int32_t rank, char *text, size_t bytes)
{
    job_t *job = job_of(group);

    pthread_mutex_lock(&job->mutex);
    (void)dp__box_describe(job->places[rank].boxes, rank, text, bytes);
    pthread_mutex_unlock(&job->mutex);
}

static int64_t local_latest(const dp_group_t *group)
{
    job_t *job = job_of(group);
    int64_t latest = 0;

    pthread_mutex_lock(&job->mutex);
    for (int32_t r = 0; r < job->size; r++) {
        int64_t t = dp__box_latest(job->places[r].boxes, r);

        latest = t > latest ? t : latest;
    }
    pthread_mutex_unlock(&job->mutex);
    return latest;
}

static void local_name_spans(dp_group_t *group, uint16_t name, const char *text)
{
    job_t *job = job_of(group);

    pthread_mutex_lock(&job->mutex);
    for (dp__box_t *box = job->places[group->rank].boxes; box != NULL; box = box->next)
        dp__box_set_name(box, name, text);
    pthread_mutex_unlock(&job->mutex);
}

static void local_close_blackbox(dp_group_t *group, const dp_span_t *records)
{
    job_t *job = job_of(group);
    dp__box_t *box;

    pthread_mutex_lock(&job->mutex);
    box = dp__box_take(&job->places[group->rank].boxes, records);
    pthread_mutex_unlock(&job->mutex);
    free_box(box);
}

static dp_status_t local_blackbox(dp_group_t *group, uint32_t capacity, dp_span_t **records_out)
{
    static const uint8_t no_mark[16];
    place_t *place = &job_of(group)->places[group->rank];
    dp__box_t *box;
    void *memory = NULL;
    size_t bytes;
    dp_status_t status = dp__box_bytes(capacity, &bytes);

    if (status != DP_OK)
        return status;
    box = dp__calloc(1, sizeof(*box));
    if (box != NULL)
        memory = dp__calloc(1, bytes);
    if (memory == NULL) {
        dp__free(box);
        return dp_fail(DP_ERR_NOMEM, "rank %d: no memory for a black box of %u records", group->rank, capacity);
    }
    dp__box_format(memory, bytes, capacity, no_mark, box);
    pthread_mutex_lock(&job_of(group)->mutex);
    box->rank = group->rank;
    box->next = place->boxes;
    place->boxes = box;
    pthread_mutex_unlock(&job_of(group)->mutex);
    *records_out = box->records;
    return meet(group, DP__MEET_BLACKBOX, 0, 0);
}

static bool local_near(const dp_group_t *group, int32_t rank)
{
    (void)group, (void)rank;
    return true;
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
    .blackbox = local_blackbox,
    .close_blackbox = local_close_blackbox,
    .name_spans = local_name_spans,
    .describe = local_describe,
    .latest = local_latest,
    .near = local_near,
    .apart = local_apart,
    .clock = local_clock,
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
    dp_status_t status = dp__group_options(options, &settled);

    dp__environment_read();
    if (status != DP_OK)
        return status;
    if (size < 1 || size > DP_MAX_RANKS)
        return dp_fail(DP_ERR_INVALID, "a job of %d ranks: 1 to %d are possible", size, DP_MAX_RANKS);
    job = dp__calloc(1, sizeof(*job) + (size_t)size * sizeof(place_t));
    if (job == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a job of %d ranks", size);
    job->size = job->alive = size;
    dp__board_init(&job->board);
    pthread_mutex_init(&job->mutex, NULL);
    status = make_groups(job, dp__scaled_ns(settled.hang_seconds), groups_out);
    if (status != DP_OK)
        free_job(job);
    return status;
}
