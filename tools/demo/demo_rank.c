/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * demo_rank.c: ranks as threads, each with a pipeline whose segments sleep their cost on the lanes
 * of a MoE layer. */
#include "demo_rank.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

/* A sleeper wakes up late, by some tens of microseconds and more on a busy machine. A device starts
 * what is queued right behind what it has done, so a segment that begins this soon after the end
 * due before it counts from there. */
#define LATE_SHARE 0.1 /* of a unit */

enum { MOST_SEGMENTS = DP_SEGMENT_COSTS + DP_SEGMENT_FINE };

typedef struct rank rank_t;

typedef struct segment {
    rank_t *rank;
    int64_t ns[3]; /* F, I, W */
    int lane;      /* of F and I */
} segment_t;

struct rank {
    dp_group_t *group;
    const dp_schedule_t *schedule;
    const demo_pace_t *pace;
    double unit_ns; /* of sleep on this rank */
    int32_t steps;
    const void *const *data; /* [microbatches] nobody reads it */
    segment_t segments[MOST_SEGMENTS];
    int64_t due[2], late_ns; /* of each lane: when what it did last was to end */
    dp_stage_t *stages[DP_MAX_CHUNKS];
    int32_t nstages;
    dp_timeline_t *timeline;
    dp_status_t status;
    char message[512];
    pthread_t thread;
};

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* This thread wakes up on time, before others where that is allowed: it computes nothing. */
static void be_punctual(void)
{
    static _Thread_local bool done;
    struct sched_param lowest = {.sched_priority = sched_get_priority_min(SCHED_RR)};

    if (done)
        return;
    done = true;
    (void)prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    (void)pthread_setschedparam(pthread_self(), SCHED_RR, &lowest);
}

static void sleep_on(rank_t *rank, int lane, int64_t ns)
{
    int64_t now = now_ns(), due;
    struct timespec until;

    be_punctual();
    due = (now - rank->due[lane] < rank->late_ns ? rank->due[lane] : now) + ns;
    rank->due[lane] = due;
    until = (struct timespec){.tv_sec = due / 1000000000, .tv_nsec = due % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
        continue;
}

static dp_status_t forward(void *self, const dp_segment_call_t *call)
{
    segment_t *segment = self;

    (void)call;
    sleep_on(segment->rank, segment->lane, segment->ns[0]);
    return DP_OK;
}

static dp_status_t backward_input(void *self, const dp_segment_call_t *call)
{
    segment_t *segment = self;

    (void)call;
    sleep_on(segment->rank, segment->lane, segment->ns[1]);
    return DP_OK;
}

static dp_status_t backward_weight(void *self, const dp_segment_call_t *call)
{
    segment_t *segment = self;

    (void)call;
    sleep_on(segment->rank, 0, segment->ns[2]);
    return DP_OK;
}

/* F, I and W of a role. */
static void costs_of_role(const dp_segment_costs_t *c, int role, double costs_out[3])
{
    const int fine = role - 1 - DP_SEGMENT_COSTS, s = role - 1;

    costs_out[0] = fine >= 0 ? c->fine_f[fine] : c->f[s];
    costs_out[1] = fine >= 0 ? c->fine_i[fine] : c->i[s];
    costs_out[2] = fine >= 0 ? c->fine_w[fine] : c->w[s];
}

/* The segments of a layer, as the simulator takes these costs: how many. */
static int32_t fill_segments(rank_t *rank, dp_segment_t *segments)
{
    static const struct {
        dp_segment_role_t role;
        const char *name;
    } layer[MOST_SEGMENTS] = {
        {DP_ROLE_PROJECT, "project"}, {DP_ROLE_ATTENTION, "attention"}, {DP_ROLE_DISPATCH, "dispatch"},
        {DP_ROLE_MLP, "mlp"},         {DP_ROLE_SHARED, "shared"},       {DP_ROLE_COMBINE, "combine"},
        {DP_ROLE_SUM, "sum"}};
    const dp_segment_costs_t *c = &rank->pace->segments;
    const double unit = rank->unit_ns;
    const bool project = c->fine_f[0] + c->fine_i[0] + c->fine_w[0] > 0.0;
    const bool shared = c->fine_f[1] + c->fine_i[1] + c->fine_w[1] + c->fine_f[2] + c->fine_i[2] + c->fine_w[2] > 0.0;
    int32_t n = 0;

    for (int k = 0; k < MOST_SEGMENTS; k++) {
        const dp_segment_role_t role = layer[k].role;
        const bool all_to_all = role == DP_ROLE_DISPATCH || role == DP_ROLE_COMBINE;
        double costs[3];

        if ((role == DP_ROLE_PROJECT && !project) || ((role == DP_ROLE_SHARED || role == DP_ROLE_SUM) && !shared))
            continue;
        costs_of_role(c, role, costs);
        rank->segments[n] = (segment_t){
            rank, {(int64_t)(costs[0] * unit), (int64_t)(costs[1] * unit), (int64_t)(costs[2] * unit)}, all_to_all};
        segments[n] = (dp_segment_t){.struct_size = sizeof(dp_segment_t),
                                     .name = layer[k].name,
                                     .role = role,
                                     .lane = all_to_all ? DP_LANE_ALL_TO_ALL : DP_LANE_COMPUTE,
                                     .self = &rank->segments[n],
                                     .host_forward = forward,
                                     .host_backward_input = backward_input,
                                     .host_backward_weight = costs[2] > 0.0 ? backward_weight : NULL};
        n++;
    }
    return n;
}

static dp_status_t build_sleeping_stage(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                                        dp_stage_t **stage_out)
{
    rank_t *rank = user;
    int32_t layers = rank->pace->segments.layers;
    dp_segment_t segments[MOST_SEGMENTS];
    dp_part_t part = {.struct_size = sizeof(part), .segments = segments};
    dp_part_t *parts = calloc((size_t)layers, sizeof(*parts));
    dp_status_t status;

    (void)context, (void)stage, (void)stages;
    if (parts == NULL)
        return dp_fail(DP_ERR_NOMEM, "demo: no memory for %d layers", layers);
    part.nsegments = fill_segments(rank, segments);
    for (int32_t l = 0; l < layers; l++)
        parts[l] = part;
    status = dp_stage_create(parts, layers, sizeof(double), DP_F32, stage_out);
    free(parts);
    if (status >= 0)
        rank->stages[rank->nstages++] = *stage_out;
    return status;
}

static dp_status_t run_steps(rank_t *rank)
{
    dp_pipeline_options_t options = {.struct_size = sizeof(options),
                                     .group = rank->group,
                                     .schedule = rank->schedule,
                                     .microbatches = rank->schedule->microbatches,
                                     .comm = "comm_shm",
                                     .device = "device_cpu",
                                     .boundary_bytes = sizeof(double),
                                     .trace_steps = rank->steps,
                                     .build = build_sleeping_stage,
                                     .user = rank};
    dp_step_t step = {.struct_size = sizeof(step),
                      .inputs = rank->data,
                      .targets = rank->data,
                      .forward_only = rank->schedule->forward_only};
    dp_pipeline_t *pipeline;
    dp_status_t status = dp_pipeline_open(&options, &pipeline);

    if (status < 0)
        return status;
    for (int32_t k = 0; k < rank->steps && status >= 0; k++) {
        status = dp_group_barrier(rank->group);
        if (status >= 0)
            status = dp_pipeline_step(pipeline, &step);
    }
    if (status >= 0)
        status = dp_pipeline_timeline(pipeline, &rank->timeline);
    dp_pipeline_close(pipeline);
    return status;
}

static void *run_thread(void *arg)
{
    rank_t *rank = arg;

    be_punctual();
    rank->status = run_steps(rank);
    if (rank->status < 0)
        snprintf(rank->message, sizeof(rank->message), "%s", dp_last_error());
    for (int32_t s = 0; s < rank->nstages; s++)
        dp_stage_free(rank->stages[s]);
    dp_group_leave(rank->group);
    return NULL;
}

/* The first failure; the timeline of rank 0 otherwise. */
static dp_status_t gather_spans(rank_t *all, int32_t ranks, dp_timeline_t **timeline_out)
{
    dp_status_t status = DP_OK;

    for (int32_t r = 0; r < ranks; r++)
        if (all[r].status < 0 && status >= 0)
            status = dp_fail(all[r].status, "%s", all[r].message);
    for (int32_t r = 0; r < ranks; r++)
        if (status < 0 || r > 0)
            dp_timeline_free(all[r].timeline);
    if (status >= 0)
        *timeline_out = all[0].timeline;
    return status;
}

static dp_status_t start_rank(rank_t *all, int32_t ranks)
{
    for (int32_t r = 0; r < ranks; r++)
        if (pthread_create(&all[r].thread, NULL, run_thread, &all[r]) != 0) {
            for (int32_t k = r; k < ranks; k++) /* without them those that run end too */
                dp_group_leave(all[k].group);
            for (int32_t k = 0; k < r; k++)
                pthread_join(all[k].thread, NULL);
            return dp_fail(DP_ERR_NOMEM, "demo: this machine starts no thread for rank %d", r);
        }
    for (int32_t r = 0; r < ranks; r++)
        pthread_join(all[r].thread, NULL);
    return DP_OK;
}

dp_status_t demo_ranks_run(const dp_schedule_t *schedule, const demo_pace_t *pace, int32_t steps,
                           dp_timeline_t **timeline_out)
{
    int32_t ranks = schedule->ranks;
    rank_t *all = calloc((size_t)ranks, sizeof(*all));
    dp_group_t **groups = calloc((size_t)ranks, sizeof(dp_group_t *));
    const void **data = calloc((size_t)schedule->microbatches, sizeof(*data));
    dp_status_t status;

    *timeline_out = NULL;
    if (all == NULL || groups == NULL || data == NULL)
        status = dp_fail(DP_ERR_NOMEM, "demo: no memory for %d ranks", ranks);
    else
        status = dp_group_local(ranks, NULL, groups);
    for (int32_t m = 0; m < schedule->microbatches && status >= 0; m++)
        data[m] = data;
    for (int32_t r = 0; r < ranks && status >= 0; r++)
        all[r] = (rank_t){.group = groups[r],
                          .schedule = schedule,
                          .pace = pace,
                          .unit_ns = pace->unit_ns * (pace->rank_scale != NULL ? pace->rank_scale[r] : 1.0),
                          .steps = steps,
                          .data = data,
                          .late_ns = (int64_t)(LATE_SHARE * pace->unit_ns)};
    if (status >= 0)
        status = start_rank(all, ranks);
    if (status >= 0)
        status = gather_spans(all, ranks, timeline_out);
    free(groups);
    free(data);
    free(all);
    return status;
}
