/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * exchange.c: all-to-all-v: every rank's kernel puts its rows straight into the others' slots, then
 * says how many. */
#include "plugins/common/do.h"
#include "queue.h"

#define PUT_THREADS 512

area_t ipc_exchange_area(const dp_exchange_t *x)
{
    area_t area;

    (void)ipc_rows_layout(x->config.id, count_of(x->comm->nranks), x->config.slots, x->config.capacity_rows,
                          x->config.row_bytes, &area); /* checked when it was opened */
    return area;
}

void ipc_exchange_free(dp_exchange_t *x)
{
    comm_release(x->comm, x->lines);
    comm_release(x->comm, x->payload);
    comm_release(x->comm, x);
}

dp_status_t ipc_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out)
{
    const dp_host_t *host = comm->host;
    size_t n = count_of(comm->nranks);
    area_t area;
    dp_exchange_t *x = NULL;
    dp_status_t status = comm_check_new_exchange(comm, "comm_cuda_ipc", UINT32_MAX, config);

    if (status == DP_OK &&
        !ipc_rows_layout(config->id, n, comm_slots_of(config), config->capacity_rows, config->row_bytes, &area))
        return DP_FAIL(host, DP_ERR_INVALID, "group %s: exchange %u cannot have %u slots of %u rows of %zu bytes",
                       comm->name, config->id, comm_slots_of(config), config->capacity_rows, config->row_bytes);
    if (status == DP_OK)
        status = comm_make_exchange(comm, config, &x);
    if (status < 0)
        return status;
    x->lines = host->allocate(host, n * sizeof(*x->lines), 16);
    x->payload = host->allocate(host, n * sizeof(*x->payload), 16);
    if (x->lines == NULL || x->payload == NULL) {
        ipc_exchange_free(x);
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for exchange %u", comm->name, config->id);
    }
    x->group = (plan_group_t){comm->rank, comm->nranks, x->lines, x->payload};
    comm_add_exchange(x);
    comm->memory_bytes += n * (sizeof(*x->lines) + sizeof(*x->payload));
    *exchange_out = x;
    return DP_OK;
}

/* ---- on the caller's thread ---- */

static dp_status_t enter_exchange(dp_exchange_t *x, dp_stream_t *s, queue_t *q)
{
    DO(ipc_queue_enter(x->comm, s, q));
    if (x->captured && !q->capturing)
        return DP_FAIL(x->comm->host, DP_ERR_INVALID, "exchange \"%s\" is part of a graph: it is used by replays alone",
                       x->label);
    x->captured = q->capturing;
    return DP_OK;
}

static uint32_t *private_line(const dp_exchange_t *x, size_t which)
{
    return ipc_plan_line(&x->group, x->comm->rank,
                         rows_line_private(count_of(x->comm->nranks), x->config.slots, which));
}

static dp_status_t put_rows(const queue_t *q, const dp_exchange_t *x, const void *send, const int32_t *offsets,
                            const int32_t *counts)
{
    const dp_comm_t *comm = x->comm;
    size_t n = count_of(comm->nranks), me = count_of(comm->rank), slot = x->count % x->config.slots;
    unsigned char *payload = x->payload[comm->rank];
    ipc_put_rows_t args = {
        .report = comm->report,
        .object = (uint64_t)(uintptr_t)x,
        .send = send,
        .offsets = offsets,
        .counts = counts,
        .peers = (const uint64_t *)(const void *)payload,
        .done = (uint32_t *)(void *)(payload + ipc_rows_done_at(n, x->config.slots)),
        .number = ipc_queue_value(q, private_line(x, ROWS_EXCHANGED), (uint32_t)x->count, 0),
        .row_bytes = x->config.row_bytes,
        .head_at = rows_line_head(n, slot, me) * LINE_BYTES,
        .arrived_at = rows_line_arrived(n, me) * LINE_BYTES,
        .rows_at = ipc_rows_data_at(n, x->config.slots) +
                   slot * ipc_rows_slot_bytes(n, x->config.capacity_rows, x->config.row_bytes) +
                   me * x->config.capacity_rows * x->config.row_bytes,
        .nranks = (uint32_t)comm->nranks,
        .rank = (uint32_t)comm->rank,
        .capacity = x->config.capacity_rows,
        .share = ipc_plan_stretches(comm->blocks, (uint32_t)comm->nranks),
        .link_ns_per_byte = comm->link_ns_per_byte,
    };

    return ipc_queue_launch(q, comm->put_rows, comm->blocks, PUT_THREADS, &args, "comm_cuda_ipc_put_rows");
}

static dp_status_t take_counts(const queue_t *q, const dp_exchange_t *x, const int32_t **counts_out)
{
    const dp_comm_t *comm = x->comm;
    size_t n = count_of(comm->nranks), slot = x->count % x->config.slots;
    ipc_take_counts_t args = {
        .report = comm->report,
        .object = (uint64_t)(uintptr_t)x,
        .heads = x->lines[comm->rank] + rows_line_head(n, slot, 0) * LINE_BYTES,
        .counts = (int32_t *)(void *)(x->payload[comm->rank] + ipc_rows_counts_at(n, slot)),
        .number = ipc_queue_value(q, private_line(x, ROWS_EXCHANGED), (uint32_t)x->count, 0),
        .nranks = (uint32_t)comm->nranks,
        .capacity = x->config.capacity_rows,
    };

    *counts_out = args.counts;
    return ipc_queue_launch(q, comm->take_counts, 1, 32, &args, "comm_cuda_ipc_take_counts");
}

dp_status_t ipc_exchange_run(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                             const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                             dp_stream_t *s)
{
    dp_comm_t *comm = x->comm;
    size_t n = count_of(comm->nranks), slot = x->count % x->config.slots;
    const int32_t *counts = NULL;
    dp_status_t status = comm_check_round(comm->host, x->label, x->connected, x->count, number);
    queue_t q;

    if (status == DP_OK && (uintptr_t)send % 16 != 0)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "exchange \"%s\": rows at %p are not aligned to 16 bytes", x->label,
                       send);
    if (status == DP_OK)
        status = enter_exchange(x, s, &q);
    if (status < 0)
        return status;
    ipc_plan_exchange(&comm->plan, &x->group, x->config.slots, x->count);
    status = ipc_queue_run(&q, &comm->plan);
    if (status == DP_OK)
        status = put_rows(&q, x, send, send_offsets, send_counts);
    if (status == DP_OK) {
        ipc_plan_arrive(&comm->plan, &x->group, x->config.slots, x->count);
        status = ipc_queue_run(&q, &comm->plan);
    }
    if (status == DP_OK)
        status = take_counts(&q, x, &counts);
    if (status == DP_OK) {
        ipc_plan_exchanged(&comm->plan, &x->group, x->config.slots, x->count);
        status = ipc_queue_run(&q, &comm->plan);
    }
    DO(ipc_queue_leave(&q, status));
    *rows_out = x->payload[comm->rank] + ipc_rows_data_at(n, x->config.slots) +
                slot * ipc_rows_slot_bytes(n, x->config.capacity_rows, x->config.row_bytes);
    *counts_out = counts;
    x->count++;
    return DP_OK;
}

dp_status_t ipc_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    queue_t q;

    DO(comm_check_rows_release(x, x->released, number));
    DO(enter_exchange(x, s, &q));
    ipc_plan_exchange_release(&x->comm->plan, &x->group, x->config.slots, x->released);
    DO(ipc_queue_leave(&q, ipc_queue_run(&q, &x->comm->plan)));
    x->released++;
    return DP_OK;
}
