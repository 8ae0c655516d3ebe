/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layout.c: where data lie in saved, backward buffer, work and scratch memory. */
#include "moe_cpu.h"

/* The backward buffer: what a backward makes; from DP_RECOMPUTE_MLP on gate and up as well. */
static bool layout_saved(const moe_dims_t *n, dp_recompute_t recompute, const dp_ep_sizes_t *ep, moe_layout_t *l,
                         size_t element)
{
    const bool always = true, products = recompute < DP_RECOMPUTE_MLP, later = recompute < DP_RECOMPUTE_CHEAP;
    layout_pair_t c = {.saved = {.alignment = 64}, .backward_buffer = {.alignment = 64}};

    l->saved.h = layout_keep(&c, always, n->tokens, n->hidden, element);
    l->saved.rstd = layout_keep(&c, always, n->tokens, 1, element);
    l->saved.scores = layout_keep(&c, always, n->tokens, n->experts, element);
    l->saved.weights = layout_keep(&c, always, n->tokens, n->top_k, element);
    l->saved.chosen = layout_keep(&c, always, n->tokens, n->top_k, sizeof(int32_t));
    l->saved.replica = n->replicated ? layout_keep(&c, always, n->tokens, n->top_k, sizeof(int32_t)) : l->saved.chosen;
    if (ep != NULL)
        l->saved.ep = layout_take(&c.saved, ep->saved_bytes, 1, 1);
    else
        moe_dispatch_lay_out(&c.saved, n, &l->saved.dispatch);
    l->saved.cells = layout_keep(&c, always, n->local, n->ranks, sizeof(int32_t));
    l->saved.dnorm = layout_keep(&c, later, n->hidden, 1, element);
    l->saved.shared_gate = layout_keep(&c, products, n->tokens, n->shared, element);
    l->saved.shared_up = layout_keep(&c, products, n->tokens, n->shared, element);
    l->saved.shared_act = layout_keep(&c, later, n->tokens, n->shared, element);
    l->saved.own_dy = layout_keep(&c, later, n->shared > 0 ? n->tokens : 0, n->hidden, element);
    l->saved.x = layout_keep(&c, always, n->rows, n->hidden, element);
    l->saved.gate = layout_keep(&c, products, n->rows, n->ffn, element);
    l->saved.up = layout_keep(&c, products, n->rows, n->ffn, element);
    l->saved.act = layout_keep(&c, later, n->rows, n->ffn, element);
    l->saved.dy = layout_keep(&c, later, n->rows, n->hidden, element);
    l->saved.bytes = c.saved.bytes;
    l->saved.backward_buffer_bytes = c.backward_buffer.bytes;
    return !c.saved.overflow && !c.backward_buffer.overflow;
}

static bool layout_work(const moe_dims_t *n, bool sums, const dp_ep_sizes_t *ep, moe_layout_t *l, size_t element)
{
    layout_t c = {.alignment = 64};

    if (ep != NULL) {
        l->work.rows = layout_take(&c, n->tokens > n->rows ? n->tokens : n->rows, n->hidden, element);
        l->work.row_dweights = layout_take(&c, n->rows, 1, sizeof(double));
    } else {
        l->work.rows = layout_take(&c, n->sent_rows, n->row_bytes, 1);
    }
    if (ep != NULL || sums)
        l->work.returned = layout_take(&c, (size_t)n->tokens * (size_t)n->top_k, n->hidden, element);
    l->work.shared = layout_take(&c, n->tokens, n->hidden, element);
    l->work.dweights = layout_take(&c, n->tokens, n->top_k, sizeof(double));
    l->work.weights = layout_take(&c, n->rows, 1, element);
    l->work.own_dy = layout_take(&c, n->shared > 0 ? 0 : n->tokens, n->hidden, element);
    l->work.bytes = c.bytes;
    return !c.overflow;
}

static bool layout_scratch(const moe_dims_t *n, const dp_ep_sizes_t *ep, moe_layout_t *l, size_t element)
{
    const int64_t ints =
        2 * (int64_t)n->experts + n->ranks + (n->replicated ? n->experts + 1 + 2 * (int64_t)n->replicas : 0);
    layout_t c = {.alignment = 64};

    l->scratch.n = layout_take(&c, n->tokens, n->hidden, element);
    l->scratch.hidden = layout_take(&c, n->tokens, n->ffn > n->shared ? n->ffn : n->shared, element);
    l->scratch.dweights = layout_take(&c, n->tokens, 1, sizeof(double));
    l->scratch.sums = layout_take(&c, n->experts, 1, sizeof(double));
    l->scratch.pick = layout_take(&c, n->experts, 1, sizeof(double));
    l->scratch.ints = layout_take(&c, ints, 1, sizeof(int32_t));
    l->scratch.ranks = layout_take(&c, n->ranks, 1, sizeof(int32_t));
    l->scratch.bytes = ep != NULL && ep->scratch_bytes > c.bytes ? ep->scratch_bytes : c.bytes;
    return !c.overflow;
}

dp_status_t moe_layout_init(const dp_moe_t *moe, const dp_ep_sizes_t *ep, size_t element, moe_layout_t *l)
{
    const moe_dims_t *n = &moe->n;

    l->params = moe_params_of(n);
    if (!layout_saved(n, moe->recompute, ep, l, element) || !layout_work(n, moe->sums, ep, l, element) ||
        !layout_scratch(n, ep, l, element))
        return DP_FAIL(moe->host, DP_ERR_OVERFLOW,
                       "moe_cpu: the memory of one micro-batch does not fit this machine's addresses");
    return DP_OK;
}
