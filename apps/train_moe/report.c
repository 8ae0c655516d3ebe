/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * report.c: what rank 0 says before the first step and after the last: sizes, bytes, figures. */
#include "train_moe.h"

#include "figures.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)

/* ---- memory of this process, from the kernel ---- */

static size_t status_bytes(const char *field)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    size_t kib = 0;

    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, field, strlen(field)) == 0)
            kib = strtoull(line + strlen(field), NULL, 10);
    if (f != NULL)
        fclose(f);
    return kib * 1024;
}

size_t resident_bytes(void)
{
    return status_bytes("VmRSS:");
}

size_t peak_resident_bytes(void)
{
    return status_bytes("VmHWM:");
}

/* ---- lines ---- */

#define COLUMNS 80
#define LABEL   12

void report_line(FILE *to, const char *label, const char *fmt, ...)
{
    char text[1024], *word = text;
    int at = fprintf(to, "%-*s", LABEL, label);
    va_list list;

    va_start(list, fmt);
    vsnprintf(text, sizeof(text), fmt, list);
    va_end(list);
    for (char *end; word != NULL; word = end) {
        end = strchr(word, ' ');
        if (end != NULL)
            *end++ = '\0';
        if (at > LABEL && at + 1 + (int)strlen(word) + (end != NULL && *end == '%' ? 2 : 0) > COLUMNS)
            at = fprintf(to, "\n%*s", LABEL, "") - 1;
        at += fprintf(to, "%s%s", at > LABEL ? " " : "", word);
    }
    fputc('\n', to);
}

/* ---- before the first step ---- */

static double count_params(const trainer_t *t, int chosen_only)
{
    const options_t *o = t->options;
    double layer = 0, expert = 0, ends = 0;

    for (int32_t c = 0; c < t->nchunks; c++)
        for (uint32_t i = 0; i < t->chunks[c].view.nparams; i++) {
            const dp_param_t *param = &t->chunks[c].view.param_list[i];
            const int32_t number = t->chunks[c].numbers[i];
            if (number == 0 || number >= t->nparams - (o->tie ? 1 : 2))
                continue;
            if (param->sharded)
                expert += (double)param->count;
            else
                layer += (double)param->count;
        }
    layer /= t->model.nlayers;
    expert /= t->model.nlayers * (double)options_local_experts(o);
    ends = (double)(((o->tie ? 1 : 2) * VOCAB + 1) * o->hidden);
    return ends + (double)o->layers * (layer + expert * (double)(chosen_only ? o->top_k : o->experts));
}

/* "comm_shm", or who talks to whom over what: "comm_shm (0-1, 2-3) + comm_ofi (other pairs)" */
static const char *name_comms(const trainer_t *t, char *text, size_t bytes)
{
    const dp_host_t *host = dp_group_host(t->group);
    const dp_host_places_t *places = host->get_service(host, DP_HOST_PLACES);
    int32_t n = dp_group_size(t->group);
    const char *near = dp_pipeline_comm(t->pipeline, 0, 0), *far = NULL;
    size_t at = (size_t)snprintf(text, bytes, "%s", near);

    for (int32_t r = 0; r < n && far == NULL; r++)
        if (places->host_of[r] != places->host_of[0])
            far = dp_pipeline_comm(t->pipeline, 0, r);
    if (far == NULL || strcmp(near, far) == 0)
        return text;
    for (int32_t r = 0, end; r < n && at + 64 < bytes; r = end) {
        for (end = r + 1; end < n && places->host_of[end] == places->host_of[r];)
            end++;
        at += (size_t)snprintf(text + at, bytes - at, "%s%d-%d", r == 0 ? " (" : ", ", r, end - 1);
    }
    snprintf(text + at, bytes - at, ") + %s (others)", far);
    return text;
}

/* "; layers of the stages 3,2,2,1"; nothing where they are equal */
static const char *name_partition(const trainer_t *t, char *text, size_t bytes)
{
    const int32_t stages = dp_schedule_stages(dp_pipeline_program(t->pipeline)->schedule);
    const int32_t *first = t->options->own_partition;
    size_t at = 0;

    *text = '\0';
    for (int32_t s = 0; first != NULL && s < stages && at + 16 < bytes; s++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%d", s == 0 ? "; layers of the stages " : ",",
                               first[s + 1] - first[s]);
    return text;
}

void report_layout(const trainer_t *t, const history_t *h, FILE *to)
{
    const options_t *o = t->options;
    char comms[512], overlap[32] = "", heads[128], groups[64] = "", partition[512];
    dp_memory_report_t m = {.struct_size = sizeof(m)};

    if (dp_pipeline_memory(t->pipeline, &m) < 0)
        return;
    if (o->own_schedule != NULL)
        snprintf(overlap, sizeof(overlap), ", overlap %s", o->overlap);
    if (o->latent)
        snprintf(heads, sizeof(heads), "latent attention (ranks %d, %d) of %d heads of %d + %d", (int)o->q_rank,
                 (int)o->kv_rank, (int)o->heads, (int)o->head_dim, (int)o->rope_dim);
    else
        snprintf(heads, sizeof(heads), "%d heads (%d key/value) of %d", (int)o->heads, (int)o->kv_heads,
                 (int)o->head_dim);
    if (o->route_groups > 0)
        snprintf(groups, sizeof(groups), " of %d of %d groups", (int)o->route_limit, (int)o->route_groups);
    report_line(to, "model",
                "%d layers, hidden %d, %s, %d experts of %d (top %d%s, %d shared), %s gate, %s; "
                "%.2f million parameters, %.2f million of them in use for one token",
                (int)o->layers, (int)o->hidden, heads, (int)o->experts, (int)o->expert_hidden, (int)o->top_k, groups,
                (int)o->shared_experts, o->gate, o->dtype_name, count_params(t, 0) / 1e6, count_params(t, 1) / 1e6);
    report_line(
        to, "text", "%d files, %.1f KiB to learn from, %.1f KiB held out; guessing bytes by frequency loses %.4f",
        t->text->files, (double)t->text->train_bytes / 1024, (double)t->text->valid_bytes / 1024, h->frequency_loss);
    report_line(to, "layout", "%d ranks = pp %d x ep %d x dp %d%s, schedule %s%s, plugins %s %s %s %s%s%s",
                dp_group_size(t->group), (int)o->pp, (int)o->ep, (int)o->dp, o->threads > 0 ? " (threads)" : "",
                o->schedule, overlap, name_comms(t, comms, sizeof(comms)), o->device,
                *o->attention != '\0' ? o->attention : "(the device's)", *o->moe != '\0' ? o->moe : "(the device's)",
                *o->ep_plugin != '\0' ? ", rows of experts by " : "", o->ep_plugin);
    if (t->model.block != NULL && dp_moe_block_about(t->model.block) != NULL)
        report_line(to, "", "%s", dp_moe_block_about(t->model.block));
    report_line(to, "", "a step: %d micro-batches x %d sequences x %d bytes on each of %d replicas %s %lld bytes%s",
                t->nlosses, (int)o->batch, (int)o->seq, t->replicas, o->varlen ? "<=" : "=",
                (long long)t->nlosses * t->replicas * (long long)t->tokens,
                name_partition(t, partition, sizeof(partition)));
    report_line(
        to, "memory",
        "rank 0 takes %.2f MiB: parameters %.2f, gradients %.2f, activations %.2f, of backwards alone %.2f, work %.2f, "
        "boundaries %.2f, "
        "transport %.2f, records %.2f, optimizer %.2f, data %.2f; a step takes no more",
        ((double)m.total + (double)trainer_bytes(t)) / MIB, (double)m.params / MIB, (double)m.grads / MIB,
        (double)m.saved / MIB, (double)m.backward_buffer / MIB, (double)m.work / MIB, (double)m.boundary / MIB,
        (double)m.transport / MIB, (double)m.records / MIB, (double)trainer_optimizer_bytes(t) / MIB,
        (double)(trainer_bytes(t) - trainer_optimizer_bytes(t)) / MIB);
    if (m.cache > 0)
        report_line(to, "", "%.2f MiB of it are caches of keys and values, for the text at the end (--sample-cache)",
                    (double)m.cache / MIB);
    if (m.buddy > 0)
        report_line(to, "", "%.2f MiB of it are two copies of its state, which the launcher keeps if it dies (--buddy)",
                    (double)m.buddy / MIB);
    fflush(to);
}

/* ---- after the last step ---- */

/* "F 4.05, I 3.91, W 3.20, F&B 9.87 ms": as costs.txt has them */
static const char *name_costs(const dp_costs_t *c, char *text, size_t bytes)
{
    int used = snprintf(text, bytes, "F %.3g, I %.3g, W %.3g", c->f, c->i, c->w);

    if (c->fb > 0)
        used += snprintf(text + used, bytes - (size_t)used, ", F&B %.3g", c->fb);
    snprintf(text + used, bytes - (size_t)used, " ms a micro-batch and device, %.2g ms a message", c->hop);
    return text;
}

/* Where the simulated bubble comes from. */
static const char *name_bubble(const figures_t *f, char *text, size_t bytes)
{
    int used = snprintf(text, bytes, "%.1f %% of the schedule", 100 * f->even_bubble);

    if (isfinite(f->formula_bubble))
        used += snprintf(text + used, bytes - (size_t)used, " (published formula: %.1f %%)", 100 * f->formula_bubble);
    if (f->costs.stages > 1)
        snprintf(text + used, bytes - (size_t)used, ", %.1f %% of uneven stages (stage %d takes %.2f times the mean)",
                 fmax(0, 100 * (f->simulated_bubble - f->even_bubble)), f->slowest_stage,
                 f->costs.costs->stage_scale[f->slowest_stage]);
    return text;
}

/* "12.5 ms, with F ...; 12.1 ms if all stages took the same, as in `dualpipe compare`" */
static const char *name_step(const figures_t *f, const char *between, char *text, size_t bytes)
{
    char costs[160];
    int used = snprintf(text, bytes, "%.1f ms%s with %s", f->simulated_step, between,
                        name_costs(f->costs.costs, costs, sizeof(costs)));

    if (f->costs.stages > 1)
        snprintf(text + used, bytes - (size_t)used, "; %.1f ms if all stages took the same, as in `dualpipe compare`",
                 f->even_step);
    return text;
}

/* Ranks wait for cores: what was measured tells of the machine, what is simulated of the
 * pipeline. */
static void print_shared(const figures_t *f, FILE *to)
{
    char step[320], bubble[200];

    report_line(to, "cores",
                "%.0f %% of their time spent computing: %d ranks share %d cores; %.1f ms a step (median of %d)",
                100 * f->computing, f->ranks, f->cores, f->step, f->steps);
    report_line(to, "step", "%s. By the threads' own clocks",
                name_step(f, " with a device for each rank, simulated", step, sizeof(step)));
    report_line(to, "bubble", "%.1f %% there: %s", 100 * f->simulated_bubble, name_bubble(f, bubble, sizeof(bubble)));
}

static void print_measured(const figures_t *f, FILE *to)
{
    char step[320], bubble[200];

    report_line(to, "step", "measured %.1f ms (median of %d); simulated %s", f->step, f->steps,
                name_step(f, ",", step, sizeof(step)));
    report_line(to, "bubble", "measured %.1f %% of the step (ranks: %.1f to %.1f %%); simulated %.1f %%: %s",
                100 * f->bubble, 100 * f->least_bubble, 100 * f->most_bubble, 100 * f->simulated_bubble,
                name_bubble(f, bubble, sizeof(bubble)));
    report_line(to, "overlap", "communication on the lanes %.1f ms a step and rank, %.1f %% of it beside computation",
                f->communication, 100 * f->hidden);
}

static void print_memory(const trainer_t *t, const memory_use_t *all, FILE *to)
{
    const int32_t size = dp_group_size(t->group);
    double announced = 0, most_announced = 0, grown = 0, most_grown = 0;

    for (int32_t r = 0; r < size; r++) {
        announced += all[r].announced;
        most_announced = fmax(most_announced, all[r].announced);
        grown += all[r].grown;
        most_grown = fmax(most_grown, all[r].grown);
    }
    if (t->options->threads > 0)
        report_line(to, "memory", "announced %.1f MiB for all ranks; this process grew by %.1f MiB at its peak",
                    announced / MIB, most_grown / MIB);
    else
        report_line(to, "memory",
                    "announced %.1f MiB for the largest rank, %.1f MiB in all; at their peak processes had grown by "
                    "%.1f MiB at most, %.1f MiB in all (code, stacks and BLAS included; shared pages count twice)",
                    most_announced / MIB, announced / MIB, most_grown / MIB, grown / MIB);
}

/* Of ranks that multiply otherwise than rank 0: a run on hosts that are alike has other bits. */
static void print_products(const trainer_t *t, const memory_use_t *all, FILE *to)
{
    int32_t other = 0, first = 0;

    for (int32_t r = dp_group_size(t->group) - 1; r > 0; r--)
        if (strcmp(all[r].products, all[0].products) != 0) {
            other++;
            first = r;
        }
    if (other > 0)
        report_line(to, "bits",
                    "rank %d multiplies by %s, not as rank 0 (%d of %d ranks do not): on hosts that are alike the same "
                    "training has other last bits",
                    first, all[first].products, other, dp_group_size(t->group));
}

static double mean_of(const double *values, int64_t from, int64_t to)
{
    double sum = 0;

    for (int64_t i = from; i < to; i++)
        sum += values[i] / (double)(to - from);
    return sum;
}

/* Steps from..to - 1: how even and, where routing is being tried, how long. */
static const char *name_stretch(const trainer_t *t, const history_t *h, int64_t from, int64_t to, char *text,
                                size_t bytes)
{
    char median[48] = "";

    if (t->options->skew != 0 || t->options->eplb > 0)
        snprintf(median, sizeof(median), " (median step %.1f ms)", 1e3 * median_of(h->step_seconds + from, to - from));
    snprintf(text, bytes, "%.3f in steps %lld to %lld%s", mean_of(h->imbalance, from, to), (long long)from + 1,
             (long long)to, median);
    return text;
}

/* Before the first change of placement and after it. */
static void print_balance(const trainer_t *t, const history_t *h, FILE *to)
{
    const balance_t *b = &t->balance;
    int64_t replicas = 0, first = h->steps;
    double sent = 0;
    char before[96], after[96];

    if (balance_count(b) == 0)
        return;
    for (int64_t i = 0; i < b->nrecords; i++) {
        replicas += b->records[i].replicas;
        sent += b->records[i].sent;
        if (b->records[i].replicas > 0 && b->records[i].steps < first)
            first = b->records[i].steps;
    }
    if (t->options->replicas > 0)
        report_line(to, "experts",
                    "%d replicas of %d on %d ranks; %lld plans, %lld replicas moved, %.2f MiB sent between ranks",
                    b->shape.replicas, b->shape.experts, b->shape.gpus, (long long)b->nrecords, (long long)replicas,
                    sent / MIB);
    name_stretch(t, h, 0, first, before, sizeof(before));
    report_line(to, "balance", "%s: max/mean tokens on a layer's ranks", before);
    if (first < h->steps)
        report_line(to, "", "%s", name_stretch(t, h, first, h->steps, after, sizeof(after)));
}

static void print_training(const trainer_t *t, const history_t *h, FILE *to)
{
    const double bytes = trainer_tokens(t, h->steps);
    const int64_t tail = h->steps < 10 ? h->steps : 10;
    char valid[64] = "";

    fputc('\n', to);
    report_line(to, "trained", "%lld steps, %.0f tokens in %.1f s: %.0f tokens/s", (long long)h->steps, bytes,
                h->seconds, bytes / h->seconds);
    if (h->nvalid > 0)
        snprintf(valid, sizeof(valid), ", %.4f on held-out text", h->valid_loss[h->nvalid - 1]);
    report_line(to, "loss",
                "%.4f at first, %.4f at last (mean of %lld steps)%s; guessing by frequency %.4f (nats per byte)",
                h->loss[0], mean_of(h->loss, h->steps - tail, h->steps), (long long)tail, valid, h->frequency_loss);
    if (h->left_out > 0)
        report_line(to, "saved", "%lld of %lld checkpoints were left out: an earlier one was still being written",
                    (long long)h->left_out, (long long)h->saves);
}

static dp_status_t report_figures(const trainer_t *t, const dp_timeline_t *timeline, FILE *to)
{
    figures_t figures;
    dp_status_t status = figures_find(t, timeline, &figures);

    if (status == DP_OK) {
        (figures.shared ? print_shared : print_measured)(&figures, to);
        status = report_hosts(t, timeline, to);
    }
    figures_clear(&figures);
    return status;
}

dp_status_t report_results(const trainer_t *t, const history_t *h, const dp_timeline_t *timeline,
                           const memory_use_t *all, FILE *to)
{
    dp_status_t status = DP_OK;

    print_training(t, h, to);
    if (figures_missing(timeline))
        report_line(to, "step", "not measured: a rank died behind the last one, and took the record along");
    else
        status = report_figures(t, timeline, to);
    print_balance(t, h, to);
    print_memory(t, all, to);
    print_products(t, all, to);
    return status;
}
