/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * verify.c: inspects a program line by line, then proves that it ends. */
#include "program/verify.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

void dp__instr_print(const dp_program_t *program, int32_t rank, int32_t position, char *text, size_t bytes)
{
    const dp_instr_t *i = dp__instr(program, rank, position);
    dp_op_t op = {i->op, i->chunk, i->chunk2, i->mb, i->mb2};
    int used;

    if (i->kind == DP_INSTR_COMPUTE)
        used = dp__op_print(text, bytes, rank, &op);
    else if (i->kind == DP_INSTR_REDUCE)
        used = snprintf(text, bytes, "rank %d REDUCE chunk %d", rank, i->chunk);
    else
        used = snprintf(text, bytes, "rank %d %s %s chunk %d mb %d %s rank %d", rank,
                        i->kind == DP_INSTR_SEND ? "SEND" : "RECV", dp_op_kind_name(i->op), i->chunk, i->mb,
                        i->kind == DP_INSTR_SEND ? "to" : "from", i->peer);
    if (used >= 0 && (size_t)used < bytes)
        snprintf(text + used, bytes - (size_t)used, " (line %d)", position);
}

static void clear(dp__verification_t *v)
{
    dp__index_clear(&v->index);
    dp__edges_clear(&v->edges);
    dp__free(v->message_first);
    dp__free(v->send_at);
    dp__free(v->recv_at);
    dp__free(v->release_at);
}

dp_status_t dp_program_verify(const dp_program_t *program, dp_transport_t transport,
                              dp_verify_report_t *report_out)
{
    dp__verification_t v = {.program = program, .schedule = program->schedule, .transport = transport};
    dp_status_t st;

    if ((int)transport < DP_TRANSPORT_CREDITS || transport > DP_TRANSPORT_SHARED_CREDITS)
        return dp_fail(DP_ERR_INVALID, "verify: unknown transport %d", (int)transport);
    st = dp__inspect(&v);
    if (st >= 0)
        st = dp__prove(&v);
    clear(&v);
    if (report_out != NULL) {
        uint32_t bytes =
            report_out->struct_size < sizeof(v.report) ? report_out->struct_size : sizeof(v.report);

        v.report.struct_size = bytes;
        memcpy(report_out, &v.report, bytes);
    }
    return st;
}
