/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ends.h: how all transports open groups, ends of channels and exchanges, and judge calls on them.
 *
 * A transport includes it behind its structs. Members of these names are meant:
 *   dp_comm           host, boot, name, rank, nranks, world, ends, exchanges, memory_bytes
 *   dp_channel_end    next, comm, config, label, connected, count
 *   dp_exchange       the same */
#ifndef PLUGINS_COMM_ENDS_H
#define PLUGINS_COMM_ENDS_H

#include "calls.h"

#include <stdio.h>

/* ---- groups ---- */

static inline void comm_release(const dp_comm_t *comm, void *memory)
{
    if (memory != NULL)
        comm->host->release(comm->host, memory);
}

/* Zeroed but for what the config says, `world` behind it. It has been checked. NULL: no memory,
 * with a message. */
static inline dp_comm_t *comm_make(const dp_host_t *host, const dp_comm_config_t *config)
{
    dp_comm_t *comm;
    const size_t world = (size_t)config->nranks * sizeof(*comm->world), bytes = sizeof(*comm) + world;

    comm = host->allocate(host, bytes, CACHE_LINE);
    if (comm == NULL) {
        (void)DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for %d ranks", config->name, config->nranks);
        return NULL;
    }
    memset(comm, 0, sizeof(*comm));
    comm->host = host;
    comm->boot = host->get_service(host, DP_HOST_BOOT);
    comm->rank = config->rank;
    comm->nranks = config->nranks;
    comm->world = memcpy(comm + 1, config->world_ranks, world);
    comm->memory_bytes = bytes;
    snprintf(comm->name, sizeof(comm->name), "%s", config->name);
    return comm;
}

static inline size_t comm_memory_bytes(dp_comm_t *comm)
{
    return comm->memory_bytes;
}

/* ---- channels ---- */

static inline dp_status_t comm_check_new_end(const dp_comm_t *comm, const char *plugin, uint32_t slots_max,
                                             const dp_channel_config_t *config)
{
    dp_status_t status =
        comm_check_channel(comm->host, plugin, comm->name, comm->rank, comm->nranks, slots_max, config);

    if (status < 0)
        return status;
    for (const dp_channel_end_t *end = comm->ends; end != NULL; end = end->next)
        if (end->config.id == config->id && end->config.peer == config->peer &&
            (end->config.sender != 0) == (config->sender != 0))
            return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: channel %u with rank %d is open already", comm->name,
                           config->id, comm->world[config->peer]);
    return DP_OK;
}

/* Zeroed but for what the config says, and not yet in the list. It has been checked. */
static inline dp_status_t comm_make_end(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out)
{
    dp_channel_end_t *end = comm->host->allocate(comm->host, sizeof(*end), CACHE_LINE);

    if (end == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory for channel %u", comm->name, config->id);
    memset(end, 0, sizeof(*end));
    end->comm = comm;
    (void)dp_sized_take(&end->config, sizeof(end->config), config);
    end->config.label = end->label;
    snprintf(end->label, sizeof(end->label), "%s", config->label != NULL ? config->label : "");
    comm->memory_bytes += sizeof(*end);
    *end_out = end;
    return DP_OK;
}

/* Threads of the transport may be reading the list. */
static inline void comm_add_end(dp_channel_end_t *end)
{
    end->next = end->comm->ends;
    __atomic_store_n(&end->comm->ends, end, __ATOMIC_RELEASE);
}

/* next: the number that a call must name. */
static inline dp_status_t comm_check_call(const dp_channel_end_t *end, bool sender, uint64_t next, uint32_t number,
                                          size_t bytes, const char *verb)
{
    const transfer_call_t call = {&end->config, end->connected, sender, next, number, bytes, verb};

    return comm_check_transfer(end->comm->host, &call);
}

/* released: messages given back before. */
static inline dp_status_t comm_check_release(const dp_channel_end_t *end, uint64_t released, uint32_t number)
{
    dp_status_t status = comm_check_call(end, false, released, number, 0, "release");

    if (status < 0 || released < end->count)
        return status;
    return DP_FAIL(end->comm->host, DP_ERR_INVALID, "release of message %u on channel \"%s\", which was not received",
                   number, end->label);
}

/* The message of a wait that has failed becomes the end of one that says what was waited for. */
static inline dp_status_t comm_explain_transfer(const dp_channel_end_t *end, const dp_message_tag_t *tag,
                                                dp_status_t status)
{
    const dp_comm_t *comm = end->comm;
    const bool sends = end->config.sender != 0;
    cause_t cause = comm_cause_of(comm->host);

    return DP_FAIL(comm->host, status, "rank %d: %s of micro-batch %d, step %u, on channel \"%s\" %s rank %d: %s",
                   comm->world[comm->rank], sends ? "send" : "receive", tag->microbatch, tag->step, end->label,
                   sends ? "to" : "from", comm->world[end->config.peer], cause.text);
}

/* behind: what else the message says of what was found. */
static inline dp_status_t comm_refuse_message(const dp_channel_end_t *end, const dp_message_tag_t *expected,
                                              const dp_message_tag_t *found, const char *behind)
{
    const dp_comm_t *comm = end->comm;

    return DP_FAIL(comm->host, DP_ERR_PROTOCOL,
                   "rank %d: channel \"%s\" from rank %d: expected message %u (step %u, micro-batch %d, %u bytes), "
                   "found message %u (step %u, micro-batch %d, %u bytes)%s",
                   comm->world[comm->rank], end->label, comm->world[end->config.peer], expected->number, expected->step,
                   expected->microbatch, expected->bytes, found->number, found->step, found->microbatch, found->bytes,
                   behind);
}

/* ---- exchanges ---- */

static inline uint32_t comm_slots_of(const dp_exchange_config_t *config)
{
    return config->slots != 0 ? config->slots : 2;
}

static inline dp_status_t comm_check_new_exchange(const dp_comm_t *comm, const char *plugin, uint32_t slots_max,
                                                  const dp_exchange_config_t *config)
{
    dp_status_t status =
        comm_check_exchange(comm->host, plugin, comm->name, comm->nranks, comm_slots_of(config), slots_max, config);

    if (status < 0)
        return status;
    for (const dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        if (x->config.id == config->id)
            return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: exchange %u is open already", comm->name, config->id);
    return DP_OK;
}

/* As comm_make_end. */
static inline dp_status_t comm_make_exchange(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **x_out)
{
    dp_exchange_t *x = comm->host->allocate(comm->host, sizeof(*x), CACHE_LINE);

    if (x == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory for exchange %u", comm->name, config->id);
    memset(x, 0, sizeof(*x));
    x->comm = comm;
    (void)dp_sized_take(&x->config, sizeof(x->config), config);
    x->config.slots = comm_slots_of(config);
    x->config.label = x->label;
    snprintf(x->label, sizeof(x->label), "%s", config->label != NULL ? config->label : "");
    comm->memory_bytes += sizeof(*x);
    *x_out = x;
    return DP_OK;
}

static inline void comm_add_exchange(dp_exchange_t *x)
{
    x->next = x->comm->exchanges;
    __atomic_store_n(&x->comm->exchanges, x, __ATOMIC_RELEASE);
}

static inline dp_status_t comm_check_rows_release(const dp_exchange_t *x, uint64_t released, uint32_t number)
{
    dp_status_t status = comm_check_round(x->comm->host, x->label, x->connected, released, number);

    if (status < 0 || released < x->count)
        return status;
    return DP_FAIL(x->comm->host, DP_ERR_INVALID, "release of exchange %u of \"%s\", which was not made", number,
                   x->label);
}

static inline dp_status_t comm_explain_round(const dp_exchange_t *x, uint32_t number, dp_status_t status,
                                             const char *doing, int32_t peer)
{
    const dp_comm_t *comm = x->comm;
    cause_t cause = comm_cause_of(comm->host);

    return DP_FAIL(comm->host, status, "rank %d: exchange %u of \"%s\", %s rank %d: %s", comm->world[comm->rank],
                   number, x->label, doing, comm->world[peer], cause.text);
}

/* ---- both ---- */

/* Ends and exchanges that the next start connects. */
static inline uint32_t comm_count_opened(const dp_comm_t *comm)
{
    uint32_t count = 0;

    for (const dp_channel_end_t *end = comm->ends; end != NULL; end = end->next)
        count += !end->connected;
    for (const dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        count += !x->connected;
    return count;
}

static inline void comm_free_opened(dp_comm_t *comm, void (*free_end)(dp_channel_end_t *end),
                                    void (*free_exchange)(dp_exchange_t *x))
{
    while (comm->ends != NULL) {
        dp_channel_end_t *end = comm->ends;

        comm->ends = end->next;
        free_end(end);
    }
    while (comm->exchanges != NULL) {
        dp_exchange_t *x = comm->exchanges;

        comm->exchanges = x->next;
        free_exchange(x);
    }
}

#endif
