/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_timeline.c: rows, names, figures and packed rows. Figures are checked against counting tick
 * by tick. */
#include <stdio.h>
#include <string.h>

#include "tests/support/oom.h"
#include "tests/support/suite.h"
#include "timeline/pack.h"

static uint64_t state = 1;

static int64_t below(int64_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((state >> 33) % (uint64_t)n);
}

static dp_timeline_t *timeline_of(int32_t ranks, int64_t spans)
{
    dp_timeline_t *timeline = NULL;

    ck_assert_int_eq(dp_timeline_create(ranks, spans, &timeline), DP_OK);
    return timeline;
}

static dp_span_t span_of(dp_span_kind_t kind, dp_lane_t lane, int64_t start, int64_t end)
{
    dp_span_t span;

    memset(&span, 0, sizeof(span));
    span.kind = (uint8_t)kind;
    span.lane = (uint8_t)lane;
    span.start_ns = start;
    span.end_ns = end;
    span.microbatch = span.chunk = span.stage = span.segment = -1;
    return span;
}

static void add(dp_timeline_t *timeline, int32_t rank, dp_span_t span)
{
    ck_assert_int_eq(dp_timeline_add(timeline, rank, &span), DP_OK);
}

START_TEST(sizes_out_of_bounds_are_refused)
{
    dp_timeline_t *timeline = NULL;

    ck_assert_int_eq(dp_timeline_create(0, 1, &timeline), DP_ERR_INVALID);
    ck_assert_int_eq(dp_timeline_create(-1, 1, &timeline), DP_ERR_INVALID);
    ck_assert_int_eq(dp_timeline_create(DP_MAX_RANKS + 1, 1, &timeline), DP_ERR_INVALID);
    ck_assert_int_eq(dp_timeline_create(1, -1, &timeline), DP_ERR_INVALID);
    ck_assert_int_eq(dp_timeline_create(1, INT64_MAX, &timeline), DP_ERR_NOMEM);
    ck_assert_int_eq(dp_timeline_create(1, 1, NULL), DP_ERR_INVALID);
    ck_assert_ptr_null(timeline);
    timeline = timeline_of(DP_MAX_RANKS, 0);
    ck_assert_int_eq(dp_timeline_ranks(timeline), DP_MAX_RANKS);
    dp_timeline_free(timeline);
    dp_timeline_free(NULL);
}
END_TEST

START_TEST(rows_keep_what_was_added_in_order)
{
    dp_timeline_t *timeline = timeline_of(3, 5);
    const dp_span_t *spans;
    int64_t count;

    for (int i = 0; i < 5; i++)
        add(timeline, 1, span_of(DP_SPAN_COMPUTE, DP_LANE_COMPUTE, 10 - i, 20 + i));
    spans = dp_timeline_spans(timeline, 1, &count);
    ck_assert_int_eq(count, 5);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(spans[i].start_ns, 10 - i);
        ck_assert_int_eq(spans[i].end_ns, 20 + i);
    }
    (void)dp_timeline_spans(timeline, 0, &count);
    ck_assert_int_eq(count, 0);
    ck_assert_ptr_null(dp_timeline_spans(timeline, 3, &count));
    ck_assert_int_eq(count, 0);
    dp_timeline_free(timeline);
}
END_TEST

START_TEST(spans_past_the_room_are_counted)
{
    dp_timeline_t *timeline = timeline_of(2, 3);
    dp_span_t span = span_of(DP_SPAN_SEND, DP_LANE_P2P, 1, 2);
    int64_t count;

    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(dp_timeline_add(timeline, 0, &span), DP_OK);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(dp_timeline_add(timeline, 0, &span), DP_ERR_OVERFLOW);
    ck_assert_int_eq(dp_timeline_lost(timeline, 0), 4);
    ck_assert_int_eq(dp_timeline_lost(timeline, 1), 0);
    ck_assert_int_eq(dp_timeline_lost(timeline, 2), 0);
    dp_timeline_clear(timeline);
    ck_assert_int_eq(dp_timeline_lost(timeline, 0), 0);
    ck_assert_int_eq(dp_timeline_add(timeline, 0, &span), DP_OK);
    (void)dp_timeline_spans(timeline, 0, &count);
    ck_assert_int_eq(count, 1);
    dp_timeline_free(timeline);
}
END_TEST

START_TEST(recording_allocates_nothing)
{
    dp_timeline_t *timeline;
    dp_span_t span = span_of(DP_SPAN_COMPUTE, DP_LANE_COMPUTE, 0, 1);
    long calls;

    oom_install();
    timeline = timeline_of(2, 10);
    calls = oom_calls();
    for (int i = 0; i < 12; i++)
        (void)dp_timeline_add(timeline, i % 2, &span);
    ck_assert_int_eq(oom_calls(), calls);
    dp_timeline_free(timeline);
    ck_assert_int_eq(oom_live(), 0);
    oom_uninstall();
}
END_TEST

START_TEST(spans_out_of_bounds_are_refused)
{
    dp_timeline_t *timeline = timeline_of(2, 4);
    dp_span_t good = span_of(DP_SPAN_COMPUTE, DP_LANE_COMPUTE, 5, 5), bad[7];
    int64_t count;

    for (int i = 0; i < 7; i++)
        bad[i] = good;
    bad[0].end_ns = 4;
    bad[1].start_ns = -1;
    bad[2].start_ns = INT64_MIN;
    bad[2].end_ns = INT64_MAX;
    bad[3].kind = DP_SPAN_STEP + 1;
    bad[4].lane = DP_LANE_COUNT;
    bad[5].pass = DP_OP_FB + 1;
    bad[6].name = 1;
    for (int i = 0; i < 7; i++)
        ck_assert_msg(dp_timeline_add(timeline, 0, &bad[i]) == DP_ERR_INVALID, "bad span %d was taken", i);
    ck_assert_int_eq(dp_timeline_add(timeline, 0, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(dp_timeline_add(timeline, 2, &good), DP_ERR_INVALID);
    ck_assert_int_eq(dp_timeline_add(timeline, -1, &good), DP_ERR_INVALID);
    (void)dp_timeline_spans(timeline, 0, &count);
    ck_assert_int_eq(count, 0);
    ck_assert_int_eq(dp_timeline_lost(timeline, 0), 0);
    dp_timeline_free(timeline);
}
END_TEST

START_TEST(names_are_numbered_once)
{
    dp_timeline_t *timeline = timeline_of(1, 1);
    uint16_t first, second, number;
    char text[300];

    ck_assert_int_eq(dp_timeline_name(timeline, "attention", &first), DP_OK);
    ck_assert_int_eq(dp_timeline_name(timeline, "dispatch", &second), DP_OK);
    ck_assert_int_eq(dp_timeline_name(timeline, "attention", &number), DP_OK);
    ck_assert_uint_eq(number, first);
    ck_assert_uint_ne(first, second);
    ck_assert_uint_ne(first, 0);
    ck_assert_str_eq(dp_timeline_name_text(timeline, second), "dispatch");
    ck_assert_str_eq(dp_timeline_name_text(timeline, 0), "");
    ck_assert_str_eq(dp_timeline_name_text(timeline, 3), "");
    ck_assert_int_eq(dp_timeline_name(timeline, "", &number), DP_ERR_INVALID);
    memset(text, 'x', sizeof(text));
    text[256] = 0;
    ck_assert_int_eq(dp_timeline_name(timeline, text, &number), DP_ERR_INVALID);
    text[255] = 0;
    ck_assert_int_eq(dp_timeline_name(timeline, text, &number), DP_OK);
    for (int n = 3; n < 255; n++) {
        snprintf(text, sizeof(text), "segment %d", n);
        ck_assert_int_eq(dp_timeline_name(timeline, text, &number), DP_OK);
    }
    ck_assert_int_eq(dp_timeline_name(timeline, "one too many", &number), DP_ERR_OVERFLOW);
    ck_assert_int_eq(dp_timeline_name(timeline, "dispatch", &number), DP_OK);
    ck_assert_uint_eq(number, second);
    dp_timeline_free(timeline);
}
END_TEST

/* ---- figures ---- */

#define TICKS 200

/* What the header says, tick by tick. */
static dp_rank_report_t count_ticks(const dp_span_t *spans, int64_t n, int32_t step, int64_t start, int64_t end)
{
    dp_rank_report_t report = {.struct_size = sizeof(report), .window = end - start};

    for (int64_t t = start; t < end; t++) {
        int compute = 0, all_to_all = 0, comm = 0, wait = 0;

        for (int64_t i = 0; i < n; i++) {
            if (spans[i].start_ns > t || spans[i].end_ns <= t || (step >= 0 && spans[i].step != step))
                continue;
            compute |= spans[i].kind == DP_SPAN_COMPUTE && spans[i].lane == DP_LANE_COMPUTE;
            all_to_all |= spans[i].kind == DP_SPAN_COMPUTE && spans[i].lane == DP_LANE_ALL_TO_ALL;
            comm |= (spans[i].kind == DP_SPAN_COMPUTE && spans[i].lane != DP_LANE_COMPUTE) ||
                    spans[i].kind == DP_SPAN_SEND || spans[i].kind == DP_SPAN_REDUCE;
            wait |= spans[i].kind == DP_SPAN_RECV;
        }
        report.compute_busy += compute;
        report.comm_busy += comm;
        report.comm_hidden += comm && compute;
        report.bubble += !compute && !all_to_all;
        report.waiting += wait;
    }
    return report;
}

static void window_of(const dp_span_t *spans, int64_t n, int32_t step, int64_t *start, int64_t *end)
{
    int has_step = 0;

    *start = TICKS + 1;
    *end = -1;
    for (int64_t i = 0; i < n; i++)
        has_step |= spans[i].kind == DP_SPAN_STEP && (step < 0 || spans[i].step == step);
    for (int64_t i = 0; i < n; i++) {
        if ((step >= 0 && spans[i].step != step) || (has_step && spans[i].kind != DP_SPAN_STEP))
            continue;
        *start = spans[i].start_ns < *start ? spans[i].start_ns : *start;
        *end = spans[i].end_ns > *end ? spans[i].end_ns : *end;
    }
}

static void random_spans(dp_timeline_t *timeline, int32_t rank, int n)
{
    static const dp_span_kind_t kinds[] = {DP_SPAN_COMPUTE, DP_SPAN_COMPUTE, DP_SPAN_COMPUTE,
                                           DP_SPAN_SEND,    DP_SPAN_RECV,    DP_SPAN_REDUCE};
    bool steps = below(2);

    for (int i = 0; i < n; i++) {
        int64_t a = below(TICKS), b = below(TICKS), longest = 1 + below(40);
        dp_span_t span = span_of(kinds[below(6)], (dp_lane_t)below(DP_LANE_COUNT), a < b ? a : b, a < b ? b : a);

        if (span.end_ns - span.start_ns > longest)
            span.end_ns = span.start_ns + longest;
        span.step = (int32_t)below(3);
        if (steps && below(12) == 0)
            span.kind = DP_SPAN_STEP;
        add(timeline, rank, span);
    }
}

static void check_report(const dp_timeline_t *timeline, int32_t rank, int32_t step, int common)
{
    int64_t start = TICKS + 1, end = -1, n;
    const dp_span_t *spans = dp_timeline_spans(timeline, rank, &n);
    dp_rank_report_t wanted, got = {.struct_size = sizeof(got)};

    for (int32_t r = 0; r < dp_timeline_ranks(timeline); r++) {
        int64_t from, to, count;
        const dp_span_t *row = dp_timeline_spans(timeline, r, &count);

        window_of(row, count, step, &from, &to);
        if (!common && r != rank)
            continue;
        start = from < start ? from : start;
        end = to > end ? to : end;
    }
    if (end < 0) {
        ck_assert_int_eq(dp_timeline_report(timeline, rank, step, common, &got), DP_ERR_INVALID);
        return;
    }
    wanted = count_ticks(spans, n, step, start, end);
    ck_assert_int_eq(dp_timeline_report(timeline, rank, step, common, &got), DP_OK);
    ck_assert_int_eq(got.window, wanted.window);
    ck_assert_int_eq(got.compute_busy, wanted.compute_busy);
    ck_assert_int_eq(got.comm_busy, wanted.comm_busy);
    ck_assert_int_eq(got.comm_hidden, wanted.comm_hidden);
    ck_assert_int_eq(got.bubble, wanted.bubble);
    ck_assert_int_eq(got.waiting, wanted.waiting);
}

START_TEST(figures_equal_counting_ticks)
{
    for (int round = 0; round < 300; round++) {
        dp_timeline_t *timeline = timeline_of(3, 64);

        for (int32_t r = 0; r < 3; r++)
            random_spans(timeline, r, (int)below(r == 2 ? 3 : 64));
        for (int32_t r = 0; r < 3; r++)
            for (int32_t step = -1; step < 3; step++)
                for (int common = 0; common < 2; common++)
                    check_report(timeline, r, step, common);
        dp_timeline_free(timeline);
    }
}
END_TEST

START_TEST(a_hidden_transfer_and_a_bubble)
{
    dp_timeline_t *timeline = timeline_of(1, 8);
    dp_rank_report_t report = {.struct_size = sizeof(report)};

    add(timeline, 0, span_of(DP_SPAN_COMPUTE, DP_LANE_COMPUTE, 1000, 1040));
    add(timeline, 0, span_of(DP_SPAN_COMPUTE, DP_LANE_ALL_TO_ALL, 1030, 1060));
    add(timeline, 0, span_of(DP_SPAN_RECV, DP_LANE_P2P, 1060, 1075));
    add(timeline, 0, span_of(DP_SPAN_COMPUTE, DP_LANE_COMPUTE, 1075, 1100));
    ck_assert_int_eq(dp_timeline_report(timeline, 0, -1, 0, &report), DP_OK);
    ck_assert_int_eq(report.window, 100);
    ck_assert_int_eq(report.compute_busy, 65);
    ck_assert_int_eq(report.comm_busy, 30);
    ck_assert_int_eq(report.comm_hidden, 10);
    ck_assert_int_eq(report.bubble, 15);
    ck_assert_int_eq(report.waiting, 15);
    ck_assert_int_eq(dp_timeline_report(timeline, 0, 5, 0, &report), DP_ERR_INVALID);
    ck_assert_int_eq(dp_timeline_report(timeline, 1, -1, 0, &report), DP_ERR_INVALID);
    ck_assert_int_eq(dp_timeline_report(timeline, 0, -1, 0, NULL), DP_ERR_INVALID);
    dp_timeline_free(timeline);
}
END_TEST

START_TEST(times_at_the_end_of_the_clock)
{
    dp_timeline_t *timeline = timeline_of(1, 2);
    dp_rank_report_t report = {.struct_size = sizeof(report)};

    add(timeline, 0, span_of(DP_SPAN_COMPUTE, DP_LANE_COMPUTE, 0, INT64_MAX));
    add(timeline, 0, span_of(DP_SPAN_SEND, DP_LANE_P2P, INT64_MAX - 1, INT64_MAX));
    ck_assert_int_eq(dp_timeline_report(timeline, 0, -1, 1, &report), DP_OK);
    ck_assert_int_eq(report.window, INT64_MAX);
    ck_assert_int_eq(report.compute_busy, INT64_MAX);
    ck_assert_int_eq(report.comm_hidden, 1);
    ck_assert_int_eq(report.bubble, 0);
    dp_timeline_free(timeline);
}
END_TEST

/* ---- packed rows ---- */

static unsigned char *pack(const dp_timeline_t *timeline, int32_t rank, size_t *bytes)
{
    unsigned char *buffer;
    size_t room;

    ck_assert_int_eq(dp__timeline_pack(timeline, rank, NULL, bytes), DP_OK);
    buffer = malloc(*bytes);
    ck_assert_ptr_nonnull(buffer);
    room = *bytes;
    ck_assert_int_eq(dp__timeline_pack(timeline, rank, buffer, &room), DP_OK);
    ck_assert_uint_eq(room, *bytes);
    return buffer;
}

static dp_span_t full_span(uint16_t name)
{
    dp_span_t span = span_of(DP_SPAN_SEND, DP_LANE_P2P, INT64_MAX - 7, INT64_MAX);

    span.flow = UINT64_MAX;
    span.step = INT32_MAX;
    span.microbatch = 65535;
    span.chunk = 63;
    span.stage = INT16_MAX;
    span.segment = INT16_MIN;
    span.pass = DP_OP_B;
    span.pair = 1;
    span.name = name;
    return span;
}

START_TEST(a_packed_row_comes_back_with_its_names)
{
    dp_timeline_t *from = timeline_of(2, 40), *to = timeline_of(3, 40);
    dp_span_t full;
    const dp_span_t *a, *b;
    int64_t na, nb;
    uint16_t attention, mlp, other;
    unsigned char *bytes;
    size_t size;

    ck_assert_int_eq(dp_timeline_name(from, "attention", &attention), DP_OK);
    ck_assert_int_eq(dp_timeline_name(from, "mlp \"\n\xff", &mlp), DP_OK);
    ck_assert_int_eq(dp_timeline_name(to, "other", &other), DP_OK);
    random_spans(from, 1, 38);
    full = full_span(mlp);
    add(from, 1, full);
    full = full_span(attention);
    add(from, 1, full);
    ck_assert_int_eq(dp_timeline_add(from, 1, &full), DP_ERR_OVERFLOW);
    bytes = pack(from, 1, &size);
    add(to, 2, span_of(DP_SPAN_STEP, DP_LANE_COMPUTE, 0, 1)); /* replaced */
    ck_assert_int_eq(dp__timeline_unpack(to, 2, bytes, size), DP_OK);
    a = dp_timeline_spans(from, 1, &na);
    b = dp_timeline_spans(to, 2, &nb);
    ck_assert_int_eq(na, nb);
    for (int64_t i = 0; i < na; i++) {
        ck_assert_int_eq(a[i].start_ns, b[i].start_ns);
        ck_assert_int_eq(a[i].end_ns, b[i].end_ns);
        ck_assert_uint_eq(a[i].flow, b[i].flow);
        ck_assert_int_eq(a[i].step, b[i].step);
        ck_assert_int_eq(a[i].microbatch, b[i].microbatch);
        ck_assert_int_eq(a[i].chunk, b[i].chunk);
        ck_assert_int_eq(a[i].stage, b[i].stage);
        ck_assert_int_eq(a[i].segment, b[i].segment);
        ck_assert_uint_eq(a[i].kind, b[i].kind);
        ck_assert_uint_eq(a[i].lane, b[i].lane);
        ck_assert_uint_eq(a[i].pass, b[i].pass);
        ck_assert_uint_eq(a[i].pair, b[i].pair);
        ck_assert_str_eq(dp_timeline_name_text(from, a[i].name), dp_timeline_name_text(to, b[i].name));
    }
    ck_assert_int_eq(dp_timeline_lost(to, 2), 1);
    free(bytes);
    dp_timeline_free(from);
    dp_timeline_free(to);
}
END_TEST

START_TEST(packing_needs_its_room)
{
    dp_timeline_t *timeline = timeline_of(1, 2), *small = timeline_of(1, 1);
    unsigned char *bytes;
    size_t size, room;
    int64_t count;

    bytes = pack(timeline, 0, &size); /* an empty row */
    ck_assert_int_eq(dp__timeline_unpack(small, 0, bytes, size), DP_OK);
    free(bytes);
    add(timeline, 0, span_of(DP_SPAN_COMPUTE, DP_LANE_COMPUTE, 1, 2));
    add(timeline, 0, span_of(DP_SPAN_COMPUTE, DP_LANE_COMPUTE, 2, 3));
    bytes = pack(timeline, 0, &size);
    room = size - 1;
    ck_assert_int_eq(dp__timeline_pack(timeline, 0, bytes, &room), DP_ERR_INVALID);
    ck_assert_int_eq(dp__timeline_pack(timeline, 1, NULL, &room), DP_ERR_INVALID);
    ck_assert_int_eq(dp__timeline_unpack(small, 0, bytes, size), DP_ERR_OVERFLOW);
    ck_assert_int_eq(dp_timeline_lost(small, 0), 1);
    ck_assert_int_eq(dp_timeline_spans(small, 0, &count)->start_ns, 1);
    ck_assert_int_eq(count, 1);
    free(bytes);
    dp_timeline_free(timeline);
    dp_timeline_free(small);
}
END_TEST

START_TEST(foreign_bytes_do_no_harm)
{
    dp_timeline_t *from = timeline_of(1, 20), *to = timeline_of(1, 20);
    unsigned char *good, *bad;
    uint16_t name;
    size_t size;
    int64_t count;

    ck_assert_int_eq(dp_timeline_name(from, "attention", &name), DP_OK);
    ck_assert_int_eq(dp_timeline_name(from, "mlp", &name), DP_OK);
    random_spans(from, 0, 20);
    good = pack(from, 0, &size);
    for (size_t cut = 0; cut < size; cut++) {
        bad = malloc(cut + 1); /* so that tools see a read past the end */
        memcpy(bad, good, cut);
        ck_assert_int_eq(dp__timeline_unpack(to, 0, bad, cut), DP_ERR_PROTOCOL);
        free(bad);
    }
    (void)dp_timeline_spans(to, 0, &count);
    ck_assert_int_eq(count, 0);
    bad = malloc(size + 1);
    memcpy(bad, good, size);
    bad[size] = 0;
    ck_assert_int_eq(dp__timeline_unpack(to, 0, bad, size + 1), DP_ERR_PROTOCOL);
    for (int round = 0; round < 20000; round++) {
        const dp_span_t *spans;
        dp_status_t status;

        memcpy(bad, good, size);
        for (int64_t flips = 1 + below(4); flips > 0; flips--)
            bad[below((int64_t)size)] ^= (unsigned char)(1 << below(8));
        status = dp__timeline_unpack(to, 0, bad, size);
        ck_assert(status == DP_OK || status == DP_ERR_PROTOCOL || status == DP_ERR_OVERFLOW);
        spans = dp_timeline_spans(to, 0, &count);
        for (int64_t i = 0; i < count; i++) {
            ck_assert(spans[i].start_ns >= 0 && spans[i].end_ns >= spans[i].start_ns);
            ck_assert_uint_lt(spans[i].lane, DP_LANE_COUNT);
            ck_assert_uint_le(spans[i].kind, DP_SPAN_STEP);
        }
    }
    ck_assert_int_eq(dp__timeline_unpack(to, 0, NULL, 0), DP_ERR_INVALID);
    free(bad);
    free(good);
    dp_timeline_free(from);
    dp_timeline_free(to);
}
END_TEST

static dp_status_t drop(void *user, const char *text, size_t bytes)
{
    (void)user;
    (void)text;
    (void)bytes;
    return DP_OK;
}

static dp_status_t use_all(void)
{
    dp_timeline_t *timeline = NULL;
    unsigned char bytes[4096];
    size_t size = sizeof(bytes);
    dp_rank_report_t report = {.struct_size = sizeof(report)};
    dp_status_t status = dp_timeline_create(2, 4, &timeline);
    dp_span_t span = span_of(DP_SPAN_SEND, DP_LANE_P2P, 0, 1);
    uint16_t name;

    if (status == DP_OK)
        status = dp_timeline_name(timeline, "attention", &name);
    if (status == DP_OK)
        status = dp_timeline_add(timeline, 0, &span);
    if (status == DP_OK)
        status = dp_timeline_report(timeline, 0, -1, 1, &report);
    if (status == DP_OK)
        status = dp__timeline_pack(timeline, 0, bytes, &size);
    if (status == DP_OK)
        status = dp__timeline_unpack(timeline, 1, bytes, size);
    if (status == DP_OK)
        status = dp_timeline_write_chrome(timeline, drop, NULL);
    dp_timeline_free(timeline);
    return status;
}

START_TEST(memory_that_runs_out_is_an_error_without_leak)
{
    bool struck = true;
    long k;

    oom_install();
    for (k = 0; struck; k++) {
        dp_status_t status;

        oom_arm(k, false);
        status = use_all();
        struck = oom_struck();
        oom_disarm();
        ck_assert_int_eq(status, struck ? DP_ERR_NOMEM : DP_OK);
        ck_assert_int_eq(oom_live(), 0);
    }
    ck_assert_int_gt(k, 6);
    oom_uninstall();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("timeline");

    SUITE_ADD(suite, sizes_out_of_bounds_are_refused);
    SUITE_ADD(suite, rows_keep_what_was_added_in_order);
    SUITE_ADD(suite, spans_past_the_room_are_counted);
    SUITE_ADD(suite, recording_allocates_nothing);
    SUITE_ADD(suite, spans_out_of_bounds_are_refused);
    SUITE_ADD(suite, names_are_numbered_once);
    SUITE_ADD(suite, figures_equal_counting_ticks);
    SUITE_ADD(suite, a_hidden_transfer_and_a_bubble);
    SUITE_ADD(suite, times_at_the_end_of_the_clock);
    SUITE_ADD(suite, a_packed_row_comes_back_with_its_names);
    SUITE_ADD(suite, packing_needs_its_room);
    SUITE_ADD(suite, foreign_bytes_do_no_harm);
    SUITE_ADD(suite, memory_that_runs_out_is_an_error_without_leak);
    return suite_run(suite);
}
