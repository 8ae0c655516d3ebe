/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_cpu.c: the plugin and its calls. A call puts kernels and exchanges on the stream it is given
 * and returns; the only state an instance changes is the number of its next exchange, and what it
 * has posted. */
#include "moe_cpu.h"
#include "plugins/common/check.h"
#include "plugins/common/do.h"

#include "../cpu/blas.h"

#include <string.h>

_Static_assert(sizeof(moe_task_t) <= DP_LAUNCH_ARG_MAX, "a task is the argument of launch()");
/* 32 bits count the elements of every matrix that BLAS is given. */
static const moe_rules_t rules = {.plugin = "moe_cpu",
                                  .apart = true,
                                  .posted = true,
                                  .row_alignment = 16,
                                  .most_experts = 1 << 20,
                                  .most_ranks = 1 << 20,
                                  .most_tokens = INT32_MAX,
                                  .most_elements = INT32_MAX};

_Static_assert(sizeof(moe_list_t) == 16 && sizeof(moe_head_t) == 16, "MOE_LIST_ROWS counts with that");

static dp_status_t begin_call(const dp_moe_t *moe, const dp_moe_io_t *io, const char *call, unsigned need,
                              moe_task_t *t)
{
    DO(moe_check_io(moe->host, rules.plugin, io, call, need));
    *t = (moe_task_t){
        .moe = moe,
        .params = io->io->params,
        .grads = io->io->grads,
        .saved = io->io->saved,
        .backward_buffer = io->io->backward_buffer,
        .work = io->io->work,
        .scratch = io->io->scratch,
        .x = io->io->x,
        .dy = io->io->dy,
        .y = io->io->y,
        .dx = io->io->dx,
        .aux_loss = io->aux_loss,
        .loads = DP_HAS(io, dp_moe_io_t, loads) ? io->loads : NULL,
        .aux_scale = io->aux_scale,
        .placement = moe->n.replicated ? io->placement : NULL,
        .microbatch = io->io->microbatch,
    };
    return moe_dims_of(moe->host, rules.plugin, io->io, &moe->n, &t->n);
}

static dp_status_t launch_task(const dp_moe_t *moe, dp_launch_fn kernel, const moe_task_t *t, dp_stream_t *s)
{
    return moe->device_vt->launch(s, kernel, t, sizeof(*t));
}

static dp_status_t compute_on(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s, dp_launch_fn kernel,
                              const char *call, unsigned need)
{
    moe_task_t t;
    dp_status_t status = begin_call(moe, io, call, need, &t);

    return status < 0 ? status : launch_task(moe, kernel, &t, s);
}

/* ---- rows ---- */

/* Waits for the rows of the oldest post and works on them. scratch: of the call that waits. */
static dp_status_t take_oldest(dp_moe_t *moe, moe_way_t *way, char *scratch, dp_stream_t *s)
{
    const dp_comm_vt_t *vt = moe->comm_vt;
    const uint32_t number = way->taken;
    moe_post_t *post = &way->posts[number % MOE_LINK_SLOTS];

    post->task.scratch = scratch;
    DO(vt->exchange_wait(way->link.exchange, number, s));
    DO(launch_task(moe, post->kernel, &post->task, s));
    way->taken++;
    return vt->exchange_release(way->link.exchange, number, s);
}

/* What this pass has posted, and all before it. Two passes may post in one order and compute in
 * another, and more of them than there are slots. */
static dp_status_t take_posted(dp_moe_t *moe, moe_way_t *way, const moe_task_t *t, dp_stream_t *s)
{
    const uint32_t end = way->link.number;
    uint32_t own = way->taken;

    while (own != end && way->posts[own % MOE_LINK_SLOTS].task.work != t->work)
        own++;
    while (own != end && way->taken != own + 1)
        DO(take_oldest(moe, way, t->scratch, s));
    return DP_OK;
}

static dp_status_t post_rows(dp_moe_t *moe, moe_way_t *way, moe_task_t *t, const int32_t *offsets,
                             const int32_t *counts, dp_launch_fn kernel, dp_stream_t *s)
{
    moe_link_t *link = &way->link;
    const void *rows;

    if (link->number - way->taken == MOE_LINK_SLOTS)
        DO(take_oldest(moe, way, t->scratch, s));
    DO(moe->comm_vt->exchange_post(link->exchange, link->number, t->work + moe->layout.work.rows, offsets, counts,
                                   &rows, &t->counts, s));
    t->rows = rows;
    t->room = link->room;
    way->posts[link->number++ % MOE_LINK_SLOTS] = (moe_post_t){*t, kernel};
    return DP_OK;
}

/* The rows in work go to their ranks; `kernel` works on those that come. */
static dp_status_t exchange_rows(dp_moe_t *moe, moe_way_t *way, moe_task_t *t, size_t offsets_at, size_t counts_at,
                                 dp_launch_fn kernel, dp_stream_t *s)
{
    const dp_comm_vt_t *vt = moe->comm_vt;
    const int32_t *offsets = (const int32_t *)(t->saved + offsets_at),
                  *counts = (const int32_t *)(t->saved + counts_at);
    moe_link_t *link = &way->link;
    const uint32_t number = link->number;
    const void *rows;

    if (moe->posted)
        return post_rows(moe, way, t, offsets, counts, kernel, s);
    DO(vt->exchange(link->exchange, number, t->work + moe->layout.work.rows, offsets, counts, &rows, &t->counts, s));
    link->number++;
    t->rows = rows;
    t->room = link->room;
    DO(launch_task(moe, kernel, t, s));
    return vt->exchange_release(link->exchange, number, s);
}

/* From the tokens' owners to the experts. */
static dp_status_t exchange_out(dp_moe_t *moe, moe_task_t *t, dp_launch_fn kernel, dp_stream_t *s)
{
    const moe_dispatch_layout_t *l = &moe->layout.saved.dispatch;

    return exchange_rows(moe, &moe->out, t, l->out_offsets, l->out_counts, kernel, s);
}

static dp_status_t exchange_back(dp_moe_t *moe, moe_task_t *t, dp_launch_fn kernel, dp_stream_t *s)
{
    const moe_dispatch_layout_t *l = &moe->layout.saved.dispatch;

    return exchange_rows(moe, &moe->back, t, l->back_offsets, l->back_counts, kernel, s);
}

/* Computes with rows that came `way`: where they were posted it waits for them. */
static dp_status_t compute_on_rows(dp_moe_t *moe, moe_way_t *way, const dp_moe_io_t *io, dp_stream_t *s,
                                   dp_launch_fn kernel, const char *call, unsigned need)
{
    moe_task_t t;

    DO(begin_call(moe, io, call, need, &t));
    if (moe->posted)
        DO(take_posted(moe, way, &t, s));
    return launch_task(moe, kernel, &t, s);
}

/* What every call of dp.ep.draft/1 is given. Calls back bring their rows to work.returned. */
static dp_ep_io_t ep_io(const moe_task_t *t)
{
    const moe_layout_t *l = &t->moe->layout;

    return (dp_ep_io_t){
        .struct_size = sizeof(dp_ep_io_t),
        .tokens = (uint32_t)t->n.tokens,
        .saved = t->saved + l->saved.ep,
        .scratch = t->scratch,
        .experts = (const int32_t *)(const void *)(t->saved + l->saved.replica),
        .rows = t->work + l->work.rows,
    };
}

static dp_status_t ep_dispatch(dp_moe_t *moe, const moe_task_t *t, dp_stream_t *s)
{
    const moe_layout_t *l = &moe->layout;
    dp_ep_io_t io = ep_io(t);

    io.rows_out = t->saved + l->saved.x;
    io.counts_out = (int32_t *)(void *)(t->saved + l->saved.cells);
    return moe->ep_vt->dispatch(moe->ep, &io, s);
}

static dp_status_t ep_combine(dp_moe_t *moe, const moe_task_t *t, dp_stream_t *s)
{
    dp_ep_io_t io = ep_io(t);

    io.rows_out = t->work + moe->layout.work.returned;
    return moe->ep_vt->combine(moe->ep, &io, s);
}

static dp_status_t ep_combine_backward(dp_moe_t *moe, const moe_task_t *t, dp_stream_t *s)
{
    const moe_layout_t *l = &moe->layout;
    dp_ep_io_t io = ep_io(t);

    io.rows = moe->n.shared > 0 ? layout_find(t->saved, t->backward_buffer, l->saved.own_dy)
                                : (void *)(t->work + l->work.own_dy);
    io.rows_out = layout_find(t->saved, t->backward_buffer, l->saved.dy);
    io.weights = t->saved + l->saved.weights;
    io.weights_out = t->work + l->work.weights;
    return moe->ep_vt->combine_backward(moe->ep, &io, s);
}

static dp_status_t ep_dispatch_backward(dp_moe_t *moe, const moe_task_t *t, dp_stream_t *s)
{
    const moe_layout_t *l = &moe->layout;
    dp_ep_io_t io = ep_io(t);

    io.rows_out = t->work + l->work.returned;
    io.dweights = (const double *)(const void *)(t->work + l->work.row_dweights);
    io.dweights_out = (double *)(void *)(t->work + l->work.dweights);
    return moe->ep_vt->dispatch_backward(moe->ep, &io, s);
}

static dp_status_t moe_route(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    moe_task_t t;

    DO(begin_call(moe, io, "route", MOE_NEED_X | MOE_TAKES_LOADS, &t));
    DO(moe_check_placement(moe->host, rules.plugin, io, &moe->n));
    return launch_task(moe, moe->kernels->route, &t, s);
}

static dp_status_t moe_dispatch(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    moe_task_t t;

    DO(begin_call(moe, io, "dispatch", 0, &t));
    return moe->ep_vt != NULL ? ep_dispatch(moe, &t, s) : exchange_out(moe, &t, moe->kernels->take_dispatch, s);
}

static dp_status_t moe_experts(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute_on_rows(moe, &moe->out, io, s, moe->kernels->experts, "experts", 0);
}

static dp_status_t moe_combine(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    moe_task_t t;

    DO(begin_call(moe, io, "combine", moe->sums ? 0 : MOE_NEED_Y, &t));
    if (moe->ep_vt == NULL)
        return exchange_back(moe, &t, moe->sums ? moe->kernels->take_returned : moe->kernels->take_combine, s);
    DO(ep_combine(moe, &t, s));
    return moe->sums ? DP_OK : launch_task(moe, moe->kernels->sum, &t, s);
}

static dp_status_t moe_combine_backward(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    moe_task_t t;

    DO(begin_call(moe, io, "combine_backward", moe->sums ? 0 : MOE_NEED_DY, &t));
    if (!moe->sums)
        DO(launch_task(moe, moe->kernels->sum_backward, &t, s));
    if (moe->ep_vt == NULL)
        DO(launch_task(moe, moe->kernels->combine_backward, &t, s));
    return moe->ep_vt != NULL ? ep_combine_backward(moe, &t, s)
                              : exchange_out(moe, &t, moe->kernels->take_combine_backward, s);
}

static dp_status_t moe_experts_backward_input(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute_on_rows(moe, &moe->out, io, s, moe->kernels->experts_backward_input, "experts_backward_input", 0);
}

static dp_status_t moe_experts_backward_weight(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute_on(moe, io, s, moe->kernels->experts_backward_weight, "experts_backward_weight",
                      MOE_NEED_GRADS | MOE_NEED_NO_WORK);
}

static dp_status_t moe_dispatch_backward(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    moe_task_t t;

    DO(begin_call(moe, io, "dispatch_backward", 0, &t));
    if (moe->ep_vt == NULL)
        return exchange_back(moe, &t, moe->kernels->take_dispatch_backward, s);
    DO(ep_dispatch_backward(moe, &t, s));
    return launch_task(moe, moe->kernels->take_dispatch_backward, &t, s);
}

static dp_status_t moe_route_backward_input(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute_on_rows(moe, &moe->back, io, s, moe->kernels->route_backward_input, "route_backward_input", 0);
}

static dp_status_t moe_route_backward_weight(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute_on(moe, io, s, moe->kernels->route_backward_weight, "route_backward_weight",
                      MOE_NEED_GRADS | MOE_NEED_NO_WORK);
}

static dp_status_t moe_experts_recompute(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute_on(moe, io, s, moe->kernels->experts_recompute, "experts_recompute", MOE_NEED_NO_WORK);
}

/* ---- shared experts and sum, where they are apart ---- */

#define CALL_APART(name, need)                                                                                         \
    static dp_status_t moe_##name(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)                                \
    {                                                                                                                  \
        return compute_on(moe, io, s, moe->kernels->name, #name, need);                                                \
    }
CALL_APART(shared, 0)
CALL_APART(sum_backward, MOE_NEED_DY)
CALL_APART(shared_backward_input, 0)
CALL_APART(shared_backward_weight, MOE_NEED_GRADS | MOE_NEED_NO_WORK)
CALL_APART(shared_recompute, MOE_NEED_NO_WORK)

static dp_status_t moe_sum(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    return compute_on_rows(moe, &moe->back, io, s, moe->kernels->sum, "sum", MOE_NEED_Y);
}

static dp_status_t check_backends(const dp_host_t *host, const dp_moe_config_t *c)
{
    if (c->device == NULL || c->device_vt == NULL || !(c->device_vt->caps & DP_DEVICE_CAP_LAUNCH) ||
        !(c->device_vt->caps & DP_DEVICE_CAP_HOST_MEMORY))
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "moe_cpu runs host code on host memory, which this device does not offer: use it with "
                       "device_cpu");
    return c->ep_vt != NULL ? DP_OK : moe_check_comm(host, rules.plugin, c);
}

/* Its instance, and what it asks for. */
static dp_status_t open_ep(dp_moe_t *moe, const dp_moe_config_t *c, dp_ep_sizes_t *sizes_out)
{
    const moe_dims_t *n = &moe->n;
    const dp_ep_config_t config = {
        .struct_size = sizeof(config),
        .dtype = c->shape->dtype,
        .tokens = (uint32_t)n->tokens,
        .hidden = (uint32_t)n->hidden,
        .experts = (uint32_t)n->replicas,
        .top_k = (uint32_t)n->top_k,
        .device_vt = c->device_vt,
        .device = c->device,
        .comm_vt = c->comm_vt,
        .comm = c->comm,
        .comm_rank = c->comm_rank,
        .comm_size = c->comm_size,
        .exchange_id = c->exchange_id,
    };
    dp_status_t status;

    DO(c->ep_vt->open(moe->host, &config, &moe->ep));
    moe->ep_vt = c->ep_vt;
    status = moe->ep_vt->sizes(moe->ep, sizes_out);
    if (status >= 0 && sizes_out->rows > (uint32_t)n->rows)
        return DP_FAIL(moe->host, DP_ERR_PLUGIN,
                       "moe_cpu: the plugin of dp.ep.draft/1 wants room for %u rows, more than %d can come",
                       sizes_out->rows, n->rows);
    return status;
}

static void close_ep(const dp_moe_t *moe)
{
    if (moe->ep_vt != NULL)
        moe->ep_vt->close(moe->ep);
}

static void moe_close(dp_moe_t *moe)
{
    if (moe == NULL)
        return;
    close_ep(moe);
    moe->host->release(moe->host, moe);
}

static dp_status_t moe_open(const dp_host_t *host, const dp_moe_config_t *config, dp_moe_t **moe_out)
{
    dp_moe_t opened = {.host = host}, *moe = NULL;
    dp_ep_sizes_t ep = {.struct_size = sizeof(ep)};
    dp_status_t status;

    status = moe_dims_init(host, &rules, config, &opened.n);
    if (status >= 0) {
        opened.recompute = config->recompute;
        opened.apart = config->apart != 0;
        opened.posted = config->posted != 0;
        opened.sums = opened.apart || opened.posted;
    }
    if (status >= 0)
        status = check_backends(host, config);
    if (status >= 0)
        status = check_recompute(host, rules.plugin, opened.recompute);
    if (status >= 0 && config->ep_vt != NULL)
        status = open_ep(&opened, config, &ep);
    if (status >= 0)
        status = moe_layout_init(&opened, opened.ep_vt != NULL ? &ep : NULL, dp_dtype_bytes(config->shape->dtype),
                                 &opened.layout);
    if (status >= 0)
        moe = host->allocate(host, sizeof(*moe) + moe_names_bytes(&opened.n), 64);
    if (status >= 0 && moe == NULL)
        status = DP_FAIL(host, DP_ERR_NOMEM, "moe_cpu: no memory for an instance with %d experts", opened.n.local);
    if (status >= 0 && opened.ep_vt == NULL)
        status = moe_open_links(&opened.n, config, &opened.out.link, &opened.back.link);
    if (status < 0) {
        close_ep(&opened);
        if (moe != NULL)
            host->release(host, moe);
        return status;
    }
    opened.device_vt = config->device_vt;
    opened.comm_vt = config->comm_vt;
    opened.kernels = config->shape->dtype == DP_F32 ? &moe_kernels_f32 : &moe_kernels_f64;
    *moe = opened;
    moe_write_names(&moe->n, (char *)(moe + 1));
    cpu_blas_set_threads(host);
    *moe_out = moe;
    return DP_OK;
}

static dp_status_t moe_sizes(const dp_moe_t *moe, dp_block_sizes_t *sizes_out)
{
    const dp_block_sizes_t sizes = {
        .struct_size = sizeof(sizes),
        .saved_bytes = moe->layout.saved.bytes,
        .backward_buffer_bytes = moe->layout.saved.backward_buffer_bytes,
        .recomputes = moe->recompute >= DP_RECOMPUTE_MLP,
        .work_bytes = moe->layout.work.bytes,
        .scratch_bytes = moe->layout.scratch.bytes,
        .param_count = moe->layout.params.count,
        .nparams = moe->layout.params.nparams,
        .apart = moe->apart,
        .posted = moe->posted,
    };

    return answer_sizes(moe->host, rules.plugin, &sizes, sizes_out);
}

static dp_status_t moe_params(const dp_moe_t *moe, dp_param_t *params_out)
{
    moe_list_params(&moe->n, (const char *)(moe + 1), params_out);
    return DP_OK;
}

static const char *moe_about(const dp_moe_t *moe)
{
    (void)moe;
    return cpu_blas_about();
}

static const dp_moe_vt_t moe_vt = {
    .struct_size = sizeof(moe_vt),
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
    .experts_recompute = moe_experts_recompute,
    .about = moe_about,
    .shared = moe_shared,
    .sum = moe_sum,
    .sum_backward = moe_sum_backward,
    .shared_backward_input = moe_shared_backward_input,
    .shared_backward_weight = moe_shared_backward_weight,
    .shared_recompute = moe_shared_recompute,
};

static const void *moe_interface(const char *id)
{
    return strcmp(id, DP_IFACE_MOE) == 0 ? &moe_vt : NULL;
}

static dp_status_t moe_init(const dp_host_t *host)
{
    return cpu_blas_choose(host, "moe_cpu");
}

DP_PLUGIN_DEFINE(moe_cpu) = {
    DP_PLUGIN_HEAD,        .name = "moe_cpu",
    .version = DP_VERSION, .summary = "mixture of SwiGLU experts on CPU cores through CBLAS",
    .init = moe_init,      .get_interface = moe_interface,
};
