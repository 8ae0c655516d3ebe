/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cell.h: one cell of a schedule in the format of torch.distributed.pipelining. */
#ifndef DP_SCHEDULE_CELL_H
#define DP_SCHEDULE_CELL_H

#include "schedule/text.h"

enum {                     /* kinds besides those of dp_op_kind_t */
       DP__CELL_NONE = -1, /* an idle step, or a cell of parameter shards and gradient sums */
       DP__CELL_SEND_F = DP_OP_FB + 1,
       DP__CELL_RECV_F,
       DP__CELL_SEND_B,
       DP__CELL_RECV_B,
       DP__CELL_WAIT_SEND_F,
       DP__CELL_WAIT_SEND_B,
       DP__CELL_KINDS
};

typedef struct dp__cell {
    int kind;
    int32_t stage, microbatch, stage2,
        microbatch2; /* micro-batches of the second direction follow those of the first */
} dp__cell_t;

/* The next cell of a row, trimmed and without its quotes; rest->text is NULL behind the last one.
 * Spreadsheets write quotes and, where a comma is part of numbers, semicolons between cells. */
dp__slice_t dp__cell_next(dp__slice_t *rest);
/* Reads a trimmed cell: NULL, or what is wrong with it. */
const char *dp__cell_parse(dp__slice_t text, dp__cell_t *cell);
/* Both return what snprintf does: "2F0", "(0F8;7B0)OVERLAP_F_B"; "2SEND_F0". */
int dp__cell_print(char *text, size_t bytes, const dp_schedule_t *schedule, int32_t rank, const dp_op_t *op);
int dp__cell_print_parsed(char *text, size_t bytes, const dp__cell_t *cell);

/* The stage of a chunk; the chunk of a rank that is that stage, for that micro-batch (-1: none). */
int32_t dp__cell_stage(const dp_schedule_t *schedule, int32_t rank, int32_t chunk);
int16_t dp__cell_chunk(const dp_schedule_t *schedule, int32_t rank, int32_t stage, int32_t microbatch);

#endif
