/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_moe_cuda_contract.c: what moe_cuda announces and refuses, what its kernels find wrong, and that its calls may be captured. */
#include "moe_rig.h"

#include "../support/suite.h"

static dp_moe_config_t block(dp_dtype_t dtype, uint32_t tokens, uint32_t hidden, uint32_t experts,
                             uint32_t top_k, uint32_t ffn, uint32_t shared)
{
    const dp_moe_config_t c = {
        .struct_size = sizeof(c),
        .shape = {.struct_size = sizeof(c.shape),
                  .dtype = dtype,
                  .batch = 1,
                  .sequence = tokens,
                  .hidden = hidden},
        .experts = experts,
        .top_k = top_k,
        .expert_hidden = ffn,
        .shared_experts = shared,
        .exchange_id = 40,
    };

    return c;
}

/* One rank whose parameters are small numbers and whose last expert has a bias. */
typedef struct single {
    rig_group_t group;
    rig_t rig;
    double *params, *x, *dy;
} single_t;

static double number(size_t i)
{
    return (double)((i * 7919 + 13) % 251) / 125 - 1;
}

static void single_open(single_t *s, const dp_moe_config_t *config, double bias)
{
    const size_t d = config->shape.hidden, e = config->experts, boundary = config->shape.sequence * d;
    size_t i;

    pthread_barrier_init(&s->group.meeting, NULL, 1);
    rig_open(&s->rig, config, &s->group, 0, 1);
    s->params = malloc(s->rig.sizes.param_count * sizeof(double));
    s->x = malloc(boundary * sizeof(double));
    s->dy = malloc(boundary * sizeof(double));
    for (i = 0; i < s->rig.sizes.param_count; i++)
        s->params[i] = number(i);
    s->params[d + d * e + e - 1] = bias;
    for (i = 0; i < boundary; i++) {
        s->x[i] = number(i + 5);
        s->dy[i] = number(i + 11);
    }
    walled_set(&s->rig.gpu, &s->rig.params, s->rig.dtype, s->params);
}

static void single_close(single_t *s)
{
    rig_close(&s->rig);
    pthread_barrier_destroy(&s->group.meeting);
    free(s->params);
    free(s->x);
    free(s->dy);
}

/* ---- what it announces ---- */

START_TEST(parameters_are_those_of_the_header)
{
    static const char *const names[] = {
        "norm",           "router",           "bias",           "shared.w_gate",    "shared.w_up",
        "shared.w_down",  "experts.4.w_gate", "experts.4.w_up", "experts.4.w_down", "experts.5.w_gate",
        "experts.5.w_up", "experts.5.w_down",
    };
    static const size_t counts[] = {5, 5 * 8, 8, 5 * 9, 5 * 9, 9 * 5, 15, 15, 15, 15, 15, 15};
    dp_moe_config_t c = block(DP_F32, 4, 5, 8, 2, 3, 3);
    dp_param_t params[12];
    rig_group_t group;
    size_t i, at = 0;
    rig_t r;

    rig_open(&r, &c, &group, 2, 4);
    ck_assert_uint_eq(r.sizes.nparams, 12);
    ck_assert_int_eq(r.vt->params(r.moe, params), DP_OK);
    for (i = 0; i < 12; i++) {
        const dp_param_t *p = &params[i];

        ck_assert_str_eq(p->name, names[i]);
        ck_assert_uint_eq(p->offset, at);
        ck_assert_uint_eq(p->count, counts[i]);
        ck_assert_int_eq(p->kind, i == 0 ? DP_PARAM_VECTOR : i == 2 ? DP_PARAM_ROUTER_BIAS : DP_PARAM_MATRIX);
        ck_assert_int_eq(p->expert, i < 6 ? -1 : i < 9 ? 4 : 5);
        ck_assert_double_eq((double)p->start, i == 0 ? 1 : 0);
        if (p->kind == DP_PARAM_MATRIX)
            ck_assert_uint_eq(p->fan_in, i == 5 ? 9 : i > 5 && i % 3 == 2 ? 3 : 5);
        at += p->count;
    }
    ck_assert_uint_eq(at, r.sizes.param_count);
    ck_assert_uint_eq(r.sizes.saved_bytes % 64 + r.sizes.work_bytes % 64 + r.sizes.scratch_bytes % 64, 0);
    ck_assert(r.vt->caps & DP_MOE_CAP_DETERMINISTIC);
    ck_assert(r.vt->caps & DP_MOE_CAP_REPLICAS);
    rig_close(&r);
}
END_TEST

/* Room for the worst case, or for a multiple of an even share; the configuration of older callers has no capacity. */
START_TEST(room_follows_the_capacity)
{
    static const struct {
        uint32_t top_k;
        float capacity;
        uint32_t rows;
        int old;
    } cases[] = {
        {1, 0, 7, 0}, {2, 0, 14, 0},   {8, 0, 14, 0},   {8, 1, 14, 0}, {2, 1, 4, 0},
        {2, 2, 7, 0}, {2, 1.5F, 6, 0}, {2, 100, 14, 0}, {2, 1, 14, 1}, {1, 0.125F, 1, 0},
    };
    dp_moe_config_t c = block(DP_F64, 7, 5, 8, cases[_i].top_k, 3, 0);
    rig_group_t group;
    int32_t i;
    rig_t r;

    c.capacity = cases[_i].capacity;
    if (cases[_i].old)
        c.struct_size = (uint32_t)offsetof(dp_moe_config_t, capacity);
    rig_open(&r, &c, &group, 1, 4);
    ck_assert_int_gt(r.comm.exchanges, 0);
    for (i = 0; i < r.comm.exchanges; i++) {
        const dp_exchange_config_t *e = &r.comm.opened[i]->config;

        ck_assert(e->id >= 40 && e->id < 44);
        ck_assert_uint_eq(e->capacity_rows, cases[_i].rows);
        ck_assert_uint_eq(e->row_bytes, 16 + 48);
        ck_assert_ptr_nonnull(e->label);
    }
    rig_close(&r);
}
END_TEST

START_TEST(less_room_takes_less_memory)
{
    static const char *const ways[] = {"grouped", "padded"};
    dp_moe_config_t c = block(DP_BF16, 64, 64, 16, 4, 32, 1);
    size_t all;
    rig_group_t group;
    rig_t r;

    setenv("DUALPIPE_MOE_PRODUCTS", ways[_i], 1);
    rig_open(&r, &c, &group, 0, 4);
    all = r.sizes.saved_bytes;
    rig_close(&r);
    c.capacity = 1.25F;
    rig_open(&r, &c, &group, 0, 4);
    ck_assert_uint_lt(r.sizes.saved_bytes, all / 2);
    rig_close(&r);
}
END_TEST

/* ---- what it refuses ---- */

static void expect_open(rig_t *r, const dp_moe_config_t *c, dp_status_t status, const char *word)
{
    dp_moe_t *moe = NULL;
    dp_status_t got = r->vt->open(r->gpu.host, c, &moe);

    ck_assert_msg(got == status, "%s instead of %s: %s", dp_status_name(got), dp_status_name(status),
                  dp_last_error());
    ck_assert_ptr_null(moe);
    ck_assert_msg(strstr(dp_last_error(), word) != NULL && strstr(dp_last_error(), "moe_cuda") != NULL,
                  "\"%s\" does not speak of \"%s\"", dp_last_error(), word);
}

START_TEST(configurations_that_cannot_be_are_refused)
{
    dp_moe_config_t good = block(DP_F64, 7, 5, 8, 2, 3, 1), c;
    dp_device_vt_t device;
    dp_comm_vt_t comm;
    rig_group_t group;
    rig_t r;

    rig_prepare(&r, &good, &group, 0, 2);
    good = r.config;
#define REFUSED(change, status, word)                                                                        \
    do {                                                                                                     \
        c = good;                                                                                            \
        change;                                                                                              \
        expect_open(&r, &c, status, word);                                                                   \
    } while (0)
    REFUSED(c.struct_size = 64, DP_ERR_INVALID, "bytes");
    REFUSED(c.shape.dtype = DP_I64, DP_ERR_UNSUPPORTED, "DP_BF16");
    REFUSED(c.shape.batch = 0, DP_ERR_INVALID, "batch 0");
    REFUSED(c.shape.sequence = 0, DP_ERR_INVALID, "sequence 0");
    REFUSED(c.shape.hidden = 0, DP_ERR_INVALID, "hidden 0");
    REFUSED(c.experts = 0, DP_ERR_INVALID, "0 experts");
    REFUSED(c.experts = 2000000, DP_ERR_INVALID, "2000000 experts");
    REFUSED(c.expert_hidden = 0, DP_ERR_INVALID, "width 0");
    REFUSED(c.top_k = 0, DP_ERR_INVALID, "top_k 0");
    REFUSED(c.top_k = 9, DP_ERR_INVALID, "top_k 9");
    REFUSED(c.gate = (dp_gate_t)2, DP_ERR_INVALID, "gate 2");
    REFUSED(c.normalize = 2, DP_ERR_INVALID, "normalize 2");
    REFUSED(c.scale = -1, DP_ERR_INVALID, "scale -1");
    REFUSED(c.aux_alpha = (float)INFINITY, DP_ERR_INVALID, "aux_alpha inf");
    REFUSED(c.shape.norm_eps = -1, DP_ERR_INVALID, "norm_eps -1");
    REFUSED(c.capacity = -1, DP_ERR_INVALID, "capacity -1");
    REFUSED(c.capacity = (float)NAN, DP_ERR_INVALID, "capacity");
    REFUSED(c.comm_rank = 2, DP_ERR_INVALID, "rank 2");
    REFUSED(c.comm_size = 3, DP_ERR_INVALID, "evenly");
    REFUSED(c.replicas = 7, DP_ERR_INVALID, "7 replicas");
    REFUSED(c.replicas = 9, DP_ERR_INVALID, "9 replicas");
    REFUSED((c.shape.batch = 65536, c.shape.sequence = 65536), DP_ERR_OVERFLOW, "micro-batches");
    REFUSED(c.device = NULL, DP_ERR_UNSUPPORTED, "device_cuda");
    REFUSED((device = *c.device_vt, device.caps = DP_DEVICE_CAP_HOST_MEMORY, c.device_vt = &device),
            DP_ERR_UNSUPPORTED, "device_cuda");
    REFUSED((device = *c.device_vt, device.watch = NULL, c.device_vt = &device), DP_ERR_UNSUPPORTED,
            "device_cuda");
    REFUSED(c.comm = NULL, DP_ERR_UNSUPPORTED, "exchanges");
    REFUSED((comm = *c.comm_vt, comm.exchange = NULL, c.comm_vt = &comm), DP_ERR_UNSUPPORTED, "exchanges");
    setenv("DUALPIPE_MOE_PRODUCTS", "magic", 1);
    REFUSED((void)0, DP_ERR_INVALID, "DUALPIPE_MOE_PRODUCTS=magic");
    rig_close(&r);
}
END_TEST

static void expect_missing(single_t *s, pass_t *p, step_t step, size_t member, const char *word)
{
    dp_moe_io_t io = pass_io(&s->rig, p, step);

    memset((char *)&io + member, 0, sizeof(void *));
    ck_assert_int_eq(pass_call(&s->rig, step, &io), DP_ERR_INVALID);
    ck_assert_msg(strstr(dp_last_error(), word) != NULL, "\"%s\" does not speak of \"%s\"", dp_last_error(),
                  word);
}

START_TEST(calls_name_what_is_missing)
{
    dp_moe_config_t c = block(DP_F32, 4, 5, 8, 2, 3, 0);
    single_t s;
    pass_t p;

    single_open(&s, &c, 0);
    p = pass_open(&s.rig, s.x, s.dy, 0);
#define MISSING(step, member) expect_missing(&s, &p, step, offsetof(dp_moe_io_t, io.member), "io." #member)
    MISSING(ROUTE, x);
    MISSING(ROUTE, params);
    MISSING(DISPATCH, saved);
    MISSING(EXPERTS, work);
    MISSING(COMBINE, y);
    MISSING(COMBINE_B, dy);
    MISSING(EXPERTS_I, scratch);
    MISSING(EXPERTS_W, grads);
    MISSING(ROUTE_W, grads);
    pass_close(&s.rig, &p);
    single_close(&s);
}
END_TEST

START_TEST(replicas_need_a_placement)
{
    dp_moe_config_t c = block(DP_F32, 4, 5, 2, 2, 3, 0);
    single_t s;
    pass_t p;

    c.replicas = 3;
    single_open(&s, &c, 0);
    p = pass_open(&s.rig, s.x, s.dy, 0);
    expect_missing(&s, &p, ROUTE, offsetof(dp_moe_io_t, placement), "placement");
    pass_close(&s.rig, &p);
    single_close(&s);
}
END_TEST

/* ---- what kernels find wrong ---- */

/* The step's work ends with this status, and so does every later call; nothing is written where it should not be. */
static void expect_fault(single_t *s, pass_t *p, step_t first, step_t step, dp_status_t status,
                         const char *word)
{
    rig_t *r = &s->rig;
    dp_moe_io_t io;

    if (step > first)
        pass_steps(r, p, first, step - 1);
    io = pass_io(r, p, step);
    GPU_OK(pass_call(r, step, &io));
    GPU_CU(&r->gpu, cuStreamSynchronize(r->lanes[rig_travels(step)].native));
    ck_assert_int_eq(r->device.check(r->device.arg), status);
    ck_assert_msg(strstr(dp_last_error(), word) != NULL, "\"%s\" does not speak of \"%s\"", dp_last_error(),
                  word);
    io = pass_io(r, p, ROUTE);
    ck_assert_int_eq(pass_call(r, ROUTE, &io), status);
}

/* A padded block has room for 4 rows of each of 4 experts, and one gets all 16. */
START_TEST(too_many_rows_for_an_expert)
{
    dp_moe_config_t c = block(DP_F32, 16, 5, 4, 1, 3, 0);
    single_t s;
    pass_t p;

    setenv("DUALPIPE_MOE_PRODUCTS", "padded", 1);
    c.capacity = 1;
    single_open(&s, &c, 1000);
    p = pass_open(&s.rig, s.x, s.dy, 0);
    expect_fault(&s, &p, ROUTE, DISPATCH, DP_ERR_OVERFLOW,
                 "16 rows arrived for one expert, there is room for 4");
    pass_close(&s.rig, &p);
    single_close(&s);
}
END_TEST

/* The same 16 rows where each rank may send 8; the exchange says so as well. */
START_TEST(too_many_rows_from_a_rank)
{
    dp_moe_config_t c = block(DP_BF16, 16, 8, 4, 1, 8, 0);
    single_t s;
    pass_t p;

    c.capacity = 0.5F;
    single_open(&s, &c, 1000);
    p = pass_open(&s.rig, s.x, s.dy, 0);
    expect_fault(&s, &p, ROUTE, DISPATCH, DP_ERR_OVERFLOW,
                 "16 rows arrived from rank 0, there is room for 8");
    ck_assert_int_eq(s.rig.comm.failure, DP_ERR_OVERFLOW);
    pass_close(&s.rig, &p);
    single_close(&s);
}
END_TEST

static void no_count(dp_exchange_t *e, int32_t *counts, uint32_t round)
{
    (void)e;
    if (round == 0)
        counts[0] = -1;
}

static void one_less(dp_exchange_t *e, int32_t *counts, uint32_t round)
{
    (void)e;
    if (round == 2)
        counts[0]--;
}

/* Overwrites 4 bytes of the head of row 2. */
static void write_head(dp_exchange_t *e, size_t at, int32_t value)
{
    GPU_CU(e->comm->gpu, cuMemcpyHtoD(e->rows + 2 * e->config.row_bytes + at, &value, sizeof(value)));
}

static void no_expert(dp_exchange_t *e, int32_t *counts, uint32_t round)
{
    (void)counts;
    if (round == 0)
        write_head(e, 0, 99);
}

static void negative_expert(dp_exchange_t *e, int32_t *counts, uint32_t round)
{
    (void)counts;
    if (round == 0 || round == 2)
        write_head(e, 0, -5);
}

static void other_call(dp_exchange_t *e, int32_t *counts, uint32_t round)
{
    (void)counts;
    (void)round;
    write_head(e, 4, 77);
}

static void other_call_later(dp_exchange_t *e, int32_t *counts, uint32_t round)
{
    (void)counts;
    if (round > 0)
        write_head(e, 4, 77);
}

static void other_call_backward(dp_exchange_t *e, int32_t *counts, uint32_t round)
{
    (void)counts;
    if (round > 1)
        write_head(e, 4, 77);
}

static void other_call_last(dp_exchange_t *e, int32_t *counts, uint32_t round)
{
    (void)counts;
    if (round > 2)
        write_head(e, 4, 77);
}

START_TEST(rows_of_another_call)
{
    static const struct {
        void (*tamper)(dp_exchange_t *e, int32_t *counts, uint32_t round);
        step_t step;
        const char *word;
    } cases[] = {
        {no_count, DISPATCH, "dispatch: the rows from rank 0"},
        {no_expert, DISPATCH, "dispatch: the rows from rank 0"},
        {negative_expert, DISPATCH, "dispatch: the rows from rank 0"},
        {other_call, DISPATCH, "dispatch: the rows from rank 0"},
        {other_call_later, COMBINE, "combine: the rows from rank 0"},
        {other_call_backward, COMBINE_B, "combine_backward: the rows from rank 0"},
        {one_less, COMBINE_B, "combine_backward: the rows from rank 0"},
        {other_call_last, DISPATCH_B, "dispatch_backward: the rows from rank 0"},
    };
    dp_moe_config_t c = block(_i % 2 == 0 ? DP_F32 : DP_BF16, 5, 8, 4, 2, 8, 0);
    single_t s;
    pass_t p;

    single_open(&s, &c, 0);
    s.rig.comm.tamper = cases[_i].tamper;
    p = pass_open(&s.rig, s.x, s.dy, 0);
    expect_fault(&s, &p, ROUTE, cases[_i].step, DP_ERR_PROTOCOL, cases[_i].word);
    pass_close(&s.rig, &p);
    single_close(&s);
}
END_TEST

START_TEST(placements_that_cannot_be)
{
    static const int32_t placements[][3] = {{0, 0, 0}, {0, 2, 0}, {-1, 0, 0}};
    dp_moe_config_t c = block(DP_F32, 6, 5, 2, 2, 3, 0);
    single_t s;
    pass_t p;

    c.replicas = 3;
    single_open(&s, &c, 0);
    GPU_CU(&s.rig.gpu,
           cuMemcpyHtoD(s.rig.placement.start + RIG_WALL, placements[_i], sizeof(placements[_i])));
    p = pass_open(&s.rig, s.x, s.dy, 0);
    expect_fault(&s, &p, ROUTE, ROUTE, DP_ERR_INVALID, "no replica of expert 1");
    pass_close(&s.rig, &p);
    single_close(&s);
}
END_TEST

/* ---- numbers ---- */

static double *counts_of(single_t *s)
{
    const size_t d = s->rig.config.shape.hidden, e = s->rig.config.experts;
    double *grads = walled_get(&s->rig.gpu, &s->rig.grads, s->rig.sums),
           *counts = malloc(e * sizeof(*counts));

    memcpy(counts, grads + d + d * e, e * sizeof(*counts));
    free(grads);
    return counts;
}

START_TEST(ties_go_to_the_lower_expert)
{
    dp_moe_config_t c = block(_i == 0 ? DP_F32 : _i == 1 ? DP_F64 : DP_BF16, 7, 4, 40, 3, 2, 0);
    double *counts;
    single_t s;
    size_t i;
    pass_t p;

    single_open(&s, &c, 0);
    for (i = 4; i < 4 + 4 * 40 + 40; i++)
        s.params[i] = 0;
    s.params[4 + 160 + 35] = 0.25;
    s.params[4 + 160 + 37] = 0.25;
    walled_set(&s.rig.gpu, &s.rig.params, s.rig.dtype, s.params);
    p = pass_open(&s.rig, s.x, s.dy, 0);
    pass_steps(&s.rig, &p, ROUTE, ROUTE_W);
    counts = counts_of(&s);
    for (i = 0; i < 40; i++)
        ck_assert_double_eq(counts[i], i == 0 || i == 35 || i == 37 ? 7 : 0);
    free(counts);
    pass_close(&s.rig, &p);
    single_close(&s);
}
END_TEST

/* Whatever the numbers are, k different experts are chosen and nothing is written where it should not be. */
START_TEST(numbers_that_are_none_do_no_harm)
{
    static const double values[] = {NAN, INFINITY, -INFINITY, 3e38, -3e38, 0};
    dp_moe_config_t c = block(_i % 3 == 0 ? DP_F32 : _i % 3 == 1 ? DP_F64 : DP_BF16, 5, 4, 8, 3, 2, 1);
    double *counts, sum = 0;
    single_t s;
    size_t i;
    pass_t p;

    c.gate = _i / 3 % 2 == 0 ? DP_GATE_SOFTMAX : DP_GATE_SIGMOID;
    c.normalize = 1;
    c.aux_alpha = 1;
    single_open(&s, &c, _i % 2 == 0 ? values[_i / 6] : 0);
    for (i = 0; i < 20; i += 3)
        s.x[i] = values[_i / 6];
    p = pass_open(&s.rig, s.x, s.dy, 0);
    pass_steps(&s.rig, &p, ROUTE, ROUTE_W);
    counts = counts_of(&s);
    for (i = 0; i < 8; i++) {
        ck_assert(counts[i] >= 0 && counts[i] <= 5);
        sum += counts[i];
    }
    ck_assert_double_eq(sum, 15);
    free(counts);
    pass_close(&s.rig, &p);
    single_close(&s);
}
END_TEST

/* Without dx (first stage) the gradients are the same; and they add to what was there. */
START_TEST(dx_is_optional_and_gradients_add)
{
    dp_moe_config_t c = block(DP_F64, 6, 6, 4, 2, 4, (uint32_t)_i);
    double *grads[2], *start;
    size_t i, count;
    int round;

    for (round = 0; round < 2; round++) {
        single_t s;
        pass_t p;

        single_open(&s, &c, 0);
        count = s.rig.sizes.param_count;
        start = malloc(count * sizeof(*start));
        for (i = 0; i < count; i++)
            start[i] = 64 * round;
        walled_set(&s.rig.gpu, &s.rig.grads, s.rig.sums, start);
        p = pass_open(&s.rig, s.x, s.dy, 0);
        pass_steps(&s.rig, &p, ROUTE, DISPATCH_B);
        if (round == 1) {
            dp_moe_io_t io = pass_io(&s.rig, &p, ROUTE_I);

            io.io.dx = NULL;
            GPU_OK(pass_call(&s.rig, ROUTE_I, &io));
            GPU_CU(&s.rig.gpu, cuStreamSynchronize(s.rig.lanes[0].native));
        } else {
            pass_step(&s.rig, &p, ROUTE_I);
        }
        pass_steps(&s.rig, &p, EXPERTS_W, ROUTE_W);
        grads[round] = walled_get(&s.rig.gpu, &s.rig.grads, s.rig.sums);
        pass_close(&s.rig, &p);
        single_close(&s);
        free(start);
    }
    for (i = 0; i < count; i++)
        ck_assert_msg(fabs(grads[1][i] - 64 - grads[0][i]) <= 1e-12 * (64 + fabs(grads[0][i])),
                      "gradient %zu: %.17g and %.17g", i, grads[0][i], grads[1][i]);
    free(grads[0]);
    free(grads[1]);
}
END_TEST

/* ---- capture ---- */

/* Puts the step on its stream as a graph, twice: the second launch finds what the first left. */
static void step_captured(rig_t *r, pass_t *p, step_t step)
{
    gpu_t *gpu = &r->gpu;
    dp_moe_io_t io = pass_io(r, p, step);
    CUgraphExec exec;
    CUgraph graph;

    GPU_CU(gpu, cuStreamBeginCapture(r->lanes[0].native, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    GPU_OK(pass_call(r, step, &io));
    GPU_CU(gpu, cuStreamEndCapture(r->lanes[0].native, &graph));
    GPU_CU(gpu, cuGraphInstantiate(&exec, graph, 0));
    GPU_CU(gpu, cuGraphLaunch(exec, r->lanes[0].native));
    GPU_CU(gpu, cuStreamSynchronize(r->lanes[0].native));
    GPU_CU(gpu, cuGraphExecDestroy(exec));
    GPU_CU(gpu, cuGraphDestroy(graph));
}

/* Every call on the compute lane as a graph of its own comes to the same bits. The exchanges here wait on the host, so that the
 * others cannot be captured with them. */
START_TEST(calls_may_be_captured)
{
    static const char *const ways[] = {"grouped", "plain", "padded"};
    dp_moe_config_t c = block(DP_BF16, 21, 16, 4, 2, 24, 1);
    double *y[2], *dx[2], *grads[2];
    int round;
    step_t step;

    setenv("DUALPIPE_MOE_PRODUCTS", ways[_i], 1);
    for (round = 0; round < 2; round++) {
        single_t s;
        pass_t p;

        single_open(&s, &c, 0);
        p = pass_open(&s.rig, s.x, s.dy, 0);
        for (step = ROUTE; step < STEPS; step++)
            if (round == 1 && !rig_travels(step))
                step_captured(&s.rig, &p, step);
            else
                pass_step(&s.rig, &p, step);
        y[round] = walled_get(&s.rig.gpu, &p.y, DP_BF16);
        dx[round] = walled_get(&s.rig.gpu, &p.dx, DP_BF16);
        grads[round] = walled_get(&s.rig.gpu, &s.rig.grads, DP_F32);
        if (round == 1) {
            ck_assert_mem_eq(y[0], y[1], 21 * 16 * sizeof(double));
            ck_assert_mem_eq(dx[0], dx[1], 21 * 16 * sizeof(double));
            ck_assert_mem_eq(grads[0], grads[1], s.rig.sizes.param_count * sizeof(double));
        }
        pass_close(&s.rig, &p);
        single_close(&s);
    }
    for (round = 0; round < 2; round++) {
        free(y[round]);
        free(dx[round]);
        free(grads[round]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("moe_cuda contract");
    TCase *tc = tcase_create("contract");

    gpu_or_skip("test_moe_cuda_contract");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, parameters_are_those_of_the_header);
    tcase_add_loop_test(tc, room_follows_the_capacity, 0, 10);
    tcase_add_loop_test(tc, less_room_takes_less_memory, 0, 2);
    tcase_add_test(tc, configurations_that_cannot_be_are_refused);
    tcase_add_test(tc, calls_name_what_is_missing);
    tcase_add_test(tc, replicas_need_a_placement);
    tcase_add_test(tc, too_many_rows_for_an_expert);
    tcase_add_test(tc, too_many_rows_from_a_rank);
    tcase_add_loop_test(tc, rows_of_another_call, 0, 8);
    tcase_add_loop_test(tc, placements_that_cannot_be, 0, 3);
    tcase_add_loop_test(tc, ties_go_to_the_lower_expert, 0, 3);
    tcase_add_loop_test(tc, numbers_that_are_none_do_no_harm, 0, 36);
    tcase_add_loop_test(tc, dx_is_optional_and_gradients_add, 0, 2);
    tcase_add_loop_test(tc, calls_may_be_captured, 0, 3);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
