/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layout.c: takes over a configuration and lays out saved, backward buffer and scratch memory. */
#include "block.h"

#include "plugins/common/check.h"
#include "plugins/common/do.h"
#include "plugins/common/layout.h"

static dp_status_t check_host_device(const dp_host_t *host, const char *plugin, const dp_attention_config_t *c)
{
    if (c->device_vt == NULL || c->device == NULL)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: %s is NULL, it needs an open device", plugin,
                       c->device_vt == NULL ? "device_vt" : "device");
    if (!DP_HAS(c->device_vt, dp_device_vt_t, launch))
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "%s: device_vt has no launch(): use a device whose streams run host functions, "
                       "device_cpu say",
                       plugin);
    if ((c->device_vt->caps & DP_DEVICE_CAP_HOST_MEMORY) == 0)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "%s: device_vt.caps is 0x%x without DP_DEVICE_CAP_HOST_MEMORY: the host cannot read "
                       "this device's memory",
                       plugin, c->device_vt->caps);
    return DP_OK;
}

/* In the backward buffer lies what a backward makes, with what norms make of latents; of
 * DP_RECOMPUTE_FULL all but the rows behind the first norm. */
static bool lay_out_block_saved(dp_attention_t *a)
{
    attn_saved_t *s = &a->saved;
    const bool always = true, forward = a->recompute < DP_RECOMPUTE_FULL, later = a->recompute < DP_RECOMPUTE_CHEAP;
    layout_pair_t l = {.saved = {.alignment = ATTN_ALIGN_BYTES}, .backward_buffer = {.alignment = ATTN_ALIGN_BYTES}};

    s->normalized = layout_keep(&l, always, a->tokens, a->hidden, a->element_bytes);
    s->inv_rms = layout_keep(&l, always, a->tokens, 1, a->element_bytes);
    s->q = layout_keep(&l, forward, a->tokens, a->q_width, a->element_bytes);
    s->k = layout_keep(&l, forward, a->tokens, a->k_width, a->element_bytes);
    s->v = layout_keep(&l, forward, a->tokens, a->v_width, a->element_bytes);
    s->row_max = layout_keep(&l, forward, a->tokens, a->heads, a->element_bytes);
    s->inv_sum = layout_keep(&l, forward, a->tokens, a->heads, a->element_bytes);
    s->heads_out = layout_keep(&l, forward, a->tokens, a->o_width, a->element_bytes);
    s->dy = layout_keep(&l, later, a->tokens, a->hidden, a->element_bytes);
    s->dnorm = layout_keep(&l, later, 1, a->hidden, a->element_bytes);
    if (a->q_rank > 0) {
        s->q_latent = layout_keep(&l, later, a->tokens, a->q_rank, a->element_bytes);
        s->q_inv_rms = layout_keep(&l, forward, a->tokens, 1, a->element_bytes);
        s->q_down = layout_keep(&l, forward, a->tokens, a->q_rank, a->element_bytes);
        s->dq_norm = layout_keep(&l, later, 1, a->q_rank, a->element_bytes);
    }
    if (a->kv_rank > 0) {
        s->kv_latent = layout_keep(&l, later, a->tokens, a->kv_rank, a->element_bytes);
        s->kv_inv_rms = layout_keep(&l, forward, a->tokens, 1, a->element_bytes);
        s->kv_down = layout_keep(&l, forward, a->tokens, a->down_width, a->element_bytes);
        s->dkv_norm = layout_keep(&l, later, 1, a->kv_rank, a->element_bytes);
    }
    s->bytes = l.saved.bytes;
    s->backward_buffer_bytes = l.backward_buffer.bytes;
    return !l.saved.overflow && !l.backward_buffer.overflow;
}

/* `rows` and `latent` share their memory with what only the attention itself needs: they are live
 * before or after, never meanwhile. */
static bool lay_out_block_scratch(dp_attention_t *a)
{
    attn_scratch_t *s = &a->scratch;
    layout_t rows = {.alignment = ATTN_ALIGN_BYTES}, l = rows;

    s->rows = layout_take(&rows, a->tokens, a->hidden, a->element_bytes);
    s->latent = layout_take(&rows, a->tokens, a->q_rank > a->kv_rank ? a->q_rank : a->kv_rank, a->element_bytes);
    s->dheads = layout_take(&l, a->tokens, a->o_width, a->element_bytes);
    s->delta = layout_take(&l, a->tokens, a->heads, a->element_bytes);
    s->core = layout_take(&l, a->core_scratch_bytes, 1, 1);
    s->bytes = l.bytes > rows.bytes ? l.bytes : rows.bytes;
    return !l.overflow && !rows.overflow;
}

static bool lay_out_cache(dp_attention_t *a)
{
    const bool latent = a->kv_rank > 0;
    const size_t tokens = (size_t)a->n.cache_slots * a->n.cache_tokens;
    layout_t l = {.alignment = ATTN_ALIGN_BYTES};

    a->cache.k = layout_take(&l, tokens, latent ? a->down_width : a->k_width, a->element_bytes);
    a->cache.v = layout_take(&l, tokens, latent ? 0 : a->v_width, a->element_bytes);
    a->cache.bytes = l.bytes;
    return !l.overflow;
}

static bool lay_out_rope(dp_attention_t *a)
{
    layout_t l = {.alignment = ATTN_ALIGN_BYTES};

    layout_take(&l, a->sequence, a->rope_dim, a->element_bytes);
    a->rope_bytes = l.bytes;
    return !l.overflow;
}

/* The sizes as size_t, which the arithmetic of the passes is in. */
static void take_sizes(dp_attention_t *a)
{
    const attn_dims_t *n = &a->n;

    a->passes = n->dtype == DP_F32 ? &attn_passes_f32 : &attn_passes_f64;
    a->element_bytes = dp_dtype_bytes(n->dtype);
    a->sequence = n->sequence;
    a->tokens = n->tokens;
    a->hidden = n->hidden;
    a->heads = n->heads;
    a->kv_heads = n->kv_heads;
    a->group = n->group;
    a->head_dim = n->head_dim;
    a->value_dim = n->value_dim;
    a->rope_dim = n->rope_dim;
    a->key_dim = n->key_dim;
    a->q_rank = n->q_rank;
    a->kv_rank = n->kv_rank;
    a->down_width = n->down_width;
    a->q_width = n->q_width;
    a->k_width = n->k_width;
    a->v_width = n->v_width;
    a->o_width = n->o_width;
}

/* What the core does not take, and what it needs. */
static dp_status_t open_core(dp_attention_t *a, const char *settings)
{
    if (a->vt->forward[a->n.dtype] == NULL)
        return DP_FAIL(a->host, DP_ERR_UNSUPPORTED, "%s: shape.dtype is %s: use %s", a->vt->plugin,
                       a->n.dtype == DP_F32 ? "DP_F32" : "DP_F64", a->n.dtype == DP_F32 ? "DP_F64" : "DP_F32");
    return a->vt->open != NULL ? a->vt->open(a, settings) : DP_OK;
}

dp_status_t attn_configure(dp_attention_t *a, const dp_attention_config_t *c)
{
    const char *plugin = a->vt->plugin;

    DO(attn_dims_init(a->host, plugin, a->vt->takes, c, &a->n));
    DO(check_host_device(a->host, plugin, c));
    DO(check_recompute(a->host, plugin, a->recompute = c->recompute));
    a->device_vt = c->device_vt;
    a->apart = c->apart != 0;
    take_sizes(a);
    DO(open_core(a, attn_settings(c)));
    if (!lay_out_block_saved(a) || !lay_out_block_scratch(a) || !lay_out_rope(a) || !lay_out_cache(a))
        return attn_too_large(a->host, plugin, &a->n);
    return DP_OK;
}
