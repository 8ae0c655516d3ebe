/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * compute.h: interface "org.dualpipe.train_moe/4": what this trainer computes itself on a device:
 * the two ends of the model, the optimizer, sums of squares. A custom interface, served by plugins
 * like those of the library: compute_cpu.c is built in, devices that cannot run host functions
 * bring a plugin "train_moe_<device>".
 *
 * embedding   y = table[token]; input: uint8_t [T]; params: table [256, d]
 * head        logits = RMSNorm(x) W; target: uint8_t [T], the byte that follows each token; output:
 *             logits, accumulator dtype [T, 256]. Loss: mean over the tokens of the cross-entropy
 *             in nats. params: norm [d], w [d, 256]; tied: w is laid out as the table, [256, d],
 *             and W its transpose
 *
 * The state of the optimizer is kept in the accumulator's dtype (fp32 for bf16). Inputs, targets
 * and outputs are memory that host and device both reach. Nothing here allocates after open or
 * waits for the device. */
#ifndef TRAIN_MOE_COMPUTE_H
#define TRAIN_MOE_COMPUTE_H

#include <dualpipe/pipeline.h>

#define VOCAB 256 /* a token is a byte */

#define COMPUTE_IFACE "org.dualpipe.train_moe/4"

typedef struct compute compute_t;

typedef struct compute_config {
    uint32_t struct_size;
    dp_block_shape_t shape;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    uint32_t tied; /* 1: the head's matrix is the embedding's table */
} compute_config_t;

/* p = p * shrink - rate * mean / (sqrt(squares * unbias_squares) + epsilon), after
 * mean = keep_mean * mean + (1 - keep_mean) * grad * g, squares the same with (grad * g)^2. */
typedef struct adamw_factors {
    double keep_mean, keep_squares, grad, rate, unbias_squares, epsilon, shrink;
} adamw_factors_t;

/* Elements of a chunk that follow each other and are all updated; shrink applies to those that
 * decay, 1 to others. */
typedef struct adamw_range {
    size_t before; /* elements of the ranges in front of this one */
    size_t first, count;
    size_t at;       /* where master, mean and squares have the first of them */
    uint64_t decays; /* 1 or 0 */
} adamw_range_t;

/* What the optimizer updates of a chunk, in rising order. The list is memory that host and device
 * reach. */
typedef struct adamw_ranges {
    adamw_range_t *list;
    uint32_t number;
    size_t count; /* elements of all ranges */
} adamw_ranges_t;

/* One tensor in device memory, or a whole chunk. */
typedef struct adamw_tensor {
    void *params;         /* dtype */
    void *master;         /* DP_BF16: fp32, what params is the rounding of; otherwise NULL */
    void *mean, *squares; /* accumulator's dtype, zero at first */
    const void *grads;    /* accumulator's dtype */
    size_t count;
} adamw_tensor_t;

typedef struct compute_vt {
    uint32_t struct_size;
    dp_status_t (*open)(const dp_host_t *host, const compute_config_t *config, compute_t **compute_out);
    void (*close)(compute_t *compute);
    /* saved_bytes, work_bytes and scratch_bytes of the two parts; the rest is left alone. */
    void (*sizes)(const compute_t *compute, dp_block_sizes_t *embedding, dp_block_sizes_t *head);
    dp_segment_t embedding, head; /* of the two parts, all but `self`: the compute_t */

    /* s may be NULL on devices whose memory is the host's: the work is done when the call
     * returns. */
    /* Updates these ranges of a chunk, all in one go; the chunk's count is ignored. */
    dp_status_t (*adamw)(compute_t *compute, const adamw_factors_t *factors, const adamw_tensor_t *chunk,
                         const adamw_ranges_t *ranges, dp_stream_t *s);
    /* The router's bias: experts chosen less often than the mean go up by rate, the others down.
     * bias: only params, master, grads (the counts) and count (experts) are looked at. */
    dp_status_t (*balance)(compute_t *compute, double rate, const adamw_tensor_t *bias, dp_stream_t *s);
    /* sums_out[i] (memory that host and device reach) = sum of the squares of block i of the
     * values, accumulator's dtype, in double, in an order that depends on the block's size alone:
     * DP_SHARD_BLOCK, or what is left at the end.
     */
    dp_status_t (*sum_of_squares)(compute_t *compute, const void *values, size_t count, double *sums_out,
                                  dp_stream_t *s);
} compute_vt_t;

extern const compute_vt_t compute_cpu;

#endif
