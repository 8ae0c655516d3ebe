/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_kernels.c: what kernels are written with (cuda/device.cuh), launches, streams and values in
 * memory: on a GPU, and on the emulator that stands in for one. */
#include "gpu.h"

#include <math.h>
#include <time.h>

#include "tests/support/suite.h"

CUDA_IMAGE(kernels);

typedef struct rig {
    gpu_t gpu;
    CUmodule module;
} rig_t;

static void rig_open(rig_t *rig)
{
    gpu_open(&rig->gpu);
    GPU_OK(cuda_module_load(rig->gpu.host, cuda_image_kernels, &rig->module));
}

static void rig_close(rig_t *rig)
{
    cuda_module_unload(rig->module);
    gpu_close(&rig->gpu);
}

static CUfunction kernel(rig_t *rig, const char *name)
{
    CUfunction function;

    GPU_OK(cuda_kernel(rig->gpu.host, rig->module, name, &function));
    return function;
}

static void nap_ms(int ms)
{
    struct timespec nap = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&nap, NULL);
}

/* The nearest bfloat16, found by trying the two around x. */
static uint16_t nearest_bf16(float x)
{
    uint32_t bits, low, high;
    float below, above;

    memcpy(&bits, &x, 4);
    low = bits & 0xffff0000u;
    high = low + 0x10000u;
    memcpy(&below, &low, 4);
    memcpy(&above, &high, 4);
    if (fabs((double)x - (double)below) == fabs((double)above - (double)x))
        return (uint16_t)((low >> 16 & 1 ? high : low) >> 16);
    return (uint16_t)((fabs((double)x - (double)below) < fabs((double)above - (double)x) ? low : high) >> 16);
}

START_TEST(elements_are_rounded_to_their_type)
{
    enum { COUNT = 1037 };
    float singles[COUNT], got_singles[COUNT];
    double doubles[COUNT], got_doubles[COUNT], factor = 1.0 / 3;
    uint16_t halves[COUNT], got_halves[COUNT];
    size_t count = COUNT - 1;
    CUdeviceptr from, to;
    CUfunction f;
    rig_t rig;

    rig_open(&rig);
    for (int i = 0; i < COUNT; i++) {
        doubles[i] = sin(i) * exp(i % 40 - 20);
        singles[i] = (float)doubles[i];
        halves[i] = nearest_bf16(singles[i]);
    }
#define RUN(name, in, out)                                                                                             \
    from = gpu_memory(&rig.gpu, in, sizeof(in));                                                                       \
    to = gpu_memory(&rig.gpu, NULL, sizeof(in));                                                                       \
    f = kernel(&rig, name);                                                                                            \
    GPU_OK(cuda_launch(rig.gpu.host, rig.gpu.cu, f, CUDA_DIM(3), CUDA_DIM(256), 0, rig.gpu.stream, &to, &from,         \
                       &factor, &count));                                                                              \
    gpu_read(&rig.gpu, out, to, sizeof(in))
    RUN("dp_test_scale_f32", singles, got_singles);
    RUN("dp_test_scale_f64", doubles, got_doubles);
    RUN("dp_test_scale_bf16", halves, got_halves);
    for (int i = 0; i < COUNT - 1; i++) {
        uint32_t wide = (uint32_t)halves[i] << 16;
        float x;

        memcpy(&x, &wide, 4);
        ck_assert_float_eq(got_singles[i], singles[i] * (float)factor);
        ck_assert_double_eq(got_doubles[i], doubles[i] * factor);
        ck_assert_uint_eq(got_halves[i], nearest_bf16(x * (float)factor));
    }
    ck_assert(isnan(got_singles[COUNT - 1]) && isnan(got_doubles[COUNT - 1]) && got_halves[COUNT - 1] == 0xffff);
    rig_close(&rig);
}
END_TEST

START_TEST(blocks_share_memory)
{
    enum { ROWS = 71, COLUMNS = 45 };
    static float from[ROWS * COLUMNS], to[ROWS * COLUMNS];
    int rows = ROWS, columns = COLUMNS;
    CUdeviceptr a, b;
    CUfunction f;
    rig_t rig;

    rig_open(&rig);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        from[i] = (float)i;
    a = gpu_memory(&rig.gpu, from, sizeof(from));
    b = gpu_memory(&rig.gpu, NULL, sizeof(to));
    f = kernel(&rig, "dp_test_transpose");
    GPU_OK(cuda_launch(rig.gpu.host, rig.gpu.cu, f, CUDA_DIM2(2, 3), CUDA_DIM2(32, 32), 0, rig.gpu.stream, &b, &a,
                       &rows, &columns));
    gpu_read(&rig.gpu, to, b, sizeof(to));
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++)
            ck_assert_float_eq(to[c * ROWS + r], from[r * COLUMNS + c]);
    rig_close(&rig);
}
END_TEST

START_TEST(blocks_reduce)
{
    enum { COUNT = 9001, BLOCKS = 5 };
    static float from[COUNT];
    double sums[BLOCKS], total = 0, expected = 0;
    float most[BLOCKS], largest = -1, expected_largest = -1;
    unsigned hits = 0, expected_hits = 0;
    int count = COUNT;
    CUdeviceptr a, s, m, h;
    CUfunction f;
    rig_t rig;

    rig_open(&rig);
    for (int i = 0; i < COUNT; i++) {
        from[i] = (float)((i * 7919) % 1009) / 1009;
        expected += (double)from[i];
        expected_largest = fmaxf(expected_largest, from[i]);
        expected_hits += from[i] > 0.5f;
    }
    a = gpu_memory(&rig.gpu, from, sizeof(from));
    s = gpu_memory(&rig.gpu, NULL, sizeof(sums));
    m = gpu_memory(&rig.gpu, NULL, sizeof(most));
    h = gpu_memory(&rig.gpu, &hits, sizeof(hits));
    f = kernel(&rig, "dp_test_sum");
    GPU_OK(cuda_launch(rig.gpu.host, rig.gpu.cu, f, CUDA_DIM(BLOCKS), CUDA_DIM(192), 0, rig.gpu.stream, &s, &m, &h, &a,
                       &count));
    gpu_read(&rig.gpu, sums, s, sizeof(sums));
    gpu_read(&rig.gpu, most, m, sizeof(most));
    gpu_read(&rig.gpu, &hits, h, sizeof(hits));
    for (int b = 0; b < BLOCKS; b++) {
        total += sums[b];
        largest = fmaxf(largest, most[b]);
    }
    ck_assert_double_eq_tol(total, expected, 1e-12 * expected);
    ck_assert_float_eq(largest, expected_largest);
    ck_assert_uint_eq(hits, expected_hits);
    rig_close(&rig);
}
END_TEST

START_TEST(lanes_of_a_warp_exchange)
{
    unsigned out[64][8], multiples = 0;
    CUdeviceptr at;
    CUfunction f;
    rig_t rig;

    rig_open(&rig);
    at = gpu_memory(&rig.gpu, NULL, sizeof(out));
    f = kernel(&rig, "dp_test_warp");
    GPU_OK(cuda_launch(rig.gpu.host, rig.gpu.cu, f, CUDA_DIM(1), CUDA_DIM(64), 0, rig.gpu.stream, &at));
    gpu_read(&rig.gpu, out, at, sizeof(out));
    for (unsigned lane = 0; lane < 32; lane++)
        multiples |= lane % 3 == 0 ? 1u << lane : 0;
    for (unsigned t = 0; t < 64; t++) {
        unsigned lane = t % 32;

        ck_assert_uint_eq(out[t][0], 15);
        ck_assert_uint_eq(out[t][1], lane < 3 ? lane : lane - 3);
        ck_assert_uint_eq(out[t][2], lane % 16 + 3 > 15 ? lane : lane + 3);
        ck_assert_uint_eq(out[t][3], lane ^ 9);
        ck_assert_uint_eq(out[t][4], multiples);
        ck_assert_uint_eq(out[t][5], lane < 16 ? 7 : 23);
        ck_assert_uint_eq(out[t][6], 31 * 32 / 2);
        ck_assert_uint_eq(out[t][7], lane / 5 == 6 ? 2 : 5);
    }
    rig_close(&rig);
}
END_TEST

START_TEST(a_warp_multiplies_matrices)
{
    enum { K = 48 };
    uint16_t a[16][K], b[8][K];
    float c[16][8], got[16][8];
    int k = K;
    CUdeviceptr at[3];
    CUfunction f;
    rig_t rig;

    rig_open(&rig);
    for (int i = 0; i < K; i++) { /* small whole numbers: every sum is exact */
        for (int m = 0; m < 16; m++)
            a[m][i] = nearest_bf16((float)((m * 5 + i * 3) % 17 - 8));
        for (int n = 0; n < 8; n++)
            b[n][i] = nearest_bf16((float)((n * 7 + i) % 13 - 6));
    }
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 8; n++)
            c[m][n] = (float)(100 * m + n);
    at[0] = gpu_memory(&rig.gpu, c, sizeof(c));
    at[1] = gpu_memory(&rig.gpu, a, sizeof(a));
    at[2] = gpu_memory(&rig.gpu, b, sizeof(b));
    f = kernel(&rig, "dp_test_mma");
    GPU_OK(cuda_launch(rig.gpu.host, rig.gpu.cu, f, CUDA_DIM(1), CUDA_DIM(32), 24 * 32, rig.gpu.stream, &at[0], &at[1],
                       &at[2], &k));
    gpu_read(&rig.gpu, got, at[0], sizeof(got));
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 8; n++) {
            int sum = 100 * m + n;

            for (int i = 0; i < K; i++)
                sum += ((m * 5 + i * 3) % 17 - 8) * ((n * 7 + i) % 13 - 6);
            ck_assert_msg(got[m][n] == (float)sum, "%d,%d: %g instead of %d", m, n, (double)got[m][n], sum);
        }
    rig_close(&rig);
}
END_TEST

#if defined(__SANITIZE_THREAD__)
#define COMPANY 6 /* each block is a thread, each of its threads a fiber */
#else
#define COMPANY 100
#endif

START_TEST(blocks_meet)
{
    enum { BLOCKS = COMPANY };
    uint32_t zero = 0, smids[BLOCKS], arrived;
    CUdeviceptr count, at;
    CUfunction f;
    rig_t rig;

    rig_open(&rig);
    count = gpu_memory(&rig.gpu, &zero, sizeof(zero));
    at = gpu_memory(&rig.gpu, NULL, sizeof(smids));
    f = kernel(&rig, "dp_test_meet");
    GPU_OK(cuda_launch(rig.gpu.host, rig.gpu.cu, f, CUDA_DIM(BLOCKS), CUDA_DIM(64), 0, rig.gpu.stream, &count, &at));
    gpu_read(&rig.gpu, smids, at, sizeof(smids));
    gpu_read(&rig.gpu, &arrived, count, sizeof(arrived));
    ck_assert_uint_eq(arrived, BLOCKS);
    for (int i = 0; i < BLOCKS; i++)
        ck_assert_uint_lt(smids[i], 1024);
    rig_close(&rig);
}
END_TEST

/* host -> kernel on one stream -> a stream that waits for a value -> a value written -> host */
START_TEST(kernels_and_streams_wait_for_memory)
{
    uint32_t target = 5;
    volatile uint32_t *words;
    void *memory;
    CUdeviceptr at, answer, done;
    CUstream other;
    CUfunction f;
    rig_t rig;

    rig_open(&rig);
    GPU_CU(&rig.gpu, cuMemHostAlloc(&memory, 12, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    GPU_CU(&rig.gpu, cuMemHostGetDevicePointer(&at, memory, 0));
    memset(memory, 0, 12);
    words = memory;
    answer = at + 4;
    done = at + 8;
    GPU_CU(&rig.gpu, cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, 0));
    f = kernel(&rig, "dp_test_await");
    GPU_CU(&rig.gpu, cuStreamWaitValue32(other, answer, 6, CU_STREAM_WAIT_VALUE_GEQ));
    GPU_CU(&rig.gpu, cuStreamWriteValue32(other, done, 77, 0));
    GPU_OK(
        cuda_launch(rig.gpu.host, rig.gpu.cu, f, CUDA_DIM(1), CUDA_DIM(1), 0, rig.gpu.stream, &at, &target, &answer));
    nap_ms(20);
    ck_assert_int_eq(rig.gpu.cu->cuStreamQuery(other), CUDA_ERROR_NOT_READY);
    ck_assert_int_eq(rig.gpu.cu->cuStreamQuery(rig.gpu.stream), CUDA_ERROR_NOT_READY);
    __atomic_store_n(&words[0], 5, __ATOMIC_RELEASE);
    GPU_CU(&rig.gpu, cuStreamSynchronize(other));
    GPU_CU(&rig.gpu, cuStreamSynchronize(rig.gpu.stream));
    ck_assert_uint_eq(words[1], 6);
    ck_assert_uint_eq(words[2], 77);
    GPU_CU(&rig.gpu, cuStreamDestroy(other));
    GPU_CU(&rig.gpu, cuMemFreeHost(memory));
    rig_close(&rig);
}
END_TEST

/* A fault sticks to the device; the fake driver tells it from a hang. */
static void make_mistake(int which, CUresult expected_of_fake)
{
    CUresult result;
    CUfunction f;
    rig_t rig;

    rig_open(&rig);
    f = kernel(&rig, "dp_test_mistake");
    GPU_OK(cuda_launch(rig.gpu.host, rig.gpu.cu, f, CUDA_DIM(2), CUDA_DIM(64), 0, rig.gpu.stream, &which));
    result = rig.gpu.cu->cuStreamSynchronize(rig.gpu.stream);
    if (gpu_is_fake())
        ck_assert_int_eq(result, expected_of_fake);
    else
        ck_assert_int_ne(result, CUDA_SUCCESS);
    ck_assert_int_ne(rig.gpu.cu->cuCtxSynchronize(), CUDA_SUCCESS);
    ck_assert_int_eq(CUDA_CHECK(rig.gpu.host, result, "waiting"), DP_ERR_DEVICE);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "waiting: the CUDA driver says"));
    (void)rig.gpu.cu->cuStreamDestroy(rig.gpu.stream);
    cuda_module_unload(rig.module);
    dp_group_leave(rig.gpu.group);
}

START_TEST(a_trap_breaks_the_device)
{
    make_mistake(1, CUDA_ERROR_LAUNCH_FAILED);
}
END_TEST

/* On a GPU this would hang, or not be noticed. */
START_TEST(the_emulator_sees_deadlocks)
{
    make_mistake(0, CUDA_ERROR_LAUNCH_FAILED);
}
END_TEST

/* In the order that threads run in on the emulator nothing goes wrong. */
START_TEST(the_emulator_sees_races)
{
    make_mistake(_i, CUDA_ERROR_LAUNCH_FAILED);
}
END_TEST

START_TEST(what_is_in_order_is_no_race)
{
    int which = 5;
    CUfunction f;
    rig_t rig;

    rig_open(&rig);
    f = kernel(&rig, "dp_test_mistake");
    GPU_OK(cuda_launch(rig.gpu.host, rig.gpu.cu, f, CUDA_DIM(2), CUDA_DIM(64), 0, rig.gpu.stream, &which));
    ck_assert_int_eq(rig.gpu.cu->cuStreamSynchronize(rig.gpu.stream), CUDA_SUCCESS);
    rig_close(&rig);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels");

    gpu_or_skip("test_kernels");
    SUITE_ADD(suite, elements_are_rounded_to_their_type);
    SUITE_ADD(suite, blocks_share_memory);
    SUITE_ADD(suite, blocks_reduce);
    SUITE_ADD(suite, lanes_of_a_warp_exchange);
    SUITE_ADD(suite, a_warp_multiplies_matrices);
    SUITE_ADD(suite, blocks_meet);
    SUITE_ADD(suite, kernels_and_streams_wait_for_memory);
    SUITE_ADD(suite, a_trap_breaks_the_device);
    if (gpu_is_fake())
        SUITE_ADD(suite, the_emulator_sees_deadlocks);
    SUITE_ADD(suite, what_is_in_order_is_no_race);
    if (gpu_sees_races()) {
        TCase *races = tcase_create("races");

        tcase_add_loop_test(races, the_emulator_sees_races, 2, 5);
        suite_add_tcase(suite, races);
    }
    return suite_run(suite);
}
