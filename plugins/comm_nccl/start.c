/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * start.c: ranks compare what they have opened, then make the communicators for it.
 *
 * Everyone shows a list of its channels and exchanges through the boot service, so all ranks know
 * which pairs of ranks have channels. Communicators of pairs are split off that of all ranks, as
 * many at once as have no rank in common. */
#include "channel.h"
#include "communicator.h"
#include "exchange.h"
#include "plugins/common/do.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRIES_MOST 680 /* what the boot service takes at once */

typedef struct entry {
    uint32_t kind;              /* 0: channel, 1: exchange */
    uint32_t id, slots, sender; /* sender: of an exchange, whether sizes are exact; 2: by wish */
    int32_t peer;
    uint32_t capacity; /* of an exchange */
    uint64_t bytes;
    char label[LABEL_BYTES];
} entry_t;
_Static_assert(ENTRIES_MOST * sizeof(entry_t) <= 65536, "a list fits one value of the boot service");

/* Goes before the list. */
typedef struct summary {
    uint32_t nentries, has_channels;
    uint32_t channels; /* the kind that was asked for */
    streams_t streams;
    char lacking[LACKING_BYTES]; /* of what one-sided ones need */
} summary_t;

static dp_status_t collect_entries(const dp_comm_t *comm, entry_t *entries, uint32_t *n_out)
{
    uint32_t n = 0;

    for (const dp_channel_end_t *end = comm->ends; end != NULL && n <= ENTRIES_MOST; end = end->next)
        if (!end->connected && n++ < ENTRIES_MOST) {
            entries[n - 1] = (entry_t){.kind = 0,
                                       .id = end->config.id,
                                       .slots = end->config.slots,
                                       .sender = (uint32_t)end->config.sender,
                                       .peer = end->config.peer,
                                       .bytes = end->config.slot_bytes};
            memcpy(entries[n - 1].label, end->label, LABEL_BYTES);
        }
    for (const dp_exchange_t *x = comm->exchanges; x != NULL && n <= ENTRIES_MOST; x = x->next)
        if (!x->connected && n++ < ENTRIES_MOST) {
            entries[n - 1] = (entry_t){.kind = 1,
                                       .id = x->config.id,
                                       .slots = x->config.slots,
                                       .sender = (uint32_t)comm->exact + comm->exact_wished,
                                       .peer = -1,
                                       .capacity = x->config.capacity_rows,
                                       .bytes = x->config.row_bytes};
            memcpy(entries[n - 1].label, x->label, LABEL_BYTES);
        }
    *n_out = n;
    return n <= ENTRIES_MOST ? DP_OK
                             : DP_FAIL(comm->host, DP_ERR_UNSUPPORTED,
                                       "group %s: rank %d has opened more than %d channels and exchanges: call start "
                                       "in between",
                                       comm->name, WORLD(comm), ENTRIES_MOST);
}

static dp_status_t show_entries(dp_comm_t *comm, const entry_t *entries, uint32_t n)
{
    summary_t summary = {.nentries = n,
                         .channels = comm->channels,
                         .streams = nccl_count_streams(comm),
                         .has_channels = n > 0 && entries[0].kind == 0};
    char key[128];
    dp_status_t status;

    memcpy(summary.lacking, comm->lacking, LACKING_BYTES);
    snprintf(key, sizeof(key), "nccl.%s.%u.%d.n", comm->name, comm->round, comm->rank);
    status = comm->boot->put(comm->host, key, &summary, sizeof(summary));
    if (status < 0 || n == 0)
        return status;
    snprintf(key, sizeof(key), "nccl.%s.%u.%d.l", comm->name, comm->round, comm->rank);
    return comm->boot->put(comm->host, key, entries, n * sizeof(*entries));
}

static dp_status_t see(dp_comm_t *comm, int32_t rank, summary_t *summary)
{
    char key[128];

    snprintf(key, sizeof(key), "nccl.%s.%u.%d.n", comm->name, comm->round, rank);
    DO(comm->boot->get(comm->host, key, summary, sizeof(*summary)));
    if (summary->nentries > ENTRIES_MOST)
        return DP_FAIL(comm->host, DP_ERR_PROTOCOL, "group %s: rank %d shows %u channels", comm->name,
                       comm->world[rank], summary->nentries);
    if (summary->channels != comm->channels)
        return DP_FAIL(
            comm->host, DP_ERR_MISMATCH,
            "group %s: channels of rank %d are to be %s, those of rank %d %s: set DUALPIPE_DEBUG=nccl.channels the "
            "same on all ranks",
            comm->name, WORLD(comm), nccl_channels_name(comm->channels), comm->world[rank],
            nccl_channels_name(summary->channels));
    summary->lacking[LACKING_BYTES - 1] = '\0';
    return DP_OK;
}

static dp_status_t see_list(dp_comm_t *comm, int32_t rank, entry_t *entries, uint32_t n)
{
    char key[128];

    if (n == 0)
        return DP_OK;
    snprintf(key, sizeof(key), "nccl.%s.%u.%d.l", comm->name, comm->round, rank);
    return comm->boot->get(comm->host, key, entries, n * sizeof(*entries));
}

static const char *name_sizes(uint32_t exact)
{
    return exact == 0 ? "the capacity" : exact == 1 ? "exact sizes" : "exact sizes by name";
}

/* What `rank` has for our entry: the other end of the channel, or its exchange of that id. */
static dp_status_t compare_entry(const dp_comm_t *comm, const entry_t *mine, int32_t rank, const entry_t *theirs,
                                 uint32_t n)
{
    const char *what = mine->kind == 0 ? "channel" : "exchange";

    for (uint32_t i = 0; i < n; i++) {
        const entry_t *e = &theirs[i];

        if (e->kind != mine->kind || e->id != mine->id ||
            (mine->kind == 0 && (e->peer != comm->rank || e->sender == mine->sender)))
            continue;
        if (mine->kind == 1 && e->sender != mine->sender)
            return DP_FAIL(comm->host, DP_ERR_MISMATCH,
                           "group %s: rank %d makes exchanges of %s, rank %d of %s: set DUALPIPE_DEBUG=nccl.exchange, "
                           "CUDA_DEVICE_MAX_CONNECTIONS and NCCL_LAUNCH_ORDER_IMPLICIT the same on all ranks",
                           comm->name, WORLD(comm), name_sizes(mine->sender), comm->world[rank], name_sizes(e->sender));
        if (e->slots == mine->slots && e->bytes == mine->bytes && e->capacity == mine->capacity)
            return DP_OK;
        return DP_FAIL(
            comm->host, DP_ERR_MISMATCH,
            "group %s: %s %u \"%s\" has %u slots of %llu bytes, capacity %u, on rank %d, and %u of %llu, %u, on rank %d",
            comm->name, what, mine->id, mine->label, mine->slots, (unsigned long long)mine->bytes, mine->capacity,
            WORLD(comm), e->slots, (unsigned long long)e->bytes, e->capacity, comm->world[rank]);
    }
    return DP_FAIL(comm->host, DP_ERR_MISMATCH,
                   "group %s: rank %d has opened %s %u \"%s\", rank %d has not opened its side", comm->name,
                   WORLD(comm), what, mine->id, mine->label, comm->world[rank]);
}

static dp_status_t compare_with(const dp_comm_t *comm, const entry_t *mine, uint32_t n, int32_t rank,
                                const entry_t *theirs, uint32_t m)
{
    dp_status_t status = DP_OK;

    for (uint32_t i = 0; i < n && status >= 0; i++)
        if (mine[i].kind == 1 || mine[i].peer == rank)
            status = compare_entry(comm, &mine[i], rank, theirs, m);
    for (uint32_t i = 0; i < m && status >= 0; i++) {
        bool found = theirs[i].kind == 0 && theirs[i].peer != comm->rank;

        for (uint32_t k = 0; k < n && !found; k++)
            found = theirs[i].kind == mine[k].kind && theirs[i].id == mine[k].id;
        if (!found)
            status = DP_FAIL(comm->host, DP_ERR_MISMATCH,
                             "group %s: rank %d has opened %s %u \"%.*s\", rank %d has not opened its side", comm->name,
                             comm->world[rank], theirs[i].kind == 0 ? "channel" : "exchange", theirs[i].id,
                             LABEL_BYTES - 1, theirs[i].label, WORLD(comm));
    }
    return status;
}

/* ---- edges ---- */

static bool goes_before(const edge_t *a, const edge_t *b)
{
    if (a->from != b->from)
        return a->from < b->from;
    return a->to < b->to || (a->to == b->to && a->channel < b->channel);
}

/* Nothing where it is known. */
static dp_status_t keep_edge(dp_comm_t *comm, const edge_t *edge)
{
    uint32_t at = 0, n = comm->nedges;
    edge_t *more;

    while (at < n && goes_before(&comm->edges[at], edge))
        at++;
    if (at < n && !goes_before(edge, &comm->edges[at]))
        return DP_OK;
    more = comm->host->allocate(comm->host, (n + 1) * sizeof(*more), 16);
    if (more == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory to start", comm->name);
    if (n > 0) {
        memcpy(more, comm->edges, at * sizeof(*more));
        memcpy(more + at + 1, comm->edges + at, (n - at) * sizeof(*more));
        comm->host->release(comm->host, comm->edges);
    }
    more[at] = *edge;
    comm->edges = more;
    comm->nedges = n + 1;
    return DP_OK;
}

static dp_status_t keep_edges(dp_comm_t *comm, int32_t rank, const entry_t *entries, uint32_t n)
{
    dp_status_t status = DP_OK;

    for (uint32_t i = 0; i < n && status >= 0; i++) {
        const edge_t edge = {rank, entries[i].peer, comm->one_sided ? entries[i].id : 0, false};

        if (entries[i].kind == 0 && entries[i].sender)
            status = keep_edge(comm, &edge);
    }
    return status;
}

/* How many entries each rank shows, ours included, and which channels all will have. */
static dp_status_t see_summaries(dp_comm_t *comm, uint32_t *counts)
{
    summary_t summary, lacks = {.nentries = 0};
    int32_t first = comm->nranks, crowded = 0;
    streams_t most = {0};
    bool any = false;
    dp_status_t status = DP_OK;

    for (int32_t r = comm->nranks - 1; r >= 0 && status >= 0; r--) {
        status = see(comm, r, &summary);
        if (status < 0)
            break;
        counts[r] = summary.nentries;
        any = any || summary.has_channels;
        if (summary.streams.streams >= most.streams) {
            most = summary.streams;
            crowded = r;
        }
        if (summary.lacking[0] != '\0') {
            lacks = summary;
            first = r;
        }
    }
    if (status >= 0)
        nccl_rows_settle(comm, crowded, &most);
    return status < 0 || !any || comm->chosen ? status : nccl_channels_choose(comm, first, lacks.lacking);
}

static dp_status_t agree_on(dp_comm_t *comm, entry_t *mine, entry_t *theirs, uint32_t *counts)
{
    uint32_t n;
    dp_status_t status = collect_entries(comm, mine, &n);

    if (status >= 0)
        status = show_entries(comm, mine, n);
    if (status >= 0)
        status = see_summaries(comm, counts);
    if (status >= 0)
        status = keep_edges(comm, comm->rank, mine, n);
    for (int32_t r = 0; r < comm->nranks && status >= 0; r++) {
        if (r == comm->rank)
            continue;
        status = see_list(comm, r, theirs, counts[r]);
        if (status >= 0)
            status = compare_with(comm, mine, n, r, theirs, counts[r]);
        if (status >= 0)
            status = keep_edges(comm, r, theirs, counts[r]);
    }
    return status;
}

static dp_status_t agree(dp_comm_t *comm)
{
    const size_t bytes = 2 * ENTRIES_MOST * sizeof(entry_t);
    entry_t *entries = comm->host->allocate(comm->host, bytes + (size_t)comm->nranks * sizeof(uint32_t), 16);
    dp_status_t status;

    if (entries == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory to start", comm->name);
    memset(entries, 0, bytes);
    status = agree_on(comm, entries, entries + ENTRIES_MOST, (uint32_t *)(void *)((unsigned char *)entries + bytes));
    comm->host->release(comm->host, entries);
    for (dp_channel_end_t *end = comm->ends; end != NULL && status >= 0; end = end->next)
        if (end->pair == NULL)
            status = nccl_channel_keep_pair(end);
    return status;
}

/* ---- communicators ---- */

/* Of a one-sided channel, which has the pair for itself. */
static dp_channel_end_t *end_of(const dp_comm_t *comm, const pair_t *pair)
{
    dp_channel_end_t *end = comm->ends;

    while (end->pair != pair)
        end = end->next;
    return end;
}

/* Edges that have no rank in common with one before them: each is a color of one split. */
static dp_status_t make_round(dp_comm_t *comm, bool *busy)
{
    int32_t color = 0, own = -1;
    const edge_t *edge = NULL;
    pair_t *pair = comm->pairs;
    ncclComm_t made = NULL;
    dp_status_t status;

    memset(busy, 0, (size_t)comm->nranks * sizeof(*busy));
    for (uint32_t i = 0; i < comm->nedges; i++) {
        edge_t *e = &comm->edges[i];

        if (e->made || busy[e->from] || busy[e->to])
            continue;
        e->made = busy[e->from] = busy[e->to] = true;
        if (e->from == comm->rank || e->to == comm->rank) {
            edge = e;
            own = color;
        }
        color++;
    }
    status = nccl_communicator_split(comm, own, edge != NULL && edge->to == comm->rank, nccl_ctas_of(comm).pair, &made);
    if (status < 0 || edge == NULL)
        return status;
    while (pair != NULL && (pair->peer != (edge->from == comm->rank ? edge->to : edge->from) ||
                            pair->sends != (edge->from == comm->rank) || pair->channel != edge->channel))
        pair = pair->next;
    if (pair == NULL) /* compare_entry() has seen to it */
        return DP_FAIL(comm->host, DP_ERR_PROTOCOL, "group %s: a pair is not known", comm->name);
    pthread_mutex_lock(&comm->lock);
    pair->comm = made;
    pthread_mutex_unlock(&comm->lock);
    if (comm->one_sided)
        return nccl_puts_connect(end_of(comm, pair));
    return nccl_connect(comm, &pair->comm, pair->sends ? 0 : 1, 2, pair->sends, !pair->sends);
}

static bool all_made(const dp_comm_t *comm)
{
    for (uint32_t i = 0; i < comm->nedges; i++)
        if (!comm->edges[i].made)
            return false;
    return true;
}

static dp_status_t make_pairs(dp_comm_t *comm)
{
    bool *busy = comm->host->allocate(comm->host, (size_t)comm->nranks * sizeof(*busy), 16);
    dp_status_t status = DP_OK;

    if (busy == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory to start", comm->name);
    while (status >= 0 && !all_made(comm))
        status = make_round(comm, busy);
    comm->host->release(comm->host, busy);
    return status;
}

static dp_status_t make_communicators(dp_comm_t *comm)
{
    dp_status_t status = comm->nranks > 1 ? make_pairs(comm) : DP_OK;

    if (status < 0 || comm->exchanges == NULL || comm->rows != NULL || comm->nranks == 1)
        return status;
    status = nccl_communicator_split(comm, 0, comm->rank, nccl_ctas_of(comm).rows, &comm->rows);
    return status >= 0 ? nccl_connect(comm, &comm->rows, comm->rank, comm->nranks, true, true) : status;
}

dp_status_t nccl_start(dp_comm_t *comm)
{
    dp_status_t status = comm->nranks > 1 ? agree(comm) : DP_OK;

    comm->round++;
    if (status >= 0 && comm->nranks > 1)
        status = nccl_ctas_check(comm);
    if (status >= 0)
        /* first of all: its thread ends waits, those of this call as well */
        status = nccl_rows_open(comm);
    if (status >= 0)
        status = make_communicators(comm);
    for (dp_channel_end_t *end = comm->ends; end != NULL && status >= 0; end = end->next)
        if (!end->connected)
            status = nccl_channel_connect(end);
    for (dp_exchange_t *x = comm->exchanges; x != NULL && status >= 0; x = x->next)
        if (!x->connected)
            status = nccl_exchange_connect(x);
    return status;
}
