/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_args.c: the command line of dualpipe trace. */
#include "trace_args.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/io/cost_keys.h"
#include "trace/classify.h"
#include "trace/segment.h"

int trace_failed(dp_status_t status)
{
    return command_failed(&command_trace, status);
}

/* ---- values ---- */

static int read_annotation(const command_t *command, const option_row_t *row, void *into, const char *text)
{
    trace_args_t *args = into;
    dp__trace_rule_t rule;

    (void)row;
    if (args->nannotations == DP_TRACE_ANNOTATIONS)
        return command_usage(command, "--annotation: at most %d", DP_TRACE_ANNOTATIONS);
    if (dp__trace_rule(text, &rule) != DP_OK)
        return command_usage(command, "--annotation: %s", dp_last_error());
    regfree(&rule.regex);
    args->annotations[args->nannotations++] = text;
    return CMD_OK;
}

/* Another one: "(a)|(b)". */
static bool add_pattern(trace_pattern_t *pattern, const char *text)
{
    const char *before = pattern->text != NULL ? pattern->text : "";
    size_t bytes = strlen(before) + strlen(text) + 4;
    char *joined = malloc(bytes);

    if (joined != NULL)
        snprintf(joined, bytes, "%s%s(%s)", before, *before != 0 ? "|" : "", text);
    free(pattern->text);
    pattern->text = joined;
    return joined != NULL;
}

static int read_pattern(const command_t *command, const option_row_t *row, void *into, const char *text)
{
    trace_pattern_t *pattern = (trace_pattern_t *)((char *)into + row->at);
    regex_t regex;

    if (dp__trace_regex(text, &regex) != DP_OK)
        return command_usage(command, "--%s: %s", row->name, dp_last_error());
    regfree(&regex);
    return add_pattern(pattern, text) ? CMD_OK : command_usage(command, "--%s: no memory", row->name);
}

static int read_rank_scale(const command_t *command, const option_row_t *row, void *into, const char *text)
{
    trace_args_t *args = into;
    dp_status_t status;

    (void)row;
    free(args->rank_scale);
    status = cost_keys_ranks(text, &args->rank_scale, &args->scaled);
    return status == DP_OK ? CMD_OK : command_usage(command, "--rank-scale %s: %s", text, dp_last_error());
}

static int read_link(const command_t *command, const option_row_t *row, void *into, const char *text)
{
    trace_args_t *args = into;
    trace_link_t *link = &args->links[args->nlinks];
    int used = 0;
    const char *end;

    (void)row;
    if (args->nlinks == TRACE_LINKS)
        return command_usage(command, "--link: at most %d", TRACE_LINKS);
    if (sscanf(text, "%9" SCNd32 ":%9" SCNd32 ":%n", &link->ranks[0], &link->ranks[1], &used) != 2 || used == 0 ||
        (end = cost_keys_number(text + used, &link->ms)) == NULL || *end != 0)
        return command_usage(command, "--link %s: two ranks and milliseconds are expected, as in 1:2:0.5", text);
    args->nlinks++;
    return CMD_OK;
}

/* ---- the command line ---- */

static const option_row_t trace_options[] = {
    {.name = "comm",
     .value = "REGEX",
     .kind = OPTION_READ,
     .at = offsetof(trace_args_t, comm),
     .read = read_pattern,
     .actions = "overlap view",
     .help =
         "kernels of this name are communication, besides those of the libraries that docs/traces.md lists and copies between devices; several may be given"},
    {.name = "device",
     .value = "REGEX",
     .kind = OPTION_READ,
     .at = offsetof(trace_args_t, devices),
     .read = read_pattern,
     .actions = "overlap costs view",
     .help =
         "events of this category, or without one and of this PROCESS/THREAD, are records of a device, besides those of PyTorch, Ascend and XLA on GPUs; several may be given"},
    {.name = "format",
     .value = "F",
     .kind = OPTION_READ,
     .at = offsetof(trace_args_t, format),
     .read = format_read,
     .words = "text json svg png pdf",
     .actions = "overlap",
     .help = "text (default), json, svg, png, pdf"},
    {.name = "gaps",
     .value = "N",
     .kind = OPTION_INT32,
     .at = offsetof(trace_args_t, gaps),
     .most = 1000,
     .actions = "overlap view",
     .help = "how many of the longest exposed stretches to show, 5 unless given"},
    {.name = "annotation",
     .value = "KEY=REGEX",
     .kind = OPTION_READ,
     .read = read_annotation,
     .actions = "costs",
     .help =
         "annotations of this name are the segment KEY, one of attention.F, attention.I, attention.W, dispatch.F, ..., combine.W; those such as attn(F), mlp(B), dispatch_fwd are known without; several may be given"},
    {.name = "layers",
     .value = "N",
     .kind = OPTION_INT32,
     .at = offsetof(trace_args_t, layers),
     .least = 1,
     .most = DP_SEGMENT_LAYERS,
     .actions = "costs",
     .help = "layers of a chunk; without it, as many as one annotation around them holds"},
    {.name = "align",
     .value = "HOW",
     .kind = OPTION_CHOICE,
     .at = offsetof(trace_args_t, align),
     .words = "clock start",
     .actions = "merge",
     .help =
         "clock: ranks by their clocks (default; the hosts' clocks have to agree); start: every rank's first record of a device at the same time"},
    {.name = "rank-scale",
     .value = "LIST",
     .kind = OPTION_READ,
     .read = read_rank_scale,
     .actions = "what-if",
     .help = "ranks that compute slower or faster than they did, each with a factor: 3:1.2,5:0.9"},
    {.name = "link",
     .value = "A:B:MS",
     .kind = OPTION_READ,
     .read = read_link,
     .actions = "what-if",
     .help =
         "a message takes MS milliseconds to pass the link between ranks A and B, either way, one after the other; several may be given"},
    {.name = "partition",
     .value = "LIST",
     .kind = OPTION_TEXT,
     .at = offsetof(trace_args_t, partition),
     .actions = "what-if",
     .help = "how many parts (layers, an embedding, a head) each stage holds: 4,4,3,5"},
    {.name = "memory",
     .value = "MIB",
     .kind = OPTION_INT64,
     .at = offsetof(trace_args_t, memory_mib),
     .least = 1,
     .most = 1 << 24,
     .actions = "overlap costs view what-if",
     .help = "most memory for what is kept of the trace, 2048 unless given"},
    {.name = "output",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .at = offsetof(trace_args_t, output),
     .help = "write there instead of to standard output; view writes to FILE.html beside the trace unless told"},
    {.kind = OPTION_END}};
static const option_row_t *const trace_tables[] = {trace_options, NULL};

const command_t command_trace = {
    .name = "trace",
    .usage =
        "usage: dualpipe trace overlap FILE [OPTIONS]\n"
        "       dualpipe trace costs FILE [OPTIONS]\n"
        "       dualpipe trace merge FILE... [OPTIONS]\n"
        "       dualpipe trace what-if FILE [OPTIONS]\n"
        "       dualpipe trace view FILE [OPTIONS]\n"
        "Reads Chrome traces: of PyTorch's profiler, of runs and simulations of ours, gzip or not. FILE may be -, standard input.\n"
        "\n"
        "overlap: for every rank, how much communication runs behind computation and what is exposed, busy time by stream, the longest exposed stretches with the kernels around them, SMs by grid size, time by annotation.\n"
        "costs: what the segments of a layer took, as a file for `dualpipe simulate --costs` and `dualpipe compare --costs`.\n"
        "merge: the traces of several ranks as one file.\n"
        "what-if: how long a step of a run of ours would be if ranks, links or the cut of its layers were others, by simulation of what was measured.\n"
        "view: the trace as one page for a browser, which needs nothing else: lanes, zoom, the overlap figures.\n"
        "\n",
    .tables = trace_tables,
    .actions = "overlap costs merge view what-if",
    .notes =
        "\n"
        "examples:\n"
        "  dualpipe trace overlap trace.json.gz\n"
        "  dualpipe trace overlap trace.json.gz --comm 'my_alltoall|ring_.*' --format svg --output overlap.svg\n"
        "  dualpipe trace costs trace.json.gz --output costs.txt && dualpipe compare --ranks 16 --microbatches 64 --costs costs.txt\n"
        "  dualpipe trace merge rank0.json rank1.json --output both.json\n"
        "  dualpipe trace what-if demo/trace.json --rank-scale 2:1.5\n"
        "  dualpipe trace view trace.json.gz\n"
        "      writes trace.html\n"
        "\n"
        "exit status: 0 done, 1 a file could not be read or written or memory ran out, 2 wrong usage, 20 not a trace, a damaged one, or one without what was asked for\n"};

static const char *const action_names[] = {[TRACE_OVERLAP] = "overlap",
                                           [TRACE_COSTS] = "costs",
                                           [TRACE_MERGE] = "merge",
                                           [TRACE_VIEW] = "view",
                                           [TRACE_WHAT_IF] = "what-if"};
#define N_ACTIONS (sizeof(action_names) / sizeof(action_names[0]))

static bool find_action(const char *word, trace_action_t *action_out)
{
    for (size_t a = 0; a < N_ACTIONS; a++) {
        if (strcmp(action_names[a], word) != 0)
            continue;
        *action_out = (trace_action_t)a;
        return true;
    }
    return false;
}

/* trace.json.gz: trace.html. */
static int name_page(trace_args_t *args)
{
    static const char *const ends[] = {".gz", ".json"};
    size_t length = strlen(args->files[0]);

    if (strcmp(args->files[0], "-") == 0)
        return command_usage(&command_trace, "view: --output PAGE.html is required for standard input");
    for (int i = 0; i < 2; i++)
        if (length > strlen(ends[i]) &&
            strncmp(args->files[0] + length - strlen(ends[i]), ends[i], strlen(ends[i])) == 0)
            length -= strlen(ends[i]);
    if (snprintf(args->page, sizeof(args->page), "%.*s.html", (int)length, args->files[0]) >= (int)sizeof(args->page))
        return command_usage(&command_trace, "view: the name is too long, give one with --output");
    args->output = args->page;
    return CMD_OK;
}

static int check_args(trace_args_t *args)
{
    if (args->nfiles == 0)
        return command_usage(&command_trace, "%s: a trace is missing", action_names[args->action]);
    if (args->nfiles > 1 && args->action != TRACE_MERGE)
        return command_usage(&command_trace, "%s: one operand too many", args->files[1]);
    if (args->action == TRACE_WHAT_IF && args->rank_scale == NULL && args->nlinks == 0 && args->partition == NULL)
        return command_usage(&command_trace, "what-if: one of --rank-scale, --link, --partition is required");
    return args->action == TRACE_VIEW && args->output == NULL ? name_page(args) : CMD_OK;
}

void trace_args_clear(trace_args_t *args)
{
    free(args->comm.text);
    free(args->devices.text);
    free(args->rank_scale);
}

bool trace_args_parse(int argc, char **argv, trace_args_t *args, int *exit_out)
{
    bool has_action = argc >= 2 && argv[1][0] != '-';

    *args = (trace_args_t){.format = FORMAT_TEXT, .gaps = 5};
    *exit_out = CMD_OK;
    if (has_action && !find_action(argv[1], &args->action)) {
        *exit_out = command_usage(&command_trace, "there is no \"%s\"; overlap, costs, merge, view, what-if there are",
                                  argv[1]);
        return false;
    }
    if (has_action) {
        argc--;
        argv++;
    }
    if (!options_read(&command_trace, has_action ? argv[0] : NULL, argc, argv, args, exit_out))
        return false;
    args->files = argv + optind;
    args->nfiles = argc - optind;
    *exit_out = has_action ? check_args(args)
                           : command_usage(&command_trace, "one of overlap, costs, merge, view, what-if is required");
    return *exit_out == CMD_OK;
}
