/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_attention_cuda.c: attention_cuda against attention_cpu in double, on a CUDA device or the fake one.
 *
 * Tolerances are relative to the largest value of a tensor: 1e-12 in double; 1e-5 in single (sums of up to 4000 products); 2^-6
 * in bf16, whose results are rounded at up to five places of 2^-9 each. */
#include "attention_device.h"

#include "../fake_cuda/cublaslt_fake.h"

#include <dlfcn.h>

static device_problem_t device;
static problem_t cpu;

static const struct {
    dp_dtype_t dtype;
    double tolerance;
} types[] = {{DP_F64, 1e-12}, {DP_F32, 1e-5}, {DP_BF16, 0x1p-6}};

static void load(void)
{
    device_problem_load(&device, "attention_cuda");
}

static void unload(void)
{
    device_problem_unload(&device);
}

static void check_shape(int type, const uint32_t n[6], uint32_t value_dim, uint64_t seed)
{
    dp_attention_config_t c = device_config(&device, types[type].dtype, n);

    c.value_dim = value_dim;
    device_problem_open(&device, &c);
    twin_open(&cpu, &device, seed);
    device_run_all(&device, POISON_NAN);
    run_all(&cpu, POISON_NAN);
    check_like_twin(&device, &cpu, types[type].tolerance);
    problem_close(&cpu);
    device_problem_close(&device);
}

/* batch, sequence, hidden, heads, kv_heads, head_dim; value_dim */
static const struct {
    uint32_t n[6], value_dim;
} shapes[] = {
    {{1, 1, 2, 1, 1, 2}, 0},       {{1, 1, 1, 2, 1, 2}, 3},     {{2, 5, 7, 4, 2, 4}, 3},
    {{3, 17, 24, 3, 3, 6}, 0},     {{2, 33, 40, 8, 2, 10}, 7},  {{1, 64, 33, 4, 1, 16}, 8},
    {{1, 50, 16, 2, 2, 192}, 128}, {{2, 40, 64, 6, 2, 64}, 64},
};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

START_TEST(equals_attention_cpu)
{
    load();
    for (size_t i = 0; i < N_SHAPES; i++)
        check_shape(_i, shapes[i].n, shapes[i].value_dim, 100 + i);
    unload();
}
END_TEST

/* More queries than one block of scores holds, and fewer heads at a time than there are. */
START_TEST(blocks_of_scores_add_up)
{
    static const uint32_t n[6] = {1, 300, 12, 6, 3, 4};
    static const char *const budgets[] = {"1", "100000", "1000000000"};

    load();
    for (int i = 0; i < 3; i++) {
        setenv("DUALPIPE_ATTENTION_SCORE_BYTES", budgets[i], 1);
        check_shape(_i, n, 6, 7);
    }
    unload();
}
END_TEST

static void open_small(dp_dtype_t dtype)
{
    static const uint32_t n[6] = {2, 21, 12, 4, 2, 6};
    dp_attention_config_t c = device_config(&device, dtype, n);

    c.value_dim = 4;
    device_problem_open(&device, &c);
    twin_open(&cpu, &device, 5);
}

static void close_small(void)
{
    problem_close(&cpu);
    device_problem_close(&device);
}

static void keep(const block_t *b, unsigned char **kept)
{
    *kept = block_bytes(&device, b);
}

static void check_same(const block_t *b, unsigned char *kept, const char *what)
{
    unsigned char *now = block_bytes(&device, b);

    ck_assert_msg(memcmp(kept, now, b->bytes) == 0, "%s differs", what);
    free(now);
    free(kept);
}

START_TEST(same_inputs_same_bits)
{
    static const int poisons[] = {POISON_ZERO, POISON_LARGE};
    unsigned char *y, *dx, *grads;

    load();
    open_small(types[_i].dtype);
    device_run_all(&device, POISON_NAN);
    for (int i = 0; i < 2; i++) {
        keep(&device.y, &y);
        keep(&device.dx, &dx);
        keep(&device.grads, &grads);
        block_poison(&device, &device.grads, POISON_ZERO);
        device_run_all(&device, poisons[i]);
        check_same(&device.y, y, "y");
        check_same(&device.dx, dx, "dx");
        check_same(&device.grads, grads, "grads");
    }
    close_small();
    unload();
}
END_TEST

START_TEST(gradients_are_added)
{
    double *once, *twice;

    load();
    open_small(types[_i].dtype);
    device_run_all(&device, POISON_NAN);
    once = block_values(&device, &device.grads);
    device_run_all(&device, POISON_NAN);
    twice = block_values(&device, &device.grads);
    for (size_t i = 0; i < block_count(&device.grads); i++)
        ck_assert_double_le(fabs(twice[i] - 2 * once[i]), types[_i].tolerance * (0.01 + fabs(once[i])));
    free(once);
    free(twice);
    close_small();
    unload();
}
END_TEST

START_TEST(weights_may_come_late)
{
    unsigned char *grads, *saved;

    load();
    open_small(types[_i].dtype);
    device_run_all(&device, POISON_NAN);
    keep(&device.grads, &grads);
    block_poison(&device, &device.grads, POISON_ZERO);
    device_forward(&device);
    device_backward_input(&device, false);
    saved = block_bytes(&device, &device.saved);
    device_forward(&device); /* another micro-batch, which saves elsewhere */
    device_backward_input(&device, true);
    GPU_CU(&device.gpu, cuStreamSynchronize(device.gpu.stream));
    GPU_CU(&device.gpu, cuMemcpyHtoD(device.saved.base + BLOCK_GUARD, saved, device.saved.bytes));
    block_poison(&device, &device.x, POISON_NAN);
    block_poison(&device, &device.dy, POISON_NAN);
    block_poison(&device, &device.scratch, POISON_NAN);
    device_backward_weight(&device);
    check_same(&device.grads, grads, "grads");
    free(saved);
    close_small();
    unload();
}
END_TEST

START_TEST(outputs_may_take_the_place_of_inputs)
{
    unsigned char *y, *dx;
    dp_io_t io;

    load();
    open_small(types[_i].dtype);
    device_run_all(&device, POISON_NAN);
    keep(&device.y, &y);
    keep(&device.dx, &dx);
    io = device_io(&device);
    io.x = io.y = block_at(&device.x);
    ck_assert_int_eq(device.vt->forward(device.attention, &io, problem_stream(&device)), DP_OK);
    io = device_io(&device);
    io.dy = io.dx = block_at(&device.dy);
    ck_assert_int_eq(device.vt->backward_input(device.attention, &io, problem_stream(&device)), DP_OK);
    check_same(&device.x, y, "y");
    check_same(&device.dy, dx, "dx");
    close_small();
    unload();
}
END_TEST

/* One graph of all three passes; replayed, it gives the same bits and adds to grads again. */
START_TEST(passes_can_be_captured)
{
    unsigned char *y, *dx, *grads;
    CUgraph graph;
    CUgraphExec ready;

    load();
    open_small(types[_i].dtype);
    device_run_all(&device, POISON_NAN);
    keep(&device.y, &y);
    keep(&device.dx, &dx);
    keep(&device.grads, &grads);
    GPU_CU(&device.gpu, cuStreamBeginCapture(device.gpu.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    device_forward(&device);
    device_backward_input(&device, true);
    device_backward_weight(&device);
    GPU_CU(&device.gpu, cuStreamEndCapture(device.gpu.stream, &graph));
    GPU_CU(&device.gpu, cuGraphInstantiate(&ready, graph, 0));
    for (int i = 0; i < 2; i++) {
        block_poison(&device, &device.grads, POISON_ZERO);
        block_poison(&device, &device.saved, POISON_NAN);
        block_poison(&device, &device.scratch, POISON_NAN);
        block_poison(&device, &device.y, POISON_NAN);
        block_poison(&device, &device.dx, POISON_NAN);
        GPU_CU(&device.gpu, cuGraphLaunch(ready, device.gpu.stream));
        GPU_CU(&device.gpu, cuStreamSynchronize(device.gpu.stream));
    }
    check_same(&device.y, y, "y");
    check_same(&device.dx, dx, "dx");
    check_same(&device.grads, grads, "grads");
    GPU_CU(&device.gpu, cuGraphExecDestroy(ready));
    GPU_CU(&device.gpu, cuGraphDestroy(graph));
    close_small();
    unload();
}
END_TEST

START_TEST(a_step_searches_and_allocates_nothing)
{
    void *library = gpu_is_fake() ? dlopen(getenv("DUALPIPE_CUBLASLT"), RTLD_NOW) : NULL;
    unsigned long (*searches)(void) = NULL, before = 0;
    int (*sms)(void) = NULL, allocations;

    if (library != NULL) {
        *(void **)&searches = dlsym(library, "fake_cublaslt_searches");
        *(void **)&sms = dlsym(library, "fake_cublaslt_last_sms");
    }
    load();
    device.host.share.compute_sms = 112;
    open_small(types[_i].dtype);
    allocations = device.host.allocations;
    if (searches != NULL)
        before = searches();
    device_run_all(&device, POISON_NAN);
    ck_assert_int_eq(device.host.allocations, allocations);
    if (searches != NULL) {
        ck_assert_uint_eq(searches(), before);
        ck_assert_int_eq(sms(), 112);
    }
    close_small();
    unload();
}
END_TEST

/* NaN is for the engine to find, not for a kernel to hide. */
START_TEST(nan_shows_from_its_token_on)
{
    double *y;

    load();
    open_small(types[_i].dtype);
    buffer_set(&cpu.x, 9 * 12 + 2, (double)NAN);
    {
        double *x = buffer_copy(&cpu.x);

        block_write(&device, &device.x, x);
        free(x);
    }
    device_forward(&device);
    y = block_values(&device, &device.y);
    for (size_t i = 9 * 12; i < 21 * 12; i++)
        ck_assert(isnan(y[i]));
    for (size_t i = 21 * 12; i < 42 * 12; i++)
        ck_assert(!isnan(y[i]));
    free(y);
    close_small();
    unload();
}
END_TEST

static void check_refused(const dp_attention_config_t *c, dp_status_t status, const char *text)
{
    dp_attention_t *attention = NULL;

    device.host.message[0] = '\0';
    ck_assert_int_eq(device.vt->open(&device.host.host, c, &attention), status);
    ck_assert_ptr_null(attention);
    ck_assert_msg(strstr(device.host.message, text) != NULL, "'%s' does not say '%s'", device.host.message,
                  text);
    ck_assert_int_eq(device.host.allocations, 0);
}

START_TEST(refuses_what_it_cannot_do)
{
    static const uint32_t n[6] = {2, 16, 12, 4, 2, 6};
    dp_attention_config_t good, c;

    load();
    good = device_config(&device, DP_F32, n);
#define REFUSED(change, status, text)                                                                        \
    c = good;                                                                                                \
    change;                                                                                                  \
    check_refused(&c, status, text)
    REFUSED(c.struct_size--, DP_ERR_INVALID, "config.struct_size");
    REFUSED(c.shape.struct_size--, DP_ERR_INVALID, "config.shape.struct_size");
    REFUSED(c.shape.dtype = DP_I64, DP_ERR_UNSUPPORTED, "shape.dtype");
    REFUSED(c.shape.batch = 0, DP_ERR_INVALID, "shape.batch");
    REFUSED(c.shape.sequence = 0, DP_ERR_INVALID, "shape.sequence");
    REFUSED(c.shape.hidden = 0, DP_ERR_INVALID, "shape.hidden");
    REFUSED(c.heads = 0, DP_ERR_INVALID, "heads");
    REFUSED(c.kv_heads = 3, DP_ERR_INVALID, "kv_heads = 3");
    REFUSED(c.head_dim = 7, DP_ERR_INVALID, "head_dim is 7");
    REFUSED(c.heads = 1u << 30, DP_ERR_INVALID, "heads * head_dim");
    REFUSED(c.shape.norm_eps = -1, DP_ERR_INVALID, "norm_eps");
    REFUSED(c.rope_theta = (float)NAN, DP_ERR_INVALID, "rope_theta");
    REFUSED(c.device = NULL, DP_ERR_INVALID, "device is NULL");
    REFUSED(c.device_vt = &cpu.rig.device_vt, DP_ERR_UNSUPPORTED, "device_cuda");
    setenv("DUALPIPE_ATTENTION_SCORE_BYTES", "many", 1);
    check_refused(&good, DP_ERR_INVALID, "DUALPIPE_ATTENTION_SCORE_BYTES");
    unsetenv("DUALPIPE_ATTENTION_SCORE_BYTES");
    setenv("DUALPIPE_CUBLASLT", "/nowhere/libcublasLt.so.13", 1);
    check_refused(&good, DP_ERR_UNSUPPORTED, "DUALPIPE_CUBLASLT");
    unload();
}
END_TEST

START_TEST(memory_may_run_out)
{
    static const uint32_t n[6] = {2, 16, 12, 4, 2, 6};
    dp_attention_config_t c;
    dp_attention_t *attention = NULL;
    dp_status_t st = DP_ERR_NOMEM;
    int failures = 0;

    load();
    c = device_config(&device, DP_BF16, n);
    for (; st == DP_ERR_NOMEM; failures++) {
        device.host.fail_allocation = failures + 1;
        st = device.vt->open(&device.host.host, &c, &attention);
        if (st < 0)
            ck_assert_int_eq(device.host.allocations, 0);
    }
    ck_assert_msg(st == DP_OK, "%s", device.host.message);
    ck_assert_int_gt(failures, 4);
    device.vt->close(attention);
    unload();
}
END_TEST

START_TEST(calls_say_what_is_missing)
{
    dp_io_t io;

    load();
    open_small(DP_F32);
    io = device_io(&device);
    ck_assert_int_eq(device.vt->forward(device.attention, &io, problem_stream(&device)), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(device.host.message, "io.x"));
    ck_assert_int_eq(device.vt->backward_input(device.attention, &io, problem_stream(&device)),
                     DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(device.host.message, "io.dy"));
    ck_assert_int_eq(device.vt->backward_weight(device.attention, &io, problem_stream(&device)),
                     DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(device.host.message, "io.grads"));
    io.struct_size--;
    ck_assert_int_eq(device.vt->forward(device.attention, &io, problem_stream(&device)), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(device.host.message, "io.struct_size"));
    io = device_io(&device);
    io.x = io.y = block_at(&device.x);
    ck_assert_int_eq(device.vt->forward(device.attention, &io, NULL), DP_ERR_UNSUPPORTED);
    close_small();
    unload();
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("attention_cuda");
    TCase *tc = tcase_create("attention_cuda");
    SRunner *sr;
    int failed;

    (void)argc;
    gpu_or_skip(argv[0]);
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, equals_attention_cpu, 0, 3);
    tcase_add_loop_test(tc, blocks_of_scores_add_up, 0, 3);
    tcase_add_loop_test(tc, same_inputs_same_bits, 0, 3);
    tcase_add_loop_test(tc, gradients_are_added, 0, 3);
    tcase_add_loop_test(tc, weights_may_come_late, 0, 3);
    tcase_add_loop_test(tc, outputs_may_take_the_place_of_inputs, 0, 3);
    tcase_add_loop_test(tc, passes_can_be_captured, 0, 3);
    tcase_add_loop_test(tc, a_step_searches_and_allocates_nothing, 0, 3);
    tcase_add_loop_test(tc, nan_shows_from_its_token_on, 0, 3);
    tcase_add_test(tc, refuses_what_it_cannot_do);
    tcase_add_test(tc, memory_may_run_out);
    tcase_add_test(tc, calls_say_what_is_missing);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed == 0 ? 0 : 1;
}
