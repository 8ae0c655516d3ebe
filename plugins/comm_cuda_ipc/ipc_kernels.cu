/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ipc_kernels.cu: what copy engines and stream memory operations cannot do: rows of an exchange,
 * sums, looks at tags; and the waits and writes of a graph that is replayed, whose values only
 * device memory knows.
 *
 * No kernel waits for another block of its grid, and none ends with a trap: a fault goes to the
 * mailbox, once for each instance, and the kernel returns. */
#include "cuda/device.cuh"

#include "kernels.h"

#define LINE 128

/* ---- faults ---- */

static CUDA_DEVICE uint32_t signal_value(const ipc_value_t &v)
{
    return (v.counter != NULL ? cuda_load_acquire(v.counter) : 0) + v.delta;
}

/* True for the thread that may write the mailbox. What is seen after an abort is no news. */
static CUDA_DEVICE bool first_fault(const ipc_report_t &report)
{
    return cuda_load_acquire(&report.mailbox->aborted) == 0 && atomicCAS(report.taken, 0u, 1u) == 0;
}

static CUDA_DEVICE void send_fault(const ipc_report_t &report, uint32_t fault, uint64_t object)
{
    report.mailbox->object = object;
    cuda_store_release(&report.mailbox->fault, fault);
}

static CUDA_DEVICE void fault2(const ipc_report_t &report, uint32_t fault, uint64_t object, uint32_t a, uint32_t b,
                               uint32_t c = 0, uint32_t d = 0)
{
    if (!first_fault(report))
        return;
    report.mailbox->words[0] = a;
    report.mailbox->words[1] = b;
    report.mailbox->words[2] = c;
    report.mailbox->words[3] = d;
    send_fault(report, fault, object);
}

/* ---- waits and writes ---- */

static CUDA_DEVICE bool has_reached(uint32_t word, uint32_t value)
{
    return (int32_t)(word - value) >= 0;
}

/* False when the instance was aborted or the deadline has passed. The host's word is far away:
 * asked now and then. */
static CUDA_DEVICE bool wait_for(const ipc_report_t &report, const uint32_t *word, uint32_t value)
{
    uint64_t begin = cuda_globaltimer();

    for (uint32_t turn = 0; !has_reached(cuda_load_acquire(word), value); turn++) {
        if (turn % 32 == 31) {
            if (cuda_load_acquire(&report.mailbox->aborted) != 0)
                return false;
            if (cuda_globaltimer() - begin > report.deadline_ns) {
                fault2(report, IPC_FAULT_DEADLINE, (uint64_t)(uintptr_t)word, value, cuda_load_acquire(word));
                return false;
            }
        }
        cuda_pause();
    }
    return true;
}

extern "C" __global__ void comm_cuda_ipc_signals(ipc_signals_t a)
{
    uint32_t base = cuda_load_acquire(a.counter);

    for (uint32_t i = 0; i < a.count; i++) {
        const ipc_signal_t &s = a.signals[i];
        uint32_t value = s.value + (s.relative ? base : 0);

        if (s.kind == IPC_WRITE) {
            __threadfence_system();
            cuda_store_release(s.word, value);
        } else if (s.kind == IPC_EXPECT) {
            uint32_t found = cuda_load_acquire(s.word);

            if (found != value)
                fault2(a.report, IPC_FAULT_SLOTS, (uint64_t)(uintptr_t)s.word, value, found);
        } else if (!wait_for(a.report, s.word, value)) {
            return;
        }
    }
}

/* One thread. */
extern "C" __global__ void comm_cuda_ipc_pace(ipc_pace_t a)
{
    uint64_t begin = cuda_globaltimer();

    while (cuda_globaltimer() - begin < a.ns && cuda_load_acquire(&a.report.mailbox->aborted) == 0)
        cuda_pause();
}

extern "C" __global__ void comm_cuda_ipc_check_tag(ipc_check_tag_t a)
{
    uint32_t expected[4] = {signal_value(a.number), a.expected[1], a.expected[2], a.expected[3]}, found[4];
    bool same = true;

    for (int i = 0; i < 4; i++) {
        found[i] = cuda_load_acquire(&a.head[i]);
        same = same && found[i] == expected[i];
    }
    if (same || !first_fault(a.report))
        return;
    for (int i = 0; i < 4; i++) {
        a.report.mailbox->words[i] = expected[i];
        a.report.mailbox->words[4 + i] = found[i];
    }
    send_fault(a.report, IPC_FAULT_TAG, a.object);
}

/* ---- exchange ---- */

/* All counts are checked before any row is sent: an overflow sends nothing. */
static CUDA_DEVICE bool counts_fit(const ipc_put_rows_t &a)
{
    for (uint32_t p = 0; p < a.nranks; p++)
        if (a.counts[p] < 0 || (uint32_t)a.counts[p] > a.capacity) {
            if (blockIdx.x == 0 && threadIdx.x == 0)
                fault2(a.report, IPC_FAULT_OVERFLOW, a.object, signal_value(a.number), p, (uint32_t)a.counts[p]);
            return false;
        }
    return true;
}

#define AT_ONCE 8 /* vectors that a thread has on their way */

/* Block j of the `share` for rank `to` copies every share-th stretch of blockDim.x vectors. */
static CUDA_DEVICE void copy_rows(const ipc_put_rows_t &a, uint32_t to, uint32_t j)
{
    const uint4 *from = (const uint4 *)(a.send + (uint64_t)a.offsets[to] * a.row_bytes);
    uint4 *rows = (uint4 *)((unsigned char *)(uintptr_t)a.peers[2 * to + 1] + a.rows_at);
    uint64_t vectors = (uint64_t)a.counts[to] * a.row_bytes / sizeof(uint4);
    uint64_t stride = (uint64_t)a.share * blockDim.x, i = (uint64_t)j * blockDim.x + threadIdx.x;

    for (; i + (AT_ONCE - 1) * stride < vectors; i += AT_ONCE * stride) {
        uint4 v[AT_ONCE];

#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            v[k] = cuda_load_stream(&from[i + k * stride]);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            cuda_store_stream(&rows[i + k * stride], v[k]);
    }
    for (; i < vectors; i += stride)
        cuda_store_stream(&rows[i], cuda_load_stream(&from[i]));
}

/* The last block to finish tells the receiver. */
static CUDA_DEVICE void publish_rows(const ipc_put_rows_t &a, uint32_t to, uint64_t begin)
{
    unsigned char *lines = (unsigned char *)(uintptr_t)a.peers[2 * to];
    uint32_t *head = (uint32_t *)(lines + a.head_at), number = signal_value(a.number);
    uint64_t ns = (uint64_t)(a.link_ns_per_byte * (double)a.counts[to] * (double)a.row_bytes);

    __threadfence_system();
    if (cuda_add_release(&a.done[to], 1) != a.share - 1)
        return;
    __threadfence_system();
    a.done[to] = 0;
    while (cuda_globaltimer() - begin < ns && cuda_load_acquire(&a.report.mailbox->aborted) == 0)
        cuda_pause();
    /* a receiver whose job has ended reads it without a wait */
    cuda_store_relaxed(&head[0], number);
    cuda_store_relaxed(&head[1], (uint32_t)a.counts[to]);
    cuda_store_release((uint32_t *)(lines + a.arrived_at), number + 1);
}

/* A number of blocks that divides share * nranks. Each rank begins with its right neighbour and
 * ends with itself. */
extern "C" __global__ void comm_cuda_ipc_put_rows(ipc_put_rows_t a)
{
    uint64_t begin = cuda_globaltimer();

    if (!counts_fit(a))
        return;
    for (uint32_t unit = blockIdx.x; unit < a.nranks * a.share; unit += gridDim.x) {
        uint32_t to = (a.rank + 1 + unit % a.nranks) % a.nranks;

        copy_rows(a, to, unit / a.nranks);
        __syncthreads(); /* one thread's fence then speaks for the block */
        if (threadIdx.x == 0)
            publish_rows(a, to, begin);
    }
}

/* One block. Counts are read once: what is checked is what is used. */
extern "C" __global__ void comm_cuda_ipc_take_counts(ipc_take_counts_t a)
{
    uint32_t number = signal_value(a.number);

    for (uint32_t p = threadIdx.x; p < a.nranks; p += blockDim.x) {
        const uint32_t *head = (const uint32_t *)(a.heads + (uint64_t)p * LINE);
        uint32_t found = cuda_load_acquire(&head[0]), rows = cuda_load_acquire(&head[1]);
        bool good = found == number && rows <= a.capacity;

        if (!good)
            fault2(a.report, IPC_FAULT_ROWS, a.object, number, p, found, rows);
        a.counts[p] = good ? (int32_t)rows : 0;
    }
}

/* ---- sums ---- */

static CUDA_DEVICE bool heads_agree(const ipc_sum_t &a)
{
    uint32_t expected[4] = {signal_value(a.number), (uint32_t)a.count, (uint32_t)(a.count >> 32), a.dtype};

    for (uint32_t p = 0; p < a.nranks; p++) {
        const uint32_t *head = (const uint32_t *)(a.heads + (uint64_t)p * LINE);
        uint32_t found[4] = {cuda_load_acquire(&head[0]), cuda_load_acquire(&head[1]), cuda_load_acquire(&head[2]),
                             cuda_load_acquire(&head[3])};

        if (found[0] == expected[0] && found[1] == expected[1] && found[2] == expected[2] && found[3] == expected[3])
            continue;
        if (blockIdx.x == 0 && threadIdx.x == 0 && first_fault(a.report)) {
            a.report.mailbox->words[0] = p;
            for (int i = 0; i < 4; i++) {
                a.report.mailbox->words[1 + i] = expected[i];
                a.report.mailbox->words[5 + i] = found[i];
            }
            send_fault(a.report, IPC_FAULT_SUM, 0);
        }
        return false;
    }
    return true;
}

/* In rank order for every element. Integers wrap. */
template <typename T> static CUDA_DEVICE void sum_slices(const ipc_sum_t &a)
{
    if (!heads_agree(a))
        return;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.elements;
         i += (uint64_t)gridDim.x * blockDim.x) {
        T total = ((const T *)a.in)[i];

        for (uint32_t p = 1; p < a.nranks; p++)
            total += ((const T *)(a.in + p * a.in_stride))[i];
        for (uint32_t p = 0; p < a.nranks; p++)
            ((T *)((unsigned char *)(uintptr_t)a.peers[2 * p + 1] + a.out_at))[i] = total;
    }
    __threadfence_system();
}

extern "C" __global__ void comm_cuda_ipc_sum_f32(ipc_sum_t a)
{
    sum_slices<float>(a);
}

extern "C" __global__ void comm_cuda_ipc_sum_f64(ipc_sum_t a)
{
    sum_slices<double>(a);
}

extern "C" __global__ void comm_cuda_ipc_sum_i64(ipc_sum_t a)
{
    sum_slices<unsigned long long>(a);
}
