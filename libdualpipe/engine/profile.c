/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * profile.c: operations in ranges of a profiler, and the times of their kernels in the place of
 * those of their turns. */
#include "base/do.h"
#include "base/memory.h"
#include "engine/engine.h"

#include <dualpipe/profiler.h>

#include <string.h>

#define AT_A_TIME 512

/* An operation's number: the step's lower 24 bits, then the span, which is never 0 (that is the
 * step). */
static uint64_t operation_of(uint32_t step, int32_t span)
{
    return (uint64_t)(step & 0xffffff) << 24 | (uint32_t)span;
}

dp_status_t dp__profile_open(dp_pipeline_t *p)
{
    dp_profiler_config_t config = {.struct_size = sizeof(config)};
    const dp_plugin_t *plugin;
    const void *table;

    if (p->options.profiler == NULL || p->profiler.instance != NULL)
        return DP_OK;
    DO(dp_plugin_load(p->options.profiler, &plugin));
    DO(dp_plugin_interface(plugin, DP_IFACE_PROFILER, DP_PROFILER_VT_MIN, &table));
    p->profiler.vt = table;
    return p->profiler.vt->open(p->host, &config, &p->profiler.instance);
}

void dp__profile_close(dp_pipeline_t *p)
{
    if (p->profiler.instance != NULL)
        p->profiler.vt->close(p->profiler.instance);
    p->profiler.instance = NULL;
}

void dp__profile_begin(dp_pipeline_t *p, int32_t span)
{
    static const char *const kinds[] = {"compute", "send", "recv", "reduce", "step"};
    const dp_span_t *s = &p->trace.records[span];

    if (p->profiler.instance != NULL)
        p->profiler.vt->begin(p->profiler.instance, operation_of(p->run.step, span),
                              s->name > 0 ? p->trace.names[s->name - 1] : kinds[s->kind]);
}

void dp__profile_end(dp_pipeline_t *p)
{
    if (p->profiler.instance != NULL)
        p->profiler.vt->end(p->profiler.instance);
}

/* The kept span that an activity belongs to; NULL: its step is not kept any more. `seen` has a byte
 * for each. */
static dp_span_t *kept_span(dp_pipeline_t *p, uint64_t operation, unsigned char *seen, int *first_out)
{
    uint32_t step = (uint32_t)(operation >> 24), span = (uint32_t)operation & 0xffffff;

    for (int32_t k = 0; k < p->trace.steps; k++) {
        size_t row = (size_t)k * (size_t)p->trace.capacity;

        if (p->trace.kept_count[k] <= (int32_t)span || ((uint32_t)p->trace.kept[row].step & 0xffffff) != step)
            continue;
        *first_out = !seen[row + span];
        seen[row + span] = 1;
        return &p->trace.kept[row + span];
    }
    return NULL;
}

static void widen(dp_pipeline_t *p, const dp_activity_t *a, unsigned char *seen)
{
    int first = 0;
    dp_span_t *span = kept_span(p, a->operation, seen, &first);

    if (span == NULL || a->start_ns < 0 || a->end_ns < a->start_ns)
        return;
    if (first || a->start_ns < span->start_ns)
        span->start_ns = a->start_ns;
    if (first || a->end_ns > span->end_ns)
        span->end_ns = a->end_ns;
}

dp_status_t dp__profile_collect(dp_pipeline_t *p)
{
    dp_activity_t *activities;
    unsigned char *seen;
    size_t count = AT_A_TIME;
    dp_status_t status = DP_OK;

    if (p->profiler.instance == NULL)
        return DP_OK;
    activities = dp__allocate(AT_A_TIME * sizeof(*activities), 64);
    seen = dp__calloc((size_t)p->trace.steps * (size_t)p->trace.capacity, 1);
    if (activities == NULL || seen == NULL)
        status = dp_fail(DP_ERR_NOMEM, "no memory for the profiler's activities");
    while (status >= 0 && count == AT_A_TIME) {
        status = p->profiler.vt->collect(p->profiler.instance, activities, AT_A_TIME, &count, NULL);
        for (size_t i = 0; status >= 0 && i < count; i++)
            widen(p, &activities[i], seen);
    }
    dp__free(seen);
    dp__free(activities);
    return status;
}
