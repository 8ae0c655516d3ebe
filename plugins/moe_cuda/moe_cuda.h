/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_cuda.h: where the data of one MoE block lie in the memory it is handed, and the instance.
 * Letters and types as in kernels.h. */
#ifndef MOE_CUDA_H
#define MOE_CUDA_H

#include "cuda/launch.h"
#include "kernels.h"
#include "plugins/moe/moe.h"

/* How the experts' products are made. */
typedef enum moe_products {
    MOE_GROUPED, /* kernels of ours, tensor cores where type and sizes allow */
    MOE_PLAIN,   /* kernels of ours without tensor cores */
    /* bf16 by kernels of CUTLASS, on devices of capability 9.0 alone; the others as grouped */
    MOE_CUTLASS,
    MOE_PRODUCTS
} moe_products_t;

/* Offsets in bytes of the arrays of kernels.h, each within its memory; of some of MOE_SAVED into
 * the backward buffer (layout_keep). */
typedef struct moe_layout {
    moe_params_t params;
#define MOE_OFFSET(type, name, rows, columns, bytes) size_t name;
    MOE_SAVED(MOE_OFFSET)
    MOE_WORK(MOE_OFFSET)
    MOE_SCRATCH(MOE_OFFSET)
#undef MOE_OFFSET
    size_t saved_bytes, backward_buffer_bytes, work_bytes, scratch_bytes;
} moe_layout_t;

/* Kernels by name, image by image; typed ones have a suffix for the block's type. */
#define MOE_ROUTE_TYPED(X)                                                                                             \
    X(norm)                                                                                                            \
    X(norm_again)                                                                                                      \
    X(choices)                                                                                                         \
    X(aux_tokens) X(logits_backward) X(norm_backward) X(norm_strips) X(gain_strips) X(gain_sum) X(vectors_backward)
#define MOE_ROUTE_COMMON(X) X(count) X(starts) X(places) X(tokens) X(aux_sum) X(split)
#define MOE_ROUTER(X)       X(logits) X(router_input) X(router_weight)
#define MOE_ROWS_TYPED(X)   X(pack) X(sort) X(combine) X(gather) X(activate) X(activate_backward)
#define MOE_ROWS_COMMON(X)  X(cells) X(groups) X(due)

typedef enum moe_form { MOE_NN = MOE_FORM_NN, MOE_NT, MOE_TN, MOE_FORMS } moe_form_t;

typedef struct moe_kernels {
#define MOE_MEMBER(name) CUfunction name;
    MOE_ROUTE_TYPED(MOE_MEMBER)
    MOE_ROUTE_COMMON(MOE_MEMBER)
    MOE_ROUTER(MOE_MEMBER)
    MOE_ROWS_TYPED(MOE_MEMBER)
    MOE_ROWS_COMMON(MOE_MEMBER)
#undef MOE_MEMBER
    CUfunction group_sizes, place_rows; /* for a library */
    /* [form][1: C is of the type of sums]; NULL: there is none */
    CUfunction plain[MOE_FORMS][2], tensor[MOE_FORMS][2];
} moe_kernels_t;

struct dp_moe {
    const dp_host_t *host;
    const cuda_driver_t *cu;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    const dp_comm_vt_t *comm_vt;
    moe_link_t out, back; /* tokens' owner to expert, and back */
    CUmodule modules[5];
    moe_kernels_t kernels;
    moe_fault_t *fault; /* memory that host and device both reach */
    bool watched;
    uint32_t sms;
    moe_dims_t n;
    dp_dtype_t dtype;
    moe_products_t products;
    struct moe_library *library; /* library.c; NULL: it makes no products */
    moe_layout_t layout;
    dp_recompute_t recompute;
};

/* layout.c */
/* apart: with memory for what a library makes. */
dp_status_t moe_layout_init(const dp_host_t *host, const moe_dims_t *n, dp_recompute_t recompute, dp_dtype_t dtype,
                            bool apart, moe_layout_t *layout_out);

/* Products of bf16 with bytes enough in a row. */
static inline bool moe_uses_library(const dp_moe_t *moe)
{
    return moe->products == MOE_CUTLASS && moe->dtype == DP_BF16 && moe->n.hidden % 8 == 0 && moe->n.ffn % 8 == 0;
}

/* products.c: DUALPIPE_DEBUG=moe_cuda.products, or else CUTLASS where it is to be had. */
dp_status_t moe_choose_products(dp_moe_t *moe);

/* instance.c: kernels and fault record of an instance. moe_instance_close() takes what
 * moe_instance_open() left. */
dp_status_t moe_instance_open(dp_moe_t *moe);
const char *moe_about(const dp_moe_t *moe);
void moe_instance_close(dp_moe_t *moe);
/* What a kernel found wrong so far; dp_watch_fn. */
dp_status_t moe_check(void *moe);

/* products.c: puts a product on a stream, with the kernel that fits it. sums: C is of the type of
 * sums, not of the block's. */
dp_status_t moe_multiply(dp_moe_t *moe, moe_form_t form, bool sums, const moe_product_t *product, CUstream s);
#endif
