/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * rows.c: exchanges over ranks on several hosts: an exchange of near among the ranks of our host,
 * one of far with the others, and their rows brought together in memory of ours, as the contract
 * wants them to lie: one more copy.
 *
 * How many rows there are is known on the device alone. So this is for devices that run host
 * functions on memory that the host reaches; on others all rows go over far, which reaches the
 * ranks of our host as well. */
#include "base/do.h"
#include "base/sized.h"
#include "mixed/parts.h"

#include <stdio.h>
#include <string.h>

/* What a stream gets to do. */
typedef struct job {
    dp_exchange_t *x;
    const int32_t *offsets, *counts;  /* the caller's */
    const char *near_rows, *far_rows; /* what came */
    const int32_t *near_came, *far_came;
    uint32_t number, slot;
} job_t;

struct dp_exchange {
    dp_exchange_t *next;
    dp_comm_t *comm;
    dp__mixed_part_t *alone; /* all rows are its; else both have an exchange */
    dp_exchange_t *near, *far;
    char label[DP__MIXED_LABEL];
    size_t row_bytes, block; /* of the rows of one rank */
    uint32_t slots;
    uint32_t opened_in;                /* the start that connects it */
    uint64_t count, awaited, returned; /* exchanges, their ends and releases enqueued */
    dp_signal_t released;              /* on a stream */
    char *rows;                        /* [slots][nranks][block], of the device */
    /* [slots][nranks], of the device as what follows: what came */
    int32_t *counts;
    /* what we send: [near_n], [near_n], [nranks] */
    int32_t *near_counts, *near_offsets, *far_counts;
    job_t *jobs; /* [slots] of exchanges under way, of the host */
};

static dp_status_t allocate_memory(dp_exchange_t *x, size_t bytes, void **memory_out)
{
    dp_comm_t *comm = x->comm;

    DO(comm->device_vt->allocate(comm->device, bytes, memory_out));
    comm->own_bytes += bytes;
    return DP_OK;
}

static dp_status_t allocate_all(dp_exchange_t *x)
{
    size_t n = (size_t)x->comm->nranks, near = (size_t)x->comm->map.near_n;
    void *rows = NULL, *counts = NULL;

    DO(allocate_memory(x, x->slots * n * x->block, &rows));
    x->rows = rows;
    DO(allocate_memory(x, (x->slots * n + 2 * near + n) * sizeof(int32_t), &counts));
    x->counts = counts;
    x->near_counts = x->counts + x->slots * n;
    x->near_offsets = x->near_counts + near;
    x->far_counts = x->near_offsets + near;
    x->jobs = x->comm->host->allocate(x->comm->host, x->slots * sizeof(*x->jobs), 64);
    if (x->jobs == NULL)
        return DP_FAIL(x->comm->host, DP_ERR_NOMEM, "exchange \"%s\": no memory for its %u slots", x->label, x->slots);
    x->comm->own_bytes += x->slots * sizeof(*x->jobs);
    return DP_OK;
}

void dp__mixed_exchange_free(dp_exchange_t *x)
{
    const dp_comm_t *comm = x->comm;

    if (x->rows != NULL)
        comm->device_vt->release(comm->device, x->rows);
    if (x->counts != NULL)
        comm->device_vt->release(comm->device, x->counts);
    if (x->jobs != NULL)
        comm->host->release(comm->host, x->jobs);
    comm->host->release(comm->host, x);
}

dp_exchange_t *dp__mixed_exchange_next(dp_exchange_t *x)
{
    return x->next;
}

static bool host_works_on_device(const dp_comm_t *comm)
{
    const uint32_t both = DP_DEVICE_CAP_LAUNCH | DP_DEVICE_CAP_HOST_MEMORY;

    return (comm->device_vt->caps & both) == both;
}

/* Far's exchange is one of all members, also of those who are alone on their host. A backend of one
 * host that has no exchanges is no reason to refuse. */
static dp_status_t open_parts(dp_exchange_t *x, const dp_exchange_config_t *config)
{
    dp_comm_t *comm = x->comm;
    dp_status_t status;

    x->alone = comm->alone != NULL ? comm->alone : &comm->far;
    DO(x->alone->vt->exchange_open(x->alone->comm, config, &x->far));
    if (comm->near.comm == NULL || comm->alone != NULL || !host_works_on_device(comm))
        return DP_OK;
    status = comm->near.vt->exchange_open(comm->near.comm, config, &x->near);
    if (status >= 0)
        x->alone = NULL;
    return status == DP_ERR_UNSUPPORTED ? DP_OK : status;
}

dp_status_t dp__mixed_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *given, dp_exchange_t **exchange_out)
{
    dp_exchange_config_t own;
    const dp_exchange_config_t *config = &own;
    dp_exchange_t *x;
    dp_status_t status;

    DO(dp__take("config of an exchange", dp_exchange_config_t, DP_EXCHANGE_CONFIG_MIN, &own, given));
    x = comm->host->allocate(comm->host, sizeof(*x), 64);
    if (x == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory for exchange %u", comm->name, config->id);
    memset(x, 0, sizeof(*x));
    x->comm = comm;
    x->opened_in = comm->starts;
    status = open_parts(x, config);
    if (status >= 0 && x->alone == NULL) { /* far has found the sizes in order */
        x->row_bytes = config->row_bytes;
        x->block = config->row_bytes * config->capacity_rows;
        x->slots = config->slots > 0 ? config->slots : 2;
        snprintf(x->label, sizeof(x->label), "%s", config->label != NULL ? config->label : "");
        status = allocate_all(x);
    }
    if (status < 0) {
        dp__mixed_exchange_free(x);
        return status;
    }
    x->next = comm->exchanges;
    comm->exchanges = x;
    comm->own_bytes += sizeof(*x);
    *exchange_out = x;
    return DP_OK;
}

/* ---- on the stream ---- */

/* Waits until the memory for what comes may be written again, and parts what goes to whom. */
static dp_status_t run_split(void *arg)
{
    const job_t *job = arg;
    dp_exchange_t *x = job->x;
    const dp_comm_t *comm = x->comm;
    const dp__mixed_map_t *m = &comm->map;
    char what[160];

    snprintf(what, sizeof(what), "rank %d: exchange %u of \"%s\" waits for the release of an earlier one",
             comm->world[comm->rank], job->number, x->label);
    DO(comm->host->wait(comm->host, &x->released, job->number + 1 - x->slots, -1, what));
    for (int32_t r = 0; r < m->n; r++) {
        bool here = m->host[r] == m->host[m->rank];

        x->far_counts[r] = here ? 0 : job->counts[r];
        if (here) {
            x->near_counts[m->near[r]] = job->counts[r];
            x->near_offsets[m->near[r]] = job->offsets[r];
        }
    }
    return DP_OK;
}

static dp_status_t run_join(void *arg)
{
    const job_t *job = arg;
    const dp_exchange_t *x = job->x;
    const dp__mixed_map_t *m = &x->comm->map;
    size_t slot = job->slot;

    for (int32_t r = 0; r < m->n; r++) {
        bool here = m->host[r] == m->host[m->rank];
        int32_t at = here ? m->near[r] : r, came = (here ? job->near_came : job->far_came)[at];
        char *to = x->rows + (slot * (size_t)m->n + (size_t)r) * x->block;

        x->counts[slot * (size_t)m->n + (size_t)r] = came;
        if (came > 0)
            memcpy(to, (here ? job->near_rows : job->far_rows) + (size_t)at * x->block, (size_t)came * x->row_bytes);
    }
    return DP_OK;
}

static dp_status_t run_joined_release(void *arg)
{
    const job_t *job = arg;
    const dp_host_t *host = job->x->comm->host;

    host->post(host, &job->x->released, job->number + 1);
    return DP_OK;
}

/* ---- on the caller's thread ---- */

static dp_status_t check_next(const dp_exchange_t *x, uint32_t number)
{
    const dp_comm_t *comm = x->comm;

    if (number != (uint32_t)x->count)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "exchange %u of \"%s\": %u is next", number, x->label,
                       (uint32_t)x->count);
    if (x->opened_in >= comm->starts)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "exchange \"%s\" is used before start", x->label);
    return DP_OK;
}

/* Both parts have their rows, or put them under way. */
static dp_status_t begin_rows(dp_exchange_t *x, bool post, uint32_t number, const void *send,
                              const int32_t *send_offsets, const int32_t *send_counts, const void **rows_out,
                              const int32_t **counts_out, dp_stream_t *s)
{
    dp_comm_t *comm = x->comm;
    const dp_comm_vt_t *near = comm->near.vt, *far = comm->far.vt;
    const uint32_t slot = (uint32_t)(x->count % x->slots);
    const size_t at = slot * (size_t)comm->nranks;
    job_t *job = &x->jobs[slot];
    const void *near_rows, *far_rows;

    *job = (job_t){.x = x, .offsets = send_offsets, .counts = send_counts, .number = number, .slot = slot};
    DO(comm->device_vt->launch(s, run_split, job, sizeof(*job)));
    DO((post ? near->exchange_post : near->exchange)(x->near, number, send, x->near_offsets, x->near_counts, &near_rows,
                                                     &job->near_came, s));
    DO((post ? far->exchange_post : far->exchange)(x->far, number, send, send_offsets, x->far_counts, &far_rows,
                                                   &job->far_came, s));
    job->near_rows = near_rows;
    job->far_rows = far_rows;
    x->count++;
    *rows_out = x->rows + at * x->block;
    *counts_out = x->counts + at;
    return DP_OK;
}

static dp_status_t end_rows(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    dp_comm_t *comm = x->comm;
    const job_t *job = &x->jobs[x->awaited % x->slots];

    DO(comm->device_vt->launch(s, run_join, job, sizeof(*job)));
    DO(comm->near.vt->exchange_release(x->near, number, s));
    DO(comm->far.vt->exchange_release(x->far, number, s));
    x->awaited++;
    return DP_OK;
}

dp_status_t dp__mixed_exchange(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                               const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                               dp_stream_t *s)
{
    if (x->alone != NULL)
        return x->alone->vt->exchange(x->far, number, send, send_offsets, send_counts, rows_out, counts_out, s);
    DO(check_next(x, number));
    if (x->awaited != x->count)
        return DP_FAIL(x->comm->host, DP_ERR_INVALID, "exchange %u of \"%s\": that of %u is posted and not awaited",
                       number, x->label, (uint32_t)x->awaited);
    DO(begin_rows(x, false, number, send, send_offsets, send_counts, rows_out, counts_out, s));
    return end_rows(x, number, s);
}

dp_status_t dp__mixed_exchange_post(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                                    const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                                    dp_stream_t *s)
{
    if (x->alone != NULL)
        return x->alone->vt->exchange_post(x->far, number, send, send_offsets, send_counts, rows_out, counts_out, s);
    DO(check_next(x, number));
    if (x->count - x->returned >= x->slots)
        return DP_FAIL(x->comm->host, DP_ERR_INVALID,
                       "post of exchange %u of \"%s\": all %u slots are posted and not released: release one before",
                       number, x->label, x->slots);
    return begin_rows(x, true, number, send, send_offsets, send_counts, rows_out, counts_out, s);
}

dp_status_t dp__mixed_exchange_wait(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    const dp_comm_t *comm = x->comm;

    if (x->alone != NULL)
        return x->alone->vt->exchange_wait(x->far, number, s);
    if (number != (uint32_t)x->awaited || x->awaited == x->count)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "wait for exchange %u of \"%s\": %u is next, and %u are posted",
                       number, x->label, (uint32_t)x->awaited, (uint32_t)x->count);
    DO(comm->near.vt->exchange_wait(x->near, number, s));
    DO(comm->far.vt->exchange_wait(x->far, number, s));
    return end_rows(x, number, s);
}

dp_status_t dp__mixed_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    dp_comm_t *comm = x->comm;
    job_t job = {.x = x, .number = number};

    if (x->alone != NULL)
        return x->alone->vt->exchange_release(x->far, number, s);
    if (number != (uint32_t)x->returned || x->returned == x->awaited)
        return DP_FAIL(comm->host, DP_ERR_INVALID,
                       "release of exchange %u of \"%s\": %u is next, and %u have been made", number, x->label,
                       (uint32_t)x->returned, (uint32_t)x->awaited);
    DO(comm->device_vt->launch(s, run_joined_release, &job, sizeof(job)));
    x->returned++;
    return DP_OK;
}
