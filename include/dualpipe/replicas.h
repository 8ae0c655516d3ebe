/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * replicas.h: experts that live on several ranks at once: their gradients summed, their parameters moved.
 *
 * Popular experts get replicas, so that the ranks of an expert group have equal shares of the tokens (EPLB: eplb.h
 * plans, moe.h computes, this file keeps the parameters right). A layer has E experts and R >= E replicas; rank p of n
 * holds replicas p*R/n ... (p+1)*R/n - 1; a placement [R] names the expert of each, every expert at least once.
 * Replicas of an expert start with the same parameters, get the same summed gradient and so, under an optimizer that
 * treats elements alike, stay equal to the last bit. Between two steps a layer may get another placement: whatever
 * belongs to an expert (parameters, optimizer state, fp32 masters) goes to its new replicas, and the loss does not
 * notice beyond the rounding of matrix products.
 *
 *     build (of a pipeline)  dp_replicas_open;  dp_moe_layer_part, dp_moe_layer_replicate;  dp_stage_create
 *     step ... step          the engine sums gradients over replicas after all other sums (dp_part_t.reduce)
 *     between steps          dp_moe_layer_place(layer, new placement, what follows an expert)
 *
 * Order of a gradient's sum: the micro-batches of a replica in rising order, halves, data group, then the replicas:
 * those of one rank in rising order, ranks in rising order. So one placement gives one result, to the bit, whoever
 * computes it. Source: EPLB, https://github.com/deepseek-ai/EPLB; DeepSeek-V3 report, arXiv 2412.19437, section 3.4. */
#ifndef DUALPIPE_REPLICAS_H
#define DUALPIPE_REPLICAS_H

#include <dualpipe/attention.h>
#include <dualpipe/comm.h>
#include <dualpipe/moe.h>
#include <dualpipe/stage.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * A MoE transformer layer as a part: attention and route, dispatch, experts, combine, from one attention and one MoE
 * instance (both serve all layers of a rank; moe_block.h opens them by name). Their lanes and roles are those of the
 * canonical order, their parameters are called "attention.wq", "moe.router" and so on. *part_out, its struct_size set
 * by the caller, points into *layer_out, which is freed with
 * dp_moe_layer_free after the stage's last step. [any]
 */
typedef struct dp_moe_layer dp_moe_layer_t;
DP_API dp_status_t dp_moe_layer_part(const dp_attention_vt_t *attention_vt, dp_attention_t *attention,
                                     const dp_moe_vt_t *moe_vt, dp_moe_t *moe, dp_dtype_t dtype, size_t boundary_bytes,
                                     dp_moe_layer_t **layer_out, dp_part_t *part_out);
/** NULL is allowed. [any] */
DP_API void dp_moe_layer_free(dp_moe_layer_t *layer);

/** What the layers of one rank share: staging memory, an exchange on the expert group, a stream. */
typedef struct dp_replicas dp_replicas_t;

typedef struct dp_replicas_config {
    uint32_t struct_size;
    uint32_t experts;    /* E */
    uint32_t replicas;   /* R, divisible by comm_size */
    size_t expert_count; /* elements of one expert's parameters (3 d f, see moe.h) */
    dp_dtype_t dtype;    /* of the parameters; gradients have dp_dtype_accumulator() of it */
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    const dp_comm_vt_t *comm_vt; /* the expert group */
    dp_comm_t *comm;
    int32_t comm_rank, comm_size;
    uint32_t exchange_id; /* one exchange id on comm that no other uses (a MoE instance takes 4) */
} dp_replicas_config_t;
#define DP_REPLICAS_CONFIG_MIN DP_SIZE_TO(dp_replicas_config_t, exchange_id)

/** Allocates staging memory, (R + n) pieces of at most 64 KiB and min(E, R - E) gradients of an expert, and opens an
 *  exchange on comm; the caller calls comm start() afterwards (a pipeline does). Config is copied; device and comm
 *  outlive the object. DP_ERR_INVALID: sizes that cannot be; DP_ERR_UNSUPPORTED: a comm without exchanges. [main] */
DP_API dp_status_t dp_replicas_open(const dp_replicas_config_t *config, dp_replicas_t **replicas_out);
/** While the device and the comm are still open. NULL is allowed. [main] */
DP_API void dp_replicas_close(dp_replicas_t *replicas);
/** Bytes of device memory that it holds; the exchange is in the comm's memory_bytes. */
DP_API size_t dp_replicas_bytes(const dp_replicas_t *replicas);

/** DP_OK when placement [replicas] names experts 0 ... experts - 1 alone and every one of them; else DP_ERR_INVALID
 *  with the replica or the expert at fault. [any] */
DP_API dp_status_t dp_replicas_check(uint32_t experts, uint32_t replicas, const int32_t *placement);

/** A placement to begin with, before any load is known: replica r is of expert r mod E. placement_out [replicas].
 *  [any] */
DP_API void dp_replicas_first_placement(uint32_t experts, uint32_t replicas, int32_t *placement_out);

/**
 * Sums gradients over the replicas of each expert; afterwards all replicas of an expert have the sum, with the same
 * bits. placement  [R] host memory, the same on all ranks; read during the call.
 * grads      device memory, [R/n, expert_count] of the accumulator's dtype: this rank's replicas. In and out.
 * s          starts after all work already on it. Traffic: the gradients of those experts that have more than one
 * replica.
 * [enqueue s] [collective] over the expert group
 */
DP_API dp_status_t dp_replicas_sum(dp_replicas_t *replicas, const int32_t *placement, void *grads, dp_stream_t *s);

/** Memory that belongs to this rank's replicas, one block of `bytes` for each, in order: [R/n][bytes], device
 *  memory.
 *  Frozen: never grows; `reserved` is zero. */
typedef struct dp_replica_memory {
    void *memory;
    size_t bytes;
    uint64_t reserved[2];
} dp_replica_memory_t;

/**
 * Gives every replica of placement `to` what belongs to its expert under `from`. Only what changes travels: a replica
 * whose expert stays is left alone, one whose expert is on this rank already is copied, the rest is sent, by the
 * expert's old replicas in turn. No step may run meanwhile.
 * from, to   [R] host memory, the same on all ranks.
 * memories   [count] parameters, optimizer state and so on; the same sizes in the same order on all ranks.
 * sent_out   bytes that went from one rank to another, over the whole group; the same on all ranks. NULL: not wanted.
 * Errors: DP_ERR_INVALID for a placement that cannot be (nothing was moved); what comm and device fail with, after
 * which the memories hold a mixture. [main] [blocks] [collective] over the expert group
 */
DP_API dp_status_t dp_replicas_move(dp_replicas_t *replicas, const int32_t *from, const int32_t *to,
                                    const dp_replica_memory_t *memories, int32_t count, uint64_t *sent_out);

/**
 * Makes a MoE layer one with replicated experts; between dp_moe_layer_part, whose MoE instance was opened with
 * config.replicas, and dp_stage_create. placement [R]: what the layer begins with, copied. *part is the layer's; gets a
 * `reduce`. replicas outlives the layer. DP_ERR_MISMATCH: the MoE instance's parameters are not R/n replicas of
 * expert_count elements; DP_ERR_UNSUPPORTED: its plugin has no DP_MOE_CAP_REPLICAS. [main]
 */
DP_API dp_status_t dp_moe_layer_replicate(dp_moe_layer_t *layer, dp_replicas_t *replicas, const int32_t *placement,
                                          dp_part_t *part);
/** The placement in use, [R], owned by the layer; NULL without replicas. */
DP_API const int32_t *dp_moe_layer_placement(const dp_moe_layer_t *layer);
/** Moves the memories (as dp_replicas_move; parameters among them) and makes `placement` that of the following steps.
 *  The same call on all ranks of the expert group, and the same placement for this layer in its mirror and in all data
 *  groups.
 *  [main] [blocks] [collective] over the expert group */
DP_API dp_status_t dp_moe_layer_place(dp_moe_layer_t *layer, const int32_t *placement,
                                      const dp_replica_memory_t *memories, int32_t count, uint64_t *sent_out);

#ifdef __cplusplus
}
#endif
#endif
