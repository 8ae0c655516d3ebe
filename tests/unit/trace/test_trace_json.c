/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_trace_json.c: tokens, in blocks of every size; what is refused, and at which byte; times. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/suite.h"
#include "tests/support/trace_text.h"

/* All tokens as text: {k:"a"n1...} */
static dp_status_t spell(const char *text, size_t block, char *out, size_t room)
{
    static const char letters[] = ".{}[]ksntfz";
    trace_text_t from = trace_text_of(text);
    dp__trace_json_reader_t *reader;
    dp__trace_json_token_t token;
    size_t used = 0;
    dp_status_t status;

    from.block = block;
    out[0] = 0;
    ck_assert_int_eq(dp__trace_json_open(trace_text_read, &from, &reader), DP_OK);
    while ((status = dp__trace_json_next(reader, &token)) == DP_OK && token.kind != DP__JSON_END)
        used += (size_t)snprintf(out + used, room - used, "%c%s ", letters[token.kind], token.text);
    dp__trace_json_close(reader);
    return status;
}

START_TEST(tokens_do_not_depend_on_blocks)
{
    static const char *const text =
        " {\"a\" : [1, -2.5e+3,{\"b\\\"\\n\":null}, true,false ],\"\":\"\\u00e9\\ud83d\\ude00x\"} ";
    static const char *const wanted = "{ ka [ n1 n-2.5e+3 { kb\"\n z } t f ] k s\xc3\xa9\xf0\x9f\x98\x80x } ";
    char out[512];

    for (size_t block = 0; block < 70; block++) {
        ck_assert_msg(spell(text, block, out, sizeof(out)) == DP_OK, "blocks of %zu: %s", block, dp_last_error());
        ck_assert_str_eq(out, wanted);
    }
}
END_TEST

START_TEST(lenient_where_traces_are)
{
    char out[512];

    ck_assert_int_eq(spell("[NaN,Infinity,-Infinity]", 0, out, sizeof(out)), DP_OK);
    ck_assert_str_eq(out, "[ nNaN nInfinity n-Infinity ] ");
    /* The array at the top need not be closed, with or without a comma; no other may be open. */
    ck_assert_int_eq(spell("[{},{}", 0, out, sizeof(out)), DP_OK);
    ck_assert_str_eq(out, "[ { } { } ] ");
    ck_assert_int_eq(spell("[{},{},\n", 0, out, sizeof(out)), DP_OK);
    ck_assert_str_eq(out, "[ { } { } ] ");
    ck_assert_int_eq(spell("[", 0, out, sizeof(out)), DP_OK);
    /* Lone halves of surrogate pairs, and 0. */
    ck_assert_int_eq(spell("[\"\\ud800\", \"\\ud800\\n\", \"\\udc00a\", \"\\ud800\\ud83d\\ude00\", \"\\u0000b\"]", 0,
                           out, sizeof(out)),
                     DP_OK);
    ck_assert_str_eq(out, "[ s\xef\xbf\xbd s\xef\xbf\xbd\n s\xef\xbf\xbd"
                          "a s\xef\xbf\xbd\xf0\x9f\x98\x80 s\xef\xbf\xbd"
                          "b ] ");
}
END_TEST

START_TEST(errors_name_the_byte)
{
    static const struct {
        const char *text;
        int byte;
    } wrong[] = {{"", 0},          {"   ", 3},           {"{", 1},           {"{\"a\"", 4},
                 {"{\"a\":", 5},   {"{\"a\":1", 6},      {"{\"a\":1,", 7},   {"{\"a\":1,}", 7},
                 {"[1,]", 3},      {"[1 2]", 3},         {"{a:1}", 1},       {"{\"a\" 1}", 5},
                 {"[01]", 1},      {"[1.]", 1},          {"[-]", 1},         {"[.5]", 1},
                 {"[1e]", 1},      {"[tru]", 4},         {"[nul", 4},        {"[\"a", 3},
                 {"[\"\\x\"]", 3}, {"[\"\\u12g4\"]", 6}, {"[\"a\nb\"]", 3},  {"[1]x", 3},
                 {"[}", 1},        {"[{]", 2},           {"[[1}", 3},        {"[[1", 3},
                 {"\"", 1},        {"[1]]", 3},          {"[{\"a\":[1,", 9}, {"[\"\\", 3},
                 {"[12", 3}};

    for (size_t k = 0; k < sizeof(wrong) / sizeof(wrong[0]); k++) {
        char out[512], byte[32];

        ck_assert_msg(spell(wrong[k].text, 1, out, sizeof(out)) == DP_ERR_REJECTED, "%s was read", wrong[k].text);
        snprintf(byte, sizeof(byte), "byte %d:", wrong[k].byte);
        ck_assert_msg(strncmp(dp_last_error(), byte, strlen(byte)) == 0, "%s: %s", wrong[k].text, dp_last_error());
    }
}
END_TEST

START_TEST(nesting_has_a_limit)
{
    char text[2 * DP__JSON_DEPTH + 8], out[4 * DP__JSON_DEPTH];

    for (int depth = DP__JSON_DEPTH; depth <= DP__JSON_DEPTH + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        text[2 * depth] = 0;
        ck_assert_int_eq(spell(text, 0, out, sizeof(out)), depth > DP__JSON_DEPTH ? DP_ERR_REJECTED : DP_OK);
    }
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "byte 128"));
}
END_TEST

START_TEST(long_strings_are_cut_and_skipped)
{
    size_t n = 3 * DP__JSON_TEXT_BYTES;
    char *text = malloc(n + 32);
    trace_text_t from;
    dp__trace_json_reader_t *reader;
    dp__trace_json_token_t token;

    ck_assert_ptr_nonnull(text);
    memset(text, 'x', n + 32);
    memcpy(text, "[\"", 2);
    strcpy(text + n, "\",{\"a\":[[{}]]},7]");
    from = trace_text_of(text);
    from.block = 1000;
    ck_assert_int_eq(dp__trace_json_open(trace_text_read, &from, &reader), DP_OK);
    ck_assert_int_eq(dp__trace_json_next(reader, &token), DP_OK);
    ck_assert_int_eq(dp__trace_json_next(reader, &token), DP_OK);
    ck_assert_uint_eq(strlen(token.text), DP__JSON_TEXT_BYTES - 1);
    ck_assert_int_eq(dp__trace_json_next(reader, &token), DP_OK);
    ck_assert_int_eq(token.kind, DP__JSON_OBJECT);
    ck_assert_uint_eq(token.offset, n + 2);
    ck_assert_int_eq(dp__trace_json_skip(reader, &token), DP_OK);
    ck_assert_int_eq(dp__trace_json_next(reader, &token), DP_OK);
    ck_assert_str_eq(token.text, "7");
    dp__trace_json_close(reader);
    free(text);
}
END_TEST

START_TEST(bytes_are_kept_across_blocks)
{
    static const char *const text = "[ {\"a\":  1}, {\"b\":\"\\n\"}]";

    for (size_t block = 1; block < 30; block++) {
        trace_text_t from = trace_text_of(text);
        dp__trace_json_reader_t *reader;
        dp__trace_json_token_t token;
        const char *kept;
        size_t bytes;

        from.block = block;
        ck_assert_int_eq(dp__trace_json_open(trace_text_read, &from, &reader), DP_OK);
        ck_assert_int_eq(dp__trace_json_next(reader, &token), DP_OK);
        ck_assert_int_eq(dp__trace_json_next(reader, &token), DP_OK);
        dp__trace_json_keep(reader, &token);
        ck_assert_int_eq(dp__trace_json_skip(reader, &token), DP_OK);
        ck_assert_int_eq(dp__trace_json_kept(reader, &kept, &bytes), DP_OK);
        ck_assert_uint_eq(bytes, 9);
        ck_assert_mem_eq(kept, "{\"a\":  1}", 9);
        ck_assert_int_eq(dp__trace_json_next(reader, &token), DP_OK);
        dp__trace_json_keep(reader, &token);
        ck_assert_int_eq(dp__trace_json_skip(reader, &token), DP_OK);
        ck_assert_int_eq(dp__trace_json_kept(reader, &kept, &bytes), DP_OK);
        ck_assert_uint_eq(bytes, 10);
        ck_assert_mem_eq(kept, "{\"b\":\"\\n\"}", 10);
        dp__trace_json_close(reader);
    }
}
END_TEST

START_TEST(times_keep_their_nanoseconds)
{
    static const struct {
        const char *text;
        bool good;
        int64_t ns;
    } cases[] = {{"0", true, 0},
                 {"1740461679470692", true, 1740461679470692000},
                 {"1740461679470692.123", true, 1740461679470692123},
                 {"1740461679470692.1235", true, 1740461679470692124},
                 {"0.9999", true, 1000},
                 {"-1.5", true, -1500},
                 {"1.25e3", true, 1250000},
                 {"2305843009213693", true, 2305843009213693000},
                 {"2305843009213694", false, 0},
                 {"99999999999999999999", false, 0},
                 {"1e300", false, 0},
                 {"NaN", false, 0},
                 {"-Infinity", false, 0},
                 {"12a", false, 0},
                 {"", false, 0},
                 {"-", false, 0},
                 {".", false, 0},
                 {"later", false, 0},
                 {"1e3 us", false, 0}};

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        int64_t ns = 0;

        ck_assert_msg(dp__trace_json_nanoseconds(cases[k].text, &ns) == cases[k].good, "%s", cases[k].text);
        if (cases[k].good)
            ck_assert_int_eq(ns, cases[k].ns);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trace_json");

    SUITE_ADD(suite, tokens_do_not_depend_on_blocks);
    SUITE_ADD(suite, lenient_where_traces_are);
    SUITE_ADD(suite, errors_name_the_byte);
    SUITE_ADD(suite, nesting_has_a_limit);
    SUITE_ADD(suite, long_strings_are_cut_and_skipped);
    SUITE_ADD(suite, bytes_are_kept_across_blocks);
    SUITE_ADD(suite, times_keep_their_nanoseconds);
    return suite_run(suite);
}
