/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_memory.c: what ranks hold: micro-batches as the simulator counts them, bytes as by hand. */
#include <dualpipe/simulate.h>

#include "tests/support/suite.h"

#include <math.h>

static dp_schedule_t *generate(const char *method, int32_t ranks, int32_t microbatches, int32_t chunks)
{
    dp_schedule_request_t request = {.struct_size = sizeof(request),
                                     .method = method,
                                     .ranks = ranks,
                                     .microbatches = microbatches,
                                     .chunks = chunks};
    dp_schedule_t *schedule = NULL;

    ck_assert_msg(dp_schedule_generate(&request, &schedule) == DP_OK, "%s: %s", method, dp_last_error());
    return schedule;
}

static void compare_to_simulation(const dp_schedule_t *schedule)
{
    const dp_lower_options_t options = {.struct_size = sizeof(options), .slots = DP_SLOTS_NEEDED};
    const dp_costs_t costs = {.struct_size = sizeof(costs), .f = 1, .i = 1, .w = 1};
    const dp_memory_bytes_t bytes = {.struct_size = sizeof(bytes), .activation = 3};
    dp_simulation_t got = {.struct_size = sizeof(got)};
    dp_memory_peaks_t held[8];

    ck_assert_msg(dp_evaluate(schedule, &options, &costs, 0, &got) == DP_OK, "%s", dp_last_error());
    ck_assert_int_eq(dp_schedule_memory(schedule, &bytes, held), DP_OK);
    for (int32_t r = 0; r < schedule->ranks; r++) {
        ck_assert_double_eq_tol(held[r].activations, got.peak_activations[r], 1e-9);
        ck_assert_double_eq_tol(held[r].bytes, 3 * got.peak_activations[r], 1e-9);
    }
    dp_simulation_clear(&got);
}

START_TEST(micro_batches_are_those_of_the_simulator)
{
    size_t count;
    const dp_method_t *methods = dp_schedule_methods(&count);

    for (size_t m = 0; m < count; m++)
        for (int32_t ranks = 2; ranks <= 8; ranks += 6) {
            dp_schedule_t *schedule = generate(methods[m].name, ranks, 16, 0), *forwards;

            compare_to_simulation(schedule);
            for (int order = DP_FORWARDS_SERIAL; order <= DP_FORWARDS_DECODE; order++) {
                if (dp_schedule_forwards(schedule, order, &forwards) < 0)
                    continue;
                compare_to_simulation(forwards);
                dp_schedule_free(forwards);
            }
            dp_schedule_free(schedule);
        }
}
END_TEST

START_TEST(bytes_are_those_by_hand)
{
    static const double parts[] = {0.5, 1.5};
    dp_memory_bytes_t bytes = {
        .struct_size = sizeof(bytes), .slots = 2, .message = 1, .activation = 100, .weights = 10000, .parts = parts};
    dp_schedule_t *schedule = generate("1f1b", 2, 4, 0);
    dp_memory_peaks_t held[4];

    ck_assert_int_eq(dp_schedule_memory(schedule, &bytes, held), DP_OK);
    /* one channel comes to each */
    ck_assert_double_eq_tol(held[0].bytes, 5000 + 2 * 50 + 2, 1e-9);
    ck_assert_double_eq_tol(held[1].bytes, 15000 + 1 * 150 + 2, 1e-9);
    dp_schedule_free(schedule);
    bytes.parts = NULL;
    schedule = generate("dualpipe", 4, 8, 0);
    /* inner ranks have a channel from each side, of each direction */
    ck_assert_int_eq(dp_schedule_memory(schedule, &bytes, held), DP_OK);
    ck_assert_double_eq_tol(held[0].bytes, 20000 + 100 * held[0].activations + 4, 1e-9);
    ck_assert_double_eq_tol(held[1].bytes, 20000 + 100 * held[1].activations + 8, 1e-9);
    dp_schedule_free(schedule);
    bytes = (dp_memory_bytes_t){.struct_size = sizeof(bytes), .deferred = 7};
    schedule = generate("zb1p", 2, 4, 0);
    ck_assert_int_eq(dp_schedule_memory(schedule, &bytes, held), DP_OK);
    for (int r = 0; r < 2; r++)
        ck_assert_double_eq_tol(held[r].bytes, 7 * held[r].deferred, 1e-9);
    ck_assert_double_ge(held[0].deferred, 1.0);
    ck_assert_int_eq(dp_schedule_memory(schedule, NULL, held), DP_OK);
    ck_assert_double_eq(held[0].bytes, 0.0);
    ck_assert_int_eq(dp_schedule_memory(schedule, &bytes, NULL), DP_ERR_INVALID);
    bytes.slots = DP_SLOTS_NEEDED;
    ck_assert_int_eq(dp_schedule_memory(schedule, &bytes, held), DP_ERR_INVALID);
    bytes.slots = 2;
    bytes.deferred = -1;
    ck_assert_int_eq(dp_schedule_memory(schedule, &bytes, held), DP_ERR_INVALID);
    bytes.deferred = NAN;
    ck_assert_int_eq(dp_schedule_memory(schedule, &bytes, held), DP_ERR_INVALID);
    bytes.struct_size = 8;
    ck_assert_int_eq(dp_schedule_memory(schedule, &bytes, held), DP_ERR_INVALID);
    dp_schedule_free(schedule);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("memory");

    SUITE_ADD(suite, micro_batches_are_those_of_the_simulator);
    SUITE_ADD(suite, bytes_are_those_by_hand);
    return suite_run(suite);
}
