/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cublaslt.c: grouped products by cuBLASLt (13.4 or later). Its matrices are stored by columns: C =
 * A B by rows is C^T = B^T A^T to it, and what is its A is our B. */
#include "library.h"

#include "plugins/common/do.h"

#include "cuda/blas.h"

#include <string.h>

#define OLDEST        130400 /* the first that does it on Hopper */
#define WORKSPACE     ((size_t)32 << 20)
#define SCALARS_BYTES 256

/* Of headers of 13.4 and later. */
#define PREF_AVERAGE_K       ((cublasLtMatmulPreferenceAttributes_t)13)
#define PREF_AVERAGE_ROWS    ((cublasLtMatmulPreferenceAttributes_t)14)
#define PREF_AVERAGE_COLUMNS ((cublasLtMatmulPreferenceAttributes_t)15)

typedef cublasStatus_t (*grouped_layout_fn)(cublasLtMatrixLayout_t *layout, cudaDataType type, int groups,
                                            const void *rows, const void *columns, const void *ld);

typedef struct plan {
    moe_groups_t table; /* in device memory */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
} plan_t;

typedef struct cublaslt {
    cuda_blas_t blas;
    grouped_layout_fn grouped_layout;
    cublasLtHandle_t handle;
    float *zero, *one;
    void *workspace;
    plan_t plans[MOE_SHAPES];
} cublaslt_t;

static cublaslt_t *own_of(const dp_moe_t *moe)
{
    return moe->library->own;
}

static dp_status_t check_cublaslt(const dp_moe_t *moe, cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return DP_OK;
    return DP_FAIL(moe->host, status == CUBLAS_STATUS_NOT_SUPPORTED ? DP_ERR_UNSUPPORTED : DP_ERR_DEVICE,
                   "moe_cuda: cuBLASLt: %s: %s", what, own_of(moe)->blas.cublasLtGetStatusString(status));
}

static size_t lay_out_cublaslt(dp_moe_t *moe, char *memory)
{
    cublaslt_t *own = own_of(moe);
    size_t at = 0;

    own->zero = moe_take(memory, &at, SCALARS_BYTES);
    own->one = own->zero + 1;
    for (int i = 0; i < MOE_SHAPES; i++) {
        const size_t n = (size_t)moe_groups_of(moe, &moe->library->shapes[i]);
        moe_groups_t *t = &own->plans[i].table;

        for (int k = 0; k < 3; k++) {
            t->at[k] = moe_take(memory, &at, n * sizeof(void *));
            t->rows[k] = moe_take(memory, &at, n * sizeof(int32_t));
            t->columns[k] = moe_take(memory, &at, n * sizeof(int32_t));
            t->ld[k] = moe_take(memory, &at, n * sizeof(int32_t));
        }
    }
    own->workspace = moe_take(memory, &at, WORKSPACE);
    return at;
}

static dp_status_t describe_shape(dp_moe_t *moe, const moe_shape_t *shape, plan_t *p)
{
    const cuda_blas_t *b = &own_of(moe)->blas;
    const cublasOperation_t first = shape->form == MOE_NT ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = shape->form == MOE_TN ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t sms = (int32_t)moe->sms, pointers = CUBLASLT_POINTER_MODE_DEVICE;
    const struct {
        cublasLtMatmulDescAttributes_t name;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)},
        {CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)},
        {CUBLASLT_MATMUL_DESC_POINTER_MODE, &pointers, sizeof(pointers)},
        {CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &sms, sizeof(sms)},
    };
    cublasLtMatrixLayout_t *const layouts[3] = {&p->a, &p->b, &p->c};
    dp_status_t status = check_cublaslt(moe, b->cublasLtMatmulDescCreate(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                                        "describing a product");

    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]) && status >= 0; i++)
        status = check_cublaslt(
            moe,
            b->cublasLtMatmulDescSetAttribute(p->product, attributes[i].name, attributes[i].value, attributes[i].bytes),
            "describing a product's operands");
    for (int i = 0; i < 3 && status >= 0; i++)
        status = check_cublaslt(moe,
                                own_of(moe)->grouped_layout(
                                    layouts[i], i == 2 && moe_is_sums(shape) ? CUDA_R_32F : CUDA_R_16BF,
                                    moe_groups_of(moe, shape), p->table.rows[i], p->table.columns[i], p->table.ld[i]),
                                "describing the matrices of groups");
    return status;
}

static dp_status_t set_preferences(dp_moe_t *moe, const moe_shape_t *s, cublasLtMatmulPreference_t preference)
{
    const int64_t even = (int64_t)moe->n.tokens * moe->n.top_k * moe->n.ranks / moe->n.replicas;
    const int64_t rows = even > 0 ? even : 1;
    const int64_t k = s->form == MOE_TN ? rows : s->k, columns = s->form == MOE_TN ? s->m : rows, across = s->n;
    const uint64_t bytes = WORKSPACE;
    const uint32_t alignment = 16;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof(alignment)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment, sizeof(alignment)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment, sizeof(alignment)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment, sizeof(alignment)},
        {PREF_AVERAGE_K, &k, sizeof(k)}, /* 64 bits, whatever the header says */
        {PREF_AVERAGE_ROWS, &across, sizeof(across)},
        {PREF_AVERAGE_COLUMNS, &columns, sizeof(columns)},
    };
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]) && status >= 0; i++)
        status = check_cublaslt(moe,
                                own_of(moe)->blas.cublasLtMatmulPreferenceSetAttribute(
                                    preference, attributes[i].name, attributes[i].value, attributes[i].bytes),
                                "stating a preference");
    return status;
}

static dp_status_t search_cublaslt(dp_moe_t *moe, const moe_shape_t *shape, plan_t *p)
{
    const cublaslt_t *own = own_of(moe);
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    dp_status_t status =
        check_cublaslt(moe, own->blas.cublasLtMatmulPreferenceCreate(&preference), "making a preference");

    if (status < 0)
        return status;
    memset(&found, 0, sizeof(found));
    status = set_preferences(moe, shape, preference);
    if (status >= 0)
        status = check_cublaslt(moe,
                                own->blas.cublasLtMatmulAlgoGetHeuristic(own->handle, p->product, p->a, p->b, p->c,
                                                                         p->c, preference, 1, &found, &count),
                                "searching for a product of groups");
    own->blas.cublasLtMatmulPreferenceDestroy(preference);
    if (status >= 0 && count == 0)
        status =
            DP_FAIL(moe->host, DP_ERR_UNSUPPORTED, "moe_cuda: cuBLASLt knows no product of groups for these sizes");
    p->algorithm = found.algo;
    p->workspace = found.workspaceSize;
    return status;
}

static dp_status_t prepare_cublaslt(dp_moe_t *moe)
{
    static const float scalars[2] = {0, 1};
    cublaslt_t *own = own_of(moe);
    dp_status_t status =
        CUDA_CHECK(moe->host, moe->cu->cuMemcpyHtoD((CUdeviceptr)(uintptr_t)own->zero, scalars, sizeof(scalars)),
                   "copying two numbers");

    for (int i = 0; i < MOE_SHAPES && status >= 0; i++) {
        status = describe_shape(moe, &moe->library->shapes[i], &own->plans[i]);
        if (status >= 0)
            status = search_cublaslt(moe, &moe->library->shapes[i], &own->plans[i]);
    }
    return status;
}

static dp_status_t multiply_cublaslt(dp_moe_t *moe, int which, moe_product_t *product, int32_t part, bool add,
                                     CUstream s)
{
    const cublaslt_t *own = own_of(moe);
    const moe_shape_t *shape = &moe->library->shapes[which];
    const plan_t *p = &own->plans[which];
    moe_groups_t table = p->table;
    int32_t form = (int32_t)shape->form, bytes = moe_is_sums(shape) ? 4 : 2;
    dp_status_t status = cuda_launch(moe->host, moe->cu, moe->kernels.group_table, CUDA_DIM(1),
                                     CUDA_DIM(MOE_SCAN_THREADS), 0, s, product, &table, &form, &part, &bytes);

    if (status < 0)
        return status;
    return check_cublaslt(moe,
                          own->blas.cublasLtMatmul(own->handle, p->product, own->one, table.at[0], p->a, table.at[1],
                                                   p->b, add ? own->one : own->zero, table.at[2], p->c, table.at[2],
                                                   p->c, &p->algorithm, p->workspace > 0 ? own->workspace : NULL,
                                                   p->workspace, (cudaStream_t)s),
                          "starting a product of groups");
}

static dp_status_t open_cublaslt(dp_moe_t *moe)
{
    cublaslt_t *own = moe->host->allocate(moe->host, sizeof(*own), 64);
    size_t version;

    if (own == NULL)
        return DP_FAIL(moe->host, DP_ERR_NOMEM, "moe_cuda: no memory for plans of products");
    memset(own, 0, sizeof(*own));
    moe->library->own = own;
    DO(cuda_blas_load(moe->host, &own->blas));
    version = own->blas.cublasLtGetVersion();
    if (version < OLDEST)
        return DP_FAIL(
            moe->host, DP_ERR_UNSUPPORTED,
            "moe_cuda: DUALPIPE_DEBUG=moe_cuda.products=cublaslt needs cuBLASLt 13.4 or later, %zu was found", version);
    DO(cuda_blas_find(moe->host, "cublasLtGroupedMatrixLayoutCreate", (void **)&own->grouped_layout));
    return check_cublaslt(moe, own->blas.cublasLtCreate(&own->handle), "opening it");
}

static void close_library(dp_moe_t *moe)
{
    cublaslt_t *own = own_of(moe);

    if (own == NULL)
        return;
    for (int i = 0; i < MOE_SHAPES; i++) {
        const plan_t *p = &own->plans[i];
        const cublasLtMatrixLayout_t layouts[3] = {p->a, p->b, p->c};

        for (int k = 0; k < 3; k++)
            if (layouts[k] != NULL)
                own->blas.cublasLtMatrixLayoutDestroy(layouts[k]);
        if (p->product != NULL)
            own->blas.cublasLtMatmulDescDestroy(p->product);
    }
    if (own->handle != NULL)
        own->blas.cublasLtDestroy(own->handle);
    moe->host->release(moe->host, own);
}

const moe_maker_t moe_cublaslt = {
    .about = "products of experts: cuBLASLt's grouped layouts",
    .open = open_cublaslt,
    .lay_out = lay_out_cublaslt,
    .prepare = prepare_cublaslt,
    .multiply = multiply_cublaslt,
    .close = close_library,
};
