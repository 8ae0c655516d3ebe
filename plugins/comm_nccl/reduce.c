/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reduce.c: sums in rank order.
 *
 * NCCL's own all-reduce adds in an order of its choice, and is taken where
 * DUALPIPE_DEBUG=nccl.sums=unordered asks for its speed. Otherwise every rank gets one slice of a
 * block from all others, adds it in rank order, and hands the sum to all: as many bytes as a ring
 * moves, and the same bits everywhere. A round of heads goes first, so that ranks that sum
 * different things find out before sizes differ. */
#include "communicator.h"
#include "fault.h"

#include "cuda/launch.h"
#include "plugins/common/do.h"

#include <stdlib.h>
#include <string.h>

/* two groups and a kernel for each block: a quarter of a millisecond */
#define DEFAULT_BYTES ((size_t)64 << 20)
#define THREADS       256
#define MOST_BLOCKS   64

static bool fine(ncclResult_t result)
{
    return result == ncclSuccess || result == ncclInProgress;
}

static dp_status_t choose_order(dp_comm_t *comm)
{
    char text[32];
    const char *wish = debug_value("nccl.sums", text, sizeof(text));

    comm->unordered = wish != NULL && strcmp(wish, "unordered") == 0;
    if (wish == NULL || comm->unordered || strcmp(wish, "ordered") == 0)
        return DP_OK;
    return DP_FAIL(comm->host, DP_ERR_INVALID, "DUALPIPE_DEBUG=nccl.sums=%s: must be ordered or unordered", wish);
}

dp_status_t nccl_reduce_open(dp_comm_t *comm, size_t reduce_bytes)
{
    size_t n = (size_t)comm->nranks, bytes = reduce_bytes > 0 ? reduce_bytes : DEFAULT_BYTES;
    dp_status_t status = choose_order(comm);

    if (status < 0 || n == 1)
        return status;
    comm->slice_bytes = bytes / n / 256 * 256;
    if (comm->slice_bytes == 0)
        comm->slice_bytes = 256;
    if (!comm->unordered)
        status = nccl_memory(comm, n * comm->slice_bytes, &comm->staging);
    if (status >= 0)
        status = nccl_device_memory(comm, (1 + n) * HEAD_BYTES, &comm->heads);
    if (status >= 0)
        status = nccl_communicator_open(comm, nccl_ctas_of(comm).sums, &comm->sums);
    if (status >= 0)
        status = nccl_connect(comm, &comm->sums, comm->rank, comm->nranks, true, true);
    if (status >= 0 && !comm->unordered)
        nccl_buffer_register(comm, comm->sums, comm->staging, n * comm->slice_bytes);
    return status;
}

/* Everyone's head to everyone. */
static dp_status_t exchange_heads(dp_comm_t *comm, const uint32_t words[4], dp_stream_t *s)
{
    dp_status_t status = nccl_write_head(comm, comm->heads, words, s);

    if (status >= 0)
        status = nccl_greet(comm, &comm->sums, comm->rank, comm->nranks, true, true, s, "the head of a sum");
    return status < 0 ? status
                      : nccl_check_heads(comm, comm->heads + HEAD_BYTES / sizeof(uint32_t), (uint32_t)comm->nranks,
                                         comm->rank, words, NCCL_FAULT_SUM, comm, s);
}

/* Slice p of a block: [*first, *first + return value). */
static size_t slice_of(size_t count, size_t slice, int32_t p, size_t *first)
{
    *first = (size_t)p * slice < count ? (size_t)p * slice : count;
    return count - *first < slice ? count - *first : slice;
}

/* scatter: everyone's slice to its owner; else the owners' sums to everyone. */
static dp_status_t move(dp_comm_t *comm, unsigned char *data, size_t count, size_t slice, size_t size, bool scatter,
                        dp_stream_t *s)
{
    const nccl_api_t *nccl = comm->nccl;
    cudaStream_t stream = (cudaStream_t)native(comm, s);
    ncclComm_t *comms[1] = {&comm->sums};
    ncclResult_t result = ncclSuccess;
    size_t mine, n = slice_of(count, slice, comm->rank, &mine);

    DO(nccl_begin(comm));
    for (int32_t k = 1; k < comm->nranks && fine(result); k++) {
        int32_t p = (comm->rank + k) % comm->nranks;
        size_t theirs, m = slice_of(count, slice, p, &theirs);
        size_t out = scatter ? theirs : mine, nout = scatter ? m : n, nin = scatter ? n : m;
        unsigned char *in = scatter ? comm->staging + (size_t)p * comm->slice_bytes : data + theirs * size;

        if (nout > 0)
            result = nccl->ncclSend(data + out * size, nout * size, ncclUint8, p, comm->sums, stream);
        if (nin > 0 && fine(result))
            result = nccl->ncclRecv(in, nin * size, ncclUint8, p, comm->sums, stream);
    }
    return nccl_end(comm, result, comms, 1, "a sum");
}

static dp_status_t add_slices(dp_comm_t *comm, void *own, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    CUfunction sum = comm->sum[dtype == DP_F32 ? 0 : dtype == DP_F64 ? 1 : 2];
    uint64_t stride = comm->slice_bytes / dp_dtype_bytes(dtype), n = count;
    unsigned blocks = cuda_blocks(count, THREADS);

    return cuda_launch(comm->host, comm->cu, sum, CUDA_DIM(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS),
                       CUDA_DIM(THREADS), 0, native(comm, s), &own, &comm->staging, &comm->nranks, &comm->rank, &stride,
                       &n);
}

/* Slices of 16 bytes and more, as even as can be. */
static dp_status_t sum_block(dp_comm_t *comm, unsigned char *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    size_t size = dp_dtype_bytes(dtype), n = (size_t)comm->nranks, unit = 16 / size;
    size_t slice = ((count + n - 1) / n + unit - 1) / unit * unit, mine, own;
    dp_status_t status = move(comm, data, count, slice, size, true, s);

    own = slice_of(count, slice, comm->rank, &mine);
    if (status >= 0)
        status = add_slices(comm, data + mine * size, own, dtype, s);
    return status >= 0 ? move(comm, data, count, slice, size, false, s) : status;
}

static dp_status_t sum_unordered(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    const ncclDataType_t type = dtype == DP_F32 ? ncclFloat32 : dtype == DP_F64 ? ncclFloat64 : ncclInt64;
    ncclComm_t *comms[1] = {&comm->sums};
    dp_status_t status = count > 0 ? nccl_begin(comm) : DP_OK;

    if (status < 0 || count == 0)
        return status;
    return nccl_end(
        comm, comm->nccl->ncclAllReduce(data, data, count, type, ncclSum, comm->sums, (cudaStream_t)native(comm, s)),
        comms, 1, "a sum");
}

dp_status_t nccl_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    size_t size = dp_dtype_bytes(dtype), most = comm->slice_bytes / size * (size_t)comm->nranks;
    uint32_t words[4] = {comm->reductions, (uint32_t)count, (uint32_t)((uint64_t)count >> 32),
                         (uint32_t)dtype | (comm->unordered ? NCCL_UNORDERED : 0)};
    dp_status_t status;

    if (dtype != DP_F32 && dtype != DP_F64 && dtype != DP_I64)
        return DP_FAIL(comm->host, DP_ERR_UNSUPPORTED, "all_reduce adds DP_F32, DP_F64 and DP_I64, not dtype %d",
                       (int)dtype);
    if (comm->nranks == 1)
        return DP_OK;
    comm->reductions++;
    status = exchange_heads(comm, words, s);
    if (status >= 0 && comm->unordered)
        return sum_unordered(comm, data, count, dtype, s);
    for (size_t at = 0; at < count && status >= 0; at += most)
        status = sum_block(comm, (unsigned char *)data + at * size, count - at < most ? count - at : most, dtype, s);
    return status;
}
