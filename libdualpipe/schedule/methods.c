/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * methods.c: the table of built-in methods. */
#include "schedule/methods.h"

#include "base/sized.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

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
    {.name = "looped_bfs",
     .summary = "GPipe over several smaller stages per rank, breadth first",
     .source = "Breadth-First Pipeline Parallelism, arXiv 2211.05953; PyTorch",
     .limits = "chunks >= 2, micro-batches / ranks slots a channel",
     .placement = DP_PLACE_LOOP,
     .generate = dp__looped_bfs},
    {.name = "zb1p",
     .summary = "1F1B with weight gradients moved into the bubble (ZB-H1)",
     .source = "Zero Bubble, arXiv 2401.10241",
     .limits = "none",
     .placement = DP_PLACE_LINE,
     .generate = dp__zb1p},
    {.name = "zb2p",
     .summary = "twice the warm-up and memory of zb1p: no idle time inside a rank's step (ZB-H2)",
     .source = "Zero Bubble, arXiv 2401.10241",
     .limits = "none",
     .placement = DP_PLACE_LINE,
     .generate = dp__zb2p},
    {.name = "interleaved_zb",
     .summary = "zb1p over several smaller stages per rank",
     .source = "Zero Bubble, arXiv 2401.10241; PyTorch's InterleavedZeroBubble",
     .limits = "micro-batches a multiple of ranks, chunks >= 2, ranks / 2 slots a channel",
     .placement = DP_PLACE_LOOP,
     .generate = dp__interleaved_zb},
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

/* Names that others have for them. */
static const char *const aliases[][2] = {
    {"interleaved1f1b", "interleaved"}, {"vpp", "interleaved"}, {"interleavedzerobubble", "interleaved_zb"},
    {"zbvzerobubble", "zbv"},           {"zbh1", "zb1p"},       {"zbh2", "zb2p"},
};

/* The same but for case, '-' and '_', and a "Schedule" in front of the first. */
static bool is_called(const char *asked, const char *name)
{
    asked += strncasecmp(asked, "schedule", 8) == 0 ? 8 : 0;
    for (;; asked++, name++) {
        asked += strspn(asked, "-_");
        name += strspn(name, "-_");
        if (tolower((unsigned char)*asked) != tolower((unsigned char)*name))
            return false;
        if (*asked == '\0')
            return true;
    }
}

static const dp_method_t *find_method(const char *asked)
{
    const char *name = asked;

    for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++)
        if (is_called(asked, aliases[i][0]))
            name = aliases[i][1];
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
        if (is_called(name, methods[i].name))
            return &methods[i];
    return NULL;
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
    const dp_method_t *method;
    dp_status_t status;
    char known[256];

    *schedule_out = NULL;
    status = dp__sized_check("schedule: the request", request, "dp_schedule_request_t", DP_SCHEDULE_REQUEST_MIN);
    if (status < 0)
        return status;
    if (request->method == NULL)
        return dp_fail(DP_ERR_INVALID, "schedule: the request names no method");
    method = find_method(request->method);
    if (method != NULL)
        return method->generate(request, schedule_out);
    list_methods(known, sizeof(known));
    return dp_fail(DP_ERR_INVALID, "schedule: no method is called '%.64s'; there are %s", request->method, known);
}
