/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layer.c: loads of GPUs while replicas are exchanged and experts gain and lose replicas. */
#include "eplb/layer.h"

#include <string.h>

void dp__field_open(dp__eplb_field_t *field, const dp__eplb_sizes_t *sizes, dp__eplb_scratch_t *s, bool distinct)
{
    *field = (dp__eplb_field_t){.sizes = *sizes, .scratch = s, .distinct = distinct};
    for (int32_t gpu = 0, slot = 0; gpu < sizes->gpus; gpu++) {
        int32_t count = dp__eplb_share_count(sizes->replicas, sizes->gpus, gpu);

        s->gpu_first[gpu] = slot;
        s->node_of[gpu] = dp__eplb_share_of(sizes->gpus, sizes->nodes, gpu);
        for (int32_t k = 0; k < count; k++)
            s->gpu_of[slot++] = gpu;
        s->gpu_first[gpu + 1] = slot;
    }
    for (int32_t e = 0; e < sizes->experts; e++)
        s->group_of[e] = dp__eplb_share_of(sizes->experts, sizes->groups, e);
    memset(s->change, 0, (size_t)sizes->gpus * sizeof(*s->change));
}

void dp__field_layer(dp__eplb_field_t *field, const float *loads, int32_t layer)
{
    double sum = 0.0;

    field->loads = loads + (size_t)layer * (size_t)field->sizes.experts;
    for (int32_t e = 0; e < field->sizes.experts; e++)
        sum += (double)field->loads[e];
    field->mean = sum / field->sizes.gpus;
}

static void list_add(dp__eplb_layer_t *layer, int32_t slot, int32_t expert)
{
    int32_t next = layer->head[expert];

    layer->expert[slot] = expert;
    layer->next[slot] = next;
    layer->prev[slot] = -1;
    if (next >= 0)
        layer->prev[next] = slot;
    layer->head[expert] = slot;
}

static void list_remove(dp__eplb_layer_t *layer, int32_t slot)
{
    int32_t next = layer->next[slot], prev = layer->prev[slot];

    if (next >= 0)
        layer->prev[next] = prev;
    if (prev >= 0)
        layer->next[prev] = next;
    else
        layer->head[layer->expert[slot]] = next;
}

void dp__layer_lists(const dp__eplb_field_t *f, const int32_t *slots, dp__eplb_layer_t *layer)
{
    memset(layer->head, 0xff, (size_t)f->sizes.experts * sizeof(*layer->head));
    memset(layer->count, 0, (size_t)f->sizes.experts * sizeof(*layer->count));
    for (int32_t p = f->sizes.replicas - 1; p >= 0; p--) {
        list_add(layer, p, slots[p]);
        layer->count[slots[p]]++;
    }
}

void dp__layer_load(const dp__eplb_field_t *f, const int32_t *slots, dp__eplb_layer_t *layer)
{
    dp__layer_lists(f, slots, layer);
    for (int32_t gpu = 0; gpu < f->sizes.gpus; gpu++) {
        layer->load[gpu] = 0.0;
        for (int32_t p = f->scratch->gpu_first[gpu]; p < f->scratch->gpu_first[gpu + 1]; p++)
            layer->load[gpu] += dp__layer_share(f, layer, slots[p]);
    }
}

void dp__layer_copy(const dp__eplb_field_t *f, const dp__eplb_layer_t *from, dp__eplb_layer_t *to)
{
    size_t slots = (size_t)f->sizes.replicas * sizeof(int32_t), experts = (size_t)f->sizes.experts * sizeof(int32_t);

    memcpy(to->expert, from->expert, slots);
    memcpy(to->next, from->next, slots);
    memcpy(to->prev, from->prev, slots);
    memcpy(to->count, from->count, experts);
    memcpy(to->head, from->head, experts);
    memcpy(to->load, from->load, (size_t)f->sizes.gpus * sizeof(*to->load));
}

int32_t dp__layer_fullest(const dp__eplb_field_t *f, const dp__eplb_layer_t *layer)
{
    int32_t best = 0;

    for (int32_t gpu = 1; gpu < f->sizes.gpus; gpu++)
        if (layer->load[gpu] > layer->load[best])
            best = gpu;
    return best;
}

double dp__layer_peak(const dp__eplb_field_t *f, const dp__eplb_layer_t *layer)
{
    return layer->load[dp__layer_fullest(f, layer)];
}

/* GPUs that may hold an expert. */
static int32_t gpus_for(const dp__eplb_field_t *f, const dp__eplb_layer_t *layer, int32_t expert)
{
    int32_t node = f->scratch->node_of[f->scratch->gpu_of[layer->head[expert]]];

    return dp__eplb_share_count(f->sizes.gpus, f->sizes.nodes, node);
}

/* Replicas of an expert that one GPU may hold when it has `count` of them. */
static int32_t most_on_gpu(const dp__eplb_field_t *f, const dp__eplb_layer_t *layer, int32_t expert, int32_t count)
{
    int32_t gpus = gpus_for(f, layer, expert);

    return (count + gpus - 1) / gpus;
}

static int32_t held_on(const dp__eplb_field_t *f, const dp__eplb_layer_t *layer, int32_t gpu, int32_t expert)
{
    int32_t have = 0;

    for (int32_t p = f->scratch->gpu_first[gpu]; p < f->scratch->gpu_first[gpu + 1]; p++)
        have += layer->expert[p] == expert;
    return have;
}

int32_t dp__layer_doubled(const dp__eplb_field_t *f, const dp__eplb_layer_t *layer, int32_t gpu)
{
    int32_t doubled = 0, first = f->scratch->gpu_first[gpu];

    for (int32_t p = first; p < f->scratch->gpu_first[gpu + 1]; p++) {
        int32_t e = layer->expert[p], before = 0;

        if (layer->count[e] == 1)
            continue;
        for (int32_t k = first; k < p; k++)
            before += layer->expert[k] == e;
        doubled += before >= most_on_gpu(f, layer, e, layer->count[e]);
    }
    return doubled;
}

bool dp__layer_by_groups(const dp__eplb_field_t *f, const dp__eplb_layer_t *layer)
{
    const dp__eplb_scratch_t *s = f->scratch;

    if (f->sizes.nodes == 1)
        return true;
    memset(s->group_node, 0xff, (size_t)f->sizes.groups * sizeof(*s->group_node));
    for (int32_t p = 0; p < f->sizes.replicas; p++) {
        int32_t *home = &s->group_node[s->group_of[layer->expert[p]]], node = s->node_of[s->gpu_of[p]];

        if (*home >= 0 && *home != node)
            return false;
        *home = node;
    }
    return true;
}

bool dp__layer_legal(const dp__eplb_field_t *f, const dp__eplb_layer_t *layer)
{
    if (!dp__layer_by_groups(f, layer))
        return false;
    for (int32_t gpu = 0; f->distinct && gpu < f->sizes.gpus; gpu++)
        if (dp__layer_doubled(f, layer, gpu) > 0)
            return false;
    return true;
}

/* Whether a GPU may hold one more of an expert that then has `count` replicas. */
static bool may_come(const dp__eplb_field_t *f, const dp__eplb_layer_t *layer, int32_t gpu, int32_t expert,
                     int32_t count)
{
    return !f->distinct || held_on(f, layer, gpu, expert) < most_on_gpu(f, layer, expert, count);
}

/* Whether the replica in `slot` may go: those left may then be too many on their GPU. */
static bool may_go(const dp__eplb_field_t *f, const dp__eplb_layer_t *layer, int32_t slot)
{
    int32_t x = layer->expert[slot], most;

    if (!f->distinct)
        return true;
    most = most_on_gpu(f, layer, x, layer->count[x] - 1);
    if (most == most_on_gpu(f, layer, x, layer->count[x]))
        return true;
    for (int32_t p = layer->head[x]; p >= 0; p = layer->next[p]) {
        int32_t gpu = f->scratch->gpu_of[p];
        if (held_on(f, layer, gpu, x) - (gpu == f->scratch->gpu_of[slot]) > most)
            return false;
    }
    return true;
}

/* Replicas kept apart: more of them than GPUs only where that is so for the one that gives way. */
static bool may_grow(const dp__eplb_field_t *f, const dp__eplb_layer_t *layer, int32_t y, int32_t x)
{
    return !f->distinct || layer->count[y] < gpus_for(f, layer, y) || layer->count[y] < layer->count[x];
}

bool dp__change_legal(const dp__eplb_field_t *f, const dp__eplb_layer_t *layer, const dp__eplb_change_t *change)
{
    const dp__eplb_scratch_t *s = f->scratch;
    int32_t x = layer->expert[change->a], y, here = s->gpu_of[change->a], there;

    if (change->b < 0) {
        y = change->expert;
        there = s->gpu_of[layer->head[y]];
        return x != y && layer->count[x] > 1 && s->node_of[here] == s->node_of[there] && may_grow(f, layer, y, x) &&
               may_come(f, layer, here, y, layer->count[y] + 1) && may_go(f, layer, change->a);
    }
    y = layer->expert[change->b];
    there = s->gpu_of[change->b];
    return x != y && here != there && s->node_of[here] == s->node_of[there] &&
           may_come(f, layer, here, y, layer->count[y]) && may_come(f, layer, there, x, layer->count[x]);
}

static int32_t touch_gpu(const dp__eplb_scratch_t *s, int32_t touched, int32_t gpu, double change)
{
    int32_t k = 0;

    while (k < touched && s->touched[k] != gpu)
        k++;
    s->touched[k] = gpu;
    s->change[gpu] += change;
    return k == touched ? touched + 1 : touched;
}

int32_t dp__change_preview(const dp__eplb_field_t *f, const dp__eplb_layer_t *layer, const dp__eplb_change_t *change)
{
    const dp__eplb_scratch_t *s = f->scratch;
    int32_t x = layer->expert[change->a], y = change->b < 0 ? change->expert : layer->expert[change->b];
    double of_x = dp__layer_share(f, layer, x), of_y = dp__layer_share(f, layer, y);
    int32_t touched = 0;

    if (change->b >= 0) {
        touched = touch_gpu(s, touched, s->gpu_of[change->a], of_y - of_x);
        return touch_gpu(s, touched, s->gpu_of[change->b], of_x - of_y);
    }
    double x_after = (double)f->loads[x] / (layer->count[x] - 1);
    double y_after = (double)f->loads[y] / (layer->count[y] + 1);

    touched = touch_gpu(s, touched, s->gpu_of[change->a], y_after - of_x);
    for (int32_t p = layer->head[x]; p >= 0; p = layer->next[p])
        if (p != change->a)
            touched = touch_gpu(s, touched, s->gpu_of[p], x_after - of_x);
    for (int32_t p = layer->head[y]; p >= 0; p = layer->next[p])
        touched = touch_gpu(s, touched, s->gpu_of[p], y_after - of_y);
    return touched;
}

void dp__change_forget(const dp__eplb_field_t *f, int32_t touched)
{
    for (int32_t k = 0; k < touched; k++)
        f->scratch->change[f->scratch->touched[k]] = 0.0;
}

double dp__change_peak(const dp__eplb_field_t *f, const dp__eplb_layer_t *layer, const dp__eplb_change_t *change)
{
    const dp__eplb_scratch_t *s = f->scratch;
    int32_t touched = dp__change_preview(f, layer, change);
    double peak = 0.0;

    for (int32_t k = 0; k < touched; k++) {
        double load = layer->load[s->touched[k]] + s->change[s->touched[k]];
        peak = load > peak ? load : peak;
    }
    dp__change_forget(f, touched);
    return peak;
}

void dp__change_apply(const dp__eplb_field_t *f, dp__eplb_layer_t *layer, const dp__eplb_change_t *change)
{
    const dp__eplb_scratch_t *s = f->scratch;
    int32_t x = layer->expert[change->a], touched = dp__change_preview(f, layer, change);

    for (int32_t k = 0; k < touched; k++)
        layer->load[s->touched[k]] += s->change[s->touched[k]];
    dp__change_forget(f, touched);
    list_remove(layer, change->a);
    if (change->b < 0) {
        layer->count[x]--;
        layer->count[change->expert]++;
        list_add(layer, change->a, change->expert);
    } else {
        int32_t y = layer->expert[change->b];

        list_remove(layer, change->b);
        list_add(layer, change->a, y);
        list_add(layer, change->b, x);
    }
}
