/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * areas.h: what a rank's memory is divided into, as its peers read it: a directory, of which
 * nothing is believed before it has been checked. Transports that put into host memory of their
 * peers share it. */
#ifndef PLUGINS_COMM_AREAS_H
#define PLUGINS_COMM_AREAS_H

#include "calls.h"

#define NAME_BYTES  80
#define LABEL_BYTES 64
#define AREAS_MAX   65536
/* rounds of a dissemination barrier: enough for 2^16 ranks */
#define MEET_ROUNDS 16
#define RANKS_MAX   (1 << MEET_ROUNDS)

typedef enum area_kind { AREA_BASE = 1, AREA_SLOTS = 2, AREA_CREDIT = 3, AREA_ROWS = 4 } area_kind_t;

/* A directory entry. Found by kind, id and peer; slots, unit and capacity are what both sides have
 * to agree on. */
typedef struct area {
    uint32_t kind, id;
    int32_t peer; /* for channels: the rank at the other end; else -1 */
    uint32_t slots;
    uint64_t unit;     /* slot_bytes, row_bytes, bytes of a block of all_reduce */
    uint64_t capacity; /* capacity_rows; else 0 */
    uint64_t offset, bytes;
    /* where arrivals are counted by number: the first one in its round, and how many */
    uint32_t bell, bells;
    /* of the device's memory where data are to be put, when they are not behind their head */
    uint64_t data_address;
    uint64_t data_key;
    uint64_t private_offset; /* memory that no peer writes, for our own puts */
    uint64_t private_bytes;
} area_t;

/* Places areas one behind the other from *at on; false when that is beyond reason. */
static inline bool comm_areas_place(area_t *areas, uint32_t count, size_t *at)
{
    for (uint32_t i = 0; i < count; i++) {
        areas[i].offset = *at;
        if (__builtin_add_overflow(*at, comm_round_line(areas[i].bytes), at) || *at > SIZE_MAX / 8)
            return false;
    }
    return count <= AREAS_MAX;
}

/* Who looks into whose directory, as ranks of the job, and for what: "channel 3 "F chunk 0"". */
typedef struct area_search {
    const dp_host_t *host;
    const char *group;
    int32_t us, them;
    const char *what;
} area_search_t;

/* The entry that `expected` describes; DP_ERR_MISMATCH says what differs. */
static inline dp_status_t comm_area_find(const area_search_t *s, const area_t *areas, uint32_t count,
                                         const area_t *expected, const area_t **found_out)
{
    const area_t *found = NULL;

    for (uint32_t i = 0; i < count && found == NULL; i++)
        if (areas[i].kind == expected->kind && areas[i].id == expected->id && areas[i].peer == expected->peer)
            found = &areas[i];
    if (found == NULL)
        return DP_FAIL(s->host, DP_ERR_MISMATCH,
                       "group %s: rank %d has opened %s with rank %d, which has not opened its side", s->group, s->us,
                       s->what, s->them);
    if (found->slots != expected->slots || found->unit != expected->unit || found->capacity != expected->capacity)
        return DP_FAIL(
            s->host, DP_ERR_MISMATCH,
            "group %s, %s: rank %d has %u slots of %llu bytes and capacity %llu, rank %d %u of %llu and %llu", s->group,
            s->what, s->us, expected->slots, (unsigned long long)expected->unit, (unsigned long long)expected->capacity,
            s->them, found->slots, (unsigned long long)found->unit, (unsigned long long)found->capacity);
    if (found->bytes != expected->bytes || found->bells != expected->bells)
        return DP_FAIL(s->host, DP_ERR_PROTOCOL, "group %s, %s: rank %d gives it %llu bytes, %llu were expected",
                       s->group, s->what, s->them, (unsigned long long)found->bytes,
                       (unsigned long long)expected->bytes);
    *found_out = found;
    return DP_OK;
}

#endif
