/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * inference_posted.c: a forward-only step of MoE layers (attention_cpu, moe_cpu) in the orders of
 * inference over two ranks of an expert group, threads over comm_shm or another transport:
 * transfers on a separate lane, and posted on the compute lane. Two pipelines of one run take
 * turns; figures are medians of steps, and of the ratio of neighbours.
 *
 *   bench/inference_posted [STEPS [TOKENS [HIDDEN [COMM]]]] */
#include <dualpipe/dualpipe.h>
#include <dualpipe/group.h>
#include <dualpipe/moe_layers.h>
#include <dualpipe/schedule.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 2, LAYERS = 4, MICROBATCHES = 8, STEPS_MOST = 400, WARM = 3 };

static int steps = 30, tokens = 128, hidden = 128;
static const char *transport;

typedef struct side {
    int posted;
    dp_schedule_t *schedule;
    dp_pipeline_t *pipeline;
    dp_moe_block_t *block;
    dp_stage_t *stage;
    double seconds[STEPS_MOST];
} side_t;

typedef struct rank {
    dp_group_t *group;
    int order;
    side_t sides[2]; /* on a lane, posted */
    pthread_t thread;
} rank_t;

static void check(dp_status_t status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "inference_posted: %s\n", dp_last_error());
    exit(1);
}

static dp_status_t take(void *self, const dp_segment_call_t *c)
{
    (void)self;
    memcpy(c->y, c->input, (size_t)tokens * (size_t)hidden * sizeof(float));
    return DP_OK;
}

static dp_status_t lose(void *self, const dp_segment_call_t *c)
{
    (void)self;
    *c->loss += (double)*(const float *)c->x;
    return DP_OK;
}

static dp_status_t no_backward(void *self, const dp_segment_call_t *c)
{
    (void)self, (void)c;
    return DP_OK;
}

static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                         dp_stage_t **stage_out)
{
    static const dp_segment_t first = {.struct_size = sizeof(dp_segment_t),
                                       .name = "take",
                                       .host_forward = take,
                                       .host_backward_input = no_backward},
                              last = {.struct_size = sizeof(dp_segment_t),
                                      .name = "lose",
                                      .host_forward = lose,
                                      .host_backward_input = no_backward};
    static const char *const prefixes[LAYERS] = {"layer0.", "layer1.", "layer2.", "layer3."};
    side_t *side = user;
    const uint32_t width = (uint32_t)hidden;
    const dp_block_shape_t shape = {
        .struct_size = sizeof(shape), .dtype = DP_F32, .batch = 1, .sequence = (uint32_t)tokens, .hidden = width};
    const dp_attention_config_t attention = {.struct_size = sizeof(attention),
                                             .shape = &shape,
                                             .heads = width / 16,
                                             .kv_heads = width / 16,
                                             .head_dim = 16,
                                             .apart = 1};
    const dp_moe_config_t moe = {.struct_size = sizeof(moe),
                                 .shape = &shape,
                                 .experts = 8,
                                 .top_k = 2,
                                 .expert_hidden = width,
                                 .shared_experts = 1,
                                 .normalize = 1,
                                 .apart = 1,
                                 .posted = (uint64_t)side->posted};
    const dp_moe_block_options_t options = {
        .struct_size = sizeof(options), .attention_config = &attention, .moe_config = &moe};
    dp_part_t parts[LAYERS + 2];

    (void)stage, (void)stages;
    for (int l = 0; l < LAYERS + 2; l++)
        parts[l] = (dp_part_t){.struct_size = sizeof(parts[l]), .nsegments = 1};
    check(dp_moe_block_open(context, &options, &side->block));
    parts[0].segments = &first;
    for (int l = 1; l <= LAYERS; l++) {
        check(dp_moe_block_part(side->block, NULL, NULL, &parts[l]));
        parts[l].prefix = prefixes[l - 1];
    }
    parts[LAYERS + 1].segments = &last;
    check(dp_stage_create(parts, LAYERS + 2, (size_t)tokens * width * sizeof(float), DP_F32, stage_out));
    side->stage = *stage_out;
    return DP_OK;
}

static void unbuild(void *user)
{
    side_t *side = user;

    dp_moe_block_close(side->block);
}

static float number_of(size_t i)
{
    const unsigned h = (unsigned)i * 2654435761u;

    return (float)((h ^ h >> 15) % 2001) / 1000.0f - 1.0f;
}

static void open_side(rank_t *rank, side_t *side)
{
    const dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = "1f1b", .ranks = 1, .microbatches = MICROBATCHES};
    dp_chunk_view_t view = {.struct_size = sizeof(view)};
    dp_schedule_t *training;
    dp_pipeline_options_t options = {.struct_size = sizeof(options),
                                     .group = rank->group,
                                     .ep = RANKS,
                                     .comm = transport,
                                     .microbatches = MICROBATCHES,
                                     .boundary_bytes = (size_t)tokens * (size_t)hidden * sizeof(float),
                                     .dtype = DP_F32,
                                     .build = build,
                                     .user = side,
                                     .unbuild = unbuild};

    check(dp_schedule_generate(&request, &training));
    check(dp_schedule_forwards(training, rank->order, &side->schedule));
    dp_schedule_free(training);
    options.schedule = side->schedule;
    check(dp_pipeline_open(&options, &side->pipeline));
    check(dp_pipeline_chunk(side->pipeline, 0, &view));
    for (size_t i = 0; i < view.param_count; i++)
        ((float *)view.params)[i] = 0.1f * number_of(i + 1);
}

static double seconds_of_step(rank_t *rank, side_t *side)
{
    static _Thread_local float *x;
    const void *inputs[MICROBATCHES];
    dp_step_t step = {.struct_size = sizeof(step), .inputs = inputs, .targets = inputs, .forward_only = 1};
    struct timespec begin, end;

    if (x == NULL) {
        x = malloc((size_t)tokens * (size_t)hidden * sizeof(*x));
        for (size_t i = 0; x != NULL && i < (size_t)tokens * (size_t)hidden; i++)
            x[i] = number_of(i + 7919 * (size_t)dp_group_rank(rank->group));
    }
    for (int m = 0; m < MICROBATCHES; m++)
        inputs[m] = x;
    check(dp_group_barrier(rank->group));
    clock_gettime(CLOCK_MONOTONIC, &begin);
    check(dp_pipeline_step(side->pipeline, &step));
    check(dp_group_barrier(rank->group));
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
}

static void *run_rank(void *arg)
{
    rank_t *rank = arg;

    for (int i = 0; i < 2; i++)
        open_side(rank, &rank->sides[i]);
    for (int k = -WARM; k < steps; k++)
        for (int i = 0; i < 2; i++) {
            const double seconds = seconds_of_step(rank, &rank->sides[i]);

            if (k >= 0)
                rank->sides[i].seconds[k] = seconds;
        }
    for (int i = 0; i < 2; i++) {
        dp_pipeline_close(rank->sides[i].pipeline);
        dp_stage_free(rank->sides[i].stage);
        dp_schedule_free(rank->sides[i].schedule);
    }
    dp_group_leave(rank->group);
    return NULL;
}

static int compare_seconds(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_of(double *values)
{
    qsort(values, (size_t)steps, sizeof(*values), compare_seconds);
    return values[steps / 2];
}

static void measure(int order, const char *name)
{
    rank_t ranks[RANKS] = {{.order = order}, {.order = order}};
    double ratio[STEPS_MOST], lane, posted;
    dp_group_t *groups[RANKS];

    check(dp_group_local(RANKS, NULL, groups));
    for (int r = 0; r < RANKS; r++) {
        ranks[r].group = groups[r];
        ranks[r].sides[1].posted = 1;
        if (pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]) != 0)
            exit(1);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(ranks[r].thread, NULL);
    for (int k = 0; k < steps; k++)
        ratio[k] = ranks[0].sides[1].seconds[k] / ranks[0].sides[0].seconds[k];
    lane = median_of(ranks[0].sides[0].seconds);
    posted = median_of(ranks[0].sides[1].seconds);
    printf("%-8s %d layers, %d micro-batches of %d tokens, hidden %d, %s: lane %.2f ms, posted %.2f ms: %.3f\n", name,
           LAYERS, MICROBATCHES, tokens, hidden, transport, 1e3 * lane, 1e3 * posted, median_of(ratio));
}

int main(int argc, char **argv)
{
    steps = argc > 1 ? atoi(argv[1]) : steps;
    tokens = argc > 2 ? atoi(argv[2]) : tokens;
    hidden = argc > 3 ? atoi(argv[3]) : hidden;
    transport = argc > 4 ? argv[4] : "shm";
    if (steps < 1 || steps > STEPS_MOST || tokens < 1 || hidden < 16 || hidden % 16 != 0) {
        fprintf(stderr, "usage: inference_posted [STEPS [TOKENS [HIDDEN [COMM]]]]: 1 to %d steps, HIDDEN of 16\n",
                STEPS_MOST);
        return 2;
    }
    (void)setenv("DUALPIPE_PLUGIN_PATH", DP_BENCH_PLUGINS, 0);
    measure(DP_FORWARDS_PREFILL, "prefill");
    measure(DP_FORWARDS_DECODE, "decode");
    return 0;
}
