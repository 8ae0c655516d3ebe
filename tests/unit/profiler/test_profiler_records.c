/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_profiler_records.c: records of a profiling tool, matched to the operations that caused
 * them. */
#include "plugins/hook_cupti/records.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/suite.h"

enum { ROOM = 64, LINKS = 128 };

static cupti_records_entry_t entries[ROOM];
static cupti_records_link_t links[LINKS];
static cupti_records_t records;
static uint8_t owners[65536 / 8];

static void setup(void)
{
    cupti_records_init(&records, entries, ROOM, links, LINKS);
    memset(owners, 0, sizeof(owners));
    owners[0] = 1 << 1 | 1 << 2; /* 1 and 2 */
}

static void add(int64_t start, int64_t end, uint32_t correlation, const char *name)
{
    dp_activity_t a = {.start_ns = start, .end_ns = end};

    strcpy(a.name, name);
    cupti_records_add(&records, &a, correlation);
}

START_TEST(each_owner_finds_its_own)
{
    dp_activity_t out[ROOM];

    setup();
    add(50, 60, 7, "early record, late link");
    cupti_records_link(&records, 7, cupti_records_tag(1, 100));
    cupti_records_link(&records, 8, cupti_records_tag(2, 100));
    cupti_records_link(&records, 9, cupti_records_tag(1, DP_PROFILER_OPERATION_MAX));
    add(10, 20, 9, "a");
    add(30, 40, 8, "b");
    add(70, 80, 7, "second of the same call");
    add(90, 95, 1234, "nobody's");
    ck_assert_uint_eq(cupti_records_take(&records, 1, 1000, out, ROOM), 3);
    ck_assert_int_eq(out[0].start_ns, 1010); /* by start, on the other clock */
    ck_assert_int_eq(out[0].end_ns, 1020);
    ck_assert_uint_eq(out[0].operation, DP_PROFILER_OPERATION_MAX);
    ck_assert_int_eq(out[1].start_ns, 1050);
    ck_assert_uint_eq(out[1].operation, 100);
    ck_assert_str_eq(out[1].name, "early record, late link");
    ck_assert_uint_eq(out[2].operation, 100);
    ck_assert_uint_eq(cupti_records_take(&records, 1, 0, out, ROOM), 0); /* once */
    cupti_records_sweep(&records, owners);
    ck_assert_uint_eq(records.count, 1);
    ck_assert_uint_eq(cupti_records_take(&records, 2, -30, out, ROOM), 1);
    ck_assert_int_eq(out[0].start_ns, 0);
    ck_assert_str_eq(out[0].name, "b");
    cupti_records_sweep(&records, owners);
    ck_assert_uint_eq(records.count, 0);
    ck_assert_uint_eq(records.nlinks, 0);
    ck_assert_uint_eq(records.lost, 0);
}
END_TEST

START_TEST(the_innermost_range_counts)
{
    dp_activity_t out[2];

    setup();
    cupti_records_link(&records, 3, cupti_records_tag(1, 5));
    cupti_records_link(&records, 3, cupti_records_tag(1, 6));
    add(1, 2, 3, "k");
    ck_assert_uint_eq(cupti_records_take(&records, 1, 0, out, 2), 1);
    ck_assert_uint_eq(out[0].operation, 6);
    ck_assert_uint_eq(records.nlinks, 1);
}
END_TEST

START_TEST(a_small_room_is_filled_again_and_again)
{
    dp_activity_t out[3];
    size_t total = 0, count;

    setup();
    for (uint32_t i = 0; i < 10; i++) {
        cupti_records_link(&records, 1000 + i, cupti_records_tag(2, i + 1));
        add((int64_t)i, (int64_t)i + 1, 1000 + i, "k");
    }
    do {
        count = cupti_records_take(&records, 2, 0, out, 3);
        for (size_t i = 0; i < count; i++)
            ck_assert_uint_eq(out[i].operation, total + i + 1);
        total += count;
    } while (count == 3);
    ck_assert_uint_eq(total, 10);
}
END_TEST

START_TEST(what_finds_no_room_is_counted)
{
    dp_activity_t out[ROOM];

    setup();
    for (uint32_t i = 0; i < ROOM + 5; i++)
        add((int64_t)i, (int64_t)i + 1, 1, "k");
    ck_assert_uint_eq(records.lost, 5);
    for (uint32_t i = 0; i < LINKS; i++) /* numbers that meet in the table */
        cupti_records_link(&records, i * LINKS + 1, cupti_records_tag(1, i + 1));
    ck_assert_uint_eq(records.nlinks, LINKS / 4 * 3);
    ck_assert_uint_eq(records.lost, 5 + LINKS / 4);
    ck_assert_uint_eq(cupti_records_take(&records, 1, 0, out, ROOM), ROOM);
    ck_assert_uint_eq(out[ROOM - 1].operation, 1);
    cupti_records_sweep(&records, owners);
    cupti_records_link(&records, 9, cupti_records_tag(1, 9));
    add(1, 2, 9, "k");
    ck_assert_uint_eq(cupti_records_take(&records, 1, 0, out, ROOM), 1);
    ck_assert_uint_eq(out[0].operation, 9);
}
END_TEST

START_TEST(a_closed_owner_leaves_nothing)
{
    setup();
    cupti_records_link(&records, 1, cupti_records_tag(2, 1));
    cupti_records_link(&records, 2, cupti_records_tag(65535, 1));
    add(1, 2, 1, "k");
    add(1, 2, 2, "k");
    owners[0] = 1 << 1;
    owners[65535 / 8] = 1 << 65535 % 8;
    cupti_records_sweep(&records, owners);
    ck_assert_uint_eq(records.count, 1);
    ck_assert_uint_eq(records.entries[0].correlation, 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("profiler/records");

    SUITE_ADD(suite, each_owner_finds_its_own);
    SUITE_ADD(suite, the_innermost_range_counts);
    SUITE_ADD(suite, a_small_room_is_filled_again_and_again);
    SUITE_ADD(suite, what_finds_no_room_is_counted);
    SUITE_ADD(suite, a_closed_owner_leaves_nothing);
    return suite_run(suite);
}
