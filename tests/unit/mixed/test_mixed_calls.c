/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_mixed_calls.c: what two joined transports ask of each other, of host and device, call by
 * call; each call fails once: its status comes back, what was opened is closed. */
#include "tests/support/failing_device.h"
#include "tests/support/oom.h"
#include "tests/support/suite.h"

#include "mixed/mixed.h"
#include "system/bare_host.h"

#include <stdio.h>

enum { RANKS = 5, COUNT = 40, ROW = 16, CAPACITY = 2 };

/* ---- host and device ---- */

/* Hosts a, a, b, a, c: rank 0 has a neighbour, another run of its host, and ranks of other
 * hosts. */
static const int32_t lives[RANKS] = {0, 0, 1, 0, 2}, alone[RANKS] = {0, 1, 2, 3, 4}, together[RANKS];
static dp_host_places_t places;
static const void *(*service)(void);
static dp_host_t host;

static const void *say_places(void)
{
    return &places;
}
static const void *say_nothing(void)
{
    return NULL;
}
static const void *get_service(const dp_host_t *h, const char *id)
{
    (void)h;
    ck_assert_str_eq(id, DP_HOST_PLACES);
    return service();
}
static dp_status_t host_wait(const dp_host_t *h, dp_signal_t *signal, uint32_t target, int64_t timeout_ns,
                             const char *what)
{
    (void)h, (void)timeout_ns;
    ck_assert_int_ge((int32_t)(signal->value - target), 0); /* nobody else is here to post it */
    ck_assert_ptr_nonnull(strstr(what, "waits for the release of an earlier one"));
    return called();
}

/* ---- two transports, of whose instances this process has one rank ---- */

struct dp_comm {
    const char *kind;
    char name[64];
    int32_t rank, nranks;
    int starts, bundles;
    dp_comm_t *next;
};
struct dp_channel_end {
    dp_comm_t *comm;
    dp_channel_config_t config;
    dp_channel_end_t *next;
    uint32_t count;
};
struct dp_exchange {
    dp_comm_t *comm;
    char rows[RANKS][CAPACITY][ROW];
    int32_t counts[RANKS];
    dp_exchange_t *next;
};
static dp_comm_t *comms;
static dp_channel_end_t *ends;
static dp_exchange_t *exchanges;
static int opened;
static double arrives[4096]; /* what every message brings: ones */

static dp_status_t open_one(const char *kind, const dp_comm_config_t *config, dp_comm_t **comm_out)
{
    dp_status_t status = called();
    dp_comm_t *c;

    if (status < 0)
        return status;
    c = calloc(1, sizeof(*c));
    *c = (dp_comm_t){.kind = kind, .rank = config->rank, .nranks = config->nranks, .next = comms};
    snprintf(c->name, sizeof(c->name), "%s", config->name);
    /* of those that are open */
    for (const dp_comm_t *other = comms; other != NULL; other = other->next)
        ck_assert_msg(other->kind != kind || strcmp(other->name, c->name) != 0, "%s: twice", c->name);
    comms = c;
    opened++;
    *comm_out = c;
    return DP_OK;
}
static dp_status_t near_open(const dp_host_t *h, const dp_comm_config_t *config, dp_comm_t **comm_out)
{
    (void)h;
    return open_one("near", config, comm_out);
}
static dp_status_t far_open(const dp_host_t *h, const dp_comm_config_t *config, dp_comm_t **comm_out)
{
    (void)h;
    return open_one("far", config, comm_out);
}
static void comm_close(dp_comm_t *comm)
{
    for (dp_comm_t **at = &comms; *at != NULL; at = &(*at)->next)
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    free(comm);
    opened--;
}
static dp_status_t comm_start(dp_comm_t *comm)
{
    comm->starts++;
    return called();
}
static dp_status_t channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out)
{
    dp_status_t status = called();
    dp_channel_end_t *end;

    ck_assert(config->peer >= 0 && config->peer < comm->nranks && config->peer != comm->rank);
    if (status < 0)
        return status;
    end = calloc(1, sizeof(*end));
    *end = (dp_channel_end_t){comm, *config, ends, 0};
    ends = *end_out = end;
    return DP_OK;
}
static dp_status_t comm_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    (void)from, (void)s;
    ck_assert_uint_eq(tag->number, end->count++);
    return called();
}
static dp_status_t comm_recv(dp_channel_end_t *end, const dp_message_tag_t *tag, const void **data_out, dp_stream_t *s)
{
    (void)s;
    ck_assert_uint_eq(tag->number, end->count);
    *data_out = arrives;
    return called();
}
static dp_status_t comm_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s)
{
    (void)s;
    ck_assert_uint_eq(number, end->count++);
    return called();
}
static dp_status_t bundle_begin(dp_comm_t *comm, dp_stream_t *s)
{
    (void)s;
    comm->bundles++;
    return called();
}
static dp_status_t bundle_end(dp_comm_t *comm, dp_stream_t *s)
{
    (void)s;
    comm->bundles--;
    return called();
}
static dp_status_t all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    (void)comm, (void)data, (void)count, (void)dtype, (void)s;
    return called();
}
static size_t memory_bytes(dp_comm_t *comm)
{
    (void)comm;
    return 1000;
}
static dp_status_t exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out)
{
    dp_status_t status = called();
    dp_exchange_t *x;

    (void)config;
    if (status < 0)
        return status;
    x = calloc(1, sizeof(*x));
    x->comm = comm;
    x->next = exchanges;
    exchanges = *exchange_out = x;
    return DP_OK;
}
static dp_status_t no_exchange(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out)
{
    (void)comm, (void)config, (void)exchange_out;
    return dp_fail(DP_ERR_UNSUPPORTED, "no exchanges here");
}
/* Rank p sends one row of p + 10 over near, of p + 20 over far; p is its number there. */
static dp_status_t do_exchange(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *offsets,
                               const int32_t *counts, const void **rows_out, const int32_t **counts_out, dp_stream_t *s)
{
    (void)number, (void)send, (void)s, (void)offsets;
    for (int32_t r = 0; r < x->comm->nranks; r++) {
        ck_assert(counts[r] >= 0 && counts[r] <= CAPACITY);
        x->counts[r] = 1;
        memset(x->rows[r], (x->comm->kind[0] == 'n' ? 10 : 20) + r, sizeof(x->rows[r]));
    }
    *rows_out = x->rows;
    *counts_out = x->counts;
    return called();
}
static dp_status_t exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    (void)x, (void)number, (void)s;
    return called();
}

static dp_comm_vt_t near_vt, far_vt;
static const dp_comm_vt_t *table;

static void setup(void)
{
    host = dp__bare_host;
    host.get_service = get_service;
    host.wait = host_wait;
    service = say_places;
    places = (dp_host_places_t){.struct_size = sizeof(places), .ranks = RANKS, .hosts = 3, .host_of = lives};
    device_vt.caps = DP_DEVICE_CAP_HOST_MEMORY | DP_DEVICE_CAP_LAUNCH;
    near_vt = (dp_comm_vt_t){.struct_size = sizeof(near_vt),
                             .caps = DP_COMM_CAP_ONE_SIDED | DP_COMM_CAP_HOST_INLINE,
                             .open = near_open,
                             .close = comm_close,
                             .start = comm_start,
                             .channel_open = channel_open,
                             .send = comm_send,
                             .recv = comm_recv,
                             .release = comm_release,
                             .bundle_begin = bundle_begin,
                             .bundle_end = bundle_end,
                             .all_reduce = all_reduce,
                             .memory_bytes = memory_bytes,
                             .exchange_open = exchange_open,
                             .exchange = do_exchange,
                             .exchange_release = exchange_release};
    far_vt = near_vt;
    far_vt.open = far_open;
    far_vt.caps = DP_COMM_CAP_HOSTS | DP_COMM_CAP_ONE_SIDED;
    for (size_t i = 0; i < sizeof(arrives) / sizeof(arrives[0]); i++)
        arrives[i] = 1;
    ck_assert_int_eq(dp__mixed_table(&near_vt, &far_vt, &table), DP_OK);
}

static dp_comm_config_t config_of(int32_t rank)
{
    static const int32_t world[RANKS] = {0, 1, 2, 3, 4};

    return (dp_comm_config_t){.struct_size = sizeof(dp_comm_config_t),
                              .name = "data",
                              .rank = rank,
                              .nranks = RANKS,
                              .world_ranks = world,
                              .device_vt = &device_vt,
                              .device = &device,
                              .reduce_bytes = 512,
                              .vt = table};
}

/* The fakes' own; instances of the joined table have been closed. */
static void clean(void)
{
    while (ends != NULL) {
        dp_channel_end_t *end = ends;

        ends = end->next;
        free(end);
    }
    while (exchanges != NULL) {
        dp_exchange_t *x = exchanges;

        exchanges = x->next;
        free(x);
    }
    ck_assert_int_eq(opened, 0);
    ck_assert_int_eq(device.memories, 0);
}

static dp_status_t open_and_close(void *arg)
{
    dp_comm_t *comm = NULL;
    dp_status_t status = table->open(&host, arg, &comm);

    ck_assert((status < 0) == (comm == NULL));
    table->close(comm);
    clean();
    return status;
}

/* ---- opening ---- */

START_TEST(a_group_that_cannot_be_opened_leaves_nothing)
{
    /* Rank 0: far, near, near_sum, run, far_sum; ways to the next run, from its parent, to
     * children; two starts */
    for (int32_t rank = 0; rank < RANKS; rank++) {
        dp_comm_config_t config = config_of(rank);
        int least = rank == 4 ? 5 : 6;

        ck_assert_int_ge(fail_each(open_and_close, &config, 0), least);
        oom_install();
        for (long k = 0;; k++) {
            dp_status_t status;
            bool struck;

            oom_arm(k, _i);
            status = open_and_close(&config);
            struck = oom_struck();
            oom_disarm();
            ck_assert_int_eq(status, struck ? DP_ERR_NOMEM : DP_OK);
            ck_assert_int_eq(oom_live(), 0);
            if (!struck)
                break;
        }
        oom_uninstall();
    }
}
END_TEST

#define REFUSED(change, expected, words)                                                                               \
    do {                                                                                                               \
        dp_comm_config_t config = config_of(0);                                                                        \
                                                                                                                       \
        change;                                                                                                        \
        ck_assert_int_eq(open_and_close(&config), expected);                                                           \
        ck_assert_msg(strstr(dp_last_error(), words) != NULL, "'%s' lacks '%s'", dp_last_error(), words);              \
    } while (0)

START_TEST(senseless_groups_are_refused)
{
    static const int32_t outside[RANKS] = {0, 1, 2, 3, RANKS}, negative[RANKS] = {0, -1, 2, 3, 4};
    static const char longest[] = "a-name-that-is-longer-than-the-sixty-three-bytes-that-a-name-may-have";

    REFUSED(config.struct_size = 8, DP_ERR_INVALID, "config of a group: struct_size is 8");
    REFUSED(config.name = NULL, DP_ERR_INVALID, "a group's name must have 1 to 63 characters");
    REFUSED(config.name = "", DP_ERR_INVALID, "a group's name must have 1 to 63 characters");
    REFUSED(config.name = "a/b", DP_ERR_INVALID, "of [A-Za-z0-9._-]");
    REFUSED(config.name = longest, DP_ERR_INVALID, "a group's name must have 1 to 63 characters");
    REFUSED(config.nranks = 0, DP_ERR_INVALID, "group data: rank 0 of 0");
    REFUSED(config.rank = -1, DP_ERR_INVALID, "group data: rank -1 of 5");
    REFUSED(config.rank = RANKS, DP_ERR_INVALID, "group data: rank 5 of 5");
    REFUSED(config.world_ranks = NULL, DP_ERR_INVALID, "and config.world_ranks is NULL");
    REFUSED(config.world_ranks = outside, DP_ERR_INVALID, "config.world_ranks[4] is 5, the job has 5 ranks");
    REFUSED(config.world_ranks = negative, DP_ERR_INVALID, "config.world_ranks[1] is -1");
    service = say_nothing;
    REFUSED((void)config, DP_ERR_UNSUPPORTED, "this host does not say where ranks live");
    service = say_places;
    places.struct_size = 8;
    REFUSED((void)config, DP_ERR_UNSUPPORTED, "this host does not say where ranks live");
}
END_TEST

START_TEST(parts_of_a_group_with_a_long_name_have_names_of_their_own)
{
    dp_comm_config_t config = config_of(0);

    config.name = "a-name-of-sixty-three-bytes-which-leaves-no-room-for-the-suffix";
    ck_assert_uint_eq(strlen(config.name), 63);
    ck_assert_int_eq(open_and_close(&config), DP_OK); /* open_one looks */
}
END_TEST

/* One host, or a host for each: then one transport alone carries it, without anything in
 * between. */
START_TEST(where_one_transport_does_the_other_is_not_opened)
{
    dp_comm_config_t config = config_of(1);
    dp_comm_t *comm;
    dp_channel_end_t *end;
    dp_channel_config_t channel = {.struct_size = sizeof(channel), .peer = 3};
    dp_exchange_t *x;
    const dp_exchange_config_t exchange = {.struct_size = sizeof(exchange), .row_bytes = ROW, .capacity_rows = 1};
    const void *rows;
    const int32_t *came, none[RANKS] = {0};

    for (int apart = 0; apart < 2; apart++) {
        places.host_of = apart ? alone : together;
        ck_assert_int_eq(fail_each(open_and_close, &config, 0), 1);
        ck_assert_int_eq(table->open(&host, &config, &comm), DP_OK);
        ck_assert_str_eq(comms->kind, apart ? "far" : "near");
        ck_assert_ptr_null(comms->next);
        ck_assert_int_eq(table->channel_open(comm, &channel, &end), DP_OK);
        ck_assert_int_eq(ends->config.peer, 3);
        ck_assert_uint_eq(dp__mixed_end_caps(end), apart ? far_vt.caps : near_vt.caps);
        ck_assert_int_eq(table->exchange_open(comm, &exchange, &x), DP_OK);
        ck_assert_int_eq(table->start(comm), DP_OK);
        ck_assert_int_eq(comms->starts, 1);
        ck_assert_int_eq(table->exchange(x, 0, arrives, none, none, &rows, &came, &stream), DP_OK);
        ck_assert_ptr_eq(rows, exchanges->rows);
        ck_assert_int_eq(table->exchange_release(x, 0, &stream), DP_OK);
        ncalls = 0;
        ck_assert_int_eq(table->all_reduce(comm, NULL, 0, DP_F64, &stream), DP_OK);
        ck_assert_int_eq(ncalls, 1);
        table->close(comm);
        clean();
    }
}
END_TEST

START_TEST(a_start_reaches_both_whatever_comes_of_the_first)
{
    dp_comm_config_t config = config_of(0);
    dp_comm_t *comm, *near = NULL, *far = NULL;

    ck_assert_int_eq(table->open(&host, &config, &comm), DP_OK);
    for (dp_comm_t *c = comms; c != NULL; c = c->next) {
        near = strstr(c->name, ".n") != NULL ? c : near;
        far = strstr(c->name, ".f") != NULL ? c : far;
    }
    ck_assert(near != NULL && far != NULL);
    for (int first = 0; first < 2; first++) {
        due = first, ncalls = 0;
        ck_assert_int_eq(table->start(comm), DP_ERR_PEER);
        ck_assert_ptr_nonnull(strstr(dp_last_error(), first ? "call 2 fails" : "call 1 fails"));
        ck_assert(near->starts == first + 1 && far->starts == first + 1);
    }
    due = -1;
    ck_assert_int_eq(table->start(comm), DP_OK);
    ck_assert_uint_gt(table->memory_bytes(comm), 5 * 1000);
    table->close(comm);
    clean();
    table->close(NULL);
}
END_TEST

/* ---- channels ---- */

START_TEST(a_channel_is_of_the_transport_that_reaches_its_peer)
{
    dp_comm_config_t config = config_of(0);
    dp_channel_config_t channel = {.struct_size = sizeof(channel), .id = 7};
    dp_comm_t *comm;
    dp_channel_end_t *end = NULL;
    const int32_t wrong[] = {-1, 0, RANKS};

    ck_assert_int_eq(table->open(&host, &config, &comm), DP_OK);
    for (int i = 0; i < 3; i++) {
        channel.peer = wrong[i];
        ck_assert_int_eq(table->channel_open(comm, &channel, &end), DP_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(dp_last_error(), "group data: channel 7 leads to rank"));
    }
    channel.peer = 3;
    channel.struct_size = 8;
    ck_assert_int_eq(table->channel_open(comm, &channel, &end), DP_ERR_INVALID);
    channel.struct_size = sizeof(channel);
    due = 0;
    ck_assert_int_eq(table->channel_open(comm, &channel, &end), DP_ERR_PEER);
    ck_assert_int_eq(table->channel_open(comm, &channel, &end), DP_OK);
    ck_assert_str_eq(ends->comm->kind, "near");
    ck_assert_int_eq(ends->config.peer, 2); /* the third of its host */
    ck_assert_uint_eq(dp__mixed_end_caps(end), near_vt.caps);
    channel.peer = 4;
    ck_assert_int_eq(table->channel_open(comm, &channel, &end), DP_OK);
    ck_assert_str_eq(ends->comm->kind, "far");
    ck_assert_int_eq(ends->config.peer, 4);
    oom_install();
    oom_arm(0, false);
    ck_assert_int_eq(table->channel_open(comm, &channel, &end), DP_ERR_NOMEM);
    oom_disarm();
    oom_uninstall();
    table->close(comm);
    clean();
}
END_TEST

/* Near is one-sided, far matches transfers: the bracket is handed to far alone, and only where far
 * has transfers. */
START_TEST(a_bundle_is_of_the_transport_that_its_first_transfer_is_on)
{
    static const dp_message_tag_t tag = {.number = 0};
    dp_comm_config_t config = config_of(0);
    dp_channel_config_t channel = {.struct_size = sizeof(channel), .sender = 1};
    dp_comm_t *comm, *far;
    dp_channel_end_t *near_end, *far_end;
    const void *data;

    far_vt.caps = DP_COMM_CAP_HOSTS;
    ck_assert_int_eq(table->open(&host, &config, &comm), DP_OK);
    channel.peer = 1;
    ck_assert_int_eq(table->channel_open(comm, &channel, &near_end), DP_OK);
    channel.peer = 2;
    ck_assert_int_eq(table->channel_open(comm, &channel, &far_end), DP_OK);
    far = ends->comm;
    ck_assert_int_eq(table->bundle_begin(comm, &stream), DP_OK);
    ck_assert_int_eq(table->send(near_end, arrives, &tag, &stream), DP_OK);
    ck_assert_int_eq(far->bundles, 0);
    ck_assert_int_eq(table->bundle_end(comm, &stream), DP_OK);
    ck_assert_int_eq(table->bundle_begin(comm, &stream), DP_OK);
    due = 0;
    ck_assert_int_eq(table->send(far_end, arrives, &tag, &stream), DP_ERR_PEER);
    ck_assert_int_eq(table->recv(far_end, &tag, &data, &stream), DP_OK);
    ck_assert_ptr_eq(data, arrives);
    ck_assert_int_eq(far->bundles, 2); /* the one that failed, and the one that is open */
    ck_assert_int_eq(table->send(far_end, arrives, &tag, &stream), DP_OK);
    ck_assert_int_eq(far->bundles, 2);
    due = 0;
    ck_assert_int_eq(table->bundle_end(comm, &stream), DP_ERR_PEER);
    ck_assert_int_eq(far->bundles, 1);
    due = 0;
    ck_assert_int_eq(table->release(far_end, 1, &stream), DP_ERR_PEER);
    table->close(comm);
    clean();
}
END_TEST

/* ---- sums ---- */

typedef struct summing {
    dp_comm_t *comm;
    size_t count;
    dp_dtype_t dtype;
    double data[COUNT];
} summing_t;

/* A group for each sum: one that fails is the end of a job. */
static dp_status_t open_and_sum(void *arg)
{
    summing_t *x = arg;
    dp_comm_config_t config = config_of(x->count == 0 ? 0 : 2);
    int before = due;
    dp_status_t status;

    due = -1;
    ck_assert_int_eq(table->open(&host, &config, &x->comm), DP_OK);
    due = before;
    ncalls = 0;
    for (int i = 0; i < COUNT; i++)
        x->data[i] = i;
    status = table->all_reduce(x->comm, x->data, x->count, x->dtype, &stream);
    table->close(x->comm);
    clean();
    return status;
}

START_TEST(a_sum_ends_with_the_first_call_that_fails)
{
    summing_t x = {.count = COUNT, .dtype = DP_F64};

    /* Rank 2 alone is a run: it adds what comes from the run before, sends that on, and hands the
     * total down. 40 doubles are three blocks of 16 (512 bytes over a lag of 4). */
    for (int matched = 0; matched < 2; matched++) {
        far_vt.caps = DP_COMM_CAP_HOSTS | (matched ? 0 : DP_COMM_CAP_ONE_SIDED);
        ck_assert_int_ge(fail_each(open_and_sum, &x, 0), 3);
        ck_assert_double_eq(x.data[0], 1); /* the total took the place of 0 + 1 */
        ck_assert_double_eq(x.data[COUNT - 1], 1);
    }
    x.count = 0; /* rank 0, and nothing to add: it meets the others all the same */
    ck_assert_int_ge(fail_each(open_and_sum, &x, 0), 2);
    x.dtype = DP_I64;
    ck_assert_int_eq(fail_each(open_and_sum, &x, 0), 1); /* one level */
    x.dtype = DP_F32;
    ck_assert_int_ge(fail_each(open_and_sum, &x, 0), 2);
}
END_TEST

START_TEST(blocks_of_sums_are_as_large_as_asked_for)
{
    const size_t bytes[] = {0, 1, (size_t)64 << 20}, slot[] = {(size_t)256 << 10, 64, (size_t)256 << 10};

    for (int i = 0; i < 3; i++) {
        dp_comm_config_t config = config_of(2);
        dp_comm_t *comm;

        config.reduce_bytes = bytes[i];
        ck_assert_int_eq(table->open(&host, &config, &comm), DP_OK);
        ck_assert_uint_eq(ends->config.slot_bytes, slot[i]);
        table->close(comm);
        clean();
    }
}
END_TEST

/* ---- exchanges ---- */

typedef struct exchanging {
    dp_comm_t *comm;
    dp_exchange_config_t config;
    const char *rows;
    const int32_t *counts;
} exchanging_t;

static dp_status_t exchange_once(void *arg)
{
    static const int32_t offsets[RANKS] = {0, 1, 2, 3, 4}, counts[RANKS] = {1, 1, 1, 1, 1};
    exchanging_t *x = arg;
    dp_comm_config_t config = config_of(0);
    dp_exchange_t *exchange = NULL;
    const void *rows = NULL;
    int before = due;
    dp_status_t status;

    due = -1;
    ck_assert_int_eq(table->open(&host, &config, &x->comm), DP_OK);
    due = before;
    ncalls = 0;
    status = table->exchange_open(x->comm, &x->config, &exchange);
    if (status >= 0)
        status = table->start(x->comm);
    for (uint32_t number = 0; number < 3 && status >= 0; number++) { /* more than there are slots */
        status = table->exchange(exchange, number, arrives, offsets, counts, &rows, &x->counts, &stream);
        /* near's and far's, each where its rank's rows have to lie */
        if (status >= 0 && exchanges->next != NULL && device.memories > 0)
            for (int32_t r = 0; r < RANKS; r++) {
                static const int expected[RANKS] = {10, 11, 22, 12, 24};

                ck_assert_int_eq(x->counts[r], 1);
                ck_assert_int_eq(((const char *)rows)[r * CAPACITY * ROW], expected[r]);
            }
        if (status >= 0)
            status = table->exchange_release(exchange, number, &stream);
    }
    table->close(x->comm);
    clean();
    return status;
}

START_TEST(an_exchange_ends_with_the_first_call_that_fails)
{
    exchanging_t x = {
        .config = {.struct_size = sizeof(x.config), .row_bytes = ROW, .capacity_rows = CAPACITY, .label = "rows"}};
    int both;

    both = fail_each(exchange_once, &x, 1);
    x.config.slots = 3;
    x.config.label = NULL;
    ck_assert_int_eq(fail_each(exchange_once, &x, 1), both);
    near_vt.exchange_open = no_exchange; /* then all rows go over far */
    ck_assert_int_lt(fail_each(exchange_once, &x, 1), both);
    near_vt.exchange_open = exchange_open;
    device_vt.caps = DP_DEVICE_CAP_LAUNCH; /* and on a device whose counts the host cannot read */
    ck_assert_int_lt(fail_each(exchange_once, &x, 1), both);
    x.config.struct_size = 8;
    ck_assert_int_eq(exchange_once(&x), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "config of an exchange: struct_size is 8"));
}
END_TEST

START_TEST(exchanges_have_an_order)
{
    const dp_exchange_config_t exchange = {
        .struct_size = sizeof(exchange), .row_bytes = ROW, .capacity_rows = CAPACITY, .label = "rows"};
    const int32_t none[RANKS] = {0};
    dp_comm_config_t config = config_of(0);
    dp_comm_t *comm;
    dp_exchange_t *x;
    const void *rows;
    const int32_t *counts;

    ck_assert_int_eq(table->open(&host, &config, &comm), DP_OK);
    oom_install();
    oom_arm(0, false);
    ck_assert_int_eq(table->exchange_open(comm, &exchange, &x), DP_ERR_NOMEM);
    oom_disarm();
    oom_uninstall();
    ck_assert_int_eq(table->exchange_open(comm, &exchange, &x), DP_OK);
    ck_assert_int_eq(table->exchange(x, 0, arrives, none, none, &rows, &counts, &stream), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "exchange \"rows\" is used before start"));
    ck_assert_int_eq(table->start(comm), DP_OK);
    ck_assert_int_eq(table->exchange(x, 1, arrives, none, none, &rows, &counts, &stream), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "exchange 1 of \"rows\": 0 is next"));
    ck_assert_int_eq(table->exchange_release(x, 0, &stream), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "0 is next, and 0 have been made"));
    ck_assert_int_eq(table->exchange(x, 0, arrives, none, none, &rows, &counts, &stream), DP_OK);
    ck_assert_int_eq(table->exchange_release(x, 1, &stream), DP_ERR_INVALID);
    ck_assert_int_eq(table->exchange_release(x, 0, &stream), DP_OK);
    table->close(comm);
    clean();
}
END_TEST

/* ---- tables ---- */

START_TEST(each_pair_has_a_table_of_its_own)
{
    static dp_comm_vt_t nears[9], house = {.caps = DP_COMM_CAP_ONE_SIDED};
    const dp_comm_vt_t *t = NULL;

    ck_assert_int_eq(dp__mixed_table(&near_vt, &house, &t), DP_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "it has no DP_COMM_CAP_HOSTS"));
    ck_assert_int_eq(dp__mixed_table(&near_vt, &far_vt, &t), DP_OK);
    ck_assert_ptr_eq(t, table);
    ck_assert(dp__mixed_is(t) && !dp__mixed_is(&near_vt));
    /* far has no inline messages; each opens with its own two */
    ck_assert_uint_eq(t->caps, DP_COMM_CAP_HOSTS | DP_COMM_CAP_ONE_SIDED);
    for (int i = 0; i < 9; i++) {
        dp_comm_config_t config = config_of(0);
        dp_comm_t *comm;

        nears[i] = near_vt;
        ck_assert_int_eq(dp__mixed_table(&nears[i], &far_vt, &t), DP_OK);
        ck_assert_ptr_ne(t, table);
        config.vt = t;
        ck_assert_int_eq(t->open(&host, &config, &comm), DP_OK);
        t->close(comm);
        clean();
    }
    for (int i = 0; i < 2; i++) { /* who does not say which, or says another */
        dp_comm_config_t config = config_of(0);
        dp_comm_t *comm;

        config.vt = i == 0 ? NULL : &near_vt;
        ck_assert_int_eq(table->open(&host, &config, &comm), DP_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(dp_last_error(), "config.vt of a group is not the table that was called"));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mixed/calls");
    TCase *all = tcase_create("calls");

    tcase_add_checked_fixture(all, setup, NULL);
    tcase_add_loop_test(all, a_group_that_cannot_be_opened_leaves_nothing, 0, 2);
    tcase_add_test(all, senseless_groups_are_refused);
    tcase_add_test(all, parts_of_a_group_with_a_long_name_have_names_of_their_own);
    tcase_add_test(all, where_one_transport_does_the_other_is_not_opened);
    tcase_add_test(all, a_start_reaches_both_whatever_comes_of_the_first);
    tcase_add_test(all, a_channel_is_of_the_transport_that_reaches_its_peer);
    tcase_add_test(all, a_bundle_is_of_the_transport_that_its_first_transfer_is_on);
    tcase_add_test(all, a_sum_ends_with_the_first_call_that_fails);
    tcase_add_test(all, blocks_of_sums_are_as_large_as_asked_for);
    tcase_add_test(all, an_exchange_ends_with_the_first_call_that_fails);
    tcase_add_test(all, exchanges_have_an_order);
    tcase_add_test(all, each_pair_has_a_table_of_its_own);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
