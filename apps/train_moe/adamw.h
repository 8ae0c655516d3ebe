/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * adamw.h: AdamW with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), and
 * helpers: the loops for f32 and f64 in host memory. */
#ifndef TRAIN_MOE_ADAMW_H
#define TRAIN_MOE_ADAMW_H

#include "compute.h"
#include "options.h"

/* Linear warm-up to options->lr, then half a cosine down to min_lr at the last step. step counts
 * from 0. */
double learning_rate(const options_t *options, int64_t step);

/* What one step does to parameters that decay. */
adamw_factors_t adamw_factors(const options_t *options, int64_t step, double grad_scale);
/* Which elements of a chunk the optimizer updates: this rank's shards but for routers' biases,
 * those that follow each other and are alike as one range. list: room for nshards. */
void adamw_list_ranges(const dp_chunk_view_t *chunk, adamw_ranges_t *ranges);
void adamw_update_chunk(dp_dtype_t dtype, const adamw_factors_t *factors, const adamw_tensor_t *chunk,
                        const adamw_ranges_t *ranges);

/* The router's bias: experts chosen less often than the mean go up by rate, the others down. */
void balance_update(dp_dtype_t dtype, double rate, void *bias, const void *counts, size_t experts);

/* Sum of the squares of each block of DP_SHARD_BLOCK values, in double, in order. */
void sum_of_squares(dp_dtype_t dtype, const void *values, size_t count, double *sums);

#endif
