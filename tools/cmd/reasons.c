/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reasons.c: why a comparison came out as it did, in sentences. */
#include "reasons.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Micro-batches of all ranks up to which a schedule is run again to find a cause. */
#define RERUN_MOST (1 << 14)

static void add_reason(reasons_t *reasons, const char *fmt, ...) DP_PRINTF(2, 3);
static void add_reason(reasons_t *reasons, const char *fmt, ...)
{
    va_list list;

    if (reasons->count == REASONS_MOST)
        return;
    va_start(list, fmt);
    vsnprintf(reasons->text[reasons->count++], REASON_BYTES, fmt, list);
    va_end(list);
}

/* A schedule runs again only where that is quick, and means the same. */
static bool may_rerun(const comparison_t *table)
{
    const args_t *args = table->args;

    return args->overlap != OVERLAP_PLANNED && (int64_t)args->ranks * args->microbatches <= RERUN_MOST;
}

static double percent_less(double now, double before)
{
    return (1.0 - now / before) * 100.0;
}

/* ---- memory for time ---- */

/* Who holds a tenth less than all that are faster, beside the last one of these. Without bytes,
 * weights and activations cannot be added. */
static void add_trades(const comparison_t *table, reasons_t *reasons)
{
    const bool in_bytes = args_in_bytes(table->args);
    const entry_t *before = table->entries;

    for (size_t e = 1; e < table->fitting; e++) {
        const entry_t *now = &table->entries[e];

        const double held = in_bytes ? now->bytes : now->peak, more = in_bytes ? before->bytes : before->peak;

        if ((!in_bytes && now->copies > before->copies) || held > 0.9 * more)
            continue;
        add_reason(reasons, "%s holds %.2g %% less than %s and takes %.2g %% more time.", now->label,
                   percent_less(held, more), before->label, (now->step / before->step - 1.0) * 100.0);
        before = now;
    }
}

/* ---- less idle, and slower ---- */

typedef struct upset {
    const entry_t *slow, *fast; /* slow is idle less; NULL: there is none */
} upset_t;

/* What makes `slow` compute longer than `fast`: its backwards in two passes, or pairs of `fast`. */
static bool caused_by_pairs(const dp_costs_t *costs, const entry_t *slow, const entry_t *fast)
{
    double split = (slow->split - fast->split) * (costs->i + costs->w - dp_costs_backward(costs));
    double pairs = (fast->paired - slow->paired) * (costs->f + dp_costs_backward(costs) - dp_costs_pair(costs));

    return pairs > split;
}

static bool are_alike(const upset_t *upset)
{
    return upset->slow->method->placement == upset->fast->method->placement &&
           upset->slow->chunks == upset->fast->chunks;
}

static bool is_closer(const upset_t *now, const upset_t *best)
{
    if (best->slow == NULL)
        return true;
    if (are_alike(now) != are_alike(best))
        return are_alike(now);
    return now->slow->step / now->fast->step < best->slow->step / best->fast->step * (1.0 - 1e-9);
}

/* The plainest case of one cause: of stages alike if there is one, of steps near each other. */
static upset_t find_upset(const comparison_t *table, bool by_pairs)
{
    upset_t best = {NULL, NULL};

    for (size_t s = 1; s < table->fitting; s++)
        for (size_t f = 0; f < s; f++) {
            const upset_t now = {&table->entries[s], &table->entries[f]};

            if (now.slow->step > now.fast->step * 1.001 && now.slow->bubble < now.fast->bubble * 0.999 &&
                caused_by_pairs(&table->args->costs, now.slow, now.fast) == by_pairs && is_closer(&now, &best))
                best = now;
        }
    return best;
}

static void add_upsets(const comparison_t *table, reasons_t *reasons)
{
    const dp_costs_t *costs = &table->args->costs;
    const upset_t pairs = find_upset(table, true), split = find_upset(table, false);

    if (pairs.slow != NULL)
        add_reason(reasons,
                   "%s is faster than %s, though idle more: an overlapped pair costs %.6g, F and B in turn %.6g.",
                   pairs.fast->label, pairs.slow->label, dp_costs_pair(costs), costs->f + dp_costs_backward(costs));
    if (split.slow != NULL)
        add_reason(reasons, "%s is slower than %s, though idle less: I and W apart cost %.6g, B in one %.6g.",
                   split.slow->label, split.fast->label, costs->i + costs->w, dp_costs_backward(costs));
}

/* ---- beside the formula ---- */

enum { NO_TRANSFERS = 1, IN_TURN = 2, EVEN = 4, CAUSES = 8 };

static const char *const formula_counts[CAUSES] = {
    [NO_TRANSFERS] = "no transfers",
    [IN_TURN] = "F and B of a pair in turn",
    [EVEN] = "equal F, I and W",
    [NO_TRANSFERS | IN_TURN] = "F and B of a pair in turn, and no transfers",
    [NO_TRANSFERS | EVEN] = "equal F, I and W, and no transfers",
    [IN_TURN | EVEN] = "equal F, I and W, and pairs in turn",
    [NO_TRANSFERS | IN_TURN | EVEN] = "equal F, I and W, pairs in turn, and no transfers",
};

static bool is_as_formula(const entry_t *entry, double within)
{
    return fabs(entry->bubble - entry->formula) <= within * fmax(entry->formula, 0.01 * entry->step);
}

static entry_t fresh(const entry_t *entry)
{
    return (entry_t){.method = entry->method, .chunks = entry->chunks, .placing = entry->placing};
}

static dp_status_t rerun_without(const comparison_t *table, const entry_t *entry, int causes, bool *explained_out)
{
    args_t args = *table->args;
    dp_costs_t *costs = &args.costs;
    entry_t again = fresh(entry);
    dp_status_t status;

    if ((causes & NO_TRANSFERS) != 0) {
        costs->hop = costs->bandwidth = 0.0;
        args.on_hosts = false;
    }
    if ((causes & EVEN) != 0) {
        costs->f = costs->i = costs->w = (costs->f + costs->i + costs->w) / 3.0;
        costs->b = 0.0;
    }
    if ((causes & IN_TURN) != 0)
        costs->fb = 0.0;
    status = comparison_run(&args, &again);
    *explained_out = status >= 0 && is_as_formula(&again, 1e-6);
    return status;
}

/* Whether the costs differ from what a formula with that cause counts. */
static bool may_be(const comparison_t *table, const entry_t *entry, int causes)
{
    const dp_costs_t *c = &table->args->costs;

    if ((causes & NO_TRANSFERS) != 0 && c->hop == 0.0 && c->bandwidth == 0.0 && !table->args->on_hosts)
        return false;
    if ((causes & IN_TURN) != 0 && (entry->paired == 0.0 || dp_costs_pair(c) == c->f + dp_costs_backward(c)))
        return false;
    return (causes & EVEN) == 0 || c->f != c->i || c->i != c->w || dp_costs_backward(c) != c->i + c->w;
}

/* Of the smallest set of causes without which the run is as the formula; 0: none is. */
static dp_status_t find_causes(const comparison_t *table, const entry_t *entry, int *causes_out)
{
    static const int order[] = {NO_TRANSFERS,        IN_TURN,        EVEN,      NO_TRANSFERS | IN_TURN,
                                NO_TRANSFERS | EVEN, IN_TURN | EVEN, CAUSES - 1};
    dp_status_t status = DP_OK;

    *causes_out = 0;
    for (size_t k = 0; k < sizeof(order) / sizeof(order[0]) && status >= 0 && *causes_out == 0; k++) {
        bool explained = false;

        if (may_be(table, entry, order[k]))
            status = rerun_without(table, entry, order[k], &explained);
        *causes_out = explained ? order[k] : 0;
    }
    return status;
}

static bool seen_before(const comparison_t *table, size_t e)
{
    for (size_t i = 0; i < e; i++)
        if (table->entries[i].method == table->entries[e].method)
            return true;
    return false;
}

static void append_name(char *names, const char *name)
{
    size_t used = strlen(names);

    snprintf(names + used, REASON_BYTES / 2 - used, "%s%s", used > 0 ? ", " : "", name);
}

/* Idle time that is not the formula's, by what the formula does not count. */
static dp_status_t add_formulas(const comparison_t *table, reasons_t *reasons)
{
    char names[CAUSES][REASON_BYTES / 2] = {{0}};
    const args_t *args = table->args;
    dp_status_t status = DP_OK;

    if (args->scales_given || args->costs.r > 0.0 || args->costs.barrier == 0.0)
        return DP_OK;
    for (size_t e = 0; e < table->fitting && status >= 0; e++) {
        const entry_t *entry = &table->entries[e];
        int causes = 0;

        if (isnan(entry->formula) || is_as_formula(entry, 0.01) || seen_before(table, e))
            continue;
        status = find_causes(table, entry, &causes);
        append_name(names[causes], entry->method->name);
    }
    for (int causes = 1; causes < CAUSES && status >= 0; causes++)
        if (names[causes][0] != '\0')
            add_reason(reasons, "%s: idle is not the formula's, which counts %s.", names[causes],
                       formula_counts[causes]);
    return status;
}

/* ---- segments ---- */

/* The step if dispatch and combine took no time. */
static dp_status_t step_without(const comparison_t *table, const entry_t *entry, double *step_out)
{
    args_t args = *table->args;
    entry_t again = fresh(entry);
    dp_status_t status;

    for (int s = DP_ROLE_DISPATCH; s <= DP_ROLE_COMBINE; s += DP_ROLE_COMBINE - DP_ROLE_DISPATCH)
        args.segments.f[s - 1] = args.segments.i[s - 1] = args.segments.w[s - 1] = 0.0;
    args.costs.segments = &args.segments;
    status = comparison_run(&args, &again);
    *step_out = again.step;
    return status;
}

/* The fastest beside the fastest of the other kind: with pairs, or without. */
static dp_status_t add_exposed(const comparison_t *table, reasons_t *reasons)
{
    const entry_t *best = table->entries, *other = NULL;
    double best_step, other_step;
    dp_status_t status;

    for (size_t e = 1; e < table->fitting && other == NULL; e++)
        if ((table->entries[e].paired > 0.0) != (best->paired > 0.0))
            other = &table->entries[e];
    if (other == NULL)
        return DP_OK;
    status = step_without(table, best, &best_step);
    if (status >= 0)
        status = step_without(table, other, &other_step);
    if (status >= 0)
        add_reason(reasons, "Without dispatch and combine %s would take %.6g (%.2g %% less), %s %.6g (%.2g %% less).",
                   best->label, best_step, percent_less(best_step, best->step), other->label, other_step,
                   percent_less(other_step, other->step));
    return status;
}

/* Backwards in two passes that lose, only because a whole B hides more. */
static dp_status_t add_hidden_by_whole(const comparison_t *table, reasons_t *reasons)
{
    upset_t best = {NULL, NULL};
    double slow = 0.0, fast = 0.0;
    dp_status_t status;

    for (size_t s = 1; s < table->fitting; s++)
        for (size_t f = 0; f < s; f++) {
            const upset_t now = {&table->entries[s], &table->entries[f]};

            if (now.slow->split > 0.0 && now.fast->split == 0.0 && now.fast->paired == 0.0 &&
                now.slow->method->placement == now.fast->method->placement && now.slow->step > now.fast->step * 1.001 &&
                is_closer(&now, &best))
                best = now;
        }
    if (best.slow == NULL)
        return DP_OK;
    status = step_without(table, best.slow, &slow);
    if (status >= 0)
        status = step_without(table, best.fast, &fast);
    if (status >= 0 && slow < fast)
        add_reason(reasons,
                   "%s is slower than %s, whose W runs beside dispatch and combine of its I: without these it would "
                   "take %.6g, %s %.6g.",
                   best.slow->label, best.fast->label, slow, best.fast->label, fast);
    return status;
}

/* Of a transport with slots: who needs more than a pipeline has. */
static void add_slots(const comparison_t *table, reasons_t *reasons)
{
    for (size_t e = 0; e < table->fitting; e++)
        if (table->args->slots == 0 && table->entries[e].slots > PLAN_SLOTS)
            add_reason(reasons, "%s needs %d slots a channel, others %d.", table->entries[e].label,
                       table->entries[e].slots, PLAN_SLOTS);
}

dp_status_t reasons_find(const comparison_t *table, reasons_t *reasons_out)
{
    const bool by_segments = table->args->costs.segments != NULL;
    dp_status_t status = DP_OK;

    reasons_out->count = 0;
    if (table->fitting < 2)
        return DP_OK;
    add_trades(table, reasons_out);
    add_slots(table, reasons_out);
    if (!by_segments)
        add_upsets(table, reasons_out);
    if (!may_rerun(table))
        return DP_OK;
    if (!by_segments)
        return add_formulas(table, reasons_out);
    status = add_exposed(table, reasons_out);
    return status >= 0 ? add_hidden_by_whole(table, reasons_out) : status;
}
