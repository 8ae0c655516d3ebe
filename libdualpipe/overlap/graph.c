/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * graph.c: passes, their segments, and what these wait for: data, micro-batches and slots. */
#include "overlap/graph.h"

#include "base/memory.h"

typedef struct builder {
    dp__overlap_graph_t *graph;
    int32_t *from; /* with `to`: all arcs, as they come */
    dp__overlap_arc_t *to;
    int64_t count;
} builder_t;

static const dp__overlap_walk_t *walk_of(const builder_t *b, int kind, int32_t chunk, int32_t microbatch)
{
    return &b->graph->walk[dp__overlap_walk_at(b->graph->problem, kind, chunk, microbatch)];
}

static int32_t last_of(const dp__overlap_walk_t *walk)
{
    return walk->first + walk->count - 1;
}

/* The node that runs a segment of an F or I. */
static int32_t node_of(const dp__overlap_walk_t *walk, int32_t segment)
{
    return walk->kind == PASS_F ? walk->first + segment : last_of(walk) - segment;
}

static const dp__overlap_segment_t *segment_of(const builder_t *b, int32_t node)
{
    const dp__overlap_problem_t *p = b->graph->problem;
    const dp__overlap_node_t *n = &b->graph->node[node];

    return &p->segment[p->chunk[b->graph->walk[n->walk].chunk].first + n->segment];
}

static void add_arc(builder_t *b, int32_t from, int32_t to, double lag)
{
    b->from[b->count] = from;
    b->to[b->count++] = (dp__overlap_arc_t){to, lag};
}

static void add_walks(dp__overlap_graph_t *graph)
{
    const dp__overlap_problem_t *p = graph->problem;

    for (int kind = 0; kind < p->kinds; kind++)
        for (int32_t c = 0; c < p->ranks * p->chunks; c++)
            for (int32_t m = 0; m < p->microbatches; m++) {
                const dp__overlap_chunk_t *chunk = &p->chunk[c];
                int32_t number = graph->walks++, count = kind == PASS_W ? chunk->weights : chunk->count;

                graph->walk[number] = (dp__overlap_walk_t){kind, c, m, graph->nodes, count, {0, 0}};
                for (int32_t k = 0; k < count; k++) {
                    int32_t s = kind == PASS_F   ? k
                                : kind == PASS_I ? count - 1 - k
                                                 : p->weight[chunk->first_weight + k];
                    const dp__overlap_segment_t *segment = &p->segment[chunk->first + s];
                    uint8_t lane = kind == PASS_W ? LANE_COMPUTE : segment->lane;

                    graph->node[graph->nodes++] = (dp__overlap_node_t){number, (int16_t)s, lane, segment->cost[kind]};
                    graph->walk[number].on[lane]++;
                }
            }
}

/* Within a pass, and behind the same pass of the micro-batch before, which it does not overtake. */
static void chain_walk(builder_t *b, const dp__overlap_walk_t *walk)
{
    for (int32_t k = walk->first; k <= last_of(walk); k++) {
        const dp__overlap_segment_t *segment = segment_of(b, k);

        if (walk->kind == PASS_W && k > walk->first)
            add_arc(b, k - 1, k, 0.0);
        if (walk->kind != PASS_W && segment->behind[walk->kind] >= 0)
            add_arc(b, node_of(walk, segment->behind[walk->kind]), k, 0.0);
        if (walk->kind != PASS_W && segment->ahead[walk->kind] >= 0)
            add_arc(b, k, node_of(walk, segment->ahead[walk->kind]), 0.0);
    }
    if (walk->microbatch > 0) {
        const dp__overlap_walk_t *before = walk - 1;

        add_arc(b, walk->kind == PASS_W ? last_of(before) : before->first, walk->first, 0.0);
        if (walk->kind != PASS_W)
            add_arc(b, last_of(before), last_of(walk), 0.0);
    }
}

/* A message goes to the pass `to`. Its slot is free again behind the first part of the pass that
 * took the message before in it, and the sender's buffer, of which there are as many, when that
 * message has left; the last part waits for it. */
static void hand_on(builder_t *b, const dp__overlap_walk_t *walk, int32_t to, double hop)
{
    const dp__overlap_problem_t *p = b->graph->problem;
    const dp__overlap_chunk_t *own = &p->chunk[walk->chunk], *other = &p->chunk[to];
    const dp__overlap_walk_t *next = walk_of(b, walk->kind, to, walk->microbatch);
    bool forward = walk->kind == PASS_F;
    int32_t frees = forward ? other->part_end : other->part_begin, waits = forward ? own->part_begin : own->part_end;

    add_arc(b, last_of(walk), next->first, hop);
    if (other->rank == own->rank)
        return;
    if (walk->microbatch >= p->slots)
        add_arc(b, node_of(next - p->slots, frees), next->first, hop);
    if (walk->microbatch >= 2 * p->slots)
        add_arc(b, node_of(next - 2 * p->slots, frees), node_of(walk, waits), 0.0);
}

/* A weight gradient takes what the I of its segment leaves; the last one also ends the I. */
static void add_weights(builder_t *b, const dp__overlap_walk_t *walk)
{
    const dp__overlap_walk_t *input = walk_of(b, PASS_I, walk->chunk, walk->microbatch);

    for (int32_t k = 0; k < walk->count; k++)
        add_arc(b, k + 1 == walk->count ? last_of(input) : last_of(input) - b->graph->node[walk->first + k].segment,
                walk->first + k, 0.0);
}

static void add_arcs(builder_t *b)
{
    const dp__overlap_problem_t *p = b->graph->problem;

    for (int32_t w = 0; w < b->graph->walks; w++) {
        const dp__overlap_walk_t *walk = &b->graph->walk[w];
        const dp__overlap_chunk_t *chunk = &p->chunk[walk->chunk];
        int32_t to = walk->kind == PASS_F ? chunk->next : walk->kind == PASS_I ? chunk->prev : -1;

        chain_walk(b, walk);
        if (walk->kind == PASS_W)
            add_weights(b, walk);
        else if (to >= 0)
            hand_on(b, walk, to, walk->kind == PASS_F ? chunk->hop : chunk->back_hop);
        else if (walk->kind == PASS_F && p->kinds > PASS_I)
            add_arc(b, last_of(walk), walk_of(b, PASS_I, walk->chunk, walk->microbatch)->first, 0.0);
    }
}

/* By where they come from, and by where they go to. */
static void sort_arcs(const builder_t *b, int way)
{
    dp__overlap_graph_t *graph = b->graph;
    int64_t *first = graph->first[way];

    for (int64_t k = 0; k < b->count; k++)
        first[(way == 0 ? b->from[k] : b->to[k].node) + 1]++;
    for (int32_t n = 0; n < graph->nodes; n++)
        first[n + 1] += first[n];
    for (int64_t k = b->count - 1; k >= 0; k--) { /* filled from behind; ends become beginnings */
        int32_t at = way == 0 ? b->from[k] : b->to[k].node;

        graph->arc[way][--first[at + 1]] = (dp__overlap_arc_t){way == 0 ? b->to[k].node : b->from[k], b->to[k].lag};
    }
    for (int32_t n = 0; n < graph->nodes; n++)
        first[n] = first[n + 1];
    first[graph->nodes] = b->count;
}

dp_status_t dp__overlap_graph_make(const dp__overlap_problem_t *p, dp__overlap_graph_t *out)
{
    builder_t b = {.graph = out};
    size_t walks = (size_t)p->kinds * (size_t)p->ranks * (size_t)p->chunks * (size_t)p->microbatches, nodes = 0, arcs;

    for (int32_t c = 0; c < p->ranks * p->chunks; c++)
        nodes += (size_t)dp__overlap_calls(p, c);
    arcs = 2 * nodes + 5 * walks;
    *out = (dp__overlap_graph_t){.problem = p};
    if (dp__arrays(DP__ARRAY(b.from, arcs), DP__ARRAY(b.to, arcs)) &&
        dp__arrays(DP__ARRAY(out->node, nodes), DP__ARRAY(out->walk, walks), DP__ARRAY(out->first[0], nodes + 1),
                   DP__ARRAY(out->first[1], nodes + 1), DP__ARRAY(out->arc[0], arcs), DP__ARRAY(out->arc[1], arcs))) {
        add_walks(out);
        add_arcs(&b);
        sort_arcs(&b, 0);
        sort_arcs(&b, 1);
    }
    dp__free(b.from);
    return out->nodes > 0 ? DP_OK : dp_fail(DP_ERR_NOMEM, "plan: no memory for %zu segments", nodes);
}

void dp__overlap_graph_clear(dp__overlap_graph_t *graph)
{
    dp__free(graph->node);
    *graph = (dp__overlap_graph_t){.problem = NULL};
}
