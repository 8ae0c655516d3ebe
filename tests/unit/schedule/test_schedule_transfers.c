/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_schedule_transfers.c: cells of transfers: what PyTorch writes is right, and each thing that
 * can be wrong is found. */
#include "tests/support/oom.h"
#include "tests/support/suite.h"

#include <dualpipe/schedule.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char dump[1 << 16];

static const char *const dumps[] = {"DualPipeV_4_10",           "Interleaved1F1B_2_4", "Interleaved1F1B_3_6",
                                    "Interleaved1F1B_4_8",      "LoopedBFS_4_8",       "ZBVZeroBubble_4_8",
                                    "InterleavedZeroBubble_4_8"};

static void read_dump(const char *name)
{
    char path[512];
    FILE *file;
    size_t got;

    snprintf(path, sizeof(path), "%s/torch/%s.csv", getenv("DP_TEST_DATA"), name);
    file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s", path);
    got = fread(dump, 1, sizeof(dump) - 1, file);
    dump[got] = 0;
    fclose(file);
}

static dp_status_t check(const char *text, int matched, int64_t *count)
{
    dp_schedule_t *s = NULL;
    dp_status_t status = dp_schedule_read_csv("f", text, strlen(text), &s);

    ck_assert_msg(status == DP_OK, "%s", dp_last_error());
    status = dp_schedule_check_csv_transfers(s, "f", text, strlen(text), matched, count);
    dp_schedule_free(s);
    return status;
}

/* The cells of each rank, in their order. falling: where the file takes the micro-batches of
 * backwards from the last to the first. */
static void compare_with(const char *method, const dp_schedule_t *theirs, bool falling)
{
    dp_schedule_request_t request = {.struct_size = sizeof(request),
                                     .method = method,
                                     .ranks = theirs->ranks,
                                     .microbatches = theirs->microbatches,
                                     .chunks = theirs->chunks};
    dp_schedule_t *ours;

    ck_assert_msg(dp_schedule_generate(&request, &ours) == DP_OK, "%s", dp_last_error());
    ck_assert_int_eq(ours->placement, theirs->placement);
    ck_assert_int_eq(ours->first[ours->ranks], theirs->first[theirs->ranks]);
    for (int64_t i = 0; i < ours->first[ours->ranks]; i++) {
        dp_op_t a = ours->ops[i], b = theirs->ops[i];

        if (falling && b.kind == DP_OP_B)
            b.microbatch = theirs->microbatches - 1 - b.microbatch;
        ck_assert_msg(a.kind == b.kind && a.chunk == b.chunk && a.microbatch == b.microbatch && a.chunk2 == b.chunk2 &&
                          a.microbatch2 == b.microbatch2,
                      "%s: operation %d is %s%d.%d, there %s%d.%d", method, (int)i, dp_op_kind_name(a.kind), a.chunk,
                      a.microbatch, dp_op_kind_name(b.kind), b.chunk, b.microbatch);
    }
    dp_schedule_free(ours);
}

START_TEST(methods_are_those_of_pytorch)
{
    static const struct {
        const char *file, *method;
    } same[] = {{"Interleaved1F1B_4_8", "ScheduleInterleaved1F1B"},
                {"Interleaved1F1B_3_6", "interleaved_1f1b"},
                {"InterleavedZeroBubble_4_8", "InterleavedZeroBubble"},
                {"LoopedBFS_4_8", "Looped_BFS"},
                {"ZBVZeroBubble_4_8", "ZBVZeroBubble"},
                {"DualPipeV_4_10", "DualPipeV"}};
    dp_schedule_t *theirs;

    read_dump(same[_i].file);
    ck_assert_int_eq(dp_schedule_read_csv("f", dump, strlen(dump), &theirs), DP_OK);
    compare_with(same[_i].method, theirs, strcmp(same[_i].method, "Looped_BFS") == 0);
    dp_schedule_free(theirs);
}
END_TEST

static int64_t occurrences(const char *text, const char *what)
{
    int64_t n = 0;

    for (const char *at = strstr(text, what); at != NULL; at = strstr(at + 1, what))
        n++;
    return n;
}

START_TEST(dumps_of_pytorch_are_right)
{
    int64_t count = 0;

    read_dump(dumps[_i]);
    for (int matched = 0; matched < 2; matched++) {
        ck_assert_msg(check(dump, matched, &count) == DP_OK, "%s: %s", dumps[_i], dp_last_error());
        ck_assert_int_eq(count,
                         occurrences(dump, "SEND_") - occurrences(dump, "WAIT_SEND_") + occurrences(dump, "RECV_"));
        ck_assert_int_gt(count, 0);
    }
}
END_TEST

/* Every transfer of a dump taken away, and every one moved to the end of its row: found, whichever
 * it is. */
START_TEST(a_transfer_that_is_missing_or_late_is_found)
{
    static char broken[sizeof(dump) + 8];
    int tried = 0;

    read_dump("Interleaved1F1B_2_4");
    for (const char *at = dump; *at != 0; at += strcspn(at, ",\r\n") + (at[strcspn(at, ",\r\n")] != 0)) {
        size_t length = strcspn(at, ",\r\n");
        const char *row_end = at + strcspn(at, "\r\n");
        int64_t count = 0;

        if (memchr(at, '_', length) == NULL || memmem(at, length, "WAIT", 4) != NULL ||
            memmem(at, length, "REDUCE", 6) != NULL)
            continue;
        snprintf(broken, sizeof(broken), "%.*s%s", (int)(at - dump), dump, at + length);
        ck_assert_int_eq(check(broken, 1, &count), DP_ERR_REJECTED);
        ck_assert_int_eq(check(broken, 0, &count), DP_ERR_REJECTED);
        ck_assert_int_eq(count, 0);
        if (memmem(at, length, "RECV", 4) != NULL) {
            snprintf(broken, sizeof(broken), "%.*s%.*s,%.*s%s", (int)(at - dump), dump, (int)(row_end - at - length),
                     at + length, (int)length, at, row_end);
            ck_assert_int_eq(check(broken, 0, &count), DP_ERR_REJECTED);
        }
        tried++;
    }
    ck_assert_int_eq(tried, 48);
}
END_TEST

static const struct {
    const char *text;
    int matched; /* 0: rejected either way; 1: only where transfers meet */
    const char *message;
} wrong[] = {
    {"0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1SEND_B0,1B0\n", 0,
     "f:2: cell 3 '1SEND_B0': it is sent before it is computed"},
    {"0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 0,
     "f:1: cell 1 '0SEND_F0': it is sent before it is computed"},
    {"0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n", 0,
     "f:2: cell 1 '1F0': no RECV_F of its input stands before it"},
    {"0F0,0SEND_F0,0B0,0RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 0,
     "f:1: cell 3 '0B0': no RECV_B of its gradient stands before it"},
    {"0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 0,
     "f:2: cell 1 '1RECV_F0': its other end is nowhere in the file"},
    {"0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 0,
     "f:1: cell 3 '0SEND_F0': the same stands in the row before"},
    {"0F0,0SEND_F0,0SEND_B0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 0,
     "f:1: cell 3 '0SEND_B0': no stage comes before this one"},
    {"0F0,0SEND_F0,0RECV_B0,0B0,0SEND_B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 0,
     "f:1: cell 5 '0SEND_B0': no stage comes before this one"},
    {"0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1SEND_F0,1B0,1SEND_B0\n", 0,
     "f:2: cell 3 '1SEND_F0': no stage comes after this one"},
    {"0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 0,
     "f:1: cell 2 '0WAIT_SEND_F0': nothing was sent before that it could wait for"},
    {"0F0,0SEND_F0,0RECV_B7,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 0,
     "f:1: cell 3 '0RECV_B7': nothing in the file computes this micro-batch"},
    {"0F0,1SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 0,
     "f:1: cell 2 '1SEND_F0': this stage is in another row"},
    {"0F0,0SEND_F0\n1RECV_F0,1F0,1SEND_B0\n", 0, "f:2: cell 3 '1SEND_B0': nothing in the file computes a gradient"},
    /* a V: stages 1 and 2 are both of the second row */
    {"0F0,0SEND_F0,3RECV_F0,3F0\n1RECV_F0,1F0,1SEND_F0,2F0,2SEND_F0\n", 0,
     "f:2: cell 3 '1SEND_F0': the stage beside it is in the same row: nothing is transferred"},
    /* received in another order than sent */
    {"0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F1,1F1,1RECV_F0,1F0\n", 0,
     "f:1: cell 4 '0SEND_F1': it does not meet '1RECV_F1' (row 2, cell 1)"},
    /* both send first: fine when a send ends by itself */
    {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n", 1,
     "f:1: cell 4 '0SEND_F1': it does not meet '1RECV_F1' (row 2, cell 5)"},
};

START_TEST(what_is_wrong_is_named)
{
    int64_t count = -1;

    ck_assert_int_eq(check(wrong[_i].text, 1, &count), DP_ERR_REJECTED);
    if (wrong[_i].matched)
        ck_assert_int_eq(check(wrong[_i].text, 0, &count), DP_OK);
    else
        ck_assert_int_eq(check(wrong[_i].text, 0, &count), DP_ERR_REJECTED);
    (void)check(wrong[_i].text, wrong[_i].matched, &count);
    ck_assert_msg(strncmp(dp_last_error(), wrong[_i].message, strlen(wrong[_i].message)) == 0, "%s", dp_last_error());
}
END_TEST

/* Rank 1 takes micro-batch 1 first, which rank 0 sends after the gradient of 0 has come back. */
START_TEST(a_circle_of_waits_is_shown_in_the_words_of_the_file)
{
    int64_t count;
    const char *text = "0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1\n"
                       "1RECV_F0,1RECV_F1,1F1,1F0,1B0,1SEND_B0,1B1,1SEND_B1\n";

    ck_assert_int_eq(check(text, 0, &count), DP_ERR_REJECTED);
    ck_assert_str_eq(dp_last_error(),
                     "f: deadlock, a cycle of 2 waits: row 1, cell 4 (0B0) waits for row 2, cell 6 (1SEND_B0), "
                     "which comes after row 2, cell 3 (1F1), which waits for row 1, cell 6 (0SEND_F1), "
                     "which comes after the first");
}
END_TEST

/* Faults of computing cells, too, are named by row and cell. */
START_TEST(a_deadlock_names_cells)
{
    dp_schedule_t *s = NULL;
    const char *text = "0F0,,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n";

    ck_assert_int_eq(dp_schedule_read_csv("f", text, strlen(text), &s), DP_OK);
    ck_assert_int_eq(dp_schedule_verify(s), DP_ERR_REJECTED);
    ck_assert_msg(strstr(dp_last_error(), "row 1, cell 3 (0B0) waits for row 2, cell 3 (1B0)") != NULL, "%s",
                  dp_last_error());
    dp_schedule_free(s);
    text = "0F0,0B0,0F1\n1F0,1F1,1B0,1B1\n";
    ck_assert_int_eq(dp_schedule_read_csv("f", text, strlen(text), &s), DP_OK);
    ck_assert_int_eq(dp_schedule_verify(s), DP_ERR_REJECTED);
    ck_assert_msg(strstr(dp_last_error(), "row 1 has no 0B1 (or its I)") != NULL, "%s", dp_last_error());
    dp_schedule_free(s);
    text = "0F0,0B0,0B1,0F1\n1F0,1F1,1B0,1B1\n";
    ck_assert_int_eq(dp_schedule_read_csv("f", text, strlen(text), &s), DP_OK);
    ck_assert_int_eq(dp_schedule_verify(s), DP_ERR_REJECTED);
    ck_assert_msg(strstr(dp_last_error(), "row 1, cell 3 (0B1): no forward of this micro-batch") != NULL, "%s",
                  dp_last_error());
    dp_schedule_free(s);
}
END_TEST

START_TEST(files_without_transfers_have_none)
{
    int64_t count = -1;

    ck_assert_int_eq(check("0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n1F0,1B0\n", 1, &count), DP_OK);
    ck_assert_int_eq(count, 0);
    ck_assert_int_eq(check("0UNSHARD,0F0,0B0", 1, &count), DP_OK);
    ck_assert_int_eq(count, 0);
}
END_TEST

/* Every bit of a dump changed: accepted or refused, never more. */
START_TEST(damaged_files_never_crash)
{
    read_dump("Interleaved1F1B_2_4");
    for (size_t at = 0, end = strlen(dump); at < end; at++)
        for (int bit = 0; bit < 7; bit++) {
            dp_schedule_t *s = NULL;
            int64_t count;

            dump[at] ^= (char)(1 << bit);
            if (dp_schedule_read_csv("f", dump, end, &s) == DP_OK) {
                ck_assert_int_le(dp_schedule_check_csv_transfers(s, "f", dump, end, bit & 1, &count), DP_OK);
                dp_schedule_free(s);
            }
            dump[at] ^= (char)(1 << bit);
        }
}
END_TEST

START_TEST(out_of_memory)
{
    const char *text = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n";
    dp_schedule_t *s = NULL;
    bool struck = true;
    int64_t count;
    long k;

    oom_install();
    ck_assert_int_eq(dp_schedule_read_csv("f", text, strlen(text), &s), DP_OK);
    for (k = 0; struck; k++) {
        dp_status_t status;

        oom_arm(k, _i);
        status = dp_schedule_check_csv_transfers(s, "f", text, strlen(text), 1, &count);
        struck = oom_struck();
        oom_disarm();
        ck_assert_int_eq(status, struck ? DP_ERR_NOMEM : DP_OK);
    }
    ck_assert_int_gt(k, 3);
    dp_schedule_free(s);
    ck_assert_int_eq(oom_live(), 0);
    oom_uninstall();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schedule_transfers");
    TCase *tc = tcase_create("transfers");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, methods_are_those_of_pytorch, 0, 6);
    tcase_add_loop_test(tc, dumps_of_pytorch_are_right, 0, (int)(sizeof(dumps) / sizeof(dumps[0])));
    tcase_add_test(tc, a_transfer_that_is_missing_or_late_is_found);
    tcase_add_loop_test(tc, what_is_wrong_is_named, 0, (int)(sizeof(wrong) / sizeof(wrong[0])));
    tcase_add_test(tc, a_circle_of_waits_is_shown_in_the_words_of_the_file);
    tcase_add_test(tc, a_deadlock_names_cells);
    tcase_add_test(tc, files_without_transfers_have_none);
    tcase_add_test(tc, damaged_files_never_crash);
    tcase_add_loop_test(tc, out_of_memory, 0, 2);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
