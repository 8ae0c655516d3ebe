/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * told_spans.c: the last spans of ranks whose flight recorders rank 0 cannot read. A rank tells
 * its own, and those of ranks of its host that cannot. Payload: the sender's time (8 bytes),
 * then for each row the rank and how many bytes (4 each), and the packed row. */
#include "base/memory.h"
#include "group/process.h"
#include "timeline/pack.h"
#include "timeline/timeline.h"

#include <endian.h>
#include <string.h>

enum { HEAD = 8, ROW_HEAD = 8, MOST_ROWS = 128, ROW_MOST = 7 * 1024 };
_Static_assert(MOST_ROWS *ROW_MOST + 4096 < DP__FRAME_SEALED_BYTES, "the last spans are one frame");

/* Of the ranks of this host that can, the first one tells of those that cannot. */
static bool tells_of(const dp__process_t *p, int32_t rank)
{
    if (rank == p->group.rank)
        return true;
    if (!dp__is_near(p, rank) || dp__stands_still(p, rank) == '\0')
        return false;
    for (int32_t r = 0; r < p->group.rank; r++)
        if (dp__is_near(p, r) && dp__stands_still(p, r) == '\0')
            return false;
    return true;
}

/* 0: nothing is known, or it does not fit. */
static size_t write_row(dp__process_t *p, int32_t rank, unsigned char *at)
{
    dp_timeline_t *row;
    size_t bytes = 0;

    if (dp_timeline_create(1, DP__LAST_SPANS, &row) < 0)
        return 0;
    if (dp__last_spans_take(p->recorders, rank, row, 0) && dp__timeline_pack(row, 0, NULL, &bytes) >= 0 &&
        bytes <= ROW_MOST - ROW_HEAD && dp__timeline_pack(row, 0, at + ROW_HEAD, &bytes) >= 0) {
        dp__put_u32(at, (uint32_t)rank);
        dp__put_u32(at + 4, (uint32_t)bytes);
        bytes += ROW_HEAD;
    } else
        bytes = 0;
    dp_timeline_free(row);
    return bytes;
}

size_t dp__told_spans_write(dp__process_t *p, unsigned char **bytes_out)
{
    const uint64_t now = htole64((uint64_t)dp__now_ns());
    size_t used = HEAD, rows = 0;

    for (int32_t r = 0; r < p->group.size; r++)
        rows += rows < MOST_ROWS && tells_of(p, r);
    *bytes_out = dp__allocate(HEAD + rows * ROW_MOST, 16);
    if (*bytes_out == NULL)
        return 0;
    memcpy(*bytes_out, &now, HEAD);
    for (int32_t r = 0; r < p->group.size && rows > 0; r++)
        if (tells_of(p, r)) {
            used += write_row(p, r, *bytes_out + used);
            rows--;
        }
    return used;
}

/* Their clock is known by the round trip of the question, which is its bound. */
static void shift(dp__process_t *p, int32_t rank, int64_t told_ns)
{
    const int64_t asked = p->hub.hang_report.asked_ns, now = dp__now_ns(), offset = asked + (now - asked) / 2 - told_ns;
    dp__row_t *row = &p->last.timeline->rows[rank];

    for (int64_t i = 0; i < row->count; i++) {
        dp_span_t *span = &row->spans[i];

        if (__builtin_add_overflow(span->start_ns, offset, &span->start_ns) ||
            __builtin_add_overflow(span->end_ns, offset, &span->end_ns) || span->start_ns < 0) {
            row->count = 0; /* no clock of a rank has been there */
            return;
        }
    }
    row->clock = (dp_row_clock_t){.struct_size = sizeof(row->clock),
                                  .host = dp__peer(p, rank).machine,
                                  .offset_ns = offset,
                                  .bound_ns = (now - asked + 1) / 2};
}

/* Whoever tells of itself knows best. */
static bool wanted(const dp__process_t *p, int32_t from, int32_t rank)
{
    return p->last.timeline != NULL && !dp__is_near(p, rank) &&
           (rank == from || p->last.timeline->rows[rank].count == 0);
}

bool dp__told_spans_read(dp__process_t *p, int32_t rank, const unsigned char *at, const unsigned char *end)
{
    uint64_t told;

    if (at == end)
        return true;
    if (end - at < HEAD)
        return false;
    memcpy(&told, at, HEAD);
    told = le64toh(told);
    for (at += HEAD; at < end; at += dp__get_u32(at + 4) + ROW_HEAD) {
        dp_status_t status;
        int32_t of;

        if (end - at < ROW_HEAD || dp__get_u32(at + 4) > (size_t)(end - at) - ROW_HEAD ||
            dp__get_u32(at) >= (uint32_t)p->group.size || told > INT64_MAX)
            return false;
        of = (int32_t)dp__get_u32(at);
        if (of != rank && !dp__same_machine(p, of, rank))
            return false;
        if (!wanted(p, rank, of))
            continue;
        status = dp__timeline_unpack(p->last.timeline, of, at + ROW_HEAD, dp__get_u32(at + 4));
        if (status == DP_ERR_PROTOCOL)
            return false;
        if (status >= 0)
            shift(p, of, (int64_t)told);
    }
    return true;
}
