/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fault.c: what is wrong, who is told, and how waits on the device end.
 *
 * A kernel that NCCL has started waits for its peer for ever, and nothing on the device ends it but
 * an abort from the host. A thread of ours sleeps until the job is aborted, NCCL reports an error
 * of a communicator, or one of our kernels has reported to the mailbox; then it aborts all
 * communicators, whose kernels return. */
#include "fault.h"
#include "exchange.h"

#include "cuda/launch.h"
#include "plugins/common/do.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define TICK_NS     INT64_C(10000000)
#define PATIENCE_NS INT64_C(1000000000) /* for the host to find out which rank has died */

static dp_status_t explain_mailbox(const dp_comm_t *comm, uint32_t kind)
{
    const nccl_mailbox *m = comm->mailbox;
    const uint32_t *w = m->words;
    const dp_channel_end_t *end = (const dp_channel_end_t *)(uintptr_t)m->object;
    const dp_exchange_t *x = (const dp_exchange_t *)(uintptr_t)m->object;

    if (kind == NCCL_FAULT_TAG)
        return DP_FAIL(
            comm->host, DP_ERR_PROTOCOL,
            "rank %d: %s from rank %d: message %u of step %u, micro-batch %d, %u bytes was expected; message %u of step "
            "%u, micro-batch %d, %u bytes came",
            WORLD(comm), end->label, comm->world[end->config.peer], w[0], w[1], (int)w[2], w[3], w[4], w[5], (int)w[6],
            w[7]);
    if (kind == NCCL_FAULT_OVERFLOW)
        return DP_FAIL(comm->host, (int32_t)w[2] < 0 ? DP_ERR_INVALID : DP_ERR_OVERFLOW,
                       "rank %d: exchange %u of \"%s\": %d rows for rank %d; the capacity is %u", WORLD(comm), w[0],
                       x->label, (int)w[2], comm->world[w[1]], x->config.capacity_rows);
    if (kind == NCCL_FAULT_ROWS)
        return DP_FAIL(comm->host, DP_ERR_OVERFLOW,
                       "rank %d: exchange %u of \"%s\": rank %d had more rows than the capacity of %u", WORLD(comm),
                       w[0], x->label, comm->world[w[1]], x->config.capacity_rows);
    return DP_FAIL(
        comm->host, DP_ERR_PROTOCOL,
        "rank %d: group %s: collective %u is of %llu elements of dtype %u%s; on rank %d it is collective %u of %llu "
        "elements of dtype %u%s",
        WORLD(comm), comm->name, w[0], (unsigned long long)w[2] << 32 | w[1], w[3] & ~NCCL_UNORDERED,
        w[3] & NCCL_UNORDERED ? ", unordered" : "", comm->world[w[8]], w[4], (unsigned long long)w[6] << 32 | w[5],
        w[7] & ~NCCL_UNORDERED, w[7] & NCCL_UNORDERED ? ", unordered" : "");
}

static uint32_t reported(const dp_comm_t *comm)
{
    return __atomic_load_n(&comm->mailbox->kind, __ATOMIC_ACQUIRE);
}

dp_status_t nccl_fault_check(void *arg)
{
    dp_comm_t *comm = arg;
    uint32_t kind = reported(comm);
    char trouble[sizeof(comm->trouble)];

    if (kind != NCCL_FAULT_NONE)
        return explain_mailbox(comm, kind);
    DO(comm->host->aborted(comm->host));
    pthread_mutex_lock(&comm->lock);
    memcpy(trouble, comm->trouble, sizeof(trouble));
    pthread_mutex_unlock(&comm->lock);
    if (trouble[0] != '\0')
        return DP_FAIL(comm->host, DP_ERR_DEVICE, "rank %d: group %s: %s", WORLD(comm), comm->name, trouble);
    return DP_OK;
}

/* ---- ending what waits ---- */

static void abort_communicator(dp_comm_t *comm, ncclComm_t *c)
{
    if (*c != NULL)
        (void)comm->nccl->ncclCommAbort(*c);
    *c = NULL;
}

/* An abort waits for the device: for kernels of the other communicators, so a group tells them all
 * to end first, and for streams that wait for rows. Nobody calls NCCL any more when the lock is
 * free again, nor waits for the aborts. Streams that wait are let go behind that: what they wait
 * for must not touch a caller's rows any more, which are freed then. */
void nccl_fault_abort(dp_comm_t *comm)
{
    pair_t *pairs;
    bool first;

    if (comm->mailbox != NULL)
        __atomic_store_n(&comm->mailbox->aborted, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&comm->lock);
    first = !comm->broken;
    pairs = comm->pairs;
    comm->broken = true;
    pthread_mutex_unlock(&comm->lock);
    nccl_rows_release(comm);
    if (!first)
        return;
    (void)comm->nccl->ncclGroupStart();
    for (pair_t *pair = pairs; pair != NULL; pair = pair->next)
        abort_communicator(comm, &pair->comm);
    abort_communicator(comm, &comm->split);
    abort_communicator(comm, &comm->tried);
    abort_communicator(comm, &comm->rows);
    abort_communicator(comm, &comm->sums);
    (void)comm->nccl->ncclGroupEnd();
}

bool nccl_fault_aborts(const dp_comm_t *comm)
{
    return __atomic_load_n(&comm->mailbox->aborted, __ATOMIC_ACQUIRE) != 0;
}

void nccl_fault_tell(dp_comm_t *comm, dp_status_t status)
{
    pthread_mutex_lock(&comm->lock);
    if (!comm->broken && status != DP_ERR_ABORTED && comm->host->aborted(comm->host) >= 0 && comm->trouble[0] == '\0')
        snprintf(comm->trouble, sizeof(comm->trouble), "%s", comm->host->last_error(comm->host));
    pthread_mutex_unlock(&comm->lock);
}

static bool has_error(dp_comm_t *comm, ncclComm_t c)
{
    ncclResult_t state = ncclSuccess;

    if (c == NULL || comm->nccl->ncclCommGetAsyncError(c, &state) != ncclSuccess || state == ncclSuccess ||
        state == ncclInProgress)
        return false;
    snprintf(comm->trouble, sizeof(comm->trouble), "NCCL says: %s (%s)", comm->nccl->ncclGetErrorString(state),
             comm->nccl->ncclGetLastError(c));
    return true;
}

static bool any_error(dp_comm_t *comm)
{
    bool found;

    pthread_mutex_lock(&comm->lock);
    found = comm->trouble[0] != '\0';
    if (!comm->broken && !found) {
        for (pair_t *pair = comm->pairs; pair != NULL && !found; pair = pair->next)
            found = has_error(comm, pair->comm);
        found = found || has_error(comm, comm->rows) || has_error(comm, comm->sums);
    }
    pthread_mutex_unlock(&comm->lock);
    return found;
}

/* A fault that a kernel reports is this rank's alone until its engine tells the job; the others'
 * kernels wait till then. */
static void *watch_communicators(void *arg)
{
    dp_comm_t *comm = arg;

    (void)comm->cu->cuCtxSetCurrent(comm->context);
    while (__atomic_load_n(&comm->closing, __ATOMIC_ACQUIRE) == 0) {
        dp_status_t status = comm->host->wait(comm->host, &comm->wake, 1, TICK_NS, "the end of a group");

        if (__atomic_load_n(&comm->closing, __ATOMIC_ACQUIRE) != 0)
            break;
        if (status == DP_ERR_TIMEOUT && reported(comm) == NCCL_FAULT_NONE && !any_error(comm))
            continue;
        if (status == DP_ERR_TIMEOUT && reported(comm) == NCCL_FAULT_NONE)
            (void)comm->host->wait(comm->host, &comm->wake, 1, PATIENCE_NS, "the cause of an error");
        nccl_fault_abort(comm);
        break;
    }
    return NULL;
}

dp_status_t nccl_fault_open(dp_comm_t *comm)
{
    void *memory = NULL;
    sigset_t all, before;
    dp_status_t status =
        CUDA_CHECK(comm->host, comm->cu->cuMemHostAlloc(&memory, sizeof(*comm->mailbox), CU_MEMHOSTALLOC_PORTABLE),
                   "allocating a mailbox");
    int error;

    if (status < 0)
        return status;
    comm->mailbox = memset(memory, 0, sizeof(*comm->mailbox));
    status = comm->device_vt->watch(comm->device, nccl_fault_check, comm);
    comm->watched = status >= 0;
    if (status < 0)
        return status;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&comm->watcher, NULL, watch_communicators, comm);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    comm->watching = error == 0;
    return error == 0
               ? DP_OK
               : DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no thread to watch it: %s", comm->name, strerror(error));
}

void nccl_fault_close(dp_comm_t *comm)
{
    if (comm->watching) {
        __atomic_store_n(&comm->closing, 1, __ATOMIC_RELEASE);
        comm->host->post(comm->host, &comm->wake, 1);
        pthread_join(comm->watcher, NULL);
    }
    comm->watching = false;
    if (comm->watched)
        comm->device_vt->unwatch(comm->device, nccl_fault_check, comm);
    comm->watched = false;
}

/* ---- heads ---- */

dp_status_t nccl_write_head(dp_comm_t *comm, uint32_t *head, const uint32_t words[4], dp_stream_t *s)
{
    CUstreamBatchMemOpParams ops[4];

    memset(ops, 0, sizeof(ops));
    for (int i = 0; i < 4; i++) {
        ops[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        ops[i].writeValue.address = (CUdeviceptr)(uintptr_t)(head + i);
        ops[i].writeValue.value = words[i];
    }
    return CUDA_CHECK(comm->host, comm->cu->cuStreamBatchMemOp(native(comm, s), 4, ops, 0),
                      "writing the head of a message");
}

dp_status_t nccl_check_heads(dp_comm_t *comm, const uint32_t *got, uint32_t count, int32_t skip,
                             const uint32_t words[4], uint32_t kind, const void *object, dp_stream_t *s)
{
    uint32_t w[4] = {words[0], words[1], words[2], words[3]};
    uint64_t what = (uint64_t)(uintptr_t)object;

    return cuda_launch(comm->host, comm->cu, comm->check_heads, CUDA_DIM(1), CUDA_DIM(32), 0, native(comm, s), &got,
                       &count, &skip, &w[0], &w[1], &w[2], &w[3], &kind, &what, &comm->mailbox);
}
