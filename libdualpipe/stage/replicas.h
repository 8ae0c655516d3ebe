/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * replicas.h: experts that live on several ranks: their gradients summed, their parameters moved.
 * The public side is replicas.h. */
#ifndef DP_STAGE_REPLICAS_H
#define DP_STAGE_REPLICAS_H

#include <dualpipe/replicas.h>

/* What the layers of one rank share: staging memory, an exchange on the expert group, a stream. */
typedef struct dp__replicas dp__replicas_t;

typedef struct dp__replicas_config {
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
} dp__replicas_config_t;

/* Allocates staging memory, (R + n) blocks of at most 64 KiB and min(E, R - E) gradients of an
 *  expert, and opens an exchange on comm; the caller calls comm start() afterwards (a pipeline
 *  does). Config is copied; device and comm outlive the object. DP_ERR_INVALID: sizes that cannot
 *  be; DP_ERR_UNSUPPORTED: a comm without exchanges. [main] */
dp_status_t dp__replicas_open(const dp__replicas_config_t *config, dp__replicas_t **replicas_out);
/* While the device and the comm are still open. NULL is allowed. [main] */
void dp__replicas_close(dp__replicas_t *replicas);
/* Bytes of device memory that it holds; the exchange is in the comm's memory_bytes. */
size_t dp__replicas_bytes(const dp__replicas_t *replicas);

/* DP_OK when placement [replicas] names experts 0 ... experts - 1 alone and every one of them; else
 *  DP_ERR_INVALID with the replica or the expert at fault. [any] */
dp_status_t dp__replicas_check(uint32_t experts, uint32_t replicas, const int32_t *placement);

/*
 * Sums gradients over the replicas of each expert; afterwards all replicas of an expert have the
 * sum, with the same
 * bits. placement  [R] host memory, the same on all ranks; read during the call.
 * grads      device memory, [R/n, expert_count] of the accumulator's dtype: this rank's replicas.
 *            In and out.
 * s          starts after all work already on it. Traffic: the gradients of those experts that have
 *            more than one
 * replica.
 * [enqueue s] [collective] over the expert group
 */
dp_status_t dp__replicas_sum(dp__replicas_t *replicas, const int32_t *placement, void *grads, dp_stream_t *s);

/*
 * Gives every replica of placement `to` what belongs to its expert under `from`. Only what changes
 * is sent: a replica whose expert stays is left alone, one whose expert is on this rank already is
 * copied, the rest is sent, by the expert's old replicas in turn. No step may run meanwhile.
 * from, to   [R] host memory, the same on all ranks.
 * memories   [count] parameters, optimizer state and so on; the same sizes in the same order on all
 *            ranks.
 * sent_out   bytes that went from one rank to another, over the whole group; the same on all ranks.
 *            NULL: not wanted.
 * Errors: DP_ERR_INVALID for a placement that cannot be (nothing was moved); what comm and device
 * fail with, after which the memories hold a mixture. [main] [blocks] [collective] over the expert
 * group
 */
dp_status_t dp__replicas_move(dp__replicas_t *replicas, const int32_t *from, const int32_t *to,
                              const dp_replica_memory_t *memories, int32_t count, uint64_t *sent_out);

/*
 * The same in two calls. begin enqueues all of it; what arrives is put into spare memory, so steps
 * that only read the memories may run. end waits, copies it into place and frees the spare memory.
 * No other move begins between them. Where a transfer fails the memories hold what they held, and
 * close frees the rest. [main] [collective], end [blocks]
 */
dp_status_t dp__replicas_begin(dp__replicas_t *replicas, const int32_t *from, const int32_t *to,
                               const dp_replica_memory_t *memories, int32_t count, uint64_t *sent_out);
dp_status_t dp__replicas_end(dp__replicas_t *replicas);

/*
 * Makes a MoE layer one with replicated experts; between dp_moe_layer_part, whose MoE instance was
 * opened with config.replicas, and dp_stage_create. placement [R]: what the layer begins with,
 * copied. *part is the layer's; gets a `reduce`. replicas outlives the layer. DP_ERR_MISMATCH: the
 * MoE instance's parameters are not R/n replicas of expert_count elements. [main]
 */
dp_status_t dp__moe_layer_replicate(dp_moe_layer_t *layer, dp__replicas_t *replicas, const int32_t *placement,
                                    dp_part_t *part);

const dp__replicas_config_t *dp__replicas_config(const dp__replicas_t *replicas);

/* Device memory for a placement, which goes with the replicas: a layer is freed when the device is
 * gone. */
dp_status_t dp__replicas_allocate(dp__replicas_t *replicas, int32_t **device_placement_out);
/* Waits until it is there. */
dp_status_t dp__replicas_write(dp__replicas_t *replicas, int32_t *device_placement, const int32_t *placement);

#endif
