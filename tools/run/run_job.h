/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_job.h: the parts of `dualpipe run`.
 *
 * Two processes look after the ranks, so that killing either one leaves nothing behind: the one the user started waits
 * and passes signals on (cmd_run.c); its child, the keeper, starts the ranks and watches them (run_job.c). */
#ifndef DP_TOOLS_RUN_JOB_H
#define DP_TOOLS_RUN_JOB_H

#include <stdbool.h>
#include <stdint.h>

typedef struct run_options {
    int ranks;
    bool prefix;
    double grace_seconds;
    char **program; /* argv of every rank */
} run_options_t;

/* The signals that are passed on to the ranks. */
extern const int run_signals[];
extern const int run_signal_count;

/* ---- run_job.c ---- */
/* The keeper: runs the job and returns the exit code. life_fd: end-of-file when the parent has died. */
int run_job(const run_options_t *options, int life_fd);

/* ---- run_relay.c: copies what the ranks print, line by line ---- */
typedef struct run_relay run_relay_t;
/* NULL: no memory. */
run_relay_t *run_relay_new(int ranks);
/* What comes from fd goes to the descriptor `to`. Takes fd over. */
void run_relay_add(run_relay_t *relay, int rank, int fd, int to);
/* Starts its thread; done_fd gets end-of-file when everything was copied. false: no thread. */
bool run_relay_start(run_relay_t *relay, int *done_fd_out);

/* ---- run_reap.c: descendants ---- */
/* Kills every descendant of this process, whatever group or session it has moved to, and waits for them; the process
 * must be a child subreaper. Gives up after two seconds. */
void run_kill_descendants(void);

/* ---- run_text.c ---- */
int64_t run_now_ns(void);
/* One line to standard error, in one piece. */
void run_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
