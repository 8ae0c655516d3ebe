/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_mixed_map.c: the ways of a sum over hosts, for every way to put up to seven ranks on up to
 * three hosts. */
#include "tests/support/suite.h"

#include "mixed/map.h"

#include <stdbool.h>

enum { MOST = 7, HOSTS = 3 };

static dp__mixed_map_t maps[MOST];
static int32_t numbers[MOST][5 * MOST], hosts[MOST];

static int has_child(const dp__mixed_map_t *m, int32_t rank)
{
    int found = 0;

    for (int32_t i = 0; i < m->nchildren; i++)
        found += m->children[i] == rank;
    return found;
}

/* The running sum: from the first rank of a run to that of the next. */
static void check_runs(int32_t n)
{
    int32_t run = -1;

    for (int32_t r = 0; r < n; r++) {
        bool begins = r == 0 || hosts[r] != hosts[r - 1];

        run += begins;
        ck_assert_int_eq(maps[r].run, run);
        ck_assert_int_eq(maps[r].run_first == r, begins);
        for (int32_t i = maps[r].run_first; i < maps[r].run_first + maps[r].run_n; i++)
            ck_assert_int_eq(maps[i].run, run);
        for (int32_t i = 0; i < n; i++)
            ck_assert_int_eq(maps[i].carries[r], begins ? run : -1);
        if (!begins) {
            ck_assert(maps[r].prev == -1 && maps[r].next == -1);
            continue;
        }
        ck_assert_int_eq(maps[r].prev == -1, r == 0);
        if (maps[r].prev >= 0)
            ck_assert_int_eq(maps[maps[r].prev].next, r);
        if (maps[r].next >= 0)
            ck_assert_int_eq(maps[maps[r].next].prev, r);
        ck_assert_int_eq(maps[r].next == -1, maps[r].run == maps[r].runs - 1);
    }
    ck_assert_int_eq(maps[0].runs, run + 1);
}

/* The total: who has it when the last run is through gives it on, to everyone else once. */
static void check_tree(int32_t n)
{
    int32_t far_edges = 0;

    for (int32_t r = 0; r < n; r++) {
        const dp__mixed_map_t *m = &maps[r];
        int32_t up = r, steps = 0;

        ck_assert_int_eq(m->parent == -1, m->run == m->runs - 1);
        if (m->parent < 0) {
            ck_assert(m->far_hops == 0 && m->near_hops == 0);
            continue;
        }
        bool far = hosts[m->parent] != hosts[r];

        far_edges += far;
        ck_assert_int_eq(has_child(&maps[m->parent], r), 1);
        ck_assert_int_eq(m->far_hops, maps[m->parent].far_hops + far);
        ck_assert_int_eq(m->near_hops, far ? 0 : maps[m->parent].near_hops + 1);
        if (far) /* both have ends of far_sum */
            ck_assert(m->carries[r] >= 0 && m->carries[m->parent] >= 0);
        while (maps[up].parent >= 0 && steps++ < n)
            up = maps[up].parent;
        ck_assert_int_eq(up, maps[n - 1].run_first);
    }
    for (int32_t r = 0; r < n; r++)
        for (int32_t i = 0; i < maps[r].nchildren; i++)
            ck_assert_int_eq(maps[maps[r].children[i]].parent, r);
    ck_assert_int_eq(far_edges, maps[0].hosts - 1);
}

START_TEST(every_placement_of_up_to_seven_ranks)
{
    int32_t n = _i + 1, placements = 1, near[HOSTS];

    for (int32_t i = 0; i < n; i++)
        placements *= HOSTS;
    for (int32_t p = 0; p < placements; p++) {
        int32_t used = 0;

        for (int32_t r = 0, rest = p; r < n; r++, rest /= HOSTS)
            hosts[r] = rest % HOSTS;
        for (int32_t r = 0; r < n; r++)
            dp__mixed_map(&maps[r], numbers[r], r, n, hosts);
        for (int h = 0; h < HOSTS; h++)
            near[h] = 0;
        for (int32_t r = 0; r < n; r++)
            ck_assert_int_eq(maps[n - 1].near[r], near[hosts[r]]++);
        for (int h = 0; h < HOSTS; h++)
            used += near[h] > 0;
        for (int32_t r = 0; r < n; r++) {
            ck_assert_int_eq(maps[r].near_n, near[hosts[r]]);
            ck_assert_int_eq(maps[r].hosts, used);
        }
        check_runs(n);
        check_tree(n);
    }
}
END_TEST

/* Two hosts of four neighbours each: one way between them for the sum, one for the total. */
START_TEST(neighbours_on_two_hosts)
{
    static const int32_t host_of[] = {0, 0, 0, 0, 1, 1, 1, 1};
    static int32_t memory[5 * 8];
    dp__mixed_map_t m;

    dp__mixed_map(&m, memory, 4, 8, host_of);
    ck_assert(m.runs == 2 && m.prev == 0 && m.next == -1 && m.run_n == 4);
    ck_assert(m.parent == -1 && m.nchildren == 1 && m.children[0] == 0);
    dp__mixed_map(&m, memory, 0, 8, host_of);
    ck_assert(m.prev == -1 && m.next == 4 && m.parent == 4 && m.far_hops == 1 && m.near_hops == 0);
    ck_assert(m.nchildren == 2 && m.children[0] == 1 && m.children[1] == 2);
    dp__mixed_map(&m, memory, 3, 8, host_of);
    ck_assert(m.parent == 1 && m.far_hops == 1 && m.near_hops == 2 && m.nchildren == 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mixed/map");
    TCase *all = tcase_create("map");

    tcase_add_loop_test(all, every_placement_of_up_to_seven_ranks, 0, MOST);
    tcase_add_test(all, neighbours_on_two_hosts);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
