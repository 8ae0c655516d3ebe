/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * dims.h: the sizes of a MoE block and the head of a travelling row; read by C and CUDA.
 *
 * Letters: T tokens, d hidden, E experts, k of them chosen per token, f their width, S width of the shared experts
 * together, R ranks, P replicas (the experts themselves where they are not replicated), L = P/R of them ours, C most
 * rows from one rank to another, N most rows that we can receive. A token chooses an expert at most once, so that
 * C = T min(k, L) and N = R C are exact where no capacity says less. */
#ifndef PLUGINS_MOE_DIMS_H
#define PLUGINS_MOE_DIMS_H

#include <stdint.h>

typedef struct moe_dims {
    int32_t tokens, hidden, experts, top_k, ffn, shared;   /* T d E k f S */
    int32_t replicas, rank, ranks, local, pair_rows, rows; /* P - R L C N */
    int32_t replicated;                                    /* 1: a placement says of which expert each replica is */
    int32_t softmax;                                       /* 1: the gate is softmax; 0: sigmoid */
    int32_t normalize;
    int32_t vectors; /* 1: rows of d and of f elements are multiples of 16 bytes */
    int32_t stride;  /* elements from one travelling row to the next */
    int64_t row_bytes;
    double scale, norm_eps;
    double aux_alpha;
    double aux; /* what sum_e count_e sum_t p_te is multiplied by; 0: no auxiliary loss */
} moe_dims_t;

/* Travels in front of each row. */
typedef struct moe_head {
    int32_t expert; /* out: the replica's number at the receiver. back: 0 */
    uint32_t call;  /* which call sent it */
    double weight;  /* the row's weight on its way to the expert, its gradient on the way back of a backward; else 0 */
} moe_head_t;

enum { MOE_DISPATCH = 1, MOE_COMBINE, MOE_COMBINE_BACKWARD, MOE_DISPATCH_BACKWARD };

#endif
