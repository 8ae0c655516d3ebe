/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_trace_timeline.c: a trace that the library wrote tells the costs of its run, and which
 * schedule. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <dualpipe/simulate.h>
#include <dualpipe/trace.h>

#include "tests/support/oom.h"
#include "tests/support/suite.h"
#include "tests/support/trace_text.h"
#include "trace/timeline.h"

enum { RANKS = 4, MICROBATCHES = 16 };

static const dp_costs_t costs = {.struct_size = sizeof(costs), .f = 3, .i = 4, .w = 2, .fb = 8, .hop = 0.25};

/* ---- a run, and its trace as text ---- */

typedef struct text {
    char *at;
    size_t bytes, room;
} text_t;

static dp_status_t write_text(void *user, const char *text, size_t bytes)
{
    text_t *to = user;

    if (to->bytes + bytes + 1 > to->room) {
        to->room = 2 * (to->bytes + bytes + 1);
        to->at = realloc(to->at, to->room);
    }
    memcpy(to->at + to->bytes, text, bytes);
    to->bytes += bytes;
    to->at[to->bytes] = '\0';
    return DP_OK;
}

typedef struct run {
    dp_schedule_t *schedule;
    dp_program_t *program;
    dp_simulation_t simulation;
    text_t text;
} run_t;

static run_t run_of(const char *method)
{
    const dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = method, .ranks = RANKS, .microbatches = MICROBATCHES};
    run_t run = {.simulation = {.struct_size = sizeof(run.simulation)}};

    ck_assert_msg(dp_schedule_generate(&request, &run.schedule) == DP_OK, "%s", dp_last_error());
    ck_assert_int_eq(dp_program_lower(run.schedule, NULL, &run.program), DP_OK);
    ck_assert_msg(dp_simulate(run.program, &costs, 1, &run.simulation) == DP_OK, "%s", dp_last_error());
    ck_assert_int_eq(dp_timeline_write_chrome(run.simulation.timeline, write_text, &run.text), DP_OK);
    return run;
}

static void run_free(run_t *run)
{
    dp_simulation_clear(&run->simulation);
    dp_program_free(run->program);
    dp_schedule_free(run->schedule);
    free(run->text.at);
}

static dp_status_t read_trace(const char *text, dp_trace_t **trace_out)
{
    trace_text_t from = trace_text_of(text);

    return dp_trace_read(trace_text_read, &from, NULL, trace_out);
}

/* ---- what has to come back ---- */

static void same(double wanted, double got, const char *what, const char *method)
{
    ck_assert_msg(fabs(wanted - got) < 1e-6, "%s: %s is %g, the run had %g", method, what, got, wanted);
}

START_TEST(a_trace_has_the_costs_of_its_run)
{
    static const char *const methods[] = {"gpipe", "1f1b",   "interleaved", "zb1p",
                                          "zbv",   "v-half", "dualpipe",    "dualpipev"};
    const char *method = methods[_i];
    dp_measured_costs_t wanted = {.struct_size = sizeof(wanted)}, got = {.struct_size = sizeof(got)};
    run_t run = run_of(method);
    dp_trace_t *trace;
    dp_timeline_t *timeline;
    dp_schedule_t *schedule;

    ck_assert_msg(read_trace(run.text.at, &trace) == DP_OK, "%s", dp_last_error());
    ck_assert_msg(dp__trace_to_timeline(trace, &timeline, &schedule) == DP_OK, "%s", dp_last_error());
    ck_assert_int_eq(dp_timeline_ranks(timeline), RANKS);
    ck_assert_int_eq(schedule->ranks, RANKS);
    ck_assert_int_eq(schedule->chunks, run.schedule->chunks);
    ck_assert_int_eq(dp__trace_is_bidirectional(trace), run.schedule->placement == DP_PLACE_BIDIRECTIONAL);
    ck_assert_int_eq(dp_costs_measure(run.simulation.timeline, run.schedule, &wanted), DP_OK);
    ck_assert_msg(dp_costs_measure(timeline, schedule, &got) == DP_OK, "%s", dp_last_error());
    ck_assert_int_eq(got.stages, wanted.stages);
    same(wanted.costs->f, got.costs->f, "F", method);
    same(wanted.costs->i, got.costs->i, "I", method);
    same(wanted.costs->w, got.costs->w, "W", method);
    same(wanted.costs->b, got.costs->b, "B", method);
    same(wanted.costs->fb, got.costs->fb, "F&B", method);
    same(wanted.costs->hop, got.costs->hop, "hop", method);
    for (int32_t r = 0; r < RANKS; r++) { /* nothing is lost, and nothing told twice */
        int64_t before, after;

        (void)dp_timeline_spans(run.simulation.timeline, r, &before);
        (void)dp_timeline_spans(timeline, r, &after);
        ck_assert_int_le(after, before); /* but waits, which a trace does not count */
        ck_assert_int_gt(2 * after, before);
    }
    dp_measured_costs_clear(&wanted);
    dp_measured_costs_clear(&got);
    dp_timeline_free(timeline);
    dp_schedule_free(schedule);
    dp_trace_free(trace);
    run_free(&run);
}
END_TEST

START_TEST(memory_runs_out)
{
    run_t run = run_of("dualpipe"); /* it has pairs, and backwards for the input alone */
    dp_trace_t *trace;

    ck_assert_int_eq(read_trace(run.text.at, &trace), DP_OK);
    oom_install();
    for (long k = 0;; k++) {
        dp_timeline_t *timeline;
        dp_schedule_t *schedule;
        dp_status_t status;
        bool struck;

        oom_arm(k, _i);
        status = dp__trace_to_timeline(trace, &timeline, &schedule);
        struck = oom_struck();
        oom_disarm();
        ck_assert_int_eq(status, struck ? DP_ERR_NOMEM : DP_OK);
        dp_timeline_free(timeline);
        dp_schedule_free(schedule);
        ck_assert_int_eq(oom_live(), 0);
        if (!struck)
            break;
    }
    oom_arm(0, false);
    ck_assert(!dp__trace_is_bidirectional(trace));
    oom_disarm();
    oom_uninstall();
    dp_trace_free(trace);
    run_free(&run);
}
END_TEST

/* A span of ours that says what it cannot be is left out; where none is left there is no
 * schedule. */
START_TEST(spans_out_of_bounds_are_left_out)
{
    static const char *const args[] = {
        "\"stage\":0,\"chunk\":0,\"mb\":0", /* as it may be */
        "\"stage\":-1,\"chunk\":0,\"mb\":0",    "\"stage\":0,\"chunk\":99,\"mb\":0",
        "\"stage\":99999,\"chunk\":0,\"mb\":0", "\"stage\":0,\"chunk\":-1,\"mb\":0",
        "\"stage\":0,\"chunk\":0,\"mb\":-1",    "\"stage\":0,\"chunk\":0,\"mb\":99999999",
    };
    char text[1024];
    dp_timeline_t *timeline;
    dp_schedule_t *schedule;
    dp_trace_t *trace;

    for (size_t i = 0; i < sizeof(args) / sizeof(args[0]); i++) {
        snprintf(text, sizeof(text),
                 "[{\"ph\":\"X\",\"name\":\"F 0\",\"cat\":\"compute\",\"pid\":0,\"tid\":0,\"ts\":1,\"dur\":2,"
                 "\"args\":{\"pass\":\"F\",\"step\":0,%s}}]",
                 args[i]);
        ck_assert_msg(read_trace(text, &trace) == DP_OK, "%s", dp_last_error());
        ck_assert_int_eq(dp__trace_to_timeline(trace, &timeline, &schedule), i == 0 ? DP_OK : DP_ERR_REJECTED);
        ck_assert((timeline != NULL) == (i == 0) && (schedule != NULL) == (i == 0));
        ck_assert(!dp__trace_is_bidirectional(trace));
        dp_timeline_free(timeline);
        dp_schedule_free(schedule);
        dp_trace_free(trace);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trace/timeline");
    TCase *loops = tcase_create("loops");

    tcase_add_loop_test(loops, a_trace_has_the_costs_of_its_run, 0, 8);
    tcase_add_loop_test(loops, memory_runs_out, 0, 2);
    suite_add_tcase(suite, loops);
    SUITE_ADD(suite, spans_out_of_bounds_are_left_out);
    return suite_run(suite);
}
