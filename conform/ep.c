/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ep.c: the contract of dp.ep.draft/1. What a token chose and every byte of a row, a weight or a
 * gradient follow from a seed and from whose they are, so every rank knows what has to come from
 * all others. Memory is kernel.h's: between guards, NaN before a call. */
#include "kernel.h"

#include "device_work.h"

#include <dualpipe/draft/ep.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXPERTS_MOST = 64, WORLD = CONFORM_RANKS_MAX };
enum { DISPATCH, COMBINE, COMBINE_B, DISPATCH_B, CALLS };

static const char *const call_names[CALLS] = {"dispatch", "combine", "combine_backward", "dispatch_backward"};

/* What tokens choose: any; the last experts; none with an odd number. */
typedef enum choice { ANY, LAST, EVEN } choice_t;

typedef struct setup {
    uint32_t tokens, hidden, experts, top_k;
    choice_t choice;
    float capacity;
    uint32_t of[WORLD]; /* tokens of each rank; 0: all */
    dp_dtype_t dtype;
} setup_t;

/* A device, and a comm of all ranks or of this one. */
typedef struct bench {
    lab_t lab;
    dp_comm_t *comm;
    int32_t rank, ranks;
    uint32_t id; /* the next instance's first exchange */
} bench_t;

typedef struct instance {
    bench_t *bench;
    const dp_ep_vt_t *vt;
    dp_ep_t *ep;
    dp_ep_sizes_t sizes;
    setup_t s;
    area_t scratch;
} instance_t;

typedef struct batch {
    instance_t *in;
    uint64_t seed;
    uint32_t tokens;
    bool weighted; /* weights and their gradients are sent */
    area_t saved, experts, counts;
    area_t own, own_weights;           /* of our tokens: dispatched */
    area_t received, received_weights; /* of our experts: as they came */
    area_t made, made_weights;         /* of our experts: combined */
    area_t back, back_weights;         /* of our tokens: as they came back */
} batch_t;

/* ---- what has to be where ---- */

static uint32_t tokens_of(const setup_t *s, int32_t rank)
{
    return s->of[rank] > 0 ? s->of[rank] : s->tokens;
}

static void choose_experts(const batch_t *b, int32_t rank, uint32_t token, int32_t *chosen)
{
    const setup_t *s = &b->in->s;
    uint64_t state = b->seed * 1000003 + (uint64_t)rank * 5003 + token;
    const uint32_t step = s->choice == EVEN ? 2 : 1;
    int32_t all[EXPERTS_MOST], n = 0;

    for (uint32_t e = 0; e < s->experts; e += step)
        all[n++] = (int32_t)e;
    for (uint32_t j = 0; j < s->top_k; j++) {
        const uint32_t left = (uint32_t)n - j,
                       at = s->choice == LAST ? left - 1 : (uint32_t)(conform_random(&state) % left);

        chosen[j] = all[at];
        all[at] = all[left - 1];
    }
}

/* Any bits, those of NaN among them. */
static void fill_row(const batch_t *b, int call, int32_t rank, uint32_t number, unsigned char *row, size_t bytes)
{
    uint64_t state = (b->seed * 16 + (uint64_t)call) * 1000003 + (uint64_t)rank * 50021 + number;

    for (size_t i = 0; i < bytes; i++)
        row[i] = (unsigned char)(conform_random(&state) >> 24);
}

/* Of a weight as well; each fifth is a NaN that arithmetic would change. */
static void fill_weight(const batch_t *b, int call, int32_t rank, uint32_t number, unsigned char *out, size_t bytes)
{
    fill_row(b, call + 8, rank, number, out, bytes);
    if (number % 5 == 0) {
        out[bytes - 1] = 0x7f;
        out[bytes - 2] = bytes == sizeof(float) ? 0xa0 : 0xf4;
    }
}

/* A walk over the rows of rank `at`, in the order of the header. */
typedef struct walk {
    const batch_t *b;
    int32_t at, expert, rank; /* expert: of rank `at`'s */
    uint32_t token, choice;   /* of `rank` */
    uint32_t number;          /* of the row */
} walk_t;

static bool walk_next(walk_t *w)
{
    const instance_t *in = w->b->in;
    const int32_t local = (int32_t)in->s.experts / in->bench->ranks;

    for (; w->expert < local; w->expert++, w->rank = 0)
        for (; w->rank < in->bench->ranks; w->rank++, w->token = 0)
            while (w->token < tokens_of(&in->s, w->rank)) {
                int32_t chosen[EXPERTS_MOST];

                choose_experts(w->b, w->rank, w->token++, chosen);
                for (w->choice = 0; w->choice < in->s.top_k; w->choice++)
                    if (chosen[w->choice] == w->at * local + w->expert) {
                        w->number++;
                        return true;
                    }
            }
    return false;
}

static walk_t walk_begin(const batch_t *b, int32_t at)
{
    return (walk_t){.b = b, .at = at, .number = UINT32_MAX};
}

/* ---- opening ---- */

static bool bench_open(bench_t *bench, conform_t *t, int32_t ranks)
{
    static const int32_t world[WORLD] = {0, 1, 2, 3, 4, 5, 6, 7};
    dp_comm_config_t config = {.struct_size = sizeof(config), .nranks = ranks, .world_ranks = world};
    char name[32];

    memset(bench, 0, sizeof(*bench));
    snprintf(name, sizeof(name), "ep.%d", t->variety++); /* of no other one in the life of the
                                                            job */
    config.name = name;
    bench->ranks = ranks;
    bench->rank = config.rank = ranks > 1 ? t->rank : 0;
    if (!conform_lab_open(&bench->lab, t))
        return false;
    config.vt = t->comm;
    config.device_vt = bench->lab.vt;
    config.device = bench->lab.device;
    CHECK_OK(t, t->comm->open(t->host, &config, &bench->comm), "opening the transport");
    return true;
}

static void bench_close(bench_t *bench)
{
    bench->lab.t->comm->close(bench->comm);
    conform_lab_close(&bench->lab);
}

static dp_ep_config_t config_of(bench_t *bench, const setup_t *s)
{
    const dp_ep_config_t config = {.struct_size = sizeof(config),
                                   .dtype = s->dtype,
                                   .tokens = s->tokens,
                                   .hidden = s->hidden,
                                   .experts = s->experts,
                                   .top_k = s->top_k,
                                   .capacity = s->capacity,
                                   .device_vt = bench->lab.vt,
                                   .device = bench->lab.device,
                                   .comm_vt = bench->lab.t->comm,
                                   .comm = bench->comm,
                                   .comm_rank = bench->rank,
                                   .comm_size = bench->ranks,
                                   .exchange_id = bench->id};

    bench->id += 4;
    return config;
}

/* DP_ERR_UNSUPPORTED: not this type. */
static dp_status_t open_instance(instance_t *in, bench_t *bench, const setup_t *s)
{
    dp_ep_config_t config = config_of(bench, s);
    dp_status_t status;

    in->bench = bench;
    in->vt = bench->lab.t->table;
    in->s = *s;
    conform_forget_error();
    status = in->vt->open(bench->lab.host, &config, &in->ep);
    memset(&config, 0xff, sizeof(config)); /* borrowed during open */
    return status;
}

static bool finish_opening(instance_t *in)
{
    lab_t *lab = &in->bench->lab;
    const setup_t *s = &in->s;
    const uint32_t local = s->experts / (uint32_t)in->bench->ranks;
    const uint64_t most = (uint64_t)in->bench->ranks * s->tokens * (local < s->top_k ? local : s->top_k);

    CHECK_OK(lab->t, lab->t->comm->start(in->bench->comm), "starting the transport");
    in->sizes.struct_size = sizeof(in->sizes);
    CHECK_OK(lab->t, in->vt->sizes(in->ep, &in->sizes), "sizes");
    CHECK(lab->t, in->sizes.rows >= 1 && in->sizes.rows <= most,
          "sizes speaks of up to %u received rows: at least one, and no more than %llu can come", in->sizes.rows,
          (unsigned long long)most);
    return conform_area_open(lab, &in->scratch, "scratch", DP_U8, in->sizes.scratch_bytes, 0);
}

/* With this type, or the first that the plugin takes when it is `any`; false without a failure: not
 * this one. */
static bool instance_open(instance_t *in, bench_t *bench, const setup_t *setup, bool any)
{
    static const dp_dtype_t types[] = {DP_F32, DP_BF16, DP_F64};
    conform_t *t = bench->lab.t;
    setup_t s = *setup;
    dp_status_t status = DP_ERR_UNSUPPORTED;

    for (int i = 0; i < 3 && status == DP_ERR_UNSUPPORTED; i++) {
        s.dtype = any ? types[i] : setup->dtype;
        status = open_instance(in, bench, &s);
        CHECK(t, status == DP_OK || (status == DP_ERR_UNSUPPORTED && conform_last_error()[0] != '\0'),
              "open for %u tokens of %u elements, %u experts, top_k %u, dtype %d, %d ranks returned %s: %s", s.tokens,
              s.hidden, s.experts, s.top_k, (int)s.dtype, bench->ranks, dp_status_name(status), conform_last_error());
    }
    if (status == DP_OK)
        return finish_opening(in);
    CHECK(t, !any, "open takes rows of no type: %s", conform_last_error());
    return false;
}

static void instance_close(instance_t *in)
{
    in->vt->close(in->ep);
    conform_area_close(&in->bench->lab, &in->scratch);
}

static dp_dtype_t weight_type(const instance_t *in)
{
    return dp_dtype_accumulator(in->s.dtype);
}

static size_t row_bytes(const instance_t *in)
{
    return in->s.hidden * dp_dtype_bytes(in->s.dtype);
}

static bool batch_open(batch_t *b, instance_t *in, uint64_t seed)
{
    lab_t *lab = &in->bench->lab;
    const uint32_t t = tokens_of(&in->s, in->bench->rank);
    const size_t choices = (size_t)t * in->s.top_k, rows = in->sizes.rows, row = row_bytes(in);
    const dp_dtype_t type = in->s.dtype, w = weight_type(in);
    int32_t *chosen = calloc(choices, sizeof(*chosen));
    bool fine;

    *b = (batch_t){.in = in, .seed = seed, .tokens = t, .weighted = true};
    for (uint32_t i = 0; i < t; i++)
        choose_experts(b, in->bench->rank, i, chosen + (size_t)i * in->s.top_k);
    fine = conform_area_open(lab, &b->saved, "saved", DP_U8, in->sizes.saved_bytes, 0) &&
           conform_area_open(lab, &b->experts, "experts", DP_U8, choices * sizeof(int32_t), 0) &&
           conform_area_open(lab, &b->counts, "counts_out", DP_U8, in->s.experts * sizeof(int32_t), 0) &&
           conform_area_open(lab, &b->own, "rows of tokens", type, t * row, 0) &&
           conform_area_open(lab, &b->own_weights, "weights", w, choices * dp_dtype_bytes(w), 0) &&
           conform_area_open(lab, &b->received, "rows_out at the experts", type, rows * row, 0) &&
           conform_area_open(lab, &b->received_weights, "weights_out", w, rows * dp_dtype_bytes(w), 0) &&
           conform_area_open(lab, &b->made, "rows of experts", type, rows * row, 0) &&
           conform_area_open(lab, &b->made_weights, "dweights", DP_F64, rows * sizeof(double), 0) &&
           conform_area_open(lab, &b->back, "rows_out at the tokens", type, choices * row, 0) &&
           conform_area_open(lab, &b->back_weights, "dweights_out", DP_F64, choices * sizeof(double), 0) &&
           conform_area_put(lab, &b->experts, chosen);
    free(chosen);
    return fine;
}

static void areas_of(batch_t *b, area_t *all[11])
{
    area_t *const list[] = {&b->saved,        &b->experts,  &b->counts,           &b->own,
                            &b->own_weights,  &b->received, &b->received_weights, &b->made,
                            &b->made_weights, &b->back,     &b->back_weights};

    memcpy(all, list, sizeof(list));
}

static void batch_close(batch_t *b)
{
    area_t *all[11];

    areas_of(b, all);
    for (int i = 0; i < 11; i++)
        conform_area_close(&b->in->bench->lab, all[i]);
}

static void close_all(batch_t *b)
{
    instance_t *in = b->in;

    batch_close(b);
    instance_close(in);
    bench_close(in->bench);
}

/* ---- calls ---- */

static dp_ep_io_t io_of(const batch_t *b, int call)
{
    const bool out = call == DISPATCH || call == COMBINE_B;
    dp_ep_io_t io = {.struct_size = sizeof(io),
                     .tokens = b->tokens,
                     .saved = conform_area_memory(&b->saved),
                     .scratch = conform_area_memory(&b->in->scratch),
                     .experts = conform_area_memory(&b->experts),
                     .rows = conform_area_memory(out ? &b->own : &b->made),
                     .rows_out = conform_area_memory(out ? &b->received : &b->back)};

    if (call == DISPATCH)
        io.counts_out = conform_area_memory(&b->counts);
    if (b->weighted && out) {
        io.weights = conform_area_memory(&b->own_weights);
        io.weights_out = conform_area_memory(&b->received_weights);
    } else if (b->weighted && call == DISPATCH_B) {
        io.dweights = conform_area_memory(&b->made_weights);
        io.dweights_out = conform_area_memory(&b->back_weights);
    }
    return io;
}

/* The call itself, whatever it returns. */
static dp_status_t call_with(const batch_t *b, int call, const dp_ep_io_t *given)
{
    const dp_ep_vt_t *vt = b->in->vt;
    dp_status_t (*const calls[CALLS])(dp_ep_t *, const dp_ep_io_t *, dp_stream_t *) = {
        vt->dispatch, vt->combine, vt->combine_backward, vt->dispatch_backward};
    struct {
        dp_ep_io_t io;
        unsigned char longer[KERNEL_TAIL];
    } room;
    dp_status_t status;

    memcpy(&room, given, given->struct_size);
    conform_forget_error();
    status = calls[call](b->in->ep, &room.io, b->in->bench->lab.lanes[1]);
    memset(&room, 0xff, sizeof(room)); /* work on the stream may not read it */
    return status;
}

/* What this rank gives the call: of its tokens, or of the rows that its experts have. */
static bool bring(batch_t *b, int call)
{
    const instance_t *in = b->in;
    lab_t *lab = &in->bench->lab;
    const bool out = call == DISPATCH || call == COMBINE_B;
    const area_t *rows = out ? &b->own : &b->made, *weights = out ? &b->own_weights : &b->made_weights;
    const size_t row = row_bytes(in), each = dp_dtype_bytes(weights->dtype);
    unsigned char *bytes = malloc((rows->bytes > weights->bytes ? rows->bytes : weights->bytes) + 1);
    bool fine;

    for (size_t i = 0; (i + 1) * row <= rows->bytes; i++)
        fill_row(b, call, in->bench->rank, (uint32_t)i, bytes + i * row, row);
    fine = conform_area_put(lab, rows, bytes);
    for (size_t i = 0; (i + 1) * each <= weights->bytes; i++)
        fill_weight(b, call, in->bench->rank, (uint32_t)i, bytes + i * each, each);
    fine = fine && conform_area_put(lab, weights, bytes);
    free(bytes);
    return fine;
}

static bool came_out(const batch_t *b, int call)
{
    const instance_t *in = b->in;
    lab_t *lab = &in->bench->lab;
    conform_t *t = lab->t;
    const int32_t ranks = in->bench->ranks;
    const size_t row = row_bytes(in), cells = b->counts.bytes / sizeof(int32_t), each = dp_dtype_bytes(weight_type(in));
    unsigned char *rows = conform_area_bytes(lab, &b->received), *due = malloc(row), due_weight[8],
                  *weights = conform_area_bytes(lab, &b->received_weights), *seen = conform_area_bytes(lab, &b->counts);
    int32_t *counts = calloc(cells, sizeof(*counts));
    walk_t w = walk_begin(b, in->bench->rank);

    if (rows == NULL || weights == NULL || seen == NULL)
        return false;
    while (walk_next(&w)) {
        const uint32_t choice = (w.token - 1) * in->s.top_k + w.choice;

        fill_row(b, call, w.rank, w.token - 1, due, row);
        CHECK(t, memcmp(rows + w.number * row, due, row) == 0,
              "%s: received row %u is not that of token %u of rank %d for expert %d of ours: rows are sorted by "
              "(expert, source rank, token) and are the tokens' bit by bit",
              call_names[call], w.number, w.token - 1, w.rank, w.expert);
        fill_weight(b, call, w.rank, choice, due_weight, each);
        CHECK(t, !b->weighted || memcmp(weights + w.number * each, due_weight, each) == 0,
              "%s: weight %u is not that of token %u, choice %u, of rank %d, bit by bit", call_names[call], w.number,
              w.token - 1, w.choice, w.rank);
        counts[w.expert * ranks + w.rank]++;
    }
    for (size_t i = 0; i < cells && call == DISPATCH; i++) {
        int32_t count;

        memcpy(&count, seen + i * sizeof(count), sizeof(count));
        CHECK(t, count == counts[i],
              "dispatch: counts_out says that expert %zu of ours has %d rows of rank %zu, not %d", i / (size_t)ranks,
              count, i % (size_t)ranks, counts[i]);
    }
    free(rows);
    free(due);
    free(seen);
    free(weights);
    free(counts);
    return true;
}

static bool came_back(const batch_t *b, int call)
{
    const instance_t *in = b->in;
    lab_t *lab = &in->bench->lab;
    conform_t *t = lab->t;
    const size_t row = row_bytes(in);
    unsigned char *rows = conform_area_bytes(lab, &b->back), *due = malloc(row), due_weight[sizeof(double)],
                  *weights = conform_area_bytes(lab, &b->back_weights);

    if (rows == NULL || weights == NULL)
        return false;
    for (int32_t at = 0; at < in->bench->ranks; at++) {
        walk_t w = walk_begin(b, at);

        while (walk_next(&w)) {
            const size_t choice = (size_t)(w.token - 1) * in->s.top_k + w.choice;

            if (w.rank != in->bench->rank)
                continue;
            fill_row(b, call, at, w.number, due, row);
            CHECK(t, memcmp(rows + choice * row, due, row) == 0,
                  "%s: what came back for token %u, choice %u, is not row %u of rank %d, bit by bit", call_names[call],
                  w.token - 1, w.choice, w.number, at);
            fill_weight(b, call, at, w.number, due_weight, sizeof(double));
            CHECK(t,
                  call != DISPATCH_B || !b->weighted ||
                      memcmp(weights + choice * sizeof(double), due_weight, sizeof(double)) == 0,
                  "%s: the gradient of the weight of token %u, choice %u, is not that of row %u of rank %d, bit by bit",
                  call_names[call], w.token - 1, w.choice, w.number, at);
        }
    }
    free(rows);
    free(due);
    free(weights);
    return true;
}

static bool is_right(batch_t *b, int call)
{
    lab_t *lab = &b->in->bench->lab;
    area_t *all[11];

    areas_of(b, all);
    for (int i = 0; i < 11; i++)
        if (!conform_area_whole(lab, all[i], call_names[call]))
            return false;
    return conform_area_whole(lab, &b->in->scratch, call_names[call]) &&
           (call == DISPATCH || call == COMBINE_B ? came_out(b, call) : came_back(b, call));
}

/* Outputs and scratch hold NaN; inputs are there. */
static bool prepare_bench(batch_t *b, int call)
{
    lab_t *lab = &b->in->bench->lab;

    return bring(b, call) && conform_area_poison(lab, &b->in->scratch) &&
           (call == DISPATCH || call == COMBINE_B
                ? conform_area_poison(lab, &b->received) && conform_area_poison(lab, &b->received_weights)
                : conform_area_poison(lab, &b->back) && conform_area_poison(lab, &b->back_weights));
}

static bool run_pass(batch_t *b, int call)
{
    lab_t *lab = &b->in->bench->lab;
    const dp_ep_io_t io = io_of(b, call);

    if (!prepare_bench(b, call))
        return false;
    conform_lab_refuse(lab, 1);
    CHECK_OK(lab->t, call_with(b, call, &io), "%s", call_names[call]);
    if (!conform_lab_wait(lab, 1, call_names[call]))
        return false;
    CHECK(lab->t, !conform_lab_refused(lab), "%s allocated memory: nothing is allocated in a step", call_names[call]);
    return is_right(b, call);
}

/* All four calls of a micro-batch. */
static bool run_all(instance_t *in, uint64_t seed)
{
    batch_t b;
    bool fine = batch_open(&b, in, seed);

    for (int call = 0; call < CALLS && fine; call++)
        fine = run_pass(&b, call);
    if (fine)
        batch_close(&b);
    return fine;
}

/* ---- rows ---- */

static const setup_t small = {.tokens = 7, .hidden = 5, .experts = 12, .top_k = 3};

/* In every type that the plugin takes, one at least. */
static void try_setups(conform_t *t, const setup_t *setups)
{
    static const dp_dtype_t types[] = {DP_F32, DP_F64, DP_BF16};
    bench_t bench;

    if (!bench_open(&bench, t, t->size))
        return;
    for (const setup_t *s = setups; s->tokens > 0; s++) {
        int taken = 0;

        for (int i = 0; i < 3; i++) {
            instance_t in = {0};
            setup_t one = *s;

            one.dtype = types[i];
            if (!instance_open(&in, &bench, &one, false)) {
                if (conform_failed(t))
                    return;
                continue;
            }
            if (!run_all(&in, 11 + (uint64_t)i))
                return;
            instance_close(&in);
            taken++;
        }
        EXPECT(t, taken > 0, "open takes rows of no type: %s", conform_last_error());
    }
    bench_close(&bench);
}

static void rows_go_where_they_belong(conform_t *t)
{
    static const setup_t setups[] = {
        {.tokens = 7, .hidden = 5, .experts = 12, .top_k = 3},
        {.tokens = 1, .hidden = 1, .experts = 12, .top_k = 1},
        {.tokens = 33, .hidden = 67, .experts = 24, .top_k = 8},
        {.tokens = 5, .hidden = 128, .experts = 12, .top_k = 12},
        /* most experts get nothing */
        {.tokens = 1, .hidden = 3, .experts = 24, .top_k = 1, .choice = EVEN},
        /* one gets everything */
        {.tokens = 13, .hidden = 4, .experts = 12, .top_k = 1, .choice = LAST},
        /* several of one rank */
        {.tokens = 11, .hidden = 9, .experts = 12, .top_k = 3, .choice = LAST},
        {.tokens = 9, .hidden = 6, .experts = 12, .top_k = 3, .of = {1, 9, 4, 2}},
        {.tokens = 0},
    };

    try_setups(t, setups);
}

/* ---- micro-batches ---- */

static void microbatches_interleave(conform_t *t)
{
    static const struct {
        int batch, call;
    } order[] = {{0, DISPATCH},   {1, DISPATCH},  {0, COMBINE},    {2, DISPATCH},   {1, COMBINE},
                 {1, COMBINE_B},  {0, COMBINE_B}, {2, COMBINE},    {1, DISPATCH_B}, {2, COMBINE_B},
                 {0, DISPATCH_B}, {0, DISPATCH},  {2, DISPATCH_B}, {0, COMBINE}};
    instance_t in = {0};
    batch_t b[3];
    bench_t bench;

    if (!bench_open(&bench, t, t->size) || !instance_open(&in, &bench, &small, true))
        return;
    for (uint64_t i = 0; i < 3; i++)
        if (!batch_open(&b[i], &in, 21 + i))
            return;
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
        if (!run_pass(&b[order[i].batch], order[i].call))
            return;
    for (int i = 0; i < 3; i++)
        batch_close(&b[i]);
    instance_close(&in);
    bench_close(&bench);
}

static void calls_and_weights_may_be_left_out(conform_t *t)
{
    static const int orders[][CALLS + 1] = {
        {DISPATCH, CALLS}, {DISPATCH, COMBINE, CALLS}, {DISPATCH, DISPATCH_B, CALLS}, {DISPATCH, COMBINE_B, CALLS}};
    instance_t in = {0};
    bench_t bench;

    if (!bench_open(&bench, t, t->size) || !instance_open(&in, &bench, &small, true))
        return;
    for (int i = 0; i < 8; i++) {
        batch_t b;

        if (!batch_open(&b, &in, 31 + (uint64_t)i))
            return;
        b.weighted = i < 4;
        for (const int *call = orders[i % 4]; *call != CALLS; call++)
            if (!run_pass(&b, *call))
                return;
        batch_close(&b);
    }
    instance_close(&in);
    bench_close(&bench);
}

static void instances_do_not_meet(conform_t *t)
{
    instance_t in[2] = {{0}, {0}};
    setup_t other = small;
    batch_t b[2];
    bench_t bench;

    other.hidden = 3;
    other.top_k = 2;
    if (!bench_open(&bench, t, t->size) || !instance_open(&in[0], &bench, &small, true) ||
        !instance_open(&in[1], &bench, &other, true) || !batch_open(&b[0], &in[0], 41) ||
        !batch_open(&b[1], &in[1], 42))
        return;
    for (int call = 0; call < CALLS; call++)
        for (int i = 0; i < 2; i++)
            if (!run_pass(&b[i], call))
                return;
    for (int i = 0; i < 2; i++) {
        batch_close(&b[i]);
        instance_close(&in[i]);
    }
    bench_close(&bench);
}

/* A call is made while its stream is held, and returns; rows come into being on the stream only
 * then. */
static void calls_are_enqueued(conform_t *t)
{
    instance_t in = {0};
    area_t later;
    batch_t b;
    bench_t bench;

    if (!bench_open(&bench, t, 1) || !instance_open(&in, &bench, &small, true) || !batch_open(&b, &in, 51))
        return;
    if (!run_pass(&b, DISPATCH)) /* which may wait for counts */
        return;
    for (int call = COMBINE; call < CALLS; call++) {
        const area_t *rows = call == COMBINE_B ? &b.own : &b.made;
        const dp_ep_io_t io = io_of(&b, call);
        dp_stream_t *s = bench.lab.lanes[1];
        unsigned char *bytes;
        dp_status_t status;
        gate_t gate;

        if (!prepare_bench(&b, call) || (bytes = conform_area_bytes(&bench.lab, rows)) == NULL ||
            !conform_area_open(&bench.lab, &later, "a copy of rows", DP_U8, rows->bytes, 0) ||
            !conform_area_put(&bench.lab, &later, bytes) || !conform_area_poison(&bench.lab, rows))
            return;
        free(bytes);
        status = conform_gate_make(&gate, bench.lab.vt, bench.lab.device, t->host);
        if (status == DP_ERR_UNSUPPORTED) {
            conform_skip(t, "nothing holds a stream of this device");
            conform_area_close(&bench.lab, &later);
            close_all(&b);
            return;
        }
        EXPECT_OK(t, status);
        EXPECT_OK(t, conform_gate_hold(&gate, s));
        EXPECT_OK(t, bench.lab.vt->copy(s, conform_area_memory(rows), conform_area_memory(&later), rows->bytes));
        EXPECT_STATUS(t, call_with(&b, call, &io), DP_OK, "%s", call_names[call]);
        conform_gate_open(&gate);
        if (!conform_lab_wait(&bench.lab, 1, call_names[call]) || !is_right(&b, call))
            return;
        conform_gate_free(&gate);
        conform_area_close(&bench.lab, &later);
    }
    close_all(&b);
}

/* ---- what is refused ---- */

/* A call that is refused at once, or on the stream. */
static dp_status_t outcome(batch_t *b, int call)
{
    const dp_ep_io_t io = io_of(b, call);
    dp_status_t status = call_with(b, call, &io);

    return status < 0 ? status : b->in->bench->lab.vt->synchronize(b->in->bench->lab.lanes[1], -1);
}

/* A call without a dispatch before it, or behind all calls of the micro-batch. */
static void calls_come_in_their_order(conform_t *t)
{
    for (int i = 0; i < 2 * (CALLS - COMBINE); i++) {
        const int call = COMBINE + i / 2, calls = i % 2 == 0 ? 0 : CALLS;
        instance_t in = {0};
        batch_t b;
        bench_t bench;

        if (!bench_open(&bench, t, 1) || !instance_open(&in, &bench, &small, true) || !batch_open(&b, &in, 61))
            return;
        for (int before = 0; before < calls; before++)
            if (!run_pass(&b, before))
                return;
        if (!prepare_bench(&b, call))
            return;
        EXPECT_STATUS(t, outcome(&b, call), DP_ERR_PROTOCOL, "%s behind %d calls of a micro-batch", call_names[call],
                      calls);
        close_all(&b);
    }
}

static void experts_that_are_not_there_are_refused(conform_t *t)
{
    instance_t in = {0};
    int32_t chosen = 12;
    batch_t b;
    bench_t bench;

    if (!bench_open(&bench, t, 1) || !instance_open(&in, &bench, &small, true) || !batch_open(&b, &in, 63) ||
        !prepare_bench(&b, DISPATCH))
        return;
    EXPECT_OK(t, conform_work_write(bench.lab.vt, bench.lab.lanes[0], conform_area_memory(&b.experts), &chosen,
                                    sizeof(chosen)));
    EXPECT_STATUS(t, outcome(&b, DISPATCH), DP_ERR_INVALID, "dispatch of a token that chose expert 12 of 12");
    close_all(&b);
}

/* Every row of a rank for the last one, where there is room for an even share. */
static void more_rows_than_the_capacity_are_an_overflow(conform_t *t)
{
    const setup_t full = {.tokens = 8, .hidden = 4, .experts = 12, .top_k = 1, .choice = LAST, .capacity = 1};
    instance_t in = {0};
    dp_status_t status;
    batch_t b;
    bench_t bench;

    if (!bench_open(&bench, t, t->size) || !instance_open(&in, &bench, &full, true) || !batch_open(&b, &in, 65) ||
        !prepare_bench(&b, DISPATCH))
        return;
    status = outcome(&b, DISPATCH);
    EXPECT(t, status == DP_OK || status == DP_ERR_OVERFLOW,
           "more rows than config.capacity has room for returned %s: all of them arrive, or it is DP_ERR_OVERFLOW",
           dp_status_name(status));
    if (status == DP_OK && !is_right(&b, DISPATCH))
        return;
    if (status < 0) {
        EXPECT(t, conform_last_error()[0] != '\0', "DP_ERR_OVERFLOW without a message");
        conform_abort(t, DP_ERR_OVERFLOW, "too many rows"); /* as the engine does */
    }
    close_all(&b);
}

/* As much as there is room for. */
static void the_capacity_can_be_used(conform_t *t)
{
    static const setup_t setups[] = {
        {.tokens = 8, .hidden = 4, .experts = 12, .top_k = 1, .choice = LAST, .capacity = 2}, {.tokens = 0}};

    try_setups(t, setups);
}

static void pointers_that_are_missing_are_named(conform_t *t)
{
    static const struct {
        const char *name;
        size_t offset;
    } pointers[] = {{"saved", offsetof(dp_ep_io_t, saved)},
                    {"experts", offsetof(dp_ep_io_t, experts)},
                    {"rows", offsetof(dp_ep_io_t, rows)},
                    {"rows_out", offsetof(dp_ep_io_t, rows_out)},
                    {"weights", offsetof(dp_ep_io_t, weights)},
                    {"dweights", offsetof(dp_ep_io_t, dweights)},
                    {"counts_out", offsetof(dp_ep_io_t, counts_out)}};
    instance_t in = {0};
    batch_t b;
    bench_t bench;

    if (!bench_open(&bench, t, 1) || !instance_open(&in, &bench, &small, true) || !batch_open(&b, &in, 71))
        return;
    for (int call = 0; call < CALLS; call++)
        for (size_t k = 0; k < sizeof(pointers) / sizeof(pointers[0]); k++) {
            dp_ep_io_t io = io_of(&b, call);
            void **pointer = (void **)(void *)((char *)&io + pointers[k].offset);

            if (*pointer == NULL)
                continue;
            *pointer = NULL;
            EXPECT_STATUS(t, call_with(&b, call, &io), DP_ERR_INVALID, "%s without %s", call_names[call],
                          pointers[k].name);
            EXPECT(t, strstr(conform_last_error(), pointers[k].name) != NULL, "%s without %s does not name it: \"%s\"",
                   call_names[call], pointers[k].name, conform_last_error());
        }
    for (int call = 0; call < CALLS; call++) { /* nothing was enqueued */
        dp_ep_io_t io = io_of(&b, call);

        io.tokens = in.s.tokens + 1;
        EXPECT_STATUS(t, call_with(&b, call, &io), DP_ERR_INVALID, "%s of more tokens than config.tokens",
                      call_names[call]);
        if (!run_pass(&b, call))
            return;
    }
    close_all(&b);
}

static void wrong_settings_are_refused(conform_t *t)
{
    static const struct {
        const char *what;
        size_t offset;
        uint32_t bits;
    } wrongs[] = {{"tokens 0", offsetof(dp_ep_config_t, tokens), 0},
                  {"hidden 0", offsetof(dp_ep_config_t, hidden), 0},
                  {"experts 0", offsetof(dp_ep_config_t, experts), 0},
                  {"top_k 0", offsetof(dp_ep_config_t, top_k), 0},
                  {"top_k above experts", offsetof(dp_ep_config_t, top_k), 13},
                  {"capacity -1", offsetof(dp_ep_config_t, capacity), 0xbf800000},
                  {"capacity NaN", offsetof(dp_ep_config_t, capacity), 0x7fc00000},
                  {"comm_size 0", offsetof(dp_ep_config_t, comm_size), 0},
                  {"a group that does not divide the experts", offsetof(dp_ep_config_t, comm_size), 5},
                  {"comm_rank above comm_size", offsetof(dp_ep_config_t, comm_rank), 3},
                  {"comm_rank -1", offsetof(dp_ep_config_t, comm_rank), 0xffffffff}};
    instance_t in = {0};
    dp_ep_t *ep = NULL;
    bench_t bench;

    if (!bench_open(&bench, t, 1) || !instance_open(&in, &bench, &small, true))
        return;
    for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++) {
        dp_ep_config_t config = config_of(&bench, &in.s);

        memcpy((char *)&config + wrongs[i].offset, &wrongs[i].bits, sizeof(wrongs[i].bits));
        conform_forget_error();
        EXPECT_STATUS(t, in.vt->open(bench.lab.host, &config, &ep), DP_ERR_INVALID, "open with %s", wrongs[i].what);
        EXPECT(t, conform_last_error()[0] != '\0' && ep == NULL, "open with %s: no message, or an instance",
               wrongs[i].what);
    }
    instance_close(&in);
    bench_close(&bench);
}

/* Structs of a newer host are longer: taken while what is new is 0, else refused. */
static void longer_structs_are_taken(conform_t *t)
{
    struct {
        dp_ep_config_t known;
        unsigned char more[KERNEL_TAIL];
    } config = {.more = {0}};
    struct {
        dp_ep_io_t known;
        unsigned char more[KERNEL_TAIL];
    } io = {.more = {0}};
    const dp_ep_io_t *longer = (const void *)&io;
    instance_t in = {0};
    dp_ep_t *ep = NULL;
    batch_t b;
    bench_t bench;

    if (!bench_open(&bench, t, 1) || !instance_open(&in, &bench, &small, true) || !batch_open(&b, &in, 73))
        return;
    config.known = config_of(&bench, &in.s);
    config.known.struct_size = sizeof(config);
    config.more[0] = 1;
    EXPECT_STATUS(t, in.vt->open(bench.lab.host, &config.known, &ep), DP_ERR_UNSUPPORTED,
                  "open with a config that asks for what is not known");
    EXPECT(t, ep == NULL, "open of a config that is not known failed and has written its output");
    config.more[0] = 0;
    EXPECT_STATUS(t, in.vt->open(bench.lab.host, &config.known, &ep), DP_OK,
                  "open with a config that is %d bytes longer", KERNEL_TAIL);
    in.vt->close(ep);
    for (int call = 0; call < CALLS; call++) {
        if (!prepare_bench(&b, call))
            return;
        io.known = io_of(&b, call);
        io.known.struct_size = sizeof(io);
        io.more[KERNEL_TAIL - 1] = 1;
        EXPECT_STATUS(t, call_with(&b, call, longer), DP_ERR_UNSUPPORTED,
                      "%s with an io that asks for what is not known", call_names[call]);
        io.more[KERNEL_TAIL - 1] = 0;
        EXPECT_STATUS(t, call_with(&b, call, longer), DP_OK, "%s with an io that is %d bytes longer", call_names[call],
                      KERNEL_TAIL);
        if (!conform_lab_wait(&bench.lab, 1, call_names[call]) || !is_right(&b, call))
            return;
    }
    close_all(&b);
}

/* ---- what is left behind ---- */

static void memory_that_runs_out_leaves_nothing(conform_t *t)
{
    instance_t in = {0};
    bench_t bench;

    if (!bench_open(&bench, t, 1) || !instance_open(&in, &bench, &small, true))
        return;
    for (int nth = 1;; nth++) {
        instance_t poor = {0};
        const int64_t held = conform_held(t).blocks;
        dp_status_t status;

        conform_lab_refuse(&bench.lab, nth);
        status = open_instance(&poor, &bench, &in.s);
        if (!conform_lab_refused(&bench.lab)) {
            EXPECT_OK(t, status);
            poor.vt->close(poor.ep);
            break;
        }
        EXPECT(t, status == DP_ERR_NOMEM, "open returned %s when allocation %d failed, it has to be DP_ERR_NOMEM",
               dp_status_name(status), nth);
        EXPECT(t, conform_last_error()[0] != '\0', "open without memory gave no message");
        EXPECT(t, conform_held(t).blocks == held, "open failed and kept %d blocks of the host's memory",
               (int)(conform_held(t).blocks - held));
    }
    instance_close(&in);
    bench_close(&bench);
}

static void nothing_is_left_behind(conform_t *t)
{
    const dp_ep_vt_t *vt = t->table;
    conform_held_t held[3];

    vt->close(NULL);
    for (int i = 0; i < 3; i++) { /* libraries make threads at their first use */
        instance_t in = {0};
        bench_t bench;

        if (!bench_open(&bench, t, 1) || !instance_open(&in, &bench, &small, true) || !run_all(&in, 91))
            return;
        instance_close(&in);
        bench_close(&bench);
        held[i] = conform_held(t);
    }
    EXPECT(t, held[2].blocks == held[1].blocks, "close kept %d blocks of the host's memory",
           (int)(held[2].blocks - held[1].blocks));
    EXPECT(t, held[2].threads == held[1].threads, "close left %d threads", held[2].threads - held[1].threads);
    EXPECT(t, held[2].descriptors == held[1].descriptors, "close left %d descriptors",
           held[2].descriptors - held[1].descriptors);
}

static const conform_case_t cases[] = {
    {CONFORM_CASE(rows_go_where_they_belong, 4,
                  "An expert gets a row for each token that chose it, sorted by (expert, source rank, token), with "
                  "counts and weights; what it makes comes back to each (token, choice), with the gradients of "
                  "weights. In all calls, for every type that is taken, bit by bit; whatever tokens choose, and also "
                  "where ranks have different numbers of tokens."),
     .flags = CONFORM_ALL_SIZES},
    {CONFORM_CASE(microbatches_interleave, 2,
                  "Calls of several micro-batches may interleave: saved holds what one needs, and may be used again by "
                  "the dispatch of another.")},
    {CONFORM_CASE(
        calls_and_weights_may_be_left_out, 2,
        "A micro-batch may end after any call and leave others out; weights and their gradients are optional, "
        "and dispatch may have weights.")},
    {CONFORM_CASE(instances_do_not_meet, 2, "Two instances on one comm, with their own exchange ids, keep apart.")},
    {CONFORM_CASE(
        calls_are_enqueued, 0,
        "All calls but dispatch return while their stream is held, and read rows when the stream gets there.")},
    {CONFORM_CASE(calls_come_in_their_order, 0,
                  "combine and both backward calls are DP_ERR_PROTOCOL in saved memory that has had no dispatch, and "
                  "behind all calls of the micro-batch.")},
    {CONFORM_CASE(experts_that_are_not_there_are_refused, 0, "A choice from P on is DP_ERR_INVALID on the stream.")},
    {CONFORM_CASE(more_rows_than_the_capacity_are_an_overflow, 2,
                  "More rows than config.capacity has room for are DP_ERR_OVERFLOW, or arrive all the same: none is "
                  "dropped.")},
    {CONFORM_CASE(the_capacity_can_be_used, 2, "As many rows as config.capacity has room for arrive.")},
    {CONFORM_CASE(pointers_that_are_missing_are_named, 0,
                  "A call without a pointer that it needs, or of more tokens than config.tokens, is DP_ERR_INVALID, "
                  "names it and enqueues nothing.")},
    {CONFORM_CASE(wrong_settings_are_refused, 0, "open refuses sizes that cannot be with DP_ERR_INVALID.")},
    {CONFORM_CASE(longer_structs_are_taken, 0,
                  "Structs of a newer host are taken while members that nobody knows yet are 0, else "
                  "DP_ERR_UNSUPPORTED.")},
    {CONFORM_CASE(memory_that_runs_out_leaves_nothing, 0,
                  "open without memory is DP_ERR_NOMEM and keeps nothing of the host's.")},
    {CONFORM_CASE(nothing_is_left_behind, 0, "close(NULL) is allowed; close leaves no memory, thread or descriptor.")},
    {0},
};

const conform_suite_t conform_ep = {.name = "ep",
                                    .interface = DP_IFACE_EP,
                                    .plugin = "ep_exchange",
                                    .table_bytes = DP_EP_VT_MIN,
                                    .needs = CONFORM_NEEDS_DEVICE | CONFORM_NEEDS_COMM,
                                    .cases = cases};
