/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_ipc_layout.c: areas of a block of comm_cuda_ipc: nothing overlaps, and a peer's directory is
 * not believed. */
#include "comm_cuda_ipc/layout.h"

#include <string.h>

#include "tests/support/suite.h"

#define COUNT 5

static size_t make_areas(area_t areas[COUNT])
{
    size_t lines, bytes;

    areas[0] = ipc_base_area(3, 5000);
    ck_assert(ipc_channel_layout(true, 1, 2, 3, 1001, &areas[1]));
    ck_assert(ipc_channel_layout(false, 1, 2, 3, 1001, &areas[2]));
    ck_assert(ipc_rows_layout(7, 3, 2, 5, 48, &areas[3]));
    ck_assert(ipc_channel_layout(true, 1, 0, 1, 1, &areas[4]));
    bytes = ipc_layout_place(areas, COUNT, 4096, &lines);
    ck_assert_uint_gt(bytes, 0);
    ck_assert_uint_eq(bytes % 4096, 0);
    return bytes;
}

static void mark(unsigned char *map, uint64_t at, uint64_t bytes, size_t all)
{
    ck_assert_uint_le(at + bytes, all);
    for (uint64_t i = at; i < at + bytes; i++)
        ck_assert_uint_eq(map[i]++, 0);
}

START_TEST(areas_do_not_overlap)
{
    area_t areas[COUNT];
    size_t bytes = make_areas(areas);
    unsigned char *map = calloc(1, bytes);
    uint32_t bad;

    mark(map, 0, LINE_BYTES, bytes); /* the block's own line */
    for (int i = 0; i < COUNT; i++) {
        ck_assert_uint_eq(areas[i].lines_at % LINE_BYTES, 0);
        ck_assert_uint_eq(areas[i].payload_at % PAYLOAD_ALIGN, 0);
        mark(map, areas[i].lines_at, areas[i].lines * LINE_BYTES, bytes);
        mark(map, areas[i].payload_at, areas[i].payload_bytes, bytes);
    }
    ck_assert(ipc_layout_check(areas, COUNT, bytes, &bad));
    free(map);
}
END_TEST

/* No two words or rows of an exchange share a place, and all lie within what the area asks for. */
START_TEST(parts_of_areas_do_not_overlap)
{
    enum { N = 4, SLOTS = 3, CAPACITY = 5, ROW = 48, PART = 4352 };
    unsigned char *map = calloc(1, 1 << 20);
    area_t area;
    size_t line = 0;

    ck_assert(ipc_rows_layout(0, N, SLOTS, CAPACITY, ROW, &area));
    for (size_t p = 0; p < N; p++) {
        mark(map, rows_line_credit(N, p), 1, area.lines);
        mark(map, rows_line_arrived(N, p), 1, area.lines);
        for (size_t s = 0; s < SLOTS; s++)
            mark(map, rows_line_head(N, s, p), 1, area.lines);
    }
    for (size_t w = 0; w < ROWS_PRIVATE; w++)
        mark(map, rows_line_private(N, SLOTS, w), 1, area.lines);
    while (line < area.lines)
        ck_assert_uint_eq(map[line++], 1);
    memset(map, 0, 1 << 20);
    mark(map, 0, 2 * N * sizeof(uint64_t), area.payload_bytes);
    mark(map, ipc_rows_done_at(N, SLOTS), N * 4, area.payload_bytes);
    for (size_t s = 0; s < SLOTS; s++) {
        mark(map, ipc_rows_counts_at(N, s), N * 4, area.payload_bytes);
        mark(map, ipc_rows_data_at(N, SLOTS) + s * ipc_rows_slot_bytes(N, CAPACITY, ROW), N * CAPACITY * ROW,
             area.payload_bytes);
    }
    memset(map, 0, 1 << 20);
    area = ipc_base_area(N, PART);
    for (size_t p = 0; p < N; p++) {
        mark(map, base_line_staged(N, p), 1, area.lines);
        mark(map, base_line_summed(N, p), 1, area.lines);
        mark(map, base_line_head(N, 0, p), 1, area.lines);
        mark(map, base_line_head(N, 1, p), 1, area.lines);
    }
    for (size_t w = 0; w < BASE_PRIVATE; w++)
        mark(map, base_line_private(N, w), 1, area.lines);
    memset(map, 0, 1 << 20);
    mark(map, 0, 2 * N * sizeof(uint64_t), area.payload_bytes);
    for (size_t b = 0; b < 2; b++) {
        for (size_t p = 0; p < N; p++)
            mark(map, ipc_base_in_at(N, PART, b, p), ipc_base_slice_room(N, PART), area.payload_bytes);
        mark(map, ipc_base_out_at(N, PART, b), PART, area.payload_bytes);
    }
    free(map);
}
END_TEST

/* The largest slice of a part fits, for any number of ranks and either size of element. */
START_TEST(slices_fit)
{
    for (size_t n = 1; n <= 9; n++)
        for (size_t part = 4096; part < 6000; part += 256)
            for (size_t unit = 4; unit <= 8; unit += 4)
                for (size_t r = 0; r < n; r++) {
                    size_t elements = part / unit, slice = elements * (r + 1) / n - elements * r / n;

                    ck_assert_uint_le(slice * unit, ipc_base_slice_room(n, part));
                }
}
END_TEST

START_TEST(areas_are_found_by_kind_id_and_peer)
{
    area_t areas[COUNT], expected;

    make_areas(areas);
    for (int i = 0; i < COUNT; i++) {
        expected = areas[i];
        ck_assert_ptr_eq(ipc_layout_find(areas, COUNT, &expected), &areas[i]);
        ck_assert(ipc_layout_agrees(&areas[i], &expected));
        expected.slots++;
        ck_assert(!ipc_layout_agrees(&areas[i], &expected));
        expected = areas[i];
        expected.unit += 16;
        ck_assert(!ipc_layout_agrees(&areas[i], &expected));
        expected.id = 99;
        ck_assert_ptr_null(ipc_layout_find(areas, COUNT, &expected));
    }
}
END_TEST

START_TEST(directories_that_lead_outside_are_refused)
{
    area_t areas[COUNT], good[COUNT];
    size_t bytes = make_areas(good);
    uint32_t bad = 99;

    for (uint32_t i = 0; i < COUNT; i++)
        for (int lie = 0; lie < 8; lie++) {
            memcpy(areas, good, sizeof(areas));
            switch (lie) {
            case 0:
                areas[i].lines_at = 0;
                break;
            case 1:
                areas[i].lines_at += 4;
                break;
            case 2:
                areas[i].lines = bytes;
                break;
            case 3:
                areas[i].lines = UINT64_MAX / LINE_BYTES + 1;
                break;
            case 4:
                areas[i].payload_at = bytes + PAYLOAD_ALIGN;
                break;
            case 5:
                areas[i].payload_bytes = bytes - areas[i].payload_at + 1;
                break;
            case 6:
                areas[i].payload_at = UINT64_MAX - 255;
                break;
            default:
                areas[i].payload_bytes = UINT64_MAX;
                break;
            }
            ck_assert_msg(!ipc_layout_check(areas, COUNT, bytes, &bad), "area %u, lie %d", i, lie);
            ck_assert_uint_eq(bad, i);
        }
}
END_TEST

START_TEST(sizes_beyond_reason_are_refused)
{
    area_t area, huge = {.kind = AREA_SLOTS, .lines = 1, .payload_bytes = UINT64_MAX - 1000};
    size_t lines;

    ck_assert(!ipc_channel_layout(true, 0, 1, UINT32_MAX, SIZE_MAX / 2, &area));
    ck_assert(!ipc_channel_layout(true, 0, 1, 0, 8, &area));
    ck_assert(!ipc_channel_layout(true, 0, 1, 2, 0, &area));
    ck_assert(!ipc_channel_layout(true, 0, 1, 2, (size_t)UINT32_MAX + 1, &area));
    ck_assert(!ipc_rows_layout(0, 8, 2, 0, 16, &area));
    ck_assert(!ipc_rows_layout(0, 8, 2, UINT32_MAX, 16, &area));
    ck_assert(!ipc_rows_layout(0, 8, 65537, 4, 16, &area));
    ck_assert(!ipc_rows_layout(0, 1024, 60000, INT32_MAX, 1 << 20, &area));
    ck_assert_uint_eq(ipc_layout_place(&huge, 1, 4096, &lines), 0);
    huge.payload_bytes = 0;
    huge.lines = UINT64_MAX / 2;
    ck_assert_uint_eq(ipc_layout_place(&huge, 1, 4096, &lines), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("comm_cuda_ipc: layout");

    SUITE_ADD(suite, areas_do_not_overlap);
    SUITE_ADD(suite, parts_of_areas_do_not_overlap);
    SUITE_ADD(suite, slices_fit);
    SUITE_ADD(suite, areas_are_found_by_kind_id_and_peer);
    SUITE_ADD(suite, directories_that_lead_outside_are_refused);
    SUITE_ADD(suite, sizes_beyond_reason_are_refused);
    return suite_run(suite);
}
