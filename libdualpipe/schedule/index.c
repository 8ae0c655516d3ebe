/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * index.c: exactly once, in range, and in the local order. */
#include "schedule/index.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

int dp__op_print(char *text, size_t bytes, int32_t rank, const dp_op_t *op)
{
    if (op->kind == DP_OP_FB)
        return snprintf(text, bytes, "rank %d FB (F chunk %d mb %d, B chunk %d mb %d)", rank, op->chunk, op->microbatch,
                        op->chunk2, op->microbatch2);
    return snprintf(text, bytes, "rank %d %s chunk %d mb %d", rank, dp_op_kind_name(op->kind), op->chunk,
                    op->microbatch);
}

dp_status_t dp__index_create(const dp_schedule_t *schedule, int64_t operations, dp__index_t *x)
{
    size_t places;

    memset(x, 0, sizeof(*x));
    x->chunks = schedule->chunks;
    x->microbatches = dp_schedule_path_microbatches(schedule, 0);
    places = (size_t)schedule->ranks * (size_t)x->chunks * (size_t)x->microbatches;
    if (operations < 0 || places > (size_t)operations)
        return dp_fail(DP_ERR_REJECTED,
                       "verify: %lld operations, but %d ranks x %d chunks x %d micro-batches need %zu forwards",
                       (long long)operations, schedule->ranks, x->chunks, x->microbatches, places);
    x->forward = dp__allocate(places * sizeof(int32_t), 64);
    x->backward = dp__allocate(places * sizeof(int32_t), 64);
    x->weight = dp__allocate(places * sizeof(int32_t), 64);
    if (x->forward == NULL || x->backward == NULL || x->weight == NULL)
        return dp_fail(DP_ERR_NOMEM, "verify: no memory for %zu micro-batches of chunks", places);
    memset(x->forward, 0xff, places * sizeof(int32_t));
    memset(x->backward, 0xff, places * sizeof(int32_t));
    memset(x->weight, 0xff, places * sizeof(int32_t));
    return DP_OK;
}

void dp__index_clear(dp__index_t *x)
{
    dp__free(x->forward);
    dp__free(x->backward);
    dp__free(x->weight);
    memset(x, 0, sizeof(*x));
}

static dp_status_t refuse(int32_t rank, int32_t position, const dp_op_t *op, const char *why)
{
    char text[128];

    dp__op_print(text, sizeof(text), rank, op);
    return dp_fail(DP_ERR_REJECTED, "verify: %s (op %d): %s", text, position, why);
}

static dp_status_t set(int32_t *table, size_t at, int32_t rank, int32_t position, const dp_op_t *op, const char *again)
{
    if (table[at] >= 0)
        return refuse(rank, position, op, again);
    table[at] = position;
    return DP_OK;
}

static dp_status_t enter_side(dp__index_t *x, int32_t rank, int32_t position, const dp_op_t *op, int kind, size_t at)
{
    dp_status_t status;

    switch (kind) {
    case DP_OP_F:
        return set(x->forward, at, rank, position, op, "this forward was listed before");
    case DP_OP_W:
        if (x->backward[at] < 0)
            return refuse(rank, position, op, "no I of this micro-batch comes before it");
        return set(x->weight, at, rank, position, op, "its weight gradient was listed before");
    default:
        if (x->forward[at] < 0 || x->forward[at] >= position)
            return refuse(rank, position, op, "no forward of this micro-batch comes before its backward");
        status = set(x->backward, at, rank, position, op, "its backward was listed before");
        if (status < 0 || kind == DP_OP_I)
            return status;
        return set(x->weight, at, rank, position, op, "its weight gradient was listed before");
    }
}

dp_status_t dp__index_enter(dp__index_t *x, const dp_schedule_t *schedule, int32_t rank, int32_t position,
                            const dp_op_t *op)
{
    bool pair = op->kind == DP_OP_FB;
    dp_status_t status;

    if (op->kind > DP_OP_FB)
        return dp_fail(DP_ERR_REJECTED, "verify: rank %d op %d has unknown kind %d", rank, position, op->kind);
    if (schedule->forward_only && op->kind != DP_OP_F)
        return refuse(rank, position, op, "a forward-only schedule has forwards alone");
    if (op->chunk < 0 || op->chunk >= x->chunks || op->microbatch < 0 || op->microbatch >= x->microbatches)
        return refuse(rank, position, op, "chunk or micro-batch out of range");
    if (pair &&
        (op->chunk2 < 0 || op->chunk2 >= x->chunks || op->microbatch2 < 0 || op->microbatch2 >= x->microbatches))
        return refuse(rank, position, op, "chunk or micro-batch of the backward side out of range");
    status =
        enter_side(x, rank, position, op, pair ? DP_OP_F : op->kind, dp__index_at(x, rank, op->chunk, op->microbatch));
    if (status < 0 || !pair)
        return status;
    return enter_side(x, rank, position, op, DP_OP_B, dp__index_at(x, rank, op->chunk2, op->microbatch2));
}

static dp_status_t missing(const char *what, int32_t rank, int32_t chunk, int32_t microbatch)
{
    return dp_fail(DP_ERR_REJECTED, "verify: rank %d has no %s of chunk %d mb %d", rank, what, chunk, microbatch);
}

dp_status_t dp__index_complete(const dp__index_t *x, const dp_schedule_t *schedule)
{
    size_t at = 0;

    for (int32_t r = 0; r < schedule->ranks; r++)
        for (int32_t c = 0; c < x->chunks; c++)
            for (int32_t microbatch = 0; microbatch < x->microbatches; microbatch++, at++) {
                if (x->forward[at] < 0)
                    return missing("F", r, c, microbatch);
                if (schedule->forward_only)
                    continue;
                if (x->backward[at] < 0)
                    return missing("B or I", r, c, microbatch);
                if (x->weight[at] < 0)
                    return missing("W", r, c, microbatch);
            }
    return DP_OK;
}

dp_status_t dp__index_build(const dp_schedule_t *schedule, dp__index_t *x)
{
    dp_status_t status = dp__index_create(schedule, schedule->first[schedule->ranks], x);

    for (int32_t r = 0; r < schedule->ranks && status >= 0; r++)
        for (int64_t i = schedule->first[r]; i < schedule->first[r + 1] && status >= 0; i++)
            status = dp__index_enter(x, schedule, r, (int32_t)(i - schedule->first[r]), &schedule->ops[i]);
    return status < 0 ? status : dp__index_complete(x, schedule);
}
