/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_group_poll.c: dp_host_t.poll, for runtimes that make progress only while somebody asks: its
 * ends, its deadlines, and that it leaves the core to others. Ranks as threads and as processes. */
#include <dualpipe/group.h>
#include <dualpipe/plugin.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "group/reform.h"
#include "group/spans.h"
#include "tests/support/forked.h"
#include "tests/support/suite.h"

/* What a runtime would do when it is asked. */
typedef struct runtime {
    const dp_host_t *host;
    int64_t ready_ns;     /* when it is there */
    dp_status_t outcome;  /* what it comes to then */
    dp_span_t *heartbeat; /* NULL, or where to say each time that somebody is at work */
    long asked;
} runtime_t;

static dp_status_t progress(void *arg)
{
    runtime_t *r = arg;
    int64_t now = r->host->now_ns(r->host);

    r->asked++;
    if (r->heartbeat != NULL)
        r->heartbeat->start_ns = now;
    if (now < r->ready_ns)
        return DP_PENDING;
    return r->outcome < 0 ? DP_FAIL(r->host, r->outcome, "the runtime had enough") : r->outcome;
}

static dp_group_t *alone(double hang_seconds)
{
    dp_group_options_t options = {.struct_size = sizeof(options), .hang_seconds = hang_seconds};
    dp_group_t *group;

    ck_assert_int_eq(dp_group_local(1, &options, &group), DP_OK);
    return group;
}

static runtime_t runtime_in(const dp_host_t *host, int64_t ns)
{
    return (runtime_t){.host = host, .ready_ns = host->now_ns(host) + ns};
}

START_TEST(what_progress_says_is_passed_on)
{
    static const dp_status_t outcomes[] = {DP_OK, DP_ERR_PROTOCOL, 7};
    dp_group_t *group = alone(0);
    const dp_host_t *host = dp_group_host(group);

    for (int i = 0; i < 3; i++)
        for (int64_t ns = 0; ns <= 30000000; ns += 10000000) {
            runtime_t r = runtime_in(host, ns);

            r.outcome = outcomes[i];
            ck_assert_int_eq(host->poll(host, progress, &r, -1, "a request"), outcomes[i]);
            ck_assert_int_ge(host->now_ns(host), r.ready_ns);
            ck_assert(ns > 0 || r.asked == 1);
            if (outcomes[i] < 0)
                ck_assert_str_eq(host->last_error(host), "the runtime had enough");
        }
    dp_group_leave(group);
}
END_TEST

START_TEST(a_deadline_of_ones_own_ends_it)
{
    dp_group_t *group = alone(0);
    const dp_host_t *host = dp_group_host(group);
    runtime_t r = runtime_in(host, INT64_MAX / 2);
    int64_t begin = host->now_ns(host);

    ck_assert_int_eq(host->poll(host, progress, &r, 20000000, "rank 0: MPI_Recv from rank 3"), DP_ERR_TIMEOUT);
    ck_assert_int_ge(host->now_ns(host) - begin, 20000000);
    ck_assert_str_eq(host->last_error(host), "rank 0: MPI_Recv from rank 3: nothing for 0.02 s");
    r.asked = 0;
    ck_assert_int_eq(host->poll(host, progress, &r, 0, "a look"), DP_ERR_TIMEOUT);
    ck_assert_int_eq(r.asked, 1); /* asked once at least */
    dp_group_leave(group);
}
END_TEST

/* Who waits in slices goes on at DP_ERR_TIMEOUT, so a job that ended with that very status is told
 * in another way. */
START_TEST(a_job_that_timed_out_is_no_slice_of_time)
{
    dp_group_t *group = alone(0);
    const dp_host_t *host = dp_group_host(group);
    runtime_t r = runtime_in(host, INT64_MAX / 2);
    dp_signal_t never = {0, 0};

    dp_group_abort(group, DP_ERR_TIMEOUT, "rank 1 never came");
    for (int64_t slice = 0; slice <= 1000000000; slice += 500000000) {
        ck_assert_int_eq(host->wait(host, &never, 1, slice, "a slice"), DP_ERR_ABORTED);
        ck_assert_ptr_nonnull(strstr(host->last_error(host), "rank 1 never came"));
        ck_assert_int_eq(host->poll(host, progress, &r, slice, "a slice"), DP_ERR_ABORTED);
        ck_assert_ptr_nonnull(strstr(host->last_error(host), "rank 1 never came"));
    }
    ck_assert_int_eq(host->wait(host, &never, 1, -1, "the job's limit"), DP_ERR_TIMEOUT);
    ck_assert_int_eq(host->poll(host, progress, &r, -1, "the job's limit"), DP_ERR_TIMEOUT);
    ck_assert_int_eq(host->aborted(host), DP_ERR_TIMEOUT);
    dp_group_leave(group);
}
END_TEST

/* The job's own limit passes only while no rank makes progress: as with wait(), a long computation
 * of somebody is no hang. */
START_TEST(the_jobs_limit_waits_for_those_who_work)
{
    dp_group_t *group = alone(0.05);
    const dp_host_t *host = dp_group_host(group);
    const dp_host_limits_t *limits = host->get_service(host, DP_HOST_LIMITS);
    runtime_t r = runtime_in(host, 6 * limits->hang_ns);
    dp_span_t *records;

    ck_assert_int_eq(dp__group_recorder(group, 2, &records), DP_OK);
    r.heartbeat = &records[0];
    ck_assert_int_eq(host->poll(host, progress, &r, -1, "a request"), DP_OK);
    ck_assert_int_ge(host->now_ns(host), r.ready_ns);

    r = runtime_in(host, 100 * limits->hang_ns); /* nobody works */
    ck_assert_int_eq(host->poll(host, progress, &r, -1, "a request"), DP_ERR_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(host->last_error(host), "a request: nothing for"));
    ck_assert_int_lt(host->now_ns(host), r.ready_ns);
    dp_group_leave(group);
}
END_TEST

static int64_t thread_cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Asked often at first, then less and less often: a long wait costs a fraction of a core, a short
 * one no time. */
START_TEST(a_long_wait_leaves_the_core_to_others)
{
    enum { WAIT_NS = 500000000 };
    dp_group_t *group = alone(0);
    const dp_host_t *host = dp_group_host(group);
    runtime_t r = runtime_in(host, WAIT_NS);
    int64_t before = thread_cpu_ns(), used;

    ck_assert_int_eq(host->poll(host, progress, &r, -1, "a request"), DP_OK);
    used = thread_cpu_ns() - before;
    ck_assert_msg(used < WAIT_NS / 5, "%lld ns of computing in %d ns of waiting", (long long)used, (int)WAIT_NS);
    ck_assert_msg(r.asked > 20 && r.asked < 5000, "asked %ld times", r.asked);
    dp_group_leave(group);
}
END_TEST

typedef struct poller {
    dp_group_t *group;
    runtime_t runtime;
    dp_status_t status;
    char message[256];
} poller_t;

static void *poll_for_ever(void *arg)
{
    poller_t *p = arg;
    const dp_host_t *host = dp_group_host(p->group);

    p->status = host->poll(host, progress, &p->runtime, INT64_MAX, "a request");
    snprintf(p->message, sizeof(p->message), "%s", dp_last_error());
    dp_group_leave(p->group);
    return NULL;
}

START_TEST(an_abort_ends_it_with_the_first_cause)
{
    dp_group_options_t options = {.struct_size = sizeof(options)};
    dp_group_t *groups[2];
    poller_t p = {.status = DP_OK};
    pthread_t thread;
    int64_t begin;

    ck_assert_int_eq(dp_group_local(2, &options, groups), DP_OK);
    p.group = groups[0];
    p.runtime = runtime_in(dp_group_host(groups[0]), INT64_MAX / 2);
    ck_assert_int_eq(pthread_create(&thread, NULL, poll_for_ever, &p), 0);
    forked_nap(50);
    begin = forked_now_ns();
    dp_group_abort(groups[1], DP_ERR_NUMERIC, "layer 3 has a NaN");
    pthread_join(thread, NULL);
    ck_assert_int_lt(forked_now_ns() - begin, (int64_t)(2e9 * forked_scale()));
    ck_assert_int_eq(p.status, DP_ERR_NUMERIC);
    ck_assert_str_eq(p.message, "rank 1: layer 3 has a NaN");
    dp_group_leave(groups[1]);
}
END_TEST

/* ---- processes ---- */

enum { MEETS, ABORTED };

static dp_status_t poll_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    uint32_t *flag = self->shared;
    dp_group_t *group = NULL;
    dp_status_t status = dp_group_join(&options, &group);
    const dp_host_t *host;
    runtime_t r;

    if (status != DP_OK)
        return status;
    host = dp_group_host(group);
    r = runtime_in(host, self->argument == MEETS ? 30000000 : INT64_MAX / 2);
    if (dp__group_local_rank(group) != self->rank)
        status = dp_fail(DP_ERR_NUMERIC, "rank %d of this host is said to be number %d", self->rank,
                         dp__group_local_rank(group));
    if (status == DP_OK && self->rank == 1 && self->argument == ABORTED) {
        while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) < (uint32_t)self->size - 1)
            forked_nap(5);
        dp_group_abort(group, DP_ERR_NUMERIC, "layer 3 has a NaN");
        status = dp_group_health(group);
    } else if (status == DP_OK) {
        __atomic_fetch_add(flag, 1, __ATOMIC_ACQ_REL);
        status = host->poll(host, progress, &r, -1, "a request");
    }
    if (status == DP_OK)
        status = dp_group_barrier(group);
    dp_group_leave(group);
    return status;
}

START_TEST(processes_poll_too)
{
    forked_job_t job;

    forked_run(&job, 3, poll_body, MEETS);
    forked_finish(&job, 20);
    forked_expect_all(&job, DP_OK, "");
    forked_end(&job);
    forked_run(&job, 3, poll_body, ABORTED);
    forked_finish(&job, 20);
    forked_expect_all(&job, DP_ERR_NUMERIC, "rank 1: layer 3 has a NaN");
    forked_end(&job);
}
END_TEST

START_TEST(ranks_as_threads_share_a_host)
{
    dp_group_t *groups[3];

    ck_assert_int_eq(dp_group_local(3, NULL, groups), DP_OK);
    for (int r = 0; r < 3; r++) {
        ck_assert_int_eq(dp__group_local_rank(groups[r]), r);
        dp_group_leave(groups[r]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group/poll");

    SUITE_ADD(suite, what_progress_says_is_passed_on);
    SUITE_ADD(suite, a_deadline_of_ones_own_ends_it);
    SUITE_ADD(suite, a_job_that_timed_out_is_no_slice_of_time);
    SUITE_ADD(suite, the_jobs_limit_waits_for_those_who_work);
    SUITE_ADD(suite, a_long_wait_leaves_the_core_to_others);
    SUITE_ADD(suite, an_abort_ends_it_with_the_first_cause);
    SUITE_ADD(suite, processes_poll_too);
    SUITE_ADD(suite, ranks_as_threads_share_a_host);
    return suite_run(suite);
}
