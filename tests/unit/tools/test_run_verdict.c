/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_run_verdict.c: when `dualpipe run` starts a dead rank again: at once after the first death
 * and after progress, later each time without, and not at all after the third death in the same
 * operation. */
#include "tests/support/suite.h"
#include "tools/run/run_verdict.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static run_verdict_t verdict;

static void open_verdict(int respawn)
{
    const run_options_t options = {.ranks = 4, .respawn = respawn, .grace_seconds = 5};

    ck_assert(run_verdict_open(&verdict, &options));
}

/* Of rank 2. doing: what the others say; NULL: nothing. */
static void end_life(int pid, const char *doing)
{
    const run_end_t end = {.how = RUN_KILLED, .status = 9, .rank = 2, .pid = pid};
    char text[200];
    int rank;
    pid_t process;

    snprintf(text, sizeof(text), "joined 2 %d ", pid);
    ck_assert(!run_verdict_hear(&verdict, text, &rank, &process));
    snprintf(text, sizeof(text), "died 2 %d %s", pid, doing != NULL ? doing : "");
    if (doing != NULL)
        ck_assert(!run_verdict_hear(&verdict, text, &rank, &process));
    ck_assert(run_verdict_replace(&verdict, &end));
}

static run_due_t await_due(run_end_t *end)
{
    run_due_t due;

    while ((due = run_verdict_due(&verdict, end)) == RUN_DUE_NOTHING) {
        const int nap_ms = run_verdict_nap_ms(&verdict);
        const struct timespec nap = {nap_ms / 1000, nap_ms % 1000 * 1000000l};

        nanosleep(&nap, NULL);
    }
    return due;
}

START_TEST(deaths_without_progress_are_spaced)
{
    static const double pauses[] = {0, 0.1, 0.2, 0.4};
    run_end_t end;

    open_verdict(9);
    for (int i = 0; i < 4; i++) {
        const int64_t begin = run_now_ns();

        end_life(100 + i, i % 2 == 0 ? "step 7: mlp(F) of stage 2" : "step 7: mlp(B) of stage 2");
        if (i == 0)
            ck_assert_int_eq(run_verdict_due(&verdict, &end), RUN_DUE_START);
        else
            ck_assert_int_eq(await_due(&end), RUN_DUE_START);
        ck_assert_int_eq(end.pid, 100 + i);
        ck_assert((double)(run_now_ns() - begin) * 1e-9 >= pauses[i]);
    }
    end_life(200, "after step 8: mlp(F) of stage 2"); /* it has come further */
    ck_assert_int_eq(run_verdict_due(&verdict, &end), RUN_DUE_START);
}
END_TEST

START_TEST(third_death_in_the_same_operation_is_the_last)
{
    run_end_t end;
    char text[640];

    open_verdict(9);
    for (int i = 0; i < 3; i++) {
        end_life(100 + i, "step 7: mlp(F) of stage 2");
        ck_assert_int_eq(await_due(&end), i < 2 ? RUN_DUE_START : RUN_DUE_END);
    }
    run_end_write(&end, text, sizeof(text));
    ck_assert_str_eq(text, "rank 2 (pid 102) was ended by signal 9 (Killed); it died 3 times in the same operation: "
                           "step 7: mlp(F) of stage 2");
    ck_assert_int_eq(run_verdict_due(&verdict, &end), RUN_DUE_NOTHING);
}
END_TEST

/* All died at once: where, nobody has seen, so it need not have been the same operation. */
START_TEST(deaths_that_nobody_saw_are_not_counted)
{
    run_end_t end;

    open_verdict(9);
    for (int i = 0; i < 4; i++) {
        end_life(100 + i, NULL);
        ck_assert_int_eq(await_due(&end), RUN_DUE_START);
    }
}
END_TEST

START_TEST(who_waits_is_not_started_when_the_job_ends)
{
    run_end_t end;

    open_verdict(9);
    for (int i = 0; i < 2; i++) {
        end_life(100 + i, "step 7: mlp(F) of stage 2");
        if (i == 0)
            ck_assert_int_eq(await_due(&end), RUN_DUE_START);
    }
    ck_assert_int_eq(run_verdict_due(&verdict, &end), RUN_DUE_NOTHING);
    ck_assert_int_eq(verdict.waiting, 1);
    ck_assert(run_verdict_close(&verdict));
    ck_assert_int_eq(run_verdict_due(&verdict, &end), RUN_DUE_END);
    ck_assert_int_eq(verdict.waiting, 0);
}
END_TEST

/* They finish their step and save. */
START_TEST(ranks_are_waited_for_until_a_second_signal)
{
    const run_end_t end = {.how = RUN_EXITED, .status = 75, .rank = 1, .pid = 100};
    int64_t begin;

    open_verdict(0);
    ck_assert(run_verdict_signal(&verdict, SIGTERM));
    ck_assert_int_eq(verdict.deadline_ns, INT64_MAX);
    begin = run_now_ns();
    run_verdict_consider(&verdict, &end);
    ck_assert_int_ge(verdict.deadline_ns, begin + 25000000000ll); /* five times the grace */
    ck_assert(!run_verdict_overdue(&verdict, 3));
    ck_assert(!run_verdict_signal(&verdict, SIGTERM));
    ck_assert(run_verdict_overdue(&verdict, 3));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("run_verdict");

    SUITE_ADD(suite, deaths_without_progress_are_spaced);
    SUITE_ADD(suite, third_death_in_the_same_operation_is_the_last);
    SUITE_ADD(suite, deaths_that_nobody_saw_are_not_counted);
    SUITE_ADD(suite, who_waits_is_not_started_when_the_job_ends);
    SUITE_ADD(suite, ranks_are_waited_for_until_a_second_signal);
    return suite_run(suite);
}
