/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * overlap.c: how much of a device's communication runs behind its computation. */
#include "trace/overlap.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/sized.h"
#include "trace/doubts.h"

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

static dp_status_t measure_overlap(const dp_trace_t *trace, const dp__trace_rank_t *rank,
                                   dp__trace_overlap_figures_t *figures)
{
    dp__trace_overlap_interval_t *compute = NULL, *comm = NULL;
    size_t ncompute, ncomm;
    dp_status_t status = dp__trace_overlap_union(trace, rank, 1u << DP__TRACE_COMPUTE, &compute, &ncompute);

    if (status == DP_OK)
        status = dp__trace_overlap_union(trace, rank, 1u << DP__TRACE_COMM, &comm, &ncomm);
    if (status == DP_OK)
        status = dp__trace_overlap_minus(comm, ncomm, compute, ncompute, &figures->exposed, &figures->nexposed);
    if (status == DP_OK) {
        figures->compute = length_of(compute, ncompute);
        figures->comm = length_of(comm, ncomm);
        figures->hidden = figures->comm - length_of(figures->exposed, figures->nexposed);
        figures->idle = figures->end - figures->start - figures->compute - (figures->comm - figures->hidden);
    }
    dp__free(compute);
    dp__free(comm);
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

static void measure_shares(const dp_trace_t *trace, dp__trace_overlap_figures_t *figures)
{
    double covered[2] = {0.0, 0.0}, time[2] = {0.0, 0.0}, sms = (double)trace->head.sms;

    for (size_t g = 0; g < figures->ngrids; g++) {
        const dp__trace_overlap_grid_t *grid = &figures->grids[g];

        if (grid->class > DP__TRACE_COMM)
            continue;
        time[grid->class] += (double)grid->time;
        covered[grid->class] += (double)grid->time * ((double)grid->blocks < sms ? (double)grid->blocks / sms : 1.0);
    }
    for (int c = 0; c < 2; c++)
        figures->sm_share[c] = sms > 0.0 && time[c] > 0.0 ? covered[c] / time[c] : -1.0;
}

static dp_status_t measure_grids(const dp_trace_t *trace, const dp__trace_rank_t *rank,
                                 dp__trace_overlap_figures_t *figures)
{
    size_t count = rank->end - rank->first, n = 0;

    figures->grids = dp__allocate((count + 1) * sizeof(*figures->grids), 16);
    if (figures->grids == NULL)
        return no_memory(count);
    for (size_t i = rank->first; i < rank->end; i++) {
        const dp__trace_record_t *record = &trace->records[i];

        if (record->blocks > 0)
            figures->grids[n++] =
                (dp__trace_overlap_grid_t){record->blocks, record->class, 1, record->end - record->start};
    }
    qsort(figures->grids, n, sizeof(*figures->grids), by_grid);
    for (size_t g = 0; g < n; g++) {
        dp__trace_overlap_grid_t *last = figures->ngrids > 0 ? &figures->grids[figures->ngrids - 1] : NULL;

        if (last != NULL && last->class == figures->grids[g].class && last->blocks == figures->grids[g].blocks) {
            last->kernels++;
            add_time(&last->time, figures->grids[g].time);
        } else {
            figures->grids[figures->ngrids++] = figures->grids[g];
        }
    }
    qsort(figures->grids, figures->ngrids, sizeof(*figures->grids), by_grid_time);
    measure_shares(trace, figures);
    return DP_OK;
}

/* ---- the whole ---- */

dp_status_t dp__trace_overlap_figures(const dp_trace_t *trace, const dp__trace_rank_t *rank,
                                      dp__trace_overlap_figures_t *figures_out)
{
    dp_status_t status;

    *figures_out = (dp__trace_overlap_figures_t){.start = INT64_MAX};
    for (size_t i = rank->first; i < rank->end; i++) {
        const dp__trace_record_t *record = &trace->records[i];

        figures_out->start = record->start < figures_out->start ? record->start : figures_out->start;
        figures_out->end = record->end > figures_out->end ? record->end : figures_out->end;
    }
    status = measure_overlap(trace, rank, figures_out);
    return status == DP_OK ? measure_grids(trace, rank, figures_out) : status;
}

void dp__trace_overlap_clear(dp__trace_overlap_figures_t *figures)
{
    dp__free(figures->exposed);
    dp__free(figures->grids);
}

static dp_status_t take_doubts(const dp_trace_t *trace, const dp__trace_rank_t *rank, dp_trace_overlap_t *overlap)
{
    dp__trace_likely_t *likely;
    size_t count, stray;
    dp_status_t status = dp__trace_likely_names(trace, rank->first, rank->end, &likely, &count);

    overlap->likely = overlap->likely_time = 0;
    for (size_t k = 0; k < count; k++) {
        overlap->likely += (int64_t)likely[k].kernels;
        add_time(&overlap->likely_time, likely[k].time);
    }
    overlap->likely_name = count > 0 ? dp__trace_name(trace, likely[0].name) : NULL;
    overlap->strays = (int64_t)dp__trace_strays(trace, rank, &stray);
    overlap->stray_name = overlap->strays > 0 ? dp__trace_name(trace, trace->records[stray].name) : NULL;
    dp__free(likely);
    return status;
}

dp_status_t dp_trace_overlap(const dp_trace_t *trace, int32_t row, dp_trace_overlap_t *overlap_out)
{
    dp__trace_overlap_figures_t figures;
    dp_trace_overlap_t found = {.struct_size = sizeof(found)};
    dp_status_t status =
        dp__sized_check("dp_trace_overlap: overlap_out", overlap_out, "dp_trace_overlap_t", DP_TRACE_OVERLAP_MIN);

    if (status == DP_OK && (trace == NULL || row < 0 || (size_t)row >= trace->nranks))
        status = dp_fail(DP_ERR_INVALID, "dp_trace_overlap: there is no device %d, but %zu of them", row,
                         trace != NULL ? trace->nranks : 0);
    if (status != DP_OK)
        return status;
    status = dp__trace_overlap_figures(trace, &trace->ranks[row], &figures);
    if (status == DP_OK) {
        found.name = trace->ranks[row].label;
        found.span = figures.end - figures.start;
        found.computation = figures.compute;
        found.communication = figures.comm;
        found.hidden = figures.hidden;
        found.idle = figures.idle;
        found.gaps = (int64_t)figures.nexposed;
        found.computation_sms = figures.sm_share[DP__TRACE_COMPUTE];
        found.communication_sms = figures.sm_share[DP__TRACE_COMM];
        status = take_doubts(trace, &trace->ranks[row], &found);
    }
    if (status == DP_OK)
        dp_sized_put(overlap_out, &found);
    dp__trace_overlap_clear(&figures);
    return status;
}
