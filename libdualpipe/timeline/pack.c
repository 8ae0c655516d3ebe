/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * pack.c: one row as bytes and back. Layout: magic, version, names, spans, lost (8 bytes each but
 * the first two, which take 4), the names with a length byte before each, then the spans field by
 * field, all in the writer's byte order. */
#include <string.h>

#include "base/memory.h"
#include "timeline/pack.h"
#include "timeline/timeline.h"

#define MAGIC        0x4c545044u /* "DPTL" where the low byte comes first */
#define VERSION      2u
#define HEADER_BYTES 32
#define SPAN_BYTES   48

typedef struct cursor {
    unsigned char *at;
} cursor_t;

static void put_bytes(cursor_t *to, const void *value, size_t bytes)
{
    memcpy(to->at, value, bytes);
    to->at += bytes;
}

static void get_bytes(const unsigned char **from, void *value, size_t bytes)
{
    memcpy(value, *from, bytes);
    *from += bytes;
}

#define SPAN_FIELDS(X)                                                                                                 \
    X(start_ns)                                                                                                        \
    X(end_ns)                                                                                                          \
    X(flow) X(step) X(microbatch) X(chunk) X(stage) X(segment) X(kind) X(lane) X(pass) X(pair) X(name) X(busy_ns)

static void put_span(cursor_t *to, const dp_span_t *span)
{
#define PUT(field) put_bytes(to, &span->field, sizeof(span->field));
    SPAN_FIELDS(PUT)
#undef PUT
}

static void get_span(const unsigned char **from, dp_span_t *span)
{
#define GET(field) get_bytes(from, &span->field, sizeof(span->field));
    SPAN_FIELDS(GET)
#undef GET
}

static bool packed_size(const dp_timeline_t *timeline, const dp__row_t *row, size_t *size_out)
{
    size_t names = 0, spans;

    for (int32_t n = 1; n <= timeline->nnames; n++)
        names += 1 + strlen(timeline->names[n]);
    return dp__mul((size_t)row->count, SPAN_BYTES, &spans) && dp__add(spans, names + HEADER_BYTES, size_out);
}

dp_status_t dp__timeline_pack(const dp_timeline_t *timeline, int32_t rank, void *buffer, size_t *bytes)
{
    uint32_t magic = MAGIC, version = VERSION;
    uint64_t counts[3];
    const dp__row_t *row;
    cursor_t to = {buffer};
    size_t size;

    if (timeline == NULL || bytes == NULL || rank < 0 || rank >= timeline->ranks)
        return dp_fail(DP_ERR_INVALID, "timeline: there is no row for rank %d", rank);
    row = &timeline->rows[rank];
    if (!packed_size(timeline, row, &size))
        return dp_fail(DP_ERR_OVERFLOW, "timeline: rank %d: %lld spans are too many to pack", rank,
                       (long long)row->count);
    if (buffer == NULL) {
        *bytes = size;
        return DP_OK;
    }
    if (*bytes < size)
        return dp_fail(DP_ERR_INVALID, "timeline: rank %d packs into %zu bytes, the buffer has %zu", rank, size,
                       *bytes);
    *bytes = size;
    put_bytes(&to, &magic, sizeof(magic));
    put_bytes(&to, &version, sizeof(version));
    counts[0] = (uint64_t)timeline->nnames;
    counts[1] = (uint64_t)row->count;
    counts[2] = (uint64_t)row->lost;
    put_bytes(&to, counts, sizeof(counts));
    for (int32_t n = 1; n <= timeline->nnames; n++) {
        unsigned char length = (unsigned char)strlen(timeline->names[n]);

        put_bytes(&to, &length, 1);
        put_bytes(&to, timeline->names[n], length);
    }
    for (int64_t i = 0; i < row->count; i++)
        put_span(&to, &row->spans[i]);
    return DP_OK;
}

typedef struct packed {
    uint64_t nnames, count, lost;
    const unsigned char *names, *spans;
} packed_t;

/* Finds the parts of packed bytes, all inside the buffer, none left over; NULL, or the fault. */
static const char *open_packed(const unsigned char *at, size_t bytes, packed_t *packed)
{
    const unsigned char *end = at + bytes;
    uint32_t magic, version;

    if (bytes < HEADER_BYTES)
        return "they are too short";
    get_bytes(&at, &magic, sizeof(magic));
    get_bytes(&at, &version, sizeof(version));
    if (magic != MAGIC || version != VERSION)
        return "they are not a packed row of this version";
    get_bytes(&at, &packed->nnames, 8);
    get_bytes(&at, &packed->count, 8);
    get_bytes(&at, &packed->lost, 8);
    if (packed->nnames > DP__TIMELINE_NAMES)
        return "there are too many names";
    if (packed->lost > INT64_MAX / 2)
        return "the number of lost spans is out of bounds";
    packed->names = at;
    for (uint64_t n = 0; n < packed->nnames; n++) {
        if (at == end || *at == 0 || *at >= end - at || memchr(at + 1, 0, *at) != NULL)
            return "a name is cut or empty";
        at += 1 + *at;
    }
    packed->spans = at;
    if (packed->count != (uint64_t)(end - at) / SPAN_BYTES || (size_t)(end - at) % SPAN_BYTES != 0)
        return "the number of spans does not fit their size";
    return NULL;
}

static const char *check_spans(const packed_t *packed)
{
    const unsigned char *at = packed->spans;

    for (uint64_t i = 0; i < packed->count; i++) {
        dp_span_t span;
        const char *fault;

        get_span(&at, &span);
        fault = dp__span_fault(&span, (int32_t)packed->nnames);
        if (fault != NULL)
            return "a span is out of bounds";
    }
    return NULL;
}

/* map[n]: our number of the writer's name n. */
static dp_status_t adopt_names(dp_timeline_t *timeline, const packed_t *packed, uint16_t *map)
{
    const unsigned char *at = packed->names;

    map[0] = 0;
    for (uint64_t n = 1; n <= packed->nnames; n++) {
        char text[DP__TIMELINE_NAME_BYTES + 1];
        size_t length = *at;
        dp_status_t status;

        memcpy(text, at + 1, length);
        text[length] = 0;
        at += 1 + length;
        status = dp_timeline_name(timeline, text, &map[n]);
        if (status < 0)
            return status;
    }
    return DP_OK;
}

dp_status_t dp__timeline_unpack(dp_timeline_t *timeline, int32_t rank, const void *buffer, size_t bytes)
{
    uint16_t map[DP__TIMELINE_NAMES + 1];
    const unsigned char *at;
    const char *fault;
    packed_t packed;
    dp__row_t *row;
    dp_status_t status;

    if (timeline == NULL || buffer == NULL || rank < 0 || rank >= timeline->ranks)
        return dp_fail(DP_ERR_INVALID, "timeline: there is no row for rank %d", rank);
    fault = open_packed(buffer, bytes, &packed);
    if (fault == NULL)
        fault = check_spans(&packed);
    if (fault != NULL)
        return dp_fail(DP_ERR_PROTOCOL, "timeline: rank %d: %zu packed bytes are refused: %s", rank, bytes, fault);
    status = adopt_names(timeline, &packed, map);
    if (status < 0)
        return status;
    row = &timeline->rows[rank];
    row->count = packed.count < (uint64_t)row->room ? (int64_t)packed.count : row->room;
    row->lost = (int64_t)packed.lost + ((int64_t)packed.count - row->count);
    at = packed.spans;
    for (int64_t i = 0; i < row->count; i++) {
        get_span(&at, &row->spans[i]);
        row->spans[i].name = map[row->spans[i].name];
    }
    if ((uint64_t)row->count < packed.count)
        return dp_fail(DP_ERR_OVERFLOW, "timeline: rank %d has room for %lld of %llu packed spans", rank,
                       (long long)row->room, (unsigned long long)packed.count);
    return DP_OK;
}
