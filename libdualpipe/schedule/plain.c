/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * plain.c: a schedule without braids: their passes as starts and ends, in the order of letters. */
#include "base/memory.h"
#include "schedule/passes.h"

/* A braid while its letters are read. */
typedef struct dp__reading {
    const dp_braid_t *braid;
    int32_t rank, number;
    int32_t done[DP_BRAID_PASSES][2]; /* letters so far: of I or F or W, of the W of a B */
    int32_t all[DP_BRAID_PASSES][2];
} dp__reading_t;

static dp_status_t refuse_letter(const dp__reading_t *x, int pass, const char *why)
{
    const dp_pass_t *p = &x->braid->passes[pass];

    return dp_fail(DP_ERR_REJECTED, "verify: rank %d braid %d, pass %c (%s chunk %d mb %d): %s", x->rank, x->number,
                   'a' + pass, dp_op_kind_name(p->kind), p->chunk, p->microbatch, why);
}

/* F, I or W: what a letter of a pass is. */
static int row_of(const dp_pass_t *pass, int weight)
{
    return weight || pass->kind == DP_OP_W ? DP_OP_W : pass->kind == DP_OP_F ? DP_OP_F : DP_OP_I;
}

/* Passes of one chunk keep the order in which they are listed at every segment. */
static dp_status_t check_letter_turn(const dp__reading_t *x, int pass, int weight)
{
    const dp_pass_t *p = x->braid->passes;

    for (int i = 0; i < pass; i++)
        for (int w = 0; w < 1 + (p[i].kind == DP_OP_B); w++)
            if (p[i].chunk == p[pass].chunk && row_of(&p[i], w) == row_of(&p[pass], weight) &&
                x->done[i][w] <= x->done[pass][weight])
                return refuse_letter(x, pass,
                                     "it overtakes a pass of the same kind and chunk that is listed before it");
    return DP_OK;
}

static dp_status_t count_letters(dp__reading_t *x)
{
    const dp_pass_t *p = x->braid->passes;

    for (const char *c = x->braid->order; *c != '\0'; c++)
        if (*c != '+')
            x->all[*c >= 'a' ? *c - 'a' : *c - 'A'][*c < 'a']++;
    for (int i = 0; i < x->braid->npasses; i++) {
        if (x->all[i][0] == 0)
            return refuse_letter(x, i, "it has no letter in the order");
        if (p[i].kind == DP_OP_B && x->all[i][0] != x->all[i][1])
            return refuse_letter(x, i, "its I and its W have not the same number of letters");
        for (int k = 0; k < i; k++)
            if (p[k].chunk == p[i].chunk && x->all[k][0] != x->all[i][0])
                return refuse_letter(x, i, "another pass of its chunk has another number of letters");
    }
    return DP_OK;
}

static void put_pass(const dp__reading_t *x, int pass, int start, dp_op_t **out)
{
    const dp_pass_t *p = &x->braid->passes[pass];

    *(*out)++ = (dp_op_t){(uint8_t)(p->kind + start), p->chunk, -1, p->microbatch, x->number};
}

static dp_status_t read_letters(dp__reading_t *x, dp_op_t **out)
{
    dp_status_t status = count_letters(x);

    for (const char *c = x->braid->order; *c != '\0' && status >= 0; c++) {
        int weight, pass;
        int32_t *done;

        c += *c == '+';
        weight = *c < 'a', pass = weight ? *c - 'A' : *c - 'a';
        done = x->done[pass];
        if (weight && done[1] >= done[0])
            return refuse_letter(x, pass, "a W stands before the I of its segment");
        status = check_letter_turn(x, pass, weight);
        if (done[0] + done[1] == 0)
            put_pass(x, pass, DP__OP_START, out);
        done[weight]++;
        if (done[0] == x->all[pass][0] && done[1] == x->all[pass][1])
            put_pass(x, pass, 0, out);
    }
    return status;
}

static dp_status_t put_braid(const dp_schedule_t *s, int32_t rank, int32_t number, dp_op_t **out)
{
    dp__reading_t x = {.braid = &s->braids[number], .rank = rank, .number = number};
    int n = x.braid->npasses, alive;

    if (!dp__order_is_named(x.braid->order))
        return read_letters(&x, out);
    alive = dp__order_chains(x.braid->order, x.braid->passes, n) ? 2 : n;
    for (int i = 0; i < n + alive; i++) {
        if (i >= alive)
            put_pass(&x, i - alive, 0, out);
        if (i < n)
            put_pass(&x, i, DP__OP_START, out);
    }
    return DP_OK;
}

static dp_status_t count_rank(const dp_schedule_t *s, int32_t rank, int64_t *count_out)
{
    *count_out = 0;
    for (int64_t i = s->first[rank]; i < s->first[rank + 1]; i++) {
        const dp_op_t *op = &s->ops[i];

        if (op->kind == DP_OP_BRAID && (op->microbatch < 0 || op->microbatch >= s->nbraids))
            return dp_fail(DP_ERR_REJECTED, "verify: rank %d op %d is braid %d; there are %d", rank,
                           (int)(i - s->first[rank]), op->microbatch, s->nbraids);
        if (op->kind > DP_OP_BRAID)
            return dp_fail(DP_ERR_REJECTED, "verify: rank %d op %d has unknown kind %d", rank,
                           (int)(i - s->first[rank]), op->kind);
        *count_out += op->kind == DP_OP_BRAID ? 2 * s->braids[op->microbatch].npasses : 1;
    }
    return DP_OK;
}

static dp_status_t fill_plain(const dp_schedule_t *s, dp_schedule_t *plain)
{
    dp_op_t *out = plain->ops;
    dp_status_t status = DP_OK;

    for (int32_t r = 0; r < s->ranks; r++)
        for (int64_t i = s->first[r]; i < s->first[r + 1] && status >= 0; i++)
            if (s->ops[i].kind == DP_OP_BRAID)
                status = put_braid(s, r, s->ops[i].microbatch, &out);
            else
                *out++ = s->ops[i];
    return status;
}

dp_status_t dp__schedule_plain(const dp_schedule_t *schedule, const dp_schedule_t **plain_out)
{
    int64_t *counts;
    dp_schedule_t *plain = NULL;
    dp_status_t status = DP_OK;

    *plain_out = schedule;
    if (schedule->nbraids == 0)
        return DP_OK;
    counts = dp__calloc((size_t)schedule->ranks, sizeof(*counts));
    if (counts == NULL)
        return dp_fail(DP_ERR_NOMEM, "verify: no memory for %d ranks", schedule->ranks);
    for (int32_t r = 0; r < schedule->ranks && status >= 0; r++)
        status = count_rank(schedule, r, &counts[r]);
    if (status >= 0)
        status = dp_schedule_create(schedule->method, schedule->placement, schedule->ranks, schedule->microbatches,
                                    schedule->chunks, counts, &plain);
    dp__free(counts);
    if (status < 0)
        return status;
    plain->forward_only = schedule->forward_only;
    status = fill_plain(schedule, plain);
    if (status < 0)
        dp_schedule_free(plain);
    else
        *plain_out = plain;
    return status;
}

void dp__schedule_plain_free(const dp_schedule_t *schedule, const dp_schedule_t *plain)
{
    if (plain != schedule)
        dp_schedule_free((dp_schedule_t *)(uintptr_t)plain);
}
