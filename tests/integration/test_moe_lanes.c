/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_moe_lanes.c: moe_cpu on the lanes of device_cpu and the exchanges of comm_shm, ranks as
 * threads. F&B pairs run with nothing but events between the calls of one micro-batch, so that the
 * lanes overlap; the bits are those of one rank that does everything at once in the caller. */
#include "tests/support/moe_block.h"
#include "tests/support/suite.h"

#include <stdio.h>

enum { MICROBATCHES = 8, ELEMENTS_MOST = 4096 };

typedef struct job {
    const moe_config_t *config;
    int32_t ranks;
    dp_group_t *groups[INLINE_RANKS];
    double y[MICROBATCHES][ELEMENTS_MOST], dx[MICROBATCHES][ELEMENTS_MOST];
    double *experts; /* gradients of all experts, in their order */
} job_t;

typedef struct rank {
    job_t *job;
    int32_t number;
    const dp_device_vt_t *device_vt;
    const dp_comm_vt_t *comm_vt;
    dp_device_t *device;
    dp_comm_t *comm;
    dp_event_t *events[MICROBATCHES];
    block_t block;
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

static void rank_open(rank_t *r)
{
    static const int32_t world[INLINE_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};
    const dp_host_t *host = dp_group_host(r->job->groups[r->number]);
    const dp_device_config_t device = {.struct_size = sizeof(device)};
    dp_comm_config_t comm = {.struct_size = sizeof(comm),
                             .name = "experts",
                             .rank = r->number,
                             .nranks = r->job->ranks,
                             .world_ranks = world};
    int32_t m;

    r->device_vt = table("device_cpu", DP_IFACE_DEVICE, sizeof(dp_device_vt_t));
    r->comm_vt = table("comm_shm", DP_IFACE_COMM, sizeof(dp_comm_vt_t));
    expect_ok(r->device_vt->open(host, &device, &r->device), "device");
    comm.vt = r->comm_vt;
    comm.device_vt = r->device_vt;
    comm.device = r->device;
    expect_ok(r->comm_vt->open(host, &comm, &r->comm), "comm");
    r->block.vt = block_load("moe_cpu");
    r->block.config = *r->job->config;
    r->block.config.moe.device_vt = r->device_vt;
    r->block.config.moe.device = r->device;
    r->block.config.moe.comm_vt = r->comm_vt;
    r->block.config.moe.comm = r->comm;
    r->block.config.moe.comm_rank = r->number;
    r->block.config.moe.comm_size = r->job->ranks;
    expect_ok(r->device_vt->stream_open(r->device, DP_LANE_COMPUTE, &r->block.lanes[0]), "compute lane");
    expect_ok(r->device_vt->stream_open(r->device, DP_LANE_ALL_TO_ALL, &r->block.lanes[1]), "all-to-all lane");
    for (m = 0; m < MICROBATCHES; m++)
        expect_ok(r->device_vt->event_open(r->device, &r->events[m]), "event");
    block_start(&r->block, host);
    expect_ok(r->comm_vt->start(r->comm), "start");
}

static void rank_close(rank_t *r)
{
    int32_t m;

    r->block.vt->close(r->block.moe);
    guarded_free(&r->block.scratch[0], "scratch of the compute lane");
    guarded_free(&r->block.scratch[1], "scratch of the all-to-all lane");
    for (m = 0; m < MICROBATCHES; m++)
        r->device_vt->event_close(r->events[m]);
    r->device_vt->stream_close(r->block.lanes[0]);
    r->device_vt->stream_close(r->block.lanes[1]);
    r->comm_vt->close(r->comm);
    r->device_vt->close(r->device);
}

/* The call waits for the one before it of the same micro-batch, on whatever lane that was; for
 * nothing else. */
static void step(rank_t *r, pass_t *p, step_t s)
{
    dp_stream_t *lane = r->block.lanes[block_sends(s)];
    dp_event_t *event = r->events[p->microbatch];

    expect_ok(r->device_vt->stream_wait(lane, event), "wait");
    pass_step(&r->block, p, s);
    expect_ok(r->device_vt->event_record(event, lane), "record");
}

/* Backward of one micro-batch with the forward of the next, in the canonical order. */
static void pair(rank_t *r, pass_t *back, pass_t *next)
{
    step(r, back, COMBINE_B);
    step(r, next, ROUTE);
    step(r, next, DISPATCH);
    step(r, back, EXPERTS_I);
    step(r, back, DISPATCH_B);
    step(r, back, EXPERTS_W);
    step(r, next, EXPERTS);
    step(r, next, COMBINE);
    step(r, back, ROUTE_I);
    step(r, back, ROUTE_W);
}

static void run_passes(rank_t *r, pass_t *passes, int32_t count)
{
    int32_t m;
    step_t s;

    for (s = ROUTE; s <= COMBINE; s++)
        step(r, &passes[0], s);
    for (m = 0; m + 1 < count; m++)
        pair(r, &passes[m], &passes[m + 1]);
    for (s = COMBINE_B; s <= ROUTE_W; s++)
        step(r, &passes[count - 1], s);
    expect_ok(r->device_vt->synchronize(r->block.lanes[0], -1), "compute lane");
    expect_ok(r->device_vt->synchronize(r->block.lanes[1], -1), "all-to-all lane");
}

/* ---- the same micro-batches either way ---- */

static size_t common_params(const moe_config_t *c)
{
    const size_t d = c->shape.hidden;

    return d + d * c->moe.experts + c->moe.experts + 3 * d * c->moe.shared_experts * c->moe.expert_hidden;
}

static guarded_t params_of(const block_t *b)
{
    const moe_config_t *c = &b->config;
    const size_t common = common_params(c), shift = (b->sizes.param_count - common) * (size_t)c->moe.comm_rank;
    const guarded_t params = guarded_allocate(b->sizes.param_count * block_element(b));
    size_t i;

    for (i = 0; i < b->sizes.param_count; i++)
        real_set(c->shape.dtype, guarded_memory(&params), i, noise(5, i < common ? i : i + shift));
    return params;
}

static pass_t pass_of(const block_t *b, const guarded_t *params, const guarded_t *grads, int32_t microbatch)
{
    pass_t p = pass_open(b, guarded_memory(params), guarded_memory(grads), microbatch);

    fill(b->config.shape.dtype, &p.x, 100 + (uint64_t)microbatch, 1);
    fill(b->config.shape.dtype, &p.dy, 200 + (uint64_t)microbatch, 1);
    return p;
}

static void keep(job_t *job, const block_t *b, const pass_t *p)
{
    const dp_dtype_t dtype = b->config.shape.dtype;
    size_t i;

    for (i = 0; i < block_boundary(b); i++) {
        job->y[p->microbatch][i] = real_at(dtype, guarded_memory(&p->y), i);
        job->dx[p->microbatch][i] = real_at(dtype, guarded_memory(&p->dx), i);
    }
}

static void keep_grads(job_t *job, const block_t *b, const guarded_t *grads)
{
    const size_t common = common_params(&b->config), share = b->sizes.param_count - common;
    size_t i;

    for (i = 0; i < share; i++)
        job->experts[(size_t)b->config.moe.comm_rank * share + i] =
            real_at(b->config.shape.dtype, guarded_memory(grads), common + i);
}

static void *rank_main(void *arg)
{
    rank_t *r = arg;
    guarded_t params, grads;
    pass_t passes[MICROBATCHES];
    int32_t m, count = 0;

    rank_open(r);
    params = params_of(&r->block);
    grads = guarded_zeros(params.bytes);
    for (m = r->number; m < MICROBATCHES; m += r->job->ranks)
        passes[count++] = pass_of(&r->block, &params, &grads, m);
    run_passes(r, passes, count);
    for (m = 0; m < count; m++) {
        keep(r->job, &r->block, &passes[m]);
        pass_close(&passes[m]);
    }
    keep_grads(r->job, &r->block, &grads);
    guarded_free(&params, "params");
    guarded_free(&grads, "grads");
    rank_close(r);
    dp_group_leave(r->job->groups[r->number]);
    return NULL;
}

static job_t *job_open(const moe_config_t *config, int32_t ranks)
{
    job_t *job = calloc(1, sizeof(*job));

    job->config = config;
    job->ranks = ranks;
    job->experts = calloc((size_t)config->moe.experts * 3 * config->shape.hidden * config->moe.expert_hidden,
                          sizeof(*job->experts));
    return job;
}

static job_t *run_lanes(const moe_config_t *config, int32_t ranks)
{
    job_t *job = job_open(config, ranks);
    rank_t members[INLINE_RANKS];
    pthread_t threads[INLINE_RANKS];
    int32_t r;

    memset(members, 0, sizeof(members));
    expect_ok(dp_group_local(ranks, NULL, job->groups), "group");
    for (r = 0; r < ranks; r++) {
        members[r].job = job;
        members[r].number = r;
        ck_assert_int_eq(pthread_create(&threads[r], NULL, rank_main, &members[r]), 0);
    }
    for (r = 0; r < ranks; r++)
        ck_assert_int_eq(pthread_join(threads[r], NULL), 0);
    return job;
}

static job_t *run_inline(const moe_config_t *config)
{
    job_t *job = job_open(config, 1);
    inline_group_t group;
    guarded_t params, grads;
    block_t b;
    int32_t m;

    inline_group_open(&group, 1);
    block_open(&b, config, &group, 0);
    params = params_of(&b);
    grads = guarded_zeros(params.bytes);
    for (m = 0; m < MICROBATCHES; m++) {
        pass_t p = pass_of(&b, &params, &grads, m);

        pass_forward(&b, &p);
        pass_backward(&b, &p);
        keep(job, &b, &p);
        pass_close(&p);
    }
    keep_grads(job, &b, &grads);
    guarded_free(&params, "params");
    guarded_free(&grads, "grads");
    block_close(&b);
    inline_group_close(&group);
    return job;
}

START_TEST(lanes_that_overlap_give_the_same_bits)
{
    static const int32_t ranks[] = {1, 2, 4};
    moe_config_t c = block_config(_i % 2 == 0 ? DP_F32 : DP_F64, 37, 24, 8, 3, 20, 1);
    const size_t experts = (size_t)c.moe.experts * 3 * c.shape.hidden * c.moe.expert_hidden;
    job_t *alone, *together;

    c.moe.normalize = 1;
    c.moe.aux_alpha = 0.125F;
    ck_assert_uint_le(c.shape.sequence * c.shape.hidden, ELEMENTS_MOST);
    alone = run_inline(&c);
    together = run_lanes(&c, ranks[_i / 2]);
    ck_assert(alone->y[MICROBATCHES - 1][0] != 0 && alone->dx[MICROBATCHES - 1][0] != 0 && alone->experts[0] != 0);
    ck_assert_mem_eq(alone->y, together->y, sizeof(alone->y));
    ck_assert_mem_eq(alone->dx, together->dx, sizeof(alone->dx));
    ck_assert_mem_eq(alone->experts, together->experts, experts * sizeof(double));
    free(alone->experts);
    free(alone);
    free(together->experts);
    free(together);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("moe_cpu on lanes");
    TCase *tc = tcase_create("lanes");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, lanes_that_overlap_give_the_same_bits, 0, 6);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
