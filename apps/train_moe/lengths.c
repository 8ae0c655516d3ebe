/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lengths.c: see lengths.h. A micro-batch has a quarter to all of the announced tokens, a document
 * an eighth to all of --seq, all lengths alike often; what does not fit any more is cut off. */
#include "lengths.h"

#include "random.h"

/* Least tokens of a document but the last. */
static uint32_t least(const options_t *o)
{
    return (uint32_t)(o->seq + 7) / 8;
}

uint32_t lengths_most(const options_t *o)
{
    const uint32_t tokens = (uint32_t)(o->batch * o->seq);

    return o->documents ? (tokens + least(o) - 1) / least(o) : (uint32_t)o->batch;
}

static uint32_t between(uint64_t key, uint64_t number, uint32_t from, uint32_t to)
{
    return from + (uint32_t)(random_bits(key, number) % (to - from + 1));
}

uint32_t lengths_draw(const options_t *o, int64_t step, int32_t replica, int32_t index, uint32_t *ends_out,
                      uint32_t *count_out)
{
    /* a key beside those of text_sample(), which draws from the same numbers */
    const uint64_t key =
        random_key(random_key(random_key(~(uint64_t)o->seed, (uint64_t)step), (uint64_t)replica), (uint64_t)index);
    const uint32_t most = (uint32_t)(o->batch * o->seq),
                   tokens = o->varlen ? between(key, 0, (most + 3) / 4, most) : most;
    uint32_t count = 0;

    for (uint32_t end = 0; ends_out != NULL && end < tokens; count++) {
        end += o->documents ? between(key, 1 + count, least(o), (uint32_t)o->seq) : (uint32_t)o->seq;
        ends_out[count] = end = end < tokens ? end : tokens;
    }
    if (count_out != NULL)
        *count_out = count;
    return tokens;
}
