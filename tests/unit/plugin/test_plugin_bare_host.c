/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_plugin_bare_host.c: what a plugin's init may do, before there is any job, and what it is
 * refused. */
#include "tests/support/oom.h"
#include "tests/support/suite.h"

#include "system/bare_host.h"

#include <stdio.h>

static const dp_host_t *const host = &dp__bare_host;

static int logged_level;
static char logged[256];

static void hear(void *user, int level, const char *origin, const char *message)
{
    (void)user;
    logged_level = level;
    snprintf(logged, sizeof(logged), "%s: %s", origin, message);
}

START_TEST(it_logs_fails_and_has_a_clock)
{
    int64_t before = host->now_ns(host);

    dp_log_set(hear, NULL, DP_LOG_WARN);
    host->log(host, DP_LOG_WARN, "mine", "100 %s");
    ck_assert_int_eq(logged_level, DP_LOG_WARN);
    ck_assert_str_eq(logged, "mine: 100 %s"); /* a message is no format */
    ck_assert_int_eq((host->fail)(host, DP_ERR_UNSUPPORTED, __FILE__, __LINE__, "needs %d of them", 3),
                     DP_ERR_UNSUPPORTED); /* Check has a macro of that name */
    ck_assert_str_eq(host->last_error(host), "needs 3 of them");
    ck_assert_int_ge(host->now_ns(host), before);
    ck_assert_int_eq(host->aborted(host), DP_OK);
    ck_assert_ptr_null(host->get_service(host, DP_HOST_PLACES));
    ck_assert_int_eq(host->abort_job(host, DP_ERR_IO, "no card"), DP_ERR_IO);
    ck_assert_str_eq(host->last_error(host), "no card");
}
END_TEST

/* Of the trainer's own memory, with the alignment asked for. */
START_TEST(memory_is_of_the_hooks)
{
    void *memory;

    oom_install();
    memory = host->allocate(host, 100, 256);
    ck_assert_ptr_nonnull(memory);
    ck_assert_uint_eq((uintptr_t)memory % 256, 0);
    ck_assert_int_eq(oom_live(), 1);
    host->release(host, memory);
    ck_assert_int_eq(oom_live(), 0);
    oom_arm(0, false);
    ck_assert_ptr_null(host->allocate(host, 100, 16));
    oom_disarm();
    oom_uninstall();
}
END_TEST

static dp_status_t never(void *arg)
{
    *(int *)arg = 1;
    return DP_PENDING;
}

START_TEST(there_is_nobody_to_wait_for)
{
    dp_signal_t signal = {0};
    int asked = 0;

    ck_assert_int_eq(host->wait(host, &signal, 1, -1, "a friend"), DP_ERR_UNSUPPORTED);
    ck_assert_str_eq(host->last_error(host), "init must not wait (for a friend): there is no job yet");
    ck_assert_int_eq(host->poll(host, never, &asked, -1, "an answer"), DP_ERR_UNSUPPORTED);
    ck_assert_str_eq(host->last_error(host), "init must not poll (for an answer): there is no job yet");
    ck_assert_int_eq(asked, 0);
    host->post(host, &signal, 7);
    ck_assert_uint_eq(signal.value, 7);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plugin/bare_host");

    SUITE_ADD(suite, it_logs_fails_and_has_a_clock);
    SUITE_ADD(suite, memory_is_of_the_hooks);
    SUITE_ADD(suite, there_is_nobody_to_wait_for);
    return suite_run(suite);
}
