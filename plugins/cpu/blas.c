/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * blas.c: see blas.h. The choice depends on the processor and the library alone, never on a clock:
 * all ranks of a machine get the same bits. */
#include "blas.h"

#include <cblas.h>
#include <dlfcn.h>
#include <float.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* Functions that not every BLAS has: NULL there. */
#define MAYBE __attribute__((weak))
MAYBE extern char *openblas_get_config(void);
MAYBE extern char *openblas_get_corename(void);
MAYBE extern void openblas_set_num_threads(int threads);
MAYBE extern void gotoblas_dynamic_quit(void);
MAYBE extern void gotoblas_dynamic_init(void);
MAYBE extern const char *bli_info_get_version_str(void);
MAYBE extern int bli_arch_query_id(void);
MAYBE extern const char *bli_arch_string(int id);
MAYBE extern void mkl_get_version_string(char *text, int bytes);

#define CORETYPE "OPENBLAS_CORETYPE"

static char about[200];

/* ---- what a processor can do, and what OpenBLAS's kernels make use of ---- */

enum { LESS, AVX2, AVX512 };

static int processor_level(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return AVX2;
#endif
    return LESS;
}

/* Best first. */
static const struct {
    const char *name;
    int level;
} kernels[] = {{"SkylakeX", AVX512}, {"Haswell", AVX2}, {"Prescott", LESS}};

/* Names that are not here are of processors younger than this list. */
static int kernel_level(const char *name)
{
    static const char *const less[] = {"Prescott",    "Core2",     "Penryn",  "Dunnington", "Nehalem",
                                       "Sandybridge", "Atom",      "Nano",    "Opteron",    "Opteron_SSE3",
                                       "Barcelona",   "Bulldozer", "Bobcat",  "Piledriver", "Steamroller",
                                       "Katmai",      "Banias",    "Generic", "unknown"};
    static const char *const avx2[] = {"Haswell", "Zen", "Excavator"};

    for (size_t i = 0; i < sizeof(less) / sizeof(less[0]); i++)
        if (strcasecmp(name, less[i]) == 0)
            return LESS;
    for (size_t i = 0; i < sizeof(avx2) / sizeof(avx2[0]); i++)
        if (strcasecmp(name, avx2[i]) == 0)
            return AVX2;
    return AVX512;
}

/* ---- whether products are right ---- */

/* Odd ones in a block of rows that is longer; more than the small products of OpenBLAS, which have
 * their own kernels. */
enum { MOST_M = 97, MOST_N = 129, MOST_K = 83, GAP = 3 };

typedef struct products {
    double a[MOST_M * MOST_K], a_turned[MOST_M * MOST_K], b[MOST_K * MOST_N], b_turned[MOST_K * MOST_N];
    double right[MOST_M * MOST_N], c[MOST_M * (MOST_N + GAP)];
    float a32[MOST_M * MOST_K], a_turned32[MOST_M * MOST_K], b32[MOST_K * MOST_N], b_turned32[MOST_K * MOST_N];
    float c32[MOST_M * (MOST_N + GAP)];
} products_t;

/* From -1 to 1, of 24 bits: what a kernel rounds away, or leaves out, shows. */
static double draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (double)(int32_t)(*state & 0xffffff00u) / 2147483648.0;
}

static void fill(double *x, double *turned, float *x32, float *turned32, size_t rows, size_t columns, uint32_t *state)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++) {
            const double value = draw(state);

            x[i * columns + j] = turned[j * rows + i] = value;
            x32[i * columns + j] = turned32[j * rows + i] = (float)value;
        }
}

static void multiply_plainly(const double *a, const double *b, double *c, size_t m, size_t n, size_t k)
{
    memset(c, 0, m * n * sizeof(*c));
    for (size_t i = 0; i < m; i++)
        for (size_t p = 0; p < k; p++)
            for (size_t j = 0; j < n; j++)
                c[i * n + j] += a[i * k + p] * b[p * n + j];
}

/* c began as 1 everywhere; nothing is written beside its matrix. */
static bool is_near(const products_t *p, size_t m, size_t n, size_t k, bool single)
{
    const double most = 2 * (double)(k + 1) * (single ? (double)FLT_EPSILON : DBL_EPSILON);

    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n + GAP; j++) {
            const double found = single ? (double)p->c32[i * (n + GAP) + j] : p->c[i * (n + GAP) + j];
            const double off = found - 1 - (j < n ? p->right[i * n + j] : 0);

            if (!(off <= most && off >= -most))
                return false;
        }
    return true;
}

static bool check_product(products_t *p, int m, int n, int k, bool turn_a, bool turn_b)
{
    const CBLAS_TRANSPOSE ta = turn_a ? CblasTrans : CblasNoTrans, tb = turn_b ? CblasTrans : CblasNoTrans;
    const int lda = turn_a ? m : k, ldb = turn_b ? k : n, ldc = n + GAP;

    for (size_t i = 0; i < (size_t)m * (size_t)ldc; i++)
        p->c[i] = p->c32[i] = 1;
    cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1, turn_a ? p->a_turned32 : p->a32, lda,
                turn_b ? p->b_turned32 : p->b32, ldb, 1, p->c32, ldc);
    cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, 1, turn_a ? p->a_turned : p->a, lda, turn_b ? p->b_turned : p->b, ldb,
                1, p->c, ldc);
    return is_near(p, (size_t)m, (size_t)n, (size_t)k, true) && is_near(p, (size_t)m, (size_t)n, (size_t)k, false);
}

/* The three products of a linear layer and its gradients, small and large. */
static bool multiplies_right(products_t *p)
{
    static const int sizes[][3] = {{MOST_M, MOST_N, MOST_K}, {33, 17, 40}, {5, 64, 7}, {1, 9, 16}};
    uint32_t state = 1;
    bool right = true;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && right; i++) {
        const int m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];

        fill(p->a, p->a_turned, p->a32, p->a_turned32, (size_t)m, (size_t)k, &state);
        fill(p->b, p->b_turned, p->b32, p->b_turned32, (size_t)k, (size_t)n, &state);
        multiply_plainly(p->a, p->b, p->right, (size_t)m, (size_t)n, (size_t)k);
        right = check_product(p, m, n, k, false, false) && check_product(p, m, n, k, false, true) &&
                check_product(p, m, n, k, true, false);
    }
    return right;
}

/* ---- the choice ---- */

/* Whether the library was mapped because this plugin, whose init runs, needs it: then nobody has
 * called it yet. */
static bool is_untouched(void)
{
    struct link_map *ours, *theirs;
    Dl_info info;

    if (dladdr1(about, &info, (void **)&ours, RTLD_DL_LINKMAP) == 0 ||
        dladdr1((void *)(uintptr_t)openblas_get_corename, &info, (void **)&theirs, RTLD_DL_LINKMAP) == 0)
        return false;
    while (ours != NULL && ours != theirs)
        ours = ours->l_next;
    return ours != NULL;
}

/* OpenBLAS reads the variable where it chooses. Other threads may be reading the environment: they
 * see the old one or a longer copy of it, which stays, and never one that is being changed. */
static dp_status_t use_kernel(const char *name)
{
    static char setting[64];
    static char **copy;
    char **const before = environ;
    size_t n = 0;

    while (before[n] != NULL)
        n++;
    if (copy == NULL) {
        copy = malloc((n + 2) * sizeof(*copy));
        if (copy == NULL)
            return DP_ERR_NOMEM;
        copy[0] = setting;
        memcpy(copy + 1, before, (n + 1) * sizeof(*copy));
    }
    snprintf(setting, sizeof(setting), CORETYPE "=%s", name);
    environ = copy;
    gotoblas_dynamic_quit();
    gotoblas_dynamic_init();
    environ = before;
    return DP_OK;
}

static const char *chosen_by_user(void)
{
    const char *name = getenv(CORETYPE);

    return name != NULL && *name != '\0' ? name : NULL;
}

static const char *best_kernel(void)
{
    size_t i = 0;

    while (kernels[i].level > processor_level())
        i++;
    return kernels[i].name;
}

/* The best kernels that compute right; false: there are none. */
static bool find_right(products_t *p)
{
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
        if (kernels[i].level > processor_level())
            continue;
        if (use_kernel(kernels[i].name) == DP_OK && strcasecmp(openblas_get_corename(), kernels[i].name) == 0 &&
            multiplies_right(p))
            return true;
    }
    return false;
}

static void describe(void)
{
    char text[120];

    if (openblas_get_config != NULL && openblas_get_corename != NULL) {
        const char *config = openblas_get_config(), *version = strchr(config, ' ');
        const size_t length = version != NULL ? strcspn(version + 1, " ") + (size_t)(version + 1 - config) : 0;

        snprintf(about, sizeof(about), "%.*s, kernels %s", length > 0 ? (int)length : (int)strlen(config), config,
                 openblas_get_corename());
    } else if (bli_info_get_version_str != NULL && bli_arch_query_id != NULL && bli_arch_string != NULL) {
        snprintf(about, sizeof(about), "BLIS %s, kernels %s", bli_info_get_version_str(),
                 bli_arch_string(bli_arch_query_id()));
    } else if (mkl_get_version_string != NULL) {
        mkl_get_version_string(text, sizeof(text));
        snprintf(about, sizeof(about), "%.*s", (int)sizeof(text), text);
    } else {
        Dl_info info = {.dli_fname = NULL};

        snprintf(about, sizeof(about), "CBLAS of %s",
                 dladdr((void *)(uintptr_t)cblas_sgemm, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "?");
    }
}

/* Of an OpenBLAS whose kernels are for older processors, and cannot be changed. */
static void warn_slow(const dp_host_t *host, const char *plugin, const char *found, const char *user)
{
    char text[300];

    if (user != NULL)
        snprintf(text, sizeof(text),
                 CORETYPE "=%s is set, so OpenBLAS uses kernels for older processors: without it %s would be taken",
                 user, best_kernel());
    else
        snprintf(text, sizeof(text),
                 "OpenBLAS uses its kernels %s, for older processors, and cannot be changed any more: set " CORETYPE
                 "=%s before the program starts",
                 found, best_kernel());
    host->log(host, DP_LOG_WARN, plugin, text);
}

static dp_status_t choose(const dp_host_t *host, const char *plugin, products_t *p)
{
    const char *const user = chosen_by_user();
    const bool is_openblas = openblas_get_corename != NULL;
    const bool changeable =
        is_openblas && gotoblas_dynamic_quit != NULL && gotoblas_dynamic_init != NULL && user == NULL && is_untouched();
    char found[64], text[200];
    bool slow;

    snprintf(found, sizeof(found), "%s", is_openblas ? openblas_get_corename() : "");
    slow = is_openblas && kernel_level(found) < processor_level();
    if (!(slow && changeable) && multiplies_right(p)) {
        if (slow && (user == NULL || is_untouched())) /* said by the first plugin */
            warn_slow(host, plugin, found, user);
        return DP_OK;
    }
    if (changeable && find_right(p)) {
        snprintf(text, sizeof(text), "OpenBLAS chose its kernels %s, %s: it uses %s instead", found,
                 slow ? "for older processors" : "whose products are wrong here", openblas_get_corename());
        host->log(host, slow ? DP_LOG_INFO : DP_LOG_WARN, plugin, text);
        return DP_OK;
    }
    describe();
    return DP_FAIL(host, DP_ERR_UNSUPPORTED, "%s: the products of %s are wrong on this processor: %s", plugin, about,
                   user != NULL ? "unset " CORETYPE : "install another BLAS, or a newer one");
}

dp_status_t cpu_blas_choose(const dp_host_t *host, const char *plugin)
{
    products_t *p = host->allocate(host, sizeof(*p), 64);
    dp_status_t status;

    if (p == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "%s: no memory to check products", plugin);
    status = choose(host, plugin, p);
    host->release(host, p);
    describe();
    return status;
}

const char *cpu_blas_about(void)
{
    return about;
}

void cpu_blas_set_threads(const dp_host_t *host)
{
    const char *chosen = getenv("OPENBLAS_NUM_THREADS");
    const dp_host_sm_t *share = host->get_service(host, DP_HOST_SM);
    int threads = 1;

    if (chosen != NULL && *chosen != '\0')
        return; /* the library has read it itself */
    if (share != NULL && share->struct_size >= offsetof(dp_host_sm_t, comm_sms) && share->compute_sms > 0)
        threads = share->compute_sms < INT_MAX ? (int)share->compute_sms : INT_MAX;
    if (openblas_set_num_threads != NULL)
        openblas_set_num_threads(threads);
}
