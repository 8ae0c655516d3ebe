/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * plan.h: from a graph to something that runs: engines, their configurations, a plan. */
#ifndef ATTENTION_CUDNN_PLAN_H
#define ATTENTION_CUDNN_PLAN_H

#include "graph.h"

typedef struct attn_sdpa_plan {
    const dp_host_t *host;
    const attn_dnn_t *dnn;
    cudnnBackendDescriptor_t plan;
    size_t workspace;
    int64_t engine; /* cuDNN's number of it */
} attn_sdpa_plan_t;

/** What a search came across; for messages and tests. */
typedef struct attn_sdpa_search {
    int candidates;  /* configurations that cuDNN proposed */
    int passed_over; /* of them, those whose sums come in any order */
    char last[512];  /* what the last one that could not be made into a plan said */
} attn_sdpa_search_t;

/** What cuDNN knows of the handle's device, for attn_sdpa_plan_make: a finalised DEVICEPROP
 *  descriptor, to be destroyed. */
dp_status_t attn_sdpa_device_open(const dp_host_t *host, const attn_dnn_t *dnn, cudnnHandle_t handle,
                                  cudnnBackendDescriptor_t *device_out);

/**
 * Makes a plan, trying cuDNN's proposals in order. May take seconds: kernels are compiled. device:
 * a finalised DEVICEPROP descriptor: without one and without a handle a graph has no engines.
 * deterministic: engines that give run-dependent bits are passed over. DP_ERR_UNSUPPORTED says what
 * the last candidate lacked.
 */
dp_status_t attn_sdpa_plan_make(const attn_sdpa_graph_t *graph, bool deterministic, cudnnBackendDescriptor_t device,
                                attn_sdpa_search_t *search, attn_sdpa_plan_t *plan_out);

void attn_sdpa_plan_close(attn_sdpa_plan_t *plan);

/** Runs the plan on the handle's stream. ids: tensors of the graph; values: host floats. */
dp_status_t attn_sdpa_plan_run(const attn_sdpa_plan_t *plan, cudnnHandle_t handle, const int64_t *ids,
                               void *const *pointers, size_t count, void *workspace);

#endif
