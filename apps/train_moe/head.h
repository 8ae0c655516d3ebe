/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * head.h: the kernels, compiled once per element type. Matrices are row-major. */
#include "kernels.h"

#include "plugins/cpu/dot.h"
#include "plugins/cpu/exp.h"
#include "plugins/cpu/multiply.h"

#include <math.h>
#include <string.h>

/* ---- embedding ---- */

static void embed(const void *table, const uint8_t *tokens, void *y, size_t T, size_t d)
{
    for (size_t t = 0; t < T; t++)
        memcpy((real_t *)y + t * d, (const real_t *)table + tokens[t] * d, d * sizeof(real_t));
}

VECTORISED
static void add_row(real_t *restrict to, const real_t *restrict from, size_t d)
{
    for (size_t i = 0; i < d; i++)
        to[i] += from[i];
}

static void embed_backward(void *dtable, const uint8_t *tokens, const void *dy, size_t T, size_t d)
{
    for (size_t t = 0; t < T; t++)
        add_row((real_t *)dtable + tokens[t] * d, (const real_t *)dy + t * d, d);
}

/* ---- head ---- */

/* What forward keeps for backward, per micro-batch. */
typedef struct head_saved {
    real_t *unit;    /* [T, d] x / rms(x) */
    real_t *rstd;    /* [T] 1 / rms(x) */
    real_t *dlogits; /* [T, V] */
    real_t *dn;      /* [T, d] gradient of unit * gain, from backward_input to backward_weight */
} head_saved_t;

static head_saved_t head_layout(void *saved, size_t T, size_t d)
{
    real_t *at = saved;

    return (head_saved_t){at, at + T * d, at + T * d + T, at + T * d + T + T * VOCAB};
}

VECTORISED
static void normalise(const real_t *restrict x, double eps, real_t *restrict unit, real_t *restrict rstd, size_t T,
                      size_t d)
{
    for (size_t t = 0; t < T; t++, x += d, unit += d) {
        const real_t inv = (real_t)(1 / sqrt(cpu_dot(x, x, d) / (double)d + eps));

        rstd[t] = inv;
        for (size_t i = 0; i < d; i++)
            unit[i] = x[i] * inv;
    }
}

/* out = rows * gain */
VECTORISED
static void apply_gain(const real_t *restrict rows, const real_t *restrict gain, real_t *restrict out, size_t T,
                       size_t d)
{
    for (size_t t = 0; t < T; t++, rows += d, out += d)
        for (size_t i = 0; i < d; i++)
            out[i] = rows[i] * gain[i];
}

/* One row: logits become softmax(logits) - onehot(target). -log softmax(logits)[target]. */
INLINED double cross_entropy(real_t *restrict logits, uint8_t target)
{
    real_t lanes[LANES], most;
    double sums[LANES] = {0}, sum = 0, loss;

    for (size_t l = 0; l < LANES; l++)
        lanes[l] = logits[l];
    for (size_t j = LANES; j < VOCAB; j += LANES)
        for (size_t l = 0; l < LANES; l++)
            lanes[l] = logits[j + l] > lanes[l] ? logits[j + l] : lanes[l];
    most = lanes[0];
    for (size_t l = 1; l < LANES; l++)
        most = lanes[l] > most ? lanes[l] : most;
    loss = (double)most - (double)logits[target];
    for (size_t j = 0; j < VOCAB; j += LANES)
        for (size_t l = 0; l < LANES; l++) {
            const real_t e = cpu_exp(logits[j + l] - most);

            logits[j + l] = e;
            sums[l] += (double)e;
        }
    for (size_t l = 0; l < LANES; l++)
        sum += sums[l];
    for (size_t j = 0; j < VOCAB; j++)
        logits[j] *= (real_t)(1 / sum);
    logits[target] -= 1;
    return loss + log(sum);
}

VECTORISED
static double cross_entropies(real_t *logits, const uint8_t *targets, size_t T)
{
    double loss = 0;

    for (size_t t = 0; t < T; t++)
        loss += cross_entropy(logits + t * VOCAB, targets[t]);
    return loss / (double)T;
}

/* logits = (unit * gain) W; tied: W is the transpose of the table [V, d]. */
static double head(const void *params, double eps, const void *x, const uint8_t *target, void *output, void *memory,
                   void *scratch, size_t T, size_t d, int tied)
{
    const real_t *gain = params, *W = gain + d;
    const head_saved_t saved = head_layout(memory, T, d);
    real_t *n = scratch, *turned = n + T * d;

    normalise(x, eps, saved.unit, saved.rstd, T, d);
    apply_gain(saved.unit, gain, n, T, d);
    if (tied)
        cpu_transpose(W, d, VOCAB, d, turned);
    cpu_multiply((product_t){d, d, 1, VOCAB, VOCAB, 1, false}, T, VOCAB, n, tied ? turned : W, saved.dlogits);
    if (output != NULL)
        memcpy(output, saved.dlogits, T * VOCAB * sizeof(real_t));
    return target != NULL ? cross_entropies(saved.dlogits, target, T) : 0;
}

VECTORISED
static void scale_all(real_t *x, real_t factor, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] *= factor;
}

/* dx of the norm from g = dn * gain. */
VECTORISED
static void normalise_backward(const real_t *restrict g, const real_t *restrict unit, const real_t *restrict rstd,
                               real_t *restrict dx, size_t T, size_t d)
{
    for (size_t t = 0; t < T; t++, g += d, unit += d, dx += d) {
        const real_t along = (real_t)(cpu_dot(g, unit, d) / (double)d);

        for (size_t i = 0; i < d; i++)
            dx[i] = rstd[t] * (g[i] - unit[i] * along);
    }
}

static void head_backward_input(const void *params, double scale, void *memory, void *scratch, void *dx, size_t T,
                                size_t d, int tied)
{
    const real_t *gain = params, *W = gain + d;
    const head_saved_t saved = head_layout(memory, T, d);
    real_t *g = scratch, *turned = g + T * d;

    scale_all(saved.dlogits, (real_t)(scale / (double)T), T * VOCAB);
    if (!tied)
        cpu_transpose(W, VOCAB, d, VOCAB, turned);
    cpu_multiply((product_t){VOCAB, VOCAB, 1, d, d, 1, false}, T, d, saved.dlogits, tied ? W : turned, saved.dn);
    apply_gain(saved.dn, gain, g, T, d);
    normalise_backward(g, saved.unit, saved.rstd, dx, T, d);
}

VECTORISED
static void gain_backward(real_t *restrict dgain, const real_t *restrict dn, const real_t *restrict unit, size_t T,
                          size_t d)
{
    for (size_t t = 0; t < T; t++, dn += d, unit += d)
        for (size_t i = 0; i < d; i++)
            dgain[i] += dn[i] * unit[i];
}

static void head_backward_weight(const void *params, void *grads, void *memory, void *scratch, size_t T, size_t d,
                                 int tied)
{
    const head_saved_t saved = head_layout(memory, T, d);
    real_t *dgain = grads, *dW = dgain + d, *n = scratch;

    gain_backward(dgain, saved.dn, saved.unit, T, d);
    apply_gain(saved.unit, params, n, T, d);
    if (tied)
        cpu_multiply((product_t){T, 1, VOCAB, d, d, 1, true}, VOCAB, d, saved.dlogits, n, dW);
    else
        cpu_multiply((product_t){T, 1, d, VOCAB, VOCAB, 1, true}, d, VOCAB, n, saved.dlogits, dW);
}

/* ---- optimizer ---- */

#if REAL_BITS == 32
#define SQUARE_ROOT sqrtf
#else
#define SQUARE_ROOT sqrt
#endif

VECTORISED
static void update_elements(const adamw_factors_t *f, real_t shrink, real_t *restrict params, real_t *restrict mean,
                            real_t *restrict squares, const real_t *restrict grads, size_t count)
{
    const real_t b1 = (real_t)f->keep_mean, b2 = (real_t)f->keep_squares, scale = (real_t)f->grad;
    const real_t rate = (real_t)f->rate, unbias = (real_t)f->unbias_squares, epsilon = (real_t)f->epsilon;

    for (size_t i = 0; i < count; i++) {
        const real_t g = grads[i] * scale;

        mean[i] = b1 * mean[i] + (1 - b1) * g;
        squares[i] = b2 * squares[i] + (1 - b2) * g * g;
        params[i] = params[i] * shrink - rate * mean[i] / (SQUARE_ROOT(squares[i] * unbias) + epsilon);
    }
}

static void update_range(const adamw_factors_t *f, const adamw_tensor_t *chunk, const adamw_range_t *r)
{
    update_elements(f, r->decays ? (real_t)f->shrink : 1, (real_t *)chunk->params + r->first,
                    (real_t *)chunk->mean + r->at, (real_t *)chunk->squares + r->at,
                    (const real_t *)chunk->grads + r->first, r->count);
}

VECTORISED
static double sum_squares(const void *values, size_t count)
{
    return cpu_dot(values, values, count);
}

const kernels_t REAL(kernels) = {
    .embed = embed,
    .embed_backward = embed_backward,
    .head = head,
    .head_backward_input = head_backward_input,
    .head_backward_weight = head_backward_weight,
    .adamw = update_range,
    .sum_of_squares = sum_squares,
};
