/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_plan.c: dualpipe plan: which layout and schedule for a model on so many GPUs. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "tools/io/format.h"
#include "tools/io/output.h"
#include "tools/io/size.h"
#include "tools/model/layouts.h"

#define GIB SIZE_GIB

typedef struct plan_args {
    const char *model, *output, *gpu, *assume;
    int32_t gpus, micro_batch, show;
    int64_t sequence, batch;
    double memory; /* bytes; 0: not given */
    bool no_zero;
    wanted_t wanted;
    format_t format;
} plan_args_t;

#define AT(member) offsetof(plan_args_t, member)

/* A number alone is no memory of a GPU. */
static int read_memory(const command_t *command, const option_row_t *row, void *into, const char *value)
{
    const double *bytes = (const double *)(const void *)((const char *)into + row->at);
    const int code = size_read(command, row, into, value);

    return code == CMD_OK && *bytes < SIZE_GIB / 1024
               ? command_usage(command, "--%s %s: that is less than 1 MiB: 80GiB, for instance, is expected", row->name,
                               value)
               : code;
}

static const option_row_t plan_options[] = {
    {.name = "model",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .at = AT(model),
     .help = "config.json of a model, as Hugging Face's hub has it (-: standard input)"},
    {.name = "gpus",
     .value = "N",
     .kind = OPTION_INT32,
     .at = AT(gpus),
     .least = 1,
     .most = 1 << 20,
     .help = "how many there are"},
    {.name = "gpu",
     .value = "KIND",
     .kind = OPTION_WORD,
     .at = AT(gpu),
     .words = "a100 h100 h200 h800 b200",
     .start = "h100",
     .help = "a100, h100, h200, h800 or b200"},
    {.name = "global-batch",
     .value = "N",
     .kind = OPTION_INT64,
     .at = AT(batch),
     .least = 1,
     .most = 1 << 30,
     .start = "1024",
     .help = "sequences of a step"},
    {.name = "seq",
     .value = "N",
     .kind = OPTION_INT64,
     .at = AT(sequence),
     .least = 1,
     .most = 1 << 24,
     .help = "tokens of a sequence; without it 4096, or the most that the model takes"},
    {.name = "micro-batch",
     .value = "N",
     .kind = OPTION_INT32,
     .at = AT(micro_batch),
     .least = 1,
     .most = 1 << 16,
     .start = "1",
     .help = "sequences of a micro-batch"},
    {.name = "memory",
     .value = "SIZE",
     .kind = OPTION_READ,
     .read = read_memory,
     .at = AT(memory),
     .help = "of a GPU, as 80GiB; without it what that kind has"},
    {.name = "layout", .kind = OPTION_HEADING},
    {.name = "pp",
     .value = "N",
     .kind = OPTION_INT32,
     .at = AT(wanted.pp),
     .least = 1,
     .most = 64,
     .help = "ranks of a pipeline; without it all that divide the GPUs are tried, as for --ep"},
    {.name = "ep",
     .value = "N",
     .kind = OPTION_INT32,
     .at = AT(wanted.ep),
     .least = 1,
     .most = 1 << 20,
     .help = "ranks that the experts are spread over"},
    {.name = "dp",
     .value = "N",
     .kind = OPTION_INT32,
     .at = AT(wanted.dp),
     .least = 1,
     .most = 1 << 20,
     .help = "pipelines with different sequences"},
    {.name = "tp",
     .value = "N",
     .kind = OPTION_INT32,
     .at = AT(wanted.tp),
     .least = 1,
     .most = 8,
     .start = "1",
     .help = "ranks that share each matrix, on one host; no others are tried"},
    {.name = "method",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .at = AT(wanted.method),
     .words = METHOD_WORDS,
     .help = "one schedule alone"},
    {.name = "recompute",
     .value = "LEVEL",
     .kind = OPTION_CHOICE,
     .at = AT(wanted.recompute),
     .words = "any none cheap mlp full",
     .start = "any",
     .help = "any (the least with which a layout fits), none, cheap, mlp or full"},
    {.name = "no-zero",
     .kind = OPTION_FLAG,
     .at = AT(no_zero),
     .help = "every rank has the whole optimizer state of its parameters; without it ranks with the same parameters "
             "share it (ZeRO-1)"},
    {.name = "assume",
     .value = "LIST",
     .kind = OPTION_TEXT,
     .at = AT(assume),
     .help = "KEY=VALUE with commas between: TFLOPS of a GPU in bf16, GIB of memory, NEAR and FAR in GB/s to GPUs of "
             "the host and to others, shares of those that are reached (PRODUCTS, CORE of attention, LINKS), LATENCY "
             "of a transfer in us, RESERVE of memory in GiB"},
    {.name = "output", .kind = OPTION_HEADING},
    {.name = "show",
     .value = "N",
     .kind = OPTION_INT32,
     .at = AT(show),
     .least = 1,
     .most = 8192,
     .start = "12",
     .help = "at most so many layouts"},
    {.name = "format",
     .value = "F",
     .kind = OPTION_READ,
     .read = format_read,
     .at = AT(format),
     .words = "text json",
     .help = "text (default) or json"},
    {.name = "output", .value = "FILE", .kind = OPTION_TEXT, .at = AT(output), .help = "write there instead"},
    {.kind = OPTION_END}};
static const option_row_t *const plan_tables[] = {plan_options, NULL};

const command_t command_plan = {
    .name = "plan",
    .usage =
        "usage: dualpipe plan --model config.json --gpus N [OPTIONS]\n"
        "Which layout and which schedule for a model: counts its parameters and the bytes of a rank, simulates a step of every layout that fits into memory, and lists the fastest. Times are estimates from the data sheet of the GPU, shares of it that are assumed, and the simulator; ratios between layouts are better than the times themselves. `dualpipe compare --costs` takes measured ones.\n"
        "\n",
    .tables = plan_tables,
    .lists_methods = true,
    .notes =
        "\n"
        "A rank holds weights in bf16, gradients in fp32, the optimizer's master weights and two moments in fp32, what micro-batches keep until their backward, logits, and buffers of transfers. Ranks of two directions hold two stages. Sums of gradients are counted as if nothing hid them.\n"
        "\n"
        "examples:\n"
        "  dualpipe plan --model config.json --gpus 2048 --gpu h800 --global-batch 15360\n"
        "  dualpipe plan --model config.json --gpus 64 --ep 8 --memory 72GiB --format json\n"
        "  dualpipe plan --model config.json --gpus 128 --tp 8 --pp 4 --assume PRODUCTS=0.55,FAR=45\n"
        "\n"
        "exit status: 0 a layout fits, 1 a file could not be read or written, 2 wrong usage, 20 no layout fits\n"};

/* ---- what it says ---- */

static const char *const levels[] = {"none", "cheap", "mlp", "full"};

typedef struct report {
    const plan_args_t *args;
    const job_t *job;
    const layouts_t *found;
} report_t;

static void name_schedule(const layout_t *l, char *text, size_t room)
{
    if (l->pp == 1)
        snprintf(text, room, "no pipeline");
    else if (l->chunks > 0)
        snprintf(text, room, "%s,%d", l->method->name, (int)l->chunks);
    else
        snprintf(text, room, "%s", l->method->name);
}

/* Whether it runs a forward and a backward beside each other. */
static bool overlaps(const layout_t *l)
{
    return l->method->placement == DP_PLACE_BIDIRECTIONAL || strcmp(l->method->name, "dualpipev") == 0 ||
           strcmp(l->method->name, "interleaved_overlap") == 0;
}

/* The fastest without: it is simpler, and holds one copy of the weights. */
static const answer_t *simplest(const report_t *r)
{
    for (size_t i = 0; i < r->found->timed; i++)
        if (!overlaps(&r->found->answers[i].layout))
            return &r->found->answers[i];
    return NULL;
}

static void advise(const report_t *r, char *text, size_t room)
{
    const answer_t *best = r->found->answers, *simple = simplest(r);
    char name[64], other[64];

    if (r->found->count == 0) {
        snprintf(text, room,
                 "No layout is possible: %zu were looked at, and the batch cannot be dealt evenly to %lld of them.",
                 r->found->tried, (long long)r->found->batch_left_over);
        return;
    }
    name_schedule(&best->layout, name, sizeof(name));
    if (r->found->timed == 0) {
        snprintf(text, room,
                 "No layout fits: the smallest needs %.1f GiB a GPU, %.1f more than there are (%s, pp %d, ep %d).",
                 best->bytes.total / GIB, (best->bytes.total - r->job->gpu.memory) / GIB, name, (int)best->layout.pp,
                 (int)best->layout.ep);
        return;
    }
    if (best->layout.pp == 1) {
        snprintf(text, room, "You need no pipeline: the model fits, and data parallelism alone is the fastest.");
    } else if (!overlaps(&best->layout)) {
        snprintf(text, room, "You need no DualPipe here: %s is the fastest, %.1f %% before 1f1b.", name,
                 100 * best->gain);
    } else if (simple == NULL) {
        snprintf(text, room, "Take %s: nothing simpler fits.", name);
    } else {
        name_schedule(&simple->layout, other, sizeof(other));
        snprintf(
            text, room,
            "Take %s: a step is %.1f %% shorter than with %s (pp %d, ep %d), the fastest that has no forwards beside backwards.",
            name, 100 * (1 - best->step / simple->step), other, (int)simple->layout.pp, (int)simple->layout.ep);
    }
}

static void put_model(FILE *to, const report_t *r)
{
    const model_t *m = &r->job->model;

    fprintf(to, "model    %s: %lld layers of %lld, ", m->type, (long long)m->layers, (long long)m->hidden);
    if (m->experts > 0)
        fprintf(to, "%lld experts of %lld, %lld for a token; ", (long long)m->experts, (long long)m->expert_ffn,
                (long long)m->top_k);
    fprintf(to, "%.4g B parameters", model_parameters(m) / 1e9);
    if (m->experts > 0)
        fprintf(to, ", %.4g B of them for a token", model_active(m) / 1e9);
    fputc('\n', to);
}

static void put_assumed(FILE *to, const report_t *r)
{
    const gpu_t *g = &r->job->gpu;

    fprintf(to, "gpus     %d of %s, %d a host; a step has %lld sequences of %lld tokens\n", (int)r->job->gpus, g->name,
            (int)g->host, (long long)r->job->batch, (long long)r->job->sequence);
    fprintf(to, "assumed  TFLOPS=%g,GIB=%.4g,NEAR=%g,FAR=%g,PRODUCTS=%g,CORE=%g,LINKS=%g,LATENCY=%g,RESERVE=%.3g\n",
            g->tflops, g->memory / GIB, g->near, g->far, g->products, g->core, g->links, g->latency, g->reserve / GIB);
}

static void put_footprint(FILE *to, const footprint_t *f)
{
    fprintf(to, " %6.1f %7.1f %5.1f %5.1f %5.1f %5.1f\n", f->total / GIB, f->weights / GIB, f->gradients / GIB,
            f->optimizer / GIB, f->activations / GIB, (f->head + f->transport) / GIB);
}

static void put_layout(FILE *to, const layout_t *l)
{
    char name[64];

    name_schedule(l, name, sizeof(name));
    fprintf(to, "%-22s %3d %3d %4d %5d %-5s", name, (int)l->pp, (int)l->ep, (int)l->dp, (int)l->microbatches,
            levels[l->recompute]);
}

static void put_plan_text(FILE *to, const report_t *r)
{
    const layouts_t *all = r->found;
    size_t shown = 0;
    char advice[400];

    put_model(to, r);
    put_assumed(to, r);
    if (all->timed > 0)
        fputs(
            "\nschedule                pp  ep   dp     M again    step s   gain useful    GiB weights grads optim  kept other\n",
            to);
    for (; shown < all->timed && shown < (size_t)r->args->show; shown++) {
        const answer_t *a = &all->answers[shown];

        put_layout(to, &a->layout);
        fprintf(to, " %9.4g %+5.1f%% %5.1f%%", a->step, 100 * a->gain, 100 * a->useful);
        put_footprint(to, &a->bytes);
    }
    if (all->timed < all->count && shown < (size_t)r->args->show) {
        fputs(
            "\nthese do not fit        pp  ep   dp     M again                             GiB weights grads optim  kept other\n",
            to);
        for (size_t i = all->timed; i < all->count && i < all->timed + 4; i++)
            if (!all->answers[i].fits) {
                put_layout(to, &all->answers[i].layout);
                fprintf(to, "%25s", "");
                put_footprint(to, &all->answers[i].bytes);
                if (all->answers[i].reason[0] != '\0')
                    fprintf(to, "    %s\n", all->answers[i].reason);
            }
    }
    advise(r, advice, sizeof(advice));
    fprintf(to, "\n%s\n", advice);
    if (all->timed > 0)
        fprintf(to, "%.4g tokens/s, %.1f %% of the GPUs' operations; tp %d.\n", all->answers->tokens,
                100 * all->answers->mfu, (int)all->answers->layout.tp);
    fputs("\nagain: what is recomputed. gain: over 1f1b with the same ranks. useful: computation that\n"
          "one rank alone would do as well. GiB: of the fullest GPU, reserve included.\n",
          to);
}

static void put_number(FILE *to, const char *name, double value, const char *behind)
{
    fprintf(to, "\"%s\":", name);
    output_json_number(to, value);
    fputs(behind, to);
}

static void put_json_layout(FILE *to, const answer_t *a)
{
    const layout_t *l = &a->layout;
    const footprint_t *f = &a->bytes;

    fprintf(to,
            "{\"method\":\"%s\",\"chunks\":%d,\"tp\":%d,\"pp\":%d,\"ep\":%d,\"dp\":%d,\"microbatches\":%d,"
            "\"recompute\":\"%s\",\"fits\":%s,",
            l->method->name, (int)l->chunks, (int)l->tp, (int)l->pp, (int)l->ep, (int)l->dp, (int)l->microbatches,
            levels[l->recompute], a->fits ? "true" : "false");
    if (a->fits && a->timed) {
        put_number(to, "step_seconds", a->step, ",");
        put_number(to, "sums_seconds", a->sums, ",");
        put_number(to, "gain_over_1f1b", a->gain, ",");
        put_number(to, "useful_share", a->useful, ",");
        put_number(to, "tokens_per_second", a->tokens, ",");
        put_number(to, "mfu", a->mfu, ",");
    }
    if (a->reason[0] != '\0') {
        fputs("\"reason\":", to);
        output_json_string(to, a->reason);
        fputc(',', to);
    }
    fprintf(to, "\"weight_copies\":%d,\"bytes\":{", (int)f->copies);
    put_number(to, "weights", f->weights, ",");
    put_number(to, "gradients", f->gradients, ",");
    put_number(to, "optimizer", f->optimizer, ",");
    put_number(to, "activations", f->activations, ",");
    put_number(to, "logits", f->head, ",");
    put_number(to, "transfers", f->transport, ",");
    put_number(to, "total", f->total, "}}");
}

static void put_plan_json(FILE *to, const report_t *r)
{
    const gpu_t *g = &r->job->gpu;
    char advice[400];

    fprintf(to, "{\"schema\":1,\"model\":{\"type\":\"%s\",", r->job->model.type);
    put_number(to, "parameters", model_parameters(&r->job->model), ",");
    put_number(to, "active_parameters", model_active(&r->job->model), "},\n");
    fprintf(to, "\"gpus\":%d,\"gpu\":\"%s\",\"sequence\":%lld,\"global_batch\":%lld,\"micro_batch\":%d,\n",
            (int)r->job->gpus, g->name, (long long)r->job->sequence, (long long)r->job->batch,
            (int)r->job->micro_batch);
    fputs("\"assumed\":{", to);
    put_number(to, "TFLOPS", g->tflops, ",");
    put_number(to, "GIB", g->memory / GIB, ",");
    put_number(to, "NEAR", g->near, ",");
    put_number(to, "FAR", g->far, ",");
    put_number(to, "PRODUCTS", g->products, ",");
    put_number(to, "CORE", g->core, ",");
    put_number(to, "LINKS", g->links, ",");
    put_number(to, "LATENCY", g->latency, ",");
    put_number(to, "RESERVE", g->reserve / GIB, "},\n\"layouts\":[");
    for (size_t i = 0; i < r->found->count && i < (size_t)r->args->show; i++) {
        fputs(i > 0 ? ",\n " : "\n ", to);
        put_json_layout(to, &r->found->answers[i]);
    }
    advise(r, advice, sizeof(advice));
    fputs("],\n\"advice\":", to);
    output_json_string(to, advice);
    fputs("}\n", to);
}

/* ---- the command ---- */

static dp_status_t make_job(const plan_args_t *args, job_t *job)
{
    dp_status_t status = model_read(args->model, &job->model);

    job->gpu = *gpu_find(args->gpu);
    job->gpus = args->gpus;
    job->sequence = args->sequence > 0 ? args->sequence : job->model.sequence < 4096 ? job->model.sequence : 4096;
    job->batch = args->batch;
    job->micro_batch = args->micro_batch;
    job->zero = !args->no_zero;
    if (status >= 0 && job->model.positions > 0 && job->sequence > job->model.positions)
        status = dp_fail(DP_ERR_INVALID, "--seq %lld: the model has %lld positions", (long long)job->sequence,
                         (long long)job->model.positions);
    if (status >= 0 && args->assume != NULL)
        status = gpu_assume(&job->gpu, args->assume);
    if (args->memory > 0)
        job->gpu.memory = args->memory;
    return status;
}

static bool is_method(const char *name)
{
    size_t count;
    const dp_method_t *methods = dp_schedule_methods(&count);

    for (size_t i = 0; i < count; i++)
        if (strcmp(methods[i].name, name) == 0)
            return true;
    return false;
}

static int run_plan(const plan_args_t *args)
{
    job_t job = {.gpus = 0};
    layouts_t found = {.answers = NULL};
    const report_t report = {args, &job, &found};
    output_t output;
    dp_status_t status = make_job(args, &job);

    if (status >= 0)
        status = layouts_find(&job, &args->wanted, &found);
    if (status >= 0)
        status = output_open(&output, args->output);
    if (status >= 0) {
        if (args->format == FORMAT_JSON)
            put_plan_json(output.file, &report);
        else
            put_plan_text(output.file, &report);
        status = output_close(&output, status);
    }
    layouts_clear(&found);
    if (status < 0)
        return command_failed(&command_plan, status);
    return found.timed > 0 ? CMD_OK : CMD_REJECTED;
}

int cmd_plan(int argc, char **argv)
{
    plan_args_t args = {.model = NULL};
    int code;

    if (options_defaults(&command_plan, &args) != CMD_OK)
        return CMD_FAILED;
    if (!options_read(&command_plan, NULL, argc, argv, &args, &code))
        return code;
    if (optind < argc)
        return command_usage(&command_plan, "%s: one operand too many", argv[optind]);
    if (args.model == NULL || args.gpus == 0)
        return command_usage(&command_plan, "--model FILE and --gpus N are required");
    if (args.wanted.method != NULL && !is_method(args.wanted.method))
        return command_usage(&command_plan, "--method %s: no built-in schedule has that name", args.wanted.method);
    return run_plan(&args);
}
