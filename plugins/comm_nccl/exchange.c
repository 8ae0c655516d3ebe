/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * exchange.c: all-to-all-v with counts that live on the device.
 *
 * NCCL wants counts on the host, the same on both sides: see rows.c. Where streams are too few for
 * that, every pair of ranks exchanges a stretch of capacity_rows rows, however few of them are
 * filled, and the count beside it, all in one group. A kernel packs the rows into their stretches
 * first; it reads offsets and counts where they are. */
#include "exchange.h"
#include "communicator.h"

#include "cuda/launch.h"
#include "plugins/common/do.h"

#include <string.h>

#define THREADS     256
#define MOST_BLOCKS 32

dp_status_t nccl_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out)
{
    dp_exchange_t *x = NULL;
    dp_status_t status = comm_check_new_exchange(comm, "comm_nccl", 65536, config);

    if (status == DP_OK)
        status = comm_make_exchange(comm, config, &x);
    if (status < 0)
        return status;
    x->stretch = config->row_bytes * config->capacity_rows;
    comm_add_exchange(x);
    *exchange_out = x;
    return DP_OK;
}

/* After the communicator for rows is there. */
dp_status_t nccl_exchange_connect(dp_exchange_t *x)
{
    dp_comm_t *comm = x->comm;
    size_t n = (size_t)comm->nranks, slots = x->config.slots;
    dp_status_t status = DP_OK;

    if (comm->exact)
        status = nccl_rows_connect(x);
    else if (n > 1)
        status = nccl_memory(comm, n * x->stretch, &x->staging);
    if (status >= 0)
        status = nccl_memory(comm, slots * n * x->stretch, &x->slots);
    if (status >= 0)
        status = nccl_device_memory(comm, n * sizeof(int32_t), &x->counts_out);
    if (status >= 0)
        status = nccl_device_memory(comm, slots * n * sizeof(int32_t), &x->counts_in);
    x->released = comm->host->allocate(comm->host, slots * sizeof(*x->released), 16);
    if (status >= 0 && x->released == NULL)
        status = DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory for %zu slots", comm->name, slots);
    if (x->released != NULL)
        memset(x->released, 0, slots * sizeof(*x->released));
    for (size_t i = 0; i < slots && status >= 0; i++)
        status = comm->device_vt->event_open(comm->device, &x->released[i]);
    if (status < 0)
        return status;
    if (x->staging != NULL)
        nccl_buffer_register(comm, comm->rows, x->staging, n * x->stretch);
    if (n > 1)
        nccl_buffer_register(comm, comm->rows, x->slots, slots * n * x->stretch);
    x->connected = true;
    return DP_OK;
}

void nccl_exchange_free(dp_exchange_t *x)
{
    dp_comm_t *comm = x->comm;
    nccl_memory_free(comm, x->staging);
    nccl_memory_free(comm, x->slots);
    if (x->counts_out != NULL)
        comm->device_vt->release(comm->device, x->counts_out);
    if (x->counts_in != NULL)
        comm->device_vt->release(comm->device, x->counts_in);
    if (x->flags != NULL)
        (void)comm->cu->cuMemFreeHost(x->flags);
    for (uint32_t i = 0; x->released != NULL && i < x->config.slots; i++)
        if (x->released[i] != NULL)
            comm->device_vt->event_close(x->released[i]);
    comm_release(comm, x->released);
    comm->host->release(comm->host, x);
}

/* Each side a stretch, and the count. */
static dp_status_t swap_stretches(dp_exchange_t *x, unsigned char *rows, int32_t *counts, dp_stream_t *s)
{
    dp_comm_t *comm = x->comm;
    const nccl_api_t *nccl = comm->nccl;
    cudaStream_t stream = (cudaStream_t)native(comm, s);
    ncclComm_t *comms[1] = {&comm->rows};
    ncclResult_t result = ncclSuccess;

    DO(nccl_begin(comm));
    for (int32_t k = 1; k < comm->nranks && (result == ncclSuccess || result == ncclInProgress); k++) {
        int32_t to = (comm->rank + k) % comm->nranks, from = (comm->rank + comm->nranks - k) % comm->nranks;
        ncclResult_t r[4];

        r[0] = nccl->ncclSend(x->counts_out + to, sizeof(int32_t), ncclUint8, to, comm->rows, stream);
        r[1] = nccl->ncclRecv(counts + from, sizeof(int32_t), ncclUint8, from, comm->rows, stream);
        r[2] = nccl->ncclSend(x->staging + (size_t)to * x->stretch, x->stretch, ncclUint8, to, comm->rows, stream);
        r[3] = nccl->ncclRecv(rows + (size_t)from * x->stretch, x->stretch, ncclUint8, from, comm->rows, stream);
        for (int i = 0; i < 4; i++)
            if (r[i] != ncclSuccess && r[i] != ncclInProgress)
                result = r[i];
    }
    return nccl_end(comm, result, comms, 1, x->label);
}

static dp_status_t run_at_capacity(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *offsets,
                                   const int32_t *counts_out, unsigned char *rows, int32_t *counts, dp_stream_t *s)
{
    dp_comm_t *comm = x->comm;
    int32_t capacity = (int32_t)x->config.capacity_rows, *no_table = NULL;
    uint64_t vectors = x->config.row_bytes / 16, object = (uint64_t)(uintptr_t)x;
    unsigned blocks = cuda_blocks((size_t)capacity * vectors, THREADS);
    dp_status_t status = cuda_launch(
        comm->host, comm->cu, comm->pack_rows, CUDA_DIM2(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS, comm->nranks),
        CUDA_DIM(THREADS), 0, native(comm, s), &send, &offsets, &counts_out, &vectors, &capacity, &comm->rank,
        &x->staging, &x->counts_out, &rows, &counts, &number, &object, &comm->mailbox);

    if (status < 0 || comm->nranks == 1)
        return status;
    DO(swap_stretches(x, rows, counts, s));
    return cuda_launch(comm->host, comm->cu, comm->check_counts, CUDA_DIM(1), CUDA_DIM(32), 0, native(comm, s), &counts,
                       &no_table, &comm->nranks, &comm->rank, &capacity, &number, &object, &comm->mailbox);
}

dp_status_t nccl_exchange_run(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                              const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                              dp_stream_t *s)
{
    dp_comm_t *comm = x->comm;
    uint32_t slot = number % x->config.slots;
    unsigned char *rows = x->slots + (size_t)slot * (size_t)comm->nranks * x->stretch;
    int32_t *counts = x->counts_in + (size_t)slot * (size_t)comm->nranks;
    dp_status_t status = comm_check_round(comm->host, x->label, x->connected, x->count, number);

    if (status == DP_OK && x->count - x->freed >= x->config.slots)
        return DP_FAIL(comm->host, DP_ERR_INVALID,
                       "exchange %u of \"%s\": all %u slots hold exchanges that were not released", number, x->label,
                       x->config.slots);
    if (status < 0)
        return status;
    status = comm->device_vt->stream_wait(s, x->released[slot]);
    if (status >= 0 && comm->exact)
        status = nccl_rows_enqueue(x, number, send, send_offsets, send_counts, s);
    else if (status >= 0)
        status = run_at_capacity(x, number, send, send_offsets, send_counts, rows, counts, s);
    if (status < 0)
        return status;
    __atomic_store_n(&x->count, x->count + 1, __ATOMIC_RELEASE);
    *rows_out = rows;
    *counts_out = counts;
    return DP_OK;
}

dp_status_t nccl_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    DO(comm_check_rows_release(x, x->freed, number));
    x->freed++;
    return x->comm->device_vt->event_record(x->released[number % x->config.slots], s);
}
