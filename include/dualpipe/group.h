/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * group.h: the ranks of a job: how they find each other, what they tell each other before any transport exists, and how
 * every one of them learns that one has died.
 *
 * The control plane is apart from the data plane: each rank holds one stream connection to rank 0. A rank that dies is
 * seen as end-of-file within milliseconds, and everyone gets the first cause: who (rank, host, pid), what it was doing
 * (from its flight recorder, memory that outlives it) and why. Several ranks may live in one process
 * as threads, each with a group handle. */
#ifndef DUALPIPE_GROUP_H
#define DUALPIPE_GROUP_H

#include <dualpipe/plugin.h>
#include <dualpipe/timeline.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_group dp_group_t;

/** Zero means: from the environment, or the default. */
typedef struct dp_group_options {
    uint32_t struct_size;
    int32_t rank, size;   /* size 0: both from the environment (see dp_group_environment); without any: 0 of 1 */
    const char *address;  /* where rank 0 listens; NULL: MASTER_ADDR, else 127.0.0.1 */
    int32_t port;         /* 0: MASTER_PORT, else made of what Open MPI or Slurm call the job */
    double join_seconds;  /* 0: 60. Afterwards the missing ranks are named */
    double hang_seconds;  /* 0: 30. A wait fails with DP_ERR_TIMEOUT, naming what it waited for, when for this long no
                                operation of any rank began or ended. Longer than the longest operation */
    const char *settings; /* "name=value\n" lines that must be equal on all ranks; a difference is DP_ERR_MISMATCH with
                                the field and both values; NULL: none. Copied */
    int32_t insecure;     /* 1: allow an address that is not loopback without a secret */
} dp_group_options_t;
#define DP_GROUP_OPTIONS_MIN DP_SIZE_TO(dp_group_options_t, insecure)

/** What the environment says: `dualpipe run`, torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), Open
 *  MPI (OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK), MPICH (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID) or Slurm (SLURM_PROCID,
 *  SLURM_NTASKS, SLURM_LOCALID). */
typedef struct dp_group_environment {
    uint32_t struct_size;           /* set by the caller */
    int32_t rank, size, local_rank; /* 0, 1, 0 when alone */
    const char *launcher;           /* "dualpipe run", "torchrun", "Open MPI", "MPICH", "Slurm", "none" */
    int32_t respawn;                /* how many dead ranks the launcher replaces (`dualpipe run --respawn`); else 0 */
} dp_group_environment_t;
#define DP_GROUP_ENVIRONMENT_MIN DP_SIZE_TO(dp_group_environment_t, launcher)
/** DP_ERR_INVALID when a variable is there but makes no sense. [any] */
DP_API dp_status_t dp_group_environment(dp_group_environment_t *environment_out);

/**
 * Joins the job. Times are multiplied by DUALPIPE_TIMEOUT_SCALE, which is looked at now: while the job is well no
 * thread of the library's own looks into the environment, and the program may change it. Rank 0 listens on loopback
 * unless told otherwise; both sides prove that they hold the job's secret (HMAC-SHA256 over fresh nonces;
 * a pipe from `dualpipe run`, else the file DUALPIPE_SECRET_FILE, mode 0600); an address beyond this host
 * is refused without one, unless insecure.
 * docs/launch.md has the launchers, the variables and what every rank hears when something goes wrong.
 * Errors: DP_ERR_RENDEZVOUS (lists the missing ranks), DP_ERR_MISMATCH, DP_ERR_SECURITY, DP_ERR_PEER. [collective]
 * [blocks]
 */
DP_API dp_status_t dp_group_join(const dp_group_options_t *options, dp_group_t **group_out);

/** A job of `size` ranks inside this process: groups_out[size], one for each thread. size 1 is the smallest job. The
 *  options' rank, size, address and port are not looked at. [main] */
DP_API dp_status_t dp_group_local(int32_t size, const dp_group_options_t *options, dp_group_t **groups_out);

/** Leaves. A healthy job: waits for the others to leave too, so that no one takes it for a death. NULL is allowed.
 *  [collective] [blocks] */
DP_API void dp_group_leave(dp_group_t *group);

DP_API int32_t dp_group_rank(const dp_group_t *group);
DP_API int32_t dp_group_size(const dp_group_t *group);
/** The services that plugins of this rank get. Owned by the group. [any] */
DP_API const dp_host_t *dp_group_host(const dp_group_t *group);

/** Everybody's bytes in rank order: all_out[size * bytes]. At most 64 KiB each. Set-up and reports, not steps.
 *  [collective] [blocks] */
DP_API dp_status_t dp_group_all_gather(dp_group_t *group, const void *mine, size_t bytes, void *all_out);
/** Rank `root` gets everyone's bytes, of any size, one after the other: receive(user, rank, data, bytes) is called
 *  there in rank order. [collective] [blocks] */
typedef dp_status_t (*dp_receive_fn)(void *user, int32_t rank, const void *data, size_t bytes);
DP_API dp_status_t dp_group_collect(dp_group_t *group, int32_t root, const void *mine, size_t bytes,
                                    dp_receive_fn receive, void *user);
DP_API dp_status_t dp_group_barrier(dp_group_t *group);

/** Ends the job for everybody with this first cause; only the first call of the whole job counts. Idempotent. [any] */
DP_API void dp_group_abort(dp_group_t *group, dp_status_t status, const char *message);
/** Asks this rank to stop: its waits end with DP_ERR_INTERRUPTED and the others' follow. For signal handlers.
 *  [signal] */
DP_API void dp_group_interrupt(dp_group_t *group);
/** DP_OK while the job is healthy; else the first cause, its message in dp_last_error(). [any] */
DP_API dp_status_t dp_group_health(dp_group_t *group);

/**
 * The flight recorder: `capacity` span records of this rank in memory that the other ranks of this
 * host have mapped as well, so that they can say what a dead rank was doing. The engine keeps the
 * spans of the running step here: a record with a start and no end is an operation in progress. May
 * be called again: a recorder lives until it is closed or the group is left, and the latest start
 * of all recorders counts. Ranks of other hosts hear what the rank is doing four times a second
 * through rank 0. [collective] [blocks]
 */
DP_API dp_status_t dp_group_recorder(dp_group_t *group, uint32_t capacity, dp_span_t **records_out);
/** Gives back what dp_group_recorder returned. NULL is allowed. [main] */
DP_API void dp_group_recorder_close(dp_group_t *group, const dp_span_t *records);
/** The text that dp_group_describe uses for spans of this rank whose `name` is this number (1 to 255; the numbers of
 *  dp_timeline_name; cut at 31 bytes). Without one it says "segment 3(F)". After dp_group_recorder. [main] */
DP_API void dp_group_recorder_name(dp_group_t *group, uint16_t name, const char *text);
/** One sentence on what rank `rank` is or was doing: "step 3: mlp(B) of stage 2, chunk 1, micro-batch 5"; of a rank of
 *  another host, on rank 0 (and of rank 0 everywhere), what it told last. "" when nothing is known. Cut at `bytes`.
 *  [any] */
DP_API void dp_group_describe(const dp_group_t *group, int32_t rank, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
