/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * move.c: the state of one rank sent to another, in blocks over a channel that is opened for it and
 * closed again. Both walk through the same list: stages in the order of the path, what belongs to
 * the pipeline and the job last. */
#include "base/do.h"
#include "engine/engine.h"
#include "group/reform.h"

#include <stdbool.h>
#include <stdio.h>

enum { BLOCK_BYTES = 256 * 1024, BLOCKS = 4 };

typedef struct road {
    dp_pipeline_t *p;
    const dp_comm_vt_t *vt;
    dp_comm_t *comm;
    dp_channel_end_t *end;
    dp_stream_t *stream;
    int sends;
    uint32_t number;
} road_t;

static dp_status_t open_road(road_t *r, int32_t from, int32_t to)
{
    const int32_t pair[2] = {from, to};
    char name[48];
    const dp_comm_config_t config = {
        .struct_size = sizeof(config),
        .vt = r->vt,
        .name = name,
        .rank = r->sends ? 0 : 1,
        .nranks = 2,
        .world_ranks = pair,
        .device_vt = r->p->device_vt,
        .device = r->p->device,
        .reduce_bytes = 1,
    };
    const dp_channel_config_t channel = {
        .struct_size = sizeof(channel),
        .peer = r->sends ? 1 : 0,
        .sender = r->sends,
        .slots = BLOCKS,
        .slot_bytes = BLOCK_BYTES,
        .label = "state of a rank",
    };

    snprintf(name, sizeof(name), "e%u.state.%d.%d", dp__group_epoch(r->p->group), from, to);
    DO(r->vt->open(r->p->host, &config, &r->comm));
    DO(r->vt->channel_open(r->comm, &channel, &r->end));
    return r->vt->start(r->comm);
}

static dp_status_t pass_block(road_t *r, char *memory, size_t bytes)
{
    const dp_message_tag_t tag = {.number = r->number++, .step = r->p->run.step, .bytes = (uint32_t)bytes};
    const void *slot;

    if (r->sends)
        return r->vt->send(r->end, memory, &tag, r->stream);
    DO(r->vt->recv(r->end, &tag, &slot, r->stream));
    DO(r->p->device_vt->copy(r->stream, memory, slot, bytes));
    return r->vt->release(r->end, tag.number, r->stream);
}

static dp_status_t pass(void *user, int32_t chunk, void *memory, size_t bytes)
{
    road_t *r = user;

    (void)chunk;
    for (size_t at = 0; at < bytes; at += BLOCK_BYTES)
        DO(pass_block(r, (char *)memory + at, bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES));
    return DP_OK;
}

/* ---- what there is ---- */

static bool is_shared(const dp_state_t *s)
{
    return s->scope == DP_STATE_PIPELINE || s->scope == DP_STATE_JOB;
}

static dp_status_t walk_chunk(const dp_pipeline_t *p, int32_t c, dp__visit_state_fn visit, void *user)
{
    DO(visit(user, c, p->chunks[c].params, p->chunks[c].param_bytes));
    for (int32_t i = 0; i < p->states.n; i++) {
        const dp_state_t *s = &p->states.at[i];

        if (!is_shared(s) && s->chunk == c)
            DO(visit(user, c, s->memory, dp__state_bytes(s)));
    }
    return DP_OK;
}

dp_status_t dp__walk_state(const dp_pipeline_t *p, unsigned what, dp__visit_state_fn visit, void *user)
{
    for (int32_t stage = 0; (what & DP__MOVE_CHUNKS) != 0 && stage < dp_schedule_stages(p->schedule); stage++)
        for (int32_t c = 0; c < p->nchunks; c++)
            if (p->chunks[c].place.stage == stage)
                DO(walk_chunk(p, c, visit, user));
    for (int32_t i = 0; (what & DP__MOVE_SHARED) != 0 && i < p->states.n; i++)
        if (is_shared(&p->states.at[i]))
            DO(visit(user, -1, p->states.at[i].memory, dp__state_bytes(&p->states.at[i])));
    return DP_OK;
}

dp_status_t dp__move_state(dp_pipeline_t *p, int32_t from, int32_t to, unsigned what)
{
    const int32_t self = dp_group_rank(p->group);
    road_t r = {.p = p, .vt = p->comms.vt, .stream = p->lanes.stream[DP_LANE_P2P], .sends = self == from};
    dp_status_t status;

    if (self != from && self != to)
        return DP_OK;
    status = open_road(&r, from, to);
    if (status >= 0)
        status = dp__walk_state(p, what, pass, &r);
    if (status >= 0)
        status = dp__stream_finish(p, r.stream);
    if (status < 0) {
        /* closing meets the other rank */
        status = dp__engine_fail(p, status, "moving the state of a rank");
        dp__engine_settle(p);
    }
    r.vt->close(r.comm);
    return status;
}
