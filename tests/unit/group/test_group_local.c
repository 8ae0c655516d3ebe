/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_group_local.c: ranks as threads: key-value store, collectives, waits, aborts, flight
 * recorders. */
#include <dualpipe/group.h>
#include <dualpipe/plugin.h>

#include "base/environment.h"
#include "group/pace.h"
#include "group/spans.h"
#include "system/wait.h"

#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef fail /* Check's; a member of dp_host_t is called so */

#define MAX_RANKS 16

typedef struct rank {
    dp_group_t *group;
    int32_t rank, size, argument;
    dp_signal_t *signal;
    dp_status_t status;
    char message[1024];
} rank_t;

typedef dp_status_t (*body_fn)(rank_t *self);

static body_fn body;

static void *run_rank(void *argument)
{
    rank_t *self = argument;

    self->status = body(self);
    snprintf(self->message, sizeof(self->message), "%s", self->status != DP_OK ? dp_last_error() : "");
    dp_group_leave(self->group);
    return NULL;
}

/* Runs fn on `size` threads, each of which leaves at the end. */
static void run_ranks(int32_t size, double hang_seconds, body_fn fn, int32_t argument, rank_t ranks[MAX_RANKS])
{
    dp_group_options_t options = {.struct_size = sizeof(options), .hang_seconds = hang_seconds};
    dp_group_t *groups[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    dp_signal_t signal = {0, 0};

    body = fn;
    ck_assert_int_eq(dp_group_local(size, &options, groups), DP_OK);
    for (int32_t r = 0; r < size; r++) {
        ranks[r] = (rank_t){.group = groups[r], .rank = r, .size = size, .argument = argument, .signal = &signal};
        ck_assert_int_eq(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (int32_t r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
}

static void expect_all(const rank_t *ranks, int32_t size, dp_status_t status, const char *part)
{
    for (int32_t r = 0; r < size; r++) {
        ck_assert_msg(ranks[r].status == status, "rank %d: %s: %s", r, dp_status_name(ranks[r].status),
                      ranks[r].message);
        ck_assert_msg(strstr(ranks[r].message, part) != NULL, "rank %d says: %s", r, ranks[r].message);
    }
}

static const dp_host_boot_t *boot_of(const dp_host_t *host)
{
    return host->get_service(host, DP_HOST_BOOT);
}

static uint8_t pattern(int32_t rank, int32_t round, size_t at)
{
    return (uint8_t)(rank * 31 + round * 7 + (int32_t)at);
}

/* ---- collectives ---- */

static dp_status_t gather_body(rank_t *self)
{
    static const size_t sizes[] = {0, 1, 3, 64, 1000, 65536};
    uint8_t *mine = malloc(65536), *all = malloc(65536u * (size_t)self->size);
    dp_status_t status = DP_OK;

    for (int32_t round = 0; round < 6 && status == DP_OK; round++) {
        size_t bytes = sizes[round];

        for (size_t i = 0; i < bytes; i++)
            mine[i] = pattern(self->rank, round, i);
        status = dp_group_all_gather(self->group, mine, bytes, all);
        memset(mine, 0xEE, bytes); /* ours again */
        for (int32_t r = 0; r < self->size && status == DP_OK; r++)
            for (size_t i = 0; i < bytes; i++)
                if (all[(size_t)r * bytes + i] != pattern(r, round, i)) {
                    status = dp_fail(DP_ERR_NUMERIC, "round %d: byte %zu of rank %d is wrong", round, i, r);
                    break;
                }
        if (status == DP_OK)
            status = dp_group_barrier(self->group);
    }
    free(mine);
    free(all);
    return status;
}

START_TEST(all_gather_gives_everybodys_bytes)
{
    static const int32_t sizes[] = {1, 2, 3, 7, 16};
    rank_t ranks[MAX_RANKS];

    run_ranks(sizes[_i], 0, gather_body, 0, ranks);
    expect_all(ranks, sizes[_i], DP_OK, "");
}
END_TEST

typedef struct collected {
    int32_t next, wrong;
    int32_t fail_at;
} collected_t;

static dp_status_t take(void *user, int32_t rank, const void *data, size_t bytes)
{
    collected_t *c = user;
    const uint8_t *from = data;

    if (rank != c->next++ || bytes != (size_t)rank * 70001)
        c->wrong++;
    for (size_t i = 0; i < bytes; i++)
        c->wrong += from[i] != pattern(rank, 1, i);
    return rank == c->fail_at ? dp_fail(DP_ERR_IO, "the disk is full") : DP_OK;
}

static dp_status_t collect_body(rank_t *self)
{
    size_t bytes = (size_t)self->rank * 70001;
    uint8_t *mine = malloc(bytes + 1);
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < bytes; i++)
        mine[i] = pattern(self->rank, 1, i);
    for (int32_t root = 0; root < self->size && status == DP_OK; root++) {
        collected_t c = {0, 0, self->argument};

        status = dp__group_collect(self->group, root, mine, bytes, take, &c);
        if (status == DP_OK && root == self->rank && (c.wrong != 0 || c.next != self->size))
            status = dp_fail(DP_ERR_NUMERIC, "%d bytes are wrong, %d ranks were seen", c.wrong, c.next);
    }
    free(mine);
    return status;
}

START_TEST(collect_hands_over_in_rank_order)
{
    rank_t ranks[MAX_RANKS];

    run_ranks(5, 0, collect_body, -1, ranks);
    expect_all(ranks, 5, DP_OK, "");
}
END_TEST

START_TEST(collect_tells_all_that_the_root_failed)
{
    rank_t ranks[MAX_RANKS];

    run_ranks(4, 0, collect_body, 2, ranks);
    expect_all(ranks, 4, DP_ERR_IO, "the disk is full");
}
END_TEST

static dp_status_t different_sizes_body(rank_t *self)
{
    uint8_t mine[32] = {0}, all[32 * MAX_RANKS];

    return dp_group_all_gather(self->group, mine, self->rank == 1 ? 16 : 32, all);
}

START_TEST(different_sizes_end_the_job)
{
    rank_t ranks[MAX_RANKS];

    run_ranks(3, 0, different_sizes_body, 0, ranks);
    expect_all(ranks, 3, DP_ERR_PROTOCOL, "16 bytes");
    ck_assert_str_eq(ranks[0].message, ranks[2].message);
}
END_TEST

static dp_status_t different_collectives_body(rank_t *self)
{
    int32_t mine = 0, all[MAX_RANKS];

    return self->rank == 0 ? dp_group_barrier(self->group) : dp_group_all_gather(self->group, &mine, 4, all);
}

START_TEST(different_collectives_end_the_job)
{
    rank_t ranks[MAX_RANKS];

    run_ranks(2, 0, different_collectives_body, 0, ranks);
    expect_all(ranks, 2, DP_ERR_PROTOCOL, "barrier");
}
END_TEST

static dp_status_t missing_body(rank_t *self)
{
    dp_status_t status;

    if (self->rank == 1 || self->rank == 3) {
        const dp_host_t *host = dp_group_host(self->group);

        /* not in the barrier, but well until the job has ended */
        (void)host->wait(host, self->signal, 1, INT64_MAX, "the end");
        status = host->aborted(host);
    } else {
        status = dp_group_barrier(self->group);
    }
    return status;
}

START_TEST(barrier_names_who_did_not_come)
{
    rank_t ranks[MAX_RANKS];

    run_ranks(5, 0.1, missing_body, 0, ranks);
    expect_all(ranks, 5, DP_ERR_TIMEOUT, "in barrier for ranks 1, 3");
}
END_TEST

static dp_status_t left_body(rank_t *self)
{
    return self->rank == 1 ? DP_OK : dp_group_barrier(self->group);
}

START_TEST(barrier_with_someone_who_left_fails_at_once)
{
    rank_t ranks[MAX_RANKS];

    run_ranks(3, 600, left_body, 0, ranks);
    ck_assert_int_eq(ranks[1].status, DP_OK);
    ck_assert_int_eq(ranks[0].status, DP_ERR_PEER);
    ck_assert_int_eq(ranks[2].status, DP_ERR_PEER);
    ck_assert_ptr_nonnull(strstr(ranks[0].message, "rank 1 has left the job"));
}
END_TEST

/* ---- boot service ---- */

static dp_status_t boot_body(rank_t *self)
{
    const dp_host_t *host = dp_group_host(self->group);
    const dp_host_boot_t *boot = boot_of(host);
    dp_status_t status = DP_OK;

    for (int32_t i = 0; i < 300 && status == DP_OK; i++) {
        char key[64];
        int64_t value = self->rank * 1000 + i;

        snprintf(key, sizeof(key), "value.%d.%d", self->rank, i);
        status = boot->put(host, key, &value, sizeof(value));
    }
    for (int32_t i = 0; i < 300 && status == DP_OK; i++) {
        int32_t from = (self->rank + 1) % self->size;
        char key[64];
        int64_t value = -1;

        snprintf(key, sizeof(key), "value.%d.%d", from, 299 - i);
        status = boot->get(host, key, &value, sizeof(value));
        if (status == DP_OK && value != from * 1000 + 299 - i)
            status = dp_fail(DP_ERR_NUMERIC, "%s is %lld", key, (long long)value);
    }
    return status == DP_OK ? dp_group_barrier(self->group) : status;
}

START_TEST(boot_carries_values_between_ranks)
{
    rank_t ranks[MAX_RANKS];

    run_ranks(6, 0, boot_body, 0, ranks);
    expect_all(ranks, 6, DP_OK, "");
}
END_TEST

START_TEST(boot_refuses_what_it_cannot_keep)
{
    dp_group_t *group;
    const dp_host_t *host;
    const dp_host_boot_t *boot;
    dp_group_options_t options = {.struct_size = sizeof(options), .hang_seconds = 0.05};
    char key[200];
    static uint8_t data[65537];

    setenv("DUALPIPE_TIMEOUT_SCALE", "1", 1); /* the message below shows the limit */
    ck_assert_int_eq(dp_group_local(1, &options, &group), DP_OK);
    host = dp_group_host(group);
    boot = boot_of(host);
    memset(key, 'k', sizeof(key));
    key[127] = '\0';
    ck_assert_int_eq(boot->put(host, key, data, 65536), DP_OK);
    ck_assert_int_eq(boot->put(host, key, data, 1), DP_ERR_INVALID); /* taken */
    key[127] = 'k';
    key[128] = '\0';
    ck_assert_int_eq(boot->put(host, key, data, 1), DP_ERR_INVALID); /* too long */
    ck_assert_int_eq(boot->put(host, "", data, 1), DP_ERR_INVALID);
    ck_assert_int_eq(boot->put(host, "large", data, 65537), DP_ERR_INVALID);
    ck_assert_int_eq(boot->put(host, "empty", NULL, 0), DP_OK);
    ck_assert_int_eq(boot->get(host, "empty", NULL, 0), DP_OK);
    ck_assert_int_eq(boot->get(host, "empty", data, 1), DP_ERR_PROTOCOL);
    ck_assert_int_eq(boot->get(host, "never", data, 1), DP_ERR_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), " s for \"never\", which no rank has published"));
    ck_assert_int_eq(dp_group_health(group), DP_OK); /* a missing key is the caller's affair */
    dp_group_leave(group);
}
END_TEST

/* ---- host services ---- */

START_TEST(host_table_is_complete)
{
    dp_group_t *group;
    const dp_host_t *host;
    const dp_host_sm_t *sm;
    dp_signal_t signal = {0, 0};
    int64_t before;
    void *memory;

    ck_assert_int_eq(dp_group_local(1, NULL, &group), DP_OK);
    host = dp_group_host(group);
    ck_assert_uint_eq(host->struct_size, sizeof(dp_host_t));
    ck_assert_int_eq(host->abi_major, DP_ABI_MAJOR);
    ck_assert_int_eq(DP_FAIL(host, DP_ERR_DEVICE, "rank %d: lane %s stopped", 0, "p2p"), DP_ERR_DEVICE);
    ck_assert_str_eq(dp_last_error(), "rank 0: lane p2p stopped");
    ck_assert_str_eq(host->last_error(host), "rank 0: lane p2p stopped");
    memory = host->allocate(host, 100, 256);
    ck_assert_ptr_nonnull(memory);
    ck_assert_uint_eq((uintptr_t)memory % 256, 0);
    host->release(host, memory);
    before = host->now_ns(host);
    ck_assert_int_eq(host->wait(host, &signal, 1, 20000000, "rank 0: the wait for nothing"), DP_ERR_TIMEOUT);
    ck_assert_int_ge(host->now_ns(host) - before, 20000000);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "rank 0: the wait for nothing"));
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "0.02 s"));
    host->post(host, &signal, 5);
    ck_assert_int_eq(host->wait(host, &signal, 5, -1, "x"), DP_OK);
    ck_assert_int_eq(host->wait(host, &signal, 1, 0, "x"), DP_OK);
    ck_assert_int_eq(host->aborted(host), DP_OK);
    ck_assert_ptr_null(host->get_service(host, "dp.host.nothing/1"));
    sm = host->get_service(host, DP_HOST_SM);
    ck_assert_uint_eq(sm->struct_size, sizeof(*sm));
    ck_assert_uint_eq(sm->compute_sms, 0);
    dp_group_leave(group);
}
END_TEST

/* ---- the end of a job ---- */

static dp_status_t abort_body(rank_t *self)
{
    const dp_host_t *host = dp_group_host(self->group);

    if (self->rank == self->argument) {
        dp_group_abort(self->group, DP_ERR_NUMERIC, "layer 3 has a NaN");
        dp_group_abort(self->group, DP_ERR_IO, "a second thought");
        return dp_group_health(self->group);
    }
    switch (self->rank % 3) {
    case 0:
        return dp_group_barrier(self->group);
    case 1:
        return host->wait(host, self->signal, 1, INT64_MAX, "nothing");
    default:
        return boot_of(host)->get(host, "nothing", NULL, 0);
    }
}

START_TEST(abort_reaches_every_wait_with_the_first_cause)
{
    rank_t ranks[MAX_RANKS];
    char text[64];

    run_ranks(7, 600, abort_body, _i, ranks);
    snprintf(text, sizeof(text), "rank %d: layer 3 has a NaN", _i);
    expect_all(ranks, 7, DP_ERR_NUMERIC, text);
}
END_TEST

static dp_status_t all_abort_body(rank_t *self)
{
    char text[32];

    snprintf(text, sizeof(text), "reason %d", self->rank);
    dp_group_abort(self->group, self->rank % 2 == 0 ? DP_ERR_DEVICE : DP_ERR_IO, text);
    return dp_group_health(self->group);
}

START_TEST(one_first_cause_wins)
{
    rank_t ranks[MAX_RANKS];

    run_ranks(8, 0, all_abort_body, 0, ranks);
    for (int32_t r = 0; r < 8; r++) {
        ck_assert_str_eq(ranks[r].message, ranks[0].message);
        ck_assert_int_eq(ranks[r].status, ranks[0].status);
    }
    ck_assert_int_lt(ranks[0].status, 0);
}
END_TEST

static dp_group_t *to_interrupt;

static void on_signal(int number)
{
    (void)number;
    dp_group_interrupt(to_interrupt);
}

START_TEST(interrupt_from_a_signal_handler_ends_the_waits)
{
    dp_group_t *groups[3];
    const dp_host_t *host;
    dp_signal_t signal = {0, 0};

    ck_assert_int_eq(dp_group_local(3, NULL, groups), DP_OK);
    to_interrupt = groups[2];
    ck_assert_int_eq(sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_signal}, NULL), 0);
    raise(SIGUSR1);
    host = dp_group_host(groups[0]);
    ck_assert_int_eq(host->wait(host, &signal, 1, INT64_MAX, "nothing"), DP_ERR_INTERRUPTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "interrupted: rank 2"));
    ck_assert_int_eq(dp_group_barrier(groups[1]), DP_ERR_INTERRUPTED);
    ck_assert_int_eq(dp_group_health(groups[2]), DP_ERR_INTERRUPTED);
    dp_group_abort(groups[1], DP_ERR_IO, "too late");
    ck_assert_int_eq(dp_group_health(groups[1]), DP_ERR_INTERRUPTED);
    for (int r = 0; r < 3; r++)
        dp_group_leave(groups[r]);
}
END_TEST

START_TEST(leave_without_a_group_is_allowed)
{
    dp_group_leave(NULL);
}
END_TEST

START_TEST(local_refuses_senseless_sizes)
{
    dp_group_t *groups[1];

    ck_assert_int_eq(dp_group_local(0, NULL, groups), DP_ERR_INVALID);
    ck_assert_int_eq(dp_group_local(-1, NULL, groups), DP_ERR_INVALID);
    ck_assert_int_eq(dp_group_local(4097, NULL, groups), DP_ERR_INVALID);
}
END_TEST

/* ---- memory ---- */

typedef struct countdown {
    long left, live;
    int sticky;
} countdown_t;

static void *count_allocate(void *user, size_t bytes, size_t alignment)
{
    countdown_t *c = user;
    void *memory = NULL;

    if (c->left == 0 || (c->left < 0 && c->sticky)) {
        c->left--;
        return NULL;
    }
    c->left--;
    if (posix_memalign(&memory, alignment, bytes) != 0)
        return NULL;
    c->live++;
    return memory;
}

static void count_release(void *user, void *memory)
{
    countdown_t *c = user;

    c->live--;
    free(memory);
}

START_TEST(every_allocation_may_fail)
{
    countdown_t c = {0, 0, _i};
    dp_allocator_t hooks = {&c, count_allocate, count_release};
    bool untouched = false;

    dp_set_allocator(&hooks);
    for (long k = 0; !untouched; k++) {
        dp_group_t *groups[3] = {NULL, NULL, NULL};
        dp_span_t *records;
        dp_status_t status;

        ck_assert_int_lt(k, 100);
        c.left = k;
        status = dp_group_local(1, NULL, groups);
        if (status == DP_OK) {
            const dp_host_t *host = dp_group_host(groups[0]);

            status = boot_of(host)->put(host, "key", "value", 5);
            if (status == DP_OK)
                status = dp__group_recorder(groups[0], 8, &records);
            dp_group_leave(groups[0]);
        }
        untouched = c.left >= 0;
        ck_assert_int_eq(status, untouched ? DP_OK : DP_ERR_NOMEM);
        ck_assert_int_eq(c.live, 0);
        c.left = k;
        status = dp_group_local(3, NULL, groups);
        if (status == DP_OK)
            for (int r = 0; r < 3; r++)
                dp_group_leave(groups[r]);
        ck_assert(status == DP_OK || status == DP_ERR_NOMEM);
        ck_assert_int_eq(c.live, 0);
    }
    dp_set_allocator(NULL);
}
END_TEST

/* ---- flight recorder ---- */

static dp_status_t recorder_body(rank_t *self)
{
    dp_span_t *records;
    char text[128], wanted[128];
    dp_status_t status = dp__group_recorder(self->group, 4, &records);

    if (status != DP_OK)
        return status;
    dp__group_recorder_name(self->group, 3, "mlp");
    records[1] = (dp_span_t){.start_ns = 10, .end_ns = 20, .step = 2, .microbatch = 0, .kind = DP_SPAN_SEND};
    records[2] = (dp_span_t){.start_ns = 30,
                             .step = 3,
                             .microbatch = 5,
                             .chunk = 1,
                             .stage = (int16_t)self->rank,
                             .segment = 2,
                             .kind = DP_SPAN_COMPUTE,
                             .pass = DP_OP_B,
                             .name = 3};
    records[3] =
        (dp_span_t){.start_ns = 5, .step = 3, .microbatch = -1, .chunk = -1, .stage = -1, .kind = DP_SPAN_STEP};
    status = dp_group_barrier(self->group);
    for (int32_t r = 0; r < self->size && status == DP_OK; r++) {
        snprintf(wanted, sizeof(wanted), "step 3: mlp(B) of stage %d, chunk 1, micro-batch 5", r);
        dp__group_describe(self->group, r, text, sizeof(text));
        if (strcmp(text, wanted) != 0)
            status = dp_fail(DP_ERR_NUMERIC, "rank %d is described as: %s", r, text);
    }
    return status == DP_OK ? dp_group_barrier(self->group) : status;
}

START_TEST(describe_names_the_operation_in_progress)
{
    rank_t ranks[MAX_RANKS];

    run_ranks(4, 0, recorder_body, 0, ranks);
    expect_all(ranks, 4, DP_OK, "");
}
END_TEST

typedef struct sentence {
    dp_span_t span;
    const char *text;
} sentence_t;

static const sentence_t sentences[] = {
    {{.start_ns = 1,
      .step = 7,
      .microbatch = 2,
      .chunk = 0,
      .stage = 1,
      .segment = -1,
      .kind = DP_SPAN_COMPUTE,
      .pass = DP_OP_F},
     "step 7: F of stage 1, chunk 0, micro-batch 2"},
    {{.start_ns = 1,
      .step = 7,
      .microbatch = -1,
      .chunk = -1,
      .stage = -1,
      .segment = 4,
      .kind = DP_SPAN_COMPUTE,
      .pass = DP_OP_W},
     "step 7: segment 4(W)"},
    {{.start_ns = 1,
      .step = 0,
      .microbatch = 9,
      .chunk = 1,
      .stage = 3,
      .segment = -1,
      .kind = DP_SPAN_RECV,
      .pass = DP_OP_I},
     "step 0: waiting for I of stage 3, chunk 1, micro-batch 9"},
    {{.start_ns = 1, .step = 1, .microbatch = -1, .chunk = -1, .stage = 3, .segment = -1, .kind = DP_SPAN_REDUCE},
     "step 1: sum of gradients of stage 3"},
    {{.start_ns = 1, .step = 1, .microbatch = -1, .chunk = -1, .stage = -1, .segment = -1, .kind = DP_SPAN_STEP},
     "step 1: between two operations"},
    {{.start_ns = 1,
      .end_ns = 4,
      .step = 1,
      .microbatch = -1,
      .chunk = -1,
      .stage = -1,
      .segment = -1,
      .kind = DP_SPAN_STEP},
     "step 1: its last operation"},
    {{.start_ns = 1,
      .end_ns = 4,
      .step = 1,
      .microbatch = 0,
      .chunk = 0,
      .stage = 0,
      .segment = -1,
      .kind = DP_SPAN_SEND},
     "step 1: send of F of stage 0, chunk 0, micro-batch 0"},
    {{.start_ns = 0}, ""},
    /* a name that nobody has given; memory that another process may have filled with anything */
    {{.start_ns = 1,
      .step = -5,
      .microbatch = -9,
      .chunk = -1,
      .stage = -1,
      .segment = 0,
      .kind = 0,
      .pass = 200,
      .name = 65535},
     "step -5: segment 0(F&B)"},
};

START_TEST(describe_finds_words_for_every_span)
{
    dp_group_t *group;
    dp_span_t *records, *later;
    char text[128], cut[8];

    ck_assert_int_eq(dp_group_local(1, NULL, &group), DP_OK);
    dp__group_describe(group, 0, text, sizeof(text));
    ck_assert_str_eq(text, "");
    ck_assert_int_eq(dp__group_recorder(group, 0, &records), DP_ERR_INVALID);
    ck_assert_int_eq(dp__group_recorder(group, 1, &records), DP_OK);
    records[0] = sentences[_i].span;
    dp__group_describe(group, 0, text, sizeof(text));
    ck_assert_str_eq(text, sentences[_i].text);
    dp__group_describe(group, 0, cut, sizeof(cut));
    ck_assert_int_eq(strncmp(cut, text, sizeof(cut) - 1), 0);
    dp__group_describe(group, 1, text, sizeof(text));
    ck_assert_str_eq(text, "");
    dp__group_describe(group, -1, text, sizeof(text));
    ck_assert_str_eq(text, "");
    /* the latest start of all recorders counts */
    ck_assert_int_eq(dp__group_recorder(group, 2, &later), DP_OK);
    later[1] =
        (dp_span_t){.start_ns = 100, .step = 8, .microbatch = -1, .chunk = -1, .stage = -1, .kind = DP_SPAN_STEP};
    dp__group_describe(group, 0, text, sizeof(text));
    ck_assert_str_eq(text, "step 8: between two operations");
    dp_group_leave(group);
}
END_TEST

/* Threads of ours ask for both all the time, and a program may set variables beside them. */
START_TEST(the_environment_is_looked_at_when_a_group_is_opened)
{
    dp_group_t *group;

    for (int scale = 3; scale < 5; scale++) {
        char text[8];

        snprintf(text, sizeof(text), "%d", scale);
        setenv("DUALPIPE_TIMEOUT_SCALE", text, 1);
        setenv("DUALPIPE_LOG", scale == 3 ? "debug" : "error", 1);
        ck_assert_int_eq(dp_group_local(1, NULL, &group), DP_OK);
        setenv("DUALPIPE_TIMEOUT_SCALE", "7", 1);
        setenv("DUALPIPE_LOG", "info", 1);
        ck_assert_int_eq(dp__scaled_ns(1), scale * 1000000000LL);
        ck_assert_int_eq(dp__log_level(), scale == 3 ? DP_LOG_DEBUG : DP_LOG_ERROR);
        dp_group_leave(group);
    }
}
END_TEST

START_TEST(a_senseless_variable_is_refused)
{
    static const char *const wrong[][2] = {{"DUALPIPE_TIMEOUT_SCALE", "abc"},  {"DUALPIPE_TIMEOUT_SCALE", "-1"},
                                           {"DUALPIPE_TIMEOUT_SCALE", "nan"},  {"DUALPIPE_TIMEOUT_SCALE", "1e6"},
                                           {"DUALPIPE_TIMEOUT_SCALE", "10 s"}, {"DUALPIPE_LOG", "dbug"}};
    char what[64];
    dp_group_t *group;

    setenv(wrong[_i][0], wrong[_i][1], 1);
    ck_assert_int_eq(dp_group_local(1, NULL, &group), DP_ERR_INVALID);
    snprintf(what, sizeof(what), "%s=%s: ", wrong[_i][0], wrong[_i][1]);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), what));
    unsetenv(wrong[_i][0]);
}
END_TEST

/* ---- what a plugin finds out by itself ---- */

typedef struct waiter {
    const dp_host_t *host;
    dp_status_t status;
    char message[256];
} waiter_t;

static void *wait_for_nothing(void *arg)
{
    waiter_t *w = arg;
    dp_signal_t never = {0, 0};

    w->status = w->host->wait(w->host, &never, 1, -1, "a message");
    snprintf(w->message, sizeof(w->message), "%s", w->host->last_error(w->host));
    return NULL;
}

/* i 0: nobody else knows of it. i 1: the job has a cause already, or gets one soon. */
START_TEST(a_plugin_ends_the_job_and_its_cause_wins)
{
    dp_group_options_t options = {.struct_size = sizeof(options)};
    dp_group_t *groups[2];
    const dp_host_t *host;
    waiter_t waiter;
    pthread_t thread;

    ck_assert_int_eq(dp_group_local(2, &options, groups), DP_OK);
    host = dp_group_host(groups[0]);
    waiter = (waiter_t){.host = dp_group_host(groups[1])};
    ck_assert_int_eq(pthread_create(&thread, NULL, wait_for_nothing, &waiter), 0);
    if (_i == 1)
        dp_group_abort(groups[1], DP_ERR_INTERRUPTED, "rank 1 was stopped");
    ck_assert_int_eq(host->abort_job(host, DP_ERR_PEER, "rank 1 is gone: its queue is closed"),
                     _i == 0 ? DP_ERR_PEER : DP_ERR_INTERRUPTED);
    pthread_join(thread, NULL);
    ck_assert_int_eq(waiter.status, _i == 0 ? DP_ERR_PEER : DP_ERR_INTERRUPTED);
    ck_assert_str_eq(waiter.message, _i == 0 ? "rank 1 is gone: its queue is closed" : "rank 1 was stopped");
    for (int r = 0; r < 2; r++)
        dp_group_leave(groups[r]);
}
END_TEST

/* What each tells with its steps; every thread may ask. */
START_TEST(a_thread_that_is_slow_is_named_to_all)
{
    dp_group_t *groups[3];
    dp_straggler_t slow = {.struct_size = 0};

    ck_assert_int_eq(dp_group_local(3, NULL, groups), DP_OK);
    ck_assert_int_eq(dp_group_straggler(groups[0], &slow), DP_ERR_INVALID);
    slow.struct_size = sizeof(slow);
    for (uint64_t step = 0; step < DP__PACE_STEPS; step++) {
        ck_assert_int_eq(dp_group_straggler(groups[2], &slow), DP_OK);
        ck_assert_int_eq(slow.rank, -1);
        for (int32_t r = 0; r < 3; r++) {
            const dp__step_call_t call = {
                .call = step, .step = step, .count = 3, .pace_ns = r == 1 ? 1400000 : 1000000};

            dp__group_tell_step(groups[r], &call);
        }
    }
    for (int32_t r = 0; r < 3; r++) {
        ck_assert_int_eq(dp_group_straggler(groups[r], &slow), DP_OK);
        ck_assert_int_eq(slow.rank, 1);
        ck_assert_int_eq(slow.steps, DP__PACE_STEPS);
        ck_assert_double_eq_tol(slow.times, 1.4, 1e-12);
        ck_assert_ptr_nonnull(strstr(slow.name, "rank 1 (a thread of pid "));
    }
    for (int32_t r = 0; r < 3; r++)
        dp_group_leave(groups[r]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group_local");
    TCase *tc = tcase_create("local");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, all_gather_gives_everybodys_bytes, 0, 5);
    tcase_add_loop_test(tc, a_plugin_ends_the_job_and_its_cause_wins, 0, 2);
    tcase_add_loop_test(tc, a_senseless_variable_is_refused, 0, 6);
    tcase_add_test(tc, collect_hands_over_in_rank_order);
    tcase_add_test(tc, collect_tells_all_that_the_root_failed);
    tcase_add_test(tc, different_sizes_end_the_job);
    tcase_add_test(tc, different_collectives_end_the_job);
    tcase_add_test(tc, barrier_names_who_did_not_come);
    tcase_add_test(tc, barrier_with_someone_who_left_fails_at_once);
    tcase_add_test(tc, boot_carries_values_between_ranks);
    tcase_add_test(tc, boot_refuses_what_it_cannot_keep);
    tcase_add_test(tc, host_table_is_complete);
    tcase_add_loop_test(tc, abort_reaches_every_wait_with_the_first_cause, 0, 3);
    tcase_add_test(tc, one_first_cause_wins);
    tcase_add_test(tc, interrupt_from_a_signal_handler_ends_the_waits);
    tcase_add_test(tc, leave_without_a_group_is_allowed);
    tcase_add_test(tc, a_thread_that_is_slow_is_named_to_all);
    tcase_add_test(tc, the_environment_is_looked_at_when_a_group_is_opened);
    tcase_add_test(tc, local_refuses_senseless_sizes);
    tcase_add_loop_test(tc, every_allocation_may_fail, 0, 2);
    tcase_add_test(tc, describe_names_the_operation_in_progress);
    tcase_add_loop_test(tc, describe_finds_words_for_every_span, 0, sizeof(sentences) / sizeof(sentences[0]));
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
