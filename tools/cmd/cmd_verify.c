/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_verify.c: dualpipe verify: proves that a schedule from a file is complete and cannot
 * deadlock. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "args.h"
#include "commands.h"
#include "memory.h"
#include "plan.h"
#include "tools/io/output.h"
#include "tools/io/size.h"

static const option_row_t verify_options[] = {
    {.name = "memory-cap",
     .value = "N",
     .kind = OPTION_REAL,
     .at = offsetof(args_t, memory_cap),
     .most = INFINITY,
     .help = "reject when a rank holds more than N micro-batches' activations at once, in units of one rank's stage "
             "inputs"},
    {.kind = OPTION_END}};
static const option_row_t *const verify_tables[] = {args_transport, verify_options, args_bytes,
                                                    args_parts,     args_deferred,  NULL};

const command_t command_verify = {
    .name = "verify",
    .usage =
        "usage: dualpipe verify FILE [OPTIONS]\n"
        "Proves that the schedule in FILE (\"-\": standard input) computes everything exactly once, in an order that data allow, and that no rank waits for another in a circle; says the first fault otherwise. Without --transport it says how many slots that takes. A name that ends in .csv has the format of torch.distributed.pipelining, also as a spreadsheet writes it (quotes, semicolons, a byte order mark); where such a file lists transfers (1SEND_F0, ...), their order is proven too.\n"
        "\n",
    .tables = verify_tables,
    .needs = ARG_FILE,
    .notes = "\n"
             "examples:\n"
             "  dualpipe schedule --method dualpipe --ranks 4 --microbatches 8 --format tsv | dualpipe verify -\n"
             "      a built-in schedule, which is accepted\n"
             "  dualpipe verify mine.tsv --transport group\n"
             "      whether it completes where sends and receives have to meet\n"
             "  dualpipe verify mine.tsv --memory-cap 5\n"
             "      whether five micro-batches' activations are enough\n"
             "  dualpipe verify mine.tsv --activation-bytes 6GiB --weight-bytes 30GiB --memory 80GiB\n"
             "      whether it fits a device of 80 GiB\n"
             "\n"
             "exit status: 0 accepted, 1 the file could not be read, 2 wrong usage, 20 rejected\n"};

static void say_memory(const args_t *args, const plan_t *plan)
{
    double unit;
    const char *name = size_unit(memory_most(plan->held, plan->schedule->ranks), &unit);

    printf("\nrank  activations  deferred");
    if (args_in_bytes(args))
        printf(" %13s", name);
    putchar('\n');
    for (int32_t r = 0; r < plan->schedule->ranks; r++) {
        const dp_memory_peaks_t peaks = plan->held[r];

        printf("%4d %12.6g %9.6g", r, peaks.activations, peaks.deferred);
        if (args_in_bytes(args))
            printf(" %13.6g", peaks.bytes / unit);
        putchar('\n');
    }
    printf("\nthe most a rank holds at once: micro-batches' activations and weight gradients\n"
           "put off, in units of one rank's stage inputs%s\n",
           args_in_bytes(args) ? "; memory with its weights" : "");
}

static double peak(const dp_simulation_t *simulation)
{
    double most = 0.0;

    for (int32_t r = 0; r < simulation->ranks; r++)
        most = simulation->peak_activations[r] > most ? simulation->peak_activations[r] : most;
    return most;
}

static void say(const args_t *args, const plan_t *plan)
{
    const dp_schedule_t *schedule = plan->schedule;
    char transport[32], sizes[64];

    plan_transport_text(plan, transport, sizeof(transport));
    printf("%s: accepted: %s, %s, %d chunk%s per rank (%s), transport %s\n", args->file, schedule->method,
           output_sizes(schedule->ranks, schedule->microbatches, sizes, sizeof(sizes)), schedule->chunks,
           schedule->chunks == 1 ? "" : "s", dp_placement_name(schedule->placement), transport);
    printf("operations and transfers checked  %lld\n", (long long)plan->report.operations);
    if (plan->transfers > 0)
        printf("transfers of the file checked     %lld\n", (long long)plan->transfers);
    else if (plan->from_csv)
        printf("the file lists no transfers       those that it needs were checked\n");
    printf("most activations on a rank        %g\n", peak(&plan->simulation));
    printf("most weight gradients deferred    %d\n", plan->report.peak_deferred);
    printf("most backwards alive on a rank    %d\n", plan->report.peak_backward_buffers);
    if (plan->report.safe_slots > 0)
        printf("fewest slots that are safe        %d%s\n", plan->report.safe_slots,
               plan->report.safe_slots > PLAN_SLOTS ? ", more than the 2 of most schedules" : "");
    say_memory(args, plan);
}

static int run_verify(const args_t *args)
{
    plan_t plan;
    int code = plan_simulation(args, &plan, false);
    dp_status_t fits = code == CMD_OK ? memory_check(args, plan.schedule, plan.held) : DP_OK;

    if (fits < 0)
        code = args_failed(args, fits);
    if (code == CMD_OK)
        say(args, &plan);
    plan_clear(&plan);
    return code;
}

int cmd_verify(int argc, char **argv)
{
    args_t args;
    int code;

    if (args_parse(&command_verify, argc, argv, &args, &code))
        code = run_verify(&args);
    args_clear(&args);
    return code;
}
