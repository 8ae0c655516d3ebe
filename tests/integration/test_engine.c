/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_engine.c: whole steps with ranks as threads, held bit for bit against a serial run of the
 * same model. Built several times: for shared memory, and (DP_TEST_BACKEND) for a backend that
 * completes transfers in matched groups only; then with DP_TEST_HOSTS, for shared memory within
 * hosts joined to DP_TEST_BACKEND between them. */
#include "tests/support/braided.h"
#include "tests/support/debug.h"
#include "tests/support/oom.h"
#include "tests/support/residual_model.h"
#include "tests/support/suite.h"

#include <dirent.h>
#include <pthread.h>

enum { MOST_RANKS = 16, STEPS = 3 };

typedef struct setting {
    const char *method;
    int pp, dp, m;
    int ep;                        /* of the dp replicas, how many form an expert group; 0: 1 */
    const dp_schedule_t *schedule; /* instead of the method */
    uint32_t queue;                /* length of the lanes' queues; 0: the device's choice */
    size_t inline_bytes;           /* 1: everything goes over the p2p lane */
    unsigned delay, flip;
    const char *comm;    /* NULL: the backend on trial */
    int swap;            /* between steps: to the other backend and back */
    int arm;             /* no allocation may happen in a step */
    int forward_between; /* a forward-only step between two training steps */
    int recompute;       /* segments compute once more what they do not keep */
} setting_t;

typedef struct rank {
    const setting_t *setting;
    dp_group_t *group;
    residual_part_t part;
    dp_stage_t *stages[8];
    int nstages;
    pthread_t thread;
} rank_t;

static residual_reference_t references[4];
static char mock[512];            /* path of the backend for threads */
static char backend[520] = "shm"; /* on trial */

static void ok(dp_status_t status)
{
    ck_assert_msg(status >= 0, "%s: %s", dp_status_name(status), dp_last_error());
}

static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                         dp_stage_t **stage_out)
{
    rank_t *rank = user;
    dp_status_t status;

    rank->part.device = context->device_vt;
    status = residual_stage(&rank->part, stage, stages, stage_out);
    if (status >= 0)
        rank->stages[rank->nstages++] = *stage_out;
    return status;
}

static void fill_params(dp_pipeline_t *p)
{
    for (int32_t c = 0; c < dp_pipeline_chunks(p); c++) {
        dp_chunk_view_t view = {.struct_size = sizeof(view)};
        int n;

        ok(dp_pipeline_chunk(p, c, &view));
        n = LAYERS / view.stages;
        /* parts are aligned: their parameters need not lie side by side */
        for (uint32_t i = 0; i < view.nparams; i++) {
            double all[LAYER_PARAMS];

            residual_params(all, view.stage * n + (int)i / 2, 1);
            memcpy((double *)view.params + view.param_list[i].offset, all + (i % 2) * WEIGHTS,
                   WEIGHTS * sizeof(double));
        }
    }
}

static void check_grads(const rank_t *rank, dp_pipeline_t *p)
{
    for (int32_t c = 0; c < dp_pipeline_chunks(p); c++) {
        dp_chunk_view_t view = {.struct_size = sizeof(view)};
        int n;

        ok(dp_pipeline_chunk(p, c, &view));
        n = LAYERS / view.stages;
        for (uint32_t i = 0; i < view.nparams; i++)
            for (int w = 0; w < WEIGHTS; w++) {
                int at = (view.stage * n + (int)i / 2) * LAYER_PARAMS + (int)(i % 2) * WEIGHTS + w;
                int ep = rank->setting->ep > 0 ? rank->setting->ep : 1,
                    own = dp_group_rank(rank->group) / rank->setting->pp;
                int shard = rank->part.shard && i % 2 == 1, first = shard ? own % ep : 0;
                double sum = 0, got = ((const double *)view.grads)[view.param_list[i].offset + (size_t)w];

                for (int d = first; d < rank->setting->dp; d += shard ? ep : 1) {
                    double one = references[d].grads[0][at] + references[d].grads[1][at];

                    sum = d == first ? one : sum + one;
                }
                ck_assert_msg(memcmp(&sum, &got, sizeof(sum)) == 0, "%s P=%d M=%d stage %d %s[%d]: %a, serial %a",
                              rank->setting->method, rank->setting->pp, rank->setting->m, view.stage,
                              view.param_list[i].name, w, got, sum);
            }
    }
}

static void run_step(const rank_t *rank, dp_pipeline_t *p, int replica, int forward_only)
{
    static _Thread_local double inputs[256][TENSOR], targets[256][TENSOR], outputs[256][TENSOR];
    const void *in[256], *target[256];
    void *out[256];
    double losses[256], sum = 0;
    uint8_t last[256];
    int m = rank->setting->m;
    dp_step_t step = {.struct_size = sizeof(step), .inputs = in, .targets = target, .outputs = out, .losses = losses};

    for (int i = 0; i < m; i++) {
        residual_tensor(inputs[i], 1, (unsigned)replica, (unsigned)i);
        residual_tensor(targets[i], 2, (unsigned)replica, (unsigned)i);
        in[i] = inputs[i], target[i] = targets[i], out[i] = outputs[i];
    }
    step.loss_scale = 0.125;
    step.forward_only = forward_only;
    if (rank->setting->arm)
        oom_arm(0, true);
    ok(dp_pipeline_step(p, &step));
    if (rank->setting->arm) {
        ck_assert_msg(!oom_struck(), "a step allocated memory");
    }
    dp_pipeline_ends(p, NULL, last);
    for (int i = 0; i < m; i++) {
        ck_assert_msg(memcmp(&losses[i], &references[replica].losses[i], sizeof(double)) == 0,
                      "%s P=%d M=%d loss of micro-batch %d: %a, serial %a", rank->setting->method, rank->setting->pp, m,
                      i, losses[i], references[replica].losses[i]);
        sum += losses[i];
        if (last[i])
            ck_assert_mem_eq(outputs[i], references[replica].outputs[i], sizeof(outputs[i]));
    }
    ck_assert(memcmp(&sum, &step.loss, sizeof(sum)) == 0);
    sum = 0;
    for (int l = 0; l < LAYERS; l++)
        sum += references[replica].aux[l][0] + references[replica].aux[l][1];
    ck_assert_msg(memcmp(&sum, &step.aux_loss, sizeof(sum)) == 0, "%s P=%d M=%d auxiliary loss %a, serial %a",
                  rank->setting->method, rank->setting->pp, m, step.aux_loss, sum);
}

static void check_timeline(dp_pipeline_t *p, int size)
{
    dp_timeline_t *timeline;
    int64_t spans = 0, n;

    ok(dp_pipeline_timeline(p, &timeline));
    if (timeline == NULL)
        return;
    for (int32_t r = 0; r < size; r++) {
        const dp_span_t *span = dp_timeline_spans(timeline, r, &n);

        ck_assert_int_gt(n, 0);
        for (int64_t i = 0; i < n; i++)
            ck_assert_msg(span[i].start_ns > 0 && span[i].end_ns >= span[i].start_ns,
                          "rank %d span %d kind %d: %lld to %lld", r, (int)i, span[i].kind, (long long)span[i].start_ns,
                          (long long)span[i].end_ns);
        spans += n;
    }
    ck_assert_int_gt(spans, size);
    dp_timeline_free(timeline);
}

/* Lines of a file of /proc/self, or entries of a folder of it. */
static long count_in_proc(const char *path, int folder)
{
    DIR *dir = folder ? opendir(path) : NULL;
    FILE *file = folder ? NULL : fopen(path, "r");
    long n = 0;

    while (dir != NULL && readdir(dir) != NULL)
        n++;
    for (int c = 0; file != NULL && c != EOF; c = fgetc(file))
        n += c == '\n';
    if (dir != NULL)
        closedir(dir);
    if (file != NULL)
        fclose(file);
    return n;
}

/* As many memories of backwards as are alive at once: on the rank that has most, what verify
 * says. */
static void check_memory(const rank_t *rank, dp_pipeline_t *p)
{
    const size_t layer = (sizeof(residual_backward_buffer_t) + 63) / 64 * 64;
    dp_memory_report_t memory = {.struct_size = sizeof(memory)};
    dp_verify_report_t report = {.struct_size = sizeof(report)};
    dp_chunk_view_t view = {.struct_size = sizeof(view)};
    int64_t mine[1], all[MOST_RANKS], most = 0;

    ok(dp_pipeline_memory(p, &memory));
    ok(dp_pipeline_chunk(p, 0, &view));
    ok(dp_program_verify(dp_pipeline_program(p), &report));
    mine[0] = (int64_t)(memory.backward_buffer / (layer * (size_t)(LAYERS / view.stages)));
    ck_assert_uint_eq(memory.backward_buffer % (layer * (size_t)(LAYERS / view.stages)), 0);
    ok(dp_group_all_gather(rank->group, mine, sizeof(mine), all));
    for (int r = 0; r < dp_group_size(rank->group); r++)
        most = all[r] > most ? all[r] : most;
    ck_assert_int_eq(most, rank->setting->recompute ? report.peak_backward_buffers : 0);
    ck_assert_int_le(report.peak_backward_buffers, report.peak_activations);
}

static void *rank_main(void *arg)
{
    rank_t *rank = arg;
    const setting_t *s = rank->setting;
    const dp_device_config_t device = {.struct_size = sizeof(device), .queue_length = s->queue};
    dp_pipeline_options_t options = {
        .struct_size = sizeof(options),
        .group = rank->group,
        .ep = s->ep,
        .dp = s->ep > 0 ? s->dp / s->ep : s->dp,
        .method = s->method,
        .schedule = s->schedule,
        .device_config = &device,
        .microbatches = s->m,
        .boundary_bytes = TENSOR * sizeof(double),
        .dtype = DP_F64,
        .inline_bytes = s->inline_bytes,
        .comm = s->comm != NULL ? s->comm : backend,
        .build = build,
        .user = rank,
    };
    int replica = dp_group_rank(rank->group) / s->pp;
    long files = 0, maps = 0;
    dp_pipeline_t *p;

    ok(dp_pipeline_open(&options, &p));
    fill_params(p);
    if (!s->arm)
        check_memory(rank, p);
    for (int i = 0; i < STEPS; i++) {
        run_step(rank, p, replica, 0);
        check_grads(rank, p);
        if (s->arm && i == 0)
            files = count_in_proc("/proc/self/fd", 1), maps = count_in_proc("/proc/self/maps", 0);
        if (s->forward_between) {
            run_step(rank, p, replica, 1);
            check_grads(rank, p); /* left alone */
        }
        if (s->swap)
            ok(dp_pipeline_swap_comm(p, i % 2 == 0 ? mock : backend));
    }
    /* alone: other ranks as threads open files to count, too */
    if (s->arm && dp_group_size(rank->group) == 1) {
        ck_assert_int_eq(count_in_proc("/proc/self/fd", 1), files);
/* their allocators map at will */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        ck_assert_int_eq(count_in_proc("/proc/self/maps", 0), maps);
#else
        (void)maps;
#endif
    }
    if (!s->arm)
        check_timeline(p, s->pp * s->dp);
    dp_pipeline_close(p);
    for (int i = 0; i < rank->nstages; i++)
        dp_stage_free(rank->stages[i]);
    dp_group_leave(rank->group);
    return NULL;
}

static void run(const setting_t *setting)
{
    int size = setting->pp * setting->dp;
    dp_group_t *groups[MOST_RANKS];
    rank_t ranks[MOST_RANKS];

    for (int d = 0; d < setting->dp; d++)
        residual_reference(&references[d], (unsigned)d, setting->m, 0.125);
    ok(dp_group_local(size, NULL, groups));
    for (int r = 0; r < size; r++) {
        ranks[r] = (rank_t){.setting = setting,
                            .group = groups[r],
                            .part = {.delay = setting->delay,
                                     .rng = (unsigned)r,
                                     .flip = setting->flip,
                                     .shard = setting->ep > 1,
                                     .recompute = setting->recompute}};
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < size; r++)
        pthread_join(ranks[r].thread, NULL);
}

static const setting_t matrix[] = {
    {.method = "1f1b", .pp = 1, .dp = 1, .m = 1},
    {.method = "1f1b", .pp = 1, .dp = 1, .m = 5},
    {.method = "1f1b", .pp = 2, .dp = 1, .m = 5},
    {.method = "1f1b", .pp = 4, .dp = 1, .m = 8},
    {.method = "1f1b", .pp = 4, .dp = 1, .m = 8, .inline_bytes = 1},
    {.method = "1f1b", .pp = 8, .dp = 1, .m = 9, .inline_bytes = 1},
    {.method = "dualpipe", .pp = 2, .dp = 1, .m = 4},
    {.method = "dualpipe", .pp = 2, .dp = 1, .m = 4, .inline_bytes = 1},
    {.method = "dualpipe", .pp = 4, .dp = 1, .m = 8},
    {.method = "dualpipe", .pp = 4, .dp = 1, .m = 20, .inline_bytes = 1},
    {.method = "dualpipe", .pp = 8, .dp = 1, .m = 16, .inline_bytes = 1},
    {.method = "dualpipev", .pp = 1, .dp = 1, .m = 2},
    {.method = "dualpipev", .pp = 2, .dp = 1, .m = 5, .inline_bytes = 1},
    {.method = "dualpipev", .pp = 4, .dp = 1, .m = 8},
    {.method = "dualpipev", .pp = 4, .dp = 1, .m = 11, .inline_bytes = 1},
    {.method = "1f1b", .pp = 2, .dp = 3, .m = 4},
    {.method = "dualpipe", .pp = 2, .dp = 2, .m = 6, .inline_bytes = 1},
    {.method = "dualpipev", .pp = 2, .dp = 2, .m = 4},
};

static const char *const methods_of_lanes[] = {"1f1b", "zb1p", "dualpipe", "dualpipev"};

START_TEST(every_schedule_equals_the_serial_run)
{
    run(&matrix[_i]);
}
END_TEST

START_TEST(another_backend_gives_the_same_bits)
{
    setting_t s = matrix[_i];

    s.comm = mock;
    run(&s);
}
END_TEST

START_TEST(random_delays_change_no_bit)
{
    setting_t s = matrix[_i];

    s.delay = 40;
    run(&s);
}
END_TEST

START_TEST(recomputing_changes_no_bit)
{
    setting_t s = matrix[_i];

    s.recompute = 1;
    s.delay = 40;
    s.forward_between = 1;
    run(&s);
}
END_TEST

START_TEST(forward_only_steps_in_between)
{
    setting_t s = matrix[_i];

    s.forward_between = 1;
    run(&s);
}
END_TEST

/* A grid of pipelines, expert groups and replicas: w2 is summed over the replicas of its shard
 * alone. */
START_TEST(grids_of_ranks)
{
    static const setting_t grids[] = {
        {.method = "1f1b", .pp = 2, .dp = 2, .ep = 2, .m = 4, .recompute = 1},
        {.method = "zb1p", .pp = 2, .dp = 2, .ep = 2, .m = 4, .recompute = 1},
        {.method = "dualpipe", .pp = 2, .dp = 2, .ep = 2, .m = 4, .recompute = 1},
        {.method = "dualpipev", .pp = 2, .dp = 2, .ep = 2, .m = 4, .recompute = 1},
        {.method = "1f1b", .pp = 1, .dp = 2, .ep = 2, .m = 3},
        {.method = "1f1b", .pp = 1, .dp = 4, .ep = 2, .m = 3},
        {.method = "dualpipev", .pp = 2, .dp = 4, .ep = 2, .m = 4, .inline_bytes = 1},
        {.method = "dualpipe", .pp = 2, .dp = 4, .ep = 2, .m = 4},
        {.method = "dualpipe", .pp = 2, .dp = 4, .ep = 4, .m = 6, .forward_between = 1},
    };

    run(&grids[_i]);
}
END_TEST

/* All methods in sizes from the smallest, those they accept, with random delays. */
START_TEST(every_method_and_size)
{
    static const int sizes[][2] = {{1, 1}, {1, 2}, {2, 4}, {2, 7}, {4, 8}, {4, 12}};
    size_t nmethods;
    const dp_method_t *methods = dp_schedule_methods(&nmethods);
    int accepted = 0;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        setting_t s = {.method = methods[_i].name,
                       .pp = sizes[i][0],
                       .dp = 1,
                       .m = sizes[i][1],
                       .delay = 20,
                       .inline_bytes = i % 2,
                       .recompute = i % 3 != 0,
                       .forward_between = 1};
        dp_schedule_request_t request = {
            .struct_size = sizeof(request), .method = s.method, .ranks = s.pp, .microbatches = s.m};
        dp_schedule_t *schedule;

        ck_assert_uint_lt((size_t)_i, nmethods);
        if (dp_schedule_generate(&request, &schedule) < 0)
            continue;
        if (LAYERS % dp_schedule_stages(schedule) == 0) {
            run(&s);
            accepted++;
        }
        dp_schedule_free(schedule);
    }
    ck_assert_int_ge(accepted, 2);
}
END_TEST

/* All forwards, all backwards for the input, and only then the weights: every activation is kept to
 * the end. */
/* Operations regrouped into braids at random, with random letters: the same bits. */
START_TEST(braids_change_no_bit)
{
    static const struct {
        const char *method;
        int pp, m;
    } cases[] = {{"1f1b", 2, 6}, {"zb1p", 4, 8}, {"dualpipe", 2, 8}, {"dualpipev", 2, 6}, {"gpipe", 1, 4}};
    const int which = _i % 5;
    dp_schedule_request_t request = {.struct_size = sizeof(request),
                                     .method = cases[which].method,
                                     .ranks = cases[which].pp,
                                     .microbatches = cases[which].m};
    setting_t s = {.method = cases[which].method,
                   .pp = cases[which].pp,
                   .dp = 1,
                   .m = cases[which].m,
                   .inline_bytes = (size_t)(_i / 5 % 2),
                   .delay = _i / 10 % 2 ? 40 : 0,
                   .recompute = _i / 20 % 2,
                   .forward_between = 1};
    dp_schedule_t *plain, *schedule = NULL;
    int found = 0;

    ok(dp_schedule_generate(&request, &plain));
    for (unsigned seed = 1 + (unsigned)_i; found < 1 && seed < 20000; seed += 40) {
        dp_lower_options_t options = {.struct_size = sizeof(options)};
        dp_program_t *program[2] = {NULL, NULL};

        schedule =
            braided(plain, 1 + (int)(seed / 40 % 4), 4 * LAYERS / dp_schedule_stages(plain), 1 + seed / 40 % 2, seed);
        ck_assert_ptr_nonnull(schedule);
        found = dp_program_lower(schedule, &options, &program[0]) >= 0 && dp_program_verify(program[0], NULL) >= 0;
        options.transport = DP_TRANSPORT_BUNDLES;
        found =
            found && dp_program_lower(schedule, &options, &program[1]) >= 0 && dp_program_verify(program[1], NULL) >= 0;
        dp_program_free(program[0]);
        dp_program_free(program[1]);
        if (found) {
            s.schedule = schedule;
            run(&s);
        }
        dp_schedule_free(schedule);
    }
    ck_assert_int_eq(found, 1);
    dp_schedule_free(plain);
}
END_TEST

START_TEST(weights_at_the_very_end)
{
    enum { P = 4, M = 6 };
    static const dp_op_kind_t kinds[] = {DP_OP_F, DP_OP_I, DP_OP_W};
    const int64_t counts[P] = {3 * M, 3 * M, 3 * M, 3 * M};
    setting_t s = {.pp = P,
                   .dp = 1,
                   .m = M,
                   .delay = 30,
                   .flip = (unsigned)_i,
                   .inline_bytes = (size_t)_i % 2,
                   .recompute = (_i & 5) == 0};
    dp_schedule_t *schedule;
    int64_t n = 0;

    ok(dp_schedule_create("late", DP_PLACE_LINE, P, M, 1, counts, &schedule));
    for (int r = 0; r < P; r++)
        for (int k = 0; k < 3; k++)
            for (int32_t microbatch = 0; microbatch < M; microbatch++)
                schedule->ops[n++] = (dp_op_t){(uint8_t)kinds[k], 0, -1, microbatch, -1};
    s.method = schedule->method;
    s.schedule = schedule;
    run(&s);
    dp_schedule_free(schedule);
}
END_TEST

START_TEST(short_queues)
{
    setting_t s = {.method = _i % 2 == 0 ? "dualpipe" : "zb1p",
                   .pp = 4,
                   .dp = 1,
                   .m = 8,
                   .inline_bytes = 1,
                   .queue = 4u << _i / 2};

    run(&s);
}
END_TEST

/* Every way to put the four segments of a layer on two lanes; with transfers on their own lane and
 * on that of their data. */
START_TEST(any_lanes)
{
    setting_t s = {.method = methods_of_lanes[_i / 32],
                   .pp = 2,
                   .dp = 1,
                   .m = 4,
                   .delay = 30,
                   .flip = (unsigned)_i % 16,
                   .recompute = (_i & 5) == 0,
                   .inline_bytes = (size_t)(_i / 16 % 2),
                   .forward_between = 1};

    run(&s);
}
END_TEST

/* A layer to a stage, so that one lane can be passes ahead of the other: forwards that start on
 * compute and end on all-to-all, then the same of backwards. */
START_TEST(a_lane_far_ahead)
{
    setting_t s = {.method = _i / 2 == 0 ? "gpipe" : "zb1p",
                   .pp = 8,
                   .dp = 1,
                   .m = 6,
                   .delay = 30,
                   .flip = _i % 2 == 0 ? 4 : 13,
                   .forward_between = 1};

    run(&s);
}
END_TEST

START_TEST(backend_swapped_between_steps)
{
    setting_t s = {.method = "dualpipe", .pp = 4, .dp = 1, .m = 8, .swap = 1, .recompute = _i};

    run(&s);
}
END_TEST

START_TEST(a_step_allocates_nothing)
{
    setting_t s = {.method = _i == 0 ? "dualpipe" : "dualpipev",
                   .pp = _i == 2 ? 1 : 2,
                   .dp = _i == 2 ? 1 : 2,
                   .m = 8,
                   .inline_bytes = 1,
                   .recompute = _i == 1,
                   .arm = 1};

    oom_install();
    run(&s);
    oom_uninstall();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine");
    TCase *all = tcase_create("steps"), *lanes = tcase_create("lanes"), *methods = tcase_create("methods");
    size_t nmethods;
    int n = (int)(sizeof(matrix) / sizeof(matrix[0]));

    snprintf(mock, sizeof(mock), "%s/mock_comm_threads.so", getenv("DP_TEST_MOCKS"));
#ifdef DP_TEST_HOSTS
    debug_set("hosts", DP_TEST_HOSTS);
    snprintf(mock, sizeof(mock), "%s/" DP_TEST_BACKEND ".so", getenv("DP_TEST_MOCKS"));
    snprintf(backend, sizeof(backend), "shm+%s", mock);
#elif defined(DP_TEST_BACKEND)
    snprintf(backend, sizeof(backend), "%s/" DP_TEST_BACKEND ".so", getenv("DP_TEST_MOCKS"));
#endif
    tcase_set_timeout(all, 60);
    tcase_add_loop_test(all, another_backend_gives_the_same_bits, 0, n);
    tcase_add_loop_test(all, every_schedule_equals_the_serial_run, 0, n);
    tcase_add_loop_test(all, random_delays_change_no_bit, 0, n);
    tcase_add_loop_test(all, forward_only_steps_in_between, 0, n);
    tcase_add_loop_test(all, recomputing_changes_no_bit, 0, n);
    tcase_add_loop_test(all, backend_swapped_between_steps, 0, 2);
    tcase_add_loop_test(all, a_step_allocates_nothing, 0, 3);
    suite_add_tcase(suite, all);
    tcase_set_timeout(lanes, 60);
    tcase_add_loop_test(lanes, any_lanes, 0, 4 * 32);
    tcase_add_loop_test(lanes, a_lane_far_ahead, 0, 4);
    tcase_add_loop_test(lanes, weights_at_the_very_end, 0, 16);
    tcase_add_loop_test(lanes, braids_change_no_bit, 0, 40);
    suite_add_tcase(suite, lanes);
    tcase_set_timeout(methods, 60);
    dp_schedule_methods(&nmethods);
    tcase_add_loop_test(methods, every_method_and_size, 0, (int)nmethods);
    tcase_add_loop_test(methods, grids_of_ranks, 0, 9);
    tcase_add_loop_test(methods, short_queues, 0, 8);
    suite_add_tcase(suite, methods);
    return suite_run(suite);
}
