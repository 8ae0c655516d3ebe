/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_eplb.c: dualpipe eplb: replicates and places experts for the loads in a file. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "eplb_job.h"
#include "matrix.h"

static const command_t command = {
    .name = "eplb",
    .help = "usage: dualpipe eplb --replicas R --gpus U [OPTIONS] LOADS...\n"
            "Replicates the experts of each layer, the busiest most, and places the replicas so that GPUs get\n"
            "equal loads. LOADS has a row per layer and a number per expert (tokens, say), parted by tabs, "
            "spaces\n"
            "or commas; or it is JSON, an array of arrays, alone or under the key \"loads\". - is standard "
            "input.\n\n"
            "  --replicas R           slots of a layer over all GPUs; R - experts of them are for second "
            "replicas\n"
            "  --gpus U               GPUs over all nodes\n"
            "  --nodes N              nodes (default 1)\n"
            "  --groups G             groups of consecutive experts that routing keeps together (default 1)\n"
            "  --policy P             auto (default): hierarchical when groups are a multiple of nodes, else "
            "global;\n"
            "                         hierarchical: all replicas of a group on one node; global: anywhere\n"
            "  --distinct             no two replicas of an expert on one GPU, unless it has more than there are "
            "GPUs\n"
            "  --steps K              look for a better placement in K steps of each layer; never gives a worse "
            "one\n"
            "  --seconds S            the same for S seconds in all\n"
            "  --seed K               of the steps' random choices (default 0)\n"
            "  --from FILE            start from the placement in use and move as few replicas as the bound "
            "allows: a\n"
            "                         row per layer and the expert in each slot, or JSON with "
            "physical_to_logical\n"
            "  --bound X              with --from: fullest GPU of a layer at most X times its mean (default: "
            "what a\n"
            "                         placement from loads alone reaches)\n"
            "  --threshold X          with --from: layers that are within X times the mean stay as they are\n"
            "  --expert-bytes B       size of an expert, for the bytes moved\n"
            "  --decay D              several LOADS, the oldest first: average = D * average + (1 - D) * next\n"
            "                         (default 0.9)\n"
            "  --format F             text (default), tsv, json, svg, png, pdf\n"
            "  --output FILE          write there instead of to standard output\n"
            "  --help                 show this\n\n"
            "text has the imbalance before and after; tsv has the expert in each slot, to be used with --from; "
            "json\n"
            "has all, and the maps physical_to_logical, logical_to_physical, expert_count; svg, png and pdf draw "
            "the\n"
            "load of every GPU. Without --from, before is the placement in which slot p holds expert p mod "
            "experts.\n\n"
            "examples:\n"
            "  dualpipe eplb --replicas 16 --groups 4 --nodes 2 --gpus 8 loads.tsv\n"
            "  dualpipe eplb --replicas 16 --gpus 8 --distinct --seconds 1 --format tsv --output now.tsv "
            "loads.tsv\n"
            "  dualpipe eplb --replicas 16 --gpus 8 --from now.tsv --bound 1.1 --expert-bytes 88080384 "
            "later.tsv\n"
            "      few moves to within a tenth of the mean\n"
            "  dualpipe eplb --replicas 16 --groups 4 --nodes 2 --gpus 8 --format svg --output loads.svg "
            "loads.tsv\n\n"
            "exit status: 0 done, 1 a file could not be read or written, 2 wrong usage or input\n",
};

static const args_t tongue = {.command = &command}; /* for messages */

static const char *const load_keys[] = {"loads", "weights", "weight", NULL};
static const char *const placement_keys[] = {"physical_to_logical", "phy2log", NULL};

/* ---- options ---- */

static bool read_whole(const char *text, int64_t low, int64_t high, int64_t *out)
{
    char *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    *out = value;
    return end != text && *end == 0 && errno == 0 && value >= low && value <= high;
}

static bool read_real(const char *text, double low, double high, double *out)
{
    char *end;

    errno = 0;
    *out = strtod(text, &end);
    return end != text && *end == 0 && errno == 0 && *out >= low && *out <= high;
}

static int want_whole(const char *option, const char *text, int64_t low, int64_t high, int64_t *out)
{
    if (read_whole(text, low, high, out))
        return CMD_OK;
    return args_usage(&tongue, "--%s %s: a whole number from %lld to %lld is due", option, text, (long long)low,
                      (long long)high);
}

static int want_real(const char *option, const char *text, double low, double high, double *out)
{
    if (read_real(text, low, high, out))
        return CMD_OK;
    return args_usage(&tongue, "--%s %s: a number from %g to %g is due", option, text, low, high);
}

static int want_size(const char *option, const char *text, int32_t *out)
{
    int64_t value;
    int code = want_whole(option, text, 1, DP_EPLB_LIMIT, &value);

    *out = (int32_t)value;
    return code;
}

static int want_word(const char *option, const char *text, const char *const *words, int count, int32_t *out)
{
    for (*out = 0; *out < count; ++*out)
        if (words[*out] != NULL && strcmp(text, words[*out]) == 0)
            return CMD_OK;
    return args_usage(&tongue, "--%s %s: there is no such %s", option, text, option);
}

enum {
    OPT_REPLICAS = 256,
    OPT_GPUS,
    OPT_NODES,
    OPT_GROUPS,
    OPT_POLICY,
    OPT_DISTINCT,
    OPT_STEPS,
    OPT_SECONDS,
    OPT_SEED,
    OPT_FROM,
    OPT_BOUND,
    OPT_THRESHOLD,
    OPT_EXPERT_BYTES,
    OPT_DECAY,
    OPT_FORMAT,
    OPT_OUTPUT,
    OPT_HELP
};

static const struct option known[] = {
    {"replicas", required_argument, NULL, OPT_REPLICAS},
    {"gpus", required_argument, NULL, OPT_GPUS},
    {"nodes", required_argument, NULL, OPT_NODES},
    {"groups", required_argument, NULL, OPT_GROUPS},
    {"policy", required_argument, NULL, OPT_POLICY},
    {"distinct", no_argument, NULL, OPT_DISTINCT},
    {"steps", required_argument, NULL, OPT_STEPS},
    {"seconds", required_argument, NULL, OPT_SECONDS},
    {"seed", required_argument, NULL, OPT_SEED},
    {"from", required_argument, NULL, OPT_FROM},
    {"bound", required_argument, NULL, OPT_BOUND},
    {"threshold", required_argument, NULL, OPT_THRESHOLD},
    {"expert-bytes", required_argument, NULL, OPT_EXPERT_BYTES},
    {"decay", required_argument, NULL, OPT_DECAY},
    {"format", required_argument, NULL, OPT_FORMAT},
    {"output", required_argument, NULL, OPT_OUTPUT},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static int read_option(eplb_job_t *job, int option, const char *text)
{
    static const char *const policies[] = {"auto", "hierarchical", "global"};
    static const char *const formats[FORMAT_COUNT] = {"text", "tsv", NULL, "json", "svg", "png", "pdf", NULL};
    int64_t whole = 0;
    int32_t word = 0;
    double real = 0.0;
    int code = CMD_OK;

    switch (option) {
    case OPT_REPLICAS:
        return want_size("replicas", text, &job->shape.replicas);
    case OPT_GPUS:
        return want_size("gpus", text, &job->shape.gpus);
    case OPT_NODES:
        return want_size("nodes", text, &job->shape.nodes);
    case OPT_GROUPS:
        return want_size("groups", text, &job->shape.groups);
    case OPT_POLICY:
        return want_word("policy", text, policies, 3, &job->options.policy);
    case OPT_DISTINCT:
        job->options.distinct = 1;
        return CMD_OK;
    case OPT_STEPS:
        return want_whole("steps", text, 0, INT64_MAX / 2, &job->options.search_steps);
    case OPT_SECONDS:
        code = want_real("seconds", text, 0.0, 1e6, &real);
        job->options.search_ns = (int64_t)(real * 1e9);
        return code;
    case OPT_SEED:
        code = want_whole("seed", text, 0, INT64_MAX, &whole);
        job->options.seed = (uint64_t)whole;
        return code;
    case OPT_FROM:
        job->from = text;
        return CMD_OK;
    case OPT_BOUND:
        return want_real("bound", text, 1.0, 1e9, &job->update.bound);
    case OPT_THRESHOLD:
        return want_real("threshold", text, 1.0, 1e9, &job->update.threshold);
    case OPT_EXPERT_BYTES:
        return want_whole("expert-bytes", text, 0, INT64_MAX, &job->update.expert_bytes);
    case OPT_DECAY:
        code = want_real("decay", text, 0.0, 1.0, &job->decay);
        return code == CMD_OK && job->decay == 1.0 ? args_usage(&tongue, "--decay 1 would forget all but the first")
                                                   : code;
    case OPT_FORMAT:
        code = want_word("format", text, formats, FORMAT_COUNT, &word);
        job->format = (format_t)word;
        return code;
    default:
        job->output = text;
        return CMD_OK;
    }
}

static int check_options(const eplb_job_t *job)
{
    if (job->shape.replicas == 0)
        return args_usage(&tongue, "--replicas R is missing");
    if (job->shape.gpus == 0)
        return args_usage(&tongue, "--gpus U is missing");
    if (job->nfiles == 0)
        return args_usage(&tongue, "LOADS is missing: a file with a row per layer, or - for standard input");
    if (job->from == NULL && (job->update.bound != 0.0 || job->update.threshold != 0.0))
        return args_usage(&tongue, "--bound and --threshold are about moves: they need --from");
    int inputs = job->from != NULL && strcmp(job->from, "-") == 0;
    for (int k = 0; k < job->nfiles; k++)
        inputs += strcmp(job->files[k], "-") == 0;
    if (inputs > 1)
        return args_usage(&tongue, "standard input can be read once");
    return CMD_OK;
}

/* -1: go on; else an exit code. */
static int read_options(int argc, char **argv, eplb_job_t *job)
{
    int option, code;

    opterr = 0;
    optind = 0;
    while ((option = getopt_long(argc, argv, ":h", known, NULL)) != -1) {
        if (option == OPT_HELP || option == 'h') {
            fputs(command.help, stdout);
            return CMD_OK;
        }
        if (option == ':')
            return args_usage(&tongue, "%s needs a value", argv[optind - 1]);
        if (option == '?')
            return args_usage(&tongue, "there is no option %s", argv[optind - 1]);
        code = read_option(job, option, optarg);
        if (code != CMD_OK)
            return code;
    }
    job->files = argv + optind;
    job->nfiles = argc - optind;
    code = check_options(job);
    return code == CMD_OK ? -1 : code;
}

/* ---- input ---- */

static dp_status_t take_loads(eplb_job_t *job, const char *file, const matrix_t *matrix, int step)
{
    size_t count = (size_t)matrix->rows * (size_t)matrix->columns;
    float *loads = malloc(count * sizeof(*loads));
    dp_status_t status;

    if (step == 0)
        job->weights = calloc(count, sizeof(*job->weights));
    if (loads == NULL || job->weights == NULL) {
        free(loads);
        return dp_fail(DP_ERR_NOMEM, "%s: no memory for %zu loads", file, count);
    }
    for (size_t i = 0; i < count; i++)
        loads[i] = (float)matrix->values[i];
    status = dp_eplb_smooth(job->weights, loads, count, job->decay, (uint64_t)step);
    if (status != DP_OK) {
        size_t i = 0;

        while (isfinite(loads[i]) && loads[i] >= 0.0f)
            i++;
        status = dp_fail(DP_ERR_INVALID, "%s: layer %zu, expert %zu: a load of %g", file, i / (size_t)matrix->columns,
                         i % (size_t)matrix->columns, matrix->values[i]);
    }
    free(loads);
    return status;
}

static dp_status_t read_loads(eplb_job_t *job)
{
    for (int k = 0; k < job->nfiles; k++) {
        matrix_t matrix;
        dp_status_t status = matrix_read(job->files[k], load_keys, &matrix);

        if (status != DP_OK)
            return status;
        if (k == 0) {
            job->shape.layers = matrix.rows;
            job->shape.experts = matrix.columns;
        }
        if (matrix.rows != job->shape.layers || matrix.columns != job->shape.experts)
            status = dp_fail(DP_ERR_INVALID, "%s: %d layers of %d experts, %s has %d of %d", job->files[k], matrix.rows,
                             matrix.columns, job->files[0], job->shape.layers, job->shape.experts);
        else
            status = take_loads(job, job->files[k], &matrix, k);
        matrix_clear(&matrix);
        if (status != DP_OK)
            return status;
    }
    return DP_OK;
}

static dp_status_t take_placement(eplb_job_t *job, const matrix_t *matrix)
{
    size_t count = (size_t)matrix->rows * (size_t)matrix->columns;

    if (matrix->rows != job->shape.layers || matrix->columns != job->shape.replicas)
        return dp_fail(DP_ERR_INVALID, "%s: %d layers of %d slots, where %d of %d are due", job->from, matrix->rows,
                       matrix->columns, job->shape.layers, job->shape.replicas);
    for (size_t i = 0; i < count; i++) {
        double expert = matrix->values[i];

        if (!(expert >= 0.0 && expert < job->shape.experts && expert == floor(expert)))
            return dp_fail(DP_ERR_INVALID, "%s: layer %zu, slot %zu: there is no expert %g", job->from,
                           i / (size_t)matrix->columns, i % (size_t)matrix->columns, expert);
        job->before[i] = (int32_t)expert;
    }
    return DP_OK;
}

static dp_status_t read_before(eplb_job_t *job)
{
    matrix_t matrix;
    dp_status_t status;

    if (job->from == NULL) {
        for (int32_t layer = 0; layer < job->shape.layers; layer++)
            for (int32_t p = 0; p < job->shape.replicas; p++)
                job->before[(size_t)layer * (size_t)job->shape.replicas + (size_t)p] = p % job->shape.experts;
        return DP_OK;
    }
    status = matrix_read(job->from, placement_keys, &matrix);
    if (status != DP_OK)
        return status;
    status = take_placement(job, &matrix);
    matrix_clear(&matrix);
    return status;
}

/* ---- work ---- */

static void *room(size_t count, size_t bytes, dp_status_t *status)
{
    void *memory = calloc(count, bytes);

    if (memory == NULL && *status == DP_OK)
        *status = dp_fail(DP_ERR_NOMEM, "no memory for %zu times %zu bytes", count, bytes);
    return memory;
}

/* The maps of experts are made last, when it is known how long their rows are. */
static dp_status_t make_room(eplb_job_t *job)
{
    size_t layers = (size_t)job->shape.layers, slots = layers * (size_t)job->shape.replicas;
    dp_status_t status = dp_eplb_workspace_bytes(&job->shape, &job->workspace_bytes);

    if (status != DP_OK)
        return status;
    job->workspace = room(1, job->workspace_bytes, &status);
    job->before = room(slots, sizeof(*job->before), &status);
    job->after.struct_size = sizeof(job->after);
    job->after.physical_to_logical = room(slots, sizeof(int32_t), &status);
    job->after.expert_count = room(layers * (size_t)job->shape.experts, sizeof(int32_t), &status);
    for (int k = 0; k < 2; k++) {
        job->balance[k].struct_size = sizeof(job->balance[k]);
        job->gpu_loads[k] = room(layers * (size_t)job->shape.gpus, sizeof(double), &status);
        job->node_loads[k] = room(layers * (size_t)job->shape.nodes, sizeof(double), &status);
    }
    job->moves.struct_size = sizeof(job->moves);
    return status;
}

static dp_status_t measure(eplb_job_t *job, int which, const int32_t *slots)
{
    return dp_eplb_measure(&job->shape, job->weights, slots, &job->balance[which], job->gpu_loads[which],
                           job->node_loads[which], job->workspace, job->workspace_bytes);
}

static dp_status_t plan(eplb_job_t *job)
{
    if (job->from == NULL)
        return dp_eplb_rebalance(&job->shape, &job->options, job->weights, &job->after, job->workspace,
                                 job->workspace_bytes);
    return dp_eplb_update(&job->shape, &job->options, &job->update, job->weights, job->before, &job->after, &job->moves,
                          job->workspace, job->workspace_bytes);
}

/* Again, now with the slots of each expert: greedy plans have them in the order of replicas. */
static dp_status_t add_lists(eplb_job_t *job)
{
    size_t lists = (size_t)job->shape.layers * (size_t)job->shape.experts;
    int32_t policy = job->after.policy;
    dp_status_t status = DP_OK;

    if (job->format != FORMAT_JSON)
        return DP_OK;
    job->after.logical_to_physical = room(lists, (size_t)job->after.max_count * sizeof(int32_t), &status);
    if (status != DP_OK)
        return status;
    if (job->from == NULL && job->options.search_ns == 0)
        return plan(job);
    status = dp_eplb_index(&job->shape, &job->after, job->workspace, job->workspace_bytes);
    job->after.policy = policy;
    return status;
}

static dp_status_t work(eplb_job_t *job)
{
    dp_status_t status = read_loads(job);

    if (status == DP_OK)
        status = make_room(job);
    if (status == DP_OK)
        status = read_before(job);
    if (status == DP_OK)
        status = measure(job, 0, job->before);
    if (status == DP_OK)
        status = plan(job);
    if (status == DP_OK)
        status = add_lists(job);
    if (status == DP_OK)
        status = measure(job, 1, job->after.physical_to_logical);
    if (status == DP_OK && job->from == NULL)
        status = dp_eplb_transfers(&job->shape, job->before, job->after.physical_to_logical, job->update.expert_bytes,
                                   NULL, &job->moves, job->workspace, job->workspace_bytes);
    return status;
}

static void clear(eplb_job_t *job)
{
    free(job->weights);
    free(job->before);
    free(job->after.physical_to_logical);
    free(job->after.expert_count);
    free(job->after.logical_to_physical);
    free(job->workspace);
    for (int k = 0; k < 2; k++) {
        free(job->gpu_loads[k]);
        free(job->node_loads[k]);
    }
}

int cmd_eplb(int argc, char **argv)
{
    eplb_job_t job = {.shape = {.struct_size = sizeof(job.shape), .nodes = 1, .groups = 1},
                      .options = {.struct_size = sizeof(job.options)},
                      .update = {.struct_size = sizeof(job.update)},
                      .decay = 0.9};
    int code = read_options(argc, argv, &job);
    output_t output;
    dp_status_t status;

    if (code >= 0)
        return code;
    status = work(&job);
    if (status == DP_OK)
        status = output_open(&output, job.output);
    if (status == DP_OK)
        status = output_close(&output, eplb_put(&job, &output));
    clear(&job);
    if (status == DP_ERR_NUMERIC) /* what the files hold is wrong, whatever the reason */
        status = DP_ERR_INVALID;
    return status == DP_OK ? CMD_OK : args_failed(&tongue, status);
}
