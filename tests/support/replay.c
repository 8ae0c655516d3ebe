/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * replay.c: runs a schedule on paper: every operation starts when its rank is free and its inputs
 * exist. Transfers take no time. Shares no code with the library. */
#include "replay.h"

static double replay_duration(const replay_cost_t *c, int kind)
{
    return kind == DP_OP_F ? c->f : kind == DP_OP_B ? c->b : kind == DP_OP_I ? c->i : kind == DP_OP_W ? c->w : c->fb;
}

/* end of F (way 0) or of the input gradient (way 1) of (rank, chunk, mb); -1: not yet */
static double *replay_end(double *table, const dp_schedule_t *s, int rank, int chunk, int microbatch, int way)
{
    return &table[((rank * s->chunks + chunk) * s->microbatches + microbatch) * 2 + way];
}

/* When the input of one half exists; -1: not yet. */
static double replay_input(double *table, const dp_schedule_t *s, int rank, int chunk, int microbatch, int way)
{
    dp_place_t p;

    dp_schedule_place(s, rank, chunk, &p);
    if ((way == 0 ? p.prev_rank : p.next_rank) < 0)
        return way == 0 ? 0 : *replay_end(table, s, rank, chunk, microbatch, 0);
    return way == 0 ? *replay_end(table, s, p.prev_rank, p.prev_chunk, microbatch, 0)
                    : *replay_end(table, s, p.next_rank, p.next_chunk, microbatch, 1);
}

replay_result_t replay(const dp_schedule_t *s, const replay_cost_t *cost)
{
    size_t places = (size_t)(s->ranks * s->chunks * s->microbatches) * 2;
    double *table = malloc(places * sizeof(*table)), *free_at = calloc((size_t)s->ranks, sizeof(double));
    double *busy = calloc((size_t)s->ranks, sizeof(double));
    int64_t *next = calloc((size_t)s->ranks, sizeof(int64_t));
    replay_result_t result = {0, 1e300, 0, 0, 0};
    int moved = 1;

    for (size_t k = 0; k < places; k++)
        table[k] = -1;
    while (moved) {
        moved = 0;
        for (int r = 0; r < s->ranks; r++)
            while (s->first[r] + next[r] < s->first[r + 1]) {
                const dp_op_t *op = &s->ops[s->first[r] + next[r]];
                int forward = op->kind == DP_OP_F || op->kind == DP_OP_FB;
                double start = free_at[r], input = 0, d = replay_duration(cost, op->kind);

                if (op->kind != DP_OP_W)
                    input = replay_input(table, s, r, op->chunk, op->microbatch, !forward);
                if (input >= 0 && op->kind == DP_OP_FB) {
                    double other = replay_input(table, s, r, op->chunk2, op->microbatch2, 1);

                    input = other < 0 ? -1 : other > input ? other : input;
                }
                if (input < 0)
                    break;
                start = input > start ? input : start;
                free_at[r] = start + d;
                busy[r] += d;
                if (forward)
                    *replay_end(table, s, r, op->chunk, op->microbatch, 0) = start + d;
                if (op->kind == DP_OP_FB)
                    *replay_end(table, s, r, op->chunk2, op->microbatch2, 1) = start + d;
                if (op->kind == DP_OP_B || op->kind == DP_OP_I)
                    *replay_end(table, s, r, op->chunk, op->microbatch, 1) = start + d;
                next[r]++;
                moved = 1;
            }
    }
    for (int r = 0; r < s->ranks; r++) {
        result.stuck |= s->first[r] + next[r] < s->first[r + 1];
        result.step = free_at[r] > result.step ? free_at[r] : result.step;
    }
    for (int r = 0; r < s->ranks; r++) {
        double idle = result.step - busy[r];

        result.idle_min = idle < result.idle_min ? idle : result.idle_min;
        result.idle_max = idle > result.idle_max ? idle : result.idle_max;
        result.idle_sum += idle;
    }
    free(table);
    free(free_at);
    free(busy);
    free(next);
    return result;
}
