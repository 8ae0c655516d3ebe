/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cycle.c: the shortest cycle of a run that got stuck.
 *
 * Length counts waits between steps; the order of steps within a lane is free. A search from one
 * step keeps, per lane, the last step reached so far: every earlier unfinished step of that lane is
 * reached with it. */
#include "schedule/flow.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

/* Needs looked at, and lanes set back, before the search settles for what it has. */
#define SEARCH_BUDGET 20000000

typedef struct dp__hop {
    dp__need_t from, to; /* from waits for to */
    /* hop whose `to` lies at or after `from` on the same lane; -1: the first */
    int32_t parent;
    int32_t depth;
} dp__hop_t;

typedef struct dp__search {
    const dp__flow_t *flow;
    const int32_t *progress;
    int32_t *covered; /* [lanes] steps before this one are reached; starts at progress */
    dp__hop_t *hops;
    int32_t count, room;
    int64_t budget;
    dp__hop_t *best; /* [best_length] the cycle, first hop first */
    int32_t best_length;
} dp__search_t;

static bool keep_cycle(dp__search_t *s, int32_t last)
{
    int32_t length = s->hops[last].depth;
    dp__hop_t *cycle = dp__calloc((size_t)length, sizeof(*cycle));

    if (cycle == NULL)
        return false;
    for (int32_t h = last, i = length - 1; i >= 0; h = s->hops[h].parent, i--)
        cycle[i] = s->hops[h];
    dp__free(s->best);
    s->best = cycle;
    s->best_length = length;
    return true;
}

static bool add_hop(dp__search_t *s, dp__hop_t hop)
{
    if (s->count == s->room) {
        int32_t room = s->room > 0 ? 2 * s->room : 64;
        dp__hop_t *hops = dp__calloc((size_t)room, sizeof(*hops));

        if (hops == NULL)
            return false;
        if (s->count > 0)
            memcpy(hops, s->hops, (size_t)s->count * sizeof(*hops));
        dp__free(s->hops);
        s->hops = hops;
        s->room = room;
    }
    s->hops[s->count++] = hop;
    return true;
}

/* Adds the unfinished needs of a step. 1: back at the start, the cycle is kept; -1: no memory. */
static int expand_step(dp__search_t *s, dp__need_t start, dp__need_t step, int32_t parent)
{
    int32_t depth = parent < 0 ? 1 : s->hops[parent].depth + 1;
    dp__need_t need;

    for (int32_t k = 0; s->flow->need(s->flow->context, step.lane, step.position, k, &need); k++) {
        bool closes = need.lane == start.lane && need.position >= start.position;

        s->budget--;
        if (need.position < s->progress[need.lane] || (!closes && need.position < s->covered[need.lane]))
            continue;
        if (!add_hop(s, (dp__hop_t){step, need, parent, depth}))
            return -1;
        if (closes)
            return keep_cycle(s, s->count - 1) ? 1 : -1;
    }
    return 0;
}

/* Breadth first from one step. false: no memory. */
static bool search_from(dp__search_t *s, dp__need_t start)
{
    int found = expand_step(s, start, start, -1);

    for (int32_t h = 0; found == 0 && h < s->count && s->budget > 0; h++) {
        dp__need_t to = s->hops[h].to;

        if (s->hops[h].depth + 1 >= s->best_length)
            break;
        while (found == 0 && s->covered[to.lane] <= to.position) {
            dp__need_t step = {to.lane, s->covered[to.lane]++};

            found = expand_step(s, start, step, h);
        }
    }
    return found >= 0;
}

/* Some cycle: from stuck lane to the stuck lane that it waits for. false: no memory. */
static bool first_cycle(dp__search_t *s)
{
    int32_t lane = 0;
    int32_t start;

    while (s->progress[lane] == s->flow->length[lane])
        lane++;
    /* here: the lane's hop */
    memset(s->covered, 0xff, (size_t)s->flow->lanes * sizeof(*s->covered));
    while (s->covered[lane] < 0) {
        dp__hop_t hop = {.from = {lane, s->progress[lane]}, .parent = s->count - 1};

        for (int32_t k = 0; s->flow->need(s->flow->context, lane, hop.from.position, k, &hop.to); k++)
            if (hop.to.position >= s->progress[hop.to.lane])
                break;
        s->covered[lane] = s->count;
        if (!add_hop(s, hop))
            return false;
        lane = hop.to.lane;
    }
    start = s->covered[lane];
    s->hops[s->count - 1].depth = s->count - start;
    return keep_cycle(s, s->count - 1);
}

/* Shorter ones, from every unfinished step. false: no memory. */
static bool search_cycle(dp__search_t *s)
{
    if (!first_cycle(s))
        return false;
    for (int32_t lane = 0; lane < s->flow->lanes; lane++)
        for (int32_t position = s->progress[lane]; position < s->flow->length[lane]; position++) {
            if (s->best_length == 1 || s->budget <= 0)
                return true;
            memcpy(s->covered, s->progress, (size_t)s->flow->lanes * sizeof(*s->covered));
            s->count = 0;
            s->budget -= s->flow->lanes;
            if (!search_from(s, (dp__need_t){lane, position}))
                return false;
        }
    return true;
}

static void print_cycle(const dp__search_t *s, const char *what, char *text, size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, "%s: deadlock, a cycle of %d waits: ", what, s->best_length);
    char a[128], b[128];

    for (int32_t i = 0; i < s->best_length && used < bytes; i++) {
        const dp__hop_t *hop = &s->best[i];
        bool same = i > 0 && s->best[i - 1].to.position == hop->from.position;

        s->flow->name(s->flow->context, hop->from.lane, hop->from.position, a, sizeof(a));
        s->flow->name(s->flow->context, hop->to.lane, hop->to.position, b, sizeof(b));
        if (bytes - used < 300 && i + 1 < s->best_length) {
            snprintf(text + used, bytes - used, "; and %d more", s->best_length - i);
            return;
        }
        if (i == 0)
            used += (size_t)snprintf(text + used, bytes - used, "%s waits for %s", a, b);
        else if (same)
            used += (size_t)snprintf(text + used, bytes - used, ", which waits for %s", b);
        else
            used += (size_t)snprintf(text + used, bytes - used, ", which comes after %s, which waits for %s", a, b);
    }
    if (used < bytes && s->best_length > 0 && s->best[s->best_length - 1].to.position != s->best[0].from.position)
        snprintf(text + used, bytes - used, ", which comes after the first");
}

dp_status_t dp__flow_explain(const dp__flow_t *flow, const int32_t *progress, const char *what)
{
    dp__search_t s = {.flow = flow, .progress = progress, .budget = SEARCH_BUDGET};
    char text[1024];
    dp_status_t status = DP_ERR_NOMEM;

    s.covered = dp__calloc((size_t)flow->lanes, sizeof(*s.covered));
    if (s.covered == NULL || !search_cycle(&s)) {
        (void)dp_fail(status, "%s: deadlock, and no memory to find its cycle", what);
    } else {
        print_cycle(&s, what, text, sizeof(text));
        status = dp_fail(DP_ERR_REJECTED, "%s", text);
    }
    dp__free(s.covered);
    dp__free(s.hops);
    dp__free(s.best);
    return status;
}
