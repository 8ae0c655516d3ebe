/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_draw_timeline.c: boxes have the colours, places and lengths of their spans, read back from
 * the picture. */
#include "config.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tools/draw/draw_bars.h"
#include "tools/draw/draw_timeline.h"

#ifndef HAVE_CAIRO
int main(void)
{
    puts("built without cairo, which reads the pictures");
    return 77;
}
#else
#include <cairo.h>

typedef struct bytes {
    unsigned char *data;
    size_t used, read;
} bytes_t;

static dp_status_t keep(void *user, const char *text, size_t n)
{
    bytes_t *bytes = user;

    bytes->data = realloc(bytes->data, bytes->used + n);
    ck_assert_ptr_nonnull(bytes->data);
    memcpy(bytes->data + bytes->used, text, n);
    bytes->used += n;
    return DP_OK;
}

static cairo_status_t read_block(void *user, unsigned char *data, unsigned int n)
{
    bytes_t *bytes = user;

    if (bytes->read + n > bytes->used)
        return CAIRO_STATUS_READ_ERROR;
    memcpy(data, bytes->data + bytes->read, n);
    bytes->read += n;
    return CAIRO_STATUS_SUCCESS;
}

/* What a pixel belongs to, by its letter: F f forward light and dark, B b, I i, W w; . white; #
 * black; ? anything else. */
static char class_of(const unsigned char *pixel)
{
    static const struct {
        char letter;
        int red, green, blue;
    } known[] = {{'F', 252, 204, 138}, {'f', 227, 128, 31},  {'B', 120, 196, 115}, {'b', 41, 128, 59},
                 {'I', 214, 240, 194}, {'i', 168, 217, 133}, {'W', 171, 207, 247}, {'w', 64, 117, 199},
                 {'.', 255, 255, 255}, {'#', 26, 26, 31}};

    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++)
        if (abs(pixel[2] - known[k].red) < 5 && abs(pixel[1] - known[k].green) < 5 && abs(pixel[0] - known[k].blue) < 5)
            return known[k].letter;
    return '?';
}

/* One line of a picture as runs of classes; short runs, edges of boxes that is, are left out but
 * for black. */
typedef struct runs {
    char letters[64];
    int lengths[64], count;
} runs_t;

typedef struct image {
    cairo_surface_t *surface;
    int width, height, stride;
    const unsigned char *data;
} image_t;

static image_t decode(bytes_t *bytes)
{
    image_t image = {.surface = cairo_image_surface_create_from_png_stream(read_block, bytes)};

    ck_assert_int_eq(cairo_surface_status(image.surface), CAIRO_STATUS_SUCCESS);
    image.width = cairo_image_surface_get_width(image.surface);
    image.height = cairo_image_surface_get_height(image.surface);
    image.stride = cairo_image_surface_get_stride(image.surface);
    image.data = cairo_image_surface_get_data(image.surface);
    return image;
}

static runs_t line_of(const image_t *image, int y, int shortest)
{
    runs_t runs = {.count = 0};
    char last = 0;
    int length = 0;

    for (int x = 0; x <= image->width; x++) {
        char letter = x < image->width ? class_of(image->data + (size_t)y * (size_t)image->stride + 4 * (size_t)x) : 0;

        if (letter == last) {
            length++;
            continue;
        }
        if (last != 0 && last != '?' && (length >= shortest || last == '#') && runs.count < 64) {
            runs.letters[runs.count] = last;
            runs.lengths[runs.count++] = length;
        }
        last = letter;
        length = 1;
    }
    return runs;
}

/* The line three quarters down the row that begins below `from`: numbers, if any, are above it. */
static int row_line(const image_t *image, int from, char letter)
{
    int top = -1;

    for (int y = from; y < image->height; y++) {
        runs_t runs = line_of(image, y, 40);
        bool there = false;

        for (int k = 0; k < runs.count; k++)
            there |= runs.letters[k] == letter;
        if (there && top < 0)
            top = y;
        if (!there && top >= 0)
            return top + (y - 1 - top) * 7 / 8;
    }
    ck_abort_msg("no row with %c", letter);
    return -1;
}

static dp_timeline_t *timeline_of(int32_t ranks)
{
    dp_timeline_t *timeline = NULL;

    ck_assert_int_eq(dp_timeline_create(ranks, 64, &timeline), DP_OK);
    return timeline;
}

static void add(dp_timeline_t *timeline, int32_t rank, int64_t start, int64_t end, int pass, int chunk, int microbatch,
                uint8_t pair)
{
    dp_span_t span = {.start_ns = start,
                      .end_ns = end,
                      .pass = (uint8_t)pass,
                      .chunk = (int16_t)chunk,
                      .microbatch = microbatch,
                      .pair = pair};

    ck_assert_int_eq(dp_timeline_add(timeline, rank, &span), DP_OK);
}

static image_t draw(const dp_timeline_t *timeline, int32_t chunks, dp_placement_t placement)
{
    draw_timeline_t picture = {.timeline = timeline,
                               .title = "title",
                               .subtitle = "subtitle",
                               .unit = "ms",
                               .ns_per_unit = 1e6,
                               .step = -1,
                               .nranks = dp_timeline_ranks(timeline),
                               .chunks = chunks,
                               .placement = placement,
                               .second_direction = 10};
    bytes_t bytes = {NULL, 0, 0};
    image_t image;

    ck_assert_msg(draw_timeline_write(&picture, DRAW_PNG, keep, &bytes) == DP_OK, "%s", dp_last_error());
    image = decode(&bytes);
    free(bytes.data);
    return image;
}

static void expect_line(const image_t *image, int y, const char *letters, const int *parts)
{
    runs_t runs = line_of(image, y, 12);
    double unit = 0.0;
    int at = 0;

    /* margin and label */
    while (at < runs.count && (runs.letters[at] == '.' || runs.letters[at] == '#'))
        at++;
    for (size_t k = 0; letters[k] != 0; k++, at++) {
        ck_assert_msg(at < runs.count && runs.letters[at] == letters[k], "box %zu is %c, not %c", k,
                      at < runs.count ? runs.letters[at] : '0', letters[k]);
        if (k == 0)
            unit = (double)runs.lengths[at] / parts[0];
        ck_assert_double_eq_tol(runs.lengths[at] / unit, parts[k], 0.06 * parts[k] + 0.05);
    }
}

START_TEST(kinds_have_their_colours_and_lengths)
{
    static const int parts[] = {2, 4, 2, 2, 3, 1};
    dp_timeline_t *timeline = timeline_of(2);
    image_t image;
    int y;

    add(timeline, 0, 0, 2, DP_OP_F, 0, -1, 0);
    add(timeline, 0, 2, 6, DP_OP_B, 0, -1, 0);
    add(timeline, 0, 6, 8, DP_OP_I, 0, -1, 0);
    add(timeline, 0, 8, 10, DP_OP_W, 0, -1, 0);
    add(timeline, 0, 13, 14, DP_OP_F, 0, -1, 0);
    add(timeline, 1, 0, 2, DP_OP_F, 1, 3, 0);
    add(timeline, 1, 2, 6, DP_OP_B, 1, 3, 0);
    add(timeline, 1, 6, 8, DP_OP_I, 1, 3, 0);
    add(timeline, 1, 8, 10, DP_OP_W, 1, 3, 0);
    add(timeline, 1, 13, 14, DP_OP_F, 1, 3, 0);
    image = draw(timeline, 2, DP_PLACE_BIDIRECTIONAL);
    y = row_line(&image, 0, 'F');
    expect_line(&image, y, "FBIW.F", parts);
    expect_line(&image, row_line(&image, 0, 'f'), "fbiw.f", parts);
    ck_assert_int_gt(row_line(&image, 0, 'f'), y);
    cairo_surface_destroy(image.surface);
    dp_timeline_free(timeline);
}
END_TEST

/* What is recomputed for an I is drawn as a part of it, not as a whole backward. */
START_TEST(what_is_recomputed_looks_like_its_backward_for_input)
{
    static const int parts[] = {2, 1, 1, 2, 2};
    dp_timeline_t *timeline = timeline_of(1);
    image_t image;

    add(timeline, 0, 0, 2, DP_OP_F, 0, 1, 0);
    add(timeline, 0, 3, 4, DP_OP_R, 0, 0, 0);
    add(timeline, 0, 4, 6, DP_OP_I, 0, 0, 0);
    add(timeline, 0, 6, 8, DP_OP_W, 0, 0, 0);
    image = draw(timeline, 1, DP_PLACE_LINE);
    expect_line(&image, row_line(&image, 0, 'F'), "F.IIW", parts);
    cairo_surface_destroy(image.surface);
    dp_timeline_free(timeline);
}
END_TEST

/* Black runs on a line through the boxes: the frames' sides. */
static int frame_sides(const image_t *image, int y)
{
    runs_t runs = line_of(image, y, 1 << 20);

    return runs.count;
}

START_TEST(pairs_are_framed)
{
    dp_timeline_t *timeline = timeline_of(1), *taking_turns = timeline_of(1), *alone = timeline_of(1);
    image_t image;

    for (int p = 0; p < 3; p++) { /* three pairs apart */
        add(timeline, 0, 10 * p, 10 * p + 3, DP_OP_F, 0, p, (uint8_t)(p + 1));
        add(timeline, 0, 10 * p + 3, 10 * p + 8, DP_OP_B, 1, p, (uint8_t)(p + 1));
        for (int s = 0; s < 2; s++) { /* the same in two segments each */
            add(taking_turns, 0, 10 * p + 4 * s, 10 * p + 4 * s + 2, DP_OP_F, 0, p, (uint8_t)(p + 1));
            add(taking_turns, 0, 10 * p + 4 * s + 2, 10 * p + 4 * s + 4, s ? DP_OP_W : DP_OP_I, 1, p, (uint8_t)(p + 1));
        }
        add(alone, 0, 10 * p, 10 * p + 3, DP_OP_F, 0, p, 0);
        add(alone, 0, 10 * p + 3, 10 * p + 8, DP_OP_B, 1, p, 0);
    }
    image = draw(timeline, 2, DP_PLACE_V);
    ck_assert_int_eq(frame_sides(&image, row_line(&image, 0, 'F')), 6);
    cairo_surface_destroy(image.surface);
    image = draw(taking_turns, 2, DP_PLACE_V);
    ck_assert_int_eq(frame_sides(&image, row_line(&image, 0, 'F')), 6);
    cairo_surface_destroy(image.surface);
    image = draw(alone, 2, DP_PLACE_V);
    ck_assert_int_eq(frame_sides(&image, row_line(&image, 0, 'F')), 0);
    cairo_surface_destroy(image.surface);
    dp_timeline_free(timeline);
    dp_timeline_free(taking_turns);
    dp_timeline_free(alone);
}
END_TEST

/* Two braids of which the first still communicates while the second computes. */
START_TEST(a_braid_is_framed_in_both_lanes)
{
    dp_timeline_t *timeline = timeline_of(1);
    image_t image;
    int head, foot;

    add(timeline, 0, 0, 10, DP_OP_F, 0, 0, 1);
    add(timeline, 0, 10, 20, DP_OP_W, 0, 0, 2);
    for (int p = 0; p < 2; p++) {
        dp_span_t span = {.start_ns = 5 + 10 * p,
                          .end_ns = p == 0 ? 15 : 20,
                          .lane = DP_LANE_ALL_TO_ALL,
                          .pass = DP_OP_B,
                          .pair = (uint8_t)(p + 1)};

        ck_assert_int_eq(dp_timeline_add(timeline, 0, &span), DP_OK);
    }
    image = draw(timeline, 1, DP_PLACE_LINE);
    head = row_line(&image, 0, 'F');
    foot = row_line(&image, head, 'B');
    ck_assert_int_eq(frame_sides(&image, head), 3);
    ck_assert_int_eq(frame_sides(&image, foot), 3);
    /* the second begins half way above, three quarters below */
    for (int y = head; y <= foot; y += foot - head) {
        runs_t runs = line_of(&image, y, 12);
        double first = 0.0, second = 0.0;

        for (int k = 0; k < runs.count; k++) {
            bool ahead = runs.letters[k] == 'F' || (runs.letters[k] == 'B' && first == 0.0);

            first += ahead ? runs.lengths[k] : 0.0;
            second += !ahead && (runs.letters[k] == 'W' || runs.letters[k] == 'B') ? runs.lengths[k] : 0.0;
        }
        ck_assert_double_eq_tol(first / second, y == head ? 1.0 : 2.0, 0.1);
    }
    cairo_surface_destroy(image.surface);
    dp_timeline_free(timeline);
}
END_TEST

START_TEST(all_to_all_lies_in_a_strip_below)
{
    static const int compute[] = {10, 10};
    dp_timeline_t *timeline = timeline_of(1);
    dp_span_t span = {.start_ns = 5, .end_ns = 15, .lane = DP_LANE_ALL_TO_ALL, .pass = DP_OP_B, .microbatch = -1};
    image_t image;
    runs_t runs;
    int foot, head, strip = 0;

    add(timeline, 0, 0, 10, DP_OP_F, 0, -1, 0);
    add(timeline, 0, 10, 20, DP_OP_W, 0, -1, 0);
    ck_assert_int_eq(dp_timeline_add(timeline, 0, &span), DP_OK);
    image = draw(timeline, 1, DP_PLACE_LINE);
    head = row_line(&image, 0, 'F');
    foot = row_line(&image, head, 'B');
    ck_assert_int_gt(foot, head);
    expect_line(&image, head, "FW", compute);
    runs = line_of(&image, foot, 12);
    for (int k = 0; k < runs.count; k++)
        if (runs.letters[k] == 'B')
            strip = runs.lengths[k];
    runs = line_of(&image, head, 12);
    for (int k = 0; k < runs.count; k++)
        if (runs.letters[k] == 'F')
            ck_assert_double_eq_tol((double)strip / runs.lengths[k], 1.0, 0.05);
    cairo_surface_destroy(image.surface);
    dp_timeline_free(timeline);
}
END_TEST

START_TEST(steps_are_picked_and_nothing_is_an_error)
{
    dp_timeline_t *timeline = timeline_of(1);
    dp_span_t span = {.start_ns = 100, .end_ns = 200, .step = 7, .pass = DP_OP_W};
    draw_timeline_t picture = {
        .timeline = timeline, .unit = "ms", .ns_per_unit = 1e6, .step = -1, .nranks = 1, .chunks = 1};
    bytes_t bytes = {NULL, 0, 0};
    image_t image;

    ck_assert_int_eq(draw_timeline_write(&picture, DRAW_SVG, keep, &bytes), DP_ERR_INVALID);
    add(timeline, 0, 0, 100, DP_OP_F, 0, -1, 0);
    ck_assert_int_eq(dp_timeline_add(timeline, 0, &span), DP_OK);
    picture.step = 3;
    ck_assert_int_eq(draw_timeline_write(&picture, DRAW_SVG, keep, &bytes), DP_ERR_INVALID);
    ck_assert_uint_eq(bytes.used, 0);
    picture.step = 7;
    ck_assert_int_eq(draw_timeline_write(&picture, DRAW_PNG, keep, &bytes), DP_OK);
    image = decode(&bytes);
    (void)row_line(&image, 0, 'W');
    for (int y = 0; y < image.height; y++) {
        runs_t runs = line_of(&image, y, 12);

        for (int k = 0; k < runs.count; k++)
            ck_assert(runs.letters[k] != 'F');
    }
    cairo_surface_destroy(image.surface);
    free(bytes.data);
    dp_timeline_free(timeline);
}
END_TEST

START_TEST(extreme_times_are_drawn)
{
    dp_timeline_t *timeline = timeline_of(3);

    add(timeline, 0, 0, 0, DP_OP_F, 0, 1, 0);
    add(timeline, 1, 0, INT64_MAX, DP_OP_B, 0, INT32_MAX - 10, 1);
    add(timeline, 1, 5, 6, DP_OP_I, INT16_MAX, 0, 1);
    add(timeline, 2, INT64_MAX, INT64_MAX, DP_OP_W, 1, 65535, 0);
    for (int format = DRAW_SVG; format <= DRAW_PDF; format++) {
        draw_timeline_t picture = {
            .timeline = timeline, .unit = "ms", .ns_per_unit = 1.0, .step = -1, .nranks = 3, .chunks = 4};
        bytes_t bytes = {NULL, 0, 0};

        ck_assert_int_eq(draw_timeline_write(&picture, (draw_format_t)format, keep, &bytes), DP_OK);
        ck_assert_uint_gt(bytes.used, 500);
        free(bytes.data);
    }
    dp_timeline_free(timeline);
}
END_TEST

START_TEST(bars_are_as_long_as_their_steps)
{
    draw_bar_t bars[] = {{"one", 60.0, 0.0, 1.0}, {"two", 30.0, 30.0, 2.0}};
    draw_bars_t picture = {"title", "subtitle", bars, 2};
    bytes_t bytes = {NULL, 0, 0};
    image_t image;
    int longest = 0, shortest = 1 << 20;

    ck_assert_int_eq(draw_bars_write(&picture, DRAW_PNG, keep, &bytes), DP_OK);
    image = decode(&bytes);
    for (int y = image.height / 2; y < image.height; y++) {
        runs_t runs = line_of(&image, y, 80);

        for (int k = 0; k < runs.count; k++) {
            if (runs.letters[k] != 'B')
                continue;
            longest = runs.lengths[k] > longest ? runs.lengths[k] : longest;
            shortest = runs.lengths[k] < shortest ? runs.lengths[k] : shortest;
        }
    }
    ck_assert_double_eq_tol((double)longest / shortest, 2.0, 0.05);
    cairo_surface_destroy(image.surface);
    free(bytes.data);
    picture.count = 0;
    ck_assert_int_eq(draw_bars_write(&picture, DRAW_PNG, keep, &bytes), DP_ERR_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("draw_timeline");

    SUITE_ADD(suite, kinds_have_their_colours_and_lengths);
    SUITE_ADD(suite, what_is_recomputed_looks_like_its_backward_for_input);
    SUITE_ADD(suite, pairs_are_framed);
    SUITE_ADD(suite, a_braid_is_framed_in_both_lanes);
    SUITE_ADD(suite, all_to_all_lies_in_a_strip_below);
    SUITE_ADD(suite, steps_are_picked_and_nothing_is_an_error);
    SUITE_ADD(suite, extreme_times_are_drawn);
    SUITE_ADD(suite, bars_are_as_long_as_their_steps);
    return suite_run(suite);
}
#endif
