/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * csv.c: schedules in the format of torch.distributed.pipelining.
 *
 * One row per rank, one cell per operation: stage, letter, micro-batch ("2F0", "3I1", "3W1",
 * "2B0"), overlapped pairs as "(0F8;7B0)OVERLAP_F_B". Empty cells are idle steps of that format;
 * cells for transfers and parameters ("1SEND_F0", "0UNSHARD") are no operations of ours;
 * transfers.c looks at those. Source: pytorch, torch/distributed/pipelining/schedules.py, class
 * _Action. */
#include <dualpipe/schedule.h>

#include "base/memory.h"
#include "base/range.h"
#include "schedule/cell.h"
#include "schedule/out.h"

#include <stdio.h>
#include <string.h>

/* ---- writing ---- */

/* What this format can say of a braid; false: it cannot. */
static bool as_pair(const dp_braid_t *braid, dp_op_t *op)
{
    const dp_pass_t *p = braid->passes;
    int f = braid->npasses == 2 && p[0].kind != DP_OP_F;

    if (strcmp(braid->order, "canonical") != 0 || braid->npasses > 2)
        return false;
    *op = (dp_op_t){p[0].kind, p[0].chunk, -1, p[0].microbatch, -1};
    if (braid->npasses == 2)
        *op = (dp_op_t){DP_OP_FB, p[f].chunk, p[1 - f].chunk, p[f].microbatch, p[1 - f].microbatch};
    return braid->npasses == 1 || (p[f].kind == DP_OP_F && p[1 - f].kind == DP_OP_B);
}

static dp_status_t write_row(const dp_schedule_t *s, int32_t rank, dp__out_t *out)
{
    char cell[96];

    for (int64_t i = s->first[rank]; i < s->first[rank + 1]; i++) {
        dp_op_t op = s->ops[i];

        if (op.kind == DP_OP_BRAID && !as_pair(&s->braids[op.microbatch], &op))
            return dp_fail(
                DP_ERR_INVALID,
                "schedule: row %d, operation %d is a braid of %d passes, order %.40s: this format joins one F "
                "and one B in the canonical order alone; TSV has all",
                rank + 1, (int)(i - s->first[rank]) + 1, s->braids[op.microbatch].npasses,
                s->braids[op.microbatch].order);
        (void)dp__cell_print(cell, sizeof(cell), s, rank, &op);
        dp__out_put(out, "%s%s", i > s->first[rank] ? "," : "", cell);
    }
    /* a row of nothing but an end of line would be no rank */
    dp__out_put(out, s->first[rank] < s->first[rank + 1] ? "\n" : ",\n");
    return out->status;
}

dp_status_t dp_schedule_write_csv(const dp_schedule_t *schedule, int32_t rank, dp_write_fn write, void *user)
{
    dp__out_t out;
    dp_status_t status = DP_OK;

    if (rank < -1 || rank >= schedule->ranks)
        return dp_fail(DP_ERR_INVALID, "schedule: rank %d; there are %d, or -1 for all", rank, schedule->ranks);
    dp__out_open(&out, write, user);
    for (int32_t r = 0; r < schedule->ranks && status >= 0; r++)
        if (rank < 0 || r == rank)
            status = write_row(schedule, r, &out);
    return status < 0 ? status : dp__out_close(&out);
}

/* ---- reading ---- */

typedef struct dp__csv {
    const char *name;
    const char *text;
    size_t bytes;
    int32_t rows, max_stage, max_mb;
    int32_t max_stage_of_first; /* in the first row */
    bool backwards;
    dp_schedule_t *schedule;
    int64_t *count; /* [rows] */
} dp__csv_t;

/* A cell as a line, so that messages name both. */
static dp_status_t cell_fail(const dp__line_t *row, int64_t cell, dp__slice_t text, const char *why)
{
    return dp__line_fail(row, "cell %lld '%.*s': %s", (long long)cell, dp__slice_shown(text), text.text, why);
}

typedef dp_status_t (*dp__action_fn)(dp__csv_t *c, const dp__line_t *row, int64_t cell, dp__slice_t text,
                                     const dp__cell_t *a);

static dp_status_t scan_row(dp__csv_t *c, const dp__line_t *row, dp__action_fn each)
{
    dp__slice_t rest = {row->text, row->bytes};
    dp_status_t status = DP_OK;

    for (int64_t cell = 1; rest.text != NULL && status >= 0; cell++) {
        dp__slice_t text = dp__cell_next(&rest);
        dp__cell_t a;
        const char *why = dp__cell_parse(text, &a);

        if (why != NULL)
            return cell_fail(row, cell, text, why);
        if (a.kind >= 0 && a.kind <= DP_OP_FB)
            status = each(c, row, cell, text, &a);
    }
    return status;
}

/* Calls `each` for every operation. Empty lines at the end of the file are no ranks. */
static dp_status_t scan_rows(dp__csv_t *c, dp__action_fn each)
{
    dp__lines_t lines = {.name = c->name, .rest = {c->text, c->bytes}};
    dp_status_t status = DP_OK;
    dp__line_t row;

    while (status >= 0 && dp__lines_next(&lines, &row)) {
        if (row.bytes == 0)
            continue;
        if (row.number > DP_MAX_RANKS)
            return dp__line_fail(&row, "more than %d ranks", DP_MAX_RANKS);
        c->rows = (int32_t)row.number;
        status = scan_row(c, &row, each);
    }
    return status;
}

static dp_status_t survey_action(dp__csv_t *c, const dp__line_t *row, int64_t cell, dp__slice_t text,
                                 const dp__cell_t *a)
{
    int32_t stage = dp__max_int32(a->stage, a->stage2);

    (void)cell;
    (void)text;
    c->max_stage = dp__max_int32(c->max_stage, stage);
    c->max_mb = dp__max_int32(c->max_mb, dp__max_int32(a->microbatch, a->microbatch2));
    c->backwards |= a->kind != DP_OP_F;
    if (row->number == 1)
        c->max_stage_of_first = dp__max_int32(c->max_stage_of_first, stage);
    return DP_OK;
}

/* Stages and ranks tell the placement: the last stage of a V lies on the first rank, and two
 * directions put every stage on two ranks. */
static dp_status_t find_shape(const dp__csv_t *c, dp_placement_t *placement, int32_t *chunks)
{
    int32_t stages = c->max_stage + 1;
    bool last_on_first = c->max_stage_of_first == c->max_stage;

    if (stages < c->rows || stages % c->rows != 0)
        return dp_fail(DP_ERR_INVALID, "%s: %d stages on %d ranks; every rank needs the same number", c->name, stages,
                       c->rows);
    *chunks = stages / c->rows;
    *placement = DP_PLACE_LOOP;
    if (*chunks == 1) {
        *placement = last_on_first && c->rows > 1 ? DP_PLACE_BIDIRECTIONAL : DP_PLACE_LINE;
        *chunks = *placement == DP_PLACE_LINE ? 1 : 2;
    } else if (*chunks == 2 && last_on_first) {
        *placement = DP_PLACE_V;
    }
    return DP_OK;
}

static dp_status_t count_operation(dp__csv_t *c, const dp__line_t *row, int64_t cell, dp__slice_t text,
                                   const dp__cell_t *a)
{
    (void)cell;
    (void)text;
    (void)a;
    c->count[row->number - 1]++;
    return DP_OK;
}

static dp_status_t fill_operation(dp__csv_t *c, const dp__line_t *row, int64_t cell, dp__slice_t text,
                                  const dp__cell_t *a)
{
    dp_schedule_t *s = c->schedule;
    int32_t rank = (int32_t)row->number - 1, half = s->microbatches / 2;
    dp_op_t op = {(uint8_t)a->kind, dp__cell_chunk(s, rank, a->stage, a->microbatch), -1, a->microbatch, -1};

    if (a->kind == DP_OP_FB) {
        op.chunk2 = dp__cell_chunk(s, rank, a->stage2, a->microbatch2);
        op.microbatch2 = a->microbatch2;
    }
    if (op.chunk < 0 || (a->kind == DP_OP_FB && op.chunk2 < 0)) {
        char why[96];

        snprintf(why, sizeof(why), "this stage is not on rank %d of placement %s", rank,
                 dp_placement_name(s->placement));
        return cell_fail(row, cell, text, why);
    }
    if (s->placement == DP_PLACE_BIDIRECTIONAL && op.chunk == 1)
        op.microbatch -= half;
    if (s->placement == DP_PLACE_BIDIRECTIONAL && op.chunk2 == 1)
        op.microbatch2 -= half;
    s->cells[s->first[rank] + c->count[rank]] = (int32_t)cell;
    s->ops[s->first[rank] + c->count[rank]++] = op;
    return DP_OK;
}

static dp_status_t build_schedule(dp__csv_t *c)
{
    dp_placement_t placement = DP_PLACE_LINE;
    int32_t chunks = 1;
    dp_status_t status = find_shape(c, &placement, &chunks);

    if (status < 0)
        return status;
    c->count = dp__calloc((size_t)c->rows, sizeof(*c->count));
    if (c->count == NULL)
        return dp_fail(DP_ERR_NOMEM, "%s: no memory for %d ranks", c->name, c->rows);
    status = scan_rows(c, count_operation);
    if (status >= 0)
        status = dp_schedule_create("custom", placement, c->rows, c->max_mb + 1, chunks, c->count, &c->schedule);
    if (status < 0)
        return status;
    c->schedule->forward_only = !c->backwards;
    c->schedule->cells = dp__calloc((size_t)c->schedule->first[c->rows], sizeof(*c->schedule->cells));
    if (c->schedule->cells == NULL)
        return dp_fail(DP_ERR_NOMEM, "%s: no memory for %d ranks", c->name, c->rows);
    memset(c->count, 0, (size_t)c->rows * sizeof(*c->count));
    return scan_rows(c, fill_operation);
}

dp_status_t dp_schedule_read_csv(const char *name, const char *text, size_t bytes, dp_schedule_t **schedule_out)
{
    dp__csv_t c = {.name = name, .text = text, .bytes = bytes, .max_stage = -1, .max_mb = -1, .max_stage_of_first = -1};
    dp_status_t status;

    *schedule_out = NULL;
    status = scan_rows(&c, survey_action);
    if (status >= 0 && c.max_stage < 0)
        status = dp_fail(DP_ERR_INVALID, "%s: no operations", name);
    if (status >= 0)
        status = build_schedule(&c);
    dp__free(c.count);
    if (status < 0)
        dp_schedule_free(c.schedule);
    else
        *schedule_out = c.schedule;
    return status;
}
