/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_engine_recovery.c: ranks die wherever they can, others take their places, and in the end
 * losses, parameters and optimizer are those of a run in which nobody died, to the last bit.
 *
 * make check takes every STRIDE-th operation of a step; DP_FAULT_SWEEP=all takes them all. */
#include "tests/support/recovering.h"
#include "tests/support/suite.h"

enum {
    KERNELS = 2 * LAYERS / R_RANKS * R_MICROBATCHES / 2 * 10, /* of one rank in one step */
    STRIDE = 37
};

static const r_setting_t dualpipe = {.method = "dualpipe", .dp = 1};

/* What a run comes to that nobody disturbs. */
static r_shared_t undisturbed(const r_setting_t *setting)
{
    r_shared_t result;
    forked_job_t job;

    r_run(&job, setting, NULL, 0);
    forked_expect_all(&job, DP_OK, "");
    result = *(const r_shared_t *)job.shared;
    forked_end(&job);
    return result;
}

static void expect_same(const forked_job_t *job, const r_shared_t *due)
{
    const r_shared_t *shared = job->shared;

    forked_expect_all(job, DP_OK, "");
    for (int r = 0; r < R_RANKS; r++) {
        ck_assert_msg(memcmp(shared->losses[r], due->losses[r], sizeof(due->losses[r])) == 0,
                      "the losses of rank %d are others than without a death", r);
        ck_assert_msg(shared->digest[r] == due->digest[r], "rank %d ends with another state than without a death", r);
    }
}

static void check(const r_setting_t *setting, const r_shared_t *due, const r_death_t *deaths, int n)
{
    forked_job_t job;
    const r_shared_t *shared;

    r_run(&job, setting, deaths, n);
    shared = job.shared;
    ck_assert_msg(shared->died == n, "%d of %d deaths came (rank %d, moment %d)", shared->died, n, deaths[0].rank,
                  (int)deaths[0].moment);
    expect_same(&job, due);
    forked_end(&job);
}

static int stride(void)
{
    const char *sweep = getenv("DP_FAULT_SWEEP");

    return sweep != NULL && strcmp(sweep, "all") == 0 ? 1 : STRIDE;
}

START_TEST(nobody_dies_and_nothing_changes)
{
    const r_shared_t with = undisturbed(&dualpipe);
    r_shared_t without;

    unsetenv("DUALPIPE_LAUNCH");
    without = undisturbed(&dualpipe);
    ck_assert(memcmp(with.losses, without.losses, sizeof(with.losses)) == 0);
    ck_assert(memcmp(with.digest, without.digest, sizeof(with.digest)) == 0);
    for (int s = 0; s < R_STEPS; s++)
        ck_assert(with.losses[0][s] > 0 && with.losses[0][s] == with.losses[3][s]);
    ck_assert(with.losses[0][0] != with.losses[0][1]);
}
END_TEST

START_TEST(dies_in_any_operation_of_a_step)
{
    const r_shared_t due = undisturbed(&dualpipe);

    for (int kernel = _i; kernel < KERNELS; kernel += stride()) {
        const r_death_t death = {.rank = _i, .life = 1, .moment = R_AT_KERNEL, .step = 1 + kernel % 3, .n = kernel};

        check(&dualpipe, &due, &death, 1);
    }
}
END_TEST

/* After a step, in its commit, in the update and behind it: before the commit it is repeated, then
 * it counts. */
START_TEST(dies_around_the_optimizer)
{
    static const r_moment_t moments[] = {R_AFTER_STEP, R_IN_UPDATE, R_AFTER_UPDATE};
    const r_shared_t due = undisturbed(&dualpipe);

    for (size_t i = 0; i < sizeof(moments) / sizeof(moments[0]); i++) {
        const r_death_t death = {.rank = _i, .life = 1, .moment = moments[i], .step = (_i + (int)i) % (R_STEPS - 1)};

        check(&dualpipe, &due, &death, 1);
    }
}
END_TEST

/* Rank 0 has told none, one, two, or all others that the step counts. */
START_TEST(some_have_heard_that_the_step_counts)
{
    const r_shared_t due = undisturbed(&dualpipe);
    const r_death_t death = {.rank = 0, .life = 1, .moment = R_SENDING, .step = 2, .n = _i};

    check(&dualpipe, &due, &death, 1);
}
END_TEST

/* Rank 0 dies, and with it the only one that has heard: then it does not count. */
START_TEST(those_who_have_heard_die_as_well)
{
    const r_shared_t due = undisturbed(&dualpipe);
    const r_death_t deaths[] = {{.rank = 0, .life = 1, .moment = R_SENDING, .step = 2, .n = 1},
                                {.rank = 1, .life = 1, .moment = R_IN_UPDATE, .step = 2}};

    check(&dualpipe, &due, deaths, 2);
}
END_TEST

static const struct {
    const char *what;
    r_death_t deaths[R_DEATHS];
    int n;
} series[] = {
    {"two in two steps", {{0, 1, R_AT_KERNEL, 1, 30}, {3, 1, R_AT_KERNEL, 2, 50}}, 2},
    {"the same rank twice", {{2, 1, R_AT_KERNEL, 1, 30}, {2, 2, R_AT_KERNEL, 1, 60}}, 2},
    {"rank 0 three times", {{0, 1, R_AT_KERNEL, 1, 3}, {0, 2, R_IN_UPDATE, 2, 0}, {0, 3, R_AFTER_UPDATE, 3, 0}}, 3},
    {"two at once, no mirrors", {{0, 1, R_AT_KERNEL, 1, 20}, {1, 1, R_AT_KERNEL, 1, 20}}, 2},
    {"a rank, then its mirror", {{0, 1, R_IN_UPDATE, 1, 0}, {3, 1, R_AT_KERNEL, 3, 0}}, 2},
    {"before anything", {{1, 1, R_BEFORE_JOINING, 0, 0}}, 1},
    {"rank 0 before anything", {{0, 1, R_AFTER_JOINING, 0, 0}}, 1},
    {"in its first build", {{2, 1, R_BUILDING, 0, 1}}, 1},
    {"before the first step", {{3, 1, R_BEFORE_RECOVERING, 0, 0}}, 1},
    {"the new one before it joins", {{1, 1, R_AT_KERNEL, 2, 9}, {1, 2, R_BEFORE_JOINING, 0, 0}}, 2},
    {"the new one when it has joined", {{1, 1, R_AT_KERNEL, 2, 9}, {1, 2, R_AFTER_JOINING, 0, 0}}, 2},
    {"the new one while it builds", {{1, 1, R_AT_KERNEL, 2, 9}, {1, 2, R_BUILDING, 0, 1}}, 2},
    {"the new one before it has state", {{0, 1, R_AT_KERNEL, 2, 9}, {0, 2, R_BEFORE_RECOVERING, 0, 0}}, 2},
    {"another one lets go", {{1, 1, R_AT_KERNEL, 2, 9}, {0, 1, R_RETIRING, 0, 0}}, 2},
    {"another one builds again", {{1, 1, R_AT_KERNEL, 2, 9}, {3, 1, R_BUILDING, 0, 2}}, 2},
};

START_TEST(several_die)
{
    const r_shared_t due = undisturbed(&dualpipe);

    check(&dualpipe, &due, series[_i].deaths, series[_i].n);
}
END_TEST

/* Other schedules and layouts: the living copy is in the mirror, or in another data group. */
static const r_setting_t settings[] = {
    {.method = "dualpipe", .dp = 2},
    {.method = "1f1b", .dp = 2},
    {.method = "dualpipev", .dp = 2},
    {.method = "zb1p", .dp = 2},
};

START_TEST(other_layouts)
{
    const r_setting_t *setting = &settings[_i];
    const r_shared_t due = undisturbed(setting);

    for (int32_t rank = 0; rank < R_RANKS; rank++) {
        const r_death_t deaths[] = {{rank, 1, R_AT_KERNEL, 1, 11}, {R_RANKS - 1 - rank, 1, R_IN_UPDATE, 3, 0}};

        check(setting, &due, deaths, 2);
    }
}
END_TEST

/* ---- buddies: nobody else has the state of a rank ---- */

static const r_setting_t buddies[] = {
    {.method = "1f1b", .dp = 1, .buddy = true},
    {.method = "interleaved", .dp = 1, .buddy = true},
    {.method = "dualpipev", .dp = 1, .buddy = true},
    {.method = "dualpipe", .dp = 1, .zero = true, .buddy = true},
    {.method = "1f1b", .dp = 2, .zero = true, .buddy = true},
};

START_TEST(a_buddy_changes_nothing)
{
    const r_shared_t with = undisturbed(&buddies[_i]);
    r_setting_t alone = buddies[_i];
    r_shared_t without;

    alone.buddy = false;
    without = undisturbed(&alone);
    ck_assert(memcmp(with.losses, without.losses, sizeof(with.losses)) == 0);
    ck_assert(memcmp(with.digest, without.digest, sizeof(with.digest)) == 0);
}
END_TEST

/* The first operations are beside the copy; whoever dies there takes all back by a step. */
START_TEST(a_buddy_has_any_operation)
{
    const r_setting_t *setting = &buddies[_i];
    const r_shared_t due = undisturbed(setting);

    for (int32_t rank = 0; rank < R_RANKS; rank++)
        for (int kernel = rank; kernel < KERNELS * setting->dp; kernel += kernel < 4 ? 4 : 2 * stride() - 1) {
            const r_death_t death = {.rank = rank, .life = 1, .moment = R_AT_KERNEL, .step = kernel % 4, .n = kernel};

            check(setting, &due, &death, 1);
        }
}
END_TEST

START_TEST(a_buddy_has_the_step_before)
{
    static const r_moment_t moments[] = {R_AFTER_STEP, R_IN_UPDATE, R_AFTER_UPDATE};
    const r_setting_t *setting = &buddies[_i];
    const r_shared_t due = undisturbed(setting);

    for (int32_t rank = _i % 2; rank < R_RANKS; rank += 2)
        for (int i = 0; i < 3; i++) {
            const r_death_t death = {.rank = rank, .life = 1, .moment = moments[i], .step = (rank + i) % (R_STEPS - 1)};

            check(setting, &due, &death, 1);
        }
    for (int32_t told = 0; told < R_RANKS; told++)
        check(setting, &due, &(r_death_t){.rank = 0, .life = 1, .moment = R_SENDING, .step = 1, .n = told}, 1);
}
END_TEST

static const struct {
    const char *what;
    r_death_t deaths[R_DEATHS];
    int n;
} with_buddy[] = {
    {"all in an update",
     {{0, 1, R_IN_UPDATE, 2, 0}, {1, 1, R_IN_UPDATE, 2, 0}, {2, 1, R_IN_UPDATE, 2, 0}, {3, 1, R_IN_UPDATE, 2, 0}},
     4},
    {"all behind it",
     {{0, 1, R_AFTER_UPDATE, 2, 0},
      {1, 1, R_AFTER_UPDATE, 2, 0},
      {2, 1, R_AFTER_UPDATE, 2, 0},
      {3, 1, R_AFTER_UPDATE, 2, 0}},
     4},
    {"a rank, then its mirror", {{0, 1, R_IN_UPDATE, 1, 0}, {3, 1, R_RETIRING, 0, 0}}, 2},
    {"the same rank, again in its first step", {{1, 1, R_IN_UPDATE, 1, 0}, {1, 2, R_AT_KERNEL, 1, 0}}, 2},
    {"the same rank, before it has its state", {{1, 1, R_AT_KERNEL, 3, 9}, {1, 2, R_BEFORE_RECOVERING, 0, 0}}, 2},
    {"the same rank, behind the update", {{2, 1, R_AT_KERNEL, 1, 30}, {2, 2, R_AFTER_UPDATE, 1, 0}}, 2},
    {"before the first step", {{2, 1, R_BEFORE_RECOVERING, 0, 0}, {1, 1, R_AT_KERNEL, 0, 1}}, 2},
};

START_TEST(buddies_outlive_several)
{
    for (size_t i = (size_t)_i % 2; i < sizeof(buddies) / sizeof(buddies[0]); i += 2) {
        const r_shared_t due = undisturbed(&buddies[i]);

        check(&buddies[i], &due, with_buddy[_i].deaths, with_buddy[_i].n);
    }
}
END_TEST

/* A rank, and what its buddy has. */
START_TEST(both_copies_are_lost)
{
    const r_death_t death = {.rank = 2, .life = 1, .moment = R_AT_KERNEL, .step = 2, .n = 20};
    r_setting_t setting = buddies[_i];
    const r_shared_t due = undisturbed(&setting);
    forked_job_t job;

    setting.buddy_dies = setting.reads_checkpoint = true;
    r_run(&job, &setting, &death, 1);
    expect_same(&job, &due);
    for (int r = 0; r < R_RANKS; r++)
        ck_assert_int_eq(((const r_shared_t *)job.shared)->lost[r], 1);
    forked_end(&job);

    setting.reads_checkpoint = false;
    r_run(&job, &setting, &death, 1);
    forked_expect_all(&job, DP_ERR_LOST, "a checkpoint has to be read");
    forked_end(&job);
}
END_TEST

/* Both mirrors, or the only holder: all say so, and go on from what a checkpoint has. */
START_TEST(nobody_holds_the_state)
{
    static const struct {
        r_setting_t setting;
        r_death_t deaths[2];
        int n;
    } cases[] = {
        {{.method = "dualpipe", .dp = 1}, {{0, 1, R_AT_KERNEL, 2, 20}, {3, 1, R_RETIRING, 0, 0}}, 2},
        {{.method = "dualpipev", .dp = 1}, {{1, 1, R_AT_KERNEL, 2, 20}}, 1},
        {{.method = "1f1b", .dp = 1}, {{2, 1, R_IN_UPDATE, 1, 0}}, 1},
        {{.method = "1f1b", .dp = 4}, {{2, 1, R_IN_UPDATE, 1, 0}}, 1}, /* a separate pipeline */
    };
    r_setting_t setting = cases[_i].setting;
    const r_shared_t due = undisturbed(&setting);
    forked_job_t job;

    setting.reads_checkpoint = true;
    r_run(&job, &setting, cases[_i].deaths, cases[_i].n);
    expect_same(&job, &due);
    for (int r = 0; r < R_RANKS; r++)
        ck_assert_int_eq(((const r_shared_t *)job.shared)->lost[r], 1);
    forked_end(&job);

    setting.reads_checkpoint = false;
    r_run(&job, &setting, cases[_i].deaths, cases[_i].n);
    forked_expect_all(&job, DP_ERR_LOST, "a checkpoint has to be read");
    forked_end(&job);
}
END_TEST

/* A rank dies while requests are served: all caches are forgotten, so the request that begins anew
 * is served, and one that goes on is refused by name on every rank. */
START_TEST(requests_are_forgotten)
{
    const r_setting_t anew = {.method = "dualpipe", .dp = 1, .asks = R_ASKS_ANEW};
    const r_setting_t on = {.method = "dualpipe", .dp = 1, .asks = R_ASKS_ON};
    const r_death_t death = {.rank = _i, .life = 1, .moment = R_AT_KERNEL, .step = 1, .n = KERNELS / 2};
    const r_shared_t due = undisturbed(&anew);
    forked_job_t job;

    check(&anew, &due, &death, 1);
    r_run(&job, &on, &death, 1);
    forked_expect_all(&job, DP_ERR_INVALID, "past is 1 for slot 0, which holds 0 tokens");
    forked_end(&job);
}
END_TEST

static void respawn(void)
{
    setenv("DUALPIPE_LAUNCH", "respawn=9", 1);
}

int main(void)
{
    Suite *suite = suite_create("engine/recovery");
    TCase *recovery = tcase_create("recovery"), *buddy = tcase_create("buddy");

    tcase_set_timeout(recovery, 300 * forked_scale());
    tcase_add_checked_fixture(recovery, respawn, NULL);
    tcase_add_test(recovery, nobody_dies_and_nothing_changes);
    tcase_add_loop_test(recovery, dies_in_any_operation_of_a_step, 0, R_RANKS);
    tcase_add_loop_test(recovery, dies_around_the_optimizer, 0, R_RANKS);
    tcase_add_loop_test(recovery, some_have_heard_that_the_step_counts, 0, R_RANKS);
    tcase_add_test(recovery, those_who_have_heard_die_as_well);
    tcase_add_loop_test(recovery, several_die, 0, (int)(sizeof(series) / sizeof(series[0])));
    tcase_add_loop_test(recovery, other_layouts, 0, (int)(sizeof(settings) / sizeof(settings[0])));
    tcase_add_loop_test(recovery, nobody_holds_the_state, 0, 4);
    tcase_add_loop_test(recovery, requests_are_forgotten, 0, R_RANKS);
    suite_add_tcase(suite, recovery);

    tcase_set_timeout(buddy, 300 * forked_scale());
    tcase_add_checked_fixture(buddy, respawn, NULL);
    tcase_add_loop_test(buddy, a_buddy_changes_nothing, 0, (int)(sizeof(buddies) / sizeof(buddies[0])));
    tcase_add_loop_test(buddy, a_buddy_has_any_operation, 0, (int)(sizeof(buddies) / sizeof(buddies[0])));
    tcase_add_loop_test(buddy, a_buddy_has_the_step_before, 0, (int)(sizeof(buddies) / sizeof(buddies[0])));
    tcase_add_loop_test(buddy, buddies_outlive_several, 0, (int)(sizeof(with_buddy) / sizeof(with_buddy[0])));
    tcase_add_loop_test(buddy, both_copies_are_lost, 0, (int)(sizeof(buddies) / sizeof(buddies[0])));
    suite_add_tcase(suite, buddy);
    return suite_run(suite);
}
