/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_nccl.c: transfers through NCCL: the table of dp.comm/1, opening and the end. */
#include "channel.h"
#include "communicator.h"
#include "exchange.h"
#include "fault.h"

#include "cuda/module.h"
#include "plugins/common/do.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 65536

CUDA_IMAGE(nccl_kernels);

dp_status_t nccl_device_memory(dp_comm_t *comm, size_t bytes, void *memory_out)
{
    void *memory = NULL;

    DO(comm->device_vt->allocate(comm->device, bytes, &memory));
    comm->memory_bytes += bytes;
    memcpy(memory_out, &memory, sizeof(memory));
    return DP_OK;
}

dp_status_t nccl_memory(dp_comm_t *comm, size_t bytes, void *memory_out)
{
    void *memory = NULL;

    if (comm->nccl->ncclMemAlloc(&memory, bytes) != ncclSuccess)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "rank %d: group %s: NCCL has no memory for %zu bytes: %s", WORLD(comm),
                       comm->name, bytes, comm->nccl->ncclGetLastError(NULL));
    comm->memory_bytes += bytes;
    memcpy(memory_out, &memory, sizeof(memory));
    return DP_OK;
}

void nccl_memory_free(dp_comm_t *comm, void *memory)
{
    if (memory != NULL)
        (void)comm->nccl->ncclMemFree(memory);
}

/* ---- communicators ---- */

static dp_status_t agree_on_id(dp_comm_t *comm, ncclUniqueId *id)
{
    char key[128];

    snprintf(key, sizeof(key), "nccl.%s", comm->name);
    if (comm->rank != 0)
        return comm->boot->get(comm->host, key, id, sizeof(*id));
    if (comm->nccl->ncclGetUniqueId(id) != ncclSuccess)
        return DP_FAIL(comm->host, DP_ERR_DEVICE, "group %s: ncclGetUniqueId: %s", comm->name,
                       comm->nccl->ncclGetLastError(NULL));
    return comm->boot->put(comm->host, key, id, sizeof(*id));
}

static ncclConfig_t config_of(const dp_comm_t *comm, unsigned ctas)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 0;
    config.maxCTAs = (int)ctas;
    config.splitShare = 0; /* communicators that share run their kernels one after the other */
    if (nccl_ctas_of(comm).confined)
        config.cgaClusterSize = 0; /* clusters may not fit into a share of the device */
    return config;
}

static dp_status_t refuse_result(const dp_comm_t *comm, ncclResult_t result)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return DP_OK;
    return DP_FAIL(comm->host, DP_ERR_DEVICE, "rank %d: group %s: NCCL makes no communicator: %s (%s)", WORLD(comm),
                   comm->name, comm->nccl->ncclGetErrorString(result), comm->nccl->ncclGetLastError(NULL));
}

dp_status_t nccl_communicator_open(dp_comm_t *comm, unsigned ctas, ncclComm_t *comm_out)
{
    ncclConfig_t config = config_of(comm, ctas);
    ncclUniqueId id;
    ncclResult_t result = ncclSuccess;
    dp_status_t status;

    DO(agree_on_id(comm, &id));
    pthread_mutex_lock(&comm->lock);
    if (!comm->broken)
        result = comm->nccl->ncclCommInitRankConfig(comm_out, comm->nranks, id, comm->rank, &config);
    pthread_mutex_unlock(&comm->lock);
    status = refuse_result(comm, result);
    return status < 0 ? status : nccl_settle(comm, comm_out, "joining a communicator");
}

dp_status_t nccl_communicator_split(dp_comm_t *comm, int32_t color, int32_t key, unsigned ctas, ncclComm_t *comm_out)
{
    ncclConfig_t config = config_of(comm, ctas);
    ncclResult_t result = ncclSuccess;
    dp_status_t status;

    pthread_mutex_lock(&comm->lock);
    if (!comm->broken)
        result =
            comm->nccl->ncclCommSplit(comm->sums, color >= 0 ? color : NCCL_SPLIT_NOCOLOR, key, &comm->split, &config);
    pthread_mutex_unlock(&comm->lock);
    status = refuse_result(comm, result);
    if (status >= 0)
        status = nccl_settle(comm, &comm->sums, "splitting a communicator");
    if (status < 0 || color < 0)
        return status;
    status = nccl_settle(comm, &comm->split, "joining a communicator");
    pthread_mutex_lock(&comm->lock);
    if (status >= 0 && !comm->broken) {
        *comm_out = comm->split;
        comm->split = NULL;
    }
    pthread_mutex_unlock(&comm->lock);
    return status;
}

/* Lets transports that can do so move the buffer in place. Not being able to is no error. */
void nccl_buffer_register(dp_comm_t *comm, ncclComm_t c, void *buffer, size_t bytes)
{
    registration_t *r;
    void *handle = NULL;

    if (comm->nccl->ncclCommRegister == NULL || comm->nccl->ncclCommDeregister == NULL || c == NULL)
        return;
    r = comm->host->allocate(comm->host, sizeof(*r), 16);
    if (r == NULL)
        return;
    pthread_mutex_lock(&comm->lock);
    if (!comm->broken && comm->nccl->ncclCommRegister(c, buffer, bytes, &handle) == ncclSuccess && handle != NULL) {
        *r = (registration_t){comm->registrations, c, handle, false};
        comm->registrations = r;
        r = NULL;
    }
    pthread_mutex_unlock(&comm->lock);
    if (r != NULL)
        comm->host->release(comm->host, r);
}

dp_status_t nccl_window_register(dp_comm_t *comm, ncclComm_t *c, void *buffer, size_t bytes, void **handle_out)
{
    registration_t *r = comm->host->allocate(comm->host, sizeof(*r), 16);
    ncclResult_t result = ncclSuccess;
    dp_status_t status;

    if (r == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory for a channel", comm->name);
    *handle_out = NULL;
    pthread_mutex_lock(&comm->lock);
    if (!comm->broken)
        result = comm->nccl->ncclCommWindowRegister(*c, buffer, bytes, handle_out, NCCL_WINDOW_SYMMETRIC);
    pthread_mutex_unlock(&comm->lock);
    status = result == ncclSuccess || result == ncclInProgress
                 ? nccl_settle(comm, c, "making a window")
                 : DP_FAIL(comm->host, DP_ERR_DEVICE, "rank %d: group %s: NCCL makes no window: %s (%s)", WORLD(comm),
                           comm->name, comm->nccl->ncclGetErrorString(result), comm->nccl->ncclGetLastError(NULL));
    if (status >= 0 && *handle_out == NULL)
        status = DP_FAIL(comm->host, DP_ERR_UNSUPPORTED,
                         "rank %d: group %s: NCCL makes no windows between these GPUs (they need peer access to each "
                         "other, and neither NCCL_WIN_ENABLE nor NCCL_CUMEM_ENABLE may be 0): set "
                         "DUALPIPE_DEBUG=nccl.channels=groups, or auto",
                         WORLD(comm), comm->name);
    if (status < 0) {
        comm->host->release(comm->host, r);
        return status;
    }
    *r = (registration_t){comm->registrations, *c, *handle_out, true};
    comm->registrations = r;
    return DP_OK;
}

/* ---- opening ---- */

static dp_status_t nccl_check_config(const dp_host_t *host, const dp_comm_config_t *config)
{
    dp_status_t status = comm_check_open(host, "comm_nccl", config, NAME_BYTES, RANKS_MAX);

    return status < 0 ? status : check_device(host, "comm_nccl", config->device_vt, config->device, "cuda");
}

static dp_status_t nccl_load_kernels(dp_comm_t *comm)
{
    const cuda_kernel_t kernels[] = {
        {"comm_nccl_check_heads", &comm->check_heads}, {"comm_nccl_pack_rows", &comm->pack_rows},
        {"comm_nccl_count_rows", &comm->count_rows},   {"comm_nccl_check_counts", &comm->check_counts},
        {"comm_nccl_sum_f32", &comm->sum[0]},          {"comm_nccl_sum_f64", &comm->sum[1]},
        {"comm_nccl_sum_i64", &comm->sum[2]},
    };
    dp_status_t status = cuda_module_load(comm->host, cuda_image_nccl_kernels, &comm->module);

    return status < 0 ? status : cuda_kernels(comm->host, comm->module, kernels, sizeof(kernels) / sizeof(kernels[0]));
}

static dp_status_t nccl_set_up(dp_comm_t *comm, const dp_comm_config_t *config)
{
    dp_status_t status = cuda_driver(comm->host, &comm->cu);

    if (status >= 0)
        status = nccl_api(comm->host, &comm->nccl);
    if (status >= 0)
        status = CUDA_CHECK(comm->host, comm->cu->cuCtxGetCurrent(&comm->context), "asking for the current context");
    if (status >= 0 && comm->context == NULL)
        status = DP_FAIL(comm->host, DP_ERR_DEVICE, "no CUDA context is current in this thread");
    if (status >= 0)
        status = nccl_load_kernels(comm);
    if (status >= 0)
        status = nccl_channels_check(comm);
    if (status >= 0)
        status = nccl_rows_choose(comm);
    if (status >= 0)
        status = nccl_fault_open(comm);
    if (status >= 0 && comm->channels != CHANNELS_GROUPS && comm->lacking[0] == '\0')
        status = nccl_puts_open(comm);
    return status < 0 ? status : nccl_reduce_open(comm, config->reduce_bytes);
}

/* ---- the end ---- */

void nccl_communicator_finish(dp_comm_t *comm, ncclComm_t *c)
{
    ncclResult_t result;

    if (*c == NULL)
        return;
    pthread_mutex_lock(&comm->lock);
    result = comm->broken ? ncclInvalidUsage : comm->nccl->ncclCommFinalize(*c);
    pthread_mutex_unlock(&comm->lock);
    if ((result != ncclSuccess && result != ncclInProgress) || nccl_settle(comm, c, "leaving a communicator") < 0)
        return; /* fault_abort has it */
    pthread_mutex_lock(&comm->lock);
    if (!comm->broken) {
        (void)comm->nccl->ncclCommDestroy(*c);
        *c = NULL;
    }
    pthread_mutex_unlock(&comm->lock);
}

static pair_t *first_open_pair(const dp_comm_t *comm)
{
    for (pair_t *pair = comm->pairs; pair != NULL; pair = pair->next)
        if (pair->comm != NULL)
            return pair;
    return NULL;
}

/* The other end of a channel may put into our window until it has come to its close, whose streams
 * are at rest. */
static dp_status_t meet_ends(const dp_comm_t *comm)
{
    uint32_t word = 1;
    bool told = false;
    char key[128];
    dp_status_t status = DP_OK;

    for (const dp_channel_end_t *end = comm->one_sided ? comm->ends : NULL; end != NULL && status >= 0;
         end = end->next) {
        if (!end->connected)
            continue;
        snprintf(key, sizeof(key), "nccl.%s.end.%d", comm->name, comm->rank);
        if (!told)
            status = comm->boot->put(comm->host, key, &word, sizeof(word));
        told = true;
        snprintf(key, sizeof(key), "nccl.%s.end.%d", comm->name, end->config.peer);
        if (status >= 0)
            status = comm->boot->get(comm->host, key, &word, sizeof(word));
    }
    return status;
}

/* Finalize waits for nobody but NCCL's own threads: its order does not matter between ranks. */
static void finish_all(dp_comm_t *comm)
{
    pair_t *pair;

    if (meet_ends(comm) < 0)
        return; /* fault_abort has the rest */
    for (registration_t *r = comm->registrations; r != NULL; r = r->next) {
        pthread_mutex_lock(&comm->lock);
        if (!comm->broken)
            (void)(r->window ? comm->nccl->ncclCommWindowDeregister(r->comm, r->handle)
                             : comm->nccl->ncclCommDeregister(r->comm, r->handle));
        pthread_mutex_unlock(&comm->lock);
    }
    while ((pair = first_open_pair(comm)) != NULL) {
        nccl_communicator_finish(comm, &pair->comm);
        if (pair->comm != NULL)
            return;
    }
    nccl_communicator_finish(comm, &comm->rows);
    nccl_communicator_finish(comm, &comm->sums);
}

static void nccl_free_comm(dp_comm_t *comm)
{
    const dp_host_t *host = comm->host;

    comm_free_opened(comm, nccl_channel_free, nccl_exchange_free);
    while (comm->pairs != NULL) {
        pair_t *pair = comm->pairs;

        comm->pairs = pair->next;
        host->release(host, pair);
    }
    while (comm->registrations != NULL) {
        registration_t *r = comm->registrations;

        comm->registrations = r->next;
        host->release(host, r);
    }
    if (comm->staging != NULL)
        nccl_memory_free(comm, comm->staging);
    nccl_memory_free(comm, comm->tried_memory);
    if (comm->heads != NULL)
        comm->device_vt->release(comm->device, comm->heads);
    cuda_module_unload(comm->module);
    if (comm->mailbox != NULL)
        (void)comm->cu->cuMemFreeHost(comm->mailbox);
    nccl_ctas_leave(comm);
    pthread_mutex_destroy(&comm->lock);
    if (comm->rows_stream != NULL)
        comm->device_vt->stream_close(comm->rows_stream);
    comm_release(comm, comm->jobs);
    comm_release(comm, comm->edges);
    host->release(host, comm);
}

static void nccl_close(dp_comm_t *comm)
{
    if (comm == NULL)
        return;
    if (comm->nccl != NULL && !comm->failed && comm->mailbox != NULL && comm->watching &&
        nccl_fault_check(comm) == DP_OK)
        finish_all(comm);
    nccl_fault_close(comm);
    if (comm->nccl != NULL)
        nccl_fault_abort(comm);
    nccl_rows_close(comm); /* till then it lets streams go on, for which an abort waits */
    nccl_puts_close(comm);
    nccl_free_comm(comm);
}

static dp_status_t nccl_open(const dp_host_t *host, const dp_comm_config_t *config, dp_comm_t **comm_out)
{
    uint32_t channels;
    dp_comm_t *comm;
    dp_status_t status;

    DO(nccl_check_config(host, config));
    DO(debug_check(host, "nccl", "channels, exchange, same_gpu, sums"));
    DO(nccl_channels_wished(host, &channels));
    comm = comm_make(host, config);
    if (comm == NULL)
        return DP_ERR_NOMEM;
    comm->device_vt = config->device_vt;
    comm->device = config->device;
    comm->channels = channels;
    comm->one_sided = channels == CHANNELS_SIGNALS;
    comm->chosen = channels != CHANNELS_AUTO;
    pthread_mutex_init(&comm->lock, NULL);
    nccl_ctas_join(comm);
    status = nccl_set_up(comm, config);
    if (status < 0) {
        char why[512];

        snprintf(why, sizeof(why), "%s", host->last_error(host));
        comm->failed = true;
        nccl_close(comm);
        return DP_FAIL(host, status, "%s", why);
    }
    *comm_out = comm;
    return DP_OK;
}

/* Channels are windows or groups. Those of auto run the program of groups, which completes with
 * either. */
static dp_status_t send_either(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    return end->comm->one_sided ? nccl_puts_send(end, from, tag, s) : nccl_channel_send(end, from, tag, s);
}

static dp_status_t recv_either(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                               dp_stream_t *s)
{
    return end->comm->one_sided ? nccl_puts_recv(end, expected, data_out, s)
                                : nccl_channel_recv(end, expected, data_out, s);
}

static dp_status_t release_either(dp_channel_end_t *end, uint32_t number, dp_stream_t *s)
{
    return end->comm->one_sided ? nccl_puts_release(end, number, s) : nccl_channel_release(end, number, s);
}

static uint32_t nccl_caps(dp_comm_t *comm)
{
    return comm->channels == CHANNELS_SIGNALS ? DP_COMM_CAP_ONE_SIDED : DP_COMM_CAP_HOSTS;
}

static int nccl_serves(const dp_device_vt_t *vt)
{
    return strcmp(vt->kind, "cuda") == 0;
}

static const dp_comm_vt_t table = {
    .struct_size = sizeof(dp_comm_vt_t),
    .caps = DP_COMM_CAP_HOSTS,
    .open = nccl_open,
    .close = nccl_close,
    .channel_open = nccl_channel_open,
    .exchange_open = nccl_exchange_open,
    .start = nccl_start,
    .send = send_either,
    .recv = recv_either,
    .release = release_either,
    .bundle_begin = nccl_bundle_begin,
    .bundle_end = nccl_bundle_end,
    .exchange = nccl_exchange_run,
    .exchange_release = nccl_exchange_release,
    .all_reduce = nccl_all_reduce,
    .memory_bytes = comm_memory_bytes,
    .instance_caps = nccl_caps,
    .serves = nccl_serves,
};

static const void *nccl_get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_COMM) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(comm_nccl) = {
    DP_PLUGIN_HEAD,
    .name = "comm_nccl",
    .version = DP_VERSION,
    .summary = "ranks on CUDA devices, through NCCL",
    .get_interface = nccl_get_interface,
    .preference = 300,
};
