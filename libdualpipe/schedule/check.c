/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * check.c: data dependencies of a schedule across ranks, and the check of a whole schedule. */
#include "base/memory.h"
#include "schedule/index.h"
#include "schedule/passes.h"

#include <stdio.h>
#include <string.h>

/* What an F waits for: the same micro-batch at the stage before. false at a first stage. */
static bool forward_need(const dp__dataflow_t *d, const dp_place_t *place, int32_t microbatch, dp__need_t *need)
{
    if (place->prev_rank < 0)
        return false;
    need->lane = place->prev_rank;
    need->position = d->index->forward[dp__index_at(d->index, place->prev_rank, place->prev_chunk, microbatch)];
    return true;
}

/* What a B or I waits for: the gradient from the stage behind. false at a last stage. */
static bool backward_need(const dp__dataflow_t *d, const dp_place_t *place, int32_t microbatch, dp__need_t *need)
{
    if (place->next_rank < 0)
        return false;
    need->lane = place->next_rank;
    need->position = d->index->backward[dp__index_at(d->index, place->next_rank, place->next_chunk, microbatch)];
    return true;
}

static bool op_need(const void *context, int32_t rank, int32_t position, int32_t k, dp__need_t *need)
{
    const dp__dataflow_t *d = context;
    const dp_op_t *op = &d->schedule->ops[d->schedule->first[rank] + position];
    const dp_place_t *place = d->place + (size_t)rank * (size_t)d->schedule->chunks;
    int kind = op->kind % DP__OP_START;

    if (kind == DP_OP_F || kind == DP_OP_FB) {
        if (forward_need(d, &place[op->chunk], op->microbatch, need) && k-- == 0)
            return true;
        return kind == DP_OP_FB && backward_need(d, &place[op->chunk2], op->microbatch2, need) && k == 0;
    }
    return kind != DP_OP_W && backward_need(d, &place[op->chunk], op->microbatch, need) && k == 0;
}

static void op_name(const void *context, int32_t rank, int32_t position, char *text, size_t bytes)
{
    const dp__dataflow_t *d = context;
    const dp_op_t *op = &d->schedule->ops[d->schedule->first[rank] + position];

    dp__op_name(d->schedule, rank, position, op, text, bytes);
}

dp_status_t dp__dataflow_create(const dp_schedule_t *schedule, const dp__index_t *index, dp__dataflow_t *d)
{
    size_t ranks = (size_t)schedule->ranks;

    memset(d, 0, sizeof(*d));
    d->schedule = schedule;
    d->index = index;
    d->length = dp__calloc(ranks, sizeof(*d->length));
    d->place = dp__calloc(ranks * (size_t)schedule->chunks, sizeof(*d->place));
    if (d->length == NULL || d->place == NULL) {
        dp__dataflow_clear(d);
        return dp_fail(DP_ERR_NOMEM, "verify: no memory for %d ranks", schedule->ranks);
    }
    for (int32_t r = 0; r < schedule->ranks; r++) {
        d->length[r] = (int32_t)(schedule->first[r + 1] - schedule->first[r]);
        for (int32_t c = 0; c < schedule->chunks; c++)
            dp_schedule_place(schedule, r, c, &d->place[(size_t)r * (size_t)schedule->chunks + (size_t)c]);
    }
    d->flow =
        (dp__flow_t){.lanes = schedule->ranks, .length = d->length, .context = d, .need = op_need, .name = op_name};
    return DP_OK;
}

void dp__dataflow_clear(dp__dataflow_t *d)
{
    dp__free(d->length);
    dp__free(d->place);
    memset(d, 0, sizeof(*d));
}

dp_status_t dp_schedule_verify(const dp_schedule_t *schedule)
{
    const dp_schedule_t *plain;
    dp__index_t index;
    dp__dataflow_t dataflow;
    dp_status_t status = dp__schedule_plain(schedule, &plain);

    if (status < 0)
        return status;
    status = dp__index_build(plain, &index);
    if (status >= 0)
        status = dp__dataflow_create(plain, &index, &dataflow);
    if (status >= 0) {
        status = dp__flow_prove(&dataflow.flow, "verify");
        dp__dataflow_clear(&dataflow);
    }
    dp__index_clear(&index);
    dp__schedule_plain_free(schedule, plain);
    return status;
}
