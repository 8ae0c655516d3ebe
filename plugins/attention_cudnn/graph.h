/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * graph.h: causal attention and its gradient as graphs of cuDNN's backend.
 *
 * The forward graph has 14 operations, the backward one 22 (21 when deterministic; 2 more where query heads share key/value
 * heads). cuDNN knows flash attention by the shape of these graphs: their order and types are part of the contract. */
#ifndef ATTENTION_CUDNN_GRAPH_H
#define ATTENTION_CUDNN_GRAPH_H

#include "dnn.h"

#include <stdbool.h>

/** bf16 tensors [batch, sequence, heads, dim]; statistics and sums fp32 [batch, heads, sequence]. */
typedef struct dp_sdpa_shape {
    int64_t batch, heads, kv_heads, sequence, head_dim, value_dim;
    bool deterministic; /* backward: no sums in the order of arrival, at the price of workspace */
} dp_sdpa_shape_t;

/** Which memory an executed graph is given, by unique id. */
typedef enum dp_sdpa_tensor {
    DP_SDPA_Q = 1,
    DP_SDPA_K,
    DP_SDPA_V,
    DP_SDPA_OUT,
    DP_SDPA_STATS, /* log-sum-exp of each row; backward reads it                               */
    DP_SDPA_DOUT,
    DP_SDPA_DQ,
    DP_SDPA_DK,
    DP_SDPA_DV,
    DP_SDPA_ROW_SUMS, /* backward: sum of dout * out, written and read                            */
    DP_SDPA_DQ_SUMS,  /* backward, not deterministic: fp32 [batch, heads, sequence, head_dim]     */
    DP_SDPA_SCALE,    /* values in host memory, floats: 1/sqrt(head_dim)                          */
    DP_SDPA_MASKED,   /* -infinity                                                                */
    DP_SDPA_ONE,      /* 1                                                                        */
    DP_SDPA_COUNT
} dp_sdpa_tensor_t;

enum { DP_SDPA_MAX_OBJECTS = 128, DP_SDPA_MAX_OPERATIONS = 32 };

typedef struct dp_sdpa_graph {
    const dp_host_t *host;
    const dp_dnn_t *dnn;
    dp_status_t status; /* of the first thing that failed */
    cudnnBackendDescriptor_t objects[DP_SDPA_MAX_OBJECTS], operations[DP_SDPA_MAX_OPERATIONS], graph;
    size_t nobjects, noperations;
    int64_t next_id; /* of tensors without memory */
} dp_sdpa_graph_t;

/** Builds and finalises the graph. cuDNN is not asked for a device. Close it after a failure as well. */
dp_status_t dp_sdpa_forward_graph(const dp_host_t *host, const dp_dnn_t *dnn, const dp_sdpa_shape_t *shape,
                                  dp_sdpa_graph_t *graph_out);
dp_status_t dp_sdpa_backward_graph(const dp_host_t *host, const dp_dnn_t *dnn, const dp_sdpa_shape_t *shape,
                                   dp_sdpa_graph_t *graph_out);
void dp_sdpa_graph_close(dp_sdpa_graph_t *graph);

#endif
