/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_state.c: what dp_pipeline_register_state takes and what it refuses. */
#include "tests/support/oom.h"
#include "tests/support/suite.h"
#include "tests/support/thread_ranks.h"

static double values[LAYERS * LAYER_PARAMS];

static void refused(dp_pipeline_t *p, dp_state_t state, const char *words)
{
    state.struct_size = sizeof(state);
    ck_assert_int_eq(dp_pipeline_register_state(p, &state), DP_ERR_INVALID);
    ck_assert_msg(strstr(dp_last_error(), words) != NULL, "\"%s\" is not in: %s", words, dp_last_error());
}

static void accepted(dp_pipeline_t *p, dp_state_t state)
{
    state.struct_size = sizeof(state);
    ck_assert_msg(dp_pipeline_register_state(p, &state) == DP_OK, "%s", dp_last_error());
}

/* All right; the name is the caller's own again when register returns. */
static dp_state_t mean_of(int32_t chunk, char *name)
{
    return (dp_state_t){.name = name, .chunk = chunk, .memory = values, .dtype = DP_F64};
}

static dp_state_t step_of(const char *name)
{
    return (dp_state_t){.name = name, .scope = DP_STATE_JOB, .host = 1, .memory = values, .dtype = DP_I64, .count = 1};
}

static dp_status_t use(rank_t *rank, dp_pipeline_t *p)
{
    char name[200] = "adam.mean";
    dp_state_t s;

    (void)rank;
    for (int32_t c = 0; c < 2; c++)
        accepted(p, mean_of(c, name));
    memset(name, 'x', sizeof(name) - 1);
    accepted(p, step_of("step"));

    refused(p, mean_of(0, "adam.mean"), "\"adam.mean\" is registered already");
    refused(p, step_of("adam.mean"), "\"adam.mean\" is registered already");
    refused(p, step_of(NULL), "name is NULL");
    refused(p, step_of(""), "\"\" is no name");
    refused(p, step_of("3rd"), "\"3rd\" is no name");
    refused(p, step_of("a/b"), "\"a/b\" is no name");
    refused(p, step_of("a\nb"), "is no name");
    refused(p, step_of(name), "at most 127");
    refused(p, mean_of(2, "squares"), "chunk 2: this rank has 2");
    refused(p, mean_of(-1, "squares"), "chunk -1");
    s = mean_of(0, "squares"), s.count = 1;
    refused(p, s, "count is 1");
    s = mean_of(0, "squares"), s.memory = NULL;
    refused(p, s, "memory is NULL");
    s = step_of("rng"), s.count = 0;
    refused(p, s, "a count of 0 elements");
    s = step_of("rng"), s.count = SIZE_MAX / 4;
    refused(p, s, "elements cannot be");
    s = step_of("rng"), s.dtype = (dp_dtype_t)5;
    refused(p, s, "dtype is none of dp_dtype_t");
    s = step_of("rng"), s.scope = (dp_state_scope_t)5;
    refused(p, s, "scope 5");
    s = step_of("rng"), s.dtype = DP_U8, s.count = 7;
    accepted(p, s);
    ck_assert_int_eq(dp_pipeline_register_state(p, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(dp_pipeline_register_state(NULL, &s), DP_ERR_INVALID);
    s = step_of("short"), s.struct_size = 8;
    ck_assert_int_eq(dp_pipeline_register_state(p, &s), DP_ERR_INVALID);
    return rank_step(p, 0, NULL); /* and nothing of it has harmed the pipeline */
}

START_TEST(what_is_registered)
{
    rank_t ranks[2];

    for (int r = 0; r < 2; r++) {
        rank_prepare(&ranks[r], "dualpipe", 4);
        ranks[r].use = use;
    }
    ranks_run(ranks, 2);
    for (int r = 0; r < 2; r++)
        rank_expect(&ranks[r], r, DP_OK, NULL, 0);
}
END_TEST

static dp_status_t use_without_memory(rank_t *rank, dp_pipeline_t *p)
{
    const long before = oom_live();

    (void)rank;
    for (long k = 0;; k++) {
        dp_state_t state = step_of("step");
        dp_status_t status;
        bool struck;

        state.struct_size = sizeof(state);
        oom_arm(k, false);
        status = dp_pipeline_register_state(p, &state);
        struck = oom_struck();
        oom_disarm();
        if (!struck) {
            ck_assert_int_eq(status, DP_OK);
            ck_assert_int_gt(k, 0);
            return DP_OK;
        }
        ck_assert_int_eq(status, DP_ERR_NOMEM);
        ck_assert_int_eq(oom_live(), before);
    }
}

START_TEST(without_memory)
{
    rank_t rank;

    oom_install();
    rank_prepare(&rank, "1f1b", 1);
    rank.use = use_without_memory;
    ranks_run(&rank, 1);
    rank_expect(&rank, 0, DP_OK, NULL, 0);
    oom_uninstall();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("state");

    SUITE_ADD(suite, what_is_registered);
    SUITE_ADD(suite, without_memory);
    return suite_run(suite);
}
