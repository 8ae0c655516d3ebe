/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_simulate.c: dualpipe simulate: how long a step takes, what is idle and what is held, under
 * given costs. */
#include <math.h>
#include <stdlib.h>

#include "args.h"
#include "commands.h"
#include "exposed.h"
#include "figure.h"
#include "memory.h"
#include "plan.h"
#include "tools/io/output.h"
#include "tools/io/size.h"

static const option_row_t simulate_options[] = {{.name = "format",
                                                 .value = "F",
                                                 .kind = OPTION_READ,
                                                 .read = format_read,
                                                 .at = offsetof(args_t, format),
                                                 .words = "text json svg png pdf trace",
                                                 .help = "text (default), json, svg, png, pdf, trace"},
                                                {.kind = OPTION_END}};
static const option_row_t *const simulate_tables[] = {
    args_method,   args_inference, args_sizes,       args_cost,   args_scales,   args_ranks, args_recompute,
    args_lanes,    args_overlap,   args_memory,      args_bytes,  args_deferred, args_parts, args_seed,
    args_topology, args_transport, simulate_options, args_output, NULL};

const command_t command_simulate = {
    .name = "simulate",
    .usage =
        "usage: dualpipe simulate --method NAME --ranks P --microbatches M [OPTIONS]\n"
        "       dualpipe simulate FILE [OPTIONS]\n"
        "Runs a schedule under a cost model: step time, idle time and memory of every rank, beside the published formula; with costs of segments, how much communication a pair hides.\n"
        "\n",
    .tables = simulate_tables,
    .lists_methods = true,
    .needs = ARG_METHOD | ARG_SIZES | ARG_FILE | ARG_PLAN,
    .notes =
        "\n"
        "examples:\n"
        "  dualpipe simulate --method dualpipe --ranks 8 --microbatches 20\n"
        "  dualpipe simulate --method 1f1b --ranks 8 --microbatches 20 --cost F=1,B=2,HOP=0.1\n"
        "      a hop that costs a tenth of a forward\n"
        "  dualpipe simulate --method dualpipe --ranks 8 --microbatches 20 --cost F=1,I=1,W=1,FB=2.4 --format svg --output a.svg\n"
        "      overlap that hides a fifth of every pair\n"
        "  dualpipe simulate --method dualpipe --ranks 8 --microbatches 20 --rank-scale 3:1.2\n"
        "      a device that is a fifth slower than the others\n"
        "  dualpipe simulate --method dualpipe --ranks 8 --microbatches 20 --costs run/costs.txt\n"
        "      costs that were measured, as train_moe --costs-out writes them\n"
        "  dualpipe simulate --method dualpipe --ranks 8 --microbatches 20 --costs run/costs.txt --topology links.txt\n"
        "      on several hosts\n"
        "  dualpipe simulate --method dualpipev --ranks 8 --microbatches 64 --costs run/costs.txt --overlap planned\n"
        "      forwards and backwards beside each other wherever it shortens the step, in the ramps as well\n"
        "  dualpipe simulate --method 1f1b --ranks 1 --microbatches 8 --inference prefill --cost attention.F=1,dispatch.F=2,mlp.F=1,combine.F=2,LAYERS=61\n"
        "      two micro-batches beside each other, as a server runs them; with --overlap planned in the best order that is found\n"
        "  dualpipe simulate mine.tsv --format json\n"
        "\n"
        "exit status: 0 done, 1 a file could not be read or written, 2 wrong usage, 20 the schedule is rejected\n"};

static const char header[] = "rank       busy      idle          waiting   exposed   most held";

/* Where formula and simulation part, why. */
static void put_note(FILE *to, const plan_t *plan)
{
    const dp_simulation_t *s = &plan->simulation;
    double low = INFINITY, high = -INFINITY;

    for (int32_t r = 0; r < s->ranks; r++) {
        low = fmin(low, s->bubble[r]);
        high = fmax(high, s->bubble[r]);
    }
    if (isnan(s->formula_bubble) || plan->costs.segments != NULL) {
        fprintf(to, "formula    none %s\n",
                isnan(s->formula_bubble) ? "is published for this schedule" : "counts segments");
        return;
    }
    fprintf(to, "formula    %.6g idle on every rank\n", s->formula_bubble);
    if (fabs(low - s->formula_bubble) > 1e-9 * s->step_time || fabs(high - s->formula_bubble) > 1e-9 * s->step_time)
        fprintf(
            to,
            "           It differs from the run: a formula counts no hops, no scales and no ranks that wait in turn;\n"
            "           those of DualPipe are exact when F = I >= W and an overlapped pair costs F + B or less.\n");
}

static void put_ranks(FILE *to, const plan_t *plan, const ways_t *ways)
{
    const dp_simulation_t *s = &plan->simulation;
    double step = s->step_time > 0.0 ? s->step_time : 1.0;
    double unit;
    const char *name = size_unit(memory_most(plan->held, s->ranks), &unit);

    fputs(header, to);
    if (args_in_bytes(plan->args))
        fprintf(to, " %10s", name);
    fputs(plan->args->recompute > DP_RECOMPUTE_NONE ? "  backwards\n" : "\n", to);
    for (int32_t r = 0; r < s->ranks; r++) {
        exposed_t e = exposed_of(s->timeline, r, ways);

        fprintf(to, "%4d %10.6g %9.6g %5.1f %% %9.6g %9.6g %11.6g", r, s->step_time - s->bubble[r], fabs(s->bubble[r]),
                fabs(s->bubble[r]) / step * 100.0, e.waiting, e.exposed, s->peak_activations[r]);
        if (args_in_bytes(plan->args))
            fprintf(to, " %10.6g", plan->held[r].bytes / unit);
        if (plan->args->recompute > DP_RECOMPUTE_NONE)
            fprintf(to, " %10.6g", s->peak_backward_buffers[r]);
        fputc('\n', to);
    }
}

/* "ranks      2: 1.5, 3: 1.2 times the costs" */
static void put_scales(FILE *to, const args_t *args)
{
    const char *before = "ranks      ";

    for (int32_t r = 0; r < args->scaled; r++)
        if (args->rank_scale[r] != 1.0) {
            fprintf(to, "%s%d: %g", before, r, args->rank_scale[r]);
            before = ", ";
        }
    if (before[0] == ',')
        fputs(" times the costs\n", to);
}

/* What the segments' order hides of their communication. */
static void put_pair(FILE *to, const dp_pair_figures_t *pair)
{
    if (pair->struct_size == 0)
        return;
    fprintf(to, "pair       %.6g, with %.6g of dispatch and combine: %.6g hidden (%.1f %%), %.6g exposed\n", pair->time,
            pair->communication, pair->hidden,
            pair->communication > 0.0 ? pair->hidden / pair->communication * 100.0 : 100.0,
            pair->communication - pair->hidden);
}

/* "hosts      0 0 1 1: within HOP 0.01, ...": the host of each rank */
static void put_hosts(FILE *to, const plan_t *plan)
{
    const dp_topology_t *t = &plan->topology;

    fputs("hosts     ", to);
    for (int32_t r = 0; r < t->ranks; r++)
        fprintf(to, " %d", t->host_of[r]);
    fprintf(to, ": within HOP %g, BANDWIDTH %g; between HOP %g, BANDWIDTH %g (0: no limit)\n", t->near_hop,
            t->near_bandwidth, t->far_hop, t->far_bandwidth);
}

static dp_status_t put_table(const plan_t *plan, const ways_t *ways, output_t *output)
{
    const dp_schedule_t *schedule = plan->schedule;
    const dp_costs_t *costs = &plan->args->costs;
    FILE *to = output->file;
    char transport[32], text[256], sizes[64];

    plan_transport_text(plan, transport, sizeof(transport));
    fprintf(to, "schedule   %s: %s, %d chunk%s per rank (%s)%s\n", schedule->method,
            output_sizes(schedule->ranks, schedule->microbatches, sizes, sizeof(sizes)), schedule->chunks,
            schedule->chunks == 1 ? "" : "s", dp_placement_name(schedule->placement),
            schedule->forward_only ? ", forward only" : "");
    costs_text(costs, text, sizeof(text));
    fprintf(to, "costs      %s, transport %s%s\n", text, transport, costs->barrier == 0.0 ? ", no barrier" : "");
    put_scales(to, plan->args);
    if (costs->segments != NULL)
        fprintf(to, "           %s", plan_by_segments);
    if (plan->host_of != NULL)
        put_hosts(to, plan);
    put_pair(to, &plan->args->pair);
    fprintf(to, "step       %.6g\n", plan->simulation.step_time);
    if (plan->published > 0.0)
        fprintf(to, "           %.6g in the published order, %.4g times as long\n", plan->published,
                plan->published / plan->simulation.step_time);
    put_note(to, plan);
    fputc('\n', to);
    put_ranks(to, plan, ways);
    fputs("\nidle: not computing, from the step's start to its end. waiting: the "
          "part of it spent\n"
          "for a message. exposed: the part of that during which the message was on its way.\n"
          "most held: micro-batches' activations at once, in units of one rank's stage inputs.\n",
          to);
    if (plan->args->recompute > DP_RECOMPUTE_NONE)
        fputs(
            "backwards: most at once between I and W, in the same units: for these alone, what is computed once more, "
            "and\nwhat backwards make, takes memory.\n",
            to);
    return DP_OK;
}

enum { BUSY, BUBBLE, WAITING, EXPOSED, PEAK, BACKWARD_BUFFER, BYTES };

static void put_array(FILE *to, const plan_t *plan, const ways_t *ways, const char *name, int what)
{
    const dp_simulation_t *s = &plan->simulation;

    fprintf(to, ",\n \"%s\":[", name);
    for (int32_t r = 0; r < s->ranks; r++) {
        exposed_t e = {0.0, 0.0};

        if (what == WAITING || what == EXPOSED)
            e = exposed_of(s->timeline, r, ways);
        if (r > 0)
            fputc(',', to);
        output_json_number(to, what == BUSY              ? s->step_time - s->bubble[r]
                               : what == BUBBLE          ? s->bubble[r]
                               : what == WAITING         ? e.waiting
                               : what == EXPOSED         ? e.exposed
                               : what == BYTES           ? plan->held[r].bytes
                               : what == BACKWARD_BUFFER ? s->peak_backward_buffers[r]
                                                         : s->peak_activations[r]);
    }
    fputc(']', to);
}

static void put_json_costs(FILE *to, const plan_t *plan)
{
    fputs(",\n ", to);
    plan_json_costs(to, &plan->args->costs);
    if (plan->args->pair.struct_size == 0)
        return;
    fputs(",\n \"pair\":{\"time\":", to);
    output_json_number(to, plan->args->pair.time);
    fputs(",\"communication\":", to);
    output_json_number(to, plan->args->pair.communication);
    fputs(",\"hidden\":", to);
    output_json_number(to, plan->args->pair.hidden);
    fputc('}', to);
}

static dp_status_t put_json(const plan_t *plan, const ways_t *ways, output_t *output)
{
    const dp_schedule_t *schedule = plan->schedule;
    FILE *to = output->file;
    char transport[32];

    plan_transport_text(plan, transport, sizeof(transport));
    fputs("{\"schema\":1,\"method\":", to);
    output_json_string(to, schedule->method);
    fprintf(to,
            ",\"ranks\":%d,\"microbatches\":%d,\"chunks\":%d,\"placement\":\"%s\",\"transport\":\"%s\","
            "\"barrier\":%s",
            schedule->ranks, schedule->microbatches, schedule->chunks, dp_placement_name(schedule->placement),
            transport, plan->args->costs.barrier != 0.0 ? "true" : "false");
    fprintf(to, ",\"model\":\"%s\"", plan->costs.segments != NULL ? "lanes" : "operations");
    put_json_costs(to, plan);
    if (plan->host_of != NULL) {
        fputs(",\n \"hosts\":[", to);
        for (int32_t r = 0; r < schedule->ranks; r++)
            fprintf(to, "%s%d", r > 0 ? "," : "", plan->host_of[r]);
        fputc(']', to);
    }
    for (int32_t r = 0; plan->args->rank_scale != NULL && r < schedule->ranks; r++)
        fprintf(to, "%s%.9g%s", r == 0 ? ",\n \"rank_scale\":[" : ",", plan->args->rank_scale[r],
                r + 1 == schedule->ranks ? "]" : "");
    fputs(",\n \"step_time\":", to);
    output_json_number(to, plan->simulation.step_time);
    if (plan->published > 0.0) {
        fputs(",\n \"published_step_time\":", to);
        output_json_number(to, plan->published);
    }
    fputs(",\n \"formula_bubble\":", to);
    output_json_number(to, plan->costs.segments != NULL ? (double)NAN : plan->simulation.formula_bubble);
    put_array(to, plan, ways, "bubble", BUBBLE);
    put_array(to, plan, ways, "busy", BUSY);
    put_array(to, plan, ways, "waiting", WAITING);
    put_array(to, plan, ways, "exposed_communication", EXPOSED);
    put_array(to, plan, ways, "peak_activations", PEAK);
    put_array(to, plan, ways, "peak_backward_buffers", BACKWARD_BUFFER);
    if (args_in_bytes(plan->args))
        put_array(to, plan, ways, "bytes", BYTES);
    fputs("}\n", to);
    return DP_OK;
}

static dp_status_t put_result(const plan_t *plan, output_t *output)
{
    ways_t ways = {NULL, 0};
    dp_status_t status;

    if (plan->args->format != FORMAT_TEXT && plan->args->format != FORMAT_JSON)
        return figure_write(plan, output);
    status = ways_make(plan->simulation.timeline, &ways);
    if (status >= 0)
        status = (plan->args->format == FORMAT_TEXT ? put_table : put_json)(plan, &ways, output);
    ways_clear(&ways);
    return status;
}

static int run_simulation(const args_t *args)
{
    plan_t plan;
    output_t output;
    int code = plan_simulation(args, &plan, true);
    dp_status_t fits = code == CMD_OK ? memory_check(args, plan.schedule, plan.held) : DP_OK;

    if (fits < 0)
        code = args_failed(args, fits);
    if (code == CMD_OK) {
        dp_status_t status = output_open(&output, args->output);

        if (status == DP_OK)
            status = output_close(&output, put_result(&plan, &output));
        code = status == DP_OK ? CMD_OK : args_failed(args, status);
    }
    plan_clear(&plan);
    return code;
}

int cmd_simulate(int argc, char **argv)
{
    args_t args;
    int code;

    if (args_parse(&command_simulate, argc, argv, &args, &code))
        code = run_simulation(&args);
    args_clear(&args);
    return code;
}
