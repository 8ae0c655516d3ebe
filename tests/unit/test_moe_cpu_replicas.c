/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_moe_cpu_replicas.c: replicated experts. Outputs are those of the naive reference; input gradients and gradients, summed
 * over the replicas of an expert, those without replicas (which test_moe_cpu and test_moe_cpu_ranks prove); each replica gets
 * its share of the rows; with one replica per expert in order, all bits are those without replicas. */
#include "../support/moe_block.h"
#include "../support/moe_reference.h"
#include "../support/suite.h"

#include <math.h>
#include <stdio.h>

enum { MOST_REPLICAS = 24, MOST_MICROBATCHES = 4 };

/* A layer over a group of threads: every rank takes the same micro-batches of its own. */
typedef struct layer {
    dp_moe_config_t config;
    int32_t ranks, microbatches;
    int32_t placement[MOST_MICROBATCHES]
                     [MOST_REPLICAS]; /* of each micro-batch: it may change from one to the next */
    double hot_bias;                  /* of expert 0 */
} layer_t;

typedef struct outcome {
    double *y[INLINE_RANKS][MOST_MICROBATCHES], *dx[INLINE_RANKS][MOST_MICROBATCHES];
    double *grads[INLINE_RANKS]; /* norm, router, bias, shared: sums over micro-batches */
    double *experts
        [MOST_REPLICAS]; /* [E] gradients of each expert, summed over replicas, ranks and micro-batches */
    char *bits[INLINE_RANKS]; /* y, dx and the gradient accumulator as they are */
    size_t nbits;
} outcome_t;

typedef struct member {
    const layer_t *layer;
    inline_group_t *group;
    pthread_mutex_t *adding;
    int32_t rank;
    outcome_t *out;
} member_t;

static size_t common_of(const dp_moe_config_t *c)
{
    const size_t d = c->shape.hidden, E = c->experts;

    return d + d * E + E + 3 * d * c->shared_experts * c->expert_hidden;
}

static size_t expert_of(const dp_moe_config_t *c)
{
    return (size_t)3 * c->shape.hidden * c->expert_hidden;
}

/* Element i of the whole layer's parameters, experts in order. */
static double value_at(const layer_t *l, size_t i)
{
    const size_t d = l->config.shape.hidden;

    return i == d + d * l->config.experts ? l->hot_bias : noise(31, i) * 0.75 + (i < d);
}

/* What this rank holds of the layer under the placement of micro-batch m. */
static void fill_params(const block_t *b, const layer_t *l, int32_t rank, int32_t m, const guarded_t *params)
{
    const size_t common = common_of(&l->config), one = expert_of(&l->config);
    const size_t local = (b->sizes.param_count - common) / one;
    size_t i;

    for (i = 0; i < b->sizes.param_count; i++) {
        size_t at = i;

        if (i >= common) {
            const size_t replica = (size_t)rank * local + (i - common) / one;
            const size_t expert = l->config.replicas > 0 ? (size_t)l->placement[m][replica] : replica;

            at = common + expert * one + (i - common) % one;
        }
        real_set(l->config.shape.dtype, guarded_memory(params), i, value_at(l, at));
    }
}

static void add_experts(const member_t *me, int32_t m, const double *grads, size_t local)
{
    const layer_t *l = me->layer;
    const size_t common = common_of(&l->config), one = expert_of(&l->config);
    size_t r, i;

    pthread_mutex_lock(me->adding);
    for (r = 0; r < local; r++) {
        const size_t replica = (size_t)me->rank * local + r;
        const size_t expert = l->config.replicas > 0 ? (size_t)l->placement[m][replica] : replica;

        for (i = 0; i < one; i++)
            me->out->experts[expert][i] += grads[common + r * one + i];
    }
    pthread_mutex_unlock(me->adding);
}

static double *doubles_of(const guarded_t *g, dp_dtype_t dtype)
{
    const size_t count = g->bytes / dp_dtype_bytes(dtype);
    double *out = calloc(count, sizeof(*out));
    size_t i;

    for (i = 0; i < count; i++)
        out[i] = real_at(dtype, guarded_memory(g), i);
    return out;
}

static char *keep_bits(char *to, const guarded_t *g)
{
    memcpy(to, guarded_memory(g), g->bytes);
    return to + g->bytes;
}

/* Forward and backward of one micro-batch, with an accumulator of its own. */
static char *run_microbatch(const member_t *me, block_t *b, int32_t m, char *bits)
{
    const layer_t *l = me->layer;
    const dp_dtype_t dtype = l->config.shape.dtype;
    const size_t common = common_of(&l->config);
    guarded_t params = guarded_allocate(b->sizes.param_count * dp_dtype_bytes(dtype));
    guarded_t grads = guarded_zeros(params.bytes);
    pass_t p = pass_open(b, guarded_memory(&params), guarded_memory(&grads), m);
    double *all;
    size_t i;

    fill_params(b, l, me->rank, m, &params);
    p.placement = l->config.replicas > 0 ? l->placement[m] : NULL;
    p.aux_scale = 0.5F;
    fill(dtype, &p.x, 100 + (uint64_t)(me->rank * MOST_MICROBATCHES + m), 2);
    fill(dtype, &p.dy, 200 + (uint64_t)(me->rank * MOST_MICROBATCHES + m), 1);
    pass_forward(b, &p);
    pass_backward(b, &p);
    me->out->y[me->rank][m] = doubles_of(&p.y, dtype);
    me->out->dx[me->rank][m] = doubles_of(&p.dx, dtype);
    all = doubles_of(&grads, dtype);
    for (i = 0; i < common; i++)
        me->out->grads[me->rank][i] += all[i];
    add_experts(me, m, all, (b->sizes.param_count - common) / expert_of(&l->config));
    bits = keep_bits(bits, &p.y);
    bits = keep_bits(bits, &p.dx);
    bits = keep_bits(bits, &grads);
    free(all);
    pass_close(&p);
    guarded_free(&params, "params");
    guarded_free(&grads, "grads");
    return bits;
}

static void *member_main(void *arg)
{
    const member_t *me = arg;
    const layer_t *l = me->layer;
    outcome_t *out = me->out;
    block_t b;
    char *bits;
    int32_t m;

    block_open(&b, &l->config, me->group, me->rank);
    out->grads[me->rank] = calloc(common_of(&l->config), sizeof(double));
    bits = out->bits[me->rank] =
        malloc((size_t)l->microbatches * (2 * block_boundary(&b) + b.sizes.param_count) * block_element(&b));
    for (m = 0; m < l->microbatches; m++)
        bits = run_microbatch(me, &b, m, bits);
    if (me->rank == 0)
        out->nbits = (size_t)(bits - out->bits[0]);
    block_close(&b);
    return NULL;
}

static int32_t received[INLINE_RANKS];

/* The four exchanges of a micro-batch begin with that of dispatch. */
static void note_received(dp_exchange_t *e, int32_t round)
{
    int32_t p;

    if (round % 4 != 0)
        return;
    received[e->comm->rank] = 0;
    for (p = 0; p < e->comm->nranks; p++)
        received[e->comm->rank] += e->counts[p];
}

static outcome_t run(const layer_t *l)
{
    pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;
    outcome_t out = {0};
    inline_group_t group;
    pthread_t threads[INLINE_RANKS];
    member_t members[INLINE_RANKS];
    uint32_t e;
    int32_t r;

    for (e = 0; e < l->config.experts; e++)
        out.experts[e] = calloc(expert_of(&l->config), sizeof(double));
    inline_group_open(&group, l->ranks);
    for (r = 0; r < l->ranks; r++) {
        members[r] = (member_t){l, &group, &adding, r, &out};
        group.comms[r].tamper = note_received;
        ck_assert_int_eq(pthread_create(&threads[r], NULL, member_main, &members[r]), 0);
    }
    for (r = 0; r < l->ranks; r++)
        ck_assert_int_eq(pthread_join(threads[r], NULL), 0);
    inline_group_close(&group);
    return out;
}

static void outcome_free(outcome_t *o)
{
    int32_t r, m;

    for (r = 0; r < INLINE_RANKS; r++) {
        for (m = 0; m < MOST_MICROBATCHES; m++) {
            free(o->y[r][m]);
            free(o->dx[r][m]);
        }
        free(o->grads[r]);
        free(o->bits[r]);
    }
    for (r = 0; r < MOST_REPLICAS; r++)
        free(o->experts[r]);
}

static void expect_near(const double *got, const double *wanted, size_t count, double tolerance,
                        const char *what)
{
    size_t i;

    for (i = 0; i < count; i++)
        if (!(fabs(got[i] - wanted[i]) <= tolerance * (1 + fabs(wanted[i]))))
            ck_abort_msg("%s[%zu] is %.17g, not %.17g", what, i, got[i], wanted[i]);
}

/* ---- against the reference, and against one rank without replicas ---- */

static void expect_reference(const layer_t *l, const outcome_t *got, double tolerance)
{
    const dp_moe_config_t *c = &l->config;
    const size_t boundary = (size_t)c->shape.sequence * c->shape.hidden;
    const size_t count = common_of(c) + c->experts * expert_of(c);
    double *params = calloc(count, sizeof(*params)), *h = calloc(boundary, sizeof(*h)),
           *y = calloc(boundary, sizeof(*y));
    int *chosen = calloc((size_t)c->shape.sequence * c->top_k, sizeof(*chosen));
    const reference_t reference = reference_of(c, params, chosen);
    size_t i;

    ck_assert_uint_eq(count, reference_params(&reference));
    for (i = 0; i < count; i++)
        params[i] = c->shape.dtype == DP_F32 ? (double)(float)value_at(l, i) : value_at(l, i);
    for (int32_t r = 0; r < l->ranks; r++)
        for (int32_t m = 0; m < l->microbatches; m++) {
            for (i = 0; i < boundary; i++)
                h[i] = noise(100 + (uint64_t)(r * MOST_MICROBATCHES + m), i) * 2;
            (void)reference_forward(&reference, h, y);
            expect_near(got->y[r][m], y, boundary, tolerance, "y");
        }
    free(params);
    free(h);
    free(y);
    free(chosen);
}

/* The same layer over the same ranks, every expert in one place. */
static void expect_unreplicated(const layer_t *l, const outcome_t *got, double tolerance)
{
    const dp_moe_config_t *c = &l->config;
    const size_t boundary = (size_t)c->shape.sequence * c->shape.hidden;
    layer_t plain = *l;
    outcome_t alone;
    uint32_t e;

    plain.config.replicas = 0;
    alone = run(&plain);
    for (int32_t r = 0; r < l->ranks; r++) {
        for (int32_t m = 0; m < l->microbatches; m++) {
            expect_near(got->y[r][m], alone.y[r][m], boundary, tolerance, "y");
            expect_near(got->dx[r][m], alone.dx[r][m], boundary, tolerance, "dx");
        }
        expect_near(got->grads[r], alone.grads[r], common_of(c), tolerance, "gradients outside experts");
    }
    for (e = 0; e < c->experts; e++)
        expect_near(got->experts[e], alone.experts[e], expert_of(c), tolerance, "gradients of an expert");
    outcome_free(&alone);
}

/* Every expert once, the other replicas as chance has it, and all of it shuffled. */
static void draw_placement(const layer_t *l, uint64_t seed, int32_t *placement)
{
    const uint32_t R = l->config.replicas, E = l->config.experts;
    uint32_t r;

    for (r = 0; r < R; r++)
        placement[r] = (int32_t)(r < E ? r : (uint32_t)((noise(seed, r) + 1) / 2 * E) % E);
    for (r = R - 1; r > 0; r--) {
        const uint32_t other = (uint32_t)((noise(seed + 1, r) + 1) / 2 * (r + 1)) % (r + 1);
        const int32_t swap = placement[r];

        placement[r] = placement[other];
        placement[other] = swap;
    }
}

static layer_t layer_of(dp_dtype_t dtype, uint32_t tokens, uint32_t experts, uint32_t replicas,
                        uint32_t top_k, int32_t ranks, uint32_t shared)
{
    layer_t l = {.config = block_config(dtype, tokens, 9, experts, top_k, 7, shared),
                 .ranks = ranks,
                 .microbatches = 3};

    l.config.replicas = replicas;
    l.config.gate = shared > 0 ? DP_GATE_SIGMOID : DP_GATE_SOFTMAX;
    l.config.normalize = 1;
    l.config.aux_alpha = 0.125F;
    return l;
}

START_TEST(outputs_and_summed_gradients_are_those_of_one_replica)
{
    static const struct {
        uint32_t tokens, experts, replicas, top_k;
        int32_t ranks;
    } cases[] = {
        {13, 4, 7, 2, 1},  {13, 4, 6, 2, 2}, {1, 4, 8, 3, 2},  {7, 8, 12, 8, 4},
        {29, 4, 20, 1, 4}, {5, 4, 24, 4, 4}, {17, 8, 8, 3, 2}, {64, 8, 16, 2, 8},
    };
    const dp_dtype_t dtype = _i % 2 == 0 ? DP_F64 : DP_F32;
    const double tolerance = dtype == DP_F64 ? 1e-12 : 2e-4;
    layer_t l = layer_of(dtype, cases[_i / 2].tokens, cases[_i / 2].experts, cases[_i / 2].replicas,
                         cases[_i / 2].top_k, cases[_i / 2].ranks, (uint32_t)_i / 2 % 3);
    outcome_t got;

    for (int32_t m = 0; m < l.microbatches; m++)
        draw_placement(&l, (uint64_t)(10 * _i + m), l.placement[m]);
    got = run(&l);
    expect_reference(&l, &got, tolerance);
    expect_unreplicated(&l, &got, tolerance);
    outcome_free(&got);
}
END_TEST

START_TEST(one_replica_per_expert_changes_no_bit)
{
    static const int32_t ranks[] = {1, 2, 4, 8};
    layer_t l = layer_of(_i % 2 == 0 ? DP_F32 : DP_F64, 13, 8, 8, 3, ranks[_i / 2], 1), plain = l;
    outcome_t a, b;

    for (int32_t m = 0; m < l.microbatches; m++)
        for (int32_t r = 0; r < 8; r++)
            l.placement[m][r] = r;
    plain.config.replicas = 0;
    a = run(&l);
    b = run(&plain);
    ck_assert_uint_gt(a.nbits, 0);
    ck_assert_uint_eq(a.nbits, b.nbits);
    for (int32_t r = 0; r < l.ranks; r++)
        ck_assert_mem_eq(a.bits[r], b.bits[r], a.nbits);
    outcome_free(&a);
    outcome_free(&b);
}
END_TEST

/* The same placement twice: the same bits. */
START_TEST(runs_repeat_to_the_bit)
{
    layer_t l = layer_of(DP_F32, 37, 8, 12, 3, 4, 1);
    outcome_t a, b;

    for (int32_t m = 0; m < l.microbatches; m++)
        draw_placement(&l, 5 + (uint64_t)m, l.placement[m]);
    a = run(&l);
    b = run(&l);
    for (int32_t r = 0; r < l.ranks; r++)
        ck_assert_mem_eq(a.bits[r], b.bits[r], a.nbits);
    outcome_free(&a);
    outcome_free(&b);
}
END_TEST

/* Every token goes to expert 0, which has a replica on each of the first `spread` ranks: those get equal shares, the others
 * nothing. */
START_TEST(every_replica_gets_its_share)
{
    const int32_t spread = _i + 1;
    layer_t l = layer_of(DP_F64, 25, 4, 12, 1, 4, 0);
    outcome_t got;
    int32_t all = 0;

    l.hot_bias = 1000;
    for (int32_t m = 0; m < l.microbatches; m++)
        for (int32_t r = 0; r < 12; r++)
            l.placement[m][r] = r % 3 == 0 && r / 3 < spread ? 0 : 1 + r / 3 % 3;
    got = run(&l);
    for (int32_t r = 0; r < 4; r++) {
        all += received[r];
        if (r >= spread)
            ck_assert_int_eq(received[r], 0);
        else /* each source rank within one row, and no source begins where another did */
            ck_assert_int_le(abs(received[r] * spread - 4 * 25), 4 * spread - 1);
    }
    ck_assert_int_eq(all, 4 * 25);
    outcome_free(&got);
}
END_TEST

/* ---- refusals ---- */

/* One rank, one call of route; the stream's status and the message tell. */
static void expect_route(const int32_t *placement, dp_status_t call, dp_status_t stream, const char *word)
{
    dp_moe_config_t c = block_config(DP_F64, 3, 4, 3, 2, 5, 0);
    guarded_t params;
    inline_group_t group;
    block_t b;
    pass_t p;

    c.replicas = 4;
    inline_group_open(&group, 1);
    block_open(&b, &c, &group, 0);
    params = guarded_zeros(b.sizes.param_count * sizeof(double));
    p = pass_open(&b, guarded_memory(&params), NULL, 0);
    fill(DP_F64, &p.x, 1, 1);
    p.placement = placement;
    ck_assert_int_eq(pass_call(&b, &p, ROUTE), call);
    ck_assert_int_eq(b.compute.status, stream);
    if (word != NULL)
        ck_assert_msg(strstr(dp_last_error(), word) != NULL && strstr(dp_last_error(), "moe_cpu") != NULL,
                      "%s", dp_last_error());
    pass_close(&p);
    guarded_free(&params, "params");
    block_close(&b);
    inline_group_close(&group);
}

START_TEST(placements_that_cannot_be_are_refused)
{
    static const int32_t good[] = {0, 1, 2, 1}, absent[] = {0, 1, 1, 1}, high[] = {0, 1, 2, 3},
                         low[] = {0, -1, 2, 1};

    expect_route(good, DP_OK, DP_OK, NULL);
    expect_route(NULL, DP_ERR_INVALID, DP_OK, "needs a placement");
    expect_route(absent, DP_OK, DP_ERR_INVALID, "no replica of expert 2");
    expect_route(high, DP_OK, DP_ERR_INVALID, "replica 3 of expert 3");
    expect_route(low, DP_OK, DP_ERR_INVALID, "replica 1 of expert -1");
}
END_TEST

START_TEST(parameters_are_those_of_replicas)
{
    dp_moe_config_t c = block_config(DP_F32, 4, 5, 3, 2, 3, 0);
    dp_param_t params[9];
    inline_group_t group;
    block_t b;

    c.replicas = 4;
    inline_group_open(&group, 2);
    block_open(&b, &c, &group, 1);
    ck_assert(b.vt->caps & DP_MOE_CAP_REPLICAS);
    ck_assert_uint_eq(b.sizes.nparams, 9);
    ck_assert_int_eq(b.vt->params(b.moe, params), DP_OK);
    ck_assert_str_eq(params[3].name, "replicas.2.w_gate");
    ck_assert_str_eq(params[8].name, "replicas.3.w_down");
    for (int i = 3; i < 9; i++)
        ck_assert_int_eq(params[i].expert, i < 6 ? 2 : 3);
    ck_assert_uint_eq(params[8].offset + params[8].count, b.sizes.param_count);
    block_close(&b);
    inline_group_close(&group);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("moe_cpu replicas");
    TCase *tc = tcase_create("replicas");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, outputs_and_summed_gradients_are_those_of_one_replica, 0, 16);
    tcase_add_loop_test(tc, one_replica_per_expert_changes_no_bit, 0, 8);
    tcase_add_test(tc, runs_repeat_to_the_bit);
    tcase_add_loop_test(tc, every_replica_gets_its_share, 0, 4);
    tcase_add_test(tc, placements_that_cannot_be_are_refused);
    tcase_add_test(tc, parameters_are_those_of_replicas);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
