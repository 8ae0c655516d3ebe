/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * devices.c: records without a category, as torch_npu, msprof and XLA write them: the names of
 * their process and thread, which may come last, say whether they are a device's. */
#include <stdio.h>

#include "trace/store.h"

static bool counts(const dp_trace_t *trace, uint32_t stream, const regex_t *devices)
{
    const dp__trace_process_t *process = &trace->store->processes[trace->streams[stream].process];
    const char *thread = trace->streams[stream].label;
    char whole[2 * DP__TRACE_ID_BYTES + 1];

    if (dp__trace_machine_counts((dp__trace_machine_t)process->machine, thread))
        return true;
    snprintf(whole, sizeof(whole), "%s/%s", process->label, thread);
    return devices != NULL && regexec(devices, whole, 0, NULL, 0) == 0;
}

/* An NPU's process that is of the same rank as one with its collectives, or the only one. */
static uint32_t device_of(const dp__trace_store_t *store, size_t comm)
{
    uint32_t found = DP__TRACE_NONE;

    for (size_t p = 0; p < store->pids.count; p++) {
        const dp__trace_process_t *process = &store->processes[p];

        if (process->machine != DP__TRACE_ASCEND || !process->has_device ||
            process->rank != store->processes[comm].rank)
            continue;
        if (found != DP__TRACE_NONE)
            return DP__TRACE_NONE;
        found = (uint32_t)p;
    }
    return found;
}

/* Collectives run on the device whose streams another process shows. */
static void join_processes(dp_trace_t *trace)
{
    dp__trace_store_t *store = trace->store;

    for (size_t p = 0; p < store->pids.count; p++) {
        uint32_t device = store->processes[p].machine == DP__TRACE_ASCEND_COMM ? device_of(store, p) : DP__TRACE_NONE;

        for (size_t s = 0; device != DP__TRACE_NONE && s < trace->nstreams; s++)
            if (trace->streams[s].process == p)
                trace->streams[s].process = device;
        store->processes[p].has_device &= device == DP__TRACE_NONE;
    }
}

void dp__trace_keep_devices(dp_trace_t *trace, const regex_t *devices)
{
    dp__trace_store_t *store = trace->store;
    size_t kept = 0;

    for (size_t s = 0; s < trace->nstreams; s++) {
        trace->streams[s].counts = counts(trace, (uint32_t)s, devices);
        trace->head.broken_kept += trace->streams[s].counts ? trace->streams[s].broken : 0;
    }
    for (size_t i = 0; i < trace->nrecords; i++) {
        dp__trace_record_t *record = &trace->records[i];
        dp__trace_process_t *process = &store->processes[trace->streams[record->stream].process];

        if (record->bare && !trace->streams[record->stream].counts)
            continue;
        process->has_device = true;
        if (record->bare && process->machine == DP__TRACE_ASCEND_COMM)
            record->class = DP__TRACE_COMM;
        trace->records[kept++] = *record;
    }
    trace->nrecords = kept;
    join_processes(trace);
}
