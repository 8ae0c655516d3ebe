/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * forwards.c: a schedule with nothing but its forwards, one by one or two by two. */
#include <dualpipe/schedule.h>

#include "base/memory.h"
#include "schedule/passes.h"

/* The forwards of an operation, into `out` unless it is NULL. Returns how many. */
static int32_t forwards_in(const dp_schedule_t *s, const dp_op_t *op, dp_pass_t *out)
{
    bool braid = op->kind == DP_OP_BRAID;
    dp_pass_t own[2];
    const dp_pass_t *passes = braid ? s->braids[op->microbatch].passes : own;
    int32_t n = braid ? s->braids[op->microbatch].npasses : dp__op_passes(op, own), count = 0;

    for (int32_t i = 0; i < n; i++)
        if (passes[i].kind == DP_OP_F) {
            if (out != NULL)
                out[count] = passes[i];
            count++;
        }
    return count;
}

/* ---- two by two ---- */

/* Pairs on equal devices, each of which takes one unit of time: what a rank does next is the ready
 * pair of the latest stage. So as many pairs are under way as it takes, and every rank can keep its
 * order. */
typedef struct dp__rally {
    const dp_schedule_t *schedule;
    int32_t pairs;  /* of a path */
    int32_t *made;  /* [ranks * chunks] pairs that ended */
    int32_t *doing; /* [ranks] chunk, -1: none */
} dp__rally_t;

static int32_t *made_of(const dp__rally_t *x, int32_t rank, int32_t chunk)
{
    return &x->made[rank * x->schedule->chunks + chunk];
}

/* The stage of a chunk whose next pair can begin; -1: none. One pair may be under way. */
static int32_t ready_stage(const dp__rally_t *x, int32_t rank, int32_t chunk)
{
    int32_t n = *made_of(x, rank, chunk);
    dp_place_t place;

    dp_schedule_place(x->schedule, rank, chunk, &place);
    if (n == x->pairs || (place.prev_rank >= 0 && *made_of(x, place.prev_rank, place.prev_chunk) <= n) ||
        (place.next_rank >= 0 && n - *made_of(x, place.next_rank, place.next_chunk) > 1))
        return -1;
    return place.stage;
}

/* A unit of time. forwards: [ranks * chunks * pairs], the first micro-batches of pairs. */
static void run_tick(dp__rally_t *x, int64_t *counts, dp_pass_t *forwards)
{
    const dp_schedule_t *s = x->schedule;

    for (int32_t r = 0; r < s->ranks; r++) {
        int32_t latest = -1;

        x->doing[r] = -1;
        for (int32_t c = 0; c < s->chunks; c++) {
            int32_t stage = ready_stage(x, r, c);

            if (stage > latest) {
                latest = stage;
                x->doing[r] = c;
            }
        }
    }
    for (int32_t r = 0; r < s->ranks; r++)
        if (x->doing[r] >= 0)
            forwards[(int64_t)r * s->chunks * x->pairs + counts[r]++] =
                (dp_pass_t){DP_OP_F, 0, (int16_t)x->doing[r], 2 * (*made_of(x, r, x->doing[r]))++};
}

static dp_status_t order_pairs(const dp_schedule_t *s, int64_t *counts, dp_pass_t *forwards)
{
    dp__rally_t x = {.schedule = s, .pairs = (dp_schedule_path_microbatches(s, 0) + 1) / 2};
    int64_t all = (int64_t)s->ranks * s->chunks * x.pairs, before = -1, done = 0;

    x.made = dp__calloc((size_t)s->ranks * ((size_t)s->chunks + 1), sizeof(*x.made));
    if (x.made == NULL)
        return dp_fail(DP_ERR_NOMEM, "schedule: no memory for the forwards of %d ranks", s->ranks);
    x.doing = x.made + (size_t)s->ranks * (size_t)s->chunks;
    while (done < all && done > before) {
        before = done;
        run_tick(&x, counts, forwards);
        done = 0;
        for (int32_t r = 0; r < s->ranks; r++)
            done += counts[r];
    }
    dp__free(x.made);
    return done == all ? DP_OK : dp_fail(DP_ERR_REJECTED, "schedule: forwards two by two wait for each other");
}

/* ---- the lists ---- */

static dp_status_t list_rank(const dp_schedule_t *full, int32_t rank, int64_t expected, dp_pass_t *out)
{
    int64_t n = 0;

    for (int64_t i = full->first[rank]; i < full->first[rank + 1]; i++)
        n += forwards_in(full, &full->ops[i], NULL);
    if (n != expected)
        return dp_fail(DP_ERR_REJECTED, "schedule: rank %d has %lld forwards; %lld are needed", rank, (long long)n,
                       (long long)expected);
    n = 0;
    for (int64_t i = full->first[rank]; i < full->first[rank + 1]; i++)
        n += forwards_in(full, &full->ops[i], &out[n]);
    return DP_OK;
}

/* Passes of a braid, and braids of a rank. Where all pairs of a rank are of one chunk, they follow
 * each other in one braid, which does not drain between them. */
static int32_t braid_length(const dp_schedule_t *full, const char *order)
{
    return full->chunks == 1 && strcmp(order, "turns") != 0 ? DP_BRAID_PASSES : 2;
}

static int64_t count_braids(const dp_schedule_t *full, const char *order)
{
    int32_t length = braid_length(full, order);

    return (int64_t)full->chunks * ((dp_schedule_path_microbatches(full, 0) + length - 1) / length);
}

/* forwards: those of the rank, or the first ones of its pairs; order: of pairs, NULL: there are
 * none. */
static dp_status_t put_rank_forwards(const dp_schedule_t *full, int32_t rank, const char *order,
                                     const dp_pass_t *forwards, dp_schedule_t *schedule)
{
    int32_t microbatches = dp_schedule_path_microbatches(full, 0);
    int64_t n = schedule->first[rank + 1] - schedule->first[rank];
    dp_status_t status = DP_OK;

    for (int64_t i = 0; i < n && status >= 0; i++) {
        int32_t length = order != NULL ? braid_length(full, order) : 1, count = 0, number = 0;
        dp_op_t *op = &schedule->ops[schedule->first[rank] + i];
        dp_pass_t passes[DP_BRAID_PASSES] = {forwards[i * ((length + 1) / 2)]};

        for (; count < length && passes[0].microbatch + count < microbatches; count++) {
            passes[count] = passes[0];
            passes[count].microbatch += count;
        }
        *op = (dp_op_t){DP_OP_F, passes[0].chunk, -1, passes[0].microbatch, -1};
        if (count < 2)
            continue;
        status = dp_schedule_add_braid(schedule, &(dp_braid_t){count, passes, order}, &number);
        *op = (dp_op_t){DP_OP_BRAID, -1, -1, number, -1};
    }
    return status;
}

static dp_status_t put_schedule(const dp_schedule_t *full, const char *order, dp_pass_t *forwards, int64_t *counts,
                                dp_schedule_t **only)
{
    int32_t microbatches = dp_schedule_path_microbatches(full, 0);
    int64_t row = (int64_t)full->chunks * (order != NULL ? (microbatches + 1) / 2 : microbatches);
    dp_status_t status = DP_OK;

    if (order != NULL)
        status = order_pairs(full, counts, forwards);
    for (int32_t r = 0; r < full->ranks && order == NULL && status >= 0; r++) {
        status = list_rank(full, r, row, forwards + r * row);
        counts[r] = row;
    }
    for (int32_t r = 0; r < full->ranks && order != NULL; r++)
        counts[r] = count_braids(full, order);
    if (status >= 0)
        status = dp_schedule_create(full->method, full->placement, full->ranks, full->microbatches, full->chunks,
                                    counts, only);
    for (int32_t r = 0; r < full->ranks && status >= 0; r++)
        status = put_rank_forwards(full, r, order, forwards + r * row, *only);
    return status;
}

dp_status_t dp_schedule_forwards(const dp_schedule_t *schedule, int overlap, dp_schedule_t **forwards_out)
{
    static const char *const orders[] = {NULL, "turns", "prefill", "decode"};
    size_t ranks = (size_t)schedule->ranks;
    size_t all = ranks * (size_t)schedule->chunks * (size_t)dp_schedule_path_microbatches(schedule, 0);
    dp_schedule_t *only = NULL;
    dp_pass_t *forwards;
    int64_t *counts;
    dp_status_t status;

    *forwards_out = NULL;
    if (overlap < DP_FORWARDS_SERIAL || overlap > DP_FORWARDS_DECODE)
        return dp_fail(DP_ERR_INVALID, "dp_schedule_forwards: overlap %d: it is one of DP_FORWARDS_SERIAL to _DECODE",
                       overlap);
    counts = dp__calloc(ranks, sizeof(*counts));
    forwards = dp__calloc(all, sizeof(*forwards));
    status = counts != NULL && forwards != NULL ? put_schedule(schedule, orders[overlap], forwards, counts, &only)
                                                : dp_fail(DP_ERR_NOMEM, "schedule: no memory for %zu forwards", all);
    dp__free(forwards);
    dp__free(counts);
    if (status < 0) {
        dp_schedule_free(only);
        return status;
    }
    only->forward_only = 1;
    *forwards_out = only;
    return DP_OK;
}
