/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * align.c: the rows of all ranks in one timeline, on rank 0's clock. A rank sends its spans on its
 * own clock, and what its host knows of rank 0's; ranks of one host know that together. */
#include "base/memory.h"
#include "engine/engine.h"
#include "group/spans.h"
#include "timeline/clock.h"
#include "timeline/pack.h"

#include <string.h>

#define BEFORE_NS 2000000000 /* round trips so long before the first span help to know its time */

typedef struct host {
    dp__clock_sample_t *samples; /* [count] */
    size_t count;
} host_t;

typedef struct gathering {
    const dp_host_places_t *places;
    dp_timeline_t *timeline;
    host_t *hosts; /* [places->hosts] */
} gathering_t;

/* ---- what a rank sends: how many samples, the samples, its packed row ---- */

/* A moment that is early enough to know the time of all spans. */
static int64_t since(const dp_timeline_t *row)
{
    int64_t count;
    const dp_span_t *spans = dp_timeline_spans(row, 0, &count);
    int64_t first = count > 0 ? spans[0].start_ns : 0;

    for (int64_t i = 1; i < count; i++)
        first = spans[i].start_ns < first ? spans[i].start_ns : first;
    return first - BEFORE_NS;
}

static dp_status_t pack(dp_pipeline_t *p, const dp_timeline_t *row, void **packed_out, size_t *bytes_out)
{
    dp__clock_sample_t *samples = dp__allocate(DP__CLOCK_SAMPLES * sizeof(*samples), 16);
    size_t count = 0, bytes = 0, before;
    dp_status_t status = samples != NULL ? DP_OK : dp_fail(DP_ERR_NOMEM, "no memory for the times of other hosts");

    if (status >= 0)
        status = dp__group_clock(p->group, since(row), samples, &count);
    if (status >= 0)
        status = dp__timeline_pack(row, 0, NULL, &bytes);
    before = sizeof(count) + count * sizeof(*samples);
    if (status >= 0 && (*packed_out = dp__allocate(before + bytes, 64)) == NULL)
        status = dp_fail(DP_ERR_NOMEM, "no memory to pack %zu bytes of spans", bytes);
    if (status >= 0) {
        memcpy(*packed_out, &count, sizeof(count));
        memcpy((char *)*packed_out + sizeof(count), samples, before - sizeof(count));
        status = dp__timeline_pack(row, 0, (char *)*packed_out + before, &bytes);
        *bytes_out = before + bytes;
    }
    dp__free(samples);
    return status;
}

/* ---- what the root makes of it ---- */

static dp_status_t add_samples(host_t *host, const void *samples, size_t count)
{
    dp__clock_sample_t *more =
        dp__enlarge(host->samples, host->count * sizeof(*more), (host->count + count) * sizeof(*more));

    if (more == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the times of other hosts");
    memcpy(more + host->count, samples, count * sizeof(*more));
    host->samples = more;
    host->count += count;
    return DP_OK;
}

static dp_status_t unpack(void *user, int32_t rank, const void *data, size_t bytes)
{
    const gathering_t *g = user;
    const char *at = data;
    size_t count = 0, before;
    dp_status_t status = DP_OK;

    if (bytes >= sizeof(count))
        memcpy(&count, at, sizeof(count));
    if (bytes < sizeof(count) || count > DP__CLOCK_SAMPLES ||
        (bytes - sizeof(count)) / sizeof(dp__clock_sample_t) < count)
        return dp_fail(DP_ERR_PROTOCOL, "timeline: rank %d: the times of its host are cut off", rank);
    before = sizeof(count) + count * sizeof(dp__clock_sample_t);
    if (count > 0)
        status = add_samples(&g->hosts[g->places->host_of[rank]], at + sizeof(count), count);
    return status < 0 ? status : dp__timeline_unpack(g->timeline, rank, at + before, bytes - before);
}

static void align(const gathering_t *g)
{
    for (int32_t h = 0; h < g->places->hosts; h++)
        dp__clock_sort(g->hosts[h].samples, g->hosts[h].count);
    for (int32_t r = 0; r < g->places->ranks; r++) {
        const host_t *host = &g->hosts[g->places->host_of[r]];

        dp__timeline_set_host(g->timeline, r, g->places->host_of[r]);
        if (host->count > 0)
            dp__timeline_align(g->timeline, r, host->samples, host->count);
    }
}

dp_status_t dp__timeline_collect(dp_pipeline_t *p, const dp_timeline_t *row, int64_t room, dp_timeline_t **all_out)
{
    gathering_t g = {.places = p->host->get_service(p->host, DP_HOST_PLACES)};
    void *packed = NULL;
    size_t bytes = 0;
    dp_status_t status = pack(p, row, &packed, &bytes);

    if (status >= 0 && dp_group_rank(p->group) == 0) {
        g.hosts = dp__calloc((size_t)g.places->hosts, sizeof(*g.hosts));
        status = g.hosts != NULL ? dp_timeline_create(g.places->ranks, room, &g.timeline)
                                 : dp_fail(DP_ERR_NOMEM, "no memory for the times of %d hosts", g.places->hosts);
    }
    if (status >= 0)
        status = dp__group_collect(p->group, 0, packed, bytes, unpack, &g);
    if (status >= 0 && g.timeline != NULL)
        align(&g);
    for (int32_t h = 0; g.hosts != NULL && h < g.places->hosts; h++)
        dp__free(g.hosts[h].samples);
    dp__free(g.hosts);
    dp__free(packed);
    if (status < 0) {
        dp_timeline_free(g.timeline);
        return status;
    }
    *all_out = g.timeline;
    return DP_OK;
}
