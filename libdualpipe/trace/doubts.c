/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * doubts.c: records that make the figures of a device doubtful. */
#include "trace/doubts.h"

#include <stdlib.h>

#include "base/memory.h"

#define LEAST_OTHERS 3 /* of fewer records none stands out */

/* ---- names ---- */

static int by_name(const void *a, const void *b)
{
    const dp__trace_likely_t *x = a, *y = b;

    return (x->name > y->name) - (x->name < y->name);
}

static int by_time(const void *a, const void *b)
{
    const dp__trace_likely_t *x = a, *y = b;

    return x->time != y->time ? (x->time < y->time) - (x->time > y->time) : by_name(a, b);
}

static bool is_likely(const dp_trace_t *trace, const dp__trace_record_t *record)
{
    return record->class == DP__TRACE_COMPUTE && record->detail == DP__TRACE_NONE &&
           dp__trace_likely(trace, record->name);
}

/* One for each name. Sums of nonsense stay numbers. */
static size_t sum_names(dp__trace_likely_t *items, size_t count)
{
    size_t n = 0;

    for (size_t k = 0; k < count; k++) {
        if (n == 0 || items[n - 1].name != items[k].name) {
            items[n++] = items[k];
            continue;
        }
        items[n - 1].kernels++;
        if (__builtin_add_overflow(items[n - 1].time, items[k].time, &items[n - 1].time))
            items[n - 1].time = INT64_MAX;
    }
    return n;
}

dp_status_t dp__trace_likely_names(const dp_trace_t *trace, size_t first, size_t end, dp__trace_likely_t **out,
                                   size_t *count_out)
{
    size_t count = 0;

    *out = NULL;
    *count_out = 0;
    for (size_t i = first; i < end; i++)
        count += is_likely(trace, &trace->records[i]);
    if (count == 0)
        return DP_OK;
    *out = dp__allocate(count * sizeof(**out), 16);
    if (*out == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the names of %zu kernels", count);
    for (size_t i = first; i < end; i++)
        if (is_likely(trace, &trace->records[i]))
            (*out)[(*count_out)++] =
                (dp__trace_likely_t){trace->records[i].name, 1, trace->records[i].end - trace->records[i].start};
    qsort(*out, count, sizeof(**out), by_name);
    *count_out = sum_names(*out, count);
    qsort(*out, *count_out, sizeof(**out), by_time);
    return DP_OK;
}

/* ---- strays ---- */

/* Records of a device but those that were found already. */
typedef struct others {
    const dp_trace_t *trace;
    size_t first, end;
    size_t found[DP__TRACE_STRAYS], nfound;
} others_t;

static bool is_other(const others_t *others, size_t record)
{
    for (size_t k = 0; k < others->nfound; k++)
        if (others->found[k] == record)
            return false;
    return true;
}

/* First start to last end, but of `without`. Less than LEAST_OTHERS: as long as can be. */
static int64_t reach(const others_t *others, size_t without)
{
    int64_t start = INT64_MAX, end = INT64_MIN;
    size_t count = 0;

    for (size_t i = others->first; i < others->end; i++) {
        const dp__trace_record_t *record = &others->trace->records[i];

        if (i == without || !is_other(others, i))
            continue;
        start = record->start < start ? record->start : start;
        end = record->end > end ? record->end : end;
        count++;
    }
    return count < LEAST_OTHERS ? INT64_MAX : end - start;
}

/* Spans of ours may be of a pipeline with one micro-batch, and waits are as long as they are. */
static size_t longest(const others_t *others)
{
    size_t best = SIZE_MAX;

    for (size_t i = others->first; i < others->end; i++) {
        const dp__trace_record_t *record = &others->trace->records[i],
                                 *last = &others->trace->records[best != SIZE_MAX ? best : i];

        if (record->detail != DP__TRACE_NONE || record->class == DP__TRACE_WAIT || !is_other(others, i))
            continue;
        if (best == SIZE_MAX || record->end - record->start > last->end - last->start)
            best = i;
    }
    return best;
}

/* Records are in the order of their starts. */
static size_t at_zero(const others_t *others)
{
    const dp__trace_record_t *records = others->trace->records;
    others_t rest = *others;
    int64_t end = INT64_MIN;

    while (rest.first < rest.end && records[rest.first].start + others->trace->origin_ns == 0 &&
           records[rest.first].detail == DP__TRACE_NONE) {
        end = records[rest.first].end > end ? records[rest.first].end : end;
        rest.first++;
    }
    if (rest.first == others->first || rest.first == rest.end || records[rest.first].start <= end)
        return 0;
    return records[rest.first].start - end > reach(&rest, SIZE_MAX) ? rest.first - others->first : 0;
}

size_t dp__trace_strays(const dp_trace_t *trace, const dp__trace_rank_t *rank, size_t *stray_out)
{
    others_t others = {.trace = trace, .first = rank->first, .end = rank->end};
    size_t zeros = at_zero(&others);

    others.first += zeros;
    while (others.nfound < DP__TRACE_STRAYS) {
        size_t record = longest(&others);

        if (record == SIZE_MAX || trace->records[record].end - trace->records[record].start <= reach(&others, record))
            break;
        others.found[others.nfound++] = record;
    }
    *stray_out = others.nfound > 0 ? others.found[0] : rank->first;
    return zeros + others.nfound;
}
