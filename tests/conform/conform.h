/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * conform.h: contract suites for plugins, written against the tables of include/dualpipe alone.
 *
 * A case is a function that every rank of a small job runs, with ranks as threads of one process or as processes. Each
 * case has a process group of its own and a deadline, so a crash or a hang is the failure of that case. */
#ifndef DP_TESTS_CONFORM_H
#define DP_TESTS_CONFORM_H

#include <dualpipe/comm.h>
#include <dualpipe/group.h>

#include <stdbool.h>

#define CONFORM_RANKS_MAX 8

typedef struct conform_job conform_job_t; /* what the ranks share besides their group: the verdict */

typedef enum conform_mode { CONFORM_THREADS, CONFORM_PROCESSES } conform_mode_t;

/* What one rank of a case gets. */
typedef struct conform {
    conform_job_t *job;
    dp_group_t *group;
    const dp_host_t *host; /* the group's, with the memory it gives out counted */
    int32_t rank, size;
    conform_mode_t mode;
    const char *plugin;           /* the name of the one on trial                       */
    const dp_device_vt_t *device; /* on trial, or what the comm plugin's streams run on */
    const dp_comm_vt_t *comm;     /* NULL in device suites                              */
} conform_t;

typedef struct conform_case {
    const char *name;
    void (*run)(conform_t *t);
    int32_t ranks;  /* 0: not a question of ranks: once, alone                          */
    int32_t victim; /* rank that is expected to die of SIGKILL; only with VICTIM        */
    uint32_t flags; /* the below                                                        */
} conform_case_t;

enum {
    CONFORM_VICTIM = 1u << 0,   /* a rank dies: processes only                                 */
    CONFORM_ALL_SIZES = 1u << 1 /* with 1, 2, ... `ranks` ranks                                */
};

typedef struct conform_suite {
    const char *name;            /* "device" */
    const char *interface;       /* what the plugin has to offer */
    const char *plugin;          /* tried when none is named     */
    const conform_case_t *cases; /* ends with name NULL    */
} conform_suite_t;

extern const conform_suite_t conform_device, conform_comm;

/* The program: NAME [--plugin NAME|PATH] [--device NAME|PATH] [--mode threads|processes] [CASE...]. */
int conform_main(const conform_suite_t *suite, int argc, char **argv);

/* Verdicts of the running case. The first failure counts; messages carry file and line. */
void conform_fail(conform_t *t, const char *file, int line, const char *what, const char *fmt, ...)
    DP_PRINTF(5, 6);
void conform_skip(conform_t *t, const char *fmt, ...) DP_PRINTF(2, 3);
bool conform_failed(const conform_t *t);
const char *conform_last_error(void);

/* Leaves the case when a condition does not hold; says what was seen. */
#define EXPECT(t, condition, ...)                                                                            \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            conform_fail((t), __FILE__, __LINE__, #condition, __VA_ARGS__);                                  \
            return;                                                                                          \
        }                                                                                                    \
    } while (0)
#define EXPECT_OK(t, call)                                                                                   \
    do {                                                                                                     \
        dp_status_t expect_status = (call);                                                                  \
        if (expect_status != DP_OK) {                                                                        \
            conform_fail((t), __FILE__, __LINE__, #call, "%s: %s", dp_status_name(expect_status),            \
                         conform_last_error());                                                              \
            return;                                                                                          \
        }                                                                                                    \
    } while (0)
#define EXPECT_STATUS(t, call, expected)                                                                     \
    do {                                                                                                     \
        dp_status_t expect_status = (call);                                                                  \
        if (expect_status != (expected)) {                                                                   \
            conform_fail((t), __FILE__, __LINE__, #call, "%s instead of " #expected ": %s",                  \
                         dp_status_name(expect_status), conform_last_error());                               \
            return;                                                                                          \
        }                                                                                                    \
    } while (0)

/* Ranks of the case meet; false when the case has failed elsewhere or the job is over. */
bool conform_meet(conform_t *t);
/* Ends the job as a launcher would that saw `status` happen. */
void conform_abort(conform_t *t, dp_status_t status, const char *message);
/* This process's threads and open descriptors, and the host's blocks that were not released. */
typedef struct conform_held {
    int threads, descriptors;
    int64_t blocks;
} conform_held_t;
conform_held_t conform_held(const conform_t *t);
/* How many entries a folder has. */
int conform_entries(const char *folder);

/* Small helpers of the suites. */
void conform_nap_ms(int ms);
uint64_t conform_random(uint64_t *state);

/* host.c, for the harness */
conform_job_t *conform_job_create(int32_t ranks);
void conform_job_free(conform_job_t *job);
bool conform_job_threads(conform_job_t *job);
bool conform_job_listen(conform_job_t *job);
void conform_job_started(conform_job_t *job);
bool conform_job_join(conform_job_t *job, int32_t rank, dp_group_t **group_out);
dp_group_t *conform_job_group(const conform_job_t *job, int32_t rank);
/* kind 0: failed, 1: skipped; the first one wins */
void conform_job_verdict(conform_job_t *job, int kind, const char *text);
const char *conform_job_text(const conform_job_t *job, int kind);
const dp_host_t *conform_host_create(const dp_host_t *inner);
void conform_host_free(const dp_host_t *host);
int64_t conform_host_blocks(const dp_host_t *host);

#endif
