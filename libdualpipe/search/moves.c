/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moves.c: small random changes to a list. */
#include "search/moves.h"

#include <string.h>

int32_t dp__random_below(dp__search_random_t *random, int32_t n)
{
    random->state = random->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int32_t)((random->state >> 33) % (uint64_t)n);
}

double dp__random_unit(dp__search_random_t *random)
{
    return dp__random_below(random, 1 << 30) / (double)(1 << 30);
}

/* The operation at `from` goes to `to`; those between make room. */
static void shift_op(dp_op_t *ops, int32_t from, int32_t to)
{
    dp_op_t op = ops[from];

    if (from < to)
        memmove(ops + from, ops + from + 1, (size_t)(to - from) * sizeof(*ops));
    else
        memmove(ops + to + 1, ops + to, (size_t)(from - to) * sizeof(*ops));
    ops[to] = op;
}

static bool move_one(dp_op_t *ops, int32_t count, dp__search_random_t *random)
{
    int32_t from = dp__random_below(random, count), reach = dp__random_below(random, 4) == 0 ? count : 4;
    int32_t to = from + dp__random_below(random, 2 * reach + 1) - reach;

    if (to < 0 || to >= count || to == from)
        return false;
    shift_op(ops, from, to);
    return true;
}

/* Every operation of one kind and chunk in a stretch trades places with its neighbour. */
static bool move_stretch(const dp__shape_t *shape, dp_op_t *ops, int32_t count, dp__search_random_t *random)
{
    static const uint8_t kinds[] = {DP_OP_F, DP_OP_B, DP_OP_I, DP_OP_W, DP_OP_W, DP_OP_FB};
    int kind = kinds[dp__random_below(random, 6)], chunk = dp__random_below(random, shape->chunks);
    int32_t start = dp__random_below(random, count), length = 2 + dp__random_below(random, count), moved = 0;
    bool later = dp__random_below(random, 2) == 0;

    for (int32_t k = 0; k < length; k++) {
        /* from the end towards which they go, so that none is moved twice */
        int32_t at = later ? start + length - 1 - k : start + k, to = later ? at + 1 : at - 1;

        if (at < 0 || at >= count || to < 0 || to >= count || ops[at].kind != kind || ops[at].chunk != chunk)
            continue;
        shift_op(ops, at, to);
        moved++;
    }
    return moved > 0;
}

static void remove_at(dp_op_t *ops, int32_t *count, int32_t at)
{
    memmove(ops + at, ops + at + 1, (size_t)(*count - at - 1) * sizeof(*ops));
    (*count)--;
}

static void insert_at(dp_op_t *ops, int32_t *count, int32_t at, dp_op_t op)
{
    memmove(ops + at + 1, ops + at, (size_t)(*count - at) * sizeof(*ops));
    ops[at] = op;
    (*count)++;
}

/* B becomes I and, up to a few places later, W. */
static bool split_pair(dp_op_t *ops, int32_t *count, dp__search_random_t *random)
{
    int32_t at = dp__random_below(random, *count), to = at + 1 + dp__random_below(random, 4);
    dp_op_t weight = ops[at];

    if (ops[at].kind != DP_OP_B)
        return false;
    ops[at].kind = DP_OP_I;
    weight.kind = DP_OP_W;
    insert_at(ops, count, to < *count ? to : *count, weight);
    return true;
}

/* I and its W become B in the place of I. */
static bool join_pair(dp_op_t *ops, int32_t *count, dp__search_random_t *random)
{
    int32_t at = dp__random_below(random, *count);

    if (ops[at].kind != DP_OP_I)
        return false;
    for (int32_t k = at + 1; k < *count; k++) {
        if (ops[k].kind != DP_OP_W || ops[k].chunk != ops[at].chunk || ops[k].microbatch != ops[at].microbatch)
            continue;
        ops[at].kind = DP_OP_B;
        remove_at(ops, count, k);
        return true;
    }
    return false;
}

/* A forward and a backward side by side become a pair. */
static bool pair_up(dp_op_t *ops, int32_t *count, dp__search_random_t *random)
{
    int32_t at = *count > 1 ? dp__random_below(random, *count - 1) : 0;
    dp_op_t a, b;

    if (*count < 2)
        return false;
    a = ops[at].kind == DP_OP_F ? ops[at] : ops[at + 1];
    b = ops[at].kind == DP_OP_F ? ops[at + 1] : ops[at];
    if (a.kind != DP_OP_F || b.kind != DP_OP_B || (a.chunk == b.chunk && a.microbatch == b.microbatch))
        return false;
    ops[at] = (dp_op_t){
        .kind = DP_OP_FB, .chunk = a.chunk, .microbatch = a.microbatch, .chunk2 = b.chunk, .microbatch2 = b.microbatch};
    remove_at(ops, count, at + 1);
    return true;
}

static bool part_backward(dp_op_t *ops, int32_t *count, dp__search_random_t *random)
{
    int32_t at = dp__random_below(random, *count);
    dp_op_t forward = {
        .kind = DP_OP_F, .chunk = ops[at].chunk, .microbatch = ops[at].microbatch, .chunk2 = -1, .microbatch2 = -1};
    dp_op_t backward = {
        .kind = DP_OP_B, .chunk = ops[at].chunk2, .microbatch = ops[at].microbatch2, .chunk2 = -1, .microbatch2 = -1};
    bool backward_first = dp__random_below(random, 2) == 0;

    if (ops[at].kind != DP_OP_FB)
        return false;
    ops[at] = backward_first ? backward : forward;
    insert_at(ops, count, at + 1, backward_first ? forward : backward);
    return true;
}

int32_t dp__move_random(const dp__shape_t *shape, dp__lists_t *lists, dp__search_random_t *random)
{
    int32_t rank = dp__random_below(random, shape->ranks), kind = dp__random_below(random, 20);
    dp_op_t *ops = lists->ops + (int64_t)rank * lists->room;
    int32_t *count = &lists->count[rank];
    bool moved;

    if (kind < 11)
        moved = move_one(ops, *count, random);
    else if (kind < 14)
        moved = move_stretch(shape, ops, *count, random);
    else if (kind < 16)
        moved = split_pair(ops, count, random);
    else if (kind < 17)
        moved = join_pair(ops, count, random);
    else if (kind < 19)
        moved = pair_up(ops, count, random);
    else
        moved = part_backward(ops, count, random);
    return moved ? rank : -1;
}

static int32_t behind_last_forward(const dp_op_t *ops, int32_t count)
{
    while (count > 0 && ops[count - 1].kind != DP_OP_F && ops[count - 1].kind != DP_OP_FB)
        count--;
    return count;
}

void dp__move_weights_later(const dp__shape_t *shape, const dp__lists_t *from, int32_t lag, dp__lists_t *to)
{
    dp__lists_copy(shape, from, to);
    for (int32_t r = 0; r < shape->ranks; r++) {
        const dp_op_t *ops = from->ops + (int64_t)r * from->room;
        dp_op_t *out = to->ops + (int64_t)r * to->room;
        int32_t first = behind_last_forward(ops, from->count[r]), n = first, waiting = 0, next = first;

        for (int32_t k = first; k < from->count[r] || waiting > 0; k++) {
            bool more = k < from->count[r];

            if (more) {
                out[n] = ops[k];
                waiting += ops[k].kind == DP_OP_B;
                out[n++].kind = ops[k].kind == DP_OP_B ? DP_OP_I : ops[k].kind;
            }
            if (waiting > lag || (!more && waiting > 0)) {
                while (ops[next].kind != DP_OP_B)
                    next++;
                out[n] = ops[next++];
                out[n++].kind = DP_OP_W;
                waiting--;
            }
        }
        to->count[r] = n;
    }
}
