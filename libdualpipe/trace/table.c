/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * table.c: texts with a number each. */
#include "trace/table.h"

#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"

/* Takes bytes from the budget. */
static dp_status_t spend_budget(dp__trace_budget_t *budget, uint64_t bytes)
{
    if (bytes > budget->most || budget->used > budget->most - bytes)
        return dp_fail(DP_ERR_OVERFLOW,
                       "the records that are kept take more than the %" PRIu64
                       " MiB that they may (--memory); give them more, or record fewer steps",
                       budget->most >> 20);
    budget->used += bytes;
    return DP_OK;
}

void dp__trace_release(void *memory)
{
    dp__free(memory);
}

/* From room to new_room items. */
static dp_status_t resize_items(dp__trace_budget_t *budget, void **items, size_t *room, size_t new_room, size_t size)
{
    dp_status_t status = spend_budget(budget, (uint64_t)(new_room - *room) * size);
    void *bigger;

    if (status != DP_OK)
        return status;
    bigger = dp__enlarge(*items, *room * size, new_room * size);
    if (bigger == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu records of %zu bytes", new_room, size);
    *items = bigger;
    *room = new_room;
    return DP_OK;
}

dp_status_t dp__trace_grow(dp__trace_budget_t *budget, void **items, size_t *room, size_t count, size_t size)
{
    if (count < *room)
        return DP_OK;
    if (count >= UINT32_MAX / 2)
        return dp_fail(DP_ERR_OVERFLOW, "more than %zu records", count);
    return resize_items(budget, items, room, count < 64 ? 64 : count + count / 2, size);
}

static uint64_t hash_of(const char *text)
{
    uint64_t hash = dp__hash_text(DP__HASH_BEGIN, text);

    return hash ^ hash >> 29;
}

/* The slot of a text, or the empty one where it would be. */
static size_t find_slot(const dp__trace_table_t *table, const char *text)
{
    size_t slot = (size_t)hash_of(text) & (table->nslots - 1);

    while (table->slots[slot] != 0 && strcmp(dp__trace_table_text(table, table->slots[slot] - 1), text) != 0)
        slot = (slot + 1) & (table->nslots - 1);
    return slot;
}

static dp_status_t spread_slots(dp__trace_table_t *table, dp__trace_budget_t *budget)
{
    size_t nslots = table->nslots == 0 ? 256 : 2 * table->nslots;
    dp_status_t status = spend_budget(budget, (nslots - table->nslots) * sizeof(*table->slots));
    uint32_t *slots;

    if (status != DP_OK)
        return status;
    slots = dp__calloc(nslots, sizeof(*slots));
    if (slots == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu names", nslots);
    dp__free(table->slots);
    table->slots = slots;
    table->nslots = nslots;
    for (uint32_t k = 0; k < table->count; k++)
        table->slots[find_slot(table, dp__trace_table_text(table, k))] = k + 1;
    return DP_OK;
}

static dp_status_t append_text(dp__trace_table_t *table, dp__trace_budget_t *budget, const char *text)
{
    size_t bytes = strlen(text) + 1;
    void *at = table->at, *all = table->bytes;
    dp_status_t status = dp__trace_grow(budget, &at, &table->at_room, table->count, sizeof(*table->at));

    table->at = at;
    if (status == DP_OK && table->used + bytes > table->room)
        status = resize_items(budget, &all, &table->room, table->used + table->used / 2 + bytes + 4096, 1);
    table->bytes = all;
    if (status != DP_OK)
        return status;
    memcpy(table->bytes + table->used, text, bytes);
    table->at[table->count++] = table->used;
    table->used += bytes;
    return DP_OK;
}

dp_status_t dp__trace_table_add(dp__trace_table_t *table, dp__trace_budget_t *budget, const char *text,
                                uint32_t *number_out)
{
    dp_status_t status = 2 * (table->count + 1) > table->nslots ? spread_slots(table, budget) : DP_OK;
    size_t slot;

    if (status != DP_OK)
        return status;
    slot = find_slot(table, text);
    if (table->slots[slot] == 0) {
        status = append_text(table, budget, text);
        if (status != DP_OK)
            return status;
        table->slots[slot] = (uint32_t)table->count;
    }
    *number_out = table->slots[slot] - 1;
    return DP_OK;
}

const char *dp__trace_table_text(const dp__trace_table_t *table, uint32_t number)
{
    return table->bytes + table->at[number];
}

void dp__trace_table_free(dp__trace_table_t *table)
{
    dp__free(table->bytes);
    dp__free(table->at);
    dp__free(table->slots);
    *table = (dp__trace_table_t){.count = 0};
}
