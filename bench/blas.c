/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * blas.c: GFLOP/s of matrix products in f32 on one core, by each BLAS library that is here and by
 * each kernel that it can be told to use, beside the peak of the core, found by a loop of
 * multiply-adds in the same minute. "chosen" is what the plugins for CPU cores use when nothing is
 * set. Times are those of the thread's clock; medians.
 *   bench/blas [TURNS]   default 9 */
#include <dualpipe/plugin.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROW_MAJOR = 101, PLAIN = 111, TURNED = 112, MOST_TURNS = 99 };
typedef void gemm_fn(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                     const float *b, int ldb, float beta, float *c, int ldc);

static const struct {
    int m, n, k;
} sizes[] = {{512, 512, 512}, {512, 2048, 512}, {512, 128, 512}, {128, 64, 64}, {32, 128, 64}};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static int turns = 9;

static double thread_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* ---- the peak of the core ---- */

/* Twelve chains hide the latency of a multiply-add and fit into the registers. */
#define PEAK(name, bytes, features)                                                                                    \
    typedef float name##_t __attribute__((vector_size(bytes)));                                                        \
    features static float name(long rounds)                                                                            \
    {                                                                                                                  \
        name##_t sum[12], x, y;                                                                                        \
        float total = 0;                                                                                               \
                                                                                                                       \
        for (size_t l = 0; l < sizeof(x) / sizeof(float); l++)                                                         \
            x[l] = 0.999f, y[l] = 1e-3f;                                                                               \
        for (int i = 0; i < 12; i++)                                                                                   \
            sum[i] = x * (float)i;                                                                                     \
        for (long r = 0; r < rounds; r++) {                                                                            \
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) sum[i] = sum[i] * x + y;                             \
        }                                                                                                              \
        for (int i = 0; i < 12; i++)                                                                                   \
            total += sum[i][0];                                                                                        \
        return total;                                                                                                  \
    }
PEAK(chains16, 16, )
#if defined(__x86_64__)
PEAK(chains32, 32, __attribute__((target("avx2,fma"))))
PEAK(chains64, 64, __attribute__((target("avx512f"))))
#endif

static double time_chains(float (*chains)(long), int lanes)
{
    const long rounds = 2000000;
    double found[MOST_TURNS];
    volatile float kept;

    for (int i = 0; i < turns; i++) {
        const double begin = thread_seconds();

        kept = chains(rounds);
        found[i] = 2.0 * 12 * lanes * (double)rounds / (thread_seconds() - begin) / 1e9;
    }
    (void)kept;
    qsort(found, (size_t)turns, sizeof(*found), by_value);
    return found[turns / 2];
}

static double find_peak(void)
{
    double peak = time_chains(chains16, 4);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        peak = time_chains(chains32, 8);
    if (__builtin_cpu_supports("avx512f")) {
        const double wide = time_chains(chains64, 16);
        peak = wide > peak ? wide : peak;
    }
#endif
    return peak;
}

/* ---- one library ---- */

static double time_product(gemm_fn *gemm, int m, int n, int k, int ta, int tb)
{
    float *a = malloc(sizeof(float) * (size_t)m * (size_t)k), *b = malloc(sizeof(float) * (size_t)n * (size_t)k);
    float *c = calloc((size_t)m * (size_t)n, sizeof(float));
    const double operations = 2.0 * m * n * k;
    const int repeats = 1 + (int)(4e8 / operations);
    double found[MOST_TURNS];

    if (a == NULL || b == NULL || c == NULL)
        exit(1);
    for (int i = 0; i < m * k; i++)
        a[i] = (float)(i % 7) - 3;
    for (int i = 0; i < n * k; i++)
        b[i] = (float)(i % 5) - 2;
    for (int i = -1; i < turns; i++) {
        const double begin = thread_seconds();

        for (int r = 0; r < repeats; r++)
            gemm(ROW_MAJOR, ta, tb, m, n, k, 1, a, ta == PLAIN ? k : m, b, tb == PLAIN ? n : k, 0, c, n);
        if (i >= 0)
            found[i] = operations * repeats / (thread_seconds() - begin) / 1e9;
    }
    free(a);
    free(b);
    free(c);
    qsort(found, (size_t)turns, sizeof(*found), by_value);
    return found[turns / 2];
}

/* A line of the table: forward, gradient of the input, gradient of the weights. */
static int run_library(const char *label, const char *file, double peak)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
    gemm_fn *gemm;
    char *(*corename)(void);

    if (library == NULL)
        return 77;
    *(void **)&gemm = dlsym(library, "cblas_sgemm");
    *(void **)&corename = dlsym(library, "openblas_get_corename");
    if (gemm == NULL)
        return 77;
    printf("%-16s %-14s", label, corename != NULL ? corename() : "-");
    for (size_t i = 0; i < SIZES; i++) {
        const int m = sizes[i].m, n = sizes[i].n, k = sizes[i].k;
        const double forward = time_product(gemm, m, n, k, PLAIN, PLAIN);

        printf("  %5.1f %5.1f %5.1f", forward, time_product(gemm, m, k, n, PLAIN, TURNED),
               time_product(gemm, k, n, m, TURNED, PLAIN));
        if (i == 0)
            printf(" (%2.0f %%)", 100 * forward / peak);
    }
    putchar('\n');
    return 0;
}

/* In another process, as a library chooses when it is loaded. kernel: NULL leaves it alone. */
static void run_apart(const char *label, const char *file, const char *kernel, int plugin, double peak)
{
    fflush(stdout);
    if (fork() == 0) {
        const dp_plugin_t *loaded;
        int rc;

        setenv("OPENBLAS_NUM_THREADS", "1", 1);
        setenv("BLIS_NUM_THREADS", "1", 1);
        setenv("MKL_NUM_THREADS", "1", 1);
        unsetenv("OPENBLAS_CORETYPE");
        if (kernel != NULL)
            setenv("OPENBLAS_CORETYPE", kernel, 1);
        if (plugin && dp_plugin_load("moe_cpu", &loaded) < 0) {
            printf("%-16s %s\n", label, dp_last_error());
            exit(1);
        }
        rc = run_library(label, file, peak);
        exit(rc);
    }
    wait(NULL);
}

int main(int argc, char **argv)
{
    static const char *const kernels[] = {"Prescott", "Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids"};
    static const char *const others[][2] = {{"BLIS", "libblis.so.4"},
                                            {"BLIS", "libblis.so.3"},
                                            {"MKL", "libmkl_rt.so.2"},
                                            {"reference", "libblas/libblas.so.3"}};
    const char *openblas = "libopenblas.so.0";
    double peak;

    if (argc > 1)
        turns = atoi(argv[1]);
    if (turns < 1 || turns > MOST_TURNS) {
        fprintf(stderr, "usage: %s [TURNS]: 1 to %d\n", argv[0], MOST_TURNS);
        return 2;
    }
    setenv("DUALPIPE_PLUGIN_PATH", DP_BENCH_PLUGINS, 0);
    peak = find_peak();
    printf("peak of a core %.1f GFLOP/s f32; products forward, gradient of the input, of the weights\n", peak);
    printf("%-16s %-14s", "", "kernels");
    for (size_t i = 0; i < SIZES; i++)
        printf("  %5dx%4dx%4d%s", sizes[i].m, sizes[i].n, sizes[i].k, i == 0 ? "        " : "   ");
    putchar('\n');
    run_apart("chosen", openblas, NULL, 1, peak);
    run_apart("OpenBLAS", openblas, NULL, 0, peak);
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
        run_apart(kernels[i], openblas, kernels[i], 0, peak);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        run_apart(others[i][0], others[i][1], NULL, 0, peak);
    return 0;
}
