/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * timetable.c: the order of micro-batches, and when each pass is to begin.
 *
 * Micro-batches pass the chunks of a rank in groups, as in schedule/interleave.h. The k-th forward
 * of a rank begins at `fill` k while the pipeline fills, the j-th backward at first + `steady` j,
 * with the forwards that are left beside them, and from the last forward on at `drain`. W follow
 * their I later. A run (list.c) makes a plan of these times: they say what goes before what.
 *
 * Groups need not be alike. While the pipeline fills, a rank is bound by its all-to-all lane, and a
 * group whose forwards last as long as its first one takes to come back leaves no gap. While it
 * empties, a group must last until its first backward is back. W that wait for the end let the I
 * of the last ranks go first, on which all others wait. */
#include "overlap/timetable.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

typedef struct range {
    double least, most; /* of group sizes: of the ranks */
    bool whole;
} range_t;

static const range_t ranges[TIMES] = {
    [TIMES_FIRST_GROUP] = {0.8, 3.0, true},   [TIMES_GROUP] = {0.8, 3.0, true},
    [TIMES_LAST_GROUP] = {0.8, 3.0, true},    [TIMES_FILL_PACE] = {-0.3, 1.2, false},
    [TIMES_SPREAD] = {0.0, 1.0, false},       [TIMES_FILLED] = {0.5, 1.3, false},
    [TIMES_F_SLOW] = {0.9, 1.4, false},       [TIMES_I_SLOW] = {0.9, 1.4, false},
    [TIMES_STEADY_PACE] = {0.93, 1.1, false}, [TIMES_DRAIN_PACE] = {0.55, 1.2, false},
    [TIMES_LEADS] = {0.0, 32.0, true},        [TIMES_LEAD] = {0.0, 2.5, false},
    [TIMES_W_LATE] = {0.0, 5.0, false},       [TIMES_W_LATE_LAST] = {0.0, 5.0, false},
    [TIMES_W_LATE_RANK] = {0.0, 0.5, false},  [TIMES_W_LAST] = {0.0, 80.0, true},
};

static bool is_group(int which)
{
    return which == TIMES_FIRST_GROUP || which == TIMES_GROUP || which == TIMES_LAST_GROUP;
}

static range_t range_of(const dp__overlap_problem_t *p, int which)
{
    range_t range = ranges[which];

    if (is_group(which)) {
        range.least = fmax(1.0, floor(range.least * p->ranks));
        range.most = fmax(range.least + 1.0, ceil(range.most * p->ranks));
    }
    return range;
}

static double between(dp__overlap_random_t *random, double least, double most)
{
    return least + (most - least) * dp__overlap_unit(random);
}

static double put_into(range_t range, double value)
{
    return fmin(range.most, fmax(range.least, range.whole ? floor(value + 0.5) : value));
}

void dp__overlap_timetable_random(const dp__overlap_problem_t *p, dp__overlap_random_t *random,
                                  dp__overlap_timetable_t *times)
{
    /* where most good ones lie */
    static const range_t likely[TIMES] = {
        [TIMES_FIRST_GROUP] = {1.0, 1.9, true},    [TIMES_GROUP] = {1.0, 1.5, true},
        [TIMES_LAST_GROUP] = {0.8, 1.5, true},     [TIMES_FILL_PACE] = {0.0, 0.7, false},
        [TIMES_SPREAD] = {0.0, 1.0, false},        [TIMES_FILLED] = {0.9, 1.1, false},
        [TIMES_F_SLOW] = {0.97, 1.2, false},       [TIMES_I_SLOW] = {0.97, 1.1, false},
        [TIMES_STEADY_PACE] = {0.98, 1.02, false}, [TIMES_DRAIN_PACE] = {0.8, 1.02, false},
        [TIMES_LEADS] = {0.0, 16.0, true},         [TIMES_LEAD] = {0.0, 1.5, false},
        [TIMES_W_LATE] = {0.0, 5.0, false},        [TIMES_W_LATE_LAST] = {0.0, 5.0, false},
        [TIMES_W_LATE_RANK] = {-0.15, 0.4, false}, [TIMES_W_LAST] = {-30.0, 60.0, true},
    };

    for (int k = 0; k < TIMES; k++) {
        double scale = is_group(k) ? p->ranks : 1.0;

        times->of[k] = put_into(range_of(p, k), scale * between(random, likely[k].least, likely[k].most));
    }
}

void dp__overlap_timetable_change(const dp__overlap_problem_t *p, dp__overlap_random_t *random,
                                  dp__overlap_timetable_t *times)
{
    int which = (int)(TIMES * dp__overlap_unit(random));
    range_t range = range_of(p, which);
    double by = between(random, -0.1, 0.1) * (range.most - range.least);

    if (dp__overlap_unit(random) < 0.2)
        times->of[which] = put_into(range, between(random, range.least, range.most));
    else
        times->of[which] = put_into(range, times->of[which] + (range.whole ? copysign(fmax(1.0, fabs(by)), by) : by));
}

/* What is the same of all chunks of a rank: means. */
typedef struct pace {
    double fill, steady, drain;
} pace_t;

static pace_t pace_of(const dp__overlap_problem_t *p, int32_t rank, const dp__overlap_timetable_t *times)
{
    double work[PASS_KINDS][LANES] = {{0.0}}, chain = 0.0, busiest;

    for (int32_t c = rank * p->chunks; c < (rank + 1) * p->chunks; c++) {
        for (int kind = 0; kind < PASS_KINDS; kind++)
            for (int k = 0; k < LANES; k++)
                work[kind][k] += p->chunk[c].work[kind][k] / p->chunks;
        chain += p->chunk[c].chain[PASS_F] / p->chunks;
    }
    busiest = fmax(work[PASS_F][LANE_COMPUTE], work[PASS_F][LANE_ALL_TO_ALL]);
    return (pace_t){
        .fill = busiest + times->of[TIMES_FILL_PACE] * (chain - busiest),
        .steady = times->of[TIMES_STEADY_PACE] *
                  (work[PASS_F][LANE_COMPUTE] + work[PASS_I][LANE_COMPUTE] + work[PASS_W][LANE_COMPUTE]),
        .drain = times->of[TIMES_DRAIN_PACE] * (work[PASS_I][LANE_COMPUTE] + work[PASS_W][LANE_COMPUTE]),
    };
}

/* Chunks of a rank along the path. */
static void sort_chunks(const dp__overlap_problem_t *p, int32_t rank, int32_t *chunk)
{
    for (int32_t k = 0; k < p->chunks; k++) {
        int32_t at = k, c = rank * p->chunks + k;

        for (; at > 0 && p->chunk[chunk[at - 1]].stage > p->chunk[c].stage; at--)
            chunk[at] = chunk[at - 1];
        chunk[at] = c;
    }
}

static int32_t group_at(const dp__overlap_problem_t *p, const dp__overlap_timetable_t *times, int32_t from)
{
    int32_t left = p->microbatches - from, last = (int32_t)times->of[TIMES_LAST_GROUP],
            size = (int32_t)times->of[from == 0 ? TIMES_FIRST_GROUP : TIMES_GROUP];

    if (left <= size + last / 2)
        return left;
    return left <= size + last ? (left > last ? left - last : left) : size;
}

/* The walks F and I of a rank, in their order. */
static void order_passes(const dp__overlap_problem_t *p, const dp__overlap_timetable_t *times, const int32_t *chunk,
                         int32_t *forward, int32_t *backward)
{
    int32_t n = 0;

    for (int32_t from = 0, size; from < p->microbatches; from += size) {
        size = group_at(p, times, from);
        for (int32_t k = 0; k < p->chunks; k++)
            for (int32_t m = from; m < from + size; m++, n++) {
                forward[n] = dp__overlap_walk_at(p, PASS_F, chunk[k], m);
                backward[n] = dp__overlap_walk_at(p, PASS_I, chunk[p->chunks - 1 - k], m);
            }
    }
}

static void put_walk(const dp__overlap_graph_t *graph, const dp__overlap_walk_t *walk, double at, double *urgency)
{
    for (int32_t n = walk->first; n < walk->first + walk->count; n++) {
        urgency[n] = at;
        at += graph->node[n].cost;
    }
}

static void time_rank(const dp__overlap_graph_t *graph, const dp__overlap_timetable_t *times, int32_t rank,
                      const int32_t *forward, const int32_t *backward, double *urgency)
{
    const dp__overlap_problem_t *p = graph->problem;
    const double *of = times->of;
    const int32_t n = p->chunks * p->microbatches, group = group_at(p, times, 0) * p->chunks;
    const pace_t pace = pace_of(p, rank, times);
    double begins = INFINITY, first = INFINITY, down = 0.0, filled;
    int32_t warm;

    for (int32_t c = rank * p->chunks; c < (rank + 1) * p->chunks; c++) {
        double whole = dp__overlap_chain(p, dp__overlap_end(p, c, PASS_F), PASS_F);

        begins = fmin(begins, whole - dp__overlap_chain(p, c, PASS_F));
        first = fmin(first, whole * of[TIMES_F_SLOW] + (dp__overlap_chain(p, dp__overlap_end(p, c, PASS_I), PASS_I) -
                                                        dp__overlap_chain(p, c, PASS_I)) *
                                                           of[TIMES_I_SLOW]);
    }
    filled = of[TIMES_FILLED] * p->cap[rank] / p->chunk[rank * p->chunks].share;
    warm = (int32_t)fmin(fmin(n, filled), fmax(0.0, (first - begins) / pace.fill));
    for (int32_t k = 0; k < n; k++) {
        const dp__overlap_walk_t *walk = &graph->walk[forward[k]];
        double at = k < warm ? begins + k * pace.fill : first + (k - warm) * pace.steady;

        down = dp__overlap_chain(p, dp__overlap_end(p, walk->chunk, PASS_F), PASS_F) -
               dp__overlap_chain(p, walk->chunk, PASS_F) - begins;
        if (k < warm && k < group)
            at = fmax(at, begins + down * of[TIMES_F_SLOW] + walk->microbatch * pace.fill * of[TIMES_SPREAD]);
        put_walk(graph, walk, at, urgency);
    }
    for (int32_t j = 0; j < n; j++) {
        const dp__overlap_walk_t *walk = &graph->walk[backward[j]];
        bool last = j >= n - warm - (int32_t)of[TIMES_W_LAST];
        double at = first + (j < n - warm ? j * pace.steady : (n - warm) * pace.steady + (j - n + warm) * pace.drain);

        if (j < (int32_t)of[TIMES_LEADS])
            at -= of[TIMES_LEAD] * p->period;
        put_walk(graph, walk, at, urgency);
        at += p->chunk[walk->chunk].chain[PASS_I];
        at += p->period * (last ? of[TIMES_W_LATE_LAST] + rank * of[TIMES_W_LATE_RANK] : of[TIMES_W_LATE]);
        put_walk(graph, &graph->walk[dp__overlap_walk_at(p, PASS_W, walk->chunk, walk->microbatch)], at, urgency);
    }
}

bool dp__overlap_timetable_write(const dp__overlap_graph_t *graph, const dp__overlap_timetable_t *times,
                                 double *urgency)
{
    const dp__overlap_problem_t *p = graph->problem;
    size_t n = (size_t)p->chunks * (size_t)p->microbatches;
    int32_t *forward, *backward, *chunk;

    if (!dp__arrays(DP__ARRAY(forward, n), DP__ARRAY(backward, n), DP__ARRAY(chunk, p->chunks)))
        return false;
    for (int32_t r = 0; r < p->ranks; r++) {
        sort_chunks(p, r, chunk);
        order_passes(p, times, chunk, forward, backward);
        time_rank(graph, times, r, forward, backward, urgency);
    }
    dp__free(forward);
    return true;
}
