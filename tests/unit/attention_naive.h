/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_naive.h: the definition of dp.attention/1 forward in double, one output at a time, with all S
 * logits of a row. */
#ifndef ATTENTION_NAIVE_H
#define ATTENTION_NAIVE_H

#include <dualpipe/attention.h>

#include <math.h>
#include <stdlib.h>

typedef struct naive {
    size_t batch, sequence, hidden, heads, kv_heads, head_dim, value_dim;
    double eps, theta;
} naive_t;

static inline naive_t naive_of(const dp_attention_config_t *c)
{
    return (naive_t){
        .batch = c->shape.batch,
        .sequence = c->shape.sequence,
        .hidden = c->shape.hidden,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .value_dim = c->value_dim != 0 ? c->value_dim : c->head_dim,
        .eps = c->shape.norm_eps != 0 ? (double)c->shape.norm_eps : 1e-6,
        .theta = c->rope_theta != 0 ? (double)c->rope_theta : 10000,
    };
}

static inline size_t naive_param_count(const naive_t *n)
{
    return n->hidden + n->hidden * (n->heads * n->head_dim + n->kv_heads * (n->head_dim + n->value_dim)) +
           n->heads * n->value_dim * n->hidden;
}

/* out[T, width] = RMSNorm(x) w, w: [hidden, width]. */
static inline double *naive_project(const naive_t *n, const double *x, const double *gain, const double *w,
                                    size_t width)
{
    const size_t tokens = n->batch * n->sequence, d = n->hidden;
    double *out = calloc(tokens * width, sizeof(*out));

    for (size_t t = 0; t < tokens; t++) {
        double square = 0;

        for (size_t i = 0; i < d; i++)
            square += x[t * d + i] * x[t * d + i];
        for (size_t c = 0; c < width; c++)
            for (size_t i = 0; i < d; i++)
                out[t * width + c] +=
                    x[t * d + i] / sqrt(square / (double)d + n->eps) * gain[i] * w[i * width + c];
    }
    return out;
}

static inline void naive_rope(const naive_t *n, double *rows, size_t heads)
{
    const size_t half = n->head_dim / 2;

    for (size_t v = 0; v < n->batch * n->sequence * heads; v++)
        for (size_t i = 0; i < half; i++) {
            double *low = rows + v * n->head_dim + i, *high = low + half, a = *low, b = *high;
            double position = (double)(v / heads % n->sequence);
            double angle = position * pow(n->theta, -2 * (double)i / (double)n->head_dim);

            *low = a * cos(angle) - b * sin(angle);
            *high = a * sin(angle) + b * cos(angle);
        }
}

/* out[value_dim]: query head h at token t (of all tokens) over the tokens of its sequence up to t. */
static inline void naive_row(const naive_t *n, const double *q, const double *k, const double *v, size_t t,
                             size_t h, double *out)
{
    const size_t first = t / n->sequence * n->sequence, kv = h / (n->heads / n->kv_heads);
    double *p = calloc(t - first + 1, sizeof(*p)), max = -INFINITY, sum = 0;

    for (size_t s = first; s <= t; s++) {
        for (size_t i = 0; i < n->head_dim; i++)
            p[s - first] +=
                q[(t * n->heads + h) * n->head_dim + i] * k[(s * n->kv_heads + kv) * n->head_dim + i];
        p[s - first] /= sqrt((double)n->head_dim);
        max = p[s - first] > max ? p[s - first] : max;
    }
    for (size_t s = first; s <= t; s++)
        sum += p[s - first] = exp(p[s - first] - max);
    for (size_t c = 0; c < n->value_dim; c++) {
        out[c] = 0;
        for (size_t s = first; s <= t; s++)
            out[c] += p[s - first] / sum * v[(s * n->kv_heads + kv) * n->value_dim + c];
    }
    free(p);
}

/* y[T, d]; only tokens from `from` on are computed. params: as the header orders them. */
static inline void naive_forward(const naive_t *n, const double *params, const double *x, size_t from,
                                 double *y)
{
    const size_t tokens = n->batch * n->sequence, d = n->hidden, out_width = n->heads * n->value_dim;
    const size_t q_width = n->heads * n->head_dim, k_width = n->kv_heads * n->head_dim;
    const size_t v_width = n->kv_heads * n->value_dim;
    const double *wq = params + d, *wk = wq + d * q_width, *wv = wk + d * k_width, *wo = wv + d * v_width;
    double *q = naive_project(n, x, params, wq, q_width), *k = naive_project(n, x, params, wk, k_width);
    double *v = naive_project(n, x, params, wv, v_width), *out = calloc(out_width, sizeof(*out));

    naive_rope(n, q, n->heads);
    naive_rope(n, k, n->kv_heads);
    for (size_t t = from; t < tokens; t++) {
        for (size_t h = 0; h < n->heads; h++)
            naive_row(n, q, k, v, t, h, out + h * n->value_dim);
        for (size_t c = 0; c < d; c++) {
            y[t * d + c] = x[t * d + c];
            for (size_t i = 0; i < out_width; i++)
                y[t * d + c] += out[i] * wo[i * d + c];
        }
    }
    free(q);
    free(k);
    free(v);
    free(out);
}

#endif
