/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * bound.c: a time that every order of the passes needs.
 *
 * Chains: a micro-batch goes down its path and back up. Ramps: before a rank's first I it computes
 * nothing but F, as many as its memory holds; after its last F has begun, nothing but that F and
 * the I and W of what it then holds, while that F's micro-batch goes on down and all the way up.
 * Whatever the two take beyond such work is idle, and adds to all the rank's computation. They
 * cannot be one and the same time when not all forwards fit the memory at once. */
#include "overlap/bound.h"

#include <math.h>

/* After the last I: the weight gradient of the segment that it ended with. */
static double last_weight(const dp__overlap_problem_t *p, int32_t chunk)
{
    const dp__overlap_chunk_t *c = &p->chunk[dp__overlap_end(p, chunk, PASS_F)];
    int32_t last = p->weight[c->first_weight + c->weights - 1];

    return last == 0 ? p->segment[c->first].cost[PASS_W] : 0.0;
}

typedef struct ramp {
    /* earliest F, earliest I; least time from the last F's start */
    double begins, first_backward, tail;
    /* most computation of an F, and of I and W, for a unit of memory */
    double forward, backward;
    double last; /* most computation of one F */
} ramp_t;

static ramp_t ramp_of(const dp__overlap_problem_t *p, int32_t rank)
{
    ramp_t x = {INFINITY, INFINITY, INFINITY, 0.0, 0.0, 0.0};

    for (int32_t c = rank * p->chunks; c < (rank + 1) * p->chunks; c++) {
        const dp__overlap_chunk_t *chunk = &p->chunk[c];
        int32_t top = dp__overlap_end(p, c, PASS_F), bottom = dp__overlap_end(p, c, PASS_I);
        double down = dp__overlap_chain(p, top, PASS_F), forward = chunk->work[PASS_F][LANE_COMPUTE];

        x.begins = fmin(x.begins, down - dp__overlap_chain(p, c, PASS_F));
        x.first_backward =
            fmin(x.first_backward, down + dp__overlap_chain(p, bottom, PASS_I) - dp__overlap_chain(p, c, PASS_I));
        x.tail =
            fmin(x.tail, dp__overlap_chain(p, c, PASS_F) + dp__overlap_chain(p, bottom, PASS_I) + last_weight(p, c));
        x.forward = fmax(x.forward, forward / chunk->share);
        x.backward =
            fmax(x.backward, (chunk->work[PASS_I][LANE_COMPUTE] + chunk->work[PASS_W][LANE_COMPUTE]) / chunk->share);
        x.last = fmax(x.last, forward);
    }
    return x;
}

static double of_rank(const dp__overlap_problem_t *p, int32_t rank)
{
    ramp_t x = ramp_of(p, rank);
    double lane[LANES] = {0.0, 0.0}, held = 0.0, cap = p->cap[rank], warm, cool;

    for (int32_t c = rank * p->chunks; c < (rank + 1) * p->chunks; c++) {
        held += p->chunk[c].share * p->microbatches;
        for (int kind = 0; kind < PASS_KINDS; kind++)
            for (int k = 0; k < LANES; k++)
                lane[k] += p->chunk[c].work[kind][k] * p->microbatches;
    }
    if (p->kinds < PASS_KINDS) /* what forwards hold ends with them */
        return x.begins + fmax(lane[LANE_COMPUTE], lane[LANE_ALL_TO_ALL]);
    warm = fmax(x.begins, x.first_backward - cap * x.forward);
    cool = fmax(0.0, x.tail - cap * x.backward - x.last);
    return fmax(x.begins + lane[LANE_ALL_TO_ALL], lane[LANE_COMPUTE] + (held > cap ? warm + cool : fmax(warm, cool)));
}

double dp__overlap_bound(const dp__overlap_problem_t *p)
{
    double bound = 0.0;

    for (int32_t c = 0; c < p->ranks * p->chunks; c++)
        if (p->chunk[c].prev < 0)
            bound =
                fmax(bound, dp__overlap_chain(p, c, PASS_F) +
                                (p->kinds == PASS_KINDS
                                     ? dp__overlap_chain(p, dp__overlap_end(p, c, PASS_I), PASS_I) + last_weight(p, c)
                                     : 0.0));
    for (int32_t r = 0; r < p->ranks; r++)
        bound = fmax(bound, of_rank(p, r));
    return bound;
}
