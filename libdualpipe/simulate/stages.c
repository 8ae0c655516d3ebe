/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * stages.c: costs per segment, of a layer or in full, laid out by stage. */
#include "simulate/stages.h"

#include "base/memory.h"
#include "base/sized.h"
#include "simulate/costs.h"

static dp_status_t check_segment(const dp_segment_cost_t *s, int32_t stage, int32_t segment)
{
    if (s->lane != DP_LANE_COMPUTE && s->lane != DP_LANE_ALL_TO_ALL)
        return dp_fail(DP_ERR_INVALID,
                       "simulate: segment %d of stage %d runs on lane %d; there are compute (0) and "
                       "all-to-all (1)",
                       segment, stage, s->lane);
    if (s->role > DP_ROLE_SUM)
        return dp_fail(DP_ERR_INVALID, "simulate: segment %d of stage %d has the unknown role %d", segment, stage,
                       s->role);
    if (!dp__cost_in_bounds(s->f) || !dp__cost_in_bounds(s->i) || !dp__cost_in_bounds(s->w))
        return dp_fail(DP_ERR_INVALID,
                       "simulate: segment %d of stage %d takes %g, %g and %g; a cost is 0 or more, and "
                       "finite",
                       segment, stage, s->f, s->i, s->w);
    return DP_OK;
}

static dp_status_t check_recompute(double r, int lane, int32_t stage, int32_t segment)
{
    if (dp__cost_in_bounds(r) && (r == 0.0 || lane == DP_LANE_COMPUTE))
        return DP_OK;
    return dp_fail(DP_ERR_INVALID,
                   "simulate: segment %d of stage %d recomputes for %g on lane %d; 0 or more is possible, and on the "
                   "all-to-all lane nothing is recomputed",
                   segment, stage, r, lane);
}

static dp_status_t check_list(const dp_segment_costs_t *c, int32_t stages)
{
    if (c->stages != stages || c->first == NULL || c->first[0] != 0)
        return dp_fail(DP_ERR_INVALID,
                       "simulate: costs per segment of %d stages, counted from segment 0, for a schedule "
                       "of %d",
                       c->stages, stages);
    for (int32_t s = 0; s < stages; s++) {
        if (c->first[s + 1] <= c->first[s] || c->first[s + 1] - c->first[s] > 4 * DP_SEGMENT_LAYERS)
            return dp_fail(DP_ERR_INVALID, "simulate: stage %d has %d segments; 1 to %d are possible", s,
                           c->first[s + 1] - c->first[s], 4 * DP_SEGMENT_LAYERS);
        for (int32_t k = c->first[s]; k < c->first[s + 1]; k++) {
            dp_status_t status = check_segment(&c->list[k], s, k - c->first[s]);

            if (status >= 0 && c->list_r != NULL)
                status = check_recompute(c->list_r[k], c->list[k].lane, s, k - c->first[s]);
            if (status >= 0 && c->list[k].role == DP_ROLE_SHARED &&
                (k == c->first[s] || k + 1 == c->first[s + 1] || c->list[k].begins_part || c->list[k + 1].begins_part ||
                 c->list[k].lane != DP_LANE_COMPUTE || c->list[k - 1].role == DP_ROLE_SHARED))
                status =
                    dp_fail(DP_ERR_INVALID,
                            "simulate: segment %d of stage %d is of shared experts; one such stands between others "
                            "of its layer, on the compute lane",
                            k - c->first[s], s);
            if (status < 0)
                return status;
        }
    }
    return DP_OK;
}

static double cost_of_role(const double *coarse, const double *fine, int role)
{
    return role > DP_SEGMENT_COSTS ? fine[role - DP_SEGMENT_COSTS - 1] : coarse[role - 1];
}

static bool takes_time(const dp_segment_costs_t *c, int role)
{
    return cost_of_role(c->f, c->fine_f, role) + cost_of_role(c->i, c->fine_i, role) +
               cost_of_role(c->w, c->fine_w, role) >
           0.0;
}

static bool has_role(const dp_segment_costs_t *c, int role)
{
    if (role == DP_ROLE_SHARED || role == DP_ROLE_SUM)
        return takes_time(c, DP_ROLE_SHARED) || takes_time(c, DP_ROLE_SUM);
    return role != DP_ROLE_PROJECT || takes_time(c, role);
}

int32_t dp__layer_costs(const dp_segment_costs_t *c, dp_segment_cost_t out[DP__LAYER_SEGMENTS],
                        double r_out[DP__LAYER_SEGMENTS])
{
    static const uint8_t roles[DP__LAYER_SEGMENTS] = {DP_ROLE_PROJECT, DP_ROLE_ATTENTION, DP_ROLE_DISPATCH, DP_ROLE_MLP,
                                                      DP_ROLE_SHARED,  DP_ROLE_COMBINE,   DP_ROLE_SUM};
    int32_t n = 0;

    for (size_t k = 0; k < DP__LAYER_SEGMENTS; k++) {
        const int role = roles[k];
        const double w = cost_of_role(c->w, c->fine_w, role);
        const bool moves = role == DP_ROLE_DISPATCH || role == DP_ROLE_COMBINE;

        if (!has_role(c, role))
            continue;
        r_out[n] = role <= DP_SEGMENT_COSTS ? c->r[role - 1] : 0.0;
        out[n] = (dp_segment_cost_t){.role = (uint8_t)role,
                                     .lane = moves ? DP_LANE_ALL_TO_ALL : DP_LANE_COMPUTE,
                                     .has_weight = w > 0.0,
                                     .begins_part = n == 0,
                                     .f = cost_of_role(c->f, c->fine_f, role),
                                     .i = cost_of_role(c->i, c->fine_i, role),
                                     .w = w};
        n++;
    }
    return n;
}

/* One stage's share of the layers; with a part of a layer left over, all are that much cheaper. */
static dp_status_t make_layers(const dp_segment_costs_t *c, int32_t split, dp__stages_t *out, int32_t *count_out)
{
    int32_t layers = (c->layers + split - 1) / split, length;
    double part = (double)c->layers / split / layers, unit_r[DP__LAYER_SEGMENTS];
    dp_segment_cost_t unit[DP__LAYER_SEGMENTS];

    if (c->layers < 1 || c->layers > DP_SEGMENT_LAYERS)
        return dp_fail(DP_ERR_INVALID, "segment costs: %d layers; from 1 to %d are possible", c->layers,
                       DP_SEGMENT_LAYERS);
    length = dp__layer_costs(c, unit, unit_r);
    *count_out = layers * length;
    if (!dp__arrays(DP__ARRAY(out->layers, *count_out), DP__ARRAY(out->layers_r, *count_out)))
        return dp_fail(DP_ERR_NOMEM, "simulate: no memory for %d layers", layers);
    for (int32_t k = 0; k < *count_out; k++) {
        dp_segment_cost_t *at = &out->layers[k];
        dp_status_t status;

        *at = unit[k % length];
        at->f *= part;
        at->i *= part;
        at->w *= part;
        out->layers_r[k] = unit_r[k % length] * part;
        status = check_segment(at, 0, k);
        if (status >= 0)
            status = check_recompute(out->layers_r[k], at->lane, 0, k);
        if (status < 0)
            return status;
    }
    return DP_OK;
}

static void make_shapes(const dp_segment_cost_t *list, const double *r, int32_t count, dp__segment_shape_t *shapes)
{
    for (int32_t k = 0; k < count; k++)
        shapes[k] = (dp__segment_shape_t){
            .role = list[k].role,
            .lane = list[k].lane,
            .has_weight = list[k].has_weight != 0,
            .begins_part = list[k].begins_part != 0,
            .recomputes = r != NULL && r[k] > 0.0,
        };
}

dp_status_t dp__stages_make(const dp_schedule_t *schedule, const dp_costs_t *costs, dp__stages_t *out)
{
    dp_segment_costs_t c;
    int32_t stages = dp_schedule_stages(schedule), count = 0;
    const double *r;
    bool backward_buffer;
    dp_status_t status =
        dp__take("simulate: the segment costs", dp_segment_costs_t, DP_SEGMENT_COSTS_MIN, &c, costs->segments);

    *out = (dp__stages_t){.at = NULL};
    if (status < 0)
        return status;
    backward_buffer = c.backward_buffer != 0;
    status = c.list != NULL ? check_list(&c, stages) : make_layers(&c, dp_schedule_split(schedule), out, &count);
    if (status < 0)
        return status;
    if (c.list != NULL)
        count = c.first[stages];
    if (!dp__arrays(DP__ARRAY(out->at, stages), DP__ARRAY(out->shapes, count)))
        return dp_fail(DP_ERR_NOMEM, "simulate: no memory for %d segments", count);
    r = c.list != NULL ? c.list_r : out->layers_r;
    make_shapes(c.list != NULL ? c.list : out->layers, r, count, out->shapes);
    for (int32_t k = 0; k < count; k++)
        backward_buffer = backward_buffer || out->shapes[k].recomputes;
    for (int32_t s = 0; s < stages; s++) {
        int32_t first = c.list != NULL ? c.first[s] : 0;

        out->at[s] = (dp__stage_costs_t){
            .shape = {.nsegments = c.list != NULL ? c.first[s + 1] - first : count,
                      .segments = out->shapes + first,
                      .backward_buffer = backward_buffer},
            .list = (c.list != NULL ? c.list : out->layers) + first,
            .r = r != NULL ? r + first : NULL,
            .scale = costs->stage_scale != NULL ? costs->stage_scale[s] : 1.0,
        };
    }
    return DP_OK;
}

void dp__stages_clear(dp__stages_t *stages)
{
    dp__free(stages->at);
    dp__free(stages->layers);
    *stages = (dp__stages_t){.at = NULL};
}
