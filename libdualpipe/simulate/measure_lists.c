/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * measure_lists.c: means over the spans of each segment of each stage. */
#include "simulate/measure_lists.h"

#include <stdbool.h>
#include <string.h>

#include "base/memory.h"
#include "simulate/costs.h"

/* Of one segment: sums and numbers of its F, I, W and R spans. */
typedef struct seen {
    double sum[4];
    int64_t count[4];
    uint8_t lane, role;
} seen_t;

typedef struct lists {
    dp_segment_costs_t costs; /* the first: it stands for all */
    int32_t *first;
    double *r; /* [segments] */
    dp_segment_cost_t list[];
} lists_t;

int dp__span_segment(const dp_timeline_t *timeline, const dp_span_t *span)
{
    const char *name = dp_timeline_name_text(timeline, span->name);

    for (int s = 0; s < DP_ROLE_SUM; s++)
        if (strcmp(name, dp__segment_names[s]) == 0)
            return s;
    return -1;
}

static bool is_segment(const dp_span_t *span, int32_t stages)
{
    return span->kind == DP_SPAN_COMPUTE && span->stage >= 0 && span->stage < stages && span->segment >= 0 &&
           (span->pass == DP_OP_F || span->pass == DP_OP_I || span->pass == DP_OP_W || span->pass == DP_OP_R);
}

/* first[s + 1]: how many segments stage s has. */
static void count_segments(const dp_timeline_t *timeline, int32_t stages, int32_t *first)
{
    for (int32_t r = 0; r < dp_timeline_ranks(timeline); r++) {
        int64_t count;
        const dp_span_t *spans = dp_timeline_spans(timeline, r, &count);

        for (int64_t k = 0; k < count; k++)
            if (is_segment(&spans[k], stages) && spans[k].segment >= first[spans[k].stage + 1])
                first[spans[k].stage + 1] = spans[k].segment + 1;
    }
}

static void add_spans(const dp_timeline_t *timeline, int32_t stages, const int32_t *first, seen_t *seen)
{
    for (int32_t r = 0; r < dp_timeline_ranks(timeline); r++) {
        int64_t count;
        const dp_span_t *spans = dp_timeline_spans(timeline, r, &count);

        for (int64_t k = 0; k < count; k++) {
            const dp_span_t *span = &spans[k];
            int pass = span->pass == DP_OP_F ? 0 : span->pass == DP_OP_I ? 1 : span->pass == DP_OP_W ? 2 : 3;
            seen_t *s;

            if (!is_segment(span, stages))
                continue;
            s = &seen[first[span->stage] + span->segment];
            s->sum[pass] += dp__span_length(span);
            s->count[pass]++;
            s->role = (uint8_t)(dp__span_segment(timeline, span) + 1);
            if (pass < 2)
                s->lane = span->lane == DP_LANE_ALL_TO_ALL ? DP_LANE_ALL_TO_ALL : DP_LANE_COMPUTE;
        }
    }
}

static double mean_seen(const seen_t *s, int pass)
{
    return s->count[pass] > 0 ? s->sum[pass] / (double)s->count[pass] : 0.0;
}

static int role_at(const seen_t *seen, int32_t count, int32_t k)
{
    return k >= 0 && k < count ? seen[k].role : DP_ROLE_OTHER;
}

/* The names of a layer's further segments are anybody's elsewhere. */
static uint8_t role_in_layer(const seen_t *seen, int32_t count, int32_t k)
{
    const int role = seen[k].role;

    if ((role == DP_ROLE_PROJECT && role_at(seen, count, k + 1) != DP_ROLE_ATTENTION) ||
        (role == DP_ROLE_SHARED &&
         (role_at(seen, count, k - 1) != DP_ROLE_MLP || role_at(seen, count, k + 1) != DP_ROLE_COMBINE)) ||
        (role == DP_ROLE_SUM && role_at(seen, count, k - 1) != DP_ROLE_COMBINE))
        return DP_ROLE_OTHER;
    return (uint8_t)role;
}

/* false: one that no forward or no backward came through. */
static bool fill_list(const seen_t *seen, int32_t count, dp_segment_cost_t *list, double *list_r)
{
    for (int32_t k = 0; k < count; k++) {
        const seen_t *s = &seen[k];
        uint8_t role;

        if (s->count[0] == 0 || s->count[1] == 0)
            return false;
        role = role_in_layer(seen, count, k);
        list[k] = (dp_segment_cost_t){.role = role,
                                      .lane = s->lane,
                                      .has_weight = s->count[2] > 0,
                                      .begins_part =
                                          role == DP_ROLE_OTHER || role == DP_ROLE_PROJECT ||
                                          (role == DP_ROLE_ATTENTION && role_at(seen, count, k - 1) != DP_ROLE_PROJECT),
                                      .f = mean_seen(s, 0),
                                      .i = mean_seen(s, 1),
                                      .w = mean_seen(s, 2)};
        list_r[k] = mean_seen(s, 3);
    }
    return true;
}

static lists_t *make_lists(const dp_timeline_t *timeline, int32_t stages, const int32_t *first, seen_t *seen)
{
    size_t segments = (size_t)first[stages];
    lists_t *x = dp__calloc(1, sizeof(*x) + segments * (sizeof(*x->list) + sizeof(*x->r)) +
                                   ((size_t)stages + 1) * sizeof(*first));

    if (x == NULL)
        return NULL;
    x->r = (double *)(x->list + segments);
    x->first = (int32_t *)(x->r + segments);
    memcpy(x->first, first, ((size_t)stages + 1) * sizeof(*first));
    x->costs = (dp_segment_costs_t){
        .struct_size = sizeof(x->costs), .stages = stages, .first = x->first, .list = x->list, .list_r = x->r};
    add_spans(timeline, stages, first, seen);
    if (!fill_list(seen, first[stages], x->list, x->r))
        x->costs.stages = 0;
    return x;
}

/* false: a stage was not seen, or by whole operations alone. */
static bool find_firsts(const dp_timeline_t *timeline, int32_t stages, int32_t *first)
{
    bool all = true;

    count_segments(timeline, stages, first);
    for (int32_t s = 0; s < stages; s++) {
        all = all && first[s + 1] > 0;
        first[s + 1] += first[s];
    }
    return all;
}

dp_status_t dp__measure_lists(const dp_timeline_t *timeline, int32_t stages, dp_segment_costs_t **lists_out)
{
    int32_t *first = dp__calloc((size_t)stages + 1, sizeof(*first));
    seen_t *seen = NULL;
    lists_t *x = NULL;
    bool all = first != NULL && find_firsts(timeline, stages, first), memory = first != NULL;

    *lists_out = NULL;
    if (all) {
        seen = dp__calloc((size_t)first[stages], sizeof(*seen));
        x = seen != NULL ? make_lists(timeline, stages, first, seen) : NULL;
        memory = x != NULL;
    }
    dp__free(first);
    dp__free(seen);
    if (!memory)
        return dp_fail(DP_ERR_NOMEM, "measure: no memory for the segments of %d stages", stages);
    if (all && x->costs.stages > 0)
        *lists_out = &x->costs;
    else
        dp__free(x);
    return DP_OK;
}
