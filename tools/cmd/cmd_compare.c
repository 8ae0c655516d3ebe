/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_compare.c: dualpipe compare: all schedules that fit, by step time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "commands.h"
#include "plan.h"
#include "tools/draw/draw_bars.h"
#include "tools/io/output.h"

static const option_row_t compare_options[] = {{.name = "format",
                                                .value = "F",
                                                .kind = OPTION_READ,
                                                .read = format_read,
                                                .at = offsetof(args_t, format),
                                                .words = "text json svg png pdf",
                                                .help = "text (default), json, svg, png, pdf"},
                                               {.kind = OPTION_END}};
static const option_row_t *const compare_tables[] = {
    args_sizes,  args_cost, args_scales,   args_layers,     args_ranks,     args_recompute, args_lanes, args_overlap,
    args_memory, args_seed, args_topology, compare_options, args_transport, args_output,    NULL};

const command_t command_compare = {
    .name = "compare",
    .usage =
        "usage: dualpipe compare --ranks P --microbatches M [OPTIONS]\n"
        "Runs every built-in schedule that fits under a cost model and lists them, the shortest step first; those that do not fit follow with the reason. With --topology, every schedule is tried with every way to deal ranks out to hosts: blocks (neighbours together), in turn, mirrors (r and P-1-r together), and HOSTS as given. With --layers, the model is cut into the stages of each schedule as `dualpipe partition` does it.\n"
        "\n",
    .tables = compare_tables,
    .needs = ARG_SIZES,
    .notes = "\n"
             "examples:\n"
             "  dualpipe compare --ranks 8 --microbatches 40\n"
             "  dualpipe compare --ranks 8 --microbatches 40 --cost F=1,I=1,W=1,FB=2.2,HOP=0.1\n"
             "      overlapped pairs that gain much, hops that cost a tenth of a forward\n"
             "  dualpipe compare --ranks 8 --microbatches 40 --cost F=1,I=1,W=1,BYTES=1e6 --topology links.txt\n"
             "      which schedule, and which ranks on which host\n"
             "  dualpipe compare --ranks 8 --microbatches 64 --costs run/costs.txt --overlap planned --memory-cap 12\n"
             "      each with its segments beside each other as these costs make it best, in this memory\n"
             "  dualpipe compare --ranks 4 --microbatches 16 --layers 1x61,5.45\n"
             "      a head that costs as much as five layers: each schedule with the layers cut as it likes best\n"
             "  dualpipe compare --ranks 8 --microbatches 40 --memory-cap 8 --format svg --output best.svg\n"
             "\n"
             "exit status: 0 done, 1 the output could not be written, 2 wrong usage, 20 no schedule fits\n"};

/* One method with one number of chunks. */
typedef struct entry {
    const dp_method_t *method;
    int32_t chunks; /* asked for; 0: the method's own */
    topology_placing_t placing;
    char label[64];
    char reason[512]; /* why it does not fit; "" when it does */
    double step, mean_bubble, peak, backward_buffer, formula;
    int32_t copies; /* of the model's weights */
} entry_t;

typedef struct table {
    const args_t *args;
    entry_t *entries;
    size_t count, fitting;
} table_t;

/* The interleaved methods are tried with several numbers of chunks. */
static const int32_t loop_chunks[] = {2, 4};
enum { MOST_PLACINGS = TOPOLOGY_MIRRORS + 1 };
enum { MOST_VARIANTS = sizeof(loop_chunks) / sizeof(loop_chunks[0]) };

static void fill_entry(entry_t *entry, const plan_t *plan)
{
    const dp_simulation_t *s = &plan->simulation;

    entry->step = s->step_time;
    entry->formula = s->formula_bubble;
    entry->copies = dp_schedule_paths(plan->schedule);
    for (int32_t r = 0; r < s->ranks; r++) {
        entry->mean_bubble += s->bubble[r] / s->ranks;
        entry->peak = fmax(entry->peak, s->peak_activations[r]);
        entry->backward_buffer = fmax(entry->backward_buffer, s->peak_backward_buffers[r]);
    }
}

static dp_status_t run_entry(const args_t *args, entry_t *entry, plan_t *plan)
{
    dp_costs_t costs = args->costs;
    dp_schedule_request_t request = {.struct_size = sizeof(request),
                                     .method = entry->method->name,
                                     .ranks = args->ranks,
                                     .microbatches = args->microbatches,
                                     .chunks = entry->chunks};
    dp_lower_options_t options = {
        .struct_size = sizeof(options), .transport = args->transport, .slots = plan_slots(args)};
    dp_status_t status = dp_schedule_generate(&request, &plan->schedule);

    plan->simulation.struct_size = sizeof(plan->simulation);
    if (status >= 0 && args->scales_given)
        status = plan_costs(args, plan->schedule, &costs);
    if (status >= 0)
        status = plan_place(plan, entry->placing, &costs);
    if (status >= 0 && args->layers != NULL)
        status = plan_layers(plan, &costs);
    if (status >= 0)
        status = plan_overlap(plan, &costs);
    if (status >= 0)
        status = dp_evaluate(plan->schedule, &options, &costs, 0, &plan->simulation);
    if (status >= 0)
        fill_entry(entry, plan);
    return status;
}

/* The row begins with the method's name already. */
static const char *without_name(const char *message, const char *name)
{
    size_t length = strlen(name);

    return strncmp(message, name, length) == 0 && strncmp(message + length, ": ", 2) == 0 ? message + length + 2
                                                                                          : message;
}

/* Only what no choice of method can mend ends the command. */
static dp_status_t try_entry(const args_t *args, entry_t *entry)
{
    plan_t plan = {.args = args};
    dp_status_t status = run_entry(args, entry, &plan);

    if (status >= 0 && args->memory_cap >= 0.0 && entry->peak > args->memory_cap + 1e-9)
        snprintf(entry->reason, sizeof(entry->reason), "holds %g micro-batches' activations, the cap is %g",
                 entry->peak, args->memory_cap);
    if (status == DP_ERR_INVALID || status == DP_ERR_REJECTED)
        snprintf(entry->reason, sizeof(entry->reason), "%s", without_name(dp_last_error(), entry->method->name));
    plan_clear(&plan);
    return status == DP_ERR_INVALID || status == DP_ERR_REJECTED ? DP_OK : status;
}

static void add_placed(table_t *table, const dp_method_t *method, int32_t chunks, topology_placing_t placing)
{
    entry_t *entry = &table->entries[table->count++];
    int n;

    entry->method = method;
    entry->chunks = chunks;
    entry->placing = placing;
    n = chunks > 0 ? snprintf(entry->label, sizeof(entry->label), "%s, %d chunks", method->name, chunks)
                   : snprintf(entry->label, sizeof(entry->label), "%s", method->name);
    if (table->args->on_hosts)
        snprintf(entry->label + n, sizeof(entry->label) - (size_t)n, ", %s", topology_placing_name(placing));
}

static void add_entry(table_t *table, const dp_method_t *method, int32_t chunks)
{
    if (!table->args->on_hosts || table->args->topology.hosts != NULL)
        add_placed(table, method, chunks, TOPOLOGY_AS_GIVEN);
    if (table->args->on_hosts)
        for (int placing = TOPOLOGY_BLOCKS; placing <= TOPOLOGY_MIRRORS; placing++)
            add_placed(table, method, chunks, (topology_placing_t)placing);
}

/* Fitting ones first, by step, then by memory; the others in the order of the methods. */
static int by_step(const void *a, const void *b)
{
    const entry_t *x = a, *y = b;
    bool x_fits = x->reason[0] == 0, y_fits = y->reason[0] == 0;

    if (x_fits != y_fits)
        return x_fits ? -1 : 1;
    if (x_fits && fabs(x->step - y->step) > 1e-9 * fmax(x->step, y->step))
        return x->step < y->step ? -1 : 1;
    if (x_fits && x->peak != y->peak)
        return x->peak < y->peak ? -1 : 1;
    if (x->method != y->method)
        return x->method < y->method ? -1 : 1;
    return x->chunks != y->chunks ? x->chunks - y->chunks : (int)x->placing - (int)y->placing;
}

static dp_status_t make_table(table_t *table)
{
    size_t methods;
    const dp_method_t *all = dp_schedule_methods(&methods);
    dp_status_t status = DP_OK;

    table->entries = calloc(methods * MOST_VARIANTS * MOST_PLACINGS, sizeof(*table->entries));
    if (table->entries == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu methods", methods);
    for (size_t m = 0; m < methods; m++) {
        if (all[m].placement != DP_PLACE_LOOP)
            add_entry(table, &all[m], 0);
        for (int32_t k = 0; k < MOST_VARIANTS && all[m].placement == DP_PLACE_LOOP; k++)
            add_entry(table, &all[m], loop_chunks[k]);
    }
    for (size_t e = 0; e < table->count && status >= 0; e++) {
        status = try_entry(table->args, &table->entries[e]);
        table->fitting += table->entries[e].reason[0] == 0;
    }
    qsort(table->entries, table->count, sizeof(*table->entries), by_step);
    return status;
}

/* ---- output ---- */

static dp_status_t put_table(const table_t *table, output_t *output)
{
    FILE *to = output->file;
    char costs[160];
    int width = (int)strlen("schedule");

    costs_text(&table->args->costs, costs, sizeof(costs));
    fprintf(to, "%d rank%s, %d micro-batches, costs %s\n\n", table->args->ranks, table->args->ranks == 1 ? "" : "s",
            table->args->microbatches, costs);
    for (size_t e = 0; e < table->fitting; e++)
        width = (int)strlen(table->entries[e].label) > width ? (int)strlen(table->entries[e].label) : width;
    fprintf(to, "%-*s     step     idle         formula    held weights%s\n", width, "schedule",
            table->args->recompute > DP_RECOMPUTE_NONE ? "  backwards" : "");
    for (size_t e = 0; e < table->fitting; e++) {
        const entry_t *entry = &table->entries[e];
        char formula[32] = "-";

        if (isfinite(entry->formula))
            snprintf(formula, sizeof(formula), "%.6g", entry->formula);
        fprintf(to, "%-*s %8.6g %8.6g %5.1f %% %7s %7.5g %6dx", width, entry->label, entry->step,
                fabs(entry->mean_bubble), entry->step > 0.0 ? fabs(entry->mean_bubble) / entry->step * 100.0 : 0.0,
                formula, entry->peak, entry->copies);
        if (table->args->recompute > DP_RECOMPUTE_NONE)
            fprintf(to, " %10.6g", entry->backward_buffer);
        fputc('\n', to);
    }
    if (table->fitting < table->count)
        fputs("\nthese do not fit:\n", to);
    for (size_t e = table->fitting; e < table->count; e++)
        fprintf(to, "%-30s %s\n", table->entries[e].label, table->entries[e].reason);
    fputs("\nidle: mean over the ranks. held: most micro-batches' activations at once on a\n"
          "rank, in units of its stage inputs. weights: copies of the model.\n",
          to);
    if (table->args->recompute > DP_RECOMPUTE_NONE)
        fputs("deferred W: most micro-batches per rank awaiting their weight gradient.\n", to);
    return DP_OK;
}

static dp_status_t put_json(const table_t *table, output_t *output)
{
    FILE *to = output->file;
    char costs[160];

    costs_text(&table->args->costs, costs, sizeof(costs));
    fprintf(to, "{\"ranks\":%d,\"microbatches\":%d,\"costs\":\"%s\",\"schedules\":[", table->args->ranks,
            table->args->microbatches, costs);
    for (size_t e = 0; e < table->count; e++) {
        const entry_t *entry = &table->entries[e];
        bool fits = entry->reason[0] == 0;

        fprintf(to, "%s\n {\"method\":\"%s\",\"chunks\":%d,\"fits\":%s", e > 0 ? "," : "", entry->method->name,
                entry->chunks, fits ? "true" : "false");
        if (table->args->on_hosts)
            fprintf(to, ",\"placing\":\"%s\"", topology_placing_name(entry->placing));
        if (fits) {
            fputs(",\"step_time\":", to);
            output_json_number(to, entry->step);
            fputs(",\"mean_bubble\":", to);
            output_json_number(to, entry->mean_bubble);
            fputs(",\"formula_bubble\":", to);
            output_json_number(to, entry->formula);
            fputs(",\"peak_activations\":", to);
            output_json_number(to, entry->peak);
            fputs(",\"peak_backward_buffers\":", to);
            output_json_number(to, entry->backward_buffer);
            fprintf(to, ",\"weight_copies\":%d}", entry->copies);
        } else {
            fputs(",\"reason\":", to);
            output_json_string(to, entry->reason);
            fputc('}', to);
        }
    }
    fputs("\n]}\n", to);
    return DP_OK;
}

static dp_status_t put_picture(const table_t *table, output_t *output)
{
    draw_bar_t *bars = calloc(table->fitting + 1, sizeof(*bars));
    char title[96], subtitle[192], costs[160];
    draw_bars_t picture = {title, subtitle, bars, (int32_t)table->fitting};
    format_t format = table->args->format;
    dp_status_t status;

    if (bars == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu bars", table->fitting);
    snprintf(title, sizeof(title), "Step time of %d ranks and %d micro-batches", table->args->ranks,
             table->args->microbatches);
    costs_text(&table->args->costs, costs, sizeof(costs));
    snprintf(subtitle, sizeof(subtitle), "costs %s", costs);
    for (size_t e = 0; e < table->fitting; e++) {
        const entry_t *entry = &table->entries[e];

        bars[e] = (draw_bar_t){.label = entry->label,
                               .busy = entry->step - entry->mean_bubble,
                               .idle = fmax(entry->mean_bubble, 0.0),
                               .held = entry->peak};
    }
    status = draw_bars_write(&picture,
                             format == FORMAT_PNG   ? DRAW_PNG
                             : format == FORMAT_PDF ? DRAW_PDF
                                                    : DRAW_SVG,
                             output_write, output);
    free(bars);
    return status;
}

static dp_status_t put_entries(const table_t *table, output_t *output)
{
    switch (table->args->format) {
    case FORMAT_TEXT:
        return put_table(table, output);
    case FORMAT_JSON:
        return put_json(table, output);
    default:
        return put_picture(table, output);
    }
}

static int run_compare(const args_t *args)
{
    table_t table = {.args = args};
    output_t output;
    dp_status_t status;
    int code = CMD_OK;

    if (args->scales_given && args->layers != NULL)
        return args_usage(args, "either --stage-scale or --layers");
    if (!args->scales_given)
        plan_leave_scales(args);
    status = make_table(&table);
    if (status >= 0 && table.fitting == 0 && args->format != FORMAT_TEXT && args->format != FORMAT_JSON)
        status = dp_fail(DP_ERR_REJECTED, "no schedule fits: there is nothing to draw");
    if (status >= 0)
        status = output_open(&output, args->output);
    if (status >= 0)
        status = output_close(&output, put_entries(&table, &output));
    if (status < 0)
        code = args_failed(args, status);
    else if (table.fitting == 0)
        code = CMD_REJECTED;
    free(table.entries);
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
