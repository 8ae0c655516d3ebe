/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_group_peers.c: who the ranks of a job are, as rank 0 tells it and another one keeps it. */
#include "tests/support/suite.h"
#include "tests/support/two_ranks.h"

#include <string.h>

/* Where the first row begins: how many machines, two of two short names each, how many rows. */
enum { ROWS = 4 + 2 * (1 + 1 + 1 + 4) + 4, ROW = 16 };

/* `size` ranks, those from `second` on on another machine, and rank `holds` with something to
 * give. */
static size_t tell(int32_t size, int32_t second, int32_t holds, dp__process_t **hub_out, unsigned char **told_out)
{
    dp__process_t *hub = two_open(0, size);

    hub->machines.count = 0;
    for (int32_t r = 0; r < size; r++)
        hub->peers.rows[r] = (dp__peer_t){
            r, 100 + r, dp__machine_add(hub, r < second ? "a" : "b", r < second ? "aaaa" : "bbbb"), r == holds ? 7 : 0};
    hub->peers.self = hub->peers.rows[0];
    *hub_out = hub;
    return dp__peers_write(hub, told_out);
}

START_TEST(everybody_hears_where_all_live_and_what_they_hold)
{
    unsigned char *told;
    dp__process_t *hub, *spoke;
    size_t bytes = tell(9, 4, 6, &hub, &told);

    for (int32_t rank = 1; rank < 9; rank++) {
        spoke = two_open(rank, 9);
        ck_assert_int_eq(dp__peers_read(spoke, told, told + bytes), DP_OK);
        for (int32_t r = 0; r < 9; r++) {
            const dp__peer_t peer = dp__peer(spoke, r);

            ck_assert_int_eq(peer.rank, r);
            ck_assert_int_eq(peer.machine, dp__peer(hub, r).machine);
            ck_assert_uint_eq(peer.held, dp__peer(hub, r).held);
            ck_assert(peer.pid == 0 || peer.pid == 100 + r);
        }
        ck_assert_int_eq(dp__peer(spoke, 0).pid, 100);
        ck_assert_int_eq(dp__peer(spoke, rank).pid, 100 + rank);
        two_close(spoke);
    }
    dp__free(told);
    two_close(hub);
}
END_TEST

START_TEST(what_a_rank_keeps_grows_with_hosts_and_not_with_ranks)
{
    unsigned char *told;
    dp__process_t *hub, *spoke = two_open(1, DP_MAX_RANKS);
    size_t bytes = tell(DP_MAX_RANKS, DP_MAX_RANKS / 2, -1, &hub, &told);

    ck_assert_uint_eq(bytes, ROWS + 2 * ROW);
    ck_assert_int_eq(dp__peers_read(spoke, told, told + bytes), DP_OK);
    ck_assert_int_eq(spoke->peers.count, 2);
    dp__free(told);
    two_close(hub);
    two_close(spoke);
}
END_TEST

static dp_status_t hear(const unsigned char *told, size_t bytes)
{
    dp__process_t *spoke = two_open(1, 9);
    dp_status_t status = dp__peers_read(spoke, told, told + bytes);

    if (status < 0) /* then nobody is known */
        ck_assert_int_eq(dp__peer(spoke, 8).machine, -1);
    two_close(spoke);
    return status;
}

static dp_status_t hear_number(unsigned char *told, size_t bytes, size_t at, unsigned char value)
{
    const unsigned char was = told[at];
    dp_status_t status;

    told[at] = value;
    status = hear(told, bytes);
    told[at] = was;
    return status;
}

START_TEST(a_table_that_is_none_is_refused)
{
    unsigned char *told;
    dp__process_t *hub;
    size_t bytes = tell(9, 4, 6, &hub, &told); /* rows of ranks 0, 4, 6 and 7 */

    ck_assert_uint_eq(bytes, ROWS + 4 * ROW);
    for (size_t n = 0; n < bytes; n++)
        ck_assert_int_eq(hear(told, n), DP_ERR_PROTOCOL);
    ck_assert_int_eq(hear_number(told, bytes, ROWS - 4, 0), DP_ERR_PROTOCOL); /* no rows */
    /* more than ranks */
    ck_assert_int_eq(hear_number(told, bytes, ROWS - 4, 10), DP_ERR_PROTOCOL);
    /* rank 0 is in none */
    ck_assert_int_eq(hear_number(told, bytes, ROWS, 1), DP_ERR_PROTOCOL);
    /* they do not rise */
    ck_assert_int_eq(hear_number(told, bytes, ROWS + 2 * ROW, 4), DP_ERR_PROTOCOL);
    /* no rank of this job */
    ck_assert_int_eq(hear_number(told, bytes, ROWS + 3 * ROW, 9), DP_ERR_PROTOCOL);
    /* no machine that was named */
    ck_assert_int_eq(hear_number(told, bytes, ROWS + ROW + 8, 2), DP_ERR_PROTOCOL);
    ck_assert_int_eq(hear(told, bytes), DP_OK);
    dp__free(told);
    two_close(hub);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group_peers");

    SUITE_ADD(suite, everybody_hears_where_all_live_and_what_they_hold);
    SUITE_ADD(suite, what_a_rank_keeps_grows_with_hosts_and_not_with_ranks);
    SUITE_ADD(suite, a_table_that_is_none_is_refused);
    return suite_run(suite);
}
