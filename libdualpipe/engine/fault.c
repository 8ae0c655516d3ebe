/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fault.c: a failure of this rank: what it was doing, telling the job, and bringing the lanes to rest. */
#include "engine/engine.h"
#include "group/describe.h"

#include <stdio.h>

static int stopped(const dp_pipeline_t *p, int32_t span)
{
    return span >= 0 && p->trace.records[span].start_ns != 0 && p->trace.records[span].end_ns == 0;
}

static int32_t stopped_transfer(const dp_pipeline_t *p, const dp__pass_t *pass, int lane)
{
    const dp_stage_t *stage = p->chunks[pass->chunk].stage;
    int32_t first = pass->op == DP_OP_F ? 0 : stage->nsegments - 1, last = stage->nsegments - 1 - first;
    int sends_on =
        pass->dest >= 0 && p->links.at[pass->dest].in_lane ? (int)stage->segments[last].segment->lane : DP_LANE_P2P;

    if ((int)stage->segments[first].segment->lane == lane && stopped(p, pass->recv_span))
        return pass->recv_span;
    return sends_on == lane && stopped(p, pass->send_span) ? pass->send_span : -1;
}

/* What a failed lane began and did not end: its span, -1 when it failed between two. Only records that this lane writes
 * are looked at: the others may still be running. */
static int32_t stopped_on_lane(const dp_pipeline_t *p, const dp__plan_t *plan, int lane)
{
    for (int64_t i = 0; i < plan->nactions; i++) {
        const dp__action_t *action = &plan->actions[i];

        if (action->kind == DP_INSTR_REDUCE && lane == DP_LANE_REDUCE && stopped(p, action->span))
            return action->span;
        for (int32_t c = 0; c < action->ncalls; c++)
            if (p->trace.records[action->calls[c].span].lane == lane && stopped(p, action->calls[c].span))
                return action->calls[c].span;
        for (int n = 0; n < action->npasses; n++) {
            int32_t span = stopped_transfer(p, &action->passes[n], lane);

            if (span >= 0)
                return span;
        }
    }
    return -1;
}

static int32_t stopped_on_way(const dp_pipeline_t *p, const dp__plan_t *plan, int32_t way)
{
    for (int64_t i = 0; i < plan->nactions; i++)
        for (int32_t t = 0; t < plan->actions[i].ntransfers && plan->actions[i].way == way; t++)
            if (stopped(p, plan->actions[i].transfers[t].span))
                return plan->actions[i].transfers[t].span;
    return -1;
}

static int32_t stopped_on(const dp_pipeline_t *p, int32_t stream)
{
    return stream < DP_LANE_COUNT ? stopped_on_lane(p, p->run.plan, stream)
                                  : stopped_on_way(p, p->run.plan, stream - DP_LANE_COUNT);
}

/* The span of what failed on a lane. A failed lane skips what it was given, which takes a moment. */
static int32_t failed_operation(const dp_pipeline_t *p)
{
    static const int64_t patience_ns[] = {0, 50000000};

    for (size_t round = 0; round < sizeof(patience_ns) / sizeof(patience_ns[0]); round++)
        for (int32_t i = 0; i < dp__stream_count(p); i++) {
            dp_status_t status = p->device_vt->synchronize(dp__stream_at(p, i), patience_ns[round]);
            int32_t span = status < 0 && status != DP_ERR_TIMEOUT ? stopped_on(p, i) : -1;

            if (span >= 0)
                return span;
        }
    return -1;
}

/* "step 3: mlp(B) of stage 2, chunk 1, micro-batch 5", or "" when no operation stands out. */
static void describe(const dp_pipeline_t *p, char *text, size_t bytes)
{
    int32_t span = p->run.enqueueing;

    text[0] = '\0';
    if (span < 0 && p->run.plan != NULL)
        span = failed_operation(p);
    if (span >= 0)
        dp__span_describe(&p->trace.records[span],
                          p->trace.records[span].name > 0 ? p->trace.names[p->trace.records[span].name - 1] : "", text,
                          bytes);
}

dp_status_t dp__engine_fail(dp_pipeline_t *p, dp_status_t status, const char *what)
{
    char doing[256], why[1024];
    dp_status_t cause;

    snprintf(why, sizeof(why), "%s", dp_last_error());
    p->run.failed = 1;
    cause = dp_group_health(p->group);
    if (cause < 0)
        return cause;
    describe(p, doing, sizeof(doing));
    (void)dp_fail(status, "rank %d: %s: %s", dp_group_rank(p->group), doing[0] != '\0' ? doing : what, why);
    snprintf(why, sizeof(why), "%s", dp_last_error());
    dp_group_abort(p->group, status, why);
    cause = dp_group_health(p->group); /* another rank may have been first */
    return cause < 0 ? cause : dp_fail(status, "%s", why);
}

void dp__engine_settle(dp_pipeline_t *p)
{
    char why[1024];

    snprintf(why, sizeof(why), "%s", dp_last_error());
    for (int32_t i = 0; i < dp__stream_count(p); i++)
        if (dp__stream_at(p, i) != NULL && p->device_vt->synchronize(dp__stream_at(p, i), -1) == DP_ERR_TIMEOUT)
            p->run.stuck = 1;
    (void)dp_fail(DP_ERR_ABORTED, "%s", why);
}
