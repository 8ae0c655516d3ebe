/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_notes.c: what a reader of a trace's figures must know besides. */
#include "trace_notes.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "trace/doubts.h"
#include "trace/table.h"
#include "trace_detail.h"

#define MOST_NAMES 3

static void add_line(trace_notes_t *notes, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add_line(trace_notes_t *notes, const char *format, ...)
{
    va_list values;

    va_start(values, format);
    vsnprintf(notes->lines[notes->count], sizeof(notes->lines[0]), format, values);
    va_end(values);
    notes->count++;
}

static const char *short_name(const dp_trace_t *trace, uint32_t name, char text[DP__TRACE_NAME_BYTES])
{
    trace_short_name(dp__trace_name(trace, name), text, DP__TRACE_NAME_BYTES);
    return text;
}

static void add_broken(const dp_trace_t *trace, trace_notes_t *notes)
{
    const dp__trace_head_t *head = &trace->head;
    char kept[64] = "none";

    if (head->broken == 0)
        return;
    if (head->broken_kept > 0)
        snprintf(kept, sizeof(kept), "%" PRIu64, head->broken_kept);
    add_line(notes,
             "left out: %" PRIu64 " event%s with impossible times, %s of a device or an annotation; byte %" PRIu64
             ": %s",
             head->broken, head->broken == 1 ? "" : "s", kept, head->broken_at, head->broken_why);
}

static void add_strays(const dp_trace_t *trace, trace_notes_t *notes)
{
    char name[DP__TRACE_NAME_BYTES], start[32], length[32];

    for (size_t r = 0, said = 0; r < trace->nranks && said < 2; r++) {
        size_t stray, count = dp__trace_strays(trace, &trace->ranks[r], &stray);
        const dp__trace_record_t *record = &trace->records[stray];

        if (count == 0)
            continue;
        said++;
        add_line(notes,
                 "%s: %zu record%s at time 0 before all others, or longer than all others reach, such as %.80s at %s, "
                 "%s us; the figures count %s",
                 trace->ranks[r].label, count, count == 1 ? "" : "s", short_name(trace, record->name, name),
                 trace_microseconds(record->start - trace->records[trace->ranks[r].first].start, start),
                 trace_microseconds(record->end - record->start, length), count == 1 ? "it" : "them");
    }
}

/* With its template arguments, which tell kernels of one base name apart. */
static void add_name(const dp_trace_t *trace, const dp__trace_likely_t *likely, trace_notes_t *notes)
{
    const char *name = dp__trace_name(trace, likely->name);
    char time[32];

    name += strncmp(name, "void ", 5) == 0 ? 5 : 0;
    add_line(notes, "  %12s us %8zu  %.*s", trace_microseconds(likely->time, time), likely->kernels,
             (int)strcspn(name + 1, "(") + 1, name);
}

static dp_status_t add_likely(const dp_trace_t *trace, trace_notes_t *notes)
{
    dp__trace_likely_t *likely;
    size_t count, kernels = 0;
    int64_t time = 0;
    char text[32];
    dp_status_t status = dp__trace_likely_names(trace, 0, trace->nrecords, &likely, &count);

    for (size_t k = 0; k < count; k++) {
        kernels += likely[k].kernels;
        time += likely[k].time / 1000;
    }
    if (count > 0)
        add_line(notes, "counted as compute, named like communication: %zu kernel%s, %s us; --comm NAME adds them",
                 kernels, kernels == 1 ? "" : "s", trace_microseconds(1000 * time, text));
    for (size_t k = 0; k < count && k < MOST_NAMES; k++)
        add_name(trace, &likely[k], notes);
    if (count > MOST_NAMES)
        add_line(notes, "  and %zu names more", count - MOST_NAMES);
    dp__trace_release(likely);
    return status;
}

dp_status_t trace_notes_of(const dp_trace_t *trace, bool names, trace_notes_t *notes_out)
{
    notes_out->count = 0;
    add_broken(trace, notes_out);
    add_strays(trace, notes_out);
    return names ? add_likely(trace, notes_out) : DP_OK;
}
