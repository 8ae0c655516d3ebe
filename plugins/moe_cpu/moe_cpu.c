/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_cpu.c: the plugin and its calls. A call puts kernels and exchanges on the stream it is given and returns; the only
 * state an instance changes is the number of its next exchange. */
#include "moe_cpu.h"

#include "../cpu/blas_threads.h"

#include <string.h>

_Static_assert(sizeof(moe_task_t) <= DP_LAUNCH_ARG_MAX, "a task travels as the argument of launch()");
_Static_assert(sizeof(moe_head_t) == 16, "rows are multiples of 16 bytes");

/* Pointers of dp_io_t that a call needs besides params, saved, work and scratch. */
enum { NEED_X = 1, NEED_Y = 2, NEED_DY = 4, NEED_GRADS = 8, NEED_NO_WORK = 16 };

static dp_status_t check_task(const dp_moe_t *moe, const moe_task_t *t, const char *call, unsigned need)
{
    const char *missing = t->params == NULL                           ? "params"
                          : t->saved == NULL                          ? "saved"
                          : t->work == NULL && !(need & NEED_NO_WORK) ? "work"
                          : t->scratch == NULL                        ? "scratch"
                          : t->x == NULL && (need & NEED_X)           ? "x"
                          : t->y == NULL && (need & NEED_Y)           ? "y"
                          : t->dy == NULL && (need & NEED_DY)         ? "dy"
                          : t->grads == NULL && (need & NEED_GRADS)   ? "grads"
                                                                      : NULL;

    if (missing == NULL)
        return DP_OK;
    return DP_FAIL(moe->host, DP_ERR_INVALID, "moe_cpu: %s needs io.%s, which is NULL", call, missing);
}

static moe_task_t task_of(const dp_moe_t *moe, const dp_moe_io_t *io)
{
    const moe_task_t t = {
        .moe = moe,
        .params = io->io.params,
        .grads = io->io.grads,
        .saved = io->io.saved,
        .work = io->io.work,
        .scratch = io->io.scratch,
        .x = io->io.x,
        .dy = io->io.dy,
        .y = io->io.y,
        .dx = io->io.dx,
        .aux_loss = io->aux_loss,
        .aux_scale = io->aux_scale,
        .placement = moe->shape.replicated ? io->placement : NULL,
        .microbatch = io->io.microbatch,
    };

    return t;
}

static dp_status_t launch(const dp_moe_t *moe, dp_launch_fn kernel, const moe_task_t *t, dp_stream_t *s)
{
    return moe->device_vt->launch(s, kernel, t, sizeof(*t));
}

static dp_status_t compute(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s, dp_launch_fn kernel,
                           const char *call, unsigned need)
{
    const moe_task_t t = task_of(moe, io);
    dp_status_t status = check_task(moe, &t, call, need);

    return status < 0 ? status : launch(moe, kernel, &t, s);
}

/* The rows in work go to their ranks; `kernel` works on those that come. */
static dp_status_t transfer(dp_moe_t *moe, struct moe_link *link, moe_task_t *t, size_t offsets,
                            size_t counts, dp_launch_fn kernel, dp_stream_t *s)
{
    const dp_comm_vt_t *vt = moe->comm_vt;
    const uint32_t sequence = link->sequence;
    const void *rows;
    dp_status_t status;

    status = vt->exchange(link->exchange, sequence, t->work + moe->layout.work.rows,
                          (const int32_t *)(t->saved + offsets), (const int32_t *)(t->saved + counts), &rows,
                          &t->counts, s);
    if (status < 0)
        return status;
    link->sequence++;
    t->rows = rows;
    status = launch(moe, kernel, t, s);
    return status < 0 ? status : vt->exchange_release(link->exchange, sequence, s);
}

/* From the tokens' owners to the experts. */
static dp_status_t transfer_out(dp_moe_t *moe, moe_task_t *t, dp_launch_fn kernel, dp_stream_t *s)
{
    return transfer(moe, &moe->out, t, moe->layout.saved.out_offsets, moe->layout.saved.out_counts, kernel,
                    s);
}

static dp_status_t transfer_back(dp_moe_t *moe, moe_task_t *t, dp_launch_fn kernel, dp_stream_t *s)
{
    return transfer(moe, &moe->back, t, moe->layout.saved.in_offsets, moe->layout.saved.in_counts, kernel, s);
}

static dp_status_t moe_route(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    if (moe->shape.replicated && io->placement == NULL)
        return DP_FAIL(moe->host, DP_ERR_INVALID,
                       "moe_cpu: route needs a placement, which is NULL: this layer has %d replicas",
                       moe->shape.replicas);
    return compute(moe, io, s, moe->kernels->route, "route", NEED_X);
}

static dp_status_t moe_dispatch(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    moe_task_t t = task_of(moe, io);
    dp_status_t status = check_task(moe, &t, "dispatch", 0);

    return status < 0 ? status : transfer_out(moe, &t, moe->kernels->take_dispatch, s);
}

static dp_status_t moe_experts(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute(moe, io, s, moe->kernels->experts, "experts", 0);
}

static dp_status_t moe_combine(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    moe_task_t t = task_of(moe, io);
    dp_status_t status = check_task(moe, &t, "combine", NEED_Y);

    return status < 0 ? status : transfer_back(moe, &t, moe->kernels->take_combine, s);
}

static dp_status_t moe_combine_backward(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    moe_task_t t = task_of(moe, io);
    dp_status_t status = check_task(moe, &t, "combine_backward", NEED_DY);

    if (status >= 0)
        status = launch(moe, moe->kernels->combine_backward, &t, s);
    return status < 0 ? status : transfer_out(moe, &t, moe->kernels->take_combine_backward, s);
}

static dp_status_t moe_experts_backward_input(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute(moe, io, s, moe->kernels->experts_backward_input, "experts_backward_input", 0);
}

static dp_status_t moe_experts_backward_weight(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute(moe, io, s, moe->kernels->experts_backward_weight, "experts_backward_weight",
                   NEED_GRADS | NEED_NO_WORK);
}

static dp_status_t moe_dispatch_backward(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    moe_task_t t = task_of(moe, io);
    dp_status_t status = check_task(moe, &t, "dispatch_backward", 0);

    return status < 0 ? status : transfer_back(moe, &t, moe->kernels->take_dispatch_backward, s);
}

static dp_status_t moe_route_backward_input(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute(moe, io, s, moe->kernels->route_backward_input, "route_backward_input", 0);
}

static dp_status_t moe_route_backward_weight(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute(moe, io, s, moe->kernels->route_backward_weight, "route_backward_weight",
                   NEED_GRADS | NEED_NO_WORK);
}

static dp_status_t check_backends(const dp_host_t *host, const dp_moe_config_t *c)
{
    if (c->device == NULL || !DP_HAS(c->device_vt, dp_device_vt_t, launch) ||
        !(c->device_vt->caps & DP_DEVICE_CAP_HOST_MEMORY))
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "moe_cpu runs host code on host memory, which this device does not offer: use it with "
                       "device_cpu");
    if (c->comm == NULL || !DP_HAS(c->comm_vt, dp_comm_vt_t, exchange_open) ||
        !DP_HAS(c->comm_vt, dp_comm_vt_t, exchange) || !DP_HAS(c->comm_vt, dp_comm_vt_t, exchange_release))
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "moe_cpu needs a comm with exchanges for its expert group, of one rank as well");
    return DP_OK;
}

static dp_status_t open_link(dp_moe_t *moe, const dp_moe_config_t *c, uint32_t id, const char *label,
                             struct moe_link *link)
{
    const dp_exchange_config_t config = {
        .struct_size = sizeof(config),
        .id = id,
        .row_bytes = moe->shape.row_bytes,
        .capacity_rows = (uint32_t)moe->shape.pair_rows,
        .label = label,
    };

    return moe->comm_vt->exchange_open(c->comm, &config, &link->exchange);
}

static void moe_close(dp_moe_t *moe)
{
    if (moe != NULL)
        moe->host->release(moe->host, moe);
}

static dp_status_t moe_open(const dp_host_t *host, const dp_moe_config_t *config, dp_moe_t **moe_out)
{
    dp_moe_t opened = {.host = host}, *moe;
    dp_status_t status;

    status = moe_shape_init(host, config, &opened.shape);
    if (status >= 0)
        status = check_backends(host, config);
    if (status >= 0)
        status = moe_layout_init(host, &opened.shape, &opened.layout);
    if (status < 0)
        return status;
    opened.device_vt = config->device_vt;
    opened.comm_vt = config->comm_vt;
    opened.kernels = opened.shape.dtype == DP_F32 ? &moe_kernels_f32 : &moe_kernels_f64;
    moe = host->allocate(host, sizeof(*moe) + moe_names_bytes(&opened.shape), 64);
    if (moe == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "moe_cpu: no memory for an instance with %d experts",
                       opened.shape.local);
    *moe = opened;
    moe_write_names(moe);
    status = open_link(moe, config, config->exchange_id, "moe out", &moe->out);
    if (status >= 0)
        status = open_link(moe, config, config->exchange_id + 1, "moe back", &moe->back);
    if (status < 0) {
        moe_close(moe);
        return status;
    }
    set_blas_threads(host);
    *moe_out = moe;
    return DP_OK;
}

static dp_status_t moe_sizes(const dp_moe_t *moe, dp_block_sizes_t *sizes_out)
{
    const dp_block_sizes_t sizes = {
        .struct_size = sizeof(sizes),
        .saved_bytes = moe->layout.saved.bytes,
        .work_bytes = moe->layout.work.bytes,
        .scratch_bytes = moe->layout.scratch.bytes,
        .param_count = moe->layout.param_count,
        .nparams = moe->layout.nparams,
    };

    *sizes_out = sizes;
    return DP_OK;
}

static const dp_moe_vt_t moe_vt = {
    .struct_size = sizeof(moe_vt),
    .caps = DP_MOE_CAP_DETERMINISTIC | DP_MOE_CAP_REPLICAS,
    .open = moe_open,
    .close = moe_close,
    .sizes = moe_sizes,
    .params = moe_params,
    .route = moe_route,
    .dispatch = moe_dispatch,
    .experts = moe_experts,
    .combine = moe_combine,
    .combine_backward = moe_combine_backward,
    .experts_backward_input = moe_experts_backward_input,
    .experts_backward_weight = moe_experts_backward_weight,
    .dispatch_backward = moe_dispatch_backward,
    .route_backward_input = moe_route_backward_input,
    .route_backward_weight = moe_route_backward_weight,
};

static const void *moe_interface(const char *id)
{
    return strcmp(id, DP_IFACE_MOE) == 0 ? &moe_vt : NULL;
}

DP_PLUGIN_DEFINE(moe_cpu) = {
    DP_PLUGIN_HEAD, "moe_cpu", DP_VERSION,    "mixture of SwiGLU experts on CPU cores through CBLAS",
    NULL,           NULL,      moe_interface,
};
