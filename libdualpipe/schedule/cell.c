/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cell.c: reads and writes one cell of a schedule in the format of torch.distributed.pipelining.
 * Source: pytorch, torch/distributed/pipelining/schedules.py, class _Action. */
#include "schedule/cell.h"

#include <stdio.h>

int32_t dp__cell_stage(const dp_schedule_t *schedule, int32_t rank, int32_t chunk)
{
    dp_place_t place;

    dp_schedule_place(schedule, rank, chunk, &place);
    return place.stage;
}

int16_t dp__cell_chunk(const dp_schedule_t *schedule, int32_t rank, int32_t stage, int32_t microbatch)
{
    if (schedule->placement == DP_PLACE_BIDIRECTIONAL) {
        int chunk = microbatch >= schedule->microbatches / 2;

        return dp__cell_stage(schedule, rank, chunk) == stage ? (int16_t)chunk : -1;
    }
    for (int32_t chunk = 0; chunk < schedule->chunks; chunk++)
        if (dp__cell_stage(schedule, rank, chunk) == stage)
            return (int16_t)chunk;
    return -1;
}

/* ---- writing ---- */

/* Kinds that carry a micro-batch, as the format spells them. */
static const char *const words[DP__CELL_KINDS] = {
    [DP_OP_F] = "F",
    [DP_OP_B] = "B",
    [DP_OP_I] = "I",
    [DP_OP_W] = "W",
    [DP__CELL_SEND_F] = "SEND_F",
    [DP__CELL_RECV_F] = "RECV_F",
    [DP__CELL_SEND_B] = "SEND_B",
    [DP__CELL_RECV_B] = "RECV_B",
    [DP__CELL_WAIT_SEND_F] = "WAIT_SEND_F",
    [DP__CELL_WAIT_SEND_B] = "WAIT_SEND_B",
};

int dp__cell_print_parsed(char *text, size_t bytes, const dp__cell_t *cell)
{
    if (cell->kind == DP_OP_FB)
        return snprintf(text, bytes, "(%dF%d;%dB%d)OVERLAP_F_B", cell->stage, cell->microbatch, cell->stage2,
                        cell->microbatch2);
    return snprintf(text, bytes, "%d%s%d", cell->stage, words[cell->kind], cell->microbatch);
}

/* Micro-batches of the second direction follow those of the first. */
static int32_t number_of(const dp_schedule_t *schedule, int32_t chunk, int32_t microbatch)
{
    return dp_schedule_step_microbatch(schedule, schedule->placement == DP_PLACE_BIDIRECTIONAL ? chunk : 0, microbatch);
}

int dp__cell_print(char *text, size_t bytes, const dp_schedule_t *schedule, int32_t rank, const dp_op_t *op)
{
    dp__cell_t cell = {op->kind, dp__cell_stage(schedule, rank, op->chunk),
                       number_of(schedule, op->chunk, op->microbatch), -1, -1};

    if (op->kind == DP_OP_FB) {
        cell.stage2 = dp__cell_stage(schedule, rank, op->chunk2);
        cell.microbatch2 = number_of(schedule, op->chunk2, op->microbatch2);
    }
    return dp__cell_print_parsed(text, bytes, &cell);
}

/* ---- reading ---- */

static dp__slice_t trim(dp__slice_t s)
{
    while (s.bytes > 0 && (s.text[0] == ' ' || s.text[0] == '\t')) {
        s.text++;
        s.bytes--;
    }
    while (s.bytes > 0 && (s.text[s.bytes - 1] == ' ' || s.text[s.bytes - 1] == '\t'))
        s.bytes--;
    return s;
}

/* Bytes before the separator: one that stands neither between quotes nor in a pair. */
static size_t find_separator(dp__slice_t s)
{
    bool quoted = false, pair = false;

    for (size_t i = 0; i < s.bytes; i++) {
        const char c = s.text[i];

        if (!quoted && (c == ',' || (c == ';' && !pair)))
            return i;
        quoted ^= c == '"';
        pair = (pair || c == '(') && c != ')';
    }
    return s.bytes;
}

dp__slice_t dp__cell_next(dp__slice_t *rest)
{
    const size_t bytes = find_separator(*rest);
    dp__slice_t cell = trim((dp__slice_t){rest->text, bytes});

    if (bytes == rest->bytes)
        *rest = (dp__slice_t){NULL, 0};
    else
        *rest = (dp__slice_t){rest->text + bytes + 1, rest->bytes - bytes - 1};
    if (cell.bytes >= 2 && cell.text[0] == '"' && cell.text[cell.bytes - 1] == '"')
        cell = trim((dp__slice_t){cell.text + 1, cell.bytes - 2});
    return cell;
}

/* Cuts a number off the front; -1 when there is none or it is larger than any cap. */
static int32_t cut_number(dp__slice_t *s)
{
    int64_t value = -1;

    while (s->bytes > 0 && s->text[0] >= '0' && s->text[0] <= '9') {
        value = (value < 0 ? 0 : 10 * value) + (s->text[0] - '0');
        if (value > DP_MAX_OPS)
            return -1;
        s->text++;
        s->bytes--;
    }
    return (int32_t)value;
}

/* What stands before the next digit. */
static dp__slice_t cut_word(dp__slice_t *s)
{
    dp__slice_t word = *s;

    while (s->bytes > 0 && (s->text[0] < '0' || s->text[0] > '9')) {
        s->text++;
        s->bytes--;
    }
    word.bytes -= s->bytes;
    return word;
}

/* Cells of parameters, which a step of ours has no part in. */
static bool is_of_parameters(dp__slice_t word)
{
    static const char *const others[] = {"UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD"};

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (dp__slice_is(word, others[i]))
            return true;
    return false;
}

/* "2F0", "2SEND_F0" */
static const char *parse_single(dp__slice_t s, dp__cell_t *cell)
{
    dp__slice_t word;

    cell->kind = DP__CELL_NONE;
    cell->stage = cut_number(&s);
    if (cell->stage < 0)
        return "a stage number is needed in front, as in 2F0";
    word = cut_word(&s);
    if (is_of_parameters(word))
        return NULL;
    for (int k = 0; k < DP__CELL_KINDS; k++)
        if (words[k] != NULL && dp__slice_is(word, words[k]))
            cell->kind = k;
    if (cell->kind == DP__CELL_NONE)
        return "no such operation: F, B, I, W";
    cell->microbatch = cut_number(&s);
    if (cell->microbatch < 0 || s.bytes > 0)
        return "a micro-batch number is needed behind, as in 2F0";
    if (cell->stage >= DP_MAX_RANKS * DP_MAX_CHUNKS || cell->microbatch >= DP_MAX_MICROBATCHES)
        return "stage or micro-batch out of range";
    return NULL;
}

/* "(0F8;7B0)OVERLAP_F_B", the sides in either order. */
static const char *parse_pair(dp__slice_t s, dp__cell_t *cell)
{
    dp__cell_t side[2];
    dp__slice_t inside, part;

    s.text++;
    s.bytes--;
    inside = dp__slice_cut(&s, ')');
    if (s.text == NULL)
        return "')' is missing";
    if (!dp__slice_is(trim(s), "OVERLAP_F_B"))
        return "only OVERLAP_F_B joins operations";
    for (int h = 0; h < 2; h++) {
        const char *why;

        if (inside.text == NULL)
            return "an overlapped pair has two halves";
        part = trim(dp__slice_cut(&inside, ';'));
        why = parse_single(part, &side[h]);
        if (why != NULL)
            return why;
    }
    if (inside.text != NULL)
        return "an overlapped pair has two halves";
    if (side[0].kind == DP_OP_B) {
        dp__cell_t t = side[0];

        side[0] = side[1];
        side[1] = t;
    }
    if (side[0].kind != DP_OP_F || side[1].kind != DP_OP_B)
        return "an overlapped pair is one F and one B";
    *cell = (dp__cell_t){DP_OP_FB, side[0].stage, side[0].microbatch, side[1].stage, side[1].microbatch};
    return NULL;
}

const char *dp__cell_parse(dp__slice_t text, dp__cell_t *cell)
{
    *cell = (dp__cell_t){DP__CELL_NONE, -1, -1, -1, -1};
    if (text.bytes == 0)
        return NULL;
    return text.text[0] == '(' ? parse_pair(text, cell) : parse_single(text, cell);
}
