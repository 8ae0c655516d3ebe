/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_draw_curve.c: curves end up where their numbers say, in every format, whatever the
 * numbers. */
#include "config.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/suite.h"
#include "tools/draw/draw_curve.h"

#ifndef HAVE_CAIRO
int main(void)
{
    puts("built without cairo, which draws pictures");
    return 77;
}
#else
#include <cairo.h>

typedef struct bytes {
    unsigned char *data;
    size_t used, read;
    bool fail;
} bytes_t;

static dp_status_t keep(void *user, const char *text, size_t n)
{
    bytes_t *bytes = user;

    if (bytes->fail)
        return dp_fail(DP_ERR_IO, "the disk is full");
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

/* Where the bluest pixels of a picture are: the first series. */
typedef struct found {
    int width, height, left, right, top, bottom, pixels;
    int at_left, at_right; /* rows of the blue pixels in the first and last blue column */
} found_t;

static bool is_blue(const unsigned char *pixel)
{
    return pixel[0] > 140 && pixel[2] < 60 && pixel[1] > 80 && pixel[1] < 160;
}

static found_t find_blue(bytes_t *bytes)
{
    cairo_surface_t *image = cairo_image_surface_create_from_png_stream(read_block, bytes);
    found_t f = {.left = 1 << 20, .top = 1 << 20, .right = -1, .bottom = -1};
    const unsigned char *data;
    int stride;

    ck_assert_int_eq(cairo_surface_status(image), CAIRO_STATUS_SUCCESS);
    f.width = cairo_image_surface_get_width(image);
    f.height = cairo_image_surface_get_height(image);
    data = cairo_image_surface_get_data(image);
    stride = cairo_image_surface_get_stride(image);
    for (int x = 0; x < f.width; x++) {
        for (int y = f.height / 8; y < f.height; y++) { /* past the legend */
            if (!is_blue(data + (size_t)y * (size_t)stride + 4 * (size_t)x))
                continue;
            if (x < f.left)
                f.left = x, f.at_left = y;
            if (x > f.right)
                f.right = x, f.at_right = y;
            f.top = y < f.top ? y : f.top;
            f.bottom = y > f.bottom ? y : f.bottom;
            f.pixels++;
        }
    }
    cairo_surface_destroy(image);
    return f;
}

static found_t draw_points(const double *x, const double *y, int64_t count)
{
    draw_series_t series = {"a", x, y, count};
    draw_curve_t curve = {"Title", "x", "y", &series, 1};
    bytes_t bytes = {NULL, 0, 0, false};
    found_t found;

    ck_assert_int_eq(draw_curve_write(&curve, DRAW_PNG, keep, &bytes), DP_OK);
    found = find_blue(&bytes);
    free(bytes.data);
    return found;
}

START_TEST(a_straight_line_goes_from_corner_to_corner)
{
    double x[] = {0, 10}, up[] = {0, 4}, down[] = {4, 0};
    found_t rising = draw_points(x, up, 2), falling = draw_points(x, down, 2);

    ck_assert_int_lt(rising.left, rising.width / 8);
    ck_assert_int_gt(rising.right, rising.width * 7 / 8);
    ck_assert_int_gt(rising.at_left, rising.height * 3 / 4);
    ck_assert_int_lt(rising.at_right, rising.height / 4);
    ck_assert_int_lt(falling.at_left, falling.height / 4);
    ck_assert_int_gt(falling.at_right, falling.height * 3 / 4);
}
END_TEST

START_TEST(many_points_keep_their_extremes)
{
    enum { N = 200000 };
    double *x = malloc(N * sizeof(*x)), *y = malloc(N * sizeof(*y));
    found_t found;

    for (int i = 0; i < N; i++) {
        x[i] = i;
        y[i] = i == 123456 ? 1.0 : i == 5 ? -1.0 : 0.0;
    }
    found = draw_points(x, y, N);
    ck_assert_int_lt(found.top, found.height / 6);
    ck_assert_int_gt(found.bottom, found.height * 5 / 6);
    free(x);
    free(y);
}
END_TEST

START_TEST(one_point_equal_points_and_gaps_are_drawn)
{
    double x[] = {1, 2, 3, 4, 5, 6}, same[] = {7, 7, 7, 7, 7, 7}, zero[] = {0, 0, 0, 0, 0, 0};
    double gaps[] = {1, NAN, 2, INFINITY, 3, 4}, huge[] = {-1e300, 1e300, 0, 1, 2, 3}, tiny[] = {0, 1e-300, 0, 0, 0, 0};

    ck_assert_int_gt(draw_points(x, same, 1).pixels, 0);
    ck_assert_int_gt(draw_points(x, same, 6).pixels, 500);
    ck_assert_int_gt(draw_points(x, zero, 6).pixels, 500);
    ck_assert_int_gt(draw_points(x, gaps, 6).pixels, 100);
    ck_assert_int_gt(draw_points(x, huge, 6).pixels, 500);
    ck_assert_int_gt(draw_points(x, tiny, 6).pixels, 500);
}
END_TEST

START_TEST(nothing_to_draw_is_an_error)
{
    double bad[] = {NAN, INFINITY}, good[] = {1, 2};
    draw_series_t series[] = {{"a", good, bad, 2}, {"b", good, good, 0}};
    draw_curve_t curve = {NULL, NULL, NULL, series, 2};
    bytes_t bytes = {NULL, 0, 0, false};

    ck_assert_int_eq(draw_curve_write(&curve, DRAW_SVG, keep, &bytes), DP_ERR_INVALID);
    curve.nseries = 0;
    ck_assert_int_eq(draw_curve_write(&curve, DRAW_SVG, keep, &bytes), DP_ERR_INVALID);
    ck_assert_uint_eq(bytes.used, 0);
}
END_TEST

START_TEST(every_format_has_its_head_and_passes_failures_on)
{
    static const char *const heads[] = {[DRAW_SVG] = "<?xml", [DRAW_PNG] = "\x89PNG", [DRAW_PDF] = "%PDF-"};
    double x[] = {0, 1, 2}, y[] = {3, 1, 2};
    draw_series_t series[] = {{"one", x, y, 3}, {NULL, y, x, 3}, {"three", y, y, 3}};
    draw_curve_t curve = {"Loss", "step", "nats", series, 3};

    for (int f = DRAW_SVG; f <= DRAW_PDF; f++) {
        bytes_t bytes = {NULL, 0, 0, false}, full = {NULL, 0, 0, true};

        ck_assert_int_eq(draw_curve_write(&curve, (draw_format_t)f, keep, &bytes), DP_OK);
        ck_assert_uint_gt(bytes.used, 1000);
        ck_assert_int_eq(memcmp(bytes.data, heads[f], strlen(heads[f])), 0);
        free(bytes.data);
        ck_assert_int_eq(draw_curve_write(&curve, (draw_format_t)f, keep, &full), DP_ERR_IO);
        ck_assert_str_eq(dp_last_error(), "the disk is full");
    }
}
END_TEST

START_TEST(files_get_the_format_of_their_name)
{
    double x[] = {0, 1}, y[] = {3, 1};
    draw_series_t series = {"one", x, y, 2};
    draw_curve_t curve = {"Loss", "step", "nats", &series, 1};
    char path[] = "curve-XXXXXX.png";
    char head[4] = "";
    FILE *file;

    close(mkstemps(path, 4));
    ck_assert_int_eq(draw_curve_save(&curve, path), DP_OK);
    file = fopen(path, "rb");
    ck_assert_uint_eq(fread(head, 1, 4, file), 4);
    fclose(file);
    ck_assert_int_eq(memcmp(head, "\x89PNG", 4), 0);
    series.count = 0;
    ck_assert_int_eq(draw_curve_save(&curve, path), DP_ERR_INVALID);
    ck_assert_int_ne(access(path, F_OK), 0);
    ck_assert_int_eq(draw_curve_save(&curve, "no/such/folder/a.svg"), DP_ERR_IO);
    ck_assert_int_eq(draw_curve_save(&curve, "a.gif"), DP_ERR_INVALID);
    ck_assert_int_eq(draw_curve_save(&curve, "png"), DP_ERR_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("draw_curve");

    SUITE_ADD(suite, a_straight_line_goes_from_corner_to_corner);
    SUITE_ADD(suite, many_points_keep_their_extremes);
    SUITE_ADD(suite, one_point_equal_points_and_gaps_are_drawn);
    SUITE_ADD(suite, nothing_to_draw_is_an_error);
    SUITE_ADD(suite, every_format_has_its_head_and_passes_failures_on);
    SUITE_ADD(suite, files_get_the_format_of_their_name);
    return suite_run(suite);
}
#endif
