/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * eplb_output.c: a placement as text, table, JSON or picture. */
#include <math.h>
#include <stdlib.h>

#include "eplb_job.h"
#include "tools/draw/draw_loads.h"

/* Placements of at most so many slots are part of the text. */
#define TEXT_SLOTS 512

static const char *policy_name(const eplb_job_t *job)
{
    return job->after.policy == DP_EPLB_HIERARCHICAL ? "hierarchical" : "global";
}

static double peak_ratio(const double *loads, int32_t count)
{
    double peak = 0.0, sum = 0.0;

    for (int32_t k = 0; k < count; k++) {
        peak = fmax(peak, loads[k]);
        sum += loads[k];
    }
    return sum > 0.0 ? peak * count / sum : 1.0;
}

static double layer_ratio(const eplb_job_t *job, int which, int32_t layer)
{
    return peak_ratio(job->gpu_loads[which] + (size_t)layer * (size_t)job->shape.gpus, job->shape.gpus);
}

static double layer_node_ratio(const eplb_job_t *job, int which, int32_t layer)
{
    return peak_ratio(job->node_loads[which] + (size_t)layer * (size_t)job->shape.nodes, job->shape.nodes);
}

static const int32_t *row_of(const eplb_job_t *job, int32_t layer)
{
    return job->after.physical_to_logical + (size_t)layer * (size_t)job->shape.replicas;
}

/* ---- text ---- */

static void put_balance(FILE *to, const char *name, const dp_eplb_balance_t *b)
{
    fprintf(to, "%-8s %10.4f %12.4f %10.4f %12.4f\n", name, b->gpu, b->gpu_worst, b->node, b->node_worst);
}

static void put_moves(const eplb_job_t *job, FILE *to)
{
    const dp_eplb_moves_t *m = &job->moves;

    fprintf(to, "\n%lld of %lld replicas move, in %d of %d layers; %lld of them to another node",
            (long long)m->replicas, (long long)job->shape.layers * job->shape.replicas, m->layers_moved,
            job->shape.layers, (long long)m->between_nodes);
    if (job->update.expert_bytes > 0)
        fprintf(to, "; %lld bytes, %lld of them between nodes", (long long)m->bytes, (long long)m->bytes_between_nodes);
    fputc('\n', to);
    if (m->layers_over > 0)
        fprintf(to, "%d layers are above the bound: no plan that was found is within it\n", m->layers_over);
}

static void put_layers(const eplb_job_t *job, FILE *to)
{
    fputs("max/mean     GPU before      after   node before      after\n", to);
    for (int32_t layer = 0; layer < job->shape.layers; layer++)
        fprintf(to, "layer %-5d %11.4f %10.4f %13.4f %10.4f\n", layer, layer_ratio(job, 0, layer),
                layer_ratio(job, 1, layer), layer_node_ratio(job, 0, layer), layer_node_ratio(job, 1, layer));
}

static void put_gpus(const eplb_job_t *job, FILE *to)
{
    fputs("\nexperts of each GPU\n", to);
    for (int32_t layer = 0; layer < job->shape.layers; layer++) {
        fprintf(to, "layer %d:", layer);
        for (int32_t gpu = 0; gpu < job->shape.gpus; gpu++) {
            int32_t first, count;

            dp_eplb_gpu_slots(&job->shape, gpu, &first, &count);
            fputs(gpu > 0 ? " |" : "", to);
            for (int32_t p = first; p < first + count; p++)
                fprintf(to, " %d", row_of(job, layer)[p]);
        }
        fputc('\n', to);
    }
}

static void put_summary(const eplb_job_t *job, FILE *to)
{
    const dp_eplb_shape_t *s = &job->shape;

    fprintf(to, "\n%d layer%s of %d experts: %d replicas on %d GPU%s, %d node%s; %s policy", s->layers,
            s->layers > 1 ? "s" : "", s->experts, s->replicas, s->gpus, s->gpus > 1 ? "s" : "", s->nodes,
            s->nodes > 1 ? "s" : "", policy_name(job));
    if (job->after.policy == DP_EPLB_HIERARCHICAL)
        fprintf(to, ", %d group%s", s->groups, s->groups > 1 ? "s" : "");
    fprintf(to, "; at most %d replicas of an expert\n\n", job->after.max_count);
    fputs("max/mean        GPU  worst layer       node  worst layer\n", to);
    put_balance(to, "before", &job->balance[0]);
    put_balance(to, "after", &job->balance[1]);
    if (job->from != NULL)
        put_moves(job, to);
}

/* The summary last: a terminal shows the end. */
static dp_status_t put_plan(const eplb_job_t *job, FILE *to)
{
    const dp_eplb_shape_t *s = &job->shape;

    put_layers(job, to);
    if ((int64_t)s->layers * s->replicas <= TEXT_SLOTS)
        put_gpus(job, to);
    put_summary(job, to);
    return DP_OK;
}

/* ---- tsv and json ---- */

static dp_status_t put_tsv(const eplb_job_t *job, FILE *to)
{
    const dp_eplb_shape_t *s = &job->shape;

    fprintf(to, "# expert in each slot: %d layers, %d experts, %d replicas, %d groups, %d nodes, %d gpus, %s\n",
            s->layers, s->experts, s->replicas, s->groups, s->nodes, s->gpus, policy_name(job));
    for (int32_t layer = 0; layer < s->layers; layer++)
        for (int32_t p = 0; p < s->replicas; p++)
            fprintf(to, "%d%c", row_of(job, layer)[p], p + 1 < s->replicas ? '\t' : '\n');
    return DP_OK;
}

static void put_ints(FILE *to, const int32_t *values, int32_t count)
{
    fputc('[', to);
    for (int32_t k = 0; k < count; k++)
        fprintf(to, "%s%d", k > 0 ? "," : "", values[k]);
    fputc(']', to);
}

static void put_int_rows(FILE *to, const char *key, const int32_t *values, int32_t rows, int32_t columns)
{
    fprintf(to, ",\n\"%s\":[", key);
    for (int32_t r = 0; r < rows; r++) {
        fputs(r > 0 ? ",\n " : "\n ", to);
        put_ints(to, values + (size_t)r * (size_t)columns, columns);
    }
    fputs("]", to);
}

static void put_lists(FILE *to, const eplb_job_t *job)
{
    size_t longest = (size_t)job->after.max_count;

    fputs(",\n\"logical_to_physical\":[", to);
    for (int32_t layer = 0; layer < job->shape.layers; layer++) {
        fputs(layer > 0 ? ",\n [" : "\n [", to);
        for (int32_t e = 0; e < job->shape.experts; e++) {
            size_t list = (size_t)layer * (size_t)job->shape.experts + (size_t)e;

            fputs(e > 0 ? "," : "", to);
            put_ints(to, job->after.logical_to_physical + list * longest, job->after.max_count);
        }
        fputc(']', to);
    }
    fputs("]", to);
}

static void put_double_rows(FILE *to, const char *key, const double *values, int32_t rows, int32_t columns)
{
    fprintf(to, ",\n\"%s\":[", key);
    for (int32_t r = 0; r < rows; r++) {
        fputs(r > 0 ? ",\n [" : "\n [", to);
        for (int32_t c = 0; c < columns; c++) {
            fputs(c > 0 ? "," : "", to);
            output_json_number(to, values[(size_t)r * (size_t)columns + (size_t)c]);
        }
        fputc(']', to);
    }
    fputs("]", to);
}

static void put_json_balance(FILE *to, const char *key, const dp_eplb_balance_t *b)
{
    fprintf(to, ",\n\"%s\":{\"gpu\":", key);
    output_json_number(to, b->gpu);
    fputs(",\"gpu_worst\":", to);
    output_json_number(to, b->gpu_worst);
    fputs(",\"node\":", to);
    output_json_number(to, b->node);
    fputs(",\"node_worst\":", to);
    output_json_number(to, b->node_worst);
    fputc('}', to);
}

static dp_status_t put_json(const eplb_job_t *job, FILE *to)
{
    const dp_eplb_shape_t *s = &job->shape;
    const dp_eplb_moves_t *m = &job->moves;

    fprintf(
        to,
        "{\"schema\":1,\"layers\":%d,\"experts\":%d,\"replicas\":%d,\"groups\":%d,\"nodes\":%d,\"gpus\":%d,\"policy\":"
        "\"%s\","
        "\"max_count\":%d",
        s->layers, s->experts, s->replicas, s->groups, s->nodes, s->gpus, policy_name(job), job->after.max_count);
    put_json_balance(to, "before", &job->balance[0]);
    put_json_balance(to, "after", &job->balance[1]);
    fprintf(to,
            ",\n\"moves\":{\"replicas\":%lld,\"between_nodes\":%lld,\"bytes\":%lld,\"bytes_between_nodes\":%lld,"
            "\"layers_moved\":%d,\"layers_over\":%d}",
            (long long)m->replicas, (long long)m->between_nodes, (long long)m->bytes, (long long)m->bytes_between_nodes,
            m->layers_moved, m->layers_over);
    put_int_rows(to, "physical_to_logical", job->after.physical_to_logical, s->layers, s->replicas);
    put_lists(to, job);
    put_int_rows(to, "expert_count", job->after.expert_count, s->layers, s->experts);
    put_double_rows(to, "gpu_loads_before", job->gpu_loads[0], s->layers, s->gpus);
    put_double_rows(to, "gpu_loads_after", job->gpu_loads[1], s->layers, s->gpus);
    fputs("}\n", to);
    return DP_OK;
}

/* ---- picture ---- */

static dp_status_t put_picture(const eplb_job_t *job, output_t *output)
{
    const dp_eplb_shape_t *s = &job->shape;
    char title[128], subtitle[160], label[2][96];
    draw_loads_t picture = {.title = title,
                            .subtitle = subtitle,
                            .layers = s->layers,
                            .gpus = s->gpus,
                            .nodes = s->nodes,
                            .label = {label[0], label[1]},
                            .load = {job->gpu_loads[0], job->gpu_loads[1]}};
    int32_t *first = malloc(((size_t)s->nodes + 1) * sizeof(*first)), count;
    dp_status_t status;

    if (first == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d nodes", s->nodes);
    for (int32_t node = 0; node < s->nodes; node++)
        dp_eplb_node_gpus(s, node, &first[node], &count);
    first[s->nodes] = s->gpus;
    picture.node_first = first;
    snprintf(title, sizeof(title), "Load of %d GPUs: %d experts in %d slots, %d layer%s", s->gpus, s->experts,
             s->replicas, s->layers, s->layers > 1 ? "s" : "");
    if (job->from != NULL)
        snprintf(subtitle, sizeof(subtitle), "%s policy; %lld replicas moved, in %d layers", policy_name(job),
                 (long long)job->moves.replicas, job->moves.layers_moved);
    else
        snprintf(subtitle, sizeof(subtitle), "%s policy; at most %d replicas of an expert", policy_name(job),
                 job->after.max_count);
    for (int k = 0; k < 2; k++)
        snprintf(label[k], sizeof(label[k]), "%s: max/mean %.3f, worst layer %.3f", k == 0 ? "before" : "after",
                 job->balance[k].gpu, job->balance[k].gpu_worst);
    status = draw_loads_write(&picture,
                              job->format == FORMAT_PNG   ? DRAW_PNG
                              : job->format == FORMAT_PDF ? DRAW_PDF
                                                          : DRAW_SVG,
                              output_write, output);
    free(first);
    return status;
}

dp_status_t eplb_put(const eplb_job_t *job, output_t *output)
{
    switch (job->format) {
    case FORMAT_TEXT:
        return put_plan(job, output->file);
    case FORMAT_TSV:
        return put_tsv(job, output->file);
    case FORMAT_JSON:
        return put_json(job, output->file);
    default:
        return put_picture(job, output);
    }
}
