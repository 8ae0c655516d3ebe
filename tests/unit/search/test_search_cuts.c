/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_search_cuts.c: where the layers of a model are cut as well, the search finds the best of all
 * methods with all cuts, within the memory of each rank. */
#include <dualpipe/search.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "tests/support/suite.h"

/* An embedding, layers, and a head. */
static const double layer_costs[] = {0.5, 1, 1, 1, 1, 1, 1, 2.5};
enum { LAYERS = sizeof(layer_costs) / sizeof(layer_costs[0]), MOST_STAGES = LAYERS, RANKS = 3 };

static const dp_segment_costs_t segments = {.struct_size = sizeof(segments),
                                            .layers = 4,
                                            .f = {4.4, 6.7, 4.6, 8.7},
                                            .i = {9.3, 7.5, 5.3, 5.8},
                                            .w = {2.4, 0, 5.1, 0}};
static const dp_costs_t cost_sets[] = {
    {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1, .w = 1, .barrier = 1},
    {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1.4, .w = 0.6, .fb = 2.5, .hop = 0.25, .barrier = 1},
    {.struct_size = sizeof(dp_costs_t), .barrier = 1, .segments = &segments},
};

static void weigh(const int32_t *first, int32_t stages, double *scale)
{
    double all = 0.0;

    for (int32_t l = 0; l < LAYERS; l++)
        all += layer_costs[l];
    for (int32_t s = 0; s < stages; s++) {
        scale[s] = 0.0;
        for (int32_t l = first[s]; l < first[s + 1]; l++)
            scale[s] += layer_costs[l] * stages / all;
    }
}

static double evaluate(const dp_schedule_t *schedule, const dp_costs_t *costs, const int32_t *first)
{
    dp_simulation_t got = {.struct_size = sizeof(got)};
    dp_costs_t scaled = *costs;
    double scale[MOST_STAGES], step = INFINITY;
    dp_status_t status;

    weigh(first, dp_schedule_stages(schedule), scale);
    scaled.stage_scale = scale;
    status = dp_evaluate(schedule, NULL, &scaled, 0, &got);
    ck_assert_msg(status == DP_OK || status == DP_ERR_REJECTED, "%s", dp_last_error());
    if (status == DP_OK)
        step = got.step_time;
    dp_simulation_clear(&got);
    return step;
}

/* Layers of a rank at once, times their micro-batches, and the copies of its layers. Plain
 * operations alone. */
static double memory_of(const dp_schedule_t *schedule, const int32_t *first, int32_t rank, double activations,
                        double weights)
{
    double held = 0.0, most = 0.0, copies = 0.0, layers[DP_MAX_CHUNKS];

    for (int32_t c = 0; c < schedule->chunks; c++) {
        dp_place_t place;

        dp_schedule_place(schedule, rank, c, &place);
        copies += layers[c] = first[place.stage + 1] - first[place.stage];
    }
    for (int64_t i = schedule->first[rank]; i < schedule->first[rank + 1]; i++) {
        const dp_op_t *op = &schedule->ops[i];

        held += op->kind == DP_OP_F || op->kind == DP_OP_FB ? layers[op->chunk] : 0.0;
        most = fmax(most, held);
        held -= op->kind == DP_OP_B || op->kind == DP_OP_W ? layers[op->chunk]
                : op->kind == DP_OP_FB                     ? layers[op->chunk2]
                                                           : 0.0;
    }
    return (most * activations + copies * weights) * schedule->ranks / LAYERS;
}

static bool fits(const dp_schedule_t *schedule, const int32_t *first, const dp_search_request_t *request)
{
    for (int32_t r = 0; r < schedule->ranks && request->rank_caps != NULL; r++)
        if (memory_of(schedule, first, r, request->activation_bytes, request->weight_bytes) >
            request->rank_caps[r] * (1.0 + 1e-9))
            return false;
    return true;
}

/* The shortest step of a schedule over all cuts that begin as `first` does up to stage s. */
static double best_cut(const dp_schedule_t *schedule, const dp_search_request_t *request, int32_t *first, int32_t s)
{
    const int32_t stages = dp_schedule_stages(schedule);
    double best = INFINITY;

    if (s == stages) {
        first[s] = LAYERS;
        return fits(schedule, first, request) ? evaluate(schedule, request->costs, first) : INFINITY;
    }
    for (first[s] = first[s - 1] + 1; first[s] <= LAYERS - (stages - s); first[s]++)
        best = fmin(best, best_cut(schedule, request, first, s + 1));
    return best;
}

static double best_of_all(const dp_search_request_t *request)
{
    size_t count;
    const dp_method_t *methods = dp_schedule_methods(&count);
    double best = INFINITY;

    for (size_t m = 0; m < count; m++)
        for (int32_t k = 0; k < (methods[m].placement == DP_PLACE_LOOP ? request->nchunks : 1); k++) {
            dp_schedule_request_t wanted = {.struct_size = sizeof(wanted),
                                            .method = methods[m].name,
                                            .ranks = request->ranks,
                                            .microbatches = request->microbatches};
            dp_schedule_t *schedule;
            int32_t first[MOST_STAGES + 1] = {0};

            if (methods[m].placement == DP_PLACE_LOOP)
                wanted.chunks = request->chunks[k];
            if (dp_schedule_generate(&wanted, &schedule) < 0)
                continue;
            if (dp_schedule_stages(schedule) <= LAYERS)
                best = fmin(best, best_cut(schedule, request, first, 1));
            dp_schedule_free(schedule);
        }
    return best;
}

/* No longer than needed. */
static int stop_at_best(void *user, const dp_search_state_t *state)
{
    return state->step <= *(const double *)user * (1.0 + 1e-9);
}

static void expect_sound(const dp_search_request_t *request, const dp_search_result_t *result)
{
    ck_assert_double_eq_tol(evaluate(result->schedule, request->costs, result->first), result->step,
                            1e-9 * result->step);
    ck_assert_int_eq(result->first[0], 0);
    ck_assert_int_eq(result->first[dp_schedule_stages(result->schedule)], LAYERS);
    ck_assert_int_ge(result->ncandidates, 1);
    ck_assert_double_eq(result->candidates[0].step, result->step);
    for (int32_t k = 1; k < result->ncandidates; k++)
        ck_assert_double_ge(result->candidates[k].step, result->candidates[k - 1].step);
}

static const int32_t chunks[] = {2, 3};

static dp_search_request_t request_of(int32_t ranks, const dp_costs_t *costs)
{
    return (dp_search_request_t){.struct_size = sizeof(dp_search_request_t),
                                 .ranks = ranks,
                                 .microbatches = 2 * ranks,
                                 .costs = costs,
                                 .seconds = costs->segments != NULL ? 3.0 : 60.0,
                                 .seed = 1,
                                 .layers = LAYERS,
                                 .layer_costs = layer_costs,
                                 .nchunks = 2,
                                 .chunks = chunks};
}

static void expect_best(dp_search_request_t *request)
{
    dp_search_result_t result = {.struct_size = sizeof(result)};
    double best = best_of_all(request);

    ck_assert_double_lt(best, INFINITY);
    request->progress = stop_at_best;
    request->user = &best;
    ck_assert_msg(dp_search(request, &result) == DP_OK, "%s", dp_last_error());
    ck_assert_double_le(result.step, best * (1.0 + 1e-9));
    expect_sound(request, &result);
    if (request->costs->segments == NULL)
        ck_assert(fits(result.schedule, result.first, request));
    dp_search_clear(&result);
    ck_assert_ptr_null(result.first);
    ck_assert_ptr_null(result.candidates);
}

START_TEST(no_method_with_any_cut_is_shorter)
{
    dp_search_request_t request = request_of(2 + _i % 2, &cost_sets[_i / 2]);

    expect_best(&request);
}
END_TEST

/* The rank in the middle has half the memory, and the memory is short. */
START_TEST(nor_any_that_fits_the_memory_of_each_rank)
{
    double caps[RANKS] = {100, 100, 100};
    dp_search_request_t request = request_of(2 + _i % 2, &cost_sets[_i / 2]);

    request.rank_caps = caps;
    request.activation_bytes = 12;
    request.weight_bytes = 20;
    caps[1] = 50;
    expect_best(&request);
}
END_TEST

START_TEST(a_rank_with_less_memory_gets_less)
{
    static const double caps[RANKS] = {0, 40, 0};
    dp_search_request_t request = request_of(3, &cost_sets[0]);
    dp_search_result_t result = {.struct_size = sizeof(result)};

    request.seconds = 0.5;
    request.activation_bytes = 12;
    request.weight_bytes = 20;
    ck_assert_msg(dp_search(&request, &result) == DP_OK, "%s", dp_last_error());
    ck_assert_double_gt(memory_of(result.schedule, result.first, 1, 12, 20), 40.0);
    dp_search_clear(&result);
    request.rank_caps = caps;
    ck_assert_msg(dp_search(&request, &result) == DP_OK, "%s", dp_last_error());
    ck_assert_double_le(memory_of(result.schedule, result.first, 1, 12, 20), 40.0 + 1e-6);
    ck_assert_double_gt(result.memory, 40.0);
    dp_search_clear(&result);
    /* and without layers, in micro-batches */
    request = (dp_search_request_t){.struct_size = sizeof(request),
                                    .ranks = 3,
                                    .microbatches = 6,
                                    .costs = &cost_sets[0],
                                    .seconds = 0.3,
                                    .seed = 1,
                                    .rank_caps = (const double[]){0, 1, 0}};
    ck_assert_msg(dp_search(&request, &result) == DP_OK, "%s", dp_last_error());
    ck_assert_ptr_null(result.first);
    dp_search_clear(&result);
}
END_TEST

START_TEST(what_cannot_be_is_said)
{
    static const double negative[] = {1, -1}, none[LAYERS] = {1, 1, 0, 1, 1, 1, 1, 1}, scale[] = {1, 1};
    static const int32_t zero[] = {0};
    dp_costs_t scaled = cost_sets[0];
    dp_search_request_t good = request_of(2, &cost_sets[0]), bad[6] = {good, good, good, good, good, good};
    const char *says[] = {"1 layers on 2 ranks", "layer 2 costs 0", "memory of rank 1 is -1", "0 chunks",
                          "stage_scale",         "layer_costs"};
    dp_search_result_t result = {.struct_size = sizeof(result)};

    bad[0].layers = 1;
    bad[1].layer_costs = none;
    bad[2].rank_caps = negative;
    bad[3].chunks = zero;
    bad[3].nchunks = 1;
    scaled.stage_scale = scale;
    bad[4].costs = &scaled;
    bad[4].stages = 2;
    bad[5].layer_costs = NULL;
    for (size_t b = 0; b < sizeof(bad) / sizeof(bad[0]); b++) {
        ck_assert_int_eq(dp_search(&bad[b], &result), DP_ERR_INVALID);
        ck_assert_msg(strstr(dp_last_error(), says[b]) != NULL, "%s", dp_last_error());
        ck_assert_ptr_null(result.schedule);
    }
    good.rank_caps = (const double[]){100, 7};
    good.activation_bytes = 12;
    good.weight_bytes = 20;
    good.seconds = 0.2;
    ck_assert_int_eq(dp_search(&good, &result), DP_ERR_REJECTED);
    ck_assert_msg(strstr(dp_last_error(), "comes nearest: rank 1 holds") != NULL, "%s", dp_last_error());
}
END_TEST

/* Of a caller that knows no arrays none is left behind. */
START_TEST(an_older_result_is_filled)
{
    dp_search_request_t request = request_of(2, &cost_sets[0]);
    dp_search_result_t result = {.struct_size = DP_SIZE_TO(dp_search_result_t, tried)};

    request.seconds = 0.1;
    ck_assert_msg(dp_search(&request, &result) == DP_OK, "%s", dp_last_error());
    ck_assert_ptr_nonnull(result.schedule);
    ck_assert_ptr_null(result.first);
    dp_search_clear(&result);
    ck_assert_ptr_null(result.schedule);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("search_cuts");
    TCase *cuts = tcase_create("cuts");

    tcase_set_timeout(cuts, 90);
    tcase_add_loop_test(cuts, no_method_with_any_cut_is_shorter, 0, 6);
    tcase_add_loop_test(cuts, nor_any_that_fits_the_memory_of_each_rank, 0, 4);
    suite_add_tcase(suite, cuts);
    SUITE_ADD(suite, a_rank_with_less_memory_gets_less);
    SUITE_ADD(suite, what_cannot_be_is_said);
    SUITE_ADD(suite, an_older_result_is_filled);
    return suite_run(suite);
}
