/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_schedule_csv.c: the format of torch.distributed.pipelining, there and back, refused when
 * broken. */
#include "tests/support/oom.h"
#include "tests/support/suite.h"

#include <dualpipe/schedule.h>
#include <stdio.h>
#include <string.h>

typedef struct text {
    char bytes[1 << 18];
    size_t used;
    int calls, fail_at;
} text_t;

static text_t text_a, text_b;

static dp_status_t append(void *user, const char *bytes, size_t count)
{
    text_t *t = user;

    if (t->calls++ == t->fail_at)
        return dp_fail(DP_ERR_IO, "the disk is full");
    ck_assert_uint_lt(t->used + count, sizeof(t->bytes));
    memcpy(t->bytes + t->used, bytes, count);
    t->used += count;
    t->bytes[t->used] = '\0';
    return DP_OK;
}

static dp_status_t write_into(const dp_schedule_t *s, text_t *t)
{
    t->used = 0;
    t->calls = 0;
    t->bytes[0] = '\0';
    return dp_schedule_write_csv(s, -1, append, t);
}

static dp_status_t read_text(const char *text, dp_schedule_t **s)
{
    return dp_schedule_read_csv("f", text, strlen(text), s);
}

/* Every method comes back with the same lists. */
START_TEST(round_trip)
{
    size_t count;
    const dp_method_t *methods = dp_schedule_methods(&count);

    text_a.fail_at = text_b.fail_at = -1;
    for (size_t m = 0; m < count; m++)
        for (int32_t ranks = 1; ranks <= 6; ranks++)
            for (int forward_only = 0; forward_only < 2; forward_only++) {
                dp_schedule_request_t request = {
                    sizeof(request), methods[m].name, ranks, 2 * ranks, 0, forward_only, 0};
                dp_schedule_t *s = NULL, *back = NULL;

                if (dp_schedule_generate(&request, &s) < 0)
                    continue;
                ck_assert_int_eq(write_into(s, &text_a), DP_OK);
                ck_assert_msg(read_text(text_a.bytes, &back) == DP_OK, "%s", dp_last_error());
                ck_assert_str_eq(back->method, "custom");
                ck_assert_int_eq(back->ranks, ranks);
                ck_assert_int_eq(back->microbatches, s->microbatches);
                ck_assert_int_eq(back->chunks, s->chunks);
                ck_assert_int_eq(back->forward_only, forward_only);
                if (ranks > 1)
                    ck_assert_int_eq(back->placement, s->placement);
                for (int32_t r = 0; r <= ranks; r++)
                    ck_assert_int_eq(back->first[r], s->first[r]);
                for (int64_t i = 0; i < s->first[ranks]; i++) {
                    ck_assert_int_eq(back->ops[i].kind, s->ops[i].kind);
                    ck_assert_int_eq(back->ops[i].chunk, s->ops[i].chunk);
                    ck_assert_int_eq(back->ops[i].microbatch, s->ops[i].microbatch);
                    ck_assert_int_eq(back->ops[i].chunk2, s->ops[i].chunk2);
                    ck_assert_int_eq(back->ops[i].microbatch2, s->ops[i].microbatch2);
                }
                ck_assert_int_eq(dp_schedule_verify(back), DP_OK);
                ck_assert_int_eq(write_into(back, &text_b), DP_OK);
                ck_assert_str_eq(text_a.bytes, text_b.bytes);
                dp_schedule_free(back);
                dp_schedule_free(s);
            }
}
END_TEST

START_TEST(known_text)
{
    dp_schedule_request_t request = {sizeof(request), "dualpipev", 1, 2, 0, 0, 0};
    dp_schedule_t *s;

    text_a.fail_at = -1;
    ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_OK);
    ck_assert_int_eq(write_into(s, &text_a), DP_OK);
    ck_assert_str_eq(text_a.bytes, "0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,1B1,0I1,0W1\n");
    dp_schedule_free(s);
    request = (dp_schedule_request_t){sizeof(request), "dualpipe", 2, 4, 0, 1, 0};
    ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_OK);
    ck_assert_int_eq(write_into(s, &text_a), DP_OK);
    ck_assert_str_eq(text_a.bytes, "0F0,1F2,0F1,1F3\n0F2,1F0,0F3,1F1\n");
    text_a.used = 0;
    ck_assert_int_eq(dp_schedule_write_csv(s, 1, append, &text_a), DP_OK);
    ck_assert_str_eq(text_a.bytes, "0F2,1F0,0F3,1F1\n");
    ck_assert_int_eq(dp_schedule_write_csv(s, 2, append, &text_a), DP_ERR_INVALID);
    ck_assert_int_eq(dp_schedule_write_csv(s, -2, append, &text_a), DP_ERR_INVALID);
    dp_schedule_free(s);
}
END_TEST

START_TEST(write_errors_are_passed_on)
{
    dp_schedule_request_t request = {sizeof(request), "dualpipe", 8, 64, 0, 0, 0};
    dp_schedule_t *s;
    int calls;

    ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_OK);
    text_a.fail_at = -1;
    ck_assert_int_eq(write_into(s, &text_a), DP_OK);
    calls = text_a.calls;
    ck_assert_int_gt(calls, 2);
    for (text_a.fail_at = 0; text_a.fail_at < calls; text_a.fail_at++)
        ck_assert_int_eq(write_into(s, &text_a), DP_ERR_IO);
    dp_schedule_free(s);
}
END_TEST

START_TEST(reader_is_lenient_where_it_can_be)
{
    dp_schedule_t *s = NULL;

    /* as that library writes it: \r\n, idle steps, transfers, shards; halves of a pair in either
     * order */
    ck_assert_msg(read_text("0UNSHARD,0F0, 0SEND_F0 ,0F1,,,0RECV_B0,0B0,,0B1,0REDUCE_GRAD\r\n"
                            ",1RECV_F0,1F0,(1B0;1F1)OVERLAP_F_B,( 1F2 ; 1B1 ) OVERLAP_F_B,1I2,1W2,1RESHARD\r\n\r\n\r\n",
                            &s) == DP_OK,
                  "%s", dp_last_error());
    ck_assert_int_eq(s->placement, DP_PLACE_LINE);
    ck_assert_int_eq(s->ranks, 2);
    ck_assert_int_eq(s->microbatches, 3);
    ck_assert_int_eq(s->first[1], 4);
    ck_assert_int_eq(s->first[2], 9);
    ck_assert_int_eq(s->ops[5].kind, DP_OP_FB);
    ck_assert_int_eq(s->ops[5].microbatch, 1);
    ck_assert_int_eq(s->ops[5].microbatch2, 0);
    ck_assert_int_eq(s->ops[7].kind, DP_OP_I);
    dp_schedule_free(s);
    /* no end of line at the end */
    ck_assert_int_eq(read_text("0F0,0B0", &s), DP_OK);
    ck_assert_int_eq(s->first[1], 2);
    dp_schedule_free(s);
    /* a row without operations is a rank all the same */
    ck_assert_int_eq(read_text("0F0,0B0\n,\n", &s), DP_ERR_INVALID);
    ck_assert_str_eq(dp_last_error(), "f: 1 stages on 2 ranks; every rank needs the same number");
}
END_TEST

static const struct {
    const char *text, *message;
} malformed[] = {
    {"", "f: no operations"},
    {"\n\n,,\n", "f: no operations"},
    {"0F0,F0\n", "f:1: cell 2 'F0': a stage number is needed in front"},
    {"0F0\n1F0,1X0\n", "f:2: cell 2 '1X0': no such operation"},
    {"0F0,0\n", "f:1: cell 2 '0': no such operation"},
    {"0F0,0F\n", "f:1: cell 2 '0F': a micro-batch number is needed behind"},
    {"0F0,0F0x\n", "f:1: cell 2 '0F0x': a micro-batch number is needed behind"},
    {"0F0,0f0\n", "f:1: cell 2 '0f0': no such operation"},
    {"0F0,-1F0\n", "f:1: cell 2 '-1F0': a stage number is needed in front"},
    {"0F65536\n", "f:1: cell 1 '0F65536': stage or micro-batch out of range"},
    {"262144F0\n", "f:1: cell 1 '262144F0': stage or micro-batch out of range"},
    {"99999999999999999999F0\n", "f:1: cell 1 '99999999999999999999F0': a stage number is needed in front"},
    {"(0F0;0B0\n", "f:1: cell 1 '(0F0;0B0': ')' is missing"},
    {"(0F0;0B0)\n", "f:1: cell 1 '(0F0;0B0)': only OVERLAP_F_B joins operations"},
    {"(0F0;0B0)OVERLAP\n", "f:1: cell 1 '(0F0;0B0)OVERLAP': only OVERLAP_F_B joins operations"},
    {"(0F0)OVERLAP_F_B\n", "f:1: cell 1 '(0F0)OVERLAP_F_B': an overlapped pair has two halves"},
    {"(0F0;0B1;0B2)OVERLAP_F_B\n", "f:1: cell 1 '(0F0;0B1;0B2)OVERLAP_F_B': an overlapped pair has two halves"},
    {"(0F0;0F1)OVERLAP_F_B\n", "f:1: cell 1 '(0F0;0F1)OVERLAP_F_B': an overlapped pair is one F and one B"},
    {"(0I0;0F1)OVERLAP_F_B\n", "f:1: cell 1 '(0I0;0F1)OVERLAP_F_B': an overlapped pair is one F and one B"},
    {"(0SEND_F0;0B1)OVERLAP_F_B\n", "f:1: cell 1 '(0SEND_F0;0B1)OVERLAP_F_B': an overlapped pair is one F and"},
    {"(;)OVERLAP_F_B\n", "f:1: cell 1 '(;)OVERLAP_F_B': a stage number is needed in front"},
    {"0F0\n2F0\n", "f: 3 stages on 2 ranks; every rank needs the same number"},
    {"0F0\n0F1\n0F2\n", "f: 1 stages on 3 ranks; every rank needs the same number"},
    {"0F0,2F0\n2F0\n,3F0\n", "f: 4 stages on 3 ranks; every rank needs the same number"},
    {"0F0,1F0\n1F0,2F0,3F0\n", "f:1: cell 2 '1F0': this stage is not on rank 0 of placement loop"},
    {"0F0,1F2\n1F0,0F2\n", "schedule: 3 micro-batches; two directions need an even number"},
    {"0F0,1F1\n1F0,0F0\n", "f:2: cell 2 '0F0': this stage is not on rank 1 of placement bidirectional"},
};

START_TEST(malformed_files_are_refused)
{
    dp_schedule_t *s = NULL;

    ck_assert_int_eq(read_text(malformed[_i].text, &s), DP_ERR_INVALID);
    ck_assert_ptr_null(s);
    ck_assert_msg(strstr(dp_last_error(), malformed[_i].message) == dp_last_error(), "%s", dp_last_error());
}
END_TEST

START_TEST(too_many_ranks)
{
    static char rows[3 * (DP_MAX_RANKS + 1) + 1];
    dp_schedule_t *s = NULL;

    for (int r = 0; r <= DP_MAX_RANKS; r++)
        memcpy(rows + 2 * r, ",\n", 3);
    ck_assert_int_eq(read_text(rows, &s), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "f:4097: more than 4096 ranks"));
}
END_TEST

/* Every prefix of a good file, and every bit of it changed: an error or a schedule, never more. */
START_TEST(damaged_files_never_crash)
{
    dp_schedule_request_t request = {sizeof(request), "dualpipe", 2, 4, 0, 0, 0};
    dp_schedule_t *s, *back;

    text_a.fail_at = -1;
    ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_OK);
    ck_assert_int_eq(write_into(s, &text_a), DP_OK);
    for (size_t end = 0; end <= text_a.used; end++)
        if (dp_schedule_read_csv("f", text_a.bytes, end, &back) == DP_OK) {
            ck_assert_int_le(dp_schedule_verify(back), DP_OK);
            dp_schedule_free(back);
        }
    for (size_t at = 0; at < text_a.used; at++)
        for (int bit = 0; bit < 8; bit++) {
            text_a.bytes[at] ^= (char)(1 << bit);
            if (dp_schedule_read_csv("f", text_a.bytes, text_a.used, &back) == DP_OK) {
                ck_assert_int_le(dp_schedule_verify(back), DP_OK);
                dp_schedule_free(back);
            }
            text_a.bytes[at] ^= (char)(1 << bit);
        }
    dp_schedule_free(s);
}
END_TEST

START_TEST(out_of_memory)
{
    bool struck = true;
    long k;

    oom_install();
    for (k = 0; struck; k++) {
        dp_schedule_t *s = NULL;
        dp_status_t status;

        oom_arm(k, _i);
        status = read_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", &s);
        struck = oom_struck();
        oom_disarm();
        ck_assert_int_eq(status, struck ? DP_ERR_NOMEM : DP_OK);
        dp_schedule_free(s);
        ck_assert_int_eq(oom_live(), 0);
    }
    ck_assert_int_gt(k, 3);
    oom_uninstall();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schedule_csv");
    TCase *tc = tcase_create("csv");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, round_trip);
    tcase_add_test(tc, known_text);
    tcase_add_test(tc, write_errors_are_passed_on);
    tcase_add_test(tc, reader_is_lenient_where_it_can_be);
    tcase_add_loop_test(tc, malformed_files_are_refused, 0, (int)(sizeof(malformed) / sizeof(malformed[0])));
    tcase_add_test(tc, too_many_ranks);
    tcase_add_test(tc, damaged_files_never_crash);
    tcase_add_loop_test(tc, out_of_memory, 0, 2);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
