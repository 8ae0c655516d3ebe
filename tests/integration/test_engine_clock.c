/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_engine_clock.c: what the engine enqueues, on streams that only count time, against the
 * simulation of the same program: every segment of every rank begins and ends in the same
 * nanosecond. Transfers are a second model, written for this test: ranks are threads
 * that wait for each other's times. */
#include "tests/support/braided.h"
#include "tests/support/suite.h"

#include "engine/engine.h"
#include <dualpipe/simulate.h>

#include <pthread.h>
#include <stdio.h>

enum { MOST_RANKS = 8, MOST_STAGES = 32, MOST_SEGMENTS = 12, UNKNOWN = -1 };

struct dp_stream {
    int64_t time;
};

struct dp_event {
    int64_t time;
};

/* A channel as all ranks see it; times by message. */
typedef struct channel {
    int64_t *sent, *posted, *begun, *arrived, *released;
    int slots, link;
} channel_t;

struct dp_channel_end {
    struct world *world;
    channel_t *channel;
    bool sends;
};

/* A bundle that is being put together. */
typedef struct pending {
    channel_t *channel[8];
    uint32_t number[8];
    bool sends[8];
    int n;
} pending_t;

struct dp_comm {
    struct world *world;
    pending_t pending;
};

typedef struct cost {
    int64_t ns[3]; /* F, I, W */
} cost_t;

typedef struct world {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    const dp_schedule_t *schedule;
    dp_program_t *program;
    int64_t hop, link_time, link_free[MOST_RANKS * MOST_RANKS];
    channel_t *channels;
    cost_t costs[MOST_STAGES][MOST_SEGMENTS];
    dp_segment_cost_t list[MOST_STAGES * MOST_SEGMENTS];
    int32_t first[MOST_STAGES + 1];
    int inline_messages;
} world_t;

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- streams that count ---- */

static dp_status_t record_event(dp_event_t *event, dp_stream_t *s)
{
    event->time = s->time;
    return DP_OK;
}

static dp_status_t wait_event(dp_stream_t *s, dp_event_t *event)
{
    s->time = later(s->time, event->time);
    return DP_OK;
}

static dp_status_t stamp(dp_stream_t *s, int64_t *slot)
{
    *slot = s->time;
    return DP_OK;
}

static dp_status_t zero(dp_stream_t *s, void *memory, size_t bytes)
{
    (void)s;
    memset(memory, 0, bytes);
    return DP_OK;
}

static const dp_device_vt_t device = {.struct_size = sizeof(device),
                                      .event_record = record_event,
                                      .stream_wait = wait_event,
                                      .stamp = stamp,
                                      .zero = zero};

static dp_status_t forward(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    (void)call;
    s->time += ((const cost_t *)self)->ns[0];
    return DP_OK;
}

static dp_status_t backward_input(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    (void)call;
    s->time += ((const cost_t *)self)->ns[1];
    return DP_OK;
}

static dp_status_t backward_weight(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    (void)call;
    s->time += ((const cost_t *)self)->ns[2];
    return DP_OK;
}

/* ---- transfers ---- */

/* Until another rank has found a time. */
static int64_t await(world_t *w, const int64_t *time)
{
    while (*time == UNKNOWN)
        pthread_cond_wait(&w->moved, &w->lock);
    return *time;
}

static int64_t leave(world_t *w, const channel_t *c, int64_t time)
{
    int64_t leaves = later(time, w->link_free[c->link]);

    w->link_free[c->link] = leaves + w->link_time;
    return leaves;
}

static dp_status_t put_one(dp_channel_end_t *end, uint32_t number, dp_stream_t *s)
{
    world_t *w = end->world;
    channel_t *c = end->channel;
    int64_t leaves;

    pthread_mutex_lock(&w->lock);
    leaves = s->time;
    if ((int)number >= c->slots)
        leaves = later(leaves, await(w, &c->released[number - (uint32_t)c->slots]));
    leaves = leave(w, c, leaves);
    s->time = leaves + w->link_time;
    c->arrived[number] = leaves + w->link_time + w->hop;
    pthread_cond_broadcast(&w->moved);
    pthread_mutex_unlock(&w->lock);
    return DP_OK;
}

static pthread_key_t bundle_key; /* the comm of this thread's rank, in a program for bundles */

static bool add_to_bundle(dp_channel_end_t *end, uint32_t number)
{
    dp_comm_t *comm = pthread_getspecific(bundle_key);

    if (comm == NULL)
        return false;
    comm->pending.channel[comm->pending.n] = end->channel;
    comm->pending.sends[comm->pending.n] = end->sends;
    comm->pending.number[comm->pending.n++] = number;
    return true;
}

static dp_status_t send_message(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    (void)from;
    return add_to_bundle(end, tag->number) ? DP_OK : put_one(end, tag->number, s);
}

static dp_status_t recv_message(dp_channel_end_t *end, const dp_message_tag_t *tag, const void **data, dp_stream_t *s)
{
    *data = end;
    if (add_to_bundle(end, tag->number))
        return DP_OK;
    pthread_mutex_lock(&end->world->lock);
    s->time = later(s->time, await(end->world, &end->channel->arrived[tag->number]));
    pthread_mutex_unlock(&end->world->lock);
    return DP_OK;
}

static dp_status_t release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s)
{
    pthread_mutex_lock(&end->world->lock);
    end->channel->released[number] = s->time;
    pthread_cond_broadcast(&end->world->moved);
    pthread_mutex_unlock(&end->world->lock);
    return DP_OK;
}

static dp_status_t bundle_begin(dp_comm_t *comm, dp_stream_t *s)
{
    (void)s;
    comm->pending.n = 0;
    return DP_OK;
}

/* A transfer begins when both sides have come and the link is free; all of a bundle end
 * together. */
static dp_status_t bundle_end(dp_comm_t *comm, dp_stream_t *s)
{
    world_t *w = comm->world;
    const pending_t *b = &comm->pending;
    int64_t time, over = 0;

    pthread_mutex_lock(&w->lock);
    time = s->time;
    for (int i = 0; i < b->n; i++)
        if (!b->sends[i] && (int)b->number[i] >= b->channel[i]->slots)
            time = later(time, await(w, &b->channel[i]->released[b->number[i] - (uint32_t)b->channel[i]->slots]));
    for (int i = 0; i < b->n; i++) {
        channel_t *c = b->channel[i];
        uint32_t n = b->number[i];

        (b->sends[i] ? c->sent : c->posted)[n] = time;
        if (c->sent[n] != UNKNOWN && c->posted[n] != UNKNOWN)
            c->begun[n] = leave(w, c, later(c->sent[n], c->posted[n]));
    }
    pthread_cond_broadcast(&w->moved);
    for (int i = 0; i < b->n; i++)
        over = later(over, await(w, &b->channel[i]->begun[b->number[i]]) + w->link_time + w->hop);
    s->time = over;
    pthread_mutex_unlock(&w->lock);
    return DP_OK;
}

static dp_status_t all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    (void)comm, (void)data, (void)count, (void)dtype, (void)s;
    return DP_OK;
}

static const dp_comm_vt_t comm_vt = {.struct_size = sizeof(comm_vt),
                                     .send = send_message,
                                     .recv = recv_message,
                                     .release = release,
                                     .bundle_begin = bundle_begin,
                                     .bundle_end = bundle_end,
                                     .all_reduce = all_reduce};

/* ---- a pipeline without plugins ---- */

typedef struct rank {
    world_t *world;
    dp_pipeline_t pipeline;
    struct dp_comm comm;
    struct dp_stream streams[DP_LANE_COUNT + DP__TRANSFER_STREAMS];
    struct dp_event marks[DP_LANE_COUNT], *events;
    dp_channel_end_t ends[4 * DP_MAX_CHUNKS];
    char memory[4096];
    double losses[1024];
    pthread_t thread;
} rank_t;

static void ok(dp_status_t status)
{
    ck_assert_msg(status >= 0, "%s", dp_last_error());
}

static dp_stage_t *stage_of(world_t *w, int32_t stage)
{
    dp_part_t parts[MOST_SEGMENTS];
    dp_segment_t segments[MOST_SEGMENTS];
    int32_t n = w->first[stage + 1] - w->first[stage], nparts = 0;
    dp_stage_t *out;

    for (int32_t k = 0; k < n; k++) {
        const dp_segment_cost_t *c = &w->list[w->first[stage] + k];

        segments[k] = (dp_segment_t){.struct_size = sizeof(segments[k]),
                                     .name = "segment",
                                     .role = (dp_segment_role_t)c->role,
                                     .lane = (dp_lane_t)c->lane,
                                     .self = &w->costs[stage][k],
                                     .forward = forward,
                                     .backward_input = backward_input,
                                     .backward_weight = c->has_weight ? backward_weight : NULL};
        if (c->begins_part)
            parts[nparts++] = (dp_part_t){.struct_size = sizeof(parts[0]), .segments = &segments[k]};
        parts[nparts - 1].nsegments++;
    }
    ok(dp_stage_create(parts, nparts, 8, DP_F32, &out));
    return out;
}

static void open_rank(rank_t *rank, world_t *w, int32_t r)
{
    dp_pipeline_t *p = &rank->pipeline;
    int32_t nevents;

    rank->world = rank->comm.world = w;
    p->device_vt = &device;
    p->comms = (dp__comms_t){.vt = &comm_vt, .pipeline = &rank->comm};
    p->grid = (dp__grid_t){.pp = w->schedule->ranks, .ep = 1, .dp = 1, .p = r};
    p->schedule = w->schedule;
    p->programs.training = w->program;
    p->programs.bundled = w->program->transport == DP_TRANSPORT_BUNDLES;
    p->options.dtype = DP_F32;
    p->nchunks = w->schedule->chunks;
    p->chunks = calloc((size_t)p->nchunks, sizeof(*p->chunks));
    for (int32_t c = 0; c < p->nchunks; c++) {
        dp_schedule_place(w->schedule, r, c, &p->chunks[c].place);
        p->chunks[c].stage = stage_of(w, p->chunks[c].place.stage);
        p->chunks[c].saved = rank->memory;
    }
    for (int lane = 0; lane < DP_LANE_COUNT; lane++) {
        p->lanes.stream[lane] = &rank->streams[lane];
        p->lanes.mark[lane] = &rank->marks[lane];
    }
    p->transfer_streams.n = dp__transfer_streams_of(w->program, r, p->transfer_streams.at);
    for (int32_t k = 0; k < p->transfer_streams.n; k++)
        p->transfer_streams.stream[k] = &rank->streams[DP_LANE_COUNT + k];
    for (int kind = 0; kind < DP__KINDS; kind++)
        for (int k = 0; k < DP__WORKS; k++)
            p->work[kind][k] = rank->memory;
    p->sums.losses = p->sums.losses_there = rank->losses;
    ok(dp__names_collect(p));
    ok(dp__links_list(p));
    for (int32_t l = 0; l < p->links.n; l++) {
        dp__link_t *link = &p->links.at[l];

        rank->ends[l] = (dp_channel_end_t){w, &w->channels[link->channel - w->program->channels], link->sends != 0};
        link->end = link->channel->src != link->channel->dst ? &rank->ends[l] : NULL;
        link->in_lane = w->inline_messages && !p->programs.bundled && link->end != NULL;
    }
    ok(dp__plans_build(p));
    for (int32_t l = 0; l < p->links.n; l++) {
        p->links.at[l].arrived = calloc((size_t)p->links.at[l].nbuffers + 1, sizeof(void *));
        p->links.at[l].buffer = calloc((size_t)p->links.at[l].nbuffers + 1, sizeof(char *));
    }
    nevents = p->plans.training.commands.nevents;
    rank->events = calloc((size_t)nevents + 1, sizeof(*rank->events));
    p->events.at = calloc((size_t)nevents + 1, sizeof(*p->events.at));
    for (int32_t e = 0; e < nevents; e++)
        p->events.at[e] = &rank->events[e];
    p->trace.records = calloc((size_t)p->plans.training.nspans, sizeof(dp_span_t));
    memcpy(p->trace.records, p->plans.training.spans, (size_t)p->plans.training.nspans * sizeof(dp_span_t));
}

static void *run_rank(void *arg)
{
    rank_t *rank = arg;
    dp_step_t step = {.struct_size = sizeof(step),
                      .forward_only = rank->world->schedule->forward_only,
                      .microbatches = rank->world->schedule->microbatches};

    pthread_setspecific(bundle_key, rank->pipeline.programs.bundled ? &rank->comm : NULL);
    ok(dp__step_put(&rank->pipeline, &rank->pipeline.plans.training, &step));
    return NULL;
}

static void close_rank(rank_t *rank)
{
    dp_pipeline_t *p = &rank->pipeline;

    for (int32_t c = 0; c < p->nchunks; c++)
        dp_stage_free(p->chunks[c].stage);
    for (int32_t l = 0; l < p->links.n; l++) {
        free(p->links.at[l].arrived);
        free(p->links.at[l].buffer);
        p->links.at[l].nbuffers = 0;
        p->links.at[l].arrived = NULL;
        p->links.at[l].buffer = NULL;
    }
    free(p->events.at);
    p->events = (dp__events_t){.n = 0};
    dp__links_close(p);
    dp__plans_free(p);
    free(rank->events);
    free(p->trace.records);
    free((void *)p->trace.names);
    free(p->chunks);
}

/* ---- the comparison ---- */

static int next_compute(const dp_span_t *spans, int64_t n, int64_t *at, dp_span_t *out)
{
    while (*at < n && spans[*at].kind != DP_SPAN_COMPUTE)
        ++*at;
    if (*at == n)
        return 0;
    *out = spans[(*at)++];
    return 1;
}

static void compare(const world_t *w, const rank_t *ranks, const dp_timeline_t *timeline, const char *what)
{
    for (int32_t r = 0; r < w->schedule->ranks; r++) {
        const dp_pipeline_t *p = &ranks[r].pipeline;
        int64_t n, i = 0, k = 0, count = 0;
        const dp_span_t *simulated = dp_timeline_spans(timeline, r, &n);
        dp_span_t a, b;

        while (next_compute(p->trace.records, p->plans.training.nspans, &i, &a)) {
            ck_assert(next_compute(simulated, n, &k, &b));
            ck_assert_msg(
                a.start_ns == b.start_ns && a.end_ns == b.end_ns && a.pass == b.pass && a.lane == b.lane &&
                    a.segment == b.segment && a.chunk == b.chunk,
                "%s, rank %d, segment %lld: engine %s of segment %d, %lld to %lld; simulated %s of %d, %lld to "
                "%lld",
                what, r, (long long)count, dp_op_kind_name(a.pass), a.segment, (long long)a.start_ns,
                (long long)a.end_ns, dp_op_kind_name(b.pass), b.segment, (long long)b.start_ns, (long long)b.end_ns);
            count++;
        }
        ck_assert(!next_compute(simulated, n, &k, &b));
        ck_assert_int_gt(count, 0);
    }
}

/* Stages of 1 to 8 segments on either lane, of one to several parts; alike: all of four segments of
 * a layer. */
static void make_costs(world_t *w, bool alike, unsigned *seed)
{
    int32_t stages = dp_schedule_stages(w->schedule);

    for (int32_t s = 0; s < stages; s++) {
        int32_t n = alike ? 4 : 1 + (int32_t)braided_random(seed, 8);

        w->first[s + 1] = w->first[s] + n;
        for (int32_t k = 0; k < n; k++) {
            dp_segment_cost_t *c = &w->list[w->first[s] + k];
            int64_t *ns = w->costs[s][k].ns;

            for (int pass = 0; pass < 3; pass++)
                ns[pass] = (int64_t)braided_random(seed, 1000);
            *c = (dp_segment_cost_t){.role = (uint8_t)(alike ? k + 1 : 0),
                                     .lane = alike ? (uint8_t)(k % 2) : (uint8_t)braided_random(seed, 2),
                                     .has_weight = alike ? k % 2 == 0 : (uint8_t)braided_random(seed, 2),
                                     .begins_part = k == 0 || (!alike && braided_random(seed, 3) == 0),
                                     .f = (double)ns[0] / 1e6,
                                     .i = (double)ns[1] / 1e6,
                                     .w = (double)ns[2] / 1e6};
        }
    }
}

static void run(const dp_schedule_t *schedule, dp_transport_t transport, bool alike, unsigned seed)
{
    static world_t world; /* large */
    static rank_t ranks[MOST_RANKS];
    world_t *w = &world;
    dp_lower_options_t options = {.struct_size = sizeof(options), .transport = transport};
    dp_verify_report_t report = {.struct_size = sizeof(report)};
    dp_segment_costs_t segments = {.struct_size = sizeof(segments)};
    dp_costs_t costs = {.struct_size = sizeof(costs), .segments = &segments, .bytes = 1};
    dp_simulation_t result = {.struct_size = sizeof(result)};
    char what[128];
    int32_t m = dp_schedule_path_microbatches(schedule, 0);
    int64_t *times;

    *w = (world_t){
        .schedule = schedule, .hop = braided_random(&seed, 3) * 700, .link_time = braided_random(&seed, 3) * 150};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->moved, NULL);
    w->inline_messages = (int)braided_random(&seed, 2);
    make_costs(w, alike, &seed);
    snprintf(what, sizeof(what), "%s %d x %d, %s, hop %lld, link %lld%s", schedule->method, schedule->ranks,
             schedule->microbatches, transport == DP_TRANSPORT_BUNDLES ? "bundles" : "credits", (long long)w->hop,
             (long long)w->link_time, w->inline_messages ? ", inline" : "");
    ok(dp_program_lower(schedule, &options, &w->program));
    if (dp_program_verify(w->program, &report) == DP_ERR_REJECTED) { /* for want of slots */
        dp_program_free(w->program);
        options.slots = report.safe_slots;
        ok(dp_program_lower(schedule, &options, &w->program));
        ok(dp_program_verify(w->program, NULL));
    }
    w->channels = calloc((size_t)w->program->nchannels + 1, sizeof(*w->channels));
    times = malloc((size_t)w->program->nchannels * (size_t)m * 5 * sizeof(*times) + 8);
    memset(times, 0xff, (size_t)w->program->nchannels * (size_t)m * 5 * sizeof(*times));
    for (int32_t c = 0; c < w->program->nchannels; c++) {
        int64_t *t = times + (size_t)c * (size_t)m * 5;
        const dp_channel_t *channel = &w->program->channels[c];

        w->channels[c] = (channel_t){
            t, t + m, t + 2 * m, t + 3 * m, t + 4 * m, channel->slots, channel->src * MOST_RANKS + channel->dst};
    }
    segments.stages = dp_schedule_stages(schedule);
    segments.first = w->first;
    segments.list = w->list;
    segments.inline_messages = w->inline_messages;
    costs.hop = (double)w->hop / 1e6;
    costs.bandwidth = w->link_time > 0 ? 1e6 / (double)w->link_time : 0;
    memset(ranks, 0, sizeof(ranks));
    for (int32_t r = 0; r < schedule->ranks; r++)
        open_rank(&ranks[r], w, r);
    for (int32_t r = 0; r < schedule->ranks; r++)
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    for (int32_t r = 0; r < schedule->ranks; r++)
        pthread_join(ranks[r].thread, NULL);
    ck_assert_msg(dp_simulate(w->program, &costs, 1, &result) == DP_OK, "%s: %s", what, dp_last_error());
    compare(w, ranks, result.timeline, what);
    dp_simulation_clear(&result);
    for (int32_t r = 0; r < schedule->ranks; r++)
        close_rank(&ranks[r]);
    free(times);
    free(w->channels);
    dp_program_free(w->program);
}

START_TEST(every_method_to_the_nanosecond)
{
    static const int32_t sizes[][2] = {{1, 2}, {2, 4}, {2, 8}, {4, 8}, {4, 20}, {8, 16}, {3, 9}};
    size_t count;
    const dp_method_t *method = &dp_schedule_methods(&count)[_i];

    for (unsigned k = 0; k < 7 * 8; k++) {
        dp_schedule_request_t request = {.struct_size = sizeof(request),
                                         .method = method->name,
                                         .ranks = sizes[k % 7][0],
                                         .microbatches = sizes[k % 7][1],
                                         .forward_only = k % 5 == 4};
        dp_schedule_t *schedule, *forwards;

        if (dp_schedule_generate(&request, &schedule) < 0)
            continue;
        run(schedule, (dp_transport_t)(k / 7 % 2), k / 14 % 2, 1 + k);
        if (k < 14) {
            ok(dp_schedule_forwards(schedule, 1, &forwards));
            run(forwards, (dp_transport_t)(k / 7 % 2), false, 100 + k);
            dp_schedule_free(forwards);
        }
        dp_schedule_free(schedule);
    }
}
END_TEST

/* Letters need stages that are alike. */
START_TEST(braids_to_the_nanosecond)
{
    static const char *const methods[] = {"1f1b", "zb1p", "dualpipe", "dualpipev", "interleaved", "gpipe"};
    int compared = 0;

    for (unsigned seed = 1; seed <= 300; seed++) {
        dp_schedule_request_t request = {
            .struct_size = sizeof(request), .method = methods[seed % 6], .ranks = 2, .microbatches = 6};
        dp_lower_options_t options = {.struct_size = sizeof(options), .transport = (dp_transport_t)(seed / 6 % 2)};
        dp_schedule_t *plain, *schedule;
        dp_program_t *program = NULL;

        if (dp_schedule_generate(&request, &plain) < 0)
            continue;
        schedule = braided(plain, 1 + (int)(seed % 4), 4, seed % 3, seed);
        ck_assert_ptr_nonnull(schedule);
        if (dp_program_lower(schedule, &options, &program) >= 0 && dp_program_verify(program, NULL) >= 0) {
            run(schedule, options.transport, true, seed);
            compared++;
        }
        dp_program_free(program);
        dp_schedule_free(schedule);
        dp_schedule_free(plain);
    }
    ck_assert_int_gt(compared, 50);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_clock");
    TCase *tc = tcase_create("clock");
    size_t count;

    pthread_key_create(&bundle_key, NULL);
    tcase_set_timeout(tc, 60);
    dp_schedule_methods(&count);
    tcase_add_loop_test(tc, every_method_to_the_nanosecond, 0, (int)count);
    tcase_add_test(tc, braids_to_the_nanosecond);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
