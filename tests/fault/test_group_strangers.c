/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_group_strangers.c: whoever else is at the port while ranks are joining: silent, noisy, lying
 * or replaying, they are dropped and delay nobody. */
#include "tests/support/forked.h"
#include "tests/support/raw_rank.h"
#include "tests/support/suite.h"

#include <fcntl.h>

static dp_status_t joining_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    dp_group_t *group = NULL;
    dp_status_t status = dp_group_join(&options, &group);

    if (status == DP_OK)
        status = dp_group_barrier(group);
    dp_group_leave(group);
    return status;
}

/* Starts rank 0, which then waits for rank 1. */
static void begin(forked_job_t *job)
{
    setenv("DUALPIPE_LOG", "error", 1);
    forked_begin(job, 2);
    forked_start(job, 0, joining_body, 0);
    forked_all_started(job);
}

/* Rank 1 comes now and finds its way; everything ends well and soon. */
static void expect_undisturbed(forked_job_t *job)
{
    int64_t start = forked_now_ns();

    forked_start(job, 1, joining_body, 0);
    forked_finish(job, 10);
    forked_expect_all(job, DP_OK, "");
    ck_assert_msg((double)(forked_now_ns() - start) * 1e-9 < 3 * forked_scale(), "the ranks were held up");
    forked_end(job);
}

static bool is_open(int fd)
{
    char byte;
    ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);

    return n > 0 || (n < 0 && errno == EAGAIN);
}

/* Waits until at most `limit` of the connections are open. */
static int count_open(const int *fds, int count, int limit, double seconds)
{
    int64_t end = forked_now_ns() + (int64_t)(seconds * forked_scale() * 1e9);
    int open;

    do {
        open = 0;
        for (int i = 0; i < count; i++)
            open += is_open(fds[i]);
        forked_nap(5);
    } while (open > limit && forked_now_ns() < end);
    return open;
}

static void connect_many(const forked_job_t *job, int *fds, int count)
{
    for (int i = 0; i < count; i++) {
        fds[i] = raw_connect(job->port);
        ck_assert_msg(fds[i] >= 0, "connection %d: %s", i, strerror(errno));
    }
}

static void close_many(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        close(fds[i]);
}

START_TEST(a_thousand_silent_connections)
{
    static int fds[1000];
    int count = 1000;
    forked_job_t job;

    if (sysconf(_SC_OPEN_MAX) < 1100)
        count = (int)sysconf(_SC_OPEN_MAX) - 100;
    begin(&job);
    connect_many(&job, fds, count);
    ck_assert_int_le(count_open(fds, count, 2 * 2 + 16, 3), 2 * 2 + 16);
    forked_start(&job, 1, joining_body, 0);
    job.descriptors += count;
    forked_finish(&job, 10);
    close_many(fds, count);
    forked_expect_all(&job, DP_OK, "");
    forked_end(&job);
}
END_TEST

START_TEST(silence_is_ended_after_five_seconds)
{
    int fds[3];
    int64_t start = forked_now_ns();
    forked_job_t job;
    double seconds;

    begin(&job);
    connect_many(&job, fds, 3);
    ck_assert_int_eq(count_open(fds, 3, 0, 8), 0);
    seconds = (double)(forked_now_ns() - start) * 1e-9;
    ck_assert_msg(seconds > 4.5 * forked_scale() && seconds < 7 * forked_scale(), "after %.2f s", seconds);
    close_many(fds, 3);
    expect_undisturbed(&job);
}
END_TEST

/* What is sent, and that the connection ends at once. */
static void expect_dropped(const forked_job_t *job, const void *data, size_t bytes)
{
    int fd = raw_connect(job->port);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(send(fd, data, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
    ck_assert_int_eq(count_open(&fd, 1, 0, 2), 0);
    close(fd);
}

START_TEST(noise_is_dropped_at_once)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    uint32_t state = 12345;
    unsigned char noise[4096];
    forked_job_t job;

    begin(&job);
    expect_dropped(&job, http, sizeof(http) - 1);
    for (int i = 0; i < 200; i++) {
        for (size_t k = 0; k < sizeof(noise); k++) {
            state = state * 1664525u + 1013904223u;
            noise[k] = (unsigned char)(state >> 24);
        }
        expect_dropped(&job, noise, 32 + (state >> 8) % (sizeof(noise) - 32));
    }
    expect_undisturbed(&job);
}
END_TEST

/* Heads that are well formed but for one thing. */
START_TEST(frames_that_no_rank_sends_are_dropped)
{
    static const uint32_t lengths[] = {4065, 65536, 1u << 20, 0x7fffffff, 0xffffffff};
    unsigned char hello[76] = {0};
    forked_job_t job;

    begin(&job);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint32_t head[8] = {0x31677044u, DP__FRAME_HELLO, 1, 0, 0, 0, 0, lengths[i]};

        expect_dropped(&job, head, sizeof(head));
    }
    for (uint32_t type = 0; type < 20; type++) {
        raw_t raw;

        if (type == DP__FRAME_HELLO)
            continue;
        raw_open(&raw, raw_connect(job.port), "");
        ck_assert(raw_send(&raw, &(dp__frame_t){.type = type, .bytes = sizeof(hello), .payload = hello}));
        ck_assert_int_eq(count_open(&raw.wire.fd, 1, 0, 2), 0);
        dp__wire_fini(&raw.wire);
    }
    for (uint32_t bytes = 0; bytes < sizeof(hello); bytes += 25) {
        raw_t raw;

        raw_open(&raw, raw_connect(job.port), "");
        ck_assert(raw_send(&raw, &(dp__frame_t){.type = DP__FRAME_HELLO, .bytes = bytes, .payload = hello}));
        ck_assert_int_eq(count_open(&raw.wire.fd, 1, 0, 2), 0);
        dp__wire_fini(&raw.wire);
    }
    expect_undisturbed(&job);
}
END_TEST

/* What a frame of the handshake does not use is for later versions. */
START_TEST(members_without_a_use_are_zero)
{
    const dp__frame_t odd[] = {{.from = 1}, {.to = 1}, {.id = 1}, {.value = 1}, {.extra = 1}};
    forked_job_t job;

    begin(&job);
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        const uint32_t numbers[3] = {DP__PROTOCOL_VERSION, 1, 2};
        unsigned char hello[12 + DP__NONCE_BYTES + DP__SHA256_BYTES] = {0}, proof[DP__SHA256_BYTES];
        dp__frame_t frame = odd[i];
        raw_t raw;

        memcpy(hello, numbers, sizeof(numbers));
        frame.type = DP__FRAME_HELLO, frame.bytes = sizeof(hello), frame.payload = hello;
        raw_open(&raw, raw_connect(job.port), "");
        ck_assert(raw_send(&raw, &frame));
        ck_assert_int_eq(count_open(&raw.wire.fd, 1, 0, 2), 0);
        dp__wire_fini(&raw.wire);

        frame.type = DP__FRAME_PROOF, frame.bytes = sizeof(proof), frame.payload = proof;
        raw_open(&raw, raw_connect(job.port), "");
        ck_assert(raw_hello(&raw, 1, 2) && raw_hear_challenge(&raw));
        dp__secret_prove(&raw.secret, DP__LABEL_RANK_PROOF, &raw.transcript, proof);
        ck_assert(raw_send(&raw, &frame));
        ck_assert(!raw_hear_welcome(&raw));
        dp__wire_fini(&raw.wire);
    }
    expect_undisturbed(&job);
}
END_TEST

START_TEST(ranks_that_cannot_be_are_dropped)
{
    static const int32_t claims[][2] = {{0, 2}, {-1, 2}, {2, 2},  {5, 4},         {4096, 4097},
                                        {1, 1}, {1, 0},  {1, -2}, {0x7fffffff, 2}};
    forked_job_t job;

    begin(&job);
    for (size_t i = 0; i < sizeof(claims) / sizeof(claims[0]); i++) {
        raw_t raw;

        raw_open(&raw, raw_connect(job.port), "");
        ck_assert(raw_hello(&raw, claims[i][0], claims[i][1]));
        ck_assert_int_eq(count_open(&raw.wire.fd, 1, 0, 2), 0);
        dp__wire_fini(&raw.wire);
    }
    expect_undisturbed(&job);
}
END_TEST

START_TEST(another_protocol_version_is_told_so)
{
    forked_job_t job;
    dp__frame_t frame;
    raw_t raw;
    unsigned char hello[76] = {0};

    begin(&job);
    hello[0] = 99;
    hello[4] = 1;
    hello[8] = 2;
    raw_open(&raw, raw_connect(job.port), "");
    ck_assert(raw_send(&raw, &(dp__frame_t){.type = DP__FRAME_HELLO, .bytes = sizeof(hello), .payload = hello}));
    ck_assert_int_eq(raw_receive(&raw, &frame), DP_OK);
    ck_assert_uint_eq(frame.type, DP__FRAME_REFUSED);
    ck_assert_int_eq(frame.value, DP_ERR_MISMATCH);
    dp__wire_fini(&raw.wire);
    expect_undisturbed(&job);
}
END_TEST

/* ---- with a secret ---- */

static char secret_path[64];

static void set_secret(const char *secret)
{
    int fd;

    snprintf(secret_path, sizeof(secret_path), "/tmp/dp-test-strangers.%d", (int)getpid());
    unlink(secret_path);
    fd = open(secret_path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, secret, strlen(secret)), (ssize_t)strlen(secret));
    close(fd);
}

static dp_status_t secret_body(forked_t *self)
{
    setenv("DUALPIPE_SECRET_FILE", secret_path, 1);
    return joining_body(self);
}

/* Who has listened to a whole handshake cannot use it again. */
START_TEST(a_replayed_handshake_is_refused)
{
    static const char secret[] = "correct horse battery staple";
    unsigned char proof[DP__SHA256_BYTES];
    dp__transcript_t heard;
    dp__frame_t frame;
    forked_job_t job;
    raw_t raw;

    setenv("DUALPIPE_LOG", "error", 1);
    set_secret(secret);
    forked_begin(&job, 2);
    forked_start(&job, 0, secret_body, 0);
    forked_all_started(&job);

    raw_open(&raw, raw_connect(job.port), secret);
    ck_assert(raw_hello(&raw, 1, 2) && raw_hear_challenge(&raw));
    /* what the rank would send now */
    dp__secret_prove(&raw.secret, DP__LABEL_RANK_PROOF, &raw.transcript, proof);
    heard = raw.transcript;
    dp__wire_fini(&raw.wire);

    for (int i = 0; i < 20; i++) {
        unsigned char hello[76];
        uint32_t numbers[3] = {DP__PROTOCOL_VERSION, 1, 2};

        memcpy(hello, numbers, 12);
        memcpy(hello + 12, heard.rank_nonce, DP__NONCE_BYTES);
        memcpy(hello + 12 + DP__NONCE_BYTES, heard.digest, DP__SHA256_BYTES);
        raw_open(&raw, raw_connect(job.port), "");
        ck_assert(raw_send(&raw, &(dp__frame_t){.type = DP__FRAME_HELLO, .bytes = sizeof(hello), .payload = hello}));
        ck_assert(raw_hear_challenge(&raw));
        ck_assert(memcmp(raw.transcript.hub_nonce, heard.hub_nonce, DP__NONCE_BYTES) != 0);
        ck_assert(raw_send(&raw, &(dp__frame_t){.type = DP__FRAME_PROOF, .bytes = sizeof(proof), .payload = proof}));
        ck_assert_int_eq(raw_receive(&raw, &frame), DP_OK);
        ck_assert_uint_eq(frame.type, DP__FRAME_REFUSED);
        ck_assert_int_eq(frame.value, DP_ERR_SECURITY);
        ck_assert_int_eq(count_open(&raw.wire.fd, 1, 0, 2), 0);
        dp__wire_fini(&raw.wire);
    }
    forked_start(&job, 1, secret_body, 0);
    forked_finish(&job, 10);
    unlink(secret_path);
    forked_expect_all(&job, DP_OK, "");
    forked_end(&job);
}
END_TEST

/* The proof of rank 0 cannot be had by sending a rank's proof back to it: a listener without the
 * secret is found out. */
static dp_status_t mirror_body(forked_t *self)
{
    int fd = accept(forked_listener(), NULL, NULL);
    unsigned char proof[DP__SHA256_BYTES];
    dp__frame_t frame;
    raw_t raw;

    (void)self;
    raw_open(&raw, fd, "");
    if (raw_receive(&raw, &frame) != DP_OK || frame.type != DP__FRAME_HELLO)
        return DP_ERR_PROTOCOL;
    (void)raw_send(
        &raw,
        &(dp__frame_t){.type = DP__FRAME_CHALLENGE, .bytes = DP__NONCE_BYTES, .payload = raw.transcript.hub_nonce});
    if (raw_receive(&raw, &frame) != DP_OK || frame.type != DP__FRAME_PROOF)
        return DP_ERR_PROTOCOL;
    memcpy(proof, frame.payload, sizeof(proof));
    (void)raw_send(&raw, &(dp__frame_t){.type = DP__FRAME_WELCOME, .bytes = sizeof(proof), .payload = proof});
    forked_nap(200);
    dp__wire_fini(&raw.wire);
    return DP_OK;
}

START_TEST(a_listener_without_the_secret_is_found_out)
{
    forked_job_t job;

    set_secret("correct horse battery staple");
    forked_begin(&job, 2);
    forked_start(&job, 0, mirror_body, 0);
    forked_start(&job, 1, secret_body, 0);
    forked_all_started(&job);
    forked_finish(&job, 10);
    unlink(secret_path);
    forked_expect(&job, 0, DP_OK, "");
    forked_expect(&job, 1, DP_ERR_SECURITY, "does not hold the job's secret");
    forked_end(&job);
}
END_TEST

/* ---- after the proof: a rank that has gone mad ---- */

typedef enum madness {
    UNSEALED,
    CUT_OFF,
    UNKNOWN_TYPE,
    WRONG_FROM,
    WRONG_TO,
    LONG_GATHER,
    BAD_KEY,
    MADNESSES
} madness_t;

static dp_status_t mad_body(forked_t *self)
{
    static const unsigned char zeros[70000];
    int fd = -1;
    dp__frame_t frame;
    raw_t raw;

    while (fd < 0)
        fd = raw_connect(self->port);
    raw_open(&raw, fd, "");
    if (!raw_hello(&raw, 1, self->size) || !raw_hear_challenge(&raw) || !raw_prove(&raw) || !raw_hear_welcome(&raw) ||
        !raw_introduce(&raw) || raw_receive(&raw, &frame) != DP_OK || frame.type != DP__FRAME_READY)
        return dp_fail(DP_ERR_PROTOCOL, "the handshake went wrong");
    switch ((madness_t)self->argument) {
    case UNSEALED:
        raw.wire.sealed = false; /* twice, so that there is something where the MAC should be */
        (void)raw_send(&raw,
                       &(dp__frame_t){.type = DP__FRAME_GATHER, .id = 1, .value = 1, .bytes = 64, .payload = zeros});
        (void)raw_send(&raw,
                       &(dp__frame_t){.type = DP__FRAME_GATHER, .id = 1, .value = 1, .bytes = 64, .payload = zeros});
        break;
    case CUT_OFF:
        raw.wire.sent++; /* a frame was lost, or taken out */
        (void)raw_send(&raw, &(dp__frame_t){.type = DP__FRAME_GATHER, .id = 1, .value = 1});
        break;
    case UNKNOWN_TYPE:
        (void)raw_send(&raw, &(dp__frame_t){.type = 77});
        break;
    case WRONG_FROM:
        (void)raw_send(&raw, &(dp__frame_t){.type = DP__FRAME_DATA, .from = 0, .to = 0});
        break;
    case WRONG_TO:
        (void)raw_send(&raw, &(dp__frame_t){.type = DP__FRAME_WANT, .from = 1, .to = 9999});
        break;
    case LONG_GATHER:
        (void)raw_send(&raw,
                       &(dp__frame_t){.type = DP__FRAME_GATHER, .id = 1, .value = 2, .bytes = 65537, .payload = zeros});
        break;
    default:
        (void)raw_send(&raw, &(dp__frame_t){.type = DP__FRAME_PUT, .extra = 300, .bytes = 200, .payload = zeros});
        break;
    }
    while (raw_receive(&raw, &frame) == DP_OK)
        continue;
    dp__wire_fini(&raw.wire);
    return DP_OK;
}

START_TEST(a_rank_that_talks_nonsense_ends_the_job)
{
    forked_job_t job;

    forked_begin(&job, 3);
    forked_start(&job, 0, joining_body, 0);
    forked_start(&job, 1, mad_body, _i);
    forked_start(&job, 2, joining_body, 0);
    forked_all_started(&job);
    forked_finish(&job, 10);
    forked_expect(&job, 0, DP_ERR_PROTOCOL, "on raw): what arrives on its connection is not from the job");
    forked_expect(&job, 2, DP_ERR_PROTOCOL, "rank 1 (pid ");
    forked_expect(&job, 1, DP_OK, "");
    forked_end(&job);
}
END_TEST

/* Nobody listens any more once all ranks are there. */
static dp_status_t closed_door_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    dp_group_t *group = NULL;
    dp_status_t status = dp_group_join(&options, &group);

    if (status == DP_OK && raw_connect(self->port) >= 0)
        status = dp_fail(DP_ERR_SECURITY, "the port is still open");
    if (group != NULL && dp_group_barrier(group) < 0)
        status = status < 0 ? status : DP_ERR_PEER;
    dp_group_leave(group);
    return status;
}

START_TEST(the_door_closes_when_all_are_there)
{
    forked_job_t job;

    forked_run(&job, 3, closed_door_body, 0);
    forked_finish(&job, 10);
    forked_expect_all(&job, DP_OK, "");
    forked_end(&job);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group_strangers");
    TCase *tc = tcase_create("strangers");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_thousand_silent_connections);
    tcase_add_test(tc, silence_is_ended_after_five_seconds);
    tcase_add_test(tc, noise_is_dropped_at_once);
    tcase_add_test(tc, frames_that_no_rank_sends_are_dropped);
    tcase_add_test(tc, members_without_a_use_are_zero);
    tcase_add_test(tc, ranks_that_cannot_be_are_dropped);
    tcase_add_test(tc, another_protocol_version_is_told_so);
    tcase_add_test(tc, a_replayed_handshake_is_refused);
    tcase_add_test(tc, a_listener_without_the_secret_is_found_out);
    tcase_add_loop_test(tc, a_rank_that_talks_nonsense_ends_the_job, 0, MADNESSES);
    tcase_add_test(tc, the_door_closes_when_all_are_there);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
