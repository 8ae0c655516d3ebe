/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layouts.c: goes through numbers of ranks and schedules. Each is given the least recomputation
 * with which it fits; what fits is simulated unless its computation alone takes longer than others
 * take in all. */
#include "layouts.h"
#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 8192 };
/* Of the fastest: what can take longer than this is not simulated. */
static const double worth_a_look = 1.15;

static bool is_asked(int32_t wanted, int32_t value)
{
    return wanted <= 0 || wanted == value;
}

static int32_t tp_of(const dp_layout_request_t *asked)
{
    return asked->tp > 0 ? asked->tp : 1;
}

static dp_status_t add_row(dp_layouts_t *all, const dp_layout_t *layout)
{
    const int32_t wanted = all->asked->recompute;
    const int32_t least = wanted > 0 ? wanted - 1 : DP_RECOMPUTE_NONE;
    const int32_t most = wanted > 0 ? wanted - 1 : DP_RECOMPUTE_FULL;
    dp_layout_t *row = &all->rows[all->count];
    dp_status_t status = DP_OK;

    if (all->count == MOST_ROWS)
        return dp_fail(DP_ERR_OVERFLOW, "more than %d layouts: say more of them, as pp does", MOST_ROWS);
    row->fits = 0;
    for (int32_t r = least; r <= most && status >= 0 && !row->fits; r++) {
        *row = *layout;
        row->recompute = r;
        status = dp__estimate_bytes(&all->job, row);
    }
    if (status == DP_ERR_INVALID || status == DP_ERR_REJECTED)
        return DP_OK; /* sizes that this method refuses are no layout */
    if (status >= 0)
        all->count++;
    return status;
}

static dp_status_t add_methods(dp_layouts_t *all, dp_layout_t layout)
{
    static const int32_t loop_chunks[] = {2, 4};
    const char *const asked = all->asked->method;
    size_t methods;
    const dp_method_t *m = dp_schedule_methods(&methods);
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < methods && status >= 0; i++) {
        const int variants = m[i].placement == DP_PLACE_LOOP ? 2 : 1;

        /* without a pipeline there is one order */
        if (layout.pp == 1 ? strcmp(m[i].name, "1f1b") != 0
                           : asked != NULL && strcmp(m[i].name, asked) != 0 && strcmp(m[i].name, "1f1b") != 0)
            continue;
        layout.method = &m[i];
        for (int v = 0; v < variants && status >= 0; v++) {
            layout.chunks = variants > 1 ? loop_chunks[v] : 0;
            status = add_row(all, &layout);
        }
    }
    return status;
}

static dp_status_t add_experts(dp_layouts_t *all, int32_t pp, int32_t dp)
{
    const dp__job_t *job = &all->job;
    const int64_t experts = job->model.experts > 0 ? job->model.experts : 1, deal = (int64_t)dp * job->micro_batch;
    dp_status_t status = DP_OK;

    for (int32_t ep = 1; ep <= experts && ep <= dp && status >= 0; ep++) {
        dp_layout_t l = {.struct_size = sizeof(l), .tp = tp_of(all->asked), .pp = pp, .ep = ep, .dp = dp};

        if (experts % ep != 0 || dp % ep != 0 || !is_asked(all->asked->ep, ep))
            continue;
        all->tried++;
        if (job->batch % deal != 0 || job->batch / deal > DP_MAX_MICROBATCHES) {
            all->uneven++;
            continue;
        }
        l.microbatches = (int32_t)(job->batch / deal);
        status = add_methods(all, l);
    }
    return status;
}

static dp_status_t add_layouts(dp_layouts_t *all)
{
    const int32_t tp = tp_of(all->asked), gpus = all->job.gpus;
    dp_status_t status = DP_OK;

    for (int32_t pp = 1; pp <= gpus / tp && pp <= DP__MOST_STAGES && status >= 0; pp++) {
        const int32_t dp = gpus / tp / pp;

        if (gpus % (tp * pp) == 0 && is_asked(all->asked->pp, pp) && is_asked(all->asked->dp, dp))
            status = add_experts(all, pp, dp);
    }
    return status;
}

/* ---- times ---- */

static bool same_ranks(const dp_layout_t *a, const dp_layout_t *b)
{
    return a->tp == b->tp && a->pp == b->pp && a->ep == b->ep;
}

/* 1f1b with the same numbers of ranks; timed even if it does not fit. */
static dp_status_t compare_with_1f1b(dp_layouts_t *all, dp_layout_t *row)
{
    for (int32_t i = 0; i < all->count; i++) {
        dp_layout_t *other = &all->rows[i];

        if (!same_ranks(other, row) || strcmp(other->method->name, "1f1b") != 0)
            continue;
        if (!other->timed) {
            const dp_status_t status = dp__estimate_time(&all->job, other);

            if (status < 0)
                return status;
        }
        row->gain = other->step_time / row->step_time - 1;
    }
    return DP_OK;
}

static int by_bound(const void *a, const void *b)
{
    const dp_layout_t *x = a, *y = b;

    if (x->fits != y->fits)
        return x->fits ? -1 : 1;
    return x->step_time < y->step_time ? -1 : x->step_time > y->step_time;
}

/* The fastest that fit; of the same speed the one that holds less. Others by what they hold. */
static int by_step(const void *a, const void *b)
{
    const dp_layout_t *x = a, *y = b;
    const bool first = x->fits && x->timed, second = y->fits && y->timed;

    if (first != second)
        return first ? -1 : 1;
    if (first && fabs(x->step_time - y->step_time) > 1e-6 * y->step_time)
        return x->step_time < y->step_time ? -1 : 1;
    return x->total < y->total ? -1 : x->total > y->total;
}

static dp_status_t time_rows(dp_layouts_t *all)
{
    double best = INFINITY;
    dp_status_t status = DP_OK;

    for (int32_t i = 0; i < all->count; i++)
        all->rows[i].step_time = dp__estimate_bound(&all->job, &all->rows[i]);
    qsort(all->rows, (size_t)all->count, sizeof(*all->rows), by_bound);
    for (int32_t i = 0; i < all->count && status >= 0; i++) {
        dp_layout_t *row = &all->rows[i];

        if (!row->fits || row->step_time > worth_a_look * best)
            continue;
        status = dp__estimate_time(&all->job, row);
        if (status == DP_ERR_REJECTED) { /* its messages cannot be sent, with any number of slots */
            row->fits = 0;
            snprintf(row->reason, sizeof(row->reason), "%s", dp_last_error());
            status = DP_OK;
        } else if (status >= 0 && row->timed) {
            best = fmin(best, row->step_time);
        }
    }
    for (int32_t i = 0; i < all->count && status >= 0; i++)
        if (all->rows[i].fits && all->rows[i].timed)
            status = compare_with_1f1b(all, &all->rows[i]);
    return status;
}

/* 1f1b was there to be compared with. Figures of time are those of a step that was simulated. */
static void keep_asked(dp_layouts_t *all)
{
    const char *const asked = all->asked->method;
    int32_t kept = 0;

    for (int32_t i = 0; i < all->count; i++)
        if (asked == NULL || strcmp(all->rows[i].method->name, asked) == 0)
            all->rows[kept++] = all->rows[i];
    all->count = kept;
    qsort(all->rows, (size_t)kept, sizeof(*all->rows), by_step);
    for (int32_t i = 0; i < kept; i++) {
        all->timed += all->rows[i].fits && all->rows[i].timed;
        if (!all->rows[i].timed)
            all->rows[i].step_time = 0;
    }
}

dp_status_t dp__layouts_fill(dp_layouts_t *all)
{
    dp_status_t status = DP_OK;

    all->rows = dp__calloc(MOST_ROWS + 1, sizeof(*all->rows));
    if (all->rows == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d layouts", MOST_ROWS);
    status = add_layouts(all);
    if (status >= 0)
        status = time_rows(all);
    if (status >= 0)
        keep_asked(all);
    return status;
}
