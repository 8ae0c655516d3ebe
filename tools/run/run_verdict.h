/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_verdict.h: which of the ends that are seen is the job's first cause, which rank is started
 * again instead and when, and how long the others have. */
#ifndef DP_TOOLS_RUN_VERDICT_H
#define DP_TOOLS_RUN_VERDICT_H

#include "run_job.h"

#include <signal.h>

typedef enum run_how { RUN_EXITED, RUN_KILLED, RUN_DUMPED, RUN_LOST } run_how_t;

/* An end: of a rank, or of the connection to a host with all that run there. */
typedef struct run_end {
    run_how_t how;
    int status; /* of exit; number of the signal */
    int rank;   /* RUN_LOST: the first of that host */
    pid_t pid;
    const char *host; /* NULL: this one */
    /* a sentence, which lives on; RUN_LOST: what happened, else why nobody takes its place, or
     * NULL */
    const char *why;
} run_end_t;

/* One process of a rank, and what others have told of it. */
typedef struct run_life {
    pid_t pid;
    bool joined, told, hung;
    int64_t born_ns, died_ns;
    char doing[240]; /* when it died; "": nobody knows */
} run_life_t;

/* How often a rank has died, and when it is started again. */
typedef struct run_rank {
    run_life_t lives[3]; /* the latest first */
    int idle;            /* deaths in a row without progress in between */
    bool progress;       /* the latest life has come further than all before */
    int furthest;        /* the latest step that one of its deaths was seen in */
    bool waits;          /* to be started again, after: */
    run_end_t end;
    char why[320];
} run_rank_t;

typedef struct run_verdict {
    double grace_seconds;
    int respawn, respawned; /* how many ranks may be started again, and how many were told to be */
    int replaced;           /* how many of them were said to have been */
    bool closing;           /* nobody is started any more */
    run_rank_t *ranks;      /* with respawn */
    int count, waiting;     /* ranks; those that wait to be started again */
    int code;               /* of the first rank that failed; 0: none so far */
    bool decided;           /* a rank has ended by itself, and not because others had */
    bool seen;              /* `first` is it, unless a better one comes until decide_ns */
    run_end_t first;
    int64_t decide_ns;
    int signals;         /* how many were passed on */
    int64_t deadline_ns; /* when the rest is killed; INT64_MAX: not yet */
    bool killed;
} run_verdict_t;

/* Of a process of this host, as waitid has it. */
run_end_t run_end_of(const siginfo_t *info, int rank);

/* "rank 3 (pid 17 on node2) was ended by signal 9 (Killed)" */
void run_end_write(const run_end_t *end, char *text, size_t bytes);

/* false: no memory, which was said. */
bool run_verdict_open(run_verdict_t *v, const run_options_t *options);
/* A rank that was ended by a signal may be started again, as long as nobody has ended by itself and
 * nobody has asked for the end. true: it counts as started again, and run_verdict_due says when.
 */
bool run_verdict_replace(run_verdict_t *v, const run_end_t *end);
/* What run_site_hear has heard. true: that process of that rank makes no progress, and is to be
 * killed, which was said. */
bool run_verdict_hear(run_verdict_t *v, const char *text, int *rank_out, pid_t *pid_out);
typedef enum run_due { RUN_DUE_NOTHING, RUN_DUE_START, RUN_DUE_END } run_due_t;
/* The next rank whose time has come, by its end: it is started again; or nobody takes its place.
 * At once after its first death; later, and later each time, where it makes no progress in
 * between. Who dies three times in the same operation is not started again. */
run_due_t run_verdict_due(run_verdict_t *v, run_end_t *end_out);
/* Says that it was. */
void run_verdict_replaced(run_verdict_t *v, const run_end_t *end, pid_t pid);
/* true, once: it is time to tell the ranks that nobody is started any more. */
bool run_verdict_close(run_verdict_t *v);
void run_verdict_consider(run_verdict_t *v, const run_end_t *end);
/* Says who it was; at once, or when it is time. */
void run_verdict_decide(run_verdict_t *v);
void run_verdict_decide_in_time(run_verdict_t *v);
/* A signal that asks for the end came. true: it is to be passed on; false: it is the second, and
 * all are killed. */
bool run_verdict_signal(run_verdict_t *v, int number);
/* true, once: the deadline has passed with `running` ranks left. */
bool run_verdict_overdue(run_verdict_t *v, int running);
/* How long to wait for something to happen, in ms. */
int run_verdict_nap_ms(const run_verdict_t *v);

#endif
