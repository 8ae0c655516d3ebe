/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_system_entries.c: variables that hold a list of key=value. */
#include "system/entries.h"

#include "tests/support/suite.h"

#include <dualpipe/group.h>

#include <stdlib.h>
#include <string.h>

#define LIST "DUALPIPE_PLUGINS"

static void expect_entry(const char *list, const char *key, const char *value)
{
    size_t n = 7;
    const char *found;

    ck_assert_int_eq(setenv(LIST, list, 1), 0);
    found = dp__environment_entry(LIST, key, &n);
    if (value == NULL) {
        ck_assert_ptr_null(found);
        ck_assert_uint_eq(n, 0);
        return;
    }
    ck_assert_ptr_nonnull(found);
    ck_assert_uint_eq(n, strlen(value));
    ck_assert_mem_eq(found, value, n);
}

START_TEST(the_last_entry_of_a_key_counts)
{
    size_t n;

    unsetenv(LIST);
    ck_assert_ptr_null(dp__environment_entry(LIST, "comm", &n));
    expect_entry("", "comm", NULL);
    expect_entry("comm", "comm", NULL);
    expect_entry("comm=", "comm", NULL);
    expect_entry("comm=shm", "comm", "shm");
    expect_entry("comm=shm", "com", NULL);
    expect_entry("xcomm=shm", "comm", NULL);
    expect_entry("moe=cpu,comm=/a b/c=d.so,device=cpu", "comm", "/a b/c=d.so");
    expect_entry(",,comm=shm,,", "comm", "shm");
    expect_entry("comm=shm,comm=ofi", "comm", "ofi");
    expect_entry("comm=shm,comm=", "comm", NULL);
}
END_TEST

START_TEST(keys_that_do_not_exist_are_refused)
{
    static const struct {
        const char *list, *words;
    } cases[] = {
        {"comm=shm,,moe=cpu,", NULL},
        {"comm", "\"comm\" is not key=value with one of the keys comm, moe"},
        {"comm=shm,com=ofi", "\"com=ofi\" is not"},
        {"=shm", "\"=shm\" is not"},
        {"moe.way=1", "\"moe.way=1\" is not"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ck_assert_int_eq(setenv(LIST, cases[i].list, 1), 0);
        ck_assert_int_eq(dp__environment_keys(LIST, "comm, moe", 0), cases[i].words == NULL ? DP_OK : DP_ERR_INVALID);
        if (cases[i].words != NULL)
            ck_assert_ptr_nonnull(strstr(dp_last_error(), cases[i].words));
    }
}
END_TEST

/* Keys with a dot are a plugin's, which refuses what it does not know itself. */
START_TEST(a_group_refuses_unknown_settings_for_developers)
{
    dp_group_t *group;

    setenv("DUALPIPE_DEBUG", "nccl.anything=1,hosts=a", 1);
    ck_assert_int_eq(dp_group_local(1, NULL, &group), DP_OK);
    dp_group_leave(group);
    setenv("DUALPIPE_DEBUG", "host=a:b", 1);
    ck_assert_int_eq(dp_group_local(1, NULL, &group), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(
        strstr(dp_last_error(), "DUALPIPE_DEBUG: \"host=a:b\" is not key=value with one of the keys hosts"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("system/entries");

    SUITE_ADD(suite, the_last_entry_of_a_key_counts);
    SUITE_ADD(suite, keys_that_do_not_exist_are_refused);
    SUITE_ADD(suite, a_group_refuses_unknown_settings_for_developers);
    return suite_run(suite);
}
