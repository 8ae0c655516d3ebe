/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cut.h: which layers of the model each stage has. */
#ifndef DP_SEARCH_CUT_H
#define DP_SEARCH_CUT_H

#include <dualpipe/status.h>

/* The layers of a model. */
typedef struct dp__layers {
    int32_t count;  /* 0: they are not known, stages are alike */
    double *before; /* [count + 1] what all layers before this one take */
} dp__layers_t;

typedef struct dp__cut {
    int32_t stages; /* 0: the layers are not known */
    int32_t *first; /* [stages + 1] stage s has layers first[s] to first[s + 1] - 1 */
    double *scale;  /* [stages] what they take, beside the mean stage */
    double *parts;  /* [stages] how many they are, beside the mean stage */
} dp__cut_t;

/* DP_ERR_INVALID: a layer that costs nothing, or no finite number. */
dp_status_t dp__layers_make(const double *costs, int32_t count, dp__layers_t *layers);
void dp__layers_clear(dp__layers_t *layers);

/* Equal numbers of layers; without layers nothing. */
dp_status_t dp__cut_make(const dp__layers_t *layers, int32_t stages, dp__cut_t *cut);
dp_status_t dp__cut_copy(const dp__cut_t *from, dp__cut_t *to);
void dp__cut_clear(dp__cut_t *cut);
/* Fills scale and parts after a change of `first`. */
void dp__cut_weigh(const dp__layers_t *layers, dp__cut_t *cut);

#endif
