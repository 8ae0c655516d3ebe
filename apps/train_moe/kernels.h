/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kernels.h: the arithmetic of embedding, head and optimizer on host memory, a table for each
 * element type (kernels_f32.c, kernels_f64.c). T tokens, width d. */
#ifndef TRAIN_MOE_KERNELS_H
#define TRAIN_MOE_KERNELS_H

#include "adamw.h"

typedef struct kernels {
    /* y[t] = table[token[t]] */
    void (*embed)(const void *table, const uint8_t *tokens, void *y, size_t T, size_t d);
    /* dtable[token[t]] += dy[t] */
    void (*embed_backward)(void *dtable, const uint8_t *tokens, const void *dy, size_t T, size_t d);

    /* saved: head_saved_count(T, d) elements, from forward to head_backward_weight; scratch:
     * head_scratch_count(T, d), within a call */

    /* Mean loss over the tokens; output (NULL: none) gets the logits, target NULL: no loss. */
    double (*head)(const void *params, double eps, const void *x, const uint8_t *target, void *output, void *saved,
                   void *scratch, size_t T, size_t d, int tied);
    /* scale: of the gradient of the loss. */
    void (*head_backward_input)(const void *params, double scale, void *saved, void *scratch, void *dx, size_t T,
                                size_t d, int tied);
    void (*head_backward_weight)(const void *params, void *grads, void *saved, void *scratch, size_t T, size_t d,
                                 int tied);

    void (*adamw)(const adamw_factors_t *factors, const adamw_tensor_t *chunk, const adamw_range_t *range);
    double (*sum_of_squares)(const void *values, size_t count);
} kernels_t;

extern const kernels_t kernels_f32, kernels_f64;

static inline const kernels_t *kernels_of(dp_dtype_t dtype)
{
    return dtype == DP_F64 ? &kernels_f64 : &kernels_f32;
}

static inline size_t head_saved_count(size_t T, size_t d)
{
    return T * (2 * d + 1 + VOCAB);
}

static inline size_t head_scratch_count(size_t T, size_t d)
{
    return (T + VOCAB) * d;
}

#endif
