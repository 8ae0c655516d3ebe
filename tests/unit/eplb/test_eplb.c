/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_eplb.c: what must hold of placements of any size: every expert placed, counts right, groups
 * kept, replicas apart, the published method where it applies (against a plain version of it), and
 * the same answer from every vector width. */
#include <float.h>
#include <math.h>

#include "eplb/greedy.h"
#include "eplb/lanes.h"
#include "tests/support/eplb_case.h"
#include "tests/support/suite.h"

static uint64_t random_state;

static int32_t draw(int32_t low, int32_t high)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return low + (int32_t)((random_state >> 33) % (uint64_t)(high - low + 1));
}

/* Loads with ties, zeros and heavy experts. */
static float *draw_loads(size_t count)
{
    float *loads = malloc(count * sizeof(*loads));
    int32_t kind = draw(0, 3);

    for (size_t i = 0; i < count; i++) {
        loads[i] = kind == 0 ? (float)draw(0, 3) : (float)draw(0, 1000) / (float)draw(1, 7);
        if (kind == 2 && draw(0, 9) == 0)
            loads[i] *= 50.0f;
        if (kind == 3)
            loads[i] = expf((float)draw(-300, 300) / 100.0f);
    }
    return loads;
}

static dp_eplb_shape_t draw_shape(void)
{
    dp_eplb_shape_t s = {.struct_size = sizeof(s)};

    s.layers = draw(1, 5);
    s.experts = draw(1, 40);
    s.replicas = s.experts + draw(0, 30);
    s.gpus = draw(1, s.replicas < 12 ? s.replicas : 12);
    s.nodes = draw(1, s.gpus);
    s.groups = draw(1, s.experts);
    return s;
}

/* Sizes that the published code takes. */
static dp_eplb_shape_t draw_even_shape(void)
{
    dp_eplb_shape_t s = {.struct_size = sizeof(s)};
    int32_t each;

    s.layers = draw(1, 6);
    s.nodes = draw(1, 4);
    s.groups = s.nodes * draw(1, 4);
    s.experts = s.groups * draw(1, 12);
    s.gpus = s.nodes * draw(1, 7);
    for (each = 1; each * s.gpus < s.experts; each++)
        ;
    s.replicas = s.gpus * (each + draw(0, 3));
    return s;
}

/* The published method for sizes that divide, as plainly as it can be written. */
static void plain_pack(const float *weights, int32_t items, int32_t bins, int32_t *bin, int32_t *rank)
{
    int32_t each = items / bins, *order = malloc((size_t)items * sizeof(*order));
    float *load = calloc((size_t)bins, sizeof(*load));
    int32_t *fill = calloc((size_t)bins, sizeof(*fill));

    for (int32_t i = 0; i < items; i++) {
        int32_t at = i;
        for (; at > 0 && weights[order[at - 1]] < weights[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    for (int32_t k = 0; k < items; k++) {
        int32_t i = order[k], best = -1;
        if (each == 1) {
            bin[k] = k;
            rank[k] = 0;
            continue;
        }
        for (int32_t b = 0; b < bins; b++)
            if (fill[b] < each && (best < 0 || load[b] < load[best]))
                best = b;
        bin[i] = best;
        rank[i] = fill[best]++;
        load[best] += weights[i];
    }
    free(order);
    free(load);
    free(fill);
}

static void plain_layer(const dp_eplb_shape_t *s, int32_t groups, int32_t nodes, const float *weights, int32_t *slots)
{
    int32_t size = s->experts / groups, per_node = s->experts / nodes, node_slots = s->replicas / nodes;
    int32_t node_gpus = s->gpus / nodes, gpu_slots = s->replicas / s->gpus;
    float group_load[64] = {0.0f}, load[512] = {0.0f};
    int32_t bin[512], rank[512], expert[512], count[512], list[512];

    for (int32_t g = 0; g < groups; g++) {
        double sum = 0.0;
        for (int32_t e = 0; e < size; e++)
            sum += (double)weights[g * size + e];
        group_load[g] = (float)sum;
    }
    plain_pack(group_load, groups, nodes, bin, rank);
    for (int32_t g = 0; g < groups; g++)
        for (int32_t e = 0; e < size; e++)
            list[(bin[g] * (groups / nodes) + rank[g]) * size + e] = g * size + e;
    for (int32_t n = 0; n < nodes; n++) {
        for (int32_t e = 0; e < per_node; e++) {
            expert[e] = e;
            count[e] = 1;
        }
        for (int32_t i = per_node; i < node_slots; i++) {
            int32_t best = 0;
            for (int32_t e = 1; e < per_node; e++)
                if (weights[list[n * per_node + e]] / (float)count[e] >
                    weights[list[n * per_node + best]] / (float)count[best])
                    best = e;
            expert[i] = best;
            count[best]++;
        }
        for (int32_t i = 0; i < node_slots; i++)
            load[i] = weights[list[n * per_node + expert[i]]] / (float)count[expert[i]];
        plain_pack(load, node_slots, node_gpus, bin, rank);
        for (int32_t i = 0; i < node_slots; i++)
            slots[n * node_slots + bin[i] * gpu_slots + rank[i]] = list[n * per_node + expert[i]];
    }
}

START_TEST(even_sizes_give_the_published_method)
{
    for (int32_t trial = 0; trial < 60; trial++) {
        dp_eplb_shape_t s;
        eplb_desk_t desk;
        dp_eplb_options_t options = {.struct_size = sizeof(options)};
        int32_t *slots;
        float *loads;

        random_state = (uint64_t)(100 * _i + trial + 1);
        s = draw_even_shape();
        loads = draw_loads((size_t)s.layers * (size_t)s.experts);
        slots = malloc((size_t)s.replicas * sizeof(*slots));
        eplb_desk_open(&s, &desk);
        for (options.policy = DP_EPLB_HIERARCHICAL; options.policy <= DP_EPLB_GLOBAL; options.policy++) {
            bool global = options.policy == DP_EPLB_GLOBAL;

            ck_assert_int_eq(eplb_rebalance(&s, &options, loads, &desk), DP_OK);
            eplb_check_valid(&s, &desk.placement);
            for (int32_t layer = 0; layer < s.layers; layer++) {
                plain_layer(&s, global ? 1 : s.groups, global ? 1 : s.nodes, loads + layer * s.experts, slots);
                ck_assert_int_eq(memcmp(slots, desk.placement.physical_to_logical + layer * s.replicas,
                                        (size_t)s.replicas * sizeof(*slots)),
                                 0);
            }
        }
        eplb_desk_close(&desk);
        free(slots);
        free(loads);
    }
}
END_TEST

/* GPUs that may hold an expert: those of its node, or all. */
static int32_t gpus_for(const dp_eplb_shape_t *s, int32_t policy, int32_t slot)
{
    int32_t first, count;

    if (policy == DP_EPLB_GLOBAL)
        return s->gpus;
    dp_eplb_node_gpus(s, eplb_node_of_slot(s, slot), &first, &count);
    return count;
}

static void check_apart(const dp_eplb_shape_t *s, const dp_eplb_placement_t *p)
{
    for (int32_t layer = 0; layer < s->layers; layer++) {
        const int32_t *slots = p->physical_to_logical + layer * s->replicas;

        for (int32_t gpu = 0; gpu < s->gpus; gpu++) {
            int32_t first, count;

            dp_eplb_gpu_slots(s, gpu, &first, &count);
            for (int32_t a = first; a < first + count; a++) {
                int32_t replicas = p->expert_count[layer * s->experts + slots[a]];
                int32_t gpus = gpus_for(s, p->policy, a), here = 0;

                for (int32_t b = first; b < first + count; b++)
                    here += slots[b] == slots[a];
                ck_assert_int_le(here, (replicas + gpus - 1) / gpus);
            }
        }
    }
}

/* More replicas than GPUs are for when nothing else can fill the slots. */
static void check_counts_even(const dp_eplb_shape_t *s, const dp_eplb_placement_t *p)
{
    for (int32_t layer = 0; p->policy == DP_EPLB_GLOBAL && layer < s->layers; layer++)
        for (int32_t a = 0; a < s->experts; a++)
            for (int32_t b = 0; b < s->experts; b++)
                if (p->expert_count[layer * s->experts + a] > s->gpus)
                    ck_assert_int_ge(p->expert_count[layer * s->experts + b], s->gpus);
}

START_TEST(any_sizes_give_valid_placements)
{
    int32_t fitted = 0;

    for (int32_t trial = 0; trial < 150; trial++) {
        dp_eplb_options_t options = {.struct_size = sizeof(options)};
        dp_eplb_shape_t s;
        eplb_desk_t desk;
        float *loads;
        dp_status_t status;

        random_state = (uint64_t)(1000 * _i + trial + 7);
        s = draw_shape();
        loads = draw_loads((size_t)s.layers * (size_t)s.experts);
        options.policy = draw(DP_EPLB_AUTO, DP_EPLB_GLOBAL);
        options.distinct = draw(0, 1);
        options.search_steps = draw(0, 1) ? draw(1, 60) : 0;
        eplb_desk_open(&s, &desk);
        status = eplb_rebalance(&s, &options, loads, &desk);
        if (status == DP_OK) {
            fitted += options.policy == DP_EPLB_HIERARCHICAL;
            eplb_check_valid(&s, &desk.placement);
            if (desk.placement.policy == DP_EPLB_HIERARCHICAL)
                eplb_check_groups(&s, desk.placement.physical_to_logical);
            if (options.distinct) {
                check_apart(&s, &desk.placement);
                check_counts_even(&s, &desk.placement);
            }
        } else { /* groups that do not fit their nodes */
            ck_assert_int_eq(status, DP_ERR_INVALID);
            ck_assert_int_eq(options.policy, DP_EPLB_HIERARCHICAL);
            ck_assert_msg(strstr(dp_last_error(), "global policy") != NULL, "%s", dp_last_error());
        }
        eplb_desk_close(&desk);
        free(loads);
    }
    ck_assert_int_gt(fitted, 0);
}
END_TEST

START_TEST(order_of_experts_does_not_matter_but_for_ties)
{
    dp_eplb_shape_t s = {sizeof(s), 1, 24, 32, 4, 2, 8};
    dp_eplb_options_t options = {.struct_size = sizeof(options), .policy = DP_EPLB_GLOBAL};
    float loads[24], mirrored[24];
    eplb_desk_t desk, other;

    random_state = 5;
    for (int32_t e = 0; e < 24; e++)
        mirrored[23 - e] = loads[e] = (float)(10 + 3 * e * e) + (float)draw(0, 99) / 128.0f;
    eplb_desk_open(&s, &desk);
    eplb_desk_open(&s, &other);
    ck_assert_int_eq(eplb_rebalance(&s, &options, loads, &desk), DP_OK);
    ck_assert_int_eq(eplb_rebalance(&s, &options, mirrored, &other), DP_OK);
    for (int32_t e = 0; e < 24; e++)
        ck_assert_int_eq(desk.placement.expert_count[e], other.placement.expert_count[23 - e]);
    ck_assert_double_eq(eplb_peak(&s, loads, desk.placement.physical_to_logical),
                        eplb_peak(&s, mirrored, other.placement.physical_to_logical));
    eplb_desk_close(&desk);
    eplb_desk_close(&other);
}
END_TEST

/* ---- vectors ---- */

START_TEST(every_width_sorts_and_packs_alike)
{
    for (int32_t k = 0; dp__lanes_width(k) != NULL; k++) {
        const dp__eplb_lanes_t *lanes = dp__lanes_width(k);
        static _Alignas(DP__LANES_ALIGNMENT) int32_t keys[256 + DP__LANES_MOST], rank[256 + DP__LANES_MOST];

        for (int32_t n = 1; n <= 256; n += n < 40 ? 1 : 27) {
            int32_t first = 0;

            random_state = (uint64_t)n;
            for (int32_t i = 0; i < n; i++)
                keys[i] = n % 2 ? draw(0, 9) : draw(0, INT32_MAX - 1);
            for (int32_t i = n; i < n + DP__LANES_MOST; i++)
                keys[i] = -1;
            lanes->rank(keys, n, rank);
            for (int32_t i = 0; i < n; i++) {
                int32_t before = 0;
                for (int32_t j = 0; j < n; j++)
                    before += keys[j] > keys[i] || (keys[j] == keys[i] && j < i);
                ck_assert_int_eq(rank[i], before);
                first = before == 0 ? i : first;
            }
            ck_assert_int_eq(lanes->first_most(keys, n), first);
        }
    }
}
END_TEST

START_TEST(lanes_do_not_mix)
{
    enum { ITEMS = 30, BINS = 6, EACH = 5 };
    static _Alignas(DP__LANES_ALIGNMENT) float share[ITEMS * DP__LANES_MOST], load[BINS * DP__LANES_MOST];
    static _Alignas(DP__LANES_ALIGNMENT) int32_t room[BINS * DP__LANES_MOST], bin[ITEMS * DP__LANES_MOST];

    for (int32_t k = 0; dp__lanes_width(k) != NULL; k++) {
        const dp__eplb_lanes_t *lanes = dp__lanes_width(k);
        int32_t width = lanes->lanes;

        random_state = 11;
        for (int32_t lane = 0; lane < width; lane++) {
            float next = 100.0f;
            for (int32_t i = 0; i < ITEMS; i++) {
                share[i * width + lane] = next;
                next -= lane == 0 ? 0.0f : (float)draw(0, 3);
            }
        }
        lanes->pack(share, ITEMS, BINS, EACH, load, room, bin);
        for (int32_t lane = 0; lane < width; lane++) {
            float sums[BINS] = {0.0f};
            int32_t fill[BINS] = {0};

            for (int32_t i = 0; i < ITEMS; i++) {
                int32_t best = -1;
                for (int32_t b = 0; b < BINS; b++)
                    if (fill[b] < EACH && (best < 0 || sums[b] < sums[best]))
                        best = b;
                ck_assert_int_eq(bin[i * width + lane], best);
                sums[best] += share[i * width + lane];
                fill[best]++;
            }
        }
    }
}
END_TEST

/* Side by side in every width, and one after the other, which is other code. */
START_TEST(every_width_plans_alike)
{
    for (int32_t trial = 0; trial < 40; trial++) {
        dp_eplb_shape_t s;
        dp__eplb_sizes_t sizes;
        dp__eplb_scratch_t scratch;
        eplb_desk_t desk;
        size_t slots;
        int32_t *first, *next;
        float *loads;

        random_state = (uint64_t)trial + 300;
        s = draw_even_shape();
        slots = (size_t)s.layers * (size_t)s.replicas;
        loads = draw_loads((size_t)s.layers * (size_t)s.experts);
        first = malloc(slots * sizeof(*first));
        next = malloc(slots * sizeof(*next));
        eplb_desk_open(&s, &desk);
        ck_assert_int_eq(dp__eplb_scratch_cut(&s, desk.workspace, desk.bytes, &sizes, &scratch), DP_OK);
        scratch.at_once = 1;
        ck_assert_int_eq(
            dp__eplb_greedy(&sizes, false, loads, &(dp__eplb_rows_t){.physical_to_logical = first}, &scratch), DP_OK);
        for (int32_t k = 0; dp__lanes_width(k) != NULL; k++) {
            scratch.lanes = dp__lanes_width(k);
            scratch.at_once = scratch.lanes->lanes;
            memset(next, 0xff, slots * sizeof(*next));
            ck_assert_int_eq(
                dp__eplb_greedy(&sizes, false, loads, &(dp__eplb_rows_t){.physical_to_logical = next}, &scratch),
                DP_OK);
            ck_assert_mem_eq(next, first, slots * sizeof(*next));
        }
        eplb_desk_close(&desk);
        free(loads);
        free(first);
        free(next);
    }
}
END_TEST

/* ---- measuring, smoothing, indexing, transfers ---- */

START_TEST(measures_by_hand)
{
    /* GPUs of 2, 1, 1 slots; nodes of 2, 1 GPUs */
    dp_eplb_shape_t s = {sizeof(s), 2, 3, 4, 1, 2, 3};
    const float loads[6] = {6, 2, 4, 0, 0, 0};
    const int32_t slots[8] = {0, 1, 0, 2, 0, 0, 1, 2};
    dp_eplb_balance_t balance = {.struct_size = sizeof(balance)};
    eplb_desk_t desk;

    eplb_desk_open(&s, &desk);
    ck_assert_int_eq(dp_eplb_measure(&s, loads, slots, &balance, desk.gpus, desk.nodes, desk.workspace, desk.bytes),
                     DP_OK);
    ck_assert_double_eq(desk.gpus[0], 5.0);
    ck_assert_double_eq(desk.gpus[1], 3.0);
    ck_assert_double_eq(desk.gpus[2], 4.0);
    ck_assert_double_eq(desk.nodes[0], 8.0);
    ck_assert_double_eq(desk.nodes[1], 4.0);
    ck_assert_double_eq(desk.gpus[3] + desk.gpus[4] + desk.gpus[5], 0.0);
    ck_assert_double_eq_tol(balance.gpu, 5.0 / 4.0, 1e-12);
    ck_assert_double_eq_tol(balance.gpu_worst, 5.0 / 4.0, 1e-12);
    ck_assert_double_eq_tol(balance.node, 8.0 / 6.0, 1e-12);
    ck_assert_double_eq_tol(balance.node_worst, 8.0 / 6.0, 1e-12);
    eplb_desk_close(&desk);
}
END_TEST

START_TEST(smooths)
{
    float average[2] = {NAN, 7}, loads[2] = {4, 8}, later[2] = {8, 0}, bad[2] = {1, -1};

    ck_assert_int_eq(dp_eplb_smooth(average, loads, 2, 0.75, 0), DP_OK);
    ck_assert_float_eq(average[0], 4.0f);
    ck_assert_int_eq(dp_eplb_smooth(average, later, 2, 0.75, 1), DP_OK);
    ck_assert_float_eq(average[0], 5.0f);
    ck_assert_float_eq(average[1], 6.0f);
    ck_assert_int_eq(dp_eplb_smooth(average, bad, 2, 0.75, 2), DP_ERR_NUMERIC);
    ck_assert_float_eq(average[0], 5.0f);
    ck_assert_int_eq(dp_eplb_smooth(average, later, 2, 1.0, 2), DP_ERR_INVALID);
    ck_assert_int_eq(dp_eplb_smooth(average, later, 2, NAN, 2), DP_ERR_INVALID);
    ck_assert_int_eq(dp_eplb_smooth(average, later, 2, 0.0, 2), DP_OK);
    ck_assert_float_eq(average[0], 8.0f);
}
END_TEST

START_TEST(indexes_a_map)
{
    dp_eplb_shape_t s = {sizeof(s), 1, 4, 6, 2, 2, 3};
    const int32_t apart[6] = {1, 0, 0, 1, 3, 2}, mixed[6] = {1, 0, 0, 2, 3, 1}, short_of_one[6] = {1, 0, 0, 1, 3, 3};
    const int32_t slots_of_1[2] = {0, 3};
    eplb_desk_t desk;

    eplb_desk_open(&s, &desk);
    memcpy(desk.placement.physical_to_logical, apart, sizeof(apart));
    ck_assert_int_eq(dp_eplb_index(&s, &desk.placement, desk.workspace, desk.bytes), DP_OK);
    ck_assert_int_eq(desk.placement.policy, DP_EPLB_HIERARCHICAL);
    ck_assert_int_eq(desk.placement.max_count, 2);
    eplb_check_valid(&s, &desk.placement);
    ck_assert_mem_eq(desk.placement.logical_to_physical + 2, slots_of_1, sizeof(slots_of_1));
    memcpy(desk.placement.physical_to_logical, mixed, sizeof(mixed));
    ck_assert_int_eq(dp_eplb_index(&s, &desk.placement, desk.workspace, desk.bytes), DP_OK);
    ck_assert_int_eq(desk.placement.policy, DP_EPLB_GLOBAL);
    memcpy(desk.placement.physical_to_logical, short_of_one, sizeof(short_of_one));
    ck_assert_int_eq(dp_eplb_index(&s, &desk.placement, desk.workspace, desk.bytes), DP_ERR_INVALID);
    ck_assert_msg(strstr(dp_last_error(), "expert 2") != NULL, "%s", dp_last_error());
    desk.placement.physical_to_logical[4] = 4;
    ck_assert_int_eq(dp_eplb_index(&s, &desk.placement, desk.workspace, desk.bytes), DP_ERR_INVALID);
    ck_assert_msg(strstr(dp_last_error(), "slot 4") != NULL, "%s", dp_last_error());
    eplb_desk_close(&desk);
}
END_TEST

START_TEST(transfers_come_from_near)
{
    dp_eplb_shape_t s = {sizeof(s), 1, 4, 8, 1, 2, 4}; /* two slots a GPU, two GPUs a node */
    const int32_t from[8] = {0, 1, 2, 0, 3, 1, 3, 2}, to[8] = {0, 2, 2, 1, 1, 0, 3, 0};
    const int32_t expected[8] = {-1, 2, -1, 1, 5, -2, -1, -2};
    struct {
        dp_eplb_moves_t known;
        int64_t more; /* of a newer caller */
    } longer = {{.struct_size = sizeof(longer)}, 7};
    dp_eplb_moves_t moves = {.struct_size = sizeof(moves)}, shorter = {.struct_size = DP_EPLB_MOVES_MIN - 1};
    int32_t sources[8], reads[8] = {0};
    eplb_desk_t desk;

    eplb_desk_open(&s, &desk);
    ck_assert_int_eq(dp_eplb_transfers(&s, from, to, 10, sources, &moves, desk.workspace, desk.bytes), DP_OK);
    for (int32_t p = 0; p < 8; p++) {
        if (expected[p] > -2)
            ck_assert_int_eq(sources[p], expected[p]);
        else
            ck_assert_int_eq(from[sources[p]], 0);
        if (sources[p] >= 0)
            reads[sources[p]]++;
    }
    /* the two slots that need expert 0 do not read the same replica */
    ck_assert_int_eq(reads[0], 1);
    ck_assert_int_eq(reads[3], 1);
    /* slots 1, 3, 5 and 7; slot 4 has its expert on the same GPU */
    ck_assert_int_eq(moves.replicas, 4);
    ck_assert_int_eq(moves.between_nodes, 2);
    ck_assert_int_eq(moves.bytes, 40);
    ck_assert_int_eq(moves.bytes_between_nodes, 20);
    ck_assert_int_eq(moves.layers_moved, 1);
    ck_assert_int_eq(dp_eplb_transfers(&s, from, to, INT64_MAX / 4, NULL, NULL, desk.workspace, desk.bytes),
                     DP_ERR_INVALID);
    ck_assert_int_eq(dp_eplb_transfers(&s, from, to, 10, NULL, &longer.known, desk.workspace, desk.bytes), DP_OK);
    ck_assert_int_eq(longer.known.bytes, moves.bytes);
    ck_assert_uint_eq(longer.known.struct_size, sizeof(longer));
    ck_assert_int_eq(longer.more, 7);
    ck_assert_int_eq(dp_eplb_transfers(&s, from, to, 10, NULL, &shorter, desk.workspace, desk.bytes), DP_ERR_INVALID);
    eplb_desk_close(&desk);
}
END_TEST

/* ---- errors ---- */

static void refused(const dp_eplb_shape_t *s, const char *word)
{
    size_t bytes = 77;

    ck_assert_int_eq(dp_eplb_workspace_bytes(s, &bytes), DP_ERR_INVALID);
    ck_assert_msg(strstr(dp_last_error(), word) != NULL, "%s", dp_last_error());
    ck_assert_uint_eq(bytes, 77);
}

START_TEST(impossible_sizes_are_refused)
{
    const dp_eplb_shape_t good = {sizeof(good), 2, 8, 12, 4, 2, 4};
    dp_eplb_shape_t s;

    refused(NULL, "shape");
    s = good, s.struct_size = 0, refused(&s, "struct_size");
    s = good, s.layers = 0, refused(&s, "layers");
    s = good, s.layers = DP_EPLB_LIMIT + 1, refused(&s, "layers");
    s = good, s.experts = -1, refused(&s, "experts");
    s = good, s.replicas = 7, refused(&s, "7 replicas");
    s = good, s.replicas = INT32_MAX, refused(&s, "replicas");
    s = good, s.groups = 9, refused(&s, "9 groups");
    s = good, s.nodes = 5, refused(&s, "5 nodes");
    s = good, s.gpus = 13, refused(&s, "13 GPUs");
}
END_TEST

START_TEST(bad_input_is_refused)
{
    dp_eplb_shape_t s = {sizeof(s), 2, 8, 12, 4, 2, 4};
    dp_eplb_options_t options = {.struct_size = sizeof(options)};
    dp_eplb_placement_t none = {.struct_size = sizeof(none)};
    float loads[16] = {1, 2, 3};
    eplb_desk_t desk;

    eplb_desk_open(&s, &desk);
    ck_assert_int_eq(dp_eplb_rebalance(&s, NULL, loads, &desk.placement, desk.workspace, desk.bytes - 1),
                     DP_ERR_INVALID);
    ck_assert_msg(strstr(dp_last_error(), "workspace") != NULL, "%s", dp_last_error());
    ck_assert_int_eq(dp_eplb_rebalance(&s, NULL, loads, &desk.placement, NULL, desk.bytes), DP_ERR_INVALID);
    ck_assert_int_eq(eplb_rebalance(&s, NULL, NULL, &desk), DP_ERR_INVALID);
    ck_assert_int_eq(dp_eplb_rebalance(&s, NULL, loads, &none, desk.workspace, desk.bytes), DP_ERR_INVALID);
    ck_assert_int_eq(dp_eplb_rebalance(&s, NULL, loads, NULL, desk.workspace, desk.bytes), DP_ERR_INVALID);
    options.policy = 3;
    ck_assert_int_eq(eplb_rebalance(&s, &options, loads, &desk), DP_ERR_INVALID);
    options.policy = 0, options.search_steps = -1;
    ck_assert_int_eq(eplb_rebalance(&s, &options, loads, &desk), DP_ERR_INVALID);
    loads[11] = NAN;
    ck_assert_int_eq(eplb_rebalance(&s, NULL, loads, &desk), DP_ERR_NUMERIC);
    ck_assert_msg(strstr(dp_last_error(), "layer 1") != NULL && strstr(dp_last_error(), "expert 3") != NULL, "%s",
                  dp_last_error());
    loads[11] = INFINITY;
    ck_assert_int_eq(eplb_rebalance(&s, NULL, loads, &desk), DP_ERR_NUMERIC);
    loads[11] = -FLT_MIN;
    ck_assert_int_eq(eplb_rebalance(&s, NULL, loads, &desk), DP_ERR_INVALID);
    loads[11] = FLT_MAX;
    ck_assert_int_eq(eplb_rebalance(&s, NULL, loads, &desk), DP_ERR_NUMERIC);
    loads[11] = FLT_MAX / 4;
    ck_assert_int_eq(eplb_rebalance(&s, NULL, loads, &desk), DP_OK);
    eplb_check_valid(&s, &desk.placement);
    loads[11] = -0.0f;
    ck_assert_int_eq(eplb_rebalance(&s, NULL, loads, &desk), DP_OK);
    eplb_check_valid(&s, &desk.placement);
    eplb_desk_close(&desk);
}
END_TEST

START_TEST(outputs_not_wanted_and_workspace_anywhere)
{
    dp_eplb_shape_t s = {sizeof(s), 3, 16, 24, 4, 2, 8};
    dp_eplb_placement_t bare = {.struct_size = sizeof(bare)};
    eplb_desk_t desk;
    float *loads;
    char *odd;

    random_state = 3;
    loads = draw_loads(48);
    eplb_desk_open(&s, &desk);
    bare.physical_to_logical = malloc(72 * sizeof(int32_t));
    odd = malloc(desk.bytes + 1);
    ck_assert_int_eq(eplb_rebalance(&s, NULL, loads, &desk), DP_OK);
    ck_assert_int_eq(dp_eplb_rebalance(&s, NULL, loads, &bare, odd + 1, desk.bytes), DP_OK);
    ck_assert_mem_eq(bare.physical_to_logical, desk.placement.physical_to_logical, 72 * sizeof(int32_t));
    ck_assert_int_eq(bare.max_count, desk.placement.max_count);
    free(odd);
    free(bare.physical_to_logical);
    free(loads);
    eplb_desk_close(&desk);
}
END_TEST

/* One layer of the largest size, and the smallest there is. */
START_TEST(smallest_and_large)
{
    const dp_eplb_shape_t shapes[] = {{sizeof(shapes[0]), 1, 1, 1, 1, 1, 1},
                                      {sizeof(shapes[0]), 1, 1, 5, 1, 1, 2},
                                      {sizeof(shapes[0]), 2, 600, 2000, 8, 4, 1000},
                                      {sizeof(shapes[0]), 1, 40000, DP_EPLB_LIMIT, 16, 8, 64},
                                      {sizeof(shapes[0]), 1, DP_EPLB_LIMIT, DP_EPLB_LIMIT, DP_EPLB_LIMIT, 4, 16384}};

    for (size_t k = 0; k < sizeof(shapes) / sizeof(shapes[0]); k++) {
        const dp_eplb_shape_t *s = &shapes[k];
        int64_t slots = 0;
        eplb_desk_t desk;
        dp_eplb_balance_t balance = {.struct_size = sizeof(balance)};
        size_t experts = (size_t)s->layers * (size_t)s->experts;
        float *loads = malloc(experts * sizeof(*loads));

        random_state = 9;
        for (size_t i = 0; i < experts; i++)
            loads[i] = (float)draw(0, 1000);
        ck_assert_int_eq(dp_eplb_workspace_bytes(s, &desk.bytes), DP_OK);
        desk.workspace = malloc(desk.bytes);
        desk.placement = (dp_eplb_placement_t){.struct_size = sizeof(desk.placement)};
        desk.placement.physical_to_logical = malloc((size_t)s->layers * (size_t)s->replicas * sizeof(int32_t));
        desk.placement.expert_count = malloc(experts * sizeof(int32_t));
        ck_assert_int_eq(eplb_rebalance(s, NULL, loads, &desk), DP_OK);
        for (size_t i = 0; i < experts; i++) {
            ck_assert_int_ge(desk.placement.expert_count[i], 1);
            slots += desk.placement.expert_count[i];
        }
        ck_assert_int_eq(slots, s->layers * (int64_t)s->replicas);
        ck_assert_int_eq(dp_eplb_measure(s, loads, desk.placement.physical_to_logical, &balance, NULL, NULL,
                                         desk.workspace, desk.bytes),
                         DP_OK);
        ck_assert_double_ge(balance.gpu, 1.0 - 1e-9);
        free(desk.placement.physical_to_logical);
        free(desk.placement.expert_count);
        free(desk.workspace);
        free(loads);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("eplb");
    TCase *random = tcase_create("random");

    tcase_add_loop_test(random, even_sizes_give_the_published_method, 0, 4);
    tcase_add_loop_test(random, any_sizes_give_valid_placements, 0, 4);
    suite_add_tcase(suite, random);
    SUITE_ADD(suite, order_of_experts_does_not_matter_but_for_ties);
    SUITE_ADD(suite, every_width_sorts_and_packs_alike);
    SUITE_ADD(suite, lanes_do_not_mix);
    SUITE_ADD(suite, every_width_plans_alike);
    SUITE_ADD(suite, measures_by_hand);
    SUITE_ADD(suite, smooths);
    SUITE_ADD(suite, indexes_a_map);
    SUITE_ADD(suite, transfers_come_from_near);
    SUITE_ADD(suite, impossible_sizes_are_refused);
    SUITE_ADD(suite, bad_input_is_refused);
    SUITE_ADD(suite, outputs_not_wanted_and_workspace_anywhere);
    SUITE_ADD(suite, smallest_and_large);
    return suite_run(suite);
}
