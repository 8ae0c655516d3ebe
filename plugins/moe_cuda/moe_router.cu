/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_router.cu: the router's products in bf16 on tensor cores. They have few columns or a short K,
 * so tiles are 64 x 64, and long sums are cut into slices that whoever reads them adds in order. */
#include "moe_tiles.cuh"

typedef along_k<MOE_ROUTER_TILE, MOE_ROUTER_THREADS> router_along;
typedef across_k<MOE_ROUTER_TILE, MOE_ROUTER_THREADS> router_across;

/* A tile of C is A B over `parts` of a sum, steps of K of each. AA, AB: A or B lies across K, else
 * along it. A warp has 16 rows; lane l holds rows l / 4 and 8 below, columns 8 j + l % 4 * 2 and
 * the next. */
struct router_tile {
    const cuda_bf16 *a, *b;
    int64_t lda, ldb, next_a, next_b; /* elements from row to row, and to the next part */
    int rows, columns, k, parts;
    float c[MOE_ROUTER_TILE / 8][4];

    CUDA_DEVICE static int row(int half)
    {
        return (int)threadIdx.x / CUDA_WARP * 16 + half * 8 + (int)threadIdx.x % CUDA_WARP / 4;
    }

    CUDA_DEVICE static int column(int j)
    {
        return j * 8 + (int)threadIdx.x % 4 * 2;
    }

    CUDA_DEVICE bool has(int half, int j) const
    {
        return row(half) < rows && column(j) < columns;
    }

    template <bool ACROSS>
    CUDA_DEVICE static void load_tile(cuda_bf16 *to, const cuda_bf16 *from, int64_t ld, int at, int count, int k)
    {
        if (ACROSS)
            router_across::load_tile(to, from + at * ld, ld, count, k - at);
        else
            router_along::load_tile(to, from + at, ld, count, k - at);
    }

    template <bool AA, bool AB> CUDA_DEVICE void fill_stage(cuda_bf16 *stage, int step, int steps)
    {
        if (step < steps * parts) {
            const int part = step / steps, at = step % steps * STEP;

            load_tile<AA>(stage, a + part * next_a, lda, at, rows, k);
            load_tile<AB>(stage + router_along::elements, b + part * next_b, ldb, at, columns, k);
        }
        cuda_copy_commit();
    }

    template <bool AA, bool AB> CUDA_DEVICE void multiply_stage(cuda_bf16 *a_tile)
    {
        const int lane = (int)threadIdx.x % CUDA_WARP, part = lane / 8, at = lane % 8;
        const int row = (int)threadIdx.x / CUDA_WARP * 16;
        cuda_bf16 *b_tile = a_tile + router_along::elements;

#pragma unroll
        for (int k = 0; k < STEP; k += 16) {
            uint32_t left[4], right[4];

            if (AA)
                cuda_load_matrix_x4_trans(left,
                                          router_across::vector_at(a_tile, k + part / 2 * 8 + at, row / 8 + part % 2));
            else
                cuda_load_matrix_x4(left, router_along::vector_at(a_tile, row + part % 2 * 8 + at, k / 8 + part / 2));
#pragma unroll
            for (int j = 0; j < MOE_ROUTER_TILE / 8; j += 2) {
                if (AB)
                    cuda_load_matrix_x4_trans(right,
                                              router_across::vector_at(b_tile, k + part % 2 * 8 + at, j + part / 2));
                else
                    cuda_load_matrix_x4(right,
                                        router_along::vector_at(b_tile, j * 8 + part / 2 * 8 + at, k / 8 + part % 2));
                cuda_mma_bf16(c[j], left, right);
                cuda_mma_bf16(c[j + 1], left, right + 2);
            }
        }
    }

    template <bool AA, bool AB> CUDA_DEVICE void multiply_tiles(cuda_bf16 *shared)
    {
        enum { STAGES = 3, STAGE = router_along::elements + router_across::elements };
        static_assert(STAGES * STAGE * 2 == MOE_ROUTER_SHARED, "");
        const int steps = k > 0 ? (k + STEP - 1) / STEP : 0;

        for (int i = 0; i < STAGES - 1; i++)
            fill_stage<AA, AB>(shared + i * STAGE, i, steps);
        for (int step = 0; step < steps * parts; step++) {
            cuda_copy_wait<STAGES - 2>();
            __syncthreads(); /* this stage is full for all, the one before it done with */
            fill_stage<AA, AB>(shared + (step + STAGES - 1) % STAGES * STAGE, step + STAGES - 1, steps);
            multiply_stage<AA, AB>(shared + step % STAGES * STAGE);
        }
        cuda_copy_wait<0>();
    }

    CUDA_DEVICE void store_tile(float *to, int64_t ld) const
    {
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < MOE_ROUTER_TILE / 8; j++)
                if (has(half, j))
                    store_pair(to + row(half) * ld + column(j), c[j][half * 2], c[j][half * 2 + 1], false);
    }

    /* All loads of a row are on their way at once. */
    CUDA_DEVICE void add_tile(float *to, int64_t ld) const
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            moe_vector<float, 2> old[MOE_ROUTER_TILE / 8];

#pragma unroll
            for (int j = 0; j < MOE_ROUTER_TILE / 8; j++)
                if (has(half, j))
                    old[j] = *(const moe_vector<float, 2> *)(to + row(half) * ld + column(j));
#pragma unroll
            for (int j = 0; j < MOE_ROUTER_TILE / 8; j++)
                if (has(half, j))
                    store_pair(to + row(half) * ld + column(j), c[j][half * 2] + old[j].at[0],
                               c[j][half * 2 + 1] + old[j].at[1], false);
        }
    }
};

/* Elements of slice y of `all` along K. */
CUDA_DEVICE int slice_of(int all, int *first_out)
{
    const int left = all - (int)blockIdx.y * MOE_SLICE(all);

    *first_out = left > 0 ? all - left : 0;
    return left < MOE_SLICE(all) ? left : MOE_SLICE(all);
}

/* normed w_router: tokens (x), a slice of d (y), experts (z); choices adds the slices. */
extern "C" __global__ void __launch_bounds__(MOE_ROUTER_THREADS) moe_cuda_logits(const moe_call_t a)
{
    CUDA_SHARED_DYNAMIC(cuda_bf16, shared);
    const int token = (int)blockIdx.x * MOE_ROUTER_TILE, expert = (int)blockIdx.z * MOE_ROUTER_TILE;
    router_tile tile = {};
    int first;

    tile.k = slice_of(a.n.hidden, &first);
    tile.a = (const cuda_bf16 *)a.normed + (int64_t)token * a.n.hidden + first;
    tile.b = (const cuda_bf16 *)a.router + (int64_t)first * a.n.experts + expert;
    tile.lda = a.n.hidden;
    tile.ldb = a.n.experts;
    tile.rows = a.n.tokens - token;
    tile.columns = a.n.experts - expert;
    tile.parts = 1;
    tile.multiply_tiles<false, true>(shared);
    tile.store_tile((float *)a.strips + ((int64_t)blockIdx.y * a.n.tokens + token) * a.n.experts + expert, a.n.experts);
}

/* Gradient of n += dlogits w_router^T, with dlogits as the sum of two: tokens (x), columns (y). */
extern "C" __global__ void __launch_bounds__(MOE_ROUTER_THREADS) moe_cuda_router_input(const moe_call_t a)
{
    CUDA_SHARED_DYNAMIC(cuda_bf16, shared);
    const int token = (int)blockIdx.x * MOE_ROUTER_TILE, column = (int)blockIdx.y * MOE_ROUTER_TILE;
    router_tile tile = {};

    tile.a = (const cuda_bf16 *)a.strips + (int64_t)token * a.n.experts;
    tile.next_a = (int64_t)a.n.tokens * a.n.experts;
    tile.b = (const cuda_bf16 *)a.router + (int64_t)column * a.n.experts;
    tile.lda = tile.ldb = a.n.experts;
    tile.rows = a.n.tokens - token;
    tile.columns = a.n.hidden - column;
    tile.k = a.n.experts;
    tile.parts = 2;
    tile.multiply_tiles<false, false>(shared);
    tile.add_tile((float *)a.own + (int64_t)token * a.n.hidden + column, a.n.hidden);
}

/* normed^T dlogits: rows of w_router (x), a slice of the tokens (y), experts (z);
 * vectors_backward adds the slices. */
extern "C" __global__ void __launch_bounds__(MOE_ROUTER_THREADS) moe_cuda_router_weight(const moe_call_t a)
{
    CUDA_SHARED_DYNAMIC(cuda_bf16, shared);
    const int64_t logits = (int64_t)a.n.tokens * a.n.experts;
    const int row = (int)blockIdx.x * MOE_ROUTER_TILE, expert = (int)blockIdx.z * MOE_ROUTER_TILE;
    router_tile tile = {};
    int first;

    tile.k = slice_of(a.n.tokens, &first);
    tile.a = (const cuda_bf16 *)a.normed + (int64_t)first * a.n.hidden + row;
    tile.b = (const cuda_bf16 *)a.strips + (int64_t)first * a.n.experts + expert;
    tile.next_b = logits;
    tile.lda = a.n.hidden;
    tile.ldb = a.n.experts;
    tile.rows = a.n.hidden - row;
    tile.columns = a.n.experts - expert;
    tile.parts = 2;
    tile.multiply_tiles<true, true>(shared);
    tile.store_tile((float *)a.strips + logits + ((int64_t)blockIdx.y * a.n.hidden + row) * a.n.experts + expert,
                    a.n.experts);
}
