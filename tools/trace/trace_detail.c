/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_detail.c: what tables and pages of a trace show beside the figures of a device: its
 * streams, its longest gaps, its annotations. */
#include "trace_detail.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dp_status_t no_memory(size_t count)
{
    return dp_fail(DP_ERR_NOMEM, "no memory for the intervals of %zu records", count);
}

/* Sums of nonsense stay numbers. */
static void add_time(int64_t *sum, int64_t more)
{
    if (__builtin_add_overflow(*sum, more, sum))
        *sum = INT64_MAX;
}

/* ---- streams ---- */

static int by_records(const void *a, const void *b)
{
    const trace_detail_stream_t *x = a, *y = b;

    if (x->records != y->records)
        return x->records > y->records ? -1 : 1;
    return (x->stream > y->stream) - (x->stream < y->stream);
}

/* How far each stream has been counted, by class, and by all that keeps it busy. */
typedef struct reached {
    int64_t class[3], busy;
    size_t row; /* in trace_detail_rank_t.streams, + 1; 0: none */
} reached_t;

static int64_t add_to(int64_t *reached, const dp__trace_record_t *record)
{
    int64_t from = record->start > *reached ? record->start : *reached;

    if (record->end <= from)
        return 0;
    *reached = record->end;
    return record->end - from;
}

static dp_status_t measure_streams(const dp_trace_t *trace, trace_detail_rank_t *rank)
{
    reached_t *reached = calloc(trace->nstreams, sizeof(*reached));
    size_t n = 0;

    for (size_t i = rank->rank->first; reached != NULL && i < rank->rank->end; i++)
        if (reached[trace->records[i].stream].row == 0)
            reached[trace->records[i].stream].row = ++n;
    rank->streams = calloc(n + 1, sizeof(*rank->streams));
    if (reached == NULL || rank->streams == NULL) {
        free(reached);
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu streams", trace->nstreams);
    }
    rank->nstreams = n;
    for (size_t i = rank->rank->first; i < rank->rank->end; i++) {
        const dp__trace_record_t *record = &trace->records[i];
        reached_t *far = &reached[record->stream];
        trace_detail_stream_t *stream = &rank->streams[far->row - 1];
        int64_t more = add_to(&far->class[record->class], record);

        stream->stream = record->stream;
        stream->records++;
        *(record->class == DP__TRACE_COMPUTE ? &stream->compute
          : record->class == DP__TRACE_COMM  ? &stream->comm
                                             : &stream->wait) += more;
        if (record->class != DP__TRACE_WAIT)
            stream->busy += add_to(&far->busy, record);
    }
    free(reached);
    qsort(rank->streams, rank->nstreams, sizeof(*rank->streams), by_records);
    return DP_OK;
}

/* ---- gaps ---- */

static int by_length(const void *a, const void *b)
{
    const dp__trace_overlap_interval_t *x = a, *y = b;
    int64_t p = x->end - x->start, q = y->end - y->start;

    if (p != q)
        return p > q ? -1 : 1;
    return (x->start > y->start) - (x->start < y->start);
}

static void look_around(const dp_trace_t *trace, const dp__trace_rank_t *rank, trace_detail_gap_t *gap)
{
    int64_t best = -1;

    gap->comm = gap->before = gap->after = SIZE_MAX;
    for (size_t i = rank->first; i < rank->end; i++) {
        const dp__trace_record_t *record = &trace->records[i];

        if (record->class == DP__TRACE_COMM) {
            int64_t from = record->start > gap->start ? record->start : gap->start;
            int64_t to = record->end < gap->end ? record->end : gap->end;

            if (to - from > best) {
                best = to - from;
                gap->comm = i;
            }
        } else if (record->class == DP__TRACE_COMPUTE && record->end > record->start) {
            if (record->end <= gap->start && (gap->before == SIZE_MAX || record->end > trace->records[gap->before].end))
                gap->before = i;
            if (record->start >= gap->end && gap->after == SIZE_MAX)
                gap->after = i;
        }
    }
}

static dp_status_t keep_gaps(const dp_trace_t *trace, trace_detail_rank_t *rank, size_t most)
{
    dp__trace_overlap_interval_t *exposed = rank->figures.exposed;
    size_t count = rank->figures.nexposed, n = count < most ? count : most;

    rank->gaps = calloc(n + 1, sizeof(*rank->gaps));
    if (rank->gaps == NULL)
        return no_memory(n);
    qsort(exposed, count, sizeof(*exposed), by_length);
    rank->ngaps = n;
    for (size_t g = 0; g < n; g++) {
        rank->gaps[g] = (trace_detail_gap_t){.start = exposed[g].start, .end = exposed[g].end};
        look_around(trace, rank->rank, &rank->gaps[g]);
    }
    return DP_OK;
}

/* ---- annotations ---- */

/* A record with what it is sorted by. */
typedef struct member {
    uint32_t name, range, stream;
    size_t record;
} member_t;

/* Whose records: all with one annotation, occurrence after occurrence. */
static int by_range(const void *a, const void *b)
{
    const member_t *x = a, *y = b;

    if (x->name != y->name)
        return x->name < y->name ? -1 : 1;
    if (x->range != y->range)
        return x->range < y->range ? -1 : 1;
    return (x->record > y->record) - (x->record < y->record);
}

static int by_stream(const void *a, const void *b)
{
    const member_t *x = a, *y = b;

    if (x->name != y->name)
        return x->name < y->name ? -1 : 1;
    if (x->stream != y->stream)
        return x->stream < y->stream ? -1 : 1;
    return (x->record > y->record) - (x->record < y->record);
}

static void sum_groups(const dp_trace_t *trace, trace_detail_rank_t *rank, const member_t *members, size_t count)
{
    int64_t reached[2] = {INT64_MIN, INT64_MIN};

    for (size_t m = 0; m < count; m++) {
        const dp__trace_record_t *record = &trace->records[members[m].record];
        bool new_name = m == 0 || members[m].name != members[m - 1].name;
        bool new_range = new_name || members[m].range != members[m - 1].range || members[m].range == DP__TRACE_NONE;
        int64_t begin = record->range != DP__TRACE_NONE ? trace->ranges[record->range].start : record->start;
        trace_detail_group_t *group;

        if (new_name)
            rank->groups[rank->ngroups++] = (trace_detail_group_t){.name = members[m].name, .begin = INT64_MAX};
        group = &rank->groups[rank->ngroups - 1];
        if (new_range)
            reached[0] = reached[1] = INT64_MIN;
        group->times += new_range;
        group->records++;
        group->begin = begin < group->begin ? begin : group->begin;
        if (record->class <= DP__TRACE_COMM)
            add_time(record->class == DP__TRACE_COMM ? &group->comm : &group->compute,
                     add_to(&reached[record->class], record));
    }
}

static void sum_parts(const dp_trace_t *trace, trace_detail_rank_t *rank, const member_t *members, size_t count)
{
    int64_t reached = INT64_MIN;
    uint32_t group = 0;

    for (size_t m = 0; m < count; m++) {
        bool new_name = m > 0 && members[m].name != members[m - 1].name;

        group += new_name;
        if (m == 0 || new_name || members[m].stream != members[m - 1].stream) {
            if (rank->groups[group].nparts++ == 0)
                rank->groups[group].first_part = rank->nparts;
            rank->parts[rank->nparts++] = (trace_detail_part_t){.group = group, .stream = members[m].stream};
            reached = INT64_MIN;
        }
        rank->parts[rank->nparts - 1].records++;
        rank->parts[rank->nparts - 1].busy += add_to(&reached, &trace->records[members[m].record]);
    }
}

static int by_begin(const void *a, const void *b)
{
    const trace_detail_group_t *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->name > y->name) - (x->name < y->name);
}

static dp_status_t measure_groups(const dp_trace_t *trace, trace_detail_rank_t *rank)
{
    size_t count = 0;
    member_t *members = malloc((rank->rank->end - rank->rank->first + 1) * sizeof(*members));

    if (members == NULL)
        return no_memory(rank->rank->end - rank->rank->first);
    for (size_t i = rank->rank->first; i < rank->rank->end; i++) {
        uint32_t name = dp__trace_group(trace, &trace->records[i]);

        if (name != DP__TRACE_NONE)
            members[count++] = (member_t){name, trace->records[i].range, trace->records[i].stream, i};
    }
    rank->groups = malloc((count + 1) * sizeof(*rank->groups));
    rank->parts = malloc((count + 1) * sizeof(*rank->parts));
    if (rank->groups == NULL || rank->parts == NULL) {
        free(members);
        return no_memory(count);
    }
    qsort(members, count, sizeof(*members), by_range);
    sum_groups(trace, rank, members, count);
    qsort(members, count, sizeof(*members), by_stream);
    sum_parts(trace, rank, members, count);
    free(members);
    qsort(rank->groups, rank->ngroups, sizeof(*rank->groups), by_begin);
    for (uint32_t g = 0; g < rank->ngroups; g++)
        for (size_t p = 0; p < rank->groups[g].nparts; p++)
            rank->parts[rank->groups[g].first_part + p].group = g;
    return DP_OK;
}

/* ---- the whole ---- */

dp_status_t trace_detail_measure(const dp_trace_t *trace, size_t most_gaps, trace_detail_t *detail)
{
    dp_status_t status = DP_OK;

    *detail = (trace_detail_t){.trace = trace};
    detail->ranks = calloc(trace->nranks + 1, sizeof(*detail->ranks));
    if (detail->ranks == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the figures of %zu ranks", trace->nranks);
    for (size_t r = 0; r < trace->nranks && status == DP_OK; r++) {
        trace_detail_rank_t *rank = &detail->ranks[detail->nranks++];

        rank->rank = &trace->ranks[r];
        status = dp__trace_overlap_figures(trace, rank->rank, &rank->figures);
        if (status == DP_OK)
            status = measure_streams(trace, rank);
        if (status == DP_OK)
            status = keep_gaps(trace, rank, most_gaps);
        if (status == DP_OK)
            status = measure_groups(trace, rank);
    }
    return status;
}

void trace_detail_clear(trace_detail_t *detail)
{
    for (size_t r = 0; r < detail->nranks; r++) {
        dp__trace_overlap_clear(&detail->ranks[r].figures);
        free(detail->ranks[r].streams);
        free(detail->ranks[r].gaps);
        free(detail->ranks[r].groups);
        free(detail->ranks[r].parts);
    }
    free(detail->ranks);
    *detail = (trace_detail_t){.nranks = 0};
}

/* ---- names ---- */

/* Where arguments of a template or function begin; "(anonymous namespace)" is part of a name. */
static size_t base_length(const char *name)
{
    size_t n = 0;

    while (name[n] != 0 && name[n] != '<' && (name[n] != '(' || strncmp(name + n, "(anonymous", 10) == 0))
        n++;
    return n;
}

void trace_short_name(const char *name, char *text, size_t bytes)
{
    size_t base, at, end;

    if (strncmp(name, "void ", 5) == 0)
        name += 5;
    base = base_length(name);
    if (strncmp(name, "Memcpy ", 7) == 0 || strncmp(name, "Memset ", 7) == 0)
        base = strlen(name);
    snprintf(text, bytes, "%.*s", (int)(base < 1000 ? base : 1000), name);
    /* The first argument that is a name tells one kernel of a wrapper from another. */
    for (at = base; name[at] == '<' || name[at] == ','; at = end) {
        at++;
        at += strspn(name + at, " ");
        end = at + strcspn(name + at, "<>,(");
        for (size_t k = at; k + 1 < end; k++) {
            if (name[k] != ':' || name[k + 1] != ':')
                continue;
            snprintf(text, bytes, "%.*s<%.*s>", (int)(base < 1000 ? base : 1000), name,
                     (int)(end - at < 1000 ? end - at : 1000), name + at);
            return;
        }
    }
}

char *trace_microseconds(int64_t ns, char text[32])
{
    char digits[32];
    int64_t us = (ns < 0 ? ns - 500 : ns + 500) / 1000;
    int n = snprintf(digits, sizeof(digits), "%" PRId64, us < 0 ? -us : us), used = 0;

    if (us < 0)
        text[used++] = '-';
    for (int i = 0; i < n; i++) {
        text[used++] = digits[i];
        if (i + 1 < n && (n - 1 - i) % 3 == 0)
            text[used++] = ',';
    }
    text[used] = 0;
    return text;
}
