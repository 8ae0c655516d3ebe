/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * model.c: stages out of plugins and ends; numbers and first values of parameters. */
#include "model.h"

#include <dualpipe/number.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

static dp_block_shape_t shape_of(const options_t *o)
{
    return (dp_block_shape_t){
        .struct_size = sizeof(dp_block_shape_t),
        .dtype = o->dtype,
        .batch = (uint32_t)o->batch,
        .sequence = (uint32_t)o->seq,
        .hidden = (uint32_t)o->hidden,
    };
}

size_t model_boundary_bytes(const options_t *o)
{
    return (size_t)o->batch * (size_t)o->seq * (size_t)o->hidden * dp_dtype_bytes(o->dtype);
}

size_t model_expert_count(const options_t *o)
{
    return 3 * (size_t)o->hidden * (size_t)o->expert_hidden;
}

/* ---- plugins ---- */

static dp_status_t open_block(model_t *model)
{
    const options_t *o = model->options;
    const dp_block_shape_t shape = shape_of(o);
    const dp_attention_config_t attention = {
        .struct_size = sizeof(attention),
        .shape = &shape,
        .heads = (uint32_t)o->heads,
        .kv_heads = o->latent ? 0 : (uint32_t)o->kv_heads,
        .head_dim = (uint32_t)(o->head_dim + o->rope_dim),
        .value_dim = (uint32_t)o->head_dim,
        .deterministic = (uint32_t)o->deterministic,
        .q_rank = (uint32_t)o->q_rank,
        .kv_rank = (uint32_t)o->kv_rank,
        .rope_dim = (uint32_t)o->rope_dim,
        .recompute = o->recompute,
        .apart = strcmp(o->segments, "whole") != 0,
        .settings = *o->attention_settings != '\0' ? o->attention_settings : NULL,
    };
    const dp_moe_config_t moe = {
        .struct_size = sizeof(moe),
        .shape = &shape,
        .experts = (uint32_t)o->experts,
        .top_k = (uint32_t)o->top_k,
        .expert_hidden = (uint32_t)o->expert_hidden,
        .shared_experts = (uint32_t)o->shared_experts,
        .gate = o->gate_kind,
        .normalize = o->top_k > 1, /* else no weight would depend on the router */
        .aux_alpha = (float)o->aux_alpha,
        .replicas = (uint32_t)o->replicas,
        .recompute = o->recompute,
        .route_groups = (uint32_t)o->route_groups,
        .route_limit = (uint32_t)o->route_limit,
        .apart = attention.apart,
        .posted = strcmp(o->segments, "posted") == 0,
    };
    const dp_moe_block_options_t options = {
        .struct_size = sizeof(options),
        .attention = options_plugin(o->attention),
        .moe = options_plugin(o->moe),
        .attention_config = &attention,
        .moe_config = &moe,
        .ep = options_plugin(o->ep_plugin),
    };

    return dp_moe_block_open(&model->context, &options, &model->block);
}

static dp_status_t open_plugins(model_t *model, const dp_build_context_t *context)
{
    const compute_config_t config = {
        .struct_size = sizeof(config),
        .shape = shape_of(model->options),
        .device_vt = context->device_vt,
        .device = context->device,
        .tied = model->options->tie != 0,
    };
    dp_status_t status;

    model->context = *context;
    if (model->ends.vt != NULL)
        return open_block(model);
    status = ends_open(&model->ends, context->host, model->options->device, &config);
    return status == DP_OK ? open_block(model) : status;
}

/* ---- stages ---- */

static int first_layer(const model_t *model, int32_t stage, int32_t stages)
{
    const options_t *o = model->options;

    return o->own_partition != NULL ? o->own_partition[stage] : (int)(o->layers * stage / stages);
}

static dp_status_t add_layer(model_t *model, int number, char *prefix, size_t prefix_bytes, dp_part_t *part_out)
{
    model_layer_t *grown = realloc(model->layers, (size_t)(model->nlayers + 1) * sizeof(*grown)), *layer;
    dp_status_t status;

    if (grown == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for layer %d", number);
    model->layers = grown;
    layer = &grown[model->nlayers];
    layer->number = number;
    status =
        dp_moe_block_part(model->block, model->placement + number * model->options->replicas, &layer->layer, part_out);
    if (status < 0)
        return status;
    model->nlayers++;
    snprintf(prefix, prefix_bytes, "layer%d.", number);
    part_out->prefix = prefix;
    return DP_OK;
}

static void count_params(model_t *model, const dp_part_t *layer)
{
    int32_t dense = 0;

    for (uint32_t i = 0; i < layer->sizes->nparams; i++)
        dense += !layer->param_list[i].sharded;
    model->dense_per_layer = dense;
    model->per_expert = ((int32_t)layer->sizes->nparams - dense) / options_local_experts(model->options);
}

static dp_status_t chain(model_t *model, int32_t stage, int32_t stages, dp_stage_t **stage_out)
{
    const int first = first_layer(model, stage, stages), end = first_layer(model, stage + 1, stages);
    dp_part_t *parts = calloc((size_t)(end - first) + 2, sizeof(*parts));
    char(*prefixes)[24] = calloc((size_t)(end - first), sizeof(*prefixes));
    dp_status_t status = DP_OK;
    int n = 0;

    if (parts == NULL || prefixes == NULL)
        status = dp_fail(DP_ERR_NOMEM, "no memory for the list of stage %d's parts", stage);
    for (int i = 0; parts != NULL && i < end - first + 2; i++)
        parts[i].struct_size = sizeof(parts[i]);
    if (status == DP_OK && stage == 0)
        ends_embedding(&model->ends, &parts[n++]);
    for (int layer = first; layer < end && status == DP_OK; layer++, n++)
        status = add_layer(model, layer, prefixes[layer - first], sizeof(prefixes[0]), &parts[n]);
    if (status == DP_OK) {
        count_params(model, &parts[n - 1]);
        if (stage == stages - 1)
            ends_head(&model->ends, &parts[n++]);
        status = dp_stage_create(parts, n, model_boundary_bytes(model->options), model->options->dtype, stage_out);
    }
    free(prefixes);
    free(parts);
    return status;
}

dp_status_t model_build_stage(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                              dp_stage_t **stage_out)
{
    model_t *model = user;
    dp_stage_t **grown;
    dp_status_t status = DP_OK;

    if (model->options->layers < stages)
        return dp_fail(DP_ERR_INVALID, "--layers %d: this layout has %d stages, and each takes at least one layer",
                       (int)model->options->layers, stages);
    if (model->block == NULL)
        status = open_plugins(model, context);
    if (status < 0)
        return status;
    grown = realloc(model->stages, (size_t)(model->nstages + 1) * sizeof(dp_stage_t *));
    if (grown == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for stage %d", stage);
    model->stages = grown;
    status = chain(model, stage, stages, &model->stages[model->nstages]);
    if (status < 0)
        return status;
    *stage_out = model->stages[model->nstages++];
    return DP_OK;
}

void model_retire(model_t *model)
{
    dp_moe_block_close(model->block);
    model->block = NULL;
    model->nlayers = 0;
    model->retired = model->nstages;
}

void model_renewed(model_t *model)
{
    for (int i = 0; i < model->retired; i++)
        dp_stage_free(model->stages[i]);
    model->nstages -= model->retired;
    memmove(model->stages, model->stages + model->retired, (size_t)model->nstages * sizeof(*model->stages));
    model->retired = 0;
}

void model_close(model_t *model)
{
    dp_moe_block_close(model->block);
    ends_close(&model->ends);
    model->block = NULL;
}

void model_free(model_t *model)
{
    for (int i = 0; i < model->nstages; i++)
        dp_stage_free(model->stages[i]);
    free(model->stages);
    free(model->layers);
    *model = (model_t){.options = model->options};
}

/* numbers: embedding; layer by layer first what is outside experts, then expert by expert; head */

static int32_t per_layer(const model_t *model)
{
    return model->dense_per_layer + model->per_expert * (int32_t)model->options->experts;
}

/* The head's first. */
static int32_t head_number(const model_t *model)
{
    return 1 + per_layer(model) * (int32_t)model->options->layers;
}

int32_t model_nparams(const model_t *model)
{
    return head_number(model) + (model->options->tie ? 1 : 2);
}

/* Of which expert a parameter is: its replica's under the placement in use. */
static int32_t expert_of(const model_t *model, int layer, const dp_param_t *param)
{
    return model->options->replicas > 0 ? model->placement[layer * model->options->replicas + param->expert]
                                        : param->expert;
}

void model_number(const model_t *model, const dp_chunk_view_t *view, int32_t *numbers_out)
{
    int32_t dense = 0, head = head_number(model), in_expert = 0;
    int layer, last_layer = -1, last_expert = -1;

    for (uint32_t i = 0; i < view->nparams; i++) {
        const dp_param_t *param = &view->param_list[i];
        if (sscanf(param->name, "layer%d.", &layer) != 1) {
            numbers_out[i] = param->shared == NULL && strncmp(param->name, "head.", 5) == 0 ? head++ : 0;
            continue;
        }
        if (layer != last_layer)
            dense = 0;
        if (layer != last_layer || param->expert != last_expert)
            in_expert = 0;
        last_layer = layer;
        last_expert = param->sharded ? param->expert : -1;
        numbers_out[i] = 1 + layer * per_layer(model) +
                         (!param->sharded ? dense++
                                          : model->dense_per_layer +
                                                expert_of(model, layer, param) * model->per_expert + in_expert++);
    }
}

void model_describe(const model_t *model, int32_t number, char *text, size_t bytes)
{
    const int32_t layer = (number - 1) / per_layer(model), in_layer = (number - 1) % per_layer(model);
    const int32_t in_experts = in_layer - model->dense_per_layer;

    if (number == 0)
        snprintf(text, bytes, "the embedding");
    else if (number >= head_number(model))
        snprintf(text, bytes, "the head");
    else if (in_experts < 0)
        snprintf(text, bytes, "layer %d, parameter %d", layer, in_layer);
    else
        snprintf(text, bytes, "layer %d, expert %d", layer, in_experts / model->per_expert);
}

/* ---- first values ---- */

/* Matrices that write into the residual stream start smaller, the more of them there are. */
static double spread(const model_t *model, const dp_param_t *param)
{
    const char *last = strrchr(param->name, '.') + 1;
    const int writes = strcmp(last, "wo") == 0 || strcmp(last, "w_down") == 0;

    return 1 / sqrt((double)(param->fan_in > 0 ? param->fan_in : 1)) /
           (writes ? sqrt(2 * (double)model->options->layers) : 1);
}

/* From skew for the first expert down to -skew for the last. */
static double slope(double skew, size_t expert, size_t experts)
{
    return experts > 1 ? skew * (1 - 2 * (double)expert / (double)(experts - 1)) : 0;
}

void model_initialise(const model_t *model, const dp_chunk_view_t *view, const int32_t *numbers, dp_dtype_t dtype,
                      void *values_out)
{
    const uint64_t all = random_key((uint64_t)model->options->seed, 0x706172616d73u);

    for (uint32_t i = 0; i < view->nparams; i++) {
        const dp_param_t *param = &view->param_list[i];
        const uint64_t key = random_key(all, (uint64_t)numbers[i]);
        const double scale = spread(model, param);
        for (size_t k = 0; k < param->count; k++)
            dp_number_set(dtype, values_out, param->offset + k,
                          param->kind == DP_PARAM_MATRIX        ? scale * random_normal(key, k)
                          : param->kind == DP_PARAM_ROUTER_BIAS ? slope(model->options->skew, k, param->count)
                                                                : (double)param->start);
    }
}
