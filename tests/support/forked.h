/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * forked.h: ranks as forked processes of a test: each runs a body and tells the test how it went,
 * by a deadline. Afterwards nothing may be left: no process, no descriptor. */
#ifndef DP_TESTS_FORKED_H
#define DP_TESTS_FORKED_H

#include <dualpipe/group.h>
#include <dualpipe/plugin.h>

#include <arpa/inet.h>
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#undef fail /* Check's; a member of dp_host_t is called so */

#define FORKED_MAX 16

/* How one rank fared; in memory shared with the test. */
typedef struct forked_result {
    volatile int finished; /* 1: the body has returned */
    volatile int place;    /* where the body says it is, see forked_reach */
    dp_status_t status;
    int64_t end_ns;
    char message[1024];
} forked_result_t;

typedef struct forked {
    int32_t rank, size;
    int port;
    int argument;
    void *shared; /* forked_job.shared */
    forked_result_t *result;
} forked_t;
typedef dp_status_t (*forked_body_fn)(forked_t *self);

typedef struct forked_job {
    int32_t size;
    int port, listener;
    pid_t pids[FORKED_MAX];
    int waits[FORKED_MAX]; /* wait status; -1: still there */
    forked_result_t *results;
    void *shared; /* 64 KiB for the test */
    int descriptors;
} forked_job_t;

int64_t forked_now_ns(void);

/* Bounds are for an idle machine; sanitizers and valgrind tell how much slower they are. */
double forked_scale(void);

void forked_nap(int ms);

int forked_count_descriptors(void);

void forked_setenv_number(const char *name, int number);
/* One more entry of DUALPIPE_LAUNCH; the last one of a key counts. */
void forked_launch(const char *key, int number);
/* The socket that forked_start has handed to rank 0. */
int forked_listener(void);

/* A job without processes yet. Rank 0 will find a socket that listens already: no two tests meet at
 * a port. */
void forked_begin(forked_job_t *job, int32_t size);

/* Starts one process as rank `rank`. */
void forked_start(forked_job_t *job, int32_t rank, forked_body_fn body, int argument);

/* The test's own copy of the listening socket would keep the port alive. */
void forked_all_started(forked_job_t *job);

void forked_run(forked_job_t *job, int32_t size, forked_body_fn body, int argument);

void forked_reach(forked_t *self, int place);

/* Waits until rank `rank` has reached `place` in its body. */
void forked_await(forked_job_t *job, int32_t rank, int place, double seconds);

/* Waits for the end of all processes, `seconds` at most, and checks that nothing is left. */
void forked_finish(forked_job_t *job, double seconds);

void forked_end(forked_job_t *job);

void forked_expect(const forked_job_t *job, int32_t rank, dp_status_t status, const char *part);

void forked_expect_all(const forked_job_t *job, dp_status_t status, const char *part);

dp_group_options_t forked_options(const forked_t *self);

#endif
