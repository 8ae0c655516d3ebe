/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kernels.h: what kernels are handed; read by C and CUDA.
 *
 * Letters: T tokens, d hidden, E experts, k of them chosen per token, f their width, S width of the shared experts together,
 * R ranks, P replicas (the experts themselves where they are not replicated), L = P/R of them ours, C most rows from one rank to another, N rows that we have room for. Types: "real" is the
 * block's dtype; "sum" is double for DP_F64 and float otherwise; "wide" is float for DP_BF16 and double otherwise. */
#ifndef DP_MOE_CUDA_KERNELS_H
#define DP_MOE_CUDA_KERNELS_H

#include <stdint.h>

enum {
    MOE_CHUNK = 1024,        /* choices that one block sorts                                  */
    MOE_SCAN_THREADS = 256,  /* of the blocks that work alone                                 */
    MOE_TOKEN_THREADS = 128, /* of blocks with a warp per token                               */
    MOE_STRIP = 64,          /* tokens whose gradients of the norm's gain are summed first    */
    MOE_MOST_RANKS = 1024,
    /* Tiles of products and the shared memory of their stages: on tensor cores by rows and by cells, without. */
    MOE_ROWS_M = 128, MOE_ROWS_N = 256, MOE_ROWS_SHARED = 4 * (128 + 256) * 64 * 2,
    MOE_CELLS_M = 128, MOE_CELLS_N = 128, MOE_CELLS_SHARED = 3 * (128 + 128) * 64 * 2,
    MOE_WGMMA_SHARED = 4 * (128 + 256) * 64 * 2 + 1024, /* in tiles of MOE_ROWS_M x MOE_ROWS_N both ways */
    MOE_PLAIN_TILE = 64,
    MOE_PRODUCT_THREADS = 256
};

/* Which call sent a row. */
enum { MOE_DISPATCH = 1, MOE_COMBINE, MOE_COMBINE_BACKWARD, MOE_DISPATCH_BACKWARD };

/* What a kernel found wrong; written once, read by the host. */
enum { MOE_FAULT_STEP = 1, MOE_FAULT_ROOM = 2, MOE_FAULT_PLACEMENT = 3 };

typedef struct moe_fault {
    int32_t claimed;                /* by the thread that writes the rest                       */
    int32_t kind, call;
    int32_t rank, rows; /* rank: whose rows, or which expert has no replica; rows: how many came that have no room */
} moe_fault_t;

/* Travels in front of each row. */
typedef struct moe_head {
    int32_t expert; /* out: the replica's number at the receiver. back: 0                         */
    uint32_t call;
    double weight;  /* dispatch: the weight; dispatch_backward: its gradient; else 0               */
} moe_head_t;

typedef struct moe_dims {
    int32_t tokens, hidden, experts, top_k, ffn, shared; /* T d E k f S */
    int32_t replicas, rank, ranks, local, pair_rows, rows; /* P - R L C N */
    int32_t padded;   /* rows between the first rows of two experts; 0: experts lie one behind the other   */
    int32_t softmax, normalize;
    int32_t vectors;  /* rows of d, of f and of S reals are multiples of 16 bytes                          */
    int64_t row_bytes;
    double scale, norm_eps;
    double aux;       /* what sum_e count_e sum_t p_te is multiplied by                                    */
} moe_dims_t;

/* One call's memory, all of it on the device. Names as in moe_cuda.h's layout. */
typedef struct moe_call {
    moe_dims_t n;
    const void *norm, *bias; /* parameters: real [d], [E] */
    void *grad_norm, *grad_bias;
    void *h, *rstd, *scores, *weights;
    int32_t *chosen, *replica, *place, *counts;
    int32_t *out_offsets, *out_counts, *in_offsets, *in_counts;
    int32_t *from, *cells, *first, *group_rows, *group_first, *back;
    void *arrived_weights, *x, *dy, *gate, *up, *act, *own_dy, *dnorm;
    char *rows;
    void *own; /* forward: output of the shared experts; backward: gradient of n */
    double *dweights;
    void *normed, *strips;
    int32_t *histogram, *starts, *list, *list_first;
    const int32_t *placement; /* NULL: experts are not replicated */
    int32_t microbatch;
    double *partial;
    const void *input; /* x, or dy */
    void *y, *dx;
    double *aux_loss;
    double aux_scale;
    const char *arrived;
    const int32_t *arrived_counts;
    moe_fault_t *fault;
    int32_t label; /* of this call's rows */
} moe_call_t;

/* Rows of an activation, of the routed experts (back given) or of the shared ones. */
typedef struct moe_glu {
    void *gate, *up, *act;   /* real [rows, width]                                                */
    const void *weights;     /* sum [rows]; NULL: 1                                               */
    const int32_t *back;     /* which travelling row belongs to each; below 0: none               */
    const int32_t *offsets, *counts; /* [ranks] whose last ones sum to the number of rows; NULL: `rows` */
    char *travelling;
    int64_t row_bytes;
    int32_t rows, ranks, width, hidden, label, vectors;
} moe_glu_t;

/**
 * One grouped product. By rows: C rows = A rows times the group's B. By cells: C of the group += A^T B over its rows, which lie
 * in `cells` runs that are added one after the other.
 */
typedef struct moe_product {
    const int32_t *rows, *first; /* [groups, cells] how many, which is the first; NULL: one run of `m` (by cells: `k`) rows  */
    const int32_t *map;          /* by rows: row of C for each row of A; NULL: the same                                     */
    const void *a[2], *b[2];     /* `parts` of a sum, or (b, c) `outputs` of one A                                          */
    void *c[2];
    int64_t lda, ldb, ldc, group_b, group_c; /* elements                                                                    */
    int32_t groups, cells, m, n, k; /* by rows, with `rows`: m is what all groups together have at most                     */
    int32_t parts, outputs;      /* 1 or 2; not both 2                                                                      */
    int32_t accumulate;          /* by rows: C is added to                                                                  */
} moe_product_t;

#endif
