/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * resolve.c: what belongs together in a trace: records to ranks, ranges into each other, and a
 * record, by way of the call that launched it, to the annotation that call was in. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trace/store.h"

#define NO_WORLD      UINT32_MAX
#define MOST_CLIMB    256 /* nested annotations that are looked through */
#define MOST_ANSWERED 64  /* threads whose annotations are asked */

/* ---- ranks ---- */

static int by_rank(const void *a, const void *b)
{
    const dp__trace_rank_t *x = a, *y = b;

    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return (x->process > y->process) - (x->process < y->process);
}

static void label_rank(const dp_trace_t *trace, dp__trace_rank_t *rank, bool alone)
{
    const dp__trace_process_t *process = &trace->store->processes[rank->process];
    const char *gpu = process->machine == DP__TRACE_XLA_GPU ? strstr(process->label, "GPU:") : NULL;
    const char *pid = gpu != NULL ? gpu + 4 : dp__trace_table_text(&trace->store->pids, rank->process);
    int64_t number;

    rank->number = -1;
    if (process->rank >= 0)
        rank->number = process->rank;
    else if (alone && trace->head.rank >= 0)
        rank->number = trace->head.rank;
    if (rank->number >= 0) {
        snprintf(rank->label, sizeof(rank->label), "rank %" PRId64, rank->number);
        return;
    }
    snprintf(rank->label, sizeof(rank->label), "device %.40s", pid);
    if (dp__trace_json_integer(pid, &number) && number >= 0)
        rank->number = number;
}

static dp_status_t find_ranks(dp_trace_t *trace)
{
    dp__trace_store_t *store = trace->store;
    size_t devices = 0;

    for (size_t p = 0; p < store->pids.count; p++)
        devices += store->processes[p].has_device;
    trace->ranks = dp__calloc(devices, sizeof(*trace->ranks));
    if (trace->ranks == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu ranks", devices);
    for (size_t p = 0; p < store->pids.count; p++) {
        if (!store->processes[p].has_device)
            continue;
        trace->ranks[trace->nranks].process = (uint32_t)p;
        label_rank(trace, &trace->ranks[trace->nranks++], devices == 1);
    }
    qsort(trace->ranks, trace->nranks, sizeof(*trace->ranks), by_rank);
    for (size_t r = 0; r < trace->nranks; r++)
        store->processes[trace->ranks[r].process].row = (uint32_t)r;
    for (size_t s = 0; s < trace->nstreams; s++) {
        trace->streams[s].rank = store->processes[trace->streams[s].process].row;
        if (trace->streams[s].number >= 0)
            snprintf(trace->streams[s].label, sizeof(trace->streams[s].label), "stream %" PRId64,
                     trace->streams[s].number);
    }
    return DP_OK;
}

/* ---- records ---- */

static uint32_t rank_of(const dp_trace_t *trace, size_t record)
{
    return trace->streams[trace->records[record].stream].rank;
}

/* Puts records of one rank behind those of the one before, in no order. */
static void group_by_rank(dp_trace_t *trace)
{
    size_t at = 0;

    for (size_t i = 0; i < trace->nrecords; i++)
        trace->ranks[rank_of(trace, i)].end++;
    for (size_t r = 0; r < trace->nranks; r++) {
        const size_t count = trace->ranks[r].end;

        trace->ranks[r].first = trace->ranks[r].end = at;
        at += count;
    }
    for (size_t r = 0; r < trace->nranks; r++) {
        const size_t end = r + 1 < trace->nranks ? trace->ranks[r + 1].first : trace->nrecords;

        while (trace->ranks[r].end < end) {
            dp__trace_record_t *here = &trace->records[trace->ranks[r].end];
            const size_t to = trace->ranks[rank_of(trace, trace->ranks[r].end)].end++;
            const dp__trace_record_t record = *here;

            *here = trace->records[to];
            trace->records[to] = record;
        }
    }
}

static int by_start(const void *a, const void *b)
{
    const dp__trace_record_t *x = a, *y = b;

    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    if (x->stream != y->stream)
        return x->stream < y->stream ? -1 : 1;
    if (x->name != y->name)
        return x->name < y->name ? -1 : 1;
    if (x->range != y->range)
        return x->range < y->range ? -1 : 1;
    return (x->detail > y->detail) - (x->detail < y->detail);
}

static void sort_records(dp_trace_t *trace)
{
    group_by_rank(trace);
    for (size_t r = 0; r < trace->nranks; r++) {
        const dp__trace_rank_t *rank = &trace->ranks[r];

        qsort(trace->records + rank->first, rank->end - rank->first, sizeof(*trace->records), by_start);
    }
}

/* All times from the first record on. */
static void shift_times(dp_trace_t *trace)
{
    int64_t origin = INT64_MAX;

    for (size_t i = 0; i < trace->nrecords; i++)
        origin = trace->records[i].start < origin ? trace->records[i].start : origin;
    for (size_t i = 0; i < trace->nrecords; i++) {
        trace->records[i].start -= origin;
        trace->records[i].end -= origin;
    }
    for (size_t i = 0; i < trace->nranges; i++) {
        trace->ranges[i].start -= origin;
        trace->ranges[i].end -= origin;
    }
    for (size_t i = 0; i < trace->store->nlaunches; i++)
        trace->store->launches[i].time -= origin;
    trace->origin_ns = origin;
}

/* ---- ranges ---- */

static int by_thread_and_start(const void *a, const void *b)
{
    const dp__trace_range_t *x = a, *y = b;

    if (x->thread != y->thread)
        return x->thread < y->thread ? -1 : 1;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    if (x->end != y->end)
        return x->end > y->end ? -1 : 1;
    return (x->name > y->name) - (x->name < y->name);
}

static void nest_ranges(dp_trace_t *trace)
{
    uint32_t top = DP__TRACE_NONE;

    if (trace->nranges > 0)
        qsort(trace->ranges, trace->nranges, sizeof(*trace->ranges), by_thread_and_start);
    for (size_t i = 0; i < trace->nranges; i++) {
        dp__trace_range_t *range = &trace->ranges[i];

        if (i == 0 || range->thread != trace->ranges[i - 1].thread)
            top = DP__TRACE_NONE;
        while (top != DP__TRACE_NONE && trace->ranges[top].end <= range->start)
            top = trace->ranges[top].parent;
        range->parent = top;
        top = (uint32_t)i;
    }
}

/* The ranges of a thread, by number of thread; and the threads of a world that have any. */
typedef struct thread_ranges {
    uint32_t world, thread;
    size_t first, end;
} thread_ranges_t;

typedef struct finder {
    const dp_trace_t *trace;
    thread_ranges_t *threads; /* by world, then thread */
    size_t nthreads;
    uint32_t *of_thread; /* [nstreams] index above; DP__TRACE_NONE: no ranges */
} finder_t;

/* Processes of one rank share the numbers of their launches. */
static uint32_t world_of(const dp_trace_t *trace, uint32_t stream)
{
    int64_t rank = trace->store->processes[trace->streams[stream].process].rank;

    return rank >= 0 ? (uint32_t)rank : NO_WORLD;
}

static int by_world(const void *a, const void *b)
{
    const thread_ranges_t *x = a, *y = b;

    if (x->world != y->world)
        return x->world < y->world ? -1 : 1;
    return (x->thread > y->thread) - (x->thread < y->thread);
}

static dp_status_t open_finder(const dp_trace_t *trace, finder_t *finder)
{
    *finder = (finder_t){.trace = trace};
    finder->threads = dp__calloc(trace->nstreams, sizeof(*finder->threads));
    finder->of_thread = dp__allocate(trace->nstreams * sizeof(*finder->of_thread), 16);
    if (finder->threads == NULL || finder->of_thread == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu threads", trace->nstreams);
    for (size_t i = 0; i < trace->nranges; i++) {
        if (i == 0 || trace->ranges[i].thread != trace->ranges[i - 1].thread)
            finder->threads[finder->nthreads++] = (thread_ranges_t){
                .world = world_of(trace, trace->ranges[i].thread), .thread = trace->ranges[i].thread, .first = i};
        finder->threads[finder->nthreads - 1].end = i + 1;
    }
    qsort(finder->threads, finder->nthreads, sizeof(*finder->threads), by_world);
    memset(finder->of_thread, 0xff, trace->nstreams * sizeof(*finder->of_thread));
    for (size_t t = 0; t < finder->nthreads; t++)
        finder->of_thread[finder->threads[t].thread] = (uint32_t)t;
    return DP_OK;
}

static void close_finder(finder_t *finder)
{
    dp__free(finder->threads);
    dp__free(finder->of_thread);
}

/* The innermost range of one thread around a point in time. */
static uint32_t range_around(const dp_trace_t *trace, const thread_ranges_t *thread, int64_t time)
{
    size_t low = thread->first, high = thread->end;
    uint32_t range;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (trace->ranges[middle].start <= time)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == thread->first)
        return DP__TRACE_NONE;
    range = (uint32_t)(low - 1);
    for (int climbed = 0; range != DP__TRACE_NONE && trace->ranges[range].end < time; climbed++)
        range = climbed < MOST_CLIMB ? trace->ranges[range].parent : DP__TRACE_NONE;
    return range;
}

/* Of the launching thread, else of any of the rank: backward passes have a separate thread. */
static uint32_t range_of_launch(const finder_t *finder, const dp__trace_launch_t *launch)
{
    const dp_trace_t *trace = finder->trace;
    uint32_t own = finder->of_thread[launch->thread], best = DP__TRACE_NONE;
    size_t low = 0, high = finder->nthreads;

    if (own != DP__TRACE_NONE)
        best = range_around(trace, &finder->threads[own], launch->time);
    if (best != DP__TRACE_NONE)
        return best;
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (finder->threads[middle].world < launch->world)
            low = middle + 1;
        else
            high = middle;
    }
    for (int asked = 0; low < finder->nthreads && finder->threads[low].world == launch->world && asked < MOST_ANSWERED;
         low++) {
        uint32_t range;

        if (trace->ranges[finder->threads[low].first].on_device)
            continue;
        asked++;
        range = range_around(trace, &finder->threads[low], launch->time);
        if (range != DP__TRACE_NONE &&
            (best == DP__TRACE_NONE || trace->ranges[range].start > trace->ranges[best].start))
            best = range;
    }
    return best;
}

/* ---- launches ---- */

static int by_correlation(const void *a, const void *b)
{
    const dp__trace_launch_t *x = a, *y = b;

    if (x->world != y->world)
        return x->world < y->world ? -1 : 1;
    if (x->correlation != y->correlation)
        return x->correlation < y->correlation ? -1 : 1;
    return (x->time > y->time) - (x->time < y->time);
}

static const dp__trace_launch_t *find_launch(const dp__trace_store_t *store, uint32_t world, uint32_t correlation)
{
    size_t low = 0, high = store->nlaunches;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const dp__trace_launch_t *launch = &store->launches[middle];

        if (launch->world < world || (launch->world == world && launch->correlation < correlation))
            low = middle + 1;
        else
            high = middle;
    }
    if (low == store->nlaunches || store->launches[low].world != world ||
        store->launches[low].correlation != correlation)
        return NULL;
    return &store->launches[low];
}

static void annotate_records(dp_trace_t *trace, const finder_t *finder)
{
    for (size_t i = 0; i < trace->nrecords; i++) {
        dp__trace_record_t *record = &trace->records[i];
        const dp__trace_launch_t *launch = NULL;

        if (record->range != DP__TRACE_NONE)
            launch = find_launch(trace->store, world_of(trace, record->stream), record->range);
        record->range = launch != NULL ? range_of_launch(finder, launch) : DP__TRACE_NONE;
        if (record->range == DP__TRACE_NONE && finder->of_thread[record->stream] != DP__TRACE_NONE)
            record->range = range_around(trace, &finder->threads[finder->of_thread[record->stream]], record->start);
    }
}

dp_status_t dp__trace_resolve(dp_trace_t *trace)
{
    dp__trace_store_t *store = trace->store;
    finder_t finder;
    dp_status_t status = find_ranks(trace);

    if (status != DP_OK)
        return status;
    shift_times(trace);
    sort_records(trace);
    nest_ranges(trace);
    for (size_t i = 0; i < store->nlaunches; i++)
        store->launches[i].world = world_of(trace, store->launches[i].thread);
    if (store->nlaunches > 0)
        qsort(store->launches, store->nlaunches, sizeof(*store->launches), by_correlation);
    status = open_finder(trace, &finder);
    if (status == DP_OK)
        annotate_records(trace, &finder);
    close_finder(&finder);
    dp__free(store->launches);
    store->launches = NULL;
    store->nlaunches = 0;
    return status;
}
