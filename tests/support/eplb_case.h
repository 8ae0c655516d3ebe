/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * eplb_case.h: the recorded placements in tests/data/eplb (its README has the format), read without
 * any code of the library, and a planner for tests: workspace and arrays of the right size. */
#ifndef TESTS_EPLB_CASE_H
#define TESTS_EPLB_CASE_H

#include <dualpipe/eplb.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

typedef struct eplb_case {
    dp_eplb_shape_t shape;
    char policy[32];
    int maxcnt, tie_phy2log, tie_logcnt, tie_set, tie_order, max_last, f64_differs, stable_differs;
    float *weights;
    /* log2phy [layers, experts, maxcnt], -1 padded as the reference does */
    int32_t *phy2log, *logcnt, *log2phy;
    double *maxload;
} eplb_case_t;

static const char *const eplb_cases[] = {
    "readme",
    "hier_int_distinct",
    "hier_zipf_float",
    "global_zipf_int",
    "global_uniform_float",
    "hier_all_equal",
    "all_zero",
    "half_zero",
    "global_all_equal_float",
    "one_gpu",
    "no_redundancy_hier",
    "one_replica_per_gpu",
    "groups_eq_nodes",
    "one_node_many_groups",
    "one_hot",
    "small_int_many_ties",
    "big_int_above_2pow24",
    "global_gpus_not_multiple_of_nodes",
    "dsv3_prefill_lognormal_int",
    "dsv3_decode_zipf_float",
};
#define EPLB_CASES ((int)(sizeof(eplb_cases) / sizeof(eplb_cases[0])))

void eplb_read(const char *kind, const char *name, eplb_case_t *c);

void eplb_case_clear(eplb_case_t *c);

/* Workspace and arrays for a shape. The arrays end where they should: tools that watch memory see
 * one value too many. */
typedef struct eplb_desk {
    dp_eplb_placement_t placement;
    void *workspace;
    size_t bytes;
    double *gpus, *nodes;
} eplb_desk_t;

void eplb_desk_open(const dp_eplb_shape_t *shape, eplb_desk_t *desk);

void eplb_desk_close(eplb_desk_t *desk);

static inline dp_status_t eplb_rebalance(const dp_eplb_shape_t *shape, const dp_eplb_options_t *options,
                                         const float *weights, eplb_desk_t *desk)
{
    return dp_eplb_rebalance(shape, options, weights, &desk->placement, desk->workspace, desk->bytes);
}

/* The fullest GPU of a layer, computed here: slots of GPUs in order, the first GPUs have one
 * more. */
double eplb_peak(const dp_eplb_shape_t *shape, const float *weights, const int32_t *slots);

/* Everything that must hold of any placement, whatever made it. */
void eplb_check_valid(const dp_eplb_shape_t *shape, const dp_eplb_placement_t *p);

/* The node of a slot, computed here. */
int32_t eplb_node_of_slot(const dp_eplb_shape_t *shape, int32_t slot);

void eplb_check_groups(const dp_eplb_shape_t *shape, const int32_t *physical_to_logical);

#endif
