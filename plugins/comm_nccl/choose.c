/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * choose.c: whether channels are NCCL's groups or one-sided, where that is left to us: the same for
 * all ranks.
 *
 * Each rank says what it lacks before anything begins. Whether there are windows NCCL alone knows,
 * and only when asked for one, which is a collective: where it refuses a rank at once, the others
 * would wait for that rank. So a communicator is made to try it, all hear how each rank's call
 * began before anyone waits for its end, and where a rank was refused it is aborted. */
#include "channel.h"
#include "communicator.h"
#include "exchange.h"
#include "fault.h"
#include "plugins/common/do.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OLDEST_DRIVER 12050 /* of those with which NCCL puts */
#define TRIED_BYTES   4096

static const char *const names[] = {
    [CHANNELS_GROUPS] = "groups", [CHANNELS_SIGNALS] = "signals", [CHANNELS_AUTO] = "auto"};

const char *nccl_channels_name(uint32_t channels)
{
    return channels < sizeof(names) / sizeof(names[0]) ? names[channels] : "(unknown)";
}

dp_status_t nccl_channels_wished(const dp_host_t *host, uint32_t *channels_out)
{
    char text[32];
    const char *wish = debug_value("nccl.channels", text, sizeof(text));
    uint32_t i = 0;

    while (wish != NULL && i < sizeof(names) / sizeof(names[0]) && strcmp(wish, names[i]) != 0)
        i++;
    *channels_out = i;
    if (i < sizeof(names) / sizeof(names[0]))
        return DP_OK;
    return DP_FAIL(host, DP_ERR_INVALID, "DUALPIPE_DEBUG=nccl.channels=%s: must be groups, signals or auto", wish);
}

/* ---- what this rank lacks ---- */

static bool is_abroad(const dp_comm_t *comm)
{
    const dp_host_places_t *places = comm->host->get_service(comm->host, DP_HOST_PLACES);

    for (int32_t r = 0; places != NULL && r < comm->nranks; r++)
        if (places->host_of[comm->world[r]] != places->host_of[WORLD(comm)])
            return true;
    return false;
}

static dp_status_t find_lacking(const dp_comm_t *comm, char *text, size_t bytes)
{
    const int version = comm->nccl->version, driver = comm->cu->version;

    if (!comm->nccl->puts) {
        snprintf(text, bytes, "NCCL %d.%d.%d puts nothing into the memory of others, 2.29 and later do",
                 version / 10000, version / 100 % 100, version % 100);
        return DP_ERR_UNSUPPORTED;
    }
    if (driver < OLDEST_DRIVER) {
        snprintf(text, bytes, "NCCL puts with drivers of CUDA 12.5 and later; this one is of %d.%d", driver / 1000,
                 driver % 1000 / 10);
        return DP_ERR_UNSUPPORTED;
    }
    if (comm->cu->queues < QUEUES_MIN || nccl_rows_are_in_order()) {
        snprintf(text, bytes,
                 "one-sided channels need streams that do not hold up each other: CUDA_DEVICE_MAX_CONNECTIONS is %d, "
                 "set %d; and unset NCCL_LAUNCH_ORDER_IMPLICIT",
                 comm->cu->queues, QUEUES_MIN);
        return DP_ERR_INVALID;
    }
    if (is_abroad(comm)) {
        snprintf(text, bytes, "one-sided channels reach ranks of one host only");
        return DP_ERR_UNSUPPORTED;
    }
    return DP_OK;
}

dp_status_t nccl_channels_check(dp_comm_t *comm)
{
    dp_status_t status = comm->channels == CHANNELS_GROUPS ? DP_OK : find_lacking(comm, comm->lacking, LACKING_BYTES);

    if (status < 0 && comm->channels == CHANNELS_SIGNALS)
        return DP_FAIL(comm->host, status, "group %s: %s; or set DUALPIPE_DEBUG=nccl.channels=groups, or auto",
                       comm->name, comm->lacking);
    return DP_OK;
}

/* ---- what all have ---- */

/* The first rank that has said no; none: nranks. All call it. */
static dp_status_t ask_all(dp_comm_t *comm, const char *what, bool well, int32_t *first_out)
{
    uint32_t word = well;
    char key[128];
    dp_status_t status;

    snprintf(key, sizeof(key), "nccl.%s.%s.%d", comm->name, what, comm->rank);
    status = comm->boot->put(comm->host, key, &word, sizeof(word));
    *first_out = comm->nranks;
    for (int32_t r = comm->nranks - 1; r >= 0 && status >= 0; r--) {
        snprintf(key, sizeof(key), "nccl.%s.%s.%d", comm->name, what, r);
        status = comm->boot->get(comm->host, key, &word, sizeof(word));
        if (word == 0)
            *first_out = r;
    }
    return status;
}

/* There is a window, or there will be. */
static bool begin_window(dp_comm_t *comm)
{
    ncclResult_t result = ncclInvalidUsage, state = ncclSuccess;

    pthread_mutex_lock(&comm->lock);
    if (!comm->broken)
        result = comm->nccl->ncclCommWindowRegister(comm->tried, comm->tried_memory, TRIED_BYTES, &comm->tried_handle,
                                                    NCCL_WINDOW_SYMMETRIC);
    if (result == ncclSuccess || result == ncclInProgress)
        result = comm->nccl->ncclCommGetAsyncError(comm->tried, &state);
    pthread_mutex_unlock(&comm->lock);
    return result == ncclSuccess && (state == ncclInProgress || (state == ncclSuccess && comm->tried_handle != NULL));
}

/* Ranks that wait for this one in it are let go by that. */
static void abort_tried(dp_comm_t *comm)
{
    ncclComm_t tried;

    pthread_mutex_lock(&comm->lock);
    tried = comm->broken ? NULL : comm->tried;
    if (tried != NULL)
        comm->tried = NULL;
    pthread_mutex_unlock(&comm->lock);
    if (tried != NULL)
        (void)comm->nccl->ncclCommAbort(tried);
}

/* refused_out: the first rank without; none: nranks. */
static dp_status_t try_window(dp_comm_t *comm, int32_t *refused_out)
{
    bool well = begin_window(comm);
    dp_status_t status = ask_all(comm, "begun", well, refused_out);

    if (status < 0 || *refused_out < comm->nranks)
        return status;
    well = nccl_settle(comm, &comm->tried, "trying a window") >= 0 && comm->tried_handle != NULL;
    if (!well)
        abort_tried(comm);
    status = nccl_fault_check(comm);
    if (status >= 0)
        status = ask_all(comm, "there", well, refused_out);
    if (status < 0 || *refused_out < comm->nranks)
        return status;
    pthread_mutex_lock(&comm->lock);
    if (!comm->broken)
        (void)comm->nccl->ncclCommWindowDeregister(comm->tried, comm->tried_handle);
    pthread_mutex_unlock(&comm->lock);
    nccl_communicator_finish(comm, &comm->tried);
    return DP_OK;
}

static dp_status_t find_refused(dp_comm_t *comm, int32_t *refused_out)
{
    dp_status_t status = nccl_memory(comm, TRIED_BYTES, &comm->tried_memory);

    if (status >= 0)
        status = nccl_communicator_split(comm, 0, comm->rank, 1, &comm->tried);
    if (status >= 0)
        status = try_window(comm, refused_out);
    abort_tried(comm); /* where it is there yet */
    return status;
}

dp_status_t nccl_channels_choose(dp_comm_t *comm, int32_t lacks, const char *lacking)
{
    int32_t refused = comm->nranks;
    char text[LACKING_BYTES + NAME_BYTES + 128];

    DO(lacks < comm->nranks ? DP_OK : find_refused(comm, &refused));
    comm->chosen = true;
    comm->one_sided = lacks == comm->nranks && refused == comm->nranks;
    if (comm->rank != 0)
        return DP_OK;
    if (comm->one_sided)
        snprintf(text, sizeof(text), "group %s: channels are one-sided", comm->name);
    else if (lacks < comm->nranks)
        snprintf(text, sizeof(text), "group %s: channels are NCCL's groups; rank %d: %s", comm->name,
                 comm->world[lacks], lacking);
    else
        snprintf(text, sizeof(text), "group %s: channels are NCCL's groups; rank %d: NCCL makes no windows", comm->name,
                 comm->world[refused]);
    comm->host->log(comm->host, DP_LOG_INFO, "comm_nccl", text);
    return DP_OK;
}
