/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * index.c: exactly once, in range, and in the local order. */
#include "schedule/index.h"

#include "base/memory.h"
#include "schedule/cell.h"
#include "schedule/passes.h"

#include <stdio.h>
#include <string.h>

int dp__op_print(char *text, size_t bytes, int32_t rank, const dp_op_t *op)
{
    if (op->kind == DP_OP_FB)
        return snprintf(text, bytes, "rank %d FB (F chunk %d mb %d, B chunk %d mb %d)", rank, op->chunk, op->microbatch,
                        op->chunk2, op->microbatch2);
    if (op->microbatch2 >= 0)
        return snprintf(text, bytes, "rank %d %s%s chunk %d mb %d of braid %d", rank,
                        dp__op_starts(op) ? "start of " : "", dp_op_kind_name(op->kind % DP__OP_START), op->chunk,
                        op->microbatch, op->microbatch2);
    return snprintf(text, bytes, "rank %d %s chunk %d mb %d", rank, dp_op_kind_name(op->kind), op->chunk,
                    op->microbatch);
}

/* Lists that were made out of a schedule's may hold the operation at another place. */
static bool has_cell(const dp_schedule_t *schedule, int32_t rank, int32_t position, const dp_op_t *op)
{
    const dp_op_t *listed;

    if (schedule->cells == NULL || position >= schedule->first[rank + 1] - schedule->first[rank])
        return false;
    listed = &schedule->ops[schedule->first[rank] + position];
    return listed->kind == op->kind && listed->chunk == op->chunk && listed->microbatch == op->microbatch &&
           listed->chunk2 == op->chunk2 && listed->microbatch2 == op->microbatch2;
}

void dp__op_name(const dp_schedule_t *schedule, int32_t rank, int32_t position, const dp_op_t *op, char *text,
                 size_t bytes)
{
    char what[128];

    if (has_cell(schedule, rank, position, op)) {
        dp__cell_print(what, sizeof(what), schedule, rank, op);
        snprintf(text, bytes, "row %d, cell %d (%s)", rank + 1, schedule->cells[schedule->first[rank] + position],
                 what);
        return;
    }
    dp__op_print(what, sizeof(what), rank, op);
    snprintf(text, bytes, "%s (op %d)", what, position);
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
    x->forward = dp__allocate(3 * places * sizeof(int32_t), 64);
    if (x->forward == NULL)
        return dp_fail(DP_ERR_NOMEM, "verify: no memory for %zu micro-batches of chunks", places);
    memset(x->forward, 0xff, 3 * places * sizeof(int32_t));
    x->backward = x->forward + places;
    x->weight = x->backward + places;
    return DP_OK;
}

void dp__index_clear(dp__index_t *x)
{
    dp__free(x->forward);
    memset(x, 0, sizeof(*x));
}

/* An operation and where it stands. */
typedef struct dp__entry {
    const dp_schedule_t *schedule;
    int32_t rank, position;
    const dp_op_t *op;
} dp__entry_t;

static dp_status_t refuse_entry(const dp__entry_t *entry, const char *why)
{
    char text[192];

    dp__op_name(entry->schedule, entry->rank, entry->position, entry->op, text, sizeof(text));
    return dp_fail(DP_ERR_REJECTED, "verify: %s: %s", text, why);
}

static dp_status_t set_entry(int32_t *table, size_t at, const dp__entry_t *entry, const char *again)
{
    if (table[at] >= 0)
        return refuse_entry(entry, again);
    table[at] = entry->position;
    return DP_OK;
}

/* What a pass needs from this rank has been made; it ends further below. */
static dp_status_t enter_start(const dp__index_t *x, const dp__entry_t *entry, int kind, size_t at)
{
    if (kind == DP_OP_F && x->forward[at] >= 0)
        return refuse_entry(entry, "this forward was listed before");
    if (kind == DP_OP_W && x->backward[at] < 0)
        return refuse_entry(entry, "no I of this micro-batch comes before it");
    if (kind != DP_OP_F && x->forward[at] < 0)
        return refuse_entry(entry, "no forward of this micro-batch comes before its backward");
    return DP_OK;
}

static dp_status_t enter_side(dp__index_t *x, const dp__entry_t *entry, int kind, size_t at)
{
    dp_status_t status;

    if (kind >= DP__OP_START)
        return enter_start(x, entry, kind % DP__OP_START, at);
    switch (kind) {
    case DP_OP_F:
        return set_entry(x->forward, at, entry, "this forward was listed before");
    case DP_OP_W:
        if (x->backward[at] < 0)
            return refuse_entry(entry, "no I of this micro-batch comes before it");
        return set_entry(x->weight, at, entry, "its weight gradient was listed before");
    default:
        if (x->forward[at] < 0 || x->forward[at] >= entry->position)
            return refuse_entry(entry, "no forward of this micro-batch comes before its backward");
        status = set_entry(x->backward, at, entry, "its backward was listed before");
        if (status < 0 || kind == DP_OP_I)
            return status;
        return set_entry(x->weight, at, entry, "its weight gradient was listed before");
    }
}

dp_status_t dp__index_enter(dp__index_t *x, const dp_schedule_t *schedule, int32_t rank, int32_t position,
                            const dp_op_t *op)
{
    dp__entry_t entry = {schedule, rank, position, op};
    bool pair = op->kind == DP_OP_FB;
    dp_status_t status;

    if (op->kind % DP__OP_START > (dp__op_starts(op) ? DP_OP_W : DP_OP_FB))
        return dp_fail(DP_ERR_REJECTED, "verify: rank %d op %d has unknown kind %d", rank, position, op->kind);
    if (schedule->forward_only && op->kind % DP__OP_START != DP_OP_F)
        return refuse_entry(&entry, "a forward-only schedule has forwards alone");
    if (op->chunk < 0 || op->chunk >= x->chunks || op->microbatch < 0 || op->microbatch >= x->microbatches)
        return refuse_entry(&entry, "chunk or micro-batch out of range");
    if (pair &&
        (op->chunk2 < 0 || op->chunk2 >= x->chunks || op->microbatch2 < 0 || op->microbatch2 >= x->microbatches))
        return refuse_entry(&entry, "chunk or micro-batch of the backward side out of range");
    status = enter_side(x, &entry, pair ? DP_OP_F : op->kind, dp__index_at(x, rank, op->chunk, op->microbatch));
    if (status < 0 || !pair)
        return status;
    return enter_side(x, &entry, DP_OP_B, dp__index_at(x, rank, op->chunk2, op->microbatch2));
}

static dp_status_t report_missing(const dp_schedule_t *schedule, int kind, int32_t rank, int32_t chunk,
                                  int32_t microbatch)
{
    const char *what = kind == DP_OP_B ? "B or I" : dp_op_kind_name(kind);
    dp_op_t op = {(uint8_t)kind, (int16_t)chunk, -1, microbatch, -1};
    char cell[96];

    if (schedule->cells != NULL) {
        dp__cell_print(cell, sizeof(cell), schedule, rank, &op);
        return dp_fail(DP_ERR_REJECTED, "verify: row %d has no %s%s", rank + 1, cell,
                       kind == DP_OP_B ? " (or its I)" : "");
    }
    return dp_fail(DP_ERR_REJECTED, "verify: rank %d has no %s of chunk %d mb %d", rank, what, chunk, microbatch);
}

dp_status_t dp__index_complete(const dp__index_t *x, const dp_schedule_t *schedule)
{
    size_t at = 0;

    for (int32_t r = 0; r < schedule->ranks; r++)
        for (int32_t c = 0; c < x->chunks; c++)
            for (int32_t microbatch = 0; microbatch < x->microbatches; microbatch++, at++) {
                if (x->forward[at] < 0)
                    return report_missing(schedule, DP_OP_F, r, c, microbatch);
                if (schedule->forward_only)
                    continue;
                if (x->backward[at] < 0)
                    return report_missing(schedule, DP_OP_B, r, c, microbatch);
                if (x->weight[at] < 0)
                    return report_missing(schedule, DP_OP_W, r, c, microbatch);
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
