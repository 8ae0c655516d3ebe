/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * list.c: list scheduling. A run of all ranks in the order of time, in which each free lane chooses
 * its next segment.
 *
 * A node is one segment of a pass; arcs say what it waits for (graph.h). Its urgency is the time at
 * which it should begin: the lowest goes first.
 *
 *     while there is an event (rank r at time t), the earliest first
 *         for each free lane of r, until no lane starts anything:
 *             best = the most urgent node that is ready at t and may go (rules, memory, braids)
 *             if a more urgent one is ready soon enough: only a node that ends before that, or none
 *             start it: its arcs make other nodes ready, which are events of their ranks
 *
 * The rules (list.h) say how much less urgent than the next node of its lane a node may be and
 * still go first, how long a lane waits for a more urgent node, and how many F and I are alive.
 *
 * Invariants:
 * - Memory. The passes of a rank that take memory stand in a queue by urgency. One may open only if
 *   the memory is enough for it and for all before it that have not begun (has_memory). So what
 *   overtakes leaves enough for what it has overtaken, and the run never stops for want of memory
 *   where the passes in the order of the queue would not.
 * - Braids. A pass belongs to the current braid of its rank or to the next one. A full braid takes
 *   no more passes, and a lane goes on to the next braid only when its part of the current one is
 *   done (is_too_soon). So each braid ends, and braids.c can cut the calls of a rank there.
 *
 * A reverse run follows the arcs backwards from the end of the step: W takes memory and F gives it
 * back. Then every node begins as late as it can, which shows what the step waits for.
 *
 * Example: two forwards of attention (2), dispatch (1) and mlp (2), with urgencies 0, 2, 3 and
 * 5, 7, 8. At 2 the compute lane is free. m0 is next but is ready at 3; a1 is 2 less urgent. Where
 * `ahead` is 2 and nobody waits, a1 goes first and hides the dispatch: 8 instead of 10.
 *
 *     time          0   1   2   3   4   5   6   7
 *     compute       a0  a0  a1  a1  m0  m0  m1  m1
 *     all-to-all            d0      d1 */
#include "overlap/list.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

enum { LOOKED_AT = 64 }; /* nodes, for the next node in order */

/* The passes of a rank that have begun, and belong to one braid. */
typedef struct braid {
    int32_t opened, open; /* all, and those that have not ended */
    int32_t left[LANES];  /* segments to come of the latter */
} braid_t;

typedef struct rank {
    double free[LANES]; /* when the lanes are */
    double idle[LANES]; /* so far */
    braid_t braid, next;
    int32_t number;   /* of the braid */
    int32_t alive[2]; /* passes F and I */
    int32_t begun[2];
    int32_t head; /* of its queue */
    double held, peak;
    int32_t known[LANES];                  /* nodes on its lists */
    int32_t next_of[LANES], end_of[LANES]; /* in the order: the most urgent that has not begun */
    bool due_known[LANES];                 /* since the rank last began something */
    double due[LANES];
    int64_t calls;
    int32_t later; /* calls of the next braid, kept until it is the turn of that */
} rank_t;

typedef struct event {
    double time;
    int32_t rank;
} event_t;

typedef struct ordered {
    double urgency;
    int32_t number; /* of a node or a pass */
} ordered_t;

struct dp__overlap_run {
    const dp__overlap_graph_t *graph;
    const dp__overlap_rules_t *rules;
    const double *urgency;
    int way; /* of the arcs; 1: reverse */
    rank_t *ranks;
    int32_t *waits;        /* [nodes] for how many others */
    double *ready, *start; /* [nodes] */
    int32_t *left;         /* [walks] its nodes that are to come */
    bool *begun;           /* [nodes] */
    bool *early;           /* [walks] it began before a more urgent pass */
    bool *late;            /* [walks] an I that hands on when its W ends */
    int32_t *braid;        /* [walks] the number of its braid on its rank */
    /* [ranks][LANES][room] nodes that wait for time alone, or for the rules */
    int32_t *list;
    int32_t room;
    int32_t *on_lane; /* nodes */
    double *work;     /* [ranks][LANES] sums of their costs */
    double limit;
    int32_t rank; /* that chooses, and the last time at which it has to look again */
    double looks;
    int32_t *queue;    /* [ranks][passes that take memory] by urgency */
    int32_t queued;    /* of a rank */
    int32_t *order;    /* [nodes] of all lanes, one after the other, by urgency */
    ordered_t *sorted; /* [nodes] */
    event_t *events;   /* a heap */
    int64_t nevents, events_room;
    double end;
    bool failed;
    dp__overlap_call_t *calls, *later; /* later: [ranks][laters] */
    int32_t laters;
};

/* ---- events ---- */

static bool is_before(event_t a, event_t b)
{
    return a.time < b.time || (a.time == b.time && a.rank < b.rank);
}

static bool make_event_room(dp__overlap_run_t *run)
{
    int64_t room = run->events_room > 0 ? 2 * run->events_room : 256;
    event_t *events = dp__calloc((size_t)room, sizeof(*events));

    if (events == NULL)
        return false;
    for (int64_t k = 0; k < run->nevents; k++)
        events[k] = run->events[k];
    dp__free(run->events);
    run->events = events;
    run->events_room = room;
    return true;
}

static void schedule_look(dp__overlap_run_t *run, int32_t rank, double time)
{
    event_t event = {time, rank};
    int64_t at = run->nevents;

    if (run->nevents == run->events_room && !make_event_room(run)) {
        run->failed = true;
        return;
    }
    run->nevents++;
    for (; at > 0 && is_before(event, run->events[(at - 1) / 2]); at = (at - 1) / 2)
        run->events[at] = run->events[(at - 1) / 2];
    run->events[at] = event;
}

static event_t take_event(dp__overlap_run_t *run)
{
    event_t first = run->events[0], last = run->events[--run->nevents];
    int64_t at = 0;

    for (int64_t child = 1; child < run->nevents; child = 2 * at + 1) {
        if (child + 1 < run->nevents && is_before(run->events[child + 1], run->events[child]))
            child++;
        if (!is_before(run->events[child], last))
            break;
        run->events[at] = run->events[child];
        at = child;
    }
    run->events[at] = last;
    return first;
}

/* ---- what a pass is to the run ---- */

static const dp__overlap_walk_t *walk_of(const dp__overlap_run_t *run, int32_t node)
{
    return &run->graph->walk[run->graph->node[node].walk];
}

static const dp__overlap_chunk_t *chunk_of(const dp__overlap_run_t *run, const dp__overlap_walk_t *walk)
{
    return &run->graph->problem->chunk[walk->chunk];
}

static int32_t input_of(const dp__overlap_run_t *run, const dp__overlap_walk_t *walk)
{
    return dp__overlap_walk_at(run->graph->problem, PASS_I, walk->chunk, walk->microbatch);
}

static bool opens_pass(const dp__overlap_run_t *run, int32_t node)
{
    const dp__overlap_walk_t *walk = walk_of(run, node);

    return node == walk->first + (run->way == 0 ? 0 : walk->count - 1);
}

/* F takes memory and W gives it back; from the end of the step, W takes it and F gives it back. F
 * alone does both. */
static int find_taker(const dp__overlap_run_t *run)
{
    return run->way == 0 ? PASS_F : run->graph->problem->kinds - 1;
}

static int find_giver(const dp__overlap_run_t *run)
{
    return run->way == 0 ? run->graph->problem->kinds - 1 : PASS_F;
}

static int32_t *list_of(const dp__overlap_run_t *run, int32_t rank, int lane)
{
    return &run->list[(size_t)(rank * LANES + lane) * (size_t)run->room];
}

static int phase_of(const dp__overlap_run_t *run, const rank_t *rank)
{
    if (rank->begun[PASS_I] == 0 || rank->begun[PASS_F] == 0)
        return run->way == 0 ? PHASE_FILL : PHASE_DRAIN;
    if (rank->begun[run->way == 0 ? PASS_F : PASS_I] == run->queued)
        return run->way == 0 ? PHASE_DRAIN : PHASE_FILL;
    return PHASE_STEADY;
}

/* Whether what is before the pass in its rank's queue leaves memory for it. */
static bool has_memory(dp__overlap_run_t *run, rank_t *rank, const dp__overlap_walk_t *walk)
{
    const dp__overlap_problem_t *p = run->graph->problem;
    const dp__overlap_chunk_t *chunk = chunk_of(run, walk);
    const int32_t *queue = &run->queue[(size_t)chunk->rank * (size_t)run->queued];
    double held = rank->held + chunk->share;

    while (run->left[queue[rank->head]] < run->graph->walk[queue[rank->head]].count)
        rank->head++;
    for (int32_t k = rank->head; held <= p->cap[chunk->rank] + 1e-9; k++) {
        const dp__overlap_walk_t *other = &run->graph->walk[queue[k]];

        if (other == walk)
            return true;
        if (run->left[queue[k]] == other->count)
            held += chunk_of(run, other)->share;
    }
    return false;
}

static bool is_closing(const rank_t *rank)
{
    return rank->braid.opened >= OPENED_MOST || rank->next.opened > 0;
}

/* One segment is left, on the other lane: time for the next braid. */
static bool is_closed_soon(const rank_t *rank, int lane)
{
    return rank->braid.left[lane] == 0 && rank->braid.left[LANES - 1 - lane] == 1;
}

/* A W whose I is open becomes one B with it. */
static bool is_of_open_input(const dp__overlap_run_t *run, const dp__overlap_walk_t *walk)
{
    return run->way == 0 && walk->kind == PASS_W && run->left[input_of(run, walk)] > 0;
}

static bool may_open(dp__overlap_run_t *run, rank_t *rank, int lane, const dp__overlap_walk_t *walk)
{
    if (walk->kind != PASS_W && rank->alive[walk->kind] >= run->rules->alive[phase_of(run, rank)])
        return false;
    if (is_of_open_input(run, walk))
        return run->braid[input_of(run, walk)] == rank->number || rank->braid.left[lane] == 0;
    if (run->way == 0 && is_closing(rank) && (rank->braid.left[lane] > 0 || rank->next.opened >= OPENED_MOST))
        return false;
    return walk->kind != find_taker(run) || has_memory(run, rank, walk);
}

/* A pass of the next braid, on a lane that has not done its part of this one. */
static bool is_too_soon(const dp__overlap_run_t *run, const rank_t *rank, int lane, int32_t node)
{
    return run->braid[run->graph->node[node].walk] != rank->number && rank->braid.left[lane] > 0;
}

/* Whether the rules keep a node from beginning, or its pass. */
static bool is_kept(dp__overlap_run_t *run, rank_t *rank, int lane, int32_t node)
{
    const dp__overlap_walk_t *walk = walk_of(run, node);
    int32_t opener = walk->first + (run->way == 0 ? 0 : walk->count - 1);

    if (run->left[walk - run->graph->walk] < walk->count)
        return is_too_soon(run, rank, lane, node);
    return !may_open(run, rank, run->graph->node[opener].lane, walk);
}

static double find_due(dp__overlap_run_t *run, rank_t *rank, int lane)
{
    int32_t at = rank->next_of[lane], most;

    while (at < rank->end_of[lane] && run->begun[run->order[at]])
        at++;
    rank->next_of[lane] = at;
    most = at + LOOKED_AT < rank->end_of[lane] ? at + LOOKED_AT : rank->end_of[lane];
    while (at < most && (run->begun[run->order[at]] || is_kept(run, rank, lane, run->order[at])))
        at++;
    return at < most ? run->urgency[run->order[at]] : INFINITY;
}

/* The most urgent of a lane that has not begun, and could but for its data. */
static double most_due(dp__overlap_run_t *run, rank_t *rank, int lane)
{
    if (!rank->due_known[lane])
        rank->due[lane] = find_due(run, rank, lane);
    rank->due_known[lane] = true;
    return rank->due[lane];
}

/* Whether the pass that frees the slot for the message of this one has begun: sends are made in
 * order, so one that waits for long holds up the others. */
static bool has_slot(const dp__overlap_run_t *run, const dp__overlap_walk_t *walk)
{
    const dp__overlap_problem_t *p = run->graph->problem;
    const dp__overlap_chunk_t *chunk = chunk_of(run, walk);
    int32_t to = walk->kind == PASS_F ? chunk->next : walk->kind == PASS_I ? chunk->prev : -1, before;

    if (run->way == 1 || to < 0 || walk->microbatch < p->slots || p->chunk[to].rank == chunk->rank)
        return true;
    before = dp__overlap_walk_at(p, walk->kind, to, walk->microbatch - p->slots);
    return run->left[before] < run->graph->walk[before].count;
}

static bool may_go(dp__overlap_run_t *run, rank_t *rank, int lane, int32_t node)
{
    const dp__overlap_walk_t *walk = walk_of(run, node);
    double ahead = run->urgency[node] - most_due(run, rank, lane);

    if (ahead > run->rules->ahead[phase_of(run, rank)] && !run->early[walk - run->graph->walk])
        return false;
    if (ahead > 0.0 && opens_pass(run, node) && !has_slot(run, walk))
        return false;
    if (opens_pass(run, node))
        return may_open(run, rank, lane, walk_of(run, node));
    return !is_too_soon(run, rank, lane, node);
}

/* ---- choice ---- */

/* The most urgent that may go and ends by `until`; -1: none. */
static int32_t most_urgent(dp__overlap_run_t *run, int32_t r, int lane, double now, double until)
{
    const int32_t *list = list_of(run, r, lane);
    int32_t best = -1;

    for (int32_t k = 0; k < run->ranks[r].known[lane]; k++) {
        int32_t node = list[k];

        if (run->ready[node] <= now && now + run->graph->node[node].cost <= until &&
            (best < 0 || run->urgency[node] < run->urgency[list[best]] ||
             (run->urgency[node] == run->urgency[list[best]] && node < list[best])) &&
            may_go(run, &run->ranks[r], lane, node))
            best = k;
    }
    return best;
}

/* Place in the list; -1: the lane waits. */
static int32_t choose_node(dp__overlap_run_t *run, int32_t r, int lane, double now)
{
    const int32_t *list = list_of(run, r, lane);
    int32_t best = most_urgent(run, r, lane, now, INFINITY);
    double patience, comes = INFINITY;

    if (best < 0)
        return best;
    patience = run->rules->patience[walk_of(run, list[best])->kind == PASS_W ? LANES : lane] *
               run->graph->node[list[best]].cost;
    for (int32_t k = 0; k < run->ranks[r].known[lane]; k++)
        if (run->ready[list[k]] > now && run->ready[list[k]] < comes && run->ready[list[k]] - now <= patience &&
            run->urgency[list[k]] < run->urgency[list[best]] &&
            now + run->graph->node[list[best]].cost > run->urgency[list[k]] + run->rules->gap &&
            may_go(run, &run->ranks[r], lane, list[k]))
            comes = run->ready[list[k]];
    return comes < now + run->graph->node[list[best]].cost ? most_urgent(run, r, lane, now, comes) : best;
}

/* ---- what is done ---- */

static void learn_ready_time(dp__overlap_run_t *run, int32_t node, double now)
{
    int lane = run->graph->node[node].lane;
    int32_t r = chunk_of(run, walk_of(run, node))->rank;
    rank_t *rank = &run->ranks[r];

    if (rank->known[lane] == run->room) {
        run->failed = true;
        return;
    }
    list_of(run, r, lane)[rank->known[lane]++] = node;
    if (r != run->rank || (run->ready[node] > now && run->ready[node] != run->looks))
        schedule_look(run, r, fmax(now, run->ready[node]));
}

static void put_call(dp__overlap_run_t *run, int32_t r, int32_t node, bool second)
{
    const dp__overlap_walk_t *walk = walk_of(run, node);
    dp__overlap_call_t call = {(uint8_t)walk->kind, run->graph->node[node].segment, walk->chunk, walk->microbatch};
    rank_t *rank = &run->ranks[r];

    if (run->calls == NULL)
        return;
    if (second)
        run->later[(size_t)r * (size_t)run->laters + (size_t)rank->later++] = call;
    else
        run->calls[rank->calls++] = call;
}

static void next_braid(dp__overlap_run_t *run, int32_t r)
{
    rank_t *rank = &run->ranks[r];

    for (int32_t k = 0; k < rank->later; k++)
        run->calls[rank->calls++] = run->later[(size_t)r * (size_t)run->laters + (size_t)k];
    rank->later = 0;
    rank->number++;
    rank->braid = rank->next;
    rank->next = (braid_t){.opened = 0};
}

static void open_walk(dp__overlap_run_t *run, rank_t *rank, int lane, int32_t node)
{
    const dp__overlap_walk_t *walk = walk_of(run, node);
    bool whole = is_of_open_input(run, walk);
    bool second = whole ? run->braid[input_of(run, walk)] != rank->number
                        : run->way == 0 && (is_closing(rank) || is_closed_soon(rank, lane));
    braid_t *braid = second ? &rank->next : &rank->braid;

    run->braid[walk - run->graph->walk] = rank->number + second;
    run->early[walk - run->graph->walk] = run->urgency[node] > most_due(run, rank, lane);
    braid->opened += !whole;
    braid->open++;
    for (int k = 0; k < LANES; k++)
        braid->left[k] += walk->on[k];
    if (walk->kind != PASS_W) {
        rank->alive[walk->kind]++;
        rank->begun[walk->kind]++;
    }
    if (walk->kind == find_taker(run)) {
        rank->held += chunk_of(run, walk)->share;
        rank->peak = fmax(rank->peak, rank->held);
    }
}

static void close_walk(dp__overlap_run_t *run, rank_t *rank, const dp__overlap_walk_t *walk)
{
    if (walk->kind != PASS_W)
        rank->alive[walk->kind]--;
    if (walk->kind == find_giver(run))
        rank->held -= chunk_of(run, walk)->share;
}

static void release_arc(dp__overlap_run_t *run, const dp__overlap_arc_t *arc, double end, double now)
{
    run->ready[arc->node] = fmax(run->ready[arc->node], end + arc->lag);
    if (--run->waits[arc->node] == 0)
        learn_ready_time(run, arc->node, now);
}

/* A B hands on behind the last segment of its I and W, where a program sends its message. */
static void lead_on(dp__overlap_run_t *run, int32_t node, double end, double now)
{
    const dp__overlap_graph_t *graph = run->graph;
    const dp__overlap_arc_t *arc = graph->arc[run->way];
    const int64_t *first = graph->first[run->way];
    const dp__overlap_walk_t *walk = walk_of(run, node), *other;
    int32_t last = -1; /* of an I that waits for its W, or has */

    if (run->way == 0 && walk->kind != PASS_F && node == walk->first + walk->count - 1) {
        other = &graph->walk[dp__overlap_walk_at(graph->problem, PASS_W, walk->chunk, walk->microbatch)];
        if (walk->kind == PASS_I && run->left[other - graph->walk] < other->count)
            last = node;
        if (walk->kind == PASS_W && run->late[input_of(run, walk)])
            last = graph->walk[input_of(run, walk)].first + graph->walk[input_of(run, walk)].count - 1;
    }
    for (int64_t k = first[node]; k < first[node + 1]; k++)
        if (last != node || walk_of(run, arc[k].node)->chunk == walk->chunk)
            release_arc(run, &arc[k], end, now);
    if (last == node)
        run->late[walk - graph->walk] = true;
    else if (last >= 0)
        for (int64_t k = first[last]; k < first[last + 1]; k++)
            if (walk_of(run, arc[k].node)->chunk != walk->chunk)
                release_arc(run, &arc[k], fmax(now, run->start[last] + graph->node[last].cost), now);
}

static void start_node(dp__overlap_run_t *run, int32_t r, int32_t node, double now)
{
    const dp__overlap_graph_t *graph = run->graph;
    int32_t number = graph->node[node].walk;
    int lane = graph->node[node].lane;
    rank_t *rank = &run->ranks[r];
    double end = now + graph->node[node].cost;
    bool second;
    braid_t *braid;

    if (opens_pass(run, node))
        open_walk(run, rank, lane, node);
    rank->due_known[LANE_COMPUTE] = rank->due_known[LANE_ALL_TO_ALL] = false;
    second = run->braid[number] != rank->number;
    braid = second ? &rank->next : &rank->braid;
    put_call(run, r, node, second);
    rank->idle[lane] += now - rank->free[lane];
    run->failed = run->failed || rank->idle[lane] + run->work[r * LANES + lane] > run->limit;
    run->start[node] = now;
    run->begun[node] = true;
    run->end = fmax(run->end, end);
    rank->free[lane] = end;
    schedule_look(run, r, end);
    run->looks = end;
    braid->left[lane]--;
    if (--run->left[number] == 0) {
        close_walk(run, rank, &graph->walk[number]);
        braid->open--;
        if (rank->braid.open == 0)
            next_braid(run, r);
    }
    lead_on(run, node, end, now);
}

/* Gives a lane that is free its next segment; false: it waits. */
static bool dispatch_lane(dp__overlap_run_t *run, int32_t r, int lane, double now)
{
    int32_t at = choose_node(run, r, lane, now), *list = list_of(run, r, lane), node;

    if (at < 0)
        return false;
    node = list[at];
    list[at] = list[--run->ranks[r].known[lane]];
    start_node(run, r, node, now);
    return true;
}

/* ---- the whole ---- */

static int by_urgency(const void *a, const void *b)
{
    const ordered_t *x = a, *y = b;

    return x->urgency != y->urgency ? (x->urgency < y->urgency ? -1 : 1) : x->number - y->number;
}

/* What takes memory, rank by rank. */
static void make_queues(dp__overlap_run_t *run)
{
    const dp__overlap_graph_t *graph = run->graph;
    const dp__overlap_problem_t *p = graph->problem;
    ordered_t *sorted = run->sorted;

    for (int32_t r = 0; r < p->ranks; r++) {
        int32_t first = dp__overlap_walk_at(p, find_taker(run), r * p->chunks, 0);

        for (int32_t k = 0; k < run->queued; k++) {
            const dp__overlap_walk_t *walk = &graph->walk[first + k];

            sorted[k] = (ordered_t){run->urgency[walk->first + (run->way == 0 ? 0 : walk->count - 1)], first + k};
        }
        qsort(sorted, (size_t)run->queued, sizeof(*sorted), by_urgency);
        for (int32_t k = 0; k < run->queued; k++)
            run->queue[(size_t)r * (size_t)run->queued + (size_t)k] = sorted[k].number;
    }
}

/* Of every lane. */
static void make_orders(dp__overlap_run_t *run)
{
    const dp__overlap_graph_t *graph = run->graph;
    int32_t ranks = graph->problem->ranks, at = 0;

    for (int32_t r = 0; r < ranks; r++)
        for (int lane = 0; lane < LANES; lane++) {
            run->ranks[r].next_of[lane] = at;
            at += run->on_lane[r * LANES + lane];
            run->ranks[r].end_of[lane] = run->ranks[r].next_of[lane];
        }
    for (int32_t n = 0; n < graph->nodes; n++) {
        rank_t *rank = &run->ranks[chunk_of(run, walk_of(run, n))->rank];

        run->sorted[rank->end_of[graph->node[n].lane]++] = (ordered_t){run->urgency[n], n};
    }
    for (int32_t r = 0; r < ranks; r++)
        for (int lane = 0; lane < LANES; lane++)
            qsort(run->sorted + run->ranks[r].next_of[lane], (size_t)run->on_lane[r * LANES + lane], sizeof(ordered_t),
                  by_urgency);
    for (int32_t n = 0; n < graph->nodes; n++)
        run->order[n] = run->sorted[n].number;
}

static void reset_run(dp__overlap_run_t *run)
{
    const dp__overlap_graph_t *graph = run->graph;
    const dp__overlap_problem_t *p = graph->problem;
    int64_t *waited = graph->first[1 - run->way], at = 0;

    run->nevents = 0;
    run->rank = -1;
    run->end = 0.0;
    run->failed = false;
    for (int32_t r = 0; r < p->ranks; r++) {
        run->ranks[r] = (rank_t){.calls = at};
        for (int32_t c = r * p->chunks; c < (r + 1) * p->chunks; c++)
            at += dp__overlap_calls(p, c);
    }
    make_queues(run);
    make_orders(run);
    for (int32_t w = 0; w < graph->walks; w++) {
        run->left[w] = graph->walk[w].count;
        run->late[w] = run->early[w] = false;
    }
    for (int32_t n = 0; n < graph->nodes; n++) {
        run->ready[n] = 0.0;
        run->begun[n] = false;
        run->waits[n] = (int32_t)(waited[n + 1] - waited[n]);
        if (run->waits[n] == 0)
            learn_ready_time(run, n, 0.0);
    }
}

static bool is_complete(const dp__overlap_run_t *run)
{
    for (int32_t w = 0; w < run->graph->walks; w++)
        if (run->left[w] > 0)
            return false;
    return !run->failed;
}

double dp__overlap_run(dp__overlap_run_t *run, const dp__overlap_rules_t *rules, const double *urgency, bool reverse,
                       double limit, dp__overlap_call_t *calls, int64_t *count_out)
{
    const dp__overlap_problem_t *p = run->graph->problem;

    run->rules = rules;
    run->urgency = urgency;
    run->way = reverse;
    run->calls = calls;
    run->limit = limit;
    reset_run(run);
    while (run->nevents > 0 && !run->failed) {
        event_t event = take_event(run);
        bool moved = true;

        run->rank = event.rank;
        run->looks = event.time;
        while (moved) {
            moved = false;
            for (int lane = 0; lane < LANES; lane++)
                if (run->ranks[event.rank].free[lane] <= event.time)
                    moved = dispatch_lane(run, event.rank, lane, event.time) || moved;
        }
    }
    for (int32_t r = 0, c = 0; count_out != NULL && r < p->ranks; r++) {
        count_out[r] = 0;
        for (int32_t k = 0; k < p->chunks; k++, c++)
            count_out[r] += dp__overlap_calls(p, c);
    }
    return is_complete(run) ? run->end : INFINITY;
}

const double *dp__overlap_run_starts(const dp__overlap_run_t *run)
{
    return run->start;
}

double dp__overlap_run_peak(const dp__overlap_run_t *run)
{
    double peak = 0.0;

    for (int32_t r = 0; r < run->graph->problem->ranks; r++)
        peak = fmax(peak, run->ranks[r].peak);
    return peak;
}

static void sum_up_run(dp__overlap_run_t *run)
{
    for (int32_t n = 0; n < run->graph->nodes; n++) {
        int32_t lane = chunk_of(run, walk_of(run, n))->rank * LANES + run->graph->node[n].lane;

        run->on_lane[lane]++;
        run->work[lane] += run->graph->node[n].cost;
    }
}

dp__overlap_run_t *dp__overlap_run_open(const dp__overlap_graph_t *graph)
{
    const dp__overlap_problem_t *p = graph->problem;
    dp__overlap_run_t *run = dp__calloc(1, sizeof(*run));
    size_t ranks = (size_t)p->ranks, nodes = (size_t)graph->nodes, walks = (size_t)graph->walks;
    int32_t longest = 0;

    if (run == NULL)
        return NULL;
    for (int32_t w = 0; w < graph->walks; w++)
        longest = graph->walk[w].count > longest ? graph->walk[w].count : longest;
    run->graph = graph;
    /* of each chunk what may begin and its open W; the open F and I, with a SHARED segment each */
    run->room = 4 * p->chunks + 3 * ALIVE_MOST;
    run->queued = p->chunks * p->microbatches;
    run->laters = OPENED_MOST * longest;
    if (!dp__arrays(DP__ARRAY(run->ranks, ranks), DP__ARRAY(run->waits, nodes), DP__ARRAY(run->ready, nodes),
                    DP__ARRAY(run->start, nodes), DP__ARRAY(run->left, walks), DP__ARRAY(run->early, walks),
                    DP__ARRAY(run->late, walks), DP__ARRAY(run->braid, walks),
                    DP__ARRAY(run->list, ranks * LANES * (size_t)run->room),
                    DP__ARRAY(run->queue, ranks * (size_t)run->queued), DP__ARRAY(run->sorted, nodes),
                    DP__ARRAY(run->order, nodes), DP__ARRAY(run->begun, nodes), DP__ARRAY(run->on_lane, ranks * LANES),
                    DP__ARRAY(run->work, ranks * LANES), DP__ARRAY(run->later, ranks * (size_t)run->laters))) {
        dp__free(run);
        return NULL;
    }
    sum_up_run(run);
    return run;
}

void dp__overlap_run_close(dp__overlap_run_t *run)
{
    if (run == NULL)
        return;
    dp__free(run->ranks);
    dp__free(run->events);
    dp__free(run);
}
