/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * softmax.h: softmax on tiles of logits [queries, keys], forward in one sweep over the keys, and
 * its gradient.
 *
 * A tile's row r sees its first `visible + r` keys, the others lie in the future. Row r of a head
 * has its statistics at row_max[r * stride] and sum[r * stride]. Maximum and sum are kept apart,
 * not as one log-sum-exp: the recomputed exp(logit - max) / sum then stays exact for large logits,
 * where max + log(sum) has no bits left for the sum. Source: arXiv 2205.14135, 2307.08691. */
#ifndef ATTENTION_CPU_SOFTMAX_H
#define ATTENTION_CPU_SOFTMAX_H

#include "plugins/cpu/exp.h"
#include "tiles.h"

#include <stdbool.h>
#include <stddef.h>

_Static_assert(KEY_BLOCK % LANES == 0, "a padded row must end inside its tile");

/* One row: the visible part is padded to whole LANES with logits that vanish. The new length. */
INLINED size_t pad_row(real_t *row, size_t seen)
{
    size_t padded = (seen + LANES - 1) / LANES * LANES;

    for (size_t c = seen; c < padded; c++)
        row[c] = -REAL_MAX;
    return padded;
}

INLINED void clear_scores(real_t *row, size_t from, size_t to)
{
    for (size_t c = from; c < to; c++)
        row[c] = 0;
}

INLINED real_t largest_score(const real_t *restrict row, size_t padded)
{
    real_t lanes[LANES], result;

    for (size_t l = 0; l < LANES; l++)
        lanes[l] = row[l];
    for (size_t c = LANES; c < padded; c += LANES)
        for (size_t l = 0; l < LANES; l++)
            lanes[l] = row[c + l] > lanes[l] ? row[c + l] : lanes[l];
    result = lanes[0];
    for (size_t l = 1; l < LANES; l++)
        result = lanes[l] > result ? lanes[l] : result;
    return result;
}

/* row = exp(row - max); returns the sum. */
INLINED real_t exp_row(real_t *restrict row, size_t padded, real_t max)
{
    real_t lanes[LANES] = {0}, sum = 0;

    for (size_t c = 0; c < padded; c += LANES)
        for (size_t l = 0; l < LANES; l++) {
            const real_t e = cpu_exp(row[c + l] - max);

            row[c + l] = e;
            lanes[l] += e;
        }
    for (size_t l = 0; l < LANES; l++)
        sum += lanes[l];
    return sum;
}

/* Turns logits into exp(logit - max) for the largest logit so far. When a later tile raises the
 * maximum, the sum and the output rows gathered so far are scaled down. first: nothing was gathered
 * yet. */
VECTORISED
static void softmax_tile(real_t *restrict tile, size_t queries, size_t keys, size_t visible, bool first,
                         real_t *restrict row_max, real_t *restrict sum, size_t stride, real_t *restrict out,
                         size_t out_stride, size_t value_dim)
{
    for (size_t r = 0; r < queries; r++, tile += KEY_BLOCK, row_max += stride, sum += stride, out += out_stride) {
        const size_t seen = visible + r < keys ? visible + r : keys;
        const size_t padded = pad_row(tile, seen);
        real_t max = largest_score(tile, padded), total = 0;

        if (!first) {
            real_t scale;

            max = *row_max > max ? *row_max : max;
            scale = cpu_exp(*row_max - max);
            total = *sum * scale;
            for (size_t i = 0; i < value_dim; i++)
                out[i] *= scale;
        }
        total += exp_row(tile, padded, max);
        clear_scores(tile, seen, keys);
        *row_max = max;
        *sum = total;
    }
}

/* After the last tile: out /= sum, sum becomes 1 / sum. */
VECTORISED
static void softmax_finish(size_t queries, real_t *restrict sum, size_t stride, real_t *restrict out, size_t out_stride,
                           size_t value_dim)
{
    for (size_t r = 0; r < queries; r++, sum += stride, out += out_stride) {
        const real_t inv = 1 / *sum;

        for (size_t i = 0; i < value_dim; i++)
            out[i] *= inv;
        *sum = inv;
    }
}

/* Recomputes the probabilities p of a tile from its logits, and turns dtile from dp into p * (dp -
 * delta), the gradient of the logits. delta[r * stride]: sum of p * dp over the whole row r. */
VECTORISED
static void softmax_backward_tile(real_t *restrict tile, real_t *restrict dtile, size_t queries, size_t keys,
                                  size_t visible, const real_t *restrict row_max, const real_t *restrict inv_sum,
                                  const real_t *restrict delta, size_t stride)
{
    for (size_t r = 0; r < queries; r++, tile += KEY_BLOCK, dtile += KEY_BLOCK) {
        const size_t seen = visible + r < keys ? visible + r : keys;
        const size_t padded = pad_row(tile, seen);
        const real_t max = row_max[r * stride], inv = inv_sum[r * stride], shift = delta[r * stride];

        for (size_t c = 0; c < padded; c++) {
            const real_t p = cpu_exp(tile[c] - max) * inv;

            tile[c] = p;
            dtile[c] = p * (dtile[c] - shift);
        }
        clear_scores(tile, seen, keys);
        clear_scores(dtile, seen, keys);
    }
}

#endif
