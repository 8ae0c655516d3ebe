/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * block.c: an instance of a CUDA attention plugin: device, kernels, products, memory. */
#include "attention.h"
#include "passes.h"

#include <math.h>
#include <stdio.h>

DP_CUDA_IMAGE(attention_rows);

dp_status_t dp_attention_load_kernels(dp_attention_t *a, const unsigned char *image,
                                      const char *const names[], CUfunction *const functions[], size_t count,
                                      CUmodule *module_out)
{
    const char *dtype = a->dtype == DP_F32 ? "f32" : a->dtype == DP_F64 ? "f64" : "bf16";
    dp_status_t st = dp_cuda_module_load(a->host, image, module_out);
    char name[64];

    for (size_t i = 0; i < count && st >= 0; i++) {
        snprintf(name, sizeof(name), "dp_attention_%s_%s", names[i], dtype);
        st = dp_cuda_kernel(a->host, *module_out, name, functions[i]);
    }
    return st;
}

static dp_status_t load_kernels(dp_attention_t *a)
{
    static const char *const names[] = {"normalize",     "apply_gain",         "rotate",    "dot_rows",
                                        "gain_gradient", "normalize_backward", "accumulate"};
    dp_attention_kernels_t *k = &a->kernels;
    CUfunction *const functions[] = {&k->normalize,     &k->apply_gain,         &k->rotate,    &k->dot_rows,
                                     &k->gain_gradient, &k->normalize_backward, &k->accumulate};

    return dp_attention_load_kernels(a, dp_image_attention_rows, names, functions,
                                     sizeof(names) / sizeof(names[0]), &a->module);
}

static void fill_rope(const dp_attention_t *a, void *table)
{
    const size_t half = a->head_dim / 2;

    for (size_t i = 0; i < half; i++) {
        const double frequency = pow(a->rope_theta, -2.0 * (double)i / (double)a->head_dim);

        for (size_t p = 0; p < a->sequence; p++) {
            const size_t at = p * a->head_dim + i;
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
    const size_t bytes = (size_t)a->sequence * a->head_dim * a->sum_bytes;
    void *table = a->host->allocate(a->host, bytes, 64);
    dp_status_t st;

    if (table == NULL)
        return DP_FAIL(a->host, DP_ERR_NOMEM, "%s: no memory for the rotations of %u positions (%zu bytes)",
                       a->vt->plugin, a->sequence, bytes);
    st = a->device_vt->allocate(a->device, bytes, &a->rope);
    if (st >= 0) {
        fill_rope(a, table);
        st = DP_CU(a->host, a->cu->cuMemcpyHtoD((CUdeviceptr)(uintptr_t)a->rope, table, bytes),
                   "%s: copying the rotations of %u positions", a->vt->plugin, a->sequence);
    }
    a->host->release(a->host, table);
    return st;
}

static dp_status_t check_device(const dp_attention_t *a, const dp_attention_config_t *c)
{
    CUdevice device;

    if (c->device_vt == NULL || c->device == NULL)
        return DP_FAIL(a->host, DP_ERR_INVALID, "%s: %s is NULL, it needs an open device", a->vt->plugin,
                       c->device_vt == NULL ? "device_vt" : "device");
    if (!DP_HAS(c->device_vt, dp_device_vt_t, stream_native) ||
        !DP_HAS(c->device_vt, dp_device_vt_t, allocate) || (c->device_vt->caps & DP_DEVICE_CAP_LAUNCH) != 0)
        return DP_FAIL(a->host, DP_ERR_UNSUPPORTED,
                       "%s: the device's streams are not CUDA streams: use device_cuda", a->vt->plugin);
    return dp_cuda_current(a->host, &device);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static bool lay_out_saved(dp_attention_t *a)
{
    dp_attention_layout_t l = {0, false};

    a->saved.normalized = dp_attention_append(&l, a->tokens, a->hidden, a->bytes);
    a->saved.inv_rms = dp_attention_append(&l, a->tokens, 1, a->sum_bytes);
    a->saved.q = dp_attention_append(&l, a->tokens, a->q_width, a->bytes);
    a->saved.k = dp_attention_append(&l, a->tokens, a->k_width, a->bytes);
    a->saved.v = dp_attention_append(&l, a->tokens, a->v_width, a->bytes);
    a->saved.heads_out = dp_attention_append(&l, a->tokens, a->o_width, a->bytes);
    a->saved.dy = dp_attention_append(&l, a->tokens, a->hidden, a->bytes);
    a->saved.dnorm = dp_attention_append(&l, 1, a->hidden, a->sum_bytes);
    a->saved.core = dp_attention_append(&l, 1, a->core_saved_bytes, 1);
    a->saved.bytes = l.end;
    return !l.overflow;
}

/* n, what the core needs, and dn are never wanted at the same time. */
static bool lay_out_scratch(dp_attention_t *a)
{
    dp_attention_layout_t l = {0, false}, n = {0, false};

    dp_attention_append(&n, a->tokens, a->hidden, a->sum_bytes);
    a->scratch.shared = dp_attention_append(&l, 1, larger(n.end, a->core_scratch_bytes), 1);
    a->scratch.dheads = dp_attention_append(&l, a->tokens, a->o_width, a->bytes);
    a->scratch.dq = dp_attention_append(&l, a->tokens, a->q_width, a->bytes);
    a->scratch.dk = dp_attention_append(&l, a->tokens, a->k_width, a->bytes);
    a->scratch.dv = dp_attention_append(&l, a->tokens, a->v_width, a->bytes);
    a->scratch.delta = dp_attention_append(&l, a->tokens, a->heads, a->sum_bytes);
    a->scratch.workspace = dp_attention_append(&l, 1, a->gemm != NULL ? dp_gemm_workspace(a->gemm) : 0, 1);
    a->scratch.bytes = l.end;
    return !l.overflow && !n.overflow;
}

static dp_status_t lay_out(dp_attention_t *a)
{
    if (lay_out_saved(a) && lay_out_scratch(a))
        return DP_OK;
    return DP_FAIL(
        a->host, DP_ERR_INVALID,
        "%s: batch %u, sequence %u, hidden %u, heads %u, head_dim %u, value_dim %u need more bytes than an "
        "address space has: use smaller sizes",
        a->vt->plugin, a->batch, a->sequence, a->hidden, a->heads, a->head_dim, a->value_dim);
}

static dp_status_t start(dp_attention_t *a, const dp_attention_config_t *config)
{
    const dp_host_sm_t *share = a->host->get_service(a->host, DP_HOST_SM);
    dp_status_t st = dp_attention_configure(a, config);

    if (st >= 0)
        st = dp_cuda_driver(a->host, &a->cu);
    if (st >= 0)
        st = check_device(a, config);
    if (st < 0)
        return st;
    a->device_vt = config->device_vt;
    a->device = config->device;
    a->sms = share != NULL ? share->compute_sms : 0;
    st = load_kernels(a);
    if (st >= 0)
        st = dp_gemm_open(a->host, a->sms, 0, &a->gemm);
    if (st >= 0)
        st = a->vt->open(a);
    if (st >= 0)
        st = make_rope(a);
    if (st >= 0)
        st = lay_out(a);
    if (st >= 0)
        st = dp_attention_rehearse(a);
    if (st >= 0)
        st = lay_out(a); /* the workspace is known now */
    return st;
}

dp_status_t dp_attention_block_open(const dp_host_t *host, const dp_attention_config_t *config,
                                    const dp_attention_core_t *core, dp_attention_t **attention_out)
{
    dp_attention_t *a = host->allocate(host, sizeof(*a), 64);
    dp_status_t st;

    if (a == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "%s: no memory for an instance", core->plugin);
    *a = (dp_attention_t){.host = host, .vt = core};
    st = start(a, config);
    if (st < 0) {
        dp_attention_block_close(a);
        return st;
    }
    *attention_out = a;
    return DP_OK;
}

void dp_attention_block_close(dp_attention_t *a)
{
    if (a == NULL)
        return;
    if (a->core != NULL)
        a->vt->close(a);
    dp_gemm_close(a->gemm);
    if (a->rope != NULL)
        a->device_vt->release(a->device, a->rope);
    dp_cuda_module_unload(a->module);
    a->host->release(a->host, a);
}

dp_status_t dp_attention_block_sizes(const dp_attention_t *a, dp_block_sizes_t *sizes_out)
{
    if (sizes_out->struct_size < sizeof(*sizes_out))
        return DP_FAIL(a->host, DP_ERR_INVALID, "%s: sizes: struct_size is %u, this plugin needs %zu",
                       a->vt->plugin, sizes_out->struct_size, sizeof(*sizes_out));
    sizes_out->saved_bytes = a->saved.bytes;
    sizes_out->work_bytes = 0;
    sizes_out->scratch_bytes = a->scratch.bytes;
    sizes_out->param_count = a->params.count;
    sizes_out->nparams = 5;
    return DP_OK;
}

dp_status_t dp_attention_block_params(const dp_attention_t *a, dp_param_t *params_out)
{
    const uint32_t d = a->hidden, o = a->o_width;

    params_out[0] =
        (dp_param_t){"norm", DP_PARAM_VECTOR, a->params.norm, a->params.wq - a->params.norm, d, 1, -1};
    params_out[1] = (dp_param_t){"wq", DP_PARAM_MATRIX, a->params.wq, a->params.wk - a->params.wq, d, 0, -1};
    params_out[2] = (dp_param_t){"wk", DP_PARAM_MATRIX, a->params.wk, a->params.wv - a->params.wk, d, 0, -1};
    params_out[3] = (dp_param_t){"wv", DP_PARAM_MATRIX, a->params.wv, a->params.wo - a->params.wv, d, 0, -1};
    params_out[4] =
        (dp_param_t){"wo", DP_PARAM_MATRIX, a->params.wo, a->params.count - a->params.wo, o, 0, -1};
    return DP_OK;
}
