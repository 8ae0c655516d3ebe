/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * programs.c: the schedule of a pipeline, and the programs that it runs: for training and for forward only. */
#include "base/memory.h"
#include "engine/engine.h"

static dp_status_t lower(dp_pipeline_t *p, const dp_schedule_t *schedule, dp_program_t **program_out)
{
    dp_lower_options_t options = {.struct_size = sizeof(options),
                                  .transport = p->programs.bundled ? DP_TRANSPORT_BUNDLES : DP_TRANSPORT_CREDITS,
                                  .slots = p->options.slots,
                                  .replayable = p->options.graph != 0};
    dp_status_t status = dp_program_lower(schedule, &options, program_out);

    return status < 0 ? status : dp_program_verify(*program_out, NULL);
}

/* The forwards of an operation, into `out` unless it is NULL. Returns how many. */
static int32_t forwards_in(const dp_schedule_t *s, const dp_op_t *op, dp_op_t *out)
{
    const dp_pass_t own = {op->kind == DP_OP_FB ? DP_OP_F : op->kind, 0, op->chunk, op->microbatch};
    const dp_pass_t *passes = op->kind == DP_OP_BRAID ? s->braids[op->microbatch].passes : &own;
    int32_t n = op->kind == DP_OP_BRAID ? s->braids[op->microbatch].npasses : 1, count = 0;

    for (int32_t i = 0; i < n; i++)
        if (passes[i].kind == DP_OP_F) {
            if (out != NULL)
                out[count] = (dp_op_t){DP_OP_F, passes[i].chunk, -1, passes[i].microbatch, -1};
            count++;
        }
    return count;
}

/* The same order with nothing but its forwards. */
static dp_status_t forwards_of(const dp_schedule_t *full, dp_schedule_t **schedule_out)
{
    int64_t *counts = dp__calloc((size_t)full->ranks, sizeof(*counts));
    dp_schedule_t *only;
    dp_status_t status;
    int64_t n = 0;

    if (counts == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a forward-only schedule");
    for (int32_t r = 0; r < full->ranks; r++)
        for (int64_t i = full->first[r]; i < full->first[r + 1]; i++)
            counts[r] += forwards_in(full, &full->ops[i], NULL);
    status =
        dp_schedule_create(full->method, full->placement, full->ranks, full->microbatches, full->chunks, counts, &only);
    dp__free(counts);
    if (status < 0)
        return status;
    only->forward_only = 1;
    for (int64_t i = 0; i < full->first[full->ranks]; i++)
        n += forwards_in(full, &full->ops[i], &only->ops[n]);
    *schedule_out = only;
    return DP_OK;
}

dp_status_t dp__programs_make(dp_pipeline_t *p)
{
    dp_status_t status = DP_OK;

    p->schedule = p->options.schedule;
    if (p->schedule == NULL && p->programs.own_schedule == NULL) {
        dp_schedule_request_t request = {
            .struct_size = sizeof(request),
            .method = p->options.method,
            .ranks = p->grid.pp,
            .microbatches = p->options.microbatches,
            .chunks = p->options.chunks,
        };

        status = dp_schedule_generate(&request, &p->programs.own_schedule);
    }
    if (p->schedule == NULL)
        p->schedule = p->programs.own_schedule;
    if (status < 0)
        return status;
    if (p->schedule->ranks != p->grid.pp)
        return dp_fail(DP_ERR_INVALID, "the schedule is for %d ranks, the pipeline has %d", p->schedule->ranks,
                       p->grid.pp);
    status = lower(p, p->schedule, &p->programs.training);
    if (status < 0 || p->schedule->forward_only)
        return status;
    if (p->programs.forward_schedule == NULL)
        status = forwards_of(p->schedule, &p->programs.forward_schedule);
    return status < 0 ? status : lower(p, p->programs.forward_schedule, &p->programs.forward);
}

void dp__programs_free(dp_pipeline_t *p)
{
    dp_program_free(p->programs.training);
    dp_program_free(p->programs.forward);
    p->programs.training = p->programs.forward = NULL;
}
