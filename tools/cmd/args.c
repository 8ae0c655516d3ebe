/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * args.c: reads the command lines of the commands that work on schedules. */
#include "args.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"

enum {
    OPT_METHOD = 256,
    OPT_CHUNKS,
    OPT_FORWARD_ONLY,
    OPT_RANKS,
    OPT_MICROBATCHES,
    OPT_FORMAT,
    OPT_OUTPUT,
    OPT_RANK,
    OPT_COMM,
    OPT_COST,
    OPT_COSTS,
    OPT_STAGE_SCALE,
    OPT_NO_BARRIER,
    OPT_LANES,
    OPT_TRANSPORT,
    OPT_MEMORY_CAP,
    OPT_ACTIVATION_BYTES,
    OPT_DEFERRED_BYTES,
    OPT_WEIGHT_BYTES,
    OPT_SECONDS,
    OPT_TOPOLOGY,
    OPT_LAYERS,
    OPT_METHODS,
    OPT_HELP
};

static const struct {
    unsigned bit;
    struct option option;
} known[] = {
    {ARG_METHOD, {"method", required_argument, NULL, OPT_METHOD}},
    {ARG_METHOD, {"chunks", required_argument, NULL, OPT_CHUNKS}},
    {ARG_METHOD, {"forward-only", no_argument, NULL, OPT_FORWARD_ONLY}},
    {ARG_SIZES | ARG_DEMO, {"ranks", required_argument, NULL, OPT_RANKS}},
    {ARG_SIZES | ARG_DEMO, {"microbatches", required_argument, NULL, OPT_MICROBATCHES}},
    {ARG_FORMAT, {"format", required_argument, NULL, OPT_FORMAT}},
    {ARG_OUTPUT, {"output", required_argument, NULL, OPT_OUTPUT}},
    {ARG_RANK, {"rank", required_argument, NULL, OPT_RANK}},
    {ARG_COMM, {"comm", no_argument, NULL, OPT_COMM}},
    {ARG_COST, {"cost", required_argument, NULL, OPT_COST}},
    {ARG_COST, {"costs", required_argument, NULL, OPT_COSTS}},
    {ARG_COST, {"stage-scale", required_argument, NULL, OPT_STAGE_SCALE}},
    {ARG_COST, {"no-barrier", no_argument, NULL, OPT_NO_BARRIER}},
    {ARG_LANES, {"lanes", no_argument, NULL, OPT_LANES}},
    {ARG_TRANSPORT, {"transport", required_argument, NULL, OPT_TRANSPORT}},
    {ARG_MEMORY_CAP, {"memory-cap", required_argument, NULL, OPT_MEMORY_CAP}},
    {ARG_BYTES, {"activation-bytes", required_argument, NULL, OPT_ACTIVATION_BYTES}},
    {ARG_BYTES, {"deferred-bytes", required_argument, NULL, OPT_DEFERRED_BYTES}},
    {ARG_BYTES, {"weight-bytes", required_argument, NULL, OPT_WEIGHT_BYTES}},
    {ARG_TOPOLOGY, {"topology", required_argument, NULL, OPT_TOPOLOGY}},
    {ARG_DEMO, {"methods", required_argument, NULL, OPT_METHODS}},
    {ARG_LAYERS, {"layers", required_argument, NULL, OPT_LAYERS}},
    {ARG_SECONDS, {"seconds", required_argument, NULL, OPT_SECONDS}},
    {~0u, {"help", no_argument, NULL, OPT_HELP}},
};
#define N_KNOWN (sizeof(known) / sizeof(known[0]))

static const char *const format_names[FORMAT_COUNT] = {"text", "tsv", "csv", "json", "svg", "png", "pdf", "trace"};

int args_usage(const args_t *args, const char *fmt, ...)
{
    const char *name = args->command->name;
    va_list list;

    fprintf(stderr, "dualpipe %s: ", name);
    va_start(list, fmt);
    vfprintf(stderr, fmt, list);
    va_end(list);
    fprintf(stderr, "\ndualpipe %s --help shows how it is used\n", name);
    return CMD_USAGE;
}

int args_failed(const args_t *args, dp_status_t status)
{
    const char *message = dp_last_error(), *name = args->command->name;

    if (strncmp(message, name, strlen(name)) == 0 && strncmp(message + strlen(name), ": ", 2) == 0)
        message += strlen(name) + 2; /* the room has the command's name */
    fprintf(stderr, "dualpipe %s: %s\n", name, message);
    return status == DP_ERR_REJECTED ? CMD_REJECTED : status == DP_ERR_INVALID ? CMD_USAGE : CMD_FAILED;
}

/* ---- values ---- */

static bool read_integer(const char *text, long low, long high, int32_t *out)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (end == text || *end != 0 || errno != 0 || value < low || value > high)
        return false;
    *out = (int32_t)value;
    return true;
}

static int want_integer(const args_t *args, const char *option, const char *text, long low, long high, int32_t *out)
{
    if (read_integer(text, low, high, out))
        return CMD_OK;
    return args_usage(args, "--%s %s: a whole number from %ld to %ld is due", option, text, low, high);
}

static int read_format(args_t *args, const char *text)
{
    char list[128] = "";

    for (int f = 0; f < FORMAT_COUNT; f++) {
        if ((args->command->formats >> f & 1) == 0)
            continue;
        if (strcmp(text, format_names[f]) == 0) {
            args->format = (format_t)f;
            return CMD_OK;
        }
        snprintf(list + strlen(list), sizeof(list) - strlen(list), " %s", format_names[f]);
    }
    return args_usage(args, "--format %s: there are%s", text, list);
}

/* F=1,I=1,W=1,B=2,FB=3,HOP=0 in any order, each at most once in a list; of two lists the later one counts. */
static int read_costs(args_t *args, const char *text)
{
    bool seen[COST_KEYS] = {false};
    const char *at = text;

    while (*at != 0) {
        size_t length = strcspn(at, "=,");
        int key = cost_keys_find(at, length);
        const char *end;

        if (key < 0 || at[length] != '=' || seen[key])
            return args_usage(args,
                              "--cost %s: at \"%s\": each of F, I, W, B, FB, HOP, BYTES, BANDWIDTH, BARRIER, "
                              "LAYERS, attention.F, ... at most once, as in F=1.5",
                              text, at);
        seen[key] = args->cost_keys.given[key] = true;
        end = cost_keys_number(at + length + 1, &args->cost_keys.value[key]);
        if (end == NULL || (*end != ',' && *end != 0) || (*end == ',' && end[1] == 0))
            return args_usage(args, "--cost %s: at \"%s\": a number of 0 or more is due", text, at);
        at = *end == ',' ? end + 1 : end;
    }
    return at != text ? CMD_OK : args_usage(args, "--cost: at least one of F, I, W, B, FB, HOP is due");
}

static int read_scales(args_t *args, const char *text)
{
    dp_status_t status = cost_keys_scales(&args->cost_keys, text);

    args->scales_given = true;
    return status == DP_ERR_INVALID ? args_usage(args, "--stage-scale: %s", dp_last_error())
           : status == DP_OK        ? CMD_OK
                                    : args_failed(args, status);
}

/* Flags before the file, whatever their order. */
static int resolve_costs(args_t *args)
{
    dp_status_t status = DP_OK;

    if (args->costs_file != NULL) {
        cost_keys_t file = {.nscales = 0};

        status = cost_keys_read(args->costs_file, &file);
        cost_keys_merge(&args->cost_keys, &file);
        cost_keys_clear(&file);
    }
    if (status == DP_OK)
        status = cost_keys_resolve(&args->cost_keys, &args->costs, &args->pair);
    if (args->no_barrier)
        args->costs.barrier = 0.0;
    if (status == DP_OK && args->lanes) {
        if (args->pair.struct_size == 0)
            return args_usage(args, "--lanes: costs of segments are due, such as attention.F");
        status = cost_keys_segments(&args->cost_keys, &args->segments);
        args->costs.segments = &args->segments;
    }
    return status == DP_OK ? CMD_OK : args_failed(args, status);
}

static int read_topology(args_t *args, const char *path)
{
    dp_status_t status;

    topology_clear(&args->topology); /* of two files the later one counts */
    args->topology = (topology_t){.nhosts = 0};
    args->on_hosts = true;
    status = topology_read(path, &args->topology);
    return status == DP_OK ? CMD_OK : args_failed(args, status);
}

static int read_transport(args_t *args, const char *text)
{
    args->transport = DP_TRANSPORT_BUNDLES;
    if (strcmp(text, "group") == 0)
        return CMD_OK;
    args->transport = DP_TRANSPORT_CREDITS;
    if (strncmp(text, "credits:", 8) == 0 && read_integer(text + 8, 1, DP_MAX_MICROBATCHES, &args->slots))
        return CMD_OK;
    return args_usage(args, "--transport %s: group, or credits:K with K slots a channel, is due", text);
}

static int read_cap(args_t *args, const char *option, const char *text, double *out)
{
    const char *end = cost_keys_number(text, out);

    if (end != NULL && *end == 0)
        return CMD_OK;
    return args_usage(args, "--%s %s: a number of 0 or more is due", option, text);
}

/* ---- the command line ---- */

static int take(args_t *args, int option, const char *value)
{
    switch (option) {
    case OPT_METHOD:
        args->method = value;
        return CMD_OK;
    case OPT_CHUNKS:
        return want_integer(args, "chunks", value, 1, DP_MAX_CHUNKS, &args->chunks);
    case OPT_FORWARD_ONLY:
        args->forward_only = true;
        return CMD_OK;
    case OPT_RANKS:
        return want_integer(args, "ranks", value, 1, DP_MAX_RANKS, &args->ranks);
    case OPT_MICROBATCHES:
        return want_integer(args, "microbatches", value, 1, DP_MAX_MICROBATCHES, &args->microbatches);
    case OPT_FORMAT:
        return read_format(args, value);
    case OPT_OUTPUT:
        args->output = value;
        return CMD_OK;
    case OPT_RANK:
        return want_integer(args, "rank", value, 0, DP_MAX_RANKS - 1, &args->rank);
    case OPT_COMM:
        args->comm = true;
        return CMD_OK;
    case OPT_COST:
        return read_costs(args, value);
    case OPT_COSTS:
        args->costs_file = value;
        return CMD_OK;
    case OPT_METHODS:
        args->methods = value;
        return CMD_OK;
    case OPT_LAYERS:
        args->layers = value;
        return CMD_OK;
    case OPT_STAGE_SCALE:
        return read_scales(args, value);
    case OPT_NO_BARRIER:
        args->no_barrier = true;
        return CMD_OK;
    case OPT_LANES:
        args->lanes = true;
        return CMD_OK;
    case OPT_TRANSPORT:
        return read_transport(args, value);
    case OPT_MEMORY_CAP:
        return read_cap(args, "memory-cap", value, &args->memory_cap);
    case OPT_ACTIVATION_BYTES:
        return read_cap(args, "activation-bytes", value, &args->activation_bytes);
    case OPT_DEFERRED_BYTES:
        return read_cap(args, "deferred-bytes", value, &args->deferred_bytes);
    case OPT_WEIGHT_BYTES:
        return read_cap(args, "weight-bytes", value, &args->weight_bytes);
    case OPT_TOPOLOGY:
        return read_topology(args, value);
    case OPT_SECONDS:
        return read_cap(args, "seconds", value, &args->seconds);
    default:
        return CMD_USAGE;
    }
}

/* The options of this command, for getopt. */
static void choose_options(const command_t *command, struct option *options)
{
    size_t n = 0;

    for (size_t k = 0; k < N_KNOWN; k++)
        if (known[k].bit == ~0u || (known[k].bit & command->options) != 0)
            options[n++] = known[k].option;
    options[n] = (struct option){NULL, 0, NULL, 0};
}

static int bad_option(const args_t *args, char **argv, int option)
{
    const char *word = argv[optind - 1];

    if (option == ':')
        return args_usage(args, "%s: a value is missing", word);
    if (optopt >= 256)
        return args_usage(args, "%s: the option takes no value", word);
    return optopt != 0 ? args_usage(args, "unknown option -%c", optopt) : args_usage(args, "unknown option %s", word);
}

/* What was given has to make a whole: a method with its sizes, or a file. */
static int check(const args_t *args)
{
    unsigned options = args->command->options;
    bool needs_sizes = (options & ARG_SIZES) != 0 && args->file == NULL;

    if ((options & ARG_METHOD) != 0 && args->method == NULL && args->file == NULL)
        return args_usage(args, (options & ARG_FILE) != 0 ? "--method NAME or a schedule file is due"
                                                          : "--method NAME is due");
    if ((options & ARG_METHOD) == 0 && (options & ARG_FILE) != 0 && args->file == NULL)
        return args_usage(args, "a schedule file is due");
    if (args->file != NULL && (args->method != NULL || args->ranks != 0 || args->microbatches != 0 ||
                               args->chunks != 0 || args->forward_only))
        return args_usage(args, "either --method and its sizes or the file %s", args->file);
    if (needs_sizes && args->ranks == 0)
        return args_usage(args, "--ranks P is due");
    if (needs_sizes && args->microbatches == 0)
        return args_usage(args, "--microbatches M is due");
    if (args->rank >= 0 && args->ranks > 0 && args->rank >= args->ranks)
        return args_usage(args, "--rank %d: there are %d ranks, from 0", args->rank, args->ranks);
    return CMD_OK;
}

static void show_help(const command_t *command)
{
    size_t count;
    const dp_method_t *methods = dp_schedule_methods(&count);

    fputs(command->help, stdout);
    if ((command->options & ARG_METHOD) == 0)
        return;
    fputs("\nmethods:\n", stdout);
    for (size_t m = 0; m < count; m++)
        printf("  %-20s %s\n  %-20s %s; limits: %s\n", methods[m].name, methods[m].summary, "", methods[m].source,
               methods[m].limits);
}

bool args_parse(const command_t *command, int argc, char **argv, args_t *args, int *exit_out)
{
    struct option options[N_KNOWN + 1];
    int option;

    *args = (args_t){.command = command,
                     .rank = -1,
                     .memory_cap = -1.0,
                     .activation_bytes = -1.0,
                     .deferred_bytes = -1.0,
                     .weight_bytes = -1.0,
                     .seconds = 10.0};
    args->costs = (dp_costs_t){.struct_size = sizeof(args->costs), .f = 1.0, .i = 1.0, .w = 1.0, .barrier = 1.0};
    choose_options(command, options);
    optind = 0; /* main's getopt state may be of another command */
    *exit_out = CMD_OK;
    while ((option = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        if (option == OPT_HELP) {
            show_help(command);
            return false;
        }
        *exit_out = option == '?' || option == ':' ? bad_option(args, argv, option) : take(args, option, optarg);
        if (*exit_out != CMD_OK)
            return false;
    }
    if (optind < argc && (command->options & ARG_FILE) != 0)
        args->file = argv[optind++];
    *exit_out = optind < argc ? args_usage(args, "%s: one operand too many", argv[optind]) : check(args);
    if (*exit_out == CMD_OK)
        *exit_out = resolve_costs(args);
    return *exit_out == CMD_OK;
}

void args_clear(args_t *args)
{
    cost_keys_clear(&args->cost_keys);
    topology_clear(&args->topology);
}
