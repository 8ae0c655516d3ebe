/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm.h: interface "dp.comm/1": transfers between the ranks of one group.
 *
 * One instance serves one group of ranks (a pipeline, an expert group, a data group). Three kinds of traffic, each
 * with everything it needs set up before the first step:
 *
 *   channel    one directed edge of the pipeline program: tagged messages in order, K slots at the receiver, credits.
 *              send k waits until slot k mod K was released; the receiver reads the slot in place and releases it.
 *   exchange   all-to-all-v with counts that live on the device and a fixed capacity per pair of ranks.
 *   reduce     sums over the group, added in rank order 0, 1, ..., n-1 for every element, so that the result has the
 *              same bits on every rank, with every backend and at every moment.
 *
 * Backends with DP_COMM_CAP_ONE_SIDED write into the peer's memory: a recv costs nothing until the data are needed, and
 * waits for nothing but its own message. The others (NCCL, MPI) complete transfers only when both sides are in a group;
 * the engine then brackets the transfers of one group of the program with group_begin and group_end. A group goes to or
 * comes from one peer and has at most one message of a channel; the groups of each peer and direction have a stream of their
 * own, which no other peer or direction may hold up. Groups of one pair of ranks and direction stand in the same order on
 * both sides, and all groups of all ranks in an order that lets a rank do one after the other.
 *
 * Faults: whatever a stream finds out later is reported by the device's query_error; waits end with the job's first
 * cause when a rank dies. After a failure only abort and close are legal.
 * Source of the transport contract: docs/architecture.md, "Why nothing deadlocks". */
#ifndef DUALPIPE_COMM_H
#define DUALPIPE_COMM_H

#include <dualpipe/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_comm dp_comm_t;
typedef struct dp_channel_end dp_channel_end_t; /* one rank's end of a channel */
typedef struct dp_exchange dp_exchange_t;

enum {
    DP_COMM_CAP_ONE_SIDED = 1u << 0, /* sends complete without the receiver's help, as long as there is a credit  */
    DP_COMM_CAP_CAPTURE = 1u << 1,   /* transfers may be captured into a graph                                    */
    DP_COMM_CAP_HOST_INLINE = 1u << 2 /* channels may be used on a compute lane without hurting it (host memory)  */
};

typedef struct dp_comm_config {
    uint32_t struct_size;
    const char *name;              /* unique in the job, the same on all members: "pipeline.0"; keys of the boot service */
    int32_t rank, nranks;          /* our place in this group                                                            */
    const int32_t *world_ranks;    /* [nranks] the members' ranks in the job, for messages; borrowed during open          */
    const dp_device_vt_t *device_vt; /* the device whose streams the calls name; outlives the instance                   */
    dp_device_t *device;
    size_t reduce_bytes;           /* staging for all_reduce; 0: the backend's choice                                    */
} dp_comm_config_t;

/** Both ends describe a channel the same way, but for `sender`. */
typedef struct dp_channel_config {
    uint32_t struct_size;
    uint32_t id;       /* unique per instance and pair of ranks; both ends give the same                    */
    int32_t peer;      /* the other rank of this group                                                      */
    int32_t sender;    /* 1: we send, 0: we receive                                                         */
    uint32_t slots;    /* K >= 1 (>= 2 wherever a program is to run)                                        */
    size_t slot_bytes; /* largest message                                                                   */
    const char *label; /* "F chunk 0" for messages; copied                                                  */
} dp_channel_config_t;

/** What a message says of itself; checked against what the receiver expects (DP_ERR_PROTOCOL). */
typedef struct dp_message_tag {
    uint32_t sequence; /* number of the message in its channel since the channel was opened, from 0; wraps. Counts the
                          calls: messages of a graph that is replayed are counted on the device                     */
    uint32_t step;
    int32_t microbatch;
    uint32_t bytes;    /* <= slot_bytes; may differ from message to message */
} dp_message_tag_t;

typedef struct dp_exchange_config {
    uint32_t struct_size;
    uint32_t id;             /* unique per instance; all members give the same                             */
    size_t row_bytes;        /* a multiple of 16                                                           */
    uint32_t capacity_rows;  /* most rows one rank may send to one other in one exchange                   */
    uint32_t slots;          /* exchanges that may be received and not yet released; 0: 2                  */
    const char *label;
} dp_exchange_config_t;

typedef struct dp_comm_vt {
    uint32_t struct_size;
    uint32_t caps;

    /** Joins the group. [collective] [blocks] up to the job's join limit. nranks 1 is legal. */
    dp_status_t (*open)(const dp_host_t *host, const dp_comm_config_t *config, dp_comm_t **comm_out);
    /** Orderly end when the job is healthy ([collective]: importers unmap before the exporter frees), at once when it is
     *  aborted. Ends and exchanges are closed with it. NULL is allowed. [blocks] */
    void (*close)(dp_comm_t *comm);
    /** Makes every wait of this instance end. Idempotent. [any] */
    void (*abort)(dp_comm_t *comm);

    /** Sets up one end of a channel. Both sides call it before the first transfer, each in any order of channels: no
     *  call waits for its peer before `start`. */
    dp_status_t (*channel_open)(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out);
    dp_status_t (*exchange_open)(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out);
    /** Connects all channels and exchanges opened so far. May be called again after opening more. [collective] [blocks] */
    dp_status_t (*start)(dp_comm_t *comm);

    /** Copies tag->bytes from `from` into the receiver's slot and publishes it; first waits (on the stream) for the slot's
     *  credit. `from` must stay untouched until later work on s runs. [enqueue s] [paired] */
    dp_status_t (*send)(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s);
    /** Later work on s sees the message at *data_out, a slot of ours, known at once. [enqueue s] [paired] */
    dp_status_t (*recv)(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out, dp_stream_t *s);
    /** Gives the slot of message `sequence` back to the sender. Slots are released in order. [enqueue s] */
    dp_status_t (*release)(dp_channel_end_t *end, uint32_t sequence, dp_stream_t *s);

    /** Brackets transfers that must progress together, all on s; NULL where DP_COMM_CAP_ONE_SIDED. Of these backends a
     *  transfer outside of a bracket is a group of its own; a recv first waits on s until the slot has been released, on
     *  whatever stream that was enqueued; its data are there for work on s after group_end. [enqueue s] */
    dp_status_t (*group_begin)(dp_comm_t *comm, dp_stream_t *s);
    dp_status_t (*group_end)(dp_comm_t *comm, dp_stream_t *s);

    /**
     * All-to-all-v. Rows for rank p start at send + send_offsets[p] * row_bytes, send_counts[p] of them; both arrays have
     * nranks int32 entries in device memory and are read when s gets here. Received rows of rank p lie at
     * *rows_out + p * capacity_rows * row_bytes, (*counts_out)[p] of them (device memory of ours, valid for later work on s
     * until exchange_release). More than capacity_rows for one pair: DP_ERR_OVERFLOW on the stream, nothing is truncated.
     * sequence: number of this exchange since it was opened, from 0. [enqueue s] [collective]
     */
    dp_status_t (*exchange)(dp_exchange_t *exchange, uint32_t sequence, const void *send, const int32_t *send_offsets,
                            const int32_t *send_counts, const void **rows_out, const int32_t **counts_out, dp_stream_t *s);
    dp_status_t (*exchange_release)(dp_exchange_t *exchange, uint32_t sequence, dp_stream_t *s);

    /** data[i] = sum over ranks in rank order, in place, the same bits everywhere. [enqueue s] [collective] */
    dp_status_t (*all_reduce)(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s);
    /** Later work on s starts after every rank's s got here. [enqueue s] [collective] */
    dp_status_t (*barrier)(dp_comm_t *comm, dp_stream_t *s);

    /** Bytes of memory that this instance holds so far, slots and staging included. */
    size_t (*memory_bytes)(dp_comm_t *comm);
} dp_comm_vt_t;

#ifdef __cplusplus
}
#endif
#endif
