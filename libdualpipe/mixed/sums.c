/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * sums.c: sums over ranks on several hosts, with the bits of a sum on one.
 *
 * The sum of an element is ((r0 + r1) + r2) + ..., and nothing may be added in another order. So
 * the running sum walks along the ranks: over a run (neighbours on one host) as a sum of near, to
 * which the run's first rank comes with what the runs before have made of it; from run to run as a
 * message of far. Behind the last run it is the total, which goes back over a tree: a chain of
 * hosts, in each of them a heap.
 *
 * Long sums go in pieces, and everybody knows when each piece is where. Say that run k works on
 * piece j at moment j + k * lag, and a rank that is f hosts and e neighbours below the last run
 * gets the total of piece j at moment j + (runs - 1 + f) * lag + e. What was made at a moment is
 * sent before the next one begins; what a moment needs is received before it begins. Then nothing
 * can wait in a circle:
 * - One-sided ways have as many slots as their lag, at least 2. A send waits for the release of
 *   `slots` messages before it, which its receiver made at the sender's moment or earlier; a
 *   receive for a send of an earlier moment, or of the same border between two moments when the lag
 *   is 1.
 * - Matched ways have lag 1, so both sides come to a transfer at the same border. There every rank
 *   first sends on, then receives: the running sum first, then the total. That is one order of all
 *   transfers: by border, then sums before totals, then from the last run (the deepest rank) to the
 *   first. All ranks keep to it, one thing after the other.
 * - Sums of a run are at one moment for all of its ranks.
 *
 * Cost, of B bytes in a group on H hosts with R runs (R = H when a host's ranks are neighbours, as
 * launchers place them). Between hosts: B down each of R - 1 and up each of H - 1 ways, all of them
 * at once where there are many pieces; a network card carries B in and B out for the sum, and the
 * same for the total. Within a host: what near takes for a sum, and a copy in and out for each
 * rank. Time: about B / bandwidth for long sums, (R + H - 2) times the latency for short ones. One
 * level over far would carry B for each rank of a host. */
#include "base/do.h"
#include "mixed/parts.h"

enum { FORWARD = 0, BACK = 1 }; /* ids of channels */

#define PIECE_ONE_SIDED ((size_t)256 << 10)
#define PIECE_MATCHED   ((size_t)1 << 20)
#define PIECE_LEAST     ((size_t)64)
#define LAG             4 /* pieces on their way between two hosts: 1 MiB hides 10 ms at 1 Gbit/s */
#define SLOTS_LEAST     2

/* ---- setting up ---- */

void dp__mixed_sums_size(dp_comm_t *comm, size_t reduce_bytes)
{
    bool one_sided = (comm->far_sum.vt->caps & DP_COMM_CAP_ONE_SIDED) != 0;
    dp__mixed_sums_t *sums = &comm->sums;

    sums->lag = one_sided ? LAG : 1;
    sums->piece_bytes = one_sided ? PIECE_ONE_SIDED : PIECE_MATCHED;
    if (reduce_bytes > 0 && reduce_bytes / (size_t)sums->lag < sums->piece_bytes)
        sums->piece_bytes = reduce_bytes / (size_t)sums->lag / PIECE_LEAST * PIECE_LEAST;
    if (sums->piece_bytes < PIECE_LEAST)
        sums->piece_bytes = PIECE_LEAST;
}

/* peer: of the group; -1: there is no such way. */
static dp_status_t open_way(dp_comm_t *comm, uint32_t id, int32_t peer, int32_t sender, dp__mixed_way_t *way)
{
    const dp__mixed_map_t *m = &comm->map;
    bool here = peer >= 0 && m->host[peer] == m->host[comm->rank];
    dp__mixed_part_t *part = here ? &comm->near_sum : &comm->far_sum;
    dp_channel_config_t config = {
        .struct_size = sizeof(config),
        .id = id,
        .sender = sender,
        .slots = here || comm->sums.lag < SLOTS_LEAST ? SLOTS_LEAST : (uint32_t)comm->sums.lag,
        .slot_bytes = comm->sums.piece_bytes,
        .label = id == FORWARD ? "running sum" : "total of a sum",
    };

    if (peer < 0)
        return DP_OK;
    config.peer = here ? m->near[peer] : m->carries[peer];
    way->vt = part->vt;
    return part->vt->channel_open(part->comm, &config, &way->end);
}

dp_status_t dp__mixed_sums_connect(dp_comm_t *comm)
{
    const dp__mixed_map_t *m = &comm->map;
    dp__mixed_sums_t *sums = &comm->sums;

    DO(open_way(comm, FORWARD, m->prev, 0, &sums->from_run));
    DO(open_way(comm, FORWARD, m->next, 1, &sums->to_run));
    DO(open_way(comm, BACK, m->parent, 0, &sums->from_parent));
    for (int32_t i = 0; i < m->nchildren; i++)
        DO(open_way(comm, BACK, m->children[i], 1, &sums->to_child[i]));
    return DP_OK;
}

/* ---- a sum ---- */

typedef struct sum {
    dp_comm_t *comm;
    char *data;
    size_t count, unit, piece, pieces; /* elements, bytes of one, elements of a piece */
    dp_dtype_t dtype;
    dp_stream_t *s;
} sum_t;

static char *piece_at(const sum_t *r, int64_t j, size_t *count_out)
{
    size_t first = (size_t)j * r->piece, left = r->count - first;

    *count_out = left < r->piece ? left : r->piece;
    return r->data + first * r->unit;
}

/* Whoever sums something else is found out by the first message. */
static dp_message_tag_t tag_of(const sum_t *r, const dp__mixed_way_t *way, size_t count)
{
    return (dp_message_tag_t){.number = way->count,
                              .step = (uint32_t)r->count,
                              .microbatch = (int32_t)r->dtype,
                              .bytes = (uint32_t)(count * r->unit)};
}

static dp_status_t give_piece(const sum_t *r, dp__mixed_way_t *way, int64_t j)
{
    dp_message_tag_t tag;
    size_t count;
    const char *data;

    if (way->end == NULL || j < 0 || j >= (int64_t)r->pieces)
        return DP_OK;
    data = piece_at(r, j, &count);
    tag = tag_of(r, way, count);
    DO(way->vt->send(way->end, data, &tag, r->s));
    way->count++;
    return DP_OK;
}

/* What comes is added to our piece, or takes its place. */
static dp_status_t take_piece(const sum_t *r, dp__mixed_way_t *way, int64_t j, bool add)
{
    const dp_device_vt_t *device = r->comm->device_vt;
    dp_message_tag_t tag;
    const void *from;
    size_t count;
    char *data;

    if (way->end == NULL || j < 0 || j >= (int64_t)r->pieces)
        return DP_OK;
    data = piece_at(r, j, &count);
    tag = tag_of(r, way, count);
    DO(way->vt->recv(way->end, &tag, &from, r->s));
    if (count > 0)
        DO(add ? device->add(r->s, data, from, count, r->dtype) : device->copy(r->s, data, from, count * r->unit));
    DO(way->vt->release(way->end, way->count, r->s));
    way->count++;
    return DP_OK;
}

static dp_status_t sum_run(const sum_t *r, int64_t j)
{
    dp__mixed_part_t *run = r->comm->run.comm != NULL ? &r->comm->run : &r->comm->near_sum;
    size_t count;
    char *data;

    if (r->comm->map.run_n == 1 || j < 0 || j >= (int64_t)r->pieces)
        return DP_OK;
    data = piece_at(r, j, &count);
    return run->vt->all_reduce(run->comm, data, count, r->dtype, r->s);
}

static dp_status_t walk_pieces(const sum_t *r)
{
    dp__mixed_sums_t *sums = &r->comm->sums;
    const dp__mixed_map_t *m = &r->comm->map;
    int64_t forward = (int64_t)m->run * sums->lag,
            back = (int64_t)(m->runs - 1 + m->far_hops) * sums->lag + m->near_hops;

    for (int64_t t = 0; t <= (int64_t)r->pieces + back; t++) {
        DO(give_piece(r, &sums->to_run, t - 1 - forward));
        DO(take_piece(r, &sums->from_run, t - forward, true));
        for (int32_t i = 0; i < m->nchildren; i++)
            DO(give_piece(r, &sums->to_child[i], t - 1 - back));
        DO(take_piece(r, &sums->from_parent, t - back, false));
        DO(sum_run(r, t - forward));
    }
    return DP_OK;
}

static size_t unit_of(dp_dtype_t dtype)
{
    return dtype == DP_F32 ? sizeof(float) : sizeof(double);
}

/* Integers are counted, not trained with: their sums are short, and one level does. */
dp_status_t dp__mixed_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    dp__mixed_part_t *alone = comm->alone != NULL ? comm->alone : &comm->far;
    sum_t r = {.comm = comm, .data = data, .count = count, .unit = unit_of(dtype), .dtype = dtype, .s = s};

    if (comm->alone != NULL || (dtype != DP_F32 && dtype != DP_F64))
        return alone->vt->all_reduce(alone->comm, data, count, dtype, s);
    r.piece = comm->sums.piece_bytes / r.unit;
    r.pieces = count > 0 ? (count - 1) / r.piece + 1 : 1; /* an empty sum meets the others, too */
    return walk_pieces(&r);
}
