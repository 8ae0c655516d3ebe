/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ways.c: backends that complete transfers in matched groups get a stream for each peer and direction, so that a
 * message that is late holds up only what comes from or goes to the same place. */
#include "engine/engine.h"

int32_t dp__stream_count(const dp_pipeline_t *p)
{
    return DP_LANE_COUNT + p->ways.n;
}

dp_stream_t *dp__stream_at(const dp_pipeline_t *p, int32_t i)
{
    return i < DP_LANE_COUNT ? p->lanes.stream[i] : p->ways.at[i - DP_LANE_COUNT].stream;
}

/* Now and then the other streams are looked at: theirs may be the failure that this one waits for. */
dp_status_t dp__stream_finish(dp_pipeline_t *p, dp_stream_t *s)
{
    for (;;) {
        dp_status_t status = p->device_vt->synchronize(s, 100000000);

        if (status == DP_ERR_TIMEOUT)
            status = p->device_vt->query_error(p->device);
        else
            return status;
        if (status >= 0)
            status = dp_group_health(p->group);
        if (status < 0)
            return status;
    }
}

int32_t dp__way_find(const dp_pipeline_t *p, int32_t peer, int32_t sends)
{
    for (int32_t w = 0; w < p->ways.n; w++)
        if (p->ways.at[w].peer == peer && p->ways.at[w].sends == sends)
            return w;
    return -1;
}

dp_status_t dp__ways_open(dp_pipeline_t *p)
{
    for (int32_t c = 0; c < p->programs.training->nchannels && p->programs.bundled; c++) {
        const dp_channel_t *channel = &p->programs.training->channels[c];
        int32_t sends = channel->src == p->grid.p, peer = sends ? channel->dst : channel->src;
        dp_status_t status;

        if ((!sends && channel->dst != p->grid.p) || peer == p->grid.p || dp__way_find(p, peer, sends) >= 0)
            continue;
        if (p->ways.n == DP__WAYS)
            return dp_fail(DP_ERR_REJECTED, "rank %d of the pipeline has more than two neighbours", p->grid.p);
        p->ways.at[p->ways.n] = (dp__way_t){.peer = peer, .sends = sends};
        status = p->device_vt->stream_open(p->device, DP_LANE_P2P, &p->ways.at[p->ways.n].stream);
        if (status < 0)
            return status;
        p->ways.n++;
    }
    return DP_OK;
}

static int makes(const dp_instr_t *i, const dp_channel_t *channel)
{
    if (i->kind != DP_INSTR_COMPUTE)
        return 0;
    if (channel->op == DP_OP_F)
        return (i->op == DP_OP_F || i->op == DP_OP_FB) && i->chunk == channel->src_chunk;
    if (i->op == DP_OP_FB)
        return i->chunk2 == channel->src_chunk;
    return (i->op == DP_OP_B || i->op == DP_OP_I) && i->chunk == channel->src_chunk;
}

static int same_channel(const dp_channel_t *a, const dp_channel_t *b)
{
    return a->src == b->src && a->dst == b->dst && a->src_chunk == b->src_chunk && a->dst_chunk == b->dst_chunk &&
           a->op == b->op;
}

static int32_t held_in(const dp_pipeline_t *p, const dp_program_t *program, const dp_channel_t *channel)
{
    int32_t held = 0, most = 0;

    for (int64_t i = program->first[p->grid.p]; i < program->first[p->grid.p + 1]; i++) {
        const dp_instr_t *instr = &program->instrs[i];

        held += makes(instr, channel);
        most = held > most ? held : most;
        held -= instr->kind == DP_INSTR_SEND && same_channel(&program->channels[instr->channel], channel);
    }
    return most;
}

/* At least two: one is computed while the other is on its way. */
int32_t dp__outputs_held(const dp_pipeline_t *p, const dp_channel_t *channel)
{
    int32_t most = held_in(p, p->programs.training, channel), forward = 0;

    if (p->programs.forward != NULL && channel->op == DP_OP_F)
        forward = held_in(p, p->programs.forward, channel);
    most = forward > most ? forward : most;
    return most > 2 ? most : 2;
}
