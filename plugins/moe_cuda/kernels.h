/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kernels.h: what kernels are handed; read by C and CUDA. Letters as in plugins/moe/dims.h. Types:
 * "real" is the block's dtype; "sum" is double for DP_F64 and float otherwise; "wide" is float for
 * DP_BF16 and double otherwise. */
#ifndef MOE_CUDA_KERNELS_H
#define MOE_CUDA_KERNELS_H

#include "plugins/moe/dims.h"

enum {
    MOE_CHUNK = 1024,         /* choices that one block sorts */
    MOE_SCAN_THREADS = 256,   /* of the blocks that work alone */
    MOE_ALONE_THREADS = 1024, /* most of those that have many of them */
    MOE_TOKEN_THREADS = 128,  /* of blocks with a warp per token */
    MOE_STRIP = 16,           /* tokens whose gradients of the norm's gain are summed first */
    MOE_HELD = 4,             /* vectors of a row that a thread holds, to load them all at once */
    MOE_ROUTER_TILE = 64,     /* rows and columns of the router's products that a block makes */
    MOE_ROUTER_THREADS = 128,
    MOE_ROUTER_SHARED = 3 * 2 * 64 * 64 * 2, /* three stages of A and B */
    MOE_MOST_RANKS = 1024,
    MOE_ROW_ALIGNMENT = 128, /* bytes of a cache line: of sent rows */
    /* Tiles of products and the shared memory of their stages, by rows and by cells. */
    MOE_ROWS_M = 128,
    MOE_ROWS_N = 256,
    MOE_ROWS_SHARED = 4 * (128 + 256) * 64 * 2,
    MOE_CELLS_M = 128,
    MOE_CELLS_N = 256,
    MOE_CELLS_SHARED = 3 * (128 + 256) * 64 * 2,
    MOE_PLAIN_TILE = 64,
    MOE_CUTLASS_STEP = 64, /* of K; so long are all tiles of CUTLASS's */
    MOE_PRODUCT_THREADS = 256
};

/* Slices of K that the router's products are made of, added in their order; the last may be empty.
 * MOE_SLICE: elements of each. */
#define MOE_SLICES(k) ((k) >= 1024 ? 4 : ((k) + 255) / 256)
#define MOE_SLICE(k)  (((k) + MOE_SLICES(k) * 64 - 1) / (MOE_SLICES(k) * 64) * 64)

/* What a kernel found wrong; written once, read by the host. */
enum { MOE_FAULT_STEP = 1, MOE_FAULT_ROOM = 2, MOE_FAULT_PLACEMENT = 3, MOE_FAULT_SENT = 4 };

typedef struct moe_fault {
    int32_t claimed; /* by the thread that writes the rest */
    uint32_t kind;   /* written last */
    int32_t call;
    /* rank: whose rows, or which expert has no replica; rows: how many there is no room for */
    int32_t rank, rows;
} moe_fault_t;

/* The memory of a call: X(type, name, rows, columns, bytes of an element), in this order, with n
 * the dims; real and sum: bytes of those types. layout.c makes offsets of them, moe_call the
 * pointers that kernels get. */
#define MOE_SAVED(X)                                                                                                   \
    X(void, h, n->tokens, n->hidden, real)                                                                             \
    X(void, rstd, n->tokens, 1, sum)                                                                                   \
    X(void, scores, n->tokens, n->experts, sum) /* become gradients of the logits */                                   \
    X(void, weights, n->tokens, n->top_k, sum)                                                                         \
    X(int32_t, chosen, n->tokens, n->top_k, 4)                                                                         \
    X(int32_t, replica, n->tokens, n->top_k, 4) /* which serves (token, choice) */                                     \
    X(int32_t, place, n->tokens, n->top_k, 4)   /* of the head of (token, choice) we send */                           \
    X(int32_t, row, n->tokens, n->top_k, 4)     /* which of the rows to its rank is the token's */                     \
    X(int32_t, counts, n->experts, 1, 4)        /* how often each expert was chosen */                                 \
    X(int32_t, out_first, n->ranks, 1, 4)       /* heads to each rank: first place, number */                          \
    X(int32_t, out_heads, n->ranks, 1, 4)                                                                              \
    X(int32_t, out_offsets, n->ranks, 1, 4) /* the rows that go with them, lists included */                           \
    X(int32_t, out_counts, n->ranks, 1, 4)                                                                             \
    X(int32_t, in_first, n->ranks, 1, 4) /* heads we got from each rank, numbered rank by rank */                      \
    X(int32_t, in_heads, n->ranks, 1, 4)                                                                               \
    X(int32_t, in_counts, n->ranks, 1, 4)    /* rows we got from each rank, list included */                           \
    X(int32_t, back_offsets, n->ranks, 1, 4) /* rows we send back, lists included */                                   \
    X(int32_t, back_counts, n->ranks, 1, 4)                                                                            \
    X(int32_t, from, n->ranks, n->local + 1, 4) /* of a rank's heads, each expert's first */                           \
    X(int32_t, cells, n->local, n->ranks, 4)    /* by expert and rank: heads, first in x */                            \
    X(int32_t, first, n->local, n->ranks, 4)                                                                           \
    X(int32_t, group_rows, n->local, 1, 4) /* the same for each expert */                                              \
    X(int32_t, group_first, n->local, 1, 4)                                                                            \
    X(void, dnorm, n->hidden, 1, sum)                                                                                  \
    X(void, shared_gate, n->tokens, n->shared, real) /* of shared experts, as gate, up, act */                         \
    X(void, shared_up, n->tokens, n->shared, real)                                                                     \
    X(void, shared_act, n->tokens, n->shared, real)                                                                    \
    X(void, shared_dy, n->shared > 0 ? n->tokens : 0, n->hidden, real)                                                 \
    X(int32_t, source, n->rows, 1, 4) /* which rank each row of x is from; below 0: nobody's */                        \
    X(int32_t, back, n->rows, 1, 4)   /* which row it is on its way back */                                            \
    X(void, arrived_weights, n->rows, 1, sum)                                                                          \
    X(void, x, n->rows, n->hidden, real)     /* a row for each head, by (expert, rank) */                              \
    X(void, gate, 2 * n->rows, n->ffn, real) /* gate, then up; both become their gradients */                          \
    X(void, act, n->rows, n->ffn, real)      /* input of w_down */                                                     \
    X(void, dy, n->rows, n->hidden, real)

#define MOE_WORK(X)                                                                                                    \
    X(char, rows, n->sent_rows, n->row_bytes, 1) /* to be sent */                                                      \
    X(void, own, n->tokens, n->hidden, sum)      /* shared experts' output; gradient of n */                           \
    X(double, dweights, n->tokens, n->top_k, 8)                                                                        \
    X(void, passing_dy, n->shared > 0 ? 0 : n->tokens, n->hidden, real)

#define MOE_SCRATCH(X)                                                                                                 \
    X(void, normed, n->tokens, n->hidden, real)                                                                        \
    X(void, strips, 1, strips, 1) /* sum [T/16,d]; [slices,T,E]; bf16 [2,T,E] + sum [slices,d,E] */                    \
    X(int32_t, histogram, chunks, n->experts, 4)                                                                       \
    X(int32_t, starts, n->replicas, 1, 4)                                                                              \
    X(int32_t, list, n->replicas, 1, 4)                                                                                \
    X(int32_t, list_first, n->experts + 1, 1, 4)                                                                       \
    X(double, partial, n->tokens, 1, 8)                                                                                \
    X(double, group_sums, n->groups > 0 ? n->tokens : 0, n->groups, 8)                                                 \
    X(void, apart, apart, n->hidden, real) /* rows that a library has made, and that go elsewhere */

/* What a call works on, all of it on the device. */
typedef struct moe_call {
    moe_dims_t n;
    const void *norm, *bias, *router; /* parameters: real [d], [E], [d,E] */
    void *grad_norm, *grad_bias, *grad_router;
#define MOE_POINTER(type, name, rows, columns, bytes) type *name;
    MOE_SAVED(MOE_POINTER)
    MOE_WORK(MOE_POINTER)
    MOE_SCRATCH(MOE_POINTER)
#undef MOE_POINTER
    void *own_dy;             /* real [T,d]: shared_dy, or passing_dy without shared experts */
    const int32_t *placement; /* NULL: experts are not replicated */
    int32_t microbatch;
    int32_t slices;    /* of a product of the router, in strips; 0: it is where it belongs */
    const void *input; /* x, or dy */
    void *y, *dx;
    double *aux_loss;
    double aux_scale;
    const char *arrived; /* rows from rank p from p * room on */
    const int32_t *arrived_counts;
    int32_t room;
    moe_fault_t *fault;
    int32_t label; /* of this call's rows */
} moe_call_t;

/* Rows of an activation, of the routed experts (sent given) or of the shared ones. */
typedef struct moe_glu {
    void *gate, *up, *act;        /* real [rows, width] */
    const void *weights;          /* sum [rows]; NULL: 1 */
    const int32_t *source, *back; /* as in moe_call_t, as the rest */
    /* [ranks] in_first, in_heads, back_offsets; NULL: there are `rows` rows */
    const int32_t *first, *heads, *offsets;
    char *sent;
    int64_t row_bytes;
    int32_t rows, ranks, width, hidden, label, vectors;
} moe_glu_t;

/**
 * One grouped product. By rows: C rows = A rows times the group's B. By cells: C of the group +=
 * A^T B over its rows, which lie in `cells` runs that are added one after the other.
 */
typedef struct moe_product {
    /* [groups, cells] how many, which is the first; NULL: one run of `m` (by cells: `k`) rows */
    const int32_t *rows, *first;
    const int32_t *map; /* by rows: row of C for each row of A; NULL: the same */
    /* `parts` of a sum, or (b, c) `outputs` of one A */
    const void *a[2], *b[2];
    void *c[2];
    /* elements */
    int64_t lda, ldb, ldc, group_b, group_c;
    /* by rows, with `rows`: m is what all groups together have at most */
    int32_t groups, cells, m, n, k;
    /* 1 or 2; not both 2 */
    int32_t parts, outputs;
    int32_t accumulate; /* by rows: C is added to */
    /* memory for C, one row behind the other, for whom a map is too much; NULL: none */
    void *apart;
} moe_product_t;

enum { MOE_FORM_NN = 0, MOE_FORM_NT, MOE_FORM_TN };

/* Of a sum of two products: how many rows further on A and B of the second are, in all groups, and
 * the K of each. Its sizes have K of both together, each in whole steps. */
typedef struct moe_cutlass_second {
    int32_t a_rows, b_rows, k;
} moe_cutlass_second_t;

/* What CUTLASS does, in arrays on the device. A group of m = 0 is passed over; with k = 0 and m > 0
 * what its sums begin with is undefined. */
typedef struct moe_cutlass_groups {
    int32_t groups;
    int32_t *sizes; /* [groups][3]: m, n, k */
    void **at[3];   /* A, B, C */
    int64_t *ld[3]; /* elements from row to row in memory */
    moe_cutlass_second_t *second;
    void *workspace; /* on the device; kernels on it one after the other */
    uint32_t blocks; /* along x, one a multiprocessor */
} moe_cutlass_groups_t;

#endif
