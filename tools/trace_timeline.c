/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_timeline.c: a trace of ours as the timeline and the schedule that it shows. */
#include "trace_timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_STAGES (DP_MAX_RANKS * 2)

/* What the spans say of the schedule. */
typedef struct shape {
    int32_t stages, chunks, microbatches;
    bool bidirectional; /* a stage is chunk 0 of one rank and chunk 1 of another */
} shape_t;

static const trace_detail_t *detail_of(const trace_t *trace, const trace_record_t *record)
{
    const trace_detail_t *detail = record->detail != TRACE_NONE ? &trace->details[record->detail] : NULL;

    return detail != NULL && (detail->kind == DP_SPAN_COMPUTE || detail->kind == DP_SPAN_SEND) ? detail
                                                                                               : NULL;
}

static bool in_bounds(const trace_detail_t *detail)
{
    return detail->kind == DP_SPAN_COMPUTE && detail->value[TRACE_STAGE] >= 0 &&
           detail->value[TRACE_STAGE] < MOST_STAGES && detail->value[TRACE_CHUNK] >= 0 &&
           detail->value[TRACE_CHUNK] < DP_MAX_CHUNKS && detail->value[TRACE_MICROBATCH] >= 0 &&
           detail->value[TRACE_MICROBATCH] < DP_MAX_MICROBATCHES;
}

static dp_status_t find_shape(const trace_t *trace, shape_t *shape)
{
    uint8_t *seen = calloc(MOST_STAGES, 1); /* bit per chunk, 0 and others */

    *shape = (shape_t){.stages = 0};
    if (seen == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d stages", MOST_STAGES);
    for (size_t i = 0; i < trace->nrecords; i++) {
        const trace_detail_t *detail = detail_of(trace, &trace->records[i]);
        const int32_t *value = detail != NULL ? detail->value : NULL;

        if (detail == NULL || !in_bounds(detail))
            continue;
        seen[value[TRACE_STAGE]] |= value[TRACE_CHUNK] == 0 ? 1 : 2;
        shape->stages = value[TRACE_STAGE] >= shape->stages ? value[TRACE_STAGE] + 1 : shape->stages;
        shape->chunks = value[TRACE_CHUNK] >= shape->chunks ? value[TRACE_CHUNK] + 1 : shape->chunks;
        shape->microbatches = value[TRACE_MICROBATCH] >= shape->microbatches ? value[TRACE_MICROBATCH] + 1
                                                                             : shape->microbatches;
    }
    for (int32_t s = 0; s < shape->stages; s++)
        shape->bidirectional |= seen[s] == 3;
    free(seen);
    if (shape->stages == 0)
        return dp_fail(DP_ERR_REJECTED, "no span says of which stage, chunk and micro-batch it is");
    return DP_OK;
}

static dp_status_t make_schedule(const shape_t *shape, dp_schedule_t **schedule_out)
{
    bool shared = !shape->bidirectional && shape->chunks > 1;
    int32_t ranks = shared ? shape->stages / shape->chunks : shape->stages;
    int64_t *nops;
    dp_status_t status;

    ranks = ranks < 1 ? 1 : ranks > DP_MAX_RANKS ? DP_MAX_RANKS : ranks;
    nops = calloc((size_t)ranks, sizeof(*nops));
    if (nops == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d ranks", ranks);
    status = dp_schedule_create("custom",
                                shape->bidirectional ? DP_PLACE_BIDIRECTIONAL
                                : shared             ? DP_PLACE_LOOP
                                                     : DP_PLACE_LINE,
                                ranks, shape->bidirectional ? 2 * shape->microbatches : shape->microbatches,
                                shape->bidirectional ? 2 : shape->chunks, nops, schedule_out);
    free(nops);
    return status;
}

/* "attention" of "attention F 3"; none of "F 3". */
static dp_status_t name_span(const trace_t *trace, const trace_record_t *record, dp_timeline_t *timeline,
                             dp_span_t *span)
{
    char name[64];
    const char *whole = trace_name(trace, record->name), *blank = strchr(whole, ' ');

    if (span->kind != DP_SPAN_COMPUTE || blank == NULL || strchr(blank + 1, ' ') == NULL || blank == whole)
        return DP_OK;
    snprintf(name, sizeof(name), "%.*s", (int)(blank - whole < 60 ? blank - whole : 60), whole);
    return dp_timeline_name(timeline, name, &span->name);
}

static dp_status_t add_spans(const trace_t *trace, const trace_rank_t *rank, int32_t row,
                             dp_timeline_t *timeline)
{
    dp_status_t status = DP_OK;

    for (size_t i = rank->first; i < rank->end && status == DP_OK; i++) {
        const trace_record_t *record = &trace->records[i];
        const trace_detail_t *detail = detail_of(trace, record);
        dp_span_t span;

        if (detail == NULL || (detail->kind == DP_SPAN_COMPUTE && !in_bounds(detail)))
            continue;
        span =
            (dp_span_t){.start_ns = record->start,
                        .end_ns = record->end,
                        .step = detail->value[TRACE_STEP],
                        .mb = detail->value[TRACE_MICROBATCH],
                        .chunk = (int16_t)(detail->kind == DP_SPAN_COMPUTE ? detail->value[TRACE_CHUNK] : -1),
                        .stage = (int16_t)(detail->kind == DP_SPAN_COMPUTE ? detail->value[TRACE_STAGE] : -1),
                        .segment = -1,
                        .kind = detail->kind,
                        .lane = detail->lane,
                        .pass = detail->pass == DP_OP_FB ? DP_OP_B : detail->pass,
                        .pair = detail->value[TRACE_PAIR] == 1};
        status = name_span(trace, record, timeline, &span);
        if (status == DP_OK)
            status = dp_timeline_add(timeline, row, &span);
    }
    return status;
}

dp_status_t trace_to_timeline(const trace_t *trace, dp_timeline_t **timeline_out,
                              dp_schedule_t **schedule_out)
{
    shape_t shape;
    size_t most = 0;
    dp_status_t status = find_shape(trace, &shape);

    *timeline_out = NULL;
    *schedule_out = NULL;
    for (size_t r = 0; r < trace->nranks; r++)
        most = trace->ranks[r].end - trace->ranks[r].first > most
                   ? trace->ranks[r].end - trace->ranks[r].first
                   : most;
    if (status == DP_OK)
        status = make_schedule(&shape, schedule_out);
    if (status == DP_OK)
        status = dp_timeline_create((int32_t)trace->nranks, (int64_t)most, timeline_out);
    for (size_t r = 0; r < trace->nranks && status == DP_OK; r++)
        status = add_spans(trace, &trace->ranks[r], (int32_t)r, *timeline_out);
    return status;
}
