/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * pace.c: who takes longer than its peers for the same work. Of a step the least time counts that
 * the rank took for the work: what else a machine does makes some times longer, a slow device all
 * of them. Of the steps three of four have to be longer than three of four of the peers. */
#include "group/pace.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

/* How much longer than its peers a rank has to take, and how much further than they are apart. */
#define LIMIT        1.15
#define LIMIT_REMAIN 1.08
#define SPREADS      4.0
#define LEAST_NS     20e3 /* fewer tell of clocks and caches */
#define COPIES       2    /* with so many, peers are the ranks at the same place of their copies */

void dp__pace_hear(dp__pace_t *paces, int32_t size, int32_t rank, const dp__step_call_t *call)
{
    dp__pace_t *pace = &paces[rank];

    if (pace->pipeline != call->pipeline)
        *pace = (dp__pace_t){.pipeline = call->pipeline};
    if (call->pace_ns == 0)
        return;
    pace->place = (uint32_t)((uint64_t)rank - call->first);
    pace->copies = (uint32_t)((uint64_t)size / call->count);
    pace->ns[pace->count++ % DP__PACE_STEPS] = call->pace_ns;
}

/* ---- one rank ---- */

typedef struct score {
    int32_t rank;
    uint32_t place;
    double ns, high; /* three of four steps took longer, and shorter */
} score_t;

static int by_length(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static score_t score_of(const dp__pace_t *pace, int32_t rank)
{
    uint64_t sorted[DP__PACE_STEPS];

    for (int k = 0; k < DP__PACE_STEPS; k++)
        sorted[k] = pace->ns[k];
    qsort(sorted, DP__PACE_STEPS, sizeof(*sorted), by_length);
    return (score_t){.rank = rank,
                     .place = pace->copies >= COPIES ? pace->place : 0,
                     .ns = (double)sorted[DP__PACE_STEPS / 4],
                     .high = (double)sorted[DP__PACE_STEPS * 3 / 4]};
}

/* ---- peers ---- */

static int order_scores(const void *a, const void *b)
{
    const score_t *x = a, *y = b;

    if (x->place != y->place)
        return x->place < y->place ? -1 : 1;
    return (x->ns > y->ns) - (x->ns < y->ns);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_of(const double *sorted, int32_t n)
{
    return n % 2 != 0 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0;
}

/* The slowest of n peers, sorted, beside the others. times 0: it is not slow. distance: [n]. */
static dp__straggler_t judge_peers(const score_t *peers, int32_t n, int32_t named, double *distance)
{
    const score_t *slowest = &peers[n - 1];
    double usual, spread, high;

    for (int32_t k = 0; k < n - 1; k++)
        distance[k] = peers[k].ns;
    usual = median_of(distance, n - 1);
    for (int32_t k = 0; k < n - 1; k++)
        distance[k] = fabs(peers[k].ns - usual);
    qsort(distance, (size_t)n - 1, sizeof(*distance), by_value);
    spread = median_of(distance, n - 1);
    for (int32_t k = 0; k < n - 1; k++)
        distance[k] = peers[k].high;
    qsort(distance, (size_t)n - 1, sizeof(*distance), by_value);
    high = median_of(distance, n - 1);
    if (slowest->ns < high || slowest->ns < usual + LEAST_NS ||
        slowest->ns < usual * (slowest->rank == named ? LIMIT_REMAIN : LIMIT) + SPREADS * spread)
        return (dp__straggler_t){.rank = -1};
    return (dp__straggler_t){.rank = slowest->rank, .times = slowest->ns / usual};
}

dp__straggler_t dp__pace_straggler(const dp__pace_t *paces, int32_t size, int32_t named)
{
    dp__straggler_t found = {.rank = -1};
    double *distance;
    score_t *scores;
    int32_t n = 0;

    if (!dp__arrays(DP__ARRAY(scores, size), DP__ARRAY(distance, size)))
        return found;
    for (int32_t r = 0; r < size; r++)
        if (paces[r].count >= DP__PACE_STEPS)
            scores[n++] = score_of(&paces[r], r);
    qsort(scores, (size_t)n, sizeof(*scores), order_scores);
    for (int32_t first = 0, end; first < n; first = end) {
        dp__straggler_t here = {.rank = -1};

        for (end = first + 1; end < n && scores[end].place == scores[first].place;)
            end++;
        if (end - first > 1)
            here = judge_peers(&scores[first], end - first, named, distance);
        if (here.times > found.times)
            found = here;
    }
    dp__free(scores);
    return found;
}
