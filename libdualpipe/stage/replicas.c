/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * replicas.c: gradients of replicas summed, and what belongs to experts moved to where a new
 * placement wants it.
 *
 * A move works in blocks: block i is the same range of bytes of every expert that moves. All of a
 * block is read and has been sent before any of it is written, and blocks do not overlap, so a
 * replica may be source and target at once. A move in the background writes into spare memory
 * instead, and its end copies that into place: steps go on reading what the replicas had. */
#include "stage/replicas.h"

#include "base/do.h"
#include "base/memory.h"
#include "stage/dtype.h"

#include <stdio.h>
#include <string.h>

#define BLOCK_BYTES (64 * 1024)
#define MOST        (1 << 20)

typedef struct dp__room {
    struct dp__room *next;
    void *memory;
} dp__room_t;

struct dp__replicas {
    dp__replicas_config_t config;
    int32_t local;       /* R/n */
    size_t row_bytes;    /* of a block that is sent */
    size_t device_bytes; /* allocated */
    dp_stream_t *stream; /* for moves */
    dp_exchange_t *exchange;
    uint32_t number;        /* of the next exchange */
    char *rows;             /* [R] blocks on their way out, by receiver */
    char *sums;             /* [min(E, R - E)] gradients of experts */
    int32_t *device_counts; /* [2 n] first row for each rank, rows for each rank */
    int32_t *counts;        /* [2 n] the same on the host */
    int32_t *source;        /* [R] replica that each replica is copied from, -1: it stays */
    int32_t *spot;          /* [R/n] where what each of ours gets is put, counted in replicas */
    int32_t *turn;          /* [E] work space */
    dp__room_t *rooms;      /* placements of layers, on the device */

    /* [2 * moves] a move in the background: memories, and the spare memory of each. NULL: there is
     * none */
    dp_replica_memory_t *moving;
    int32_t moves;
    void *spare;
    size_t spare_bytes;
};

/* ---- placements ---- */

dp_status_t dp__replicas_check(uint32_t experts, uint32_t replicas, const int32_t *placement)
{
    uint8_t *seen;
    dp_status_t status = DP_OK;

    if (placement == NULL || experts == 0 || replicas < experts || replicas > MOST)
        return dp_fail(DP_ERR_INVALID,
                       "placement of %u replicas of %u experts: one is required, of 1 to %d replicas, at least "
                       "one for each expert",
                       replicas, experts, MOST);
    seen = dp__calloc(experts, 1);
    if (seen == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory to check a placement of %u experts", experts);
    for (uint32_t r = 0; r < replicas && status >= 0; r++)
        if (placement[r] < 0 || (uint32_t)placement[r] >= experts)
            status = dp_fail(DP_ERR_INVALID, "placement: replica %u is of expert %d, there are experts 0 to %u", r,
                             placement[r], experts - 1);
        else
            seen[placement[r]] = 1;
    for (uint32_t e = 0; e < experts && status >= 0; e++)
        if (!seen[e])
            status = dp_fail(DP_ERR_INVALID, "placement: no replica of expert %u", e);
    dp__free(seen);
    return status;
}

void dp_replicas_first_placement(uint32_t experts, uint32_t replicas, int32_t *placement_out)
{
    for (uint32_t r = 0; r < replicas; r++)
        placement_out[r] = (int32_t)(r % experts);
}

/* ---- open and close ---- */

static dp_status_t check_replicas(const dp__replicas_config_t *c)
{
    if (c->device_vt == NULL || c->device == NULL || c->comm_vt == NULL || c->comm == NULL)
        return dp_fail(DP_ERR_INVALID, "replicas of experts: a device and the expert group's comm are required");
    if (c->comm_size < 1 || c->comm_rank < 0 || c->comm_rank >= c->comm_size)
        return dp_fail(DP_ERR_INVALID, "replicas of experts: rank %d of an expert group of %d", c->comm_rank,
                       c->comm_size);
    if (c->experts == 0 || c->replicas < c->experts || c->replicas > MOST || c->replicas % (uint32_t)c->comm_size != 0)
        return dp_fail(DP_ERR_INVALID,
                       "replicas of experts: %u replicas of %u experts on %d ranks: must be at least one for "
                       "each expert, at most %d, and as many on every rank",
                       c->replicas, c->experts, c->comm_size, MOST);
    if (c->expert_count == 0 || !dp__dtype_of_params(c->dtype))
        return dp_fail(DP_ERR_INVALID, "replicas of experts: experts of %zu elements of dtype %s", c->expert_count,
                       dp__dtype_name(c->dtype));
    if (c->comm_vt->exchange_open == NULL || c->comm_vt->exchange == NULL || c->comm_vt->exchange_release == NULL)
        return dp_fail(DP_ERR_UNSUPPORTED, "replicas of experts: moving experts needs a comm with exchanges");
    return DP_OK;
}

static dp_status_t device_memory(dp__replicas_t *r, size_t count, size_t bytes, void *memory_out)
{
    void *memory = NULL;

    if (!dp__mul(count, bytes, &bytes))
        return dp_fail(DP_ERR_INVALID, "replicas: %zu experts are more than memory can hold", count);
    if (bytes == 0)
        return DP_OK;
    DO(r->config.device_vt->allocate(r->config.device, bytes, &memory));
    r->device_bytes += bytes;
    memcpy(memory_out, &memory, sizeof(memory));
    return DP_OK;
}

static dp_status_t allocate_replicas(dp__replicas_t *r)
{
    const dp__replicas_config_t *c = &r->config;
    const size_t spare = c->replicas - c->experts, n = (size_t)c->comm_size;
    size_t expert;

    if (!dp__mul(c->expert_count, dp_dtype_bytes(dp_dtype_accumulator(c->dtype)), &expert))
        return dp_fail(DP_ERR_INVALID, "replicas: an expert of %zu elements is more than memory can hold",
                       c->expert_count);
    r->row_bytes = expert < BLOCK_BYTES ? (expert + 15) / 16 * 16 : BLOCK_BYTES;
    r->counts = dp__calloc(2 * n, sizeof(*r->counts));
    r->source = dp__calloc(c->replicas, sizeof(*r->source));
    r->spot = dp__calloc((size_t)r->local, sizeof(*r->spot));
    r->turn = dp__calloc(c->experts, sizeof(*r->turn));
    if (r->counts == NULL || r->source == NULL || r->spot == NULL || r->turn == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the records of %u replicas", c->replicas);
    DO(device_memory(r, c->replicas, r->row_bytes, &r->rows));
    DO(device_memory(r, spare < c->experts ? spare : c->experts, expert, &r->sums));
    DO(device_memory(r, 2 * n, sizeof(*r->device_counts), &r->device_counts));
    return c->device_vt->stream_open(c->device, DP_LANE_ALL_TO_ALL, &r->stream);
}

dp_status_t dp__replicas_open(const dp__replicas_config_t *config, dp__replicas_t **replicas_out)
{
    dp_exchange_config_t exchange = {.struct_size = sizeof(exchange), .label = "experts that move"};
    dp__replicas_t *r;
    dp_status_t status;

    DO(check_replicas(config));
    r = dp__calloc(1, sizeof(*r));
    if (r == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the record of replicated experts");
    r->config = *config;
    r->local = (int32_t)config->replicas / config->comm_size;
    status = allocate_replicas(r);
    if (status >= 0) {
        exchange.id = config->exchange_id;
        exchange.row_bytes = r->row_bytes;
        exchange.capacity_rows = (uint32_t)r->local;
        status = config->comm_vt->exchange_open(config->comm, &exchange, &r->exchange);
    }
    if (status < 0) {
        dp__replicas_close(r);
        return status;
    }
    *replicas_out = r;
    return DP_OK;
}

static void release_replicas(dp__replicas_t *r, void *memory)
{
    if (memory != NULL)
        r->config.device_vt->release(r->config.device, memory);
}

static void forget_move(dp__replicas_t *r)
{
    release_replicas(r, r->spare);
    r->device_bytes -= r->spare_bytes;
    dp__free(r->moving);
    r->spare = NULL;
    r->spare_bytes = 0;
    r->moving = NULL;
}

void dp__replicas_close(dp__replicas_t *r)
{
    if (r == NULL)
        return;
    if (r->moving != NULL) /* its outcome is nobody's any more */
        (void)r->config.device_vt->synchronize(r->stream, -1);
    if (r->stream != NULL)
        r->config.device_vt->stream_close(r->stream);
    forget_move(r);
    release_replicas(r, r->rows);
    release_replicas(r, r->sums);
    release_replicas(r, r->device_counts);
    while (r->rooms != NULL) {
        dp__room_t *room = r->rooms;

        r->rooms = room->next;
        release_replicas(r, room->memory);
        dp__free(room);
    }
    dp__free(r->counts);
    dp__free(r->source);
    dp__free(r->spot);
    dp__free(r->turn);
    dp__free(r);
}

size_t dp__replicas_bytes(const dp__replicas_t *r)
{
    return r->device_bytes;
}

/* ---- placements on the device ---- */

const dp__replicas_config_t *dp__replicas_config(const dp__replicas_t *r)
{
    return &r->config;
}

dp_status_t dp__replicas_allocate(dp__replicas_t *r, int32_t **device_placement_out)
{
    dp__room_t *room = dp__calloc(1, sizeof(*room));

    if (room == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the record of a layer's placement");
    room->next = r->rooms;
    r->rooms = room;
    DO(device_memory(r, r->config.replicas, sizeof(int32_t), &room->memory));
    *device_placement_out = room->memory;
    return DP_OK;
}

dp_status_t dp__replicas_write(dp__replicas_t *r, int32_t *device_placement, const int32_t *placement)
{
    DO(r->config.device_vt->copy(r->stream, device_placement, placement, r->config.replicas * sizeof(*placement)));
    return r->config.device_vt->synchronize(r->stream, -1);
}

/* ---- sums ---- */

/* turn[e]: place among the sums of an expert with several replicas, -1 of one with one. Returns how
 * many there are. */
static size_t number_replicated(dp__replicas_t *r, const int32_t *placement)
{
    size_t n = 0;

    memset(r->turn, 0, r->config.experts * sizeof(*r->turn));
    for (uint32_t i = 0; i < r->config.replicas; i++)
        r->turn[placement[i]]++;
    for (uint32_t e = 0; e < r->config.experts; e++)
        r->turn[e] = r->turn[e] > 1 ? (int32_t)n++ : -1;
    return n;
}

dp_status_t dp__replicas_sum(dp__replicas_t *r, const int32_t *placement, void *grads, dp_stream_t *s)
{
    const dp__replicas_config_t *c = &r->config;
    const dp_dtype_t dtype = dp_dtype_accumulator(c->dtype);
    const size_t bytes = c->expert_count * dp_dtype_bytes(dtype), replicated = number_replicated(r, placement);
    const int32_t *ours = placement + c->comm_rank * r->local;

    if (replicated == 0)
        return DP_OK;
    DO(c->device_vt->zero(s, r->sums, replicated * bytes));
    for (int32_t i = 0; i < r->local; i++)
        if (r->turn[ours[i]] >= 0)
            DO(c->device_vt->add(s, r->sums + (size_t)r->turn[ours[i]] * bytes, (char *)grads + (size_t)i * bytes,
                                 c->expert_count, dtype));
    DO(c->comm_vt->all_reduce(c->comm, r->sums, replicated * c->expert_count, dtype, s));
    for (int32_t i = 0; i < r->local; i++)
        if (r->turn[ours[i]] >= 0)
            DO(c->device_vt->copy(s, (char *)grads + (size_t)i * bytes, r->sums + (size_t)r->turn[ours[i]] * bytes,
                                  bytes));
    return DP_OK;
}

/* ---- moves ---- */

/* The replica of `expert` on `rank` under `from`, -1: none. */
static int32_t find_on_rank(const dp__replicas_t *r, const int32_t *from, int32_t rank, int32_t expert)
{
    for (int32_t i = rank * r->local; i < (rank + 1) * r->local; i++)
        if (from[i] == expert)
            return i;
    return -1;
}

/* The next replica of `expert` behind `after`, round about. */
static int32_t find_next(const dp__replicas_t *r, const int32_t *from, int32_t after, int32_t expert)
{
    const int32_t n = (int32_t)r->config.replicas;

    for (int32_t k = 1; k <= n; k++)
        if (from[(after + k) % n] == expert)
            return (after + k) % n;
    return -1;
}

/* Who copies from whom; the same on all ranks. Returns how many replicas come from another rank. */
static uint64_t find_sources(dp__replicas_t *r, const int32_t *from, const int32_t *to)
{
    uint64_t moved = 0;

    for (uint32_t e = 0; e < r->config.experts; e++)
        r->turn[e] = (int32_t)r->config.replicas - 1;
    for (int32_t i = 0; i < (int32_t)r->config.replicas; i++) {
        r->source[i] = from[i] == to[i] ? -1 : find_on_rank(r, from, i / r->local, to[i]);
        if (from[i] == to[i] || r->source[i] >= 0)
            continue;
        r->source[i] = r->turn[to[i]] = find_next(r, from, r->turn[to[i]], to[i]);
        moved++;
    }
    return moved;
}

/* Rows that this rank sends, by receiver. Returns whether anything is copied anywhere. */
static int count_rows(dp__replicas_t *r)
{
    const int32_t n = r->config.comm_size, me = r->config.comm_rank;
    int32_t *first = r->counts, *rows = r->counts + n, all = 0;
    int any = 0;

    for (int32_t p = 0; p < n; p++) {
        first[p] = all;
        rows[p] = 0;
        for (int32_t i = p * r->local; i < (p + 1) * r->local; i++) {
            any |= r->source[i] >= 0;
            rows[p] += r->source[i] >= 0 && r->source[i] / r->local == me;
        }
        all += rows[p];
    }
    return any;
}

/* Where what replicas of ours get is put: in their place, or one behind the other in spare memory.
 * Returns how many get something. */
static int32_t find_spots(dp__replicas_t *r, bool in_place)
{
    const int32_t *source = r->source + r->config.comm_rank * r->local;
    int32_t n = 0;

    for (int32_t i = 0; i < r->local; i++) {
        r->spot[i] = in_place ? i : n;
        n += source[i] >= 0;
    }
    return n;
}

static char *replica_at(const dp__replicas_t *r, const dp_replica_memory_t *m, int32_t replica, size_t at)
{
    return (char *)m->memory + (size_t)(replica % r->local) * m->bytes + at;
}

static dp_status_t send_block(dp__replicas_t *r, const dp_replica_memory_t *m, size_t at, size_t bytes)
{
    char *row = r->rows;

    for (int32_t i = 0; i < (int32_t)r->config.replicas; i++)
        if (r->source[i] >= 0 && r->source[i] / r->local == r->config.comm_rank) {
            DO(r->config.device_vt->copy(r->stream, row, replica_at(r, m, r->source[i], at), bytes));
            row += r->row_bytes;
        }
    return DP_OK;
}

/* Rows of one source rank come in the order of the replicas they are for. */
static dp_status_t take_block(dp__replicas_t *r, const dp_replica_memory_t *into, size_t at, size_t bytes,
                              const char *rows)
{
    const int32_t first = r->config.comm_rank * r->local;

    for (int32_t p = 0; p < r->config.comm_size; p++) {
        const char *row = rows + (size_t)p * (size_t)r->local * r->row_bytes;

        for (int32_t i = first; i < first + r->local; i++)
            if (r->source[i] >= 0 && r->source[i] / r->local == p) {
                DO(r->config.device_vt->copy(r->stream, replica_at(r, into, r->spot[i - first], at), row, bytes));
                row += r->row_bytes;
            }
    }
    return DP_OK;
}

static dp_status_t move_block(dp__replicas_t *r, const dp_replica_memory_t *m, const dp_replica_memory_t *into,
                              size_t at)
{
    const dp_comm_vt_t *vt = r->config.comm_vt;
    const size_t bytes = m->bytes - at < r->row_bytes ? m->bytes - at : r->row_bytes;
    const void *rows;
    const int32_t *counts;

    DO(send_block(r, m, at, bytes));
    DO(vt->exchange(r->exchange, r->number, r->rows, r->device_counts, r->device_counts + r->config.comm_size, &rows,
                    &counts, r->stream));
    r->number++;
    DO(take_block(r, into, at, bytes, rows));
    return vt->exchange_release(r->exchange, r->number - 1, r->stream);
}

static dp_status_t enqueue_blocks(dp__replicas_t *r, const dp_replica_memory_t *memories,
                                  const dp_replica_memory_t *into, int32_t count)
{
    DO(r->config.device_vt->copy(r->stream, r->device_counts, r->counts,
                                 2 * (size_t)r->config.comm_size * sizeof(*r->counts)));
    for (int32_t m = 0; m < count; m++)
        for (size_t at = 0; at < memories[m].bytes; at += r->row_bytes)
            DO(move_block(r, &memories[m], &into[m], at));
    return DP_OK;
}

/* Whether anything is copied anywhere, and what is sent. */
static dp_status_t plan_move(dp__replicas_t *r, const int32_t *from, const int32_t *to,
                             const dp_replica_memory_t *memories, int32_t count, int *any_out, uint64_t *sent_out)
{
    uint64_t moved, bytes = 0;

    if (r == NULL || (memories == NULL && count > 0))
        return dp_fail(DP_ERR_INVALID, "replicas of experts: what to move with, or what to move, is NULL");
    if (r->moving != NULL)
        return dp_fail(DP_ERR_INVALID, "replicas of experts: those of a layer are being moved: end that first, by "
                                       "dp_moe_layer_place_end");
    DO(dp__replicas_check(r->config.experts, r->config.replicas, from));
    DO(dp__replicas_check(r->config.experts, r->config.replicas, to));
    for (int32_t m = 0; m < count; m++)
        bytes += memories[m].bytes;
    moved = find_sources(r, from, to);
    *any_out = count_rows(r);
    if (sent_out != NULL)
        *sent_out = moved * bytes;
    return DP_OK;
}

dp_status_t dp__replicas_move(dp__replicas_t *r, const int32_t *from, const int32_t *to,
                              const dp_replica_memory_t *memories, int32_t count, uint64_t *sent_out)
{
    int any;

    DO(plan_move(r, from, to, memories, count, &any, sent_out));
    if (!any)
        return DP_OK;
    (void)find_spots(r, true);
    DO(enqueue_blocks(r, memories, memories, count));
    return r->config.device_vt->synchronize(r->stream, -1);
}

/* ---- moves in the background ---- */

static dp_status_t keep_move(dp__replicas_t *r, const dp_replica_memory_t *memories, int32_t count)
{
    const size_t arriving = (size_t)find_spots(r, false);
    size_t bytes = 0;

    r->moving = dp__calloc(2 * (size_t)count + 1, sizeof(*r->moving));
    if (r->moving == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the record of a move of experts");
    r->moves = count;
    for (int32_t m = 0; m < count; m++)
        bytes += arriving * memories[m].bytes;
    DO(device_memory(r, 1, bytes, &r->spare));
    r->spare_bytes = bytes;
    bytes = 0;
    for (int32_t m = 0; m < count; m++) {
        r->moving[m] = r->moving[count + m] = memories[m];
        r->moving[count + m].memory = (char *)r->spare + bytes;
        bytes += arriving * memories[m].bytes;
    }
    return DP_OK;
}

dp_status_t dp__replicas_begin(dp__replicas_t *r, const int32_t *from, const int32_t *to,
                               const dp_replica_memory_t *memories, int32_t count, uint64_t *sent_out)
{
    dp_status_t status;
    int any;

    DO(plan_move(r, from, to, memories, count, &any, sent_out));
    status = keep_move(r, memories, count);
    if (status < 0)
        forget_move(r);
    return status < 0 || !any ? status : enqueue_blocks(r, r->moving, r->moving + count, count);
}

static dp_status_t put_into_place(dp__replicas_t *r)
{
    const dp_replica_memory_t *spare = r->moving + r->moves;

    for (int32_t m = 0; m < r->moves; m++)
        for (int32_t i = 0; i < r->local; i++)
            if (r->source[r->config.comm_rank * r->local + i] >= 0)
                DO(r->config.device_vt->copy(r->stream, replica_at(r, &r->moving[m], i, 0),
                                             replica_at(r, &spare[m], r->spot[i], 0), spare[m].bytes));
    return r->config.device_vt->synchronize(r->stream, -1);
}

dp_status_t dp__replicas_end(dp__replicas_t *r)
{
    dp_status_t status = r->config.device_vt->synchronize(r->stream, -1);
    char why[512];

    if (status < 0) {
        snprintf(why, sizeof(why), "%s", dp_last_error());
        return dp_fail(status, "experts did not move, the old placement holds: close the pipeline: %s", why);
    }
    DO(put_into_place(r));
    forget_move(r);
    return DP_OK;
}
