/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_scores.cu: softmax on blocks of scaled logits [heads, rows, columns], and its gradient.
 * T: the type of tensors; S: of logits and sums. Rows are `pitch` scores apart.
 *
 * Row r of the block is query first + r, column c key keys + c. A query sees the keys up to its own
 * position: all of them, or with `starts` those of its document, from starts[query] on. What it
 * does not see becomes 0. Statistics are [heads, sequence]: the largest logit and 1 / sum of
 * exp(logit - largest). */
#include "cuda/device.cuh"

struct score_row {
    size_t scores;       /* where the row's scores start */
    size_t stats;        /* where its statistics are */
    uint32_t from, seen; /* columns: the first that it sees, and those up to its own key */
};

CUDA_DEVICE score_row find_row(uint32_t rows, uint32_t columns, uint32_t pitch, uint32_t first, uint32_t keys,
                               const uint32_t *starts, uint32_t sequence)
{
    const uint32_t head = blockIdx.x / rows, query = first + blockIdx.x % rows;
    score_row row;

    row.scores = (size_t)blockIdx.x * pitch;
    row.stats = (size_t)head * sequence + query;
    row.from = starts != 0 ? starts[query] - keys : 0;
    row.seen = query + 1 - keys < columns ? query + 1 - keys : columns;
    return row;
}

/* One block per row. p may be the logits themselves where T is S. */
template <typename T>
CUDA_DEVICE void softmax(T *p, const cuda_sum_t<T> *logits, cuda_sum_t<T> *largest, cuda_sum_t<T> *inv_sum,
                         uint32_t rows, uint32_t columns, uint32_t pitch, uint32_t first, uint32_t keys,
                         const uint32_t *starts, uint32_t sequence)
{
    typedef cuda_sum_t<T> S;
    __shared__ S room[32];
    const score_row row = find_row(rows, columns, pitch, first, keys, starts, sequence);
    S max = logits[row.scores + row.from], sum = 0, inv;

    for (uint32_t c = row.from + threadIdx.x; c < row.seen; c += blockDim.x)
        max = max < logits[row.scores + c] ? logits[row.scores + c] : max;
    max = cuda_block_max(max, room);
    for (uint32_t c = row.from + threadIdx.x; c < row.seen; c += blockDim.x)
        sum += exp(logits[row.scores + c] - max);
    sum = cuda_block_sum(sum, room);
    inv = (S)1 / sum;
    for (uint32_t c = threadIdx.x; c < columns; c += blockDim.x)
        p[row.scores + c] =
            cuda_from_float<T>(c >= row.from && c < row.seen ? exp(logits[row.scores + c] - max) * inv : (S)0);
    if (threadIdx.x == 0) {
        largest[row.stats] = max;
        inv_sum[row.stats] = inv;
    }
}

/* One block per row: p again, and ds = p * (dp - delta). p may be the logits, ds dp, for T = S. */
template <typename T>
CUDA_DEVICE void softmax_backward(T *p, T *ds, const cuda_sum_t<T> *logits, const cuda_sum_t<T> *dp,
                                  const cuda_sum_t<T> *largest, const cuda_sum_t<T> *inv_sum,
                                  const cuda_sum_t<T> *delta, uint32_t rows, uint32_t columns, uint32_t pitch,
                                  uint32_t first, uint32_t keys, const uint32_t *starts, uint32_t sequence)
{
    typedef cuda_sum_t<T> S;
    const score_row row = find_row(rows, columns, pitch, first, keys, starts, sequence);
    const S max = largest[row.stats], inv = inv_sum[row.stats], shift = delta[row.stats];

    for (uint32_t c = threadIdx.x; c < columns; c += blockDim.x) {
        const size_t at = row.scores + c;
        S probability = 0, gradient = 0;

        if (c >= row.from && c < row.seen) {
            probability = exp(logits[at] - max) * inv;
            gradient = probability * (dp[at] - shift);
        }
        p[at] = cuda_from_float<T>(probability);
        ds[at] = cuda_from_float<T>(gradient);
    }
}

/* Sums [heads, sequence, dim] become a tensor [sequence, heads, dim] with tokens `width` apart. */
template <typename T>
CUDA_DEVICE void store_heads(T *to, const cuda_sum_t<T> *from, uint32_t heads, uint32_t sequence, uint32_t dim,
                             size_t width)
{
    const size_t count = (size_t)heads * sequence * dim, step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const size_t column = i % dim, token = i / dim % sequence, head = i / dim / sequence;

        to[token * width + head * dim + column] = cuda_from_float<T>(from[i]);
    }
}

#define INSTANCES(T, name)                                                                                             \
    extern "C" __global__ void attn_softmax_##name(                                                                    \
        T *p, const cuda_sum_t<T> *logits, cuda_sum_t<T> *largest, cuda_sum_t<T> *inv_sum, uint32_t rows,              \
        uint32_t columns, uint32_t pitch, uint32_t first, uint32_t keys, const uint32_t *starts, uint32_t sequence)    \
    {                                                                                                                  \
        softmax<T>(p, logits, largest, inv_sum, rows, columns, pitch, first, keys, starts, sequence);                  \
    }                                                                                                                  \
    extern "C" __global__ void attn_softmax_backward_##name(                                                           \
        T *p, T *ds, const cuda_sum_t<T> *logits, const cuda_sum_t<T> *dp, const cuda_sum_t<T> *largest,               \
        const cuda_sum_t<T> *inv_sum, const cuda_sum_t<T> *delta, uint32_t rows, uint32_t columns, uint32_t pitch,     \
        uint32_t first, uint32_t keys, const uint32_t *starts, uint32_t sequence)                                      \
    {                                                                                                                  \
        softmax_backward<T>(p, ds, logits, dp, largest, inv_sum, delta, rows, columns, pitch, first, keys, starts,     \
                            sequence);                                                                                 \
    }                                                                                                                  \
    extern "C" __global__ void attn_store_heads_##name(T *to, const cuda_sum_t<T> *from, uint32_t heads,               \
                                                       uint32_t sequence, uint32_t dim, size_t width)                  \
    {                                                                                                                  \
        store_heads<T>(to, from, heads, sequence, dim, width);                                                         \
    }

INSTANCES(float, f32)
INSTANCES(double, f64)
INSTANCES(cuda_bf16, bf16)
