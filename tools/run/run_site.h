/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_site.h: the ranks of a job on one host: starting them, signals to them, their ends. */
#ifndef DP_TOOLS_RUN_SITE_H
#define DP_TOOLS_RUN_SITE_H

#include "run_job.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#define RUN_SECRET_BYTES 32

typedef struct run_site {
    int first, count, world; /* ranks first to first + count - 1 of `world` */
    int listener;            /* handed down to rank 0; -1: rank 0 is elsewhere */
    /* a file without a name, handed down to all: a line for each end (group/ends.h) */
    int ends;
    /* with respawn: [0] what the ranks tell us, [1] handed down to all */
    int tell[2];
    int port;
    char address[64]; /* where rank 0 listens */
    char name[33];    /* of the job */
    uint8_t secret[RUN_SECRET_BYTES];
    /* how many ranks may be started again; then rank 0's socket stays open here, whoever holds it
     * */
    int respawn;
    bool begun; /* the job ran before, on more hosts: all its ranks are started again */
    bool pipes; /* what the ranks print goes through the relay */
    char **program;
    pid_t *pids; /* [count] 0: not started, or gone */
    /* [count] with respawn: a file without a name for each rank, handed down to its processes: what
     * they put there outlives them (dp_pipeline_options_t.buddy). NULL: none */
    int *memory;
    int running;
    sigset_t old_mask;
    struct rlimit old_files;
    run_relay_t *relay;
} run_site_t;

/* Secret of a job, and the name of a new one. */
bool run_site_name(run_site_t *site);
/* Listens at `address` (numeric), at a port that the system chooses. */
bool run_site_listen(run_site_t *site);
/* For what the ranks print, also those that are started again. NULL: no memory. */
run_relay_t *run_site_relay(const run_site_t *site, run_relay_kind_t kind);
/* Before any thread is started: signals are blocked already, the ranks get the mask that we were
 * started with. */
bool run_site_open(run_site_t *site, run_relay_t *relay);
/* Starts all. false: *error_out is why the program cannot be executed, or 0, and it was said what
 * is wrong. */
bool run_site_start(run_site_t *site, int *error_out);
/* Starts the i-th rank here once more, after its end. false: it was said why. */
bool run_site_start_again(run_site_t *site, int i);
/* Lets the ranks here know of an end, which only we may have seen: of a rank that had not joined
 * yet. */
void run_site_tell_end(const run_site_t *site, const char *text);
/* The next thing that a rank tells us, of this job: a word and what run_verdict_hear takes. false:
 * there is none. */
bool run_site_hear(const run_site_t *site, char *text, size_t bytes);
/* No rank is started any more, and those that wait for one hear so. */
void run_site_close(run_site_t *site);
/* To all, those that are stopped included; SIGCONT: these alone go on. */
void run_site_kill(run_site_t *site, int number);
/* That process, if it is still the rank's, with all of its group. */
void run_site_kill_rank(run_site_t *site, int rank, pid_t pid);
/* Takes in the i-th rank here if it has ended, and with it its process group, while its number
 * cannot be another's. */
bool run_site_reap(run_site_t *site, int i, siginfo_t *info);
/* Takes in processes that ranks have started and left behind: they come to us when they end. */
void run_site_reap_orphans(const run_site_t *site);

#endif
