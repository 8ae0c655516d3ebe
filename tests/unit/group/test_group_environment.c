/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_group_environment.c: what dp_group_environment makes of the variables of each launcher. */
#include <dualpipe/group.h>

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const char *const known[] = {"DUALPIPE_LAUNCH",
                                    "RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_RANK",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_RANK",
                                    "PMI_RANK",
                                    "PMI_SIZE",
                                    "MPI_LOCALRANKID",
                                    "SLURM_PROCID",
                                    "SLURM_NTASKS",
                                    "SLURM_LOCALID"};

typedef struct form_case {
    const char *variables[8]; /* name, value, ...; NULL at the end */
    dp_status_t status;
    int32_t rank, size, local_rank;
    const char *launcher, *message;
} form_case_t;

static const form_case_t cases[] = {
    {{NULL}, DP_OK, 0, 1, 0, "none", NULL},
    {{"RANK", "3", "WORLD_SIZE", "8", "LOCAL_RANK", "1", NULL}, DP_OK, 3, 8, 1, "torchrun", NULL},
    {{"RANK", "0", "WORLD_SIZE", "1", NULL}, DP_OK, 0, 1, 0, "torchrun", NULL},
    {{"RANK", "4095", "WORLD_SIZE", "4096", NULL}, DP_OK, 4095, 4096, 4095, "torchrun", NULL},
    {{"OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_RANK", "0", NULL},
     DP_OK,
     1,
     4,
     0,
     "Open MPI",
     NULL},
    {{"PMI_RANK", "5", "PMI_SIZE", "6", "MPI_LOCALRANKID", "1", NULL}, DP_OK, 5, 6, 1, "MPICH", NULL},
    {{"SLURM_PROCID", "5", "SLURM_NTASKS", "6", "SLURM_LOCALID", "2", NULL}, DP_OK, 5, 6, 2, "Slurm", NULL},
    {{"DUALPIPE_LAUNCH", "secret=4,run=1", "RANK", "1", "WORLD_SIZE", "2", NULL}, DP_OK, 1, 2, 1, "dualpipe run", NULL},
    /* an inner launcher hides the outer one */
    {{"SLURM_PROCID", "5", "RANK", "0", "WORLD_SIZE", "2", NULL}, DP_OK, 0, 2, 0, "torchrun", NULL},

    {{"RANK", "3", NULL}, DP_ERR_INVALID, 0, 0, 0, NULL, "WORLD_SIZE is not in the environment"},
    {{"WORLD_SIZE", "3", NULL}, DP_ERR_INVALID, 0, 0, 0, NULL, "RANK is not in the environment"},
    {{"RANK", "2", "WORLD_SIZE", "2", NULL}, DP_ERR_INVALID, 0, 0, 0, NULL, "RANK=2: a number from 0 to 1"},
    {{"RANK", "-1", "WORLD_SIZE", "2", NULL}, DP_ERR_INVALID, 0, 0, 0, NULL, "RANK=-1"},
    {{"RANK", "", "WORLD_SIZE", "2", NULL}, DP_ERR_INVALID, 0, 0, 0, NULL, "RANK="},
    {{"RANK", "1x", "WORLD_SIZE", "2", NULL}, DP_ERR_INVALID, 0, 0, 0, NULL, "RANK=1x"},
    {{"RANK", " 1", "WORLD_SIZE", "2", NULL}, DP_ERR_INVALID, 0, 0, 0, NULL, "RANK= 1"},
    {{"RANK", "99999999999999999999", "WORLD_SIZE", "2", NULL}, DP_ERR_INVALID, 0, 0, 0, NULL, "RANK=999"},
    {{"RANK", "0", "WORLD_SIZE", "0", NULL}, DP_ERR_INVALID, 0, 0, 0, NULL, "WORLD_SIZE=0"},
    {{"RANK", "0", "WORLD_SIZE", "4097", NULL}, DP_ERR_INVALID, 0, 0, 0, NULL, "WORLD_SIZE=4097"},
    {{"RANK", "0", "WORLD_SIZE", "2", "LOCAL_RANK", "two", NULL}, DP_ERR_INVALID, 0, 0, 0, NULL, "LOCAL_RANK=two"},
    {{"MPI_LOCALRANKID", "0", "PMI_SIZE", "2", NULL}, DP_ERR_INVALID, 0, 0, 0, NULL, "PMI_RANK is not"},
    {{"SLURM_PROCID", "0", NULL}, DP_ERR_INVALID, 0, 0, 0, NULL, "SLURM_NTASKS is not"},
};

static void set_variables(const form_case_t *c)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        unsetenv(known[i]);
    for (int i = 0; c->variables[i] != NULL; i += 2)
        ck_assert_int_eq(setenv(c->variables[i], c->variables[i + 1], 1), 0);
}

START_TEST(every_form_is_understood)
{
    const form_case_t *c = &cases[_i];
    dp_group_environment_t found = {sizeof(found), -7, -7, -7, "untouched", -7, -7, 7};
    dp_status_t status;

    set_variables(c);
    status = dp_group_environment(&found);
    ck_assert_msg(status == c->status, "%s: %s", dp_status_name(status), dp_last_error());
    if (c->status == DP_OK) {
        ck_assert_int_eq(found.rank, c->rank);
        ck_assert_int_eq(found.size, c->size);
        ck_assert_int_eq(found.local_rank, c->local_rank);
        ck_assert_str_eq(found.launcher, c->launcher);
    } else {
        ck_assert_ptr_nonnull(strstr(dp_last_error(), c->message));
        ck_assert_int_eq(found.rank, -7);
    }
}
END_TEST

START_TEST(the_launcher_says_whether_it_replaces_ranks)
{
    static const form_case_t launched = {.variables = {"RANK", "1", "WORLD_SIZE", "2"}};
    dp_group_environment_t found = {.struct_size = sizeof(found)}, other = {.struct_size = sizeof(other)};

    set_variables(&launched);
    setenv("DUALPIPE_LAUNCH", "run=a,later=b,respawn=3", 1);
    ck_assert_int_eq(dp_group_environment(&found), DP_OK);
    ck_assert_int_eq(found.respawn, 3);
    ck_assert_int_eq(found.again, 0);
    setenv("DUALPIPE_LAUNCH", "run=a,respawn=3,again=1", 1);
    ck_assert_int_eq(dp_group_environment(&other), DP_OK);
    ck_assert_int_eq(other.again, 1);
    ck_assert(other.job == found.job && found.job != 0);
    setenv("DUALPIPE_LAUNCH", "run=b", 1);
    ck_assert_int_eq(dp_group_environment(&found), DP_OK);
    ck_assert_int_eq(found.respawn, 0);
    ck_assert(other.job != found.job);
    setenv("DUALPIPE_LAUNCH", "run=a,respawn=all", 1);
    ck_assert_int_eq(dp_group_environment(&found), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "DUALPIPE_LAUNCH: respawn=all: a number"));
}
END_TEST

START_TEST(join_alone_is_a_job_of_one)
{
    dp_group_t *group = NULL;
    int32_t mine = 41, all = 0;

    set_variables(&cases[0]);
    ck_assert_int_eq(dp_group_join(NULL, &group), DP_OK);
    ck_assert_int_eq(dp_group_rank(group), 0);
    ck_assert_int_eq(dp_group_size(group), 1);
    ck_assert_int_eq(dp_group_all_gather(group, &mine, sizeof(mine), &all), DP_OK);
    ck_assert_int_eq(all, 41);
    ck_assert_int_eq(dp_group_barrier(group), DP_OK);
    dp_group_leave(group);
}
END_TEST

START_TEST(join_refuses_senseless_options)
{
    dp_group_t *group = NULL;
    dp_group_options_t options = {.struct_size = sizeof(options), .rank = 2, .size = 2};

    ck_assert_int_eq(dp_group_join(&options, &group), DP_ERR_INVALID);
    options = (dp_group_options_t){.struct_size = sizeof(options), .rank = -1, .size = 2};
    ck_assert_int_eq(dp_group_join(&options, &group), DP_ERR_INVALID);
    options = (dp_group_options_t){.struct_size = sizeof(options), .rank = 0, .size = 4097};
    ck_assert_int_eq(dp_group_join(&options, &group), DP_ERR_INVALID);
    options = (dp_group_options_t){.struct_size = 0};
    ck_assert_int_eq(dp_group_join(&options, &group), DP_ERR_INVALID);
    options = (dp_group_options_t){.struct_size = sizeof(options), .hang_seconds = -1};
    ck_assert_int_eq(dp_group_join(&options, &group), DP_ERR_INVALID);
    ck_assert_ptr_null(group);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group_environment");
    TCase *tc = tcase_create("environment");
    SRunner *runner;
    int failed;

    tcase_add_loop_test(tc, every_form_is_understood, 0, sizeof(cases) / sizeof(cases[0]));
    tcase_add_test(tc, the_launcher_says_whether_it_replaces_ranks);
    tcase_add_test(tc, join_alone_is_a_job_of_one);
    tcase_add_test(tc, join_refuses_senseless_options);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
