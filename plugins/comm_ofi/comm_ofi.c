/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_ofi.c: ranks on one or several hosts by one-sided writes of libfabric: the table of
 * dp.comm/1. */
#include "channel.h"
#include "join.h"
#include "plugins/common/do.h"

#include <stdio.h>
#include <string.h>

#ifdef OFI_CUDA
#define HAS_CUDA true
#else
#define HAS_CUDA false
#endif

static bool is_gpu(const dp_device_vt_t *vt)
{
    return HAS_CUDA && vt->kind != NULL && strcmp(vt->kind, "cuda") == 0 && DP_HAS(vt, dp_device_vt_t, host_release) &&
           vt->host_allocate != NULL && vt->watch != NULL;
}

static dp_status_t ofi_check_config(const dp_host_t *host, const dp_comm_config_t *config)
{
    dp_status_t status = comm_check_open(host, "comm_ofi", config, NAME_BYTES, RANKS_MAX);

    if (status < 0 || is_gpu(config->device_vt))
        return status;
    return comm_check_host_device(host, HAS_CUDA ? "comm_ofi" : "comm_ofi (built without CUDA)", config->device_vt);
}

/* ---- the device ---- */

static dp_status_t open_gpu(dp_comm_t *comm)
{
    dp_status_t status = ofi_gpu_open(comm->host, comm->device, comm->instance, &comm->gpu);

    return status == DP_OK ? ofi_part_open(comm, &comm->sums, false) : status;
}

dp_status_t ofi_launch(dp_comm_t *comm, gpu_queue_t *queue, dp_stream_t *s, dp_launch_fn fn, const void *arg,
                       size_t bytes)
{
    return queue != NULL ? ofi_gpu_launch(queue, s, fn, arg, bytes) : comm->device->launch(s, fn, arg, bytes);
}

dp_status_t ofi_copy(dp_comm_t *comm, void *to, const void *from, size_t bytes)
{
    if (comm->gpu != NULL)
        return ofi_gpu_copy(comm->gpu, to, from, bytes);
    if (bytes > 0)
        memcpy(to, from, bytes);
    return DP_OK;
}

static void ofi_free_comm(dp_comm_t *comm)
{
    const dp_host_t *host = comm->host;

    ofi_progress_stop(comm);
    ofi_gpu_stop(comm->gpu);
    ofi_fabric_close(comm);
    comm_free_opened(comm, ofi_channel_free, ofi_exchange_free);
    ofi_gpu_close(comm->gpu);
    comm_release(comm, comm->regions);
    comm_release(comm, comm->bases);
    pthread_mutex_destroy(&comm->wire.lock);
    host->release(host, comm);
}

static dp_status_t take_config(dp_comm_t *comm, const dp_comm_config_t *config)
{
    const dp_host_t *host = comm->host;
    size_t n = (size_t)config->nranks;

    comm->device = config->device_vt;
    comm->instance = config->device;
    comm->bases = host->allocate(host, n * sizeof(*comm->bases), 16);
    comm->wire.peers = host->allocate(host, n * sizeof(*comm->wire.peers), 16);
    if (comm->bases == NULL || comm->wire.peers == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for %d ranks", config->name, config->nranks);
    ofi_base_size(comm, config->reduce_bytes);
    comm->memory_bytes += n * (sizeof(*comm->bases) + sizeof(*comm->wire.peers));
    return comm_runs_on_host(comm->device) ? DP_OK : open_gpu(comm);
}

static dp_status_t ofi_open(const dp_host_t *host, const dp_comm_config_t *config, dp_comm_t **comm_out)
{
    dp_comm_t *comm;
    dp_status_t status;

    DO(ofi_check_config(host, config));
    comm = comm_make(host, config);
    if (comm == NULL)
        return DP_ERR_NOMEM;
    comm->wire.cq_fd = comm->wire.wake_fd = comm->wire.nudge_fd = -1;
    pthread_mutex_init(&comm->wire.lock, NULL);
    status = take_config(comm, config);
    if (status == DP_OK && config->nranks > 1) {
        status = ofi_fabric_open(comm);
        if (status == DP_OK)
            status = ofi_join_group(comm);
    }
    if (status < 0) {
        ofi_free_comm(comm);
        return status;
    }
    *comm_out = comm;
    return DP_OK;
}

static void ofi_close(dp_comm_t *comm)
{
    if (comm == NULL)
        return;
    if (comm->nranks > 1 && !comm->broken && comm->host->aborted(comm->host) == DP_OK)
        (void)ofi_base_meet(comm);
    ofi_free_comm(comm);
}

static const dp_comm_vt_t table = {
    .struct_size = sizeof(dp_comm_vt_t),
    .caps = DP_COMM_CAP_ONE_SIDED | DP_COMM_CAP_HOSTS,
    .open = ofi_open,
    .close = ofi_close,
    .channel_open = ofi_channel_open,
    .exchange_open = ofi_exchange_open,
    .start = ofi_join_start,
    .send = ofi_channel_send,
    .recv = ofi_channel_recv,
    .release = ofi_channel_release,
    .exchange = ofi_exchange_run,
    .exchange_release = ofi_exchange_release,
    .all_reduce = ofi_all_reduce,
    .memory_bytes = comm_memory_bytes,
    .serves = comm_serves_host,
    .exchange_post = ofi_exchange_post,
    .exchange_wait = ofi_exchange_wait,
};

static const void *ofi_get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_COMM) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(comm_ofi) = {
    DP_PLUGIN_HEAD,
    .name = "comm_ofi",
    .version = DP_VERSION,
    .summary = "ranks on one or several hosts by one-sided writes of libfabric (tcp, verbs, efa, cxi)",
    .get_interface = ofi_get_interface,
    .preference = 200,
};
