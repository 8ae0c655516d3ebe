/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * requests.c: which slots of the caches the documents of a step go on, and how full they are. */
#include "base/do.h"
#include "base/memory.h"
#include "engine/engine.h"

#include <string.h>

dp_status_t dp__requests_check(const dp_pipeline_options_t *o)
{
    if ((o->cache_slots == 0) != (o->cache_tokens == 0))
        return dp_fail(DP_ERR_INVALID, "cache_slots is %u and cache_tokens %u: give both, or neither", o->cache_slots,
                       o->cache_tokens);
    if (o->cache_slots > 0 && o->documents == 0)
        return dp_fail(DP_ERR_INVALID, "cache_slots is %u and documents 0: a request is a document of its micro-batch",
                       o->cache_slots);
    if (o->cache_slots == DP_NO_SLOT)
        return dp_fail(DP_ERR_INVALID, "cache_slots is %u, which is no number of slots", o->cache_slots);
    return DP_OK;
}

/* What the slots of a path hold. */
static dp__slot_t *slots_of(const dp_pipeline_t *p, int32_t path)
{
    return p->requests.slots + (size_t)path * p->options.cache_slots;
}

dp_status_t dp__requests_open(dp_pipeline_t *p)
{
    const size_t M = (size_t)p->schedule->microbatches, room = M * p->options.documents;
    double *memory = NULL;

    if (p->options.cache_slots == 0)
        return DP_OK;
    p->requests.slots = dp__calloc(2 * (size_t)p->options.cache_slots, sizeof(*p->requests.slots));
    p->requests.told = dp__calloc(M, sizeof(*p->requests.told));
    p->requests.called = dp__calloc((size_t)p->nchunks * (size_t)p->max_segments, 1);
    if (p->requests.slots == NULL || p->requests.told == NULL || p->requests.called == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a list of %u slots", p->options.cache_slots);
    DO(dp__shared_memory(p, 2 * room * sizeof(*p->requests.slot), &p->memory.work, &memory));
    p->requests.slot = (uint32_t *)(void *)memory;
    p->requests.past = p->requests.slot + room;
    return DP_OK;
}

void dp__requests_close(dp_pipeline_t *p)
{
    dp__shared_release(p, (double *)(void *)p->requests.slot);
    dp__free(p->requests.slots);
    dp__free(p->requests.told);
    dp__free(p->requests.called);
    p->requests = (dp__requests_t){0};
}

void dp__requests_forget(dp_pipeline_t *p)
{
    if (p->requests.slots != NULL)
        memset(p->requests.slots, 0, 2 * (size_t)p->options.cache_slots * sizeof(*p->requests.slots));
}

/* Whether each segment of the compute lane is called for micro-batch `a` first, on this rank. */
static bool runs_before(const dp_pipeline_t *p, int32_t a, int32_t b)
{
    const dp__plan_t *plan = p->run.plan;
    uint8_t *called = p->requests.called;

    memset(called, 0, (size_t)p->nchunks * (size_t)p->max_segments);
    for (int64_t i = 0; i < plan->commands.count; i++) {
        const dp__command_t *command = &plan->commands.at[i];
        int32_t m, at;

        if (command->kind != DP__CALL || command->op != DP_OP_F || command->stream != DP_LANE_COMPUTE)
            continue;
        m = plan->passes[command->at].microbatch;
        at = plan->commands.passes[command->at].chunk * p->max_segments + command->segment;
        if (m == a)
            called[at] = 1;
        else if (m == b && !called[at])
            return false;
    }
    return true;
}

/* A slot that another micro-batch of this step has gone on. */
static dp_status_t check_split(const dp_pipeline_t *p, int32_t m, uint32_t slot, const dp__slot_t *s, uint32_t past)
{
    const int32_t before = s->microbatch;

    if (before == m)
        return dp_fail(DP_ERR_INVALID, "micro-batch %d: slot %u stands there twice", m, slot);
    if (past != s->tokens)
        return dp_fail(DP_ERR_INVALID,
                       "micro-batch %d: slot %u goes on at token %u, and micro-batch %d of this step ends with token "
                       "%u: two requests cannot have one slot in a step",
                       m, slot, past, before, s->tokens);
    if (!runs_before(p, before, m))
        return dp_fail(DP_ERR_INVALID,
                       "micro-batch %d: slot %u goes on with a request of micro-batch %d, which this schedule does not "
                       "run before it: split requests over micro-batches that follow each other",
                       m, slot, before);
    return DP_OK;
}

static dp_status_t take_document(const dp_pipeline_t *p, int32_t m, uint32_t slot, uint32_t past, uint32_t count)
{
    const bool second = dp_schedule_paths(p->schedule) == 2 && m >= p->schedule->microbatches / 2;
    dp__slot_t *s;

    if (slot == DP_NO_SLOT)
        return past == 0 ? DP_OK
                         : dp_fail(DP_ERR_INVALID, "micro-batch %d: past is %u for a document without a slot", m, past);
    if (slot >= p->options.cache_slots)
        return dp_fail(DP_ERR_INVALID, "micro-batch %d: slot %u of %u (dp_pipeline_options_t.cache_slots)", m, slot,
                       p->options.cache_slots);
    s = &slots_of(p, second)[slot];
    if (past > s->tokens)
        return dp_fail(DP_ERR_INVALID, "micro-batch %d: past is %u for slot %u, which holds %u tokens%s", m, past, slot,
                       s->tokens, second ? " of micro-batches that enter at the other end" : "");
    if (count > p->options.cache_tokens - past)
        return dp_fail(DP_ERR_INVALID,
                       "micro-batch %d: slot %u is full: it holds %u tokens, %u more are to come, and cache_tokens is "
                       "%u: end the request, or open the pipeline with more",
                       m, slot, past, count, p->options.cache_tokens);
    if (s->microbatch >= 0)
        DO(check_split(p, m, slot, s, past));
    *s = (dp__slot_t){.tokens = past + count, .microbatch = m};
    return DP_OK;
}

static dp_status_t take_one(dp_pipeline_t *p, int32_t m, const dp_requests_t *r)
{
    const size_t at = (size_t)m * p->options.documents;
    const uint32_t n = p->lengths.documents[m];
    uint32_t before = 0;

    p->requests.told[m] = r != NULL && (r->slots != NULL || r->past != NULL);
    if (!p->requests.told[m])
        return DP_OK;
    if (n == 0 || r->slots == NULL || r->past == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_step_t.requests[%d] has %s%s%s: each document has a slot and a past", m,
                       r->slots == NULL ? "no slots" : "slots", r->past == NULL ? ", no past" : ", past",
                       n == 0 ? ", and the micro-batch no documents" : "");
    for (uint32_t i = 0; i < n; before = p->lengths.ends[at + i++]) {
        DO(take_document(p, m, r->slots[i], r->past[i], p->lengths.ends[at + i] - before));
        p->requests.slot[at + i] = r->slots[i];
        p->requests.past[at + i] = r->past[i];
    }
    return DP_OK;
}

dp_status_t dp__requests_take(dp_pipeline_t *p, const dp_step_t *step)
{
    if (step->requests != NULL && p->options.cache_slots == 0)
        return dp_fail(DP_ERR_INVALID, "dp_step_t.requests: the pipeline was opened without cache_slots");
    if (step->requests != NULL && !step->forward_only)
        return dp_fail(DP_ERR_INVALID, "dp_step_t.requests: a training step has none, forward_only steps have");
    if (p->options.cache_slots == 0)
        return DP_OK;
    if (!step->forward_only)
        dp__requests_forget(p);
    for (size_t s = 0; s < 2 * (size_t)p->options.cache_slots; s++)
        p->requests.slots[s].microbatch = -1;
    for (int32_t m = 0; m < step->microbatches; m++)
        DO(take_one(p, m, step->requests != NULL ? &step->requests[m] : NULL));
    return DP_OK;
}

void dp__requests_set(const dp_pipeline_t *p, const dp__chunk_t *chunk, dp_segment_call_t *call)
{
    const size_t at = (size_t)call->microbatch * p->options.documents;

    if (p->options.cache_slots == 0 || !p->requests.told[call->microbatch])
        return;
    call->cache = chunk->cache;
    call->slots = p->requests.slot + at;
    call->past = p->requests.past + at;
}
