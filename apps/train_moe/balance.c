/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * balance.c: loads of experts, smoothed over as many steps as lie between two plans; plans that
 * start from the placement in use and move as few replicas as the wanted balance allows. */
#include "balance.h"

#include <stdlib.h>
#include <string.h>

static size_t cells(const balance_t *b, int32_t per_layer)
{
    return (size_t)b->shape.layers * (size_t)per_layer;
}

static dp_status_t allocate_loads(balance_t *b)
{
    const dp_status_t status = dp_eplb_workspace_bytes(&b->shape, &b->workspace_bytes);

    if (status < 0)
        return status;
    b->placement = calloc(cells(b, b->shape.replicas), sizeof(*b->placement));
    b->next = calloc(cells(b, b->shape.replicas), sizeof(*b->next));
    b->latest = calloc(cells(b, b->shape.experts), sizeof(*b->latest));
    b->loads = calloc(cells(b, b->shape.experts), sizeof(*b->loads));
    b->workspace = malloc(b->workspace_bytes);
    return b->placement != NULL && b->next != NULL && b->latest != NULL && b->loads != NULL && b->workspace != NULL
               ? DP_OK
               : dp_fail(DP_ERR_NOMEM, "no memory for the loads of %d layers of experts", b->shape.layers);
}

dp_status_t balance_open(const options_t *o, balance_t *b)
{
    dp_status_t status;

    *b = (balance_t){.options = o, .imbalance = 1};
    if (o->ep == 1 && o->replicas == 0)
        return DP_OK;
    b->shape = (dp_eplb_shape_t){
        .struct_size = sizeof(b->shape),
        .layers = (int32_t)o->layers,
        .experts = (int32_t)o->experts,
        .replicas = (int32_t)(o->replicas > 0 ? o->replicas : o->experts),
        .groups = 1,
        .nodes = 1,
        .gpus = (int32_t)o->ep,
    };
    status = allocate_loads(b);
    if (status < 0) {
        balance_close(b);
        return status;
    }
    balance_forget(b);
    return DP_OK;
}

void balance_forget(balance_t *b)
{
    for (int32_t layer = 0; layer < b->shape.layers; layer++)
        dp_replicas_first_placement((uint32_t)b->shape.experts, (uint32_t)b->shape.replicas,
                                    b->placement + (size_t)layer * (size_t)b->shape.replicas);
    if (balance_count(b) > 0)
        memset(b->loads, 0, balance_count(b) * sizeof(*b->loads));
    b->observed = 0;
}

void balance_close(balance_t *b)
{
    free(b->placement);
    free(b->next);
    free(b->latest);
    free(b->loads);
    free(b->workspace);
    free(b->records);
    *b = (balance_t){0};
}

size_t balance_count(const balance_t *b)
{
    return cells(b, b->shape.experts);
}

static dp_status_t measure_loads(const balance_t *b, const float *loads, const int32_t *placement,
                                 dp_eplb_balance_t *result)
{
    *result = (dp_eplb_balance_t){.struct_size = sizeof(*result)};
    return dp_eplb_measure(&b->shape, loads, placement, result, NULL, NULL, b->workspace, b->workspace_bytes);
}

dp_status_t balance_observe(balance_t *b, const double *tokens)
{
    const int64_t every = b->options->eplb > 1 ? b->options->eplb : 1;
    dp_eplb_balance_t now;
    dp_status_t status;

    for (size_t i = 0; i < balance_count(b); i++)
        b->latest[i] = (float)tokens[i];
    status = measure_loads(b, b->latest, b->placement, &now);
    if (status < 0)
        return status;
    b->imbalance = now.gpu;
    return dp_eplb_smooth(b->loads, b->latest, balance_count(b), 1 - 1 / (double)every, b->observed++);
}

int balance_is_due(const balance_t *b, int64_t steps)
{
    return b->options->eplb > 0 && steps % b->options->eplb == 0;
}

dp_status_t balance_plan(balance_t *b, int64_t steps, rebalance_t *record)
{
    const options_t *o = b->options;
    const dp_eplb_options_t options = {
        .struct_size = sizeof(options),
        .policy = DP_EPLB_GLOBAL,
        .distinct = 1,
        .search_steps = o->eplb_search,
        .seed = (uint64_t)o->seed,
    };
    const dp_eplb_update_options_t update = {
        .struct_size = sizeof(update),
        .threshold = o->eplb_threshold,
        .bound = o->eplb_bound,
    };
    dp_eplb_placement_t placement = {.struct_size = sizeof(placement), .physical_to_logical = b->next};
    dp_eplb_moves_t moves = {.struct_size = sizeof(moves)};
    dp_status_t status = dp_eplb_update(&b->shape, &options, &update, b->loads, b->placement, &placement, &moves,
                                        b->workspace, b->workspace_bytes);

    *record = (rebalance_t){.steps = steps, .layers = moves.layers_moved, .replicas = moves.replicas};
    if (status == DP_OK)
        status = measure_loads(b, b->loads, b->placement, &record->before);
    return status == DP_OK ? measure_loads(b, b->loads, b->next, &record->after) : status;
}

dp_status_t balance_record(balance_t *b, const rebalance_t *record)
{
    rebalance_t *grown = realloc(b->records, (size_t)(b->nrecords + 1) * sizeof(*grown));

    if (grown == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a record of %d changes of placement", (int)b->nrecords + 1);
    b->records = grown;
    b->records[b->nrecords++] = *record;
    memcpy(b->placement, b->next, cells(b, b->shape.replicas) * sizeof(*b->placement));
    return DP_OK;
}
