/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_demo.c: dualpipe demo: schedules run by the real engine with segments that sleep, beside
 * their simulation. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "args.h"
#include "commands.h"
#include "tools/demo/demo.h"
#include "tools/draw/draw_operations.h"
#include "tools/draw/draw_timeline.h"
#include "tools/io/output.h"
#include "tools/trace/trace_file.h"
#include "tools/trace/trace_view.h"

static const option_row_t demo_options[] = {
    {.name = "methods",
     .value = "LIST",
     .kind = OPTION_TEXT,
     .at = offsetof(args_t, methods),
     .words = METHOD_WORDS,
     .help = "schedules, with commas between them; the first is drawn "
             "(dualpipe,dualpipev,1f1b,zb1p,interleaved_overlap)"},
    {.name = "seconds",
     .value = "S",
     .kind = OPTION_REAL,
     .at = offsetof(args_t, seconds),
     .most = INFINITY,
     .help = "time to take (10)"},
    {.name = "output",
     .value = "FOLDER",
     .kind = OPTION_TEXT,
     .at = offsetof(args_t, output),
     .help = "where trace.html, executed.png and trace.json of the first schedule go (demo)"},
    {.kind = OPTION_END}};
static const option_row_t *const demo_tables[] = {args_sizes, args_inference, demo_options,
                                                  args_cost,  args_ranks,     NULL};

const command_t command_demo = {
    .name = "demo",
    .usage =
        "usage: dualpipe demo [OPTIONS]\n"
        "Runs schedules with the real engine and shows the measured step beside the simulated one. Ranks are threads, and segments (attention, MLP, and on their own lane dispatch and combine) sleep instead of computing: so every rank behaves as if it had a device, on any machine. Of costs, those of segments count, and only their ratios: each of F, I, W is 1 for attention and mlp, F and I are 0.5 for dispatch and combine, unless given; HOP delays the simulation.\n"
        "\n",
    .tables = demo_tables,
    .needs = 0,
    .notes = "\n"
             "examples:\n"
             "  dualpipe demo --seconds 2\n"
             "  dualpipe demo --ranks 4 --methods dualpipe,zbv --seconds 2 --output zbv\n"
             "  dualpipe demo --methods 1f1b --rank-scale 2:1.5 --seconds 2\n"
             "      one rank sleeps half as long again: what a slow device does to the others\n"
             "  dualpipe demo --inference prefill --seconds 2\n"
             "      two micro-batches that are served, beside each other in three orders\n"
             "\n"
             "exit status: 0 done, 1 the run failed or a file could not be written, 2 wrong usage\n"};

enum { STEPS = 2, MOST_METHODS = 32, NAME_BYTES = 32 };

typedef struct demo {
    const args_t *args;
    dp_segment_costs_t segments;
    char methods[MOST_METHODS][NAME_BYTES];
    int32_t nmethods, ranks, microbatches;
    int32_t forwards[MOST_METHODS]; /* of dp_forwards_t; -1: training */
    double unit_ns;
} demo_t;

/* The order that was asked for, and what it is compared with; they are named in the table. */
static int read_orders(const args_t *args, demo_t *demo)
{
    static const char *const names[] = {"one by one", "turns", "prefill", "decode"};
    const int32_t orders[] = {args->inference + 1, DP_FORWARDS_TURNS, DP_FORWARDS_SERIAL};

    if (args->methods != NULL)
        return args_usage(args, "either --inference or --methods");
    for (size_t k = 0; k < sizeof(orders) / sizeof(orders[0]); k++, demo->nmethods++) {
        demo->forwards[k] = orders[k];
        snprintf(demo->methods[k], NAME_BYTES, "%s", names[orders[k]]);
    }
    return CMD_OK;
}

static int read_methods(const args_t *args, demo_t *demo)
{
    const char *at = args->methods != NULL ? args->methods : "dualpipe,dualpipev,1f1b,zb1p,interleaved_overlap";

    if (args->inference != 0)
        return read_orders(args, demo);
    for (; *at != 0; demo->nmethods++) {
        size_t length = strcspn(at, ",");

        if (length == 0 || length >= NAME_BYTES || demo->nmethods == MOST_METHODS ||
            (at[length] != 0 && at[length + 1] == 0))
            return args_usage(args, "--methods %s: names of schedules with commas between them are expected",
                              args->methods);
        demo->forwards[demo->nmethods] = -1;
        snprintf(demo->methods[demo->nmethods], NAME_BYTES, "%.*s", (int)length, at);
        at += length + (at[length] != 0);
    }
    return demo->nmethods > 0 ? CMD_OK : args_usage(args, "--methods: at least one schedule is required");
}

static void read_segments(const args_t *args, demo_t *demo)
{
    const double usual[DP_SEGMENT_COSTS][3] = {{1, 1, 1}, {0.5, 0.5, 0}, {1, 1, 1}, {0.5, 0.5, 0}};
    const cost_keys_t *keys = &args->cost_keys;
    int layers = cost_keys_find("LAYERS", 6);

    demo->segments = (dp_segment_costs_t){.struct_size = sizeof(demo->segments), .layers = 1};
    if (args->inference != 0) /* of several layers a micro-batch ahead is seen */
        demo->segments.layers = 4;
    if (keys->given[layers])
        demo->segments.layers = (int32_t)keys->value[layers];
    for (int s = 0; s < DP_SEGMENT_COSTS; s++) {
        const double *value = &keys->value[COST_KEY_SEGMENTS + 3 * s];
        const bool *given = &keys->given[COST_KEY_SEGMENTS + 3 * s];

        demo->segments.f[s] = given[0] ? value[0] : args->pair.struct_size > 0 ? 0.0 : usual[s][0];
        demo->segments.i[s] = given[1] ? value[1] : args->pair.struct_size > 0 ? 0.0 : usual[s][1];
        demo->segments.w[s] = given[2] ? value[2] : args->pair.struct_size > 0 ? 0.0 : usual[s][2];
    }
    for (int s = 0; s < DP_SEGMENT_FINE; s++) {
        demo->segments.fine_f[s] = keys->value[COST_KEY_FINE + 3 * s];
        demo->segments.fine_i[s] = keys->value[COST_KEY_FINE + 3 * s + 1];
        demo->segments.fine_w[s] = keys->value[COST_KEY_FINE + 3 * s + 2];
    }
    if (args->inference == 0 || args->pair.struct_size > 0)
        return;
    demo->segments.fine_f[1] = 0.5; /* shared experts */
    if (args->inference + 1 == DP_FORWARDS_DECODE)
        demo->segments.fine_f[0] = demo->segments.f[0] = 0.5; /* attention in two */
}

static demo_request_t request_of(const demo_t *demo, int32_t method)
{
    const bool training = demo->forwards[method] < 0;

    return (demo_request_t){.method = training ? demo->methods[method] : "1f1b",
                            .label = training ? NULL : demo->methods[method],
                            .forwards = demo->forwards[method],
                            .ranks = demo->ranks,
                            .microbatches = demo->microbatches,
                            .segments = &demo->segments,
                            .hop = demo->args->costs.hop,
                            .rank_scale = demo->args->rank_scale,
                            .unit_ns = demo->unit_ns,
                            .steps = STEPS};
}

/* How long a unit may be for all runs to fit the time. Methods that refuse the sizes end the
 * command. */
static dp_status_t choose_unit(demo_t *demo)
{
    double units = 0.0, seconds = demo->args->seconds > 0.0 ? demo->args->seconds : 10.0;

    for (int32_t m = 0; m < demo->nmethods; m++) {
        demo_request_t request = request_of(demo, m);
        demo_result_t result;
        dp_status_t status = demo_run(&request, &result);

        units += result.simulated.step * STEPS;
        demo_clear(&result);
        if (status < 0)
            return status;
    }
    if (!(units > 0.0))
        return dp_fail(DP_ERR_INVALID, "--cost: at least one segment has to take time");
    demo->unit_ns = fmax(seconds, 0.01) * 1e9 / units;
    return DP_OK;
}

/* ---- the first schedule's run, to look at ---- */

static dp_status_t open_in(output_t *output, char *path, size_t bytes, const char *folder, const char *name)
{
    if ((size_t)snprintf(path, bytes, "%s/%s", folder, name) >= bytes)
        return dp_fail(DP_ERR_INVALID, "--output: the path is too long");
    return output_open(output, path);
}

static dp_status_t put_page(const char *trace_path, const dp_schedule_t *schedule, output_t *output)
{
    char title[160], sizes[64];
    const dp_trace_options_t options = {.struct_size = sizeof(options), .most_bytes = (size_t)256 << 20};
    trace_detail_t overlap;
    dp_trace_t *trace;
    dp_status_t status = trace_load(trace_path, &options, &trace);

    snprintf(title, sizeof(title), "%s, executed: %s; segments sleep their cost", schedule->method,
             output_sizes(schedule->ranks, schedule->microbatches, sizes, sizeof(sizes)));
    if (status >= 0) {
        status = trace_detail_measure(trace, 5, &overlap);
        if (status >= 0)
            status = trace_view_put(&overlap, title, output);
        trace_detail_clear(&overlap);
    }
    dp_trace_free(trace);
    return status;
}

static dp_status_t draw_method(const demo_t *demo, const demo_result_t *result, output_t *output)
{
    const dp_schedule_t *schedule = result->schedule;
    char title[160], subtitle[128], sizes[64];
    dp_timeline_t *operations = NULL;
    bool serves = demo->args->inference != 0;
    dp_status_t status = serves ? DP_OK : draw_operations(schedule, result->timeline, true, &operations);
    draw_timeline_t picture = {.timeline = serves ? result->timeline : operations,
                               .title = title,
                               .subtitle = subtitle,
                               .unit = "in units of the costs",
                               .ns_per_unit = demo->unit_ns,
                               .step = -1,
                               .nranks = schedule->ranks,
                               .chunks = schedule->chunks,
                               .placement = schedule->placement};

    snprintf(title, sizeof(title), "%s, executed: %s", schedule->method,
             output_sizes(schedule->ranks, schedule->microbatches, sizes, sizeof(sizes)));
    snprintf(subtitle, sizeof(subtitle), "step %.1f ms measured, %.1f ms simulated; segments sleep their cost",
             result->measured.step * demo->unit_ns / 1e6, result->simulated.step * demo->unit_ns / 1e6);
    if (status >= 0)
        status = draw_timeline_write(&picture, DRAW_PNG, output_write, output);
    dp_timeline_free(operations);
    return status;
}

static dp_status_t show_method(const demo_t *demo, const demo_result_t *result)
{
    const char *folder = demo->args->output != NULL ? demo->args->output : "demo";
    char trace[1024], page[1024], picture[1024];
    output_t output;
    dp_status_t status = DP_OK;

    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return dp_fail(DP_ERR_IO, "%s: %s", folder, strerror(errno));
    status = open_in(&output, trace, sizeof(trace), folder, "trace.json");
    if (status >= 0)
        status = output_close(&output, dp_timeline_write_chrome(result->timeline, output_write, &output));
    if (status >= 0)
        status = open_in(&output, page, sizeof(page), folder, "trace.html");
    if (status >= 0)
        status = output_close(&output, put_page(trace, result->schedule, &output));
    if (status < 0)
        return status;
    printf("\nthe run of %s to look at, in any browser: %s\n", result->schedule->method, page);
    status = open_in(&output, picture, sizeof(picture), folder, "executed.png");
    if (status >= 0)
        status = output_close(&output, draw_method(demo, result, &output));
    if (status >= 0)
        printf("as a picture: %s\n", picture);
    return status == DP_ERR_UNSUPPORTED ? DP_OK : status; /* no cairo */
}

/* ---- the table ---- */

static void put_share(double share)
{
    if (isnan(share))
        printf("       -");
    else
        printf(" %5.1f %%", 100.0 * share);
}

static void put_method(const demo_t *demo, const demo_result_t *result)
{
    const demo_figures_t *s = &result->simulated, *m = &result->measured;
    double ms = demo->unit_ns / 1e6;

    printf("%-19s %9.1f %9.1f %+5.1f %%", result->schedule->method, s->step * ms, m->step * ms,
           100.0 * (m->step / s->step - 1.0));
    put_share(s->bubble);
    put_share(m->bubble);
    put_share(s->hidden);
    put_share(m->hidden);
    putchar('\n');
    fflush(stdout);
}

static dp_status_t run_all(const demo_t *demo)
{
    demo_result_t first = {.schedule = NULL};
    dp_status_t status = DP_OK;
    char sizes[64];

    printf("%s, a unit of cost sleeps %.2f ms\n\n", output_sizes(demo->ranks, demo->microbatches, sizes, sizeof(sizes)),
           demo->unit_ns / 1e6);
    printf("                     step, ms                      idle      all-to-all hidden\n"
           "schedule            simulated  measured    off    sim.   meas.    sim.   meas.\n");
    for (int32_t m = 0; m < demo->nmethods && status >= 0; m++) {
        demo_request_t request = request_of(demo, m);
        demo_result_t result;

        status = demo_run(&request, &result);
        if (status >= 0)
            put_method(demo, &result);
        if (m == 0)
            first = result;
        else
            demo_clear(&result);
    }
    printf("\nidle: of the step, mean over ranks. hidden: beside attention or mlp; simulated:\n"
           "in pairs and backwards alone, where the engine hides a little more between\n"
           "operations.\n");
    if (status >= 0)
        status = show_method(demo, &first);
    demo_clear(&first);
    return status;
}

static int run_demo(const args_t *args)
{
    demo_t demo = {.args = args, .ranks = args->ranks > 0 ? args->ranks : 8};
    int code = read_methods(args, &demo);
    dp_status_t status;

    if (args->inference != 0 && args->ranks == 0)
        demo.ranks = 1;
    demo.microbatches = args->microbatches > 0 ? args->microbatches
                        : args->inference != 0 ? 8 * demo.ranks
                                               : 2 * demo.ranks;
    if (code == CMD_OK)
        code = args_check_ranks(args, demo.ranks);
    if (code != CMD_OK)
        return code;
    read_segments(args, &demo);
    status = choose_unit(&demo);
    if (status >= 0)
        status = run_all(&demo);
    return status >= 0 ? CMD_OK : args_failed(args, status);
}

int cmd_demo(int argc, char **argv)
{
    args_t args;
    int code;

    if (args_parse(&command_demo, argc, argv, &args, &code))
        code = run_demo(&args);
    args_clear(&args);
    return code;
}
