/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * replicas.h: MoE layers, and experts of theirs that live on several ranks.
 *
 * Popular experts get several replicas, so that the ranks of an expert group have equal shares of
 * the tokens. eplb.h plans them, the MoE plugin computes them, the layer keeps their parameters
 * right. A layer has E experts and R >= E replicas; rank p of n holds replicas p*R/n to (p+1)*R/n -
 * 1. A placement [R] names the expert of each; every expert occurs in it. Replicas of an expert
 * start with the same parameters and get the same summed gradient. Under an optimizer that treats
 * elements alike they stay equal to the last bit. Between two steps dp_moe_layer_place may give a
 * layer another placement. All that belongs to an expert goes to its new replicas: parameters,
 * optimizer state, fp32 masters. The loss changes by no more than the rounding of matrix products.
 *
 * A gradient is summed in this order: micro-batches of a replica in rising order, halves, data
 * group, replicas of one rank in rising order, ranks in rising order. So one placement gives one
 * result, to the bit. Source: EPLB, https://github.com/deepseek-ai/EPLB; DeepSeek-V3 report, arXiv
 * 2412.19437, section 3.4.
 *
 * Since 0.2: dp_moe_layer_count, dp_moe_layer_place_begin, dp_moe_layer_place_end. */
#ifndef DUALPIPE_REPLICAS_H
#define DUALPIPE_REPLICAS_H

#include <dualpipe/attention.h>
#include <dualpipe/moe.h>
#include <dualpipe/stage.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_moe_layer dp_moe_layer_t;

/** A placement before any load is known: replica r is of expert r mod E. placement_out: [replicas].
 *  [any] */
DP_API void dp_replicas_first_placement(uint32_t experts, uint32_t replicas, int32_t *placement_out);

/** Memory of this rank's replicas: one block of `bytes` for each, in order, [R/n][bytes]; device
 *  memory. Frozen: never grows; `reserved` is zero. */
typedef struct dp_replica_memory {
    void *memory;
    size_t bytes;
    uint64_t reserved[2];
} dp_replica_memory_t;

/**
 * Gives a layer another placement between two steps, and every replica what belongs to its expert.
 * Only what changes moves: a replica whose expert stays is left alone, one whose expert is on this
 * rank is copied, the rest is sent by the expert's old replicas in turn.
 * placement  [R] host memory, the same on all ranks of the expert group, in the layer's mirror and
 *            in all data groups; for the steps that follow.
 * memories   [count] parameters, optimizer state and so on; the same sizes in the same order on all
 *            ranks.
 * sent_out   bytes sent between ranks, over the whole group, the same on all ranks. NULL: not
 *            wanted.
 * DP_ERR_INVALID: the placement cannot be, the layer has no replicas, or a layer of this rank is
 * moving (dp_moe_layer_place_begin); nothing was moved. After an error of comm or device the
 * memories hold a mixture. [main] [blocks] [collective] over the expert group
 */
DP_API DP_CHECKED dp_status_t dp_moe_layer_place(dp_moe_layer_t *layer, const int32_t *placement,
                                                 const dp_replica_memory_t *memories, int32_t count,
                                                 uint64_t *sent_out);

/**
 * dp_moe_layer_place beside steps that have forwards alone. Begin puts the move under way and
 * returns, end switches the placement. Steps between the two calls run under the old one. What
 * arrives at this rank waits in spare device memory, as large as its replicas that change. Begin
 * allocates it, end frees it. Begin waits where the move is more than a stream holds
 * (dp_device_config_t.queue_length). One layer of a rank moves at a time.
 *
 * Nobody writes to the memories before end has returned. So a training step fails, DP_ERR_INVALID:
 * what its update writes behind the copy would be lost, and its gradients would lie as the old
 * placement has them. Captured steps (dp_pipeline_options_t.graph) want streams that are idle:
 * there place experts by dp_moe_layer_place.
 *
 * Arguments and errors as of dp_moe_layer_place, but for the memories themselves all may go when
 * begin returns. DP_ERR_INVALID also: a layer of this rank is moving. After DP_ERR_NOMEM or an
 * error of comm or device close the pipeline: the other ranks wait for this one. [main]
 * [collective] over the expert group
 */
DP_API DP_CHECKED dp_status_t dp_moe_layer_place_begin(dp_moe_layer_t *layer, const int32_t *placement,
                                                       const dp_replica_memory_t *memories, int32_t count,
                                                       uint64_t *sent_out);
/** Between two steps, the same two on all ranks of the expert group. DP_ERR_INVALID: this layer is
 *  not moving. A transfer of the move that failed is told here, or by a step before: the old
 *  placement holds, the memories are as they were, and the pipeline is to be closed. A move that
 *  nobody ends is dropped when the pipeline is closed. [main] [blocks] [collective] over the expert
 *  group */
DP_API DP_CHECKED dp_status_t dp_moe_layer_place_end(dp_moe_layer_t *layer);

/** From the next step on the forwards of a layer add the tokens that chose each expert to loads
 *  [experts], memory of the device that the layer's rank computes on: what eplb.h plans with where
 *  steps have no gradients. The caller zeroes it, sums it over the expert group and over the copies
 *  of the stage, and keeps it until the pipeline is closed or loads is NULL, which ends it. Not in
 *  the middle of a step. A MoE plugin that cannot count refuses the step, DP_ERR_UNSUPPORTED.
 *  [main] */
DP_API void dp_moe_layer_count(dp_moe_layer_t *layer, int64_t *loads);

/**
 * A layer of instances that the trainer has opened itself: one of attention and one of MoE, which
 * serve all layers of a rank. *part_out (struct_size set by the caller) points into *layer_out,
 * which the caller frees with dp_moe_layer_free after the stage's last step. [any]
 */
DP_API DP_CHECKED dp_status_t dp_moe_layer_part(const dp_attention_vt_t *attention_vt, dp_attention_t *attention,
                                                const dp_moe_vt_t *moe_vt, dp_moe_t *moe, dp_dtype_t dtype,
                                                size_t boundary_bytes, dp_moe_layer_t **layer_out, dp_part_t *part_out);
/** Frees a layer of dp_moe_layer_part. NULL is allowed. [any] */
DP_API void dp_moe_layer_free(dp_moe_layer_t *layer);

#ifdef __cplusplus
}
#endif
#endif
