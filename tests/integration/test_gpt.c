/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_gpt.c: a small GPT-2 whose head is its embedding trains, on every placement, with the bits
 * of the same functions run one after the other in one process; its checkpoints have a shared
 * parameter once. Rounds of gradients that are added up for one update. */
#include "tests/support/files.h"
#include "tests/support/small_gpt.h"
#include "tests/support/suite.h"
#include "tests/support/thread_ranks.h"

#include <dualpipe/checkpoint.h>
#include <dualpipe/state.h>
#include <stdbool.h>

enum { M = 8, STEPS = 3, MOST_REPLICAS = 4, MOST_ROUNDS = 3 };
#define RATE 0.5 /* of the plain descent that updates parameters */

typedef struct layout {
    const char *method;
    int pp, ep, dp;
} layout_t;

static const layout_t layouts[] = {
    {"1f1b", 1, 1, 1},     {"1f1b", 2, 1, 1},        {"1f1b", 4, 1, 1},      {"zb1p", 4, 1, 1},
    {"gpipe", 2, 1, 1},    {"interleaved", 2, 1, 1}, {"zbv", 2, 1, 1},       {"dualpipe", 2, 1, 1},
    {"dualpipe", 4, 1, 1}, {"dualpipev", 1, 1, 1},   {"dualpipev", 2, 1, 1}, {"dualpipev", 4, 1, 1},
    {"1f1b", 2, 1, 2},     {"zb1p", 4, 1, 2},        {"dualpipe", 4, 1, 2},  {"dualpipev", 2, 1, 2},
    {"1f1b", 4, 2, 1},     {"zb1p", 2, 2, 1},        {"dualpipe", 2, 2, 1},  {"dualpipev", 4, 2, 1},
    {"1f1b", 2, 2, 2},     {"zb1p", 2, 2, 2},        {"dualpipe", 2, 2, 2},  {"dualpipev", 2, 2, 2},
};
enum { LAYOUTS = sizeof(layouts) / sizeof(layouts[0]) };

/* What the serial run of 1, 2 and 4 replicas comes to. */
typedef struct expected {
    gpt_values_t grads[STEPS], params[STEPS + 1];
    double losses[STEPS][MOST_REPLICAS * MOST_ROUNDS * M];
} expected_t;

static expected_t expected[MOST_REPLICAS + 1];
static const layout_t *layout;
static int rounds = 1;                  /* of a step */
static int first_step, end_step;        /* that the ranks take */
static const char *load_from, *save_to; /* NULL: neither */
/* of the lists that a stage is built from; NULL: none */
static void (*change)(int part, dp_param_t *list);
/* a comm backend, behind the first step; NULL: none */
static const char *swap_to;
/* by rank: how often it counts an element */
static double counted[RANKS_MOST][GPT_PARTS][GPT_MOST];

static void run_serially(void)
{
    for (int replicas = 1; replicas <= MOST_REPLICAS; replicas *= 2) {
        expected_t *x = &expected[replicas];

        gpt_initialise(&x->params[0]);
        for (int step = 0; step < STEPS; step++) {
            gpt_serial_steps(&x->params[step], step * rounds, rounds, replicas, M, &x->grads[step], x->losses[step]);
            for (int i = 0; i < GPT_PARTS * GPT_MOST; i++)
                x->params[step + 1].at[i] = x->params[step].at[i] - RATE * x->grads[step].at[i];
        }
    }
}

static expected_t *due(void)
{
    return &expected[layout->ep * layout->dp];
}

static dp_status_t build(rank_t *rank, int32_t stage, int32_t stages, dp_stage_t **stage_out)
{
    (void)rank;
    return gpt_stage(stage, stages, change, stage_out);
}

static void prepare(rank_t *ranks, int n)
{
    for (int r = 0; r < n; r++) {
        rank_prepare(&ranks[r], layout->method, M);
        ranks[r].options.boundary_bytes = GPT_TENSOR * sizeof(double);
        ranks[r].options.ep = layout->ep;
        ranks[r].options.dp = layout->dp;
        ranks[r].build = build;
    }
}

/* ---- what a rank does ---- */

typedef void (*each_fn)(const dp_chunk_view_t *view, const dp_param_t *param, const double *due, double *own);

/* Calls for each parameter of this rank with its place in `values` and in the chunk's parameters or
 * gradients. */
static void each(dp_pipeline_t *p, const gpt_values_t *values, bool grads, each_fn call)
{
    for (int32_t c = 0; c < dp_pipeline_chunks(p); c++) {
        dp_chunk_view_t view = {.struct_size = sizeof(view)};

        ck_assert_int_eq(dp_pipeline_chunk(p, c, &view), DP_OK);
        for (uint32_t i = 0; i < view.nparams; i++) {
            const dp_param_t *param = &view.param_list[i];
            double *memory = grads ? (double *)(uintptr_t)view.grads : view.params;
            size_t offset;
            const int part = gpt_find(param, &offset);

            call(&view, param, values->at + gpt_begin(part) + offset, memory + param->offset);
        }
    }
}

static void take(const dp_chunk_view_t *view, const dp_param_t *param, const double *from, double *own)
{
    (void)view;
    memcpy(own, from, param->count * sizeof(*own));
}

static void hold(const dp_chunk_view_t *view, const dp_param_t *param, const double *wanted, double *own)
{
    for (size_t i = 0; i < param->count; i++)
        ck_assert_msg(memcmp(&own[i], &wanted[i], sizeof(*own)) == 0,
                      "%s pp %d ep %d dp %d, stage %d, %s[%zu]: %a, serially %a", layout->method, layout->pp,
                      layout->ep, layout->dp, view->stage, param->name, i, own[i], wanted[i]);
}

static void descend(const dp_chunk_view_t *view, const dp_param_t *param, const double *wanted, double *own)
{
    const double *grads = (const double *)view->grads + param->offset;

    (void)wanted;
    for (size_t i = 0; i < param->count; i++)
        own[i] -= RATE * grads[i];
}

static dp_status_t take_round(const rank_t *rank, dp_pipeline_t *p, int number, int round)
{
    static _Thread_local int tokens[M][GPT_T], targets[M][GPT_T];
    const int replica = dp_group_rank(rank->options.group) / layout->pp;
    const void *in[M], *target[M];
    double losses[M];
    dp_step_t step = {.struct_size = sizeof(step),
                      .inputs = in,
                      .targets = target,
                      .losses = losses,
                      .round = round,
                      .rounds = rounds > 1 ? rounds : 0};
    const double *wanted = &due()->losses[number][(replica * rounds + round) * M];
    dp_status_t status;

    for (int i = 0; i < M; i++) {
        gpt_data((unsigned)(number * rounds + round), (unsigned)replica, (unsigned)i, tokens[i], targets[i]);
        in[i] = tokens[i], target[i] = targets[i];
    }
    status = dp_pipeline_step(p, &step);
    for (int i = 0; i < M && status >= 0; i++)
        ck_assert_msg(memcmp(&losses[i], &wanted[i], sizeof(double)) == 0,
                      "%s pp %d ep %d dp %d, step %d, loss of micro-batch %d: %a, serially %a", layout->method,
                      layout->pp, layout->ep, layout->dp, number, i, losses[i], wanted[i]);
    return status;
}

static dp_status_t take_step(const rank_t *rank, dp_pipeline_t *p, int number)
{
    dp_status_t status = DP_OK;

    for (int round = 0; round < rounds && status >= 0; round++)
        status = take_round(rank, p, number, round);
    return status;
}

static long double squared(double x)
{
    return (long double)x * x;
}

/* Each parameter once, a shared one too. */
static double norm_due(const gpt_values_t *grads)
{
    long double sum = 0;
    int other;

    for (int part = 0; part < GPT_PARTS; part++) {
        uint32_t n;
        const dp_param_t *list = gpt_params_of(part, &n);

        for (uint32_t i = 0; i < n; i++)
            for (size_t k = 0; k < list[i].count; k++)
                if (gpt_other_end(part, &list[i], &other) == NULL || other > part)
                    sum += squared(grads->at[gpt_begin(part) + list[i].offset + k]);
    }
    return (double)sqrtl(sum);
}

static void note_counted(rank_t *rank, dp_pipeline_t *p)
{
    for (int32_t c = 0; c < dp_pipeline_chunks(p); c++) {
        dp_chunk_view_t view = {.struct_size = sizeof(view)};

        ck_assert_int_eq(dp_pipeline_chunk(p, c, &view), DP_OK);
        for (uint32_t i = 0; i < view.nparams; i++) {
            size_t offset;
            const int part = gpt_find(&view.param_list[i], &offset);

            counted[dp_group_rank(rank->options.group)][part][offset] += dp_pipeline_counts(p, c, i);
        }
        ck_assert_int_eq(dp_pipeline_counts(p, c, view.nparams), 0);
    }
    ck_assert_int_eq(dp_pipeline_counts(p, dp_pipeline_chunks(p), 0), 0);
    ck_assert_int_eq(dp_pipeline_counts(p, -1, 0), 0);
}

static dp_status_t train(rank_t *rank, dp_pipeline_t *p)
{
    const dp_save_options_t saving = {.struct_size = sizeof(saving), .folder = save_to};
    dp_status_t status = DP_OK;
    uint64_t saved = 0;

    each(p, &due()->params[0], false, take);
    if (load_from != NULL)
        status = dp_pipeline_load(p, load_from, &saved);
    if (status >= 0)
        ck_assert_int_eq((int)saved, first_step);
    for (int step = first_step; step < end_step && status >= 0; step++) {
        double norm;

        status = take_step(rank, p, step);
        if (status < 0)
            return status;
        each(p, &due()->grads[step], true, hold);
        status = dp_pipeline_gradient_norm(p, &norm);
        ck_assert(status < 0 || fabs(norm / norm_due(&due()->grads[step]) - 1) < 1e-14);
        each(p, &due()->grads[step], false, descend);
        each(p, &due()->params[step + 1], false, hold);
        if (status >= 0 && swap_to != NULL && step == 0)
            status = dp_pipeline_swap_comm(p, swap_to);
    }
    if (status >= 0 && save_to != NULL) {
        status = dp_pipeline_save_open(p, &saving);
        if (status >= 0)
            status = dp_pipeline_save(p, (uint64_t)end_step);
        if (status >= 0)
            status = dp_pipeline_save_wait(p);
    }
    note_counted(rank, p);
    return status;
}

/* ---- */

static void run(int first, int end)
{
    const int n = layout->pp * layout->ep * layout->dp;
    rank_t ranks[RANKS_MOST];

    first_step = first;
    end_step = end;
    memset(counted, 0, sizeof(counted));
    prepare(ranks, n);
    for (int r = 0; r < n; r++)
        ranks[r].use = train;
    ranks_run(ranks, n);
    for (int r = 0; r < n; r++)
        rank_expect(&ranks[r], r, DP_OK, NULL, 0);
}

START_TEST(a_tied_model_trains_as_in_one_process)
{
    run_serially();
    layout = &layouts[_i];
    run(0, STEPS);
    for (int part = 0; part < GPT_PARTS; part++) {
        uint32_t nparams;
        const dp_param_t *list = gpt_params_of(part, &nparams), *end;
        int other;

        for (uint32_t i = 0; i < nparams; i++) {
            double times = 0;

            for (int r = 0; r < RANKS_MOST; r++)
                times += counted[r][part][list[i].offset];
            end = gpt_other_end(part, &list[i], &other);
            ck_assert_msg(times == (end == NULL || other > part), "part %d %s is counted %g times", part, list[i].name,
                          times);
        }
    }
}
END_TEST

/* Matched transfers run another list, and swapping the backend opens the groups of ties anew. */
START_TEST(ties_go_over_any_backend)
{
    static const layout_t lines[] = {{"1f1b", 4, 1, 1}, {"dualpipe", 4, 1, 2}};
    char mock[512];

    snprintf(mock, sizeof(mock), "%s/mock_comm_groups.so", getenv("DP_TEST_MOCKS"));
    run_serially();
    swap_to = mock;
    for (int i = 0; i < 2; i++) {
        layout = &lines[i];
        run(0, STEPS);
    }
    swap_to = NULL;
}
END_TEST

START_TEST(a_checkpoint_has_a_shared_parameter_once)
{
    static const layout_t line = {"1f1b", 4, 1, 1}, both = {"dualpipe", 4, 1, 1}, v = {"dualpipev", 2, 1, 1};
    const layout_t *order[] = {&line, &both, &v};
    char folder[PATH_BYTES];
    dp_checkpoint_t *checkpoint;

    files_folder(folder);
    run_serially();
    for (int i = 0; i < 3; i++) {
        layout = order[i];
        load_from = i > 0 ? folder : NULL;
        save_to = folder;
        run(i, i + 1);
        ck_assert_int_eq(dp_checkpoint_open(folder, (uint64_t)i + 1, &checkpoint), DP_OK);
        /* 2 of the embedding, 6 a layer, 2 of the head, less the second end of two */
        ck_assert_uint_eq(dp_checkpoint_count(checkpoint), 2 + 6 * GPT_LAYERS + 2 - 2);
        ck_assert_int_ge(dp_checkpoint_find(checkpoint, "wte"), 0);
        ck_assert_int_ge(dp_checkpoint_find(checkpoint, "mlp"), 0);
        ck_assert_int_lt(dp_checkpoint_find(checkpoint, "head.wte"), 0);
        dp_checkpoint_close(checkpoint);
    }
    load_from = save_to = NULL;
    files_remove(folder);
}
END_TEST

START_TEST(rounds_add_up)
{
    static const layout_t places[] = {
        {"1f1b", 1, 1, 1}, {"zb1p", 4, 1, 1}, {"dualpipe", 4, 1, 1}, {"dualpipev", 2, 2, 1}, {"dualpipe", 2, 1, 2}};

    for (rounds = 2; rounds <= MOST_ROUNDS; rounds++) {
        run_serially();
        for (int i = 0; i < 5; i++) {
            layout = &places[i];
            run(0, STEPS);
        }
    }
    rounds = 1;
}
END_TEST

/* A step whose gradients nobody has asked for yet may be given up, and forward-only steps lie where
 * they like. */
static dp_status_t give_up_a_round(rank_t *rank, dp_pipeline_t *p)
{
    dp_status_t status;
    double norm;

    each(p, &due()->params[0], false, take);
    status = take_round(rank, p, 0, 0);
    ck_assert_int_eq(dp_pipeline_gradient_norm(p, &norm), DP_ERR_INVALID);
    if (status >= 0)
        status = take_step(rank, p, 0);
    if (status >= 0)
        each(p, &due()->grads[0], true, hold);
    return status;
}

static dp_status_t skip_a_round(rank_t *rank, dp_pipeline_t *p)
{
    dp_status_t status;

    each(p, &due()->params[0], false, take);
    status = take_round(rank, p, 0, 0);
    return status < 0 ? status : take_round(rank, p, 0, 2);
}

static dp_status_t take_one_too_many(rank_t *rank, dp_pipeline_t *p)
{
    each(p, &due()->params[0], false, take);
    return take_round(rank, p, 0, 3);
}

START_TEST(rounds_come_in_order)
{
    static const layout_t place = {"dualpipe", 2, 1, 1};
    static const struct {
        dp_status_t (*use)(rank_t *rank, dp_pipeline_t *p);
        dp_status_t status;
        const char *word;
    } cases[] = {{give_up_a_round, DP_OK, ""},
                 {skip_a_round, DP_ERR_INVALID, "round is 2 of 3 rounds: 1 of 3 is next"},
                 {take_one_too_many, DP_ERR_INVALID, "round is 3 of 3 rounds"}};

    rounds = 3;
    run_serially();
    layout = &place;
    for (int i = 0; i < 3; i++) {
        rank_t ranks[2];

        prepare(ranks, 2);
        ranks[0].use = ranks[1].use = cases[i].use;
        ranks_run(ranks, 2);
        rank_expect(&ranks[0], 0, cases[i].status, &cases[i].word, 1);
        rank_expect(&ranks[1], 1, cases[i].status, &cases[i].word, 1);
    }
    rounds = 1;
}
END_TEST

static void tied_one_last(int part, dp_param_t *list)
{
    const dp_param_t tied = list[4];

    if (part > 0 && part < GPT_PARTS - 1)
        list[4] = list[5], list[5] = tied;
}

/* It lies between others, whose sums leave it alone. */
START_TEST(parameters_are_listed_in_any_order)
{
    static const layout_t places[] = {{"1f1b", 2, 1, 2}, {"dualpipe", 2, 1, 2}, {"dualpipev", 1, 2, 1}};

    run_serially();
    change = tied_one_last;
    for (int i = 0; i < 3; i++) {
        layout = &places[i];
        run(0, STEPS);
    }
    change = NULL;
}
END_TEST

/* The timeline has the latest steps in the order in which they were taken, whatever their
 * numbers. */
static dp_status_t number_steps(rank_t *rank, dp_pipeline_t *p)
{
    static const int32_t latest[] = {1000, 1001, 4};
    dp_timeline_t *timeline;
    const dp_span_t *spans;
    int64_t n;
    int seen = 0;
    dp_status_t status;

    each(p, &due()->params[0], false, take);
    status = take_step(rank, p, 0);
    ck_assert_uint_eq(gpt_latest_step, 0);
    if (status >= 0)
        status = dp_pipeline_set_step(p, 1000);
    if (status >= 0)
        status = take_step(rank, p, 0);
    ck_assert_uint_eq(gpt_latest_step, 1000);
    if (status >= 0)
        status = take_step(rank, p, 0);
    ck_assert_uint_eq(gpt_latest_step, 1001);
    ck_assert_int_eq(dp_pipeline_set_step(NULL, 1), DP_ERR_INVALID);
    if (status >= 0)
        status = dp_pipeline_set_step(p, 4);
    if (status >= 0)
        status = take_step(rank, p, 0);
    if (status >= 0)
        status = dp_pipeline_timeline(p, &timeline);
    if (status < 0)
        return status;
    spans = dp_timeline_spans(timeline, 0, &n);
    for (int64_t i = 0; i < n; i++)
        if (spans[i].kind == DP_SPAN_STEP) {
            ck_assert_int_lt(seen, 3);
            ck_assert_int_eq(spans[i].step, latest[seen++]);
        }
    ck_assert_int_eq(seen, 3);
    dp_timeline_free(timeline);
    return status;
}

START_TEST(a_step_may_start_at_any_number)
{
    static const layout_t place = {"dualpipev", 1, 1, 1};
    rank_t rank;

    run_serially();
    layout = &place;
    prepare(&rank, 1);
    rank.options.trace_steps = 3;
    rank.use = number_steps;
    ranks_run(&rank, 1);
    rank_expect(&rank, 0, DP_OK, NULL, 0);
}
END_TEST

/* ---- what is refused ---- */

static dp_status_t begin_apart(rank_t *rank, dp_pipeline_t *p)
{
    each(p, &due()->params[0], false, take);
    if (dp_group_rank(rank->options.group) == 0) {
        dp_chunk_view_t view = {.struct_size = sizeof(view)};

        ck_assert_int_eq(dp_pipeline_chunk(p, 0, &view), DP_OK);
        ((double *)view.params)[view.param_list[0].offset + 3] += 1e-15;
    }
    return take_step(rank, p, 0);
}

START_TEST(ends_that_begin_apart_are_refused)
{
    static const layout_t places[] = {{"1f1b", 2, 1, 1}, {"dualpipev", 2, 1, 1}};
    static const char *const words[] = {"stages 0 and ", "share as wte", "other values"};
    rank_t ranks[2];

    run_serially();
    for (int i = 0; i < 2; i++) {
        layout = &places[i];
        prepare(ranks, 2);
        ranks[0].use = ranks[1].use = begin_apart;
        ranks_run(ranks, 2);
        rank_expect(&ranks[0], 0, DP_ERR_MISMATCH, words, 3);
        rank_expect(&ranks[1], 1, DP_ERR_MISMATCH, words, 3);
    }
}
END_TEST

static void alone(int part, dp_param_t *list)
{
    if (part == 3)
        list[0].shared = "lonely";
}
static void third(int part, dp_param_t *list)
{
    if (part == 2)
        list[4].shared = "mlp";
}
static void shorter(int part, dp_param_t *list)
{
    if (part == 4)
        list[4].count--;
}
static void other_kind(int part, dp_param_t *list)
{
    if (part == 4)
        list[4].kind = DP_PARAM_VECTOR;
}
static void of_an_expert(int part, dp_param_t *list)
{
    if (part == 1)
        list[4].sharded = 1;
}
static void without_letters(int part, dp_param_t *list)
{
    if (part == 1)
        list[4].shared = "";
}
static void too_many(int part, dp_param_t *list)
{
    static char names[GPT_PARTS][6][8];

    for (int i = 0; i < 6 && part > 0 && part < GPT_PARTS - 1; i++) {
        snprintf(names[part][i], sizeof(names[part][i]), "s%d.%d", (part - 1) / 2, i);
        list[i].shared = names[part][i];
    }
}

START_TEST(what_cannot_be_shared)
{
    static const struct {
        void (*change)(int part, dp_param_t *list);
        dp_status_t status;
        const char *words[2];
    } cases[] = {
        {alone, DP_ERR_INVALID, {"stage 1 ", "lonely, which no other has"}},
        {third, DP_ERR_UNSUPPORTED, {"three tensors share the name mlp", "two at most"}},
        {shorter, DP_ERR_INVALID, {"share the name mlp", "60 elements of kind 0, 59 of kind 0"}},
        {other_kind, DP_ERR_INVALID, {"share the name mlp", "60 elements of kind 0, 60 of kind 1"}},
        {of_an_expert, DP_ERR_UNSUPPORTED, {"part 1 parameter w1", "parameters of experts"}},
        {without_letters, DP_ERR_INVALID, {"part 1 parameter w1", "1 to 63"}},
        {too_many, DP_ERR_UNSUPPORTED, {"more than", "shared parameters"}},
    };
    static const layout_t line = {"1f1b", 4, 1, 1};
    rank_t ranks[4];

    layout = &line;
    change = cases[_i].change;
    prepare(ranks, 4);
    ranks_run(ranks, 4);
    change = NULL;
    for (int r = 0; r < 4; r++)
        rank_expect(&ranks[r], r, cases[_i].status, cases[_i].words, 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpt");
    TCase *bits = tcase_create("bits"), *refusals = tcase_create("refusals");

    tcase_add_loop_test(bits, a_tied_model_trains_as_in_one_process, 0, LAYOUTS);
    suite_add_tcase(suite, bits);
    SUITE_ADD(suite, ties_go_over_any_backend);
    SUITE_ADD(suite, a_checkpoint_has_a_shared_parameter_once);
    SUITE_ADD(suite, parameters_are_listed_in_any_order);
    SUITE_ADD(suite, rounds_add_up);
    SUITE_ADD(suite, rounds_come_in_order);
    SUITE_ADD(suite, a_step_may_start_at_any_number);
    SUITE_ADD(suite, ends_that_begin_apart_are_refused);
    tcase_add_loop_test(refusals, what_cannot_be_shared, 0, 7);
    suite_add_tcase(suite, refusals);
    return suite_run(suite);
}
