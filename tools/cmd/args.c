/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * args.c: reads the command lines of the commands that work on schedules. */
#include "args.h"

#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/io/size.h"

int args_usage(const args_t *args, const char *fmt, ...)
{
    char text[1024];
    va_list list;

    va_start(list, fmt);
    vsnprintf(text, sizeof(text), fmt, list);
    va_end(list);
    return command_usage(args->command, "%s", text);
}

int args_failed(const args_t *args, dp_status_t status)
{
    return command_failed(args->command, status);
}

/* ---- values ---- */

/* F=1,I=1,W=1,B=2,FB=3,HOP=0 in any order, each at most once in a list; of two lists the later one
 * counts. */
static int read_costs(const command_t *command, const option_row_t *row, void *into, const char *text)
{
    args_t *args = into;
    bool seen[COST_KEYS] = {false};
    const char *at = text;

    (void)command, (void)row;
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
            return args_usage(args, "--cost %s: at \"%s\": a number of 0 or more is expected", text, at);
        at = *end == ',' ? end + 1 : end;
    }
    return at != text ? CMD_OK : args_usage(args, "--cost: at least one of F, I, W, B, FB, HOP is required");
}

static int read_scales(const command_t *command, const option_row_t *row, void *into, const char *text)
{
    args_t *args = into;
    dp_status_t status = cost_keys_scales(&args->cost_keys, text);

    (void)command, (void)row;
    args->scales_given = true;
    return status == DP_ERR_INVALID ? args_usage(args, "--stage-scale: %s", dp_last_error())
           : status == DP_OK        ? CMD_OK
                                    : args_failed(args, status);
}

/* 0.3,1x61,2.5 */
static int read_layers(const command_t *command, const option_row_t *row, void *into, const char *text)
{
    enum { MOST = 65536 };
    args_t *args = into;
    const char *at = text;

    (void)command, (void)row;
    free(args->layers); /* of two lists the later one counts */
    args->layers = calloc(MOST, sizeof(*args->layers));
    args->nlayers = 0;
    if (args->layers == NULL)
        return args_failed(args, dp_fail(DP_ERR_NOMEM, "no memory for a list of layers"));
    do {
        long times = 1;
        double cost;
        const char *end = cost_keys_number(at, &cost);
        char *rest;

        if (end != NULL && *end == 'x') {
            times = strtol(end + 1, &rest, 10);
            end = rest != end + 1 ? rest : NULL;
        }
        if (end == NULL || (*end != ',' && *end != 0) || cost <= 0 || times < 1 || times > MOST - args->nlayers)
            return args_usage(args,
                              "--layers %s: at \"%s\": a cost above 0, or a cost and how often as in 1x61, is expected",
                              text, at);
        while (times-- > 0)
            args->layers[args->nlayers++] = cost;
        at = end;
    } while (*at++ == ',');
    return CMD_OK;
}

static int read_rank_scale(const command_t *command, const option_row_t *row, void *into, const char *text)
{
    args_t *args = into;
    dp_status_t status;

    (void)command, (void)row;
    free(args->rank_scale); /* of two lists the later one counts */
    status = cost_keys_ranks(text, &args->rank_scale, &args->scaled);
    return status == DP_ERR_INVALID ? args_usage(args, "--rank-scale %s: %s", text, dp_last_error())
           : status == DP_OK        ? CMD_OK
                                    : args_failed(args, status);
}

/* 80GiB,3:40GiB: of a device, and of ranks that have another. */
static int read_memory(const command_t *command, const option_row_t *row, void *into, const char *text)
{
    args_t *args = into;
    option_row_t one = *row;
    char item[64];

    free(args->rank_memory); /* of two lists the later one counts */
    args->rank_memory = NULL;
    args->memory = -1.0;
    args->capped = 0;
    for (const char *at = text; at != NULL; at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL) {
        char *end = item;
        long rank = -1;

        snprintf(item, sizeof(item), "%.*s", (int)strcspn(at, ","), at);
        if (strchr(item, ':') != NULL) {
            rank = item[0] >= '0' && item[0] <= '9' ? strtol(item, &end, 10) : DP_MAX_RANKS;
            if (args->rank_memory == NULL && (args->rank_memory = calloc(DP_MAX_RANKS, sizeof(double))) == NULL)
                return args_failed(args, dp_fail(DP_ERR_NOMEM, "no memory for the memory of %d ranks", DP_MAX_RANKS));
        }
        if (rank < 0 ? at != text : rank >= DP_MAX_RANKS || *end++ != ':' || args->rank_memory[rank] != 0.0)
            return args_usage(args,
                              "--memory %s: at \"%s\": a size, and behind it ranks with another, each at most once, as "
                              "in 80GiB,3:40GiB, are expected",
                              text, item);
        one.at = rank < 0 ? offsetof(args_t, memory) : 0;
        if (size_read(command, &one, rank < 0 ? (void *)args : (void *)&args->rank_memory[rank], end) != CMD_OK)
            return CMD_USAGE;
        if (rank >= 0 && args->rank_memory[rank] == 0.0)
            return args_usage(args, "--memory %s: rank %ld has none", text, rank);
        args->capped = rank >= args->capped ? (int32_t)rank + 1 : args->capped;
    }
    return CMD_OK;
}

double args_memory_of(const args_t *args, int32_t rank)
{
    return rank < args->capped && args->rank_memory[rank] > 0.0 ? args->rank_memory[rank] : args->memory;
}

/* 8,8,7 */
static int read_parts(const command_t *command, const option_row_t *row, void *into, const char *text)
{
    enum { MOST = DP_MAX_RANKS * DP_MAX_CHUNKS };
    args_t *args = into;
    const char *at = text;
    char *end;
    double all = 0.0;

    (void)command, (void)row;
    free(args->parts); /* of two lists the later one counts */
    args->parts = calloc(strlen(text) / 2 + 1, sizeof(*args->parts));
    args->nparts = 0;
    if (args->parts == NULL)
        return args_failed(args, dp_fail(DP_ERR_NOMEM, "no memory for the parts of a model"));
    do {
        long layers = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : 0;

        if (layers < 1 || layers > INT32_MAX || (*end != ',' && *end != 0) || args->nparts == MOST)
            return args_usage(args, "--partition %s: the layers of each stage, as in 8,8,7, are expected", text);
        args->parts[args->nparts++] = (double)layers;
        all += (double)layers;
        at = end + 1;
    } while (*end == ',');
    for (int32_t s = 0; s < args->nparts; s++)
        args->parts[s] *= args->nparts / all;
    return CMD_OK;
}

/* 2,4,8 */
static int read_chunks(const command_t *command, const option_row_t *row, void *into, const char *text)
{
    args_t *args = into;
    const char *at = text;
    char *end;
    int count = 0;

    memset(args->each_chunks, 0, sizeof(args->each_chunks));
    do {
        long chunks = strtol(at, &end, 10);

        if (end == at || chunks < 1 || chunks > DP_MAX_CHUNKS || (*end != ',' && *end != '\0') || count == ARGS_CHUNKS)
            return command_usage(command, "--%s %s: at most %d numbers from 1 to %d, as 2,4, are expected", row->name,
                                 text, ARGS_CHUNKS, DP_MAX_CHUNKS);
        args->each_chunks[count++] = (int32_t)chunks;
        at = end + 1;
    } while (*end == ',');
    return CMD_OK;
}

/* What --recompute says beside the costs. Where no R was measured, a segment does its forward once
 * more; an expert that, without the last of its three products. */
static int price_recompute(args_t *args)
{
    enum { R = COST_KEY_R, ATTENTION_R, MLP_R };
    cost_keys_t *keys = &args->cost_keys;
    const int f = cost_keys_find("F", 1), attention = cost_keys_find("attention.F", 11),
              mlp = cost_keys_find("mlp.F", 5);
    bool segments = keys->given[attention] || keys->given[mlp];
    const double seen[3] = {keys->value[R], keys->value[ATTENTION_R], keys->value[MLP_R]};

    if (args->recompute < 0)
        return CMD_OK;
    for (int k = R; k <= MLP_R; k++) {
        keys->value[k] = 0.0;
        keys->given[k] = k != R && (segments || keys->given[k]);
    }
    if (args->recompute == DP_RECOMPUTE_MLP && !segments)
        return args_usage(args, "--recompute mlp needs costs of segments, such as mlp.F");
    if (args->recompute >= DP_RECOMPUTE_MLP && segments)
        keys->value[MLP_R] = seen[2] > 0.0 ? seen[2] : keys->value[mlp] * 2.0 / 3.0;
    if (args->recompute == DP_RECOMPUTE_FULL && segments)
        keys->value[ATTENTION_R] = seen[1] > 0.0 ? seen[1] : keys->value[attention];
    if (args->recompute == DP_RECOMPUTE_FULL && !segments)
        keys->value[R] = seen[0] > 0.0 ? seen[0] : keys->given[f] ? keys->value[f] : args->costs.f;
    return CMD_OK;
}

static bool takes(const args_t *args, const option_row_t *table)
{
    for (const option_row_t *const *t = args->command->tables; *t != NULL; t++)
        if (*t == table)
            return true;
    return false;
}

/* By segments where there are costs of them, unless operations are asked for. */
static int choose_lanes(args_t *args)
{
    const bool segments = args->pair.struct_size != 0;

    if (args->operations && (args->lanes || args->overlap == OVERLAP_PLANNED))
        return args_usage(args, "either --operations or %s", args->lanes ? "--lanes" : "--overlap planned");
    if (!segments && (args->lanes || args->overlap == OVERLAP_PLANNED))
        return args_usage(args, "%s needs costs of segments, such as attention.F",
                          args->lanes ? "--lanes" : "--overlap planned");
    args->lanes |= segments && !args->operations && takes(args, args_lanes);
    return CMD_OK;
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
    if (status == DP_OK && price_recompute(args) != CMD_OK)
        return CMD_USAGE;
    if (status == DP_OK)
        status = cost_keys_resolve(&args->cost_keys, &args->costs, &args->pair);
    if (args->no_barrier)
        args->costs.barrier = 0.0;
    args->costs.rank_scale = args->rank_scale;
    if (status == DP_OK && choose_lanes(args) != CMD_OK)
        return CMD_USAGE;
    if (status == DP_OK && (args->lanes || args->overlap == OVERLAP_PLANNED)) {
        status = cost_keys_segments(&args->cost_keys, &args->segments);
        args->segments.backward_buffer = args->recompute > DP_RECOMPUTE_NONE;
        args->costs.segments = &args->segments;
    }
    return status == DP_OK ? CMD_OK : args_failed(args, status);
}

static int read_topology(const command_t *command, const option_row_t *row, void *into, const char *path)
{
    args_t *args = into;
    dp_status_t status;

    (void)command, (void)row;
    topology_clear(&args->topology); /* of two files the later one counts */
    args->topology = (topology_t){.nhosts = 0};
    args->on_hosts = true;
    status = topology_read(path, &args->topology);
    return status == DP_OK ? CMD_OK : args_failed(args, status);
}

static int read_transport(const command_t *command, const option_row_t *row, void *into, const char *text)
{
    args_t *args = into;
    char *end;
    long slots;

    (void)command, (void)row;
    args->transport = DP_TRANSPORT_BUNDLES;
    if (strcmp(text, "group") == 0)
        return CMD_OK;
    args->transport = DP_TRANSPORT_CREDITS;
    slots = strncmp(text, "credits:", 8) == 0 ? strtol(text + 8, &end, 10) : 0;
    if (slots < 1 || slots > DP_MAX_MICROBATCHES || *end != 0)
        return args_usage(args, "--transport %s: group, or credits:K with K slots a channel, is expected", text);
    args->slots = (int32_t)slots;
    return CMD_OK;
}

/* ---- the options ---- */

#define AT(member) offsetof(args_t, member)

const option_row_t args_method[] = {
    {.name = "method",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .at = AT(method),
     .words = METHOD_WORDS,
     .help = "a built-in schedule; `dualpipe compare` ranks all of them"},
    {.name = "chunks",
     .value = "V",
     .kind = OPTION_INT32,
     .at = AT(chunks),
     .least = 1,
     .most = DP_MAX_CHUNKS,
     .help = "model chunks per rank, for the interleaved methods"},
    {.name = "microbatch-group",
     .value = "G",
     .kind = OPTION_INT32,
     .at = AT(microbatch_group),
     .least = 1,
     .most = DP_MAX_MICROBATCHES,
     .help =
         "micro-batches that pass the chunks of a rank together, for the interleaved methods; P is the default, more "
         "fill the pipeline faster where transfers are long, and hold more"},
    {.name = "forward-only", .kind = OPTION_FLAG, .at = AT(forward_only), .help = "no backward anywhere"},
    {.kind = OPTION_END}};

const option_row_t args_inference[] = {
    {.name = "inference",
     .value = "KIND",
     .kind = OPTION_CHOICE,
     .at = AT(inference),
     .words = "none prefill decode",
     .help = "forwards alone, two micro-batches beside each other in the published order: prefill (attention of one "
             "beside the all-to-all of the other), decode (attention in two, project.F and attention.F); where "
             "shared.F is given, shared experts run beside the all-to-all too"},
    {.kind = OPTION_END}};

const option_row_t args_sizes[] = {{.name = "ranks",
                                    .value = "P",
                                    .kind = OPTION_INT32,
                                    .at = AT(ranks),
                                    .least = 1,
                                    .most = DP_MAX_RANKS,
                                    .help = "ranks of the pipeline"},
                                   {.name = "microbatches",
                                    .value = "M",
                                    .kind = OPTION_INT32,
                                    .at = AT(microbatches),
                                    .least = 1,
                                    .most = DP_MAX_MICROBATCHES,
                                    .help = "micro-batches of a step, both directions together"},
                                   {.kind = OPTION_END}};

const option_row_t args_cost[] = {
    {.name = "cost",
     .value = "LIST",
     .kind = OPTION_READ,
     .read = read_costs,
     .help =
         "time of one micro-batch on one device: F forward, B backward, I and W its two parts, FB an overlapped "
         "pair, HOP the latency of one transfer; any of F=1,I=1,W=1,B=2,FB=3,HOP=0, which is the default; B is "
         "I + W and FB is F + B unless given. BYTES=N,BANDWIDTH=N: size of a message, and how much of it a link "
         "passes in a unit of time. attention.F=N,dispatch.F=N,...,LAYERS=N: segments of a "
         "layer (.F, .I, .W each) and layers of a device, from which those of F to FB that are not given follow. R=N, "
         "attention.R=N, mlp.R=N: what I and B take more because something is computed once more in them"},
    {.name = "costs",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .at = AT(costs_file),
     .help = "costs from a file (\"-\": standard input): NAME=VALUE as above, # comments, BARRIER=0, "
             "STAGE_SCALE=LIST (left out where the schedule has other stages)"},
    {.name = "no-barrier",
     .kind = OPTION_FLAG,
     .at = AT(no_barrier),
     .help = "ranks do not wait for each other between steps"},
    {.kind = OPTION_END}};

const option_row_t args_scales[] = {{.name = "stage-scale",
                                     .value = "LIST",
                                     .kind = OPTION_READ,
                                     .read = read_scales,
                                     .help = "a factor for each stage of the model: 1,1,1,1.5; for one schedule"},
                                    {.kind = OPTION_END}};

const option_row_t args_layers[] = {
    {.name = "layers",
     .value = "LIST",
     .kind = OPTION_READ,
     .read = read_layers,
     .help = "what each layer takes beside the others, embedding, head and loss included: 0.3,1x61,2.5 are 63 layers, "
             "61 of which cost 1"},
    {.kind = OPTION_END}};

const option_row_t args_ranks[] = {
    {.name = "rank-scale",
     .value = "LIST",
     .kind = OPTION_READ,
     .read = read_rank_scale,
     .help = "ranks whose device is slower or faster, each with a factor for all that it computes: 3:1.2,5:1.1; the "
             "others have 1"},
    {.kind = OPTION_END}};

const option_row_t args_recompute[] = {
    {.name = "recompute",
     .value = "WHAT",
     .kind = OPTION_CHOICE,
     .at = AT(recompute),
     .words = "none cheap mlp full",
     .help =
         "what backwards compute once more instead of keeping it: none, cheap (norms and activation functions: no "
         "time), mlp (mlp.R, or two thirds of mlp.F), full (attention.R and mlp.R, or attention.F and that; without "
         "costs of segments R, or F); and how many backwards are alive at once, for which memory of that is held"},
    {.kind = OPTION_END}};

const option_row_t args_lanes[] = {
    {.name = "operations",
     .kind = OPTION_FLAG,
     .at = AT(operations),
     .help = "one operation after the other, by F to FB, also where costs of segments are given"},
    {.name = "lanes",
     .kind = OPTION_FLAG,
     .at = AT(lanes),
     .help = "run by segments on lanes, as the engine enqueues them: the default where costs of segments are given, "
             "and refused without them"},
    {.kind = OPTION_END}};

const option_row_t args_topology[] = {
    {.name = "topology",
     .value = "FILE",
     .kind = OPTION_READ,
     .read = read_topology,
     .help = "hosts: NEAR.HOP, NEAR.BANDWIDTH, FAR.HOP, FAR.BANDWIDTH in the place of HOP and BANDWIDTH, "
             "RANKS_PER_HOST=N or HOSTS=0,0,1,1; as `dualpipe bench-links` writes it"},
    {.kind = OPTION_END}};

const option_row_t args_transport[] = {
    {.name = "transport",
     .value = "T",
     .kind = OPTION_READ,
     .read = read_transport,
     .words = "group credits:2",
     .help = "group: transfers complete in matched groups, as those of MPI and NCCL do; credits:K: one-sided "
             "transfers into K slots a channel (default, K = 2 or as many as the schedule needs)"},
    {.kind = OPTION_END}};

const option_row_t args_overlap[] = {
    {.name = "overlap",
     .value = "HOW",
     .kind = OPTION_CHOICE,
     .at = AT(overlap),
     .words = "canonical none planned",
     .help = "canonical: as the schedule has it (default); none: pairs one after the other; planned: the segments of "
             "all passes beside each other as the costs make it best, with --inference those of forwards; needs costs "
             "of segments"},
    {.name = "seconds",
     .value = "S",
     .kind = OPTION_REAL,
     .at = AT(seconds),
     .most = INFINITY,
     .help = "time to plan; without it, a fixed number of tries, which gives the same plan every time"},
    {.kind = OPTION_END}};

const option_row_t args_memory[] = {
    {.name = "memory-cap",
     .value = "N",
     .kind = OPTION_REAL,
     .at = AT(memory_cap),
     .most = INFINITY,
     .help = "most micro-batches' activations on a rank, in units of one rank's stage inputs: schedules that hold more "
             "do not fit, and a plan keeps to it; without it, a plan holds what its schedule holds"},
    {.kind = OPTION_END}};

const option_row_t args_bytes[] = {
    {.name = "activation-bytes",
     .value = "SIZE",
     .kind = OPTION_READ,
     .read = size_read,
     .at = AT(activation_bytes),
     .help = "a micro-batch's activations on one device, as 1.5GiB"},
    {.name = "weight-bytes",
     .value = "SIZE",
     .kind = OPTION_READ,
     .read = size_read,
     .at = AT(weight_bytes),
     .help = "weights, gradients and optimizer state of one device's part of the model, of which a rank of two "
             "directions has two"},
    {.name = "memory",
     .value = "SIZE",
     .kind = OPTION_READ,
     .read = read_memory,
     .help = "of a device, as 80GiB, and behind it ranks that have another, as 80GiB,3:40GiB: what does not fit is "
             "refused; goes with one of these"},
    {.kind = OPTION_END}};

const option_row_t args_parts[] = {{.name = "partition",
                                    .value = "LIST",
                                    .kind = OPTION_READ,
                                    .read = read_parts,
                                    .help = "layers of each stage, as in 8,8,7, by which stages have bytes; without "
                                            "it they are alike"},
                                   {.kind = OPTION_END}};

const option_row_t args_deferred[] = {{.name = "deferred-bytes",
                                       .value = "SIZE",
                                       .kind = OPTION_READ,
                                       .read = size_read,
                                       .at = AT(deferred_bytes),
                                       .help = "what a weight gradient that is put off keeps besides"},
                                      {.kind = OPTION_END}};

bool args_in_bytes(const args_t *args)
{
    return args->activation_bytes >= 0.0 || args->deferred_bytes >= 0.0 || args->weight_bytes >= 0.0;
}

const option_row_t args_seed[] = {{.name = "seed",
                                   .value = "N",
                                   .kind = OPTION_INT64,
                                   .at = AT(seed),
                                   .most = 9e15,
                                   .help = "of what is tried by chance: another one, other tries (1)"},
                                  {.kind = OPTION_END}};

const option_row_t args_chunk_list[] = {{.name = "chunks",
                                         .value = "LIST",
                                         .kind = OPTION_READ,
                                         .read = read_chunks,
                                         .start = "2,4",
                                         .help = "chunks a rank with which interleaved methods are tried"},
                                        {.kind = OPTION_END}};

const option_row_t args_output[] = {{.name = "output",
                                     .value = "FILE",
                                     .kind = OPTION_TEXT,
                                     .at = AT(output),
                                     .help = "write there instead of to standard output"},
                                    {.kind = OPTION_END}};

/* ---- the command line ---- */

int args_check_ranks(const args_t *args, int32_t ranks)
{
    const bool scaled = args->scaled > ranks;

    if (!scaled && args->capped <= ranks)
        return CMD_OK;
    return args_usage(args, "--%s %d:...: there %s %d rank%s, from 0", scaled ? "rank-scale" : "memory",
                      (scaled ? args->scaled : args->capped) - 1, ranks == 1 ? "is" : "are", ranks,
                      ranks == 1 ? "" : "s");
}

/* What was given has to make a whole: a method with its sizes, or a file. */
static int check_args(const args_t *args)
{
    unsigned options = args->command->needs;
    bool needs_sizes = (options & ARG_SIZES) != 0 && args->file == NULL;

    if ((options & ARG_METHOD) != 0 && args->method == NULL && args->file == NULL)
        return args_usage(args, (options & ARG_FILE) != 0 ? "--method NAME or a schedule file is required"
                                                          : "--method NAME is required");
    if ((options & ARG_METHOD) == 0 && (options & ARG_FILE) != 0 && args->file == NULL)
        return args_usage(args, "a schedule file is required");
    if (args->file != NULL && (args->method != NULL || args->ranks != 0 || args->microbatches != 0 ||
                               args->chunks != 0 || args->microbatch_group != 0 || args->forward_only))
        return args_usage(args, "either --method and its sizes or the file %s", args->file);
    if (needs_sizes && args->ranks == 0)
        return args_usage(args, "--ranks P is required");
    if (needs_sizes && args->microbatches == 0)
        return args_usage(args, "--microbatches M is required");
    if ((options & ARG_PLAN) != 0 && args->overlap != OVERLAP_PLANNED &&
        (args->memory_cap >= 0.0 || args->seconds > 0.0))
        return args_usage(args, "--memory-cap and --seconds go with --overlap planned");
    if ((args->memory >= 0.0 || args->capped > 0 || args->parts != NULL) && !args_in_bytes(args))
        return args_usage(args, "--%s goes with --activation-bytes or --weight-bytes",
                          args->parts != NULL ? "partition" : "memory");
    if (args->inference != 0 && args->overlap == OVERLAP_NONE)
        return args_usage(args, "either --inference or --overlap none");
    if (args->rank >= 0 && args->ranks > 0 && args->rank >= args->ranks)
        return args_usage(args, "--rank %d: there are %d ranks, from 0", args->rank, args->ranks);
    return args->ranks > 0 ? args_check_ranks(args, args->ranks) : CMD_OK;
}

bool args_parse(const command_t *command, int argc, char **argv, args_t *args, int *exit_out)
{
    *args = (args_t){.command = command,
                     .rank = -1,
                     .memory_cap = -1.0,
                     .activation_bytes = -1.0,
                     .deferred_bytes = -1.0,
                     .weight_bytes = -1.0,
                     .memory = -1.0,
                     .seed = 1,
                     .recompute = -1,
                     .weights = 1};
    args->costs = (dp_costs_t){.struct_size = sizeof(args->costs), .f = 1.0, .i = 1.0, .w = 1.0, .barrier = 1.0};
    *exit_out = options_defaults(command, args);
    if (*exit_out != CMD_OK || !options_read(command, NULL, argc, argv, args, exit_out))
        return false;
    if (optind < argc && (command->needs & ARG_FILE) != 0)
        args->file = argv[optind++];
    *exit_out = optind < argc ? args_usage(args, "%s: one operand too many", argv[optind]) : check_args(args);
    if (*exit_out == CMD_OK)
        *exit_out = resolve_costs(args);
    return *exit_out == CMD_OK;
}

void args_clear(args_t *args)
{
    cost_keys_clear(&args->cost_keys);
    free(args->layers);
    free(args->rank_scale);
    free(args->rank_memory);
    free(args->parts);
    topology_clear(&args->topology);
}
