/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * tsv.c: schedules as tab-separated text, one operation a line. */
#include <dualpipe/schedule.h>

#include "base/memory.h"
#include "base/range.h"
#include "schedule/out.h"
#include "schedule/text.h"

#include <string.h>

/* ---- writing ---- */

/* A braid has its passes for an operation, "F0.8+B1.3", and its order behind the other columns. */
static void write_braid(const dp_braid_t *braid, dp__out_t *out)
{
    for (int32_t i = 0; i < braid->npasses; i++)
        dp__out_put(out, "%s%s%d.%d", i > 0 ? "+" : "", dp_op_kind_name(braid->passes[i].kind), braid->passes[i].chunk,
                    braid->passes[i].microbatch);
    dp__out_put(out, "\t-1\t-1\t-1\t-1\t-1\t-1\t");
    dp__out_bytes(out, braid->order, strlen(braid->order));
    dp__out_put(out, "\n");
}

static void write_rank(const dp_schedule_t *schedule, int32_t rank, dp__out_t *out)
{
    for (int64_t i = schedule->first[rank]; i < schedule->first[rank + 1] && out->status >= 0; i++) {
        const dp_op_t *op = &schedule->ops[i];

        dp__out_put(out, "%d\t%lld\t", rank, (long long)(i - schedule->first[rank]));
        if (op->kind == DP_OP_BRAID)
            write_braid(&schedule->braids[op->microbatch], out);
        else
            dp__out_put(out, "%s\t%d\t%d\t%d\t%d\t-1\t-1\n", dp_op_kind_name(op->kind), op->chunk, op->microbatch,
                        op->chunk2, op->microbatch2);
    }
}

dp_status_t dp_schedule_write_tsv(const dp_schedule_t *schedule, int32_t rank, dp_write_fn write, void *user)
{
    dp__out_t out;

    if (rank < -1 || rank >= schedule->ranks)
        return dp_fail(DP_ERR_INVALID, "schedule: rank %d; there are %d, or -1 for all", rank, schedule->ranks);
    dp__out_open(&out, write, user);
    dp__out_put(&out,
                "# method=%s ranks=%d microbatches=%d chunks=%d placement=%s%s\n"
                "#rank\tseq\top\tdir\tmb\tdir2\tmb2\tpeer\tn%s\n",
                schedule->method, schedule->ranks, schedule->microbatches, schedule->chunks,
                dp_placement_name(schedule->placement), schedule->forward_only ? " forward_only=1" : "",
                schedule->nbraids > 0 ? "\torder" : "");
    for (int32_t r = 0; r < schedule->ranks; r++)
        if (rank < 0 || r == rank)
            write_rank(schedule, r, &out);
    return dp__out_close(&out);
}

/* ---- reading ---- */

typedef struct dp__tsv_row {
    int32_t rank, seq;
    dp_op_t op;
    int32_t npasses; /* of a braid */
    dp_pass_t passes[DP_BRAID_PASSES];
    dp__slice_t order;
} dp__tsv_row_t;

typedef struct dp__tsv {
    const char *name;
    char method[32];
    int32_t ranks, microbatches, chunks, placement, forward_only; /* -1: not said */
    int32_t max_rank, max_chunk, max_mb;                          /* seen in rows */
    bool said, backwards; /* a comment line speaks of the shape; some row is no forward */
    int64_t rows;
} dp__tsv_t;

enum { COLUMNS = 9 };

static dp_status_t parse_kind(const dp__line_t *line, dp__slice_t text, int *kind)
{
    static const char *const transfers[] = {"RF", "RB", "SF", "SB", "C"};

    for (int k = DP_OP_F; k <= DP_OP_FB; k++)
        if (dp__slice_is(text, dp_op_kind_name(k))) {
            *kind = k;
            return DP_OK;
        }
    *kind = -1;
    for (size_t k = 0; k < sizeof(transfers) / sizeof(transfers[0]); k++)
        if (dp__slice_is(text, transfers[k]))
            return DP_OK;
    return dp__line_fail(line, "'%.*s' is no operation: F, B, I, W or FB", dp__slice_shown(text), text.text);
}

/* "B1.3" */
static dp_status_t parse_pass(const dp__line_t *line, dp__slice_t text, dp_pass_t *pass)
{
    dp__slice_t all = text, chunk, kind = {text.text, 1};
    int64_t value[2];
    dp_status_t status = DP_OK;

    *pass = (dp_pass_t){.kind = DP_OP_FB};
    for (int k = DP_OP_F; k <= DP_OP_W && text.bytes > 0; k++)
        if (dp__slice_is(kind, dp_op_kind_name(k)))
            pass->kind = (uint8_t)k;
    if (pass->kind == DP_OP_FB || memchr(text.text, '.', text.bytes) == NULL)
        return dp__line_fail(line, "'%.*s' is no pass of a braid: F, B, I or W, then chunk.micro-batch, as in F0.8",
                             dp__slice_shown(all), all.text);
    text.text++;
    text.bytes--;
    chunk = dp__slice_cut(&text, '.');
    status = dp__slice_number(line, chunk, "chunk", 0, DP_MAX_CHUNKS - 1, &value[0]);
    if (status >= 0)
        status = dp__slice_number(line, text, "micro-batch", 0, DP_MAX_MICROBATCHES - 1, &value[1]);
    if (status < 0)
        return status;
    pass->chunk = (int16_t)value[0];
    pass->microbatch = (int32_t)value[1];
    return DP_OK;
}

static dp_status_t parse_passes(const dp__line_t *line, dp__slice_t text, dp__tsv_row_t *row)
{
    dp_status_t status = DP_OK;

    for (row->npasses = 0; text.text != NULL && status >= 0; row->npasses++) {
        if (row->npasses == DP_BRAID_PASSES)
            return dp__line_fail(line, "a braid of more than %d passes", DP_BRAID_PASSES);
        status = parse_pass(line, dp__slice_cut(&text, '+'), &row->passes[row->npasses]);
    }
    return status;
}

/* An operation with chunk.micro-batch in its name is a braid. */
static bool is_braid(dp__slice_t text)
{
    return memchr(text.text, '.', text.bytes) != NULL || memchr(text.text, '+', text.bytes) != NULL;
}

/* What a braid has behind the nine columns: its order, or nothing for the canonical one. */
static dp_status_t check_braid_row(const dp__line_t *line, const int64_t *value, dp__slice_t rest, dp__tsv_row_t *row)
{
    static const dp__slice_t canonical = {"canonical", 9};

    for (int c = 3; c < COLUMNS; c++)
        if (value[c] != -1)
            return dp__line_fail(line, "a braid holds -1 in its columns dir to n");
    row->order = rest.text != NULL && rest.bytes > 0 ? rest : canonical;
    row->op = (dp_op_t){DP_OP_BRAID, -1, -1, -1, -1};
    return DP_OK;
}

/* One data line. *kind_out is -1 for a recorded transfer. */
static dp_status_t parse_row(const dp__line_t *line, dp__tsv_row_t *row, int *kind_out)
{
    static const char *const names[COLUMNS] = {"rank", "seq", "op", "dir", "mb", "dir2", "mb2", "peer", "n"};
    dp__slice_t rest = {line->text, line->bytes};
    int64_t value[COLUMNS] = {0};
    dp__slice_t cell;
    dp_status_t status;

    *kind_out = DP_OP_BRAID;
    row->npasses = 0;
    for (int c = 0; c < COLUMNS; c++) {
        if (rest.text == NULL)
            return dp__line_fail(line, "%d columns; %d are needed: rank seq op dir mb dir2 mb2 peer n", c, COLUMNS);
        cell = dp__slice_cut(&rest, '\t');
        if (c == 2 && is_braid(cell))
            status = parse_passes(line, cell, row);
        else if (c == 2)
            status = parse_kind(line, cell, kind_out);
        else
            status = dp__slice_number(line, cell, names[c], -1, INT32_MAX, &value[c]);
        if (status < 0)
            return status;
    }
    if (rest.text != NULL && *kind_out != DP_OP_BRAID)
        return dp__line_fail(line, "more than %d columns", COLUMNS);
    if (value[0] < 0 || value[0] >= DP_MAX_RANKS)
        return dp__line_fail(line, "rank %lld; 0 to %d are possible", (long long)value[0], DP_MAX_RANKS - 1);
    if (value[1] < 0)
        return dp__line_fail(line, "seq is negative");
    row->rank = (int32_t)value[0];
    row->seq = (int32_t)value[1];
    if (*kind_out < 0)
        return DP_OK;
    if (*kind_out == DP_OP_BRAID)
        return check_braid_row(line, value, rest, row);
    for (int c = 3; c < 7; c++) {
        int64_t limit = c % 2 == 1 ? DP_MAX_CHUNKS : DP_MAX_MICROBATCHES;
        bool used = c < 5 || *kind_out == DP_OP_FB;

        if (used ? value[c] < 0 || value[c] >= limit : value[c] != -1)
            return dp__line_fail(line, used ? "%s %lld is out of range" : "%s is %lld; only FB has it, others hold -1",
                                 names[c], (long long)value[c]);
    }
    row->op = (dp_op_t){(uint8_t)*kind_out, (int16_t)value[3], (int16_t)value[5], (int32_t)value[4], (int32_t)value[6]};
    return DP_OK;
}

/* A word key=value of the comment line. Unknown keys are a later version's business. */
static dp_status_t parse_setting(const dp__line_t *line, dp__slice_t key, dp__slice_t value, dp__tsv_t *t)
{
    struct {
        const char *key;
        int32_t *target;
        int64_t low, high;
    } numbers[] = {
        {"ranks", &t->ranks, 1, DP_MAX_RANKS},
        {"microbatches", &t->microbatches, 1, DP_MAX_MICROBATCHES},
        {"chunks", &t->chunks, 1, DP_MAX_CHUNKS},
        {"forward_only", &t->forward_only, 0, 1},
    };
    int64_t number;
    dp_status_t status;

    if (dp__slice_is(key, "method")) {
        if (value.bytes == 0 || value.bytes >= sizeof(t->method))
            return dp__line_fail(line, "method name of %zu bytes; 1 to %zu are possible", value.bytes,
                                 sizeof(t->method) - 1);
        for (size_t i = 0; i < value.bytes; i++)
            if (value.text[i] <= ' ' || value.text[i] > '~')
                return dp__line_fail(line, "method name with unprintable bytes");
        memcpy(t->method, value.text, value.bytes);
        t->method[value.bytes] = '\0';
        return DP_OK;
    }
    if (dp__slice_is(key, "placement")) {
        for (int p = DP_PLACE_LINE; p <= DP_PLACE_BIDIRECTIONAL; p++)
            if (dp__slice_is(value, dp_placement_name((dp_placement_t)p))) {
                t->placement = p;
                return DP_OK;
            }
        return dp__line_fail(line, "placement '%.*s'; there are line, loop, v and bidirectional",
                             dp__slice_shown(value), value.text);
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (dp__slice_is(key, numbers[i].key)) {
            status = dp__slice_number(line, value, numbers[i].key, numbers[i].low, numbers[i].high, &number);
            if (status >= 0)
                *numbers[i].target = (int32_t)number;
            return status;
        }
    return DP_OK;
}

static bool names_method(dp__slice_t words)
{
    while (words.text != NULL) {
        dp__slice_t word = dp__slice_cut(&words, ' ');

        if (dp__slice_is(dp__slice_cut(&word, '='), "method") && word.text != NULL)
            return true;
    }
    return false;
}

/* Only a comment line with method= among its words speaks of the shape. */
static dp_status_t parse_comment(const dp__line_t *line, dp__tsv_t *t)
{
    dp__slice_t rest = {line->text + 1, line->bytes - 1};
    dp__slice_t word, key;
    dp_status_t status = DP_OK;

    if (!names_method(rest))
        return DP_OK;
    t->said = true;
    while (rest.text != NULL && status >= 0) {
        word = dp__slice_cut(&rest, ' ');
        key = dp__slice_cut(&word, '=');
        if (word.text != NULL)
            status = parse_setting(line, key, word, t);
    }
    return status;
}

static void note_row(dp__tsv_t *t, const dp__tsv_row_t *row, int kind)
{
    t->rows++;
    t->max_rank = dp__max_int32(t->max_rank, row->rank);
    t->max_chunk = dp__max_int32(t->max_chunk, dp__max_int32(row->op.chunk, row->op.chunk2));
    t->max_mb = dp__max_int32(t->max_mb, dp__max_int32(row->op.microbatch, row->op.microbatch2));
    t->backwards |= kind != DP_OP_F && kind != DP_OP_BRAID;
    for (int32_t i = 0; i < row->npasses; i++) {
        t->max_chunk = dp__max_int32(t->max_chunk, row->passes[i].chunk);
        t->max_mb = dp__max_int32(t->max_mb, row->passes[i].microbatch);
        t->backwards |= row->passes[i].kind != DP_OP_F;
    }
}

/* Calls `each` for every computing row; also reads the comment lines when `each` is NULL. */
static dp_status_t scan_lines(dp__tsv_t *t, const char *text, size_t bytes,
                              dp_status_t (*each)(void *user, const dp__line_t *line, const dp__tsv_row_t *row),
                              void *user)
{
    dp__lines_t lines = {.name = t->name, .rest = {text, bytes}};
    dp__tsv_row_t row;
    dp__line_t line;
    dp_status_t status = DP_OK;
    int kind = -1;

    while (status >= 0 && dp__lines_next(&lines, &line)) {
        if (line.bytes == 0)
            continue;
        if (line.text[0] == '#') {
            if (each == NULL)
                status = parse_comment(&line, t);
            continue;
        }
        status = parse_row(&line, &row, &kind);
        if (status < 0 || kind < 0)
            continue;
        if (each == NULL)
            note_row(t, &row, kind);
        else
            status = each(user, &line, &row);
    }
    return status;
}

typedef struct dp__fill {
    dp_schedule_t *schedule;
    int64_t *count; /* [ranks] */
    int32_t *seq;   /* [ranks] of the row before */
} dp__fill_t;

static dp_status_t count_row(void *user, const dp__line_t *line, const dp__tsv_row_t *row)
{
    dp__fill_t *fill = user;

    (void)line;
    fill->count[row->rank]++;
    return DP_OK;
}

static dp_status_t fill_braid(dp_schedule_t *s, const dp__line_t *line, const dp__tsv_row_t *row, int32_t *number_out)
{
    char *order = dp__calloc(1, row->order.bytes + 1);
    dp_status_t status;

    for (int32_t i = 0; i < row->npasses; i++)
        if (row->passes[i].microbatch >= dp_schedule_path_microbatches(s, 0)) {
            dp__free(order);
            return dp__line_fail(line, "micro-batch %d; a path has %d", row->passes[i].microbatch,
                                 dp_schedule_path_microbatches(s, 0));
        }
    if (order == NULL)
        return dp_fail(DP_ERR_NOMEM, "schedule: no memory for the order of a braid");
    memcpy(order, row->order.text, row->order.bytes);
    if (strlen(order) != row->order.bytes) {
        dp__free(order);
        return dp__line_fail(line, "the order of a braid has a byte 0");
    }
    status = dp_schedule_add_braid(s, &(dp_braid_t){row->npasses, row->passes, order}, number_out);
    dp__free(order);
    return status == DP_ERR_INVALID ? dp__line_fail(line, "%s", dp_last_error()) : status;
}

static dp_status_t fill_row(void *user, const dp__line_t *line, const dp__tsv_row_t *row)
{
    dp__fill_t *fill = user;
    dp_schedule_t *s = fill->schedule;
    int64_t at = fill->count[row->rank];
    int32_t microbatches = dp_schedule_path_microbatches(s, 0);

    if (row->op.microbatch >= microbatches || row->op.microbatch2 >= microbatches)
        return dp__line_fail(line, "micro-batch %d; a path has %d",
                             dp__max_int32(row->op.microbatch, row->op.microbatch2), microbatches);
    if (at > 0 && row->seq <= fill->seq[row->rank])
        return dp__line_fail(line, "seq %d of rank %d comes after seq %d; it must rise", row->seq, row->rank,
                             fill->seq[row->rank]);
    fill->seq[row->rank] = row->seq;
    s->ops[s->first[row->rank] + at] = row->op;
    fill->count[row->rank]++;
    return row->npasses > 0 ? fill_braid(s, line, row, &s->ops[s->first[row->rank] + at].microbatch) : DP_OK;
}

/* Shapes that the rows may have, tried until the data dependencies have no cycle. */
static dp_status_t infer_placement(const dp__tsv_t *t, dp_schedule_t *s)
{
    static const dp_placement_t two[] = {DP_PLACE_V, DP_PLACE_BIDIRECTIONAL, DP_PLACE_LOOP};
    dp_status_t status;

    for (size_t i = 0; i < sizeof(two) / sizeof(two[0]); i++) {
        s->placement = two[i];
        s->microbatches = (t->max_mb + 1) * dp_schedule_paths(s);
        if (s->microbatches > DP_MAX_MICROBATCHES || (two[i] == DP_PLACE_BIDIRECTIONAL && s->ranks % 2 != 0))
            continue;
        status = dp_schedule_verify(s);
        if (status != DP_ERR_REJECTED)
            return status;
    }
    return dp_fail(DP_ERR_INVALID,
                   "%s: no placement fits the rows; a first line like '# method=custom ranks=%d "
                   "microbatches=M chunks=2 placement=v' says it",
                   t->name, s->ranks);
}

static dp_status_t check_said(const dp__tsv_t *t)
{
    if (t->rows == 0)
        return dp_fail(DP_ERR_INVALID, "%s: no operations", t->name);
    if (t->ranks >= 0 && t->max_rank >= t->ranks)
        return dp_fail(DP_ERR_INVALID, "%s: has rank %d, but says ranks=%d", t->name, t->max_rank, t->ranks);
    if (t->chunks >= 0 && t->max_chunk >= t->chunks)
        return dp_fail(DP_ERR_INVALID, "%s: has chunk %d, but says chunks=%d", t->name, t->max_chunk, t->chunks);
    if (t->forward_only > 0 && t->backwards)
        return dp_fail(DP_ERR_INVALID, "%s: has backwards, but says forward_only=1", t->name);
    return DP_OK;
}

/* What the comment line left open. Placement -1 stays for two chunks: infer_placement decides. */
static void complete_shape(dp__tsv_t *t)
{
    if (t->ranks < 0)
        t->ranks = t->max_rank + 1;
    if (t->chunks < 0)
        t->chunks = t->max_chunk + 1;
    if (t->placement < 0 && t->chunks != 2)
        t->placement = t->chunks == 1 ? DP_PLACE_LINE : DP_PLACE_LOOP;
    if (t->microbatches < 0)
        t->microbatches = (t->max_mb + 1) * (t->placement == DP_PLACE_BIDIRECTIONAL ? 2 : 1);
    if (t->forward_only < 0)
        t->forward_only = !t->backwards && !t->said;
}

static dp_status_t build_from_text(dp__tsv_t *t, const char *text, size_t bytes, dp__fill_t *fill)
{
    dp_placement_t placement = t->placement >= 0 ? (dp_placement_t)t->placement : DP_PLACE_V;
    size_t ranks = (size_t)t->ranks;
    dp_status_t status;

    fill->count = dp__calloc(ranks, sizeof(*fill->count));
    fill->seq = dp__calloc(ranks, sizeof(*fill->seq));
    if (fill->count == NULL || fill->seq == NULL)
        return dp_fail(DP_ERR_NOMEM, "%s: no memory for %d ranks", t->name, t->ranks);
    status = scan_lines(t, text, bytes, count_row, fill);
    if (status >= 0)
        status = dp_schedule_create(t->method, placement, t->ranks, t->microbatches, t->chunks, fill->count,
                                    &fill->schedule);
    if (status < 0)
        return status;
    fill->schedule->forward_only = t->forward_only;
    memset(fill->count, 0, ranks * sizeof(*fill->count));
    status = scan_lines(t, text, bytes, fill_row, fill);
    return status < 0 || t->placement >= 0 ? status : infer_placement(t, fill->schedule);
}

dp_status_t dp_schedule_read_tsv(const char *name, const char *text, size_t bytes, dp_schedule_t **schedule_out)
{
    dp__tsv_t t = {.name = name,
                   .method = "custom",
                   .ranks = -1,
                   .microbatches = -1,
                   .chunks = -1,
                   .placement = -1,
                   .forward_only = -1,
                   .max_rank = -1,
                   .max_chunk = -1,
                   .max_mb = -1};
    dp__fill_t fill = {0};
    dp_status_t status;

    *schedule_out = NULL;
    status = scan_lines(&t, text, bytes, NULL, NULL);
    if (status >= 0)
        status = check_said(&t);
    if (status >= 0) {
        complete_shape(&t);
        status = build_from_text(&t, text, bytes, &fill);
    }
    dp__free(fill.count);
    dp__free(fill.seq);
    if (status < 0)
        dp_schedule_free(fill.schedule);
    else
        *schedule_out = fill.schedule;
    return status;
}
