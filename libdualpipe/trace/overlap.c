/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * overlap.c: how much of a device's communication runs behind its computation. */
#include "trace/overlap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/sized.h"

/* ---- intervals ---- */

static dp_status_t no_memory(size_t count)
{
    return dp_fail(DP_ERR_NOMEM, "no memory for the intervals of %zu records", count);
}

dp_status_t dp__trace_overlap_union(const dp_trace_t *trace, const dp__trace_rank_t *rank, unsigned classes,
                                    dp__trace_overlap_interval_t **out, size_t *count_out)
{
    dp__trace_overlap_interval_t *intervals;
    size_t room = 0, n = 0;

    for (size_t i = rank->first; i < rank->end; i++)
        room += classes >> trace->records[i].class & 1;
    *count_out = 0;
    *out = intervals = dp__allocate((room + 1) * sizeof(*intervals), 16);
    if (intervals == NULL)
        return no_memory(room);
    for (size_t i = rank->first; i < rank->end; i++) {
        const dp__trace_record_t *record = &trace->records[i];

        if ((classes >> record->class & 1) == 0 || record->end == record->start)
            continue;
        if (n == 0 || record->start > intervals[n - 1].end)
            intervals[n++] = (dp__trace_overlap_interval_t){record->start, record->end};
        else if (record->end > intervals[n - 1].end)
            intervals[n - 1].end = record->end;
    }
    *count_out = n;
    return DP_OK;
}

dp_status_t dp__trace_overlap_minus(const dp__trace_overlap_interval_t *from, size_t nfrom,
                                    const dp__trace_overlap_interval_t *without, size_t nwithout,
                                    dp__trace_overlap_interval_t **out, size_t *count_out)
{
    dp__trace_overlap_interval_t *left = dp__allocate((nfrom + nwithout + 1) * sizeof(*left), 16);
    size_t n = 0, w = 0;

    *out = left;
    *count_out = 0;
    if (left == NULL)
        return no_memory(nfrom + nwithout);
    for (size_t f = 0; f < nfrom; f++) {
        int64_t at = from[f].start;

        while (w < nwithout && without[w].end <= at)
            w++;
        for (size_t k = w; k < nwithout && without[k].start < from[f].end; k++) {
            if (without[k].start > at)
                left[n++] = (dp__trace_overlap_interval_t){at, without[k].start};
            at = without[k].end;
            w = k;
        }
        if (at < from[f].end)
            left[n++] = (dp__trace_overlap_interval_t){at, from[f].end};
    }
    *count_out = n;
    return DP_OK;
}

/* Sums of nonsense stay numbers. */
static void add_time(int64_t *sum, int64_t more)
{
    if (__builtin_add_overflow(*sum, more, sum))
        *sum = INT64_MAX;
}

static int64_t length_of(const dp__trace_overlap_interval_t *intervals, size_t count)
{
    int64_t sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += intervals[i].end - intervals[i].start;
    return sum;
}

/* ---- streams ---- */

static int by_records(const void *a, const void *b)
{
    const dp__trace_overlap_stream_t *x = a, *y = b;

    if (x->records != y->records)
        return x->records > y->records ? -1 : 1;
    return (x->stream > y->stream) - (x->stream < y->stream);
}

/* How far each stream has been counted, by class, and by all that keeps it busy. */
typedef struct reached {
    int64_t class[3], busy;
    size_t row; /* in dp__trace_overlap_rank_t.streams, + 1; 0: none */
} reached_t;

static int64_t add_to(int64_t *reached, const dp__trace_record_t *record)
{
    int64_t from = record->start > *reached ? record->start : *reached;

    if (record->end <= from)
        return 0;
    *reached = record->end;
    return record->end - from;
}

static dp_status_t measure_streams(const dp_trace_t *trace, dp__trace_overlap_rank_t *rank)
{
    reached_t *reached = dp__calloc(trace->nstreams, sizeof(*reached));
    size_t n = 0;

    for (size_t i = rank->rank->first; reached != NULL && i < rank->rank->end; i++)
        if (reached[trace->records[i].stream].row == 0)
            reached[trace->records[i].stream].row = ++n;
    rank->streams = dp__calloc(n + 1, sizeof(*rank->streams));
    if (reached == NULL || rank->streams == NULL) {
        dp__free(reached);
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu streams", trace->nstreams);
    }
    rank->nstreams = n;
    for (size_t i = rank->rank->first; i < rank->rank->end; i++) {
        const dp__trace_record_t *record = &trace->records[i];
        reached_t *far = &reached[record->stream];
        dp__trace_overlap_stream_t *stream = &rank->streams[far->row - 1];
        int64_t more = add_to(&far->class[record->class], record);

        stream->stream = record->stream;
        stream->records++;
        *(record->class == DP__TRACE_COMPUTE ? &stream->compute
          : record->class == DP__TRACE_COMM  ? &stream->comm
                                             : &stream->wait) += more;
        if (record->class != DP__TRACE_WAIT)
            stream->busy += add_to(&far->busy, record);
    }
    dp__free(reached);
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

static void look_around(const dp_trace_t *trace, const dp__trace_rank_t *rank, dp__trace_overlap_gap_t *gap)
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

static dp_status_t keep_gaps(const dp_trace_t *trace, dp__trace_overlap_rank_t *rank,
                             dp__trace_overlap_interval_t *exposed, size_t count, size_t most)
{
    size_t n = count < most ? count : most;

    rank->exposed_gaps = count;
    rank->gaps = dp__calloc(n + 1, sizeof(*rank->gaps));
    if (rank->gaps == NULL)
        return no_memory(n);
    qsort(exposed, count, sizeof(*exposed), by_length);
    rank->ngaps = n;
    for (size_t g = 0; g < n; g++) {
        rank->gaps[g] = (dp__trace_overlap_gap_t){.start = exposed[g].start, .end = exposed[g].end};
        look_around(trace, rank->rank, &rank->gaps[g]);
    }
    return DP_OK;
}

static dp_status_t measure_overlap(const dp_trace_t *trace, dp__trace_overlap_rank_t *rank, size_t most_gaps)
{
    dp__trace_overlap_interval_t *compute = NULL, *comm = NULL, *exposed = NULL;
    size_t ncompute, ncomm, nexposed;
    dp_status_t status = dp__trace_overlap_union(trace, rank->rank, 1u << DP__TRACE_COMPUTE, &compute, &ncompute);

    if (status == DP_OK)
        status = dp__trace_overlap_union(trace, rank->rank, 1u << DP__TRACE_COMM, &comm, &ncomm);
    if (status == DP_OK)
        status = dp__trace_overlap_minus(comm, ncomm, compute, ncompute, &exposed, &nexposed);
    if (status == DP_OK) {
        rank->compute = length_of(compute, ncompute);
        rank->comm = length_of(comm, ncomm);
        rank->hidden = rank->comm - length_of(exposed, nexposed);
        rank->idle = rank->end - rank->start - rank->compute - (rank->comm - rank->hidden);
        status = keep_gaps(trace, rank, exposed, nexposed, most_gaps);
    }
    dp__free(compute);
    dp__free(comm);
    dp__free(exposed);
    return status;
}

/* ---- grids ---- */

static int by_grid(const void *a, const void *b)
{
    const dp__trace_overlap_grid_t *x = a, *y = b;

    if (x->class != y->class)
        return x->class < y->class ? -1 : 1;
    return (x->blocks > y->blocks) - (x->blocks < y->blocks);
}

static int by_grid_time(const void *a, const void *b)
{
    const dp__trace_overlap_grid_t *x = a, *y = b;

    if (x->class != y->class)
        return x->class < y->class ? -1 : 1;
    if (x->time != y->time)
        return x->time > y->time ? -1 : 1;
    return (x->blocks > y->blocks) - (x->blocks < y->blocks);
}

static void measure_shares(const dp_trace_t *trace, dp__trace_overlap_rank_t *rank)
{
    double covered[2] = {0.0, 0.0}, time[2] = {0.0, 0.0}, sms = (double)trace->head.sms;

    for (size_t g = 0; g < rank->ngrids; g++) {
        const dp__trace_overlap_grid_t *grid = &rank->grids[g];

        if (grid->class > DP__TRACE_COMM)
            continue;
        time[grid->class] += (double)grid->time;
        covered[grid->class] += (double)grid->time * ((double)grid->blocks < sms ? (double)grid->blocks / sms : 1.0);
    }
    for (int c = 0; c < 2; c++)
        rank->sm_share[c] = sms > 0.0 && time[c] > 0.0 ? covered[c] / time[c] : -1.0;
}

static dp_status_t measure_grids(const dp_trace_t *trace, dp__trace_overlap_rank_t *rank)
{
    size_t count = rank->rank->end - rank->rank->first, n = 0;

    rank->grids = dp__allocate((count + 1) * sizeof(*rank->grids), 16);
    if (rank->grids == NULL)
        return no_memory(count);
    for (size_t i = rank->rank->first; i < rank->rank->end; i++) {
        const dp__trace_record_t *record = &trace->records[i];

        if (record->blocks > 0)
            rank->grids[n++] =
                (dp__trace_overlap_grid_t){record->blocks, record->class, 1, record->end - record->start};
    }
    qsort(rank->grids, n, sizeof(*rank->grids), by_grid);
    for (size_t g = 0; g < n; g++) {
        dp__trace_overlap_grid_t *last = rank->ngrids > 0 ? &rank->grids[rank->ngrids - 1] : NULL;

        if (last != NULL && last->class == rank->grids[g].class && last->blocks == rank->grids[g].blocks) {
            last->kernels++;
            add_time(&last->time, rank->grids[g].time);
        } else {
            rank->grids[rank->ngrids++] = rank->grids[g];
        }
    }
    qsort(rank->grids, rank->ngrids, sizeof(*rank->grids), by_grid_time);
    measure_shares(trace, rank);
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

static void sum_groups(const dp_trace_t *trace, dp__trace_overlap_rank_t *rank, const member_t *members, size_t count)
{
    int64_t reached[2] = {INT64_MIN, INT64_MIN};

    for (size_t m = 0; m < count; m++) {
        const dp__trace_record_t *record = &trace->records[members[m].record];
        bool new_name = m == 0 || members[m].name != members[m - 1].name;
        bool new_range = new_name || members[m].range != members[m - 1].range || members[m].range == DP__TRACE_NONE;
        int64_t begin = record->range != DP__TRACE_NONE ? trace->ranges[record->range].start : record->start;
        dp__trace_overlap_group_t *group;

        if (new_name)
            rank->groups[rank->ngroups++] = (dp__trace_overlap_group_t){.name = members[m].name, .begin = INT64_MAX};
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

static void sum_parts(const dp_trace_t *trace, dp__trace_overlap_rank_t *rank, const member_t *members, size_t count)
{
    int64_t reached = INT64_MIN;
    uint32_t group = 0;

    for (size_t m = 0; m < count; m++) {
        bool new_name = m > 0 && members[m].name != members[m - 1].name;

        group += new_name;
        if (m == 0 || new_name || members[m].stream != members[m - 1].stream) {
            if (rank->groups[group].nparts++ == 0)
                rank->groups[group].first_part = rank->nparts;
            rank->parts[rank->nparts++] = (dp__trace_overlap_part_t){.group = group, .stream = members[m].stream};
            reached = INT64_MIN;
        }
        rank->parts[rank->nparts - 1].records++;
        rank->parts[rank->nparts - 1].busy += add_to(&reached, &trace->records[members[m].record]);
    }
}

static int by_begin(const void *a, const void *b)
{
    const dp__trace_overlap_group_t *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->name > y->name) - (x->name < y->name);
}

static dp_status_t measure_groups(const dp_trace_t *trace, dp__trace_overlap_rank_t *rank)
{
    size_t count = 0;
    member_t *members = dp__allocate((rank->rank->end - rank->rank->first + 1) * sizeof(*members), 16);

    if (members == NULL)
        return no_memory(rank->rank->end - rank->rank->first);
    for (size_t i = rank->rank->first; i < rank->rank->end; i++) {
        uint32_t name = dp__trace_group(trace, &trace->records[i]);

        if (name != DP__TRACE_NONE)
            members[count++] = (member_t){name, trace->records[i].range, trace->records[i].stream, i};
    }
    rank->groups = dp__allocate((count + 1) * sizeof(*rank->groups), 16);
    rank->parts = dp__allocate((count + 1) * sizeof(*rank->parts), 16);
    if (rank->groups == NULL || rank->parts == NULL) {
        dp__free(members);
        return no_memory(count);
    }
    qsort(members, count, sizeof(*members), by_range);
    sum_groups(trace, rank, members, count);
    qsort(members, count, sizeof(*members), by_stream);
    sum_parts(trace, rank, members, count);
    dp__free(members);
    qsort(rank->groups, rank->ngroups, sizeof(*rank->groups), by_begin);
    for (uint32_t g = 0; g < rank->ngroups; g++)
        for (size_t p = 0; p < rank->groups[g].nparts; p++)
            rank->parts[rank->groups[g].first_part + p].group = g;
    return DP_OK;
}

/* ---- the whole ---- */

static void find_window(const dp_trace_t *trace, dp__trace_overlap_rank_t *rank)
{
    rank->start = INT64_MAX;
    for (size_t i = rank->rank->first; i < rank->rank->end; i++) {
        rank->start = trace->records[i].start < rank->start ? trace->records[i].start : rank->start;
        rank->end = trace->records[i].end > rank->end ? trace->records[i].end : rank->end;
    }
}

dp_status_t dp__trace_overlap_measure(const dp_trace_t *trace, size_t most_gaps, dp__trace_overlap_t *overlap)
{
    dp_status_t status = DP_OK;

    *overlap = (dp__trace_overlap_t){.trace = trace};
    overlap->ranks = dp__calloc(trace->nranks + 1, sizeof(*overlap->ranks));
    if (overlap->ranks == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the figures of %zu ranks", trace->nranks);
    for (size_t r = 0; r < trace->nranks && status == DP_OK; r++) {
        dp__trace_overlap_rank_t *rank = &overlap->ranks[overlap->nranks++];

        rank->rank = &trace->ranks[r];
        find_window(trace, rank);
        status = measure_streams(trace, rank);
        if (status == DP_OK)
            status = measure_overlap(trace, rank, most_gaps);
        if (status == DP_OK)
            status = measure_grids(trace, rank);
        if (status == DP_OK)
            status = measure_groups(trace, rank);
    }
    return status;
}

static void clear_rank(dp__trace_overlap_rank_t *rank)
{
    dp__free(rank->streams);
    dp__free(rank->gaps);
    dp__free(rank->grids);
    dp__free(rank->groups);
    dp__free(rank->parts);
}

void dp__trace_overlap_clear(dp__trace_overlap_t *overlap)
{
    for (size_t r = 0; r < overlap->nranks; r++)
        clear_rank(&overlap->ranks[r]);
    dp__free(overlap->ranks);
    *overlap = (dp__trace_overlap_t){.nranks = 0};
}

dp_status_t dp_trace_overlap(const dp_trace_t *trace, int32_t row, dp_trace_overlap_t *overlap_out)
{
    dp__trace_overlap_rank_t rank = {.rank = NULL};
    dp_status_t status =
        dp__sized_check("dp_trace_overlap: overlap_out", overlap_out, "dp_trace_overlap_t", DP_TRACE_OVERLAP_MIN);

    if (status == DP_OK && (trace == NULL || row < 0 || (size_t)row >= trace->nranks))
        status = dp_fail(DP_ERR_INVALID, "dp_trace_overlap: there is no device %d, but %zu of them", row,
                         trace != NULL ? trace->nranks : 0);
    if (status != DP_OK)
        return status;
    rank.rank = &trace->ranks[row];
    find_window(trace, &rank);
    status = measure_overlap(trace, &rank, 0);
    if (status == DP_OK)
        status = measure_grids(trace, &rank);
    if (status == DP_OK) {
        overlap_out->name = rank.rank->label;
        overlap_out->span = rank.end - rank.start;
        overlap_out->computation = rank.compute;
        overlap_out->communication = rank.comm;
        overlap_out->hidden = rank.hidden;
        overlap_out->idle = rank.idle;
        overlap_out->gaps = (int64_t)rank.exposed_gaps;
        overlap_out->computation_sms = rank.sm_share[DP__TRACE_COMPUTE];
        overlap_out->communication_sms = rank.sm_share[DP__TRACE_COMM];
    }
    clear_rank(&rank);
    return status;
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

void dp__trace_short_name(const char *name, char *text, size_t bytes)
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
