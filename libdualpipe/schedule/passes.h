/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * passes.h: operations taken apart into passes, in the order in which they begin and end. */
#ifndef DP_SCHEDULE_PASSES_H
#define DP_SCHEDULE_PASSES_H

#include <dualpipe/schedule.h>
#include <stdbool.h>
#include <string.h>

/* Marks the beginning of a braid's pass in a plain schedule: dp_op_kind_t + this. Its end is the
 * plain kind. */
enum { DP__OP_START = 8 };

static inline bool dp__op_starts(const dp_op_t *op)
{
    return op->kind >= DP__OP_START;
}

/* What a pass hands on, as channels have it: DP_OP_F or DP_OP_B; -1: nothing, it is a W. */
static inline int dp__pass_flow(int kind)
{
    return kind == DP_OP_F ? DP_OP_F : kind == DP_OP_W ? -1 : DP_OP_B;
}

/* An order without letters. */
static inline bool dp__order_is_named(const char *order)
{
    return strcmp(order, "canonical") == 0 || strcmp(order, "turns") == 0 || strcmp(order, "prefill") == 0 ||
           strcmp(order, "decode") == 0;
}

/* Forwards of one chunk in a published order, of which two are alive at once. */
static inline bool dp__order_chains(const char *order, const dp_pass_t *passes, int npasses)
{
    if (strcmp(order, "prefill") != 0 && strcmp(order, "decode") != 0)
        return false;
    for (int i = 0; i < npasses; i++)
        if (passes[i].kind != DP_OP_F || (npasses > 2 && passes[i].chunk != passes[0].chunk))
            return false;
    return npasses > 1;
}

/* The passes of a plain operation that is no start: FB has two. */
static inline int dp__op_passes(const dp_op_t *op, dp_pass_t passes[2])
{
    bool pair = op->kind == DP_OP_FB;

    passes[0] = (dp_pass_t){pair ? DP_OP_F : op->kind, 0, op->chunk, op->microbatch};
    passes[1] = (dp_pass_t){DP_OP_B, 0, op->chunk2, op->microbatch2};
    return pair ? 2 : 1;
}

/* What a rank has alive at once, in the order of its list: stage inputs from F until B or W, or
 * its end where nothing comes back; backwards from the begin of I or B until the end of W or B. */
typedef struct dp__alive {
    bool forward_only;
    double inputs, backwards, most_inputs, most_backwards;
} dp__alive_t;

/* A pass of `share` of a rank begins here, ends here, or both. */
static inline void dp__alive_count(dp__alive_t *x, int kind, bool begins, bool ends, double share)
{
    if (begins && kind == DP_OP_F)
        x->inputs += share;
    if (begins && (kind == DP_OP_I || kind == DP_OP_B))
        x->backwards += share;
    x->most_inputs = x->inputs > x->most_inputs ? x->inputs : x->most_inputs;
    x->most_backwards = x->backwards > x->most_backwards ? x->backwards : x->most_backwards;
    if (!ends || kind == DP_OP_I)
        return;
    if ((kind == DP_OP_F) == x->forward_only)
        x->inputs -= share;
    if (kind != DP_OP_F)
        x->backwards -= share;
}

/* plain.c: the same schedule without braids: of each pass its start and its end, in the order of
 * the letters; microbatch2 holds the number of the braid, -1 for other operations but FB.
 * *plain_out is the schedule itself where it has none; the caller frees another. DP_ERR_REJECTED:
 * an operation names a braid that there is not, or the letters of one contradict each other. */
dp_status_t dp__schedule_plain(const dp_schedule_t *schedule, const dp_schedule_t **plain_out);
void dp__schedule_plain_free(const dp_schedule_t *schedule, const dp_schedule_t *plain);

#endif
