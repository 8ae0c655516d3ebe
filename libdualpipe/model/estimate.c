/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * estimate.c: from a model, GPUs and a layout to bytes and to the costs of segments, which the
 * simulator makes a step of. */
#include "estimate.h"

#include "base/memory.h"
#include "shape.h"

#include <math.h>
#include <string.h>

#define BF16 2.0

/* ---- a layer ---- */

enum {
    ATTENTION = DP_ROLE_ATTENTION - 1,
    DISPATCH = DP_ROLE_DISPATCH - 1,
    MLP = DP_ROLE_MLP - 1,
    COMBINE = DP_ROLE_COMBINE - 1
};

/* Milliseconds of a micro-batch on one rank. A transfer is estimated to take as long forward as
 * back; 0: there is none. */
typedef struct times {
    double of[DP_SEGMENT_COSTS][3]; /* F, I, W */
    double again[DP_SEGMENT_COSTS]; /* to recompute all of it, of MLP the inner width */
} times_t;

static double microbatch_tokens(const dp__job_t *job)
{
    return (double)job->micro_batch * (double)job->sequence;
}

static double products_ms(const dp__job_t *job, double operations)
{
    return operations / (job->gpu.tflops * 1e9 * job->gpu.products);
}

static double link_ms(const dp__job_t *job, double bytes, double gbps)
{
    return bytes / (gbps * 1e6 * job->gpu.links);
}

/* What tensor parallelism adds to a layer's half: an all-reduce of the tokens on the host. */
static double reduce_ms(const dp__job_t *job, const dp_layout_t *l)
{
    const double bytes = microbatch_tokens(job) * (double)job->model.hidden * BF16;

    return l->tp > 1 ? link_ms(job, 2 * bytes * (l->tp - 1) / l->tp, job->gpu.near) : 0;
}

/* How many of n ranks or hosts a token's experts are on, if each is as likely as the others. */
static double reached(double n, double choices)
{
    return n * (1 - pow(1 - 1 / n, choices));
}

/* Rows to other ranks of the host and, once for each host, to other hosts, at the same time. */
static double transfer_ms(const dp__job_t *job, const dp_layout_t *l)
{
    const dp_model_t *m = &job->model;
    const double row = (double)m->hidden * BF16 * microbatch_tokens(job) / l->tp;
    const double on_host = fmax(1, fmin(l->ep, job->gpu.host / l->tp)), hosts = ceil(l->ep / on_host);
    double visited = reached(hosts, (double)m->top_k), near, far;

    if (l->ep == 1)
        return 0;
    if (m->node_limit > 0)
        visited = fmin(visited, (double)m->node_limit);
    near = link_ms(job, row * reached(l->ep, (double)m->top_k) * (on_host - 1) / on_host, job->gpu.near);
    far = link_ms(job, row * visited * (hosts - 1) / hosts, job->gpu.far);
    return fmax(near, far) + job->gpu.latency / 1e3;
}

static times_t estimated_times(const dp__job_t *job, const dp_layout_t *l, int64_t layer)
{
    const dp_model_t *m = &job->model;
    const dp__model_layer_t p = dp__model_layer(m, layer);
    const double tokens = microbatch_tokens(job), share = m->experts > 0 ? (double)m->top_k / (double)m->experts : 0;
    const double projections = products_ms(job, 2 * tokens * p.attention / l->tp), reduce = reduce_ms(job, l);
    const double mlp = products_ms(job, 2 * tokens * (p.mlp + p.experts * share) / l->tp);
    /* a token sees half of its sequence; the backward has five products of the forward's two */
    const double core = tokens * (double)job->sequence * (double)m->heads * (double)(m->head_dim + m->value_dim) /
                        l->tp / (job->gpu.tflops * 1e9 * job->gpu.core);
    const double transfer = dp__model_has_experts(m, layer) ? transfer_ms(job, l) : 0;

    return (times_t){.of = {[ATTENTION] = {projections + core + reduce, projections + 2.5 * core + reduce, projections},
                            [DISPATCH] = {transfer, transfer, 0},
                            [MLP] = {mlp + reduce, mlp + reduce, mlp},
                            [COMBINE] = {transfer, transfer, 0}}};
}

/* With what was measured in the place of that. Of a model with experts only they were. */
static times_t times_of(const dp__job_t *job, const dp_layout_t *l, int64_t layer)
{
    const dp_segment_costs_t *m = &job->measured;
    const bool experts = dp__model_has_experts(&job->model, layer);
    times_t t = estimated_times(job, l, layer);

    for (int s = 0; s < DP_SEGMENT_COSTS; s++) {
        const bool there = s == ATTENTION || (s == MLP ? experts || job->model.experts == 0 : experts && l->ep > 1);

        if (!there || m->f[s] + m->i[s] + m->w[s] == 0)
            continue;
        t.of[s][0] = m->f[s];
        t.of[s][1] = m->i[s];
        t.of[s][2] = m->w[s];
        t.again[s] = m->r[s];
    }
    t.again[ATTENTION] = t.again[ATTENTION] > 0 ? t.again[ATTENTION] : t.of[ATTENTION][0];
    t.again[MLP] = t.again[MLP] > 0 ? t.again[MLP] : t.of[MLP][0] * 2 / 3;
    return t;
}

void dp__estimate_segments(const dp__job_t *job, const dp_layout_t *layout, dp_segment_costs_t *segments_out)
{
    int64_t layer = 0;
    times_t t;

    while (layer + 1 < job->model.layers && job->model.experts > 0 && !dp__model_has_experts(&job->model, layer))
        layer++;
    t = estimated_times(job, layout, layer);
    *segments_out = (dp_segment_costs_t){.struct_size = sizeof(*segments_out), .layers = 1};
    for (int s = 0; s < DP_SEGMENT_COSTS; s++) {
        segments_out->f[s] = t.of[s][0];
        segments_out->i[s] = t.of[s][1];
        segments_out->w[s] = t.of[s][2];
    }
}

/* What a rank computes of a layer. */
static double compute_ms(const times_t *t)
{
    double sum = 0;

    for (int pass = 0; pass < 3; pass++)
        sum += t->of[ATTENTION][pass] + t->of[MLP][pass];
    return sum;
}

static double head_ms(const dp__job_t *job, const dp_layout_t *l)
{
    return products_ms(job, 2 * microbatch_tokens(job) * dp__model_head(&job->model) / l->tp);
}

/* Bytes that a layer keeps of a token from its forward to its backward (docs/recompute.md). */
static double kept_bytes(const dp_model_t *m, int64_t layer, int32_t recompute)
{
    const bool latent = m->kv_rank > 0, experts = dp__model_has_experts(m, layer);
    const double d = (double)m->hidden, heads = (double)m->heads;
    const double q = heads * (double)m->head_dim, out = heads * (double)m->value_dim;
    const double k = latent ? q : (double)(m->kv_heads * m->head_dim), v = latent ? out : k;
    const double latents = (double)(m->q_rank + m->kv_rank + m->rope_dim);
    const double rows = experts ? (double)m->top_k : 1, width = (double)(experts ? m->expert_ffn : m->ffn);
    const double inner = rows * width + (experts ? (double)m->shared_ffn : 0), products = m->gated ? 2 : 1;
    double kept = 2 * d + (experts ? rows * d : 0); /* behind both norms; rows that arrived */

    if (recompute < DP_RECOMPUTE_FULL)
        kept += q + k + v + out + latents + 2 * heads;
    if (recompute < DP_RECOMPUTE_MLP)
        kept += products * inner;
    if (recompute < DP_RECOMPUTE_CHEAP)
        kept += inner + (experts ? rows * d + (m->shared_ffn > 0 ? d : 0) : 0) + d +
                latents; /* activation, gradients of outputs, norms */
    /* in fp32: factors of two norms; scores, and of each choice its weight, places and lists */
    return kept * BF16 + 8 + (experts ? (double)m->experts * 4 + rows * 32 : 0);
}

/* ---- a layout ---- */

/* What is cut into stages: the embedding, the layers, the head. */
typedef struct parts {
    int64_t count;
    double *ms; /* compute of a micro-batch */
    int32_t stages;
    int64_t *first; /* [stages + 1] */
} parts_t;

static bool fits_under(const parts_t *p, double most)
{
    int64_t at = 0;

    for (int32_t s = 0; s < p->stages; s++) {
        double sum = 0;

        p->first[s] = at;
        while (at < p->count - (p->stages - 1 - s) && (at == p->first[s] || sum + p->ms[at] <= most))
            sum += p->ms[at++];
        if (sum > most)
            return false;
    }
    p->first[p->stages] = p->count;
    return at == p->count;
}

/* Such that the dearest stage is as cheap as it can be. */
static dp_status_t cut_parts(const dp__job_t *job, const dp_layout_t *l, int32_t stages, parts_t *p)
{
    double low = 0, high = 0;

    *p = (parts_t){.count = job->model.layers + 2, .stages = stages};
    if (stages > p->count)
        return dp_fail(DP_ERR_INVALID, "%d stages are more than %lld layers, embedding and head", stages,
                       (long long)job->model.layers);
    p->ms = dp__calloc((size_t)p->count, sizeof(*p->ms));
    p->first = dp__calloc((size_t)stages + 1, sizeof(*p->first));
    if (p->ms == NULL || p->first == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %lld layers", (long long)job->model.layers);
    p->ms[0] = 1e-6;
    p->ms[p->count - 1] = 3 * head_ms(job, l);
    for (int64_t i = 0; i < job->model.layers; i++) {
        const times_t t = times_of(job, l, i);

        p->ms[i + 1] = compute_ms(&t);
    }
    for (int64_t i = 0; i < p->count; i++)
        high += p->ms[i];
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;

        *(fits_under(p, middle) ? &high : &low) = middle;
    }
    (void)fits_under(p, high);
    return DP_OK;
}

static void clear_parts(parts_t *p)
{
    dp__free(p->ms);
    dp__free(p->first);
}

double dp__estimate_bound(const dp__job_t *job, const dp_layout_t *l)
{
    double sum = 3 * head_ms(job, l);

    for (int64_t i = 0; i < job->model.layers; i++) {
        const times_t t = times_of(job, l, i);

        sum += compute_ms(&t);
    }
    return sum * l->microbatches / l->pp / 1e3;
}

/* Parameters of a stage on one rank, and bytes that a micro-batch leaves on it. */
typedef struct held {
    double dense, experts, kept, unkept; /* unkept: what recomputation saves */
    bool head;
} held_t;

static held_t held_by(const dp__job_t *job, const dp_layout_t *l, const parts_t *p, int32_t stage)
{
    const dp_model_t *m = &job->model;
    const double tokens = microbatch_tokens(job) / l->tp;
    held_t h = {0};

    for (int64_t part = p->first[stage]; part < p->first[stage + 1]; part++) {
        const dp__model_layer_t layer = dp__model_layer(m, part - 1);

        if (part == 0) {
            h.dense += dp__model_embedding(m) / l->tp;
            continue;
        }
        if (part == p->count - 1) {
            h.dense += dp__model_head(m) / l->tp;
            h.kept += tokens * (double)m->hidden * BF16;
            h.head = true;
            continue;
        }
        h.dense += (layer.attention + layer.mlp) / l->tp;
        h.experts += layer.experts / l->tp / l->ep;
        h.kept += tokens * kept_bytes(m, part - 1, l->recompute);
        h.unkept += tokens * (kept_bytes(m, part - 1, DP_RECOMPUTE_NONE) - kept_bytes(m, part - 1, l->recompute));
    }
    h.kept += tokens * (double)m->hidden * BF16; /* its input */
    return h;
}

/* slots: places for micro-batches of each chunk of each rank. state: of the optimizer for a
 * parameter, a master and two moments in fp32. */
static dp_layout_t held_on(const dp__job_t *job, const dp_layout_t *l, const dp_schedule_t *schedule,
                           const double *slots, const parts_t *p, int32_t rank)
{
    const dp_model_t *m = &job->model;
    const double tokens = microbatch_tokens(job) / l->tp, row = (double)m->hidden * BF16, state = 12;
    const int32_t copies = dp_schedule_paths(schedule);
    const double spread = job->whole_optimizer ? 1 : (double)l->dp * copies;
    dp_layout_t f = *l;
    double unkept = 0;
    bool embedding = false, head = false;

    f.copies = copies;
    for (int32_t chunk = 0; chunk < schedule->chunks; chunk++) {
        dp_place_t place;
        held_t h;

        dp_schedule_place(schedule, rank, chunk, &place);
        h = held_by(job, l, p, place.stage);
        embedding = embedding || place.stage == 0;
        head = head || h.head;
        /* one matrix for both */
        if (m->tied && embedding && head && (place.stage == 0 || h.head) && copies == 1)
            h.dense -= (double)m->vocab * (double)m->hidden / l->tp;
        f.weights += (h.dense + h.experts) * BF16;
        f.expert_weights += h.experts * BF16;
        f.gradients += (h.dense + h.experts) * 4;
        f.optimizer += h.dense * state / spread + h.experts * state / fmax(1, spread / l->ep);
        f.logits += h.head ? tokens * (double)m->vocab * (BF16 + 4) : 0;
        /* two at least: forwards alone, as for a validation, are two at a time */
        f.activations += h.kept * fmax(2, slots[rank * schedule->chunks + chunk]);
        unkept = fmax(unkept, h.unkept);
    }
    f.activations += unkept; /* of the one backward that runs */
    f.transfers = l->pp > 1 ? 4 * schedule->chunks * tokens * row : 0;
    f.transfers += l->ep > 1 ? 2 * (double)m->top_k * tokens * row : 0;
    f.total = f.weights + f.gradients + f.optimizer + f.activations + f.logits + f.transfers + job->gpu.reserve;
    return f;
}

/* Schedules of many micro-batches are simulated with fewer: in between each takes the same. */
static int32_t enough(const dp_layout_t *l, int32_t rounds)
{
    return rounds * l->pp < l->microbatches ? rounds * l->pp : l->microbatches;
}

static dp_status_t make_schedule(const dp_layout_t *l, int32_t microbatches, dp_schedule_t **schedule_out)
{
    const dp_schedule_request_t request = {.struct_size = sizeof(request),
                                           .method = l->method->name,
                                           .ranks = l->pp,
                                           .microbatches = microbatches,
                                           .chunks = l->chunks};

    return dp_schedule_generate(&request, schedule_out);
}

/* Most micro-batches that are alive in each chunk of each rank, of a schedule of so many. */
static dp_status_t count_slots(const dp_layout_t *l, int32_t microbatches, double *slots)
{
    dp_schedule_t *schedule = NULL;
    dp_program_t *program = NULL;
    dp_status_t status = make_schedule(l, microbatches, &schedule);

    if (status >= 0)
        status = dp_program_lower(schedule, NULL, &program);
    for (int32_t i = 0; status >= 0 && i < program->ranks * program->chunks; i++)
        slots[i] = program->activation_slots[i];
    dp_program_free(program);
    dp_schedule_free(schedule);
    return status;
}

/* The same of all micro-batches: what grows with them, as gpipe's does, grows evenly. */
static dp_status_t find_slots(const dp_layout_t *l, int32_t places, double *slots)
{
    const int32_t some = enough(l, 4), more = enough(l, 6);
    double *fewer = dp__calloc((size_t)places, sizeof(*fewer));
    dp_status_t status =
        fewer != NULL ? count_slots(l, more, slots) : dp_fail(DP_ERR_NOMEM, "no memory for %d chunks", places);

    if (status >= 0 && more < l->microbatches) {
        status = count_slots(l, some, fewer);
        for (int32_t i = 0; i < places; i++)
            slots[i] += (slots[i] - fewer[i]) / (more - some) * (l->microbatches - more);
    }
    dp__free(fewer);
    return status;
}

/* Of one rank, or where rank is -1 of the fullest. */
static dp_status_t estimate_rank(const dp__job_t *job, dp_layout_t *layout, int32_t rank)
{
    const dp_layout_t asked = *layout;
    dp_schedule_t *schedule = NULL;
    double *slots = NULL;
    parts_t parts = {0};
    dp_status_t status = make_schedule(layout, enough(layout, 6), &schedule);

    layout->total = 0;
    if (status >= 0) {
        const int32_t places = schedule->ranks * schedule->chunks;

        slots = dp__calloc((size_t)places, sizeof(*slots));
        status = slots != NULL ? find_slots(layout, places, slots)
                               : dp_fail(DP_ERR_NOMEM, "no memory for %d chunks", places);
    }
    if (status >= 0)
        status = cut_parts(job, layout, dp_schedule_stages(schedule), &parts);
    for (int32_t r = rank < 0 ? 0 : rank; r < (rank < 0 ? layout->pp : rank + 1) && status >= 0; r++) {
        const dp_layout_t f = held_on(job, &asked, schedule, slots, &parts, r);

        if (f.total > layout->total)
            *layout = f;
    }
    layout->fits = status >= 0 && layout->total <= job->gpu.memory;
    clear_parts(&parts);
    dp__free(slots);
    dp_schedule_free(schedule);
    return status;
}

dp_status_t dp__estimate_bytes(const dp__job_t *job, dp_layout_t *layout)
{
    return estimate_rank(job, layout, -1);
}

/* Without what a row says beside its ranks. */
static dp_layout_t layout_asked(const dp_layout_t *row)
{
    return (dp_layout_t){.struct_size = row->struct_size,
                         .tp = row->tp,
                         .pp = row->pp,
                         .ep = row->ep,
                         .dp = row->dp,
                         .microbatches = row->microbatches,
                         .method = row->method,
                         .chunks = row->chunks,
                         .recompute = row->recompute};
}

dp_status_t dp__estimate_rank(const dp__job_t *job, const dp_layout_t *row, int32_t rank, dp_layout_t *layout_out)
{
    dp_layout_t fullest = layout_asked(row), one = fullest;
    dp_status_t status = estimate_rank(job, &fullest, -1);
    double added;

    if (status >= 0)
        status = estimate_rank(job, &one, rank);
    if (status < 0)
        return status;
    added = row->transfers - fullest.transfers; /* where two slots a channel were too few */
    *layout_out = *row;
    layout_out->weights = one.weights;
    layout_out->expert_weights = one.expert_weights;
    layout_out->gradients = one.gradients;
    layout_out->optimizer = one.optimizer;
    layout_out->activations = one.activations;
    layout_out->logits = one.logits;
    layout_out->transfers = one.transfers + added;
    layout_out->total = one.total + added;
    layout_out->fits = layout_out->total <= job->gpu.memory;
    return DP_OK;
}

/* ---- time ---- */

typedef struct segments {
    dp_segment_cost_t *list;
    double *r;
    int32_t *first;
    int32_t count;
} segments_t;

static void add_segment(segments_t *s, dp_segment_role_t role, bool begins, const double times[3], double r)
{
    const bool transfer = role == DP_ROLE_DISPATCH || role == DP_ROLE_COMBINE;

    s->r[s->count] = r;
    s->list[s->count++] = (dp_segment_cost_t){.role = (uint8_t)role,
                                              .lane = transfer ? DP_LANE_ALL_TO_ALL : DP_LANE_COMPUTE,
                                              .has_weight = times[2] > 0,
                                              .begins_part = begins,
                                              .f = times[0],
                                              .i = times[1],
                                              .w = times[2]};
}

static void add_layer(segments_t *s, const times_t *t, int32_t recompute)
{
    const double attention = recompute >= DP_RECOMPUTE_FULL ? t->again[ATTENTION] : 0;
    const double mlp = recompute >= DP_RECOMPUTE_MLP ? t->again[MLP] : 0;

    add_segment(s, DP_ROLE_ATTENTION, true, t->of[ATTENTION], attention);
    if (t->of[DISPATCH][0] > 0)
        add_segment(s, DP_ROLE_DISPATCH, false, t->of[DISPATCH], 0);
    add_segment(s, DP_ROLE_MLP, false, t->of[MLP], mlp);
    if (t->of[COMBINE][0] > 0)
        add_segment(s, DP_ROLE_COMBINE, false, t->of[COMBINE], 0);
}

static dp_status_t make_segments(const dp__job_t *job, const dp_layout_t *l, const parts_t *p, segments_t *s)
{
    const size_t most = (size_t)p->count * DP_SEGMENT_COSTS;
    const double ends[2][3] = {{1e-6, 1e-6, 1e-6}, {head_ms(job, l), head_ms(job, l), head_ms(job, l)}};

    *s = (segments_t){.list = dp__calloc(most, sizeof(*s->list)),
                      .r = dp__calloc(most, sizeof(*s->r)),
                      .first = dp__calloc((size_t)p->stages + 1, sizeof(*s->first))};
    if (s->list == NULL || s->r == NULL || s->first == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu segments", most);
    for (int32_t stage = 0; stage < p->stages; stage++) {
        s->first[stage] = s->count;
        for (int64_t part = p->first[stage]; part < p->first[stage + 1]; part++) {
            if (part == 0 || part == p->count - 1) {
                add_segment(s, DP_ROLE_OTHER, true, ends[part > 0], 0);
            } else {
                const times_t t = times_of(job, l, part - 1);

                add_layer(s, &t, l->recompute);
            }
        }
    }
    s->first[p->stages] = s->count;
    return DP_OK;
}

static void clear_segments(segments_t *s)
{
    dp__free(s->list);
    dp__free(s->r);
    dp__free(s->first);
}

/* A step of a schedule, in milliseconds. */
static dp_status_t simulate(const dp__job_t *job, const dp_layout_t *l, const dp_schedule_t *schedule, int32_t slots,
                            int with_timeline, dp_simulation_t *result)
{
    const double boundary = microbatch_tokens(job) * (double)job->model.hidden * BF16 / l->tp;
    const double linked =
        (l->pp * l->tp * l->ep <= job->gpu.host ? job->gpu.near : job->gpu.far) * 1e6 * job->gpu.links;
    const dp_lower_options_t options = {
        .struct_size = sizeof(options), .transport = DP_TRANSPORT_CREDITS, .slots = slots};
    dp_costs_t costs = {.struct_size = sizeof(costs),
                        .f = 1,
                        .i = 1,
                        .w = 1,
                        .hop = job->hop > 0 ? job->hop : job->gpu.latency / 1e3,
                        .barrier = 1,
                        .bytes = boundary,
                        .bandwidth = job->bandwidth > 0 ? job->bandwidth
                                     : job->hop > 0     ? 0
                                                        : linked};
    parts_t parts = {0};
    segments_t s = {0};
    dp_status_t status = cut_parts(job, l, dp_schedule_stages(schedule), &parts);

    if (status >= 0)
        status = make_segments(job, l, &parts, &s);
    if (status >= 0) {
        const dp_segment_costs_t segments = {.struct_size = sizeof(segments),
                                             .layers = 1,
                                             .stages = parts.stages,
                                             .first = s.first,
                                             .list = s.list,
                                             .list_r = s.r,
                                             .backward_buffer = l->recompute >= DP_RECOMPUTE_CHEAP};

        costs.segments = &segments;
        status = dp_evaluate(schedule, &options, &costs, with_timeline, result);
    }
    clear_segments(&s);
    clear_parts(&parts);
    return status;
}

static dp_status_t time_step(const dp__job_t *job, const dp_layout_t *l, int32_t microbatches, int32_t slots,
                             double *ms_out)
{
    dp_simulation_t result = {.struct_size = sizeof(result)};
    dp_schedule_t *schedule = NULL;
    dp_status_t status = make_schedule(l, microbatches, &schedule);

    if (status >= 0)
        status = simulate(job, l, schedule, slots, 0, &result);
    *ms_out = result.step_time;
    dp_simulation_clear(&result);
    dp_schedule_free(schedule);
    return status;
}

dp_status_t dp__estimate_timeline(const dp__job_t *job, const dp_layout_t *layout, int32_t microbatches,
                                  dp_schedule_t **schedule_out, dp_simulation_t *simulation_out)
{
    dp_status_t status = make_schedule(layout, microbatches, schedule_out);

    return status >= 0 ? simulate(job, layout, *schedule_out, DP_SLOTS_NEEDED, 1, simulation_out) : status;
}

/* Seconds of the sums of gradients over all ranks with the same parameters, and of the parameters
 * back: with the state of the optimizer spread, gradients go out in fp32 and weights come in bf16.
 * Nothing hides them. */
static double sums_of(const dp__job_t *job, const dp_layout_t *l)
{
    const double ranks = (double)l->dp * l->copies, of_experts = ranks / l->ep;
    const double dense = (l->weights - l->expert_weights) / BF16, experts = l->expert_weights / BF16;
    const double bytes = 6 * (dense * (ranks - 1) / ranks + experts * (of_experts - 1) / of_experts);

    return link_ms(job, bytes, job->gpus > job->gpu.host ? job->gpu.far : job->gpu.near) / 1e3;
}

/* Messages that a channel has to hold. DP_ERR_REJECTED: no number is enough. */
static dp_status_t count_messages(const dp_layout_t *l, int32_t microbatches, double *slots_out)
{
    dp_verify_report_t report = {.struct_size = sizeof(report)};
    dp_schedule_t *schedule = NULL;
    dp_program_t *program = NULL;
    dp_status_t status = make_schedule(l, microbatches, &schedule);

    if (status >= 0)
        status = dp_program_lower(schedule, NULL, &program);
    if (status >= 0)
        status = dp_program_verify(program, &report);
    *slots_out = report.safe_slots;
    dp_program_free(program);
    dp_schedule_free(schedule);
    return status == DP_ERR_REJECTED && report.safe_slots > 0 ? DP_OK : status;
}

/* Of a schedule for which two slots a channel are too few: how many it takes, and their bytes. */
static dp_status_t add_slots(const dp__job_t *job, dp_layout_t *l, int32_t *slots_out)
{
    const int32_t some = enough(l, 4), more = enough(l, 6);
    const double row = microbatch_tokens(job) / l->tp * (double)job->model.hidden * BF16;
    const int32_t chunks = l->chunks > 0 ? l->chunks : 1;
    double slots = 0, fewer = 0;
    dp_status_t status = count_messages(l, more, &slots);

    if (status >= 0 && more < l->microbatches) {
        status = count_messages(l, some, &fewer);
        slots += (slots - fewer) / (more - some) * (l->microbatches - more);
    }
    if (status < 0)
        return status;
    *slots_out = (int32_t)ceil(slots);
    l->transfers += 2 * (*slots_out - 2) * chunks * row;
    l->total += 2 * (*slots_out - 2) * chunks * row;
    l->fits = l->total <= job->gpu.memory;
    return DP_OK;
}

dp_status_t dp__estimate_time(const dp__job_t *job, dp_layout_t *l)
{
    const int32_t some = enough(l, 4), more = enough(l, 6);
    const double tokens = (double)job->batch * (double)job->sequence;
    double ms = 0, fewer = 0;
    int32_t slots = 2;
    dp_status_t status = time_step(job, l, more, slots, &ms);

    if (status == DP_ERR_REJECTED) {
        status = add_slots(job, l, &slots);
        if (status < 0 || !l->fits)
            return status;
        status = time_step(job, l, more, slots, &ms);
    }
    if (status >= 0 && more < l->microbatches) {
        status = time_step(job, l, some, slots, &fewer);
        ms += (ms - fewer) / (more - some) * (l->microbatches - more);
    }
    if (status < 0)
        return status;
    l->reduce_time = sums_of(job, l);
    l->step_time = ms / 1e3 + l->reduce_time;
    l->useful = dp__estimate_bound(job, l) / l->step_time;
    l->tokens_per_second = tokens / l->step_time;
    l->mfu = 6 * dp__model_sum(&job->model, true) * l->tokens_per_second / (job->gpus * job->gpu.tflops * 1e12);
    l->timed = 1;
    return DP_OK;
}
