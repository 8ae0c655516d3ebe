/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * table.h: texts with a number each, and arrays that grow, within a number of bytes. */
#ifndef DP_TRACE_TABLE_H
#define DP_TRACE_TABLE_H

#include <dualpipe/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What all tables and arrays of a trace may take together. */
typedef struct dp__trace_budget {
    uint64_t used, most;
} dp__trace_budget_t;

typedef struct dp__trace_table {
    char *bytes; /* all texts, each with its ending 0 */
    size_t used, room;
    uint64_t *at; /* [count] where each begins */
    size_t count, at_room;
    uint32_t *slots; /* hash to number + 1 */
    size_t nslots;
} dp__trace_table_t;

/* The same text gives the same number, from 0. DP_ERR_NOMEM, DP_ERR_OVERFLOW: no room. */
dp_status_t dp__trace_table_add(dp__trace_table_t *table, dp__trace_budget_t *budget, const char *text,
                                uint32_t *number_out);
const char *dp__trace_table_text(const dp__trace_table_t *table, uint32_t number);
void dp__trace_table_free(dp__trace_table_t *table);

/* Gives back what this room allocated, for those who cannot reach base/; NULL is allowed. */
void dp__trace_release(void *memory);

/* Room for at least one more item of `size` bytes in *items, which has *room and holds `count`. */
dp_status_t dp__trace_grow(dp__trace_budget_t *budget, void **items, size_t *room, size_t count, size_t size);

#endif
