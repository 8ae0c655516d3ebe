/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * plan.c: asks cuDNN's heuristics for engines and makes the first one that will do into a plan. */
#include "plan.h"

#include <stdio.h>
#include <string.h>

enum { MAX_CANDIDATES = 32, MAX_NOTES = 16 };

typedef cudnnBackendDescriptor_t object_t;

static dp_status_t check_planning(const attn_sdpa_graph_t *g, cudnnStatus_t status, const char *what)
{
    return attn_dnn_check(g->host, g->dnn, status, what);
}

static dp_status_t create_descriptor(const attn_sdpa_graph_t *g, cudnnBackendDescriptorType_t type, object_t *out)
{
    return check_planning(g, g->dnn->cudnnBackendCreateDescriptor(type, out), "planning attention");
}

static dp_status_t set_descriptor(const attn_sdpa_graph_t *g, object_t object, cudnnBackendAttributeName_t name,
                                  cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    return check_planning(g, g->dnn->cudnnBackendSetAttribute(object, name, type, count, values), "planning attention");
}

static void destroy_descriptor(const attn_dnn_t *dnn, object_t object)
{
    if (object != NULL)
        dnn->cudnnBackendDestroyDescriptor(object);
}

static bool has_note(const attn_sdpa_graph_t *g, object_t engine, cudnnBackendNumericalNote_t wanted)
{
    cudnnBackendNumericalNote_t notes[MAX_NOTES];
    int64_t count = 0;

    if (g->dnn->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, MAX_NOTES,
                                         &count, notes) != CUDNN_STATUS_SUCCESS)
        return true; /* what cannot be asked is not to be trusted */
    for (int64_t i = 0; i < count && i < MAX_NOTES; i++)
        if (notes[i] == wanted)
            return true;
    return false;
}

/* Whether the engine sums in the order of arrival; its number on the way. */
static bool runs_differ(const attn_sdpa_graph_t *g, object_t configuration, int64_t *number_out)
{
    object_t engine = NULL;
    int64_t count = 0;
    bool differ = true;

    *number_out = -1;
    if (g->dnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) != CUDNN_STATUS_SUCCESS)
        return true;
    if (g->dnn->cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                         &count, &engine) == CUDNN_STATUS_SUCCESS) {
        g->dnn->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count,
                                         number_out);
        differ = has_note(g, engine, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
    }
    destroy_descriptor(g->dnn, engine);
    return differ;
}

/* Why cuDNN refused, for attn_sdpa_search_t. */
static void remember_refusal(const attn_sdpa_graph_t *g, cudnnStatus_t status, attn_sdpa_search_t *search)
{
    char words[400] = "";

    g->dnn->cudnnGetLastErrorString(words, sizeof(words));
    snprintf(search->last, sizeof(search->last), "%s: %s", g->dnn->cudnnGetErrorString(status), words);
}

static dp_status_t read_workspace(attn_sdpa_plan_t *p)
{
    int64_t bytes = 0, count = 0;
    dp_status_t status =
        attn_dnn_check(p->host, p->dnn,
                       p->dnn->cudnnBackendGetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                        CUDNN_TYPE_INT64, 1, &count, &bytes),
                       "asking for a plan's workspace");

    p->workspace = bytes > 0 ? (size_t)bytes : 0;
    return status;
}

/* True when the configuration became a plan. */
static bool try_configuration(const attn_sdpa_graph_t *g, object_t configuration, object_t device,
                              attn_sdpa_search_t *search, attn_sdpa_plan_t *p)
{
    cudnnStatus_t status = g->dnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &p->plan);

    if (status == CUDNN_STATUS_SUCCESS)
        status = g->dnn->cudnnBackendSetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &configuration);
    if (status == CUDNN_STATUS_SUCCESS)
        status = g->dnn->cudnnBackendSetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &device);
    if (status == CUDNN_STATUS_SUCCESS)
        status = g->dnn->cudnnBackendFinalize(p->plan);
    if (status == CUDNN_STATUS_SUCCESS)
        return true;
    remember_refusal(g, status, search);
    destroy_descriptor(g->dnn, p->plan);
    p->plan = NULL;
    return false;
}

static void try_all(const attn_sdpa_graph_t *g, bool deterministic, object_t device, object_t *candidates,
                    int64_t count, attn_sdpa_search_t *search, attn_sdpa_plan_t *p)
{
    for (int64_t i = 0; i < count && p->plan == NULL; i++) {
        const bool differ = runs_differ(g, candidates[i], &p->engine);

        search->candidates++;
        if (deterministic && differ)
            search->passed_over++;
        else
            try_configuration(g, candidates[i], device, search, p);
    }
}

/* Configurations that the heuristics of one mode propose, made into a plan if one will. */
static dp_status_t ask_heuristic(const attn_sdpa_graph_t *g, cudnnBackendHeurMode_t mode, object_t heuristic,
                                 object_t device, object_t *candidates, int64_t *count_out)
{
    dp_status_t status = set_descriptor(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->graph);

    if (status >= 0)
        status = set_descriptor(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (status >= 0)
        status =
            set_descriptor(g, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &device);
    if (status >= 0)
        status = check_planning(g, g->dnn->cudnnBackendFinalize(heuristic), "asking for engines");
    for (int i = 0; i < MAX_CANDIDATES && status >= 0; i++)
        status = create_descriptor(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &candidates[i]);
    if (status >= 0)
        status = check_planning(g,
                                g->dnn->cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_CANDIDATES,
                                                                 count_out, candidates),
                                "asking for engines");
    if (*count_out > MAX_CANDIDATES)
        *count_out = MAX_CANDIDATES;
    return status;
}

static dp_status_t search_mode(const attn_sdpa_graph_t *g, cudnnBackendHeurMode_t mode, bool deterministic,
                               object_t device, attn_sdpa_search_t *search, attn_sdpa_plan_t *p)
{
    object_t heuristic = NULL, candidates[MAX_CANDIDATES] = {NULL};
    int64_t count = 0;
    dp_status_t status = create_descriptor(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristic);

    if (status >= 0)
        status = ask_heuristic(g, mode, heuristic, device, candidates, &count);
    if (status >= 0)
        try_all(g, deterministic, device, candidates, count, search, p);
    for (int i = 0; i < MAX_CANDIDATES; i++)
        destroy_descriptor(g->dnn, candidates[i]);
    destroy_descriptor(g->dnn, heuristic);
    return status;
}

dp_status_t attn_sdpa_device_open(const dp_host_t *host, const attn_dnn_t *dnn, cudnnHandle_t handle,
                                  object_t *device_out)
{
    object_t device = NULL;
    cudnnStatus_t status = dnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device);

    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn->cudnnBackendSetAttribute(device, CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn->cudnnBackendFinalize(device);
    if (status == CUDNN_STATUS_SUCCESS)
        *device_out = device;
    else
        destroy_descriptor(dnn, device);
    return attn_dnn_check(host, dnn, status, "asking for the device");
}

dp_status_t attn_sdpa_plan_make(const attn_sdpa_graph_t *g, bool deterministic, cudnnBackendDescriptor_t device,
                                attn_sdpa_search_t *search, attn_sdpa_plan_t *p)
{
    dp_status_t status;

    memset(search, 0, sizeof(*search));
    *p = (attn_sdpa_plan_t){.host = g->host, .dnn = g->dnn};
    status = search_mode(g, CUDNN_HEUR_MODE_A, deterministic, device, search, p);
    if (p->plan == NULL && search->candidates == 0)
        status = search_mode(g, CUDNN_HEUR_MODE_FALLBACK, deterministic, device, search, p);
    if (status < 0)
        return status;
    if (p->plan == NULL)
        return DP_FAIL(g->host, DP_ERR_UNSUPPORTED,
                       "cuDNN %zu has no engine for this attention: of %d candidates %d give run-dependent bits, the "
                       "last of the others said \"%s\"",
                       g->dnn->cudnnGetVersion(), search->candidates, search->passed_over, search->last);
    status = read_workspace(p);
    if (status < 0)
        attn_sdpa_plan_close(p);
    return status;
}

void attn_sdpa_plan_close(attn_sdpa_plan_t *p)
{
    if (p->plan != NULL)
        destroy_descriptor(p->dnn, p->plan);
    p->plan = NULL;
}

/* A finalised pack takes no other pointers: each call makes one, in host memory. */
static cudnnStatus_t execute_plan(const attn_sdpa_plan_t *p, cudnnHandle_t handle, object_t pack, const int64_t *ids,
                                  void *const *pointers, size_t count, void *workspace)
{
    const attn_dnn_t *dnn = p->dnn;
    cudnnStatus_t status =
        dnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, (int64_t)count, ids);

    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                                               (int64_t)count, pointers);
    if (status == CUDNN_STATUS_SUCCESS)
        status =
            dnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn->cudnnBackendFinalize(pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn->cudnnBackendExecute(handle, p->plan, pack);
    return status;
}

dp_status_t attn_sdpa_plan_run(const attn_sdpa_plan_t *p, cudnnHandle_t handle, const int64_t *ids,
                               void *const *pointers, size_t count, void *workspace)
{
    object_t pack = NULL;
    cudnnStatus_t result = p->dnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    dp_status_t status;

    if (result == CUDNN_STATUS_SUCCESS)
        result = execute_plan(p, handle, pack, ids, pointers, count, workspace);
    status = attn_dnn_check(p->host, p->dnn, result, "running attention");
    destroy_descriptor(p->dnn, pack);
    return status;
}
