/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * schedule.c: the life of a schedule. */
#include <dualpipe/schedule.h>

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

static dp_status_t check_shape(dp_placement_t placement, int32_t ranks, int32_t microbatches, int32_t chunks)
{
    if (ranks < 1 || ranks > DP_MAX_RANKS)
        return dp_fail(DP_ERR_INVALID, "schedule: %d ranks; 1 to %d are possible", ranks, DP_MAX_RANKS);
    if (microbatches < 1 || microbatches > DP_MAX_MICROBATCHES)
        return dp_fail(DP_ERR_INVALID, "schedule: %d micro-batches; 1 to %d are possible", microbatches,
                       DP_MAX_MICROBATCHES);
    if (chunks < 1 || chunks > DP_MAX_CHUNKS)
        return dp_fail(DP_ERR_INVALID, "schedule: %d chunks per rank; 1 to %d are possible", chunks, DP_MAX_CHUNKS);
    if ((int)placement < DP_PLACE_LINE || placement > DP_PLACE_BIDIRECTIONAL)
        return dp_fail(DP_ERR_INVALID, "schedule: unknown placement %d", (int)placement);
    if (placement == DP_PLACE_LINE && chunks != 1)
        return dp_fail(DP_ERR_INVALID, "schedule: placement line has exactly 1 chunk per rank, not %d", chunks);
    if ((placement == DP_PLACE_V || placement == DP_PLACE_BIDIRECTIONAL) && chunks != 2)
        return dp_fail(DP_ERR_INVALID, "schedule: placement %s has exactly 2 chunks per rank, not %d",
                       dp_placement_name(placement), chunks);
    if (placement == DP_PLACE_BIDIRECTIONAL && microbatches % 2 != 0)
        return dp_fail(DP_ERR_INVALID, "schedule: %d micro-batches; two directions need an even number", microbatches);
    if (placement == DP_PLACE_BIDIRECTIONAL && ranks % 2 != 0)
        return dp_fail(DP_ERR_INVALID, "schedule: %d ranks; two directions need an even number", ranks);
    return DP_OK;
}

dp_status_t dp_schedule_create(const char *method, dp_placement_t placement, int32_t ranks, int32_t microbatches,
                               int32_t chunks, const int64_t *nops, dp_schedule_t **schedule_out)
{
    int64_t total = 0;
    dp_schedule_t *s;
    dp_status_t status;

    *schedule_out = NULL;
    status = check_shape(placement, ranks, microbatches, chunks);
    if (status < 0)
        return status;
    for (int32_t r = 0; r < ranks; r++) {
        if (nops[r] < 0 || nops[r] > (int64_t)DP_MAX_OPS - total)
            return dp_fail(DP_ERR_INVALID, "schedule: more than %u operations", DP_MAX_OPS);
        total += nops[r];
    }
    s = dp__calloc(1, sizeof(*s));
    if (s == NULL)
        return dp_fail(DP_ERR_NOMEM, "schedule: no memory");
    s->first = dp__calloc((size_t)ranks + 1, sizeof(*s->first));
    s->ops = dp__calloc((size_t)total, sizeof(*s->ops));
    if (s->first == NULL || s->ops == NULL) {
        dp_schedule_free(s);
        return dp_fail(DP_ERR_NOMEM, "schedule: no memory for %lld operations", (long long)total);
    }
    snprintf(s->method, sizeof(s->method), "%s", method != NULL ? method : "custom");
    s->ranks = ranks;
    s->microbatches = microbatches;
    s->chunks = chunks;
    s->placement = placement;
    for (int32_t r = 0; r < ranks; r++)
        s->first[r + 1] = s->first[r] + nops[r];
    *schedule_out = s;
    return DP_OK;
}

void dp_schedule_free(dp_schedule_t *schedule)
{
    if (schedule == NULL)
        return;
    dp__free(schedule->first);
    dp__free(schedule->ops);
    dp__free(schedule->cells);
    for (int32_t i = 0; i < schedule->nbraids; i++)
        dp__free((void *)(uintptr_t)schedule->braids[i].passes); /* and its order */
    dp__free(schedule->braids);
    dp__free(schedule);
}

const char *dp_op_kind_name(int kind)
{
    static const char *const names[] = {"F", "B", "I", "W", "FB", "BRAID", "R"};

    return kind >= 0 && kind <= DP_OP_R ? names[kind] : "?";
}
