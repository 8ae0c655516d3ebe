/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_engine_bits.c: a bit changes in the memory of a live rank: it is found before the update is
 * made, named, and where other copies are right the run goes on with them, to the last bit. */
#include "tests/support/recovering.h"
#include "tests/support/suite.h"

static r_shared_t run(const r_setting_t *setting, dp_status_t status, const char *text)
{
    r_shared_t result;
    forked_job_t job;

    r_run(&job, setting, NULL, 0);
    forked_expect_all(&job, status, text);
    result = *(const r_shared_t *)job.shared;
    forked_end(&job);
    ck_assert_int_eq(result.flips, setting->flip.times);
    return result;
}

static void run_to_the_same(const r_setting_t *setting, int32_t lost)
{
    const r_setting_t plain = {.method = setting->method, .dp = setting->dp, .ep = setting->ep};
    const r_shared_t due = run(&plain, DP_OK, ""), came = run(setting, DP_OK, "");

    for (int r = 0; r < R_RANKS; r++) {
        ck_assert_int_eq(came.lost[r], lost);
        ck_assert_msg(memcmp(came.losses[r], due.losses[r], sizeof(due.losses[r])) == 0, "other losses on rank %d", r);
        ck_assert_msg(came.digest[r] == due.digest[r], "rank %d ends with another state", r);
    }
}

static void nobody_comes_back(void)
{
    unsetenv("DUALPIPE_LAUNCH");
}

static void somebody_does(void)
{
    setenv("DUALPIPE_LAUNCH", "respawn=9", 1);
}

START_TEST(copies_that_are_alike_are_left_alone)
{
    static const r_setting_t settings[] = {
        {.method = "dualpipe", .dp = 1, .check_bits = 1},  {.method = "dualpipe", .dp = 2, .check_bits = 2},
        {.method = "dualpipev", .dp = 2, .check_bits = 1}, {.method = "dualpipe", .dp = 1, .ep = 2, .check_bits = 1},
        {.method = "1f1b", .dp = 1, .check_bits = 1}, /* there are no copies */
    };

    run_to_the_same(&settings[_i], 0);
}
END_TEST

/* Rank 3 of two pipelines of two: each stage has four copies. */
START_TEST(the_odd_one_of_four_is_named)
{
    static const struct {
        r_memory_t memory;
        int32_t check_bits;
        const char *text;
    } cases[] = {
        {R_PARAM, 1, "rank 3: step 2: the parameter layer6.w1 of stage 1 has other bits than on rank 0, 1 and 2: "},
        {R_GRADIENT, 1, "rank 3: step 2: the gradient of layer6.w1 of stage 1 has other bits than"},
        {R_RESTLESS, 1, "rank 3: step 2: the parameter layer6.w1 of stage 1 has other bits than"},
        /* once it has come into a parameter */
        {R_STATE, 1, "rank 3: step 3: the parameter layer6.w1 of stage 1 has other bits than"},
        {R_PARAM, 2, "rank 3: step 3: the parameter "}, /* steps 1 and 3 are looked at */
    };
    const r_setting_t setting = {.method = "dualpipe",
                                 .dp = 2,
                                 .check_bits = cases[_i].check_bits,
                                 .flip = {cases[_i].memory, .rank = 3, .step = 2, .times = 1}};

    run(&setting, DP_ERR_CORRUPT, cases[_i].text);
}
END_TEST

/* Of mirrors alone nobody knows which is right, unless the memory of one goes on changing. */
START_TEST(both_mirrors_are_named)
{
    static const struct {
        r_flip_t flip;
        const char *text;
    } cases[] = {
        {{R_PARAM, .rank = 1, .step = 0, .times = 1}, "rank 1 or 2: step 0: the parameter "},
        {{R_GRADIENT, .rank = 3, .step = 4, .times = 1}, "rank 0 or 3: step 4: the gradient of "},
        {{R_STATE, .rank = 0, .step = 1, .times = 1}, "rank 0 or 3: step 2: the parameter "},
        {{R_RESTLESS, .rank = 2, .step = 1, .times = 1}, "rank 2: step 1: the parameter "},
        {{R_RESTLESS, .rank = 0, .step = 1, .times = 1}, "rank 0: step 1: the parameter "},
    };
    const r_setting_t setting = {.method = "dualpipe", .dp = 1, .check_bits = 1, .flip = cases[_i].flip};

    run(&setting, DP_ERR_CORRUPT, cases[_i].text);
}
END_TEST

/* Of two expert ranks with two pipeline ranks each: rank 2 has the same experts as rank 3. */
START_TEST(experts_are_compared_with_the_same_experts)
{
    static const char *const texts[] = {
        "rank 3: step 1: the gradient of layer6.w1 of stage 1 has other bits than on rank 0, 1 and 2: ",
        "rank 2 or 3: step 1: the gradient of layer6.w2 of stage 1 has not the same bits on all of these: ",
    };
    const r_setting_t setting = {.method = "dualpipe",
                                 .dp = 1,
                                 .ep = 2,
                                 .check_bits = 1,
                                 .flip = {R_GRADIENT, .rank = 3, .step = 1, .times = 1, .expert = _i != 0}};

    run(&setting, DP_ERR_CORRUPT, texts[_i]);
}
END_TEST

/* A save would make a checkpoint of it. */
START_TEST(what_is_saved_is_alike)
{
    char folder[] = "/tmp/test-engine-bits-XXXXXX";
    r_setting_t setting = {.method = "dualpipe",
                           .dp = 1,
                           .check_bits = 1000,
                           .flip = {R_SAVED, .rank = 1, .step = 2, .times = 1},
                           .saves = folder};
    char command[128];

    ck_assert_ptr_nonnull(mkdtemp(folder));
    run(&setting, DP_ERR_CORRUPT, "rank 1 or 2: after 3 steps: mean of layer3.w1 of stage 1 has not the same bits");
    snprintf(command, sizeof(command), "ls %s | tail -n 1 | grep -q step-00000002", folder);
    ck_assert_int_eq(system(command), 0);
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

START_TEST(the_others_have_what_is_right)
{
    const r_memory_t memory = _i / R_RANKS == 0 ? R_PARAM : _i / R_RANKS == 1 ? R_GRADIENT : R_STATE;
    const r_setting_t setting = {
        .method = "dualpipe", .dp = 2, .check_bits = 1, .flip = {memory, .rank = _i % R_RANKS, .step = 2, .times = 1}};

    run_to_the_same(&setting, 0);
}
END_TEST

START_TEST(a_mirror_has_what_is_right)
{
    const r_setting_t setting = {
        .method = "dualpipe", .dp = 1, .check_bits = 1, .flip = {R_RESTLESS, .rank = _i, .step = 3, .times = 1}};

    run_to_the_same(&setting, 0);
}
END_TEST

START_TEST(where_nobody_is_known_to_be_right_a_checkpoint_is)
{
    r_setting_t setting = {.method = "dualpipe",
                           .dp = 1,
                           .check_bits = 1,
                           .flip = {R_PARAM, .rank = 1, .step = 2, .times = 1},
                           .reads_checkpoint = true};

    run_to_the_same(&setting, 1);
    setting.reads_checkpoint = false;
    run(&setting, DP_ERR_LOST, "memory of rank 1 may have changed, and no rank is known to hold its stages");
}
END_TEST

START_TEST(memory_that_stays_bad_ends_the_job)
{
    const r_setting_t setting = {
        .method = "dualpipe", .dp = 2, .check_bits = 1, .flip = {R_PARAM, .rank = 2, .step = 1, .times = 3}};

    run(&setting, DP_ERR_CORRUPT, "rank 2: step 1: the parameter ");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/bits");
    TCase *found = tcase_create("found"), *recovered = tcase_create("recovered");

    tcase_set_timeout(found, 300 * forked_scale());
    tcase_add_checked_fixture(found, nobody_comes_back, NULL);
    tcase_add_loop_test(found, copies_that_are_alike_are_left_alone, 0, 5);
    tcase_add_loop_test(found, the_odd_one_of_four_is_named, 0, 5);
    tcase_add_loop_test(found, both_mirrors_are_named, 0, 5);
    tcase_add_loop_test(found, experts_are_compared_with_the_same_experts, 0, 2);
    tcase_add_test(found, what_is_saved_is_alike);
    suite_add_tcase(suite, found);
    tcase_set_timeout(recovered, 300 * forked_scale());
    tcase_add_checked_fixture(recovered, somebody_does, NULL);
    tcase_add_loop_test(recovered, the_others_have_what_is_right, 0, 3 * R_RANKS);
    tcase_add_loop_test(recovered, a_mirror_has_what_is_right, 0, R_RANKS);
    tcase_add_test(recovered, where_nobody_is_known_to_be_right_a_checkpoint_is);
    tcase_add_test(recovered, memory_that_stays_bad_ends_the_job);
    suite_add_tcase(suite, recovered);
    return suite_run(suite);
}
