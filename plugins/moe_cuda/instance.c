/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * instance.c: what an instance holds on the device: kernels and the record of faults. */
#include "library.h"

#include "plugins/common/do.h"

#include <stdio.h>

#include "cuda/module.h"

CUDA_IMAGE(moe_route);
CUDA_IMAGE(moe_router);
CUDA_IMAGE(moe_rows);
CUDA_IMAGE(moe_gemm);
CUDA_IMAGE(moe_groups);

/* The kernel of an image by its short name and the suffix of its type. */
static dp_status_t find_kernel(const dp_moe_t *moe, CUmodule module, const char *name, const char *suffix,
                               CUfunction *out)
{
    char full[96];

    (void)snprintf(full, sizeof(full), "moe_cuda_%s%s", name, suffix);
    return cuda_kernel(moe->host, module, full, out);
}

static const char *type_of(const dp_moe_t *moe)
{
    return moe->dtype == DP_F32 ? "_f32" : moe->dtype == DP_F64 ? "_f64" : "_bf16";
}

static dp_status_t find_route(dp_moe_t *moe, CUmodule m, CUmodule router)
{
    moe_kernels_t *k = &moe->kernels;
    const char *type = type_of(moe);
    dp_status_t status = DP_OK;

#define TYPED(name)                                                                                                    \
    if (status >= 0)                                                                                                   \
        status = find_kernel(moe, m, #name, type, &k->name);
#define COMMON(name)                                                                                                   \
    if (status >= 0)                                                                                                   \
        status = find_kernel(moe, m, #name, "", &k->name);
    MOE_ROUTE_TYPED(TYPED)
    MOE_ROUTE_COMMON(COMMON)
    m = router;
    MOE_ROUTER(COMMON)
    return status;
}

static dp_status_t find_rows(dp_moe_t *moe, CUmodule m)
{
    moe_kernels_t *k = &moe->kernels;
    const char *type = type_of(moe);
    dp_status_t status = DP_OK;

    MOE_ROWS_TYPED(TYPED)
    MOE_ROWS_COMMON(COMMON)
#undef TYPED
#undef COMMON
    return status;
}

/* One kernel for each form and type of C; gradients of weights are sums always. */
static dp_status_t find_products(const dp_moe_t *moe, CUmodule m, const char *const names[MOE_FORMS],
                                 CUfunction out[MOE_FORMS][2])
{
    const char *type = type_of(moe);
    dp_status_t status = DP_OK;
    int form, sums;

    for (form = MOE_NN; form < MOE_FORMS; form++)
        for (sums = form == MOE_TN; sums < 2 && status >= 0; sums++) {
            const bool other = sums && moe->dtype == DP_BF16 && form != MOE_TN;

            status = find_kernel(moe, m, names[form], other ? "_bf16_f32" : type, &out[form][sums]);
        }
    return status;
}

/* bf16 on tensor cores. */
static dp_status_t find_tensor(dp_moe_t *moe)
{
    static const char *const mma[] = {"tensor_nn", "tensor_nt", "tensor_tn"};
    CUfunction(*const out)[2] = moe->kernels.tensor;
    dp_status_t status = find_products(moe, moe->modules[2], mma, out);
    int form, sums;

    for (form = MOE_NN; form < MOE_FORMS; form++)
        for (sums = form == MOE_TN; sums < 2 && status >= 0; sums++)
            status =
                cuda_kernel_shared(moe->host, out[form][sums], form == MOE_TN ? MOE_CELLS_SHARED : MOE_ROWS_SHARED);
    return status;
}

static dp_status_t find_groups(dp_moe_t *moe)
{
    moe_kernels_t *k = &moe->kernels;

    DO(cuda_module_load(moe->host, cuda_image_moe_groups, &moe->modules[4]));
    DO(find_kernel(moe, moe->modules[4], "group_sizes", "", &k->group_sizes));
    return find_kernel(moe, moe->modules[4], "place_rows", "", &k->place_rows);
}

static dp_status_t load_moe_kernels(dp_moe_t *moe)
{
    static const char *const plain[] = {"plain_nn", "plain_nt", "plain_tn"};
    const unsigned char *const images[] = {cuda_image_moe_route, cuda_image_moe_rows, cuda_image_moe_gemm,
                                           cuda_image_moe_router};
    dp_status_t status = DP_OK;
    int i;

    for (i = 0; i < 4 && status >= 0; i++)
        status = cuda_module_load(moe->host, images[i], &moe->modules[i]);
    if (status >= 0)
        status = find_route(moe, moe->modules[0], moe->modules[3]);
    if (status >= 0)
        status = find_rows(moe, moe->modules[1]);
    if (status >= 0)
        status = find_products(moe, moe->modules[2], plain, moe->kernels.plain);
    if (status >= 0 && moe->dtype == DP_BF16 && moe->products != MOE_PLAIN)
        status = find_tensor(moe);
    return status < 0 || !moe_uses_library(moe) ? status : find_groups(moe);
}

/* Multiprocessors that compute lanes have. */
static dp_status_t count_sms(dp_moe_t *moe)
{
    const dp_host_sm_t *share = moe->host->get_service(moe->host, DP_HOST_SM);
    CUdevice device;
    int all = 0;

    DO(cuda_current(moe->host, &device));
    DO(CUDA_CHECK(moe->host, moe->cu->cuDeviceGetAttribute(&all, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
                  "asking for the number of multiprocessors"));
    moe->sms = share != NULL && share->compute_sms > 0 ? share->compute_sms : (uint32_t)all;
    return DP_OK;
}

static dp_status_t room_fault(const dp_moe_t *moe, const char *call)
{
    const volatile moe_fault_t *fault = moe->fault;
    const moe_dims_t *n = &moe->n;
    const bool sent = fault->kind == MOE_FAULT_SENT;
    char whose[48] = "arrived in all";

    if (fault->rank >= 0)
        (void)snprintf(whose, sizeof(whose), sent ? "are for rank %d" : "arrived from rank %d", fault->rank);
    return DP_FAIL(
        moe->host, DP_ERR_OVERFLOW,
        "moe_cuda: rank %d of the expert group, %s: %d rows %s, there is room for %d: raise the capacity, or "
        "set it to 0 for the worst case",
        n->rank, call, fault->rows, whose, fault->rank >= 0 ? n->pair_rows : n->rows);
}

dp_status_t moe_check(void *arg)
{
    const dp_moe_t *moe = arg;
    const volatile moe_fault_t *fault = moe->fault;
    static const char *const calls[] = {"route", "dispatch", "combine", "combine_backward", "dispatch_backward"};
    const uint32_t kind = __atomic_load_n(&moe->fault->kind, __ATOMIC_ACQUIRE);
    const char *call;

    if (kind == 0)
        return DP_OK; /* the rest may be on its way */
    call = fault->call >= 0 && fault->call <= MOE_DISPATCH_BACKWARD ? calls[fault->call] : "?";
    if (kind == MOE_FAULT_ROOM || kind == MOE_FAULT_SENT)
        return room_fault(moe, call);
    if (kind == MOE_FAULT_PLACEMENT)
        return DP_FAIL(moe->host, DP_ERR_INVALID, "moe_cuda: the placement has no replica of expert %d", fault->rank);
    return DP_FAIL(moe->host, DP_ERR_PROTOCOL,
                   "moe_cuda: rank %d of the expert group, %s: the rows from rank %d are not of this call: "
                   "the ranks made their calls in different orders or on different streams",
                   moe->n.rank, call, fault->rank);
}

static dp_status_t open_faults(dp_moe_t *moe)
{
    void *memory = NULL;
    dp_status_t status;

    DO(moe->device_vt->host_allocate(moe->device, sizeof(moe_fault_t), &memory));
    moe->fault = memory;
    status = moe->device_vt->watch(moe->device, moe_check, moe);
    moe->watched = status >= 0;
    return status;
}

const char *moe_about(const dp_moe_t *moe)
{
    if (moe->library != NULL)
        return "products of experts: CUTLASS";
    if (moe->dtype != DP_BF16 || moe->products == MOE_PLAIN)
        return "products of experts: plain tiles";
    return "products of experts: mma.sync";
}

dp_status_t moe_instance_open(dp_moe_t *moe)
{
    dp_status_t status = count_sms(moe);

    if (status >= 0)
        status = load_moe_kernels(moe);
    if (status >= 0)
        status = open_faults(moe);
    if (status >= 0 && moe_uses_library(moe))
        status = moe_library_open(moe);
    if (status >= 0)
        moe->host->log(moe->host, DP_LOG_INFO, "moe_cuda", moe_about(moe));
    return status;
}

void moe_instance_close(dp_moe_t *moe)
{
    int i;

    moe_library_close(moe);
    if (moe->watched)
        moe->device_vt->unwatch(moe->device, moe_check, moe);
    if (moe->fault != NULL)
        moe->device_vt->host_release(moe->device, moe->fault);
    for (i = 0; i < 5; i++)
        cuda_module_unload(moe->modules[i]);
}
