/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * problem.c: a schedule and its costs as passes of segments. */
#include "overlap/problem.h"

#include "base/memory.h"
#include "simulate/costs.h"

static double hop_between(const dp_costs_t *costs, int32_t from, int32_t to)
{
    dp__message_time_t time = dp__costs_message(costs, from, to);

    return from == to ? 0.0 : time.hop + time.link;
}

/* Segments of one chunk, behind those of the chunks before it. */
static void fill_segments(dp__overlap_problem_t *p, dp__overlap_chunk_t *chunk, const dp__stage_costs_t *stage,
                          double rank_scale)
{
    const double scale = stage->scale * rank_scale;

    for (int32_t s = 0; s < chunk->count; s++) {
        const dp_segment_cost_t *cost = &stage->list[s];
        dp__overlap_segment_t *segment = &p->segment[chunk->first + s];

        *segment = (dp__overlap_segment_t){.lane = cost->lane == DP_LANE_ALL_TO_ALL ? LANE_ALL_TO_ALL : LANE_COMPUTE,
                                           .shared = cost->role == DP_ROLE_SHARED,
                                           .cost = {cost->f * scale}};
        if (p->kinds > PASS_I)
            segment->cost[PASS_I] = (cost->i + (stage->r != NULL ? stage->r[s] : 0.0)) * scale;
        if (p->kinds > PASS_W && cost->has_weight)
            segment->cost[PASS_W] = cost->w * scale;
        for (int kind = 0; kind < PASS_KINDS; kind++) {
            chunk->work[kind][kind == PASS_W ? LANE_COMPUTE : segment->lane] += segment->cost[kind];
            chunk->chain[kind] += segment->shared ? 0.0 : segment->cost[kind];
        }
        for (int kind = PASS_F; kind <= PASS_I; kind++) {
            bool forward = kind == PASS_F, first = s == (forward ? 0 : chunk->count - 1);
            int32_t behind = first ? -1 : dp__segment_next(stage->shape.segments, s, forward ? -1 : 1), ahead = -1;

            if (segment->shared)
                dp__shared_place(&stage->shape, s, forward, &behind, &ahead);
            segment->behind[kind] = (int16_t)behind;
            segment->ahead[kind] = (int16_t)ahead;
        }
    }
    for (int32_t s = 1; s < chunk->count; s++)
        if (stage->list[s].begins_part) {
            chunk->part_end = chunk->part_begin == 0 ? s - 1 : chunk->part_end;
            chunk->part_begin = s;
        }
    if (chunk->part_begin == 0)
        chunk->part_end = chunk->count - 1;
    for (int32_t s = chunk->count - 1; s >= 0; s--)
        if (stage->list[s].has_weight || (s == 0 && chunk->weights == 0))
            p->weight[chunk->first_weight + chunk->weights++] = s;
}

static void fill_chunks(const dp_schedule_t *schedule, const dp_costs_t *costs, const dp__stages_t *stages,
                        dp__overlap_problem_t *p)
{
    int32_t at = 0;

    for (int32_t r = 0; r < p->ranks; r++)
        for (int32_t c = 0; c < p->chunks; c++) {
            dp__overlap_chunk_t *chunk = &p->chunk[r * p->chunks + c];
            dp_place_t place;

            dp_schedule_place(schedule, r, c, &place);
            *chunk = (dp__overlap_chunk_t){
                .rank = r,
                .path = place.path,
                .stage = place.stage,
                .prev = place.prev_rank < 0 ? -1 : place.prev_rank * p->chunks + place.prev_chunk,
                .next = place.next_rank < 0 ? -1 : place.next_rank * p->chunks + place.next_chunk,
                .hop = place.next_rank < 0 ? 0.0 : hop_between(costs, r, place.next_rank),
                .back_hop = place.prev_rank < 0 ? 0.0 : hop_between(costs, r, place.prev_rank),
                .share = 1.0 / dp_schedule_split(schedule),
                .first = at,
                .first_weight = at,
                .count = stages->at[place.stage].shape.nsegments,
            };
            at += chunk->count;
            fill_segments(p, chunk, &stages->at[place.stage], dp__rank_scale(costs, r));
        }
    for (int32_t c = 0; c < p->chunks; c++)
        for (int kind = 0; kind < PASS_KINDS; kind++)
            p->period += p->chunk[c].work[kind][LANE_COMPUTE] / p->paths;
}

static dp_status_t allocate_problem(const dp_schedule_t *schedule, const dp__stages_t *stages, dp__overlap_problem_t *p)
{
    size_t chunks = (size_t)p->ranks * (size_t)p->chunks, segments = 0;

    for (int32_t r = 0; r < p->ranks; r++)
        for (int32_t c = 0; c < p->chunks; c++) {
            dp_place_t place;

            dp_schedule_place(schedule, r, c, &place);
            segments += (size_t)stages->at[place.stage].shape.nsegments;
        }
    if (!dp__arrays(DP__ARRAY(p->chunk, chunks), DP__ARRAY(p->segment, segments), DP__ARRAY(p->weight, segments),
                    DP__ARRAY(p->cap, p->ranks)))
        return dp_fail(DP_ERR_NOMEM, "plan: no memory for %zu segments", segments);
    return DP_OK;
}

dp_status_t dp__overlap_problem_make(const dp_schedule_t *schedule, const dp_costs_t *costs, int32_t slots,
                                     dp__overlap_problem_t *out)
{
    dp__stages_t stages;
    dp_status_t status = dp__stages_make(schedule, costs, &stages);

    *out = (dp__overlap_problem_t){.ranks = schedule->ranks,
                                   .chunks = schedule->chunks,
                                   .stages = dp_schedule_stages(schedule),
                                   .paths = dp_schedule_paths(schedule),
                                   .microbatches = dp_schedule_path_microbatches(schedule, 0),
                                   .slots = slots,
                                   .kinds = schedule->forward_only ? PASS_F + 1 : PASS_KINDS};
    if (status >= 0)
        status = allocate_problem(schedule, &stages, out);
    if (status >= 0)
        fill_chunks(schedule, costs, &stages, out);
    dp__stages_clear(&stages);
    return status;
}

void dp__overlap_problem_clear(dp__overlap_problem_t *p)
{
    dp__free(p->chunk);
    *p = (dp__overlap_problem_t){.ranks = 0};
}

double dp__overlap_chain(const dp__overlap_problem_t *p, int32_t chunk, int kind)
{
    double sum = 0.0;

    for (int32_t c = chunk; c >= 0; c = kind == PASS_F ? p->chunk[c].next : p->chunk[c].prev)
        sum += p->chunk[c].chain[kind] + (kind == PASS_F ? p->chunk[c].hop : p->chunk[c].back_hop);
    return sum;
}

int32_t dp__overlap_end(const dp__overlap_problem_t *p, int32_t chunk, int kind)
{
    while ((kind == PASS_F ? p->chunk[chunk].prev : p->chunk[chunk].next) >= 0)
        chunk = kind == PASS_F ? p->chunk[chunk].prev : p->chunk[chunk].next;
    return chunk;
}
