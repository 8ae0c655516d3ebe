/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_engine_traps.c: mistakes of trainers that a message has to name at once: ranks whose steps
 * differ, calls from a segment or a child, wrong orders of the end. And what trainers may do: fewer
 * micro-batches in a step, reading parameters behind a gather, gradients in I, scaled gradients. */
#include "tests/support/forked.h"
#include "tests/support/suite.h"
#include "tests/support/thread_ranks.h"

#include <sys/wait.h>
#include <unistd.h>

enum { M = 8, STEPS = 4 };

/* ---- ranks that differ ---- */

typedef enum difference {
    LOSS_SCALE,
    FORWARD_ONLY,
    ROUNDS,
    COUNT,
    TOKENS,
    DOCUMENTS,
    CLOSES,
    DIFFERENCES
} difference_t;

static const char *const sentences[DIFFERENCES][2] = {
    {"rank 0 has loss_scale=2,", "rank 1 has loss_scale=1"},
    {"rank 0 has forward_only=1,", "rank 1 has forward_only=0"},
    {"rank 0 has round=0 of rounds=3,", "rank 1 has round=0 of rounds=2"},
    {"rank 0 has microbatches=6,", "rank 1 has microbatches=7"},
    {"rank 0 has 22 tokens in 0 documents", "rank 1 has 23 tokens in 0 documents"},
    {"rank 0 has 24 tokens in 2 documents (digest ", "rank 1 has 24 tokens in 2 documents (digest "},
    {"rank 0 has closed its pipeline after 2 steps", "rank 1 has called dp_pipeline_step once more"},
};

static dp_status_t differ(dp_pipeline_t *p, int rank, difference_t difference)
{
    double tensors[2][M][TENSOR];
    const void *in[M], *target[M];
    const uint32_t ends[] = {rank == 0 ? 1 : 2, ROWS};
    uint32_t tokens[M];
    dp_documents_t documents[M] = {[3] = {ends, 2}};
    dp_status_t status = DP_OK;

    for (unsigned i = 0; i < M; i++) {
        residual_tensor(tensors[0][i], 1, 0, i);
        residual_tensor(tensors[1][i], 2, 0, i);
        in[i] = tensors[0][i], target[i] = tensors[1][i];
        tokens[i] = ROWS;
    }
    for (int n = 0; n < STEPS && status >= 0; n++) {
        dp_step_t step = {.struct_size = sizeof(step), .inputs = in, .targets = target};

        if (n == 2 && difference == CLOSES && rank == 0)
            return DP_OK;
        if (n == 2 && difference == LOSS_SCALE)
            step.loss_scale = rank == 0 ? 2 : 1;
        if (n == 2 && difference == FORWARD_ONLY)
            step.forward_only = rank == 0;
        if (n == 2 && difference == ROUNDS)
            step.rounds = rank == 0 ? 3 : 2;
        if (n == 2 && difference == COUNT)
            step.microbatches = rank == 0 ? M - 2 : M - 1;
        if (n == 2 && difference == TOKENS) {
            tokens[0] = rank == 0 ? 1 : 2; /* a message of unexpected size may come first */
            step.tokens = tokens;
        }
        if (n == 2 && difference == DOCUMENTS)
            step.documents = documents;
        status = dp_pipeline_step(p, &step);
    }
    return status;
}

static dp_status_t use_differently(rank_t *rank, dp_pipeline_t *p)
{
    return differ(p, dp_group_rank(rank->options.group), (difference_t)rank->argument);
}

START_TEST(steps_that_differ_between_threads)
{
    rank_t ranks[2];

    for (int r = 0; r < 2; r++) {
        rank_prepare(&ranks[r], "dualpipe", M);
        ranks[r].use = use_differently;
        ranks[r].argument = _i;
        ranks[r].options.tokens = _i == TOKENS || _i == DOCUMENTS ? ROWS : 0;
        ranks[r].options.documents = _i == DOCUMENTS ? 2 : 0;
    }
    ranks_run(ranks, 2);
    for (int r = _i == CLOSES; r < 2; r++)
        rank_expect(&ranks[r], r, DP_ERR_MISMATCH, sentences[_i], 2);
}
END_TEST

static residual_part_t part;
static dp_stage_t *stages[4];
static int nstages;

static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t count,
                         dp_stage_t **stage_out)
{
    dp_status_t status;

    (void)user;
    part.device = context->device_vt;
    status = residual_stage(&part, stage, count, stage_out);
    if (status >= 0)
        stages[nstages++] = *stage_out;
    return status;
}

static dp_status_t differ_body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    dp_pipeline_options_t open = {.struct_size = sizeof(open),
                                  .method = "dualpipe",
                                  .microbatches = M,
                                  .boundary_bytes = TENSOR * sizeof(double),
                                  .dtype = DP_F64,
                                  .tokens = self->argument == TOKENS || self->argument == DOCUMENTS ? ROWS : 0,
                                  .documents = self->argument == DOCUMENTS ? 2 : 0,
                                  .build = build};
    dp_pipeline_t *p = NULL;
    char message[1024];
    dp_status_t status = dp_group_join(&options, &open.group);

    if (status >= 0)
        status = dp_pipeline_open(&open, &p);
    if (status >= 0)
        status = differ(p, self->rank, (difference_t)self->argument);
    snprintf(message, sizeof(message), "%s", dp_last_error());
    dp_pipeline_close(p);
    for (int i = 0; i < nstages; i++)
        dp_stage_free(stages[i]);
    dp_group_leave(open.group);
    return status < 0 ? dp_fail(status, "%s", message) : status;
}

START_TEST(steps_that_differ_between_processes)
{
    forked_job_t job;

    forked_run(&job, 2, differ_body, _i);
    forked_finish(&job, 20);
    for (int r = _i == CLOSES; r < 2; r++) {
        forked_expect(&job, r, DP_ERR_MISMATCH, sentences[_i][0]);
        forked_expect(&job, r, DP_ERR_MISMATCH, sentences[_i][1]);
    }
    forked_end(&job);
}
END_TEST

/* ---- fewer micro-batches ---- */

static const char *const methods[] = {"dualpipe",    "1f1b",   "zb1p", "dualpipev",          "gpipe",
                                      "interleaved", "v-half", "zbv",  "interleaved_overlap"};
enum { METHODS = sizeof(methods) / sizeof(methods[0]) };

static dp_status_t check_chunks(dp_pipeline_t *p, const residual_reference_t *reference)
{
    for (int32_t c = 0; c < dp_pipeline_chunks(p); c++) {
        dp_chunk_view_t view = {.struct_size = sizeof(view)};
        const double *grads;
        int first;

        if (dp_pipeline_chunk(p, c, &view) < 0)
            return DP_ERR_INVALID;
        grads = view.grads;
        first = view.stage * (LAYERS / view.stages) * LAYER_PARAMS;
        for (int l = 0, at = 0; l < LAYERS / view.stages; l++)
            for (int k = 0; k < LAYER_PARAMS; k++, at++) {
                const size_t lies = view.param_list[2 * l].offset + (size_t)k;
                const double due = reference->grads[0][first + at] + reference->grads[1][first + at];

                if (fabs(grads[lies] - due) > 1e-12 * (1 + fabs(due)))
                    return dp_fail(DP_ERR_NUMERIC, "stage %d, gradient %d: %g instead of %g", view.stage, at,
                                   grads[lies], due);
            }
    }
    return DP_OK;
}

static void set_params(dp_pipeline_t *p)
{
    for (int32_t c = 0; c < dp_pipeline_chunks(p); c++) {
        dp_chunk_view_t view = {.struct_size = sizeof(view)};

        if (dp_pipeline_chunk(p, c, &view) < 0)
            abort();
        for (int l = 0; l < LAYERS / view.stages; l++)
            residual_params((double *)view.params + view.param_list[2 * l].offset,
                            view.stage * (LAYERS / view.stages) + l, 1);
    }
}

static dp_status_t use_fewer(rank_t *rank, dp_pipeline_t *p)
{
    static const int counts[] = {M, M - 1, M / 2, M / 2 - 1, 1, M};
    residual_reference_t *reference = malloc(sizeof(*reference));
    double tensors[2][M][TENSOR], losses[M];
    const void *in[M] = {NULL}, *target[M] = {NULL};
    dp_status_t status = DP_OK;

    set_params(p);
    for (size_t n = 0; n < sizeof(counts) / sizeof(counts[0]) && status >= 0; n++) {
        dp_step_t step = {
            .struct_size = sizeof(step), .inputs = in, .targets = target, .losses = losses, .microbatches = counts[n]};

        for (int i = 0; i < M; i++) {
            residual_tensor(tensors[0][i], 1, 0, (unsigned)i);
            residual_tensor(tensors[1][i], 2, 0, (unsigned)i);
            in[i] = i < counts[n] ? tensors[0][i] : NULL, target[i] = i < counts[n] ? tensors[1][i] : NULL;
        }
        residual_reference_of(reference, 0, counts[n], M / 2, 1.0 / counts[n]);
        status = dp_pipeline_step(p, &step);
        for (int i = 0; i < counts[n] && status >= 0; i++)
            if (losses[i] != reference->losses[i])
                status = dp_fail(DP_ERR_NUMERIC, "%d micro-batches: loss %d is %g instead of %g", counts[n], i,
                                 losses[i], reference->losses[i]);
        if (status >= 0)
            status = check_chunks(p, reference);
    }
    if (status >= 0)
        status = dp_group_barrier(rank->options.group);
    if (status >= 0) {
        dp_step_t step = {.struct_size = sizeof(step), .inputs = in, .targets = target, .microbatches = M + 1};

        status = dp_pipeline_step(p, &step);
        status =
            status == DP_ERR_INVALID && strstr(dp_last_error(), "microbatches is 9: the pipeline was opened for 1 to 8")
                ? DP_OK
                : dp_fail(DP_ERR_NUMERIC, "9 micro-batches: %s", dp_last_error());
    }
    free(reference);
    return status;
}

START_TEST(a_step_of_fewer_micro_batches)
{
    const bool matched = _i >= METHODS;
    rank_t ranks[2];
    char mock[512];

    snprintf(mock, sizeof(mock), "%s/mock_comm_groups.so", getenv("DP_TEST_MOCKS"));
    for (int r = 0; r < 2; r++) {
        rank_prepare(&ranks[r], methods[_i % METHODS], M);
        ranks[r].options.comm = matched ? mock : "shm";
        ranks[r].use = use_fewer;
    }
    ranks_run(ranks, 2);
    for (int r = 0; r < 2; r++)
        ck_assert_msg(ranks[r].status == DP_OK, "%s, rank %d: %s", methods[_i % METHODS], r, ranks[r].message);
}
END_TEST

/* ---- parameters behind a gather ---- */

/* With zero each rank updates its shards. Read after dp_pipeline_sum, or after the next step, the
 * parameters have the updates of all ranks. */
static dp_status_t use_gathered(rank_t *rank, dp_pipeline_t *p)
{
    dp_chunk_view_t view = {.struct_size = sizeof(view)};
    double value = 1;
    dp_status_t status = DP_OK;

    (void)rank;
    set_params(p);
    for (int n = 1; n <= 20 && status >= 0; n++) {
        status = rank_step(p, 0, NULL);
        for (int32_t c = 0; c < dp_pipeline_chunks(p) && status >= 0; c++) {
            status = dp_pipeline_chunk(p, c, &view);
            for (uint32_t i = 0; i < view.nshards && status >= 0; i++) {
                const dp_shard_t *shard = &view.shard_list[i];
                double *w = (double *)view.params + view.param_list[shard->param].offset + shard->first;

                for (size_t k = 0; k < shard->count; k++)
                    w[k] = n * 1e-3;
            }
        }
        if (status >= 0)
            status = dp_pipeline_gather(p);
        if (status >= 0)
            status = n % 2 == 0 ? dp_pipeline_sum(p, &value, 1) : rank_step(p, 1, NULL);
        for (int32_t c = 0; c < dp_pipeline_chunks(p) && status >= 0; c++) {
            status = dp_pipeline_chunk(p, c, &view);
            for (uint32_t i = 0; i < view.nparams && status >= 0; i++)
                for (size_t k = 0; k < view.param_list[i].count; k++)
                    if (((const double *)view.params)[view.param_list[i].offset + k] != n * 1e-3)
                        status = dp_fail(DP_ERR_NUMERIC, "step %d: element %zu of %s is stale", n, k,
                                         view.param_list[i].name);
        }
    }
    return status;
}

START_TEST(parameters_behind_a_gather)
{
    rank_t ranks[2];

    for (int r = 0; r < 2; r++) {
        rank_prepare(&ranks[r], "dualpipe", M);
        ranks[r].options.zero = 1;
        ranks[r].use = use_gathered;
    }
    ranks_run(ranks, 2);
    for (int r = 0; r < 2; r++)
        rank_expect(&ranks[r], r, DP_OK, NULL, 0);
}
END_TEST

/* ---- segments ---- */

typedef enum trap { CALLS_SUM, CALLS_STEP, SILENT, POSITIVE, TRAPS } trap_t;

static dp_pipeline_t *opened;
static trap_t trap;

static dp_status_t trap_forward(void *self, const dp_segment_call_t *call)
{
    double value = 0;
    dp_step_t step = {.struct_size = sizeof(step)};

    (void)self, (void)call;
    switch (trap) {
    case CALLS_SUM:
        return dp_pipeline_sum(opened, &value, 1);
    case CALLS_STEP:
        return dp_pipeline_step(opened, &step);
    case SILENT:
        return DP_ERR_IO;
    default:
        return 3;
    }
}

static dp_status_t trap_backward(void *self, const dp_segment_call_t *call)
{
    (void)self, (void)call;
    return DP_OK;
}

static dp_status_t build_trap(rank_t *rank, int32_t stage, int32_t count, dp_stage_t **stage_out)
{
    const dp_segment_t segment = {.struct_size = sizeof(segment),
                                  .name = "mul",
                                  .host_forward = trap_forward,
                                  .host_backward_input = trap_backward};
    const dp_part_t one = {.struct_size = sizeof(one), .nsegments = 1, .segments = &segment};

    (void)rank, (void)stage, (void)count;
    return dp_stage_create(&one, 1, TENSOR * sizeof(double), DP_F64, stage_out);
}

static dp_status_t use_trap(rank_t *rank, dp_pipeline_t *p)
{
    opened = p;
    trap = (trap_t)rank->argument;
    return rank_step(p, 0, NULL);
}

START_TEST(what_a_segment_may_not_do)
{
    static const struct {
        dp_status_t status;
        const char *words;
    } expected[TRAPS] = {
        {DP_ERR_INVALID, "dp_pipeline_sum was called from segment mul"},
        {DP_ERR_INVALID, "dp_pipeline_step was called from segment mul"},
        {DP_ERR_IO, "segment mul returned DP_ERR_IO without a message"},
        {DP_ERR_INVALID, "segment mul returned 3: DP_OK or a negative status is expected"},
    };
    rank_t rank;

    rank_prepare(&rank, "1f1b", 1);
    rank.build = build_trap;
    rank.use = use_trap;
    rank.argument = _i;
    ranks_run(&rank, 1);
    rank_expect(&rank, 0, expected[_i].status, &expected[_i].words, 1);
}
END_TEST

/* ---- gradients: added in I, without a function for W; scaled by the trainer ---- */

static dp_status_t loss_of_params(void *self, const dp_segment_call_t *call)
{
    (void)self;
    *call->loss += *(const double *)call->params;
    return DP_OK;
}

static dp_status_t add_in_input(void *self, const dp_segment_call_t *call)
{
    (void)self;
    *(double *)call->grads += call->loss_scale;
    return DP_OK;
}

static dp_status_t build_without_weight(rank_t *rank, int32_t stage, int32_t count, dp_stage_t **stage_out)
{
    const dp_segment_t segment = {.struct_size = sizeof(segment),
                                  .name = "adds",
                                  .host_forward = loss_of_params,
                                  .host_backward_input = add_in_input};
    const dp_param_t w = {.name = "w", .count = 1};
    const dp_block_sizes_t sizes = {.struct_size = sizeof(sizes), .param_count = 1, .nparams = 1};
    const dp_part_t one = {
        .struct_size = sizeof(one), .nsegments = 1, .segments = &segment, .sizes = &sizes, .param_list = &w};

    (void)rank, (void)stage, (void)count;
    return dp_stage_create(&one, 1, TENSOR * sizeof(double), DP_F64, stage_out);
}

static dp_status_t use_scaled(rank_t *rank, dp_pipeline_t *p)
{
    dp_chunk_view_t view = {.struct_size = sizeof(view)};
    dp_status_t status = DP_OK;

    (void)rank;
    for (int n = 0; n < 3 && status >= 0; n++) {
        double *grads;

        status = rank_step(p, 0, NULL);
        if (status >= 0)
            status = dp_pipeline_chunk(p, 0, &view);
        if (status < 0)
            break;
        grads = view.grads;
        if (*grads != 1)
            return dp_fail(DP_ERR_NUMERIC, "the gradient of step %d is %g instead of 1", n, *grads);
        *grads *= 0.5; /* the next step begins with zero all the same */
    }
    return status;
}

START_TEST(gradients_added_in_the_input_pass)
{
    static const char *const of_one_rank[] = {"1f1b", "zb1p"};
    rank_t rank;

    rank_prepare(&rank, of_one_rank[_i], M);
    rank.build = build_without_weight;
    rank.use = use_scaled;
    ranks_run(&rank, 1);
    rank_expect(&rank, 0, DP_OK, NULL, 0);
}
END_TEST

/* ---- the end, and other processes ---- */

static dp_status_t use_and_leave(rank_t *rank, dp_pipeline_t *p)
{
    dp_status_t status = rank_step(p, 0, NULL);

    dp_group_leave(rank->options.group); /* rank_main closes the pipeline, and leaves no more */
    rank->options.group = NULL;
    return status;
}

START_TEST(leaving_before_closing)
{
    rank_t ranks[2];

    for (int r = 0; r < 2; r++) {
        rank_prepare(&ranks[r], "dualpipe", M);
        ranks[r].use = use_and_leave;
    }
    ranks_run(ranks, 2);
    for (int r = 0; r < 2; r++)
        rank_expect(&ranks[r], r, DP_OK, NULL, 0);
}
END_TEST

/* The child says by its status whether each call was refused. */
static dp_status_t use_in_child(rank_t *rank, dp_pipeline_t *p)
{
    int ended = -1;
    pid_t child;

    if (rank_step(p, 0, NULL) < 0)
        return DP_ERR_INVALID;
    child = fork();
    if (child == 0) {
        double value = 0;
        bool refused = rank_step(p, 0, NULL) == DP_ERR_INVALID && strstr(dp_last_error(), "a child of fork") != NULL;

        refused = refused && dp_pipeline_sum(p, &value, 1) == DP_ERR_INVALID;
        dp_pipeline_close(p);
        dp_group_leave(rank->options.group);
        _exit(refused ? 0 : 1);
    }
    if (waitpid(child, &ended, 0) != child || ended != 0)
        return dp_fail(DP_ERR_INVALID, "the child ended with %d", ended);
    return rank_step(p, 0, NULL);
}

START_TEST(a_child_of_fork)
{
    rank_t rank;

    rank_prepare(&rank, "1f1b", 2);
    rank.use = use_in_child;
    ranks_run(&rank, 1);
    rank_expect(&rank, 0, DP_OK, NULL, 0);
}
END_TEST

START_TEST(without_a_launcher)
{
    static const char *const words[] = {"(no launcher: dualpipe run -n 2 -- "};
    rank_t rank;

    rank_prepare(&rank, "dualpipe", 2);
    ranks_run(&rank, 1);
    rank_expect(&rank, 0, DP_ERR_INVALID, words, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("traps of trainers");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 60);
    tcase_add_loop_test(all, steps_that_differ_between_threads, 0, DIFFERENCES);
    tcase_add_loop_test(all, steps_that_differ_between_processes, 0, DIFFERENCES);
    tcase_add_loop_test(all, a_step_of_fewer_micro_batches, 0, 2 * METHODS);
    tcase_add_test(all, parameters_behind_a_gather);
    tcase_add_loop_test(all, what_a_segment_may_not_do, 0, TRAPS);
    tcase_add_loop_test(all, gradients_added_in_the_input_pass, 0, 2);
    tcase_add_test(all, leaving_before_closing);
    tcase_add_test(all, a_child_of_fork);
    tcase_add_test(all, without_a_launcher);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
