/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * channel.c: tagged messages in order, put into slots of the receiver, which gives each slot back
 * as a credit. */
#include "comm_shm.h"
#include "plugins/common/do.h"

#include <stdio.h>
#include <string.h>

#define SMALL_BYTES 32

/* A message and the news of it share a cache line when the data fit behind the tag. */
typedef struct slot_head {
    alignas(CACHE_LINE) dp_signal_t published; /* number + 1 of the message in the slot */
    dp_message_tag_t tag;
    alignas(16) unsigned char small[SMALL_BYTES];
} slot_head_t;

/* What a stream gets to do. */
typedef struct transfer {
    dp_channel_end_t *end;
    slot_head_t *slot;
    const void *from;
    dp_message_tag_t tag;
} transfer_t;

area_t shm_channel_area(const dp_channel_end_t *end, bool ours)
{
    bool receiver = ours != (end->config.sender != 0);
    area_t area = {
        .kind = receiver ? AREA_SLOTS : AREA_CREDIT,
        .id = end->config.id,
        .peer = ours ? end->config.peer : end->comm->rank,
        .slots = end->config.slots,
        .unit = end->config.slot_bytes,
        .bytes = receiver ? end->config.slots * end->stride : sizeof(line_t),
    };

    return area;
}

dp_status_t shm_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out)
{
    dp_channel_end_t *end = NULL;
    dp_status_t status = comm_check_new_end(comm, "comm_shm", UINT32_MAX, config);

    if (status == DP_OK)
        status = comm_make_end(comm, config, &end);
    if (status < 0)
        return status;
    end->stride = sizeof(slot_head_t) + (config->slot_bytes > SMALL_BYTES ? comm_round_line(config->slot_bytes) : 0);
    end->data_offset = config->slot_bytes > SMALL_BYTES ? sizeof(slot_head_t) : offsetof(slot_head_t, small);
    comm_add_end(end);
    *end_out = end;
    return DP_OK;
}

dp_status_t shm_channel_connect(dp_channel_end_t *end, view_t *views)
{
    dp_comm_t *comm = end->comm;
    area_t ours = shm_channel_area(end, true), theirs = shm_channel_area(end, false);
    unsigned char *own, *far;
    char what[LABEL_BYTES + 40];
    dp_status_t status;

    snprintf(what, sizeof(what), "channel %u \"%s\"", end->config.id, end->label);
    status = shm_find(comm, views, comm->rank, &ours, what, &own);
    if (status == DP_OK)
        status = shm_find(comm, views, end->config.peer, &theirs, what, &far);
    if (status < 0)
        return status;
    end->slots = end->config.sender != 0 ? far : own;
    end->credit = &((line_t *)(void *)(end->config.sender != 0 ? own : far))->signal;
    end->connected = true;
    return DP_OK;
}

/* ---- on the stream ---- */

static dp_status_t explain_transfer(const transfer_t *t, dp_status_t status)
{
    return shm_is_news(status) ? comm_explain_transfer(t->end, &t->tag, status) : status;
}

static unsigned char *data_of(const transfer_t *t)
{
    return (unsigned char *)t->slot + t->end->data_offset;
}

static dp_status_t wait_for_credit(dp_channel_end_t *end, uint32_t target)
{
    dp_status_t status = DP_OK;

    if ((int32_t)(end->credit_seen - target) < 0) {
        status = shm_wait(end->comm, end->credit, target, "no slot of the receiver is free");
        end->credit_seen = __atomic_load_n(&end->credit->value, __ATOMIC_ACQUIRE);
    }
    return status;
}

/* sender   --slot.published--> receiver : tag and data of the slot are whole.
 * receiver --credit----------> sender   : the slot may be written again. */
static dp_status_t run_send(void *arg)
{
    const transfer_t *t = arg;
    dp_comm_t *comm = t->end->comm;
    dp_status_t status = wait_for_credit(t->end, t->tag.number + 1 - t->end->config.slots);

    if (status < 0)
        return explain_transfer(t, status);
    t->slot->tag = t->tag;
    memcpy(data_of(t), t->from, t->tag.bytes);
    comm->host->post(comm->host, &t->slot->published, t->tag.number + 1);
    return DP_OK;
}

static dp_status_t run_recv(void *arg)
{
    const transfer_t *t = arg;
    dp_message_tag_t found;
    dp_status_t status = shm_wait(t->end->comm, &t->slot->published, t->tag.number + 1, "the message has not come");

    if (status < 0)
        return explain_transfer(t, status);
    found = t->slot->tag;
    if (found.number != t->tag.number || found.step != t->tag.step || found.microbatch != t->tag.microbatch ||
        found.bytes != t->tag.bytes)
        return comm_refuse_message(t->end, &t->tag, &found, "");
    return DP_OK;
}

static dp_status_t run_message_release(void *arg)
{
    const transfer_t *t = arg;
    const dp_host_t *host = t->end->comm->host;

    host->post(host, t->end->credit, t->tag.number + 1);
    return DP_OK;
}

/* ---- on the caller's thread ---- */

static slot_head_t *slot_of(const dp_channel_end_t *end, uint64_t number)
{
    return (slot_head_t *)(void *)(end->slots + number % end->config.slots * end->stride);
}

dp_status_t shm_channel_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    transfer_t t = {end, NULL, from, *tag};

    DO(comm_check_call(end, true, end->count, tag->number, tag->bytes, "send"));
    t.slot = slot_of(end, end->count);
    DO(end->comm->device->launch(s, run_send, &t, sizeof(t)));
    end->count++;
    return DP_OK;
}

dp_status_t shm_channel_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                             dp_stream_t *s)
{
    transfer_t t = {end, NULL, NULL, *expected};

    DO(comm_check_call(end, false, end->count, expected->number, expected->bytes, "receive"));
    t.slot = slot_of(end, end->count);
    DO(end->comm->device->launch(s, run_recv, &t, sizeof(t)));
    end->count++;
    *data_out = data_of(&t);
    return DP_OK;
}

dp_status_t shm_channel_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s)
{
    transfer_t t = {.end = end, .tag = {.number = number}};

    DO(comm_check_release(end, end->released, number));
    DO(end->comm->device->launch(s, run_message_release, &t, sizeof(t)));
    end->released++;
    return DP_OK;
}
