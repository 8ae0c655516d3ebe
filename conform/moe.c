/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe.c: the contract of dp.moe/1. What it shares with attention is in kernel.c and kernel_cases.c;
 * rows go over exchanges.c, between ranks that are threads. */
#include "exchanges.h"
#include "kernel.h"

#include <dualpipe/draft/ep.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dp_moe_vt_t *table_of(const block_t *b)
{
    return b->lab->t->table;
}

enum { ROUTE, DISPATCH, EXPERTS, COMBINE, COMBINE_B, EXPERTS_I, DISPATCH_B, ROUTE_I, EXPERTS_W, ROUTE_W, STEPS };

static const step_t steps[STEPS] = {
    [ROUTE] = {.name = "route", .phase = FORWARD, .x = true},
    [DISPATCH] = {.name = "dispatch", .phase = FORWARD, .lane = 1},
    [EXPERTS] = {.name = "experts", .phase = FORWARD},
    [COMBINE] = {.name = "combine", .phase = FORWARD, .lane = 1, .y = true},
    [COMBINE_B] = {.name = "combine_backward", .phase = BACKWARD, .lane = 1, .dy = true},
    [EXPERTS_I] = {.name = "experts_backward_input", .phase = BACKWARD},
    [DISPATCH_B] = {.name = "dispatch_backward", .phase = BACKWARD, .lane = 1},
    [ROUTE_I] = {.name = "route_backward_input", .phase = BACKWARD, .dx = true},
    [EXPERTS_W] = {.name = "experts_backward_weight", .phase = WEIGHT},
    [ROUTE_W] = {.name = "route_backward_weight", .phase = WEIGHT},
};

/* Both gates, with and without what can be left out; fewer tokens than experts, all experts chosen,
 * one expert. */
static const layer_t layers[] = {
    {.batch = 1,
     .sequence = 7,
     .hidden = 6,
     .experts = 4,
     .top_k = 2,
     .width = 3,
     .shared = 1,
     .gate = DP_GATE_SIGMOID,
     .normalize = 1,
     .scale = 2.5F,
     .aux_alpha = 0.25F},
    {.batch = 3, .sequence = 1, .hidden = 4, .experts = 8, .top_k = 3, .width = 5, .aux_alpha = 0.125F},
    {.batch = 1,
     .sequence = 1,
     .hidden = 3,
     .experts = 4,
     .top_k = 1,
     .width = 2,
     .shared = 3,
     .gate = DP_GATE_SIGMOID,
     .scale = 0.5F,
     .aux_alpha = 0.5F},
    {.batch = 2,
     .sequence = 2,
     .hidden = 5,
     .experts = 3,
     .top_k = 3,
     .width = 4,
     .shared = 1,
     .normalize = 1,
     .aux_alpha = 1},
    {.batch = 1, .sequence = 6, .hidden = 2, .experts = 1, .top_k = 1, .width = 3, .norm_eps = 0.5F},
    {.batch = 0},
};

static const layer_t shorter[] = {
    {.batch = 2,
     .sequence = 4,
     .tokens = 5,
     .hidden = 6,
     .experts = 4,
     .top_k = 2,
     .width = 3,
     .shared = 1,
     .gate = DP_GATE_SIGMOID,
     .normalize = 1,
     .aux_alpha = 0.25F},
    {.batch = 1, .sequence = 6, .tokens = 1, .hidden = 4, .experts = 8, .top_k = 3, .width = 5, .aux_alpha = 0.125F},
    {.batch = 0},
};

static const layer_t larger[] = {
    {.batch = 3,
     .sequence = 65,
     .hidden = 9,
     .experts = 6,
     .top_k = 2,
     .width = 7,
     .shared = 1,
     .gate = DP_GATE_SIGMOID,
     .normalize = 1,
     .aux_alpha = 0.5F},
    {.batch = 1, .sequence = 130, .hidden = 16, .experts = 8, .top_k = 3, .width = 12, .normalize = 1},
    {.batch = 3, .sequence = 7, .hidden = 72, .experts = 4, .top_k = 1, .width = 40, .aux_alpha = 0.25F},
    {.batch = 0},
};

#define IN_CONFIG(member) .offset = offsetof(dp_moe_config_t, member)
#define IN_SHAPE(member)  .in_shape = true, .offset = offsetof(dp_block_shape_t, member)

static const wrong_t wrongs[] = {
    {.what = "no shape", IN_CONFIG(shape), .pointer = true},
    {.what = "batch 0", IN_SHAPE(batch)},
    {.what = "sequence 0", IN_SHAPE(sequence)},
    {.what = "hidden 0", IN_SHAPE(hidden)},
    {.what = "norm_eps -1", IN_SHAPE(norm_eps), .bits = 0xbf800000},
    {.what = "norm_eps NaN", IN_SHAPE(norm_eps), .bits = 0x7fc00000},
    {.what = "experts 0", IN_CONFIG(experts)},
    {.what = "top_k 0", IN_CONFIG(top_k)},
    {.what = "top_k above experts", IN_CONFIG(top_k), .bits = 99},
    {.what = "expert_hidden 0", IN_CONFIG(expert_hidden)},
    {.what = "gate 2", IN_CONFIG(gate), .bits = 2},
    {.what = "normalize 2", IN_CONFIG(normalize), .bits = 2},
    {.what = "scale -1", IN_CONFIG(scale), .bits = 0xbf800000},
    {.what = "scale NaN", IN_CONFIG(scale), .bits = 0x7fc00000},
    {.what = "aux_alpha -1", IN_CONFIG(aux_alpha), .bits = 0xbf800000},
    {.what = "aux_alpha infinite", IN_CONFIG(aux_alpha), .bits = 0x7f800000},
    {.what = "comm_size 0", IN_CONFIG(comm_size)},
    {.what = "comm_rank above comm_size", IN_CONFIG(comm_rank), .bits = 3},
    {.what = "comm_rank -1", IN_CONFIG(comm_rank), .bits = 0xffffffff},
    {.what = "an expert group that does not divide the experts", IN_CONFIG(comm_size), .bits = 5},
    {.what = NULL},
};

static int32_t ranks_of(const block_t *b)
{
    return b->ranks > 0 ? b->ranks : 1;
}

/* All ranks of a group ask alike: the one with a whole micro-batch as well. */
static bool has_fewer_tokens(const block_t *b)
{
    const size_t whole = (size_t)b->layer.batch * b->layer.sequence;
    bool fewer = conform_layer_tokens(&b->layer) < whole;

    for (int32_t r = 0; r < ranks_of(b); r++)
        fewer |= b->tokens[r] > 0 && b->tokens[r] < whole;
    return fewer;
}

/* ---- the table ---- */

static dp_status_t moe_open(block_t *b)
{
    struct {
        dp_block_shape_t shape;
        unsigned char longer[KERNEL_TAIL];
    } shape;
    struct {
        dp_moe_config_t config;
        unsigned char longer[KERNEL_TAIL];
    } room;
    dp_moe_t *moe = NULL;
    dp_status_t status;

    b->comm = conform_exchanges_open(b->lab, ranks_of(b));
    conform_kernel_shape(b, &shape, sizeof(shape));
    memset(&room, b->tail, sizeof(room));
    room.config = (dp_moe_config_t){
        .struct_size = b->config_bytes != 0 ? b->config_bytes : sizeof(room.config),
        .shape = &shape.shape,
        .experts = b->layer.experts,
        .top_k = b->layer.top_k,
        .expert_hidden = b->layer.width,
        .variable_tokens = has_fewer_tokens(b),
        .shared_experts = b->layer.shared,
        .gate = b->layer.gate,
        .normalize = b->layer.normalize,
        .scale = b->layer.scale,
        .aux_alpha = b->layer.aux_alpha,
        .device_vt = b->lab->vt,
        .device = b->lab->device,
        .comm_vt = &conform_exchanges_vt,
        .comm = b->comm,
        .comm_rank = b->rank,
        .comm_size = ranks_of(b),
        .exchange_id = EXCHANGES_FIRST_ID,
        .replicas = b->replicas,
        .capacity = b->capacity,
        .recompute = b->recompute,
        .route_groups = b->layer.groups,
        .route_limit = b->layer.limit,
        .ep_vt = b->ep_vt,
        .apart = b->apart,
        .posted = b->posted,
    };
    conform_kernel_wrong(b, &room.config, &shape.shape);
    status = table_of(b)->open(b->lab->host, &room.config, &moe);
    memset(&shape, 0xff, sizeof(shape)); /* borrowed during open */
    memset(&room, 0xff, sizeof(room));
    b->instance = moe;
    if (status < 0)
        conform_exchanges_close(b->comm);
    else if (b->replicas > 0 &&
             !(conform_area_open(b->lab, &b->places, "placement", DP_F32, b->replicas * sizeof(int32_t), 0) &&
               conform_area_put(b->lab, &b->places, b->placement)))
        return DP_ERR_NOMEM;
    return status;
}

static void moe_close(block_t *b)
{
    table_of(b)->close(b->instance);
    conform_exchanges_close(b->comm);
    conform_area_close(b->lab, &b->places);
}

static void close_nothing(const conform_t *t)
{
    const dp_moe_vt_t *vt = t->table;

    vt->close(NULL);
}

static dp_status_t moe_sizes(const block_t *b, dp_block_sizes_t *out)
{
    return table_of(b)->sizes(b->instance, out);
}

static dp_status_t moe_params(const block_t *b, dp_param_t *out)
{
    return table_of(b)->params(b->instance, out);
}

static dp_status_t moe_recompute(pass_t *p, const dp_io_t *io)
{
    const block_t *b = p->block;
    const dp_moe_io_t moe_io = {.struct_size = sizeof(moe_io), .io = io, .aux_scale = (float)KERNEL_AUX_SCALE};

    const dp_status_t status =
        b->sizes.apart ? table_of(b)->shared_recompute(b->instance, &moe_io, b->lab->lanes[0]) : DP_OK;

    return status < 0 ? status : table_of(b)->experts_recompute(b->instance, &moe_io, b->lab->lanes[0]);
}

typedef dp_status_t (*call_fn)(dp_moe_t *, const dp_moe_io_t *, dp_stream_t *);

/* What a call leaves to a separate one, which comes before or behind it; the other gets neither y
 * nor dy. Shared experts may run beside dispatch and combine: here before experts. */
static dp_status_t call_apart(const block_t *b, int step, call_fn call, const dp_moe_io_t *io, dp_stream_t *s)
{
    const dp_moe_vt_t *vt = table_of(b);
    dp_io_t without = *io->io;
    dp_moe_io_t rest = *io;
    const call_fn before = step == COMBINE_B   ? vt->sum_backward
                           : !b->sizes.apart   ? NULL
                           : step == EXPERTS   ? vt->shared
                           : step == EXPERTS_I ? vt->shared_backward_input
                           : step == EXPERTS_W ? vt->shared_backward_weight
                                               : NULL;
    dp_status_t status = before != NULL ? before(b->instance, io, s) : DP_OK;

    without.y = step == COMBINE ? NULL : without.y;
    without.dy = step == COMBINE_B ? NULL : without.dy;
    rest.io = &without;
    if (status >= 0)
        status = call(b->instance, &rest, s);
    return status >= 0 && step == COMBINE ? vt->sum(b->instance, io, s) : status;
}

static dp_status_t moe_call(pass_t *p, int step, const dp_io_t *io)
{
    const block_t *b = p->block;
    const dp_moe_vt_t *vt = table_of(b);
    const call_fn calls[STEPS] = {
        [ROUTE] = vt->route,
        [DISPATCH] = vt->dispatch,
        [EXPERTS] = vt->experts,
        [COMBINE] = vt->combine,
        [COMBINE_B] = vt->combine_backward,
        [EXPERTS_I] = vt->experts_backward_input,
        [DISPATCH_B] = vt->dispatch_backward,
        [ROUTE_I] = vt->route_backward_input,
        [EXPERTS_W] = vt->experts_backward_weight,
        [ROUTE_W] = vt->route_backward_weight,
    };
    struct {
        dp_moe_io_t io;
        unsigned char longer[KERNEL_TAIL];
    } room;
    dp_stream_t *s;
    dp_status_t status;

    memset(&room, b->tail, sizeof(room));
    room.io = (dp_moe_io_t){
        .struct_size = b->outer_bytes != 0 ? b->outer_bytes : sizeof(room.io),
        .io = io,
        .aux_scale = (float)KERNEL_AUX_SCALE,
        .aux_loss = step == ROUTE && !p->without_aux ? conform_area_memory(&p->aux) : NULL,
        .placement = step == ROUTE && b->replicas > 0 ? conform_area_memory(&b->places) : NULL,
        .loads = step == ROUTE ? b->loads : NULL,
    };
    s = b->lab->lanes[conform_pass_lane(b, step)];
    status = b->sizes.apart || b->sizes.posted ? call_apart(b, step, calls[step], &room.io, s)
                                               : calls[step](b->instance, &room.io, s);
    memset(&room, 0xff, sizeof(room)); /* work on the stream may not look at it */
    return status;
}

/* ---- parameters ---- */

/* Experts, or replicas of them, on each rank. */
static size_t local(const block_t *b)
{
    return (b->replicas > 0 ? b->replicas : b->layer.experts) / (size_t)ranks_of(b);
}

static size_t moe_index(const block_t *b, size_t i)
{
    const size_t common = conform_reference_moe_common(&b->layer), one = conform_reference_moe_expert(&b->layer);
    size_t number;

    if (i < common)
        return i;
    number = (size_t)b->rank * local(b) + (i - common) / one;
    return common + (b->replicas > 0 ? (size_t)b->placement[number] : number) * one + (i - common) % one;
}

static bool list_is_right(const block_t *b)
{
    static const char *const matrices[] = {"w_gate", "w_up", "w_down"};
    const layer_t *l = &b->layer;
    const size_t d = l->hidden, shared = (size_t)l->shared * l->width;
    const uint32_t own = (uint32_t)local(b);
    expected_t *expected = calloc(6 + 3 * (size_t)own, sizeof(*expected)), *e = expected;
    char(*names)[48] = calloc(6 + 3 * (size_t)own, sizeof(*names));
    bool right;

    *e++ = (expected_t){.name = "norm", .kind = DP_PARAM_VECTOR, .count = d, .start = 1};
    *e++ = (expected_t){.name = "router", .count = d * l->experts, .fan_in = d};
    *e++ = (expected_t){.name = "bias", .kind = DP_PARAM_ROUTER_BIAS, .count = l->experts};
    for (uint32_t i = l->shared > 0 ? 0 : 3; i < 3 + 3 * own; i++, e++) {
        const bool routed = i >= 3;
        const int number = b->rank * (int)own + (int)i / 3 - 1;
        const size_t width = routed ? l->width : shared;
        char *name = names[e - expected];

        if (routed)
            snprintf(name, sizeof(*names), "%s.%d.%s", b->replicas > 0 ? "replicas" : "experts", number,
                     matrices[i % 3]);
        else
            snprintf(name, sizeof(*names), "shared.%s", matrices[i % 3]);
        *e = (expected_t){.name = name,
                          .count = d * width,
                          .fan_in = i % 3 == 2 ? width : d,
                          .sharded = routed,
                          .expert = routed ? number : 0};
    }
    right = conform_kernel_list_is_right(b, expected, (uint32_t)(e - expected));
    free(expected);
    free(names);
    return right;
}

/* Each replica has the gradient of its rows: replicas of an expert are summed, over all ranks. */
static bool gather_rows(block_t *b, double *gradients)
{
    static const double *everyones[CONFORM_RANKS_MAX];
    const size_t common = conform_reference_moe_common(&b->layer), one = conform_reference_moe_expert(&b->layer),
                 own = local(b);
    double *sums;

    if (b->replicas == 0)
        return true;
    sums = calloc(own * one, sizeof(*sums));
    everyones[b->rank] = gradients;
    if (ranks_of(b) > 1 && !conform_meet(b->lab->t))
        return false;
    for (size_t mine = 0; mine < own; mine++)
        for (size_t r = 0; r < b->replicas; r++)
            for (size_t i = 0; i < one && b->placement[r] == b->placement[(size_t)b->rank * own + mine]; i++)
                sums[mine * one + i] += everyones[r / own][common + r % own * one + i];
    if (ranks_of(b) > 1 && !conform_meet(b->lab->t))
        return false;
    memcpy(gradients + common, sums, own * one * sizeof(*sums));
    free(sums);
    return ranks_of(b) == 1 || conform_meet(b->lab->t);
}

const kind_t conform_kernel_moe = {
    .steps = steps,
    .nsteps = STEPS,
    .layers = layers,
    .larger = larger,
    .shorter = shorter,
    .wrongs = wrongs,
    .config_min = DP_MOE_CONFIG_MIN,
    .outer_min = DP_MOE_IO_MIN,
    .open = moe_open,
    .close = moe_close,
    .close_nothing = close_nothing,
    .sizes = moe_sizes,
    .params = moe_params,
    .call = moe_call,
    .recompute = moe_recompute,
    .whole = conform_reference_moe_params,
    .common = conform_reference_moe_common,
    .index = moe_index,
    .gather = gather_rows,
    .reference = conform_reference_moe,
    .margin = conform_reference_moe_margin,
    .list_is_right = list_is_right,
};

/* ---- what is MoE's alone ---- */

/* The layer in a type that the plugin supports. */
static bool open_layer(block_t *b, lab_t *lab, const layer_t *layer)
{
    static const dp_dtype_t dtypes[] = {DP_F64, DP_F32, DP_BF16};
    layer_t l = *layer;

    for (int i = 0; i < 3; i++) {
        l.dtype = dtypes[i];
        if (conform_block_open(b, lab, &l, 71))
            return true;
        if (conform_failed(lab->t))
            return false;
    }
    conform_skip(lab->t, "%s", conform_last_error());
    conform_lab_close(lab);
    return false;
}

/* All elements of a parameter, or the one at `at` (>= 0), become `value`. */
static void set_param(block_t *b, uint32_t number, int at, double value)
{
    const dp_param_t *p = &b->list[number];

    for (size_t i = 0; i < p->count; i++)
        if (at < 0 || i == (size_t)at)
            b->values[p->offset + i] = value;
}

static bool write_params(block_t *b)
{
    double *mine = calloc(b->sizes.param_count + 1, sizeof(*mine));
    bool fine;

    for (size_t i = 0; i < b->sizes.param_count; i++)
        mine[i] = b->values[moe_index(b, i)];
    fine = conform_area_write(b->lab, &b->params, mine);
    free(mine);
    return fine;
}

enum { NORM, ROUTER, BIAS };

/* All of two micro-batches, one after the other's forward; everything compared. */
static bool layer_is_right(block_t *b)
{
    pass_t p[2], *both[2] = {&p[0], &p[1]};

    return conform_pass_open(&p[0], b, 0) && conform_pass_open(&p[1], b, 1) &&
           conform_pass_run(&p[0], FORWARD, FORWARD) && conform_pass_run(&p[1], FORWARD, FORWARD) &&
           conform_pass_run(&p[0], BACKWARD, WEIGHT) && conform_pass_run(&p[1], BACKWARD, WEIGHT) &&
           conform_pass_output_is_right(&p[0]) && conform_pass_output_is_right(&p[1]) &&
           conform_gradients_are_right(b, both, 2, true) && conform_pass_close(&p[0]) && conform_pass_close(&p[1]);
}

static void ranks_share_the_experts(conform_t *t)
{
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (const layer_t *l = layers; l->batch > 0; l++) {
        block_t b = {.rank = t->rank, .ranks = t->size};

        if (l->experts % (uint32_t)t->size != 0)
            continue;
        if (!open_layer(&b, &lab, l) || !list_is_right(&b) || !layer_is_right(&b) || !conform_block_close(&b))
            return;
    }
    conform_lab_close(&lab);
}

/* One token on the first rank, a whole micro-batch on the others. */
static void ranks_bring_what_tokens_they_have(conform_t *t)
{
    block_t b = {.rank = t->rank, .ranks = t->size};
    layer_t layer = shorter[0];
    lab_t lab;

    for (int32_t r = 0; r < t->size; r++)
        b.tokens[r] = r == 0 ? 1 : layer.batch * layer.sequence;
    layer.tokens = b.tokens[t->rank];
    if (!conform_lab_open(&lab, t) || !open_layer(&b, &lab, &layer) || !layer_is_right(&b) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

static void all_tokens_to_one_expert(conform_t *t)
{
    block_t b = {.rank = t->rank, .ranks = t->size};
    layer_t layer = layers[0];
    lab_t lab;

    layer.top_k = 1;
    if (!conform_lab_open(&lab, t) || !open_layer(&b, &lab, &layer))
        return;
    set_param(&b, BIAS, (int)layer.experts - 1, 1000);
    if (!write_params(&b) || !layer_is_right(&b) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

/* y and dx of this rank's micro-batch, with the experts spread over `ranks`. */
static bool bits_of(lab_t *lab, const layer_t *layer, int32_t ranks, unsigned char *bytes[2], size_t *count)
{
    conform_t *t = lab->t;
    block_t b = {.rank = ranks > 1 ? t->rank : 0, .ranks = ranks};
    pass_t p;

    if (!open_layer(&b, lab, layer) || !conform_pass_open(&p, &b, 0))
        return false;
    for (size_t i = 0; i < conform_area_count(&p.x); i++) {
        p.xs[b.rank][i] = (double)((int)(i * 37 + (size_t)t->rank * 11) % 64 - 31) / 16;
        p.dys[b.rank][i] = (double)((int)(i * 23 + (size_t)t->rank * 7) % 64 - 31) / 32;
    }
    if (!conform_area_write(lab, &p.x, p.xs[b.rank]) || !conform_area_write(lab, &p.dy, p.dys[b.rank]) ||
        !conform_pass_run(&p, FORWARD, WEIGHT))
        return false;
    bytes[0] = conform_area_bytes(lab, &p.y);
    bytes[1] = conform_area_bytes(lab, &p.dx);
    *count = p.y.bytes;
    return bytes[0] != NULL && bytes[1] != NULL && conform_pass_close(&p) && conform_block_close(&b);
}

static void bits_do_not_depend_on_the_group(conform_t *t)
{
    unsigned char *together[2], *alone[2];
    size_t count;
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int i = 0; i < 2; i++) {
        const layer_t *layer = i == 0 ? &layers[0] : &larger[1];

        if (!bits_of(&lab, layer, t->size, together, &count) || !bits_of(&lab, layer, 1, alone, &count))
            return;
        for (int k = 0; k < 2; k++) {
            EXPECT(t, memcmp(together[k], alone[k], count) == 0,
                   "the bits of %s differ between an expert group of %d and one of 1", k == 0 ? "y" : "dx", t->size);
            free(together[k]);
            free(alone[k]);
        }
    }
    conform_lab_close(&lab);
}

static void replicas_share_the_rows(conform_t *t)
{
    static const int32_t placements[][8] = {{0, 1, 2, 3}, {3, 0, 1, 0, 2, 0}, {2, 2, 1, 3, 3, 3, 0, 3}};
    static const uint32_t counts[] = {4, 6, 8};
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int i = 0; i < 3; i++) {
        block_t b = {.rank = t->rank, .ranks = t->size, .replicas = counts[i], .placement = placements[i]};

        if (!open_layer(&b, &lab, &layers[0]) || !list_is_right(&b) || !layer_is_right(&b) || !conform_block_close(&b))
            return;
    }
    conform_lab_close(&lab);
}

/* What both blocks make of one layer has the same bits; `between` names them: "no replicas and one
 * of each expert". */
static bool same_bits(lab_t *lab, const layer_t *layer, const block_t blocks[2], const char *between)
{
    static const char *const names[] = {"y", "dx", "gradients"};
    unsigned char *bytes[2][3] = {{NULL}};
    size_t counts[3] = {0};
    bool same = true;

    for (int i = 0; i < 2 && same; i++) {
        block_t b = blocks[i];
        pass_t p;

        same = open_layer(&b, lab, layer) && conform_pass_open(&p, &b, 3) && conform_pass_run(&p, FORWARD, WEIGHT);
        for (int k = 0; k < 3 && same; k++) {
            const area_t *area = k == 0 ? &p.y : k == 1 ? &p.dx : &b.grads;

            bytes[i][k] = conform_area_bytes(lab, area);
            counts[k] = area->bytes;
        }
        same = same && conform_pass_close(&p) && conform_block_close(&b);
    }
    for (int k = 0; k < 3; k++) {
        if (same && memcmp(bytes[0][k], bytes[1][k], counts[k]) != 0) {
            conform_fail(lab->t, __FILE__, __LINE__, "the bits of %s differ between %s", names[k], between);
            same = false;
        }
        free(bytes[0][k]);
        free(bytes[1][k]);
    }
    return same;
}

/* With as many replicas as experts, in order, no bit differs from there being none. */
static void one_replica_of_each_changes_no_bit(conform_t *t)
{
    static const int32_t in_order[] = {0, 1, 2, 3};
    const block_t blocks[2] = {
        {.rank = t->rank, .ranks = t->size},
        {.rank = t->rank, .ranks = t->size, .replicas = 4, .placement = in_order},
    };
    lab_t lab;

    if (!conform_lab_open(&lab, t) || !same_bits(&lab, &layers[0], blocks, "no replicas and one of each expert"))
        return;
    conform_lab_close(&lab);
}

static void shared_experts_may_be_called_apart(conform_t *t)
{
    lab_t lab;

    if (!conform_lab_open(&lab, t) || !conform_block_takes_apart(&lab))
        return;
    for (const layer_t *l = layers; l->batch > 0; l++)
        for (int level = DP_RECOMPUTE_NONE; level <= DP_RECOMPUTE_FULL; level++) {
            const block_t blocks[2] = {
                {.rank = t->rank, .ranks = t->size, .recompute = (dp_recompute_t)level},
                {.rank = t->rank, .ranks = t->size, .recompute = (dp_recompute_t)level, .apart = 1}};

            if (l->experts % (uint32_t)t->size == 0 && !same_bits(&lab, l, blocks, "whole calls and calls apart"))
                return;
        }
    conform_lab_close(&lab);
}

static void rows_may_be_posted(conform_t *t)
{
    lab_t lab;

    if (!conform_lab_open(&lab, t) || !conform_block_takes_posted(&lab))
        return;
    for (const layer_t *l = layers; l->batch > 0; l++)
        for (int how = 0; how < 4; how++) {
            const dp_recompute_t recompute = how & 1 ? DP_RECOMPUTE_FULL : DP_RECOMPUTE_NONE;
            const block_t blocks[2] = {
                {.rank = t->rank, .ranks = t->size, .recompute = recompute},
                {.rank = t->rank, .ranks = t->size, .recompute = recompute, .posted = 1, .apart = (uint32_t)how >> 1}};

            if (l->experts % (uint32_t)t->size == 0 && !same_bits(&lab, l, blocks, "rows exchanged and rows posted"))
                return;
        }
    conform_lab_close(&lab);
}

static void a_plugin_may_do_dispatch_and_combine(conform_t *t)
{
    const dp_plugin_t *plugin;
    const void *ep_table = NULL;
    lab_t lab;

    if (dp_plugin_load("ep_exchange", &plugin) < 0 ||
        dp_plugin_interface(plugin, DP_IFACE_EP, DP_EP_VT_MIN, &ep_table) < 0) {
        conform_skip(t, "%s", conform_last_error());
        return;
    }
    if (!conform_lab_open(&lab, t))
        return;
    for (const layer_t *l = layers; l->batch > 0; l++) {
        const block_t blocks[2] = {{.rank = t->rank, .ranks = t->size},
                                   {.rank = t->rank, .ranks = t->size, .ep_vt = ep_table}};

        if (l->experts % (uint32_t)t->size == 0 &&
            !same_bits(&lab, l, blocks, "the plugin's own exchanges and ep_exchange"))
            return;
    }
    conform_lab_close(&lab);
}

/* Rows of each expert in token order; row i goes to replica (i + rank + micro-batch) mod c. Alone,
 * with a gradient that only that replica's rows have: w_down of a replica is changed, and only the
 * tokens whose rows it gets change. */
static void rows_go_to_replicas_in_turn(conform_t *t)
{
    static const int32_t placement[] = {0, 0, 0};
    const layer_t layer = {.batch = 1, .sequence = 7, .hidden = 3, .experts = 1, .top_k = 1, .width = 2};
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int32_t microbatch = 0; microbatch < 4; microbatch++)
        for (int32_t replica = 0; replica < 3; replica++) {
            block_t b = {.replicas = 3, .placement = placement};
            size_t first;
            double *params, *y;
            pass_t p;

            if (!open_layer(&b, &lab, &layer))
                return;
            first = conform_reference_moe_common(&layer) + (size_t)replica * conform_reference_moe_expert(&layer);
            params = conform_area_read(&lab, &b.params);
            for (size_t i = 0; params != NULL && i < b.sizes.param_count; i++)
                if (i >= conform_reference_moe_common(&layer))
                    params[i] = i >= first && i < first + conform_reference_moe_expert(&layer) ? 1 : 0;
            if (params == NULL || !conform_area_write(&lab, &b.params, params) ||
                !conform_pass_open(&p, &b, microbatch) || !conform_pass_run(&p, FORWARD, FORWARD))
                return;
            y = conform_area_read(&lab, &p.y);
            for (int32_t i = 0; y != NULL && i < 7; i++) {
                const bool changed = y[i * 3] != p.xs[0][i * 3];

                EXPECT(
                    t, changed == ((i + microbatch) % 3 == replica),
                    "row %d of micro-batch %d went to %s replica %d of 3: row i goes to (i + rank + micro-batch) mod 3",
                    i, microbatch, changed ? "the" : "another than", replica);
            }
            free(y);
            for (size_t i = 0; i < b.sizes.param_count; i++) /* as conform_block_close finds them */
                params[i] = b.values[moe_index(&b, i)];
            if (!conform_area_write(&lab, &b.params, params) || !conform_pass_close(&p) || !conform_block_close(&b))
                return;
            free(params);
        }
    conform_lab_close(&lab);
}

/* How often each expert is chosen, by the gradient of the bias. */
static bool is_chosen(block_t *b, const double *wanted)
{
    double *grads;
    pass_t p;

    if (!write_params(b) || !conform_area_write(b->lab, &b->grads, b->before) || !conform_pass_open(&p, b, 0) ||
        !conform_pass_run(&p, FORWARD, WEIGHT) || !conform_pass_output_is_right(&p))
        return false;
    grads = conform_block_gradients(b);
    for (size_t e = 0; grads != NULL && e < b->layer.experts; e++)
        CHECK(b->lab->t, grads[b->list[BIAS].offset + e] == wanted[e],
              "expert %zu was chosen %g times, it had to be %g", e, grads[b->list[BIAS].offset + e], wanted[e]);
    free(grads);
    return grads != NULL && conform_pass_close(&p);
}

static void ties_go_to_the_lower_expert(conform_t *t)
{
    static const double lowest[] = {7, 7, 7, 0, 0, 0, 0, 0}, biased[] = {7, 0, 0, 0, 0, 7, 0, 7};
    const layer_t layer = {.batch = 1, .sequence = 7, .hidden = 4, .experts = 8, .top_k = 3, .width = 2};
    block_t b = {0};
    lab_t lab;

    if (!conform_lab_open(&lab, t) || !open_layer(&b, &lab, &layer))
        return;
    set_param(&b, ROUTER, -1, 0);
    set_param(&b, BIAS, -1, 0);
    if (!is_chosen(&b, lowest))
        return;
    set_param(&b, BIAS, 5, 0.25);
    set_param(&b, BIAS, 7, 0.25);
    if (!is_chosen(&b, biased) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

/* Both gates; all experts of a group count or some of them; a token uses several groups or one. */
static const layer_t grouped[] = {
    {.batch = 1,
     .sequence = 9,
     .hidden = 6,
     .experts = 8,
     .top_k = 4,
     .width = 3,
     .shared = 1,
     .gate = DP_GATE_SIGMOID,
     .normalize = 1,
     .scale = 2.5F,
     .aux_alpha = 0.25F,
     .groups = 4,
     .limit = 2},
    {.batch = 2, .sequence = 5, .hidden = 5, .experts = 12, .top_k = 3, .width = 4, .groups = 3, .limit = 2},
    {.batch = 1,
     .sequence = 11,
     .hidden = 4,
     .experts = 12,
     .top_k = 4,
     .width = 3,
     .gate = DP_GATE_SIGMOID,
     .aux_alpha = 0.5F,
     .groups = 4,
     .limit = 3},
    {.batch = 1,
     .sequence = 6,
     .hidden = 5,
     .experts = 8,
     .top_k = 2,
     .width = 2,
     .normalize = 1,
     .groups = 4,
     .limit = 1},
    {.batch = 0},
};

static void tokens_choose_from_few_groups(conform_t *t)
{
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (const layer_t *l = grouped; l->batch > 0; l++) {
        block_t b = {.rank = t->rank, .ranks = t->size};

        if (l->experts % (uint32_t)t->size != 0)
            continue;
        if (!open_layer(&b, &lab, l) || !layer_is_right(&b) || !conform_block_close(&b))
            return;
    }
    conform_lab_close(&lab);
}

/* Two experts of each group count: the best one alone does not make a group the best. */
static void groups_are_judged_by_several(conform_t *t)
{
    static const double lowest[] = {7, 7, 0, 0, 0, 0, 0, 0}, second[] = {0, 0, 7, 7, 0, 0, 0, 0},
                        spread[] = {0, 0, 7, 0, 0, 0, 7, 0};
    const layer_t layer = {
        .batch = 1, .sequence = 7, .hidden = 4, .experts = 8, .top_k = 2, .width = 2, .groups = 4, .limit = 1};
    layer_t two = layer;
    block_t b = {0};
    lab_t lab;

    if (!conform_lab_open(&lab, t) || !open_layer(&b, &lab, &layer))
        return;
    set_param(&b, ROUTER, -1, 0);
    set_param(&b, BIAS, -1, 0);
    if (!is_chosen(&b, lowest)) /* ties go to the lower group */
        return;
    set_param(&b, BIAS, 0, 0.5);
    set_param(&b, BIAS, 2, 0.375);
    set_param(&b, BIAS, 3, 0.25);
    if (!is_chosen(&b, second) || !conform_block_close(&b))
        return;
    two.limit = 2; /* of each group one counts then */
    b = (block_t){0};
    if (!open_layer(&b, &lab, &two))
        return;
    set_param(&b, ROUTER, -1, 0);
    set_param(&b, BIAS, -1, 0);
    set_param(&b, BIAS, 2, 0.5);
    set_param(&b, BIAS, 6, 0.25);
    if (!is_chosen(&b, spread) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

/* A bias that is the same for all chooses as none does, one that is large takes all, and weighs
 * nothing. */
static void bias_is_for_the_choice_alone(conform_t *t)
{
    static const double third[] = {0, 0, 9, 0};
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int gate = 0; gate < 2; gate++) {
        const layer_t layer = {
            .batch = 3, .sequence = 3, .hidden = 5, .experts = 4, .top_k = 1, .width = 3, .gate = (dp_gate_t)gate};
        block_t b = {0};

        if (!open_layer(&b, &lab, &layer))
            return;
        set_param(&b, BIAS, -1, 0.5);
        set_param(&b, BIAS, 2, 64);
        if (!is_chosen(&b, third) || !conform_block_close(&b))
            return;
    }
    conform_lab_close(&lab);
}

/* What was chosen is also the gradient of the bias. */
static void loads_are_the_gradient_of_the_bias(conform_t *t)
{
    static const int64_t none[64];
    area_t counts;
    block_t b = {0};
    pass_t p;
    lab_t lab;

    if (!conform_lab_open(&lab, t) || !open_layer(&b, &lab, &layers[0]) || !conform_pass_open(&p, &b, 0) ||
        !conform_area_open(&lab, &counts, "loads", DP_I64, b.layer.experts * sizeof(int64_t), 0) ||
        !conform_area_put(&lab, &counts, none))
        return;
    b.loads = conform_area_memory(&counts);
    if (conform_pass_call(&p, ROUTE) == DP_ERR_UNSUPPORTED) {
        EXPECT(t, conform_last_error()[0] != '\0', "route refuses loads without a message");
        conform_skip(t, "%s", conform_last_error());
    } else {
        double *grads;
        int64_t *loads;

        if (!conform_lab_wait(&lab, 0, "route") || !conform_pass_run(&p, FORWARD, WEIGHT))
            return;
        grads = conform_block_gradients(&b);
        loads = (int64_t *)(void *)conform_area_bytes(&lab, &counts);
        for (size_t e = 0; grads != NULL && loads != NULL && e < b.layer.experts; e++)
            EXPECT(t, (double)loads[e] == 2 * grads[b.list[BIAS].offset + e],
                   "two routes count %lld tokens of expert %zu, the gradient of the bias one half of %g",
                   (long long)loads[e], e, 2 * grads[b.list[BIAS].offset + e]);
        free(grads);
        free(loads);
    }
    if (conform_failed(t) || !conform_pass_close(&p) || !conform_block_close(&b))
        return;
    conform_area_close(&lab, &counts);
    conform_lab_close(&lab);
}

static void auxiliary_loss_is_optional(conform_t *t)
{
    pass_t p, *all = &p;
    block_t b = {0};
    lab_t lab;

    if (!conform_lab_open(&lab, t) || !open_layer(&b, &lab, &layers[0]) || !conform_pass_open(&p, &b, 0))
        return;
    p.without_aux = true; /* where it would have been added nothing is */
    if (!conform_pass_run(&p, FORWARD, WEIGHT) || !conform_gradients_are_right(&b, &all, 1, true) ||
        !conform_pass_close(&p) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

static const conform_case_t cases[] = {
    KERNEL_CASES,
    {CONFORM_CASE(
         ranks_share_the_experts, 4,
         "Rank p of an expert group of n holds experts p*E/n to (p+1)*E/n - 1: outputs and gradients are those of "
         "the formula, those of experts over the tokens of all ranks."),
     .flags = CONFORM_ALL_SIZES | CONFORM_ONLY_THREADS},
    {CONFORM_CASE(ranks_bring_what_tokens_they_have, 2,
                  "The micro-batches of a group's ranks may have different numbers of tokens "),
     .flags = CONFORM_ONLY_THREADS},
    {CONFORM_CASE(all_tokens_to_one_expert, 2, "One expert may get every token, others none."),
     .flags = CONFORM_ALL_SIZES | CONFORM_ONLY_THREADS},
    {CONFORM_CASE(bits_do_not_depend_on_the_group, 2,
                  "Outputs and their gradients have the same bits whatever the size of the expert group."),
     .flags = CONFORM_ONLY_THREADS},
    {CONFORM_CASE(replicas_share_the_rows, 2,
                  "With replicas outputs are those of the formula, and so are the gradients of an expert's replicas in "
                  "sum."),
     .flags = CONFORM_ALL_SIZES | CONFORM_ONLY_THREADS},
    {CONFORM_CASE(one_replica_of_each_changes_no_bit, 2,
                  "With one replica of each expert, in order, all bits are those without replicas "),
     .flags = CONFORM_ALL_SIZES | CONFORM_ONLY_THREADS},
    {CONFORM_CASE(rows_go_to_replicas_in_turn, 0,
                  "Row i of an expert goes to replica (i + rank + micro-batch) mod c of its c ")},
    {CONFORM_CASE(a_plugin_may_do_dispatch_and_combine, 4,
                  "With config.ep_vt all bits are those of the plugin's own exchanges."),
     .flags = CONFORM_ALL_SIZES | CONFORM_ONLY_THREADS},
    {CONFORM_CASE(shared_experts_may_be_called_apart, 2,
                  "With config.apart, if the plugin has it, shared experts and the sum of the rows are separate "
                  "calls, with the same bits."),
     .flags = CONFORM_ALL_SIZES | CONFORM_ONLY_THREADS},
    {CONFORM_CASE(rows_may_be_posted, 2,
                  "With config.posted, if the plugin has it, calls on one stream post their rows and those that need "
                  "them wait, with the same bits."),
     .flags = CONFORM_ALL_SIZES | CONFORM_ONLY_THREADS},
    {CONFORM_CASE(ties_go_to_the_lower_expert, 0, "Of equal scores the lower expert is chosen.")},
    {CONFORM_CASE(
         tokens_choose_from_few_groups, 4,
         "With groups a token chooses among the experts of route_limit groups: outputs and gradients are those of "
         "the formula."),
     .flags = CONFORM_ALL_SIZES | CONFORM_ONLY_THREADS},
    {CONFORM_CASE(
        groups_are_judged_by_several, 0,
        "Groups are chosen by the sum of their ceil(top_k / route_limit) best experts, the lower one of equals.")},
    {CONFORM_CASE(bias_is_for_the_choice_alone, 0, "The bias decides who is chosen; weights are scores without it.")},
    {CONFORM_CASE(auxiliary_loss_is_optional, 0, "aux_loss may be NULL: gradients are the same.")},
    {CONFORM_CASE(loads_are_the_gradient_of_the_bias, 0,
                  "Where route counts loads, it adds the tokens of each expert, as the bias's gradient has them.")},
    {0},
};

const conform_suite_t conform_moe = {.name = "moe",
                                     .interface = DP_IFACE_MOE,
                                     .plugin = "moe_cpu",
                                     .table_bytes = DP_MOE_VT_MIN,
                                     .needs = CONFORM_NEEDS_DEVICE,
                                     .cases = cases};
