/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * eplb_case.c: the recorded placements in tests/data/eplb (its README has the format), read without
 * any code of the library, and a planner for tests: workspace and arrays of the right size. */
#include "eplb_case.h"

static void eplb_word(FILE *file, const char *expected)
{
    char word[64];

    ck_assert_int_eq(fscanf(file, "%63s", word), 1);
    ck_assert_str_eq(word, expected);
}

static int32_t eplb_field(FILE *file, const char *name)
{
    int value;

    eplb_word(file, name);
    ck_assert_int_eq(fscanf(file, "%d", &value), 1);
    return value;
}

static int32_t *eplb_ints(FILE *file, size_t count)
{
    int32_t *values = malloc(count * sizeof(*values));

    for (size_t i = 0; i < count; i++)
        ck_assert_int_eq(fscanf(file, "%d", &values[i]), 1);
    return values;
}

void eplb_read(const char *kind, const char *name, eplb_case_t *c)
{
    char path[1024], word[64];
    size_t layers, experts;
    FILE *file;

    snprintf(path, sizeof(path), "%s/eplb/%s/%s.txt", getenv("DP_TEST_DATA"), kind, name);
    file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s cannot be opened", path);
    ck_assert_int_eq(eplb_field(file, "EPLB"), 1);
    eplb_word(file, "name");
    ck_assert_int_eq(fscanf(file, "%63s", word), 1);
    c->shape.struct_size = sizeof(c->shape);
    c->shape.layers = eplb_field(file, "layers");
    c->shape.experts = eplb_field(file, "logical");
    c->shape.replicas = eplb_field(file, "replicas");
    c->shape.groups = eplb_field(file, "groups");
    c->shape.nodes = eplb_field(file, "nodes");
    c->shape.gpus = eplb_field(file, "gpus");
    eplb_word(file, "policy");
    ck_assert_int_eq(fscanf(file, "%31s", c->policy), 1);
    eplb_field(file, "integer");
    c->maxcnt = eplb_field(file, "maxcnt");
    c->tie_phy2log = eplb_field(file, "tie_phy2log");
    c->tie_logcnt = eplb_field(file, "tie_logcnt");
    c->tie_set = eplb_field(file, "tie_log2phy_set");
    c->tie_order = eplb_field(file, "tie_log2phy_order");
    c->max_last = eplb_field(file, "max_last");
    c->f64_differs = eplb_field(file, "f64_differs");
    c->stable_differs = eplb_field(file, "stable_differs");
    layers = (size_t)c->shape.layers;
    experts = (size_t)c->shape.experts;
    eplb_word(file, "weights");
    c->weights = malloc(layers * experts * sizeof(*c->weights));
    for (size_t i = 0; i < layers * experts; i++) {
        double value;
        ck_assert_int_eq(fscanf(file, "%lf", &value), 1);
        c->weights[i] = (float)value;
    }
    eplb_word(file, "phy2log");
    c->phy2log = eplb_ints(file, layers * (size_t)c->shape.replicas);
    eplb_word(file, "logcnt");
    c->logcnt = eplb_ints(file, layers * experts);
    eplb_word(file, "log2phy");
    c->log2phy = malloc(layers * experts * (size_t)c->maxcnt * sizeof(*c->log2phy));
    for (size_t i = 0; i < layers * experts; i++)
        for (int k = 0; k < c->maxcnt; k++) {
            int32_t *slot = &c->log2phy[i * (size_t)c->maxcnt + (size_t)k];
            *slot = -1;
            if (k < c->logcnt[i])
                ck_assert_int_eq(fscanf(file, "%d", slot), 1);
        }
    eplb_word(file, "maxload");
    c->maxload = malloc(layers * sizeof(*c->maxload));
    for (size_t i = 0; i < layers; i++)
        ck_assert_int_eq(fscanf(file, "%lf", &c->maxload[i]), 1);
    eplb_word(file, "end");
    fclose(file);
}

void eplb_case_clear(eplb_case_t *c)
{
    free(c->weights);
    free(c->phy2log);
    free(c->logcnt);
    free(c->log2phy);
    free(c->maxload);
}

void eplb_desk_open(const dp_eplb_shape_t *shape, eplb_desk_t *desk)
{
    size_t layers = (size_t)shape->layers, experts = layers * (size_t)shape->experts;

    ck_assert_msg(dp_eplb_workspace_bytes(shape, &desk->bytes) == DP_OK, "%s", dp_last_error());
    desk->workspace = malloc(desk->bytes);
    /* a workspace is not cleared by those who bring it */
    memset(desk->workspace, 0xa5, desk->bytes);
    desk->placement = (dp_eplb_placement_t){
        .struct_size = sizeof(desk->placement),
        .physical_to_logical = malloc(layers * (size_t)shape->replicas * sizeof(int32_t)),
        .expert_count = malloc(experts * sizeof(int32_t)),
        .logical_to_physical = malloc(experts * (size_t)dp_eplb_most_replicas(shape) * sizeof(int32_t))};
    desk->gpus = malloc(layers * (size_t)shape->gpus * sizeof(double));
    desk->nodes = malloc(layers * (size_t)shape->nodes * sizeof(double));
}

void eplb_desk_close(eplb_desk_t *desk)
{
    free(desk->workspace);
    free(desk->placement.physical_to_logical);
    free(desk->placement.expert_count);
    free(desk->placement.logical_to_physical);
    free(desk->gpus);
    free(desk->nodes);
}

double eplb_peak(const dp_eplb_shape_t *shape, const float *weights, const int32_t *slots)
{
    double peak = 0.0;
    int32_t at = 0;

    for (int32_t gpu = 0; gpu < shape->gpus; gpu++) {
        int32_t end = at + shape->replicas / shape->gpus + (gpu < shape->replicas % shape->gpus);
        double load = 0.0;

        for (; at < end; at++) {
            int32_t count = 0;
            for (int32_t p = 0; p < shape->replicas; p++)
                count += slots[p] == slots[at];
            load += (double)weights[slots[at]] / count;
        }
        peak = load > peak ? load : peak;
    }
    return peak;
}

void eplb_check_valid(const dp_eplb_shape_t *shape, const dp_eplb_placement_t *p)
{
    int32_t most = 0;

    for (int32_t layer = 0; layer < shape->layers; layer++) {
        const int32_t *slots = p->physical_to_logical + layer * shape->replicas;
        const int32_t *counts = p->expert_count + layer * shape->experts;

        for (int32_t e = 0; e < shape->experts; e++) {
            const int32_t *list = p->logical_to_physical + (layer * shape->experts + e) * p->max_count;
            int32_t seen = 0;

            for (int32_t k = 0; k < shape->replicas; k++)
                seen += slots[k] == e;
            ck_assert_int_ge(seen, 1);
            ck_assert_int_eq(seen, counts[e]);
            most = seen > most ? seen : most;
            for (int32_t k = 0; k < p->max_count; k++) {
                ck_assert_int_eq(list[k] >= 0, k < seen);
                if (list[k] < 0)
                    continue;
                ck_assert_int_lt(list[k], shape->replicas);
                ck_assert_int_eq(slots[list[k]], e);
                for (int32_t j = 0; j < k; j++)
                    ck_assert_int_ne(list[j], list[k]);
            }
        }
    }
    ck_assert_int_eq(most, p->max_count);
}

int32_t eplb_node_of_slot(const dp_eplb_shape_t *shape, int32_t slot)
{
    for (int32_t node = 0, gpu = 0, at = 0; node < shape->nodes; node++) {
        int32_t last = gpu + shape->gpus / shape->nodes + (node < shape->gpus % shape->nodes);

        for (; gpu < last; gpu++)
            at += shape->replicas / shape->gpus + (gpu < shape->replicas % shape->gpus);
        if (slot < at)
            return node;
    }
    return -1;
}

static int32_t eplb_group_of(const dp_eplb_shape_t *shape, int32_t expert)
{
    for (int32_t group = 0, at = 0; group < shape->groups; group++) {
        at += shape->experts / shape->groups + (group < shape->experts % shape->groups);
        if (expert < at)
            return group;
    }
    return -1;
}

void eplb_check_groups(const dp_eplb_shape_t *shape, const int32_t *physical_to_logical)
{
    for (int32_t layer = 0; layer < shape->layers; layer++) {
        const int32_t *slots = physical_to_logical + layer * shape->replicas;
        int32_t *home = malloc((size_t)shape->groups * sizeof(*home));

        memset(home, 0xff, (size_t)shape->groups * sizeof(*home));
        for (int32_t p = 0; p < shape->replicas; p++) {
            int32_t *h = &home[eplb_group_of(shape, slots[p])], node = eplb_node_of_slot(shape, p);
            ck_assert(*h < 0 || *h == node);
            *h = node;
        }
        free(home);
    }
}
