/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_attention_cpu_robust.c: large logits, large and tiny activations, long sequences. */
#include "attention_problem.h"

static problem_t problem;

static void load(void)
{
    ck_assert_msg(rig_open(&problem.rig, "attention_cpu") == DP_OK, "%s", dp_last_error());
}

static dp_attention_config_t sized(dp_dtype_t dtype, uint32_t batch, uint32_t sequence, uint32_t hidden,
                                   uint32_t heads, uint32_t kv_heads, uint32_t head_dim)
{
    return rig_config(&problem.rig, dtype, batch, sequence, hidden, heads, kv_heads, head_dim);
}

static const dp_dtype_t dtypes[] = {DP_F32, DP_F64};

static void scale_param(size_t index, double factor)
{
    dp_param_t params[5];

    ck_assert_int_eq(problem.rig.vt->params(problem.attention, params), DP_OK);
    for (size_t i = params[index].offset; i < params[index].offset + params[index].count; i++)
        buffer_set(&problem.params, i, factor * buffer_get(&problem.params, i));
}

static void check_finite(const buffer_t *b, const char *what)
{
    for (size_t i = 0; i < buffer_count(b); i++)
        ck_assert_msg(isfinite(buffer_get(b, i)), "%s[%zu] is %g", what, i, buffer_get(b, i));
}

/* Logits around 1e4: exp of them would overflow, of their differences underflow. A logit's own rounding,
 * 1e4 * 2^-53, is what the double result may be off by. */
START_TEST(large_logits_equal_definition)
{
    const dp_attention_config_t c = sized(DP_F64, 1, 300, 16, 2, 1, 8);

    problem_open(&problem, &c, 3);
    scale_param(1, 1e4);
    run_all(&problem, POISON_NAN);
    ck_assert_double_lt(forward_error(&problem, 0), 1e-9);
    check_finite(&problem.dx, "dx");
    check_finite(&problem.grads, "grads");
    problem_close(&problem);
}
END_TEST

/* All tokens are the same, so that all values are: whatever the logits, probabilities that add up to 1
 * make y of one value, and the gradient of wv does not depend on them. Rotations make the logits differ. */
static void run_same_tokens(double logit_scale)
{
    const size_t hidden = problem.config.shape.hidden;

    for (size_t i = 0; i < buffer_count(&problem.x); i++)
        buffer_set(&problem.x, i, buffer_get(&problem.x, i % hidden));
    scale_param(1, logit_scale);
    run_all(&problem, POISON_NAN);
}

START_TEST(probabilities_add_up_at_any_logits)
{
    static const double scales[] = {1e-20, 1, 1e3, 1e6};
    const dp_dtype_t dtype = dtypes[_i];
    const double tolerance = dtype == DP_F32 ? 4e-6 : 1e-14;
    const dp_attention_config_t c = sized(dtype, 1, 300, 16, 2, 1, 8);
    double *y = NULL, *dwv = NULL, size = 0;
    dp_param_t params[5];

    for (size_t s = 0; s < 4; s++) {
        problem_open(&problem, &c, 5);
        ck_assert_int_eq(problem.rig.vt->params(problem.attention, params), DP_OK);
        run_same_tokens(scales[s]);
        if (s == 0) {
            y = buffer_copy(&problem.y);
            dwv = buffer_copy(&problem.grads);
            for (size_t i = params[3].offset; i < params[4].offset; i++)
                size = fmax(size, fabs(dwv[i]));
        }
        ck_assert_double_lt(largest_difference(&problem.y, y, 0), tolerance);
        for (size_t i = params[3].offset; i < params[4].offset; i++)
            ck_assert_msg(fabs(buffer_get(&problem.grads, i) - dwv[i]) < tolerance * size,
                          "logits times %g: dwv is %.9g, not %.9g", scales[s], buffer_get(&problem.grads, i),
                          dwv[i]);
        problem_close(&problem);
    }
    free(y);
    free(dwv);
}
END_TEST

/* RMSNorm takes the size out of x: its squares may leave the range of float. */
START_TEST(size_of_activations_does_not_matter)
{
    static const double sizes[] = {1e-15, 1e15, 1e30};
    const dp_attention_config_t c = sized(DP_F32, 1, 40, 16, 2, 1, 8);
    double *grads, *x;

    problem_open(&problem, &c, 5);
    x = buffer_copy(&problem.x);
    run_all(&problem, POISON_NAN);
    grads = buffer_copy(&problem.grads);
    for (size_t s = 0; s < 3; s++) {
        const double expected = sizes[s] < 1 ? 0 : 1; /* below sqrt(eps) the norm fades out */

        for (size_t i = 0; i < buffer_count(&problem.x); i++)
            buffer_set(&problem.x, i, sizes[s] * x[i]);
        buffer_poison(&problem.grads, POISON_ZERO);
        run_all(&problem, POISON_NAN);
        check_finite(&problem.y, "y");
        check_finite(&problem.dx, "dx");
        for (size_t i = 0; i < buffer_count(&problem.grads); i++)
            ck_assert_double_le(fabs(buffer_get(&problem.grads, i) - expected * grads[i]),
                                1e-4 * (1 + fabs(expected * grads[i])));
    }
    free(x);
    free(grads);
    problem_close(&problem);
}
END_TEST

/* Long rows: sums of thousands of small probabilities, positions far from 0. Only the last tokens are
 * compared. */
START_TEST(long_sequence_equals_definition)
{
    const uint32_t sequence = 4099;
    const dp_attention_config_t c = sized(dtypes[_i], 1, sequence, 4, 1, 1, 4);

    problem_open(&problem, &c, 8);
    run_all(&problem, POISON_NAN);
    ck_assert_double_lt(forward_error(&problem, sequence - 70), dtypes[_i] == DP_F32 ? 2e-5 : 1e-12);
    check_finite(&problem.dx, "dx");
    problem_close(&problem);
}
END_TEST

/* float over a long sequence with gradients as double computes them. */
START_TEST(long_sequence_f32_gradients)
{
    dp_attention_config_t c = sized(DP_F64, 1, 2050, 8, 2, 1, 4);
    double *dx, *grads, largest = 0;

    problem_open(&problem, &c, 8);
    round_to_float(&problem.x);
    round_to_float(&problem.dy);
    round_to_float(&problem.params);
    run_all(&problem, POISON_NAN);
    dx = buffer_copy(&problem.dx);
    grads = buffer_copy(&problem.grads);
    problem_close(&problem);

    c.shape.dtype = DP_F32;
    problem_open(&problem, &c, 8);
    run_all(&problem, POISON_NAN);
    for (size_t i = 0; i < buffer_count(&problem.grads); i++)
        largest = fmax(largest, fabs(grads[i]));
    ck_assert_double_lt(largest_difference(&problem.dx, dx, 0), 1e-4);
    ck_assert_double_lt(largest_difference(&problem.grads, grads, 0), 1e-5 * largest);
    problem_close(&problem);
    free(dx);
    free(grads);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("attention_cpu_robust");
    TCase *tc = tcase_create("attention_cpu_robust");
    SRunner *sr = srunner_create(s);
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, load, NULL);
    tcase_add_test(tc, large_logits_equal_definition);
    tcase_add_loop_test(tc, probabilities_add_up_at_any_logits, 0, 2);
    tcase_add_test(tc, size_of_activations_does_not_matter);
    tcase_add_loop_test(tc, long_sequence_equals_definition, 0, 2);
    tcase_add_test(tc, long_sequence_f32_gradients);
    suite_add_tcase(s, tc);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed == 0 ? 0 : 1;
}
