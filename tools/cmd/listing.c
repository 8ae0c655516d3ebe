/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * listing.c: schedules as text of several kinds. What fprintf could not write, output_close finds
 * out. */
#include "listing.h"

#include <stdbool.h>

static void put_half(FILE *to, const dp_schedule_t *schedule, const char *kind, int chunk, int microbatch)
{
    if (schedule->chunks > 1)
        fprintf(to, "%s%d.%d", kind, chunk, microbatch);
    else
        fprintf(to, "%s%d", kind, microbatch);
}

static void put_braid(FILE *to, const dp_schedule_t *schedule, const dp_braid_t *braid)
{
    for (int32_t i = 0; i < braid->npasses; i++) {
        fputc(i == 0 ? '(' : '|', to);
        put_half(to, schedule, dp_op_kind_name(braid->passes[i].kind), braid->passes[i].chunk,
                 braid->passes[i].microbatch);
    }
    fputc(')', to);
}

static void put_op(FILE *to, const dp_schedule_t *schedule, const dp_op_t *op)
{
    fputc(' ', to);
    if (op->kind == DP_OP_BRAID) {
        put_braid(to, schedule, &schedule->braids[op->microbatch]);
        return;
    }
    if (op->kind != DP_OP_FB) {
        put_half(to, schedule, dp_op_kind_name(op->kind), op->chunk, op->microbatch);
        return;
    }
    fputc('(', to);
    put_half(to, schedule, "F", op->chunk, op->microbatch);
    fputc('|', to);
    put_half(to, schedule, "B", op->chunk2, op->microbatch2);
    fputc(')', to);
}

static const char *chunk_word(dp_placement_t placement)
{
    switch (placement) {
    case DP_PLACE_BIDIRECTIONAL:
        return "direction";
    case DP_PLACE_V:
        return "leg of the V";
    default:
        return "model chunk";
    }
}

dp_status_t listing_text(const dp_schedule_t *schedule, int32_t rank, output_t *output)
{
    FILE *to = output->file;
    char sizes[64];

    fprintf(to, "%s: %s, placement %s%s\n", schedule->method,
            output_sizes(schedule->ranks, schedule->microbatches, sizes, sizeof(sizes)),
            dp_placement_name(schedule->placement), schedule->forward_only ? ", forward only" : "");
    if (schedule->chunks > 1)
        fprintf(to, "F0.3: forward of %s 0, micro-batch 3\n", chunk_word(schedule->placement));
    for (int32_t r = 0; r < schedule->ranks; r++) {
        if (rank >= 0 && r != rank)
            continue;
        fprintf(to, "rank %d:", r);
        for (int64_t i = schedule->first[r]; i < schedule->first[r + 1]; i++)
            put_op(to, schedule, &schedule->ops[i]);
        fputc('\n', to);
    }
    return DP_OK;
}

/* ["BRAID",[["F",0,8],["B",1,3]],"canonical"] */
static void put_json_braid(FILE *to, const dp_braid_t *braid)
{
    fputs("[\"BRAID\",[", to);
    for (int32_t i = 0; i < braid->npasses; i++)
        fprintf(to, "%s[\"%s\",%d,%d]", i > 0 ? "," : "", dp_op_kind_name(braid->passes[i].kind),
                braid->passes[i].chunk, braid->passes[i].microbatch);
    fprintf(to, "],\"%s\"]", braid->order);
}

static void put_json_op(FILE *to, const dp_schedule_t *schedule, const dp_op_t *op)
{
    if (op->kind == DP_OP_BRAID) {
        put_json_braid(to, &schedule->braids[op->microbatch]);
        return;
    }
    fprintf(to, "[\"%s\",%d,%d", dp_op_kind_name(op->kind), op->chunk, op->microbatch);
    if (op->kind == DP_OP_FB)
        fprintf(to, ",%d,%d", op->chunk2, op->microbatch2);
    fputc(']', to);
}

dp_status_t listing_json(const dp_schedule_t *schedule, int32_t rank, output_t *output)
{
    FILE *to = output->file;
    const char *between = "";

    fputs("{\"schema\":1,\"method\":", to);
    output_json_string(to, schedule->method);
    fprintf(to,
            ",\"ranks\":%d,\"microbatches\":%d,\"chunks\":%d,\"placement\":\"%s\",\"forward_only\":%s,"
            "\"order\":[",
            schedule->ranks, schedule->microbatches, schedule->chunks, dp_placement_name(schedule->placement),
            schedule->forward_only ? "true" : "false");
    for (int32_t r = 0; r < schedule->ranks; r++) {
        if (rank >= 0 && r != rank)
            continue;
        fprintf(to, "%s\n{\"rank\":%d,\"ops\":[", between, r);
        between = ",";
        for (int64_t i = schedule->first[r]; i < schedule->first[r + 1]; i++) {
            if (i > schedule->first[r])
                fputc(',', to);
            put_json_op(to, schedule, &schedule->ops[i]);
        }
        fputs("]}", to);
    }
    fputs("\n]}\n", to);
    return DP_OK;
}

dp_status_t listing_csv(const dp_schedule_t *schedule, int32_t rank, output_t *output)
{
    return dp_schedule_write_csv(schedule, rank, output_write, output);
}

/* ---- transfers ---- */

static void put_operation(FILE *to, int32_t rank, int64_t seq, const char *kind, const dp_instr_t *instr, int32_t peer)
{
    fprintf(to, "%d\t%lld\t%s\t%d\t%d\t%d\t%d\t%d\t-1\n", rank, (long long)seq, kind, instr->chunk, instr->microbatch,
            instr->chunk2, instr->microbatch2, peer);
}

static bool is_sent(const dp_instr_t *instr)
{
    return instr->kind == DP_INSTR_SEND || instr->kind == DP_INSTR_RECV;
}

/* Whether the bundle of transfer i ends with it. */
static bool ends_bundle(const dp_program_t *program, int32_t rank, int64_t i)
{
    for (int64_t next = i + 1; next < program->first[rank + 1]; next++)
        if (is_sent(&program->instrs[next]))
            return program->instrs[next].bundle != program->instrs[i].bundle;
    return true;
}

static void put_rank_list(FILE *to, const dp_program_t *program, int32_t rank)
{
    static const char *const names[2][2] = {{"SF", "SB"}, {"RF", "RB"}};
    int64_t seq = 0;
    int32_t members = 0;

    for (int64_t i = program->first[rank]; i < program->first[rank + 1]; i++) {
        const dp_instr_t *instr = &program->instrs[i];

        if (instr->kind == DP_INSTR_COMPUTE)
            put_operation(to, rank, seq++, dp_op_kind_name(instr->op), instr, -1);
        if (!is_sent(instr))
            continue;
        put_operation(to, rank, seq++, names[instr->kind == DP_INSTR_RECV][instr->op != DP_OP_F], instr, instr->peer);
        members++;
        if (ends_bundle(program, rank, i)) {
            fprintf(to, "%d\t%lld\tC\t-1\t-1\t-1\t-1\t-1\t%d\n", rank, (long long)seq++, members);
            members = 0;
        }
    }
}

dp_status_t listing_transfers(const dp_program_t *program, int32_t rank, output_t *output)
{
    const dp_schedule_t *schedule = program->schedule;

    fprintf(output->file, "# method=%s ranks=%d microbatches=%d chunks=%d placement=%s%s\n", schedule->method,
            schedule->ranks, schedule->microbatches, schedule->chunks, dp_placement_name(schedule->placement),
            schedule->forward_only ? " forward_only=1" : "");
    fputs("#rank\tseq\top\tdir\tmb\tdir2\tmb2\tpeer\tn\n", output->file);
    for (int32_t r = 0; r < schedule->ranks; r++)
        if (rank < 0 || r == rank)
            put_rank_list(output->file, program, r);
    return DP_OK;
}
