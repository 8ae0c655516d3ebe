/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * library.c: grouped products through cuBLASLt.
 *
 * It reads pointers and sizes of all groups from device memory, so a kernel writes them there first, from the counts
 * of rows that the host does not know. Its matrices are stored by columns: C = A B by rows is C^T = B^T A^T to it, and
 * what is its A is our B. It has no map of rows: products that travel are made where they lie together, and copied. */
#include "library.h"

#include "cuda/blas.h"

#include <string.h>

#define OLDEST        130400 /* the first that does it on Hopper */
#define WORKSPACE     ((size_t)32 << 20)
#define COPY_THREADS  256
#define SCALARS_BYTES 256

/* Of headers of 13.4 and later. */
#define PREF_AVERAGE_K       ((cublasLtMatmulPreferenceAttributes_t)13)
#define PREF_AVERAGE_ROWS    ((cublasLtMatmulPreferenceAttributes_t)14)
#define PREF_AVERAGE_COLUMNS ((cublasLtMatmulPreferenceAttributes_t)15)

typedef cublasStatus_t (*grouped_layout_fn)(cublasLtMatrixLayout_t *layout, cudaDataType type, int groups,
                                            const void *rows, const void *columns, const void *ld);

/* A product of the experts: by rows of [.., k] with [k, n], or by cells to [m, n] each. */
typedef struct shape {
    moe_form_t form;
    int32_t m, n, k, parts, outputs;
} shape_t;

typedef struct plan {
    shape_t shape;
    moe_groups_t table; /* in device memory */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
} plan_t;

enum { UP, DOWN, DOWN_BACK, UP_BACK, UP_GRADS, DOWN_GRADS, PLANS };

struct moe_library {
    blas_t blas;
    grouped_layout_fn grouped_layout;
    cublasLtHandle_t handle;
    char *memory; /* scalars, tables, workspace */
    float *zero, *one;
    int32_t *none; /* zeros, for each expert */
    void *workspace;
    plan_t plans[PLANS];
};

static dp_status_t check(const dp_moe_t *moe, cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return DP_OK;
    return DP_FAIL(moe->host, status == CUBLAS_STATUS_NOT_SUPPORTED ? DP_ERR_UNSUPPORTED : DP_ERR_DEVICE,
                   "moe_cuda: cuBLASLt: %s: %s", what, moe->library->blas.cublasLtGetStatusString(status));
}

static int32_t groups_of(const dp_moe_t *moe, const shape_t *s)
{
    return moe->n.local * s->outputs;
}

/* Sums are of the type of sums by cells, and where a second part is added. */
static bool sums_of(const shape_t *s)
{
    return s->form == MOE_TN || s->parts == 2;
}

/* ---- memory ---- */

static void *take(char *memory, size_t *at, size_t bytes)
{
    void *here = memory + *at;

    *at += (bytes + 255) / 256 * 256;
    return here;
}

/* Where everything lies; how much it is. */
static size_t lay_out(const dp_moe_t *moe, struct moe_library *l, char *memory)
{
    size_t at = 0;

    l->zero = take(memory, &at, SCALARS_BYTES);
    l->one = l->zero + 1;
    l->none = take(memory, &at, (size_t)moe->n.local * sizeof(int32_t));
    for (int i = 0; i < PLANS; i++) {
        const size_t n = (size_t)groups_of(moe, &l->plans[i].shape);
        moe_groups_t *t = &l->plans[i].table;

        for (int k = 0; k < 3; k++) {
            t->at[k] = take(memory, &at, n * sizeof(void *));
            t->rows[k] = take(memory, &at, n * sizeof(int32_t));
            t->columns[k] = take(memory, &at, n * sizeof(int32_t));
            t->ld[k] = take(memory, &at, n * sizeof(int32_t));
        }
    }
    l->workspace = take(memory, &at, WORKSPACE);
    return at;
}

static dp_status_t allocate(dp_moe_t *moe)
{
    static const float scalars[2] = {0, 1};
    struct moe_library *l = moe->library;
    void *memory = NULL;
    char nothing = 0;
    const size_t bytes = lay_out(moe, l, &nothing);
    dp_status_t status = moe->device_vt->allocate(moe->device, bytes, &memory);

    if (status < 0)
        return status;
    l->memory = memory;
    (void)lay_out(moe, l, memory);
    status = CUDA_CHECK(moe->host, moe->cu->cuMemsetD8((CUdeviceptr)(uintptr_t)memory, 0, bytes), "clearing memory");
    return status < 0
               ? status
               : CUDA_CHECK(moe->host, moe->cu->cuMemcpyHtoD((CUdeviceptr)(uintptr_t)l->zero, scalars, sizeof(scalars)),
                            "copying two numbers");
}

/* ---- plans ---- */

static dp_status_t describe(dp_moe_t *moe, plan_t *p)
{
    const blas_t *b = &moe->library->blas;
    const cublasOperation_t first = p->shape.form == MOE_NT ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = p->shape.form == MOE_TN ? CUBLAS_OP_T : CUBLAS_OP_N;
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
    dp_status_t status =
        check(moe, b->cublasLtMatmulDescCreate(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");

    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]) && status >= 0; i++)
        status = check(
            moe,
            b->cublasLtMatmulDescSetAttribute(p->product, attributes[i].name, attributes[i].value, attributes[i].bytes),
            "describing a product's operands");
    for (int i = 0; i < 3 && status >= 0; i++)
        status = check(moe,
                       moe->library->grouped_layout(layouts[i], i == 2 && sums_of(&p->shape) ? CUDA_R_32F : CUDA_R_16BF,
                                                    groups_of(moe, &p->shape), p->table.rows[i], p->table.columns[i],
                                                    p->table.ld[i]),
                       "describing the matrices of groups");
    return status;
}

static dp_status_t set_preferences(dp_moe_t *moe, const shape_t *s, cublasLtMatmulPreference_t preference)
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
        status = check(moe,
                       moe->library->blas.cublasLtMatmulPreferenceSetAttribute(
                           preference, attributes[i].name, attributes[i].value, attributes[i].bytes),
                       "stating a preference");
    return status;
}

static dp_status_t search(dp_moe_t *moe, plan_t *p)
{
    const struct moe_library *l = moe->library;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    dp_status_t status = check(moe, l->blas.cublasLtMatmulPreferenceCreate(&preference), "making a preference");

    if (status < 0)
        return status;
    memset(&found, 0, sizeof(found));
    status = set_preferences(moe, &p->shape, preference);
    if (status >= 0)
        status = check(moe,
                       l->blas.cublasLtMatmulAlgoGetHeuristic(l->handle, p->product, p->a, p->b, p->c, p->c, preference,
                                                              1, &found, &count),
                       "searching for a product of groups");
    l->blas.cublasLtMatmulPreferenceDestroy(preference);
    if (status >= 0 && count == 0)
        status =
            DP_FAIL(moe->host, DP_ERR_UNSUPPORTED, "moe_cuda: cuBLASLt knows no product of groups for these sizes");
    p->algorithm = found.algo;
    p->workspace = found.workspaceSize;
    return status;
}

static void list_shapes(const dp_moe_t *moe, plan_t plans[PLANS])
{
    const int32_t d = moe->n.hidden, f = moe->n.ffn;

    plans[UP].shape = (shape_t){.form = MOE_NN, .n = f, .k = d, .parts = 1, .outputs = 2};
    plans[DOWN].shape = (shape_t){.form = MOE_NN, .n = d, .k = f, .parts = 1, .outputs = 1};
    plans[DOWN_BACK].shape = (shape_t){.form = MOE_NT, .n = f, .k = d, .parts = 1, .outputs = 1};
    plans[UP_BACK].shape = (shape_t){.form = MOE_NT, .n = d, .k = f, .parts = 2, .outputs = 1};
    plans[UP_GRADS].shape = (shape_t){.form = MOE_TN, .m = d, .n = f, .parts = 1, .outputs = 2};
    plans[DOWN_GRADS].shape = (shape_t){.form = MOE_TN, .m = f, .n = d, .parts = 1, .outputs = 1};
}

static plan_t *plan_of(const dp_moe_t *moe, moe_form_t form, const moe_product_t *p)
{
    for (int i = 0; i < PLANS && p->rows != NULL; i++) {
        const shape_t *s = &moe->library->plans[i].shape;

        if (s->form == form && s->n == p->n && (form == MOE_TN ? s->m == p->m : s->k == p->k) && s->parts == p->parts &&
            s->outputs == p->outputs)
            return &moe->library->plans[i];
    }
    return NULL;
}

/* ---- products ---- */

/* A and B are as tensor cores want them; here every matrix begins on 16 bytes. */
static bool is_aligned(const shape_t *s, const moe_product_t *p)
{
    const int64_t each = sums_of(s) ? 4 : 8;

    if (p->map != NULL || s->parts == 2)
        return (uintptr_t)p->apart % 16 == 0;
    for (int i = 0; i < s->outputs; i++)
        if ((uintptr_t)p->c[i] % 16 != 0)
            return false;
    return p->ldc % each == 0 && p->group_c % each == 0;
}

bool moe_library_knows(const dp_moe_t *moe, moe_form_t form, const moe_product_t *product)
{
    const plan_t *plan = moe->library != NULL ? plan_of(moe, form, product) : NULL;

    return plan != NULL && is_aligned(&plan->shape, product);
}

/* One part, on top of what C holds or not. */
static dp_status_t multiply(dp_moe_t *moe, const plan_t *p, moe_product_t *product, int32_t part, bool add, CUstream s)
{
    const struct moe_library *l = moe->library;
    moe_groups_t table = p->table;
    int32_t form = (int32_t)p->shape.form, bytes = sums_of(&p->shape) ? 4 : 2;
    dp_status_t status = cuda_launch(moe->host, moe->cu, moe->kernels.group_table, CUDA_DIM(1),
                                     CUDA_DIM(MOE_SCAN_THREADS), 0, s, product, &table, &form, &part, &bytes);

    if (status < 0)
        return status;
    return check(moe,
                 l->blas.cublasLtMatmul(l->handle, p->product, l->one, table.at[0], p->a, table.at[1], p->b,
                                        add ? l->one : l->zero, table.at[2], p->c, table.at[2], p->c, &p->algorithm,
                                        p->workspace > 0 ? l->workspace : NULL, p->workspace, (cudaStream_t)s),
                 "starting a product of groups");
}

static dp_status_t run_plan(dp_moe_t *moe, const plan_t *plan, const moe_product_t *product, CUstream s)
{
    moe_product_t p = *product, copy = *product;
    const bool apart = p.map != NULL || plan->shape.parts == 2;
    dp_status_t status = DP_OK;

    if (apart) {
        p.c[0] = product->apart;
        p.ldc = p.n;
    }
    for (int32_t part = 0; part < p.parts && status >= 0; part++)
        status = multiply(moe, plan, &p, part, plan->shape.form == MOE_TN || part > 0, s);
    if (status < 0 || !apart)
        return status;
    copy.a[0] = product->apart;
    copy.lda = p.n;
    return cuda_launch(moe->host, moe->cu, sums_of(&plan->shape) ? moe->kernels.place_sums : moe->kernels.place_rows,
                       CUDA_DIM(moe->sms * 8), CUDA_DIM(COPY_THREADS), 0, s, &copy);
}

dp_status_t moe_library_multiply(dp_moe_t *moe, moe_form_t form, const moe_product_t *product, CUstream s)
{
    return run_plan(moe, plan_of(moe, form, product), product, s);
}

/* ---- open and close ---- */

static dp_status_t load(dp_moe_t *moe)
{
    struct moe_library *l = moe->library;
    size_t version;
    dp_status_t status = blas_load(moe->host, &l->blas);

    if (status < 0)
        return status;
    version = l->blas.cublasLtGetVersion();
    if (version < OLDEST)
        return DP_FAIL(moe->host, DP_ERR_UNSUPPORTED,
                       "moe_cuda: DUALPIPE_MOE_PRODUCTS=cublaslt needs cuBLASLt 13.4 or later, %zu was found", version);
    status = blas_find(moe->host, "cublasLtGroupedMatrixLayoutCreate", (void **)&l->grouped_layout);
    return status < 0 ? status : check(moe, l->blas.cublasLtCreate(&l->handle), "opening it");
}

/* Each on no rows, by cells to none: kernels are loaded, and nothing is written. */
static dp_status_t rehearse(dp_moe_t *moe)
{
    struct moe_library *l = moe->library;
    dp_stream_t *s = NULL;
    dp_status_t status = moe->device_vt->stream_open(moe->device, DP_LANE_COMPUTE, &s);

    for (int i = 0; i < PLANS && status >= 0; i++) {
        const shape_t *shape = &l->plans[i].shape;
        moe_product_t p = {.rows = l->none, .first = l->none, .a = {l->none, l->none}, .b = {l->none, l->none}};

        p.c[0] = p.c[1] = p.apart = l->workspace;
        p.lda = p.ldb = p.ldc = moe->n.hidden > moe->n.ffn ? moe->n.hidden : moe->n.ffn;
        p.groups = moe->n.local;
        p.cells = 1;
        p.m = shape->form == MOE_TN ? 0 : shape->m;
        p.n = shape->n;
        p.k = shape->k;
        p.parts = shape->parts;
        p.outputs = shape->outputs;
        status = run_plan(moe, &l->plans[i], &p, moe->device_vt->stream_native(s));
    }
    if (s != NULL && status >= 0)
        status = moe->device_vt->synchronize(s, -1);
    if (s != NULL)
        moe->device_vt->stream_close(s);
    return status;
}

dp_status_t moe_library_open(dp_moe_t *moe)
{
    struct moe_library *l = moe->host->allocate(moe->host, sizeof(*l), 64);
    dp_status_t status;

    if (l == NULL)
        return DP_FAIL(moe->host, DP_ERR_NOMEM, "moe_cuda: no memory for plans of products");
    memset(l, 0, sizeof(*l));
    moe->library = l;
    list_shapes(moe, l->plans);
    status = load(moe);
    if (status >= 0)
        status = allocate(moe);
    for (int i = 0; i < PLANS && status >= 0; i++) {
        status = describe(moe, &l->plans[i]);
        if (status >= 0)
            status = search(moe, &l->plans[i]);
    }
    return status < 0 ? status : rehearse(moe);
}

void moe_library_close(dp_moe_t *moe)
{
    struct moe_library *l = moe->library;

    if (l == NULL)
        return;
    for (int i = 0; i < PLANS; i++) {
        const plan_t *p = &l->plans[i];
        const cublasLtMatrixLayout_t layouts[3] = {p->a, p->b, p->c};

        for (int k = 0; k < 3; k++)
            if (layouts[k] != NULL)
                l->blas.cublasLtMatrixLayoutDestroy(layouts[k]);
        if (p->product != NULL)
            l->blas.cublasLtMatmulDescDestroy(p->product);
    }
    if (l->handle != NULL)
        l->blas.cublasLtDestroy(l->handle);
    if (l->memory != NULL)
        moe->device_vt->release(moe->device, l->memory);
    moe->host->release(moe->host, l);
    moe->library = NULL;
}
