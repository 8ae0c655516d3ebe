/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * emit.c: from a method's rule for one rank to a whole schedule. */
#include "schedule/emit.h"
#include "base/do.h"

#include "base/memory.h"
#include "base/sized.h"

#include <string.h>

static void put_operation(dp__emit_t *e, dp_op_kind_t kind, int chunk, int32_t microbatch, int chunk2,
                          int32_t microbatch2)
{
    if (microbatch >= e->microbatches)
        return;
    if (e->out != NULL)
        e->out[e->count] = (dp_op_t){(uint8_t)kind, (int16_t)chunk, (int16_t)chunk2, microbatch, microbatch2};
    e->count++;
}

void dp__emit_f(dp__emit_t *e, int chunk)
{
    put_operation(e, DP_OP_F, chunk, e->next_f[chunk]++, -1, -1);
}

void dp__emit_b(dp__emit_t *e, int chunk)
{
    if (e->request->forward_only)
        return;
    put_operation(e, DP_OP_B, chunk, e->next_b[chunk]++, -1, -1);
    e->next_w[chunk]++;
}

void dp__emit_fb(dp__emit_t *e, int forward_chunk, int backward_chunk)
{
    if (e->request->forward_only) {
        dp__emit_f(e, forward_chunk);
        return;
    }
    put_operation(e, DP_OP_FB, forward_chunk, e->next_f[forward_chunk]++, backward_chunk, e->next_b[backward_chunk]++);
    e->next_w[backward_chunk]++;
}

void dp__emit_i(dp__emit_t *e, int chunk)
{
    if (e->request->forward_only)
        return;
    if (e->next_b[chunk] < e->microbatches)
        e->deferred[e->deferred_tail++] = (int16_t)chunk;
    put_operation(e, DP_OP_I, chunk, e->next_b[chunk]++, -1, -1);
}

void dp__emit_w_of(dp__emit_t *e, int chunk)
{
    if (e->request->forward_only)
        return;
    put_operation(e, DP_OP_W, chunk, e->next_w[chunk]++, -1, -1);
}

void dp__emit_w(dp__emit_t *e)
{
    if (e->request->forward_only)
        return;
    dp__emit_w_of(e, e->deferred[e->deferred_head++]);
}

static int64_t emit_rank_into(dp__emit_t *e, dp__emit_rank_fn emit_rank, int32_t rank, dp_op_t *out)
{
    int16_t *deferred = e->deferred;
    const dp_schedule_request_t *request = e->request;
    int32_t chunks = e->chunks, microbatches = e->microbatches;

    memset(e, 0, sizeof(*e));
    e->request = request;
    e->chunks = chunks;
    e->microbatches = microbatches;
    e->deferred = deferred;
    e->out = out;
    emit_rank(e, rank);
    return e->count;
}

dp_status_t dp__request_check(const char *method, const dp_schedule_request_t *request,
                              dp_schedule_request_t *request_out)
{
    DO(dp__take("schedule: the request", dp_schedule_request_t, DP_SCHEDULE_REQUEST_MIN, request_out, request));
    if (request_out->ranks < 1 || request_out->ranks > DP_MAX_RANKS)
        return dp_fail(DP_ERR_INVALID, "%s: %d ranks; 1 to %d are possible", method, request_out->ranks, DP_MAX_RANKS);
    if (request_out->microbatches < 1 || request_out->microbatches > DP_MAX_MICROBATCHES)
        return dp_fail(DP_ERR_INVALID, "%s: %d micro-batches; 1 to %d are possible", method, request_out->microbatches,
                       DP_MAX_MICROBATCHES);
    if (request_out->chunks < 0 || request_out->chunks > DP_MAX_CHUNKS)
        return dp_fail(DP_ERR_INVALID, "%s: %d chunks per rank; 1 to %d are possible", method, request_out->chunks,
                       DP_MAX_CHUNKS);
    if (request_out->microbatch_group < 0)
        return dp_fail(DP_ERR_INVALID, "%s: groups of %d micro-batches", method, request_out->microbatch_group);
    return DP_OK;
}

static dp_status_t refuse_groups(const char *method, const dp_schedule_request_t *request)
{
    return request->microbatch_group == 0
               ? DP_OK
               : dp_fail(DP_ERR_INVALID,
                         "%s: groups of %d micro-batches; only interleaved and interleaved_overlap have groups", method,
                         request->microbatch_group);
}

dp_status_t dp__request_check_fixed(const char *method, const dp_schedule_request_t *request, int32_t chunks,
                                    dp_schedule_request_t *request_out)
{
    DO(dp__request_check(method, request, request_out));
    DO(refuse_groups(method, request_out));
    if (request_out->chunks == 0 || request_out->chunks == chunks)
        return DP_OK;
    return dp_fail(DP_ERR_INVALID, "%s: a rank holds exactly %d chunk%s, not %d", method, chunks, chunks > 1 ? "s" : "",
                   request_out->chunks);
}

dp_status_t dp__request_check_loop(const char *method, const char *of_one, bool in_groups,
                                   const dp_schedule_request_t *request, dp_schedule_request_t *request_out)
{
    DO(dp__request_check(method, request, request_out));
    if (!in_groups)
        DO(refuse_groups(method, request_out));
    if (request_out->chunks == 1)
        return dp_fail(DP_ERR_INVALID, "%s: 1 chunk per rank; at least 2 are needed (%s has 1)", method, of_one);
    if (request_out->chunks == 0)
        request_out->chunks = 2;
    return DP_OK;
}

dp_status_t dp__emit_schedule(const char *method, dp_placement_t placement, int32_t chunks,
                              const dp_schedule_request_t *request, dp__emit_rank_fn emit_rank,
                              dp_schedule_t **schedule_out)
{
    int32_t ranks = request->ranks;
    int32_t paths = placement == DP_PLACE_BIDIRECTIONAL ? 2 : 1;
    dp__emit_t e = {.request = request, .chunks = chunks, .microbatches = request->microbatches / paths};
    dp_schedule_t *schedule = NULL;
    int64_t *nops = NULL;
    dp_status_t status = DP_ERR_NOMEM;
    int64_t forwards = (int64_t)ranks * chunks * e.microbatches;

    if (forwards > DP_MAX_OPS)
        return dp_fail(DP_ERR_INVALID, "%s: %lld forwards alone; at most %u operations are possible", method,
                       (long long)forwards, DP_MAX_OPS);
    nops = dp__calloc((size_t)ranks, sizeof(*nops));
    e.deferred = dp__calloc((size_t)chunks * (size_t)request->microbatches, sizeof(*e.deferred));
    if (nops == NULL || e.deferred == NULL) {
        (void)dp_fail(status, "%s: no memory to generate %d ranks", method, ranks);
        goto done;
    }
    for (int32_t r = 0; r < ranks; r++)
        nops[r] = emit_rank_into(&e, emit_rank, r, NULL);
    status = dp_schedule_create(method, placement, ranks, request->microbatches, chunks, nops, &schedule);
    if (status < 0)
        goto done;
    schedule->forward_only = request->forward_only != 0;
    for (int32_t r = 0; r < ranks; r++)
        (void)emit_rank_into(&e, emit_rank, r, schedule->ops + schedule->first[r]);
    *schedule_out = schedule;
done:
    dp__free(e.deferred);
    dp__free(nops);
    return status;
}
