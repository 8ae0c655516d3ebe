/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * braid.c: the segments of any passes in one order of enqueueing. */
#include "program/braid.h"

#include <stdbool.h>
#include <string.h>

/* How far each pass has come; W of a B apart, and SHARED segments where the order marks them. */
typedef struct dp__strand {
    const dp__stage_shape_t *stage;
    int kind;
    int32_t done, weights, shared;
    bool marked;
} dp__strand_t;

typedef struct dp__merge {
    dp__strand_t strand[DP_BRAID_PASSES];
    int n;
    dp__braid_step_t *out;
    int32_t count;
} dp__merge_t;

static void put_step(dp__merge_t *x, int pass, int op, int32_t segment)
{
    x->out[x->count++] = (dp__braid_step_t){(uint8_t)pass, (uint8_t)op, (int16_t)segment};
}

/* Where a segment stands in its pass, or the segment that stands there. */
static int32_t turn_of(const dp__strand_t *s, int32_t segment)
{
    return s->kind == DP_OP_F ? segment : s->stage->nsegments - 1 - segment;
}

static bool is_shared(const dp__strand_t *s, int32_t turn)
{
    return turn < s->stage->nsegments && s->stage->segments[turn_of(s, turn)].role == DP_ROLE_SHARED;
}

static void put_turn_of(dp__merge_t *x, int pass, int32_t turn)
{
    const dp__strand_t *s = &x->strand[pass];

    put_step(x, pass, s->kind == DP_OP_B ? DP_OP_I : s->kind, turn_of(s, turn));
}

/* The next segment of a pass; false when there is none. */
static bool put_next_step(dp__merge_t *x, int pass)
{
    dp__strand_t *s = &x->strand[pass];

    s->done += s->marked && is_shared(s, s->done);
    if (s->done == s->stage->nsegments)
        return false;
    put_turn_of(x, pass, s->done++);
    return true;
}

/* The next SHARED segment of a pass; false when there is none, or what it stands between is not
 * done or done already. */
static bool put_next_shared(dp__merge_t *x, int pass)
{
    dp__strand_t *s = &x->strand[pass];
    int32_t turn = s->shared, behind, ahead;

    while (turn < s->stage->nsegments && !is_shared(s, turn))
        turn++;
    if (turn == s->stage->nsegments || s->kind == DP_OP_W)
        return false;
    dp__shared_place(s->stage, turn_of(s, turn), s->kind == DP_OP_F, &behind, &ahead);
    if (s->done <= turn_of(s, behind) || s->done > turn_of(s, ahead))
        return false;
    put_turn_of(x, pass, turn);
    s->shared = turn + 1;
    return true;
}

static bool next_weight(dp__merge_t *x, int pass)
{
    dp__strand_t *s = &x->strand[pass];

    if (s->kind != DP_OP_B || s->weights >= (s->marked && is_shared(s, s->weights) ? s->shared : s->done))
        return false;
    put_step(x, pass, DP_OP_W, s->stage->nsegments - 1 - s->weights++);
    return true;
}

static void merge_in_turns(dp__merge_t *x)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < x->n; i++)
            if (put_next_step(x, i)) {
                (void)next_weight(x, i);
                moved = true;
            }
    }
}

static bool merge_as_written(dp__merge_t *x, const char *order)
{
    for (const char *at = strchr(order, '+'); at != NULL; at = strchr(at + 1, '+'))
        if (at[1] >= 'a' && at[1] < 'a' + x->n)
            x->strand[at[1] - 'a'].marked = true;
    for (; *order != '\0'; order++) {
        bool shared = *order == '+', weight = order[shared] >= 'A' && order[shared] <= 'Z';
        int pass = order[shared] - (weight ? 'A' : 'a');

        order += shared;
        if (pass < 0 || pass >= x->n || !(shared ? put_next_shared : weight ? next_weight : put_next_step)(x, pass))
            return false;
    }
    for (int i = 0; i < x->n; i++) {
        const dp__strand_t *s = &x->strand[i];

        for (int32_t turn = s->marked ? s->shared : s->stage->nsegments; turn < s->stage->nsegments; turn++)
            if (is_shared(s, turn))
                return false;
        if (s->done < s->stage->nsegments || (s->kind == DP_OP_B && s->weights < s->stage->nsegments))
            return false;
    }
    return true;
}

/* One F and one backward at most; false: these passes are no such pair. */
static bool merge_canonically(dp__merge_t *x, dp__pair_step_t *steps)
{
    static const dp__stage_shape_t none = {.nsegments = 0};
    const dp__stage_shape_t *forward = &none, *backward = &none;
    int at[2] = {-1, -1};
    int32_t n;

    for (int i = 0; i < x->n; i++) {
        int side = x->strand[i].kind != DP_OP_F;

        if (at[side] >= 0 || x->strand[i].kind == DP_OP_W)
            return false;
        at[side] = i;
        *(side == 0 ? &forward : &backward) = x->strand[i].stage;
    }
    n = dp__pair_order(forward->segments, forward->nsegments, backward->segments, backward->nsegments, steps);
    for (int32_t k = 0; k < n; k++)
        if (steps[k].pass != DP_OP_W || x->strand[at[1]].kind == DP_OP_B)
            put_step(x, at[steps[k].pass != DP_OP_F], steps[k].pass, steps[k].segment);
    return true;
}

/* ---- forwards two by two, as published ---- */

/* The segment of that role: of the layer that side 0 or 1 is in, or of the one before (shift
 * -1). */
typedef struct dp__turn {
    uint8_t side, role;
    int8_t shift;
} dp__turn_t;

enum { TURNS = 14 };

/* A layer of both, over and over. The first is ahead: what the profiles call micro-batch 1 in
 * prefill and 0 in decode. */
static const dp__turn_t prefill[TURNS] = {
    {0, DP_ROLE_PROJECT, 0}, {0, DP_ROLE_ATTENTION, 0}, {0, DP_ROLE_DISPATCH, 0},  {1, DP_ROLE_SHARED, -1},
    {1, DP_ROLE_SUM, -1},    {1, DP_ROLE_PROJECT, 0},   {1, DP_ROLE_ATTENTION, 0}, {1, DP_ROLE_DISPATCH, 0},
    {0, DP_ROLE_MLP, 0},     {0, DP_ROLE_COMBINE, 0},   {1, DP_ROLE_MLP, 0},       {1, DP_ROLE_COMBINE, 0},
    {0, DP_ROLE_SHARED, 0},  {0, DP_ROLE_SUM, 0},
};
static const dp__turn_t decode[TURNS] = {
    {0, DP_ROLE_PROJECT, 0},  {1, DP_ROLE_MLP, -1},    {1, DP_ROLE_COMBINE, -1},  {0, DP_ROLE_ATTENTION, 0},
    {0, DP_ROLE_DISPATCH, 0}, {0, DP_ROLE_SHARED, 0},  {1, DP_ROLE_SUM, -1},      {1, DP_ROLE_PROJECT, 0},
    {0, DP_ROLE_MLP, 0},      {0, DP_ROLE_COMBINE, 0}, {1, DP_ROLE_ATTENTION, 0}, {1, DP_ROLE_DISPATCH, 0},
    {1, DP_ROLE_SHARED, 0},   {0, DP_ROLE_SUM, 0},
};

/* A layer of a pass; length 0: there is none. */
typedef struct dp__layer {
    int pass;
    int32_t at, length;
} dp__layer_t;

/* A side is every second pass, one after the other: the layer that it is in ([0]), and the one
 * before ([1]). */
typedef struct dp__layers {
    dp__layer_t layer[2];
} dp__layers_t;

static void enter_layer(const dp__merge_t *x, dp__layers_t *l)
{
    dp__layer_t *to = &l->layer[0];
    const dp__stage_shape_t *stage = x->strand[to->pass].stage;

    l->layer[1] = *to;
    to->at += to->length;
    while ((to->length = dp__layer_length(&stage->segments[to->at], stage->nsegments - to->at)) == 0) {
        if (to->at < stage->nsegments)
            to->at++;
        else if (to->pass + 2 < x->n)
            stage = x->strand[to->pass += 2].stage, to->at = 0;
        else
            break;
    }
}

/* Segments of no layer go where their pass comes to them: all until `end`. */
static void put_until(dp__merge_t *x, int pass, int32_t end)
{
    for (; x->strand[pass].done < end; x->strand[pass].done++)
        put_step(x, pass, DP_OP_F, x->strand[pass].done);
}

static void put_turn(dp__merge_t *x, const dp__turn_t *turn, const dp__layers_t *l)
{
    const dp__layer_t *layer = &l->layer[-turn->shift];
    dp__strand_t *s = &x->strand[layer->pass];
    const int32_t found = dp__layer_find(&s->stage->segments[layer->at], layer->length, turn->role);

    if (found < 0)
        return;
    if (found == 0) {
        for (int before = turn->side; before < layer->pass; before += 2)
            put_until(x, before, x->strand[before].stage->nsegments);
        put_until(x, layer->pass, layer->at);
        s->done = layer->at + layer->length;
    }
    put_step(x, layer->pass, DP_OP_F, layer->at + found);
}

static void merge_forwards(dp__merge_t *x, const dp__turn_t *turns)
{
    dp__layers_t layers[2] = {{.layer = {{.pass = 0}}}, {.layer = {{.pass = 1}}}};

    do {
        for (int i = 0; i < 2; i++)
            enter_layer(x, &layers[i]);
        for (int k = 0; k < TURNS; k++)
            put_turn(x, &turns[k], &layers[turns[k].side]);
    } while (layers[0].layer[0].length + layers[1].layer[0].length > 0);
    for (int i = 0; i < x->n; i++)
        put_until(x, i, x->strand[i].stage->nsegments);
}

int32_t dp__braid_order(const char *order, const dp_pass_t *passes, int npasses, const dp__stage_shape_t *const *stages,
                        dp__braid_step_t *steps_out, dp__pair_step_t *scratch)
{
    dp__merge_t x = {.n = npasses, .out = steps_out};
    bool canonical = strcmp(order, "canonical") == 0;
    const dp__turn_t *turns = strcmp(order, "prefill") == 0 ? prefill : strcmp(order, "decode") == 0 ? decode : NULL;

    for (int i = 0; i < npasses; i++)
        x.strand[i] = (dp__strand_t){.stage = stages[i], .kind = passes[i].kind};
    if (canonical && merge_canonically(&x, scratch))
        return x.count;
    if (turns != NULL && dp__order_chains(order, passes, npasses))
        merge_forwards(&x, turns);
    else if (canonical || turns != NULL || strcmp(order, "turns") == 0)
        merge_in_turns(&x);
    else if (!merge_as_written(&x, order))
        return -1;
    return x.count;
}
