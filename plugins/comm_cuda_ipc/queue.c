/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * queue.c: puts steps on a stream: as memory operations of the stream, which need no SM, or as a
 * kernel where a graph replays them, because a graph would repeat the numbers of its capture. */
#include "queue.h"

#include <string.h>

/* ---- which way ---- */

static dp_status_t remember_stream(dp_comm_t *comm, const dp_stream_t *s, CUevent *mark_out)
{
    uint32_t i = 0;

    while (i < comm->stream_count && comm->streams[i].stream != s)
        i++;
    if (i == STREAMS_MAX)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: more than %d streams carry its transfers", comm->name,
                       STREAMS_MAX);
    comm->streams[i].stream = s;
    comm->stream_count += i == comm->stream_count;
    *mark_out = comm->streams[i].mark;
    return DP_OK;
}

dp_status_t ipc_queue_enter(dp_comm_t *comm, dp_stream_t *s, queue_t *queue_out)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUstream stream = comm->device_vt->stream_native(s);
    dp_status_t status;

    status = remember_stream(comm, s, &queue_out->mark);
    if (status == DP_OK)
        status =
            CUDA_CHECK(comm->host, comm->cu->cuStreamIsCapturing(stream, &capture), "asking a stream for its capture");
    if (status < 0)
        return status;
    queue_out->comm = comm;
    queue_out->stream = stream;
    queue_out->capturing = capture != CU_STREAM_CAPTURE_STATUS_NONE;
    queue_out->kernels = queue_out->capturing || comm->spin;
    return DP_OK;
}

dp_status_t ipc_queue_leave(const queue_t *q, dp_status_t status)
{
    dp_status_t marked = q->capturing ? DP_OK
                                      : CUDA_CHECK(q->comm->host, q->comm->cu->cuEventRecord(q->mark, q->stream),
                                                   "group %s: marking a stream", q->comm->name);

    return status < 0 ? status : marked;
}

ipc_value_t ipc_queue_value(const queue_t *q, const uint32_t *counter, uint32_t base, uint32_t delta)
{
    ipc_value_t value = {q->kernels ? counter : NULL, q->kernels ? delta : base + delta, 0};

    return value;
}

/* In the memory domain of transfers, where there are domains: what a release waits for is then our
 * own writes, not those of all kernels that compute meanwhile. */
dp_status_t ipc_queue_launch(const queue_t *q, CUfunction function, uint32_t blocks, uint32_t threads, void *args,
                             const char *what)
{
    dp_comm_t *comm = q->comm;
    CUlaunchAttribute domain = {.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN};
    CUlaunchConfig config = {.gridDimX = blocks,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = threads,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = q->stream,
                             .attrs = &domain,
                             .numAttrs = comm->has_domains};

    domain.value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
    return CUDA_CHECK(comm->host, comm->cu->cuLaunchKernelEx(&config, function, (void *[]){args}, NULL), "launching %s",
                      what);
}

/* ---- steps ---- */

/* What a stream is about to wait for, so that an abort can release it. */
static void note_target(dp_comm_t *comm, const uint32_t *word, uint32_t value)
{
    for (holding_t *h = comm->own; h != NULL; h = h->next) {
        uintptr_t at = (uintptr_t)word - (uintptr_t)h->block.base;

        if ((uintptr_t)word >= (uintptr_t)h->block.base && at < h->lines * LINE_BYTES)
            __atomic_store_n(&h->targets[at / LINE_BYTES], TARGET_SET | value, __ATOMIC_RELAXED);
    }
}

static dp_status_t flush_batch(const queue_t *q, uint32_t *count)
{
    dp_status_t status = DP_OK;

    if (*count > 0)
        status = CUDA_CHECK(q->comm->host, q->comm->cu->cuStreamBatchMemOp(q->stream, *count, q->comm->batch, 0),
                            "group %s: putting %u waits and writes on a stream", q->comm->name, *count);
    *count = 0;
    return status;
}

static void add_operation(const queue_t *q, const plan_t *plan, const plan_step_t *step, uint32_t *count)
{
    CUstreamBatchMemOpParams *op = &q->comm->batch[(*count)++];
    uint32_t value = plan_value(plan, step);

    memset(op, 0, sizeof(*op));
    if (step->kind == PLAN_WAIT) {
        op->waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
        op->waitValue.address = (CUdeviceptr)(uintptr_t)step->word;
        op->waitValue.value = value;
        op->waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
        note_target(q->comm, step->word, value);
    } else {
        op->writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        op->writeValue.address = (CUdeviceptr)(uintptr_t)step->word;
        op->writeValue.value = value;
        op->writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    }
}

static dp_status_t flush_signals(const queue_t *q, ipc_signals_t *signals)
{
    dp_status_t status = DP_OK;

    if (signals->count > 0)
        status = ipc_queue_launch(q, q->comm->signals, 1, 1, signals, "comm_cuda_ipc_signals");
    signals->count = 0;
    return status;
}

static void add_signal(const plan_step_t *step, ipc_signals_t *signals)
{
    ipc_signal_t *signal = &signals->signals[signals->count++];

    signal->word = step->word;
    signal->value = step->value;
    signal->kind = step->kind == PLAN_WAIT ? IPC_WAIT : step->kind == PLAN_WRITE ? IPC_WRITE : IPC_EXPECT;
    signal->relative = step->relative;
}

static dp_status_t copy_step(const queue_t *q, const plan_step_t *step)
{
    dp_comm_t *comm = q->comm;
    dp_status_t status =
        CUDA_CHECK(comm->host,
                   comm->cu->cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)step->to, (CUdeviceptr)(uintptr_t)step->from,
                                               step->bytes, q->stream),
                   "group %s: copying %zu bytes", comm->name, step->bytes);
    ipc_pace_t pace = {comm->report, (uint64_t)((double)step->bytes * comm->link_ns_per_byte)};

    if (status == DP_OK && pace.ns > 0)
        status = ipc_queue_launch(q, comm->pace, 1, 1, &pace, "comm_cuda_ipc_pace");
    return status;
}

static dp_status_t run_as_operations(const queue_t *q, const plan_t *plan)
{
    dp_status_t status = DP_OK;
    uint32_t count = 0;

    for (uint32_t i = 0; i < plan->count && status == DP_OK; i++) {
        const plan_step_t *step = &plan->steps[i];

        if (step->kind == PLAN_EXPECT) /* the host has just counted */
            continue;
        if (step->kind == PLAN_COPY || count == BATCH_MAX)
            status = flush_batch(q, &count);
        if (status == DP_OK && step->kind == PLAN_COPY)
            status = copy_step(q, step);
        else if (status == DP_OK)
            add_operation(q, plan, step, &count);
    }
    return status == DP_OK ? flush_batch(q, &count) : status;
}

static dp_status_t run_as_kernels(const queue_t *q, const plan_t *plan)
{
    ipc_signals_t signals = {.report = q->comm->report, .counter = plan->counter};
    dp_status_t status = DP_OK;

    for (uint32_t i = 0; i < plan->count && status == DP_OK; i++) {
        const plan_step_t *step = &plan->steps[i];

        if (step->kind == PLAN_COPY || signals.count == IPC_SIGNALS)
            status = flush_signals(q, &signals);
        if (status == DP_OK && step->kind == PLAN_COPY)
            status = copy_step(q, step);
        else if (status == DP_OK)
            add_signal(step, &signals);
    }
    return status == DP_OK ? flush_signals(q, &signals) : status;
}

dp_status_t ipc_queue_run(const queue_t *q, const plan_t *plan)
{
    return q->kernels ? run_as_kernels(q, plan) : run_as_operations(q, plan);
}

/* ---- set-up ---- */

dp_status_t ipc_queue_settle(dp_comm_t *comm)
{
    return cuda_side_settle(comm->host, comm->cu, comm->side, "setting up memory of a group");
}

dp_status_t ipc_queue_upload(dp_comm_t *comm, void *to, const void *from, size_t bytes)
{
    dp_status_t status =
        CUDA_CHECK(comm->host, comm->cu->cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)to, from, bytes, comm->side),
                   "group %s: writing %zu bytes", comm->name, bytes);

    return status == DP_OK ? ipc_queue_settle(comm) : status;
}

dp_status_t ipc_queue_download(dp_comm_t *comm, void *to, const void *from, size_t bytes)
{
    dp_status_t status =
        CUDA_CHECK(comm->host, comm->cu->cuMemcpyDtoHAsync(to, (CUdeviceptr)(uintptr_t)from, bytes, comm->side),
                   "group %s: reading %zu bytes", comm->name, bytes);

    return status == DP_OK ? ipc_queue_settle(comm) : status;
}
