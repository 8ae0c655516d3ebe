/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_requests.c: requests that come and go, prompts in parts and then token by token, with keys
 * and values kept from step to step. What comes out is what one forward over each whole request
 * gives, for plain and latent attention, in every order and placement, and when the backend is
 * another one in between. What cannot be is refused. */
#include "tests/support/suite.h"

#include <dualpipe/dualpipe.h>
#include <dualpipe/moe_layers.h>
#include <dualpipe/run.h>
#include <dualpipe/schedule.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 4, TOKENS = 24, HIDDEN = 8, EXPERTS = 4, FFN = 6, M = 8, RANKS_MOST = 4 };
enum { REQUESTS = 9, SLOTS = 3, STEPS = 64 };
enum { EXCHANGED = -1 }; /* instead of DP_FORWARDS_*: one by one, micro-batch 1 before 0 */

static const int lengths[REQUESTS] = {1, 24, 9, 2, 17, 5, 13, 24, 1};

typedef struct layout {
    const char *method;
    int pp, ep, forwards;
} layout_t;

typedef struct rank {
    const layout_t *layout;
    dp_group_t *group;
    dp_moe_block_t *block;
    dp_stage_t *stages[2 * 3]; /* anew with each backend */
    int nstages, replica;
    dp_status_t status;
    char message[1024];
    pthread_t thread;
} rank_t;

static const dp_block_shape_t shape = {
    .struct_size = sizeof(shape), .dtype = DP_F64, .batch = 1, .sequence = TOKENS, .hidden = HIDDEN};
static const dp_moe_config_t moe = {.struct_size = sizeof(moe),
                                    .shape = &shape,
                                    .experts = EXPERTS,
                                    .top_k = 2,
                                    .expert_hidden = FFN,
                                    .shared_experts = 1,
                                    .normalize = 1};

/* Of ranks that run from now on. */
static int latent, apart, swaps;
static dp_pipeline_options_t wanted; /* cache_slots and cache_tokens of it */
static dp_status_t (*use)(rank_t *rank, dp_pipeline_t *p);

/* [replica][request][position], each of HIDDEN */
static double due[RANKS_MOST][REQUESTS][TOKENS][HIDDEN];

static double value(unsigned key)
{
    unsigned h = key * 2654435761u;

    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return (double)(h % 20001) / 10000.0 - 1.0;
}

static void row_of(int replica, int request, int position, double *row)
{
    for (int i = 0; i < HIDDEN; i++)
        row[i] = value((unsigned)(7919 * replica + 613 * request + 17 * position + i + 1));
}

/* ---- the ends: rows in, rows out ---- */

static dp_status_t take(void *self, const dp_segment_call_t *c)
{
    (void)self;
    memcpy(c->y, c->input, c->tokens * HIDDEN * sizeof(double));
    return DP_OK;
}

static dp_status_t give(void *self, const dp_segment_call_t *c)
{
    (void)self;
    if (c->output != NULL)
        memcpy(c->output, c->x, c->tokens * HIDDEN * sizeof(double));
    return DP_OK;
}

static dp_status_t nothing(void *self, const dp_segment_call_t *c)
{
    (void)self;
    if (c->dx != NULL)
        memset(c->dx, 0, c->boundary_bytes);
    return DP_OK;
}

static const dp_segment_t ends[] = {
    {.struct_size = sizeof(dp_segment_t), .name = "take", .host_forward = take, .host_backward_input = nothing},
    {.struct_size = sizeof(dp_segment_t), .name = "give", .host_forward = give, .host_backward_input = nothing}};

static dp_status_t open_block(rank_t *rank, const dp_build_context_t *context)
{
    dp_attention_config_t attention = {.struct_size = sizeof(attention),
                                       .shape = &shape,
                                       .heads = 2,
                                       .kv_heads = latent ? 0 : 1,
                                       .head_dim = latent ? 6 : 4,
                                       .value_dim = latent ? 3 : 0,
                                       .q_rank = latent ? 5 : 0,
                                       .kv_rank = latent ? 7 : 0,
                                       .rope_dim = latent ? 2 : 0,
                                       .apart = (uint32_t)apart};
    dp_moe_config_t config = moe;
    const dp_moe_block_options_t options = {
        .struct_size = sizeof(options), .attention_config = &attention, .moe_config = &config};

    config.apart = (uint32_t)apart;
    return dp_moe_block_open(context, &options, &rank->block);
}

static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                         dp_stage_t **stage_out)
{
    rank_t *rank = user;
    dp_part_t parts[LAYERS + 2];
    char prefix[LAYERS][24];
    dp_status_t status = rank->block == NULL ? open_block(rank, context) : DP_OK;
    int n = 0;

    for (int i = 0; i < LAYERS + 2; i++)
        parts[i] = (dp_part_t){.struct_size = sizeof(parts[i]), .nsegments = 1};
    if (stage == 0)
        parts[n++].segments = &ends[0];
    for (int l = stage * LAYERS / stages; l < (stage + 1) * LAYERS / stages && status >= 0; l++, n++) {
        status = dp_moe_block_part(rank->block, NULL, NULL, &parts[n]);
        snprintf(prefix[l], sizeof(prefix[l]), "layer%d.", l);
        parts[n].prefix = prefix[l];
    }
    if (stage == stages - 1)
        parts[n++].segments = &ends[1];
    if (status >= 0)
        status = dp_stage_create(parts, n, TOKENS * HIDDEN * sizeof(double), DP_F64, stage_out);
    if (status >= 0)
        rank->stages[rank->nstages++] = *stage_out;
    return status;
}

static void unbuild(void *user)
{
    rank_t *rank = user;

    dp_moe_block_close(rank->block);
    rank->block = NULL;
}

/* Values by the parameter's name alone. */
static void fill(dp_pipeline_t *p)
{
    dp_chunk_view_t view = {.struct_size = sizeof(view)};

    for (int32_t c = 0; c < dp_pipeline_chunks(p); c++) {
        ck_assert_int_eq(dp_pipeline_chunk(p, c, &view), DP_OK);
        for (uint32_t k = 0; k < view.nparams; k++) {
            const dp_param_t *param = &view.param_list[k];
            unsigned key = 5;

            for (const char *at = param->name; *at != '\0'; at++)
                key = key * 31 + (unsigned char)*at;
            for (size_t i = 0; i < param->count; i++)
                ((double *)view.params)[param->offset + i] =
                    param->kind == DP_PARAM_ROUTER_BIAS
                        ? 0
                        : (param->kind == DP_PARAM_VECTOR ? 1 : 0) + 0.5 * value(key + (unsigned)i);
        }
    }
}

static void *rank_main(void *arg)
{
    rank_t *rank = arg;
    const layout_t *layout = rank->layout;
    const dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = layout->method, .ranks = layout->pp, .microbatches = M};
    dp_pipeline_options_t options = wanted;
    dp_schedule_t *training = NULL, *schedule = NULL;
    dp_pipeline_t *p = NULL;

    if (layout->forwards != DP_FORWARDS_SERIAL) {
        ck_assert_int_eq(dp_schedule_generate(&request, &training), DP_OK);
        ck_assert_int_eq(dp_schedule_forwards(training,
                                              layout->forwards == EXCHANGED ? DP_FORWARDS_SERIAL : layout->forwards,
                                              &schedule),
                         DP_OK);
        if (layout->forwards == EXCHANGED) {
            schedule->ops[0].microbatch = 1;
            schedule->ops[1].microbatch = 0;
        }
    }
    options.struct_size = sizeof(options);
    options.group = rank->group;
    options.ep = layout->ep;
    options.method = layout->method;
    options.schedule = schedule;
    options.microbatches = M;
    options.boundary_bytes = TOKENS * HIDDEN * sizeof(double);
    options.dtype = DP_F64;
    options.tokens = options.documents = TOKENS;
    options.build = build;
    options.user = rank;
    options.unbuild = unbuild;
    rank->status = dp_pipeline_open(&options, &p);
    if (rank->status >= 0) {
        fill(p);
        rank->status = use(rank, p);
    }
    snprintf(rank->message, sizeof(rank->message), "%s", rank->status < 0 ? dp_last_error() : "");
    dp_pipeline_close(p);
    dp_schedule_free(schedule);
    dp_schedule_free(training);
    for (int i = 0; i < rank->nstages; i++)
        dp_stage_free(rank->stages[i]);
    dp_group_leave(rank->group);
    return NULL;
}

/* The status of the first rank that failed. */
static dp_status_t run(const layout_t *layout, int first_replica, char message[1024])
{
    const int n = layout->pp * layout->ep;
    dp_group_t *groups[RANKS_MOST];
    rank_t ranks[RANKS_MOST];
    dp_status_t status = DP_OK;

    memset(ranks, 0, sizeof(ranks));
    ck_assert_int_eq(dp_group_local(n, NULL, groups), DP_OK);
    for (int r = 0; r < n; r++) {
        ranks[r].layout = layout;
        ranks[r].group = groups[r];
        ranks[r].replica = first_replica + r / layout->pp;
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < n; r++) {
        pthread_join(ranks[r].thread, NULL);
        if (ranks[r].status < 0 && status >= 0) {
            status = ranks[r].status;
            snprintf(message, 1024, "rank %d: %s", r, ranks[r].message);
        }
    }
    return status;
}

/* ---- what is expected: each request whole, alone in its micro-batch ---- */

typedef struct step_data {
    double in[M][TOKENS * HIDDEN], out[M][TOKENS * HIDDEN];
    uint32_t end[M][TOKENS], slot[M][TOKENS], past[M][TOKENS];
    const void *inputs[M];
    void *outputs[M];
    dp_documents_t documents[M];
    dp_requests_t requests[M];
} step_data_t;

static _Thread_local step_data_t data;

static dp_step_t empty_step(void)
{
    memset(&data, 0, sizeof(data));
    for (int m = 0; m < M; m++) {
        data.inputs[m] = data.in[m];
        data.outputs[m] = data.out[m];
        data.documents[m].ends = data.end[m];
        data.requests[m] = (dp_requests_t){.slots = data.slot[m], .past = data.past[m]};
    }
    return (dp_step_t){.struct_size = sizeof(dp_step_t),
                       .inputs = data.inputs,
                       .outputs = data.outputs,
                       .documents = data.documents,
                       .requests = data.requests,
                       .forward_only = 1};
}

/* Tokens first .. first + count - 1 of a request, into micro-batch m. */
static void add_document(int replica, int m, int request, int first, int count, uint32_t slot)
{
    dp_documents_t *d = &data.documents[m];
    const uint32_t at = d->count > 0 ? data.end[m][d->count - 1] : 0;

    for (int i = 0; i < count; i++)
        row_of(replica, request, first + i, data.in[m] + (at + (uint32_t)i) * HIDDEN);
    data.slot[m][d->count] = slot;
    data.past[m][d->count] = (uint32_t)first;
    data.end[m][d->count++] = at + (uint32_t)count;
}

/* No micro-batch is empty: one without requests computes a token of none. */
static void fill_idle(int replica)
{
    for (int m = 0; m < M; m++)
        if (data.documents[m].count == 0)
            add_document(replica, m, 0, 0, 1, DP_NO_SLOT);
}

static dp_status_t use_whole(rank_t *rank, dp_pipeline_t *p)
{
    for (int request = 0; request < REQUESTS; request++) {
        dp_step_t step = empty_step();
        dp_status_t status;

        step.requests = NULL;
        add_document(rank->replica, 0, request, 0, lengths[request], DP_NO_SLOT);
        fill_idle(rank->replica);
        status = dp_pipeline_step(p, &step);
        if (status < 0)
            return status;
        memcpy(due[rank->replica][request], data.out[0], (size_t)lengths[request] * HIDDEN * sizeof(double));
    }
    return DP_OK;
}

/* ---- a server: one for each path ---- */

typedef struct server {
    int request[SLOTS]; /* that a slot has; -1: none */
    int done[SLOTS];    /* tokens of it */
    int next;           /* request */
} server_t;

/* What a step did, to be compared: request, first position, count, micro-batch, row. */
typedef struct part {
    int request, first, count, m, row;
} part_t;

static int row_in(int m)
{
    return data.documents[m].count > 0 ? (int)data.end[m][data.documents[m].count - 1] : 0;
}

static void put(int replica, int m, int request, int first, int count, int slot, part_t *parts, int *n)
{
    parts[(*n)++] = (part_t){request, first, count, m, row_in(m)};
    add_document(replica, m, request, first, count, (uint32_t)slot);
}

/* Every slot goes on by a part of its prompt or one token; now and then a part is split between two
 * micro-batches. Returns how many parts; 0: all is done. */
static int serve(server_t *s, int replica, int path, int paths, int number, part_t *parts)
{
    const int first = path * M / paths, room = M / paths;
    int n = 0;

    for (int slot = 0; slot < SLOTS; slot++) {
        const unsigned key = (unsigned)(replica * 911 + number * 37 + slot * 5 + path);
        int count, split, m = first + (slot + number) % room;

        if (s->request[slot] >= 0 && s->done[slot] == lengths[s->request[slot]])
            s->request[slot] = -1;
        if (s->request[slot] < 0 && s->next < REQUESTS && value(key) > -0.5) {
            s->request[slot] = s->next;
            s->done[slot] = 0;
            s->next += paths;
        }
        if (s->request[slot] < 0)
            continue;
        count = s->done[slot] < lengths[s->request[slot]] / 2 ? 1 + (int)(4 * (1 + value(key + 1))) : 1;
        if (count > lengths[s->request[slot]] - s->done[slot])
            count = lengths[s->request[slot]] - s->done[slot];
        if (row_in(m) + count > TOKENS)
            continue;
        split = count > 1 && m + 1 < first + room && row_in(m + 1) + count <= TOKENS ? count / 2 : 0;
        put(replica, m, s->request[slot], s->done[slot], count - split, slot, parts, &n);
        if (split > 0)
            put(replica, m + 1, s->request[slot], s->done[slot] + count - split, split, slot, parts, &n);
        s->done[slot] += count;
    }
    return n;
}

static int all_done(const server_t *s)
{
    for (int slot = 0; slot < SLOTS; slot++)
        if (s->request[slot] >= 0 && s->done[slot] < lengths[s->request[slot]])
            return 0;
    return s->next >= REQUESTS;
}

static double worst;
static int compared;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void compare(const rank_t *rank, const part_t *part)
{
    const double *got = data.out[part->m] + part->row * HIDDEN;
    const double *expected = &due[rank->replica][0][0][0] + (part->request * TOKENS + part->first) * HIDDEN;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < part->count * HIDDEN; i++)
        worst = fmax(worst, fabs(got[i] - expected[i]));
    compared += part->count;
    pthread_mutex_unlock(&lock);
}

/* The caches outlive the backend: requests go on over another one. */
static dp_status_t swap(rank_t *rank, dp_pipeline_t *p, int number)
{
    const dp_plugin_t *plugin;
    dp_moe_block_t *old = rank->block;
    dp_status_t status;

    if (!swaps || number % (STEPS / 4) != STEPS / 8 || number > STEPS / 2)
        return DP_OK;
    rank->block = NULL;
    status = dp_pipeline_swap_comm(p, number < STEPS / 4 && dp_plugin_load("comm_ofi", &plugin) >= 0 ? "ofi" : "shm");
    dp_moe_block_close(old);
    return status;
}

static dp_status_t use_server(rank_t *rank, dp_pipeline_t *p)
{
    const int paths = strcmp(rank->layout->method, "dualpipe") == 0 ? 2 : 1;
    server_t servers[2];
    uint8_t last[M];

    for (int path = 0; path < 2; path++)
        servers[path] = (server_t){.request = {-1, -1, -1}, .next = path};
    dp_pipeline_ends(p, NULL, last);
    for (int number = 0; number < STEPS; number++) {
        part_t parts[2 * 2 * SLOTS];
        dp_step_t step = empty_step();
        dp_status_t status = swap(rank, p, number);
        int n = 0;

        if (status < 0)
            return status;
        for (int path = 0; path < paths; path++)
            n += serve(&servers[path], rank->replica, path, paths, number, parts + n);
        fill_idle(rank->replica);
        status = dp_pipeline_step(p, &step);
        if (status < 0)
            return status;
        for (int i = 0; i < n; i++)
            if (last[parts[i].m])
                compare(rank, &parts[i]);
    }
    for (int path = 0; path < paths; path++)
        ck_assert(all_done(&servers[path]));
    return DP_OK;
}

static const layout_t layouts[] = {
    {"1f1b", 1, 1, DP_FORWARDS_PREFILL},     {"1f1b", 1, 1, DP_FORWARDS_SERIAL},
    {"1f1b", 1, 4, DP_FORWARDS_DECODE},      {"1f1b", 2, 1, DP_FORWARDS_DECODE},
    {"1f1b", 2, 2, DP_FORWARDS_PREFILL},     {"1f1b", 3, 1, DP_FORWARDS_PREFILL},
    {"1f1b", 4, 1, DP_FORWARDS_DECODE},      {"interleaved", 2, 1, DP_FORWARDS_DECODE},
    {"dualpipe", 2, 2, DP_FORWARDS_SERIAL},  {"dualpipe", 4, 1, DP_FORWARDS_SERIAL},
    {"dualpipev", 2, 2, DP_FORWARDS_SERIAL},
};

START_TEST(what_comes_out_is_what_whole_requests_give)
{
    const layout_t alone = {"1f1b", 1, 1, DP_FORWARDS_SERIAL};
    const size_t count = sizeof(layouts) / sizeof(layouts[0]);
    char message[1024];

    latent = swaps = _i & 1;
    apart = _i >> 1;
    wanted = (dp_pipeline_options_t){.cache_slots = 0};
    use = use_whole;
    for (int replica = 0; replica < RANKS_MOST; replica++)
        ck_assert_msg(run(&alone, replica, message) == DP_OK, "%s", message);
    wanted = (dp_pipeline_options_t){.cache_slots = SLOTS, .cache_tokens = TOKENS};
    use = use_server;
    for (size_t k = 0; k < count; k++) {
        int all = 0;

        for (int request = 0; request < REQUESTS; request++)
            all += layouts[k].ep * lengths[request];
        worst = 0;
        compared = 0;
        ck_assert_msg(run(&layouts[k], 0, message) == DP_OK, "%s, %d ranks, ep %d: %s", layouts[k].method,
                      layouts[k].pp, layouts[k].ep, message);
        ck_assert_msg(compared == all, "%s: %d of %d tokens", layouts[k].method, compared, all);
        ck_assert_msg(worst < 1e-11, "%s, %d ranks, ep %d: differs by %.3g", layouts[k].method, layouts[k].pp,
                      layouts[k].ep, worst);
    }
}
END_TEST

/* ---- refusals ---- */

typedef struct wrong {
    const char *words;
    uint32_t slot[2], past[2]; /* of two documents, of micro-batches 0 and `second` */
    int second;
} wrong_t;

/* Slot 1 holds 5 tokens before it; each document has 3. */
static const wrong_t wrongs[] = {
    {"slot 3 of 3", {3, 0}, {0, 0}, 0},
    {"past is 6 for slot 1, which holds 5 tokens", {1, 0}, {6, 0}, 0},
    {"past is 1 for slot 2, which holds 0 tokens", {0, 2}, {0, 1}, 1},
    {"slot 1 stands there twice", {1, 1}, {5, 8}, 0},
    {"two requests cannot have one slot", {1, 1}, {5, 0}, 1},
    {"past is 8 for slot 1, which holds 5 tokens", {1, 1}, {5, 8}, -1},
    {"past is 2 for a document without a slot", {DP_NO_SLOT, 0}, {2, 0}, 0},
    {"slot 1 is full: it holds 4 tokens, 3 more", {1, 0}, {4, 0}, -2},
    {"no slots", {0, 1}, {0, 0}, -3},
    {"a training step has none", {0, 1}, {0, 0}, -4},
    {"past is 5 for slot 1, which holds 0 tokens", {1, 0}, {5, 0}, -5}, /* behind a training step */
};
static const wrong_t *wrong;

static dp_status_t use_wrong(rank_t *rank, dp_pipeline_t *p)
{
    dp_step_t step = empty_step();
    dp_status_t status;

    add_document(0, 0, 1, 0, 5, 1);
    fill_idle(0);
    status = dp_pipeline_step(p, &step);
    if (status < 0)
        return status;
    step = empty_step();
    for (int i = 0; i < 2; i++) {
        const int m = i == 0 ? (wrong->second == -1 ? 1 : 0) : wrong->second > 0 ? wrong->second : 0;

        add_document(0, m, 1, 0, 3, wrong->slot[i]);
        data.past[m][data.documents[m].count - 1] = wrong->past[i];
    }
    (void)rank;
    fill_idle(0);
    if (wrong->second == -5) {
        dp_step_t training = {.struct_size = sizeof(training),
                              .inputs = data.inputs,
                              .targets = data.inputs,
                              .documents = data.documents};

        status = dp_pipeline_step(p, &training);
        if (status < 0)
            return status;
    }
    if (wrong->second == -3)
        data.requests[1].slots = NULL;
    step.forward_only = wrong->second != -4;
    step.targets = data.inputs;
    return dp_pipeline_step(p, &step);
}

static dp_status_t use_without(rank_t *rank, dp_pipeline_t *p)
{
    dp_step_t step = empty_step();

    (void)rank;
    fill_idle(0);
    return dp_pipeline_step(p, &step);
}

START_TEST(what_cannot_be_is_refused)
{
    const layout_t alone = {"1f1b", 1, 1, DP_FORWARDS_SERIAL};
    char message[1024] = "";

    latent = apart = 0;
    use = use_wrong;
    for (size_t k = 0; k < sizeof(wrongs) / sizeof(wrongs[0]); k++) {
        wrong = &wrongs[k];
        wanted = (dp_pipeline_options_t){.cache_slots = SLOTS, .cache_tokens = wrong->second == -2 ? 6 : TOKENS};
        ck_assert_int_eq(run(&alone, 0, message), DP_ERR_INVALID);
        ck_assert_msg(strstr(message, wrong->words) != NULL, "%s, not: %s", message, wrong->words);
    }
    wrong = &(wrong_t){"does not run before it", {1, 1}, {5, 8}, 1};
    wanted = (dp_pipeline_options_t){.cache_slots = SLOTS, .cache_tokens = TOKENS};
    ck_assert_int_eq(run(&(layout_t){"1f1b", 1, 1, EXCHANGED}, 0, message), DP_ERR_INVALID);
    ck_assert_msg(strstr(message, wrong->words) != NULL, "%s", message);
    use = use_without;
    wanted = (dp_pipeline_options_t){.cache_slots = 0};
    ck_assert_int_eq(run(&alone, 0, message), DP_ERR_INVALID);
    ck_assert_msg(strstr(message, "opened without cache_slots") != NULL, "%s", message);
    wanted = (dp_pipeline_options_t){.cache_slots = 2};
    ck_assert_int_eq(run(&alone, 0, message), DP_ERR_INVALID);
    ck_assert_msg(strstr(message, "give both, or neither") != NULL, "%s", message);
    wanted = (dp_pipeline_options_t){.cache_slots = 2, .cache_tokens = TOKENS + 1};
    ck_assert_int_eq(run(&alone, 0, message), DP_ERR_INVALID);
    ck_assert_msg(strstr(message, "more than shape.sequence") != NULL, "%s", message);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("requests");
    TCase *tests = tcase_create("requests");

    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, what_comes_out_is_what_whole_requests_give, 0, 4);
    tcase_add_test(tests, what_cannot_be_is_refused);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
