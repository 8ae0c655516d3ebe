/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_cli_json.c: what the dualpipe command prints as JSON is JSON, with what it promises to
 * hold. */
#include "config.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/suite.h"

#ifndef HAVE_JANSSON
int main(void)
{
    puts("built without jansson, which reads the JSON");
    return 77;
}
#else
#include <jansson.h>

/* Runs the command line and parses all it prints. */
static json_t *run(const char *arguments)
{
    char command[1024];
    json_error_t error;
    json_t *root;
    FILE *pipe;

    snprintf(command, sizeof(command), "'%s/dualpipe' %s", getenv("DP_TEST_BUILDDIR"), arguments);
    pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    root = json_loadf(pipe, JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(root != NULL, "%s: line %d: %s", command, error.line, error.text);
    ck_assert_int_eq(pclose(pipe), 0);
    return root;
}

static double number(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);

    ck_assert_msg(json_is_number(value), "no number \"%s\"", key);
    return json_number_value(value);
}

static void check_array(json_t *root, const char *key, double low, double high)
{
    json_t *array = json_object_get(root, key), *value;
    size_t i;

    ck_assert_msg(json_is_array(array) && json_array_size(array) == 8, "no array \"%s\" of 8", key);
    json_array_foreach(array, i, value)
    {
        ck_assert_msg(json_is_number(value) && json_number_value(value) >= low - 1e-9 &&
                          json_number_value(value) <= high + 1e-9,
                      "%s[%zu] is out of bounds", key, i);
    }
}

START_TEST(a_simulation_holds_its_figures)
{
    json_t *root = run("simulate --method dualpipe --ranks 8 --microbatches 20 --cost F=1,HOP=0.5 --format json");

    ck_assert_double_gt(number(root, "step_time"), 66.0);
    ck_assert_double_eq_tol(number(root, "formula_bubble"), 6.0, 1e-9);
    check_array(root, "bubble", number(root, "step_time") - 60.0, number(root, "step_time") - 60.0);
    check_array(root, "busy", 60.0, 60.0);
    check_array(root, "peak_activations", 9.0, 9.0);
    check_array(root, "waiting", 0.5, number(root, "step_time") - 60.0);
    check_array(root, "exposed_communication", 0.5, number(root, "step_time") - 60.0);
    ck_assert_double_eq_tol(number(json_object_get(root, "costs"), "FB"), 3.0, 1e-9);
    json_decref(root);
    root = run("simulate --method 1f1b --ranks 2 --microbatches 3 --forward-only --format json");
    ck_assert(json_is_null(json_object_get(root, "formula_bubble")));
    json_decref(root);
}
END_TEST

START_TEST(a_schedule_holds_every_operation)
{
    json_t *root = run("schedule --method dualpipe --ranks 4 --microbatches 8 --format json"), *rank;
    json_t *order = json_object_get(root, "order");
    size_t r;

    ck_assert_uint_eq(json_array_size(order), 4);
    json_array_foreach(order, r, rank)
    {
        int forwards = 0, backwards = 0, deferred = 0;
        json_t *op;
        size_t i;

        ck_assert_uint_eq((size_t)number(rank, "rank"), r);
        json_array_foreach(json_object_get(rank, "ops"), i, op)
        {
            const char *kind = json_string_value(json_array_get(op, 0));

            ck_assert_uint_eq(json_array_size(op), strcmp(kind, "FB") == 0 ? 5 : 3);
            forwards += kind[0] == 'F';
            backwards += strcmp(kind, "B") == 0 || strcmp(kind, "FB") == 0 || strcmp(kind, "I") == 0;
            deferred += strcmp(kind, "I") == 0 ? 1 : strcmp(kind, "W") == 0 ? -1 : 0;
        }
        ck_assert_int_eq(forwards, 8);
        ck_assert_int_eq(backwards, 8);
        ck_assert_int_eq(deferred, 0);
    }
    json_decref(root);
}
END_TEST

START_TEST(a_trace_holds_every_operation_and_message)
{
    json_t *root = run("schedule --method 1f1b --ranks 3 --microbatches 5 --format trace"), *event;
    int slices = 0, sends = 0, ends = 0;
    size_t i;

    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        const char *phase = json_string_value(json_object_get(event, "ph"));

        slices += strcmp(phase, "X") == 0;
        sends += strcmp(phase, "s") == 0;
        ends += strcmp(phase, "f") == 0;
    }
    ck_assert_int_eq(sends, 2 * 2 * 5); /* activations down and gradients up over two edges */
    ck_assert_int_eq(ends, sends);
    ck_assert_int_eq(slices, 3 * 2 * 5 + 2 * sends + 3);
    json_decref(root);
}
END_TEST

START_TEST(a_comparison_is_in_order)
{
    json_t *root = run("compare --ranks 8 --microbatches 20 --memory-cap 8.5 --format json"), *entry;
    json_t *schedules = json_object_get(root, "schedules");
    double before = 0.0;
    int fitting = 0, refused = 0;
    size_t i;

    json_array_foreach(schedules, i, entry)
    {
        if (!json_is_true(json_object_get(entry, "fits"))) {
            ck_assert_ptr_nonnull(json_string_value(json_object_get(entry, "reason")));
            refused++;
            continue;
        }
        ck_assert_int_eq(refused, 0); /* those that fit come first */
        ck_assert_double_ge(number(entry, "step_time"), before);
        ck_assert_double_le(number(entry, "peak_activations"), 8.5);
        ck_assert_double_eq_tol(number(entry, "gain"), 81.0 / number(entry, "step_time") - 1.0, 1e-9);
        ck_assert_double_eq_tol(number(entry, "step_time") - number(entry, "bubble"), 60.0, 1e-9);
        before = number(entry, "step_time");
        fitting++;
    }
    ck_assert_int_ge(fitting, 2);
    ck_assert_int_ge(refused, 1);
    ck_assert_double_eq(number(json_object_get(root, "costs"), "FB"), 3.0);
    ck_assert_uint_ge(json_array_size(json_object_get(root, "reasons")), 1);
    json_decref(root);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cli_json");

    SUITE_ADD(suite, a_simulation_holds_its_figures);
    SUITE_ADD(suite, a_schedule_holds_every_operation);
    SUITE_ADD(suite, a_trace_holds_every_operation_and_message);
    SUITE_ADD(suite, a_comparison_is_in_order);
    return suite_run(suite);
}
#endif
