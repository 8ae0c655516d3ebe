/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * search.h: looks for a better schedule than any built-in one, for given sizes, costs and memory.
 *
 *     dp_search_request_t request = {.struct_size = sizeof(request), .ranks = 4,
 *                                    .microbatches = 12, .costs = &costs};
 *     dp_search_result_t result = {.struct_size = sizeof(result)};
 *     dp_search(&request, &result);                        // result.schedule, result.step
 *     dp_search_clear(&result);
 *
 * Built-in schedules and list scheduling give the starts. Simulated annealing on the operation
 * lists improves them. With costs per segment, dp_plan_overlap() plans the segments of the built-in
 * schedules, the best one longest. Every schedule that is reported as better was lowered, proven
 * and simulated.
 *
 * With `layers`, the layers of the model are cut into the stages of each schedule as well, within
 * the memory.
 *
 * Since 0.2: dp_search_request_t.placements, .weights, .stages, .weight_bytes, .activation_bytes,
 * .layers, .nchunks, .layer_costs, .chunks, .rank_caps; dp_search_result_t.memory, .first,
 * .ncandidates, .candidates. */
#ifndef DUALPIPE_SEARCH_H
#define DUALPIPE_SEARCH_H

#include <dualpipe/simulate.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How far a search has come. The library sets struct_size. */
typedef struct dp_search_state {
    uint32_t struct_size;
    double elapsed;       /* seconds */
    int64_t tried;        /* lists timed, or sets of rules */
    double built_in_step; /* of the best built-in schedule; infinite: none fits */
    double step;          /* of the best so far; infinite: none yet */
    const char *from;     /* which start the best goes back to; valid during the call */
} dp_search_state_t;
enum { DP_SEARCH_STATE_MIN = DP_SIZE_TO(dp_search_state_t, from) };

/** Called some five times a second, on the thread that searches. A result other than 0 ends the
 * search, which returns what it has. */
typedef int (*dp_search_fn)(void *user, const dp_search_state_t *state);

/** What to search for. */
typedef struct dp_search_request {
    uint32_t struct_size;
    int32_t ranks, microbatches;
    const dp_costs_t *costs;  /* of a device. Borrowed during the call */
    dp_transport_t transport; /* what is found completes on it, */
    int32_t slots;            /* with so many per channel; 0: DP_SLOTS_NEEDED */
    /* most activations on a rank, in units of its stage inputs; 0: no limit */
    double memory_cap;
    double seconds;        /* to take; 0: 10 */
    uint64_t seed;         /* another one, another walk; time has a say as well */
    dp_search_fn progress; /* NULL: not wanted */
    void *user;
    uint32_t placements; /* which are tried: a bit 1 << dp_placement_t for each; 0: all */
    int32_t weights;     /* most copies of the weights on a rank: 1 or 2; 0: any */
    /* how many factors costs->stage_scale has: shapes with as many stages are tried */
    int32_t stages;
    /* both above 0: memory_cap is bytes, of activations (these for a rank's stage inputs of one
     * micro-batch), of weights (these for a copy of them on a rank) and of slots (costs->bytes for
     * each) together */
    double activation_bytes, weight_bytes;
    /* [layers] what each layer takes beside the others, embedding, head and loss included, as in
     * dp_partition(): each schedule gets its cut, without a stage_scale. A stage then has bytes by
     * the number of its layers, which all count alike. 0: stages are alike */
    int32_t layers;
    int32_t nchunks; /* of `chunks`; 0: 2 and 4 */
    /* all borrowed during the call */
    const double *layer_costs;
    const int32_t *chunks;   /* [nchunks] of a rank, with which interleaved methods are tried */
    const double *rank_caps; /* [ranks] each rank's memory_cap, 0: no limit; NULL: all have that */
} dp_search_request_t;
enum { DP_SEARCH_REQUEST_MIN = DP_SIZE_TO(dp_search_request_t, weight_bytes) };

/** What was found from one start. Frozen: never grows. */
typedef struct dp_search_candidate {
    char from[48]; /* the start */
    double step, memory;
} dp_search_candidate_t;

/** The result of a search. The caller sets struct_size. Schedule and arrays belong to the library
 * until dp_search_clear(). */
typedef struct dp_search_result {
    uint32_t struct_size;
    dp_schedule_t *schedule; /* the best: one of method "search", or a built-in one */
    char built_in[48];       /* the best built-in schedule's name; "" when none fits */
    char from[48];           /* which start the schedule goes back to */
    double built_in_step;    /* simulated; infinite: none fits */
    double step;             /* of the schedule, as dp_simulate() gives it */
    double peak;             /* most activations on a rank, in units of its stage inputs */
    int64_t tried;           /* lists and cuts timed, or sets of rules */
    /* of the fullest rank, in the unit of memory_cap: of bytes those of weights included */
    double memory;
    /* [stages + 1] stage s has layers first[s] to first[s + 1] - 1; NULL without layers */
    int32_t *first;
    /* [ncandidates] the best of each start, by step; the first is the result */
    int32_t ncandidates;
    dp_search_candidate_t *candidates;
} dp_search_result_t;
enum { DP_SEARCH_RESULT_MIN = DP_SIZE_TO(dp_search_result_t, tried) };

/** Searches for as long as the request says, on the calling thread. Free the result with
 * dp_search_clear(). DP_ERR_INVALID: sizes below 1; costs that dp_simulate() refuses; a stage_scale
 * without `stages`, or with layers; layers that are fewer than ranks or cost nothing; a topology of
 * another number of ranks. DP_ERR_REJECTED: nothing fits the memory; the message says what comes
 * nearest. DP_ERR_NOMEM. [any] */
DP_API DP_CHECKED dp_status_t dp_search(const dp_search_request_t *request, dp_search_result_t *result);
/** Frees the schedule and the arrays of a result. [any] */
DP_API void dp_search_clear(dp_search_result_t *result);

#ifdef __cplusplus
}
#endif
#endif
