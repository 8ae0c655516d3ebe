/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * group.h (private): one rank's handle of a job. What is the same for ranks as threads (local.c)
 * and ranks as processes (process.c) is here; how they reach each other is behind
 * dp__group_link_t. */
#ifndef DP_GROUP_GROUP_H
#define DP_GROUP_GROUP_H

#include "group/cause.h"
#include "group/kv.h"
#include "group/spans.h"
#include "group/steps.h"

#include <dualpipe/group.h>

#include <stdbool.h>
#include <sys/types.h>

#define DP__GATHER_BYTES (64u * 1024) /* most a rank may give to all_gather */
#define DP__HOST_BYTES   65

typedef struct dp__recorder dp__recorder_t;
typedef struct dp__process dp__process_t; /* process.h */

/* The collectives that ranks meet in; all of them must be in the same one. */
typedef enum dp__control_kind {
    DP__CONTROL_BARRIER = 1,
    DP__CONTROL_ALL_GATHER = 2,
    DP__CONTROL_COLLECT = 3,
    DP__CONTROL_RECORDER = 4,
    DP__CONTROL_LEAVE = 5,
    DP__CONTROL_COMMIT = 7, /* a step counts */
    /* what was put in the key-value store to open something has been read by all */
    DP__CONTROL_SETTLE = 6
} dp__control_kind_t;
const char *dp__control_name(uint32_t kind);
/* What a rank is in, or comes with. */
typedef struct dp__control {
    uint32_t kind, root;
    size_t bytes;
    int32_t rank; /* whose */
} dp__control_t;
/* Whether both are the same; if not, that is the job's cause. */
bool dp__control_match(dp__cause_t *cause, const dp__control_t *first, const dp__control_t *other);

/* One rank's part in leaving a collect: what came of it at the root. */
typedef struct dp__verdict {
    dp_status_t status;
    char message[236];
} dp__verdict_t;

/* How the ranks of a job reach each other. Sizes and keys have been checked. */
typedef struct dp__group_link {
    dp_status_t (*put)(dp_group_t *group, const char *key, const void *data, size_t bytes);
    dp_status_t (*get)(dp_group_t *group, const char *key, void *data, size_t bytes);
    /* everybody's `bytes` bytes, the same number on all ranks, in rank order */
    dp_status_t (*gather)(dp_group_t *group, dp__control_kind_t kind, const void *mine, size_t bytes, void *all_out);
    dp_status_t (*collect)(dp_group_t *group, int32_t root, const void *mine, size_t bytes, dp__receive_fn receive,
                           void *user);
    void (*abort)(dp_group_t *group, dp_status_t status, const char *message);
    void (*interrupt)(dp_group_t *group); /* async-signal-safe */
    dp_status_t (*recorder)(dp_group_t *group, uint32_t capacity, dp_span_t **records_out);
    void (*close_recorder)(dp_group_t *group, const dp_span_t *records);
    void (*name_spans)(dp_group_t *group, uint16_t name, const char *text);
    void (*describe)(const dp_group_t *group, int32_t rank, char *text, size_t bytes);
    /* when an operation of any rank began or ended, as far as is known */
    int64_t (*latest)(const dp_group_t *group);
    /* how the hosts of two ranks are told apart, for a message; NULL: they are on one host */
    const char *(*apart)(const dp_group_t *group, int32_t a, int32_t b);
    dp_status_t (*clock)(dp_group_t *group, int64_t since_ns, dp__clock_sample_t *samples_out, size_t *count_out);
    void (*tell_step)(dp_group_t *group, const dp__step_call_t *call);
    void (*straggler)(dp_group_t *group, dp_straggler_t *found); /* found: none yet */
    void (*leave)(dp_group_t *group);                            /* releases the group */
    /* After the end of the job: joins those that live on, and those that have come in dead ones'
     * places, as if for the first time. NULL: ranks cannot be replaced */
    dp_status_t (*reform)(dp_group_t *group);
    uint32_t (*held)(const dp_group_t *group, int32_t rank); /* what it has come with */
} dp__group_link_t;

struct dp_group {
    dp_host_t host;
    dp_host_sm_t sm;
    dp_host_limits_t limits;
    dp_host_places_t *places; /* places.c; NULL: nobody has asked */
    int32_t rank, size;
    int64_t hang_ns;
    dp__cause_t *cause;
    const dp__group_link_t *link;
    pid_t pid;         /* that joined */
    int32_t pipelines; /* open ones */
    bool left;         /* dp_group_leave was called before they were closed */
    bool pinned;       /* leaving says goodbye and frees nothing */
    /* atomic; 1: what is put in the key-value store goes when all ranks have opened */
    uint32_t opening;
    bool respawn; /* ranks that die are replaced */
    /* to the trainer: all control collectives are the engine's until it has opened again */
    bool closed;
    uint32_t epoch; /* how often this job has come together; 0: ranks that are threads */
    /* what this rank says of the state that it holds when it joins again, see reform.h */
    uint32_t holds;
    dp__progress_t progress; /* each member atomic; dp__group_progress writes it */
};

/* Fills what all kinds of groups share. */
void dp__group_init(dp_group_t *group, int32_t rank, int32_t size, int64_t hang_ns, dp__cause_t *cause,
                    const dp__group_link_t *link);
/* places.c: made when first asked for, NULL with a message when there is no memory for it. Made
 * anew, where it is, when ranks have come together again; and freed. */
const dp_host_places_t *dp__group_places(dp_group_t *group);
void dp__group_move_places(dp_group_t *group);
void dp__group_free_places(dp_group_t *group);
/* Waits as long as some rank makes progress: behind a long computation everybody waits.
 * DP_ERR_TIMEOUT when for hang_ns no operation of any rank, on whatever host, is known to have
 * begun or ended. */
dp_status_t dp__group_wait(const dp_group_t *group, dp_signal_t *signal, uint32_t target, int64_t hang_ns,
                           const char *what);
/* The same for a wait that makes progress only while `progress` is asked. timeout_ns < 0: the
 * group's hang_ns, as above. */
dp_status_t dp__group_poll(const dp_group_t *group, dp_poll_fn progress, void *arg, int64_t timeout_ns,
                           const char *what);
/* The options with defaults in the place of what is missing (struct_size, NULL), and the
 * environment as it is now. DP_ERR_INVALID. */
dp_status_t dp__group_options(const dp_group_options_t *given, dp_group_options_t *options_out);
/* A rank that is a separate process; size > 1. */
dp_status_t dp__process_join(const dp_group_options_t *options, dp_group_t **group_out);
/* "2, 5, 6 and 3 more" */
typedef struct dp__rank_list {
    int32_t count;
    char text[128];
} dp__rank_list_t;
void dp__rank_list_add(dp__rank_list_t *list, int32_t rank);
const char *dp__rank_list_text(dp__rank_list_t *list);

/* Behind what is in `text`, as far as it fits. */
void dp__append(char *text, size_t bytes, const char *fmt, ...) DP_PRINTF(3, 4);
/* This host's name, cut to fit, never empty. */
void dp__host_name(char name[DP__HOST_BYTES]);

#endif
