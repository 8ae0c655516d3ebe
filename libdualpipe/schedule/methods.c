/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * methods.c: the table of built-in methods. */
#include "schedule/methods.h"

#include "base/sized.h"

#include <stdio.h>
#include <string.h>

static const dp_method_t methods[] = {
    {.name = "gpipe",
     .summary = "all forwards, then all backwards",
     .source = "GPipe, arXiv 1811.06965",
     .limits = "none",
     .placement = DP_PLACE_LINE,
     .generate = dp__gpipe},
    {.name = "1f1b",
     .summary = "one forward, one backward, alternating: bounded memory",
     .source = "PipeDream-Flush, arXiv 2006.09503",
     .limits = "none",
     .placement = DP_PLACE_LINE,
     .generate = dp__one_f_one_b},
    {.name = "interleaved",
     .summary = "1F1B over several smaller stages per rank",
     .source = "Megatron-LM, arXiv 2104.04473",
     .limits = "micro-batches a multiple of ranks, or in groups of at least as many; chunks >= 2",
     .placement = DP_PLACE_LOOP,
     .generate = dp__interleaved},
    {.name = "zb1p",
     .summary = "1F1B with weight gradients moved into the bubble (ZB-H1)",
     .source = "Zero Bubble, arXiv 2401.10241",
     .limits = "none",
     .placement = DP_PLACE_LINE,
     .generate = dp__zb1p},
    {.name = "zbv",
     .summary = "a V of half-size stages without bubble inside the step (ZB-V)",
     .source = "Controllable Memory, arXiv 2405.15362",
     .limits = "none",
     .placement = DP_PLACE_V,
     .generate = dp__zbv},
    {.name = "v-half",
     .summary = "a V with half of 1F1B's activations",
     .source = "Controllable Memory, arXiv 2405.15362",
     .limits = "none",
     .placement = DP_PLACE_V,
     .generate = dp__v_half},
    {.name = "v-min",
     .summary = "a V with a third of 1F1B's activations",
     .source = "Controllable Memory, arXiv 2405.15362",
     .limits = "none",
     .placement = DP_PLACE_V,
     .generate = dp__v_min},
    {.name = "dualpipe",
     .summary = "two directions, every forward overlapped with a backward",
     .source = "DeepSeek-V3, arXiv 2412.19437; deepseek-ai/DualPipe",
     .limits = "even ranks, even micro-batches >= 2 * ranks",
     .placement = DP_PLACE_BIDIRECTIONAL,
     .generate = dp__dualpipe},
    {.name = "dualpipev",
     .summary = "DualPipe folded in half: one V-shaped path, every stage held once",
     .source = "Sea AI Lab, 2025; deepseek-ai/DualPipe",
     .limits = "micro-batches >= 2 * ranks",
     .placement = DP_PLACE_V,
     .generate = dp__dualpipev},
    {.name = "interleaved_overlap",
     .summary = "interleaved 1F1B in overlapped pairs, with one more chunk of warm-up",
     .source = "Megatron Core, arXiv 2603.07685; Kimi K2, arXiv 2507.20534",
     .limits = "as interleaved when chunks > 1, chunks >= 1",
     .placement = DP_PLACE_LOOP,
     .generate = dp__interleaved_overlap},
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
    dp_status_t status;
    char known[256];

    *schedule_out = NULL;
    status = dp__sized_check("schedule: the request", request, "dp_schedule_request_t", DP_SCHEDULE_REQUEST_MIN);
    if (status < 0)
        return status;
    if (request->method == NULL)
        return dp_fail(DP_ERR_INVALID, "schedule: the request names no method");
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
        if (strcmp(methods[i].name, request->method) == 0)
            return methods[i].generate(request, schedule_out);
    list_methods(known, sizeof(known));
    return dp_fail(DP_ERR_INVALID, "schedule: no method is called '%.64s'; there are %s", request->method, known);
}
