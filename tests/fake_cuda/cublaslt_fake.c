/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cublaslt_fake.c: the part of cuBLASLt that our plugins use, in plain loops on host memory, in the
 * order of the fake driver's streams. For tests on machines without a GPU; refuses what the real
 * one refuses, and more: an algorithm runs only the product it was found for, on pointers as
 * aligned as was promised, with the workspace that it asked for, whose bytes it overwrites. With
 * $FAKE_CUBLASLT_ALIGNED it knows nothing for pointers off 16 bytes. It says that it is 13.1. */
#include "cublaslt_fake.h"
#include "first_use.h"
#include "tests/support/debug.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct layout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld, stride;
    int32_t batch;
    cublasLtOrder_t order;
} layout_t;

typedef struct product {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t a, b;
    int32_t sms;
} product_t;

typedef struct preference {
    uint64_t workspace;
    uint32_t schemes, align_a, align_b, align_c, align_d;
} preference_t;

/* What an algorithm was found for; it must fit into the library's 8 words. */
typedef struct algorithm {
    uint64_t magic, problem, workspace;
    uint32_t align_a, align_b, align_c, align_d;
    uint64_t spare[3];
} algorithm_t;
_Static_assert(sizeof(algorithm_t) == sizeof(cublasLtMatmulAlgo_t), "an algorithm is as large as the real one");
#define ALGORITHM_MAGIC 0x6475616c70697065u

typedef struct call {
    struct call *next;
    product_t product;
    layout_t a, b, c;
    double alpha, beta;
    const char *at_a, *at_b;
    char *at_c, *workspace;
    size_t workspace_bytes;
} call_t;

/* Calls are kept until the handle goes: a captured one runs again. */
typedef struct handle {
    uint64_t magic;
    pthread_mutex_t lock;
    call_t *calls;
} handle_t;

static _Atomic unsigned long searches, products;
static _Atomic int last_sms;

unsigned long fake_cublaslt_searches(void)
{
    return searches;
}

unsigned long fake_cublaslt_products(void)
{
    return products;
}

int fake_cublaslt_last_sms(void)
{
    return last_sms;
}

size_t cublasLtGetVersion(void)
{
    return 130100;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
        return "CUBLAS_STATUS_?";
    }
}

static void *make(const void *start, size_t bytes)
{
    void *copy = malloc(bytes);

    if (copy != NULL)
        memcpy(copy, start, bytes);
    return copy;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    handle_t *h = calloc(1, sizeof(*h));

    if (h == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED;
    h->magic = ALGORITHM_MAGIC;
    pthread_mutex_init(&h->lock, NULL);
    *out = (cublasLtHandle_t)h;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    handle_t *h = (handle_t *)handle;

    if (h == NULL || h->magic != ALGORITHM_MAGIC)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    for (call_t *c = h->calls, *next; c != NULL; c = next) {
        next = c->next;
        free(c);
    }
    pthread_mutex_destroy(&h->lock);
    h->magic = 0;
    free(h);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
{
    const product_t p = {compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, 0};

    *out = make(&p, sizeof(p));
    return *out != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set(void *to, size_t size, const void *from, size_t bytes)
{
    if (bytes != size)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes)
{
    product_t *p = (product_t *)desc;

    switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&p->a, sizeof(p->a), value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&p->b, sizeof(p->b), value, bytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
        return set(&p->sms, sizeof(p->sms), value, bytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t ld)
{
    const layout_t l = {type, rows, columns, ld, 0, 1, CUBLASLT_ORDER_COL};

    *out = make(&l, sizeof(l));
    return *out != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t name,
                                                const void *value, size_t bytes)
{
    layout_t *l = (layout_t *)layout;

    switch (name) {
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
        return set(&l->order, sizeof(l->order), value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return set(&l->batch, sizeof(l->batch), value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return set(&l->stride, sizeof(l->stride), value, bytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

/* The real one takes pointers to be aligned to 256 bytes unless told otherwise. */
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    const preference_t p = {0, CUBLASLT_REDUCTION_SCHEME_MASK, 256, 256, 256, 256};

    *out = make(&p, sizeof(p));
    return *out != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name, const void *value,
                                                    size_t bytes)
{
    preference_t *p = (preference_t *)preference;

    switch (name) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&p->workspace, sizeof(p->workspace), value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&p->schemes, sizeof(p->schemes), value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return set(&p->align_a, sizeof(p->align_a), value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return set(&p->align_b, sizeof(p->align_b), value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return set(&p->align_c, sizeof(p->align_c), value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(&p->align_d, sizeof(p->align_d), value, bytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

static size_t bytes_of(cudaDataType_t type)
{
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 0;
}

static bool types_fit(const product_t *p, const layout_t *a, const layout_t *b, const layout_t *c)
{
    if (a->type != b->type)
        return false;
    if (p->compute == CUBLAS_COMPUTE_64F)
        return p->scale == CUDA_R_64F && a->type == CUDA_R_64F && c->type == CUDA_R_64F;
    if (p->compute != CUBLAS_COMPUTE_32F || p->scale != CUDA_R_32F)
        return false;
    if (a->type == CUDA_R_32F)
        return c->type == CUDA_R_32F;
    return a->type == CUDA_R_16BF && (c->type == CUDA_R_16BF || c->type == CUDA_R_32F);
}

static bool layout_fits(const layout_t *l, int32_t batch)
{
    return l->order == CUBLASLT_ORDER_COL && l->rows > 0 && l->columns > 0 && l->ld >= (int64_t)l->rows &&
           l->batch == batch && batch > 0;
}

static uint64_t inner(const product_t *p, const layout_t *a)
{
    return p->a == CUBLAS_OP_N ? a->columns : a->rows;
}

static bool sizes_fit(const product_t *p, const layout_t *a, const layout_t *b, const layout_t *c)
{
    const uint64_t m = p->a == CUBLAS_OP_N ? a->rows : a->columns, n = p->b == CUBLAS_OP_N ? b->columns : b->rows;
    const uint64_t k = p->b == CUBLAS_OP_N ? b->rows : b->columns;

    return layout_fits(a, c->batch) && layout_fits(b, c->batch) && layout_fits(c, c->batch) && m == c->rows &&
           n == c->columns && k == inner(p, a) &&
           (c->batch == 1 || c->stride >= (int64_t)(c->columns - 1) * c->ld + (int64_t)c->rows ||
            c->ld > (int64_t)c->rows);
}

static uint64_t mix(uint64_t h, uint64_t value)
{
    return (h ^ value) * 1099511628211u;
}

static uint64_t mix_layout(uint64_t h, const layout_t *l)
{
    h = mix(mix(mix(h, (uint64_t)l->type), l->rows), l->columns);
    return mix(mix(mix(h, (uint64_t)l->ld), (uint64_t)l->stride), (uint64_t)l->batch);
}

static uint64_t name_problem(const product_t *p, const layout_t *a, const layout_t *b, const layout_t *c)
{
    uint64_t h = mix(mix(mix(14695981039346656037u, (uint64_t)p->compute), (uint64_t)p->a), (uint64_t)p->b);

    return mix_layout(mix_layout(mix_layout(mix(h, (uint64_t)p->sms), a), b), c);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a_desc, cublasLtMatrixLayout_t b_desc,
                                              cublasLtMatrixLayout_t c_desc, cublasLtMatrixLayout_t d_desc,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *count)
{
    const product_t *p = (const product_t *)desc;
    const layout_t *a = (const layout_t *)a_desc, *b = (const layout_t *)b_desc, *c = (const layout_t *)c_desc;
    const preference_t *f = (const preference_t *)preference;
    algorithm_t found = {.magic = ALGORITHM_MAGIC};

    *count = 0;
    if (handle == NULL || wanted < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    searches++;
    if (f->align_a < 16 && getenv("FAKE_CUBLASLT_ALIGNED") != NULL)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!types_fit(p, a, b, c) || !sizes_fit(p, a, b, c) || memcmp(c_desc, d_desc, sizeof(*c)) != 0)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    found.problem = name_problem(p, a, b, c);
    /* Long sums are split where there is room for the parts. */
    found.workspace = inner(p, a) >= 64 && f->workspace >= 4096 ? 4096 : 0;
    found.align_a = f->align_a;
    found.align_b = f->align_b;
    found.align_c = f->align_c;
    found.align_d = f->align_d;
    memset(&results[0], 0, sizeof(results[0]));
    memcpy(&results[0].algo, &found, sizeof(found));
    results[0].workspaceSize = found.workspace;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static double load(const char *at, cudaDataType_t type, int64_t i)
{
    if (type == CUDA_R_64F)
        return ((const double *)at)[i];
    if (type == CUDA_R_32F)
        return ((const float *)at)[i];
    {
        const uint32_t bits = (uint32_t)((const uint16_t *)at)[i] << 16;
        float value;

        memcpy(&value, &bits, sizeof(value));
        return value;
    }
}

/* To the nearest, ties to even. */
static uint16_t round_bf16(float value)
{
    uint32_t bits;

    if (isnan(value))
        return 0x7fff;
    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void store(char *at, cudaDataType_t type, int64_t i, double value)
{
    if (type == CUDA_R_64F)
        ((double *)at)[i] = value;
    else if (type == CUDA_R_32F)
        ((float *)at)[i] = (float)value;
    else
        ((uint16_t *)at)[i] = round_bf16((float)value);
}

/* op(matrix) as contiguous lines: lines of rows (by_row) or of columns. */
static double *gather(const char *at, const layout_t *l, cublasOperation_t op, bool by_row, uint64_t *lines_out)
{
    const uint64_t rows = op == CUBLAS_OP_N ? l->rows : l->columns;
    const uint64_t columns = op == CUBLAS_OP_N ? l->columns : l->rows;
    const uint64_t lines = by_row ? rows : columns, length = by_row ? columns : rows;
    double *copy = malloc(rows * columns * sizeof(*copy));

    for (uint64_t i = 0; copy != NULL && i < lines; i++)
        for (uint64_t j = 0; j < length; j++) {
            const uint64_t row = by_row ? i : j, column = by_row ? j : i;
            const int64_t index =
                op == CUBLAS_OP_N ? (int64_t)column * l->ld + (int64_t)row : (int64_t)row * l->ld + (int64_t)column;

            copy[i * length + j] = load(at, l->type, index);
        }
    *lines_out = lines;
    return copy;
}

static double dot(const double *a, const double *b, uint64_t k, bool wide)
{
    double sum = 0;
    float sum32 = 0;

    if (wide) {
        for (uint64_t i = 0; i < k; i++)
            sum += a[i] * b[i];
        return sum;
    }
    for (uint64_t i = 0; i < k; i++)
        sum32 += (float)a[i] * (float)b[i];
    return sum32;
}

static void multiply(const call_t *c, int64_t batch)
{
    const char *const at_a = c->at_a + batch * c->a.stride * (int64_t)bytes_of(c->a.type);
    const char *const at_b = c->at_b + batch * c->b.stride * (int64_t)bytes_of(c->b.type);
    char *const at_c = c->at_c + batch * c->c.stride * (int64_t)bytes_of(c->c.type);
    const uint64_t k = inner(&c->product, &c->a);
    const bool wide = c->product.compute == CUBLAS_COMPUTE_64F;
    uint64_t m, n;
    double *a = gather(at_a, &c->a, c->product.a, true, &m), *b = gather(at_b, &c->b, c->product.b, false, &n);

    for (uint64_t j = 0; a != NULL && b != NULL && j < n; j++)
        for (uint64_t i = 0; i < m; i++) {
            const int64_t at = (int64_t)j * c->c.ld + (int64_t)i;
            double value = c->alpha * dot(a + i * k, b + j * k, k, wide);

            if (c->beta != 0)
                value += c->beta * load(at_c, c->c.type, at);
            store(at_c, c->c.type, at, value);
        }
    free(a);
    free(b);
}

static void run(void *arg)
{
    const call_t *c = arg;

    if (c->workspace_bytes > 0)
        memset(c->workspace, 0xa5, c->workspace_bytes);
    for (int64_t i = 0; i < c->c.batch; i++)
        multiply(c, i);
}

/* Onto the fake driver's stream, in its order; at once where no driver was named. */
static cublasStatus_t enqueue(cudaStream_t stream, call_t *c)
{
    typedef int (*launch_fn)(cudaStream_t, void (*)(void *), void *);
    const char *driver = debug_entry("lib.cuda");
    void *handle;
    union {
        void *object;
        launch_fn function;
    } launch = {NULL};

    if (driver == NULL) {
        run(c);
        return CUBLAS_STATUS_SUCCESS;
    }
    handle = dlopen(driver, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle != NULL)
        launch.object = dlsym(handle, "cuLaunchHostFunc");
    if (launch.object == NULL)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    return launch.function(stream, run, c) == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

static bool aligned(const void *pointer, const layout_t *l, uint32_t bytes)
{
    return (uintptr_t)pointer % bytes == 0 && (l->batch == 1 || (uint64_t)l->stride * bytes_of(l->type) % bytes == 0);
}

static double scalar(const product_t *p, const void *value)
{
    return p->scale == CUDA_R_64F ? *(const double *)value : (double)*(const float *)value;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *at_a,
                              cublasLtMatrixLayout_t a_desc, const void *at_b, cublasLtMatrixLayout_t b_desc,
                              const void *beta, const void *at_c, cublasLtMatrixLayout_t c_desc, void *at_d,
                              cublasLtMatrixLayout_t d_desc, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    handle_t *h = (handle_t *)handle;
    const product_t *p = (const product_t *)desc;
    const layout_t *a = (const layout_t *)a_desc, *b = (const layout_t *)b_desc, *c = (const layout_t *)c_desc;
    algorithm_t found;
    call_t *call;

    if (h == NULL || h->magic != ALGORITHM_MAGIC)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (at_a == NULL || at_b == NULL || at_c != at_d || c_desc != d_desc || algo == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&found, algo, sizeof(found));
    if (found.magic != ALGORITHM_MAGIC || found.problem != name_problem(p, a, b, c) ||
        workspace_bytes < found.workspace || (found.workspace > 0 && (uintptr_t)workspace % 256 != 0) ||
        (found.workspace > 0 && workspace == NULL) || !aligned(at_a, a, found.align_a) ||
        !aligned(at_b, b, found.align_b) || !aligned(at_c, c, found.align_c) || !aligned(at_d, c, found.align_d))
        return CUBLAS_STATUS_INVALID_VALUE;
    call = calloc(1, sizeof(*call));
    if (call == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *call = (call_t){.product = *p,
                     .a = *a,
                     .b = *b,
                     .c = *c,
                     .at_a = at_a,
                     .at_b = at_b,
                     .at_c = at_d,
                     .workspace = workspace,
                     .workspace_bytes = found.workspace,
                     .alpha = scalar(p, alpha),
                     .beta = scalar(p, beta)};
    pthread_mutex_lock(&h->lock);
    call->next = h->calls;
    h->calls = call;
    pthread_mutex_unlock(&h->lock);
    products++;
    last_sms = p->sms;
    first_use(found.problem ^ (uint64_t)found.align_a << 32 ^ (uint64_t)found.align_b << 16 ^ found.align_c);
    return enqueue(stream, call);
}
