/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ep.h: interface "dp.ep/1": rows of tokens go to the ranks of the experts they chose, and rows come back.
 *
 * What dp.comm/1 calls an exchange carries rows that were packed before. Libraries for expert parallelism (NCCL EP,
 * DeepEP, NVSHMEM and their like) want the tokens, what each of them chose, and the weights, and do the rest
 * themselves. Such a library stands behind this interface. A MoE plugin that takes one is given its table
 * (dp_moe_config_t.ep_vt) and has its rows carried by it; without one it uses exchanges, as ep_exchange does behind
 * this interface.
 *
 * Letters: n ranks of the expert group; P experts, where they are replicated (moe.h) replicas of them, of which rank p
 * holds p*P/n ... (p+1)*P/n - 1, L = P/n; T tokens at most, t of this micro-batch; d elements of a row; k experts
 * chosen by each token; N rows at most that a rank receives (dp_ep_sizes_t.rows).
 *
 *   call               reads                                  writes
 *   dispatch           rows [t, d], weights [t, k] or NULL    rows_out [N, d], weights_out [N] or NULL, counts_out
 *   combine            rows [N, d]                            rows_out [t, k, d]
 *   combine_backward   rows [t, d], weights [t, k] or NULL    rows_out [N, d], weights_out [N] or NULL
 *   dispatch_backward  rows [N, d], dweights [N] or NULL      rows_out [t, k, d], dweights_out [t, k] or NULL
 *
 * The first and the third go from the tokens' owners to the experts: an expert gets a row for each token that chose it,
 * and the weight of that choice. Received rows lie one behind the other, sorted by (expert of ours, source rank,
 * token), in all calls alike; counts_out [L, n] says how many each expert has from each rank. The second and the fourth
 * go back: `rows` and `dweights` lie as the received ones did, and what an expert made for choice j of token i becomes
 * row i * k + j at the token's owner. Rows, weights and gradients arrive bit by bit, whatever is in them, unless
 * something else was asked for (dp_ep_config_t.ask). The owner adds rows in an order of its own, so sums need not
 * depend on the size of the group.
 *
 * Memory. saved belongs to a micro-batch, from its dispatch to its last call here, and holds what a backend keeps of
 * the routing; a micro-batch may end after any of its calls. scratch belongs to the lane, and to one call. Both begin
 * at multiples of 64 bytes and may hold anything before; all other pointers are multiples of 16 bytes. All of it is
 * device memory of the configuration's device, it does not overlap, and the caller leaves it alone until s has done the
 * call. Of rows_out and weights_out what lies behind the received rows may hold anything afterwards.
 *
 * Streams and threads. All four calls are [enqueue s] and [collective]: all ranks of the group make the same calls for
 * the same micro-batches in the same order, with numbers of tokens of their own. A micro-batch's dispatch comes first,
 * the others follow once each in the order above, where any may be left out; those of several micro-batches may
 * interleave. The calls of one instance go to one stream, or to streams that events order. They come from one thread at
 * a time. Where the backend has DP_EP_CAP_DEVICE_COUNTS and its transport can be captured, they are [capture], too.
 *
 * Errors. A call that refuses what it was given says why through fail() and enqueues nothing. What is found on the
 * stream ends the stream's work: DP_ERR_INVALID an expert's number below 0 or from P on; DP_ERR_PROTOCOL a call in
 * saved memory that has had no dispatch, or since then this call or a later one, and ranks that made different calls,
 * as far as a backend can tell; DP_ERR_OVERFLOW more rows than config.capacity has room for, none of which is
 * dropped. */
#ifndef DUALPIPE_EP_H
#define DUALPIPE_EP_H

#include <dualpipe/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_ep dp_ep_t;

enum {
    DP_EP_CAP_DEDUP = 1u << 0, /* on the way to the experts a row travels once to a rank, whatever number of its experts
                                  the token chose. Nothing that a caller sees depends on it */
    /* Rows of dispatch may travel as fp8 (E4M3, with a scale for each 128 elements): received rows are rounded so. Only
       where config.ask has it */
    DP_EP_CAP_FP8 = 1u << 1,
    /* combine and dispatch_backward write [t, d]: the sum of a token's rows, made by the ranks of the experts as far as
       they have several. Who wants weighted rows weighs them before. The bits of sums depend on the size of the group.
       Only where config.ask has it */
    DP_EP_CAP_COMBINE_REDUCE = 1u << 2,
    /* Counts of rows stay in device memory, and no call waits for the device. Without it dispatch may wait in the call
       until s has come to it and all ranks have: [blocks] instead of [enqueue s] */
    DP_EP_CAP_DEVICE_COUNTS = 1u << 3
};

typedef struct dp_ep_config {
    uint32_t struct_size;
    dp_dtype_t dtype; /* of rows; weights are of dp_dtype_accumulator(dtype), their gradients DP_F64 always */
    uint32_t tokens;  /* T, the same on all ranks */
    uint32_t hidden;  /* d */
    uint32_t experts; /* P, divisible by comm_size */
    uint32_t top_k;   /* k, 1 to P */
    /* What changes bits and is done only where a caller wants it: DP_EP_CAP_FP8, DP_EP_CAP_COMBINE_REDUCE. 0: nothing.
       Other bits are DP_ERR_INVALID, those that the backend's caps lack DP_ERR_UNSUPPORTED */
    uint32_t ask;
    float capacity; /* room for so many times an even share of rows, for each pair of ranks and in all; 0: for the worst
                       case, which cannot overflow. A backend may make more room */
    const dp_device_vt_t *device_vt;
    dp_device_t *device; /* the caller's, as comm; both outlive the instance */
    const dp_comm_vt_t *comm_vt;
    dp_comm_t *comm; /* the expert group. Who has a transport of its own uses it to bring the ranks together: its sums
                        are legal in open already */
    int32_t comm_rank, comm_size;
    uint32_t exchange_id; /* first of 4 exchange ids that the instance may use on comm */
} dp_ep_config_t;
#define DP_EP_CONFIG_MIN DP_SIZE_TO(dp_ep_config_t, exchange_id)

typedef struct dp_ep_sizes {
    uint32_t struct_size;
    uint32_t rows; /* N; at most comm_size * T * min(k, L) */
    size_t saved_bytes;
    size_t scratch_bytes;
} dp_ep_sizes_t;
#define DP_EP_SIZES_MIN DP_SIZE_TO(dp_ep_sizes_t, scratch_bytes)

/** What a call is given: the table above says what it uses, the rest is NULL. The struct is borrowed during the
 *  call. */
typedef struct dp_ep_io {
    uint32_t struct_size;
    uint32_t tokens; /* t, 1 to T; 0: T. The same in all calls of a micro-batch */
    void *saved, *scratch;
    /* [t, k] the experts that each token chose, each at most once; the same in all calls of a micro-batch */
    const int32_t *experts;
    const void *rows;
    void *rows_out;
    const void *weights;
    void *weights_out; /* NULL: not wanted, or `weights` is */
    const double *dweights;
    double *dweights_out; /* NULL: not wanted, or `dweights` is */
    int32_t *counts_out;  /* [L, n] */
} dp_ep_io_t;
#define DP_EP_IO_MIN DP_SIZE_TO(dp_ep_io_t, counts_out)

/* All functions are required. */
typedef struct dp_ep_vt {
    uint32_t struct_size;
    uint32_t caps; /* DP_EP_CAP_* */
    /** One instance serves all MoE layers of a rank that are alike. What it opens on comm the caller's start() of that
     *  connects. *ep_out is set only on success. DP_ERR_INVALID: a size or switch that cannot be; DP_ERR_UNSUPPORTED: a
     *  dtype, device, comm or wish that this plugin does not take; DP_ERR_OVERFLOW: more rows or elements than it can
     *  count. [blocks] [collective] */
    dp_status_t (*open)(const dp_host_t *host, const dp_ep_config_t *config, dp_ep_t **ep_out);
    /** Not in the middle of a step; before the comm closes. NULL: nothing. */
    void (*close)(dp_ep_t *ep);
    /** The caller sets sizes_out->struct_size; the plugin answers with dp_sized_put. The same after each call. */
    dp_status_t (*sizes)(const dp_ep_t *ep, dp_ep_sizes_t *sizes_out);

    /** Tokens' rows to the ranks of their experts. */
    dp_status_t (*dispatch)(dp_ep_t *ep, const dp_ep_io_t *io, dp_stream_t *s);
    /** What experts made of them back to the tokens' owners. */
    dp_status_t (*combine)(dp_ep_t *ep, const dp_ep_io_t *io, dp_stream_t *s);
    /** Gradients of what came back, with the weights of the choices, to the ranks of the experts. */
    dp_status_t (*combine_backward)(dp_ep_t *ep, const dp_ep_io_t *io, dp_stream_t *s);
    /** Gradients of the received rows and of their weights back to the tokens' owners. */
    dp_status_t (*dispatch_backward)(dp_ep_t *ep, const dp_ep_io_t *io, dp_stream_t *s);
} dp_ep_vt_t;
#define DP_EP_VT_MIN DP_SIZE_TO(dp_ep_vt_t, dispatch_backward)

#ifdef __cplusplus
}
#endif
#endif
