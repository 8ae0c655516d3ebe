/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace.c: collects from the events of a trace what its figures are made of. */
#include "trace/trace.h"
#include "base/do.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/sized.h"
#include "trace/store.h"

#define CLASS_UNKNOWN 255
#define NAME_KEPT     640 /* bytes of a name */

typedef struct collecting {
    dp_trace_t *trace;
    const regex_t *comm, *devices; /* NULL: no more of them */
} collecting_t;

const char *dp__trace_name(const dp_trace_t *trace, uint32_t name)
{
    return name < trace->store->names.count ? dp__trace_table_text(&trace->store->names, name) : "";
}

size_t dp__trace_names(const dp_trace_t *trace)
{
    return trace->store->names.count;
}

bool dp__trace_likely(const dp_trace_t *trace, uint32_t name)
{
    return trace->store->infos[name].likely;
}

uint32_t dp__trace_group(const dp_trace_t *trace, const dp__trace_record_t *record)
{
    return record->range != DP__TRACE_NONE ? trace->ranges[record->range].name : trace->store->infos[record->name].stem;
}

/* ---- names, processes, threads ---- */

static dp_status_t add_name(dp_trace_t *trace, const char *name, uint32_t *number_out)
{
    dp__trace_store_t *store = trace->store;
    size_t before = store->names.count;
    char kept[NAME_KEPT];
    void *infos = store->infos;
    dp_status_t status;

    snprintf(kept, sizeof(kept), "%s", name);
    status = dp__trace_table_add(&store->names, &store->budget, kept, number_out);
    if (status != DP_OK || store->names.count == before)
        return status;
    status = dp__trace_grow(&store->budget, &infos, &store->infos_room, before, sizeof(*store->infos));
    store->infos = infos;
    if (status == DP_OK)
        store->infos[before] = (dp__trace_name_info_t){.class = CLASS_UNKNOWN, .stem = DP__TRACE_NONE};
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

static dp_status_t find_process(dp_trace_t *trace, const dp__trace_event_t *event, uint32_t *process_out)
{
    dp__trace_store_t *store = trace->store;
    size_t before = store->pids.count;
    void *processes = store->processes;
    dp_status_t status = dp__trace_table_add(&store->pids, &store->budget, event->pid, process_out);

    if (status != DP_OK || store->pids.count == before)
        return status;
    status = dp__trace_grow(&store->budget, &processes, &store->processes_room, before, sizeof(*store->processes));
    store->processes = processes;
    if (status == DP_OK)
        store->processes[before] = (dp__trace_process_t){.rank = -1, .row = DP__TRACE_NONE};
    return status;
}

static dp_status_t find_stream(dp_trace_t *trace, const dp__trace_event_t *event, uint32_t *stream_out)
{
    dp__trace_store_t *store = trace->store;
    char key[2 * DP__TRACE_ID_BYTES + 1];
    size_t before = store->threads.count;
    void *streams = trace->streams;
    uint32_t process;
    dp_status_t status = find_process(trace, event, &process);

    snprintf(key, sizeof(key), "%s\n%s", event->pid, event->tid);
    if (status == DP_OK)
        status = dp__trace_table_add(&store->threads, &store->budget, key, stream_out);
    if (status != DP_OK || store->threads.count == before)
        return status;
    status = dp__trace_grow(&store->budget, &streams, &store->streams_room, before, sizeof(*trace->streams));
    trace->streams = streams;
    if (status != DP_OK)
        return status;
    trace->streams[before] = (dp__trace_stream_t){.process = process, .rank = DP__TRACE_NONE, .number = -1};
    snprintf(trace->streams[before].label, sizeof(trace->streams[before].label), "%s", event->tid);
    trace->nstreams = store->threads.count;
    return DP_OK;
}

/* ---- events ---- */

static dp__trace_class_t class_of(const collecting_t *collecting, uint32_t name, const char *text)
{
    dp__trace_name_info_t *info = &collecting->trace->store->infos[name];

    if (info->class == CLASS_UNKNOWN) {
        info->class = (uint8_t)dp__trace_class_of(text, collecting->comm);
        info->likely = info->class == DP__TRACE_COMPUTE && dp__trace_resembles_comm(text);
    }
    return (dp__trace_class_t)info->class;
}

/* "attention F 3" without the 3. */
static dp_status_t find_stem(dp_trace_t *trace, uint32_t name, const char *text)
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

static dp_status_t add_detail(dp_trace_t *trace, const dp__trace_event_t *event, dp__trace_record_t *record)
{
    dp__trace_detail_t detail = {.pass = dp__trace_pass_of(event->name)};
    void *details = trace->details;
    dp_status_t status =
        dp__trace_grow(&trace->store->budget, &details, &trace->store->details_room, trace->ndetails, sizeof(detail));

    trace->details = details;
    if (status != DP_OK)
        return status;
    record->class = (uint8_t)dp__trace_lane_class(event->category, &detail.lane, &detail.kind);
    memcpy(detail.value, event->details, sizeof(detail.value));
    record->detail = (uint32_t)trace->ndetails;
    trace->details[trace->ndetails++] = detail;
    return DP_OK;
}

static dp_status_t add_record(const collecting_t *collecting, const dp__trace_event_t *event, bool lane, bool bare)
{
    dp_trace_t *trace = collecting->trace;
    dp__trace_store_t *store = trace->store;
    dp__trace_record_t record = {.range = DP__TRACE_NONE, .detail = DP__TRACE_NONE, .bare = bare};
    void *records = trace->records;
    dp_status_t status = find_stream(trace, event, &record.stream);

    if (status == DP_OK)
        status = add_name(trace, event->name, &record.name);
    if (status == DP_OK && lane && store->infos[record.name].stem == DP__TRACE_NONE)
        status = find_stem(trace, record.name, event->name);
    if (status == DP_OK)
        status = dp__trace_grow(&store->budget, &records, &store->records_room, trace->nrecords, sizeof(record));
    trace->records = records;
    if (status == DP_OK && lane)
        status = add_detail(trace, event, &record);
    if (status != DP_OK)
        return status;
    record.start = event->start_ns;
    record.end = event->start_ns + event->length_ns;
    if (!lane)
        record.class = (uint8_t)dp__trace_class_of_task(event->task, class_of(collecting, record.name, event->name));
    record.blocks = event->blocks < UINT32_MAX ? (uint32_t)event->blocks : UINT32_MAX;
    if (event->correlation > 0 && event->correlation < DP__TRACE_NONE)
        record.range = (uint32_t)event->correlation; /* until dp__trace_resolve() */
    trace->streams[record.stream].number = event->stream;
    trace->records[trace->nrecords++] = record;
    return DP_OK;
}

static dp_status_t add_range(dp_trace_t *trace, const dp__trace_event_t *event, bool on_device)
{
    dp__trace_range_t range = {.start = event->start_ns,
                               .end = event->start_ns + event->length_ns,
                               .parent = DP__TRACE_NONE,
                               .on_device = on_device};
    void *ranges = trace->ranges;
    dp_status_t status = find_stream(trace, event, &range.thread);

    if (status == DP_OK)
        status = add_name(trace, event->name, &range.name);
    if (status == DP_OK)
        status =
            dp__trace_grow(&trace->store->budget, &ranges, &trace->store->ranges_room, trace->nranges, sizeof(range));
    trace->ranges = ranges;
    if (status == DP_OK)
        trace->ranges[trace->nranges++] = range;
    return status;
}

static dp_status_t add_launch(dp_trace_t *trace, const dp__trace_event_t *event)
{
    dp__trace_store_t *store = trace->store;
    dp__trace_launch_t launch = {.time = event->start_ns, .correlation = (uint32_t)event->correlation};
    void *launches = store->launches;
    dp_status_t status = find_stream(trace, event, &launch.thread);

    if (status == DP_OK)
        status = dp__trace_grow(&store->budget, &launches, &store->launches_room, store->nlaunches, sizeof(launch));
    store->launches = launches;
    if (status == DP_OK)
        store->launches[store->nlaunches++] = launch;
    return status;
}

static void name_process(dp__trace_process_t *process, const char *label)
{
    process->rank = rank_in(label);
    process->machine = (uint8_t)dp__trace_machine_of(label);
    snprintf(process->label, sizeof(process->label), "%s", label);
}

static dp_status_t take_metadata(dp_trace_t *trace, const dp__trace_event_t *event)
{
    uint32_t number;
    dp_status_t status = DP_OK;

    if (strcmp(event->name, "process_name") == 0) {
        status = find_process(trace, event, &number);
        if (status == DP_OK)
            name_process(&trace->store->processes[number], event->label);
    } else if (strcmp(event->name, "thread_name") == 0 && event->label[0] != 0) {
        status = find_stream(trace, event, &number);
        if (status == DP_OK)
            memcpy(trace->streams[number].label, event->label, sizeof(event->label));
    }
    return status;
}

/* Without a category. Names of processes and threads may come after their events. */
static dp_status_t take_bare(const collecting_t *collecting, const dp__trace_event_t *event)
{
    dp_trace_t *trace = collecting->trace;
    uint32_t process;
    dp_status_t status = find_process(trace, event, &process);

    if (status != DP_OK)
        return status;
    if (trace->store->processes[process].machine == DP__TRACE_HOST && collecting->devices == NULL)
        return DP_OK;
    return add_record(collecting, event, false, true);
}

/* Whether one without a category is a device's is known at the end. */
static dp_status_t leave_out(dp_trace_t *trace, const dp__trace_event_t *event, bool kept)
{
    uint32_t stream;
    dp_status_t status;

    dp__trace_note_broken(&trace->head, event, kept);
    if (event->phase != 'X' || event->category[0] != 0)
        return DP_OK;
    status = find_stream(trace, event, &stream);
    if (status == DP_OK)
        trace->streams[stream].broken++;
    return status;
}

/* Of a launch the start alone is used. What nobody looks at is not judged either. */
static dp_status_t take_event(void *user, const dp__trace_event_t *event)
{
    const collecting_t *collecting = user;
    dp__trace_source_t source;

    if (event->phase == 'M')
        return take_metadata(collecting->trace, event);
    source = event->phase == 'X' ? dp__trace_source_of(event->category, collecting->devices) : DP__TRACE_OTHER;
    if (event->phase == 'X' && event->has_start && source == DP__TRACE_OTHER && event->correlation > 0 &&
        event->correlation < DP__TRACE_NONE)
        return add_launch(collecting->trace, event);
    if (event->broken != NULL)
        return leave_out(collecting->trace, event, source != DP__TRACE_OTHER);
    if (event->phase != 'X' || !event->has_start)
        return DP_OK;
    if (source == DP__TRACE_DEVICE || source == DP__TRACE_LANE)
        return add_record(collecting, event, source == DP__TRACE_LANE, false);
    if (source == DP__TRACE_RANGE || source == DP__TRACE_LANE_RANGE)
        return add_range(collecting->trace, event, source == DP__TRACE_LANE_RANGE);
    return event->category[0] == 0 && event->has_length ? take_bare(collecting, event) : DP_OK;
}

/* ---- the whole ---- */

static dp_status_t no_device(const dp_trace_t *trace)
{
    char broken[96] = "";

    if (trace->head.broken > 0)
        snprintf(broken, sizeof(broken), "; %llu left out, byte %llu: %s", (unsigned long long)trace->head.broken,
                 (unsigned long long)trace->head.broken_at, trace->head.broken_why);
    return dp_fail(DP_ERR_REJECTED,
                   "%llu events, and none is a record of a device: neither kernel, gpu_memcpy, ... nor of a process of "
                   "Ascend or XLA, nor a span of ours (--device adds more)%s",
                   (unsigned long long)trace->head.events, broken);
}

/* Puts together what was read. */
static dp_status_t finish_trace(dp_trace_t *trace, bool annotations, const regex_t *devices)
{
    dp__trace_keep_devices(trace, devices);
    if (trace->nrecords > 0)
        return dp__trace_resolve(trace);
    return annotations && trace->nranges > 0 ? DP_OK : no_device(trace);
}

static dp_trace_t *open_trace(uint64_t most_bytes)
{
    dp_trace_t *trace = dp__calloc(1, sizeof(*trace));

    if (trace != NULL)
        trace->store = dp__calloc(1, sizeof(*trace->store));
    if (trace == NULL || trace->store == NULL) {
        dp__free(trace);
        return NULL;
    }
    trace->store->budget.most = most_bytes > 0 ? most_bytes : DP__TRACE_BYTES;
    return trace;
}

/* An expression that may not be there. */
typedef struct pattern {
    regex_t regex;
    bool given;
} pattern_t;

static dp_status_t open_pattern(const char *text, pattern_t *pattern)
{
    dp_status_t status = text != NULL ? dp__trace_regex(text, &pattern->regex) : DP_OK;

    pattern->given = text != NULL && status == DP_OK;
    return status;
}

static void close_pattern(pattern_t *pattern)
{
    if (pattern->given)
        regfree(&pattern->regex);
}

static dp_status_t read_trace(dp_read_fn read, void *user, const dp_trace_options_t *options, const pattern_t *comm,
                              const pattern_t *devices, dp_trace_t **trace_out)
{
    collecting_t collecting = {.trace = open_trace(options->most_bytes),
                               .comm = comm->given ? &comm->regex : NULL,
                               .devices = devices->given ? &devices->regex : NULL};
    dp_trace_t *trace = collecting.trace;
    dp_status_t status;

    if (trace == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory to read a trace");
    status = dp__trace_read(read, user, false, take_event, &collecting, &trace->head);
    if (status == DP_OK)
        status = finish_trace(trace, options->annotations != 0, collecting.devices);
    if (status == DP_OK)
        *trace_out = trace;
    else
        dp_trace_free(trace);
    return status;
}

dp_status_t dp_trace_read(dp_read_fn read, void *user, const dp_trace_options_t *options, dp_trace_t **trace_out)
{
    dp_trace_options_t own = {.struct_size = sizeof(own)};
    pattern_t comm, devices = {.given = false};
    dp_status_t status;

    if (read == NULL || trace_out == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_trace_read: read and trace_out must not be NULL");
    *trace_out = NULL;
    if (options != NULL)
        DO(dp__take("dp_trace_read: options", dp_trace_options_t, DP_TRACE_OPTIONS_MIN, &own, options));
    status = open_pattern(own.communication, &comm);
    if (status == DP_OK)
        status = open_pattern(own.devices, &devices);
    if (status == DP_OK)
        status = read_trace(read, user, &own, &comm, &devices, trace_out);
    close_pattern(&comm);
    close_pattern(&devices);
    return status;
}

void dp_trace_free(dp_trace_t *trace)
{
    dp__trace_store_t *store;

    if (trace == NULL)
        return;
    store = trace->store;
    dp__trace_table_free(&store->names);
    dp__trace_table_free(&store->pids);
    dp__trace_table_free(&store->threads);
    dp__free(store->processes);
    dp__free(store->infos);
    dp__free(store->launches);
    dp__free(store);
    dp__free(trace->records);
    dp__free(trace->details);
    dp__free(trace->ranges);
    dp__free(trace->streams);
    dp__free(trace->ranks);
    dp__free(trace);
}

dp_status_t dp_trace_about(const dp_trace_t *trace, dp_trace_about_t *about_out)
{
    dp_trace_about_t found = {.struct_size = sizeof(found)};
    dp_status_t status =
        dp__sized_check("dp_trace_about: about_out", about_out, "dp_trace_about_t", DP_TRACE_ABOUT_MIN);

    if (status != DP_OK)
        return status;
    if (trace == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_trace_about: trace is NULL");
    found.devices = (int32_t)trace->nranks;
    found.events = trace->head.events;
    found.records = (int64_t)trace->nrecords;
    found.sms = trace->head.sms;
    found.cut_off = trace->head.unclosed;
    found.broken = (int64_t)trace->head.broken;
    found.broken_records = (int64_t)trace->head.broken_kept;
    dp_sized_put(about_out, &found);
    return DP_OK;
}
