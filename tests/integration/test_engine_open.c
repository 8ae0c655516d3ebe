/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_engine_open.c: what a pipeline refuses, what ranks must agree on, and what is left when
 * something fails on the way. */
#include "tests/mock/mock_failing_device.h"
#include "tests/support/oom.h"
#include "tests/support/suite.h"
#include "tests/support/thread_ranks.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

static char mock_comm[512], mock_device[512];

/* ---- options ---- */

typedef struct bad {
    void (*spoil)(dp_pipeline_options_t *o);
    dp_status_t status;
    const char *words[3];
} bad_t;

static void no_build(dp_pipeline_options_t *o)
{
    o->build = NULL;
}
static void no_boundary(dp_pipeline_options_t *o)
{
    o->boundary_bytes = 0;
}
static void large_boundary(dp_pipeline_options_t *o)
{
    o->boundary_bytes = (size_t)UINT32_MAX + 1;
}
static void other_boundary(dp_pipeline_options_t *o)
{
    o->boundary_bytes = 8;
}
static void other_dtype(dp_pipeline_options_t *o)
{
    o->dtype = DP_F32;
}
static void half_dtype(dp_pipeline_options_t *o)
{
    o->dtype = DP_I64;
}
static void no_dtype(dp_pipeline_options_t *o)
{
    o->dtype = (dp_dtype_t)17;
}
static void negative_ep(dp_pipeline_options_t *o)
{
    o->ep = -1;
}
static void negative_dp(dp_pipeline_options_t *o)
{
    o->dp = -1;
}
static void negative_slots(dp_pipeline_options_t *o)
{
    o->slots = -1;
}
static void many_slots(dp_pipeline_options_t *o)
{
    o->slots = INT32_MAX;
}
static void many_accumulators(dp_pipeline_options_t *o)
{
    o->one_accumulator = 2;
}
static void negative_trace(dp_pipeline_options_t *o)
{
    o->trace_steps = -1;
}
static void long_trace(dp_pipeline_options_t *o)
{
    o->trace_steps = INT32_MAX;
}
static void grid_too_large(dp_pipeline_options_t *o)
{
    o->ep = 3;
}
static void grid_wraps_to_0(dp_pipeline_options_t *o)
{
    o->ep = 65536, o->dp = 65536;
}
static void grid_wraps_to_1(dp_pipeline_options_t *o)
{
    o->ep = INT32_MAX, o->dp = INT32_MAX;
}
static void no_such_method(dp_pipeline_options_t *o)
{
    o->method = "tripipe";
}
static void no_microbatches(dp_pipeline_options_t *o)
{
    o->microbatches = 0;
}
static void negative_microbatches(dp_pipeline_options_t *o)
{
    o->microbatches = INT32_MIN;
}
static void too_many_chunks(dp_pipeline_options_t *o)
{
    o->method = "interleaved", o->chunks = DP_MAX_CHUNKS + 1;
}
static void no_such_comm(dp_pipeline_options_t *o)
{
    o->comm = "pigeon";
}
static void no_such_device(dp_pipeline_options_t *o)
{
    o->device = "abacus";
}
static void device_as_comm(dp_pipeline_options_t *o)
{
    o->comm = mock_device;
}
static void comm_as_device(dp_pipeline_options_t *o)
{
    o->device = mock_comm;
}
static void no_such_profiler(dp_pipeline_options_t *o)
{
    o->profiler = "stethoscope";
}
static void comm_as_profiler(dp_pipeline_options_t *o)
{
    o->profiler = mock_comm;
}
static void odd_queue(dp_pipeline_options_t *o)
{
    static const dp_device_config_t config = {.struct_size = sizeof(config), .queue_length = 3};

    o->device_config = &config;
}

static void no_size(dp_pipeline_options_t *o)
{
    static const dp_device_config_t config = {.comm_sms = 1};

    o->device_config = &config;
}

static void long_name(dp_pipeline_options_t *o)
{
    static char name[2000];

    memset(name, 'x', sizeof(name) - 1);
    o->comm = name;
}

static const bad_t bad[] = {
    {no_build, DP_ERR_INVALID, {"build"}},
    {no_such_profiler, DP_ERR_PLUGIN, {"stethoscope"}},
    {comm_as_profiler, DP_ERR_PLUGIN, {"dp.profiler/1"}},
    {no_boundary, DP_ERR_INVALID, {"boundary_bytes is 0"}},
    {large_boundary, DP_ERR_INVALID, {"boundary_bytes is 4294967296", "4294967295"}},
    {other_boundary, DP_ERR_INVALID, {"stage ", "boundary_bytes 120", "have f64 and 8: they must be the same"}},
    {other_dtype, DP_ERR_INVALID, {"stage ", "dtype f64", "have f32 and 120"}},
    {half_dtype, DP_ERR_UNSUPPORTED, {"dtype is i64"}},
    {no_dtype, DP_ERR_UNSUPPORTED, {"dtype is none of dp_dtype_t"}},
    {negative_ep, DP_ERR_INVALID, {"ep -1", "negative"}},
    {negative_dp, DP_ERR_INVALID, {"dp -1", "negative"}},
    {negative_slots, DP_ERR_INVALID, {"slots -1", "negative"}},
    {many_slots, DP_ERR_INVALID, {"slots per channel"}},
    {many_accumulators, DP_ERR_INVALID, {"one_accumulator is 2"}},
    {negative_trace, DP_ERR_INVALID, {"trace_steps is -1"}},
    {long_trace, DP_ERR_INVALID, {"trace_steps is 2147483647"}},
    {grid_too_large, DP_ERR_INVALID, {"2 ranks", "ep = 3", "dp = 1"}},
    {grid_wraps_to_0, DP_ERR_INVALID, {"2 ranks", "ep = 65536"}},
    {grid_wraps_to_1, DP_ERR_INVALID, {"2 ranks", "ep = 2147483647"}},
    {no_such_method, DP_ERR_INVALID, {"tripipe", "dualpipev"}},
    {no_microbatches, DP_ERR_INVALID, {"0 micro-batches"}},
    {negative_microbatches, DP_ERR_INVALID, {"micro-batches"}},
    {too_many_chunks, DP_ERR_INVALID, {"chunks"}},
    {no_such_comm, DP_ERR_PLUGIN, {"comm_pigeon", "DUALPIPE_PLUGIN_PATH"}},
    {no_such_device, DP_ERR_PLUGIN, {"device_abacus"}},
    {device_as_comm, DP_ERR_PLUGIN, {"mock_failing_device", "dp.comm/1"}},
    {comm_as_device, DP_ERR_PLUGIN, {"mock_comm_threads", "dp.device/1"}},
    {odd_queue, DP_ERR_INVALID, {"queue_length 3"}},
    {no_size, DP_ERR_INVALID, {"options.device_config: struct_size is 0", "sizeof(dp_device_config_t)"}},
    {long_name, DP_ERR_INVALID, {"1999 characters"}},
};

static int words_of(const bad_t *b)
{
    int n = 0;

    while (n < 3 && b->words[n] != NULL)
        n++;
    return n;
}

START_TEST(bad_options_are_named)
{
    const bad_t *b = &bad[_i];
    rank_t ranks[2];

    for (int r = 0; r < 2; r++) {
        rank_prepare(&ranks[r], "1f1b", 4);
        b->spoil(&ranks[r].options);
    }
    ranks_run(ranks, 2);
    for (int r = 0; r < 2; r++)
        rank_expect(&ranks[r], r, b->status, b->words, words_of(b));
}
END_TEST

/* The others learn whose mistake it was. */
START_TEST(bad_options_on_one_rank_alone)
{
    static const char *const words[] = {"rank 1", "boundary_bytes is 0"};
    rank_t ranks[3];

    for (int r = 0; r < 3; r++)
        rank_prepare(&ranks[r], "1f1b", 4);
    ranks[1].options.boundary_bytes = 0;
    ranks_run(ranks, 3);
    for (int r = 0; r < 3; r++)
        rank_expect(&ranks[r], r, DP_ERR_INVALID, words, 2);
}
END_TEST

START_TEST(senseless_arguments)
{
    dp_chunk_view_t view = {.struct_size = sizeof(view)};
    dp_pipeline_t *p = (dp_pipeline_t *)(void *)&p;
    dp_pipeline_options_t o;
    dp_group_t *group;
    rank_t rank;

    rank_prepare(&rank, "1f1b", 1);
    ck_assert_int_eq(dp_group_local(1, NULL, &group), DP_OK);
    rank.options.group = group;
    ck_assert_int_eq(dp_pipeline_open(NULL, &p), DP_ERR_INVALID);
    ck_assert_int_eq(dp_pipeline_open(&rank.options, NULL), DP_ERR_INVALID);
    o = rank.options, o.struct_size = DP_PIPELINE_OPTIONS_MIN - 8;
    ck_assert_int_eq(dp_pipeline_open(&o, &p), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "struct_size"));
    ck_assert_ptr_null(p);
    o = rank.options, o.group = NULL;
    ck_assert_int_eq(dp_pipeline_open(&o, &p), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "options.group is NULL"));
    ck_assert_int_eq(dp_pipeline_step(NULL, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(dp_pipeline_swap_comm(NULL, "shm"), DP_ERR_INVALID);
    ck_assert_int_eq(dp_pipeline_chunk(NULL, 0, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(dp_pipeline_sum(NULL, NULL, 0), DP_ERR_INVALID);
    ck_assert_int_eq(dp_pipeline_timeline(NULL, NULL), DP_ERR_INVALID);
    dp_pipeline_close(NULL);

    /* nothing of this has harmed the job */
    ck_assert_int_eq(dp_pipeline_open(&rank.options, &p), DP_OK);
    ck_assert_int_eq(dp_pipeline_step(p, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(dp_pipeline_step(p, &(dp_step_t){.struct_size = 8}), DP_ERR_INVALID);
    ck_assert_int_eq(dp_pipeline_chunk(p, 0, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(dp_pipeline_chunk(p, 1, &view), DP_ERR_INVALID);
    ck_assert_int_eq(dp_pipeline_chunk(p, -1, &view), DP_ERR_INVALID);
    view.struct_size = 8;
    ck_assert_int_eq(dp_pipeline_chunk(p, 0, &view), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "set it to sizeof(dp_chunk_view_t)"));
    ck_assert_int_eq(dp_pipeline_sum(p, NULL, 1), DP_ERR_INVALID);
    ck_assert_int_eq(dp_pipeline_sum(p, NULL, 0), DP_OK);
    ck_assert_int_eq(dp_pipeline_timeline(p, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(rank_step(p, 0, NULL), DP_OK);
    dp_pipeline_close(p);
    for (int i = 0; i < rank.nstages; i++)
        dp_stage_free(rank.stages[i]);
    dp_group_leave(group);
}
END_TEST

/* ---- settings that differ ---- */

static dp_schedule_t *custom[3];

static void make_custom(const char *method, int32_t ranks, dp_schedule_t **schedule_out)
{
    dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = method, .ranks = ranks, .microbatches = 8};

    ck_assert_int_eq(dp_schedule_generate(&request, schedule_out), DP_OK);
}

/* Swaps the last two weight gradients of rank 1, and says so in no field. */
static void reorder_weights(dp_schedule_t *s)
{
    dp_op_t *last = NULL;

    for (int64_t i = s->first[2] - 1; i >= s->first[1]; i--) {
        if (s->ops[i].kind != DP_OP_W)
            continue;
        if (last != NULL) {
            int32_t microbatch = last->microbatch;

            last->microbatch = s->ops[i].microbatch;
            s->ops[i].microbatch = microbatch;
            return;
        }
        last = &s->ops[i];
    }
    ck_abort_msg("no two weight gradients");
}

static void method_of_1(dp_pipeline_options_t *o)
{
    o->method = "gpipe";
}
static void microbatches_of_1(dp_pipeline_options_t *o)
{
    o->microbatches = 9;
}
static void chunks_of_1(dp_pipeline_options_t *o)
{
    o->chunks = 4;
}
static void ep_of_1(dp_pipeline_options_t *o)
{
    o->ep = 2;
}
static void dp_of_1(dp_pipeline_options_t *o)
{
    o->dp = 2;
}
static void boundary_of_1(dp_pipeline_options_t *o)
{
    o->boundary_bytes = 128;
}
static void dtype_of_1(dp_pipeline_options_t *o)
{
    o->dtype = DP_F32;
}
static void slots_of_1(dp_pipeline_options_t *o)
{
    o->slots = 3;
}
static void comm_of_1(dp_pipeline_options_t *o)
{
    o->comm = mock_comm;
}
static void device_of_1(dp_pipeline_options_t *o)
{
    o->device = mock_device;
}
static void schedule_of_1(dp_pipeline_options_t *o)
{
    o->schedule = custom[o->schedule != NULL], o->method = NULL;
}
static void custom_of_all(dp_pipeline_options_t *o)
{
    o->schedule = custom[0], o->method = NULL;
}

static const struct difference {
    void (*of_all)(dp_pipeline_options_t *o);
    void (*of_1)(dp_pipeline_options_t *o);
    const char *words[2];
} differences[] = {
    {NULL, method_of_1, {"rank 0 has method=1f1b, rank 1 has method=gpipe"}},
    {NULL, microbatches_of_1, {"rank 0 has microbatches=8, rank 1 has microbatches=9"}},
    {NULL, chunks_of_1, {"rank 0 has chunks=0, rank 1 has chunks=4"}},
    {NULL, ep_of_1, {"rank 0 has ep=1, rank 1 has ep=2"}},
    {NULL, dp_of_1, {"rank 0 has dp=1, rank 1 has dp=2"}},
    {NULL, boundary_of_1, {"rank 0 has boundary_bytes=120, rank 1 has boundary_bytes=128"}},
    {NULL, dtype_of_1, {"rank 0 has dtype=f64, rank 1 has dtype=f32"}},
    {NULL, slots_of_1, {"rank 0 has slots=0, rank 1 has slots=3"}},
    {NULL, comm_of_1, {"rank 0 has comm=auto, rank 1 has comm=/", "mock_comm_threads"}},
    {NULL, device_of_1, {"rank 0 has device=device_cpu, rank 1 has device=/", "mock_failing_device"}},
    {custom_of_all, schedule_of_1, {"rank 0 has schedule=", "rank 1 has schedule="}},
};

START_TEST(ranks_must_agree)
{
    const struct difference *d = &differences[_i];
    rank_t ranks[4];

    make_custom("zb1p", 4, &custom[0]);
    make_custom("zb1p", 4, &custom[1]);
    reorder_weights(custom[1]);
    for (int r = 0; r < 4; r++) {
        rank_prepare(&ranks[r], "1f1b", 8);
        if (d->of_all != NULL)
            d->of_all(&ranks[r].options);
    }
    d->of_1(&ranks[1].options);
    ranks_run(ranks, 4);
    for (int r = 0; r < 4; r++)
        rank_expect(&ranks[r], r, DP_ERR_MISMATCH, d->words, d->words[1] != NULL ? 2 : 1);
    for (int i = 0; i < 2; i++)
        dp_schedule_free(custom[i]);
}
END_TEST

/* ---- stages ---- */

static dp_status_t build_longer(rank_t *rank, int32_t stage, int32_t stages, dp_stage_t **stage_out)
{
    return residual_stage(&rank->part, 0, rank->argument == 1 && stage == 1 ? 1 : stages, stage_out);
}

static dp_status_t build_sharded(rank_t *rank, int32_t stage, int32_t stages, dp_stage_t **stage_out)
{
    rank->part.shard = rank->argument;
    return residual_stage(&rank->part, stage, stages, stage_out);
}

START_TEST(copies_of_a_stage_must_be_alike)
{
    static const char *const count[] = {"stage 1", "parameters on rank"}, *const layout[] = {
                                                                              "stage",
                                                                              "places, sizes, kinds or shared names"};
    rank_t ranks[4];
    int n = _i == 1 ? 2 : 4;

    for (int r = 0; r < n; r++) {
        rank_prepare(&ranks[r], _i == 2 ? "1f1b" : "dualpipe", 8);
        ranks[r].options.dp = _i == 2 ? 4 : 1;
        ranks[r].build = _i == 2 ? build_sharded : build_longer;
        ranks[r].argument = r == 1;
    }
    ranks_run(ranks, n);
    for (int r = 0; r < n; r++)
        rank_expect(&ranks[r], r, DP_ERR_MISMATCH, _i == 2 ? layout : count, 2);
}
END_TEST

static dp_status_t build_nothing(rank_t *rank, int32_t stage, int32_t stages, dp_stage_t **stage_out)
{
    switch (rank->argument) {
    case 1:
        return dp_fail(DP_ERR_IO, "no such checkpoint");
    case 2:
        return DP_OK;
    case 3:
        return dp_stage_create(&(dp_part_t){.struct_size = 0}, 1, 8, DP_F64, stage_out);
    case 4:
        return DP_ERR_NOMEM;
    default:
        return residual_stage(&rank->part, stage, stages, stage_out);
    }
}

START_TEST(a_builder_fails_on_one_rank)
{
    static const struct {
        dp_status_t status;
        const char *words[3];
    } due[] = {{DP_ERR_IO, {"rank 2", "building stage 2", "no such checkpoint"}},
               {DP_ERR_INVALID, {"rank 2", "building stage 2 of 3", "returned no stage"}},
               {DP_ERR_INVALID, {"rank 2", "building stage 2", "struct_size"}},
               {DP_ERR_NOMEM, {"rank 2", "building stage 2 of 3", "build returned DP_ERR_NOMEM without a message"}}};
    rank_t ranks[3];

    for (int r = 0; r < 3; r++) {
        rank_prepare(&ranks[r], "1f1b", 4);
        ranks[r].build = build_nothing;
        ranks[r].argument = r == 2 ? _i + 1 : 0;
    }
    ranks_run(ranks, 3);
    for (int r = 0; r < 3; r++)
        rank_expect(&ranks[r], r, due[_i].status, due[_i].words, 3);
}
END_TEST

/* Of every micro-batch of the step; argument: what rank 1 leaves out. */
static dp_status_t step_without(rank_t *rank, dp_pipeline_t *p)
{
    double tensor[TENSOR] = {0};
    const void *in[4] = {tensor, tensor, tensor, tensor}, *target[4] = {tensor, tensor, tensor, tensor};
    dp_step_t step = {.struct_size = sizeof(step), .inputs = in, .targets = target};
    uint8_t first[4], last[4];

    dp_pipeline_ends(p, first, last);
    for (int m = 0; m < 4; m++) {
        in[m] = first[m] ? in[m] : NULL; /* what does not enter or end here may be left out */
        target[m] = last[m] ? target[m] : NULL;
    }
    switch (rank->argument) {
    case 1:
        step.inputs = NULL;
        break;
    case 2:
        in[3] = NULL;
        break;
    case 3:
        step.targets = NULL;
        break;
    case 4:
        target[1] = NULL;
        break;
    case 5:
        step.targets = NULL, step.forward_only = 1;
        break;
    default:
        break;
    }
    return dp_pipeline_step(p, &step);
}

START_TEST(data_of_an_end_are_missing)
{
    static const char *const due[] = {NULL,
                                      "rank 1: step 0: dp_step_t.inputs is NULL, on a rank with stage 0",
                                      "rank 1: step 0: dp_step_t.inputs[3] is NULL, on a rank with stage 0",
                                      "rank 1: step 0: dp_step_t.targets is NULL, on a rank with stage 1",
                                      "rank 1: step 0: dp_step_t.targets[1] is NULL, on a rank with stage 1",
                                      NULL};
    rank_t ranks[2];

    for (int r = 0; r < 2; r++) {
        rank_prepare(&ranks[r], "dualpipe", 4);
        ranks[r].use = step_without;
        ranks[r].argument = r == 1 || _i == 5 ? _i : 0;
    }
    ranks_run(ranks, 2);
    for (int r = 0; r < 2; r++)
        rank_expect(&ranks[r], r, due[_i] != NULL ? DP_ERR_INVALID : DP_OK, &due[_i], due[_i] != NULL);
}
END_TEST

/* ---- DUALPIPE_TRACE ---- */

static dp_status_t step_twice(rank_t *rank, dp_pipeline_t *p)
{
    dp_status_t status = rank_step(p, 0, NULL);

    if (status >= 0 && rank->argument == 1)
        /* no inputs: the job fails */
        return dp_pipeline_step(p, &(dp_step_t){.struct_size = sizeof(dp_step_t)});
    return status < 0 ? status : rank_step(p, 0, NULL);
}

static int untraced; /* errors in the log that say so */

static void count_untraced(void *user, int level, const char *origin, const char *message)
{
    (void)user, (void)origin;
    untraced += level == DP_LOG_ERROR &&
                strstr(message, "DUALPIPE_TRACE=/dev/full: the trace was not written: No space left") != NULL;
}

/* _i 0: a run; 1: one that fails; 2: the file cannot be made; 3: it cannot be written to. */
START_TEST(the_environment_asks_for_a_trace)
{
    static const char *const parts[] = {"traceEvents", "rank 1", "\"attention"};
    static const char *const refusal[] = {"rank 0", "DUALPIPE_TRACE=/no/such/folder/trace.json: No such file"};
    static const dp_status_t ends[] = {DP_OK, DP_ERR_INVALID, DP_ERR_IO, DP_OK};
    char path[] = "/tmp/dualpipe-trace-XXXXXX", text[1 << 16];
    rank_t ranks[2];
    size_t bytes;
    FILE *file;
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    setenv("DUALPIPE_TRACE", _i < 2 ? path : _i == 2 ? "/no/such/folder/trace.json" : "/dev/full", 1);
    untraced = 0;
    dp_log_set(count_untraced, NULL, DP_LOG_WARN);
    for (int r = 0; r < 2; r++) {
        rank_prepare(&ranks[r], "1f1b", 4);
        ranks[r].use = step_twice;
        ranks[r].argument = _i;
    }
    ranks_run(ranks, 2);
    dp_log_set(NULL, NULL, 0);
    for (int r = 0; r < 2; r++)
        rank_expect(&ranks[r], r, ends[_i], refusal, _i == 2 ? 2 : 0);
    ck_assert_int_eq(untraced, _i == 3);
    file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    bytes = fread(text, 1, sizeof(text) - 1, file);
    text[bytes] = '\0';
    fclose(file);
    close(fd);
    remove(path);
    for (size_t k = 0; k < sizeof(parts) / sizeof(parts[0]); k++)
        ck_assert_msg((strstr(text, parts[k]) != NULL) == (_i == 0), "\"%s\" in: %.200s", parts[k], text);
}
END_TEST

static int began[3], unbuilt[3];

static dp_status_t count_build(rank_t *rank, int32_t stage, int32_t stages, dp_stage_t **stage_out)
{
    began[dp_group_rank(rank->options.group)] = 1;
    return build_nothing(rank, stage, stages, stage_out);
}

static void count_unbuild(void *user)
{
    const rank_t *rank = user;

    unbuilt[dp_group_rank(rank->options.group)]++;
}

static dp_status_t two_steps(rank_t *rank, dp_pipeline_t *p)
{
    dp_status_t status = rank_step(p, 0, NULL);

    (void)rank;
    return status < 0 ? status : rank_step(p, 1, NULL);
}

/* _i 0: a run; 1: the builder fails on rank 2, and another may hear of it before it builds; 2:
 * nothing is built. */
START_TEST(what_was_built_is_unbuilt_once)
{
    rank_t ranks[3];

    for (int r = 0; r < 3; r++) {
        rank_prepare(&ranks[r], "1f1b", _i == 2 ? 0 : 4);
        ranks[r].build = count_build;
        ranks[r].argument = _i == 1 && r == 2;
        ranks[r].use = two_steps;
        ranks[r].options.unbuild = count_unbuild;
    }
    memset(began, 0, sizeof(began));
    memset(unbuilt, 0, sizeof(unbuilt));
    ranks_run(ranks, 3);
    ck_assert_int_eq(began[2], _i < 2);
    for (int r = 0; r < 3; r++) {
        rank_expect(&ranks[r], r, _i == 0 ? DP_OK : _i == 1 ? DP_ERR_IO : DP_ERR_INVALID, NULL, 0);
        ck_assert_int_eq(unbuilt[r], _i == 0 ? 1 : began[r]);
    }
}
END_TEST

/* ---- a custom schedule ---- */

static char logged[1024];

static void keep_log(void *user, int level, const char *origin, const char *message)
{
    (void)user, (void)origin;
    if (level <= DP_LOG_WARN)
        snprintf(logged, sizeof(logged), "%s", message);
}

START_TEST(an_unusual_order_of_weights_is_said)
{
    rank_t ranks[2];

    dp_log_set(keep_log, NULL, DP_LOG_WARN);
    make_custom("zb1p", 2, &custom[0]);
    for (int unusual = 0; unusual < 2; unusual++) {
        logged[0] = '\0';
        if (unusual)
            reorder_weights(custom[0]);
        for (int r = 0; r < 2; r++) {
            rank_prepare(&ranks[r], NULL, unusual ? 0 : 8); /* 0: as the schedule says */
            ranks[r].options.schedule = custom[0];
            ranks[r].use = two_steps;
        }
        ranks_run(ranks, 2);
        for (int r = 0; r < 2; r++)
            rank_expect(&ranks[r], r, DP_OK, NULL, 0);
        if (unusual) {
            ck_assert_msg(strstr(logged, "micro-batch 6 after that of 7 on rank 1") != NULL, "logged: %s", logged);
            ck_assert_ptr_nonnull(strstr(logged, "last bits"));
        } else {
            ck_assert_str_eq(logged, "");
        }
    }
    dp_schedule_free(custom[0]);
    dp_log_set(NULL, NULL, 0);
}
END_TEST

/* Weight gradients of two micro-batches beside each other: in order, segment by segment; and the
 * second before the first. */
static const struct {
    const char *rows, *said;
} woven[] = {
    {"F0.0+F0.1 B0.0+B0.1 F0.2+F0.3 B0.2+B0.3 ", ""},
    {"F0.0+F0.1 I0.0+I0.1 W0.1+F0.2 W0.0+F0.3 B0.2+B0.3 ", "micro-batch 0 after that of 1 on rank 0"},
};

START_TEST(an_unusual_order_of_weights_in_braids_is_said)
{
    char text[1024];
    int used = snprintf(text, sizeof(text), "# method=custom ranks=1 microbatches=4 chunks=1 placement=line\n");
    const char *at = woven[_i].rows;
    rank_t rank;

    for (int row = 0; *at != '\0'; row++) {
        int length = (int)strcspn(at, " ");

        used += snprintf(text + used, sizeof(text) - (size_t)used, "0\t%d\t%.*s\t-1\t-1\t-1\t-1\t-1\t-1\tturns\n", row,
                         length, at);
        at += length + 1;
    }
    ck_assert_msg(dp_schedule_read_tsv("woven", text, (size_t)used, &custom[0]) == DP_OK, "%s", dp_last_error());
    dp_log_set(keep_log, NULL, DP_LOG_WARN);
    logged[0] = '\0';
    rank_prepare(&rank, NULL, 0);
    rank.options.schedule = custom[0];
    rank.use = two_steps;
    ranks_run(&rank, 1);
    rank_expect(&rank, 0, DP_OK, NULL, 0);
    if (*woven[_i].said == '\0')
        ck_assert_str_eq(logged, "");
    else
        ck_assert_msg(strstr(logged, woven[_i].said) != NULL, "logged: %s", logged);
    dp_schedule_free(custom[0]);
    dp_log_set(NULL, NULL, 0);
}
END_TEST

START_TEST(schedules_that_do_not_fit)
{
    static const struct {
        dp_status_t status;
        const char *word;
    } due[] = {{DP_ERR_INVALID, "for 4 ranks, the pipeline has 2"},
               {DP_ERR_INVALID, "microbatches is 9, the schedule given has 8"},
               {DP_ERR_REJECTED, "verify"},
               {DP_ERR_INVALID, "65 chunks"}};
    rank_t ranks[2];

    make_custom("1f1b", _i == 0 ? 4 : 2, &custom[0]);
    if (_i == 2)
        custom[0]->ops[0].microbatch = 1; /* twice, and 0 never */
    if (_i == 3)
        custom[0]->chunks = 65;
    for (int r = 0; r < 2; r++) {
        rank_prepare(&ranks[r], NULL, _i == 1 ? 9 : 8);
        ranks[r].options.schedule = custom[0];
    }
    ranks_run(ranks, 2);
    for (int r = 0; r < 2; r++)
        rank_expect(&ranks[r], r, due[_i].status, &due[_i].word, 1);
    custom[0]->chunks = 1;
    dp_schedule_free(custom[0]);
}
END_TEST

/* ---- timelines ---- */

enum { TRACED = 3, TRACED_STEPS = 5 };

static dp_status_t trace(rank_t *rank, dp_pipeline_t *p)
{
    dp_timeline_t *timeline = (dp_timeline_t *)(void *)&timeline;
    int64_t n, seen[TRACED_STEPS] = {0};
    int32_t latest = 0;
    dp_status_t status = DP_OK;

    for (int i = 0; i < TRACED_STEPS && status >= 0; i++)
        status = rank_step(p, i == 3, NULL);
    for (int again = 0; again < 2 && status >= 0; again++) {
        status = dp_pipeline_timeline(p, &timeline);
        if (status < 0 || rank->argument != 0) {
            ck_assert_ptr_null(timeline);
            continue;
        }
        ck_assert_int_eq(dp_timeline_ranks(timeline), 2);
        for (int r = 0; r < 2; r++) {
            const dp_span_t *spans = dp_timeline_spans(timeline, r, &n);

            memset(seen, 0, sizeof(seen));
            for (int64_t i = 0; i < n; i++) {
                ck_assert_int_ge(spans[i].step, TRACED_STEPS - TRACED);
                ck_assert_int_lt(spans[i].step, TRACED_STEPS);
                ck_assert(i == 0 || spans[i].step >= latest); /* oldest first */
                latest = spans[i].step;
                seen[latest]++;
                if (spans[i].kind == DP_SPAN_COMPUTE)
                    ck_assert_str_ne(dp_timeline_name_text(timeline, spans[i].name), "");
            }
            /* 4 forwards of 4 segments for each of 4 layers; backwards: 4 and 2 weights; then a
             * message each */
            ck_assert_int_eq(seen[3], 1 + 4 * 4 * 4 + 4);
            ck_assert_int_eq(seen[2], 1 + 4 * 4 * (4 + 6) + 8 + 1);
            ck_assert_int_eq(seen[4], seen[2]);
        }
        dp_timeline_free(timeline);
    }
    return status;
}

START_TEST(the_last_steps_are_kept)
{
    rank_t ranks[2];

    for (int r = 0; r < 2; r++) {
        rank_prepare(&ranks[r], "1f1b", 4);
        ranks[r].options.trace_steps = TRACED;
        ranks[r].use = trace;
        ranks[r].argument = r;
    }
    ranks_run(ranks, 2);
    for (int r = 0; r < 2; r++)
        rank_expect(&ranks[r], r, DP_OK, NULL, 0);
}
END_TEST

/* ---- more than one pipeline ---- */

/* Another pipeline in the same job while the first is open; then, one after the other, many. */
static dp_status_t side_by_side(rank_t *rank, dp_pipeline_t *p)
{
    double loss[2] = {0};
    dp_status_t status = DP_OK;

    for (int i = 0; i < rank->argument && status >= 0; i++) {
        dp_pipeline_t *other;
        int kept = rank->nstages;

        status = dp_pipeline_open(&rank->options, &other);
        for (int k = 0; k < 2 && status >= 0; k++) {
            status = rank_step(p, 0, &loss[0]);
            if (status >= 0)
                status = rank_step(other, 0, &loss[1]);
            ck_assert(status < 0 || memcmp(&loss[0], &loss[1], sizeof(loss[0])) == 0);
        }
        dp_pipeline_close(other);
        while (rank->nstages > kept)
            dp_stage_free(rank->stages[--rank->nstages]);
    }
    return status;
}

START_TEST(pipelines_side_by_side_and_one_after_the_other)
{
    rank_t ranks[2];

    for (int r = 0; r < 2; r++) {
        rank_prepare(&ranks[r], "dualpipe", 4);
        ranks[r].options.comm = _i == 0 ? "shm" : mock_comm;
        ranks[r].use = side_by_side;
        ranks[r].argument = 4;
    }
    ranks_run(ranks, 2);
    for (int r = 0; r < 2; r++)
        rank_expect(&ranks[r], r, DP_OK, NULL, 0);
}
END_TEST

/* Three steps of which two are kept: their operations have the times of the mock's kernels, and so
 * again when asked twice. */
static dp_status_t profile(rank_t *rank, dp_pipeline_t *p)
{
    dp_timeline_t *t = NULL;
    dp_status_t status = DP_OK;

    for (int step = 0; step < 3 && status >= 0; step++)
        status = rank_step(p, 0, NULL);
    for (int round = 0; round < 2 && status >= 0; round++) {
        int64_t count = 0, operations = 0;

        status = dp_pipeline_timeline(p, &t);
        for (int r = 0; t != NULL && r < 2; r++) {
            const dp_span_t *spans = dp_timeline_spans(t, r, &count);

            for (int64_t i = 0; i < count; i++) {
                if (spans[i].kind == DP_SPAN_STEP)
                    continue;
                operations++;
                ck_assert_int_eq(spans[i].start_ns / 1000000000, 1 + spans[i].step);
                ck_assert_int_eq(spans[i].start_ns % 1000, 0);
                ck_assert_int_eq(spans[i].end_ns, spans[i].start_ns + 40);
            }
        }
        if (rank->argument == 0)
            /* steps, ranks, micro-batches, forward and backward */
            ck_assert_int_gt(operations, 2 * 2 * 4 * 2);
        dp_timeline_free(t);
        t = NULL;
    }
    return status;
}

START_TEST(spans_have_the_times_of_kernels)
{
    char mock[512];
    rank_t ranks[2];

    snprintf(mock, sizeof(mock), "%s/mock_profiler.so", getenv("DP_TEST_MOCKS"));
    for (int r = 0; r < 2; r++) {
        rank_prepare(&ranks[r], "dualpipe", 4);
        ranks[r].options.profiler = mock;
        ranks[r].options.trace_steps = 2;
        ranks[r].use = profile;
        ranks[r].argument = r;
    }
    ranks_run(ranks, 2);
    for (int r = 0; r < 2; r++)
        rank_expect(&ranks[r], r, DP_OK, NULL, 0);
}
END_TEST

static dp_status_t look_at_share(rank_t *rank, dp_pipeline_t *p)
{
    const dp_host_t *host = dp_group_host(rank->options.group);
    const dp_host_sm_t *share = host->get_service(host, DP_HOST_SM);

    (void)p;
    rank->argument = (int)(share->compute_sms * 1000 + share->comm_sms);
    return DP_OK;
}

START_TEST(plugins_are_told_their_share_of_the_device)
{
    dp_device_config_t config = {.struct_size = sizeof(config)};
    cpu_set_t cores;
    rank_t ranks[2];

    ck_assert_int_eq(sched_getaffinity(0, sizeof(cores), &cores), 0);
    config.comm_sms = CPU_COUNT(&cores) > 1 ? 1 : 0;
    for (int r = 0; r < 2; r++) {
        rank_prepare(&ranks[r], "dualpipe", 4);
        ranks[r].options.device_config = &config;
        ranks[r].use = look_at_share;
    }
    ranks_run(ranks, 2);
    for (int r = 0; r < 2; r++) {
        rank_expect(&ranks[r], r, DP_OK, NULL, 0);
        ck_assert_int_eq(ranks[r].argument, CPU_COUNT(&cores) > 1 ? (CPU_COUNT(&cores) - 1) * 1000 + 1 : 0);
    }
}
END_TEST

static dp_status_t hundred(rank_t *rank, dp_pipeline_t *p)
{
    long files = 0, threads = 0;
    dp_status_t status = DP_OK;

    (void)p;
    for (int i = 0; i < 100 && status >= 0; i++) {
        dp_pipeline_t *other;
        int kept = rank->nstages;

        status = dp_pipeline_open(&rank->options, &other);
        if (status >= 0)
            status = rank_step(other, 0, NULL);
        dp_pipeline_close(other);
        while (rank->nstages > kept)
            dp_stage_free(rank->stages[--rank->nstages]);
        if (i == 0)
            files = count_own("fd"), threads = count_own("task");
    }
    ck_assert_int_eq(count_own("fd"), files);
    ck_assert_int_eq(count_own("task"), threads);
    return status;
}

START_TEST(a_hundred_times)
{
    rank_t rank;

    rank_prepare(&rank, "dualpipev", 2);
    rank.use = hundred;
    ranks_run(&rank, 1);
    rank_expect(&rank, 0, DP_OK, NULL, 0);
}
END_TEST

/* ---- swapping the backend ---- */

static dp_status_t swap_refused(rank_t *rank, dp_pipeline_t *p)
{
    static const char *const wanted[2][2] = {{"shm", "pigeon"}, {"shm", NULL}};
    double before, after;
    dp_status_t status = rank_step(p, 0, &before);

    if (status < 0)
        return status;
    /* one rank has no such backend, or names none: all keep what they have */
    for (int i = 0; i < 2; i++) {
        status = dp_pipeline_swap_comm(p, wanted[i][rank->argument]);
        ck_assert_int_eq(status, i == 0 ? DP_ERR_PLUGIN : DP_ERR_INVALID);
        ck_assert_msg(strstr(dp_last_error(), "rank 1") != NULL, "%s", dp_last_error());
    }
    status = dp_pipeline_swap_comm(p, rank->argument == 0 ? "shm" : mock_comm);
    ck_assert_int_eq(status, DP_ERR_MISMATCH);
    ck_assert_msg(strstr(dp_last_error(), "rank 0 wants comm_shm, rank 1 wants /") != NULL, "%s", dp_last_error());
    ck_assert_int_eq(dp_pipeline_swap_comm(p, mock_device), DP_ERR_PLUGIN); /* no comm at all */
    status = rank_step(p, 0, &after);
    ck_assert(status < 0 || memcmp(&before, &after, sizeof(before)) == 0);
    return status;
}

START_TEST(a_swap_that_cannot_be_is_refused)
{
    rank_t ranks[2];

    for (int r = 0; r < 2; r++) {
        rank_prepare(&ranks[r], "dualpipe", 4);
        ranks[r].use = swap_refused;
        ranks[r].argument = r;
    }
    ranks_run(ranks, 2);
    for (int r = 0; r < 2; r++)
        rank_expect(&ranks[r], r, DP_OK, NULL, 0);
}
END_TEST

/* When building again: 1 fails, 2 gives a stage of another size. */
static dp_status_t build_twice(rank_t *rank, int32_t stage, int32_t stages, dp_stage_t **stage_out)
{
    if (rank->nstages >= 2 && rank->argument == 1)
        return dp_fail(DP_ERR_IO, "a planted failure");
    return residual_stage(&rank->part, stage, rank->nstages >= 2 && rank->argument == 2 ? stages / 2 : stages,
                          stage_out);
}

static dp_status_t swap_fails(rank_t *rank, dp_pipeline_t *p)
{
    dp_status_t status = rank_step(p, 0, NULL);
    char message[1024];

    if (status < 0)
        return status;
    status = dp_pipeline_swap_comm(p, mock_comm);
    snprintf(message, sizeof(message), "%s", dp_last_error());
    ck_assert_int_eq(rank_step(p, 0, NULL), DP_ERR_INVALID); /* only close is legal now */
    ck_assert_int_eq(dp_pipeline_swap_comm(p, "shm"), DP_ERR_INVALID);
    ck_assert_int_eq(dp_pipeline_sum(p, NULL, 0), DP_ERR_INVALID);
    ck_assert_int_eq(dp_pipeline_timeline(p, &(dp_timeline_t *){NULL}), DP_ERR_INVALID);
    (void)rank;
    return dp_fail(status, "%s", message);
}

START_TEST(a_swap_that_fails_ends_the_job)
{
    static const struct {
        dp_status_t status;
        const char *words[3];
    } due[] = {{DP_ERR_IO, {"rank 1", "swapping", "a planted failure"}},
               {DP_ERR_MISMATCH, {"rank 1", "stage", "than before"}}};
    rank_t ranks[2];

    for (int r = 0; r < 2; r++) {
        rank_prepare(&ranks[r], "dualpipe", 4);
        ranks[r].build = build_twice;
        ranks[r].use = swap_fails;
        ranks[r].argument = r == 1 ? _i + 1 : 0;
    }
    ranks_run(ranks, 2);
    for (int r = 0; r < 2; r++)
        rank_expect(&ranks[r], r, due[_i].status, due[_i].words, 3);
}
END_TEST

/* ---- kernels that fail ---- */

static dp_status_t planted(void)
{
    return dp_fail(DP_ERR_NUMERIC, "a planted error");
}

static dp_status_t fail_kernel(rank_t *rank, dp_pipeline_t *p)
{
    dp_status_t status = rank_step(p, 0, NULL);

    if (status >= 0 && rank->argument > 0) {
        rank->part.countdown = rank->argument;
        rank->part.fault = planted;
    }
    return status >= 0 ? rank_step(p, 0, NULL) : status;
}

/* The message names the kernel that failed, whatever other lanes are doing at that moment. */
START_TEST(the_operation_that_failed_is_named)
{
    static const char *const names[] = {"attention", "dispatch", "mlp", "combine"};
    rank_t ranks[2];

    for (int kernel = 1 + _i; kernel <= 2 * 4 * 4 * 10; kernel += 7 * 4) {
        char doing[128];
        const char *words[] = {"rank 1: step 1: ", doing, "a planted error"};
        residual_part_t *part = &ranks[1].part;

        for (int r = 0; r < 2; r++) {
            rank_prepare(&ranks[r], "dualpipe", 8);
            ranks[r].options.inline_bytes = kernel % 2 == 0 ? 1 : 0;
            ranks[r].use = fail_kernel;
            ranks[r].argument = r == 1 ? kernel : 0;
            ranks[r].part.delay = 20;
        }
        ranks_run(ranks, 2);
        snprintf(doing, sizeof(doing), "%s(%s) of stage %d, chunk %d, micro-batch %d", names[part->failed.segment],
                 dp_op_kind_name(part->failed.pass), part->failed.call.stage, part->failed.call.chunk,
                 part->failed.call.microbatch);
        for (int r = 0; r < 2; r++)
            rank_expect(&ranks[r], r, DP_ERR_NUMERIC, words, 3);
    }
}
END_TEST

static volatile int hanging;         /* 1: rank 1 is in the kernel that never returns */
static dp_pipeline_t *volatile kept; /* what is left behind stays in sight of leak checkers */

static dp_status_t hang(void)
{
    __atomic_store_n(&hanging, 1, __ATOMIC_RELEASE);
    while (hanging)
        pause();
    return DP_OK;
}

static dp_status_t fail_later(void)
{
    while (__atomic_load_n(&hanging, __ATOMIC_ACQUIRE) == 0)
        usleep(1000);
    return planted();
}

static dp_status_t hang_or_fail(rank_t *rank, dp_pipeline_t *p)
{
    rank->part.countdown = 3;
    rank->part.fault = rank->argument == 0 ? fail_later : hang;
    if (rank->argument == 1)
        kept = p;
    return rank_step(p, 0, NULL);
}

/* One rank fails, the other is in a kernel that does not come back: its step and its close return
 * all the same, and leave alone what that kernel may be using. */
START_TEST(a_kernel_that_never_returns)
{
    static const char *const words[] = {"rank 0: step 0: ", "a planted error"};
    static rank_t ranks[2];

    for (int r = 0; r < 2; r++) {
        rank_prepare(&ranks[r], "dualpipe", 4);
        ranks[r].use = hang_or_fail;
        ranks[r].argument = r;
        ranks[r].options.unbuild = count_unbuild;
    }
    dp_log_set(keep_log, NULL, DP_LOG_WARN);
    memset(unbuilt, 0, sizeof(unbuilt));
    ranks_run(ranks, 2);
    ck_assert(unbuilt[0] == 1 && unbuilt[1] == 0);
    for (int r = 0; r < 2; r++)
        rank_expect(&ranks[r], r, DP_ERR_NUMERIC, words, 2);
    ck_assert_msg(strstr(logged, "rank 1: a kernel does not return") != NULL, "logged: %s", logged);
    /* what the log asks for, past whoever would count threads: some are left that nobody can
     * join */
    syscall(SYS_exit_group, EXIT_SUCCESS);
}
END_TEST

/* ---- nothing is left ---- */

static long blocks, files, threads;

static void count_before(void)
{
    blocks = oom_live();
    files = count_own("fd");
    threads = count_own("task");
}

static void count_after(const char *what, long k)
{
    for (int i = 0; i < 200 && count_own("task") != threads; i++)
        usleep(1000); /* a joined thread may still be on the kernel's list */
    ck_assert_msg(oom_live() == blocks, "%s %ld: %ld blocks of memory are left", what, k, oom_live() - blocks);
    ck_assert_msg(count_own("fd") == files, "%s %ld: %ld descriptors are left", what, k, count_own("fd") - files);
    ck_assert_msg(count_own("task") == threads, "%s %ld: %ld threads are left", what, k, count_own("task") - threads);
}

static void *idle(void *arg)
{
    return arg;
}

/* What a process does once: maps plugins and, under a sanitizer, starts a thread with the first of
 * ours. */
static void warm_up(void)
{
    const dp_plugin_t *plugin;
    pthread_t thread;

    ck_assert_int_eq(pthread_create(&thread, NULL, idle, NULL), 0);
    pthread_join(thread, NULL);
    ck_assert_int_eq(dp_plugin_load("device_cpu", &plugin), DP_OK);
    ck_assert_int_eq(dp_plugin_load("comm_shm", &plugin), DP_OK);
    ck_assert_msg(dp_plugin_load(mock_device, &plugin) == DP_OK, "%s", dp_last_error());
}

static dp_status_t one_step(rank_t *rank, dp_pipeline_t *p)
{
    (void)rank;
    return rank_step(p, 0, NULL);
}

static void prepare_all(rank_t *ranks, int n)
{
    for (int r = 0; r < n; r++) {
        rank_prepare(&ranks[r], n == 1 ? "dualpipev" : "dualpipe", 4);
        ranks[r].use = one_step;
    }
}

/* Allocation k fails, once or with all after it: every rank says so, and nothing is left. */
static void run_out_of_memory(int n, bool sticky, long start, long stride)
{
    bool struck = true;

    warm_up();
    oom_install();
    for (long k = start; struck; k += stride) {
        rank_t ranks[2];

        prepare_all(ranks, n);
        count_before();
        ranks_job(ranks, n);
        oom_arm(k, sticky);
        ranks_go(ranks, n);
        struck = oom_struck();
        oom_disarm();
        count_after("allocation", k);
        for (int r = 0; r < n; r++)
            rank_expect(&ranks[r], r, struck ? DP_ERR_NOMEM : DP_OK, NULL, 0);
    }
    oom_uninstall();
}

START_TEST(out_of_memory_on_one_rank)
{
    run_out_of_memory(1, _i % 2 != 0, _i / 2, 4);
}
END_TEST

START_TEST(out_of_memory_on_two_ranks)
{
    run_out_of_memory(2, _i % 2 != 0, _i / 2, 32);
}
END_TEST

static const mock_failing_device_t *failing_device(void)
{
    const dp_plugin_t *plugin;
    const void *control;

    ck_assert_int_eq(dp_plugin_load(mock_device, &plugin), DP_OK);
    ck_assert_int_eq(dp_plugin_interface(plugin, MOCK_FAILING_DEVICE, sizeof(mock_failing_device_t), &control), DP_OK);
    return control;
}

/* Call k of the device fails, from open to the end of a step. */
static void fail_device(int n, long start, long stride)
{
    const mock_failing_device_t *device;
    const char *struck = "";

    warm_up();
    device = failing_device();
    oom_install();
    for (long k = start; struck != NULL; k += stride) {
        char text[64];
        const char *words[] = {"rank ", text};
        rank_t ranks[2];

        prepare_all(ranks, n);
        for (int r = 0; r < n; r++)
            ranks[r].options.device = mock_device;
        count_before();
        ranks_job(ranks, n);
        device->arm(k);
        ranks_go(ranks, n);
        struck = device->struck();
        count_after("call", k);
        snprintf(text, sizeof(text), "a planted failure of %s", struck != NULL ? struck : "");
        /* a rank may have been through its step when another found out */
        for (int r = 0; r < n; r++)
            if (ranks[r].status < 0 || struck == NULL || n == 1 || ranks[1 - r].status >= 0)
                rank_expect(&ranks[r], r, struck != NULL ? DP_ERR_DEVICE : DP_OK, words, struck != NULL ? 2 : 0);
    }
    oom_uninstall();
}

static dp_status_t step_and_collect(rank_t *rank, dp_pipeline_t *p)
{
    dp_status_t status = rank_step(p, 0, NULL);
    dp_timeline_t *timeline = NULL;
    int64_t n = 0;

    if (status >= 0)
        status = dp_pipeline_timeline(p, &timeline);
    if (status < 0)
        return status;
    for (const dp_span_t *span = dp_timeline_spans(timeline, 0, &n); n > 0; span++, n--)
        rank->argument += span->kind == DP_SPAN_COMPUTE && span->end_ns == span->start_ns;
    dp_timeline_free(timeline);
    return DP_OK;
}

/* A clock that is set anew between begin and end of a span: the span is empty, and the run goes
 * on. */
START_TEST(a_clock_that_is_turned_back)
{
    rank_t rank;

    warm_up();
    rank_prepare(&rank, "1f1b", 4);
    rank.options.device = mock_device;
    rank.use = step_and_collect;
    failing_device()->turn_back(INT64_C(1000000));
    ranks_run(&rank, 1);
    failing_device()->turn_back(0);
    rank_expect(&rank, 0, DP_OK, NULL, 0);
    ck_assert_int_gt(rank.argument, 0);
}
END_TEST

/* What a trainer leaves at zero the engine knows: by it, GPUs of a host are dealt out. */
START_TEST(devices_are_told_their_local_rank)
{
    rank_t ranks[2];

    warm_up();
    prepare_all(ranks, 2);
    for (int r = 0; r < 2; r++)
        ranks[r].options.device = mock_device;
    ranks_run(ranks, 2);
    for (int r = 0; r < 2; r++)
        rank_expect(&ranks[r], r, DP_OK, NULL, 0);
    ck_assert_uint_eq(failing_device()->local_ranks(), 3);
}
END_TEST

START_TEST(a_call_of_the_device_fails_on_one_rank)
{
    fail_device(1, _i, 4);
}
END_TEST

START_TEST(a_call_of_the_device_fails_on_two_ranks)
{
    fail_device(2, _i, 64);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/open");
    TCase *options = tcase_create("options"), *pipelines = tcase_create("pipelines"),
          *failures = tcase_create("failures"), *left = tcase_create("left");

    snprintf(mock_comm, sizeof(mock_comm), "%s/mock_comm_threads.so", getenv("DP_TEST_MOCKS"));
    snprintf(mock_device, sizeof(mock_device), "%s/mock_failing_device.so", getenv("DP_TEST_MOCKS"));
    tcase_add_loop_test(options, bad_options_are_named, 0, (int)(sizeof(bad) / sizeof(bad[0])));
    tcase_add_test(options, bad_options_on_one_rank_alone);
    tcase_add_test(options, senseless_arguments);
    tcase_add_loop_test(options, ranks_must_agree, 0, (int)(sizeof(differences) / sizeof(differences[0])));
    tcase_add_loop_test(options, copies_of_a_stage_must_be_alike, 0, 3);
    tcase_add_loop_test(options, a_builder_fails_on_one_rank, 0, 4);
    tcase_add_loop_test(options, data_of_an_end_are_missing, 0, 6);
    tcase_add_loop_test(options, the_environment_asks_for_a_trace, 0, 4);
    tcase_add_loop_test(options, what_was_built_is_unbuilt_once, 0, 3);
    suite_add_tcase(suite, options);

    tcase_set_timeout(pipelines, 30);
    tcase_add_test(pipelines, an_unusual_order_of_weights_is_said);
    tcase_add_loop_test(pipelines, an_unusual_order_of_weights_in_braids_is_said, 0, 2);
    tcase_add_loop_test(pipelines, schedules_that_do_not_fit, 0, 4);
    tcase_add_test(pipelines, the_last_steps_are_kept);
    tcase_add_loop_test(pipelines, pipelines_side_by_side_and_one_after_the_other, 0, 2);
    tcase_add_test(pipelines, spans_have_the_times_of_kernels);
    tcase_add_test(pipelines, plugins_are_told_their_share_of_the_device);
    tcase_add_test(pipelines, a_hundred_times);
    tcase_add_test(pipelines, devices_are_told_their_local_rank);
    tcase_add_test(pipelines, a_clock_that_is_turned_back);
    suite_add_tcase(suite, pipelines);

    tcase_set_timeout(failures, 30);
    tcase_add_test(failures, a_swap_that_cannot_be_is_refused);
    tcase_add_loop_test(failures, a_swap_that_fails_ends_the_job, 0, 2);
    tcase_add_loop_test(failures, the_operation_that_failed_is_named, 0, 4);
    tcase_add_exit_test(failures, a_kernel_that_never_returns, EXIT_SUCCESS);
    suite_add_tcase(suite, failures);

    tcase_set_timeout(left, 60);
    tcase_add_loop_test(left, out_of_memory_on_one_rank, 0, 8);
    tcase_add_loop_test(left, out_of_memory_on_two_ranks, 0, 8);
    tcase_add_loop_test(left, a_call_of_the_device_fails_on_one_rank, 0, 4);
    tcase_add_loop_test(left, a_call_of_the_device_fails_on_two_ranks, 0, 4);
    suite_add_tcase(suite, left);
    return suite_run(suite);
}
