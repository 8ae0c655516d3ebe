/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * print.c: an instruction as messages name it. */
#include "program/verify.h"
#include "schedule/passes.h"

#include <stdio.h>

/* The operation that an instruction computes, or whose message it sends or receives; -1: none. */
static int32_t find_operation(const dp_schedule_t *s, int32_t rank, const dp_instr_t *i)
{
    const bool forward = i->op == DP_OP_F, whole = i->kind == DP_INSTR_COMPUTE;

    for (int64_t k = s->first[rank]; k < s->first[rank + 1]; k++) {
        const dp_op_t *op = &s->ops[k];
        const bool second = op->kind == DP_OP_FB && !whole && !forward;
        const int32_t chunk = second ? op->chunk2 : op->chunk, microbatch = second ? op->microbatch2 : op->microbatch;
        bool same = op->kind == i->op;

        if (!whole)
            same = forward ? op->kind == DP_OP_F || op->kind == DP_OP_FB : op->kind != DP_OP_F && op->kind != DP_OP_W;
        if (same && chunk == i->chunk && microbatch == i->microbatch)
            return (int32_t)(k - s->first[rank]);
    }
    return -1;
}

/* In the words of the file that the schedule was read from. false: it has none for this. */
static bool print_cell(const dp_program_t *program, int32_t rank, const dp_instr_t *i, char *text, size_t bytes)
{
    const dp_schedule_t *s = program->schedule;
    char cell[128];
    int32_t position;

    if (s->cells == NULL || (i->kind != DP_INSTR_COMPUTE && i->kind != DP_INSTR_SEND && i->kind != DP_INSTR_RECV))
        return false;
    position = find_operation(s, rank, i);
    if (position < 0)
        return false;
    dp__op_name(s, rank, position, &s->ops[s->first[rank] + position], cell, sizeof(cell));
    if (i->kind == DP_INSTR_COMPUTE)
        snprintf(text, bytes, "%s", cell);
    else
        snprintf(text, bytes, "the message %s %s %s row %d", i->kind == DP_INSTR_SEND ? "of" : "for", cell,
                 i->kind == DP_INSTR_SEND ? "to" : "from", i->peer + 1);
    return true;
}

void dp__instr_print(const dp_program_t *program, int32_t rank, int32_t position, char *text, size_t bytes)
{
    const dp_instr_t *i = dp__instr(program, rank, position);
    bool braided = (i->kind == DP_INSTR_COMPUTE || i->kind == DP_INSTR_START) && i->number >= 0;
    dp_op_t op = {(uint8_t)(i->op + (i->kind == DP_INSTR_START ? DP__OP_START : 0)), i->chunk, i->chunk2, i->microbatch,
                  braided ? i->number : i->microbatch2};
    int used;

    if (print_cell(program, rank, i, text, bytes))
        return;
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
