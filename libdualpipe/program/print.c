/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * print.c: an instruction as messages name it. */
#include "program/verify.h"
#include "schedule/passes.h"

#include <stdio.h>

void dp__instr_print(const dp_program_t *program, int32_t rank, int32_t position, char *text, size_t bytes)
{
    const dp_instr_t *i = dp__instr(program, rank, position);
    bool braided = (i->kind == DP_INSTR_COMPUTE || i->kind == DP_INSTR_START) && i->number >= 0;
    dp_op_t op = {(uint8_t)(i->op + (i->kind == DP_INSTR_START ? DP__OP_START : 0)), i->chunk, i->chunk2, i->microbatch,
                  braided ? i->number : i->microbatch2};
    int used;

    if (i->kind == DP_INSTR_COMPUTE || i->kind == DP_INSTR_START)
        used = dp__op_print(text, bytes, rank, &op);
    else if (i->kind == DP_INSTR_REDUCE)
        used = snprintf(text, bytes, "rank %d REDUCE chunk %d", rank, i->chunk);
    else
        used = snprintf(text, bytes, "rank %d %s %s chunk %d mb %d %s rank %d", rank,
                        i->kind == DP_INSTR_SEND ? "SEND" : "RECV", dp_op_kind_name(i->op), i->chunk, i->microbatch,
                        i->kind == DP_INSTR_SEND ? "to" : "from", i->peer);
    if (used >= 0 && (size_t)used < bytes)
        snprintf(text + used, bytes - (size_t)used, " (line %d)", position);
}
