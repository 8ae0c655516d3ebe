/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * dispatch.h: rows on their way over exchanges, in memory that host code reaches. What is sent
 * stands in dims.h: rows are packed at their owners, fanned out to (expert, source rank) order
 * where they arrive, and found when they are back. Nothing here computes with them: a row is so
 * many bytes. */
#ifndef PLUGINS_MOE_DISPATCH_H
#define PLUGINS_MOE_DISPATCH_H

#include "moe.h"

#include "plugins/common/layout.h"

#include <string.h>

/* Where in saved memory lies what a micro-batch keeps of its way. */
typedef struct moe_dispatch_layout {
    size_t place; /* [T,k] of the head of (token, choice) among those we send */
    /* [R] heads we send to each rank: the first one's place, how many */
    size_t out_first, out_heads;
    size_t out_offsets, out_counts;   /* [R] the rows that go with them, lists included */
    size_t in_heads, in_counts;       /* [R] heads and rows we got from each rank */
    size_t back_offsets, back_counts; /* [R] rows we send back, lists included */
} moe_dispatch_layout_t;

/* One micro-batch on its way; names as above. */
typedef struct moe_dispatch {
    const dp_host_t *host;
    const char *plugin; /* for messages */
    const moe_dims_t *n;
    size_t data_bytes, weight_bytes; /* of a row without padding; of a weight: 4 or 8 */
    const int32_t *replica;          /* [T,k] which serves (token, choice) */
    int32_t *place, *out_first, *out_heads, *out_offsets, *out_counts, *in_heads, *in_counts, *back_offsets,
        *back_counts;
    int32_t *cells;        /* [L,R] heads for each expert from each rank */
    char *sent;            /* what we send */
    const char *rows;      /* what an exchange brought: rows of rank p from p * room on */
    const int32_t *counts; /* how many of them */
    int32_t room;
} moe_dispatch_t;

void moe_dispatch_lay_out(layout_t *saved, const moe_dims_t *n, moe_dispatch_layout_t *layout_out);
void moe_dispatch_find(moe_dispatch_t *v, char *saved, const moe_dispatch_layout_t *layout);

/* Where the head of each choice goes. The replicas of a rank are consecutive, so sorting by replica
 * sorts by destination as well. counts: of heads for each replica; used up. */
void moe_dispatch_place(const moe_dispatch_t *v, int32_t *counts);
/* To the experts: a head for each (token, choice), with its weight when there are weights, and a
 * row for each rank that a token goes to. from: [T,d]; last: [R], scratch. */
void moe_dispatch_pack(const moe_dispatch_t *v, const void *from, const void *weights, uint32_t call, int32_t *last);
/* What came is of this call, and as much as dispatch brought, which counts it. */
dp_status_t moe_dispatch_take_out(const moe_dispatch_t *v, uint32_t call);
/* Fans received rows out to (expert, rank) order, with weights where wanted. next: [R], scratch. */
void moe_dispatch_fan_out(const moe_dispatch_t *v, int32_t *next, void *to, void *weights);
/* Back: begins the list for each rank, of which the caller fills in the heads. */
void moe_dispatch_begin_back(const moe_dispatch_t *v, uint32_t call);
/* One row for each head that we sent has come back, of this call. */
dp_status_t moe_dispatch_take_back(const moe_dispatch_t *v, uint32_t call);

static inline char *moe_row_at(const char *rows, const moe_dims_t *n, size_t row)
{
    return (char *)rows + row * (size_t)n->row_bytes;
}

static inline moe_list_t *moe_list_at(const char *rows, const moe_dims_t *n, size_t row)
{
    return (moe_list_t *)(void *)moe_row_at(rows, n, row);
}

static inline moe_head_t *moe_heads_of(const moe_list_t *list)
{
    return (moe_head_t *)(void *)(list + 1);
}

/* No byte is sent unset. */
static inline void moe_pad_row(const moe_dispatch_t *v, char *row)
{
    memset(row + v->data_bytes, 0, (size_t)v->n->row_bytes - v->data_bytes);
}

/* What rank p sent: its list, and the rows behind it. */
static inline const moe_list_t *moe_dispatch_list(const moe_dispatch_t *v, int32_t p)
{
    return moe_list_at(v->rows, v->n, (size_t)p * (size_t)v->room);
}

static inline const void *moe_dispatch_row(const moe_dispatch_t *v, int32_t p, int32_t row)
{
    const int32_t heads = moe_dispatch_list(v, p)->heads;

    return moe_row_at(v->rows, v->n,
                      (size_t)p * (size_t)v->room + (size_t)MOE_LIST_ROWS(heads, v->n->row_bytes) + (size_t)row);
}

/* What came back for (token, choice) `at`; what its head says of the weight. */
static inline const void *moe_dispatch_returned(const moe_dispatch_t *v, size_t at, double *weight_out)
{
    const int32_t p = v->replica[at] / v->n->local, row = v->place[at] - v->out_first[p];

    *weight_out = moe_heads_of(moe_dispatch_list(v, p))[row].weight;
    return moe_dispatch_row(v, p, row);
}

/* The heads of the rows that go back to rank p, and the first of these rows. */
static inline moe_head_t *moe_dispatch_back(const moe_dispatch_t *v, int32_t p, char **rows_out)
{
    const size_t list = (size_t)v->back_offsets[p];

    *rows_out = moe_row_at(v->sent, v->n, list + (size_t)MOE_LIST_ROWS(v->in_heads[p], v->n->row_bytes));
    return moe_heads_of(moe_list_at(v->sent, v->n, list));
}

#endif
