/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_print.c: the figures of a trace as text. */
#include "trace_print.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "trace/doubts.h"
#include "trace/table.h"
#include "trace_findings.h"
#include "trace_notes.h"

#define MOST_GRIDS   6
#define MOST_GROUPS  40
#define MOST_COLUMNS 5 /* streams in the table by annotation */

double trace_percent(int64_t part, int64_t whole)
{
    return whole > 0 ? (double)part / (double)whole * 100.0 : 0.0;
}

/* In at most `room` columns, the middle left out. */
static void fit(const char *name, size_t room, char *text, size_t bytes)
{
    char whole[DP__TRACE_NAME_BYTES];
    size_t n, tail;

    snprintf(whole, sizeof(whole), "%s", name);
    for (char *at = whole; *at != 0; at++)
        if ((unsigned char)*at < ' ')
            *at = ' ';
    n = strlen(whole);
    if (n <= room) {
        snprintf(text, bytes, "%s", whole);
        return;
    }
    tail = room / 2;
    while (tail > 0 && ((unsigned char)whole[n - tail] & 0xc0) == 0x80)
        tail--;
    n -= tail;
    room -= tail + 2;
    while (room > 0 && ((unsigned char)whole[room] & 0xc0) == 0x80)
        room--;
    snprintf(text, bytes, "%.*s..%s", (int)room, whole, whole + n);
}

static void fit_kernel(const char *name, size_t room, char *text, size_t bytes)
{
    char kernel[DP__TRACE_NAME_BYTES];

    trace_short_name(name, kernel, sizeof(kernel));
    fit(kernel, room, text, bytes);
}

static const char *record_name(const dp_trace_t *trace, size_t record)
{
    return record != SIZE_MAX ? dp__trace_name(trace, trace->records[record].name) : "(nothing)";
}

/* ---- text ---- */

static void put_head(FILE *to, const trace_detail_rank_t *rank)
{
    char a[32], b[32];

    fprintf(to, "\n%s\n", rank->rank->label);
    fprintf(to, "  span           %12s\n", trace_microseconds(rank->figures.end - rank->figures.start, a));
    fprintf(to, "  compute        %12s   %6.2f %% of the span\n", trace_microseconds(rank->figures.compute, a),
            trace_percent(rank->figures.compute, rank->figures.end - rank->figures.start));
    if (rank->figures.comm > 0)
        fprintf(to, "  communication  %12s   %6.2f %% of it hidden, %s exposed\n",
                trace_microseconds(rank->figures.comm, a), trace_percent(rank->figures.hidden, rank->figures.comm),
                trace_microseconds(rank->figures.comm - rank->figures.hidden, b));
    else
        fputs("  communication             0\n", to);
    fprintf(to, "  idle           %12s   %6.2f %% of the span\n", trace_microseconds(rank->figures.idle, a),
            trace_percent(rank->figures.idle, rank->figures.end - rank->figures.start));
}

static void put_streams(FILE *to, const dp_trace_t *trace, const trace_detail_rank_t *rank)
{
    bool waits = false;

    for (size_t s = 0; s < rank->nstreams; s++)
        waits |= rank->streams[s].wait > 0;
    fprintf(to, "\n  stream                 records         busy  of span      compute  communication%s\n",
            waits ? "      waiting" : "");
    for (size_t s = 0; s < rank->nstreams; s++) {
        const trace_detail_stream_t *stream = &rank->streams[s];
        char busy[32], compute[32], comm[32], wait[32], label[24];

        fit(trace->streams[stream->stream].label, sizeof(label) - 2, label, sizeof(label));
        fprintf(to, "  %-20s %9zu %12s %6.2f %% %12s %14s", label, stream->records,
                trace_microseconds(stream->busy, busy),
                trace_percent(stream->busy, rank->figures.end - rank->figures.start),
                stream->compute > 0 ? trace_microseconds(stream->compute, compute) : "-",
                stream->comm > 0 ? trace_microseconds(stream->comm, comm) : "-");
        if (waits)
            fprintf(to, " %12s", stream->wait > 0 ? trace_microseconds(stream->wait, wait) : "-");
        fputc('\n', to);
    }
}

static void put_gaps(FILE *to, const dp_trace_t *trace, const trace_detail_rank_t *rank)
{
    if (rank->ngaps == 0)
        return;
    fprintf(to, "\n  longest of %zu stretches of exposed communication\n", rank->figures.nexposed);
    for (size_t g = 0; g < rank->ngaps; g++) {
        const trace_detail_gap_t *gap = &rank->gaps[g];
        char length[32], at[32], name[104];

        fit_kernel(record_name(trace, gap->comm), sizeof(name) - 26, name, sizeof(name));
        fprintf(to, "  %10s at %s: %s\n", trace_microseconds(gap->end - gap->start, length),
                trace_microseconds(gap->start - rank->figures.start, at), name);
        fit_kernel(record_name(trace, gap->before), sizeof(name) - 20, name, sizeof(name));
        fprintf(to, "             after %s\n", name);
        fit_kernel(record_name(trace, gap->after), sizeof(name) - 20, name, sizeof(name));
        fprintf(to, "             until %s\n", name);
    }
}

static void put_grids(FILE *to, const dp_trace_t *trace, const trace_detail_rank_t *rank, dp__trace_class_t class)
{
    int64_t all = 0, shown = 0;
    size_t rows = 0, left = 0;
    char time[32];

    for (size_t g = 0; g < rank->figures.ngrids; g++)
        all += rank->figures.grids[g].class == class ? rank->figures.grids[g].time / 1000 : 0;
    for (size_t g = 0; g < rank->figures.ngrids; g++) {
        const dp__trace_overlap_grid_t *grid = &rank->figures.grids[g];

        if (grid->class != class)
            continue;
        if (rows++ >= MOST_GRIDS) {
            left++;
            continue;
        }
        shown += grid->time / 1000;
        fprintf(to, "  %-14s %10" PRIu32 " %9zu %12s %6.2f %%", class == DP__TRACE_COMM ? "communication" : "compute",
                grid->blocks, grid->kernels, trace_microseconds(grid->time, time),
                trace_percent(grid->time / 1000, all));
        if (trace->head.sms > 0)
            fprintf(to, "   %" PRId64 " of %" PRId64 " SMs",
                    (int64_t)grid->blocks < trace->head.sms ? (int64_t)grid->blocks : trace->head.sms, trace->head.sms);
        fputc('\n', to);
    }
    if (left > 0)
        fprintf(to, "  %-14s %10s %9zu %12s %6.2f %%\n", class == DP__TRACE_COMM ? "communication" : "compute",
                "others", left, trace_microseconds((all - shown) * 1000, time), trace_percent(all - shown, all));
}

static void put_sms(FILE *to, const dp_trace_t *trace, const trace_detail_rank_t *rank)
{
    if (rank->figures.ngrids == 0)
        return;
    fputs("\n  kernels            blocks   kernels         time  of class   a block each\n", to);
    put_grids(to, trace, rank, DP__TRACE_COMM);
    put_grids(to, trace, rank, DP__TRACE_COMPUTE);
    if (rank->figures.sm_share[DP__TRACE_COMPUTE] >= 0.0)
        fprintf(to, "  grids cover, on average over time, %.1f %% of the SMs in computation",
                rank->figures.sm_share[DP__TRACE_COMPUTE] * 100.0);
    if (rank->figures.sm_share[DP__TRACE_COMPUTE] >= 0.0 && rank->figures.sm_share[DP__TRACE_COMM] >= 0.0)
        fprintf(to, ", %.1f %% in communication", rank->figures.sm_share[DP__TRACE_COMM] * 100.0);
    if (rank->figures.sm_share[DP__TRACE_COMPUTE] >= 0.0)
        fputc('\n', to);
}

static const trace_detail_part_t *part_on(const trace_detail_rank_t *rank, const trace_detail_group_t *group,
                                          uint32_t stream)
{
    for (size_t p = 0; p < group->nparts; p++)
        if (rank->parts[group->first_part + p].stream == stream)
            return &rank->parts[group->first_part + p];
    return NULL;
}

static void put_groups(FILE *to, const dp_trace_t *trace, const trace_detail_rank_t *rank)
{
    size_t columns = rank->nstreams < MOST_COLUMNS ? rank->nstreams : MOST_COLUMNS;

    if (rank->ngroups == 0)
        return;
    fputs("\n  annotation, mean busy     times", to);
    for (size_t s = 0; s < columns; s++) {
        char label[16];

        fit(trace->streams[rank->streams[s].stream].label, 12, label, sizeof(label));
        fprintf(to, " %12s", label);
    }
    fputc('\n', to);
    for (size_t g = 0; g < rank->ngroups && g < MOST_GROUPS; g++) {
        const trace_detail_group_t *group = &rank->groups[g];
        char name[32], busy[32];

        fit(dp__trace_name(trace, group->name), 24, name, sizeof(name));
        fprintf(to, "  %-24s %6zu", name, group->times);
        for (size_t s = 0; s < columns; s++) {
            const trace_detail_part_t *part = part_on(rank, group, rank->streams[s].stream);

            fprintf(to, " %12s", part != NULL ? trace_microseconds(part->busy / (int64_t)group->times, busy) : "");
        }
        fputc('\n', to);
    }
    if (rank->ngroups > MOST_GROUPS)
        fprintf(to, "  and %zu more; --format json has all\n", rank->ngroups - MOST_GROUPS);
}

/* What is not known is said. */
static void put_findings(FILE *to, const dp_trace_t *trace, const trace_detail_rank_t *rank)
{
    trace_findings_t x = trace_findings_of(trace, rank);
    char name[64], time[32];

    if (x.backwards == 0 || x.gridless[DP__TRACE_COMPUTE] + x.gridless[DP__TRACE_COMM] + x.waits + x.inlined > 0)
        fputc('\n', to);
    if (x.backwards == 0 && x.forwards > 0)
        fprintf(to, "  forward only: of %zu records none is of a backward; %zu say no pass\n", x.forwards + x.passless,
                x.passless);
    else if (x.backwards == 0)
        fputs("  passes: not known, no record or annotation names a forward or a backward\n", to);
    if (x.gridless[DP__TRACE_COMPUTE] + x.gridless[DP__TRACE_COMM] > 0)
        fprintf(to,
                "  no grid: %zu of %zu kernels of computation, %zu of %zu of communication: which SMs they hold is "
                "not known\n",
                x.gridless[DP__TRACE_COMPUTE], x.device[DP__TRACE_COMPUTE], x.gridless[DP__TRACE_COMM],
                x.device[DP__TRACE_COMM]);
    if (x.waits > 0) {
        fit_kernel(record_name(trace, x.a_wait), sizeof(name) - 4, name, sizeof(name));
        fprintf(to, "  waits: %zu kernel%s, %s, counted as what their class is: %s\n", x.waits, x.waits == 1 ? "" : "s",
                trace_microseconds(x.wait_time, time), name);
    }
    if (x.inlined > 0)
        fprintf(to,
                "  transfers without a stream: %zu records of communication stand between computation on %s;\n"
                "    what is in flight after one of them has no record, and is in no figure here\n",
                x.inlined, trace->streams[x.inlined_on].label);
}

/* The end is what a terminal shows. */
static void put_summary(FILE *to, const trace_detail_t *overlap)
{
    fputs("\nsummary                       span   compute  communication    hidden      exposed     idle\n", to);
    for (size_t r = 0; r < overlap->nranks; r++) {
        const trace_detail_rank_t *rank = &overlap->ranks[r];
        int64_t span = rank->figures.end - rank->figures.start;
        char whole[32], comm[32], open[32], label[24];

        fit(rank->rank->label, sizeof(label) - 4, label, sizeof(label));
        fprintf(to, "%-20s %12s %7.2f %% %14s %7.2f %% %12s %6.2f %%\n", label, trace_microseconds(span, whole),
                trace_percent(rank->figures.compute, span), trace_microseconds(rank->figures.comm, comm),
                trace_percent(rank->figures.hidden, rank->figures.comm),
                trace_microseconds(rank->figures.comm - rank->figures.hidden, open),
                trace_percent(rank->figures.idle, span));
    }
}

static dp_status_t put_notes(FILE *to, const dp_trace_t *trace)
{
    trace_notes_t notes;
    dp_status_t status = trace_notes_of(trace, true, &notes);

    for (size_t k = 0; k < notes.count; k++)
        fprintf(to, "%s%s\n", k == 0 ? "\n" : "", notes.lines[k]);
    return status;
}

dp_status_t trace_print_text(const trace_detail_t *overlap, const char *path, output_t *output)
{
    const dp_trace_t *trace = overlap->trace;
    FILE *to = output->file;

    fprintf(to, "%s: %" PRIu64 " events, %zu records on %zu device%s; times in microseconds\n", path,
            trace->head.events, trace->nrecords, trace->nranks, trace->nranks == 1 ? "" : "s");
    for (size_t r = 0; r < overlap->nranks; r++) {
        put_head(to, &overlap->ranks[r]);
        put_streams(to, trace, &overlap->ranks[r]);
        put_gaps(to, trace, &overlap->ranks[r]);
        put_sms(to, trace, &overlap->ranks[r]);
        put_findings(to, trace, &overlap->ranks[r]);
        put_groups(to, trace, &overlap->ranks[r]);
    }
    put_summary(to, overlap);
    return put_notes(to, trace);
}

/* ---- JSON ---- */

static void put_time(FILE *to, const char *key, int64_t ns)
{
    int64_t whole = ns / 1000;

    fprintf(to, "\"%s\":%s%" PRId64, key, ns < 0 && whole == 0 ? "-" : "", whole);
    if (ns % 1000 != 0)
        fprintf(to, ".%03d", abs((int)(ns % 1000)));
}

static void put_name(FILE *to, const char *key, const char *name)
{
    fprintf(to, "\"%s\":", key);
    output_json_string(to, name);
}

static const char *const class_names[] = {"compute", "communication", "wait"};

static void json_streams(FILE *to, const dp_trace_t *trace, const trace_detail_rank_t *rank)
{
    fputs("\"streams\":[", to);
    for (size_t s = 0; s < rank->nstreams; s++) {
        const trace_detail_stream_t *stream = &rank->streams[s];

        fputs(s > 0 ? ",\n    {" : "\n    {", to);
        put_name(to, "name", trace->streams[stream->stream].label);
        fprintf(to, ",\"records\":%zu,", stream->records);
        put_time(to, "busy", stream->busy);
        fputc(',', to);
        put_time(to, "compute", stream->compute);
        fputc(',', to);
        put_time(to, "communication", stream->comm);
        fputc(',', to);
        put_time(to, "wait", stream->wait);
        fputc('}', to);
    }
    fputs("],\n   ", to);
}

static void json_record(FILE *to, const char *key, const dp_trace_t *trace, size_t record)
{
    fprintf(to, ",\"%s\":", key);
    if (record == SIZE_MAX)
        fputs("null", to);
    else
        output_json_string(to, dp__trace_name(trace, trace->records[record].name));
}

static void json_gaps(FILE *to, const dp_trace_t *trace, const trace_detail_rank_t *rank)
{
    fprintf(to, "\"exposed_gaps\":%zu,\"longest_gaps\":[", rank->figures.nexposed);
    for (size_t g = 0; g < rank->ngaps; g++) {
        const trace_detail_gap_t *gap = &rank->gaps[g];

        fputs(g > 0 ? ",\n    {" : "\n    {", to);
        put_time(to, "start", gap->start - rank->figures.start);
        fputc(',', to);
        put_time(to, "length", gap->end - gap->start);
        json_record(to, "kernel", trace, gap->comm);
        json_record(to, "before", trace, gap->before);
        json_record(to, "after", trace, gap->after);
        fputc('}', to);
    }
    fputs("],\n   ", to);
}

static void json_grids(FILE *to, const trace_detail_rank_t *rank)
{
    fputs("\"sm_share\":{\"compute\":", to);
    output_json_number(to, rank->figures.sm_share[DP__TRACE_COMPUTE] >= 0.0 ? rank->figures.sm_share[DP__TRACE_COMPUTE]
                                                                            : (double)__builtin_nan(""));
    fputs(",\"communication\":", to);
    output_json_number(to, rank->figures.sm_share[DP__TRACE_COMM] >= 0.0 ? rank->figures.sm_share[DP__TRACE_COMM]
                                                                         : (double)__builtin_nan(""));
    fputs("},\n   \"grids\":[", to);
    for (size_t g = 0; g < rank->figures.ngrids; g++) {
        fprintf(to, "%s{\"class\":\"%s\",\"blocks\":%" PRIu32 ",\"kernels\":%zu,", g > 0 ? ",\n    " : "\n    ",
                class_names[rank->figures.grids[g].class], rank->figures.grids[g].blocks,
                rank->figures.grids[g].kernels);
        put_time(to, "time", rank->figures.grids[g].time);
        fputc('}', to);
    }
    fputs("],\n   ", to);
}

static void json_groups(FILE *to, const dp_trace_t *trace, const trace_detail_rank_t *rank)
{
    fputs("\"annotations\":[", to);
    for (size_t g = 0; g < rank->ngroups; g++) {
        const trace_detail_group_t *group = &rank->groups[g];

        fputs(g > 0 ? ",\n    {" : "\n    {", to);
        put_name(to, "name", dp__trace_name(trace, group->name));
        fprintf(to, ",\"times\":%zu,\"records\":%zu,", group->times, group->records);
        put_time(to, "compute", group->compute);
        fputc(',', to);
        put_time(to, "communication", group->comm);
        fputs(",\"streams\":[", to);
        for (size_t p = 0; p < group->nparts; p++) {
            const trace_detail_part_t *part = &rank->parts[group->first_part + p];

            fputs(p > 0 ? ",{" : "{", to);
            put_name(to, "name", trace->streams[part->stream].label);
            fprintf(to, ",\"records\":%zu,", part->records);
            put_time(to, "busy", part->busy);
            fputc('}', to);
        }
        fputs("]}", to);
    }
    fputs("]", to);
}

static void json_findings(FILE *to, const dp_trace_t *trace, const trace_detail_rank_t *rank)
{
    trace_findings_t x = trace_findings_of(trace, rank);

    fprintf(to,
            "\"passes\":\"%s\",\"without_pass\":%zu,\"without_grid\":{\"compute\":%zu,\"communication\":%zu},"
            "\"inlined_communication\":%zu,\"wait_kernels\":%zu,",
            trace_findings_passes(&x), x.passless, x.gridless[DP__TRACE_COMPUTE], x.gridless[DP__TRACE_COMM], x.inlined,
            x.waits);
    put_time(to, "wait_kernels_time", x.wait_time);
    fputs(",\n   ", to);
}

static dp_status_t json_doubts(FILE *to, const dp_trace_t *trace, const trace_detail_rank_t *rank)
{
    dp__trace_likely_t *likely;
    size_t count, stray, strays = dp__trace_strays(trace, rank->rank, &stray);
    dp_status_t status = dp__trace_likely_names(trace, rank->rank->first, rank->rank->end, &likely, &count);

    fprintf(to, "\"strays\":%zu,\"like_communication\":[", strays);
    for (size_t k = 0; k < count; k++) {
        fputs(k > 0 ? ",\n    {" : "\n    {", to);
        put_name(to, "name", dp__trace_name(trace, likely[k].name));
        fprintf(to, ",\"kernels\":%zu,", likely[k].kernels);
        put_time(to, "time", likely[k].time);
        fputc('}', to);
    }
    fputs("],\n   ", to);
    dp__trace_release(likely);
    return status;
}

static dp_status_t json_rank(FILE *to, const dp_trace_t *trace, const trace_detail_rank_t *rank)
{
    dp_status_t status;

    fputs("\n  {", to);
    put_name(to, "name", rank->rank->label);
    fputc(',', to);
    put_time(to, "span", rank->figures.end - rank->figures.start);
    fputc(',', to);
    put_time(to, "compute", rank->figures.compute);
    fputc(',', to);
    put_time(to, "communication", rank->figures.comm);
    fputc(',', to);
    put_time(to, "hidden", rank->figures.hidden);
    fputc(',', to);
    put_time(to, "exposed", rank->figures.comm - rank->figures.hidden);
    fputc(',', to);
    put_time(to, "idle", rank->figures.idle);
    fputs(",\n   ", to);
    json_streams(to, trace, rank);
    json_gaps(to, trace, rank);
    json_grids(to, rank);
    json_findings(to, trace, rank);
    status = json_doubts(to, trace, rank);
    json_groups(to, trace, rank);
    fputc('}', to);
    return status;
}

dp_status_t trace_print_json(const trace_detail_t *overlap, const char *path, output_t *output)
{
    const dp_trace_t *trace = overlap->trace;
    FILE *to = output->file;
    dp_status_t status = DP_OK;

    fputs("{\"schema\":1,", to);
    put_name(to, "trace", path);
    fprintf(to,
            ",\"events\":%" PRIu64 ",\"broken\":%" PRIu64 ",\"broken_records\":%" PRIu64 ",\"records\":%zu,\"sms\":",
            trace->head.events, trace->head.broken, trace->head.broken_kept, trace->nrecords);
    output_json_number(to, trace->head.sms > 0 ? (double)trace->head.sms : (double)__builtin_nan(""));
    fputs(",\"ranks\":[", to);
    for (size_t r = 0; r < overlap->nranks && status == DP_OK; r++) {
        fputs(r > 0 ? "," : "", to);
        status = json_rank(to, trace, &overlap->ranks[r]);
    }
    fputs("\n]}\n", to);
    return status;
}
