/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_replicas.c: replicas of experts over groups of threads with device_cpu and comm_shm or
 * comm_ofi: after a move each has what belongs to its new expert and nothing else was sent, with
 * other transfers beside it as well; sums are those that a loop over replicas finds, to the bit. */
#include "stage/replicas.h"
#include "tests/support/suite.h"

#include <dualpipe/advanced.h>
#include <dualpipe/dualpipe.h>
#include <dualpipe/moe_layers.h>
#include <dualpipe/plan.h>
#include <dualpipe/run.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MOST = 4, REPLICAS_MOST = 64, MEMORIES = 3 };

typedef struct job {
    uint32_t experts, replicas;
    size_t expert_count;
    dp_dtype_t dtype;
    int32_t ranks;
    uint64_t seed;
    const char *comm; /* NULL: comm_shm */
    int beside;       /* moves begin, and end behind other transfers */
    dp_group_t *groups[RANKS_MOST];
} job_t;

typedef struct rank {
    const job_t *job;
    int32_t number;
    const dp_device_vt_t *device_vt;
    const dp_comm_vt_t *comm_vt;
    dp_device_t *device;
    dp_comm_t *comm;
    dp_stream_t *stream;
    dp_exchange_t *others; /* of rows of 16 bytes */
    uint32_t next;
    dp__replicas_t *replicas;
    void (*use)(struct rank *rank);
    pthread_t thread;
} rank_t;

static const void *table(const char *name, const char *interface, size_t bytes)
{
    const dp_plugin_t *plugin = NULL;
    const void *vt = NULL;

    ck_assert_msg(dp_plugin_load(name, &plugin) == DP_OK, "%s", dp_last_error());
    ck_assert_msg(dp_plugin_interface(plugin, interface, bytes, &vt) == DP_OK, "%s", dp_last_error());
    return vt;
}

static void expect_ok(dp_status_t status, const char *what)
{
    ck_assert_msg(status == DP_OK, "%s: %s", what, dp_last_error());
}

static void expect_refused(dp_status_t got, dp_status_t wanted, const char *word)
{
    ck_assert_msg(got == wanted, "%s: %s", dp_status_name(got), dp_last_error());
    ck_assert_msg(strstr(dp_last_error(), word) != NULL, "\"%s\" does not speak of \"%s\"", dp_last_error(), word);
}

static dp__replicas_config_t config_of(const rank_t *r)
{
    return (dp__replicas_config_t){
        .experts = r->job->experts,
        .replicas = r->job->replicas,
        .expert_count = r->job->expert_count,
        .dtype = r->job->dtype,
        .device_vt = r->device_vt,
        .device = r->device,
        .comm_vt = r->comm_vt,
        .comm = r->comm,
        .comm_rank = r->number,
        .comm_size = r->job->ranks,
        .exchange_id = 9,
    };
}

static void *rank_main(void *arg)
{
    static const int32_t world[RANKS_MOST] = {0, 1, 2, 3};
    rank_t *r = arg;
    const dp_host_t *host = dp_group_host(r->job->groups[r->number]);
    const dp_device_config_t device = {.struct_size = sizeof(device)};
    dp_comm_config_t comm = {.struct_size = sizeof(comm),
                             .name = "experts",
                             .rank = r->number,
                             .nranks = r->job->ranks,
                             .world_ranks = world};
    const dp_exchange_config_t others = {
        .struct_size = sizeof(others), .id = 8, .row_bytes = 16, .capacity_rows = 1, .label = "of a step"};
    dp__replicas_config_t config;

    r->device_vt = table("device_cpu", DP_IFACE_DEVICE, sizeof(dp_device_vt_t));
    r->comm_vt = table(r->job->comm != NULL ? r->job->comm : "comm_shm", DP_IFACE_COMM, sizeof(dp_comm_vt_t));
    expect_ok(r->device_vt->open(host, &device, &r->device), "device");
    comm.vt = r->comm_vt;
    comm.device_vt = r->device_vt;
    comm.device = r->device;
    expect_ok(r->comm_vt->open(host, &comm, &r->comm), "comm");
    expect_ok(r->device_vt->stream_open(r->device, DP_LANE_REDUCE, &r->stream), "stream");
    config = config_of(r);
    expect_ok(dp__replicas_open(&config, &r->replicas), "replicas");
    expect_ok(r->comm_vt->exchange_open(r->comm, &others, &r->others), "exchange");
    expect_ok(r->comm_vt->start(r->comm), "start");
    r->use(r);
    dp__replicas_close(r->replicas);
    r->device_vt->stream_close(r->stream);
    r->comm_vt->close(r->comm);
    r->device_vt->close(r->device);
    dp_group_leave(r->job->groups[r->number]);
    return NULL;
}

static void job_run(job_t *job, void (*use)(rank_t *rank))
{
    rank_t ranks[RANKS_MOST] = {0};

    expect_ok(dp_group_local(job->ranks, NULL, job->groups), "group");
    for (int32_t r = 0; r < job->ranks; r++) {
        ranks[r].job = job;
        ranks[r].number = r;
        ranks[r].use = use;
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (int32_t r = 0; r < job->ranks; r++)
        ck_assert_int_eq(pthread_join(ranks[r].thread, NULL), 0);
}

static uint64_t mix(uint64_t x)
{
    x = (x + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    return (x ^ (x >> 29)) * 0x94d049bb133111ebu >> 7;
}

/* Every expert at least once, the rest and the order as chance has it. */
static void draw_placement(const job_t *job, uint64_t seed, int32_t *placement)
{
    for (uint32_t r = 0; r < job->replicas; r++)
        placement[r] = (int32_t)(r < job->experts ? r : mix(seed * 1000 + r) % job->experts);
    for (uint32_t r = job->replicas - 1; r > 0; r--) {
        const uint32_t other = (uint32_t)(mix(seed * 2000 + r) % (r + 1));
        const int32_t swap = placement[r];

        placement[r] = placement[other];
        placement[other] = swap;
    }
}

/* ---- moves ---- */

static unsigned char byte_of(int32_t expert, int memory, size_t at)
{
    return (unsigned char)mix((uint64_t)expert << 40 ^ (uint64_t)memory << 32 ^ at);
}

static int holds(const int32_t *placement, int32_t first, int32_t count, int32_t expert)
{
    for (int32_t i = first; i < first + count; i++)
        if (placement[i] == expert)
            return 1;
    return 0;
}

/* Memory that has a byte more on either side, so that a write beyond it is seen. */
static void expect_memory(const rank_t *r, const dp_replica_memory_t *m, int which, const int32_t *placement)
{
    const int32_t local = (int32_t)r->job->replicas / r->job->ranks, first = r->number * local;
    const unsigned char *bytes = m->memory;

    for (int32_t i = 0; i < local; i++)
        for (size_t at = 0; at < m->bytes; at++)
            if (bytes[(size_t)i * m->bytes + at] != byte_of(placement[first + i], which, at))
                ck_abort_msg("rank %d: byte %zu of memory %d of replica %d is not expert %d's", r->number, at, which,
                             first + i, placement[first + i]);
    ck_assert_int_eq(bytes[-1], 77);
    ck_assert_int_eq(bytes[(size_t)local * m->bytes], 77);
}

/* What a step does with the comm: exchanges, and a sum beside them. */
static void run_others(rank_t *r)
{
    int32_t sent[RANKS_MOST][4], offsets[RANKS_MOST], counts[RANKS_MOST];
    const int32_t n = r->job->ranks, *came;
    int64_t sum;
    const void *rows;

    for (int times = 0; times < 5; times++) {
        for (int32_t to = 0; to < n; to++) {
            sent[to][0] = 100 * (int32_t)r->next + 10 * r->number + to;
            offsets[to] = to;
            counts[to] = 1;
        }
        sum = r->number;
        expect_ok(r->comm_vt->exchange(r->others, r->next, sent, offsets, counts, &rows, &came, r->stream), "others");
        expect_ok(r->comm_vt->all_reduce(r->comm, &sum, 1, DP_I64, r->stream), "others");
        expect_ok(r->device_vt->synchronize(r->stream, -1), "others");
        for (int32_t from = 0; from < n; from++) {
            ck_assert_int_eq(came[from], 1);
            ck_assert_int_eq(((const int32_t *)rows)[4 * from], 100 * (int32_t)r->next + 10 * from + r->number);
        }
        ck_assert_int_eq(sum, n * (n - 1) / 2);
        expect_ok(r->comm_vt->exchange_release(r->others, r->next++, r->stream), "others");
    }
}

static void move_once(rank_t *r, const int32_t *from, const int32_t *to, const dp_replica_memory_t *memories,
                      uint64_t *sent)
{
    if (!r->job->beside) {
        expect_ok(dp__replicas_move(r->replicas, from, to, memories, MEMORIES, sent), "move");
        return;
    }
    expect_ok(dp__replicas_begin(r->replicas, from, to, memories, MEMORIES, sent), "begin");
    run_others(r);
    for (int m = 0; m < MEMORIES; m++)
        expect_memory(r, &memories[m], m, from);
    expect_refused(dp__replicas_move(r->replicas, from, to, memories, MEMORIES, NULL), DP_ERR_INVALID,
                   "dp_moe_layer_place_end");
    expect_ok(dp__replicas_end(r->replicas), "end");
}

static void move_about(rank_t *r)
{
    static const size_t sizes[MEMORIES] = {24, 1,
                                           /* less than a row of the exchange; several blocks and a
                                            * rest */
                                           150001};
    const job_t *job = r->job;
    const int32_t local = (int32_t)job->replicas / job->ranks, first = r->number * local;
    int32_t placement[2][REPLICAS_MOST];
    dp_replica_memory_t memories[MEMORIES];
    void *start[MEMORIES];
    uint64_t sent, due;

    draw_placement(job, job->seed, placement[0]);
    for (int m = 0; m < MEMORIES; m++) {
        start[m] = malloc((size_t)local * sizes[m] + 2);
        memories[m] = (dp_replica_memory_t){.memory = (char *)start[m] + 1, .bytes = sizes[m]};
        memset(start[m], 77, (size_t)local * sizes[m] + 2);
        for (int32_t i = 0; i < local; i++)
            for (size_t at = 0; at < sizes[m]; at++)
                ((unsigned char *)memories[m].memory)[(size_t)i * sizes[m] + at] =
                    byte_of(placement[0][first + i], m, at);
    }
    for (int round = 0; round < 4; round++) {
        const int32_t *from = placement[round % 2];
        int32_t *to = placement[(round + 1) % 2];

        if (round == 2)
            memcpy(to, from, job->replicas * sizeof(*to)); /* nothing moves */
        else
            draw_placement(job, job->seed + 10 + (uint64_t)round, to);
        due = 0;
        for (int32_t i = 0; i < (int32_t)job->replicas; i++)
            due += !holds(from, i / local * local, local, to[i]);
        move_once(r, from, to, memories, &sent);
        ck_assert_uint_eq(sent, due * (24 + 1 + 150001));
        for (int m = 0; m < MEMORIES; m++)
            expect_memory(r, &memories[m], m, to);
    }
    for (int m = 0; m < MEMORIES; m++)
        free(start[m]);
}

static const struct {
    uint32_t experts, replicas;
    int32_t ranks;
} shapes[] = {{1, 1, 1}, {3, 5, 1}, {1, 2, 2}, {4, 4, 2}, {3, 8, 2}, {5, 8, 4}, {8, 8, 4}, {2, 12, 4}, {13, 36, 4}};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static job_t job_of(int shape, size_t expert_count, dp_dtype_t dtype)
{
    return (job_t){.experts = shapes[shape].experts,
                   .replicas = shapes[shape].replicas,
                   .ranks = shapes[shape].ranks,
                   .expert_count = expert_count,
                   .dtype = dtype,
                   .seed = (uint64_t)shape * 7 + 1};
}

START_TEST(what_belongs_to_an_expert_follows_it)
{
    job_t job = job_of(_i, 7, DP_F32), large = job_of(_i, 30000, DP_F64);

    job_run(&job, move_about);
    job_run(&large, move_about);
    job.beside = large.beside = 1;
    job_run(&job, move_about);
    job_run(&large, move_about);
}
END_TEST

START_TEST(experts_move_over_libfabric_as_well)
{
    job_t job = job_of(5, 30000, DP_F64);
    const dp_plugin_t *plugin;

    job.comm = "comm_ofi";
    for (job.beside = 0; job.beside < 2 && dp_plugin_load("comm_ofi", &plugin) >= 0; job.beside++)
        job_run(&job, move_about);
}
END_TEST

/* ---- moves that nobody ends ---- */

enum { HELD = 6000001 }; /* of one replica, in bytes */
static char held[RANKS_MOST][2 * HELD];
static int begun;

static void leave_moving(rank_t *r)
{
    static const int32_t from[] = {0, 1, 2, 3, 4, 0, 1, 2}, to[] = {4, 3, 2, 1, 0, 2, 1, 0};
    const dp_replica_memory_t memory = {.memory = held[r->number], .bytes = HELD};

    memset(held[r->number], 40 + r->number, 2 * HELD);
    expect_ok(dp__replicas_begin(r->replicas, from, to, &memory, 1, NULL), "begin");
    __atomic_fetch_add(&begun, 1, __ATOMIC_RELEASE);
}

/* Rank 3 does not begin, and ends the job when the others have. */
static void fail_moving(rank_t *r)
{
    const dp_host_t *host = dp_group_host(r->job->groups[r->number]);
    size_t same = 0;

    if (r->number == 3) {
        while (__atomic_load_n(&begun, __ATOMIC_ACQUIRE) < 3)
            sched_yield();
        ck_assert_int_eq(host->abort_job(host, DP_ERR_PEER, "rank 3 does not begin"), DP_ERR_PEER);
        return;
    }
    leave_moving(r);
    expect_refused(dp__replicas_end(r->replicas), DP_ERR_PEER, "the old placement holds: close the pipeline");
    expect_refused(dp__replicas_end(r->replicas), DP_ERR_PEER, "rank 3 does not begin");
    for (size_t i = 0; i < 2 * HELD; i++)
        same += held[r->number][i] == 40 + r->number;
    ck_assert_uint_eq(same, 2 * HELD);
}

START_TEST(a_move_that_nobody_ends_is_dropped)
{
    job_t job = job_of(5, 30000, DP_F64);

    begun = 0;
    job_run(&job, _i ? fail_moving : leave_moving);
}
END_TEST

/* ---- sums ---- */

static double gradient(const job_t *job, int32_t replica, size_t at)
{
    const double x = (double)(mix(job->seed << 50 ^ (uint64_t)replica << 32 ^ at) % 2000001) / 1e6 - 1;

    return job->dtype == DP_F64 ? x / 3 : (double)(float)(x / 3);
}

/* The documented order: replicas of a rank, then ranks. */
static double due_sum(const job_t *job, const int32_t *placement, int32_t expert, size_t at)
{
    const int32_t local = (int32_t)job->replicas / job->ranks;
    double sum64 = 0;
    float sum32 = 0;

    for (int32_t p = 0; p < job->ranks; p++) {
        double rank64 = 0;
        float rank32 = 0;

        for (int32_t i = p * local; i < (p + 1) * local; i++)
            if (placement[i] == expert) {
                rank64 += gradient(job, i, at);
                rank32 += (float)gradient(job, i, at);
            }
        sum64 += rank64;
        sum32 += rank32;
    }
    return job->dtype == DP_F64 ? sum64 : (double)sum32;
}

static void sum_up(rank_t *r)
{
    const job_t *job = r->job;
    const int32_t local = (int32_t)job->replicas / job->ranks, first = r->number * local;
    const size_t element = dp_dtype_bytes(job->dtype), count = job->expert_count;
    char *grads = malloc((size_t)local * count * element);
    int32_t placement[REPLICAS_MOST];

    for (uint64_t round = 0; round < 3; round++) {
        draw_placement(job, job->seed + round, placement);
        for (int32_t i = 0; i < local; i++)
            for (size_t at = 0; at < count; at++)
                if (job->dtype == DP_F64)
                    ((double *)(void *)grads)[(size_t)i * count + at] = gradient(job, first + i, at);
                else
                    ((float *)(void *)grads)[(size_t)i * count + at] = (float)gradient(job, first + i, at);
        expect_ok(dp__replicas_sum(r->replicas, placement, grads, r->stream), "sum");
        expect_ok(r->device_vt->synchronize(r->stream, -1), "sum");
        for (int32_t i = 0; i < local; i++)
            for (size_t at = 0; at < count; at++) {
                const size_t k = (size_t)i * count + at;
                const double got =
                    job->dtype == DP_F64 ? ((double *)(void *)grads)[k] : (double)((float *)(void *)grads)[k];

                ck_assert_msg(got == due_sum(job, placement, placement[first + i], at),
                              "rank %d replica %d element %zu: %.17g", r->number, i, at, got);
            }
    }
    free(grads);
}

START_TEST(gradients_are_summed_in_one_order)
{
    job_t job = job_of(_i / 2, _i % 2 == 0 ? 1 : 3001, _i % 2 == 0 ? DP_F64 : DP_F32);

    job_run(&job, sum_up);
}
END_TEST

/* ---- refusals ---- */

static void refuse(rank_t *r)
{
    static const int32_t good[] = {0, 1, 2, 0, 1}, absent[] = {0, 1, 1, 0, 1}, high[] = {0, 1, 2, 3, 1},
                         low[] = {0, 1, 2, -1, 1};
    dp_replica_memory_t memory = {.memory = NULL};
    dp__replicas_config_t c;
    dp__replicas_t *none = NULL;
    dp_comm_vt_t comm;

    expect_refused(dp__replicas_move(r->replicas, good, absent, &memory, 1, NULL), DP_ERR_INVALID,
                   "no replica of expert 2");
    expect_refused(dp__replicas_move(r->replicas, high, good, &memory, 1, NULL), DP_ERR_INVALID,
                   "replica 3 is of expert 3");
    expect_refused(dp__replicas_move(r->replicas, good, low, &memory, 1, NULL), DP_ERR_INVALID,
                   "replica 3 is of expert -1");
    expect_refused(dp__replicas_move(r->replicas, good, NULL, &memory, 1, NULL), DP_ERR_INVALID, "placement");
    expect_refused(dp__replicas_move(NULL, good, good, &memory, 1, NULL), DP_ERR_INVALID, "NULL");
    expect_refused(dp__replicas_move(r->replicas, good, good, NULL, 1, NULL), DP_ERR_INVALID, "NULL");
    expect_ok(dp__replicas_move(r->replicas, good, good, NULL, 0, NULL), "a move of nothing");
    ck_assert_uint_gt(dp__replicas_bytes(r->replicas), 0);
#define REFUSED(change, status, word)                                                                                  \
    do {                                                                                                               \
        c = config_of(r);                                                                                              \
        change;                                                                                                        \
        expect_refused(dp__replicas_open(&c, &none), status, word);                                                    \
        ck_assert_ptr_null(none);                                                                                      \
    } while (0)
    REFUSED(c.device = NULL, DP_ERR_INVALID, "device");
    REFUSED(c.comm = NULL, DP_ERR_INVALID, "comm");
    REFUSED(c.comm_rank = 1, DP_ERR_INVALID, "rank 1 of an expert group of 1");
    REFUSED(c.comm_size = 0, DP_ERR_INVALID, "group of 0");
    REFUSED(c.comm_size = 2, DP_ERR_INVALID, "5 replicas of 3 experts on 2 ranks");
    REFUSED(c.replicas = 2, DP_ERR_INVALID, "2 replicas of 3 experts");
    REFUSED(c.experts = 0, DP_ERR_INVALID, "0 experts");
    REFUSED(c.replicas = 2000000, DP_ERR_INVALID, "2000000 replicas");
    REFUSED(c.expert_count = 0, DP_ERR_INVALID, "0 elements");
    REFUSED(c.expert_count = SIZE_MAX, DP_ERR_INVALID, "memory");
    REFUSED(c.dtype = DP_I64, DP_ERR_INVALID, "dtype i64");
    REFUSED(c.exchange_id = 9, DP_ERR_INVALID, "open already");
    comm = *r->comm_vt;
    comm.exchange = NULL;
    REFUSED(c.comm_vt = &comm, DP_ERR_UNSUPPORTED, "exchanges");
#undef REFUSED
    dp__replicas_close(NULL);
}

START_TEST(what_cannot_be_is_refused)
{
    job_t job = job_of(1, 4, DP_F64);

    job_run(&job, refuse);
}
END_TEST

/* ---- layers ---- */

/* Blocks that are nothing but lists: attention with one parameter, MoE with a router and two
 * replicas of two tensors. */
struct dp_attention {
    int nothing;
};

struct dp_moe {
    dp_param_t params[5];
};

static dp_status_t attention_sizes(const dp_attention_t *a, dp_block_sizes_t *out)
{
    (void)a;
    out->param_count = 3;
    out->nparams = 1;
    return DP_OK;
}

static dp_status_t attention_params(const dp_attention_t *a, dp_param_t *out)
{
    (void)a;
    *out = (dp_param_t){.name = "wq", .kind = DP_PARAM_MATRIX, .count = 3, .fan_in = 1};
    return DP_OK;
}

static dp_status_t moe_sizes(const dp_moe_t *m, dp_block_sizes_t *out)
{
    (void)m;
    out->param_count = 13;
    out->nparams = 5;
    return DP_OK;
}

static dp_status_t moe_params(const dp_moe_t *m, dp_param_t *out)
{
    memcpy(out, m->params, sizeof(m->params));
    return DP_OK;
}

static const dp_attention_vt_t attention_vt = {
    .struct_size = sizeof(attention_vt), .sizes = attention_sizes, .params = attention_params};
static const dp_moe_vt_t moe_vt = {.struct_size = sizeof(moe_vt), .sizes = moe_sizes, .params = moe_params};
static const dp_moe_t good_moe = {
    {{.name = "router", .kind = DP_PARAM_MATRIX, .count = 5, .fan_in = 1},
     {.name = "replicas.0.a", .kind = DP_PARAM_MATRIX, .offset = 5, .count = 1, .fan_in = 1, .sharded = 1, .expert = 0},
     {.name = "replicas.0.b", .kind = DP_PARAM_MATRIX, .offset = 6, .count = 3, .fan_in = 1, .sharded = 1, .expert = 0},
     {.name = "replicas.1.a", .kind = DP_PARAM_MATRIX, .offset = 9, .count = 1, .fan_in = 1, .sharded = 1, .expert = 1},
     {.name = "replicas.1.b",
      .kind = DP_PARAM_MATRIX,
      .offset = 10,
      .count = 3,
      .fan_in = 1,
      .sharded = 1,
      .expert = 1}}};

static dp_status_t replicate(rank_t *r, const dp_moe_vt_t *vt, dp_moe_t *moe, const int32_t *placement,
                             dp_moe_layer_t **layer, dp_part_t *part)
{
    dp_attention_t attention = {0};

    expect_ok(dp_moe_layer_part(&attention_vt, &attention, vt, moe, DP_F64, 64, layer, part), "layer");
    ck_assert_ptr_null(part->placement);
    return dp__moe_layer_replicate(*layer, r->replicas, placement, part);
}

/* Two layers, of which one moves at a time. */
static void move_layers(rank_t *r, dp_moe_layer_t *layer, const dp_part_t *part, const dp_replica_memory_t *memory)
{
    static const int32_t to[] = {0, 0}, bad[] = {0, 1};
    double grads[64 + 5 + 8] = {0};
    dp_moe_t moe = good_moe;
    dp_part_t other_part = {.struct_size = sizeof(other_part)};
    dp_moe_layer_t *other;
    const uint64_t revision = *part->revision;

    expect_ok(replicate(r, &moe_vt, &moe, to, &other, &other_part), "replicate");
    expect_refused(dp_moe_layer_place_begin(NULL, to, memory, 1, NULL), DP_ERR_INVALID, "dp_moe_layer_place_begin");
    expect_refused(dp_moe_layer_place_end(NULL), DP_ERR_INVALID, "dp_moe_layer_place_end");
    expect_refused(dp_moe_layer_place_end(layer), DP_ERR_INVALID, "no move of this layer's experts has begun");
    expect_refused(dp_moe_layer_place_begin(layer, bad, memory, 1, NULL), DP_ERR_INVALID, "expert 1");
    expect_refused(dp_moe_layer_place_end(layer), DP_ERR_INVALID, "has begun");
    expect_ok(dp_moe_layer_place_begin(layer, to, memory, 1, NULL), "begin");
    expect_refused(dp_moe_layer_place_begin(layer, to, memory, 1, NULL), DP_ERR_INVALID, "dp_moe_layer_place_end");
    expect_refused(dp_moe_layer_place(layer, to, memory, 1, NULL), DP_ERR_INVALID, "dp_moe_layer_place_end");
    expect_refused(dp_moe_layer_place_begin(other, to, memory, 1, NULL), DP_ERR_INVALID, "dp_moe_layer_place_end");
    expect_refused(dp_moe_layer_place(other, to, memory, 1, NULL), DP_ERR_INVALID, "dp_moe_layer_place_end");
    expect_refused(dp_moe_layer_place_end(other), DP_ERR_INVALID, "has begun");
    expect_refused(part->reduce(part->reduce_self, grads, r->stream), DP_ERR_INVALID, "a training step while");
    ck_assert_uint_eq(*part->revision, revision);
    expect_ok(dp_moe_layer_place_end(layer), "end");
    ck_assert_uint_gt(*part->revision, revision);
    expect_ok(part->reduce(part->reduce_self, grads, r->stream), "reduce");
    expect_ok(r->device_vt->synchronize(r->stream, -1), "reduce");
    expect_refused(dp_moe_layer_place_end(layer), DP_ERR_INVALID, "has begun");
    expect_ok(dp_moe_layer_place_begin(other, to, memory, 1, NULL), "begin");
    expect_ok(dp_moe_layer_place_end(other), "end");
    dp_moe_layer_free(other);
}

static void use_layers(rank_t *r)
{
    static const int32_t first[] = {0, 0}, bad[] = {0, 1};
    double params[2][4] = {{1, 2, 3, 4}, {1, 2, 3, 4}}, grads[64 + 5 + 8] = {0};
    const dp_replica_memory_t memory = {.memory = params, .bytes = sizeof(params[0])};
    dp_moe_t moe = good_moe;
    dp_moe_layer_t *layer;
    dp_part_t part = {.struct_size = sizeof(part)};

    expect_ok(replicate(r, &moe_vt, &moe, first, &layer, &part), "replicate");
    ck_assert_mem_eq(part.placement, first, sizeof(first));
    ck_assert_ptr_nonnull(part.reduce);
    /* attention's parameters take 64 elements of a layer, the router five */
    for (int i = 0; i < 8; i++)
        grads[64 + 5 + i] = 1 + i;
    expect_ok(part.reduce(part.reduce_self, grads, r->stream), "reduce");
    expect_ok(r->device_vt->synchronize(r->stream, -1), "reduce");
    for (int i = 0; i < 8; i++)
        ck_assert_double_eq(grads[64 + 5 + i], 1 + i % 4 + 5 + i % 4);
    expect_refused(dp__moe_layer_replicate(layer, r->replicas, first, &part), DP_ERR_INVALID, "once");
    expect_refused(dp_moe_layer_place(layer, bad, &memory, 1, NULL), DP_ERR_INVALID, "expert 1");
    ck_assert_mem_eq(part.placement, first, sizeof(first));
    const uint64_t revision = *part.revision;
    expect_ok(dp_moe_layer_place(layer, first, &memory, 1, NULL), "place");
    ck_assert_uint_gt(*part.revision, revision);
    move_layers(r, layer, &part, &memory);
    dp_moe_layer_free(layer);

    expect_refused(replicate(r, &moe_vt, &moe, bad, &layer, &part), DP_ERR_INVALID, "expert 1");
    expect_refused(dp_moe_layer_place(layer, first, &memory, 1, NULL), DP_ERR_INVALID, "no replicated experts");
    expect_refused(dp_moe_layer_place_begin(layer, first, &memory, 1, NULL), DP_ERR_INVALID, "no replicated experts");
    expect_refused(dp_moe_layer_place_end(layer), DP_ERR_INVALID, "dp_moe_layer_place_end: the layer has no");
    dp_moe_layer_free(layer);
    moe.params[3].expert = 0; /* one expert of eight elements */
    expect_refused(replicate(r, &moe_vt, &moe, first, &layer, &part), DP_ERR_MISMATCH, "config.replicas 2");
    dp_moe_layer_free(layer);
    moe = good_moe;
    moe.params[4].count = 2; /* too short */
    expect_refused(replicate(r, &moe_vt, &moe, first, &layer, &part), DP_ERR_MISMATCH, "config.replicas 2");
    dp_moe_layer_free(layer);
    moe = good_moe;
    moe.params[3].offset = 10; /* a gap */
    expect_refused(replicate(r, &moe_vt, &moe, first, &layer, &part), DP_ERR_MISMATCH, "config.replicas 2");
    dp_moe_layer_free(layer);
}

START_TEST(layers_with_replicas)
{
    job_t job = {.experts = 1, .replicas = 2, .ranks = 1, .expert_count = 4, .dtype = DP_F64};

    job_run(&job, use_layers);
}
END_TEST

START_TEST(the_first_placement_has_every_expert)
{
    for (uint32_t experts = 1; experts <= 9; experts++)
        for (uint32_t replicas = experts; replicas <= 24; replicas++) {
            int32_t placement[24];

            dp_replicas_first_placement(experts, replicas, placement);
            expect_ok(dp__replicas_check(experts, replicas, placement), "first placement");
            ck_assert_int_eq(dp__replicas_check(experts, experts - 1, placement), DP_ERR_INVALID);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("replicas");
    TCase *tc = tcase_create("replicas");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, what_belongs_to_an_expert_follows_it, 0, SHAPES);
    tcase_add_test(tc, experts_move_over_libfabric_as_well);
    tcase_add_loop_test(tc, a_move_that_nobody_ends_is_dropped, 0, 2);
    tcase_add_loop_test(tc, gradients_are_summed_in_one_order, 0, 2 * SHAPES);
    tcase_add_test(tc, what_cannot_be_is_refused);
    tcase_add_test(tc, layers_with_replicas);
    tcase_add_test(tc, the_first_placement_has_every_expert);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
