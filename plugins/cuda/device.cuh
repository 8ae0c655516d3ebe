/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * device.cuh: what kernels are written with, beside plain CUDA C. The one file with assembly in it:
 * the same kernels also run on the host, where tests/fake_cuda/emulate.h gives the functions below
 * (and threadIdx, __shfl_xor_sync, atomicAdd, ...).
 *
 * A kernel is an `extern "C" __global__ void dp_<plugin>_<what>_<dtype>(...)`, and it includes
 * nothing but this file and other headers of kernels. Dynamic shared memory comes from
 * CUDA_SHARED_DYNAMIC, waits for other blocks or peers are loops around cuda_load_acquire() with
 * cuda_pause(). */
#ifndef PLUGINS_CUDA_DEVICE_CUH
#define PLUGINS_CUDA_DEVICE_CUH

#include <stddef.h>
#include <stdint.h>

#define CUDA_WARP      32
#define CUDA_FULL_MASK 0xffffffffu

/** bfloat16 as it lies in memory; cuda_float() and cuda_from_float<>() convert. */
struct cuda_bf16 {
    uint16_t bits;
};

#ifndef CUDA_EMULATED

#include <cuda_bf16.h>

#define CUDA_DEVICE __device__ __forceinline__

/** type *name: this block's dynamic shared memory, 128-byte aligned. */
#define CUDA_SHARED_DYNAMIC(type, name)                                                                                \
    extern __shared__ __align__(128) unsigned char cuda_dynamic_shared[];                                              \
    type *name = reinterpret_cast<type *>(cuda_dynamic_shared)

CUDA_DEVICE float cuda_bf16_to_float(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}

CUDA_DEVICE uint16_t cuda_float_to_bf16(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

/** Number of the SM that runs this thread. */
CUDA_DEVICE uint32_t cuda_smid()
{
    uint32_t id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    return id;
}

/** Nanoseconds of the device's clock, the same for all SMs. */
CUDA_DEVICE uint64_t cuda_globaltimer()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/** Loads and stores that order other memory for the whole system: other GPUs and the host. */
CUDA_DEVICE uint32_t cuda_load_acquire(const uint32_t *at)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

CUDA_DEVICE uint64_t cuda_load_acquire(const uint64_t *at)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

CUDA_DEVICE void cuda_store_release(uint32_t *at, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

CUDA_DEVICE void cuda_store_release(uint64_t *at, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/** Stores what orders no other memory, and so waits for none. */
CUDA_DEVICE void cuda_store_relaxed(uint32_t *at, uint32_t value)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value));
}

CUDA_DEVICE void cuda_store_relaxed(uint64_t *at, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value));
}

/** Adds with release order for the whole system; returns the value before. */
CUDA_DEVICE uint32_t cuda_add_release(uint32_t *at, uint32_t value)
{
    uint32_t before;
    asm volatile("atom.add.release.sys.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(value) : "memory");
    return before;
}

/** In the body of every loop that waits for memory to change. */
CUDA_DEVICE void cuda_pause()
{
    __nanosleep(64);
}

/** Ends the kernel with an error that the driver reports. */
CUDA_DEVICE void cuda_trap()
{
    __trap();
}

/** 16-byte vectors read past and written past the caches that others need (streaming). */
CUDA_DEVICE uint4 cuda_load_stream(const uint4 *at)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
}

CUDA_DEVICE void cuda_store_stream(uint4 *at, uint4 v)
{
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

/** to[0] += x, to[1] += y without waiting for what they were: the memory adds. `to` is aligned to 8
 *  bytes; what nobody else adds to meanwhile has the bits of additions here, but for numbers below
 *  the normal ones, which become zero. */
CUDA_DEVICE void cuda_add_pair(float *to, float x, float y)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
#else
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to + 1), "f"(y) : "memory");
#endif
}

/** Starts copying 16 aligned bytes from global to shared memory; `bytes` (0 to 16) of them are
 *  read, the others become zero. */
CUDA_DEVICE void cuda_copy_async(void *shared, const void *global, unsigned bytes = 16)
{
    unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}

/** Closes a group of this thread's copies. */
CUDA_DEVICE void cuda_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/** Until at most `groups` of this thread's latest are under way. Others see data by a barrier. */
template <int groups> CUDA_DEVICE void cuda_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

/** Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. */
CUDA_DEVICE void cuda_load_matrix_x4(uint32_t r[4], const void *row)
{
    unsigned from = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/** The same, each matrix transposed. */
CUDA_DEVICE void cuda_load_matrix_x4_trans(uint32_t r[4], const void *row)
{
    unsigned from = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/** c += a * b for one warp: m16n8k16, bf16 with f32 sums, fragments as PTX lays them out
 *  (mma.sync.aligned.m16n8k16.row.col). */
CUDA_DEVICE void cuda_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif

/** An element in the type of sums: float for f32 and bf16, double for f64. */
CUDA_DEVICE float cuda_float(float x)
{
    return x;
}

CUDA_DEVICE double cuda_float(double x)
{
    return x;
}

CUDA_DEVICE float cuda_float(cuda_bf16 x)
{
    return cuda_bf16_to_float(x.bits);
}

/** cuda_sum_t<T>: the type that elements of T are summed in. */
template <typename T> struct cuda_sum {
    typedef float type;
};
template <> struct cuda_sum<double> {
    typedef double type;
};
template <typename T> using cuda_sum_t = typename cuda_sum<T>::type;

template <typename T> struct cuda_rounding {
    CUDA_DEVICE static T from(cuda_sum_t<T> x)
    {
        return (T)x;
    }
};
template <> struct cuda_rounding<cuda_bf16> {
    CUDA_DEVICE static cuda_bf16 from(float x)
    {
        cuda_bf16 rounded;
        rounded.bits = cuda_float_to_bf16(x);
        return rounded;
    }
};

/** The element nearest to x, ties to even: cuda_from_float<cuda_bf16>(0.1f). */
template <typename T> CUDA_DEVICE T cuda_from_float(cuda_sum_t<T> x)
{
    return cuda_rounding<T>::from(x);
}

/** Elements of T in 16 bytes. */
template <typename T> constexpr int cuda_width = 16 / sizeof(T);

/** W elements that are read and written as one, aligned to 16 bytes at most. */
template <typename T, int W = cuda_width<T>> struct alignas(W * sizeof(T) < 16 ? W * sizeof(T) : 16) cuda_vector {
    T at[W];
};

/** Whether all of these pointers and numbers of bytes are multiples of 16. */
template <typename... P> CUDA_DEVICE bool cuda_aligned(P... p)
{
    return ((size_t)p | ...) % 16 == 0;
}

/** Elements i to i + W - 1 of `count`, and zeros behind them: one by one, or with V 16 bytes at a
 *  time, where `row + i` is aligned and `count` a multiple of W. Reads stay in the order in which
 *  they are written down, so that those in front of the first use are under way together. */
template <bool V, int W, typename T> CUDA_DEVICE cuda_vector<T, W> cuda_read(const T *row, uint32_t i, uint32_t count)
{
    uint4 words[W / cuda_width<T>] = {};
    cuda_vector<T, W> v = {};

    if (V) {
        for (int k = 0; k < W / cuda_width<T> && i < count; k++)
            words[k] = cuda_load_stream((const uint4 *)(row + i) + k);
        memcpy(&v, words, sizeof(v));
    }
    for (int e = 0; !V && e < W; e++)
        if (i + e < count)
            v.at[e] = row[i + e];
    return v;
}

template <bool V, int W, typename T>
CUDA_DEVICE void cuda_write(T *row, uint32_t i, uint32_t count, const cuda_vector<T, W> &v)
{
    uint4 words[W / cuda_width<T>];

    if (V && i < count) {
        memcpy(words, &v, sizeof(v));
        for (int k = 0; k < W / cuda_width<T>; k++)
            ((uint4 *)(row + i))[k] = words[k];
    }
    for (int e = 0; !V && e < W; e++)
        if (i + e < count)
            row[i + e] = v.at[e];
}

/** Sum (largest value) over the lanes of a warp, or over each 2, 4, 8 or 16 of them; all of the
 *  warp call, and those get the same bits. */
template <int lanes = CUDA_WARP, typename T> CUDA_DEVICE T cuda_warp_sum(T x)
{
    for (int step = lanes / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(CUDA_FULL_MASK, x, step);
    return x;
}

template <typename T> CUDA_DEVICE T cuda_warp_max(T x)
{
    for (int step = CUDA_WARP / 2; step > 0; step /= 2) {
        T other = __shfl_xor_sync(CUDA_FULL_MASK, x, step);
        x = x < other ? other : x;
    }
    return x;
}

/** Sum over a block of up to 1024 threads, a multiple of 32, one-dimensional; every thread calls
 *  and gets it. `room`: 32 elements of shared memory that nobody else uses meanwhile. Always the
 *  same order of additions. */
template <typename T> CUDA_DEVICE T cuda_block_sum(T x, T *room)
{
    int warps = (int)blockDim.x / CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP, lane = (int)threadIdx.x % CUDA_WARP;

    x = cuda_warp_sum(x);
    __syncthreads(); /* an earlier call's readers are done */
    if (lane == 0)
        room[warp] = x;
    __syncthreads();
    x = room[0];
    for (int w = 1; w < warps; w++)
        x += room[w];
    return x;
}

template <typename T> CUDA_DEVICE T cuda_block_max(T x, T *room)
{
    int warps = (int)blockDim.x / CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP, lane = (int)threadIdx.x % CUDA_WARP;

    x = cuda_warp_max(x);
    __syncthreads();
    if (lane == 0)
        room[warp] = x;
    __syncthreads();
    x = room[0];
    for (int w = 1; w < warps; w++)
        x = x < room[w] ? room[w] : x;
    return x;
}

#endif
