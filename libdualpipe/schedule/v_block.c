/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * v_block.c: repeats and squeezes a building block. */
#include "schedule/v_block.h"

#include "base/memory.h"
#include "schedule/emit.h"

#include <string.h>

typedef struct dp__v_rank {
    int32_t start[DP__V_PARTS];
    int32_t next[DP__V_PARTS]; /* micro-batch that a part runs next; also how many it has run */
    int32_t next_w[2];
    int32_t held; /* micro-batches of chunks from F until W */
    int64_t count;
} dp__v_rank_t;

typedef struct dp__squeeze {
    dp_schedule_t *schedule;
    int32_t ranks, microbatches, parts; /* parts: 2 in a forward-only schedule */
    int32_t limit;                      /* most held on a rank */
    dp__v_rank_t *rank;
    /* row of [2 * microbatches] per rank: chunks whose W is deferred, oldest first */
    uint8_t *chunk_due;
    int32_t *due_tail; /* [ranks] */
} dp__squeeze_t;

/* The part that a rank's order has next; -1: none is left. */
static int next_part(const dp__squeeze_t *q, const dp__v_rank_t *rank)
{
    int best = -1;
    int64_t best_time = 0;

    for (int part = 0; part < q->parts; part++) {
        int64_t time = rank->start[part] + (int64_t)DP__V_PERIOD * rank->next[part];

        if (rank->next[part] < q->microbatches && (best < 0 || time < best_time)) {
            best = part;
            best_time = time;
        }
    }
    return best;
}

/* Micro-batches that the rank before on the path has finished in that part, by the last round. */
static int32_t count_inputs(const dp__squeeze_t *q, int32_t (*before)[DP__V_PARTS], int32_t r, int part)
{
    switch (part) {
    case DP__V_F0:
        return r > 0 ? before[r - 1][DP__V_F0] : q->microbatches;
    case DP__V_F1:
        return r < q->ranks - 1 ? before[r + 1][DP__V_F1] : before[r][DP__V_F0];
    case DP__V_I1:
        return r > 0 ? before[r - 1][DP__V_I1] : before[r][DP__V_F1];
    default:
        return r < q->ranks - 1 ? before[r + 1][DP__V_I0] : before[r][DP__V_I1];
    }
}

static void put_slot_operation(dp__squeeze_t *q, int32_t r, dp_op_kind_t kind, int chunk, int32_t microbatch)
{
    q->schedule->ops[q->schedule->first[r] + q->rank[r].count++] =
        (dp_op_t){(uint8_t)kind, (int16_t)chunk, -1, microbatch, -1};
}

static bool run_weight(dp__squeeze_t *q, int32_t r)
{
    dp__v_rank_t *rank = &q->rank[r];
    int32_t done = rank->next_w[0] + rank->next_w[1];
    int chunk;

    if (done == q->due_tail[r])
        return false;
    chunk = q->chunk_due[2 * (size_t)q->microbatches * (size_t)r + (size_t)done];
    put_slot_operation(q, r, DP_OP_W, chunk, rank->next_w[chunk]++);
    rank->held--;
    return true;
}

static void run_part(dp__squeeze_t *q, int32_t r, int part)
{
    dp__v_rank_t *rank = &q->rank[r];
    int chunk = part == DP__V_F1 || part == DP__V_I1;

    put_slot_operation(q, r, part <= DP__V_F1 ? DP_OP_F : DP_OP_I, chunk, rank->next[part]++);
    if (part <= DP__V_F1)
        rank->held++;
    else
        q->chunk_due[2 * (size_t)q->microbatches * (size_t)r + (size_t)q->due_tail[r]++] = (uint8_t)chunk;
}

/* One unit of time on one rank; false: it had nothing to do. */
static bool run_rank_slot(dp__squeeze_t *q, int32_t (*before)[DP__V_PARTS], int32_t r)
{
    dp__v_rank_t *rank = &q->rank[r];
    int part = next_part(q, rank);
    bool room = part < 0 || part > DP__V_F1 || rank->held < q->limit;

    if (part < 0 || !room || rank->next[part] >= count_inputs(q, before, r, part))
        return run_weight(q, r);
    run_part(q, r, part);
    return true;
}

static void squeeze_slot(dp__squeeze_t *q, int32_t (*before)[DP__V_PARTS])
{
    for (bool busy = true; busy;) {
        busy = false;
        for (int32_t r = 0; r < q->ranks; r++)
            memcpy(before[r], q->rank[r].next, sizeof(before[r]));
        for (int32_t r = 0; r < q->ranks; r++)
            busy |= run_rank_slot(q, before, r);
    }
}

/* Most that a rank holds when it repeats the block for ever, with the W's in the open slots: looked
 * at over the slots of one rank until its first micro-batch is long over. */
static int32_t block_memory(const int32_t start[DP__V_PARTS])
{
    int32_t held = 0, most = 0, due = 0;

    for (int32_t t = 0; t < start[DP__V_I0] + 4 * DP__V_PERIOD; t++) {
        bool open = true;

        for (int part = 0; part < DP__V_PARTS; part++) {
            if (t < start[part] || (t - start[part]) % DP__V_PERIOD != 0)
                continue;
            open = false;
            held += part <= DP__V_F1;
            due += part > DP__V_F1;
        }
        most = held > most ? held : most;
        if (open && due > 0) {
            due--;
            held--;
        }
    }
    return most;
}

static dp_status_t allocate_squeeze(dp__squeeze_t *q, int32_t (**before)[DP__V_PARTS])
{
    size_t ranks = (size_t)q->ranks;

    if (!dp__arrays(DP__ARRAY(q->rank, ranks), DP__ARRAY(q->chunk_due, ranks * 2 * (size_t)q->microbatches),
                    DP__ARRAY(q->due_tail, ranks), DP__ARRAY(*before, ranks)))
        return dp_fail(DP_ERR_NOMEM, "schedule: no memory to squeeze %d ranks", q->ranks);
    return DP_OK;
}

static dp_status_t create_schedule(dp__squeeze_t *q, const char *method, bool forward_only)
{
    int64_t *nops = dp__calloc((size_t)q->ranks, sizeof(*nops));
    dp_status_t status;

    if (nops == NULL)
        return dp_fail(DP_ERR_NOMEM, "%s: no memory for %d ranks", method, q->ranks);
    for (int32_t r = 0; r < q->ranks; r++)
        nops[r] = (int64_t)q->microbatches * (forward_only ? 2 : DP__V_PERIOD);
    status = dp_schedule_create(method, DP_PLACE_V, q->ranks, q->microbatches, 2, nops, &q->schedule);
    if (status >= 0)
        q->schedule->forward_only = forward_only;
    dp__free(nops);
    return status;
}

dp_status_t dp__v_block_schedule(const char *method, const dp_schedule_request_t *request, dp__v_block_fn block,
                                 dp_schedule_t **schedule_out)
{
    dp__squeeze_t q = {0};
    int32_t(*before)[DP__V_PARTS] = NULL;
    dp_schedule_request_t r;
    dp_status_t status = dp__request_check_fixed(method, request, 2, &r);

    if (status < 0)
        return status;
    q.ranks = r.ranks;
    q.microbatches = r.microbatches;
    q.parts = r.forward_only ? DP__V_F1 + 1 : DP__V_PARTS;
    status = create_schedule(&q, method, r.forward_only != 0);
    if (status >= 0)
        status = allocate_squeeze(&q, &before);
    if (status >= 0) {
        for (int32_t k = 0; k < q.ranks; k++) {
            int32_t memory;

            block(q.ranks, k, q.rank[k].start);
            memory = r.forward_only ? INT32_MAX : block_memory(q.rank[k].start);
            q.limit = memory > q.limit ? memory : q.limit;
        }
        squeeze_slot(&q, before);
        *schedule_out = q.schedule;
    } else {
        dp_schedule_free(q.schedule);
    }
    dp__free(q.rank);
    return status;
}
