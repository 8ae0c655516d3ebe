/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_engine_lengths.c: micro-batches of different length, their documents, and two tensors across
 * every boundary: a residual stream, and a skip from the first part to the last that the parts
 * between know nothing of. Losses and gradients are those of the formula, and have the same bits on
 * every schedule. The model is that of the example, which this file includes. */
#define main lengths_main
int lengths_main(int argc, char **argv);
#include "examples/lengths/lengths.c"
#undef main

#include "tests/support/suite.h"
#include "tests/support/thread_ranks.h"

static double weight_of[MODEL_PARTS];

/* ---- what the parts get ---- */

static dp_status_t checked_first(void *self, const dp_segment_call_t *c)
{
    if (c->boundary_bytes != (size_t)c->tokens * 2 * ROW)
        return dp_fail(DP_ERR_INVALID, "%u tokens in %zu bytes", c->tokens, c->boundary_bytes);
    return first_forward(self, c);
}

static dp_status_t checked_middle(void *self, const dp_segment_call_t *c)
{
    if (c->boundary_bytes != (size_t)c->tokens * ROW || c->documents != counts[c->microbatch])
        return dp_fail(DP_ERR_INVALID, "%u documents in %zu bytes", c->documents, c->boundary_bytes);
    return middle_forward(self, c);
}

static dp_status_t build_checked(rank_t *rank, int32_t stage, int32_t stages, dp_stage_t **stage_out)
{
    stages_t held = {.count = 0};

    (void)rank;
    return build(&held, NULL, stage, stages, stage_out);
}

/* ---- the formula ---- */

typedef struct result {
    double loss, losses[M], grads[MODEL_PARTS];
} result_t;

/* Of one micro-batch, added; scale: of the gradient of its loss. */
static void add_formula(int m, double scale, result_t *r)
{
    const uint32_t n = lengths[m];

    for (uint32_t i = 0; i < n * W; i++) {
        double x[MODEL_PARTS], skip = weight_of[0] * inputs[m][i], error, back;

        x[1] = skip;
        for (int l = 1; l <= MIDDLE; l++)
            x[l + 1] = weight_of[l] * x[l] + position(counts[m], ends[m], i / W);
        error = weight_of[MIDDLE + 1] * x[MIDDLE + 1] + skip - targets[m][i];
        r->losses[m] += error * error / n;
        back = 2 * scale / n * error;
        r->grads[0] += back * inputs[m][i];
        for (int l = MIDDLE + 1; l >= 1; back *= weight_of[l--])
            r->grads[l] += back * x[l];
        r->grads[0] += back * inputs[m][i];
    }
    r->loss += r->losses[m] * n / T;
}

/* ---- ranks ---- */

static result_t got;

static dp_status_t use(rank_t *rank, dp_pipeline_t *p)
{
    const void *in[M], *target[M];
    dp_documents_t documents[M];
    double losses[M];
    dp_step_t step = whole_step(in, target, documents, losses);
    dp_chunk_view_t view = {.struct_size = sizeof(view)};
    dp_status_t status = DP_OK;

    (void)rank;
    for (int32_t c = 0; c < dp_pipeline_chunks(p); c++)
        if (dp_pipeline_chunk(p, c, &view) == DP_OK)
            for (uint32_t i = 0; i < view.nparams; i++)
                ((double *)view.params)[view.param_list[i].offset] = weight_of[atoi(view.param_list[i].name)];
    /* what the first step left behind its tokens is of no consequence */
    for (int i = 0; i < 2 && status >= 0; i++)
        status = dp_pipeline_step(p, &step);
    for (int32_t c = 0; c < dp_pipeline_chunks(p) && status >= 0; c++)
        if (dp_pipeline_chunk(p, c, &view) == DP_OK)
            for (uint32_t i = 0; i < view.nparams; i++)
                if (dp_pipeline_counts(p, c, i)) /* one of those that hold it */
                    got.grads[atoi(view.param_list[i].name)] = ((const double *)view.grads)[view.param_list[i].offset];
    if (dp_group_rank(rank->options.group) == 0) {
        got.loss = step.loss;
        memcpy(got.losses, losses, sizeof(losses));
    }
    return status;
}

static void prepare(rank_t *rank, const char *method)
{
    rank_prepare(rank, method, M);
    rank->build = build_checked;
    rank->use = use;
    rank->options.tokens = T;
    rank->options.documents = DOCUMENTS;
    ck_assert_int_eq(dp_boundary_offsets(tensors, 2, T, NULL, &rank->options.boundary_bytes), DP_OK);
}

static result_t run(const char *method, int n)
{
    rank_t ranks[RANKS_MOST];

    memset(&got, 0, sizeof(got));
    for (int r = 0; r < n; r++)
        prepare(&ranks[r], method);
    ranks_run(ranks, n);
    for (int r = 0; r < n; r++)
        rank_expect(&ranks[r], r, DP_OK, NULL, 0);
    return got;
}

static void fill(void)
{
    fill_data();
    segments[0].host_forward = checked_first;
    segments[1].host_forward = checked_middle;
    for (int l = 0; l < MODEL_PARTS; l++)
        weight_of[l] = 0.5 + 0.1 * l;
}

static void expect_near(double value, double wanted, const char *what, int i)
{
    ck_assert_msg(fabs(value - wanted) <= 1e-13 * (1 + fabs(wanted)), "%s %d is %.17g, by the formula %.17g", what, i,
                  value, wanted);
}

START_TEST(losses_and_gradients_are_those_of_the_formula_on_every_schedule)
{
    static const struct {
        const char *method;
        int ranks;
    } layouts[] = {{"dualpipe", 2}, {"dualpipe", 4}, {"dualpipev", 2}, {"1f1b", 4}, {"zb1p", 4}, {"zbv", 2}};
    result_t wanted = {0}, serial;

    fill();
    for (int m = 0; m < M; m++)
        add_formula(m, 1.0 / M * lengths[m] / T, &wanted);
    serial = run("1f1b", 1);
    expect_near(serial.loss, wanted.loss, "the loss", 0);
    for (int m = 0; m < M; m++)
        expect_near(serial.losses[m], wanted.losses[m], "the loss of micro-batch", m);
    for (int l = 0; l < MODEL_PARTS; l++)
        expect_near(serial.grads[l], wanted.grads[l], "gradient", l);
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        const result_t other = run(layouts[i].method, layouts[i].ranks);

        ck_assert_msg(memcmp(&other, &serial, sizeof(serial)) == 0, "%s on %d ranks has other bits than one rank",
                      layouts[i].method, layouts[i].ranks);
    }
}
END_TEST

START_TEST(guarded_calls_know_the_length)
{
    fill();
    setenv("DUALPIPE_GUARD", "1", 1);
    run("dualpipe", 2);
}
END_TEST

/* ---- what is refused ---- */

/* By the case of use_wrong. */
static const char *const refusals[] = {"has 7 tokens",           "has 0 tokens",     "ends must rise",
                                       "its documents end with", "was opened for 3", "no ends"};

static dp_status_t use_wrong(rank_t *rank, dp_pipeline_t *p)
{
    static const uint32_t sinking[] = {3, 3, 6};
    uint32_t tokens[M];
    const void *in[M], *target[M];
    dp_documents_t documents[M];
    dp_step_t step = whole_step(in, target, documents, NULL);

    memcpy(tokens, lengths, sizeof(tokens));
    step.tokens = tokens;
    switch (rank->argument) {
    case 0:
        tokens[2] = 7;
        break;
    case 1:
        tokens[2] = 0;
        break;
    case 2:
        documents[0].ends = sinking;
        break;
    case 3:
        tokens[0] = 5;
        break;
    case 4:
        documents[0].count = 4;
        break;
    default:
        documents[0].ends = NULL;
        break;
    }
    return dp_pipeline_step(p, &step);
}

START_TEST(a_step_that_makes_no_sense_is_refused)
{
    rank_t rank;

    prepare(&rank, "1f1b");
    rank.use = use_wrong;
    rank.argument = _i;
    ranks_run(&rank, 1);
    rank_expect(&rank, 0, DP_ERR_INVALID, &refusals[_i], 1);
}
END_TEST

START_TEST(options_that_make_no_sense_are_refused)
{
    static const char *const words[] = {"no multiple of tokens", "say how many tokens", "at most as many",
                                        "captured step"};

    for (int i = 0; i < 4; i++) {
        rank_t rank;

        prepare(&rank, "1f1b");
        rank.options.boundary_bytes += i == 0 ? 8 : 0;
        rank.options.tokens = i == 1 ? 0 : T;
        rank.options.documents = i == 2 ? T + 1 : DOCUMENTS;
        rank.options.graph = i == 3;
        ranks_run(&rank, 1);
        rank_expect(&rank, 0, i == 3 ? DP_ERR_UNSUPPORTED : DP_ERR_INVALID, &words[i], 1);
    }
}
END_TEST

static dp_status_t use_without(rank_t *rank, dp_pipeline_t *p)
{
    const void *in[M], *target[M];
    dp_documents_t documents[M];
    dp_step_t step = whole_step(in, target, documents, NULL);

    (void)rank;
    return dp_pipeline_step(p, &step);
}

START_TEST(a_pipeline_without_lengths_refuses_them)
{
    static const char *const words[] = {"dp_step_t.tokens", "opened without tokens"};
    rank_t rank;

    prepare(&rank, "1f1b");
    rank.options.tokens = rank.options.documents = 0;
    rank.use = use_without;
    ranks_run(&rank, 1);
    rank_expect(&rank, 0, DP_ERR_INVALID, words, 2);
}
END_TEST

static dp_status_t use_other_lengths(rank_t *rank, dp_pipeline_t *p)
{
    uint32_t tokens[M];
    const void *in[M], *target[M];
    dp_documents_t documents[M];
    dp_step_t step = whole_step(in, target, documents, NULL);

    memcpy(tokens, lengths, sizeof(tokens));
    tokens[2] -= (uint32_t)dp_group_rank(rank->options.group);
    step.tokens = tokens;
    return dp_pipeline_step(p, &step);
}

START_TEST(ranks_that_differ_in_a_length_find_out)
{
    static const char *const words[] = {"rank 0 has 33 tokens in 12 documents", "rank 1 has 32 tokens in 12 documents"};
    rank_t ranks[2];

    for (int r = 0; r < 2; r++) {
        prepare(&ranks[r], "1f1b");
        ranks[r].use = use_other_lengths;
    }
    ranks_run(ranks, 2);
    for (int r = 0; r < 2; r++)
        rank_expect(&ranks[r], r, DP_ERR_MISMATCH, words, 2);
}
END_TEST

START_TEST(rows_of_boundary_tensors_are_multiples_of_16_bytes)
{
    static const dp_boundary_tensor_t odd[] = {{"stream", DP_F64, 2}, {"skip", DP_F32, 3}};
    size_t bytes = 7;

    ck_assert_int_eq(dp_boundary_offsets(odd, 2, 4, NULL, &bytes), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "tensor 1 (skip)"));
    ck_assert_uint_eq(bytes, 7);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/lengths");
    TCase *cases = tcase_create("lengths");

    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, losses_and_gradients_are_those_of_the_formula_on_every_schedule);
    tcase_add_test(cases, guarded_calls_know_the_length);
    tcase_add_loop_test(cases, a_step_that_makes_no_sense_is_refused, 0, sizeof(refusals) / sizeof(refusals[0]));
    tcase_add_test(cases, options_that_make_no_sense_are_refused);
    tcase_add_test(cases, a_pipeline_without_lengths_refuses_them);
    tcase_add_test(cases, ranks_that_differ_in_a_length_find_out);
    tcase_add_test(cases, rows_of_boundary_tensors_are_multiples_of_16_bytes);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
