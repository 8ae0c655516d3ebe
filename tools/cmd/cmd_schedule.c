/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_schedule.c: dualpipe schedule: prints or draws what every rank computes, in which order. */
#include <stdlib.h>

#include "args.h"
#include "commands.h"
#include "figure.h"
#include "listing.h"
#include "plan.h"
#include "tools/io/output.h"

static const option_row_t schedule_options[] = {
    {.name = "format",
     .value = "F",
     .kind = OPTION_READ,
     .read = format_read,
     .at = offsetof(args_t, format),
     .words = "text tsv csv json svg png pdf trace",
     .help = "text (default), tsv, csv, json, svg, png, pdf, trace"},
    {.name = "rank",
     .value = "R",
     .kind = OPTION_INT32,
     .at = offsetof(args_t, rank),
     .least = 0,
     .most = DP_MAX_RANKS - 1,
     .help = "this rank alone"},
    {.name = "comm",
     .kind = OPTION_FLAG,
     .at = offsetof(args_t, comm),
     .help = "tsv with the transfers: SF RF activations, SB RB gradients, C ends a bundle"},
    {.kind = OPTION_END}};
static const option_row_t *const schedule_tables[] = {args_method,      args_inference, args_sizes,  args_cost,
                                                      args_scales,      args_overlap,   args_memory, args_seed,
                                                      schedule_options, args_output,    NULL};

const command_t command_schedule = {
    .name = "schedule",
    .usage = "usage: dualpipe schedule --method NAME --ranks P --microbatches M [OPTIONS]\n"
             "       dualpipe schedule FILE [OPTIONS]\n"
             "Prints which micro-batch every rank computes when, or draws it.\n"
             "\n",
    .tables = schedule_tables,
    .lists_methods = true,
    .needs = ARG_METHOD | ARG_SIZES | ARG_FILE | ARG_PLAN,
    .notes =
        "\n"
        "examples:\n"
        "  dualpipe schedule --method dualpipe --ranks 4 --microbatches 8\n"
        "      what each rank does: F forward, B backward, I and W its two parts, (F|B) an overlapped pair\n"
        "  dualpipe schedule --method dualpipe --ranks 8 --microbatches 20 --format svg --output dualpipe.svg\n"
        "      the same as a picture, every forward taking one unit of time\n"
        "  dualpipe schedule --method dualpipev --ranks 4 --microbatches 8 --format tsv --output mine.tsv\n"
        "      a file to edit; `dualpipe verify mine.tsv` then proves that it still completes\n"
        "  dualpipe schedule mine.tsv --format csv --output mine.csv\n"
        "      a schedule of a file, edited or searched for, as torch.distributed.pipelining loads it\n"
        "  dualpipe schedule --method dualpipev --ranks 4 --microbatches 16 --costs run/costs.txt --overlap planned --format tsv --output mine.tsv\n"
        "      the same passes, their segments beside each other as these costs make it best\n"
        "  dualpipe schedule --method 1f1b --ranks 4 --microbatches 8 --format trace --output run.json\n"
        "      open run.json at https://ui.perfetto.dev\n"
        "\n"
        "exit status: 0 done, 1 the output could not be written, 2 wrong usage or sizes that the method refuses, 20 the schedule of the file is none\n"};

static bool needs_run(format_t format)
{
    return format == FORMAT_SVG || format == FORMAT_PNG || format == FORMAT_PDF || format == FORMAT_TRACE;
}

static int make_plan(const args_t *args, plan_t *plan)
{
    if (needs_run(args->format))
        return plan_simulation(args, plan, true);
    return args->comm ? plan_program(args, plan) : plan_schedule(args, plan);
}

static dp_status_t write_plan(const plan_t *plan, output_t *output)
{
    switch (plan->args->format) {
    case FORMAT_TEXT:
        return listing_text(plan->schedule, plan->args->rank, output);
    case FORMAT_JSON:
        return listing_json(plan->schedule, plan->args->rank, output);
    case FORMAT_CSV:
        return listing_csv(plan->schedule, plan->args->rank, output);
    case FORMAT_TSV:
        return plan->args->comm ? listing_transfers(plan->program, plan->args->rank, output)
                                : dp_schedule_write_tsv(plan->schedule, plan->args->rank, output_write, output);
    default:
        return figure_write(plan, output);
    }
}

static int run_schedule(const args_t *args)
{
    plan_t plan;
    output_t output;
    dp_status_t status;
    int code;

    if (args->comm && args->format != FORMAT_TSV)
        return args_usage(args, "--comm goes with --format tsv");
    if (args->rank >= 0 && args->format == FORMAT_TRACE)
        return args_usage(args, "--rank does not go with --format trace: a trace shows all ranks");
    if (args->overlap == OVERLAP_PLANNED && args->format == FORMAT_CSV)
        return args_usage(args, "--format csv cannot say which segments run beside each other: tsv can");
    code = make_plan(args, &plan);
    if (code == CMD_OK) {
        status = output_open(&output, args->output);
        if (status == DP_OK)
            status = output_close(&output, write_plan(&plan, &output));
        code = status == DP_OK ? CMD_OK : args_failed(args, status);
    }
    plan_clear(&plan);
    return code;
}

int cmd_schedule(int argc, char **argv)
{
    args_t args;
    int code;

    if (args_parse(&command_schedule, argc, argv, &args, &code)) {
        args.transport = args.comm ? DP_TRANSPORT_BUNDLES : DP_TRANSPORT_CREDITS;
        code = run_schedule(&args);
    }
    args_clear(&args);
    return code;
}
