/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_verdict.c: decides which end was the first cause. */
#include "run_verdict.h"

#include <stdio.h>
#include <string.h>

#define SIGNAL_FACTOR 5 /* a signal asks for an orderly end: that takes longer than dying */
/* by convention, the exit code of a rank that ends because another one has died */
#define PEER_DIED   13
#define DECISION_NS 200000000

run_end_t run_end_of(const siginfo_t *info, int rank)
{
    return (run_end_t){.how = info->si_code == CLD_EXITED   ? RUN_EXITED
                              : info->si_code == CLD_DUMPED ? RUN_DUMPED
                                                            : RUN_KILLED,
                       .status = info->si_status,
                       .rank = rank,
                       .pid = info->si_pid};
}

void run_verdict_open(run_verdict_t *v, const run_options_t *options)
{
    *v = (run_verdict_t){.grace_seconds = options->grace_seconds,
                         .respawn = options->respawn,
                         .decide_ns = INT64_MAX,
                         .deadline_ns = INT64_MAX};
}

void run_end_write(const run_end_t *end, char *text, size_t bytes)
{
    char where[160] = "";

    if (end->host != NULL)
        snprintf(where, sizeof(where), " on %s", end->host);
    if (end->how == RUN_LOST)
        snprintf(text, bytes, "%s", end->why);
    else if (end->how == RUN_EXITED)
        snprintf(text, bytes, "rank %d (pid %d%s) exited with status %d", end->rank, (int)end->pid, where, end->status);
    else
        snprintf(text, bytes, "rank %d (pid %d%s) was ended by signal %d (%s)", end->rank, (int)end->pid, where,
                 end->status, strsignal(end->status));
}

bool run_verdict_replace(run_verdict_t *v, const run_end_t *end)
{
    if (end->how == RUN_EXITED || end->how == RUN_LOST || v->respawned == v->respawn || v->closing || v->signals > 0)
        return false;
    v->respawned++;
    return true;
}

void run_verdict_replaced(run_verdict_t *v, const run_end_t *end, pid_t pid)
{
    char text[512];

    run_end_write(end, text, sizeof(text));
    run_say("%s: started again as pid %d (%d of %d)", text, (int)pid, ++v->replaced, v->respawn);
}

bool run_verdict_close(run_verdict_t *v)
{
    bool first = !v->closing;

    v->closing = true;
    return first;
}

static int64_t from_now(double seconds)
{
    return run_now_ns() + (int64_t)(seconds * 1e9);
}

/* Others can notice a death and end themselves while the dead rank is still being taken apart by
 * the system. So the first end that is seen is not the first cause yet: for a moment, a better one
 * may come. */
static int weight(const run_end_t *end)
{
    if (end->how != RUN_EXITED)
        return 3;
    return end->status == 0 ? 0 : end->status == PEER_DIED ? 1 : 2;
}

void run_verdict_consider(run_verdict_t *v, const run_end_t *end)
{
    if (v->code != 0 || weight(end) == 0)
        return;
    if (!v->seen) {
        v->decide_ns = run_now_ns() + DECISION_NS;
        if (v->deadline_ns == INT64_MAX)
            v->deadline_ns = from_now(v->grace_seconds);
    } else if (weight(end) <= weight(&v->first)) {
        return;
    }
    v->seen = true;
    v->first = *end;
}

void run_verdict_decide(run_verdict_t *v)
{
    const run_end_t *end = &v->first;
    char text[512];

    if (!v->seen || v->code != 0)
        return;
    v->decide_ns = INT64_MAX;
    run_end_write(end, text, sizeof(text));
    v->code = end->how == RUN_EXITED ? end->status : end->how == RUN_LOST ? 1 : 128 + end->status;
    run_say("%s%s", text, end->how == RUN_DUMPED ? ", core dumped" : "");
}

void run_verdict_decide_in_time(run_verdict_t *v)
{
    if (run_now_ns() >= v->decide_ns)
        run_verdict_decide(v);
}

bool run_verdict_signal(run_verdict_t *v, int number)
{
    v->signals++;
    if (v->signals > 1) {
        v->deadline_ns = 0;
        return false;
    }
    run_say("%s: passed on to the ranks", strsignal(number));
    if (v->deadline_ns == INT64_MAX)
        v->deadline_ns = from_now(SIGNAL_FACTOR * v->grace_seconds);
    return true;
}

bool run_verdict_overdue(run_verdict_t *v, int running)
{
    if (v->killed || run_now_ns() < v->deadline_ns)
        return false;
    run_verdict_decide(v); /* who is killed by us is no cause */
    v->killed = true;
    run_say("%d rank%s did not end in time: killed", running, running == 1 ? "" : "s");
    return true;
}

int run_verdict_nap_ms(const run_verdict_t *v)
{
    int64_t until = !v->killed && v->deadline_ns < v->decide_ns ? v->deadline_ns : v->decide_ns;
    int64_t left = until - run_now_ns();

    return left <= 0 ? 0 : left < 1000000000 ? (int)(left / 1000000) + 1 : 1000;
}
