/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * peers.c: how the ranks of a job hear who the others are. Rank 0 has a row for each. The others
 * are told when all have come, in a row for each run of ranks that are alike, so what they keep
 * grows with the hosts of the job and not with its ranks. On the wire: the machines (how many, then
 * two short texts each), then the rows (how many, then four numbers each: first rank, its process,
 * machine, what it holds). */
#include "base/do.h"
#include "base/memory.h"
#include "group/process.h"

#include <string.h>
#include <unistd.h>

enum { ROW_BYTES = 16 };

dp_status_t dp__peers_open(dp__process_t *p)
{
    const int32_t rows = dp__is_hub(p) ? p->group.size : 0;
    dp__machine_t here;

    dp__host_name(here.host);
    dp__machine_name(here.name);
    p->peers.self = (dp__peer_t){p->group.rank, (int32_t)getpid(), dp__machine_add(p, here.host, here.name), 0};
    p->peers.rows = rows > 0 ? dp__calloc((size_t)rows, sizeof(*p->peers.rows)) : NULL;
    if (p->peers.self.machine < 0 || (rows > 0 && p->peers.rows == NULL))
        return dp_fail(DP_ERR_NOMEM, "rank %d: no memory to join a job of %d ranks", p->group.rank, p->group.size);
    p->peers.count = rows;
    dp__peers_forget(p);
    return DP_OK;
}

/* ---- telling ---- */

static size_t put_machine_text(unsigned char *at, const char *text)
{
    const size_t length = strlen(text);

    at[0] = (unsigned char)length;
    memcpy(at + 1, text, length);
    return 1 + length;
}

static size_t put_peer(unsigned char *at, const dp__peer_t *row)
{
    dp__put_u32(at, (uint32_t)row->rank);
    dp__put_u32(at + 4, (uint32_t)row->pid);
    dp__put_u32(at + 8, (uint32_t)row->machine);
    dp__put_u32(at + 12, row->held);
    return ROW_BYTES;
}

size_t dp__peers_write(const dp__process_t *p, unsigned char **bytes_out)
{
    const size_t machines = (size_t)p->machines.count, most = sizeof(dp__machine_t) + 2;
    unsigned char *table = dp__allocate(4 + machines * most + 4 + (size_t)p->group.size * ROW_BYTES, 16), *count;
    dp__peer_t last = {0};
    uint32_t rows = 0;
    size_t n = 4;

    *bytes_out = table;
    if (table == NULL)
        return 0;
    dp__put_u32(table, (uint32_t)machines);
    for (size_t i = 0; i < machines; i++) {
        n += put_machine_text(table + n, p->machines.all[i].host);
        n += put_machine_text(table + n, p->machines.all[i].name);
    }
    count = table + n;
    n += 4;
    for (int32_t r = 0; r < p->group.size; r++) {
        const dp__peer_t peer = dp__peer(p, r);

        if (r > 0 && peer.machine == last.machine && peer.held == last.held)
            continue;
        n += put_peer(table + n, &peer);
        rows++;
        last = peer;
    }
    dp__put_u32(count, rows);
    return n;
}

/* ---- hearing ---- */

/* A short text with its length in front; false when it is cut off. */
static bool get_text(const unsigned char **at, const unsigned char *end, char *text, size_t room)
{
    size_t length;

    if (end - *at < 1)
        return false;
    length = **at;
    if (length >= room || (size_t)(end - *at) < 1 + length)
        return false;
    memcpy(text, *at + 1, length);
    text[length] = '\0';
    *at += 1 + length;
    return true;
}

static bool get_u32(const unsigned char **at, const unsigned char *end, uint32_t *value_out)
{
    if (end - *at < 4)
        return false;
    *value_out = dp__get_u32(*at);
    *at += 4;
    return true;
}

static dp_status_t get_machines(dp__process_t *p, const unsigned char **at, const unsigned char *end)
{
    uint32_t machines;

    if (!get_u32(at, end, &machines) || machines > (uint32_t)p->group.size)
        return DP_ERR_PROTOCOL;
    p->machines.count = 0; /* they are counted as rank 0 counts them */
    for (uint32_t i = 0; i < machines; i++) {
        dp__machine_t m;

        if (!get_text(at, end, m.host, sizeof(m.host)) || !get_text(at, end, m.name, sizeof(m.name)))
            return DP_ERR_PROTOCOL;
        if (dp__machine_add(p, m.host, m.name) != (int32_t)i)
            return DP_ERR_NOMEM;
    }
    return DP_OK;
}

/* Rows begin with rank 0 and rise. */
static dp_status_t get_rows(dp__process_t *p, const unsigned char **at, const unsigned char *end)
{
    uint32_t rows, rank, pid, machine, held;
    int64_t last = -1;

    if (!get_u32(at, end, &rows) || rows == 0 || rows > (uint32_t)p->group.size)
        return DP_ERR_PROTOCOL;
    dp__free(p->peers.rows);
    p->peers.rows = dp__calloc(rows, sizeof(*p->peers.rows));
    if (p->peers.rows == NULL)
        return DP_ERR_NOMEM;
    for (uint32_t i = 0; i < rows; i++) {
        if (!get_u32(at, end, &rank) || !get_u32(at, end, &pid) || !get_u32(at, end, &machine) ||
            !get_u32(at, end, &held) || rank <= last || (i == 0 && rank != 0) || rank >= (uint32_t)p->group.size ||
            machine >= (uint32_t)p->machines.count)
            return DP_ERR_PROTOCOL;
        p->peers.rows[i] = (dp__peer_t){(int32_t)rank, (int32_t)pid, (int32_t)machine, held};
        last = rank;
    }
    p->peers.count = (int32_t)rows;
    return DP_OK;
}

dp_status_t dp__peers_read(dp__process_t *p, const unsigned char *at, const unsigned char *end)
{
    dp__peer_t *self = &p->peers.self;
    const int32_t pid = self->pid;

    p->peers.count = 0;
    self->machine = -1;
    DO(get_machines(p, &at, end));
    DO(get_rows(p, &at, end));
    self->rank = -1; /* what rank 0 says of us is in a row like that of any other */
    *self = dp__peer(p, p->group.rank);
    self->pid = pid;
    return DP_OK;
}
