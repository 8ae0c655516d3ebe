/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layout.c: where the arrays of kernels.h lie in saved, work and scratch memory. */
#include "moe_cuda.h"

#include "plugins/common/layout.h"

#define PLACE(type, name, rows, columns, bytes) l->name = layout_take(&c, (size_t)(rows), (size_t)(columns), bytes);

static bool lay_out_saved(const moe_dims_t *n, size_t real, size_t sum, moe_layout_t *l)
{
    layout_t c = {.alignment = 64};

    MOE_SAVED(PLACE)
    l->saved_bytes = c.bytes;
    return !c.overflow;
}

static bool lay_out_work(const moe_dims_t *n, size_t real, size_t sum, moe_layout_t *l)
{
    layout_t c = {.alignment = 64};

    MOE_WORK(PLACE)
    l->work_bytes = c.bytes;
    return !c.overflow;
}

static bool lay_out_scratch(const moe_dims_t *n, size_t real, size_t sum, bool library, moe_layout_t *l)
{
    const int64_t chunks = ((int64_t)n->tokens * n->top_k + MOE_CHUNK - 1) / MOE_CHUNK;
    const int64_t gains = (n->tokens + MOE_STRIP - 1) / MOE_STRIP * (int64_t)n->hidden * (int64_t)sum;
    const int64_t split = real == 2 ? (int64_t)n->tokens * n->experts * 4 : 0;
    const int64_t strips = gains > split ? gains : split;
    const int32_t apart = library ? n->rows : 0;
    layout_t c = {.alignment = 64};

    MOE_SCRATCH(PLACE)
    l->scratch_bytes = c.bytes;
    return !c.overflow;
}

dp_status_t moe_layout_init(const dp_host_t *host, const moe_dims_t *n, dp_dtype_t dtype, bool apart, moe_layout_t *l)
{
    const size_t real = dp_dtype_bytes(dtype), sum = dp_dtype_bytes(dp_dtype_accumulator(dtype));

    l->params = moe_params_of(n);
    if (lay_out_saved(n, real, sum, l) && lay_out_work(n, real, sum, l) && lay_out_scratch(n, real, sum, apart, l))
        return DP_OK;
    return DP_FAIL(host, DP_ERR_OVERFLOW,
                   "moe_cuda: the memory of one micro-batch does not fit this machine's addresses");
}
