/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_moe_cpu.c: one rank of moe_cpu against the naive reference in double: outputs directly, every gradient by central
 * finite differences. */
#include "../support/moe_block.h"
#include "../support/moe_reference.h"
#include "../support/suite.h"

#include <stdio.h>

/* One rank with its parameters, and the same numbers for the reference. */
typedef struct trial {
    inline_group_t group;
    block_t block;
    guarded_t params, grads;
    double *values; /* params in double */
    int *chosen;
    reference_t reference;
} trial_t;

static trial_t *trial_open(const dp_moe_config_t *config, uint64_t seed)
{
    const dp_dtype_t dtype = config->shape.dtype;
    trial_t *b = calloc(1, sizeof(*b));
    size_t i, count;

    inline_group_open(&b->group, 1);
    block_open(&b->block, config, &b->group, 0);
    count = b->block.sizes.param_count;
    b->params = guarded_allocate(count * dp_dtype_bytes(dtype));
    b->grads = guarded_zeros(count * dp_dtype_bytes(dtype));
    fill(dtype, &b->params, seed, 0.75);
    b->values = calloc(count, sizeof(*b->values));
    b->chosen =
        calloc((size_t)config->shape.sequence * config->shape.batch * config->top_k, sizeof(*b->chosen));
    b->reference = reference_of(config, b->values, b->chosen);
    ck_assert_uint_eq(count, reference_params(&b->reference));
    for (i = 0; i < (size_t)b->reference.hidden; i++)
        real_set(dtype, guarded_memory(&b->params), i, 1 + noise(seed, i) / 4);
    for (i = 0; i < count; i++)
        b->values[i] = real_at(dtype, guarded_memory(&b->params), i);
    return b;
}

static void trial_set(trial_t *b, size_t i, double value)
{
    real_set(b->block.config.shape.dtype, guarded_memory(&b->params), i, value);
    b->values[i] = real_at(b->block.config.shape.dtype, guarded_memory(&b->params), i);
}

static void trial_close(trial_t *b)
{
    block_close(&b->block);
    guarded_free(&b->params, "params");
    guarded_free(&b->grads, "grads");
    inline_group_close(&b->group);
    free(b->values);
    free(b->chosen);
    free(b);
}

static pass_t trial_pass(trial_t *b, uint64_t seed)
{
    pass_t p = pass_open(&b->block, guarded_memory(&b->params), guarded_memory(&b->grads), 0);

    fill(b->block.config.shape.dtype, &p.x, seed, 2);
    fill(b->block.config.shape.dtype, &p.dy, seed + 1, 1);
    return p;
}

static double *doubles_of(const trial_t *b, const guarded_t *g)
{
    const dp_dtype_t dtype = b->block.config.shape.dtype;
    const size_t count = g->bytes / dp_dtype_bytes(dtype);
    double *out = calloc(count, sizeof(*out));
    size_t i;

    for (i = 0; i < count; i++)
        out[i] = real_at(dtype, guarded_memory(g), i);
    return out;
}

static size_t bias_at(const trial_t *b, int expert)
{
    return (size_t)(b->reference.hidden + b->reference.hidden * b->reference.experts + expert);
}

static void expect_near(double got, double wanted, double tolerance, const char *what, size_t i)
{
    if (!(fabs(got - wanted) <= tolerance * (1 + fabs(wanted))))
        ck_abort_msg("%s[%zu] is %.17g, not %.17g", what, i, got, wanted);
}

static double largest(const double *values, size_t count)
{
    double most = 0;
    size_t i;

    for (i = 0; i < count; i++)
        most = fabs(values[i]) > most ? fabs(values[i]) : most;
    return most;
}

static void describe(char *text, size_t bytes, const dp_moe_config_t *c)
{
    snprintf(text, bytes, "%s T %u d %u E %u k %u f %u shared %u %s%s scale %g alpha %g",
             c->shape.dtype == DP_F32 ? "f32" : "f64", c->shape.sequence, c->shape.hidden, c->experts,
             c->top_k, c->expert_hidden, c->shared_experts,
             c->gate == DP_GATE_SOFTMAX ? "softmax" : "sigmoid", c->normalize ? " normalized" : "",
             (double)c->scale, (double)c->aux_alpha);
}

static void check_forward(const dp_moe_config_t *config)
{
    const double tolerance = config->shape.dtype == DP_F32 ? 4e-6 : 1e-14;
    trial_t *b = trial_open(config, 3);
    pass_t p = trial_pass(b, 5);
    double *h = doubles_of(b, &p.x), *wanted = doubles_of(b, &p.y), *got, aux, most;
    char what[160];
    size_t i;

    describe(what, sizeof(what), config);
    pass_forward(&b->block, &p);
    got = doubles_of(b, &p.y);
    aux = reference_forward(&b->reference, h, wanted);
    most = largest(wanted, block_boundary(&b->block));
    for (i = 0; i < block_boundary(&b->block); i++)
        if (!(fabs(got[i] - wanted[i]) <= tolerance * (1 + most)))
            ck_abort_msg("%s: y[%zu] of at most %g is %.17g, not %.17g", what, i, most, got[i], wanted[i]);
    expect_near(p.aux_loss, aux, tolerance, "auxiliary loss", 0);
    ck_assert(config->aux_alpha > 0 ? aux > 0 : p.aux_loss == 0);
    free(h);
    free(wanted);
    free(got);
    pass_close(&p);
    trial_close(b);
}

/* The gate, what is done with its scores, and the auxiliary loss. */
static const struct {
    dp_gate_t gate;
    uint32_t normalize;
    float scale, aux_alpha;
} gates[] = {
    {DP_GATE_SOFTMAX, 0, 0, 0},    {DP_GATE_SOFTMAX, 1, 2.5F, 0.25F}, {DP_GATE_SIGMOID, 0, 0.5F, 0.5F},
    {DP_GATE_SIGMOID, 1, 2.5F, 0}, {DP_GATE_SOFTMAX, 0, 0, 0.125F},   {DP_GATE_SIGMOID, 1, 0, 1},
};

START_TEST(forward_is_the_reference)
{
    static const uint32_t tokens[] = {1, 7, 64}, experts[] = {1, 4, 8}, hidden[] = {1, 5, 16};
    const dp_dtype_t dtype = _i < 6 ? DP_F32 : DP_F64;
    uint32_t t, e, k, shared;

    for (t = 0; t < 3; t++)
        for (e = 0; e < 3; e++)
            for (k = 0; k < 3; k++)
                for (shared = 0; shared < 3; shared++) {
                    const uint32_t top_k = k == 0 ? 1 : k == 1 ? 2 : experts[e];
                    dp_moe_config_t c;

                    if (top_k > experts[e] || (k == 2 && top_k <= 2))
                        continue;
                    c = block_config(dtype, tokens[t], hidden[(t + e + k) % 3], experts[e], top_k, 3 + 4 * k,
                                     shared);
                    c.gate = gates[_i % 6].gate;
                    c.normalize = gates[_i % 6].normalize;
                    c.scale = gates[_i % 6].scale;
                    c.aux_alpha = gates[_i % 6].aux_alpha;
                    check_forward(&c);
                }
}
END_TEST

START_TEST(forward_of_larger_blocks)
{
    dp_moe_config_t c = block_config(_i == 0 ? DP_F32 : DP_F64, 65, 96, 8, 3, 72, 1);

    c.shape.batch = 3;
    c.normalize = 1;
    c.shape.norm_eps = 0.5F;
    check_forward(&c);
}
END_TEST

/* ---- gradients ---- */

/* What the gradients are of: sum(y * dy) + aux_scale * auxiliary loss. */
static double loss(const trial_t *b, const double *h, const double *dy, double aux_scale, double *y)
{
    double total = aux_scale * reference_forward(&b->reference, h, y);
    size_t i;

    for (i = 0; i < block_boundary(&b->block); i++)
        total += y[i] * dy[i];
    return total;
}

static double slope(trial_t *b, double *variable, const double *h, const double *dy, double aux_scale,
                    double *y)
{
    const double at = *variable, step = 1e-5;
    double up, down;

    *variable = at + step;
    up = loss(b, h, dy, aux_scale, y);
    *variable = at - step;
    down = loss(b, h, dy, aux_scale, y);
    *variable = at;
    return (up - down) / (2 * step);
}

static void check_gradients(const dp_moe_config_t *config, double tolerance)
{
    trial_t *b = trial_open(config, 11);
    pass_t p = trial_pass(b, 13);
    double *h = doubles_of(b, &p.x), *dy = doubles_of(b, &p.dy), *y = doubles_of(b, &p.y), *dx, *grads;
    char what[160];
    size_t i;

    describe(what, sizeof(what), config);
    p.aux_scale = 3;
    pass_forward(&b->block, &p);
    pass_backward(&b->block, &p);
    dx = doubles_of(b, &p.dx);
    grads = doubles_of(b, &b->grads);
    (void)loss(b, h, dy, 3, y);
    b->reference.fixed = 1;
    for (i = 0; i < block_boundary(&b->block); i++)
        expect_near(dx[i], slope(b, h + i, h, dy, 3, y), tolerance, what, i);
    for (i = 0; i < b->block.sizes.param_count; i++) {
        double wanted = 0;
        int expert = (int)(i - bias_at(b, 0));

        if (i >= bias_at(b, 0) && expert < b->reference.experts) {
            int j;

            for (j = 0; j < b->reference.tokens * b->reference.top_k; j++)
                wanted += b->chosen[j] == expert;
            ck_assert_msg(grads[i] == wanted, "%s: expert %d was chosen %g times, not %g", what, expert,
                          wanted, grads[i]);
            continue;
        }
        expect_near(grads[i], slope(b, b->values + i, h, dy, 3, y), tolerance, what, i);
    }
    free(h);
    free(dy);
    free(y);
    free(dx);
    free(grads);
    pass_close(&p);
    trial_close(b);
}

START_TEST(gradients_are_finite_differences)
{
    static const uint32_t sizes[][6] = {
        /* T, d, E, k, f, shared */
        {5, 6, 4, 2, 3, 0}, {3, 4, 8, 3, 5, 1}, {1, 3, 4, 1, 2, 2}, {4, 5, 3, 3, 4, 1}, {6, 2, 1, 1, 3, 0},
    };
    size_t i;

    for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const uint32_t *s = sizes[i];
        dp_moe_config_t c = block_config(DP_F64, s[0], s[1], s[2], s[3], s[4], s[5]);

        c.gate = gates[_i].gate;
        c.normalize = gates[_i].normalize;
        c.scale = gates[_i].scale;
        c.aux_alpha = gates[_i].aux_alpha;
        check_gradients(&c, 1e-7);
        /* The same formulas in another type: the slopes are those of the rounded numbers. */
        c.shape.dtype = DP_F32;
        check_gradients(&c, 1e-4);
    }
}
END_TEST

/* Without dx (first stage) the weights' gradients are the same. */
START_TEST(dx_is_optional)
{
    dp_moe_config_t c = block_config(DP_F64, 6, 5, 4, 2, 3, _i);
    trial_t *b = trial_open(&c, 2);
    const size_t bytes = b->grads.bytes;
    unsigned char *wanted = malloc(bytes);
    int round;

    for (round = 0; round < 2; round++) {
        pass_t p = trial_pass(b, 9);
        step_t s;

        memset(guarded_memory(&b->grads), 0, bytes);
        pass_forward(&b->block, &p);
        for (s = COMBINE_B; s <= ROUTE_W; s++) {
            if (s == ROUTE_I && round == 1) {
                dp_moe_io_t io = pass_io(&b->block, &p, s);

                io.io.dx = NULL;
                ck_assert_int_eq(b->block.vt->route_backward_input(b->block.moe, &io, &b->block.compute),
                                 DP_OK);
                ck_assert_int_eq(b->block.compute.status, DP_OK);
            } else {
                pass_step(&b->block, &p, s);
            }
        }
        if (round == 0)
            memcpy(wanted, guarded_memory(&b->grads), bytes);
        else
            ck_assert_mem_eq(wanted, guarded_memory(&b->grads), bytes);
        pass_close(&p);
    }
    free(wanted);
    trial_close(b);
}
END_TEST

/* backward_weight adds: where 100 was before, there is 100 + gradient. */
START_TEST(weight_gradients_accumulate)
{
    dp_moe_config_t c = block_config(DP_F64, 6, 5, 4, 2, 3, 1);
    trial_t *b = trial_open(&c, 2);
    double *results[2];
    size_t i;
    int round;

    for (round = 0; round < 2; round++) {
        pass_t p = trial_pass(b, 9);

        for (i = 0; i < b->block.sizes.param_count; i++)
            real_set(DP_F64, guarded_memory(&b->grads), i, 100 * round);
        pass_forward(&b->block, &p);
        pass_backward(&b->block, &p);
        results[round] = doubles_of(b, &b->grads);
        pass_close(&p);
    }
    for (i = 0; i < b->block.sizes.param_count; i++)
        expect_near(results[1][i] - 100, results[0][i], 1e-12, "gradient", i);
    free(results[0]);
    free(results[1]);
    trial_close(b);
}
END_TEST

/* ---- the choice ---- */

static double *output(trial_t *b, double *aux)
{
    pass_t p = trial_pass(b, 21);
    double *y;

    memset(guarded_memory(&b->grads), 0, b->grads.bytes);
    pass_forward(&b->block, &p);
    y = doubles_of(b, &p.y);
    if (aux != NULL)
        *aux = p.aux_loss;
    pass_backward(&b->block, &p);
    pass_close(&p);
    return y;
}

static double count_of(const trial_t *b, int expert)
{
    return real_at(b->block.config.shape.dtype, guarded_memory(&b->grads), bias_at(b, expert));
}

/* A bias that is the same for all changes nothing; one that makes an expert win changes who is chosen, while the chosen
 * weight stays the score without the bias. */
START_TEST(bias_is_for_the_choice_alone)
{
    dp_moe_config_t c = block_config(DP_F64, 9, 5, 4, 1, 3, 0);
    trial_t *b;
    double *plain, *same, *forced, *wanted, *h;
    pass_t p;
    size_t i, differing = 0;
    int e;

    c.gate = _i == 0 ? DP_GATE_SOFTMAX : DP_GATE_SIGMOID;
    b = trial_open(&c, 4);
    for (e = 0; e < 4; e++)
        trial_set(b, bias_at(b, e), 0);
    plain = output(b, NULL);
    for (e = 0; e < 4; e++)
        trial_set(b, bias_at(b, e), 0.5);
    same = output(b, NULL);
    ck_assert_mem_eq(plain, same, block_boundary(&b->block) * sizeof(*plain));

    trial_set(b, bias_at(b, 2), 50);
    forced = output(b, NULL);
    for (e = 0; e < 4; e++)
        ck_assert_double_eq(count_of(b, e), e == 2 ? 9 : 0);
    p = trial_pass(b, 21);
    h = doubles_of(b, &p.x);
    wanted = doubles_of(b, &p.y);
    b->reference.fixed = 1;
    for (i = 0; i < 9; i++)
        b->chosen[i] = 2;
    for (e = 0; e < 4; e++)
        b->values[bias_at(b, e)] = 0;
    (void)reference_forward(&b->reference, h, wanted);
    for (i = 0; i < block_boundary(&b->block); i++) {
        expect_near(forced[i], wanted[i], 1e-12, "y", i);
        differing += forced[i] != plain[i];
    }
    ck_assert_uint_gt(differing, 0);
    pass_close(&p);
    free(plain);
    free(same);
    free(forced);
    free(wanted);
    free(h);
    trial_close(b);
}
END_TEST

START_TEST(ties_go_to_the_lower_expert)
{
    dp_moe_config_t c = block_config(DP_F32, 7, 4, 8, 3, 2, 0);
    trial_t *b = trial_open(&c, 4);
    size_t i;
    int e;

    for (i = 4; i < 4 + 4 * 8 + 8; i++)
        trial_set(b, i, 0); /* router and bias */
    free(output(b, NULL));
    for (e = 0; e < 8; e++)
        ck_assert_double_eq(count_of(b, e), e < 3 ? 7 : 0);
    trial_set(b, bias_at(b, 5), 0.25);
    trial_set(b, bias_at(b, 7), 0.25);
    free(output(b, NULL));
    for (e = 0; e < 8; e++)
        ck_assert_double_eq(count_of(b, e), e == 0 || e == 5 || e == 7 ? 7 : 0);
    trial_close(b);
}
END_TEST

/* Whatever the numbers are, k different experts are chosen and nothing is written where it should not be. */
START_TEST(numbers_that_are_none_do_no_harm)
{
    static const double values[] = {NAN, INFINITY, -INFINITY, 1e300, -1e300, 0};
    dp_moe_config_t c = block_config(_i % 2 == 0 ? DP_F32 : DP_F64, 5, 4, 8, 3, 2, 1);
    trial_t *b;
    pass_t p;
    double sum = 0;
    size_t i;
    int e;

    c.gate = _i / 2 % 2 == 0 ? DP_GATE_SOFTMAX : DP_GATE_SIGMOID;
    c.normalize = 1;
    c.aux_alpha = 1;
    b = trial_open(&c, 4);
    p = trial_pass(b, 3);
    for (i = 0; i < 20; i += 3)
        real_set(c.shape.dtype, guarded_memory(&p.x), i, values[(size_t)_i / 4]);
    if (_i % 3 == 0)
        trial_set(b, bias_at(b, 1), values[(size_t)_i / 4]);
    pass_forward(&b->block, &p);
    pass_backward(&b->block, &p);
    for (e = 0; e < 8; e++) {
        ck_assert(count_of(b, e) >= 0 && count_of(b, e) <= 5);
        sum += count_of(b, e);
    }
    ck_assert_double_eq(sum, 15);
    pass_close(&p);
    trial_close(b);
}
END_TEST

/* Sigmoids that are all 0 weigh nothing instead of dividing by 0. */
START_TEST(scores_that_vanish_give_no_weight)
{
    dp_moe_config_t c = block_config(DP_F64, 1, 2, 2, 2, 2, 0);
    trial_t *b;
    double *y, *h, aux;
    pass_t p;
    size_t i;

    c.gate = DP_GATE_SIGMOID;
    c.normalize = 1;
    c.aux_alpha = 1;
    b = trial_open(&c, 4);
    p = trial_pass(b, 21);
    h = doubles_of(b, &p.x);
    for (i = 0; i < 4; i++)
        trial_set(b, 2 + i, (h[i / 2] < 0 ? 1 : -1) * 1e4);
    y = output(b, &aux);
    for (i = 0; i < 2; i++)
        ck_assert_double_eq(y[i], h[i]);
    ck_assert_double_eq(aux, 0);
    for (i = 0; i < b->block.sizes.param_count; i++)
        ck_assert(isfinite(real_at(DP_F64, guarded_memory(&b->grads), i)));
    free(y);
    free(h);
    pass_close(&p);
    trial_close(b);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("moe_cpu");
    TCase *tc = tcase_create("against the reference");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, forward_is_the_reference, 0, 12);
    tcase_add_loop_test(tc, forward_of_larger_blocks, 0, 2);
    tcase_add_loop_test(tc, gradients_are_finite_differences, 0, 6);
    tcase_add_loop_test(tc, dx_is_optional, 0, 2);
    tcase_add_test(tc, weight_gradients_accumulate);
    suite_add_tcase(suite, tc);
    tc = tcase_create("choice");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, bias_is_for_the_choice_alone, 0, 2);
    tcase_add_test(tc, ties_go_to_the_lower_expert);
    tcase_add_loop_test(tc, numbers_that_are_none_do_no_harm, 0, 24);
    tcase_add_test(tc, scores_that_vanish_give_no_weight);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
