/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * rebalance.c: a trainer's part in balancing experts: where the loads are found, what belongs to an
 * expert. */
#include "trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The router's bias has as its "gradient" how often each expert was chosen. */
dp_status_t trainer_count_tokens(trainer_t *t, double *tokens)
{
    const dp_build_context_t *where = &t->model.context;
    const dp_dtype_t dtype = dp_dtype_accumulator(t->options->dtype);
    const size_t experts = (size_t)t->options->experts, element = dp_dtype_bytes(dtype);
    char *counts;
    dp_status_t status = DP_OK;

    if (balance_count(&t->balance) == 0)
        return DP_OK;
    memset(tokens, 0, balance_count(&t->balance) * sizeof(*tokens));
    if (where->expert_rank != 0 || where->data_rank != 0)
        return DP_OK;
    counts = malloc(experts * element);
    if (counts == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the loads of %zu experts", experts);
    for (int32_t c = 0; c < t->nchunks; c++) {
        const dp_chunk_view_t *view = &t->chunks[c].view;
        int layer;

        for (uint32_t i = 0; i < view->nparams && status == DP_OK; i++) {
            const dp_param_t *param = &view->param_list[i];
            if (!view->primary || param->kind != DP_PARAM_ROUTER_BIAS || sscanf(param->name, "layer%d.", &layer) != 1)
                continue;
            status = device_memory_get(&t->memory, counts, (const char *)view->grads + param->offset * element,
                                       experts * element);
            for (size_t e = 0; e < experts; e++)
                tokens[(size_t)layer * experts + e] = dp_number_get(dtype, counts, e);
        }
    }
    free(counts);
    return status;
}

/* Where the replicas of a layer begin among the parameters of its chunk, in elements. 0: the layer
 * is in another chunk. */
static size_t find_replicas(const held_chunk_t *chunk, int32_t number)
{
    int layer;

    for (uint32_t i = 0; i < chunk->view.nparams; i++)
        if (chunk->view.param_list[i].sharded && sscanf(chunk->view.param_list[i].name, "layer%d.", &layer) == 1 &&
            layer == number)
            return chunk->view.param_list[i].offset;
    return 0;
}

static dp_replica_memory_t replicas_at(char *memory, size_t bytes)
{
    return (dp_replica_memory_t){.memory = memory, .bytes = bytes};
}

int trainer_kept(const trainer_t *t, const model_layer_t *layer, dp_replica_memory_t kept[TRAINER_KEPT])
{
    const dp_dtype_t dtype = t->options->dtype;
    const size_t narrow = dp_dtype_bytes(dtype), wide = dp_dtype_bytes(dp_dtype_accumulator(dtype));
    const size_t count = model_expert_count(t->options);
    const held_chunk_t *chunk = t->chunks;
    size_t at = 0;

    for (int32_t c = 0; c < t->nchunks && at == 0; c++) {
        chunk = &t->chunks[c];
        at = find_replicas(chunk, layer->number);
    }
    kept[0] = replicas_at((char *)chunk->view.params + at * narrow, count * narrow);
    kept[1] = replicas_at((char *)chunk->mean + at * wide, count * wide);
    kept[2] = replicas_at((char *)chunk->squares + at * wide, count * wide);
    if (chunk->master == NULL)
        return 3;
    kept[3] = replicas_at((char *)chunk->master + at * wide, count * wide);
    return 4;
}

static dp_status_t place_all(trainer_t *t, double *sent)
{
    dp_status_t status = DP_OK;

    *sent = 0;
    for (int k = 0; k < t->model.nlayers && status == DP_OK; k++) {
        const model_layer_t *layer = &t->model.layers[k];
        dp_replica_memory_t kept[TRAINER_KEPT];
        const int count = trainer_kept(t, layer, kept);
        uint64_t bytes = 0;

        status = dp_moe_layer_place(layer->layer, t->balance.next + layer->number * t->options->replicas, kept, count,
                                    &bytes);
        /* of the whole expert group */
        *sent += t->model.context.expert_rank == 0 ? (double)bytes : 0;
    }
    return status == DP_OK ? dp_pipeline_sum(t->pipeline, sent, 1) : status;
}

dp_status_t trainer_place(trainer_t *t)
{
    double sent;
    const dp_status_t status = place_all(t, &sent);

    return status == DP_OK ? trainer_number(t) : status;
}

dp_status_t trainer_rebalance(trainer_t *t, int64_t steps, rebalance_t *record_out)
{
    dp_status_t status = balance_plan(&t->balance, steps, record_out);

    if (status == DP_OK)
        status = place_all(t, &record_out->sent);
    if (status == DP_OK)
        status = balance_record(&t->balance, record_out);
    return status == DP_OK ? trainer_number(t) : status;
}
