/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_engine_sums.c: what is summed over a whole job, with data and expert groups: the default
 * scale of the loss, which rank counts a parameter, the norm of the gradient, shards (zero). Held
 * against the serial runs of all pipelines. */
#include "tests/support/suite.h"
#include "tests/support/thread_ranks.h"

#include <math.h>
#include <stdbool.h>
#include <unistd.h>

enum { M = 8, MOST_REPLICAS = 4 };

typedef struct layout {
    const char *method;
    int pp, ep, dp;
} layout_t;

static const layout_t layouts[] = {
    {"1f1b", 1, 1, 1},      {"1f1b", 4, 1, 1},      {"dualpipe", 2, 1, 1}, {"dualpipe", 4, 1, 1},
    {"dualpipev", 2, 1, 1}, {"zb1p", 4, 1, 1},      {"1f1b", 1, 1, 2},     {"1f1b", 2, 1, 2},
    {"dualpipe", 2, 1, 2},  {"dualpipev", 4, 1, 2}, {"1f1b", 2, 2, 1},     {"dualpipe", 4, 2, 1},
    {"1f1b", 1, 2, 2},      {"1f1b", 2, 2, 2},      {"dualpipe", 2, 2, 2}, {"dualpipev", 2, 2, 2}};
enum { LAYOUTS = sizeof(layouts) / sizeof(layouts[0]) };

static const layout_t *layout;
static residual_reference_t references[MOST_REPLICAS]; /* of replica d * ep + e */
static double norms[RANKS_MOST];

static dp_status_t step_replica(const rank_t *rank, dp_pipeline_t *p, double loss_scale, double target_shift)
{
    static _Thread_local double tensors[2][M][TENSOR];
    const unsigned replica = (unsigned)(dp_group_rank(rank->options.group) / layout->pp);
    const void *in[M], *target[M];
    dp_step_t step = {.struct_size = sizeof(step), .inputs = in, .targets = target, .loss_scale = loss_scale};

    for (unsigned i = 0; i < M; i++) {
        residual_tensor(tensors[0][i], 1, replica, i);
        residual_tensor(tensors[1][i], 2, replica, i);
        tensors[1][i][0] += target_shift;
        in[i] = tensors[0][i], target[i] = tensors[1][i];
    }
    return dp_pipeline_step(p, &step);
}

static void fill_params(dp_pipeline_t *p, const dp_chunk_view_t *view)
{
    (void)p;
    for (uint32_t i = 0; i < view->nparams; i++) {
        double all[LAYER_PARAMS];

        residual_params(all, view->stage * (LAYERS / view->stages) + (int)i / 2, 1);
        memcpy((double *)view->params + view->param_list[i].offset, all + i % 2 * WEIGHTS, WEIGHTS * sizeof(double));
    }
}

/* The gradient of weight w of parameter i (w1, w2) of a layer on a rank of expert group e. */
static double due(int layer, int i, int w, int e)
{
    const int at = layer * LAYER_PARAMS + i * WEIGHTS + w;
    double sum = 0;
    bool first = true;

    for (int d = 0; d < layout->dp; d++)
        for (int of = 0; of < layout->ep; of++) {
            const residual_reference_t *ref = &references[d * layout->ep + of];
            const double one = ref->grads[0][at] + ref->grads[1][at];

            if (i == 1 && of != e)
                continue; /* w2 is an expert's */
            sum = first ? one : sum + one;
            first = false;
        }
    return sum;
}

/* Each parameter once: what is the same everywhere, and that of each rank of an expert group. */
static double due_norm(void)
{
    long double sum = 0;

    for (int layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i < 2; i++)
            for (int e = 0; e < (i == 1 ? layout->ep : 1); e++) {
                double one = 0;

                for (int w = 0; w < WEIGHTS; w++)
                    one += due(layer, i, w, e) * due(layer, i, w, e);
                sum += (long double)one;
            }
    return sqrt((double)sum);
}

static dp_status_t check_sums(rank_t *rank, dp_pipeline_t *p)
{
    const int e = dp_group_rank(rank->options.group) / layout->pp % layout->ep;
    dp_chunk_view_t view = {.struct_size = sizeof(view)};
    double counted[2] = {0, 0};
    dp_status_t status = DP_OK;

    for (int32_t c = 0; c < dp_pipeline_chunks(p); c++)
        if (dp_pipeline_chunk(p, c, &view) == DP_OK)
            fill_params(p, &view);
    status = step_replica(rank, p, 0, 0); /* the default scale */
    for (int32_t c = 0; c < dp_pipeline_chunks(p) && status == DP_OK; c++) {
        status = dp_pipeline_chunk(p, c, &view);
        for (uint32_t i = 0; i < view.nparams; i++) {
            const double *got = (const double *)view.grads + view.param_list[i].offset;
            const int layer = view.stage * (LAYERS / view.stages) + (int)i / 2;

            for (int w = 0; w < WEIGHTS; w++)
                if (got[w] != due(layer, (int)i % 2, w, e))
                    return dp_fail(DP_ERR_NUMERIC, "layer %d %s: %a, serial %a", layer, view.param_list[i].name, got[w],
                                   due(layer, (int)i % 2, w, e));
            if (view.param_list[i].sharded ? view.primary_experts : view.primary)
                counted[i % 2] += (double)view.param_list[i].count;
        }
    }
    if (status == DP_OK)
        status = dp_pipeline_sum(p, counted, 2);
    if (status == DP_OK && (counted[0] != LAYERS * WEIGHTS || counted[1] != LAYERS * WEIGHTS * layout->ep))
        return dp_fail(DP_ERR_NUMERIC, "%g and %g parameters were counted", counted[0], counted[1]);
    return status < 0 ? status : dp_pipeline_gradient_norm(p, &norms[dp_group_rank(rank->options.group)]);
}

static int prepare(rank_t *ranks)
{
    const int n = layout->pp * layout->ep * layout->dp;

    for (int r = 0; r < layout->ep * layout->dp; r++)
        residual_reference(&references[r], (unsigned)r, M, 1.0 / (M * layout->ep * layout->dp));
    for (int r = 0; r < n; r++) {
        rank_prepare(&ranks[r], layout->method, M);
        ranks[r].options.ep = layout->ep;
        ranks[r].options.dp = layout->dp;
        ranks[r].part.shard = 1;
        ranks[r].use = check_sums;
    }
    return n;
}

START_TEST(every_parameter_counts_once)
{
    rank_t ranks[RANKS_MOST];
    int n;

    layout = &layouts[_i];
    n = prepare(ranks);
    ranks_run(ranks, n);
    for (int r = 0; r < n; r++) {
        rank_expect(&ranks[r], r, DP_OK, NULL, 0);
        ck_assert_msg(memcmp(&norms[r], &norms[0], sizeof(double)) == 0, "rank %d: %a, rank 0: %a", r, norms[r],
                      norms[0]);
    }
    ck_assert_double_eq_tol(norms[0], due_norm(), 1e-15 * due_norm());
}
END_TEST

START_TEST(the_norm_has_one_set_of_bits)
{
    double first[3][3] = {{0}};

    for (int k = 0; k < LAYOUTS; k++) {
        rank_t ranks[RANKS_MOST];
        double *before;

        layout = &layouts[k];
        before = &first[layout->ep][layout->dp];
        ranks_run(ranks, prepare(ranks));
        rank_expect(&ranks[0], 0, DP_OK, NULL, 0);
        if (*before == 0)
            *before = norms[0];
        ck_assert_msg(memcmp(before, &norms[0], sizeof(double)) == 0, "%s pp=%d: %a instead of %a", layout->method,
                      layout->pp, norms[0], *before);
    }
}
END_TEST

/* ---- one accumulator ---- */

static const layout_t summed_layouts[] = {
    {"gpipe", 2, 1, 1},     {"1f1b", 1, 1, 1},        {"1f1b", 2, 1, 2},
    {"zb1p", 4, 1, 1},      {"zbv", 2, 1, 1},         {"v-half", 2, 1, 1},
    {"v-min", 2, 1, 1},     {"interleaved", 2, 1, 1}, {"interleaved_overlap", 2, 1, 1},
    {"dualpipev", 2, 2, 1}, {"dualpipev", 4, 1, 2},   {"dualpipe", 2, 1, 2}};
enum { SUMMED_LAYOUTS = sizeof(summed_layouts) / sizeof(summed_layouts[0]) };

static size_t grad_bytes[2]; /* of a job, with one and with two */

static dp_status_t check_one_accumulator(rank_t *rank, dp_pipeline_t *p)
{
    dp_memory_report_t memory = {.struct_size = sizeof(memory)};
    dp_status_t status = dp_pipeline_memory(p, &memory);

    __atomic_fetch_add(&grad_bytes[rank->options.one_accumulator ? 0 : 1], memory.grads, __ATOMIC_RELAXED);
    return status < 0 ? status : check_sums(rank, p);
}

/* Micro-batch by micro-batch through the whole step, whatever the schedule; two paths have one for
 * each half anyway. */
START_TEST(one_accumulator_sums_the_whole_step)
{
    rank_t ranks[RANKS_MOST];
    int n;

    layout = &summed_layouts[_i];
    memset(grad_bytes, 0, sizeof(grad_bytes));
    for (int one = 1; one >= 0; one--) {
        const bool whole = one && strcmp(layout->method, "dualpipe") != 0;

        n = prepare(ranks);
        for (int r = 0; whole && r < layout->ep * layout->dp; r++)
            residual_reference_of(&references[r], (unsigned)r, M, M, 1.0 / (M * layout->ep * layout->dp));
        for (int r = 0; r < n; r++) {
            ranks[r].options.one_accumulator = one;
            ranks[r].use = check_one_accumulator;
        }
        ranks_run(ranks, n);
        for (int r = 0; r < n; r++)
            rank_expect(&ranks[r], r, DP_OK, NULL, 0);
    }
    ck_assert_uint_eq(grad_bytes[1], (strcmp(layout->method, "dualpipe") == 0 ? 1 : 2) * grad_bytes[0]);
}
END_TEST

/* ---- shards ---- */

static void push(const dp_chunk_view_t *view, double by)
{
    for (uint32_t i = 0; i < view->nshards; i++) {
        const dp_shard_t *shard = &view->shard_list[i];
        double *params = (double *)view->params + view->param_list[shard->param].offset + shard->first;

        for (size_t k = 0; k < shard->count; k++)
            params[k] += by;
    }
}

/* Each rank has its shards of the sum, moves its shards of the parameters, and gets those of the
 * others. */
static dp_status_t check_shards(rank_t *rank, dp_pipeline_t *p)
{
    const int e = dp_group_rank(rank->options.group) / layout->pp % layout->ep;
    dp_chunk_view_t view = {.struct_size = sizeof(view)};
    double before[LAYER_PARAMS], elements = 0;
    dp_status_t status = DP_OK;

    for (int32_t c = 0; c < dp_pipeline_chunks(p); c++)
        if (dp_pipeline_chunk(p, c, &view) == DP_OK)
            fill_params(p, &view);
    status = step_replica(rank, p, 0, 0);
    for (int32_t c = 0; c < dp_pipeline_chunks(p) && status == DP_OK; c++) {
        status = dp_pipeline_chunk(p, c, &view);
        for (uint32_t i = 0; i < view.nshards; i++) {
            const dp_shard_t *shard = &view.shard_list[i];
            const dp_param_t *param = &view.param_list[shard->param];
            const int layer = view.stage * (LAYERS / view.stages) + (int)shard->param / 2;

            for (size_t w = shard->first; w < shard->first + shard->count; w++)
                if (((const double *)view.grads)[param->offset + w] != due(layer, (int)shard->param % 2, (int)w, e))
                    return dp_fail(DP_ERR_NUMERIC, "layer %d %s[%zu] of the shard has another sum", layer, param->name,
                                   w);
            if (dp_pipeline_counts(p, c, shard->param))
                elements += (double)shard->count;
        }
        push(&view, 1);
    }
    if (status == DP_OK)
        status = dp_pipeline_gather(p);
    if (status == DP_OK)
        status = dp_pipeline_sum(p, &elements, 1);
    if (status == DP_OK && elements != LAYERS * WEIGHTS * (1 + layout->ep))
        return dp_fail(DP_ERR_NUMERIC, "%g elements are in shards that count", elements);
    for (int32_t c = 0; c < dp_pipeline_chunks(p) && status == DP_OK; c++) {
        status = dp_pipeline_chunk(p, c, &view);
        for (uint32_t i = 0; i < view.nparams; i++) {
            residual_params(before, view.stage * (LAYERS / view.stages) + (int)i / 2, 1);
            for (int w = 0; w < WEIGHTS; w++)
                if (((double *)view.params)[view.param_list[i].offset + (size_t)w] !=
                    before[(int)i % 2 * WEIGHTS + w] + 1)
                    return dp_fail(DP_ERR_NUMERIC, "%s[%d] has not come from the rank that updates it",
                                   view.param_list[i].name, w);
        }
    }
    return status < 0 ? status : dp_pipeline_gradient_norm(p, &norms[dp_group_rank(rank->options.group)]);
}

/* A span for each chunk, whether a step has come behind the gathering or not. Rank 0's business. */
static void expect_gathers(const dp_timeline_t *timeline, int ranks, int chunks, int times)
{
    for (int r = 0; timeline != NULL && r < ranks; r++) {
        int64_t count;
        const dp_span_t *spans = dp_timeline_spans(timeline, r, &count);
        int seen = 0;

        for (int64_t i = 0; i < count; i++) {
            if (spans[i].kind != DP_SPAN_REDUCE || spans[i].name == 0 ||
                strcmp(dp_timeline_name_text(timeline, spans[i].name), "gather") != 0)
                continue;
            ck_assert(spans[i].lane == DP_LANE_REDUCE && spans[i].end_ns > spans[i].start_ns && spans[i].chunk >= 0);
            seen++;
        }
        ck_assert_int_eq(seen, chunks * times);
    }
}

static dp_status_t trace_gathers(rank_t *rank, dp_pipeline_t *p)
{
    const int ranks = dp_group_size(rank->options.group), chunks = dp_pipeline_chunks(p);
    dp_timeline_t *timeline = NULL;
    dp_status_t status = DP_OK;

    for (int times = 1; times <= 2 && status == DP_OK; times++) {
        status = step_replica(rank, p, 0, 0);
        if (status == DP_OK)
            status = dp_pipeline_gather(p);
        if (status == DP_OK)
            status = dp_pipeline_timeline(p, &timeline);
        expect_gathers(timeline, ranks, chunks, times);
        dp_timeline_free(timeline);
        timeline = NULL;
    }
    return status;
}

START_TEST(gathering_has_spans)
{
    rank_t ranks[RANKS_MOST];
    int n;

    layout = &layouts[2 + 6 * _i]; /* mirrors alone, and with a data group */
    n = prepare(ranks);
    for (int r = 0; r < n; r++) {
        ranks[r].options.zero = 1;
        ranks[r].options.trace_steps = 4;
        ranks[r].use = trace_gathers;
    }
    ranks_run(ranks, n);
    for (int r = 0; r < n; r++)
        rank_expect(&ranks[r], r, DP_OK, NULL, 0);
}
END_TEST

/* By transports that give parts, and by one of whose sums of all parts are made. */
START_TEST(shards_have_the_sums_of_the_whole)
{
    const int k = _i / 2;
    rank_t ranks[RANKS_MOST];
    double whole;
    char mock[1024];
    int n;

    snprintf(mock, sizeof(mock), "%s/mock_comm_threads.so", getenv("DP_TEST_MOCKS"));
    layout = &layouts[k];
    n = prepare(ranks);
    ranks_run(ranks, n);
    whole = norms[0];
    n = prepare(ranks);
    for (int r = 0; r < n; r++) {
        ranks[r].options.zero = 1;
        ranks[r].options.comm = _i % 2 != 0 ? mock : NULL;
        ranks[r].use = check_shards;
    }
    ranks_run(ranks, n);
    for (int r = 0; r < n; r++) {
        rank_expect(&ranks[r], r, DP_OK, NULL, 0);
        ck_assert_msg(memcmp(&norms[r], &whole, sizeof(double)) == 0, "rank %d: %a, without shards %a", r, norms[r],
                      whole);
    }
}
END_TEST

static char folder[32];

/* Neither a save nor another step; and a load that finds nothing is no way out. */
static dp_status_t forget_to_gather(rank_t *rank, dp_pipeline_t *p)
{
    const dp_save_options_t save = {.struct_size = sizeof(save), .folder = folder};
    uint64_t step;
    dp_status_t status = dp_pipeline_save_open(p, &save);

    if (status == DP_OK)
        status = step_replica(rank, p, 0, 0);
    if (status == DP_OK && (dp_pipeline_save(p, 1) != DP_ERR_INVALID ||
                            strstr(dp_last_error(), "dp_pipeline_save: with dp_pipeline_options_t.zero") == NULL))
        return dp_fail(DP_ERR_NUMERIC, "half of an update was saved: %s", dp_last_error());
    if (status == DP_OK && dp_pipeline_load(p, folder, &step) != DP_PENDING)
        return dp_fail(DP_ERR_NUMERIC, "the folder is not empty: %s", dp_last_error());
    return status < 0 ? status : step_replica(rank, p, 0, 0);
}

START_TEST(a_step_without_the_others_shards_is_refused)
{
    static const char *const words[] = {"dp_pipeline_gather behind each update"};
    rank_t ranks[RANKS_MOST];
    int n;

    layout = &layouts[2];
    strcpy(folder, "/tmp/dualpipe-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    n = prepare(ranks);
    for (int r = 0; r < n; r++) {
        ranks[r].options.zero = 1;
        ranks[r].use = forget_to_gather;
    }
    ranks_run(ranks, n);
    rank_expect(&ranks[0], 0, DP_ERR_INVALID, words, 1);
    ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

static const double *values;
static size_t nvalues;

static dp_status_t add_exactly(rank_t *rank, dp_pipeline_t *p)
{
    (void)rank;
    return dp_pipeline_exact_sum(p, values, nvalues, &norms[0]);
}

static double exact_sum(const double *all, size_t count)
{
    rank_t rank;

    rank_prepare(&rank, "1f1b", M);
    values = all, nvalues = count;
    rank.use = add_exactly;
    ranks_run(&rank, 1);
    rank_expect(&rank, 0, DP_OK, NULL, 0);
    return norms[0];
}

START_TEST(exact_sums_are_rounded_once)
{
    const double above[] = {1, 0x1p-53, 0x1p-200}, turned[] = {0x1p-200, 0x1p-53, 1}, half[] = {1, 0x1p-53};
    const double wide[] = {0x1p1000, 0x1p-1074, 0x1p1000, 3}, small[] = {0x1p-1074, 0x1p-1074, 0x1p-1073};
    const double negative[] = {1, -1};

    layout = &layouts[0];
    ck_assert_double_eq(exact_sum(above, 3), 1 + 0x1p-52);
    ck_assert_double_eq(exact_sum(turned, 3), 1 + 0x1p-52);
    ck_assert_double_eq(exact_sum(half, 2), 1); /* a tie goes to the even one */
    ck_assert_double_eq(exact_sum(wide, 4), 0x1p1001);
    ck_assert_double_eq(exact_sum(small, 3), 0x1p-1072);
    ck_assert_double_eq(exact_sum(small, 0), 0);
    ck_assert(isnan(exact_sum(negative, 2)));
}
END_TEST

/* ---- one rank ---- */

static double measured;

static dp_status_t measure(rank_t *rank, dp_pipeline_t *p)
{
    dp_chunk_view_t view = {.struct_size = sizeof(view)};
    dp_status_t status = dp_pipeline_chunk(p, 0, &view);

    if (status == DP_OK)
        fill_params(p, &view);
    if (status == DP_OK)
        status = step_replica(rank, p, rank->argument == 2 ? 1e-160 : 0, rank->argument == 1 ? (double)NAN : 0);
    return status < 0 ? status : dp_pipeline_gradient_norm(p, &measured);
}

static double measure_with(int argument,
                           dp_status_t (*build)(rank_t *rank, int32_t stage, int32_t stages, dp_stage_t **stage_out))
{
    rank_t rank;

    rank_prepare(&rank, "1f1b", M);
    layout = &layouts[0];
    rank.build = build;
    rank.use = measure;
    rank.argument = argument;
    ranks_run(&rank, 1);
    rank_expect(&rank, 0, DP_OK, NULL, 0);
    return measured;
}

/* w1 and w2 as two replicas; argument 3: of one expert, so that w2 is not counted. */
static dp_status_t build_replicas(rank_t *rank, int32_t stage, int32_t stages, dp_stage_t **stage_out)
{
    static const int32_t same[] = {7, 7}, different[] = {7, 8};
    dp_param_t list[2] = {residual_param_list[0], residual_param_list[1]};
    char prefix[LAYERS][16];
    dp_part_t parts[LAYERS];

    (void)stage, (void)stages;
    list[0].sharded = list[1].sharded = 1;
    list[1].expert = 1;
    for (int i = 0; i < LAYERS; i++) {
        parts[i] = residual_layer(&rank->part);
        parts[i].param_list = list;
        parts[i].placement = rank->argument == 3 ? same : different;
        parts[i].prefix = prefix[i];
        snprintf(prefix[i], sizeof(prefix[i]), "layer%d.", i);
    }
    return dp_stage_create(parts, LAYERS, sizeof(double) * TENSOR, DP_F64, stage_out);
}

START_TEST(replicas_of_an_expert_count_once)
{
    const double all = measure_with(0, NULL), apart = measure_with(0, build_replicas);
    const double once = measure_with(3, build_replicas);
    double first = 0;

    residual_reference(&references[0], 0, M, 1.0 / M);
    for (int layer = 0; layer < LAYERS; layer++)
        for (int w = 0; w < WEIGHTS; w++)
            first += due(layer, 0, w, 0) * due(layer, 0, w, 0);
    ck_assert(memcmp(&all, &apart, sizeof(all)) == 0);
    ck_assert_double_eq_tol(once, sqrt(first), 1e-12 * all);
    ck_assert_double_lt(once, 0.999 * all);
}
END_TEST

START_TEST(a_gradient_that_is_not_finite_shows)
{
    ck_assert(isnan(measure_with(1, NULL)));
}
END_TEST

/* Squares below the normal numbers are added like others. */
START_TEST(tiny_gradients_have_a_norm)
{
    const double norm = measure_with(2, NULL), usual = measure_with(0, NULL) * M;

    ck_assert_double_eq_tol(norm * 1e160, usual, 0.01 * usual);
}
END_TEST

START_TEST(senseless_questions_are_refused)
{
    double norm;

    ck_assert_int_eq(dp_pipeline_gradient_norm(NULL, &norm), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "dp_pipeline_gradient_norm"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/sums");
    TCase *sums = tcase_create("sums");

    tcase_set_timeout(sums, 120);
    tcase_add_loop_test(sums, every_parameter_counts_once, 0, LAYOUTS);
    tcase_add_test(sums, the_norm_has_one_set_of_bits);
    tcase_add_loop_test(sums, one_accumulator_sums_the_whole_step, 0, SUMMED_LAYOUTS);
    tcase_add_loop_test(sums, shards_have_the_sums_of_the_whole, 0, 2 * LAYOUTS);
    tcase_add_loop_test(sums, gathering_has_spans, 0, 2);
    tcase_add_test(sums, a_step_without_the_others_shards_is_refused);
    tcase_add_test(sums, exact_sums_are_rounded_once);
    tcase_add_test(sums, replicas_of_an_expert_count_once);
    tcase_add_test(sums, a_gradient_that_is_not_finite_shows);
    tcase_add_test(sums, tiny_gradients_have_a_norm);
    tcase_add_test(sums, senseless_questions_are_refused);
    suite_add_tcase(suite, sums);
    return suite_run(suite);
}
