/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_mpi.c: transfers over MPI: the table of dp.comm/1, opening, waiting and the end. */
#include "comm_mpi.h"
#include "plugins/common/do.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define RANKS_MAX 65536
/* for the host to hear who has died when MPI only says that something is wrong */
#define PATIENCE_NS 1000000000ll

void *mpi_memory(dp_comm_t *comm, size_t count, size_t bytes)
{
    size_t all;
    void *memory = NULL;

    if (!__builtin_mul_overflow(count, bytes, &all))
        memory = comm->host->allocate(comm->host, all, CACHE_LINE);
    if (memory == NULL) {
        (void)DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory for %zu times %zu bytes", comm->name, count,
                      bytes);
        return NULL;
    }
    comm->memory_bytes += all;
    return memset(memory, 0, all);
}

/* ---- waiting ---- */

dp_status_t mpi_check(const dp_comm_t *comm, int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    dp_signal_t never = {0, 0};
    int length = 0;
    dp_status_t status;
    entry_t entry;

    if (code == MPI_SUCCESS)
        return DP_OK;
    status = comm->host->wait(comm->host, &never, 1, PATIENCE_NS, what);
    if (status != DP_ERR_TIMEOUT)
        return status;
    mpi_runtime_enter(&entry);
    MPI_Error_string(code, text, &length);
    mpi_runtime_exit(&entry);
    return DP_FAIL(comm->host, DP_ERR_DEVICE, "%s: MPI says: %s", what, text);
}

typedef struct waiting {
    MPI_Request *requests;
    MPI_Status *statuses;
    int n, code;
} waiting_t;

static dp_status_t test_requests(void *arg)
{
    waiting_t *w = arg;
    entry_t entry;
    int done = 0;

    mpi_runtime_enter(&entry);
    w->code = MPI_Testall(w->n, w->requests, &done, w->statuses);
    mpi_runtime_exit(&entry);
    return w->code != MPI_SUCCESS || done ? DP_OK : DP_PENDING;
}

dp_status_t mpi_wait(dp_comm_t *comm, MPI_Request *requests, int n, MPI_Status *statuses, const char *what)
{
    waiting_t w = {requests, statuses, n, MPI_SUCCESS};
    dp_status_t status = comm->host->poll(comm->host, test_requests, &w, -1, what);

    return status < 0 ? status : mpi_check(comm, w.code, what);
}

/* The first of n requests that is not done, n when all are. */
static int first_pending(MPI_Request *requests, int n)
{
    entry_t entry;
    int i, done = 1;

    mpi_runtime_enter(&entry);
    for (i = 0; i < n; i++)
        if (MPI_Request_get_status(requests[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
            break;
    mpi_runtime_exit(&entry);
    return i;
}

dp_status_t mpi_wait_peers(dp_comm_t *comm, MPI_Request *requests, int n, MPI_Status *statuses, const char *what)
{
    dp_status_t status = mpi_wait(comm, requests, n, statuses, what);
    char cause[400];
    int i;

    if (status != DP_ERR_TIMEOUT)
        return status;
    snprintf(cause, sizeof(cause), "%s", comm->host->last_error(comm->host));
    i = first_pending(requests, n);
    return i == n ? status
                  : DP_FAIL(comm->host, status, "%s (waiting for rank %d)", cause,
                            comm->world[peer_rank(comm, i % (comm->nranks - 1))]);
}

bool mpi_pending(MPI_Request *requests, int n)
{
    bool pending = false;
    entry_t entry;

    mpi_runtime_enter(&entry);
    for (int i = 0; i < n; i++) {
        int done = 1;

        if (requests[i] != MPI_REQUEST_NULL)
            (void)MPI_Cancel(&requests[i]);
        pending |= MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done;
    }
    mpi_runtime_exit(&entry);
    return pending;
}

/* ---- the end ---- */

/* What MPI may still write to or read from stays until the process ends. */
static struct {
    pthread_mutex_t lock;
    dp_comm_t *comms;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool any_pending(dp_comm_t *comm)
{
    int peers = comm->nranks - 1;
    bool pending = mpi_talks_pending(comm) || mpi_pending(comm->requests, comm->requests != NULL ? 4 * peers : 0);

    for (dp_channel_end_t *end = comm->ends; end != NULL; end = end->next)
        pending |= mpi_pending(end->requests, 2);
    for (dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        pending |= mpi_pending(x->requests, 2 * comm->nranks * (int)x->config.slots);
    return pending;
}

static void mpi_free_comm(dp_comm_t *comm)
{
    const dp_host_t *host = comm->host;

    comm_free_opened(comm, mpi_channel_free, mpi_exchange_free);
    mpi_talks_free(comm);
    comm_release(comm, comm->places);
    comm_release(comm, comm->tags);
    comm_release(comm, comm->staging);
    comm_release(comm, comm->sum_heads);
    comm_release(comm, comm->requests);
    host->release(host, comm);
}

/* Nobody is waited for: what was sent is MPI's, what was received is ours. When a rank has died MPI
 * is not asked any more, since it may end the process on seeing that. */
static void mpi_close(dp_comm_t *comm)
{
    bool failed, keep;

    if (comm == NULL)
        return;
    if (comm->mpi == NULL) {
        mpi_free_comm(comm);
        return;
    }
    failed = comm->broken || comm->host->aborted(comm->host) < 0;
    keep = comm->host->aborted(comm->host) == DP_ERR_PEER || (failed && any_pending(comm));
    mpi_runtime_leave(!keep);
    if (!keep) {
        mpi_free_comm(comm);
        return;
    }
    pthread_mutex_lock(&kept.lock);
    comm->next = kept.comms;
    kept.comms = comm;
    pthread_mutex_unlock(&kept.lock);
}

/* ---- the beginning ---- */

static dp_status_t mpi_check_config(const dp_host_t *host, const dp_comm_config_t *config)
{
    dp_status_t status = comm_check_open(host, "comm_mpi", config, NAME_BYTES, RANKS_MAX);

    return status < 0 ? status : comm_check_host_device(host, "comm_mpi", config->device_vt);
}

static dp_status_t mpi_set_up(dp_comm_t *comm, const dp_comm_config_t *config)
{
    size_t n = (size_t)comm->nranks;
    dp_status_t status;

    comm->places = mpi_memory(comm, n, sizeof(*comm->places));
    comm->tags = mpi_memory(comm, n, sizeof(*comm->tags));
    if (comm->places == NULL || comm->tags == NULL)
        return DP_ERR_NOMEM;
    if (n == 1)
        return DP_OK;
    status = mpi_reduce_open(comm, config->reduce_bytes);
    if (status >= 0)
        status = mpi_runtime_join(comm->host, comm->name, &comm->mpi);
    return status < 0 ? status : mpi_connect_members(comm);
}

static dp_status_t mpi_open(const dp_host_t *host, const dp_comm_config_t *config, dp_comm_t **comm_out)
{
    dp_comm_t *comm;
    dp_status_t status;

    DO(mpi_check_config(host, config));
    comm = comm_make(host, config);
    if (comm == NULL)
        return DP_ERR_NOMEM;
    comm->device = config->device_vt;
    status = mpi_set_up(comm, config);
    if (status < 0) {
        char why[512];

        snprintf(why, sizeof(why), "%s", host->last_error(host));
        if (comm->mpi != NULL)
            mpi_runtime_leave(status == DP_ERR_UNSUPPORTED || status == DP_ERR_MISMATCH);
        mpi_free_comm(comm);
        return DP_FAIL(host, status, "%s", why);
    }
    *comm_out = comm;
    return DP_OK;
}

static dp_status_t mpi_start(dp_comm_t *comm)
{
    dp_status_t status = mpi_connect_opened(comm);

    comm->broken |= status < 0;
    return status;
}

static const dp_comm_vt_t table = {
    .struct_size = sizeof(dp_comm_vt_t),
    .caps = DP_COMM_CAP_HOSTS,
    .open = mpi_open,
    .close = mpi_close,
    .channel_open = mpi_channel_open,
    .exchange_open = mpi_exchange_open,
    .start = mpi_start,
    .send = mpi_channel_send,
    .recv = mpi_channel_recv,
    .release = mpi_channel_release,
    .bundle_begin = mpi_bundle_begin,
    .bundle_end = mpi_bundle_end,
    .exchange = mpi_exchange_run,
    .exchange_release = mpi_exchange_release,
    .all_reduce = mpi_all_reduce,
    .memory_bytes = comm_memory_bytes,
    .serves = comm_serves_host,
    .exchange_post = mpi_exchange_post,
    .exchange_wait = mpi_exchange_wait,
};

static const void *mpi_get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_COMM) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(comm_mpi) = {
    DP_PLUGIN_HEAD,
    .name = "comm_mpi",
    .version = DP_VERSION,
    .summary = "ranks as processes of one MPI job",
    .get_interface = mpi_get_interface,
    .preference = 100,
};
