/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_job.h: the parts of `dualpipe run`.
 *
 * Two processes look after the ranks of a host, so that killing either one leaves nothing behind:
 * the one that was started waits and passes signals on (cmd_run.c); its child, the keeper, starts
 * the ranks and watches them (run_job.c).
 *
 * Over several hosts, the keeper (run_hosts.c) starts a command for each that reaches it (ssh), and
 * has it run `dualpipe run --agent`, whose keeper (run_agent.c) does there what it is told, over
 * the command's standard input. What the ranks print comes back by its standard output, news of
 * them by its standard error. When the connection ends, so do the ranks. */
#ifndef DP_TOOLS_RUN_JOB_H
#define DP_TOOLS_RUN_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether a line that a rank prints is passed on by us, with the rank in front. */
typedef enum run_prefix {
    RUN_PREFIX_UNSAID, /* of several ranks: always; of one: never */
    RUN_PREFIX_ALWAYS,
    RUN_PREFIX_NEVER /* ranks write for themselves */
} run_prefix_t;

typedef struct run_options {
    int ranks;
    run_prefix_t prefix;
    double grace_seconds;
    int respawn;    /* how many ranks that die are started again */
    bool verbose;   /* rank 0 says who talks to whom over what */
    char **program; /* argv of every rank */
    bool agent;     /* we are one; nothing else matters */
    /* the rest is for several hosts */
    char **hosts;     /* [host_count] names; NULL: this one */
    char *host_names; /* what they lie in */
    int host_count, ranks_per_host;
    const char *rsh;           /* what reaches a host, for the shell: "ssh -o BatchMode=yes" */
    const char *dualpipe_path; /* of the command there */
    const char *address;       /* of the first host, for the others; NULL: found out */
    const char *wdir;          /* where the ranks start; NULL: as here */
    const char **exported;     /* [export_count] NAME or NAME=VALUE */
    int export_count;
} run_options_t;

/* The signals that are passed on to the ranks. */
extern const int run_signals[];
extern const int run_signal_count;

/* ---- run_job.c ---- */
/* The keeper: runs the job and returns the exit code. life_fd: end-of-file when the parent has
 * died. */
int run_job(const run_options_t *options, int life_fd);
/* The signals above and SIGCHLD, which are blocked; -1: it was said why. */
int run_signal_fd(void);
/* As poll(), but a failure that will not go away is said and is the end: false. */
struct pollfd;
bool run_poll(struct pollfd *polls, int count, int timeout_ms);
/* The next signal from `fd`, 0 when there is none; -1: there will be none any more, which was
 * said. */
int run_next_signal(int fd);
/* The same for a keeper, which heeds its parent alone: who signals all processes of a job at once
 * (killall, a service manager) asks once, and its parent passes that on. */
int run_passed_signal(int fd);
/* What the ranks have printed last may still be on its way to someone who reads slowly: waits for
 * that. false: a signal, or the death of the parent, came first. */
bool run_await_relay(int done_fd, int signal_fd, int life_fd);

/* ---- run_hosts.c, run_agent.c: the same over several hosts ---- */
int run_hosts(const run_options_t *options, int life_fd);
int run_agent(int life_fd);

/* ---- run_relay.c: copies what the ranks print, line by line ---- */
typedef struct run_relay run_relay_t;
typedef enum run_relay_kind {
    RUN_RELAY_PREFIX, /* "[rank] " in front of each line */
    /* all to standard output, each line with a byte in front that says where it belongs */
    RUN_RELAY_TAG,
    RUN_RELAY_UNTAG /* lines of RUN_RELAY_TAG go where they belong, and others are nobody's */
} run_relay_kind_t;
/* For as many streams. NULL: no memory. */
run_relay_t *run_relay_new(int streams, run_relay_kind_t kind);
/* ALWAYS unless said otherwise. */
void run_relay_prefix(run_relay_t *relay, bool prefix);
/* More streams may be added until this is called with false, even when all so far have ended.
 * Before it is started. */
void run_relay_expect(run_relay_t *relay, bool more);
/* What comes from fd goes to the descriptor `to`. Takes fd over. */
void run_relay_add(run_relay_t *relay, int rank, int fd, int to);
/* The streams of a rank end with what is there: who holds them may never close them. */
void run_relay_lose(run_relay_t *relay, int rank);
/* Output was dropped, for want of space say. */
bool run_relay_lacks(run_relay_t *relay);
/* Starts its thread; done_fd gets end-of-file when everything was copied. false: no thread. */
bool run_relay_start(run_relay_t *relay, int *done_fd_out);
/* It was not started, or done_fd had end-of-file. NULL is allowed. */
void run_relay_free(run_relay_t *relay);

/* ---- run_reap.c: descendants ---- */
/* Kills every descendant of this process, whatever group or session it has moved to, and waits for
 * them; the process must be a child subreaper. Gives up after two seconds. */
void run_kill_descendants(void);

/* ---- run_text.c ---- */
int64_t run_now_ns(void);
/* What other programs said: without escape sequences for a terminal. */
void run_clean(char *text, size_t bytes);
/* One line to standard error, whole, with "dualpipe run: " in front, or what it was told to put
 * there. */
void run_say_as(const char *text);
void run_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
