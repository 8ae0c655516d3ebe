/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * process.c: a rank that is a separate process, as its threads see it. */
#include "group/process.h"
#include "base/do.h"
#include "base/memory.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

#define CHUNKS_AHEAD 4 /* of collect: asked for before they are needed */

/* ---- key-value store ---- */

/* Sends a request to rank 0 and waits for the reply. */
static dp_status_t ask_hub(dp__process_t *p, dp__frame_type_t type, const char *key, const void *data, size_t bytes,
                           dp__request_t *request)
{
    char what[DP__KV_KEY_BYTES + 64];
    bool answered;
    dp_status_t status;

    pthread_mutex_lock(&p->mutex);
    request->id = ++p->requests.last;
    request->next = p->requests.open;
    p->requests.open = request;
    dp__send2(p,
              &(dp__frame_t){.type = type,
                             .id = request->id,
                             .value = (int32_t)__atomic_load_n(&p->group.opening, __ATOMIC_ACQUIRE),
                             .extra = (uint32_t)strlen(key)},
              key, strlen(key), data, bytes);
    pthread_mutex_unlock(&p->mutex);
    dp__process_wake(p);

    snprintf(what, sizeof(what), "rank %d: %s \"%s\"", p->group.rank,
             type == DP__FRAME_PUT ? "publishing" : "no rank has published", key);
    status = dp__cause_wait(&p->cause, &request->done, 1, p->group.hang_ns, what);

    pthread_mutex_lock(&p->mutex);
    answered = dp__signal_value(&request->done) != 0;
    for (dp__request_t **at = &p->requests.open; *at != NULL; at = &(*at)->next)
        if (*at == request) {
            *at = request->next;
            break;
        }
    pthread_mutex_unlock(&p->mutex);
    if (!answered)
        return status;
    return request->status == DP_OK ? DP_OK : dp_fail(request->status, "%s", request->message);
}

static dp_status_t process_put(dp_group_t *group, const char *key, const void *data, size_t bytes)
{
    dp__process_t *p = dp__process_of(group);
    dp__request_t request = {0};

    DO(dp__cause_check(&p->cause));
    if (!dp__is_hub(p))
        return ask_hub(p, DP__FRAME_PUT, key, data, bytes, &request);
    DO(dp__kv_put(&p->hub.kv, key, data, bytes, __atomic_load_n(&group->opening, __ATOMIC_ACQUIRE) != 0));
    pthread_mutex_lock(&p->mutex);
    dp__hub_answer_gets(p);
    pthread_mutex_unlock(&p->mutex);
    dp__process_wake(p);
    return DP_OK;
}

static dp_status_t process_get(dp_group_t *group, const char *key, void *data, size_t bytes)
{
    dp__process_t *p = dp__process_of(group);
    dp__request_t request = {.data = data, .bytes = bytes};
    dp_status_t status;

    if (dp__is_hub(p))
        return dp__kv_wait(&p->hub.kv, &p->cause, 0, group->hang_ns, key, data, bytes);
    status = ask_hub(p, DP__FRAME_GET, key, NULL, 0, &request);
    if (status == DP_OK && request.bytes != bytes)
        return dp_fail(DP_ERR_PROTOCOL, "key \"%s\" holds %zu bytes, %zu were asked for", key, request.bytes, bytes);
    return status;
}

/* ---- control collectives ---- */

static void process_abort(dp_group_t *group, dp_status_t status, const char *message);
static void end_job(dp__process_t *p, dp_status_t status, const char *text, uint32_t control);

static uint32_t enter_control(dp__process_t *p, uint32_t kind, uint32_t root, const void *mine, size_t bytes,
                              void *all_out)
{
    uint32_t control;

    pthread_mutex_lock(&p->mutex);
    control = ++p->control.number;
    p->control.all_out = all_out;
    p->control.bytes = bytes * (size_t)p->group.size;
    p->control.received = 0;
    if (dp__is_hub(p))
        dp__hub_contribute(p, 0, control, kind, root, mine, bytes);
    else
        dp__send(p, &(dp__frame_t){.type = DP__FRAME_GATHER,
                                   .id = control,
                                   .value = (int32_t)kind,
                                   .extra = root,
                                   .bytes = (uint32_t)bytes,
                                   .payload = mine});
    pthread_mutex_unlock(&p->mutex);
    dp__process_wake(p);
    return control;
}

static dp_status_t run_control(dp__process_t *p, uint32_t kind, uint32_t root, const void *mine, size_t bytes,
                               void *all_out, int64_t timeout_ns)
{
    dp_status_t status;
    char text[128];
    uint32_t control;

    DO(dp__cause_check(&p->cause));
    control = enter_control(p, kind, root, mine, bytes, all_out);
    status = dp__group_wait(&p->group, &p->control.over, control, timeout_ns, "a control collective");
    if (status == DP_ERR_TIMEOUT) {
        snprintf(text, sizeof(text), "rank %d waited %.3g s in %s", p->group.rank, (double)timeout_ns * 1e-9,
                 dp__control_name(kind));
        end_job(p, status, text, control);
        status = dp__cause_check(&p->cause);
    }
    pthread_mutex_lock(&p->mutex);
    p->control.all_out = NULL;
    pthread_mutex_unlock(&p->mutex);
    return status;
}

static dp_status_t process_gather(dp_group_t *group, dp__control_kind_t kind, const void *mine, size_t bytes,
                                  void *all_out)
{
    return run_control(dp__process_of(group), kind, 0, mine, bytes, all_out, group->hang_ns);
}

/* collect: the lengths are gathered, the root asks for the parts, then tells how it went */

static void want(dp__process_t *p, int32_t rank, uint32_t control, uint32_t chunk)
{
    pthread_mutex_lock(&p->mutex);
    dp__send(p, &(dp__frame_t){.type = DP__FRAME_WANT, .to = rank, .id = control, .extra = chunk});
    pthread_mutex_unlock(&p->mutex);
    dp__process_wake(p);
}

static void set_pull(dp__process_t *p, int32_t rank, uint32_t control, void *to, size_t bytes)
{
    pthread_mutex_lock(&p->mutex);
    dp__signal_post(&p->collect.pulled_chunks, 0);
    p->collect.pulled = to;
    p->collect.pulled_bytes = bytes;
    p->collect.pulled_from = rank;
    p->collect.pulled_in = control;
    pthread_mutex_unlock(&p->mutex);
}

static dp_status_t pull(dp__process_t *p, int32_t rank, uint32_t control, void *to, size_t bytes)
{
    uint32_t chunks = (uint32_t)((bytes + DP__CHUNK_BYTES - 1) / DP__CHUNK_BYTES), asked = 0;
    char what[96];
    dp_status_t status = DP_OK;

    snprintf(what, sizeof(what), "rank %d: collect waits for rank %d", p->group.rank, rank);
    set_pull(p, rank, control, to, bytes);
    for (uint32_t chunk = 0; status == DP_OK && chunk < chunks; chunk++) {
        while (asked < chunks && asked < chunk + CHUNKS_AHEAD)
            want(p, rank, control, asked++);
        status = dp__cause_wait(&p->cause, &p->collect.pulled_chunks, chunk + 1, p->group.hang_ns, what);
    }
    set_pull(p, -1, 0, NULL, 0);
    return status;
}

static dp_status_t receive_all(dp__process_t *p, const uint64_t *lengths, const void *mine, uint32_t control,
                               dp__receive_fn receive, void *user)
{
    void *buffer;
    size_t largest = 1;
    dp_status_t status = DP_OK;

    for (int32_t r = 0; r < p->group.size; r++)
        if (r != p->group.rank && lengths[r] > largest)
            largest = (size_t)lengths[r];
    buffer = dp__allocate(largest, 64);
    if (buffer == NULL)
        return dp_fail(DP_ERR_NOMEM, "rank %d: no memory for the %zu bytes that one rank gives", p->group.rank,
                       largest);
    for (int32_t r = 0; r < p->group.size && status == DP_OK; r++) {
        if (r != p->group.rank)
            status = pull(p, r, control, buffer, (size_t)lengths[r]);
        if (status == DP_OK)
            status = receive(user, r, r == p->group.rank ? mine : buffer, (size_t)lengths[r]);
    }
    dp__free(buffer);
    return status;
}

static void offer(dp__process_t *p, const void *mine, size_t bytes)
{
    pthread_mutex_lock(&p->mutex);
    p->collect.offered = mine;
    p->collect.offered_bytes = bytes;
    p->collect.offered_in = p->control.number + 1;
    pthread_mutex_unlock(&p->mutex);
}

static dp_status_t collect_with(dp__process_t *p, int32_t root, const void *mine, size_t bytes, dp__receive_fn receive,
                                void *user, uint64_t *lengths, dp__verdict_t *verdicts)
{
    dp_group_t *group = &p->group;
    dp__verdict_t verdict = {0};
    uint64_t length = bytes;
    dp_status_t status;

    offer(p, mine, bytes);
    status = run_control(p, DP__CONTROL_COLLECT, (uint32_t)root, &length, sizeof(length), lengths, group->hang_ns);
    if (status == DP_OK && group->rank == root) {
        verdict.status = receive_all(p, lengths, mine, p->collect.offered_in, receive, user);
        if (verdict.status != DP_OK)
            snprintf(verdict.message, sizeof(verdict.message), "%s", dp_last_error());
    }
    if (status == DP_OK) /* the root may need the time of a wait for every rank */
        status = run_control(p, DP__CONTROL_COLLECT, (uint32_t)root, &verdict, sizeof(verdict), verdicts,
                             group->hang_ns * group->size);
    offer(p, NULL, 0);
    if (status == DP_OK && verdicts[root].status != DP_OK)
        return dp_fail(verdicts[root].status, "collect at rank %d: %.*s", root, (int)sizeof(verdict.message) - 1,
                       verdicts[root].message);
    return status;
}

static dp_status_t process_collect(dp_group_t *group, int32_t root, const void *mine, size_t bytes,
                                   dp__receive_fn receive, void *user)
{
    dp__process_t *p = dp__process_of(group);
    size_t size = (size_t)group->size;
    uint64_t *lengths;
    dp__verdict_t *verdicts;
    dp_status_t status;

    if (dp__arrays(DP__ARRAY(lengths, size), DP__ARRAY(verdicts, size))) {
        status = collect_with(p, root, mine, bytes, receive, user, lengths, verdicts);
    } else {
        status = dp_fail(DP_ERR_NOMEM, "rank %d: no memory for collect", group->rank);
        process_abort(group, status, dp_last_error()); /* the others wait for us */
    }
    dp__free(lengths);
    return status;
}

/* ---- the end ---- */

static void end_job(dp__process_t *p, dp_status_t status, const char *text, uint32_t control)
{
    int64_t deadline = dp__now_ns() + 2 * dp__scaled_ns(DP__GOODBYE_SECONDS);

    pthread_mutex_lock(&p->mutex);
    if (dp__is_hub(p))
        dp__hub_abort(p, 0, status, text, control);
    else
        dp__propose(p, status, text, control);
    pthread_mutex_unlock(&p->mutex);
    dp__process_wake(p);
    /* rank 0 decides whose cause was the first */
    if (dp__signal_wait(&p->cause.published, 1, deadline, NULL) != DP_OK)
        dp__cause_set(&p->cause, status, "%s", text);
}

static void process_abort(dp_group_t *group, dp_status_t status, const char *message)
{
    dp__process_t *p = dp__process_of(group);

    if (!dp__cause_is_set(&p->cause))
        end_job(p, status, message, 0);
}

static void process_straggler(dp_group_t *group, dp_straggler_t *found)
{
    dp__process_t *p = dp__process_of(group);

    if (!dp__is_hub(p))
        return;
    pthread_mutex_lock(&p->mutex);
    dp__straggler_find(p, found);
    pthread_mutex_unlock(&p->mutex);
}

static void process_tell_step(dp_group_t *group, const dp__step_call_t *call)
{
    dp__process_t *p = dp__process_of(group);
    uint64_t words[DP__STEP_WORDS];

    memcpy(words, call, sizeof(words));
    for (int i = 0; i < DP__STEP_WORDS; i++)
        words[i] = htole64(words[i]);
    pthread_mutex_lock(&p->mutex);
    if (dp__is_hub(p))
        (void)dp__hub_hear_step(p, 0, call);
    else
        dp__send(
            p, &(dp__frame_t){.type = DP__FRAME_STEP, .bytes = sizeof(words), .payload = (const unsigned char *)words});
    pthread_mutex_unlock(&p->mutex);
    if (!dp__is_hub(p) || dp__cause_is_set(&p->cause))
        dp__process_wake(p);
}

static void process_interrupt(dp_group_t *group)
{
    dp__process_t *p = dp__process_of(group);

    __atomic_store_n(&p->interrupted, 1, __ATOMIC_RELEASE);
    dp__process_wake(p);
}

static void process_leave(dp_group_t *group)
{
    dp__process_t *p = dp__process_of(group);

    if (run_control(p, DP__CONTROL_LEAVE, 0, NULL, 0, NULL, group->hang_ns) == DP_OK) {
        pthread_mutex_lock(&p->mutex);
        p->over = true;
        pthread_mutex_unlock(&p->mutex);
    }
    dp__control_stop(p);
    if (!group->pinned)
        dp__process_free(p);
}

static void process_describe(const dp_group_t *group, int32_t rank, char *text, size_t bytes)
{
    dp__process_t *p = dp__process_of(group);

    pthread_mutex_lock(&p->mutex);
    dp__news_describe(p, rank, text, bytes);
    pthread_mutex_unlock(&p->mutex);
}

static int64_t process_latest(const dp_group_t *group)
{
    dp__process_t *p = dp__process_of(group);
    int64_t latest;

    pthread_mutex_lock(&p->mutex);
    latest = dp__news_latest(p);
    pthread_mutex_unlock(&p->mutex);
    return latest;
}

static const char *process_apart(const dp_group_t *group, int32_t a, int32_t b)
{
    return dp__machines_apart(dp__process_of(group), a, b);
}

static uint32_t process_held(const dp_group_t *group, int32_t rank)
{
    return dp__peer(dp__process_of(group), rank).held;
}

static const dp__group_link_t process_link = {
    .put = process_put,
    .get = process_get,
    .gather = process_gather,
    .collect = process_collect,
    .abort = process_abort,
    .interrupt = process_interrupt,
    .recorder = dp__process_recorder,
    .close_recorder = dp__process_close_recorder,
    .name_spans = dp__process_name_spans,
    .describe = process_describe,
    .latest = process_latest,
    .apart = process_apart,
    .clock = dp__process_clock,
    .tell_step = process_tell_step,
    .straggler = process_straggler,
    .leave = process_leave,
    .reform = dp__process_reform,
    .held = process_held,
};

dp_status_t dp__process_join(const dp_group_options_t *options, dp_group_t **group_out)
{
    return dp__process_enter(options, &process_link, group_out);
}
