/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_model.c: dp_layouts_find() by hand: what it refuses, its smallest and its failing cases.
 * tests/integration/check_plan.sh has the published models. */
#include <dualpipe/model.h>
#include <math.h>
#include <string.h>

#include "tests/support/oom.h"
#include "tests/support/suite.h"

/* Llama 3 8B, in numbers. */
static const dp_model_t llama = {.struct_size = sizeof(llama),
                                 .gated = 1,
                                 .type = "llama",
                                 .hidden = 4096,
                                 .layers = 32,
                                 .vocab = 128256,
                                 .heads = 32,
                                 .kv_heads = 8,
                                 .head_dim = 128,
                                 .ffn = 14336};

static dp_gpu_t gpu_of(const char *name)
{
    dp_gpu_t gpu = {.struct_size = sizeof(gpu)};

    ck_assert_int_eq(dp_gpu_find(name, &gpu), DP_OK);
    return gpu;
}

static void refuses(const dp_layout_request_t *request, const char *words)
{
    dp_layouts_t *layouts = NULL;

    ck_assert_int_eq(dp_layouts_find(request, &layouts), DP_ERR_INVALID);
    ck_assert_msg(strstr(dp_last_error(), words) != NULL, "%s: %s", words, dp_last_error());
    ck_assert_ptr_null(layouts);
}

START_TEST(parameters_are_the_published_ones)
{
    double all = 0, active = 0;
    dp_model_t bad = llama;

    ck_assert_int_eq(dp_model_parameters(&llama, &all, &active), DP_OK);
    ck_assert(all == 8030261248.0 && active == all);
    bad.heads = 0;
    ck_assert_int_eq(dp_model_parameters(&bad, &all, NULL), DP_ERR_INVALID);
    bad = llama;
    bad.experts = 8;
    ck_assert_int_eq(dp_model_parameters(&bad, &all, NULL), DP_ERR_INVALID);
    bad.top_k = 9;
    bad.expert_ffn = 1;
    ck_assert_int_eq(dp_model_parameters(&bad, &all, NULL), DP_ERR_INVALID);
    bad = llama;
    bad.layers = 1 << 20;
    ck_assert_int_eq(dp_model_parameters(&bad, &all, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(dp_model_parameters(NULL, &all, NULL), DP_ERR_INVALID);
}
END_TEST

START_TEST(rows_are_in_order)
{
    const dp_gpu_t gpu = gpu_of("h100");
    const dp_layout_request_t request = {
        .struct_size = sizeof(request), .model = &llama, .gpu = &gpu, .gpus = 16, .batch = 64, .pp = 4};
    dp_layouts_about_t about = {.struct_size = sizeof(about)};
    dp_layout_t row = {.struct_size = sizeof(row)};
    dp_segment_costs_t segments = {.struct_size = sizeof(segments)};
    dp_layouts_t *layouts;
    double last = 0;

    ck_assert_msg(dp_layouts_find(&request, &layouts) == DP_OK, "%s", dp_last_error());
    ck_assert_int_eq(dp_layouts_about(layouts, &about), DP_OK);
    ck_assert_int_gt(about.timed, 5);
    for (int32_t i = 0; i < about.count; i++) {
        ck_assert_int_eq(dp_layouts_row(layouts, i, &row), DP_OK);
        ck_assert_int_eq(row.pp * row.dp, 16);
        ck_assert(i >= about.timed || (row.fits && row.timed && row.step_time >= last));
        ck_assert(i < about.timed || !row.fits || row.step_time == 0);
        last = row.step_time;
    }
    ck_assert_int_eq(dp_layouts_segments(layouts, 0, &segments), DP_OK);
    ck_assert(segments.f[0] > 0 && segments.f[1] == 0 && segments.f[2] > 0 && segments.f[3] == 0);
    ck_assert_int_eq(dp_layouts_row(layouts, about.count, &row), DP_ERR_INVALID);
    ck_assert_int_eq(dp_layouts_row(layouts, -1, &row), DP_ERR_INVALID);
    ck_assert_int_eq(dp_layouts_segments(layouts, about.count, &segments), DP_ERR_INVALID);
    row.struct_size = 8;
    ck_assert_int_eq(dp_layouts_row(layouts, 0, &row), DP_ERR_INVALID);
    dp_layouts_free(layouts);
}
END_TEST

/* Each rank's bytes, of which the row has the fullest; the step that the row has, without sums. */
START_TEST(ranks_and_the_step_are_those_of_the_row)
{
    const dp_gpu_t gpu = gpu_of("h200");
    static const char *const methods[] = {"1f1b", "dualpipe", "zbv", "interleaved", "gpipe", "looped_bfs"};

    for (size_t k = 0; k < sizeof(methods) / sizeof(methods[0]); k++) {
        /* as many micro-batches as are simulated anyway */
        const dp_layout_request_t request = {.struct_size = sizeof(request),
                                             .model = &llama,
                                             .gpu = &gpu,
                                             .gpus = 4,
                                             .batch = 24,
                                             .pp = 4,
                                             .method = methods[k]};
        dp_layout_t row = {.struct_size = sizeof(row)}, one = row;
        dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
        dp_schedule_t *schedule = NULL;
        dp_layouts_t *layouts;
        double most = 0;

        ck_assert_msg(dp_layouts_find(&request, &layouts) == DP_OK, "%s", dp_last_error());
        ck_assert_int_eq(dp_layouts_row(layouts, 0, &row), DP_OK);
        ck_assert_msg(row.timed, "%s does not fit", methods[k]);
        for (int32_t rank = 0; rank < 4; rank++) {
            ck_assert_int_eq(dp_layouts_rank(layouts, 0, rank, &one), DP_OK);
            ck_assert(one.step_time == row.step_time && one.total <= row.total && one.weights > 0);
            ck_assert(fabs(one.total - one.weights - one.gradients - one.optimizer - one.activations - one.logits -
                           one.transfers - gpu.reserve) < 1);
            most = fmax(most, one.total);
        }
        ck_assert(most == row.total);
        ck_assert_int_eq(dp_layouts_simulate(layouts, 0, 0, &schedule, &simulation), DP_OK);
        ck_assert(schedule->ranks == 4 && schedule->microbatches == 24 && simulation.timeline != NULL);
        ck_assert(fabs(simulation.step_time / 1e3 - (row.step_time - row.reduce_time)) < 1e-9 * row.step_time);
        dp_simulation_clear(&simulation);
        dp_schedule_free(schedule);
        simulation = (dp_simulation_t){.struct_size = sizeof(simulation)};
        ck_assert_int_eq(dp_layouts_simulate(layouts, 0, 8, &schedule, &simulation), DP_OK);
        ck_assert(schedule->microbatches == 8 && simulation.step_time / 1e3 < row.step_time);
        dp_simulation_clear(&simulation);
        dp_schedule_free(schedule);
        ck_assert_int_eq(dp_layouts_rank(layouts, 0, 4, &one), DP_ERR_INVALID);
        ck_assert_int_eq(dp_layouts_rank(layouts, 0, -1, &one), DP_ERR_INVALID);
        ck_assert_int_eq(dp_layouts_rank(layouts, 99, 0, &one), DP_ERR_INVALID);
        ck_assert_int_eq(dp_layouts_simulate(layouts, 99, 0, &schedule, &simulation), DP_ERR_INVALID);
        ck_assert_ptr_null(schedule);
        ck_assert_int_eq(dp_layouts_simulate(layouts, 0, 0, NULL, &simulation), DP_ERR_INVALID);
        dp_layouts_free(layouts);
    }
}
END_TEST

START_TEST(nothing_fits_is_no_error)
{
    const dp_gpu_t gpu = gpu_of("a100");
    dp_layout_request_t request = {
        .struct_size = sizeof(request), .model = &llama, .gpu = &gpu, .gpus = 7, .batch = 5, .pp = 1};
    dp_layouts_about_t about = {.struct_size = sizeof(about)};
    dp_layouts_t *layouts;

    ck_assert_int_eq(dp_layouts_find(&request, &layouts), DP_OK);
    ck_assert_int_eq(dp_layouts_about(layouts, &about), DP_OK);
    ck_assert(about.count == 0 && about.tried == 1 && about.uneven == 1);
    dp_layouts_free(layouts);
    request.gpus = 1;
    ck_assert_int_eq(dp_layouts_find(&request, &layouts), DP_OK);
    ck_assert_int_eq(dp_layouts_about(layouts, &about), DP_OK);
    ck_assert(about.count == 1 && about.timed == 0 && strncmp(about.advice, "No layout fits", 14) == 0);
    dp_layouts_free(layouts);
    dp_layouts_free(NULL);
}
END_TEST

START_TEST(what_makes_no_sense_is_refused)
{
    const dp_gpu_t gpu = gpu_of("h100");
    dp_gpu_t other = gpu;
    dp_segment_costs_t measured = {.struct_size = sizeof(measured), .f = {1, NAN, 1, 1}};
    const dp_layout_request_t good = {
        .struct_size = sizeof(good), .model = &llama, .gpu = &gpu, .gpus = 8, .batch = 64};
    dp_layout_request_t bad[8] = {good, good, good, good, good, good, good, good};
    static const char *const says[8] = {
        "0 GPUs",         "micro-batches of -1", "pp is at most", "recompute is 5", "no built-in schedule",
        "shares above 0", "times of one layer",  "struct_size"};

    bad[0].gpus = 0;
    bad[1].micro_batch = -1;
    bad[2].pp = 65;
    bad[3].recompute = 5;
    bad[4].method = "fastest";
    other.links = 1.5;
    bad[5].gpu = &other;
    bad[6].measured = &measured;
    bad[7].struct_size = 8;
    for (size_t i = 0; i < 8; i++)
        refuses(&bad[i], says[i]);
    other.struct_size = 8;
    ck_assert_int_eq(dp_gpu_find("h100", &other), DP_ERR_INVALID);
    ck_assert_int_eq(dp_layouts_find(&good, NULL), DP_ERR_INVALID);
}
END_TEST

static dp_status_t find(void *gpu)
{
    const dp_layout_request_t request = {
        .struct_size = sizeof(request), .model = &llama, .gpu = gpu, .gpus = 2, .batch = 4, .pp = 2, .method = "zbv"};
    dp_layout_t one = {.struct_size = sizeof(one)};
    dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
    dp_schedule_t *schedule = NULL;
    dp_layouts_t *layouts = NULL;
    dp_status_t status = dp_layouts_find(&request, &layouts);

    if (status >= 0)
        status = dp_layouts_rank(layouts, 0, 1, &one);
    if (status >= 0)
        status = dp_layouts_simulate(layouts, 0, 0, &schedule, &simulation);
    if (status >= 0)
        dp_simulation_clear(&simulation);
    dp_schedule_free(schedule);
    dp_layouts_free(layouts);
    return status;
}

START_TEST(memory_may_end_anywhere)
{
    static const char config[] = "{\"model_type\": \"llama\", \"hidden_size\": 8}";
    dp_gpu_t gpu = gpu_of("b200");
    dp_model_t model = {.struct_size = sizeof(model)};

    oom_install();
    for (long k = 0;; k++) {
        bool failed;
        dp_status_t status;

        oom_arm(k, false);
        status = find(&gpu);
        failed = oom_struck();
        oom_disarm();
        ck_assert_int_eq(status, failed ? DP_ERR_NOMEM : DP_OK);
        ck_assert_int_eq(oom_live(), 0);
        if (!failed)
            break;
    }
    oom_uninstall();
    ck_assert_int_eq(dp_model_read("c", config, sizeof(config) - 1, &model), DP_ERR_INVALID);
    ck_assert_msg(strstr(dp_last_error(), "c: the key num_hidden_layers is missing") != NULL, "%s", dp_last_error());
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("model");

    SUITE_ADD(suite, parameters_are_the_published_ones);
    SUITE_ADD(suite, rows_are_in_order);
    SUITE_ADD(suite, ranks_and_the_step_are_those_of_the_row);
    SUITE_ADD(suite, nothing_fits_is_no_error);
    SUITE_ADD(suite, what_makes_no_sense_is_refused);
    SUITE_ADD(suite, memory_may_end_anywhere);
    return suite_run(suite);
}
