/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * transfers.c: checks the cells of transfers that a schedule in the format of
 * torch.distributed.pipelining may have.
 *
 * There a transfer is posted where its cell stands and runs beside what follows; computing waits
 * for what it needs, and WAIT_SEND for the end of a send. Between two ranks transfers match by
 * their order, without tags. */
#include "base/memory.h"
#include "schedule/cell.h"
#include "schedule/flow.h"

#include <stdio.h>
#include <string.h>

/* A cell that takes part: it computes, transfers or waits. */
typedef struct dp__step {
    dp__cell_t cell;
    int16_t chunk, chunk2;
    int32_t column; /* in the file, from 1 */
    int32_t pair;   /* of a transfer: the two ranks, */
    int32_t turn;   /* and its place among the transfers between them, as this rank lists them */
} dp__step_t;

/* Of a micro-batch on a chunk: where its rank does each of these, from 1; 0: nowhere. */
enum { DID_F, DID_B, SENT_F, RECEIVED_F, SENT_B, RECEIVED_B, FACTS };

typedef struct dp__transfers {
    const dp_schedule_t *schedule;
    const char *name;
    bool matched;
    int64_t *first;         /* [ranks + 1] */
    dp__step_t *steps;      /* of all ranks */
    int32_t (*fact)[FACTS]; /* [ranks * chunks * microbatches] */
    int64_t transfers;
    /* Lanes for the proof: ranks, then their pairs. Neighbours alone talk: ranks r and r + 1 are
     * pair r, the last and the first are pair ranks - 1. */
    int32_t *length;     /* [2 * ranks] */
    int64_t *pair_first; /* [ranks + 1] */
    int32_t *pair_steps; /* [transfers / 2]: where the lower rank of a pair has its transfers */
} dp__transfers_t;

static bool is_transfer_kind(int kind)
{
    return kind >= DP__CELL_SEND_F && kind <= DP__CELL_RECV_B;
}

static int fact_of(int kind)
{
    static const int facts[DP__CELL_KINDS] = {
        [DP_OP_F] = DID_F,
        [DP_OP_B] = DID_B,
        [DP_OP_I] = DID_B,
        [DP__CELL_SEND_F] = SENT_F,
        [DP__CELL_RECV_F] = RECEIVED_F,
        [DP__CELL_SEND_B] = SENT_B,
        [DP__CELL_RECV_B] = RECEIVED_B,
    };

    return facts[kind];
}

static int32_t *facts_of(const dp__transfers_t *t, int32_t rank, int32_t chunk, int32_t microbatch)
{
    const dp_schedule_t *s = t->schedule;

    return t->fact[((size_t)rank * (size_t)s->chunks + (size_t)chunk) * (size_t)s->microbatches + (size_t)microbatch];
}

static dp__step_t *step_at(const dp__transfers_t *t, int32_t rank, int32_t position)
{
    return &t->steps[t->first[rank] + position];
}

static dp_status_t refuse_cell(const dp__transfers_t *t, int32_t rank, const dp__step_t *step, const char *why)
{
    char text[96];

    dp__cell_print_parsed(text, sizeof(text), &step->cell);
    return dp_fail(DP_ERR_REJECTED, "%s:%d: cell %d '%s': %s", t->name, rank + 1, step->column, text, why);
}

/* The other rank of a transfer; -1 and why when there is none. */
static int32_t peer_of(const dp__transfers_t *t, int32_t rank, const dp__step_t *step, const char **why_out)
{
    bool forward = step->cell.kind == DP__CELL_SEND_F || step->cell.kind == DP__CELL_RECV_F;
    bool ahead = step->cell.kind == DP__CELL_SEND_F || step->cell.kind == DP__CELL_RECV_B;
    dp_place_t place;
    int32_t peer;

    dp_schedule_place(t->schedule, rank, step->chunk, &place);
    peer = ahead ? place.next_rank : place.prev_rank;
    *why_out = peer == rank ? "the stage beside it is in the same row: nothing is transferred"
               : t->schedule->forward_only && !forward ? "nothing in the file computes a gradient"
               : ahead                                 ? "no stage comes after this one"
                                                       : "no stage comes before this one";
    return peer == rank || (t->schedule->forward_only && !forward) ? -1 : peer;
}

/* ---- reading ---- */

/* Goes through the cells; with steps NULL it counts them. */
static dp_status_t read_steps_of_row(dp__transfers_t *t, const dp__line_t *row, int64_t *at)
{
    dp__slice_t rest = {row->text, row->bytes};
    int32_t rank = (int32_t)row->number - 1;

    for (int32_t column = 1; rest.text != NULL; column++) {
        dp__slice_t text = dp__cell_next(&rest);
        dp__step_t step = {.column = column, .chunk2 = -1, .pair = -1};
        const char *why = dp__cell_parse(text, &step.cell);

        if (why != NULL || rank >= t->schedule->ranks)
            return dp__line_fail(row, "cell %d: %s", column, why != NULL ? why : "the schedule has fewer rows");
        if (step.cell.kind == DP__CELL_NONE || step.cell.kind == DP_OP_W)
            continue;
        if (t->steps == NULL) {
            ++*at;
            continue;
        }
        step.chunk = dp__cell_chunk(t->schedule, rank, step.cell.stage, step.cell.microbatch);
        if (step.cell.kind == DP_OP_FB)
            step.chunk2 = dp__cell_chunk(t->schedule, rank, step.cell.stage2, step.cell.microbatch2);
        if (step.chunk < 0 || (step.cell.kind == DP_OP_FB && step.chunk2 < 0))
            return refuse_cell(t, rank, &step, "this stage is in another row");
        if (step.cell.microbatch >= t->schedule->microbatches || step.cell.microbatch2 >= t->schedule->microbatches)
            return refuse_cell(t, rank, &step, "nothing in the file computes this micro-batch");
        t->transfers += is_transfer_kind(step.cell.kind);
        t->steps[(*at)++] = step;
    }
    return DP_OK;
}

static dp_status_t read_rows(dp__transfers_t *t, const char *text, size_t bytes)
{
    dp__lines_t lines = {.name = t->name, .rest = {text, bytes}};
    int64_t at = 0;
    dp__line_t row;
    dp_status_t status = DP_OK;

    while (status >= 0 && dp__lines_next(&lines, &row)) {
        if (row.bytes > 0)
            status = read_steps_of_row(t, &row, &at);
        if (status >= 0 && row.number <= t->schedule->ranks)
            t->first[row.number] = at;
    }
    return status;
}

/* ---- one row ---- */

static dp_status_t note_fact(dp__transfers_t *t, int32_t rank, int32_t position, int what, int32_t chunk,
                             int32_t microbatch)
{
    int32_t *known = &facts_of(t, rank, chunk, microbatch)[what];

    if (*known != 0)
        return refuse_cell(t, rank, step_at(t, rank, position), "the same stands in the row before");
    *known = position + 1;
    return DP_OK;
}

/* What has to stand before a cell in its row. */
static dp_status_t check_before(const dp__transfers_t *t, int32_t rank, const dp__step_t *step)
{
    const int32_t *known = facts_of(t, rank, step->chunk, step->cell.microbatch);

    switch (step->cell.kind) {
    case DP__CELL_SEND_F:
        return known[DID_F] ? DP_OK : refuse_cell(t, rank, step, "it is sent before it is computed");
    case DP__CELL_SEND_B:
        return known[DID_B] ? DP_OK : refuse_cell(t, rank, step, "it is sent before it is computed");
    case DP__CELL_RECV_F:
        return known[DID_F] ? refuse_cell(t, rank, step, "it is received after it is used") : DP_OK;
    case DP__CELL_RECV_B:
        return known[DID_B] ? refuse_cell(t, rank, step, "it is received after it is used") : DP_OK;
    case DP__CELL_WAIT_SEND_F:
        return known[SENT_F] ? DP_OK : refuse_cell(t, rank, step, "nothing was sent before that it could wait for");
    case DP__CELL_WAIT_SEND_B:
        return known[SENT_B] ? DP_OK : refuse_cell(t, rank, step, "nothing was sent before that it could wait for");
    default:
        return DP_OK;
    }
}

/* Computing takes what comes from other ranks. */
static dp_status_t check_inputs(const dp__transfers_t *t, int32_t rank, const dp__step_t *step, bool forward)
{
    int32_t chunk = forward || step->chunk2 < 0 ? step->chunk : step->chunk2;
    int32_t microbatch = forward || step->chunk2 < 0 ? step->cell.microbatch : step->cell.microbatch2;
    dp_place_t place;
    int32_t from;

    dp_schedule_place(t->schedule, rank, chunk, &place);
    from = forward ? place.prev_rank : place.next_rank;
    if (from < 0 || from == rank || facts_of(t, rank, chunk, microbatch)[forward ? RECEIVED_F : RECEIVED_B] != 0)
        return DP_OK;
    return refuse_cell(t, rank, step,
                       forward ? "no RECV_F of its input stands before it"
                               : "no RECV_B of its gradient stands before it");
}

static dp_status_t check_step(dp__transfers_t *t, int32_t rank, int32_t position, int32_t *turns)
{
    dp__step_t *step = step_at(t, rank, position);
    int kind = step->cell.kind;
    bool forward = kind == DP_OP_F || kind == DP_OP_FB,
         backward = kind == DP_OP_B || kind == DP_OP_I || kind == DP_OP_FB;
    dp_status_t status;
    const char *why;

    if (is_transfer_kind(kind)) {
        int32_t peer = peer_of(t, rank, step, &why);

        if (peer < 0)
            return refuse_cell(t, rank, step, why);
        step->pair = (rank + 1) % t->schedule->ranks == peer && (t->schedule->ranks > 2 || rank == 0) ? rank : peer;
        step->turn = turns[step->pair != rank]++;
    }
    status = check_before(t, rank, step);
    if (status >= 0 && forward)
        status = check_inputs(t, rank, step, true);
    if (status >= 0 && backward)
        status = check_inputs(t, rank, step, false);
    if (status >= 0 && forward)
        status = note_fact(t, rank, position, DID_F, step->chunk, step->cell.microbatch);
    if (status >= 0 && kind == DP_OP_FB)
        return note_fact(t, rank, position, DID_B, step->chunk2, step->cell.microbatch2);
    if (status >= 0 && !forward && (backward || is_transfer_kind(kind)))
        status = note_fact(t, rank, position, fact_of(kind), step->chunk, step->cell.microbatch);
    return status;
}

static dp_status_t check_rows(dp__transfers_t *t)
{
    dp_status_t status = DP_OK;

    for (int32_t r = 0; r < t->schedule->ranks && status >= 0; r++) {
        int32_t turns[2] = {0, 0}; /* with the rank behind, with the rank before */

        t->length[r] = (int32_t)(t->first[r + 1] - t->first[r]);
        for (int32_t k = 0; k < t->length[r] && status >= 0; k++)
            status = check_step(t, r, k, turns);
    }
    return status;
}

/* ---- two rows ---- */

/* The other end of a transfer: its rank, and where it stands there, from 1; 0: nowhere. */
static int32_t other_end(const dp__transfers_t *t, int32_t rank, const dp__step_t *step, int32_t *rank_out)
{
    static const int other[DP__CELL_KINDS] = {[DP__CELL_SEND_F] = RECEIVED_F,
                                              [DP__CELL_RECV_F] = SENT_F,
                                              [DP__CELL_SEND_B] = RECEIVED_B,
                                              [DP__CELL_RECV_B] = SENT_B};
    bool ahead = step->cell.kind == DP__CELL_SEND_F || step->cell.kind == DP__CELL_RECV_B;
    dp_place_t place;

    dp_schedule_place(t->schedule, rank, step->chunk, &place);
    *rank_out = ahead ? place.next_rank : place.prev_rank;
    return facts_of(t, *rank_out, ahead ? place.next_chunk : place.prev_chunk,
                    step->cell.microbatch)[other[step->cell.kind]];
}

static dp_status_t refuse_order(const dp__transfers_t *t, int32_t rank, const dp__step_t *step, int32_t peer,
                                const dp__step_t *there)
{
    char why[256], text[96];

    dp__cell_print_parsed(text, sizeof(text), &there->cell);
    snprintf(why, sizeof(why),
             "it does not meet '%s' (row %d, cell %d): the two rows list their transfers in different orders", text,
             peer + 1, there->column);
    return refuse_cell(t, rank, step, why);
}

/* Messages from one rank to another are taken in the order they are sent. */
static dp_status_t check_order(const dp__transfers_t *t, int32_t rank)
{
    int32_t last[2] = {-1, -1}; /* of the pair: where the other rank took the message before */

    for (int32_t k = 0; k < t->length[rank]; k++) {
        const dp__step_t *step = step_at(t, rank, k), *there;
        int32_t peer, at;

        if (!is_transfer_kind(step->cell.kind))
            continue;
        at = other_end(t, rank, step, &peer) - 1;
        if (at < 0)
            return refuse_cell(t, rank, step, "its other end is nowhere in the file");
        there = step_at(t, peer, at);
        if (t->matched && there->turn != step->turn)
            return refuse_order(t, rank, step, peer, there);
        if (step->cell.kind != DP__CELL_SEND_F && step->cell.kind != DP__CELL_SEND_B)
            continue;
        if (at < last[step->pair != rank])
            return refuse_order(t, rank, step, peer, there);
        last[step->pair != rank] = at;
    }
    return DP_OK;
}

/* ---- the proof ---- */

/* What computing and WAIT_SEND wait for: matched: that the two ends have met; else the send. */
static bool need_end_of(const dp__transfers_t *t, int32_t rank, int32_t position, dp__need_t *need)
{
    const dp__step_t *step = step_at(t, rank, position);

    if (t->matched) {
        *need = (dp__need_t){t->schedule->ranks + step->pair, step->turn};
        return true;
    }
    need->position = other_end(t, rank, step, &need->lane) - 1;
    return step->cell.kind == DP__CELL_RECV_F || step->cell.kind == DP__CELL_RECV_B;
}

static bool rank_need(const dp__transfers_t *t, int32_t rank, const dp__step_t *step, int32_t k, dp__need_t *need)
{
    const int32_t *known = facts_of(t, rank, step->chunk, step->cell.microbatch);
    int32_t at[2] = {0, 0};

    switch (step->cell.kind) {
    case DP_OP_F:
        at[0] = known[RECEIVED_F];
        break;
    case DP_OP_B:
    case DP_OP_I:
        at[0] = known[RECEIVED_B];
        break;
    case DP_OP_FB:
        at[0] = known[RECEIVED_F];
        at[1] = facts_of(t, rank, step->chunk2, step->cell.microbatch2)[RECEIVED_B];
        break;
    case DP__CELL_WAIT_SEND_F:
        at[0] = known[SENT_F];
        break;
    case DP__CELL_WAIT_SEND_B:
        at[0] = known[SENT_B];
        break;
    default:
        return false;
    }
    for (int n = 0; n < 2; n++)
        if (at[n] > 0 && need_end_of(t, rank, at[n] - 1, need) && k-- == 0)
            return true;
    return false;
}

static bool need_of(const void *context, int32_t lane, int32_t position, int32_t k, dp__need_t *need)
{
    const dp__transfers_t *t = context;
    int32_t ranks = t->schedule->ranks, at;

    if (lane < ranks)
        return rank_need(t, lane, step_at(t, lane, position), k, need);
    if (k > 1)
        return false;
    at = t->pair_steps[t->pair_first[lane - ranks] + position];
    *need = (dp__need_t){lane - ranks, at};
    if (k == 1)
        need->position = other_end(t, lane - ranks, step_at(t, lane - ranks, at), &need->lane) - 1;
    return true;
}

static void name_step(const void *context, int32_t lane, int32_t position, char *text, size_t bytes)
{
    const dp__transfers_t *t = context;
    int32_t ranks = t->schedule->ranks;
    const dp__step_t *step;
    char cell[96];

    if (lane >= ranks)
        position = t->pair_steps[t->pair_first[lane - ranks] + position];
    step = step_at(t, lane % ranks, position);
    dp__cell_print_parsed(cell, sizeof(cell), &step->cell);
    snprintf(text, bytes, "%srow %d, cell %d (%s)%s", lane >= ranks ? "the rendezvous of " : "", lane % ranks + 1,
             step->column, cell, lane >= ranks ? " with its other end" : "");
}

static dp_status_t prove_transfers(dp__transfers_t *t)
{
    int32_t ranks = t->schedule->ranks;
    dp__flow_t flow = {
        .lanes = t->matched ? 2 * ranks : ranks, .length = t->length, .context = t, .need = need_of, .name = name_step};
    int64_t at = 0;

    for (int32_t r = 0; r < ranks; r++) {
        t->pair_first[r] = at;
        for (int32_t k = 0; k < t->length[r]; k++)
            if (is_transfer_kind(step_at(t, r, k)->cell.kind) && step_at(t, r, k)->pair == r)
                t->pair_steps[at++] = k;
        t->length[ranks + r] = (int32_t)(at - t->pair_first[r]);
    }
    return dp__flow_prove(&flow, t->name);
}

static dp_status_t allocate_facts(dp__transfers_t *t)
{
    const dp_schedule_t *s = t->schedule;
    size_t ranks = (size_t)s->ranks;

    if (!dp__arrays(DP__ARRAY(t->steps, t->first[ranks]), DP__ARRAY(t->pair_steps, t->first[ranks]),
                    DP__ARRAY(t->fact, ranks * (size_t)s->chunks * (size_t)s->microbatches),
                    DP__ARRAY(t->length, 2 * ranks), DP__ARRAY(t->pair_first, ranks)))
        return dp_fail(DP_ERR_NOMEM, "%s: no memory for %lld cells", t->name, (long long)t->first[ranks]);
    return DP_OK;
}

static dp_status_t check_text(dp__transfers_t *t, const char *text, size_t bytes)
{
    dp_status_t status = read_rows(t, text, bytes);

    if (status >= 0)
        status = allocate_facts(t);
    if (status >= 0)
        status = read_rows(t, text, bytes);
    if (status < 0 || t->transfers == 0)
        return status;
    status = check_rows(t);
    for (int32_t r = 0; r < t->schedule->ranks && status >= 0; r++)
        status = check_order(t, r);
    return status < 0 ? status : prove_transfers(t);
}

dp_status_t dp_schedule_check_csv_transfers(const dp_schedule_t *schedule, const char *name, const char *text,
                                            size_t bytes, int matched, int64_t *count_out)
{
    dp__transfers_t t = {.schedule = schedule, .name = name, .matched = matched != 0};
    dp_status_t status;

    *count_out = 0;
    t.first = dp__calloc((size_t)schedule->ranks + 1, sizeof(*t.first));
    status = t.first != NULL ? check_text(&t, text, bytes)
                             : dp_fail(DP_ERR_NOMEM, "%s: no memory for %d ranks", name, schedule->ranks);
    if (status >= 0)
        *count_out = t.transfers;
    dp__free(t.first);
    dp__free(t.steps);
    return status;
}
