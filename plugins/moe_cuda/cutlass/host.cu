/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * host.cu: the table of moe_cuda_cutlass.so: how CUTLASS wants its kernels launched. No runtime of
 * CUDA is linked: the plugin loads the image and starts kernels by the driver, as its own. */
#include "products.h"

#include <string.h>

/* CUTLASS describes matrices by this function of the driver, which nothing is linked with. */
static thread_local moe_cutlass_encode_fn encode_now;
static thread_local CUresult encode_result;

static CUresult encode_map(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                           const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                           const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    const CUresult result = encode_now(map, type, rank, address, sizes, strides, box, element_strides, interleave,
                                       swizzle, promotion, fill);

    encode_result = encode_result != CUDA_SUCCESS ? encode_result : result;
    return CUDA_SUCCESS; /* it would write to stderr otherwise */
}

#define CUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL 1
#define cuTensorMapEncodeTiled                 encode_map
#include "kinds.cuh"

extern "C" const unsigned char cuda_image_moe_cutlass[];

#ifndef __CUDA_ARCH__
/* What objects of nvcc and CUTLASS's headers name of the runtime. This one has no kernel that the
 * runtime would have to know, and is told the number of multiprocessors. */
extern "C" {
void **__cudaRegisterFatBinary(void *)
{
    static void *nothing;

    return &nothing;
}
void __cudaRegisterFatBinaryEnd(void **)
{
}
void __cudaUnregisterFatBinary(void **)
{
}
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int)
{
}
cudaError_t CUDARTAPI cudaGetDevice(int *)
{
    return cudaErrorNotSupported;
}
cudaError_t CUDARTAPI cudaDeviceGetAttribute(int *, cudaDeviceAttr, int)
{
    return cudaErrorNotSupported;
}
const char *CUDARTAPI cudaGetErrorString(cudaError_t)
{
    return "there is no runtime";
}
}
#endif

template <typename Kind> static typename Kind::Arguments make_arguments(const moe_cutlass_groups_t &g, float beta)
{
    typename Kind::Arguments a{};

    static_assert(sizeof(typename Kind::InternalStrideA) == sizeof(int64_t), "a stride is the distance of rows");
    static_assert(sizeof(typename Kind::ProblemShape::UnderlyingProblemShape) == 3 * sizeof(int32_t), "m, n and k");
    a.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
    a.problem_shape.num_groups = g.groups;
    a.problem_shape.problem_shapes = (typename Kind::ProblemShape::UnderlyingProblemShape *)g.sizes;
    a.mainloop.ptr_A = (decltype(a.mainloop.ptr_A))g.at[0];
    a.mainloop.ptr_B = (decltype(a.mainloop.ptr_B))g.at[1];
    a.mainloop.dA = (decltype(a.mainloop.dA))g.ld[0];
    a.mainloop.dB = (decltype(a.mainloop.dB))g.ld[1];
    a.epilogue.ptr_C = (decltype(a.epilogue.ptr_C))g.at[2];
    a.epilogue.ptr_D = (decltype(a.epilogue.ptr_D))g.at[2];
    a.epilogue.dC = (decltype(a.epilogue.dC))g.ld[2];
    a.epilogue.dD = (decltype(a.epilogue.dD))g.ld[2];
    a.epilogue.thread.alpha = 1;
    a.epilogue.thread.beta = beta;
    if constexpr (cute::is_same_v<Kind, kind_nt_pair> || cute::is_same_v<Kind, kind_nt_pair_two>)
        a.mainloop.second = g.second;
    a.hw_info.sm_count = (int)g.blocks;
    /* a grid along x alone */
    a.scheduler.raster_order = decltype(a.scheduler.raster_order)::AlongM;
    return a;
}

template <typename Kind> static void describe_kind(uint32_t blocks, const char *kernel, moe_cutlass_launch_t *out)
{
    moe_cutlass_groups_t g{};

    g.groups = 1;
    g.blocks = blocks;
    out->kernel = kernel;
    out->params_bytes = sizeof(typename Kind::Params);
    out->workspace_bytes = Kind::get_workspace_size(make_arguments<Kind>(g, 0));
    out->threads = Kind::MaxThreadsPerBlock;
    out->shared_bytes = Kind::SharedStorageSize;
}

template <typename Kind>
static CUresult fill_arguments(const moe_cutlass_groups_t &g, float beta, moe_cutlass_encode_fn encode_by, void *out)
{
    const typename Kind::Arguments a = make_arguments<Kind>(g, beta);
    const typename Kind::ProblemShape::UnderlyingProblemShape sizes(1, 2, 3);
    const int32_t in_order[3] = {1, 2, 3};

    if (memcmp(&sizes, in_order, sizeof(in_order)) != 0 || !Kind::can_implement(a))
        return CUDA_ERROR_NOT_SUPPORTED;
    encode_now = encode_by;
    encode_result = CUDA_SUCCESS;

    const typename Kind::Params params = Kind::to_underlying_arguments(a, g.workspace);
    const dim3 grid = Kind::get_grid_shape(params);

    memcpy(out, &params, sizeof(params));
    return grid.x == g.blocks && grid.y == 1 && grid.z == 1 ? encode_result : CUDA_ERROR_NOT_SUPPORTED;
}

typedef struct kind {
    const char *kernel;
    void (*describe)(uint32_t blocks, const char *kernel, moe_cutlass_launch_t *out);
    CUresult (*fill)(const moe_cutlass_groups_t &g, float beta, moe_cutlass_encode_fn encode_by, void *out);
} kind_t;

#define KIND(type)                                                                                                     \
    {                                                                                                                  \
        "moe_cutlass_" #type, describe_kind<type>, fill_arguments<type>                                                \
    }

/* In the order of their numbers. */
static const kind_t kinds[MOE_CUTLASS_KINDS] = {KIND(kind_nn),         KIND(kind_nt),     KIND(kind_nt_pair),
                                                KIND(kind_tn),         KIND(kind_nn_two), KIND(kind_nt_two),
                                                KIND(kind_nt_pair_two)};

static void describe(int kind, uint32_t blocks, moe_cutlass_launch_t *out)
{
    kinds[kind].describe(blocks, kinds[kind].kernel, out);
}

static CUresult fill(int kind, const moe_cutlass_groups_t *g, float beta, moe_cutlass_encode_fn by, void *out)
{
    return kinds[kind].fill(*g, beta, by, out);
}

#define TEXT(x)  TEXT_(x)
#define TEXT_(x) #x

extern "C" __attribute__((visibility("default"))) const moe_cutlass_products_t moe_cutlass_products = {
    MOE_CUTLASS_ABI,
    TEXT(CUTLASS_MAJOR) "." TEXT(CUTLASS_MINOR) "." TEXT(CUTLASS_PATCH),
    cuda_image_moe_cutlass,
    describe,
    fill,
};
