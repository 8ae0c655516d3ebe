/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * costs.c: checks a cost model, and what an operation costs in it. */
#include "simulate/costs.h"
#include "base/do.h"

#include <math.h>

#include "base/sized.h"

const char *const dp__segment_names[DP_ROLE_SUM] = {"attention", "dispatch", "mlp", "combine",
                                                    "project",   "shared",   "sum"};

double dp_costs_backward(const dp_costs_t *costs)
{
    return costs->b == 0.0 ? costs->i + costs->w : costs->b < 0.0 ? 0.0 : costs->b;
}

double dp_costs_pair(const dp_costs_t *costs)
{
    return costs->fb == 0.0 ? costs->f + dp_costs_backward(costs) : costs->fb < 0.0 ? 0.0 : costs->fb;
}

static dp_status_t check_topology(const dp_topology_t *given, double bytes)
{
    dp_topology_t own;

    DO(dp__take("simulate: the topology", dp_topology_t, DP_TOPOLOGY_MIN, &own, given));
    const double all[] = {own.near_hop, own.near_bandwidth, own.far_hop, own.far_bandwidth};
    static const char *const names[] = {"NEAR.HOP", "NEAR.BANDWIDTH", "FAR.HOP", "FAR.BANDWIDTH"};

    for (int k = 0; k < 4; k++)
        if (!dp__cost_in_bounds(all[k]) || (k % 2 != 0 && all[k] > 0.0 && !dp__cost_in_bounds(bytes / all[k])))
            return dp_fail(DP_ERR_INVALID,
                           "simulate: %s of the topology is %g; it has to be between 0 and %g, and so has what a "
                           "message takes",
                           names[k], all[k], DP__COST_MAX);
    return DP_OK;
}

static dp_status_t check_links(const dp_costs_t *costs, int32_t ranks)
{
    if (costs->nlinks < 0 || (costs->nlinks > 0 && costs->links == NULL))
        return dp_fail(DP_ERR_INVALID, "simulate: %d links, and no list of them", costs->nlinks);
    for (int32_t k = 0; k < costs->nlinks; k++) {
        const dp_link_costs_t *link = &costs->links[k];

        if (link->from < 0 || link->from >= ranks || link->to < 0 || link->to >= ranks)
            return dp_fail(DP_ERR_INVALID, "simulate: a link from rank %d to %d, of %d ranks", link->from, link->to,
                           ranks);
        if (!dp__cost_in_bounds(link->hop) || !dp__cost_in_bounds(link->bandwidth) ||
            (link->bandwidth > 0.0 && !dp__cost_in_bounds(costs->bytes / link->bandwidth)))
            return dp_fail(DP_ERR_INVALID,
                           "simulate: the link from rank %d to %d has HOP %g, BANDWIDTH %g; both have to be between 0 "
                           "and %g, and so has what a message takes",
                           link->from, link->to, link->hop, link->bandwidth, DP__COST_MAX);
    }
    return DP_OK;
}

static dp_status_t check_scales(const char *of, const double *scale, int32_t count)
{
    for (int32_t k = 0; scale != NULL && k < count; k++)
        if (!dp__cost_in_bounds(scale[k]))
            return dp_fail(DP_ERR_INVALID, "simulate: the scale of %s %d is %g; it has to be between 0 and %g", of, k,
                           scale[k], DP__COST_MAX);
    return DP_OK;
}

dp_status_t dp__costs_resolve(const dp_costs_t *costs, const dp_schedule_t *schedule, dp_costs_t *resolved_out)
{
    DO(dp__take("simulate: the costs", dp_costs_t, DP_COSTS_MIN, resolved_out, costs));
    if (!dp__cost_in_bounds(resolved_out->r))
        return dp_fail(DP_ERR_INVALID, "simulate: cost R is %g; it has to be between 0 and %g", resolved_out->r,
                       DP__COST_MAX);
    resolved_out->b = dp_costs_backward(costs) + resolved_out->r;
    resolved_out->fb = dp_costs_pair(costs) + resolved_out->r;
    resolved_out->i += resolved_out->r;
    const struct {
        const char *name;
        double value;
    } all[] = {{"F", resolved_out->f},         {"I", resolved_out->i},
               {"W", resolved_out->w},         {"B", resolved_out->b},
               {"FB", resolved_out->fb},       {"HOP", resolved_out->hop},
               {"BYTES", resolved_out->bytes}, {"BANDWIDTH", resolved_out->bandwidth}};
    for (int k = 0; k < 8; k++)
        if (!dp__cost_in_bounds(all[k].value))
            return dp_fail(DP_ERR_INVALID, "simulate: cost %s is %g; it has to be between 0 and %g", all[k].name,
                           all[k].value, DP__COST_MAX);
    if (resolved_out->bandwidth > 0.0 && !dp__cost_in_bounds(resolved_out->bytes / resolved_out->bandwidth))
        return dp_fail(DP_ERR_INVALID, "simulate: a message takes %g on its link; %g is the most",
                       resolved_out->bytes / resolved_out->bandwidth, DP__COST_MAX);
    DO(check_scales("stage", resolved_out->stage_scale, dp_schedule_stages(schedule)));
    DO(check_scales("rank", resolved_out->rank_scale, schedule->ranks));
    DO(check_links(resolved_out, schedule->ranks));
    if (resolved_out->topology != NULL)
        return check_topology(resolved_out->topology, resolved_out->bytes);
    return DP_OK;
}

dp__message_time_t dp__costs_message(const dp_costs_t *costs, int32_t from, int32_t to)
{
    const dp_topology_t *t = costs->topology;
    bool near = t == NULL || t->host_of == NULL || t->host_of[from] == t->host_of[to];
    const double bandwidth = t == NULL ? costs->bandwidth : near ? t->near_bandwidth : t->far_bandwidth;

    for (int32_t k = 0; k < costs->nlinks; k++)
        if (costs->links[k].from == from && costs->links[k].to == to)
            return (dp__message_time_t){
                .link = costs->links[k].bandwidth > 0.0 ? costs->bytes / costs->links[k].bandwidth : 0.0,
                .hop = costs->links[k].hop};
    return (dp__message_time_t){.link = bandwidth > 0.0 ? costs->bytes / bandwidth : 0.0,
                                .hop = t == NULL ? costs->hop
                                       : near    ? t->near_hop
                                                 : t->far_hop};
}

/* A pair gains or loses by being overlapped in proportion to what its sides cost alone. */
static void pair_costs(const dp_costs_t *costs, double scale, double scale2, double parts[2])
{
    double forward = costs->f * scale, backward = costs->b * scale2, alone = forward + backward;
    double together = costs->fb * scale;

    if (scale != scale2)
        together =
            costs->f + costs->b > 0.0 ? costs->fb * alone / (costs->f + costs->b) : costs->fb * (scale + scale2) / 2.0;
    parts[0] = alone > 0.0 ? together * (forward / alone) : together / 2.0;
    parts[1] = together - parts[0];
}

void dp__costs_of(const dp_costs_t *resolved, int op, double scale, double scale2, double parts[2])
{
    const double alone[] = {
        [DP_OP_F] = resolved->f, [DP_OP_B] = resolved->b, [DP_OP_I] = resolved->i, [DP_OP_W] = resolved->w};

    if (op == DP_OP_FB) {
        pair_costs(resolved, scale, scale2, parts);
        return;
    }
    parts[0] = alone[op] * scale;
    parts[1] = 0.0;
}
