/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * channel.c: tagged messages in order, put into slots of the receiver, which gives each slot back
 * as a credit. */
#include "channel.h"
#include "join.h"
#include "plugins/common/do.h"

#include <stdio.h>
#include <string.h>

/* Where the head of a slot lies, so that it ends where the data begin. */
#define HEAD_AT (CACHE_LINE - HEAD_BYTES)

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
    return CACHE_LINE + (end->comm->wire.direct ? 0 : data_stride(end));
}

/* What is in a slot of ours, as the device sees it. */
static unsigned char *data_of(const dp_channel_end_t *end, uint64_t slot)
{
    return end->part.shown != NULL ? end->part.shown + slot * data_stride(end)
                                   : end->slots + slot * end->stride + CACHE_LINE;
}

/* The receiver owns slots, and an op for credits; the sender a line that takes credits, and an op
 * for messages. Bells by slot; behind them, where data are a separate write, bells for those. */
area_t ofi_channel_area(const dp_channel_end_t *end, bool ours)
{
    bool receiver = ours != (end->config.sender != 0);
    area_t area = {
        .kind = receiver ? AREA_SLOTS : AREA_CREDIT,
        .id = end->config.id,
        .peer = ours ? end->config.peer : end->comm->rank,
        .slots = end->config.slots,
        .unit = end->config.slot_bytes,
        .bytes = receiver ? end->config.slots * stride_of(end) : CACHE_LINE,
        .bells = receiver ? end->config.slots * (end->comm->wire.direct ? 2 : 1) : 1,
        .data_address = end->part.address,
        .data_key = end->part.key,
        .private_bytes = sizeof(op_t),
    };

    if (!receiver && end->comm->wire.bounce && !end->comm->wire.direct)
        area.private_bytes += comm_round_line(end->config.slot_bytes);
    return area;
}

void ofi_channel_free(dp_channel_end_t *end)
{
    ofi_part_free(end->comm, &end->part);
    comm_release(end->comm, end->heard);
    end->comm->host->release(end->comm->host, end);
}

dp_status_t ofi_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out)
{
    const dp_host_t *host = comm->host;
    dp_channel_end_t *end = NULL;
    dp_status_t status = comm_check_new_end(comm, "comm_ofi", (1u << BELL_BITS) - 1, config);

    if (status == DP_OK)
        status = comm_make_end(comm, config, &end);
    if (status < 0)
        return status;
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
    comm_add_end(end);
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

    snprintf(what, sizeof(what), "channel %u \"%s\"", end->config.id, end->label);
    DO(ofi_join_find(comm, views, end->config.peer, &theirs, what, &end->far));
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

static dp_status_t explain_transfer(const transfer_t *t, dp_status_t status)
{
    return ofi_wire_is_news(t->end->comm, status) ? comm_explain_transfer(t->end, &t->tag, status) : status;
}

/* sender   --bell of the slot--> receiver : head and data of the slot are whole; the n-th ring is
 *          its n-th message.
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
    return status < 0 ? explain_transfer(t, status) : DP_OK;
}

static dp_status_t refuse_message(const transfer_t *t, const head_t *found)
{
    const dp_message_tag_t tag = {.number = found->message.number,
                                  .step = found->message.step,
                                  .microbatch = found->message.microbatch,
                                  .bytes = found->message.bytes};
    char behind[80];

    snprintf(behind, sizeof(behind), " of channel %u from rank %d of the group", found->message.id,
             found->message.sender);
    return comm_refuse_message(t->end, &t->tag, &tag, behind);
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
        return explain_transfer(t, status);
    memcpy(&found, end->slots + slot * end->stride + HEAD_AT, HEAD_BYTES);
    if (found.message.number != e->number || found.message.step != e->step ||
        found.message.microbatch != e->microbatch || found.message.bytes != e->bytes ||
        found.message.id != end->config.id || found.message.sender != end->config.peer)
        return refuse_message(t, &found);
    if (end->heard != NULL && e->bytes > 0) {
        status =
            ofi_wire_wait(end->comm, &end->bells[slots + slot].signal, ++end->heard[slot], "its data have not come");
        return status < 0 ? explain_transfer(t, status) : DP_OK;
    }
    return end->part.shown == NULL
               ? DP_OK
               : ofi_copy(end->comm, data_of(end, slot), end->slots + slot * end->stride + CACHE_LINE, e->bytes);
}

static dp_status_t run_message_release(void *arg)
{
    const transfer_t *t = arg;
    dp_status_t status = ofi_wire_owe(t->end->comm, t->end->op, t->end->config.slots);

    return status < 0 ? explain_transfer(t, status) : DP_OK;
}

/* ---- on the caller's thread ---- */

dp_status_t ofi_channel_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    transfer_t t = {end, from, end->count, *tag};

    DO(comm_check_call(end, true, end->count, tag->number, tag->bytes, "send"));
    DO(ofi_launch(end->comm, end->part.queue, s, run_send, &t, sizeof(t)));
    end->count++;
    return DP_OK;
}

dp_status_t ofi_channel_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                             dp_stream_t *s)
{
    transfer_t t = {end, NULL, end->count, *expected};

    DO(comm_check_call(end, false, end->count, expected->number, expected->bytes, "receive"));
    DO(ofi_launch(end->comm, end->part.queue, s, run_recv, &t, sizeof(t)));
    *data_out = data_of(end, end->count % end->config.slots);
    end->count++;
    return DP_OK;
}

dp_status_t ofi_channel_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s)
{
    transfer_t t = {.end = end, .tag = {.number = number}};

    DO(comm_check_release(end, end->released, number));
    DO(ofi_launch(end->comm, end->part.releases, s, run_message_release, &t, sizeof(t)));
    end->released++;
    return DP_OK;
}
