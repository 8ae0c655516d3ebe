/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * device_kernels.cu: sums and times. */
#include "cuda/device.cuh"

template <typename T> CUDA_DEVICE void add_elements(T *to, const T *from, size_t count)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        to[i] += from[i];
}

extern "C" __global__ void __launch_bounds__(256) device_add_f32(float *to, const float *from, size_t count)
{
    add_elements(to, from, count);
}

extern "C" __global__ void __launch_bounds__(256) device_add_f64(double *to, const double *from, size_t count)
{
    add_elements(to, from, count);
}

/* The device's time, never 0, to host memory. It is all there is to read, so nothing has to be in
 * order before it: with release order, each end of a segment would wait for every write under
 * way. */
extern "C" __global__ void device_stamp(uint64_t *to)
{
    uint64_t now = cuda_globaltimer();

    cuda_store_relaxed(to, now != 0 ? now : 1);
}

/* For each of `rounds` rounds: waits for *call to become the round's number, answers with the
 * device's time. Gives up after a while: the host may have gone. */
extern "C" __global__ void device_echo(const uint64_t *call, uint64_t *answer, int rounds)
{
    for (int round = 1; round <= rounds; round++) {
        uint64_t start = cuda_globaltimer();

        while (cuda_load_acquire(call) < (uint64_t)round)
            if (cuda_globaltimer() - start > 50000000u)
                return;
        cuda_store_release(answer + round - 1, cuda_globaltimer() | 1);
    }
}
