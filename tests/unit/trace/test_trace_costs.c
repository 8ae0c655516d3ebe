/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_trace_costs.c: which annotations are segments, and costs of small traces worked out by
 * hand. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/suite.h"
#include "tests/support/trace_text.h"
#include "trace/actions.h"
#include "trace/segment.h"

START_TEST(annotations_are_known_by_name)
{
    static const struct {
        const char *name, *key; /* key NULL: none */
    } cases[] = {{"attn(F)", "attention.F"},
                 {"attn(B)", "attention.I"},
                 {"attn(W)", "attention.W"},
                 {"Attention.forward", "attention.F"},
                 {"self_attn bwd", "attention.I"},
                 {"mlp(W)", "mlp.W"},
                 {"moe_dgrad", "mlp.I"},
                 {"experts:wgrad", "mlp.W"},
                 {"FFN-FWD", "mlp.F"},
                 {"dispatch(B)", "dispatch.I"},
                 {"combine_bwd", "combine.I"},
                 {"combine F", "combine.F"},
                 {"dispatch [weight]", "dispatch.W"},
                 {"attn", NULL},
                 {"attn()", NULL},
                 {"attn(F) extra", NULL},
                 {"attnF", NULL},
                 {"dispatcher(F)", NULL},
                 {"my attn(F)", NULL},
                 {"F", NULL},
                 {"", NULL}};
    dp__trace_rule_t rule;

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        int wanted = cases[k].key != NULL ? dp__trace_key_of(cases[k].key, strlen(cases[k].key)) : -1;

        ck_assert(cases[k].key == NULL || wanted >= 0);
        ck_assert_msg(dp__trace_segment_of(cases[k].name, NULL, 0) == wanted, "%s", cases[k].name);
    }
    ck_assert_int_eq(dp__trace_rule("mlp.W=^my |attn.F", &rule), DP_OK);
    ck_assert_int_eq(rule.key, dp__trace_key_of("mlp.W", 5));
    ck_assert_int_eq(dp__trace_segment_of("my attn(F)", &rule, 1), rule.key);
    ck_assert_int_eq(dp__trace_segment_of("attn(F)", &rule, 1), rule.key);
    ck_assert_int_eq(dp__trace_segment_of("attn(B)", &rule, 1), dp__trace_key_of("attention.I", 11));
    regfree(&rule.regex);
}
END_TEST

/* ---- traces by hand: times in microseconds ---- */

typedef struct script {
    char text[32768];
    size_t used;
    int launches;
} script_t;

static void add(script_t *script, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(script_t *script, const char *fmt, ...)
{
    va_list list;

    va_start(list, fmt);
    script->used += (size_t)vsnprintf(script->text + script->used, sizeof(script->text) - script->used, fmt, list);
    va_end(list);
    ck_assert_uint_lt(script->used, sizeof(script->text));
}

static void annotate(script_t *script, const char *name, int start, int end)
{
    add(script,
        "%s{\"ph\":\"X\",\"cat\":\"user_annotation\",\"name\":\"%s\",\"pid\":1,\"tid\":1,\"ts\":%d,\"dur\":%"
        "d}",
        script->used > 0 ? "," : "[", name, start, end - start);
}

/* A kernel, launched by the host at a moment. */
static void launch(script_t *script, int at, int stream, int start, int end)
{
    script->launches++;
    add(script,
        ",{\"ph\":\"X\",\"cat\":\"cuda_runtime\",\"name\":\"l\",\"pid\":1,\"tid\":1,\"ts\":%d,\"dur\":0,"
        "\"args\":"
        "{\"correlation\":%d}},{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"%s\",\"pid\":0,\"tid\":%d,\"ts\":%"
        "d,\"dur\":%d,"
        "\"args\":{\"correlation\":%d}}",
        at, script->launches, stream == 7 ? "gemm" : "nccl", stream, start, end - start, script->launches);
}

static dp_status_t write_text(void *to, const char *text, size_t bytes)
{
    ck_assert_uint_eq(fwrite(text, 1, bytes, to), bytes);
    return DP_OK;
}

/* The costs of what was written; to be given to free(). */
static char *costs_of(script_t *script, int32_t layers, dp_status_t wanted)
{
    const dp_trace_costs_t costs = {.struct_size = sizeof(costs), .layers = layers, .title = "by hand"};
    const dp_trace_options_t options = {.struct_size = sizeof(options), .annotations = 1};
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    trace_text_t from;
    dp_trace_t *trace;

    add(script, "]");
    from = trace_text_of(script->text);
    ck_assert_msg(dp_trace_read(trace_text_read, &from, &options, &trace) == DP_OK, "%s", dp_last_error());
    ck_assert_int_eq(dp_trace_costs_write(trace, &costs, write_text, to), wanted);
    fclose(to);
    dp_trace_free(trace);
    return text;
}

static void expect_value(const char *text, const char *key, double wanted)
{
    char line[64];
    const char *at;
    double got;

    snprintf(line, sizeof(line), "\n%s=", key);
    at = strstr(text, line);
    ck_assert_msg(at != NULL, "no %s in %s", key, text);
    got = strtod(at + strlen(line), NULL);
    ck_assert_msg(got > wanted - 1e-9 && got < wanted + 1e-9, "%s is %g, not %g", key, got, wanted);
}

static void expect_none(const char *text, const char *key)
{
    char line[64];

    snprintf(line, sizeof(line), "\n%s=", key);
    ck_assert_msg(strstr(text, line) == NULL, "%s is there: %s", key, text);
}

/* Two layers in one annotation, forward and backward in turn. */
static void write_pair(script_t *script)
{
    annotate(script, "pair", 0, 1000);
    for (int layer = 0; layer < 2; layer++) {
        int at = 100 * layer, gpu = 2000 + 10000 * layer;

        annotate(script, "attn(F)", at + 0, at + 9);
        annotate(script, "mlp(B)", at + 10, at + 19);
        annotate(script, "dispatch(F)", at + 20, at + 29);
        annotate(script, "mlp(W)", at + 30, at + 39);
        launch(script, at + 5, 7, gpu, gpu + 3000);
        launch(script, at + 15, 7, gpu + 3000, gpu + 5000);
        launch(script, at + 25, 8, gpu + 3000, gpu + 4000);
        /* beside the one before: counted once */
        launch(script, at + 26, 8, gpu + 3500, gpu + 4500);
        launch(script, at + 35, 9, gpu + 4000, gpu + 7000); /* beside mlp(B) for 1000 */
    }
}

START_TEST(a_pair_by_hand)
{
    script_t script = {.used = 0};
    char *text;

    write_pair(&script);
    text = costs_of(&script, 0, DP_OK);
    expect_value(text, "LAYERS", 2);
    expect_value(text, "attention.F", 3.0);
    expect_value(text, "mlp.I", 1.5); /* 1000 alone, half of the next 1000 */
    expect_value(text, "mlp.W", 2.5);
    expect_value(text, "dispatch.F", 1.5);
    expect_value(text, "FB", 17.0);
    expect_none(text, "combine.F");
    expect_none(text, "F");
    free(text);
}
END_TEST

START_TEST(a_chunk_may_have_fewer_layers)
{
    script_t script = {.used = 0};
    char *text;

    write_pair(&script);
    text = costs_of(&script, 1, DP_OK);
    expect_value(text, "LAYERS", 1);
    expect_value(text, "attention.F", 3.0);
    expect_value(text, "FB", 8.5);
    free(text);
}
END_TEST

START_TEST(chunks_apart_are_no_pair)
{
    script_t script = {.used = 0};
    char *text;

    annotate(&script, "forward", 0, 100);
    annotate(&script, "backward", 100, 200);
    annotate(&script, "attn(F)", 10, 20);
    annotate(&script, "mlp(F)", 20, 30);
    annotate(&script, "mlp(B)", 110, 120);
    annotate(&script, "attn(B)", 120, 130);
    launch(&script, 15, 7, 1000, 2000);
    launch(&script, 25, 7, 2500, 4000);
    launch(&script, 115, 7, 5000, 7000);
    launch(&script, 125, 7, 7000, 8000);
    text = costs_of(&script, 0, DP_OK);
    expect_value(text, "LAYERS", 1);
    expect_value(text, "F", 3.0);
    expect_value(text, "B", 3.0);
    expect_value(text, "mlp.I", 2.0);
    expect_none(text, "FB");
    free(text);
}
END_TEST

START_TEST(a_step_around_both_is_no_pair)
{
    script_t script = {.used = 0};
    char *text;

    annotate(&script, "step", 0, 200);
    annotate(&script, "attn(F)", 10, 20);
    annotate(&script, "attn(B)", 120, 130);
    launch(&script, 15, 7, 1000, 2000);
    launch(&script, 125, 7, 7000, 8000);
    text = costs_of(&script, 0, DP_OK);
    expect_value(text, "attention.F", 1.0);
    expect_none(text, "FB");
    expect_none(text, "F");
    free(text);
}
END_TEST

START_TEST(annotations_inside_a_segment_belong_to_it)
{
    script_t script = {.used = 0};
    char *text;

    annotate(&script, "attn(F)", 10, 20);
    annotate(&script, "softmax", 12, 18);
    launch(&script, 15, 7, 1000, 2000);
    text = costs_of(&script, 0, DP_OK);
    expect_value(text, "attention.F", 1.0);
    free(text);
}
END_TEST

START_TEST(without_a_forward_there_are_none)
{
    script_t script = {.used = 0};

    annotate(&script, "attn(B)", 10, 20);
    launch(&script, 15, 7, 1000, 2000);
    free(costs_of(&script, 0, DP_ERR_REJECTED));
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "--annotation"));
}
END_TEST

START_TEST(annotations_of_the_caller_come_first)
{
    static const char *const annotations[] = {"mlp.F=^my block", "attention.F=soft.*x"};
    static const char *const wrong[] = {"mlp.F", "mlp.B=x", "nonsense.F=x", "mlp.F=(", "mlp=x", ""};
    const char *many[DP_TRACE_ANNOTATIONS + 1];
    dp_trace_costs_t costs = {.struct_size = sizeof(costs), .annotations = annotations, .annotation_count = 2};
    script_t script = {.used = 0};
    trace_text_t from;
    dp_trace_t *trace;
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);

    annotate(&script, "my block 3", 10, 20);
    annotate(&script, "softmax", 30, 40);
    launch(&script, 15, 7, 1000, 2000);
    launch(&script, 35, 7, 2000, 5000);
    add(&script, "]");
    from = trace_text_of(script.text);
    ck_assert_int_eq(dp_trace_read(trace_text_read, &from, NULL, &trace), DP_OK);
    ck_assert_int_eq(dp_trace_costs_write(trace, NULL, write_text, to), DP_ERR_REJECTED);
    ck_assert_int_eq(dp_trace_costs_write(trace, &costs, write_text, to), DP_OK);
    fclose(to);
    expect_value(text, "mlp.F", 1.0);
    expect_value(text, "attention.F", 3.0);
    free(text);
    costs.annotation_count = 1;
    for (size_t k = 0; k < sizeof(wrong) / sizeof(wrong[0]); k++) {
        costs.annotations = &wrong[k];
        ck_assert_msg(dp_trace_costs_write(trace, &costs, write_text, NULL) == DP_ERR_INVALID, "%s", wrong[k]);
    }
    for (size_t k = 0; k < DP_TRACE_ANNOTATIONS + 1; k++)
        many[k] = annotations[0];
    costs.annotations = many;
    costs.annotation_count = DP_TRACE_ANNOTATIONS + 1;
    ck_assert_int_eq(dp_trace_costs_write(trace, &costs, write_text, NULL), DP_ERR_INVALID);
    dp_trace_free(trace);
}
END_TEST

static dp_status_t full_disk(void *user, const char *text, size_t bytes)
{
    (void)user, (void)text, (void)bytes;
    return dp_fail(DP_ERR_IO, "no space left");
}

static dp_status_t broken_pipe(void *user, void *buffer, size_t room, size_t *bytes_out)
{
    (void)user, (void)buffer, (void)room;
    *bytes_out = 0;
    return dp_fail(DP_ERR_IO, "broken pipe");
}

START_TEST(failures_of_the_caller_are_returned)
{
    const dp_trace_options_t small = {.struct_size = 4};
    dp_trace_about_t about = {.struct_size = sizeof(about)};
    dp_trace_overlap_t overlap = {.struct_size = sizeof(overlap)};
    script_t script = {.used = 0};
    dp_trace_t *trace = (dp_trace_t *)&script;
    trace_text_t from;

    ck_assert_int_eq(dp_trace_read(broken_pipe, NULL, NULL, &trace), DP_ERR_IO);
    ck_assert_ptr_null(trace);
    ck_assert_int_eq(dp_trace_read(broken_pipe, NULL, &small, &trace), DP_ERR_INVALID);
    ck_assert_int_eq(dp_trace_read(NULL, NULL, NULL, &trace), DP_ERR_INVALID);
    annotate(&script, "attn(F)", 10, 20);
    launch(&script, 15, 7, 1000, 2000);
    from = trace_text_of(script.text); /* not closed */
    ck_assert_int_eq(dp_trace_read(trace_text_read, &from, NULL, &trace), DP_OK);
    ck_assert_int_eq(dp_trace_costs_write(trace, NULL, full_disk, NULL), DP_ERR_IO);
    ck_assert_int_eq(dp_trace_about(trace, &about), DP_OK);
    ck_assert_int_eq(about.cut_off, 1);
    ck_assert_int_eq(about.devices, 1);
    ck_assert_int_eq(about.records, 1);
    ck_assert_uint_eq(about.events, 3);
    ck_assert_int_eq(about.sms, -1);
    about.struct_size = 8;
    ck_assert_int_eq(dp_trace_about(trace, &about), DP_ERR_INVALID);
    ck_assert_int_eq(dp_trace_overlap(trace, 1, &overlap), DP_ERR_INVALID);
    ck_assert_int_eq(dp_trace_overlap(trace, -1, &overlap), DP_ERR_INVALID);
    dp_trace_free(trace);
    dp_trace_free(NULL);
}
END_TEST

START_TEST(operations_of_torch_are_known_by_name)
{
    static const struct {
        const char *name;
        int kind, stage;
    } cases[] = {{"PP:0F3", DP_OP_F, 0},
                 {"PP:12I0", DP_OP_I, 12},
                 {"PP:3W11", DP_OP_W, 3},
                 {"PP:2B5", DP_OP_B, 2},
                 {"PP:(0F7;7B3)OVERLAP_F_B", DP_OP_FB, 0},
                 {"PP:(0B7;7F3)OVERLAP_F_B", -1, 0},
                 {"PP:(0F7;7B3)", -1, 0},
                 {"PP:(0F7", -1, 0},
                 {"PP:1SEND_F0", -1, 0},
                 {"PP:1RECV_B0", -1, 0},
                 {"PP:0UNSHARD", -1, 0},
                 {"PP:0F", -1, 0},
                 {"PP:0F3x", -1, 0},
                 {"PP:99999999999F1", -1, 0},
                 {"PP:F3", -1, 0},
                 {"PP:", -1, 0},
                 {"0F3", -1, 0},
                 {"", -1, 0}};

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        int32_t stage = -1;

        ck_assert_msg(dp__trace_action_of(cases[k].name, &stage) == cases[k].kind, "%s", cases[k].name);
        if (cases[k].kind >= 0)
            ck_assert_int_eq(stage, cases[k].stage);
    }
}
END_TEST

/* A V of one rank, host only: stages 0 and 1. The first F waited; the median does not. */
START_TEST(operations_on_the_host_alone)
{
    script_t script = {.used = 0};
    char *text;

    annotate(&script, "PP:0F0", 0, 9000);
    annotate(&script, "PP:0F1", 10000, 12000);
    annotate(&script, "PP:0F2", 12000, 14000);
    annotate(&script, "PP:1F0", 14000, 18000);
    annotate(&script, "PP:1SEND_F0", 18000, 19000);
    annotate(&script, "PP:1I0", 20000, 23000);
    annotate(&script, "PP:1W0", 23000, 24000);
    annotate(&script, "PP:0I0", 24000, 25000);
    annotate(&script, "PP:0W0", 25000, 26000);
    text = costs_of(&script, 0, DP_OK);
    expect_value(text, "F", 6.0); /* (2 + 4) / 2, two chunks */
    expect_value(text, "I", 4.0);
    expect_value(text, "W", 2.0);
    expect_none(text, "B");
    expect_none(text, "FB");
    ck_assert_msg(strstr(text, "alone: STAGE_SCALE=0.6667,1.333\n") != NULL, "%s", text);
    free(text);
}
END_TEST

START_TEST(operations_on_the_device_go_first)
{
    script_t script = {.used = 0};
    char *text;

    annotate(&script, "PP:0F0", 0, 100);
    annotate(&script, "PP:(0F1;0B0)OVERLAP_F_B", 100, 200);
    add(&script, ",{\"ph\":\"X\",\"cat\":\"gpu_user_annotation\",\"name\":\"PP:0F0\",\"pid\":0,\"tid\":7,\"ts\":0,"
                 "\"dur\":3000}");
    add(&script, ",{\"ph\":\"X\",\"cat\":\"gpu_user_annotation\",\"name\":\"PP:(0F1;0B0)OVERLAP_F_B\",\"pid\":0,"
                 "\"tid\":7,\"ts\":3000,\"dur\":7000}");
    add(&script, ",{\"ph\":\"X\",\"cat\":\"gpu_user_annotation\",\"name\":\"PP:0B1\",\"pid\":0,\"tid\":7,\"ts\":10000,"
                 "\"dur\":5000}");
    launch(&script, 50, 7, 0, 3000);
    text = costs_of(&script, 0, DP_OK);
    expect_value(text, "F", 3.0);
    expect_value(text, "B", 5.0);
    expect_value(text, "I", 2.5);
    expect_value(text, "FB", 7.0);
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trace_costs");

    SUITE_ADD(suite, annotations_are_known_by_name);
    SUITE_ADD(suite, a_pair_by_hand);
    SUITE_ADD(suite, a_chunk_may_have_fewer_layers);
    SUITE_ADD(suite, chunks_apart_are_no_pair);
    SUITE_ADD(suite, a_step_around_both_is_no_pair);
    SUITE_ADD(suite, annotations_inside_a_segment_belong_to_it);
    SUITE_ADD(suite, without_a_forward_there_are_none);
    SUITE_ADD(suite, annotations_of_the_caller_come_first);
    SUITE_ADD(suite, failures_of_the_caller_are_returned);
    SUITE_ADD(suite, operations_of_torch_are_known_by_name);
    SUITE_ADD(suite, operations_on_the_host_alone);
    SUITE_ADD(suite, operations_on_the_device_go_first);
    return suite_run(suite);
}
