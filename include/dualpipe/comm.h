/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm.h: interface "dp.comm/1": transfers between the ranks of one group.
 *
 * One instance serves one group of ranks: a pipeline, an expert group, a data group. There are
 * three kinds of traffic. Each has everything it needs set up before the first step:
 *
 *   channel     one directed edge of the pipeline program: tagged messages in order, K slots at the
 *               receiver, credits. Message k lies in slot k mod K. The receiver reads the slot in
 *               place and releases it. The slot is not written again before that release has
 *               taken effect on its stream.
 *   exchange    all-to-all-v. Counts live on the device; each pair of ranks has a fixed capacity.
 *   reductions  over the group. Every element is added in rank order 0, 1, ..., n-1, so the result
 *               has the same bits on every rank and with every backend. all_reduce gives all
 *               elements to all ranks. reduce_scatter gives each rank its part, and all_gather
 *               gives the parts to the others again.
 *
 * Two families of backends. Those with DP_COMM_CAP_ONE_SIDED write into the peer's memory: a send
 * completes without the receiver as soon as there is a credit, and a recv waits for its own message
 * alone. The others (NCCL, MPI) complete transfers when both sides have called, or buffer a send
 * and complete it earlier. For those the host brackets what must complete together with
 * bundle_begin and bundle_end, and orders its transfers in the same way on all ranks (see
 * "Bundles").
 *
 * One-sided over a polled runtime (UCX, MPI windows). A send must complete while its receiver
 * computes and calls nothing. A runtime that makes progress only when it is asked therefore needs a
 * thread of the plugin that asks it, for each instance or for the process, between open and close.
 * dp_host_t.poll does not do: nobody calls it while nobody waits.
 *
 * Threads and streams. Calls on one instance come from one thread at a time. As [enqueue s] they
 * put their work on s and return. Rely on these promises of the host about the order on streams:
 *   - The sends of one end are all on one stream, or on streams that events order. So are the
 *     receives of one end, the exchanges of one exchange, and the reductions of one instance. No
 *     two of them run at once.
 *   - Releases come in order as well, but may be on another stream than the receive, where the
 *     receive has run long before. A release takes effect when its stream reaches it, not when it
 *     is called.
 *   - Everything else may run at once, on streams of any lanes: different ends, an exchange beside
 *     a reduction, the same calls on several instances of one process. None of these may wait for
 *     the other or share staging with it.
 *   - All ranks of a group enqueue their exchanges in the same order, and their reductions in the
 *     same order. Of a posted exchange that is the order of the posts.
 *   - Different exchanges of one instance may be on streams that nothing orders. They run at once,
 *     or one after the other in the order that all ranks enqueue them in.
 *
 * Bundles (backends without ONE_SIDED). A bundle goes to one peer or comes from one, never both. It
 * is on one stream and has at most one message of each channel. Brackets do not nest, and only
 * transfers of the bundle are called between them. A transfer outside of a bracket is a bundle by
 * itself. The bundles of one peer and direction are on one stream, in the same order on both sides,
 * and so are the messages in a bundle. A bundle must not wait for those of another peer or
 * direction. All bundles of all ranks stand in an order that lets a rank do one after the other,
 * see program.h. A receive first waits, on its stream, until the slot was released, on whatever
 * stream. Its data are there for work on s behind bundle_end.
 *
 * Memory. Slots and received rows are device memory that the streams of config.device can use,
 * 16-byte aligned. Nothing outside of a slot is written. Host memory comes from dp_host_t.allocate.
 * Device memory comes from the device's allocate or, for backends that share it, from the backend.
 * All of it is allocated in open, channel_open, exchange_open and start. Calls from send to
 * all_gather allocate nothing, print nothing and start no threads.
 *
 * Errors. A wrong call returns DP_ERR_INVALID, puts nothing on the stream and leaves its outputs as
 * they are; the instance remains usable. Wrong is: a peer outside of the group or ourselves; 0
 * slots, bytes or rows; row_bytes that are no multiple of 16; sizes whose product overflows; an end
 * or exchange that was opened before; a transfer before `start`; a send on the receiving end, or
 * the reverse; a number other than the next one; more bytes than slot_bytes; a release of what was
 * not received. What a stream finds out later is reported by the device's synchronize and
 * query_error, and by calls that still run: DP_ERR_PROTOCOL for a message or reduction that is not
 * the expected one, DP_ERR_OVERFLOW for too many rows, DP_ERR_TIMEOUT for a peer that does not
 * come. Each has a message that names ranks of the job, the label and what was expected.
 *
 * Waits end by the host. When the job is aborted (a rank died, another one failed), dp_host_t.wait,
 * poll and aborted return the job's first cause. Every wait of the instance then ends soon with
 * that cause, on a stream as well. After a failure only close is legal. Deadlines are the job's
 * (wait and poll with timeout_ns < 0, "dp.host.limits/1"), never the backend's: a long computation
 * of a peer is no fault. Where streams wait inside the device, in kernels or by stream operations,
 * the device's synchronize sees the job's limit pass and names the stream.
 *
 * A transport that loses a peer. The job's cause wins over the transport's own view: it says which
 * rank died, and where. A transport often sees a death first, or sees a peer close because the job
 * has ended. So do not return your own DP_ERR_PEER. Return dp_host_t.abort_job(host, DP_ERR_PEER,
 * why): it waits a bounded time for the job's cause, ends the job with yours if none comes, and
 * returns the cause. A thread that makes progress calls it as well. Whoever waits for a signal that
 * this thread will never post is woken by the end of the job.
 *
 * Runtimes that are global to the process (MPI, NVSHMEM: started once, ended once, progress only
 * when asked). Such a plugin may keep the runtime outside of its instances. The runtime may
 * allocate by its own means and live until the process ends, with what it started and opened. The
 * plugin waits by dp_host_t.poll. All else holds: instances of one process (ranks as threads,
 * several groups) are kept apart by communicators or tags, nothing is printed, and a dead peer ends
 * the waits of the others with the job's cause. A runtime may be unable to do that (it ends the
 * process when a peer dies), need ranks that are processes, or need its own launcher. The plugin's
 * README then says so, and open refuses what cannot work with DP_ERR_UNSUPPORTED and a sentence.
 * Constructors of libraries must leave signal handlers alone: docs/plugin-abi.md, "Runtimes".
 *
 * Since 0.2: dp_comm_vt_t.exchange_post, .exchange_wait.
 *
 * Source of the transport contract: docs/architecture.md, "Why nothing deadlocks". */
#ifndef DUALPIPE_COMM_H
#define DUALPIPE_COMM_H

#include <dualpipe/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_channel_end dp_channel_end_t; /* one rank's end of a channel */
typedef struct dp_exchange dp_exchange_t;

enum {
    /* sends complete without the receiver's help, as long as there is a credit */
    DP_COMM_CAP_ONE_SIDED = 1u << 0,
    /* 1u << 1: draft/graph.h */
    /* channels may be used on a compute lane without hurting it (host memory) */
    DP_COMM_CAP_HOST_INLINE = 1u << 2,
    /* reaches ranks on other hosts, and those of this host as well. Without it: ranks of one host
     * alone. Where ranks of a job live on several hosts (dp_host_places_t) the host joins one that
     * has this with one that need not */
    DP_COMM_CAP_HOSTS = 1u << 3
};

typedef struct dp_comm_config {
    uint32_t struct_size;
    /* the same on all members. No other instance in the life of the job has it, closed ones
     * included, so it may be in keys of the boot service: "p1.0.pipeline.0", 1 to 63 characters of
     * [A-Za-z0-9._-]; borrowed during open */
    const char *name;
    int32_t rank, nranks; /* our place in this group */
    /* [nranks] the members' ranks in the job, for messages; borrowed during open */
    const int32_t *world_ranks;
    /* the device whose streams the calls name; outlives the instance. A backend that needs a
     * certain kind of it, or memory that other processes can map, looks at device_vt->kind and
     * DP_DEVICE_CAP_EXPORT and refuses with a sentence */
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    size_t reduce_bytes; /* staging for all_reduce, a wish, of 1 as well; 0: the backend's choice */
    /* the table whose open is called, so that one open can serve several tables. The host may have
     * completed a copy of a plugin's own: tell them apart by what is in them */
    const dp_comm_vt_t *vt;
} dp_comm_config_t;
enum { DP_COMM_CONFIG_MIN = DP_SIZE_TO(dp_comm_config_t, vt) };

/** Both ends describe a channel the same way, but for `peer` and `sender`. */
typedef struct dp_channel_config {
    uint32_t struct_size;
    /* unique per instance and ordered pair of ranks (sender, receiver): the same id in the other
     * direction, or with another peer, is another channel. Both ends give the same */
    uint32_t id;
    int32_t peer;      /* the other rank of this group */
    int32_t sender;    /* 1: we send, 0: we receive */
    uint32_t slots;    /* K >= 1 (>= 2 wherever a program is to run) */
    size_t slot_bytes; /* largest message */
    /* [hint] "F chunk 0" for messages, may be cut behind 63 characters; NULL: none. Borrowed during
     * the call */
    const char *label;
} dp_channel_config_t;
enum { DP_CHANNEL_CONFIG_MIN = DP_SIZE_TO(dp_channel_config_t, label) };

/** What a message says of itself; checked against what the receiver expects (DP_ERR_PROTOCOL).
 *  Frozen: never grows; `reserved` is zero. */
typedef struct dp_message_tag {
    /* number of the message in its channel since the channel was opened, from 0; wraps. Counts the
     * calls: messages of a graph that is replayed are counted on the device */
    uint32_t number;
    uint32_t step;
    int32_t microbatch;
    uint32_t bytes; /* <= slot_bytes; may differ from message to message */
    uint32_t reserved[2];
} dp_message_tag_t;

typedef struct dp_exchange_config {
    uint32_t struct_size;
    /* unique among the exchanges of the instance; all members give the same */
    uint32_t id;
    size_t row_bytes; /* a multiple of 16, not 0 */
    /* most rows one rank may send to one, itself included, in one exchange; >= 1 */
    uint32_t capacity_rows;
    uint32_t slots;    /* exchanges that may be received and not yet released; 0: 2 */
    const char *label; /* [hint] as of a channel */
} dp_exchange_config_t;
enum { DP_EXCHANGE_CONFIG_MIN = DP_SIZE_TO(dp_exchange_config_t, label) };

struct dp_comm_vt {
    uint32_t struct_size;
    uint32_t caps; /* of every instance, unless instance_caps says otherwise */

    /** Joins the group, and connects what all_reduce needs: reductions are legal before `start`.
     *  nranks 1 is legal. When it fails on one rank, that rank gets a message at once; the others
     *  get theirs when the job is aborted or its limit has passed. [collective] [blocks] */
    dp_status_t (*open)(const dp_host_t *host, const dp_comm_config_t *config, dp_comm_t **comm_out);
    /** Orderly end when the job is healthy ([collective]: nobody frees what others still use), at
     *  once when it is aborted. What was enqueued has been waited for by the host. Ends and
     *  exchanges are closed with it; nothing stays behind, no thread, descriptor, mapping, memory
     *  or name. NULL is allowed. [blocks] */
    void (*close)(dp_comm_t *comm);

    /** Sets up one end of a channel. Both sides call it before the `start` that connects it, each
     *  in any order of channels: no call waits for its peer before `start`. */
    dp_status_t (*channel_open)(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out);
    /** exchange_open, exchange and exchange_release are optional, all three or none: a backend
     *  without them serves pipelines, but no mixture of experts. Default: DP_ERR_UNSUPPORTED. */
    dp_status_t (*exchange_open)(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out);
    /** Connects all channels and exchanges opened so far. May be called again after opening more.
     * DP_ERR_MISMATCH with the label, at least on one of the ranks: ends of one channel that
     * differ, an end whose other side was not opened, exchanges that differ. [collective]
     * [blocks] */
    dp_status_t (*start)(dp_comm_t *comm);

    /** Copies tag->bytes (0 to slot_bytes) from `from` into the receiver's slot and publishes it;
     *  first waits, on the stream, until the slot is free. The host keeps `from` untouched until
     *  later work on s runs, the tag until the call returns. [enqueue s] [paired] */
    dp_status_t (*send)(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s);
    /** Later work on s sees the message at *data_out, a slot of ours, known at once. A message
     *  whose step, micro-batch or bytes differ from `expected` is DP_ERR_PROTOCOL on the stream:
     *  later work on s does not run. [enqueue s] [paired] */
    dp_status_t (*recv)(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out, dp_stream_t *s);
    /** Gives the slot of message `number` back to the sender. Slots are released in order. [enqueue
     * s] */
    dp_status_t (*release)(dp_channel_end_t *end, uint32_t number, dp_stream_t *s);

    /** Brackets a bundle, all on s. Needed exactly where DP_COMM_CAP_ONE_SIDED is not set,
     *  otherwise NULL is fine; default: nothing happens. [enqueue s] */
    dp_status_t (*bundle_begin)(dp_comm_t *comm, dp_stream_t *s);
    dp_status_t (*bundle_end)(dp_comm_t *comm, dp_stream_t *s);

    /**
     * All-to-all-v, ourselves included. Rows for rank p start at send + send_offsets[p] *
     * row_bytes, send_counts[p] of them; both arrays have nranks int32 entries in device memory and
     * are read when s gets here. Received rows of rank p lie at *rows_out + p * capacity_rows *
     * row_bytes, (*counts_out)[p] of them (device memory of ours, valid for later work on s until
     * exchange_release). Up to config.slots exchanges lie received and not yet released, each in
     * separate memory; the next one waits on the stream for a release. More than capacity_rows for
     * one pair: DP_ERR_OVERFLOW on the stream of the rank that sends, nothing is truncated. number:
     * of this exchange since it was opened, from 0. [enqueue s] [collective]
     */
    dp_status_t (*exchange)(dp_exchange_t *exchange, uint32_t number, const void *send, const int32_t *send_offsets,
                            const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                            dp_stream_t *s);
    dp_status_t (*exchange_release)(dp_exchange_t *exchange, uint32_t number, dp_stream_t *s);

    /** data[i] = ((rank 0's + rank 1's) + rank 2's) + ..., in place, the same bits everywhere. The
     *  sum begins with rank 0's element, not with 0: a lone -0 stays -0. Every backend adds DP_F32,
     *  DP_F64 and DP_I64 (which wraps around); DP_BF16 it may add or refuse with
     *  DP_ERR_UNSUPPORTED, at once. count 0 is legal, and no different on any rank: counts or
     *  dtypes that differ are DP_ERR_PROTOCOL on every rank that hears of it, and end the job.
     *  [enqueue s] [collective] */
    dp_status_t (*all_reduce)(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s);

    /** Bytes of memory that this instance holds so far, slots and staging included: grows with
     *  open, channel_open (of a sending end too), exchange_open or start. [any] */
    size_t (*memory_bytes)(dp_comm_t *comm);

    /* Both are optional, NULL by default: the host then has the whole summed by all_reduce; for
     * all_gather as DP_I64, with zeros where the parts of others are. */
    /** The sum of all_reduce, of which each rank gets its part: elements bounds[rank] ..
     *  bounds[rank + 1] - 1 of data, in place. What the other parts hold afterwards is undefined.
     *  bounds: [nranks + 1] rising from 0 (parts may be empty), the same on all ranks; the host
     *  leaves it as it is until s has done this. Parts or dtypes that differ are
     *  DP_ERR_PROTOCOL on every rank that hears of it. [enqueue s] [collective] */
    dp_status_t (*reduce_scatter)(dp_comm_t *comm, void *data, const size_t *bounds, dp_dtype_t dtype, dp_stream_t *s);
    /** Each rank gives its part to all others: bytes bounds[rank] .. bounds[rank + 1] - 1 of data,
     *  which lie in the same place everywhere. data and all bounds are multiples of 8. Bounds
     *  otherwise as of reduce_scatter. [enqueue s] [collective] */
    dp_status_t (*all_gather)(dp_comm_t *comm, void *data, const size_t *bounds, dp_stream_t *s);

    /** The capabilities of this instance, from open on; the same on all ranks of the job. ONE_SIDED
     *  and HOST_INLINE may differ from the table's; an instance without ONE_SIDED needs the
     *  brackets in its table. HOSTS and CAPTURE are asked of the table, before anything is open.
     *  Optional; NULL: the table's caps. [any] */
    uint32_t (*instance_caps)(dp_comm_t *comm);
    /** 1: groups on such a device can be opened, 0: not. Asked of plugins with a preference
     *  (dp_plugin_t) when a pipeline's comm is "auto", before anything is open. Optional; NULL: on
     *  any device. [any] */
    int (*serves)(const dp_device_vt_t *device_vt);

    /* An exchange in two calls, which needs no lane: other work, exchanges included, may lie on s
     * between them. Both are optional, both or none; NULL by default. `exchange` does the same as a
     * post and its wait, and its numbers are those of posts.
     *
     * Nothing waits for ever. A post waits, on the stream, for slots at the receivers, and never
     * for their posts. The releases that give these slots are enqueued before this post, on every
     * rank. A wait is for the same post of the others. So take posts in the order that all ranks
     * enqueue them in: each completes when those before it have, and so do their waits. With
     * ONE_SIDED the rows leave while their rank computes. Without it they may need a wait of the
     * backend on both ranks, and what lies on s behind the post must end without them. */

    /** Puts the rows under way: arguments as of exchange. *rows_out and *counts_out say where rows
     *  and counts will be. The host keeps offsets and counts until later work on s runs, rows until
     *  later work behind the wait does. DP_ERR_INVALID: config.slots are posted and their releases
     *  not enqueued; on one stream it would wait for what is behind it. [enqueue s] [collective] */
    dp_status_t (*exchange_post)(dp_exchange_t *exchange, uint32_t number, const void *send,
                                 const int32_t *send_offsets, const int32_t *send_counts, const void **rows_out,
                                 const int32_t **counts_out, dp_stream_t *s);
    /** Later work on s sees rows and counts of exchange `number`. Posts are awaited in their order,
     *  each before its release, on streams that events order behind the post. DP_ERR_INVALID: it is
     *  not the oldest post that was not awaited; also a release before the wait, and an `exchange`
     *  with a post not awaited. [enqueue s] */
    dp_status_t (*exchange_wait)(dp_exchange_t *exchange, uint32_t number, dp_stream_t *s);
};
enum { DP_COMM_VT_MIN = DP_SIZE_TO(dp_comm_vt_t, serves) };

/** The capabilities of an instance of a table that dp_plugin_interface() gave. [any] */
static inline uint32_t dp_comm_caps(const dp_comm_vt_t *vt, dp_comm_t *comm)
{
    return vt->instance_caps != NULL ? vt->instance_caps(comm) : vt->caps;
}

#ifdef __cplusplus
}
#endif
#endif
