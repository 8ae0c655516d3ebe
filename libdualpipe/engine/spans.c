/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * spans.c: what a step records (in the flight recorder, by time stamps on the streams), and what
 * is kept of it. */
#include "group/spans.h"
#include "base/do.h"
#include "base/memory.h"
#include "engine/engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int32_t dp__name_index(const dp_pipeline_t *p, const char *name)
{
    for (int32_t i = 0; i < p->trace.nnames; i++)
        if (strcmp(p->trace.names[i], name) == 0)
            return i;
    return -1;
}

/* The different names of this rank's segments, which belong to the trainer's segments and outlive
 * the pipeline, and that of gatherings. */
dp_status_t dp__names_collect(dp_pipeline_t *p)
{
    size_t room = 2;

    for (int32_t c = 0; c < p->nchunks; c++)
        room += (size_t)p->chunks[c].stage->nsegments;
    dp__free(p->trace.names);
    p->trace.nnames = 0;
    p->trace.names = dp__calloc(room, sizeof(*p->trace.names));
    if (p->trace.names == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu segment names", room);
    for (int32_t c = 0; c < p->nchunks; c++)
        for (int32_t s = 0; s < p->chunks[c].stage->nsegments; s++) {
            const char *name = p->chunks[c].stage->segments[s].segment->name;

            if (dp__name_index(p, name) < 0)
                p->trace.names[p->trace.nnames++] = name;
        }
    if (dp__zero_is_on(p) && dp__name_index(p, DP__GATHER) < 0)
        p->trace.names[p->trace.nnames++] = DP__GATHER;
    return DP_OK;
}

/* A path that cannot be written is better known before the training than after it. Where a pipeline
 * is opened again, it is no reason to end the run. */
static dp_status_t try_file(const dp_pipeline_t *p)
{
    const char *path = secure_getenv("DUALPIPE_TRACE");
    FILE *file;

    if (!p->trace.to_file || dp_group_rank(p->group) != 0 || p->run.failed)
        return DP_OK;
    file = path != NULL ? fopen(path, "a") : NULL;
    if (file == NULL || fclose(file) != 0)
        return dp_fail(DP_ERR_IO, "DUALPIPE_TRACE=%s: %s; name a file that rank 0 can write, or unset it",
                       path != NULL ? path : "", strerror(errno));
    return DP_OK;
}

dp_status_t dp__records_open(dp_pipeline_t *p)
{
    size_t bytes;

    DO(try_file(p));
    p->trace.capacity =
        p->plans.training.nspans > p->plans.forward.nspans ? p->plans.training.nspans : p->plans.forward.nspans;
    p->trace.ngathers = dp__zero_is_on(p) ? p->nchunks : 0;
    DO(dp__group_recorder(p->group, (uint32_t)p->trace.capacity, &p->trace.records));
    for (int32_t i = 0; i < p->trace.nnames && i < 255; i++)
        dp__group_recorder_name(p->group, (uint16_t)(i + 1), p->trace.names[i]);
    p->trace.steps = p->options.trace_steps > 0 ? p->options.trace_steps : 1;
    if (!dp__arrays(DP__ARRAY(p->trace.kept, (size_t)p->trace.steps * (size_t)p->trace.capacity),
                    DP__ARRAY(p->trace.kept_count, p->trace.steps)))
        return dp_fail(DP_ERR_NOMEM, "no memory for the spans of %d steps; lower trace_steps", p->trace.steps);
    bytes = ((size_t)p->trace.steps + 1) * (size_t)p->trace.capacity * sizeof(dp_span_t);
    p->memory.records += bytes;
    p->memory.total += bytes;
    return DP_OK;
}

void dp__records_begin(dp_pipeline_t *p, const dp__plan_t *plan)
{
    uint64_t step_bits = (uint64_t)(p->run.step & 0xffff) << 48;

    const int32_t first = 1 + p->trace.ngathers; /* gatherings may be under way */

    p->trace.records[0] = plan->spans[0];
    p->trace.records[0].step = (int32_t)p->run.step;
    memcpy(p->trace.records + first, plan->spans + first, (size_t)(plan->nspans - first) * sizeof(*p->trace.records));
    for (int32_t i = first; i < plan->nspans; i++) {
        p->trace.records[i].step = (int32_t)p->run.step;
        if (p->trace.records[i].flow != 0)
            p->trace.records[i].flow ^= step_bits;
    }
    p->trace.records[0].start_ns = p->host->now_ns(p->host);
}

static bool is_attention(const dp_pipeline_t *p, const dp_span_t *span)
{
    return span->chunk >= 0 && span->segment >= 0 &&
           p->chunks[span->chunk].stage->segments[span->segment].segment->role == DP_ROLE_ATTENTION;
}

/* The least that attention took in a training step: work that all ranks have alike. */
static uint64_t find_pace(const dp_pipeline_t *p, const dp__plan_t *plan)
{
    const dp_span_t *all = p->trace.records;
    int64_t least[DP_OP_W + 1] = {0};

    for (int32_t i = 1; i < plan->nspans && plan == &p->plans.training; i++) {
        const int64_t length = all[i].end_ns - all[i].start_ns;

        if (all[i].kind == DP_SPAN_COMPUTE && all[i].pass <= DP_OP_W && all[i].end_ns > 0 && length > 0 &&
            (least[all[i].pass] == 0 || length < least[all[i].pass]) && is_attention(p, &all[i]))
            least[all[i].pass] = length;
    }
    return (uint64_t)(least[DP_OP_F] + least[DP_OP_I] + least[DP_OP_W]);
}

static void tell_progress(dp_pipeline_t *p, const dp__plan_t *plan)
{
    const dp_span_t *all = p->trace.records;
    uint64_t busy_ns = 0;

    for (int32_t i = 1; i < plan->nspans; i++)
        if (all[i].kind == DP_SPAN_COMPUTE && all[i].lane == DP_LANE_COMPUTE && all[i].end_ns > 0)
            busy_ns += all[i].busy_ns > 0 ? all[i].busy_ns : (uint64_t)(all[i].end_ns - all[i].start_ns);
    p->run.pace_ns = find_pace(p, plan);
    dp__group_progress(p->group, (uint64_t)p->run.step + 1, (uint64_t)(all[0].end_ns - all[0].start_ns), busy_ns);
}

/* A device may set its clock anew between begin and end. */
static void set_right(dp_span_t *spans, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (spans[i].end_ns != 0 && spans[i].end_ns < spans[i].start_ns)
            spans[i].end_ns = spans[i].start_ns;
}

void dp__records_keep(dp_pipeline_t *p, const dp__plan_t *plan)
{
    int32_t at = (int32_t)(p->trace.kept_steps++ % (uint32_t)p->trace.steps);

    p->trace.records[0].end_ns = p->host->now_ns(p->host);
    set_right(p->trace.records + 1, plan->nspans - 1);
    tell_progress(p, plan);
    memcpy(p->trace.kept + (size_t)at * (size_t)p->trace.capacity, p->trace.records,
           (size_t)plan->nspans * sizeof(*p->trace.records));
    p->trace.kept_count[at] = plan->nspans;
    if (p->trace.ngathers > 0)
        memset(p->trace.records + 1, 0, (size_t)p->trace.ngathers * sizeof(*p->trace.records));
}

/* With our own names: names[span.name]. */
static dp_status_t add_spans(dp_timeline_t *timeline, int32_t rank, const uint16_t names[256], const dp_span_t *spans,
                             int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        dp_span_t span = spans[i];

        span.name = names[span.name < 256 ? span.name : 0];
        if (span.end_ns != 0) /* 0: skipped: a gradient without parameters, say */
            DO(dp_timeline_add(timeline, rank, &span));
    }
    return DP_OK;
}

/* Puts our history into row `rank`, oldest step first, and behind it the gathering that no step has
 * come after. */
static dp_status_t fill_row(const dp_pipeline_t *p, dp_timeline_t *timeline, int32_t rank)
{
    uint16_t names[256] = {0};

    for (int32_t i = 0; i < p->trace.nnames && i < 255; i++)
        DO(dp_timeline_name(timeline, p->trace.names[i], &names[i + 1]));
    for (int32_t k = 0; k < p->trace.steps; k++) {
        int32_t at = (int32_t)((p->trace.kept_steps + (uint32_t)k) % (uint32_t)p->trace.steps);

        DO(add_spans(timeline, rank, names, p->trace.kept + (size_t)at * (size_t)p->trace.capacity,
                     p->trace.kept_count[at]));
    }
    return add_spans(timeline, rank, names, p->trace.records + 1, p->trace.ngathers);
}

/* The largest `room` of all ranks. */
static dp_status_t largest(dp_pipeline_t *p, int64_t *room)
{
    dp_status_t status;
    int64_t *all = dp__ask_ranks(p, room, sizeof(*room), &status);

    for (int32_t i = 0; all != NULL && i < dp_group_size(p->group); i++)
        *room = all[i] > *room ? all[i] : *room;
    dp__free(all);
    return status;
}

dp_status_t dp_pipeline_timeline(dp_pipeline_t *p, dp_timeline_t **timeline_out)
{
    dp_timeline_t *row = NULL;
    int64_t room;
    dp_status_t status;

    DO(dp__pipeline_check(p, "dp_pipeline_timeline"));
    if (timeline_out == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_timeline: timeline_out is NULL");
    *timeline_out = NULL;
    room = (int64_t)p->trace.steps * p->trace.capacity + p->trace.ngathers;
    status = dp__gather_finish(p);
    set_right(p->trace.records + 1, p->trace.ngathers);
    if (status >= 0)
        status = largest(p, &room);
    if (status >= 0)
        status = dp__profile_collect(p);
    if (status >= 0)
        status = dp_timeline_create(1, room, &row);
    if (status >= 0)
        status = fill_row(p, row, 0);
    if (status >= 0)
        status = dp__timeline_collect(p, row, room, timeline_out);
    dp_timeline_free(row);
    return status < 0 ? dp__engine_fail(p, status, "collecting the timeline") : DP_OK;
}

static dp_status_t write_text(void *user, const char *text, size_t bytes)
{
    return fwrite(text, 1, bytes, user) == bytes ? DP_OK : dp_fail(DP_ERR_IO, "%s", strerror(errno));
}

static dp_status_t write_file(const dp_timeline_t *timeline, const char *path)
{
    FILE *file = path != NULL ? fopen(path, "w") : NULL;
    dp_status_t status;

    if (file == NULL)
        return dp_fail(DP_ERR_IO, "%s", strerror(errno));
    status = dp_timeline_write_chrome(timeline, write_text, file);
    if (fclose(file) != 0 && status >= 0)
        status = dp_fail(DP_ERR_IO, "%s", strerror(errno));
    return status;
}

void dp__trace_write(dp_pipeline_t *p)
{
    const char *path = secure_getenv("DUALPIPE_TRACE");
    dp_timeline_t *timeline = NULL;
    dp_status_t status;

    if (!p->trace.to_file || p->run.failed || p->trace.kept_steps == 0 || dp_group_health(p->group) < 0)
        return;
    status = dp_pipeline_timeline(p, &timeline);
    if (status >= 0 && timeline != NULL)
        status = write_file(timeline, path);
    if (status < 0)
        dp_log(DP_LOG_ERROR, "engine", "rank %d: DUALPIPE_TRACE=%s: the trace was not written: %s",
               dp_group_rank(p->group), path != NULL ? path : "", dp_last_error());
    dp_timeline_free(timeline);
}
