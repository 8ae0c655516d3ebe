/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_compare.c: dualpipe compare: all schedules that fit, by step time. */
#include "commands.h"
#include "comparison.h"

static const option_row_t compare_options[] = {{.name = "format",
                                                .value = "F",
                                                .kind = OPTION_READ,
                                                .read = format_read,
                                                .at = offsetof(args_t, format),
                                                .words = "text json csv markdown svg png pdf",
                                                .help = "text (default), json, csv, markdown, svg, png, pdf"},
                                               {.kind = OPTION_END}};
static const option_row_t *const compare_tables[] = {
    args_sizes,    args_cost,       args_scales,     args_layers,    args_ranks,    args_recompute,
    args_lanes,    args_overlap,    args_memory,     args_bytes,     args_deferred, args_seed,
    args_topology, args_chunk_list, compare_options, args_transport, args_output,   NULL};

const command_t command_compare = {
    .name = "compare",
    .usage =
        "usage: dualpipe compare --ranks P --microbatches M [OPTIONS]\n"
        "Runs every built-in schedule that fits under a cost model and lists them, the shortest step first; those that do not fit follow with the reason. With --topology, every schedule is tried with every way to deal ranks out to hosts: blocks (neighbours together), in turn, mirrors (r and P-1-r together), and HOSTS as given. With --layers, the model is cut into the stages of each schedule as `dualpipe partition` does it.\n"
        "\n",
    .tables = compare_tables,
    .needs = ARG_SIZES,
    .notes =
        "\n"
        "examples:\n"
        "  dualpipe compare --ranks 8 --microbatches 40\n"
        "  dualpipe compare --ranks 8 --microbatches 40 --cost F=1,I=1,W=1,FB=2.2,HOP=0.1\n"
        "      overlapped pairs that gain much, hops that cost a tenth of a forward\n"
        "  dualpipe compare --ranks 8 --microbatches 40 --cost F=1,I=1,W=1,BYTES=1e6 --topology links.txt\n"
        "      which schedule, and which ranks on which host\n"
        "  dualpipe compare --ranks 8 --microbatches 64 --costs run/costs.txt --overlap planned --memory-cap 12\n"
        "      each with its segments beside each other as these costs make it best, in this memory\n"
        "  dualpipe compare --ranks 8 --microbatches 40 --activation-bytes 3GiB --weight-bytes 30GiB --memory 80GiB\n"
        "      which ones fit devices of 80 GiB; 80GiB,3:40GiB: of which rank 3 has 40\n"
        "  dualpipe compare --ranks 8 --microbatches 40 --memory-cap 8 --format svg --output best.svg\n"
        "\n"
        "exit status: 0 done, 1 the output could not be written, 2 wrong usage, 20 no schedule fits\n"};

static int run_compare(const args_t *args)
{
    comparison_t table = {.args = args};
    output_t output;
    dp_status_t status;
    int code = CMD_OK;

    if (args->scales_given && args->layers != NULL)
        return args_usage(args, "either --stage-scale or --layers");
    if (!args->scales_given)
        plan_leave_scales(args);
    status = comparison_make(&table);
    if (status >= 0 && table.fitting == 0 && !comparison_is_text(args->format))
        status = dp_fail(DP_ERR_REJECTED, "no schedule fits: there is nothing to draw");
    if (status >= 0)
        status = output_open(&output, args->output);
    if (status >= 0)
        status = output_close(&output, comparison_put(&table, &output));
    if (status < 0)
        code = args_failed(args, status);
    else if (table.fitting == 0)
        code = CMD_REJECTED;
    comparison_clear(&table);
    return code;
}

int cmd_compare(int argc, char **argv)
{
    args_t args;
    int code;

    if (args_parse(&command_compare, argc, argv, &args, &code))
        code = run_compare(&args);
    args_clear(&args);
    return code;
}
