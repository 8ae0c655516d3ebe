/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_comm_groups.c: a backend that completes transfers in matched groups only, on top of
 * comm_shm, for ranks as threads and as processes.
 *
 * A receive that has come to its place on the stream says so in a message to the sender; a send
 * waits for that before it moves a byte, and a receive ends with its message. Between two ranks the
 * n-th send meets the n-th receive, whatever their channels: who they were is compared, as a
 * transport without tags could not. */
#include <dualpipe/comm.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef FAR
/* 1: says that it reaches other hosts, which are what DUALPIPE_DEBUG=hosts takes for them */
#define FAR 0
#endif
#define NOTICES 16 /* receives of one peer that have been announced and not met */
#define MEMBERS 16 /* of one group */

typedef struct notice {
    uint32_t channel, number;
} notice_t;

/* Announcements to, or from, one peer. */
typedef struct pair {
    struct pair *next;
    int32_t peer, sends;
    dp_channel_end_t *notices; /* of the inner backend; we write when we receive data */
    uint32_t count;
    notice_t written;
} pair_t;

struct dp_comm {
    const dp_host_t *host;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    dp_comm_t *inner;
    pair_t *pairs;
    dp_channel_end_t *ends;
    int open; /* between bundle_begin and bundle_end */
    dp_stream_t *stream;
    int nmembers;
    struct member {
        dp_channel_end_t *end;
        const void *from;
        const void **data_out;
        dp_message_tag_t tag;
    } members[MEMBERS];
};

struct dp_channel_end {
    struct dp_channel_end *next;
    dp_comm_t *comm;
    dp_channel_end_t *inner;
    pair_t *pair;
    dp_channel_config_t config;
    dp_event_t **released; /* [slots] */
    int started;
    uint32_t count;
};

static const dp_comm_vt_t *inner;

static void find_inner(void)
{
    const char *path = getenv("DUALPIPE_PLUGIN_PATH");
    const dp_plugin_t *plugin;
    char file[4096];
    void *handle = NULL;

    for (; path != NULL && handle == NULL; path = strchr(path, ':') != NULL ? strchr(path, ':') + 1 : NULL) {
        snprintf(file, sizeof(file), "%.*s/dp_comm_shm.so", (int)strcspn(path, ":"), path);
        handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    }
    plugin = handle != NULL ? dlsym(handle, "dp_plugin_entry") : NULL;
    inner = plugin != NULL ? plugin->get_interface(DP_IFACE_COMM) : NULL;
}

static dp_status_t groups_open(const dp_host_t *host, const dp_comm_config_t *config, dp_comm_t **comm_out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    dp_comm_t *comm;
    dp_status_t status;

    pthread_once(&once, find_inner);
    if (inner == NULL)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "mock_comm_groups: dp_comm_shm.so is not in DUALPIPE_PLUGIN_PATH");
    comm = host->allocate(host, sizeof(*comm), 64);
    if (comm == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory");
    memset(comm, 0, sizeof(*comm));
    comm->host = host;
    comm->device_vt = config->device_vt;
    comm->device = config->device;
    status = inner->open(host, config, &comm->inner);
    if (status < 0) {
        host->release(host, comm);
        return status;
    }
    *comm_out = comm;
    return DP_OK;
}

static void groups_close(dp_comm_t *comm)
{
    if (comm == NULL)
        return;
    inner->close(comm->inner);
    while (comm->ends != NULL) {
        dp_channel_end_t *end = comm->ends;

        comm->ends = end->next;
        for (uint32_t i = 0; i < end->config.slots; i++)
            comm->device_vt->event_close(end->released[i]);
        comm->host->release(comm->host, end->released);
        comm->host->release(comm->host, end);
    }
    while (comm->pairs != NULL) {
        pair_t *pair = comm->pairs;

        comm->pairs = pair->next;
        comm->host->release(comm->host, pair);
    }
    comm->host->release(comm->host, comm);
}

static dp_status_t find_pair(dp_comm_t *comm, const dp_channel_config_t *data, int32_t sends, pair_t **pair_out)
{
    dp_channel_config_t config = {
        .struct_size = sizeof(config),
        .id = UINT32_MAX, /* a direction has one end on each side */
        .peer = data->peer,
        .sender = !sends,
        .slots = NOTICES,
        .slot_bytes = sizeof(notice_t),
        .label = data->label, /* a mismatch is the data channel's, whichever is compared first */
    };
    int32_t peer = data->peer;
    pair_t *pair;
    dp_status_t status;

    for (pair = comm->pairs; pair != NULL; pair = pair->next)
        if (pair->peer == peer && pair->sends == sends) {
            *pair_out = pair;
            return DP_OK;
        }
    pair = comm->host->allocate(comm->host, sizeof(*pair), 64);
    if (pair == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "no memory");
    memset(pair, 0, sizeof(*pair));
    pair->peer = peer;
    pair->sends = sends;
    status = inner->channel_open(comm->inner, &config, &pair->notices);
    if (status < 0) {
        comm->host->release(comm->host, pair);
        return status;
    }
    pair->next = comm->pairs;
    comm->pairs = pair;
    *pair_out = pair;
    return DP_OK;
}

static dp_status_t groups_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out)
{
    const dp_host_t *h = comm->host;
    dp_channel_end_t *own = NULL, *end;
    pair_t *pair = NULL;
    dp_status_t status = inner->channel_open(comm->inner, config, &own);

    if (status >= 0)
        status = find_pair(comm, config, config->sender, &pair);
    if (status < 0)
        return status;
    end = h->allocate(h, sizeof(*end), 64);
    *end = (dp_channel_end_t){.next = comm->ends, .comm = comm, .inner = own, .pair = pair, .config = *config};
    end->released = h->allocate(h, config->slots * sizeof(*end->released), 64);
    for (uint32_t i = 0; i < config->slots && status >= 0; i++)
        status = comm->device_vt->event_open(comm->device, &end->released[i]);
    comm->ends = end;
    *end_out = end;
    return status;
}

static dp_status_t groups_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config,
                                        dp_exchange_t **exchange_out)
{
    return inner->exchange_open(comm->inner, config, exchange_out);
}

static dp_status_t groups_start(dp_comm_t *comm)
{
    dp_status_t status = inner->start(comm->inner);

    for (dp_channel_end_t *end = comm->ends; end != NULL && status >= 0; end = end->next)
        end->started = 1;
    return status;
}

/* ---- groups ---- */

typedef struct pending {
    const dp_host_t *host;
    const notice_t *heard;
    notice_t wanted;
    int32_t peer;
} pending_t;

static dp_status_t check_notice(void *arg)
{
    const pending_t *m = arg;

    if (m->heard->channel == m->wanted.channel && m->heard->number == m->wanted.number)
        return DP_OK;
    return DP_FAIL(m->host, DP_ERR_PROTOCOL,
                   "message %u of channel %u to rank %d meets the receive of message %u of channel %u",
                   m->wanted.number, m->wanted.channel, m->peer, m->heard->number, m->heard->channel);
}

static dp_message_tag_t notice_tag(const pair_t *pair)
{
    return (dp_message_tag_t){.number = pair->count, .microbatch = -1, .bytes = sizeof(notice_t)};
}

typedef struct writing {
    notice_t *to, notice;
} writing_t;

static dp_status_t write_notice(void *arg)
{
    const writing_t *w = arg;

    *w->to = w->notice;
    return DP_OK;
}

/* "I am here", once the slot is free. */
static dp_status_t announce(struct member *m, dp_stream_t *s)
{
    dp_channel_end_t *end = m->end;
    pair_t *pair = end->pair;
    dp_message_tag_t tag = notice_tag(pair);
    writing_t w = {&pair->written, {end->config.id, m->tag.number}};
    dp_status_t status = end->comm->device_vt->stream_wait(s, end->released[m->tag.number % end->config.slots]);

    pair->count++;
    if (status >= 0)
        status = end->comm->device_vt->launch(s, write_notice, &w, sizeof(w));
    return status < 0 ? status : inner->send(pair->notices, w.to, &tag, s);
}

static dp_status_t send_when_met(struct member *m, dp_stream_t *s)
{
    dp_channel_end_t *end = m->end;
    pair_t *pair = end->pair;
    dp_message_tag_t tag = notice_tag(pair);
    pending_t pending = {end->comm->host, NULL, {end->config.id, m->tag.number}, pair->peer};
    const void *heard;
    dp_status_t status = inner->recv(pair->notices, &tag, &heard, s);

    pending.heard = heard;
    pair->count++;
    if (status >= 0)
        status = end->comm->device_vt->launch(s, check_notice, &pending, sizeof(pending));
    if (status >= 0)
        status = inner->release(pair->notices, tag.number, s);
    return status < 0 ? status : inner->send(end->inner, m->from, &m->tag, s);
}

static dp_status_t finish_group(dp_comm_t *comm, dp_stream_t *s)
{
    dp_status_t status = DP_OK;

    for (int i = 0; i < comm->nmembers && status >= 0; i++)
        if (!comm->members[i].end->config.sender)
            status = announce(&comm->members[i], s);
    for (int i = 0; i < comm->nmembers && status >= 0; i++)
        if (comm->members[i].end->config.sender)
            status = send_when_met(&comm->members[i], s);
    for (int i = 0; i < comm->nmembers && status >= 0; i++)
        if (!comm->members[i].end->config.sender)
            status = inner->recv(comm->members[i].end->inner, &comm->members[i].tag, comm->members[i].data_out, s);
    comm->nmembers = 0;
    return status;
}

static dp_status_t groups_begin(dp_comm_t *comm, dp_stream_t *s)
{
    if (comm->open)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "bundle_begin inside of a group");
    comm->open = 1;
    comm->stream = s;
    return DP_OK;
}

static dp_status_t groups_end(dp_comm_t *comm, dp_stream_t *s)
{
    if (!comm->open || s != comm->stream)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "bundle_end outside of a group, or on another stream");
    comm->open = 0;
    return finish_group(comm, s);
}

static dp_status_t take_part(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag,
                             const void **data_out, dp_stream_t *s)
{
    dp_comm_t *comm = end->comm;

    if (comm->nmembers == MEMBERS || (comm->open && s != comm->stream))
        return DP_FAIL(comm->host, DP_ERR_INVALID, "a group has at most %d members, all on one stream", MEMBERS);
    if (!end->started || tag->number != end->count || tag->bytes > end->config.slot_bytes ||
        (end->config.sender != 0) != (data_out == NULL))
        return DP_FAIL(comm->host, DP_ERR_INVALID,
                       "message %u of channel %u: not the next, too large, or the wrong end", tag->number,
                       end->config.id);
    end->count++;
    comm->members[comm->nmembers++] = (struct member){end, from, data_out, *tag};
    return comm->open ? DP_OK : finish_group(comm, s);
}

static dp_status_t groups_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    return take_part(end, from, tag, NULL, s);
}

static dp_status_t groups_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                               dp_stream_t *s)
{
    return take_part(end, NULL, expected, data_out, s);
}

static dp_status_t groups_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s)
{
    dp_status_t status = inner->release(end->inner, number, s);

    return status < 0 ? status : end->comm->device_vt->event_record(end->released[number % end->config.slots], s);
}

/* ---- the rest is the inner backend's ---- */

static dp_status_t groups_exchange(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                                   const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                                   dp_stream_t *s)
{
    return inner->exchange(x, number, send, send_offsets, send_counts, rows_out, counts_out, s);
}

static dp_status_t groups_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    return inner->exchange_release(x, number, s);
}

static dp_status_t groups_exchange_post(dp_exchange_t *x, uint32_t number, const void *send,
                                        const int32_t *send_offsets, const int32_t *send_counts, const void **rows_out,
                                        const int32_t **counts_out, dp_stream_t *s)
{
    return inner->exchange_post(x, number, send, send_offsets, send_counts, rows_out, counts_out, s);
}

static dp_status_t groups_exchange_wait(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    return inner->exchange_wait(x, number, s);
}

static dp_status_t groups_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    return inner->all_reduce(comm->inner, data, count, dtype, s);
}

static size_t groups_memory_bytes(dp_comm_t *comm)
{
    return inner->memory_bytes(comm->inner);
}

static const dp_comm_vt_t table = {
    .struct_size = sizeof(table),
    .caps = FAR ? DP_COMM_CAP_HOSTS : 0,
    .open = groups_open,
    .close = groups_close,
    .channel_open = groups_channel_open,
    .exchange_open = groups_exchange_open,
    .start = groups_start,
    .send = groups_send,
    .recv = groups_recv,
    .release = groups_release,
    .bundle_begin = groups_begin,
    .bundle_end = groups_end,
    .exchange = groups_exchange,
    .exchange_release = groups_exchange_release,
    .all_reduce = groups_all_reduce,
    .memory_bytes = groups_memory_bytes,
    .exchange_post = groups_exchange_post,
    .exchange_wait = groups_exchange_wait,
};

static const void *get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_COMM) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(mock_comm_groups) = {
    DP_PLUGIN_HEAD,
    .name = FAR ? "mock_comm_far_groups" : "mock_comm_groups",
    .version = "0.1",
    .summary = "matched groups over shared memory",
    .get_interface = get_interface,
    .preference = 900, /* for auto, where its file has the name of a transport */
};
