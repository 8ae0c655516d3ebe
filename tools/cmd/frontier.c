/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * frontier.c: searches for the shortest step under one limit of memory after the other. */
#include "frontier.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "tools/draw/draw_frontier.h"
#include "tools/io/size.h"

/* One that holds more and takes no less is of no use. */
static void keep_row(frontier_t *frontier, const dp_search_result_t *row)
{
    while (frontier->count > 0 && row->step <= frontier->rows[frontier->count - 1].step)
        dp_search_clear(&frontier->rows[--frontier->count]);
    frontier->rows[frontier->count++] = *row;
}

static void turn_rows(frontier_t *frontier)
{
    for (int32_t a = 0, b = frontier->count - 1; a < b; a++, b--) {
        dp_search_result_t row = frontier->rows[a];

        frontier->rows[a] = frontier->rows[b];
        frontier->rows[b] = row;
    }
}

static dp_status_t search_rows(const dp_search_request_t *all, double *caps, frontier_t *frontier)
{
    dp_search_request_t request = *all;
    double gap = 0.0;

    request.seconds = all->seconds / FRONTIER_ROWS;
    request.rank_caps = caps;
    for (int32_t k = 0; k < FRONTIER_ROWS; k++) {
        dp_search_result_t row = {.struct_size = sizeof(row)};
        dp_status_t status = dp_search(&request, &row);

        if (status == DP_ERR_REJECTED && k > 0)
            return DP_OK;
        if (status < 0)
            return status;
        if (k == 0)
            gap = (row.memory - all->weight_bytes) / FRONTIER_ROWS;
        for (int32_t r = 0; r < request.ranks; r++)
            caps[r] = caps[r] > 0.0 ? fmin(caps[r], row.memory - gap) : row.memory - gap;
        keep_row(frontier, &row);
        if (!(row.memory - gap > 0.0))
            return DP_OK;
    }
    return DP_OK;
}

dp_status_t frontier_make(const args_t *args, const dp_search_request_t *request, frontier_t *frontier)
{
    double *caps = calloc((size_t)request->ranks, sizeof(*caps));
    dp_status_t status;

    *frontier = (frontier_t){.args = args};
    if (caps == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the limits of %d ranks", request->ranks);
    for (int32_t r = 0; r < request->ranks; r++)
        caps[r] = request->rank_caps != NULL ? request->rank_caps[r] : request->memory_cap;
    status = search_rows(request, caps, frontier);
    turn_rows(frontier);
    free(caps);
    return status;
}

void frontier_clear(frontier_t *frontier)
{
    while (frontier->count > 0)
        dp_search_clear(&frontier->rows[--frontier->count]);
}

/* ---- what a row says ---- */

/* The unit of memory: its name, and how much it is. */
static const char *unit_of(const frontier_t *frontier, double *unit_out)
{
    *unit_out = 1.0;
    return frontier->args->activation_bytes > 0.0 ? size_unit(frontier->rows[frontier->count - 1].memory, unit_out)
                                                  : "micro-batches";
}

/* By how much the step is shorter than in the row before, for each unit of memory more. NaN: there
 * is none before. */
static double gain_of(const frontier_t *frontier, int32_t row, double unit)
{
    const dp_search_result_t *r = &frontier->rows[row];

    return row > 0 ? (r[-1].step - r->step) / (r->memory - r[-1].memory) * unit : (double)NAN;
}

/* "8 8 7": the layers of each stage. */
static void put_layers(FILE *to, const dp_search_result_t *row, const char *between)
{
    const int32_t stages = row->first != NULL ? dp_schedule_stages(row->schedule) : 0;

    for (int32_t s = 0; s < stages; s++)
        fprintf(to, "%s%d", s > 0 ? between : "", row->first[s + 1] - row->first[s]);
}

static dp_status_t put_text(const frontier_t *frontier, output_t *output)
{
    FILE *to = output->file;
    double unit;
    const char *name = unit_of(frontier, &unit);

    fprintf(to, "%13s        step  gain per unit  copies  started from\n", name);
    for (int32_t k = 0; k < frontier->count; k++) {
        const dp_search_result_t *row = &frontier->rows[k];
        char gain[32] = "-";

        if (k > 0)
            snprintf(gain, sizeof(gain), "%.4g", gain_of(frontier, k, unit));
        fprintf(to, "%13.5g %11.6g %14s %6dx  %s", row->memory / unit, row->step, gain,
                dp_schedule_paths(row->schedule), row->from);
        if (row->first != NULL) {
            fputs("; layers ", to);
            put_layers(to, row, ",");
        }
        fputc('\n', to);
    }
    fprintf(to,
            "\n%s: of the fullest rank%s. gain: by how much the step is shorter\n"
            "than in the row above, for each of them more. copies: of the weights.\n",
            name, frontier->args->activation_bytes > 0.0 ? ", weights included" : "");
    return DP_OK;
}

static dp_status_t put_rows_json(const frontier_t *frontier, output_t *output)
{
    const args_t *args = frontier->args;
    FILE *to = output->file;

    fprintf(to, "{\"schema\":1,\"ranks\":%d,\"microbatches\":%d,\"model\":\"%s\",", args->ranks, args->microbatches,
            args->costs.segments != NULL ? "lanes" : "operations");
    plan_json_costs(to, &args->costs);
    fprintf(to, ",\"unit\":\"%s\",\"rows\":[", args->activation_bytes > 0.0 ? "bytes" : "micro-batches");
    for (int32_t k = 0; k < frontier->count; k++) {
        const dp_search_result_t *row = &frontier->rows[k];

        fprintf(to, "%s\n {\"memory\":", k > 0 ? "," : "");
        output_json_number(to, row->memory);
        fputs(",\"step_time\":", to);
        output_json_number(to, row->step);
        fputs(",\"gain\":", to);
        output_json_number(to, gain_of(frontier, k, 1.0));
        fprintf(to, ",\"placement\":\"%s\",\"chunks\":%d,\"weight_copies\":%d,\"from\":",
                dp_placement_name(row->schedule->placement), row->schedule->chunks, dp_schedule_paths(row->schedule));
        output_json_string(to, row->from);
        if (row->first != NULL) {
            fputs(",\"partition\":[", to);
            put_layers(to, row, ",");
            fputc(']', to);
        }
        fputc('}', to);
    }
    fputs("\n]}\n", to);
    return DP_OK;
}

static void put_names(FILE *to, const char *between)
{
    fprintf(to, "memory%sstep_time%sgain%splacement%schunks%sweight_copies%sfrom%spartition", between, between, between,
            between, between, between, between);
}

/* `from` has commas. */
static void put_row(const frontier_t *frontier, FILE *to, int32_t k, const char *between, const char *quote)
{
    const dp_search_result_t *row = &frontier->rows[k];

    fprintf(to, "%.15g%s%.15g%s", row->memory, between, row->step, between);
    if (k > 0)
        fprintf(to, "%.15g", gain_of(frontier, k, 1.0));
    fprintf(to, "%s%s%s%d%s%d%s%s%s%s%s", between, dp_placement_name(row->schedule->placement), between,
            row->schedule->chunks, between, dp_schedule_paths(row->schedule), between, quote, row->from, quote,
            between);
    put_layers(to, row, " ");
}

static dp_status_t put_csv(const frontier_t *frontier, output_t *output)
{
    put_names(output->file, ",");
    fputc('\n', output->file);
    for (int32_t k = 0; k < frontier->count; k++) {
        put_row(frontier, output->file, k, ",", "\"");
        fputc('\n', output->file);
    }
    return DP_OK;
}

static dp_status_t put_markdown(const frontier_t *frontier, output_t *output)
{
    fputs("| ", output->file);
    put_names(output->file, " | ");
    fputs(" |\n|---:|---:|---:|---|---:|---:|---|---|\n", output->file);
    for (int32_t k = 0; k < frontier->count; k++) {
        fputs("| ", output->file);
        put_row(frontier, output->file, k, " | ", "");
        fputs(" |\n", output->file);
    }
    return DP_OK;
}

dp_status_t frontier_put(const frontier_t *frontier, output_t *output)
{
    const format_t format = frontier->args->format;

    return (format == FORMAT_JSON       ? put_rows_json
            : format == FORMAT_CSV      ? put_csv
            : format == FORMAT_MARKDOWN ? put_markdown
                                        : put_text)(frontier, output);
}

/* ---- the picture ---- */

static dp_status_t draw_rows(const void *job, draw_format_t format, dp_write_fn write, void *user)
{
    const frontier_t *frontier = job;
    draw_point_t points[FRONTIER_ROWS];
    char title[96], costs[160], subtitle[192];
    double unit;
    draw_frontier_t picture = {.title = title,
                               .subtitle = subtitle,
                               .unit = unit_of(frontier, &unit),
                               .points = points,
                               .count = frontier->count};

    snprintf(title, sizeof(title), "Shortest step found in each memory: %d ranks, %d micro-batches",
             frontier->args->ranks, frontier->args->microbatches);
    costs_text(&frontier->args->costs, costs, sizeof(costs));
    snprintf(subtitle, sizeof(subtitle), "costs %s", costs);
    for (int32_t k = 0; k < frontier->count; k++)
        points[k] = (draw_point_t){frontier->rows[k].memory / unit, frontier->rows[k].step, frontier->rows[k].from};
    return draw_frontier_write(&picture, format, write, user);
}

dp_status_t frontier_draw(const frontier_t *frontier, const char *path)
{
    return draw_save(path, draw_rows, frontier);
}
