/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * forwards.c: a schedule with nothing but its forwards, one by one or two by two. */
#include <dualpipe/schedule.h>

#include "base/memory.h"
#include "schedule/passes.h"

/* The forwards of an operation, into `out` unless it is NULL. Returns how many. */
static int32_t forwards_in(const dp_schedule_t *s, const dp_op_t *op, dp_pass_t *out)
{
    bool braid = op->kind == DP_OP_BRAID;
    dp_pass_t own[2];
    const dp_pass_t *passes = braid ? s->braids[op->microbatch].passes : own;
    int32_t n = braid ? s->braids[op->microbatch].npasses : dp__op_passes(op, own), count = 0;

    for (int32_t i = 0; i < n; i++)
        if (passes[i].kind == DP_OP_F) {
            if (out != NULL)
                out[count] = passes[i];
            count++;
        }
    return count;
}

/* The order of a rank: its forwards; two by two, those of even micro-batches, each of which brings the next one along.
 * That is an order that every rank can keep, as it is one of the pairs. In a loop twice as many micro-batches then have
 * to be under way, so there each chunk takes 2P of them before the next chunk does. Returns how many. */
static int64_t list_rank(const dp_schedule_t *full, int32_t rank, int overlap, dp_pass_t *out)
{
    int32_t microbatches = dp_schedule_path_microbatches(full, 0), round = 2 * full->ranks;
    int64_t n = 0, kept = 0;

    if (overlap && full->placement == DP_PLACE_LOOP) {
        for (int32_t from = 0; from < microbatches; from += round)
            for (int32_t chunk = 0; chunk < full->chunks; chunk++)
                for (int32_t m = from; m < from + round && m < microbatches; m += 2)
                    out[kept++] = (dp_pass_t){DP_OP_F, 0, (int16_t)chunk, m};
        return kept;
    }
    for (int64_t i = full->first[rank]; i < full->first[rank + 1]; i++)
        n += forwards_in(full, &full->ops[i], &out[n]);
    for (int64_t i = 0; i < n; i++)
        if (!overlap || out[i].microbatch % 2 == 0)
            out[kept++] = out[i];
    return kept;
}

static dp_status_t put_rank(const dp_schedule_t *full, int32_t rank, int overlap, dp_pass_t *forwards,
                            dp_schedule_t *schedule)
{
    int32_t microbatches = dp_schedule_path_microbatches(full, 0);
    int64_t n = list_rank(full, rank, overlap, forwards);
    dp_status_t status = DP_OK;

    for (int64_t i = 0; i < n && status >= 0; i++) {
        dp_pass_t two[2] = {forwards[i], forwards[i]};
        dp_op_t *op = &schedule->ops[schedule->first[rank] + i];
        int32_t number = 0;

        two[1].microbatch++;
        *op = (dp_op_t){DP_OP_F, two[0].chunk, -1, two[0].microbatch, -1};
        if (!overlap || two[1].microbatch == microbatches)
            continue;
        status = dp_schedule_add_braid(schedule, &(dp_braid_t){2, two, "turns"}, &number);
        *op = (dp_op_t){DP_OP_BRAID, -1, -1, number, -1};
    }
    return status;
}

static dp_status_t put_all(const dp_schedule_t *full, int overlap, dp_pass_t *forwards, int64_t *counts,
                           dp_schedule_t **only)
{
    dp_status_t status;

    for (int32_t r = 0; r < full->ranks; r++)
        counts[r] = list_rank(full, r, overlap, forwards);
    status =
        dp_schedule_create(full->method, full->placement, full->ranks, full->microbatches, full->chunks, counts, only);
    for (int32_t r = 0; r < full->ranks && status >= 0; r++)
        status = put_rank(full, r, overlap, forwards, *only);
    return status;
}

dp_status_t dp_schedule_forwards(const dp_schedule_t *schedule, int overlap, dp_schedule_t **forwards_out)
{
    size_t ranks = (size_t)schedule->ranks, most = 1;
    int64_t *counts = dp__calloc(ranks, sizeof(*counts));
    dp_schedule_t *only = NULL;
    dp_pass_t *forwards;
    dp_status_t status;

    *forwards_out = NULL;
    for (int32_t r = 0; r < schedule->ranks; r++) {
        size_t n = 0;

        for (int64_t i = schedule->first[r]; i < schedule->first[r + 1]; i++)
            n += (size_t)forwards_in(schedule, &schedule->ops[i], NULL);
        most = n > most ? n : most;
    }
    forwards = dp__calloc(most, sizeof(*forwards));
    status = counts != NULL && forwards != NULL ? put_all(schedule, overlap, forwards, counts, &only)
                                                : dp_fail(DP_ERR_NOMEM, "schedule: no memory for %zu forwards", most);
    dp__free(forwards);
    dp__free(counts);
    if (status < 0) {
        dp_schedule_free(only);
        return status;
    }
    only->forward_only = 1;
    *forwards_out = only;
    return DP_OK;
}
