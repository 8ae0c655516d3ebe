/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_findings.c: what a rank's figures leave open. */
#include "trace_findings.h"

#include <strings.h>

#include "trace/segment.h"

/* 0: F, 1: I, B or W; -1: not said. */
static int pass_of(const dp_trace_t *trace, const dp__trace_record_t *record)
{
    uint32_t group = dp__trace_group(trace, record);
    int key;

    if (record->detail != DP__TRACE_NONE && trace->details[record->detail].kind == DP_SPAN_COMPUTE)
        return trace->details[record->detail].pass != DP_OP_F;
    key = group != DP__TRACE_NONE ? dp__trace_segment_of(dp__trace_name(trace, group), NULL, 0) : -1;
    return key < 0 ? -1 : dp__trace_key_pass(key) > 0;
}

static bool is_wait(const char *name)
{
    for (; *name != '\0'; name++)
        if (strncasecmp(name, "wait", 4) == 0)
            return true;
    return false;
}

static bool is_copy(const char *name)
{
    return strncasecmp(name, "memcpy", 6) == 0 || strncasecmp(name, "memset", 6) == 0;
}

/* Communication that is issued and waited for where a rank computes. */
static void find_inlined(const trace_detail_rank_t *rank, const dp_trace_t *trace, trace_findings_t *x)
{
    for (size_t s = 0; s < rank->nstreams; s++) {
        if (rank->streams[s].comm == 0)
            continue;
        if (rank->streams[s].compute <= rank->streams[s].comm) /* it is a stream of communication */
            return;
        x->inlined_on = rank->streams[s].stream;
    }
    for (size_t i = rank->rank->first; i < rank->rank->end && x->inlined_on != DP__TRACE_NONE; i++)
        x->inlined += trace->records[i].class == DP__TRACE_COMM;
}

trace_findings_t trace_findings_of(const dp_trace_t *trace, const trace_detail_rank_t *rank)
{
    trace_findings_t x = {.inlined_on = DP__TRACE_NONE};

    for (size_t i = rank->rank->first; i < rank->rank->end; i++) {
        const dp__trace_record_t *record = &trace->records[i];
        int pass = pass_of(trace, record);

        *(pass == 0 ? &x.forwards : pass > 0 ? &x.backwards : &x.passless) += 1;
        if (record->detail != DP__TRACE_NONE || record->class > DP__TRACE_COMM)
            continue;
        if (is_copy(dp__trace_name(trace, record->name)))
            continue;
        x.device[record->class]++;
        x.gridless[record->class] += record->blocks == 0;
        if (is_wait(dp__trace_name(trace, record->name))) {
            x.a_wait = x.waits++ == 0 ? i : x.a_wait;
            x.wait_time += record->end - record->start;
        }
    }
    find_inlined(rank, trace, &x);
    return x;
}

const char *trace_findings_passes(const trace_findings_t *x)
{
    return x->backwards > 0 ? "both" : x->forwards > 0 ? "forward" : "unknown";
}
