/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_finite.c: check_finite names the first operation, micro-batch and parameter that is not
 * finite, on all ranks, and says nothing of a training that is. */
#include "tests/support/suite.h"
#include "tests/support/thread_ranks.h"

#include <math.h>

enum { M = 8, P = 4, STAGE = 2 };

typedef enum poison { NONE, A_PARAMETER, THE_GRADIENT, A_WEIGHT_GRADIENT, POISONS } poison_t;

/* A gradient overflows where the loss is scaled by the largest number. Where w1 is zero, layers
 * hand large inputs and gradients on as they are, and their product in the gradient of w1 is the
 * first thing that is too large: in every layer, so that the ranks' pace decides which is the
 * first. */
static dp_status_t train(rank_t *rank, dp_pipeline_t *p)
{
    static _Thread_local double tensors[2][M][TENSOR];
    const void *in[M], *target[M];
    dp_step_t step = {.struct_size = sizeof(step), .inputs = in, .targets = target};

    for (int32_t c = 0; c < dp_pipeline_chunks(p); c++) {
        dp_chunk_view_t view = {.struct_size = sizeof(view)};

        ck_assert_int_eq(dp_pipeline_chunk(p, c, &view), DP_OK);
        for (size_t i = 0; i < view.param_count; i++)
            ((double *)view.params)[i] = 0.5;
        /* w1, w2, w1, ... */
        for (uint32_t k = 0; k < view.nparams && rank->argument == A_WEIGHT_GRADIENT; k += 2)
            memset((double *)view.params + view.param_list[k].offset, 0, WEIGHTS * sizeof(double));
        if (rank->argument == A_PARAMETER && view.stage == STAGE)
            ((double *)view.params)[view.param_list[1].offset + 3] = INFINITY;
    }
    for (unsigned i = 0; i < M; i++) {
        residual_tensor(tensors[0][i], 1, 0, i);
        residual_tensor(tensors[1][i], 2, 0, i);
        for (int k = 0; k < TENSOR && rank->argument == A_WEIGHT_GRADIENT; k++)
            tensors[0][i][k] = 1e100;
        in[i] = tensors[0][i], target[i] = tensors[1][i];
    }
    step.loss_scale = rank->argument == THE_GRADIENT ? 1.7e308 : rank->argument == A_WEIGHT_GRADIENT ? 1e150 : 1.0 / M;
    return dp_pipeline_step(p, &step);
}

static void poison_ranks(int n, const char *method, int poison, const char *const *words, int nwords)
{
    rank_t ranks[P];

    for (int r = 0; r < n; r++) {
        rank_prepare(&ranks[r], method, M);
        ranks[r].options.check_finite = 1;
        ranks[r].use = train;
        ranks[r].argument = poison;
    }
    ranks_run(ranks, n);
    for (int r = 0; r < n; r++)
        rank_expect(&ranks[r], r, poison == NONE ? DP_OK : DP_ERR_NUMERIC, words, poison == NONE ? 0 : nwords);
}

START_TEST(the_first_is_named)
{
    static const char *const words[POISONS][6] = {
        [A_PARAMETER] = {"step 0: ", " of stage 2, chunk ", "micro-batch ", "is not finite: element ",
                         "the parameter that is not finite itself is ", ""},
        [THE_GRADIENT] = {"step 0: ", " of stage ", "micro-batch ", "gradient of the ", "is not finite: element ", ""},
        [A_WEIGHT_GRADIENT] = {"step 0: ", " of stage ", "micro-batch ",
                               "the gradient of the parameters is not finite: ",
                               "the gradient that is not finite is that of layer", ".w1"},
    };

    poison_ranks(P, "dualpipe", _i, words[_i], 6);
}
END_TEST

/* Alone, a rank begins its backwards with the last layer. */
START_TEST(one_rank_finds_the_last_layer_first)
{
    static const char *const words[] = {
        "rank 0: step 0: ", " of stage 0, chunk 0, micro-batch 0: ", "the gradient of the parameters is not finite: ",
        "the gradient that is not finite is that of layer7.w1"};

    poison_ranks(1, "1f1b", A_WEIGHT_GRADIENT, words, 4);
}
END_TEST

/* Without it the step ends as if all were well. */
START_TEST(nobody_looks_unless_asked)
{
    rank_t ranks[P];

    for (int r = 0; r < P; r++) {
        rank_prepare(&ranks[r], "dualpipe", M);
        ranks[r].use = train;
        ranks[r].argument = A_PARAMETER;
    }
    ranks_run(ranks, P);
    for (int r = 0; r < P; r++)
        rank_expect(&ranks[r], r, DP_OK, NULL, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("finite");
    TCase *finite = tcase_create("finite");

    tcase_add_loop_test(finite, the_first_is_named, 0, POISONS);
    tcase_add_test(finite, one_rank_finds_the_last_layer_first);
    tcase_add_test(finite, nobody_looks_unless_asked);
    suite_add_tcase(suite, finite);
    return suite_run(suite);
}
