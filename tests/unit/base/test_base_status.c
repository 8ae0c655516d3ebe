/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_base_status.c: status names, messages by thread, and where log lines go. */
#include <dualpipe/status.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sized.h"
#include "tests/support/suite.h"

typedef struct dp_options_like {
    uint32_t struct_size;
    int32_t count;
    const char *name;
} dp_options_like_t;
#define TAKE(to, from) dp__take("f: options", dp_options_like_t, sizeof(dp_options_like_t), to, from)

#define STATUS(code)                                                                                                   \
    {                                                                                                                  \
        code, #code                                                                                                    \
    }
static const struct {
    dp_status_t code;
    const char *name;
} statuses[] = {
    STATUS(DP_OK),           STATUS(DP_PENDING),         STATUS(DP_ERR_INVALID),     STATUS(DP_ERR_NOMEM),
    STATUS(DP_ERR_PLUGIN),   STATUS(DP_ERR_PEER),        STATUS(DP_ERR_TIMEOUT),     STATUS(DP_ERR_PROTOCOL),
    STATUS(DP_ERR_NUMERIC),  STATUS(DP_ERR_IO),          STATUS(DP_ERR_MISMATCH),    STATUS(DP_ERR_RENDEZVOUS),
    STATUS(DP_ERR_REJECTED), STATUS(DP_ERR_UNSUPPORTED), STATUS(DP_ERR_ABORTED),     STATUS(DP_ERR_SECURITY),
    STATUS(DP_ERR_DEVICE),   STATUS(DP_ERR_OVERFLOW),    STATUS(DP_ERR_INTERRUPTED), STATUS(DP_ERR_LOST),
    STATUS(DP_ERR_CORRUPT),
};
#define N_STATUSES (sizeof(statuses) / sizeof(statuses[0]))

START_TEST(every_code_has_its_own_name)
{
    for (size_t i = 0; i < N_STATUSES; i++)
        ck_assert_str_eq(dp_status_name(statuses[i].code), statuses[i].name);
    /* the negative codes are contiguous: one past the last is unknown, so the list above is
     * complete */
    ck_assert_int_eq(statuses[N_STATUSES - 1].code, -(dp_status_t)(N_STATUSES - 2));
    ck_assert_str_eq(dp_status_name(statuses[N_STATUSES - 1].code - 1), "DP_ERR_?");
    ck_assert_str_eq(dp_status_name(2), "DP_ERR_?");
    ck_assert_str_eq(dp_status_name(INT32_MIN), "DP_ERR_?");
    ck_assert_str_eq(dp_status_name(INT32_MAX), "DP_ERR_?");
}
END_TEST

START_TEST(version_text_and_number_agree)
{
    int major = -1, minor = -1, patch = -1;

    ck_assert_str_eq(dp_version(), DP_VERSION);
    ck_assert_int_eq(sscanf(dp_version(), "%d.%d.%d", &major, &minor, &patch), 3);
    ck_assert_int_eq(10000 * major + 100 * minor + patch, DP_VERSION_NUMBER);
}
END_TEST

START_TEST(failing_records_and_returns)
{
    ck_assert_str_eq(dp_last_error(), "");
    ck_assert_int_eq(dp_fail(DP_ERR_PEER, "rank %d: %s", 3, "gone"), DP_ERR_PEER);
    ck_assert_str_eq(dp_last_error(), "rank 3: gone");
    ck_assert_int_eq(dp_fail(DP_ERR_IO, "second"), DP_ERR_IO);
    ck_assert_str_eq(dp_last_error(), "second");
}
END_TEST

START_TEST(a_message_may_quote_the_one_before)
{
    (void)dp_fail(DP_ERR_IO, "disk full");
    (void)dp_fail(DP_ERR_ABORTED, "step 4: %s", dp_last_error());
    ck_assert_str_eq(dp_last_error(), "step 4: disk full");
}
END_TEST

START_TEST(messages_are_cut_at_1023_bytes)
{
    static const size_t lengths[] = {1022, 1023, 1024, 5000};
    char text[5001];

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        size_t n = lengths[i];

        memset(text, 'x', n);
        text[n] = '\0';
        ck_assert_int_eq(dp_fail(DP_ERR_INVALID, "%s", text), DP_ERR_INVALID);
        ck_assert_uint_eq(strlen(dp_last_error()), n < 1023 ? n : 1023);
    }
}
END_TEST

static void *other_thread(void *before_out)
{
    *(size_t *)before_out = strlen(dp_last_error());
    (void)dp_fail(DP_ERR_NOMEM, "of the other thread");
    return NULL;
}

START_TEST(messages_belong_to_their_thread)
{
    size_t before = 1;
    pthread_t thread;

    (void)dp_fail(DP_ERR_IO, "of this thread");
    ck_assert_int_eq(pthread_create(&thread, NULL, other_thread, &before), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_eq(before, 0);
    ck_assert_str_eq(dp_last_error(), "of this thread");
}
END_TEST

typedef struct heard {
    int lines, level;
    char origin[32], message[2048];
} heard_t;

static void hear(void *user, int level, const char *origin, const char *message)
{
    heard_t *heard = user;

    heard->lines++;
    heard->level = level;
    snprintf(heard->origin, sizeof(heard->origin), "%s", origin);
    snprintf(heard->message, sizeof(heard->message), "%s", message);
}

START_TEST(log_lines_reach_the_chosen_function)
{
    heard_t heard = {0};

    dp_log_set(hear, &heard, DP_LOG_INFO);
    dp_log(DP_LOG_INFO, "engine", "step %d", 7);
    ck_assert_int_eq(heard.lines, 1);
    ck_assert_int_eq(heard.level, DP_LOG_INFO);
    ck_assert_str_eq(heard.origin, "engine");
    ck_assert_str_eq(heard.message, "step 7");
    dp_log(DP_LOG_DEBUG, "engine", "not heard");
    ck_assert_int_eq(heard.lines, 1);
    dp_log(DP_LOG_ERROR, "engine", "heard");
    ck_assert_int_eq(heard.lines, 2);
    dp_log_set(NULL, NULL, 0);
}
END_TEST

START_TEST(long_log_lines_are_cut_not_lost)
{
    heard_t heard = {0};
    char text[3000];

    memset(text, 'y', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    dp_log_set(hear, &heard, DP_LOG_INFO);
    dp_log(DP_LOG_WARN, "engine", "%s", text);
    ck_assert_int_eq(heard.lines, 1);
    ck_assert_uint_ge(strlen(heard.message), 1000);
    ck_assert_uint_lt(strlen(heard.message), sizeof(heard.message));
    dp_log_set(NULL, NULL, 0);
}
END_TEST

/* One line of each level by the default target; what arrived on `descriptor`, as a string. */
static void capture_default(int descriptor, char *text, size_t bytes)
{
    char path[] = "/tmp/dp-test-XXXXXX";
    int file = mkstemp(path), saved = dup(descriptor);
    ssize_t n;

    ck_assert_int_ge(file, 0);
    ck_assert_int_ge(saved, 0);
    unlink(path);
    fflush(NULL);
    ck_assert_int_ge(dup2(file, descriptor), 0);
    dp_log(DP_LOG_ERROR, "room", "an error");
    dp_log(DP_LOG_WARN, "room", "a warning");
    dp_log(DP_LOG_INFO, "room", "a note");
    dp_log(DP_LOG_DEBUG, "room", "a detail");
    fflush(NULL);
    ck_assert_int_ge(dup2(saved, descriptor), 0);
    n = pread(file, text, bytes - 1, 0);
    ck_assert_int_ge(n, 0);
    text[n] = '\0';
    close(file);
    close(saved);
}

START_TEST(default_target_is_stderr_by_level)
{
    static const struct {
        const char *value;
        int lines;
    } cases[] = {{NULL, 2}, {"error", 1}, {"warn", 2}, {"info", 3}, {"debug", 4}, {"nonsense", 2}, {"", 2}};
    static const char *const lines[] = {"an error", "a warning", "a note", "a detail"};
    char text[1024];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (cases[i].value != NULL)
            setenv("DUALPIPE_LOG", cases[i].value, 1);
        else
            unsetenv("DUALPIPE_LOG");
        dp_log_set(NULL, NULL, 0);
        capture_default(STDERR_FILENO, text, sizeof(text));
        for (int line = 0; line < 4; line++)
            ck_assert_msg((strstr(text, lines[line]) != NULL) == (line < cases[i].lines), "DUALPIPE_LOG=%s: %s",
                          cases[i].value != NULL ? cases[i].value : "(unset)", text);
        ck_assert_ptr_nonnull(strstr(text, "room"));
    }
}
END_TEST

START_TEST(nothing_goes_to_stdout)
{
    char text[1024];

    setenv("DUALPIPE_LOG", "debug", 1);
    dp_log_set(NULL, NULL, 0);
    capture_default(STDOUT_FILENO, text, sizeof(text));
    ck_assert_str_eq(text, "");
}
END_TEST

/* ---- structs that say their size ---- */

START_TEST(what_asks_and_is_not_known_is_refused)
{
    struct {
        dp_options_like_t known;
        unsigned char more[8];
    } from = {{.struct_size = sizeof(from), .count = 7}, {0}};
    const uint32_t known = sizeof(from.known);
    dp_options_like_t own;

    ck_assert_int_eq(TAKE(&own, &from), DP_OK);
    ck_assert_uint_eq(own.struct_size, known);
    ck_assert_int_eq(own.count, 7);
    from.more[3] = 1;
    ck_assert_uint_eq(dp_sized_take(&own, known, &from), known + 3);
    ck_assert_int_eq(TAKE(&own, &from), DP_ERR_UNSUPPORTED);
    ck_assert_str_eq(dp_last_error(), "f: options: byte 19 of dp_options_like_t is set, but this library (" DP_VERSION
                                      ") knows 16 bytes: use a newer library, or leave newer members zero");
    from.known.struct_size = DP_SIZED_MOST + 1; /* nothing behind the struct is read */
    ck_assert_uint_eq(dp_sized_take(&own, known, &from), DP_SIZED_MOST);
    ck_assert_int_eq(TAKE(&own, &from), DP_ERR_INVALID);
    from.known.struct_size = 4;
    ck_assert_int_eq(TAKE(&own, &from), DP_ERR_INVALID);
    ck_assert_str_eq(dp_last_error(), "f: options: struct_size is 4, at least 16 is needed: set it to "
                                      "sizeof(dp_options_like_t)");
    ck_assert_int_eq(TAKE(&own, NULL), DP_ERR_INVALID);
    ck_assert_str_eq(dp_last_error(), "f: options is NULL");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/status");

    SUITE_ADD(suite, every_code_has_its_own_name);
    SUITE_ADD(suite, version_text_and_number_agree);
    SUITE_ADD(suite, failing_records_and_returns);
    SUITE_ADD(suite, a_message_may_quote_the_one_before);
    SUITE_ADD(suite, messages_are_cut_at_1023_bytes);
    SUITE_ADD(suite, messages_belong_to_their_thread);
    SUITE_ADD(suite, log_lines_reach_the_chosen_function);
    SUITE_ADD(suite, long_log_lines_are_cut_not_lost);
    SUITE_ADD(suite, default_target_is_stderr_by_level);
    SUITE_ADD(suite, nothing_goes_to_stdout);
    SUITE_ADD(suite, what_asks_and_is_not_known_is_refused);
    return suite_run(suite);
}
