/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mixed.c: see mixed.h: the tables, opening and closing, channels. */
#include "base/do.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/sized.h"
#include "mixed/parts.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- opening ---- */

static dp_status_t take_group(const dp_host_t *host, const dp_comm_config_t *given, dp_comm_config_t *config)
{
    static const char legal[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t n;

    DO(dp__take("config of a group", dp_comm_config_t, DP_COMM_CONFIG_MIN, config, given));
    n = config->name != NULL ? strlen(config->name) : 0;
    if (n < 1 || n >= DP__MIXED_NAME || strspn(config->name, legal) != n)
        return DP_FAIL(host, DP_ERR_INVALID, "a group's name must have 1 to %d characters of [A-Za-z0-9._-]",
                       DP__MIXED_NAME - 1);
    if (config->nranks < 1 || config->rank < 0 || config->rank >= config->nranks || config->world_ranks == NULL)
        return DP_FAIL(host, DP_ERR_INVALID, "group %s: rank %d of %d%s", config->name, config->rank, config->nranks,
                       config->world_ranks == NULL ? ", and config.world_ranks is NULL" : "");
    return DP_OK;
}

static dp_status_t find_places(dp_comm_t *comm, const dp_comm_config_t *config)
{
    const dp_host_t *host = comm->host;
    const dp_host_places_t *places = host->get_service(host, DP_HOST_PLACES);
    int32_t n = config->nranks, *host_of;

    if (places == NULL || places->struct_size < DP_HOST_PLACES_MIN)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "group %s: this host does not say where ranks live (%s): two transports cannot be joined",
                       config->name, DP_HOST_PLACES);
    comm->numbers = host->allocate(host, (dp__mixed_map_ints(n) + 2 * (size_t)n) * sizeof(int32_t), 16);
    if (comm->numbers == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for a map of %d ranks", config->name, n);
    comm->world = comm->numbers + dp__mixed_map_ints(n);
    host_of = comm->world + n;
    for (int32_t r = 0; r < n; r++) {
        comm->world[r] = config->world_ranks[r];
        if (comm->world[r] < 0 || comm->world[r] >= places->ranks)
            return DP_FAIL(host, DP_ERR_INVALID, "group %s: config.world_ranks[%d] is %d, the job has %d ranks",
                           config->name, r, comm->world[r], places->ranks);
        host_of[r] = places->host_of[comm->world[r]];
    }
    dp__mixed_map(&comm->map, comm->numbers, config->rank, n, host_of);
    return DP_OK;
}

/* Each part has its own name. Where that is too long, the hash of the group's stands for it. */
static void name_part(const char *group, const char *suffix, int32_t number, char name[DP__MIXED_NAME])
{
    if (snprintf(name, DP__MIXED_NAME, "%s.%s%d", group, suffix, number) < DP__MIXED_NAME)
        return;
    snprintf(name, DP__MIXED_NAME, "%.24s-%016llx.%s%d", group,
             (unsigned long long)dp__hash_text(DP__HASH_BEGIN, group), suffix, number);
}

/* Which members a part has: those on our host, those of our run, all, the first ranks of runs. */
typedef enum whom { OUR_HOST, OUR_RUN, ALL, CARRIERS } whom_t;

static bool is_in(const dp__mixed_map_t *m, whom_t whom, int32_t r)
{
    switch (whom) {
    case OUR_HOST:
        return m->host[r] == m->host[m->rank];
    case OUR_RUN:
        return r >= m->run_first && r < m->run_first + m->run_n;
    case CARRIERS:
        return m->carries[r] >= 0;
    default:
        return true;
    }
}

static dp_status_t open_part(dp_comm_t *comm, const dp_comm_config_t *group, whom_t whom, const char *suffix,
                             int32_t number, size_t reduce_bytes, dp__mixed_part_t *part)
{
    char name[DP__MIXED_NAME];
    dp_comm_config_t config = {.struct_size = sizeof(config), .name = name};
    int32_t *members = comm->host->allocate(comm->host, (size_t)comm->nranks * sizeof(*members), 16);
    dp_status_t status;

    if (members == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory for a list of members", comm->name);
    for (int32_t r = 0; r < comm->nranks; r++) {
        if (!is_in(&comm->map, whom, r))
            continue;
        if (r == comm->rank)
            config.rank = config.nranks;
        members[config.nranks++] = comm->world[r];
    }
    config.world_ranks = members;
    config.device_vt = group->device_vt;
    config.device = group->device;
    config.reduce_bytes = reduce_bytes;
    config.vt = part->vt;
    name_part(comm->name, suffix, number, name);
    status = part->vt->open(comm->host, &config, &part->comm);
    comm->host->release(comm->host, members);
    return status;
}

/* Every rank opens its parts in this order; so no two can wait for each other. */
static dp_status_t open_parts(dp_comm_t *comm, const dp_comm_config_t *config)
{
    const dp__mixed_map_t *m = &comm->map;
    int32_t host = m->host[m->rank];
    size_t bytes = config->reduce_bytes;

    DO(open_part(comm, config, ALL, "f", 0, bytes, &comm->far));
    if (m->near_n > 1) {
        DO(open_part(comm, config, OUR_HOST, "n", host, 1, &comm->near));
        DO(open_part(comm, config, OUR_HOST, "s", host, m->run_n == m->near_n ? bytes : 1, &comm->near_sum));
    }
    if (m->run_n > 1 && m->run_n < m->near_n)
        DO(open_part(comm, config, OUR_RUN, "r", m->run, bytes, &comm->run));
    if (m->carries[m->rank] >= 0)
        DO(open_part(comm, config, CARRIERS, "c", 0, 1, &comm->far_sum));
    dp__mixed_reductions_size(comm, bytes);
    DO(dp__mixed_reductions_connect(comm));
    if (comm->near_sum.comm != NULL)
        DO(comm->near_sum.vt->start(comm->near_sum.comm));
    return comm->far_sum.comm != NULL ? comm->far_sum.vt->start(comm->far_sum.comm) : DP_OK;
}

static void close_part(const dp__mixed_part_t *part)
{
    if (part->comm != NULL)
        part->vt->close(part->comm);
}

static void close_comm(dp_comm_t *comm)
{
    if (comm == NULL)
        return;
    close_part(&comm->far_sum);
    close_part(&comm->run);
    close_part(&comm->near_sum);
    close_part(&comm->near);
    close_part(&comm->far);
    while (comm->ends != NULL) {
        dp_channel_end_t *end = comm->ends;

        comm->ends = end->next;
        comm->host->release(comm->host, end);
    }
    while (comm->exchanges != NULL) {
        dp_exchange_t *x = comm->exchanges;

        comm->exchanges = dp__mixed_exchange_next(x);
        dp__mixed_exchange_free(x);
    }
    if (comm->numbers != NULL)
        comm->host->release(comm->host, comm->numbers);
    comm->host->release(comm->host, comm);
}

static dp_status_t open_alone(dp_comm_t *comm, const dp_comm_config_t *config)
{
    dp_comm_config_t own = *config;

    own.vt = comm->alone->vt;
    return own.vt->open(comm->host, &own, &comm->alone->comm);
}

static dp_status_t open_pair(const dp_comm_vt_t *near, const dp_comm_vt_t *far, const dp_host_t *host,
                             const dp_comm_config_t *config, dp_comm_t **comm_out)
{
    dp_comm_t *comm = host->allocate(host, sizeof(*comm), 64);
    dp_status_t status;

    if (comm == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for its record", config->name);
    memset(comm, 0, sizeof(*comm));
    comm->host = host;
    comm->device_vt = config->device_vt;
    comm->device = config->device;
    comm->rank = config->rank;
    comm->nranks = config->nranks;
    comm->own_bytes = sizeof(*comm);
    snprintf(comm->name, sizeof(comm->name), "%s", config->name);
    comm->near.vt = comm->near_sum.vt = comm->run.vt = near;
    comm->far.vt = comm->far_sum.vt = far;
    status = find_places(comm, config);
    if (status >= 0 && (comm->map.hosts == 1 || comm->map.hosts == comm->nranks)) {
        comm->alone = comm->map.hosts == 1 ? &comm->near : &comm->far;
        status = open_alone(comm, config);
    } else if (status >= 0) {
        status = open_parts(comm, config);
    }
    if (status < 0) {
        close_comm(comm);
        return status;
    }
    *comm_out = comm;
    return DP_OK;
}

/* Both sides of a channel, and all ranks of a part, get to every start, whatever came of the one
 * before: a rank that left its peers waiting in the second because the first has failed would meet
 * them in the wrong place. */
static dp_status_t start_parts(dp_comm_t *comm)
{
    char why[512] = "";
    dp_status_t status = DP_OK, far;

    if (comm->near.comm != NULL)
        status = comm->near.vt->start(comm->near.comm);
    if (comm->far.comm == NULL) {
        comm->starts += status >= 0;
        return status;
    }
    if (status < 0)
        snprintf(why, sizeof(why), "%s", comm->host->last_error(comm->host));
    far = comm->far.vt->start(comm->far.comm);
    if (status < 0)
        return DP_FAIL(comm->host, status, "%s", why);
    comm->starts += far >= 0;
    return far;
}

static size_t count_memory(dp_comm_t *comm)
{
    dp__mixed_part_t *parts[] = {&comm->far_sum, &comm->run, &comm->near_sum, &comm->near, &comm->far};
    size_t bytes = comm->own_bytes;

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (parts[i]->comm != NULL)
            bytes += parts[i]->vt->memory_bytes(parts[i]->comm);
    return bytes;
}

/* ---- channels ---- */

static dp_status_t open_channel(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out)
{
    const dp__mixed_map_t *m = &comm->map;
    dp_channel_config_t own;
    dp_channel_end_t *end;
    dp_status_t status;

    DO(dp__take("config of a channel", dp_channel_config_t, DP_CHANNEL_CONFIG_MIN, &own, config));
    if (own.peer < 0 || own.peer >= comm->nranks || own.peer == comm->rank)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: channel %u leads to rank %d of %d", comm->name, own.id,
                       own.peer, comm->nranks);
    end = comm->host->allocate(comm->host, sizeof(*end), 16);
    if (end == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory for channel %u", comm->name, own.id);
    *end = (dp_channel_end_t){.comm = comm, .part = comm->alone};
    if (end->part == NULL && m->host[own.peer] == m->host[comm->rank]) {
        end->part = &comm->near;
        own.peer = m->near[own.peer];
    } else if (end->part == NULL) {
        end->part = &comm->far;
    }
    status = end->part->vt->channel_open(end->part->comm, &own, &end->end);
    if (status < 0) {
        comm->host->release(comm->host, end);
        return status;
    }
    end->next = comm->ends;
    comm->ends = end;
    comm->own_bytes += sizeof(*end);
    *end_out = end;
    return DP_OK;
}

static bool is_matched(const dp__mixed_part_t *part)
{
    return (dp_comm_caps(part->vt, part->comm) & DP_COMM_CAP_ONE_SIDED) == 0;
}

/* A bundle goes to one peer or comes from one: its first transfer says over which of the two. */
static dp_status_t enter_bundle(dp_channel_end_t *end, dp_stream_t *s)
{
    dp_comm_t *comm = end->comm;

    if (!comm->in_bundle || comm->bundle != NULL || !is_matched(end->part))
        return DP_OK;
    DO(end->part->vt->bundle_begin(end->part->comm, s));
    comm->bundle = end->part;
    return DP_OK;
}

static dp_status_t send_message(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    DO(enter_bundle(end, s));
    return end->part->vt->send(end->end, from, tag, s);
}

static dp_status_t receive_message(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                                   dp_stream_t *s)
{
    DO(enter_bundle(end, s));
    return end->part->vt->recv(end->end, expected, data_out, s);
}

static dp_status_t release_slot(dp_channel_end_t *end, uint32_t number, dp_stream_t *s)
{
    return end->part->vt->release(end->end, number, s);
}

static dp_status_t begin_bundle(dp_comm_t *comm, dp_stream_t *s)
{
    (void)s;
    comm->in_bundle = true;
    comm->bundle = NULL;
    return DP_OK;
}

static dp_status_t end_bundle(dp_comm_t *comm, dp_stream_t *s)
{
    dp__mixed_part_t *part = comm->bundle;

    comm->in_bundle = false;
    comm->bundle = NULL;
    return part != NULL ? part->vt->bundle_end(part->comm, s) : DP_OK;
}

/* ---- the tables ---- */

/* Two transports that were joined; never freed, as plugins are never unmapped. */
typedef struct pair {
    dp_comm_vt_t table; /* first: a group's config says which table was called */
    const dp_comm_vt_t *near, *far;
    struct pair *next;
} pair_t;

static struct {
    pthread_mutex_t mutex;
    pair_t *first;
} pairs = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static dp_status_t open_joined(const dp_host_t *host, const dp_comm_config_t *given, dp_comm_t **comm_out)
{
    dp_comm_config_t config;
    const pair_t *pair;

    DO(take_group(host, given, &config));
    if (!dp__mixed_is(config.vt))
        return DP_FAIL(host, DP_ERR_INVALID, "config.vt of a group is not the table that was called");
    pair = (const pair_t *)(const void *)config.vt;
    return open_pair(pair->near, pair->far, host, &config, comm_out);
}

/* Rows are posted over both where both move them while their rank waits in the other. */
static bool both_post(const pair_t *pair)
{
    return (pair->near->caps & pair->far->caps & DP_COMM_CAP_ONE_SIDED) != 0 &&
           DP_HAS(pair->near, dp_comm_vt_t, exchange_post) && DP_HAS(pair->far, dp_comm_vt_t, exchange_post);
}

/* No step is captured: the blocks of all reductions before it decide which slots it uses. */
static void fill_table(pair_t *pair)
{
    const bool posts = both_post(pair);

    pair->table = (dp_comm_vt_t){
        .struct_size = sizeof(dp_comm_vt_t),
        .caps = DP_COMM_CAP_HOSTS |
                (pair->near->caps & pair->far->caps & (DP_COMM_CAP_ONE_SIDED | DP_COMM_CAP_HOST_INLINE)),
        .open = open_joined,
        .close = close_comm,
        .channel_open = open_channel,
        .exchange_open = dp__mixed_exchange_open,
        .start = start_parts,
        .send = send_message,
        .recv = receive_message,
        .release = release_slot,
        .bundle_begin = begin_bundle,
        .bundle_end = end_bundle,
        .exchange = dp__mixed_exchange,
        .exchange_release = dp__mixed_exchange_release,
        .all_reduce = dp__mixed_all_reduce,
        .memory_bytes = count_memory,
        .exchange_post = posts ? dp__mixed_exchange_post : NULL,
        .exchange_wait = posts ? dp__mixed_exchange_wait : NULL,
    };
}

dp_status_t dp__mixed_table(const dp_comm_vt_t *near, const dp_comm_vt_t *far, const dp_comm_vt_t **table_out)
{
    pair_t *pair;

    if ((far->caps & DP_COMM_CAP_HOSTS) == 0)
        return dp_fail(DP_ERR_UNSUPPORTED, "the comm backend for ranks on other hosts does not reach any: it has no "
                                           "DP_COMM_CAP_HOSTS");
    pthread_mutex_lock(&pairs.mutex);
    for (pair = pairs.first; pair != NULL && (pair->near != near || pair->far != far);)
        pair = pair->next;
    if (pair == NULL && (pair = dp__calloc(1, sizeof(*pair))) != NULL) {
        pair->near = near;
        pair->far = far;
        fill_table(pair);
        pair->next = pairs.first;
        pairs.first = pair;
    }
    pthread_mutex_unlock(&pairs.mutex);
    if (pair == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory to join two comm backends");
    *table_out = &pair->table;
    return DP_OK;
}

bool dp__mixed_is(const dp_comm_vt_t *table)
{
    return table != NULL && table->open == open_joined;
}

uint32_t dp__mixed_end_caps(const dp_channel_end_t *end)
{
    return dp_comm_caps(end->part->vt, end->part->comm);
}
