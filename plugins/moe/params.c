/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * params.c: the parameter tensors of a MoE block, in the order of dualpipe/moe.h. */
#include "moe.h"

#include <stdio.h>

enum { NAME_BYTES = 32 }; /* "replicas.1048575.w_gate" */

moe_params_t moe_params_of(const moe_dims_t *n)
{
    const size_t d = (size_t)n->hidden, shared = d * (size_t)n->shared, experts = (size_t)n->experts;
    moe_params_t p = {.norm = 0, .router = d, .bias = d + d * experts, .expert_count = 3 * d * (size_t)n->ffn};

    p.shared_gate = p.bias + experts;
    p.shared_up = p.shared_gate + shared;
    p.shared_down = p.shared_up + shared;
    p.expert = p.shared_down + shared;
    p.count = p.expert + (size_t)n->local * p.expert_count;
    p.nparams = 3 + (n->shared > 0 ? 3u : 0u) + 3 * (uint32_t)n->local;
    return p;
}

size_t moe_names_bytes(const moe_dims_t *n)
{
    return (size_t)n->local * 3 * NAME_BYTES;
}

void moe_write_names(const moe_dims_t *n, char *names)
{
    static const char *const matrices[] = {"w_gate", "w_up", "w_down"};

    for (int32_t e = 0; e < n->local; e++)
        for (int32_t m = 0; m < 3; m++, names += NAME_BYTES)
            (void)snprintf(names, NAME_BYTES, "%s.%d.%s", n->replicated ? "replicas" : "experts",
                           n->rank * n->local + e, matrices[m]);
}

static dp_param_t matrix_param(const char *name, size_t offset, int32_t rows, int32_t columns)
{
    return (dp_param_t){.name = name,
                        .kind = DP_PARAM_MATRIX,
                        .offset = offset,
                        .count = (size_t)rows * (size_t)columns,
                        .fan_in = (uint32_t)rows};
}

/* One of the three matrices of local expert e. */
static dp_param_t expert_matrix(const moe_dims_t *n, const moe_params_t *p, const char *names, int32_t e, int32_t which)
{
    const size_t at = p->expert + (size_t)e * p->expert_count + p->expert_count / 3 * (size_t)which;
    const char *name = names + (size_t)(3 * e + which) * NAME_BYTES;
    dp_param_t param =
        which < 2 ? matrix_param(name, at, n->hidden, n->ffn) : matrix_param(name, at, n->ffn, n->hidden);

    param.sharded = 1;
    param.expert = n->rank * n->local + e;
    return param;
}

void moe_list_params(const moe_dims_t *n, const char *names, dp_param_t *out)
{
    const moe_params_t p = moe_params_of(n);

    *out++ = (dp_param_t){
        .name = "norm", .kind = DP_PARAM_VECTOR, .offset = p.norm, .count = (size_t)n->hidden, .fan_in = 1, .start = 1};
    *out++ = matrix_param("router", p.router, n->hidden, n->experts);
    *out++ = (dp_param_t){
        .name = "bias", .kind = DP_PARAM_ROUTER_BIAS, .offset = p.bias, .count = (size_t)n->experts, .fan_in = 1};
    if (n->shared > 0) {
        *out++ = matrix_param("shared.w_gate", p.shared_gate, n->hidden, n->shared);
        *out++ = matrix_param("shared.w_up", p.shared_up, n->hidden, n->shared);
        *out++ = matrix_param("shared.w_down", p.shared_down, n->shared, n->hidden);
    }
    for (int32_t e = 0; e < n->local; e++)
        for (int32_t which = 0; which < 3; which++)
            *out++ = expert_matrix(n, &p, names, e, which);
}
