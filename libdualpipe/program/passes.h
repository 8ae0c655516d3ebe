/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * passes.h: the passes of a COMPUTE or START line, with their slots and receives. */
#ifndef DP_PROGRAM_PASSES_H
#define DP_PROGRAM_PASSES_H

#include <dualpipe/program.h>
#include <stdbool.h>

typedef struct dp__instr_pass {
    uint8_t kind; /* F, B, I or W */
    int16_t chunk;
    int32_t microbatch, slot, in;
} dp__instr_pass_t;

/* FB has two. */
static inline int dp__instr_passes(const dp_instr_t *i, dp__instr_pass_t out[2])
{
    bool pair = i->op == DP_OP_FB;

    out[0] = (dp__instr_pass_t){pair ? DP_OP_F : i->op, i->chunk, i->microbatch, i->slot, i->in};
    out[1] = (dp__instr_pass_t){DP_OP_B, i->chunk2, i->microbatch2, i->slot2, i->in2};
    return pair ? 2 : 1;
}

/* 1: the line is where passes begin: all but the end of a braid's pass. */
static inline bool dp__instr_begins(const dp_instr_t *i)
{
    return i->kind == DP_INSTR_START || (i->kind == DP_INSTR_COMPUTE && i->number < 0);
}

#endif
