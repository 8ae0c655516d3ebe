/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * list.c: runs all ranks in the order of time. A rank is looked at when something of its own ends or something for it
 * arrives; each of its lanes that is free then takes a segment, or waits.
 *
 * A pass that has begun is held up by nothing but its lanes: its memory, its slot and its work memory are there. So no
 * rules can stop a run halfway but by taking memory that passes further down the path need. */
#include "overlap/list.h"

#include <math.h>

#include "base/memory.h"

enum { ALIVE_MOST = 8, CANDIDATES = ALIVE_MOST + 3 * DP_MAX_CHUNKS };

/* What came of a micro-batch at a chunk; infinite: nothing yet. */
typedef struct record {
    double arrived[2];  /* what F and I take */
    double released[2]; /* its slot is free again */
    double began[PASS_KINDS];
    int32_t reached; /* lowest segment whose I was given to a lane, */
    double ends;     /* which ends then */
} record_t;

typedef struct alive {
    int kind;
    int32_t chunk, microbatch, segment;
    double ready;
} alive_t;

typedef struct rank {
    double lane_free[LANES];
    alive_t alive[ALIVE_MOST];
    int32_t nalive, of_kind[2];
    int32_t begun[2]; /* F and I */
    int32_t opened;   /* passes since none was open */
    int32_t head[2];  /* first of the listed passes that has not begun */
    double held, peak;
    int64_t ncalls;
} rank_t;

typedef struct chunk {
    int32_t next[2];    /* micro-batch of the next F and I */
    int32_t weight, at; /* of the next W, and which of its segments */
    int32_t held;
} chunk_t;

typedef struct event {
    double time;
    int32_t rank;
} event_t;

typedef struct candidate {
    double urgency, ready, cost; /* the lowest urgency goes first */
    enum { ALIVE, NEW_F, NEW_I, WEIGHT } what;
    int32_t at; /* in the list of the alive, or the chunk */
} candidate_t;

struct dp__overlap_run {
    const dp__overlap_problem_t *problem;
    const dp__overlap_rules_t *rules;
    rank_t *ranks;
    chunk_t *chunks;
    record_t *records;
    event_t *events; /* a heap */
    int64_t nevents, room;
    double end;
    bool failed;
    dp__overlap_call_t *calls;
};

/* ---- events ---- */

static bool before(event_t a, event_t b)
{
    return a.time < b.time || (a.time == b.time && a.rank < b.rank);
}

static bool make_room(dp__overlap_run_t *run)
{
    int64_t room = run->room > 0 ? 2 * run->room : 256;
    event_t *events = dp__calloc((size_t)room, sizeof(*events));

    if (events == NULL)
        return false;
    for (int64_t k = 0; k < run->nevents; k++)
        events[k] = run->events[k];
    dp__free(run->events);
    run->events = events;
    run->room = room;
    return true;
}

static void look_at(dp__overlap_run_t *run, int32_t rank, double time)
{
    event_t event = {time, rank};
    int64_t at = run->nevents;

    if (run->nevents == run->room && !make_room(run)) {
        run->failed = true;
        return;
    }
    run->nevents++;
    for (; at > 0 && before(event, run->events[(at - 1) / 2]); at = (at - 1) / 2)
        run->events[at] = run->events[(at - 1) / 2];
    run->events[at] = event;
}

static event_t take_event(dp__overlap_run_t *run)
{
    event_t first = run->events[0], last = run->events[--run->nevents];
    int64_t at = 0;

    for (int64_t child = 1; child < run->nevents; child = 2 * at + 1) {
        if (child + 1 < run->nevents && before(run->events[child + 1], run->events[child]))
            child++;
        if (!before(run->events[child], last))
            break;
        run->events[at] = run->events[child];
        at = child;
    }
    run->events[at] = last;
    return first;
}

/* ---- what may begin ---- */

static record_t *record_of(const dp__overlap_run_t *run, int32_t chunk, int32_t microbatch)
{
    return &run->records[dp__overlap_at(run->problem, chunk, microbatch)];
}

static int phase_of(const dp__overlap_run_t *run, const rank_t *rank)
{
    return rank->begun[PASS_I] == 0 || rank->begun[PASS_F] == run->problem->chunks * run->problem->microbatches;
}

static double urgency(const dp__overlap_run_t *run, int kind, int32_t chunk, int32_t microbatch)
{
    const dp__overlap_problem_t *p = run->problem;
    const dp__overlap_rules_t *rules = run->rules;
    const dp__overlap_chunk_t *c = &p->chunk[chunk];
    double shift = rules->shift[kind * p->ranks * p->chunks + chunk] + (kind == PASS_W ? rules->defer : 0.0);

    if (!rules->free)
        return p->place[kind][dp__overlap_at(p, chunk, microbatch)] +
               p->period * (shift + (kind == PASS_I ? rules->begin : 0.0));
    shift += (double)microbatch * p->paths;
    if (kind == PASS_F)
        return shift + c->stage * rules->forward;
    return shift + rules->begin + p->stages * rules->forward + (p->stages - 1 - c->stage) * rules->backward;
}

/* Chunks further down the path, and those of other paths, that hold nothing yet: they must be able to begin. */
static double kept_back(const dp__overlap_run_t *run, int32_t chunk)
{
    const dp__overlap_problem_t *p = run->problem;
    const dp__overlap_chunk_t *own = &p->chunk[chunk];
    double sum = 0.0;

    for (int32_t c = own->rank * p->chunks; c < (own->rank + 1) * p->chunks; c++)
        if (c != chunk && run->chunks[c].held == 0 && run->chunks[c].next[PASS_F] < p->microbatches &&
            (p->chunk[c].path != own->path || p->chunk[c].stage > own->stage))
            sum += p->chunk[c].share;
    return sum;
}

/* Whether a listed pass may begin now: those before it in the list that it overtakes keep their memory. */
static bool in_reach(dp__overlap_run_t *run, int kind, int32_t chunk, double *skipped)
{
    const dp__overlap_problem_t *p = run->problem;
    int32_t r = p->chunk[chunk].rank, count = p->chunks * p->microbatches;
    rank_t *rank = &run->ranks[r];
    const dp__overlap_pass_t *list = &p->listed[kind][(size_t)r * (size_t)count];
    int32_t left = run->rules->ahead[phase_of(run, rank)];

    while (rank->head[kind] < count &&
           list[rank->head[kind]].microbatch < run->chunks[list[rank->head[kind]].chunk].next[kind])
        rank->head[kind]++;
    for (int32_t k = rank->head[kind]; k < count && left >= 0; k++) {
        if (list[k].microbatch < run->chunks[list[k].chunk].next[kind])
            continue;
        if (list[k].chunk == chunk)
            return true;
        *skipped += p->chunk[list[k].chunk].share;
        left--;
    }
    return false;
}

static bool has_memory(dp__overlap_run_t *run, int32_t chunk)
{
    const dp__overlap_problem_t *p = run->problem;
    const rank_t *rank = &run->ranks[p->chunk[chunk].rank];
    double other = 0.0;

    if (run->rules->free)
        other = kept_back(run, chunk);
    else if (!in_reach(run, PASS_F, chunk, &other))
        return false;
    return rank->held + p->chunk[chunk].share + other <= p->cap + 1e-9;
}

/* When the slot for a message is free; the receiver gives it back when its pass ends. */
static double slot_free(const dp__overlap_run_t *run, int kind, int32_t chunk, int32_t microbatch)
{
    const dp__overlap_chunk_t *c = &run->problem->chunk[chunk];
    int32_t receiver = kind == PASS_F ? c->next : c->prev;

    if (receiver < 0 || microbatch < run->problem->slots)
        return 0.0;
    return record_of(run, receiver, microbatch - run->problem->slots)->released[kind];
}

static void add_new(dp__overlap_run_t *run, int kind, int32_t chunk, int lane, candidate_t *list, int *n)
{
    const dp__overlap_problem_t *p = run->problem;
    const dp__overlap_chunk_t *c = &p->chunk[chunk];
    const rank_t *rank = &run->ranks[c->rank];
    const dp__overlap_segment_t *first = &p->segment[kind == PASS_F ? c->first : c->first + c->count - 1];
    int32_t microbatch = run->chunks[chunk].next[kind];
    double ready, skipped = 0.0;

    if (microbatch == p->microbatches || first->lane != lane || rank->opened >= OPENED_MOST ||
        rank->of_kind[kind] >= run->rules->alive[phase_of(run, rank)])
        return;
    ready = fmax(record_of(run, chunk, microbatch)->arrived[kind], slot_free(run, kind, chunk, microbatch));
    if (ready == INFINITY ||
        !(kind == PASS_F ? has_memory(run, chunk) : run->rules->free || in_reach(run, kind, chunk, &skipped)))
        return;
    list[(*n)++] = (candidate_t){urgency(run, kind, chunk, microbatch), ready, first->cost[kind],
                                 kind == PASS_F ? NEW_F : NEW_I, chunk};
}

static void add_weight(const dp__overlap_run_t *run, int32_t chunk, candidate_t *list, int *n)
{
    const dp__overlap_problem_t *p = run->problem;
    const dp__overlap_chunk_t *c = &p->chunk[chunk];
    const chunk_t *state = &run->chunks[chunk];
    const record_t *record;
    int32_t segment;

    if (state->weight == p->microbatches || (state->at == 0 && run->ranks[c->rank].opened >= OPENED_MOST))
        return;
    record = record_of(run, chunk, state->weight);
    segment = p->weight[c->first_weight + state->at];
    if (record->reached > (state->at + 1 == c->weights ? 0 : segment)) /* the last W also ends the I */
        return;
    list[(*n)++] = (candidate_t){urgency(run, state->at > 0 ? PASS_I : PASS_W, chunk, state->weight),
                                 record->reached == segment || state->at + 1 == c->weights ? record->ends : 0.0,
                                 p->segment[c->first + segment].cost[PASS_W], WEIGHT, chunk};
}

static int find_candidates(dp__overlap_run_t *run, int32_t r, int lane, candidate_t *list)
{
    const dp__overlap_problem_t *p = run->problem;
    const rank_t *rank = &run->ranks[r];
    int n = 0;

    for (int32_t k = 0; k < rank->nalive; k++) {
        const alive_t *a = &rank->alive[k];
        const dp__overlap_segment_t *segment = &p->segment[p->chunk[a->chunk].first + a->segment];

        if (segment->lane == lane)
            list[n++] = (candidate_t){urgency(run, a->kind, a->chunk, a->microbatch), a->ready, segment->cost[a->kind],
                                      ALIVE, k};
    }
    for (int32_t c = r * p->chunks; c < (r + 1) * p->chunks; c++) {
        if (rank->nalive < ALIVE_MOST) {
            add_new(run, PASS_F, c, lane, list, &n);
            add_new(run, PASS_I, c, lane, list, &n);
        }
        if (lane == LANE_COMPUTE)
            add_weight(run, c, list, &n);
    }
    return n;
}

/* The most urgent that is there and ends by `until`; -1: none. */
static int most_urgent(const candidate_t *list, int n, double now, double until)
{
    int best = -1;

    for (int k = 0; k < n; k++)
        if (list[k].ready <= now && now + list[k].cost <= until && (best < 0 || list[k].urgency < list[best].urgency))
            best = k;
    return best;
}

/* -1: the lane waits. */
static int choose(const dp__overlap_run_t *run, int32_t r, int lane, const candidate_t *list, int n, double now)
{
    const dp__overlap_rules_t *rules = run->rules;
    int best = most_urgent(list, n, now, INFINITY);
    double patience, comes = INFINITY;

    if (best < 0)
        return best;
    for (int k = 0; k < n; k++)
        if (list[k].ready > now && list[k].urgency < list[best].urgency)
            comes = fmin(comes, list[k].ready);
    patience =
        list[best].what == WEIGHT ? rules->weight_patience : rules->patience[phase_of(run, &run->ranks[r])][lane];
    if (comes < now + list[best].cost && comes - now <= patience * list[best].cost)
        return most_urgent(list, n, now, comes);
    return best;
}

/* ---- what is done ---- */

static void keep_call(dp__overlap_run_t *run, int32_t r, int kind, int32_t chunk, int32_t microbatch, int32_t segment)
{
    rank_t *rank = &run->ranks[r];

    if (run->calls != NULL)
        run->calls[rank->ncalls] = (dp__overlap_call_t){(uint8_t)kind, (int16_t)segment, chunk, microbatch};
    rank->ncalls++;
}

static int32_t begin(dp__overlap_run_t *run, int kind, int32_t chunk, double now)
{
    const dp__overlap_chunk_t *c = &run->problem->chunk[chunk];
    rank_t *rank = &run->ranks[c->rank];
    int32_t microbatch = run->chunks[chunk].next[kind]++;

    rank->opened++;
    rank->begun[kind]++;
    rank->of_kind[kind]++;
    record_of(run, chunk, microbatch)->began[kind] = now;
    rank->alive[rank->nalive] = (alive_t){kind, chunk, microbatch, kind == PASS_F ? 0 : c->count - 1, now};
    if (kind == PASS_F) {
        run->chunks[chunk].held++;
        rank->held += c->share;
        rank->peak = fmax(rank->peak, rank->held);
    }
    return rank->nalive++;
}

/* What a pass made leaves then, and its input's slot is free. */
static void hand_on(dp__overlap_run_t *run, int kind, int32_t chunk, int32_t microbatch, double end)
{
    const dp__overlap_problem_t *p = run->problem;
    const dp__overlap_chunk_t *c = &p->chunk[chunk];
    int32_t next = kind == PASS_F ? c->next : c->prev, sender = kind == PASS_F ? c->prev : c->next;

    record_of(run, chunk, microbatch)->released[kind] = end;
    if (sender >= 0)
        look_at(run, p->chunk[sender].rank, end);
    if (next >= 0) {
        double arrives = end + (kind == PASS_F ? c->hop : c->back_hop);

        record_of(run, next, microbatch)->arrived[kind] = arrives;
        look_at(run, p->chunk[next].rank, arrives);
    } else if (kind == PASS_F) {
        record_of(run, chunk, microbatch)->arrived[PASS_I] = end;
    }
}

/* The last segment of a pass was given to a lane and ends then. An I whose W has begun is one B with it, and hands on
 * behind the last segment of both. */
static void finish(dp__overlap_run_t *run, rank_t *rank, int32_t at, double end)
{
    alive_t a = rank->alive[at];

    if (a.kind == PASS_F || run->chunks[a.chunk].weight != a.microbatch || run->chunks[a.chunk].at == 0)
        hand_on(run, a.kind, a.chunk, a.microbatch, end);
    rank->of_kind[a.kind]--;
    rank->alive[at] = rank->alive[--rank->nalive];
}

static void put_weight(dp__overlap_run_t *run, int32_t chunk, double now)
{
    const dp__overlap_problem_t *p = run->problem;
    const dp__overlap_chunk_t *c = &p->chunk[chunk];
    chunk_t *state = &run->chunks[chunk];
    rank_t *rank = &run->ranks[c->rank];
    record_t *record = record_of(run, chunk, state->weight);

    if (state->at == 0) {
        record->began[PASS_W] = now;
        rank->opened++;
    }
    keep_call(run, c->rank, PASS_W, chunk, state->weight, p->weight[c->first_weight + state->at]);
    if (++state->at < c->weights)
        return;
    if (record->released[PASS_I] == INFINITY)
        hand_on(run, PASS_I, chunk, state->weight, fmax(record->ends, now));
    state->at = 0;
    state->weight++;
    state->held--;
    rank->held -= c->share;
}

static void put_alive(dp__overlap_run_t *run, int32_t r, int32_t at, double end)
{
    rank_t *rank = &run->ranks[r];
    alive_t *a = &rank->alive[at];
    const dp__overlap_chunk_t *c = &run->problem->chunk[a->chunk];
    record_t *record = record_of(run, a->chunk, a->microbatch);

    keep_call(run, r, a->kind, a->chunk, a->microbatch, a->segment);
    a->ready = end;
    if (a->kind == PASS_I) {
        record->reached = a->segment;
        record->ends = end;
    }
    a->segment += a->kind == PASS_F ? 1 : -1;
    if (a->segment < 0 || a->segment == c->count)
        finish(run, rank, at, end);
}

static void close_braid(dp__overlap_run_t *run, int32_t r)
{
    const dp__overlap_problem_t *p = run->problem;

    if (run->ranks[r].nalive > 0)
        return;
    for (int32_t c = r * p->chunks; c < (r + 1) * p->chunks; c++)
        if (run->chunks[c].at > 0)
            return;
    run->ranks[r].opened = 0;
}

/* Gives a lane that is free its next segment; false: it waits. */
static bool dispatch(dp__overlap_run_t *run, int32_t r, int lane, double now)
{
    candidate_t list[CANDIDATES];
    int n = find_candidates(run, r, lane, list), chosen = choose(run, r, lane, list, n, now);
    const candidate_t *c = &list[chosen < 0 ? 0 : chosen];
    double end;

    if (chosen < 0)
        return false;
    end = now + c->cost;
    run->ranks[r].lane_free[lane] = end;
    run->end = fmax(run->end, end);
    look_at(run, r, end);
    if (c->what == WEIGHT)
        put_weight(run, c->at, now);
    else
        put_alive(run, r, c->what == ALIVE ? c->at : begin(run, c->what == NEW_F ? PASS_F : PASS_I, c->at, now), end);
    close_braid(run, r);
    return true;
}

/* ---- the whole ---- */

static void reset(dp__overlap_run_t *run)
{
    const dp__overlap_problem_t *p = run->problem;
    int32_t chunks = p->ranks * p->chunks;
    int64_t at = 0;

    run->nevents = 0;
    run->end = 0.0;
    for (size_t k = 0; k < (size_t)chunks * (size_t)p->microbatches; k++)
        run->records[k] =
            (record_t){.arrived = {INFINITY, INFINITY}, .released = {INFINITY, INFINITY}, .reached = INT32_MAX};
    for (int32_t r = 0; r < p->ranks; r++) {
        run->ranks[r] = (rank_t){.ncalls = at};
        for (int32_t c = r * p->chunks; c < (r + 1) * p->chunks; c++)
            at += (int64_t)(2 * p->chunk[c].count + p->chunk[c].weights) * p->microbatches;
    }
    for (int32_t c = 0; c < chunks; c++) {
        run->chunks[c] = (chunk_t){.next = {0, 0}};
        for (int32_t m = 0; m < p->microbatches && p->chunk[c].prev < 0; m++)
            record_of(run, c, m)->arrived[PASS_F] = 0.0;
        if (p->chunk[c].prev < 0)
            look_at(run, p->chunk[c].rank, 0.0);
    }
}

static bool complete(const dp__overlap_run_t *run)
{
    for (int32_t c = 0; c < run->problem->ranks * run->problem->chunks; c++)
        if (run->chunks[c].weight < run->problem->microbatches)
            return false;
    return !run->failed;
}

double dp__overlap_run(dp__overlap_run_t *run, const dp__overlap_rules_t *rules, dp__overlap_call_t *calls,
                       int64_t *count_out)
{
    run->rules = rules;
    run->calls = calls;
    reset(run);
    while (run->nevents > 0) {
        event_t event = take_event(run);
        bool moved = true;

        while (moved) {
            moved = false;
            for (int lane = 0; lane < LANES; lane++)
                if (run->ranks[event.rank].lane_free[lane] <= event.time)
                    moved = dispatch(run, event.rank, lane, event.time) || moved;
        }
    }
    for (int32_t r = 0, c = 0; count_out != NULL && r < run->problem->ranks; r++) {
        count_out[r] = 0;
        for (int32_t k = 0; k < run->problem->chunks; k++, c++)
            count_out[r] += (int64_t)(2 * run->problem->chunk[c].count + run->problem->chunk[c].weights) *
                            run->problem->microbatches;
    }
    return complete(run) ? run->end : INFINITY;
}

double dp__overlap_run_peak(const dp__overlap_run_t *run)
{
    double peak = 0.0;

    for (int32_t r = 0; r < run->problem->ranks; r++)
        peak = fmax(peak, run->ranks[r].peak);
    return peak;
}

void dp__overlap_run_places(const dp__overlap_run_t *run, dp__overlap_problem_t *problem)
{
    size_t passes = (size_t)problem->ranks * (size_t)problem->chunks * (size_t)problem->microbatches;

    for (int kind = 0; kind < PASS_KINDS; kind++)
        for (size_t k = 0; k < passes; k++)
            problem->place[kind][k] = run->records[k].began[kind];
}

dp__overlap_run_t *dp__overlap_run_open(const dp__overlap_problem_t *problem)
{
    dp__overlap_run_t *run = dp__calloc(1, sizeof(*run));
    size_t chunks = (size_t)problem->ranks * (size_t)problem->chunks;

    if (run == NULL)
        return NULL;
    run->problem = problem;
    run->ranks = dp__calloc((size_t)problem->ranks, sizeof(*run->ranks));
    run->chunks = dp__calloc(chunks, sizeof(*run->chunks));
    run->records = dp__calloc(chunks * (size_t)problem->microbatches, sizeof(*run->records));
    if (run->ranks == NULL || run->chunks == NULL || run->records == NULL) {
        dp__overlap_run_close(run);
        return NULL;
    }
    return run;
}

void dp__overlap_run_close(dp__overlap_run_t *run)
{
    if (run == NULL)
        return;
    dp__free(run->ranks);
    dp__free(run->chunks);
    dp__free(run->records);
    dp__free(run->events);
    dp__free(run);
}
