/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * emulate.h: the part of CUDA C that our kernels use, for a C++ compiler of the host. Included in
 * front of a .cu file. */
#ifndef DP_FAKE_EMULATE_H
#define DP_FAKE_EMULATE_H

#include "emulator.h"

#include <assert.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <type_traits>
#include <utility>

#define __global__ __dp_kernel__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __constant__     static const
/* a block belongs to one thread of the host as long as it runs */
#define __shared__  static __thread
#define CUDA_DEVICE inline

#define threadIdx (emu_self->index)
#define blockIdx  (emu_self->block_index)
#define blockDim  (emu_self->block_dim)
#define gridDim   (emu_self->grid_dim)
#define warpSize  32

#define CUDA_SHARED_DYNAMIC(type, name) type *name = reinterpret_cast<type *>(emu_dynamic_shared())

/* ---- vector types ---- */

#define EMU_VECTOR(type, name, align1, align2, align4)                                                                 \
    struct __attribute__((aligned(align1))) name##1                                                                    \
    {                                                                                                                  \
        type x;                                                                                                        \
    };                                                                                                                 \
    struct __attribute__((aligned(align2))) name##2                                                                    \
    {                                                                                                                  \
        type x, y;                                                                                                     \
    };                                                                                                                 \
    struct name##3                                                                                                     \
    {                                                                                                                  \
        type x, y, z;                                                                                                  \
    };                                                                                                                 \
    struct __attribute__((aligned(align4))) name##4                                                                    \
    {                                                                                                                  \
        type x, y, z, w;                                                                                               \
    };                                                                                                                 \
    static inline name##2 make_##name##2(type x, type y)                                                               \
    {                                                                                                                  \
        return {x, y};                                                                                                 \
    }                                                                                                                  \
    static inline name##4 make_##name##4(type x, type y, type z, type w)                                               \
    {                                                                                                                  \
        return {x, y, z, w};                                                                                           \
    }
EMU_VECTOR(float, float, 4, 8, 16)
EMU_VECTOR(int, int, 4, 8, 16)
EMU_VECTOR(unsigned, uint, 4, 8, 16)
EMU_VECTOR(double, double, 8, 16, 16)
EMU_VECTOR(unsigned short, ushort, 2, 4, 8)
EMU_VECTOR(long long, longlong, 8, 16, 16)
EMU_VECTOR(unsigned long long, ulonglong, 8, 16, 16)

struct dim3 {
    unsigned x, y, z;
};

/* ---- barriers and warps ---- */

static inline void __syncthreads()
{
    emu_barrier(0, 0);
}

static inline void cuda_barrier(int id, int threads)
{
    emu_barrier(id, (unsigned)threads);
}

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    unsigned char nothing = 0;

    emu_exchange(mask, &nothing, 1);
}

template <typename T> static inline T emu_from(const unsigned char *slots, unsigned lane)
{
    T value;

    memcpy(&value, slots + lane * EMU_SLOT, sizeof(T));
    return value;
}

/* a lane outside [first, last] of its group keeps its own value */
template <typename T> static inline T emu_shuffle(unsigned mask, T value, int source, int first, int last)
{
    const unsigned char *slots = emu_exchange(mask, &value, sizeof(T));

    if (source < first || source > last || !(mask >> source & 1))
        return value;
    return emu_from<T>(slots, (unsigned)source);
}

template <typename T> static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32)
{
    int first = (int)emu_self->lane / width * width;

    return emu_shuffle(mask, value, first + (source & (width - 1)), first, first + width - 1);
}

template <typename T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    int lane = (int)emu_self->lane, first = lane / width * width;

    return emu_shuffle(mask, value, lane - (int)delta, first, first + width - 1);
}

template <typename T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    int lane = (int)emu_self->lane, first = lane / width * width;

    return emu_shuffle(mask, value, lane + (int)delta, first, first + width - 1);
}

template <typename T> static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32)
{
    int lane = (int)emu_self->lane, first = lane / width * width;

    return emu_shuffle(mask, value, lane ^ bits, first, first + width - 1);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    const unsigned char *slots;
    unsigned char mine = predicate != 0;
    unsigned set = 0;

    slots = emu_exchange(mask, &mine, 1);
    for (unsigned lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && slots[lane * EMU_SLOT] != 0)
            set |= 1u << lane;
    return set;
}

static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}

static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) == mask;
}

template <typename T> static inline unsigned __match_any_sync(unsigned mask, T value)
{
    const unsigned char *slots = emu_exchange(mask, &value, sizeof(T));
    unsigned set = 0;

    for (unsigned lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && emu_from<T>(slots, lane) == value)
            set |= 1u << lane;
    return set;
}

#define EMU_REDUCE(name, type, result)                                                                                 \
    static inline type name(unsigned mask, type value)                                                                 \
    {                                                                                                                  \
        const unsigned char *slots = emu_exchange(mask, &value, sizeof(type));                                         \
        type sum = emu_from<type>(slots, (unsigned)__builtin_ctz(mask)), next;                                         \
                                                                                                                       \
        for (unsigned lane = (unsigned)__builtin_ctz(mask) + 1; lane < 32; lane++)                                     \
            if (mask >> lane & 1) {                                                                                    \
                next = emu_from<type>(slots, lane);                                                                    \
                sum = result;                                                                                          \
            }                                                                                                          \
        return sum;                                                                                                    \
    }
EMU_REDUCE(__reduce_add_sync, unsigned, sum + next)
EMU_REDUCE(__reduce_add_sync, int, sum + next)
EMU_REDUCE(__reduce_max_sync, unsigned, sum > next ? sum : next)
EMU_REDUCE(__reduce_max_sync, int, sum > next ? sum : next)
EMU_REDUCE(__reduce_min_sync, unsigned, sum < next ? sum : next)
EMU_REDUCE(__reduce_min_sync, int, sum < next ? sum : next)
EMU_REDUCE(__reduce_or_sync, unsigned, sum | next)
EMU_REDUCE(__reduce_and_sync, unsigned, sum &next)

/* ---- atomics: relaxed, as on the device ---- */

template <typename T, typename F> static inline T emu_change(T *at, F &&change)
{
    T before, after;

    __atomic_load(at, &before, __ATOMIC_RELAXED);
    do
        after = change(before);
    while (!__atomic_compare_exchange(at, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
}

#define EMU_ATOMIC(name, expression)                                                                                   \
    template <typename T> static inline T name(T *at, std::common_type_t<T> v)                                         \
    {                                                                                                                  \
        return emu_change(at, [&](T old) -> T { return (T)(expression); });                                            \
    }
EMU_ATOMIC(atomicAdd, old + v)
EMU_ATOMIC(atomicSub, old - v)
EMU_ATOMIC(atomicMax, old > v ? old : v)
EMU_ATOMIC(atomicMin, old < v ? old : v)
EMU_ATOMIC(atomicExch, v)
EMU_ATOMIC(atomicAnd, old &v)
EMU_ATOMIC(atomicOr, old | v)
EMU_ATOMIC(atomicXor, old ^ v)
EMU_ATOMIC(atomicInc, old >= v ? 0 : old + 1)

template <typename T> static inline T atomicCAS(T *at, std::common_type_t<T> expected, std::common_type_t<T> value)
{
    __atomic_compare_exchange(at, &expected, &value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

static inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void __threadfence_block()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void __threadfence_system()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* ---- what device.cuh has assembly for ---- */

static inline unsigned cuda_smid()
{
    return emu_self->block->smid;
}

uint64_t emu_clock_ns(void) __asm__("emu_clock_ns");
static inline uint64_t cuda_globaltimer()
{
    return emu_clock_ns();
}

static inline long long clock64()
{
    return (long long)emu_clock_ns();
}

template <typename T> static inline T cuda_load_acquire(const T *at)
{
    emu_spin();
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

template <typename T> static inline void cuda_store_release(T *at, std::common_type_t<T> value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

template <typename T> static inline void cuda_store_relaxed(T *at, std::common_type_t<T> value)
{
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
}

static inline uint32_t cuda_add_release(uint32_t *at, uint32_t value)
{
    return __atomic_fetch_add(at, value, __ATOMIC_ACQ_REL);
}

static inline void cuda_pause()
{
    emu_spin();
}

static inline void __nanosleep(unsigned ns)
{
    (void)ns;
    emu_spin();
}

static inline void cuda_trap()
{
    emu_trap("a kernel trapped");
}

static inline void __trap()
{
    emu_trap("a kernel trapped");
}

static inline float cuda_bf16_to_float(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;

    memcpy(&x, &wide, sizeof(x));
    return x;
}

static inline uint16_t cuda_float_to_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    if (x != x)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline uint4 cuda_load_stream(const uint4 *at)
{
    return *at;
}

static inline void cuda_store_stream(uint4 *at, uint4 v)
{
    *at = v;
}

/* Numbers below the normal ones become zero. */
static inline float emu_flush(float x)
{
    return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}

static inline void cuda_add_pair(float *to, float x, float y)
{
    if ((uintptr_t)to % 8 != 0)
        emu_trap("a pair of additions to memory that is not 8-byte aligned");
    to[0] = emu_flush(emu_flush(to[0]) + emu_flush(x));
    to[1] = emu_flush(emu_flush(to[1]) + emu_flush(y));
}

/* What functions of the C library touch the compiler does not tell of. A copy may arrive as soon as
 * it is issued. */
#if defined(EMULATED_RACES)
#define EMU_READS(at, bytes)  emu_touch(at, bytes, false)
#define EMU_WRITES(at, bytes) emu_touch(at, bytes, true)
#else
#define EMU_READS(at, bytes)  ((void)(at))
#define EMU_WRITES(at, bytes) ((void)(at))
#endif

/* Done when waited for, and no earlier: a missing wait shows. */
static inline void cuda_copy_async(void *shared, const void *global, unsigned bytes = 16)
{
    emu_self_t *self = emu_self;

    if (((uintptr_t)shared | (uintptr_t)global) % 16 != 0 && bytes > 0)
        emu_trap("an asynchronous copy between addresses that are not 16-byte aligned");
    if (self->ncopies == EMU_COPIES)
        emu_trap("more asynchronous copies than the emulator holds");
    EMU_WRITES(shared, 16);
    self->copies[self->ncopies++] = {shared, global, bytes, self->group};
}

static inline void cuda_copy_commit()
{
    emu_self->group++;
}

template <int groups> static inline void cuda_copy_wait()
{
    emu_self_t *self = emu_self;
    unsigned kept = 0;

    for (unsigned i = 0; i < self->ncopies; i++) {
        emu_copy_t *c = &self->copies[i];

        if ((int)(self->group - c->group) > groups) {
            EMU_READS(c->from, c->bytes);
            EMU_WRITES(c->to, 16);
            memcpy(c->to, c->from, c->bytes);
            memset((char *)c->to + c->bytes, 0, 16 - c->bytes);
        } else {
            self->copies[kept++] = *c;
        }
    }
    self->ncopies = kept;
}

static inline void emu_load_matrix(uint32_t r[4], const void *row, bool transposed)
{
    unsigned lane = emu_self->lane;
    const unsigned char *slots;

    if ((uintptr_t)row % 16 != 0)
        emu_trap("ldmatrix of a row that is not 16-byte aligned");
    EMU_READS(row, 16);
    slots = emu_exchange(0xffffffffu, row, 16);
    for (unsigned m = 0; m < 4; m++) {
        uint16_t pair[2];

        for (unsigned i = 0; i < 2; i++) {
            unsigned from = transposed ? lane % 4 * 2 + i : lane / 4;
            unsigned column = transposed ? lane / 4 : lane % 4 * 2 + i;

            memcpy(&pair[i], slots + (m * 8 + from) * EMU_SLOT + column * 2, 2);
        }
        r[m] = (uint32_t)pair[0] | (uint32_t)pair[1] << 16;
    }
}

static inline void cuda_load_matrix_x4(uint32_t r[4], const void *row)
{
    emu_load_matrix(r, row, false);
}

static inline void cuda_load_matrix_x4_trans(uint32_t r[4], const void *row)
{
    emu_load_matrix(r, row, true);
}

/* Fragments as PTX lays them out: lane l holds of a (16x16) rows l/4 and l/4+8, columns
 * 2(l%4)+{0,1} and +8; of b (16x8) rows 2(l%4)+{0,1} and +8 of column l/4; of c (16x8) rows l/4 and
 * l/4+8, columns 2(l%4)+{0,1}. */
static inline void cuda_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]}, half;
    unsigned lane = emu_self->lane;
    const unsigned char *slots = emu_exchange(0xffffffffu, mine, sizeof(mine));

    for (unsigned i = 0; i < 4; i++) {
        unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        float sum = c[i];

        for (unsigned k = 0; k < 16; k++) {
            unsigned from = row % 8 * 4 + k % 8 / 2, part = row / 8 + k / 8 * 2;
            float x, y;

            memcpy(&half, slots + from * EMU_SLOT + part * 4, 4);
            x = cuda_bf16_to_float((uint16_t)(half >> k % 2 * 16));
            memcpy(&half, slots + (column * 4 + k % 8 / 2) * EMU_SLOT + (4 + k / 8) * 4, 4);
            y = cuda_bf16_to_float((uint16_t)(half >> k % 2 * 16));
            sum += x * y;
        }
        c[i] = sum;
    }
}

/* ---- arithmetic ---- */

template <typename T> static inline T __ldg(const T *at)
{
    return *at;
}

template <typename T> static inline std::common_type_t<T> min(T a, std::common_type_t<T> b)
{
    return b < a ? b : a;
}

template <typename T> static inline std::common_type_t<T> max(T a, std::common_type_t<T> b)
{
    return a < b ? b : a;
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

static inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}

template <typename To, typename From> static inline To emu_bits(From x)
{
    To y;

    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    memcpy(&y, &x, sizeof(y));
    return y;
}

static inline unsigned __float_as_uint(float x)
{
    return emu_bits<unsigned>(x);
}

static inline int __float_as_int(float x)
{
    return emu_bits<int>(x);
}

static inline float __uint_as_float(unsigned x)
{
    return emu_bits<float>(x);
}

static inline float __int_as_float(int x)
{
    return emu_bits<float>(x);
}

static inline long long __double_as_longlong(double x)
{
    return emu_bits<long long>(x);
}

static inline double __longlong_as_double(long long x)
{
    return emu_bits<double>(x);
}

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}

/* names that the C library has for itself */
#define __expf(x) expf(x)
#define __logf(x) logf(x)

static inline float __fdividef(float a, float b)
{
    return a / b;
}

static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}

static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}

static inline double __dmul_rn(double a, double b)
{
    return a * b;
}

static inline double __dadd_rn(double a, double b)
{
    return a + b;
}

/* ---- registration ---- */

struct emu_entry {
    emu_kernel_t kernel;

    template <typename... A> emu_entry(const char *name, void (*function)(A...))
    {
        static const size_t sizes[sizeof...(A) + 1] = {sizeof(A)..., 0};

        kernel = {name, reinterpret_cast<void (*)(void)>(function), &call<A...>, sizes, sizeof...(A), NULL};
        emu_register(&kernel);
    }

    template <typename... A> static void call(void (*function)(void), void **args)
    {
        call_with(reinterpret_cast<void (*)(A...)>(function), args, std::index_sequence_for<A...>());
    }

    template <typename... A, size_t... I>
    static void call_with(void (*function)(A...), void **args, std::index_sequence<I...>)
    {
        (void)args;
        function(*static_cast<std::remove_cv_t<A> *>(args[I])...);
    }
};

#endif
