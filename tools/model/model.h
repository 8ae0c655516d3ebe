/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * model.h: what a published model is made of, and how many parameters that is. */
#ifndef DP_TOOLS_MODEL_H
#define DP_TOOLS_MODEL_H

#include <dualpipe/status.h>
#include <stdbool.h>
#include <stdint.h>

/* Numbers of its config.json. A member that is 0 is not there. */
typedef struct model {
    char type[32]; /* model_type: "deepseek_v3" */
    int64_t hidden, layers, vocab;
    int64_t positions; /* learned ones, as rows of a table */
    int64_t heads, kv_heads, head_dim;
    /* latent attention: ranks of queries and of keys and values, parts of a head with and without
     * positions. head_dim is both parts together */
    int64_t q_rank, kv_rank, rope_dim, value_dim;
    int64_t ffn; /* width of a dense layer's MLP */
    int64_t experts, top_k, expert_ffn, shared_ffn;
    int64_t dense_first; /* layers before the first with experts */
    int64_t moe_every;   /* from then on, each how many-th has experts */
    int64_t node_limit;  /* most groups of experts that a token chooses from */
    int64_t sequence;    /* longest */
    bool tied;           /* the head is the embedding */
    bool gated;          /* an MLP has a gate */
    bool qkv_bias, o_bias, mlp_bias, norm_bias, router_bias, expert_bias;
    bool qk_norm, sinks, shared_gate;
} model_t;

/* Reads the config.json of a model on Hugging Face's hub. DP_ERR_INVALID: not JSON, a kind of model
 * or a number that is not known here. */
dp_status_t model_read(const char *path, model_t *model_out);
/* Which kinds there are, with commas. */
const char *model_types(void);

bool model_has_experts(const model_t *model, int64_t layer);

/* Parameters of one layer's parts, of all layers' ends. */
typedef struct model_layer {
    double attention; /* norms of the layer with it */
    double mlp;       /* dense, or router and shared experts */
    double experts;   /* all routed ones */
} model_layer_t;

model_layer_t model_layer(const model_t *model, int64_t layer);
double model_embedding(const model_t *model);
/* The last norm, and the matrix of the head even where it is the embedding's. */
double model_head(const model_t *model);

/* All parameters, and those that a token meets. */
double model_parameters(const model_t *model);
double model_active(const model_t *model);

#endif
