/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention.h: interface "dp.attention/1": y = x + Wo * attention(RoPE(Wq n), RoPE(Wk n), Wv n), n
 * = RMSNorm(x).
 *
 * Causal multi-head attention with grouped key/value heads: query head h reads key/value head h /
 * (heads / kv_heads). A token attends to itself and those before it in its sequence, or in its
 * document (dp_io_t.documents); positions count from 0 in each. RoPE rotates pairs (i, i +
 * head_dim/2) of each head by position * theta^(-2i/head_dim). Softmax scale 1/sqrt(head_dim).
 * Parameters in this order: norm [d]; wq [d, heads*head_dim]; wk [d, kv_heads*head_dim]; wv [d,
 * kv_heads*value_dim]; wo [heads*value_dim, d]; a row vector of activations is multiplied from the
 * left (n * wq). No S x S matrix is ever kept in memory: forward keeps the row statistics
 * (log-sum-exp), backward recomputes blockwise. Sources: RoPE arXiv 2104.09864; grouped heads arXiv
 * 2305.13245; blockwise forward and backward arXiv 2205.14135, 2307.08691; RMSNorm arXiv
 * 1910.07467.
 *
 * Multi-head latent attention (config.kv_rank > 0). Keys and values of all heads are
 * made of one narrow vector of a token, its latent, and so are the queries if q_rank > 0:
 *
 *     [c, r] = n wkv_down        c: kv_rank elements, r: rope_dim
 *     k of a head = [its part of RMSNorm(c) wk_up, RoPE(r)]      the same r for all heads
 *     v of a head = its part of RMSNorm(c) wv_up
 *     q of a head = its part of RMSNorm(n wq_down) wq_up, or of n wq if q_rank is 0; its last
 *                   rope_dim elements rotated
 *
 * head_dim is the whole width of a query or key (192 in DeepSeek-V3, rope_dim 64 of them, value_dim
 * 128), so that the softmax scale is 1/sqrt(head_dim) here too. RoPE rotates pairs (i, i +
 * rope_dim/2), with exponents -2i/rope_dim. All norms have shape.norm_eps. Parameters in this
 * order: norm [d]; wq_down [d, q_rank], q_norm [q_rank], wq_up [q_rank, heads*head_dim], or if
 * q_rank is 0 wq [d, heads*head_dim]; wkv_down [d, kv_rank+rope_dim]; kv_norm [kv_rank]; wk_up
 * [kv_rank, heads*(head_dim-rope_dim)]; wv_up [kv_rank, heads*value_dim]; wo [heads*value_dim, d].
 * Sources: arXiv 2405.04434 section 2.1, 2412.19437 section 2.1.1.
 *
 * Since 0.2: DP_ATTENTION_CAP_OWN_FORMULA, dp_attention_config_t.settings. */
#ifndef DUALPIPE_ATTENTION_H
#define DUALPIPE_ATTENTION_H

#include <dualpipe/block.h>
#include <dualpipe/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_attention dp_attention_t;

/** dp_attention_vt_t.caps: with some of its settings the plugin computes another formula than the
 *  one above: a window, a bias of positions, a cap of logits. With settings, the suite then leaves
 *  out the cases that compare results with that formula. All others hold: gradients are those of
 *  the plugin's loss, documents are apart, bits repeat. */
enum { DP_ATTENTION_CAP_OWN_FORMULA = 1 };

typedef struct dp_attention_config {
    uint32_t struct_size;
    const dp_block_shape_t *shape; /* borrowed during open, as this struct */
    /* heads % kv_heads == 0; with kv_rank kv_heads is 0, as each head has its own keys: what
     * knows no kv_rank refuses that */
    uint32_t heads, kv_heads;
    uint32_t head_dim;      /* of queries and keys, even */
    uint32_t value_dim;     /* of values; 0: head_dim, with kv_rank head_dim - rope_dim */
    float rope_theta;       /* 0: 10000 */
    uint32_t deterministic; /* 1: refuse to open rather than give run-dependent bits */
    const dp_device_vt_t *device_vt;
    dp_device_t *device; /* the caller's; outlives the instance */
    /* multi-head latent attention */
    uint32_t q_rank; /* of the queries' latent; 0: there is none */
    /* of the latent of keys and values; 0: attention as above, and the other two are 0 */
    uint32_t kv_rank;
    /* rotated elements of a query or key: even, at least 2, less than head_dim */
    uint32_t rope_dim;
    /* of the block, see block.h. DP_RECOMPUTE_FULL keeps x / rms(x) alone */
    dp_recompute_t recompute;
    uint32_t variable_tokens; /* 1: io.tokens may be below T */
    uint32_t documents;       /* 1: io.documents may be set */
    /* 1: each call is two, so that something else may run between: `project` and `attend` (see
     * dp_attention_vt_t). The bits are the same. DP_ERR_UNSUPPORTED: the plugin has no halves */
    uint32_t apart;
    /* Requests whose keys and values are kept from step to step (dp_io_t.cache), at most, and
     * tokens of one, at most shape.sequence. Needs `documents`. DP_ERR_UNSUPPORTED: the plugin
     * keeps none. A plugin that does not know the two says so by sizes.cache_bytes = 0. Both 0:
     * none. 64 bits: behind what was padding */
    uint64_t cache_slots, cache_tokens;
    /* "window=128,alibi=1": what the plugin offers beside the formula above, in words that its
     * documents say; NULL or "": nothing. The plugin refuses what it does not know, with
     * DP_ERR_INVALID. Where they select another formula, DP_ATTENTION_CAP_OWN_FORMULA is set. All
     * ranks of a job give the same */
    const char *settings;
} dp_attention_config_t;
enum { DP_ATTENTION_CONFIG_MIN = DP_SIZE_TO(dp_attention_config_t, documents) };

/* All functions are required but recompute and the halves. */
typedef struct dp_attention_vt {
    uint32_t struct_size;
    uint32_t caps; /* DP_ATTENTION_CAP_*. What a plugin does not do it refuses at open */
    /** Checks the shape, prepares tables and plans; one instance serves all layers of one rank.
     *  *attention_out is set only on success. DP_ERR_INVALID: a size that cannot be, an eps or
     *  theta that is negative or not finite; DP_ERR_UNSUPPORTED: a dtype, size or device that this
     *  plugin does not take. [blocks] */
    dp_status_t (*open)(const dp_host_t *host, const dp_attention_config_t *config, dp_attention_t **attention_out);
    /** Not in the middle of a step. NULL: nothing. */
    void (*close)(dp_attention_t *attention);
    /** The caller sets sizes_out->struct_size; the plugin answers with dp_sized_put. The same after
     * each call. */
    dp_status_t (*sizes)(const dp_attention_t *attention, dp_block_sizes_t *sizes_out);
    /** Fills params_out[sizes.nparams], every member of each. */
    dp_status_t (*params)(const dp_attention_t *attention, dp_param_t *params_out);

    /** x -> y. Reads params and x; writes saved, scratch and y. x is not needed afterwards: what
     *  backward needs goes to saved. [compute] [enqueue s] [capture] [sm<=share] */
    dp_status_t (*forward)(dp_attention_t *attention, const dp_io_t *io, dp_stream_t *s);
    /** dy -> dx. Reads params, dy and saved; writes scratch and dx, and to saved what
     *  backward_weight needs. dy is not needed afterwards. dx NULL: all but dx. [compute] [enqueue
     *  s] [capture] [sm<=share] */
    dp_status_t (*backward_input)(dp_attention_t *attention, const dp_io_t *io, dp_stream_t *s);
    /** Reads params and saved, adds to grads, writes scratch; io has no work, x, y, dy and dx.
     *  Called once per micro-batch, after backward_input, maybe much later. [compute] [enqueue s]
     *  [capture] [sm<=share] */
    dp_status_t (*backward_weight)(dp_attention_t *attention, const dp_io_t *io, dp_stream_t *s);

    /** Reads params and saved, writes backward_buffer
     *  and scratch: what forward had in backward_buffer is there again; io has no grads, work, x,
     *  y, dy and dx. Called before backward_input where sizes.recomputes says so. [compute]
     *  [enqueue s] [capture] [sm<=share] */
    dp_status_t (*recompute)(dp_attention_t *attention, const dp_io_t *io, dp_stream_t *s);

    /* The halves, with config.apart. Each is [compute] [enqueue s] [capture] [sm<=share], gets the
     * io of the whole and keeps to what is said there; saved is what goes from one to the other, so
     * scratch may change in between. Recompute stays whole, before attend_backward_input. */

    /** forward: norm, queries, keys, values, RoPE. Does not write y. */
    dp_status_t (*project)(dp_attention_t *attention, const dp_io_t *io, dp_stream_t *s);
    /** forward: softmax, wo and the residual, from x once more. */
    dp_status_t (*attend)(dp_attention_t *attention, const dp_io_t *io, dp_stream_t *s);
    /** backward_input: wo and softmax. Does not write dx. */
    dp_status_t (*attend_backward_input)(dp_attention_t *attention, const dp_io_t *io, dp_stream_t *s);
    /** backward_input: the rest. Does not read dy. */
    dp_status_t (*project_backward_input)(dp_attention_t *attention, const dp_io_t *io, dp_stream_t *s);
    /** backward_weight: adds to the gradient of wo. */
    dp_status_t (*attend_backward_weight)(dp_attention_t *attention, const dp_io_t *io, dp_stream_t *s);
    /** backward_weight: adds to those of all others. */
    dp_status_t (*project_backward_weight)(dp_attention_t *attention, const dp_io_t *io, dp_stream_t *s);
} dp_attention_vt_t;
enum { DP_ATTENTION_VT_MIN = DP_SIZE_TO(dp_attention_vt_t, recompute) };

#ifdef __cplusplus
}
#endif
#endif
