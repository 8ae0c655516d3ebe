/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fault.c: a failure of this rank: what it was doing, telling the job, and bringing the lanes to
 * rest. */
#include "engine/engine.h"
#include "group/spans.h"
#include "system/wait.h"

#include <stdio.h>

static int stopped(const dp_pipeline_t *p, int32_t span)
{
    return p->trace.records[span].start_ns != 0 && p->trace.records[span].end_ns == 0;
}

/* What a failed stream began and did not end: its span, -1 when it failed between two. Only records
 * that this stream writes are looked at: the others may still be running. */
static int32_t stopped_on(const dp_pipeline_t *p, int32_t stream)
{
    const dp__plan_t *plan = p->run.plan;

    for (int64_t i = 0; i < plan->commands.count; i++) {
        const dp__command_t *c = &plan->commands.at[i];

        for (int32_t k = 0; k < (c->kind == DP__BUNDLE ? c->count : 1) && c->stream == stream; k++)
            if (plan->span[i] >= 0 && stopped(p, plan->span[i] + k))
                return plan->span[i] + k;
    }
    return -1;
}

/* The span of what failed on a lane. A failed lane skips what it was given, which takes a
 * moment. */
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
static void describe_operation(const dp_pipeline_t *p, char *text, size_t bytes)
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
    dp_signal_t never = {0};
    dp_status_t cause;

    snprintf(why, sizeof(why), "%s", dp_last_error());
    p->run.failed = 1;
    if (status == DP_ERR_PROTOCOL) /* of steps that differ? rank 0 may not have heard of all yet */
        (void)p->host->wait(p->host, &never, 1, dp__scaled_ns(1), "whether the ranks' steps differ");
    cause = dp_group_health(p->group);
    if (cause < 0)
        return cause;
    describe_operation(p, doing, sizeof(doing));
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
