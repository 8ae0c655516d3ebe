/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * adamw.c: the optimizer: its factors, what it updates, and calls of its kernels. */
#include "kernels.h"

#include <math.h>

double learning_rate(const options_t *o, int64_t step)
{
    double progress;

    if (step < o->warmup)
        return o->lr * (double)(step + 1) / (double)o->warmup;
    progress = o->steps - 1 > o->warmup ? (double)(step - o->warmup) / (double)(o->steps - 1 - o->warmup) : 1;
    return o->min_lr + (o->lr - o->min_lr) * (1 + cos(3.141592653589793 * progress)) / 2;
}

/* p -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) + lr * weight_decay * p */
adamw_factors_t adamw_factors(const options_t *o, int64_t step, double grad_scale)
{
    const double lr = learning_rate(o, step), t = (double)step + 1;

    return (adamw_factors_t){
        .keep_mean = o->beta1,
        .keep_squares = o->beta2,
        .grad = grad_scale,
        .rate = lr / (1 - pow(o->beta1, t)),
        .unbias_squares = 1 / (1 - pow(o->beta2, t)),
        .epsilon = o->epsilon,
        .shrink = 1 - lr * o->weight_decay,
    };
}

void adamw_list_ranges(const dp_chunk_view_t *chunk, adamw_ranges_t *ranges)
{
    ranges->number = 0;
    ranges->count = 0;
    for (uint32_t i = 0; i < chunk->nshards; i++) {
        const dp_shard_t *shard = &chunk->shard_list[i];
        const dp_param_t *p = &chunk->param_list[shard->param];
        const size_t first = p->offset + shard->first;
        const uint64_t decays = p->kind == DP_PARAM_MATRIX;
        adamw_range_t *last = ranges->number > 0 ? &ranges->list[ranges->number - 1] : NULL;

        if (p->kind == DP_PARAM_ROUTER_BIAS)
            continue;
        if (last != NULL && last->decays == decays && last->first + last->count == first &&
            last->at + last->count == shard->at)
            last->count += shard->count;
        else
            ranges->list[ranges->number++] = (adamw_range_t){ranges->count, first, shard->count, shard->at, decays};
        ranges->count += shard->count;
    }
}

void adamw_update_chunk(dp_dtype_t dtype, const adamw_factors_t *f, const adamw_tensor_t *chunk,
                        const adamw_ranges_t *ranges)
{
    for (uint32_t i = 0; i < ranges->number; i++)
        kernels_of(dtype)->adamw(f, chunk, &ranges->list[i]);
}

#define BALANCE_LOOP(REAL)                                                                                             \
    do {                                                                                                               \
        REAL *b = bias;                                                                                                \
        const REAL *count = counts;                                                                                    \
        REAL mean = 0;                                                                                                 \
        for (size_t e = 0; e < experts; e++)                                                                           \
            mean += count[e] / (REAL)experts;                                                                          \
        for (size_t e = 0; e < experts; e++)                                                                           \
            b[e] += (REAL)rate * (REAL)((mean > count[e]) - (mean < count[e]));                                        \
    } while (0)

void balance_update(dp_dtype_t dtype, double rate, void *bias, const void *counts, size_t experts)
{
    if (dtype == DP_F64)
        BALANCE_LOOP(double);
    else
        BALANCE_LOOP(float);
}

void sum_of_squares(dp_dtype_t dtype, const void *values, size_t count, double *sums)
{
    const size_t element = dp_dtype_bytes(dtype);

    for (size_t at = 0; at < count; at += DP_SHARD_BLOCK)
        sums[at / DP_SHARD_BLOCK] = kernels_of(dtype)->sum_of_squares(
            (const char *)values + at * element, count - at < DP_SHARD_BLOCK ? count - at : DP_SHARD_BLOCK);
}
