/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * group.h: the ranks of a job: how they find each other, and how all of them learn that one has
 * died.
 *
 * The control plane is apart from the data plane: each rank holds one stream connection to rank 0.
 * A rank that dies is seen as end-of-file within milliseconds. All others then get the first cause:
 * who (rank, host, pid), what it was doing, and why. A flight recorder, memory that outlives the
 * rank, says what it was doing. Several ranks may live in one process as threads, each with a group
 * handle.
 *
 * Order at the end: dp_pipeline_close, then dp_group_leave.
 *
 * Since 0.2: dp_group_environment_t.again, .job; dp_group_straggler. */
#ifndef DUALPIPE_GROUP_H
#define DUALPIPE_GROUP_H

#include <dualpipe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_group dp_group_t;

/** Zero means: from the environment, or the default. */
typedef struct dp_group_options {
    uint32_t struct_size;
    /* who we are, and where rank 0 is */
    /* size 0: both from the environment (dp_group_environment); without any: 0 of 1 */
    int32_t rank, size;
    const char *address; /* where rank 0 listens; NULL: MASTER_ADDR, else 127.0.0.1 */
    int32_t port;        /* 0: MASTER_PORT, else made of what Open MPI or Slurm call the job */
    /* how long to wait */
    double join_seconds; /* 0: 60. Afterwards the missing ranks are named */
    /* 0: 30. A wait fails with DP_ERR_TIMEOUT, and names what it waited for, when for this long no
     * operation of any rank began or ended. Longer than the longest operation */
    double hang_seconds;
    /* "name=value\n" lines that must be equal on all ranks, else DP_ERR_MISMATCH with the field and
     * both values; NULL: none. Copied */
    const char *settings;
    int32_t insecure; /* 1: allow an address that is not loopback without a secret */
} dp_group_options_t;
enum { DP_GROUP_OPTIONS_MIN = DP_SIZE_TO(dp_group_options_t, insecure) };

/**
 * Joins the job. options NULL: all defaults. Rank 0 listens on loopback unless told otherwise. Both
 * sides of a connection prove that they hold the job's secret (HMAC-SHA256 over fresh nonces). It
 * comes from `dualpipe run` through a pipe, else from the file DUALPIPE_SECRET_FILE, mode 0600.
 * Without a secret an address beyond this host is refused, unless insecure. Times are multiplied by
 * DUALPIPE_TIMEOUT_SCALE, which is read now. While the job is well, no thread of the library reads
 * the environment, and the program may change it. docs/launch.md has the launchers, the variables,
 * and what every rank hears when something goes wrong. The caller leaves *group_out, which is NULL
 * after a failure. DP_ERR_RENDEZVOUS: lists the missing ranks. DP_ERR_MISMATCH, DP_ERR_SECURITY,
 * DP_ERR_PEER. [collective] [blocks]
 */
DP_API DP_CHECKED dp_status_t dp_group_join(const dp_group_options_t *options, dp_group_t **group_out);

/** Leaves the job, after dp_pipeline_close. In a job that is well it waits until the others leave
 *  too, so that nobody takes it for a death. NULL is allowed. [collective] [blocks] */
DP_API void dp_group_leave(dp_group_t *group);

/** The number of this rank, from 0. [any] */
DP_API int32_t dp_group_rank(const dp_group_t *group);
/** The number of ranks in the job. [any] */
DP_API int32_t dp_group_size(const dp_group_t *group);

/* ---- other ways to be a rank ---- */

/** What the environment says: `dualpipe run`, torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
 *  MASTER_PORT), Open MPI (OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK), MPICH (PMI_RANK, PMI_SIZE,
 *  MPI_LOCALRANKID) or Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID). */
typedef struct dp_group_environment_t {
    uint32_t struct_size;           /* set by the caller */
    int32_t rank, size, local_rank; /* 0, 1, 0 when alone */
    /* "dualpipe run", "torchrun", "Open MPI", "MPICH", "Slurm", "none" */
    const char *launcher;
    int32_t respawn; /* dead ranks that the launcher replaces (`--respawn N`), else 0 */
    int32_t again;   /* 1: this rank was started in place of one that died */
    /* of `dualpipe run`: the same on all ranks of the job, those started in place of others
     * included, and in no other job; else 0 */
    uint64_t job;
} dp_group_environment_t;
enum { DP_GROUP_ENVIRONMENT_MIN = DP_SIZE_TO(dp_group_environment_t, job) };
/** Reads the environment; joins nothing. DP_ERR_INVALID: a variable is set but makes no sense.
 * [any] */
DP_API DP_CHECKED dp_status_t dp_group_environment(dp_group_environment_t *environment_out);

/** A job of `size` ranks inside this process: groups_out[size], one for each thread, each left by
 *  dp_group_leave. The options' rank, size, address and port are ignored. [main] */
DP_API DP_CHECKED dp_status_t dp_group_local(int32_t size, const dp_group_options_t *options, dp_group_t **groups_out);

/* ---- between the ranks, at set-up and for reports; never in a step ---- */

/** The bytes of all ranks in rank order: all_out[size * bytes]. At most 64 KiB each. [collective]
 * [blocks] */
DP_API DP_CHECKED dp_status_t dp_group_all_gather(dp_group_t *group, const void *mine, size_t bytes, void *all_out);
/** Returns when all ranks have called it. [collective] [blocks] */
DP_API DP_CHECKED dp_status_t dp_group_barrier(dp_group_t *group);

/** A rank that is slow. The caller sets struct_size. */
typedef struct dp_straggler {
    uint32_t struct_size;
    int32_t rank;   /* -1: none, or this rank does not know */
    double times;   /* as long as its peers it takes for the same work, */
    int32_t steps;  /* in so many of the latest training steps */
    char name[128]; /* "rank 3 (pid 4711 on host7)" */
} dp_straggler_t;
enum { DP_STRAGGLER_MIN = DP_SIZE_TO(dp_straggler_t, name) };

/** Who takes longer than its peers for the same work, step after step. Rank 0 knows, and ranks that
 * are threads do. The work is an attention segment (DP_ROLE_ATTENTION), of which the shortest F, I
 * and W of each step count. So neither the cut of the layers, nor routing, nor what else a machine
 * does at times makes a straggler. Peers are the ranks at the same place of the other copies of the
 * model; of a single copy, all ranks. A straggler takes at least 1.15 times as long as they, in
 * three of four steps longer than they in three of four, and clearly longer than they differ.
 * `dualpipe status` says the same. DP_ERR_INVALID. [any] */
DP_API DP_CHECKED dp_status_t dp_group_straggler(dp_group_t *group, dp_straggler_t *straggler_out);

/* ---- the end of a job ---- */

/** Ends the job for all ranks with this first cause. Only the first call of the whole job counts;
 *  more calls change nothing. [any] */
DP_API void dp_group_abort(dp_group_t *group, dp_status_t status, const char *message);
/** Asks this rank to stop: its waits end with DP_ERR_INTERRUPTED, and those of the others follow.
 *  For signal handlers. [signal] */
DP_API void dp_group_interrupt(dp_group_t *group);
/** DP_OK while the job is well; else the first cause, its message in dp_last_error(). [any] */
DP_API DP_CHECKED dp_status_t dp_group_health(dp_group_t *group);

/** The services that plugins of this rank get (plugin.h). Owned by the group. [any] */
DP_API const dp_host_t *dp_group_host(const dp_group_t *group);

#ifdef __cplusplus
}
#endif
#endif
