/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * saved.h: small checkpoints of two ranks whose every number depends on the step. */
#ifndef DP_TESTS_SAVED_H
#define DP_TESTS_SAVED_H

#include <stdio.h>
#include <string.h>

#include <check.h>

#include "checkpoint/read.h"
#include "checkpoint/write.h"

enum { SAVED_RANKS = 2, SAVED_TENSORS = 4, SAVED_COUNT = 401 };

static const char *const saved_names[SAVED_RANKS][SAVED_TENSORS] = {
    {"layer0.w", "layer0.norm", "adam.mean.layer0.w", "step"},
    {"layer1.w", "layer1.norm", "adam.mean.layer1.w", "data \"quoted\\\""},
};

static void saved_fill(uint64_t step, int rank, double values[SAVED_TENSORS * SAVED_COUNT])
{
    for (int i = 0; i < SAVED_TENSORS * SAVED_COUNT; i++)
        values[i] = (double)step * 1e6 + rank * 1e4 + i;
}

/* Whose the next ones are. */
static dp__origin_t saved_origin = {11, 22};

/* One rank's file. */
static dp_status_t saved_write(const char *folder, uint64_t step, int rank)
{
    static const uint32_t stop = 0;
    double values[SAVED_TENSORS * SAVED_COUNT];
    dp__tensor_t tensors[SAVED_TENSORS];
    dp__write_t write = {
        .folder = folder,
        .step = step,
        .origin = saved_origin,
        .rank = rank,
        .ranks = SAVED_RANKS,
        .tensors = tensors,
        .n = SAVED_TENSORS,
        .parameters = 2,
        .data = (const char *)values,
        .stop = &stop,
    };

    saved_fill(step, rank, values);
    for (int i = 0; i < SAVED_TENSORS; i++)
        tensors[i] = (dp__tensor_t){.name = saved_names[rank][i], .dtype = DP_F64, .count = SAVED_COUNT};
    return dp__checkpoint_write(&write);
}

static dp_status_t saved_all(const char *folder, uint64_t step)
{
    dp_status_t status = DP_OK;

    for (int r = 0; r < SAVED_RANKS && status >= 0; r++)
        status = saved_write(folder, step, r);
    return status < 0 ? status : dp__checkpoint_publish(folder, step, saved_origin, SAVED_RANKS);
}

/* Opens it and reads every tensor. DP_OK: all is there; whatever is read must be of this step. */
static dp_status_t saved_read(const char *folder, uint64_t step)
{
    double values[SAVED_TENSORS * SAVED_COUNT], got[SAVED_COUNT];
    dp_checkpoint_t *c;
    dp_status_t status = dp_checkpoint_open(folder, step, &c);

    if (status < 0)
        return status;
    ck_assert_uint_eq(dp_checkpoint_count(c), SAVED_RANKS * SAVED_TENSORS);
    for (int r = 0; r < SAVED_RANKS; r++) {
        saved_fill(step, r, values);
        for (int i = 0; i < SAVED_TENSORS && status >= 0; i++) {
            const int64_t at = dp_checkpoint_find(c, saved_names[r][i]);

            ck_assert_int_ge(at, 0);
            status = dp_checkpoint_read(c, (uint32_t)at, got, sizeof(got));
            if (status >= 0)
                ck_assert_mem_eq(got, values + i * SAVED_COUNT, sizeof(got));
        }
    }
    dp_checkpoint_close(c);
    return status;
}

#endif
