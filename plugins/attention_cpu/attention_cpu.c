/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_cpu.c: interface dp.attention/1 for devices whose memory the host can read: instances, and
 * calls that put the passes on a stream. */
#include "../cpu/blas_threads.h"
#include "internal.h"

#include <string.h>

static dp_status_t open_instance(const dp_host_t *host, const dp_attention_config_t *config,
                                 dp_attention_t **attention_out)
{
    dp_attention_t *a = host->allocate(host, sizeof(*a), ALIGN_BYTES);
    dp_status_t st;

    if (a == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "attention_cpu: no memory for an instance");
    *a = (dp_attention_t){.host = host};
    st = attention_configure(a, config);
    if (st < 0)
        goto release_instance;
    a->rope = host->allocate(host, a->rope_bytes, ALIGN_BYTES);
    if (a->rope == NULL) {
        st = DP_FAIL(host, DP_ERR_NOMEM,
                     "attention_cpu: no memory for the rotations of %zu positions (%zu bytes)", a->sequence,
                     a->rope_bytes);
        goto release_instance;
    }
    a->passes->fill_rope(a);
    set_blas_threads(host);
    *attention_out = a;
    return DP_OK;

release_instance:
    host->release(host, a);
    return st;
}

static void close_instance(dp_attention_t *a)
{
    const dp_host_t *host;

    if (a == NULL)
        return;
    host = a->host;
    host->release(host, a->rope);
    host->release(host, a);
}

static dp_status_t sizes(const dp_attention_t *a, dp_block_sizes_t *sizes_out)
{
    if (sizes_out->struct_size < sizeof(*sizes_out))
        return DP_FAIL(a->host, DP_ERR_INVALID,
                       "attention_cpu: sizes: struct_size is %u, this plugin needs %zu",
                       sizes_out->struct_size, sizeof(*sizes_out));
    sizes_out->saved_bytes = a->saved.bytes;
    sizes_out->work_bytes = 0;
    sizes_out->scratch_bytes = a->scratch.bytes;
    sizes_out->param_count = a->params.count;
    sizes_out->nparams = 5;
    return DP_OK;
}

static dp_status_t params(const dp_attention_t *a, dp_param_t *params_out)
{
    const attention_params_t *p = &a->params;
    const uint32_t d = (uint32_t)a->hidden, o = (uint32_t)a->o_width;

    params_out[0] = (dp_param_t){"norm", DP_PARAM_VECTOR, p->norm, p->wq - p->norm, d, 1, -1};
    params_out[1] = (dp_param_t){"wq", DP_PARAM_MATRIX, p->wq, p->wk - p->wq, d, 0, -1};
    params_out[2] = (dp_param_t){"wk", DP_PARAM_MATRIX, p->wk, p->wv - p->wk, d, 0, -1};
    params_out[3] = (dp_param_t){"wv", DP_PARAM_MATRIX, p->wv, p->wo - p->wv, d, 0, -1};
    params_out[4] = (dp_param_t){"wo", DP_PARAM_MATRIX, p->wo, p->count - p->wo, o, 0, -1};
    return DP_OK;
}

/* What a stream carries to a pass. */
typedef struct launch_arg {
    const dp_attention_t *attention;
    dp_io_t io;
} launch_arg_t;
_Static_assert(sizeof(launch_arg_t) <= DP_LAUNCH_ARG_MAX, "a call must fit into launch()'s argument");

static dp_status_t run_forward(void *arg)
{
    const launch_arg_t *l = arg;

    return l->attention->passes->forward(l->attention, &l->io);
}

static dp_status_t run_backward_input(void *arg)
{
    const launch_arg_t *l = arg;

    return l->attention->passes->backward_input(l->attention, &l->io);
}

static dp_status_t run_backward_weight(void *arg)
{
    const launch_arg_t *l = arg;

    return l->attention->passes->backward_weight(l->attention, &l->io);
}

enum {
    NEED_PARAMS = 1,
    NEED_GRADS = 2,
    NEED_SAVED = 4,
    NEED_SCRATCH = 8,
    NEED_X = 16,
    NEED_Y = 32,
    NEED_DY = 64
};
static const struct {
    const char *name;
    size_t offset;
} io_pointers[] = {
    {"params", offsetof(dp_io_t, params)}, {"grads", offsetof(dp_io_t, grads)},
    {"saved", offsetof(dp_io_t, saved)},   {"scratch", offsetof(dp_io_t, scratch)},
    {"x", offsetof(dp_io_t, x)},           {"y", offsetof(dp_io_t, y)},
    {"dy", offsetof(dp_io_t, dy)},
};

typedef struct pass {
    const char *name;
    dp_launch_fn run;
    unsigned needs; /* bit i: io_pointers[i] */
} pass_t;

static const pass_t pass_forward = {"forward", run_forward,
                                    NEED_PARAMS | NEED_SAVED | NEED_SCRATCH | NEED_X | NEED_Y};
static const pass_t pass_backward_input = {"backward_input", run_backward_input,
                                           NEED_PARAMS | NEED_SAVED | NEED_SCRATCH | NEED_DY};
static const pass_t pass_backward_weight = {"backward_weight", run_backward_weight,
                                            NEED_PARAMS | NEED_GRADS | NEED_SAVED | NEED_SCRATCH};

static dp_status_t enqueue(const dp_attention_t *a, const pass_t *pass, const dp_io_t *io, dp_stream_t *s)
{
    launch_arg_t arg = {.attention = a};

    if (io->struct_size < sizeof(*io))
        return DP_FAIL(a->host, DP_ERR_INVALID,
                       "attention_cpu: %s: io.struct_size is %u, this plugin needs %zu", pass->name,
                       io->struct_size, sizeof(*io));
    memcpy(&arg.io, io, sizeof(arg.io));
    for (size_t i = 0; i < sizeof(io_pointers) / sizeof(io_pointers[0]); i++) {
        const void *pointer;

        memcpy(&pointer, (const char *)io + io_pointers[i].offset, sizeof(pointer));
        if (pointer == NULL && (pass->needs >> i & 1) != 0)
            return DP_FAIL(a->host, DP_ERR_INVALID, "attention_cpu: %s of micro-batch %d: io.%s is NULL",
                           pass->name, (int)io->microbatch, io_pointers[i].name);
    }
    return a->device_vt->launch(s, pass->run, &arg, sizeof(arg));
}

static dp_status_t forward(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return enqueue(a, &pass_forward, io, s);
}

static dp_status_t backward_input(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return enqueue(a, &pass_backward_input, io, s);
}

static dp_status_t backward_weight(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return enqueue(a, &pass_backward_weight, io, s);
}

static const dp_attention_vt_t attention_vt = {
    .struct_size = sizeof(attention_vt),
    .caps = DP_ATTENTION_CAP_DETERMINISTIC,
    .open = open_instance,
    .close = close_instance,
    .sizes = sizes,
    .params = params,
    .forward = forward,
    .backward_input = backward_input,
    .backward_weight = backward_weight,
};

static const void *get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_ATTENTION) == 0 ? &attention_vt : NULL;
}

DP_PLUGIN_DEFINE(attention_cpu) = {
    DP_PLUGIN_HEAD, "attention_cpu", DP_VERSION, "causal attention on host memory, matrices by CBLAS", NULL,
    NULL,           get_interface,
};
