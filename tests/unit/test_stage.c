/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_stage.c: where the parts of a stage find their memory, and what a stage refuses. */
#include "../support/oom.h"
#include "../support/suite.h"

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

static const dp_param_t params[2] = {{"gain", DP_PARAM_VECTOR, 0, 3, 1, 1, -1}, {"w", DP_PARAM_MATRIX, 5, 7, 3, 0, 4}};

static dp_part_t part(int which, size_t saved, size_t work, size_t count)
{
    return (dp_part_t){
        .struct_size = sizeof(dp_part_t),
        .nsegments = 2,
        .segments = {{sizeof(dp_segment_t), "first", DP_ROLE_OTHER, DP_LANE_COMPUTE, (void *)(intptr_t)which, forward,
                      backward_input, backward_weight},
                     {sizeof(dp_segment_t), "second", DP_ROLE_OTHER, DP_LANE_ALL_TO_ALL, (void *)(intptr_t)which, forward,
                      backward_input, NULL}},
        .sizes = {sizeof(dp_block_sizes_t), saved, work, 10 * (size_t)which, count, 2},
        .params = params,
        .prefix = which == 1 ? "head." : which == 2 ? "body." : NULL,
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
    dp_stage_info_t info;

    dp_stage_describe(stage, &info);
    ck_assert_int_eq(info.nsegments, 6);
    ck_assert_uint_eq(info.saved_bytes, 64 + 128 + 64);
    ck_assert_uint_eq(info.work_bytes, 2 * 128 + 700); /* two boundaries, the largest part */
    ck_assert_uint_eq(info.scratch_bytes, 30);
    ck_assert_uint_eq(info.param_count, 16 + 16 + 16); /* 12 and 13 doubles, rounded up to 64 bytes */
    ck_assert_uint_eq(info.nparams, 6);
    ck_assert_str_eq(info.params[0].name, "head.gain");
    ck_assert_str_eq(info.params[3].name, "body.w");
    ck_assert_str_eq(info.params[4].name, "gain");
    ck_assert_uint_eq(info.params[3].offset, 16 + 5);
    ck_assert_uint_eq(info.params[5].offset, 32 + 5);
    ck_assert_int_eq(info.params[5].expert, 4);
    dp_stage_free(stage);
}
END_TEST

START_TEST(a_pass_flows_from_part_to_part)
{
    static char memory[6][8192];
    dp_segment_call_t call = {.params = memory[0], .grads = memory[1], .saved = memory[2], .work = memory[3], .x = memory[4],
                              .y = memory[5], .input = "in", .target = "out", .loss = (double *)(void *)memory[5]};
    dp_stage_t *stage = three_parts();

    nseen = 0;
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(dp__stage_run(stage, i, DP_OP_F, &call, NULL), DP_OK);
    ck_assert_ptr_eq(seen[0].call.x, memory[4]);
    ck_assert_ptr_eq(seen[0].call.y, seen[2].call.x);
    ck_assert_ptr_eq(seen[2].call.y, seen[5].call.x);
    ck_assert_ptr_ne(seen[2].call.x, seen[2].call.y);
    ck_assert_ptr_eq(seen[5].call.y, memory[5]);
    ck_assert_ptr_eq(seen[2].call.params, memory[0] + 16 * sizeof(double));
    ck_assert_ptr_eq(seen[4].call.grads, memory[1] + 32 * sizeof(double));
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
        ck_assert_int_eq(dp__stage_run(stage, i, DP_OP_I, &call, NULL), DP_OK);
    ck_assert_ptr_eq(seen[0].call.dy, memory[4]);
    ck_assert_ptr_eq(seen[0].call.dx, seen[2].call.dy);
    ck_assert_ptr_eq(seen[3].call.dx, seen[4].call.dy);
    ck_assert_ptr_ne(seen[2].call.dx, seen[2].call.dy);
    ck_assert_ptr_eq(seen[5].call.dx, memory[5]);
    nseen = 0;
    ck_assert_int_eq(dp__stage_run(stage, 2, DP_OP_W, &call, NULL), DP_OK);
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

START_TEST(senseless_parts_are_refused)
{
    const dp_param_t unnamed[2] = {params[0], {NULL, DP_PARAM_MATRIX, 5, 7, 3, 0, 4}};
    dp_part_t p = part(1, 10, 10, 12), bad;

    refused(NULL, 1, 8, DP_F32, "parts");
    refused(&p, 0, 8, DP_F32, "0 parts");
    refused(&p, 1, 8, DP_I64, "dtype");
    refused(&p, 1, SIZE_MAX - 3, DP_F32, "boundary");
    bad = p, bad.struct_size = 8;
    refused(&bad, 1, 8, DP_F32, "struct_size");
    bad = p, bad.nsegments = DP_PART_SEGMENTS + 1;
    refused(&bad, 1, 8, DP_F32, "segments");
    bad = p, bad.segments[1].backward_input = NULL;
    refused(&bad, 1, 8, DP_F32, "backward_input");
    bad = p, bad.segments[1].lane = DP_LANE_P2P;
    refused(&bad, 1, 8, DP_F32, "lane");
    bad = p, bad.segments[0].name = "";
    refused(&bad, 1, 8, DP_F32, "name");
    bad = p, bad.params = unnamed;
    refused(&bad, 1, 8, DP_F32, "no name");
    bad = p, bad.params = NULL;
    refused(&bad, 1, 8, DP_F32, "no list");
    bad = p, bad.sizes.param_count = 11;
    refused(&bad, 1, 8, DP_F32, "outside");
    bad = p, bad.sizes.saved_bytes = SIZE_MAX;
    refused(&bad, 1, 8, DP_F32, "sizes");
    bad = p, bad.sizes.param_count = SIZE_MAX / 4;
    refused(&bad, 1, 8, DP_F64, "sizes");
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
    ck_assert_ptr_eq(reduced[1], grads + 2 * 32 * sizeof(float)); /* 12 and 13 of bf16 rounded up, gradients in fp32 */
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
    dp_stage_info_t info;

    for (int i = 0; i <= MOST / 2; i++)
        parts[i] = part(1, 0, 0, 12);
    refused(parts, MOST / 2 + 1, 8, DP_F32, "segments");
    ck_assert_int_eq(dp_stage_create(parts, MOST / 2, 8, DP_F32, &stage), DP_OK);
    dp_stage_describe(stage, &info);
    ck_assert_int_eq(info.nsegments, MOST - 1);
    ck_assert_ptr_eq(stage->segments[MOST - 2].segment->name, parts[0].segments[1].name);
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
    SUITE_ADD(suite, senseless_parts_are_refused);
    SUITE_ADD(suite, parts_have_the_last_word_on_their_gradients);
    SUITE_ADD(suite, segments_are_numbered_in_16_bits);
    tcase_add_loop_test(oom_case, out_of_memory_leaves_nothing, 0, 2);
    suite_add_tcase(suite, oom_case);
    return suite_run(suite);
}
