/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_moe_cuda.c: moe_cuda against moe_cpu in double: outputs, auxiliary loss and every gradient, on 1, 2 and 4 expert ranks,
 * for each type and each way of multiplying. All memory begins as NaN, scratch again before each call.
 *
 * Tolerances, relative to the largest value of the array: f64 1e-12; f32 1e-5; bf16 2^-5, since normalised rows, products,
 * activations and travelling rows are rounded to 8 bits one after the other and the measure rounds nothing. */
#include "moe_rig.h"

#include "moe_twin.h"

#include "../support/suite.h"

enum { ROUNDS = 2 };

/* What one run is about; zero is the default. */
typedef struct trial {
    dp_moe_config_t config;
    const char *products;
    int32_t ranks;
    int hot;        /* 1: every token wants the last expert most */
    int rounds;     /* micro-batches of each rank */
    int order;      /* 1: all forwards first */
    double *params; /* of all experts, rounded to the type */
    double *x[RIG_RANKS][ROUNDS], *dy[RIG_RANKS][ROUNDS];
    int32_t *placement;
} trial_t;

/* What came of it. */
typedef struct outcome {
    double *y[RIG_RANKS][ROUNDS], *dx[RIG_RANKS][ROUNDS], *grads[RIG_RANKS], aux[RIG_RANKS][ROUNDS];
} outcome_t;

typedef struct member {
    const trial_t *trial;
    rig_group_t *group;
    outcome_t *outcome;
    int32_t rank;
} member_t;

static double noise(uint64_t seed, uint64_t i)
{
    uint64_t z = (seed << 32) + i + UINT64_C(0x9e3779b97f4a7c15) * (i + 1);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    return (double)(z >> 41) / (double)(UINT64_C(1) << 22) - 1;
}

static dp_moe_config_t layer(dp_dtype_t dtype, uint32_t tokens, uint32_t hidden, uint32_t experts,
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
        .gate = shared > 0 ? DP_GATE_SIGMOID : DP_GATE_SOFTMAX,
        .normalize = top_k > 1,
        .scale = 1.5F,
        .aux_alpha = 0.25F,
        .exchange_id = 40,
    };

    return c;
}

/* ---- numbers whose routing does not hang on a rounding ---- */

static size_t common_params(const dp_moe_config_t *c)
{
    const size_t d = c->shape.hidden;

    return d + d * c->experts + c->experts + 3 * d * c->shared_experts * c->expert_hidden;
}

static size_t slots(const dp_moe_config_t *c)
{
    return c->replicas > 0 ? c->replicas : c->experts;
}

static size_t all_params(const dp_moe_config_t *c)
{
    return common_params(c) + slots(c) * 3 * c->shape.hidden * c->expert_hidden;
}

static double *random_params(const trial_t *t, uint64_t seed)
{
    const dp_moe_config_t *c = &t->config;
    const size_t d = c->shape.hidden, e = c->experts, count = all_params(c);
    double *p = malloc(count * sizeof(*p));
    size_t i;

    for (i = 0; i < count; i++)
        p[i] = noise(seed, i) / (i < d ? 4 : sqrt((double)d) / 2) + (i < d);
    for (i = 0; i < d * e; i++) /* the router looks at one element for each expert, as far as there are */
        p[d + i] = (i / e % e == i % e ? 2 : 0) + noise(seed, d + i) / 8;
    for (i = 0; i < e; i++)
        p[d + d * e + i] = noise(seed + 1, i) / 16 + (t->hot && i + 1 == e ? 1000 : 0);
    for (i = 0; i < count; i++)
        p[i] = rig_rounded(c->shape.dtype, p[i]);
    return p;
}

/* Tokens that want top_k experts each, the first of them most. */
static double *random_tokens(const dp_moe_config_t *c, uint64_t seed)
{
    const size_t d = c->shape.hidden, tokens = c->shape.sequence;
    double *x = malloc(tokens * d * sizeof(*x));
    size_t t, j, i;

    for (t = 0; t < tokens; t++) {
        const size_t wanted = (size_t)((noise(seed + 7, t) + 1) * 5000);

        for (i = 0; i < d; i++)
            x[t * d + i] = noise(seed, t * d + i) / 2;
        for (j = 0; j < c->top_k; j++)
            x[t * d + (wanted + j * 3) % c->experts % d] += 2.5 - 0.125 * (double)j;
    }
    for (i = 0; i < tokens * d; i++)
        x[i] = rig_rounded(c->shape.dtype, x[i]);
    return x;
}

/* The least distance of a chosen expert's score + bias to one that was not chosen, over all tokens. */
static double margin(const trial_t *trial, const double *x)
{
    const dp_moe_config_t *c = &trial->config;
    const size_t d = c->shape.hidden, e = c->experts, k = c->top_k;
    double *s = malloc(e * sizeof(*s)), least = INFINITY;
    size_t t, i, j, l;

    for (t = 0; t < c->shape.sequence && k < e; t++) {
        double square = 0, sum = 0;

        for (i = 0; i < d; i++)
            square += x[t * d + i] * x[t * d + i] / (double)d;
        for (j = 0; j < e; j++) {
            s[j] = 0;
            for (i = 0; i < d; i++)
                s[j] += x[t * d + i] / sqrt(square + 1e-6) * trial->params[i] * trial->params[d + i * e + j];
            s[j] = c->gate == DP_GATE_SIGMOID ? 1 / (1 + exp(-s[j])) : exp(s[j]);
            sum += s[j];
        }
        for (j = 0; j < e; j++)
            s[j] = s[j] / (c->gate == DP_GATE_SIGMOID ? 1 : sum) + trial->params[d + d * e + j];
        for (i = 0; i < e; i++) /* a selection sort; only the border matters */
            for (l = i + 1; l < e; l++)
                if (s[l] > s[i]) {
                    double swap = s[i];

                    s[i] = s[l];
                    s[l] = swap;
                }
        least = s[k - 1] - s[k] < least ? s[k - 1] - s[k] : least;
    }
    free(s);
    return least;
}

static void trial_fill(trial_t *t)
{
    const dp_dtype_t dtype = t->config.shape.dtype;
    const double wanted = dtype == DP_F64 ? 1e-9 : dtype == DP_F32 ? 1e-5 : 0.004;
    uint64_t seed = 3;
    int32_t r;
    int m;

    t->rounds = t->rounds > 0 ? t->rounds : 1;
    t->params = random_params(t, 1);
    for (r = 0; r < t->ranks; r++)
        for (m = 0; m < t->rounds; m++) {
            for (;; seed += 13) {
                ck_assert_uint_lt(seed, 100000);
                t->x[r][m] = random_tokens(&t->config, seed);
                if (margin(t, t->x[r][m]) > wanted)
                    break;
                free(t->x[r][m]);
            }
            seed += 13;
            t->dy[r][m] = random_tokens(&t->config, seed + 1000003);
        }
}

static void trial_free(trial_t *t)
{
    int32_t r;
    int m;

    free(t->params);
    for (r = 0; r < t->ranks; r++)
        for (m = 0; m < t->rounds; m++) {
            free(t->x[r][m]);
            free(t->dy[r][m]);
        }
}

/* ---- a run ---- */

static void set_params(rig_t *r, const trial_t *t)
{
    const size_t common = common_params(&t->config), own = r->sizes.param_count - common;
    double *p = malloc(r->sizes.param_count * sizeof(*p));

    memcpy(p, t->params, common * sizeof(*p));
    memcpy(p + common, t->params + common + (size_t)r->config.comm_rank * own, own * sizeof(*p));
    walled_set(&r->gpu, &r->params, r->dtype, p);
    free(p);
    if (t->placement != NULL)
        GPU_CU(&r->gpu, cuMemcpyHtoD(r->placement.start + RIG_WALL, t->placement, r->placement.bytes));
}

static void take(rig_t *r, pass_t *p, outcome_t *o, int32_t rank, int m)
{
    o->y[rank][m] = walled_get(&r->gpu, &p->y, r->dtype);
    o->dx[rank][m] = walled_get(&r->gpu, &p->dx, r->dtype);
    GPU_CU(&r->gpu, cuMemcpyDtoH(&o->aux[rank][m], p->aux.start + RIG_WALL, sizeof(double)));
    pass_close(r, p);
}

static void *member_main(void *arg)
{
    const member_t *me = arg;
    const trial_t *t = me->trial;
    pass_t passes[ROUNDS];
    rig_t r;
    int m;

    rig_open(&r, &t->config, me->group, me->rank, t->ranks);
    set_params(&r, t);
    for (m = 0; m < t->rounds; m++)
        passes[m] = pass_open(&r, t->x[me->rank][m], t->dy[me->rank][m], m);
    for (m = 0; m < t->rounds && t->order; m++)
        pass_steps(&r, &passes[m], ROUTE, COMBINE);
    for (m = 0; m < t->rounds; m++) {
        if (!t->order)
            pass_steps(&r, &passes[m], ROUTE, COMBINE);
        pass_steps(&r, &passes[m], COMBINE_B, ROUTE_W);
        take(&r, &passes[m], me->outcome, me->rank, m);
    }
    me->outcome->grads[me->rank] = walled_get(&r.gpu, &r.grads, r.sums);
    rig_close(&r);
    return NULL;
}

static void run(const trial_t *t, outcome_t *o)
{
    pthread_t threads[RIG_RANKS];
    member_t members[RIG_RANKS];
    rig_group_t group;
    int32_t r;

    memset(o, 0, sizeof(*o));
    if (t->products != NULL)
        setenv("DUALPIPE_MOE_PRODUCTS", t->products, 1);
    else
        unsetenv("DUALPIPE_MOE_PRODUCTS");
    pthread_barrier_init(&group.meeting, NULL, (unsigned)t->ranks);
    for (r = 0; r < t->ranks; r++) {
        const member_t m = {t, &group, o, r};

        members[r] = m;
        ck_assert_int_eq(pthread_create(&threads[r], NULL, member_main, &members[r]), 0);
    }
    for (r = 0; r < t->ranks; r++)
        ck_assert_int_eq(pthread_join(threads[r], NULL), 0);
    pthread_barrier_destroy(&group.meeting);
}

static void outcome_free(outcome_t *o)
{
    int32_t r;
    int m;

    for (r = 0; r < RIG_RANKS; r++) {
        for (m = 0; m < ROUNDS; m++) {
            free(o->y[r][m]);
            free(o->dx[r][m]);
        }
        free(o->grads[r]);
    }
}

/* ---- comparisons ---- */

static void describe(char *text, size_t bytes, const trial_t *t)
{
    static const char *const types[] = {"f32", "f64", "bf16"};
    const dp_moe_config_t *c = &t->config;

    snprintf(text, bytes, "%s %s, %d ranks, T %u d %u E %u k %u f %u shared %u %s", types[c->shape.dtype],
             t->products != NULL ? t->products : "default", t->ranks, c->shape.sequence, c->shape.hidden,
             c->experts, c->top_k, c->expert_hidden, c->shared_experts,
             c->gate == DP_GATE_SIGMOID ? "sigmoid" : "softmax");
}

static void near(const trial_t *t, const double *got, const double *wanted, size_t count, const char *what)
{
    const dp_dtype_t dtype = t->config.shape.dtype;
    const double tolerance = dtype == DP_F64 ? 1e-12 : dtype == DP_F32 ? 1e-5 : 1.0 / 32;
    double most = 0;
    char text[200];
    size_t i;

    for (i = 0; i < count; i++)
        most = fabs(wanted[i]) > most ? fabs(wanted[i]) : most;
    for (i = 0; i < count; i++) {
        if (!(fabs(got[i] - wanted[i]) <= tolerance * most)) {
            describe(text, sizeof(text), t);
            ck_abort_msg("%s: %s[%zu] of %zu, at most %g, is %.17g, not %.17g", text, what, i, count, most,
                         got[i], wanted[i]);
        }
    }
}

static void near_params(const trial_t *t, const double *got, const double *wanted)
{
    const dp_moe_config_t *c = &t->config;
    const size_t d = c->shape.hidden, e = c->experts, router = d, bias = d + d * e, shared = bias + e;
    size_t i;

    near(t, got, wanted, d, "gradient of norm");
    near(t, got + router, wanted + router, d * e, "gradient of router");
    for (i = 0; i < e; i++)
        ck_assert_msg(got[bias + i] == wanted[bias + i], "expert %zu was chosen %g times, not %g", i,
                      wanted[bias + i], got[bias + i]);
    near(t, got + shared, wanted + shared, common_params(c) - shared, "gradient of shared experts");
}

/* Everything against moe_cpu. */
static void check(trial_t *t)
{
    const dp_moe_config_t *c = &t->config;
    const size_t common = common_params(c), boundary = (size_t)c->shape.sequence * c->shape.hidden;
    const size_t experts = all_params(c) - common, own = experts / (size_t)t->ranks;
    double *sum = calloc(experts, sizeof(*sum)), *all = calloc(common, sizeof(*all));
    outcome_t o;
    int32_t r;
    size_t i;
    int m;

    trial_fill(t);
    run(t, &o);
    for (r = 0; r < t->ranks; r++) {
        memset(all, 0, common * sizeof(*all));
        for (m = 0; m < t->rounds; m++) {
            twin_t twin = twin_run(c, t->params, t->x[r][m], t->dy[r][m], m + r, t->placement);

            near(t, o.y[r][m], twin.y, boundary, "y");
            near(t, o.dx[r][m], twin.dx, boundary, "dx");
            near(t, &o.aux[r][m], &twin.aux, 1, "auxiliary loss");
            for (i = 0; i < common; i++)
                all[i] += twin.grads[i];
            for (i = 0; i < experts; i++)
                sum[i] += twin.grads[common + i];
            twin_free(&twin);
        }
        near_params(t, o.grads[r], all);
    }
    for (r = 0; r < t->ranks; r++)
        near(t, o.grads[r] + common, sum + (size_t)r * own, own, "gradient of experts");
    outcome_free(&o);
    trial_free(t);
    free(sum);
    free(all);
}

/* ---- tests ---- */

static const dp_dtype_t types[] = {DP_F64, DP_F32, DP_BF16};
static const char *const ways[] = {"grouped", "plain", "padded", "wgmma"};

/* Odd sizes: nothing is a multiple of anything. */
START_TEST(odd_sizes)
{
    static const uint32_t sizes[][6] = {
        /* T, d, E, k, f, shared */
        {1, 1, 1, 1, 1, 0},    {1, 3, 4, 2, 5, 1},    {7, 9, 4, 4, 3, 0},
        {37, 21, 8, 3, 13, 2}, {70, 11, 5, 2, 67, 0},
    };
    size_t i;

    for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const uint32_t *s = sizes[i];
        trial_t t = {.config = layer(types[_i % 3], s[0], s[1], s[2], s[3], s[4], s[5]),
                     .products = ways[_i / 3],
                     .ranks = 1};

        check(&t);
    }
}
END_TEST

/* Rows of whole vectors, products on tensor cores in bf16: several tiles and stages, and ends inside of them. */
START_TEST(even_sizes)
{
    static const uint32_t sizes[][6] = {
        {33, 16, 8, 2, 24, 1},
        {150, 72, 4, 2, 136, 0},
        {40, 136, 2, 1, 264, 1},
    };
    size_t i;

    for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const uint32_t *s = sizes[i];
        trial_t t = {.config = layer(types[_i % 3], s[0], s[1], s[2], s[3], s[4], s[5]),
                     .products = ways[_i / 3],
                     .ranks = 1};

        check(&t);
    }
}
END_TEST

/* Warpgroup products are for bf16 alone; one of the sizes does not fit them. */
START_TEST(warpgroup_products)
{
    static const uint32_t sizes[][6] = {
        {37, 21, 8, 3, 13, 2},
        {33, 16, 8, 2, 24, 1},
        {150, 72, 4, 2, 136, 0},
        {40, 136, 2, 1, 264, 1},
    };
    const uint32_t *s = sizes[_i];
    trial_t t = {.config = layer(DP_BF16, s[0], s[1], s[2], s[3], s[4], s[5]),
                 .products = "wgmma",
                 .ranks = 1 + _i % 2};

    check(&t);
}
END_TEST

START_TEST(several_ranks)
{
    trial_t t = {.config = layer(types[_i % 3], 19, 24, 8, 3, 16, 1),
                 .products = ways[_i / 6],
                 .ranks = _i / 3 % 2 == 0 ? 2 : 4,
                 .rounds = 2,
                 .order = _i / 3 % 2};

    check(&t);
}
END_TEST

/* Twice an even share is enough here; what is not there is not missed. */
START_TEST(less_room)
{
    trial_t t = {.config = layer(types[_i % 3], 64, 16, 8, 2, 8, 1),
                 .products = ways[_i / 3],
                 .ranks = 2,
                 .rounds = 2};

    t.config.capacity = 2;
    check(&t);
}
END_TEST

START_TEST(one_expert_takes_everything)
{
    trial_t t = {
        .config = layer(types[_i % 3], 21, 16, 8, 1, 16, 0), .products = ways[_i / 3], .ranks = 4, .hot = 1};

    check(&t);
}
END_TEST

START_TEST(every_expert_takes_everything)
{
    trial_t t = {.config = layer(types[_i % 3], 9, 16, 20, 20, 8, 0), .products = ways[_i / 3], .ranks = 2};

    check(&t);
}
END_TEST

START_TEST(replicated_experts)
{
    static int32_t placement[] = {2, 0, 1, 3, 0, 2, 4, 0};
    trial_t t = {
        .config = layer(types[_i], 29, 16, 5, 2, 8, 0), .ranks = 2, .rounds = 2, .placement = placement};

    t.config.replicas = 8;
    check(&t);
}
END_TEST

/* ---- bits ---- */

static void same(const double *a, const double *b, size_t count, const char *what)
{
    if (memcmp(a, b, count * sizeof(*a)) != 0)
        ck_abort_msg("%s: other bits", what);
}

/* R ranks come to the bits of one rank that takes their micro-batches one after the other. */
START_TEST(bits_do_not_depend_on_the_group)
{
    const dp_dtype_t dtype = _i < 6 ? types[_i % 3] : DP_BF16;
    trial_t t = {
        .config = layer(dtype, 37, 24, 4, 2, 16, 1), .ranks = 2, .products = _i < 6 ? ways[_i / 3] : "wgmma"};
    const size_t common = common_params(&t.config), boundary = (size_t)37 * 24;
    const size_t own = (all_params(&t.config) - common) / 2;
    outcome_t together, alone, half;
    trial_t one;
    int32_t r;

    trial_fill(&t);
    run(&t, &together);
    one = t;
    one.ranks = 1;
    one.rounds = 2;
    one.x[0][1] = t.x[1][0];
    one.dy[0][1] = t.dy[1][0];
    run(&one, &alone);
    for (r = 0; r < 2; r++) {
        same(alone.y[0][r], together.y[r][0], boundary, "y");
        same(alone.dx[0][r], together.dx[r][0], boundary, "dx");
        same(&alone.aux[0][r], &together.aux[r][0], 1, "auxiliary loss");
        same(alone.grads[0] + common + (size_t)r * own, together.grads[r] + common, own,
             "gradient of experts");
        one.rounds = 1;
        one.x[0][0] = t.x[r][0];
        one.dy[0][0] = t.dy[r][0];
        run(&one, &half);
        same(half.grads[0], together.grads[r], common, "gradient of what all ranks hold");
        outcome_free(&half);
    }
    outcome_free(&together);
    outcome_free(&alone);
    trial_free(&t);
}
END_TEST

/* Tensor cores and plain tiles round the same numbers in the same places; only the order of their sums differs. */
START_TEST(tensor_cores_are_plain_products)
{
    trial_t t = {.config = layer(DP_BF16, 290, 264, 2, 1, 136, 1),
                 .ranks = 1,
                 .products = _i == 0 ? "grouped" : "wgmma"};
    const size_t boundary = (size_t)290 * 264, count = all_params(&t.config);
    outcome_t tensor, plain;
    double most[3] = {0}, off[3] = {0};
    size_t i;

    trial_fill(&t);
    run(&t, &tensor);
    t.products = "plain";
    run(&t, &plain);
    for (i = 0; i < boundary; i++) {
        most[0] = fmax(most[0], fabs(plain.y[0][0][i]));
        off[0] = fmax(off[0], fabs(plain.y[0][0][i] - tensor.y[0][0][i]));
        most[1] = fmax(most[1], fabs(plain.dx[0][0][i]));
        off[1] = fmax(off[1], fabs(plain.dx[0][0][i] - tensor.dx[0][0][i]));
    }
    for (i = 0; i < count; i++) {
        most[2] = fmax(most[2], fabs(plain.grads[0][i]));
        off[2] = fmax(off[2], fabs(plain.grads[0][i] - tensor.grads[0][i]));
    }
    for (i = 0; i < 3; i++)
        ck_assert_msg(off[i] <= most[i] / 256, "%zu: off by %g of %g", i, off[i], most[i]);
    outcome_free(&tensor);
    outcome_free(&plain);
    trial_free(&t);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("moe_cuda");
    TCase *tc = tcase_create("against moe_cpu");

    gpu_or_skip("test_moe_cuda");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, odd_sizes, 0, 9);
    tcase_add_loop_test(tc, even_sizes, 0, 9);
    tcase_add_loop_test(tc, several_ranks, 0, 18);
    tcase_add_loop_test(tc, less_room, 0, 9);
    tcase_add_loop_test(tc, one_expert_takes_everything, 0, 9);
    tcase_add_loop_test(tc, every_expert_takes_everything, 0, 9);
    tcase_add_loop_test(tc, replicated_experts, 0, 3);
    tcase_add_loop_test(tc, warpgroup_products, 0, 4);
    tcase_add_loop_test(tc, tensor_cores_are_plain_products, 0, 2);
    suite_add_tcase(suite, tc);
    tc = tcase_create("bits");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, bits_do_not_depend_on_the_group, 0, 7);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
