/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * tune.c: how much of the device should be communication's alone is best found by trying: the
 * fastest step of a few, on the slowest rank, for each split. */
#include "train_moe.h"

#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 1, TIMED = 3 };

/* SMs for communication. GPUs split in steps of 8; what a device rounds to is in the report. On
 * CPUs: cores. */
static const uint32_t gpu_splits[] = {0, 8, 16, 24, 32}, cpu_splits[] = {0, 1};

typedef struct trial {
    double seconds;              /* of this rank's fastest step */
    uint32_t sms[DP_LANE_COUNT]; /* what the device gave */
} trial_t;

static dp_status_t time_steps(trainer_t *trainer, trial_t *trial)
{
    const dp_build_context_t *where = &trainer->model.context;

    trial->seconds = 0;
    for (int step = 0; step < WARM_UP + TIMED; step++) {
        const double start = now_seconds();
        step_result_t result;
        const dp_status_t status = trainer_step(trainer, step, &result);
        const double seconds = now_seconds() - start;
        if (status < 0)
            return status;
        if (step >= WARM_UP && (trial->seconds == 0 || seconds < trial->seconds))
            trial->seconds = seconds;
    }
    return where->device_vt->partition(where->device, trial->sms);
}

/* *slowest_out: the same on every rank. */
static dp_status_t try_split(const options_t *options, const text_t *text, dp_group_t *group, trial_t *slowest_out)
{
    const int32_t size = dp_group_size(group);
    trial_t own = {0}, *all = calloc((size_t)size, sizeof(*all));
    int64_t begin = 0;
    trainer_t trainer;
    dp_status_t status;

    if (all == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the times of %d ranks", size);
    status = trainer_open(options, text, group, &trainer);
    if (status == DP_OK) {
        status = trainer_recover(&trainer, DP_OK, &begin);
        if (status == DP_OK)
            status = time_steps(&trainer, &own);
        if (status < 0)
            dp_group_abort(group, status, dp_last_error());
        trainer_close(&trainer);
    }
    if (status == DP_OK)
        status = dp_group_all_gather(group, &own, sizeof(own), all);
    for (int32_t r = 0; r < size && status == DP_OK; r++)
        if (r == 0 || all[r].seconds > slowest_out->seconds)
            *slowest_out = all[r];
    free(all);
    return status;
}

dp_status_t tune_comm_sms(options_t *options, const text_t *text, dp_group_t *group, FILE *to)
{
    const int cpu = strstr(options->device, "cpu") != NULL;
    const uint32_t *splits = cpu ? cpu_splits : gpu_splits;
    const size_t n = cpu ? sizeof(cpu_splits) / sizeof(cpu_splits[0]) : sizeof(gpu_splits) / sizeof(gpu_splits[0]);
    double best = 0;
    uint32_t chosen = 0;

    fprintf(to, "comm-sms    wanted  compute  communication  step\n");
    for (size_t i = 0; i < n; i++) {
        options_t one = *options;
        trial_t trial = {0};
        dp_status_t status;

        one.comm_sms = splits[i];
        status = try_split(&one, text, group, &trial);
        if (status < 0)
            return status;
        fprintf(to, "            %6u  %7u  %13u  %.1f ms\n", splits[i], trial.sms[DP_LANE_COMPUTE],
                trial.sms[DP_LANE_ALL_TO_ALL], 1e3 * trial.seconds);
        if (i == 0 || trial.seconds < best) {
            best = trial.seconds;
            chosen = splits[i];
        }
    }
    options->comm_sms = chosen;
    fprintf(to, "            %u it is\n", chosen);
    return DP_OK;
}
