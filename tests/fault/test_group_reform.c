/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_group_reform.c: ranks that live on and new ones in dead ones' places become a group again,
 * whoever died, and whenever: nothing of the epoch before is seen in the next. */
#include "group/reform.h"
#include "group/spans.h"
#include "tests/support/forked.h"
#include "tests/support/suite.h"

#define RANKS 4

/* Where a rank kills itself, or stops. */
typedef enum moment { BEFORE_JOINING, AFTER_JOINING, IN_GATHER, WITH_A_BOX, STOPS_IN_GATHER, MOMENTS } moment_t;

typedef struct death {
    int32_t rank, life; /* its first process, second, ... */
    moment_t moment;
} death_t;

typedef struct scenario {
    death_t deaths[6];
    int n;
} scenario_t;

/* The two before the last one: a new process dies before, or after, it has joined those that wait
 * for it. */
static const scenario_t scenarios[] = {
    {{{0, 1, IN_GATHER}}, 1},
    {{{1, 1, IN_GATHER}}, 1},
    {{{3, 1, AFTER_JOINING}}, 1},
    {{{2, 1, WITH_A_BOX}}, 1},
    {{{0, 1, BEFORE_JOINING}}, 1},
    {{{2, 1, BEFORE_JOINING}}, 1},
    {{{1, 1, IN_GATHER}, {1, 2, IN_GATHER}}, 2},
    {{{0, 1, IN_GATHER}, {3, 1, IN_GATHER}}, 2},
    {{{0, 1, AFTER_JOINING}, {0, 2, AFTER_JOINING}, {0, 3, IN_GATHER}}, 3},
    {{{0, 1, IN_GATHER}, {1, 1, IN_GATHER}, {2, 1, IN_GATHER}, {3, 1, IN_GATHER}}, 4},
    {{{2, 1, IN_GATHER}, {2, 2, BEFORE_JOINING}}, 2},
    {{{0, 1, IN_GATHER}, {0, 2, BEFORE_JOINING}, {0, 3, AFTER_JOINING}}, 3},
    {{{1, 1, IN_GATHER}, {3, 1, STOPS_IN_GATHER}}, 2},
};
enum { STOPPED = sizeof(scenarios) / sizeof(scenarios[0]) - 1 };

typedef struct shared {
    volatile int32_t lives[RANKS];
} shared_t;

typedef struct self {
    forked_t *forked;
    dp_group_t *group;
    const scenario_t *scenario;
    int32_t life;
} self_t;

static void perhaps_die(const self_t *self, moment_t moment)
{
    for (int i = 0; i < self->scenario->n; i++) {
        const death_t *d = &self->scenario->deaths[i];

        if (d->rank == self->forked->rank && d->life == self->life && d->moment == moment)
            kill(getpid(), moment == STOPS_IN_GATHER ? SIGSTOP : SIGKILL);
    }
}

/* What only ranks of one epoch can agree on, under keys that every epoch uses again. */
static dp_status_t work(const self_t *self)
{
    const dp_host_t *host = dp_group_host(self->group);
    const dp_host_boot_t *boot = host->get_service(host, DP_HOST_BOOT);
    const uint32_t epoch = dp__group_epoch(self->group);
    uint32_t all[RANKS], theirs = 0;
    dp_span_t *records = NULL;
    char key[16];
    dp_status_t status;

    snprintf(key, sizeof(key), "key %d", self->forked->rank);
    status = boot->put(host, key, &epoch, sizeof(epoch));
    snprintf(key, sizeof(key), "key %d", (self->forked->rank + 1) % RANKS);
    if (status == DP_OK)
        status = boot->get(host, key, &theirs, sizeof(theirs));
    if (status == DP_OK && theirs != epoch)
        return dp_fail(DP_ERR_PROTOCOL, "a key of epoch %u in epoch %u", theirs, epoch);
    if (status == DP_OK)
        status = dp__group_recorder(self->group, 16, &records);
    perhaps_die(self, WITH_A_BOX);
    for (int i = 0; i < 3 && status == DP_OK; i++) {
        if (i == 2) {
            perhaps_die(self, IN_GATHER);
            perhaps_die(self, STOPS_IN_GATHER);
        }
        status = dp_group_all_gather(self->group, &epoch, sizeof(epoch), all);
        for (int r = 0; r < RANKS && status == DP_OK; r++)
            if (all[r] != epoch)
                status = dp_fail(DP_ERR_PROTOCOL, "rank %d is in epoch %u, we in %u", r, all[r], epoch);
    }
    dp__group_recorder_close(self->group, records);
    return status;
}

/* Those that have lived in an epoch say which; new ones 0. */
static dp_status_t check_held(const self_t *self, uint32_t mine)
{
    const uint32_t epoch = dp__group_epoch(self->group), ours = dp__group_held(self->group, self->forked->rank);

    if (ours != mine)
        return dp_fail(DP_ERR_PROTOCOL, "we hold %u and are said to hold %u", mine, ours);
    for (int r = 0; r < RANKS; r++)
        if (dp__group_held(self->group, r) >= epoch)
            return dp_fail(DP_ERR_PROTOCOL, "rank %d has lived in epoch %u before it began", r,
                           dp__group_held(self->group, r));
    return DP_OK;
}

static dp_status_t live(self_t *self)
{
    dp_status_t status = work(self);

    while (dp__group_survives(self->group)) {
        const uint32_t epoch = dp__group_epoch(self->group);

        status = dp__group_reform(self->group, epoch);
        if (status == DP_OK && dp__group_epoch(self->group) <= epoch)
            return dp_fail(DP_ERR_PROTOCOL, "epoch %u after epoch %u", dp__group_epoch(self->group), epoch);
        if (status == DP_OK)
            status = check_held(self, epoch);
        if (status != DP_OK)
            return status;
        status = work(self);
    }
    return status;
}

static dp_status_t body(forked_t *forked)
{
    shared_t *shared = forked->shared;
    self_t self = {.forked = forked,
                   .scenario = &scenarios[forked->argument],
                   .life = __atomic_add_fetch(&shared->lives[forked->rank], 1, __ATOMIC_SEQ_CST)};
    dp_group_options_t options = forked_options(forked);
    char message[1024];
    dp_status_t status;

    perhaps_die(&self, BEFORE_JOINING);
    status = dp_group_join(&options, &self.group);
    perhaps_die(&self, AFTER_JOINING);
    if (status != DP_OK)
        return status;
    status = live(&self);
    snprintf(message, sizeof(message), "%s", dp_last_error());
    dp_group_leave(self.group);
    return status == DP_OK ? DP_OK : dp_fail(status, "%s", message);
}

/* Starts a new process for each of the first `n` that die. */
static void replace(forked_job_t *job, int n, int argument)
{
    int64_t end = forked_now_ns() + (int64_t)(30e9 * forked_scale());

    while (n > 0 && forked_now_ns() < end) {
        for (int32_t r = 0; r < RANKS && n > 0; r++)
            if (job->waits[r] == -1 && waitpid(job->pids[r], &job->waits[r], WNOHANG) == job->pids[r]) {
                forked_start(job, r, body, argument);
                n--;
            }
        forked_nap(1);
    }
    ck_assert_int_eq(n, 0);
}

static void begin(forked_job_t *job, int argument)
{
    setenv("DUALPIPE_LAUNCH", "respawn=9", 1);
    forked_begin(job, RANKS);
    for (int32_t r = 0; r < RANKS; r++)
        forked_start(job, r, body, argument);
}

START_TEST(a_group_comes_together_again)
{
    forked_job_t job;

    begin(&job, _i);
    replace(&job, scenarios[_i].n, _i);
    forked_finish(&job, 30);
    forked_expect_all(&job, DP_OK, "");
    forked_end(&job);
}
END_TEST

/* The launcher has no more of them: all hear who died, and that nobody came. */
START_TEST(nobody_comes)
{
    forked_job_t job;
    char text[32];

    begin(&job, _i);
    while (waitpid(job.pids[_i], &job.waits[_i], WNOHANG) != job.pids[_i])
        forked_nap(1);
    shutdown(job.listener, SHUT_RDWR);
    forked_finish(&job, 10);
    snprintf(text, sizeof(text), "rank %d (pid %d", _i, (int)job.pids[_i]);
    for (int32_t r = 0; r < RANKS; r++)
        if (r != _i) {
            forked_expect(&job, r, DP_ERR_PEER, text);
            forked_expect(&job, r, DP_ERR_PEER, "nobody came in");
        }
    forked_end(&job);
}
END_TEST

/* Of those that do not come only the dead one is said to be dead. */
START_TEST(a_stopped_rank_is_not_taken_for_dead)
{
    forked_job_t job;
    char text[128];
    int stopped;

    begin(&job, STOPPED);
    ck_assert_int_eq(waitpid(job.pids[3], &stopped, WUNTRACED), job.pids[3]);
    ck_assert(WIFSTOPPED(stopped));
    while (waitpid(job.pids[1], &job.waits[1], WNOHANG) != job.pids[1])
        forked_nap(1);
    shutdown(job.listener, SHUT_RDWR);
    while (waitpid(job.pids[0], &job.waits[0], WNOHANG) != job.pids[0])
        forked_nap(1);
    snprintf(text, sizeof(text), "3 lives and has not come again (rank 3, pid %d: process state T, stopped)",
             (int)job.pids[3]);
    kill(job.pids[3], SIGKILL);
    forked_finish(&job, 10);
    forked_expect(&job, 0, DP_ERR_PEER, "nobody came in place of rank 1");
    forked_expect(&job, 0, DP_ERR_PEER, text);
    forked_end(&job);
}
END_TEST

START_TEST(without_a_launcher_that_replaces_the_first_death_is_the_end)
{
    forked_job_t job;

    unsetenv("DUALPIPE_LAUNCH");
    forked_begin(&job, RANKS);
    for (int32_t r = 0; r < RANKS; r++)
        forked_start(&job, r, body, 1);
    forked_finish(&job, 10);
    for (int32_t r = 0; r < RANKS; r++)
        if (r != 1)
            forked_expect(&job, r, DP_ERR_PEER, "rank 1 (pid");
    forked_end(&job);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group/reform");
    TCase *reform = tcase_create("reform");

    tcase_set_timeout(reform, 60 * forked_scale());
    tcase_add_loop_test(reform, a_group_comes_together_again, 0, STOPPED);
    tcase_add_loop_test(reform, nobody_comes, 0, 2);
    tcase_add_test(reform, a_stopped_rank_is_not_taken_for_dead);
    tcase_add_test(reform, without_a_launcher_that_replaces_the_first_death_is_the_end);
    suite_add_tcase(suite, reform);
    return suite_run(suite);
}
