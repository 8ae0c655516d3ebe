/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * recover.c: the same pipeline after a death. Which step counts is decided by what the ranks hold
 * when they come together again; whoever does not hold that gets it from a rank that does, or has a
 * copy of it (buddy.c). */
#include "base/do.h"
#include "base/hash.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "group/reform.h"

#include <dualpipe/recover.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { WHY_BYTES = 1024, MOST_CORRUPT = 3 };

/* What a rank says once all are open again. */
typedef struct statement {
    uint32_t holds, step;
    uint32_t torn;   /* what it holds is not whole */
    int64_t start;   /* the trainer's own step, where nobody holds anything */
    uint64_t states; /* digest of what is registered */
    uint64_t wrong;  /* its memory has changed */
    uint32_t copies[DP__COPIES], copy_steps[DP__COPIES];
} statement_t;

/* ---- coming together ---- */

/* Streams of devices with separate memory belong to the trainer as well: there the first death
 * is the end. Memory that changes again and again does not become good. */
static bool can_go_on(const dp_pipeline_t *p)
{
    return p->host_memory && p->recovery.corrupt < MOST_CORRUPT && dp__group_survives(p->group);
}

/* Afterwards the group is healthy and the pipeline closed, up to what outlives an epoch. */
static dp_status_t reform(dp_pipeline_t *p)
{
    dp_status_t status;

    dp__engine_settle(p);
    if (p->run.stuck)
        return dp_fail(DP_ERR_TIMEOUT, "a kernel does not return: nothing can be recovered");
    dp__pipeline_suspend(p);
    status = dp__group_reform(p->group, p->recovery.holds);
    p->recovery.reformed = status >= 0;
    return status;
}

static void count_step(dp_pipeline_t *p)
{
    p->recovery.holds++;
    p->recovery.step = p->run.step;
    p->recovery.torn = dp__zero_is_on(p);
}

/* Some may have heard that the step counts, and have begun their update, when the rank died. */
static dp_status_t ask_the_others(dp_pipeline_t *p, dp_status_t status)
{
    const uint32_t step = p->run.step;
    char why[WHY_BYTES];

    snprintf(why, sizeof(why), "%s", dp_last_error());
    if (reform(p) < 0)
        return dp_group_health(p->group) < 0 ? dp_group_health(p->group) : status;
    for (int32_t r = 0; r < dp_group_size(p->group); r++)
        if (dp__group_held(p->group, r) == p->recovery.holds + 1) {
            p->run.step = step;
            count_step(p);
            dp__group_close(p->group, true);
            return DP_OK;
        }
    return dp_fail(status, "%s", why);
}

dp_status_t dp_pipeline_commit(dp_pipeline_t *p)
{
    dp_status_t status;

    DO(dp__pipeline_check(p, "dp_pipeline_commit"));
    if (p->recovery.holds == 0)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_commit: dp_pipeline_recover was not called before the first step");
    DO(dp__bits_check_step(p));
    status = dp__buddy_finish(p);
    if (status >= 0 && dp__group_respawns(p->group))
        status = dp__group_commit(p->group);
    if (status >= 0) {
        count_step(p);
        return DP_OK;
    }
    status = dp__engine_fail(p, status, "committing a step");
    return can_go_on(p) ? ask_the_others(p, status) : status;
}

/* ---- who gets what from whom ---- */

/* A rank with the same stages and experts as rank `of` that holds the state: its mirror first, then
 * those of other data groups; -1: none. */
static int32_t holder_of_stages(const dp_pipeline_t *p, const statement_t *all, int32_t of, uint32_t holds)
{
    const dp__grid_t *g = &p->grid;
    const int32_t i = of % g->pp, e = of / g->pp % g->ep, own = of / g->pp / g->ep;
    dp_place_t place;

    dp_schedule_place(p->schedule, i, 0, &place);
    for (int32_t k = 0; k < g->dp; k++) {
        const int32_t d = (own + k) % g->dp;
        const int32_t twin = dp__world_rank(g, i, e, d);
        const int32_t mirror = place.mirror_rank >= 0 ? dp__world_rank(g, place.mirror_rank, e, d) : -1;

        if (mirror >= 0 && mirror != of && all[mirror].holds == holds)
            return mirror;
        if (twin != of && all[twin].holds == holds)
            return twin;
    }
    return -1;
}

static int32_t holder_of_pipeline(const dp_pipeline_t *p, const statement_t *all, int32_t of, uint32_t holds)
{
    const int32_t first = of - of % p->grid.pp;

    for (int32_t r = first; r < first + p->grid.pp; r++)
        if (all[r].holds == holds)
            return r;
    return -1;
}

static bool of_pipelines(const dp_pipeline_t *p)
{
    for (int32_t i = 0; i < p->states.n; i++)
        if (p->states.at[i].scope == DP_STATE_PIPELINE)
            return true;
    return false;
}

static dp_status_t lost(dp_pipeline_t *p, const statement_t *all, int32_t rank, const char *what)
{
    p->recovery.holds = 0;
    dp__buddy_forget(p);
    if (all[rank].wrong != 0)
        return dp_fail(DP_ERR_LOST,
                       "memory of rank %d may have changed, and no rank is known to hold %s as it was: a checkpoint "
                       "has to be read on all ranks",
                       rank, what);
    return dp_fail(DP_ERR_LOST, "rank %d died, and no living rank holds %s: a checkpoint has to be read on all ranks",
                   rank, what);
}

/* DP_OK when each rank that holds nothing has one to get it from. */
static dp_status_t look_for_holders(dp_pipeline_t *p, const statement_t *all, uint32_t holds, bool apart)
{
    const bool copies = p->chunks[0].place.mirror_rank >= 0 || p->grid.dp > 1;

    for (int32_t r = 0; r < dp_group_size(p->group); r++) {
        if (all[r].holds != holds && dp__zero_is_on(p))
            return lost(p, all, r, "its shards of the optimizer's state (options.zero: a buddy alone has a copy)");
        if (all[r].holds != holds && holder_of_stages(p, all, r, holds) < 0)
            return lost(p, all, r,
                        all[r].wrong != 0 ? "its stages"
                        : copies          ? "its stages (their other copies have died as well)"
                                          : "its stages (in this placement a buddy alone has a copy)");
        if (all[r].holds != holds && apart && holder_of_pipeline(p, all, r, holds) < 0)
            return lost(p, all, r, "the state of its pipeline");
    }
    return DP_OK;
}

/* All ranks walk through the same moves in the same order. */
static dp_status_t give(dp_pipeline_t *p, const statement_t *all, uint32_t holds)
{
    const int32_t n = dp_group_size(p->group);
    const bool apart = of_pipelines(p);

    DO(look_for_holders(p, all, holds, apart));
    for (int32_t r = 0; r < n; r++) {
        const int32_t from = holder_of_stages(p, all, r, holds);
        const int32_t shared = apart ? holder_of_pipeline(p, all, r, holds) : from;

        if (all[r].holds == holds)
            continue;
        DO(dp__move_state(p, from, r, DP__MOVE_CHUNKS | (shared == from ? DP__MOVE_SHARED : 0)));
        if (shared != from)
            DO(dp__move_state(p, shared, r, DP__MOVE_SHARED));
    }
    return DP_OK;
}

/* ---- agreeing ---- */

static uint64_t digest_states(const dp_pipeline_t *p)
{
    uint64_t h = DP__HASH_BEGIN;

    for (int32_t i = 0; i < p->states.n; i++) {
        const dp_state_t *s = &p->states.at[i];
        const int64_t fields[] = {s->scope, s->dtype, s->scope == DP_STATE_JOB ? (int64_t)s->count : 0};

        if (!s->sharded)
            h = dp__hash_text(h, s->name);
        h = dp__hash_fields(h, fields, 3);
    }
    return h;
}

static dp_status_t compare_holds(const statement_t *all, int32_t n)
{
    for (int32_t r = 1; r < n; r++)
        if (all[r].states != all[0].states)
            return dp_fail(DP_ERR_MISMATCH,
                           "ranks 0 and %d have registered other states, or in another order: "
                           "dp_pipeline_register_state is for all ranks alike",
                           r);
    return DP_OK;
}

/* ---- what buddies have ---- */

/* What a rank has in its own memory: one that is new has what its trainer made. */
static uint32_t living_state(const statement_t *s)
{
    if (s->torn || s->wrong)
        return 0;
    return s->holds != 0 || s->start < 0 ? s->holds : (uint32_t)s->start + 1;
}

static bool has_state(const statement_t *s, uint32_t holds)
{
    return living_state(s) == holds || s->copies[0] == holds || s->copies[1] == holds;
}

static bool all_have(const statement_t *all, int32_t n, uint32_t holds)
{
    for (int32_t r = 0; r < n; r++)
        if (!has_state(&all[r], holds))
            return false;
    return true;
}

static uint32_t newest_of_all(const statement_t *all, int32_t n)
{
    const uint32_t known[] = {living_state(&all[0]), all[0].copies[0], all[0].copies[1]};
    uint32_t newest = 0;

    for (int i = 0; i < 3; i++)
        if (known[i] > newest && all_have(all, n, known[i]))
            newest = known[i];
    return newest;
}

/* The number of the step that follows a state. */
static uint32_t step_behind(const statement_t *all, int32_t n, uint32_t holds)
{
    uint32_t step = 0;

    for (int32_t r = 0; r < n; r++) {
        if (all[r].holds == holds && all[r].step > step)
            step = all[r].step;
        for (int i = 0; i < DP__COPIES; i++)
            if (all[r].copies[i] == holds && all[r].copy_steps[i] > step)
                step = all[r].copy_steps[i];
    }
    return step;
}

/* 0: nothing died, or there is no state that all have. */
static uint32_t buddies_state(const dp_pipeline_t *p, const statement_t *all, int32_t n)
{
    bool held = false;

    for (int32_t r = 0; r < n; r++)
        held = held || all[r].holds != 0 || all[r].copies[0] != 0 || all[r].copies[1] != 0;
    return held && dp__buddy_is_on(p) ? newest_of_all(all, n) : 0;
}

static dp_status_t go_back(dp_pipeline_t *p, const statement_t *all, int32_t n, uint32_t holds, int64_t *step)
{
    const statement_t *own = &all[dp_group_rank(p->group)];

    DO(dp__buddy_settle(p, holds, living_state(own) != holds));
    p->recovery.holds = holds;
    p->recovery.torn = false;
    p->run.step = p->recovery.step = step_behind(all, n, holds);
    *step = (int64_t)holds - 1;
    return DP_OK;
}

/* Nobody holds anything: all begin alike, or read what they begin with. */
static dp_status_t begin_recovery(dp_pipeline_t *p, const statement_t *all, int32_t n)
{
    dp__buddy_forget(p);
    p->recovery.torn = false;
    for (int32_t r = 0; r < n; r++)
        if (all[r].start < 0)
            return dp_fail(DP_ERR_LOST, "rank %d holds nothing yet: a checkpoint has to be read on all ranks", r);
    for (int32_t r = 1; r < n; r++)
        if (all[r].start != all[0].start)
            return dp_fail(DP_ERR_MISMATCH, "rank 0 begins with step %" PRId64 ", rank %d with step %" PRId64,
                           all[0].start, r, all[r].start);
    p->recovery.holds = (uint32_t)all[0].start + 1;
    return DP_OK;
}

static dp_status_t agree(dp_pipeline_t *p, const statement_t *all, int32_t n, int64_t *step)
{
    const statement_t *top = &all[0];
    uint32_t common;

    DO(compare_holds(all, n));
    common = buddies_state(p, all, n);
    if (common != 0)
        return go_back(p, all, n, common, step);
    for (int32_t r = 1; r < n; r++)
        if (all[r].holds > top->holds || (all[r].holds == top->holds && all[r].step > top->step))
            top = &all[r];
    p->run.step = p->recovery.step = top->step;
    if (top->holds == 0)
        return begin_recovery(p, all, n);
    DO(give(p, all, top->holds));
    p->recovery.holds = top->holds;
    *step = (int64_t)top->holds - 1;
    return DP_OK;
}

/* With all ranks open: whoever does not hold what counts gets it. */
static dp_status_t share(dp_pipeline_t *p, int64_t *step)
{
    statement_t mine = {.holds = p->recovery.holds,
                        .step = p->recovery.step,
                        .start = *step,
                        .states = digest_states(p),
                        .torn = p->recovery.torn,
                        .wrong = p->recovery.wrong};
    statement_t *all;
    dp_status_t status;

    DO(dp__buddy_open(p));
    if (p->recovery.wrong) /* copies were made of that memory */
        dp__buddy_forget(p);
    dp__buddy_list(p, mine.copies, mine.copy_steps);
    all = dp__ask_ranks(p, &mine, sizeof(mine), &status);
    if (all != NULL)
        status = agree(p, all, dp_group_size(p->group), step);
    dp__free(all);
    if (status >= 0)
        p->recovery.wrong = false;
    return status;
}

static dp_status_t open_again(dp_pipeline_t *p, int64_t *step)
{
    dp__group_close(p->group, false);
    if (!p->recovery.reformed || dp_group_health(p->group) < 0)
        DO(reform(p));
    DO(dp__pipeline_set_up(p));
    p->recovery.reformed = 0;
    p->run.failed = 0;
    p->run.round = p->run.rounds = 0;
    p->ungathered = false;
    return share(p, step);
}

dp_status_t dp_pipeline_recover(dp_pipeline_t *p, dp_status_t status, int64_t *step)
{
    char why[WHY_BYTES];

    snprintf(why, sizeof(why), "%s", status < 0 ? dp_last_error() : "");
    if (p == NULL || step == NULL || *step < -1 || *step >= UINT32_MAX)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_recover: pipeline or step is NULL, or step is no step");
    if (status >= 0 && (p->run.failed || p->recovery.holds != 0))
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_recover: it is called with DP_OK once, before the first step");
    if (*step < 0)
        p->recovery.holds = 0;
    if (*step < 0 && status < 0)
        dp__buddy_forget(p);
    if (status >= 0)
        status = share(p, step);
    while (status < 0 && status != DP_ERR_LOST && (p->recovery.reformed || can_go_on(p))) {
        if (!p->run.failed)
            (void)dp__engine_fail(p, DP_ERR_PEER, "recovering");
        status = open_again(p, step);
        why[0] = '\0';
    }
    if (status >= 0 || status == DP_ERR_LOST)
        return status;
    return why[0] != '\0' ? dp_fail(status, "%s", why) : dp__engine_fail(p, status, "recovering");
}
