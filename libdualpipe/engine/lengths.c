/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lengths.c: tokens and documents of the micro-batches of a step, for segments and for messages. */
#include "base/do.h"
#include "base/memory.h"
#include "engine/engine.h"

dp_status_t dp__lengths_check(const dp_pipeline_options_t *o)
{
    if (o->tokens == 0 && o->documents > 0)
        return dp_fail(DP_ERR_INVALID, "documents is %u and tokens 0: say how many tokens a micro-batch has at most",
                       o->documents);
    if (o->tokens > 0 && o->boundary_bytes % o->tokens != 0)
        return dp_fail(DP_ERR_INVALID, "boundary_bytes is %zu, no multiple of tokens = %u: each token has as many",
                       o->boundary_bytes, o->tokens);
    if (o->documents > o->tokens)
        return dp_fail(DP_ERR_INVALID, "documents is %u: a micro-batch of %u tokens has at most as many", o->documents,
                       o->tokens);
    if (o->tokens > 0 && o->graph)
        return dp_fail(DP_ERR_UNSUPPORTED,
                       "graph: a captured step cannot have micro-batches of different length: leave tokens 0");
    return dp__requests_check(o);
}

dp_status_t dp__lengths_open(dp_pipeline_t *p)
{
    const size_t M = (size_t)p->schedule->microbatches, room = M * p->options.documents * sizeof(*p->lengths.ends);
    double *memory = NULL;

    if (p->options.tokens == 0)
        return DP_OK;
    p->lengths.tokens = dp__calloc(2 * M, sizeof(*p->lengths.tokens));
    if (p->lengths.tokens == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the lengths of %zu micro-batches", M);
    p->lengths.documents = p->lengths.tokens + M;
    if (room > 0)
        DO(dp__shared_memory(p, room, &p->memory.work, &memory));
    p->lengths.ends = (uint32_t *)(void *)memory;
    return DP_OK;
}

void dp__lengths_close(dp_pipeline_t *p)
{
    dp__shared_release(p, (double *)(void *)p->lengths.ends);
    dp__free(p->lengths.tokens);
    p->lengths = (dp__lengths_t){0};
}

/* Copies the documents of a micro-batch, and says how many tokens it has by them. */
static dp_status_t take_documents(dp_pipeline_t *p, int32_t m, const dp_documents_t *d, uint32_t *tokens_out)
{
    uint32_t *ends = p->lengths.ends + (size_t)m * p->options.documents, before = 0;

    if (d->count > p->options.documents || d->ends == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_step_t.documents[%d] has %u documents%s; the pipeline was opened for %u", m,
                       d->count, d->ends == NULL ? " and no ends" : "", p->options.documents);
    for (uint32_t i = 0; i < d->count; i++) {
        if (d->ends[i] <= before)
            return dp_fail(DP_ERR_INVALID, "dp_step_t.documents[%d].ends[%u] is %u, behind %u: ends must rise", m, i,
                           d->ends[i], before);
        ends[i] = before = d->ends[i];
    }
    *tokens_out = before;
    return DP_OK;
}

static dp_status_t take_one(dp_pipeline_t *p, const dp_step_t *step, int32_t m)
{
    const dp_documents_t *d = step->documents != NULL ? &step->documents[m] : NULL;
    uint32_t tokens = step->tokens != NULL ? step->tokens[m] : p->options.tokens, sum = 0;

    p->lengths.documents[m] = d != NULL ? d->count : 0;
    if (p->lengths.documents[m] > 0) {
        DO(take_documents(p, m, d, &sum));
        if (step->tokens != NULL && sum != tokens)
            return dp_fail(DP_ERR_INVALID, "dp_step_t.tokens[%d] is %u, and its documents end with %u", m, tokens, sum);
        tokens = sum;
    }
    if (tokens < 1 || tokens > p->options.tokens)
        return dp_fail(DP_ERR_INVALID, "micro-batch %d has %u tokens; 1 to %u are legal", m, tokens, p->options.tokens);
    p->lengths.tokens[m] = tokens;
    return DP_OK;
}

dp_status_t dp__lengths_take(dp_pipeline_t *p, const dp_step_t *step)
{
    if (p->options.tokens == 0 && (step->tokens != NULL || step->documents != NULL))
        return dp_fail(DP_ERR_INVALID, "dp_step_t.%s: the pipeline was opened without tokens",
                       step->tokens != NULL ? "tokens" : "documents");
    for (int32_t m = 0; p->options.tokens > 0 && m < step->microbatches; m++)
        DO(take_one(p, step, m));
    return DP_OK;
}

size_t dp__lengths_bytes(const dp_pipeline_t *p, int32_t microbatch)
{
    if (p->options.tokens == 0)
        return p->options.boundary_bytes;
    return p->options.boundary_bytes / p->options.tokens * p->lengths.tokens[microbatch];
}

double dp__lengths_weigh(const dp_pipeline_t *p, int32_t microbatch, double value)
{
    const uint32_t most = p->options.tokens, tokens = most > 0 ? p->lengths.tokens[microbatch] : 0;

    return tokens == most ? value : value * tokens / most;
}

void dp__lengths_set(const dp_pipeline_t *p, dp_segment_call_t *call)
{
    call->boundary_bytes = dp__lengths_bytes(p, call->microbatch);
    if (p->options.tokens == 0)
        return;
    call->tokens = p->lengths.tokens[call->microbatch];
    call->documents = p->lengths.documents[call->microbatch];
    if (call->documents > 0)
        call->document_ends = p->lengths.ends + (size_t)call->microbatch * p->options.documents;
}
