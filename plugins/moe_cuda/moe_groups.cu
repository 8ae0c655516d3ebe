/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_groups.cu: what products by a library need: pointers and sizes of all groups, and rows that
 * go where they are sent from. */
#include "moe_real.cuh"

/* Group i of a product: C [m, n] of A and B, by rows. */
struct group {
    void *a, *b, *c;
    int m, n, k;
};

CUDA_DEVICE group find_group(const moe_product_t &p, int i, int form, int c_bytes)
{
    const bool cells = form == MOE_FORM_TN;
    const int of = i % p.groups, output = i / p.groups;
    const int64_t first = p.first[(int64_t)of * p.cells];
    group g;
    int rows = 0;

    for (int cell = 0; cell < p.cells; cell++)
        rows += p.rows[(int64_t)of * p.cells + cell];
    g.a = (char *)p.a[0] + first * p.lda * 2;
    g.b = (char *)p.b[output] + (cells ? first * p.ldb : of * p.group_b) * 2;
    g.c = (char *)p.c[output] + (cells ? of * p.group_c : first * p.ldc) * c_bytes;
    g.m = cells ? p.m : rows;
    g.n = p.n;
    g.k = cells ? rows : p.parts == 1 ? p.k : 2 * ((p.k + MOE_CUTLASS_STEP - 1) / MOE_CUTLASS_STEP * MOE_CUTLASS_STEP);
    return g;
}

/* One block. A group is an output of an expert. Where there is nothing to sum there is no product:
 * it would begin with what is in its registers. */
extern "C" __global__ void __launch_bounds__(MOE_SCAN_THREADS)
    moe_cuda_group_sizes(const moe_product_t p, const moe_cutlass_groups_t t, int form, int c_bytes)
{
    if (p.parts == 2 && threadIdx.x == 0) {
        t.second->a_rows = (int)(((const char *)p.a[1] - (const char *)p.a[0]) / (2 * p.lda));
        t.second->b_rows = (int)(((const char *)p.b[1] - (const char *)p.b[0]) / (2 * p.ldb));
        t.second->k = p.k;
    }

    for (int i = (int)threadIdx.x; i < p.groups * p.outputs; i += (int)blockDim.x) {
        const group g = find_group(p, i, form, c_bytes);

        t.at[0][i] = g.a;
        t.at[1][i] = g.b;
        t.at[2][i] = g.c;
        t.ld[0][i] = p.lda;
        t.ld[1][i] = p.ldb;
        t.ld[2][i] = p.ldc;
        t.sizes[3 * i] = g.k > 0 ? g.m : 0;
        t.sizes[3 * i + 1] = g.n;
        t.sizes[3 * i + 2] = g.k;
    }
}

/* Rows of all groups from a to c, where the map says; a block takes one after the other. */
template <int W> CUDA_DEVICE void place_vectors(const moe_product_t &p)
{
    typedef moe_vector<cuda_bf16, W> vector;
    const int all = p.first[p.groups - 1] + p.rows[p.groups - 1];

    for (int row = (int)blockIdx.x; row < all; row += (int)gridDim.x) {
        const int to = p.map[row];
        const vector *from = (const vector *)((const cuda_bf16 *)p.a[0] + row * p.lda);
        vector *out = (vector *)((cuda_bf16 *)p.c[0] + to * p.ldc);

        for (int i = (int)threadIdx.x; i < p.n / W && to >= 0; i += (int)blockDim.x)
            out[i] = from[i];
    }
}

/* As many blocks of a multiprocessor as a launch has; eight elements at once where all rows begin
 * on as many. */
extern "C" __global__ void __launch_bounds__(256, 8) moe_cuda_place_rows(const moe_product_t p)
{
    if ((p.n | p.lda | p.ldc) % 8 == 0 && ((uintptr_t)p.a[0] | (uintptr_t)p.c[0]) % 16 == 0)
        place_vectors<8>(p);
    else
        place_vectors<2>(p);
}
