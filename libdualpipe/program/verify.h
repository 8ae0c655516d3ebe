/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * verify.h: what the two steps of verify share: the inspection of all lines, the proof that a run
 * ends. */
#ifndef DP_PROGRAM_VERIFY_H
#define DP_PROGRAM_VERIFY_H

#include "program/edges.h"
#include "schedule/index.h"

typedef struct dp__verification {
    const dp_program_t *program;
    const dp_schedule_t *schedule;
    dp_verify_report_t report;
    int32_t microbatches; /* of a path */
    dp__index_t index;    /* positions are instruction numbers of their rank */
    dp__edges_t edges;
    /* By message: [message_first[channel] + number] instruction on its rank; -1: not seen. */
    int64_t *message_first; /* [channels + 1] */
    int32_t *send_at, *recv_at, *release_at;
} dp__verification_t;

static inline const dp_instr_t *dp__instr(const dp_program_t *program, int32_t rank, int32_t position)
{
    return &program->instrs[program->first[rank] + position];
}
static inline int32_t dp__rank_instrs(const dp_program_t *program, int32_t rank)
{
    return (int32_t)(program->first[rank + 1] - program->first[rank]);
}

/* print.c: "rank 1 SEND F chunk 0 mb 3 to rank 2 (line 7)". */
void dp__instr_print(const dp_program_t *program, int32_t rank, int32_t position, char *text, size_t bytes);

/* inspect.c: everything that can be seen without running: fills index and messages. */
dp_status_t dp__inspect(dp__verification_t *v);

/* prove.c: the run ends under the program's transport; finds the smallest safe K for credits. */
dp_status_t dp__prove(dp__verification_t *v);

#endif
