/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_wgmma.cu: the grouped products of moe_gemm.cu on warpgroup products (wgmma) of sm_90a: two
 * warpgroups with 64 x 256 of a tile of 128 x 256 each, operands read from shared memory, one group
 * of products always on its way. The sums are the same chains. Chosen by name alone:
 * DUALPIPE_DEBUG=moe_cuda.products=wgmma. */
#include "moe_tiles.cuh"

enum {
    M = MOE_ROWS_M,
    N = MOE_ROWS_N,
    THREADS = MOE_PRODUCT_THREADS,
    STAGES = 4,
    STAGE = (M + N) * STEP,
    ALIGNED = 1024 /* bytes in which the hardware's permutation repeats */
};
static_assert(STAGES * STAGE * 2 + ALIGNED == MOE_WGMMA_SHARED, "what the host asks for");

typedef along_k<M, THREADS> rows_a;          /* A by rows */
typedef along_k<N, THREADS> along_b;         /* B by rows, transposed */
typedef across_k<N, THREADS, true> across_b; /* B by rows, and by cells */
typedef across_k<M, THREADS, true> cells_a;  /* A by cells */

CUDA_DEVICE cuda_bf16 *stages()
{
    CUDA_SHARED_DYNAMIC(cuda_bf16, shared);

    return shared + (ALIGNED - cuda_shared_offset(shared) % ALIGNED) % ALIGNED / 2;
}

/* One stage into the sums of a warpgroup. Blocks of 64 across K are STEP rows of 128 bytes. */
template <bool TA, bool TB> CUDA_DEVICE void multiply_tiles(float (&sum)[128], const cuda_bf16 *a_tile)
{
    const cuda_bf16 *b_tile = a_tile + rows_a::elements;
    /* 64 rows, or a block of 64 columns */
    const cuda_bf16 *own = a_tile + (int)threadIdx.x / 128 * 64 * STEP;

    cuda_warpgroup_fence();
#pragma unroll
    for (int k = 0; k < STEP; k += 16)
        cuda_warpgroup_mma_bf16<TA, TB>(sum, cuda_matrix_descriptor(own + (TA ? k * 64 : k), STEP * 128),
                                        cuda_matrix_descriptor(b_tile + (TB ? k * 64 : k), STEP * 128));
    cuda_warpgroup_commit();
}

/* Row of the tile for c[2 * half] and the one after it, column of both for j. */
CUDA_DEVICE int sum_row(int half)
{
    return (int)threadIdx.x / CUDA_WARP * 16 + half * 8 + (int)threadIdx.x % CUDA_WARP / 4;
}

CUDA_DEVICE int sum_column(int j)
{
    return j * 8 + (int)threadIdx.x % 4 * 2;
}

/*
 * All steps of a tile. Two stages are on their way at the start; each step waits for its own,
 * starts its products, then fills the stage that the step before the last one read: all threads are
 * past that one's products.
 */
template <bool TA, bool TB, typename F>
CUDA_DEVICE void multiply_steps(float (&sum)[128], cuda_bf16 *shared, int steps, int *stage, F &fill)
{
    for (int step = 0; step < steps; step++) {
        cuda_copy_wait<1>();
        cuda_shared_fence_async();
        __syncthreads();
        multiply_tiles<TA, TB>(sum, shared + *stage * STAGE);
        fill((*stage + 2) % STAGES);
        cuda_warpgroup_wait<1>();
        *stage = (*stage + 1) % STAGES;
    }
    cuda_warpgroup_wait<0>();
    cuda_warpgroup_sums(sum);
}

template <bool TB, typename C> CUDA_DEVICE void rows_wgmma(const moe_product_t &p)
{
    cuda_bf16 *shared = stages();
    row_walk now = row_walk_start();
    row_tile tile;
    rows_ahead<M, N> ahead;
    int stage = 0;
    auto fill = [&](int to) {
        cuda_bf16 *a_tile = shared + to * STAGE;

        ahead.template fill_stage<TB, rows_a, along_b, across_b>(p, a_tile, a_tile + rows_a::elements);
    };

    ahead.start_tiles(p);
    const int steps = ahead.count_steps(p);

    fill(0);
    fill(1);
    for (int64_t at = blockIdx.x; row_seek<M, N>(p, &now, at, &tile); at += gridDim.x) {
        float sum[128];

#pragma unroll
        for (int i = 0; i < 128; i++)
            sum[i] = 0;
        multiply_steps<false, !TB>(sum, shared, steps, &stage, fill);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = sum_row(half);
            C *to;

            if (row >= tile.rows)
                continue;
            to = (C *)p.c[tile.output] + tile.group * p.group_c + row_of_c(p, tile.first + row) * p.ldc;
#pragma unroll
            for (int j = 0; j < 32; j++) {
                const int column = tile.column + sum_column(j);

                if (column < p.n)
                    store_pair(to + column, sum[j * 4 + half * 2], sum[j * 4 + half * 2 + 1], p.accumulate);
            }
        }
    }
    cuda_copy_wait<0>();
}

CUDA_DEVICE void cells_wgmma(const moe_product_t &p)
{
    cuda_bf16 *shared = stages();
    cells_ahead<M, N> ahead;
    cell_tile tile;
    int stage = 0;
    auto fill = [&](int to) {
        cuda_bf16 *a_tile = shared + to * STAGE;

        ahead.template fill_stage<cells_a, across_b>(p, a_tile, a_tile + cells_a::elements);
    };

    ahead.start_tiles(p);
    fill(0);
    fill(1);
    for (int64_t at = blockIdx.x; cell_seek<M, N>(p, at, &tile); at += gridDim.x) {
        float *c = (float *)p.c[tile.output] + tile.group * p.group_c, sum[128];
        const int steps = steps_of(p, tile.group);

        if (steps == 0)
            continue;
#pragma unroll
        for (int i = 0; i < 128; i++)
            sum[i] = 0;
        multiply_steps<true, true>(sum, shared, steps, &stage, fill);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < 32; j++) {
                const int row = tile.row + sum_row(half), column = tile.column + sum_column(j);

                if (row < p.m && column < p.n)
                    cuda_add_pair(c + row * p.ldc + column, sum[j * 4 + half * 2], sum[j * 4 + half * 2 + 1]);
            }
    }
    cuda_copy_wait<0>();
}

MOE_PRODUCT(wgmma_nn_bf16, (256, 1), rows_wgmma<false, cuda_bf16>)
MOE_PRODUCT(wgmma_nt_bf16, (256, 1), rows_wgmma<true, cuda_bf16>)
MOE_PRODUCT(wgmma_nn_bf16_f32, (256, 1), rows_wgmma<false, float>)
MOE_PRODUCT(wgmma_nt_bf16_f32, (256, 1), rows_wgmma<true, float>)
MOE_PRODUCT(wgmma_tn_bf16, (256, 1), cells_wgmma)
