/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_rows.cu: RMSNorm, RoPE and row sums of the attention block, and the keys of latent
 * attention, both ways. T: the type of tensors; S: of sums. No atomics, every sum in a fixed order:
 * the same inputs give the same bits.
 *
 * A thread takes the W elements of 16 bytes at a time, and loads several of these before it stores.
 * With V, where everything is aligned and all sizes are multiples of W, each is one access; else
 * elements are taken one by one, and added in the same order. */
#include "cuda/device.cuh"

template <typename T> using sums = cuda_vector<cuda_sum_t<T>, cuda_width<T>>;

/* Calls body<T, V>. */
#define BY_ALIGNMENT(aligned, T, body, ...) ((aligned) ? body<T, true>(__VA_ARGS__) : body<T, false>(__VA_ARGS__))

/* Vectors that a thread loads before it uses the first. */
template <bool V> constexpr int at_once = V ? 4 : 1;

/* ---- norms: one block per row, which its threads hold, at_once vectors each; of a longer row the
 * end is held, and the rest read again ---- */

template <int W> CUDA_DEVICE uint32_t vector_place(uint32_t base, int k)
{
    return base + (k * blockDim.x + threadIdx.x) * W;
}

template <bool V, typename T, int W>
CUDA_DEVICE void read_row(cuda_vector<T, W> (&held)[at_once<V>], const T *row, uint32_t base, uint32_t d)
{
#pragma unroll
    for (int k = 0; k < at_once<V>; k++)
        held[k] = cuda_read<V, W>(row, vector_place<W>(base, k), d);
}

template <typename T> CUDA_DEVICE cuda_vector<T> with_gain(const cuda_vector<T> &v, cuda_vector<T> gain)
{
    for (int e = 0; e < cuda_width<T>; e++)
        gain.at[e] = cuda_from_float<T>(cuda_float(v.at[e]) * cuda_float(gain.at[e]));
    return gain;
}

/* normalized = x / rms(x), inv_rms = 1 / rms(x), n = normalized * gain. n is made of the rounded
 * `normalized`, as apply_gain makes it again. Rows of x are `stride` elements apart. */
template <typename T, bool V>
CUDA_DEVICE void normalize_rows(T *normalized, cuda_sum_t<T> *inv_rms, T *n, const T *x, uint32_t stride, const T *gain,
                                uint32_t d, double eps)
{
    typedef cuda_sum_t<T> S;
    __shared__ S room[32];
    const size_t row = (size_t)blockIdx.x * d;
    const uint32_t step = at_once<V> * blockDim.x * cuda_width<T>;
    cuda_vector<T> held[at_once<V>], gains[at_once<V>];
    uint32_t base = 0;
    S squares = 0, inv;

    x += (size_t)blockIdx.x * stride;
    for (;; base += step) {
        read_row<V>(held, x, base, d);
        read_row<V>(gains, gain, base, d);
        for (int k = 0; k < at_once<V>; k++)
            for (int e = 0; e < cuda_width<T>; e++)
                squares += cuda_float(held[k].at[e]) * cuda_float(held[k].at[e]);
        if (base + step >= d)
            break;
    }
    squares = cuda_block_sum(squares, room);
    inv = (S)1 / sqrt(squares / (S)d + (S)eps);
    if (threadIdx.x == 0)
        inv_rms[blockIdx.x] = inv;
    for (;; base -= step) {
        for (int k = 0; k < at_once<V>; k++) {
            const uint32_t i = vector_place<cuda_width<T>>(base, k);

            for (int e = 0; e < cuda_width<T>; e++)
                held[k].at[e] = cuda_from_float<T>(cuda_float(held[k].at[e]) * inv);
            cuda_write<V>(normalized + row, i, d, held[k]);
            cuda_write<V>(n + row, i, d, with_gain(held[k], gains[k]));
        }
        if (base == 0)
            break;
        read_row<V>(held, x, base - step, d);
        read_row<V>(gains, gain, base - step, d);
    }
}

template <typename T, bool V> CUDA_DEVICE void apply_gain(T *n, const T *normalized, const T *gain, uint32_t d)
{
    const size_t row = (size_t)blockIdx.x * d;
    cuda_vector<T> held[at_once<V>], gains[at_once<V>];

    for (uint32_t base = 0; base < d; base += at_once<V> * blockDim.x * cuda_width<T>) {
        read_row<V>(held, normalized + row, base, d);
        read_row<V>(gains, gain, base, d);
        for (int k = 0; k < at_once<V>; k++)
            cuda_write<V>(n + row, vector_place<cuda_width<T>>(base, k), d, with_gain(held[k], gains[k]));
    }
}

/* What a thread holds of a row on its way back. */
template <typename T, bool V> struct row_back {
    cuda_vector<T> normalized[at_once<V>], dy[at_once<V>];
    sums<T> g[at_once<V>];
};

template <typename T, bool V>
CUDA_DEVICE void read_back(row_back<T, V> &held, const cuda_sum_t<T> *dn, const T *gain, const T *normalized,
                           uint32_t base, uint32_t d)
{
    cuda_vector<T> gains[at_once<V>];

    read_row<V>(held.g, dn, base, d);
    read_row<V>(held.normalized, normalized, base, d);
    read_row<V>(gains, gain, base, d);
    for (int k = 0; k < at_once<V>; k++)
        for (int e = 0; e < cuda_width<T>; e++)
            held.g[k].at[e] *= cuda_float(gains[k].at[e]);
}

/* dx = dy + (g - normalized * mean(g * normalized)) / rms, g = dn * gain. Rows of dx are `stride`
 * elements apart; without dy it is 0. */
template <typename T, bool V>
CUDA_DEVICE void normalize_backward(T *dx, uint32_t stride, const T *dy, const cuda_sum_t<T> *dn, const T *gain,
                                    const T *normalized, const cuda_sum_t<T> *inv_rms, uint32_t d)
{
    typedef cuda_sum_t<T> S;
    __shared__ S room[32];
    const size_t row = (size_t)blockIdx.x * d;
    const uint32_t step = at_once<V> * blockDim.x * cuda_width<T>;
    const S inv = inv_rms[blockIdx.x];
    row_back<T, V> held;
    uint32_t base = 0;
    S mean = 0;

    dx += (size_t)blockIdx.x * stride;
    dy = dy != 0 ? dy + row : 0;
    for (;; base += step) {
        read_back<T, V>(held, dn + row, gain, normalized + row, base, d);
        for (int k = 0; k < at_once<V>; k++)
            for (int e = 0; e < cuda_width<T>; e++)
                mean += held.g[k].at[e] * cuda_float(held.normalized[k].at[e]);
        if (base + step >= d)
            break;
    }
    read_row<V>(held.dy, dy, base, dy != 0 ? d : 0);
    mean = cuda_block_sum(mean, room) / (S)d;
    for (;; base -= step) {
        for (int k = 0; k < at_once<V>; k++) {
            cuda_vector<T> v;

            for (int e = 0; e < cuda_width<T>; e++) {
                const S x = (held.g[k].at[e] - cuda_float(held.normalized[k].at[e]) * mean) * inv;

                v.at[e] = cuda_from_float<T>(cuda_float(held.dy[k].at[e]) + x);
            }
            cuda_write<V>(dx, vector_place<cuda_width<T>>(base, k), d, v);
        }
        if (base == 0)
            break;
        read_back<T, V>(held, dn + row, gain, normalized + row, base - step, d);
        read_row<V>(held.dy, dy, base - step, dy != 0 ? d : 0);
    }
}

/* A block of 256 threads sums 32 columns, each thread W of them in some rows: dgain = sum over the
 * rows of dn * normalized. */
template <typename T, bool V>
CUDA_DEVICE void gain_gradient(cuda_sum_t<T> *dgain, const cuda_sum_t<T> *dn, const T *normalized, size_t rows,
                               uint32_t d)
{
    enum { LANES = CUDA_WARP / cuda_width<T>, ROWS = 256 / LANES };
    __shared__ sums<T> parts[ROWS][LANES];
    const uint32_t lane = threadIdx.x % LANES, first = blockIdx.x * CUDA_WARP, i = first + lane * cuda_width<T>;
    sums<T> sum = {}, grads[at_once<V>];
    cuda_vector<T> held[at_once<V>];

    for (size_t row = threadIdx.x / LANES; row < rows; row += at_once<V> * ROWS) {
#pragma unroll
        for (int k = 0; k < at_once<V>; k++) {
            const size_t r = row + k * ROWS < rows ? row + k * ROWS : row;

            grads[k] = cuda_read<V, cuda_width<T>>(dn + r * d, i, d);
            held[k] = cuda_read<V, cuda_width<T>>(normalized + r * d, i, d);
        }
        for (int k = 0; k < at_once<V> && row + k * ROWS < rows; k++)
            for (int e = 0; e < cuda_width<T>; e++)
                sum.at[e] += grads[k].at[e] * cuda_float(held[k].at[e]);
    }
    parts[threadIdx.x / LANES][lane] = sum;
    __syncthreads();
    if (threadIdx.x < CUDA_WARP && first + threadIdx.x < d) {
        cuda_sum_t<T> whole = 0;

        for (int r = 0; r < ROWS; r++)
            whole += parts[r]->at[threadIdx.x];
        dgain[first + threadIdx.x] = whole;
    }
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

/* ---- heads: one block per token ---- */

/* One block per token, eight lanes per head: out[b, h, position] = sum over dim of a * b; a, b:
 * [tokens, heads, dim]. */
template <typename T, bool V>
CUDA_DEVICE void dot_rows(cuda_sum_t<T> *out, const T *a, const T *b, uint32_t heads, uint32_t sequence, uint32_t dim)
{
    enum { LANES = 8, STEP = LANES * cuda_width<T> };
    const uint32_t token = blockIdx.x, lane = threadIdx.x % LANES;

    for (uint32_t first = 0; first < heads; first += blockDim.x / LANES) {
        const uint32_t head = first + threadIdx.x / LANES, count = head < heads ? dim : 0;
        const size_t at = ((size_t)token * heads + head) * dim;
        cuda_sum_t<T> sum = 0;

        for (uint32_t i = lane * cuda_width<T>; i < count; i += 2 * STEP) {
            const cuda_vector<T> a0 = cuda_read<V, cuda_width<T>>(a + at, i, count),
                                 b0 = cuda_read<V, cuda_width<T>>(b + at, i, count),
                                 a1 = cuda_read<V, cuda_width<T>>(a + at, i + STEP, count),
                                 b1 = cuda_read<V, cuda_width<T>>(b + at, i + STEP, count);

            for (int e = 0; e < cuda_width<T>; e++)
                sum += cuda_float(a0.at[e]) * cuda_float(b0.at[e]) + cuda_float(a1.at[e]) * cuda_float(b1.at[e]);
        }
        sum = cuda_warp_sum<LANES>(sum);
        if (lane == 0 && head < heads)
            out[((size_t)(token / sequence) * heads + head) * sequence + token % sequence] = sum;
    }
}

/* A thread's share of the heads of a token: of heads h, h + step, ... the vectors at i,
 * i + columns, ... */
struct share {
    uint32_t i, columns, h, step;
};

template <typename T> CUDA_DEVICE share share_of(uint32_t elements, uint32_t heads)
{
    const uint32_t vectors = (elements + cuda_width<T> - 1) / cuda_width<T>;
    const uint32_t columns = vectors == 0 ? 1 : vectors < blockDim.x ? vectors : blockDim.x;
    const uint32_t step = blockDim.x / columns, h = threadIdx.x / columns;

    return {threadIdx.x % columns * cuda_width<T>, columns * cuda_width<T>, h < step ? h : heads, step};
}

/* Head h + step, or where there is none h once more, whose elements are this thread's as well. */
CUDA_DEVICE uint32_t head_or_first(uint32_t h, uint32_t step, uint32_t heads)
{
    return h + step < heads ? h + step : h;
}

/* Both halves of a vector that turns. */
template <typename T> struct pair {
    cuda_vector<T> low, high;
};

template <bool V> constexpr int pairs = V ? 2 : 1; /* at once */

template <typename T, bool V> CUDA_DEVICE pair<T> read_pair(const T *from, uint32_t i, uint32_t half)
{
    return {cuda_read<V, cuda_width<T>>(from, i, half), cuda_read<V, cuda_width<T>>(from + half, i, half)};
}

template <typename T, bool V> CUDA_DEVICE void write_pair(T *to, uint32_t i, uint32_t half, const pair<T> &p)
{
    cuda_write<V>(to, i, half, p.low);
    cuda_write<V>(to + half, i, half, p.high);
}

/* Cosines and sines of a token's angles. rope: [sequence, 2 * half], the cosines of a position,
 * then the sines; the position is that in the token's document, or without `starts` in its
 * sequence. */
template <typename S>
CUDA_DEVICE const S *angles_of(const S *rope, const uint32_t *starts, uint32_t sequence, uint32_t half)
{
    const uint32_t token = blockIdx.x, position = starts != 0 ? token - starts[token] : token % sequence;

    return rope + (size_t)position * 2 * half;
}

template <typename T> struct angle {
    sums<T> cosine, sine;
};

template <typename T, bool V>
CUDA_DEVICE angle<T> read_angle(const cuda_sum_t<T> *angles, uint32_t i, uint32_t half, int32_t sign)
{
    angle<T> a = {cuda_read<V, cuda_width<T>>(angles, i, half), cuda_read<V, cuda_width<T>>(angles + half, i, half)};

    for (int e = 0; e < cuda_width<T>; e++)
        a.sine.at[e] *= (cuda_sum_t<T>)sign;
    return a;
}

template <typename T> CUDA_DEVICE void turn(pair<T> &p, const angle<T> &by)
{
    for (int e = 0; e < cuda_width<T>; e++) {
        const cuda_sum_t<T> a = cuda_float(p.low.at[e]), b = cuda_float(p.high.at[e]);

        p.low.at[e] = cuda_from_float<T>(a * by.cosine.at[e] - b * by.sine.at[e]);
        p.high.at[e] = cuda_from_float<T>(b * by.cosine.at[e] + a * by.sine.at[e]);
    }
}

/* The first `own` elements of heads that are so many elements apart. */
template <typename T, bool V>
CUDA_DEVICE void copy_heads(T *to, size_t to_width, const T *from, size_t from_width, uint32_t heads, uint32_t own)
{
    const share s = share_of<T>(own, heads);
    cuda_vector<T> held[at_once<V>];

    for (uint32_t i = s.i; i < own; i += s.columns)
        for (uint32_t h = s.h; h < heads; h += at_once<V> * s.step) {
#pragma unroll
            for (int k = 0; k < at_once<V>; k++)
                held[k] = cuda_read<V, cuda_width<T>>(from + (h + k * s.step) * from_width, i,
                                                      h + k * s.step < heads ? own : 0);
#pragma unroll
            for (int k = 0; k < at_once<V>; k++)
                cuda_write<V>(to + (h + k * s.step) * to_width, i, h + k * s.step < heads ? own : 0, held[k]);
        }
}

/* Heads [own + 2 * half], of which the last 2 * half elements turn by the position's angle, or back
 * with sign -1; to may be from. */
template <typename T, bool V>
CUDA_DEVICE void rotate_heads(T *to, const T *from, const cuda_sum_t<T> *rope, const uint32_t *starts, uint32_t heads,
                              uint32_t own, uint32_t sequence, uint32_t half, int32_t sign)
{
    const size_t width = own + 2 * half, token = blockIdx.x * heads * width;
    const cuda_sum_t<T> *angles = angles_of(rope, starts, sequence, half);
    const share s = share_of<T>(half, heads);
    pair<T> held[pairs<V>];

    to += token;
    from += token;
    for (uint32_t i = s.i; i < half; i += s.columns) {
        const angle<T> by = read_angle<T, V>(angles, i, half, sign);

        for (uint32_t h = s.h; h < heads; h += pairs<V> * s.step) {
#pragma unroll
            for (int k = 0; k < pairs<V>; k++)
                held[k] = read_pair<T, V>(from + head_or_first(h, k * s.step, heads) * width + own, i, half);
#pragma unroll
            for (int k = 0; k < pairs<V>; k++)
                turn(held[k], by);
#pragma unroll
            for (int k = 0; k < pairs<V>; k++)
                if (h + k * s.step < heads)
                    write_pair<T, V>(to + (h + k * s.step) * width + own, i, half, held[k]);
        }
    }
    if (to != from)
        copy_heads<T, V>(to, width, from, width, heads, own);
}

/* Keys of all heads: the part of each [heads, own] and the one they have in common, which is not
 * rotated yet; tokens of `common` are `stride` elements apart. */
template <typename T, bool V>
CUDA_DEVICE void join_keys(T *keys, const T *parts, const T *common, uint32_t stride, const cuda_sum_t<T> *rope,
                           const uint32_t *starts, uint32_t heads, uint32_t own, uint32_t sequence, uint32_t half)
{
    const size_t width = own + 2 * half;
    const cuda_sum_t<T> *angles = angles_of(rope, starts, sequence, half);
    const share s = share_of<T>(half, heads);

    keys += blockIdx.x * heads * width;
    common += (size_t)blockIdx.x * stride;
    for (uint32_t i = s.i; i < half; i += s.columns) {
        pair<T> p = read_pair<T, V>(common, i, half);

        turn(p, read_angle<T, V>(angles, i, half, 1));
        for (uint32_t h = s.h; h < heads; h += s.step)
            write_pair<T, V>(keys + h * width + own, i, half, p);
    }
    copy_heads<T, V>(keys, width, parts + (size_t)blockIdx.x * heads * own, own, heads, own);
}

/* This thread's sums over some heads of both halves of `turning`, in room: [share's step][2]
 * [share's columns]. */
template <typename T, bool V>
CUDA_DEVICE void sum_heads(cuda_sum_t<T> *room, const share &s, const T *turning, uint32_t i, size_t width,
                           uint32_t heads, uint32_t half)
{
    sums<T> low = {}, high = {};
    pair<T> held[pairs<V>];

    for (uint32_t h = s.h; h < heads; h += pairs<V> * s.step) {
#pragma unroll
        for (int k = 0; k < pairs<V>; k++)
            held[k] = read_pair<T, V>(turning + head_or_first(h, k * s.step, heads) * width, i, half);
#pragma unroll
        for (int k = 0; k < pairs<V>; k++)
            for (int e = 0; e < cuda_width<T> && h + k * s.step < heads; e++) {
                low.at[e] += cuda_float(held[k].low.at[e]);
                high.at[e] += cuda_float(held[k].high.at[e]);
            }
    }
    room += (size_t)(threadIdx.x / (s.columns / cuda_width<T>)) * 2 * s.columns + s.i;
    *(sums<T> *)room = low;
    *(sums<T> *)(room + s.columns) = high;
}

/* The gradient of join_keys: of the common part the sum over heads, rotated back. room: 2 * W of
 * shared memory for each thread. */
template <typename T, bool V>
CUDA_DEVICE void split_keys(cuda_sum_t<T> *room, T *parts, T *common, uint32_t stride, const T *keys,
                            const cuda_sum_t<T> *rope, const uint32_t *starts, uint32_t heads, uint32_t own,
                            uint32_t sequence, uint32_t half)
{
    const size_t width = own + 2 * half;
    const cuda_sum_t<T> *angles = angles_of(rope, starts, sequence, half);
    const share s = share_of<T>(half, heads);

    keys += blockIdx.x * heads * width;
    common += (size_t)blockIdx.x * stride;
    copy_heads<T, V>(parts + (size_t)blockIdx.x * heads * own, own, keys, width, heads, own);
    for (uint32_t first = 0; first < half; first += s.columns) {
        if (threadIdx.x < s.step * (s.columns / cuda_width<T>))
            sum_heads<T, V>(room, s, keys + own, first + s.i, width, heads, half);
        __syncthreads();
        for (uint32_t e = threadIdx.x, i = first + e; e < s.columns && i < half; e += blockDim.x, i += blockDim.x) {
            cuda_sum_t<T> low = 0, high = 0;

            for (uint32_t r = 0; r < s.step && r < heads; r++) {
                low += room[r * 2 * s.columns + e];
                high += room[r * 2 * s.columns + s.columns + e];
            }
            common[i] = cuda_from_float<T>(low * angles[i] + high * angles[half + i]);
            common[half + i] = cuda_from_float<T>(high * angles[i] - low * angles[half + i]);
        }
        __syncthreads();
    }
}

template <typename S> CUDA_DEVICE void accumulate_sums(S *sum, const S *term, size_t count)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < count)
        sum[i] += term[i];
}

#define INSTANCES(T, name)                                                                                             \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        attn_normalize_##name(T *normalized, cuda_sum_t<T> *inv_rms, T *n, const T *x, uint32_t stride, const T *gain, \
                              uint32_t d, double eps)                                                                  \
    {                                                                                                                  \
        BY_ALIGNMENT((cuda_aligned(normalized, n, x, gain, stride * sizeof(T), d * sizeof(T))), T, normalize_rows,     \
                     normalized, inv_rms, n, x, stride, gain, d, eps);                                                 \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        attn_apply_gain_##name(T *n, const T *normalized, const T *gain, uint32_t d)                                   \
    {                                                                                                                  \
        BY_ALIGNMENT((cuda_aligned(n, normalized, gain, d * sizeof(T))), T, apply_gain, n, normalized, gain, d);       \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                               \
        attn_normalize_backward_##name(T *dx, uint32_t stride, const T *dy, const cuda_sum_t<T> *dn, const T *gain,    \
                                       const T *normalized, const cuda_sum_t<T> *inv_rms, uint32_t d)                  \
    {                                                                                                                  \
        BY_ALIGNMENT((cuda_aligned(dx, dy, dn, gain, normalized, stride * sizeof(T), d * sizeof(T))), T,               \
                     normalize_backward, dx, stride, dy, dn, gain, normalized, inv_rms, d);                            \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) attn_gain_gradient_##name(                                       \
        cuda_sum_t<T> *dgain, const cuda_sum_t<T> *dn, const T *normalized, size_t rows, uint32_t d)                   \
    {                                                                                                                  \
        BY_ALIGNMENT((cuda_aligned(dn, normalized, d * sizeof(T))), T, gain_gradient, dgain, dn, normalized, rows, d); \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) attn_dot_rows_##name(                                            \
        cuda_sum_t<T> *out, const T *a, const T *b, uint32_t heads, uint32_t sequence, uint32_t dim)                   \
    {                                                                                                                  \
        BY_ALIGNMENT((cuda_aligned(a, b, dim * sizeof(T))), T, dot_rows, out, a, b, heads, sequence, dim);             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 4)                                                               \
        attn_rotate_##name(T *to, const T *from, const cuda_sum_t<T> *rope, const uint32_t *starts, uint32_t heads,    \
                           uint32_t own, uint32_t sequence, uint32_t half, int32_t sign)                               \
    {                                                                                                                  \
        BY_ALIGNMENT((cuda_aligned(to, from, rope, own * sizeof(T), half * sizeof(T))), T, rotate_heads, to, from,     \
                     rope, starts, heads, own, sequence, half, sign);                                                  \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        attn_join_keys_##name(T *keys, const T *parts, const T *common, uint32_t stride, const cuda_sum_t<T> *rope,    \
                              const uint32_t *starts, uint32_t heads, uint32_t own, uint32_t sequence, uint32_t half)  \
    {                                                                                                                  \
        BY_ALIGNMENT((cuda_aligned(keys, parts, common, rope, stride * sizeof(T), own * sizeof(T), half * sizeof(T))), \
                     T, join_keys, keys, parts, common, stride, rope, starts, heads, own, sequence, half);             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        attn_split_keys_##name(T *parts, T *common, uint32_t stride, const T *keys, const cuda_sum_t<T> *rope,         \
                               const uint32_t *starts, uint32_t heads, uint32_t own, uint32_t sequence, uint32_t half) \
    {                                                                                                                  \
        __shared__ sums<T> room[2 * 256];                                                                              \
                                                                                                                       \
        BY_ALIGNMENT((cuda_aligned(parts, keys, own * sizeof(T), half * sizeof(T))), T, split_keys,                    \
                     (cuda_sum_t<T> *)room, parts, common, stride, keys, rope, starts, heads, own, sequence, half);    \
    }                                                                                                                  \
    extern "C" __global__ void attn_starts_##name(uint32_t *to, const uint32_t *ends, uint32_t documents,              \
                                                  uint32_t tokens)                                                     \
    {                                                                                                                  \
        starts(to, ends, documents, tokens);                                                                           \
    }                                                                                                                  \
    extern "C" __global__ void attn_accumulate_##name(cuda_sum_t<T> *sum, const cuda_sum_t<T> *term, size_t count)     \
    {                                                                                                                  \
        accumulate_sums(sum, term, count);                                                                             \
    }

INSTANCES(float, f32)
INSTANCES(double, f64)
INSTANCES(cuda_bf16, bf16)
