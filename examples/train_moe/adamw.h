/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * adamw.h: AdamW with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), and helpers. */
#ifndef TRAIN_MOE_ADAMW_H
#define TRAIN_MOE_ADAMW_H

#include "options.h"

/* Linear warm-up to options->lr, then half a cosine down to min_lr at the last step. step counts from 0. */
double learning_rate(const options_t *options, int64_t step);

/* One tensor: mean and squares are AdamW's state (zero at first), grads are multiplied by grad_scale. */
typedef struct adamw_tensor {
    void *params, *mean, *squares;
    const void *grads;
    size_t count;
    int decay; /* 1: weight decay applies */
} adamw_tensor_t;
void adamw_update(const options_t *options, int64_t step, double grad_scale, const adamw_tensor_t *tensor);

/* The router's bias: experts chosen less often than the mean go up by options->bias_rate, the others down. */
void balance_update(const options_t *options, void *bias, const void *counts, size_t experts);

/* Sum of the squares, in double, in order. */
double sum_of_squares(dp_dtype_t dtype, const void *values, size_t count);

#endif
