/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * dispatch.c: see dispatch.h. */
#include "dispatch.h"
#include "plugins/common/do.h"

static void keep_ints(layout_t *saved, const moe_dims_t *n, size_t *at_out)
{
    *at_out = layout_take(saved, (size_t)n->ranks, 1, sizeof(int32_t));
}

void moe_dispatch_lay_out(layout_t *saved, const moe_dims_t *n, moe_dispatch_layout_t *l)
{
    l->place = layout_take(saved, (size_t)n->tokens, (size_t)n->top_k, sizeof(int32_t));
    keep_ints(saved, n, &l->out_first);
    keep_ints(saved, n, &l->out_heads);
    keep_ints(saved, n, &l->out_offsets);
    keep_ints(saved, n, &l->out_counts);
    keep_ints(saved, n, &l->in_heads);
    keep_ints(saved, n, &l->in_counts);
    keep_ints(saved, n, &l->back_offsets);
    keep_ints(saved, n, &l->back_counts);
}

static int32_t *find_ints(char *saved, size_t at)
{
    return (int32_t *)(void *)(saved + at);
}

void moe_dispatch_find(moe_dispatch_t *v, char *saved, const moe_dispatch_layout_t *l)
{
    v->place = find_ints(saved, l->place);
    v->out_first = find_ints(saved, l->out_first);
    v->out_heads = find_ints(saved, l->out_heads);
    v->out_offsets = find_ints(saved, l->out_offsets);
    v->out_counts = find_ints(saved, l->out_counts);
    v->in_heads = find_ints(saved, l->in_heads);
    v->in_counts = find_ints(saved, l->in_counts);
    v->back_offsets = find_ints(saved, l->back_offsets);
    v->back_counts = find_ints(saved, l->back_counts);
}

void moe_dispatch_place(const moe_dispatch_t *v, int32_t *counts)
{
    const moe_dims_t *n = v->n;
    const size_t all = (size_t)n->tokens * (size_t)n->top_k;
    int32_t p, e, first = 0, lists = 0, count;

    for (p = 0; p < n->ranks; p++) {
        v->out_first[p] = first;
        for (e = p * n->local; e < (p + 1) * n->local; e++) {
            count = counts[e];
            counts[e] = first;
            first += count;
        }
        v->out_heads[p] = first - v->out_first[p];
        v->out_offsets[p] = v->out_first[p] + lists; /* room for a row for each head */
        lists += MOE_LIST_ROWS(v->out_heads[p], n->row_bytes);
    }
    for (size_t i = 0; i < all; i++)
        v->place[i] = counts[v->replica[i]]++;
}

/* Begins what is sent to each rank of a call with its list. */
static void write_lists(const moe_dispatch_t *v, const int32_t *offsets, const int32_t *heads, uint32_t call)
{
    const moe_dims_t *n = v->n;

    for (int32_t p = 0; p < n->ranks; p++) {
        moe_list_t *list = moe_list_at(v->sent, n, (size_t)offsets[p]);

        if (heads[p] == 0)
            continue;
        memset(list, 0, (size_t)MOE_LIST_ROWS(heads[p], n->row_bytes) * (size_t)n->row_bytes);
        list->call = call;
        list->heads = heads[p];
    }
}

void moe_dispatch_pack(const moe_dispatch_t *v, const void *from, const void *weights, uint32_t call, int32_t *last)
{
    const moe_dims_t *n = v->n;
    const char *data = from;
    size_t at = 0;

    write_lists(v, v->out_offsets, v->out_heads, call);
    for (int32_t p = 0; p < n->ranks; p++) {
        v->out_counts[p] = MOE_LIST_ROWS(v->out_heads[p], n->row_bytes);
        last[p] = -1;
    }
    for (int32_t i = 0; i < n->tokens; i++, data += v->data_bytes)
        for (int32_t j = 0; j < n->top_k; j++, at++) {
            const int32_t p = v->replica[at] / n->local;
            moe_head_t *head =
                moe_heads_of(moe_list_at(v->sent, n, (size_t)v->out_offsets[p])) + (v->place[at] - v->out_first[p]);

            if (last[p] != i) { /* the first of this token's */
                char *row = moe_row_at(v->sent, n, (size_t)(v->out_offsets[p] + v->out_counts[p]++));

                last[p] = i;
                memcpy(row, data, v->data_bytes);
                moe_pad_row(v, row);
            }
            *head = (moe_head_t){.expert = v->replica[at] % n->local,
                                 .row = v->out_counts[p] - 1 - MOE_LIST_ROWS(v->out_heads[p], n->row_bytes)};
            if (weights != NULL)
                memcpy(&head->weight, (const char *)weights + at * v->weight_bytes, v->weight_bytes);
        }
}

static dp_status_t out_of_step(const moe_dispatch_t *v, uint32_t call, int32_t p)
{
    static const char *const names[] = {[MOE_DISPATCH] = "dispatch",
                                        [MOE_COMBINE] = "combine",
                                        [MOE_COMBINE_BACKWARD] = "combine_backward",
                                        [MOE_DISPATCH_BACKWARD] = "dispatch_backward"};

    return DP_FAIL(v->host, DP_ERR_PROTOCOL,
                   "%s: rank %d of the expert group, %s: the rows from rank %d are not of this call: "
                   "the ranks made their calls in different orders or on different streams",
                   v->plugin, v->n->rank, names[call], p);
}

/* Heads and rows of rank p are of this call and as many as can be. *heads_out: how many. */
static bool list_is_right(const moe_dispatch_t *v, int32_t p, uint32_t call, int32_t *heads_out)
{
    const moe_dims_t *n = v->n;
    const moe_list_t *list = moe_dispatch_list(v, p);

    *heads_out = 0;
    if (v->counts[p] == 0)
        return true;
    if (v->counts[p] < 0 || v->counts[p] > v->room || list->call != call || list->heads <= 0 ||
        list->heads > n->pair_rows || MOE_LIST_ROWS(list->heads, n->row_bytes) > v->counts[p])
        return false;
    *heads_out = list->heads;
    return true;
}

/* Every head says which of the rank's rows is its own. */
static bool heads_have_rows(const moe_dispatch_t *v, int32_t p, int32_t count)
{
    const moe_head_t *heads = moe_heads_of(moe_dispatch_list(v, p));
    const int32_t rows = v->counts[p] - MOE_LIST_ROWS(count, v->n->row_bytes);

    for (int32_t i = 0; i < count; i++)
        if (heads[i].row < 0 || heads[i].row >= rows)
            return false;
    return true;
}

/* Counts heads per (expert, rank) from what dispatch brought. */
static dp_status_t count_cells(const moe_dispatch_t *v)
{
    const moe_dims_t *n = v->n;
    int64_t all = 0;

    memset(v->cells, 0, (size_t)n->local * (size_t)n->ranks * sizeof(*v->cells));
    for (int32_t p = 0; p < n->ranks; p++) {
        const moe_head_t *head = moe_heads_of(moe_dispatch_list(v, p));
        int32_t last = 0;

        if (!list_is_right(v, p, MOE_DISPATCH, &v->in_heads[p]) || !heads_have_rows(v, p, v->in_heads[p]))
            return out_of_step(v, MOE_DISPATCH, p);
        for (int32_t i = 0; i < v->in_heads[p]; i++) {
            if (head[i].expert < last || head[i].expert >= n->local)
                return out_of_step(v, MOE_DISPATCH, p);
            last = head[i].expert;
            v->cells[(size_t)last * (size_t)n->ranks + (size_t)p]++;
        }
        all += v->in_heads[p];
    }
    if (all > n->rows)
        return DP_FAIL(
            v->host, DP_ERR_OVERFLOW,
            "%s: rank %d of the expert group, dispatch: %lld rows come where there is room for %d: ask for a "
            "larger capacity, or 0 for the worst case",
            v->plugin, n->rank, (long long)all, n->rows);
    return DP_OK;
}

/* What dispatch brought, which sets how much goes back. */
static dp_status_t take_dispatch(const moe_dispatch_t *v)
{
    int32_t first = 0;

    DO(count_cells(v));
    memcpy(v->in_counts, v->counts, (size_t)v->n->ranks * sizeof(*v->counts));
    for (int32_t p = 0; p < v->n->ranks; p++) {
        v->back_offsets[p] = first;
        v->back_counts[p] = MOE_LIST_ROWS(v->in_heads[p], v->n->row_bytes) + v->in_heads[p];
        first += v->back_counts[p];
    }
    return DP_OK;
}

/* What comes in a later call is as much as in dispatch, or as was sent there. */
static bool is_due(const moe_dispatch_t *v, int32_t p, int32_t due, int32_t due_rows, uint32_t call)
{
    int32_t heads;

    return v->counts[p] == due_rows && list_is_right(v, p, call, &heads) && heads == due;
}

dp_status_t moe_dispatch_take_out(const moe_dispatch_t *v, uint32_t call)
{
    if (call == MOE_DISPATCH)
        return take_dispatch(v);
    for (int32_t p = 0; p < v->n->ranks; p++)
        if (!is_due(v, p, v->in_heads[p], v->in_counts[p], call) || !heads_have_rows(v, p, v->in_heads[p]))
            return out_of_step(v, call, p);
    return DP_OK;
}

void moe_dispatch_fan_out(const moe_dispatch_t *v, int32_t *next, void *to, void *weights)
{
    const moe_dims_t *n = v->n;
    const int32_t *cell = v->cells;
    char *data = to;
    size_t at = 0;

    memset(next, 0, (size_t)n->ranks * sizeof(*next));
    for (int32_t e = 0; e < n->local; e++)
        for (int32_t p = 0; p < n->ranks; p++, cell++)
            for (int32_t i = 0; i < *cell; i++, next[p]++, at++, data += v->data_bytes) {
                const moe_head_t *head = moe_heads_of(moe_dispatch_list(v, p)) + next[p];

                memcpy(data, moe_dispatch_row(v, p, head->row), v->data_bytes);
                if (weights != NULL)
                    memcpy((char *)weights + at * v->weight_bytes, &head->weight, v->weight_bytes);
            }
}

void moe_dispatch_begin_back(const moe_dispatch_t *v, uint32_t call)
{
    write_lists(v, v->back_offsets, v->in_heads, call);
}

dp_status_t moe_dispatch_take_back(const moe_dispatch_t *v, uint32_t call)
{
    for (int32_t p = 0; p < v->n->ranks; p++)
        if (!is_due(v, p, v->out_heads[p], MOE_LIST_ROWS(v->out_heads[p], v->n->row_bytes) + v->out_heads[p], call))
            return out_of_step(v, call, p);
    return DP_OK;
}
