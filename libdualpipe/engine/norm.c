/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * norm.c: the norm of the whole model's gradient. The squares of a block of a parameter are added
 * in the order of its elements; the sums of blocks are added without rounding, so that it does not
 * matter which rank has which. */
#include "base/do.h"
#include "engine/engine.h"

#include <math.h>
#include <stdbool.h>

/* Doubles of any size add up exactly in digits of 32 bits, the least first: digit i counts 2^(32 i
 * - 1074). */
enum { DIGIT_BITS = 32, DIGITS = 70, LEAST = -1074 };

typedef struct exact {
    uint64_t digit[DIGITS];
    uint32_t added;
    bool finite; /* all that was added */
} exact_t;

static void carry(exact_t *sum)
{
    for (int i = 0; i + 1 < DIGITS; i++) {
        sum->digit[i + 1] += sum->digit[i] >> DIGIT_BITS;
        sum->digit[i] &= UINT32_MAX;
    }
}

/* value >= 0, or not finite. A digit has room for 2^32 of them between two carries. */
static void add_square(exact_t *sum, double value)
{
    int exponent, at;
    unsigned __int128 bits;

    if (!isfinite(value) || value < 0) {
        sum->finite = false;
        return;
    }
    /* value = bits * 2^(exponent - 53) */
    bits = (unsigned __int128)ldexp(frexp(value, &exponent), 53);
    at = exponent - 53 - LEAST;
    if (at < 0) {
        bits >>= -at; /* of numbers below the normal ones these bits are zero */
        at = 0;
    }
    bits <<= at % DIGIT_BITS;
    for (int i = at / DIGIT_BITS; bits != 0; i++, bits >>= DIGIT_BITS)
        sum->digit[i] += (uint32_t)bits;
    if (++sum->added == 0)
        carry(sum);
}

static double value_of(const exact_t *sum)
{
    unsigned __int128 bits = 0;
    int top = DIGITS - 1;

    while (top > 2 && sum->digit[top] == 0)
        top--;
    for (int i = top; i > top - 3; i--)
        bits = bits << DIGIT_BITS | sum->digit[i];
    for (int i = top - 3; i >= 0; i--) /* what is below decides ties alone */
        bits |= sum->digit[i] != 0;
    return ldexp((double)bits, DIGIT_BITS * (top - 2) + LEAST);
}

/* ---- squares ---- */

static double squares(const void *values, size_t count, dp_dtype_t dtype)
{
    const double *wide = values;
    const float *narrow = values;
    double sum = 0;

    for (size_t i = 0; i < count && dtype == DP_F64; i++)
        sum += wide[i] * wide[i];
    for (size_t i = 0; i < count && dtype == DP_F32; i++)
        sum += (double)narrow[i] * (double)narrow[i];
    return sum;
}

/* Adds the squares of a shard, whose blocks are those of its parameter. Memory that the host does
 * not reach is copied a few blocks at a time. */
static dp_status_t add_squares(dp_pipeline_t *p, const char *grads, size_t count, exact_t *sum)
{
    const dp_dtype_t dtype = dp_dtype_accumulator(p->options.dtype);
    const size_t size = dp_dtype_bytes(dtype), most = p->host_memory ? count : DP__SUM_COUNT * sizeof(double) / size;
    dp_stream_t *s = p->lanes.stream[DP_LANE_REDUCE];

    for (size_t at = 0; at < count; at += most) {
        const size_t n = count - at < most ? count - at : most;
        const char *here = p->host_memory ? grads : (const char *)p->sums.staging;

        if (!p->host_memory) {
            DO(p->device_vt->copy(s, p->sums.staging, grads + at * size, n * size));
            DO(p->device_vt->synchronize(s, -1));
        }
        for (size_t i = 0; i < n; i += DP_SHARD_BLOCK)
            add_square(sum, squares(here + i * size, n - i < DP_SHARD_BLOCK ? n - i : DP_SHARD_BLOCK, dtype));
    }
    return DP_OK;
}

/* ---- who counts what ---- */

bool dp__first_replica(const int32_t *placement, int32_t replica)
{
    for (int32_t r = 0; placement != NULL && r < replica; r++)
        if (placement[r] == placement[replica])
            return false;
    return true;
}

static bool counts(const dp_pipeline_t *p, const dp__chunk_t *chunk, const dp__stage_part_t *part,
                   const dp_param_t *param)
{
    if (dp__tie_is_second(p, chunk->place.stage, param))
        return false;
    if (dp__shard_is_cut(p, &part->part, param))
        return true;
    if (chunk->place.path != 0 || p->grid.d != 0)
        return false;
    return param->sharded ? dp__first_replica(part->part.placement, param->expert) : p->grid.e == 0;
}

static bool has_shard(const dp__chunk_t *chunk, uint32_t param)
{
    for (uint32_t i = 0; i < chunk->nshards; i++)
        if (chunk->shards[i].param == param)
            return true;
    return false;
}

int32_t dp_pipeline_counts(const dp_pipeline_t *p, int32_t c, uint32_t param)
{
    const dp__chunk_t *chunk = p != NULL && c >= 0 && c < p->nchunks ? &p->chunks[c] : NULL;
    const dp_stage_t *stage = chunk != NULL ? chunk->stage : NULL;

    for (int32_t i = 0; stage != NULL && i < stage->nparts; i++)
        if (param - stage->parts[i].first_param < stage->parts[i].sizes.nparams)
            return has_shard(chunk, param) && counts(p, chunk, &stage->parts[i], &stage->param_list[param]);
    return 0;
}

static dp_status_t add_chunk(dp_pipeline_t *p, int32_t c, exact_t *sum)
{
    const size_t size = dp_dtype_bytes(dp_dtype_accumulator(p->options.dtype));
    const dp__chunk_t *chunk = &p->chunks[c];

    for (uint32_t i = 0; i < chunk->nshards; i++) {
        const dp_shard_t *shard = &chunk->shards[i];
        const dp_param_t *param = &chunk->stage->param_list[shard->param];

        if (param->kind != DP_PARAM_ROUTER_BIAS && dp_pipeline_counts(p, c, shard->param))
            DO(add_squares(p, dp__summed_grads(chunk) + (param->offset + shard->first) * size, shard->count, sum));
    }
    return DP_OK;
}

/* *sum_out: ours and that of all other ranks. */
static dp_status_t collect_norm(dp_pipeline_t *p, exact_t *sum, double *sum_out)
{
    double digits[DIGITS + 1];

    carry(sum);
    for (int i = 0; i < DIGITS; i++)
        digits[i] = (double)sum->digit[i];
    digits[DIGITS] = sum->finite ? 0 : 1;
    DO(dp_pipeline_sum(p, digits, DIGITS + 1)); /* whole numbers below 2^53: exact */
    for (int i = 0; i < DIGITS; i++)
        sum->digit[i] = (uint64_t)digits[i];
    carry(sum);
    *sum_out = digits[DIGITS] == 0 ? value_of(sum) : (double)NAN;
    return DP_OK;
}

dp_status_t dp_pipeline_exact_sum(dp_pipeline_t *p, const double *values, size_t count, double *sum_out)
{
    exact_t sum = {.finite = true};

    DO(dp__pipeline_check(p, "dp_pipeline_exact_sum"));
    if (sum_out == NULL || (values == NULL && count > 0))
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_exact_sum: %s is NULL", sum_out == NULL ? "sum_out" : "values");
    for (size_t i = 0; i < count; i++)
        add_square(&sum, values[i]);
    return collect_norm(p, &sum, sum_out);
}

dp_status_t dp_pipeline_gradient_norm(dp_pipeline_t *p, double *norm_out)
{
    exact_t sum = {.finite = true};
    double squared = 0;
    dp_status_t status = DP_OK;

    DO(dp__pipeline_check(p, "dp_pipeline_gradient_norm"));
    if (norm_out == NULL || p->schedule->forward_only || p->run.round != 0)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_gradient_norm: norm_out is NULL, or the pipeline has no gradients "
                                       "(a forward-only schedule, rounds still to come)");
    for (int32_t c = 0; c < p->nchunks && status >= 0; c++)
        status = add_chunk(p, c, &sum);
    if (status < 0) {
        status = dp__engine_fail(p, status, "the norm of the gradient");
        dp__engine_settle(p);
        return status;
    }
    status = collect_norm(p, &sum, &squared);
    if (status >= 0)
        *norm_out = sqrt(squared);
    return status;
}
