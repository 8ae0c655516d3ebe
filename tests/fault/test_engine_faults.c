/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_engine_faults.c: a rank dies, fails or is interrupted at any operation of a step: all others
 * end in time with the first cause, which names the rank and what it was doing, and nothing is
 * left.
 *
 * make check takes every STRIDE-th operation of the step; DP_FAULT_SWEEP=all takes them all. */
#include "tests/support/coverage.h"
#include "tests/support/forked.h"
#include "tests/support/residual_model.h"
#include "tests/support/suite.h"

enum {
    RANKS = 4,
    MICROBATCHES = 8,
    /* of one rank in one step: 2 chunks, 4 F + 4 I + 2 W each layer */
    KERNELS = 2 * LAYERS / RANKS * MICROBATCHES / 2 * 10,
    STRIDE = 23
};
#define BOUND_SECONDS 2.0

typedef enum fault { KILL, STOP_AND_KILL, FAIL, INTERRUPT, FAULTS } fault_t;

static dp_group_t *group;
static forked_t *self_of;

static void note_time(void)
{
    *(volatile int64_t *)self_of->shared = forked_now_ns();
}

static dp_status_t fault_kill(void)
{
    note_time();
    coverage_keep();
    kill(getpid(), SIGKILL);
    return DP_OK;
}

static dp_status_t fault_fail(void)
{
    note_time();
    return dp_fail(DP_ERR_NUMERIC, "a planted error");
}

static dp_status_t fault_interrupt(void)
{
    note_time();
    dp_group_interrupt(group);
    return DP_OK;
}

static dp_status_t fault_stop(void)
{
    note_time();
    kill(getpid(), SIGSTOP);
    return DP_OK;
}

static residual_part_t part;
static dp_stage_t *stages[8];
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

static dp_status_t train(forked_t *self, dp_pipeline_t *pipeline)
{
    static double tensors[MICROBATCHES][TENSOR];
    const void *data[MICROBATCHES];
    dp_step_t step = {.struct_size = sizeof(step), .inputs = data, .targets = data};
    dp_status_t status = DP_OK;

    for (int i = 0; i < MICROBATCHES; i++) {
        residual_tensor(tensors[i], 1, 0, (unsigned)i);
        data[i] = tensors[i];
    }
    for (int i = 0; i < 1000 && status >= 0; i++) {
        int fault = self->argument / (RANKS * KERNELS), victim = self->argument % RANKS;

        if (i == 1 && victim == self->rank) {
            part.countdown = 1 + self->argument / RANKS % KERNELS;
            part.fault = fault == KILL        ? fault_kill
                         : fault == FAIL      ? fault_fail
                         : fault == INTERRUPT ? fault_interrupt
                                              : fault_stop;
        }
        status = dp_pipeline_step(pipeline, &step);
        forked_reach(self, i + 1);
    }
    return status;
}

/* Built a second time for a backend of matched groups. */
static const char *backend(void)
{
#ifdef DP_TEST_BACKEND
    static char path[512];

    snprintf(path, sizeof(path), "%s/" DP_TEST_BACKEND ".so", getenv("DP_TEST_MOCKS"));
    return path;
#else
    return NULL;
#endif
}

static dp_status_t body(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    dp_pipeline_t *pipeline = NULL;
    char message[1024];
    dp_status_t status;

    self_of = self;
    status = dp_group_join(&options, &group);
    if (status >= 0)
        status = dp_pipeline_open(&(dp_pipeline_options_t){.struct_size = sizeof(dp_pipeline_options_t),
                                                           .group = group,
                                                           .method = "dualpipe",
                                                           .microbatches = MICROBATCHES,
                                                           .boundary_bytes = TENSOR * sizeof(double),
                                                           .dtype = DP_F64,
                                                           .inline_bytes = self->argument % 2 == 0 ? 1 : 0,
                                                           .comm = backend(),
                                                           .build = build},
                                  &pipeline);
    if (status >= 0)
        status = train(self, pipeline);
    snprintf(message, sizeof(message), "%s", dp_last_error());
    dp_pipeline_close(pipeline);
    for (int i = 0; i < nstages; i++)
        dp_stage_free(stages[i]);
    dp_group_leave(group);
    return status < 0 ? dp_fail(status, "%s", message) : status;
}

static void check_survivor(const forked_job_t *job, int rank, fault_t fault, int victim, int64_t start)
{
    static const dp_status_t due[FAULTS] = {DP_ERR_PEER, DP_ERR_PEER, DP_ERR_NUMERIC, DP_ERR_INTERRUPTED};
    char name[24];

    snprintf(name, sizeof(name), "rank %d", victim);
    forked_expect(job, rank, due[fault], name);
    if (fault != INTERRUPT)
        forked_expect(job, rank, due[fault], "step 1");
    ck_assert_msg(job->results[rank].end_ns - start < (int64_t)(BOUND_SECONDS * forked_scale() * 1e9),
                  "rank %d ended %.3f s after the fault", rank, 1e-9 * (double)(job->results[rank].end_ns - start));
}

static void run(fault_t fault, int victim, int kernel)
{
    forked_job_t job;
    int64_t start;

    forked_run(&job, RANKS, body, ((int)fault * KERNELS + kernel) * RANKS + victim);
    /* stopped in the middle of an operation, then killed from outside */
    if (fault == STOP_AND_KILL) {
        forked_await(&job, victim, 1, 20);
        while (*(volatile int64_t *)job.shared == 0)
            forked_nap(1);
        forked_nap(20);
        kill(job.pids[victim], SIGKILL);
    }
    forked_finish(&job, 30);
    start = *(volatile int64_t *)job.shared;
    ck_assert_msg(start != 0, "the fault at operation %d of rank %d never came", kernel, victim);
    for (int r = 0; r < RANKS; r++)
        if (r != victim || fault == FAIL || fault == INTERRUPT)
            check_survivor(&job, r, fault, victim, start);
    forked_end(&job);
}

static int stride(void)
{
    const char *sweep = getenv("DP_FAULT_SWEEP");

    return sweep != NULL && strcmp(sweep, "all") == 0 ? 1 : STRIDE;
}

static void sweep(fault_t fault, int victim, int step)
{
    for (int kernel = victim; kernel < KERNELS; kernel += step)
        run(fault, victim, kernel);
}

START_TEST(killed_at_any_operation)
{
    sweep(KILL, _i, stride());
}
END_TEST

START_TEST(stopped_then_killed)
{
    sweep(STOP_AND_KILL, _i, 3 * stride());
}
END_TEST

START_TEST(failing_at_any_operation)
{
    sweep(FAIL, _i, 2 * stride());
}
END_TEST

START_TEST(interrupted_at_any_operation)
{
    sweep(INTERRUPT, _i, 3 * stride());
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine faults");
    TCase *all = tcase_create("sweep");

    tcase_set_timeout(all, stride() == 1 ? 1200 : 120);
    tcase_add_loop_test(all, killed_at_any_operation, 0, RANKS);
    tcase_add_loop_test(all, stopped_then_killed, 0, RANKS);
    tcase_add_loop_test(all, failing_at_any_operation, 0, RANKS);
    tcase_add_loop_test(all, interrupted_at_any_operation, 0, RANKS);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
