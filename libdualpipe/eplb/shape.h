/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * shape.h: sizes of a placement, checked, and how slots, GPUs and nodes share them. */
#ifndef DP_EPLB_SHAPE_H
#define DP_EPLB_SHAPE_H

#include <dualpipe/eplb.h>
#include <stdbool.h>

/* `total` things in `parts` rows: the first ones have one more. */
static inline int32_t dp__eplb_share_first(int32_t total, int32_t parts, int32_t part)
{
    int32_t extra = total % parts;

    return part * (total / parts) + (part < extra ? part : extra);
}

static inline int32_t dp__eplb_share_count(int32_t total, int32_t parts, int32_t part)
{
    return total / parts + (part < total % parts);
}

/* The part that thing number `index` is in. */
static inline int32_t dp__eplb_share_of(int32_t total, int32_t parts, int32_t index)
{
    int32_t size = total / parts, in_larger = (total % parts) * (size + 1);

    return index < in_larger ? index / (size + 1) : total % parts + (index - in_larger) / size;
}

/* A shape as given by the caller, with what is derived from it. */
typedef struct dp__eplb_sizes {
    int32_t layers, experts, replicas, groups, nodes, gpus;
    bool even; /* everything divides: all nodes are problems of one size */
} dp__eplb_sizes_t;

/* Checks a shape. groups and nodes are as given: the global policy takes both as 1. */
dp_status_t dp__eplb_check_shape(const dp_eplb_shape_t *shape, dp__eplb_sizes_t *sizes_out);
dp__eplb_sizes_t dp__eplb_as_global(const dp__eplb_sizes_t *sizes);

/* Options as given, or the defaults; policy resolved to what AUTO means first for this shape. */
dp_status_t dp__eplb_check_options(const dp_eplb_options_t *options, dp_eplb_options_t *options_out);
dp_status_t dp__eplb_check_loads(const dp__eplb_sizes_t *sizes, const float *loads);

#endif
