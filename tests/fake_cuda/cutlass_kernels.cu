/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cutlass_kernels.cu: what CUTLASS's grouped kernels do, in plain loops, as strict and as careless
 * as they are: rows begin on 16 bytes, each block has its part of the workspace, a sum of nothing
 * is what was in the registers. */
#include "cuda/device.cuh"

#include "tests/fake_cuda/cutlass_fake.h"

CUDA_DEVICE bool is_strict(const void *at, int64_t row_bytes)
{
    return (size_t)at % 16 == 0 && row_bytes % 16 == 0;
}

/* C[i][j] of a group; A is [m][k] or [k][m], B is [k][n] or [n][k]; i and j of A and B. */
template <bool TA, bool TB> CUDA_DEVICE float sum_of(const fake_cutlass_params_t &p, int g, int64_t i, int64_t j, int k)
{
    const cuda_bf16 *a = (const cuda_bf16 *)p.groups.at[0][g], *b = (const cuda_bf16 *)p.groups.at[1][g];
    const int64_t lda = p.groups.ld[0][g], ldb = p.groups.ld[1][g];
    float sum = k > 0 ? 0.0f : NAN;

    for (int64_t l = 0; l < k; l++)
        sum += cuda_float(TA ? a[l * lda + i] : a[i * lda + l]) * cuda_float(TB ? b[j * ldb + l] : b[l * ldb + j]);
    return sum;
}

template <bool TA, bool TB, bool Pair, typename Out, int Blocks = 1>
CUDA_DEVICE void multiply(const fake_cutlass_params_t &p)
{
    const int thread = (int)(blockIdx.x * blockDim.x + threadIdx.x), threads = (int)(gridDim.x * blockDim.x);

    if (gridDim.x > p.groups.blocks || gridDim.x % Blocks != 0 || blockDim.x != FAKE_CUTLASS_THREADS)
        cuda_trap();
    if (threadIdx.x < FAKE_CUTLASS_BLOCK_BYTES / 4)
        ((uint32_t *)p.groups.workspace)[blockIdx.x * (FAKE_CUTLASS_BLOCK_BYTES / 4) + threadIdx.x] = 0xffffffffu;
    for (int g = 0; g < p.groups.groups; g++) {
        const int m = p.groups.sizes[3 * g], n = p.groups.sizes[3 * g + 1], k = p.groups.sizes[3 * g + 2];
        Out *c = (Out *)p.groups.at[2][g];
        const int64_t ldc = p.groups.ld[2][g];

        if (m == 0 || n == 0)
            continue;
        if (!is_strict(p.groups.at[0][g], p.groups.ld[0][g] * 2) ||
            !is_strict(p.groups.at[1][g], p.groups.ld[1][g] * 2) || !is_strict(c, ldc * (int64_t)sizeof(Out)))
            cuda_trap();
        for (int at = thread; at < m * n; at += threads) {
            Out *out = c + at / n * ldc + at % n;
            const moe_cutlass_second_t *s = p.groups.second;
            const int i = at / n, j = at % n;
            float sum;

            if (!Pair) {
                sum = sum_of<TA, TB>(p, g, i, j, k);
            } else {
                if (k != 2 * ((s->k + MOE_CUTLASS_STEP - 1) / MOE_CUTLASS_STEP * MOE_CUTLASS_STEP))
                    cuda_trap();
                sum = sum_of<TA, TB>(p, g, i, j, s->k) + sum_of<TA, TB>(p, g, i + s->a_rows, j + s->b_rows, s->k);
            }
            *out = cuda_from_float<Out>(p.beta != 0 ? sum + p.beta * cuda_float(*out) : sum);
        }
    }
}

#define KERNEL(name, ...)                                                                                              \
    extern "C" __global__ void __launch_bounds__(FAKE_CUTLASS_THREADS)                                                 \
        fake_cutlass_##name(const __grid_constant__ fake_cutlass_params_t p)                                           \
    {                                                                                                                  \
        multiply<__VA_ARGS__>(p);                                                                                      \
    }
KERNEL(nn, false, false, false, cuda_bf16)
KERNEL(nt, false, true, false, cuda_bf16)
KERNEL(nt_pair, false, true, true, cuda_bf16)
KERNEL(tn, true, false, false, float)
KERNEL(nn_two, false, false, false, cuda_bf16, 2)
KERNEL(nt_two, false, true, false, cuda_bf16, 2)
KERNEL(nt_pair_two, false, true, true, cuda_bf16, 2)
