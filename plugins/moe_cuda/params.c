/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * params.c: the parameter tensors of a block, in the order of moe.h. */
#include "moe_cuda.h"

#include <stdio.h>

enum { NAME_BYTES = 32 }; /* "replicas.1048575.w_gate" */

size_t moe_names_bytes(const moe_shape_t *shape)
{
    return (size_t)shape->n.local * 3 * NAME_BYTES;
}

static char *name_of(const dp_moe_t *moe, int32_t expert, int32_t matrix)
{
    return (char *)(moe + 1) + ((size_t)expert * 3 + (size_t)matrix) * NAME_BYTES;
}

void moe_write_names(dp_moe_t *moe)
{
    static const char *const matrices[] = {"w_gate", "w_up", "w_down"};
    const moe_dims_t *n = &moe->shape.n;
    int32_t e, m;

    for (e = 0; e < n->local; e++)
        for (m = 0; m < 3; m++)
            (void)snprintf(name_of(moe, e, m), NAME_BYTES, "%s.%d.%s",
                           moe->shape.replicated ? "replicas" : "experts", n->rank * n->local + e,
                           matrices[m]);
}

static dp_param_t matrix(const char *name, size_t offset, int32_t rows, int32_t columns, int32_t expert)
{
    const dp_param_t p = {.name = name,
                          .kind = DP_PARAM_MATRIX,
                          .offset = offset,
                          .count = (size_t)rows * (size_t)columns,
                          .fan_in = (uint32_t)rows,
                          .expert = expert};

    return p;
}

dp_status_t moe_params(const dp_moe_t *moe, dp_param_t *out)
{
    const moe_dims_t *n = &moe->shape.n;
    const moe_layout_t *l = &moe->layout;
    const dp_param_t norm = {"norm", DP_PARAM_VECTOR, l->norm, (size_t)n->hidden, 1, 1, -1};
    const dp_param_t bias = {"bias", DP_PARAM_ROUTER_BIAS, l->bias, (size_t)n->experts, 1, 0, -1};
    const size_t one = (size_t)n->hidden * (size_t)n->ffn;
    int32_t e;

    *out++ = norm;
    *out++ = matrix("router", l->router, n->hidden, n->experts, -1);
    *out++ = bias;
    if (n->shared > 0) {
        *out++ = matrix("shared.w_gate", l->shared_gate, n->hidden, n->shared, -1);
        *out++ = matrix("shared.w_up", l->shared_up, n->hidden, n->shared, -1);
        *out++ = matrix("shared.w_down", l->shared_down, n->shared, n->hidden, -1);
    }
    for (e = 0; e < n->local; e++) {
        const size_t at = l->expert + (size_t)e * l->expert_count;
        const int32_t number = n->rank * n->local + e;

        *out++ = matrix(name_of(moe, e, 0), at, n->hidden, n->ffn, number);
        *out++ = matrix(name_of(moe, e, 1), at + one, n->hidden, n->ffn, number);
        *out++ = matrix(name_of(moe, e, 2), at + 2 * one, n->ffn, n->hidden, number);
    }
    return DP_OK;
}
