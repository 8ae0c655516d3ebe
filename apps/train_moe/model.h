/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * model.h: builds this rank's stages, and numbers the model's parameters the same way on every
 * rank.
 *
 * The model is embedding, L layers of attention + MoE, head. Stage s of S has layers s*L/S ...
 * (s+1)*L/S - 1, or those that options->own_partition gives it; the first has the embedding too,
 * the last the head. One attention and one MoE instance serve all layers of the rank. */
#ifndef TRAIN_MOE_MODEL_H
#define TRAIN_MOE_MODEL_H

#include "ends.h"
#include "options.h"

/* A layer of this rank; number: in the whole model. */
typedef struct model_layer {
    dp_moe_layer_t *layer;
    int32_t number;
} model_layer_t;

typedef struct model {
    const options_t *options;
    /* [layers][replicas] in use; looked at where experts are replicated */
    const int32_t *placement;
    dp_build_context_t context;
    ends_t ends;
    dp_moe_block_t *block; /* all layers of this rank */
    model_layer_t *layers; /* [nlayers] those of this rank's chunks */
    dp_stage_t **stages;   /* [nstages] */
    /* retired: the first of stages, which others have replaced */
    int nlayers, nstages, retired;
    /* parameters of a layer outside experts, and of one expert */
    int32_t dense_per_layer, per_expert;
} model_t;

/* Bytes of the tensor between stages, for one micro-batch. */
size_t model_boundary_bytes(const options_t *options);

/* Parameters of one expert. */
size_t model_expert_count(const options_t *options);

/* A dp_build_stage_fn; user is a model_t with `options` and `placement` set and the rest zero. */
dp_status_t model_build_stage(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                              dp_stage_t **stage_out);
/* A part of dp_pipeline_options_t.retire: closes what lives on the expert group; stages are built
 * anew from then on. */
void model_retire(model_t *model);
/* After that has been done: frees the stages of before. */
void model_renewed(model_t *model);
/* Closes the plugins' instances, while their device is open; their stages run no more. */
void model_close(model_t *model);
/* After the pipeline is closed. */
void model_free(model_t *model);

/* Parameters of the whole model, all experts included; the bias of the router counts as one, and so
 * does what embedding and head share. */
int32_t model_nparams(const model_t *model);
/* numbers_out[view->nparams]: the model's number of each parameter of a chunk, under the placement
 * in use. */
void model_number(const model_t *model, const dp_chunk_view_t *view, int32_t *numbers_out);
/* "layer 3, expert 5" or the like. */
void model_describe(const model_t *model, int32_t number, char *text, size_t bytes);

/* First values of a chunk, which depend on the seed and the parameters' numbers alone. values_out:
 * [param_count] of dtype, host memory. */
void model_initialise(const model_t *model, const dp_chunk_view_t *view, const int32_t *numbers, dp_dtype_t dtype,
                      void *values_out);

#endif
