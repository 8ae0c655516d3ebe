/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * verify.c: inspects a program line by line, then proves that it ends. */
#include "program/verify.h"

#include "base/memory.h"
#include "base/sized.h"

static void clear_verification(dp__verification_t *v)
{
    dp__index_clear(&v->index);
    dp__edges_clear(&v->edges);
    dp__free(v->send_at);
}

dp_status_t dp_program_verify(const dp_program_t *program, dp_verify_report_t *report_out)
{
    dp__verification_t v = {
        .program = program, .schedule = program->schedule, .report = {.struct_size = sizeof(v.report)}};
    dp_status_t status = DP_OK;

    if (report_out != NULL)
        status = dp__sized_check("verify: the report", report_out, "dp_verify_report_t", DP_VERIFY_REPORT_MIN);
    if (status < 0)
        return status;
    if (program->transport != DP_TRANSPORT_CREDITS && program->transport != DP_TRANSPORT_BUNDLES)
        return dp_fail(DP_ERR_INVALID, "verify: unknown transport %d", (int)program->transport);
    status = dp__inspect(&v);
    if (status >= 0)
        status = dp__prove(&v);
    clear_verification(&v);
    if (report_out != NULL)
        dp_sized_put(report_out, &v.report);
    return status;
}
