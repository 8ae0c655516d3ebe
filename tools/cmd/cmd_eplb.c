/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_eplb.c: dualpipe eplb: replicates and places experts for the loads in a file. */
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "eplb_job.h"
#include "matrix.h"

static const char *const load_keys[] = {"loads", "weights", "weight", NULL};
static const char *const placement_keys[] = {"physical_to_logical", "phy2log", NULL};

/* ---- options ---- */

#define BELOW_ONE 0.99999999999999994

static int read_distinct(const command_t *command, const option_row_t *row, void *into, const char *value)
{
    (void)command, (void)row, (void)value;
    ((eplb_job_t *)into)->options.distinct = 1;
    return CMD_OK;
}

static int read_seconds(const command_t *command, const option_row_t *row, void *into, const char *value)
{
    const option_row_t number = {.name = row->name, .kind = OPTION_REAL, .most = 1e6};
    double seconds = 0;
    int code = option_take(command, &number, &seconds, value);

    ((eplb_job_t *)into)->options.search_ns = (int64_t)(seconds * 1e9);
    return code;
}

static const option_row_t eplb_options[] = {
    {.name = "replicas",
     .value = "R",
     .kind = OPTION_INT32,
     .at = offsetof(eplb_job_t, shape.replicas),
     .least = 1,
     .most = DP_EPLB_LIMIT,
     .help = "slots of a layer over all GPUs; R - experts of them are for second replicas"},
    {.name = "gpus",
     .value = "U",
     .kind = OPTION_INT32,
     .at = offsetof(eplb_job_t, shape.gpus),
     .least = 1,
     .most = DP_EPLB_LIMIT,
     .help = "GPUs over all nodes"},
    {.name = "nodes",
     .value = "N",
     .kind = OPTION_INT32,
     .at = offsetof(eplb_job_t, shape.nodes),
     .least = 1,
     .most = DP_EPLB_LIMIT,
     .help = "nodes (default 1)"},
    {.name = "groups",
     .value = "G",
     .kind = OPTION_INT32,
     .at = offsetof(eplb_job_t, shape.groups),
     .least = 1,
     .most = DP_EPLB_LIMIT,
     .help = "groups of consecutive experts that routing keeps together (default 1)"},
    {.name = "policy",
     .value = "P",
     .kind = OPTION_CHOICE,
     .at = offsetof(eplb_job_t, options.policy),
     .words = "auto hierarchical global",
     .help =
         "auto (default): hierarchical when groups are a multiple of nodes, else global; hierarchical: all replicas "
         "of a group on one node; global: anywhere"},
    {.name = "distinct",
     .kind = OPTION_READ,
     .read = read_distinct,
     .help = "no two replicas of an expert on one GPU, unless it has more than there are GPUs"},
    {.name = "steps",
     .value = "K",
     .kind = OPTION_INT64,
     .at = offsetof(eplb_job_t, options.search_steps),
     .most = (double)(INT64_C(1) << 62),
     .help = "look for a better placement in K steps of each layer; never gives a worse one"},
    {.name = "seconds",
     .value = "S",
     .kind = OPTION_READ,
     .read = read_seconds,
     .help = "the same for S seconds in all"},
    {.name = "seed",
     .value = "K",
     .kind = OPTION_INT64,
     .at = offsetof(eplb_job_t, options.seed),
     .most = (double)INT64_MAX,
     .help = "of the steps' random choices (default 0)"},
    {.name = "from",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .at = offsetof(eplb_job_t, from),
     .help = "start from the placement in use and move as few replicas as the bound allows: a row per layer and the "
             "expert in each slot, or JSON with physical_to_logical"},
    {.name = "bound",
     .value = "X",
     .kind = OPTION_REAL,
     .at = offsetof(eplb_job_t, update.bound),
     .least = 1,
     .most = 1e9,
     .help = "with --from: fullest GPU of a layer at most X times its mean (default: what a placement from loads alone "
             "reaches)"},
    {.name = "threshold",
     .value = "X",
     .kind = OPTION_REAL,
     .at = offsetof(eplb_job_t, update.threshold),
     .least = 1,
     .most = 1e9,
     .help = "with --from: layers that are within X times the mean stay as they are"},
    {.name = "expert-bytes",
     .value = "B",
     .kind = OPTION_INT64,
     .at = offsetof(eplb_job_t, update.expert_bytes),
     .most = (double)INT64_MAX,
     .help = "size of an expert, for the bytes moved"},
    {.name = "decay",
     .value = "D",
     .kind = OPTION_REAL,
     .at = offsetof(eplb_job_t, decay),
     .most = BELOW_ONE,
     .help = "several LOADS, the oldest first: average = D * average + (1 - D) * next, D below 1 (default 0.9)"},
    {.name = "format",
     .value = "F",
     .kind = OPTION_READ,
     .at = offsetof(eplb_job_t, format),
     .read = format_read,
     .words = "text tsv json svg png pdf",
     .help = "text (default): the imbalance before and after; tsv: the expert in each slot, for --from; json: all, and "
             "the maps physical_to_logical, logical_to_physical, expert_count; svg, png, pdf: the load of every GPU"},
    {.name = "output",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .at = offsetof(eplb_job_t, output),
     .help = "write there instead of to standard output"},
    {.kind = OPTION_END}};
static const option_row_t *const eplb_tables[] = {eplb_options, NULL};

const command_t command_eplb = {
    .name = "eplb",
    .usage =
        "usage: dualpipe eplb --replicas R --gpus U [OPTIONS] LOADS...\n"
        "Replicates the experts of each layer, the busiest most, and places the replicas so that GPUs get equal loads. LOADS has a row per layer and a number per expert (tokens, say), parted by tabs, spaces or commas; or it is JSON, an array of arrays, alone or under the key \"loads\". - is standard input. Without --from, the placement before is the one in which slot p holds expert p mod experts.\n"
        "\n",
    .tables = eplb_tables,
    .needs = 0,
    .notes = "\n"
             "examples:\n"
             "  dualpipe eplb --replicas 288 --groups 8 --nodes 4 --gpus 32 loads.tsv\n"
             "  dualpipe eplb --replicas 288 --gpus 32 --distinct --seconds 1 --format tsv --output now.tsv loads.tsv\n"
             "  dualpipe eplb --replicas 288 --gpus 32 --from now.tsv --bound 1.1 --expert-bytes 88080384 later.tsv\n"
             "      few moves to within a tenth of the mean\n"
             "  dualpipe eplb --replicas 288 --gpus 32 --format svg --output loads.svg loads.tsv\n"
             "\n"
             "exit status: 0 done, 1 a file could not be read or written, 2 wrong usage or input\n"};

static int check_options(const eplb_job_t *job)
{
    if (job->shape.replicas == 0)
        return command_usage(&command_eplb, "--replicas R is missing");
    if (job->shape.gpus == 0)
        return command_usage(&command_eplb, "--gpus U is missing");
    if (job->nfiles == 0)
        return command_usage(&command_eplb, "LOADS is missing: a file with a row per layer, or - for standard input");
    if (job->from == NULL && (job->update.bound != 0.0 || job->update.threshold != 0.0))
        return command_usage(&command_eplb, "--bound and --threshold are about moves: they need --from");
    int inputs = job->from != NULL && strcmp(job->from, "-") == 0;
    for (int k = 0; k < job->nfiles; k++)
        inputs += strcmp(job->files[k], "-") == 0;
    if (inputs > 1)
        return command_usage(&command_eplb, "standard input can be read once");
    return CMD_OK;
}

/* -1: go on; else an exit code. */
static int read_options(int argc, char **argv, eplb_job_t *job)
{
    int code;

    if (!options_read(&command_eplb, NULL, argc, argv, job, &code))
        return code;
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
        return dp_fail(DP_ERR_INVALID, "%s: %d layers of %d slots, where %d of %d are expected", job->from,
                       matrix->rows, matrix->columns, job->shape.layers, job->shape.replicas);
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
static dp_status_t make_room_for_plan(eplb_job_t *job)
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

static dp_status_t measure_plan(eplb_job_t *job, int which, const int32_t *slots)
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

static dp_status_t work_on_layers(eplb_job_t *job)
{
    dp_status_t status = read_loads(job);

    if (status == DP_OK)
        status = make_room_for_plan(job);
    if (status == DP_OK)
        status = read_before(job);
    if (status == DP_OK)
        status = measure_plan(job, 0, job->before);
    if (status == DP_OK)
        status = plan(job);
    if (status == DP_OK)
        status = add_lists(job);
    if (status == DP_OK)
        status = measure_plan(job, 1, job->after.physical_to_logical);
    if (status == DP_OK && job->from == NULL)
        status = dp_eplb_transfers(&job->shape, job->before, job->after.physical_to_logical, job->update.expert_bytes,
                                   NULL, &job->moves, job->workspace, job->workspace_bytes);
    return status;
}

static void clear_job(eplb_job_t *job)
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
    status = work_on_layers(&job);
    if (status == DP_OK)
        status = output_open(&output, job.output);
    if (status == DP_OK)
        status = output_close(&output, eplb_put(&job, &output));
    clear_job(&job);
    if (status == DP_ERR_NUMERIC) /* what the files hold is wrong, whatever the reason */
        status = DP_ERR_INVALID;
    return status == DP_OK ? CMD_OK : command_failed(&command_eplb, status);
}
