/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_system_read_at.c: a range of a file is there whole, or what is missing is told, however the
 * kernel hands it out. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "system/read_at.h"
#include "tests/support/suite.h"

/* The kernel of these tests: `most` bytes at a time, every other call is interrupted, and from byte
 * `broken_at` on the disk is broken. */
static size_t most;
static off_t broken_at;
static int calls;

ssize_t pread(int fd, void *data, size_t bytes, off_t at)
{
    if (calls++ % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    if (at >= broken_at) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, fd, data, bytes < most ? bytes : most, at);
}

static FILE *file;

static void open_file(void)
{
    file = tmpfile();
    ck_assert_ptr_nonnull(file);
    ck_assert_int_gt(fputs("0123456789abcdef", file), 0);
    ck_assert_int_eq(fflush(file), 0);
    most = 3;
    broken_at = 1000;
    calls = 0;
}

START_TEST(all_bytes_come_in_pieces_and_past_signals)
{
    char text[10] = "";

    open_file();
    ck_assert_uint_eq(dp__read_at(fileno(file), text, 9, 4), 0);
    ck_assert_str_eq(text, "456789abc");
    ck_assert_int_eq(calls, 6);
    ck_assert_uint_eq(dp__read_at(fileno(file), NULL, 0, 4), 0);
    fclose(file);
}
END_TEST

START_TEST(a_file_that_ends_leaves_errno_0)
{
    char text[32];

    open_file();
    errno = EIO;
    ck_assert_uint_eq(dp__read_at(fileno(file), text, 20, 4), 8);
    ck_assert_int_eq(errno, 0);
    ck_assert_int_eq(memcmp(text, "456789abcdef", 12), 0);
    fclose(file);
}
END_TEST

START_TEST(a_failure_says_why_and_what_is_missing)
{
    char text[32];

    open_file();
    broken_at = 6;
    ck_assert_uint_eq(dp__read_at(fileno(file), text, 12, 0), 6);
    ck_assert_int_eq(errno, EIO);
    ck_assert_uint_eq(dp__read_at(-1, text, 12, 0), 12);
    ck_assert_int_eq(errno, EBADF);
    fclose(file);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("system/read_at");

    SUITE_ADD(suite, all_bytes_come_in_pieces_and_past_signals);
    SUITE_ADD(suite, a_file_that_ends_leaves_errno_0);
    SUITE_ADD(suite, a_failure_says_why_and_what_is_missing);
    return suite_run(suite);
}
