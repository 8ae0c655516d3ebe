/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layer.h: a placement of one layer that changes slot by slot, with the loads of its GPUs. */
#ifndef DP_EPLB_LAYER_H
#define DP_EPLB_LAYER_H

#include "eplb/scratch.h"

/* What does not change while a layer is worked on. */
typedef struct dp__eplb_field {
    dp__eplb_sizes_t sizes; /* as the policy sees them: the global one knows one node */
    const float *loads;     /* [experts] of this layer */
    dp__eplb_scratch_t *scratch;
    bool distinct;
    double mean; /* load of a GPU */
} dp__eplb_field_t;

/* One change: the slots a and b exchange their experts, or (b < 0) slot a gets a replica of
 * `expert`. */
typedef struct dp__eplb_change {
    int32_t a, b, expert;
} dp__eplb_change_t;

/* Sets the maps of slots, GPUs, nodes and groups in the scratch. */
void dp__field_open(dp__eplb_field_t *field, const dp__eplb_sizes_t *sizes, dp__eplb_scratch_t *scratch, bool distinct);
void dp__field_layer(dp__eplb_field_t *field, const float *loads, int32_t layer);

/* The slots of each expert; then also the loads. */
void dp__layer_lists(const dp__eplb_field_t *field, const int32_t *slots, dp__eplb_layer_t *layer);
void dp__layer_load(const dp__eplb_field_t *field, const int32_t *slots, dp__eplb_layer_t *layer);
void dp__layer_copy(const dp__eplb_field_t *field, const dp__eplb_layer_t *from, dp__eplb_layer_t *to);
/* The GPU with the largest load. */
int32_t dp__layer_fullest(const dp__eplb_field_t *field, const dp__eplb_layer_t *layer);
double dp__layer_peak(const dp__eplb_field_t *field, const dp__eplb_layer_t *layer);
/* Whether the layer keeps to what was asked: groups on one node, replicas apart. */
bool dp__layer_legal(const dp__eplb_field_t *field, const dp__eplb_layer_t *layer);
bool dp__layer_by_groups(const dp__eplb_field_t *field, const dp__eplb_layer_t *layer);
/* How many replicas on this GPU are one too many of their expert. */
int32_t dp__layer_doubled(const dp__eplb_field_t *field, const dp__eplb_layer_t *layer, int32_t gpu);

/* Whether a change is possible and keeps to what was asked. */
bool dp__change_legal(const dp__eplb_field_t *field, const dp__eplb_layer_t *layer, const dp__eplb_change_t *change);
/* Loads after the change: scratch->touched and ->change. Returns how many; end with forget. */
int32_t dp__change_preview(const dp__eplb_field_t *field, const dp__eplb_layer_t *layer,
                           const dp__eplb_change_t *change);
void dp__change_forget(const dp__eplb_field_t *field, int32_t touched);
/* The largest load among GPUs that the change touches, after it. */
double dp__change_peak(const dp__eplb_field_t *field, const dp__eplb_layer_t *layer, const dp__eplb_change_t *change);
void dp__change_apply(const dp__eplb_field_t *field, dp__eplb_layer_t *layer, const dp__eplb_change_t *change);

static inline double dp__layer_share(const dp__eplb_field_t *field, const dp__eplb_layer_t *layer, int32_t expert)
{
    return (double)field->loads[expert] / layer->count[expert];
}

#endif
