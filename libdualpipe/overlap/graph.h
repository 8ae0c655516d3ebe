/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * graph.h: the segments of all passes, and what each has to wait for. */
#ifndef DP_OVERLAP_GRAPH_H
#define DP_OVERLAP_GRAPH_H

#include "overlap/problem.h"

typedef struct dp__overlap_walk {
    int32_t kind, chunk, microbatch;
    int32_t first, count; /* its nodes, in their order */
    int32_t on[LANES];    /* how many of them on a lane */
} dp__overlap_walk_t;

/* One segment of a pass. */
typedef struct dp__overlap_node {
    int32_t walk;
    int16_t segment;
    uint8_t lane;
    double cost;
} dp__overlap_node_t;

/* From one node to `node`, or back: not before the end of the other and `lag`. */
typedef struct dp__overlap_arc {
    int32_t node;
    double lag;
} dp__overlap_arc_t;

/* Kinds of passes follow one another, within them chunks, within those micro-batches. */
typedef struct dp__overlap_graph {
    const dp__overlap_problem_t *problem;
    int32_t nodes, walks;
    dp__overlap_node_t *node;
    dp__overlap_walk_t *walk;
    /* [nodes + 1] its arcs: to those that wait for it, and [1] to those it waits for */
    int64_t *first[2];
    dp__overlap_arc_t *arc[2];
} dp__overlap_graph_t;

/* Clear with dp__overlap_graph_clear, also after failure. */
dp_status_t dp__overlap_graph_make(const dp__overlap_problem_t *problem, dp__overlap_graph_t *out);
void dp__overlap_graph_clear(dp__overlap_graph_t *graph);

static inline int32_t dp__overlap_walk_at(const dp__overlap_problem_t *p, int kind, int32_t chunk, int32_t microbatch)
{
    return (kind * p->ranks * p->chunks + chunk) * p->microbatches + microbatch;
}

#endif
