/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * update.c: from the placement in use to a better one, moving few experts. Each layer has two
 * candidates, one made from the placement in use and one from the plan that loads alone would give;
 * the one that moves less is taken. */
#include "base/do.h"
#include "base/sized.h"
#include "eplb/few_moves.h"
#include "eplb/greedy.h"
#include "eplb/index.h"
#include "eplb/match.h"
#include "eplb/moves.h"
#include "eplb/search.h"

#include <math.h>
#include <string.h>

/* Limits as given are met within this; rounding must not move experts. */
#define SLACK 1e-9

typedef struct candidate {
    int grade; /* 0: there is none; 1: not as asked; 2: over the limit; 3: as it should be */
    double peak;
    int64_t moves;
} candidate_t;

static dp_status_t check_update(const dp__eplb_sizes_t *sizes, const dp_eplb_update_options_t *given,
                                dp_eplb_update_options_t *out)
{
    *out = (dp_eplb_update_options_t){.struct_size = sizeof(*out)};
    if (given != NULL)
        DO(dp__take("eplb: the update options", dp_eplb_update_options_t, DP_EPLB_UPDATE_OPTIONS_MIN, out, given));
    if (!isfinite(out->threshold) || out->threshold < 0.0 || !isfinite(out->bound) ||
        (out->bound != 0.0 && out->bound < 1.0))
        return dp_fail(DP_ERR_INVALID,
                       "eplb: threshold %g, bound %g: ratios of max to mean are at least 1 (0: the default)",
                       out->threshold, out->bound);
    if (out->threshold < 1.0)
        out->threshold = 1.0;
    return dp__eplb_check_bytes(sizes, out->expert_bytes);
}

/* Weighs the layer as a candidate and keeps it in scratch->best if it is the better one. */
static void weigh_candidate(const dp__eplb_field_t *f, const int32_t *origin, double limit, dp__eplb_layer_t *layer,
                            candidate_t *best)
{
    dp__eplb_scratch_t *s = f->scratch;
    candidate_t new = {.grade = 1};

    memcpy(s->overlap, layer->expert, (size_t)f->sizes.replicas * sizeof(*s->overlap));
    dp__layer_load(f, s->overlap, layer); /* added up anew */
    new.peak = dp__layer_peak(f, layer);
    if (dp__layer_legal(f, layer))
        new.grade = new.peak <= limit *(1.0 + SLACK) ? 3 : 2;
    new.moves = dp__eplb_count_moves(f, origin, layer->expert, NULL);
    if (new.grade < best->grade)
        return;
    if (new.grade == best->grade) {
        bool fewer = new.moves < best->moves || (new.moves == best->moves &&new.peak < best->peak);
        bool lower = new.peak < best->peak || (new.peak == best->peak &&new.moves < best->moves);

        if (!(new.grade == 3 ? fewer : lower))
            return;
    }
    *best = new;
    memcpy(s->best, layer->expert, (size_t)f->sizes.replicas * sizeof(*s->best));
}

/* The candidate from the plan: as it is, renamed to fit, then with every move undone that the
 * limit, or its own peak, can spare. */
static void weigh_plan(const dp__eplb_field_t *f, const int32_t *origin, const int32_t *plan, double limit,
                       candidate_t *best)
{
    dp__eplb_layer_t *layer = &f->scratch->layer[1];
    double peak;

    dp__layer_load(f, plan, layer);
    weigh_candidate(f, origin, limit, layer, best);
    dp__eplb_match(f, plan, origin, f->scratch->position);
    dp__layer_load(f, f->scratch->position, layer);
    weigh_candidate(f, origin, limit, layer, best);
    peak = dp__layer_peak(f, layer);
    dp__eplb_undo(f, origin, peak > limit ? peak : limit, layer);
    weigh_candidate(f, origin, limit, layer, best);
}

/* The candidate from the placement in use. What does not reach the limit may still be better than
 * the plan. */
static void weigh_repair(const dp__eplb_field_t *f, const int32_t *origin, double limit, candidate_t *best)
{
    dp__eplb_layer_t *layer = &f->scratch->layer[1];

    dp__layer_load(f, origin, layer);
    if (!dp__layer_by_groups(f, layer))
        return;
    if (dp__eplb_relieve(f, origin, limit, layer))
        dp__eplb_undo(f, origin, limit, layer);
    weigh_candidate(f, origin, limit, layer, best);
}

/* What a layer should come to: the bound, or without one what the plan comes to. */
static double limit_of(const dp__eplb_field_t *f, const dp_eplb_update_options_t *update, const int32_t *plan)
{
    if (update->bound > 0.0)
        return update->bound * f->mean;
    dp__layer_load(f, plan, &f->scratch->layer[1]);
    return dp__layer_peak(f, &f->scratch->layer[1]);
}

/* Writes the layer's new slots; true: it is within its limit, or was not to be touched. */
static bool update_layer(const dp__eplb_field_t *f, const dp_eplb_update_options_t *update, const int32_t *origin,
                         const int32_t *plan, int32_t *slots)
{
    dp__eplb_scratch_t *s = f->scratch;
    candidate_t best = {.grade = 0};
    double limit, now;

    dp__layer_load(f, origin, &s->layer[1]);
    now = dp__layer_peak(f, &s->layer[1]);
    if (now <= update->threshold * f->mean * (1.0 + SLACK)) {
        memcpy(slots, origin, (size_t)f->sizes.replicas * sizeof(*slots));
        return true;
    }
    limit = limit_of(f, update, plan);
    weigh_repair(f, origin, limit, &best);
    if (best.grade < 3 || best.moves > 0)
        weigh_plan(f, origin, plan, limit, &best);
    memcpy(slots, s->best, (size_t)f->sizes.replicas * sizeof(*slots));
    dp__eplb_settle(f, origin, slots);
    return best.grade == 3;
}

dp_status_t dp_eplb_update(const dp_eplb_shape_t *shape, const dp_eplb_options_t *options,
                           const dp_eplb_update_options_t *update, const float *loads, const int32_t *current,
                           dp_eplb_placement_t *placement, dp_eplb_moves_t *moves, void *workspace,
                           size_t workspace_bytes)
{
    dp__eplb_sizes_t sizes, used;
    dp__eplb_scratch_t s;
    dp__eplb_field_t field, real;
    dp_eplb_options_t chosen;
    dp_eplb_update_options_t how;
    dp_eplb_moves_t sum = {.struct_size = sizeof(sum)};
    dp__eplb_rows_t rows;
    dp_status_t status = dp__eplb_scratch_cut(shape, workspace, workspace_bytes, &sizes, &s);

    if (status < 0 || (status = dp__eplb_check_options(options, &chosen)) < 0 ||
        (status = check_update(&sizes, update, &how)) < 0 || (status = dp__eplb_check_moves(moves)) < 0 ||
        (status = dp__eplb_check_loads(&sizes, loads)) < 0 || (status = dp__eplb_check_placement(placement)) < 0 ||
        (status = dp__eplb_check_slots(&sizes, current, s.count)) < 0)
        return status;
    rows = (dp__eplb_rows_t){.physical_to_logical = s.target};
    status = dp__eplb_greedy_by_policy(&sizes, &chosen, loads, &rows, &s, &used, &placement->policy);
    if (status < 0)
        return status;
    if (dp__eplb_searches(&chosen))
        dp__eplb_search(&used, &chosen, loads, s.target, &s);
    dp__field_open(&field, &used, &s, chosen.distinct != 0);
    real = field;
    real.sizes = sizes; /* nodes are nodes also where the policy does not care */
    for (int32_t layer = 0; layer < sizes.layers; layer++) {
        size_t first = (size_t)layer * (size_t)sizes.replicas;
        int32_t *slots = placement->physical_to_logical + first;
        int64_t between, moved;

        memcpy(s.origin, current + first, (size_t)sizes.replicas * sizeof(*s.origin));
        dp__field_layer(&field, loads, layer);
        if (!update_layer(&field, &how, s.origin, s.target + first, slots))
            sum.layers_over++;
        moved = dp__eplb_count_moves(&real, s.origin, slots, &between);
        sum.replicas += moved;
        sum.between_nodes += between;
        sum.layers_moved += moved > 0;
    }
    dp__eplb_index_all(&sizes, placement, NULL, s.count);
    dp__eplb_report(&sum, how.expert_bytes, moves);
    return DP_OK;
}
