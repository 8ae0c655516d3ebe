/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_group_join.c: ranks as processes find each other, work together and part; and what keeps
 * them from it. */
#include "group/spans.h"
#include "tests/support/forked.h"

#include <fcntl.h>
#include <sys/stat.h>

/* ---- a healthy job ---- */

static uint8_t pattern(int32_t rank, int32_t round, size_t at)
{
    return (uint8_t)(rank * 31 + round * 7 + (int32_t)(at * 13 >> 3));
}

static dp_status_t check_gather(dp_group_t *group)
{
    static const size_t sizes[] = {0, 1, 7, 4096, 65536};
    int32_t size = dp_group_size(group), rank = dp_group_rank(group);
    uint8_t *mine = malloc(65536), *all = malloc(65536u * (size_t)size);
    dp_status_t status = DP_OK;

    for (int32_t round = 0; round < 5 && status == DP_OK; round++) {
        size_t bytes = sizes[round];

        for (size_t i = 0; i < bytes; i++)
            mine[i] = pattern(rank, round, i);
        status = dp_group_all_gather(group, mine, bytes, all);
        memset(mine, 0xEE, bytes);
        for (int32_t r = 0; r < size && status == DP_OK; r++)
            for (size_t i = 0; i < bytes && status == DP_OK; i++)
                if (all[(size_t)r * bytes + i] != pattern(r, round, i))
                    status = dp_fail(DP_ERR_NUMERIC, "round %d: byte %zu of rank %d is wrong", round, i, r);
    }
    free(mine);
    free(all);
    return status;
}

static dp_status_t check_boot(dp_group_t *group)
{
    const dp_host_t *host = dp_group_host(group);
    const dp_host_boot_t *boot = host->get_service(host, DP_HOST_BOOT);
    int32_t rank = dp_group_rank(group), size = dp_group_size(group);
    static uint8_t large[65536], got[65536];
    char key[128];
    dp_status_t status = DP_OK;

    /* gets come before the puts they wait for: around the ring */
    for (int32_t i = 0; i < 20 && status == DP_OK; i++) {
        int64_t value = 0;

        if (rank != 0 || i > 0) {
            int32_t from = rank != 0 ? rank - 1 : size - 1;

            snprintf(key, sizeof(key), "ring.%d.%d", rank != 0 ? i : i - 1, from);
            status = boot->get(host, key, &value, sizeof(value));
        }
        value++;
        snprintf(key, sizeof(key), "ring.%d.%d", i, rank);
        if (status == DP_OK)
            status = boot->put(host, key, &value, sizeof(value));
        if (status == DP_OK && value != (int64_t)i * size + rank + 1)
            status = dp_fail(DP_ERR_NUMERIC, "%s is %lld", key, (long long)value);
    }
    memset(key, 'k', 127);
    snprintf(key, sizeof(key), "%d", rank);
    key[strlen(key)] = 'k';
    key[127] = '\0';
    for (size_t i = 0; i < sizeof(large); i++)
        large[i] = pattern(rank, 3, i);
    if (status == DP_OK)
        status = boot->put(host, key, large, sizeof(large));
    if (status == DP_OK)
        status = boot->get(host, key, got, sizeof(got));
    if (status == DP_OK && memcmp(large, got, sizeof(got)) != 0)
        status = dp_fail(DP_ERR_NUMERIC, "64 KiB came back changed");
    if (status == DP_OK && boot->put(host, key, large, 1) != DP_ERR_INVALID)
        status = dp_fail(DP_ERR_NUMERIC, "a key could be published twice");
    if (status == DP_OK && boot->get(host, key, got, 5) != DP_ERR_PROTOCOL)
        status = dp_fail(DP_ERR_NUMERIC, "a key was read with another size");
    return status;
}

typedef struct collected {
    int32_t next, fail_at;
    long wrong;
} collected_t;

static size_t collect_bytes(int32_t rank)
{
    return rank == 1 ? 0 : (size_t)rank * 300007 + 262144;
}

static dp_status_t take(void *user, int32_t rank, const void *data, size_t bytes)
{
    collected_t *c = user;
    const uint8_t *from = data;

    c->wrong += rank != c->next++ || bytes != collect_bytes(rank);
    for (size_t i = 0; i < bytes; i++)
        c->wrong += from[i] != pattern(rank, 1, i);
    return rank == c->fail_at ? dp_fail(DP_ERR_IO, "the disk is full") : DP_OK;
}

static dp_status_t check_collect(dp_group_t *group, int32_t fail_at)
{
    int32_t rank = dp_group_rank(group);
    size_t bytes = collect_bytes(rank);
    uint8_t *mine = malloc(bytes + 1);
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < bytes; i++)
        mine[i] = pattern(rank, 1, i);
    for (int32_t root = 0; root < dp_group_size(group) && status == DP_OK; root++) {
        collected_t c = {0, fail_at, 0};

        status = dp__group_collect(group, root, mine, bytes, take, &c);
        if (status == DP_OK && root == rank && (c.wrong != 0 || c.next != dp_group_size(group)))
            status = dp_fail(DP_ERR_NUMERIC, "%ld bytes are wrong, %d ranks were seen", c.wrong, c.next);
    }
    free(mine);
    return status;
}

static dp_status_t healthy_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    int before = forked_count_descriptors();
    dp_group_t *group = NULL;
    dp_status_t status = dp_group_join(&options, &group);

    before -= self->rank == 0; /* the listening socket it was given is used up */
    if (status != DP_OK)
        return status;
    status = check_gather(group);
    if (status == DP_OK)
        status = check_boot(group);
    if (status == DP_OK)
        status = check_collect(group, -1);
    if (status == DP_OK)
        status = dp_group_barrier(group);
    if (status == DP_OK)
        status = dp_group_health(group);
    dp_group_leave(group);
    if (status == DP_OK && forked_count_descriptors() != before)
        status = dp_fail(DP_ERR_IO, "%d descriptors before, %d after", before, forked_count_descriptors());
    return status;
}

START_TEST(ranks_join_work_and_leave)
{
    static const int32_t sizes[] = {2, 3, 5, 8};
    forked_job_t job;

    forked_run(&job, sizes[_i], healthy_body, 0);
    forked_finish(&job, 30);
    forked_expect_all(&job, DP_OK, "");
    forked_end(&job);
}
END_TEST

/* Two jobs one after the other in the same processes; rank 0 opens the second port itself. */
static dp_status_t twice_body(forked_t *self)
{
    dp_status_t status = healthy_body(self);

    return status == DP_OK ? healthy_body(self) : status;
}

START_TEST(ranks_can_join_again)
{
    forked_job_t job;

    forked_run(&job, 3, twice_body, 0);
    forked_finish(&job, 30);
    for (int32_t r = 1; r < 3; r++)
        forked_expect(&job, r, DP_OK, "");
    /* rank 0 gave its descriptor back the first time, so it counts one too few the second time */
    ck_assert(job.results[0].status == DP_OK || strstr(job.results[0].message, "descriptors") != NULL);
    forked_end(&job);
}
END_TEST

static dp_status_t environment_body(forked_t *self)
{
    dp_group_t *group;
    dp_status_t status;

    forked_setenv_number("RANK", self->rank);
    forked_setenv_number("WORLD_SIZE", self->size);
    forked_setenv_number("MASTER_PORT", self->port);
    setenv("MASTER_ADDR", "localhost", 1);
    status = dp_group_join(NULL, &group);
    if (status != DP_OK)
        return status;
    status = dp_group_rank(group) == self->rank && dp_group_size(group) == self->size
                 ? dp_group_barrier(group)
                 : dp_fail(DP_ERR_INVALID, "rank %d of %d", dp_group_rank(group), dp_group_size(group));
    dp_group_leave(group);
    return status;
}

START_TEST(the_environment_is_enough)
{
    forked_job_t job;

    forked_run(&job, 3, environment_body, 0);
    forked_finish(&job, 20);
    forked_expect_all(&job, DP_OK, "");
    forked_end(&job);
}
END_TEST

static dp_status_t failing_collect_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    dp_group_t *group;
    dp_status_t status = dp_group_join(&options, &group);

    if (status != DP_OK)
        return status;
    status = check_collect(group, 1);
    dp_group_leave(group);
    return status;
}

START_TEST(collect_tells_all_that_the_root_failed)
{
    forked_job_t job;

    forked_run(&job, 3, failing_collect_body, 0);
    forked_finish(&job, 20);
    forked_expect_all(&job, DP_ERR_IO, "collect at rank 0: the disk is full");
    forked_end(&job);
}
END_TEST

/* ---- settings ---- */

static dp_status_t join_and_leave(const dp_group_options_t *options)
{
    dp_group_t *group = NULL;
    dp_status_t status = dp_group_join(options, &group);

    if (status == DP_OK)
        dp_group_leave(group);
    else if (group != NULL)
        return dp_fail(DP_ERR_INVALID, "a failed join has set the group");
    return status;
}

typedef struct difference {
    const char *ours, *theirs, *message;
} difference_t;

static const difference_t differences[] = {
    {"method=dualpipe\nmicrobatches=16\nseed=1\n", "method=dualpipe\nmicrobatches=8\nseed=1\n",
     "different settings: microbatches is 16 on rank 0 and 8 on rank 2"},
    {"method=dualpipe\n", "method=1f1b\n", "method is dualpipe on rank 0 and 1f1b on rank 2"},
    {"a=1\nb=2\n", "a=1\n", "b is 2 on rank 0 and not set on rank 2"},
    {"a=1\n", "a=1\nc=\n", "c is not set on rank 0 and  on rank 2"},
    {"a=1\nb=2\n", "a=2\nb=1\n", "a is 1 on rank 0 and 2 on rank 2; b is 2 on rank 0 and 1 on rank 2"},
    {"a=1", "a=1\na2=1", "a2 is not set on rank 0 and 1 on rank 2"},
    {"dims=a=b", "dims=a=c", "dims is a=b on rank 0 and a=c on rank 2"},
};

static dp_status_t settings_body(forked_t *self)
{
    const difference_t *d = &differences[self->argument];
    dp_group_options_t options = forked_options(self);

    options.settings = self->rank == 2 ? d->theirs : d->ours;
    return join_and_leave(&options);
}

START_TEST(different_settings_are_named_with_both_values)
{
    forked_job_t job;

    forked_run(&job, 4, settings_body, _i);
    forked_finish(&job, 20);
    forked_expect_all(&job, DP_ERR_MISMATCH, differences[_i].message);
    forked_end(&job);
}
END_TEST

static dp_status_t order_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);

    options.settings = self->rank == 1 ? "b=2\na=1\n" : "a=1\n\nb=2";
    return join_and_leave(&options);
}

START_TEST(the_order_of_settings_does_not_matter)
{
    forked_job_t job;

    forked_run(&job, 2, order_body, 0);
    forked_finish(&job, 20);
    forked_expect_all(&job, DP_OK, "");
    forked_end(&job);
}
END_TEST

static dp_status_t size_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);

    options.size = self->rank == 1 ? 3 : 2;
    return join_and_leave(&options);
}

START_TEST(different_sizes_are_named)
{
    forked_job_t job;

    forked_run(&job, 2, size_body, 0);
    forked_finish(&job, 20);
    forked_expect_all(&job, DP_ERR_MISMATCH, "was started as one of 3 ranks, rank 0 as one of 2");
    forked_end(&job);
}
END_TEST

static dp_status_t large_settings_body(forked_t *self)
{
    static char settings[65536];
    dp_group_options_t options = forked_options(self);

    memset(settings, 'x', sizeof(settings));
    settings[0] = 'a';
    settings[1] = '=';
    settings[self->argument] = '\0';
    options.settings = settings;
    return join_and_leave(&options);
}

START_TEST(settings_up_to_the_limit_arrive)
{
    forked_job_t job;

    forked_run(&job, 2, large_settings_body, 65536 - 64);
    forked_finish(&job, 20);
    forked_expect_all(&job, DP_OK, "");
    forked_end(&job);
    forked_run(&job, 2, large_settings_body, 65535);
    forked_finish(&job, 20);
    forked_expect_all(&job, DP_ERR_INVALID, "at most 65536");
    forked_end(&job);
}
END_TEST

/* ---- who is missing ---- */

static dp_status_t short_join_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);

    options.join_seconds = 0.4;
    return join_and_leave(&options);
}

START_TEST(missing_ranks_are_named)
{
    forked_job_t job;

    forked_begin(&job, 6);
    forked_start(&job, 0, short_join_body, 0);
    forked_start(&job, 1, short_join_body, 0);
    forked_start(&job, 4, short_join_body, 0);
    forked_all_started(&job);
    forked_finish(&job, 5);
    forked_expect(&job, 0, DP_ERR_RENDEZVOUS, "these did not reach 127.0.0.1:");
    for (int32_t r = 0; r < 5; r += r == 0 ? 1 : 3)
        forked_expect(&job, r, DP_ERR_RENDEZVOUS, ": 2, 3, 5");
    forked_end(&job);
}
END_TEST

START_TEST(a_missing_rank_0_is_named)
{
    forked_job_t job;

    forked_begin(&job, 2);
    forked_all_started(&job);
    forked_start(&job, 1, short_join_body, 0);
    forked_finish(&job, 5);
    forked_expect(&job, 1, DP_ERR_RENDEZVOUS, "for rank 0 at 127.0.0.1:");
    forked_expect(&job, 1, DP_ERR_RENDEZVOUS, "Connection refused");
    forked_end(&job);
}
END_TEST

START_TEST(rank_0_may_come_late)
{
    forked_job_t job;
    int listener;

    forked_begin(&job, 2);
    listener = job.listener;
    job.listener = -1;
    close(listener);
    forked_start(&job, 1, healthy_body, 0);
    forked_nap(300);
    forked_start(&job, 0, healthy_body, 0);
    forked_finish(&job, 20);
    forked_expect(&job, 1, DP_OK, "");
    forked_end(&job);
}
END_TEST

/* The second process that calls itself rank 1 is rank 2 here. */
static dp_status_t twin_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);

    options.size = 3;
    options.join_seconds = self->argument == 1 ? 20 : 1;
    options.rank = self->rank == 0 ? 0 : 1;
    return join_and_leave(&options);
}

START_TEST(a_rank_is_claimed_once)
{
    forked_job_t job;
    int refused;

    forked_begin(&job, 3);
    forked_start(&job, 0, twin_body, 0);
    forked_start(&job, 1, twin_body, 1);
    forked_start(&job, 2, twin_body, 1);
    forked_all_started(&job);
    forked_finish(&job, 10);
    forked_expect(&job, 0, DP_ERR_RENDEZVOUS, ": 2; a second rank 1 was refused");
    refused = strstr(job.results[1].message, "there is a rank 1 already") != NULL ? 1 : 2;
    forked_expect(&job, refused, DP_ERR_RENDEZVOUS, "there is a rank 1 already: rank 1 (pid ");
    forked_expect(&job, 3 - refused, DP_ERR_RENDEZVOUS, ": 2; a second rank 1 was refused");
    forked_end(&job);
}
END_TEST

static dp_status_t port_taken_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);

    unsetenv("DUALPIPE_LAUNCH");
    return join_and_leave(&options);
}

START_TEST(a_port_in_use_is_named)
{
    forked_job_t job;

    forked_begin(&job, 2);
    forked_start(&job, 0, port_taken_body, 0);
    forked_finish(&job, 5);
    forked_expect(&job, 0, DP_ERR_RENDEZVOUS, "rank 0 cannot listen at 127.0.0.1:");
    forked_expect(&job, 0, DP_ERR_RENDEZVOUS, "set MASTER_PORT to another port");
    forked_end(&job);
}
END_TEST

static dp_status_t no_port_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);

    options.port = 0;
    unsetenv("MASTER_PORT");
    unsetenv("PMIX_NAMESPACE");
    return join_and_leave(&options);
}

START_TEST(without_a_port_there_is_advice)
{
    forked_job_t job;

    forked_begin(&job, 2);
    forked_start(&job, 1, no_port_body, 0);
    forked_finish(&job, 5);
    forked_expect(&job, 1, DP_ERR_INVALID, "set MASTER_PORT");
    forked_end(&job);
}
END_TEST

/* ---- secrets ---- */

static char secret_path[2][64];

static void write_secret(int which, const char *text, mode_t mode)
{
    int fd;

    snprintf(secret_path[which], sizeof(secret_path[which]), "/tmp/dp-test-secret.%d.%d", which, (int)getpid());
    unlink(secret_path[which]);
    fd = open(secret_path[which], O_WRONLY | O_CREAT | O_EXCL, mode);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fchmod(fd, mode), 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void remove_secrets(void)
{
    for (int i = 0; i < 2; i++)
        if (secret_path[i][0] != '\0')
            unlink(secret_path[i]);
}

/* argument: which rank has the other secret; 10 + r: rank r has none */
static dp_status_t secret_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);

    options.join_seconds = self->argument >= 0 ? 0.6 : 20;
    if (self->argument != 10 + self->rank)
        setenv("DUALPIPE_SECRET_FILE", secret_path[self->argument == self->rank], 1);
    return join_and_leave(&options);
}

START_TEST(the_same_secret_lets_in)
{
    forked_job_t job;

    write_secret(0, "correct horse battery staple\n", 0600);
    forked_run(&job, 3, secret_body, -1);
    forked_finish(&job, 20);
    remove_secrets();
    forked_expect_all(&job, DP_OK, "");
    forked_end(&job);
}
END_TEST

START_TEST(another_secret_keeps_out)
{
    /* a spoke with another or none, the hub with another or none */
    static const int arguments[] = {1, 11, 0, 10};
    forked_job_t job;

    write_secret(0, "correct horse battery staple", 0600);
    write_secret(1, "incorrect horse battery staple", 0600);
    forked_run(&job, 2, secret_body, arguments[_i]);
    forked_finish(&job, 10);
    remove_secrets();
    forked_expect(&job, 1, DP_ERR_SECURITY, "rank 1 was refused by rank 0");
    forked_expect(&job, 1, DP_ERR_SECURITY, "another secret");
    forked_expect(&job, 0, DP_ERR_RENDEZVOUS, "one that called itself rank 1 did not hold the secret");
    forked_end(&job);
}
END_TEST

static dp_status_t pipe_secret_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    uint8_t secret[32];
    int ends[2];
    dp_status_t status;

    memset(secret, 0x5A, sizeof(secret));
    if (pipe(ends) != 0 || write(ends[1], secret, sizeof(secret)) != sizeof(secret))
        return DP_ERR_IO;
    close(ends[1]);
    forked_launch("secret", ends[0]);
    status = join_and_leave(&options);
    /* read once, kept for the next time */
    return status == DP_OK ? join_and_leave(&options) : status;
}

START_TEST(the_secret_may_come_by_a_pipe)
{
    forked_job_t job;

    forked_run(&job, 3, pipe_secret_body, 0);
    forked_finish(&job, 20);
    forked_expect_all(&job, DP_OK, "");
    forked_end(&job);
}
END_TEST

static dp_status_t bad_pipe_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);

    setenv("DUALPIPE_LAUNCH", self->argument == 0 ? "secret=999" : self->argument == 1 ? "secret=2x" : "secret=0", 1);
    return join_and_leave(&options);
}

START_TEST(a_secret_descriptor_must_be_a_pipe)
{
    static const char *const messages[] = {"secret=999 is not an open pipe", "secret=2x: a number"};
    forked_job_t job;

    forked_begin(&job, 2);
    forked_start(&job, 1, bad_pipe_body, _i);
    forked_finish(&job, 5);
    forked_expect(&job, 1, DP_ERR_SECURITY, messages[_i]);
    forked_end(&job);
}
END_TEST

static dp_status_t file_secret_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);

    setenv("DUALPIPE_SECRET_FILE", secret_path[self->argument], 1);
    return join_and_leave(&options);
}

static void expect_file_refused(const char *message)
{
    forked_job_t job;

    forked_begin(&job, 2);
    forked_start(&job, 1, file_secret_body, 0);
    forked_finish(&job, 5);
    forked_expect(&job, 1, DP_ERR_SECURITY, message);
    forked_end(&job);
}

START_TEST(a_secret_file_must_be_private)
{
    static const mode_t modes[] = {0644, 0640, 0604, 0660, 0601};

    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        char mode[32];

        write_secret(0, "correct horse battery staple", modes[i]);
        snprintf(mode, sizeof(mode), "mode %04o", (unsigned)modes[i]);
        expect_file_refused(mode);
    }
    write_secret(0, "fifteen letters", 0600);
    expect_file_refused("holds a secret of 15 bytes; at least 16");
    write_secret(1, "correct horse battery staple", 0600);
    unlink(secret_path[0]);
    ck_assert_int_eq(symlink(secret_path[1], secret_path[0]), 0);
    expect_file_refused(secret_path[0]);
    remove_secrets();
    expect_file_refused("No such file");
    ck_assert_int_eq(mkfifo(secret_path[0], 0600), 0);
    expect_file_refused("regular file");
    remove_secrets();
}
END_TEST

START_TEST(a_secret_file_has_an_upper_bound)
{
    static char text[4098];

    memset(text, 's', 4097);
    write_secret(0, text, 0600);
    expect_file_refused("File too large");
    remove_secrets();
}
END_TEST

static dp_status_t public_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);

    options.address = "0.0.0.0";
    options.insecure = self->argument == 1;
    if (self->argument == 2)
        setenv("DUALPIPE_SECRET_FILE", secret_path[0], 1);
    return join_and_leave(&options);
}

START_TEST(beyond_loopback_a_secret_is_needed)
{
    forked_job_t job;

    if (_i == 2)
        write_secret(0, "correct horse battery staple", 0600);
    forked_begin(&job, 2);
    forked_all_started(&job); /* the test's socket is bound to loopback alone */
    forked_start(&job, 0, public_body, _i);
    forked_start(&job, 1, public_body, _i);
    forked_finish(&job, 20);
    remove_secrets();
    for (int32_t r = 0; r < 2; r++)
        if (_i == 0) {
            forked_expect(&job, r, DP_ERR_SECURITY, "the job has no secret");
        } else {
            forked_expect(&job, r, DP_OK, "");
        }
    forked_end(&job);
}
END_TEST

/* ---- the end of a job ---- */

static dp_status_t abort_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    dp_signal_t never = {0, 0};
    dp_group_t *group;
    const dp_host_t *host;
    const dp_host_boot_t *boot;
    dp_status_t status = dp_group_join(&options, &group);

    if (status != DP_OK)
        return status;
    host = dp_group_host(group);
    boot = host->get_service(host, DP_HOST_BOOT);
    if (self->rank == self->argument) {
        forked_nap(50);
        dp_group_abort(group, DP_ERR_NUMERIC, "layer 3 has a NaN");
        dp_group_abort(group, DP_ERR_IO, "a second thought");
        status = dp_group_health(group);
    } else if (self->rank % 3 == 0) {
        status = dp_group_barrier(group);
    } else if (self->rank % 3 == 1) {
        status = host->wait(host, &never, 1, INT64_MAX, "nothing");
    } else {
        status = boot->get(host, "nothing", NULL, 0);
    }
    self->result->status = status;
    snprintf(self->result->message, sizeof(self->result->message), "%s", dp_last_error());
    dp_group_leave(group);
    return dp_fail(status, "%s", self->result->message);
}

START_TEST(abort_reaches_all_processes)
{
    char text[64];
    forked_job_t job;

    forked_run(&job, 5, abort_body, _i);
    forked_finish(&job, 5);
    snprintf(text, sizeof(text), "rank %d: layer 3 has a NaN", _i);
    forked_expect_all(&job, DP_ERR_NUMERIC, text);
    forked_end(&job);
}
END_TEST

static dp_status_t all_abort_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    char text[64];
    dp_group_t *group;
    dp_status_t status = dp_group_join(&options, &group);

    if (status != DP_OK)
        return status;
    snprintf(text, sizeof(text), "reason %d", self->rank);
    dp_group_abort(group, self->rank % 2 != 0 ? DP_ERR_IO : DP_ERR_DEVICE, text);
    status = dp_group_health(group);
    snprintf(text, sizeof(text), "%s", dp_last_error());
    dp_group_leave(group);
    return dp_fail(status, "%s", text);
}

START_TEST(all_processes_agree_on_one_cause)
{
    forked_job_t job;

    forked_run(&job, 6, all_abort_body, 0);
    forked_finish(&job, 10);
    for (int32_t r = 0; r < 6; r++) {
        forked_expect(&job, r, job.results[0].status, "reason ");
        ck_assert_str_eq(job.results[r].message, job.results[0].message);
    }
    forked_end(&job);
}
END_TEST

/* argument 0: another collective; 1: another size; 2: nobody comes; 3: one leaves */
static dp_status_t disagree_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    uint8_t bytes[64] = {0}, all[64 * 4];
    dp_group_t *group;
    dp_status_t status;
    char text[512];

    options.hang_seconds = self->argument == 2 ? 0.3 : 20;
    status = dp_group_join(&options, &group);
    if (status != DP_OK)
        return status;
    if (self->rank != 2)
        status = dp_group_all_gather(group, bytes, 64, all);
    else if (self->argument == 0)
        status = dp_group_barrier(group);
    else if (self->argument == 1)
        status = dp_group_all_gather(group, bytes, 63, all);
    else if (self->argument == 2)
        while ((status = dp_group_health(group)) == DP_OK)
            forked_nap(1);
    snprintf(text, sizeof(text), "%s", status != DP_OK ? dp_last_error() : "");
    dp_group_leave(group);
    return status != DP_OK ? dp_fail(status, "%s", text) : DP_OK;
}

START_TEST(ranks_that_disagree_on_a_collective_hear_why)
{
    static const char *const messages[] = {"in barrier of 0 bytes", "in all_gather of 63 bytes",
                                           "s in all_gather for ranks 2", "in leave of 0 bytes"};
    forked_job_t job;

    forked_run(&job, 4, disagree_body, _i);
    forked_finish(&job, 10);
    for (int32_t r = 0; r < 4; r++)
        if (r != 2 || _i != 3)
            forked_expect(&job, r, _i == 2 ? DP_ERR_TIMEOUT : DP_ERR_PROTOCOL, messages[_i]);
    forked_end(&job);
}
END_TEST

/* ---- flight recorders ---- */

static dp_status_t recorder_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    int before = forked_count_descriptors(), after;
    char text[128], wanted[128];
    dp_span_t *records;
    dp_group_t *group;
    dp_status_t status = dp_group_join(&options, &group);

    if (status != DP_OK)
        return status;
    before = forked_count_descriptors();
    status = dp__group_recorder(group, 1000, &records);
    after = forked_count_descriptors();
    if (status == DP_OK && after != before)
        status = dp_fail(DP_ERR_IO, "%d descriptors before, %d after", before, after);
    if (status == DP_OK) {
        dp__group_recorder_name(group, 200, "mlp");
        records[999] = (dp_span_t){.start_ns = 30,
                                   .step = 3,
                                   .microbatch = 5,
                                   .chunk = 1,
                                   .stage = (int16_t)self->rank,
                                   .segment = 2,
                                   .kind = DP_SPAN_COMPUTE,
                                   .pass = DP_OP_B,
                                   .name = 200};
        status = dp_group_barrier(group);
    }
    for (int32_t r = 0; r < self->size && status == DP_OK; r++) {
        snprintf(wanted, sizeof(wanted), "step 3: mlp(B) of stage %d, chunk 1, micro-batch 5", r);
        dp__group_describe(group, r, text, sizeof(text));
        if (strcmp(text, wanted) != 0)
            status = dp_fail(DP_ERR_NUMERIC, "rank %d is described as: %s", r, text);
    }
    if (status == DP_OK)
        status = dp_group_barrier(group);
    dp_group_leave(group);
    return status;
}

START_TEST(flight_recorders_are_read_across_processes)
{
    forked_job_t job;

    forked_run(&job, 4, recorder_body, 0);
    forked_finish(&job, 20);
    forked_expect_all(&job, DP_OK, "");
    forked_end(&job);
}
END_TEST

static dp_status_t bad_recorder_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    dp_span_t *records = NULL;
    dp_group_t *group;
    dp_status_t status = dp_group_join(&options, &group);
    char text[256];

    if (status != DP_OK)
        return status;
    status = dp__group_recorder(group, self->rank == 1 ? 0 : 8, &records);
    snprintf(text, sizeof(text), "%s", dp_last_error());
    if (records != NULL || dp_group_barrier(group) != DP_OK)
        status = DP_ERR_NUMERIC;
    dp_group_leave(group);
    return dp_fail(status, "%s", text);
}

START_TEST(a_flight_recorder_that_cannot_be_made_is_known_to_all)
{
    forked_job_t job;

    forked_run(&job, 3, bad_recorder_body, 0);
    forked_finish(&job, 20);
    forked_expect_all(&job, DP_ERR_INVALID, "rank 1: a flight recorder of 0 records");
    forked_end(&job);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group_join");
    TCase *tc = tcase_create("join");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, ranks_join_work_and_leave, 0, 4);
    tcase_add_test(tc, ranks_can_join_again);
    tcase_add_test(tc, the_environment_is_enough);
    tcase_add_test(tc, collect_tells_all_that_the_root_failed);
    tcase_add_loop_test(tc, different_settings_are_named_with_both_values, 0,
                        sizeof(differences) / sizeof(differences[0]));
    tcase_add_test(tc, the_order_of_settings_does_not_matter);
    tcase_add_test(tc, different_sizes_are_named);
    tcase_add_test(tc, settings_up_to_the_limit_arrive);
    tcase_add_test(tc, missing_ranks_are_named);
    tcase_add_test(tc, a_missing_rank_0_is_named);
    tcase_add_test(tc, rank_0_may_come_late);
    tcase_add_test(tc, a_rank_is_claimed_once);
    tcase_add_test(tc, a_port_in_use_is_named);
    tcase_add_test(tc, without_a_port_there_is_advice);
    tcase_add_test(tc, the_same_secret_lets_in);
    tcase_add_loop_test(tc, another_secret_keeps_out, 0, 4);
    tcase_add_test(tc, the_secret_may_come_by_a_pipe);
    tcase_add_loop_test(tc, a_secret_descriptor_must_be_a_pipe, 0, 2);
    tcase_add_test(tc, a_secret_file_must_be_private);
    tcase_add_test(tc, a_secret_file_has_an_upper_bound);
    tcase_add_loop_test(tc, beyond_loopback_a_secret_is_needed, 0, 3);
    tcase_add_loop_test(tc, abort_reaches_all_processes, 0, 5);
    tcase_add_test(tc, all_processes_agree_on_one_cause);
    tcase_add_loop_test(tc, ranks_that_disagree_on_a_collective_hear_why, 0, 4);
    tcase_add_test(tc, flight_recorders_are_read_across_processes);
    tcase_add_test(tc, a_flight_recorder_that_cannot_be_made_is_known_to_all);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
