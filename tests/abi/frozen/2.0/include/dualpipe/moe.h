/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe.h: interface "dp.moe/1": y = h + shared(n) + sum over chosen experts e of weight_e *
 * expert_e(n), n = RMSNorm(h).
 *
 * An expert is SwiGLU: (silu(n * w_gate) * (n * w_up)) * w_down. E routed experts are spread over
 * the expert group: rank p holds experts p*E/n ... (p+1)*E/n - 1. Shared experts (0 or more) are
 * one SwiGLU of width shared*expert_hidden, on every rank. A forward is four calls, each on its own
 * lane, a backward mirrors them:
 *
 *   forward   route (compute) dispatch (all-to-all) experts (compute) combine (all-to-all)
 *   backward  route_backward_* (compute) dispatch_backward experts_backward_* (compute)
 *             combine_backward
 *
 * The owner of a token sums its k rows in the order of choice. An expert computes the rows of each
 * source rank as a separate GEMM. So the bits of y and dx do not depend on the size of the expert
 * group. What is sent is the plugin's business. Those of this tree send a token's row, and that of
 * its dy, once to each rank that has any of its experts. One row per (token, chosen expert) comes
 * back, for the owner's order.
 *
 * Router: logits = n * w_router (fp32 or better). Gate softmax: scores = softmax(logits); sigmoid:
 * scores = sigmoid(logits). Chosen: the top_k largest of score + bias (ties: the lower expert),
 * weight = score, divided by the sum of the chosen (+ 1e-20) when `normalize`, times `scale`. The
 * bias has no gradient: see DP_PARAM_ROUTER_BIAS. Auxiliary loss (aux_alpha > 0): alpha * E / (k T)
 * * sum_e count_e * mean_t(p_te), p the scores, normalised over the experts for the sigmoid gate;
 * its gradient enters in route_backward_input, times dp_moe_io_t.aux_scale. Groups
 * (config.route_groups = G > 1): group g has experts g*E/G ... (g+1)*E/G - 1, and a token chooses
 * its top_k among those of config.route_limit = M groups alone, the M with the largest sums of
 * their ceil(top_k / M) largest values of score + bias (ties: the lower group). Weights, gradients
 * and auxiliary loss are those of the formulas above. Where groups are what ranks or hosts hold, a
 * token's row goes to at most M of them. Parameters in this order: norm [d]; router [d, E]; bias
 * [E]; shared.w_gate, shared.w_up [d, S], shared.w_down [S, d] (S = shared * expert_hidden; absent
 * when 0); then per local expert w_gate, w_up [d, f], w_down [f, d].
 *
 * Replicated experts (config.replicas = R > 0): rank p of the expert group holds replicas p*R/n ...
 * (p+1)*R/n - 1 instead of experts, and a placement (dp_moe_io_t.placement) says which expert each
 * of them is of. The router knows nothing of it. In the list of parameters replicas stand where
 * experts stood, as "replicas.7.w_gate", sharded, with dp_param_t.expert the replica's number. The
 * rows of an expert go to its replicas in turn: row i (in token order) of a micro-batch of source
 * rank p goes to replica (i + p + io.microbatch) mod c of its c, counted in ascending order. So
 * each gets its share to within one row, and which rows it gets depends on nothing else. An output
 * depends on the replica only by how a matrix product of so many rows is rounded. backward_weight
 * adds the gradient of a replica's own rows only: who owns the parameters sums it over the replicas
 * (dp_replicas_sum does, see replicas.h). With R = E and the placement 0, 1, ..., E - 1 all bits
 * are those without replicas. Sources: DeepSeek-V3 report arXiv 2412.19437 (2.1.2 bias-based
 * balancing, node-limited routing; 3.2.1 overlap); arXiv 2408.15664; auxiliary loss arXiv
 * 2101.03961; SwiGLU arXiv 2002.05202. */
#ifndef DUALPIPE_MOE_H
#define DUALPIPE_MOE_H

#include <dualpipe/block.h>
#include <dualpipe/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_moe dp_moe_t;

typedef enum dp_gate { DP_GATE_SOFTMAX = 0, DP_GATE_SIGMOID = 1 } dp_gate_t;

typedef struct dp_moe_config {
    uint32_t struct_size;
    const dp_block_shape_t *shape; /* borrowed during open, as this struct */
    /* E, divisible by the size of the expert group unless there are replicas */
    uint32_t experts;
    uint32_t top_k;          /* 1 <= top_k <= E */
    uint32_t expert_hidden;  /* f */
    uint32_t shared_experts; /* 0: none */
    dp_gate_t gate;
    /* 1: chosen weights sum to `scale`. Not with top_k 1: the one weight is then `scale` whatever
     * the router says, and the loss does not train it. Plugins of this tree warn of that */
    uint32_t normalize;
    float scale;     /* 0: 1 */
    float aux_alpha; /* 0: no auxiliary loss */
    const dp_device_vt_t *device_vt;
    dp_device_t *device; /* the caller's, as comm; both outlive the instance */
    const dp_comm_vt_t *comm_vt;
    dp_comm_t *comm; /* the expert group, of one rank as well */
    int32_t comm_rank, comm_size;
    uint32_t exchange_id; /* first of 4 exchange ids that this instance may use on comm */
    /* R >= E, divisible by the size of the expert group; 0: experts are not replicated */
    uint32_t replicas;
    /* plugins on GPUs give experts' rows room for so many times an even share, for each pair of
     * ranks and in all. More rows are DP_ERR_OVERFLOW; none is dropped. 0: room for the worst case,
     * which cannot overflow. Plugins on CPUs always give that */
    float capacity;
    /* 1: io.tokens may be below T, on each rank of the group another number */
    uint32_t variable_tokens;
    /* see block.h. Of DP_RECOMPUTE_MLP on, h, the routing and the received rows are all that
     * forward keeps: no row is sent again */
    dp_recompute_t recompute;
    uint32_t route_groups; /* G, a divisor of experts; 0 and 1: no groups */
    uint32_t route_limit;  /* with groups: M, 1 <= M <= G, top_k <= M * E / G */
    /* A draft: draft/ep.h. Dispatches and combines the rows, by an instance that this one opens and
     * closes, with its exchange ids; the bits are the same. NULL: the plugin's own exchanges. A
     * completed table, as dp_plugin_interface gives it; outlives the instance. */
    const struct dp_ep_vt *ep_vt;
    /* 1: shared experts and the sum of a token's rows are separate calls (see dp_moe_vt_t), so that
     * shared experts run beside dispatch or combine. The bits are the same. DP_ERR_UNSUPPORTED: the
     * plugin has no such calls */
    uint32_t apart;
    /* 1: dispatch, combine and their backwards post the rows (dp_comm_vt_t.exchange_post), and the
     * call that needs them waits first (see dp_moe_vt_t). All calls are then on the compute lane.
     * The bits are the same. DP_ERR_UNSUPPORTED: the plugin or the comm cannot, or ep_vt is not
     * NULL. 64 bits: behind what was padding */
    uint64_t posted;
} dp_moe_config_t;
enum { DP_MOE_CONFIG_MIN = DP_SIZE_TO(dp_moe_config_t, ep_vt) };

/** A call's io and what only MoE needs. Borrowed as dp_io_t. */
typedef struct dp_moe_io {
    uint32_t struct_size;
    const dp_io_t *io; /* required */
    /* loss scale of the auxiliary loss: its gradient is multiplied by this. 0: no gradient */
    float aux_scale;
    /* route adds this micro-batch's auxiliary loss, not scaled, in the order of its stream; device
     * memory. NULL: not wanted */
    double *aux_loss;
    /* route, with config.replicas: [R] the expert that replica r is of, device memory. Every expert
     * has one at least. It may change between steps, for each layer on its own, the same on all
     * ranks of the group. It is read when the stream gets there, and by no later call of the
     * micro-batch */
    const int32_t *placement;
    /* route adds 1 to loads[e] for each token that chose expert e, in the order of its stream: [E]
     * of the whole layer, replicas or not, in device memory. NULL: not wanted. DP_ERR_UNSUPPORTED
     * from route: the plugin does not count */
    int64_t *loads;
} dp_moe_io_t;
enum { DP_MOE_IO_MIN = DP_SIZE_TO(dp_moe_io_t, placement) };

/* Where data live between the calls: h, routing and whatever backward needs in saved. Buffers that
 * only connect the calls of one pass (rows, gradients of n) are in work. params and saved are the
 * same memory in all calls of a micro-batch, work in all calls of one forward and in all of one
 * backward. The two *_backward_weight get no work. Scratch belongs to the lane: it is another for
 * each call. Every call may read params and saved and write saved, work and scratch; what else it
 * reads and writes is said below, with io.x for io->io->x. Each pass of a micro-batch makes all its
 * calls in the order above. Passes of different micro-batches may interleave (F&B pairs), in the
 * same order on all ranks of the expert group. The [all-to-all] calls of one instance go to one
 * stream; the host orders the streams by events, so that each call finds what the one before it
 * left. All functions but experts_recompute, about and those behind it are required. All calls are
 * [enqueue s] and [capture]; those marked [compute] also [sm<=share]. Every call may use backward
 * buffers, too (block.h). */
typedef struct dp_moe_vt {
    uint32_t struct_size;
    uint32_t caps; /* 0: there are none yet. What a plugin does not do it refuses at open */
    /** One instance serves all layers of one rank. Opens its exchanges on comm; the caller calls
     *  comm start() afterwards. *moe_out is set only on success. DP_ERR_INVALID: a size or switch
     *  that cannot be, an eps, scale or alpha that is negative or not finite; DP_ERR_UNSUPPORTED: a
     *  dtype, device or comm that this plugin does not take; DP_ERR_OVERFLOW: more rows or elements
     *  than it can count. [blocks] [collective] */
    dp_status_t (*open)(const dp_host_t *host, const dp_moe_config_t *config, dp_moe_t **moe_out);
    /** Not in the middle of a step; before the comm closes. NULL: nothing. */
    void (*close)(dp_moe_t *moe);
    /** The caller sets sizes_out->struct_size; the plugin answers with dp_sized_put. The same after
     * each call. */
    dp_status_t (*sizes)(const dp_moe_t *moe, dp_block_sizes_t *sizes_out);
    /** Fills params_out[sizes.nparams], every member of each. */
    dp_status_t (*params)(const dp_moe_t *moe, dp_param_t *params_out);

    /** [compute] h = io.x -> routing, rows to send. io.x is not needed afterwards. How often each
     *  expert was chosen goes to saved: route_backward_weight adds it to the gradient of the
     * bias. */
    dp_status_t (*route)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);
    /** [all-to-all] rows to the experts' ranks. */
    dp_status_t (*dispatch)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);
    /** [compute] local experts on received rows; shared experts on own tokens. */
    dp_status_t (*experts)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);
    /** [all-to-all] rows back, summed into io.y. */
    dp_status_t (*combine)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);

    /** [all-to-all] rows of io.dy, and their weights, to the experts' ranks. io.dy is not needed
     * afterwards. */
    dp_status_t (*combine_backward)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);
    /** [compute] gradients of the received rows and of their weights; shared experts' input
     * gradient. */
    dp_status_t (*experts_backward_input)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);
    /** [compute] adds to the gradients of local and shared experts. After experts_backward_input,
     * maybe much later. */
    dp_status_t (*experts_backward_weight)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);
    /** [all-to-all] row gradients back to the tokens' owners. */
    dp_status_t (*dispatch_backward)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);
    /** [compute] gradient of h into io.dx (NULL: not wanted): residual, experts, router, auxiliary
     * loss, norm. */
    dp_status_t (*route_backward_input)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);
    /** [compute] adds to the gradients of norm and router, and the chosen counts to that of
     * bias. */
    dp_status_t (*route_backward_weight)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);

    /** [compute] What experts had in the backward buffer is
     *  there again. Where sizes.recomputes says so, before experts_backward_input and maybe beside
     *  combine_backward; has no work, and leaves alone what that writes. */
    dp_status_t (*experts_recompute)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);

    /** NULL, or how this instance computes, where it has a choice, for reports: "products of
     *  experts: mma.sync". A line without its end; the instance's. [any] */
    const char *(*about)(const dp_moe_t *moe);

    /* With config.posted dispatch is awaited by experts, combine by sum, combine_backward by
     * experts_backward_input, dispatch_backward by route_backward_input. All are on one stream, and
     * sum and sum_backward are calls as below, with config.apart 0 as well.
     *
     * With config.apart:
     *
     *   forward   route | dispatch | experts | combine | sum      shared: after route, before sum
     *   backward  sum_backward | combine_backward | experts_backward_* | dispatch_backward |
     *             route_backward_*         shared_backward_input: after sum_backward, before
     *             dispatch_backward begins; shared_backward_weight: after it
     *
     * `shared` may run beside dispatch, experts and combine, shared_backward_input beside
     * combine_backward: they share no memory that any of these writes. combine then does not write
     * io.y, combine_backward does not read io.dy, and experts and its backwards leave out shared
     * experts. All are [compute] [enqueue s] [capture] [sm<=share]. */

    /** shared experts on own tokens. */
    dp_status_t (*shared)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);
    /** h, shared experts and the rows that came back, into io.y. */
    dp_status_t (*sum)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);
    /** keeps io.dy for the others. */
    dp_status_t (*sum_backward)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);
    dp_status_t (*shared_backward_input)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);
    /** adds to the gradients of shared experts; without work, as the others. */
    dp_status_t (*shared_backward_weight)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);
    /** as experts_recompute, of shared experts, before shared_backward_input. */
    dp_status_t (*shared_recompute)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);
} dp_moe_vt_t;
enum { DP_MOE_VT_MIN = DP_SIZE_TO(dp_moe_vt_t, about) };

#ifdef __cplusplus
}
#endif
#endif
