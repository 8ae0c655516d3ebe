/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gpu_gate.h: a gate in front of measured work. The stream waits at it until the host has enqueued
 * everything up to the second event, so that times are the device's alone: a stream that is idle
 * would begin to count while the host still prepares the first launch. A profiler that runs kernels
 * one by one (ncu) would wait for ever: --gate 0 leaves it open. */
#ifndef DP_BENCH_GPU_GATE_H
#define DP_BENCH_GPU_GATE_H

#include "cuda/launch.h"

typedef struct gate {
    uint32_t *passed; /* host memory that the device reads; NULL: always open */
    uint32_t number;
} gate_t;

static inline dp_status_t gate_make(const dp_host_t *host, const cuda_driver_t *cu, gate_t *gate)
{
    void *memory = NULL;
    const dp_status_t status =
        CUDA_CHECK(host, cu->cuMemHostAlloc(&memory, sizeof(uint32_t), CU_MEMHOSTALLOC_PORTABLE), "making a gate");

    gate->passed = memory;
    if (status >= 0)
        *gate->passed = 0;
    return status;
}

/* What is put on the stream behind it waits for gate_open(). */
static inline dp_status_t gate_shut(const dp_host_t *host, const cuda_driver_t *cu, gate_t *gate, CUstream s)
{
    if (gate->passed == NULL)
        return DP_OK;
    return CUDA_CHECK(
        host,
        cu->cuStreamWaitValue32(s, (CUdeviceptr)(uintptr_t)gate->passed, ++gate->number, CU_STREAM_WAIT_VALUE_GEQ),
        "shutting a gate");
}

static inline void gate_open(gate_t *gate)
{
    if (gate->passed != NULL)
        __atomic_store_n(gate->passed, gate->number, __ATOMIC_RELEASE);
}

#endif
