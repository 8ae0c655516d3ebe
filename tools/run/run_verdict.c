/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_verdict.c: decides which end was the first cause, and who is started again when. */
#include "run_verdict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* behind a signal ranks end in order, and some later than others */
#define SIGNAL_FACTOR 5
/* by convention, exit codes of a rank that ends because another one has died, or did not come */
#define PEER_DIED   13
#define NOBODY_CAME 12
#define DECISION_NS 200000000
/* between the deaths of a rank that makes no progress: twice as long each time */
#define FIRST_PAUSE_NS 100000000ll
#define MOST_PAUSE_NS  10000000000ll
#define MOST_DEATHS    3 /* in the same operation */

run_end_t run_end_of(const siginfo_t *info, int rank)
{
    return (run_end_t){.how = info->si_code == CLD_EXITED   ? RUN_EXITED
                              : info->si_code == CLD_DUMPED ? RUN_DUMPED
                                                            : RUN_KILLED,
                       .status = info->si_status,
                       .rank = rank,
                       .pid = info->si_pid};
}

bool run_verdict_open(run_verdict_t *v, const run_options_t *options)
{
    *v = (run_verdict_t){.grace_seconds = options->grace_seconds,
                         .respawn = options->respawn,
                         .count = options->ranks,
                         .decide_ns = INT64_MAX,
                         .deadline_ns = INT64_MAX};
    if (options->respawn == 0)
        return true;
    v->ranks = calloc((size_t)v->count, sizeof(v->ranks[0]));
    if (v->ranks == NULL)
        run_say("no memory for %d ranks", v->count);
    for (int r = 0; v->ranks != NULL && r < v->count; r++) {
        v->ranks[r].furthest = -1;
        v->ranks[r].lives[0].born_ns = run_now_ns();
    }
    return v->ranks != NULL;
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
        snprintf(text, bytes, "rank %d (pid %d%s) was ended by signal %d (%s)%s%s", end->rank, (int)end->pid, where,
                 end->status, strsignal(end->status), end->why != NULL ? "; " : "", end->why != NULL ? end->why : "");
}

/* ---- starting again ---- */

/* The process of a rank; a number that was not heard of before is that of its latest. NULL: it is
 * too long ago. */
static run_life_t *find_life(run_rank_t *rank, pid_t pid)
{
    for (int i = 0; i < MOST_DEATHS; i++)
        if (rank->lives[i].pid == pid)
            return &rank->lives[i];
    if (rank->lives[0].pid != 0)
        return NULL;
    rank->lives[0].pid = pid;
    return &rank->lives[0];
}

static void begin_life(run_rank_t *rank)
{
    memmove(&rank->lives[1], &rank->lives[0], (MOST_DEATHS - 1) * sizeof(rank->lives[0]));
    rank->lives[0] = (run_life_t){.born_ns = run_now_ns()};
    rank->progress = false;
}

bool run_verdict_hear(run_verdict_t *v, const char *text, int *rank_out, pid_t *pid_out)
{
    char word[16];
    const char *step;
    int r, pid, at = 0, number = -1;
    run_life_t *life;

    if (v->ranks == NULL || sscanf(text, "%15s %d %d %n", word, &r, &pid, &at) < 3 || r < 0 || r >= v->count ||
        at == 0 || (life = find_life(&v->ranks[r], pid)) == NULL)
        return false;
    *rank_out = r;
    *pid_out = pid;
    life->joined = true;
    if (strcmp(word, "hung") == 0 && !life->hung && life->died_ns == 0) {
        run_say("rank %d (pid %d) makes no progress and is killed: %s", r, pid, text + at);
        return life->hung = true;
    }
    if (strcmp(word, "died") != 0 || life->told)
        return false;
    life->told = true;
    snprintf(life->doing, sizeof(life->doing), "%s", text[at] != '\0' ? text + at : "before its first operation");
    step = strstr(life->doing, "step ");
    if (step != NULL && sscanf(step, "step %d", &number) == 1 && number > v->ranks[r].furthest) {
        v->ranks[r].furthest = number;
        v->ranks[r].progress |= life == &v->ranks[r].lives[0];
    }
    return false;
}

/* A process of which nobody has told anything may have come far: all ranks may have died at
 * once. */
static bool made_progress(const run_rank_t *rank)
{
    const run_life_t *life = &rank->lives[0];

    return rank->progress || (life->joined && !life->told && life->died_ns - life->born_ns >= MOST_PAUSE_NS);
}

static const char *death_place(const run_life_t *life)
{
    return life->told ? life->doing : life->joined ? "" : "before it had joined the others";
}

static bool dies_there_again(const run_rank_t *rank)
{
    const char *place = death_place(&rank->lives[0]);

    for (int i = 1; i < MOST_DEATHS; i++)
        if (rank->lives[i].pid == 0 || strcmp(death_place(&rank->lives[i]), place) != 0)
            return false;
    return place[0] != '\0' && !rank->progress;
}

static int64_t due_ns(const run_rank_t *rank)
{
    const int idle = made_progress(rank) || rank->lives[1].pid == 0 ? 0 : rank->idle + 1;
    int64_t pause = idle == 0 ? 0 : FIRST_PAUSE_NS;

    for (int i = 1; i < idle && pause < MOST_PAUSE_NS; i++)
        pause *= 2;
    return rank->lives[0].died_ns + (pause < MOST_PAUSE_NS ? pause : MOST_PAUSE_NS);
}

bool run_verdict_replace(run_verdict_t *v, const run_end_t *end)
{
    if (end->how == RUN_EXITED || end->how == RUN_LOST || v->respawned == v->respawn || v->closing || v->signals > 0)
        return false;
    (void)find_life(&v->ranks[end->rank], end->pid);
    v->ranks[end->rank].lives[0].died_ns = run_now_ns();
    v->ranks[end->rank].end = *end;
    v->ranks[end->rank].waits = true;
    v->respawned++;
    v->waiting++;
    return true;
}

run_due_t run_verdict_due(run_verdict_t *v, run_end_t *end_out)
{
    const bool over = v->closing || v->signals > 0;
    const int64_t now = run_now_ns();

    for (int r = 0; v->waiting > 0 && r < v->count; r++) {
        run_rank_t *rank = &v->ranks[r];

        if (!rank->waits || (!over && now < due_ns(rank)))
            continue;
        rank->waits = false;
        v->waiting--;
        *end_out = rank->end;
        if (over)
            return RUN_DUE_END;
        if (dies_there_again(rank)) {
            snprintf(rank->why, sizeof(rank->why), "it died %d times in the same operation: %s", MOST_DEATHS,
                     death_place(&rank->lives[0]));
            end_out->why = rank->why;
            return RUN_DUE_END;
        }
        rank->idle = made_progress(rank) || rank->lives[1].pid == 0 ? 0 : rank->idle + 1;
        begin_life(rank);
        return RUN_DUE_START;
    }
    return RUN_DUE_NOTHING;
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

/* What ranks say of a host that is lost may come before that is known. */
static bool is_decision(const run_verdict_t *v, const run_end_t *end)
{
    if (end->how != RUN_EXITED || end->status == PEER_DIED || end->status == NOBODY_CAME)
        return false;
    return end->status == 0 || !v->seen || v->first.how != RUN_LOST;
}

void run_verdict_consider(run_verdict_t *v, const run_end_t *end)
{
    v->decided |= is_decision(v, end);
    if (v->code != 0 || weight(end) == 0)
        return;
    if (!v->seen) {
        v->decide_ns = run_now_ns() + DECISION_NS;
        if (v->deadline_ns == INT64_MAX)
            v->deadline_ns = from_now((v->signals > 0 ? SIGNAL_FACTOR : 1) * v->grace_seconds);
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
    /* a step and a save take as long as they do, and a batch system sets the limit */
    run_say("%s: passed on to the ranks; waiting for them to end (a second signal kills them)", strsignal(number));
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
    int64_t left;

    for (int r = 0; v->waiting > 0 && r < v->count; r++)
        if (v->ranks[r].waits && due_ns(&v->ranks[r]) < until)
            until = due_ns(&v->ranks[r]);
    left = until - run_now_ns();

    return left <= 0 ? 0 : left < 1000000000 ? (int)(left / 1000000) + 1 : 1000;
}
