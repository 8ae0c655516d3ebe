/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * train_moe.cu: kernels of the trainer's own computations: embedding, head, AdamW, sums of squares.
 * T tokens, width d, 256 byte values, matrices row-major; E the dtype, A = cuda_sum_t<E> the type
 * of gradients and of the optimizer's state. Every sum has a fixed order. compute_cuda.c launches
 * them. */
#include "cuda/device.cuh"

#define VOCAB 256

/* ---- embedding ---- */

/* y[t] = table[tokens[t]]; one block per token. The tokens are kept for backward. */
template <typename E> CUDA_DEVICE void embed_forward(const E *table, const uint8_t *tokens, E *y, uint8_t *kept, int d)
{
    const size_t t = blockIdx.x;
    const E *from = table + (size_t)tokens[t] * d;

    if (threadIdx.x == 0)
        kept[t] = tokens[t];
    for (int i = (int)threadIdx.x; i < d; i += (int)blockDim.x)
        y[t * d + i] = from[i];
}

/* dtable[v] += sum of dy[t] over the tokens t that are v; block (v, columns), tokens in order. */
template <typename E>
CUDA_DEVICE void embed_backward(cuda_sum_t<E> *dtable, const uint8_t *tokens, const E *dy, int T, int d)
{
    const int i = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    const uint8_t v = (uint8_t)blockIdx.x;
    cuda_sum_t<E> sum = 0;

    if (i >= d)
        return;
    for (int t = 0; t < T; t++)
        if (tokens[t] == v)
            sum += cuda_float(dy[(size_t)t * d + i]);
    dtable[(size_t)v * d + i] += sum;
}

/* ---- head ---- */

/* n = x / rms(x) * gain, kept = x, rstd[t] = 1 / rms; one block per token. */
template <typename E>
CUDA_DEVICE void norm_forward(const E *x, const E *gain, cuda_sum_t<E> eps, E *kept, cuda_sum_t<E> *rstd, E *n, int d)
{
    typedef cuda_sum_t<E> A;
    __shared__ A room[32];
    const size_t row = (size_t)blockIdx.x * d;
    A sum = 0, scale;

    for (int i = (int)threadIdx.x; i < d; i += (int)blockDim.x) {
        const A value = cuda_float(x[row + i]);
        kept[row + i] = x[row + i];
        sum += value * value;
    }
    scale = (A)1 / sqrt(cuda_block_sum(sum, room) / (A)d + eps);
    if (threadIdx.x == 0)
        rstd[blockIdx.x] = scale;
    for (int i = (int)threadIdx.x; i < d; i += (int)blockDim.x)
        n[row + i] = cuda_from_float<E>(cuda_float(x[row + i]) * scale * cuda_float(gain[i]));
}

/* n = x * rstd * gain again, from what forward kept. */
template <typename E> CUDA_DEVICE void norm_again(const E *x, const cuda_sum_t<E> *rstd, const E *gain, E *n, int d)
{
    const size_t row = (size_t)blockIdx.x * d;

    for (int i = (int)threadIdx.x; i < d; i += (int)blockDim.x)
        n[row + i] = cuda_from_float<E>(cuda_float(x[row + i]) * rstd[blockIdx.x] * cuda_float(gain[i]));
}

/* dlogits = softmax(logits) - onehot(target), losses[t] = -log softmax(logits)[target]; one warp
 * per token. */
template <typename E>
CUDA_DEVICE void cross_entropy(const cuda_sum_t<E> *logits, const uint8_t *targets, E *dlogits, double *losses, int T)
{
    typedef cuda_sum_t<E> A;
    const int t = (int)((blockIdx.x * blockDim.x + threadIdx.x) / CUDA_WARP), lane = (int)threadIdx.x % CUDA_WARP;
    A value[VOCAB / CUDA_WARP], most;
    double sum = 0;

    if (t >= T)
        return;
    for (int j = 0; j < VOCAB / CUDA_WARP; j++) {
        value[j] = logits[(size_t)t * VOCAB + j * CUDA_WARP + lane];
        most = j == 0 || value[j] > most ? value[j] : most;
    }
    most = cuda_warp_max(most);
    for (int j = 0; j < VOCAB / CUDA_WARP; j++) {
        if (j * CUDA_WARP + lane == targets[t])
            losses[t] = (double)most - (double)value[j]; /* the same lane adds the rest below */
        value[j] = exp(value[j] - most);
        sum += (double)value[j];
    }
    sum = cuda_warp_sum(sum);
    for (int j = 0; j < VOCAB / CUDA_WARP; j++) {
        const int at = j * CUDA_WARP + lane;
        const A share = (A)((double)value[j] / sum);
        dlogits[(size_t)t * VOCAB + at] = cuda_from_float<E>(at == targets[t] ? share - 1 : share);
        if (at == targets[t])
            losses[t] += log(sum);
    }
}

/* dx = rstd * (dn * gain - unit * mean(dn * gain * unit)), unit = x * rstd; one block per token. */
template <typename E>
CUDA_DEVICE void norm_backward(const E *x, const cuda_sum_t<E> *rstd, const E *gain, const E *dn, E *dx, int d)
{
    typedef cuda_sum_t<E> A;
    __shared__ A room[32];
    const size_t row = (size_t)blockIdx.x * d;
    const A scale = rstd[blockIdx.x];
    A along = 0;

    for (int i = (int)threadIdx.x; i < d; i += (int)blockDim.x)
        along += cuda_float(dn[row + i]) * cuda_float(gain[i]) * cuda_float(x[row + i]) * scale;
    along = cuda_block_sum(along, room) / (A)d;
    for (int i = (int)threadIdx.x; i < d; i += (int)blockDim.x)
        dx[row + i] = cuda_from_float<E>(
            scale * (cuda_float(dn[row + i]) * cuda_float(gain[i]) - cuda_float(x[row + i]) * scale * along));
}

/* dgain += sum over tokens of dn * unit. A block has 32 columns and 8 strands of tokens. */
template <typename E>
CUDA_DEVICE void gain_backward(const E *x, const cuda_sum_t<E> *rstd, const E *dn, cuda_sum_t<E> *dgain, int T, int d)
{
    typedef cuda_sum_t<E> A;
    __shared__ A part[8][CUDA_WARP];
    const int lane = (int)threadIdx.x % CUDA_WARP, strand = (int)threadIdx.x / CUDA_WARP;
    const int i = (int)blockIdx.x * CUDA_WARP + lane;
    A sum = 0;

    if (i < d)
        for (int t = strand; t < T; t += 8)
            sum += cuda_float(dn[(size_t)t * d + i]) * cuda_float(x[(size_t)t * d + i]) * rstd[t];
    part[strand][lane] = sum;
    __syncthreads();
    if (strand == 0 && i < d) {
        for (int other = 1; other < 8; other++)
            sum += part[other][lane];
        dgain[i] += sum;
    }
}

/* ---- the optimizer ---- */

/* The constants of compute.h, rounded by the host to the type of the state. */
template <typename A> struct adamw_constants {
    A keep_mean, keep_squares, grad, rate, unbias_squares, epsilon, shrink;
};

/* adamw_range_t of compute.h. */
struct adamw_range {
    size_t before, first, count, at;
    uint64_t decays;
};

/* A chunk at once: element n of its ranges, `count` of them in all, by thread n, n + step and so
 * on. */
template <typename E>
CUDA_DEVICE void adamw(adamw_constants<cuda_sum_t<E>> f, E *params, cuda_sum_t<E> *master, cuda_sum_t<E> *mean,
                       cuda_sum_t<E> *squares, const cuda_sum_t<E> *grads, const adamw_range *range, size_t count)
{
    typedef cuda_sum_t<E> A;
    const size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t n = (size_t)blockIdx.x * blockDim.x + threadIdx.x; n < count; n += step) {
        while (n - range->before >= range->count)
            range++;
        const size_t i = range->first + (n - range->before), kept = range->at + (n - range->before);
        const A shrink = range->decays ? f.shrink : (A)1;
        const A g = grads[i] * f.grad;
        const A m = f.keep_mean * mean[kept] + (1 - f.keep_mean) * g;
        const A v = f.keep_squares * squares[kept] + (1 - f.keep_squares) * g * g;
        const A old = master != nullptr ? master[kept] : cuda_float(params[i]);
        const A p = old * shrink - f.rate * m / (sqrt(v * f.unbias_squares) + f.epsilon);
        mean[kept] = m;
        squares[kept] = v;
        if (master != nullptr)
            master[kept] = p;
        params[i] = cuda_from_float<E>(p);
    }
}

/* One block; the mean is the same sum in every thread. */
template <typename E>
CUDA_DEVICE void balance(cuda_sum_t<E> rate, E *bias, cuda_sum_t<E> *master, const cuda_sum_t<E> *counts, int experts)
{
    typedef cuda_sum_t<E> A;
    A mean = 0;

    for (int e = 0; e < experts; e++)
        mean += counts[e] / (A)experts;
    for (int e = (int)threadIdx.x; e < experts; e += (int)blockDim.x) {
        const A old = master != nullptr ? master[e] : cuda_float(bias[e]);
        const A now = old + rate * (A)((mean > counts[e]) - (mean < counts[e]));
        if (master != nullptr)
            master[e] = now;
        bias[e] = cuda_from_float<E>(now);
    }
}

/* sums[i] = sum of squares of part i; a block of threads for each part, or for several. */
template <typename A> CUDA_DEVICE void squares(const A *values, size_t count, int part, double *sums)
{
    __shared__ double room[32];

    for (size_t k = blockIdx.x; k * part < count; k += gridDim.x) {
        const size_t end = count - k * part < (size_t)part ? count : (k + 1) * part;
        double sum = 0;

        for (size_t i = k * part + threadIdx.x; i < end; i += blockDim.x)
            sum += (double)values[i] * (double)values[i];
        sum = cuda_block_sum(sum, room);
        if (threadIdx.x == 0)
            sums[k] = sum;
    }
}

/* *to = or += (sum of values) / by; one block. */
extern "C" __global__ void train_moe_sum(const double *values, int count, double by, int add, double *to)
{
    __shared__ double room[32];
    double sum = 0;

    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x)
        sum += values[i];
    sum = cuda_block_sum(sum, room) / by;
    if (threadIdx.x == 0)
        *to = add ? *to + sum : sum;
}

#define KERNELS(E, A, name)                                                                                            \
    extern "C" __global__ void train_moe_embed_forward_##name(const E *table, const uint8_t *tokens, E *y,             \
                                                              uint8_t *kept, int d)                                    \
    {                                                                                                                  \
        embed_forward<E>(table, tokens, y, kept, d);                                                                   \
    }                                                                                                                  \
    extern "C" __global__ void train_moe_embed_backward_##name(A *dtable, const uint8_t *tokens, const E *dy, int T,   \
                                                               int d)                                                  \
    {                                                                                                                  \
        embed_backward<E>(dtable, tokens, dy, T, d);                                                                   \
    }                                                                                                                  \
    extern "C" __global__ void train_moe_norm_forward_##name(const E *x, const E *gain, A eps, E *kept, A *rstd, E *n, \
                                                             int d)                                                    \
    {                                                                                                                  \
        norm_forward<E>(x, gain, eps, kept, rstd, n, d);                                                               \
    }                                                                                                                  \
    extern "C" __global__ void train_moe_norm_again_##name(const E *x, const A *rstd, const E *gain, E *n, int d)      \
    {                                                                                                                  \
        norm_again<E>(x, rstd, gain, n, d);                                                                            \
    }                                                                                                                  \
    extern "C" __global__ void train_moe_cross_entropy_##name(const A *logits, const uint8_t *targets, E *dlogits,     \
                                                              double *losses, int T)                                   \
    {                                                                                                                  \
        cross_entropy<E>(logits, targets, dlogits, losses, T);                                                         \
    }                                                                                                                  \
    extern "C" __global__ void train_moe_norm_backward_##name(const E *x, const A *rstd, const E *gain, const E *dn,   \
                                                              E *dx, int d)                                            \
    {                                                                                                                  \
        norm_backward<E>(x, rstd, gain, dn, dx, d);                                                                    \
    }                                                                                                                  \
    extern "C" __global__ void train_moe_gain_backward_##name(const E *x, const A *rstd, const E *dn, A *dgain, int T, \
                                                              int d)                                                   \
    {                                                                                                                  \
        gain_backward<E>(x, rstd, dn, dgain, T, d);                                                                    \
    }                                                                                                                  \
    extern "C" __global__ void train_moe_adamw_##name(adamw_constants<A> f, E *params, A *master, A *mean, A *squares, \
                                                      const A *grads, const adamw_range *ranges, size_t count)         \
    {                                                                                                                  \
        adamw<E>(f, params, master, mean, squares, grads, ranges, count);                                              \
    }                                                                                                                  \
    extern "C" __global__ void train_moe_balance_##name(A rate, E *bias, A *master, const A *counts, int experts)      \
    {                                                                                                                  \
        balance<E>(rate, bias, master, counts, experts);                                                               \
    }                                                                                                                  \
    extern "C" __global__ void train_moe_squares_##name(const A *values, size_t count, int part, double *sums)         \
    {                                                                                                                  \
        squares<A>(values, count, part, sums);                                                                         \
    }

KERNELS(float, float, f32)
KERNELS(double, double, f64)
KERNELS(cuda_bf16, float, bf16)
