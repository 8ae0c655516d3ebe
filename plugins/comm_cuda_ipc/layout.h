/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layout.h: where things lie in a rank's block of device memory. No CUDA here.
 *
 * A block is [lines][payloads]. A line is a 32-bit word, or a few, alone in 128 bytes: nobody's
 * polling disturbs anybody else's. Each area of a block has some lines and some payload; peers find
 * an area by kind, id and rank in the directory that its owner tells them, and believe nothing of
 * it before it has been checked. */
#ifndef COMM_CUDA_IPC_LAYOUT_H
#define COMM_CUDA_IPC_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINE_BYTES    128
#define PAYLOAD_ALIGN 256
#define AREAS_MAX     65536

typedef enum area_kind { AREA_BASE = 1, AREA_SLOTS = 2, AREA_CREDIT = 3, AREA_ROWS = 4 } area_kind_t;

/* A directory entry, as peers read it. */
typedef struct area {
    uint32_t kind, id;
    int32_t peer; /* for channels: the rank at the other end; else -1 */
    uint32_t slots;
    uint64_t unit;     /* slot_bytes, row_bytes, bytes of a part of all_reduce */
    uint64_t capacity; /* capacity_rows; else 0 */
    uint64_t lines;    /* how many */
    uint64_t payload_bytes;
    uint64_t lines_at, payload_at; /* bytes from the start of the block */
} area_t;

/* Gives areas their places, from line 1 on (line 0 is the block's own); the size of the block in
 * multiples of `granularity`, or 0 when it is beyond reason. *lines_out: lines of the block. */
size_t ipc_layout_place(area_t *areas, uint32_t count, size_t granularity, size_t *lines_out);
/* Whether a peer's directory stays within `bytes`. *bad_out: the first entry that does not. */
bool ipc_layout_check(const area_t *areas, uint32_t count, uint64_t bytes, uint32_t *bad_out);
/* The entry that `expected` describes, by kind, id and peer; NULL when there is none. */
const area_t *ipc_layout_find(const area_t *areas, uint32_t count, const area_t *expected);
/* Whether both sides made the same thing of it. */
bool ipc_layout_agrees(const area_t *found, const area_t *expected);

/* Lines of AREA_BASE for n ranks: staged[n], summed[n], heads[2][n], and two of the owner's. */
enum { BASE_TAKEN, BASE_PARTS, BASE_PRIVATE };
static inline size_t base_line_staged(size_t n, size_t by)
{
    (void)n;
    return by;
}
static inline size_t base_line_summed(size_t n, size_t by)
{
    return n + by;
}
static inline size_t base_line_head(size_t n, size_t buffer, size_t by)
{
    return 2 * n + buffer * n + by;
}
static inline size_t base_line_private(size_t n, size_t which)
{
    return 4 * n + which;
}
/* Payload of AREA_BASE: peers[2 * n] (addresses of lines and payload by rank), in[2][n][slice],
 * out[2][part]. */
size_t ipc_base_slice_room(size_t n, size_t part_bytes);
size_t ipc_base_in_at(size_t n, size_t part_bytes, size_t buffer, size_t by);
size_t ipc_base_out_at(size_t n, size_t part_bytes, size_t buffer);
area_t ipc_base_area(size_t n, size_t part_bytes);

/* Lines of AREA_SLOTS: published, heads[slots] (the tag), and three of the owner's. Payload:
 * data[slots]. */
enum { SLOTS_RECEIVED, SLOTS_CURSOR, SLOTS_RELEASED, SLOTS_PRIVATE };
static inline size_t slots_line_head(size_t slot)
{
    return 1 + slot;
}
static inline size_t slots_line_private(size_t slots, size_t which)
{
    return 1 + slots + which;
}
size_t ipc_slot_stride(size_t slot_bytes);
/* Lines of AREA_CREDIT: credit, and the owner's two. */
enum { CREDIT_CREDIT, CREDIT_SENT, CREDIT_CURSOR, CREDIT_LINES };
/* The area of one side of a channel; false when its size overflows. */
bool ipc_channel_layout(bool receiver, uint32_t id, int32_t peer, uint32_t slots, size_t slot_bytes, area_t *area_out);

/* Lines of AREA_ROWS: credit[n], arrived[n], heads[slots][n] (number and rows), and three of the
 * owner's. */
enum { ROWS_EXCHANGED, ROWS_CURSOR, ROWS_RELEASED, ROWS_PRIVATE };
static inline size_t rows_line_credit(size_t n, size_t by)
{
    (void)n;
    return by;
}
static inline size_t rows_line_arrived(size_t n, size_t by)
{
    return n + by;
}
static inline size_t rows_line_head(size_t n, size_t slot, size_t by)
{
    return 2 * n + slot * n + by;
}
static inline size_t rows_line_private(size_t n, size_t slots, size_t which)
{
    return 2 * n + slots * n + which;
}
/* Payload of AREA_ROWS: peers[2 * n], counts[slots][n], done[n], rows[slots][n][capacity]. */
size_t ipc_rows_counts_at(size_t n, size_t slot);
size_t ipc_rows_done_at(size_t n, size_t slots);
size_t ipc_rows_slot_bytes(size_t n, size_t capacity, size_t row_bytes);
size_t ipc_rows_data_at(size_t n, size_t slots);
bool ipc_rows_layout(uint32_t id, size_t n, uint32_t slots, uint32_t capacity, size_t row_bytes, area_t *area_out);

static inline size_t round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

#endif
