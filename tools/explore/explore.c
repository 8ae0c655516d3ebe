/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * explore.c: the program inside explore.html: commands of `dualpipe` that plan, as they are, and
 * three that the page alone needs. Files are in the page's memory. */
#include <dualpipe/group.h>
#include <dualpipe/trace.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cmd/args.h"
#include "tools/cmd/commands.h"
#include "tools/cmd/plan.h"
#include "tools/draw/draw_cairo.h"
#include "tools/io/output.h"

/* ---- what is not there ---- */

draw_cairo_t cairo;

dp_status_t draw_cairo_load(void)
{
    return dp_fail(DP_ERR_UNSUPPORTED, "pictures are drawn by the page");
}

dp_status_t dp_group_environment(dp_group_environment_t *environment_out)
{
    (void)environment_out;
    return dp_fail(DP_ERR_UNSUPPORTED, "there are no jobs in a page");
}

/* ---- methods: what there is to choose from ---- */

static int show_methods(int argc, char **argv)
{
    size_t count;
    const dp_method_t *all = dp_schedule_methods(&count);

    (void)argc, (void)argv;
    for (size_t m = 0; m < count; m++) {
        fputs(m == 0 ? "[{\"name\":" : ",{\"name\":", stdout);
        output_json_string(stdout, all[m].name);
        fputs(",\"summary\":", stdout);
        output_json_string(stdout, all[m].summary);
        fputs(",\"source\":", stdout);
        output_json_string(stdout, all[m].source);
        fputs(",\"limits\":", stdout);
        output_json_string(stdout, all[m].limits);
        printf(",\"placement\":\"%s\"}", dp_placement_name(all[m].placement));
    }
    puts("]");
    return CMD_OK;
}

/* ---- costs FILE: those that a Chrome trace shows ---- */

static dp_status_t read_trace(void *file, void *buffer, size_t room, size_t *bytes_out)
{
    *bytes_out = fread(buffer, 1, room, file);
    return ferror((FILE *)file) ? dp_fail(DP_ERR_IO, "%s", strerror(errno)) : DP_OK;
}

static int show_costs(int argc, char **argv)
{
    const dp_trace_options_t options = {.struct_size = sizeof(options), .annotations = 1};
    output_t output = {.file = stdout};
    dp_trace_t *trace = NULL;
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    dp_status_t status = file != NULL ? dp_trace_read(read_trace, file, &options, &trace)
                                      : dp_fail(DP_ERR_IO, "costs: %s", argc == 2 ? strerror(errno) : "FILE?");

    if (status >= 0)
        status = dp_trace_costs_write(trace, NULL, output_write, &output);
    if (status < 0)
        fprintf(stderr, "%s\n", dp_last_error());
    dp_trace_free(trace);
    if (file != NULL)
        (void)fclose(file);
    return status < 0 ? CMD_FAILED : CMD_OK;
}

/* ---- show: as simulate, with every span ---- */

/* Start and length in millionths of the unit, then what it is. */
static void put_span(int64_t start, int64_t length, const dp_span_t *span, const char *before)
{
    printf("%s%lld,%lld,%d,%d,%d,%d,%d,%d,%d,%d,%d", before, (long long)start, (long long)length, span->kind,
           span->lane, span->pass, span->chunk, span->stage, span->microbatch, span->segment, span->pair, span->name);
}

static void put_timeline(const dp_timeline_t *timeline)
{
    const char *name;

    fputs(",\"names\":[\"\"", stdout);
    for (uint16_t n = 1; *(name = dp_timeline_name_text(timeline, n)) != 0; n++) {
        putchar(',');
        output_json_string(stdout, name);
    }
    fputs("],\"rows\":[", stdout);
    for (int32_t r = 0; r < dp_timeline_ranks(timeline); r++) {
        int64_t count, written = 0;
        const dp_span_t *spans = dp_timeline_spans(timeline, r, &count);

        fputs(r > 0 ? ",[" : "[", stdout);
        for (int64_t i = 0; i < count; i++)
            if (spans[i].kind == DP_SPAN_COMPUTE || spans[i].kind == DP_SPAN_SEND)
                put_span(spans[i].start_ns, spans[i].end_ns - spans[i].start_ns, &spans[i], written++ > 0 ? "," : "");
        putchar(']');
    }
    putchar(']');
}

static void put_figures(const char *name, const double *values, int32_t count)
{
    printf(",\"%s\":[", name);
    for (int32_t r = 0; r < count; r++) {
        fputs(r > 0 ? "," : "", stdout);
        output_json_number(stdout, values[r]);
    }
    putchar(']');
}

/* One operation of a list, as wide as a unit; its passes share it. */
static void put_operation(const dp_schedule_t *schedule, int32_t rank, int64_t at, const char *before)
{
    const dp_op_t *op = &schedule->ops[schedule->first[rank] + at];
    const dp_pass_t sides[2] = {
        {.kind = op->kind == DP_OP_FB ? DP_OP_F : op->kind, .chunk = op->chunk, .microbatch = op->microbatch},
        {.kind = DP_OP_B, .chunk = op->chunk2, .microbatch = op->microbatch2}};
    const bool braid = op->kind == DP_OP_BRAID;
    const dp_pass_t *passes = braid ? schedule->braids[op->microbatch].passes : sides;
    const int32_t count = braid ? schedule->braids[op->microbatch].npasses : op->kind == DP_OP_FB ? 2 : 1;

    for (int32_t p = 0; p < count; p++) {
        dp_place_t place;
        dp_span_t span = {.kind = DP_SPAN_COMPUTE,
                          .pass = passes[p].kind,
                          .chunk = passes[p].chunk,
                          .microbatch = passes[p].microbatch,
                          .segment = -1,
                          .pair = (uint8_t)(count > 1 ? 1 + at % DP_SPAN_PAIRS : 0)};

        dp_schedule_place(schedule, rank, span.chunk, &place);
        span.stage = (int16_t)place.stage;
        put_span(at * 1000000 + p * 1000000 / count, 1000000 / count, &span, p > 0 ? "," : before);
    }
}

/* A plan takes what time there is, so the next one may be another: it goes along as text. */
static dp_status_t put_plan(const dp_schedule_t *schedule)
{
    char *text = NULL;
    size_t bytes = 0;
    output_t output = {.file = open_memstream(&text, &bytes)};
    dp_status_t status = output.file != NULL ? dp_schedule_write_tsv(schedule, -1, output_write, &output)
                                             : dp_fail(DP_ERR_NOMEM, "no memory for the plan's text");

    if (output.file != NULL && fclose(output.file) != 0 && status >= 0)
        status = dp_fail(DP_ERR_NOMEM, "no memory for the plan's text");
    if (status >= 0) {
        fputs(",\"tsv\":", stdout);
        output_json_string(stdout, text);
    }
    free(text);
    return status;
}

/* What there is to see of a schedule that was rejected. */
static void put_lists(const dp_schedule_t *schedule)
{
    fputs(",\"rows\":[", stdout);
    for (int32_t r = 0; r < schedule->ranks; r++) {
        fputs(r > 0 ? ",[" : "[", stdout);
        for (int64_t i = 0; i < schedule->first[r + 1] - schedule->first[r]; i++)
            put_operation(schedule, r, i, i > 0 ? "," : "");
        putchar(']');
    }
    putchar(']');
}

static dp_status_t put_shown(const plan_t *plan, bool ran)
{
    dp_status_t status = DP_OK;
    const dp_schedule_t *schedule = plan->schedule;
    const dp_simulation_t *s = &plan->simulation;

    fputs("{\"method\":", stdout);
    output_json_string(stdout, schedule->method);
    printf(
        ",\"ranks\":%d,\"microbatches\":%d,\"chunks\":%d,\"placement\":\"%s\",\"split\":%d,\"stages\":%d,\"copies\":%d",
        schedule->ranks, schedule->microbatches, schedule->chunks, dp_placement_name(schedule->placement),
        dp_schedule_split(schedule), dp_schedule_stages(schedule), dp_schedule_paths(schedule));
    if (!ran) {
        put_lists(schedule);
    } else {
        printf(",\"slots\":%d,\"lanes\":%s,\"step\":", plan->slots, plan->costs.segments != NULL ? "true" : "false");
        output_json_number(stdout, s->step_time);
        put_figures("idle", s->bubble, s->ranks);
        put_figures("peaks", s->peak_activations, s->ranks);
        put_timeline(s->timeline);
        if (plan->args->overlap == OVERLAP_PLANNED)
            status = put_plan(schedule);
    }
    puts("}");
    return status;
}

/* Ids of a rejected schedule may be out of bounds: then there is no picture. */
static bool can_draw(const dp_schedule_t *schedule)
{
    for (int64_t i = 0; i < schedule->first[schedule->ranks]; i++) {
        const dp_op_t *op = &schedule->ops[i];
        const bool braid = op->kind == DP_OP_BRAID;

        if (braid ? op->microbatch < 0 || op->microbatch >= schedule->nbraids
                  : op->chunk < 0 || op->chunk >= schedule->chunks)
            return false;
        if (op->kind == DP_OP_FB && (op->chunk2 < 0 || op->chunk2 >= schedule->chunks))
            return false;
        for (int32_t p = 0; braid && p < schedule->braids[op->microbatch].npasses; p++)
            if (schedule->braids[op->microbatch].passes[p].chunk < 0 ||
                schedule->braids[op->microbatch].passes[p].chunk >= schedule->chunks)
                return false;
    }
    return true;
}

static int show_simulation(int argc, char **argv)
{
    args_t args;
    plan_t plan;
    int code;

    if (args_parse(&command_simulate, argc, argv, &args, &code)) {
        code = plan_simulation(&args, &plan, true);
        if (plan.schedule != NULL && (code == CMD_OK || can_draw(plan.schedule)))
            if (put_shown(&plan, code == CMD_OK) < 0)
                code = args_failed(&args, DP_ERR_NOMEM);
        plan_clear(&plan);
    }
    args_clear(&args);
    return code;
}

int main(int argc, char **argv)
{
    static char buffer[1 << 16];
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } commands[] = {{"methods", show_methods},  {"costs", show_costs},  {"show", show_simulation},
                    {"schedule", cmd_schedule}, {"verify", cmd_verify}, {"simulate", cmd_simulate},
                    {"compare", cmd_compare},   {"search", cmd_search}};
    int code = CMD_USAGE;

    setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
    for (size_t i = 0; argc > 1 && i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            code = commands[i].run(argc - 1, argv + 1);
    return fflush(stdout) == 0 ? code : CMD_FAILED;
}
