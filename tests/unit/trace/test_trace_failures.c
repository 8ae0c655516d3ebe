/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_trace_failures.c: reading a trace, and figures and costs of it, where memory runs out, where
 * the caller's functions fail, and where calls make no sense. */
#include <stdio.h>
#include <stdlib.h>

#include <dualpipe/simulate.h>
#include <dualpipe/trace.h>

#include "tests/support/oom.h"
#include "tests/support/suite.h"
#include "tests/support/trace_text.h"

/* A layer's forward and backward as a profiler of CUDA has them: annotations of the host, launches
 * in them, kernels. */
static char profile[16384];

static void write_profile(void)
{
    static const char *const segments[] = {"attn(F)", "dispatch(F)", "mlp(F)",      "combine(F)", "combine(B)",
                                           "mlp(B)",  "mlp(W)",      "dispatch(B)", "attn(B)",    "attn(W)"};
    size_t n = sizeof(segments) / sizeof(segments[0]), at;

    at = (size_t)snprintf(profile, sizeof(profile),
                          "{\"deviceProperties\":[{\"id\":0,\"numSms\":132}],\"traceEvents\":["
                          "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":0,\"args\":{\"name\":\"python\"}},"
                          "{\"ph\":\"M\",\"name\":\"process_labels\",\"pid\":0,\"args\":{\"labels\":\"GPU 0\"}}");
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(
            profile + at, sizeof(profile) - at,
            ",{\"ph\":\"X\",\"cat\":\"user_annotation\",\"name\":\"%s\",\"pid\":1,\"tid\":1,\"ts\":%zu,\"dur\":90},"
            "{\"ph\":\"X\",\"cat\":\"cuda_runtime\",\"name\":\"cudaLaunchKernel\",\"pid\":1,\"tid\":1,\"ts\":%zu,"
            "\"dur\":5,\"args\":{\"correlation\":%zu}},"
            "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"%s\",\"pid\":0,\"tid\":%zu,\"ts\":%zu,\"dur\":50,"
            "\"args\":{\"device\":0,\"stream\":%zu,\"correlation\":%zu,\"grid\":[8,4,1]}}",
            segments[i], 100 * i, 100 * i + 1, i + 1,
            segments[i][0] == 'd' || segments[i][0] == 'c' ? "ncclDevKernel_SendRecv" : "gemm", 7 + i % 2, 100 * i + 20,
            7 + i % 2, i + 1);
    snprintf(profile + at, sizeof(profile) - at, "]}");
}

/* A trace of ours. */
static char *ours;
static size_t ours_bytes;

static dp_status_t keep(void *user, const char *text, size_t bytes)
{
    (void)user;
    ours = realloc(ours, ours_bytes + bytes + 1);
    memcpy(ours + ours_bytes, text, bytes);
    ours_bytes += bytes;
    ours[ours_bytes] = '\0';
    return DP_OK;
}

static void write_ours(void)
{
    const dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = "dualpipe", .ranks = 2, .microbatches = 4};
    const dp_costs_t costs = {.struct_size = sizeof(costs), .f = 1, .i = 1, .w = 1, .hop = 0.1};
    dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
    dp_schedule_t *schedule;
    dp_program_t *program;

    ck_assert_int_eq(dp_schedule_generate(&request, &schedule), DP_OK);
    ck_assert_int_eq(dp_program_lower(schedule, NULL, &program), DP_OK);
    ck_assert_int_eq(dp_simulate(program, &costs, 1, &simulation), DP_OK);
    ck_assert_int_eq(dp_timeline_write_chrome(simulation.timeline, keep, NULL), DP_OK);
    dp_simulation_clear(&simulation);
    dp_program_free(program);
    dp_schedule_free(schedule);
}

/* ---- all that one does with a trace ---- */

static long writes_left; /* until one fails; negative: none */

static dp_status_t count_writes(void *user, const char *text, size_t bytes)
{
    (void)user, (void)text, (void)bytes;
    return writes_left >= 0 && writes_left-- == 0 ? DP_ERR_IO : DP_OK;
}

static dp_status_t use(const char *text)
{
    const dp_trace_options_t options = {.struct_size = sizeof(options), .communication = "^my_comm"};
    const dp_trace_costs_t costs = {.struct_size = sizeof(costs), .title = "a test"};
    dp_trace_overlap_t overlap = {.struct_size = sizeof(overlap)};
    dp_trace_about_t about = {.struct_size = sizeof(about)};
    trace_text_t from = trace_text_of(text);
    dp_trace_t *trace;
    dp_status_t status = dp_trace_read(trace_text_read, &from, &options, &trace);

    ck_assert((status < 0) == (trace == NULL));
    if (status >= 0) {
        ck_assert_int_eq(dp_trace_about(trace, &about), DP_OK);
        ck_assert_int_ge(about.devices, 1);
    }
    for (int32_t row = 0; row < about.devices && status >= 0; row++)
        status = dp_trace_overlap(trace, row, &overlap);
    if (status >= 0)
        status = dp_trace_costs_write(trace, &costs, count_writes, NULL);
    dp_trace_free(trace);
    return status;
}

static const char *text_of(int i)
{
    return i % 2 == 0 ? profile : ours;
}

static void setup(void)
{
    write_profile();
    write_ours();
    writes_left = -1;
}

START_TEST(memory_runs_out)
{
    long k = 0;

    ck_assert_msg(use(text_of(_i)) == DP_OK, "%s", dp_last_error());
    oom_install();
    for (;; k++) {
        dp_status_t status;
        bool struck;

        oom_arm(k, _i >= 2);
        status = use(text_of(_i));
        struck = oom_struck();
        oom_disarm();
        ck_assert_int_eq(oom_live(), 0);
        ck_assert_msg(status == (struck ? DP_ERR_NOMEM : DP_OK), "call %ld: %s", k, dp_last_error());
        if (!struck)
            break;
    }
    oom_uninstall();
    ck_assert_int_gt(k, 10);
}
END_TEST

START_TEST(a_writer_that_fails_ends_it)
{
    long k = 0;

    for (;; k++) {
        dp_status_t status;

        writes_left = k;
        status = use(text_of(_i));
        if (writes_left >= 0)
            break;
        ck_assert_int_eq(status, DP_ERR_IO);
    }
    ck_assert_int_gt(k, 0);
}
END_TEST

static dp_status_t cannot_read(void *user, void *buffer, size_t room, size_t *bytes_out)
{
    (void)user, (void)buffer, (void)room, (void)bytes_out;
    return DP_ERR_IO;
}

START_TEST(senseless_calls_are_refused)
{
    dp_trace_options_t options = {.struct_size = 4};
    dp_trace_about_t about = {.struct_size = sizeof(about)};
    dp_trace_overlap_t overlap = {.struct_size = sizeof(overlap)};
    trace_text_t from = trace_text_of(profile);
    dp_trace_costs_t costs = {.struct_size = 4};
    dp_trace_t *trace;

    ck_assert_int_eq(dp_trace_read(NULL, &from, NULL, &trace), DP_ERR_INVALID);
    ck_assert_int_eq(dp_trace_read(trace_text_read, &from, NULL, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(dp_trace_read(trace_text_read, &from, &options, &trace), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "struct_size is 4"));
    options.struct_size = sizeof(options);
    options.communication = "(";
    ck_assert_int_lt(dp_trace_read(trace_text_read, &from, &options, &trace), 0);
    ck_assert_int_eq(dp_trace_read(cannot_read, NULL, NULL, &trace), DP_ERR_IO);
    ck_assert_ptr_null(trace);
    options.communication = NULL;
    options.most_bytes = 512;
    ck_assert_int_eq(dp_trace_read(trace_text_read, &from, &options, &trace), DP_ERR_OVERFLOW);
    from = trace_text_of(profile);
    ck_assert_int_eq(dp_trace_read(trace_text_read, &from, NULL, &trace), DP_OK);
    ck_assert_int_eq(dp_trace_about(NULL, &about), DP_ERR_INVALID);
    ck_assert_int_eq(dp_trace_about(trace, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(dp_trace_overlap(trace, -1, &overlap), DP_ERR_INVALID);
    ck_assert_int_eq(dp_trace_overlap(trace, 1, &overlap), DP_ERR_INVALID);
    ck_assert_int_eq(dp_trace_overlap(NULL, 0, &overlap), DP_ERR_INVALID);
    overlap.struct_size = 4;
    ck_assert_int_eq(dp_trace_overlap(trace, 0, &overlap), DP_ERR_INVALID);
    ck_assert_int_eq(dp_trace_costs_write(trace, &costs, count_writes, NULL), DP_ERR_INVALID);
    costs.struct_size = sizeof(costs);
    ck_assert_int_eq(dp_trace_costs_write(NULL, &costs, count_writes, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(dp_trace_costs_write(trace, &costs, NULL, NULL), DP_ERR_INVALID);
    dp_trace_free(trace);
    dp_trace_free(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trace/failures");
    TCase *all = tcase_create("failures");

    tcase_add_unchecked_fixture(all, setup, NULL);
    tcase_add_loop_test(all, memory_runs_out, 0, 4);
    tcase_add_loop_test(all, a_writer_that_fails_ends_it, 0, 2);
    tcase_add_test(all, senseless_calls_are_refused);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
