/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * host.c: a trainer of ABI 2.0: MoE layers out of plugins learn to turn rows around. Prints every loss and norm to the last
 * bit on rank 0.   dualpipe run -n N -- host EP DEVICE COMM ATTENTION MOE [PROFILER] */
#include <dualpipe/dualpipe.h>
#if __has_include(<dualpipe/run.h>)
#include <dualpipe/moe_layers.h>
#include <dualpipe/plan.h>
#include <dualpipe/run.h>
#endif

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, SEQUENCE = 6, HIDDEN = 8, EXPERTS = 4, M = 8, STEPS = 4, COUNT = SEQUENCE * HIDDEN };

typedef struct model {
    const char *attention_name, *moe_name;
    const dp_attention_vt_t *attention_vt;
    const dp_moe_vt_t *moe_vt;
    dp_attention_t *attention;
    dp_moe_t *moe;
    dp_moe_layer_t *layers[2 * LAYERS];
    dp_stage_t *stages[4];
    int nlayers, nstages;
} model_t;

/* ---- the ends of the model ---- */

static dp_status_t enter(void *self, const dp_segment_call_t *call)
{
    (void)self;
    memcpy(call->y, call->input, COUNT * sizeof(double));
    return DP_OK;
}

static dp_status_t enter_backward(void *self, const dp_segment_call_t *call)
{
    (void)self, (void)call; /* nothing before it, no parameters */
    return DP_OK;
}

static dp_status_t leave(void *self, const dp_segment_call_t *call)
{
    const double *x = call->x, *target = call->target;
    double *difference = call->saved;

    (void)self;
    for (int i = 0; i < COUNT; i++) {
        difference[i] = x[i] - target[i];
        *call->loss += 0.5 * difference[i] * difference[i];
    }
    return DP_OK;
}

static dp_status_t leave_backward(void *self, const dp_segment_call_t *call)
{
    const double *difference = call->saved;
    double *dx = call->dx;

    (void)self;
    for (int i = 0; i < COUNT; i++)
        dx[i] = call->loss_scale * difference[i];
    return DP_OK;
}

/* ---- stages ---- */

static dp_status_t table_of(const char *name, const char *id, size_t least, const void **table_out)
{
    const dp_plugin_t *plugin;
    dp_status_t status = dp_plugin_load(name, &plugin);

    return status < 0 ? status : dp_plugin_interface(plugin, id, least, table_out);
}

static dp_status_t open_plugins(model_t *m, const dp_build_context_t *at)
{
    const dp_block_shape_t shape = {
        .struct_size = sizeof(shape), .dtype = DP_F64, .batch = 1, .sequence = SEQUENCE, .hidden = HIDDEN};
    const dp_attention_config_t attention = {.struct_size = sizeof(attention),
                                             .shape = &shape,
                                             .heads = 2,
                                             .kv_heads = 1,
                                             .head_dim = 4,
                                             .device_vt = at->device_vt,
                                             .device = at->device};
    const dp_moe_config_t moe = {.struct_size = sizeof(moe),
                                 .shape = &shape,
                                 .experts = EXPERTS,
                                 .top_k = 2,
                                 .expert_hidden = 8,
                                 .shared_experts = 1,
                                 .gate = DP_GATE_SIGMOID,
                                 .normalize = 1,
                                 .aux_alpha = 0.01f,
                                 .device_vt = at->device_vt,
                                 .device = at->device,
                                 .comm_vt = at->comm_vt,
                                 .comm = at->expert_comm,
                                 .comm_rank = at->expert_rank,
                                 .comm_size = at->expert_size};
    const void *table = NULL;
    dp_status_t status = table_of(m->attention_name, DP_IFACE_ATTENTION, DP_ATTENTION_VT_MIN, &table);

    if (status < 0)
        return status;
    m->attention_vt = table;
    status = table_of(m->moe_name, DP_IFACE_MOE, DP_MOE_VT_MIN, &table);
    if (status < 0)
        return status;
    m->moe_vt = table;
    status = m->attention_vt->open(at->host, &attention, &m->attention);
    return status < 0 ? status : m->moe_vt->open(at->host, &moe, &m->moe);
}

static dp_status_t build(void *user, const dp_build_context_t *at, int32_t stage, int32_t stages,
                         dp_stage_t **stage_out)
{
    static const dp_segment_t first = {
        .struct_size = sizeof(first), .name = "enter", .host_forward = enter, .host_backward_input = enter_backward};
    static const dp_segment_t last = {
        .struct_size = sizeof(last), .name = "leave", .host_forward = leave, .host_backward_input = leave_backward};
    const dp_block_sizes_t sizes = {.struct_size = sizeof(sizes), .saved_bytes = COUNT * sizeof(double)};
    model_t *m = user;
    dp_part_t parts[LAYERS + 2];
    char prefixes[LAYERS][24];
    int n = 0;
    dp_status_t status = m->attention_vt == NULL ? open_plugins(m, at) : DP_OK;

    if (stage == 0)
        parts[n++] = (dp_part_t){.struct_size = sizeof(dp_part_t), .nsegments = 1, .segments = &first};
    for (int layer = LAYERS * stage / stages; layer < LAYERS * (stage + 1) / stages && status >= 0; layer++, n++) {
        parts[n] = (dp_part_t){.struct_size = sizeof(dp_part_t)};
        status = dp_moe_layer_part(m->attention_vt, m->attention, m->moe_vt, m->moe, DP_F64, COUNT * sizeof(double),
                                   &m->layers[m->nlayers], &parts[n]);
        m->nlayers += status >= 0;
        snprintf(prefixes[layer % LAYERS], sizeof(prefixes[0]), "layer%d.", layer);
        parts[n].prefix = prefixes[layer % LAYERS];
    }
    if (stage == stages - 1)
        parts[n++] = (dp_part_t){.struct_size = sizeof(dp_part_t), .nsegments = 1, .segments = &last, .sizes = &sizes};
    if (status >= 0)
        status = dp_stage_create(parts, n, COUNT * sizeof(double), DP_F64, stage_out);
    if (status >= 0)
        m->stages[m->nstages++] = *stage_out;
    return status;
}

/* No work runs any more, device and comm are still open. */
static void unbuild(void *user)
{
    model_t *m = user;

    if (m->moe != NULL)
        m->moe_vt->close(m->moe);
    if (m->attention != NULL)
        m->attention_vt->close(m->attention);
}

/* ---- training ---- */

/* A number in -1 ... 1 that depends on the parameter's name alone: all copies begin alike. */
static double noise(const char *name, size_t i)
{
    uint32_t state = 2166136261u + (uint32_t)i * 2654435761u;

    for (; *name != '\0'; name++)
        state = (state ^ (unsigned char)*name) * 16777619u;
    state ^= state >> 15;
    state *= 2246822519u;
    state ^= state >> 13;
    return (double)state / 2147483648.0 - 1;
}

static void begin(const dp_chunk_view_t *chunk)
{
    double *params = chunk->params;

    for (uint32_t k = 0; k < chunk->nparams; k++) {
        const dp_param_t *p = &chunk->param_list[k];

        for (size_t i = 0; i < p->count; i++)
            params[p->offset + i] =
                p->kind == DP_PARAM_MATRIX ? noise(p->name, i) / sqrt((double)p->fan_in) : (double)p->start;
    }
}

static void learn(const dp_chunk_view_t *chunk)
{
    const double *grads = chunk->grads;
    double *params = chunk->params;

    for (uint32_t k = 0; k < chunk->nparams; k++) {
        const dp_param_t *p = &chunk->param_list[k];

        for (size_t i = 0; i < p->count && p->kind != DP_PARAM_ROUTER_BIAS; i++)
            params[p->offset + i] -= 0.05 * grads[p->offset + i];
    }
}

/* The norm of the gradient, each parameter once, added up by hand. */
static dp_status_t norm_of(dp_pipeline_t *pipeline, double *norm_out)
{
    dp_chunk_view_t chunk = {.struct_size = sizeof(chunk)};
    double squares = 0;
    dp_status_t status = DP_OK;

    for (int c = 0; c < dp_pipeline_chunks(pipeline) && status >= 0; c++) {
        status = dp_pipeline_chunk(pipeline, c, &chunk);
        for (uint32_t k = 0; k < chunk.nparams && status >= 0; k++) {
            const dp_param_t *p = &chunk.param_list[k];
            const double *g = (const double *)chunk.grads + p->offset;
            const int mine = p->sharded ? chunk.primary_experts : chunk.primary;

            for (size_t i = 0; i < p->count && mine && p->kind != DP_PARAM_ROUTER_BIAS; i++)
                squares += g[i] * g[i];
        }
    }
    if (status >= 0)
        status = dp_pipeline_sum(pipeline, &squares, 1);
    *norm_out = sqrt(squares);
    return status;
}

static dp_status_t train(dp_pipeline_t *pipeline, int rank)
{
    static double data[M][COUNT], wanted[M][COUNT];
    const void *inputs[M], *targets[M];
    dp_step_t step = {.struct_size = sizeof(step), .inputs = inputs, .targets = targets};
    dp_memory_report_t memory = {.struct_size = sizeof(memory)};
    dp_chunk_view_t chunk = {.struct_size = sizeof(chunk)};
    dp_status_t status = dp_pipeline_memory(pipeline, &memory);
    double norm = 0, by_hand = 0;

    for (int m = 0; m < M; m++) {
        inputs[m] = data[m], targets[m] = wanted[m];
        for (int i = 0; i < COUNT; i++)
            data[m][i] = wanted[m][COUNT - 1 - i] = noise("data", (size_t)(m * COUNT + i));
    }
    for (int n = 0; n < STEPS && status >= 0; n++) {
        for (int c = 0; c < dp_pipeline_chunks(pipeline) && status >= 0; c++) {
            status = dp_pipeline_chunk(pipeline, c, &chunk);
            if (status >= 0 && n == 0)
                begin(&chunk);
            else if (status >= 0)
                learn(&chunk);
        }
        if (status >= 0)
            status = dp_pipeline_step(pipeline, &step);
        if (status >= 0)
            status = dp_pipeline_gradient_norm(pipeline, &norm);
        if (status >= 0)
            status = norm_of(pipeline, &by_hand);
        if (status >= 0 && !(fabs(norm - by_hand) <= 1e-9 * norm))
            status = dp_fail(DP_ERR_NUMERIC, "the norm of the gradient is %g, by hand %g", norm, by_hand);
        if (status >= 0 && rank == 0)
            printf("step %d  loss %a  auxiliary %a  norm %a\n", n, step.loss, step.aux_loss, norm);
    }
    if (status >= 0 && (memory.total == 0 || norm == 0 || !isfinite(norm)))
        status = dp_fail(DP_ERR_NUMERIC, "the memory report or the norm of the gradient makes no sense");
    return status;
}

/* What the last step looked like, against what the simulator makes of the same program. */
static dp_status_t report(dp_pipeline_t *pipeline)
{
    const dp_costs_t costs = {.struct_size = sizeof(costs), .f = 1, .i = 1, .w = 1};
    dp_verify_report_t verified = {.struct_size = sizeof(verified)};
    dp_rank_report_t figures = {.struct_size = sizeof(figures)};
    dp_simulation_t simulated = {.struct_size = sizeof(simulated)};
    const dp_program_t *program = dp_pipeline_program(pipeline);
    dp_timeline_t *timeline = NULL;
    dp_status_t status = dp_pipeline_timeline(pipeline, &timeline);

    if (status >= 0 && timeline != NULL)
        status = dp_timeline_report(timeline, 0, -1, 0, &figures);
    if (status >= 0)
        status = dp_program_verify(program, &verified);
    if (status >= 0)
        status = dp_simulate(program, &costs, 0, &simulated);
    if (status >= 0 && ((timeline != NULL && figures.compute_busy <= 0) || verified.operations <= 0 ||
                        !(simulated.step_time >= 3 * M / 2)))
        status = dp_fail(DP_ERR_NUMERIC, "a report makes no sense");
    dp_simulation_clear(&simulated);
    dp_timeline_free(timeline);
    return status;
}

int main(int argc, char **argv)
{
    dp_group_options_t join = {.struct_size = sizeof(join), .join_seconds = 60};
    dp_device_config_t device = {.struct_size = sizeof(device), .queue_length = 256};
    dp_pipeline_options_t options = {.struct_size = sizeof(options),
                                     .microbatches = M,
                                     .boundary_bytes = COUNT * sizeof(double),
                                     .dtype = DP_F64,
                                     .device_config = &device,
                                     .build = build,
                                     .unbuild = unbuild};
    dp_pipeline_t *pipeline = NULL;
    dp_group_t *group = NULL;
    model_t model = {0};
    dp_status_t status;

    if (argc < 6) {
        fprintf(stderr, "usage: host EP DEVICE COMM ATTENTION MOE [PROFILER]\n");
        return 2;
    }
    model.attention_name = argv[4];
    model.moe_name = argv[5];
    status = dp_group_join(&join, &group);
    options.group = group;
    options.ep = atoi(argv[1]);
    options.device = argv[2];
    options.comm = argv[3];
    options.profiler = argv[6]; /* NULL behind the last */
    options.user = &model;
    if (status >= 0)
        status = dp_pipeline_open(&options, &pipeline);
    if (status >= 0)
        status = train(pipeline, dp_group_rank(group));
    if (status >= 0)
        status = report(pipeline);
    if (status < 0)
        fprintf(stderr, "host: %s (%s)\n", dp_last_error(), dp_status_name(status));
    dp_pipeline_close(pipeline);
    for (int i = 0; i < model.nstages; i++)
        dp_stage_free(model.stages[i]);
    for (int i = 0; i < model.nlayers; i++)
        dp_moe_layer_free(model.layers[i]);
    dp_group_leave(group);
    return status < 0;
}
