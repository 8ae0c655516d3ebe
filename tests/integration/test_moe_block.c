/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_moe_block.c: layers from the names of plugins, trained in pipelines: the auxiliary loss that
 * a step returns is that of a reference in double, with one set of bits for all schedules; what
 * cannot be is refused. Attention's output weights are zero, so that a layer is its mixture of
 * experts. Layers cut finer give the same bits, and so do posted transfers, in training and in the
 * orders of inference. Forwards run while experts move. */
#include "conform/reference.h"
#include "tests/support/suite.h"

#include <dualpipe/dualpipe.h>
#include <dualpipe/moe_layers.h>
#include <dualpipe/run.h>
#include <dualpipe/schedule.h>
#include <dualpipe/timeline.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, BATCH = 2, SEQUENCE = 5, TOKENS = BATCH * SEQUENCE, HIDDEN = 8, EXPERTS = 4, FFN = 6, M = 8 };
enum { TENSOR = TOKENS * HIDDEN, RANKS_MOST = 4, PARAMS_MOST = 2048 };

typedef struct layout {
    const char *method;
    int pp, ep;
} layout_t;

typedef struct rank {
    const layout_t *layout;
    dp_group_t *group;
    dp_moe_block_t *block;
    dp_moe_layer_t *layers[LAYERS];
    dp_stage_t *stages[2];
    int nstages, replicas;
    dp_status_t status;
    char message[1024];
    double aux_loss, loss, losses[M];
    uint64_t digest;  /* of all gradients */
    char order[2048]; /* where `noted`: what the compute lane ran, "mlp0" of micro-batch 0 */
    pthread_t thread;
} rank_t;

static double value(unsigned key)
{
    unsigned h = key * 2654435761u;

    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return (double)(h % 20001) / 10000.0 - 1.0;
}

static const dp_block_shape_t shape = {
    .struct_size = sizeof(shape), .dtype = DP_F64, .batch = BATCH, .sequence = SEQUENCE, .hidden = HIDDEN};
static const dp_attention_config_t attention = {
    .struct_size = sizeof(attention), .shape = &shape, .heads = 2, .kv_heads = 1, .head_dim = 4};
static const dp_moe_config_t moe = {.struct_size = sizeof(moe),
                                    .shape = &shape,
                                    .experts = EXPERTS,
                                    .top_k = 2,
                                    .expert_hidden = FFN,
                                    .shared_experts = 1,
                                    .normalize = 1,
                                    .aux_alpha = 0.25f};

/* Of blocks that are opened from now on. */
static const char *ep_name;
static int halves, apart, posted, noted;
static const char *comm;  /* NULL: shm */
static const char *braid; /* not NULL: of the schedule of make_braid, in this order */
static dp_recompute_t recompute;
static int forwards = DP_FORWARDS_SERIAL; /* else steps have forwards alone, in this order */
static int32_t microbatches = M;
static enum { STAY, PLACED, BESIDE, TRAINED } moves; /* of the experts of each layer */

static dp_moe_block_options_t options_of(const dp_moe_config_t *config)
{
    return (dp_moe_block_options_t){.struct_size = sizeof(dp_moe_block_options_t),
                                    .attention_config = &attention,
                                    .moe_config = config,
                                    .ep = ep_name};
}

/* ---- the ends ---- */

static dp_status_t take(void *self, const dp_segment_call_t *c)
{
    (void)self;
    memcpy(c->y, c->input, TENSOR * sizeof(double));
    return DP_OK;
}

static dp_status_t take_back(void *self, const dp_segment_call_t *c)
{
    (void)self, (void)c;
    return DP_OK;
}

static dp_status_t sum(void *self, const dp_segment_call_t *c)
{
    const double *x = c->x, *weight = c->target;

    (void)self;
    for (int i = 0; i < TENSOR; i++)
        *c->loss += x[i] * weight[i];
    return DP_OK;
}

static dp_status_t sum_back(void *self, const dp_segment_call_t *c)
{
    const double *weight = c->target;
    double *dx = c->dx;

    (void)self;
    for (int i = 0; i < TENSOR; i++)
        dx[i] = c->loss_scale * weight[i];
    return DP_OK;
}

static const dp_segment_t first_segment = {
    .struct_size = sizeof(dp_segment_t), .name = "take", .host_forward = take, .host_backward_input = take_back};
static const dp_segment_t last_segment = {
    .struct_size = sizeof(dp_segment_t), .name = "sum", .host_forward = sum, .host_backward_input = sum_back};

static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                         dp_stage_t **stage_out)
{
    rank_t *rank = user;
    dp_part_t parts[LAYERS + 2];
    char prefix[LAYERS][24];
    dp_status_t status = DP_OK;
    int n = 0;

    for (int i = 0; i < LAYERS + 2; i++)
        parts[i] = (dp_part_t){.struct_size = sizeof(parts[i]), .nsegments = 1};
    if (rank->block == NULL) {
        dp_moe_config_t config = moe;
        dp_attention_config_t cut = attention;
        dp_moe_block_options_t options = options_of(&config);

        options.attention_config = &cut;
        config.replicas = (uint32_t)rank->replicas;
        config.apart = (uint32_t)apart;
        config.posted = (uint64_t)posted;
        cut.apart = (uint32_t)halves;
        config.recompute = cut.recompute = recompute;
        status = dp_moe_block_open(context, &options, &rank->block);
    }
    if (stage == 0)
        parts[n++].segments = &first_segment;
    for (int l = stage * LAYERS / stages; l < (stage + 1) * LAYERS / stages && status >= 0; l++, n++) {
        status = dp_moe_block_part(rank->block, NULL, &rank->layers[l], &parts[n]);
        snprintf(prefix[l], sizeof(prefix[l]), "layer%d.", l);
        parts[n].prefix = prefix[l];
    }
    if (stage == stages - 1)
        parts[n++].segments = &last_segment;
    if (status >= 0)
        status = dp_stage_create(parts, n, TENSOR * sizeof(double), DP_F64, stage_out);
    if (status >= 0)
        rank->stages[rank->nstages++] = *stage_out;
    return status;
}

static void unbuild(void *user)
{
    rank_t *rank = user;

    dp_moe_block_close(rank->block);
    rank->block = NULL;
}

/* ---- values: of layer l, element i of the mixture's parameters with all experts ---- */

static double param_value(int layer, size_t i, size_t common)
{
    if (i >= HIDDEN + HIDDEN * EXPERTS && i < HIDDEN + HIDDEN * EXPERTS + EXPERTS)
        return 0; /* the router's bias */
    return (i < HIDDEN ? 1 : 0) + (i < common ? 0.3 : 0.2) * value((unsigned)(layer * PARAMS_MOST + (int)i + 3));
}

static size_t common_params(void)
{
    return HIDDEN + HIDDEN * EXPERTS + EXPERTS + 3 * HIDDEN * FFN;
}

static void fill(const dp_chunk_view_t *view, int replicas)
{
    size_t base = 0, expert = 0;
    int layer = -1, latest = -1;

    for (uint32_t k = 0; k < view->nparams; k++) {
        const dp_param_t *param = &view->param_list[k];
        double *to = (double *)view->params + param->offset;
        char block[16], name[64];

        ck_assert_int_eq(sscanf(param->name, "layer%d.%15[^.].%63s", &layer, block, name), 3);
        if (strcmp(block, "moe") == 0 && strcmp(name, "norm") == 0)
            base = param->offset;
        if (param->sharded && param->expert != latest)
            expert = param->offset;
        latest = param->sharded ? param->expert : -1;
        for (size_t i = 0; i < param->count; i++)
            if (strcmp(block, "moe") == 0)
                to[i] = param_value(
                    layer,
                    !param->sharded
                        ? param->offset - base + i
                        : common_params() + (size_t)(param->expert % (replicas > 0 ? EXPERTS : 64)) * 3 * HIDDEN * FFN +
                              param->offset - expert + i,
                    common_params());
            else
                to[i] = strcmp(name, "wo") == 0 ? 0 : strcmp(name, "norm") == 0 ? 1 : 0.1 * value((unsigned)i);
    }
}

static void input_of(int replica, int microbatch, double *x)
{
    for (int i = 0; i < TENSOR; i++)
        x[i] = value((unsigned)(7919 * replica + 331 * microbatch + i + 1));
}

static void fill_all(const rank_t *rank, dp_pipeline_t *p)
{
    dp_chunk_view_t view = {.struct_size = sizeof(view)};

    for (int32_t c = 0; c < dp_pipeline_chunks(p); c++) {
        ck_assert_int_eq(dp_pipeline_chunk(p, c, &view), DP_OK);
        fill(&view, rank->replicas);
    }
}

static void digest(rank_t *rank, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        rank->digest = (rank->digest ^ ((const uint8_t *)bytes)[i]) * 1099511628211u;
}

static dp_status_t step(rank_t *rank, dp_pipeline_t *p)
{
    static _Thread_local double x[M][TENSOR], weight[TENSOR];
    const void *inputs[M], *targets[M];
    dp_step_t s = {.struct_size = sizeof(s),
                   .inputs = inputs,
                   .targets = targets,
                   .losses = rank->losses,
                   .forward_only = forwards != DP_FORWARDS_SERIAL};
    dp_chunk_view_t view = {.struct_size = sizeof(view)};
    dp_status_t status;

    for (int i = 0; i < TENSOR; i++)
        weight[i] = value((unsigned)(i + 77));
    for (int m = 0; m < M; m++) {
        input_of(dp_group_rank(rank->group) / rank->layout->pp, m, x[m]);
        inputs[m] = x[m], targets[m] = weight;
    }
    status = dp_pipeline_step(p, &s);
    rank->aux_loss = s.aux_loss;
    rank->loss = s.loss;
    for (int32_t c = 0; c < dp_pipeline_chunks(p) && status >= 0; c++) {
        ck_assert_int_eq(dp_pipeline_chunk(p, c, &view), DP_OK);
        if (!s.forward_only)
            digest(rank, view.grads, view.param_count * sizeof(double));
    }
    return status;
}

/* Two steps beside the move of a layer have the losses of before, with parameters that stay. */
static dp_status_t step_beside(rank_t *rank, dp_pipeline_t *p, dp_moe_layer_t *layer, const int32_t *to,
                               const dp_replica_memory_t *memory, const dp_chunk_view_t *view)
{
    const size_t bytes = view->param_count * sizeof(double);
    void *params = malloc(bytes);
    double losses[M];
    dp_status_t status = layer != NULL ? dp_moe_layer_place_begin(layer, to, memory, 1, NULL) : DP_OK;

    memcpy(losses, rank->losses, sizeof(losses));
    memcpy(params, view->params, bytes);
    for (int i = 0; i < 2 && status >= 0; i++)
        if ((status = step(rank, p)) >= 0)
            ck_assert(memcmp(losses, rank->losses, sizeof(losses)) == 0 && memcmp(params, view->params, bytes) == 0);
    if (status >= 0 && layer != NULL)
        status = dp_moe_layer_place_end(layer);
    free(params);
    return status;
}

/* Layer by layer the first placement backwards. The digest is of losses and parameters. */
static dp_status_t step_and_move(rank_t *rank, dp_pipeline_t *p)
{
    const uint32_t local = (uint32_t)(rank->replicas / rank->layout->ep);
    dp_chunk_view_t view = {.struct_size = sizeof(view)};
    int32_t first[32], to[32];
    dp_status_t status = step(rank, p);

    dp_replicas_first_placement(EXPERTS, (uint32_t)rank->replicas, first);
    for (int i = 0; i < rank->replicas; i++)
        to[i] = first[rank->replicas - 1 - i];
    ck_assert_int_eq(dp_pipeline_chunk(p, 0, &view), DP_OK);
    for (int l = 0; l < LAYERS && status >= 0; l++) {
        dp_replica_memory_t memory = {.bytes = sizeof(double) * 3 * HIDDEN * FFN};
        uint32_t found = 0;
        int of;

        for (uint32_t k = view.nparams; k-- > 0;)
            if (view.param_list[k].sharded && sscanf(view.param_list[k].name, "layer%d.", &of) == 1 && of == l) {
                memory.memory = (double *)view.params + view.param_list[k].offset;
                found++;
            }
        ck_assert(found == (rank->layers[l] != NULL ? 3 * local : 0));
        if (moves != PLACED)
            status = step_beside(rank, p, rank->layers[l], to, &memory, &view);
        else if (rank->layers[l] != NULL)
            status = dp_moe_layer_place(rank->layers[l], to, &memory, 1, NULL);
        if (status >= 0)
            status = step(rank, p);
        digest(rank, rank->losses, sizeof(rank->losses));
        digest(rank, view.params, view.param_count * sizeof(double));
    }
    return status;
}

static void note_order(rank_t *rank, dp_pipeline_t *p)
{
    dp_timeline_t *timeline;
    int64_t count;
    const dp_span_t *spans;

    ck_assert_int_eq(dp_pipeline_timeline(p, &timeline), DP_OK);
    spans = dp_timeline_spans(timeline, 0, &count);
    for (int64_t k = 0; k < count; k++)
        if (spans[k].kind == DP_SPAN_COMPUTE && spans[k].lane == DP_LANE_COMPUTE) {
            ck_assert(k == 0 || spans[k].start_ns >= spans[k - 1].start_ns);
            sprintf(rank->order + strlen(rank->order), "%s%d ", dp_timeline_name_text(timeline, spans[k].name),
                    (int)spans[k].microbatch);
        }
    dp_timeline_free(timeline);
}

/* The forwards of the layout's method. */
static dp_status_t make_forwards(const layout_t *layout, dp_schedule_t **forwards_out)
{
    const dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = layout->method, .ranks = layout->pp, .microbatches = microbatches};
    dp_schedule_t *schedule;
    dp_status_t status = dp_schedule_generate(&request, &schedule);

    if (status >= 0)
        status = dp_schedule_forwards(schedule, forwards, forwards_out);
    dp_schedule_free(schedule);
    return status;
}

/* Two forwards and a backward beside each other: three passes that post rows, over exchanges of two
 * slots. */
static dp_status_t make_braid(dp_schedule_t **schedule_out)
{
    static const dp_pass_t passes[] = {{DP_OP_F, 0, 0, 1}, {DP_OP_F, 0, 0, 2}, {DP_OP_B, 0, 0, 0}};
    static const int64_t nops = 6;
    dp_schedule_t *schedule;
    int32_t number = -1;
    dp_status_t status = dp_schedule_create(NULL, DP_PLACE_LINE, 1, microbatches, 1, &nops, schedule_out);

    if (status < 0)
        return status;
    schedule = *schedule_out;
    status = dp_schedule_add_braid(schedule, &(dp_braid_t){3, passes, braid}, &number);
    schedule->ops[0] = (dp_op_t){DP_OP_F, 0, -1, 0, -1};
    schedule->ops[1] = (dp_op_t){DP_OP_BRAID, -1, -1, number, -1};
    for (int32_t m = 1; m < 3; m++)
        schedule->ops[1 + m] = (dp_op_t){DP_OP_B, 0, -1, m, -1};
    schedule->ops[4] = (dp_op_t){DP_OP_F, 0, -1, 3, -1};
    schedule->ops[5] = (dp_op_t){DP_OP_B, 0, -1, 3, -1};
    return status;
}

static void *rank_main(void *arg)
{
    rank_t *rank = arg;
    dp_pipeline_options_t options = {.struct_size = sizeof(options),
                                     .group = rank->group,
                                     .ep = rank->layout->ep,
                                     .comm = comm,
                                     .method = rank->layout->method,
                                     .microbatches = microbatches,
                                     .boundary_bytes = TENSOR * sizeof(double),
                                     .dtype = DP_F64,
                                     .build = build,
                                     .user = rank,
                                     .unbuild = unbuild};
    dp_schedule_t *schedule = NULL;
    dp_pipeline_t *p = NULL;

    if (forwards != DP_FORWARDS_SERIAL)
        ck_assert_int_eq(make_forwards(rank->layout, &schedule), DP_OK);
    if (braid != NULL)
        ck_assert_int_eq(make_braid(&schedule), DP_OK);
    options.schedule = schedule;
    rank->status = dp_pipeline_open(&options, &p);
    if (rank->status >= 0)
        fill_all(rank, p);
    if (rank->status >= 0)
        rank->status = (moves == STAY ? step : step_and_move)(rank, p);
    if (noted && rank->status >= 0)
        note_order(rank, p);
    snprintf(rank->message, sizeof(rank->message), "%s", rank->status < 0 ? dp_last_error() : "");
    dp_pipeline_close(p);
    dp_schedule_free(schedule);
    for (int i = 0; i < rank->nstages; i++)
        dp_stage_free(rank->stages[i]);
    dp_group_leave(rank->group);
    return NULL;
}

static int run(rank_t *ranks, const layout_t *layout, int replicas)
{
    const int n = layout->pp * layout->ep;
    dp_group_t *groups[RANKS_MOST];

    memset(ranks, 0, sizeof(*ranks) * RANKS_MOST);
    ck_assert_int_eq(dp_group_local(n, NULL, groups), DP_OK);
    for (int r = 0; r < n; r++) {
        ranks[r].layout = layout;
        ranks[r].group = groups[r];
        ranks[r].replicas = replicas;
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < n; r++)
        pthread_join(ranks[r].thread, NULL);
    return n;
}

/* ---- against the reference ---- */

static double due_aux_loss(int replica)
{
    static const layer_t like = {.dtype = DP_F64,
                                 .batch = BATCH,
                                 .sequence = SEQUENCE,
                                 .hidden = HIDDEN,
                                 .experts = EXPERTS,
                                 .top_k = 2,
                                 .width = FFN,
                                 .shared = 1,
                                 .normalize = 1,
                                 .aux_alpha = 0.25f};
    double total = 0;

    ck_assert_uint_le(conform_reference_moe_params(&like), PARAMS_MOST);
    ck_assert_uint_eq(conform_reference_moe_common(&like), common_params());
    for (int m = 0; m < M; m++) {
        double x[TENSOR], y[TENSOR];

        input_of(replica, m, x);
        for (int layer = 0; layer < LAYERS; layer++) {
            double params[PARAMS_MOST];
            int chosen[TOKENS * 2];

            for (size_t i = 0; i < conform_reference_moe_params(&like); i++)
                params[i] = param_value(layer, i, common_params());
            total += conform_reference_moe(&like, params, x, y, chosen, false);
            memcpy(x, y, sizeof(x));
        }
    }
    return total;
}

static const layout_t layouts[] = {{"1f1b", 1, 1},      {"1f1b", 4, 1},       {"dualpipe", 2, 1}, {"dualpipe", 4, 1},
                                   {"dualpipev", 2, 1}, {"zb1p", 2, 1},       {"1f1b", 1, 2},     {"dualpipe", 2, 2},
                                   {"1f1b", 2, 2},      {"interleaved", 2, 1}};

START_TEST(the_auxiliary_loss_reaches_the_trainer)
{
    double first[2][2] = {{0}};

    for (size_t k = 0; k < sizeof(layouts) / sizeof(layouts[0]); k++) {
        const layout_t *layout = &layouts[k];
        rank_t ranks[RANKS_MOST];
        const int n = run(ranks, layout, 0);

        for (int r = 0; r < n; r++) {
            double *before = &first[layout->ep - 1][r / layout->pp];

            ck_assert_msg(ranks[r].status == DP_OK, "%s: %s", layout->method, ranks[r].message);
            ck_assert_double_eq_tol(ranks[r].aux_loss, due_aux_loss(r / layout->pp), 1e-12);
            ck_assert_double_gt(ranks[r].aux_loss, 1); /* M * LAYERS of about alpha each */
            if (*before == 0)
                *before = ranks[r].aux_loss;
            ck_assert_msg(memcmp(before, &ranks[r].aux_loss, sizeof(double)) == 0, "%s: %a, before %a", layout->method,
                          ranks[r].aux_loss, *before);
        }
    }
}
END_TEST

START_TEST(replicas_are_opened_with_the_block)
{
    static const layout_t layout = {"dualpipe", 2, 2};
    rank_t plain[RANKS_MOST], replicated[RANKS_MOST];

    run(plain, &layout, 0);
    run(replicated, &layout, 2 * EXPERTS);
    for (int r = 0; r < 4; r++) {
        ck_assert_msg(replicated[r].status == DP_OK, "%s", replicated[r].message);
        ck_assert_double_eq_tol(replicated[r].loss, plain[r].loss, 1e-10);
        ck_assert(memcmp(&replicated[r].aux_loss, &plain[r].aux_loss, sizeof(double)) == 0);
    }
}
END_TEST

/* Named by the options, else by DUALPIPE_PLUGINS; "" is none. */
START_TEST(a_plugin_may_carry_the_rows)
{
    static const layout_t layout = {"dualpipe", 2, 2};
    static const char *const names[][2] = {
        {"exchange", "ep=abacus"}, {NULL, "attention=cpu,ep=exchange"}, {"", "ep=abacus"}};
    rank_t plain[RANKS_MOST], carried[RANKS_MOST];
    const dp_plugin_t *plugin;

    if (dp_plugin_load("ep_exchange", &plugin) < 0) /* not built */
        return;
    run(plain, &layout, 0);
    for (int i = 0; i < 3; i++) {
        ep_name = names[i][0];
        ck_assert_int_eq(setenv("DUALPIPE_PLUGINS", names[i][1], 1), 0);
        run(carried, &layout, 0);
        for (int r = 0; r < 4; r++) {
            ck_assert_msg(carried[r].status == DP_OK, "%s", carried[r].message);
            ck_assert(memcmp(&carried[r].loss, &plain[r].loss, sizeof(double)) == 0);
            ck_assert(memcmp(&carried[r].aux_loss, &plain[r].aux_loss, sizeof(double)) == 0);
        }
    }
}
END_TEST

/* ---- refusals ---- */

static const char *refused; /* what the message of build must hold */
static dp_moe_block_options_t bad;

static dp_status_t build_badly(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                               dp_stage_t **stage_out)
{
    dp_moe_block_t *block = NULL;
    dp_status_t status = dp_moe_block_open(context, &bad, &block);

    (void)user, (void)stage, (void)stages, (void)stage_out;
    ck_assert_int_lt(status, 0);
    ck_assert_ptr_null(block);
    ck_assert_msg(strstr(dp_last_error(), refused) != NULL, "\"%s\" lacks \"%s\"", dp_last_error(), refused);
    return status;
}

static void refuse(const dp_moe_block_options_t *options, const char *words)
{
    dp_pipeline_options_t pipeline = {.struct_size = sizeof(pipeline),
                                      .method = "1f1b",
                                      .microbatches = M,
                                      .boundary_bytes = TENSOR * sizeof(double),
                                      .dtype = DP_F64,
                                      .build = build_badly};
    dp_pipeline_t *p = NULL;

    bad = *options;
    refused = words;
    ck_assert_int_eq(dp_group_local(1, NULL, &pipeline.group), DP_OK);
    ck_assert_int_lt(dp_pipeline_open(&pipeline, &p), 0);
    dp_group_leave(pipeline.group);
}

START_TEST(what_cannot_be_is_refused)
{
    const dp_block_shape_t no_size = {.dtype = DP_F64};
    dp_attention_config_t latent = attention;
    dp_moe_config_t config = moe;
    char heads_only[4096];
    dp_moe_block_options_t options = options_of(&config);

    options.struct_size = 8;
    refuse(&options, "options: struct_size is 8");
    options = options_of(&config);
    options.attention_config = NULL;
    refuse(&options, "attention_config is NULL");
    options = options_of(NULL);
    refuse(&options, "moe_config is NULL");
    options = options_of(&config);
    config.shape = &no_size;
    refuse(&options, "moe_config->shape: struct_size is 0");
    config = moe;
    options.moe = "abacus";
    refuse(&options, "moe_abacus");
    options.moe = "attention_cpu"; /* not of this kind: "moe_attention_cpu" */
    refuse(&options, "moe_attention_cpu");
    options.moe = NULL;
    config.top_k = 99;
    refuse(&options, "top_k");
    config = moe;
    snprintf(heads_only, sizeof(heads_only), "%s/mock_attention_faults.so", getenv("DP_TEST_MOCKS"));
    /* would take these heads and train them, and never see kv_rank */
    options.attention = heads_only;
    latent.kv_rank = 4;
    latent.rope_dim = 2;
    options.attention_config = &latent;
    refuse(&options, "attention_mine: it has no latent attention");
    latent.kv_rank = latent.rope_dim = 0;
    latent.apart = 1; /* as one that does not know it, and goes on with whole calls */
    ck_assert_int_eq(setenv("MOCK_FAULT", "apart_is_dropped", 1), 0);
    refuse(&options, "apart is 1, and the attention plugin is called as for 0");
    ck_assert_int_eq(unsetenv("MOCK_FAULT"), 0);
    options = options_of(&config);
    snprintf(heads_only, sizeof(heads_only), "%s/mock_moe_faults.so", getenv("DP_TEST_MOCKS"));
    options.moe = heads_only; /* would choose among all experts, and never see the groups */
    config.route_groups = 2;
    config.route_limit = 1;
    refuse(&options, "moe_mine: it has no replicas");
    config = moe;
    options.ep = "exchange"; /* would do dispatch and combine itself */
    refuse(&options, "moe_mine: it has no replicas");
    options = options_of(&config);
    options.moe = heads_only;
    config.apart = 1; /* would sum with shared experts in one call */
    refuse(&options, "moe_mine: it has no replicas");
    /* as one that does not know it */
    ck_assert_int_eq(setenv("MOCK_FAULT", "apart_is_dropped", 1), 0);
    refuse(&options, "apart is 1, and the MoE plugin is called as for 0");
    config = moe;
    config.posted = 1; /* would send its rows in the call */
    refuse(&options, "moe_mine: it has no replicas");
    ck_assert_int_eq(setenv("MOCK_FAULT", "posted_is_dropped", 1), 0);
    refuse(&options, "posted is 1, and the MoE plugin is called as for 0");
    ck_assert_int_eq(unsetenv("MOCK_FAULT"), 0);
    options = options_of(&config);
    options.ep = "exchange";
    refuse(&options, "moe_cpu: posted is 1: a plugin of dp.ep.draft/1 posts nothing: give 0");
    options = options_of(&config);
    config.posted = 2;
    refuse(&options, "moe_cpu: posted is 2: must be 0 or 1");
    config = moe;
    options = options_of(&config);
    ck_assert_int_eq(setenv("DUALPIPE_PLUGINS", "ep=abacus", 1), 0);
    refuse(&options, "ep_abacus");
    ck_assert_int_eq(setenv("DUALPIPE_PLUGINS", "moe=cpu,epp=exchange", 1), 0);
    refuse(&options, "\"epp=exchange\" is not key=value with one of the keys device, comm, attention, moe, ep");
    ck_assert_int_eq(unsetenv("DUALPIPE_PLUGINS"), 0);
    ck_assert_int_eq(dp_moe_block_part(NULL, NULL, NULL, NULL), DP_ERR_INVALID);
    dp_moe_block_close(NULL);
}
END_TEST

/* ---- layers cut finer ---- */

static void same_bits(const layout_t *layout, const rank_t *wanted, const rank_t *got, int n)
{
    for (int r = 0; r < n; r++) {
        ck_assert_msg(got[r].status == DP_OK, "%s: %s", layout->method, got[r].message);
        ck_assert_msg(memcmp(got[r].losses, wanted[r].losses, sizeof(got[r].losses)) == 0 &&
                          memcmp(&got[r].aux_loss, &wanted[r].aux_loss, sizeof(double)) == 0,
                      "%s %d x %d, rank %d: other losses", layout->method, layout->pp, layout->ep, r);
        ck_assert_msg(got[r].digest == wanted[r].digest, "%s %d x %d, rank %d: other gradients", layout->method,
                      layout->pp, layout->ep, r);
    }
}

/* _i: recomputation, and whether another plugin dispatches. */
START_TEST(a_layer_cut_finer_trains_with_the_same_bits)
{
    recompute = (dp_recompute_t)(_i % 4);
    ep_name = _i / 4 ? "exchange" : NULL;
    for (size_t k = 0; k < sizeof(layouts) / sizeof(layouts[0]); k++) {
        rank_t whole[RANKS_MOST], cut[RANKS_MOST];

        run(whole, &layouts[k], 0);
        ck_assert_msg(whole[0].status == DP_OK, "%s", whole[0].message);
        for (int how = 1; how < 4; how++) {
            halves = how & 1, apart = how >> 1;
            same_bits(&layouts[k], whole, cut, run(cut, &layouts[k], 0));
        }
        halves = apart = 0;
    }
}
END_TEST

/* P 1 to 4, expert groups of 1 to 4, an odd count, one micro-batch; whole layers and cut ones. */
static const layout_t serving[] = {{"1f1b", 1, 1}, {"1f1b", 1, 2},  {"1f1b", 1, 4},
                                   {"1f1b", 2, 1}, {"1f1b", 2, 2},  {"1f1b", 3, 1},
                                   {"1f1b", 4, 1}, {"gpipe", 2, 2}, {"interleaved", 2, 1}};

START_TEST(forwards_in_the_orders_of_inference_have_the_same_bits)
{
    static const int32_t counts[] = {M, M - 1, 1};

    for (size_t k = 0; k < sizeof(serving) / sizeof(serving[0]); k++) {
        rank_t plain[RANKS_MOST], braided[RANKS_MOST];

        microbatches = counts[_i];
        if (strcmp(serving[k].method, "interleaved") == 0 && microbatches % serving[k].pp != 0)
            continue;
        forwards = DP_FORWARDS_SERIAL;
        halves = apart = 0;
        run(plain, &serving[k], 0);
        ck_assert_msg(plain[0].status == DP_OK, "%s", plain[0].message);
        for (int r = 0; r < RANKS_MOST; r++)
            plain[r].digest = 0, plain[r].aux_loss = 0; /* of a whole step */
        for (int how = 0; how < 16; how++) {
            forwards = how & 1 ? DP_FORWARDS_DECODE : DP_FORWARDS_PREFILL;
            halves = how >> 1 & 1, apart = how >> 2 & 1, posted = how >> 3;
            const int n = run(braided, &serving[k], 0);
            for (int r = 0; r < n; r++)
                braided[r].aux_loss = 0;
            same_bits(&serving[k], plain, braided, n);
        }
        halves = apart = posted = 0;
    }
}
END_TEST

/* ---- posted transfers ---- */

static void train_posted(const layout_t *layout, const char *over)
{
    rank_t plain[RANKS_MOST], ranks[RANKS_MOST];

    run(plain, layout, 0);
    ck_assert_msg(plain[0].status == DP_OK, "%s", plain[0].message);
    posted = 1;
    comm = over;
    for (int how = over == NULL ? 0 : 3; how < 4; how++) {
        halves = how & 1, apart = how >> 1;
        same_bits(layout, plain, ranks, run(ranks, layout, 0));
    }
    halves = apart = posted = 0;
    comm = NULL;
}

/* _i: whether all is recomputed. */
START_TEST(posted_rows_train_with_the_same_bits)
{
    static const layout_t posting[] = {{"1f1b", 1, 1},      {"1f1b", 1, 4}, {"dualpipe", 2, 2},
                                       {"dualpipev", 2, 1}, {"zb1p", 2, 2}, {"interleaved", 2, 1}};

    recompute = _i ? DP_RECOMPUTE_FULL : DP_RECOMPUTE_NONE;
    for (size_t k = 0; k < sizeof(posting) / sizeof(posting[0]); k++)
        train_posted(&posting[k], NULL);
}
END_TEST

START_TEST(posted_rows_may_go_over_libfabric)
{
    static const layout_t layout = {"1f1b", 1, 2};
    const dp_plugin_t *plugin;

    if (dp_plugin_load("comm_ofi", &plugin) >= 0) /* it is built */
        train_posted(&layout, "ofi");
}
END_TEST

/* What the profiles publish, on one lane: a transfer stands where it is posted, and is awaited by
 * the next MLP or sum of its micro-batch. The first is what prefill calls micro-batch 1. */
START_TEST(posted_rows_are_enqueued_as_published)
{
    static const layout_t layout = {"1f1b", 1, 1};
    static const char *const cycles[] = {
        "attention0 dispatch0 shared1 sum1 attention1 dispatch1 mlp0 combine0 mlp1 combine1 shared0 sum0 ",
        "shared0 sum1 project1 mlp0 combine0 attention1 dispatch1 "
        "shared1 sum0 project0 mlp1 combine1 attention0 dispatch0 "};
    rank_t ranks[RANKS_MOST];
    char twice[512];

    microbatches = 2;
    noted = apart = posted = 1;
    for (int decode = 0; decode < 2; decode++) {
        forwards = decode ? DP_FORWARDS_DECODE : DP_FORWARDS_PREFILL;
        halves = decode;
        run(ranks, &layout, 0);
        ck_assert_msg(ranks[0].status == DP_OK, "%s", ranks[0].message);
        snprintf(twice, sizeof(twice), "%s%s", cycles[decode], cycles[decode]);
        ck_assert_msg(strstr(ranks[0].order, twice) != NULL, "%s", ranks[0].order);
    }
}
END_TEST

START_TEST(more_passes_may_post_than_there_are_slots)
{
    static const layout_t layout[] = {{"1f1b", 1, 1}, {"1f1b", 1, 2}};
    enum { SEGMENTS = 6 * LAYERS + 2 };
    char letters[4 * SEGMENTS + 1] = "cCcCcCaaabbb", *end = letters + 12;
    rank_t plain[RANKS_MOST], ranks[RANKS_MOST];

    /* the backward and both forwards have posted, and then one goes on after the other */
    for (int pass = 0; pass < 2; pass++)
        for (int i = 3; i < SEGMENTS; i++)
            *end++ = (char)('a' + pass);
    for (int i = 3; i < SEGMENTS; i++)
        *end++ = 'c', *end++ = 'C';
    microbatches = 4;
    apart = 1;
    for (int k = 0; k < 4; k++) {
        braid = k & 1 ? letters : "turns";
        run(plain, &layout[k >> 1], 0);
        ck_assert_msg(plain[0].status == DP_OK, "%s", plain[0].message);
        posted = 1;
        same_bits(&layout[k >> 1], plain, ranks, run(ranks, &layout[k >> 1], 0));
        posted = 0;
    }
}
END_TEST

/* ---- moves ---- */

/* _i: whether rows are posted. */
START_TEST(forwards_run_while_experts_move)
{
    static const struct {
        layout_t layout;
        int replicas;
        const char *comm;
    } tries[] = {{{"1f1b", 1, 1}, 6, NULL},
                 {{"1f1b", 1, 2}, 6, NULL},
                 {{"1f1b", 1, 4}, 12, NULL},
                 {{"1f1b", 2, 2}, 6, NULL},
                 {{"1f1b", 1, 2}, 6, "ofi"}};
    const dp_plugin_t *plugin;

    posted = _i;
    forwards = DP_FORWARDS_DECODE;
    for (size_t k = 0; k < sizeof(tries) / sizeof(tries[0]); k++) {
        rank_t placed[RANKS_MOST], beside[RANKS_MOST];

        comm = tries[k].comm;
        if (comm != NULL && dp_plugin_load("comm_ofi", &plugin) < 0) /* it is not built */
            continue;
        moves = PLACED;
        run(placed, &tries[k].layout, tries[k].replicas);
        ck_assert_msg(placed[0].status == DP_OK, "%s", placed[0].message);
        moves = BESIDE;
        same_bits(&tries[k].layout, placed, beside, run(beside, &tries[k].layout, tries[k].replicas));
    }
}
END_TEST

START_TEST(a_training_step_fails_while_experts_move)
{
    static const layout_t layout = {"1f1b", 1, 2};
    rank_t ranks[RANKS_MOST];
    int told = 0;

    moves = TRAINED;
    run(ranks, &layout, 6);
    for (int r = 0; r < 2; r++) {
        ck_assert_int_lt(ranks[r].status, 0);
        told += strstr(ranks[r].message, "call dp_moe_layer_place_end before it") != NULL;
    }
    ck_assert_int_gt(told, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("moe_block");
    TCase *block = tcase_create("block"), *rows = tcase_create("posted"), *moving = tcase_create("moves");

    tcase_set_timeout(block, 120);
    tcase_set_timeout(rows, 120);
    tcase_set_timeout(moving, 120);
    tcase_add_test(block, the_auxiliary_loss_reaches_the_trainer);
    tcase_add_test(block, replicas_are_opened_with_the_block);
    tcase_add_test(block, a_plugin_may_carry_the_rows);
    tcase_add_test(block, what_cannot_be_is_refused);
    tcase_add_loop_test(block, a_layer_cut_finer_trains_with_the_same_bits, 0, 8);
    tcase_add_loop_test(block, forwards_in_the_orders_of_inference_have_the_same_bits, 0, 3);
    tcase_add_loop_test(rows, posted_rows_train_with_the_same_bits, 0, 2);
    tcase_add_test(rows, posted_rows_may_go_over_libfabric);
    tcase_add_test(rows, posted_rows_are_enqueued_as_published);
    tcase_add_test(rows, more_passes_may_post_than_there_are_slots);
    tcase_add_loop_test(moving, forwards_run_while_experts_move, 0, 2);
    tcase_add_test(moving, a_training_step_fails_while_experts_move);
    suite_add_tcase(suite, block);
    suite_add_tcase(suite, rows);
    suite_add_tcase(suite, moving);
    return suite_run(suite);
}
