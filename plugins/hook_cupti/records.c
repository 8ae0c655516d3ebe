/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * records.c: see records.h. */
#include "records.h"

#include <string.h>

void cupti_records_init(cupti_records_t *r, cupti_records_entry_t *entries, uint32_t room, cupti_records_link_t *links,
                        uint32_t link_room)
{
    *r = (cupti_records_t){.entries = entries, .links = links, .room = room, .link_room = link_room};
    memset(links, 0, link_room * sizeof(*links));
}

static uint32_t link_place(const cupti_records_t *r, uint32_t correlation)
{
    return (correlation * 2654435761u) & (r->link_room - 1);
}

/* The link of a correlation number, or the free place for it; NULL: all are taken. */
static cupti_records_link_t *find_link(const cupti_records_t *r, uint32_t correlation)
{
    for (uint32_t i = 0, at = link_place(r, correlation); i < r->link_room; i++, at = (at + 1) & (r->link_room - 1))
        if (!r->links[at].used || r->links[at].correlation == correlation)
            return &r->links[at];
    return NULL;
}

/* Nested ranges give a call several tags: the last one told is the innermost. */
void cupti_records_link(cupti_records_t *r, uint32_t correlation, uint64_t tag)
{
    cupti_records_link_t *link = find_link(r, correlation);

    if (link == NULL || (!link->used && r->nlinks >= r->link_room / 4 * 3)) {
        r->lost++;
        return;
    }
    r->nlinks += !link->used;
    *link = (cupti_records_link_t){correlation, 1, tag};
}

void cupti_records_add(cupti_records_t *r, const dp_activity_t *activity, uint32_t correlation)
{
    if (r->count == r->room) {
        r->lost++;
        return;
    }
    r->entries[r->count++] = (cupti_records_entry_t){.activity = *activity, .correlation = correlation};
}

static uint64_t tag_of_entry(const cupti_records_t *r, const cupti_records_entry_t *e)
{
    const cupti_records_link_t *link = find_link(r, e->correlation);

    return link != NULL && link->used ? link->tag : 0;
}

/* Insertion from the end: the tool hands over almost in order. */
static void insert_sorted(dp_activity_t *out, size_t count, const dp_activity_t *a)
{
    size_t at = count;

    for (; at > 0 && out[at - 1].start_ns > a->start_ns; at--)
        out[at] = out[at - 1];
    out[at] = *a;
}

size_t cupti_records_take(cupti_records_t *r, uint16_t owner, int64_t offset_ns, dp_activity_t *out, size_t room)
{
    size_t count = 0;

    for (uint32_t i = 0; i < r->count && count < room; i++) {
        cupti_records_entry_t *e = &r->entries[i];
        uint64_t tag = e->taken ? 0 : tag_of_entry(r, e);
        dp_activity_t a;

        if (tag == 0 || tag >> 48 != owner)
            continue;
        a = e->activity;
        a.operation = tag & DP_PROFILER_OPERATION_MAX;
        a.start_ns += offset_ns;
        a.end_ns += offset_ns;
        insert_sorted(out, count++, &a);
        e->taken = 1;
    }
    return count;
}

void cupti_records_sweep(cupti_records_t *r, const uint8_t open_owners[65536 / 8])
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < r->count; i++) {
        uint64_t tag = r->entries[i].taken ? 0 : tag_of_entry(r, &r->entries[i]);
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
