/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * timeline.c: a trace of ours as the timeline and the schedule that it shows. */
#include "trace/timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trace/table.h"

#define MOST_STAGES (DP_MAX_RANKS * 2)

/* What the spans say of the schedule. */
typedef struct shape {
    int32_t stages, chunks, microbatches;
    bool bidirectional; /* a stage is chunk 0 of one rank and chunk 1 of another */
} shape_t;

static const dp__trace_detail_t *detail_of(const dp_trace_t *trace, const dp__trace_record_t *record)
{
    const dp__trace_detail_t *detail = record->detail != DP__TRACE_NONE ? &trace->details[record->detail] : NULL;

    return detail != NULL && (detail->kind == DP_SPAN_COMPUTE || detail->kind == DP_SPAN_SEND) ? detail : NULL;
}

static bool in_bounds(const dp__trace_detail_t *detail)
{
    return detail->kind == DP_SPAN_COMPUTE && detail->value[DP__TRACE_STAGE] >= 0 &&
           detail->value[DP__TRACE_STAGE] < MOST_STAGES && detail->value[DP__TRACE_CHUNK] >= 0 &&
           detail->value[DP__TRACE_CHUNK] < DP_MAX_CHUNKS && detail->value[DP__TRACE_MICROBATCH] >= 0 &&
           detail->value[DP__TRACE_MICROBATCH] < DP_MAX_MICROBATCHES;
}

static dp_status_t find_shape(const dp_trace_t *trace, shape_t *shape)
{
    uint8_t *seen = dp__calloc(MOST_STAGES, 1); /* bit per chunk, 0 and others */

    *shape = (shape_t){.stages = 0};
    if (seen == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d stages", MOST_STAGES);
    for (size_t i = 0; i < trace->nrecords; i++) {
        const dp__trace_detail_t *detail = detail_of(trace, &trace->records[i]);
        const int32_t *value = detail != NULL ? detail->value : NULL;

        if (detail == NULL || !in_bounds(detail))
            continue;
        seen[value[DP__TRACE_STAGE]] |= value[DP__TRACE_CHUNK] == 0 ? 1 : 2;
        shape->stages = value[DP__TRACE_STAGE] >= shape->stages ? value[DP__TRACE_STAGE] + 1 : shape->stages;
        shape->chunks = value[DP__TRACE_CHUNK] >= shape->chunks ? value[DP__TRACE_CHUNK] + 1 : shape->chunks;
        shape->microbatches =
            value[DP__TRACE_MICROBATCH] >= shape->microbatches ? value[DP__TRACE_MICROBATCH] + 1 : shape->microbatches;
    }
    for (int32_t s = 0; s < shape->stages; s++)
        shape->bidirectional |= seen[s] == 3;
    dp__free(seen);
    if (shape->stages == 0)
        return dp_fail(DP_ERR_REJECTED, "no span says of which stage, chunk and micro-batch it is");
    return DP_OK;
}

/* Backwards for the input alone, of each row; the W follows as a separate operation. */
typedef struct lone {
    dp_op_t op;
    int32_t row;
} lone_t;

typedef struct lones {
    lone_t *items;
    size_t count, room;
} lones_t;

static dp_status_t add_lone(lones_t *lones, int32_t row, const dp_span_t *span)
{
    if (lones->count == lones->room) {
        size_t room = lones->room < 64 ? 64 : 2 * lones->room;
        lone_t *items = dp__enlarge(lones->items, lones->count * sizeof(*items), room * sizeof(*items));

        if (items == NULL)
            return dp_fail(DP_ERR_NOMEM, "no memory for %zu operations", room);
        lones->items = items;
        lones->room = room;
    }
    lones->items[lones->count++] = (lone_t){
        {.kind = DP_OP_I, .chunk = span->chunk, .chunk2 = -1, .microbatch = span->microbatch, .microbatch2 = -1}, row};
    return DP_OK;
}

/* Rows come one after the other. Those past the pipeline's ranks repeat what the first ones do. */
static void fill_schedule(dp_schedule_t *schedule, const lones_t *lones)
{
    int64_t at = 0;

    for (size_t k = 0; k < lones->count && lones->items[k].row < schedule->ranks; k++)
        schedule->ops[at++] = lones->items[k].op;
}

static dp_status_t make_schedule(const shape_t *shape, const lones_t *lones, dp_schedule_t **schedule_out)
{
    bool shared = !shape->bidirectional && shape->chunks > 1;
    int32_t ranks = shared ? shape->stages / shape->chunks : shape->stages;
    int64_t *nops;
    dp_status_t status;

    ranks = ranks < 1 ? 1 : ranks > DP_MAX_RANKS ? DP_MAX_RANKS : ranks;
    nops = dp__calloc((size_t)ranks, sizeof(*nops));
    if (nops == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d ranks", ranks);
    for (size_t k = 0; k < lones->count && lones->items[k].row < ranks; k++)
        nops[lones->items[k].row]++;
    status = dp_schedule_create("custom",
                                shape->bidirectional ? DP_PLACE_BIDIRECTIONAL
                                : shared             ? DP_PLACE_LOOP
                                                     : DP_PLACE_LINE,
                                ranks, shape->bidirectional ? 2 * shape->microbatches : shape->microbatches,
                                shape->bidirectional ? 2 : shape->chunks, nops, schedule_out);
    dp__free(nops);
    if (status == DP_OK)
        fill_schedule(*schedule_out, lones);
    return status;
}

/* ---- operations ---- */

/* A span with the operation it belongs to. A trace has the spans of a lane in the order of time, a
 * timeline those of an operation one after the other, on whichever lanes they are. */
typedef struct placed {
    dp_span_t span;
    int64_t op_start; /* of its operation's first span */
    size_t op;
} placed_t;

/* The spans of the forward or backward of one micro-batch in one step: a side, or all of it. */
typedef struct side {
    size_t first, count; /* of placed_t */
    int64_t start;
    int32_t step;
    bool pair, backward;
} side_t;

static int compare_numbers(int64_t x, int64_t y)
{
    return (x > y) - (x < y);
}

static int by_side(const void *a, const void *b)
{
    const dp_span_t *x = &((const placed_t *)a)->span, *y = &((const placed_t *)b)->span;
    int order = compare_numbers(x->step, y->step);

    order = order != 0 ? order : compare_numbers(x->pair, y->pair);
    order = order != 0 ? order : compare_numbers(x->pass != DP_OP_F, y->pass != DP_OP_F);
    order = order != 0 ? order : compare_numbers(x->chunk, y->chunk);
    order = order != 0 ? order : compare_numbers(x->microbatch, y->microbatch);
    return order != 0 ? order : compare_numbers(x->start_ns, y->start_ns);
}

/* Pairs first, forwards and backwards apart, each in the order of time. */
static int by_pair(const void *a, const void *b)
{
    const side_t *x = a, *y = b;
    int order = compare_numbers(y->pair, x->pair);

    order = order != 0 ? order : compare_numbers(x->step, y->step);
    order = order != 0 ? order : compare_numbers(x->backward, y->backward);
    return order != 0 ? order : compare_numbers(x->start, y->start);
}

static int by_operation(const void *a, const void *b)
{
    const placed_t *x = a, *y = b;
    int order = compare_numbers(x->op_start, y->op_start);

    order = order != 0 ? order : compare_numbers((int64_t)x->op, (int64_t)y->op);
    return order != 0 ? order : compare_numbers(x->span.start_ns, y->span.start_ns);
}

/* A whole backward has the W of a segment before the I of the segment in front of it: a W behind
 * all I is another operation. */
static bool is_split(const placed_t *placed, const side_t *side, int64_t *w_start_out)
{
    int64_t i_end = INT64_MIN, w_start = INT64_MAX;

    for (size_t k = side->first; k < side->first + side->count; k++) {
        const dp_span_t *span = &placed[k].span;

        if (span->pass == DP_OP_W)
            w_start = span->start_ns < w_start ? span->start_ns : w_start;
        else
            i_end = span->end_ns > i_end ? span->end_ns : i_end;
    }
    *w_start_out = w_start;
    return i_end != INT64_MIN && w_start != INT64_MAX && w_start >= i_end;
}

static size_t find_sides(const placed_t *placed, size_t count, side_t *sides)
{
    size_t n = 0;

    for (size_t k = 0; k < count; k++) {
        const dp_span_t *span = &placed[k].span, *last = k > 0 ? &placed[k - 1].span : NULL;
        bool same = last != NULL && last->step == span->step && last->pair == span->pair &&
                    last->chunk == span->chunk && last->microbatch == span->microbatch &&
                    (last->pass == DP_OP_F) == (span->pass == DP_OP_F);

        if (!same)
            sides[n++] = (side_t){k, 0, span->start_ns, span->step, span->pair != 0, span->pass != DP_OP_F};
        sides[n - 1].count++;
    }
    return n;
}

static void place_side(placed_t *placed, const side_t *side, size_t op, int64_t start)
{
    for (size_t k = side->first; k < side->first + side->count; k++) {
        placed[k].op = op;
        placed[k].op_start = start;
    }
}

/* From sides[h] on, those of the same step and direction that are in pairs. */
static size_t run_of(const side_t *sides, size_t count, size_t h)
{
    size_t end = h;

    while (end < count && sides[end].pair && sides[end].step == sides[h].step &&
           sides[end].backward == sides[h].backward)
        end++;
    return end - h;
}

/* The k-th forward of a step that is in a pair belongs to the k-th backward. */
static size_t place_pairs(placed_t *placed, const side_t *sides, size_t count)
{
    size_t h = 0;

    while (h < count && sides[h].pair) {
        size_t n = run_of(sides, count, h), next = h + n;
        bool meets = !sides[h].backward && next < count && sides[next].pair && sides[next].step == sides[h].step;
        size_t others = meets ? run_of(sides, count, next) : 0;

        for (size_t k = 0; k < n || k < others; k++) {
            const side_t *forward = k < n ? &sides[h + k] : NULL, *backward = k < others ? &sides[next + k] : NULL;
            int64_t start = forward == NULL                                        ? backward->start
                            : backward == NULL || forward->start < backward->start ? forward->start
                                                                                   : backward->start;

            if (forward != NULL)
                place_side(placed, forward, h + k, start);
            if (backward != NULL)
                place_side(placed, backward, forward != NULL ? h + k : next + k, start);
        }
        h = next + others;
    }
    return h;
}

static dp_status_t place_alone(placed_t *placed, const side_t *side, size_t op, int32_t row, lones_t *lones)
{
    int64_t w_start;

    place_side(placed, side, 2 * op, side->start);
    if (!side->backward || !is_split(placed, side, &w_start))
        return DP_OK;
    for (size_t k = side->first; k < side->first + side->count; k++) {
        if (placed[k].span.pass != DP_OP_W)
            continue;
        placed[k].op = 2 * op + 1;
        placed[k].op_start = w_start;
    }
    return add_lone(lones, row, &placed[side->first].span);
}

static dp_status_t order_spans(placed_t *placed, size_t count, int32_t row, lones_t *lones)
{
    side_t *sides = dp__allocate((count + 1) * sizeof(*sides), 16);
    size_t nsides, h;
    dp_status_t status = DP_OK;

    if (sides == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu spans", count);
    qsort(placed, count, sizeof(*placed), by_side);
    nsides = find_sides(placed, count, sides);
    qsort(sides, nsides, sizeof(*sides), by_pair);
    h = place_pairs(placed, sides, nsides);
    for (; h < nsides && status == DP_OK; h++)
        status = place_alone(placed, &sides[h], nsides + h, row, lones);
    qsort(placed, count, sizeof(*placed), by_operation);
    dp__free(sides);
    return status;
}

/* ---- spans ---- */

/* "attention" of "attention F 3"; none of "F 3". */
static dp_status_t name_span(const dp_trace_t *trace, const dp__trace_record_t *record, dp_timeline_t *timeline,
                             dp_span_t *span)
{
    char name[64];
    const char *whole = dp__trace_name(trace, record->name), *blank = strchr(whole, ' ');

    if (span->kind != DP_SPAN_COMPUTE || blank == NULL || strchr(blank + 1, ' ') == NULL || blank == whole)
        return DP_OK;
    snprintf(name, sizeof(name), "%.*s", (int)(blank - whole < 60 ? blank - whole : 60), whole);
    return dp_timeline_name(timeline, name, &span->name);
}

static dp_span_t span_of(const dp__trace_record_t *record, const dp__trace_detail_t *detail)
{
    bool computes = detail->kind == DP_SPAN_COMPUTE;

    return (dp_span_t){.start_ns = record->start,
                       .end_ns = record->end,
                       .step = detail->value[DP__TRACE_STEP],
                       .microbatch = detail->value[DP__TRACE_MICROBATCH],
                       .chunk = (int16_t)(computes ? detail->value[DP__TRACE_CHUNK] : -1),
                       .stage = (int16_t)(computes ? detail->value[DP__TRACE_STAGE] : -1),
                       .segment = (int16_t)(computes ? detail->value[DP__TRACE_SEGMENT] : -1),
                       .kind = detail->kind,
                       .lane = detail->lane,
                       .pass = detail->pass == DP_OP_FB ? DP_OP_B : detail->pass,
                       .pair = detail->value[DP__TRACE_PAIR] > 0,
                       .busy_ns = detail->value[DP__TRACE_BUSY] > 0 ? (uint32_t)detail->value[DP__TRACE_BUSY] : 0};
}

static dp_status_t add_spans(const dp_trace_t *trace, const dp__trace_rank_t *rank, int32_t row,
                             dp_timeline_t *timeline, lones_t *lones)
{
    placed_t *placed = dp__allocate((rank->end - rank->first + 1) * sizeof(*placed), 16);
    size_t count = 0;
    dp_status_t status = DP_OK;

    if (placed == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu spans", rank->end - rank->first);
    for (size_t i = rank->first; i < rank->end && status == DP_OK; i++) {
        const dp__trace_detail_t *detail = detail_of(trace, &trace->records[i]);
        dp_span_t span;

        if (detail == NULL || (detail->kind == DP_SPAN_COMPUTE && !in_bounds(detail)))
            continue;
        span = span_of(&trace->records[i], detail);
        status = name_span(trace, &trace->records[i], timeline, &span);
        if (status == DP_OK && span.kind == DP_SPAN_COMPUTE)
            placed[count++].span = span;
        else if (status == DP_OK)
            status = dp_timeline_add(timeline, row, &span);
    }
    if (status == DP_OK)
        status = order_spans(placed, count, row, lones);
    for (size_t k = 0; k < count && status == DP_OK; k++)
        status = dp_timeline_add(timeline, row, &placed[k].span);
    dp__free(placed);
    return status;
}

bool dp__trace_is_bidirectional(const dp_trace_t *trace)
{
    shape_t shape;

    return trace->ndetails > 0 && find_shape(trace, &shape) == DP_OK && shape.bidirectional;
}

dp_status_t dp__trace_to_timeline(const dp_trace_t *trace, dp_timeline_t **timeline_out, dp_schedule_t **schedule_out)
{
    shape_t shape;
    lones_t lones = {.items = NULL};
    size_t most = 0;
    dp_status_t status = find_shape(trace, &shape);

    *timeline_out = NULL;
    *schedule_out = NULL;
    for (size_t r = 0; r < trace->nranks; r++)
        most = trace->ranks[r].end - trace->ranks[r].first > most ? trace->ranks[r].end - trace->ranks[r].first : most;
    if (status == DP_OK)
        status = dp_timeline_create((int32_t)trace->nranks, (int64_t)most, timeline_out);
    for (size_t r = 0; r < trace->nranks && status == DP_OK; r++)
        status = add_spans(trace, &trace->ranks[r], (int32_t)r, *timeline_out, &lones);
    if (status == DP_OK)
        status = make_schedule(&shape, &lones, schedule_out);
    dp__free(lones.items);
    return status;
}
