/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_guard.c: DUALPIPE_GUARD=1 changes no bit of a training that is right, and names what a
 * segment does wrong: each mistake here trains without it, with a loss that falls. */
#include "tests/support/suite.h"
#include "tests/support/thread_ranks.h"

#include <stdbool.h>

enum { M = 8 };

/* ---- a model that is right ---- */

static residual_reference_t reference;

static dp_status_t check_bits(rank_t *rank, dp_pipeline_t *p)
{
    dp_chunk_view_t view = {.struct_size = sizeof(view)};
    double loss = 0, due = 0;
    dp_status_t status = DP_OK;

    for (int32_t c = 0; c < dp_pipeline_chunks(p); c++) {
        ck_assert_int_eq(dp_pipeline_chunk(p, c, &view), DP_OK);
        for (uint32_t i = 0; i < view.nparams; i++) {
            double all[LAYER_PARAMS];

            residual_params(all, view.stage * (LAYERS / view.stages) + (int)i / 2, 1);
            memcpy((double *)view.params + view.param_list[i].offset, all + i % 2 * WEIGHTS, WEIGHTS * sizeof(double));
        }
    }
    for (int k = 0; k < 3 && status >= 0; k++)
        /* argument 1: a forward-only step in between */
        status = rank_step(p, rank->argument == k, &loss);
    for (int m = 0; m < M; m++)
        due += reference.losses[m];
    if (status >= 0 && memcmp(&loss, &due, sizeof(due)) != 0)
        return dp_fail(DP_ERR_NUMERIC, "loss %a instead of %a", loss, due);
    for (int32_t c = 0; c < dp_pipeline_chunks(p) && status >= 0; c++) {
        ck_assert_int_eq(dp_pipeline_chunk(p, c, &view), DP_OK);
        for (uint32_t i = 0; i < view.nparams; i++)
            for (int w = 0; w < WEIGHTS; w++) {
                const int at =
                    (view.stage * (LAYERS / view.stages) + (int)i / 2) * LAYER_PARAMS + (int)(i % 2) * WEIGHTS + w;
                const double sum = reference.grads[0][at] + reference.grads[1][at],
                             got = ((const double *)view.grads)[view.param_list[i].offset + (size_t)w];

                if (memcmp(&sum, &got, sizeof(sum)) != 0)
                    return dp_fail(DP_ERR_NUMERIC, "gradient %a instead of %a", got, sum);
            }
    }
    return status;
}

static const struct {
    const char *method;
    int pp;
    unsigned flip;
    size_t inline_bytes;
} sound[] = {{"1f1b", 1, 0, 0},      {"1f1b", 4, 0, 1},       {"dualpipe", 2, 0, 0}, {"dualpipe", 4, 0, 1},
             {"dualpipev", 4, 0, 0}, {"zb1p", 4, 0, 0},       {"zbv", 2, 5, 0},      {"gpipe", 2, 10, 1},
             {"dualpipe", 4, 15, 0}, {"interleaved", 2, 0, 1}};

START_TEST(what_is_right_keeps_its_bits)
{
    rank_t ranks[RANKS_MOST];

    setenv("DUALPIPE_GUARD", "1", 1);
    residual_reference(&reference, 0, M, 1.0 / M);
    for (int r = 0; r < sound[_i].pp; r++) {
        rank_prepare(&ranks[r], sound[_i].method, M);
        ranks[r].options.inline_bytes = sound[_i].inline_bytes;
        ranks[r].part.flip = sound[_i].flip;
        ranks[r].use = check_bits;
        ranks[r].argument = _i % 2 * 7 + 1; /* a third never comes */
    }
    ranks_run(ranks, sound[_i].pp);
    for (int r = 0; r < sound[_i].pp; r++)
        rank_expect(&ranks[r], r, DP_OK, NULL, 0);
}
END_TEST

/* ---- a model that is wrong in one place: y = x * w, two parts on each of two ranks ---- */

enum { N = 3, BAD_MICROBATCH = 2 };

typedef enum fault {
    NONE,
    FORWARD_AT_ONCE,
    INPUT_AT_ONCE,
    WEIGHT_AT_ONCE,
    LOSS_AT_ONCE,
    DX_ADDED_TO,
    Y_HALF_WRITTEN,
    SAVED_OVERRUN,
    WORK_OVERRUN,
    SCRATCH_OVERRUN,
    Y_OVERRUN,
    DX_OVERRUN,
    GRADS_OVERRUN,
    LOSS_ELSEWHERE,
    X_WRITTEN,
    DY_WRITTEN,
    PARAMS_WRITTEN,
    INPUT_WRITTEN,
    TARGET_WRITTEN,
    FAULTS
} fault_t;

typedef struct saved {
    double x[N], dy[N];
} saved_t;

/* The segments of a rank; `part` 0 and 1. */
typedef struct leaky {
    fault_t fault;
    int part;
} leaky_t;

static bool here(const leaky_t *l, const dp_segment_call_t *c, fault_t fault)
{
    const int part = fault == LOSS_ELSEWHERE || fault == LOSS_AT_ONCE || fault == TARGET_WRITTEN ? 1 : 0;
    const int stage = fault == INPUT_WRITTEN ? 0 : 1;

    return l->fault == fault && c->stage == stage && l->part == part && c->microbatch == BAD_MICROBATCH;
}

/* What an operator does that works in place on a view. */
static void scale_in_place(const void *read_only)
{
    double *values = (double *)(uintptr_t)read_only;

    for (int i = 0; i < N; i++)
        values[i] *= 1.1;
}

static dp_status_t forward(void *self, const dp_segment_call_t *c)
{
    const leaky_t *l = self;
    const double *w = c->params, *x = c->x != NULL ? c->x : c->input, *target = c->target;
    double *y = c->y, *work = c->work, *scratch = c->scratch;
    saved_t *saved = c->saved;

    memcpy(saved->x, x, sizeof(saved->x));
    for (int i = 0; i < N; i++) {
        work[i] = scratch[i] = x[i] * w[i];
        if (y != NULL && !(here(l, c, Y_HALF_WRITTEN) && i > 0))
            y[i] = work[i];
        if (target != NULL)
            *c->loss += (work[i] - target[i]) * (work[i] - target[i]);
    }
    if (here(l, c, SAVED_OVERRUN))
        memset(saved + 1, 1, 12);
    if (here(l, c, WORK_OVERRUN))
        work[N] = 1;
    if (here(l, c, SCRATCH_OVERRUN))
        scratch[N + 9] = 1;
    if (here(l, c, Y_OVERRUN))
        y[N] = 1;
    if (here(l, c, LOSS_ELSEWHERE))
        c->loss[1] += 1;
    if (here(l, c, X_WRITTEN) || here(l, c, INPUT_WRITTEN))
        scale_in_place(x);
    if (here(l, c, TARGET_WRITTEN))
        scale_in_place(target);
    return DP_OK;
}

static dp_status_t backward_input(void *self, const dp_segment_call_t *c)
{
    const leaky_t *l = self;
    const double *w = c->params, *dy = c->dy, *target = c->target;
    double *dx = c->dx;
    saved_t *saved = c->saved;

    for (int i = 0; i < N; i++) {
        saved->dy[i] = dy != NULL ? dy[i] : c->loss_scale * 2 * (saved->x[i] * w[i] - target[i]);
        if (dx == NULL)
            continue;
        if (here(l, c, DX_ADDED_TO))
            dx[i] += saved->dy[i] * w[i];
        else
            dx[i] = saved->dy[i] * w[i];
    }
    if (here(l, c, DX_OVERRUN))
        memset(dx + N, 1, 1);
    if (here(l, c, DY_WRITTEN))
        scale_in_place(dy);
    return DP_OK;
}

static dp_status_t backward_weight(void *self, const dp_segment_call_t *c)
{
    const leaky_t *l = self;
    const saved_t *saved = c->saved;
    double *grads = c->grads;

    for (int i = 0; i < N; i++)
        grads[i] += saved->x[i] * saved->dy[i];
    if (here(l, c, GRADS_OVERRUN))
        grads[N] += 1;
    if (here(l, c, PARAMS_WRITTEN))
        scale_in_place(c->params);
    return DP_OK;
}

/* The same by functions that enqueue; one of them does not. */
typedef struct job {
    leaky_t *self;
    dp_segment_host_fn run;
    dp_segment_call_t call;
} job_t;

static const dp_device_vt_t *_Atomic device_vt;

static dp_status_t run_job(void *arg)
{
    const job_t *job = arg;

    return job->run(job->self, &job->call);
}

static dp_status_t put(void *self, const dp_segment_call_t *c, dp_stream_t *s, dp_segment_host_fn run, fault_t at_once)
{
    const job_t job = {self, run, *c};

    return here(self, c, at_once) ? run(self, c) : device_vt->launch(s, run_job, &job, sizeof(job));
}
static dp_status_t put_forward(void *self, const dp_segment_call_t *c, dp_stream_t *s)
{
    return put(self, c, s, forward, ((leaky_t *)self)->part == 0 ? FORWARD_AT_ONCE : LOSS_AT_ONCE);
}
static dp_status_t put_input(void *self, const dp_segment_call_t *c, dp_stream_t *s)
{
    return put(self, c, s, backward_input, INPUT_AT_ONCE);
}
static dp_status_t put_weight(void *self, const dp_segment_call_t *c, dp_stream_t *s)
{
    return put(self, c, s, backward_weight, WEIGHT_AT_ONCE);
}

typedef struct leaky_rank {
    leaky_t parts[2];
    bool enqueues;
    dp_stage_t *stage;
    dp_group_t *group;
    dp_status_t status;
    char message[1024];
    double loss;
    pthread_t thread;
} leaky_rank_t;

static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                         dp_stage_t **stage_out)
{
    static const dp_param_t list = {.name = "w", .count = N};
    const dp_block_sizes_t sizes = {.struct_size = sizeof(sizes),
                                    .saved_bytes = sizeof(saved_t),
                                    .work_bytes = N * sizeof(double),
                                    .scratch_bytes = N * sizeof(double),
                                    .param_count = N,
                                    .nparams = 1};
    leaky_rank_t *rank = user;
    dp_segment_t segments[2];
    dp_part_t parts[2];
    dp_status_t status;

    (void)stage, (void)stages;
    device_vt = context->device_vt;
    for (int i = 0; i < 2; i++) {
        segments[i] = (dp_segment_t){.struct_size = sizeof(segments[i]), .name = "leaky", .self = &rank->parts[i]};
        if (rank->enqueues) {
            segments[i].forward = put_forward;
            segments[i].backward_input = put_input;
            segments[i].backward_weight = put_weight;
        } else {
            segments[i].host_forward = forward;
            segments[i].host_backward_input = backward_input;
            segments[i].host_backward_weight = backward_weight;
        }
        parts[i] = (dp_part_t){.struct_size = sizeof(parts[i]),
                               .nsegments = 1,
                               .segments = &segments[i],
                               .sizes = &sizes,
                               .param_list = &list,
                               .prefix = i == 0 ? "a." : "b."};
    }
    status = dp_stage_create(parts, 2, N * sizeof(double), DP_F64, stage_out);
    rank->stage = *stage_out;
    return status;
}

static dp_status_t train(leaky_rank_t *rank, dp_pipeline_t *p)
{
    double x[N] = {0.5, -0.25, 1}, target[N] = {1, 1, -1};
    const void *inputs[M], *targets[M];
    dp_step_t step = {.struct_size = sizeof(step), .inputs = inputs, .targets = targets};
    dp_chunk_view_t view = {.struct_size = sizeof(view)};
    dp_status_t status = dp_pipeline_chunk(p, 0, &view);

    for (int m = 0; m < M; m++)
        inputs[m] = x, targets[m] = target;
    for (size_t i = 0; i < view.param_count; i++)
        ((double *)view.params)[i] = 1 + 0.1 * (double)i;
    for (int n = 0; n < 10 && status >= 0; n++) {
        status = dp_pipeline_step(p, &step);
        for (size_t i = 0; i < view.param_count && status >= 0; i++)
            ((double *)view.params)[i] -= 0.05 * ((const double *)view.grads)[i];
        rank->loss = step.loss;
    }
    return status;
}

static void *leaky_main(void *arg)
{
    leaky_rank_t *rank = arg;
    const dp_pipeline_options_t options = {.struct_size = sizeof(options),
                                           .group = rank->group,
                                           .method = "1f1b",
                                           .microbatches = M,
                                           .boundary_bytes = N * sizeof(double),
                                           .dtype = DP_F64,
                                           .build = build,
                                           .user = rank};
    dp_pipeline_t *p = NULL;

    rank->status = dp_pipeline_open(&options, &p);
    if (rank->status >= 0)
        rank->status = train(rank, p);
    snprintf(rank->message, sizeof(rank->message), "%s", rank->status < 0 ? dp_last_error() : "");
    dp_pipeline_close(p);
    dp_stage_free(rank->stage);
    dp_group_leave(rank->group);
    return NULL;
}

static void run_leaky(leaky_rank_t ranks[2], fault_t fault, bool enqueues)
{
    dp_group_t *groups[2];

    memset(ranks, 0, 2 * sizeof(*ranks));
    ck_assert_int_eq(dp_group_local(2, NULL, groups), DP_OK);
    for (int r = 0; r < 2; r++) {
        ranks[r].group = groups[r];
        ranks[r].enqueues = enqueues;
        for (int i = 0; i < 2; i++)
            ranks[r].parts[i] = (leaky_t){fault, i};
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, leaky_main, &ranks[r]), 0);
    }
    for (int r = 0; r < 2; r++)
        pthread_join(ranks[r].thread, NULL);
}

static const struct {
    const char *pass, *what, *how;
} due[FAULTS] = {
    [FORWARD_AT_ONCE] = {"leaky(F) of stage 1", "changed before the stream got there", "saved"},
    [INPUT_AT_ONCE] = {"leaky(I) of stage 1", "changed before the stream got there", "host_forward"},
    [WEIGHT_AT_ONCE] = {"leaky(W) of stage 1", "grads changed before the stream got there", ""},
    [LOSS_AT_ONCE] = {"leaky(F) of stage 1", "changed before the stream got there", ""},
    [DX_ADDED_TO] = {"leaky(I) of stage 1", "3 of the 3 elements of dx still hold the NaN", "with = and not +="},
    [Y_HALF_WRITTEN] = {"leaky(F) of stage 1", "2 of the 3 elements of y still hold the NaN", "overwritten"},
    [SAVED_OVERRUN] = {"leaky(F) of stage 1", "beyond the end of saved, which has 48 bytes", ": 12 further"},
    [WORK_OVERRUN] = {"leaky(F) of stage 1", "beyond the end of work, which has 24 bytes", ": 8 further"},
    [SCRATCH_OVERRUN] = {"leaky(F) of stage 1", "beyond the end of scratch, which has 24 bytes", ": 80 further"},
    [Y_OVERRUN] = {"leaky(F) of stage 1", "beyond the end of y, which has 24 bytes", ": 8 further"},
    [DX_OVERRUN] = {"leaky(I) of stage 1", "beyond the end of dx, which has 24 bytes", ": 1 further"},
    [GRADS_OVERRUN] = {"leaky(W) of stage 1", "beyond the end of grads, which has 24 bytes", ": 8 further"},
    [LOSS_ELSEWHERE] = {"leaky(F) of stage 1", "beyond the end of loss, which has 8 bytes", ": 8 further"},
    [X_WRITTEN] = {"leaky(F) of stage 1", "it wrote to x, which it may only read", "change a copy"},
    [DY_WRITTEN] = {"leaky(I) of stage 1", "it wrote to dy, which it may only read", ""},
    [PARAMS_WRITTEN] = {"leaky(W) of stage 1", "it wrote to params, which it may only read", ""},
    [INPUT_WRITTEN] = {"leaky(F) of stage 0", "it wrote to input, which it may only read", ""},
    [TARGET_WRITTEN] = {"leaky(F) of stage 1", "it wrote to target, which it may only read", ""},
};

START_TEST(every_mistake_is_named)
{
    const fault_t fault = (fault_t)_i;
    leaky_rank_t ranks[2];

    setenv("DUALPIPE_GUARD", "1", 1);
    run_leaky(ranks, fault, fault >= FORWARD_AT_ONCE && fault <= LOSS_AT_ONCE);
    for (int r = 0; r < 2; r++) {
        const char *const words[] = {fault == INPUT_WRITTEN ? "rank 0: step 0: " : "rank 1: step 0: ", due[fault].pass,
                                     "micro-batch 2: guard: ", due[fault].what, due[fault].how};

        ck_assert_int_eq(ranks[r].status, DP_ERR_INVALID);
        for (size_t w = 0; w < sizeof(words) / sizeof(words[0]); w++)
            ck_assert_msg(strstr(ranks[r].message, words[w]) != NULL, "rank %d: \"%s\" is not in: %s", r, words[w],
                          ranks[r].message);
    }
}
END_TEST

/* Unguarded, a mistake says nothing (here: y half written); guarded or not, what is right gives the
 * same loss. */
START_TEST(without_a_guard_nothing_is_said)
{
    leaky_rank_t guarded[2], plain[2], wrong[2];

    setenv("DUALPIPE_GUARD", "1", 1);
    run_leaky(guarded, NONE, false);
    setenv("DUALPIPE_GUARD", "0", 1);
    run_leaky(plain, NONE, true);
    run_leaky(wrong, Y_HALF_WRITTEN, true);
    for (int r = 0; r < 2; r++) {
        ck_assert_msg(guarded[r].status == DP_OK, "%s", guarded[r].message);
        ck_assert_msg(plain[r].status == DP_OK, "%s", plain[r].message);
        ck_assert_msg(wrong[r].status == DP_OK, "%s", wrong[r].message);
        ck_assert(memcmp(&guarded[r].loss, &plain[r].loss, sizeof(double)) == 0);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("guard");
    TCase *guard = tcase_create("guard");

    tcase_set_timeout(guard, 120);
    tcase_add_loop_test(guard, what_is_right_keeps_its_bits, 0, sizeof(sound) / sizeof(sound[0]));
    tcase_add_loop_test(guard, every_mistake_is_named, NONE + 1, FAULTS);
    tcase_add_test(guard, without_a_guard_nothing_is_said);
    suite_add_tcase(suite, guard);
    return suite_run(suite);
}
