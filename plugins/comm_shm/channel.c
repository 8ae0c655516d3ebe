/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * channel.c: tagged messages from one rank to another. The sender waits in its own memory for a credit, writes head and
 * data into the receiver's slot and posts `published` there; the receiver reads in place and posts the credit back. */
#include "comm_shm.h"

#include <stdio.h>
#include <string.h>

/* In front of a slot's data, on lines of its own. */
typedef struct slot_head {
    dp_message_tag_t tag;
} slot_head_t;

typedef struct transfer {
    dp_channel_end_t *end;
    const void *from;
    dp_message_tag_t tag;
} transfer_t;

dp_status_t channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out)
{
    const dp_host_t *host = comm->host;
    dp_channel_end_t *end;

    if (config->struct_size < sizeof(*config) || config->peer < 0 || config->peer >= comm->nranks ||
        config->peer == comm->rank || config->slots < 1 || config->slot_bytes > SIZE_MAX / 64)
        return DP_FAIL(host, DP_ERR_INVALID, "group %s: a channel to rank %d of %d with %u slots of %zu bytes is not possible",
                       comm->name, config->peer, comm->nranks, config->slots, config->slot_bytes);
    for (end = comm->ends; end != NULL; end = end->next)
        if (end->config.id == config->id && end->config.peer == config->peer && end->config.sender == config->sender)
            return DP_FAIL(host, DP_ERR_INVALID, "group %s: channel %u with rank %d is open already", comm->name, config->id,
                           config->peer);
    end = host->allocate(host, sizeof(*end), LINE_BYTES);
    if (end == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for a channel", comm->name);
    memset(end, 0, sizeof(*end));
    end->comm = comm;
    end->config = *config;
    snprintf(end->label, sizeof(end->label), "%s", config->label != NULL ? config->label : "channel");
    end->config.label = end->label;
    end->stride = round_line(sizeof(slot_head_t)) + round_line(config->slot_bytes);
    end->next = comm->ends;
    comm->ends = end;
    *end_out = end;
    return DP_OK;
}

/* What this end puts into our segment. */
area_t channel_area(const dp_channel_end_t *end)
{
    const dp_channel_config_t *c = &end->config;

    return (area_t){
        .kind = c->sender ? AREA_CREDIT : AREA_SLOTS,
        .id = c->id,
        .peer = c->peer,
        .slots = c->slots,
        .unit = c->slot_bytes,
        .bytes = sizeof(line_t) + (c->sender ? 0 : (size_t)c->slots * end->stride),
    };
}

dp_status_t channel_connect(dp_channel_end_t *end, view_t *views, unsigned char *own)
{
    area_t expected = channel_area(end);
    unsigned char *theirs;
    dp_status_t status;

    expected.kind = end->config.sender ? AREA_SLOTS : AREA_CREDIT;
    expected.peer = end->comm->rank;
    expected.bytes = sizeof(line_t) + (end->config.sender ? (size_t)end->config.slots * end->stride : 0);
    status = shm_find(end->comm, views, end->config.peer, &expected, end->label, &theirs);
    if (status < 0)
        return status;
    end->published = &((line_t *)(void *)(end->config.sender ? theirs : own))->signal;
    end->credit = &((line_t *)(void *)(end->config.sender ? own : theirs))->signal;
    end->slots = (end->config.sender ? theirs : own) + sizeof(line_t);
    end->connected = true;
    return DP_OK;
}

static unsigned char *slot_of(const dp_channel_end_t *end, uint32_t sequence)
{
    return end->slots + (sequence % end->config.slots) * end->stride;
}

/* Adds to a failed wait's message which message it was about. */
static dp_status_t name_message(const dp_channel_end_t *end, const dp_message_tag_t *tag, dp_status_t status, const char *what)
{
    const dp_comm_t *comm = end->comm;

    if (status != DP_ERR_TIMEOUT)
        return status;
    return DP_FAIL(comm->host, status, "rank %d: %s of micro-batch %d in step %u %s rank %d, message %u: %s",
                   comm->world[comm->rank], end->label, tag->microbatch, tag->step, what, comm->world[end->config.peer],
                   tag->sequence, comm->host->last_error(comm->host));
}

static dp_status_t run_send(void *arg)
{
    const transfer_t *t = arg;
    dp_channel_end_t *end = t->end;
    unsigned char *slot = slot_of(end, t->tag.sequence);
    dp_status_t status = shm_wait(end->comm, end->credit, t->tag.sequence + 1 - end->config.slots, "a credit of the receiver");

    if (status < 0)
        return name_message(end, &t->tag, status, "cannot be sent to");
    memcpy(slot + round_line(sizeof(slot_head_t)), t->from, t->tag.bytes);
    ((slot_head_t *)(void *)slot)->tag = t->tag;
    end->comm->host->post(end->comm->host, end->published, t->tag.sequence + 1);
    return DP_OK;
}

static dp_status_t run_recv(void *arg)
{
    const transfer_t *t = arg;
    dp_channel_end_t *end = t->end;
    const dp_comm_t *comm = end->comm;
    dp_status_t status = shm_wait(end->comm, end->published, t->tag.sequence + 1, "the sender");
    dp_message_tag_t found;

    if (status < 0)
        return name_message(end, &t->tag, status, "does not come from");
    found = ((slot_head_t *)(void *)slot_of(end, t->tag.sequence))->tag;
    if (memcmp(&found, &t->tag, sizeof(found)) != 0)
        return DP_FAIL(comm->host, DP_ERR_PROTOCOL,
                       "rank %d: %s from rank %d: expected message %u of micro-batch %d in step %u with %u bytes, found message "
                       "%u of micro-batch %d in step %u with %u bytes",
                       comm->world[comm->rank], end->label, comm->world[end->config.peer], t->tag.sequence,
                       t->tag.microbatch, t->tag.step, t->tag.bytes, found.sequence, found.microbatch, found.step,
                       found.bytes);
    return DP_OK;
}

static dp_status_t run_release(void *arg)
{
    const transfer_t *t = arg;

    t->end->comm->host->post(t->end->comm->host, t->end->credit, t->tag.sequence + 1);
    return DP_OK;
}

/* Every call names the next message of its kind: anything else is the caller's mistake, found before it can do harm. */
static dp_status_t check(const dp_channel_end_t *end, int sender, uint64_t next, uint32_t sequence, uint32_t bytes)
{
    const dp_comm_t *comm = end->comm;

    if (!end->connected || end->config.sender != sender)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: %s: this end is %s", comm->name, end->label,
                       !end->connected ? "not connected yet: call start first" : "the other one");
    if (sequence != (uint32_t)next || bytes > end->config.slot_bytes)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: %s: message %u of %u bytes; the next is %u, of at most %zu bytes",
                       comm->name, end->label, sequence, bytes, (uint32_t)next, end->config.slot_bytes);
    return DP_OK;
}

dp_status_t channel_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    transfer_t t = {end, from, *tag};
    dp_status_t status = check(end, 1, end->count, tag->sequence, tag->bytes);

    if (status < 0)
        return status;
    status = end->comm->device->launch(s, run_send, &t, sizeof(t));
    end->count += status >= 0;
    return status;
}

dp_status_t channel_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out, dp_stream_t *s)
{
    transfer_t t = {end, NULL, *expected};
    dp_status_t status = check(end, 0, end->count, expected->sequence, expected->bytes);

    if (status < 0)
        return status;
    status = end->comm->device->launch(s, run_recv, &t, sizeof(t));
    if (status < 0)
        return status;
    end->count++;
    *data_out = slot_of(end, expected->sequence) + round_line(sizeof(slot_head_t));
    return DP_OK;
}

dp_status_t channel_release(dp_channel_end_t *end, uint32_t sequence, dp_stream_t *s)
{
    transfer_t t = {.end = end, .tag = {.sequence = sequence}};
    dp_status_t status = check(end, 0, end->released, sequence, 0);

    if (status < 0)
        return status;
    status = end->comm->device->launch(s, run_release, &t, sizeof(t));
    end->released += status >= 0;
    return status;
}
