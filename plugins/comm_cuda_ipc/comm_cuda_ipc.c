/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_cuda_ipc.c: ranks of one machine over peer memory of CUDA devices: the table of dp.comm/1,
 * opening and the end. */
#include "comm_cuda_ipc.h"
#include "plugins/common/do.h"

#include <dualpipe/draft/graph.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX      1024
#define DEFAULT_BLOCKS 16
#define BLOCKS_MAX     1024
#define DRAIN_MS       10000

CUDA_IMAGE(ipc_kernels);

/* ---- opening ---- */

static dp_status_t ipc_check_config(const dp_host_t *host, const dp_comm_config_t *config)
{
    dp_status_t status = comm_check_open(host, "comm_cuda_ipc", config, NAME_BYTES, RANKS_MAX);

    if (status >= 0)
        status = check_device(host, "comm_cuda_ipc", config->device_vt, config->device, "cuda");
    if (status >= 0 && config->nranks > 1 && !(config->device_vt->caps & DP_DEVICE_CAP_EXPORT))
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "group %s: comm_cuda_ipc writes into the peers' memory, which this device does not let other "
                       "processes map (DP_DEVICE_CAP_EXPORT)",
                       config->name);
    return status;
}

static dp_status_t ipc_load_kernels(dp_comm_t *comm)
{
    const cuda_kernel_t kernels[] = {
        {"comm_cuda_ipc_signals", &comm->signals},         {"comm_cuda_ipc_pace", &comm->pace},
        {"comm_cuda_ipc_check_tag", &comm->check_tag},     {"comm_cuda_ipc_put_rows", &comm->put_rows},
        {"comm_cuda_ipc_take_counts", &comm->take_counts}, {"comm_cuda_ipc_sum_f32", &comm->sum[0]},
        {"comm_cuda_ipc_sum_f64", &comm->sum[1]},          {"comm_cuda_ipc_sum_i64", &comm->sum[2]},
    };
    dp_status_t status = cuda_module_load(comm->host, cuda_image_ipc_kernels, &comm->module);

    return status == DP_OK ? cuda_kernels(comm->host, comm->module, kernels, sizeof(kernels) / sizeof(kernels[0]))
                           : status;
}

static dp_status_t read_environment(dp_comm_t *comm)
{
    const dp_host_sm_t *sm = comm->host->get_service(comm->host, DP_HOST_SM);
    char wait_text[32], link_text[32];
    const char *wait = debug_value("ipc.wait", wait_text, sizeof(wait_text));
    const char *link = debug_value("ipc.link_bytes_per_us", link_text, sizeof(link_text));
    uint32_t lanes[DP_LANE_COUNT] = {0};
    double rate;
    char *end;

    DO(debug_check(comm->host, "ipc", "handles, link_bytes_per_us, wait"));
    if (sm != NULL && sm->comm_sms > 0)
        comm->blocks = sm->comm_sms;
    else if (comm->device_vt->partition(comm->device, lanes) == DP_OK)
        comm->blocks = lanes[DP_LANE_ALL_TO_ALL];
    if (comm->blocks == 0)
        comm->blocks = DEFAULT_BLOCKS;
    comm->blocks = comm->blocks < BLOCKS_MAX ? comm->blocks : BLOCKS_MAX;
    if (wait != NULL && strcmp(wait, "stream") != 0 && strcmp(wait, "kernel") != 0)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "DUALPIPE_DEBUG=ipc.wait is \"%s\"; it must be stream or kernel",
                       wait);
    comm->spin = wait != NULL && strcmp(wait, "kernel") == 0;
    if (link == NULL)
        return DP_OK;
    rate = strtod(link, &end);
    if (*end != '\0' || !(rate > 0 && rate < 1e15))
        return DP_FAIL(comm->host, DP_ERR_INVALID,
                       "DUALPIPE_DEBUG=ipc.link_bytes_per_us is \"%s\"; it must be the bytes per microsecond of a "
                       "simulated link",
                       link);
    comm->link_ns_per_byte = 1e3 / rate;
    comm->host->log(comm->host, DP_LOG_WARN, "comm_cuda_ipc",
                    "simulated link: transfers are slowed down by DUALPIPE_DEBUG=ipc.link_bytes_per_us");
    return DP_OK;
}

static dp_status_t find_device(dp_comm_t *comm)
{
    dp_status_t status = cuda_driver(comm->host, &comm->cu);
    int domains = 0;

    if (status == DP_OK)
        status = cuda_current(comm->host, &comm->ordinal);
    if (status == DP_OK)
        status = CUDA_CHECK(comm->host, comm->cu->cuCtxGetCurrent(&comm->context), "asking for the current context");
    if (status == DP_OK)
        status = CUDA_CHECK(
            comm->host,
            comm->cu->cuDeviceGetAttribute(&domains, CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, comm->ordinal),
            "asking for memory domains");
    comm->has_domains = domains > 1;
    return status == DP_OK ? ipc_block_limits(comm) : status;
}

static dp_status_t allocate_tables(dp_comm_t *comm)
{
    const dp_host_t *host = comm->host;
    size_t n = count_of(comm->nranks);

    comm->plan.room = ipc_plan_room(comm->nranks);
    comm->base_lines = host->allocate(host, n * sizeof(*comm->base_lines), 16);
    comm->base_payload = host->allocate(host, n * sizeof(*comm->base_payload), 16);
    comm->plan.steps = host->allocate(host, comm->plan.room * sizeof(*comm->plan.steps), 16);
    comm->batch = host->allocate(host, BATCH_MAX * sizeof(*comm->batch), 16);
    if (comm->base_lines == NULL || comm->base_payload == NULL || comm->plan.steps == NULL || comm->batch == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for %d ranks", comm->name, comm->nranks);
    comm->base = (plan_group_t){comm->rank, comm->nranks, comm->base_lines, comm->base_payload};
    comm->memory_bytes += n * 2 * sizeof(unsigned char *) + comm->plan.room * sizeof(*comm->plan.steps) +
                          BATCH_MAX * sizeof(*comm->batch);
    return DP_OK;
}

static dp_status_t open_marks(dp_comm_t *comm)
{
    dp_status_t status = DP_OK;

    for (int i = 0; i < STREAMS_MAX && status == DP_OK; i++)
        status = CUDA_CHECK(comm->host, comm->cu->cuEventCreate(&comm->streams[i].mark, CU_EVENT_DISABLE_TIMING),
                            "group %s: making an event", comm->name);
    return status;
}

static dp_status_t ipc_set_up(dp_comm_t *comm, const dp_comm_config_t *config)
{
    dp_status_t status = allocate_tables(comm);

    ipc_reduce_size(comm, config->reduce_bytes);
    if (status == DP_OK)
        status = find_device(comm);
    if (status == DP_OK)
        status = read_environment(comm);
    if (status == DP_OK)
        status = ipc_load_kernels(comm);
    if (status == DP_OK)
        status = open_marks(comm);
    if (status == DP_OK)
        status = ipc_fault_open(comm);
    return status == DP_OK ? ipc_join_open(comm) : status;
}

/* ---- the end ---- */

/* Whether all our streams have come to rest. Peers and memory are let go only then. */
static bool drained(dp_comm_t *comm)
{
    for (uint32_t i = 0; i < comm->stream_count; i++)
        for (int ms = 0; comm->cu->cuEventQuery(comm->streams[i].mark) == CUDA_ERROR_NOT_READY; ms += 2) {
            if (ms >= DRAIN_MS)
                return false;
            poll(NULL, 0, 2); /* the host's wait returns at once when the job is over */
        }
    return true;
}

static bool healthy(dp_comm_t *comm)
{
    return comm->wire != NULL && !comm->broken && ipc_fault_check(comm) == DP_OK;
}

/* Importers unmap before the exporter frees. */
static void let_peers_go(dp_comm_t *comm)
{
    /* nobody writes any more */
    bool meet = healthy(comm) && ipc_wire_meet(comm->wire, -1, NULL) == DP_OK;

    ipc_join_let_go(comm);
    if (meet)
        (void)ipc_wire_meet(comm->wire, -1, NULL); /* nobody has our memory mapped any more */
}

static void free_end(dp_channel_end_t *end)
{
    comm_release(end->comm, end);
}

static void ipc_free_comm(dp_comm_t *comm)
{
    const dp_host_t *host = comm->host;

    for (int i = 0; i < STREAMS_MAX; i++)
        if (comm->streams[i].mark != NULL)
            (void)comm->cu->cuEventDestroy(comm->streams[i].mark);
    comm_free_opened(comm, free_end, ipc_exchange_free);
    ipc_wire_close(comm->wire);
    comm_release(comm, comm->base_lines);
    comm_release(comm, comm->base_payload);
    comm_release(comm, comm->plan.steps);
    comm_release(comm, comm->batch);
    host->release(host, comm);
}

/* A stream that does not come to rest still uses our memory and the peers': it stays until the
 * process ends. */
static void ipc_close(dp_comm_t *comm)
{
    bool at_rest = true;

    if (comm == NULL)
        return;
    if (comm->mailbox != NULL) {
        at_rest = drained(comm);
        if (at_rest)
            let_peers_go(comm);
        ipc_fault_close(comm, at_rest);
        if (at_rest)
            ipc_join_let_go_own(comm);
        else
            comm->host->log(comm->host, DP_LOG_ERROR, "comm_cuda_ipc",
                            "a stream has not come to rest: its memory stays until the process ends");
    }
    if (at_rest)
        cuda_module_unload(comm->module);
    ipc_free_comm(comm);
}

static dp_status_t ipc_open(const dp_host_t *host, const dp_comm_config_t *config, dp_comm_t **comm_out)
{
    dp_comm_t *comm;
    dp_status_t status;

    DO(ipc_check_config(host, config));
    comm = comm_make(host, config);
    if (comm == NULL)
        return DP_ERR_NOMEM;
    comm->device_vt = config->device_vt;
    comm->device = config->device;
    status = ipc_set_up(comm, config);
    if (status < 0) {
        comm->broken = true;
        ipc_close(comm);
        return status;
    }
    *comm_out = comm;
    return DP_OK;
}

static int ipc_serves(const dp_device_vt_t *vt)
{
    return strcmp(vt->kind, "cuda") == 0 && (vt->caps & DP_DEVICE_CAP_EXPORT) != 0;
}

static const dp_comm_vt_t table = {
    .struct_size = sizeof(dp_comm_vt_t),
    .caps = DP_COMM_CAP_ONE_SIDED | DP_COMM_CAP_CAPTURE,
    .open = ipc_open,
    .close = ipc_close,
    .channel_open = ipc_channel_open,
    .exchange_open = ipc_exchange_open,
    .start = ipc_join_start,
    .send = ipc_channel_send,
    .recv = ipc_channel_recv,
    .release = ipc_channel_release,
    .exchange = ipc_exchange_run,
    .exchange_release = ipc_exchange_release,
    .all_reduce = ipc_all_reduce,
    .memory_bytes = comm_memory_bytes,
    .serves = ipc_serves,
};

static const void *ipc_get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_COMM) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(comm_cuda_ipc) = {
    DP_PLUGIN_HEAD,
    .name = "comm_cuda_ipc",
    .version = DP_VERSION,
    .summary = "ranks of one machine, as processes or threads, over peer memory of CUDA devices",
    .get_interface = ipc_get_interface,
    .preference = 400,
};
