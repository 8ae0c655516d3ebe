/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reference.h: attention.h and moe.h written down in double, token by token: what plugins are
 * measured by. */
#ifndef DP_CONFORM_REFERENCE_H
#define DP_CONFORM_REFERENCE_H

#include <dualpipe/attention.h>
#include <dualpipe/moe.h>

#include <stdbool.h>

/* A layer to try, of either kind; zero is the default where the configs have one. */
typedef struct layer {
    dp_dtype_t dtype;
    uint32_t batch, sequence, hidden;
    uint32_t tokens;             /* of the micro-batches; 0: batch * sequence */
    uint32_t documents, ends[4]; /* attention: dp_io_t.documents */
    float norm_eps;
    /* attention */
    uint32_t heads, kv_heads, head_dim, value_dim;
    uint32_t q_rank, kv_rank, rope_dim; /* kv_rank > 0: latent */
    float theta;
    /* MoE */
    uint32_t experts, top_k, width, shared;
    dp_gate_t gate;
    uint32_t normalize;
    float scale, aux_alpha;
    uint32_t groups, limit; /* groups 0: there are none */
} layer_t;

size_t conform_layer_tokens(const layer_t *layer);

/* Elements of the parameters of a whole layer, in the header's order. */
size_t conform_reference_attention_params(const layer_t *layer);
size_t conform_reference_moe_params(const layer_t *layer);
/* Elements before the first expert, and of one expert. */
size_t conform_reference_moe_common(const layer_t *layer);
size_t conform_reference_moe_expert(const layer_t *layer);

/* y [T, d] of x [T, d]; only tokens from `from` on are written. */
void conform_reference_attention(const layer_t *layer, const double *params, const double *x, size_t from, double *y);

/* y [T, d] of x; returns the auxiliary loss. chosen [T, top_k] is written, or read when `fixed`. */
double conform_reference_moe(const layer_t *layer, const double *params, const double *x, double *y, int *chosen,
                             bool fixed);
/* Least distance, over the tokens, between the last score (with its bias) that was chosen and the
 * first that was not, and of groups between the last sum and the first: where it is small, rounding
 * may choose otherwise. */
double conform_reference_moe_margin(const layer_t *layer, const double *params, const double *x);

#endif
