/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_group_steady.c: a group that pipelines come and go in does not grow. */
#include "tests/support/forked.h"
#include "tests/support/oom.h"
#include "tests/support/suite.h"
#include "tests/support/thread_ranks.h"

/* Flight recorders that this process has mapped. */
static long boxes(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    long n = 0;

    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL)
        n += strstr(line, "dualpipe-recorder") != NULL;
    if (maps != NULL)
        fclose(maps);
    return n;
}

static dp_status_t open_and_step(dp_group_t *group, const char *method)
{
    rank_t rank;
    dp_pipeline_t *p = NULL;
    dp_status_t status;

    rank_prepare(&rank, method, 8);
    rank.options.group = group;
    status = dp_pipeline_open(&rank.options, &p);
    if (status == DP_OK)
        status = rank_step(p, 0, NULL);
    if (status == DP_OK)
        status = dp_pipeline_swap_comm(p, "comm_shm");
    if (status == DP_OK)
        status = rank_step(p, 0, NULL);
    dp_pipeline_close(p);
    for (int i = 0; i < rank.nstages; i++)
        dp_stage_free(rank.stages[i]);
    return status;
}

/* DP_ERR_NOMEM when there is more after many pipelines than after a few. */
static dp_status_t come_and_go(dp_group_t *group, bool count)
{
    static const char *const methods[] = {"dualpipe", "1f1b", "gpipe"};
    long live_before = 0, boxes_before = 0;
    dp_status_t status = DP_OK;

    for (int i = 0; i < 18 && status == DP_OK; i++) {
        status = open_and_step(group, methods[i % 3]);
        if (status == DP_OK)
            status = dp_group_barrier(group);
        if (i == 5) {
            live_before = oom_live();
            boxes_before = boxes();
        }
        if (status == DP_OK)
            status = dp_group_barrier(group); /* nobody begins anew while another counts */
    }
    if (status == DP_OK && count && (oom_live() != live_before || boxes() != boxes_before))
        return dp_fail(DP_ERR_NOMEM, "rank %d: %ld allocations and %ld flight recorders have become %ld and %ld",
                       dp_group_rank(group), live_before, boxes_before, oom_live(), boxes());
    return status == DP_OK ? dp_group_barrier(group) : status;
}

static dp_status_t process_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    dp_group_t *group;
    dp_status_t status;

    oom_install();
    status = dp_group_join(&options, &group);
    if (status != DP_OK)
        return status;
    status = come_and_go(group, true);
    dp_group_leave(group);
    return status;
}

START_TEST(processes_do_not_grow)
{
    forked_job_t job;

    forked_run(&job, 2 + 2 * _i, process_body, 0);
    forked_finish(&job, 60);
    forked_expect_all(&job, DP_OK, "");
    forked_end(&job);
}
END_TEST

typedef struct thread_rank {
    dp_group_t *group;
    dp_status_t status;
    char message[512];
    pthread_t thread;
} thread_rank_t;

static void *thread_body(void *arg)
{
    thread_rank_t *self = arg;

    /* they share what is counted */
    self->status = come_and_go(self->group, dp_group_rank(self->group) == 0);
    snprintf(self->message, sizeof(self->message), "%s", self->status != DP_OK ? dp_last_error() : "");
    dp_group_leave(self->group);
    return NULL;
}

START_TEST(threads_do_not_grow)
{
    dp_group_t *groups[4];
    thread_rank_t ranks[4];

    oom_install();
    ck_assert_int_eq(dp_group_local(4, NULL, groups), DP_OK);
    for (int r = 0; r < 4; r++) {
        ranks[r].group = groups[r];
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, thread_body, &ranks[r]), 0);
    }
    for (int r = 0; r < 4; r++)
        pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < 4; r++)
        ck_assert_msg(ranks[r].status == DP_OK, "rank %d: %s", r, ranks[r].message);
    oom_uninstall();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group/steady");
    TCase *steady = tcase_create("steady");

    tcase_set_timeout(steady, 60);
    tcase_add_loop_test(steady, processes_do_not_grow, 0, 2);
    tcase_add_test(steady, threads_do_not_grow);
    suite_add_tcase(suite, steady);
    return suite_run(suite);
}
