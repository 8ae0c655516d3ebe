/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moves.c: counts moved replicas, and says for each slot where to copy from. */
#include "eplb/moves.h"
#include "base/sized.h"

#include "eplb/index.h"

#include <string.h>

dp_status_t dp__eplb_check_moves(const dp_eplb_moves_t *moves)
{
    return moves == NULL ? DP_OK : dp__sized_check("eplb: the moves", moves, "dp_eplb_moves_t", DP_EPLB_MOVES_MIN);
}

dp_status_t dp__eplb_check_bytes(const dp__eplb_sizes_t *sizes, int64_t expert_bytes)
{
    int64_t all;

    if (expert_bytes < 0 || __builtin_mul_overflow(sizes->layers * (int64_t)sizes->replicas, expert_bytes, &all))
        return dp_fail(DP_ERR_INVALID, "eplb: an expert of %lld bytes", (long long)expert_bytes);
    return DP_OK;
}

void dp__eplb_report(const dp_eplb_moves_t *sum, int64_t expert_bytes, dp_eplb_moves_t *out)
{
    dp_eplb_moves_t whole = *sum;

    if (out == NULL)
        return;
    whole.bytes = whole.replicas * expert_bytes;
    whole.bytes_between_nodes = whole.between_nodes * expert_bytes;
    dp_sized_put(out, &whole);
}

/* Counts the experts in the slots of some GPUs. */
static void count_slots(const dp__eplb_field_t *f, const int32_t *slots, int32_t first_gpu, int32_t gpus,
                        int32_t *count)
{
    for (int32_t p = f->scratch->gpu_first[first_gpu]; p < f->scratch->gpu_first[first_gpu + gpus]; p++)
        count[slots[p]]++;
}

int64_t dp__eplb_count_moves(const dp__eplb_field_t *f, const int32_t *origin, const int32_t *slots,
                             int64_t *between_nodes_out)
{
    const dp__eplb_sizes_t *sizes = &f->sizes;
    int32_t *on_gpu = f->scratch->count, *on_node = f->scratch->touched;
    int64_t moved = 0, between = 0;

    memset(on_gpu, 0, (size_t)sizes->experts * sizeof(*on_gpu));
    memset(on_node, 0, (size_t)sizes->experts * sizeof(*on_node));
    for (int32_t node = 0; node < sizes->nodes; node++) {
        int32_t first = dp__eplb_share_first(sizes->gpus, sizes->nodes, node);
        int32_t gpus = dp__eplb_share_count(sizes->gpus, sizes->nodes, node);

        count_slots(f, origin, first, gpus, on_node);
        for (int32_t gpu = first; gpu < first + gpus; gpu++) {
            count_slots(f, origin, gpu, 1, on_gpu);
            for (int32_t p = f->scratch->gpu_first[gpu]; p < f->scratch->gpu_first[gpu + 1]; p++) {
                if (on_gpu[slots[p]] > 0) {
                    on_gpu[slots[p]]--;
                    continue;
                }
                moved++;
                between += on_node[slots[p]] == 0;
            }
            for (int32_t p = f->scratch->gpu_first[gpu]; p < f->scratch->gpu_first[gpu + 1]; p++)
                on_gpu[origin[p]] = 0;
        }
        for (int32_t p = f->scratch->gpu_first[first]; p < f->scratch->gpu_first[first + gpus]; p++)
            on_node[origin[p]] = 0;
    }
    if (between_nodes_out != NULL)
        *between_nodes_out = between;
    return moved;
}

/* How far apart two slots are: 0 the same GPU, 1 the same node, 2 the network. */
static int slot_distance(const dp__eplb_scratch_t *s, int32_t a, int32_t b)
{
    if (s->gpu_of[a] == s->gpu_of[b])
        return 0;
    return s->node_of[s->gpu_of[a]] == s->node_of[s->gpu_of[b]] ? 1 : 2;
}

/* The nearest slot with the expert; of equal ones the least read, which counts one reading more. */
static int32_t find_source(const dp__eplb_scratch_t *s, const dp__eplb_layer_t *from, int32_t slot, int32_t expert,
                           int32_t *readings)
{
    int32_t best = -1;
    int best_distance = 3;

    for (int32_t p = from->head[expert]; p >= 0; p = from->next[p]) {
        int d = slot_distance(s, slot, p);
        if (d < best_distance || (d == best_distance && readings[p] < readings[best])) {
            best = p;
            best_distance = d;
        }
    }
    readings[best]++;
    return best;
}

dp_status_t dp_eplb_transfers(const dp_eplb_shape_t *shape, const int32_t *from, const int32_t *to,
                              int64_t expert_bytes, int32_t *sources_out, dp_eplb_moves_t *moves, void *workspace,
                              size_t workspace_bytes)
{
    dp__eplb_sizes_t sizes;
    dp__eplb_scratch_t s;
    dp__eplb_field_t field;
    dp_eplb_moves_t sum = {.struct_size = sizeof(sum)};
    dp_status_t status = dp__eplb_scratch_cut(shape, workspace, workspace_bytes, &sizes, &s);

    if (status < 0 || (status = dp__eplb_check_moves(moves)) < 0 ||
        (status = dp__eplb_check_bytes(&sizes, expert_bytes)) < 0 ||
        (status = dp__eplb_check_slots(&sizes, from, s.count)) < 0 ||
        (status = dp__eplb_check_slots(&sizes, to, s.count)) < 0)
        return status;
    dp__field_open(&field, &sizes, &s, false);
    for (int32_t layer = 0; layer < sizes.layers; layer++) {
        size_t first = (size_t)layer * (size_t)sizes.replicas;
        int64_t between, moved = dp__eplb_count_moves(&field, from + first, to + first, &between);

        sum.replicas += moved;
        sum.between_nodes += between;
        sum.layers_moved += moved > 0;
        if (sources_out == NULL)
            continue;
        dp__layer_lists(&field, from + first, &s.layer[0]);
        memset(s.best, 0, (size_t)sizes.replicas * sizeof(*s.best));
        for (int32_t p = 0; p < sizes.replicas; p++)
            sources_out[first + (size_t)p] = to[first + (size_t)p] == from[first + (size_t)p]
                                                 ? -1
                                                 : find_source(&s, &s.layer[0], p, to[first + (size_t)p], s.best);
    }
    dp__eplb_report(&sum, expert_bytes, moves);
    return DP_OK;
}
