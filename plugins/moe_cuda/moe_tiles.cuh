/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_tiles.cuh: what grouped products have in common: the walk over the tiles of all groups,
 * stages in shared memory, and what is next to be loaded into them. */
#ifndef MOE_CUDA_TILES_CUH
#define MOE_CUDA_TILES_CUH

#include "moe_real.cuh"

/* Tiles of a row that are taken before the next column: their A stays in the L2 cache. */
#define MOE_SUPER 16

CUDA_DEVICE int tiles_of(int64_t count, int size)
{
    return (int)((count + size - 1) / size);
}

/* ---- the walk over tiles ---- */

/* A tile of a product by rows. */
struct row_tile {
    int64_t first; /* row of A */
    int rows;      /* that there are from it on in this group, at most the tile's */
    int column, group, output;
};

/* Remembers how far it came: asked for tiles in ascending order only. */
struct row_walk {
    int64_t base; /* tiles before this group */
    int group, rows, tiles;
};

CUDA_DEVICE row_walk row_walk_start()
{
    const row_walk w = {0, -1, 0, 0};

    return w;
}

template <int M, int N> CUDA_DEVICE bool row_seek(const moe_product_t &p, row_walk *w, int64_t tile, row_tile *out)
{
    const int columns = tiles_of(p.n, N) * p.outputs;
    int in_super, down, rest, height;

    while (tile >= w->base + w->tiles) {
        if (++w->group >= p.groups)
            return false;
        w->base += w->tiles;
        w->rows = p.rows != 0 ? p.rows[w->group] : p.m;
        w->tiles = tiles_of(w->rows, M) * columns;
    }
    in_super = (int)(tile - w->base) % (MOE_SUPER * columns);
    down = (int)(tile - w->base) / (MOE_SUPER * columns) * MOE_SUPER;
    height = tiles_of(w->rows, M) - down;
    height = height < MOE_SUPER ? height : MOE_SUPER;
    down += in_super % height;
    rest = in_super / height;
    out->group = w->group;
    out->first = (p.rows != 0 ? p.first[w->group] : 0) + (int64_t)down * M;
    out->rows = w->rows - down * M < M ? w->rows - down * M : M;
    out->column = rest % tiles_of(p.n, N) * N;
    out->output = rest / tiles_of(p.n, N);
    return true;
}

/* A tile of a product by cells. */
struct cell_tile {
    int row, column, group, output;
};

template <int M, int N> CUDA_DEVICE bool cell_seek(const moe_product_t &p, int64_t tile, cell_tile *out)
{
    const int down = tiles_of(p.m, M), across = tiles_of(p.n, N);
    const int64_t each = (int64_t)down * across * p.outputs;
    int rest;

    if (tile >= each * p.groups)
        return false;
    out->group = (int)(tile / each);
    rest = (int)(tile % each);
    out->row = rest % down * M;
    rest /= down;
    out->column = rest % across * N;
    out->output = rest / across;
    return true;
}

/* A run of rows, one of a group's cells. */
struct cell_run {
    int64_t first;
    int rows;
};

CUDA_DEVICE cell_run run_of(const moe_product_t &p, int group, int cell)
{
    cell_run run = {0, p.k};

    if (p.rows != 0) {
        run.rows = p.rows[(int64_t)group * p.cells + cell];
        run.first = p.first[(int64_t)group * p.cells + cell];
    }
    return run;
}

CUDA_DEVICE int64_t row_of_c(const moe_product_t &p, int64_t row)
{
    return p.map != 0 ? p.map[row] : row;
}

/* ---- stages of bf16 tiles ---- */

enum { STEP = 64 }; /* elements of K in one stage */

/* Rows of `STEP` elements that lie one behind the other along K; 16-byte vectors are permuted
 * within 128 bytes so that eight rows of a vector lie in different banks. */
template <int ROWS, int THREADS> struct along_k {
    static const int elements = ROWS * STEP;

    CUDA_DEVICE static cuda_bf16 *vector_at(cuda_bf16 *tile, int row, int vector)
    {
        return tile + row * STEP + (vector ^ (row & 7)) * 8;
    }

    /* from: element [0][0] of the tile. Rows from `rows` on and elements from `inner` on are 0. */
    CUDA_DEVICE static void load_tile(cuda_bf16 *tile, const cuda_bf16 *from, int64_t stride, int rows, int inner)
    {
        const int vector = (int)threadIdx.x % 8, left = (inner - vector * 8) * 2;
        const unsigned bytes = left >= 16 ? 16 : left > 0 ? left : 0;

#pragma unroll
        for (int i = 0; i < ROWS * 8 / THREADS; i++) {
            const int row = (int)threadIdx.x / 8 + i * (THREADS / 8);
            const bool there = row < rows && bytes > 0;

            cuda_copy_async(vector_at(tile, row, vector), there ? from + row * stride + vector * 8 : from,
                            there ? bytes : 0);
        }
    }
};

/* `STEP` rows along K of COLUMNS elements each; BLOCKS: 64 columns of all rows lie one behind the
 * other, then the next 64. */
template <int COLUMNS, int THREADS, bool BLOCKS = false> struct across_k {
    static const int elements = COLUMNS * STEP, vectors = COLUMNS / 8;

    CUDA_DEVICE static cuda_bf16 *vector_at(cuda_bf16 *tile, int k, int vector)
    {
        if (BLOCKS)
            return tile + (vector / 8 * STEP + k) * 64 + (vector % 8 ^ (k & 7)) * 8;
        return tile + k * COLUMNS + (vector ^ (k & 7)) * 8;
    }

    CUDA_DEVICE static void load_tile(cuda_bf16 *tile, const cuda_bf16 *from, int64_t stride, int columns, int inner)
    {
        const int vector = (int)threadIdx.x % vectors, left = (columns - vector * 8) * 2;
        const unsigned bytes = left >= 16 ? 16 : left > 0 ? left : 0;

#pragma unroll
        for (int i = 0; i < STEP * vectors / THREADS; i++) {
            const int k = (int)threadIdx.x / vectors + i * (THREADS / vectors);
            const bool there = k < inner && bytes > 0;

            cuda_copy_async(vector_at(tile, k, vector), there ? from + k * stride + vector * 8 : from,
                            there ? bytes : 0);
        }
    }
};

/* ---- what is loaded ahead: the step behind the last one, over the ends of tiles ---- */

/* By rows: steps along K of each tile, part by part. */
template <int M, int N> struct rows_ahead {
    row_walk walk;
    row_tile tile;
    int64_t at;
    int step, slices;
    bool more;

    CUDA_DEVICE void start_tiles(const moe_product_t &p)
    {
        walk = row_walk_start();
        at = blockIdx.x;
        step = 0;
        slices = tiles_of(p.k, STEP);
        more = row_seek<M, N>(p, &walk, at, &tile);
    }

    CUDA_DEVICE int count_steps(const moe_product_t &p) const
    {
        return slices * p.parts;
    }

    /* Starts filling a stage; nothing behind the last tile. */
    template <bool TB, typename A, typename BT, typename BN>
    CUDA_DEVICE void fill_stage(const moe_product_t &p, cuda_bf16 *a_tile, cuda_bf16 *b_tile)
    {
        if (more) {
            const int part = step / slices, k = step % slices * STEP, which = part + tile.output;
            const cuda_bf16 *a = (const cuda_bf16 *)p.a[part] + tile.first * p.lda + k;
            const cuda_bf16 *b = (const cuda_bf16 *)p.b[which] + tile.group * p.group_b;

            A::load_tile(a_tile, a, p.lda, tile.rows, p.k - k);
            if (TB)
                BT::load_tile(b_tile, b + tile.column * p.ldb + k, p.ldb, p.n - tile.column, p.k - k);
            else
                BN::load_tile(b_tile, b + k * p.ldb + tile.column, p.ldb, p.n - tile.column, p.k - k);
            if (++step == count_steps(p)) {
                step = 0;
                at += gridDim.x;
                more = row_seek<M, N>(p, &walk, at, &tile);
            }
        }
        cuda_copy_commit();
    }
};

/* By cells: cells of each tile, part by part, steps along their rows. */
template <int M, int N> struct cells_ahead {
    cell_tile tile;
    cell_run run;
    int64_t at;
    int cell, part, row;
    bool more;

    CUDA_DEVICE void start_tiles(const moe_product_t &p)
    {
        at = blockIdx.x;
        cell = part = row = 0;
        run.first = 0;
        run.rows = 0;
        tile.row = tile.column = tile.group = tile.output = 0;
        more = cell_seek<M, N>(p, at, &tile);
        if (more)
            run = run_of(p, tile.group, 0);
        settle_tiles(p);
    }

    /* Moves on to rows that there are, if any. */
    CUDA_DEVICE void settle_tiles(const moe_product_t &p)
    {
        while (more && row >= run.rows) {
            row = 0;
            if (++part >= p.parts) {
                part = 0;
                if (++cell >= p.cells) {
                    cell = 0;
                    at += gridDim.x;
                    more = cell_seek<M, N>(p, at, &tile);
                }
            }
            if (more)
                run = run_of(p, tile.group, cell);
        }
    }

    template <typename A, typename B>
    CUDA_DEVICE void fill_stage(const moe_product_t &p, cuda_bf16 *a_tile, cuda_bf16 *b_tile)
    {
        if (more) {
            const int64_t first = run.first + row;

            A::load_tile(a_tile, (const cuda_bf16 *)p.a[part] + first * p.lda + tile.row, p.lda, p.m - tile.row,
                         run.rows - row);
            B::load_tile(b_tile, (const cuda_bf16 *)p.b[part + tile.output] + first * p.ldb + tile.column, p.ldb,
                         p.n - tile.column, run.rows - row);
            row += STEP;
            settle_tiles(p);
        }
        cuda_copy_commit();
    }
};

/* Stages that a tile by cells takes. */
CUDA_DEVICE int steps_of(const moe_product_t &p, int group)
{
    int steps = 0;

    for (int cell = 0; cell < p.cells; cell++)
        steps += tiles_of(run_of(p, group, cell).rows, STEP) * p.parts;
    return steps;
}

/* ---- results ---- */

CUDA_DEVICE void store_pair(cuda_bf16 *to, float x, float y, bool add)
{
    moe_vector<cuda_bf16, 2> v;

    if (add) {
        v = *(const moe_vector<cuda_bf16, 2> *)to;
        x += cuda_float(v.at[0]);
        y += cuda_float(v.at[1]);
    }
    v.at[0] = cuda_from_float<cuda_bf16>(x);
    v.at[1] = cuda_from_float<cuda_bf16>(y);
    *(moe_vector<cuda_bf16, 2> *)to = v;
}

CUDA_DEVICE void store_pair(float *to, float x, float y, bool add)
{
    moe_vector<float, 2> v;

    v.at[0] = x;
    v.at[1] = y;
    if (add) {
        const moe_vector<float, 2> old = *(const moe_vector<float, 2> *)to;

        v.at[0] += old.at[0];
        v.at[1] += old.at[1];
    }
    *(moe_vector<float, 2> *)to = v;
}

#endif
