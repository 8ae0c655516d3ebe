/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_plan.c: dualpipe plan: which layout and schedule for a model on so many GPUs. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "gpu_keys.h"
#include "layouts_output.h"
#include "measured.h"
#include "tools/io/format.h"
#include "tools/io/input.h"
#include "tools/io/output.h"
#include "tools/io/size.h"

enum { MOST_CONFIG = 1 << 20 };

typedef struct plan_args {
    const char *model, *output, *gpu, *assume, *costs;
    int32_t show;
    double memory; /* bytes; 0: not given */
    bool no_zero;
    dp_layout_request_t request;
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
     .help = "config.json of a model, as Hugging Face's hub has it, arguments of Megatron-LM as a script or YAML, or "
             "TOML of torchtitan (-: standard input)"},
    {.name = "gpus",
     .value = "N",
     .kind = OPTION_INT32,
     .at = AT(request.gpus),
     .least = 1,
     .most = 1 << 20,
     .help = "how many there are"},
    {.name = "gpu",
     .value = "KIND",
     .kind = OPTION_TEXT,
     .at = AT(gpu),
     .words = "a100 h100 h200 h800 b200",
     .start = "h100",
     .help = "a100, h100, h200, h800, b200, or a file of another one: lines KEY=VALUE with TFLOPS, GIB, HOST, NEAR and "
             "FAR, others of --assume where they differ"},
    {.name = "global-batch",
     .value = "N",
     .kind = OPTION_INT64,
     .at = AT(request.batch),
     .least = 1,
     .most = 1 << 30,
     .start = "1024",
     .help = "sequences of a step"},
    {.name = "seq",
     .value = "N",
     .kind = OPTION_INT64,
     .at = AT(request.sequence),
     .least = 1,
     .most = 1 << 24,
     .help = "tokens of a sequence; without it 4096, or the most that the model takes"},
    {.name = "micro-batch",
     .value = "N",
     .kind = OPTION_INT32,
     .at = AT(request.micro_batch),
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
     .at = AT(request.pp),
     .least = 1,
     .most = 64,
     .help = "ranks of a pipeline; without it all that divide the GPUs are tried, as for --ep"},
    {.name = "ep",
     .value = "N",
     .kind = OPTION_INT32,
     .at = AT(request.ep),
     .least = 1,
     .most = 1 << 20,
     .help = "ranks that the experts are spread over"},
    {.name = "dp",
     .value = "N",
     .kind = OPTION_INT32,
     .at = AT(request.dp),
     .least = 1,
     .most = 1 << 20,
     .help = "pipelines with different sequences"},
    {.name = "tp",
     .value = "N",
     .kind = OPTION_INT32,
     .at = AT(request.tp),
     .least = 1,
     .most = 8,
     .start = "1",
     .help = "ranks that share each matrix, on one host; no others are tried"},
    {.name = "method",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .at = AT(request.method),
     .words = METHOD_WORDS,
     .help = "one schedule alone"},
    {.name = "recompute",
     .value = "LEVEL",
     .kind = OPTION_CHOICE,
     .at = AT(request.recompute),
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
     .help = "KEY=VALUE with commas between: TFLOPS of a GPU in bf16, GIB of memory, HOST with so many GPUs, NEAR and "
             "FAR in GB/s to GPUs of the host and to others, shares of those that are reached (PRODUCTS, CORE of "
             "attention, LINKS), LATENCY of a transfer in us, RESERVE of memory in GiB"},
    {.name = "costs",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .at = AT(costs),
     .help = "milliseconds that segments of a layer took for a micro-batch of this size with this tp, in the place of "
             "estimates: a file of `dualpipe trace costs`, or a trace (.json, .gz); those of dispatch and combine go "
             "with --ep"},
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
     .words = "text json html",
     .help = "text (default), json, or html: a page to send, which loads nothing"},
    {.name = "output", .value = "FILE", .kind = OPTION_TEXT, .at = AT(output), .help = "write there instead"},
    {.kind = OPTION_END}};
static const option_row_t *const plan_tables[] = {plan_options, NULL};

const command_t command_plan = {
    .name = "plan",
    .usage =
        "usage: dualpipe plan --model config.json --gpus N [OPTIONS]\n"
        "Which layout and which schedule for a model: counts its parameters and the bytes of a rank, simulates a step of every layout that fits into memory, and lists the fastest. Times are estimates from the data sheet of the GPU, shares of it that are assumed, and the simulator; ratios between layouts are better than the times themselves. --costs takes measured ones.\n"
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
        "  dualpipe plan --model config.json --gpus 64 --ep 8 --costs trace.json.gz\n"
        "  dualpipe plan --model config.json --gpus 64 --format html --output plan.html\n"
        "\n"
        "exit status: 0 a layout fits, 1 a file could not be read or written, 2 wrong usage, 20 no layout fits\n"};

/* ---- the command ---- */

static dp_status_t read_model(const char *path, dp_model_t *model)
{
    char *text = NULL;
    size_t bytes = 0;
    dp_status_t status = input_read(path, MOST_CONFIG, &text, &bytes);

    if (status >= 0)
        status = dp_model_read(path, text, bytes, model);
    free(text);
    return status;
}

static dp_status_t make_gpu(const plan_args_t *args, dp_gpu_t *gpu)
{
    dp_status_t status = gpu_read(args->gpu, gpu);

    if (status >= 0 && args->assume != NULL)
        status = gpu_assume(gpu, args->assume);
    if (args->memory > 0)
        gpu->memory = args->memory;
    return status;
}

static dp_status_t put_report(const plan_args_t *args, const layouts_report_t *report)
{
    output_t output;
    dp_status_t status = output_open(&output, args->output);

    if (status < 0)
        return status;
    if (args->format == FORMAT_JSON)
        status = layouts_put_json(output.file, report);
    else if (args->format == FORMAT_HTML)
        status = layouts_put_html(output.file, report);
    else
        layouts_put_text(output.file, report);
    return output_close(&output, status);
}

static int run_plan(const plan_args_t *args)
{
    dp_model_t model = {.struct_size = sizeof(model)};
    dp_gpu_t gpu = {.struct_size = sizeof(gpu)};
    dp_segment_costs_t measured = {.struct_size = sizeof(measured)};
    dp_layout_request_t request = args->request;
    dp_layouts_about_t about = {.struct_size = sizeof(about)};
    dp_layouts_t *layouts = NULL;
    dp_status_t status = read_model(args->model, &model);

    if (status >= 0)
        status = make_gpu(args, &gpu);
    if (status >= 0 && args->costs != NULL)
        status = measured_read(args->costs, &measured, &request.hop, &request.bandwidth);
    request.struct_size = sizeof(request);
    request.model = &model;
    request.gpu = &gpu;
    request.measured = args->costs != NULL ? &measured : NULL;
    request.whole_optimizer = args->no_zero;
    if (request.sequence == 0)
        request.sequence = model.sequence < 4096 ? model.sequence : 4096;
    if (status >= 0)
        status = dp_layouts_find(&request, &layouts);
    if (status >= 0) {
        const layouts_report_t report = {layouts, &request, args->gpu, args->costs, args->show};

        status = dp_layouts_about(layouts, &about);
        status = status >= 0 ? put_report(args, &report) : status;
    }
    dp_layouts_free(layouts);
    if (status < 0)
        return command_failed(&command_plan, status);
    return about.timed > 0 ? CMD_OK : CMD_REJECTED;
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
    if (args.model == NULL || args.request.gpus == 0)
        return command_usage(&command_plan, "--model FILE and --gpus N are required");
    return run_plan(&args);
}
