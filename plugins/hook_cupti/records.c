/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * records.c: see records.h. */
#include "records.h"

#include <string.h>

void records_init(records_t *r, records_entry_t *entries, uint32_t room, records_link_t *links, uint32_t link_room)
{
    *r = (records_t){.entries = entries, .links = links, .room = room, .link_room = link_room};
    memset(links, 0, link_room * sizeof(*links));
}

static uint32_t place(const records_t *r, uint32_t correlation)
{
    return (correlation * 2654435761u) & (r->link_room - 1);
}

/* The link of a correlation number, or the free place for it; NULL: all are taken. */
static records_link_t *find(const records_t *r, uint32_t correlation)
{
    for (uint32_t i = 0, at = place(r, correlation); i < r->link_room; i++, at = (at + 1) & (r->link_room - 1))
        if (!r->links[at].used || r->links[at].correlation == correlation)
            return &r->links[at];
    return NULL;
}

/* Nested ranges give a call several tags: the last one told is the innermost. */
void records_link(records_t *r, uint32_t correlation, uint64_t tag)
{
    records_link_t *link = find(r, correlation);

    if (link == NULL || (!link->used && r->nlinks >= r->link_room / 4 * 3)) {
        r->lost++;
        return;
    }
    r->nlinks += !link->used;
    *link = (records_link_t){correlation, 1, tag};
}

void records_add(records_t *r, const dp_activity_t *activity, uint32_t correlation)
{
    if (r->count == r->room) {
        r->lost++;
        return;
    }
    r->entries[r->count++] = (records_entry_t){.activity = *activity, .correlation = correlation};
}

static uint64_t tag_of(const records_t *r, const records_entry_t *e)
{
    const records_link_t *link = find(r, e->correlation);

    return link != NULL && link->used ? link->tag : 0;
}

/* Insertion from the end: the tool hands over almost in order. */
static void insert(dp_activity_t *out, size_t count, const dp_activity_t *a)
{
    size_t at = count;

    for (; at > 0 && out[at - 1].start_ns > a->start_ns; at--)
        out[at] = out[at - 1];
    out[at] = *a;
}

size_t records_take(records_t *r, uint16_t owner, int64_t offset_ns, dp_activity_t *out, size_t room)
{
    size_t count = 0;

    for (uint32_t i = 0; i < r->count && count < room; i++) {
        records_entry_t *e = &r->entries[i];
        uint64_t tag = e->taken ? 0 : tag_of(r, e);
        dp_activity_t a;

        if (tag == 0 || tag >> 48 != owner)
            continue;
        a = e->activity;
        a.operation = tag & DP_PROFILER_OPERATION_MAX;
        a.start_ns += offset_ns;
        a.end_ns += offset_ns;
        insert(out, count++, &a);
        e->taken = 1;
    }
    return count;
}

void records_sweep(records_t *r, const uint8_t open_owners[65536 / 8])
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < r->count; i++) {
        uint64_t tag = r->entries[i].taken ? 0 : tag_of(r, &r->entries[i]);
        uint32_t owner = (uint32_t)(tag >> 48);

        if (tag != 0 && open_owners[owner / 8] >> owner % 8 & 1)
            r->entries[kept++] = r->entries[i];
    }
    r->count = kept;
    if (kept == 0) {
        memset(r->links, 0, r->link_room * sizeof(*r->links));
        r->nlinks = 0;
    }
}
