/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_search.c: dualpipe search: a better schedule than any built-in one, if there is one to be
 * found. */
#include <dualpipe/search.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "args.h"
#include "commands.h"
#include "frontier.h"
#include "plan.h"
#include "tools/io/output.h"
#include "tools/io/size.h"

static const option_row_t search_options[] = {
    {.name = "seconds",
     .value = "S",
     .kind = OPTION_REAL,
     .at = offsetof(args_t, seconds),
     .most = INFINITY,
     .help = "time to take (10)"},
    {.name = "placement",
     .value = "NAME",
     .kind = OPTION_CHOICE,
     .at = offsetof(args_t, placement),
     .words = "any line loop v bidirectional",
     .help = "only schedules whose stages lie on the ranks so"},
    {.name = "weights",
     .value = "N",
     .kind = OPTION_INT32,
     .at = offsetof(args_t, weights),
     .least = 1,
     .most = 2,
     .help = "most copies of the weights on a rank (1); with 2, bidirectional schedules are tried as well"},
    {.name = "output",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .at = offsetof(args_t, output),
     .help = "write the schedule there, as `dualpipe schedule --format tsv` does; as csv when FILE ends in .csv; with "
             "--frontier that of each row, a.tsv as a-1.tsv, a-2.tsv, ..."},
    {.name = "frontier",
     .kind = OPTION_FLAG,
     .at = offsetof(args_t, frontier),
     .help = "what more memory buys: the shortest step found in each of some amounts of it, within --seconds together"},
    {.name = "format",
     .value = "F",
     .kind = OPTION_READ,
     .read = format_read,
     .at = offsetof(args_t, format),
     .words = "text json csv markdown",
     .help = "of the frontier: text (default), json, csv, markdown"},
    {.name = "picture",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .at = offsetof(args_t, picture),
     .help = "draw the frontier there: .svg, .png or .pdf"},
    {.kind = OPTION_END}};
static const option_row_t *const search_tables[] = {
    args_sizes, args_cost, args_scales,     args_layers,   args_ranks,     args_lanes,     args_memory,
    args_bytes, args_seed, args_chunk_list, args_topology, search_options, args_transport, NULL};

const command_t command_search = {
    .name = "search",
    .usage =
        "usage: dualpipe search --ranks P --microbatches M [OPTIONS]\n"
        "Looks for a schedule with a shorter step than any built-in one: list scheduling and simulated annealing, started from the built-in schedules; where costs of segments are given, by planning which segments run beside each other. With --activation-bytes and --weight-bytes, --memory is that of both together. With --layers, it is searched as well which layers each stage has; a stage then has bytes by the number of its layers. What it finds is proven like any schedule, and can be run, simulated and drawn from the file.\n"
        "\n",
    .tables = search_tables,
    .needs = ARG_SIZES,
    .notes =
        "\n"
        "examples:\n"
        "  dualpipe search --ranks 4 --microbatches 12 --memory-cap 5\n"
        "      whether DualPipe's memory allows for a shorter step\n"
        "  dualpipe search --ranks 4 --microbatches 12 --cost F=1,I=1.4,W=0.6,HOP=0.1 --seconds 30 --output mine.tsv\n"
        "  dualpipe search --ranks 8 --microbatches 64 --costs run/costs.txt --memory-cap 16 --seconds 60\n"
        "      segments planned, in the memory of 16 micro-batches\n"
        "  dualpipe search --ranks 8 --microbatches 40 --layers 1x61,5.45 --chunks 2,3,4 --activation-bytes 3GiB --weight-bytes 30GiB --memory 80GiB,3:40GiB\n"
        "      order, chunks and layers of each stage in one, where rank 3 has half the memory\n"
        "  dualpipe search --ranks 4 --microbatches 12 --activation-bytes 6GiB --weight-bytes 20GiB --frontier --picture memory.svg\n"
        "      what a GiB buys\n"
        "  dualpipe simulate mine.tsv --cost F=1,I=1.4,W=0.6,HOP=0.1 --format svg --output mine.svg\n"
        "      and what it looks like\n"
        "\n"
        "exit status: 0 done, 1 the output could not be written, 2 wrong usage, 20 no schedule fits the memory\n"};

/* One line that is written over on a terminal; silent elsewhere. */
static int show_found(void *user, const dp_search_state_t *state)
{
    const double *seconds = user;
    int columns = 0;
    char line[256];

    if (!isatty(STDERR_FILENO))
        return 0;
#ifdef TIOCGWINSZ /* WASI has none */
    struct winsize window = {.ws_col = 0};

    (void)ioctl(STDERR_FILENO, TIOCGWINSZ, &window);
    columns = window.ws_col;
#endif
    snprintf(line, sizeof(line), "%5.1f of %g s, %lld tried, best step %.6g (built in %.6g), from %s", state->elapsed,
             *seconds, (long long)state->tried, state->step, state->built_in_step, state->from);
    fprintf(stderr, "\r%.*s\033[K", (columns > 0 ? columns : 256) - 1, line);
    fflush(stderr);
    return 0;
}

static double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static dp_status_t write_schedule(const dp_schedule_t *schedule, const char *path)
{
    output_t output;
    dp_status_t status = output_open(&output, path);

    if (status == DP_OK)
        status = output_close(&output, (plan_is_csv(path) ? dp_schedule_write_csv : dp_schedule_write_tsv)(
                                           schedule, -1, output_write, &output));
    return status;
}

/* Micro-batches, or bytes. */
static const char *memory_text(const args_t *args, double memory, char *text, size_t room)
{
    if (args->activation_bytes > 0.0)
        return size_text(memory, text, room);
    snprintf(text, room, "%g", memory);
    return text;
}

/* As `dualpipe partition` says it. */
static void say_partition(const args_t *args, const dp_search_result_t *result)
{
    const int32_t stages = dp_schedule_stages(result->schedule);
    double all = 0.0;

    for (int32_t l = 0; l < args->nlayers; l++)
        all += args->layers[l];
    for (int32_t s = 0; s < stages; s++) {
        double stage = 0.0;

        for (int32_t l = result->first[s]; l < result->first[s + 1]; l++)
            stage += args->layers[l];
        printf("%s%.9g", s > 0 ? "," : "--stage-scale ", stage * stages / all);
    }
    for (int32_t s = 0; s < stages; s++)
        printf("%s%d", s > 0 ? "," : "\n--partition ", result->first[s + 1] - result->first[s]);
    putchar('\n');
}

static void say(const args_t *args, const dp_search_result_t *result, double seconds)
{
    enum { RUNNERS_UP = 4 };
    char held[32];

    if (result->built_in[0] != 0)
        printf("best built-in  %.6g  %s\n", result->built_in_step, result->built_in);
    else
        printf("best built-in  none fits\n");
    printf("found          %.6g  %d chunk%s per rank (%s), started from %s; holds %s\n", result->step,
           result->schedule->chunks, result->schedule->chunks == 1 ? "" : "s",
           dp_placement_name(result->schedule->placement), result->from,
           memory_text(args, result->memory, held, sizeof(held)));
    if (result->built_in[0] != 0)
        printf("shorter by     %.6g (%.2f %%)\n", result->built_in_step - result->step,
               (1.0 - result->step / result->built_in_step) * 100.0);
    for (int32_t k = 1; k < result->ncandidates && k <= RUNNERS_UP; k++) {
        const dp_search_candidate_t *other = &result->candidates[k];

        printf("%s%.6g  %s; holds %s\n", k == 1 ? "runners-up     " : "               ", other->step, other->from,
               memory_text(args, other->memory, held, sizeof(held)));
    }
    printf("tried          %lld %s, %.0f a second\n", (long long)result->tried, args->lanes ? "sets of rules" : "lists",
           (double)result->tried / seconds);
    if (args->output != NULL)
        printf("written to     %s\n", args->output);
    if (result->first != NULL)
        say_partition(args, result);
}

/* a.tsv: a-1.tsv, a-2.tsv, ... */
static dp_status_t write_rows(const args_t *args, const frontier_t *frontier)
{
    const char *dot = strrchr(args->output, '.'), *slash = strrchr(args->output, '/');
    const int stem =
        (int)(dot != NULL && (slash == NULL || dot > slash) ? (size_t)(dot - args->output) : strlen(args->output));
    dp_status_t status = DP_OK;

    for (int32_t k = 0; k < frontier->count && status == DP_OK; k++) {
        char path[4096];

        if (snprintf(path, sizeof(path), "%.*s-%d%s", stem, args->output, k + 1, args->output + stem) >=
            (int)sizeof(path))
            return dp_fail(DP_ERR_INVALID, "--output: a name of %zu characters is too long", strlen(args->output));
        status = write_schedule(frontier->rows[k].schedule, path);
    }
    return status;
}

static dp_status_t search_frontier(const args_t *args, const dp_search_request_t *request)
{
    frontier_t frontier;
    output_t output;
    dp_status_t status = frontier_make(args, request, &frontier);

    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    if (status == DP_OK && args->output != NULL)
        status = write_rows(args, &frontier);
    if (status == DP_OK && args->picture != NULL)
        status = frontier_draw(&frontier, args->picture);
    if (status == DP_OK)
        status = output_open(&output, NULL);
    if (status == DP_OK)
        status = output_close(&output, frontier_put(&frontier, &output));
    frontier_clear(&frontier);
    return status;
}

static dp_status_t search_once(const args_t *args, const dp_search_request_t *request)
{
    dp_search_result_t result = {.struct_size = sizeof(result)};
    const double began = seconds_now();
    dp_status_t status = dp_search(request, &result);

    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    if (status == DP_OK && args->output != NULL)
        status = write_schedule(result.schedule, args->output);
    if (status == DP_OK)
        say(args, &result, seconds_now() - began);
    dp_search_clear(&result);
    return status;
}

/* With the hosts and the limits of the ranks, which the request borrows. */
static dp_status_t search_placed(const args_t *args, dp_costs_t *costs, dp_search_request_t *request)
{
    int32_t *host_of = calloc((size_t)args->ranks, sizeof(*host_of));
    double *caps = calloc((size_t)args->ranks, sizeof(*caps));
    dp_topology_t topology;
    dp_status_t status = DP_OK;

    if (host_of == NULL || caps == NULL)
        status = dp_fail(DP_ERR_NOMEM, "no memory for the hosts of %d ranks", args->ranks);
    if (status == DP_OK && args->on_hosts) {
        status = topology_place(&args->topology, TOPOLOGY_AS_GIVEN, args->ranks, host_of, &topology);
        costs->topology = &topology;
    }
    for (int32_t r = 0; r < args->ranks && status == DP_OK && args->capped > 0; r++)
        caps[r] = fmax(args_memory_of(args, r), 0.0);
    if (args->capped > 0)
        request->rank_caps = caps;
    if (status == DP_OK)
        status = (args->frontier ? search_frontier : search_once)(args, request);
    free(host_of);
    free(caps);
    return status;
}

static int check_search(const args_t *args)
{
    if (args->lanes && args->output != NULL && plan_is_csv(args->output))
        return args_usage(args,
                          "--output %s: CSV cannot say which segments run beside each other: a name in .tsv, or "
                          "--operations, is required",
                          args->output);
    if ((args->activation_bytes > 0.0) != (args->weight_bytes > 0.0))
        return args_usage(args, "--activation-bytes and --weight-bytes go together");
    if ((args->memory >= 0.0 || args->capped > 0) && args->memory_cap >= 0.0)
        return args_usage(args, "either --memory or --memory-cap");
    if (args->activation_bytes > 0.0 && args->memory_cap >= 0.0)
        return args_usage(args, "--memory-cap counts micro-batches: --memory goes with --activation-bytes");
    if (args->scales_given && args->layers != NULL)
        return args_usage(args, "either --stage-scale or --layers");
    if (!args->frontier && (args->format != FORMAT_TEXT || args->picture != NULL))
        return args_usage(args, "--%s goes with --frontier", args->picture != NULL ? "picture" : "format");
    return CMD_OK;
}

static int run_search(const args_t *args)
{
    double seconds = args->seconds > 0.0 ? args->seconds : 10.0;
    double shown = args->frontier ? seconds / FRONTIER_ROWS : seconds; /* of one search */
    dp_costs_t costs = args->costs;
    dp_search_request_t request = {.struct_size = sizeof(request),
                                   .ranks = args->ranks,
                                   .microbatches = args->microbatches,
                                   .costs = &costs,
                                   .transport = args->transport,
                                   .slots = args->slots,
                                   .memory_cap = fmax(args->memory, args->memory_cap),
                                   .seconds = seconds,
                                   .seed = (uint64_t)args->seed,
                                   .progress = show_found,
                                   .user = &shown,
                                   .placements = args->placement > 0 ? 1u << (args->placement - 1) : 0,
                                   .weights = args->weights,
                                   .stages = args->cost_keys.nscales,
                                   .activation_bytes = fmax(args->activation_bytes, 0.0),
                                   .weight_bytes = fmax(args->weight_bytes, 0.0),
                                   .layers = args->nlayers,
                                   .layer_costs = args->layers,
                                   .chunks = args->each_chunks};
    dp_status_t status;

    if (check_search(args) != CMD_OK)
        return CMD_USAGE;
    while (request.nchunks < ARGS_CHUNKS && args->each_chunks[request.nchunks] > 0)
        request.nchunks++;
    request.memory_cap = request.memory_cap < 0.0 ? 0.0 : fmax(request.memory_cap, DBL_MIN);
    if (args->scales_given)
        costs.stage_scale = args->cost_keys.stage_scale;
    else
        plan_leave_scales(args);
    status = search_placed(args, &costs, &request);
    return status == DP_OK ? CMD_OK : args_failed(args, status);
}

int cmd_search(int argc, char **argv)
{
    args_t args;
    int code;

    if (args_parse(&command_search, argc, argv, &args, &code))
        code = run_search(&args);
    args_clear(&args);
    return code;
}
