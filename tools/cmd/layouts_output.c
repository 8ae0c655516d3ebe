/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layouts_output.c: text and JSON. */
#include "layouts_output.h"

#include <stdbool.h>

#include "gpu_keys.h"
#include "tools/io/size.h"

#define GIB SIZE_GIB

const char *const layouts_levels[] = {"none", "cheap", "mlp", "full"};

dp_layouts_about_t layouts_about(const layouts_report_t *r)
{
    dp_layouts_about_t found = {.struct_size = sizeof(found)};

    (void)!dp_layouts_about(r->layouts, &found);
    return found;
}

dp_layout_t layouts_row(const layouts_report_t *r, int32_t row)
{
    dp_layout_t layout = {.struct_size = sizeof(layout)};

    (void)!dp_layouts_row(r->layouts, row, &layout);
    return layout;
}

/* ---- text ---- */

static void put_model(FILE *to, const layouts_report_t *r)
{
    const dp_model_t *m = r->request->model;
    double all = 0, active = 0;

    (void)!dp_model_parameters(m, &all, &active);
    fprintf(to, "model    %s: %lld layers of %lld, ", m->type, (long long)m->layers, (long long)m->hidden);
    if (m->experts > 0)
        fprintf(to, "%lld experts of %lld, %lld for a token; ", (long long)m->experts, (long long)m->expert_ffn,
                (long long)m->top_k);
    fprintf(to, "%.4g B parameters", all / 1e9);
    if (m->experts > 0)
        fprintf(to, ", %.4g B of them for a token", active / 1e9);
    fputc('\n', to);
}

static void put_assumed(FILE *to, const layouts_report_t *r)
{
    const char *key;
    double value;

    fprintf(to, "gpus     %d of %s; a step has %lld sequences of %lld tokens\nassumed  ", (int)r->request->gpus, r->gpu,
            (long long)r->request->batch, (long long)r->request->sequence);
    for (size_t k = 0; (key = gpu_key(r->request->gpu, k, &value)) != NULL; k++)
        fprintf(to, "%s%s=%.6g", k > 0 ? "," : "", key, value);
    fputc('\n', to);
}

static const char *const segment_names[DP_SEGMENT_COSTS] = {"attention", "dispatch", "mlp", "combine"};

static bool is_there(const dp_segment_costs_t *m, int segment)
{
    return m->f[segment] + m->i[segment] + m->w[segment] > 0;
}

/* What took the place of what. */
static void put_measured(FILE *to, const layouts_report_t *r)
{
    const dp_segment_costs_t *m = r->request->measured;
    dp_segment_costs_t e = {.struct_size = sizeof(e)};
    const bool known = r->costs != NULL && dp_layouts_segments(r->layouts, 0, &e) >= 0;

    for (int s = 0; s < DP_SEGMENT_COSTS && known; s++)
        if (is_there(m, s))
            fprintf(to, "measured %-9s F %.4g, I %.4g, W %.4g ms; estimated %.4g, %.4g, %.4g\n", segment_names[s],
                    m->f[s], m->i[s], m->w[s], e.f[s], e.i[s], e.w[s]);
}

void layouts_put_head(FILE *to, const layouts_report_t *r)
{
    put_model(to, r);
    put_assumed(to, r);
    put_measured(to, r);
}

void layouts_put_schedule(char *text, size_t room, const dp_layout_t *l)
{
    snprintf(text, room, l->pp == 1 ? "no pipeline" : l->chunks > 0 ? "%s,%d" : "%s", l->method->name, (int)l->chunks);
}

static void put_layout_bytes(FILE *to, const dp_layout_t *l)
{
    fprintf(to, " %6.1f %7.1f %5.1f %5.1f %5.1f %5.1f\n", l->total / GIB, l->weights / GIB, l->gradients / GIB,
            l->optimizer / GIB, l->activations / GIB, (l->logits + l->transfers) / GIB);
}

static void put_layout(FILE *to, const dp_layout_t *l)
{
    char name[64];

    layouts_put_schedule(name, sizeof(name), l);
    fprintf(to, "%-22s %3d %3d %4d %5d %-5s", name, (int)l->pp, (int)l->ep, (int)l->dp, (int)l->microbatches,
            layouts_levels[l->recompute]);
}

static void put_timed(FILE *to, const layouts_report_t *r, int32_t rows)
{
    if (rows > 0)
        fputs(
            "\nschedule                pp  ep   dp     M again    step s   gain useful    GiB weights grads optim  kept "
            "other\n",
            to);
    for (int32_t i = 0; i < rows; i++) {
        const dp_layout_t l = layouts_row(r, i);

        put_layout(to, &l);
        fprintf(to, " %9.4g %+5.1f%% %5.1f%%", l.step_time, 100 * l.gain, 100 * l.useful);
        put_layout_bytes(to, &l);
    }
}

static void put_others(FILE *to, const layouts_report_t *r, int32_t first, int32_t count)
{
    fputs("\nthese do not fit        pp  ep   dp     M again                             GiB weights grads optim  kept "
          "other\n",
          to);
    for (int32_t i = first; i < count && i < first + 4; i++) {
        const dp_layout_t l = layouts_row(r, i);

        if (l.fits)
            continue;
        put_layout(to, &l);
        fprintf(to, "%25s", "");
        put_layout_bytes(to, &l);
        if (l.reason[0] != '\0')
            fprintf(to, "    %s\n", l.reason);
    }
}

void layouts_put_text(FILE *to, const layouts_report_t *r)
{
    const dp_layouts_about_t all = layouts_about(r);

    layouts_put_head(to, r);
    put_timed(to, r, all.timed < r->show ? all.timed : r->show);
    if (all.timed < all.count && all.timed < r->show)
        put_others(to, r, all.timed, all.count);
    fprintf(to, "\n%s\n", all.advice);
    if (all.timed > 0) {
        const dp_layout_t best = layouts_row(r, 0);

        fprintf(to, "%.4g tokens/s, %.1f %% of the GPUs' operations; tp %d.\n", best.tokens_per_second, 100 * best.mfu,
                (int)best.tp);
    }
    fputs("\nagain: what is recomputed. gain: over 1f1b with the same ranks. useful: computation that\n"
          "one rank alone would do as well. GiB: of the fullest GPU, reserve included.\n",
          to);
}

/* ---- JSON ---- */

static void put_number(FILE *to, const char *name, double value, const char *behind)
{
    fprintf(to, "\"%s\":", name);
    output_json_number(to, value);
    fputs(behind, to);
}

static void put_json_bytes(FILE *to, const dp_layout_t *l)
{
    fputc('{', to);
    put_number(to, "weights", l->weights, ",");
    put_number(to, "gradients", l->gradients, ",");
    put_number(to, "optimizer", l->optimizer, ",");
    put_number(to, "activations", l->activations, ",");
    put_number(to, "logits", l->logits, ",");
    put_number(to, "transfers", l->transfers, ",");
    put_number(to, "total", l->total, "}");
}

static void put_json_layout(FILE *to, const dp_layout_t *l)
{
    fprintf(to,
            "{\"method\":\"%s\",\"chunks\":%d,\"tp\":%d,\"pp\":%d,\"ep\":%d,\"dp\":%d,\"microbatches\":%d,"
            "\"recompute\":\"%s\",\"fits\":%s,",
            l->method->name, (int)l->chunks, (int)l->tp, (int)l->pp, (int)l->ep, (int)l->dp, (int)l->microbatches,
            layouts_levels[l->recompute], l->fits ? "true" : "false");
    if (l->fits && l->timed) {
        put_number(to, "step_seconds", l->step_time, ",");
        put_number(to, "sums_seconds", l->reduce_time, ",");
        put_number(to, "gain_over_1f1b", l->gain, ",");
        put_number(to, "useful_share", l->useful, ",");
        put_number(to, "tokens_per_second", l->tokens_per_second, ",");
        put_number(to, "mfu", l->mfu, ",");
    }
    if (l->reason[0] != '\0') {
        fputs("\"reason\":", to);
        output_json_string(to, l->reason);
        fputc(',', to);
    }
    fprintf(to, "\"weight_copies\":%d,\"bytes\":", (int)l->copies);
    put_json_bytes(to, l);
    fputc('}', to);
}

/* Of the best layout. */
static dp_status_t put_json_ranks(FILE *to, const layouts_report_t *r)
{
    const int32_t ranks = layouts_row(r, 0).pp;
    dp_status_t status = DP_OK;

    fputs("\"rank_bytes\":[", to);
    for (int32_t rank = 0; rank < ranks && status >= 0; rank++) {
        dp_layout_t one = {.struct_size = sizeof(one)};

        status = dp_layouts_rank(r->layouts, 0, rank, &one);
        fputs(rank > 0 ? ",\n " : "\n ", to);
        put_json_bytes(to, &one);
    }
    fputs("],\n", to);
    return status;
}

static void put_json_segments(FILE *to, const char *name, const dp_segment_costs_t *times)
{
    bool first = true;

    fprintf(to, "\"%s\":{", name);
    for (int s = 0; s < DP_SEGMENT_COSTS; s++)
        if (is_there(times, s)) {
            fprintf(to, "%s\"%s\":[%.9g,%.9g,%.9g]", first ? "" : ",", segment_names[s], times->f[s], times->i[s],
                    times->w[s]);
            first = false;
        }
    fputs("},\n", to);
}

dp_status_t layouts_put_json(FILE *to, const layouts_report_t *r)
{
    const dp_layouts_about_t all = layouts_about(r);
    const dp_layout_request_t *q = r->request;
    dp_segment_costs_t estimated = {.struct_size = sizeof(estimated)};
    double parameters = 0, active = 0, value;
    dp_status_t status = DP_OK;
    const char *key;

    (void)!dp_model_parameters(q->model, &parameters, &active);
    fprintf(to, "{\"schema\":1,\"model\":{\"type\":\"%s\",", q->model->type);
    put_number(to, "parameters", parameters, ",");
    put_number(to, "active_parameters", active, "},\n");
    fprintf(to, "\"gpus\":%d,\"gpu\":", (int)q->gpus);
    output_json_string(to, r->gpu);
    fprintf(to, ",\"sequence\":%lld,\"global_batch\":%lld,\"micro_batch\":%d,\n\"assumed\":{", (long long)q->sequence,
            (long long)q->batch, (int)q->micro_batch);
    for (size_t k = 0; (key = gpu_key(q->gpu, k, &value)) != NULL; k++) {
        fputs(k > 0 ? "," : "", to);
        put_number(to, key, value, "");
    }
    fputs("},\n", to);
    if (r->costs != NULL && dp_layouts_segments(r->layouts, 0, &estimated) >= 0) {
        put_json_segments(to, "measured_ms", q->measured);
        put_json_segments(to, "estimated_ms", &estimated);
    }
    fputs("\"layouts\":[", to);
    for (int32_t i = 0; i < all.count && i < r->show; i++) {
        const dp_layout_t l = layouts_row(r, i);

        fputs(i > 0 ? ",\n " : "\n ", to);
        put_json_layout(to, &l);
    }
    fputs("],\n", to);
    if (all.count > 0)
        status = put_json_ranks(to, r);
    fputs("\"advice\":", to);
    output_json_string(to, all.advice);
    fputs("}\n", to);
    return status;
}
