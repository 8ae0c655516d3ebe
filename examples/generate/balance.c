/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * balance.c: see balance.h. */
#include "balance.h"

#include <dualpipe/eplb.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dp_eplb_shape_t shape = {.struct_size = sizeof(shape)};
static dp_moe_layer_t **watched; /* [layers] NULL: of another rank */
static int32_t first, end;       /* those of this rank */
/* [layers][experts] by this rank; memory of device_cpu is that of the host */
static int64_t *counted;
static double *loads;            /* the same, of all */
static float *planned;           /* the same, as eplb.h takes them */
static int32_t *placed, *wanted; /* [layers][replicas] */
static void *workspace;
static size_t workspace_bytes, replica_bytes, element_bytes;

/* A plan is carried out layer by layer, one beside each step, so the spare memory is that of one
 * layer. Ranks that have fewer layers than others wait. */
static int32_t turn, turns; /* turn 0: all is in place */
static dp_moe_layer_t *moving;
static dp_eplb_moves_t moves = {.struct_size = sizeof(moves)};
static double before, after, sent;
static int by_prompts;

dp_status_t balance_open(const dp_moe_config_t *moe, int32_t layers, int32_t stages, int32_t servers, int32_t hosts)
{
    const size_t experts = moe->experts, replicas = moe->replicas, n = (size_t)layers;
    dp_status_t status;

    shape.layers = layers;
    shape.experts = (int32_t)experts;
    shape.replicas = (int32_t)replicas;
    shape.groups = moe->route_groups > 0 ? (int32_t)moe->route_groups : 1;
    shape.gpus = servers;
    shape.nodes = hosts < servers ? hosts : servers;
    turns = (layers + stages - 1) / stages;
    element_bytes = dp_dtype_bytes(moe->shape->dtype);
    replica_bytes = 3 * (size_t)moe->shape->hidden * moe->expert_hidden * element_bytes;
    status = dp_eplb_workspace_bytes(&shape, &workspace_bytes);
    if (status < 0)
        return status;
    watched = calloc(n, sizeof(*watched));
    counted = calloc(n * experts, sizeof(*counted));
    loads = calloc(n * experts, sizeof(*loads));
    planned = calloc(n * experts, sizeof(*planned));
    placed = calloc(n * replicas, sizeof(*placed));
    wanted = calloc(n * replicas, sizeof(*wanted));
    workspace = malloc(workspace_bytes);
    if (watched == NULL || counted == NULL || loads == NULL || planned == NULL || placed == NULL || wanted == NULL ||
        workspace == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the loads of %d layers", layers);
    for (int32_t layer = 0; layer < layers; layer++)
        dp_replicas_first_placement(moe->experts, moe->replicas, placed + layer * shape.replicas);
    return DP_OK;
}

void balance_watch(int32_t number, dp_moe_layer_t *layer)
{
    first = end == 0 ? number : first;
    end = number + 1;
    watched[number] = layer;
    dp_moe_layer_count(layer, counted + number * shape.experts);
}

static dp_status_t measure(const int32_t *placement, double *balance_out)
{
    dp_eplb_balance_t balance = {.struct_size = sizeof(balance)};
    const dp_status_t status =
        dp_eplb_measure(&shape, planned, placement, &balance, NULL, NULL, workspace, workspace_bytes);

    *balance_out = balance.gpu;
    return status;
}

/* Parameters of the replicas that this rank has of a layer. */
static dp_status_t find_replicas(dp_pipeline_t *pipeline, int32_t number, dp_replica_memory_t *memory_out)
{
    dp_chunk_view_t view = {.struct_size = sizeof(view)};
    const dp_status_t status = dp_pipeline_chunk(pipeline, 0, &view);
    int layer;

    if (status < 0)
        return status;
    for (uint32_t i = 0; i < view.nparams; i++)
        if (view.param_list[i].sharded && sscanf(view.param_list[i].name, "layer%d.", &layer) == 1 && layer == number) {
            *memory_out = (dp_replica_memory_t){
                .memory = (char *)view.params + view.param_list[i].offset * element_bytes, .bytes = replica_bytes};
            return DP_OK;
        }
    return dp_fail(DP_ERR_INVALID, "layer %d has no experts on this rank", number);
}

static dp_status_t plan(dp_pipeline_t *pipeline, int prefill)
{
    const size_t cells = (size_t)shape.layers * (size_t)shape.experts;
    const dp_eplb_options_t options = {
        .struct_size = sizeof(options), .policy = prefill ? DP_EPLB_AUTO : DP_EPLB_GLOBAL, .distinct = 1};
    dp_eplb_placement_t placement = {.struct_size = sizeof(placement), .physical_to_logical = wanted};
    dp_status_t status;

    for (size_t i = 0; i < cells; i++)
        loads[i] = (double)counted[i];
    memset(counted, 0, cells * sizeof(*counted));
    by_prompts = prefill;
    sent = 0;
    status = dp_pipeline_sum(pipeline, loads, cells);
    for (size_t i = 0; i < cells; i++)
        planned[i] = (float)loads[i];
    if (status == DP_OK)
        status = measure(placed, &before);
    if (status == DP_OK)
        status =
            dp_eplb_update(&shape, &options, NULL, planned, placed, &placement, &moves, workspace, workspace_bytes);
    return status == DP_OK ? measure(wanted, &after) : status;
}

static dp_status_t begin_move(dp_pipeline_t *pipeline, int32_t layer)
{
    const int32_t *to = wanted + layer * shape.replicas;
    dp_replica_memory_t memory;
    uint64_t bytes = 0;
    dp_status_t status;

    if (memcmp(to, placed + layer * shape.replicas, sizeof(*to) * (size_t)shape.replicas) == 0)
        return DP_OK;
    status = find_replicas(pipeline, layer, &memory);
    if (status == DP_OK)
        status = dp_moe_layer_place_begin(watched[layer], to, &memory, 1, &bytes);
    moving = status == DP_OK ? watched[layer] : NULL;
    sent += (double)bytes;
    return status;
}

static dp_status_t end_move(void)
{
    const dp_status_t status = moving != NULL ? dp_moe_layer_place_end(moving) : DP_OK;

    moving = NULL;
    return status;
}

static void finish_plan(int speaks)
{
    turn = 0;
    memcpy(placed, wanted, (size_t)shape.layers * (size_t)shape.replicas * sizeof(*placed));
    if (speaks)
        fprintf(stderr,
                "generate: experts placed by the tokens of %s: the fullest server has %.3f of the mean, %.3f before; "
                "%lld moved, %.2f MiB sent for rank 0's layers, beside %d steps\n",
                by_prompts ? "prompts" : "decode", after, before, (long long)moves.replicas, sent / (1 << 20), turns);
}

dp_status_t balance_step(dp_pipeline_t *pipeline, int again, int prefill, int speaks)
{
    dp_status_t status = end_move();

    if (status == DP_OK && turn == turns)
        finish_plan(speaks);
    if (status == DP_OK && turn == 0) {
        if (!again)
            return DP_OK;
        status = plan(pipeline, prefill);
    }
    if (status == DP_OK && first + turn < end)
        status = begin_move(pipeline, first + turn);
    turn++;
    return status;
}

void balance_close(void)
{
    free(watched);
    free(counted);
    free(loads);
    free(planned);
    free(placed);
    free(wanted);
    free(workspace);
}
