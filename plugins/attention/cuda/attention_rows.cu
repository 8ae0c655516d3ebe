/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_rows.cu: RMSNorm, RoPE and row sums of the attention block, and the keys of latent
 * attention, both ways. T: the type of tensors; S: of sums. No atomics, every sum in a fixed order:
 * the same inputs give the same bits. */
#include "cuda/device.cuh"

/* One block per row: normalized = x / rms(x), inv_rms = 1 / rms(x), n = normalized * gain. n is
 * made of the rounded `normalized`, as apply_gain makes it again. Rows of x are `stride` elements
 * apart. */
template <typename T>
CUDA_DEVICE void normalize_rows(T *normalized, cuda_sum_t<T> *inv_rms, T *n, const T *x, uint32_t stride, const T *gain,
                                uint32_t d, double eps)
{
    typedef cuda_sum_t<T> S;
    __shared__ S room[32];
    const size_t row = (size_t)blockIdx.x * d, from = (size_t)blockIdx.x * stride;
    S squares = 0, inv;

    for (uint32_t i = threadIdx.x; i < d; i += blockDim.x) {
        const S value = cuda_float(x[from + i]);

        squares += value * value;
    }
    squares = cuda_block_sum(squares, room);
    inv = (S)1 / sqrt(squares / (S)d + (S)eps);
    if (threadIdx.x == 0)
        inv_rms[blockIdx.x] = inv;
    for (uint32_t i = threadIdx.x; i < d; i += blockDim.x) {
        const T value = cuda_from_float<T>(cuda_float(x[from + i]) * inv);

        normalized[row + i] = value;
        n[row + i] = cuda_from_float<T>(cuda_float(value) * cuda_float(gain[i]));
    }
}

/* One block per row. */
template <typename T> CUDA_DEVICE void apply_gain(T *n, const T *normalized, const T *gain, uint32_t d)
{
    const size_t row = (size_t)blockIdx.x * d;

    for (uint32_t i = threadIdx.x; i < d; i += blockDim.x)
        n[row + i] = cuda_from_float<T>(cuda_float(normalized[row + i]) * cuda_float(gain[i]));
}

/* Two elements that one load or store moves. */
template <typename T> struct alignas(2 * sizeof(T)) couple {
    T first, second;
};

template <typename T> CUDA_DEVICE void turn_pair(T &low, T &high, cuda_sum_t<T> cosine, cuda_sum_t<T> sine)
{
    const cuda_sum_t<T> a = cuda_float(low), b = cuda_float(high);

    low = cuda_from_float<T>(a * cosine - b * sine);
    high = cuda_from_float<T>(b * cosine + a * sine);
}

/* Block i writes where document i begins for each of its tokens, the last block for those behind
 * all documents their own number. */
CUDA_DEVICE void starts(uint32_t *starts, const uint32_t *ends, uint32_t documents, uint32_t tokens)
{
    const uint32_t begin = blockIdx.x > 0 ? ends[blockIdx.x - 1] : 0;
    const uint32_t end = blockIdx.x < documents ? ends[blockIdx.x] : tokens;

    for (uint32_t t = begin + threadIdx.x; t < end; t += blockDim.x)
        starts[t] = blockIdx.x < documents ? begin : t;
}

/* In a token's document, or without `starts` in its sequence. */
CUDA_DEVICE uint32_t position_of(const uint32_t *starts, uint32_t token, uint32_t sequence)
{
    return starts != 0 ? token - starts[token] : token % sequence;
}

/* One block per token: rotates its vectors [heads, 2 * half] by the position's angle, or back with
 * sign -1. rope: [sequence, 2 * half], the cosines of a position, then the sines. to may be from;
 * both begin at a multiple of two elements. */
template <typename T>
CUDA_DEVICE void rotate_heads(T *to, const T *from, const cuda_sum_t<T> *rope, const uint32_t *starts, uint32_t heads,
                              uint32_t sequence, uint32_t half, int32_t sign)
{
    typedef cuda_sum_t<T> S;
    const size_t token = (size_t)blockIdx.x * heads * 2 * half;
    const S *angle = rope + (size_t)position_of(starts, blockIdx.x, sequence) * 2 * half;
    const S turns = (S)sign;
    const uint32_t step = half % 2 == 0 ? 2 : 1;

    for (uint32_t p = step * threadIdx.x; p < heads * half; p += step * blockDim.x) {
        const uint32_t head = p / half, i = p % half;
        const size_t at = token + (size_t)head * 2 * half + i;

        if (step == 2) {
            couple<T> low = *(const couple<T> *)(from + at), high = *(const couple<T> *)(from + at + half);

            turn_pair(low.first, high.first, angle[i], turns * angle[half + i]);
            turn_pair(low.second, high.second, angle[i + 1], turns * angle[half + i + 1]);
            *(couple<T> *)(to + at) = low;
            *(couple<T> *)(to + at + half) = high;
        } else {
            T low = from[at], high = from[at + half];

            turn_pair(low, high, angle[i], turns * angle[half + i]);
            to[at] = low;
            to[at + half] = high;
        }
    }
}

/* One warp per vector: out[b, h, position] = sum over dim of a * b; a, b: [tokens, heads, dim]. */
template <typename T>
CUDA_DEVICE void dot_rows(cuda_sum_t<T> *out, const T *a, const T *b, size_t tokens, uint32_t heads, uint32_t sequence,
                          uint32_t dim)
{
    typedef cuda_sum_t<T> S;
    const size_t vector = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / CUDA_WARP;
    const uint32_t lane = threadIdx.x % CUDA_WARP;
    const size_t token = vector / heads, head = vector % heads;
    S sum = 0;

    if (vector >= tokens * heads)
        return;
    for (uint32_t i = lane; i < dim; i += CUDA_WARP)
        sum += cuda_float(a[vector * dim + i]) * cuda_float(b[vector * dim + i]);
    sum = cuda_warp_sum(sum);
    if (lane == 0)
        out[(token / sequence * heads + head) * sequence + token % sequence] = sum;
}

/* A block of 8 warps sums 32 columns: dgain = sum over the rows of dn * normalized. */
template <typename T>
CUDA_DEVICE void gain_gradient(cuda_sum_t<T> *dgain, const cuda_sum_t<T> *dn, const T *normalized, size_t rows,
                               uint32_t d)
{
    typedef cuda_sum_t<T> S;
    __shared__ S parts[8][CUDA_WARP];
    const uint32_t lane = threadIdx.x % CUDA_WARP, warp = threadIdx.x / CUDA_WARP;
    const size_t column = (size_t)blockIdx.x * CUDA_WARP + lane;
    S sum = 0;

    if (column < d)
        for (size_t row = warp; row < rows; row += 8)
            sum += dn[row * d + column] * cuda_float(normalized[row * d + column]);
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || column >= d)
        return;
    for (int w = 1; w < 8; w++)
        sum += parts[w][lane];
    dgain[column] = sum;
}

/* One block per row: dx = dy + (g - normalized * mean(g * normalized)) / rms, g = dn * gain. */
template <typename T>
CUDA_DEVICE void normalize_backward(T *dx, const T *dy, const cuda_sum_t<T> *dn, const T *gain, const T *normalized,
                                    const cuda_sum_t<T> *inv_rms, uint32_t d)
{
    typedef cuda_sum_t<T> S;
    __shared__ S room[32];
    const size_t row = (size_t)blockIdx.x * d;
    const S inv = inv_rms[blockIdx.x];
    S mean = 0;

    for (uint32_t i = threadIdx.x; i < d; i += blockDim.x)
        mean += dn[row + i] * cuda_float(gain[i]) * cuda_float(normalized[row + i]);
    mean = cuda_block_sum(mean, room) / (S)d;
    for (uint32_t i = threadIdx.x; i < d; i += blockDim.x) {
        const S g = dn[row + i] * cuda_float(gain[i]);

        dx[row + i] = cuda_from_float<T>(cuda_float(dy[row + i]) + (g - cuda_float(normalized[row + i]) * mean) * inv);
    }
}

/* ---- latent attention: heads [heads, own + 2 * half] of a token, the last 2 * half turn ---- */

/* One block per token: rotates that part by the position's angle, or back; to may be from. */
template <typename T>
CUDA_DEVICE void rotate_part(T *to, const T *from, const cuda_sum_t<T> *rope, const uint32_t *starts, uint32_t heads,
                             uint32_t own, uint32_t sequence, uint32_t half, int32_t sign)
{
    typedef cuda_sum_t<T> S;
    const uint32_t width = own + 2 * half;
    const size_t token = (size_t)blockIdx.x * heads * width;
    const S *angle = rope + (size_t)position_of(starts, blockIdx.x, sequence) * 2 * half;

    for (uint32_t p = threadIdx.x; p < heads * half; p += blockDim.x) {
        const size_t at = token + (size_t)(p / half) * width + own + p % half;
        T low = from[at], high = from[at + half];

        turn_pair(low, high, angle[p % half], (S)sign * angle[half + p % half]);
        to[at] = low;
        to[at + half] = high;
    }
    if (to != from)
        for (uint32_t i = threadIdx.x; i < heads * own; i += blockDim.x)
            to[token + (size_t)(i / own) * width + i % own] = from[token + (size_t)(i / own) * width + i % own];
}

/* One block per token: keys of all heads: the part of each [heads, own] and the one they have in
 * common, which is not rotated yet; tokens of `common` are `stride` elements apart. */
template <typename T>
CUDA_DEVICE void join_keys(T *keys, const T *parts, const T *common, uint32_t stride, const cuda_sum_t<T> *rope,
                           const uint32_t *starts, uint32_t heads, uint32_t own, uint32_t sequence, uint32_t half)
{
    const uint32_t width = own + 2 * half;
    const size_t token = (size_t)blockIdx.x * heads * width, part = (size_t)blockIdx.x * heads * own;
    const cuda_sum_t<T> *angle = rope + (size_t)position_of(starts, blockIdx.x, sequence) * 2 * half;
    const T *shared = common + (size_t)blockIdx.x * stride;

    for (uint32_t i = threadIdx.x; i < half; i += blockDim.x) {
        T low = shared[i], high = shared[i + half];

        turn_pair(low, high, angle[i], angle[half + i]);
        for (uint32_t h = 0; h < heads; h++) {
            keys[token + (size_t)h * width + own + i] = low;
            keys[token + (size_t)h * width + own + half + i] = high;
        }
    }
    for (uint32_t i = threadIdx.x; i < heads * own; i += blockDim.x)
        keys[token + (size_t)(i / own) * width + i % own] = parts[part + i];
}

/* The gradient of join_keys: of the common part the sum over heads, in order, rotated back. */
template <typename T>
CUDA_DEVICE void split_keys(T *parts, T *common, uint32_t stride, const T *keys, const cuda_sum_t<T> *rope,
                            const uint32_t *starts, uint32_t heads, uint32_t own, uint32_t sequence, uint32_t half)
{
    typedef cuda_sum_t<T> S;
    const uint32_t width = own + 2 * half;
    const size_t token = (size_t)blockIdx.x * heads * width, part = (size_t)blockIdx.x * heads * own;
    const S *angle = rope + (size_t)position_of(starts, blockIdx.x, sequence) * 2 * half;
    T *shared = common + (size_t)blockIdx.x * stride;

    for (uint32_t i = threadIdx.x; i < half; i += blockDim.x) {
        const S c = angle[i], s = -angle[half + i];
        S low = 0, high = 0;

        for (uint32_t h = 0; h < heads; h++) {
            low += cuda_float(keys[token + (size_t)h * width + own + i]);
            high += cuda_float(keys[token + (size_t)h * width + own + half + i]);
        }
        shared[i] = cuda_from_float<T>(low * c - high * s);
        shared[i + half] = cuda_from_float<T>(high * c + low * s);
    }
    for (uint32_t i = threadIdx.x; i < heads * own; i += blockDim.x)
        parts[part + i] = keys[token + (size_t)(i / own) * width + i % own];
}

/* One block per row: as normalize_backward without dy, to rows that are `stride` elements apart. */
template <typename T>
CUDA_DEVICE void latent_backward(T *dx, uint32_t stride, const cuda_sum_t<T> *dn, const T *gain, const T *normalized,
                                 const cuda_sum_t<T> *inv_rms, uint32_t d)
{
    typedef cuda_sum_t<T> S;
    __shared__ S room[32];
    const size_t row = (size_t)blockIdx.x * d, to = (size_t)blockIdx.x * stride;
    const S inv = inv_rms[blockIdx.x];
    S mean = 0;

    for (uint32_t i = threadIdx.x; i < d; i += blockDim.x)
        mean += dn[row + i] * cuda_float(gain[i]) * cuda_float(normalized[row + i]);
    mean = cuda_block_sum(mean, room) / (S)d;
    for (uint32_t i = threadIdx.x; i < d; i += blockDim.x)
        dx[to + i] =
            cuda_from_float<T>((dn[row + i] * cuda_float(gain[i]) - cuda_float(normalized[row + i]) * mean) * inv);
}

template <typename S> CUDA_DEVICE void accumulate_sums(S *sum, const S *term, size_t count)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < count)
        sum[i] += term[i];
}

#define INSTANCES(T, name)                                                                                             \
    extern "C" __global__ void attn_normalize_##name(T *normalized, cuda_sum_t<T> *inv_rms, T *n, const T *x,          \
                                                     uint32_t stride, const T *gain, uint32_t d, double eps)           \
    {                                                                                                                  \
        normalize_rows<T>(normalized, inv_rms, n, x, stride, gain, d, eps);                                            \
    }                                                                                                                  \
    extern "C" __global__ void attn_starts_##name(uint32_t *to, const uint32_t *ends, uint32_t documents,              \
                                                  uint32_t tokens)                                                     \
    {                                                                                                                  \
        starts(to, ends, documents, tokens);                                                                           \
    }                                                                                                                  \
    extern "C" __global__ void attn_rotate_part_##name(T *to, const T *from, const cuda_sum_t<T> *rope,                \
                                                       const uint32_t *starts, uint32_t heads, uint32_t own,           \
                                                       uint32_t sequence, uint32_t half, int32_t sign)                 \
    {                                                                                                                  \
        rotate_part<T>(to, from, rope, starts, heads, own, sequence, half, sign);                                      \
    }                                                                                                                  \
    extern "C" __global__ void attn_join_keys_##name(T *keys, const T *parts, const T *common, uint32_t stride,        \
                                                     const cuda_sum_t<T> *rope, const uint32_t *starts,                \
                                                     uint32_t heads, uint32_t own, uint32_t sequence, uint32_t half)   \
    {                                                                                                                  \
        join_keys<T>(keys, parts, common, stride, rope, starts, heads, own, sequence, half);                           \
    }                                                                                                                  \
    extern "C" __global__ void attn_split_keys_##name(T *parts, T *common, uint32_t stride, const T *keys,             \
                                                      const cuda_sum_t<T> *rope, const uint32_t *starts,               \
                                                      uint32_t heads, uint32_t own, uint32_t sequence, uint32_t half)  \
    {                                                                                                                  \
        split_keys<T>(parts, common, stride, keys, rope, starts, heads, own, sequence, half);                          \
    }                                                                                                                  \
    extern "C" __global__ void attn_latent_backward_##name(T *dx, uint32_t stride, const cuda_sum_t<T> *dn,            \
                                                           const T *gain, const T *normalized,                         \
                                                           const cuda_sum_t<T> *inv_rms, uint32_t d)                   \
    {                                                                                                                  \
        latent_backward<T>(dx, stride, dn, gain, normalized, inv_rms, d);                                              \
    }                                                                                                                  \
    extern "C" __global__ void attn_apply_gain_##name(T *n, const T *normalized, const T *gain, uint32_t d)            \
    {                                                                                                                  \
        apply_gain<T>(n, normalized, gain, d);                                                                         \
    }                                                                                                                  \
    extern "C" __global__ void attn_rotate_##name(T *to, const T *from, const cuda_sum_t<T> *rope,                     \
                                                  const uint32_t *starts, uint32_t heads, uint32_t sequence,           \
                                                  uint32_t half, int32_t sign)                                         \
    {                                                                                                                  \
        rotate_heads<T>(to, from, rope, starts, heads, sequence, half, sign);                                          \
    }                                                                                                                  \
    extern "C" __global__ void attn_dot_rows_##name(cuda_sum_t<T> *out, const T *a, const T *b, size_t tokens,         \
                                                    uint32_t heads, uint32_t sequence, uint32_t dim)                   \
    {                                                                                                                  \
        dot_rows<T>(out, a, b, tokens, heads, sequence, dim);                                                          \
    }                                                                                                                  \
    extern "C" __global__ void attn_gain_gradient_##name(cuda_sum_t<T> *dgain, const cuda_sum_t<T> *dn,                \
                                                         const T *normalized, size_t rows, uint32_t d)                 \
    {                                                                                                                  \
        gain_gradient<T>(dgain, dn, normalized, rows, d);                                                              \
    }                                                                                                                  \
    extern "C" __global__ void attn_normalize_backward_##name(T *dx, const T *dy, const cuda_sum_t<T> *dn,             \
                                                              const T *gain, const T *normalized,                      \
                                                              const cuda_sum_t<T> *inv_rms, uint32_t d)                \
    {                                                                                                                  \
        normalize_backward<T>(dx, dy, dn, gain, normalized, inv_rms, d);                                               \
    }                                                                                                                  \
    extern "C" __global__ void attn_accumulate_##name(cuda_sum_t<T> *sum, const cuda_sum_t<T> *term, size_t count)     \
    {                                                                                                                  \
        accumulate_sums(sum, term, count);                                                                             \
    }

INSTANCES(float, f32)
INSTANCES(double, f64)
INSTANCES(cuda_bf16, bf16)
