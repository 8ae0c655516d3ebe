/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_cases.c: see moe_cases.h. */
#include "moe_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const dp_dtype_t dtypes[] = {DP_F64, DP_F32, DP_BF16};

layer_t moe_layer(dp_dtype_t dtype, uint32_t tokens, uint32_t hidden, uint32_t experts, uint32_t top_k, uint32_t width,
                  uint32_t shared)
{
    return (layer_t){.dtype = dtype,
                     .batch = 1,
                     .sequence = tokens,
                     .hidden = hidden,
                     .experts = experts,
                     .top_k = top_k,
                     .width = width,
                     .shared = shared,
                     .gate = shared > 0 ? DP_GATE_SIGMOID : DP_GATE_SOFTMAX,
                     .normalize = top_k > 1,
                     .scale = 1.5F,
                     .aux_alpha = 0.25F};
}

bool moe_write_params(block_t *b)
{
    double *mine = calloc(b->sizes.param_count + 1, sizeof(*mine));
    bool fine;

    for (size_t i = 0; i < b->sizes.param_count; i++)
        mine[i] = b->values[b->kind->index(b, i)];
    fine = conform_area_write(b->lab, &b->params, mine);
    free(mine);
    return fine;
}

bool moe_layer_is_right(block_t *b, bool each)
{
    pass_t p[2], *both[2] = {&p[0], &p[1]};

    return conform_pass_open(&p[0], b, 0) && conform_pass_open(&p[1], b, 1) &&
           conform_pass_run(&p[0], FORWARD, FORWARD) && conform_pass_run(&p[1], FORWARD, BACKWARD) &&
           conform_pass_run(&p[0], BACKWARD, WEIGHT) && conform_pass_run(&p[1], WEIGHT, WEIGHT) &&
           conform_pass_output_is_right(&p[0]) && conform_pass_output_is_right(&p[1]) &&
           conform_gradients_are_right(b, both, 2, each) && conform_pass_close(&p[0]) && conform_pass_close(&p[1]) &&
           conform_block_close(b);
}

bool moe_try(lab_t *lab, block_t *b, const layer_t *layer)
{
    if (conform_block_open(b, lab, layer, 83))
        return true;
    CHECK(lab->t, conform_failed(lab->t) || layer->dtype == DP_BF16, "%s", conform_last_error());
    return false;
}

/* ---- sizes ---- */

void every_gate_and_size(conform_t *t)
{
    static const struct {
        dp_gate_t gate;
        uint32_t normalize;
        float scale, aux_alpha;
    } gates[] = {
        {DP_GATE_SOFTMAX, 0, 0, 0},    {DP_GATE_SOFTMAX, 1, 2.5F, 0.25F}, {DP_GATE_SIGMOID, 0, 0.5F, 0.5F},
        {DP_GATE_SIGMOID, 1, 2.5F, 0}, {DP_GATE_SOFTMAX, 0, 0, 0.125F},   {DP_GATE_SIGMOID, 1, 0, 1},
    };
    static const uint32_t sizes[][6] = {
        /* T, d, E, k, f, shared */
        {1, 1, 1, 1, 1, 0},    {1, 3, 4, 2, 5, 1},    {7, 9, 4, 4, 3, 0},    {3, 5, 20, 20, 4, 2},
        {37, 21, 8, 3, 13, 2}, {33, 16, 8, 2, 24, 1}, {70, 11, 5, 2, 67, 0}, {64, 16, 8, 1, 8, 0},
    };
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    /* each gate with some sizes, each size with some gates */
    for (int type = 0; type < 3; type++)
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
            for (size_t g = 0; g < 2; g++) {
                const uint32_t *s = sizes[i];
                const size_t gate = (i + 3 * g + (size_t)type) % 6;
                layer_t layer = moe_layer(dtypes[type], s[0], s[1], s[2], s[3], s[4], s[5]);
                block_t b = {0};

                layer.gate = gates[gate].gate;
                layer.normalize = gates[gate].normalize;
                layer.scale = gates[gate].scale;
                layer.aux_alpha = gates[gate].aux_alpha;
                if (moe_try(&lab, &b, &layer) ? !moe_layer_is_right(&b, false) : conform_failed(t))
                    return;
            }
    conform_lab_close(&lab);
}

void replicas_of_many_layers(conform_t *t)
{
    static const struct {
        uint32_t tokens, experts, replicas, top_k, shared;
    } cases[] = {{13, 4, 12, 2, 1}, {1, 4, 24, 3, 0}, {7, 8, 12, 8, 2}, {29, 4, 24, 1, 0}};
    int32_t placement[24];
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int i = 0; i < 8; i++) {
        const layer_t layer = moe_layer(dtypes[i / 4], cases[i % 4].tokens, 9, cases[i % 4].experts, cases[i % 4].top_k,
                                        7, cases[i % 4].shared);
        block_t b = {.rank = t->rank, .ranks = t->size, .replicas = cases[i % 4].replicas, .placement = placement};
        uint64_t state = (uint64_t)i;

        for (uint32_t r = 0; r < b.replicas; r++) /* every expert once, and then whichever */
            placement[r] = (int32_t)(r < layer.experts ? r : conform_random(&state) % layer.experts);
        for (uint32_t r = 0; r < b.replicas; r++) {
            const uint32_t other = (uint32_t)(conform_random(&state) % b.replicas);
            const int32_t swap = placement[r];

            placement[r] = placement[other];
            placement[other] = swap;
        }
        if (moe_try(&lab, &b, &layer) ? !moe_layer_is_right(&b, false) : conform_failed(t))
            return;
    }
    conform_lab_close(&lab);
}

void exchanges_hold_the_worst_case(conform_t *t)
{
    static const uint32_t top_k[] = {1, 2, 3, 8};
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int k = 0; k < 4; k++) {
        const layer_t layer = moe_layer(DP_F64, 7, 5, 8, top_k[k], 3, 0);
        /* one row of each token out, one for each head back */
        const uint32_t heads = k == 0 ? 7 : 14;
        block_t b = {.rank = 1, .ranks = 4};
        const dp_exchange_config_t *e;

        if (!moe_try(&lab, &b, &layer))
            return;
        EXPECT(t, conform_exchanges_config(b.comm, 0) != NULL, "no exchange was opened");
        for (int32_t i = 0; (e = conform_exchanges_config(b.comm, i)) != NULL; i++)
            EXPECT(t,
                   e->row_bytes >= 40 && e->label != NULL &&
                       e->capacity_rows == (i == 0 ? 7 : heads) + (16 + 16 * heads + e->row_bytes - 1) / e->row_bytes,
                   "with top_k %u exchange %d has %u rows of %zu bytes", top_k[k], i, e->capacity_rows, e->row_bytes);
        if (!conform_block_close(&b))
            return;
    }
    conform_lab_close(&lab);
}

/* Rows to be sent to rank `to` in dispatch: one for each token that goes there, and the
 * list. */
static int64_t rows_due(const block_t *b, const int *chosen, int32_t to, size_t row_bytes)
{
    const uint32_t local = b->layer.experts / (uint32_t)b->ranks, k = b->layer.top_k;
    int64_t rows = 0, heads = 0;

    for (size_t i = 0; i < conform_layer_tokens(&b->layer); i++) {
        int64_t here = 0;

        for (uint32_t j = 0; j < k; j++)
            here += chosen[i * k + j] / (int)local == to;
        rows += here > 0;
        heads += here;
    }
    return heads > 0 ? rows + (16 + 16 * heads + (int64_t)row_bytes - 1) / (int64_t)row_bytes : 0;
}

void a_row_is_sent_once_to_each_rank(conform_t *t)
{
    const layer_t layer = moe_layer(DP_F64, 37, 12, 12, 5, 3, 0);
    block_t b = {.rank = t->rank, .ranks = t->size};
    int chosen[37 * 5];
    double *y;
    pass_t p;
    lab_t lab;

    if (!conform_lab_open(&lab, t) || !moe_try(&lab, &b, &layer) || !conform_pass_open(&p, &b, 0) ||
        !conform_pass_run(&p, FORWARD, WEIGHT))
        return;
    y = calloc(conform_area_count(&p.y), sizeof(*y));
    (void)conform_reference_moe(&layer, b.values, p.xs[b.rank], y, chosen, false);
    free(y);
    for (int32_t to = 0; to < b.ranks; to++) {
        const int64_t due = rows_due(&b, chosen, to, conform_exchanges_config(b.comm, 0)->row_bytes);

        EXPECT(t, conform_exchanges_sent(b.comm, 0, to) == 2 * due,
               "rank %d sent rank %d %lld rows in dispatch and combine_backward together: %lld are expected in each",
               b.rank, to, (long long)conform_exchanges_sent(b.comm, 0, to), (long long)due);
    }
    if (!conform_pass_close(&p) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

/* ---- bits ---- */

enum { ROUNDS = 2 };

/* Micro-batches of this rank in an expert group; first all forwards, or F&B in turn. */
static bool run_group(pass_t *p, bool forwards_first)
{
    for (int m = 0; m < ROUNDS; m++)
        if (!conform_pass_run(&p[m], FORWARD, forwards_first ? FORWARD : WEIGHT))
            return false;
    for (int m = 0; m < ROUNDS && forwards_first; m++) /* weights one behind, as in a pipeline */
        if (!conform_pass_run(&p[m], BACKWARD, BACKWARD) || (m > 0 && !conform_pass_run(&p[m - 1], WEIGHT, WEIGHT)))
            return false;
    return !forwards_first || conform_pass_run(&p[ROUNDS - 1], WEIGHT, WEIGHT);
}

/* Whether two regions hold the same bytes; the second one's pass is done. */
static bool same(lab_t *lab, const area_t *a, size_t from, const area_t *b, size_t from_b, size_t bytes,
                 const char *what)
{
    unsigned char *x = conform_area_bytes(lab, a), *y = conform_area_bytes(lab, b);
    bool equal = x != NULL && y != NULL && memcmp(x + from, y + from_b, bytes) == 0;

    free(x);
    free(y);
    CHECK(lab->t, equal, "%s has other bits in a group than on one rank", what);
    return true;
}

/* One rank with all experts takes the micro-batches of ranks first, first + stride, ..., round by
 * round. */
static bool alone(block_t *b, const pass_t *group, const block_t *grouped, int32_t first, int32_t stride, pass_t *mine)
{
    for (int m = 0; m < ROUNDS; m++)
        for (int32_t r = first; r < grouped->ranks; r += stride) {
            pass_t p;

            if (!conform_pass_open(&p, b, m))
                return false;
            memcpy(p.xs[0], group[m].xs[r], conform_area_count(&p.x) * sizeof(double));
            memcpy(p.dys[0], group[m].dys[r], conform_area_count(&p.x) * sizeof(double));
            if (!conform_area_write(b->lab, &p.x, p.xs[0]) || !conform_area_write(b->lab, &p.dy, p.dys[0]) ||
                !conform_pass_run(&p, FORWARD, WEIGHT))
                return false;
            if (r == grouped->rank && mine != NULL)
                mine[m] = p;
            else if (!conform_pass_close(&p))
                return false;
        }
    return true;
}

static bool zero_gradients(block_t *b)
{
    memset(b->before, 0, b->sizes.param_count * sizeof(double));
    return conform_area_write(b->lab, &b->grads, b->before);
}

/* Outputs of a rank's micro-batches, gradients that all ranks hold of those alone, gradients of
 * experts of everyone's: these not where tensor cores may add up a micro-batch of all ranks before
 * they add it to what is there. */
static bool has_the_bits_of_one_rank(lab_t *lab, const layer_t *layer, bool forwards_first)
{
    conform_t *t = lab->t;
    const size_t element = dp_dtype_bytes(dp_dtype_accumulator(layer->dtype));
    const size_t common = conform_reference_moe_common(layer) * element;
    const bool chained = layer->dtype != DP_BF16 || layer->hidden % 8 != 0 || layer->width % 8 != 0;
    block_t group = {.rank = t->rank, .ranks = t->size}, one = {0}, own = {0};
    pass_t together[ROUNDS], apart[ROUNDS];

    if (!conform_block_open(&group, lab, layer, 89) || !zero_gradients(&group))
        return !conform_failed(t) && layer->dtype == DP_BF16;
    for (int m = 0; m < ROUNDS; m++)
        if (!conform_pass_open(&together[m], &group, m))
            return false;
    if (!run_group(together, forwards_first) || !conform_block_open(&one, lab, layer, 89) || !zero_gradients(&one) ||
        !conform_block_open(&own, lab, layer, 89) || !zero_gradients(&own) ||
        !alone(&one, together, &group, 0, 1, NULL) || !alone(&own, together, &group, t->rank, t->size, apart))
        return false;
    for (int m = 0; m < ROUNDS; m++)
        if (!same(lab, &together[m].y, 0, &apart[m].y, 0, apart[m].y.bytes, "y") ||
            !same(lab, &together[m].dx, 0, &apart[m].dx, 0, apart[m].dx.bytes, "dx") ||
            !same(lab, &together[m].aux, 0, &apart[m].aux, 0, sizeof(double), "the auxiliary loss") ||
            !conform_pass_close(&together[m]) || !conform_pass_close(&apart[m]))
            return false;
    return same(lab, &group.grads, 0, &own.grads, 0, common, "the gradient of what all ranks hold") &&
           (!chained ||
            same(lab, &group.grads, common, &one.grads, common + (size_t)t->rank * (group.grads.bytes - common),
                 group.grads.bytes - common, "the gradient of the experts")) &&
           conform_block_close(&group) && conform_block_close(&one) && conform_block_close(&own);
}

void group_has_the_bits_of_one_rank(conform_t *t)
{
    static const uint32_t sizes[][6] = {
        {13, 12, 8, 3, 10, 1}, {1, 12, 8, 2, 10, 0},  {13, 12, 8, 8, 10, 0},
        {64, 65, 8, 2, 66, 1}, {33, 16, 8, 2, 24, 1},
    };
    lab_t lab;

    if (t->size == 3)
        return;
    if (!conform_lab_open(&lab, t))
        return;
    for (int i = 0; i < 3 * 5; i++) {
        const uint32_t *s = sizes[i % 5];
        const layer_t layer = moe_layer(dtypes[i / 5], s[0], s[1], s[2], s[3], s[4], s[5]);

        if (!has_the_bits_of_one_rank(&lab, &layer, i % 2 == 0))
            return;
    }
    conform_lab_close(&lab);
}

/* ---- what is found wrong ---- */

bool moe_fails(block_t *b, int step, dp_status_t status, const char *word)
{
    lab_t *lab = b->lab;
    const int lane = b->kind->steps[step].lane;
    dp_status_t came;
    pass_t p;

    if (!conform_pass_open(&p, b, 0))
        return false;
    for (int i = 0; i < step; i++)
        if (!conform_pass_step(&p, i))
            return false;
    /* it is the stream that fails */
    CHECK_OK(lab->t, conform_pass_call(&p, step), "%s", b->kind->steps[step].name);
    conform_forget_error();
    came = lab->vt->synchronize(lab->lanes[lane], -1);
    CHECK(lab->t, came == status && strstr(conform_last_error(), word) != NULL,
          "%s returned %s, \"%s\": it has to be %s and to speak of %s", b->kind->steps[step].name, dp_status_name(came),
          conform_last_error(), dp_status_name(status), word);
    lab->broken = true;
    if (!conform_pass_close(&p) || !conform_block_close(b))
        return false;
    conform_lab_close(lab);
    return true;
}

/* What a peer that is out of step could send: a list (call, number of heads), and its heads
 * (expert, row) from byte 16 on, 16 bytes each. */
static void negative(const dp_exchange_config_t *config, unsigned char *rows, int32_t *counts, uint32_t round)
{
    (void)config, (void)rows;
    if (round == 0)
        counts[0] = -1;
}

static void write_at(unsigned char *rows, size_t at, int32_t value)
{
    memcpy(rows + at, &value, sizeof(value));
}

static void foreign_expert(const dp_exchange_config_t *config, unsigned char *rows, int32_t *counts, uint32_t round)
{
    (void)config, (void)counts;
    if (round == 0)
        write_at(rows, 16, 8);
}

static void negative_expert(const dp_exchange_config_t *config, unsigned char *rows, int32_t *counts, uint32_t round)
{
    (void)config, (void)counts;
    if (round == 0)
        write_at(rows, 16 + 2 * 16, -5);
}

static void one_less(int32_t *counts, uint32_t round, uint32_t wanted)
{
    if (round == wanted)
        counts[0]--;
}

static void one_less_in_combine(const dp_exchange_config_t *config, unsigned char *rows, int32_t *counts,
                                uint32_t round)
{
    (void)config, (void)rows;
    one_less(counts, round, 1);
}

static void one_less_in_backward(const dp_exchange_config_t *config, unsigned char *rows, int32_t *counts,
                                 uint32_t round)
{
    (void)config, (void)rows;
    one_less(counts, round, 2);
}

static void one_less_at_last(const dp_exchange_config_t *config, unsigned char *rows, int32_t *counts, uint32_t round)
{
    (void)config, (void)rows;
    one_less(counts, round, 3);
}

/* A word of the list in the exchange that is meant. */
static void write_in(unsigned char *rows, uint32_t round, uint32_t wanted, size_t at, int32_t value)
{
    if (round == wanted)
        write_at(rows, at, value);
}

#define WRITTEN(name, round_wanted, at, value)                                                                         \
    static void name(const dp_exchange_config_t *config, unsigned char *rows, int32_t *counts, uint32_t round)         \
    {                                                                                                                  \
        (void)config, (void)counts;                                                                                    \
        write_in(rows, round, round_wanted, at, value);                                                                \
    }

WRITTEN(other_call_in_dispatch, 0, 0, 77)
WRITTEN(other_call_in_combine, 1, 0, 77)
WRITTEN(other_call_in_backward, 2, 0, 77)
WRITTEN(other_call_at_last, 3, 0, 77)
WRITTEN(no_heads_in_dispatch, 0, 4, 0)
WRITTEN(heads_below_0_in_dispatch, 0, 4, -1)
WRITTEN(one_head_less_in_dispatch, 0, 4, 13)
WRITTEN(heads_without_end_in_backward, 2, 4, INT32_MAX)
WRITTEN(one_head_less_at_last, 3, 4, 13)
WRITTEN(foreign_row_in_dispatch, 0, 16 + 3 * 16 + 4, 7)
WRITTEN(row_below_0_in_dispatch, 0, 16 + 5 * 16 + 4, -1)
WRITTEN(foreign_row_in_backward, 2, 16 + 4, 7)

void rows_of_another_call_are_refused(conform_t *t)
{
    static const struct {
        void (*tamper)(const dp_exchange_config_t *config, unsigned char *rows, int32_t *counts, uint32_t round);
        int step;
        const char *word;
    } wrongs[] = {
        {negative, DISPATCH, "dispatch"},
        {foreign_expert, DISPATCH, "dispatch"},
        {negative_expert, DISPATCH, "dispatch"},
        {other_call_in_dispatch, DISPATCH, "dispatch"},
        {one_less_in_combine, COMBINE, "combine"},
        {other_call_in_combine, COMBINE, "combine"},
        {one_less_in_backward, COMBINE_B, "combine_backward"},
        {other_call_in_backward, COMBINE_B, "combine_backward"},
        {one_less_at_last, DISPATCH_B, "dispatch_backward"},
        {other_call_at_last, DISPATCH_B, "dispatch_backward"},
        {no_heads_in_dispatch, DISPATCH, "dispatch"},
        {heads_below_0_in_dispatch, DISPATCH, "dispatch"},
        {one_head_less_in_dispatch, COMBINE, "combine"},
        {heads_without_end_in_backward, COMBINE_B, "combine_backward"},
        {one_head_less_at_last, DISPATCH_B, "dispatch_backward"},
        {foreign_row_in_dispatch, DISPATCH, "dispatch"},
        {row_below_0_in_dispatch, DISPATCH, "dispatch"},
        {foreign_row_in_backward, COMBINE_B, "combine_backward"},
    };

    for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++) {
        const layer_t layer = moe_layer(dtypes[i % 2], 7, 8, 8, 2, 8, 1);
        block_t b = {0};
        lab_t lab;

        if (!conform_lab_open(&lab, t))
            return;
        lab.tamper = wrongs[i].tamper;
        if (!moe_try(&lab, &b, &layer) || !moe_fails(&b, wrongs[i].step, DP_ERR_PROTOCOL, wrongs[i].word))
            return;
    }
}

void placements_that_cannot_be_are_refused(conform_t *t)
{
    static const int32_t placements[][4] = {{0, 1, 1, 1}, {0, 1, 3, 1}, {0, -1, 1, 1}};

    for (int i = 0; i < 3; i++) {
        static const int32_t good[] = {0, 1, 2, 1};
        const layer_t layer = moe_layer(DP_F64, 3, 4, 3, 2, 5, 0);
        block_t b = {.replicas = 4, .placement = good};
        lab_t lab;

        if (!conform_lab_open(&lab, t) || !moe_try(&lab, &b, &layer) ||
            !conform_area_put(&lab, &b.places, placements[i]) || !moe_fails(&b, ROUTE, DP_ERR_INVALID, "replica"))
            return;
    }
}

void a_comm_that_refuses_is_passed_on(conform_t *t)
{
    const layer_t layer = moe_layer(DP_F32, 7, 5, 8, 2, 3, 1);
    block_t b = {0}, refused = {.kind = conform_kernel_kind(t), .layer = layer};
    pass_t p;
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    lab.refuse = DP_ERR_PEER;
    refused.lab = &lab;
    EXPECT_STATUS(t, refused.kind->open(&refused), DP_ERR_PEER, "open on a comm that refuses");
    lab.refuse = DP_OK;
    if (!moe_try(&lab, &b, &layer) || !conform_pass_open(&p, &b, 0) || !conform_pass_step(&p, ROUTE))
        return;
    lab.refuse = DP_ERR_PEER;
    EXPECT_STATUS(t, conform_pass_call(&p, DISPATCH), DP_ERR_PEER, "dispatch on a comm that refuses");
    lab.refuse = DP_OK;
    if (!conform_lab_wait(&lab, b.kind->steps[DISPATCH].lane, "what comes before an exchange"))
        return;
    for (int i = DISPATCH; i <= COMBINE; i++)
        if (!conform_pass_step(&p, i))
            return;
    if (!conform_pass_output_is_right(&p) || !conform_pass_close(&p) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

#define IN_CONFIG(member) .offset = offsetof(dp_moe_config_t, member)
#define IN_SHAPE(member)  .in_shape = true, .offset = offsetof(dp_block_shape_t, member)

void refusals_name_the_setting(conform_t *t)
{
    static const struct {
        wrong_t wrong;
        dp_status_t status;
        const char *word;
    } wrongs[] = {
        {{.what = "dtype", IN_SHAPE(dtype), .bits = DP_I64}, DP_ERR_UNSUPPORTED, "DP_F32"},
        {{.what = "batch", IN_SHAPE(batch)}, DP_ERR_INVALID, "batch 0"},
        {{.what = "eps", IN_SHAPE(norm_eps), .bits = 0xbf800000}, DP_ERR_INVALID, "norm_eps -1"},
        {{.what = "experts", IN_CONFIG(experts), .bits = 2000000}, DP_ERR_INVALID, "2000000 experts"},
        {{.what = "width", IN_CONFIG(expert_hidden)}, DP_ERR_INVALID, "width 0"},
        {{.what = "top_k", IN_CONFIG(top_k), .bits = 9}, DP_ERR_INVALID, "top_k 9"},
        {{.what = "gate", IN_CONFIG(gate), .bits = 2}, DP_ERR_INVALID, "gate 2"},
        {{.what = "scale", IN_CONFIG(scale), .bits = 0xbf800000}, DP_ERR_INVALID, "scale -1"},
        {{.what = "alpha", IN_CONFIG(aux_alpha), .bits = 0x7f800000}, DP_ERR_INVALID, "aux_alpha inf"},
        {{.what = "rank", IN_CONFIG(comm_rank), .bits = 2}, DP_ERR_INVALID, "rank 2"},
        {{.what = "ranks", IN_CONFIG(comm_size), .bits = 3}, DP_ERR_INVALID, "cannot be spread evenly"},
        {{.what = "replicas", IN_CONFIG(replicas), .bits = 7}, DP_ERR_INVALID, "7 replicas of 8 experts"},
        {{.what = "tokens", IN_SHAPE(sequence), .bits = 0xffffffff}, DP_ERR_OVERFLOW, "4294967295"},
        {{.what = "shared", IN_CONFIG(shared_experts), .bits = 0xffffffff}, DP_ERR_OVERFLOW, "more rows or elements"},
        {{.what = "comm", IN_CONFIG(comm), .pointer = true}, DP_ERR_UNSUPPORTED, "exchanges"},
        {{.what = "groups", IN_CONFIG(route_groups), .bits = 3}, DP_ERR_INVALID, "route_groups 3"},
        {{.what = "limit", IN_CONFIG(route_limit)}, DP_ERR_INVALID, "route_limit 0"},
        {{.what = "larger limit", IN_CONFIG(route_limit), .bits = 5}, DP_ERR_INVALID, "route_limit 5"},
        {{.what = "top_k of a group", IN_CONFIG(top_k), .bits = 3}, DP_ERR_INVALID, "leave top_k 3"},
    };
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++) {
        block_t b = {.lab = &lab,
                     .kind = conform_kernel_kind(t),
                     .layer = moe_layer(DP_F64, 7, 5, 8, 2, 3, 1),
                     .wrong = &wrongs[i].wrong,
                     .ranks = 2};
        dp_status_t came;

        b.layer.groups = 4;
        b.layer.limit = 1;
        conform_forget_error();
        came = b.kind->open(&b);
        EXPECT(t,
               came == wrongs[i].status && strstr(conform_last_error(), wrongs[i].word) != NULL &&
                   strstr(conform_last_error(), t->plugin) != NULL,
               "a wrong %s returned %s, \"%s\": it has to be %s and to name %s and \"%s\"", wrongs[i].wrong.what,
               dp_status_name(came), conform_last_error(), dp_status_name(wrongs[i].status), t->plugin, wrongs[i].word);
    }
    conform_lab_close(&lab);
}

/* ---- numbers ---- */

void numbers_that_are_none_do_no_harm(conform_t *t)
{
    static const double values[] = {NAN, INFINITY, -INFINITY, 3e38, -3e38, 0};
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int i = 0; i < 36; i++) {
        layer_t layer = moe_layer(dtypes[i % 3], 5, 4, 8, 3, 2, 1);
        block_t b = {0};
        double *grads, sum = 0, bias;
        pass_t p;

        layer.gate = i / 3 % 2 == 0 ? DP_GATE_SOFTMAX : DP_GATE_SIGMOID;
        layer.groups = i / 6 % 2 == 0 ? 0 : 4;
        layer.limit = 2;
        if (!moe_try(&lab, &b, &layer)) {
            if (conform_failed(t))
                return;
            continue;
        }
        if (!conform_pass_open(&p, &b, 0))
            return;
        for (size_t k = 0; k < 20; k += 3)
            p.xs[0][k] = values[i / 6];
        bias = b.values[b.list[BIAS].offset + 1];
        if (i % 2 == 0)
            b.values[b.list[BIAS].offset + 1] = values[i / 6];
        if (!moe_write_params(&b) || !conform_area_write(&lab, &p.x, p.xs[0]))
            return;
        for (int step = ROUTE; step <= ROUTE_W; step++) {
            EXPECT_OK(t, conform_pass_call(&p, step));
            if (!conform_lab_wait(&lab, b.kind->steps[step].lane, b.kind->steps[step].name))
                return;
        }
        grads = conform_block_gradients(&b);
        for (size_t e = 0; grads != NULL && e < 8; e++) {
            const double count = grads[b.list[BIAS].offset + e];

            EXPECT(t, count >= 0 && count <= 5, "expert %zu was chosen %g times by 5 tokens", e, count);
            sum += count;
        }
        free(grads);
        EXPECT(t, sum == 15, "5 tokens chose %g times, not 15", sum);
        /* NaN is not equal to itself when it is looked at */
        b.values[b.list[BIAS].offset + 1] = bias;
        if (!moe_write_params(&b) || !conform_pass_close(&p) || !conform_block_close(&b))
            return;
    }
    conform_lab_close(&lab);
}

void scores_that_vanish_give_no_weight(conform_t *t)
{
    const layer_t layer = {.dtype = DP_F64,
                           .batch = 1,
                           .sequence = 1,
                           .hidden = 2,
                           .experts = 2,
                           .top_k = 2,
                           .width = 2,
                           .gate = DP_GATE_SIGMOID,
                           .normalize = 1,
                           .aux_alpha = 1};
    double *y, *aux, *grads;
    block_t b = {0};
    pass_t p;
    lab_t lab;

    if (!conform_lab_open(&lab, t) || !moe_try(&lab, &b, &layer) || !conform_pass_open(&p, &b, 0))
        return;
    for (size_t i = 0; i < 4; i++)
        b.values[b.list[ROUTER].offset + i] = (p.xs[0][i / 2] < 0 ? 1 : -1) * 1e4;
    if (!moe_write_params(&b) || !conform_pass_run(&p, FORWARD, WEIGHT))
        return;
    y = conform_area_read(&lab, &p.y);
    aux = conform_area_read(&lab, &p.aux);
    grads = conform_block_gradients(&b);
    EXPECT(t, y[0] == p.xs[0][0] && y[1] == p.xs[0][1], "y is %g %g, not x: %g %g", y[0], y[1], p.xs[0][0], p.xs[0][1]);
    EXPECT(t, *aux == KERNEL_AUX_BEGINS, "scores of 0 have an auxiliary loss of %g", *aux - KERNEL_AUX_BEGINS);
    for (size_t i = 0; i < b.sizes.param_count; i++)
        EXPECT(t, isfinite(grads[i]), "gradient %zu is %g", i, grads[i]);
    free(y);
    free(aux);
    free(grads);
    if (!conform_pass_close(&p) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

static int warnings;

static void count_warning(const dp_host_t *h, int level, const char *origin, const char *message)
{
    (void)h;
    (void)origin;
    warnings += level == DP_LOG_WARN && strstr(message, "top_k 1") != NULL;
}

void one_score_by_itself_is_no_weight(conform_t *t)
{
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    ((dp_host_t *)lab.host)->log = count_warning;
    for (uint32_t normalize = 0; normalize < 2; normalize++) {
        layer_t layer = moe_layer(DP_F64, 5, 4, 4, 1, 3, 1);
        double *grads, largest = 0;
        block_t b = {0};
        pass_t p;

        layer.normalize = normalize;
        layer.aux_alpha = 0;
        warnings = 0;
        if (!moe_try(&lab, &b, &layer) || !conform_pass_open(&p, &b, 0) || !conform_pass_run(&p, FORWARD, WEIGHT))
            return;
        EXPECT(t, warnings == (int)normalize, "normalize %u: %d warnings", normalize, warnings);
        grads = conform_block_gradients(&b);
        for (size_t i = 0; i < b.list[ROUTER].count; i++)
            largest = fmax(largest, fabs(grads[b.list[ROUTER].offset + i]));
        EXPECT(t, normalize ? largest < 1e-12 : largest > 1e-4, "normalize %u: the router's gradient is %g at most",
               normalize, largest);
        free(grads);
        if (!conform_pass_close(&p) || !conform_block_close(&b))
            return;
    }
    conform_lab_close(&lab);
}
