/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_partition.c: layers onto stages, against every cut there is. */
#include <math.h>
#include <string.h>

#include "tests/support/oom.h"
#include "tests/support/suite.h"
#include <dualpipe/simulate.h>

enum { LAYERS_MAX = 24, STAGES_MAX = 8 };

typedef struct model {
    dp_schedule_t *schedule;
    dp_program_t *program;
    dp_costs_t costs;
    double layer[LAYERS_MAX];
    int32_t layers;
} model_t;

static model_t make(const char *method, int32_t ranks, int32_t microbatches, int32_t layers)
{
    dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = method, .ranks = ranks, .microbatches = microbatches};
    model_t m = {.costs = {.struct_size = sizeof(m.costs), .f = 1, .i = 1, .w = 1, .hop = 0.05, .barrier = 1},
                 .layers = layers};

    ck_assert_msg(dp_schedule_generate(&request, &m.schedule) == DP_OK, "%s", dp_last_error());
    ck_assert_msg(dp_program_lower(m.schedule, NULL, &m.program) == DP_OK, "%s", dp_last_error());
    for (int32_t i = 0; i < layers; i++)
        m.layer[i] = 1;
    return m;
}

static void drop(model_t *m)
{
    dp_program_free(m->program);
    dp_schedule_free(m->schedule);
}

static dp_partition_request_t request_of(const model_t *m)
{
    return (dp_partition_request_t){.struct_size = sizeof(dp_partition_request_t),
                                    .layers = m->layers,
                                    .layer_costs = m->layer,
                                    .program = m->program,
                                    .costs = &m->costs};
}

static double step_of(const model_t *m, const int32_t *first)
{
    int32_t stages = dp_schedule_stages(m->schedule);
    dp_simulation_t result = {.struct_size = sizeof(result)};
    double scale[STAGES_MAX], all = 0;
    dp_costs_t costs = m->costs;

    for (int32_t i = 0; i < m->layers; i++)
        all += m->layer[i];
    for (int32_t s = 0; s < stages; s++) {
        scale[s] = 0;
        for (int32_t i = first[s]; i < first[s + 1]; i++)
            scale[s] += m->layer[i] * stages / all;
    }
    costs.stage_scale = scale;
    ck_assert_int_eq(dp_simulate(m->program, &costs, 0, &result), DP_OK);
    all = result.step_time;
    dp_simulation_clear(&result);
    return all;
}

/* The shortest step of all cuts. */
static double best_of_all(const model_t *m, int32_t *first, int32_t stage)
{
    int32_t stages = dp_schedule_stages(m->schedule);
    double best = INFINITY;

    if (stage == stages) {
        first[stages] = m->layers;
        return step_of(m, first);
    }
    for (int32_t at = first[stage - 1] + 1; at <= m->layers - (stages - stage); at++) {
        first[stage] = at;
        best = fmin(best, best_of_all(m, first, stage + 1));
    }
    return best;
}

static double find(const model_t *m, int32_t *first)
{
    dp_partition_request_t request = request_of(m);
    int32_t stages = dp_schedule_stages(m->schedule);
    double step = 0;

    ck_assert_msg(dp_partition(&request, first, &step) == DP_OK, "%s", dp_last_error());
    ck_assert_int_eq(first[0], 0);
    ck_assert_int_eq(first[stages], m->layers);
    for (int32_t s = 0; s < stages; s++)
        ck_assert_int_lt(first[s], first[s + 1]);
    ck_assert_double_eq_tol(step, step_of(m, first), 1e-9 * step);
    return step;
}

START_TEST(equal_layers_are_dealt_evenly)
{
    static const char *const methods[] = {"dualpipe", "1f1b", "zb1p", "dualpipev"};

    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        model_t m = make(methods[i], 4, 8, 16);
        int32_t first[STAGES_MAX + 1], stages = dp_schedule_stages(m.schedule);

        (void)find(&m, first);
        for (int32_t s = 0; s < stages; s++)
            ck_assert_int_eq(first[s + 1] - first[s], 16 / stages);
        drop(&m);
    }
}
END_TEST

START_TEST(a_dear_end_gets_fewer_layers)
{
    model_t m = make("dualpipe", 4, 12, 17);
    int32_t first[STAGES_MAX + 1];

    m.layer[16] = 3; /* head and loss */
    (void)find(&m, first);
    ck_assert_int_lt(first[4] - first[3], 4); /* the head and no more than two layers */
    ck_assert_int_ge(first[1] - first[0], 4);
    drop(&m);
}
END_TEST

START_TEST(one_layer_a_stage_leaves_no_choice)
{
    model_t m = make("1f1b", 4, 4, 4);
    int32_t first[STAGES_MAX + 1];

    m.layer[2] = 100;
    (void)find(&m, first);
    for (int32_t s = 0; s <= 4; s++)
        ck_assert_int_eq(first[s], s);
    drop(&m);
}
END_TEST

/* 4 methods x 30 models of layers between 0.2 and 3.2: the search ends at the best of all cuts, or
 * near. */
START_TEST(steps_are_near_the_best_of_all_cuts)
{
    static const char *const methods[] = {"dualpipe", "1f1b", "zb1p", "interleaved_overlap"};
    model_t m = make(methods[_i], _i == 3 ? 2 : 4, 8, 10);
    uint32_t random = 12345 + (uint32_t)_i;
    int equal = 0;

    for (int n = 0; n < 30; n++) {
        int32_t first[STAGES_MAX + 1] = {0}, all[STAGES_MAX + 1] = {0};
        double found, best;

        for (int32_t i = 0; i < m.layers; i++) {
            random = random * 1664525u + 1013904223u;
            m.layer[i] = 0.2 + 3.0 * (random >> 8) / (1 << 24);
        }
        found = find(&m, first);
        best = best_of_all(&m, all, 1);
        ck_assert_msg(found <= 1.03 * best, "%s, model %d: %g, the best is %g", methods[_i], n, found, best);
        equal += found <= best * (1 + 1e-9);
    }
    ck_assert_msg(equal >= 24, "%s: the best cut was found for %d of 30 models", methods[_i], equal);
    drop(&m);
}
END_TEST

START_TEST(mistakes_are_named)
{
    model_t m = make("dualpipe", 4, 8, 8);
    dp_partition_request_t request = request_of(&m);
    int32_t first[STAGES_MAX + 1];

    request.layers = 3;
    ck_assert_int_eq(dp_partition(&request, first, NULL), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "3 layers on 4 stages"));
    request = request_of(&m);
    m.layer[5] = 0;
    ck_assert_int_eq(dp_partition(&request, first, NULL), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "layer 5 costs 0"));
    m.layer[5] = NAN;
    ck_assert_int_eq(dp_partition(&request, first, NULL), DP_ERR_INVALID);
    m.layer[5] = 1;
    m.costs.f = -1;
    ck_assert_int_eq(dp_partition(&request, first, NULL), DP_ERR_INVALID);
    m.costs.f = 1;
    request.struct_size = 4;
    ck_assert_int_eq(dp_partition(&request, first, NULL), DP_ERR_INVALID);
    request = request_of(&m);
    request.costs = NULL;
    ck_assert_int_eq(dp_partition(&request, first, NULL), DP_ERR_INVALID);
    drop(&m);
}
END_TEST

START_TEST(memory_runs_out)
{
    model_t m = make("dualpipe", 2, 4, 5);
    dp_partition_request_t request = request_of(&m);
    int32_t first[STAGES_MAX + 1];
    bool struck = true;

    oom_install();
    for (long k = 0; struck; k++) {
        dp_status_t status;

        oom_arm(k, false);
        status = dp_partition(&request, first, NULL);
        struck = oom_struck();
        oom_disarm();
        ck_assert_int_eq(status, struck ? DP_ERR_NOMEM : DP_OK);
        ck_assert_int_eq(oom_live(), 0);
        ck_assert(struck || k > 5);
    }
    oom_uninstall();
    drop(&m);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simulate/partition");
    TCase *loop = tcase_create("loop");

    SUITE_ADD(suite, equal_layers_are_dealt_evenly);
    SUITE_ADD(suite, a_dear_end_gets_fewer_layers);
    SUITE_ADD(suite, one_layer_a_stage_leaves_no_choice);
    SUITE_ADD(suite, mistakes_are_named);
    SUITE_ADD(suite, memory_runs_out);
    tcase_add_loop_test(loop, steps_are_near_the_best_of_all_cuts, 0, 4);
    suite_add_tcase(suite, loop);
    return suite_run(suite);
}
