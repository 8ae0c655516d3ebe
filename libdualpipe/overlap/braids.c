/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * braids.c: cuts the stream of a rank's segments wherever no pass is open, and spells each piece:
 * one pass is a plain operation, more are a braid. */
#include "overlap/braids.h"

#include "base/memory.h"

/* A piece of the stream. */
typedef struct piece {
    dp_pass_t passes[DP_BRAID_PASSES];
    int32_t left[DP_BRAID_PASSES];  /* segments of a pass that are still to come, */
    int32_t below[DP_BRAID_PASSES]; /* of a W or B: segments whose W has no letter yet */
    int32_t npasses, open;
    char *order;
    size_t letters;
} piece_t;

typedef struct writer {
    const dp__overlap_problem_t *problem;
    dp_schedule_t *schedule; /* NULL: operations are counted alone */
    int64_t nops;
    piece_t piece;
} writer_t;

static const uint8_t op_of[PASS_KINDS] = {DP_OP_F, DP_OP_I, DP_OP_W};

static int32_t find_pass(const piece_t *piece, uint8_t kind, int16_t chunk, int32_t microbatch)
{
    for (int32_t k = 0; k < piece->npasses; k++)
        if (piece->passes[k].kind == kind && piece->passes[k].chunk == chunk &&
            piece->passes[k].microbatch == microbatch)
            return k;
    return -1;
}

/* The pass of a call. A W that begins before its I has ended makes one B of both. */
static int32_t pass_of(writer_t *w, const dp__overlap_call_t *call)
{
    const dp__overlap_chunk_t *chunk = &w->problem->chunk[call->chunk];
    piece_t *piece = &w->piece;
    int16_t number = (int16_t)(call->chunk % w->problem->chunks);
    int32_t own = find_pass(piece, op_of[call->kind], number, call->microbatch);
    int32_t whole = call->kind == PASS_F ? -1 : find_pass(piece, DP_OP_B, number, call->microbatch);
    int32_t input = call->kind == PASS_W ? find_pass(piece, DP_OP_I, number, call->microbatch) : -1;

    if (own >= 0 || whole >= 0)
        return own >= 0 ? own : whole;
    if (input >= 0 && piece->left[input] > 0) {
        piece->passes[input].kind = DP_OP_B;
        piece->left[input] += chunk->weights;
        piece->below[input] = chunk->count;
        return input;
    }
    piece->passes[piece->npasses] = (dp_pass_t){op_of[call->kind], 0, number, call->microbatch};
    piece->left[piece->npasses] = call->kind == PASS_W ? chunk->weights : chunk->count;
    piece->below[piece->npasses] = chunk->count;
    piece->open++;
    return piece->npasses++;
}

/* A W has letters for the segments without weights as well: they go with the next that has some. */
static void spell_call(writer_t *w, int32_t pass, const dp__overlap_call_t *call)
{
    piece_t *piece = &w->piece;
    int32_t letters = 1, after = --piece->left[pass] == 0 ? 0 : call->segment;
    char letter = (char)('a' + pass);

    if (call->kind == PASS_W) {
        letter = (char)((piece->passes[pass].kind == DP_OP_B ? 'A' : 'a') + pass);
        letters = piece->below[pass] - after;
        piece->below[pass] = after;
    }
    for (; letters > 0; letters--)
        piece->order[piece->letters++] = letter;
    piece->open -= piece->left[pass] == 0;
}

static bool listed_before(const dp_pass_t *a, const dp_pass_t *b)
{
    return a->chunk != b->chunk ? a->chunk < b->chunk : a->microbatch < b->microbatch;
}

/* Micro-batches of a chunk in rising order, as all their passes come; the letters follow. */
static void sort_passes(piece_t *piece)
{
    int32_t from[DP_BRAID_PASSES];
    char to[DP_BRAID_PASSES];

    for (int32_t k = 0; k < piece->npasses; k++) {
        dp_pass_t pass = piece->passes[k];
        int32_t at = k;

        for (; at > 0 && listed_before(&pass, &piece->passes[at - 1]); at--) {
            piece->passes[at] = piece->passes[at - 1];
            from[at] = from[at - 1];
        }
        piece->passes[at] = pass;
        from[at] = k;
    }
    for (int32_t k = 0; k < piece->npasses; k++)
        to[from[k]] = (char)k;
    for (size_t k = 0; k < piece->letters; k++) {
        char base = piece->order[k] >= 'a' ? 'a' : 'A';

        piece->order[k] = (char)(base + to[piece->order[k] - base]);
    }
}

static dp_status_t end_piece(writer_t *w)
{
    piece_t *piece = &w->piece;
    dp_op_t op = {piece->passes[0].kind, piece->passes[0].chunk, -1, piece->passes[0].microbatch, -1};
    dp_status_t status = DP_OK;

    piece->order[piece->letters] = 0;
    sort_passes(piece);
    if (piece->npasses > 1) {
        op = (dp_op_t){DP_OP_BRAID, -1, -1, -1, -1};
        if (w->schedule != NULL)
            status = dp_schedule_add_braid(w->schedule, &(dp_braid_t){piece->npasses, piece->passes, piece->order},
                                           &op.microbatch);
    }
    if (w->schedule != NULL)
        w->schedule->ops[w->nops] = op;
    w->nops++;
    piece->npasses = 0;
    piece->letters = 0;
    return status;
}

static dp_status_t write_rank(writer_t *w, const dp__overlap_call_t *calls, int64_t count)
{
    dp_status_t status = DP_OK;

    for (int64_t k = 0; k < count && status >= 0; k++) {
        spell_call(w, pass_of(w, &calls[k]), &calls[k]);
        if (w->piece.open == 0)
            status = end_piece(w);
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
    return 2 * DP_BRAID_PASSES * (size_t)most + 1;
}

dp_status_t dp__overlap_braids(const dp__overlap_problem_t *problem, const dp_schedule_t *like,
                               const dp__overlap_call_t *calls, const int64_t *counts, dp_schedule_t **schedule_out)
{
    writer_t w = {.problem = problem};
    int64_t *nops = dp__calloc((size_t)problem->ranks, sizeof(*nops));
    dp_status_t status = DP_OK;

    *schedule_out = NULL;
    w.piece.order = dp__calloc(longest_order(problem), 1);
    if (nops == NULL || w.piece.order == NULL)
        status = dp_fail(DP_ERR_NOMEM, "plan: no memory for the order of a braid");
    if (status >= 0)
        status = write_ranks(&w, calls, counts, nops);
    if (status >= 0)
        status = dp_schedule_create(like->method, like->placement, like->ranks, like->microbatches, like->chunks, nops,
                                    schedule_out);
    w.schedule = *schedule_out;
    w.nops = 0;
    if (status >= 0)
        status = write_ranks(&w, calls, counts, nops);
    if (status < 0) {
        dp_schedule_free(*schedule_out);
        *schedule_out = NULL;
    }
    dp__free(nops);
    dp__free(w.piece.order);
    return status;
}
