/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * report.c: what rank 0 says before the first step and after the last: sizes, bytes, and the timeline's
 * figures beside those of a simulation that is fed with the costs the timeline shows. */
#include "train_moe.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* ---- before the first step ---- */

static double count_params(const trainer_t *t, int chosen_only)
{
    const options_t *o = t->options;
    double layer = 0, expert = 0, ends = 0;

    for (int32_t c = 0; c < t->nchunks; c++)
        for (uint32_t i = 0; i < t->chunks[c].view.nparams; i++) {
            const dp_param_t *param = &t->chunks[c].view.param_list[i];
            const int32_t number = t->chunks[c].numbers[i];
            if (number == 0 || number >= t->nparams - 2)
                continue;
            if (param->sharded)
                expert += (double)param->count;
            else
                layer += (double)param->count;
        }
    layer /= t->model.nlayers;
    expert /= t->model.nlayers * (double)options_local_experts(o);
    ends = (double)((2 * VOCAB + 1) * o->hidden);
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

void report_layout(const trainer_t *t, const history_t *h, FILE *to)
{
    const options_t *o = t->options;
    char comms[512];
    dp_memory_report_t m = {.struct_size = sizeof(m)};

    dp_pipeline_memory(t->pipeline, &m);
    fprintf(to,
            "model    %d layers, hidden %d, %d heads (%d key/value) of %d, %d experts of %d (top %d, %d "
            "shared), %s gate, %s\n"
            "         %.2f million parameters, %.2f million of them in use for one token\n",
            (int)o->layers, (int)o->hidden, (int)o->heads, (int)o->kv_heads, (int)o->head_dim, (int)o->experts,
            (int)o->expert_hidden, (int)o->top_k, (int)o->shared_experts, o->gate, o->dtype_name,
            count_params(t, 0) / 1e6, count_params(t, 1) / 1e6);
    fprintf(to,
            "text     %d files, %.1f KiB to learn from, %.1f KiB held out; guessing bytes by frequency loses "
            "%.4f\n",
            t->text->files, (double)t->text->train_bytes / 1024, (double)t->text->valid_bytes / 1024,
            h->frequency_loss);
    fprintf(to,
            "layout   %d ranks = pp %d x ep %d x dp %d%s, schedule %s, plugins %s %s %s %s\n"
            "         a step: %d micro-batches x %d sequences x %d bytes on each of %d replicas = %lld bytes\n",
            dp_group_size(t->group), (int)o->pp, (int)o->ep, (int)o->dp, o->threads > 0 ? " (threads)" : "",
            o->schedule, name_comms(t, comms, sizeof(comms)), o->device, o->attention, o->moe, t->microbatches,
            (int)o->batch, (int)o->seq, t->replicas, (long long)t->microbatches * t->replicas * (long long)t->tokens);
    fprintf(to,
            "memory   rank 0 takes %.2f MiB: parameters %.2f, gradients %.2f, activations %.2f, work %.2f, "
            "boundaries %.2f,\n"
            "         transport %.2f, records %.2f, optimizer and data %.2f; a step takes no more\n",
            ((double)m.total + (double)trainer_bytes(t)) / MIB, (double)m.params / MIB, (double)m.grads / MIB,
            (double)m.saved / MIB, (double)m.work / MIB, (double)m.boundary / MIB, (double)m.transport / MIB,
            (double)m.records / MIB, (double)trainer_bytes(t) / MIB);
    fflush(to);
}

/* ---- costs, as the timeline shows them ---- */

/* Mean nanoseconds of one micro-batch in each stage; free both with free(). */
typedef struct stage_costs {
    int32_t stages;
    double f, i, w; /* mean over stages */
    double *scale;  /* [stages] of all three together, around 1 */
} stage_costs_t;

static int32_t last_step(const dp_timeline_t *timeline, int32_t *steps_out)
{
    int64_t n;
    const dp_span_t *spans = dp_timeline_spans(timeline, 0, &n);
    int32_t last = -1;

    *steps_out = 0;
    for (int64_t k = 0; k < n; k++)
        if (spans[k].kind == DP_SPAN_STEP) {
            last = spans[k].step > last ? spans[k].step : last;
            (*steps_out)++;
        }
    return last;
}

static dp_status_t measure_costs(const trainer_t *t, const dp_timeline_t *timeline, int32_t steps, stage_costs_t *costs)
{
    const dp_schedule_t *schedule = dp_pipeline_program(t->pipeline)->schedule;
    const int32_t stages = dp_schedule_stages(schedule);
    const double passes = (double)steps * t->microbatches * t->replicas; /* every micro-batch visits every stage once */
    double sum[3] = {0};

    *costs = (stage_costs_t){.stages = stages, .scale = calloc((size_t)stages, sizeof(double))};
    if (costs->scale == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the costs of %d stages", stages);
    for (int32_t r = 0; r < dp_timeline_ranks(timeline); r++) {
        int64_t n;
        const dp_span_t *spans = dp_timeline_spans(timeline, r, &n);
        for (int64_t k = 0; k < n; k++) {
            const dp_span_t *s = &spans[k];
            const int which = s->pass == DP_OP_F ? 0 : s->pass == DP_OP_I ? 1 : 2;
            if (s->kind != DP_SPAN_COMPUTE || s->stage < 0 || s->stage >= stages)
                continue;
            sum[which] += (double)(s->end_ns - s->start_ns);
            costs->scale[s->stage] += (double)(s->end_ns - s->start_ns);
        }
    }
    for (int32_t s = 0; s < stages; s++)
        costs->scale[s] *= stages / (sum[0] + sum[1] + sum[2]);
    costs->f = sum[0] / passes / stages;
    costs->i = sum[1] / passes / stages;
    costs->w = sum[2] / passes / stages;
    return DP_OK;
}

/* The simulator counts in the work of a whole device; a chunk of a V or loop placement is a part of one. */
static dp_status_t simulate(const trainer_t *t, const stage_costs_t *c, dp_simulation_t *result)
{
    const dp_program_t *program = dp_pipeline_program(t->pipeline);
    const double share = dp_schedule_split(program->schedule);
    const dp_costs_t costs = {
        .struct_size = sizeof(costs),
        .f = c->f * share,
        .i = c->i * share,
        .w = c->w * share,
        .stage_scale = c->scale,
    };

    *result = (dp_simulation_t){.struct_size = sizeof(*result)};
    return dp_simulate(program, &costs, 0, result);
}

/* ---- after the last step ---- */

typedef struct figures {
    double window, bubble, least_bubble, most_bubble; /* ns; shares of the window */
    double comm_busy, comm_hidden;                    /* ns, mean over ranks */
} figures_t;

static dp_status_t measure(const dp_timeline_t *timeline, int32_t step, figures_t *f)
{
    const int32_t ranks = dp_timeline_ranks(timeline);

    *f = (figures_t){.least_bubble = 1};
    for (int32_t r = 0; r < ranks; r++) {
        dp_rank_report_t report = {.struct_size = sizeof(report)};
        const dp_status_t status = dp_timeline_report(timeline, r, step, 1, &report);
        double share;
        if (status < 0)
            return status;
        share = (double)report.bubble / fmax(1, (double)report.window);
        f->window += (double)report.window / ranks;
        f->bubble += share / ranks;
        f->least_bubble = fmin(f->least_bubble, share);
        f->most_bubble = fmax(f->most_bubble, share);
        f->comm_busy += (double)report.comm_busy / ranks;
        f->comm_hidden += (double)report.comm_hidden / ranks;
    }
    return DP_OK;
}

static void print_schedule(const trainer_t *t, const figures_t *f, const stage_costs_t *c, const dp_simulation_t *sim,
                           FILE *to)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    double simulated = 0;

    for (int32_t r = 0; r < sim->ranks; r++)
        simulated += sim->bubble[r] / sim->step_time / sim->ranks;
    fprintf(to,
            "step        measured %.1f ms; simulated %.1f ms, with F %.2f ms, I %.2f ms, W %.2f ms a stage "
            "as measured\n",
            f->window / 1e6, sim->step_time / 1e6, c->f / 1e6, c->i / 1e6, c->w / 1e6);
    fprintf(to, "bubble      measured %.1f %% of the step (ranks: %.1f to %.1f %%); simulated %.1f %%", 100 * f->bubble,
            100 * f->least_bubble, 100 * f->most_bubble, 100 * simulated);
    if (isfinite(sim->formula_bubble))
        fprintf(to, "; published formula %.1f %%", 100 * sim->formula_bubble / sim->step_time);
    fprintf(to,
            "\noverlap     communication on the lanes %.1f ms a step and rank, %.1f %% of it beside "
            "computation\n",
            f->comm_busy / 1e6, f->comm_busy > 0 ? 100 * f->comm_hidden / f->comm_busy : 0.0);
    if (dp_group_size(t->group) > cores)
        fprintf(to, "            (%d ranks took turns on %ld cores: spans hold the time they waited for one)\n",
                dp_group_size(t->group), cores);
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
        fprintf(to, "memory      announced %.1f MiB for all ranks; this process grew by %.1f MiB at its peak\n",
                announced / MIB, most_grown / MIB);
    else
        fprintf(to,
                "memory      announced %.1f MiB for the largest rank, %.1f MiB in all; at their peak "
                "processes had grown\n"
                "            by %.1f MiB at most, %.1f MiB in all (code, stacks and BLAS included; shared "
                "pages count twice)\n",
                most_announced / MIB, announced / MIB, most_grown / MIB, grown / MIB);
}

static double mean_of(const double *values, int64_t from, int64_t to)
{
    double sum = 0;

    for (int64_t i = from; i < to; i++)
        sum += values[i] / (double)(to - from);
    return sum;
}

static double median_of(const double *values, int64_t from, int64_t to)
{
    double below = 0;

    for (int64_t i = from; i < to; i++) {
        int64_t less = 0, same = 0;
        for (int64_t j = from; j < to; j++) {
            less += values[j] < values[i];
            same += values[j] == values[i];
        }
        if (less <= (to - from) / 2 && less + same > (to - from) / 2)
            below = values[i];
    }
    return below;
}

/* Steps from..to - 1: how even, how long. */
static void print_stretch(const history_t *h, int64_t from, int64_t to, FILE *to_file)
{
    fprintf(to_file, "%.3f in steps %lld to %lld (median step %.1f ms)", mean_of(h->imbalance, from, to),
            (long long)from + 1, (long long)to, 1e3 * median_of(h->step_seconds, from, to));
}

/* Before the first change of placement and after it. */
static void print_balance(const trainer_t *t, const history_t *h, FILE *to)
{
    const balance_t *b = &t->balance;
    int64_t replicas = 0, first = h->steps;
    double sent = 0;

    if (balance_count(b) == 0)
        return;
    for (int64_t i = 0; i < b->nrecords; i++) {
        replicas += b->records[i].replicas;
        sent += b->records[i].sent;
        if (b->records[i].replicas > 0 && b->records[i].steps < first)
            first = b->records[i].steps;
    }
    if (t->options->replicas > 0)
        fprintf(to,
                "experts     %d replicas of %d on %d ranks; %lld plans, %lld replicas moved, %.2f MiB sent between "
                "ranks\n",
                b->shape.replicas, b->shape.experts, b->shape.gpus, (long long)b->nrecords, (long long)replicas,
                sent / MIB);
    fprintf(to, "balance     max/mean tokens on the ranks of a layer: ");
    print_stretch(h, 0, first, to);
    if (first < h->steps) {
        fprintf(to, ",\n            ");
        print_stretch(h, first, h->steps, to);
    }
    fprintf(to, "\n");
}

static void print_training(const trainer_t *t, const history_t *h, FILE *to)
{
    const double bytes = (double)h->steps * t->microbatches * t->replicas * (double)t->tokens;
    const int64_t tail = h->steps < 10 ? h->steps : 10;
    double last = 0;

    for (int64_t i = h->steps - tail; i < h->steps; i++)
        last += h->loss[i] / (double)tail;
    fprintf(to, "\ntrained     %lld steps, %.0f tokens in %.1f s: %.0f tokens/s\n", (long long)h->steps, bytes,
            h->seconds, bytes / h->seconds);
    fprintf(to, "loss        %.4f at first, %.4f at last (mean of %lld steps)", h->loss[0], last, (long long)tail);
    if (h->nvalid > 0)
        fprintf(to, ", %.4f on held-out text", h->valid_loss[h->nvalid - 1]);
    fprintf(to, "; guessing by frequency %.4f (nats per byte)\n", h->frequency_loss);
}

dp_status_t report_results(const trainer_t *t, const history_t *h, const dp_timeline_t *timeline,
                           const memory_use_t *all, FILE *to)
{
    stage_costs_t costs = {0};
    dp_simulation_t simulation;
    figures_t figures;
    int32_t steps, last = last_step(timeline, &steps);
    dp_status_t status;

    print_training(t, h, to);
    status = measure(timeline, last, &figures);
    if (status == DP_OK)
        status = measure_costs(t, timeline, steps, &costs);
    if (status == DP_OK)
        status = simulate(t, &costs, &simulation);
    if (status == DP_OK) {
        print_schedule(t, &figures, &costs, &simulation, to);
        dp_simulation_clear(&simulation);
        status = report_hosts(t, timeline, to);
        print_balance(t, h, to);
        print_memory(t, all, to);
    }
    free(costs.scale);
    return status;
}

/* ---- files ---- */

static dp_status_t open_file(const char *path, FILE **file_out)
{
    *file_out = fopen(path, "w");
    return *file_out != NULL ? DP_OK : dp_fail(DP_ERR_IO, "%s: %s", path, strerror(errno));
}

static dp_status_t close_file(const char *path, FILE *file, dp_status_t status)
{
    const int failed = ferror(file);

    if (fclose(file) != 0 || failed)
        return dp_fail(DP_ERR_IO, "%s: %s", path, strerror(errno));
    return status;
}

dp_status_t losses_write(const history_t *h, const char *path)
{
    FILE *f;
    dp_status_t status = open_file(path, &f);
    int64_t v = 0;

    if (status < 0)
        return status;
    fputs("# step, loss, norm of the gradient, held-out loss\n", f);
    for (int64_t i = 0; i < h->steps; i++) {
        fprintf(f, "%lld %a %a", (long long)i + 1, h->loss[i], h->norm[i]);
        if (v < h->nvalid && h->valid_step[v] == i + 1)
            fprintf(f, " %a", h->valid_loss[v++]);
        fputs("\n", f);
    }
    return close_file(path, f, status);
}

static dp_status_t write_text(void *user, const char *text, size_t bytes)
{
    return fwrite(text, 1, bytes, user) == bytes ? DP_OK : dp_fail(DP_ERR_IO, "write: %s", strerror(errno));
}

dp_status_t trace_write(const dp_timeline_t *timeline, const char *path)
{
    FILE *f;
    dp_status_t status = open_file(path, &f);

    if (status < 0)
        return status;
    status = dp_timeline_write_chrome(timeline, write_text, f);
    return close_file(path, f, status);
}

dp_status_t costs_write(const trainer_t *t, const dp_timeline_t *timeline, const char *path)
{
    dp_measured_costs_t measured = {.struct_size = sizeof(measured)};
    FILE *f;
    dp_status_t status = open_file(path, &f);

    if (status < 0)
        return status;
    status = dp_costs_measure(timeline, dp_pipeline_program(t->pipeline)->schedule, &measured);
    if (status == DP_OK)
        status = dp_measured_costs_write(&measured, write_text, f);
    dp_measured_costs_clear(&measured);
    return close_file(path, f, status);
}
