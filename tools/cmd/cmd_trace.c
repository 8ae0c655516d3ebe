/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_trace.c: dualpipe trace: what traces of real runs say about overlap and costs. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "tools/io/output.h"
#include "tools/trace/trace_args.h"
#include "tools/trace/trace_draw.h"
#include "tools/trace/trace_file.h"
#include "tools/trace/trace_merge.h"
#include "tools/trace/trace_notes.h"
#include "tools/trace/trace_print.h"
#include "tools/trace/trace_view.h"
#include "tools/trace/trace_what_if.h"

/* What a page or a table calls the trace. */
static const char *title_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (strcmp(path, "-") == 0)
        return "standard input";
    return slash != NULL && slash[1] != 0 ? slash + 1 : path;
}

static draw_format_t picture_format(format_t format)
{
    return format == FORMAT_PNG ? DRAW_PNG : format == FORMAT_PDF ? DRAW_PDF : DRAW_SVG;
}

static dp_status_t put_overlap(const trace_args_t *args, const dp_trace_t *trace, output_t *output)
{
    const char *title = title_of(args->files[0]);
    trace_detail_t overlap;
    dp_status_t status = trace_detail_measure(trace, (size_t)args->gaps, &overlap);

    if (status == DP_OK && args->action == TRACE_VIEW)
        status = trace_view_put(&overlap, title, output);
    else if (status == DP_OK && args->format == FORMAT_TEXT)
        status = trace_print_text(&overlap, title, output);
    else if (status == DP_OK && args->format == FORMAT_JSON)
        status = trace_print_json(&overlap, title, output);
    else if (status == DP_OK)
        status = trace_draw_put(&overlap, title, picture_format(args->format), output);
    trace_detail_clear(&overlap);
    return status;
}

static dp_status_t put_costs(const trace_args_t *args, const dp_trace_t *trace, output_t *output)
{
    const dp_trace_costs_t costs = {.struct_size = sizeof(costs),
                                    .layers = args->layers,
                                    .title = title_of(args->files[0]),
                                    .annotations = args->annotations,
                                    .annotation_count = args->nannotations};

    return dp_trace_costs_write(trace, &costs, output_write, output);
}

static dp_status_t put_report(const trace_args_t *args, const dp_trace_t *trace, output_t *output)
{
    if (args->action == TRACE_WHAT_IF)
        return trace_what_if_put(args, trace, title_of(args->files[0]), output);
    if (args->action == TRACE_COSTS)
        return put_costs(args, trace, output);
    return put_overlap(args, trace, output);
}

static int merge(const trace_args_t *args)
{
    output_t output;
    dp_status_t status = trace_merge_check(args);

    if (status == DP_OK)
        status = output_open(&output, args->output);
    if (status == DP_OK)
        status = output_close(&output, trace_merge_put(args, &output));
    return status == DP_OK ? CMD_OK : trace_failed(status);
}

/* Text and JSON have them. */
static dp_status_t say_notes(const trace_args_t *args, const dp_trace_t *trace)
{
    bool names = args->action != TRACE_COSTS;
    trace_notes_t notes;
    dp_status_t status;

    if (args->action == TRACE_OVERLAP && (args->format == FORMAT_TEXT || args->format == FORMAT_JSON))
        return DP_OK;
    status = trace_notes_of(trace, names, &notes);
    for (size_t k = 0; k < notes.count; k++)
        fprintf(stderr, "dualpipe trace: %s: %s\n", args->files[0], notes.lines[k]);
    return status;
}

static int run_action(const trace_args_t *args)
{
    const dp_trace_options_t options = {.struct_size = sizeof(options),
                                        .annotations = args->action == TRACE_COSTS,
                                        .communication = args->comm.text,
                                        .most_bytes = (uint64_t)args->memory_mib << 20,
                                        .devices = args->devices.text};
    dp_trace_about_t about = {.struct_size = sizeof(about)};
    output_t output;
    dp_trace_t *trace;
    dp_status_t status = trace_load(args->files[0], &options, &trace);

    if (status == DP_OK)
        status = dp_trace_about(trace, &about);
    if (status == DP_OK && about.cut_off)
        fprintf(stderr, "dualpipe trace: %s: the array of events is not closed: the trace may be cut off\n",
                args->files[0]);
    if (status == DP_OK)
        status = say_notes(args, trace);
    if (status == DP_OK)
        status = output_open(&output, args->output);
    if (status == DP_OK)
        status = output_close(&output, put_report(args, trace, &output));
    dp_trace_free(trace);
    if (status == DP_OK && args->page[0] != '\0')
        printf("%s\n", args->page);
    return status == DP_OK ? CMD_OK : trace_failed(status);
}

int cmd_trace(int argc, char **argv)
{
    trace_args_t args;
    int code;

    if (trace_args_parse(argc, argv, &args, &code))
        code = args.action == TRACE_MERGE ? merge(&args) : run_action(&args);
    trace_args_clear(&args);
    return code;
}
