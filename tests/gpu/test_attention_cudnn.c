/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_attention_cudnn.c: attention_cudnn against attention_cpu in double and against attention_cuda, on a GPU or with
 * the fake driver and the interpreter that stands in for cuDNN. Tolerance: 2^-5 of a tensor's largest value, since q and
 * k, rounded to bf16, make logits of up to 192 products that the softmax takes apart; 2^-6 between the two plugins, which
 * round in the same places, as a distance over all results. */
#include "attention_device.h"

static device_problem_t device;
static problem_t cpu;

static void load(const char *plugin)
{
    device_problem_load(&device, plugin);
}

static void open_shape(const uint32_t n[6], uint32_t value_dim, bool deterministic)
{
    dp_attention_config_t c = device_config(&device, DP_BF16, n);

    c.value_dim = value_dim;
    c.deterministic = deterministic;
    device_problem_open(&device, &c);
    twin_open(&cpu, &device, 3);
}

static void close_shape(void)
{
    problem_close(&cpu);
    device_problem_close(&device);
    device_problem_unload(&device);
}

/* batch, sequence, hidden, heads, kv_heads, head_dim; value_dim */
static const struct {
    uint32_t n[6], value_dim;
} shapes[] = {
    {{1, 128, 64, 2, 2, 64}, 64}, {{2, 256, 64, 4, 4, 128}, 128}, {{1, 256, 96, 2, 2, 192}, 128},
    {{2, 192, 64, 8, 2, 64}, 64}, {{1, 200, 64, 4, 1, 128}, 128}, {{1, 77, 40, 2, 2, 64}, 64},
};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

START_TEST(equals_attention_cpu)
{
    load("attention_cudnn");
    open_shape(shapes[_i / 2].n, shapes[_i / 2].value_dim, _i % 2);
    device_run_all(&device, POISON_NAN);
    run_all(&cpu, POISON_NAN);
    check_like_twin(&device, &cpu, 0x1p-5);
    close_shape();
}
END_TEST

/* What attention_cuda makes of the numbers of the twin, as y, dx and grads one after the other. */
static double *results(const char *plugin, int shape, size_t *count_out)
{
    double *all, *parts[3];
    size_t counts[3], total = 0;

    load(plugin);
    open_shape(shapes[shape].n, shapes[shape].value_dim, false);
    device_run_all(&device, POISON_NAN);
    for (int i = 0; i < 3; i++) {
        const block_t *b = i == 0 ? &device.y : i == 1 ? &device.dx : &device.grads;

        parts[i] = block_values(&device, b);
        counts[i] = block_count(b);
        total += counts[i];
    }
    all = malloc(total * sizeof(*all));
    total = 0;
    for (int i = 0; i < 3; i++) {
        memcpy(all + total, parts[i], counts[i] * sizeof(*all));
        total += counts[i];
        free(parts[i]);
    }
    close_shape();
    *count_out = total;
    return all;
}

START_TEST(equals_attention_cuda)
{
    size_t n, m;
    double *ours = results("attention_cudnn", _i, &n), *reference = results("attention_cuda", _i, &m);
    double distance = 0, size = 0;

    ck_assert_uint_eq(n, m);
    for (size_t i = 0; i < n; i++) {
        distance += (ours[i] - reference[i]) * (ours[i] - reference[i]);
        size += reference[i] * reference[i];
    }
    ck_assert_msg(sqrt(distance / size) < 0x1p-6, "relative distance %g", sqrt(distance / size));
    free(ours);
    free(reference);
}
END_TEST

START_TEST(deterministic_is_the_same_bits)
{
    unsigned char *dx, *grads, *again;

    load("attention_cudnn");
    open_shape(shapes[1].n, shapes[1].value_dim, true);
    device_run_all(&device, POISON_NAN);
    dx = block_bytes(&device, &device.dx);
    grads = block_bytes(&device, &device.grads);
    for (int i = 0; i < 10; i++) {
        block_poison(&device, &device.grads, POISON_ZERO);
        device_run_all(&device, i % 2 ? POISON_ZERO : POISON_LARGE);
        again = block_bytes(&device, &device.dx);
        ck_assert_int_eq(memcmp(dx, again, device.dx.bytes), 0);
        free(again);
        again = block_bytes(&device, &device.grads);
        ck_assert_int_eq(memcmp(grads, again, device.grads.bytes), 0);
        free(again);
    }
    free(dx);
    free(grads);
    close_shape();
}
END_TEST

START_TEST(passes_can_be_captured)
{
    unsigned char *y, *again;
    CUgraph graph;
    CUgraphExec ready;

    load("attention_cudnn");
    open_shape(shapes[0].n, shapes[0].value_dim, true);
    device_run_all(&device, POISON_NAN);
    y = block_bytes(&device, &device.y);
    GPU_CU(&device.gpu, cuStreamBeginCapture(device.gpu.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    device_forward(&device);
    device_backward_input(&device, true);
    device_backward_weight(&device);
    GPU_CU(&device.gpu, cuStreamEndCapture(device.gpu.stream, &graph));
    GPU_CU(&device.gpu, cuGraphInstantiate(&ready, graph, 0));
    block_poison(&device, &device.y, POISON_NAN);
    GPU_CU(&device.gpu, cuGraphLaunch(ready, device.gpu.stream));
    again = block_bytes(&device, &device.y);
    ck_assert_int_eq(memcmp(y, again, device.y.bytes), 0);
    GPU_CU(&device.gpu, cuGraphExecDestroy(ready));
    GPU_CU(&device.gpu, cuGraphDestroy(graph));
    free(y);
    free(again);
    close_shape();
}
END_TEST

static void check_refused(dp_dtype_t dtype, uint32_t head_dim, const char *text)
{
    const uint32_t n[6] = {1, 16, 16, 2, 2, head_dim};
    dp_attention_config_t c = device_config(&device, dtype, n);
    dp_attention_t *attention = NULL;

    ck_assert_int_eq(device.vt->open(&device.host.host, &c, &attention), DP_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(device.host.message, text) != NULL, "'%s' does not say '%s'", device.host.message,
                  text);
    ck_assert_int_eq(device.host.allocations, 0);
}


START_TEST(refuses_what_it_cannot_do)
{
    load("attention_cudnn");
    check_refused(DP_F32, 64, "DP_F32");
    check_refused(DP_BF16, 12, "head_dim is 12");
    check_refused(DP_BF16, 264, "head_dim is 264");
    setenv("DUALPIPE_CUDNN", "/nowhere/libcudnn.so.9", 1);
    check_refused(DP_BF16, 64, "DUALPIPE_CUDNN");
    device_problem_unload(&device);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("attention_cudnn");
    TCase *tc = tcase_create("attention_cudnn");
    SRunner *sr;
    int failed;

    (void)argc;
    gpu_or_skip(argv[0]);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, refuses_what_it_cannot_do);
    tcase_add_loop_test(tc, equals_attention_cpu, 0, 2 * N_SHAPES);
    tcase_add_loop_test(tc, equals_attention_cuda, 0, N_SHAPES);
    tcase_add_test(tc, deterministic_is_the_same_bits);
    tcase_add_test(tc, passes_can_be_captured);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed == 0 ? 0 : 1;
}
