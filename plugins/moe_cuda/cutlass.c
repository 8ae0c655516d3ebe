/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cutlass.c: grouped products by CUTLASS's kernels for sm_90a. They lie in moe_cuda_cutlass.so,
 * which is beside this plugin where CUTLASS was found when it was built. */
#include "library.h"

#include "plugins/common/do.h"

#include "cuda/import.h"
#include "cuda/module.h"
#include "cutlass/products.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { ROWS_OF_CLUSTERS = 2048 }; /* an expert's, as they come on average */

typedef struct plan {
    int kind;
    moe_cutlass_groups_t groups;
    moe_cutlass_launch_t launch;
    CUfunction function;
    void *params[2]; /* [1]: of a product that is added to C */
} plan_t;

typedef struct moe_cutlass {
    const moe_cutlass_products_t *products;
    CUmodule module;
    plan_t plans[MOE_SHAPES];
} cutlass_t;

/* Clusters load less, and lose where the rows of a group do not fill their tiles: on an H200 they
 * gave 8 % with 4,096 rows an expert, and took as much with 512. */
static bool has_clusters(const dp_moe_t *moe)
{
    const moe_dims_t *n = &moe->n;

    return (int64_t)n->tokens * n->top_k * n->ranks / n->replicas >= ROWS_OF_CLUSTERS && moe->sms % 2 == 0;
}

static int kind_of(const dp_moe_t *moe, const moe_shape_t *s)
{
    const bool two = has_clusters(moe);

    if (s->form == MOE_NN)
        return two ? MOE_CUTLASS_NN_TWO : MOE_CUTLASS_NN;
    if (s->form == MOE_TN)
        return MOE_CUTLASS_TN;
    if (s->parts == 2)
        return two ? MOE_CUTLASS_NT_PAIR_TWO : MOE_CUTLASS_NT_PAIR;
    return two ? MOE_CUTLASS_NT_TWO : MOE_CUTLASS_NT;
}

/* ---- open ---- */

static dp_status_t import_cutlass(const dp_moe_t *moe, const moe_cutlass_products_t **products_out)
{
    static const char file[] = "moe_cuda_cutlass.so";
    char path[4096];
    const cuda_source_t source = {
        "moe_cuda_cutlass.so, which is built where configure finds CUTLASS,", "lib.cutlass", {path}};
    const cuda_symbol_t symbol = {MOE_CUTLASS_SYMBOL, (void **)products_out};
    const char *slash = NULL;
    Dl_info here;

    if (dladdr((void *)&moe_cutlass_find, &here) != 0 && here.dli_fname != NULL)
        slash = strrchr(here.dli_fname, '/');
    (void)snprintf(path, sizeof(path), "%.*s%s", slash != NULL ? (int)(slash + 1 - here.dli_fname) : 0,
                   slash != NULL ? here.dli_fname : "", file);
    DO(cuda_import(moe->host, &source, &symbol, 1));
    if ((*products_out)->abi != MOE_CUTLASS_ABI)
        DO(DP_FAIL(moe->host, DP_ERR_UNSUPPORTED,
                   "moe_cuda: %s is of another build than this plugin (%" PRIu32 ", not %d): install both together",
                   file, (*products_out)->abi, MOE_CUTLASS_ABI));
    return DP_OK;
}

static dp_status_t find_kernels(const dp_moe_t *moe, cutlass_t *own)
{
    dp_status_t status = cuda_module_load(moe->host, own->products->image, &own->module);

    for (int i = 0; i < MOE_SHAPES && status >= 0; i++) {
        plan_t *p = &own->plans[i];

        p->kind = kind_of(moe, &moe->library->shapes[i]);
        p->groups.groups = moe_groups_of(moe, &moe->library->shapes[i]);
        p->groups.blocks = moe->sms;
        own->products->describe(p->kind, moe->sms, &p->launch);
        status = cuda_kernel(moe->host, own->module, p->launch.kernel, &p->function);
        if (status >= 0)
            status = cuda_kernel_shared(moe->host, p->function, p->launch.shared_bytes);
    }
    return status;
}

dp_status_t moe_cutlass_find(const dp_moe_t *moe)
{
    const moe_cutlass_products_t *products;
    CUdevice device;
    int major = 0, minor = 0;

    DO(cuda_current(moe->host, &device));
    DO(CUDA_CHECK(moe->host,
                  moe->cu->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device),
                  "asking for the compute capability"));
    DO(CUDA_CHECK(moe->host,
                  moe->cu->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device),
                  "asking for the compute capability"));
    if (major != 9 || minor != 0)
        return DP_FAIL(moe->host, DP_ERR_UNSUPPORTED,
                       "moe_cuda: CUTLASS's products need compute capability 9.0, this device has %d.%d", major, minor);
    if (moe->cu->cuTensorMapEncodeTiled == NULL)
        return DP_FAIL(moe->host, DP_ERR_UNSUPPORTED,
                       "moe_cuda: CUTLASS's products need a driver that has cuTensorMapEncodeTiled (12.0)");
    return import_cutlass(moe, &products);
}

dp_status_t moe_cutlass_open(dp_moe_t *moe)
{
    cutlass_t *own = moe->host->allocate(moe->host, sizeof(*own), 64);

    if (own == NULL)
        return DP_FAIL(moe->host, DP_ERR_NOMEM, "moe_cuda: no memory for plans of products");
    memset(own, 0, sizeof(*own));
    moe->library->cutlass = own;
    DO(import_cutlass(moe, &own->products));
    return find_kernels(moe, own);
}

size_t moe_cutlass_lay_out(dp_moe_t *moe, char *memory)
{
    cutlass_t *own = moe->library->cutlass;
    size_t at = 0, most = 0;

    for (int i = 0; i < MOE_SHAPES; i++) {
        moe_cutlass_groups_t *g = &own->plans[i].groups;
        const size_t n = (size_t)g->groups;

        g->sizes = moe_take(memory, &at, n * 3 * sizeof(int32_t));
        g->second = moe_take(memory, &at, sizeof(*g->second));
        for (int k = 0; k < 3; k++) {
            g->at[k] = moe_take(memory, &at, n * sizeof(void *));
            g->ld[k] = moe_take(memory, &at, n * sizeof(int64_t));
        }
        most = own->plans[i].launch.workspace_bytes > most ? own->plans[i].launch.workspace_bytes : most;
    }
    for (int i = 0; i < MOE_SHAPES; i++)
        own->plans[i].groups.workspace = memory + at;
    return at + most;
}

dp_status_t moe_cutlass_prepare(dp_moe_t *moe)
{
    cutlass_t *own = moe->library->cutlass;
    dp_status_t status = DP_OK;

    for (int i = 0; i < 2 * MOE_SHAPES && status >= 0; i++) {
        plan_t *p = &own->plans[i / 2];
        void *params = moe->host->allocate(moe->host, p->launch.params_bytes, 64);

        if (params == NULL)
            return DP_FAIL(moe->host, DP_ERR_NOMEM, "moe_cuda: no memory for the parameters of products");
        p->params[i % 2] = params;
        status = CUDA_CHECK(
            moe->host,
            own->products->fill(p->kind, &p->groups, (float)(i % 2), moe->cu->cuTensorMapEncodeTiled, params),
            "describing products to CUTLASS %s", own->products->version);
    }
    return status;
}

void moe_cutlass_close(dp_moe_t *moe)
{
    cutlass_t *own = moe->library->cutlass;

    if (own == NULL)
        return;
    for (int i = 0; i < 2 * MOE_SHAPES; i++)
        if (own->plans[i / 2].params[i % 2] != NULL)
            moe->host->release(moe->host, own->plans[i / 2].params[i % 2]);
    cuda_module_unload(own->module);
    moe->host->release(moe->host, own);
}

/* ---- products ---- */

dp_status_t moe_cutlass_multiply(dp_moe_t *moe, int which, moe_product_t *product, CUstream s)
{
    const moe_shape_t *shape = &moe->library->shapes[which];
    plan_t *p = &moe->library->cutlass->plans[which];
    const bool add = shape->form == MOE_TN;
    int32_t form = (int32_t)shape->form, bytes = add ? 4 : 2;
    dp_status_t status = cuda_launch(moe->host, moe->cu, moe->kernels.group_sizes, CUDA_DIM(1),
                                     CUDA_DIM(MOE_SCAN_THREADS), 0, s, product, &p->groups, &form, &bytes);

    return status < 0 ? status
                      : cuda_launch_args(moe->host, moe->cu, p->function, CUDA_DIM(p->groups.blocks),
                                         CUDA_DIM(p->launch.threads), p->launch.shared_bytes, s, p->launch.kernel,
                                         &p->params[add]);
}
