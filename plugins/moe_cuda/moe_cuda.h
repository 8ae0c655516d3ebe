/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_cuda.h: the sizes of one MoE block, where its data lie in the memory it is handed, and the instance. Letters and types as
 * in kernels.h. */
#ifndef DP_MOE_CUDA_H
#define DP_MOE_CUDA_H

#include <dualpipe/moe.h>

#include <stdbool.h>

#include "cuda/gemm.h"
#include "cuda/launch.h"

#include "kernels.h"

/* Which way the experts' products are made; DUALPIPE_MOE_PRODUCTS chooses. */
typedef enum moe_products {
    MOE_GROUPED = 0, /* "grouped", the default: kernels of ours, tensor cores where type and sizes allow */
    MOE_PLAIN,       /* "plain": kernels of ours without tensor cores                                    */
    MOE_PADDED,      /* "padded": batched products of cuBLASLt over experts padded to equal size         */
    MOE_WGMMA        /* "wgmma": as grouped, with warpgroup products, on devices of capability 9.0 alone */
} moe_products_t;

typedef struct moe_shape {
    moe_dims_t n;
    dp_dtype_t dtype;
    moe_products_t products;
    int32_t replicated;
    int32_t arrivals; /* most rows that can arrive and be taken */
    double aux_alpha;
} moe_shape_t;

/* Offsets: of parameters in elements, of everything else in bytes. */
typedef struct moe_layout {
    size_t norm, router, bias, shared_gate, shared_up, shared_down; /* parameters; an expert is gate, up, down */
    size_t expert, expert_count;                                    /* the first of ours; elements of each     */
    size_t param_count;
    uint32_t nparams;
    struct {
        size_t h, rstd, scores;            /* real [T,d], sum [T], sum [T,E]; scores become gradients of the logits */
        size_t weights, chosen, place;     /* [T,k] each; place: the row of (token, choice) among those we send     */
        size_t replica;                    /* [T,k] which serves (token, choice)                                    */
        size_t counts;                     /* [E] how often each expert was chosen                                  */
        size_t out_offsets, out_counts;    /* [R] rows we send to each rank: their first, how many                  */
        size_t in_offsets, in_counts;      /* [R] rows we got from each rank                                        */
        size_t from;                       /* [R,L+1] first row of each expert among those of a rank                */
        size_t cells, first;               /* [L,R] rows for each expert from each rank: how many, the first in x   */
        size_t group_rows, group_first;    /* [L] the same for each expert                                          */
        size_t back;                       /* [N] which travelling row belongs to each row of x; below 0: none      */
        size_t arrived_weights;            /* sum [N]                                                               */
        size_t x, dy;                      /* real [N,d] received rows, ordered by (expert, rank)                   */
        size_t gate, up, act;              /* real [N,f] gate and up become their gradients; act: input of w_down   */
        size_t shared_gate, shared_up, shared_act; /* real [T,S] the same of the shared experts                     */
        size_t own_dy;                     /* real [T,d] only with shared experts, else in work                     */
        size_t dnorm;                      /* sum [d]                                                               */
        size_t bytes;
    } saved;
    struct {
        size_t rows;     /* travelling rows, on the way out and later on the way back                     */
        size_t own;      /* sum [T,d] forward: output of the shared experts. backward: gradient of n       */
        size_t dweights; /* double [T,k]                                                                   */
        size_t own_dy;   /* real [T,d] without shared experts                                              */
        size_t padded;   /* real [N,d] what padded products come to before they travel                     */
        size_t bytes;
    } work;
    struct {
        size_t normed;          /* real [T,d]                                                               */
        size_t strips;          /* sum [T/64,d], or bf16 [2,T,E]                                            */
        size_t histogram;       /* [chunks,E]                                                               */
        size_t starts, list;    /* [P]                                                                      */
        size_t list_first;      /* [E+1]                                                                    */
        size_t partial;         /* double [T]                                                               */
        size_t workspace;       /* of cuBLASLt                                                              */
        size_t bytes;
    } scratch;
} moe_layout_t;

/* Kernels by name, image by image; typed ones have a suffix for the block's type. */
#define MOE_ROUTE_TYPED(X)                                                                                             \
    X(norm) X(norm_again) X(choices) X(aux_tokens) X(logits_backward) X(norm_backward) X(gain_strips) X(gain_sum)      \
    X(vectors_backward)
#define MOE_ROUTE_COMMON(X) X(count) X(replicas) X(starts) X(places) X(aux_sum) X(split)
#define MOE_ROWS_TYPED(X)   X(pack) X(sort) X(pad) X(combine) X(gather) X(activate) X(activate_backward) X(spread)
#define MOE_ROWS_COMMON(X)  X(cells) X(groups) X(due)

typedef enum moe_form { MOE_NN = 0, MOE_NT, MOE_TN, MOE_FORMS } moe_form_t;

typedef struct moe_kernels {
#define MOE_MEMBER(name) CUfunction name;
    MOE_ROUTE_TYPED(MOE_MEMBER)
    MOE_ROUTE_COMMON(MOE_MEMBER)
    MOE_ROWS_TYPED(MOE_MEMBER)
    MOE_ROWS_COMMON(MOE_MEMBER)
#undef MOE_MEMBER
    CUfunction plain[MOE_FORMS][2], tensor[MOE_FORMS][2]; /* [form][1: C is of the type of sums]; NULL: there is none */
} moe_kernels_t;

struct dp_moe {
    const dp_host_t *host;
    const dp_cuda_driver_t *cu;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    const dp_comm_vt_t *comm_vt;
    struct moe_link {
        dp_exchange_t *exchange;
        uint32_t sequence;
    } out, back; /* tokens' owner to expert, and back */
    CUmodule modules[4];
    moe_kernels_t kernels;
    dp_gemm_t *gemm;             /* NULL unless padded */
    moe_fault_t *fault; /* memory that host and device both reach */
    bool watched;
    uint32_t sms;
    moe_shape_t shape;
    moe_layout_t layout;
};

/* shape.c: refuses what cannot be, with the reason; else all sizes. The workspace is that of cuBLASLt, 0 without. */
dp_status_t moe_shape_init(const dp_host_t *host, const dp_moe_config_t *config, moe_products_t products,
                           moe_shape_t *shape_out);
dp_status_t moe_layout_init(const dp_host_t *host, const moe_shape_t *shape, size_t workspace,
                            moe_layout_t *layout_out);

/* params.c: the names lie behind the instance, in as many bytes. */
size_t moe_names_bytes(const moe_shape_t *shape);
void moe_write_names(dp_moe_t *moe);
dp_status_t moe_params(const dp_moe_t *moe, dp_param_t *params_out);

/* instance.c: kernels, fault record and cuBLASLt of an instance. moe_instance_close() takes what moe_instance_open() left. */
dp_status_t moe_instance_open(dp_moe_t *moe);
void moe_instance_close(dp_moe_t *moe);
/* What a kernel found wrong so far; dp_watch_fn. */
dp_status_t moe_check(void *moe);

/* products.c: puts a product on a stream, with the kernel that fits it. sums: C is of the type of sums, not of the block's. */
dp_status_t moe_multiply(dp_moe_t *moe, moe_form_t form, bool sums, const moe_product_t *product, CUstream s);
/* The experts' products over equal, padded numbers of rows; which: one of the five that there are. */
typedef enum moe_padded_product { MOE_UP, MOE_DOWN, MOE_DOWN_BACKWARD, MOE_UP_BACKWARD, MOE_UP_WEIGHT, MOE_DOWN_WEIGHT } moe_padded_product_t;
dp_status_t moe_multiply_padded(dp_moe_t *moe, moe_padded_product_t which, const void *a, const void *b, double beta, void *c,
                                void *workspace, CUstream s);
dp_status_t moe_prepare_padded(dp_moe_t *moe);

#endif
