/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_program_pair.c: the order in which the segments of a pair are enqueued. */
#include "tests/support/suite.h"

#include "program/pair.h"

#include <stdio.h>
#include <string.h>

/* A list as letters: a layer is "ADMC", any other is another segment; capitals but D and C have
 * weights. */
static int32_t shapes_of(const char *text, dp__segment_shape_t *shapes)
{
    int32_t n = 0;

    for (; *text != '\0'; text++)
        shapes[n++] = (dp__segment_shape_t){
            .role = *text == 'A'   ? DP_ROLE_ATTENTION
                    : *text == 'D' ? DP_ROLE_DISPATCH
                    : *text == 'M' ? DP_ROLE_MLP
                    : *text == 'C' ? DP_ROLE_COMBINE
                                   : DP_ROLE_OTHER,
            .lane = *text == 'D' || *text == 'C' ? DP_LANE_ALL_TO_ALL : DP_LANE_COMPUTE,
            .has_weight = *text != 'D' && *text != 'C' && *text >= 'A' && *text <= 'Z',
        };
    return n;
}

/* "F0 I3 W3 ..." */
static void print(const dp__pair_step_t *steps, int32_t count, char *text)
{
    text[0] = '\0';
    for (int32_t k = 0; k < count; k++)
        sprintf(text + strlen(text), "%s%s%d", k > 0 ? " " : "", dp_op_kind_name(steps[k].pass), steps[k].segment);
}

static const struct {
    const char *forward, *backward, *order;
} known[] = {
    /* combine(B) attn(F) mlp(B) dispatch(F) dispatch(B) mlp(W) mlp(F) attn(B) attn(W) combine(F) */
    {"ADMC", "ADMC", "I3 F0 I2 F1 I1 W2 F2 I0 W0 F3"},
    {"ADMCADMC", "ADMCADMC", "I7 F0 I6 F1 I5 W6 F2 I4 W4 F3 I3 F4 I2 F5 I1 W2 F6 I0 W0 F7"},
    {"ADMC", "", "F0 F1 F2 F3"},
    {"", "ADMC", "I3 I2 I1 W2 I0 W0"},
    {"", "", ""},
    {"XX", "XX", "I1 W1 F0 I0 W0 F1"},
    {"xxx", "x", "I0 F0 F1 F2"},
    {"x", "xxx", "I2 F0 I1 I0"},
    /* an embedding before, a head behind: the layers still meet */
    {"EADMC", "EADMC", "F0 I4 F1 I3 F2 I2 W3 F3 I1 W1 F4 I0 W0"},
    {"ADMCH", "ADMCH", "I4 W4 I3 F0 I2 F1 I1 W2 F2 I0 W0 F3 F4"},
    {"ADMCADMC", "ADMC", "I3 F0 I2 F1 I1 W2 F2 I0 W0 F3 F4 F5 F6 F7"},
    {"ADMC", "ADMCADMC", "I7 F0 I6 F1 I5 W6 F2 I4 W4 F3 I3 I2 I1 W2 I0 W0"},
    {"ADM", "DMC", "I2 F0 I1 W1 F1 I0 F2"}, /* no whole layers */
};

START_TEST(known_orders)
{
    dp__segment_shape_t forward[16], backward[16];
    dp__pair_step_t steps[64];
    char text[512];
    int32_t nf = shapes_of(known[_i].forward, forward), nb = shapes_of(known[_i].backward, backward);

    print(steps, dp__pair_order(forward, nf, backward, nb, steps), text);
    ck_assert_str_eq(text, known[_i].order);
}
END_TEST

/* Whatever the lists: forwards in order, backwards in reverse order, each W once and behind its
 * I. */
START_TEST(any_lists_are_merged_completely)
{
    unsigned seed = 5;

    for (int round = 0; round < 2000; round++) {
        dp__segment_shape_t list[2][40];
        int32_t count[2] = {0, 0};
        dp__pair_step_t steps[121] = {0};
        int32_t forward = 0, backward, total, weights = 0, wanted = 0;
        char seen[40] = {0};

        for (int h = 0; h < 2; h++) {
            static const char *const parts[] = {"ADMC", "x", "X", "A", "DM", "ADM", "C", "ADMCADMC"};
            int n;

            seed = seed * 1103515245u + 12345u;
            n = (int)(seed >> 16) % 6;
            while (n-- > 0) {
                seed = seed * 1103515245u + 12345u;
                count[h] += shapes_of(parts[(seed >> 16) % 8], list[h] + count[h]);
            }
        }
        total = dp__pair_order(list[0], count[0], list[1], count[1], steps);
        backward = count[1];
        for (int32_t k = 0; k < total; k++) {
            int16_t segment = steps[k].segment;

            if (steps[k].pass == DP_OP_F) {
                ck_assert_int_eq(segment, forward++);
            } else if (steps[k].pass == DP_OP_I) {
                ck_assert_int_eq(segment, --backward);
            } else {
                ck_assert_int_eq(steps[k].pass, DP_OP_W);
                ck_assert_int_ge(segment, backward);
                ck_assert_int_lt(segment, count[1]);
                ck_assert_int_eq(seen[segment]++, 0);
                ck_assert_int_eq(list[1][segment].has_weight, 1);
                weights++;
            }
        }
        for (int32_t k = 0; k < count[1]; k++)
            wanted += list[1][k].has_weight;
        ck_assert_int_eq(forward, count[0]);
        ck_assert_int_eq(backward, 0);
        ck_assert_int_eq(weights, wanted);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("program_pair");
    TCase *tc = tcase_create("pair");

    tcase_add_loop_test(tc, known_orders, 0, (int)(sizeof(known) / sizeof(known[0])));
    tcase_add_test(tc, any_lists_are_merged_completely);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
