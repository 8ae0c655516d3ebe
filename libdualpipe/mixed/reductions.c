/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reductions.c: all_reduce over ranks on several hosts, with the bits of a sum on one.
 *
 * The sum of an element is ((r0 + r1) + r2) + ..., and nothing may be added in another order. So
 * the running sum walks along the ranks. Over a run (neighbours on one host) it is a sum of near,
 * to which the run's first rank brings what the runs before have made. From run to run it is a
 * message of far. Behind the last run it is the total, which goes back over a tree: a chain of
 * hosts, in each of them a heap.
 *
 * A long reduction is cut into blocks, and everybody knows when each block is where. Run k works on
 * block j at logical time j + k * lag. A rank that is f hosts and e neighbours below the last run
 * gets the total of block j at time j + (runs - 1 + f) * lag + e. What was made at one time is sent
 * before the next one begins; what a time needs is received before it begins. Then nothing can
 * wait in a circle:
 * - One-sided ways have as many slots as their lag, at least 2. A send waits for the release of
 *   `slots` messages before it, which its receiver made at the sender's time or earlier. A receive
 *   waits for a send of an earlier time, or of the same border between two times when the lag is 1.
 * - Matched ways have lag 1, so both sides reach a transfer at the same border. There every rank
 *   first sends, then receives: the running sum first, then the total. That is one order of all
 *   transfers: by border, then the running sum before the total, then from the last run (the
 *   deepest rank) to the first. All ranks keep to it, one thing after the other.
 * - The sum of a run is at one time for all of its ranks.
 *
 * Cost, of B bytes in a group on H hosts with R runs (R = H when a host's ranks are neighbours, as
 * launchers place them). Between hosts: B down each of R - 1 and up each of H - 1 ways, all of them
 * at once where there are many blocks; a network card carries B in and B out for the sum, and the
 * same for the total. Within a host: what near takes for a sum, and a copy in and out for each
 * rank. Time: about B / bandwidth for long ones, (R + H - 2) times the latency for short ones. One
 * level over far would carry B for each rank of a host. */
#include "base/do.h"
#include "mixed/parts.h"

enum { FORWARD = 0, BACK = 1 }; /* ids of channels */

#define BLOCK_ONE_SIDED ((size_t)256 << 10)
#define BLOCK_MATCHED   ((size_t)1 << 20)
#define BLOCK_LEAST     ((size_t)64)
#define LAG             4 /* blocks between two hosts: 1 MiB hides 10 ms at 1 Gbit/s */
#define SLOTS_LEAST     2

/* ---- setting up ---- */

void dp__mixed_reductions_size(dp_comm_t *comm, size_t reduce_bytes)
{
    bool one_sided = (comm->far_sum.vt->caps & DP_COMM_CAP_ONE_SIDED) != 0;
    dp__mixed_reductions_t *links = &comm->reductions;

    links->lag = one_sided ? LAG : 1;
    links->block_bytes = one_sided ? BLOCK_ONE_SIDED : BLOCK_MATCHED;
    if (reduce_bytes > 0 && reduce_bytes / (size_t)links->lag < links->block_bytes)
        links->block_bytes = reduce_bytes / (size_t)links->lag / BLOCK_LEAST * BLOCK_LEAST;
    if (links->block_bytes < BLOCK_LEAST)
        links->block_bytes = BLOCK_LEAST;
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
        .slots = here || comm->reductions.lag < SLOTS_LEAST ? SLOTS_LEAST : (uint32_t)comm->reductions.lag,
        .slot_bytes = comm->reductions.block_bytes,
        .label = id == FORWARD ? "running sum" : "total of a sum",
    };

    if (peer < 0)
        return DP_OK;
    config.peer = here ? m->near[peer] : m->carries[peer];
    way->vt = part->vt;
    return part->vt->channel_open(part->comm, &config, &way->end);
}

dp_status_t dp__mixed_reductions_connect(dp_comm_t *comm)
{
    const dp__mixed_map_t *m = &comm->map;
    dp__mixed_reductions_t *links = &comm->reductions;

    DO(open_way(comm, FORWARD, m->prev, 0, &links->from_run));
    DO(open_way(comm, FORWARD, m->next, 1, &links->to_run));
    DO(open_way(comm, BACK, m->parent, 0, &links->from_parent));
    for (int32_t i = 0; i < m->nchildren; i++)
        DO(open_way(comm, BACK, m->children[i], 1, &links->to_child[i]));
    return DP_OK;
}

/* ---- a reduction ---- */

typedef struct sum {
    dp_comm_t *comm;
    char *data;
    size_t count, unit, block, blocks; /* elements, bytes of one, elements of a block */
    dp_dtype_t dtype;
    dp_stream_t *s;
} sum_t;

static char *block_at(const sum_t *r, int64_t j, size_t *count_out)
{
    size_t first = (size_t)j * r->block, left = r->count - first;

    *count_out = left < r->block ? left : r->block;
    return r->data + first * r->unit;
}

/* The first message finds out a rank whose reduction is another. */
static dp_message_tag_t tag_of(const sum_t *r, const dp__mixed_way_t *way, size_t count)
{
    return (dp_message_tag_t){.number = way->count,
                              .step = (uint32_t)r->count,
                              .microbatch = (int32_t)r->dtype,
                              .bytes = (uint32_t)(count * r->unit)};
}

static dp_status_t give_block(const sum_t *r, dp__mixed_way_t *way, int64_t j)
{
    dp_message_tag_t tag;
    size_t count;
    const char *data;

    if (way->end == NULL || j < 0 || j >= (int64_t)r->blocks)
        return DP_OK;
    data = block_at(r, j, &count);
    tag = tag_of(r, way, count);
    DO(way->vt->send(way->end, data, &tag, r->s));
    way->count++;
    return DP_OK;
}

/* Adds what comes to our block, or puts it in its place. */
static dp_status_t take_block(const sum_t *r, dp__mixed_way_t *way, int64_t j, bool add)
{
    const dp_device_vt_t *device = r->comm->device_vt;
    dp_message_tag_t tag;
    const void *from;
    size_t count;
    char *data;

    if (way->end == NULL || j < 0 || j >= (int64_t)r->blocks)
        return DP_OK;
    data = block_at(r, j, &count);
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

    if (r->comm->map.run_n == 1 || j < 0 || j >= (int64_t)r->blocks)
        return DP_OK;
    data = block_at(r, j, &count);
    return run->vt->all_reduce(run->comm, data, count, r->dtype, r->s);
}

static dp_status_t walk_blocks(const sum_t *r)
{
    dp__mixed_reductions_t *links = &r->comm->reductions;
    const dp__mixed_map_t *m = &r->comm->map;
    int64_t forward = (int64_t)m->run * links->lag,
            back = (int64_t)(m->runs - 1 + m->far_hops) * links->lag + m->near_hops;

    for (int64_t t = 0; t <= (int64_t)r->blocks + back; t++) {
        DO(give_block(r, &links->to_run, t - 1 - forward));
        DO(take_block(r, &links->from_run, t - forward, true));
        for (int32_t i = 0; i < m->nchildren; i++)
            DO(give_block(r, &links->to_child[i], t - 1 - back));
        DO(take_block(r, &links->from_parent, t - back, false));
        DO(sum_run(r, t - forward));
    }
    return DP_OK;
}

static size_t unit_of(dp_dtype_t dtype)
{
    return dtype == DP_F32 ? sizeof(float) : sizeof(double);
}

/* Integers are counts, not trained values: such a reduction is short, and one level does. */
dp_status_t dp__mixed_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    dp__mixed_part_t *alone = comm->alone != NULL ? comm->alone : &comm->far;
    sum_t r = {.comm = comm, .data = data, .count = count, .unit = unit_of(dtype), .dtype = dtype, .s = s};

    if (comm->alone != NULL || (dtype != DP_F32 && dtype != DP_F64))
        return alone->vt->all_reduce(alone->comm, data, count, dtype, s);
    r.block = comm->reductions.block_bytes / r.unit;
    /* an empty one waits for the others, too */
    r.blocks = count > 0 ? (count - 1) / r.block + 1 : 1;
    return walk_blocks(&r);
}
