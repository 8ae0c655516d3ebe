/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * placement.c: which stage lies where, and what comes before and after it. */
#include <dualpipe/schedule.h>

int32_t dp_schedule_paths(const dp_schedule_t *schedule)
{
    return schedule->placement == DP_PLACE_BIDIRECTIONAL ? 2 : 1;
}

int32_t dp_schedule_stages(const dp_schedule_t *schedule)
{
    switch (schedule->placement) {
    case DP_PLACE_LOOP:
        return schedule->ranks * schedule->chunks;
    case DP_PLACE_V:
        return 2 * schedule->ranks;
    default:
        return schedule->ranks;
    }
}

int32_t dp_schedule_path_microbatches(const dp_schedule_t *schedule, int32_t path)
{
    (void)path; /* both directions carry the same number */
    return schedule->microbatches / dp_schedule_paths(schedule);
}

static int32_t stage_of(const dp_schedule_t *s, int32_t rank, int32_t chunk)
{
    switch (s->placement) {
    case DP_PLACE_LOOP:
        return chunk * s->ranks + rank;
    case DP_PLACE_V:
        return chunk == 0 ? rank : 2 * s->ranks - 1 - rank;
    case DP_PLACE_BIDIRECTIONAL:
        return chunk == 0 ? rank : s->ranks - 1 - rank;
    default:
        return rank;
    }
}

/* The inverse: who holds a stage of a path. */
static void holder_of(const dp_schedule_t *s, int32_t path, int32_t stage, int32_t *rank, int32_t *chunk)
{
    *rank = -1;
    *chunk = -1;
    if (stage < 0 || stage >= dp_schedule_stages(s))
        return;
    switch (s->placement) {
    case DP_PLACE_LOOP:
        *rank = stage % s->ranks;
        *chunk = stage / s->ranks;
        break;
    case DP_PLACE_V:
        *chunk = stage < s->ranks ? 0 : 1;
        *rank = *chunk == 0 ? stage : 2 * s->ranks - 1 - stage;
        break;
    case DP_PLACE_BIDIRECTIONAL:
        *rank = path == 0 ? stage : s->ranks - 1 - stage;
        *chunk = path;
        break;
    default:
        *rank = stage;
        *chunk = 0;
        break;
    }
}

int32_t dp_schedule_split(const dp_schedule_t *schedule)
{
    return schedule->placement == DP_PLACE_LOOP || schedule->placement == DP_PLACE_V ? schedule->chunks : 1;
}

int32_t dp_schedule_step_microbatch(const dp_schedule_t *schedule, int32_t path, int32_t microbatch)
{
    return path == 0 ? microbatch : schedule->microbatches / 2 + microbatch;
}

void dp_schedule_place(const dp_schedule_t *schedule, int32_t rank, int32_t chunk, dp_place_t *place_out)
{
    int32_t path = schedule->placement == DP_PLACE_BIDIRECTIONAL ? chunk : 0;
    int32_t stage = stage_of(schedule, rank, chunk);

    place_out->path = path;
    place_out->stage = stage;
    place_out->mirror_rank = schedule->placement == DP_PLACE_BIDIRECTIONAL ? schedule->ranks - 1 - rank : -1;
    holder_of(schedule, path, stage - 1, &place_out->prev_rank, &place_out->prev_chunk);
    holder_of(schedule, path, stage + 1, &place_out->next_rank, &place_out->next_chunk);
}

const char *dp_placement_name(dp_placement_t placement)
{
    switch (placement) {
    case DP_PLACE_LINE:
        return "line";
    case DP_PLACE_LOOP:
        return "loop";
    case DP_PLACE_V:
        return "v";
    case DP_PLACE_BIDIRECTIONAL:
        return "bidirectional";
    default:
        return "?";
    }
}
