/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * block.c: an instance of a CUDA attention plugin: device, kernels, products, memory. */
#include "block.h"

#include "plugins/common/check.h"
#include "plugins/common/do.h"

#include <math.h>
#include <stdio.h>

CUDA_IMAGE(attention_rows);

dp_status_t attn_load_kernels(dp_attention_t *a, const unsigned char *image, const char *const names[],
                              CUfunction *const functions[], size_t count, CUmodule *module_out)
{
    const char *dtype = a->n.dtype == DP_F32 ? "f32" : a->n.dtype == DP_F64 ? "f64" : "bf16";
    dp_status_t status = cuda_module_load(a->host, image, module_out);
    char name[64];

    for (size_t i = 0; i < count && status >= 0; i++) {
        snprintf(name, sizeof(name), "attn_%s_%s", names[i], dtype);
        status = cuda_kernel(a->host, *module_out, name, functions[i]);
    }
    return status;
}

static dp_status_t load_row_kernels(dp_attention_t *a)
{
    static const char *const names[] = {"normalize",     "apply_gain",         "rotate",     "dot_rows", "join_keys",
                                        "gain_gradient", "normalize_backward", "accumulate", "starts",   "split_keys"};
    attn_kernels_t *k = &a->kernels;
    CUfunction *const functions[] = {
        &k->normalize,     &k->apply_gain,         &k->rotate,     &k->dot_rows, &k->join_keys,
        &k->gain_gradient, &k->normalize_backward, &k->accumulate, &k->starts,   &k->split_keys};

    return attn_load_kernels(a, cuda_image_attention_rows, names, functions, sizeof(names) / sizeof(names[0]),
                             &a->module);
}

static void fill_rope(const dp_attention_t *a, void *table)
{
    const size_t half = a->n.rope_dim / 2;

    for (size_t i = 0; i < half; i++) {
        const double frequency = pow(a->n.rope_theta, -2.0 * (double)i / (double)a->n.rope_dim);

        for (size_t p = 0; p < a->n.sequence; p++) {
            const size_t at = p * a->n.rope_dim + i;
            const double cosine = cos((double)p * frequency), sine = sin((double)p * frequency);

            if (a->sums == DP_F64) {
                ((double *)table)[at] = cosine;
                ((double *)table)[at + half] = sine;
            } else {
                ((float *)table)[at] = (float)cosine;
                ((float *)table)[at + half] = (float)sine;
            }
        }
    }
}

static dp_status_t make_rope(dp_attention_t *a)
{
    const size_t bytes = (size_t)a->n.sequence * a->n.rope_dim * a->sum_bytes;
    void *table = a->host->allocate(a->host, bytes, 64);
    dp_status_t status;

    if (table == NULL)
        return DP_FAIL(a->host, DP_ERR_NOMEM, "%s: no memory for the rotations of %u positions (%zu bytes)",
                       a->vt->plugin, a->n.sequence, bytes);
    status = a->device_vt->allocate(a->device, bytes, &a->rope);
    if (status >= 0) {
        fill_rope(a, table);
        status = CUDA_CHECK(a->host, a->cu->cuMemcpyHtoD((CUdeviceptr)(uintptr_t)a->rope, table, bytes),
                            "%s: copying the rotations of %u positions", a->vt->plugin, a->n.sequence);
    }
    a->host->release(a->host, table);
    return status;
}

/* In the backward buffer lies what a backward makes, with what norms make of latents; of
 * DP_RECOMPUTE_FULL all but the rows behind the first norm. */
static bool lay_out_saved(dp_attention_t *a)
{
    const bool always = true, forward = a->recompute < DP_RECOMPUTE_FULL, later = a->recompute < DP_RECOMPUTE_CHEAP;
    layout_pair_t l = {.saved = {.alignment = ATTN_ALIGN}, .backward_buffer = {.alignment = ATTN_ALIGN}};

    a->saved.normalized = layout_keep(&l, always, a->n.tokens, a->n.hidden, a->bytes);
    a->saved.inv_rms = layout_keep(&l, always, a->n.tokens, 1, a->sum_bytes);
    a->saved.q = layout_keep(&l, forward, a->n.tokens, a->n.q_width, a->bytes);
    a->saved.k = layout_keep(&l, forward, a->n.tokens, a->n.k_width, a->bytes);
    a->saved.v = layout_keep(&l, forward, a->n.tokens, a->n.v_width, a->bytes);
    a->saved.heads_out = layout_keep(&l, forward, a->n.tokens, a->n.o_width, a->bytes);
    a->saved.dy = layout_keep(&l, later, a->n.tokens, a->n.hidden, a->bytes);
    a->saved.dnorm = layout_keep(&l, later, 1, a->n.hidden, a->sum_bytes);
    a->saved.core = layout_keep(&l, forward, 1, a->core_saved_bytes, 1);
    if (a->n.q_rank > 0) {
        a->saved.q_latent.normalized = layout_keep(&l, later, a->n.tokens, a->n.q_rank, a->bytes);
        a->saved.q_latent.inv_rms = layout_keep(&l, forward, a->n.tokens, 1, a->sum_bytes);
        a->saved.q_latent.down = layout_keep(&l, forward, a->n.tokens, a->n.q_rank, a->bytes);
        a->saved.q_latent.dgain = layout_keep(&l, later, 1, a->n.q_rank, a->sum_bytes);
    }
    if (a->n.kv_rank > 0) {
        a->saved.kv_latent.normalized = layout_keep(&l, later, a->n.tokens, a->n.kv_rank, a->bytes);
        a->saved.kv_latent.inv_rms = layout_keep(&l, forward, a->n.tokens, 1, a->sum_bytes);
        a->saved.kv_latent.down = layout_keep(&l, forward, a->n.tokens, a->n.down_width, a->bytes);
        a->saved.kv_latent.dgain = layout_keep(&l, later, 1, a->n.kv_rank, a->sum_bytes);
    }
    a->saved.bytes = l.saved.bytes;
    a->saved.backward_buffer_bytes = l.backward_buffer.bytes;
    return !l.saved.overflow && !l.backward_buffer.overflow;
}

/* n, what the core needs, and dn are never wanted at the same time. */
static bool lay_out_scratch(dp_attention_t *a)
{
    layout_t l = {.alignment = ATTN_ALIGN}, n = l;

    layout_take(&n, a->n.tokens, a->n.hidden, a->sum_bytes);
    a->scratch.shared = layout_take(&l, 1, attn_larger(n.bytes, a->core_scratch_bytes), 1);
    a->scratch.dheads = layout_take(&l, a->n.tokens, a->n.o_width, a->bytes);
    a->scratch.dq = layout_take(&l, a->n.tokens, a->n.q_width, a->bytes);
    a->scratch.dk = layout_take(&l, a->n.tokens, a->n.k_width, a->bytes);
    a->scratch.dv = layout_take(&l, a->n.tokens, a->n.v_width, a->bytes);
    a->scratch.delta = layout_take(&l, a->n.tokens, a->n.heads, a->sum_bytes);
    a->scratch.latent = layout_take(&l, a->n.tokens, attn_larger(a->n.q_rank, a->n.kv_rank), a->sum_bytes);
    a->scratch.starts = layout_take(&l, a->vt->takes & ATTN_TAKES_DOCUMENTS ? a->n.tokens : 0, 1, sizeof(uint32_t));
    a->scratch.workspace = layout_take(&l, 1, a->gemm != NULL ? cuda_gemm_workspace(a->gemm) : 0, 1);
    a->scratch.bytes = l.bytes;
    return !l.overflow && !n.overflow;
}

static dp_status_t lay_out_block(dp_attention_t *a)
{
    if (lay_out_saved(a) && lay_out_scratch(a))
        return DP_OK;
    return attn_too_large(a->host, a->vt->plugin, &a->n);
}

static dp_status_t start_block(dp_attention_t *a, const dp_attention_config_t *config)
{
    const dp_host_sm_t *share = a->host->get_service(a->host, DP_HOST_SM);
    CUdevice device;

    DO(attn_dims_init(a->host, a->vt->plugin, a->vt->takes, config, &a->n));
    a->recompute = config->recompute;
    DO(check_recompute(a->host, a->vt->plugin, a->recompute));
    DO(check_device(a->host, a->vt->plugin, config->device_vt, config->device, "cuda"));
    DO(cuda_driver(a->host, &a->cu));
    DO(cuda_current(a->host, &device));
    a->own_width = a->n.k_width;
    a->n.k_width = a->n.kv_rank > 0 ? a->n.q_width : a->n.k_width;
    a->sums = dp_dtype_accumulator(a->n.dtype);
    a->bytes = dp_dtype_bytes(a->n.dtype);
    a->sum_bytes = dp_dtype_bytes(a->sums);
    a->deterministic = config->deterministic != 0;
    a->device_vt = config->device_vt;
    a->device = config->device;
    a->sms = share != NULL ? share->compute_sms : 0;
    DO(load_row_kernels(a));
    DO(cuda_gemm_open(a->host, a->sms, 0, &a->gemm));
    DO(a->vt->open(a));
    DO(make_rope(a));
    DO(lay_out_block(a));
    DO(attn_rehearse(a));
    DO(lay_out_block(a)); /* the workspace is known now */
    return attn_warm_up(a);
}

dp_status_t attn_block_open(const dp_host_t *host, const dp_attention_config_t *config, const attn_core_t *core,
                            dp_attention_t **attention_out)
{
    dp_attention_t *a = host->allocate(host, sizeof(*a), 64);
    dp_status_t status;

    if (a == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "%s: no memory for an instance", core->plugin);
    *a = (dp_attention_t){.host = host, .vt = core};
    status = start_block(a, config);
    if (status < 0) {
        attn_block_close(a);
        return status;
    }
    *attention_out = a;
    return DP_OK;
}

void attn_block_close(dp_attention_t *a)
{
    if (a == NULL)
        return;
    if (a->core != NULL)
        a->vt->close(a);
    cuda_gemm_close(a->gemm);
    if (a->rope != NULL)
        a->device_vt->release(a->device, a->rope);
    cuda_module_unload(a->module);
    a->host->release(a->host, a);
}

dp_status_t attn_block_sizes(const dp_attention_t *a, dp_block_sizes_t *sizes_out)
{
    const dp_block_sizes_t sizes = {
        .struct_size = sizeof(sizes),
        .saved_bytes = a->saved.bytes,
        .backward_buffer_bytes = a->saved.backward_buffer_bytes,
        .recomputes = a->recompute >= DP_RECOMPUTE_FULL || (a->recompute >= DP_RECOMPUTE_CHEAP && a->n.kv_rank > 0),
        .scratch_bytes = a->scratch.bytes,
        .param_count = a->n.params.count,
        .nparams = a->n.params.number,
    };

    return answer_sizes(a->host, a->vt->plugin, &sizes, sizes_out);
}

dp_status_t attn_block_params(const dp_attention_t *a, dp_param_t *params_out)
{
    attn_list_params(&a->n, params_out);
    return DP_OK;
}
