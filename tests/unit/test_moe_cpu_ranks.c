/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_moe_cpu_ranks.c: expert groups of 1, 2 and 4 ranks (threads) come to the same bits, in whatever order the calls of
 * different micro-batches interleave.
 *
 * There are 8 micro-batches; rank r of R owns r, r + R, ... All outputs and input gradients must be those of a single rank.
 * An expert adds gradients micro-batch by micro-batch within a round and round by round, so its gradients must be those of
 * a single rank that takes the micro-batches in order 0 ... 7; what every rank holds (norm, router, shared experts, counts)
 * must be what a single rank finds over r, r + R, ... */
#include "../support/moe_block.h"
#include "../support/suite.h"

#include <math.h>

enum { MICROBATCHES = 8 };

/* In which order a rank makes its calls; all orders that F&B pairs and deferred weight gradients can lead to, in kind. */
typedef enum order { ONE_BY_ONE, ALL_FORWARD_FIRST, PAIRED, ORDERS } order_t;

typedef struct results {
    size_t boundary_bytes, param_bytes;
    char *y[MICROBATCHES], *dx[MICROBATCHES];
    char *grads[INLINE_RANKS]; /* of each rank */
    double aux[MICROBATCHES];
} results_t;

/* One rank of a run: a thread. */
typedef struct member {
    const dp_moe_config_t *config;
    inline_group_t *group;
    int32_t rank, first, stride; /* takes micro-batches first, first + stride, ... */
    order_t order;
    double hot_bias; /* of the last expert */
    results_t *results;
} member_t;

/* Parameters of this rank's block out of those of the whole layer, which depend on nothing but the position. */
static void fill_params(const block_t *b, const guarded_t *params, double hot_bias)
{
    const dp_moe_config_t *c = &b->config;
    const size_t d = c->shape.hidden, experts = c->experts, one = 3 * d * c->expert_hidden;
    const size_t common = d + d * experts + experts + 3 * d * c->shared_experts * c->expert_hidden;
    const size_t local = experts / (size_t)c->comm_size;
    size_t i;

    for (i = 0; i < b->sizes.param_count; i++) {
        const size_t at = i < common ? i : i + (size_t)c->comm_rank * local * one;

        real_set(c->shape.dtype, guarded_memory(params), i, noise(77, at));
    }
    real_set(c->shape.dtype, guarded_memory(params), d + d * experts + experts - 1, hot_bias);
}

static void one_by_one(block_t *b, pass_t *passes, int32_t count)
{
    int32_t m;

    for (m = 0; m < count; m++) {
        pass_forward(b, &passes[m]);
        pass_backward(b, &passes[m]);
    }
}

/* As a pipeline's first rank: weight gradients come long after, behind the next micro-batch's input gradients. */
static void all_forward_first(block_t *b, pass_t *passes, int32_t count)
{
    int32_t m;
    step_t s;

    for (m = 0; m < count; m++)
        pass_forward(b, &passes[m]);
    for (m = 0; m < count; m++) {
        for (s = COMBINE_B; s <= ROUTE_I; s++)
            pass_step(b, &passes[m], s);
        if (m > 0) {
            pass_step(b, &passes[m - 1], EXPERTS_W);
            pass_step(b, &passes[m - 1], ROUTE_W);
        }
    }
    pass_step(b, &passes[count - 1], EXPERTS_W);
    pass_step(b, &passes[count - 1], ROUTE_W);
}

/* F&B pairs in the canonical order, backward of m with forward of m + 1. */
static void paired(block_t *b, pass_t *passes, int32_t count)
{
    int32_t m;

    pass_forward(b, &passes[0]);
    for (m = 0; m + 1 < count; m++) {
        pass_t *back = &passes[m], *next = &passes[m + 1];

        pass_step(b, next, ROUTE);
        pass_step(b, back, COMBINE_B);
        pass_step(b, next, DISPATCH);
        pass_step(b, back, EXPERTS_I);
        pass_step(b, back, EXPERTS_W);
        pass_step(b, back, DISPATCH_B);
        pass_step(b, next, EXPERTS);
        pass_step(b, next, COMBINE);
        pass_step(b, back, ROUTE_I);
        pass_step(b, back, ROUTE_W);
    }
    pass_backward(b, &passes[count - 1]);
}

static char *copy_of(const guarded_t *g)
{
    char *copy = malloc(g->bytes);

    memcpy(copy, guarded_memory(g), g->bytes);
    return copy;
}

static void *member_main(void *arg)
{
    static void (*const orders[ORDERS])(block_t *, pass_t *, int32_t) = {one_by_one, all_forward_first,
                                                                         paired};
    const member_t *me = arg;
    results_t *out = me->results;
    const dp_dtype_t dtype = me->config->shape.dtype;
    pass_t passes[MICROBATCHES];
    guarded_t params, grads;
    block_t b;
    int32_t m, count = 0;

    block_open(&b, me->config, me->group, me->rank);
    params = guarded_allocate(b.sizes.param_count * dp_dtype_bytes(dtype));
    grads = guarded_zeros(params.bytes);
    fill_params(&b, &params, me->hot_bias);
    for (m = me->first; m < MICROBATCHES; m += me->stride) {
        passes[count] = pass_open(&b, guarded_memory(&params), guarded_memory(&grads), m);
        passes[count].aux_scale = 0.5F;
        fill(dtype, &passes[count].x, 1000 + (uint64_t)m, 1);
        fill(dtype, &passes[count].dy, 2000 + (uint64_t)m, 1);
        count++;
    }
    orders[me->order](&b, passes, count);
    for (m = 0; m < count; m++) {
        const int32_t microbatch = passes[m].microbatch;

        out->y[microbatch] = copy_of(&passes[m].y);
        out->dx[microbatch] = copy_of(&passes[m].dx);
        out->aux[microbatch] = passes[m].aux_loss;
        pass_close(&passes[m]);
    }
    out->grads[me->rank] = copy_of(&grads);
    if (me->rank == 0) {
        out->boundary_bytes = block_boundary(&b) * block_element(&b);
        out->param_bytes = params.bytes;
    }
    guarded_free(&params, "params");
    guarded_free(&grads, "grads");
    block_close(&b);
    return NULL;
}

/* All micro-batches over `ranks` ranks, or (ranks 1) only first, first + stride, ... */
static results_t run(const dp_moe_config_t *config, int32_t ranks, int32_t first, int32_t stride,
                     order_t order, double hot_bias)
{
    results_t results = {0};
    inline_group_t group;
    pthread_t threads[INLINE_RANKS];
    member_t members[INLINE_RANKS];
    int32_t r;

    inline_group_open(&group, ranks);
    for (r = 0; r < ranks; r++) {
        const member_t m = {config, &group, r, first + r, stride, order, hot_bias, &results};

        members[r] = m;
        ck_assert_int_eq(pthread_create(&threads[r], NULL, member_main, &members[r]), 0);
    }
    for (r = 0; r < ranks; r++)
        ck_assert_int_eq(pthread_join(threads[r], NULL), 0);
    inline_group_close(&group);
    return results;
}

static void results_free(results_t *r)
{
    int32_t i;

    for (i = 0; i < MICROBATCHES; i++) {
        free(r->y[i]);
        free(r->dx[i]);
    }
    for (i = 0; i < INLINE_RANKS; i++)
        free(r->grads[i]);
}

static void check_finite(const dp_moe_config_t *c, const char *reals, size_t bytes)
{
    size_t i;

    for (i = 0; i < bytes / dp_dtype_bytes(c->shape.dtype); i++)
        if (!isfinite(real_at(c->shape.dtype, reals, i)))
            ck_abort_msg("element %zu is not finite", i);
}

static void compare(const dp_moe_config_t *c, int32_t ranks, order_t order, double hot_bias)
{
    const size_t element = dp_dtype_bytes(c->shape.dtype), d = c->shape.hidden, experts = c->experts;
    const size_t common =
        element * (d + d * experts + experts + 3 * d * c->shared_experts * c->expert_hidden);
    results_t alone = run(c, 1, 0, 1, ONE_BY_ONE, hot_bias),
              together = run(c, ranks, 0, ranks, order, hot_bias);
    const size_t share = together.param_bytes - common;
    int32_t m, r;

    check_finite(c, alone.grads[0], alone.param_bytes);
    for (m = 0; m < MICROBATCHES; m++) {
        check_finite(c, alone.y[m], alone.boundary_bytes);
        ck_assert_mem_eq(alone.y[m], together.y[m], alone.boundary_bytes);
        ck_assert_mem_eq(alone.dx[m], together.dx[m], alone.boundary_bytes);
        ck_assert_mem_eq(&alone.aux[m], &together.aux[m], sizeof(double));
    }
    for (r = 0; r < ranks; r++) {
        results_t mine = run(c, 1, r, ranks, ONE_BY_ONE, hot_bias);

        ck_assert_mem_eq(mine.grads[0], together.grads[r], common);
        ck_assert_mem_eq(alone.grads[0] + common + (size_t)r * share, together.grads[r] + common, share);
        results_free(&mine);
    }
    results_free(&alone);
    results_free(&together);
}

static dp_moe_config_t layer(dp_dtype_t dtype, uint32_t tokens, uint32_t top_k, uint32_t shared)
{
    dp_moe_config_t c = block_config(dtype, tokens, 12, 8, top_k, 10, shared);

    c.gate = shared > 0 ? DP_GATE_SIGMOID : DP_GATE_SOFTMAX;
    c.normalize = 1;
    c.aux_alpha = 0.125F;
    return c;
}

START_TEST(bits_do_not_depend_on_the_group)
{
    static const int32_t ranks[] = {1, 2, 4, 8};
    const dp_dtype_t dtype = _i % 2 == 0 ? DP_F32 : DP_F64;
    dp_moe_config_t c = layer(dtype, 13, 3, _i / 2 % 2);

    compare(&c, ranks[_i / 4], ONE_BY_ONE, 0);
}
END_TEST

START_TEST(bits_do_not_depend_on_the_order_of_calls)
{
    const dp_dtype_t dtype = _i % 2 == 0 ? DP_F32 : DP_F64;
    dp_moe_config_t c = layer(dtype, 13, 2, 1);

    compare(&c, _i / 2 % 2 + 1, _i / 4 % 2 == 0 ? ALL_FORWARD_FIRST : PAIRED, 0);
}
END_TEST

/* One token a micro-batch: most experts get nothing, most pairs of ranks send nothing. */
START_TEST(single_tokens)
{
    dp_moe_config_t c = layer(DP_F64, 1, (uint32_t)_i + 1, 0);

    compare(&c, 4, PAIRED, 0);
}
END_TEST

/* Every token goes to the last expert: the other ranks receive no row at all. */
START_TEST(all_tokens_to_one_expert)
{
    dp_moe_config_t c = layer(_i == 0 ? DP_F32 : DP_F64, 13, 1, 0);

    compare(&c, 4, ONE_BY_ONE, 1000);
}
END_TEST

/* Every token goes to every expert: each pair of ranks is at its capacity. */
START_TEST(all_tokens_to_all_experts)
{
    dp_moe_config_t c = layer(_i == 0 ? DP_F32 : DP_F64, 13, 8, 0);

    compare(&c, 4, PAIRED, 0);
}
END_TEST

/* Sizes at which BLAS changes its ways: blocks of hundreds of rows, wider than a cache line. */
START_TEST(larger_blocks)
{
    dp_moe_config_t c = layer(DP_F32, 160, 2, 1);

    c.shape.hidden = 65;
    c.expert_hidden = 66;
    compare(&c, 2, PAIRED, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("moe_cpu ranks");
    TCase *tc = tcase_create("same bits");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, bits_do_not_depend_on_the_group, 0, 16);
    tcase_add_loop_test(tc, bits_do_not_depend_on_the_order_of_calls, 0, 8);
    tcase_add_loop_test(tc, single_tokens, 0, 2);
    tcase_add_loop_test(tc, all_tokens_to_one_expert, 0, 2);
    tcase_add_loop_test(tc, all_tokens_to_all_experts, 0, 2);
    tcase_add_test(tc, larger_blocks);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
