/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_cpu.c: interface dp.attention/1 for devices whose memory the host can read: instances,
 * and calls that put the passes on a stream. */
#include "../cpu/blas_threads.h"
#include "internal.h"
#include "plugins/common/check.h"

#include <string.h>

static dp_status_t open_instance(const dp_host_t *host, const dp_attention_config_t *config,
                                 dp_attention_t **attention_out)
{
    dp_attention_t *a = host->allocate(host, sizeof(*a), ALIGN_BYTES);
    dp_status_t status;

    if (a == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "attention_cpu: no memory for an instance");
    *a = (dp_attention_t){.host = host};
    status = attn_configure(a, config);
    if (status < 0)
        goto release_instance;
    a->rope = host->allocate(host, a->rope_bytes, ALIGN_BYTES);
    if (a->rope == NULL) {
        status = DP_FAIL(host, DP_ERR_NOMEM, "attention_cpu: no memory for the rotations of %zu positions (%zu bytes)",
                         a->sequence, a->rope_bytes);
        goto release_instance;
    }
    a->passes->fill_rope(a);
    cpu_set_blas_threads(host);
    *attention_out = a;
    return DP_OK;

release_instance:
    host->release(host, a);
    return status;
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

static dp_status_t get_sizes(const dp_attention_t *a, dp_block_sizes_t *sizes_out)
{
    const dp_block_sizes_t sizes = {
        .struct_size = sizeof(sizes),
        .saved_bytes = a->saved.bytes,
        .backward_buffer_bytes = a->saved.backward_buffer_bytes,
        .recomputes = a->recompute >= DP_RECOMPUTE_FULL || (a->recompute >= DP_RECOMPUTE_CHEAP && a->kv_rank > 0),
        .scratch_bytes = a->scratch.bytes,
        .param_count = a->n.params.count,
        .nparams = a->n.params.number,
    };

    return answer_sizes(a->host, PLUGIN, &sizes, sizes_out);
}

static dp_status_t get_params(const dp_attention_t *a, dp_param_t *params_out)
{
    attn_list_params(&a->n, params_out);
    return DP_OK;
}

/* What a stream carries to a pass. */
typedef struct launch_arg {
    const dp_attention_t *attention;
    dp_io_t io;
} launch_arg_t;
_Static_assert(sizeof(launch_arg_t) <= DP_LAUNCH_ARG_MAX, "a call must fit into launch()'s argument");

/* The instance as one for micro-batches of as many tokens: its layout is that of the longest. */
static dp_attention_t of_length(const launch_arg_t *l)
{
    dp_attention_t a = *l->attention;

    a.tokens = l->io.tokens;
    return a;
}

static dp_status_t run_forward(void *arg)
{
    const launch_arg_t *l = arg;
    const dp_attention_t a = of_length(l);

    return a.passes->forward(&a, &l->io);
}

static dp_status_t run_backward_input(void *arg)
{
    const launch_arg_t *l = arg;
    const dp_attention_t a = of_length(l);

    return a.passes->backward_input(&a, &l->io);
}

static dp_status_t run_backward_weight(void *arg)
{
    const launch_arg_t *l = arg;
    const dp_attention_t a = of_length(l);

    return a.passes->backward_weight(&a, &l->io);
}

static dp_status_t run_recompute(void *arg)
{
    const launch_arg_t *l = arg;
    const dp_attention_t a = of_length(l);

    return a.passes->recompute(&a, &l->io);
}

typedef struct pass {
    const char *name;
    dp_launch_fn run;
    unsigned needs; /* ATTN_NEED_* */
} pass_t;

static const pass_t pass_forward = {"forward", run_forward, ATTN_FORWARD};
static const pass_t pass_backward_input = {"backward_input", run_backward_input, ATTN_BACKWARD_INPUT};
static const pass_t pass_backward_weight = {"backward_weight", run_backward_weight, ATTN_BACKWARD_WEIGHT};
static const pass_t pass_recompute = {"recompute", run_recompute, ATTN_RECOMPUTE};

static dp_status_t enqueue_pass(const dp_attention_t *a, const pass_t *pass, const dp_io_t *io, dp_stream_t *s)
{
    launch_arg_t arg = {.attention = a};
    dp_status_t status = attn_check_io(a->host, PLUGIN, &a->n, TAKES, pass->name, io, pass->needs, &arg.io);

    return status < 0 ? status : a->device_vt->launch(s, pass->run, &arg, sizeof(arg));
}

static dp_status_t enqueue_forward(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return enqueue_pass(a, &pass_forward, io, s);
}

static dp_status_t enqueue_backward_input(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return enqueue_pass(a, &pass_backward_input, io, s);
}

static dp_status_t enqueue_backward_weight(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return enqueue_pass(a, &pass_backward_weight, io, s);
}

static dp_status_t enqueue_recompute(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return enqueue_pass(a, &pass_recompute, io, s);
}

static const dp_attention_vt_t attention_vt = {
    .struct_size = sizeof(attention_vt),
    .open = open_instance,
    .close = close_instance,
    .sizes = get_sizes,
    .params = get_params,
    .forward = enqueue_forward,
    .backward_input = enqueue_backward_input,
    .backward_weight = enqueue_backward_weight,
    .recompute = enqueue_recompute,
};

static const void *attn_interface(const char *id)
{
    return strcmp(id, DP_IFACE_ATTENTION) == 0 ? &attention_vt : NULL;
}

DP_PLUGIN_DEFINE(attention_cpu) = {
    DP_PLUGIN_HEAD,
    .name = "attention_cpu",
    .version = DP_VERSION,
    .summary = "causal attention, plain or latent, on host memory, matrices by CBLAS",
    .get_interface = attn_interface,
};
