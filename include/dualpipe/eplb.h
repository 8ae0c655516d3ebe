/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * eplb.h: expert load balancing: how often each expert is replicated, and on which GPU each replica
 * lives.
 *
 * The method is the published EPLB (https://github.com/deepseek-ai/EPLB; section 3.4 of the
 * DeepSeek-V3 report, arXiv 2412.19437). Groups of experts are packed onto nodes. The experts of a
 * node are replicated, heaviest load per replica first. The replicas are packed onto the GPUs of
 * the node, heaviest first. With default options the answer is that of the published code, slot for
 * slot, where sorts are stable and the first of equals is taken.
 *
 *     dp_eplb_shape_t shape = { sizeof shape, 58, 256, 288, 8, 4, 32 };
 *     size_t bytes;
 *     dp_eplb_workspace_bytes(&shape, &bytes);          // once; then nothing allocates
 *     dp_eplb_rebalance(&shape, NULL, loads, &placement, workspace, bytes);
 *
 * Words. An expert is logical; its copies are replicas; a replica lives in a physical slot. The
 * slots of a layer are numbered GPU by GPU, and the GPUs node by node. Where sizes do not divide,
 * the first ones have one more each (dp_eplb_gpu_slots(), dp_eplb_node_gpus()). The replicas of an
 * expert share its load equally.
 *
 * All arrays are row-major and belong to the caller. Nothing is kept after a call. Functions share
 * no state, but calls at the same time need separate workspaces. Without a time budget (search_ns)
 * they depend on their arguments alone, so ranks that call them with the same loads get the same
 * bits. */
#ifndef DUALPIPE_EPLB_H
#define DUALPIPE_EPLB_H

#include <dualpipe/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Most slots of a layer; layers, experts, groups, nodes and GPUs have the same limit. */
#define DP_EPLB_LIMIT 65536

/** What is to be placed where. All are at least 1. experts <= replicas, gpus <= replicas, nodes <=
 * gpus, groups <= experts. Sizes need not divide: the first groups have one expert more, the first
 * nodes one GPU, the first GPUs one slot. */
typedef struct dp_eplb_shape {
    uint32_t struct_size;
    int32_t layers;
    int32_t experts;  /* logical experts of a layer */
    int32_t replicas; /* physical slots of a layer, over all GPUs; each holds one replica */
    /* routing groups: consecutive experts that the hierarchical policy keeps on a node */
    int32_t groups;
    int32_t nodes;
    int32_t gpus; /* over all nodes */
} dp_eplb_shape_t;
enum { DP_EPLB_SHAPE_MIN = DP_SIZE_TO(dp_eplb_shape_t, gpus) };

/** Where the replicas of a group may go. */
typedef enum dp_eplb_policy {
    DP_EPLB_AUTO = 0,         /* hierarchical when groups are a multiple of nodes, else global */
    DP_EPLB_HIERARCHICAL = 1, /* all replicas of a group on one node: tokens go to few nodes */
    DP_EPLB_GLOBAL = 2        /* replicas anywhere: better balance, more traffic between nodes */
} dp_eplb_policy_t;

/** How to place. NULL or zeros: as published. */
typedef struct dp_eplb_options {
    uint32_t struct_size;
    int32_t policy; /* dp_eplb_policy_t */
    /* 1: no GPU gets two replicas of an expert, unless the expert has more replicas than there are
     * GPUs that may hold it; then they are spread over those GPUs as evenly as can be. */
    int32_t distinct;
    /* Quality mode: after the greedy, try so many improvements of each layer. */
    int64_t search_steps;
    /* Quality mode: search for about this long in all (monotonic clock; a step is not cut short);
     * 0: without limit of time when search_steps > 0. What a search under a limit of time finds
     * depends on the machine's speed. */
    int64_t search_ns;
    /* Of the search's random choices: same seed and same steps, same answer. */
    uint64_t seed;
} dp_eplb_options_t;
enum { DP_EPLB_OPTIONS_MIN = DP_SIZE_TO(dp_eplb_options_t, seed) };

/** A placement of all layers, in arrays of the caller. */
typedef struct dp_eplb_placement {
    uint32_t struct_size;
    int32_t policy;               /* out: DP_EPLB_HIERARCHICAL or DP_EPLB_GLOBAL, as done */
    int32_t max_count;            /* out: the most replicas of an expert in any layer */
    int32_t *physical_to_logical; /* [layers, replicas] the expert in each slot */
    int32_t *expert_count;        /* [layers, experts] replicas of each expert; NULL: not wanted */
    /* [layers, experts, max_count] slots of each expert, -1 after the last; NULL: not wanted. In
     * the order in which replicas were made, as published; after a search or an update, ascending.
     * Its rows are as long as the max_count returned; make room for rows of
     * dp_eplb_most_replicas(). */
    int32_t *logical_to_physical;
} dp_eplb_placement_t;
enum { DP_EPLB_PLACEMENT_MIN = DP_SIZE_TO(dp_eplb_placement_t, logical_to_physical) };

/** Slots of a GPU: *first_out to *first_out + *count_out - 1. gpu is 0 to gpus - 1 of a valid
 * shape. [any] */
DP_API void dp_eplb_gpu_slots(const dp_eplb_shape_t *shape, int32_t gpu, int32_t *first_out, int32_t *count_out);
/** GPUs of a node: *first_out to *first_out + *count_out - 1. node is 0 to nodes - 1 of a valid
 * shape. [any] */
DP_API void dp_eplb_node_gpus(const dp_eplb_shape_t *shape, int32_t node, int32_t *first_out, int32_t *count_out);
/** The most replicas that an expert can get in this shape, whatever the loads and the policy:
 * replicas - experts + 1. [any] */
DP_API int32_t dp_eplb_most_replicas(const dp_eplb_shape_t *shape);

/** Bytes of workspace that are enough for every function here with this shape. They are about half
 * a kilobyte for each replica of one layer, and six bytes for each of all layers. DP_ERR_INVALID:
 * an impossible shape; the message says which size. [any] */
DP_API DP_CHECKED dp_status_t dp_eplb_workspace_bytes(const dp_eplb_shape_t *shape, size_t *bytes_out);

/** Makes a placement from loads alone.
 * loads [layers, experts]: load of each expert in any unit (tokens), finite and not negative.
 * Floats, in which the published code computes too.
 * options: NULL: published behaviour.
 * placement: set struct_size and the arrays before the call.
 * workspace: of dp_eplb_workspace_bytes(), any alignment.
 * A search, if asked for, keeps its start unless it lowers the load of the fullest GPU of a layer.
 * DP_ERR_INVALID: shape, options, a negative load, a workspace that is too small, or a hierarchical
 * policy whose groups do not fit the nodes (AUTO takes the global one then). DP_ERR_NUMERIC: a load
 * that is not a number or infinite, or a layer whose sum is not a float. After an error the arrays
 * are undefined. [any] */
DP_API DP_CHECKED dp_status_t dp_eplb_rebalance(const dp_eplb_shape_t *shape, const dp_eplb_options_t *options,
                                                const float *loads, dp_eplb_placement_t *placement, void *workspace,
                                                size_t workspace_bytes);

/** When and how far to change a placement that is in use. */
typedef struct dp_eplb_update_options {
    uint32_t struct_size;
    /* a layer with max/mean of its GPUs up to this stays as it is; 0 to 1: as 1 */
    double threshold;
    /* the max/mean to reach with the fewest moves; 0: what dp_eplb_rebalance() reaches */
    double bound;
    /* parameters (and optimizer state) that follow an expert, for the report */
    int64_t expert_bytes;
} dp_eplb_update_options_t;
enum { DP_EPLB_UPDATE_OPTIONS_MIN = DP_SIZE_TO(dp_eplb_update_options_t, expert_bytes) };

/** The moves from one placement to another. A replica is moved when its GPU did not hold that
 * expert before. */
typedef struct dp_eplb_moves {
    uint32_t struct_size;
    int32_t layers_moved;        /* layers in which anything moves */
    int32_t layers_over;         /* layers above the bound (and the threshold) afterwards */
    int64_t replicas;            /* replicas moved, over all layers */
    int64_t between_nodes;       /* of these, replicas whose node did not hold the expert before */
    int64_t bytes;               /* replicas times expert_bytes */
    int64_t bytes_between_nodes; /* between_nodes times expert_bytes */
} dp_eplb_moves_t;
enum { DP_EPLB_MOVES_MIN = DP_SIZE_TO(dp_eplb_moves_t, bytes_between_nodes) };

/** Makes a placement that starts from the one in use and moves few replicas. Each layer gets the
 * plan with the fewest moves whose max/mean of its GPUs is within the bound. If none is, it gets
 * the best balanced plan found. It reaches every bound that the plan of dp_eplb_rebalance()
 * reaches, with no more moves, and usually with far fewer. Replicas that stay keep their slot.
 * current [layers, replicas]: the physical_to_logical in use, of any origin, every expert at least
 * once. It may be placement->physical_to_logical itself.
 * options: as for dp_eplb_rebalance(). The policy decides where replicas may go; a search improves
 * the plan from loads alone.
 * update: NULL: threshold 1, and the bound that dp_eplb_rebalance() reaches.
 * moves: may be NULL; set its struct_size.
 * Errors as dp_eplb_rebalance(), and DP_ERR_INVALID for a current placement with experts out of
 * range or missing. [any] */
DP_API DP_CHECKED dp_status_t dp_eplb_update(const dp_eplb_shape_t *shape, const dp_eplb_options_t *options,
                                             const dp_eplb_update_options_t *update, const float *loads,
                                             const int32_t *current, dp_eplb_placement_t *placement,
                                             dp_eplb_moves_t *moves, void *workspace, size_t workspace_bytes);

/** Where each slot gets its parameters from when a placement is changed.
 * from, to [layers, replicas].
 * sources_out [layers, replicas]: slot of `from` to copy from, -1 when the slot itself held the
 * expert. NULL: not wanted.
 * moves: counts as above, with layers_over 0. NULL: not wanted.
 * A source is on the same GPU if that holds the expert, else on the same node, else anywhere.
 * Sources are used in turn, so that reads spread over replicas. DP_ERR_INVALID: an expert out of
 * range, or one in `to` that is not in `from`. [any] */
DP_API DP_CHECKED dp_status_t dp_eplb_transfers(const dp_eplb_shape_t *shape, const int32_t *from, const int32_t *to,
                                                int64_t expert_bytes, int32_t *sources_out, dp_eplb_moves_t *moves,
                                                void *workspace, size_t workspace_bytes);

/** Fills expert_count, logical_to_physical (slots in ascending order) and max_count of a placement
 * from its physical_to_logical, for placements read from a file or made by hand. It sets
 * placement->policy to DP_EPLB_HIERARCHICAL when every group is on one node, else to
 * DP_EPLB_GLOBAL. DP_ERR_INVALID: an expert out of range or missing. [any] */
DP_API DP_CHECKED dp_status_t dp_eplb_index(const dp_eplb_shape_t *shape, dp_eplb_placement_t *placement,
                                            void *workspace, size_t workspace_bytes);

/** Load per GPU and node under a placement. Ratios are 1 where there is no load. */
typedef struct dp_eplb_balance {
    uint32_t struct_size;
    /* Sum over layers of the fullest GPU's load, over the sum of means: how much longer the experts
     * of a step take than with perfect balance, since every layer waits for its fullest GPU. */
    double gpu;
    double node;      /* the same for nodes */
    double gpu_worst; /* max/mean of the worst layer */
    double node_worst;
} dp_eplb_balance_t;
enum { DP_EPLB_BALANCE_MIN = DP_SIZE_TO(dp_eplb_balance_t, node_worst) };

/** Measures a placement: physical_to_logical [layers, replicas] under loads [layers, experts]. The
 * replicas of an expert share its load equally. gpu_loads_out [layers, gpus], node_loads_out
 * [layers, nodes] and balance may be NULL. GPUs (nodes) with unequal numbers of slots count alike.
 * Errors as dp_eplb_index() and dp_eplb_rebalance(). [any] */
DP_API DP_CHECKED dp_status_t dp_eplb_measure(const dp_eplb_shape_t *shape, const float *loads,
                                              const int32_t *physical_to_logical, dp_eplb_balance_t *balance,
                                              double *gpu_loads_out, double *node_loads_out, void *workspace,
                                              size_t workspace_bytes);

/** Smooths loads over steps, exponentially: average = decay * average + (1 - decay) * loads, both
 * [count]. With step 0 (the first) the average becomes the loads. decay is from 0 (only the latest)
 * to below 1; about 1 / (1 - decay) steps count. DP_ERR_INVALID: decay out of range.
 * DP_ERR_NUMERIC: a load that is negative or not finite; then the average stays as it was. [any] */
DP_API DP_CHECKED dp_status_t dp_eplb_smooth(float *average, const float *loads, size_t count, double decay,
                                             uint64_t step);

#ifdef __cplusplus
}
#endif
#endif
