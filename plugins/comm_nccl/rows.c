/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * rows.c: exchanges of exact sizes.
 *
 * NCCL wants counts on the host, where they are known only when the stream gets there, and the host
 * has long gone on. So a thread of ours takes one exchange after the other: the caller's stream
 * says when the counts are there and then waits; the thread has them exchanged, reads them, and has
 * so many rows moved, straight from where the caller has them, all on the thread's stream; that
 * lets the caller's stream go on. All calls of NCCL for rows come from this thread, in the order of
 * the exchanges, which all ranks have in common. */
#include "channel.h"
#include "communicator.h"
#include "exchange.h"
#include "fault.h"

#include "cuda/launch.h"
#include "plugins/common/do.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLLS   200
#define POLL_NS 20000
#define IDLE_NS INT64_C(10000000)
#define AHEAD   0x40000000u /* of any exchange */

bool nccl_rows_are_in_order(void)
{
    const char *wish = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");

    return wish != NULL && strcmp(wish, "0") != 0;
}

dp_status_t nccl_rows_choose(dp_comm_t *comm)
{
    char text[32];
    const char *wish = debug_value("nccl.exchange", text, sizeof(text));
    const bool few = comm->cu->queues < QUEUES_MIN;
    const bool exact = wish != NULL ? strcmp(wish, "exact") == 0 : !few && !nccl_rows_are_in_order();

    if (wish != NULL && !exact && strcmp(wish, "capacity") != 0)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "DUALPIPE_DEBUG=nccl.exchange=%s: must be exact or capacity", wish);
    if (exact && few)
        return DP_FAIL(comm->host, DP_ERR_INVALID,
                       "group %s: DUALPIPE_DEBUG=nccl.exchange=exact needs streams that do not hold up each other: "
                       "CUDA_DEVICE_MAX_CONNECTIONS is %d, set %d",
                       comm->name, comm->cu->queues, QUEUES_MIN);
    if (exact && nccl_rows_are_in_order())
        return DP_FAIL(
            comm->host, DP_ERR_INVALID,
            "group %s: DUALPIPE_DEBUG=nccl.exchange=exact has no order of launches that all ranks have in common: "
            "unset NCCL_LAUNCH_ORDER_IMPLICIT",
            comm->name);
    comm->exact = exact && comm->nranks > 1;
    comm->exact_wished = comm->exact && wish != NULL;
    return DP_OK;
}

void nccl_rows_settle(dp_comm_t *comm, int32_t rank, const streams_t *n)
{
    char text[NAME_BYTES + 512];

    if (!comm->exact || comm->exchanges == NULL || comm->rows != NULL || n->streams <= n->queues)
        return;
    comm->exact = comm->exact_wished;
    if (comm->rank != 0)
        return;
    snprintf(text, sizeof(text),
             "group %s: rank %d has %u streams on its device, two of them for each of its %u communicators of NCCL, "
             "and %u hardware queues: what moves rows may be behind what waits for them in one queue; %s",
             comm->name, comm->world[rank], n->streams, n->communicators, n->queues,
             comm->exact ? "exchanges are of exact sizes all the same, as DUALPIPE_DEBUG=nccl.exchange=exact says"
                         : "so exchanges move their whole capacity (DUALPIPE_DEBUG=nccl.exchange=capacity says that "
                           "this is meant, exact takes the risk)");
    comm->host->log(comm->host, DP_LOG_WARN, "comm_nccl", text);
}

/* ---- the caller ---- */

dp_status_t nccl_rows_enqueue(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *offsets,
                              const int32_t *counts, dp_stream_t *s)
{
    dp_comm_t *comm = x->comm;
    const uint32_t slot = number % x->config.slots;
    int32_t *in = x->counts_in + (size_t)slot * (size_t)comm->nranks, *table = x->table;
    int32_t capacity = (int32_t)x->config.capacity_rows;
    uint64_t object = (uint64_t)(uintptr_t)x;
    dp_status_t status = DP_OK;

    if (comm->jobs_posted - __atomic_load_n(&comm->jobs_done.value, __ATOMIC_ACQUIRE) >= JOBS_MOST)
        status = comm->host->wait(comm->host, &comm->jobs_done, comm->jobs_posted - JOBS_MOST + 1, -1, x->label);
    if (status >= 0 && nccl_fault_aborts(comm)) {
        status = nccl_fault_check(comm);
        if (status >= 0)
            return DP_FAIL(comm->host, DP_ERR_ABORTED, "rank %d: group %s was aborted", WORLD(comm), comm->name);
    }
    if (status >= 0)
        status = cuda_launch(comm->host, comm->cu, comm->count_rows, CUDA_DIM(1), CUDA_DIM(32), 0, native(comm, s),
                             &offsets, &counts, &comm->nranks, &comm->rank, &capacity, &table, &x->counts_out, &in,
                             &number, &object, &comm->mailbox);
    if (status >= 0)
        status = CUDA_CHECK(comm->host,
                            comm->cu->cuStreamWriteValue32(native(comm, s), (CUdeviceptr)(uintptr_t)&x->flags->ready,
                                                           number + 1, CU_STREAM_WRITE_VALUE_DEFAULT),
                            "saying that counts are there");
    if (status < 0)
        return status;
    comm->jobs[comm->jobs_posted % JOBS_MOST] = (job_t){x, number, send};
    comm->host->post(comm->host, &comm->jobs_there, ++comm->jobs_posted);
    return CUDA_CHECK(comm->host,
                      comm->cu->cuStreamWaitValue32(native(comm, s), (CUdeviceptr)(uintptr_t)&x->flags->done,
                                                    number + 1, CU_STREAM_WAIT_VALUE_GEQ),
                      "waiting for rows");
}

void nccl_rows_release(dp_comm_t *comm)
{
    for (dp_exchange_t *x = __atomic_load_n(&comm->exchanges, __ATOMIC_ACQUIRE); x != NULL; x = x->next) {
        flags_t *flags = __atomic_load_n(&x->flags, __ATOMIC_ACQUIRE);

        if (flags != NULL)
            __atomic_store_n(&flags->done, (uint32_t)__atomic_load_n(&x->count, __ATOMIC_ACQUIRE) + AHEAD,
                             __ATOMIC_RELEASE);
    }
}

/* ---- the thread ---- */

/* Until a stream has written `number` there. */
static dp_status_t await(dp_comm_t *comm, const uint32_t *word, uint32_t number, const char *what)
{
    for (int n = 0; (int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - number) < 0; n++) {
        dp_status_t status = DP_ERR_TIMEOUT;

        if (nccl_fault_aborts(comm) || __atomic_load_n(&comm->rows_closing, __ATOMIC_ACQUIRE))
            return DP_ERR_ABORTED;
        if (n < POLLS)
            sched_yield();
        else
            status = comm->host->wait(comm->host, &comm->wake, 1, POLL_NS, what);
        if (status != DP_ERR_TIMEOUT)
            return status < 0 ? status : DP_ERR_ABORTED;
    }
    return DP_OK;
}

static bool fine(ncclResult_t result)
{
    return result == ncclSuccess || result == ncclInProgress;
}

/* Counts of both sides, so that the host can read those that come. */
static dp_status_t swap_counts(dp_exchange_t *x, int32_t *in, uint32_t number, dp_stream_t *s)
{
    dp_comm_t *comm = x->comm;
    ncclComm_t *comms[1] = {&comm->rows};
    ncclResult_t result = ncclSuccess;
    int32_t capacity = (int32_t)x->config.capacity_rows, *table = x->table + 2 * comm->nranks;
    uint64_t object = (uint64_t)(uintptr_t)x;
    dp_status_t status;

    DO(nccl_begin(comm));
    for (int32_t k = 1; k < comm->nranks && fine(result); k++) {
        int32_t to = (comm->rank + k) % comm->nranks, from = (comm->rank + comm->nranks - k) % comm->nranks;

        result = comm->nccl->ncclSend(x->counts_out + to, sizeof(int32_t), ncclUint8, to, comm->rows,
                                      (cudaStream_t)native(comm, s));
        if (fine(result))
            result = comm->nccl->ncclRecv(in + from, sizeof(int32_t), ncclUint8, from, comm->rows,
                                          (cudaStream_t)native(comm, s));
    }
    status = nccl_end(comm, result, comms, 1, x->label);
    if (status >= 0)
        status = cuda_launch(comm->host, comm->cu, comm->check_counts, CUDA_DIM(1), CUDA_DIM(32), 0, native(comm, s),
                             &in, &table, &comm->nranks, &comm->rank, &capacity, &number, &object, &comm->mailbox);
    if (status >= 0)
        status = CUDA_CHECK(comm->host,
                            comm->cu->cuStreamWriteValue32(native(comm, s), (CUdeviceptr)(uintptr_t)&x->flags->counted,
                                                           number + 1, CU_STREAM_WRITE_VALUE_DEFAULT),
                            "saying that counts have come");
    return status >= 0 ? await(comm, &x->flags->counted, number + 1, x->label) : status;
}

static dp_status_t swap_rows(dp_exchange_t *x, const unsigned char *send, unsigned char *rows, dp_stream_t *s)
{
    dp_comm_t *comm = x->comm;
    const int32_t n = comm->nranks, *first = x->table, *out = first + n, *in = out + n;
    const size_t row = x->config.row_bytes;
    cudaStream_t stream = (cudaStream_t)native(comm, s);
    ncclComm_t *comms[1] = {&comm->rows};
    ncclResult_t result = ncclSuccess;
    dp_status_t copied = DP_OK, moved;

    DO(nccl_begin(comm)); /* behind an abort nobody touches a caller's rows */
    if (out[comm->rank] > 0)
        copied = CUDA_CHECK(comm->host,
                            comm->cu->cuMemcpyAsync((CUdeviceptr)(uintptr_t)(rows + (size_t)comm->rank * x->stretch),
                                                    (CUdeviceptr)(uintptr_t)(send + (size_t)first[comm->rank] * row),
                                                    (size_t)out[comm->rank] * row, native(comm, s)),
                            "copying our own rows");
    for (int32_t k = 1; k < n && fine(result); k++) {
        int32_t to = (comm->rank + k) % n, from = (comm->rank + n - k) % n;

        if (out[to] > 0)
            result = comm->nccl->ncclSend(send + (size_t)first[to] * row, (size_t)out[to] * row, ncclUint8, to,
                                          comm->rows, stream);
        if (in[from] > 0 && fine(result))
            result = comm->nccl->ncclRecv(rows + (size_t)from * x->stretch, (size_t)in[from] * row, ncclUint8, from,
                                          comm->rows, stream);
    }
    moved = nccl_end(comm, result, comms, 1, x->label);
    return copied < 0 ? copied : moved;
}

static dp_status_t run_job(dp_comm_t *comm, const job_t *job)
{
    dp_exchange_t *x = job->exchange;
    const size_t slot = job->number % x->config.slots, n = (size_t)comm->nranks;
    dp_status_t status = await(comm, &x->flags->ready, job->number + 1, x->label);

    if (status >= 0)
        status = swap_counts(x, x->counts_in + slot * n, job->number, comm->rows_stream);
    if (status >= 0)
        status = swap_rows(x, job->send, x->slots + slot * n * x->stretch, comm->rows_stream);
    if (status < 0)
        return status;
    return CUDA_CHECK(comm->host,
                      comm->cu->cuStreamWriteValue32(native(comm, comm->rows_stream),
                                                     (CUdeviceptr)(uintptr_t)&x->flags->done, job->number + 1,
                                                     CU_STREAM_WRITE_VALUE_DEFAULT),
                      "saying that rows have come");
}

/* Nobody waits for an exchange any more, nor for a place in the ring. Our stream may still have to
 * say that rows have come, which takes back that later ones have: so again and again, until there
 * are no communicators. */
static void release_all(dp_comm_t *comm)
{
    while (!__atomic_load_n(&comm->rows_closing, __ATOMIC_ACQUIRE)) {
        comm->host->post(comm->host, &comm->jobs_done, __atomic_load_n(&comm->jobs_there.value, __ATOMIC_ACQUIRE));
        if (nccl_fault_aborts(comm)) {
            nccl_rows_release(comm);
            nccl_puts_let_go(comm);
        }
        /* behind an abort this wait is over at once: what is left of the job is its close */
        (void)comm->host->wait(comm->host, &comm->jobs_there,
                               __atomic_load_n(&comm->jobs_there.value, __ATOMIC_ACQUIRE) + 1, IDLE_NS, "exchanges");
        sched_yield();
    }
}

static void *move_rows(void *arg)
{
    dp_comm_t *comm = arg;
    dp_status_t status = DP_OK;

    (void)comm->cu->cuCtxSetCurrent(comm->context);
    for (uint32_t done = 0; status >= 0;) {
        status = comm->host->wait(comm->host, &comm->jobs_there, done + 1, IDLE_NS, "exchanges");
        if (__atomic_load_n(&comm->rows_closing, __ATOMIC_ACQUIRE))
            return NULL;
        if (nccl_fault_aborts(comm))
            status = DP_ERR_ABORTED;
        else if (status == DP_ERR_TIMEOUT) {
            status = DP_OK;
            continue;
        }
        if (status >= 0)
            status = run_job(comm, &comm->jobs[done % JOBS_MOST]);
        if (status >= 0)
            comm->host->post(comm->host, &comm->jobs_done, ++done);
    }
    nccl_fault_tell(comm, status);
    release_all(comm);
    return NULL;
}

/* ---- open and close ---- */

static dp_status_t open_jobs(dp_comm_t *comm)
{
    comm->jobs = comm->host->allocate(comm->host, JOBS_MOST * sizeof(*comm->jobs), 16);
    if (comm->jobs == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory for exchanges", comm->name);
    return comm->device_vt->stream_open(comm->device, DP_LANE_ALL_TO_ALL, &comm->rows_stream);
}

dp_status_t nccl_rows_open(dp_comm_t *comm)
{
    sigset_t all, before;
    dp_status_t status = DP_OK;
    int error;

    if (comm->exact && comm->exchanges != NULL && comm->rows_stream == NULL)
        status = open_jobs(comm);
    if (status < 0 || comm->moving || (comm->rows_stream == NULL && !(comm->one_sided && comm->ends != NULL)))
        return status;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&comm->mover, NULL, move_rows, comm);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    comm->moving = error == 0;
    return error == 0
               ? DP_OK
               : DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no thread for it: %s", comm->name, strerror(error));
}

void nccl_rows_close(dp_comm_t *comm)
{
    if (comm->moving) {
        __atomic_store_n(&comm->rows_closing, true, __ATOMIC_RELEASE);
        comm->host->post(comm->host, &comm->jobs_there, comm->jobs_posted + 1);
        pthread_join(comm->mover, NULL);
    }
    comm->moving = false;
}

dp_status_t nccl_rows_connect(dp_exchange_t *x)
{
    dp_comm_t *comm = x->comm;
    const size_t bytes = sizeof(*x->flags) + 3 * (size_t)comm->nranks * sizeof(int32_t);
    void *memory = NULL;

    DO(CUDA_CHECK(comm->host, comm->cu->cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE),
                  "allocating a table of counts"));
    memset(memory, 0, bytes);
    x->table = (int32_t *)(void *)((flags_t *)memory + 1);
    __atomic_store_n(&x->flags, memory, __ATOMIC_RELEASE);
    return DP_OK;
}
