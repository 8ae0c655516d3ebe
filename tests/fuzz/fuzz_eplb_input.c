/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fuzz_eplb_input.c: any bytes as sizes and a table of loads, and as the placement in use: what is
 * taken for a table gives valid placements or an error. The first line holds replicas, groups,
 * nodes, gpus, policy, distinct, steps; a line of "from" parts loads and placement. */
#include <dualpipe/eplb.h>

#include <math.h>
#include <string.h>

#include "fuzz.h"
#include "tools/cmd/matrix.h"

/* Larger ones take time and show nothing more. */
#define MOST 96

static const char *const keys[] = {"loads", "physical_to_logical", NULL};

typedef struct desk {
    dp_eplb_shape_t shape;
    dp_eplb_placement_t placement;
    void *workspace;
    size_t bytes;
} desk_t;

static int open_desk(desk_t *desk)
{
    size_t layers = (size_t)desk->shape.layers;

    if (dp_eplb_workspace_bytes(&desk->shape, &desk->bytes) != DP_OK)
        return 0;
    desk->workspace = malloc(desk->bytes);
    desk->placement = (dp_eplb_placement_t){.struct_size = sizeof(desk->placement)};
    desk->placement.physical_to_logical = malloc(layers * (size_t)desk->shape.replicas * sizeof(int32_t));
    desk->placement.expert_count = malloc(layers * (size_t)desk->shape.experts * sizeof(int32_t));
    desk->placement.logical_to_physical =
        malloc(layers * (size_t)desk->shape.experts * (size_t)dp_eplb_most_replicas(&desk->shape) * sizeof(int32_t));
    FUZZ_REQUIRE(desk->workspace != NULL && desk->placement.physical_to_logical != NULL &&
                 desk->placement.expert_count != NULL && desk->placement.logical_to_physical != NULL);
    return 1;
}

static void close_desk(desk_t *desk)
{
    free(desk->workspace);
    free(desk->placement.physical_to_logical);
    free(desk->placement.expert_count);
    free(desk->placement.logical_to_physical);
}

static void check_valid(const desk_t *desk)
{
    const dp_eplb_shape_t *s = &desk->shape;
    const dp_eplb_placement_t *p = &desk->placement;

    for (int32_t layer = 0; layer < s->layers; layer++) {
        int32_t total = 0;

        for (int32_t e = 0; e < s->experts; e++) {
            int32_t count = p->expert_count[layer * s->experts + e];

            FUZZ_REQUIRE(count >= 1 && count <= p->max_count);
            total += count;
            for (int32_t k = 0; k < count; k++) {
                int32_t slot = p->logical_to_physical[(layer * s->experts + e) * p->max_count + k];
                FUZZ_REQUIRE(slot >= 0 && slot < s->replicas);
                FUZZ_REQUIRE(p->physical_to_logical[layer * s->replicas + slot] == e);
            }
        }
        FUZZ_REQUIRE(total == s->replicas);
    }
}

static int32_t *as_integers(const matrix_t *m)
{
    size_t count = (size_t)m->rows * (size_t)m->columns;
    int32_t *slots = malloc(count * sizeof(*slots));

    FUZZ_REQUIRE(slots != NULL);
    for (size_t i = 0; i < count; i++)
        slots[i] = fabs(m->values[i]) < 1e6 ? (int32_t)m->values[i] : -1;
    return slots;
}

static void update(desk_t *desk, const dp_eplb_options_t *options, const float *loads, const matrix_t *from)
{
    dp_eplb_update_options_t how = {.struct_size = sizeof(how), .bound = 1.1, .expert_bytes = 3};
    dp_eplb_moves_t moves = {.struct_size = sizeof(moves)};
    int32_t *slots;

    if (from->rows != desk->shape.layers || from->columns != desk->shape.replicas)
        return;
    slots = as_integers(from);
    if (dp_eplb_update(&desk->shape, options, &how, loads, slots, &desk->placement, &moves, desk->workspace,
                       desk->bytes) == DP_OK) {
        check_valid(desk);
        FUZZ_REQUIRE(moves.bytes == 3 * moves.replicas && moves.between_nodes <= moves.replicas);
    }
    free(slots);
}

static void place(desk_t *desk, const dp_eplb_options_t *options, const matrix_t *loads, const matrix_t *from)
{
    size_t count = (size_t)loads->rows * (size_t)loads->columns;
    dp_eplb_balance_t balance = {.struct_size = sizeof(balance)};
    float *weights;

    desk->shape.layers = loads->rows;
    desk->shape.experts = loads->columns;
    if (loads->rows > MOST || loads->columns > MOST || !open_desk(desk))
        return;
    weights = malloc(count * sizeof(*weights));
    FUZZ_REQUIRE(weights != NULL);
    for (size_t i = 0; i < count; i++)
        weights[i] = (float)loads->values[i];
    if (dp_eplb_rebalance(&desk->shape, options, weights, &desk->placement, desk->workspace, desk->bytes) == DP_OK) {
        check_valid(desk);
        FUZZ_REQUIRE(dp_eplb_measure(&desk->shape, weights, desk->placement.physical_to_logical, &balance, NULL, NULL,
                                     desk->workspace, desk->bytes) == DP_OK);
        FUZZ_REQUIRE(balance.gpu >= 1.0 - 1e-6);
        if (from->values != NULL)
            update(desk, options, weights, from);
    }
    free(weights);
    close_desk(desk);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1), *table, *second;
    dp_eplb_options_t options = {.struct_size = sizeof(options)};
    desk_t desk = {.shape = {.struct_size = sizeof(desk.shape)}};
    matrix_t loads, from = {0, 0, NULL};
    int steps = 0;

    FUZZ_REQUIRE(text != NULL);
    memcpy(text, data, bytes);
    text[bytes] = 0;
    table = strchr(text, '\n');
    if (table == NULL || sscanf(text, "%d %d %d %d %d %d %d", &desk.shape.replicas, &desk.shape.groups,
                                &desk.shape.nodes, &desk.shape.gpus, &options.policy, &options.distinct, &steps) < 4) {
        free(text);
        return 0;
    }
    table++;
    options.search_steps = steps < 0 ? steps : steps % 16;
    second = strstr(table, "\nfrom\n");
    if (second != NULL)
        *second = 0;
    if (matrix_parse("loads", table, second != NULL ? (size_t)(second - table) : bytes - (size_t)(table - text), keys,
                     &loads) == DP_OK) {
        if (second != NULL)
            (void)matrix_parse("from", second + 6, strlen(second + 6), keys, &from);
        if (desk.shape.replicas <= 2 * MOST)
            place(&desk, &options, &loads, &from);
        matrix_clear(&from);
        matrix_clear(&loads);
    }
    free(text);
    return 0;
}
