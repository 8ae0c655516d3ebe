/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * channel.c: tagged messages in order, put into slots of the receiver, which gives each slot back
 * as a credit. */
#include "plugins/common/do.h"
#include "queue.h"

#include <string.h>

area_t ipc_channel_area(const dp_channel_end_t *end, bool ours)
{
    bool receiver = ours != (end->config.sender != 0);
    area_t area;

    (void)ipc_channel_layout(receiver, end->config.id, ours ? end->config.peer : end->comm->rank, end->config.slots,
                             end->config.slot_bytes, &area); /* checked when it was opened */
    return area;
}

dp_status_t ipc_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out)
{
    dp_channel_end_t *end = NULL;
    area_t area;
    dp_status_t status = comm_check_new_end(comm, "comm_cuda_ipc", UINT32_MAX, config);

    if (status == DP_OK &&
        !ipc_channel_layout(true, config->id, config->peer, config->slots, config->slot_bytes, &area))
        return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: channel %u cannot have %u slots of %zu bytes", comm->name,
                       config->id, config->slots, config->slot_bytes);
    if (status == DP_OK)
        status = comm_make_end(comm, config, &end);
    if (status < 0)
        return status;
    comm_add_end(end);
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
    const dp_message_tag_t expected = {words[0], words[1], (int32_t)words[2], words[3], {0}};
    const dp_message_tag_t found = {words[4], words[5], (int32_t)words[6], words[7], {0}};

    return comm_refuse_message(end, &expected, &found, "");
}

/* ---- on the caller's thread ---- */

/* How many messages a graph has carried when it was replayed only the device knows. */
static dp_status_t enter_channel(dp_channel_end_t *end, dp_stream_t *s, queue_t *q)
{
    DO(ipc_queue_enter(end->comm, s, q));
    if (end->captured && !q->capturing)
        return DP_FAIL(end->comm->host, DP_ERR_INVALID,
                       "channel \"%s\" is part of a graph: it is used by replays alone", end->label);
    end->captured = q->capturing;
    return DP_OK;
}

dp_status_t ipc_channel_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    dp_comm_t *comm = end->comm;
    dp_status_t status = comm_check_call(end, true, end->count, tag->number, tag->bytes, "send");
    queue_t q;

    if (status == DP_OK)
        status = enter_channel(end, s, &q);
    if (status < 0)
        return status;
    ipc_plan_send(&comm->plan, &end->plan, end->count, tag, from);
    DO(ipc_queue_leave(&q, ipc_queue_run(&q, &comm->plan)));
    end->count++;
    return DP_OK;
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
    dp_status_t status = comm_check_call(end, false, end->count, expected->number, expected->bytes, "receive");
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
    DO(ipc_queue_leave(&q, status));
    *data_out = end->plan.data + end->count % end->plan.slots * end->plan.stride;
    end->count++;
    return DP_OK;
}

dp_status_t ipc_channel_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s)
{
    dp_comm_t *comm = end->comm;
    queue_t q;

    DO(comm_check_release(end, end->released, number));
    DO(enter_channel(end, s, &q));
    ipc_plan_release(&comm->plan, &end->plan, end->released);
    DO(ipc_queue_leave(&q, ipc_queue_run(&q, &comm->plan)));
    end->released++;
    return DP_OK;
}
