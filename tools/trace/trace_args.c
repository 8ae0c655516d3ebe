/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_args.c: the command line of dualpipe trace. */
#include "trace_args.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/io/exit.h"
#include "trace_classify.h"

static const char help[] =
    "usage: dualpipe trace overlap FILE [OPTIONS]\n"
    "       dualpipe trace costs FILE [OPTIONS]\n"
    "       dualpipe trace merge FILE... [OPTIONS]\n"
    "       dualpipe trace view FILE --output PAGE.html [OPTIONS]\n"
    "Reads Chrome traces: of PyTorch's profiler, of runs and simulations of ours, gzip or not. FILE may be "
    "-, standard "
    "input.\n\n"
    "overlap: for every rank, how much communication runs behind computation and what is exposed, busy time "
    "by stream,\n"
    "the longest exposed stretches with the kernels around them, SMs by grid size, time by annotation.\n"
    "costs: what the segments of a layer took, as a file for `dualpipe simulate --costs` and `dualpipe "
    "compare --costs`.\n"
    "merge: the traces of several ranks as one file.\n"
    "view: the trace as one page for a browser, which needs nothing else: lanes, zoom, the overlap "
    "figures.\n\n"
    "  --comm REGEX           kernels of this name are communication, besides those of NCCL, RCCL, DeepEP, "
    "NVSHMEM,\n"
    "                         symmetric memory and copies between devices (all but merge)\n"
    "  --format F             text (default), json, svg, png, pdf (overlap)\n"
    "  --gaps N               how many of the longest exposed stretches to show, 5 unless given (overlap, "
    "view)\n"
    "  --annotation KEY=REGEX annotations of this name are the segment KEY, one of attention.F, "
    "attention.I,\n"
    "                         attention.W, dispatch.F, ..., combine.W; those such as attn(F), mlp(B), "
    "dispatch_fwd are\n"
    "                         known without (costs; several may be given)\n"
    "  --layers N             layers of a chunk; without it, as many as one annotation around them holds "
    "(costs)\n"
    "  --align clock          ranks by their clocks (default; the hosts' clocks have to agree) (merge)\n"
    "  --align start          every rank's first record of a device at the same time (merge)\n"
    "  --memory MIB           most memory for what is kept of the trace, 2048 unless given (all but merge)\n"
    "  --output FILE          write there instead of to standard output; needed by view\n"
    "  --help                 show this\n\n"
    "examples:\n"
    "  dualpipe trace overlap trace.json.gz\n"
    "  dualpipe trace overlap trace.json.gz --comm 'my_alltoall|ring_.*' --format svg --output overlap.svg\n"
    "  dualpipe trace costs trace.json.gz --output costs.txt && dualpipe compare --ranks 16 --microbatches "
    "64 --costs "
    "costs.txt\n"
    "  dualpipe trace merge rank0.json rank1.json --output both.json\n"
    "  dualpipe trace view trace.json.gz --output trace.html\n\n"
    "exit status: 0 done, 1 a file could not be read or written or memory ran out, 2 wrong usage, 20 not a "
    "trace, a\n"
    "damaged one, or one without what was asked for\n";

enum { OPT_COMM = 256, OPT_FORMAT, OPT_GAPS, OPT_ANNOTATION, OPT_LAYERS, OPT_ALIGN, OPT_MEMORY, OPT_OUTPUT, OPT_HELP };

static const struct option options[] = {
    {"comm", required_argument, NULL, OPT_COMM},     {"format", required_argument, NULL, OPT_FORMAT},
    {"gaps", required_argument, NULL, OPT_GAPS},     {"annotation", required_argument, NULL, OPT_ANNOTATION},
    {"layers", required_argument, NULL, OPT_LAYERS}, {"align", required_argument, NULL, OPT_ALIGN},
    {"memory", required_argument, NULL, OPT_MEMORY}, {"output", required_argument, NULL, OPT_OUTPUT},
    {"help", no_argument, NULL, OPT_HELP},           {NULL, 0, NULL, 0},
};

static const struct action {
    const char *name;
    unsigned options; /* bit per OPT_, from OPT_COMM */
} actions[] = {
    [TRACE_OVERLAP] = {"overlap", 1 << (OPT_COMM - 256) | 1 << (OPT_FORMAT - 256) | 1 << (OPT_GAPS - 256) |
                                      1 << (OPT_MEMORY - 256) | 1 << (OPT_OUTPUT - 256)},
    [TRACE_COSTS] = {"costs", 1 << (OPT_COMM - 256) | 1 << (OPT_ANNOTATION - 256) | 1 << (OPT_LAYERS - 256) |
                                  1 << (OPT_MEMORY - 256) | 1 << (OPT_OUTPUT - 256)},
    [TRACE_MERGE] = {"merge", 1 << (OPT_ALIGN - 256) | 1 << (OPT_OUTPUT - 256)},
    [TRACE_VIEW] = {"view",
                    1 << (OPT_COMM - 256) | 1 << (OPT_GAPS - 256) | 1 << (OPT_MEMORY - 256) | 1 << (OPT_OUTPUT - 256)},
};
#define N_ACTIONS (sizeof(actions) / sizeof(actions[0]))

static int usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static int usage(const char *fmt, ...)
{
    va_list list;

    fputs("dualpipe trace: ", stderr);
    va_start(list, fmt);
    vfprintf(stderr, fmt, list);
    va_end(list);
    fputs("\ndualpipe trace --help shows how it is used\n", stderr);
    return CMD_USAGE;
}

int trace_failed(dp_status_t status)
{
    fprintf(stderr, "dualpipe trace: %s\n", dp_last_error());
    return status == DP_ERR_REJECTED ? CMD_REJECTED : status == DP_ERR_INVALID ? CMD_USAGE : CMD_FAILED;
}

/* ---- values ---- */

static int read_number(const char *option, const char *text, long low, long high, long *out)
{
    char *end;

    errno = 0;
    *out = strtol(text, &end, 10);
    if (end == text || *end != 0 || errno != 0 || *out < low || *out > high)
        return usage("--%s %s: a whole number from %ld to %ld is due", option, text, low, high);
    return CMD_OK;
}

static int read_format(trace_args_t *args, const char *text)
{
    static const struct {
        const char *name;
        format_t format;
    } known[] = {
        {"text", FORMAT_TEXT}, {"json", FORMAT_JSON}, {"svg", FORMAT_SVG}, {"png", FORMAT_PNG}, {"pdf", FORMAT_PDF}};

    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
        if (strcmp(text, known[k].name) != 0)
            continue;
        args->format = known[k].format;
        return CMD_OK;
    }
    return usage("--format %s: there are text json svg png pdf", text);
}

static int read_regex(const char *option, const char *text, regex_t *regex)
{
    dp_status_t status = trace_regex(text, regex);

    return status == DP_OK ? CMD_OK : usage("--%s: %s", option, dp_last_error());
}

static int read_rule(trace_args_t *args, const char *text)
{
    size_t length = strcspn(text, "=");
    int key = cost_keys_find(text, length);

    if (key < COST_KEY_SEGMENTS || text[length] == 0)
        return usage("--annotation %s: attention.F=REGEX is due, or another of the segments' names", text);
    if (args->nrules == TRACE_RULES)
        return usage("--annotation: at most %d", TRACE_RULES);
    if (read_regex("annotation", text + length + 1, &args->rules[args->nrules].regex) != CMD_OK)
        return CMD_USAGE;
    args->rules[args->nrules++].key = key;
    return CMD_OK;
}

static int read_align(trace_args_t *args, const char *text)
{
    args->align_starts = strcmp(text, "start") == 0;
    return args->align_starts || strcmp(text, "clock") == 0 ? CMD_OK
                                                            : usage("--align %s: there are clock and start", text);
}

/* ---- the command line ---- */

static int take(trace_args_t *args, int option, const char *value)
{
    long number;
    int code;

    if (option >= 256 && option < OPT_HELP && (actions[args->action].options >> (option - 256) & 1) == 0)
        return usage("%s does not take --%s", actions[args->action].name, options[option - 256].name);
    switch (option) {
    case OPT_COMM:
        if (args->has_comm)
            return usage("--comm: once is due; join two with |");
        code = read_regex("comm", value, &args->comm);
        args->has_comm = code == CMD_OK;
        return code;
    case OPT_FORMAT:
        return read_format(args, value);
    case OPT_GAPS:
        code = read_number("gaps", value, 0, 1000, &number);
        args->gaps = (int32_t)number;
        return code;
    case OPT_ANNOTATION:
        return read_rule(args, value);
    case OPT_LAYERS:
        code = read_number("layers", value, 1, DP_SEGMENT_LAYERS, &number);
        args->layers = (int32_t)number;
        return code;
    case OPT_ALIGN:
        return read_align(args, value);
    case OPT_MEMORY:
        code = read_number("memory", value, 1, 1 << 24, &number);
        args->memory = (uint64_t)number << 20;
        return code;
    case OPT_OUTPUT:
        args->output = value;
        return CMD_OK;
    default:
        return CMD_USAGE;
    }
}

static int bad_option(char **argv, int option)
{
    const char *word = argv[optind - 1];

    if (option == ':')
        return usage("%s: a value is missing", word);
    if (optopt >= 256)
        return usage("%s: the option takes no value", word);
    return optopt != 0 ? usage("unknown option -%c", optopt) : usage("unknown option %s", word);
}

static bool find_action(const char *word, trace_action_t *action_out)
{
    for (size_t a = 0; a < N_ACTIONS; a++) {
        if (strcmp(actions[a].name, word) != 0)
            continue;
        *action_out = (trace_action_t)a;
        return true;
    }
    return false;
}

static int check(const trace_args_t *args)
{
    if (args->nfiles == 0)
        return usage("%s: a trace is due", actions[args->action].name);
    if (args->nfiles > 1 && args->action != TRACE_MERGE)
        return usage("%s: one operand too many", args->files[1]);
    if (args->action == TRACE_VIEW && args->output == NULL)
        return usage("view: --output PAGE.html is due");
    return CMD_OK;
}

bool trace_args_parse(int argc, char **argv, trace_args_t *args, int *exit_out)
{
    int option;

    *args = (trace_args_t){.format = FORMAT_TEXT, .gaps = 5};
    *exit_out = CMD_OK;
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        if (argc < 2)
            *exit_out = usage("one of overlap, costs, merge, view is due");
        else
            fputs(help, stdout);
        return false;
    }
    if (!find_action(argv[1], &args->action)) {
        *exit_out = usage("there is no \"%s\"; overlap, costs, merge, view there are", argv[1]);
        return false;
    }
    argc--;
    argv++;
    optind = 0; /* main's getopt state may be of another command */
    while ((option = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        if (option == OPT_HELP) {
            fputs(help, stdout);
            return false;
        }
        *exit_out = option == '?' || option == ':' ? bad_option(argv, option) : take(args, option, optarg);
        if (*exit_out != CMD_OK)
            return false;
    }
    args->files = argv + optind;
    args->nfiles = argc - optind;
    *exit_out = check(args);
    return *exit_out == CMD_OK;
}

void trace_args_clear(trace_args_t *args)
{
    if (args->has_comm)
        regfree(&args->comm);
    for (int r = 0; r < args->nrules; r++)
        regfree(&args->rules[r].regex);
    args->has_comm = false;
    args->nrules = 0;
}
