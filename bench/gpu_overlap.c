/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gpu_overlap.c: how much of an F&B pair's communication is hidden behind its computation, and what
 * that costs the computation. Two stages of MoE layers on one rank run dualpipev, so that every
 * pair is the forward of one stage beside the backward of the other; the expert group is the rank
 * itself: dispatch and combine move every row through the transport's buffers on this device's
 * memory (no link: the bytes cost HBM bandwidth instead, which real links would not).
 *
 *   bench/gpu_overlap [--device NAME] [--comm NAME] [--attention NAME] [--moe NAME]
 *                     [--dtype f32|f64|bf16] [--comm-sms N] [--layers N] [--tokens N] [--hidden N]
 *                     [--heads N] [--head-dim N] [--value-dim N] [--q-rank N] [--kv-rank N]
 *                     [--rope-dim N] [--experts N] [--top-k N] [--expert-hidden N]
 *                     [--microbatches N] [--steps N] [--graph 0|1] [--open 0|1] [--trace FILE]
 *
 * Defaults: a GPU, DeepSeek-V3's layer with fewer experts, 4 layers a stage, or 2 or 1 where the
 * device has no memory for more (beside the parameters there are two gradients in fp32 a stage).
 * Attention is latent as theirs, ranks 1536 and 512: full projections have three times its
 * products, behind which communication hides all too well. --kv-rank 0 has those. --open 1 opens
 * what would be measured, so that all memory is taken, and ends. Exit status 77: no such device.
 * The figures are those of DeepSeek's published trace (96.3 % of the all-to-all hidden, compute
 * lane busy 96.4 %):
 *   hidden    time in which an all-to-all of a pair and a compute segment ran, as a share of
 *             the all-to-all's; the first pair's first lies behind the segment before the pair
 *   busy      compute lane, as a share of the time from the first pair's start to the last one's
 *             end
 *   host      CPU time of the calling thread in a step, as a share of the step (it also polls for
 *             the end)
 *   slowdown  compute segments inside pairs, against the same segments run alone (1f1b, one
 *             micro-batch: nothing
 *   overlaps) */
#include <dualpipe/advanced.h>
#include <dualpipe/dualpipe.h>
#include <dualpipe/moe_layers.h>
#include <dualpipe/plan.h>
#include <dualpipe/run.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NO_DEVICE = 77, PATTERN = 1048573 };

typedef struct settings {
    const char *device, *comm, *attention, *moe, *dtype_name, *trace;
    long comm_sms, layers, tokens, hidden, heads, head_dim, value_dim, q_rank, kv_rank, rope_dim, experts, top_k,
        expert_hidden, microbatches, steps, graph, open;
    dp_dtype_t dtype;
} settings_t;

typedef struct bench {
    settings_t set;
    dp_group_t *group;
    dp_build_context_t context;
    const dp_attention_vt_t *attention_vt;
    dp_attention_t *attention;
    const dp_moe_vt_t *moe_vt;
    dp_moe_t *moe;
    dp_moe_layer_t *layers[128];
    dp_stage_t *stages[2];
    int nlayers, nstages;
    double host_seconds, step_seconds; /* of all timed steps */
    /* device memory: every input, and every gradient of an output */
    void *boundary;
    dp_stream_t *stream;
} bench_t;

static int complain(dp_status_t status)
{
    fprintf(stderr, "gpu_overlap: %s (%s)\n", dp_last_error(), dp_status_name(status));
    return strstr(dp_last_error(), "no CUDA device") != NULL ? NO_DEVICE : 1;
}

static size_t boundary_bytes(const settings_t *set)
{
    return (size_t)set->tokens * (size_t)set->hidden * dp_dtype_bytes(set->dtype);
}

/* ---- values ---- */

/* Even on [-1, 1) times `size`. */
static double draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (1 << 23) - 1;
}

static dp_status_t upload(bench_t *b, void *to, const void *from, size_t bytes)
{
    dp_status_t status = b->context.device_vt->copy(b->stream, to, from, bytes);

    return status < 0 ? status : b->context.device_vt->synchronize(b->stream, -1);
}

/* A million numbers, again and again: the host would be minutes at ten billion, and have to hold
 * them. */
static dp_status_t fill_params(bench_t *b, const dp_chunk_view_t *view)
{
    const size_t element = dp_dtype_bytes(b->set.dtype);
    char *values = calloc(PATTERN, element);
    uint64_t state = (uint64_t)view->stage + 1;
    dp_status_t status = DP_OK;

    if (values == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d parameters", PATTERN);
    for (uint32_t i = 0; i < view->nparams && status == DP_OK; i++) {
        const dp_param_t *param = &view->param_list[i];
        const double size = param->fan_in > 0 ? __builtin_sqrt(3.0 / param->fan_in) : 0;
        const size_t drawn = param->count < PATTERN ? param->count : PATTERN;

        for (size_t k = 0; k < drawn; k++)
            dp_number_set(b->set.dtype, values, k,
                          param->kind == DP_PARAM_MATRIX ? size * draw(&state) : (double)param->start);
        for (size_t k = 0; k < param->count && status == DP_OK; k += PATTERN)
            status = upload(b, (char *)view->params + (param->offset + k) * element, values,
                            (param->count - k < PATTERN ? param->count - k : PATTERN) * element);
    }
    free(values);
    return status;
}

/* ---- the stages: where data come from, layers, where gradients come from ---- */

static dp_status_t take_input(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const bench_t *b = self;

    return b->context.device_vt->copy(s, call->y, call->input, boundary_bytes(&b->set));
}

static dp_status_t give_gradient(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const bench_t *b = self;

    return b->context.device_vt->copy(s, call->dx, call->target, boundary_bytes(&b->set));
}

static dp_status_t nothing(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    (void)self, (void)call, (void)s;
    return DP_OK;
}

static dp_part_t end_part(bench_t *b, int first, dp_segment_t *segment)
{
    *segment = (dp_segment_t){.struct_size = sizeof(*segment),
                              .name = first ? "input" : "gradient",
                              .self = b,
                              .forward = first ? take_input : nothing,
                              .backward_input = first ? nothing : give_gradient};
    return (dp_part_t){.struct_size = sizeof(dp_part_t), .nsegments = 1, .segments = segment};
}

static dp_status_t load(const char *kind, const char *name, const char *id, size_t size, const void **table_out)
{
    const dp_plugin_t *plugin;
    char full[128];
    dp_status_t status;

    snprintf(full, sizeof(full), "%s_%s", kind, name);
    status = dp_plugin_load(strchr(name, '/') != NULL ? name : full, &plugin);
    return status < 0 ? status : dp_plugin_interface(plugin, id, size, table_out);
}

static dp_status_t open_blocks(bench_t *b, const dp_build_context_t *context)
{
    const settings_t *set = &b->set;
    const dp_block_shape_t shape = {sizeof(shape), set->dtype, 1, (uint32_t)set->tokens, (uint32_t)set->hidden, 0};
    const dp_attention_config_t attention = {
        .struct_size = sizeof(attention),
        .shape = &shape,
        .heads = (uint32_t)set->heads,
        .kv_heads = set->kv_rank > 0 ? 0 : (uint32_t)set->heads,
        .head_dim = (uint32_t)set->head_dim,
        .value_dim = (uint32_t)set->value_dim,
        .q_rank = set->kv_rank > 0 ? (uint32_t)set->q_rank : 0,
        .kv_rank = (uint32_t)set->kv_rank,
        .rope_dim = set->kv_rank > 0 ? (uint32_t)set->rope_dim : 0,
        .device_vt = context->device_vt,
        .device = context->device,
    };
    const dp_moe_config_t moe = {
        .struct_size = sizeof(moe),
        .shape = &shape,
        .experts = (uint32_t)set->experts,
        .top_k = (uint32_t)set->top_k,
        .expert_hidden = (uint32_t)set->expert_hidden,
        .shared_experts = 1,
        .gate = DP_GATE_SIGMOID,
        .normalize = 1,
        .device_vt = context->device_vt,
        .device = context->device,
        .comm_vt = context->comm_vt,
        .comm = context->expert_comm,
        .comm_rank = context->expert_rank,
        .comm_size = context->expert_size,
    };
    const void *table;
    dp_status_t status = load("attention", set->attention, DP_IFACE_ATTENTION, sizeof(dp_attention_vt_t), &table);

    b->context = *context;
    if (status == DP_OK) {
        b->attention_vt = table;
        status = b->attention_vt->open(context->host, &attention, &b->attention);
    }
    if (status == DP_OK)
        status = load("moe", set->moe, DP_IFACE_MOE, sizeof(dp_moe_vt_t), &table);
    if (status == DP_OK) {
        b->moe_vt = table;
        status = b->moe_vt->open(context->host, &moe, &b->moe);
    }
    return status;
}

static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                         dp_stage_t **stage_out)
{
    bench_t *b = user;
    dp_part_t parts[66];
    dp_segment_t ends[2];
    char prefix[64][16];
    dp_status_t status = b->moe == NULL ? open_blocks(b, context) : DP_OK;
    int n = 0;

    if (stage == 0)
        parts[n++] = end_part(b, 1, &ends[0]);
    for (int l = 0; l < b->set.layers && status == DP_OK; l++, n++) {
        parts[n].struct_size = sizeof(parts[n]);
        status = dp_moe_layer_part(b->attention_vt, b->attention, b->moe_vt, b->moe, b->set.dtype,
                                   boundary_bytes(&b->set), &b->layers[b->nlayers], &parts[n]);
        b->nlayers += status == DP_OK;
        snprintf(prefix[l], sizeof(prefix[l]), "layer%d.", l);
        parts[n].prefix = prefix[l];
    }
    if (stage == stages - 1)
        parts[n++] = end_part(b, 0, &ends[1]);
    if (status == DP_OK)
        status = dp_stage_create(parts, n, boundary_bytes(&b->set), b->set.dtype, &b->stages[b->nstages]);
    if (status == DP_OK)
        *stage_out = b->stages[b->nstages++];
    return status;
}

static void unbuild(void *user)
{
    bench_t *b = user;

    if (b->boundary != NULL)
        b->context.device_vt->release(b->context.device, b->boundary);
    if (b->stream != NULL)
        b->context.device_vt->stream_close(b->stream);
    if (b->moe != NULL)
        b->moe_vt->close(b->moe);
    if (b->attention != NULL)
        b->attention_vt->close(b->attention);
    b->boundary = NULL;
    b->stream = NULL;
    b->moe = NULL;
    b->attention = NULL;
}

/* ---- one run ---- */

static double seconds_on(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static dp_status_t prepare_data(bench_t *b, dp_pipeline_t *pipeline)
{
    const size_t count = (size_t)b->set.tokens * (size_t)b->set.hidden;
    char *values = calloc(count, dp_dtype_bytes(b->set.dtype));
    uint64_t state = 99;
    dp_chunk_view_t view = {.struct_size = sizeof(view)};
    dp_status_t status = b->context.device_vt->stream_open(b->context.device, DP_LANE_COMPUTE, &b->stream);

    if (values == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a boundary tensor");
    for (size_t i = 0; i < count; i++)
        dp_number_set(b->set.dtype, values, i, draw(&state));
    if (status == DP_OK)
        status = b->context.device_vt->allocate(b->context.device, boundary_bytes(&b->set), &b->boundary);
    if (status == DP_OK)
        status = upload(b, b->boundary, values, boundary_bytes(&b->set));
    free(values);
    for (int32_t c = 0; c < dp_pipeline_chunks(pipeline) && status == DP_OK; c++) {
        status = dp_pipeline_chunk(pipeline, c, &view);
        if (status == DP_OK)
            status = fill_params(b, &view);
    }
    return status;
}

static dp_status_t run_steps(bench_t *b, dp_pipeline_t *pipeline, int microbatches, dp_timeline_t **timeline_out)
{
    const void **data = calloc((size_t)microbatches, sizeof(*data));
    dp_status_t status = data == NULL ? dp_fail(DP_ERR_NOMEM, "no memory for a list") : DP_OK;

    for (int microbatch = 0; microbatch < microbatches && status == DP_OK; microbatch++)
        data[microbatch] = b->boundary;
    for (long step = 0; step < b->set.steps + 2 && status == DP_OK;
         step++) { /* two to warm up; the last ones are kept */
        dp_step_t one = {.struct_size = sizeof(one), .inputs = data, .targets = data, .loss_scale = 1};
        const double cpu = seconds_on(CLOCK_THREAD_CPUTIME_ID), wall = seconds_on(CLOCK_MONOTONIC);
        status = dp_pipeline_step(pipeline, &one);
        if (step >= 2) {
            b->host_seconds += seconds_on(CLOCK_THREAD_CPUTIME_ID) - cpu;
            b->step_seconds += seconds_on(CLOCK_MONOTONIC) - wall;
        }
    }
    free(data);
    return status < 0 ? status : dp_pipeline_timeline(pipeline, timeline_out);
}

/* Opens a pipeline, runs it, takes its timeline and what the lanes got of the device. */
static dp_status_t measure(const settings_t *set, const char *method, int microbatches, dp_timeline_t **timeline_out,
                           uint32_t sms[DP_LANE_COUNT])
{
    bench_t b = {.set = *set};
    const dp_device_config_t device = {.struct_size = sizeof(device), .comm_sms = (uint32_t)set->comm_sms};
    dp_pipeline_options_t options = {
        .struct_size = sizeof(options),
        .method = method,
        .microbatches = microbatches,
        .comm = set->comm,
        .device = set->device,
        .device_config = &device,
        .boundary_bytes = boundary_bytes(set),
        .dtype = set->dtype,
        .trace_steps = (int32_t)set->steps,
        .build = build,
        .user = &b,
        .unbuild = unbuild,
        .graph = (int32_t)set->graph,
        .one_accumulator = 1,
    };
    dp_pipeline_t *pipeline = NULL;
    dp_status_t status = dp_group_local(1, NULL, &b.group);

    if (status < 0)
        return status;
    options.group = b.group;
    status = dp_pipeline_open(&options, &pipeline);
    if (status == DP_OK && set->open) {
        printf("%-10s %3d micro-batches        %ld layers a stage: opened\n", method, microbatches, set->layers);
    } else if (status == DP_OK) {
        status = prepare_data(&b, pipeline);
        if (status == DP_OK)
            status = run_steps(&b, pipeline, microbatches, timeline_out);
        if (status == DP_OK)
            status = b.context.device_vt->partition(b.context.device, sms);
        if (status == DP_OK)
            printf("%-10s %3d micro-batches        step %.1f us, host %.1f us: %.2f %%\n", method, microbatches,
                   1e6 * b.step_seconds / (double)set->steps, 1e6 * b.host_seconds / (double)set->steps,
                   100 * b.host_seconds / b.step_seconds);
    }
    dp_pipeline_close(pipeline);
    for (int i = 0; i < b.nstages; i++)
        dp_stage_free(b.stages[i]);
    for (int i = 0; i < b.nlayers; i++)
        dp_moe_layer_free(b.layers[i]);
    dp_group_leave(b.group);
    return status;
}

/* With as many layers as asked for; of a number that was not given, half as often as the memory
 * asks for it. */
static dp_status_t measure_what_fits(settings_t *set, dp_timeline_t **timeline_out, uint32_t sms[DP_LANE_COUNT])
{
    const bool given = set->layers > 0;
    dp_status_t status;

    for (set->layers = given ? set->layers : 4;; set->layers /= 2) {
        status = measure(set, "dualpipev", (int)set->microbatches, timeline_out, sms);
        if (status != DP_ERR_NOMEM || given || set->layers == 1)
            return status;
        printf("%ld layers a stage are more than the device has memory for: %s\n", set->layers, dp_last_error());
    }
}

/* ---- figures ---- */

/* How long segments of the compute lane, which come one after the other, ran beside this one. */
static int64_t hidden_behind(const dp_span_t *spans, int64_t count, const dp_span_t *one)
{
    int64_t hidden = 0;

    for (int64_t i = 0; i < count; i++)
        if (spans[i].kind == DP_SPAN_COMPUTE && spans[i].lane == DP_LANE_COMPUTE) {
            const int64_t start = spans[i].start_ns > one->start_ns ? spans[i].start_ns : one->start_ns;
            const int64_t end = spans[i].end_ns < one->end_ns ? spans[i].end_ns : one->end_ns;

            hidden += end > start ? end - start : 0;
        }
    return hidden;
}

/* The pairs of one step as a separate timeline, whose report then speaks of nothing else. */
static dp_status_t report_pairs(const dp_span_t *spans, int64_t count, int32_t step, dp_timeline_t *pairs,
                                dp_rank_report_t *sum)
{
    dp_rank_report_t one = {.struct_size = sizeof(one)};
    dp_status_t status = DP_OK;

    dp_timeline_clear(pairs);
    for (int64_t i = 0; i < count && status == DP_OK; i++)
        if (spans[i].kind == DP_SPAN_COMPUTE && spans[i].pair && spans[i].step == step) {
            dp_span_t span = spans[i];
            span.name = 0; /* names are the other timeline's */
            status = dp_timeline_add(pairs, 0, &span);
        }
    if (status == DP_OK)
        status = dp_timeline_report(pairs, 0, -1, 0, &one);
    if (status < 0)
        return status;
    sum->window += one.window;
    sum->compute_busy += one.compute_busy;
    sum->comm_busy += one.comm_busy;
    for (int64_t i = 0; i < count; i++)
        if (spans[i].kind == DP_SPAN_COMPUTE && spans[i].pair && spans[i].step == step &&
            spans[i].lane == DP_LANE_ALL_TO_ALL)
            sum->comm_hidden += hidden_behind(spans, count, &spans[i]);
    return DP_OK;
}

/* Mean length of every (segment's name, pass), of pairs or of whatever ran alone. */
typedef struct mean {
    uint16_t name;
    uint8_t pass, lane;
    double sum;
    int64_t n;
} mean_t;
enum { MEANS = 64 };

static int add_means(const dp_span_t *spans, int64_t count, bool in_pairs, mean_t *means)
{
    int n = 0;

    for (int64_t i = 0; i < count; i++) {
        int m = 0;
        if (spans[i].kind != DP_SPAN_COMPUTE || (spans[i].pair != 0) != in_pairs)
            continue;
        while (m < n && (means[m].name != spans[i].name || means[m].pass != spans[i].pass))
            m++;
        if (m == MEANS)
            continue;
        if (m == n)
            means[n++] = (mean_t){.name = spans[i].name, .pass = spans[i].pass, .lane = spans[i].lane};
        means[m].sum += (double)(spans[i].end_ns - spans[i].start_ns);
        means[m].n++;
    }
    return n;
}

static void compare(const dp_timeline_t *pairs, const dp_timeline_t *alone)
{
    mean_t inside[MEANS], outside[MEANS];
    int64_t count;
    const dp_span_t *spans = dp_timeline_spans(pairs, 0, &count);
    const int n = add_means(spans, count, true, inside);
    double together = 0, apart = 0;
    int m;

    spans = dp_timeline_spans(alone, 0, &count);
    m = add_means(spans, count, false, outside);
    printf("\nsegment               in a pair       alone      ratio\n");
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) {
            const char *name = dp_timeline_name_text(pairs, inside[i].name);
            const double a = inside[i].sum / (double)inside[i].n / 1e3, b = outside[j].sum / (double)outside[j].n / 1e3;
            if (inside[i].pass != outside[j].pass || strcmp(name, dp_timeline_name_text(alone, outside[j].name)) != 0)
                continue;
            printf("%-10s (%s) %11.1f us %9.1f us %10.2f\n", name, dp_op_kind_name((dp_op_kind_t)inside[i].pass), a, b,
                   a / b);
            if (inside[i].lane == DP_LANE_COMPUTE) {
                together += a * (double)inside[i].n;
                apart += b * (double)inside[i].n;
            }
        }
    printf("slowdown of computation in pairs   %.3f\n", together / apart);
}

static dp_status_t report(const settings_t *set, const dp_timeline_t *timeline)
{
    int64_t count;
    const dp_span_t *spans = dp_timeline_spans(timeline, 0, &count);
    dp_rank_report_t sum = {0};
    dp_timeline_t *pairs;
    dp_status_t status = dp_timeline_create(1, count, &pairs);
    int32_t first = INT32_MAX, last = -1;

    if (status < 0)
        return status;
    for (int64_t i = 0; i < count; i++) {
        first = spans[i].step < first ? spans[i].step : first;
        last = spans[i].step > last ? spans[i].step : last;
    }
    for (int32_t step = first; step <= last && status == DP_OK; step++)
        status = report_pairs(spans, count, step, pairs, &sum);
    dp_timeline_free(pairs);
    if (status == DP_OK && sum.comm_busy == 0)
        status = dp_fail(DP_ERR_INVALID, "no all-to-all of a pair is in the timeline");
    if (status < 0)
        return status;
    printf("pairs of %ld layers, %ld steps: window %.1f us, compute %.1f us, all-to-all %.1f us\n", set->layers,
           set->steps, (double)sum.window / 1e3, (double)sum.compute_busy / 1e3, (double)sum.comm_busy / 1e3);
    printf("hidden communication               %.2f %%\n", 100 * (double)sum.comm_hidden / (double)sum.comm_busy);
    printf("compute lane busy                  %.2f %%\n", 100 * (double)sum.compute_busy / (double)sum.window);
    return DP_OK;
}

static dp_status_t write_file(void *user, const char *data, size_t bytes)
{
    return fwrite(data, 1, bytes, user) == bytes ? DP_OK : dp_fail(DP_ERR_IO, "the trace could not be written");
}

static dp_status_t save(const char *path, const dp_timeline_t *timeline)
{
    FILE *f = fopen(path, "w");
    dp_status_t status;

    if (f == NULL)
        return dp_fail(DP_ERR_IO, "%s cannot be written", path);
    status = dp_timeline_write_chrome(timeline, write_file, f);
    return fclose(f) != 0 && status == DP_OK ? dp_fail(DP_ERR_IO, "%s cannot be written", path) : status;
}

/* ---- main ---- */

static int read_settings(int argc, char **argv, settings_t *set)
{
    const char **texts[] = {&set->device, &set->comm, &set->attention, &set->moe, &set->dtype_name, &set->trace};
    long *numbers[] = {&set->comm_sms, &set->layers,    &set->tokens,        &set->hidden,       &set->heads,
                       &set->head_dim, &set->value_dim, &set->q_rank,        &set->kv_rank,      &set->rope_dim,
                       &set->experts,  &set->top_k,     &set->expert_hidden, &set->microbatches, &set->steps,
                       &set->graph,    &set->open};
    static const char *const names[] = {"device",        "comm",         "attention", "moe",      "dtype",   "trace",
                                        "comm-sms",      "layers",       "tokens",    "hidden",   "heads",   "head-dim",
                                        "value-dim",     "q-rank",       "kv-rank",   "rope-dim", "experts", "top-k",
                                        "expert-hidden", "microbatches", "steps",     "graph",    "open"};
    struct option longs[24] = {{0}};
    int c;

    for (int i = 0; i < 23; i++)
        longs[i] = (struct option){names[i], required_argument, NULL, 256 + i};
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c < 256)
            return 0;
        if (c < 256 + 6)
            *texts[c - 256] = optarg;
        else
            *numbers[c - 256 - 6] = strtol(optarg, NULL, 10);
    }
    set->dtype = strcmp(set->dtype_name, "f64") == 0 ? DP_F64 : strcmp(set->dtype_name, "f32") == 0 ? DP_F32 : DP_BF16;
    return optind == argc && set->layers >= 0 && set->layers <= 64 && set->microbatches >= 2 && set->steps >= 1;
}

int main(int argc, char **argv)
{
    settings_t set = {.device = "cuda",
                      .comm = "cuda_ipc",
                      .attention = "cudnn",
                      .moe = "cuda",
                      .dtype_name = "bf16",
                      .comm_sms = 20,
                      .tokens = 4096,
                      .hidden = 7168,
                      .heads = 128,
                      .head_dim = 192,
                      .value_dim = 128,
                      .q_rank = 1536,
                      .kv_rank = 512,
                      .rope_dim = 64,
                      .experts = 16,
                      .top_k = 8,
                      .expert_hidden = 2048,
                      .microbatches = 4,
                      .steps = 3,
                      .dtype = DP_BF16};
    dp_timeline_t *pairs = NULL, *alone = NULL;
    uint32_t sms[DP_LANE_COUNT] = {0};
    dp_status_t status;

    if (!read_settings(argc, argv, &set)) {
        fprintf(stderr, "gpu_overlap: wrong usage; the head of bench/gpu_overlap.c explains\n");
        return 2;
    }
    printf(
        "device %s, comm %s, attention %s, moe %s, %s, %ld tokens, hidden %ld, %ld heads of %ld/%ld%s, %ld experts of "
        "%ld, top %ld\n",
        set.device, set.comm, set.attention, set.moe, set.dtype_name, set.tokens, set.hidden, set.heads, set.head_dim,
        set.value_dim, set.kv_rank > 0 ? ", latent" : ", full projections", set.experts, set.expert_hidden, set.top_k);
    status = measure_what_fits(&set, &pairs, sms);
    if (status < 0 || set.open)
        return status < 0 ? complain(status) : 0;
    printf("SMs (cores)                        compute %u, communication %u\n", sms[DP_LANE_COMPUTE],
           sms[DP_LANE_ALL_TO_ALL]);
    status = report(&set, pairs);
    if (status == DP_OK && set.trace != NULL)
        status = save(set.trace, pairs);
    if (status == DP_OK)
        status = measure(&set, "1f1b", 1, &alone, sms);
    if (status == DP_OK)
        compare(pairs, alone);
    dp_timeline_free(pairs);
    dp_timeline_free(alone);
    return status < 0 ? complain(status) : 0;
}
