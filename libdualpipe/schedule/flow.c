/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * flow.c: runs lanes to the end, or as far as they get. */
#include "schedule/flow.h"

#include "base/memory.h"

typedef struct dp__runner {
    const dp__flow_t *flow;
    int32_t *progress;
    /* Blocked lanes are listed at the lane they wait for; ready lanes in another list. -1: end. */
    int32_t *next;
    int32_t *waiters; /* [lanes] first lane that waits for this one */
    int32_t *wanted;  /* [lanes] step that a blocked lane waits for */
    int32_t ready;
} dp__runner_t;

/* The first unfinished need of a lane's next step; false when there is none. */
static bool blocked_on(const dp__runner_t *w, int32_t lane, dp__need_t *need)
{
    for (int32_t k = 0; w->flow->need(w->flow->context, lane, w->progress[lane], k, need); k++)
        if (w->progress[need->lane] <= need->position)
            return true;
    return false;
}

static void stamp_step(const dp__flow_t *f, int32_t lane, int32_t position)
{
    int64_t start = position > 0 ? f->end[f->first[lane] + position - 1] : 0;
    dp__need_t need;

    for (int32_t k = 0; f->need(f->context, lane, position, k, &need); k++) {
        int64_t end = f->end[f->first[need.lane] + need.position];

        if (end > start)
            start = end;
    }
    f->end[f->first[lane] + position] = start + f->cost(f->context, lane, position);
}

static void advance_lane(dp__runner_t *w, int32_t lane)
{
    dp__need_t need;

    while (w->progress[lane] < w->flow->length[lane]) {
        if (blocked_on(w, lane, &need)) {
            w->wanted[lane] = need.position;
            w->next[lane] = w->waiters[need.lane];
            w->waiters[need.lane] = lane;
            return;
        }
        if (w->flow->end != NULL)
            stamp_step(w->flow, lane, w->progress[lane]);
        w->progress[lane]++;
    }
}

/* Moves the lanes whose wish `lane` has fulfilled to the ready list. */
static void wake_waiters(dp__runner_t *w, int32_t lane)
{
    int32_t *link = &w->waiters[lane];

    while (*link >= 0) {
        int32_t waiter = *link;

        if (w->wanted[waiter] >= w->progress[lane]) {
            link = &w->next[waiter];
            continue;
        }
        *link = w->next[waiter];
        w->next[waiter] = w->ready;
        w->ready = waiter;
    }
}

static dp_status_t run_lanes(dp__runner_t *w)
{
    int32_t lanes = w->flow->lanes;

    for (int32_t lane = lanes - 1; lane >= 0; lane--) {
        w->waiters[lane] = -1;
        w->next[lane] = w->ready;
        w->ready = lane;
    }
    while (w->ready >= 0) {
        int32_t lane = w->ready;

        w->ready = w->next[lane];
        advance_lane(w, lane);
        wake_waiters(w, lane);
    }
    for (int32_t lane = 0; lane < lanes; lane++)
        if (w->progress[lane] < w->flow->length[lane])
            return DP_ERR_REJECTED;
    return DP_OK;
}

dp_status_t dp__flow_run(const dp__flow_t *flow, int32_t **progress_out)
{
    size_t lanes = (size_t)flow->lanes;
    dp__runner_t w = {.flow = flow, .ready = -1};
    int32_t *lists = dp__calloc(3 * lanes, sizeof(*lists));
    dp_status_t status;

    w.progress = dp__calloc(lanes, sizeof(*w.progress));
    if (lists == NULL || w.progress == NULL) {
        dp__free(lists);
        dp__free(w.progress);
        return dp_fail(DP_ERR_NOMEM, "verify: no memory for %d lanes", flow->lanes);
    }
    w.next = lists;
    w.waiters = lists + lanes;
    w.wanted = lists + 2 * lanes;
    status = run_lanes(&w);
    dp__free(lists);
    *progress_out = w.progress;
    return status;
}

dp_status_t dp__flow_prove(const dp__flow_t *flow, const char *what)
{
    int32_t *progress = NULL;
    dp_status_t status = dp__flow_run(flow, &progress);

    if (status == DP_ERR_REJECTED)
        status = dp__flow_explain(flow, progress, what);
    dp__free(progress);
    return status;
}
