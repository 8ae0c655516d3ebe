/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_train_ends.c: embedding and head of the language-model trainer against finite differences
 * and plain sums. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "apps/train_moe/ends.h"
#include "tests/support/inline.h"
#include "tests/support/suite.h"

/* A model of embedding and head alone, on one micro-batch. */
typedef struct rig {
    ends_t ends;
    dp_part_t embedding, head;
    size_t T, d;
    dp_dtype_t dtype;
    bool tied;
    uint8_t *tokens, *targets;
    /* parameters and gradients of the two parts */
    char *table, *table_grad, *weights, *weights_grad;
    char *x, *dx, *logits;
    char *saved[2], *scratch;
    double loss;
} rig_t;

static void *zeroed(size_t bytes)
{
    void *memory = calloc(1, bytes);

    ck_assert_ptr_nonnull(memory);
    return memory;
}

static double get(const rig_t *rig, const char *values, size_t i)
{
    return rig->dtype == DP_F64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

static void set(const rig_t *rig, char *values, size_t i, double x)
{
    if (rig->dtype == DP_F64)
        ((double *)values)[i] = x;
    else
        ((float *)values)[i] = (float)x;
}

static void open_rig(rig_t *rig, dp_dtype_t dtype, uint32_t batch, uint32_t sequence, uint32_t hidden, bool tied)
{
    const compute_config_t config = {
        sizeof(config), {sizeof(config.shape), dtype, batch, sequence, hidden, 1e-5f}, &inline_device_vt, NULL, tied};
    const size_t size = dp_dtype_bytes(dtype), T = (size_t)batch * sequence, d = hidden;

    *rig = (rig_t){.T = T, .d = d, .dtype = dtype, .tied = tied};
    ck_assert_int_eq(ends_open(&rig->ends, NULL, "cpu", &config), DP_OK);
    ends_embedding(&rig->ends, &rig->embedding);
    ends_head(&rig->ends, &rig->head);
    ck_assert_uint_eq(rig->embedding.sizes->param_count, 256 * d);
    ck_assert_uint_eq(rig->head.sizes->param_count, 257 * d);
    rig->tokens = zeroed(T);
    rig->targets = zeroed(T);
    rig->table = zeroed(256 * d * size);
    rig->table_grad = zeroed(256 * d * size);
    rig->weights = zeroed(257 * d * size);
    rig->weights_grad = zeroed(257 * d * size);
    rig->x = zeroed(T * d * size);
    rig->dx = zeroed(T * d * size);
    rig->logits = zeroed(T * 256 * size);
    rig->saved[0] = zeroed(rig->embedding.sizes->saved_bytes);
    rig->saved[1] = zeroed(rig->head.sizes->saved_bytes);
    rig->scratch = zeroed(rig->head.sizes->scratch_bytes);
    for (size_t t = 0; t < T; t++) {
        /* some bytes come several times */
        rig->tokens[t] = (uint8_t)(t * 37 % 5 == 0 ? 255 : t * 37);
        rig->targets[t] = (uint8_t)(200 - t * 11);
    }
    for (size_t i = 0; i < 256 * d; i++)
        set(rig, rig->table, i, sin(0.7 * (double)i) + 0.1);
    for (size_t i = 0; i < 257 * d; i++)
        set(rig, rig->weights, i, i < d ? 1 + 0.3 * cos((double)i) : 0.5 * sin(1.3 * (double)i));
}

static void close_rig(rig_t *rig)
{
    char *const all[] = {rig->table, rig->table_grad, rig->weights,  rig->weights_grad, rig->x,
                         rig->dx,    rig->logits,     rig->saved[0], rig->saved[1],     rig->scratch};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
    ends_close(&rig->ends);
    free(rig->tokens);
    free(rig->targets);
}

static dp_segment_call_t embedding_call(rig_t *rig)
{
    return (dp_segment_call_t){
        .struct_size = sizeof(dp_segment_call_t),
        .params = rig->table,
        .grads = rig->table_grad,
        .saved = rig->saved[0],
        .input = rig->tokens,
    };
}

static dp_segment_call_t head_call(rig_t *rig, double scale)
{
    return (dp_segment_call_t){
        .struct_size = sizeof(dp_segment_call_t),
        .params = rig->weights,
        .grads = rig->weights_grad,
        .saved = rig->saved[1],
        .scratch = rig->scratch,
        .target = rig->targets,
        .loss = &rig->loss,
        .loss_scale = scale,
    };
}

static void forward(rig_t *rig)
{
    dp_segment_call_t embedding = embedding_call(rig), head = head_call(rig, 1);

    rig->loss = 0;
    embedding.y = rig->x;
    head.x = rig->x;
    head.output = rig->logits;
    ck_assert_int_eq(rig->embedding.segments[0].host_forward(rig->embedding.segments[0].self, &embedding), DP_OK);
    ck_assert_int_eq(rig->head.segments[0].host_forward(rig->head.segments[0].self, &head), DP_OK);
}

/* The input's gradient first, then everything it was made from is gone, then the weights': as the
 * engine may do. */
static void backward(rig_t *rig, double scale)
{
    const size_t bytes = rig->T * rig->d * dp_dtype_bytes(rig->dtype);
    dp_segment_call_t head = head_call(rig, scale), embedding = embedding_call(rig);

    head.dx = rig->dx;
    ck_assert_int_eq(rig->head.segments[0].host_backward_input(rig->head.segments[0].self, &head), DP_OK);
    embedding.dy = rig->dx;
    embedding.input = NULL;
    ck_assert_int_eq(rig->embedding.segments[0].host_backward_input(rig->embedding.segments[0].self, &embedding),
                     DP_OK);
    memset(rig->dx, 0xff, bytes);
    memset(rig->x, 0xff, bytes);
    head.dx = NULL;
    embedding.dy = NULL;
    ck_assert_int_eq(rig->head.segments[0].host_backward_weight(rig->head.segments[0].self, &head), DP_OK);
    ck_assert_int_eq(rig->embedding.segments[0].host_backward_weight(rig->embedding.segments[0].self, &embedding),
                     DP_OK);
}

/* The definition, in long double. */
static long double loss_by_definition(const rig_t *rig)
{
    long double loss = 0;

    for (size_t t = 0; t < rig->T; t++) {
        const size_t row = rig->tokens[t] * rig->d;
        long double squares = 0, sum = 0, chosen = 0;
        for (size_t i = 0; i < rig->d; i++)
            squares += (long double)get(rig, rig->table, row + i) * get(rig, rig->table, row + i);
        for (int b = 0; b < 256; b++) {
            long double logit = 0;
            for (size_t i = 0; i < rig->d; i++)
                logit += get(rig, rig->table, row + i) / sqrtl(squares / rig->d + (long double)1e-5f) *
                         get(rig, rig->weights, i) *
                         get(rig, rig->weights, rig->d + (rig->tied ? (size_t)b * rig->d + i : i * 256 + (size_t)b));
            sum += expl(logit);
            chosen = b == rig->targets[t] ? logit : chosen;
        }
        loss += (logl(sum) - chosen) / rig->T;
    }
    return loss;
}

static const struct shape {
    uint32_t batch, sequence, hidden;
} shapes[] = {{1, 1, 1}, {1, 3, 5}, {2, 7, 8}, {3, 5, 17}};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

START_TEST(loss_is_that_of_the_definition)
{
    rig_t rig;

    for (int i = 0; i < 4; i++) {
        const int f64 = i % 2;

        open_rig(&rig, f64 ? DP_F64 : DP_F32, shapes[_i].batch, shapes[_i].sequence, shapes[_i].hidden, i / 2);
        forward(&rig);
        ck_assert_double_eq_tol(rig.loss, (double)loss_by_definition(&rig), f64 ? 1e-13 : 2e-6);
        close_rig(&rig);
    }
}
END_TEST

/* Central differences in some elements of every parameter. */
static void check_differences(rig_t *rig, char *params, const char *grads, size_t count, double scale)
{
    const size_t stride = count / 97 + 1;
    const double h = 1e-5;

    for (size_t i = 0; i < count; i += stride) {
        const double value = get(rig, params, i);
        double up, down;
        set(rig, params, i, value + h);
        forward(rig);
        up = rig->loss;
        set(rig, params, i, value - h);
        forward(rig);
        down = rig->loss;
        set(rig, params, i, value);
        ck_assert_double_eq_tol(get(rig, grads, i), scale * (up - down) / (2 * h), 1e-9);
    }
}

START_TEST(gradients_are_finite_differences)
{
    const double scale = 0.37;
    rig_t rig;

    for (int tied = 0; tied < 2; tied++) {
        open_rig(&rig, DP_F64, shapes[_i].batch, shapes[_i].sequence, shapes[_i].hidden, tied);
        forward(&rig);
        backward(&rig, scale);
        check_differences(&rig, rig.table, rig.table_grad, 256 * rig.d, scale);
        check_differences(&rig, rig.weights, rig.weights_grad, 257 * rig.d, scale);
        /* rows of the table that were looked up, which a stride may miss */
        for (size_t t = 0; t < rig.T; t++) {
            const size_t row = rig.tokens[t] * rig.d * sizeof(double);
            check_differences(&rig, rig.table + row, rig.table_grad + row, rig.d, scale);
        }
        close_rig(&rig);
    }
}
END_TEST

START_TEST(gradients_add_up)
{
    rig_t rig;
    double *once;

    open_rig(&rig, DP_F64, 2, 7, 8, true);
    once = zeroed(257 * rig.d * sizeof(double));
    forward(&rig);
    backward(&rig, 1);
    memcpy(once, rig.weights_grad, 257 * rig.d * sizeof(double));
    forward(&rig);
    backward(&rig, 1);
    for (size_t i = 0; i < 257 * rig.d; i++)
        ck_assert_double_eq_tol(get(&rig, rig.weights_grad, i), 2 * once[i], 1e-15);
    free(once);
    close_rig(&rig);
}
END_TEST

START_TEST(outputs_are_logits_and_need_no_target)
{
    rig_t rig;
    dp_segment_call_t head;

    open_rig(&rig, DP_F64, 2, 3, 4, false);
    forward(&rig);
    head = head_call(&rig, 1);
    head.x = rig.x;
    head.output = zeroed(rig.T * 256 * sizeof(double));
    head.target = NULL;
    rig.loss = 0;
    ck_assert_int_eq(rig.head.segments[0].host_forward(rig.head.segments[0].self, &head), DP_OK);
    ck_assert_mem_eq(head.output, rig.logits, rig.T * 256 * sizeof(double));
    ck_assert_double_eq(rig.loss, 0);
    for (size_t t = 0; t < rig.T; t++) { /* and they give the loss */
        const double *logits = (const double *)rig.logits + t * 256;
        double sum = 0;
        for (int b = 0; b < 256; b++)
            sum += exp(logits[b]);
        rig.loss += (log(sum) - logits[rig.targets[t]]) / (double)rig.T;
    }
    ck_assert_double_eq_tol(rig.loss, (double)loss_by_definition(&rig), 1e-13);
    free(head.output);
    close_rig(&rig);
}
END_TEST

START_TEST(large_logits_stay_finite)
{
    rig_t rig;

    open_rig(&rig, DP_F32, 1, 4, 8, false);
    for (size_t i = rig.d; i < 257 * rig.d; i++)
        set(&rig, rig.weights, i, 1e4 * sin((double)i));
    forward(&rig);
    backward(&rig, 1);
    ck_assert(isfinite(rig.loss));
    for (size_t i = 0; i < 257 * rig.d; i++)
        ck_assert(isfinite(get(&rig, rig.weights_grad, i)));
    close_rig(&rig);
}
END_TEST

START_TEST(other_devices_bring_a_plugin)
{
    const dp_device_vt_t gpu = {.struct_size = sizeof(gpu), .caps = DP_DEVICE_CAP_GRAPH};
    const compute_config_t config = {sizeof(config), {sizeof(config.shape), DP_F32, 1, 4, 8, 0}, &gpu, NULL, 0};
    ends_t ends;

    ck_assert_int_eq(ends_open(&ends, NULL, "nowhere", &config), DP_ERR_PLUGIN);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "train_moe_nowhere"));
    ends_close(&ends);
    ck_assert_int_eq(ends_open(&ends, NULL, "device_nowhere", &config), DP_ERR_PLUGIN);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "train_moe_nowhere"));
    ends_close(&ends);
    ck_assert_int_eq(ends_open(&ends, NULL, "/lib/dp_device_x.so", &config), DP_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "by its name"));
    ends_close(&ends);
}
END_TEST

START_TEST(bf16_is_for_other_devices)
{
    const compute_config_t config = {
        sizeof(config), {sizeof(config.shape), DP_BF16, 1, 4, 8, 0}, &inline_device_vt, NULL, 0};
    ends_t ends;

    ck_assert_int_eq(ends_open(&ends, NULL, "cpu", &config), DP_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "f32 or f64"));
    ends_close(&ends);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_ends");
    TCase *loops = tcase_create("shapes");

    tcase_add_loop_test(loops, loss_is_that_of_the_definition, 0, SHAPES);
    tcase_add_loop_test(loops, gradients_are_finite_differences, 0, SHAPES);
    suite_add_tcase(suite, loops);
    SUITE_ADD(suite, gradients_add_up);
    SUITE_ADD(suite, outputs_are_logits_and_need_no_target);
    SUITE_ADD(suite, large_logits_stay_finite);
    SUITE_ADD(suite, other_devices_bring_a_plugin);
    SUITE_ADD(suite, bf16_is_for_other_devices);
    return suite_run(suite);
}
