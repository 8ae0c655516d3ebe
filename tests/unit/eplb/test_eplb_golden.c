/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_eplb_golden.c: the recorded answers of the published code, tests/data/eplb: with stable
 * sorts slot for slot, as it ran except for what ties decide there; and the sizes that it took. */
#include "tests/support/eplb_case.h"
#include "tests/support/suite.h"

static void plan(const eplb_case_t *c, int32_t policy, eplb_desk_t *desk)
{
    dp_eplb_options_t options = {.struct_size = sizeof(options), .policy = policy};

    eplb_desk_open(&c->shape, desk);
    ck_assert_msg(eplb_rebalance(&c->shape, policy == DP_EPLB_AUTO ? NULL : &options, c->weights, desk) == DP_OK, "%s",
                  dp_last_error());
    ck_assert_int_eq(desk->placement.policy,
                     strcmp(c->policy, "hierarchical") == 0 ? DP_EPLB_HIERARCHICAL : DP_EPLB_GLOBAL);
}

static bool same(const int32_t *a, const int32_t *b, int32_t rows, int32_t columns)
{
    return memcmp(a, b, (size_t)rows * (size_t)columns * sizeof(*a)) == 0;
}

static void check_maxload(const eplb_case_t *c, const eplb_desk_t *desk)
{
    for (int32_t layer = 0; layer < c->shape.layers; layer++) {
        double peak = eplb_peak(&c->shape, c->weights + layer * c->shape.experts,
                                desk->placement.physical_to_logical + layer * c->shape.replicas);
        ck_assert_double_le(peak, c->maxload[layer] * (1 + 1e-6));
        ck_assert_double_ge(peak, c->maxload[layer] * (1 - 1e-6));
    }
}

START_TEST(stable_answers_are_equal)
{
    eplb_case_t c;
    eplb_desk_t desk;

    eplb_read("stable", eplb_cases[_i], &c);
    plan(&c, DP_EPLB_AUTO, &desk);
    ck_assert(same(desk.placement.physical_to_logical, c.phy2log, c.shape.layers, c.shape.replicas));
    ck_assert(same(desk.placement.expert_count, c.logcnt, c.shape.layers, c.shape.experts));
    ck_assert_int_eq(desk.placement.max_count, c.maxcnt);
    ck_assert(same(desk.placement.logical_to_physical, c.log2phy, c.shape.layers, c.shape.experts * c.maxcnt));
    eplb_check_valid(&c.shape, &desk.placement);
    check_maxload(&c, &desk);
    eplb_desk_close(&desk);
    eplb_case_clear(&c);
}
END_TEST

static int compare_ints(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

static void sort_rows(int32_t *rows, size_t count, int32_t length)
{
    for (size_t i = 0; i < count; i++)
        qsort(rows + i * (size_t)length, (size_t)length, sizeof(*rows), compare_ints);
}

START_TEST(unmodified_answers_are_equal_up_to_ties)
{
    eplb_case_t c;
    eplb_desk_t desk;
    size_t lists;

    eplb_read("asis", eplb_cases[_i], &c);
    plan(&c, strcmp(c.policy, "hierarchical") == 0 ? DP_EPLB_HIERARCHICAL : DP_EPLB_GLOBAL, &desk);
    lists = (size_t)c.shape.layers * (size_t)c.shape.experts;
    if (!c.tie_phy2log)
        ck_assert(same(desk.placement.physical_to_logical, c.phy2log, c.shape.layers, c.shape.replicas));
    if (!c.tie_logcnt) {
        ck_assert(same(desk.placement.expert_count, c.logcnt, c.shape.layers, c.shape.experts));
        ck_assert_int_eq(desk.placement.max_count, c.maxcnt);
    }
    if (!c.tie_order)
        ck_assert(same(desk.placement.logical_to_physical, c.log2phy, c.shape.layers, c.shape.experts * c.maxcnt));
    eplb_check_valid(&c.shape, &desk.placement);
    if (strcmp(c.policy, "hierarchical") == 0)
        eplb_check_groups(&c.shape, desk.placement.physical_to_logical);
    check_maxload(&c, &desk);
    if (!c.tie_set) {
        sort_rows(desk.placement.logical_to_physical, lists, c.maxcnt);
        sort_rows(c.log2phy, lists, c.maxcnt);
        ck_assert(same(desk.placement.logical_to_physical, c.log2phy, c.shape.layers, c.shape.experts * c.maxcnt));
    }
    eplb_desk_close(&desk);
    eplb_case_clear(&c);
}
END_TEST

/* What the published code takes, this takes; most of what it refuses, this takes as well. */
START_TEST(published_limits_are_no_limits)
{
    char path[1024], line[256], answer[32];
    FILE *file;
    int rows = 0;

    snprintf(path, sizeof(path), "%s/eplb/limits.tsv", getenv("DP_TEST_DATA"));
    file = fopen(path, "r");
    ck_assert(file != NULL);
    while (fgets(line, sizeof(line), file) != NULL) {
        dp_eplb_shape_t s = {.struct_size = sizeof(s)};
        eplb_desk_t desk;
        float weights[512];
        size_t bytes;

        if (line[0] == '#')
            continue;
        ck_assert_int_eq(sscanf(line, "%d %d %d %d %d %d %31s", &s.layers, &s.experts, &s.replicas, &s.groups, &s.nodes,
                                &s.gpus, answer),
                         7);
        rows++;
        for (int k = 0; k < 512; k++)
            weights[k] = (float)(k + 1);
        if (s.experts > s.replicas || s.nodes > s.gpus) { /* no placement exists */
            ck_assert_str_eq(answer, "refused");
            ck_assert_int_eq(dp_eplb_workspace_bytes(&s, &bytes), DP_ERR_INVALID);
            continue;
        }
        eplb_desk_open(&s, &desk);
        ck_assert_msg(eplb_rebalance(&s, NULL, weights, &desk) == DP_OK, "%s: %s", line, dp_last_error());
        eplb_check_valid(&s, &desk.placement);
        if (desk.placement.policy == DP_EPLB_HIERARCHICAL)
            eplb_check_groups(&s, desk.placement.physical_to_logical);
        else if (strcmp(answer, "ok") == 0)
            ck_assert_int_ne(s.groups % s.nodes, 0);
        eplb_desk_close(&desk);
    }
    fclose(file);
    ck_assert_int_eq(rows, 23);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("eplb_golden");
    TCase *recorded = tcase_create("recorded");

    tcase_add_loop_test(recorded, stable_answers_are_equal, 0, EPLB_CASES);
    tcase_add_loop_test(recorded, unmodified_answers_are_equal_up_to_ties, 0, EPLB_CASES);
    suite_add_tcase(suite, recorded);
    SUITE_ADD(suite, published_limits_are_no_limits);
    return suite_run(suite);
}
