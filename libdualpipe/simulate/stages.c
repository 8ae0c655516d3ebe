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
    if (s->role > DP_ROLE_COMBINE)
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

            if (status < 0)
                return status;
        }
    }
    return DP_OK;
}

/* One stage's share of the layers; with a part of a layer left over, all are that much cheaper. */
static dp_status_t make_layers(const dp_segment_costs_t *c, int32_t split, dp__stages_t *out, int32_t *count_out)
{
    int32_t layers = (c->layers + split - 1) / split;
    double part = (double)c->layers / split / layers;

    if (c->layers < 1 || c->layers > DP_SEGMENT_LAYERS)
        return dp_fail(DP_ERR_INVALID, "segment costs: %d layers; from 1 to %d are possible", c->layers,
                       DP_SEGMENT_LAYERS);
    *count_out = layers * DP_SEGMENT_COSTS;
    if (!dp__arrays(DP__ARRAY(out->layers, *count_out), DP__ARRAY(out->layers_r, *count_out)))
        return dp_fail(DP_ERR_NOMEM, "simulate: no memory for %d layers", layers);
    for (int32_t k = 0; k < *count_out; k++) {
        int32_t s = k % DP_SEGMENT_COSTS;
        bool moves = s + 1 == DP_ROLE_DISPATCH || s + 1 == DP_ROLE_COMBINE;
        dp_status_t status;

        out->layers[k] = (dp_segment_cost_t){.role = (uint8_t)(s + 1),
                                             .lane = moves ? DP_LANE_ALL_TO_ALL : DP_LANE_COMPUTE,
                                             .has_weight = c->w[s] > 0.0,
                                             .begins_part = s == 0,
                                             .f = c->f[s] * part,
                                             .i = c->i[s] * part,
                                             .w = c->w[s] * part};
        out->layers_r[k] = c->r[s] * part;
        status = check_segment(&out->layers[k], 0, k);
        if (status >= 0)
            status = check_recompute(out->layers_r[k], out->layers[k].lane, 0, k);
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
