/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_group_death.c: a rank is killed at every point of its life: the others say who it was and
 * what it was doing, in time, and nothing is left. */
#include "group/reform.h"
#include "group/spans.h"
#include "tests/support/coverage.h"
#include "tests/support/forked.h"
#include "tests/support/raw_rank.h"
#include "tests/support/suite.h"

#define RANKS         4
#define BOUND_SECONDS 2.0 /* from the kill to the end of the others */

/* What a rank is in when it, or another one, is killed. */
typedef enum activity { IN_BARRIER, IN_GATHER, IN_WAIT, IN_GET, IN_COLLECT, COMPUTING, ACTIVITIES } activity_t;

static dp_status_t take_nothing(void *user, int32_t rank, const void *data, size_t bytes)
{
    (void)user;
    (void)rank;
    (void)data;
    (void)bytes;
    return DP_OK;
}

static dp_status_t act(dp_group_t *group, activity_t activity)
{
    static uint8_t bytes[1 << 20], all[1024 * RANKS];
    const dp_host_t *host = dp_group_host(group);
    const dp_host_boot_t *boot = host->get_service(host, DP_HOST_BOOT);
    dp_signal_t never = {0, 0};
    dp_status_t status;

    switch (activity) {
    case IN_BARRIER:
        return dp_group_barrier(group);
    case IN_GATHER:
        return dp_group_all_gather(group, bytes, 1024, all);
    case IN_WAIT:
        return host->wait(host, &never, 1, -1, "a wait for nothing");
    case IN_GET:
        return boot->get(host, "nothing", bytes, 1);
    case IN_COLLECT:
        return dp__group_collect(group, 1, bytes, sizeof(bytes), take_nothing, NULL);
    default:
        while ((status = host->aborted(host)) == DP_OK)
            forked_nap(1);
        return status;
    }
}

/* The victim does `argument`; the others wait in different ways for what will not come. */
static dp_status_t body(forked_t *self)
{
    int32_t victim = self->argument % RANKS;
    activity_t activity = (activity_t)(self->argument / RANKS);
    dp_group_options_t options = forked_options(self);
    dp_group_t *group = NULL;
    dp_span_t *records;
    char text[1024];
    dp_status_t status = dp_group_join(&options, &group);

    if (status == DP_OK)
        status = dp__group_recorder(group, 64, &records);
    if (status != DP_OK)
        return status;
    dp__group_recorder_name(group, 1, "mlp");
    records[7] = (dp_span_t){.start_ns = 1000, .end_ns = 2000, .step = 2, .microbatch = 1, .kind = DP_SPAN_SEND};
    records[9] = (dp_span_t){.start_ns = 3000,
                             .step = 3,
                             .microbatch = 5,
                             .chunk = 1,
                             .stage = (int16_t)self->rank,
                             .kind = DP_SPAN_COMPUTE,
                             .pass = DP_OP_B,
                             .name = 1};
    if (dp_group_barrier(group) >= 0)
        forked_reach(self, 1);
    if (self->rank == victim)
        status = act(group, activity);
    else if (activity <= IN_GATHER ||
             activity == IN_COLLECT) /* one stays away, so that the others cannot get through */
        status = act(group, self->rank == (victim + 1) % RANKS ? IN_WAIT : activity);
    else
        status =
            act(group, (activity_t)((self->rank + (int)activity) % ACTIVITIES) == IN_COLLECT ? IN_BARRIER : IN_GET);
    snprintf(text, sizeof(text), "%s", dp_last_error());
    dp_group_leave(group);
    return dp_fail(status, "%s", text);
}

static void expect_in_time(const forked_job_t *job, int32_t rank, int64_t start_ns)
{
    double seconds = (double)(job->results[rank].end_ns - start_ns) * 1e-9;

    ck_assert_msg(seconds < BOUND_SECONDS * forked_scale(), "rank %d took %.3f s", rank, seconds);
}

START_TEST(killed_while_working)
{
    int32_t victim = _i % RANKS;
    char text[256];
    int64_t start;
    forked_job_t job;

    forked_run(&job, RANKS, body, _i);
    for (int32_t r = 0; r < RANKS; r++)
        forked_await(&job, r, 1, 20);
    forked_nap(20 + _i % 7); /* well into it */
    start = forked_now_ns();
    kill(job.pids[victim], SIGKILL);
    forked_finish(&job, 20);
    snprintf(text, sizeof(text), "rank %d (pid %d on ", victim, (int)job.pids[victim]);
    for (int32_t r = 0; r < RANKS; r++)
        if (r != victim) {
            forked_expect(&job, r, DP_ERR_PEER, text);
            snprintf(text, sizeof(text), " died in step 3: mlp(B) of stage %d, chunk 1, micro-batch 5", victim);
            forked_expect(&job, r, DP_ERR_PEER, text);
            snprintf(text, sizeof(text), "rank %d (pid %d on ", victim, (int)job.pids[victim]);
            expect_in_time(&job, r, start);
        }
    forked_end(&job);
}
END_TEST

START_TEST(two_killed_at_once)
{
    static const int pairs[][2] = {{0, 1}, {1, 2}, {3, 0}, {2, 3}};
    int32_t a = pairs[_i][0], b = pairs[_i][1];
    int64_t start;
    forked_job_t job;

    forked_run(&job, RANKS, body, COMPUTING * RANKS + a);
    for (int32_t r = 0; r < RANKS; r++)
        forked_await(&job, r, 1, 20);
    start = forked_now_ns();
    kill(job.pids[a], SIGKILL);
    kill(job.pids[b], SIGKILL);
    forked_finish(&job, 20);
    for (int32_t r = 0; r < RANKS; r++)
        if (r != a && r != b) {
            forked_expect(&job, r, DP_ERR_PEER, " died in step 3");
            expect_in_time(&job, r, start);
        }
    forked_end(&job);
}
END_TEST

/* A rank that is stopped cannot hear of it; the others must not wait for that. */
START_TEST(killed_while_another_is_stopped)
{
    int64_t start;
    forked_job_t job;

    forked_run(&job, RANKS, body, COMPUTING * RANKS + 1);
    for (int32_t r = 0; r < RANKS; r++)
        forked_await(&job, r, 1, 20);
    kill(job.pids[2], SIGSTOP);
    start = forked_now_ns();
    kill(job.pids[1], SIGKILL);
    while ((!job.results[0].finished || !job.results[3].finished) && forked_now_ns() < start + 10000000000)
        forked_nap(2);
    kill(job.pids[2], SIGCONT);
    forked_finish(&job, 20);
    for (int32_t r = 0; r < RANKS; r++)
        if (r != 1)
            forked_expect(&job, r, DP_ERR_PEER, " died in step 3");
    expect_in_time(&job, 0, start);
    expect_in_time(&job, 3, start);
    forked_end(&job);
}
END_TEST

/* A child of the victim keeps its connections open: end-of-file does not come. */
static dp_status_t parent_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    dp_group_t *group = NULL;
    dp_status_t status = dp_group_join(&options, &group);
    volatile int *child = self->shared;
    char text[512];

    if (status == DP_OK)
        status = dp_group_barrier(group);
    if (status != DP_OK)
        return status;
    if (self->rank == self->argument) {
        pid_t pid = fork();

        if (pid == 0) {
            sleep(60);
            _exit(0);
        }
        *child = pid;
    }
    forked_reach(self, 1);
    status = act(group, COMPUTING);
    snprintf(text, sizeof(text), "%s", dp_last_error());
    dp_group_leave(group);
    return dp_fail(status, "%s", text);
}

START_TEST(killed_while_a_child_holds_its_connections)
{
    char text[64];
    int64_t start;
    forked_job_t job;

    forked_run(&job, 3, parent_body, _i);
    for (int32_t r = 0; r < 3; r++)
        forked_await(&job, r, 1, 20);
    start = forked_now_ns();
    kill(job.pids[_i], SIGKILL);
    forked_finish(&job, 20);
    ck_assert_int_gt(*(volatile int *)job.shared, 1);
    ck_assert_int_eq(kill(*(volatile int *)job.shared, 0), 0); /* it was there all the time */
    kill(*(volatile int *)job.shared, SIGKILL);
    snprintf(text, sizeof(text), "rank %d (pid %d on ", _i, (int)job.pids[_i]);
    for (int32_t r = 0; r < 3; r++)
        if (r != _i) {
            forked_expect(&job, r, DP_ERR_PEER, text);
            expect_in_time(&job, r, start);
        }
    forked_end(&job);
}
END_TEST

/* ---- leaving ---- */

static dp_status_t leaving_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    volatile int *go = self->shared;
    dp_group_t *group = NULL;
    dp_status_t status = dp_group_join(&options, &group);

    if (status != DP_OK)
        return status;
    forked_reach(self, 1);
    if (self->rank != self->argument)
        while (!*go)
            forked_nap(1);
    if (self->rank != self->argument)
        status = dp_group_health(group);
    dp_group_leave(group);
    return status;
}

START_TEST(killed_while_leaving)
{
    int64_t start;
    forked_job_t job;

    forked_run(&job, RANKS, leaving_body, _i);
    for (int32_t r = 0; r < RANKS; r++)
        forked_await(&job, r, 1, 20);
    forked_nap(50); /* it is in leave, the others are not yet */
    kill(job.pids[_i], SIGKILL);
    forked_nap(100);
    start = forked_now_ns();
    *(volatile int *)job.shared = 1;
    forked_finish(&job, 20);
    for (int32_t r = 0; r < RANKS; r++)
        if (r != _i) {
            if (_i == 0)
                forked_expect(&job, r, DP_ERR_PEER, "rank 0 (pid ");
            else
                forked_expect(&job, r, DP_OK, ""); /* nobody needed it any more */
            expect_in_time(&job, r, start);
        }
    forked_end(&job);
}
END_TEST

static dp_status_t deserting_body(forked_t *self)
{
    int *joined = self->shared;
    dp_group_options_t options = forked_options(self);
    dp_group_t *group = NULL;
    dp_status_t status = dp_group_join(&options, &group);

    if (status != DP_OK)
        return status;
    __atomic_fetch_add(joined, 1, __ATOMIC_SEQ_CST);
    if (self->rank == self->argument) {
        /* else some may not know our pid yet */
        while (__atomic_load_n(joined, __ATOMIC_SEQ_CST) < self->size)
            forked_nap(1);
        return status; /* ends without leaving */
    }
    status = dp_group_barrier(group);
    dp_group_leave(group);
    return status;
}

START_TEST(a_process_that_ends_without_leaving_is_a_death)
{
    char text[64];
    forked_job_t job;

    forked_run(&job, 3, deserting_body, _i);
    forked_finish(&job, 10);
    snprintf(text, sizeof(text), "rank %d (pid %d on ", _i, (int)job.pids[_i]);
    for (int32_t r = 0; r < 3; r++)
        if (r != _i)
            forked_expect(&job, r, DP_ERR_PEER, text);
    forked_end(&job);
}
END_TEST

/* Where a kernel does not return the group's memory stays, but it is left as any other. */
static dp_status_t pinned_body(forked_t *self)
{
    static dp_group_t *group; /* what stays is no leak */
    dp_group_options_t options = forked_options(self);
    dp_status_t status = dp_group_join(&options, &group);

    if (status == DP_OK)
        status = dp_group_barrier(group);
    if (status != DP_OK)
        return status;
    if (self->rank == self->argument) {
        dp__group_pin(group);
    } else {
        forked_nap(200); /* it has left, or waits for us */
        status = dp_group_health(group);
    }
    dp_group_leave(group);
    return status;
}

START_TEST(a_pinned_group_is_left_as_any_other)
{
    forked_job_t job;

    forked_run(&job, 3, pinned_body, _i);
    forked_finish(&job, 10);
    forked_expect_all(&job, DP_OK, "");
    forked_end(&job);
}
END_TEST

/* ---- joining ---- */

typedef enum phase { CONNECTED, SAID_HELLO, PROVED, INTRODUCED } phase_t;

/* Rank 2 of a job without secret and settings, up to a phase. */
static dp_status_t victim_body(forked_t *self)
{
    int fd = -1;
    raw_t raw;
    bool good = true;

    while (fd < 0)
        fd = raw_connect(self->port);
    raw_open(&raw, fd, "");
    if (self->argument >= SAID_HELLO)
        good = raw_hello(&raw, 2, self->size);
    if (self->argument >= PROVED)
        good = good && raw_hear_challenge(&raw) && raw_prove(&raw);
    if (self->argument >= INTRODUCED)
        good = good && raw_hear_welcome(&raw) && raw_introduce(&raw);
    if (!good)
        return dp_fail(DP_ERR_PROTOCOL, "the handshake went wrong");
    forked_reach(self, 1);
    forked_nap(200); /* so that what was sent is heard */
    coverage_keep();
    raise(SIGKILL);
    return DP_OK;
}

static dp_status_t joining_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    dp_group_t *group = NULL;
    dp_status_t status;

    options.join_seconds = self->argument != 0 ? 20 : 1;
    status = dp_group_join(&options, &group);
    if (status == DP_OK)
        dp_group_leave(group);
    return status;
}

/* Rank 3 never comes, so that the others are joining all the time. */
START_TEST(killed_while_joining)
{
    forked_job_t job;

    forked_begin(&job, 4);
    forked_start(&job, 0, joining_body, _i == INTRODUCED);
    forked_start(&job, 1, joining_body, _i == INTRODUCED);
    forked_nap(100);
    forked_start(&job, 2, victim_body, _i);
    forked_all_started(&job);
    forked_finish(&job, 5);
    ck_assert(WIFSIGNALED(job.waits[2]));
    for (int32_t r = 0; r < 2; r++)
        if (_i == INTRODUCED)
            forked_expect(&job, r, DP_ERR_PEER, "on raw) died while the ranks were joining");
        else
            forked_expect(&job, r, DP_ERR_RENDEZVOUS, ": 2, 3");
    forked_end(&job);
}
END_TEST

/* A hub that goes a part of the way with one rank. */
static dp_status_t dying_hub_body(forked_t *self)
{
    int listener = forked_listener();
    int fd = accept(listener, NULL, NULL);
    uint8_t proof[DP__SHA256_BYTES];
    dp__frame_t frame;
    raw_t raw;

    raw_open(&raw, fd, "");
    if (self->argument >= SAID_HELLO) {
        if (raw_receive(&raw, &frame) != DP_OK || frame.type != DP__FRAME_HELLO)
            return dp_fail(DP_ERR_PROTOCOL, "no hello");
        raw.transcript.version = DP__PROTOCOL_VERSION;
        raw.transcript.rank = 1;
        raw.transcript.size = 2;
        memcpy(raw.transcript.rank_nonce, frame.payload + 12, DP__NONCE_BYTES);
        memcpy(raw.transcript.digest, frame.payload + 12 + DP__NONCE_BYTES, DP__SHA256_BYTES);
        (void)raw_send(
            &raw,
            &(dp__frame_t){.type = DP__FRAME_CHALLENGE, .bytes = DP__NONCE_BYTES, .payload = raw.transcript.hub_nonce});
    }
    if (self->argument >= PROVED && (raw_receive(&raw, &frame) != DP_OK || frame.type != DP__FRAME_PROOF))
        return dp_fail(DP_ERR_PROTOCOL, "no proof");
    if (self->argument >= INTRODUCED) {
        dp__secret_prove(&raw.secret, DP__LABEL_HUB_PROOF, &raw.transcript, proof);
        (void)raw_send(&raw, &(dp__frame_t){.type = DP__FRAME_WELCOME, .bytes = sizeof(proof), .payload = proof});
    }
    forked_nap(100);
    coverage_keep();
    raise(SIGKILL);
    return DP_OK;
}

START_TEST(rank_0_killed_while_joining)
{
    forked_job_t job;

    forked_begin(&job, 2);
    forked_start(&job, 0, dying_hub_body, _i);
    forked_start(&job, 1, joining_body, _i == INTRODUCED);
    forked_all_started(&job);
    forked_finish(&job, 5);
    ck_assert(WIFSIGNALED(job.waits[0]));
    if (_i == INTRODUCED)
        forked_expect(&job, 1, DP_ERR_PEER, "rank 0 died while the ranks were joining");
    else
        forked_expect(&job, 1, DP_ERR_RENDEZVOUS, "for rank 0 at 127.0.0.1:");
    forked_end(&job);
}
END_TEST

/* The port of a job that was killed serves the next one at once. */
START_TEST(the_port_is_free_again)
{
    forked_job_t job;
    int port;

    forked_run(&job, RANKS, body, COMPUTING * RANKS + 2);
    for (int32_t r = 0; r < RANKS; r++)
        forked_await(&job, r, 1, 20);
    kill(job.pids[0], SIGKILL);
    kill(job.pids[2], SIGKILL);
    forked_finish(&job, 20);
    port = job.port;
    forked_end(&job);

    forked_begin(&job, 2);
    forked_all_started(&job);
    job.port = port; /* which rank 0 has to open itself */
    forked_start(&job, 0, joining_body, 1);
    forked_start(&job, 1, joining_body, 1);
    forked_finish(&job, 20);
    forked_expect_all(&job, DP_OK, "");
    forked_end(&job);
}
END_TEST

/* ---- asked to stop ---- */

static dp_group_t *volatile to_interrupt;

static void on_signal(int number)
{
    (void)number;
    dp_group_interrupt(to_interrupt);
}

static dp_status_t interrupted_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    dp_group_t *group = NULL;
    dp_status_t status;
    char text[512];

    status = dp_group_join(&options, &group);
    if (status != DP_OK)
        return status;
    to_interrupt = group;
    sigaction(SIGINT, &(struct sigaction){.sa_handler = on_signal}, NULL);
    if (dp_group_barrier(group) >= 0)
        forked_reach(self, 1);
    status = act(group, self->rank == self->argument ? COMPUTING : (activity_t)(IN_WAIT + self->rank % 2));
    snprintf(text, sizeof(text), "%s", dp_last_error());
    sigaction(SIGINT, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    dp_group_leave(group);
    return dp_fail(status, "%s", text);
}

START_TEST(interrupting_one_rank_stops_all)
{
    char text[64];
    int64_t start;
    forked_job_t job;

    forked_run(&job, RANKS, interrupted_body, _i);
    for (int32_t r = 0; r < RANKS; r++)
        forked_await(&job, r, 1, 20);
    start = forked_now_ns();
    kill(job.pids[_i], SIGINT);
    forked_finish(&job, 20);
    snprintf(text, sizeof(text), "interrupted: rank %d (pid %d on ", _i, (int)job.pids[_i]);
    for (int32_t r = 0; r < RANKS; r++) {
        forked_expect(&job, r, DP_ERR_INTERRUPTED, text);
        expect_in_time(&job, r, start);
    }
    forked_end(&job);
}
END_TEST

START_TEST(interrupting_all_ranks_stops_all)
{
    forked_job_t job;

    forked_run(&job, RANKS, interrupted_body, 0);
    for (int32_t r = 0; r < RANKS; r++)
        forked_await(&job, r, 1, 20);
    for (int32_t r = 0; r < RANKS; r++)
        kill(job.pids[r], SIGINT);
    forked_finish(&job, 20);
    for (int32_t r = 0; r < RANKS; r++) {
        forked_expect(&job, r, DP_ERR_INTERRUPTED, "interrupted: rank ");
        ck_assert_str_eq(job.results[r].message, job.results[0].message);
    }
    forked_end(&job);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group_death");
    TCase *tc = tcase_create("death");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, killed_while_working, 0, RANKS * ACTIVITIES);
    tcase_add_loop_test(tc, two_killed_at_once, 0, 4);
    tcase_add_test(tc, killed_while_another_is_stopped);
    tcase_add_loop_test(tc, killed_while_a_child_holds_its_connections, 0, 3);
    tcase_add_loop_test(tc, killed_while_leaving, 0, RANKS);
    tcase_add_loop_test(tc, a_process_that_ends_without_leaving_is_a_death, 0, 3);
    tcase_add_loop_test(tc, a_pinned_group_is_left_as_any_other, 0, 2);
    tcase_add_loop_test(tc, killed_while_joining, CONNECTED, INTRODUCED + 1);
    tcase_add_loop_test(tc, rank_0_killed_while_joining, CONNECTED, INTRODUCED + 1);
    tcase_add_test(tc, the_port_is_free_again);
    tcase_add_loop_test(tc, interrupting_one_rank_stops_all, 0, RANKS);
    tcase_add_test(tc, interrupting_all_ranks_stops_all);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
