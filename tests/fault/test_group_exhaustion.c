/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_group_exhaustion.c: memory or descriptors run out in one rank, at every point: all ranks end
 * in time with a reason, and that rank gives back what it had. */
#include "group/spans.h"
#include "tests/support/forked.h"
#include "tests/support/suite.h"

#include <fcntl.h>
#include <sys/resource.h>

#define RANKS            3
#define MOST_ALLOCATIONS 400

/* Allocations from several threads: the rank's own and the control thread. */
static struct {
    long left, live;
    bool sticky;
} memory;

static void *count_allocate(void *user, size_t bytes, size_t alignment)
{
    long left = __atomic_fetch_sub(&memory.left, 1, __ATOMIC_RELAXED);
    void *block = NULL;

    (void)user;
    if (left == 0 || (left < 0 && memory.sticky) || posix_memalign(&block, alignment, bytes) != 0)
        return NULL;
    __atomic_fetch_add(&memory.live, 1, __ATOMIC_RELAXED);
    return block;
}

static void count_release(void *user, void *block)
{
    (void)user;
    __atomic_fetch_sub(&memory.live, 1, __ATOMIC_RELAXED);
    free(block);
}

static dp_status_t take_nothing(void *user, int32_t rank, const void *data, size_t bytes)
{
    (void)user;
    (void)rank;
    (void)data;
    (void)bytes;
    return DP_OK;
}

/* Everything a group does that may allocate. */
static dp_status_t use(dp_group_t *group)
{
    static uint8_t mine[300000], all[4096 * RANKS];
    const dp_host_t *host = dp_group_host(group);
    const dp_host_boot_t *boot = host->get_service(host, DP_HOST_BOOT);
    int32_t rank = dp_group_rank(group), next = (rank + 1) % RANKS;
    dp_span_t *records;
    char key[32];
    dp_status_t status = dp_group_all_gather(group, mine, 4096, all);

    snprintf(key, sizeof(key), "key %d", rank);
    if (status == DP_OK)
        status = boot->put(host, key, mine, 64);
    snprintf(key, sizeof(key), "key %d", next);
    if (status == DP_OK)
        status = boot->get(host, key, all, 64);
    if (status == DP_OK)
        status = dp__group_recorder(group, 16, &records);
    if (status == DP_OK)
        status = dp__group_collect(group, 1, mine, sizeof(mine), take_nothing, NULL);
    return status;
}

/* Limits are short, so that waiting in vain does not take long. Before a test complains of a limit,
 * it tries longer ones. */
static double patience = 1;

static bool all_good(const forked_job_t *job)
{
    for (int32_t r = 0; r < RANKS; r++)
        if (job->results[r].status != DP_OK)
            return false;
    return true;
}

/* shared: the rank's report on what it holds at the end */
typedef struct report {
    long live, allocations;
    int descriptors;
} report_t;

static dp_status_t join_and_use(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    dp_group_t *group = NULL;
    dp_status_t status;
    char text[1024];

    /* in most rounds somebody waits in vain: all limits a quarter of what they are */
    snprintf(text, sizeof(text), "%g", forked_scale() / 4);
    setenv("DUALPIPE_TIMEOUT_SCALE", text, 1);
    options.join_seconds = patience;
    options.hang_seconds = 2 * patience;
    status = dp_group_join(&options, &group);
    if (status != DP_OK)
        return status;
    status = use(group);
    snprintf(text, sizeof(text), "%s", dp_last_error());
    if (status != DP_OK)
        dp_group_abort(group, status, text);
    dp_group_leave(group);
    return status != DP_OK ? dp_fail(status, "%s", text) : DP_OK;
}

/* argument: victim + RANKS * (sticky + 2 * k) */
static dp_status_t memory_body(forked_t *self)
{
    int victim = self->argument % RANKS, rest = self->argument / RANKS;
    dp_allocator_t hooks = {NULL, count_allocate, count_release};
    report_t *report = self->shared;
    dp_status_t status;

    setenv("DUALPIPE_LOG", "error", 1);
    if (self->rank != victim)
        return join_and_use(self);
    dp_set_allocator(&hooks);
    memory.sticky = rest % 2 != 0;
    memory.left = rest / 2;
    status = join_and_use(self);
    report->allocations = rest / 2 - memory.left;
    report->live = memory.live;
    return status;
}

START_TEST(memory_runs_out)
{
    int victim = _i % RANKS, sticky = _i / RANKS;
    bool untouched = false;
    int k;

    for (k = 0; !untouched; k++) {
        forked_job_t job;
        report_t *report;

        ck_assert_int_lt(k, MOST_ALLOCATIONS);
        forked_run(&job, RANKS, memory_body, victim + RANKS * (sticky + 2 * k));
        forked_finish(&job, 8 + patience);
        report = job.shared;
        untouched = report->allocations <= k;
        if (untouched && patience == 1 && !all_good(&job)) {
            forked_end(&job);
            patience = 40;
            untouched = false;
            k--;
            continue;
        }
        ck_assert_msg(job.results[victim].finished, "allocation %d: rank %d crashed", k, victim);
        ck_assert_msg(report->live == 0, "allocation %d: %ld blocks are left", k, report->live);
        for (int32_t r = 0; r < RANKS; r++)
            if (untouched)
                forked_expect(&job, r, DP_OK, "");
            else
                ck_assert_msg(job.results[r].status == DP_OK || job.results[r].message[0] != '\0',
                              "allocation %d: rank %d does not say why", k, r);
        forked_end(&job);
        if (sticky && k > 3)
            k += 4; /* from the k-th on: much the same as the one before */
    }
    ck_assert_int_gt(k, 5);
}
END_TEST

static dp_status_t descriptor_body(forked_t *self)
{
    int victim = self->argument % RANKS, more = self->argument / RANKS;
    report_t *report = self->shared;
    struct rlimit limit;
    dp_status_t status;
    int highest = 0;

    setenv("DUALPIPE_LOG", "error", 1);
    if (self->rank != victim)
        return join_and_use(self);
    for (int fd = 0; fd < 1024; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            highest = fd;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = (rlim_t)(highest + 1 + more);
    setrlimit(RLIMIT_NOFILE, &limit);
    status = join_and_use(self);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    report->descriptors = forked_count_descriptors();
    return status;
}

START_TEST(descriptors_run_out)
{
    int before = 0;

    for (int more = 0; more < 12; more++) {
        forked_job_t job;
        report_t *report;
        int now;

        forked_run(&job, RANKS, descriptor_body, _i + RANKS * more);
        forked_finish(&job, 8 + patience);
        report = job.shared;
        now = report->descriptors;
        ck_assert_msg(job.results[_i].finished, "%d descriptors: rank %d crashed", more, _i);
        for (int32_t r = 0; r < RANKS; r++)
            ck_assert_msg(job.results[r].status == DP_OK || job.results[r].message[0] != '\0',
                          "%d descriptors: rank %d does not say why", more, r);
        /* a hub that fails before it takes its socket over leaves that one alone */
        ck_assert_msg(more == 0 || now <= before, "%d descriptors: %d are left open", more, now - before);
        before = more == 0 ? now : before;
        if (more == 11 && patience == 1 && !all_good(&job)) {
            patience = 40;
            more--;
        } else if (more == 11) {
            forked_expect_all(&job, DP_OK, "");
        }
        forked_end(&job);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group_exhaustion");
    TCase *tc = tcase_create("exhaustion");

    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, memory_runs_out, 0, 2 * RANKS);
    tcase_add_loop_test(tc, descriptors_run_out, 0, RANKS);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
