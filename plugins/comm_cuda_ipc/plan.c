/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * plan.c: the protocol as lists of steps. */
#include "plan.h"

#define RELATIVE true
#define ABSOLUTE false

static plan_step_t *next_step(plan_t *plan, plan_kind_t kind)
{
    plan_step_t *step = &plan->steps[plan->count++];

    *step = (plan_step_t){.kind = kind};
    return step;
}

static void word_step(plan_t *plan, plan_kind_t kind, uint32_t *word, uint32_t value, bool relative)
{
    plan_step_t *step = next_step(plan, kind);

    step->word = word;
    step->value = value;
    step->relative = relative;
}

static void copy_step(plan_t *plan, void *to, const void *from, size_t bytes)
{
    plan_step_t *step;

    if (bytes == 0)
        return;
    step = next_step(plan, PLAN_COPY);
    step->to = to;
    step->from = from;
    step->bytes = bytes;
}

static void begin_plan(plan_t *plan, uint64_t number, const uint32_t *counter)
{
    plan->count = 0;
    plan->base = (uint32_t)number;
    plan->counter = counter;
}

uint32_t ipc_plan_room(int32_t nranks)
{
    return 6 * (uint32_t)nranks + 16;
}

uint32_t *ipc_plan_line(const plan_group_t *g, int32_t at, size_t line)
{
    return (uint32_t *)(void *)(g->lines[at] + line * LINE_BYTES);
}

/* ---- channels ---- */

/* sender   --published--> receiver : tag and data of the slot are whole.
 * receiver --credit-----> sender   : the slot may be written again. */
void ipc_plan_send(plan_t *plan, const plan_channel_t *c, uint64_t number, const dp_message_tag_t *tag,
                   const void *from)
{
    uint32_t slot = (uint32_t)(number % c->slots);
    uint32_t *head = c->heads + slot * LINE_WORDS;

    begin_plan(plan, number, c->counter);
    word_step(plan, PLAN_EXPECT, c->cursor, slot, ABSOLUTE);
    word_step(plan, PLAN_WAIT, c->credit, 1 - c->slots, RELATIVE);
    copy_step(plan, c->data + slot * c->stride, from, tag->bytes);
    word_step(plan, PLAN_WRITE, &head[0], 0, RELATIVE);
    word_step(plan, PLAN_WRITE, &head[1], tag->step, ABSOLUTE);
    word_step(plan, PLAN_WRITE, &head[2], (uint32_t)tag->microbatch, ABSOLUTE);
    word_step(plan, PLAN_WRITE, &head[3], tag->bytes, ABSOLUTE);
    word_step(plan, PLAN_WRITE, c->published, 1, RELATIVE);
    word_step(plan, PLAN_WRITE, c->cursor, (slot + 1) % c->slots, ABSOLUTE);
    word_step(plan, PLAN_WRITE, c->counter, 1, RELATIVE);
}

void ipc_plan_recv(plan_t *plan, const plan_channel_t *c, uint64_t number)
{
    begin_plan(plan, number, c->counter);
    word_step(plan, PLAN_EXPECT, c->cursor, (uint32_t)(number % c->slots), ABSOLUTE);
    word_step(plan, PLAN_WAIT, c->published, 1, RELATIVE);
}

void ipc_plan_received(plan_t *plan, const plan_channel_t *c, uint64_t number)
{
    begin_plan(plan, number, c->counter);
    word_step(plan, PLAN_WRITE, c->cursor, (uint32_t)((number + 1) % c->slots), ABSOLUTE);
    word_step(plan, PLAN_WRITE, c->counter, 1, RELATIVE);
}

void ipc_plan_release(plan_t *plan, const plan_channel_t *c, uint64_t number)
{
    begin_plan(plan, number, c->release_counter);
    word_step(plan, PLAN_WRITE, c->credit, 1, RELATIVE);
    word_step(plan, PLAN_WRITE, c->release_counter, 1, RELATIVE);
}

/* ---- exchanges ---- */

static uint32_t *rows_own(const plan_group_t *g, uint32_t slots, size_t which)
{
    return ipc_plan_line(g, g->rank, rows_line_private((size_t)g->nranks, slots, which));
}

uint32_t ipc_plan_stretches(uint32_t blocks, uint32_t nranks)
{
    uint32_t a = blocks, b = nranks;

    while (b != 0) { /* a: their greatest common divisor */
        const uint32_t rest = a % b;

        a = b;
        b = rest;
    }
    return blocks / a;
}

void ipc_plan_exchange(plan_t *plan, const plan_group_t *g, uint32_t slots, uint64_t number)
{
    size_t n = (size_t)g->nranks;

    begin_plan(plan, number, rows_own(g, slots, ROWS_EXCHANGED));
    word_step(plan, PLAN_EXPECT, rows_own(g, slots, ROWS_CURSOR), (uint32_t)(number % slots), ABSOLUTE);
    for (int32_t p = 0; p < g->nranks; p++)
        word_step(plan, PLAN_WAIT, ipc_plan_line(g, g->rank, rows_line_credit(n, (size_t)p)), 1 - slots, RELATIVE);
}

void ipc_plan_arrive(plan_t *plan, const plan_group_t *g, uint32_t slots, uint64_t number)
{
    size_t n = (size_t)g->nranks;

    begin_plan(plan, number, rows_own(g, slots, ROWS_EXCHANGED));
    for (int32_t p = 0; p < g->nranks; p++)
        word_step(plan, PLAN_WAIT, ipc_plan_line(g, g->rank, rows_line_arrived(n, (size_t)p)), 1, RELATIVE);
}

void ipc_plan_exchanged(plan_t *plan, const plan_group_t *g, uint32_t slots, uint64_t number)
{
    begin_plan(plan, number, rows_own(g, slots, ROWS_EXCHANGED));
    word_step(plan, PLAN_WRITE, rows_own(g, slots, ROWS_CURSOR), (uint32_t)((number + 1) % slots), ABSOLUTE);
    word_step(plan, PLAN_WRITE, rows_own(g, slots, ROWS_EXCHANGED), 1, RELATIVE);
}

void ipc_plan_exchange_release(plan_t *plan, const plan_group_t *g, uint32_t slots, uint64_t number)
{
    size_t n = (size_t)g->nranks, me = (size_t)g->rank;

    begin_plan(plan, number, rows_own(g, slots, ROWS_RELEASED));
    for (int32_t p = 0; p < g->nranks; p++)
        word_step(plan, PLAN_WRITE, ipc_plan_line(g, p, rows_line_credit(n, me)), 1, RELATIVE);
    word_step(plan, PLAN_WRITE, rows_own(g, slots, ROWS_RELEASED), 1, RELATIVE);
}

/* ---- sums ---- */

static uint32_t *base_own(const plan_group_t *g, size_t which)
{
    return ipc_plan_line(g, g->rank, base_line_private((size_t)g->nranks, which));
}

static size_t most_elements(const plan_sum_t *sum)
{
    return sum->part_bytes / sum->element_bytes;
}

uint32_t ipc_plan_sum_parts(const plan_sum_t *sum)
{
    return (uint32_t)((sum->count + most_elements(sum) - 1) / most_elements(sum));
}

size_t ipc_plan_sum_elements(const plan_sum_t *sum, uint32_t part)
{
    size_t left = sum->count - part * most_elements(sum);

    return left < most_elements(sum) ? left : most_elements(sum);
}

size_t ipc_plan_sum_slice(const plan_sum_t *sum, uint32_t part, int32_t rank)
{
    return ipc_plan_sum_elements(sum, part) * (size_t)rank / (size_t)sum->group->nranks;
}

/* `begin` without forgetting the steps: several parts of a sum may share a list. */
static void sum_begin(plan_t *plan, const plan_sum_t *sum)
{
    plan->counter = base_own(sum->group, BASE_PARTS);
    plan->count = 0;
}

void ipc_plan_sum_stage(plan_t *plan, const plan_sum_t *sum, uint32_t part)
{
    const plan_group_t *g = sum->group;
    size_t n = (size_t)g->nranks, me = (size_t)g->rank, unit = sum->element_bytes, buffer = part % 2;
    const unsigned char *from = sum->data + part * most_elements(sum) * unit;

    sum_begin(plan, sum);
    for (int32_t i = 1; i <= g->nranks; i++) {
        int32_t p = (g->rank + i) % g->nranks;
        size_t first = ipc_plan_sum_slice(sum, part, p), end = ipc_plan_sum_slice(sum, part, p + 1);

        copy_step(plan, g->payload[p] + ipc_base_in_at(n, sum->part_bytes, buffer, me), from + first * unit,
                  (end - first) * unit);
    }
    for (int32_t i = 1; i <= g->nranks; i++) {
        int32_t p = (g->rank + i) % g->nranks;
        uint32_t *head = ipc_plan_line(g, p, base_line_head(n, buffer, me));

        word_step(plan, PLAN_WRITE, &head[0], part, RELATIVE);
        word_step(plan, PLAN_WRITE, &head[1], (uint32_t)sum->count, ABSOLUTE);
        word_step(plan, PLAN_WRITE, &head[2], (uint32_t)((uint64_t)sum->count >> 32), ABSOLUTE);
        word_step(plan, PLAN_WRITE, &head[3], sum->dtype, ABSOLUTE);
        word_step(plan, PLAN_WRITE, ipc_plan_line(g, p, base_line_staged(n, me)), part + 1, RELATIVE);
    }
}

void ipc_plan_sum_hear(plan_t *plan, const plan_sum_t *sum, uint32_t part)
{
    const plan_group_t *g = sum->group;

    sum_begin(plan, sum);
    for (int32_t p = 0; p < g->nranks; p++)
        word_step(plan, PLAN_WAIT, ipc_plan_line(g, g->rank, base_line_staged((size_t)g->nranks, (size_t)p)), part + 1,
                  RELATIVE);
}

void ipc_plan_sum_tell(plan_t *plan, const plan_sum_t *sum, uint32_t part)
{
    const plan_group_t *g = sum->group;

    sum_begin(plan, sum);
    for (int32_t i = 1; i <= g->nranks; i++)
        word_step(plan, PLAN_WRITE,
                  ipc_plan_line(g, (g->rank + i) % g->nranks, base_line_summed((size_t)g->nranks, (size_t)g->rank)),
                  part + 1, RELATIVE);
}

void ipc_plan_sum_gather(plan_t *plan, const plan_sum_t *sum, uint32_t part)
{
    const plan_group_t *g = sum->group;
    size_t n = (size_t)g->nranks;

    sum_begin(plan, sum);
    for (int32_t p = 0; p < g->nranks; p++)
        word_step(plan, PLAN_WAIT, ipc_plan_line(g, g->rank, base_line_summed(n, (size_t)p)), part + 1, RELATIVE);
    copy_step(plan, sum->data + part * most_elements(sum) * sum->element_bytes,
              g->payload[g->rank] + ipc_base_out_at(n, sum->part_bytes, part % 2),
              ipc_plan_sum_elements(sum, part) * sum->element_bytes);
}

void ipc_plan_sum_end(plan_t *plan, const plan_sum_t *sum)
{
    sum_begin(plan, sum);
    word_step(plan, PLAN_WRITE, base_own(sum->group, BASE_PARTS), ipc_plan_sum_parts(sum), RELATIVE);
}
