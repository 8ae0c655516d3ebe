/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * actions.c: costs out of the operations that torch.distributed.pipelining names. What a stage
 * takes is the median of its operations of a kind: an operation on the host waits for its input
 * within its annotation, and the first ones wait long. Source of the names: pytorch,
 * torch/distributed/pipelining/schedules.py. */
#include "trace/actions.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trace/costs_head.h"

#define MOST_STAGES 4096

enum { KINDS = DP_OP_FB + 1 };

/* One operation. */
typedef struct taken {
    int64_t time;
    int32_t stage;
    uint32_t process;
    uint8_t kind;
} taken_t;

typedef struct actions {
    taken_t *items; /* by kind, stage and time */
    size_t count;
    int32_t stages, chunks; /* chunks: the most stages that one process has */
    double *time;           /* [KINDS * stages] median, in ns; 0: none */
    double mean[KINDS];     /* of the stages that have it */
} actions_t;

/* "0F3"; the text behind it, NULL for anything else. */
static const char *read_action(const char *text, int *kind_out, int32_t *stage_out)
{
    static const char kinds[] = {[DP_OP_F] = 'F', [DP_OP_B] = 'B', [DP_OP_I] = 'I', [DP_OP_W] = 'W'};
    const char *at = text;
    const void *kind;
    int32_t stage = 0;

    while (*at >= '0' && *at <= '9' && stage < MOST_STAGES)
        stage = 10 * stage + (*at++ - '0');
    kind = at > text && stage < MOST_STAGES && *at != 0 ? memchr(kinds, *at, sizeof(kinds)) : NULL;
    if (kind == NULL || at[1] < '0' || at[1] > '9')
        return NULL;
    *kind_out = (int)((const char *)kind - kinds);
    *stage_out = stage;
    at++;
    return at + strspn(at, "0123456789");
}

int dp__trace_action_of(const char *name, int32_t *stage_out)
{
    int kind = -1, second = -1;
    int32_t stage2;
    const char *end;

    if (strncmp(name, "PP:", 3) != 0)
        return -1;
    if (name[3] != '(') {
        end = read_action(name + 3, &kind, stage_out);
        return end != NULL && *end == 0 ? kind : -1;
    }
    end = read_action(name + 4, &kind, stage_out);
    if (end == NULL || *end != ';')
        return -1;
    end = read_action(end + 1, &second, &stage2);
    return end != NULL && strcmp(end, ")OVERLAP_F_B") == 0 && kind == DP_OP_F && second == DP_OP_B ? DP_OP_FB : -1;
}

bool dp__trace_has_actions(const dp_trace_t *trace)
{
    int32_t stage;

    for (size_t r = 0; r < trace->nranges; r++)
        if (dp__trace_action_of(dp__trace_name(trace, trace->ranges[r].name), &stage) == DP_OP_F)
            return true;
    return false;
}

/* ---- medians ---- */

static int by_kind(const void *a, const void *b)
{
    const taken_t *x = a, *y = b;

    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    if (x->stage != y->stage)
        return x->stage < y->stage ? -1 : 1;
    return (x->time > y->time) - (x->time < y->time);
}

static int by_place(const void *a, const void *b)
{
    const taken_t *x = a, *y = b;

    if (x->process != y->process)
        return x->process < y->process ? -1 : 1;
    return (x->stage > y->stage) - (x->stage < y->stage);
}

static void collect_actions(const dp_trace_t *trace, bool on_device, actions_t *actions)
{
    for (size_t r = 0; r < trace->nranges; r++) {
        const dp__trace_range_t *range = &trace->ranges[r];
        int32_t stage = 0;
        int kind = range->on_device == on_device ? dp__trace_action_of(dp__trace_name(trace, range->name), &stage) : -1;

        if (kind < 0)
            continue;
        actions->stages = stage >= actions->stages ? stage + 1 : actions->stages;
        actions->items[actions->count++] = (taken_t){.time = range->end - range->start,
                                                     .stage = stage,
                                                     .process = trace->streams[range->thread].process,
                                                     .kind = (uint8_t)kind};
    }
}

static void count_chunks(actions_t *actions)
{
    int32_t here = 0;

    qsort(actions->items, actions->count, sizeof(*actions->items), by_place);
    for (size_t k = 0; k < actions->count; k++) {
        const taken_t *now = &actions->items[k], *last = k > 0 ? now - 1 : NULL;

        here = last == NULL || last->process != now->process ? 1 : here + (last->stage != now->stage);
        actions->chunks = here > actions->chunks ? here : actions->chunks;
    }
}

static void find_medians(actions_t *actions)
{
    int32_t having[KINDS] = {0};

    qsort(actions->items, actions->count, sizeof(*actions->items), by_kind);
    for (size_t first = 0, end; first < actions->count; first = end) {
        const taken_t *of = &actions->items[first];
        size_t n;

        for (end = first;
             end < actions->count && actions->items[end].kind == of->kind && actions->items[end].stage == of->stage;
             end++)
            ;
        n = end - first;
        actions->time[of->kind * actions->stages + of->stage] = 0.5 * (double)(of[(n - 1) / 2].time + of[n / 2].time);
        actions->mean[of->kind] += actions->time[of->kind * actions->stages + of->stage];
        having[of->kind]++;
    }
    for (int k = 0; k < KINDS; k++)
        actions->mean[k] /= having[k] > 0 ? having[k] : 1;
}

/* ---- output ---- */

/* Stages beside their mean; false when one of them has no forward or no backward. */
static bool scale_stages(const actions_t *actions, double *scale)
{
    double sum = 0.0;

    for (int32_t s = 0; s < actions->stages; s++) {
        double f = actions->time[DP_OP_F * actions->stages + s], b = actions->time[DP_OP_B * actions->stages + s];

        b = b > 0.0 ? b : actions->time[DP_OP_I * actions->stages + s] + actions->time[DP_OP_W * actions->stages + s];
        if (f <= 0.0 || b <= 0.0)
            return false;
        scale[s] = f + b;
        sum += scale[s];
    }
    for (int32_t s = 0; s < actions->stages; s++)
        scale[s] *= actions->stages / sum;
    return true;
}

static void put_cost(dp__out_t *to, const char *name, double nanoseconds)
{
    if (nanoseconds > 0.0)
        dp__out_put(to, "%s=%.6g\n", name, nanoseconds / 1e6);
}

static dp_status_t put_actions(const actions_t *actions, bool on_device, const char *title, dp__out_t *to)
{
    double *scale = dp__allocate((size_t)actions->stages * sizeof(*scale), 16), i = actions->mean[DP_OP_I],
           w = actions->mean[DP_OP_W], b = actions->mean[DP_OP_B], chunks = actions->chunks;

    if (scale == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d stages", actions->stages);
    dp__trace_costs_head(title, to);
    dp__out_put(to, "# Medians of %zu operations of torch.distributed.pipelining %s; %d stages, %d on a rank.\n",
                actions->count, on_device ? "on the device" : "on the host, waiting for their input included",
                actions->stages, actions->chunks);
    put_cost(to, "F", chunks * actions->mean[DP_OP_F]);
    if (i == 0.0 && w == 0.0 && b > 0.0)
        dp__out_put(to, "# No I and W are there: half of B each.\n");
    put_cost(to, "I", chunks * (i > 0.0 ? i : w > 0.0 ? 0.0 : b / 2));
    put_cost(to, "W", chunks * (w > 0.0 ? w : i > 0.0 ? 0.0 : b / 2));
    put_cost(to, "B", chunks * b);
    put_cost(to, "FB", chunks * actions->mean[DP_OP_FB]);
    if (scale_stages(actions, scale)) {
        dp__out_put(to, "# for the same placement alone: STAGE_SCALE=");
        for (int32_t s = 0; s < actions->stages; s++)
            dp__out_put(to, "%s%.4g", s > 0 ? "," : "", scale[s]);
        dp__out_put(to, "\n");
    }
    dp__out_put(to, "# Transfers between stages are not in these: --cost HOP=MS,BYTES=N,BANDWIDTH=BYTES_PER_MS.\n");
    dp__free(scale);
    return DP_OK;
}

dp_status_t dp__trace_actions_put(const dp_trace_t *trace, const char *title, dp__out_t *to)
{
    actions_t actions = {.items = dp__allocate((trace->nranges + 1) * sizeof(*actions.items), 16)};
    bool on_device = true;
    dp_status_t status = DP_OK;

    if (actions.items == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu annotations", trace->nranges);
    collect_actions(trace, true, &actions);
    if (actions.count == 0) {
        on_device = false;
        collect_actions(trace, false, &actions);
    }
    actions.time = dp__calloc((size_t)(KINDS * actions.stages) + 1, sizeof(*actions.time));
    if (actions.time == NULL)
        status = dp_fail(DP_ERR_NOMEM, "no memory for %d stages", actions.stages);
    if (status == DP_OK) {
        count_chunks(&actions);
        find_medians(&actions);
        if (actions.mean[DP_OP_F] <= 0.0)
            status = dp_fail(DP_ERR_REJECTED, "%s: no operation such as PP:0F3 takes any time", title);
    }
    if (status == DP_OK)
        status = put_actions(&actions, on_device, title, to);
    dp__free(actions.items);
    dp__free(actions.time);
    return status;
}
