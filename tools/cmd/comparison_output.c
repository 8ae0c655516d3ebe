/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comparison_output.c: a comparison as text, JSON or a picture. */
#include "comparison.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reasons.h"
#include "tools/draw/draw_bars.h"

enum { LINE = 80 };

static void put_sentence(FILE *to, const char *text)
{
    while (strlen(text) > LINE) {
        int end = LINE;

        while (end > 1 && text[end] != ' ')
            end--;
        fprintf(to, "%.*s\n", end, text);
        text += end + 1;
    }
    fprintf(to, "%s\n", text);
}

static dp_status_t put_table(const comparison_t *table, const reasons_t *reasons, output_t *output)
{
    FILE *to = output->file;
    char costs[160];
    int width = (int)strlen("schedule");

    costs_text(&table->args->costs, costs, sizeof(costs));
    fprintf(to, "%d rank%s, %d micro-batches, costs %s\n%s\n", table->args->ranks, table->args->ranks == 1 ? "" : "s",
            table->args->microbatches, costs, table->args->costs.segments != NULL ? plan_by_segments : "");
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
    if (reasons->count > 0)
        fputc('\n', to);
    for (int32_t i = 0; i < reasons->count; i++)
        put_sentence(to, reasons->text[i]);
    fputs("\nidle: mean over the ranks. held: most micro-batches' activations at once on a\n"
          "rank, in units of its stage inputs. weights: copies of the model.\n",
          to);
    if (table->args->recompute > DP_RECOMPUTE_NONE)
        fputs("backwards: most at once per rank between I or B and its end.\n", to);
    return DP_OK;
}

static dp_status_t put_json(const comparison_t *table, const reasons_t *reasons, output_t *output)
{
    FILE *to = output->file;
    char costs[160];

    costs_text(&table->args->costs, costs, sizeof(costs));
    fprintf(to, "{\"ranks\":%d,\"microbatches\":%d,\"costs\":\"%s\",\"model\":\"%s\",\"schedules\":[",
            table->args->ranks, table->args->microbatches, costs,
            table->args->costs.segments != NULL ? "lanes" : "operations");
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
            fprintf(to, ",\"weight_copies\":%d,\"slots\":%d}", entry->copies, entry->slots);
        } else {
            fputs(",\"reason\":", to);
            output_json_string(to, entry->reason);
            fputc('}', to);
        }
    }
    fputs("\n],\"reasons\":[", to);
    for (int32_t i = 0; i < reasons->count; i++) {
        fputs(i > 0 ? ",\n " : "\n ", to);
        output_json_string(to, reasons->text[i]);
    }
    fputs("]}\n", to);
    return DP_OK;
}

static dp_status_t put_picture(const comparison_t *table, output_t *output)
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

dp_status_t comparison_put(const comparison_t *table, output_t *output)
{
    const format_t format = table->args->format;
    reasons_t reasons;
    dp_status_t status;

    if (format != FORMAT_TEXT && format != FORMAT_JSON)
        return put_picture(table, output);
    status = reasons_find(table, &reasons);
    if (status < 0)
        return status;
    return (format == FORMAT_TEXT ? put_table : put_json)(table, &reasons, output);
}
