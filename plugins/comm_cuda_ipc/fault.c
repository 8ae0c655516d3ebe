/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fault.c: what is wrong, who is told, and how every wait on the device ends.
 *
 * Kernels report into a mailbox of pinned memory and look there for an abort. The device asks
 * ipc_fault_check() whenever somebody synchronises. A thread of ours sleeps until the job is
 * aborted or a kernel has reported; then it raises the mailbox's flag, which ends spinning kernels,
 * and writes the values that streams wait for, which releases those. What the released streams do
 * is of no use to anybody, and no look at it reports anything any more. */
#include "comm_cuda_ipc.h"

#include <poll.h>
#include <string.h>

#define TICK_NS    INT64_C(10000000)
#define RELEASE_MS 2

/* ---- what the kernels report ---- */

static const dp_channel_end_t *find_end(const dp_comm_t *comm, uint64_t object)
{
    for (const dp_channel_end_t *end = comm->ends; end != NULL; end = end->next)
        if ((uint64_t)(uintptr_t)end == object)
            return end;
    return NULL;
}

static const char *exchange_label(const dp_comm_t *comm, uint64_t object)
{
    for (const dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        if ((uint64_t)(uintptr_t)x == object)
            return x->label;
    return "?";
}

static int32_t world_of(const dp_comm_t *comm, uint32_t rank)
{
    return rank < (uint32_t)comm->nranks ? comm->world[rank] : -1;
}

static dp_status_t explain_rows(const dp_comm_t *comm, uint32_t fault, const ipc_mailbox_t *m)
{
    const char *label = exchange_label(comm, m->object);
    int32_t rows = (int32_t)m->words[fault == IPC_FAULT_OVERFLOW ? 2 : 3];

    if (fault == IPC_FAULT_OVERFLOW)
        return DP_FAIL(comm->host, rows < 0 ? DP_ERR_INVALID : DP_ERR_OVERFLOW,
                       "rank %d: exchange %u of \"%s\": %d rows for rank %d are more than its capacity", WORLD(comm),
                       m->words[0], label, rows, world_of(comm, m->words[1]));
    return DP_FAIL(comm->host, DP_ERR_PROTOCOL, "rank %d: exchange %u of \"%s\": rank %d sent exchange %u with %d rows",
                   WORLD(comm), m->words[0], label, world_of(comm, m->words[1]), m->words[2], rows);
}

static dp_status_t explain_sum(const dp_comm_t *comm, const ipc_mailbox_t *m)
{
    const uint32_t *w = m->words;

    return DP_FAIL(comm->host, DP_ERR_PROTOCOL,
                   "rank %d: all_reduce in group %s, part %u, has %llu elements of dtype %u; on rank %d it "
                   "is part %u of "
                   "%llu, dtype %u",
                   WORLD(comm), comm->name, w[1], (unsigned long long)w[3] << 32 | w[2], w[4], world_of(comm, w[0]),
                   w[5], (unsigned long long)w[7] << 32 | w[6], w[8]);
}

static dp_status_t explain_fault(const dp_comm_t *comm, uint32_t fault)
{
    const ipc_mailbox_t *m = comm->mailbox;
    const dp_channel_end_t *end;

    switch (fault) {
    case IPC_FAULT_TAG:
        end = find_end(comm, m->object);
        return end != NULL ? ipc_channel_refuse(end, m->words)
                           : DP_FAIL(comm->host, DP_ERR_PROTOCOL, "rank %d: group %s: a wrong message", WORLD(comm),
                                     comm->name);
    case IPC_FAULT_OVERFLOW:
    case IPC_FAULT_ROWS:
        return explain_rows(comm, fault, m);
    case IPC_FAULT_SUM:
        return explain_sum(comm, m);
    case IPC_FAULT_DEADLINE:
        return DP_FAIL(comm->host, DP_ERR_TIMEOUT,
                       "rank %d: group %s: a kernel waited for %u and saw %u: a rank has not come", WORLD(comm),
                       comm->name, m->words[0], m->words[1]);
    default:
        return DP_FAIL(comm->host, DP_ERR_INVALID,
                       "rank %d: group %s: slot %u is used and slot %u is next: a graph that is replayed "
                       "holds a whole number "
                       "of rounds through the slots of each channel and exchange",
                       WORLD(comm), comm->name, m->words[0], m->words[1]);
    }
}

static uint32_t reported(const dp_comm_t *comm)
{
    return __atomic_load_n(&comm->mailbox->fault, __ATOMIC_ACQUIRE);
}

dp_status_t ipc_fault_check(void *arg)
{
    dp_comm_t *comm = arg;
    uint32_t fault = reported(comm);

    if (fault != IPC_FAULT_NONE) {
        comm->host->post(comm->host, &comm->wake, 1);
        return explain_fault(comm, fault);
    }
    return comm->host->aborted(comm->host);
}

/* ---- releasing what waits ---- */

static void release_words(dp_comm_t *comm, const holding_t *h)
{
    for (size_t line = 1; line < h->lines; line++) {
        uint64_t target = __atomic_load_n(&h->targets[line], __ATOMIC_RELAXED);
        CUdeviceptr at = (CUdeviceptr)(uintptr_t)(h->block.base + line * LINE_BYTES);

        if (target != 0)
            (void)comm->cu->cuStreamWriteValue32(comm->side, at, (uint32_t)target, CU_STREAM_WRITE_VALUE_DEFAULT);
    }
}

/* Again and again until the end: a peer may write a smaller number in between, and more may be
 * waiting behind. */
static void release_all(dp_comm_t *comm)
{
    __atomic_store_n(&comm->mailbox->aborted, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&comm->closing, __ATOMIC_ACQUIRE) == 0) {
        if (comm->cu->cuStreamQuery(comm->side) == CUDA_SUCCESS)
            for (const holding_t *h = __atomic_load_n(&comm->own, __ATOMIC_ACQUIRE); h != NULL; h = h->next)
                release_words(comm, h);
        poll(NULL, 0, RELEASE_MS); /* the host's wait would return at once: the job is over */
    }
}

static void *watch_faults(void *arg)
{
    dp_comm_t *comm = arg;
    const dp_host_t *host = comm->host;
    dp_status_t status;

    (void)comm->cu->cuCtxSetCurrent(comm->context);
    do
        status = host->wait(host, &comm->wake, 1, TICK_NS, "faults are watched for");
    while (status == DP_ERR_TIMEOUT && reported(comm) == IPC_FAULT_NONE);
    if (__atomic_load_n(&comm->closing, __ATOMIC_ACQUIRE) == 0)
        release_all(comm);
    return NULL;
}

/* ---- life ---- */

static dp_status_t open_mailbox(dp_comm_t *comm)
{
    const dp_host_limits_t *limits = comm->host->get_service(comm->host, DP_HOST_LIMITS);
    const cuda_driver_t *cu = comm->cu;
    void *memory = NULL;
    dp_status_t status = CUDA_CHECK(
        comm->host,
        cu->cuMemHostAlloc(&memory, sizeof(ipc_mailbox_t), CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE),
        "group %s: pinning memory", comm->name);

    if (status < 0)
        return status;
    comm->mailbox = memory;
    memset(comm->mailbox, 0, sizeof(*comm->mailbox));
    status = CUDA_CHECK(comm->host, cu->cuMemHostGetDevicePointer(&comm->mailbox_at, memory, 0),
                        "group %s: mapping pinned memory", comm->name);
    comm->report.mailbox = (ipc_mailbox_t *)(uintptr_t)comm->mailbox_at;
    comm->report.deadline_ns = limits != NULL ? (uint64_t)limits->hang_ns : UINT64_MAX;
    return status;
}

dp_status_t ipc_fault_open(dp_comm_t *comm)
{
    dp_status_t status = open_mailbox(comm);

    if (status == DP_OK)
        status = cuda_side_open(comm->host, comm->cu, &comm->side);
    if (status < 0)
        return status;
    if (pthread_create(&comm->watchdog, NULL, watch_faults, comm) != 0)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no thread to watch for faults", comm->name);
    comm->watchdog_runs = true;
    status = comm->device_vt->watch(comm->device, ipc_fault_check, comm);
    comm->watched = status == DP_OK;
    return status;
}

void ipc_fault_close(dp_comm_t *comm, bool at_rest)
{
    if (comm->watched)
        comm->device_vt->unwatch(comm->device, ipc_fault_check, comm);
    if (comm->watchdog_runs) {
        __atomic_store_n(&comm->closing, 1, __ATOMIC_RELEASE);
        comm->host->post(comm->host, &comm->wake, 2);
        pthread_join(comm->watchdog, NULL);
    }
    if (at_rest)
        cuda_side_close(comm->cu, comm->side);
    if (at_rest)
        (void)comm->cu->cuMemFreeHost(comm->mailbox);
}
