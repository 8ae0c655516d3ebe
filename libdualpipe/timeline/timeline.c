/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * timeline.c: rows of spans and the table of their names. */
#include "timeline/timeline.h"

#include <string.h>

#include "base/memory.h"

static bool is_row(const dp_timeline_t *timeline, int32_t rank)
{
    return timeline != NULL && rank >= 0 && rank < timeline->ranks;
}

static dp_status_t no_row(int32_t rank)
{
    return dp_fail(DP_ERR_INVALID, "timeline: there is no row for rank %d", rank);
}

dp_status_t dp_timeline_create(int32_t ranks, int64_t spans_per_rank, dp_timeline_t **timeline_out)
{
    dp_timeline_t *timeline;

    if (ranks < 1 || ranks > DP_MAX_RANKS || spans_per_rank < 0 || timeline_out == NULL)
        return dp_fail(DP_ERR_INVALID, "timeline: %d ranks of %lld spans; 1 to %d ranks, 0 or more spans", ranks,
                       (long long)spans_per_rank, DP_MAX_RANKS);
    timeline = dp__calloc(1, sizeof(*timeline));
    if (timeline == NULL)
        goto no_memory;
    timeline->rows = dp__calloc((size_t)ranks, sizeof(*timeline->rows));
    if (timeline->rows == NULL)
        goto no_memory;
    timeline->ranks = ranks;
    for (int32_t r = 0; r < ranks; r++) {
        timeline->rows[r].spans = dp__calloc((size_t)spans_per_rank, sizeof(dp_span_t));
        if (timeline->rows[r].spans == NULL)
            goto no_memory;
        timeline->rows[r].room = spans_per_rank;
    }
    *timeline_out = timeline;
    return DP_OK;

no_memory:
    dp_timeline_free(timeline);
    return dp_fail(DP_ERR_NOMEM, "timeline: no memory for %d ranks of %lld spans", ranks, (long long)spans_per_rank);
}

void dp_timeline_free(dp_timeline_t *timeline)
{
    if (timeline == NULL)
        return;
    for (int32_t r = 0; r < timeline->ranks; r++)
        dp__free(timeline->rows[r].spans);
    for (int32_t n = 1; n <= timeline->nnames; n++)
        dp__free(timeline->names[n]);
    dp__free(timeline->rows);
    dp__free(timeline);
}

dp_status_t dp_timeline_name(dp_timeline_t *timeline, const char *name, uint16_t *name_out)
{
    size_t bytes = name != NULL ? strlen(name) : 0;
    char *copy;

    if (timeline == NULL || name_out == NULL || bytes < 1 || bytes > DP__TIMELINE_NAME_BYTES)
        return dp_fail(DP_ERR_INVALID, "timeline: a name of %zu bytes; 1 to %d are allowed", bytes,
                       DP__TIMELINE_NAME_BYTES);
    for (int32_t n = 1; n <= timeline->nnames; n++) {
        if (strcmp(timeline->names[n], name) == 0) {
            *name_out = (uint16_t)n;
            return DP_OK;
        }
    }
    if (timeline->nnames == DP__TIMELINE_NAMES)
        return dp_fail(DP_ERR_OVERFLOW, "timeline: no room for the name \"%s\": there are %d already", name,
                       DP__TIMELINE_NAMES);
    copy = dp__strdup(name);
    if (copy == NULL)
        return dp_fail(DP_ERR_NOMEM, "timeline: no memory for the name \"%s\"", name);
    timeline->names[++timeline->nnames] = copy;
    *name_out = (uint16_t)timeline->nnames;
    return DP_OK;
}

const char *dp_timeline_name_text(const dp_timeline_t *timeline, uint16_t name)
{
    return timeline != NULL && name >= 1 && name <= timeline->nnames ? timeline->names[name] : "";
}

const char *dp__span_fault(const dp_span_t *span, int32_t nnames)
{
    if (span->start_ns < 0 || span->end_ns < span->start_ns)
        return "times";
    if (span->kind > DP_SPAN_STEP)
        return "kind";
    if (span->lane >= DP_LANE_COUNT)
        return "lane";
    if (span->pass > DP_OP_FB && span->pass != DP_OP_R)
        return "pass";
    if (span->busy_ns > DP_SPAN_BUSY_MAX)
        return "busy time";
    return span->name > nnames ? "name" : NULL;
}

dp_status_t dp_timeline_add(dp_timeline_t *timeline, int32_t rank, const dp_span_t *span)
{
    const char *fault;
    dp__row_t *row;

    if (!is_row(timeline, rank))
        return no_row(rank);
    fault = span != NULL ? dp__span_fault(span, timeline->nnames) : "pointer";
    if (fault != NULL)
        return dp_fail(DP_ERR_INVALID, "timeline: rank %d: the span's %s is out of bounds", rank, fault);
    row = &timeline->rows[rank];
    if (row->count == row->room) {
        row->lost++;
        return dp_fail(DP_ERR_OVERFLOW, "timeline: rank %d: its %lld spans are used up", rank, (long long)row->room);
    }
    row->spans[row->count++] = *span;
    return DP_OK;
}

const dp_span_t *dp_timeline_spans(const dp_timeline_t *timeline, int32_t rank, int64_t *count_out)
{
    if (!is_row(timeline, rank)) {
        *count_out = 0;
        return NULL;
    }
    *count_out = timeline->rows[rank].count;
    return timeline->rows[rank].spans;
}

int64_t dp_timeline_lost(const dp_timeline_t *timeline, int32_t rank)
{
    return is_row(timeline, rank) ? timeline->rows[rank].lost : 0;
}

int32_t dp_timeline_ranks(const dp_timeline_t *timeline)
{
    return timeline != NULL ? timeline->ranks : 0;
}

void dp_timeline_clear(dp_timeline_t *timeline)
{
    for (int32_t r = 0; r < dp_timeline_ranks(timeline); r++) {
        timeline->rows[r].count = 0;
        timeline->rows[r].lost = 0;
    }
}
