/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kernels.cu: kernels that test the emulator and, on a GPU, what device.cuh says of it. */
#include "cuda/device.cuh"

/* to[i] = from[i] * factor, rounded to T */
template <typename T> CUDA_DEVICE void scale(T *to, const T *from, double factor, size_t count)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        to[i] = cuda_from_float<T>(cuda_float(from[i]) * (cuda_sum_t<T>)factor);
}

#define SCALE(T, name)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        dp_test_scale_##name(T *to, const T *from, double factor, size_t count)                                        \
    {                                                                                                                  \
        scale(to, from, factor, count);                                                                                \
    }
SCALE(float, f32)
SCALE(double, f64)
SCALE(cuda_bf16, bf16)

/* Transposes 32x32 tiles through shared memory: wrong without the barrier. */
extern "C" __global__ void dp_test_transpose(float *to, const float *from, int rows, int columns)
{
    __shared__ float tile[32][33];
    int x = (int)blockIdx.x * 32 + (int)threadIdx.x, y = (int)blockIdx.y * 32 + (int)threadIdx.y;

    if (x < columns && y < rows)
        tile[threadIdx.y][threadIdx.x] = from[y * columns + x];
    __syncthreads();
    x = (int)blockIdx.y * 32 + (int)threadIdx.x;
    y = (int)blockIdx.x * 32 + (int)threadIdx.y;
    if (x < rows && y < columns)
        to[y * rows + x] = tile[threadIdx.x][threadIdx.y];
}

/* sums[block] and most[block] of the block's part of from; hits counts elements above 0.5 by
 * atomics. */
extern "C" __global__ void dp_test_sum(double *sums, float *most, unsigned *hits, const float *from, int count)
{
    __shared__ double room[32];
    __shared__ float room_most[32];
    double sum = 0;
    float largest = -1e30f;

    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < count; i += (int)(gridDim.x * blockDim.x)) {
        sum += (double)from[i];
        largest = largest < from[i] ? from[i] : largest;
        if (from[i] > 0.5f)
            atomicAdd(hits, 1u);
    }
    sum = cuda_block_sum(sum, room);
    largest = cuda_block_max(largest, room_most);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = sum;
        most[blockIdx.x] = largest;
    }
}

/* One warp: what the collectives of a warp give each lane, 8 words a lane. */
extern "C" __global__ void dp_test_warp(unsigned *out)
{
    unsigned lane = threadIdx.x % 32, *mine = out + threadIdx.x * 8;

    mine[0] = __shfl_sync(CUDA_FULL_MASK, lane * 3, 5);
    mine[1] = __shfl_up_sync(CUDA_FULL_MASK, lane, 3);
    mine[2] = __shfl_down_sync(CUDA_FULL_MASK, lane, 3, 16);
    mine[3] = __shfl_xor_sync(CUDA_FULL_MASK, lane, 9);
    mine[4] = __ballot_sync(CUDA_FULL_MASK, lane % 3 == 0);
    mine[5] = lane < 16 ? __shfl_sync(0x0000ffffu, lane, 7) : __shfl_sync(0xffff0000u, lane, 23);
    mine[6] = __reduce_add_sync(CUDA_FULL_MASK, lane);
    mine[7] = __popc(__match_any_sync(CUDA_FULL_MASK, lane / 5));
}

/* C[m][n] += A[m][k] B[n][k], 16x8 by k in steps of 16, by one warp through shared memory and
 * asynchronous copies. */
extern "C" __global__ void dp_test_mma(float *c, const cuda_bf16 *a, const cuda_bf16 *b, int k)
{
    CUDA_SHARED_DYNAMIC(cuda_bf16, tiles); /* [24][16]: 16 rows of a, 8 of b, each row 32 bytes */
    unsigned lane = threadIdx.x;
    float sum[4] = {0, 0, 0, 0};

    for (int at = 0; at < k; at += 16) {
        for (unsigned half = lane; half < 48; half += 32) {
            unsigned row = half / 2, column = half % 2 * 8;

            cuda_copy_async(tiles + row * 16 + column, (row < 16 ? a + row * k : b + (row - 16) * k) + at + column);
        }
        cuda_copy_commit();
        cuda_copy_wait<0>();
        __syncwarp();
        uint32_t fa[4], fb[4];
        cuda_load_matrix_x4(fa, tiles + (lane % 16) * 16 + lane / 16 * 8);
        cuda_load_matrix_x4(fb, tiles + (16 + lane % 8) * 16 + lane / 8 % 2 * 8);
        cuda_mma_bf16(sum, fa, fb);
        __syncwarp();
    }
    for (int i = 0; i < 4; i++)
        c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] += sum[i];
}

/* Blocks wait for each other: all of them have to be on the device at once. */
extern "C" __global__ void dp_test_meet(uint32_t *arrived, uint32_t *smids)
{
    if (threadIdx.x == 0) {
        smids[blockIdx.x] = cuda_smid();
        cuda_add_release(arrived, 1);
        while (cuda_load_acquire(arrived) < gridDim.x)
            cuda_pause();
    }
    __syncthreads();
}

/* Where each block runs; long enough for others to find a separate place. */
extern "C" __global__ void dp_test_smid(uint32_t *smids)
{
    uint64_t start = cuda_globaltimer();

    if (threadIdx.x == 0)
        smids[blockIdx.x] = cuda_smid();
    while (cuda_globaltimer() - start < 5000)
        ;
}

/* Waits until *flag is no less than target, then leaves target + 1 in *answer. */
extern "C" __global__ void dp_test_await(const uint32_t *flag, uint32_t target, uint32_t *answer)
{
    while (cuda_load_acquire(flag) < target)
        cuda_pause();
    cuda_store_release(answer, target + 1);
}

/* Mistakes, by number: 0 a barrier that half of the block skips over a warp collective, 1 a trap, 2
 * a barrier that is missing in front of what another warp reads, 3 the same behind it, 4 in front
 * of what another lane reads; 5 none. */
extern "C" __global__ void dp_test_mistake(int which)
{
    __shared__ unsigned seats[64];
    unsigned other = 63 - threadIdx.x;

    if (which >= 2) {
        seats[threadIdx.x] = threadIdx.x;
        if (which == 4)
            other = threadIdx.x ^ 1;
        else if (which != 2)
            __syncthreads();
        other = seats[other];
        if (which >= 4)
            __syncthreads();
        seats[threadIdx.x] = other;
    }
    if (which == 0 && threadIdx.x % 2 == 0)
        __shfl_sync(CUDA_FULL_MASK, threadIdx.x, 0);
    else if (which == 1 && threadIdx.x == 7)
        cuda_trap();
}
