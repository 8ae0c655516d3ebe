/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * conform.h: what the suites are made of, inside libdualpipe_conform.a, which is written against
 * the public headers alone; include/dualpipe/conform.h is what others see of it.
 *
 * A case is a function that every rank of a small job runs, with ranks as threads of one process or
 * as processes. Each case has its own process group and a deadline, so a crash or a hang is the
 * failure of that case. What a case prints is its failure too: plugins never print. */
#ifndef CONFORM_CONFORM_H
#define CONFORM_CONFORM_H

#include <dualpipe/comm.h>
#include <dualpipe/conform.h>
#include <dualpipe/group.h>

#include <signal.h>
#include <stdbool.h>

#define CONFORM_RANKS_MAX 8

/* what the ranks share besides their group: the verdict */
typedef struct conform_job conform_job_t;

typedef enum conform_mode { CONFORM_THREADS, CONFORM_PROCESSES } conform_mode_t;

/* What a call leaves of its thread as it was. */
typedef struct conform_thread {
    int rounding;
    uint32_t control; /* flush to zero, traps; 0 where that is not known */
    sigset_t mask;
} conform_thread_t;

/* What one rank of a case gets. */
typedef struct conform {
    conform_job_t *job;
    dp_group_t *group;
    const dp_host_t *host; /* the group's, with the memory it gives out counted */
    int32_t rank, size;
    conform_mode_t mode;
    const char *plugin; /* the name of the one on trial */
    const void *table;  /* on trial: the interface of the suite */
    /* on trial, or what the streams of the one on trial run on; NULL: not needed */
    const dp_device_vt_t *device;
    /* on trial, or the transport of the plugin on trial; NULL: not needed */
    const dp_comm_vt_t *comm;
    double hang_seconds; /* the job's own limit of a wait: that of the case, or longer */
    /* of what is on trial, where a suite has several; a case sets it */
    int variety;
    const char *settings;    /* of kernels; "": none */
    conform_thread_t thread; /* as the case began */
} conform_t;

typedef struct conform_case {
    const char *name;
    /* what is demanded, for writers of plugins: "A stream runs its work in order." */
    const char *sentence;
    void (*run)(conform_t *t);
    int32_t ranks;  /* 0: not a question of ranks: once, alone */
    int32_t victim; /* rank that is expected to die of SIGKILL; only with VICTIM */
    uint32_t flags; /* the below */
    /* the job's own limit of a wait; 0: 20. A few more with ranks that a launcher starts */
    double hang_seconds;
} conform_case_t;

enum {
    CONFORM_VICTIM = 1u << 0,       /* a rank dies: processes only */
    CONFORM_ALL_SIZES = 1u << 1,    /* with 1, 2, ... `ranks` ranks */
    CONFORM_ONLY_THREADS = 1u << 2, /* never as processes */
    /* a rank never opens: what a launcher makes of that is no matter of the plugin's */
    CONFORM_ABSENT = 1u << 3,
    /* compares with the formula of the header: left out where settings select another one */
    CONFORM_FORMULA = 1u << 4
};

/* In a table of cases: {CONFORM_CASE(function, 2, "What is demanded.")}, {CONFORM_CASE(...), .flags
 * = ...}, {0} */
#define CONFORM_CASE(function, nranks, text) .name = #function, .sentence = text, .run = function, .ranks = nranks

/* What a suite needs beside the plugin on trial. */
enum { CONFORM_NEEDS_DEVICE = 1u << 0, CONFORM_NEEDS_COMM = 1u << 1 };

typedef struct conform_suite {
    const char *name;                  /* "device" */
    const char *interface;             /* what the plugin has to offer */
    const char *plugin;                /* tried when none is named */
    size_t table_bytes;                /* the least its table has */
    uint32_t needs;                    /* CONFORM_NEEDS_ */
    const conform_case_t *cases;       /* ends with name NULL */
    const conform_case_t *const *more; /* further tables of cases, ends with NULL; or NULL */
    /* NULL, or whether settings may select another formula */
    bool (*own_formula)(const void *table);
} conform_suite_t;

/* Case i of a suite, from 0; NULL behind the last. */
const conform_case_t *conform_case_at(const conform_suite_t *suite, int i);

/* One suite for each interface; a new one joins the list in suites.c. */
extern const conform_suite_t conform_device, conform_comm, conform_profiler, conform_attention, conform_moe, conform_ep;
extern const conform_suite_t *const conform_suites[]; /* ends with NULL */
/* The suite of an interface, or NULL. */
const conform_suite_t *conform_suite_of(const char *interface);

/* Verdicts of the running case: the first failure counts. What they print is read by people who do
 * not have this source: say what was done, what the contract says and what came; name no variable
 * of yours. A case that skips closes first what it has open: threads of a device outlive the case
 * otherwise, and what they use does not. */
void conform_fail(conform_t *t, const char *file, int line, const char *fmt, ...) DP_PRINTF(4, 5);
void conform_skip(conform_t *t, const char *fmt, ...) DP_PRINTF(2, 3);
bool conform_failed(const conform_t *t);
/* Ends the process of the case, which fails by that. */
_Noreturn void conform_no_memory(void);
const char *conform_last_error(void);
/* Forgets the message of an earlier failed call, so that it is not taken for a later one's. */
void conform_forget_error(void);
/* A call that should have returned `expected`, with a message when that is a failure: fails the
 * case. `call` is source text, of which the name is shown. */
void conform_unexpected(conform_t *t, const char *file, int line, const char *call, dp_status_t came,
                        dp_status_t expected, const char *fmt, ...) DP_PRINTF(7, 8);

/* Leaves the case when the condition does not hold; the rest is the sentence. */
#define EXPECT(t, condition, ...)                                                                                      \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            conform_fail((t), __FILE__, __LINE__, __VA_ARGS__);                                                        \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
/* Leaves the case when a call that has to succeed does not: "send returned DP_ERR_X: what the
 * plugin said". */
#define EXPECT_OK(t, call) EXPECT_STATUS(t, call, DP_OK, "%s", "")
/* Leaves the case when a call does not return `expected`; the rest says what was done: "a send
 * before start". */
#define EXPECT_STATUS(t, call, expected, ...)                                                                          \
    do {                                                                                                               \
        dp_status_t expect_status;                                                                                     \
                                                                                                                       \
        conform_forget_error();                                                                                        \
        expect_status = (call);                                                                                        \
        if (!conform_thread_kept((t), __FILE__, __LINE__, #call))                                                      \
            return;                                                                                                    \
        if (expect_status != (expected) || ((expected) < 0 && conform_last_error()[0] == '\0')) {                      \
            conform_unexpected((t), __FILE__, __LINE__, #call, expect_status, (expected), __VA_ARGS__);                \
            return;                                                                                                    \
        }                                                                                                              \
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

/* state.c: the thread as it is; NULL, or in what `now` is another; whether a call left it as it
 * was, else the case fails. */
void conform_thread_look(conform_thread_t *out);
const char *conform_thread_other(const conform_thread_t *before, const conform_thread_t *now);
bool conform_thread_kept(conform_t *t, const char *file, int line, const char *call);
/* Remembers the process before a plugin is loaded; fails the case if it is another behind it. */
void conform_process_begin(void);
void conform_process_check(conform_t *t, bool launched);

/* Small helpers of the suites. */
void conform_nap_ms(int ms);
uint64_t conform_random(uint64_t *state);
/* Nanoseconds, multiplied by DUALPIPE_TIMEOUT_SCALE as all deadlines are. */
int64_t conform_scaled_ns(double seconds);
/* Ranks of a case tell each other something while the group's own calls would wait: flag i (below
 * 8) is raised once. */
void conform_raise(conform_t *t, int flag);
bool conform_raised(const conform_t *t, int flag);

/* ---- for the harness ---- */

/* job.c */
typedef struct conform_settings { /* of a trial; what a rank that a launcher started has to know */
    char interface[64], test[128], plugin[1024], device[1024], comm[1024], settings[256];
    int32_t ranks, mode;
    bool launched; /* by options.launch */
    double hang_seconds;
} conform_settings_t;

/* NULL: no memory. file NULL: for forked ranks only; else gets the
 * name of a file that other processes can open. */
conform_job_t *conform_job_create(const conform_settings_t *settings, char *file, size_t bytes);
conform_job_t *conform_job_open(const char *file);
void conform_job_free(conform_job_t *job);
conform_settings_t *conform_job_settings(conform_job_t *job);
/* kind 0: failed, 1: skipped; the first one wins */
void conform_job_verdict(conform_job_t *job, int kind, const char *text);
const char *conform_job_text(const conform_job_t *job, int kind);
/* Where ranks that are processes meet: rank 0 listens at once and its group inherits the socket;
 * the others wait for its number. No two cases meet at a port. 0: the case has failed. */
int32_t conform_job_port(conform_job_t *job, int32_t rank);
const dp_host_t *conform_host_create(const dp_host_t *inner);
void conform_host_free(const dp_host_t *host);
int64_t conform_host_blocks(const dp_host_t *host); /* held now */
int64_t conform_host_given(const dp_host_t *host);  /* asked for so far */

/* probe.c: loads a plugin in its own process and says what it is. */
enum { CONFORM_INTERFACES = 6 };
extern const char *const conform_interfaces[CONFORM_INTERFACES];
typedef struct conform_probe {
    dp_status_t status; /* < 0: cannot be used at all, `error` says why */
    char error[1024];
    char name[128], version[64], summary[256];
    int32_t abi_major, abi_minor;
    struct {
        int32_t offered;
        char error[512]; /* "": it can be used */
    } interface[CONFORM_INTERFACES];
} conform_probe_t;
void conform_probe(const char *plugin, conform_probe_t *probe_out);

/* harness.c */
dp_status_t conform_run(const conform_suite_t *suite, const dp_conform_options_t *options,
                        dp_conform_result_t *result_out);
/* This process as a rank that a launcher started; the exit status. suites: where the case may be,
 * ends with NULL. */
int conform_rank(const conform_suite_t *const *suites, const char *file);

/* program.c: dp_conform_main for custom suites (the list ends with NULL), all for one plugin. */
int conform_main(const conform_suite_t *const *suites, const char *plugin, int argc, char **argv);

#endif
