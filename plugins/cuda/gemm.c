/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gemm.c: plans for matrix products, found once per shape and alignment, and run from then on.
 *
 * cuBLASLt counts columns first. A row-major matrix read that way is its transpose, so the product
 * is asked for as C' = op(B)' op(A)': B comes first, and m and n change places. */
#include "gemm.h"
#include "blas.h"

#include "plugins/common/do.h"

#include <string.h>

enum {
    VECTOR_BYTES = 16, /* what vector loads and the tensor memory accelerator want of a pointer */
    WORKSPACE_ALIGN = 256,
    FIRST_SLOTS = 64
};
#define DEFAULT_WORKSPACE ((size_t)32 << 20)

/* All that a plan depends on, without padding: compared and hashed as bytes. */
typedef struct plan_key {
    int64_t lda, ldb, ldc, stride_a, stride_b, stride_c;
    uint32_t m, n, k, batch;
    uint32_t in, out, transpose_a, transpose_b;
    uint32_t alignment, sms;
} plan_key_t;
_Static_assert(sizeof(plan_key_t) == 6 * 8 + 10 * 4, "a key has no padding");

typedef struct plan {
    plan_key_t key; /* key.m == 0: a free slot */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
} plan_t;

struct cuda_gemm {
    const dp_host_t *host;
    cuda_blas_t blas;
    cublasLtHandle_t handle;
    uint32_t sms;
    size_t limit, workspace; /* most that a plan may take; what the largest one takes */
    plan_t *plans;           /* open addressing, a power of two */
    size_t slots, nplans;
};

static dp_status_t check_cublas(const cuda_gemm_t *g, cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return DP_OK;
    return DP_FAIL(g->host, DP_ERR_DEVICE, "cuBLASLt: %s: %s", what, g->blas.cublasLtGetStatusString(status));
}

static cudaDataType_t data_type(uint32_t dtype)
{
    return dtype == DP_F64 ? CUDA_R_64F : dtype == DP_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static dp_status_t describe_matrix(const cuda_gemm_t *g, uint32_t dtype, uint32_t rows, uint32_t columns, int64_t ld,
                                   uint32_t batch, int64_t stride, cublasLtMatrixLayout_t *out)
{
    const cublasLtOrder_t order = CUBLASLT_ORDER_COL;
    const int32_t count = (int32_t)batch;
    const struct {
        cublasLtMatrixLayoutAttribute_t name;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof(order)},
        {CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)},
        {CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)},
    };
    dp_status_t status = check_cublas(g, g->blas.cublasLtMatrixLayoutCreate(out, data_type(dtype), columns, rows, ld),
                                      "describing a matrix");

    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]) && status >= 0; i++)
        status = check_cublas(g,
                              g->blas.cublasLtMatrixLayoutSetAttribute(*out, attributes[i].name, attributes[i].value,
                                                                       attributes[i].bytes),
                              "describing a matrix's batch");
    return status;
}

static dp_status_t describe_product(const cuda_gemm_t *g, plan_t *plan)
{
    const plan_key_t *k = &plan->key;
    const cublasOperation_t first = k->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = k->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t sms = (int32_t)k->sms;
    const struct {
        cublasLtMatmulDescAttributes_t name;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)},
        {CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)},
        {CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &sms, sizeof(sms)},
    };
    const bool wide = k->in == DP_F64;
    dp_status_t status =
        check_cublas(g,
                     g->blas.cublasLtMatmulDescCreate(&plan->product, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                                      wide ? CUDA_R_64F : CUDA_R_32F),
                     "describing a product");

    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]) && status >= 0; i++)
        status = check_cublas(g,
                              g->blas.cublasLtMatmulDescSetAttribute(plan->product, attributes[i].name,
                                                                     attributes[i].value, attributes[i].bytes),
                              "describing a product's operands");
    if (status >= 0)
        status = describe_matrix(g, k->in, k->transpose_a ? k->k : k->m, k->transpose_a ? k->m : k->k, k->lda, k->batch,
                                 k->stride_a, &plan->a);
    if (status >= 0)
        status = describe_matrix(g, k->in, k->transpose_b ? k->n : k->k, k->transpose_b ? k->k : k->n, k->ldb, k->batch,
                                 k->stride_b, &plan->b);
    if (status >= 0)
        status = describe_matrix(g, k->out, k->m, k->n, k->ldc, k->batch, k->stride_c, &plan->c);
    return status;
}

/* Split sums only in the accumulator's type: others would round to the output's type on the way. */
static dp_status_t set_preferences(const cuda_gemm_t *g, const plan_key_t *k, size_t limit,
                                   cublasLtMatmulPreference_t preference)
{
    const uint64_t bytes = limit;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof(schemes)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &k->alignment, sizeof(k->alignment)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &k->alignment, sizeof(k->alignment)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &k->alignment, sizeof(k->alignment)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &k->alignment, sizeof(k->alignment)},
    };
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]) && status >= 0; i++)
        status = check_cublas(g,
                              g->blas.cublasLtMatmulPreferenceSetAttribute(preference, attributes[i].name,
                                                                           attributes[i].value, attributes[i].bytes),
                              "stating a preference");
    return status;
}

static dp_status_t search_plan(const cuda_gemm_t *g, plan_t *plan, size_t limit)
{
    const plan_key_t *k = &plan->key;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    cublasStatus_t result = CUBLAS_STATUS_SUCCESS;
    dp_status_t status;

    DO(check_cublas(g, g->blas.cublasLtMatmulPreferenceCreate(&preference), "making a preference"));
    memset(&found, 0, sizeof(found));
    status = set_preferences(g, k, limit, preference);
    if (status >= 0)
        result = g->blas.cublasLtMatmulAlgoGetHeuristic(g->handle, plan->product, plan->b, plan->a, plan->c, plan->c,
                                                        preference, 1, &found, &count);
    g->blas.cublasLtMatmulPreferenceDestroy(preference);
    if (status < 0)
        return status;
    if (result == CUBLAS_STATUS_SUCCESS && count > 0)
        result = found.state;
    if (result != CUBLAS_STATUS_SUCCESS || count == 0)
        return DP_FAIL(g->host, DP_ERR_UNSUPPORTED,
                       "cuBLASLt knows no product %u x %u x %u, batch %u, types %u to %u, rows of %lld, %lld, %lld "
                       "elements, pointers aligned to %u bytes, %zu bytes of workspace: %s",
                       k->m, k->n, k->k, k->batch, k->in, k->out, (long long)k->lda, (long long)k->ldb,
                       (long long)k->ldc, k->alignment, limit, g->blas.cublasLtGetStatusString(result));
    plan->algorithm = found.algo;
    plan->workspace = found.workspaceSize;
    return DP_OK;
}

static void destroy_plan(const cuda_gemm_t *g, plan_t *plan)
{
    if (plan->c != NULL)
        g->blas.cublasLtMatrixLayoutDestroy(plan->c);
    if (plan->b != NULL)
        g->blas.cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->a != NULL)
        g->blas.cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->product != NULL)
        g->blas.cublasLtMatmulDescDestroy(plan->product);
    memset(plan, 0, sizeof(*plan));
}

/* FNV-1a over the key's bytes. */
static size_t hash_key(const plan_key_t *key)
{
    const unsigned char *bytes = (const unsigned char *)key;
    uint64_t h = 14695981039346656037u;

    for (size_t i = 0; i < sizeof(*key); i++)
        h = (h ^ bytes[i]) * 1099511628211u;
    return (size_t)(h ^ h >> 32);
}

/* The slot of the key, or the free one where it belongs. */
static plan_t *find_slot(plan_t *plans, size_t slots, const plan_key_t *key)
{
    size_t i = hash_key(key) & (slots - 1);

    while (plans[i].key.m != 0 && memcmp(&plans[i].key, key, sizeof(*key)) != 0)
        i = (i + 1) & (slots - 1);
    return &plans[i];
}

static dp_status_t grow_plans(cuda_gemm_t *g)
{
    const size_t slots = g->slots == 0 ? FIRST_SLOTS : 2 * g->slots;
    plan_t *plans;

    if (2 * (g->nplans + 1) <= g->slots)
        return DP_OK;
    plans = g->host->allocate(g->host, slots * sizeof(*plans), 64);
    if (plans == NULL)
        return DP_FAIL(g->host, DP_ERR_NOMEM, "cuda: no memory for %zu plans of matrix products", slots);
    memset(plans, 0, slots * sizeof(*plans));
    for (size_t i = 0; i < g->slots; i++)
        if (g->plans[i].key.m != 0)
            *find_slot(plans, slots, &g->plans[i].key) = g->plans[i];
    g->host->release(g->host, g->plans);
    g->plans = plans;
    g->slots = slots;
    return DP_OK;
}

static dp_status_t plan_for(cuda_gemm_t *g, const plan_key_t *key, size_t limit, const plan_t **plan_out)
{
    plan_t made = {.key = *key}, *slot = g->slots == 0 ? NULL : find_slot(g->plans, g->slots, key);
    dp_status_t status;

    if (slot == NULL || slot->key.m == 0) {
        status = grow_plans(g);
        if (status >= 0)
            status = describe_product(g, &made);
        if (status >= 0)
            status = search_plan(g, &made, limit);
        if (status < 0) {
            destroy_plan(g, &made);
            return status;
        }
        slot = find_slot(g->plans, g->slots, key);
        *slot = made;
        g->nplans++;
        g->workspace = made.workspace > g->workspace ? made.workspace : g->workspace;
    }
    if (plan_out != NULL)
        *plan_out = slot;
    return DP_OK;
}

static bool valid_types(dp_dtype_t in, dp_dtype_t out)
{
    return ((in == DP_F32 || in == DP_F64 || in == DP_BF16) && out == in) || (in == DP_BF16 && out == DP_F32);
}

static dp_status_t make_key(const cuda_gemm_t *g, const cuda_gemm_shape_t *s, plan_key_t *key)
{
    const uint32_t columns_a = s->transpose_a ? s->m : s->k, columns_b = s->transpose_b ? s->k : s->n;

    *key = (plan_key_t){
        .lda = s->lda != 0 ? s->lda : columns_a,
        .ldb = s->ldb != 0 ? s->ldb : columns_b,
        .ldc = s->ldc != 0 ? s->ldc : s->n,
        .stride_a = s->stride_a,
        .stride_b = s->stride_b,
        .stride_c = s->stride_c,
        .m = s->m,
        .n = s->n,
        .k = s->k,
        .batch = s->batch != 0 ? s->batch : 1,
        .in = (uint32_t)s->in,
        .out = (uint32_t)s->out,
        .transpose_a = s->transpose_a,
        .transpose_b = s->transpose_b,
        .sms = g->sms,
    };
    if (!valid_types(s->in, s->out))
        return DP_FAIL(g->host, DP_ERR_INVALID, "cuda: no product of type %d gives type %d", (int)s->in, (int)s->out);
    if (s->m == 0 || s->n == 0 || s->k == 0 || key->batch > INT32_MAX)
        return DP_FAIL(g->host, DP_ERR_INVALID, "cuda: a product of %u x %u x %u, batch %u", s->m, s->n, s->k,
                       key->batch);
    if (key->lda < columns_a || key->ldb < columns_b || key->ldc < s->n)
        return DP_FAIL(g->host, DP_ERR_INVALID,
                       "cuda: rows of %lld, %lld, %lld elements are shorter than the columns of %u x %u x %u",
                       (long long)key->lda, (long long)key->ldb, (long long)key->ldc, s->m, s->n, s->k);
    if (key->batch > 1 && key->stride_c == 0)
        return DP_FAIL(g->host, DP_ERR_INVALID, "cuda: %u products of one call share one result", key->batch);
    return DP_OK;
}

static uint32_t element_bytes(const plan_key_t *key)
{
    return (uint32_t)dp_dtype_bytes((dp_dtype_t)key->in);
}

dp_status_t cuda_gemm_prepare(cuda_gemm_t *g, const cuda_gemm_shape_t *shape)
{
    plan_key_t key;
    dp_status_t status;

    DO(make_key(g, shape, &key));
    key.alignment = VECTOR_BYTES;
    DO(plan_for(g, &key, g->limit, NULL));
    /* Most callers never need this one: if there is none, the call that does will say so. */
    key.alignment = element_bytes(&key);
    status = plan_for(g, &key, g->limit, NULL);
    return status == DP_ERR_UNSUPPORTED ? DP_OK : status;
}

static bool is_aligned(const void *pointer, int64_t stride, dp_dtype_t dtype)
{
    return (uintptr_t)pointer % VECTOR_BYTES == 0 && (uint64_t)stride * dp_dtype_bytes(dtype) % VECTOR_BYTES == 0;
}

dp_status_t cuda_gemm_run(cuda_gemm_t *g, const cuda_gemm_shape_t *shape, const cuda_gemm_operands_t *o, void *stream)
{
    const float alpha32 = (float)o->alpha, beta32 = (float)o->beta;
    const bool wide = shape->in == DP_F64;
    const plan_t *plan;
    plan_key_t key;
    void *workspace = NULL;

    DO(make_key(g, shape, &key));
    key.alignment = is_aligned(o->a, key.stride_a, shape->in) && is_aligned(o->b, key.stride_b, shape->in) &&
                            is_aligned(o->c, key.stride_c, shape->out)
                        ? VECTOR_BYTES
                        : element_bytes(&key);
    DO(plan_for(g, &key, g->workspace, &plan));
    if (plan->workspace > 0) {
        if (o->workspace == NULL)
            return DP_FAIL(g->host, DP_ERR_INVALID, "cuda: a product needs %zu bytes of workspace, none were given",
                           plan->workspace);
        workspace = (void *)(((uintptr_t)o->workspace + WORKSPACE_ALIGN - 1) & ~(uintptr_t)(WORKSPACE_ALIGN - 1));
    }
    return check_cublas(g,
                        g->blas.cublasLtMatmul(g->handle, plan->product, wide ? (const void *)&o->alpha : &alpha32,
                                               o->b, plan->b, o->a, plan->a, wide ? (const void *)&o->beta : &beta32,
                                               o->c, plan->c, o->c, plan->c, &plan->algorithm, workspace,
                                               plan->workspace, (cudaStream_t)stream),
                        "starting a product");
}

size_t cuda_gemm_workspace(const cuda_gemm_t *g)
{
    return g->workspace == 0 ? 0 : g->workspace + WORKSPACE_ALIGN;
}

dp_status_t cuda_gemm_open(const dp_host_t *host, uint32_t sms, size_t workspace_limit, cuda_gemm_t **gemm_out)
{
    cuda_gemm_t *g = host->allocate(host, sizeof(*g), 64);
    dp_status_t status;

    if (g == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "cuda: no memory for plans of matrix products");
    *g = (cuda_gemm_t){.host = host, .sms = sms, .limit = workspace_limit != 0 ? workspace_limit : DEFAULT_WORKSPACE};
    status = cuda_blas_load(host, &g->blas);
    if (status >= 0)
        status = check_cublas(g, g->blas.cublasLtCreate(&g->handle), "opening it");
    if (status < 0) {
        host->release(host, g);
        return status;
    }
    *gemm_out = g;
    return DP_OK;
}

void cuda_gemm_close(cuda_gemm_t *g)
{
    if (g == NULL)
        return;
    for (size_t i = 0; i < g->slots; i++)
        if (g->plans[i].key.m != 0)
            destroy_plan(g, &g->plans[i]);
    g->blas.cublasLtDestroy(g->handle);
    g->host->release(g->host, g->plans);
    g->host->release(g->host, g);
}
