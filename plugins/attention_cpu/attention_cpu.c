/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_cpu.c: interface dp.attention/1 for devices whose memory the host can read: the block
 * that plugins on the host share, around attention by tiles. */
#include "plugins/common/layout.h"
#include "tiles.h"

static dp_status_t open_tiles(dp_attention_t *a, const char *settings)
{
    layout_t l = {.alignment = ATTN_ALIGN_BYTES};
    tiles_t *t = a->core = a->host->allocate(a->host, sizeof(*t), ATTN_ALIGN_BYTES);

    (void)settings; /* it has none */
    if (t == NULL)
        return DP_FAIL(a->host, DP_ERR_NOMEM, "attention_cpu: no memory for an instance");
    t->tile = layout_take(&l, QUERY_BLOCK, KEY_BLOCK, a->element_bytes);
    t->dtile = layout_take(&l, QUERY_BLOCK, KEY_BLOCK, a->element_bytes);
    t->dq = layout_take(&l, a->sequence, a->group * a->head_dim, a->element_bytes);
    t->dk = layout_take(&l, KEY_BLOCK, a->key_dim, a->element_bytes);
    t->dv = layout_take(&l, KEY_BLOCK, a->value_dim, a->element_bytes);
    t->dk_rope = layout_take(&l, a->kv_rank > 0 ? a->sequence : 0, a->rope_dim, a->element_bytes);
    t->absorbed = layout_take(&l, a->n.cache_slots > 0 ? 2 * a->sequence : 0, a->kv_rank, a->element_bytes);
    a->core_scratch_bytes = l.bytes;
    return l.overflow ? attn_too_large(a->host, "attention_cpu", &a->n) : DP_OK;
}

static const attn_core_t tiles_core = {
    .plugin = "attention_cpu",
    .takes = ATTN_TAKES_LATENT | ATTN_TAKES_DOCUMENTS | ATTN_TAKES_APART | ATTN_TAKES_CACHE,
    .open = open_tiles,
    .forward = {[DP_F32] = tiles_forward_f32, [DP_F64] = tiles_forward_f64},
    .backward = {[DP_F32] = tiles_backward_f32, [DP_F64] = tiles_backward_f64},
};

ATTN_BLOCK_PLUGIN(attention_cpu, tiles_core, 0, DP_VERSION,
                  "causal attention, plain or latent, on host memory, matrices by CBLAS");
