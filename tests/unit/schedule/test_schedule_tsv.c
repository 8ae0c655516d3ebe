/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_schedule_tsv.c: what is written can be read back, byte for byte, and broken files are
 * refused with their line. */
#include "tests/support/suite.h"

#include <dualpipe/schedule.h>
#include <stdio.h>
#include <string.h>

typedef struct text {
    char bytes[1 << 20];
    size_t used;
    int calls, fail_at;
} text_t;

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

static dp_schedule_t *generate(const char *method, int32_t ranks, int32_t microbatches, int32_t forward_only)
{
    dp_schedule_request_t request = {sizeof(request), method, ranks, microbatches, 0, forward_only, 0};
    dp_schedule_t *s = NULL;

    ck_assert_msg(dp_schedule_generate(&request, &s) == DP_OK, "%s", dp_last_error());
    return s;
}

START_TEST(round_trip)
{
    static text_t a, b;
    size_t count;
    const dp_method_t *methods = dp_schedule_methods(&count);

    for (size_t m = 0; m < count; m++)
        for (int forward_only = 0; forward_only < 2; forward_only++) {
            dp_schedule_t *s = generate(methods[m].name, 4, 12, forward_only), *back = NULL;

            a.used = b.used = 0;
            a.fail_at = b.fail_at = -1;
            ck_assert_int_eq(dp_schedule_write_tsv(s, -1, append, &a), DP_OK);
            ck_assert_msg(dp_schedule_read_tsv("a", a.bytes, a.used, &back) == DP_OK, "%s", dp_last_error());
            ck_assert_str_eq(back->method, methods[m].name);
            ck_assert_int_eq(back->placement, methods[m].placement);
            ck_assert_int_eq(back->forward_only, forward_only);
            ck_assert_int_eq(back->ranks, 4);
            ck_assert_int_eq(back->microbatches, 12);
            ck_assert_int_eq(back->chunks, s->chunks);
            ck_assert_int_eq(back->first[4], s->first[4]);
            ck_assert_int_eq(dp_schedule_write_tsv(back, -1, append, &b), DP_OK);
            ck_assert_str_eq(a.bytes, b.bytes);
            dp_schedule_free(back);
            dp_schedule_free(s);
        }
}
END_TEST

START_TEST(one_rank_is_written)
{
    static text_t t = {.fail_at = -1};
    dp_schedule_t *s = generate("1f1b", 2, 2, 0);

    ck_assert_int_eq(dp_schedule_write_tsv(s, 1, append, &t), DP_OK);
    ck_assert_str_eq(t.bytes, "# method=1f1b ranks=2 microbatches=2 chunks=1 placement=line\n"
                              "#rank\tseq\top\tdir\tmb\tdir2\tmb2\tpeer\tn\n"
                              "1\t0\tF\t0\t0\t-1\t-1\t-1\t-1\n"
                              "1\t1\tB\t0\t0\t-1\t-1\t-1\t-1\n"
                              "1\t2\tF\t0\t1\t-1\t-1\t-1\t-1\n"
                              "1\t3\tB\t0\t1\t-1\t-1\t-1\t-1\n");
    ck_assert_int_eq(dp_schedule_write_tsv(s, 2, append, &t), DP_ERR_INVALID);
    ck_assert_int_eq(dp_schedule_write_tsv(s, -2, append, &t), DP_ERR_INVALID);
    dp_schedule_free(s);
}
END_TEST

START_TEST(write_errors_are_passed_on)
{
    static text_t t;
    dp_schedule_t *s = generate("dualpipe", 8, 64, 0);
    int calls;

    t.fail_at = -1;
    ck_assert_int_eq(dp_schedule_write_tsv(s, -1, append, &t), DP_OK);
    calls = t.calls;
    ck_assert_int_gt(calls, 2);
    for (int k = 0; k < calls; k++) {
        t.calls = 0;
        t.used = 0;
        t.fail_at = k;
        ck_assert_int_eq(dp_schedule_write_tsv(s, -1, append, &t), DP_ERR_IO);
        ck_assert_str_eq(dp_last_error(), "the disk is full");
    }
    dp_schedule_free(s);
}
END_TEST

#define HEAD "# method=x ranks=1 microbatches=2 chunks=1 placement=line\n"
#define F0   "0\t0\tF\t0\t0\t-1\t-1\t-1\t-1\n"
#define B0   "0\t1\tB\t0\t0\t-1\t-1\t-1\t-1\n"

static const struct {
    const char *text, *message;
} malformed[] = {
    {"", "f: no operations"},
    {"# only a comment\n", "f: no operations"},
    {"0\t0\tF\n", "f:1: 3 columns; 9 are needed"},
    {F0 "\n\n0\t1\tX\t0\t0\t-1\t-1\t-1\t-1\n", "f:4: 'X' is no operation"},
    {F0 "0\t1\tFB\t0\t0\t-1\t-1\t-1\t-1\n", "f:2: dir2 -1 is out of range"},
    {F0 "0\t1\tFB\t0\t1\t0\t-1\t-1\t-1\n", "f:2: mb2 -1 is out of range"},
    {F0 "0\t1\tB\t0\t0\t0\t-1\t-1\t-1\n", "f:2: dir2 is 0; only FB has it"},
    {F0 "0\t1\tB\t0\t0\t-1\t0\t-1\t-1\n", "f:2: mb2 is 0; only FB has it"},
    {F0 "0\t1\tB\t0\t0\t-1\t-1\t-1\t-1\t5\n", "f:2: more than 9 columns"},
    {F0 "0\t1\tB\t0\t0\t-1\t-1\t-1\n", "f:2: 8 columns"},
    {"zero\t0\tF\t0\t0\t-1\t-1\t-1\t-1\n", "f:1: rank is 'zero'; a number is needed"},
    {"0\t\tF\t0\t0\t-1\t-1\t-1\t-1\n", "f:1: seq is ''; a number is needed"},
    {"0\t0\tF\t0x1\t0\t-1\t-1\t-1\t-1\n", "f:1: dir is '0x1'; a number is needed"},
    {"0\t0\tF\t0\t 1\t-1\t-1\t-1\t-1\n", "f:1: mb is ' 1'; a number is needed"},
    {"0\t0\tF\t0\t99999999999999999999\t-1\t-1\t-1\t-1\n", "f:1: mb is '99999999999999999999'; a number is needed"},
    {"0\t0\tF\t0\t9999999999\t-1\t-1\t-1\t-1\n", "f:1: mb is 9999999999; -1 to 2147483647 are possible"},
    {"0\t0\tF\t0\t-\t-1\t-1\t-1\t-1\n", "f:1: mb is '-'; a number is needed"},
    {"4096\t0\tF\t0\t0\t-1\t-1\t-1\t-1\n", "f:1: rank 4096; 0 to 4095 are possible"},
    {"-1\t0\tF\t0\t0\t-1\t-1\t-1\t-1\n", "f:1: rank -1;"},
    {"0\t-1\tF\t0\t0\t-1\t-1\t-1\t-1\n", "f:1: seq is negative"},
    {"0\t0\tF\t64\t0\t-1\t-1\t-1\t-1\n", "f:1: dir 64 is out of range"},
    {"0\t0\tF\t0\t65536\t-1\t-1\t-1\t-1\n", "f:1: mb 65536 is out of range"},
    {F0 "0\t0\tB\t0\t0\t-1\t-1\t-1\t-1\n", "f:2: seq 0 of rank 0 comes after seq 0; it must rise"},
    {HEAD F0 B0 "0\t2\tF\t0\t2\t-1\t-1\t-1\t-1\n", "f:4: micro-batch 2; a path has 2"},
    {"# method=x ranks=0\n" F0, "f:1: ranks is 0; 1 to 4096 are possible"},
    {"# method=x ranks=4097\n" F0, "f:1: ranks is 4097; 1 to 4096 are possible"},
    {"# method=x ranks=two\n" F0, "f:1: ranks is 'two'; a number is needed"},
    {"# method=x microbatches=65537\n" F0, "f:1: microbatches is 65537;"},
    {"# method=x chunks=65\n" F0, "f:1: chunks is 65;"},
    {"# method=x placement=ring\n" F0, "f:1: placement 'ring'; there are line, loop, v and bidirectional"},
    {"# method=\n" F0, "f:1: method name of 0 bytes"},
    {"# method=abcdefghijklmnopqrstuvwxyzabcdef\n" F0, "f:1: method name of 32 bytes"},
    {"# method=a\tb\n" F0, "f:1: method name with unprintable bytes"},
    {"# method=x forward_only=2\n" F0, "f:1: forward_only is 2;"},
    {"# method=x forward_only=1\n" F0 B0, "f: has backwards, but says forward_only=1"},
    {"# method=x ranks=1\n1\t0\tF\t0\t0\t-1\t-1\t-1\t-1\n", "f: has rank 1, but says ranks=1"},
    {"# method=x chunks=1\n0\t0\tF\t1\t0\t-1\t-1\t-1\t-1\n", "f: has chunk 1, but says chunks=1"},
    {"# method=x placement=v\n" F0, "schedule: placement v has exactly 2 chunks per rank, not 1"},
    {"# method=x placement=bidirectional microbatches=3 chunks=2\n" F0, "schedule: 3 micro-batches; two directions"},
    {"# method=x placement=bidirectional chunks=2 ranks=3\n" F0, "schedule: 3 ranks; two directions"},
    /* two chunks, and no placement makes sense of them */
    {"0\t0\tF\t0\t0\t-1\t-1\t-1\t-1\n0\t1\tF\t1\t1\t-1\t-1\t-1\t-1\n", "f: no placement fits the rows"},
};

START_TEST(malformed_files_are_refused)
{
    dp_schedule_t *s = NULL;

    ck_assert_int_eq(dp_schedule_read_tsv("f", malformed[_i].text, strlen(malformed[_i].text), &s), DP_ERR_INVALID);
    ck_assert_ptr_null(s);
    ck_assert_msg(strstr(dp_last_error(), malformed[_i].message) == dp_last_error(), "%s", dp_last_error());
}
END_TEST

START_TEST(reader_is_lenient_where_it_can_be)
{
    /* no end of line at the end, \r\n, blank lines, recorded transfers, ranks in any order, later
     * versions' words */
    static const char text[] = "# method=mine ranks=2 microbatches=1 colour=blue plain\r\n"
                               "1\t3\tF\t0\t0\t-1\t-1\t-1\t-1\r\n\r\n"
                               "0\t0\tF\t0\t0\t-1\t-1\t-1\t-1\n"
                               "0\t1\tSF\t0\t0\t-1\t-1\t1\t-1\n"
                               "0\t2\tC\t-1\t-1\t-1\t-1\t-1\t1\n"
                               "1\t7\tB\t0\t0\t-1\t-1\t-1\t-1\n"
                               "0\t9\tB\t0\t0\t-1\t-1\t-1\t-1";
    dp_schedule_t *s = NULL;

    ck_assert_msg(dp_schedule_read_tsv("f", text, sizeof(text) - 1, &s) == DP_OK, "%s", dp_last_error());
    ck_assert_str_eq(s->method, "mine");
    ck_assert_int_eq(s->placement, DP_PLACE_LINE);
    ck_assert_int_eq(s->ranks, 2);
    ck_assert_int_eq(s->first[1], 2);
    ck_assert_int_eq(s->first[2], 4);
    ck_assert_int_eq(s->ops[3].kind, DP_OP_B);
    ck_assert_int_eq(dp_schedule_verify(s), DP_OK);
    dp_schedule_free(s);
}
END_TEST

/* Every prefix of a good file, and every byte of it changed: an error or a schedule, never more. */
START_TEST(damaged_files_never_crash)
{
    static text_t t = {.fail_at = -1};
    dp_schedule_t *s = generate("dualpipev", 2, 4, 0), *back;

    ck_assert_int_eq(dp_schedule_write_tsv(s, -1, append, &t), DP_OK);
    for (size_t end = 0; end <= t.used; end++)
        if (dp_schedule_read_tsv("f", t.bytes, end, &back) == DP_OK) {
            ck_assert_int_le(dp_schedule_verify(back), DP_OK);
            dp_schedule_free(back);
        }
    for (size_t at = 0; at < t.used; at++)
        for (int bit = 0; bit < 8; bit++) {
            t.bytes[at] ^= (char)(1 << bit);
            if (dp_schedule_read_tsv("f", t.bytes, t.used, &back) == DP_OK) {
                ck_assert_int_le(dp_schedule_verify(back), DP_OK);
                dp_schedule_free(back);
            }
            t.bytes[at] ^= (char)(1 << bit);
        }
    dp_schedule_free(s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schedule_tsv");
    TCase *tc = tcase_create("tsv");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, round_trip);
    tcase_add_test(tc, one_rank_is_written);
    tcase_add_test(tc, write_errors_are_passed_on);
    tcase_add_loop_test(tc, malformed_files_are_refused, 0, (int)(sizeof(malformed) / sizeof(malformed[0])));
    tcase_add_test(tc, reader_is_lenient_where_it_can_be);
    tcase_add_test(tc, damaged_files_never_crash);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
