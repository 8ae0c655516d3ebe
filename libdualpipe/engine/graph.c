/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * graph.c: a step captured once and replayed: the calling thread then puts one launch on the device
 * instead of thousands of operations. The first step runs as always and finds everything that only
 * shows at first use; then the first step of a kind (training, by its round, forward only) is
 * captured; it and all others are replays, until the trainer lends other memory or another loss
 * scale. */
#include "base/do.h"
#include "base/memory.h"
#include "engine/engine.h"

#include <dualpipe/draft/graph.h>

#include <stdio.h>

dp_status_t dp__graphs_open(dp_pipeline_t *p)
{
    const size_t pointers = 3 * (size_t)p->schedule->microbatches;

    if (!p->options.graph)
        return DP_OK;
    if ((p->device_vt->caps & DP_DEVICE_CAP_GRAPH) == 0)
        return dp_fail(DP_ERR_UNSUPPORTED, "graph: device plugin %s cannot capture work", p->device_name);
    if ((p->comms.vt->caps & DP_COMM_CAP_CAPTURE) == 0)
        return dp_fail(DP_ERR_UNSUPPORTED, "graph: transfers of comm plugin %s cannot be captured", p->comm_name);
    if (dp_group_size(p->group) > 1 && dp_group_rank(p->group) == 0)
        dp_log(
            DP_LOG_WARN, "engine",
            "graph: experimental with several ranks: waits for other ranks are kernels that spin, and the driver may "
            "put one in front of what the other rank waits for");
    for (int i = 0; i < DP__GRAPHS; i++) {
        p->graphs.at[i].lent = dp__calloc(pointers, sizeof(void *));
        if (p->graphs.at[i].lent == NULL)
            return dp_fail(DP_ERR_NOMEM, "no memory for what a graph remembers of its step");
    }
    return DP_OK;
}

void dp__graphs_forget(dp_pipeline_t *p)
{
    for (int i = 0; i < DP__GRAPHS; i++) {
        if (p->graphs.at[i].graph != NULL)
            p->device_vt->graph_close(p->graphs.at[i].graph);
        p->graphs.at[i].graph = NULL;
        p->graphs.at[i].runs = 0;
    }
}

void dp__graphs_close(dp_pipeline_t *p)
{
    dp__graphs_forget(p);
    for (int i = 0; i < DP__GRAPHS; i++) {
        dp__free(p->graphs.at[i].lent);
        p->graphs.at[i].lent = NULL;
    }
}

static const void *lent_at(const dp_step_t *step, int32_t which, int32_t microbatch)
{
    const void *const *list = which == 0   ? step->inputs
                              : which == 1 ? step->targets
                                           : (const void *const *)step->outputs;

    return list != NULL ? list[microbatch] : NULL;
}

/* Whether what the trainer lends is what the graph was captured with; remembers it otherwise. */
static int same_as_before(dp__graph_t *g, const dp_step_t *step, int32_t microbatches, uint64_t revision)
{
    int same = g->graph != NULL && g->loss_scale == step->loss_scale && g->revision == revision;

    for (int32_t which = 0; which < 3; which++)
        for (int32_t microbatch = 0; microbatch < microbatches; microbatch++) {
            const void **place = &g->lent[which * microbatches + microbatch];
            same &= *place == lent_at(step, which, microbatch);
            *place = lent_at(step, which, microbatch);
        }
    g->loss_scale = step->loss_scale;
    g->revision = revision;
    return same;
}

/* Every stream takes part from the start, and is waited for at the end. */
static dp_status_t put_graph(dp_pipeline_t *p, const dp__plan_t *plan, const dp_step_t *step)
{
    dp_stream_t *origin = p->lanes.stream[DP_LANE_COMPUTE];
    dp_event_t *mark = p->lanes.mark[DP_LANE_COMPUTE];

    DO(p->device_vt->event_record(mark, origin));
    for (int32_t i = 0; i < dp__stream_count(p); i++)
        if (dp__stream_at(p, i) != origin)
            DO(p->device_vt->stream_wait(dp__stream_at(p, i), mark));
    DO(dp__step_put(p, plan, step));
    for (int32_t i = 0; i < dp__stream_count(p); i++)
        if (dp__stream_at(p, i) != origin) {
            DO(p->device_vt->event_record(mark, dp__stream_at(p, i)));
            DO(p->device_vt->stream_wait(origin, mark));
        }
    return DP_OK;
}

static dp_status_t capture(dp_pipeline_t *p, dp__graph_t *g, const dp__plan_t *plan, const dp_step_t *step)
{
    dp_stream_t *origin = p->lanes.stream[DP_LANE_COMPUTE];
    dp_graph_t *graph = NULL;
    dp_status_t status, ended;

    if (g->graph != NULL)
        p->device_vt->graph_close(g->graph);
    g->graph = NULL;
    DO(p->device_vt->capture_begin(origin));
    status = put_graph(p, plan, step);
    if (status < 0) {
        char why[512];

        snprintf(why, sizeof(why), "%s", dp_last_error());
        if (p->device_vt->capture_end(origin, &graph) == DP_OK)
            p->device_vt->graph_close(graph);
        return dp_fail(status, "%s", why);
    }
    ended = p->device_vt->capture_end(origin, &graph);
    g->graph = ended == DP_OK ? graph : NULL;
    return ended;
}

static uint64_t revision_of(const dp_pipeline_t *p)
{
    uint64_t sum = 0;

    for (int32_t c = 0; c < p->nchunks; c++)
        sum += dp__stage_revision(p->chunks[c].stage);
    return sum;
}

static dp__graph_t *graph_of(dp_pipeline_t *p, const dp_step_t *step)
{
    const int training = (step->round > 0) + 2 * !dp__last_round(step);

    return &p->graphs.at[step->forward_only ? DP__GRAPHS - 1 : training];
}

static bool any_captured(const dp_pipeline_t *p)
{
    for (int i = 0; i < DP__GRAPHS; i++)
        if (p->graphs.at[i].graph != NULL)
            return true;
    return false;
}

dp_status_t dp__graph_put(dp_pipeline_t *p, const dp__plan_t *plan, const dp_step_t *step)
{
    dp__graph_t *g = graph_of(p, step);
    const int first = g->graph == NULL;

    p->graphs.replayed = 0;
    /* what one graph has captured only replays may use: from then on everything is captured */
    if (g->runs++ == 0 && !any_captured(p))
        return dp__step_put(p, plan, step);
    p->graphs.replayed = same_as_before(g, step, p->schedule->microbatches, revision_of(p));
    if (!p->graphs.replayed) {
        DO(dp__gather_finish(p)); /* streams are idle where a capture begins */
        DO(capture(p, g, plan, step));
    }
    /* making a graph may wait for the whole device, so none runs before all are made */
    if (first)
        DO(dp_group_barrier(p->group));
    return p->device_vt->graph_launch(g->graph, p->lanes.stream[DP_LANE_COMPUTE]);
}
