/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lists.c: lists of operations and how long they take. */
#include "search/lists.h"

#include "base/memory.h"
#include "simulate/costs.h"

#include <math.h>
#include <string.h>

static int64_t rank_chunk(const dp__shape_t *shape, int32_t rank, int32_t chunk)
{
    return (int64_t)rank * shape->chunks + chunk;
}

double dp__shape_cost(const dp__shape_t *shape, int32_t rank, const dp_op_t *op)
{
    const dp_place_t *places = &shape->places[rank_chunk(shape, rank, 0)];
    double scale = 1.0;

    if (shape->scale != NULL)
        scale = shape->scale[places[op->chunk].stage];
    if (shape->scale != NULL && op->kind == DP_OP_FB)
        scale = shape->forward_share * scale + (1.0 - shape->forward_share) * shape->scale[places[op->chunk2].stage];
    return shape->cost[op->kind] * scale * dp__rank_scale(shape->costs, rank);
}

double dp__shape_hop(const dp__shape_t *shape, int32_t from, int32_t to)
{
    dp__message_time_t time = dp__costs_message(shape->costs, from, to);

    return time.hop + time.link;
}

dp_status_t dp__shape_make(const dp_schedule_t *schedule, const dp_costs_t *costs, dp__shape_t *shape)
{
    double part = 1.0 / dp_schedule_split(schedule);

    *shape = (dp__shape_t){.placement = schedule->placement,
                           .ranks = schedule->ranks,
                           .microbatches = schedule->microbatches,
                           .chunks = schedule->chunks,
                           .path_microbatches = dp_schedule_path_microbatches(schedule, 0),
                           .cost = {costs->f * part, dp_costs_backward(costs) * part, costs->i * part, costs->w * part,
                                    dp_costs_pair(costs) * part},
                           .costs = costs,
                           .scale = costs->stage_scale,
                           .barrier = costs->barrier != 0.0};
    if (costs->f + dp_costs_backward(costs) > 0.0)
        shape->forward_share = costs->f / (costs->f + dp_costs_backward(costs));
    if (!dp__arrays(DP__ARRAY(shape->places, rank_chunk(shape, schedule->ranks, 0)),
                    DP__ARRAY(shape->share, rank_chunk(shape, schedule->ranks, 0))))
        return dp_fail(DP_ERR_NOMEM, "search: no memory for %d ranks", schedule->ranks);
    for (int32_t r = 0; r < schedule->ranks; r++)
        for (int32_t c = 0; c < schedule->chunks; c++) {
            dp_schedule_place(schedule, r, c, &shape->places[rank_chunk(shape, r, c)]);
            shape->share[rank_chunk(shape, r, c)] = part;
        }
    return DP_OK;
}

void dp__shape_clear(dp__shape_t *shape)
{
    dp__free(shape->places);
    shape->places = NULL;
}

/* ---- lists ---- */

dp_status_t dp__lists_make(const dp__shape_t *shape, dp__lists_t *lists)
{
    lists->room = 3 * shape->path_microbatches * shape->chunks; /* F, I and W each */
    if (dp__arrays(DP__ARRAY(lists->count, shape->ranks),
                   DP__ARRAY(lists->ops, (size_t)shape->ranks * (size_t)lists->room)))
        return DP_OK;
    return dp_fail(DP_ERR_NOMEM, "search: no memory for %d ranks of %d operations", shape->ranks, lists->room);
}

void dp__lists_clear(dp__lists_t *lists)
{
    dp__free(lists->count);
    *lists = (dp__lists_t){0, NULL, NULL};
}

void dp__lists_copy(const dp__shape_t *shape, const dp__lists_t *from, dp__lists_t *to)
{
    for (int32_t r = 0; r < shape->ranks; r++) {
        to->count[r] = from->count[r];
        memcpy(to->ops + (int64_t)r * to->room, from->ops + (int64_t)r * from->room,
               (size_t)from->count[r] * sizeof(*to->ops));
    }
}

void dp__lists_take(const dp__shape_t *shape, const dp_schedule_t *schedule, dp__lists_t *lists)
{
    for (int32_t r = 0; r < shape->ranks; r++) {
        lists->count[r] = (int32_t)(schedule->first[r + 1] - schedule->first[r]);
        memcpy(lists->ops + (int64_t)r * lists->room, schedule->ops + schedule->first[r],
               (size_t)lists->count[r] * sizeof(*lists->ops));
    }
}

dp_status_t dp__lists_give(const dp__shape_t *shape, const dp__lists_t *lists, dp_schedule_t **schedule_out)
{
    int64_t *counts = dp__calloc((size_t)shape->ranks, sizeof(*counts));
    dp_status_t status;

    if (counts == NULL)
        return dp_fail(DP_ERR_NOMEM, "search: no memory for %d ranks", shape->ranks);
    for (int32_t r = 0; r < shape->ranks; r++)
        counts[r] = lists->count[r];
    status = dp_schedule_create("search", shape->placement, shape->ranks, shape->microbatches, shape->chunks, counts,
                                schedule_out);
    dp__free(counts);
    for (int32_t r = 0; status >= 0 && r < shape->ranks; r++)
        memcpy((*schedule_out)->ops + (*schedule_out)->first[r], lists->ops + (int64_t)r * lists->room,
               (size_t)lists->count[r] * sizeof(*lists->ops));
    return status;
}

/* ---- timing ---- */

dp_status_t dp__timer_make(const dp__shape_t *shape, dp__list_timer_t *timer)
{
    size_t ranks = (size_t)shape->ranks;
    size_t chunks = ranks * (size_t)shape->chunks, cells = chunks * (size_t)shape->path_microbatches;

    if (dp__arrays(DP__ARRAY(timer->forward, cells), DP__ARRAY(timer->backward, cells),
                   DP__ARRAY(timer->forward_place, cells), DP__ARRAY(timer->backward_place, cells),
                   DP__ARRAY(timer->forwards, chunks), DP__ARRAY(timer->backwards, chunks),
                   DP__ARRAY(timer->free, ranks), DP__ARRAY(timer->start, ranks), DP__ARRAY(timer->held, ranks),
                   DP__ARRAY(timer->at, ranks), DP__ARRAY(timer->queue, ranks), DP__ARRAY(timer->queued, ranks)))
        return DP_OK;
    return dp_fail(DP_ERR_NOMEM, "search: no memory to time %zu passes", cells);
}

void dp__timer_clear(dp__list_timer_t *timer)
{
    dp__free(timer->forward);
    timer->forward = NULL;
}

typedef struct pass {
    dp__list_timer_t *timer;
    const dp__shape_t *shape;
    int32_t head, waiting; /* of the queue */
    bool disordered;       /* a rank used messages in another order than they were made in */
} pass_t;

static int64_t cell_at(const dp__shape_t *shape, int32_t rank, int32_t chunk, int32_t microbatch)
{
    return rank_chunk(shape, rank, chunk) * shape->path_microbatches + microbatch;
}

static void wake_rank(pass_t *pass, int32_t rank)
{
    if (rank < 0 || pass->timer->queued[rank])
        return;
    pass->timer->queued[rank] = true;
    pass->timer->queue[(pass->head + pass->waiting++) % pass->shape->ranks] = rank;
}

double dp__timer_ready(const dp__list_timer_t *timer, const dp__shape_t *shape, int32_t rank, int kind, int32_t chunk,
                       int32_t microbatch)
{
    const dp_place_t *place = &shape->places[rank_chunk(shape, rank, chunk)];
    double own = 0.0, other = 0.0;
    int32_t from = kind == DP_OP_F ? place->prev_rank : place->next_rank;

    if (kind == DP_OP_W)
        return timer->backward[cell_at(shape, rank, chunk, microbatch)];
    if (kind != DP_OP_F)
        own = timer->forward[cell_at(shape, rank, chunk, microbatch)];
    if (from >= 0)
        other = kind == DP_OP_F ? timer->forward[cell_at(shape, from, place->prev_chunk, microbatch)]
                                : timer->backward[cell_at(shape, from, place->next_chunk, microbatch)];
    if (own < 0.0 || other < 0.0)
        return -1.0;
    return fmax(own, from >= 0 && from != rank ? other + dp__shape_hop(shape, from, rank) : other);
}

static void finish_pass(pass_t *pass, bool forward, int32_t rank, int32_t chunk, int32_t microbatch, double end)
{
    const dp__shape_t *shape = pass->shape;
    const dp_place_t *place = &shape->places[rank_chunk(shape, rank, chunk)];
    dp__list_timer_t *timer = pass->timer;
    int32_t nth = (forward ? timer->forwards : timer->backwards)[rank_chunk(shape, rank, chunk)]++;
    int32_t from = forward ? place->prev_rank : place->next_rank;
    int32_t from_chunk = forward ? place->prev_chunk : place->next_chunk;
    int32_t *nths = forward ? timer->forward_place : timer->backward_place;

    if (from >= 0 && from != rank && nths[cell_at(shape, from, from_chunk, microbatch)] != nth)
        pass->disordered = true;
    (forward ? timer->forward : timer->backward)[cell_at(shape, rank, chunk, microbatch)] = end;
    nths[cell_at(shape, rank, chunk, microbatch)] = nth;
    wake_rank(pass, forward ? place->next_rank : place->prev_rank);
}

/* Runs an operation if its data are there. */
static bool run_op(pass_t *pass, int32_t rank, const dp_op_t *op, double *peak)
{
    dp__list_timer_t *timer = pass->timer;
    const double *share = &pass->shape->share[rank_chunk(pass->shape, rank, 0)];
    bool pair = op->kind == DP_OP_FB;
    double when = dp__timer_ready(timer, pass->shape, rank, pair ? DP_OP_F : op->kind, op->chunk, op->microbatch), end;
    double when2 = pair ? dp__timer_ready(timer, pass->shape, rank, DP_OP_B, op->chunk2, op->microbatch2) : 0.0;

    if (when < 0.0 || when2 < 0.0)
        return false;
    when = fmax(timer->free[rank], fmax(when, when2));
    end = when + dp__shape_cost(pass->shape, rank, op);
    if (timer->at[rank] == 0)
        timer->start[rank] = when;
    timer->free[rank] = end;
    if (op->kind == DP_OP_F || pair) {
        timer->held[rank] += share[op->chunk];
        *peak = fmax(*peak, timer->held[rank]);
        finish_pass(pass, true, rank, op->chunk, op->microbatch, end);
    }
    if (op->kind == DP_OP_B || op->kind == DP_OP_I)
        finish_pass(pass, false, rank, op->chunk, op->microbatch, end);
    if (pair)
        finish_pass(pass, false, rank, op->chunk2, op->microbatch2, end);
    if (op->kind == DP_OP_B || op->kind == DP_OP_W || pair)
        timer->held[rank] -= share[pair ? op->chunk2 : op->chunk];
    return true;
}

static void reset_timing(pass_t *pass)
{
    dp__list_timer_t *timer = pass->timer;
    int64_t cells = cell_at(pass->shape, pass->shape->ranks, 0, 0);

    for (int64_t c = 0; c < cells; c++)
        timer->forward[c] = timer->backward[c] = -1.0;
    for (int64_t c = 0; c < rank_chunk(pass->shape, pass->shape->ranks, 0); c++)
        timer->forwards[c] = timer->backwards[c] = 0;
    for (int32_t r = 0; r < pass->shape->ranks; r++) {
        timer->free[r] = timer->start[r] = timer->held[r] = 0.0;
        timer->at[r] = 0;
        timer->queued[r] = false;
        wake_rank(pass, r);
    }
}

static dp__timing_t sum_up_timing(const pass_t *pass, double peak)
{
    const dp__shape_t *shape = pass->shape;
    const dp__list_timer_t *timer = pass->timer;
    double first = INFINITY, last = 0.0, longest = 0.0, sum = 0.0;

    for (int32_t r = 0; r < shape->ranks; r++) {
        int32_t mirror = shape->places[rank_chunk(shape, r, 0)].mirror_rank;
        int32_t other = mirror >= 0 ? mirror : r;

        first = fmin(first, timer->start[r]);
        last = fmax(last, timer->free[r]);
        longest = fmax(longest, fmax(timer->free[r], timer->free[other]) - fmin(timer->start[r], timer->start[other]));
        sum += timer->free[r];
    }
    return (dp__timing_t){shape->barrier ? last - first : longest, sum / shape->ranks, peak};
}

dp__timing_t dp__timer_run(dp__list_timer_t *timer, const dp__shape_t *shape, const dp__lists_t *lists, double cap)
{
    pass_t pass = {.timer = timer, .shape = shape};
    double peak = 0.0;
    bool complete = true;

    reset_timing(&pass);
    while (pass.waiting > 0) {
        int32_t rank = timer->queue[pass.head];
        const dp_op_t *ops = lists->ops + (int64_t)rank * lists->room;

        pass.head = (pass.head + 1) % shape->ranks;
        pass.waiting--;
        timer->queued[rank] = false;
        while (!pass.disordered && timer->at[rank] < lists->count[rank] &&
               run_op(&pass, rank, &ops[timer->at[rank]], &peak))
            timer->at[rank]++;
    }
    for (int32_t r = 0; r < shape->ranks; r++)
        complete = complete && timer->at[r] == lists->count[r];
    if (!complete || pass.disordered || (cap >= 0.0 && peak > cap + 1e-9))
        return (dp__timing_t){INFINITY, INFINITY, peak};
    return sum_up_timing(&pass, peak);
}
