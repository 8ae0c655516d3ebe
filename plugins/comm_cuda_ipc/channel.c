/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * channel.c: tagged messages in order, put into slots of the receiver, which gives each slot back as a credit. */
#include "comm_cuda_ipc.h"

#include "plugins/common/check.h"

#include <stdio.h>
#include <string.h>

area_t ipc_channel_area(const dp_channel_end_t *end, bool ours)
{
    bool receiver = ours != (end->config.sender != 0);
    area_t area;

    (void)ipc_channel_layout(receiver, end->config.id, ours ? end->config.peer : end->comm->rank, end->config.slots,
                             end->config.slot_bytes, &area); /* checked when it was opened */
    return area;
}

static dp_status_t ipc_check_channel(dp_comm_t *comm, const dp_channel_config_t *config)
{
    const dp_host_t *host = comm->host;
    area_t area;
    dp_status_t status;

    status = DP_TAKE(host, "comm_cuda_ipc", dp_channel_config_t, DP_CHANNEL_CONFIG_MIN, NULL, config);
    if (status < 0)
        return status;
    if (config->peer < 0 || config->peer >= comm->nranks || config->peer == comm->rank)
        return DP_FAIL(host, DP_ERR_INVALID, "group %s: channel %u leads to rank %d of %d", comm->name, config->id,
                       config->peer, comm->nranks);
    if (!ipc_channel_layout(true, config->id, config->peer, config->slots, config->slot_bytes, &area))
        return DP_FAIL(host, DP_ERR_INVALID, "group %s: channel %u cannot have %u slots of %zu bytes", comm->name,
                       config->id, config->slots, config->slot_bytes);
    for (const dp_channel_end_t *end = comm->ends; end != NULL; end = end->next)
        if (end->config.id == config->id && end->config.peer == config->peer &&
            (end->config.sender != 0) == (config->sender != 0))
            return DP_FAIL(host, DP_ERR_INVALID, "group %s: channel %u with rank %d is open already", comm->name,
                           config->id, comm->world[config->peer]);
    return DP_OK;
}

dp_status_t ipc_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out)
{
    const dp_host_t *host = comm->host;
    dp_channel_end_t *end;
    dp_status_t status = ipc_check_channel(comm, config);

    if (status < 0)
        return status;
    end = host->allocate(host, sizeof(*end), 16);
    if (end == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for channel %u", comm->name, config->id);
    memset(end, 0, sizeof(*end));
    end->comm = comm;
    (void)dp_sized_take(&end->config, sizeof(end->config), config);
    end->config.label = end->label;
    snprintf(end->label, sizeof(end->label), "%s", config->label != NULL ? config->label : "");
    end->next = comm->ends;
    comm->ends = end;
    comm->memory_bytes += sizeof(*end);
    *end_out = end;
    return DP_OK;
}

static uint32_t *line(unsigned char *lines, size_t number)
{
    return (uint32_t *)(void *)(lines + number * LINE_BYTES);
}

void ipc_channel_connect(dp_channel_end_t *end, unsigned char *own_lines, unsigned char *own_payload,
                         unsigned char *far_lines, unsigned char *far_payload)
{
    bool sender = end->config.sender != 0;
    unsigned char *receiving = sender ? far_lines : own_lines, *sending = sender ? own_lines : far_lines;
    plan_channel_t *c = &end->plan;

    c->slots = end->config.slots;
    c->stride = ipc_slot_stride(end->config.slot_bytes);
    c->data = sender ? far_payload : own_payload;
    c->published = line(receiving, 0);
    c->heads = line(receiving, slots_line_head(0));
    c->credit = line(sending, CREDIT_CREDIT);
    c->counter = line(own_lines, sender ? CREDIT_SENT : slots_line_private(c->slots, SLOTS_RECEIVED));
    c->cursor = line(own_lines, sender ? CREDIT_CURSOR : slots_line_private(c->slots, SLOTS_CURSOR));
    c->release_counter = sender ? NULL : line(own_lines, slots_line_private(c->slots, SLOTS_RELEASED));
    end->connected = true;
}

dp_status_t ipc_channel_refuse(const dp_channel_end_t *end, const uint32_t words[8])
{
    const dp_comm_t *comm = end->comm;

    return DP_FAIL(comm->host, DP_ERR_PROTOCOL,
                   "rank %d: channel \"%s\" from rank %d: expected message %u (step %u, micro-batch %d, %u "
                   "bytes), found "
                   "message %u (step %u, micro-batch %d, %u bytes)",
                   WORLD(comm), end->label, comm->world[end->config.peer], words[0], words[1], (int32_t)words[2],
                   words[3], words[4], words[5], (int32_t)words[6], words[7]);
}

/* ---- on the caller's thread ---- */

static dp_status_t ipc_check_transfer(const dp_channel_end_t *end, bool sender, uint64_t next, uint32_t number,
                                      size_t bytes, const char *verb)
{
    const dp_comm_t *comm = end->comm;

    if (!end->connected)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "%s on channel \"%s\" before start", verb, end->label);
    if (sender != (end->config.sender != 0))
        return DP_FAIL(comm->host, DP_ERR_INVALID, "%s on the wrong end of channel \"%s\"", verb, end->label);
    if (number != (uint32_t)next)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "%s of message %u on channel \"%s\": message %u is next", verb,
                       number, end->label, (uint32_t)next);
    if (bytes > end->config.slot_bytes)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "%s of %zu bytes on channel \"%s\", which carries at most %zu", verb,
                       bytes, end->label, end->config.slot_bytes);
    return DP_OK;
}

/* How many messages a graph has carried when it was replayed only the device knows. */
static dp_status_t enter_channel(dp_channel_end_t *end, dp_stream_t *s, queue_t *q)
{
    dp_status_t status = ipc_queue_enter(end->comm, s, q);

    if (status < 0)
        return status;
    if (end->captured && !q->capturing)
        return DP_FAIL(end->comm->host, DP_ERR_INVALID,
                       "channel \"%s\" is part of a graph: it is used by replays alone", end->label);
    end->captured = q->capturing;
    return DP_OK;
}

dp_status_t ipc_channel_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    dp_comm_t *comm = end->comm;
    dp_status_t status = ipc_check_transfer(end, true, end->count, tag->number, tag->bytes, "send");
    queue_t q;

    if (status == DP_OK)
        status = enter_channel(end, s, &q);
    if (status < 0)
        return status;
    ipc_plan_send(&comm->plan, &end->plan, end->count, tag, from);
    status = ipc_queue_leave(&q, ipc_queue_run(&q, &comm->plan));
    end->count += status == DP_OK;
    return status;
}

static dp_status_t check_tag(const queue_t *q, const dp_channel_end_t *end, const dp_message_tag_t *tag)
{
    ipc_check_tag_t args = {
        .report = q->comm->report,
        .object = (uint64_t)(uintptr_t)end,
        .head = end->plan.heads + end->count % end->plan.slots * LINE_WORDS,
        .number = ipc_queue_value(q, end->plan.counter, (uint32_t)end->count, 0),
        .expected = {0, tag->step, (uint32_t)tag->microbatch, tag->bytes},
    };

    return ipc_queue_launch(q, q->comm->check_tag, 1, 1, &args, "comm_cuda_ipc_check_tag");
}

dp_status_t ipc_channel_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                             dp_stream_t *s)
{
    dp_comm_t *comm = end->comm;
    dp_status_t status = ipc_check_transfer(end, false, end->count, expected->number, expected->bytes, "receive");
    queue_t q;

    if (status == DP_OK)
        status = enter_channel(end, s, &q);
    if (status < 0)
        return status;
    ipc_plan_recv(&comm->plan, &end->plan, end->count);
    status = ipc_queue_run(&q, &comm->plan);
    if (status == DP_OK)
        status = check_tag(&q, end, expected);
    if (status == DP_OK) {
        ipc_plan_received(&comm->plan, &end->plan, end->count);
        status = ipc_queue_run(&q, &comm->plan);
    }
    status = ipc_queue_leave(&q, status);
    if (status == DP_OK) {
        *data_out = end->plan.data + end->count % end->plan.slots * end->plan.stride;
        end->count++;
    }
    return status;
}

dp_status_t ipc_channel_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s)
{
    dp_comm_t *comm = end->comm;
    dp_status_t status = ipc_check_transfer(end, false, end->released, number, 0, "release");
    queue_t q;

    if (status < 0)
        return status;
    if (end->released == end->count)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "release of message %u on channel \"%s\", which was not received",
                       number, end->label);
    status = enter_channel(end, s, &q);
    if (status < 0)
        return status;
    ipc_plan_release(&comm->plan, &end->plan, end->released);
    status = ipc_queue_leave(&q, ipc_queue_run(&q, &comm->plan));
    end->released += status == DP_OK;
    return status;
}
