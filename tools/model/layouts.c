/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layouts.c: goes through numbers of ranks and schedules. Each is given the least recomputation
 * with which it fits; what fits is simulated unless its computation alone takes longer than others
 * take in all. */
#include "layouts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STAGES = 64, MOST_ANSWERS = 8192 };
/* Of the fastest: what can take longer than this is not simulated. */
static const double worth_a_look = 1.15;

static bool is_asked(int32_t wanted, int32_t value)
{
    return wanted <= 0 || wanted == value;
}

static dp_status_t add_answer(const job_t *job, const wanted_t *w, const layout_t *layout, layouts_t *all)
{
    answer_t *a = &all->answers[all->count];
    const int32_t least = w->recompute > 0 ? w->recompute - 1 : DP_RECOMPUTE_NONE;
    const int32_t most = w->recompute > 0 ? w->recompute - 1 : DP_RECOMPUTE_FULL;
    dp_status_t status = DP_OK;

    if (all->count == MOST_ANSWERS)
        return dp_fail(DP_ERR_OVERFLOW, "more than %d layouts: say more of them, as --pp does", MOST_ANSWERS);
    for (int32_t r = least; r <= most && status >= 0 && !a->fits; r++) {
        layout_t l = *layout;

        l.recompute = (dp_recompute_t)r;
        status = estimate_bytes(job, &l, a);
    }
    if (status == DP_ERR_INVALID || status == DP_ERR_REJECTED) {
        *a = (answer_t){.fits = false}; /* sizes that this method refuses are no layout */
        return DP_OK;
    }
    if (status >= 0)
        all->count++;
    return status;
}

static dp_status_t add_methods(const job_t *job, const wanted_t *w, layout_t layout, layouts_t *all)
{
    static const int32_t loop_chunks[] = {2, 4};
    size_t methods;
    const dp_method_t *m = dp_schedule_methods(&methods);
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < methods && status >= 0; i++) {
        const int variants = m[i].placement == DP_PLACE_LOOP ? 2 : 1;

        /* without a pipeline there is one order */
        if (layout.pp == 1 ? strcmp(m[i].name, "1f1b") != 0
                           : w->method != NULL && strcmp(m[i].name, w->method) != 0 && strcmp(m[i].name, "1f1b") != 0)
            continue;
        layout.method = &m[i];
        for (int v = 0; v < variants && status >= 0; v++) {
            layout.chunks = variants > 1 ? loop_chunks[v] : 0;
            status = add_answer(job, w, &layout, all);
        }
    }
    return status;
}

static dp_status_t add_layouts(const job_t *job, const wanted_t *w, layouts_t *all)
{
    const int32_t tp = w->tp > 0 ? w->tp : 1, experts = job->model.experts > 0 ? (int32_t)job->model.experts : 1;
    dp_status_t status = DP_OK;

    for (int32_t pp = 1; pp <= job->gpus / tp && pp <= MOST_STAGES; pp++) {
        const int32_t dp = job->gpus / tp / pp;

        if (job->gpus % (tp * pp) != 0 || !is_asked(w->pp, pp) || !is_asked(w->dp, dp))
            continue;
        for (int32_t ep = 1; ep <= experts && ep <= dp && status >= 0; ep++) {
            const int64_t deal = (int64_t)dp * job->micro_batch;
            layout_t l = {.tp = tp, .pp = pp, .ep = ep, .dp = dp};

            if (experts % ep != 0 || dp % ep != 0 || !is_asked(w->ep, ep))
                continue;
            all->tried++;
            if (job->batch % deal != 0 || job->batch / deal > DP_MAX_MICROBATCHES) {
                all->batch_left_over++;
                continue;
            }
            l.microbatches = (int32_t)(job->batch / deal);
            status = add_methods(job, w, l, all);
        }
    }
    return status;
}

/* ---- times ---- */

static bool same_ranks(const layout_t *a, const layout_t *b)
{
    return a->tp == b->tp && a->pp == b->pp && a->ep == b->ep;
}

/* The answer of 1f1b with the same numbers of ranks; timed even if it does not fit. */
static dp_status_t compare_with_1f1b(const job_t *job, layouts_t *all, answer_t *answer)
{
    for (size_t i = 0; i < all->count; i++) {
        answer_t *other = &all->answers[i];

        if (!same_ranks(&other->layout, &answer->layout) || strcmp(other->layout.method->name, "1f1b") != 0)
            continue;
        if (!other->timed) {
            const dp_status_t status = estimate_time(job, other);

            if (status < 0)
                return status;
        }
        answer->gain = other->step / answer->step - 1;
    }
    return DP_OK;
}

static int by_bound(const void *a, const void *b)
{
    const answer_t *x = a, *y = b;

    if (x->fits != y->fits)
        return x->fits ? -1 : 1;
    return x->step < y->step ? -1 : x->step > y->step;
}

/* The fastest that fit; of the same speed the one that holds less. Others by what they hold. */
static int by_step(const void *a, const void *b)
{
    const answer_t *x = a, *y = b;
    const bool first = x->fits && x->timed, second = y->fits && y->timed;

    if (first != second)
        return first ? -1 : 1;
    if (first && fabs(x->step - y->step) > 1e-6 * y->step)
        return x->step < y->step ? -1 : 1;
    return x->bytes.total < y->bytes.total ? -1 : x->bytes.total > y->bytes.total;
}

static dp_status_t time_answers(const job_t *job, layouts_t *all)
{
    double best = INFINITY;
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < all->count; i++)
        all->answers[i].step = estimate_bound(job, &all->answers[i].layout);
    qsort(all->answers, all->count, sizeof(*all->answers), by_bound);
    for (size_t i = 0; i < all->count && status >= 0; i++) {
        answer_t *a = &all->answers[i];

        if (!a->fits || a->timed || a->step > worth_a_look * best)
            continue;
        status = estimate_time(job, a);
        if (status == DP_ERR_REJECTED) { /* its messages cannot be sent, with any number of slots */
            a->fits = false;
            snprintf(a->reason, sizeof(a->reason), "%s", dp_last_error());
            status = DP_OK;
        } else if (status >= 0 && a->timed) {
            best = fmin(best, a->step);
        }
    }
    for (size_t i = 0; i < all->count && status >= 0; i++)
        if (all->answers[i].fits && all->answers[i].timed)
            status = compare_with_1f1b(job, all, &all->answers[i]);
    return status;
}

/* 1f1b was there to be compared with. */
static void drop_others(const wanted_t *w, layouts_t *all)
{
    size_t kept = 0;

    for (size_t i = 0; i < all->count; i++)
        if (w->method == NULL || strcmp(all->answers[i].layout.method->name, w->method) == 0)
            all->answers[kept++] = all->answers[i];
    all->count = kept;
}

dp_status_t layouts_find(const job_t *job, const wanted_t *wanted, layouts_t *layouts)
{
    dp_status_t status;

    *layouts = (layouts_t){.answers = calloc(MOST_ANSWERS + 1, sizeof(*layouts->answers))};
    if (layouts->answers == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d layouts", MOST_ANSWERS);
    status = add_layouts(job, wanted, layouts);
    if (status >= 0)
        status = time_answers(job, layouts);
    drop_others(wanted, layouts);
    qsort(layouts->answers, layouts->count, sizeof(*layouts->answers), by_step);
    for (size_t i = 0; i < layouts->count; i++)
        layouts->timed += layouts->answers[i].fits && layouts->answers[i].timed;
    return status;
}

void layouts_clear(layouts_t *layouts)
{
    free(layouts->answers);
}
