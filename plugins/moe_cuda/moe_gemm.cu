/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_gemm.cu: grouped products whose sizes are on the device. A launch has as many blocks as run
 * at once; each takes every gridDim-th tile of all groups, and finds its group by walking over the
 * rows of the groups.
 *
 * An element of C is one chain of additions over K from the first to the last, whatever else is in
 * the launch: its bits depend on its row of A and its column of B alone (by cells: on the rows of
 * its cells in their order, on top of what C held). */
#include "moe_tiles.cuh"

/* ---- tensor cores: bf16 with fp32 sums. Shared memory is filled by cp.async some steps ahead,
 * over the ends of tiles. ---- */

/* Fragments of 16 x 16 elements. A of m16n8k16 has its four 8 x 8 parts in the order (m, k) = 00,
 * 10, 01, 11; two B next to each other in the order (n, k) = 00, 01, 10, 11. Lane l gives the
 * address of row l % 8 of part l / 8. */
template <int ROWS, int THREADS>
CUDA_DEVICE void fragment_a(uint32_t r[4], cuda_bf16 *tile, along_k<ROWS, THREADS>, int row, int k)
{
    const int lane = (int)threadIdx.x % CUDA_WARP, part = lane / 8;

    cuda_load_matrix_x4(r, along_k<ROWS, THREADS>::vector_at(tile, row + part % 2 * 8 + lane % 8, k / 8 + part / 2));
}

template <int COLUMNS, int THREADS>
CUDA_DEVICE void fragment_a(uint32_t r[4], cuda_bf16 *tile, across_k<COLUMNS, THREADS>, int row, int k)
{
    const int lane = (int)threadIdx.x % CUDA_WARP, part = lane / 8;

    cuda_load_matrix_x4_trans(
        r, across_k<COLUMNS, THREADS>::vector_at(tile, k + part / 2 * 8 + lane % 8, row / 8 + part % 2));
}

template <int ROWS, int THREADS>
CUDA_DEVICE void fragment_b(uint32_t r[4], cuda_bf16 *tile, along_k<ROWS, THREADS>, int column, int k)
{
    const int lane = (int)threadIdx.x % CUDA_WARP, part = lane / 8;

    cuda_load_matrix_x4(r, along_k<ROWS, THREADS>::vector_at(tile, column + part / 2 * 8 + lane % 8, k / 8 + part % 2));
}

template <int COLUMNS, int THREADS>
CUDA_DEVICE void fragment_b(uint32_t r[4], cuda_bf16 *tile, across_k<COLUMNS, THREADS>, int column, int k)
{
    const int lane = (int)threadIdx.x % CUDA_WARP, part = lane / 8;

    cuda_load_matrix_x4_trans(
        r, across_k<COLUMNS, THREADS>::vector_at(tile, k + part % 2 * 8 + lane % 8, column / 8 + part / 2));
}

/* A block of 256 threads: 2 x 4 warps, each with `WM` x `WN` of the tile. */
template <int WM, int WN> struct block_tile {
    static const int threads = 256, m = 2 * WM, n = 4 * WN;
    typedef float sums[WM / 16][WN / 8][4];

    CUDA_DEVICE static int row()
    {
        return (int)threadIdx.x / CUDA_WARP % 2 * WM;
    }

    CUDA_DEVICE static int column()
    {
        return (int)threadIdx.x / CUDA_WARP / 2 * WN;
    }

    /* One stage. */
    template <typename A, typename B>
    CUDA_DEVICE static void multiply_tiles(sums &c, cuda_bf16 *a_tile, cuda_bf16 *b_tile)
    {
#pragma unroll
        for (int k = 0; k < STEP; k += 16) {
            uint32_t a[WM / 16][4], b[WN / 16][4];

#pragma unroll
            for (int i = 0; i < WM / 16; i++)
                fragment_a(a[i], a_tile, A(), row() + i * 16, k);
#pragma unroll
            for (int j = 0; j < WN / 16; j++)
                fragment_b(b[j], b_tile, B(), column() + j * 16, k);
#pragma unroll
            for (int i = 0; i < WM / 16; i++)
#pragma unroll
                for (int j = 0; j < WN / 8; j++)
                    cuda_mma_bf16(c[i][j], a[i], &b[j / 2][j % 2 * 2]);
        }
    }
};

/* By rows. TB: B is [n, k]. n and k are multiples of 8, every row of A and B begins on 16 bytes. */
template <bool TB, typename C> CUDA_DEVICE void rows_tensor(const moe_product_t &p)
{
    enum { WM = 64, WN = 64, STAGES = 4 };
    typedef block_tile<WM, WN> block;
    typedef along_k<block::m, block::threads> tile_a;
    typedef along_k<block::n, block::threads> tile_b_t;
    typedef across_k<block::n, block::threads> tile_b_n;
    enum { STAGE = (block::m + block::n) * STEP };
    static_assert(block::m == MOE_ROWS_M && block::n == MOE_ROWS_N && STAGES * STAGE * 2 == MOE_ROWS_SHARED, "");
    CUDA_SHARED_DYNAMIC(cuda_bf16, shared);
    const int lane = (int)threadIdx.x % CUDA_WARP;
    row_walk now = row_walk_start();
    row_tile tile;
    rows_ahead<block::m, block::n> ahead;
    int stage = 0;
    auto fill = [&](int to) {
        cuda_bf16 *a_tile = shared + to * STAGE;

        ahead.template fill_stage<TB, tile_a, tile_b_t, tile_b_n>(p, a_tile, a_tile + tile_a::elements);
    };

    ahead.start_tiles(p);
    const int steps = ahead.count_steps(p);

    for (int i = 0; i < STAGES - 1; i++)
        fill(i);
    for (int64_t at = blockIdx.x; row_seek<block::m, block::n>(p, &now, at, &tile); at += gridDim.x) {
        /* of this warp */
        const bool work = block::row() < tile.rows && tile.column + block::column() < p.n;
        typename block::sums sum;

#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < WN / 8; j++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    sum[i][j][c] = 0;
        for (int step = 0; step < steps; step++) {
            cuda_bf16 *a_tile = shared + stage * STAGE, *b_tile = a_tile + tile_a::elements;

            cuda_copy_wait<STAGES - 2>();
            /* this stage is full for all, and all are done with the one before it */
            __syncthreads();
            fill((stage + STAGES - 1) % STAGES);
            if (work) {
                if (TB)
                    block::template multiply_tiles<tile_a, tile_b_t>(sum, a_tile, b_tile);
                else
                    block::template multiply_tiles<tile_a, tile_b_n>(sum, a_tile, b_tile);
            }
            stage = (stage + 1) % STAGES;
        }
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = block::row() + i * 16 + half * 8 + lane / 4;
                C *to;

                if (row >= tile.rows)
                    continue;
                to = (C *)p.c[tile.output] + tile.group * p.group_c + row_of_c(p, tile.first + row) * p.ldc;
#pragma unroll
                for (int j = 0; j < WN / 8; j++) {
                    const int column = tile.column + block::column() + j * 8 + lane % 4 * 2;

                    if (column < p.n)
                        store_pair(to + column, sum[i][j][half * 2], sum[i][j][half * 2 + 1], p.accumulate);
                }
            }
    }
    cuda_copy_wait<0>();
}

/* By cells: A is [k, m], B [k, n], both multiples of 8, their rows on 16 bytes. */
CUDA_DEVICE void cells_tensor(const moe_product_t &p)
{
    enum { WM = 64, WN = 64, STAGES = 3 };
    typedef block_tile<WM, WN> block;
    typedef across_k<block::m, block::threads> tile_a;
    typedef across_k<block::n, block::threads> tile_b;
    enum { STAGE = (block::m + block::n) * STEP };
    static_assert(block::m == MOE_CELLS_M && block::n == MOE_CELLS_N && STAGES * STAGE * 2 == MOE_CELLS_SHARED, "");
    CUDA_SHARED_DYNAMIC(cuda_bf16, shared);
    const int lane = (int)threadIdx.x % CUDA_WARP;
    cells_ahead<block::m, block::n> ahead;
    cell_tile tile;
    int stage = 0;
    auto fill = [&](int to) {
        cuda_bf16 *a_tile = shared + to * STAGE;

        ahead.template fill_stage<tile_a, tile_b>(p, a_tile, a_tile + tile_a::elements);
    };

    ahead.start_tiles(p);
    for (int i = 0; i < STAGES - 1; i++)
        fill(i);
    for (int64_t at = blockIdx.x; cell_seek<block::m, block::n>(p, at, &tile); at += gridDim.x) {
        float *c = (float *)p.c[tile.output] + tile.group * p.group_c;
        const bool work = tile.row + block::row() < p.m && tile.column + block::column() < p.n;
        typename block::sums sum;
        const int steps = steps_of(p, tile.group);

        if (steps == 0)
            continue;
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < WN / 8; j++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    sum[i][j][k] = 0;
        for (int step = 0; step < steps; step++) {
            cuda_bf16 *a_tile = shared + stage * STAGE, *b_tile = a_tile + tile_a::elements;

            cuda_copy_wait<STAGES - 2>();
            __syncthreads();
            fill((stage + STAGES - 1) % STAGES);
            if (work)
                block::template multiply_tiles<tile_a, tile_b>(sum, a_tile, b_tile);
            stage = (stage + 1) % STAGES;
        }
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = tile.row + block::row() + i * 16 + half * 8 + lane / 4;
                const int column = tile.column + block::column() + lane % 4 * 2;
                float *to = c + row * p.ldc + column;

                if (row >= p.m)
                    continue;
#pragma unroll
                for (int j = 0; j < WN / 8; j++)
                    if (column + j * 8 < p.n)
                        cuda_add_pair(to + j * 8, sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
            }
    }
    cuda_copy_wait<0>();
}

MOE_PRODUCT(tensor_nn_bf16, (256, 1), rows_tensor<false, cuda_bf16>)
MOE_PRODUCT(tensor_nt_bf16, (256, 1), rows_tensor<true, cuda_bf16>)
MOE_PRODUCT(tensor_nn_bf16_f32, (256, 1), rows_tensor<false, float>)
MOE_PRODUCT(tensor_nt_bf16_f32, (256, 1), rows_tensor<true, float>)
MOE_PRODUCT(tensor_tn_bf16, (256, 1), cells_tensor)

/* ---- any type, size and alignment: tiles of 64 x 64, 4 x 4 for each of 256 threads ---- */

enum { PLAIN = MOE_PLAIN_TILE, PLAIN_STEP = 16, PLAIN_THREADS = MOE_PRODUCT_THREADS };

template <typename S> struct plain_tiles {
    S a[PLAIN_STEP][PLAIN + 4], b[PLAIN_STEP][PLAIN + 4];
};

/* Elements [k][i] of a tile that is stored with K along its rows (ALONG) or across them. */
template <bool ALONG, typename T, typename S>
CUDA_DEVICE void plain_load(S (*tile)[PLAIN + 4], const T *from, int64_t stride, int count, int inner)
{
#pragma unroll
    for (int l = (int)threadIdx.x; l < PLAIN * PLAIN_STEP; l += PLAIN_THREADS) {
        const int i = ALONG ? l / PLAIN_STEP : l % PLAIN, k = ALONG ? l % PLAIN_STEP : l / PLAIN;
        S x = 0;

        if (i < count && k < inner)
            x = cuda_float(ALONG ? from[i * stride + k] : from[k * stride + i]);
        tile[k][i] = x;
    }
}

/* sum += A B over K elements. */
template <bool AA, bool AB, typename T, typename S>
CUDA_DEVICE void plain_multiply(plain_tiles<S> *tiles, const T *a, int64_t lda, int rows, const T *b, int64_t ldb,
                                int columns, int64_t k_count, S (*sum)[4])
{
    const int row = (int)threadIdx.x / 16 * 4, column = (int)threadIdx.x % 16 * 4;

    for (int64_t k = 0; k < k_count; k += PLAIN_STEP) {
        const int inner = k_count - k < PLAIN_STEP ? (int)(k_count - k) : PLAIN_STEP;

        __syncthreads();
        plain_load<AA>(tiles->a, AA ? a + k : a + k * lda, lda, rows, inner);
        plain_load<AB>(tiles->b, AB ? b + k : b + k * ldb, ldb, columns, inner);
        __syncthreads();
        if (row >= rows || column >= columns)
            continue;
        for (int l = 0; l < PLAIN_STEP; l++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[i][j] += tiles->a[l][row + i] * tiles->b[l][column + j];
    }
}

template <bool TB, typename T, typename C> CUDA_DEVICE void rows_plain(const moe_product_t &p)
{
    typedef cuda_sum_t<T> sum_t;
    __shared__ plain_tiles<sum_t> tiles;
    const int row = (int)threadIdx.x / 16 * 4, column = (int)threadIdx.x % 16 * 4;
    row_walk walk = row_walk_start();
    row_tile tile;

    for (int64_t at = blockIdx.x; row_seek<PLAIN, PLAIN>(p, &walk, at, &tile); at += gridDim.x) {
        const int columns = p.n - tile.column;
        sum_t sum[4][4] = {};

        for (int part = 0; part < p.parts; part++) {
            const T *b = (const T *)p.b[part + tile.output] + tile.group * p.group_b;

            plain_multiply<true, TB>(&tiles, (const T *)p.a[part] + tile.first * p.lda, p.lda, tile.rows,
                                     TB ? b + tile.column * p.ldb : b + tile.column, p.ldb, columns, p.k, sum);
        }
        for (int i = 0; i < 4 && row + i < tile.rows; i++) {
            C *to = (C *)p.c[tile.output] + tile.group * p.group_c + row_of_c(p, tile.first + row + i) * p.ldc +
                    tile.column;

            for (int j = column; j < column + 4 && j < columns; j++)
                to[j] = cuda_from_float<C>(sum[i][j - column] + (p.accumulate ? cuda_float(to[j]) : 0));
        }
    }
}

template <typename T> CUDA_DEVICE void cells_plain(const moe_product_t &p)
{
    typedef cuda_sum_t<T> sum_t;
    __shared__ plain_tiles<sum_t> tiles;
    const int row = (int)threadIdx.x / 16 * 4, column = (int)threadIdx.x % 16 * 4;
    cell_tile tile;

    for (int64_t at = blockIdx.x; cell_seek<PLAIN, PLAIN>(p, at, &tile); at += gridDim.x) {
        const int rows = p.m - tile.row, columns = p.n - tile.column;
        sum_t *c = (sum_t *)p.c[tile.output] + tile.group * p.group_c + tile.row * p.ldc + tile.column;
        sum_t sum[4][4];

        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++)
                sum[i][j] = row + i < rows && column + j < columns ? c[(row + i) * p.ldc + column + j] : 0;
        for (int cell = 0; cell < p.cells; cell++) {
            const cell_run run = run_of(p, tile.group, cell);

            for (int part = 0; part < p.parts; part++)
                plain_multiply<false, false>(&tiles, (const T *)p.a[part] + run.first * p.lda + tile.row, p.lda, rows,
                                             (const T *)p.b[part + tile.output] + run.first * p.ldb + tile.column,
                                             p.ldb, columns, run.rows, sum);
        }
        for (int i = 0; i < 4 && row + i < rows; i++)
            for (int j = 0; j < 4 && column + j < columns; j++)
                c[(row + i) * p.ldc + column + j] = sum[i][j];
    }
}

MOE_PRODUCT(plain_nn_f32, (PLAIN_THREADS), rows_plain<false, float, float>)
MOE_PRODUCT(plain_nt_f32, (PLAIN_THREADS), rows_plain<true, float, float>)
MOE_PRODUCT(plain_tn_f32, (PLAIN_THREADS), cells_plain<float>)
MOE_PRODUCT(plain_nn_f64, (PLAIN_THREADS), rows_plain<false, double, double>)
MOE_PRODUCT(plain_nt_f64, (PLAIN_THREADS), rows_plain<true, double, double>)
MOE_PRODUCT(plain_tn_f64, (PLAIN_THREADS), cells_plain<double>)
MOE_PRODUCT(plain_nn_bf16, (PLAIN_THREADS), rows_plain<false, cuda_bf16, cuda_bf16>)
MOE_PRODUCT(plain_nt_bf16, (PLAIN_THREADS), rows_plain<true, cuda_bf16, cuda_bf16>)
MOE_PRODUCT(plain_nn_bf16_f32, (PLAIN_THREADS), rows_plain<false, cuda_bf16, float>)
MOE_PRODUCT(plain_nt_bf16_f32, (PLAIN_THREADS), rows_plain<true, cuda_bf16, float>)
MOE_PRODUCT(plain_tn_bf16, (PLAIN_THREADS), cells_plain<cuda_bf16>)
