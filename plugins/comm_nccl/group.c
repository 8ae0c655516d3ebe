/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * group.c: calls of NCCL, one group at a time, and waiting until a non-blocking one has put its
 * work on the stream. */
#include "communicator.h"
#include "fault.h"
#include "plugins/common/do.h"

#include <sched.h>

#define POLLS   200 /* before the waits get longer */
#define POLL_NS 20000

dp_status_t nccl_begin(dp_comm_t *comm)
{
    pthread_mutex_lock(&comm->lock);
    if (!comm->broken && comm->nccl->ncclGroupStart() == ncclSuccess)
        return DP_OK;
    pthread_mutex_unlock(&comm->lock);
    if (nccl_fault_check(comm) < 0)
        return nccl_fault_check(comm);
    return DP_FAIL(comm->host, DP_ERR_DEVICE, "rank %d: group %s: a group of NCCL calls does not begin", WORLD(comm),
                   comm->name);
}

static dp_status_t refuse_group(dp_comm_t *comm, ncclResult_t result, const char *what)
{
    return DP_FAIL(comm->host,
                   result == ncclInvalidArgument || result == ncclInvalidUsage ? DP_ERR_INVALID : DP_ERR_DEVICE,
                   "rank %d: group %s: %s: NCCL says: %s (%s)", WORLD(comm), comm->name, what,
                   comm->nccl->ncclGetErrorString(result), comm->nccl->ncclGetLastError(NULL));
}

dp_status_t nccl_settle(dp_comm_t *comm, ncclComm_t *c, const char *what)
{
    for (int n = 0;; n++) {
        ncclResult_t state = ncclSuccess, result;
        dp_status_t status;

        pthread_mutex_lock(&comm->lock);
        if (comm->broken) {
            pthread_mutex_unlock(&comm->lock);
            status = nccl_fault_check(comm);
            return status < 0
                       ? status
                       : DP_FAIL(comm->host, DP_ERR_ABORTED, "rank %d: group %s was aborted", WORLD(comm), comm->name);
        }
        result = comm->nccl->ncclCommGetAsyncError(*c, &state);
        pthread_mutex_unlock(&comm->lock);
        if (result != ncclSuccess)
            return refuse_group(comm, result, what);
        if (state == ncclSuccess)
            return DP_OK;
        if (state != ncclInProgress) {
            /* a rank that died is the host's news before it is NCCL's */
            status = comm->host->wait(comm->host, &comm->wake, 1, INT64_C(1000000000), what);
            return status < 0 && status != DP_ERR_TIMEOUT ? status : refuse_group(comm, state, what);
        }
        if (n < POLLS) {
            sched_yield();
            continue;
        }
        status = comm->host->wait(comm->host, &comm->wake, 1, POLL_NS, what);
        if (status < 0 && status != DP_ERR_TIMEOUT)
            return status;
    }
}

dp_status_t nccl_end(dp_comm_t *comm, ncclResult_t result, ncclComm_t *const *comms, int count, const char *what)
{
    ncclResult_t ended = comm->nccl->ncclGroupEnd();

    pthread_mutex_unlock(&comm->lock);
    if (result == ncclSuccess || result == ncclInProgress)
        result = ended;
    if (result != ncclSuccess && result != ncclInProgress)
        return refuse_group(comm, result, what);
    for (int i = 0; i < count; i++) {
        dp_status_t status = nccl_settle(comm, comms[i], what);

        if (status < 0)
            return status;
    }
    return DP_OK;
}

static bool fine(ncclResult_t result)
{
    return result == ncclSuccess || result == ncclInProgress;
}

dp_status_t nccl_greet(dp_comm_t *comm, ncclComm_t *c, int32_t rank, int32_t nranks, bool sends, bool receives,
                       dp_stream_t *s, const char *what)
{
    const nccl_api_t *nccl = comm->nccl;
    uint32_t *own = comm->heads, *in = comm->heads + HEAD_BYTES / sizeof(uint32_t);
    cudaStream_t stream = (cudaStream_t)native(comm, s);
    ncclResult_t result = ncclSuccess;

    DO(nccl_begin(comm));
    for (int32_t p = 0; p < nranks && fine(result); p++) {
        if (p != rank && sends)
            result = nccl->ncclSend(own, HEAD_BYTES, ncclUint8, p, *c, stream);
        if (p != rank && receives && fine(result))
            result = nccl->ncclRecv(in + 4 * (size_t)p, HEAD_BYTES, ncclUint8, p, *c, stream);
    }
    return nccl_end(comm, result, &c, 1, what);
}

dp_status_t nccl_connect(dp_comm_t *comm, ncclComm_t *c, int32_t rank, int32_t nranks, bool sends, bool receives)
{
    dp_stream_t *s = NULL;
    dp_status_t status;

    DO(comm->device_vt->stream_open(comm->device, DP_LANE_P2P, &s));
    status = nccl_greet(comm, c, rank, nranks, sends, receives, s, "connecting");
    if (status >= 0)
        status = comm->device_vt->synchronize(s, -1);
    comm->device_vt->stream_close(s);
    return status;
}
