/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_cpu.h: where the data of one MoE block lie in the memory it is handed, and what a kernel gets
 * to see. Letters as in plugins/moe/dims.h. */
#ifndef MOE_CPU_H
#define MOE_CPU_H

#include "plugins/moe/dispatch.h"

#include <dualpipe/draft/ep.h>

/* Offsets in bytes; of some in `saved` they are into the backward buffer (layout_find). */
typedef struct moe_layout {
    moe_params_t params;
    struct {
        size_t h, rstd, scores; /* [T,d] [T] [T,E]; scores become the gradient of the logits */
        size_t weights, chosen; /* [T,k] each */
        /* [T,k] which serves (token, choice); `chosen` where experts are not replicated */
        size_t replica;
        size_t cells;                   /* [L,R] rows for each expert from each rank */
        moe_dispatch_layout_t dispatch; /* without dp.ep.draft/1 */
        size_t ep;                      /* what its backend keeps */
        /* [N,d] a received row for each head, ordered by (expert, rank) */
        size_t x, dy;
        /* [N,f] gate and up become their gradients; act: weighted input of w_down */
        size_t gate, up, act;
        size_t shared_gate, shared_up, shared_act; /* [T,S] the same of the shared experts */
        /* [T,d] only with shared experts, else in work */
        size_t own_dy;
        size_t dnorm; /* [d] */
        size_t bytes, backward_buffer_bytes;
    } saved;
    struct {
        /* sent rows, on the way out and later on the way back. With dp.ep.draft/1 those that its
         * backend is given: [T,d] on the way out, [N,d] on the way back. */
        size_t rows;
        size_t returned;     /* [T,k,d] what it brings back; without it, where the sum is a call */
        size_t row_dweights; /* double [N] for it: gradients of the weights of received rows */
        /* [T,d] forward: output of the shared experts. backward: gradient of n */
        size_t shared;
        size_t dweights; /* double [T,k] */
        size_t weights;  /* [N] weights of the received heads */
        size_t own_dy;   /* [T,d] without shared experts */
        size_t bytes;
    } work;
    struct {
        size_t n, hidden;  /* [T,d]; [T, max(f, S)] */
        size_t dweights;   /* double [T] */
        size_t sums, pick; /* double [E] each */
        size_t ints;       /* int32 [2 E + R], with replicas [3 E + 2 P + 1 + R] */
        size_t ranks;      /* int32 [R] */
        size_t bytes;
    } scratch;
} moe_layout_t;

/* The argument of every kernel; copied by launch(). */
typedef struct moe_task {
    const struct dp_moe *moe;
    const void *params;
    void *grads;
    char *saved, *backward_buffer, *work, *scratch;
    const void *x, *dy;
    void *y, *dx;
    double *aux_loss;
    int64_t *loads;
    double aux_scale;
    const int32_t *placement; /* [P] where experts are replicated */
    int32_t microbatch;
    const char *rows;      /* what an exchange brought: rows of rank p from p * room on */
    const int32_t *counts; /* how many of them */
    int32_t room;
    moe_dims_t n; /* of this micro-batch; memory is laid out by those of the longest */
} moe_task_t;

/* One entry per work on a stream; names as in moe.h, take_x: what comes after x's exchange. */
typedef struct moe_kernels {
    dp_launch_fn route, take_dispatch, experts, take_combine;
    dp_launch_fn combine_backward, take_combine_backward, experts_backward_input, experts_backward_weight;
    dp_launch_fn take_dispatch_backward, route_backward_input, route_backward_weight;
    dp_launch_fn experts_recompute;
    dp_launch_fn take_returned, shared, sum, sum_backward, shared_backward_input, shared_backward_weight,
        shared_recompute;
} moe_kernels_t;

extern const moe_kernels_t moe_kernels_f32, moe_kernels_f64;

/* Rows under way, and who works on them when they are there. */
typedef struct moe_post {
    moe_task_t task;
    dp_launch_fn kernel;
} moe_post_t;

/* An exchange, and what is posted on it: numbers from `taken` on. */
typedef struct moe_way {
    moe_link_t link;
    moe_post_t posts[MOE_LINK_SLOTS];
    uint32_t taken;
} moe_way_t;

struct dp_moe {
    const dp_host_t *host;
    const dp_device_vt_t *device_vt;
    const dp_comm_vt_t *comm_vt;
    moe_way_t out, back;     /* tokens' owner to expert, and back */
    const dp_ep_vt_t *ep_vt; /* NULL: the two links send the rows */
    dp_ep_t *ep;
    const moe_kernels_t *kernels;
    moe_dims_t n;
    moe_layout_t layout;
    dp_recompute_t recompute;
    /* shared experts are separate calls; so is the sum of the rows; rows are posted */
    bool apart, sums, posted;
};

/* Of an instance whose dims, recompute and sums are set. ep: what the backend of dp.ep.draft/1
 * asks for, or NULL; element: bytes of one. */
dp_status_t moe_layout_init(const dp_moe_t *moe, const dp_ep_sizes_t *ep, size_t element, moe_layout_t *layout_out);

#endif
