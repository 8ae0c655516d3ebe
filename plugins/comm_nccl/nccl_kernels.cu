// SPDX-FileCopyrightText: The libdualpipe authors
// SPDX-License-Identifier: MIT
// nccl_kernels.cu: what NCCL does not do: comparing heads, packing rows by counts that live on the
// device, reductions in rank order.
#include "cuda/device.cuh"

#include "comm_nccl/mailbox.h"

// The first fault of a group is kept. The host reads the words after it has seen the kind.
static CUDA_DEVICE void report(nccl_mailbox *m, uint32_t kind, uint64_t object, const uint32_t *words, int n)
{
    if (cuda_load_acquire(&m->aborted) != 0u || atomicCAS(&m->claim, 0u, 1u) != 0u)
        return;
    m->object = object;
    for (int i = 0; i < n; i++)
        m->words[i] = words[i];
    __threadfence_system();
    cuda_store_release(&m->kind, kind);
}

// Heads of `count` ranks but `skip` (-1: none), four words each, against the one that is wanted.
extern "C" __global__ void comm_nccl_check_heads(const uint32_t *got, uint32_t count, int32_t skip, uint32_t w0,
                                                 uint32_t w1, uint32_t w2, uint32_t w3, uint32_t kind, uint64_t object,
                                                 nccl_mailbox *mailbox)
{
    for (uint32_t p = threadIdx.x; p < count; p += blockDim.x) {
        const uint32_t *g = got + 4 * p;

        if ((int32_t)p == skip || (g[0] == w0 && g[1] == w1 && g[2] == w2 && g[3] == w3))
            continue;
        uint32_t words[9] = {w0, w1, w2, w3, g[0], g[1], g[2], g[3], p};
        report(mailbox, kind, object, words, 9);
    }
}

// Rows for rank blockIdx.y go to its stretch of `staging`, our own straight to where they are
// received. A count that does not fit is reported and sent as -1.
extern "C" __global__ void comm_nccl_pack_rows(const uint4 *send, const int32_t *offsets, const int32_t *counts,
                                               uint64_t row_vectors, int32_t capacity, int32_t rank, uint4 *staging,
                                               int32_t *counts_out, uint4 *rows_in, int32_t *counts_in, uint32_t number,
                                               uint64_t object, nccl_mailbox *mailbox)
{
    int32_t p = (int32_t)blockIdx.y, count = counts[p];
    uint64_t stretch = (uint64_t)p * (uint64_t)capacity * row_vectors;
    const uint4 *from = send + (int64_t)offsets[p] * (int64_t)row_vectors;
    uint4 *to = (p == rank ? rows_in : staging) + stretch;
    bool fits = count >= 0 && count <= capacity;

    if (blockIdx.x == 0 && threadIdx.x == 0) {
        uint32_t words[3] = {number, (uint32_t)p, (uint32_t)count};

        if (!fits)
            report(mailbox, NCCL_FAULT_OVERFLOW, object, words, 3);
        (p == rank ? counts_in : counts_out)[p] = fits ? count : -1;
    }
    if (!fits)
        return;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (uint64_t)count * row_vectors;
         i += (uint64_t)gridDim.x * blockDim.x)
        cuda_store_stream(to + i, cuda_load_stream(from + i));
}

// The same without the rows: `table` tells the host first rows and counts, a count that does not
// fit as none.
extern "C" __global__ void comm_nccl_count_rows(const int32_t *offsets, const int32_t *counts, int32_t ranks,
                                                int32_t rank, int32_t capacity, int32_t *table, int32_t *counts_out,
                                                int32_t *counts_in, uint32_t number, uint64_t object,
                                                nccl_mailbox *mailbox)
{
    for (int32_t p = (int32_t)threadIdx.x; p < ranks; p += (int32_t)blockDim.x) {
        int32_t count = counts[p];
        bool fits = count >= 0 && count <= capacity;
        uint32_t words[3] = {number, (uint32_t)p, (uint32_t)count};

        if (!fits)
            report(mailbox, NCCL_FAULT_OVERFLOW, object, words, 3);
        (p == rank ? counts_in : counts_out)[p] = fits ? count : -1;
        table[p] = offsets[p];
        table[ranks + p] = fits ? count : 0;
    }
}

// What other ranks say they have sent; where there is a `table`, for the host as well.
extern "C" __global__ void comm_nccl_check_counts(int32_t *counts, int32_t *table, int32_t ranks, int32_t rank,
                                                  int32_t capacity, uint32_t number, uint64_t object,
                                                  nccl_mailbox *mailbox)
{
    for (int32_t p = (int32_t)threadIdx.x; p < ranks; p += (int32_t)blockDim.x) {
        uint32_t words[3] = {number, (uint32_t)p, (uint32_t)counts[p]};

        if (p == rank)
            continue;
        if (counts[p] < 0 || counts[p] > capacity) {
            report(mailbox, NCCL_FAULT_ROWS, object, words, 3);
            counts[p] = 0;
        }
        if (table != nullptr)
            table[p] = counts[p];
    }
}

// own[i] = sum over ranks in rank order; rank r's elements lie at staging + r * stride, ours in
// own.
template <typename T>
static CUDA_DEVICE void sum_slices(T *own, const T *staging, int32_t ranks, int32_t rank, uint64_t stride,
                                   uint64_t count)
{
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x) {
        T total = rank == 0 ? own[i] : staging[i];

        for (int32_t r = 1; r < ranks; r++)
            total += r == rank ? own[i] : staging[(uint64_t)r * stride + i];
        own[i] = total;
    }
}

extern "C" __global__ void comm_nccl_sum_f32(float *own, const float *staging, int32_t ranks, int32_t rank,
                                             uint64_t stride, uint64_t count)
{
    sum_slices(own, staging, ranks, rank, stride, count);
}

extern "C" __global__ void comm_nccl_sum_f64(double *own, const double *staging, int32_t ranks, int32_t rank,
                                             uint64_t stride, uint64_t count)
{
    sum_slices(own, staging, ranks, rank, stride, count);
}

extern "C" __global__ void comm_nccl_sum_i64(uint64_t *own, const uint64_t *staging, int32_t ranks, int32_t rank,
                                             uint64_t stride, uint64_t count)
{
    sum_slices(own, staging, ranks, rank, stride, count);
}
