/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * pair.c: the segments of a forward and a backward in one order of enqueueing.
 *
 * A layer is four segments in a row: attention, dispatch, MLP, combine. In the braid of two layers
 * every all-to-all has a compute segment of the other side beside it, and weight gradients stand
 * where only they can hide the gradient's dispatch. Source: deepseek-ai/profile-data, training
 * trace. */
#include "program/pair.h"

#include <stdbool.h>

enum { ATTENTION, DISPATCH, MLP, COMBINE, LAYER };

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

static bool is_layer(const dp__segment_shape_t *s)
{
    return s[ATTENTION].role == DP_ROLE_ATTENTION && s[DISPATCH].role == DP_ROLE_DISPATCH &&
           s[MLP].role == DP_ROLE_MLP && s[COMBINE].role == DP_ROLE_COMBINE;
}

/* The layers at segments a of the forward's and b of the backward's list; -1: there is none. */
static void braid_layers(dp__braid_t *x, int32_t a, int32_t b)
{
    static const struct {
        uint8_t pass, segment;
    } order[] = {
        {DP_OP_I, COMBINE}, {DP_OP_F, ATTENTION}, {DP_OP_I, MLP},       {DP_OP_F, DISPATCH},  {DP_OP_I, DISPATCH},
        {DP_OP_W, MLP},     {DP_OP_F, MLP},       {DP_OP_I, ATTENTION}, {DP_OP_W, ATTENTION}, {DP_OP_F, COMBINE},
    };

    for (size_t k = 0; k < sizeof(order) / sizeof(order[0]); k++) {
        int32_t segment = order[k].segment;

        if (order[k].pass == DP_OP_F && a >= 0)
            put_forward(x, a + segment);
        else if (order[k].pass == DP_OP_W && b >= 0)
            put_backward_weight(x, b + segment);
        else if (order[k].pass == DP_OP_I && b >= 0) {
            put_backward_input(x, b + segment);
            if (segment == COMBINE || segment == DISPATCH)
                put_backward_weight(x, b + segment);
        }
    }
}

int32_t dp__pair_order(const dp__segment_shape_t *forward, int32_t nf, const dp__segment_shape_t *backward, int32_t nb,
                       dp__pair_step_t *steps_out)
{
    dp__braid_t x = {forward, backward, steps_out, 0};
    int32_t a = 0, b = nb; /* forward segments from a on and backward segments below b are left */

    while (a < nf || b > 0) {
        bool layer_f = nf - a >= LAYER && is_layer(&forward[a]);
        bool layer_b = b >= LAYER && is_layer(&backward[b - LAYER]);

        if ((layer_f && layer_b) || (layer_f && b == 0) || (layer_b && a == nf)) {
            braid_layers(&x, layer_f ? a : -1, layer_b ? b - LAYER : -1);
            a += layer_f ? LAYER : 0;
            b -= layer_b ? LAYER : 0;
            continue;
        }
        /* other segments, until both sides stand at a layer */
        if (b > 0 && !layer_b) {
            put_backward_input(&x, --b);
            put_backward_weight(&x, b);
        }
        if (a < nf && !layer_f)
            put_forward(&x, a++);
    }
    return x.count;
}
