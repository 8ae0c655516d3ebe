/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * braids.c: cuts the stream of a rank's segments wherever no pass is open, and spells each block:
 * one pass is a plain operation, more are a braid, and so is one with SHARED segments. */
#include "overlap/braids.h"

#include <string.h>

#include "base/memory.h"

/* A block of the stream. */
typedef struct block {
    dp_pass_t passes[DP_BRAID_PASSES];
    int32_t left[DP_BRAID_PASSES];  /* segments of a pass that are still to come, */
    int32_t below[DP_BRAID_PASSES]; /* of a W or B: segments whose W has no letter yet */
    int32_t npasses, open;
    char *order;
    size_t letters;
} block_t;

typedef struct writer {
    const dp__overlap_problem_t *problem;
    dp_schedule_t *schedule; /* NULL: operations are counted alone */
    int64_t nops;
    block_t block;
} writer_t;

static const uint8_t op_of[PASS_KINDS] = {DP_OP_F, DP_OP_I, DP_OP_W};

static int32_t find_pass(const block_t *block, uint8_t kind, int16_t chunk, int32_t microbatch)
{
    for (int32_t k = 0; k < block->npasses; k++)
        if (block->passes[k].kind == kind && block->passes[k].chunk == chunk &&
            block->passes[k].microbatch == microbatch)
            return k;
    return -1;
}

/* The pass of a call; -1: a braid has no room for it. A W that begins before its I has ended makes
 * one B of both. */
static int32_t find_or_open_pass(writer_t *w, const dp__overlap_call_t *call)
{
    const dp__overlap_chunk_t *chunk = &w->problem->chunk[call->chunk];
    block_t *block = &w->block;
    int16_t number = (int16_t)(call->chunk % w->problem->chunks);
    int32_t own = find_pass(block, op_of[call->kind], number, call->microbatch);
    int32_t whole = call->kind == PASS_F ? -1 : find_pass(block, DP_OP_B, number, call->microbatch);
    int32_t input = call->kind == PASS_W ? find_pass(block, DP_OP_I, number, call->microbatch) : -1;

    if (own >= 0 || whole >= 0)
        return own >= 0 ? own : whole;
    if (input >= 0 && block->left[input] > 0) {
        block->passes[input].kind = DP_OP_B;
        block->left[input] += chunk->weights;
        block->below[input] = chunk->count;
        return input;
    }
    if (block->npasses == DP_BRAID_PASSES)
        return -1;
    block->passes[block->npasses] = (dp_pass_t){op_of[call->kind], 0, number, call->microbatch};
    block->left[block->npasses] = call->kind == PASS_W ? chunk->weights : chunk->count;
    block->below[block->npasses] = chunk->count;
    block->open++;
    return block->npasses++;
}

/* A W has letters for the segments without weights as well: they go with the next that has some. */
static void spell_call(writer_t *w, int32_t pass, const dp__overlap_call_t *call)
{
    block_t *block = &w->block;
    int32_t letters = 1, after = --block->left[pass] == 0 ? 0 : call->segment;
    char letter = (char)('a' + pass);

    if (call->kind == PASS_W) {
        letter = (char)((block->passes[pass].kind == DP_OP_B ? 'A' : 'a') + pass);
        letters = block->below[pass] - after;
        block->below[pass] = after;
    }
    if (call->kind != PASS_W && w->problem->segment[w->problem->chunk[call->chunk].first + call->segment].shared)
        block->order[block->letters++] = '+';
    for (; letters > 0; letters--)
        block->order[block->letters++] = letter;
    block->open -= block->left[pass] == 0;
}

static bool listed_before(const dp_pass_t *a, const dp_pass_t *b)
{
    return a->chunk != b->chunk ? a->chunk < b->chunk : a->microbatch < b->microbatch;
}

/* Micro-batches of a chunk in rising order, as all their passes come; the letters follow. */
static void sort_passes(block_t *block)
{
    int32_t from[DP_BRAID_PASSES];
    char to[DP_BRAID_PASSES];

    for (int32_t k = 0; k < block->npasses; k++) {
        dp_pass_t pass = block->passes[k];
        int32_t at = k;

        for (; at > 0 && listed_before(&pass, &block->passes[at - 1]); at--) {
            block->passes[at] = block->passes[at - 1];
            from[at] = from[at - 1];
        }
        block->passes[at] = pass;
        from[at] = k;
    }
    for (int32_t k = 0; k < block->npasses; k++)
        to[from[k]] = (char)k;
    for (size_t k = 0; k < block->letters; k++) {
        char base = block->order[k] >= 'a' ? 'a' : 'A';

        if (block->order[k] != '+')
            block->order[k] = (char)(base + to[block->order[k] - base]);
    }
}

static dp_status_t end_block(writer_t *w)
{
    block_t *block = &w->block;
    dp_op_t op = {block->passes[0].kind, block->passes[0].chunk, -1, block->passes[0].microbatch, -1};
    dp_status_t status = DP_OK;

    block->order[block->letters] = 0;
    sort_passes(block);
    if (block->npasses > 1 || strchr(block->order, '+') != NULL) {
        op = (dp_op_t){DP_OP_BRAID, -1, -1, -1, -1};
        if (w->schedule != NULL)
            status = dp_schedule_add_braid(w->schedule, &(dp_braid_t){block->npasses, block->passes, block->order},
                                           &op.microbatch);
    }
    if (w->schedule != NULL)
        w->schedule->ops[w->nops] = op;
    w->nops++;
    block->npasses = 0;
    block->letters = 0;
    return status;
}

static dp_status_t write_rank(writer_t *w, const dp__overlap_call_t *calls, int64_t count)
{
    dp_status_t status = DP_OK;

    for (int64_t k = 0; k < count && status >= 0; k++) {
        int32_t pass = find_or_open_pass(w, &calls[k]);

        if (pass < 0)
            return dp_fail(DP_ERR_OVERFLOW, "plan: more than %d passes overlap without a break", DP_BRAID_PASSES);
        spell_call(w, pass, &calls[k]);
        if (w->block.open == 0)
            status = end_block(w);
    }
    return status;
}

static dp_status_t write_ranks(writer_t *w, const dp__overlap_call_t *calls, const int64_t *counts, int64_t *nops)
{
    dp_status_t status = DP_OK;

    for (int32_t r = 0; r < w->problem->ranks && status >= 0; r++) {
        int64_t before = w->nops;

        status = write_rank(w, calls, counts[r]);
        calls += counts[r];
        nops[r] = w->nops - before;
    }
    return status;
}

static size_t longest_order(const dp__overlap_problem_t *p)
{
    int32_t most = 0;

    for (int32_t c = 0; c < p->ranks * p->chunks; c++)
        most = p->chunk[c].count > most ? p->chunk[c].count : most;
    return 3 * DP_BRAID_PASSES * (size_t)most + 1; /* W have no '+' */
}

dp_status_t dp__overlap_braids(const dp__overlap_problem_t *problem, const dp_schedule_t *like,
                               const dp__overlap_call_t *calls, const int64_t *counts, dp_schedule_t **schedule_out)
{
    writer_t w = {.problem = problem};
    int64_t *nops = dp__calloc((size_t)problem->ranks, sizeof(*nops));
    dp_status_t status = DP_OK;

    *schedule_out = NULL;
    w.block.order = dp__calloc(longest_order(problem), 1);
    if (nops == NULL || w.block.order == NULL)
        status = dp_fail(DP_ERR_NOMEM, "plan: no memory for the order of a braid");
    if (status >= 0)
        status = write_ranks(&w, calls, counts, nops);
    if (status >= 0)
        status = dp_schedule_create(like->method, like->placement, like->ranks, like->microbatches, like->chunks, nops,
                                    schedule_out);
    if (status >= 0)
        (*schedule_out)->forward_only = like->forward_only;
    w.schedule = *schedule_out;
    w.nops = 0;
    if (status >= 0)
        status = write_ranks(&w, calls, counts, nops);
    if (status < 0) {
        dp_schedule_free(*schedule_out);
        *schedule_out = NULL;
    }
    dp__free(nops);
    dp__free(w.block.order);
    return status;
}
