/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_timeline_chrome.c: the Chrome trace is JSON of the structure that viewers ask for, whatever
 * the spans and names. */
#include "config.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/suite.h"
#include <dualpipe/timeline.h>

#ifndef HAVE_JANSSON
int main(void)
{
    puts("built without jansson, which reads the JSON");
    return 77;
}
#else
#include <jansson.h>

static uint64_t state = 7;

static int64_t below(int64_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((state >> 33) % (uint64_t)n);
}

typedef struct text {
    char *bytes;
    size_t used;
    int64_t blocks, fail_at; /* fail_at < 0: never */
} text_t;

static dp_status_t keep(void *user, const char *bytes, size_t n)
{
    text_t *text = user;

    ck_assert_uint_le(n, 16384);
    if (text->blocks++ == text->fail_at)
        return dp_fail(DP_ERR_IO, "the disk is full");
    text->bytes = realloc(text->bytes, text->used + n);
    ck_assert_ptr_nonnull(text->bytes);
    memcpy(text->bytes + text->used, bytes, n);
    text->used += n;
    return DP_OK;
}

static json_t *trace_of(const dp_timeline_t *timeline)
{
    text_t text = {NULL, 0, 0, -1};
    json_error_t error;
    json_t *root;

    ck_assert_int_eq(dp_timeline_write_chrome(timeline, keep, &text), DP_OK);
    root = json_loadb(text.bytes, text.used, JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(root != NULL, "line %d: %s", error.line, error.text);
    free(text.bytes);
    return root;
}

/* ck_assert notes every pass in a file, too slow for what is asked a million times. */
#define DEMAND(condition, ...)                                                                                         \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            ck_abort_msg(__VA_ARGS__);                                                                                 \
    } while (0)

/* A member that has to be there. */
static json_t *member(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);

    DEMAND(value != NULL, "an event has no \"%s\"", key);
    return value;
}

static const char *string(json_t *object, const char *key)
{
    DEMAND(json_is_string(member(object, key)), "\"%s\" is no string", key);
    return json_string_value(member(object, key));
}

static int64_t integer(json_t *object, const char *key)
{
    DEMAND(json_is_integer(member(object, key)), "\"%s\" is no integer", key);
    return json_integer_value(member(object, key));
}

/* Microseconds back to nanoseconds, exactly. */
static int64_t nanoseconds(json_t *object, const char *key)
{
    DEMAND(json_is_real(member(object, key)), "\"%s\" is no number", key);
    return llround(json_real_value(member(object, key)) * 1000.0);
}

static bool is_phase(json_t *event, const char *phase)
{
    return strcmp(string(event, "ph"), phase) == 0;
}

static int named(json_t *events, const char *what, int64_t pid, int64_t tid)
{
    int n = 0;
    size_t i;
    json_t *event;

    json_array_foreach(events, i, event) n += is_phase(event, "M") && strcmp(string(event, "name"), what) == 0 &&
                                              integer(event, "pid") == pid && (tid < 0 || integer(event, "tid") == tid);
    return n;
}

static int slices_at(json_t *events, int64_t pid, int64_t tid, int64_t ns)
{
    int n = 0;
    size_t i;
    json_t *event;

    json_array_foreach(events, i, event)
    {
        int64_t start, end;

        if (!is_phase(event, "X") || integer(event, "pid") != pid || integer(event, "tid") != tid)
            continue;
        start = nanoseconds(event, "ts");
        end = start + nanoseconds(event, "dur");
        n += start <= ns && (ns < end || (ns == start && start == end));
    }
    return n;
}

static int ends_of(json_t *events, const char *phase, const char *id)
{
    int n = 0;
    size_t i;
    json_t *event;

    json_array_foreach(events, i, event) n += is_phase(event, phase) && strcmp(string(event, "id"), id) == 0;
    return n;
}

static void check_slice(json_t *events, json_t *event)
{
    int64_t pid = integer(event, "pid"), tid = integer(event, "tid");
    static const char *const args[] = {"step", "mb", "chunk", "stage", "segment", "pair"};

    ck_assert_int_ge(nanoseconds(event, "ts"), 0);
    ck_assert_int_ge(nanoseconds(event, "dur"), 0);
    ck_assert_uint_gt(strlen(string(event, "name")), 0);
    for (size_t a = 0; a < sizeof(args) / sizeof(args[0]); a++)
        (void)integer(member(event, "args"), args[a]);
    ck_assert_int_eq(named(events, "process_name", pid, -1), 1);
    ck_assert_int_eq(named(events, "process_sort_index", pid, -1), 1);
    ck_assert_int_eq(named(events, "thread_name", pid, tid), 1);
    ck_assert_int_eq(named(events, "thread_sort_index", pid, tid), 1);
}

static void check_arrow_end(json_t *events, json_t *event)
{
    const char *id = string(event, "id");

    ck_assert_int_eq(ends_of(events, "s", id), 1);
    ck_assert_int_eq(ends_of(events, "f", id), 1);
    ck_assert_int_ge(slices_at(events, integer(event, "pid"), integer(event, "tid"), nanoseconds(event, "ts")), 1);
    if (is_phase(event, "f"))
        ck_assert_str_eq(string(event, "bp"), "e");
}

/* Spans of a thread follow each other; they are written in order of start. */
static void check_no_overlap(json_t *events)
{
    int64_t pid = -1, tid = -1, until = 0;
    size_t i;
    json_t *event;

    json_array_foreach(events, i, event)
    {
        if (!is_phase(event, "X"))
            continue;
        if (integer(event, "pid") != pid || integer(event, "tid") != tid) {
            size_t j;
            json_t *other;

            pid = integer(event, "pid");
            tid = integer(event, "tid");
            until = 0;
            json_array_foreach(events, j, other)
            {
                if (!is_phase(other, "X") || integer(other, "pid") != pid || integer(other, "tid") != tid)
                    continue;
                DEMAND(nanoseconds(other, "ts") >= until, "two spans of a thread overlap");
                until = nanoseconds(other, "ts") + nanoseconds(other, "dur");
            }
        }
    }
}

typedef struct counts {
    int64_t slices, arrows;
} counts_t;

static counts_t check_trace(const dp_timeline_t *timeline)
{
    json_t *root = trace_of(timeline), *events = member(root, "traceEvents"), *event;
    counts_t counts = {0, 0};
    size_t i;

    ck_assert(json_is_array(events));
    json_array_foreach(events, i, event)
    {
        ck_assert_int_ge(integer(event, "pid"), 0);
        ck_assert_int_lt(integer(event, "pid"), dp_timeline_ranks(timeline));
        if (is_phase(event, "X")) {
            check_slice(events, event);
            counts.slices++;
        } else if (is_phase(event, "s") || is_phase(event, "f")) {
            check_arrow_end(events, event);
            counts.arrows += is_phase(event, "s");
        } else {
            ck_assert_msg(is_phase(event, "M"), "unknown event \"%s\"", string(event, "ph"));
        }
    }
    check_no_overlap(events);
    json_decref(root);
    return counts;
}

static dp_timeline_t *timeline_of(int32_t ranks, int64_t spans)
{
    dp_timeline_t *timeline = NULL;

    ck_assert_int_eq(dp_timeline_create(ranks, spans, &timeline), DP_OK);
    return timeline;
}

START_TEST(any_spans_give_a_sound_trace)
{
    for (int round = 0; round < 12; round++) {
        dp_timeline_t *timeline = timeline_of(3, 40);
        int64_t slices = 0;

        for (int i = 0; i < 100; i++) {
            int64_t start = below(300);
            dp_span_t span = {.start_ns = start,
                              .end_ns = start + below(4) * below(30),
                              .flow = (uint64_t)below(40),
                              .step = (int32_t)below(3),
                              .microbatch = (int32_t)below(4) - 1,
                              .chunk = (int16_t)below(2),
                              .kind = (uint8_t)below(DP_SPAN_STEP + 1),
                              .lane = (uint8_t)below(DP_LANE_COUNT),
                              .pass = (uint8_t)below(DP_OP_FB + 1)};

            slices += dp_timeline_add(timeline, (int32_t)below(3), &span) == DP_OK;
        }
        ck_assert_int_eq(check_trace(timeline).slices, slices);
        dp_timeline_free(timeline);
    }
}
END_TEST

static void add_end(dp_timeline_t *timeline, int32_t rank, dp_span_kind_t kind, uint64_t flow)
{
    dp_span_t span = {.start_ns = (int64_t)(flow % 100) * 10,
                      .end_ns = (int64_t)(flow % 100) * 10 + 5,
                      .flow = flow,
                      .kind = (uint8_t)kind,
                      .lane = DP_LANE_P2P};

    ck_assert_int_eq(dp_timeline_add(timeline, rank, &span), DP_OK);
}

START_TEST(times_count_from_the_first_span)
{
    dp_timeline_t *timeline = timeline_of(2, 1);
    const dp_span_t first = {.start_ns = INT64_C(9000000000000007), .end_ns = INT64_C(9000000000000107), .busy_ns = 60};
    const dp_span_t second = {.start_ns = INT64_C(9000000000001007), .end_ns = INT64_C(9000000000001008)};
    json_t *root, *event;
    size_t i;
    int found = 0;

    ck_assert_int_eq(dp_timeline_add(timeline, 1, &first), DP_OK);
    ck_assert_int_eq(dp_timeline_add(timeline, 0, &second), DP_OK);
    root = trace_of(timeline);
    ck_assert_int_eq(integer(root, "baseTimeNanoseconds"), first.start_ns);
    json_array_foreach(member(root, "traceEvents"), i, event)
    {
        if (!is_phase(event, "X"))
            continue;
        ck_assert_int_eq(nanoseconds(event, "ts"), integer(event, "pid") == 1 ? 0 : 1000);
        if (integer(event, "pid") == 1)
            ck_assert_int_eq(integer(member(event, "args"), "busy_ns"), 60);
        else
            ck_assert_ptr_null(json_object_get(member(event, "args"), "busy_ns"));
        found++;
    }
    ck_assert_int_eq(found, 2);
    json_decref(root);
    dp_timeline_free(timeline);
}
END_TEST

START_TEST(only_whole_messages_get_an_arrow)
{
    dp_timeline_t *timeline = timeline_of(2, 16);

    /* two large numbers that a double takes for one */
    add_end(timeline, 0, DP_SPAN_SEND, UINT64_MAX);
    add_end(timeline, 1, DP_SPAN_RECV, UINT64_MAX);
    add_end(timeline, 0, DP_SPAN_SEND, UINT64_MAX - 1);
    add_end(timeline, 1, DP_SPAN_RECV, UINT64_MAX - 1);
    add_end(timeline, 0, DP_SPAN_SEND, 3); /* its receive was lost */
    add_end(timeline, 1, DP_SPAN_RECV, 4); /* its send was lost */
    add_end(timeline, 0, DP_SPAN_SEND, 5); /* twice */
    add_end(timeline, 0, DP_SPAN_SEND, 5);
    add_end(timeline, 1, DP_SPAN_RECV, 5);
    add_end(timeline, 0, DP_SPAN_SEND, 6);
    add_end(timeline, 0, DP_SPAN_SEND, 6);
    add_end(timeline, 0, DP_SPAN_SEND, 0); /* no message */
    add_end(timeline, 1, DP_SPAN_RECV, 0);
    add_end(timeline, 0, DP_SPAN_COMPUTE, 7); /* not the end of a message */
    add_end(timeline, 1, DP_SPAN_COMPUTE, 7);
    ck_assert_int_eq(check_trace(timeline).arrows, 2);
    dp_timeline_free(timeline);
}
END_TEST

START_TEST(any_name_is_a_string)
{
    static const char *const names[][2] = {
        {"plain", "plain"},
        {"\"}]},\\", "\"}]},\\"},
        {"\x01\n\t\x1f\x7f", "\x01\n\t\x1f\x7f"},
        {"K\xc3\xb6ln \xe2\x82\xac \xf0\x9f\x98\x80", "K\xc3\xb6ln \xe2\x82\xac \xf0\x9f\x98\x80"},
        /* no start, cut short; overlong; a surrogate; past the last character; cut short */
        {"\xff\xc3", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe2\x82", "\xef\xbf\xbd\xef\xbf\xbd"},
    };
    enum { NAMES = sizeof(names) / sizeof(names[0]) };
    dp_timeline_t *timeline = timeline_of(1, NAMES);
    json_t *root, *event;
    size_t i, found = 0;

    for (i = 0; i < NAMES; i++) {
        dp_span_t span = {.start_ns = (int64_t)i, .end_ns = (int64_t)i + 1, .microbatch = -1};

        ck_assert_int_eq(dp_timeline_name(timeline, names[i][0], &span.name), DP_OK);
        ck_assert_int_eq(dp_timeline_add(timeline, 0, &span), DP_OK);
    }
    (void)check_trace(timeline);
    root = trace_of(timeline);
    json_array_foreach(member(root, "traceEvents"), i, event)
    {
        char wanted[64];

        if (!is_phase(event, "X"))
            continue;
        snprintf(wanted, sizeof(wanted), "%s F", names[found++][1]);
        ck_assert_str_eq(string(event, "name"), wanted);
    }
    ck_assert_uint_eq(found, NAMES);
    json_decref(root);
    dp_timeline_free(timeline);
}
END_TEST

START_TEST(no_span_is_a_trace_too)
{
    dp_timeline_t *timeline = timeline_of(2, 0);

    ck_assert_int_eq(check_trace(timeline).slices, 0);
    dp_timeline_free(timeline);
}
END_TEST

START_TEST(a_failing_write_ends_it)
{
    dp_timeline_t *timeline = timeline_of(1, 1000);
    text_t text = {NULL, 0, 0, 2};

    for (int i = 0; i < 1000; i++) {
        dp_span_t span = {.start_ns = i, .end_ns = i + 1};

        ck_assert_int_eq(dp_timeline_add(timeline, 0, &span), DP_OK);
    }
    ck_assert_int_eq(dp_timeline_write_chrome(timeline, keep, &text), DP_ERR_IO);
    ck_assert_int_eq(text.blocks, 3);
    ck_assert_str_eq(dp_last_error(), "the disk is full");
    ck_assert_int_eq(dp_timeline_write_chrome(timeline, NULL, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(dp_timeline_write_chrome(NULL, keep, &text), DP_ERR_INVALID);
    free(text.bytes);
    dp_timeline_free(timeline);
}
END_TEST

START_TEST(more_at_once_than_threads_stays_json)
{
    dp_timeline_t *timeline = timeline_of(1, 600);
    json_t *root;

    for (int i = 0; i < 600; i++) {
        dp_span_t span = {.start_ns = i, .end_ns = 10000, .kind = DP_SPAN_SEND, .lane = DP_LANE_P2P};

        ck_assert_int_eq(dp_timeline_add(timeline, 0, &span), DP_OK);
    }
    root = trace_of(timeline);
    ck_assert_uint_eq(json_array_size(member(root, "traceEvents")), 2 + 2 * 256 + 600);
    json_decref(root);
    dp_timeline_free(timeline);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("timeline_chrome");

    SUITE_ADD(suite, any_spans_give_a_sound_trace);
    SUITE_ADD(suite, times_count_from_the_first_span);
    SUITE_ADD(suite, only_whole_messages_get_an_arrow);
    SUITE_ADD(suite, any_name_is_a_string);
    SUITE_ADD(suite, no_span_is_a_trace_too);
    SUITE_ADD(suite, a_failing_write_ends_it);
    SUITE_ADD(suite, more_at_once_than_threads_stays_json);
    return suite_run(suite);
}
#endif
