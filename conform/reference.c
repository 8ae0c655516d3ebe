/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reference.c: see reference.h. Plain sums in the order of the formulas: made to be compared with
 * the headers. */
#include "reference.h"

#include "conform.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t conform_layer_tokens(const layer_t *layer)
{
    return layer->tokens > 0 ? layer->tokens : (size_t)layer->batch * layer->sequence;
}

static double *doubles(size_t count)
{
    double *memory = calloc(count + 1, sizeof(*memory));

    if (memory == NULL)
        conform_no_memory();
    return memory;
}

/* to[d] = RMSNorm(x) of one token */
static void norm_of(const layer_t *layer, const double *gain, const double *x, size_t d, double *to)
{
    const double eps = layer->norm_eps != 0 ? (double)layer->norm_eps : 1e-6;
    double square = 0;

    for (size_t i = 0; i < d; i++)
        square += x[i] * x[i] / (double)d;
    for (size_t i = 0; i < d; i++)
        to[i] = x[i] / sqrt(square + eps) * gain[i];
}

static void norm(const layer_t *layer, const double *gain, const double *x, double *to)
{
    norm_of(layer, gain, x, layer->hidden, to);
}

/* to[width] += factor * row[rows] w[rows, width] */
static void add_product(const double *row, size_t rows, const double *w, size_t width, double factor, double *to)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < width; j++)
            to[j] += factor * row[i] * w[i * width + j];
}

/* ---- attention ---- */

typedef struct widths {
    size_t d, q, k, v, o;
    size_t head, value; /* of one head */
} widths_t;

/* Keys of latent attention are written out whole, for every head. */
static widths_t widths_of(const layer_t *layer)
{
    const size_t head = layer->head_dim, kv_heads = layer->kv_rank > 0 ? layer->heads : layer->kv_heads;
    const size_t value = layer->value_dim != 0 ? layer->value_dim : head - layer->rope_dim;

    return (widths_t){.d = layer->hidden,
                      .q = layer->heads * head,
                      .k = kv_heads * head,
                      .v = kv_heads * value,
                      .o = layer->heads * value,
                      .head = head,
                      .value = value};
}

size_t conform_reference_attention_params(const layer_t *layer)
{
    const widths_t w = widths_of(layer);
    const size_t nope = w.head - layer->rope_dim, rank = layer->kv_rank;
    size_t count = w.d + w.o * w.d;

    if (layer->kv_rank == 0)
        return count + w.d * (w.q + w.k + w.v);
    count += layer->q_rank > 0 ? w.d * layer->q_rank + layer->q_rank + layer->q_rank * w.q : w.d * w.q;
    return count + w.d * (rank + layer->rope_dim) + rank + rank * (layer->heads * nope + w.v);
}

/* Pairs of a vector of `width` elements. */
static void rotate(const layer_t *layer, double *vector, size_t width, size_t position)
{
    const size_t half = width / 2;
    const double theta = layer->theta != 0 ? (double)layer->theta : 10000;

    for (size_t i = 0; i < half; i++) {
        const double angle = (double)position * pow(theta, -2 * (double)i / (double)width);
        const double c = cos(angle), s = sin(angle), a = vector[i], b = vector[i + half];

        vector[i] = a * c - b * s;
        vector[i + half] = a * s + b * c;
    }
}

/* q, k and v of one token with their own heads; n: its normalized row. Returns wo. */
static const double *make_heads(const layer_t *layer, const double *params, const double *n, size_t position, double *q,
                                double *k, double *v)
{
    const widths_t w = widths_of(layer);
    const double *wq = params + w.d, *wk = wq + w.d * w.q, *wv = wk + w.d * w.k;

    add_product(n, w.d, wq, w.q, 1, q);
    add_product(n, w.d, wk, w.k, 1, k);
    add_product(n, w.d, wv, w.v, 1, v);
    for (size_t h = 0; h < layer->heads; h++)
        rotate(layer, q + h * w.head, w.head, position);
    for (size_t h = 0; h < layer->kv_heads; h++)
        rotate(layer, k + h * w.head, w.head, position);
    return wv + w.d * w.v;
}

/* The same of latent attention: every step of the header, one after the other. */
static const double *make_latent_heads(const layer_t *layer, const double *params, const double *n, size_t position,
                                       double *q, double *k, double *v)
{
    const widths_t w = widths_of(layer);
    const size_t rope = layer->rope_dim, nope = w.head - rope, rank = layer->kv_rank;
    const double *at = params + w.d, *down, *gain, *up;
    double *latent = doubles(rank + rope + layer->q_rank), *normed = doubles(rank + layer->q_rank);
    double *keys = doubles(layer->heads * nope);

    if (layer->q_rank > 0) {
        down = at;
        gain = down + w.d * layer->q_rank;
        up = gain + layer->q_rank;
        add_product(n, w.d, down, layer->q_rank, 1, latent);
        norm_of(layer, gain, latent, layer->q_rank, normed);
        add_product(normed, layer->q_rank, up, w.q, 1, q);
        at = up + layer->q_rank * w.q;
        memset(latent, 0, layer->q_rank * sizeof(*latent));
    } else {
        add_product(n, w.d, at, w.q, 1, q);
        at += w.d * w.q;
    }
    down = at;
    gain = down + w.d * (rank + rope);
    up = gain + rank;
    add_product(n, w.d, down, rank + rope, 1, latent);
    norm_of(layer, gain, latent, rank, normed);
    add_product(normed, rank, up, layer->heads * nope, 1, keys);
    add_product(normed, rank, up + rank * layer->heads * nope, w.v, 1, v);
    rotate(layer, latent + rank, rope, position);
    for (size_t h = 0; h < layer->heads; h++) {
        rotate(layer, q + h * w.head + nope, rope, position);
        memcpy(k + h * w.head, keys + h * nope, nope * sizeof(*k));
        memcpy(k + h * w.head + nope, latent + rank, rope * sizeof(*k));
    }
    free(latent);
    free(normed);
    free(keys);
    return up + rank * (layer->heads * nope + w.v);
}

/* out[value] of one query head over keys and values of the tokens of its sequence so far, `count`
 * of them. */
static void attend(const widths_t *w, const double *q, const double *k, const double *v, size_t count, double *out)
{
    double *p = doubles(count), largest = -INFINITY, sum = 0;

    for (size_t s = 0; s < count; s++) {
        for (size_t i = 0; i < w->head; i++)
            p[s] += q[i] * k[s * w->k + i];
        p[s] /= sqrt((double)w->head);
        largest = fmax(largest, p[s]);
    }
    for (size_t s = 0; s < count; s++)
        sum += p[s] = exp(p[s] - largest);
    for (size_t s = 0; s < count; s++)
        for (size_t i = 0; i < w->value; i++)
            out[i] += p[s] / sum * v[s * w->v + i];
    free(p);
}

/* The first token that token t may see. */
static size_t first_seen(const layer_t *layer, size_t t)
{
    size_t first = layer->documents > 0 ? 0 : t - t % layer->sequence;

    for (uint32_t i = 0; i < layer->documents && layer->ends[i] <= t; i++)
        first = layer->ends[i];
    return first;
}

void conform_reference_attention(const layer_t *layer, const double *params, const double *x, size_t from, double *y)
{
    const widths_t w = widths_of(layer);
    const size_t tokens = conform_layer_tokens(layer), d = w.d;
    const size_t group = layer->kv_rank > 0 ? 1 : layer->heads / layer->kv_heads;
    const double *wo = NULL;
    double *q = doubles(tokens * w.q), *k = doubles(tokens * w.k), *v = doubles(tokens * w.v);
    double *n = doubles(d), *out = doubles(w.o);

    for (size_t t = 0; t < tokens; t++) {
        norm(layer, params, x + t * d, n);
        wo = (layer->kv_rank > 0 ? make_latent_heads : make_heads)(layer, params, n, t - first_seen(layer, t),
                                                                   q + t * w.q, k + t * w.k, v + t * w.v);
    }
    for (size_t t = from; t < tokens; t++) {
        const size_t first = first_seen(layer, t);

        memset(out, 0, w.o * sizeof(*out));
        for (size_t h = 0; h < layer->heads; h++) {
            const size_t kv = h / group;

            attend(&w, q + t * w.q + h * w.head, k + first * w.k + kv * w.head, v + first * w.v + kv * w.value,
                   t - first + 1, out + h * w.value);
        }
        memcpy(y + t * d, x + t * d, d * sizeof(*y));
        add_product(out, w.o, wo, d, 1, y + t * d);
    }
    free(q);
    free(k);
    free(v);
    free(n);
    free(out);
}

/* ---- MoE ---- */

size_t conform_reference_moe_common(const layer_t *layer)
{
    const size_t d = layer->hidden;

    return d + d * layer->experts + layer->experts + 3 * d * layer->shared * layer->width;
}

size_t conform_reference_moe_expert(const layer_t *layer)
{
    return (size_t)3 * layer->hidden * layer->width;
}

size_t conform_reference_moe_params(const layer_t *layer)
{
    return conform_reference_moe_common(layer) + layer->experts * conform_reference_moe_expert(layer);
}

/* y += factor * SwiGLU(n), of width f */
static void add_expert(size_t d, size_t f, const double *w, const double *n, double factor, double *y)
{
    double *gate = doubles(f), *up = doubles(f);

    add_product(n, d, w, f, 1, gate);
    add_product(n, d, w + d * f, f, 1, up);
    for (size_t j = 0; j < f; j++)
        gate[j] = gate[j] / (1 + exp(-gate[j])) * up[j];
    add_product(gate, f, w + 2 * d * f, d, factor, y);
    free(gate);
    free(up);
}

static void score(const layer_t *layer, const double *params, const double *n, double *scores)
{
    const size_t experts = layer->experts;
    double largest = -INFINITY, sum = 0;

    memset(scores, 0, experts * sizeof(*scores));
    add_product(n, layer->hidden, params + layer->hidden, experts, 1, scores);
    for (size_t e = 0; e < experts; e++)
        largest = fmax(largest, scores[e]);
    for (size_t e = 0; e < experts; e++) {
        scores[e] = layer->gate == DP_GATE_SIGMOID ? 1 / (1 + exp(-scores[e])) : exp(scores[e] - largest);
        sum += scores[e];
    }
    for (size_t e = 0; e < experts && layer->gate == DP_GATE_SOFTMAX; e++)
        scores[e] /= sum;
}

/* The best of experts first ... end - 1 that is none of chosen[0 ... count - 1] and whose group is
 * kept; -1: there is none. kept NULL: all are. */
static int best_of_the_rest(const layer_t *layer, const double *bias, const double *scores, const bool *kept, int first,
                            int end, const int *chosen, uint32_t count)
{
    int best = -1;

    for (int e = first; e < end; e++) {
        bool taken = kept != NULL && !kept[(uint32_t)e / (layer->experts / layer->groups)];

        for (uint32_t i = 0; i < count; i++)
            taken = taken || chosen[i] == e;
        if (!taken && (best < 0 || scores[e] + bias[e] > scores[best] + bias[best]))
            best = e;
    }
    return best;
}

/* kept[g]: whether a token may choose from group g. Returns how far the sums of the last that is
 * kept and the first that is not are apart. */
static double keep_groups(const layer_t *layer, const double *bias, const double *scores, bool *kept)
{
    const int size = (int)(layer->experts / layer->groups);
    const uint32_t counted = (layer->top_k + layer->limit - 1) / layer->limit;
    int *best = calloc(counted, sizeof(*best)), last = -1;
    double *sums = doubles(layer->groups), margin = INFINITY;

    for (int g = 0; g < (int)layer->groups; g++) {
        kept[g] = false;
        for (uint32_t j = 0; j < counted; j++) {
            best[j] = best_of_the_rest(layer, bias, scores, NULL, g * size, (g + 1) * size, best, j);
            sums[g] += scores[best[j]] + bias[best[j]];
        }
    }
    for (uint32_t j = 0; j <= layer->limit && j < layer->groups; j++) {
        int next = -1;

        for (int g = 0; g < (int)layer->groups; g++)
            if (!kept[g] && (next < 0 || sums[g] > sums[next]))
                next = g;
        if (j == layer->limit)
            margin = sums[last] - sums[next];
        else
            kept[next] = true;
        last = next;
    }
    free(best);
    free(sums);
    return margin;
}

double conform_reference_moe(const layer_t *layer, const double *params, const double *x, double *y, int *chosen,
                             bool fixed)
{
    const size_t d = layer->hidden, experts = layer->experts, tokens = conform_layer_tokens(layer);
    const double *bias = params + d + d * experts, *first = params + conform_reference_moe_common(layer);
    const double factor = layer->scale > 0 ? (double)layer->scale : 1;
    double *n = doubles(d), *scores = doubles(experts), *mean = doubles(experts), *count = doubles(experts), aux = 0;
    bool *kept = layer->groups > 0 ? calloc(layer->groups, sizeof(*kept)) : NULL;

    for (size_t t = 0; t < tokens; t++) {
        double *row = y + t * d, sum = 0, total = 0;
        int *mine = chosen + t * layer->top_k;

        norm(layer, params, x + t * d, n);
        memcpy(row, x + t * d, d * sizeof(*row));
        if (layer->shared > 0)
            add_expert(d, (size_t)layer->shared * layer->width, bias + experts, n, 1, row);
        score(layer, params, n, scores);
        if (kept != NULL)
            (void)keep_groups(layer, bias, scores, kept);
        for (uint32_t j = 0; j < layer->top_k && !fixed; j++)
            mine[j] = best_of_the_rest(layer, bias, scores, kept, 0, (int)experts, mine, j);
        for (uint32_t j = 0; j < layer->top_k; j++)
            sum += scores[mine[j]];
        for (uint32_t j = 0; j < layer->top_k; j++) {
            count[mine[j]]++;
            add_expert(d, layer->width, first + (size_t)mine[j] * conform_reference_moe_expert(layer), n,
                       factor * scores[mine[j]] / (layer->normalize ? sum + 1e-20 : 1), row);
        }
        for (size_t e = 0; e < experts; e++)
            total += scores[e];
        for (size_t e = 0; e < experts; e++)
            mean[e] += scores[e] / total / (double)tokens;
    }
    for (size_t e = 0; e < experts; e++)
        aux +=
            (double)layer->aux_alpha * (double)experts / ((double)layer->top_k * (double)tokens) * count[e] * mean[e];
    free(n);
    free(scores);
    free(mean);
    free(count);
    free(kept);
    return aux;
}

double conform_reference_moe_margin(const layer_t *layer, const double *params, const double *x)
{
    const size_t d = layer->hidden;
    const double *bias = params + d + d * layer->experts;
    double *n = doubles(d), *scores = doubles(layer->experts), least = INFINITY;
    int *chosen = calloc(layer->top_k + 1, sizeof(*chosen));
    bool *kept = layer->groups > 0 ? calloc(layer->groups, sizeof(*kept)) : NULL;

    for (size_t t = 0; t < conform_layer_tokens(layer) && layer->top_k < layer->experts; t++) {
        norm(layer, params, x + t * d, n);
        score(layer, params, n, scores);
        if (kept != NULL)
            least = fmin(least, keep_groups(layer, bias, scores, kept));
        for (uint32_t j = 0; j <= layer->top_k; j++)
            chosen[j] = best_of_the_rest(layer, bias, scores, kept, 0, (int)layer->experts, chosen, j);
        for (uint32_t j = 0; j < layer->top_k && chosen[layer->top_k] >= 0; j++) {
            const int a = chosen[j], b = chosen[layer->top_k];

            least = fmin(least, scores[a] + bias[a] - scores[b] - bias[b]);
        }
    }
    free(n);
    free(scores);
    free(chosen);
    free(kept);
    return least;
}
