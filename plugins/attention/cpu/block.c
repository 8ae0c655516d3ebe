/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * block.c: instances, and calls that put the passes on a stream. */
#include "block.h"
#include "plugins/common/check.h"

static void close_core(dp_attention_t *a)
{
    if (a->vt->close != NULL)
        a->vt->close(a);
    else
        a->host->release(a->host, a->core);
}

dp_status_t attn_block_open(const dp_host_t *host, const dp_attention_config_t *config, const attn_core_t *core,
                            dp_attention_t **attention_out)
{
    dp_attention_t *a = host->allocate(host, sizeof(*a), ATTN_ALIGN_BYTES);
    dp_status_t status;

    if (a == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "%s: no memory for an instance", core->plugin);
    *a = (dp_attention_t){.host = host, .vt = core};
    status = attn_configure(a, config);
    if (status < 0)
        goto close_core;
    a->rope = host->allocate(host, a->rope_bytes, ATTN_ALIGN_BYTES);
    if (a->rope == NULL) {
        status = DP_FAIL(host, DP_ERR_NOMEM, "%s: no memory for the rotations of %zu positions (%zu bytes)",
                         core->plugin, a->sequence, a->rope_bytes);
        goto close_core;
    }
    a->passes->fill_rope(a);
    cpu_blas_set_threads(host);
    *attention_out = a;
    return DP_OK;

close_core:
    close_core(a);
    host->release(host, a);
    return status;
}

void attn_block_close(dp_attention_t *a)
{
    const dp_host_t *host;

    if (a == NULL)
        return;
    host = a->host;
    close_core(a);
    host->release(host, a->rope);
    host->release(host, a);
}

dp_status_t attn_block_sizes(const dp_attention_t *a, dp_block_sizes_t *sizes_out)
{
    const dp_block_sizes_t sizes = {
        .struct_size = sizeof(sizes),
        .saved_bytes = a->saved.bytes,
        .backward_buffer_bytes = a->saved.backward_buffer_bytes,
        .recomputes = a->recompute >= DP_RECOMPUTE_FULL || (a->recompute >= DP_RECOMPUTE_CHEAP && a->kv_rank > 0),
        .scratch_bytes = a->scratch.bytes,
        .param_count = a->n.params.count,
        .nparams = a->n.params.number,
        .apart = a->apart,
        .cache_bytes = a->cache.bytes,
    };

    return answer_sizes(a->host, a->vt->plugin, &sizes, sizes_out);
}

dp_status_t attn_block_params(const dp_attention_t *a, dp_param_t *params_out)
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

/* A whole pass, or a half of it. */
#define RUN_PASS(name, first, second)                                                                                  \
    static dp_status_t name(void *arg)                                                                                 \
    {                                                                                                                  \
        const launch_arg_t *l = arg;                                                                                   \
        const dp_attention_t a = of_length(l);                                                                         \
        const dp_status_t status = a.passes->first(&a, &l->io);                                                        \
                                                                                                                       \
        return status < 0 ? status : a.passes->second(&a, &l->io);                                                     \
    }
#define RUN_HALF(name, half)                                                                                           \
    static dp_status_t name(void *arg)                                                                                 \
    {                                                                                                                  \
        const launch_arg_t *l = arg;                                                                                   \
        const dp_attention_t a = of_length(l);                                                                         \
                                                                                                                       \
        return a.passes->half(&a, &l->io);                                                                             \
    }
RUN_PASS(run_forward, project, attend)
RUN_HALF(run_project, project)
RUN_HALF(run_attend, attend)
RUN_PASS(run_backward_input, attend_backward_input, project_backward_input)
RUN_HALF(run_attend_backward_input, attend_backward_input)
RUN_HALF(run_project_backward_input, project_backward_input)
RUN_PASS(run_backward_weight, attend_backward_weight, project_backward_weight)
RUN_HALF(run_attend_backward_weight, attend_backward_weight)
RUN_HALF(run_project_backward_weight, project_backward_weight)
RUN_HALF(run_recompute, recompute)

static dp_status_t enqueue_pass(const dp_attention_t *a, const char *name, dp_launch_fn run, unsigned needs,
                                const dp_io_t *io, dp_stream_t *s)
{
    launch_arg_t arg = {.attention = a};
    dp_status_t status = attn_check_io(a->host, a->vt->plugin, &a->n, a->vt->takes, name, io, needs, &arg.io);

    return status < 0 ? status : a->device_vt->launch(s, run, &arg, sizeof(arg));
}

#define ENQUEUE_PASS(pass, needs)                                                                                      \
    dp_status_t attn_block_##pass(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)                                \
    {                                                                                                                  \
        return enqueue_pass(a, #pass, run_##pass, needs, io, s);                                                       \
    }
ENQUEUE_PASS(forward, ATTN_FORWARD)
ENQUEUE_PASS(project, ATTN_PROJECT)
ENQUEUE_PASS(attend, ATTN_FORWARD)
ENQUEUE_PASS(backward_input, ATTN_BACKWARD_INPUT)
ENQUEUE_PASS(attend_backward_input, ATTN_BACKWARD_INPUT)
ENQUEUE_PASS(project_backward_input, ATTN_PROJECT_BACKWARD_INPUT)
ENQUEUE_PASS(backward_weight, ATTN_BACKWARD_WEIGHT)
ENQUEUE_PASS(attend_backward_weight, ATTN_BACKWARD_WEIGHT)
ENQUEUE_PASS(project_backward_weight, ATTN_BACKWARD_WEIGHT)
ENQUEUE_PASS(recompute, ATTN_RECOMPUTE)
