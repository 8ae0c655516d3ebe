/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layout.c: where things lie in a rank's block of device memory. */
#include "layout.h"

#define REASON (SIZE_MAX / 8)

size_t ipc_layout_place(area_t *areas, uint32_t count, size_t granularity, size_t *lines_out)
{
    size_t lines = 1, at;

    if (count > AREAS_MAX)
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        areas[i].lines_at = lines * LINE_BYTES;
        if (__builtin_add_overflow(lines, areas[i].lines, &lines) || lines > REASON / LINE_BYTES)
            return 0;
    }
    at = round_up(lines * LINE_BYTES, PAYLOAD_ALIGN);
    for (uint32_t i = 0; i < count; i++) {
        areas[i].payload_at = at;
        if (__builtin_add_overflow(at, areas[i].payload_bytes, &at) || at > REASON)
            return 0;
        at = round_up(at, PAYLOAD_ALIGN);
    }
    *lines_out = lines;
    return round_up(at, granularity);
}

static bool inside(uint64_t at, uint64_t bytes, uint64_t align, uint64_t all)
{
    return at % align == 0 && at >= LINE_BYTES && at <= all && bytes <= all - at;
}

bool ipc_layout_check(const area_t *areas, uint32_t count, uint64_t bytes, uint32_t *bad_out)
{
    for (uint32_t i = 0; i < count; i++)
        if (areas[i].lines > bytes / LINE_BYTES ||
            !inside(areas[i].lines_at, areas[i].lines * LINE_BYTES, LINE_BYTES, bytes) ||
            !inside(areas[i].payload_at, areas[i].payload_bytes, PAYLOAD_ALIGN, bytes)) {
            *bad_out = i;
            return false;
        }
    return true;
}

const area_t *ipc_layout_find(const area_t *areas, uint32_t count, const area_t *expected)
{
    for (uint32_t i = 0; i < count; i++)
        if (areas[i].kind == expected->kind && areas[i].id == expected->id && areas[i].peer == expected->peer)
            return &areas[i];
    return NULL;
}

bool ipc_layout_agrees(const area_t *found, const area_t *expected)
{
    return found->slots == expected->slots && found->unit == expected->unit && found->capacity == expected->capacity &&
           found->lines == expected->lines && found->payload_bytes == expected->payload_bytes;
}

/* ---- base ---- */

static size_t peers_bytes(size_t n)
{
    return round_up(2 * n * sizeof(uint64_t), PAYLOAD_ALIGN);
}

/* The largest slice of a part, whatever the size of an element. */
size_t ipc_base_slice_room(size_t n, size_t part_bytes)
{
    return round_up(part_bytes / n + 8, PAYLOAD_ALIGN);
}

size_t ipc_base_in_at(size_t n, size_t part_bytes, size_t buffer, size_t by)
{
    return peers_bytes(n) + (buffer * n + by) * ipc_base_slice_room(n, part_bytes);
}

size_t ipc_base_out_at(size_t n, size_t part_bytes, size_t buffer)
{
    return ipc_base_in_at(n, part_bytes, 2, 0) + buffer * round_up(part_bytes, PAYLOAD_ALIGN);
}

area_t ipc_base_area(size_t n, size_t part_bytes)
{
    area_t area = {
        .kind = AREA_BASE,
        .peer = -1,
        .unit = part_bytes,
        .lines = base_line_private(n, BASE_PRIVATE),
        .payload_bytes = ipc_base_out_at(n, part_bytes, 2),
    };

    return area;
}

/* ---- channels ---- */

size_t ipc_slot_stride(size_t slot_bytes)
{
    return round_up(slot_bytes, PAYLOAD_ALIGN);
}

bool ipc_channel_layout(bool receiver, uint32_t id, int32_t peer, uint32_t slots, size_t slot_bytes, area_t *area_out)
{
    size_t all;
    area_t area = {
        .kind = receiver ? AREA_SLOTS : AREA_CREDIT,
        .id = id,
        .peer = peer,
        .slots = slots,
        .unit = slot_bytes,
        .lines = receiver ? slots_line_private(slots, SLOTS_PRIVATE) : CREDIT_LINES,
    };

    if (slots < 1 || slot_bytes < 1 || slot_bytes > UINT32_MAX ||
        __builtin_mul_overflow((size_t)slots, ipc_slot_stride(slot_bytes) + LINE_BYTES, &all) || all > REASON)
        return false;
    area.payload_bytes = receiver ? slots * ipc_slot_stride(slot_bytes) : 0;
    *area_out = area;
    return true;
}

/* ---- exchanges ---- */

size_t ipc_rows_counts_at(size_t n, size_t slot)
{
    return peers_bytes(n) + slot * round_up(n * sizeof(int32_t), PAYLOAD_ALIGN);
}

size_t ipc_rows_done_at(size_t n, size_t slots)
{
    return ipc_rows_counts_at(n, slots);
}

size_t ipc_rows_data_at(size_t n, size_t slots)
{
    return ipc_rows_done_at(n, slots) + round_up(n * sizeof(uint32_t), PAYLOAD_ALIGN);
}

size_t ipc_rows_slot_bytes(size_t n, size_t capacity, size_t row_bytes)
{
    return round_up(n * capacity * row_bytes, PAYLOAD_ALIGN);
}

bool ipc_rows_layout(uint32_t id, size_t n, uint32_t slots, uint32_t capacity, size_t row_bytes, area_t *area_out)
{
    size_t all;
    area_t area = {
        .kind = AREA_ROWS,
        .id = id,
        .peer = -1,
        .slots = slots,
        .unit = row_bytes,
        .capacity = capacity,
        .lines = rows_line_private(n, slots, ROWS_PRIVATE),
    };

    if (capacity < 1 || capacity > INT32_MAX || slots < 1 || slots > 65536 ||
        __builtin_mul_overflow(row_bytes, (size_t)capacity, &all) || __builtin_mul_overflow(all, n, &all) ||
        all > REASON || __builtin_mul_overflow(round_up(all, PAYLOAD_ALIGN), (size_t)slots, &all) || all > REASON)
        return false;
    area.payload_bytes = ipc_rows_data_at(n, slots) + slots * ipc_rows_slot_bytes(n, capacity, row_bytes);
    *area_out = area;
    return true;
}
