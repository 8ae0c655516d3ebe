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

static const command_t command = {
    .name = "schedule",
    .options = ARG_METHOD | ARG_SIZES | ARG_FILE | ARG_FORMAT | ARG_OUTPUT | ARG_RANK | ARG_COMM,
    .formats = 1 << FORMAT_TEXT | 1 << FORMAT_TSV | 1 << FORMAT_CSV | 1 << FORMAT_JSON | 1 << FORMAT_SVG |
               1 << FORMAT_PNG | 1 << FORMAT_PDF | 1 << FORMAT_TRACE,
    .help = "usage: dualpipe schedule --method NAME --ranks P --microbatches M [OPTIONS]\n"
            "       dualpipe schedule FILE [OPTIONS]\n"
            "Prints which micro-batch every rank computes when, or draws it.\n\n"
            "  --method NAME        a built-in schedule; `dualpipe compare` ranks all of them\n"
            "  --ranks P            ranks of the pipeline\n"
            "  --microbatches M     micro-batches of a step, both directions together\n"
            "  --chunks V           model chunks per rank, for the interleaved methods\n"
            "  --forward-only       no backward anywhere\n"
            "  --format F           text (default), tsv, csv, json, svg, png, pdf, trace\n"
            "  --output FILE        write there instead of to standard output\n"
            "  --rank R             this rank alone\n"
            "  --comm               tsv with the transfers: SF RF activations, SB RB gradients, C ends a bundle\n"
            "  --help               show this\n\n"
            "examples:\n"
            "  dualpipe schedule --method dualpipe --ranks 4 --microbatches 8\n"
            "      what each rank does: F forward, B backward, I and W its two parts, (F|B) an overlapped pair\n"
            "  dualpipe schedule --method dualpipe --ranks 8 --microbatches 20 --format svg --output "
            "dualpipe.svg\n"
            "      the same as a picture, every forward taking one unit of time\n"
            "  dualpipe schedule --method dualpipev --ranks 4 --microbatches 8 --format tsv --output mine.tsv\n"
            "      a file to edit; `dualpipe verify mine.tsv` then proves that it still completes\n"
            "  dualpipe schedule mine.tsv --format csv --output mine.csv\n"
            "      a schedule of a file, edited or searched for, as torch.distributed.pipelining loads it\n"
            "  dualpipe schedule --method 1f1b --ranks 4 --microbatches 8 --format trace --output run.json\n"
            "      open run.json at https://ui.perfetto.dev\n\n"
            "exit status: 0 done, 1 the output could not be written, 2 wrong usage or sizes that the method "
            "refuses,\n"
            "20 the schedule of the file is none\n",
};

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

static int run(const args_t *args)
{
    plan_t plan;
    output_t output;
    dp_status_t status;
    int code;

    if (args->comm && args->format != FORMAT_TSV)
        return args_usage(args, "--comm goes with --format tsv");
    if (args->rank >= 0 && args->format == FORMAT_TRACE)
        return args_usage(args, "--rank does not go with --format trace: a trace shows all ranks");
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

    if (args_parse(&command, argc, argv, &args, &code)) {
        args.transport = args.comm ? DP_TRANSPORT_BUNDLES : DP_TRANSPORT_CREDITS;
        code = run(&args);
    }
    args_clear(&args);
    return code;
}
