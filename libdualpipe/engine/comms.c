/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comms.c: the groups this rank belongs to, and its ends of the program's channels. */
#include "base/do.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "group/reform.h"
#include "mixed/mixed.h"

#include <stdio.h>
#include <string.h>

enum { COMMS = 9 + DP__TIES }; /* in a dp__comms_t */

/* World ranks of the members of one group, found by walking the grid. */
typedef struct members {
    int32_t *world; /* [n] */
    int32_t n, rank;
} members_t;

static void add_member(members_t *m, const dp__grid_t *g, int32_t p, int32_t e, int32_t d)
{
    if (p == g->p && e == g->e && d == g->d)
        m->rank = m->n;
    m->world[m->n++] = dp__world_rank(g, p, e, d);
}

static dp_status_t open_group(dp_pipeline_t *p, const dp__comms_t *comms, const char *name, const members_t *members,
                              dp_comm_t **comm_out)
{
    const uint32_t epoch = dp__group_epoch(p->group);
    char full[128], again[16] = "";
    dp_comm_config_t config = {
        .struct_size = sizeof(config),
        .name = full,
        .rank = members->rank,
        .nranks = members->n,
        .world_ranks = members->world,
        .device_vt = p->device_vt,
        .device = p->device,
        .vt = comms->vt,
    };

    if (epoch > 1)
        snprintf(again, sizeof(again), "e%u.", epoch);
    snprintf(full, sizeof(full), "%sp%llu.%u.%s", again, (unsigned long long)p->serial, p->generation, name);
    return comms->vt->open(p->host, &config, comm_out);
}

/* What gradients are summed over. */
static dp_status_t open_sums(dp_pipeline_t *p, const dp__comms_t *comms, const char *what, members_t *m,
                             dp__sum_comms_t *sums)
{
    const dp__grid_t *g = &p->grid;
    int32_t mirror = p->chunks != NULL ? p->chunks[0].place.mirror_rank : -1;
    char name[64];

    if (mirror >= 0 && mirror != g->p && !p->schedule->forward_only) {
        int32_t low = mirror < g->p ? mirror : g->p;

        m->n = 0;
        add_member(m, g, low, g->e, g->d);
        add_member(m, g, mirror + g->p - low, g->e, g->d);
        snprintf(name, sizeof(name), "%smirror.%d.%d.%d", what, g->d, g->e, low);
        DO(open_group(p, comms, name, m, &sums->mirror));
    }
    if (g->ep * g->dp > 1) {
        m->n = 0;
        for (int32_t d = 0; d < g->dp; d++)
            for (int32_t e = 0; e < g->ep; e++)
                add_member(m, g, g->p, e, d);
        snprintf(name, sizeof(name), "%sdense.%d", what, g->p);
        DO(open_group(p, comms, name, m, &sums->dense));
    }
    if (g->dp > 1) {
        m->n = 0;
        for (int32_t d = 0; d < g->dp; d++)
            add_member(m, g, g->p, g->e, d);
        snprintf(name, sizeof(name), "%sexpert_data.%d.%d", what, g->p, g->e);
        DO(open_group(p, comms, name, m, &sums->expert_data));
    }
    return DP_OK;
}

/* Groups in one fixed order on every rank; each open waits for its members, and no two orders can
 * cross. */
static dp_status_t open_groups(dp_pipeline_t *p, dp__comms_t *comms, members_t *m)
{
    const dp__grid_t *g = &p->grid;
    char name[64];

    m->n = 0;
    for (int32_t i = 0; i < g->pp; i++)
        add_member(m, g, i, g->e, g->d);
    snprintf(name, sizeof(name), "pipeline.%d.%d", g->d, g->e);
    DO(open_group(p, comms, name, m, &comms->pipeline));

    m->n = 0;
    for (int32_t i = 0; i < g->ep; i++)
        add_member(m, g, g->p, i, g->d);
    snprintf(name, sizeof(name), "expert.%d.%d", g->d, g->p);
    DO(open_group(p, comms, name, m, &comms->expert));
    DO(open_sums(p, comms, "", m, &comms->sums));
    if (p->options.graph && dp__zero_is_on(p))
        DO(open_sums(p, comms, "gather.", m, &comms->gathers));
    m->n = 0;
    for (int32_t d = 0; d < g->dp; d++)
        for (int32_t e = 0; e < g->ep; e++)
            for (int32_t i = 0; i < g->pp; i++)
                add_member(m, g, i, e, d);
    return open_group(p, comms, "world", m, &comms->world);
}

dp_status_t dp__comms_open(dp_pipeline_t *p, const dp_comm_vt_t *vt, dp__comms_t *comms)
{
    members_t members = {dp__calloc((size_t)dp_group_size(p->group), sizeof(*members.world)), 0, 0};
    dp_status_t status;

    *comms = (dp__comms_t){.vt = vt};
    if (members.world == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the member lists of %d ranks", dp_group_size(p->group));
    p->generation++;
    status = open_groups(p, comms, &members);
    dp__free(members.world);
    return status;
}

int dp__comms_bundle(const dp__comms_t *comms)
{
    return (dp_comm_caps(comms->vt, comms->pipeline) & DP_COMM_CAP_ONE_SIDED) == 0;
}

dp_status_t dp__comms_open_ties(dp_pipeline_t *p, dp__comms_t *comms)
{
    const dp__grid_t *g = &p->grid;

    for (int32_t i = 0; i < p->ties.n; i++) {
        const int32_t *rank = p->ties.at[i].rank;
        int32_t world[2];
        members_t m = {world, 0, 0};
        char name[64];

        if (rank[0] == rank[1])
            continue;
        add_member(&m, g, rank[0], g->e, g->d);
        add_member(&m, g, rank[1], g->e, g->d);
        snprintf(name, sizeof(name), "tie%d.%d.%d.%d", i, g->d, g->e, rank[0]);
        DO(open_group(p, comms, name, &m, &comms->tie[i]));
    }
    return DP_OK;
}

/* Every instance of `comms`, in the order in which they were opened. */
static void list_comms(const dp__comms_t *comms, dp_comm_t *all[COMMS])
{
    dp_comm_t *const first[] = {comms->pipeline,
                                comms->expert,
                                comms->sums.mirror,
                                comms->sums.dense,
                                comms->sums.expert_data,
                                comms->gathers.mirror,
                                comms->gathers.dense,
                                comms->gathers.expert_data,
                                comms->world};

    memcpy(all, first, sizeof(first));
    memcpy(all + COMMS - DP__TIES, comms->tie, sizeof(comms->tie));
}

dp_status_t dp__comms_start(dp_pipeline_t *p, dp__comms_t *comms)
{
    dp_comm_t *all[COMMS];

    list_comms(comms, all);

    p->memory.total -= p->memory.transport;
    p->memory.transport = 0;
    for (int i = 0; i < COMMS; i++)
        if (all[i] != NULL) {
            DO(comms->vt->start(all[i]));
            p->memory.transport += comms->vt->memory_bytes(all[i]);
        }
    p->memory.total += p->memory.transport;
    return DP_OK;
}

void dp__comms_close(dp__comms_t *comms)
{
    dp_comm_t *all[COMMS];

    list_comms(comms, all);
    for (int i = COMMS - 1; i >= 0; i--)
        if (all[i] != NULL)
            comms->vt->close(all[i]);
    *comms = (dp__comms_t){.vt = comms->vt};
}

/* ---- channels ---- */

dp_status_t dp__links_list(dp_pipeline_t *p)
{
    const dp_program_t *program = p->programs.training;

    if (!dp__arrays(DP__ARRAY(p->links.of_channel, program->nchannels), DP__ARRAY(p->links.at, program->nchannels)))
        return dp_fail(DP_ERR_NOMEM, "no memory for %d channels", program->nchannels);
    for (int32_t i = 0; i < program->nchannels; i++) {
        p->links.of_channel[i] = -1;
        if (program->channels[i].src != p->grid.p && program->channels[i].dst != p->grid.p)
            continue;
        p->links.of_channel[i] = p->links.n;
        p->links.at[p->links.n++] =
            (dp__link_t){.channel = &program->channels[i], .sends = program->channels[i].src == p->grid.p};
    }
    return DP_OK;
}

/* The slots of a receiver are the transport's. */
static dp_status_t open_buffers(dp_pipeline_t *p, dp__link_t *link)
{

    if (!dp__arrays(DP__ARRAY(link->buffer, link->nbuffers), DP__ARRAY(link->arrived, link->nbuffers)))
        return dp_fail(DP_ERR_NOMEM, "no memory for %d boundary buffers", link->nbuffers);
    for (int32_t i = 0; i < link->nbuffers && link->sends; i++)
        DO(dp__device_memory(p, p->options.boundary_bytes, &p->memory.boundary, &link->buffer[i]));
    return DP_OK;
}

dp_status_t dp__buffers_open(dp_pipeline_t *p)
{
    int32_t training = p->plans.training.commands.nevents, forward = p->plans.forward.commands.nevents;
    int32_t nevents = forward > training ? forward : training;

    for (int32_t l = 0; l < p->links.n; l++)
        DO(open_buffers(p, &p->links.at[l]));
    p->events.at = dp__calloc((size_t)nevents + 1, sizeof(*p->events.at));
    if (p->events.at == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d events", nevents);
    for (; p->events.n < nevents; p->events.n++)
        DO(p->device_vt->event_open(p->device, &p->events.at[p->events.n]));
    return DP_OK;
}

dp_status_t dp__links_connect(dp_pipeline_t *p, const dp__comms_t *comms)
{
    for (int32_t i = 0; i < p->programs.training->nchannels; i++) {
        const dp_channel_t *channel = &p->programs.training->channels[i];
        int32_t at = p->links.of_channel[i];
        char label[64];
        dp_channel_config_t config = {
            .struct_size = sizeof(config),
            .id = (uint32_t)i,
            .slots = (uint32_t)channel->slots,
            .slot_bytes = p->options.boundary_bytes,
            .label = label,
        };
        uint32_t caps;

        if (at < 0 || channel->src == channel->dst)
            continue;
        config.sender = p->links.at[at].sends;
        config.peer = config.sender ? channel->dst : channel->src;
        snprintf(label, sizeof(label), "%s chunk %d", channel->op == DP_OP_F ? "activation of" : "gradient of",
                 config.sender ? channel->src_chunk : channel->dst_chunk);
        DO(comms->vt->channel_open(comms->pipeline, &config, &p->links.at[at].end));
        p->links.at[at].base = 0;
        caps = dp__mixed_is(comms->vt) ? dp__mixed_end_caps(p->links.at[at].end)
                                       : dp_comm_caps(comms->vt, comms->pipeline);
        p->links.at[at].in_lane = !p->programs.bundled && (caps & DP_COMM_CAP_HOST_INLINE) != 0 &&
                                  p->options.boundary_bytes <= p->options.inline_bytes;
    }
    return DP_OK;
}

void dp__links_close(dp_pipeline_t *p)
{
    for (int32_t l = 0; l < p->links.n; l++) {
        dp__link_t *link = &p->links.at[l];

        for (int32_t i = 0; i < link->nbuffers; i++)
            if (link->buffer != NULL && link->buffer[i] != NULL)
                p->device_vt->release(p->device, link->buffer[i]);
        dp__free(link->buffer);
    }
    for (int32_t i = 0; i < p->events.n; i++)
        p->device_vt->event_close(p->events.at[i]);
    dp__free(p->events.at);
    p->events = (dp__events_t){.n = 0};
    dp__free(p->links.of_channel);
    p->links = (dp__links_t){.n = 0};
}
