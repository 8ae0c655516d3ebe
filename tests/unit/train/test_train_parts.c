/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_train_parts.c: what the language-model trainer is made of beside its model: optimizer,
 * learning rate, text, random numbers and options. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "apps/train_moe/adamw.h"
#include "apps/train_moe/random.h"
#include "apps/train_moe/text.h"
#include "tests/support/suite.h"

/* ---- optimizer ---- */

static options_t settings(dp_dtype_t dtype)
{
    return (options_t){.dtype = dtype,
                       .steps = 50,
                       .warmup = 4,
                       .lr = 0.1,
                       .min_lr = 0.01,
                       .beta1 = 0.9,
                       .beta2 = 0.95,
                       .epsilon = 1e-8,
                       .weight_decay = 0.2,
                       .bias_rate = 0.125};
}

/* Algorithm 2 of arXiv 1711.05101, line by line. */
typedef struct textbook {
    double theta, m, v;
} textbook_t;

static void textbook_step(textbook_t *b, const options_t *o, int t, double g, double decay)
{
    const double alpha = learning_rate(o, t - 1);

    b->m = o->beta1 * b->m + (1 - o->beta1) * g;
    b->v = o->beta2 * b->v + (1 - o->beta2) * g * g;
    b->theta -=
        alpha * (b->m / (1 - pow(o->beta1, t)) / (sqrt(b->v / (1 - pow(o->beta2, t))) + o->epsilon) + decay * b->theta);
}

/* A chunk: a gap, a norm, two matrices as one range, a router's bias and a norm. What is beside the
 * ranges stays. */
START_TEST(adamw_is_that_of_the_paper)
{
    enum { N = 12 };
    static const dp_param_t list[] = {
        {.name = "a", .kind = DP_PARAM_VECTOR, .offset = 1, .count = 2},
        {.name = "b", .kind = DP_PARAM_MATRIX, .offset = 3, .count = 1},
        {.name = "c", .kind = DP_PARAM_MATRIX, .offset = 4, .count = 3},
        {.name = "d", .kind = DP_PARAM_ROUTER_BIAS, .offset = 7, .count = 2},
        {.name = "e", .kind = DP_PARAM_VECTOR, .offset = 9, .count = 2},
    };
    static const char kinds[N + 1] = "-vvmmmm--vv-", ours[N + 1] = "-vv-m-----v-";
    /* with zero, b and all but the first of c are not ours, and what is kept lies close together */
    static const dp_shard_t whole[] = {
        {0, 0, 0, 2, 1}, {1, 0, 0, 1, 3}, {2, 0, 0, 3, 4}, {3, 0, 0, 2, 7}, {4, 0, 0, 2, 9}};
    static const dp_shard_t cut[] = {{0, 0, 0, 2, 0}, {2, 0, 0, 1, 2}, {3, 0, 0, 2, 3}, {4, 0, 1, 1, 5}};
    dp_chunk_view_t view = {.param_list = list, .nshards = 5, .shard_list = whole};
    const int f64 = _i % 2;
    adamw_range_t room[5];
    adamw_ranges_t ranges = {.list = room};
    const options_t o = settings(f64 ? DP_F64 : DP_F32);
    double p[N], m[N] = {0}, v[N] = {0}, g[N];
    float pf[N], mf[N] = {0}, vf[N] = {0}, gf[N];
    textbook_t book[N];

    adamw_list_ranges(&view, &ranges);
    ck_assert_uint_eq(ranges.number, 3);
    ck_assert_uint_eq(ranges.count, 8);
    view.nshards = 4;
    view.shard_list = cut;
    if (_i >= 2)
        adamw_list_ranges(&view, &ranges);
    for (int i = 0; i < N; i++) {
        p[i] = sin(i);
        pf[i] = (float)p[i];
        book[i] = (textbook_t){p[i], 0, 0};
    }
    for (int t = 1; t <= 40; t++) {
        const adamw_tensor_t chunk =
            f64 ? (adamw_tensor_t){p, NULL, m, v, g, N} : (adamw_tensor_t){pf, NULL, mf, vf, gf, N};
        const adamw_factors_t factors = adamw_factors(&o, t - 1, 0.25);
        for (int i = 0; i < N; i++) {
            g[i] = cos(i * t) * (i == 3 ? 0 : 10);
            gf[i] = (float)g[i];
            if ((_i < 2 ? kinds : ours)[i] != '-')
                textbook_step(&book[i], &o, t, 0.25 * g[i], kinds[i] == 'm' ? o.weight_decay : 0);
        }
        adamw_update_chunk(o.dtype, &factors, &chunk, &ranges);
    }
    for (int i = 0; i < N; i++)
        ck_assert_double_eq_tol(f64 ? p[i] : (double)pf[i], book[i].theta, f64 ? 1e-13 : 1e-5);
}
END_TEST

START_TEST(learning_rate_rises_then_falls)
{
    const options_t o = settings(DP_F64);
    options_t none = o;

    ck_assert_double_eq_tol(learning_rate(&o, 0), 0.025, 1e-15);
    ck_assert_double_eq_tol(learning_rate(&o, 3), 0.1, 1e-15);
    ck_assert_double_eq_tol(learning_rate(&o, 49), 0.01, 1e-15);
    for (int step = 1; step < 50; step++)
        ck_assert(step < 4 ? learning_rate(&o, step) > learning_rate(&o, step - 1)
                           : learning_rate(&o, step) <= learning_rate(&o, step - 1));
    none.warmup = 0;
    ck_assert_double_eq_tol(learning_rate(&none, 0), 0.1, 1e-15);
    none.warmup = none.steps = 1;
    ck_assert_double_eq_tol(learning_rate(&none, 0), 0.1, 1e-15);
}
END_TEST

START_TEST(bias_goes_against_the_counts)
{
    const options_t o = settings(DP_F32);
    const float counts[4] = {10, 30, 20, 20};
    const double even[2] = {3, 3};
    float bias[4] = {0, 0, 0.5f, 0};
    double still[2] = {1, 2};

    balance_update(DP_F32, o.bias_rate, bias, counts, 4);
    ck_assert_float_eq(bias[0], 0.125f);
    ck_assert_float_eq(bias[1], -0.125f);
    ck_assert_float_eq(bias[2], 0.5f);
    ck_assert_float_eq(bias[3], 0);
    balance_update(DP_F64, o.bias_rate, still, even, 2);
    ck_assert(still[0] == 1 && still[1] == 2);
}
END_TEST

START_TEST(squares_are_summed_in_double)
{
    const float wide[3] = {1e30f, 1, -2};
    const double nan_inside[2] = {1, NAN};
    static double many[2 * DP_SHARD_BLOCK + 1];
    double sums[4] = {0, 0, 0, 7};

    sum_of_squares(DP_F32, wide, 3, sums);
    ck_assert_double_eq_tol(sums[0] / ((double)1e30f * (double)1e30f), 1, 1e-15);
    sum_of_squares(DP_F32, wide + 1, 2, sums);
    ck_assert_double_eq(sums[0], 5);
    sum_of_squares(DP_F64, NULL, 0, sums + 3);
    ck_assert_double_eq(sums[3], 7);
    sum_of_squares(DP_F64, nan_inside, 2, sums);
    ck_assert(isnan(sums[0]));
    many[DP_SHARD_BLOCK - 1] = 2, many[DP_SHARD_BLOCK] = 3, many[2 * DP_SHARD_BLOCK] = 4;
    sum_of_squares(DP_F64, many, 2 * DP_SHARD_BLOCK + 1, sums);
    ck_assert(sums[0] == 4 && sums[1] == 9 && sums[2] == 16 && sums[3] == 7);
}
END_TEST

/* ---- random numbers ---- */

START_TEST(normal_numbers_have_their_moments)
{
    enum { N = 200000 };
    double mean = 0, square = 0, fourth = 0;
    int first = 0;

    for (int i = 0; i < N; i++) {
        const double x = random_normal(random_key(7, 11), (uint64_t)i);
        const double u = random_uniform(7, (uint64_t)i);
        ck_assert(isfinite(x) && u >= 0 && u < 1);
        mean += x / N;
        square += x * x / N;
        fourth += x * x * x * x / N;
        first += u < 0.25;
    }
    ck_assert_double_eq_tol(mean, 0, 0.01);
    ck_assert_double_eq_tol(square, 1, 0.02);
    ck_assert_double_eq_tol(fourth, 3, 0.15);
    ck_assert_double_eq_tol((double)first / N, 0.25, 0.005);
    ck_assert_uint_ne(random_bits(1, 0), random_bits(2, 0));
    ck_assert_uint_ne(random_key(0, 0), 0);
}
END_TEST

/* ---- text ---- */

static char *write_file(char *path, const char *bytes, size_t count)
{
    int fd;

    strcpy(path, "/tmp/test_train_XXXXXX");
    fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, count), (int)count);
    close(fd);
    return path;
}

/* Two files; the byte at each place of the first says the place. */
static void load_two(text_t *text)
{
    char first[200], second[100], one[64], two[64];
    char *files[2];

    for (int i = 0; i < 200; i++)
        first[i] = (char)i;
    memset(second, 'b', sizeof(second));
    files[0] = write_file(one, first, sizeof(first));
    files[1] = write_file(two, second, sizeof(second));
    ck_assert_int_eq(text_load(files, 2, 8, text), DP_OK);
    unlink(one);
    unlink(two);
}

START_TEST(the_end_of_every_file_is_held_out)
{
    text_t text;

    load_two(&text);
    ck_assert_int_eq(text.files, 2);
    ck_assert_uint_eq(text.train_bytes, 190 + 95);
    ck_assert_uint_eq(text.valid_bytes, 10 + 5);
    ck_assert_int_eq(text.train[189], 189);
    ck_assert_int_eq(text.valid[0], 190);
    ck_assert_int_eq(text.valid[9], 199);
    ck_assert_int_eq(text.train[190], 'b');
    text_free(&text);
}
END_TEST

START_TEST(samples_are_text_and_depend_on_their_key_alone)
{
    uint8_t tokens[8], targets[8], again[8], seen[300] = {0};
    text_t text;
    int places = 0;

    load_two(&text);
    for (uint64_t step = 0; step < 2000; step++) {
        size_t at;
        text_sample(&text, 5, step, 0, 0, 0, 8, tokens, targets);
        ck_assert_mem_eq(tokens + 1, targets, 7);
        if (tokens[0] == 'b')
            continue;
        at = tokens[0]; /* the first file's places are their bytes */
        ck_assert_mem_eq(tokens, text.train + at, 8);
        ck_assert_int_eq(targets[7], text.train[at + 8]);
        seen[at] = 1;
    }
    for (int i = 0; i < 190; i++)
        places += seen[i];
    ck_assert_int_gt(places, 180); /* of 190, in about 1,300 draws */
    text_sample(&text, 5, 1, 2, 3, 4, 8, tokens, targets);
    text_sample(&text, 5, 1, 2, 3, 4, 8, again, targets);
    ck_assert_mem_eq(tokens, again, 8);
    text_sample(&text, 5, 1, 3, 2, 4, 8, again, targets);
    ck_assert_mem_ne(tokens, again, 8);
    for (uint64_t k = 0; k < 3; k++) {
        text_valid(&text, k, 3, 8, tokens, targets);
        ck_assert_mem_eq(tokens + 1, targets, 7);
        ck_assert_mem_eq(tokens, text.valid + 7 * k / 3, 8);
    }
    text_free(&text);
}
END_TEST

START_TEST(guessing_by_frequency_is_the_entropy)
{
    char bytes[400], path[64];
    char *files[1];
    text_t text;

    for (int i = 0; i < 400; i++)
        bytes[i] = "aabc"[i % 4];
    files[0] = write_file(path, bytes, sizeof(bytes));
    ck_assert_int_eq(text_load(files, 1, 8, &text), DP_OK);
    ck_assert_double_eq_tol(text_frequency_loss(&text), 1.5 * log(2), 1e-12);
    unlink(path);
    text_free(&text);
}
END_TEST

START_TEST(short_and_missing_texts_are_refused)
{
    char path[64];
    char *files[1] = {write_file(path, "too short", 9)};
    text_t text;

    ck_assert_int_eq(text_load(files, 1, 8, &text), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "--data"));
    unlink(path);
    ck_assert_int_eq(text_load(files, 1, 8, &text), DP_ERR_IO);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), path));
    files[0] = write_file(path, "", 0);
    ck_assert_int_eq(text_load(files, 1, 1, &text), DP_ERR_INVALID);
    unlink(path);
}
END_TEST

/* ---- options ---- */

static int parse(options_t *options, const char *a, const char *b)
{
    char first[64], second[64], program[] = "train_moe";
    char *argv[4] = {program, first, second, NULL};

    snprintf(first, sizeof(first), "%s", a);
    snprintf(second, sizeof(second), "%s", b);
    optind = 0; /* start over */
    return options_parse(*b != '\0' ? 3 : 2, argv, options);
}

START_TEST(bad_values_are_refused)
{
    static const char *const bad[][2] = {
        {"--layers", "0"},
        {"--layers", "x"},
        {"--layers", "3.5"},
        {"--layers", "1e99"},
        {"--lr", "nan"},
        {"--lr", "-1"},
        {"--lr", "0.1x"},
        {"--hidden", "6"},
        {"--kv-heads", "3"},
        {"--head-dim", "3"},
        {"--attention-kind", "mqa"},
        {"--kv-rank", "8"},
        {"--q-rank", "8"},
        {"--rope-dim", "8"},
        {"--top-k", "9"},
        {"--ep", "3"},
        {"--gate", "relu"},
        {"--dtype", "f16"},
        {"--min-lr", "1"},
        {"--no-such-option", ""},
        {"stray", ""},
        {"--layers", ""},
        {"--clip", "inf"},
        {"--batch", "1000000"},
        {"--microbatches", "99999999"},
        {"--beta1", "1"},
        {"--steps", "99999999999999999999"},
    };
    options_t options;

    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_msg(parse(&options, bad[i][0], bad[i][1]) == 2, "%s %s was taken", bad[i][0], bad[i][1]);
}
END_TEST

START_TEST(the_layout_follows_the_ranks)
{
    options_t options;

    ck_assert_int_eq(parse(&options, "--ep", "2"), OPTIONS_RUN);
    ck_assert_int_eq(options_fit(&options, 8), DP_OK);
    ck_assert_int_eq(options.pp, 4);
    ck_assert_str_eq(options.schedule, "dualpipe");
    ck_assert_int_eq(options.microbatches, 8);
    ck_assert_int_eq(options.head_dim, 16);
    options_free(&options);

    ck_assert_int_eq(parse(&options, "--dp", "2"), OPTIONS_RUN);
    ck_assert_int_eq(options_fit(&options, 6), DP_OK);
    ck_assert_str_eq(options.schedule, "dualpipev");
    ck_assert_int_eq(options_fit(&options, 7), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "7 were started"));
    options_free(&options);

    ck_assert_int_eq(parse(&options, "--pp=1", ""), OPTIONS_RUN);
    ck_assert_int_eq(options_fit(&options, 1), DP_OK);
    ck_assert_str_eq(options.schedule, "1f1b");
    options_free(&options);
}
END_TEST

START_TEST(settings_hold_what_ranks_must_share)
{
    options_t a, b;
    char *text_a, *text_b;

    ck_assert_int_eq(parse(&a, "--lr=0.003", "--quiet"), OPTIONS_RUN);
    ck_assert_int_eq(parse(&b, "--lr=0.0030000000000000001", "--log-every=3"), OPTIONS_RUN);
    text_a = options_settings(&a, 7);
    text_b = options_settings(&b, 7);
    ck_assert_str_eq(text_a, text_b);
    ck_assert_ptr_nonnull(strstr(text_a, "--seed=1\n"));
    free(text_b);
    text_b = options_settings(&b, 8);
    ck_assert_str_ne(text_a, text_b);
    free(text_a);
    free(text_b);
    options_free(&a);
    options_free(&b);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_parts");
    TCase *adamw = tcase_create("adamw");

    tcase_add_loop_test(adamw, adamw_is_that_of_the_paper, 0, 4);
    suite_add_tcase(suite, adamw);
    SUITE_ADD(suite, learning_rate_rises_then_falls);
    SUITE_ADD(suite, bias_goes_against_the_counts);
    SUITE_ADD(suite, squares_are_summed_in_double);
    SUITE_ADD(suite, normal_numbers_have_their_moments);
    SUITE_ADD(suite, the_end_of_every_file_is_held_out);
    SUITE_ADD(suite, samples_are_text_and_depend_on_their_key_alone);
    SUITE_ADD(suite, guessing_by_frequency_is_the_entropy);
    SUITE_ADD(suite, short_and_missing_texts_are_refused);
    SUITE_ADD(suite, bad_values_are_refused);
    SUITE_ADD(suite, the_layout_follows_the_ranks);
    SUITE_ADD(suite, settings_hold_what_ranks_must_share);
    return suite_run(suite);
}
