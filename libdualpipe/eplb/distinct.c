/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * distinct.c: packing that puts an expert on a GPU at most ceil(replicas / GPUs) times, once unless
 * there are more.
 *
 * When no GPU with a free slot may take a replica, one that has it full and may does, and gives up
 * another replica for it. There always is one: the full GPU has at least as many replicas as the
 * open one and fewer of this expert, so it has more of some other expert, which the open GPU may
 * take. */
#include "eplb/node.h"
#include "eplb/order.h"

/* The contents of GPUs while they are packed: replicas by slot. */
typedef struct boxes {
    const dp__eplb_node_t *node;
    int32_t *item; /* [slots] of the node */
    int32_t *fill; /* [gpus] */
    float *load;   /* [gpus] */
} boxes_t;

static int32_t room_on(const boxes_t *b, int32_t gpu)
{
    return b->node->capacity + (gpu < b->node->larger) - b->fill[gpu];
}

static bool may_take(const boxes_t *b, int32_t gpu, int32_t expert)
{
    int32_t first = dp__node_gpu_first(b->node, gpu), have = 0, gpus = b->node->gpus;

    for (int32_t k = 0; k < b->fill[gpu]; k++)
        have += b->node->expert[b->item[first + k]] == expert;
    return have < (b->node->count[expert] + gpus - 1) / gpus;
}

static float load_of(const boxes_t *b, int32_t replica)
{
    return dp__eplb_load(b->node->key[replica]);
}

static void put_replica(boxes_t *b, int32_t gpu, int32_t replica)
{
    b->item[dp__node_gpu_first(b->node, gpu) + b->fill[gpu]++] = replica;
    b->load[gpu] += load_of(b, replica);
}

static int32_t least_loaded(const boxes_t *b, int32_t expert)
{
    int32_t best = -1;

    for (int32_t gpu = 0; gpu < b->node->gpus; gpu++)
        if (room_on(b, gpu) > 0 && (best < 0 || b->load[gpu] < b->load[best]) && may_take(b, gpu, expert))
            best = gpu;
    return best;
}

/* Puts the replica in the place of another on a full GPU, and that one on a GPU with room: the pair
 * that leaves the fuller of the two GPUs least loaded. */
static void put_by_exchange(boxes_t *b, int32_t replica)
{
    int32_t expert = b->node->expert[replica], best_open = -1, best_slot = -1, best_full = -1;
    float best = 0.0f;

    for (int32_t open = 0; open < b->node->gpus; open++) {
        if (room_on(b, open) == 0)
            continue;
        for (int32_t full = 0; full < b->node->gpus; full++) {
            int32_t first = dp__node_gpu_first(b->node, full);

            if (room_on(b, full) > 0 || !may_take(b, full, expert))
                continue;
            for (int32_t k = first; k < first + b->fill[full]; k++) {
                float moved = load_of(b, b->item[k]), here = b->load[open] + moved;
                float there = b->load[full] - moved + load_of(b, replica), peak = here > there ? here : there;

                if ((best_open < 0 || peak < best) && may_take(b, open, b->node->expert[b->item[k]])) {
                    best = peak;
                    best_open = open;
                    best_full = full;
                    best_slot = k;
                }
            }
        }
    }
    if (best_open < 0)
        return;
    int32_t out = b->item[best_slot];
    b->item[best_slot] = replica;
    b->load[best_full] += load_of(b, replica) - load_of(b, out);
    put_replica(b, best_open, out);
}

void dp__node_pack_distinct(dp__eplb_scratch_t *s, dp__eplb_node_t *node)
{
    boxes_t boxes = {.node = node, .item = s->position, .fill = s->fill, .load = s->node_load};
    int32_t at = 0;

    dp__eplb_order(s, node->key, node->slots, node->order);
    for (int32_t gpu = 0; gpu < node->gpus; gpu++) {
        boxes.fill[gpu] = 0;
        boxes.load[gpu] = 0.0f;
    }
    for (int32_t i = 0; i < node->slots; i++) {
        int32_t replica = node->order[i], gpu = least_loaded(&boxes, node->expert[replica]);

        if (gpu >= 0)
            put_replica(&boxes, gpu, replica);
        else
            put_by_exchange(&boxes, replica);
    }
    for (int32_t gpu = 0; gpu < node->gpus; gpu++) {
        int32_t first = dp__node_gpu_first(node, gpu);

        for (int32_t k = 0; k < boxes.fill[gpu]; k++, at++) {
            node->order[at] = boxes.item[first + k];
            node->bin[at] = gpu;
        }
    }
}
