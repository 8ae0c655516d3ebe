/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace.c: collects from the events of a trace what its figures are made of. */
#include "trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trace_store.h"

#define CLASS_UNKNOWN 255
#define NAME_KEPT     640 /* bytes of a name */

typedef struct collecting {
    trace_t *trace;
    const trace_options_t *options;
} collecting_t;

const char *trace_name(const trace_t *trace, uint32_t name)
{
    return name < trace->store->names.count ? trace_table_text(&trace->store->names, name) : "";
}

size_t trace_names(const trace_t *trace)
{
    return trace->store->names.count;
}

uint32_t trace_group(const trace_t *trace, const trace_record_t *record)
{
    return record->range != TRACE_NONE ? trace->ranges[record->range].name : trace->store->infos[record->name].stem;
}

/* ---- names, processes, threads ---- */

static dp_status_t add_name(trace_t *trace, const char *name, uint32_t *number_out)
{
    trace_store_t *store = trace->store;
    size_t before = store->names.count;
    char kept[NAME_KEPT];
    void *infos = store->infos;
    dp_status_t status;

    snprintf(kept, sizeof(kept), "%s", name);
    status = trace_table_add(&store->names, &store->budget, kept, number_out);
    if (status != DP_OK || store->names.count == before)
        return status;
    status = trace_grow(&store->budget, &infos, &store->infos_room, before, sizeof(*store->infos));
    store->infos = infos;
    if (status == DP_OK)
        store->infos[before] = (trace_name_info_t){CLASS_UNKNOWN, TRACE_NONE};
    return status;
}

/* "rank 12", or that and more behind it. */
static int64_t rank_in(const char *label)
{
    char *end;
    long rank;

    if (strncmp(label, "rank ", 5) != 0 || label[5] < '0' || label[5] > '9')
        return -1;
    rank = strtol(label + 5, &end, 10);
    return rank >= 0 && rank < INT32_MAX ? rank : -1;
}

static dp_status_t find_process(trace_t *trace, const trace_event_t *event, uint32_t *process_out)
{
    trace_store_t *store = trace->store;
    size_t before = store->pids.count;
    void *processes = store->processes;
    dp_status_t status = trace_table_add(&store->pids, &store->budget, event->pid, process_out);

    if (status != DP_OK || store->pids.count == before)
        return status;
    status = trace_grow(&store->budget, &processes, &store->processes_room, before, sizeof(*store->processes));
    store->processes = processes;
    if (status == DP_OK)
        store->processes[before] = (trace_process_t){.rank = -1, .row = TRACE_NONE};
    return status;
}

static dp_status_t find_stream(trace_t *trace, const trace_event_t *event, uint32_t *stream_out)
{
    trace_store_t *store = trace->store;
    char key[2 * TRACE_ID_BYTES + 1];
    size_t before = store->threads.count;
    void *streams = trace->streams;
    uint32_t process;
    dp_status_t status = find_process(trace, event, &process);

    snprintf(key, sizeof(key), "%s\n%s", event->pid, event->tid);
    if (status == DP_OK)
        status = trace_table_add(&store->threads, &store->budget, key, stream_out);
    if (status != DP_OK || store->threads.count == before)
        return status;
    status = trace_grow(&store->budget, &streams, &store->streams_room, before, sizeof(*trace->streams));
    trace->streams = streams;
    if (status != DP_OK)
        return status;
    trace->streams[before] = (trace_stream_t){.process = process, .rank = TRACE_NONE, .number = -1};
    snprintf(trace->streams[before].label, sizeof(trace->streams[before].label), "%s", event->tid);
    trace->nstreams = store->threads.count;
    return DP_OK;
}

/* ---- events ---- */

static trace_class_t class_of(const collecting_t *collecting, uint32_t name, const char *text)
{
    trace_name_info_t *info = &collecting->trace->store->infos[name];

    if (info->class == CLASS_UNKNOWN)
        info->class = (uint8_t)trace_class_of(text, collecting->options->comm);
    return (trace_class_t)info->class;
}

/* "attention F 3" without the 3. */
static dp_status_t find_stem(trace_t *trace, uint32_t name, const char *text)
{
    char stem[NAME_KEPT];
    size_t n;
    uint32_t number;
    dp_status_t status;

    snprintf(stem, sizeof(stem), "%s", text);
    n = strlen(stem);
    while (n > 0 && stem[n - 1] >= '0' && stem[n - 1] <= '9')
        n--;
    if (n > 1 && stem[n - 1] == ' ')
        stem[n - 1] = 0;
    status = add_name(trace, stem, &number);
    if (status == DP_OK)
        trace->store->infos[name].stem = number;
    return status;
}

static dp_status_t add_detail(trace_t *trace, const trace_event_t *event, trace_record_t *record)
{
    trace_detail_t detail = {.pass = trace_pass_of(event->name)};
    void *details = trace->details;
    dp_status_t status =
        trace_grow(&trace->store->budget, &details, &trace->store->details_room, trace->ndetails, sizeof(detail));

    trace->details = details;
    if (status != DP_OK)
        return status;
    record->class = (uint8_t)trace_lane_class(event->category, &detail.lane, &detail.kind);
    memcpy(detail.value, event->details, sizeof(detail.value));
    record->detail = (uint32_t)trace->ndetails;
    trace->details[trace->ndetails++] = detail;
    return DP_OK;
}

static dp_status_t add_record(const collecting_t *collecting, const trace_event_t *event, bool lane)
{
    trace_t *trace = collecting->trace;
    trace_store_t *store = trace->store;
    trace_record_t record = {.range = TRACE_NONE, .detail = TRACE_NONE};
    void *records = trace->records;
    dp_status_t status = find_stream(trace, event, &record.stream);

    if (status == DP_OK)
        status = add_name(trace, event->name, &record.name);
    if (status == DP_OK && lane && store->infos[record.name].stem == TRACE_NONE)
        status = find_stem(trace, record.name, event->name);
    if (status == DP_OK)
        status = trace_grow(&store->budget, &records, &store->records_room, trace->nrecords, sizeof(record));
    trace->records = records;
    if (status == DP_OK && lane)
        status = add_detail(trace, event, &record);
    if (status != DP_OK)
        return status;
    record.start = event->start_ns;
    record.end = event->start_ns + event->length_ns;
    if (!lane)
        record.class = (uint8_t)class_of(collecting, record.name, event->name);
    record.blocks = event->blocks < UINT32_MAX ? (uint32_t)event->blocks : UINT32_MAX;
    if (event->correlation > 0 && event->correlation < TRACE_NONE)
        record.range = (uint32_t)event->correlation; /* until trace_resolve() */
    trace->streams[record.stream].number = event->stream;
    store->processes[trace->streams[record.stream].process].has_device = true;
    trace->records[trace->nrecords++] = record;
    return DP_OK;
}

static dp_status_t add_range(trace_t *trace, const trace_event_t *event, bool on_device)
{
    trace_range_t range = {.start = event->start_ns,
                           .end = event->start_ns + event->length_ns,
                           .parent = TRACE_NONE,
                           .on_device = on_device};
    void *ranges = trace->ranges;
    dp_status_t status = find_stream(trace, event, &range.thread);

    if (status == DP_OK)
        status = add_name(trace, event->name, &range.name);
    if (status == DP_OK)
        status = trace_grow(&trace->store->budget, &ranges, &trace->store->ranges_room, trace->nranges, sizeof(range));
    trace->ranges = ranges;
    if (status == DP_OK)
        trace->ranges[trace->nranges++] = range;
    return status;
}

static dp_status_t add_launch(trace_t *trace, const trace_event_t *event)
{
    trace_store_t *store = trace->store;
    trace_launch_t launch = {.time = event->start_ns, .correlation = (uint32_t)event->correlation};
    void *launches = store->launches;
    dp_status_t status = find_stream(trace, event, &launch.thread);

    if (status == DP_OK)
        status = trace_grow(&store->budget, &launches, &store->launches_room, store->nlaunches, sizeof(launch));
    store->launches = launches;
    if (status == DP_OK)
        store->launches[store->nlaunches++] = launch;
    return status;
}

static dp_status_t take_metadata(trace_t *trace, const trace_event_t *event)
{
    uint32_t number;
    dp_status_t status = DP_OK;

    if (strcmp(event->name, "process_name") == 0) {
        status = find_process(trace, event, &number);
        if (status == DP_OK)
            trace->store->processes[number].rank = rank_in(event->label);
    } else if (strcmp(event->name, "thread_name") == 0 && event->label[0] != 0) {
        status = find_stream(trace, event, &number);
        if (status == DP_OK)
            memcpy(trace->streams[number].label, event->label, sizeof(event->label));
    }
    return status;
}

static dp_status_t take_event(void *user, const trace_event_t *event)
{
    const collecting_t *collecting = user;
    trace_source_t source;

    if (event->phase == 'M')
        return take_metadata(collecting->trace, event);
    if (event->phase != 'X' || !event->has_start)
        return DP_OK;
    source = trace_source_of(event->category);
    if (source == TRACE_DEVICE || source == TRACE_LANE)
        return add_record(collecting, event, source == TRACE_LANE);
    if (source == TRACE_RANGE || source == TRACE_LANE_RANGE)
        return add_range(collecting->trace, event, source == TRACE_LANE_RANGE);
    if (event->correlation > 0 && event->correlation < TRACE_NONE)
        return add_launch(collecting->trace, event);
    return DP_OK;
}

/* ---- the whole ---- */

static dp_status_t begin(const trace_options_t *options, trace_t *trace)
{
    *trace = (trace_t){.nrecords = 0};
    trace->store = calloc(1, sizeof(*trace->store));
    if (trace->store == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory to read a trace");
    trace->store->budget.most = options->most_bytes > 0 ? options->most_bytes : TRACE_BYTES;
    return DP_OK;
}

/* Puts together what was read. */
static dp_status_t finish(const trace_options_t *options, trace_t *trace)
{
    if (trace->nrecords > 0)
        return trace_resolve(trace);
    if (options->annotations && trace->nranges > 0)
        return DP_OK;
    return dp_fail(DP_ERR_REJECTED,
                   "%llu events, and none is a record of a device: categories kernel, gpu_memcpy, gpu_memset "
                   "of a profiler "
                   "that recorded CUDA, or compute, all-to-all, ... of a timeline of ours are looked for",
                   (unsigned long long)trace->head.events);
}

dp_status_t trace_load_from(json_read_fn read, void *source, const trace_options_t *options, trace_t *trace)
{
    collecting_t collecting = {trace, options};
    dp_status_t status = begin(options, trace);

    if (status == DP_OK)
        status = trace_read(read, source, false, take_event, &collecting, &trace->head);
    return status == DP_OK ? finish(options, trace) : status;
}

/* What trace_read_file() did not name. */
static dp_status_t name_file(dp_status_t status, const char *path)
{
    char message[256];

    if (status == DP_OK)
        return DP_OK;
    snprintf(message, sizeof(message), "%s", dp_last_error());
    return dp_fail(status, "%s: %s", strcmp(path, "-") == 0 ? "standard input" : path, message);
}

dp_status_t trace_load(const char *path, const trace_options_t *options, trace_t *trace)
{
    collecting_t collecting = {trace, options};
    dp_status_t status = begin(options, trace);

    if (status == DP_OK)
        status = trace_read_file(path, false, take_event, &collecting, &trace->head);
    if (status != DP_OK)
        return status;
    return name_file(finish(options, trace), path);
}

void trace_clear(trace_t *trace)
{
    trace_store_t *store = trace->store;

    if (store != NULL) {
        trace_table_free(&store->names);
        trace_table_free(&store->pids);
        trace_table_free(&store->threads);
        free(store->processes);
        free(store->infos);
        free(store->launches);
        free(store);
    }
    free(trace->records);
    free(trace->details);
    free(trace->ranges);
    free(trace->streams);
    free(trace->ranks);
    *trace = (trace_t){.nrecords = 0};
}
