/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_block.h: a MoE plugin under test: one rank's instance, and micro-batches in guarded memory
 * whose calls are made one by one. Each call gets only the pointers that moe.h grants it. On the
 * inline device scratch is poisoned before each call, and what moe.h says is no longer needed after
 * it. */
#ifndef DP_TESTS_MOE_BLOCK_H
#define DP_TESTS_MOE_BLOCK_H

#include <check.h>
#include <dualpipe/group.h>
#include <dualpipe/plugin.h>

#include "guarded.h"
#include "inline.h"
#include "tests/support/block_config.h"

typedef enum step {
    ROUTE,
    DISPATCH,
    EXPERTS,
    COMBINE,
    COMBINE_B,
    EXPERTS_I,
    DISPATCH_B,
    ROUTE_I,
    EXPERTS_W,
    ROUTE_W,
    STEPS
} step_t;

typedef struct block {
    const dp_moe_vt_t *vt;
    dp_moe_t *moe;
    moe_config_t config;
    dp_block_sizes_t sizes;
    dp_group_t *job; /* of one rank: only for its host services; NULL off the inline device */
    dp_device_t device;
    dp_stream_t compute, all_to_all; /* of the inline device */
    dp_stream_t *lanes[2];           /* the streams in use: compute, all-to-all */
    guarded_t scratch[2];
} block_t;

/* One micro-batch. Work of forward and backward are different memory, as in a pipeline. */
typedef struct pass {
    guarded_t x, y, dy, dx, saved, work[2];
    const void *params;
    void *grads;
    double aux_loss;
    float aux_scale;
    int32_t microbatch;
    const int32_t *placement; /* where experts are replicated */
} pass_t;

static inline const dp_moe_vt_t *block_load(const char *name)
{
    const dp_plugin_t *plugin = NULL;
    const void *table = NULL;

    ck_assert_msg(dp_plugin_load(name, &plugin) == DP_OK, "%s", dp_last_error());
    ck_assert_msg(dp_plugin_interface(plugin, DP_IFACE_MOE, sizeof(dp_moe_vt_t), &table) == DP_OK, "%s",
                  dp_last_error());
    return table;
}

/* A small block; tests change what they are about. */
static inline moe_config_t block_config(dp_dtype_t dtype, uint32_t tokens, uint32_t hidden, uint32_t experts,
                                        uint32_t top_k, uint32_t ffn, uint32_t shared)
{
    const moe_config_t c = {
        .shape = {.struct_size = sizeof(c.shape), .dtype = dtype, .batch = 1, .sequence = tokens, .hidden = hidden},
        .moe =
            {
                .struct_size = sizeof(c.moe),
                .experts = experts,
                .top_k = top_k,
                .expert_hidden = ffn,
                .shared_experts = shared,
                .exchange_id = 40,
            },
    };

    return c;
}

static inline int block_sends(step_t step)
{
    return step == DISPATCH || step == COMBINE || step == COMBINE_B || step == DISPATCH_B;
}

/* The caller has filled config but for device and comm. */
static inline void block_prepare(block_t *b, const moe_config_t *config, inline_group_t *group, int32_t rank)
{
    dp_group_t *job = NULL;

    memset(b, 0, sizeof(*b));
    b->vt = block_load("moe_cpu");
    ck_assert_int_eq(dp_group_local(1, NULL, &job), DP_OK);
    b->job = job;
    b->config = *config;
    b->config.moe.device_vt = &inline_device_vt;
    b->config.moe.device = &b->device;
    b->config.moe.comm_vt = &inline_comm_vt;
    b->config.moe.comm = &group->comms[rank];
    b->config.moe.comm_rank = rank;
    b->config.moe.comm_size = group->comms[rank].nranks;
    b->lanes[0] = &b->compute;
    b->lanes[1] = &b->all_to_all;
}

static inline void block_start(block_t *b, const dp_host_t *host)
{
    ck_assert_msg(moe_open(b->vt, host, &b->config, &b->moe) == DP_OK, "%s", dp_last_error());
    b->sizes.struct_size = sizeof(b->sizes);
    ck_assert_int_eq(b->vt->sizes(b->moe, &b->sizes), DP_OK);
    b->scratch[0] = guarded_allocate(b->sizes.scratch_bytes);
    b->scratch[1] = guarded_allocate(b->sizes.scratch_bytes);
}

static inline void block_open(block_t *b, const moe_config_t *config, inline_group_t *group, int32_t rank)
{
    block_prepare(b, config, group, rank);
    block_start(b, dp_group_host(b->job));
}

static inline void block_close(block_t *b)
{
    b->vt->close(b->moe);
    if (b->scratch[0].start != NULL) {
        guarded_free(&b->scratch[0], "scratch of the compute lane");
        guarded_free(&b->scratch[1], "scratch of the all-to-all lane");
    }
    dp_group_leave(b->job);
}

static inline size_t block_boundary(const block_t *b)
{
    return (size_t)b->config.shape.batch * b->config.shape.sequence * b->config.shape.hidden;
}

static inline size_t block_element(const block_t *b)
{
    return dp_dtype_bytes(b->config.shape.dtype);
}

static inline pass_t pass_open(const block_t *b, const void *params, void *grads, int32_t microbatch)
{
    const size_t boundary = block_boundary(b) * block_element(b);
    pass_t p = {.params = params, .grads = grads, .microbatch = microbatch, .aux_scale = 1};

    p.x = guarded_allocate(boundary);
    p.y = guarded_allocate(boundary);
    p.dy = guarded_allocate(boundary);
    p.dx = guarded_allocate(boundary);
    p.saved = guarded_allocate(b->sizes.saved_bytes);
    p.work[0] = guarded_allocate(b->sizes.work_bytes);
    p.work[1] = guarded_allocate(b->sizes.work_bytes);
    return p;
}

static inline void pass_close(pass_t *p)
{
    guarded_free(&p->x, "x");
    guarded_free(&p->y, "y");
    guarded_free(&p->dy, "dy");
    guarded_free(&p->dx, "dx");
    guarded_free(&p->saved, "saved");
    guarded_free(&p->work[0], "work of forward");
    guarded_free(&p->work[1], "work of backward");
}

static inline moe_io_t pass_io(block_t *b, pass_t *p, step_t step)
{
    const int weight = step == EXPERTS_W || step == ROUTE_W, backward = step >= COMBINE_B;
    const int sends = block_sends(step);
    moe_io_t io = {
        .io = {.struct_size = sizeof(io.io),
               .microbatch = p->microbatch,
               .params = p->params,
               .saved = guarded_memory(&p->saved),
               .scratch = guarded_memory(&b->scratch[sends])},
        .moe = {.struct_size = sizeof(io.moe), .aux_scale = p->aux_scale},
    };

    if (b->lanes[sends] == &b->compute || b->lanes[sends] == &b->all_to_all)
        guarded_poison(&b->scratch[sends]);
    if (weight)
        io.io.grads = p->grads;
    else
        io.io.work = guarded_memory(&p->work[backward]);
    if (step == ROUTE) {
        io.io.x = guarded_memory(&p->x);
        io.moe.aux_loss = &p->aux_loss;
        io.moe.placement = p->placement;
    } else if (step == COMBINE) {
        io.io.y = guarded_memory(&p->y);
    } else if (step == COMBINE_B) {
        io.io.dy = guarded_memory(&p->dy);
    } else if (step == ROUTE_I) {
        io.io.dx = guarded_memory(&p->dx);
    }
    return io;
}

/* The call itself, whatever it comes to; the stream's status says what its work came to. */
static inline dp_status_t pass_call(block_t *b, pass_t *p, step_t step)
{
    const dp_moe_vt_t *vt = b->vt;
    dp_status_t (*const calls[STEPS])(dp_moe_t *, const dp_moe_io_t *, dp_stream_t *) = {
        [ROUTE] = vt->route,
        [DISPATCH] = vt->dispatch,
        [EXPERTS] = vt->experts,
        [COMBINE] = vt->combine,
        [COMBINE_B] = vt->combine_backward,
        [EXPERTS_I] = vt->experts_backward_input,
        [DISPATCH_B] = vt->dispatch_backward,
        [ROUTE_I] = vt->route_backward_input,
        [EXPERTS_W] = vt->experts_backward_weight,
        [ROUTE_W] = vt->route_backward_weight,
    };
    const int sends = block_sends(step);
    moe_io_t io = pass_io(b, p, step);

    return moe_call(calls[step], b->moe, &io, b->lanes[sends]);
}

/* A call that must go well; input that moe.h says is not needed afterwards is gone afterwards. */
static inline void pass_step(block_t *b, pass_t *p, step_t step)
{
    dp_status_t status = pass_call(b, p, step);

    ck_assert_msg(status == DP_OK, "step %d: %s", (int)step, dp_last_error());
    ck_assert_msg(b->compute.status == DP_OK && b->all_to_all.status == DP_OK, "step %d: %s", (int)step,
                  dp_last_error());
    if (b->lanes[0] != &b->compute)
        return;
    if (step == ROUTE)
        guarded_poison(&p->x);
    if (step == COMBINE_B)
        guarded_poison(&p->dy);
    if (step == COMBINE)
        guarded_poison(&p->work[0]);
    if (step == ROUTE_I)
        guarded_poison(&p->work[1]);
}

static inline void pass_forward(block_t *b, pass_t *p)
{
    step_t s;

    for (s = ROUTE; s <= COMBINE; s++)
        pass_step(b, p, s);
}

static inline void pass_backward(block_t *b, pass_t *p)
{
    step_t s;

    for (s = COMBINE_B; s <= ROUTE_W; s++)
        pass_step(b, p, s);
}

/* ---- numbers of either type ---- */

static inline double real_at(dp_dtype_t dtype, const void *reals, size_t i)
{
    return dtype == DP_F32 ? (double)((const float *)reals)[i] : ((const double *)reals)[i];
}

static inline void real_set(dp_dtype_t dtype, void *reals, size_t i, double value)
{
    if (dtype == DP_F32)
        ((float *)reals)[i] = (float)value;
    else
        ((double *)reals)[i] = value;
}

/* A value in [-1, 1) that is exact in float; the same for the same seed and i. */
static inline double noise(uint64_t seed, uint64_t i)
{
    uint64_t z = (seed << 32) + i + UINT64_C(0x9e3779b97f4a7c15) * (i + 1);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    return (double)(z >> 41) / (double)(UINT64_C(1) << 22) - 1;
}

static inline void fill(dp_dtype_t dtype, const guarded_t *g, uint64_t seed, double size)
{
    size_t i;

    for (i = 0; i < g->bytes / dp_dtype_bytes(dtype); i++)
        real_set(dtype, guarded_memory(g), i, noise(seed, i) * size);
}

#endif
