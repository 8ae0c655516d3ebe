/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_real.cuh: what kernels share: types, 16-byte steps in rows, a block's walk over rows. */
#ifndef MOE_CUDA_REAL_CUH
#define MOE_CUDA_REAL_CUH

#include "cuda/device.cuh"

#include "kernels.h"

/* What scores are computed in. */
template <typename T> struct moe_wide {
    typedef double type;
};
template <> struct moe_wide<cuda_bf16> {
    typedef float type;
};
template <typename T> using moe_wide_t = typename moe_wide<T>::type;

template <typename T, int W> using moe_vector = cuda_vector<T, W>;

/* Calls body<T, W>: W elements make 16 bytes where all rows are multiples of them, else one. */
#define MOE_BY_WIDTH(vectors, T, body, ...) ((vectors) ? body<T, cuda_width<T>>(__VA_ARGS__) : body<T, 1>(__VA_ARGS__))

/* Threads of blocks that hold rows, and how many such blocks a multiprocessor has registers for. */
#define MOE_ROW_BOUNDS   256, 4
#define MOE_STRIP_BOUNDS 256, 2
#define MOE_TOKEN_BOUNDS MOE_TOKEN_THREADS, 6

/* Vectors `at` and every blockDim-th behind it, as far as there are. */
template <typename V> CUDA_DEVICE void moe_hold(V (&held)[MOE_HELD], const V *row, int at, int count)
{
#pragma unroll
    for (int l = 0; l < MOE_HELD; l++)
        if (at + l * (int)blockDim.x < count)
            held[l] = row[at + l * (int)blockDim.x];
}

/* Sum of what the threads before this one have, by all of a block; room: 32. */
CUDA_DEVICE int moe_scan(int own, int *room, int *all_out)
{
    const int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    const int warps = (int)blockDim.x / CUDA_WARP;
    int sum = own, before = 0, all = 0;

    for (int step = 1; step < CUDA_WARP; step *= 2) {
        const int other = __shfl_up_sync(CUDA_FULL_MASK, sum, step);

        sum += lane >= step ? other : 0;
    }
    __syncthreads(); /* an earlier call's readers are done */
    if (lane == CUDA_WARP - 1)
        room[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warps; w++) {
        before += w < warp ? room[w] : 0;
        all += room[w];
    }
    *all_out = all;
    return before + sum - own;
}

/* The kernel of one product. */
#define MOE_PRODUCT(name, bounds, ...)                                                                                 \
    extern "C" __global__ void __launch_bounds__ bounds moe_cuda_##name(const moe_product_t p)                         \
    {                                                                                                                  \
        __VA_ARGS__(p);                                                                                                \
    }

/* Instances of a kernel that takes one argument by value. */
#define MOE_KERNEL(name, body, type, bounds)                                                                           \
    extern "C" __global__ void __launch_bounds__(bounds) moe_cuda_##name##_f32(const type a)                           \
    {                                                                                                                  \
        body<float>(a);                                                                                                \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(bounds) moe_cuda_##name##_f64(const type a)                           \
    {                                                                                                                  \
        body<double>(a);                                                                                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(bounds) moe_cuda_##name##_bf16(const type a)                          \
    {                                                                                                                  \
        body<cuda_bf16>(a);                                                                                            \
    }

/* Heads that arrived from all ranks. */
CUDA_DEVICE int moe_arrived(const moe_call_t &a)
{
    return a.in_first[a.n.ranks - 1] + a.in_heads[a.n.ranks - 1];
}

/* The first thread to see a fault leaves it for the host. */
CUDA_DEVICE void moe_fault(const moe_call_t &a, int kind, int rank, int rows)
{
    if (atomicCAS(&a.fault->claimed, 0, 1) == 0) {
        a.fault->call = a.label;
        a.fault->rank = rank;
        a.fault->rows = rows;
        cuda_store_release(&a.fault->kind, (uint32_t)kind);
    }
}

#endif
