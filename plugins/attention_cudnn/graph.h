/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * graph.h: causal attention and its gradient as graphs of cuDNN's backend.
 *
 * The forward graph has 14 operations, the backward one 22 (21 when deterministic; 2 more where
 * query heads share key/value heads). cuDNN knows flash attention by the shape of these graphs:
 * their order and types are part of the contract. */
#ifndef ATTENTION_CUDNN_GRAPH_H
#define ATTENTION_CUDNN_GRAPH_H

#include "dnn.h"

#include <stdbool.h>

/** bf16 [batch, sequence, heads, dim]; statistics and sums fp32 [batch, heads, sequence]. */
typedef struct attn_sdpa_shape {
    int64_t batch, heads, kv_heads, sequence, head_dim, value_dim;
    bool deterministic; /* backward: no sums in the order of arrival, at the price of workspace */
} attn_sdpa_shape_t;

/** Which memory an executed graph is given, by unique id. */
typedef enum attn_sdpa_tensor {
    SDPA_Q = 1,
    SDPA_K,
    SDPA_V,
    SDPA_OUT,
    SDPA_STATS, /* log-sum-exp of each row; backward reads it */
    SDPA_DOUT,
    SDPA_DQ,
    SDPA_DK,
    SDPA_DV,
    SDPA_ROW_SUMS, /* backward: sum of dout * out, written and read */
    SDPA_DQ_SUMS,  /* backward, not deterministic: fp32 [batch, heads, sequence, head_dim] */
    SDPA_SCALE,    /* values in host memory, floats: 1/sqrt(head_dim) */
    SDPA_MASKED,   /* -infinity */
    SDPA_ONE,      /* 1 */
    SDPA_COUNT
} attn_sdpa_tensor_t;

enum { SDPA_MAX_OBJECTS = 128, SDPA_MAX_OPERATIONS = 32 };

typedef struct attn_sdpa_graph {
    const dp_host_t *host;
    const attn_dnn_t *dnn;
    dp_status_t status; /* of the first thing that failed */
    cudnnBackendDescriptor_t objects[SDPA_MAX_OBJECTS], operations[SDPA_MAX_OPERATIONS], graph;
    size_t nobjects, noperations;
    int64_t next_id; /* of tensors without memory */
} attn_sdpa_graph_t;

/** Builds and finalises the graph, without a device. Close it after a failure as well. */
dp_status_t attn_sdpa_forward_graph(const dp_host_t *host, const attn_dnn_t *dnn, const attn_sdpa_shape_t *shape,
                                    attn_sdpa_graph_t *graph_out);
dp_status_t attn_sdpa_backward_graph(const dp_host_t *host, const attn_dnn_t *dnn, const attn_sdpa_shape_t *shape,
                                     attn_sdpa_graph_t *graph_out);
void attn_sdpa_graph_close(attn_sdpa_graph_t *graph);

#endif
