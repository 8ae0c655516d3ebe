/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * overlap.h: plans which segments of a schedule run beside each other.
 *
 *     dp_overlap_request_t request = {.struct_size = sizeof(request), .schedule = schedule,
 *                                     .costs = &costs};
 *     dp_overlap_result_t result = {.struct_size = sizeof(result)};
 *     dp_plan_overlap(&request, &result);            // result.schedule has braids
 *     dp_overlap_clear(&result);
 *
 * A published pair hides the transfers of one forward and one backward behind each other. A plan
 * does so for all passes of a rank. Where the pipeline fills it puts a forward beside the next one.
 * Where it empties it puts backwards beside weight gradients and beside each other. Of forwards
 * alone it begins with the shortest order by name (dp_forwards_t).
 *
 * The plan is found by list scheduling. In a run of all ranks, segment by segment, each free lane
 * takes the most urgent segment that is ready, or waits for a more urgent one that will soon be. At
 * first, what the given schedule begins early is urgent. Then plans are improved: passes are moved,
 * rules of what may overtake what are changed, and the step is run backwards from its end, which
 * shows what it waits for. With more tries than by default, plans also begin with other groups of
 * micro-batches, warm-ups and lags of weight gradients, as the memory allows.
 *
 * Since 0.2: dp_overlap_request_t.rank_caps. */
#ifndef DUALPIPE_OVERLAP_H
#define DUALPIPE_OVERLAP_H

#include <dualpipe/simulate.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What to plan. */
typedef struct dp_overlap_request {
    uint32_t struct_size;
    /* without braids, or forward-only: of that what its ranks have, not how they order it. Borrowed
     * during the call */
    const dp_schedule_t *schedule;
    const dp_costs_t *costs; /* with segments. Borrowed during the call */
    /* most activations on a rank, in units of its stage inputs, from F until W. 0: what the
     * schedule itself holds, of forwards alone what two at once do; negative: no limit */
    double memory_cap;
    int32_t slots; /* of a channel; 0: DP_SLOTS_NEEDED of the schedule */
    /* sets of rules, each of which is run up to three times; 0: 96, or fewer where they take long
     * */
    int32_t tries;
    double seconds; /* begin no other try after that; 0: no limit */
    uint64_t seed;  /* another one, other tries */
    /* [ranks] each rank's memory_cap, by the same rules; NULL: all have that. Borrowed during the
     * call */
    const double *rank_caps;
} dp_overlap_request_t;
enum { DP_OVERLAP_REQUEST_MIN = DP_SIZE_TO(dp_overlap_request_t, seed) };

/** What was planned. The caller sets struct_size. The schedule belongs to the library until
 * dp_overlap_clear(). */
typedef struct dp_overlap_result {
    uint32_t struct_size;
    /* method and placement of the given one; where no plan was shorter a copy of it, or of forwards
     * the shortest order by name */
    dp_schedule_t *schedule;
    double step; /* as dp_simulate() gives it */
    /* with barrier: no order of these passes under this memory has a shorter step */
    double bound;
    double peak; /* most activations on a rank */
    int32_t tried;
} dp_overlap_result_t;
enum { DP_OVERLAP_RESULT_MIN = DP_SIZE_TO(dp_overlap_result_t, tried) };

/** Plans. The result has the same passes on the same ranks, and weight gradients of a chunk in the
 * order of its micro-batches, so the same bits. It keeps the limits of memory and slots, for
 * CREDITS. At most two forwards and two backwards are alive at once on a rank. dp_program_verify()
 * has proven it. The same request without `seconds` gives the same result. DP_ERR_INVALID: a
 * schedule with backwards and braids, costs without segments, and the errors of dp_simulate().
 * DP_ERR_REJECTED: dp_schedule_verify() rejects the schedule, or nothing was found within that
 * memory. DP_ERR_NOMEM. [any] */
DP_API DP_CHECKED dp_status_t dp_plan_overlap(const dp_overlap_request_t *request, dp_overlap_result_t *result);
/** Frees the schedule of a result. [any] */
DP_API void dp_overlap_clear(dp_overlap_result_t *result);

#ifdef __cplusplus
}
#endif
#endif
