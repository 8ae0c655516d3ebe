/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_view.c: fills trace_page.html with a trace. Records are six numbers each: start and length,
 * name, range, blocks, marks; starts are differences, so that most numbers are short. */
#include "trace_view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "trace/segment.h"
#include "trace/table.h"
#include "trace/timeline.h"
#include "trace_notes.h"

#define MOST_RECORDS (4u << 20)
#define MARKER       "@DATA@"

static const char page[] = {
#include "tools/trace/trace_page.inc"
};

/* of the second direction; times its number: of an overlapped pair or braid */
enum { MARK_SECOND = 1, MARK_PAIR = 2 };
enum { MOST_STEPS = 1024 };

typedef struct writer {
    bool bidirectional; /* the trace shows a schedule of two directions */
    const trace_detail_t *overlap;
    const dp_trace_t *trace;
    FILE *to;
    uint32_t *names;  /* [names] number on the page + 1; 0: not there */
    uint32_t *groups; /* the same for annotations */
    uint32_t *ranges; /* [ranges] number within the rank + 1 */
    uint32_t nnames, ngroups;
} writer_t;

/* ---- names ---- */

static void number_names(writer_t *writer)
{
    for (size_t i = 0; i < writer->trace->nrecords; i++) {
        const dp__trace_record_t *record = &writer->trace->records[i];
        uint32_t group = dp__trace_group(writer->trace, record);

        if (writer->names[record->name] == 0)
            writer->names[record->name] = ++writer->nnames;
        if (group != DP__TRACE_NONE && writer->groups[group] == 0)
            writer->groups[group] = ++writer->ngroups;
    }
}

/* Of each name that has a number, which. */
static uint32_t *by_number(const uint32_t *numbers, size_t names, uint32_t count)
{
    uint32_t *order = malloc((count + 1) * sizeof(*order));

    for (size_t n = 0; order != NULL && n < names; n++)
        if (numbers[n] > 0)
            order[numbers[n] - 1] = (uint32_t)n;
    return order;
}

static dp_status_t put_names(const writer_t *writer)
{
    uint32_t *order = by_number(writer->names, dp__trace_names(writer->trace), writer->nnames);
    uint8_t *classes = calloc(writer->nnames + 1, 1);

    if (order == NULL || classes == NULL) {
        free(order);
        free(classes);
        return dp_fail(DP_ERR_NOMEM, "no memory for %" PRIu32 " names", writer->nnames);
    }
    for (size_t i = 0; i < writer->trace->nrecords; i++)
        classes[writer->names[writer->trace->records[i].name] - 1] = writer->trace->records[i].class;
    fputs("\"names\":[", writer->to);
    for (uint32_t n = 0; n < writer->nnames; n++) {
        const char *name = dp__trace_name(writer->trace, order[n]);
        char text[DP__TRACE_NAME_BYTES];

        trace_short_name(name, text, sizeof(text));
        fputs(n > 0 ? ",\n[" : "\n[", writer->to);
        output_script_string(writer->to, text);
        fputc(',', writer->to);
        output_script_string(writer->to, name);
        fprintf(writer->to, ",%d]", classes[n]);
    }
    fputs("],\n", writer->to);
    free(order);
    free(classes);
    return DP_OK;
}

/* 0 forward, 1 backward, 2 backward for weights; -1: neither. */
static int pass_of(const writer_t *writer, const char *name)
{
    int key = dp__trace_segment_of(name, NULL, 0);

    if (key >= 0)
        return dp__trace_key_pass(key);
    if (writer->trace->ndetails == 0 || strlen(name) == 0 || strchr("FBIWR", name[strlen(name) - 1]) == NULL)
        return -1;
    return dp__trace_pass_of(name) == DP_OP_F ? 0 : dp__trace_pass_of(name) == DP_OP_W ? 2 : 1;
}

static dp_status_t put_groups(const writer_t *writer)
{
    uint32_t *order = by_number(writer->groups, dp__trace_names(writer->trace), writer->ngroups);

    if (order == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %" PRIu32 " annotations", writer->ngroups);
    fputs("\"groups\":[", writer->to);
    for (uint32_t n = 0; n < writer->ngroups; n++) {
        const char *name = dp__trace_name(writer->trace, order[n]);

        fputs(n > 0 ? ",[" : "[", writer->to);
        output_script_string(writer->to, name);
        fprintf(writer->to, ",%d]", pass_of(writer, name));
    }
    fputs("],\n", writer->to);
    free(order);
    return DP_OK;
}

/* ---- lanes ---- */

/* The annotation's number within its rank, or, of ours, that of the kind of span behind all
 * annotations. */
static uint32_t range_number(writer_t *writer, const dp__trace_record_t *record, uint32_t *nranges,
                             uint32_t **groups_of, size_t *room)
{
    uint32_t group = dp__trace_group(writer->trace, record);
    uint32_t *slot;

    if (group == DP__TRACE_NONE)
        return 0;
    slot = &writer->ranges[record->range != DP__TRACE_NONE ? record->range : writer->trace->nranges + group];
    if (*slot != 0)
        return *slot;
    if (*nranges == *room) {
        size_t bigger = *room < 64 ? 64 : 2 * *room;
        uint32_t *grown = realloc(*groups_of, bigger * sizeof(**groups_of));

        if (grown == NULL)
            return 0; /* shown without its annotation */
        *groups_of = grown;
        *room = bigger;
    }
    (*groups_of)[*nranges] = writer->groups[group] - 1;
    *slot = ++*nranges;
    return *slot;
}

static int marks_of(const writer_t *writer, const dp__trace_record_t *record)
{
    const dp__trace_detail_t *detail =
        record->detail != DP__TRACE_NONE ? &writer->trace->details[record->detail] : NULL;

    if (detail == NULL)
        return 0;
    return (detail->value[DP__TRACE_PAIR] > 0 ? MARK_PAIR * (detail->value[DP__TRACE_PAIR] & 0xff) : 0) |
           (writer->bidirectional && detail->value[DP__TRACE_CHUNK] == 1 ? MARK_SECOND : 0);
}

static void put_lane(writer_t *writer, const trace_detail_rank_t *rank, const trace_detail_stream_t *stream,
                     uint32_t *nranges, uint32_t **groups_of, size_t *room)
{
    const dp_trace_t *trace = writer->trace;
    int64_t last = 0;
    bool any = false, ours = false;

    fputs("{\"label\":", writer->to);
    output_script_string(writer->to, trace->streams[stream->stream].label);
    fprintf(writer->to, ",\"busy\":%" PRId64 ",\"compute\":%" PRId64 ",\"comm\":%" PRId64 ",\"t\":[", stream->busy,
            stream->compute, stream->comm);
    for (size_t i = rank->rank->first; i < rank->rank->end; i++) {
        const dp__trace_record_t *record = &trace->records[i];

        if (record->stream != stream->stream)
            continue;
        fprintf(writer->to, "%s%" PRId64 ",%" PRId64 ",%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%d", any ? "," : "",
                record->start - last, record->end - record->start, writer->names[record->name] - 1,
                range_number(writer, record, nranges, groups_of, room), record->blocks, marks_of(writer, record));
        last = record->start;
        any = true;
        ours |= record->detail != DP__TRACE_NONE;
    }
    fprintf(writer->to, "],\"bands\":%d}", !ours);
}

static void put_lanes(writer_t *writer, const trace_detail_rank_t *rank)
{
    uint32_t nranges = 0, *groups_of = NULL;
    size_t room = 0;

    fputs("\"lanes\":[", writer->to);
    for (size_t s = 0; s < rank->nstreams; s++) {
        fputs(s > 0 ? ",\n" : "\n", writer->to);
        put_lane(writer, rank, &rank->streams[s], &nranges, &groups_of, &room);
    }
    fputs("],\n\"ranges\":[", writer->to);
    for (uint32_t r = 0; r < nranges; r++)
        fprintf(writer->to, "%s%" PRIu32, r > 0 ? "," : "", groups_of[r]);
    fputs("]", writer->to);
    free(groups_of);
    /* The next rank counts its own. */
    for (size_t i = rank->rank->first; i < rank->rank->end; i++) {
        uint32_t group = dp__trace_group(writer->trace, &writer->trace->records[i]);
        uint32_t range = writer->trace->records[i].range;

        if (group != DP__TRACE_NONE)
            writer->ranges[range != DP__TRACE_NONE ? range : writer->trace->nranges + group] = 0;
    }
}

/* ---- ranks ---- */

static void put_intervals(FILE *to, const char *key, const dp__trace_overlap_interval_t *intervals, size_t count)
{
    int64_t last = 0;

    fprintf(to, ",\n\"%s\":[", key);
    for (size_t k = 0; k < count; k++) {
        fprintf(to, "%s%" PRId64 ",%" PRId64, k > 0 ? "," : "", intervals[k].start - last,
                intervals[k].end - intervals[k].start);
        last = intervals[k].start;
    }
    fputc(']', to);
}

/* x: exposed communication; c: computation. */
static dp_status_t put_covers(const writer_t *writer, const trace_detail_rank_t *rank)
{
    dp__trace_overlap_interval_t *compute = NULL, *comm = NULL, *exposed = NULL;
    size_t ncompute, ncomm, nexposed;
    dp_status_t status =
        dp__trace_overlap_union(writer->trace, rank->rank, 1u << DP__TRACE_COMPUTE, &compute, &ncompute);

    if (status == DP_OK)
        status = dp__trace_overlap_union(writer->trace, rank->rank, 1u << DP__TRACE_COMM, &comm, &ncomm);
    if (status == DP_OK)
        status = dp__trace_overlap_minus(comm, ncomm, compute, ncompute, &exposed, &nexposed);
    if (status == DP_OK) {
        put_intervals(writer->to, "x", exposed, nexposed);
        put_intervals(writer->to, "c", compute, ncompute);
    }
    dp__trace_release(compute);
    dp__trace_release(comm);
    dp__trace_release(exposed);
    return status;
}

static int64_t name_number(const writer_t *writer, size_t record)
{
    return record == SIZE_MAX ? -1 : (int64_t)writer->names[writer->trace->records[record].name] - 1;
}

static void put_tables(const writer_t *writer, const trace_detail_rank_t *rank)
{
    FILE *to = writer->to;

    fprintf(to, ",\n\"ngaps\":%zu,\"gaps\":[", rank->figures.nexposed);
    for (size_t g = 0; g < rank->ngaps; g++)
        fprintf(to, "%s[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]", g > 0 ? "," : "",
                rank->gaps[g].start, rank->gaps[g].end - rank->gaps[g].start, name_number(writer, rank->gaps[g].comm),
                name_number(writer, rank->gaps[g].before), name_number(writer, rank->gaps[g].after));
    fputs("],\n\"annotations\":[", to);
    for (size_t g = 0; g < rank->ngroups; g++)
        fprintf(to, "%s[%" PRIu32 ",%zu,%" PRId64 ",%" PRId64 "]", g > 0 ? "," : "",
                writer->groups[rank->groups[g].name] - 1, rank->groups[g].times, rank->groups[g].compute,
                rank->groups[g].comm);
    fputs("],\n\"grids\":[", to);
    for (size_t g = 0; g < rank->figures.ngrids; g++)
        fprintf(to, "%s[%d,%" PRIu32 ",%zu,%" PRId64 "]", g > 0 ? "," : "", rank->figures.grids[g].class,
                rank->figures.grids[g].blocks, rank->figures.grids[g].kernels, rank->figures.grids[g].time);
    fputs("]}", to);
}

static dp_status_t put_rank_rows(writer_t *writer, const trace_detail_rank_t *rank)
{
    dp_status_t status;

    fputs("\n{\"label\":", writer->to);
    output_script_string(writer->to, rank->rank->label);
    fprintf(writer->to,
            ",\"records\":%zu,\"span\":%" PRId64 ",\"compute\":%" PRId64 ",\"comm\":%" PRId64 ",\"hidden\":%" PRId64
            ",\"idle\":%" PRId64 ",\n",
            rank->rank->end - rank->rank->first, rank->figures.end - rank->figures.start, rank->figures.compute,
            rank->figures.comm, rank->figures.hidden, rank->figures.idle);
    put_lanes(writer, rank);
    status = put_covers(writer, rank);
    put_tables(writer, rank);
    return status;
}

/* The steps of a run of ours, "[number, start, end]" each; none where there are too many to choose
 * from. */
static void put_steps(const writer_t *writer)
{
    struct {
        int64_t start, end;
    } steps[MOST_STEPS];
    const dp_trace_t *trace = writer->trace;
    int32_t first = INT32_MAX, last = -1;
    bool any = false;

    for (size_t d = 0; d < trace->ndetails; d++) {
        const int32_t step = trace->details[d].value[DP__TRACE_STEP];

        first = step >= 0 && step < first ? step : first;
        last = step > last ? step : last;
    }
    fputs("\"steps\":[", writer->to);
    for (int32_t s = 0; last >= 0 && last - first < MOST_STEPS && s <= last - first; s++)
        steps[s].start = INT64_MAX, steps[s].end = -1;
    for (size_t i = 0; last >= 0 && last - first < MOST_STEPS && i < trace->nrecords; i++) {
        const dp__trace_record_t *record = &trace->records[i];
        const int32_t s =
            record->detail != DP__TRACE_NONE ? trace->details[record->detail].value[DP__TRACE_STEP] - first : -1;

        if (s < 0)
            continue;
        steps[s].start = record->start < steps[s].start ? record->start : steps[s].start;
        steps[s].end = record->end > steps[s].end ? record->end : steps[s].end;
    }
    for (int32_t s = 0; last >= 0 && last - first < MOST_STEPS && s <= last - first; s++)
        if (steps[s].end >= 0) {
            fprintf(writer->to, "%s[%" PRId32 ",%" PRId64 ",%" PRId64 "]", any ? "," : "", first + s, steps[s].start,
                    steps[s].end);
            any = true;
        }
    fputs("],\n", writer->to);
}

static void put_notes(const writer_t *writer, const trace_notes_t *notes)
{
    fputs("\"notes\":[", writer->to);
    for (size_t k = 0; k < notes->count; k++) {
        fputs(k > 0 ? "," : "", writer->to);
        output_script_string(writer->to, notes->lines[k]);
    }
    fputs("],\n", writer->to);
}

static dp_status_t put_data(writer_t *writer, const char *title)
{
    const trace_detail_t *overlap = writer->overlap;
    int64_t end = 0;
    trace_notes_t notes;
    dp_status_t status = trace_notes_of(writer->trace, true, &notes);

    if (status != DP_OK)
        return status;

    for (size_t r = 0; r < overlap->nranks; r++)
        end = overlap->ranks[r].figures.end > end ? overlap->ranks[r].figures.end : end;
    fputs("{\"title\":", writer->to);
    output_script_string(writer->to, title);
    fprintf(writer->to, ",\"events\":%" PRIu64 ",\"records\":%zu,\"sms\":%" PRId64 ",\"span\":%" PRId64 ",\n",
            writer->trace->head.events, writer->trace->nrecords, writer->trace->head.sms, end);
    put_notes(writer, &notes);
    put_steps(writer);
    number_names(writer);
    status = put_names(writer);
    if (status == DP_OK)
        status = put_groups(writer);
    fputs("\"ranks\":[", writer->to);
    for (size_t r = 0; r < overlap->nranks && status == DP_OK; r++) {
        fputs(r > 0 ? "," : "", writer->to);
        status = put_rank_rows(writer, &overlap->ranks[r]);
    }
    fputs("]}", writer->to);
    return status;
}

/* The marker, which is in the page once. */
static const char *find_marker(void)
{
    return memmem(page, sizeof(page), MARKER, sizeof(MARKER) - 1);
}

dp_status_t trace_view_put(const trace_detail_t *overlap, const char *title, output_t *output)
{
    writer_t writer = {.overlap = overlap, .trace = overlap->trace, .to = output->file};
    const char *marker = find_marker(), *rest = marker + sizeof(MARKER) - 1;
    size_t names = dp__trace_names(overlap->trace);
    dp_status_t status;

    if (overlap->trace->nrecords > MOST_RECORDS)
        return dp_fail(DP_ERR_REJECTED, "%zu records, and browsers cannot show more than %u: view fewer steps",
                       overlap->trace->nrecords, MOST_RECORDS);
    writer.bidirectional = dp__trace_is_bidirectional(overlap->trace);
    writer.names = calloc(names + 1, sizeof(*writer.names));
    writer.groups = calloc(names + 1, sizeof(*writer.groups));
    writer.ranges = calloc(overlap->trace->nranges + names + 1, sizeof(*writer.ranges));
    if (writer.names == NULL || writer.groups == NULL || writer.ranges == NULL) {
        status = dp_fail(DP_ERR_NOMEM, "no memory for %zu names", names);
    } else {
        status = output_write(output, page, (size_t)(marker - page));
        if (status == DP_OK)
            status = put_data(&writer, title);
        if (status == DP_OK)
            status = output_write(output, rest, sizeof(page) - (size_t)(rest - page));
    }
    free(writer.names);
    free(writer.groups);
    free(writer.ranges);
    return status;
}
