/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * pair.c: the segments of a forward and a backward in one order of enqueueing.
 *
 * A layer is attention, dispatch, MLP and combine, or these cut finer (types.h). In the braid of
 * two layers every all-to-all has a compute segment of the other side beside it, and weight
 * gradients stand where only they can hide the gradient's dispatch. Source:
 * deepseek-ai/profile-data, training trace. */
#include "program/pair.h"

#include <stdbool.h>

typedef struct dp__braid {
    const dp__segment_shape_t *forward, *backward;
    dp__pair_step_t *out;
    int32_t count;
} dp__braid_t;

static void put_forward(dp__braid_t *x, int32_t segment)
{
    x->out[x->count++] = (dp__pair_step_t){DP_OP_F, (int16_t)segment};
}

static void put_backward_input(dp__braid_t *x, int32_t segment)
{
    x->out[x->count++] = (dp__pair_step_t){DP_OP_I, (int16_t)segment};
}

static void put_backward_weight(dp__braid_t *x, int32_t segment)
{
    if (x->backward[segment].has_weight)
        x->out[x->count++] = (dp__pair_step_t){DP_OP_W, (int16_t)segment};
}

int32_t dp__layer_length(const dp__segment_shape_t *s, int32_t n)
{
    static const struct {
        uint8_t role;
        bool must;
    } roles[] = {{DP_ROLE_PROJECT, false}, {DP_ROLE_ATTENTION, true}, {DP_ROLE_DISPATCH, true}, {DP_ROLE_MLP, true},
                 {DP_ROLE_SHARED, false},  {DP_ROLE_COMBINE, true},   {DP_ROLE_SUM, false}};
    int32_t at = 0;

    for (size_t k = 0; k < sizeof(roles) / sizeof(roles[0]); k++)
        if (at < n && s[at].role == roles[k].role)
            at++;
        else if (roles[k].must)
            return 0;
    return at;
}

int32_t dp__layer_find(const dp__segment_shape_t *s, int32_t n, int role)
{
    for (int32_t k = 0; k < n; k++)
        if (s[k].role == role)
            return k;
    return -1;
}

int32_t dp__segment_next(const dp__segment_shape_t *s, int32_t segment, int32_t step)
{
    int32_t to = segment + step;

    return s[to].role == DP_ROLE_SHARED ? to + step : to;
}

void dp__shared_place(const dp__stage_shape_t *stage, int32_t shared, bool forward, int32_t *behind_out,
                      int32_t *ahead_out)
{
    const dp__segment_shape_t *s = stage->segments;
    int32_t below = shared - 1, above = shared + 1;

    /* by role as well: what is posted is on the compute lane too */
    while (above + 1 < stage->nsegments && (s[above].lane != DP_LANE_COMPUTE || s[above].role == DP_ROLE_COMBINE))
        above++;
    while (below > 0 && (s[below].lane != DP_LANE_COMPUTE ||
                         (forward && (s[below].role == DP_ROLE_MLP || s[below].role == DP_ROLE_DISPATCH))))
        below--;
    *behind_out = forward ? below : above;
    *ahead_out = forward ? above : below;
}

/* The layer that ends a list; 0: there is none. */
static int32_t last_layer_length(const dp__segment_shape_t *s, int32_t n)
{
    for (int32_t length = n < DP__LAYER_SEGMENTS ? n : DP__LAYER_SEGMENTS; length > 0; length--)
        if (dp__layer_length(&s[n - length], length) == length)
            return length;
    return 0;
}

/* The layers of a and b segments: na from a on in the forward's list, nb from b on in the
 * backward's; 0: there is none. */
static void braid_layers(dp__braid_t *x, int32_t a, int32_t na, int32_t b, int32_t nb)
{
    static const struct {
        uint8_t pass, role;
    } order[] = {
        {DP_OP_I, DP_ROLE_SUM},       {DP_OP_I, DP_ROLE_COMBINE},  {DP_OP_F, DP_ROLE_PROJECT},
        {DP_OP_F, DP_ROLE_ATTENTION}, {DP_OP_I, DP_ROLE_SHARED},   {DP_OP_I, DP_ROLE_MLP},
        {DP_OP_F, DP_ROLE_DISPATCH},  {DP_OP_I, DP_ROLE_DISPATCH}, {DP_OP_W, DP_ROLE_SHARED},
        {DP_OP_W, DP_ROLE_MLP},       {DP_OP_F, DP_ROLE_MLP},      {DP_OP_F, DP_ROLE_SHARED},
        {DP_OP_I, DP_ROLE_ATTENTION}, {DP_OP_I, DP_ROLE_PROJECT},  {DP_OP_W, DP_ROLE_ATTENTION},
        {DP_OP_W, DP_ROLE_PROJECT},   {DP_OP_F, DP_ROLE_COMBINE},  {DP_OP_F, DP_ROLE_SUM},
    };

    for (size_t k = 0; k < sizeof(order) / sizeof(order[0]); k++) {
        int role = order[k].role;
        int32_t f = dp__layer_find(x->forward + a, na, role), i = dp__layer_find(x->backward + b, nb, role);

        if (order[k].pass == DP_OP_F && f >= 0)
            put_forward(x, a + f);
        else if (order[k].pass == DP_OP_W && i >= 0)
            put_backward_weight(x, b + i);
        else if (order[k].pass == DP_OP_I && i >= 0) {
            put_backward_input(x, b + i);
            if (role == DP_ROLE_COMBINE || role == DP_ROLE_DISPATCH || role == DP_ROLE_SUM)
                put_backward_weight(x, b + i);
        }
    }
}

int32_t dp__pair_order(const dp__segment_shape_t *forward, int32_t nf, const dp__segment_shape_t *backward, int32_t nb,
                       dp__pair_step_t *steps_out)
{
    dp__braid_t x = {forward, backward, steps_out, 0};
    int32_t a = 0, b = nb; /* forward segments from a on and backward segments below b are left */

    while (a < nf || b > 0) {
        int32_t layer_f = dp__layer_length(&forward[a], nf - a), layer_b = last_layer_length(backward, b);

        if ((layer_f > 0 && (layer_b > 0 || b == 0)) || (layer_b > 0 && a == nf)) {
            braid_layers(&x, a, layer_f, b - layer_b, layer_b);
            a += layer_f;
            b -= layer_b;
            continue;
        }
        /* other segments, until both sides stand at a layer */
        if (b > 0 && layer_b == 0) {
            put_backward_input(&x, --b);
            put_backward_weight(&x, b);
        }
        if (a < nf && layer_f == 0)
            put_forward(&x, a++);
    }
    return x.count;
}
