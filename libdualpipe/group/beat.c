/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * beat.c: signs of life between hosts. On one host ranks see each other's processes and flight
 * recorders. To a rank of another host rank 0 says four times a second that it lives and what it
 * is doing, and hears the same. A host from which nothing comes for DP__SILENCE_SECONDS is gone,
 * whatever its kernel still answers. Between ranks of one host nothing is sent. */
#include "group/process.h"

#include <endian.h>
#include <string.h>

#define INTERVAL_NS       250000000
#define RANK_NS           1000000 /* longer for each rank: rank 0 hears all of them */
#define MOST_INTERVAL_NS  1000000000
#define LEAST_INTERVAL_NS 50000000
/* our own: nobody can be blamed for what we did not hear then */
#define STANDSTILL_NS 2000000000

static int64_t interval_ns(const dp__process_t *p)
{
    int64_t most = INTERVAL_NS + p->group.size * RANK_NS, ns = p->group.hang_ns / 8;

    /* who waits for a rank two beats away has to hear that it makes progress */
    most = most < MOST_INTERVAL_NS ? most : MOST_INTERVAL_NS;
    return ns > most ? most : ns < LEAST_INTERVAL_NS ? LEAST_INTERVAL_NS : ns;
}

static bool is_member(const dp__process_t *p, const dp__connection_t *c)
{
    return !c->closing && c->phase >= DP__PHASE_WELCOME && c->phase != DP__PHASE_GONE &&
           (!dp__is_hub(p) || c->rank >= 0);
}

/* Until all are there, a rank does not know who is near. */
static bool is_far(const dp__process_t *p, const dp__connection_t *c)
{
    return dp__signal_value(&p->join.done) == 0 || !dp__is_near(p, dp__is_hub(p) ? c->rank : 0);
}

/* Those on rank 0's host hear from it whether somebody makes progress elsewhere. */
static bool has_news_for(const dp__process_t *p, const dp__connection_t *c)
{
    return is_member(p, c) && (is_far(p, c) || (dp__is_hub(p) && p->machines.count > 1));
}

/* ---- telling ---- */

/* What the other side of a connection is to know of us: to rank 0 a number that changes, from rank
 * 0 a time. */
static uint64_t number_for_others(const dp__process_t *p, int64_t now_ns)
{
    int64_t latest;

    if (!dp__is_hub(p))
        return (uint64_t)dp__recorder_latest(p->recorders, p->group.rank);
    latest = dp__news_latest(p);
    return latest == 0 ? DP__NOBODY_YET : latest > now_ns ? 0 : (uint64_t)(now_ns - latest);
}

static void tell_beat(dp__process_t *p, dp__connection_t *c, uint64_t number, bool open, const char *doing)
{
    dp__frame_t frame = {.type = DP__FRAME_BEAT, .to = dp__is_hub(p) ? c->rank : 0, .value = open};

    number = htole64(number);
    dp__send2(p, &frame, &number, sizeof(number), doing, strlen(doing));
}

static void tell_all(dp__process_t *p, int64_t now_ns)
{
    char doing[sizeof(((dp__news_t *)0)->doing)];
    bool any = false, open = false;
    uint64_t number = 0;

    for (size_t i = 0; i < p->connections.count; i++) {
        if (!has_news_for(p, p->connections.all[i]))
            continue;
        if (!any) {
            open = dp__recorder_describe(p->recorders, p->group.rank, doing, sizeof(doing));
            number = number_for_others(p, now_ns);
        }
        any = true;
        tell_beat(p, p->connections.all[i], number, open, doing);
        if (!dp__is_hub(p))
            dp__clock_ask(p);
    }
    p->beat.next_ns = any || dp__signal_value(&p->join.done) == 0 ? now_ns + interval_ns(p) : INT64_MAX;
}

/* ---- silence ---- */

static int64_t heard_of_host(const dp__process_t *p, int32_t rank)
{
    const int32_t machine = dp__peer(p, rank).machine;
    int64_t latest = 0;

    for (size_t i = 0; i < p->connections.count; i++) {
        const dp__connection_t *c = p->connections.all[i];

        if (c->rank >= 0 && dp__peer(p, c->rank).machine == machine && c->heard_ns > latest)
            latest = c->heard_ns;
    }
    return latest;
}

/* The ranks of all silent hosts, or of one. */
static void list_silent(const dp__process_t *p, int64_t before_ns, int32_t machine, dp__rank_list_t *ranks_out)
{
    for (int32_t r = 1; r < p->group.size; r++) {
        const dp__connection_t *c = p->contacts[r].connection;

        if (c != NULL && !dp__is_near(p, r) && c->heard_ns < before_ns &&
            (machine < 0 || dp__peer(p, r).machine == machine))
            dp__rank_list_add(ranks_out, r);
    }
}

static bool all_others_silent(const dp__process_t *p, int64_t before_ns, int32_t but)
{
    bool another = false;

    for (int32_t r = 1; r < p->group.size; r++) {
        const dp__connection_t *c = p->contacts[r].connection;

        if (c == NULL || dp__is_near(p, r))
            continue;
        if (c->heard_ns >= before_ns)
            return false;
        another = another || dp__peer(p, r).machine != dp__peer(p, but).machine;
    }
    return another;
}

static void end_for_silence(dp__process_t *p, int32_t rank, int64_t heard_ns, int64_t now_ns)
{
    int64_t before = now_ns - dp__scaled_ns(DP__SILENCE_SECONDS) / 2;
    dp__rank_list_t ranks = {0};
    char name[128], doing[320], self[128];
    bool alone = dp__is_hub(p) && all_others_silent(p, before, rank);

    dp__peer_name(p, rank, name, sizeof(name));
    dp__peer_name(p, p->group.rank, self, sizeof(self));
    dp__news_doing(p, rank, doing, sizeof(doing));
    if (dp__is_hub(p))
        list_silent(p, before, alone ? -1 : dp__peer(p, rank).machine, &ranks);
    else
        dp__rank_list_add(&ranks, 0);
    if (alone)
        dp__cause_set_final(
            &p->cause, DP_ERR_PEER,
            "%s is cut off, or all other hosts are: nothing has come from ranks %s for %.1f s; %s was last heard "
            "of%s",
            self, dp__rank_list_text(&ranks), (double)(now_ns - heard_ns) * 1e-9, name, doing);
    else
        dp__cause_set_final(&p->cause, DP_ERR_PEER, "%s is out of reach: nothing has come from %s%s%s for %.1f s%s%s",
                            name, ranks.count > 1 ? "that host (ranks " : "it",
                            ranks.count > 1 ? dp__rank_list_text(&ranks) : "", ranks.count > 1 ? ")" : "",
                            (double)(now_ns - heard_ns) * 1e-9, doing[0] != '\0' ? "; it was last heard of" : "",
                            doing);
}

static void look_for_silence(dp__process_t *p, int64_t now_ns)
{
    int64_t limit = dp__scaled_ns(DP__SILENCE_SECONDS);

    for (size_t i = 0; i < p->connections.count; i++) {
        const dp__connection_t *c = p->connections.all[i];
        int32_t rank = dp__is_hub(p) ? c->rank : 0;
        int64_t heard;

        if (!is_member(p, c) || !is_far(p, c) || now_ns - c->heard_ns < limit)
            continue;
        heard = dp__is_hub(p) ? heard_of_host(p, rank) : c->heard_ns;
        if (now_ns - heard < limit)
            continue; /* that process is stopped: somebody may be looking at it */
        end_for_silence(p, rank, heard, now_ns);
        return;
    }
}

void dp__beat_tick(dp__process_t *p, int64_t now_ns)
{
    if (p->over || dp__cause_is_set(&p->cause)) {
        p->beat.next_ns = INT64_MAX;
        return;
    }
    if (now_ns - p->beat.looked_ns > STANDSTILL_NS)
        for (size_t i = 0; i < p->connections.count; i++)
            p->connections.all[i]->heard_ns = now_ns;
    p->beat.looked_ns = now_ns;
    if (now_ns >= p->beat.next_ns)
        tell_all(p, now_ns);
    look_for_silence(p, now_ns);
}
