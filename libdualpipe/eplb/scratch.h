/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * scratch.h: the caller's workspace, cut into the arrays that the algorithms work in. */
#ifndef DP_EPLB_SCRATCH_H
#define DP_EPLB_SCRATCH_H

#include "eplb/lanes.h"
#include "eplb/shape.h"
#include "eplb/tournament.h"

/* One node of one layer: experts to replicate, slots to share among GPUs. Numbers are local. */
typedef struct dp__eplb_node {
    int32_t experts, slots, gpus, first_slot;
    int32_t capacity, larger; /* slots of a GPU; the first `larger` GPUs have one more */
    int32_t *logical;         /* [experts] number in the layer */
    float *load;              /* [experts] */
    int32_t *count;           /* [experts] */
    int32_t *expert;          /* [slots] of each replica */
    int32_t *rank;            /* [slots] its number among the replicas of its expert */
    int32_t *key;             /* [slots] its load, as bits */
    int32_t *order;           /* [slots] replicas, heaviest first */
    int32_t *bin;             /* [slots] GPU of order[i] */
} dp__eplb_node_t;

/* A placement of one layer that can be changed slot by slot: see layer.h. */
typedef struct dp__eplb_layer {
    int32_t *expert;      /* [replicas] in each slot */
    int32_t *count;       /* [experts] */
    int32_t *head;        /* [experts] first slot in the list of the replicas */
    int32_t *next, *prev; /* [replicas] -1 ends a list */
    double *load;         /* [gpus] */
} dp__eplb_layer_t;

typedef struct dp__eplb_scratch {
    const dp__eplb_lanes_t *lanes;
    int32_t at_once; /* nodes that can be worked on side by side */
    dp__eplb_node_t node[DP__LANES_MOST];
    float *lane_share, *lane_load; /* [slots][lanes] */
    int32_t *lane_bin, *lane_room;
    dp__tournament_t tree;
    int32_t *position, *fill; /* [slots] */
    uint64_t *pairs, *pairs_too;
    /* [groups], node_first [nodes + 1] */
    int32_t *group_key, *group_order, *group_node, *group_list, *node_first;
    int32_t *node_fill;
    float *node_load;
    uint16_t *rank;     /* [layers, replicas] */
    int32_t *target;    /* [layers, replicas] a plan from loads alone */
    int32_t *gpu_of;    /* [replicas] */
    int32_t *gpu_first; /* [gpus + 1] slots */
    int32_t *node_of;   /* [gpus] */
    int32_t *group_of;  /* [experts] */
    dp__eplb_layer_t layer[3];
    int32_t *origin, *best;                            /* [replicas] */
    int32_t *count;                                    /* [experts], and [gpus] */
    int32_t *touched;                                  /* [gpus] */
    double *change;                                    /* [gpus], 0 but for those touched */
    int32_t *match, *match_too, *overlap, *node_match; /* [gpus] */
    double *node_total;                                /* [nodes] */
    double *share, *spread;                            /* [experts] */
    int32_t *room;                                     /* [nodes] */
} dp__eplb_scratch_t;

/* Cuts the workspace. */
dp_status_t dp__eplb_scratch_cut(const dp_eplb_shape_t *shape, void *workspace, size_t workspace_bytes,
                                 dp__eplb_sizes_t *sizes_out, dp__eplb_scratch_t *scratch_out);

#endif
