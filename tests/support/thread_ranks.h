/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * thread_ranks.h: a small job of ranks that are threads of the test: each opens a pipeline of the
 * residual model, does what the test wants with it, closes it, and says what became of it. */
#ifndef DP_TESTS_THREAD_RANKS_H
#define DP_TESTS_THREAD_RANKS_H

#include "residual_model.h"

#include <dirent.h>
#include <pthread.h>

enum { RANKS_MOST = 8, MICROBATCHES_MOST = 32 };

typedef struct rank rank_t;
struct rank {
    dp_pipeline_options_t options;
    residual_part_t part;
    /* NULL: the model's */
    dp_status_t (*build)(rank_t *rank, int32_t stage, int32_t stages, dp_stage_t **stage_out);
    /* NULL: nothing */
    dp_status_t (*use)(rank_t *rank, dp_pipeline_t *p);
    int argument;
    /* results */
    dp_status_t status; /* of open, else of use */
    char message[1024];
    dp_stage_t *stages[64];
    int nstages;
    pthread_t thread;
};

static dp_status_t rank_build(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                              dp_stage_t **stage_out)
{
    rank_t *rank = user;
    dp_status_t status;

    rank->part.device = context->device_vt;
    status = rank->build != NULL ? rank->build(rank, stage, stages, stage_out)
                                 : residual_stage(&rank->part, stage, stages, stage_out);
    if (status >= 0 && *stage_out != NULL)
        rank->stages[rank->nstages++] = *stage_out;
    return status;
}

/* Options that are right, for a test to spoil. */
static void rank_prepare(rank_t *rank, const char *method, int32_t microbatches)
{
    memset(rank, 0, sizeof(*rank));
    rank->options = (dp_pipeline_options_t){
        .struct_size = sizeof(rank->options),
        .method = method,
        .microbatches = microbatches,
        .boundary_bytes = TENSOR * sizeof(double),
        .dtype = DP_F64,
        .build = rank_build,
        .user = rank,
    };
}

static inline dp_status_t rank_step(dp_pipeline_t *p, int forward_only, double *loss_out)
{
    static _Thread_local double tensors[2][MICROBATCHES_MOST][TENSOR];
    const void *in[MICROBATCHES_MOST], *target[MICROBATCHES_MOST];
    dp_step_t step = {.struct_size = sizeof(step), .inputs = in, .targets = target, .forward_only = forward_only};
    dp_status_t status;

    for (unsigned i = 0; i < MICROBATCHES_MOST; i++) {
        residual_tensor(tensors[0][i], 1, 0, i);
        residual_tensor(tensors[1][i], 2, 0, i);
        in[i] = tensors[0][i], target[i] = tensors[1][i];
    }
    status = dp_pipeline_step(p, &step);
    if (loss_out != NULL)
        *loss_out = step.loss;
    return status;
}

static void *rank_main(void *arg)
{
    rank_t *rank = arg;
    dp_pipeline_t *p = NULL;

    rank->status = dp_pipeline_open(&rank->options, &p);
    if (rank->status >= 0 && rank->use != NULL)
        rank->status = rank->use(rank, p);
    snprintf(rank->message, sizeof(rank->message), "%s", rank->status < 0 ? dp_last_error() : "");
    dp_pipeline_close(p);
    for (int i = 0; i < rank->nstages; i++)
        dp_stage_free(rank->stages[i]);
    dp_group_leave(rank->options.group);
    return NULL;
}

/* Gives the ranks a job. */
static void ranks_job(rank_t *ranks, int n)
{
    dp_group_t *groups[RANKS_MOST];

    ck_assert_int_le(n, RANKS_MOST);
    ck_assert_int_eq(dp_group_local(n, NULL, groups), DP_OK);
    for (int r = 0; r < n; r++)
        ranks[r].options.group = groups[r];
}

/* Runs ranks that have one. */
static void ranks_go(rank_t *ranks, int n)
{
    for (int r = 0; r < n; r++)
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    for (int r = 0; r < n; r++)
        pthread_join(ranks[r].thread, NULL);
}

static inline void ranks_run(rank_t *ranks, int n)
{
    ranks_job(ranks, n);
    ranks_go(ranks, n);
}

static inline void rank_expect(const rank_t *rank, int number, dp_status_t status, const char *const *words, int nwords)
{
    ck_assert_msg(rank->status == status, "rank %d: %s instead of %s: %s", number, dp_status_name(rank->status),
                  dp_status_name(status), rank->message);
    for (int i = 0; i < nwords; i++)
        ck_assert_msg(strstr(rank->message, words[i]) != NULL, "rank %d: \"%s\" is not in: %s", number, words[i],
                      rank->message);
}

/* Entries of a folder of /proc/self: "fd", "task". */
static inline long count_own(const char *what)
{
    char path[64];
    DIR *dir;
    long n = 0;

    snprintf(path, sizeof(path), "/proc/self/%s", what);
    dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

#endif
