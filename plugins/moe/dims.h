/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * dims.h: the sizes of a MoE block, and what two ranks send each other; read by C and CUDA.
 *
 * Letters: T tokens, d hidden, E experts, k of them chosen per token, f their width, S width of the
 * shared experts together, R ranks, P replicas (the experts themselves where they are not
 * replicated), L = P/R of them ours, C most choices that one rank's tokens make among another's
 * experts, N most that all ranks' make among ours. A token chooses an expert at most once, so that
 * C = T min(k, L) and N = R C are exact where no capacity says less.
 *
 * What a rank sends to another in one call is a list and rows behind it. The list has a head for
 * each choice, sorted by (expert, token), and takes up as many rows as its bytes need. On the way
 * out there is one row for each token that chose any of the receiver's experts, in the order of
 * tokens, and the heads say which of them is whose; on the way back there is one for each head, in
 * their order. So the owner can add a token's rows in the order in which they were chosen. Without
 * choices nothing is sent. */
#ifndef PLUGINS_MOE_DIMS_H
#define PLUGINS_MOE_DIMS_H

#include <stdint.h>

typedef struct moe_dims {
    int32_t tokens, hidden, experts, top_k, ffn, shared;   /* T d E k f S */
    int32_t replicas, rank, ranks, local, pair_rows, rows; /* P - R L C N */
    /* most rows of one exchange from one rank to another, list included */
    int32_t out_room, back_room;
    int32_t sent_rows;  /* most that one rank sends in one exchange, lists included */
    int32_t replicated; /* 1: a placement says of which expert each replica is */
    int32_t softmax;    /* 1: the gate is softmax; 0: sigmoid */
    /* Groups of experts, 0: a token chooses from all of them; how many it chooses from; experts of
     * one, and how many of them count for it. */
    int32_t groups, limit, group_experts, group_top;
    int32_t normalize;
    int32_t vectors; /* 1: rows of d and of f elements are multiples of 16 bytes */
    int32_t stride;  /* elements from one sent row to the next */
    int64_t row_bytes;
    double scale, norm_eps;
    double aux_alpha;
    double aux; /* what sum_e count_e sum_t p_te is multiplied by; 0: no auxiliary loss */
} moe_dims_t;

typedef struct moe_list {
    uint32_t call; /* which one sent it */
    int32_t heads; /* that follow */
    int32_t reserved[2];
} moe_list_t;

typedef struct moe_head {
    int32_t expert; /* out: the replica's number at the receiver. back: 0 */
    int32_t row;    /* which of the rows behind the list */
    /* Of the choice on its way to the expert (moe_cpu: the bytes of that type), its gradient on the
     * way back of a backward; else 0. */
    double weight;
} moe_head_t;

enum { MOE_DISPATCH = 1, MOE_COMBINE, MOE_COMBINE_BACKWARD, MOE_DISPATCH_BACKWARD };

/* Rows that a list of so many heads takes up. */
#define MOE_LIST_ROWS(heads, row_bytes)                                                                                \
    ((heads) > 0 ? (int32_t)((((int64_t)(heads) + 1) * 16 + (row_bytes)-1) / (row_bytes)) : 0)

#endif
