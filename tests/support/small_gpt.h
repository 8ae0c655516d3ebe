/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * small_gpt.h: a small model of the shape of GPT-2, in double: token and position embedding, layers
 * of attention and MLP behind layer norms, a last layer norm, and a head whose matrix is the token
 * embedding. Layers 0 and 3 share the first matrix of their MLP as well, so that a tie may also lie
 * between neighbours or within a stage. The same functions are the segments of a pipeline and of a
 * serial run without one. */
#ifndef DP_TESTS_SMALL_GPT_H
#define DP_TESTS_SMALL_GPT_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <dualpipe/advanced.h>
#include <dualpipe/dualpipe.h>
#include <dualpipe/plan.h>
#include <dualpipe/run.h>

enum {
    GPT_T = 4, /* tokens */
    GPT_D = 6,
    GPT_HEADS = 2,
    GPT_F = 10, /* width of the MLP */
    GPT_V = 11,
    GPT_LAYERS = 8,
    GPT_PARTS = GPT_LAYERS + 2, /* embedding, layers, head */
    GPT_TENSOR = GPT_T * GPT_D,
    GPT_MATRIX = GPT_D * GPT_D,
    GPT_WIDE = GPT_D * GPT_F,
    GPT_TABLE = GPT_V * GPT_D,
    GPT_MOST = 4 * GPT_D + 4 * GPT_MATRIX + 2 * GPT_WIDE /* parameters of a part */
};

static const dp_param_t gpt_embedding_params[] = {
    {.name = "wte", .count = GPT_TABLE, .shared = "wte"},
    {.name = "wpe", .offset = GPT_TABLE, .count = GPT_TENSOR},
};
#define GPT_LAYER_PARAMS(tie)                                                                                          \
    {                                                                                                                  \
        {.name = "ln1", .kind = DP_PARAM_VECTOR, .count = 2 * GPT_D},                                                  \
            {.name = "wqkv", .offset = 2 * GPT_D, .count = 3 * GPT_MATRIX},                                            \
            {.name = "wo", .offset = 2 * GPT_D + 3 * GPT_MATRIX, .count = GPT_MATRIX},                                 \
            {.name = "ln2", .kind = DP_PARAM_VECTOR, .offset = 2 * GPT_D + 4 * GPT_MATRIX, .count = 2 * GPT_D},        \
            {.name = "w1", .offset = 4 * GPT_D + 4 * GPT_MATRIX, .count = GPT_WIDE, .shared = (tie)},                  \
        {                                                                                                              \
            .name = "w2", .offset = 4 * GPT_D + 4 * GPT_MATRIX + GPT_WIDE, .count = GPT_WIDE                           \
        }                                                                                                              \
    }
static const dp_param_t gpt_layer_params[] = GPT_LAYER_PARAMS(NULL);
static const dp_param_t gpt_tied_layer_params[] = GPT_LAYER_PARAMS("mlp");
static const dp_param_t gpt_head_params[] = {
    {.name = "ln", .kind = DP_PARAM_VECTOR, .count = 2 * GPT_D},
    {.name = "wte", .offset = 2 * GPT_D, .count = GPT_TABLE, .shared = "wte"},
};

typedef struct gpt_norm {
    double scaled[GPT_TENSOR], one_by_deviation[GPT_T];
} gpt_norm_t;

typedef struct gpt_saved {
    gpt_norm_t norm1, norm2;
    double n1[GPT_TENSOR], qkv[3 * GPT_TENSOR], p[GPT_HEADS * GPT_T * GPT_T], a[GPT_TENSOR], n2[GPT_TENSOR];
    double h[GPT_T * GPT_F], g[GPT_T * GPT_F], logits[GPT_T * GPT_V];
    double dy[GPT_TENSOR], dh[GPT_T * GPT_F], dn2[GPT_TENSOR], dr[GPT_TENSOR], dqkv[3 * GPT_TENSOR], dn1[GPT_TENSOR];
    int tokens[GPT_T];
} gpt_saved_t;

/* One call, by the engine or by hand. */
typedef struct gpt_call {
    const double *w;
    double *dw;
    gpt_saved_t *s;
    const double *x, *dy;
    double *y, *dx;
    const int *tokens, *targets; /* [T] */
    double *loss;
    double loss_scale;
} gpt_call_t;

/* ---- parts ---- */

/* out[rows, m] (+)= x[rows, n] w, w [n, m] */
static void gpt_multiply(const double *x, const double *w, int rows, int n, int m, double *out, int add)
{
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < m; j++) {
            double sum = add ? out[r * m + j] : 0;

            for (int i = 0; i < n; i++)
                sum += x[r * n + i] * w[i * m + j];
            out[r * m + j] = sum;
        }
}

/* out[rows, m] = x[rows, n] w^T, w [m, n] */
static void gpt_multiply_transposed(const double *x, const double *w, int rows, int n, int m, double *out)
{
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < m; j++) {
            out[r * m + j] = 0;
            for (int i = 0; i < n; i++)
                out[r * m + j] += x[r * n + i] * w[j * n + i];
        }
}

/* dw[n, m] += x[rows, n]^T dy[rows, m] */
static void gpt_weight(const double *x, const double *dy, int rows, int n, int m, double *dw)
{
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < m; j++)
                dw[i * m + j] += x[r * n + i] * dy[r * m + j];
}

/* w: scale [D], then shift [D] */
static void gpt_norm_forward(const double *x, const double *w, gpt_norm_t *norm, double *y)
{
    for (int t = 0; t < GPT_T; t++) {
        double mean = 0, square = 0;

        for (int i = 0; i < GPT_D; i++)
            mean += x[t * GPT_D + i] / GPT_D;
        for (int i = 0; i < GPT_D; i++)
            square += (x[t * GPT_D + i] - mean) * (x[t * GPT_D + i] - mean) / GPT_D;
        norm->one_by_deviation[t] = 1 / sqrt(square + 1e-5);
        for (int i = 0; i < GPT_D; i++) {
            norm->scaled[t * GPT_D + i] = (x[t * GPT_D + i] - mean) * norm->one_by_deviation[t];
            y[t * GPT_D + i] = norm->scaled[t * GPT_D + i] * w[i] + w[GPT_D + i];
        }
    }
}

/* dx += gradient */
static void gpt_norm_backward(const gpt_norm_t *norm, const double *w, const double *dy, double *dx)
{
    for (int t = 0; t < GPT_T; t++) {
        const double *scaled = norm->scaled + t * GPT_D;
        double mean = 0, with = 0;

        for (int i = 0; i < GPT_D; i++) {
            mean += dy[t * GPT_D + i] * w[i] / GPT_D;
            with += dy[t * GPT_D + i] * w[i] * scaled[i] / GPT_D;
        }
        for (int i = 0; i < GPT_D; i++)
            dx[t * GPT_D + i] += (dy[t * GPT_D + i] * w[i] - mean - scaled[i] * with) * norm->one_by_deviation[t];
    }
}

static void gpt_norm_weight(const gpt_norm_t *norm, const double *dy, double *dw)
{
    for (int i = 0; i < GPT_TENSOR; i++) {
        dw[i % GPT_D] += dy[i] * norm->scaled[i];
        dw[GPT_D + i % GPT_D] += dy[i];
    }
}

/* Row t of part `which` (0 q, 1 k, 2 v) of a head. */
static double *gpt_row(double *qkv, int which, int head, int t)
{
    return qkv + t * 3 * GPT_D + which * GPT_D + head * (GPT_D / GPT_HEADS);
}

static void gpt_attend(gpt_saved_t *s)
{
    const int width = GPT_D / GPT_HEADS;

    for (int head = 0; head < GPT_HEADS; head++)
        for (int t = 0; t < GPT_T; t++) {
            double *p = s->p + (head * GPT_T + t) * GPT_T, sum = 0;

            for (int u = 0; u <= t; u++) {
                p[u] = 0;
                for (int i = 0; i < width; i++)
                    p[u] += gpt_row(s->qkv, 0, head, t)[i] * gpt_row(s->qkv, 1, head, u)[i];
                p[u] = exp(p[u] / sqrt(width));
                sum += p[u];
            }
            for (int i = 0; i < width; i++)
                s->a[t * GPT_D + head * width + i] = 0;
            for (int u = 0; u <= t; u++) {
                p[u] /= sum;
                for (int i = 0; i < width; i++)
                    s->a[t * GPT_D + head * width + i] += p[u] * gpt_row(s->qkv, 2, head, u)[i];
            }
        }
}

static void gpt_attend_backward(gpt_saved_t *s, const double *da)
{
    const int width = GPT_D / GPT_HEADS;

    memset(s->dqkv, 0, sizeof(s->dqkv));
    for (int head = 0; head < GPT_HEADS; head++)
        for (int t = 0; t < GPT_T; t++) {
            const double *p = s->p + (head * GPT_T + t) * GPT_T, *d = da + t * GPT_D + head * width;
            double dp[GPT_T], sum = 0;

            for (int u = 0; u <= t; u++) {
                dp[u] = 0;
                for (int i = 0; i < width; i++) {
                    dp[u] += d[i] * gpt_row(s->qkv, 2, head, u)[i];
                    gpt_row(s->dqkv, 2, head, u)[i] += p[u] * d[i];
                }
                sum += dp[u] * p[u];
            }
            for (int u = 0; u <= t; u++)
                for (int i = 0; i < width; i++) {
                    const double score = p[u] * (dp[u] - sum) / sqrt(width);

                    gpt_row(s->dqkv, 0, head, t)[i] += score * gpt_row(s->qkv, 1, head, u)[i];
                    gpt_row(s->dqkv, 1, head, u)[i] += score * gpt_row(s->qkv, 0, head, t)[i];
                }
        }
}

/* ---- parts: forward, gradient of the input, gradient of the parameters ---- */

static void gpt_embedding(dp_op_kind_t pass, const gpt_call_t *c)
{
    gpt_saved_t *s = c->s;

    if (pass == DP_OP_F)
        memcpy(s->tokens, c->tokens, sizeof(s->tokens));
    else if (pass == DP_OP_I)
        memcpy(s->dy, c->dy, sizeof(s->dy));
    for (int i = 0; i < GPT_TENSOR; i++) {
        const int at = s->tokens[i / GPT_D] * GPT_D + i % GPT_D;

        if (pass == DP_OP_F) {
            c->y[i] = c->w[at] + c->w[GPT_TABLE + i];
        } else if (pass == DP_OP_W) {
            c->dw[at] += s->dy[i];
            c->dw[GPT_TABLE + i] += s->dy[i];
        }
    }
}

static void gpt_layer(dp_op_kind_t pass, const gpt_call_t *c)
{
    const dp_param_t *at = gpt_layer_params;
    const double *ln1 = c->w, *wqkv = c->w + at[1].offset, *wo = c->w + at[2].offset, *ln2 = c->w + at[3].offset,
                 *w1 = c->w + at[4].offset, *w2 = c->w + at[5].offset;
    gpt_saved_t *s = c->s;

    if (pass == DP_OP_F) {
        double r[GPT_TENSOR];

        gpt_norm_forward(c->x, ln1, &s->norm1, s->n1);
        gpt_multiply(s->n1, wqkv, GPT_T, GPT_D, 3 * GPT_D, s->qkv, 0);
        gpt_attend(s);
        memcpy(r, c->x, sizeof(r));
        gpt_multiply(s->a, wo, GPT_T, GPT_D, GPT_D, r, 1);
        gpt_norm_forward(r, ln2, &s->norm2, s->n2);
        gpt_multiply(s->n2, w1, GPT_T, GPT_D, GPT_F, s->h, 0);
        for (int i = 0; i < GPT_T * GPT_F; i++)
            s->g[i] = 0.5 * s->h[i] * (1 + erf(s->h[i] * M_SQRT1_2));
        memcpy(c->y, r, sizeof(r));
        gpt_multiply(s->g, w2, GPT_T, GPT_F, GPT_D, c->y, 1);
    } else if (pass == DP_OP_I) {
        double da[GPT_TENSOR];

        memcpy(s->dy, c->dy, sizeof(s->dy));
        gpt_multiply_transposed(s->dy, w2, GPT_T, GPT_D, GPT_F, s->dh);
        for (int i = 0; i < GPT_T * GPT_F; i++)
            s->dh[i] *= 0.5 * (1 + erf(s->h[i] * M_SQRT1_2)) +
                        s->h[i] * exp(-0.5 * s->h[i] * s->h[i]) * 0.5 * M_2_SQRTPI * M_SQRT1_2;
        gpt_multiply_transposed(s->dh, w1, GPT_T, GPT_F, GPT_D, s->dn2);
        memcpy(s->dr, s->dy, sizeof(s->dr));
        gpt_norm_backward(&s->norm2, ln2, s->dn2, s->dr);
        gpt_multiply_transposed(s->dr, wo, GPT_T, GPT_D, GPT_D, da);
        gpt_attend_backward(s, da);
        gpt_multiply_transposed(s->dqkv, wqkv, GPT_T, 3 * GPT_D, GPT_D, s->dn1);
        memcpy(c->dx, s->dr, sizeof(s->dr));
        gpt_norm_backward(&s->norm1, ln1, s->dn1, c->dx);
    } else {
        gpt_norm_weight(&s->norm1, s->dn1, c->dw);
        gpt_weight(s->n1, s->dqkv, GPT_T, GPT_D, 3 * GPT_D, c->dw + at[1].offset);
        gpt_weight(s->a, s->dr, GPT_T, GPT_D, GPT_D, c->dw + at[2].offset);
        gpt_norm_weight(&s->norm2, s->dn2, c->dw + at[3].offset);
        gpt_weight(s->n2, s->dh, GPT_T, GPT_D, GPT_F, c->dw + at[4].offset);
        gpt_weight(s->g, s->dy, GPT_T, GPT_F, GPT_D, c->dw + at[5].offset);
    }
}

static void gpt_head(dp_op_kind_t pass, const gpt_call_t *c)
{
    const double *wte = c->w + 2 * GPT_D;
    gpt_saved_t *s = c->s;

    if (pass == DP_OP_F) {
        gpt_norm_forward(c->x, c->w, &s->norm1, s->n1);
        gpt_multiply_transposed(s->n1, wte, GPT_T, GPT_D, GPT_V, s->logits);
        /* logits become probabilities, less 1 where the target is */
        for (int t = 0; t < GPT_T; t++) {
            double *row = s->logits + t * GPT_V, sum = 0;

            for (int v = 0; v < GPT_V; v++)
                sum += row[v] = exp(row[v]);
            *c->loss -= log(row[c->targets[t]] / sum) / GPT_T;
            for (int v = 0; v < GPT_V; v++)
                row[v] = row[v] / sum - (v == c->targets[t]);
        }
    } else if (pass == DP_OP_I) {
        for (int i = 0; i < GPT_T * GPT_V; i++)
            s->logits[i] *= c->loss_scale / GPT_T;
        gpt_multiply(s->logits, wte, GPT_T, GPT_V, GPT_D, s->dn1, 0);
        memset(c->dx, 0, sizeof(s->dn1));
        gpt_norm_backward(&s->norm1, c->w, s->dn1, c->dx);
    } else {
        gpt_norm_weight(&s->norm1, s->dn1, c->dw);
        gpt_weight(s->logits, s->n1, GPT_T, GPT_V, GPT_D, c->dw + 2 * GPT_D);
    }
}

typedef void (*gpt_part_fn)(dp_op_kind_t pass, const gpt_call_t *call);

static gpt_part_fn gpt_function(int part)
{
    return part == 0 ? gpt_embedding : part < GPT_PARTS - 1 ? gpt_layer : gpt_head;
}

static const dp_param_t *gpt_params_of(int part, uint32_t *n_out)
{
    *n_out = part == 0 || part == GPT_PARTS - 1 ? 2 : 6;
    return part == 0                    ? gpt_embedding_params
           : part == GPT_PARTS - 1      ? gpt_head_params
           : part == 1 || part == 1 + 3 ? gpt_tied_layer_params
                                        : gpt_layer_params;
}

/* The other end of a tied parameter, which is one of `part`; NULL: not tied. */
static const dp_param_t *gpt_other_end(int part, const dp_param_t *param, int *part_out)
{
    if (param->shared == NULL)
        return NULL;
    *part_out = part == 0 ? GPT_PARTS - 1 : part == GPT_PARTS - 1 ? 0 : part == 1 ? 4 : 1;
    return part == 0 ? &gpt_head_params[1] : part == GPT_PARTS - 1 ? &gpt_embedding_params[0] : param;
}

/* ---- values ---- */

static unsigned gpt_hash(unsigned key)
{
    unsigned h = key * 2654435761u;

    h ^= h >> 15;
    h *= 2246822519u;
    return h ^ h >> 13;
}

typedef struct gpt_values {
    double at[GPT_PARTS * GPT_MOST];
} gpt_values_t;

static inline size_t gpt_begin(int part)
{
    return (size_t)part * GPT_MOST;
}

static void gpt_initialise(gpt_values_t *values)
{
    for (unsigned i = 0; i < GPT_PARTS * GPT_MOST; i++)
        values->at[i] = (double)(gpt_hash(i) % 20001) / 20000 - 0.5;
    for (int part = 0; part < GPT_PARTS; part++) {
        uint32_t n;
        const dp_param_t *list = gpt_params_of(part, &n), *first;
        int other;

        for (uint32_t i = 0; i < n; i++)
            if ((first = gpt_other_end(part, &list[i], &other)) != NULL && other < part)
                memcpy(values->at + gpt_begin(part) + list[i].offset, values->at + gpt_begin(other) + first->offset,
                       list[i].count * sizeof(double));
    }
}

/* Tokens and what follows them, of a micro-batch of a replica in a step. */
static void gpt_data(unsigned step, unsigned replica, unsigned microbatch, int tokens[GPT_T], int targets[GPT_T])
{
    for (unsigned t = 0; t < GPT_T; t++) {
        tokens[t] = (int)(gpt_hash(1000 * step + 100 * replica + 10 * microbatch + t) % GPT_V);
        targets[t] = (int)(gpt_hash(77777 + 1000 * step + 100 * replica + 10 * microbatch + t) % GPT_V);
    }
}

/* ---- the serial run ---- */

/* Adds the gradients of one pipeline's micro-batches, by half. */
static void gpt_serial(const gpt_values_t *w, unsigned step, unsigned replica, int m, double loss_scale,
                       gpt_values_t half[2], double *losses)
{
    static gpt_saved_t saved[GPT_PARTS];
    double flow[2][GPT_TENSOR];

    for (int i = 0; i < m; i++) {
        gpt_values_t *dw = &half[i < m / 2 ? 0 : 1];
        int tokens[GPT_T], targets[GPT_T];
        gpt_call_t c = {.tokens = tokens, .targets = targets, .loss = &losses[i], .loss_scale = loss_scale};

        gpt_data(step, replica, (unsigned)i, tokens, targets);
        losses[i] = 0;
        for (int pass = DP_OP_F; pass <= DP_OP_W; pass++)
            for (int k = 0; k < GPT_PARTS; k++) {
                const int part = pass == DP_OP_F ? k : GPT_PARTS - 1 - k;

                if (pass != DP_OP_F && pass != DP_OP_I && pass != DP_OP_W)
                    continue;
                c.w = w->at + gpt_begin(part), c.dw = dw->at + gpt_begin(part), c.s = &saved[part];
                c.x = c.dy = flow[k % 2], c.y = c.dx = flow[1 - k % 2];
                gpt_function(part)((dp_op_kind_t)pass, &c);
            }
    }
}

/* What `rounds` steps of all replicas from `step` on leave: half 0 + half 1, the two ends, the
 * replicas in rank order. losses: [replicas][rounds][m] */
static void gpt_serial_steps(const gpt_values_t *w, int step, int rounds, int replicas, int m, gpt_values_t *grads,
                             double *losses)
{
    const double loss_scale = 1.0 / ((double)m * replicas * rounds);
    static gpt_values_t half[2], sum;
    int other;

    for (int r = 0; r < replicas; r++) {
        memset(half, 0, sizeof(half));
        for (int round = 0; round < rounds; round++)
            gpt_serial(w, (unsigned)(step + round), (unsigned)r, m, loss_scale, half,
                       losses + (r * rounds + round) * m);
        for (int i = 0; i < GPT_PARTS * GPT_MOST; i++)
            half[0].at[i] += half[1].at[i];
        sum = half[0];
        for (int part = 0; part < GPT_PARTS; part++) {
            uint32_t n;
            const dp_param_t *list = gpt_params_of(part, &n), *end;

            for (uint32_t i = 0; i < n; i++)
                if ((end = gpt_other_end(part, &list[i], &other)) != NULL)
                    for (size_t k = 0; k < end->count; k++)
                        sum.at[gpt_begin(part) + list[i].offset + k] += half[0].at[gpt_begin(other) + end->offset + k];
        }
        for (int i = 0; i < GPT_PARTS * GPT_MOST; i++)
            grads->at[i] = r == 0 ? sum.at[i] : grads->at[i] + sum.at[i];
    }
}

/* ---- the same as stages ---- */

typedef struct gpt_self {
    int part;
} gpt_self_t;

static const gpt_self_t gpt_selves[GPT_PARTS] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}};

static uint32_t gpt_latest_step; /* that a forward was called for */

static dp_status_t gpt_run(dp_op_kind_t pass, void *self, const dp_segment_call_t *call)
{
    const gpt_call_t c = {.w = call->params,
                          .dw = call->grads,
                          .s = call->saved,
                          .x = call->x,
                          .dy = call->dy,
                          .y = call->y,
                          .dx = call->dx,
                          .tokens = call->input,
                          .targets = call->target,
                          .loss = call->loss,
                          .loss_scale = call->loss_scale};

    gpt_function(((const gpt_self_t *)self)->part)(pass, &c);
    return DP_OK;
}
static dp_status_t gpt_run_f(void *self, const dp_segment_call_t *call)
{
    __atomic_store_n(&gpt_latest_step, call->step, __ATOMIC_RELAXED);
    return gpt_run(DP_OP_F, self, call);
}
static dp_status_t gpt_run_i(void *self, const dp_segment_call_t *call)
{
    return gpt_run(DP_OP_I, self, call);
}
static dp_status_t gpt_run_w(void *self, const dp_segment_call_t *call)
{
    return gpt_run(DP_OP_W, self, call);
}

/* Layers are divided evenly; embedding and head go with the first and the last. change: NULL, or
 * spoils the copy of a part's parameters. */
static dp_status_t gpt_stage(int32_t stage, int32_t stages, void (*change)(int part, dp_param_t *list),
                             dp_stage_t **stage_out)
{
    static const char *const prefix[GPT_PARTS] = {"embedding.", "layer0.", "layer1.", "layer2.", "layer3.",
                                                  "layer4.",    "layer5.", "layer6.", "layer7.", "head."};
    const int first = stage == 0 ? 0 : 1 + GPT_LAYERS * stage / stages;
    const int end = stage == stages - 1 ? GPT_PARTS : 1 + GPT_LAYERS * (stage + 1) / stages;
    dp_param_t lists[GPT_PARTS][6];
    dp_segment_t segments[GPT_PARTS];
    dp_block_sizes_t sizes[GPT_PARTS];
    dp_part_t parts[GPT_PARTS];

    for (int part = first; part < end; part++) {
        const int i = part - first;
        uint32_t n;
        const dp_param_t *list = gpt_params_of(part, &n);

        memcpy(lists[i], list, n * sizeof(*list));
        if (change != NULL)
            change(part, lists[i]);
        segments[i] = (dp_segment_t){.struct_size = sizeof(dp_segment_t),
                                     .name = "gpt",
                                     .self = (void *)(uintptr_t)&gpt_selves[part],
                                     .host_forward = gpt_run_f,
                                     .host_backward_input = gpt_run_i,
                                     .host_backward_weight = gpt_run_w};
        sizes[i] = (dp_block_sizes_t){.struct_size = sizeof(dp_block_sizes_t),
                                      .saved_bytes = sizeof(gpt_saved_t),
                                      .param_count = GPT_MOST,
                                      .nparams = n};
        parts[i] = (dp_part_t){.struct_size = sizeof(dp_part_t),
                               .nsegments = 1,
                               .segments = &segments[i],
                               .sizes = &sizes[i],
                               .param_list = lists[i],
                               .prefix = prefix[part]};
    }
    return dp_stage_create(parts, end - first, GPT_TENSOR * sizeof(double), DP_F64, stage_out);
}

/* Of which part a parameter of a stage is, by its prefix, and where in it. */
static int gpt_find(const dp_param_t *param, size_t *offset_out)
{
    int part = strncmp(param->name, "head.", 5) == 0 ? GPT_PARTS - 1 : 0;
    const char *name = strchr(param->name, '.') + 1;
    const dp_param_t *list;
    uint32_t n;

    if (sscanf(param->name, "layer%d.", &part) == 1)
        part++;
    list = gpt_params_of(part, &n);
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0)
            *offset_out = list[i].offset;
    return part;
}

#endif
