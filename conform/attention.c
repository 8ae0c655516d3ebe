/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention.c: the contract of dp.attention/1. What it shares with MoE is in kernel.c and
 * kernel_cases.c. */
#include "kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const dp_attention_vt_t *table_of(const block_t *b)
{
    return b->lab->t->table;
}

static const step_t steps[] = {
    {.name = "forward", .phase = FORWARD, .x = true, .y = true},
    {.name = "backward_input", .phase = BACKWARD, .dy = true, .dx = true},
    {.name = "backward_weight", .phase = WEIGHT},
};

/* Heads in groups, values of another width than keys, one token, sequences that fill no tile, more
 * heads than a small table has. Two are for plugins whose heads come in multiples of 8 or 64. */
static const layer_t layers[] = {
    {.batch = 3, .sequence = 7, .hidden = 5, .heads = 6, .kv_heads = 2, .head_dim = 4, .value_dim = 3},
    {.batch = 1, .sequence = 1, .hidden = 3, .heads = 1, .kv_heads = 1, .head_dim = 2},
    {.batch = 3, .sequence = 1, .hidden = 4, .heads = 2, .kv_heads = 2, .head_dim = 6, .value_dim = 7},
    {.batch = 1, .sequence = 5, .hidden = 6, .heads = 4, .kv_heads = 1, .head_dim = 6, .norm_eps = 0.5F, .theta = 7},
    {.batch = 2, .sequence = 4, .hidden = 2, .heads = 2, .kv_heads = 1, .head_dim = 64, .value_dim = 64},
    {.batch = 1, .sequence = 6, .hidden = 3, .heads = 2, .kv_heads = 2, .head_dim = 64, .value_dim = 64},
    {.batch = 1, .sequence = 3, .hidden = 2, .heads = 34, .kv_heads = 17, .head_dim = 2},
    {.batch = 0},
};

static const layer_t larger[] = {
    {.batch = 3, .sequence = 65, .hidden = 8, .heads = 6, .kv_heads = 2, .head_dim = 4, .value_dim = 6},
    {.batch = 1, .sequence = 257, .hidden = 4, .heads = 2, .kv_heads = 1, .head_dim = 2},
    {.batch = 1, .sequence = 130, .hidden = 9, .heads = 3, .kv_heads = 3, .head_dim = 10, .value_dim = 1},
    {.batch = 2, .sequence = 65, .hidden = 16, .heads = 6, .kv_heads = 2, .head_dim = 64, .value_dim = 64},
    {.batch = 1, .sequence = 77, .hidden = 24, .heads = 2, .kv_heads = 2, .head_dim = 128, .value_dim = 128},
    {.batch = 65537, .sequence = 1, .hidden = 1, .heads = 1, .kv_heads = 1, .head_dim = 2},
    {.batch = 0},
};

/* Latent attention: queries with a latent and without, one token, one head, values of another width
 * or that of the part that is not rotated. The last of each have multiples of 64. */
static const layer_t latent_layers[] = {
    {.batch = 2,
     .sequence = 5,
     .hidden = 6,
     .heads = 3,
     .head_dim = 6,
     .value_dim = 3,
     .q_rank = 5,
     .kv_rank = 4,
     .rope_dim = 2},
    {.batch = 1, .sequence = 1, .hidden = 3, .heads = 1, .head_dim = 4, .kv_rank = 2, .rope_dim = 2},
    {.batch = 3,
     .sequence = 4,
     .hidden = 5,
     .heads = 2,
     .head_dim = 10,
     .kv_rank = 7,
     .rope_dim = 4,
     .norm_eps = 0.5F,
     .theta = 7},
    {.batch = 1,
     .sequence = 6,
     .hidden = 2,
     .heads = 2,
     .head_dim = 128,
     .value_dim = 64,
     .q_rank = 3,
     .kv_rank = 2,
     .rope_dim = 64},
    {.batch = 0},
};

static const layer_t latent_larger[] = {
    {.batch = 2,
     .sequence = 65,
     .hidden = 8,
     .heads = 3,
     .head_dim = 6,
     .value_dim = 5,
     .q_rank = 6,
     .kv_rank = 5,
     .rope_dim = 4},
    {.batch = 1, .sequence = 257, .hidden = 4, .heads = 2, .head_dim = 4, .kv_rank = 3, .rope_dim = 2},
    {.batch = 1,
     .sequence = 77,
     .hidden = 24,
     .heads = 2,
     .head_dim = 192,
     .value_dim = 128,
     .q_rank = 20,
     .kv_rank = 16,
     .rope_dim = 64},
    {.batch = 0},
};

/* One token, a last sequence that is cut off, documents of one token and as long as a sequence,
 * across its end; with documents alone and with fewer tokens as well. */
static const layer_t shorter[] = {
    {.batch = 2, .sequence = 5, .tokens = 1, .hidden = 3, .heads = 2, .kv_heads = 1, .head_dim = 4},
    {.batch = 3, .sequence = 4, .tokens = 7, .hidden = 5, .heads = 4, .kv_heads = 2, .head_dim = 4, .value_dim = 3},
    {.batch = 2,
     .sequence = 5,
     .tokens = 10,
     .documents = 4,
     .ends = {1, 3, 8, 10},
     .hidden = 4,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 2},
    {.batch = 1,
     .sequence = 9,
     .tokens = 8,
     .documents = 2,
     .ends = {5, 8},
     .hidden = 4,
     .heads = 2,
     .kv_heads = 2,
     .head_dim = 64,
     .value_dim = 64},
    {.batch = 0},
};

static const layer_t latent_shorter[] = {
    {.batch = 2,
     .sequence = 5,
     .tokens = 7,
     .hidden = 6,
     .heads = 3,
     .head_dim = 6,
     .value_dim = 3,
     .q_rank = 5,
     .kv_rank = 4,
     .rope_dim = 2},
    {.batch = 2,
     .sequence = 4,
     .tokens = 7,
     .documents = 3,
     .ends = {1, 3, 7},
     .hidden = 5,
     .heads = 2,
     .head_dim = 10,
     .kv_rank = 7,
     .rope_dim = 4},
    {.batch = 0},
};

#define IN_CONFIG(member) .offset = offsetof(dp_attention_config_t, member)
#define IN_SHAPE(member)  .in_shape = true, .offset = offsetof(dp_block_shape_t, member)

static const wrong_t wrongs[] = {
    {.what = "no shape", IN_CONFIG(shape), .pointer = true},
    {.what = "batch 0", IN_SHAPE(batch)},
    {.what = "sequence 0", IN_SHAPE(sequence)},
    {.what = "hidden 0", IN_SHAPE(hidden)},
    {.what = "norm_eps -1", IN_SHAPE(norm_eps), .bits = 0xbf800000},
    {.what = "norm_eps NaN", IN_SHAPE(norm_eps), .bits = 0x7fc00000},
    {.what = "heads 0", IN_CONFIG(heads)},
    {.what = "kv_heads 0", IN_CONFIG(kv_heads)},
    {.what = "heads that kv_heads does not divide", IN_CONFIG(kv_heads), .bits = 5},
    {.what = "head_dim 0", IN_CONFIG(head_dim)},
    {.what = "an odd head_dim", IN_CONFIG(head_dim), .bits = 5},
    {.what = "rope_theta -5", IN_CONFIG(rope_theta), .bits = 0xc0a00000},
    {.what = "rope_theta infinite", IN_CONFIG(rope_theta), .bits = 0x7f800000},
    {.what = NULL},
};

static const wrong_t latent_wrongs[] = {
    {.what = "no shape", IN_CONFIG(shape), .pointer = true},
    {.what = "heads 0", IN_CONFIG(heads)},
    {.what = "head_dim 0", IN_CONFIG(head_dim)},
    {.what = "kv_heads beside kv_rank", IN_CONFIG(kv_heads), .bits = 1},
    {.what = "kv_rank 0 beside rope_dim", IN_CONFIG(kv_rank)},
    {.what = "rope_dim 0", IN_CONFIG(rope_dim)},
    {.what = "an odd rope_dim", IN_CONFIG(rope_dim), .bits = 3},
    {.what = "a head no wider than rope_dim", IN_CONFIG(head_dim), .bits = 2},
    {.what = "a rope_dim wider than a head", IN_CONFIG(rope_dim), .bits = 1 << 16},
    {.what = NULL},
};

static dp_status_t attention_open(block_t *b)
{
    struct {
        dp_block_shape_t shape;
        unsigned char longer[KERNEL_TAIL];
    } shape;
    struct {
        dp_attention_config_t config;
        unsigned char longer[KERNEL_TAIL];
    } room;
    dp_attention_t *attention = NULL;
    dp_status_t status;

    conform_kernel_shape(b, &shape, sizeof(shape));
    memset(&room, b->tail, sizeof(room));
    room.config = (dp_attention_config_t){
        .struct_size = b->config_bytes != 0 ? b->config_bytes : sizeof(room.config),
        .shape = &shape.shape,
        .heads = b->layer.heads,
        .kv_heads = b->layer.kv_heads,
        .head_dim = b->layer.head_dim,
        .value_dim = b->layer.value_dim,
        .rope_theta = b->layer.theta,
        .variable_tokens = b->layer.tokens > 0 &&
                           b->layer.tokens<b->layer.batch * b->layer.sequence, .documents = b->layer.documents> 0,
        .deterministic = b->deterministic,
        .device_vt = b->lab->vt,
        .device = b->lab->device,
        .q_rank = b->layer.q_rank,
        .kv_rank = b->layer.kv_rank,
        .rope_dim = b->layer.rope_dim,
        .recompute = b->recompute,
        .apart = b->apart,
        .cache_slots = b->cache_slots,
        .cache_tokens = b->cache_slots > 0 ? b->layer.sequence : 0,
        .settings = b->lab->t->settings[0] != '\0' ? b->lab->t->settings : NULL,
    };
    conform_kernel_wrong(b, &room.config, &shape.shape);
    status = table_of(b)->open(b->lab->host, &room.config, &attention);
    memset(&shape, 0xff, sizeof(shape)); /* borrowed during open */
    memset(&room, 0xff, sizeof(room));
    b->instance = attention;
    return status;
}

static void attention_close(block_t *b)
{
    table_of(b)->close(b->instance);
}

static void close_nothing(const conform_t *t)
{
    const dp_attention_vt_t *vt = t->table;

    vt->close(NULL);
}

static dp_status_t attention_sizes(const block_t *b, dp_block_sizes_t *out)
{
    return table_of(b)->sizes(b->instance, out);
}

static dp_status_t attention_params(const block_t *b, dp_param_t *out)
{
    return table_of(b)->params(b->instance, out);
}

/* Between the halves anything may be written to scratch; the first gets no y and no dx, the second
 * no dy. */
static dp_status_t call_halves(pass_t *p, int step, const dp_io_t *io)
{
    const block_t *b = p->block;
    const dp_attention_vt_t *vt = table_of(b);
    dp_status_t (*const halves[][2])(dp_attention_t *, const dp_io_t *,
                                     dp_stream_t *) = {{vt->project, vt->attend},
                                                       {vt->attend_backward_input, vt->project_backward_input},
                                                       {vt->attend_backward_weight, vt->project_backward_weight}};
    dp_io_t half = *io;
    dp_status_t status;

    half.y = NULL;
    half.dx = NULL;
    status = halves[step][0](b->instance, &half, b->lab->lanes[0]);
    if (status < 0 || !conform_lab_wait(b->lab, 0, "the first half of a call") ||
        !conform_area_poison(b->lab, &b->scratch[0]))
        return status < 0 ? status : DP_ERR_PLUGIN;
    half = *io;
    half.dy = NULL;
    return halves[step][1](b->instance, &half, b->lab->lanes[0]);
}

static dp_status_t attention_call(pass_t *p, int step, const dp_io_t *io)
{
    const dp_attention_vt_t *vt = table_of(p->block);
    dp_status_t (*const calls[])(dp_attention_t *, const dp_io_t *, dp_stream_t *) = {vt->forward, vt->backward_input,
                                                                                      vt->backward_weight};

    return p->block->sizes.apart ? call_halves(p, step, io)
                                 : calls[step](p->block->instance, io, p->block->lab->lanes[0]);
}

static dp_status_t attention_recompute(pass_t *p, const dp_io_t *io)
{
    return table_of(p->block)->recompute(p->block->instance, io, p->block->lab->lanes[0]);
}

static size_t attention_index(const block_t *b, size_t i)
{
    (void)b;
    return i;
}

static double reference(const layer_t *layer, const double *params, const double *x, double *y, int *chosen, bool fixed)
{
    (void)chosen;
    (void)fixed;
    conform_reference_attention(layer, params, x, 0, y);
    return 0;
}

static bool list_is_right(const block_t *b)
{
    const layer_t *l = &b->layer;
    const size_t d = l->hidden, value = l->value_dim != 0 ? l->value_dim : l->head_dim, o = l->heads * value;
    const expected_t expected[] = {
        {.name = "norm", .kind = DP_PARAM_VECTOR, .count = d, .start = 1},
        {.name = "wq", .count = d * l->heads * l->head_dim, .fan_in = d},
        {.name = "wk", .count = d * l->kv_heads * l->head_dim, .fan_in = d},
        {.name = "wv", .count = d * l->kv_heads * value, .fan_in = d},
        {.name = "wo", .count = o * d, .fan_in = o},
    };

    return conform_kernel_list_is_right(b, expected, 5);
}

static bool latent_list_is_right(const block_t *b)
{
    const layer_t *l = &b->layer;
    const size_t d = l->hidden, nope = l->head_dim - l->rope_dim, rank = l->kv_rank;
    const size_t value = l->value_dim != 0 ? l->value_dim : nope, o = l->heads * value, q = l->heads * l->head_dim;
    expected_t expected[9];
    uint32_t count = 0;

    expected[count++] = (expected_t){.name = "norm", .kind = DP_PARAM_VECTOR, .count = d, .start = 1};
    if (l->q_rank > 0) {
        expected[count++] = (expected_t){.name = "wq_down", .count = d * l->q_rank, .fan_in = d};
        expected[count++] = (expected_t){.name = "q_norm", .kind = DP_PARAM_VECTOR, .count = l->q_rank, .start = 1};
        expected[count++] = (expected_t){.name = "wq_up", .count = l->q_rank * q, .fan_in = l->q_rank};
    } else {
        expected[count++] = (expected_t){.name = "wq", .count = d * q, .fan_in = d};
    }
    expected[count++] = (expected_t){.name = "wkv_down", .count = d * (rank + l->rope_dim), .fan_in = d};
    expected[count++] = (expected_t){.name = "kv_norm", .kind = DP_PARAM_VECTOR, .count = rank, .start = 1};
    expected[count++] = (expected_t){.name = "wk_up", .count = rank * l->heads * nope, .fan_in = rank};
    expected[count++] = (expected_t){.name = "wv_up", .count = rank * o, .fan_in = rank};
    expected[count++] = (expected_t){.name = "wo", .count = o * d, .fan_in = o};
    return conform_kernel_list_is_right(b, expected, count);
}

const kind_t conform_kernel_latent = {
    .steps = steps,
    .nsteps = 3,
    .layers = latent_layers,
    .larger = latent_larger,
    .shorter = latent_shorter,
    .wrongs = latent_wrongs,
    .config_min = DP_ATTENTION_CONFIG_MIN,
    .open = attention_open,
    .close = attention_close,
    .close_nothing = close_nothing,
    .sizes = attention_sizes,
    .params = attention_params,
    .call = attention_call,
    .recompute = attention_recompute,
    .whole = conform_reference_attention_params,
    .common = conform_reference_attention_params,
    .index = attention_index,
    .reference = reference,
    .list_is_right = latent_list_is_right,
};

const kind_t conform_kernel_attention = {
    .steps = steps,
    .nsteps = 3,
    .layers = layers,
    .larger = larger,
    .shorter = shorter,
    .wrongs = wrongs,
    .config_min = DP_ATTENTION_CONFIG_MIN,
    .open = attention_open,
    .close = attention_close,
    .close_nothing = close_nothing,
    .sizes = attention_sizes,
    .params = attention_params,
    .call = attention_call,
    .recompute = attention_recompute,
    .whole = conform_reference_attention_params,
    .common = conform_reference_attention_params,
    .index = attention_index,
    .reference = reference,
    .list_is_right = list_is_right,
};

/* ---- what is attention's alone ---- */

/* The longest layer that the plugin supports, in f64 if it can. */
static bool open_long(block_t *b, lab_t *lab, conform_t *t)
{
    static const dp_dtype_t dtypes[] = {DP_F64, DP_F32, DP_BF16};

    if (!conform_lab_open(lab, t))
        return false;
    for (int i = 0; i < 3; i++)
        for (const layer_t *l = conform_kernel_kind(t)->larger; l->batch > 0; l++) {
            layer_t layer = *l;

            layer.dtype = dtypes[i];
            layer.batch = 3;
            if (conform_block_open(b, lab, &layer, 67))
                return true;
            if (conform_failed(t))
                return false;
        }
    conform_skip(t, "supports no layer of the suite: %s", conform_last_error());
    conform_lab_close(lab);
    return false;
}

/* Bytes of y for this x; the pass is used again and again. */
static unsigned char *output_for(pass_t *p, const double *x)
{
    memcpy(p->xs[0], x, conform_area_count(&p->x) * sizeof(*x));
    if (!conform_area_write(p->block->lab, &p->x, p->xs[0]) || !conform_area_poison(p->block->lab, &p->y) ||
        !conform_pass_run(p, FORWARD, FORWARD))
        return NULL;
    return conform_area_bytes(p->block->lab, &p->y);
}

/* Whether what comes before the changed token, in the second of three sequences, kept its bits. */
static bool sees_back_only(conform_t *t, const block_t *b, const unsigned char *before, const unsigned char *after,
                           size_t changed)
{
    const size_t row = b->layer.hidden * dp_dtype_bytes(b->layer.dtype), sequence = b->layer.sequence;

    for (size_t at = 0; at < 3 * sequence; at++) {
        const bool same = memcmp(before + at * row, after + at * row, row) == 0;
        const bool later = at >= sequence + changed && at < 2 * sequence;

        CHECK(t, later || same,
              "token %zu of sequence %zu was changed, and the output of token %zu of sequence %zu with it", changed,
              (size_t)1, at % sequence, at / sequence);
        CHECK(t, !later || !same, "token %zu was changed, and the output of token %zu does not see it", changed,
              at % sequence);
    }
    return true;
}

static void outputs_see_the_past_and_themselves(conform_t *t)
{
    static const size_t changed[] = {0, 1, 31, 32, 63, 64};
    unsigned char *before, *after;
    block_t b = {.deterministic = 1};
    double *x, *other;
    pass_t p;
    lab_t lab;

    if (!open_long(&b, &lab, t) || !conform_pass_open(&p, &b, 0))
        return;
    x = malloc(conform_area_count(&p.x) * sizeof(*x));
    other = malloc(conform_area_count(&p.x) * sizeof(*other));
    memcpy(x, p.xs[0], conform_area_count(&p.x) * sizeof(*x));
    before = output_for(&p, x);
    for (size_t i = 0; before != NULL && i < sizeof(changed) / sizeof(changed[0]); i++) {
        const size_t at = (b.layer.sequence + changed[i]) * b.layer.hidden;

        memcpy(other, x, conform_area_count(&p.x) * sizeof(*x));
        for (size_t j = at; j < at + b.layer.hidden; j++)
            other[j] = (double)(j - at + 1) / 4;
        after = output_for(&p, other);
        if (after == NULL || !sees_back_only(t, &b, before, after, changed[i]))
            return;
        free(after);
    }
    free(before);
    free(x);
    free(other);
    if (!conform_pass_close(&p) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

/* dy is not zero at one token, in the second of three sequences. */
static bool gradient_goes_back_only(pass_t *p, size_t wanted)
{
    block_t *b = p->block;
    const size_t d = b->layer.hidden, sequence = b->layer.sequence, token = sequence + wanted;
    double *dx;

    memset(p->dys[0], 0, conform_area_count(&p->dy) * sizeof(double));
    for (size_t i = 0; i < d; i++)
        p->dys[0][token * d + i] = (double)(i + 1) / 8;
    if (!conform_area_write(b->lab, &p->x, p->xs[0]) || !conform_area_write(b->lab, &p->dy, p->dys[0]) ||
        !conform_area_poison(b->lab, &p->dx) || !conform_pass_run(p, FORWARD, BACKWARD))
        return false;
    dx = conform_area_read(b->lab, &p->dx);
    for (size_t at = 0; dx != NULL && at < 3 * sequence; at++) {
        double most = 0;

        for (size_t i = at * d; i < (at + 1) * d; i++)
            most = fmax(most, dx[i] == dx[i] ? fabs(dx[i]) : INFINITY);
        if (at < sequence || at > token)
            CHECK(b->lab->t, most == 0,
                  "dy is not zero at token %zu of sequence 1 alone, and dx is %g at token %zu of sequence %zu", wanted,
                  most, at % sequence, at / sequence);
        else
            CHECK(b->lab->t, most > 0, "dy is not zero at token %zu, and dx is zero at token %zu, which it sees",
                  wanted, at % sequence);
    }
    free(dx);
    return dx != NULL;
}

static void gradients_reach_the_past_and_themselves(conform_t *t)
{
    static const size_t wanted[] = {0, 1, 33, 64};
    block_t b = {0};
    pass_t p;
    lab_t lab;

    if (!open_long(&b, &lab, t) || !conform_pass_open(&p, &b, 0))
        return;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        if (!gradient_goes_back_only(&p, wanted[i]))
            return;
    if (!conform_pass_close(&p) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

/* Runs document i of `packed` as its own micro-batch; whether its part of y and dx is the same. */
static bool same_alone(const pass_t *packed, uint32_t first, uint32_t count, const double *y, const double *dx)
{
    block_t *b = packed->block;
    const layer_t whole = b->layer;
    const double tolerance = conform_kernel_tolerance(whole.dtype).output;
    const size_t d = whole.hidden;
    double *own_y, *own_dx;
    pass_t p;

    b->layer.tokens = count;
    b->layer.documents = 0;
    if (!conform_pass_open(&p, b, 1))
        return false;
    memcpy(p.xs[0], packed->xs[0] + first * d, count * d * sizeof(double));
    memcpy(p.dys[0], packed->dys[0] + first * d, count * d * sizeof(double));
    if (!conform_area_write(b->lab, &p.x, p.xs[0]) || !conform_area_write(b->lab, &p.dy, p.dys[0]) ||
        !conform_pass_run(&p, FORWARD, WEIGHT))
        return false;
    own_y = conform_area_read(b->lab, &p.y);
    own_dx = conform_area_read(b->lab, &p.dx);
    for (size_t i = 0; own_y != NULL && own_dx != NULL && i < count * d; i++) {
        CHECK(b->lab->t, fabs(own_y[i] - y[first * d + i]) <= tolerance * (1 + fabs(own_y[i])),
              "y of token %zu of the document at %u is %.9g alone and %.9g packed", i / d, first, own_y[i],
              y[first * d + i]);
        CHECK(b->lab->t, fabs(own_dx[i] - dx[first * d + i]) <= 10 * tolerance * (1 + fabs(own_dx[i])),
              "dx of token %zu of the document at %u is %.9g alone and %.9g packed", i / d, first, own_dx[i],
              dx[first * d + i]);
    }
    free(own_y);
    free(own_dx);
    b->layer = whole;
    return conform_pass_close(&p);
}

/* Gradients are added up: packed once and each document alone make twice those of packed. */
static bool gradients_doubled(block_t *b, const double *once)
{
    const double tolerance = 10 * conform_kernel_tolerance(b->layer.dtype).output;
    double *twice = conform_block_gradients(b);

    for (size_t i = 0; twice != NULL && i < b->sizes.param_count; i++)
        CHECK(b->lab->t, fabs(twice[i] - 2 * once[i]) <= tolerance * (1 + fabs(once[i])) * 8,
              "gradient %zu is %.9g packed and %.9g of the documents alone", i, once[i], twice[i] - once[i]);
    free(twice);
    return twice != NULL;
}

static void documents_are_as_if_alone(conform_t *t)
{
    const layer_t *l = conform_kernel_kind(t)->shorter;
    double *y, *dx, *once;
    block_t b = {0};
    layer_t layer;
    pass_t p;
    lab_t lab;

    while (l->documents == 0)
        l++;
    layer = *l;
    layer.dtype = DP_F32;
    if (!conform_lab_open(&lab, t))
        return;
    if (!conform_block_open(&b, &lab, &layer, 37)) {
        if (!conform_failed(t)) {
            conform_skip(t, "%s", conform_last_error());
            conform_lab_close(&lab);
        }
        return;
    }
    if (!conform_pass_open(&p, &b, 0) || !conform_pass_run(&p, FORWARD, WEIGHT))
        return;
    y = conform_area_read(&lab, &p.y);
    dx = conform_area_read(&lab, &p.dx);
    once = conform_block_gradients(&b);
    for (uint32_t i = 0; y != NULL && dx != NULL && i < layer.documents; i++) {
        const uint32_t first = i > 0 ? layer.ends[i - 1] : 0;

        if (!same_alone(&p, first, layer.ends[i] - first, y, dx))
            return;
    }
    if (once == NULL || !gradients_doubled(&b, once))
        return;
    free(y);
    free(dx);
    free(once);
    if (!conform_pass_close(&p) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

/* exp() of logits around 1e4 overflows, of their differences to the largest it does not. */
static void large_logits_do_not_overflow(conform_t *t)
{
    block_t b = {0};
    pass_t p;
    lab_t lab;

    if (!open_long(&b, &lab, t) || !conform_pass_open(&p, &b, 0))
        return;
    /* behind the norm of a latent, where queries have one */
    for (uint32_t p = 0; p < b.sizes.nparams; p++)
        if (strcmp(b.list[p].name, "wq") == 0 || strcmp(b.list[p].name, "wq_up") == 0)
            for (size_t i = b.list[p].offset; i < b.list[p].offset + b.list[p].count; i++)
                b.values[i] *= 8192;
    if (!conform_area_write(&lab, &b.params, b.values) || !conform_pass_run(&p, FORWARD, WEIGHT))
        return;
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"y", "dx", "a parameter's gradient"};
        const area_t *area = i == 0 ? &p.y : i == 1 ? &p.dx : &b.grads;
        double *values = conform_area_read(&lab, area);

        for (size_t j = 0; values != NULL && j < conform_area_count(area); j++)
            EXPECT(t, isfinite(values[j]), "logits of some thousand make %s %g", names[i], values[j]);
        free(values);
    }
    if (!conform_pass_close(&p) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

/* All bytes of y, dx and the gradients of one micro-batch, behind each other; NULL: failed, or not
 * for this plugin. */
static unsigned char *all_bytes(lab_t *lab, const layer_t *layer, const block_t *how, size_t *count_out)
{
    block_t b = *how;
    unsigned char *all = NULL;
    pass_t p;

    if (!conform_block_open(&b, lab, layer, 79) || !conform_pass_open(&p, &b, 2) ||
        !conform_pass_run(&p, FORWARD, WEIGHT))
        return NULL;
    *count_out = 0;
    for (int k = 0; k < 3; k++) {
        const area_t *area = k == 0 ? &p.y : k == 1 ? &p.dx : &b.grads;
        unsigned char *bytes = conform_area_bytes(lab, area);

        all = realloc(all, *count_out + area->bytes);
        if (bytes != NULL && all != NULL)
            memcpy(all + *count_out, bytes, area->bytes);
        *count_out += area->bytes;
        free(bytes);
    }
    if (!conform_pass_close(&p) || !conform_block_close(&b)) {
        free(all);
        return NULL;
    }
    return all;
}

static void calls_may_be_made_in_halves(conform_t *t)
{
    static const dp_dtype_t dtypes[] = {DP_F64, DP_F32, DP_BF16};
    lab_t lab;

    if (!conform_lab_open(&lab, t) || !conform_block_takes_apart(&lab))
        return;
    for (const layer_t *l = conform_kernel_kind(t)->layers; l->batch > 0; l++)
        for (int k = 0; k < 3 * (DP_RECOMPUTE_FULL + 1); k++) {
            const block_t whole = {.recompute = (dp_recompute_t)(k / 3), .deterministic = 1};
            block_t halves = whole;
            unsigned char *a, *b = NULL;
            layer_t layer = *l;
            size_t count = 0;
            bool same;

            layer.dtype = dtypes[k % 3];
            halves.apart = 1;
            a = all_bytes(&lab, &layer, &whole, &count);
            if (a != NULL)
                b = all_bytes(&lab, &layer, &halves, &count);
            same = a != NULL && b != NULL && memcmp(a, b, count) == 0;
            EXPECT(t, same || a == NULL,
                   "recompute %d: y, dx or gradients have other bits when calls are made in halves", k / 3);
            free(a);
            free(b);
            if (conform_failed(t))
                return;
        }
    conform_lab_close(&lab);
}

/* ---- requests ---- */

enum { SLOTS = 3 };

/* Two requests, of which each step takes the next tokens of both, and a token without a slot. */
typedef struct serving {
    pass_t pass;
    area_t cache;
    uint32_t *slots, *past; /* [3] where host and device reach them */
    double *rows;           /* of x: the first request, then the second, then the token */
    double *wanted[2];      /* y of each request whole */
} serving_t;

/* The micro-batch: counts[k] tokens of request k from done[k] on, then the token. */
static void fill_requests(serving_t *s, const uint32_t done[2], const uint32_t counts[2])
{
    block_t *b = s->pass.block;
    const size_t d = b->layer.hidden, most = b->layer.sequence;
    double *to = s->pass.xs[0];

    b->layer.documents = 0;
    b->layer.tokens = 0;
    for (uint32_t k = 0; k < 3; k++) {
        const uint32_t first = k < 2 ? done[k] : 0, count = k < 2 ? counts[k] : 1;

        if (count == 0)
            continue;
        memcpy(to + b->layer.tokens * d, s->rows + (k * most + first) * d, count * d * sizeof(*to));
        s->slots[b->layer.documents] = k < 2 ? 2 - 2 * k : DP_NO_SLOT;
        s->past[b->layer.documents] = first;
        b->ends[b->layer.documents++] = b->layer.tokens += count;
    }
}

static dp_status_t call_requests(serving_t *s)
{
    const block_t *b = s->pass.block;
    dp_io_t io = conform_pass_io(&s->pass, 0);

    io.cache = conform_area_memory(&s->cache);
    io.slots = s->slots;
    io.past = s->past;
    return table_of(b)->forward(b->instance, &io, b->lab->lanes[0]);
}

/* One step. Whether y is that of the whole requests. */
static bool step_requests(serving_t *s, const uint32_t done[2], const uint32_t counts[2])
{
    block_t *b = s->pass.block;
    conform_t *t = b->lab->t;
    const double tolerance = conform_kernel_tolerance(b->layer.dtype).output;
    const size_t d = b->layer.hidden;
    double *y;
    size_t row = 0;

    fill_requests(s, done, counts);
    if (!conform_area_write(b->lab, &s->pass.x, s->pass.xs[0]) || !conform_area_poison(b->lab, &s->pass.y) ||
        !conform_area_poison(b->lab, &s->pass.saved) || !conform_area_poison(b->lab, &b->scratch[0]))
        return false;
    CHECK_OK(t, call_requests(s), "forward");
    if (!conform_lab_wait(b->lab, 0, "forward") || !conform_area_whole(b->lab, &s->cache, "forward") ||
        !conform_area_whole(b->lab, &s->pass.y, "forward") || !conform_area_whole(b->lab, &b->scratch[0], "forward"))
        return false;
    y = conform_area_read(b->lab, &s->pass.y);
    for (uint32_t k = 0; k < 2 && y != NULL; row += counts[k++])
        for (size_t i = 0; i < counts[k] * d; i++) {
            const double want = s->wanted[k][done[k] * d + i];

            CHECK(t, fabs(y[row * d + i] - want) <= tolerance * (1 + fabs(want)),
                  "y of token %zu of a request that goes on at token %u is %.9g, and %.9g when it is whole",
                  done[k] + i / d, done[k], y[row * d + i], want);
        }
    free(y);
    return y != NULL;
}

/* Each request whole, as a document without a slot. */
static bool run_whole(serving_t *s)
{
    block_t *b = s->pass.block;
    const size_t d = b->layer.hidden, count = b->layer.sequence * d;

    for (int k = 0; k < 2; k++) {
        memcpy(s->pass.xs[0], s->rows + (size_t)k * count, count * sizeof(double));
        b->layer.documents = 1;
        b->layer.tokens = b->ends[0] = b->layer.sequence;
        if (!conform_area_write(b->lab, &s->pass.x, s->pass.xs[0]) || !conform_pass_run(&s->pass, FORWARD, FORWARD))
            return false;
        s->wanted[k] = conform_area_read(b->lab, &s->pass.y);
        if (s->wanted[k] == NULL)
            return false;
    }
    return true;
}

/* What the cache cannot hold. */
static bool refuses_requests(serving_t *s)
{
    const uint32_t sequence = s->pass.block->layer.sequence;
    const struct {
        const char *what;
        uint32_t slot, past;
    } wrongs[] = {{"a slot that is full", 1, sequence},
                  {"tokens before it that no slot holds", 1, sequence + 1},
                  {"a slot that there is not", SLOTS, 0}};

    for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++) {
        const uint32_t none[2] = {0, 0}, one[2] = {1, 0};

        fill_requests(s, none, one);
        s->slots[0] = wrongs[i].slot;
        s->past[0] = wrongs[i].past;
        CHECK(s->pass.block->lab->t, call_requests(s) == DP_ERR_INVALID, "forward takes %s", wrongs[i].what);
    }
    return true;
}

/* Both requests from the first token to the last: by one token, by parts, beside each other. */
static bool serve_requests(serving_t *s)
{
    static const uint32_t parts[][2] = {{1, 0}, {1, 2}, {0, 1}, {3, 1}, {64, 5}, {1, 1}, {1, 40}, {190, 1}, {2, 255}};
    const size_t nparts = sizeof(parts) / sizeof(parts[0]);
    const uint32_t most = s->pass.block->layer.sequence;
    uint32_t done[2] = {0, 0};

    for (size_t i = 0; done[0] < most || done[1] < most; i++) {
        uint32_t counts[2];

        for (int k = 0; k < 2; k++) {
            counts[k] = parts[i % nparts][k];
            counts[k] = counts[k] < most - done[k] ? counts[k] : most - done[k];
        }
        if (!step_requests(s, done, counts))
            return false;
        done[0] += counts[0];
        done[1] += counts[1];
    }
    done[0] = done[1] = 0;
    /* other requests in the slots */
    return step_requests(s, done, (const uint32_t[]){1, most > 1 ? 2 : 1});
}

static bool requests_of_layer(lab_t *lab, const layer_t *l, dp_dtype_t dtype, bool *taken)
{
    block_t b = {.cache_slots = SLOTS};
    serving_t s = {.pass = {.block = &b}};
    layer_t layer = *l;
    size_t count;

    layer.dtype = dtype;
    layer.batch = 3;
    layer.tokens = 3 * layer.sequence;
    layer.documents = 1;
    if (!conform_block_open(&b, lab, &layer, 83))
        return !conform_failed(lab->t);
    *taken = true;
    CHECK(lab->t, b.sizes.cache_bytes > 0, "open takes cache_slots %d, and sizes say that cache_bytes is 0", SLOTS);
    if (!conform_pass_open(&s.pass, &b, 0) ||
        !conform_area_open(lab, &s.cache, "cache", dtype, b.sizes.cache_bytes, 0) ||
        !conform_area_poison(lab, &s.cache))
        return false;
    s.slots = b.ends + sizeof(layer.ends) / sizeof(*layer.ends);
    s.past = s.slots + sizeof(layer.ends) / sizeof(*layer.ends);
    count = 3 * layer.sequence * layer.hidden * sizeof(double);
    s.rows = malloc(count);
    CHECK(lab->t, s.rows != NULL, "no memory for %zu bytes", count);
    memcpy(s.rows, s.pass.xs[0], count);
    if (!run_whole(&s) || !serve_requests(&s) || !refuses_requests(&s))
        return false;
    memcpy(s.pass.xs[0], s.rows, count);
    free(s.rows);
    free(s.wanted[0]);
    free(s.wanted[1]);
    conform_area_close(lab, &s.cache);
    return conform_pass_close(&s.pass) && conform_block_close(&b);
}

static void requests_go_on_from_step_to_step(conform_t *t)
{
    static const dp_dtype_t dtypes[] = {DP_F64, DP_F32, DP_BF16};
    bool taken = false;
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++)
            for (const layer_t *l = k == 0 ? conform_kernel_kind(t)->layers : conform_kernel_kind(t)->larger;
                 l->batch > 0; l++)
                if (!requests_of_layer(&lab, l, dtypes[i], &taken))
                    return;
    if (!taken)
        conform_skip(t, "%s", conform_last_error());
    conform_lab_close(&lab);
}

/* One graph of all calls: launched twice it gives the same outputs, and adds the gradients
 * twice. */
static void calls_can_be_captured(conform_t *t)
{
    dp_graph_t *graph = NULL;
    block_t b = {0};
    pass_t p, *twice[2] = {&p, &p};
    lab_t lab;

    if ((t->device->caps & DP_DEVICE_CAP_GRAPH) == 0) {
        conform_skip(t, "the device has no graphs");
        return;
    }
    if (!conform_lab_open(&lab, t) || !conform_block_open_any(&b, &lab, 73) || !conform_pass_open(&p, &b, 0))
        return;
    EXPECT_OK(t, lab.vt->capture_begin(lab.lanes[0]));
    for (int i = 0; i < b.kind->nsteps; i++)
        EXPECT_STATUS(t, conform_pass_call(&p, i), DP_OK, "%s while its stream is captured", steps[i].name);
    EXPECT_OK(t, lab.vt->capture_end(lab.lanes[0], &graph));
    for (int i = 0; i < 2; i++) {
        if (!conform_area_poison(&lab, &p.saved) || !conform_area_poison(&lab, &b.scratch[0]) ||
            !conform_area_poison(&lab, &p.y) || !conform_area_poison(&lab, &p.dx))
            return;
        EXPECT_OK(t, lab.vt->graph_launch(graph, lab.lanes[0]));
        if (!conform_lab_wait(&lab, 0, "the graph of all calls"))
            return;
    }
    lab.vt->graph_close(graph);
    if (!conform_pass_output_is_right(&p) || !conform_gradients_are_right(&b, twice, 2, true) ||
        !conform_pass_close(&p) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

/* Twice the sequence: at most twice its own memory, and a little. */
static void memory_is_linear_in_the_sequence(conform_t *t)
{
    dp_block_sizes_t sizes[2] = {{0}};
    block_t b = {0};
    lab_t lab;

    if (!open_long(&b, &lab, t))
        return;
    for (int i = 0; i < 2; i++) {
        block_t longer = {.lab = &lab, .kind = b.kind, .layer = b.layer};

        longer.layer.batch = 1;
        longer.layer.sequence = i == 0 ? 4096 : 8192;
        if (longer.kind->open(&longer) != DP_OK) {
            conform_skip(t, "does not take a sequence of %u: %s", longer.layer.sequence, conform_last_error());
            if (conform_block_close(&b))
                conform_lab_close(&lab);
            return;
        }
        sizes[i].struct_size = sizeof(sizes[i]);
        EXPECT_OK(t, longer.kind->sizes(&longer, &sizes[i]));
        longer.kind->close(&longer);
    }
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"saved_bytes", "work_bytes", "scratch_bytes"};
        const size_t once = i == 0 ? sizes[0].saved_bytes : i == 1 ? sizes[0].work_bytes : sizes[0].scratch_bytes;
        const size_t twice = i == 0 ? sizes[1].saved_bytes : i == 1 ? sizes[1].work_bytes : sizes[1].scratch_bytes;

        EXPECT(t, twice <= 2 * once + 65536,
               "%s grows from %zu to %zu when the sequence doubles: no matrix of sequence x sequence may be kept",
               names[i], once, twice);
    }
    if (!conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

static const conform_case_t cases[] = {
    KERNEL_CASES,
    {CONFORM_CASE(
         outputs_see_the_past_and_themselves, 0,
         "A token's output depends on the tokens of its sequence up to itself, itself included, and on no other: "
         "others may change without a bit of it changing."),
     .flags = CONFORM_FORMULA},
    {CONFORM_CASE(gradients_reach_the_past_and_themselves, 0,
                  "The gradient of a token's output reaches the tokens of its sequence up to itself, and is exactly 0 "
                  "elsewhere."),
     .flags = CONFORM_FORMULA},
    {CONFORM_CASE(documents_are_as_if_alone, 0,
                  "Packed documents give the outputs and gradients that each gives as its own micro-batch.")},
    {CONFORM_CASE(large_logits_do_not_overflow, 0, "Logits of some thousand give finite outputs and gradients.")},
    {CONFORM_CASE(calls_may_be_made_in_halves, 0,
                  "With config.apart, if the plugin has it, each call is two, with the same bits; scratch may change "
                  "between them.")},
    {CONFORM_CASE(requests_go_on_from_step_to_step, 0,
                  "With config.cache_slots, if the plugin has it, requests that go on in parts or token by token give "
                  "the outputs of whole ones; what a slot cannot hold is refused.")},
    {CONFORM_CASE(calls_can_be_captured, 0,
                  "All calls may become a graph of the device, which can be launched again and again.")},
    {CONFORM_CASE(memory_is_linear_in_the_sequence, 0,
                  "Memory grows with the sequence, not with its square: no S x S matrix is kept.")},
    {0},
};

/* ---- the same demands on latent attention ---- */

#define LATENT(function)                                                                                               \
    static void latent_##function(conform_t *t)                                                                        \
    {                                                                                                                  \
        t->variety = 1;                                                                                                \
        function(t);                                                                                                   \
    }
#define LATENT_KERNEL(function)                                                                                        \
    static void latent_##function(conform_t *t)                                                                        \
    {                                                                                                                  \
        t->variety = 1;                                                                                                \
        conform_kernel_##function(t);                                                                                  \
    }
LATENT_KERNEL(params_are_those_of_the_header)
LATENT_KERNEL(outputs_f64)
LATENT_KERNEL(outputs_f32)
LATENT_KERNEL(outputs_bf16)
LATENT_KERNEL(gradients_f64)
LATENT_KERNEL(gradients_f32)
LATENT_KERNEL(gradients_bf16)
LATENT_KERNEL(gradients_are_those_of_its_own_loss)
LATENT_KERNEL(weight_gradients_may_come_late)
LATENT_KERNEL(microbatches_in_flight_do_not_meet)
LATENT_KERNEL(instances_do_not_meet)
LATENT_KERNEL(recomputation_changes_no_bit)
LATENT_KERNEL(microbatches_may_be_shorter)
LATENT(documents_are_as_if_alone)
LATENT_KERNEL(first_stage_needs_no_dx)
LATENT_KERNEL(same_input_same_bits)
LATENT_KERNEL(calls_are_enqueued)
LATENT_KERNEL(structs_may_grow)
LATENT_KERNEL(wrong_settings_are_refused)
LATENT_KERNEL(memory_that_runs_out_leaves_nothing)
LATENT_KERNEL(nothing_is_left_behind)
LATENT(outputs_see_the_past_and_themselves)
LATENT(gradients_reach_the_past_and_themselves)
LATENT(large_logits_do_not_overflow)
LATENT(calls_may_be_made_in_halves)
LATENT(requests_go_on_from_step_to_step)
LATENT(calls_can_be_captured)
LATENT(memory_is_linear_in_the_sequence)

/* Whether the plugin would take it for attention of plain heads. */
static void latent_is_taken_or_refused(conform_t *t)
{
    const dp_attention_vt_t *vt = t->table;
    const layer_t *l = latent_layers;
    const dp_block_shape_t shape = {
        .struct_size = sizeof(shape), .dtype = DP_F32, .batch = l->batch, .sequence = l->sequence, .hidden = l->hidden};
    dp_attention_config_t config = {.struct_size = sizeof(config),
                                    .shape = &shape,
                                    .heads = l->heads,
                                    .head_dim = l->head_dim,
                                    .value_dim = l->value_dim,
                                    .q_rank = l->q_rank,
                                    .kv_rank = l->kv_rank,
                                    .rope_dim = l->rope_dim};
    dp_attention_t *attention = NULL;
    dp_status_t status;
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    config.device_vt = lab.vt;
    config.device = lab.device;
    conform_forget_error();
    status = vt->open(lab.host, &config, &attention);
    EXPECT(t, status == DP_OK || (status == DP_ERR_UNSUPPORTED && conform_last_error()[0] != '\0'),
           "open with kv_rank %u returned %s: it has to be taken, or DP_ERR_UNSUPPORTED with a message", l->kv_rank,
           dp_status_name(status));
    vt->close(status == DP_OK ? attention : NULL);
    conform_lab_close(&lab);
}

#define LATENT_CASE(function) CONFORM_CASE(latent_##function, 0, "Latent attention (kv_rank > 0), likewise.")
static const conform_case_t latent_cases[] = {
    {CONFORM_CASE(latent_is_taken_or_refused, 0,
                  "kv_rank > 0 is taken as the following cases say, or DP_ERR_UNSUPPORTED.")},
    {LATENT_CASE(params_are_those_of_the_header)},
    {LATENT_CASE(outputs_f64), .flags = CONFORM_FORMULA},
    {LATENT_CASE(outputs_f32), .flags = CONFORM_FORMULA},
    {LATENT_CASE(outputs_bf16), .flags = CONFORM_FORMULA},
    {LATENT_CASE(gradients_f64), .flags = CONFORM_FORMULA},
    {LATENT_CASE(gradients_f32), .flags = CONFORM_FORMULA},
    {LATENT_CASE(gradients_bf16), .flags = CONFORM_FORMULA},
    {LATENT_CASE(gradients_are_those_of_its_own_loss)},
    {LATENT_CASE(weight_gradients_may_come_late), .flags = CONFORM_FORMULA},
    {LATENT_CASE(microbatches_in_flight_do_not_meet), .flags = CONFORM_FORMULA},
    {LATENT_CASE(instances_do_not_meet), .flags = CONFORM_FORMULA},
    {LATENT_CASE(recomputation_changes_no_bit)},
    {LATENT_CASE(microbatches_may_be_shorter), .flags = CONFORM_FORMULA},
    {LATENT_CASE(documents_are_as_if_alone)},
    {LATENT_CASE(first_stage_needs_no_dx), .flags = CONFORM_FORMULA},
    {LATENT_CASE(same_input_same_bits)},
    {LATENT_CASE(calls_are_enqueued), .flags = CONFORM_FORMULA},
    {LATENT_CASE(structs_may_grow), .flags = CONFORM_FORMULA},
    {LATENT_CASE(wrong_settings_are_refused)},
    {LATENT_CASE(memory_that_runs_out_leaves_nothing)},
    {LATENT_CASE(nothing_is_left_behind)},
    {LATENT_CASE(outputs_see_the_past_and_themselves), .flags = CONFORM_FORMULA},
    {LATENT_CASE(gradients_reach_the_past_and_themselves), .flags = CONFORM_FORMULA},
    {LATENT_CASE(large_logits_do_not_overflow)},
    {LATENT_CASE(calls_may_be_made_in_halves)},
    {LATENT_CASE(requests_go_on_from_step_to_step)},
    {LATENT_CASE(calls_can_be_captured)},
    {LATENT_CASE(memory_is_linear_in_the_sequence)},
    {0},
};
static const conform_case_t *const more[] = {latent_cases, NULL};

static bool has_own_formula(const void *table)
{
    const dp_attention_vt_t *vt = table;

    return (vt->caps & DP_ATTENTION_CAP_OWN_FORMULA) != 0;
}

const conform_suite_t conform_attention = {.name = "attention",
                                           .interface = DP_IFACE_ATTENTION,
                                           .plugin = "attention_cpu",
                                           .table_bytes = DP_ATTENTION_VT_MIN,
                                           .needs = CONFORM_NEEDS_DEVICE,
                                           .cases = cases,
                                           .more = more,
                                           .own_formula = has_own_formula};
