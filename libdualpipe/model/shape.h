/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * shape.h: parameters of a model's parts. */
#ifndef DP_MODEL_SHAPE_H
#define DP_MODEL_SHAPE_H

#include <dualpipe/model.h>
#include <stdbool.h>

bool dp__model_has_experts(const dp_model_t *model, int64_t layer);

/* Parameters of one layer's parts, of all layers' ends. */
typedef struct dp__model_layer {
    double attention; /* norms of the layer with it */
    double mlp;       /* dense, or router and shared experts */
    double experts;   /* all routed ones */
} dp__model_layer_t;

dp__model_layer_t dp__model_layer(const dp_model_t *model, int64_t layer);
double dp__model_embedding(const dp_model_t *model);
/* The last norm, and the matrix of the head even where it is the embedding's. */
double dp__model_head(const dp_model_t *model);

/* All parameters, or those that a token meets. */
double dp__model_sum(const dp_model_t *model, bool active);
/* Takes it over, with its sizes checked. */
dp_status_t dp__model_take(const char *what, const dp_model_t *from, dp_model_t *to);

#endif
