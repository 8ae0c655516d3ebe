/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layout.c: where the arrays of kernels.h lie in saved, work and scratch memory. */
#include "moe_cuda.h"

#include "plugins/common/layout.h"

#include <string.h>

#define PLACE(type, name, rows, columns, bytes) l->name = layout_take(&c, (size_t)(rows), (size_t)(columns), bytes);

static bool is_among(const char *name, const char *const names[], size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Whether MOE_SAVED's array is kept from forward on; else it lies in the backward buffer. */
static bool is_kept(const char *name, dp_recompute_t recompute)
{
    static const char *const of_backward[] = {"dnorm", "shared_act", "shared_dy", "act", "dy"};
    static const char *const products[] = {"shared_gate", "shared_up", "gate"};

    if (recompute >= DP_RECOMPUTE_CHEAP && is_among(name, of_backward, sizeof(of_backward) / sizeof(of_backward[0])))
        return false;
    return recompute < DP_RECOMPUTE_MLP || !is_among(name, products, sizeof(products) / sizeof(products[0]));
}

#define KEEP(type, name, rows, columns, bytes)                                                                         \
    l->name = layout_keep(&c, is_kept(#name, recompute), (size_t)(rows), (size_t)(columns), bytes);

static bool lay_out_saved(const moe_dims_t *n, dp_recompute_t recompute, size_t real, size_t sum, moe_layout_t *l)
{
    layout_pair_t c = {.saved = {.alignment = 64}, .backward_buffer = {.alignment = 64}};

    MOE_SAVED(KEEP)
    l->saved_bytes = c.saved.bytes;
    l->backward_buffer_bytes = c.backward_buffer.bytes;
    return !c.saved.overflow && !c.backward_buffer.overflow;
}

static bool lay_out_work(const moe_dims_t *n, size_t real, size_t sum, moe_layout_t *l)
{
    layout_t c = {.alignment = MOE_ROW_ALIGNMENT};

    MOE_WORK(PLACE)
    l->work_bytes = c.bytes;
    return !c.overflow;
}

static bool lay_out_scratch(const moe_dims_t *n, size_t real, size_t sum, bool library, moe_layout_t *l)
{
    const int64_t chunks = ((int64_t)n->tokens * n->top_k + MOE_CHUNK - 1) / MOE_CHUNK;
    const int64_t gains = (n->tokens + MOE_STRIP - 1) / MOE_STRIP * (int64_t)n->hidden * (int64_t)sum;
    const int64_t split = real == 2 ? (int64_t)n->tokens * n->experts * 4 : 0;
    const int64_t logits = split * MOE_SLICES(n->hidden);
    const int64_t router = split > 0 ? split + (int64_t)n->hidden * n->experts * 4 * MOE_SLICES(n->tokens) : 0;
    const int64_t most = logits > router ? logits : router, strips = gains > most ? gains : most;
    const int32_t apart = library ? n->rows : 0;
    layout_t c = {.alignment = 64};

    MOE_SCRATCH(PLACE)
    l->scratch_bytes = c.bytes;
    return !c.overflow;
}

dp_status_t moe_layout_init(const dp_host_t *host, const moe_dims_t *n, dp_recompute_t recompute, dp_dtype_t dtype,
                            bool apart, moe_layout_t *l)
{
    const size_t real = dp_dtype_bytes(dtype), sum = dp_dtype_bytes(dp_dtype_accumulator(dtype));

    l->params = moe_params_of(n);
    if (lay_out_saved(n, recompute, real, sum, l) && lay_out_work(n, real, sum, l) &&
        lay_out_scratch(n, real, sum, apart, l))
        return DP_OK;
    return DP_FAIL(host, DP_ERR_OVERFLOW,
                   "moe_cuda: the memory of one micro-batch does not fit this machine's addresses");
}
