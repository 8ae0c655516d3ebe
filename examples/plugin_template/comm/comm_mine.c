/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_mine.c: a transport to start from: ranks of one host, as threads or processes, over shared
 * memory.
 *
 * A rank makes its memory in `open` and in each `start`, as a file without a name, and maps that of
 * every other rank. In front lies a directory of areas. Whoever receives owns all that a transfer
 * needs: slots, in front of each a head with the counter `published`, and one counter `freed`. A
 * sender waits for `freed`, writes straight into the slot and posts `published`. Counters only
 * grow, and each is posted by one rank alone.
 *
 *   AREA_BASE     met[n], staged[n]: counters by the rank that posts them; then two buffers for
 *                 sums
 *   AREA_INBOX    receiving end of a channel: freed, then slots of head and data
 *   AREA_OUTBOX   sending end of a channel: nothing but its line in the directory, for the peer to
 *                 compare
 *   AREA_ROWS     an exchange: freed, heads by slot and sender, rows by slot and sender
 *
 * One-sided: a send needs no help of the receiver as long as there is a free slot. Ranks of a job
 * trust each other.
 *
 * Over a runtime that makes progress only when it is asked (UCX, say) add a thread in open that
 * asks it until close: nobody waits in poll while all compute. What that thread finds wrong, a lost
 * peer as well, it tells by host->abort_job(host, DP_ERR_PEER, why), which returns the job's own
 * cause where there is one and ends every wait. "auto" takes this transport before the library's
 * own where the descriptor below has a preference over 500. */
#define _GNU_SOURCE /* memfd_create */
#include <dualpipe/comm.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LINE        64 /* counters that different ranks post share no cache line */
#define LABEL_BYTES 64
#define SLICE_BYTES (1 << 18) /* of a sum at a time */

typedef union line {
    dp_signal_t signal;
    char bytes[LINE];
} line_t;

/* In front of a slot. */
typedef union head {
    struct {
        dp_signal_t published; /* the number of the message or exchange in the slot, plus 1 */
        dp_message_tag_t tag;  /* of a message */
        int32_t rows;          /* of an exchange */
    };
    char bytes[LINE];
} head_t;

/* In front of a slice of a sum: what it belongs to. */
typedef union slice {
    struct {
        uint64_t count;
        uint32_t number, dtype;
    };
    char bytes[LINE];
} slice_t;

enum { AREA_BASE, AREA_INBOX, AREA_OUTBOX, AREA_ROWS };

typedef struct area {
    uint32_t kind, id;
    int32_t from, to; /* of a channel, ranks of the group; else 0 */
    uint64_t slots, unit, rows;
    uint64_t offset, bytes;
} area_t;

/* The memory of all ranks that one open or start has brought together. */
typedef struct round round_t;
struct round {
    round_t *next;
    int fd; /* our own, until all have mapped it; else -1 */
    struct {
        unsigned char *base; /* [uint64_t areas][padding][area_t...][areas] */
        size_t bytes;
    } of[]; /* [nranks] */
};

/* What a rank tells the others of its memory. */
typedef struct notice {
    int32_t pid, fd;
    uint64_t bytes;
} notice_t;

struct dp_comm {
    const dp_host_t *host;
    const dp_host_boot_t *boot;
    const dp_device_vt_t *device_vt;
    char name[LABEL_BYTES];
    int32_t rank, nranks, *world; /* world[nranks]: for messages */
    size_t slice_bytes, memory_bytes;
    uint32_t rounds, starts, sums, slices; /* so far; slices is the stream's */
    round_t *round;
    unsigned char **base; /* [nranks] AREA_BASE of each rank */
    dp_channel_end_t *ends;
    dp_exchange_t *exchanges;
};

struct dp_channel_end {
    dp_channel_end_t *next;
    dp_comm_t *comm;
    uint32_t id;
    int32_t peer, sender;
    uint32_t slots;
    size_t slot_bytes;
    char label[LABEL_BYTES];
    unsigned char *inbox;     /* of the receiver; NULL before start */
    uint64_t count, released; /* messages enqueued, slots given back */
};

struct dp_exchange {
    dp_exchange_t *next;
    dp_comm_t *comm;
    uint32_t id, slots, capacity;
    size_t row_bytes;
    char label[LABEL_BYTES];
    int connected;
    unsigned char **rows; /* [nranks] AREA_ROWS of each rank */
    int32_t *counts;      /* [slots][nranks] what came */
    uint64_t count, released;
};

static size_t up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Zeroed memory of the host. */
static void *take(dp_comm_t *comm, size_t bytes)
{
    void *memory = comm->host->allocate(comm->host, bytes > 0 ? bytes : 1, LINE);

    if (memory != NULL) {
        memset(memory, 0, bytes);
        comm->memory_bytes += bytes;
    }
    return memory;
}

static void give(dp_comm_t *comm, void *memory)
{
    if (memory != NULL)
        comm->host->release(comm->host, memory);
}

/* Waits for a counter. The text for people is made only when there is something to wait for. */
static dp_status_t await(dp_comm_t *comm, dp_signal_t *signal, uint32_t target, const char *doing, const char *label,
                         uint32_t number, int32_t peer)
{
    char what[256];

    if ((int32_t)(__atomic_load_n(&signal->value, __ATOMIC_ACQUIRE) - target) >= 0)
        return DP_OK;
    snprintf(what, sizeof(what), "rank %d: %s %u of %s \"%s\" waits for rank %d", comm->world[comm->rank], doing,
             number, comm->name, label, comm->world[peer]);
    return comm->host->wait(comm->host, signal, target, -1, what);
}

static void post(dp_comm_t *comm, line_t *line, uint32_t value)
{
    comm->host->post(comm->host, &line->signal, value);
}

/* ---- bringing the ranks' memory together ---- */

static line_t *base_lines(const dp_comm_t *comm, int32_t rank)
{
    return (line_t *)(void *)comm->base[rank]; /* met[n], staged[n] */
}

/* All ranks have got here. */
static dp_status_t meet(dp_comm_t *comm)
{
    dp_status_t status = DP_OK;

    comm->starts++;
    for (int32_t p = 0; p < comm->nranks; p++)
        post(comm, base_lines(comm, p) + comm->rank, comm->starts);
    for (int32_t p = 0; p < comm->nranks && status >= 0; p++)
        status = await(comm, &base_lines(comm, comm->rank)[p].signal, comm->starts, "start", "start", comm->starts, p);
    return status;
}

static dp_status_t no_memory(dp_comm_t *comm, size_t bytes)
{
    return DP_FAIL(comm->host, DP_ERR_NOMEM, "rank %d: no %zu bytes of shared memory for group %s: %s",
                   comm->world[comm->rank], bytes, comm->name, strerror(errno));
}

/* Makes our memory, with the directory in front, and tells the others where it is. */
static dp_status_t offer(dp_comm_t *comm, round_t *round, area_t *areas, uint32_t count)
{
    size_t bytes = up(LINE + count * sizeof(*areas), LINE);
    notice_t notice = {.pid = (int32_t)getpid()};
    unsigned char *base;
    char key[128];

    for (uint32_t i = 0; i < count; i++) {
        areas[i].offset = bytes;
        bytes += up(areas[i].bytes, LINE);
    }
    round->fd = memfd_create("dualpipe", MFD_CLOEXEC);
    if (round->fd < 0 || (errno = posix_fallocate(round->fd, 0, (off_t)bytes)) != 0)
        return no_memory(comm, bytes);
    base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, round->fd, 0);
    if (base == MAP_FAILED)
        return no_memory(comm, bytes);
    round->of[comm->rank].base = base;
    round->of[comm->rank].bytes = bytes;
    comm->memory_bytes += bytes;
    *(uint64_t *)(void *)base = count;
    memcpy(base + LINE, areas, count * sizeof(*areas));
    notice.fd = round->fd;
    notice.bytes = bytes;
    snprintf(key, sizeof(key), "mine/%s/%u/%d", comm->name, comm->rounds, comm->rank);
    return comm->boot->put(comm->host, key, &notice, sizeof(notice));
}

static dp_status_t map(dp_comm_t *comm, round_t *round, int32_t rank)
{
    notice_t notice;
    char key[128], path[64];
    dp_status_t status;
    void *base;
    int fd;

    snprintf(key, sizeof(key), "mine/%s/%u/%d", comm->name, comm->rounds, rank);
    status = comm->boot->get(comm->host, key, &notice, sizeof(notice));
    if (status < 0)
        return status;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", notice.pid, notice.fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return DP_FAIL(comm->host, DP_ERR_PEER, "rank %d: cannot open the memory of rank %d, %s: %s",
                       comm->world[comm->rank], comm->world[rank], path, strerror(errno));
    base = mmap(NULL, notice.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (base == MAP_FAILED)
        return no_memory(comm, notice.bytes);
    round->of[rank].base = base;
    round->of[rank].bytes = notice.bytes;
    return DP_OK;
}

/* The memory of all ranks for these areas of ours. Whatever is found out about it later, all have
 * mapped all of it when this returns: a rank that then fails takes nothing away from another. */
static dp_status_t join(dp_comm_t *comm, area_t *areas, uint32_t count)
{
    round_t *round = take(comm, sizeof(*round) + (size_t)comm->nranks * sizeof(round->of[0]));
    dp_status_t status;

    if (round == NULL)
        return no_memory(comm, sizeof(*round));
    round->next = comm->round;
    comm->round = round;
    comm->rounds++;
    status = offer(comm, round, areas, count);
    for (int32_t p = 0; p < comm->nranks && status >= 0; p++)
        if (p != comm->rank)
            status = map(comm, round, p);
    for (int32_t p = 0; p < comm->nranks && status >= 0 && comm->rounds == 1; p++)
        /* in the first round AREA_BASE is all there is */
        comm->base[p] = round->of[p].base + areas[0].offset;
    if (status >= 0)
        status = meet(comm);
    if (status >= 0) {
        close(round->fd); /* nobody will open it again */
        round->fd = -1;
    }
    return status;
}

/* Where `rank` has the area that ours, `wanted`, belongs to. */
static dp_status_t find(dp_comm_t *comm, int32_t rank, const area_t *wanted, const char *label,
                        unsigned char **area_out)
{
    unsigned char *base = comm->round->of[rank].base;
    const area_t *areas = (const area_t *)(void *)(base + LINE);
    const uint64_t count = *(const uint64_t *)(void *)base;

    for (uint64_t i = 0; i < count; i++) {
        const area_t *a = &areas[i];

        if (a->kind != wanted->kind || a->id != wanted->id || a->from != wanted->from || a->to != wanted->to)
            continue;
        if (a->slots != wanted->slots || a->unit != wanted->unit || a->rows != wanted->rows)
            return DP_FAIL(comm->host, DP_ERR_MISMATCH,
                           "group %s, \"%s\": rank %d has %llu slots of %llu bytes, %llu rows, rank %d %llu of %llu, "
                           "%llu: give both the same",
                           comm->name, label, comm->world[comm->rank], (unsigned long long)wanted->slots,
                           (unsigned long long)wanted->unit, (unsigned long long)wanted->rows, comm->world[rank],
                           (unsigned long long)a->slots, (unsigned long long)a->unit, (unsigned long long)a->rows);
        *area_out = base + a->offset;
        return DP_OK;
    }
    return DP_FAIL(comm->host, DP_ERR_MISMATCH, "group %s, \"%s\": rank %d has not opened its side, rank %d has",
                   comm->name, label, comm->world[rank], comm->world[comm->rank]);
}

/* ---- the instance ---- */

static void mine_close(dp_comm_t *comm)
{
    if (comm == NULL)
        return;
    while (comm->round != NULL) {
        round_t *round = comm->round;

        comm->round = round->next;
        for (int32_t p = 0; p < comm->nranks; p++)
            if (round->of[p].base != NULL)
                /* ours too: peers have their own mappings */
                munmap(round->of[p].base, round->of[p].bytes);
        if (round->fd >= 0)
            close(round->fd);
        give(comm, round);
    }
    while (comm->ends != NULL) {
        dp_channel_end_t *end = comm->ends;

        comm->ends = end->next;
        give(comm, end);
    }
    while (comm->exchanges != NULL) {
        dp_exchange_t *x = comm->exchanges;

        comm->exchanges = x->next;
        give(comm, x->rows);
        give(comm, x->counts);
        give(comm, x);
    }
    give(comm, comm->base);
    give(comm, comm->world);
    give(comm, comm);
}

static dp_status_t mine_open(const dp_host_t *host, const dp_comm_config_t *config, dp_comm_t **comm_out)
{
    const dp_host_boot_t *boot = host->get_service(host, DP_HOST_BOOT);
    const size_t n = (size_t)config->nranks;
    dp_comm_t *comm;
    area_t area = {.kind = AREA_BASE};
    dp_status_t status;

    status = DP_TAKE(host, "comm_mine", dp_comm_config_t, DP_COMM_CONFIG_MIN, NULL, config);
    if (status < 0)
        return status;
    if (config->name == NULL || strlen(config->name) >= LABEL_BYTES || config->nranks < 1 || config->rank < 0 ||
        config->rank >= config->nranks || config->world_ranks == NULL || config->device_vt == NULL ||
        config->device == NULL)
        return DP_FAIL(
            host, DP_ERR_INVALID,
            "comm_mine: it needs a name of less than %d characters, world_ranks, a device, and 0 <= rank < nranks; "
            "this is rank %d of %d",
            LABEL_BYTES, config->rank, config->nranks);
    if (strcmp(config->device_vt->kind, "cpu") != 0 || !(config->device_vt->caps & DP_DEVICE_CAP_LAUNCH))
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "comm_mine: it needs a device of kind \"cpu\" whose streams run host functions, this one is "
                       "\"%s\": use device_cpu",
                       config->device_vt->kind);
    if (boot == NULL)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "comm_mine: this host has no %s", DP_HOST_BOOT);
    comm = host->allocate(host, sizeof(*comm), LINE);
    if (comm == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "comm_mine: no memory for an instance");
    *comm = (dp_comm_t){.host = host, .boot = boot, .device_vt = config->device_vt, .memory_bytes = sizeof(*comm)};
    snprintf(comm->name, sizeof(comm->name), "%s", config->name);
    comm->rank = config->rank;
    comm->nranks = config->nranks;
    comm->slice_bytes = up(config->reduce_bytes > 0 ? config->reduce_bytes / 2 + 1 : SLICE_BYTES, LINE);
    comm->world = take(comm, n * sizeof(*comm->world));
    comm->base = take(comm, n * sizeof(*comm->base));
    if (comm->world == NULL || comm->base == NULL) {
        mine_close(comm);
        return DP_FAIL(host, DP_ERR_NOMEM, "comm_mine: no memory for %zu ranks", n);
    }
    memcpy(comm->world, config->world_ranks, n * sizeof(*comm->world));
    area.unit = comm->slice_bytes;
    area.bytes = 2 * n * sizeof(line_t) + 2 * (sizeof(slice_t) + comm->slice_bytes);
    status = join(comm, &area, 1);
    for (int32_t p = 0; p < comm->nranks && status >= 0; p++)
        status = find(comm, p, &area, "open", &comm->base[p]);
    if (status < 0) {
        mine_close(comm);
        return status;
    }
    *comm_out = comm;
    return DP_OK;
}

static size_t mine_memory_bytes(dp_comm_t *comm)
{
    return comm->memory_bytes;
}

/* ---- channels ---- */

static size_t slot_stride(const dp_channel_end_t *end)
{
    return sizeof(head_t) + up(end->slot_bytes, LINE);
}

static dp_status_t mine_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out)
{
    const dp_host_t *host = comm->host;
    const int32_t sender = config->sender != 0;
    dp_channel_end_t *end;
    dp_status_t status;

    status = DP_TAKE(host, "comm_mine", dp_channel_config_t, DP_CHANNEL_CONFIG_MIN, NULL, config);
    if (status < 0)
        return status;
    if (config->peer < 0 || config->peer >= comm->nranks || config->peer == comm->rank || config->slots == 0 ||
        config->slots > 1 << 16 || config->slot_bytes > UINT32_MAX)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "group %s: rank %d cannot have a channel to rank %d with %u slots of %zu bytes", comm->name,
                       comm->rank, config->peer, config->slots, config->slot_bytes);
    for (end = comm->ends; end != NULL; end = end->next)
        if (end->id == config->id && end->peer == config->peer && end->sender == sender)
            return DP_FAIL(host, DP_ERR_INVALID, "group %s: channel %u with rank %d is open already", comm->name,
                           config->id, config->peer);
    end = take(comm, sizeof(*end));
    if (end == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for a channel", comm->name);
    end->comm = comm;
    end->id = config->id;
    end->peer = config->peer;
    end->sender = sender;
    end->slots = config->slots;
    end->slot_bytes = config->slot_bytes;
    snprintf(end->label, sizeof(end->label), "%s", config->label != NULL ? config->label : "");
    end->next = comm->ends;
    comm->ends = end;
    *end_out = end;
    return DP_OK;
}

static area_t channel_area(const dp_channel_end_t *end, int32_t sender)
{
    const int32_t me = end->comm->rank;

    return (area_t){.kind = sender ? AREA_OUTBOX : AREA_INBOX,
                    .id = end->id,
                    .from = end->sender ? me : end->peer,
                    .to = end->sender ? end->peer : me,
                    .slots = end->slots,
                    .unit = end->slot_bytes,
                    .bytes = sender ? 0 : sizeof(line_t) + end->slots * slot_stride(end)};
}

/* The peer's area tells that both ends agree; the receiver's is the one that is used. */
static dp_status_t channel_connect(dp_channel_end_t *end)
{
    dp_comm_t *comm = end->comm;
    const area_t ours = channel_area(end, end->sender), theirs = channel_area(end, !end->sender);
    unsigned char *there = NULL, *here = NULL;
    dp_status_t status = find(comm, end->peer, &theirs, end->label, &there);

    if (status >= 0)
        status = find(comm, comm->rank, &ours, end->label, &here);
    if (status >= 0)
        end->inbox = end->sender ? there : here;
    return status;
}

/* One call on a channel, as its stream carries it. */
typedef struct transfer {
    dp_channel_end_t *end;
    head_t *slot;
    const void *from;
    dp_message_tag_t tag;
} transfer_t;

static dp_status_t run_send(void *arg)
{
    const transfer_t *t = arg;
    dp_channel_end_t *end = t->end;
    dp_comm_t *comm = end->comm;
    line_t *freed = (line_t *)(void *)end->inbox;
    dp_status_t status = await(comm, &freed->signal, t->tag.number + 1 - end->slots, "send of message", end->label,
                               t->tag.number, end->peer);

    if (status < 0)
        return status;
    t->slot->tag = t->tag;
    if (t->tag.bytes > 0)
        memcpy(t->slot + 1, t->from, t->tag.bytes);
    comm->host->post(comm->host, &t->slot->published, t->tag.number + 1);
    return DP_OK;
}

static dp_status_t run_recv(void *arg)
{
    const transfer_t *t = arg;
    const dp_channel_end_t *end = t->end;
    const dp_message_tag_t *found = &t->slot->tag;
    dp_comm_t *comm = end->comm;
    dp_status_t status =
        await(comm, &t->slot->published, t->tag.number + 1, "receive of message", end->label, t->tag.number, end->peer);

    if (status < 0)
        return status;
    if (found->number == t->tag.number && found->step == t->tag.step && found->microbatch == t->tag.microbatch &&
        found->bytes == t->tag.bytes)
        return DP_OK;
    return DP_FAIL(comm->host, DP_ERR_PROTOCOL,
                   "rank %d: \"%s\" of rank %d brought message %u, step %u, micro-batch %d, %u bytes; message %u, step "
                   "%u, micro-batch %d, %u bytes was expected",
                   comm->world[comm->rank], end->label, comm->world[end->peer], found->number, found->step,
                   found->microbatch, found->bytes, t->tag.number, t->tag.step, t->tag.microbatch, t->tag.bytes);
}

static dp_status_t run_release(void *arg)
{
    const transfer_t *t = arg;

    post(t->end->comm, (line_t *)(void *)t->end->inbox, t->tag.number + 1);
    return DP_OK;
}

/* Refuses what the caller must not ask for: before start, on the wrong end, out of order, too
 * large. */
static dp_status_t check(const dp_channel_end_t *end, const char *call, int32_t sender, uint64_t next, uint64_t limit,
                         const dp_message_tag_t *tag)
{
    if (end->inbox != NULL && end->sender == sender && tag->number == (uint32_t)next && next < limit &&
        tag->bytes <= end->slot_bytes)
        return DP_OK;
    return DP_FAIL(
        end->comm->host, DP_ERR_INVALID,
        "%s of message %u, %u bytes, on \"%s\" of group %s: it must be after start, on the %s end, message %u "
        "is next, %zu bytes are the most%s",
        call, tag->number, tag->bytes, end->label, end->comm->name, sender ? "sending" : "receiving", (uint32_t)next,
        end->slot_bytes, next < limit ? "" : ", and it has not been received");
}

static dp_status_t enqueue(dp_channel_end_t *end, dp_launch_fn run, uint64_t number, const void *from,
                           const dp_message_tag_t *tag, dp_stream_t *s)
{
    const transfer_t t = {
        .end = end,
        .slot = (head_t *)(void *)(end->inbox + sizeof(line_t) + number % end->slots * slot_stride(end)),
        .from = from,
        .tag = *tag,
    };

    return end->comm->device_vt->launch(s, run, &t, sizeof(t));
}

static dp_status_t mine_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    dp_status_t status = check(end, "send", 1, end->count, UINT64_MAX, tag);

    if (status >= 0)
        status = enqueue(end, run_send, end->count, from, tag, s);
    end->count += status >= 0;
    return status;
}

static dp_status_t mine_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                             dp_stream_t *s)
{
    const uint64_t number = end->count;
    dp_status_t status = check(end, "receive", 0, number, UINT64_MAX, expected);

    if (status >= 0)
        status = enqueue(end, run_recv, number, NULL, expected, s);
    if (status < 0)
        return status;
    end->count++;
    *data_out = end->inbox + sizeof(line_t) + number % end->slots * slot_stride(end) + sizeof(head_t);
    return DP_OK;
}

static dp_status_t mine_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s)
{
    const dp_message_tag_t tag = {.number = number};
    dp_status_t status = check(end, "release", 0, end->released, end->count, &tag);

    if (status >= 0)
        status = enqueue(end, run_release, end->released, NULL, &tag, s);
    end->released += status >= 0;
    return status;
}

/* ---- exchanges ---- */

static head_t *rows_head(const dp_exchange_t *x, int32_t at, uint64_t slot, int32_t by)
{
    return (head_t *)(void *)(x->rows[at] + sizeof(line_t)) + slot * (uint64_t)x->comm->nranks + by;
}

static unsigned char *rows_data(const dp_exchange_t *x, int32_t at, uint64_t slot, int32_t by)
{
    const size_t n = (size_t)x->comm->nranks;

    return x->rows[at] + sizeof(line_t) + x->slots * n * sizeof(head_t) +
           (slot * n + (size_t)by) * x->capacity * x->row_bytes;
}

static area_t exchange_area(const dp_exchange_t *x)
{
    const size_t n = (size_t)x->comm->nranks;

    return (area_t){.kind = AREA_ROWS,
                    .id = x->id,
                    .slots = x->slots,
                    .unit = x->row_bytes,
                    .rows = x->capacity,
                    .bytes = sizeof(line_t) + x->slots * n * (sizeof(head_t) + x->capacity * x->row_bytes)};
}

static dp_status_t mine_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out)
{
    const dp_host_t *host = comm->host;
    const uint32_t slots = config->slots != 0 ? config->slots : 2;
    const size_t n = (size_t)comm->nranks;
    dp_exchange_t *x;
    dp_status_t status;

    status = DP_TAKE(host, "comm_mine", dp_exchange_config_t, DP_EXCHANGE_CONFIG_MIN, NULL, config);
    if (status < 0)
        return status;
    if (config->row_bytes == 0 || config->row_bytes % 16 != 0 || config->capacity_rows == 0 || slots > 1 << 16 ||
        config->capacity_rows > INT32_MAX || config->row_bytes > SIZE_MAX / 8 / config->capacity_rows / slots / n)
        return DP_FAIL(
            host, DP_ERR_INVALID,
            "group %s, exchange %u: %u slots of %u rows of %zu bytes: rows are multiples of 16 bytes, nothing "
            "is 0, and all must fit into an address space",
            comm->name, config->id, slots, config->capacity_rows, config->row_bytes);
    for (x = comm->exchanges; x != NULL; x = x->next)
        if (x->id == config->id)
            return DP_FAIL(host, DP_ERR_INVALID, "group %s: exchange %u is open already", comm->name, config->id);
    x = take(comm, sizeof(*x));
    if (x == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for an exchange", comm->name);
    x->comm = comm;
    x->id = config->id;
    x->slots = slots;
    x->capacity = config->capacity_rows;
    x->row_bytes = config->row_bytes;
    snprintf(x->label, sizeof(x->label), "%s", config->label != NULL ? config->label : "");
    x->rows = take(comm, n * sizeof(*x->rows));
    x->counts = take(comm, slots * n * sizeof(*x->counts));
    if (x->rows == NULL || x->counts == NULL) {
        give(comm, x->rows);
        give(comm, x->counts);
        give(comm, x);
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for an exchange", comm->name);
    }
    x->next = comm->exchanges;
    comm->exchanges = x;
    *exchange_out = x;
    return DP_OK;
}

typedef struct swap {
    dp_exchange_t *x;
    const unsigned char *send;
    const int32_t *offsets, *counts;
    uint64_t number;
} swap_t;

/* All counts are checked before any row is sent: what does not fit is not sent in part. */
static dp_status_t check_counts(const swap_t *w)
{
    const dp_comm_t *comm = w->x->comm;

    for (int32_t p = 0; p < comm->nranks; p++)
        if (w->counts[p] < 0 || (uint32_t)w->counts[p] > w->x->capacity)
            return DP_FAIL(comm->host, w->counts[p] < 0 ? DP_ERR_INVALID : DP_ERR_OVERFLOW,
                           "rank %d: exchange %u of \"%s\": %d rows for rank %d, there is room for %u",
                           comm->world[comm->rank], (uint32_t)w->number, w->x->label, w->counts[p], comm->world[p],
                           w->x->capacity);
    return DP_OK;
}

static dp_status_t put_rows(const swap_t *w, int32_t to)
{
    dp_exchange_t *x = w->x;
    dp_comm_t *comm = x->comm;
    const uint32_t number = (uint32_t)w->number;
    const uint64_t slot = w->number % x->slots;
    head_t *head = rows_head(x, to, slot, comm->rank);
    line_t *freed = (line_t *)(void *)x->rows[to];
    dp_status_t status = await(comm, &freed->signal, number + 1 - x->slots, "rows of exchange", x->label, number, to);

    if (status < 0)
        return status;
    head->rows = w->counts[to];
    if (head->rows > 0)
        memcpy(rows_data(x, to, slot, comm->rank), w->send + (size_t)w->offsets[to] * x->row_bytes,
               (size_t)head->rows * x->row_bytes);
    comm->host->post(comm->host, &head->published, number + 1);
    return DP_OK;
}

/* Begins with the right neighbour, so that the ranks do not all write to one at a time. */
static dp_status_t run_exchange(void *arg)
{
    const swap_t *w = arg;
    dp_exchange_t *x = w->x;
    dp_comm_t *comm = x->comm;
    const int32_t n = comm->nranks;
    const uint64_t slot = w->number % x->slots;
    dp_status_t status = check_counts(w);

    for (int32_t i = 1; i <= n && status >= 0; i++)
        status = put_rows(w, (comm->rank + i) % n);
    for (int32_t p = 0; p < n && status >= 0; p++) {
        head_t *head = rows_head(x, comm->rank, slot, p);

        status = await(comm, &head->published, (uint32_t)w->number + 1, "exchange", x->label, (uint32_t)w->number, p);
        if (status >= 0)
            x->counts[slot * (uint64_t)n + (uint64_t)p] = head->rows;
    }
    return status;
}

static dp_status_t run_exchange_release(void *arg)
{
    const swap_t *w = arg;
    dp_comm_t *comm = w->x->comm;

    post(comm, (line_t *)(void *)w->x->rows[comm->rank], (uint32_t)w->number + 1);
    return DP_OK;
}

static dp_status_t check_swap(const dp_exchange_t *x, const char *call, uint32_t number, uint64_t next, uint64_t limit)
{
    if (x->connected && number == (uint32_t)next && next < limit)
        return DP_OK;
    return DP_FAIL(x->comm->host, DP_ERR_INVALID,
                   "%s %u of \"%s\" in group %s: it must be after start, and %u is next%s", call, number, x->label,
                   x->comm->name, (uint32_t)next, next < limit ? "" : ", which was not made");
}

static dp_status_t mine_exchange(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                                 const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                                 dp_stream_t *s)
{
    const swap_t w = {x, send, send_offsets, send_counts, x->count};
    const uint64_t slot = x->count % x->slots;
    dp_status_t status = check_swap(x, "exchange", number, x->count, UINT64_MAX);

    if (status >= 0)
        status = x->comm->device_vt->launch(s, run_exchange, &w, sizeof(w));
    if (status < 0)
        return status;
    x->count++;
    *rows_out = rows_data(x, x->comm->rank, slot, 0);
    *counts_out = x->counts + slot * (uint64_t)x->comm->nranks;
    return DP_OK;
}

static dp_status_t mine_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    const swap_t w = {.x = x, .number = x->released};
    dp_status_t status = check_swap(x, "release of exchange", number, x->released, x->count);

    if (status >= 0)
        status = x->comm->device_vt->launch(s, run_exchange_release, &w, sizeof(w));
    x->released += status >= 0;
    return status;
}

static dp_status_t exchange_connect(dp_exchange_t *x)
{
    const area_t area = exchange_area(x);
    dp_status_t status = DP_OK;

    for (int32_t p = 0; p < x->comm->nranks && status >= 0; p++)
        status = find(x->comm, p, &area, x->label, &x->rows[p]);
    x->connected = status >= 0;
    return status;
}

/* ---- start ---- */

/* Brings together all that was opened since the last start. */
static dp_status_t mine_start(dp_comm_t *comm)
{
    uint32_t count = 0;
    area_t *areas;
    dp_status_t status;

    for (dp_channel_end_t *end = comm->ends; end != NULL; end = end->next)
        count += end->inbox == NULL;
    for (dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        count += !x->connected;
    areas = comm->host->allocate(comm->host, (count + 1) * sizeof(*areas), 16);
    if (areas == NULL)
        return no_memory(comm, count * sizeof(*areas));
    count = 0;
    for (dp_channel_end_t *end = comm->ends; end != NULL; end = end->next)
        if (end->inbox == NULL)
            areas[count++] = channel_area(end, end->sender);
    for (dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        if (!x->connected)
            areas[count++] = exchange_area(x);
    status = join(comm, areas, count);
    comm->host->release(comm->host, areas);
    for (dp_channel_end_t *end = comm->ends; end != NULL && status >= 0; end = end->next)
        status = end->inbox == NULL ? channel_connect(end) : DP_OK;
    for (dp_exchange_t *x = comm->exchanges; x != NULL && status >= 0; x = x->next)
        status = !x->connected ? exchange_connect(x) : DP_OK;
    return status >= 0 ? meet(comm) : status; /* all ranks are connected, or none is */
}

/* ---- sums ---- */

typedef struct sum {
    dp_comm_t *comm;
    unsigned char *data;
    size_t count;
    dp_dtype_t dtype;
    uint32_t number;
} sum_t;

static slice_t *staging(const dp_comm_t *comm, int32_t rank, uint32_t slice)
{
    return (slice_t *)(void *)(comm->base[rank] + 2 * (size_t)comm->nranks * sizeof(line_t) +
                               slice % 2 * (sizeof(slice_t) + comm->slice_bytes));
}

static void add(void *to, const void *from, size_t count, dp_dtype_t dtype)
{
    for (size_t i = 0; i < count; i++)
        if (dtype == DP_F32)
            ((float *)to)[i] += ((const float *)from)[i];
        else if (dtype == DP_F64)
            ((double *)to)[i] += ((const double *)from)[i];
        else
            /* wraps, as DP_I64 does in two's complement */
            ((uint64_t *)to)[i] += ((const uint64_t *)from)[i];
}

/* Stages our part of a slice and, when all have, adds all parts from rank 0 on. A buffer is used
 * again two slices later: whoever has staged the slice in between has done with this one. */
static dp_status_t sum_slice(const sum_t *r, unsigned char *data, size_t count)
{
    dp_comm_t *comm = r->comm;
    const size_t bytes = count * dp_dtype_bytes(r->dtype);
    const uint32_t q = comm->slices;
    slice_t *ours = staging(comm, comm->rank, q);
    dp_status_t status;

    ours->count = r->count;
    ours->number = r->number;
    ours->dtype = (uint32_t)r->dtype;
    if (bytes > 0)
        memcpy(ours + 1, data, bytes);
    for (int32_t p = 0; p < comm->nranks; p++)
        post(comm, base_lines(comm, p) + comm->nranks + comm->rank, q + 1);
    for (int32_t p = 0; p < comm->nranks; p++) {
        const slice_t *part = staging(comm, p, q);

        status = await(comm, &base_lines(comm, comm->rank)[comm->nranks + p].signal, q + 1, "sum", "all_reduce",
                       r->number, p);
        if (status < 0)
            return status;
        if (part->count != r->count || part->number != r->number || part->dtype != (uint32_t)r->dtype)
            return DP_FAIL(comm->host, DP_ERR_PROTOCOL,
                           "rank %d: sum %u of group %s: rank %d adds %llu elements of dtype %u, we %zu of dtype %d",
                           comm->world[comm->rank], r->number, comm->name, comm->world[p],
                           (unsigned long long)part->count, part->dtype, r->count, (int)r->dtype);
        if (p > 0)
            add(data, part + 1, count, r->dtype);
        else if (bytes > 0)
            memcpy(data, part + 1, bytes);
    }
    comm->slices = q + 1;
    return DP_OK;
}

static dp_status_t run_sum(void *arg)
{
    const sum_t *r = arg;
    const size_t unit = dp_dtype_bytes(r->dtype), most = r->comm->slice_bytes / unit;
    size_t at = 0;
    dp_status_t status;

    do { /* at least one slice: ranks that give different counts find out */
        const size_t count = r->count - at < most ? r->count - at : most;

        status = sum_slice(r, r->data + at * unit, count);
        at += count;
    } while (at < r->count && status >= 0);
    return status;
}

static dp_status_t mine_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    const sum_t r = {comm, data, count, dtype, comm->sums};
    dp_status_t status;

    if (dtype != DP_F32 && dtype != DP_F64 && dtype != DP_I64)
        return DP_FAIL(comm->host, DP_ERR_UNSUPPORTED, "group %s: sums of dtype %d: use f32, f64 or i64", comm->name,
                       (int)dtype);
    status = comm->device_vt->launch(s, run_sum, &r, sizeof(r));
    comm->sums += status >= 0;
    return status;
}

static const dp_comm_vt_t table = {
    .struct_size = sizeof(table),
    .caps = DP_COMM_CAP_ONE_SIDED | DP_COMM_CAP_HOST_INLINE,
    .open = mine_open,
    .close = mine_close,
    .channel_open = mine_channel_open,
    .exchange_open = mine_exchange_open,
    .start = mine_start,
    .send = mine_send,
    .recv = mine_recv,
    .release = mine_release,
    .exchange = mine_exchange,
    .exchange_release = mine_exchange_release,
    .all_reduce = mine_all_reduce,
    .memory_bytes = mine_memory_bytes,
};

static const void *get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_COMM) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(comm_mine) = {
    DP_PLUGIN_HEAD,
    .name = "comm_mine",
    .version = "0.1",
    .summary = "a template: one host, shared memory",
    .get_interface = get_interface,
};
