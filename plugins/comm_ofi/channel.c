/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * channel.c: tagged messages in order, put into slots of the receiver, which gives each slot back as a credit. */
#include "comm_ofi.h"

#include <stdio.h>
#include <string.h>

/* Where the head of a slot lies, so that it ends where the data begin. */
#define HEAD_AT (LINE_BYTES - HEAD_BYTES)

/* What a stream gets to do. */
typedef struct transfer {
    dp_channel_end_t *end;
    const void *from;
    uint64_t count; /* of the message, without wrapping */
    dp_message_tag_t tag;
} transfer_t;

/* Of a slot's data, where they are not behind their head. */
static size_t data_stride(const dp_channel_end_t *end)
{
    return comm_round_line(end->config.slot_bytes);
}

static size_t stride_of(const dp_channel_end_t *end)
{
    return LINE_BYTES + (end->comm->wire.direct ? 0 : data_stride(end));
}

/* What is in a slot of ours, as the device sees it. */
static unsigned char *data_of(const dp_channel_end_t *end, uint64_t slot)
{
    return end->part.shown != NULL ? end->part.shown + slot * data_stride(end)
                                   : end->slots + slot * end->stride + LINE_BYTES;
}

/* The receiver owns slots, and an op for credits; the sender a line that takes credits, and an op for messages. Bells
 * by slot; behind them, where data are a write of their own, bells for those. */
area_t ofi_channel_area(const dp_channel_end_t *end, bool ours)
{
    bool receiver = ours != (end->config.sender != 0);
    area_t area = {
        .kind = receiver ? AREA_SLOTS : AREA_CREDIT,
        .id = end->config.id,
        .peer = ours ? end->config.peer : end->comm->rank,
        .slots = end->config.slots,
        .unit = end->config.slot_bytes,
        .bytes = receiver ? end->config.slots * stride_of(end) : LINE_BYTES,
        .bells = receiver ? end->config.slots * (end->comm->wire.direct ? 2 : 1) : 1,
        .data_address = end->part.address,
        .data_key = end->part.key,
        .private_bytes = sizeof(op_t),
    };

    if (!receiver && end->comm->wire.bounce && !end->comm->wire.direct)
        area.private_bytes += comm_round_line(end->config.slot_bytes);
    return area;
}

static dp_status_t ofi_check_channel(const dp_comm_t *comm, const dp_channel_config_t *config)
{
    const dp_host_t *host = comm->host;
    dp_status_t status =
        comm_check_channel(host, "comm_ofi", comm->name, comm->rank, comm->nranks, (1u << BELL_BITS) - 1, config);

    if (status < 0)
        return status;
    for (const dp_channel_end_t *end = comm->ends; end != NULL; end = end->next)
        if (end->config.id == config->id && end->config.peer == config->peer &&
            (end->config.sender != 0) == (config->sender != 0))
            return DP_FAIL(host, DP_ERR_INVALID, "group %s: channel %u with rank %d is open already", comm->name,
                           config->id, comm->world[config->peer]);
    return DP_OK;
}

void ofi_channel_free(dp_channel_end_t *end)
{
    ofi_part_free(end->comm, &end->part);
    ofi_free(end->comm, end->heard);
    end->comm->host->release(end->comm->host, end);
}

dp_status_t ofi_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out)
{
    const dp_host_t *host = comm->host;
    dp_channel_end_t *end;
    dp_status_t status = ofi_check_channel(comm, config);

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
    end->stride = stride_of(end);
    status = ofi_part_open(comm, &end->part, config->sender == 0);
    if (status == DP_OK && comm->wire.direct && config->sender == 0) {
        end->heard = host->allocate(host, config->slots * sizeof(*end->heard), 16);
        if (end->heard == NULL)
            status = DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for channel %u", comm->name, config->id);
        else
            memset(end->heard, 0, config->slots * sizeof(*end->heard));
    }
    if (status < 0) {
        ofi_channel_free(end);
        return status;
    }
    end->next = comm->ends;
    comm->ends = end;
    comm->memory_bytes += sizeof(*end);
    *end_out = end;
    return DP_OK;
}

dp_status_t ofi_channel_show(dp_channel_end_t *end)
{
    return end->config.sender != 0 ? DP_OK : ofi_part_show(end->comm, &end->part, end->config.slots * data_stride(end));
}

dp_status_t ofi_channel_connect(dp_channel_end_t *end, const area_t *ours, const region_t *region, view_t *views)
{
    dp_comm_t *comm = end->comm;
    area_t theirs = ofi_channel_area(end, false);
    unsigned char *own = region->base + ours->private_offset;
    char what[LABEL_BYTES + 40];
    dp_status_t status;

    snprintf(what, sizeof(what), "channel %u \"%s\"", end->config.id, end->label);
    status = ofi_join_find(comm, views, end->config.peer, &theirs, what, &end->far);
    if (status < 0)
        return status;
    end->slots = region->base + ours->offset;
    end->bells = region->bells + ours->bell;
    for (uint32_t slot = 0; end->config.sender == 0 && slot < end->config.slots; slot++)
        end->bells[slot].head = (const head_t *)(const void *)(end->slots + slot * end->stride + HEAD_AT);
    end->op = (op_t *)(void *)own;
    ofi_op_init(comm, end->op, end->config.peer, region, comm->wire.direct ? NULL : own + sizeof(op_t));
    end->op->credit =
        (put_t){.to = end->config.peer, .bell = end->far.bell, .head_at = end->far.address, .key = end->far.key};
    end->connected = true;
    return DP_OK;
}

/* ---- on the stream ---- */

static dp_status_t explain_transfer(const transfer_t *t, dp_status_t status, const char *verb, const char *preposition)
{
    const dp_channel_end_t *end = t->end;
    const dp_comm_t *comm = end->comm;
    cause_t cause = comm_cause_of(comm->host);

    if (!ofi_wire_is_news(comm, status))
        return status;
    return DP_FAIL(comm->host, status, "rank %d: %s of micro-batch %d, step %u, on channel \"%s\" %s rank %d: %s",
                   comm->world[comm->rank], verb, t->tag.microbatch, t->tag.step, end->label, preposition,
                   comm->world[end->config.peer], cause.text);
}

/* sender   --bell of the slot--> receiver : head and data of the slot are whole; the n-th ring is its n-th message.
 * receiver --bell of credits---> sender   : one more slot may be written again. */
static dp_status_t run_send(void *arg)
{
    const transfer_t *t = arg;
    dp_channel_end_t *end = t->end;
    dp_comm_t *comm = end->comm;
    uint32_t slots = end->config.slots, slot = (uint32_t)(t->count % slots);
    put_t put = {
        .to = end->config.peer,
        .bell = end->far.bell + slot,
        .head_at = end->far.address + slot * end->stride + HEAD_AT,
        .key = end->far.key,
        .data = t->from,
        .bytes = t->tag.bytes,
        .carries = true,
        .what = "the provider takes no more",
    };
    dp_status_t status = DP_OK;

    if (t->count >= slots)
        status = ofi_wire_wait(comm, &end->bells->signal, (uint32_t)(t->count + 1 - slots),
                               "no slot of the receiver is free");
    if (comm->wire.direct && t->tag.bytes > 0) {
        put.data_bell = put.bell + slots;
        put.apart = true;
        put.data_at = end->far.data_address + slot * data_stride(end);
        put.data_key = end->far.data_key;
        if (status == DP_OK)
            status = ofi_part_lend(comm, &end->part, t->from, &put.desc);
    }
    if (status == DP_OK) {
        end->op->head = (head_t){.message = {.number = t->tag.number,
                                             .step = t->tag.step,
                                             .microbatch = t->tag.microbatch,
                                             .bytes = t->tag.bytes,
                                             .id = end->config.id,
                                             .sender = comm->rank}};
        status = ofi_wire_put(comm, end->op, &put);
    }
    if (status == DP_OK)
        status = ofi_wire_finish(comm, end->op, "the message does not leave");
    return status < 0 ? explain_transfer(t, status, "send", "to") : DP_OK;
}

static dp_status_t refuse_message(const transfer_t *t, const head_t *found)
{
    const dp_comm_t *comm = t->end->comm;
    const dp_message_tag_t *e = &t->tag;

    return DP_FAIL(comm->host, DP_ERR_PROTOCOL,
                   "rank %d: channel \"%s\" from rank %d: expected message %u (step %u, micro-batch %d, %u bytes), "
                   "found message %u (step %u, micro-batch %d, %u bytes) of channel %u from rank %d of the group",
                   comm->world[comm->rank], t->end->label, comm->world[t->end->config.peer], e->number, e->step,
                   e->microbatch, e->bytes, found->message.number, found->message.step, found->message.microbatch,
                   found->message.bytes, found->message.id, found->message.sender);
}

static dp_status_t run_recv(void *arg)
{
    const transfer_t *t = arg;
    dp_channel_end_t *end = t->end;
    const dp_message_tag_t *e = &t->tag;
    uint32_t slots = end->config.slots, slot = (uint32_t)(t->count % slots);
    dp_status_t status = ofi_wire_wait(end->comm, &end->bells[slot].signal, (uint32_t)(t->count / slots + 1),
                                       "the message has not come");
    head_t found;

    if (status < 0)
        return explain_transfer(t, status, "receive", "from");
    memcpy(&found, end->slots + slot * end->stride + HEAD_AT, HEAD_BYTES);
    if (found.message.number != e->number || found.message.step != e->step ||
        found.message.microbatch != e->microbatch || found.message.bytes != e->bytes ||
        found.message.id != end->config.id || found.message.sender != end->config.peer)
        return refuse_message(t, &found);
    if (end->heard != NULL && e->bytes > 0) {
        status =
            ofi_wire_wait(end->comm, &end->bells[slots + slot].signal, ++end->heard[slot], "its data have not come");
        return status < 0 ? explain_transfer(t, status, "receive", "from") : DP_OK;
    }
    return end->part.shown == NULL
               ? DP_OK
               : ofi_copy(end->comm, data_of(end, slot), end->slots + slot * end->stride + LINE_BYTES, e->bytes);
}

static dp_status_t run_message_release(void *arg)
{
    const transfer_t *t = arg;
    dp_status_t status = ofi_wire_owe(t->end->comm, t->end->op, t->end->config.slots);

    return status < 0 ? explain_transfer(t, status, "release", "from") : DP_OK;
}

/* ---- on the caller's thread ---- */

static dp_status_t ofi_check_transfer(const dp_channel_end_t *end, bool sender, uint64_t next, uint32_t number,
                                      size_t bytes, const char *verb)
{
    const transfer_call_t call = {&end->config, end->connected, sender, next, number, bytes, verb};

    return comm_check_transfer(end->comm->host, &call);
}

dp_status_t ofi_channel_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    dp_status_t status = ofi_check_transfer(end, true, end->count, tag->number, tag->bytes, "send");
    transfer_t t = {end, from, end->count, *tag};

    if (status < 0)
        return status;
    status = ofi_launch(end->comm, end->part.queue, s, run_send, &t, sizeof(t));
    end->count += status == DP_OK;
    return status;
}

dp_status_t ofi_channel_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                             dp_stream_t *s)
{
    dp_status_t status = ofi_check_transfer(end, false, end->count, expected->number, expected->bytes, "receive");
    transfer_t t = {end, NULL, end->count, *expected};

    if (status < 0)
        return status;
    status = ofi_launch(end->comm, end->part.queue, s, run_recv, &t, sizeof(t));
    if (status == DP_OK) {
        *data_out = data_of(end, end->count % end->config.slots);
        end->count++;
    }
    return status;
}

dp_status_t ofi_channel_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s)
{
    dp_status_t status = ofi_check_transfer(end, false, end->released, number, 0, "release");
    transfer_t t = {.end = end, .tag = {.number = number}};

    if (status < 0)
        return status;
    if (end->released == end->count)
        return DP_FAIL(end->comm->host, DP_ERR_INVALID,
                       "release of message %u on channel \"%s\", which was not received", number, end->label);
    status = ofi_launch(end->comm, end->part.releases, s, run_message_release, &t, sizeof(t));
    end->released += status == DP_OK;
    return status;
}
