/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_mine.c: a mixture-of-experts plugin to start from: moe.h's formula written down plainly, one
 * row at a time in double, for devices whose streams run host functions on host memory. Correct and
 * slow.
 *
 * One row is sent for each (token, chosen expert), to the expert's rank and back, by two exchanges:
 * `out` in dispatch and combine_backward, `back` in combine and dispatch_backward. Rows for a rank
 * lie in the order of tokens, and come back in the order in which they went, so that (token,
 * choice) finds its row by counting. */
#include <dualpipe/moe.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In front of a row on its way. */
typedef struct head {
    int32_t expert, unused; /* of the receiver's own, from 0 */
    double weight;          /* combine_backward: of the row; dispatch_backward: its gradient */
} head_t;

typedef struct link {
    dp_exchange_t *exchange;
    uint32_t number; /* of the next exchange */
} link_t;

/* All state of one instance; after open only the numbers of its exchanges change. */
struct dp_moe {
    const dp_host_t *host;
    const dp_device_vt_t *device_vt;
    const dp_comm_vt_t *comm_vt;
    link_t out, back;
    dp_dtype_t dtype;
    dp_gate_t gate;
    int normalize;
    double scale, alpha, eps;
    size_t tokens, d, experts, k, f, shared; /* shared: width of all shared experts */
    size_t ranks, rank, local;               /* local: experts of each rank */
    /* most that one rank sends to another; that arrive in all */
    size_t pair_rows, rows;
    size_t row_bytes;
    /* parameters: elements from their start, where the norm is */
    size_t router, bias, shared_at, experts_at, count;
    size_t saved_bytes, work_bytes, scratch_bytes;
    char (*names)[32]; /* [local][3] */
};

/* What a micro-batch keeps. */
typedef struct saved {
    double *h, *rstd;    /* [T, d], [T] 1 / rms(h) */
    double *scores;      /* [T, E]; gradients of the logits from route_backward_input on */
    double *weights;     /* [T, k] of the chosen */
    double *dy, *dnorm;  /* [T, d], [d]: left for backward_weight */
    double *x, *dx;      /* [rows, d] what came by dispatch, and by combine_backward */
    double *row_weight;  /* [rows] */
    int32_t *row_expert; /* [rows] */
    /* [T, k] expert; number of its row among those for the expert's rank */
    int32_t *chosen, *place;
    int32_t *sent, *sent_at; /* [ranks] rows for each rank, and where they begin */
    int32_t *came, *came_at; /* [ranks] the same of rows that arrived */
} saved_t;

/* What lasts for a pass. */
typedef struct work {
    char *rows;       /* on their way, row_bytes each */
    double *own;      /* [T, d] forward: output of the shared experts; backward: gradient of n */
    double *dweights; /* [T, k] */
} work_t;

/* What lasts for a call. */
typedef struct scratch {
    double *n, *out;                /* [d] */
    double *gate, *up, *act, *dact; /* [max(f, shared)] */
    double *dscores, *counts;       /* [E] */
} scratch_t;

static void *cut(char **at, size_t bytes)
{
    char *here = *at;

    *at += (bytes + 63) / 64 * 64;
    return here;
}

static size_t lay_out_saved(const dp_moe_t *m, void *base, saved_t *s)
{
    char *at = base;

    s->h = cut(&at, m->tokens * m->d * sizeof(double));
    s->rstd = cut(&at, m->tokens * sizeof(double));
    s->scores = cut(&at, m->tokens * m->experts * sizeof(double));
    s->weights = cut(&at, m->tokens * m->k * sizeof(double));
    s->dy = cut(&at, m->tokens * m->d * sizeof(double));
    s->dnorm = cut(&at, m->d * sizeof(double));
    s->x = cut(&at, m->rows * m->d * sizeof(double));
    s->dx = cut(&at, m->rows * m->d * sizeof(double));
    s->row_weight = cut(&at, m->rows * sizeof(double));
    s->row_expert = cut(&at, m->rows * sizeof(int32_t));
    s->chosen = cut(&at, m->tokens * m->k * sizeof(int32_t));
    s->place = cut(&at, m->tokens * m->k * sizeof(int32_t));
    s->sent = cut(&at, m->ranks * sizeof(int32_t));
    s->sent_at = cut(&at, m->ranks * sizeof(int32_t));
    s->came = cut(&at, m->ranks * sizeof(int32_t));
    s->came_at = cut(&at, m->ranks * sizeof(int32_t));
    return (size_t)(at - (char *)base);
}

static size_t lay_out_work(const dp_moe_t *m, void *base, work_t *w)
{
    const size_t rows = m->rows > m->tokens * m->k ? m->rows : m->tokens * m->k;
    char *at = base;

    w->rows = cut(&at, rows * m->row_bytes);
    w->own = cut(&at, m->tokens * m->d * sizeof(double));
    w->dweights = cut(&at, m->tokens * m->k * sizeof(double));
    return (size_t)(at - (char *)base);
}

static size_t lay_out_scratch(const dp_moe_t *m, void *base, scratch_t *t)
{
    const size_t width = m->f > m->shared ? m->f : m->shared;
    char *at = base;

    t->n = cut(&at, m->d * sizeof(double));
    t->out = cut(&at, m->d * sizeof(double));
    t->gate = cut(&at, width * sizeof(double));
    t->up = cut(&at, width * sizeof(double));
    t->act = cut(&at, width * sizeof(double));
    t->dact = cut(&at, width * sizeof(double));
    t->dscores = cut(&at, m->experts * sizeof(double));
    t->counts = cut(&at, m->experts * sizeof(double));
    return (size_t)(at - (char *)base);
}

/* One call, as its stream carries it. */
typedef struct call {
    dp_moe_t *moe;
    void (*run)(const struct call *c, saved_t *s, work_t *w, scratch_t *t);
    dp_io_t io;
    float aux_scale;
    double *aux_loss;
    const char *rows; /* what an exchange brought: pair_rows from each rank, counts of them */
    const int32_t *counts;
} call_t;

/* ---- arithmetic ---- */

static double get(const dp_moe_t *m, const void *tensor, size_t i)
{
    return m->dtype == DP_F64 ? ((const double *)tensor)[i] : (double)((const float *)tensor)[i];
}

static void put(const dp_moe_t *m, void *tensor, size_t i, double value)
{
    if (m->dtype == DP_F64)
        ((double *)tensor)[i] = value;
    else
        ((float *)tensor)[i] = (float)value;
}

static void add(const dp_moe_t *m, void *grads, size_t i, double value)
{
    put(m, grads, i, get(m, grads, i) + value);
}

/* out[width] = in[rows] W, W at params + offset. */
static void project(const dp_moe_t *m, const void *params, size_t offset, const double *in, size_t rows, size_t width,
                    double *out)
{
    memset(out, 0, width * sizeof(*out));
    for (size_t i = 0; i < rows; i++)
        for (size_t c = 0; c < width; c++)
            out[c] += in[i] * get(m, params, offset + i * width + c);
}

/* din[rows] += W dout[width]. */
static void project_back(const dp_moe_t *m, const void *params, size_t offset, const double *dout, size_t width,
                         size_t rows, double *din)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t c = 0; c < width; c++)
            din[i] += dout[c] * get(m, params, offset + i * width + c);
}

/* gradient of W += factor in^T dout. */
static void add_outer(const dp_moe_t *m, void *grads, size_t offset, const double *in, size_t rows, const double *dout,
                      size_t width, double factor)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t c = 0; c < width; c++)
            add(m, grads, offset + i * width + c, factor * in[i] * dout[c]);
}

/* act = silu(n w_gate) * (n w_up), the matrices at `at`: w_gate, w_up [d, f], w_down [f, d]. */
static void glu(const dp_moe_t *m, const void *params, size_t at, size_t f, const double *n, scratch_t *t)
{
    project(m, params, at, n, m->d, f, t->gate);
    project(m, params, at + m->d * f, n, m->d, f, t->up);
    for (size_t j = 0; j < f; j++)
        t->act[j] = t->gate[j] / (1 + exp(-t->gate[j])) * t->up[j];
}

/* From dy to the gradients of gate and up, which replace them, times `weight`; returns the gradient
 * of the weight. */
static double glu_back(const dp_moe_t *m, const void *params, size_t at, size_t f, const double *n, const double *dy,
                       double weight, scratch_t *t)
{
    double along = 0;

    glu(m, params, at, f, n, t);
    memset(t->dact, 0, f * sizeof(*t->dact));
    project_back(m, params, at + 2 * m->d * f, dy, m->d, f, t->dact);
    for (size_t j = 0; j < f; j++) {
        const double g = t->gate[j], sigmoid = 1 / (1 + exp(-g)), d = t->dact[j];

        along += t->act[j] * d;
        t->gate[j] = weight * d * t->up[j] * sigmoid * (1 + g * (1 - sigmoid));
        t->up[j] = weight * d * g * sigmoid;
    }
    return along;
}

static void glu_back_input(const dp_moe_t *m, const void *params, size_t at, size_t f, scratch_t *t, double *dn)
{
    project_back(m, params, at, t->gate, f, m->d, dn);
    project_back(m, params, at + m->d * f, t->up, f, m->d, dn);
}

static void glu_back_weight(const dp_moe_t *m, void *grads, size_t at, size_t f, const double *n, const double *dy,
                            double weight, scratch_t *t)
{
    add_outer(m, grads, at, n, m->d, t->gate, f, 1);
    add_outer(m, grads, at + m->d * f, n, m->d, t->up, f, 1);
    add_outer(m, grads, at + 2 * m->d * f, t->act, f, dy, m->d, weight);
}

/* n[d] = RMSNorm(h) of token t. */
static void normalize(const dp_moe_t *m, const saved_t *s, const void *params, size_t t, double *n)
{
    for (size_t i = 0; i < m->d; i++)
        n[i] = s->h[t * m->d + i] * s->rstd[t] * get(m, params, i);
}

static size_t expert_at(const dp_moe_t *m, int32_t expert)
{
    return m->experts_at + (size_t)expert * 3 * m->d * m->f;
}

/* ---- rows ---- */

static head_t *row_of(const dp_moe_t *m, const char *rows, size_t row)
{
    return (head_t *)(void *)(rows + row * m->row_bytes);
}

/* Number of the row of (token, choice) `at` when rows begin at first[p] for rank p, or at p *
 * pair_rows. */
static size_t row_for(const dp_moe_t *m, const saved_t *s, size_t at, const int32_t *first)
{
    const size_t p = (size_t)s->chosen[at] / m->local;

    return (first != NULL ? (size_t)first[p] : p * m->pair_rows) + (size_t)s->place[at];
}

/* A row for each (token, choice): the token's vector, and its weight. */
static void pack(const dp_moe_t *m, const saved_t *s, const work_t *w, size_t t, const double *vector)
{
    for (size_t at = t * m->k; at < (t + 1) * m->k; at++) {
        head_t *row = row_of(m, w->rows, row_for(m, s, at, s->sent_at));

        row->expert = s->chosen[at] % (int32_t)m->local;
        row->unused = 0;
        row->weight = s->weights[at];
        memcpy(row + 1, vector, m->d * sizeof(double));
    }
}

/* ---- forward ---- */

static void score(const call_t *c, const saved_t *s, size_t token, const double *n)
{
    const dp_moe_t *m = c->moe;
    double *scores = s->scores + token * m->experts, sum = 0, max = -INFINITY;

    project(m, c->io.params, m->router, n, m->d, m->experts, scores);
    for (size_t e = 0; e < m->experts; e++)
        max = fmax(max, scores[e]);
    for (size_t e = 0; e < m->experts; e++) {
        scores[e] = m->gate == DP_GATE_SIGMOID ? 1 / (1 + exp(-scores[e])) : exp(scores[e] - max);
        sum += scores[e];
    }
    for (size_t e = 0; e < m->experts && m->gate == DP_GATE_SOFTMAX; e++)
        scores[e] /= sum;
}

/* The k largest of score + bias, the lower expert of equals; their weights. */
static void choose(const call_t *c, const saved_t *s, size_t token, double *left)
{
    const dp_moe_t *m = c->moe;
    const double *scores = s->scores + token * m->experts;
    double sum = 1e-20;

    for (size_t e = 0; e < m->experts; e++)
        left[e] = scores[e] + get(m, c->io.params, m->bias + e);
    for (size_t at = token * m->k; at < (token + 1) * m->k; at++) {
        size_t best = 0;

        for (size_t e = 1; e < m->experts; e++)
            if (left[e] > left[best])
                best = e;
        left[best] = -INFINITY;
        s->chosen[at] = (int32_t)best;
        sum += scores[best];
    }
    for (size_t at = token * m->k; at < (token + 1) * m->k; at++)
        s->weights[at] = m->scale * scores[s->chosen[at]] / (m->normalize ? sum : 1);
}

static void count_chosen(const dp_moe_t *m, const saved_t *s, double *counts)
{
    memset(counts, 0, m->experts * sizeof(*counts));
    for (size_t at = 0; at < m->tokens * m->k; at++)
        counts[s->chosen[at]]++;
}

/* The sum over a token's scores by which they become probabilities. */
static double total(const dp_moe_t *m, const double *scores)
{
    double sum = 0;

    for (size_t e = 0; e < m->experts; e++)
        sum += scores[e];
    return sum;
}

static double aux_factor(const dp_moe_t *m)
{
    return m->alpha * (double)m->experts / (double)(m->k * m->tokens) / (double)m->tokens;
}

static double aux_loss(const dp_moe_t *m, const saved_t *s, const double *counts)
{
    double loss = 0;

    for (size_t t = 0; t < m->tokens; t++)
        for (size_t e = 0; e < m->experts; e++)
            loss += counts[e] * s->scores[t * m->experts + e] / total(m, s->scores + t * m->experts);
    return aux_factor(m) * loss;
}

static void run_route(const call_t *c, saved_t *s, work_t *w, scratch_t *t)
{
    const dp_moe_t *m = c->moe;
    int32_t first = 0;

    memset(s->sent, 0, m->ranks * sizeof(*s->sent));
    for (size_t i = 0; i < m->tokens; i++) {
        double square = 0;

        for (size_t j = 0; j < m->d; j++) {
            s->h[i * m->d + j] = get(m, c->io.x, i * m->d + j);
            square += s->h[i * m->d + j] * s->h[i * m->d + j];
        }
        s->rstd[i] = 1 / sqrt(square / (double)m->d + m->eps);
        normalize(m, s, c->io.params, i, t->n);
        score(c, s, i, t->n);
        choose(c, s, i, t->dscores);
        for (size_t at = i * m->k; at < (i + 1) * m->k; at++)
            s->place[at] = s->sent[(size_t)s->chosen[at] / m->local]++;
    }
    for (size_t p = 0; p < m->ranks; first += s->sent[p], p++)
        s->sent_at[p] = first;
    for (size_t i = 0; i < m->tokens; i++) {
        normalize(m, s, c->io.params, i, t->n);
        pack(m, s, w, i, t->n);
    }
    if (c->aux_loss != NULL && m->alpha > 0) {
        count_chosen(m, s, t->counts);
        *c->aux_loss += aux_loss(m, s, t->counts);
    }
}

/* Copies what an exchange brought, without the gaps. */
static void unpack(const call_t *c, const saved_t *s, double *to)
{
    const dp_moe_t *m = c->moe;

    for (size_t p = 0; p < m->ranks; p++)
        for (size_t i = 0; i < (size_t)c->counts[p]; i++) {
            const head_t *row = row_of(m, c->rows, p * m->pair_rows + i);
            const size_t at = (size_t)s->came_at[p] + i;

            s->row_expert[at] = row->expert;
            s->row_weight[at] = row->weight;
            memcpy(to + at * m->d, row + 1, m->d * sizeof(double));
        }
}

static size_t arrived(const dp_moe_t *m, const saved_t *s)
{
    return (size_t)s->came_at[m->ranks - 1] + (size_t)s->came[m->ranks - 1];
}

static void take_dispatch(const call_t *c, saved_t *s, work_t *w, scratch_t *t)
{
    const dp_moe_t *m = c->moe;
    int32_t first = 0;

    (void)w, (void)t;
    for (size_t p = 0; p < m->ranks; first += s->came[p], p++) {
        s->came_at[p] = first;
        s->came[p] = c->counts[p];
    }
    unpack(c, s, s->x);
}

static void run_experts(const call_t *c, saved_t *s, work_t *w, scratch_t *t)
{
    const dp_moe_t *m = c->moe;

    for (size_t r = 0; r < arrived(m, s); r++) {
        const size_t at = expert_at(m, s->row_expert[r]);

        glu(m, c->io.params, at, m->f, s->x + r * m->d, t);
        project(m, c->io.params, at + 2 * m->d * m->f, t->act, m->f, m->d,
                (double *)(void *)(row_of(m, w->rows, r) + 1));
    }
    for (size_t i = 0; i < m->tokens && m->shared > 0; i++) {
        normalize(m, s, c->io.params, i, t->n);
        glu(m, c->io.params, m->shared_at, m->shared, t->n, t);
        project(m, c->io.params, m->shared_at + 2 * m->d * m->shared, t->act, m->shared, m->d, w->own + i * m->d);
    }
}

static void take_combine(const call_t *c, saved_t *s, work_t *w, scratch_t *t)
{
    const dp_moe_t *m = c->moe;

    for (size_t i = 0; i < m->tokens; i++) {
        for (size_t j = 0; j < m->d; j++)
            t->out[j] = s->h[i * m->d + j] + (m->shared > 0 ? w->own[i * m->d + j] : 0);
        for (size_t at = i * m->k; at < (i + 1) * m->k; at++) {
            const double *row = (const double *)(const void *)(row_of(m, c->rows, row_for(m, s, at, NULL)) + 1);

            for (size_t j = 0; j < m->d; j++)
                t->out[j] += s->weights[at] * row[j];
        }
        for (size_t j = 0; j < m->d; j++)
            put(m, c->io.y, i * m->d + j, t->out[j]);
    }
}

/* ---- backward ---- */

static void run_combine_backward(const call_t *c, saved_t *s, work_t *w, scratch_t *t)
{
    const dp_moe_t *m = c->moe;

    (void)t;
    for (size_t i = 0; i < m->tokens; i++) {
        for (size_t j = 0; j < m->d; j++)
            s->dy[i * m->d + j] = get(m, c->io.dy, i * m->d + j);
        pack(m, s, w, i, s->dy + i * m->d);
    }
}

static void take_combine_backward(const call_t *c, saved_t *s, work_t *w, scratch_t *t)
{
    (void)w, (void)t;
    unpack(c, s, s->dx);
}

static void run_experts_backward_input(const call_t *c, saved_t *s, work_t *w, scratch_t *t)
{
    const dp_moe_t *m = c->moe;

    for (size_t r = 0; r < arrived(m, s); r++) {
        const size_t at = expert_at(m, s->row_expert[r]);
        head_t *row = row_of(m, w->rows, r);
        double *dn = (double *)(void *)(row + 1);

        row->weight = glu_back(m, c->io.params, at, m->f, s->x + r * m->d, s->dx + r * m->d, s->row_weight[r], t);
        memset(dn, 0, m->d * sizeof(*dn));
        glu_back_input(m, c->io.params, at, m->f, t, dn);
    }
    memset(w->own, 0, m->tokens * m->d * sizeof(*w->own));
    for (size_t i = 0; i < m->tokens && m->shared > 0; i++) {
        normalize(m, s, c->io.params, i, t->n);
        glu_back(m, c->io.params, m->shared_at, m->shared, t->n, s->dy + i * m->d, 1, t);
        glu_back_input(m, c->io.params, m->shared_at, m->shared, t, w->own + i * m->d);
    }
}

static void run_experts_backward_weight(const call_t *c, saved_t *s, work_t *w, scratch_t *t)
{
    const dp_moe_t *m = c->moe;

    (void)w;
    for (size_t r = 0; r < arrived(m, s); r++) {
        const size_t at = expert_at(m, s->row_expert[r]);
        const double *n = s->x + r * m->d, *dy = s->dx + r * m->d;

        glu_back(m, c->io.params, at, m->f, n, dy, s->row_weight[r], t);
        glu_back_weight(m, c->io.grads, at, m->f, n, dy, s->row_weight[r], t);
    }
    for (size_t i = 0; i < m->tokens && m->shared > 0; i++) {
        normalize(m, s, c->io.params, i, t->n);
        glu_back(m, c->io.params, m->shared_at, m->shared, t->n, s->dy + i * m->d, 1, t);
        glu_back_weight(m, c->io.grads, m->shared_at, m->shared, t->n, s->dy + i * m->d, 1, t);
    }
}

static void take_dispatch_backward(const call_t *c, saved_t *s, work_t *w, scratch_t *t)
{
    const dp_moe_t *m = c->moe;

    (void)t;
    for (size_t at = 0; at < m->tokens * m->k; at++) {
        const head_t *row = row_of(m, c->rows, row_for(m, s, at, NULL));
        const double *dn = (const double *)(const void *)(row + 1);

        w->dweights[at] = row->weight;
        for (size_t j = 0; j < m->d; j++)
            w->own[at / m->k * m->d + j] += dn[j];
    }
}

/* Gradients of a token's logits, in place of its scores. */
static void score_back(const call_t *c, const saved_t *s, const work_t *w, const double *counts, size_t token,
                       double *dscores)
{
    const dp_moe_t *m = c->moe;
    const size_t first = token * m->k;
    double *scores = s->scores + token * m->experts, along = 0, sum = 1e-20;
    const double factor = (double)c->aux_scale * aux_factor(m), all = total(m, scores);

    for (size_t e = 0; e < m->experts; e++)
        along += counts[e] * scores[e] / all;
    for (size_t e = 0; e < m->experts; e++) /* of the auxiliary loss */
        dscores[e] = factor * (counts[e] - (m->gate == DP_GATE_SIGMOID ? along : 0)) / all;
    along = 0;
    for (size_t at = first; at < first + m->k; at++)
        sum += scores[s->chosen[at]];
    for (size_t at = first; at < first + m->k && m->normalize; at++)
        along += w->dweights[at] * scores[s->chosen[at]] / sum;
    for (size_t at = first; at < first + m->k; at++)
        dscores[s->chosen[at]] += m->scale * (w->dweights[at] - along) / (m->normalize ? sum : 1);
    along = 0;
    for (size_t e = 0; e < m->experts && m->gate == DP_GATE_SOFTMAX; e++)
        along += dscores[e] * scores[e];
    for (size_t e = 0; e < m->experts; e++)
        scores[e] *= m->gate == DP_GATE_SIGMOID ? dscores[e] * (1 - scores[e]) : dscores[e] - along;
}

static void run_route_backward_input(const call_t *c, saved_t *s, work_t *w, scratch_t *t)
{
    const dp_moe_t *m = c->moe;

    count_chosen(m, s, t->counts);
    memset(s->dnorm, 0, m->d * sizeof(*s->dnorm));
    for (size_t i = 0; i < m->tokens; i++) {
        const double *h = s->h + i * m->d;
        double *dn = w->own + i * m->d, along = 0;

        score_back(c, s, w, t->counts, i, t->dscores);
        project_back(m, c->io.params, m->router, s->scores + i * m->experts, m->experts, m->d, dn);
        for (size_t j = 0; j < m->d; j++) {
            s->dnorm[j] += dn[j] * h[j] * s->rstd[i];
            dn[j] *= get(m, c->io.params, j);
            along += dn[j] * h[j] * s->rstd[i] / (double)m->d;
        }
        for (size_t j = 0; j < m->d && c->io.dx != NULL; j++)
            put(m, c->io.dx, i * m->d + j, s->dy[i * m->d + j] + s->rstd[i] * (dn[j] - along * h[j] * s->rstd[i]));
    }
}

static void run_route_backward_weight(const call_t *c, saved_t *s, work_t *w, scratch_t *t)
{
    const dp_moe_t *m = c->moe;

    (void)w;
    for (size_t j = 0; j < m->d; j++)
        add(m, c->io.grads, j, s->dnorm[j]);
    for (size_t i = 0; i < m->tokens; i++) {
        normalize(m, s, c->io.params, i, t->n);
        add_outer(m, c->io.grads, m->router, t->n, m->d, s->scores + i * m->experts, m->experts, 1);
    }
    count_chosen(m, s, t->counts);
    for (size_t e = 0; e < m->experts; e++)
        add(m, c->io.grads, m->bias + e, t->counts[e]);
}

/* ---- the calls ---- */

static dp_status_t run(void *arg)
{
    const call_t *c = arg;
    scratch_t scratch;
    saved_t saved;
    work_t work;

    lay_out_saved(c->moe, c->io.saved, &saved);
    lay_out_work(c->moe, c->io.work, &work);
    lay_out_scratch(c->moe, c->io.scratch, &scratch);
    c->run(c, &saved, &work, &scratch);
    return DP_OK;
}

enum { X = 1, Y = 2, DY = 4, GRADS = 8, WORK = 16 };

/* Takes the call over and refuses it when a pointer is missing. */
static dp_status_t begin(dp_moe_t *m, const dp_moe_io_t *io, const char *name, unsigned needs, call_t *c)
{
    const char *missing;
    dp_moe_io_t call;
    dp_status_t status = DP_TAKE(m->host, "moe_mine: io", dp_moe_io_t, DP_MOE_IO_MIN, &call, io);

    memset(c, 0, sizeof(*c));
    if (status >= 0)
        status = DP_TAKE(m->host, "moe_mine: io.io", dp_io_t, DP_IO_MIN, &c->io, call.io);
    if (status < 0)
        return status;
    c->moe = m;
    c->aux_scale = call.aux_scale;
    c->aux_loss = call.aux_loss;
    missing = c->io.params == NULL                     ? "params"
              : c->io.saved == NULL                    ? "saved"
              : c->io.scratch == NULL                  ? "scratch"
              : c->io.work == NULL && (needs & WORK)   ? "work"
              : c->io.x == NULL && (needs & X)         ? "x"
              : c->io.y == NULL && (needs & Y)         ? "y"
              : c->io.dy == NULL && (needs & DY)       ? "dy"
              : c->io.grads == NULL && (needs & GRADS) ? "grads"
                                                       : NULL;
    if (c->io.tokens != 0 && c->io.tokens != m->tokens)
        return DP_FAIL(m->host, DP_ERR_UNSUPPORTED, "moe_mine: %s of micro-batch %d: it takes whole micro-batches",
                       name, c->io.microbatch);
    if (missing != NULL)
        return DP_FAIL(m->host, DP_ERR_INVALID, "moe_mine: %s of micro-batch %d: io.%s is NULL", name, c->io.microbatch,
                       missing);
    return DP_OK;
}

typedef void (*kernel_t)(const call_t *c, saved_t *s, work_t *w, scratch_t *t);

static dp_status_t launch(call_t *c, kernel_t kernel, dp_stream_t *s)
{
    c->run = kernel;
    return c->moe->device_vt->launch(s, run, c, sizeof(*c));
}

static dp_status_t compute(dp_moe_t *m, const dp_moe_io_t *io, const char *name, unsigned needs, kernel_t kernel,
                           dp_stream_t *s)
{
    call_t c;
    dp_status_t status = begin(m, io, name, needs, &c);

    return status < 0 ? status : launch(&c, kernel, s);
}

/* The rows in work go to their ranks, and `kernel` takes those that come. */
static dp_status_t transfer(call_t *c, link_t *link, kernel_t kernel, dp_stream_t *s)
{
    dp_moe_t *m = c->moe;
    const uint32_t number = link->number;
    const void *rows;
    saved_t saved;
    work_t work;
    dp_status_t status;

    lay_out_saved(m, c->io.saved, &saved);
    lay_out_work(m, c->io.work, &work);
    status = m->comm_vt->exchange(link->exchange, number, work.rows, link == &m->out ? saved.sent_at : saved.came_at,
                                  link == &m->out ? saved.sent : saved.came, &rows, &c->counts, s);
    if (status < 0)
        return status;
    link->number++;
    c->rows = rows;
    status = launch(c, kernel, s);
    return status < 0 ? status : m->comm_vt->exchange_release(link->exchange, number, s);
}

static dp_status_t moe_route(dp_moe_t *m, const dp_moe_io_t *io, dp_stream_t *s)
{
    if (DP_HAS(io, dp_moe_io_t, loads))
        return DP_FAIL(m->host, DP_ERR_UNSUPPORTED,
                       "moe_mine: route does not count the tokens of experts: leave loads NULL");
    return compute(m, io, "route", X | WORK, run_route, s);
}

static dp_status_t moe_dispatch(dp_moe_t *m, const dp_moe_io_t *io, dp_stream_t *s)
{
    call_t c;
    dp_status_t status = begin(m, io, "dispatch", WORK, &c);

    return status < 0 ? status : transfer(&c, &m->out, take_dispatch, s);
}

static dp_status_t moe_experts(dp_moe_t *m, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute(m, io, "experts", WORK, run_experts, s);
}

static dp_status_t moe_combine(dp_moe_t *m, const dp_moe_io_t *io, dp_stream_t *s)
{
    call_t c;
    dp_status_t status = begin(m, io, "combine", Y | WORK, &c);

    return status < 0 ? status : transfer(&c, &m->back, take_combine, s);
}

static dp_status_t moe_combine_backward(dp_moe_t *m, const dp_moe_io_t *io, dp_stream_t *s)
{
    call_t c;
    dp_status_t status = begin(m, io, "combine_backward", DY | WORK, &c);

    if (status >= 0)
        status = launch(&c, run_combine_backward, s);
    return status < 0 ? status : transfer(&c, &m->out, take_combine_backward, s);
}

static dp_status_t moe_experts_backward_input(dp_moe_t *m, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute(m, io, "experts_backward_input", WORK, run_experts_backward_input, s);
}

static dp_status_t moe_experts_backward_weight(dp_moe_t *m, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute(m, io, "experts_backward_weight", GRADS, run_experts_backward_weight, s);
}

static dp_status_t moe_dispatch_backward(dp_moe_t *m, const dp_moe_io_t *io, dp_stream_t *s)
{
    call_t c;
    dp_status_t status = begin(m, io, "dispatch_backward", WORK, &c);

    return status < 0 ? status : transfer(&c, &m->back, take_dispatch_backward, s);
}

static dp_status_t moe_route_backward_input(dp_moe_t *m, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute(m, io, "route_backward_input", WORK, run_route_backward_input, s);
}

static dp_status_t moe_route_backward_weight(dp_moe_t *m, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute(m, io, "route_backward_weight", GRADS, run_route_backward_weight, s);
}

/* ---- instances ---- */

static dp_status_t moe_sizes(const dp_moe_t *m, dp_block_sizes_t *sizes_out)
{
    const dp_block_sizes_t sizes = {
        .struct_size = sizeof(sizes),
        .saved_bytes = m->saved_bytes,
        .work_bytes = m->work_bytes,
        .scratch_bytes = m->scratch_bytes,
        .param_count = m->count,
        .nparams = (uint32_t)(3 + (m->shared > 0 ? 3 : 0) + 3 * m->local),
    };

    dp_sized_put(sizes_out, &sizes);
    return DP_OK;
}

static const char *const matrices[3] = {"w_gate", "w_up", "w_down"};

static dp_status_t moe_params(const dp_moe_t *m, dp_param_t *params_out)
{
    static const char *const shared[3] = {"shared.w_gate", "shared.w_up", "shared.w_down"};
    const uint32_t d = (uint32_t)m->d;
    dp_param_t *p = params_out;

    *p++ = (dp_param_t){.name = "norm", .kind = DP_PARAM_VECTOR, .count = m->d, .start = 1};
    *p++ = (dp_param_t){.name = "router", .offset = m->router, .count = m->d * m->experts, .fan_in = d};
    *p++ = (dp_param_t){.name = "bias", .kind = DP_PARAM_ROUTER_BIAS, .offset = m->bias, .count = m->experts};
    for (size_t i = 0; i < 3 && m->shared > 0; i++)
        *p++ = (dp_param_t){.name = shared[i],
                            .offset = m->shared_at + i * m->d * m->shared,
                            .count = m->d * m->shared,
                            .fan_in = i < 2 ? d : (uint32_t)m->shared};
    for (size_t e = 0; e < m->local; e++)
        for (size_t i = 0; i < 3; i++)
            *p++ = (dp_param_t){.name = m->names[3 * e + i],
                                .offset = expert_at(m, (int32_t)e) + i * m->d * m->f,
                                .count = m->d * m->f,
                                .fan_in = i < 2 ? d : (uint32_t)m->f,
                                .sharded = 1,
                                .expert = (int32_t)(m->rank * m->local + e)};
    return DP_OK;
}

static dp_status_t check(const dp_host_t *host, const dp_moe_config_t *c)
{
    const dp_block_shape_t *shape = c->shape;
    dp_status_t status = DP_TAKE(host, "moe_mine: config", dp_moe_config_t, DP_MOE_CONFIG_MIN, NULL, c);

    if (status >= 0)
        status = DP_TAKE(host, "moe_mine: config.shape", dp_block_shape_t, DP_BLOCK_SHAPE_MIN, NULL, shape);
    if (status < 0)
        return status;
    if (c->device_vt == NULL || c->device == NULL || c->comm_vt == NULL || c->comm == NULL)
        return DP_FAIL(
            host, DP_ERR_INVALID,
            "moe_mine: device_vt, device, comm_vt or comm is NULL: it needs an open device and an expert group");
    if (strcmp(c->device_vt->kind, "cpu") != 0 || !(c->device_vt->caps & DP_DEVICE_CAP_LAUNCH))
        return DP_FAIL(
            host, DP_ERR_UNSUPPORTED,
            "moe_mine: it needs a device of kind \"cpu\" whose streams run host functions, this one is \"%s\": "
            "use device_cpu",
            c->device_vt->kind);
    if (shape->dtype != DP_F32 && shape->dtype != DP_F64)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "moe_mine: dtype %d: use f32 or f64", (int)shape->dtype);
    if (c->replicas != 0 || c->recompute != DP_RECOMPUTE_NONE || c->variable_tokens != 0 || c->route_groups > 1 ||
        c->ep_vt != NULL || c->apart != 0 || c->posted != 0)
        return DP_FAIL(
            host, DP_ERR_UNSUPPORTED,
            "moe_mine: it has no replicas, recomputation, variable tokens, groups, ep_vt, apart and posted: give 0");
    if (shape->batch == 0 || shape->sequence == 0 || shape->hidden == 0 || c->expert_hidden == 0 || c->comm_size < 1 ||
        c->comm_rank < 0 || c->comm_rank >= c->comm_size || c->experts == 0 ||
        c->experts % (uint32_t)c->comm_size != 0 || c->top_k == 0 || c->top_k > c->experts)
        return DP_FAIL(
            host, DP_ERR_INVALID,
            "moe_mine: batch %u, sequence %u, hidden %u, expert_hidden %u, experts %u, top_k %u, rank %d of %d: "
            "none may be 0, experts must be a multiple of the ranks, top_k at most experts",
            shape->batch, shape->sequence, shape->hidden, c->expert_hidden, c->experts, c->top_k, c->comm_rank,
            c->comm_size);
    if (!(shape->norm_eps >= 0 && shape->norm_eps < 1) || !(c->scale >= 0 && c->scale < 1e30f) ||
        !(c->aux_alpha >= 0 && c->aux_alpha < 1e30f) || (c->gate != DP_GATE_SOFTMAX && c->gate != DP_GATE_SIGMOID) ||
        c->normalize > 1)
        return DP_FAIL(
            host, DP_ERR_INVALID,
            "moe_mine: gate is %d, normalize %u, norm_eps %g, scale %g, aux_alpha %g: the gate must be one of dp_gate_t, normalize 0 or 1, the "
            "others 0 (the default) or positive",
            (int)c->gate, c->normalize, (double)shape->norm_eps, (double)c->scale, (double)c->aux_alpha);
    if ((uint64_t)shape->batch * shape->sequence * c->top_k > INT32_MAX)
        return DP_FAIL(host, DP_ERR_OVERFLOW, "moe_mine: more than 2^31 rows: use smaller micro-batches");
    return DP_OK;
}

static void take_config(dp_moe_t *m, const dp_moe_config_t *c)
{
    m->device_vt = c->device_vt;
    m->comm_vt = c->comm_vt;
    m->dtype = c->shape->dtype;
    m->gate = c->gate;
    m->normalize = c->normalize != 0;
    m->scale = c->scale > 0 ? (double)c->scale : 1;
    m->alpha = (double)c->aux_alpha;
    m->eps = c->shape->norm_eps > 0 ? (double)c->shape->norm_eps : 1e-6;
    m->tokens = (size_t)c->shape->batch * c->shape->sequence;
    m->d = c->shape->hidden;
    m->experts = c->experts;
    m->k = c->top_k;
    m->f = c->expert_hidden;
    m->shared = (size_t)c->shared_experts * c->expert_hidden;
    m->ranks = (size_t)c->comm_size;
    m->rank = (size_t)c->comm_rank;
    m->local = m->experts / m->ranks;
    m->pair_rows = m->tokens * (m->k < m->local ? m->k : m->local);
    m->rows = m->ranks * m->pair_rows;
    m->row_bytes = (sizeof(head_t) + m->d * sizeof(double) + 15) / 16 * 16;
    m->router = m->d;
    m->bias = m->router + m->d * m->experts;
    m->shared_at = m->bias + m->experts;
    m->experts_at = m->shared_at + 3 * m->d * m->shared;
    m->count = m->experts_at + m->local * 3 * m->d * m->f;
}

static dp_status_t open_link(const dp_moe_t *m, const dp_moe_config_t *c, uint32_t id, const char *label, link_t *link)
{
    const dp_exchange_config_t config = {
        .struct_size = sizeof(config),
        .id = id,
        .row_bytes = m->row_bytes,
        .capacity_rows = (uint32_t)m->pair_rows,
        .label = label,
    };

    return c->comm_vt->exchange_open(c->comm, &config, &link->exchange);
}

static void moe_close(dp_moe_t *m)
{
    if (m == NULL)
        return;
    if (m->names != NULL)
        m->host->release(m->host, m->names);
    m->host->release(m->host, m);
}

static dp_status_t moe_open(const dp_host_t *host, const dp_moe_config_t *config, dp_moe_t **moe_out)
{
    dp_status_t status = check(host, config);
    scratch_t scratch;
    saved_t saved;
    work_t work;
    dp_moe_t *m;

    if (status < 0)
        return status;
    m = host->allocate(host, sizeof(*m), 16);
    if (m == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "moe_mine: no memory for an instance");
    memset(m, 0, sizeof(*m));
    m->host = host;
    take_config(m, config);
    m->saved_bytes = lay_out_saved(m, NULL, &saved);
    m->work_bytes = lay_out_work(m, NULL, &work);
    m->scratch_bytes = lay_out_scratch(m, NULL, &scratch);
    m->names = host->allocate(host, m->local * 3 * sizeof(*m->names), 16);
    if (m->names == NULL) {
        moe_close(m);
        return DP_FAIL(host, DP_ERR_NOMEM, "moe_mine: no memory for an instance");
    }
    for (size_t i = 0; i < 3 * m->local; i++)
        snprintf(m->names[i], sizeof(m->names[i]), "experts.%zu.%s", m->rank * m->local + i / 3, matrices[i % 3]);
    status = open_link(m, config, config->exchange_id, "moe out", &m->out);
    if (status >= 0)
        status = open_link(m, config, config->exchange_id + 1, "moe back", &m->back);
    if (status < 0) {
        moe_close(m);
        return status;
    }
    *moe_out = m;
    return DP_OK;
}

static const dp_moe_vt_t table = {
    .struct_size = sizeof(table),
    .open = moe_open,
    .close = moe_close,
    .sizes = moe_sizes,
    .params = moe_params,
    .route = moe_route,
    .dispatch = moe_dispatch,
    .experts = moe_experts,
    .combine = moe_combine,
    .combine_backward = moe_combine_backward,
    .experts_backward_input = moe_experts_backward_input,
    .experts_backward_weight = moe_experts_backward_weight,
    .dispatch_backward = moe_dispatch_backward,
    .route_backward_input = moe_route_backward_input,
    .route_backward_weight = moe_route_backward_weight,
};

static const void *get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_MOE) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(moe_mine) = {
    DP_PLUGIN_HEAD,
    .name = "moe_mine",
    .version = "0.1",
    .summary = "a template: plain loops on host memory",
    .get_interface = get_interface,
};
