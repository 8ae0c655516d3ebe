/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * group.c: the public functions on a group: checks, then the link. */
#include "group/group.h"
#include "base/do.h"
#include "base/environment.h"
#include "base/sized.h"
#include "group/pace.h"
#include "group/reform.h"
#include "system/entries.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define POLL_ASKS       16 /* back to back */
#define POLL_NAP_MIN_NS 2000
#define POLL_NAP_MAX_NS 500000

const char *dp__control_name(uint32_t kind)
{
    static const char *const names[] = {
        [DP__CONTROL_BARRIER] = "barrier",
        [DP__CONTROL_ALL_GATHER] = "all_gather",
        [DP__CONTROL_COLLECT] = "collect",
        [DP__CONTROL_RECORDER] = "recorder",
        [DP__CONTROL_LEAVE] = "leave",
        [DP__CONTROL_COMMIT] = "the commit of a step",
        [DP__CONTROL_SETTLE] = "the end of opening",
    };

    return kind > 0 && kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "?";
}

bool dp__control_match(dp__cause_t *cause, const dp__control_t *a, const dp__control_t *b)
{
    if (a->kind == b->kind && a->root == b->root && a->bytes == b->bytes)
        return true;
    dp__cause_set(cause, DP_ERR_PROTOCOL,
                  "rank %d is in %s of %zu bytes (root %u), rank %d in %s of %zu bytes (root %u)", a->rank,
                  dp__control_name(a->kind), a->bytes, a->root, b->rank, dp__control_name(b->kind), b->bytes, b->root);
    return false;
}

void dp__host_name(char name[DP__HOST_BYTES])
{
    if (gethostname(name, DP__HOST_BYTES) != 0 || name[0] == '\0')
        snprintf(name, DP__HOST_BYTES, "this host");
    name[DP__HOST_BYTES - 1] = '\0';
}

void dp__append(char *text, size_t bytes, const char *fmt, ...)
{
    size_t used = strlen(text);
    va_list args;

    va_start(args, fmt);
    vsnprintf(text + used, bytes - used, fmt, args);
    va_end(args);
}

void dp__rank_list_add(dp__rank_list_t *list, int32_t rank)
{
    if (list->count++ < 16)
        dp__append(list->text, sizeof(list->text), "%s%d", list->text[0] != '\0' ? ", " : "", rank);
}

const char *dp__rank_list_text(dp__rank_list_t *list)
{
    if (list->count > 16)
        dp__append(list->text, sizeof(list->text), " and %d more", list->count - 16);
    return list->text;
}

dp_status_t dp__group_wait(const dp_group_t *group, dp_signal_t *signal, uint32_t target, int64_t hang_ns,
                           const char *what)
{
    for (;;) {
        int64_t start = dp__now_ns();
        dp_status_t status = dp__cause_wait(group->cause, signal, target, hang_ns, what);

        if (status != DP_ERR_TIMEOUT || group->link->latest(group) <= start)
            return status;
    }
}

/* Asks back to back a few times, then sleeps in between, longer and longer, so that no core is kept
 * busy. */
dp_status_t dp__group_poll(const dp_group_t *group, dp_poll_fn progress, void *arg, int64_t timeout_ns,
                           const char *what)
{
    int64_t limit = timeout_ns < 0 ? group->hang_ns : timeout_ns, start = dp__now_ns(), nap = POLL_NAP_MIN_NS;

    for (int asked = 0;; asked++) {
        dp_status_t status = progress(arg);
        int64_t now;

        if (status != DP_PENDING)
            return status;
        if (dp__cause_is_set(group->cause))
            return dp__cause_check(group->cause);
        now = dp__now_ns();
        if (now - start >= limit) {
            if (timeout_ns >= 0 || group->link->latest(group) <= start)
                return dp_fail(DP_ERR_TIMEOUT, "%s: nothing for %.3g s", what != NULL ? what : "a poll",
                               (double)limit * 1e-9);
            start = now;
        }
        if (asked >= POLL_ASKS) {
            dp__nap(nap);
            nap = nap < POLL_NAP_MAX_NS / 2 ? 2 * nap : POLL_NAP_MAX_NS;
        }
    }
}

dp_status_t dp__group_options(const dp_group_options_t *given, dp_group_options_t *options_out)
{
    char why[DP__ENVIRONMENT_WHY];

    if (!dp__environment_read(why))
        return dp_fail(DP_ERR_INVALID, "%s", why);
    memset(options_out, 0, sizeof(*options_out));
    if (given != NULL)
        DO(dp__take("group options", dp_group_options_t, DP_GROUP_OPTIONS_MIN, options_out, given));
    if (!(options_out->join_seconds >= 0 && options_out->join_seconds <= 1e6) ||
        !(options_out->hang_seconds >= 0 && options_out->hang_seconds <= 1e6))
        return dp_fail(DP_ERR_INVALID, "group options: join_seconds %g, hang_seconds %g: both lie between 0 and 1e6",
                       options_out->join_seconds, options_out->hang_seconds);
    options_out->struct_size = sizeof(*options_out);
    if (options_out->join_seconds == 0)
        options_out->join_seconds = 60;
    if (options_out->hang_seconds == 0)
        options_out->hang_seconds = 30;
    return dp__debug_check();
}

int32_t dp_group_rank(const dp_group_t *group)
{
    return group->rank;
}

int32_t dp_group_size(const dp_group_t *group)
{
    return group->size;
}

const dp_host_t *dp_group_host(const dp_group_t *group)
{
    return &group->host;
}

int32_t dp__group_local_rank(const dp_group_t *group)
{
    int32_t before = 0;

    for (int32_t r = 0; r < group->rank; r++)
        before += group->link->apart(group, r, group->rank) == NULL;
    return before;
}

void dp__group_set_sms(dp_group_t *group, uint32_t compute_sms, uint32_t comm_sms)
{
    group->sm.compute_sms = compute_sms;
    group->sm.comm_sms = comm_sms;
}

static dp_status_t check_open(const dp_group_t *group)
{
    return group->closed
               ? dp_fail(DP_ERR_PEER, "rank %d: a rank has been replaced: dp_pipeline_recover goes on", group->rank)
               : DP_OK;
}

dp_status_t dp_group_barrier(dp_group_t *group)
{
    DO(check_open(group));
    return group->link->gather(group, DP__CONTROL_BARRIER, NULL, 0, NULL);
}

dp_status_t dp_group_all_gather(dp_group_t *group, const void *mine, size_t bytes, void *all_out)
{
    if (bytes > DP__GATHER_BYTES)
        return dp_fail(DP_ERR_INVALID, "rank %d: all_gather of %zu bytes; at most %u are possible, collect takes more",
                       group->rank, bytes, DP__GATHER_BYTES);
    DO(check_open(group));
    return group->link->gather(group, DP__CONTROL_ALL_GATHER, mine, bytes, all_out);
}

dp_status_t dp__group_collect(dp_group_t *group, int32_t root, const void *mine, size_t bytes, dp__receive_fn receive,
                              void *user)
{
    if (root < 0 || root >= group->size)
        return dp_fail(DP_ERR_INVALID, "rank %d: collect at rank %d: there are ranks 0 to %d", group->rank, root,
                       group->size - 1);
    if (root == group->rank && receive == NULL)
        return dp_fail(DP_ERR_INVALID, "rank %d: the root of collect needs a function to receive with", group->rank);
    DO(check_open(group));
    return group->link->collect(group, root, mine, bytes, receive, user);
}

void dp_group_abort(dp_group_t *group, dp_status_t status, const char *message)
{
    char text[DP__CAUSE_BYTES];

    if (message == NULL || message[0] == '\0')
        message = dp_status_name(status);
    if (strncmp(message, "rank ", 5) == 0)
        snprintf(text, sizeof(text), "%s", message);
    else
        snprintf(text, sizeof(text), "rank %d: %s", group->rank, message);
    group->link->abort(group, status < 0 ? status : DP_ERR_ABORTED, text);
}

void dp_group_interrupt(dp_group_t *group)
{
    group->link->interrupt(group);
}

dp_status_t dp_group_health(dp_group_t *group)
{
    return dp__cause_check(group->cause);
}

dp_status_t dp__group_recorder(dp_group_t *group, uint32_t capacity, dp_span_t **records_out)
{
    return group->link->recorder(group, capacity, records_out);
}

void dp__group_recorder_name(dp_group_t *group, uint16_t name, const char *text)
{
    group->link->name_spans(group, name, text);
}

void dp__group_recorder_close(dp_group_t *group, const dp_span_t *records)
{
    if (records != NULL && !group->pinned)
        group->link->close_recorder(group, records);
}

void dp__group_describe(const dp_group_t *group, int32_t rank, char *text, size_t bytes)
{
    if (bytes == 0)
        return;
    text[0] = '\0';
    if (rank >= 0 && rank < group->size)
        group->link->describe(group, rank, text, bytes);
}

void dp__group_start_opening(dp_group_t *group)
{
    __atomic_store_n(&group->opening, 1, __ATOMIC_RELEASE);
}

dp_status_t dp__group_settle(dp_group_t *group)
{
    __atomic_store_n(&group->opening, 0, __ATOMIC_RELEASE);
    return group->link->gather(group, DP__CONTROL_SETTLE, NULL, 0, NULL);
}

dp_status_t dp__group_clock(dp_group_t *group, int64_t since_ns, dp__clock_sample_t *samples_out, size_t *count_out)
{
    return group->link->clock(group, since_ns, samples_out, count_out);
}

void dp__group_pin(dp_group_t *group)
{
    group->pinned = true;
}

void dp_group_leave(dp_group_t *group)
{
    if (group == NULL)
        return;
    if (group->pid != getpid()) {
        dp_log(DP_LOG_ERROR, "group", "dp_group_leave is ignored: process %d is a child of the one that joined",
               (int)getpid());
        return;
    }
    if (group->pipelines > 0 && !group->pinned) {
        dp_log(DP_LOG_ERROR, "group",
               "rank %d: dp_group_leave before dp_pipeline_close: the group is left when its last pipeline is closed",
               group->rank);
        group->left = true;
        return;
    }
    group->link->leave(group);
}

void dp__group_hold(dp_group_t *group)
{
    group->pipelines++;
}

void dp__group_release(dp_group_t *group)
{
    if (--group->pipelines == 0 && group->left)
        group->link->leave(group);
}

bool dp__group_respawns(const dp_group_t *group)
{
    return group->respawn && group->link->reform != NULL;
}

bool dp__group_survives(dp_group_t *group)
{
    const dp_status_t cause = dp__cause_check(group->cause);

    return dp__group_respawns(group) && !group->cause->final && (cause == DP_ERR_PEER || cause == DP_ERR_CORRUPT);
}

dp_status_t dp__group_reform(dp_group_t *group, uint32_t holds)
{
    group->holds = holds;
    return group->link->reform(group);
}

uint32_t dp__group_epoch(const dp_group_t *group)
{
    return group->epoch;
}

uint32_t dp__group_held(const dp_group_t *group, int32_t rank)
{
    return group->link->held(group, rank);
}

dp_status_t dp__group_commit(dp_group_t *group)
{
    return group->link->gather(group, DP__CONTROL_COMMIT, NULL, 0, NULL);
}

dp_status_t dp_group_straggler(dp_group_t *group, dp_straggler_t *straggler_out)
{
    dp_straggler_t found = {.struct_size = sizeof(found), .rank = -1, .steps = DP__PACE_STEPS};

    DO(dp__sized_check("dp_group_straggler: the result", straggler_out, "dp_straggler_t", DP_STRAGGLER_MIN));
    group->link->straggler(group, &found);
    dp_sized_put(straggler_out, &found);
    return DP_OK;
}

void dp__group_progress(dp_group_t *group, uint64_t steps, uint64_t step_ns, uint64_t busy_ns)
{
    __atomic_store_n(&group->progress.steps, steps, __ATOMIC_RELAXED);
    __atomic_store_n(&group->progress.step_ns, step_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&group->progress.busy_ns, busy_ns, __ATOMIC_RELAXED);
}

dp__progress_t dp__group_progress_of(const dp_group_t *group)
{
    return (dp__progress_t){.steps = __atomic_load_n(&group->progress.steps, __ATOMIC_RELAXED),
                            .step_ns = __atomic_load_n(&group->progress.step_ns, __ATOMIC_RELAXED),
                            .busy_ns = __atomic_load_n(&group->progress.busy_ns, __ATOMIC_RELAXED)};
}

void dp__group_close(dp_group_t *group, bool closed)
{
    group->closed = closed;
}
