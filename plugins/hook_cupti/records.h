/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * records.h: activities on their way from the tool to whoever collects them. The tool hands over
 * two kinds of records in any order: "the call with this correlation number belongs to that tag",
 * and "this ran, and came from the call with this number". */
#ifndef HOOK_CUPTI_RECORDS_H
#define HOOK_CUPTI_RECORDS_H

#include <dualpipe/profiler.h>

typedef struct cupti_records_link {
    uint32_t correlation;
    uint32_t used;
    uint64_t tag;
} cupti_records_link_t;

typedef struct cupti_records_entry {
    dp_activity_t activity;
    uint32_t correlation;
    uint32_t taken;
} cupti_records_entry_t;

/* All memory is the caller's; nothing locks. */
typedef struct cupti_records {
    cupti_records_entry_t *entries; /* [room], in the order they came */
    cupti_records_link_t *links;    /* [link_room], open addressing; a power of two */
    uint32_t room, count;
    uint32_t link_room, nlinks;
    uint64_t lost;
} cupti_records_t;

/* link_room: a power of two. */
void cupti_records_init(cupti_records_t *r, cupti_records_entry_t *entries, uint32_t room, cupti_records_link_t *links,
                        uint32_t link_room);
void cupti_records_link(cupti_records_t *r, uint32_t correlation, uint64_t tag);
void cupti_records_add(cupti_records_t *r, const dp_activity_t *activity, uint32_t correlation);
/* Gives out activities with `owner` in the tag's upper 16 bits, by start, moved by offset_ns. */
size_t cupti_records_take(cupti_records_t *r, uint16_t owner, int64_t offset_ns, dp_activity_t *out, size_t room);
/* Drops what belongs to none of the owners set, and links that nothing waits for. */
void cupti_records_sweep(cupti_records_t *r, const uint8_t open_owners[65536 / 8]);

static inline uint64_t cupti_records_tag(uint16_t owner, uint64_t operation)
{
    return (uint64_t)owner << 48 | operation;
}

#endif
