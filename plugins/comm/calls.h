/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * calls.h: what a transport finds wrong with a call at once (dp.comm/1, "Errors"), in the same
 * words whichever it is. */
#ifndef PLUGINS_COMM_CALLS_H
#define PLUGINS_COMM_CALLS_H

#include "plugins/common/check.h"

#include <dualpipe/comm.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define CACHE_LINE 64 /* of a cache */

static inline size_t comm_round_line(size_t bytes)
{
    return (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

/* name_bytes: with the 0 at its end. Of the device nothing but that there is one. */
static inline dp_status_t comm_check_open(const dp_host_t *host, const char *plugin, const dp_comm_config_t *config,
                                          size_t name_bytes, int32_t ranks_max)
{
    dp_status_t status = DP_TAKE(host, plugin, dp_comm_config_t, DP_COMM_CONFIG_MIN, NULL, config);

    if (status < 0)
        return status;
    if (config->name == NULL || config->name[0] == '\0' || strlen(config->name) >= name_bytes)
        return DP_FAIL(host, DP_ERR_INVALID, "the name of a group has 1 to %zu characters", name_bytes - 1);
    if (config->nranks < 1 || config->nranks > ranks_max || config->rank < 0 || config->rank >= config->nranks)
        return DP_FAIL(host, DP_ERR_INVALID, "group %s: rank %d of %d makes no sense", config->name, config->rank,
                       config->nranks);
    if (config->world_ranks == NULL || config->device_vt == NULL || config->device == NULL)
        return DP_FAIL(host, DP_ERR_INVALID, "group %s: world ranks or the device are missing", config->name);
    if (config->nranks > 1 && host->get_service(host, DP_HOST_BOOT) == NULL)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "%s needs the host's service " DP_HOST_BOOT, plugin);
    return DP_OK;
}

static inline bool comm_runs_on_host(const dp_device_vt_t *vt)
{
    return (vt->caps & DP_DEVICE_CAP_LAUNCH) != 0 && (vt->caps & DP_DEVICE_CAP_HOST_MEMORY) != 0;
}

static inline int comm_serves_host(const dp_device_vt_t *vt)
{
    return comm_runs_on_host(vt);
}

static inline dp_status_t comm_check_host_device(const dp_host_t *host, const char *plugin, const dp_device_vt_t *vt)
{
    return comm_runs_on_host(vt)
               ? DP_OK
               : DP_FAIL(host, DP_ERR_UNSUPPORTED,
                         "%s needs a device that runs host functions on host memory, such as device_cpu", plugin);
}

/* group: its name. rank, nranks: ours in it. slots_max: of the transport. */
static inline dp_status_t comm_check_channel(const dp_host_t *host, const char *plugin, const char *group, int32_t rank,
                                             int32_t nranks, uint32_t slots_max, const dp_channel_config_t *c)
{
    dp_status_t status = DP_TAKE(host, plugin, dp_channel_config_t, DP_CHANNEL_CONFIG_MIN, NULL, c);
    size_t all;

    if (status < 0)
        return status;
    if (c->peer < 0 || c->peer >= nranks || c->peer == rank)
        return DP_FAIL(host, DP_ERR_INVALID, "group %s: channel %u leads to rank %d of %d", group, c->id, c->peer,
                       nranks);
    if (c->slots < 1 || c->slots > slots_max || c->slot_bytes < 1 || c->slot_bytes > UINT32_MAX ||
        __builtin_mul_overflow((size_t)c->slots, comm_round_line(c->slot_bytes) + CACHE_LINE, &all) ||
        all > SIZE_MAX / 8)
        return DP_FAIL(host, DP_ERR_INVALID, "group %s: channel %u cannot have %u slots of %zu bytes", group, c->id,
                       c->slots, c->slot_bytes);
    return DP_OK;
}

/* slots: what c->slots means. */
static inline dp_status_t comm_check_exchange(const dp_host_t *host, const char *plugin, const char *group,
                                              int32_t nranks, uint32_t slots, uint32_t slots_max,
                                              const dp_exchange_config_t *c)
{
    dp_status_t status = DP_TAKE(host, plugin, dp_exchange_config_t, DP_EXCHANGE_CONFIG_MIN, NULL, c);
    size_t all;

    if (status < 0)
        return status;
    if (c->row_bytes == 0 || c->row_bytes % 16 != 0)
        return DP_FAIL(host, DP_ERR_INVALID, "group %s: exchange %u: row_bytes %zu is not a multiple of 16", group,
                       c->id, c->row_bytes);
    if (c->capacity_rows < 1 || c->capacity_rows > INT32_MAX || slots > slots_max ||
        __builtin_mul_overflow(c->row_bytes, (size_t)c->capacity_rows, &all) ||
        __builtin_mul_overflow(all, (size_t)nranks * slots, &all) || all > SIZE_MAX / 8)
        return DP_FAIL(host, DP_ERR_INVALID, "group %s: exchange %u cannot have %u slots of %u rows of %zu bytes",
                       group, c->id, slots, c->capacity_rows, c->row_bytes);
    return DP_OK;
}

/* A channel's end and the message that a call is about. */
typedef struct transfer_call {
    const dp_channel_config_t *end; /* with its label */
    bool connected, sender;         /* the end was started; the call is a sender's */
    uint64_t next;                  /* the number that is expected */
    uint32_t number;
    size_t bytes;
    const char *verb;
} transfer_call_t;

static inline dp_status_t comm_check_transfer(const dp_host_t *host, const transfer_call_t *c)
{
    const char *label = c->end->label;

    if (!c->connected)
        return DP_FAIL(host, DP_ERR_INVALID, "%s on channel \"%s\" before start", c->verb, label);
    if (c->sender != (c->end->sender != 0))
        return DP_FAIL(host, DP_ERR_INVALID, "%s on the wrong end of channel \"%s\"", c->verb, label);
    if (c->number != (uint32_t)c->next)
        return DP_FAIL(host, DP_ERR_INVALID, "%s of message %u on channel \"%s\": message %u is next", c->verb,
                       c->number, label, (uint32_t)c->next);
    if (c->bytes > c->end->slot_bytes)
        return DP_FAIL(host, DP_ERR_INVALID, "%s of %zu bytes on channel \"%s\", which carries at most %zu", c->verb,
                       c->bytes, label, c->end->slot_bytes);
    return DP_OK;
}

static inline dp_status_t comm_check_round(const dp_host_t *host, const char *label, bool connected, uint64_t next,
                                           uint32_t number)
{
    if (!connected)
        return DP_FAIL(host, DP_ERR_INVALID, "exchange \"%s\" is used before start", label);
    if (number != (uint32_t)next)
        return DP_FAIL(host, DP_ERR_INVALID, "exchange %u of \"%s\": %u is next", number, label, (uint32_t)next);
    return DP_OK;
}

/* The host's latest message on this thread, copied: the cause at the end of a message of ours. */
typedef struct cause {
    char text[400];
} cause_t;

static inline cause_t comm_cause_of(const dp_host_t *host)
{
    const char *text = DP_HAS(host, dp_host_t, last_error) ? host->last_error(host) : "";
    cause_t cause;

    snprintf(cause.text, sizeof(cause.text), "%s", text);
    return cause;
}

#endif
