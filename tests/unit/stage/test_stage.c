/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_stage.c: where the parts of a stage find their memory, and what a stage refuses. */
#include "tests/support/inline.h"
#include "tests/support/oom.h"
#include "tests/support/suite.h"

#include "stage/stage.h"

#include <stdint.h>

enum { BOUNDARY = 100, CALLS = 32 };

/* What segments were called with, in order. */
static struct seen {
    int which, pass;
    dp_segment_call_t call;
} seen[CALLS];
static int nseen;

static dp_status_t see(void *self, const dp_segment_call_t *call, int pass)
{
    seen[nseen++] = (struct seen){(int)(intptr_t)self, pass, *call};
    return DP_OK;
}
static dp_status_t forward(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    (void)s;
    return see(self, call, DP_OP_F);
}
static dp_status_t backward_input(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    (void)s;
    return see(self, call, DP_OP_I);
}
static dp_status_t backward_weight(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    (void)s;
    return see(self, call, DP_OP_W);
}

static const dp_param_t params[2] = {
    {.name = "gain", .kind = DP_PARAM_VECTOR, .count = 3, .fan_in = 1, .start = 1},
    {.name = "w", .kind = DP_PARAM_MATRIX, .offset = 5, .count = 7, .fan_in = 3, .sharded = 1, .expert = 4}};

/* What a part points to; the next part of the same number takes its place. */
static struct given {
    dp_segment_t segments[2];
    dp_block_sizes_t sizes;
} given[4];

static dp_part_t part(int which, size_t saved, size_t work, size_t count)
{
    struct given *g = &given[which];

    g->segments[0] = (dp_segment_t){.struct_size = sizeof(dp_segment_t),
                                    .name = "first",
                                    .self = (void *)(intptr_t)which,
                                    .forward = forward,
                                    .backward_input = backward_input,
                                    .backward_weight = backward_weight};
    g->segments[1] = g->segments[0];
    g->segments[1].name = "second";
    g->segments[1].lane = DP_LANE_ALL_TO_ALL;
    g->segments[1].backward_weight = NULL;
    g->sizes = (dp_block_sizes_t){.struct_size = sizeof(dp_block_sizes_t),
                                  .saved_bytes = saved,
                                  .work_bytes = work,
                                  .scratch_bytes = 10 * (size_t)which,
                                  .param_count = count,
                                  .nparams = 2};
    return (dp_part_t){
        .struct_size = sizeof(dp_part_t),
        .nsegments = 2,
        .segments = g->segments,
        .sizes = &g->sizes,
        .param_list = params,
        .prefix = which == 1   ? "head."
                  : which == 2 ? "body."
                               : NULL,
    };
}

static dp_stage_t *three_parts(void)
{
    dp_part_t parts[] = {part(1, 10, 700, 12), part(2, 65, 30, 13), part(3, 1, 0, 12)};
    dp_stage_t *stage = NULL;

    ck_assert_int_eq(dp_stage_create(parts, 3, BOUNDARY, DP_F64, &stage), DP_OK);
    return stage;
}

START_TEST(sizes_and_parameters_add_up)
{
    dp_stage_t *stage = three_parts();
    dp__stage_info_t info;

    info = stage->info;
    ck_assert_int_eq(info.nsegments, 6);
    ck_assert_uint_eq(info.saved_bytes, 64 + 128 + 64);
    ck_assert_uint_eq(info.work_bytes, 2 * 128 + 700); /* two boundaries, the largest part */
    ck_assert_uint_eq(info.scratch_bytes, 30);
    /* 12 and 13 doubles, rounded up to 64 bytes */
    ck_assert_uint_eq(info.param_count, 16 + 16 + 16);
    ck_assert_uint_eq(info.nparams, 6);
    ck_assert_str_eq(info.param_list[0].name, "head.gain");
    ck_assert_str_eq(info.param_list[3].name, "body.w");
    ck_assert_str_eq(info.param_list[4].name, "gain");
    ck_assert_uint_eq(info.param_list[3].offset, 16 + 5);
    ck_assert_uint_eq(info.param_list[5].offset, 32 + 5);
    ck_assert_uint_eq(info.param_list[5].sharded, 1);
    ck_assert_int_eq(info.param_list[5].expert, 4);
    dp_stage_free(stage);
}
END_TEST

static dp_status_t recompute(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    (void)s;
    return see(self, call, DP_OP_R);
}

/* In a forward behind the work memory, the same for all parts; in a backward each part has its
 * own. */
START_TEST(what_is_in_the_backward_buffer)
{
    static char memory[3][8192];
    dp_part_t parts[] = {part(1, 10, 700, 12), part(2, 65, 30, 13), part(3, 1, 0, 12)};
    dp_stage_t *stage = NULL;
    dp__stage_info_t info;
    dp_segment_call_t call = {.params = memory[0], .saved = memory[0], .work = memory[1], .backward_buffer = memory[2]},
                      own[4];
    const size_t last = 5;

    given[1].sizes.backward_buffer_bytes = 100;
    given[3].sizes.backward_buffer_bytes = 300;
    given[3].segments[0].recompute = recompute;
    ck_assert_int_eq(dp_stage_create(parts, 3, BOUNDARY, DP_F64, &stage), DP_OK);
    info = stage->info;
    ck_assert_uint_eq(info.backward_buffer_bytes, 128 + 320);
    ck_assert_int_eq(stage->shapes[last - 1].recomputes, 1);
    ck_assert_int_eq(stage->shapes[last].recomputes, 0);
    dp__stage_call(stage, 0, DP_OP_F, &call, &own[0]);
    dp__stage_call(stage, 5, DP_OP_F, &call, &own[1]);
    ck_assert_ptr_eq(own[0].backward_buffer, own[1].backward_buffer);
    ck_assert_uint_ge((size_t)((char *)own[0].backward_buffer - (char *)own[0].work), 700);
    ck_assert_uint_eq((uintptr_t)own[0].backward_buffer % 64, (uintptr_t)memory[1] % 64);
    dp__stage_call(stage, 2, DP_OP_F, &call, &own[0]);
    ck_assert_ptr_null(own[0].backward_buffer); /* this part asked for none */
    for (int pass = DP_OP_I; pass <= DP_OP_W; pass++) {
        dp__stage_call(stage, 0, (dp_op_kind_t)pass, &call, &own[0]);
        dp__stage_call(stage, 5, (dp_op_kind_t)pass, &call, &own[1]);
        ck_assert_ptr_eq(own[0].backward_buffer, memory[2]);
        ck_assert_ptr_eq(own[1].backward_buffer, memory[2] + 128);
    }
    nseen = 0;
    dp__stage_call(stage, 4, DP_OP_R, &call, &own[0]);
    ck_assert_int_eq(dp__stage_put(stage, 4, DP_OP_R, &own[0], NULL, NULL), DP_OK);
    ck_assert_int_eq(nseen, 1);
    ck_assert_int_eq(seen[0].pass, DP_OP_R);
    ck_assert_ptr_eq(seen[0].call.backward_buffer, memory[2] + 128);
    ck_assert_ptr_null(seen[0].call.work);
    ck_assert_ptr_null(seen[0].call.dy);
    ck_assert_ptr_null(seen[0].call.grads);
    dp_stage_free(stage);
}
END_TEST

static dp_status_t run(const dp_stage_t *stage, int32_t index, dp_op_kind_t pass, const dp_segment_call_t *call)
{
    dp_segment_call_t own;

    dp__stage_call(stage, index, pass, call, &own);
    return dp__stage_put(stage, index, pass, &own, NULL, NULL);
}

START_TEST(a_pass_flows_from_part_to_part)
{
    static char memory[6][8192];
    dp_segment_call_t call = {.params = memory[0],
                              .grads = memory[1],
                              .saved = memory[2],
                              .work = memory[3],
                              .x = memory[4],
                              .y = memory[5],
                              .input = "in",
                              .target = "out",
                              .loss = (double *)(void *)memory[5]};
    dp_stage_t *stage = three_parts();

    nseen = 0;
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(run(stage, i, DP_OP_F, &call), DP_OK);
    ck_assert_ptr_eq(seen[0].call.x, memory[4]);
    ck_assert_ptr_eq(seen[0].call.y, seen[2].call.x);
    ck_assert_ptr_eq(seen[2].call.y, seen[5].call.x);
    ck_assert_ptr_ne(seen[2].call.x, seen[2].call.y);
    ck_assert_ptr_eq(seen[5].call.y, memory[5]);
    ck_assert_ptr_eq(seen[2].call.params, memory[0] + 16 * sizeof(double));
    ck_assert_ptr_null(seen[4].call.grads); /* a forward has none */
    ck_assert_ptr_eq(seen[2].call.saved, memory[2] + 64);
    ck_assert_ptr_eq(seen[4].call.saved, memory[2] + 192);
    for (int i = 0; i < 6; i++) { /* no part's work touches the boundaries, none lies outside */
        ck_assert_ptr_eq(seen[i].call.work, memory[3] + 256);
        ck_assert_ptr_eq(seen[i].call.input, i < 2 ? "in" : NULL);
        ck_assert_ptr_eq(seen[i].call.target, i >= 4 ? call.target : NULL);
        ck_assert_ptr_eq(seen[i].call.loss, i >= 4 ? call.loss : NULL);
    }
    call.dy = memory[4], call.dx = memory[5], call.x = NULL, call.y = NULL;
    nseen = 0;
    for (int i = 5; i >= 0; i--)
        ck_assert_int_eq(run(stage, i, DP_OP_I, &call), DP_OK);
    ck_assert_ptr_eq(seen[0].call.dy, memory[4]);
    ck_assert_ptr_eq(seen[0].call.dx, seen[2].call.dy);
    ck_assert_ptr_eq(seen[3].call.dx, seen[4].call.dy);
    ck_assert_ptr_ne(seen[2].call.dx, seen[2].call.dy);
    ck_assert_ptr_eq(seen[5].call.dx, memory[5]);
    ck_assert_ptr_null(seen[0].call.grads); /* on the all-to-all lane, beside weight gradients */
    ck_assert_ptr_eq(seen[1].call.grads, memory[1] + 32 * sizeof(double));
    ck_assert_ptr_null(seen[1].call.loss);
    nseen = 0;
    ck_assert_int_eq(run(stage, 2, DP_OP_W, &call), DP_OK);
    ck_assert_int_eq(seen[0].which, 2);
    ck_assert_int_eq(seen[0].pass, DP_OP_W);
    ck_assert_ptr_null(seen[0].call.work); /* the same in a full backward as alone, long after it */
    ck_assert_ptr_null(seen[0].call.dy);
    ck_assert_ptr_null(seen[0].call.dx);
    ck_assert_ptr_eq(seen[0].call.saved, memory[2] + 64);
    dp_stage_free(stage);
}
END_TEST

static void refused(const dp_part_t *parts, int n, size_t boundary, dp_dtype_t dtype, const char *word)
{
    dp_stage_t *stage = NULL;

    ck_assert_int_eq(dp_stage_create(parts, n, boundary, dtype, &stage), DP_ERR_INVALID);
    ck_assert_ptr_null(stage);
    ck_assert_msg(strstr(dp_last_error(), word) != NULL, "'%s' lacks '%s'", dp_last_error(), word);
}

/* A part like part(1, 10, 10, 12), with one thing changed by each refusal. */
typedef struct attempt {
    dp_part_t part;
    dp_segment_t segments[2];
    dp_block_sizes_t sizes;
    dp_param_t list[2];
} attempt_t;

static attempt_t *fresh(attempt_t *a)
{
    a->part = part(1, 10, 10, 12);
    memcpy(a->segments, a->part.segments, sizeof(a->segments));
    a->sizes = *a->part.sizes;
    memcpy(a->list, params, sizeof(a->list));
    a->part.segments = a->segments;
    a->part.sizes = &a->sizes;
    a->part.param_list = a->list;
    return a;
}

#define REFUSED(change, words)                                                                                         \
    do {                                                                                                               \
        attempt_t a_, *a = fresh(&a_);                                                                                 \
        change;                                                                                                        \
        refused(&a->part, 1, 8, DP_F64, words);                                                                        \
    } while (0)

START_TEST(senseless_parts_are_refused)
{
    dp_part_t p = part(1, 10, 10, 12);

    refused(NULL, 1, 8, DP_F32, "parts");
    refused(&p, 0, 8, DP_F32, "0 parts; a stage has 1 to 32767 (are there more stages than layers?)");
    refused(&p, 1, 8, DP_I64, "dtype is i64; parameters are DP_F32, DP_F64 or DP_BF16");
    refused(&p, 1, SIZE_MAX - 3, DP_F32, "boundary");
    REFUSED(a->part.struct_size = 8, "part 0: struct_size is 8");
    REFUSED(a->part.nsegments = 0, "0 segments");
    REFUSED(a->part.segments = NULL, "no list of them");
    REFUSED(a->segments[0].struct_size = 8, "segments[0]: struct_size is 8");
    REFUSED(a->segments[1].struct_size = 0, "segments[1].struct_size is 0, that of segments[0]");
    REFUSED(a->segments[1].backward_input = NULL, "segment 1 second has no backward_input or host_backward_input");
    REFUSED(a->segments[0].forward = NULL, "segment 0 first has no forward or host_forward");
    REFUSED(a->segments[1].lane = DP_LANE_P2P, "lane");
    REFUSED(a->segments[1].recompute = recompute, "all-to-all lane recomputes nothing");
    REFUSED(a->sizes.backward_buffer_bytes = SIZE_MAX, "sizes");
    REFUSED(a->segments[0].lane = (dp_lane_t)9, "compute or the all-to-all lane");
    REFUSED(a->segments[0].name = "", "segment 0  has no name");
    REFUSED(a->segments[0].name = NULL, "segment 0  has no name");
    REFUSED(a->list[1].name = NULL, "parameter 1 has no name");
    REFUSED(a->part.param_list = NULL, "no list");
    REFUSED(a->sizes.struct_size = 8, "sizes: struct_size is 8");
    REFUSED(a->sizes.param_count = 11, "parameter w lies outside the part's 11 elements");
    REFUSED(a->sizes.saved_bytes = SIZE_MAX, "sizes");
    REFUSED(a->sizes.param_count = SIZE_MAX / 4, "sizes");
    REFUSED(a->list[0].shared = "", "parameter gain: shared is a name of 0 bytes");
    REFUSED(a->list[0].shared = "a-name-of-a-shared-parameter-that-is-longer-than-the-sixty-three-bytes-of-it",
            "shared is a name of 76 bytes; 1 to 63 are legal");
    REFUSED(a->list[0].reserved[0] = 1, "reserved must be zero");
    REFUSED(a->list[0].reserved[1] = 1, "reserved must be zero");
    REFUSED(a->list[0].name = "", "parameter 0 has no name");
    REFUSED(a->list[0].offset = 13, "parameter gain lies outside the part's 12 elements");
}
END_TEST

START_TEST(sums_of_sizes_that_wrap_are_refused)
{
    dp_part_t two[2] = {part(1, 64, 0, 12), part(2, SIZE_MAX - 63, 0, 12)};

    refused(two, 2, 8, DP_F64, "the sizes of part 1 add up to more than memory can hold");
    two[1] = part(2, 0, 0, SIZE_MAX / 8 - 7);
    refused(two, 2, 8, DP_F64, "the sizes of part 1 add up");
    two[1] = part(2, 0, 0, 12);
    given[1].sizes.backward_buffer_bytes = 64;
    given[2].sizes.backward_buffer_bytes = SIZE_MAX - 63;
    refused(two, 2, 8, DP_F64, "the sizes of part 1 add up");
    two[0] = part(1, 0, SIZE_MAX - 63, 12);
    refused(two, 1, 64, DP_F64, "a boundary tensor of 64 bytes is too large");
    two[0] = part(1, 0, SIZE_MAX - 150, 12);
    refused(two, 1, 64, DP_F64, "a boundary tensor of 64 bytes is too large");
    two[0] = part(1, 0, SIZE_MAX - 300, 12);
    given[1].sizes.backward_buffer_bytes = 1024;
    refused(two, 1, 64, DP_F64, "a boundary tensor of 64 bytes is too large");
    two[0] = part(1, 0, 0, 12);
    refused(two, 1, SIZE_MAX / 2 + 1, DP_F64, "is too large");
}
END_TEST

/* What tied embeddings are: of both ends the stage keeps the name, each end is a parameter of its
 * own. */
START_TEST(only_plain_parameters_are_shared)
{
    dp_stage_t *stage = NULL;
    attempt_t a;

    fresh(&a)->list[0].shared = "wte";
    ck_assert_int_eq(dp_stage_create(&a.part, 1, 8, DP_F64, &stage), DP_OK);
    ck_assert_str_eq(stage->info.param_list[0].shared, "wte");
    ck_assert_ptr_ne(stage->info.param_list[0].shared, a.list[0].shared);
    ck_assert_ptr_null(stage->info.param_list[1].shared);
    dp_stage_free(stage);
    fresh(&a)->list[1].shared = "wte";
    ck_assert_int_eq(dp_stage_create(&a.part, 1, 8, DP_F64, &stage), DP_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "parameter w has the shared name wte: neither"));
    fresh(&a)->list[0].shared = "wte";
    a.list[0].kind = DP_PARAM_ROUTER_BIAS;
    ck_assert_int_eq(dp_stage_create(&a.part, 1, 8, DP_F64, &stage), DP_ERR_UNSUPPORTED);
}
END_TEST

/* A loss, say: it keeps nothing and has no parameters. */
START_TEST(a_part_needs_no_sizes)
{
    dp_stage_t *stage = NULL;
    attempt_t a;

    fresh(&a)->part.sizes = NULL;
    ck_assert_int_eq(dp_stage_create(&a.part, 1, 8, DP_F64, &stage), DP_OK);
    ck_assert_uint_eq(stage->info.param_count, 0);
    ck_assert_uint_eq(stage->info.saved_bytes, 0);
    dp_stage_free(stage);
    dp_stage_free(NULL);
    ck_assert_int_eq(dp_stage_create(&a.part, 1, 8, DP_F64, NULL), DP_ERR_INVALID);
}
END_TEST

/* Trainings that would go on with a nice curve and wrong numbers. */
START_TEST(parameters_that_overlap_or_share_a_name_are_refused)
{
    dp_part_t two[2] = {part(2, 0, 0, 12), part(2, 0, 0, 12)};

    REFUSED(a->list[1].offset = 2, "parameters head.gain and head.w overlap");
    REFUSED(a->list[0].count = 6, "parameters head.gain and head.w overlap");
    REFUSED(a->list[1].name = "gain", "two parameters of the stage are called head.gain");
    refused(two, 2, 8, DP_F64, "two parameters of the stage are called body.gain: give the parts different prefixes");
}
END_TEST

START_TEST(an_expert_is_said_to_be_one)
{
    dp_param_t plain = {.name = "gain", .count = 3};
    attempt_t a;
    dp_stage_t *stage = NULL;

    REFUSED(a->list[1].sharded = 0, "sharded is 0 and expert 4");
    REFUSED(a->list[1].sharded = 2, "sharded is 2");
    fresh(&a)->list[0] = plain; /* zero is the default: the same on all ranks */
    ck_assert_int_eq(dp_stage_create(&a.part, 1, 8, DP_F64, &stage), DP_OK);
    ck_assert_uint_eq(stage->info.param_list[0].sharded, 0);
    dp_stage_free(stage);
}
END_TEST

static dp_status_t on_host(void *self, const dp_segment_call_t *call)
{
    return see(self, call, -1);
}

START_TEST(host_functions_are_launched_with_self_and_call)
{
    dp_segment_call_t call = {.microbatch = 7};
    dp_stream_t s = {.status = DP_OK};
    attempt_t a;
    dp_stage_t *stage = NULL;

    fresh(&a);
    a.segments[0].forward = a.segments[0].backward_input = a.segments[0].backward_weight = NULL;
    a.segments[0].host_forward = a.segments[0].host_backward_input = a.segments[0].host_backward_weight = on_host;
    REFUSED(a->segments[0].host_forward = on_host, "has both forward and host_forward: give one of them");
    REFUSED(a->segments[0].host_backward_input = on_host, "has both backward_input and host_backward_input");
    REFUSED(a->segments[0].host_backward_weight = on_host, "has both backward_weight and host_backward_weight");
    REFUSED((a->segments[0].recompute = recompute, a->segments[0].host_recompute = on_host),
            "has both recompute and host_recompute");
    ck_assert_int_eq(dp_stage_create(&a.part, 1, 8, DP_F64, &stage), DP_OK);
    ck_assert(stage->host && stage->shapes[0].has_weight);
    nseen = 0;
    for (int pass = 0; pass < 3; pass++) {
        static const dp_op_kind_t passes[] = {DP_OP_F, DP_OP_I, DP_OP_W};

        ck_assert_int_eq(dp__stage_put(stage, 0, passes[pass], &call, &inline_device_vt, &s), DP_OK);
    }
    ck_assert_int_eq(nseen, 3);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(seen[i].which, 1);
        ck_assert_int_eq(seen[i].call.microbatch, 7);
    }
    dp_stage_free(stage);
}
END_TEST

static void *reduced[4];
static int nreduced;

static dp_status_t reduce(void *self, void *grads, dp_stream_t *s)
{
    (void)s;
    reduced[nreduced++] = grads;
    return self != NULL ? DP_OK : DP_ERR_PEER;
}

START_TEST(parts_have_the_last_word_on_their_gradients)
{
    static char grads[4096];
    uint64_t revisions[2] = {3, 4};
    dp_part_t parts[] = {part(1, 0, 0, 12), part(2, 0, 0, 13), part(3, 0, 0, 12)};
    dp_stage_t *stage = NULL;

    parts[0].reduce = parts[2].reduce = reduce;
    parts[0].reduce_self = parts[2].reduce_self = &stage;
    parts[1].revision = &revisions[0];
    parts[2].revision = &revisions[1];
    ck_assert_int_eq(dp_stage_create(parts, 3, BOUNDARY, DP_BF16, &stage), DP_OK);
    nreduced = 0;
    ck_assert_int_eq(dp__stage_reduce(stage, grads, NULL), DP_OK);
    ck_assert_int_eq(nreduced, 2);
    ck_assert_ptr_eq(reduced[0], grads);
    /* 12 and 13 of bf16 rounded up, gradients in fp32 */
    ck_assert_ptr_eq(reduced[1], grads + 2 * 32 * sizeof(float));
    ck_assert_uint_eq(dp__stage_revision(stage), 7);
    revisions[0]++;
    ck_assert_uint_eq(dp__stage_revision(stage), 8);
    dp_stage_free(stage);
    parts[0].reduce_self = NULL;
    ck_assert_int_eq(dp_stage_create(parts, 3, BOUNDARY, DP_F64, &stage), DP_OK);
    nreduced = 0;
    ck_assert_int_eq(dp__stage_reduce(stage, grads, NULL), DP_ERR_PEER);
    ck_assert_int_eq(nreduced, 1);
    dp_stage_free(stage);
}
END_TEST

START_TEST(segments_are_numbered_in_16_bits)
{
    enum { MOST = INT16_MAX };
    dp_part_t *parts = malloc((MOST / 2 + 1) * sizeof(*parts));
    dp_stage_t *stage = NULL;
    dp__stage_info_t info;

    for (int i = 0; i <= MOST / 2; i++)
        parts[i] = part(1, 0, 0, 12);
    given[1].sizes.nparams = 0; /* names would be doubled */
    refused(parts, MOST / 2 + 1, 8, DP_F32, "segments");
    ck_assert_int_eq(dp_stage_create(parts, MOST / 2, 8, DP_F32, &stage), DP_OK);
    info = stage->info;
    ck_assert_int_eq(info.nsegments, MOST - 1);
    ck_assert_str_eq(stage->segments[MOST - 2].segment->name, "second");
    dp_stage_free(stage);
    free(parts);
}
END_TEST

START_TEST(out_of_memory_leaves_nothing)
{
    oom_install();
    for (long k = 0;; k++) {
        dp_part_t parts[] = {part(1, 10, 700, 12), part(2, 65, 30, 13)};
        dp_stage_t *stage = NULL;
        dp_status_t status;
        bool struck;

        oom_arm(k, _i);
        status = dp_stage_create(parts, 2, BOUNDARY, DP_F32, &stage);
        struck = oom_struck();
        oom_disarm();
        dp_stage_free(stage);
        ck_assert_int_eq(oom_live(), 0);
        if (!struck)
            break;
        ck_assert_int_eq(status, DP_ERR_NOMEM);
    }
    oom_uninstall();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stage");
    TCase *oom_case = tcase_create("oom");

    SUITE_ADD(suite, sizes_and_parameters_add_up);
    SUITE_ADD(suite, a_pass_flows_from_part_to_part);
    SUITE_ADD(suite, what_is_in_the_backward_buffer);
    SUITE_ADD(suite, senseless_parts_are_refused);
    SUITE_ADD(suite, sums_of_sizes_that_wrap_are_refused);
    SUITE_ADD(suite, only_plain_parameters_are_shared);
    SUITE_ADD(suite, a_part_needs_no_sizes);
    SUITE_ADD(suite, parameters_that_overlap_or_share_a_name_are_refused);
    SUITE_ADD(suite, an_expert_is_said_to_be_one);
    SUITE_ADD(suite, host_functions_are_launched_with_self_and_call);
    SUITE_ADD(suite, parts_have_the_last_word_on_their_gradients);
    SUITE_ADD(suite, segments_are_numbered_in_16_bits);
    tcase_add_loop_test(oom_case, out_of_memory_leaves_nothing, 0, 2);
    suite_add_tcase(suite, oom_case);
    return suite_run(suite);
}
