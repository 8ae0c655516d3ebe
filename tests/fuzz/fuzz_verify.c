/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fuzz_verify.c: any program. The first bytes choose a method, its size and the slots; then every 4
 * bytes change one field of one instruction, swap two neighbours, or change a channel or a slot
 * count. */
#include "accepted.h"

static int32_t signed_byte(uint8_t byte)
{
    return (int8_t)byte;
}

static void swap_names(int32_t *in, int32_t a, int32_t b)
{
    *in = *in == a ? b : *in == b ? a : *in;
}

static void swap_lines(dp_program_t *p, int32_t rank, int32_t line)
{
    dp_instr_t *i = p->instrs + p->first[rank], t;

    if (line + 1 >= p->first[rank + 1] - p->first[rank])
        return;
    t = i[line];
    i[line] = i[line + 1];
    i[line + 1] = t;
    for (int64_t k = 0; k < p->first[rank + 1] - p->first[rank]; k++) {
        swap_names(&i[k].in, line, line + 1);
        swap_names(&i[k].in2, line, line + 1);
    }
}

static void change_instruction(dp_instr_t *i, int field, int32_t by)
{
    int32_t *fields[] = {&i->microbatch, &i->microbatch2, &i->peer, &i->channel, &i->number,
                         &i->slot,       &i->slot2,       &i->in,   &i->in2,     &i->bundle};

    if (field < 10)
        *fields[field] += by;
    else if (field == 10)
        i->kind = (uint8_t)(i->kind + by);
    else if (field == 11)
        i->op = (uint8_t)(i->op + by);
    else if (field == 12)
        i->chunk = (int16_t)(i->chunk + by);
    else
        i->chunk2 = (int16_t)(i->chunk2 + by);
}

static void change_channel(dp_channel_t *c, int field, int32_t by)
{
    int32_t *fields[] = {&c->src, &c->src_chunk, &c->dst, &c->dst_chunk, &c->messages, &c->slots};

    if (field < 6)
        *fields[field] += by;
    else
        c->op = (uint8_t)(c->op + by);
}

static void change(dp_program_t *p, const uint8_t edit[4])
{
    int32_t rank = edit[1] % p->ranks;
    int32_t lines = (int32_t)(p->first[rank + 1] - p->first[rank]);
    int32_t line = edit[2] % lines;

    switch (edit[0] % 32) {
    case 31:
        swap_lines(p, rank, line);
        return;
    case 30:
        p->activation_slots[edit[2] % (p->ranks * p->chunks)] += signed_byte(edit[3]);
        return;
    case 29:
        if (p->nchannels > 0)
            change_channel(&p->channels[edit[1] % p->nchannels], edit[2] % 7, signed_byte(edit[3]));
        return;
    default:
        change_instruction(&p->instrs[p->first[rank] + line], edit[0] % 14, signed_byte(edit[3]));
        return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    size_t count;
    const dp_method_t *methods = dp_schedule_methods(&count);
    dp_schedule_request_t request = {.struct_size = sizeof(request)};
    dp_lower_options_t options = {.struct_size = sizeof(options)};
    dp_schedule_t *s = NULL;
    dp_program_t *p = NULL;

    if (bytes < 4)
        return 0;
    request.method = methods[data[0] % count].name;
    request.ranks = 1 + data[1] % 4;
    request.microbatches = 1 + data[2] % 8;
    request.forward_only = data[3] & 1;
    request.chunks = data[3] >> 6;
    options.slots = 1 + (data[3] >> 1) % 3;
    options.transport = (data[3] >> 3) & 1 ? DP_TRANSPORT_BUNDLES : DP_TRANSPORT_CREDITS;
    if (dp_schedule_generate(&request, &s) == DP_OK) {
        FUZZ_REQUIRE(dp_program_lower(s, &options, &p) == DP_OK);
        for (size_t at = 4; at + 4 <= bytes && at < 4 + 4 * 16; at += 4)
            change(p, data + at);
        fuzz_check_program(p);
    }
    dp_program_free(p);
    dp_schedule_free(s);
    return 0;
}
