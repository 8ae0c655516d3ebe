/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * schedule.c: the table of methods, and the life of a schedule. */
#include <dualpipe/schedule.h>

#include "base/memory.h"
#include "schedule/methods.h"

#include <stdio.h>
#include <string.h>

static const dp_method_t methods[] = {
    {"gpipe", "all forwards, then all backwards", "GPipe, arXiv 1811.06965", "none", DP_PLACE_LINE,
     dp__gpipe},
    {"1f1b", "one forward, one backward in turn: bounded memory", "PipeDream-Flush, arXiv 2006.09503", "none",
     DP_PLACE_LINE, dp__one_f_one_b},
    {"interleaved", "1F1B over several smaller stages per rank", "Megatron-LM, arXiv 2104.04473",
     "micro-batches a multiple of ranks, chunks >= 2", DP_PLACE_LOOP, dp__interleaved},
    {"zb1p", "1F1B with weight gradients moved into the bubble (ZB-H1)", "Zero Bubble, arXiv 2401.10241",
     "none", DP_PLACE_LINE, dp__zb1p},
    {"zbv", "a V of half-size stages without bubble inside the step (ZB-V)",
     "Controllable Memory, arXiv 2405.15362", "none", DP_PLACE_V, dp__zbv},
    {"v-half", "a V with half of 1F1B's activations", "Controllable Memory, arXiv 2405.15362", "none",
     DP_PLACE_V, dp__v_half},
    {"v-min", "a V with a third of 1F1B's activations", "Controllable Memory, arXiv 2405.15362", "none",
     DP_PLACE_V, dp__v_min},
    {"dualpipe", "two directions, every forward overlapped with a backward",
     "DeepSeek-V3, arXiv 2412.19437; deepseek-ai/DualPipe", "even ranks, even micro-batches >= 2 * ranks",
     DP_PLACE_BIDIRECTIONAL, dp__dualpipe},
    {"dualpipev", "DualPipe folded in half: one V-shaped path, every stage held once",
     "Sea AI Lab, 2025; deepseek-ai/DualPipe", "micro-batches >= 2 * ranks", DP_PLACE_V, dp__dualpipev},
    {"interleaved_overlap", "interleaved 1F1B in overlapped pairs, with one more chunk of warm-up",
     "Megatron Core, arXiv 2603.07685; Kimi K2, arXiv 2507.20534",
     "micro-batches a multiple of ranks when chunks > 1, chunks >= 1", DP_PLACE_LOOP,
     dp__interleaved_overlap},
};

const dp_method_t *dp_schedule_methods(size_t *count_out)
{
    *count_out = sizeof(methods) / sizeof(methods[0]);
    return methods;
}

static void list_methods(char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]) && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? ", " : "", methods[i].name);
}

dp_status_t dp_schedule_generate(const dp_schedule_request_t *request, dp_schedule_t **schedule_out)
{
    char known[256];

    *schedule_out = NULL;
    if (request == NULL || request->struct_size == 0 || request->method == NULL)
        return dp_fail(DP_ERR_INVALID,
                       "schedule: the request names no method, or its struct_size is not set");
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
        if (strcmp(methods[i].name, request->method) == 0)
            return methods[i].generate(request, schedule_out);
    list_methods(known, sizeof(known));
    return dp_fail(DP_ERR_INVALID, "schedule: no method is called '%.64s'; there are %s", request->method,
                   known);
}

static dp_status_t check_shape(dp_placement_t placement, int32_t ranks, int32_t microbatches, int32_t chunks)
{
    if (ranks < 1 || ranks > DP_MAX_RANKS)
        return dp_fail(DP_ERR_INVALID, "schedule: %d ranks; 1 to %d are possible", ranks, DP_MAX_RANKS);
    if (microbatches < 1 || microbatches > DP_MAX_MICROBATCHES)
        return dp_fail(DP_ERR_INVALID, "schedule: %d micro-batches; 1 to %d are possible", microbatches,
                       DP_MAX_MICROBATCHES);
    if (chunks < 1 || chunks > DP_MAX_CHUNKS)
        return dp_fail(DP_ERR_INVALID, "schedule: %d chunks per rank; 1 to %d are possible", chunks,
                       DP_MAX_CHUNKS);
    if ((int)placement < DP_PLACE_LINE || placement > DP_PLACE_BIDIRECTIONAL)
        return dp_fail(DP_ERR_INVALID, "schedule: unknown placement %d", (int)placement);
    if (placement == DP_PLACE_LINE && chunks != 1)
        return dp_fail(DP_ERR_INVALID, "schedule: %d chunks per rank; placement line has exactly 1", chunks);
    if ((placement == DP_PLACE_V || placement == DP_PLACE_BIDIRECTIONAL) && chunks != 2)
        return dp_fail(DP_ERR_INVALID, "schedule: %d chunks per rank; placement %s has exactly 2", chunks,
                       dp_placement_name(placement));
    if (placement == DP_PLACE_BIDIRECTIONAL && microbatches % 2 != 0)
        return dp_fail(DP_ERR_INVALID, "schedule: %d micro-batches; two directions need an even number",
                       microbatches);
    if (placement == DP_PLACE_BIDIRECTIONAL && ranks % 2 != 0)
        return dp_fail(DP_ERR_INVALID, "schedule: %d ranks; two directions need an even number", ranks);
    return DP_OK;
}

dp_status_t dp_schedule_create(const char *method, dp_placement_t placement, int32_t ranks,
                               int32_t microbatches, int32_t chunks, const int64_t *nops,
                               dp_schedule_t **schedule_out)
{
    int64_t total = 0;
    dp_schedule_t *s;
    dp_status_t st;

    *schedule_out = NULL;
    st = check_shape(placement, ranks, microbatches, chunks);
    if (st < 0)
        return st;
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
    dp__free(schedule);
}

const char *dp_op_kind_name(int kind)
{
    static const char *const names[] = {"F", "B", "I", "W", "FB"};

    return kind >= 0 && kind < 5 ? names[kind] : "?";
}
