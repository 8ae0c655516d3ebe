/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_reference.h: y = h + shared(n) + sum of weight_e expert_e(n) written down as moe.h says it, token by token in double,
 * for one rank that holds every expert. The measure for MoE plugins. */
#ifndef DP_TESTS_MOE_REFERENCE_H
#define DP_TESTS_MOE_REFERENCE_H

#include <math.h>
#include <stdlib.h>

#include <dualpipe/moe.h>

typedef struct reference {
    int tokens, hidden, experts, top_k, ffn, shared; /* shared: width of all shared experts */
    dp_gate_t gate;
    int normalize;
    double scale, aux_alpha, norm_eps;
    const double *params; /* all experts, in moe.h's order                             */
    int *chosen;          /* [tokens, top_k]; written, or read when `fixed`             */
    int fixed;
} reference_t;

static inline reference_t reference_of(const dp_moe_config_t *c, const double *params, int *chosen)
{
    const reference_t r = {
        .tokens = (int)(c->shape.batch * c->shape.sequence),
        .hidden = (int)c->shape.hidden,
        .experts = (int)c->experts,
        .top_k = (int)c->top_k,
        .ffn = (int)c->expert_hidden,
        .shared = (int)(c->shared_experts * c->expert_hidden),
        .gate = c->gate,
        .normalize = (int)c->normalize,
        .scale = c->scale > 0 ? (double)c->scale : 1,
        .aux_alpha = (double)c->aux_alpha,
        .norm_eps = c->shape.norm_eps > 0 ? (double)c->shape.norm_eps : 1e-6,
        .params = params,
        .chosen = chosen,
    };

    return r;
}

/* Elements before the first expert, and of one expert. */
static inline size_t reference_common(const reference_t *r)
{
    return (size_t)(r->hidden + r->hidden * r->experts + r->experts + 3 * r->hidden * r->shared);
}

static inline size_t reference_expert(const reference_t *r)
{
    return (size_t)(3 * r->hidden * r->ffn);
}

static inline size_t reference_params(const reference_t *r)
{
    return reference_common(r) + (size_t)r->experts * reference_expert(r);
}

/* y += factor * SwiGLU(n) */
static inline void reference_glu(int d, int f, const double *w, const double *n, double factor, double *y)
{
    const double *w_gate = w, *w_up = w + d * f, *w_down = w + 2 * d * f;
    int i, j;

    for (j = 0; j < f; j++) {
        double gate = 0, up = 0, a;

        for (i = 0; i < d; i++) {
            gate += n[i] * w_gate[i * f + j];
            up += n[i] * w_up[i * f + j];
        }
        a = gate / (1 + exp(-gate)) * up;
        for (i = 0; i < d; i++)
            y[i] += factor * a * w_down[j * d + i];
    }
}

static inline void reference_scores(const reference_t *r, const double *n, double *scores)
{
    const double *router = r->params + r->hidden;
    double sum = 0;
    int i, e;

    for (e = 0; e < r->experts; e++) {
        scores[e] = 0;
        for (i = 0; i < r->hidden; i++)
            scores[e] += n[i] * router[i * r->experts + e];
        scores[e] = r->gate == DP_GATE_SIGMOID ? 1 / (1 + exp(-scores[e])) : exp(scores[e]);
        sum += scores[e];
    }
    for (e = 0; e < r->experts && r->gate == DP_GATE_SOFTMAX; e++)
        scores[e] /= sum;
}

static inline void reference_choose(const reference_t *r, const double *scores, int *chosen)
{
    const double *bias = r->params + r->hidden + r->hidden * r->experts;
    int j, e, i;

    for (j = 0; j < r->top_k; j++) {
        int best = -1;

        for (e = 0; e < r->experts; e++) {
            int free = 1;

            for (i = 0; i < j; i++)
                free = free && chosen[i] != e;
            if (free && (best < 0 || scores[e] + bias[e] > scores[best] + bias[best]))
                best = e;
        }
        chosen[j] = best;
    }
}

/* y [tokens, hidden]; returns the auxiliary loss. */
static inline double reference_forward(const reference_t *r, const double *h, double *y)
{
    const int d = r->hidden, experts = r->experts;
    double *n = calloc((size_t)d, sizeof(*n)), *scores = calloc((size_t)experts, sizeof(*scores));
    double *mean = calloc((size_t)experts, sizeof(*mean)), aux = 0;
    int *count = calloc((size_t)experts, sizeof(*count)), t, i, j, e;

    for (t = 0; t < r->tokens; t++) {
        const double *row = h + t * d;
        int *chosen = r->chosen + t * r->top_k;
        double square = 0, sum = 0, total = 0;

        for (i = 0; i < d; i++)
            square += row[i] * row[i] / d;
        for (i = 0; i < d; i++) {
            n[i] = row[i] / sqrt(square + r->norm_eps) * r->params[i];
            y[t * d + i] = row[i];
        }
        if (r->shared > 0)
            reference_glu(d, r->shared, r->params + d + d * experts + experts, n, 1, y + t * d);
        reference_scores(r, n, scores);
        if (!r->fixed)
            reference_choose(r, scores, chosen);
        for (j = 0; j < r->top_k; j++)
            sum += scores[chosen[j]];
        for (j = 0; j < r->top_k; j++) {
            e = chosen[j];
            count[e]++;
            reference_glu(d, r->ffn, r->params + reference_common(r) + (size_t)e * reference_expert(r), n,
                          r->scale * scores[e] / (r->normalize ? sum : 1), y + t * d);
        }
        for (e = 0; e < experts; e++)
            total += scores[e];
        for (e = 0; e < experts; e++)
            mean[e] += scores[e] / total / r->tokens;
    }
    for (e = 0; e < experts; e++)
        aux += r->aux_alpha * experts / ((double)r->top_k * r->tokens) * count[e] * mean[e];
    free(n);
    free(scores);
    free(mean);
    free(count);
    return aux;
}

#endif
