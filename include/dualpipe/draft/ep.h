/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draft/ep.h: interface "dp.ep.draft/1": dispatch and combine of tokens over an expert group.
 *
 * A draft (docs/draft.md): it may change or go in any release, and the frozen ABI says nothing of
 * it. It leaves the draft room when a library for expert parallelism (NCCL EP, DeepEP, NVSHMEM)
 * stands behind it and trains on GPUs.
 *
 * An exchange of dp.comm/1 moves rows that a MoE plugin has packed. Libraries for expert
 * parallelism want the tokens, what each of them chose, and the weights, and do the rest
 * themselves. Such a library stands behind this interface. A MoE plugin that takes one is given its
 * table (dp_moe_config_t.ep_vt); moe_cpu does. Without one it uses exchanges, as ep_exchange does
 * behind this interface.
 *
 * Letters. The expert group has n ranks. There are P experts; where they are replicated (moe.h), P
 * counts replicas. Rank p holds p*P/n ... (p+1)*P/n - 1 of them, L = P/n. T tokens at most, t of
 * this micro-batch, d elements of a row, k experts chosen by each token. A rank receives at most N
 * rows (dp_ep_sizes_t.rows).
 *
 *   call               reads                    writes
 *   dispatch           rows [t,d] weights [t,k]  rows_out [N,d] weights_out [N] counts_out [L,n]
 *   combine            rows [N,d]                rows_out [t,k,d]
 *   combine_backward   rows [t,d] weights [t,k]  rows_out [N,d] weights_out [N]
 *   dispatch_backward  rows [N,d] dweights [N]   rows_out [t,k,d] dweights_out [t,k]
 *
 * Weights and their gradients may be NULL.
 *
 * The first and the third go from the tokens' owners to the experts. An expert gets a row for each
 * token that chose it, and the weight of that choice. Received rows lie one behind the other,
 * sorted by (expert of ours, source rank, token), in all calls alike. counts_out [L, n] says how
 * many each expert has from each rank. The second and the fourth go back: `rows` and `dweights` lie
 * as the received ones did. What an expert made for choice j of token i becomes row i * k + j at
 * the token's owner. Rows, weights and gradients arrive bit by bit, whatever is in them. The owner
 * adds rows in its own order, so sums need not depend on the size of the group.
 *
 * Memory. saved belongs to a micro-batch, from its dispatch to its last call here. It holds what a
 * backend keeps of the routing. A micro-batch may end after any of its calls. scratch belongs to
 * the lane, and to one call. Both begin at multiples of 64 bytes and may hold anything before; all
 * other pointers are multiples of 16 bytes. All of it is device memory of the configuration's
 * device and does not overlap. The caller leaves it alone until s has done the call. What lies
 * behind the received rows of rows_out and weights_out may hold anything afterwards.
 *
 * Streams and threads. All four calls are [enqueue s] and [collective], but that dispatch may wait
 * in the call until s and all ranks have reached it, where a backend needs the counts on the host.
 * All ranks of the group make the same calls for the same micro-batches in the same order; their
 * numbers of tokens may differ. A micro-batch's dispatch comes first, the others follow once each
 * in the order above. Any of them may be left out, and those of several micro-batches may
 * interleave. The calls of one instance go to one stream, or to streams that events order. They
 * come from one thread at a time.
 *
 * Errors. A call that refuses what it was given says why through fail() and enqueues nothing. What
 * is found on the stream ends the stream's work. DP_ERR_INVALID: an expert's number below 0 or from
 * P on. DP_ERR_PROTOCOL: a call in saved memory that has had no dispatch, or since then this call
 * or a later one; ranks that made different calls, as far as a backend can tell. DP_ERR_OVERFLOW:
 * more rows than config.capacity has room for, none of which is dropped. */
#ifndef DUALPIPE_DRAFT_EP_H
#define DUALPIPE_DRAFT_EP_H

#include <dualpipe/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DP_IFACE_EP "dp.ep.draft/1"

typedef struct dp_ep dp_ep_t;

typedef struct dp_ep_config {
    uint32_t struct_size;
    dp_dtype_t dtype; /* of rows; weights are of dp_dtype_accumulator(dtype), their gradients DP_F64
                         always */
    uint32_t tokens;  /* T, the same on all ranks */
    uint32_t hidden;  /* d */
    uint32_t experts; /* P, divisible by comm_size */
    uint32_t top_k;   /* k, 1 to P */
    /* Room for so many times an even share of rows, for each pair of ranks and in all. 0: for the
     * worst case, which cannot overflow. A backend may make more room. */
    float capacity;
    uint32_t exchange_id; /* first of 4 exchange ids that the instance may use on comm */
    const dp_device_vt_t *device_vt;
    dp_device_t *device; /* the caller's, as comm; both outlive the instance */
    const dp_comm_vt_t *comm_vt;
    /* The expert group. A backend with its own transport brings the ranks together by it: its
     * reductions are legal in open already. */
    dp_comm_t *comm;
    int32_t comm_rank, comm_size;
} dp_ep_config_t;
enum { DP_EP_CONFIG_MIN = DP_SIZE_TO(dp_ep_config_t, comm_size) };

typedef struct dp_ep_sizes {
    uint32_t struct_size;
    uint32_t rows; /* N; at most comm_size * T * min(k, L) */
    size_t saved_bytes;
    size_t scratch_bytes;
} dp_ep_sizes_t;
enum { DP_EP_SIZES_MIN = DP_SIZE_TO(dp_ep_sizes_t, scratch_bytes) };

/** What a call is given: the table above says what it uses, the rest is NULL. The struct is
 *  borrowed during the call. */
typedef struct dp_ep_io {
    uint32_t struct_size;
    uint32_t tokens; /* t, 1 to T; 0: T. The same in all calls of a micro-batch */
    void *saved, *scratch;
    /* [t, k] the experts that each token chose, each at most once; the same in all calls of a
     * micro-batch */
    const int32_t *experts;
    const void *rows;
    void *rows_out;
    const void *weights;
    void *weights_out; /* NULL: not wanted, or `weights` is */
    const double *dweights;
    double *dweights_out; /* NULL: not wanted, or `dweights` is */
    int32_t *counts_out;  /* [L, n] */
} dp_ep_io_t;
enum { DP_EP_IO_MIN = DP_SIZE_TO(dp_ep_io_t, counts_out) };

/* All functions are required. */
typedef struct dp_ep_vt {
    uint32_t struct_size;
    uint32_t caps; /* none yet: 0 */
    /** One instance serves all MoE layers of a rank that are alike. What it opens on comm is
     *  connected by the caller's start() of that comm. *ep_out is set only on success.
     *  DP_ERR_INVALID: a size or switch that cannot be. DP_ERR_UNSUPPORTED: a dtype, device or comm
     *  that this plugin does not take. DP_ERR_OVERFLOW: more rows or elements than it can count.
     *  [blocks] [collective] */
    dp_status_t (*open)(const dp_host_t *host, const dp_ep_config_t *config, dp_ep_t **ep_out);
    /** Not in the middle of a step; before the comm closes. NULL: nothing. */
    void (*close)(dp_ep_t *ep);
    /** The caller sets sizes_out->struct_size; the plugin answers with dp_sized_put. The same after
     *  each call. */
    dp_status_t (*sizes)(const dp_ep_t *ep, dp_ep_sizes_t *sizes_out);

    /** Tokens' rows to the ranks of their experts. */
    dp_status_t (*dispatch)(dp_ep_t *ep, const dp_ep_io_t *io, dp_stream_t *s);
    /** What experts made of them back to the tokens' owners. */
    dp_status_t (*combine)(dp_ep_t *ep, const dp_ep_io_t *io, dp_stream_t *s);
    /** Gradients of what came back, with the weights of the choices, to the ranks of the
     *  experts. */
    dp_status_t (*combine_backward)(dp_ep_t *ep, const dp_ep_io_t *io, dp_stream_t *s);
    /** Gradients of the received rows and of their weights back to the tokens' owners. */
    dp_status_t (*dispatch_backward)(dp_ep_t *ep, const dp_ep_io_t *io, dp_stream_t *s);
} dp_ep_vt_t;
enum { DP_EP_VT_MIN = DP_SIZE_TO(dp_ep_vt_t, dispatch_backward) };

#ifdef __cplusplus
}
#endif
#endif
