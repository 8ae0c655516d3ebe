/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_attention_cpu.c: what attention_cpu computes, against its definition, finite differences and
 * causality. */
#include "attention_problem.h"

#include <stdbool.h>

static problem_t problem;

static void load(void)
{
    ck_assert_msg(rig_open(&problem.rig, "attention_cpu") == DP_OK, "%s", dp_last_error());
}

static dp_attention_config_t sized(dp_dtype_t dtype, uint32_t batch, uint32_t sequence, uint32_t hidden,
                                   uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t value_dim)
{
    dp_attention_config_t c =
        rig_config(&problem.rig, dtype, batch, sequence, hidden, heads, kv_heads, head_dim);

    c.value_dim = value_dim;
    return c;
}

static void check_forward(const dp_attention_config_t *c, uint64_t seed)
{
    double error;

    problem_open(&problem, c, seed);
    run_forward(&problem);
    error = forward_error(&problem, 0);
    ck_assert_msg(error < (c->shape.dtype == DP_F32 ? 2e-5 : 1e-12),
                  "dtype %d batch %u sequence %u heads %u kv_heads %u value_dim %u: error %g",
                  (int)c->shape.dtype, c->shape.batch, c->shape.sequence, c->heads, c->kv_heads, c->value_dim,
                  error);
    problem_close(&problem);
}

static const dp_dtype_t dtypes[] = {DP_F32, DP_F64};
static const struct {
    uint32_t heads, kv_heads, value_dim;
} groupings[] = {{1, 1, 0}, {4, 1, 5}, {4, 2, 9}, {4, 4, 1}};

START_TEST(forward_equals_definition)
{
    static const uint32_t sequences[] = {1, 2, 17, 64, 129}, batches[] = {1, 3};

    for (size_t s = 0; s < 5; s++)
        for (size_t b = 0; b < 2; b++)
            for (size_t g = 0; g < 4; g++) {
                const dp_attention_config_t c =
                    sized(dtypes[_i], batches[b], sequences[s], 13, groupings[g].heads, groupings[g].kv_heads,
                          6, groupings[g].value_dim);
                check_forward(&c, 100 * s + 10 * b + g);
            }
}
END_TEST

/* Sequences whose tiles cover several key blocks, the last of them ragged. */
START_TEST(forward_spans_key_blocks)
{
    static const uint32_t sequences[] = {255, 256, 257, 320, 515};

    for (size_t s = 0; s < 5; s++) {
        const dp_attention_config_t c = sized(dtypes[_i], 1, sequences[s], 16, 2, 1, 8, 0);
        check_forward(&c, s);
    }
}
END_TEST

START_TEST(forward_heeds_eps_and_theta)
{
    dp_attention_config_t c = sized(dtypes[_i], 2, 33, 8, 2, 2, 4, 0);

    c.shape.norm_eps = 0.5f;
    c.rope_theta = 7;
    check_forward(&c, 1);
}
END_TEST

/* The loss whose gradient is dy: sum of dy * y, by the definition. */
static double loss(const naive_t *n, const double *params, const double *x, const double *dy, double *y)
{
    double sum = 0;

    naive_forward(n, params, x, 0, y);
    for (size_t i = 0; i < n->batch * n->sequence * n->hidden; i++)
        sum += dy[i] * y[i];
    return sum;
}

typedef struct difference {
    naive_t n;
    double *params, *x, *dy, *y;
} difference_t;

static difference_t difference_open(void)
{
    return (difference_t){naive_of(&problem.config), buffer_copy(&problem.params), buffer_copy(&problem.x),
                          buffer_copy(&problem.dy), buffer_copy(&problem.y)};
}

static void difference_close(difference_t *d)
{
    free(d->params);
    free(d->x);
    free(d->dy);
    free(d->y);
}

/* Derivative of the loss along direction[count] added to at[count], which lies in d: four-point central
 * difference. */
static double derivative(difference_t *d, double *at, const double *direction, size_t count)
{
    static const double steps[] = {1, -1, 2, -2}, weights[] = {8, -8, -1, 1};
    const double h = 1e-3;
    double sum = 0, *start = malloc(count * sizeof(*start));

    memcpy(start, at, count * sizeof(*start));
    for (int s = 0; s < 4; s++) {
        for (size_t i = 0; i < count; i++)
            at[i] = start[i] + steps[s] * h * direction[i];
        sum += weights[s] * loss(&d->n, d->params, d->x, d->dy, d->y);
    }
    memcpy(at, start, count * sizeof(*start));
    free(start);
    return sum / (12 * h);
}

static void check_each(difference_t *d, double *at, const buffer_t *gradient, const char *what)
{
    const double one = 1;

    for (size_t i = 0; i < buffer_count(gradient); i++) {
        const double expected = derivative(d, at + i, &one, 1), got = buffer_get(gradient, i);

        ck_assert_msg(fabs(got - expected) <= 1e-8 * (1 + fabs(expected)),
                      "d%s[%zu] is %.12g, by differences %.12g", what, i, got, expected);
    }
}

START_TEST(gradients_equal_finite_differences)
{
    static const uint32_t shapes[][6] = {/* batch, sequence, heads, kv_heads, head_dim, value_dim */
                                         {1, 1, 1, 1, 2, 0},
                                         {2, 5, 4, 2, 4, 3},
                                         {1, 7, 2, 1, 2, 5},
                                         {3, 3, 3, 3, 6, 0}};
    difference_t d;

    for (size_t s = 0; s < 4; s++) {
        const uint32_t *n = shapes[s];
        const dp_attention_config_t c = sized(DP_F64, n[0], n[1], 5, n[2], n[3], n[4], n[5]);

        problem_open(&problem, &c, 40 + s);
        run_all(&problem, POISON_NAN);
        d = difference_open();
        check_each(&d, d.x, &problem.dx, "x");
        check_each(&d, d.params, &problem.grads, "params");
        difference_close(&d);
        problem_close(&problem);
    }
}
END_TEST

/* Along a random direction: one number stands for a whole tensor. */
static void check_along(difference_t *d, double *at, const buffer_t *gradient, size_t first, size_t count,
                        const char *what)
{
    uint64_t seed = 77;
    double got = 0, size = 0, expected, *direction = malloc(count * sizeof(*direction));

    for (size_t i = 0; i < count; i++) {
        direction[i] = next_random(&seed) / sqrt((double)count);
        got += direction[i] * buffer_get(gradient, first + i);
        size += fabs(direction[i] * buffer_get(gradient, first + i));
    }
    expected = derivative(d, at + first, direction, count);
    ck_assert_msg(fabs(got - expected) <= 1e-8 * (1 + size),
                  "%s: the gradient gives %.12g, differences %.12g", what, got, expected);
    free(direction);
}

START_TEST(gradients_across_tiles)
{
    static const uint32_t sequences[] = {63, 65, 128, 257, 330};
    dp_param_t params[5];
    difference_t d;

    for (size_t s = 0; s < 5; s++) {
        const dp_attention_config_t c = sized(DP_F64, 2, sequences[s], 8, 4, 2, 4, 6);

        problem_open(&problem, &c, 60 + s);
        run_all(&problem, POISON_NAN);
        d = difference_open();
        ck_assert_int_eq(problem.rig.vt->params(problem.attention, params), DP_OK);
        check_along(&d, d.x, &problem.dx, 0, buffer_count(&problem.dx), "x");
        for (size_t i = 0; i < 5; i++)
            check_along(&d, d.params, &problem.grads, params[i].offset, params[i].count, params[i].name);
        difference_close(&d);
        problem_close(&problem);
    }
}
END_TEST

/* |a - b| / |b| over all elements. */
static double distance(const buffer_t *a, const double *b)
{
    double difference = 0, size = 0;

    for (size_t i = 0; i < buffer_count(a); i++) {
        difference += (buffer_get(a, i) - b[i]) * (buffer_get(a, i) - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(difference / size);
}

START_TEST(f32_gradients_equal_f64)
{
    dp_attention_config_t c = sized(DP_F64, 2, 300, 24, 4, 2, 8, 12);
    double *dx, *grads;

    problem_open(&problem, &c, 5);
    round_to_float(&problem.x);
    round_to_float(&problem.dy);
    round_to_float(&problem.params);
    run_all(&problem, POISON_NAN);
    dx = buffer_copy(&problem.dx);
    grads = buffer_copy(&problem.grads);
    problem_close(&problem);

    c.shape.dtype = DP_F32;
    problem_open(&problem, &c, 5);
    run_all(&problem, POISON_NAN);
    ck_assert_double_lt(distance(&problem.dx, dx), 1e-5);
    ck_assert_double_lt(distance(&problem.grads, grads), 1e-5);
    problem_close(&problem);
    free(dx);
    free(grads);
}
END_TEST

static void set_token(const buffer_t *b, size_t token, size_t hidden, double value)
{
    for (size_t i = 0; i < hidden; i++)
        buffer_set(b, token * hidden + i, value * (double)(i + 1));
}

START_TEST(no_output_sees_the_future)
{
    static const size_t changed[] = {0, 1, 63, 64, 65, 255, 256, 299};
    const size_t sequence = 300, hidden = 9;
    const dp_dtype_t dtype = dtypes[_i];
    const size_t row = hidden * element_bytes(dtype);
    const dp_attention_config_t c = sized(dtype, 3, (uint32_t)sequence, (uint32_t)hidden, 4, 2, 8, 0);
    unsigned char *before;

    problem_open(&problem, &c, 9);
    run_forward(&problem);
    before = malloc(problem.y.bytes);
    memcpy(before, buffer_data(&problem.y), problem.y.bytes);
    for (size_t i = 0; i < sizeof(changed) / sizeof(changed[0]); i++) {
        const size_t t = sequence + changed[i]; /* in the middle one of three sequences */
        unsigned char *x = hide(&problem.x, 0), *after = buffer_data(&problem.y);

        memcpy(buffer_data(&problem.x), x, problem.x.bytes);
        set_token(&problem.x, t, hidden, 3);
        problem_poison(&problem, POISON_NAN);
        run_forward(&problem);
        ck_assert_msg(memcmp(before, after, t * row) == 0, "token %zu changed what comes before it",
                      changed[i]);
        ck_assert(memcmp(before + 2 * sequence * row, after + 2 * sequence * row, sequence * row) == 0);
        for (size_t later = t; later < 2 * sequence; later++)
            ck_assert(memcmp(before + later * row, after + later * row, row) != 0);
        unhide(&problem.x, x);
    }
    free(before);
    problem_close(&problem);
}
END_TEST

/* The gradient of one token's output reaches no later token and no other sequence: exactly nothing arrives
 * there. */
START_TEST(no_gradient_reaches_the_future)
{
    static const size_t wanted[] = {0, 1, 64, 127, 255, 256, 270};
    const size_t sequence = 300, hidden = 9;
    const dp_attention_config_t c = sized(dtypes[_i], 2, (uint32_t)sequence, (uint32_t)hidden, 4, 2, 8, 0);

    problem_open(&problem, &c, 9);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        buffer_poison(&problem.dy, POISON_ZERO);
        set_token(&problem.dy, wanted[i], hidden, 1);
        run_all(&problem, POISON_NAN);
        for (size_t t = 0; t <= wanted[i]; t++)
            ck_assert_double_ne(buffer_get(&problem.dx, t * hidden), 0);
        for (size_t e = (wanted[i] + 1) * hidden; e < buffer_count(&problem.dx); e++)
            ck_assert_double_eq(buffer_get(&problem.dx, e), 0);
    }
    problem_close(&problem);
}
END_TEST

/* NaN is for the engine to find, not for a kernel to hide. */
START_TEST(nan_shows_from_its_token_on)
{
    const size_t sequence = 130, hidden = 6, bad = 70;
    const dp_attention_config_t c = sized(dtypes[_i], 1, (uint32_t)sequence, (uint32_t)hidden, 2, 1, 4, 0);

    problem_open(&problem, &c, 3);
    buffer_set(&problem.x, bad * hidden + 2, (double)NAN);
    run_forward(&problem);
    for (size_t t = bad; t < sequence; t++)
        ck_assert(isnan(buffer_get(&problem.y, t * hidden)));
    problem_close(&problem);
}
END_TEST

START_TEST(micro_batches_add_up)
{
    const dp_dtype_t dtype = dtypes[_i];
    const dp_attention_config_t c = sized(dtype, 2, 70, 12, 4, 2, 6, 4);
    double *one, *two, *both;

    problem_open(&problem, &c, 21);
    run_all(&problem, POISON_NAN);
    one = buffer_copy(&problem.grads);

    random_fill(&problem.x, 500, 2);
    random_fill(&problem.dy, 501, 1);
    run_all(&problem, POISON_NAN);
    both = buffer_copy(&problem.grads);

    buffer_poison(&problem.grads, POISON_ZERO);
    run_all(&problem, POISON_NAN);
    two = buffer_copy(&problem.grads);
    for (size_t i = 0; i < buffer_count(&problem.grads); i++)
        ck_assert_double_le(fabs(both[i] - one[i] - two[i]),
                            (dtype == DP_F32 ? 1e-6 : 1e-15) * 16 * (1 + fabs(one[i]) + fabs(two[i])));
    free(one);
    free(two);
    free(both);
    problem_close(&problem);
}
END_TEST

static void keep(const buffer_t *b, unsigned char **copy)
{
    *copy = malloc(b->bytes);
    ck_assert_ptr_nonnull(*copy);
    memcpy(*copy, buffer_data(b), b->bytes);
}

static void check_same(const buffer_t *b, unsigned char *copy)
{
    ck_assert(memcmp(copy, buffer_data(b), b->bytes) == 0);
    free(copy);
}

/* Stale memory, another instance, other addresses and alignments: nothing but the inputs shows in the
 * bits. A layer's parameters lie where the layers before it on its rank end, so alignment differs between
 * pipeline depths. */
START_TEST(same_inputs_same_bits)
{
    static const int poisons[] = {POISON_NAN, POISON_ZERO, POISON_LARGE};
    unsigned char *y, *dx, *grads;
    const dp_attention_config_t c = sized(dtypes[_i], 2, 270, 20, 4, 2, 10, 7);

    for (size_t i = 0; i < 3; i++) {
        problem.shift = 3 * i;
        problem_open(&problem, &c, 33);
        random_fill(&problem.grads, 8, 1);
        run_all(&problem, poisons[i]);
        if (i > 0) {
            check_same(&problem.y, y);
            check_same(&problem.dx, dx);
            check_same(&problem.grads, grads);
        }
        keep(&problem.y, &y);
        keep(&problem.dx, &dx);
        keep(&problem.grads, &grads);
        problem_close(&problem);
    }
    free(y);
    free(dx);
    free(grads);
}
END_TEST

/* Two micro-batches in flight: only saved memory is theirs, and W may come long after. */
START_TEST(micro_batches_in_flight_do_not_meet)
{
    unsigned char *saved, *grads;
    const dp_attention_config_t c = sized(dtypes[_i], 1, 80, 12, 2, 1, 6, 0);

    problem_open(&problem, &c, 12);
    run_all(&problem, POISON_NAN);
    keep(&problem.grads, &grads);

    buffer_poison(&problem.grads, POISON_ZERO);
    run_forward(&problem);
    run_backward_input(&problem);
    saved = hide(&problem.saved, POISON_NAN);
    random_fill(&problem.x, 71, 1);
    random_fill(&problem.dy, 72, 1);
    run_forward(&problem);
    run_backward_input(&problem);
    unhide(&problem.saved, saved);
    run_backward_weight(&problem);
    check_same(&problem.grads, grads);
    problem_close(&problem);
}
END_TEST

START_TEST(first_stage_needs_no_dx)
{
    unsigned char *grads;
    const dp_attention_config_t c = sized(dtypes[_i], 2, 66, 12, 2, 1, 6, 0);
    dp_io_t io;

    problem_open(&problem, &c, 12);
    run_all(&problem, POISON_NAN);
    keep(&problem.grads, &grads);

    buffer_poison(&problem.grads, POISON_ZERO);
    problem_poison(&problem, POISON_NAN);
    run_forward(&problem);
    io = problem_io(&problem);
    io.dy = buffer_data(&problem.dy);
    ck_assert_int_eq(problem.rig.vt->backward_input(problem.attention, &io, rig_stream(&problem.rig)), DP_OK);
    run_backward_weight(&problem);
    check_same(&problem.grads, grads);
    problem_close(&problem);
}
END_TEST

START_TEST(outputs_may_take_the_place_of_inputs)
{
    unsigned char *y, *dx;
    const dp_attention_config_t c = sized(dtypes[_i], 2, 66, 12, 2, 1, 6, 0);
    dp_io_t io;

    problem_open(&problem, &c, 12);
    run_all(&problem, POISON_NAN);
    keep(&problem.y, &y);
    keep(&problem.dx, &dx);

    problem_poison(&problem, POISON_NAN);
    io = problem_io(&problem);
    io.x = io.y = buffer_data(&problem.x);
    ck_assert_int_eq(problem.rig.vt->forward(problem.attention, &io, rig_stream(&problem.rig)), DP_OK);
    io = problem_io(&problem);
    io.dy = io.dx = buffer_data(&problem.dy);
    ck_assert_int_eq(problem.rig.vt->backward_input(problem.attention, &io, rig_stream(&problem.rig)), DP_OK);
    check_same(&problem.x, y);
    check_same(&problem.dy, dx);
    problem_close(&problem);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("attention_cpu");
    TCase *tc = tcase_create("attention_cpu");
    SRunner *sr = srunner_create(s);
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, load, NULL);
    tcase_add_loop_test(tc, forward_equals_definition, 0, 2);
    tcase_add_loop_test(tc, forward_spans_key_blocks, 0, 2);
    tcase_add_loop_test(tc, forward_heeds_eps_and_theta, 0, 2);
    tcase_add_test(tc, gradients_equal_finite_differences);
    tcase_add_test(tc, gradients_across_tiles);
    tcase_add_test(tc, f32_gradients_equal_f64);
    tcase_add_loop_test(tc, no_output_sees_the_future, 0, 2);
    tcase_add_loop_test(tc, no_gradient_reaches_the_future, 0, 2);
    tcase_add_loop_test(tc, nan_shows_from_its_token_on, 0, 2);
    tcase_add_loop_test(tc, micro_batches_add_up, 0, 2);
    tcase_add_loop_test(tc, same_inputs_same_bits, 0, 2);
    tcase_add_loop_test(tc, micro_batches_in_flight_do_not_meet, 0, 2);
    tcase_add_loop_test(tc, first_stage_needs_no_dx, 0, 2);
    tcase_add_loop_test(tc, outputs_may_take_the_place_of_inputs, 0, 2);
    suite_add_tcase(s, tc);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed == 0 ? 0 : 1;
}
