/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_eplb_better.c: quality mode and plans with few moves, against greedy plans and, where sizes
 * are small, against all placements there are. */
#include <math.h>

#include "tests/support/eplb_case.h"
#include "tests/support/suite.h"

static uint64_t random_state;

static int32_t draw(int32_t low, int32_t high)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return low + (int32_t)((random_state >> 33) % (uint64_t)(high - low + 1));
}

static float *draw_loads(size_t count)
{
    float *loads = malloc(count * sizeof(*loads));

    for (size_t i = 0; i < count; i++)
        loads[i] = floorf(100.0f * expf((float)draw(-150, 150) / 100.0f));
    return loads;
}

static double mean_of(const dp_eplb_shape_t *s, const float *loads)
{
    double sum = 0.0;

    for (int32_t e = 0; e < s->experts; e++)
        sum += (double)loads[e];
    return sum / s->gpus;
}

START_TEST(search_is_never_worse_and_repeats)
{
    double greedy_sum = 0.0, searched_sum = 0.0;

    for (int32_t trial = 0; trial < 40; trial++) {
        dp_eplb_shape_t s = {.struct_size = sizeof(s), .layers = 2};
        dp_eplb_options_t options = {.struct_size = sizeof(options)};
        eplb_desk_t greedy, searched, again;
        float *loads;

        random_state = (uint64_t)trial + 1;
        s.experts = draw(4, 40);
        s.replicas = s.experts + draw(0, 20);
        s.gpus = draw(2, s.replicas < 10 ? s.replicas : 10);
        s.nodes = draw(1, s.gpus);
        s.groups = draw(1, s.experts);
        loads = draw_loads((size_t)s.layers * (size_t)s.experts);
        options.distinct = draw(0, 1);
        eplb_desk_open(&s, &greedy);
        eplb_desk_open(&s, &searched);
        eplb_desk_open(&s, &again);
        ck_assert_int_eq(eplb_rebalance(&s, &options, loads, &greedy), DP_OK);
        options.search_steps = 200;
        options.seed = (uint64_t)trial;
        ck_assert_int_eq(eplb_rebalance(&s, &options, loads, &searched), DP_OK);
        ck_assert_int_eq(eplb_rebalance(&s, &options, loads, &again), DP_OK);
        ck_assert_mem_eq(searched.placement.physical_to_logical, again.placement.physical_to_logical,
                         (size_t)(s.layers * s.replicas) * sizeof(int32_t));
        eplb_check_valid(&s, &searched.placement);
        ck_assert_int_eq(searched.placement.policy, greedy.placement.policy);
        if (searched.placement.policy == DP_EPLB_HIERARCHICAL)
            eplb_check_groups(&s, searched.placement.physical_to_logical);
        for (int32_t layer = 0; layer < s.layers; layer++) {
            const float *row = loads + layer * s.experts;
            double before = eplb_peak(&s, row, greedy.placement.physical_to_logical + layer * s.replicas);
            double after = eplb_peak(&s, row, searched.placement.physical_to_logical + layer * s.replicas);

            ck_assert_double_le(after, before * (1 + 1e-12));
            greedy_sum += before / mean_of(&s, row);
            searched_sum += after / mean_of(&s, row);
        }
        eplb_desk_close(&greedy);
        eplb_desk_close(&searched);
        eplb_desk_close(&again);
        free(loads);
    }
    ck_assert_double_lt(searched_sum, greedy_sum * 0.97);
}
END_TEST

START_TEST(search_in_time_is_never_worse)
{
    dp_eplb_shape_t s = {sizeof(s), 4, 64, 80, 8, 4, 16};
    dp_eplb_options_t options = {.struct_size = sizeof(options), .search_ns = 3000000};
    eplb_desk_t greedy, searched;
    float *loads;

    random_state = 77;
    loads = draw_loads(256);
    eplb_desk_open(&s, &greedy);
    eplb_desk_open(&s, &searched);
    ck_assert_int_eq(eplb_rebalance(&s, NULL, loads, &greedy), DP_OK);
    ck_assert_int_eq(eplb_rebalance(&s, &options, loads, &searched), DP_OK);
    eplb_check_valid(&s, &searched.placement);
    eplb_check_groups(&s, searched.placement.physical_to_logical);
    for (int32_t layer = 0; layer < 4; layer++)
        ck_assert_double_le(eplb_peak(&s, loads + layer * 64, searched.placement.physical_to_logical + layer * 80),
                            eplb_peak(&s, loads + layer * 64, greedy.placement.physical_to_logical + layer * 80) *
                                (1 + 1e-12));
    eplb_desk_close(&greedy);
    eplb_desk_close(&searched);
    free(loads);
}
END_TEST

/* ---- all placements of a small layer ---- */

static int32_t moves_between(const dp_eplb_shape_t *s, const int32_t *from, const int32_t *to)
{
    int32_t moves = 0;

    for (int32_t gpu = 0; gpu < s->gpus; gpu++) {
        int32_t first, count;

        dp_eplb_gpu_slots(s, gpu, &first, &count);
        for (int32_t e = 0; e < s->experts; e++) {
            int32_t had = 0, has = 0;
            for (int32_t p = first; p < first + count; p++) {
                had += from[p] == e;
                has += to[p] == e;
            }
            moves += has > had ? has - had : 0;
        }
    }
    return moves;
}

typedef struct all_placements {
    const dp_eplb_shape_t *shape;
    const float *loads;
    const int32_t *origin; /* NULL: no moves to count */
    double limit;
    double best_peak;
    int32_t fewest; /* moves of those within the limit, -1: there is none */
} all_placements_t;

static void try_all(all_placements_t *all, int32_t *slots, int32_t at)
{
    const dp_eplb_shape_t *s = all->shape;

    if (at < s->replicas) {
        int32_t gpu_start = at, first, count;

        for (int32_t gpu = 0; gpu < s->gpus; gpu++) {
            dp_eplb_gpu_slots(s, gpu, &first, &count);
            if (first <= at)
                gpu_start = first;
        }
        /* the order on a GPU does not matter */
        for (int32_t e = at > gpu_start ? slots[at - 1] : 0; e < s->experts; e++) {
            slots[at] = e;
            try_all(all, slots, at + 1);
        }
        return;
    }
    for (int32_t e = 0; e < s->experts; e++) {
        bool there = false;
        for (int32_t p = 0; p < s->replicas; p++)
            there |= slots[p] == e;
        if (!there)
            return;
    }
    double peak = eplb_peak(s, all->loads, slots);
    if (peak < all->best_peak)
        all->best_peak = peak;
    if (all->origin != NULL && peak <= all->limit * (1 + 1e-9)) {
        int32_t moves = moves_between(s, all->origin, slots);
        if (all->fewest < 0 || moves < all->fewest)
            all->fewest = moves;
    }
}

static dp_eplb_shape_t draw_small(void)
{
    dp_eplb_shape_t s = {.struct_size = sizeof(s), .layers = 1, .groups = 1, .nodes = 1};

    s.experts = draw(2, 5);
    s.replicas = s.experts + draw(0, 7 - s.experts);
    s.gpus = draw(2, s.replicas < 4 ? s.replicas : 4);
    return s;
}

START_TEST(search_finds_the_optimum_of_small_cases)
{
    int32_t greedy_missed = 0;

    for (int32_t trial = 0; trial < 60; trial++) {
        dp_eplb_shape_t s;
        dp_eplb_options_t options = {.struct_size = sizeof(options), .search_steps = 3000};
        eplb_desk_t desk;
        int32_t slots[16];
        float *loads;
        double found;

        random_state = (uint64_t)trial + 1000;
        s = draw_small();
        loads = draw_loads((size_t)s.experts);
        all_placements_t all = {.shape = &s, .loads = loads, .best_peak = INFINITY, .fewest = -1};
        try_all(&all, slots, 0);
        eplb_desk_open(&s, &desk);
        ck_assert_int_eq(eplb_rebalance(&s, NULL, loads, &desk), DP_OK);
        greedy_missed += eplb_peak(&s, loads, desk.placement.physical_to_logical) > all.best_peak * (1 + 1e-9);
        ck_assert_int_eq(eplb_rebalance(&s, &options, loads, &desk), DP_OK);
        found = eplb_peak(&s, loads, desk.placement.physical_to_logical);
        ck_assert_msg(found <= all.best_peak * (1 + 1e-9), "trial %d: %g, the optimum is %g", trial, found,
                      all.best_peak);
        eplb_desk_close(&desk);
        free(loads);
    }
    ck_assert_int_gt(greedy_missed, 5); /* else there was nothing to find */
}
END_TEST

START_TEST(updates_of_small_cases_are_near_the_fewest_moves)
{
    int32_t fewest = 0, made = 0, exact = 0, cases = 0;

    for (int32_t trial = 0; trial < 120; trial++) {
        dp_eplb_shape_t s;
        dp_eplb_update_options_t update = {.struct_size = sizeof(update)};
        dp_eplb_moves_t moves = {.struct_size = sizeof(moves)};
        int32_t slots[16], origin[16];
        float *old_loads, *loads;
        eplb_desk_t desk;
        double greedy;

        random_state = (uint64_t)trial + 5000;
        s = draw_small();
        old_loads = draw_loads((size_t)s.experts);
        loads = draw_loads((size_t)s.experts);
        eplb_desk_open(&s, &desk);
        ck_assert_int_eq(eplb_rebalance(&s, NULL, old_loads, &desk), DP_OK);
        memcpy(origin, desk.placement.physical_to_logical, (size_t)s.replicas * sizeof(*origin));
        ck_assert_int_eq(eplb_rebalance(&s, NULL, loads, &desk), DP_OK);
        greedy = eplb_peak(&s, loads, desk.placement.physical_to_logical) / mean_of(&s, loads);
        update.bound = greedy * (1.0 + (double)draw(0, 20) / 100.0);
        all_placements_t all = {.shape = &s,
                                .loads = loads,
                                .origin = origin,
                                .best_peak = INFINITY,
                                .fewest = -1,
                                .limit = update.bound * mean_of(&s, loads)};
        try_all(&all, slots, 0);
        ck_assert_int_ge(all.fewest, 0);
        ck_assert_int_eq(
            dp_eplb_update(&s, NULL, &update, loads, origin, &desk.placement, &moves, desk.workspace, desk.bytes),
            DP_OK);
        ck_assert_int_eq(moves.layers_over, 0);
        ck_assert_int_ge(moves.replicas, all.fewest);
        fewest += all.fewest;
        made += (int32_t)moves.replicas;
        exact += moves.replicas == all.fewest;
        cases++;
        eplb_desk_close(&desk);
        free(old_loads);
        free(loads);
    }
    ck_assert_msg(exact * 10 >= cases * 9 && made * 10 <= fewest * 11, "%d of %d exact, %d moves where %d would do",
                  exact, cases, made, fewest);
}
END_TEST

/* ---- updates of any size ---- */

static void check_update(const dp_eplb_shape_t *s, const float *loads, const int32_t *origin,
                         const dp_eplb_options_t *options, double bound, eplb_desk_t *desk)
{
    dp_eplb_update_options_t update = {.struct_size = sizeof(update), .bound = bound, .expert_bytes = 1000};
    dp_eplb_moves_t moves = {.struct_size = sizeof(moves)}, again = {.struct_size = sizeof(again)};
    eplb_desk_t full;
    int64_t counted = 0;
    int32_t over = 0, moved_layers = 0;

    eplb_desk_open(s, &full);
    ck_assert_int_eq(eplb_rebalance(s, options, loads, &full), DP_OK);
    ck_assert_msg(dp_eplb_update(s, options, &update, loads, origin, &desk->placement, &moves, desk->workspace,
                                 desk->bytes) == DP_OK,
                  "%s", dp_last_error());
    eplb_check_valid(s, &desk->placement);
    for (int32_t layer = 0; layer < s->layers; layer++) {
        const int32_t *from = origin + layer * s->replicas;
        const int32_t *to = desk->placement.physical_to_logical + layer * s->replicas;
        const float *row = loads + layer * s->experts;
        double mean = mean_of(s, row), peak = eplb_peak(s, row, to);
        double plan = eplb_peak(s, row, full.placement.physical_to_logical + layer * s->replicas);
        int32_t here = moves_between(s, from, to), changed = 0;

        for (int32_t p = 0; p < s->replicas; p++)
            changed += from[p] != to[p];
        ck_assert_int_eq(changed, here); /* what stays keeps its slot */
        counted += here;
        moved_layers += here > 0;
        if (eplb_peak(s, row, from) <= mean * (1 + 1e-9)) {
            ck_assert_int_eq(here, 0);
            continue;
        }
        if (peak > (bound > 0.0 ? bound * mean : plan) * (1 + 1e-8))
            over++;
        ck_assert_double_le(peak, fmax(plan, bound * mean) * (1 + 1e-8));
        if (plan <= (bound > 0.0 ? bound * mean : plan)) /* the plan is one way to keep it */
            ck_assert_int_le(here, moves_between(s, from, full.placement.physical_to_logical + layer * s->replicas));
    }
    ck_assert_int_eq(over, moves.layers_over);
    ck_assert_int_eq(counted, moves.replicas);
    ck_assert_int_eq(moved_layers, moves.layers_moved);
    ck_assert_int_eq(moves.bytes, 1000 * counted);
    ck_assert_int_le(moves.between_nodes, counted);
    ck_assert_int_eq(dp_eplb_transfers(s, origin, desk->placement.physical_to_logical, 1000, NULL, &again,
                                       desk->workspace, desk->bytes),
                     DP_OK);
    ck_assert_int_eq(again.replicas, moves.replicas);
    ck_assert_int_eq(again.between_nodes, moves.between_nodes);
    eplb_desk_close(&full);
}

START_TEST(updates_keep_their_bound)
{
    for (int32_t trial = 0; trial < 40; trial++) {
        dp_eplb_shape_t s = {.struct_size = sizeof(s), .layers = 2};
        dp_eplb_options_t options = {.struct_size = sizeof(options)};
        eplb_desk_t before, desk;
        float *loads;
        size_t count;

        random_state = (uint64_t)(trial + 100 * _i + 1);
        s.nodes = draw(1, 3);
        s.gpus = s.nodes * draw(1, 4);
        s.groups = s.nodes * draw(1, 3);
        s.experts = s.groups * draw(1, 6);
        while (s.gpus > s.experts + 8)
            s.gpus -= s.nodes;
        s.replicas = s.experts + draw(0, 12);
        s.replicas = s.replicas < s.gpus ? s.gpus : s.replicas;
        count = (size_t)s.layers * (size_t)s.experts;
        loads = draw_loads(count);
        options.distinct = _i % 2;
        options.policy = _i / 2 == 0 ? DP_EPLB_GLOBAL : DP_EPLB_AUTO;
        eplb_desk_open(&s, &before);
        eplb_desk_open(&s, &desk);
        ck_assert_int_eq(eplb_rebalance(&s, &options, loads, &before), DP_OK);
        for (size_t i = 0; i < count; i++)
            loads[i] = floorf(loads[i] * expf((float)draw(-60, 60) / 100.0f));
        check_update(&s, loads, before.placement.physical_to_logical, &options, 0.0, &desk);
        check_update(&s, loads, before.placement.physical_to_logical, &options, 1.0, &desk);
        check_update(&s, loads, before.placement.physical_to_logical, &options, 1.1, &desk);
        check_update(&s, loads, before.placement.physical_to_logical, &options, 1.5, &desk);
        if (desk.placement.policy == DP_EPLB_HIERARCHICAL)
            eplb_check_groups(&s, desk.placement.physical_to_logical);
        eplb_desk_close(&before);
        eplb_desk_close(&desk);
        free(loads);
    }
}
END_TEST

START_TEST(below_the_threshold_nothing_moves)
{
    dp_eplb_shape_t s = {sizeof(s), 2, 4, 4, 1, 1, 2};
    const float loads[8] = {10, 10, 10, 12, 10, 10, 10, 30};
    const int32_t origin[8] = {0, 1, 2, 3, 0, 1, 2, 3};
    dp_eplb_update_options_t update = {.struct_size = sizeof(update), .threshold = 1.05, .expert_bytes = 5};
    dp_eplb_moves_t moves = {.struct_size = sizeof(moves)};
    eplb_desk_t desk;

    eplb_desk_open(&s, &desk);
    ck_assert_int_eq(
        dp_eplb_update(&s, NULL, &update, loads, origin, &desk.placement, &moves, desk.workspace, desk.bytes), DP_OK);
    ck_assert_mem_eq(desk.placement.physical_to_logical, origin, 4 * sizeof(int32_t)); /* 22 / 21 */
    ck_assert_int_eq(moves.layers_moved, 0); /* 40 / 30, and nothing is better */
    update.threshold = 1.0;
    memcpy(desk.placement.physical_to_logical, origin, sizeof(origin)); /* in place */
    ck_assert_int_eq(dp_eplb_update(&s, NULL, &update, loads, desk.placement.physical_to_logical, &desk.placement,
                                    &moves, desk.workspace, desk.bytes),
                     DP_OK);
    ck_assert_mem_eq(desk.placement.physical_to_logical, origin, sizeof(origin));
    ck_assert_int_eq(moves.bytes, 0);
    eplb_desk_close(&desk);
}
END_TEST

/* A placement from elsewhere may break what is asked now; an update puts that right. */
START_TEST(updates_put_a_foreign_placement_right)
{
    dp_eplb_shape_t s = {sizeof(s), 1, 8, 12, 2, 2, 4};
    const float loads[8] = {9, 1, 2, 3, 4, 5, 6, 30};
    const int32_t doubled[12] = {7, 7, 0, 1, 7, 2, 3, 4, 5, 6, 0, 0}, mixed[12] = {0, 4, 1, 5, 2, 6, 3, 7, 7, 7, 7, 7};
    dp_eplb_options_t options = {.struct_size = sizeof(options), .policy = DP_EPLB_GLOBAL, .distinct = 1};
    dp_eplb_update_options_t update = {.struct_size = sizeof(update), .bound = 4.0};
    dp_eplb_moves_t moves = {.struct_size = sizeof(moves)};
    eplb_desk_t desk;

    eplb_desk_open(&s, &desk);
    ck_assert_int_eq(
        dp_eplb_update(&s, &options, &update, loads, doubled, &desk.placement, &moves, desk.workspace, desk.bytes),
        DP_OK);
    for (int32_t gpu = 0; gpu < 4; gpu++)
        for (int32_t a = 3 * gpu; a < 3 * gpu + 3; a++)
            for (int32_t b = a + 1; b < 3 * gpu + 3; b++)
                ck_assert_int_ne(desk.placement.physical_to_logical[a], desk.placement.physical_to_logical[b]);
    ck_assert_int_le(moves.replicas, 3);
    ck_assert_int_eq(moves.layers_over, 0);
    options.policy = DP_EPLB_HIERARCHICAL;
    options.distinct = 0;
    ck_assert_int_eq(
        dp_eplb_update(&s, &options, &update, loads, mixed, &desk.placement, &moves, desk.workspace, desk.bytes),
        DP_OK);
    eplb_check_groups(&s, desk.placement.physical_to_logical);
    ck_assert_int_gt(moves.between_nodes, 0);
    eplb_desk_close(&desk);
}
END_TEST

START_TEST(bad_updates_are_refused)
{
    dp_eplb_shape_t s = {sizeof(s), 1, 2, 3, 1, 1, 2};
    const float loads[2] = {1, 2};
    const int32_t origin[3] = {0, 1, 1}, missing[3] = {1, 1, 1}, beyond[3] = {0, 1, 2};
    dp_eplb_update_options_t update = {.struct_size = sizeof(update)};
    dp_eplb_moves_t moves = {.struct_size = 0};
    eplb_desk_t desk;

    eplb_desk_open(&s, &desk);
#define REFUSED(updates, current, report)                                                                              \
    ck_assert_int_eq(                                                                                                  \
        dp_eplb_update(&s, NULL, updates, loads, current, &desk.placement, report, desk.workspace, desk.bytes),        \
        DP_ERR_INVALID)
    REFUSED(NULL, origin, &moves);
    REFUSED(NULL, missing, NULL);
    REFUSED(NULL, beyond, NULL);
    REFUSED(NULL, NULL, NULL);
    update.bound = 0.5;
    REFUSED(&update, origin, NULL);
    update.bound = NAN;
    REFUSED(&update, origin, NULL);
    update.bound = 0.0, update.threshold = -1.0;
    REFUSED(&update, origin, NULL);
    update.threshold = 0.0, update.expert_bytes = -1;
    REFUSED(&update, origin, NULL);
    update.expert_bytes = INT64_MAX;
    REFUSED(&update, origin, NULL);
    update.expert_bytes = 0;
    ck_assert_int_eq(
        dp_eplb_update(&s, NULL, &update, loads, origin, &desk.placement, NULL, desk.workspace, desk.bytes), DP_OK);
    eplb_desk_close(&desk);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("eplb_better");
    TCase *bounds = tcase_create("bounds");

    SUITE_ADD(suite, search_is_never_worse_and_repeats);
    SUITE_ADD(suite, search_in_time_is_never_worse);
    SUITE_ADD(suite, search_finds_the_optimum_of_small_cases);
    SUITE_ADD(suite, updates_of_small_cases_are_near_the_fewest_moves);
    tcase_add_loop_test(bounds, updates_keep_their_bound, 0, 4);
    suite_add_tcase(suite, bounds);
    SUITE_ADD(suite, below_the_threshold_nothing_moves);
    SUITE_ADD(suite, updates_put_a_foreign_placement_right);
    SUITE_ADD(suite, bad_updates_are_refused);
    return suite_run(suite);
}
