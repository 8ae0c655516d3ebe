/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comparison.c: runs all schedules that fit, and puts them in order. */
#include "comparison.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

enum { MOST_PLACINGS = TOPOLOGY_MIRRORS + 1 };

static void count_passes(entry_t *entry, const dp_schedule_t *schedule)
{
    const double share = 1.0 / (dp_schedule_split(schedule) * schedule->ranks);

    for (int64_t i = 0; i < schedule->first[schedule->ranks]; i++) {
        entry->split += schedule->ops[i].kind == DP_OP_I ? share : 0.0;
        entry->paired += schedule->ops[i].kind == DP_OP_FB ? share : 0.0;
    }
}

static void fill_entry(entry_t *entry, const plan_t *plan)
{
    const dp_simulation_t *s = &plan->simulation;

    entry->step = s->step_time;
    entry->formula = plan->args->costs.segments == NULL ? s->formula_bubble : (double)NAN;
    entry->copies = dp_schedule_paths(plan->schedule);
    entry->slots = plan->slots;
    entry->bytes = args_in_bytes(plan->args) ? memory_most(plan->held, s->ranks) : (double)NAN;
    for (int32_t r = 0; r < s->ranks; r++) {
        entry->bubble += s->bubble[r] / s->ranks;
        entry->peak = fmax(entry->peak, s->peak_activations[r]);
        entry->backward_buffer = fmax(entry->backward_buffer, s->peak_backward_buffers[r]);
    }
    count_passes(entry, plan->schedule);
}

static dp_status_t run_plan(const args_t *args, entry_t *entry, plan_t *plan)
{
    dp_costs_t costs = args->costs;
    dp_schedule_request_t request = {.struct_size = sizeof(request),
                                     .method = entry->method->name,
                                     .ranks = args->ranks,
                                     .microbatches = args->microbatches,
                                     .chunks = entry->chunks};
    dp_status_t status = dp_schedule_generate(&request, &plan->schedule);

    plan->simulation.struct_size = sizeof(plan->simulation);
    if (status >= 0 && args->scales_given)
        status = plan_costs(args, plan->schedule, &costs);
    if (status >= 0)
        status = plan_place(plan, entry->placing, &costs);
    if (status >= 0 && args->layers != NULL)
        status = plan_layers(plan, &costs);
    if (status >= 0)
        status = plan_overlap(plan, &costs);
    if (status >= 0)
        status = plan_prove(plan);
    if (status >= 0)
        status = dp_simulate(plan->program, &costs, 0, &plan->simulation);
    if (status >= 0)
        fill_entry(entry, plan);
    return status;
}

dp_status_t comparison_run(const args_t *args, entry_t *entry)
{
    plan_t plan = {.args = args};
    dp_status_t status = run_plan(args, entry, &plan);

    plan_clear(&plan);
    return status;
}

/* The row begins with the method's name already. */
static const char *without_name(const char *message, const char *name)
{
    size_t length = strlen(name);

    return strncmp(message, name, length) == 0 && strncmp(message + length, ": ", 2) == 0 ? message + length + 2
                                                                                          : message;
}

/* Only what no choice of method can mend ends the command. */
static dp_status_t try_entry(const args_t *args, entry_t *entry)
{
    plan_t plan = {.args = args};
    dp_status_t status = run_plan(args, entry, &plan);

    if (status >= 0)
        status = memory_check(args, plan.schedule, plan.held);
    if (status == DP_ERR_INVALID || status == DP_ERR_REJECTED)
        snprintf(entry->reason, sizeof(entry->reason), "%s", without_name(dp_last_error(), entry->method->name));
    plan_clear(&plan);
    return status == DP_ERR_INVALID || status == DP_ERR_REJECTED ? DP_OK : status;
}

static void add_placed(comparison_t *table, const dp_method_t *method, int32_t chunks, topology_placing_t placing)
{
    entry_t *entry = &table->entries[table->count++];
    int n;

    entry->method = method;
    entry->chunks = chunks;
    entry->placing = placing;
    n = chunks > 0 ? snprintf(entry->label, sizeof(entry->label), "%s,%d", method->name, chunks)
                   : snprintf(entry->label, sizeof(entry->label), "%s", method->name);
    if (table->args->on_hosts)
        snprintf(entry->label + n, sizeof(entry->label) - (size_t)n, ", %s", topology_placing_name(placing));
}

static void add_entry(comparison_t *table, const dp_method_t *method, int32_t chunks)
{
    if (!table->args->on_hosts || table->args->topology.hosts != NULL)
        add_placed(table, method, chunks, TOPOLOGY_AS_GIVEN);
    if (table->args->on_hosts)
        for (int placing = TOPOLOGY_BLOCKS; placing <= TOPOLOGY_MIRRORS; placing++)
            add_placed(table, method, chunks, (topology_placing_t)placing);
}

/* Fitting ones first, by step, then by memory; the others in the order of the methods. */
static int by_step(const void *a, const void *b)
{
    const entry_t *x = a, *y = b;
    bool x_fits = x->reason[0] == 0, y_fits = y->reason[0] == 0;

    if (x_fits != y_fits)
        return x_fits ? -1 : 1;
    if (x_fits && fabs(x->step - y->step) > 1e-9 * fmax(x->step, y->step))
        return x->step < y->step ? -1 : 1;
    if (x_fits && x->peak != y->peak)
        return x->peak < y->peak ? -1 : 1;
    if (x->method != y->method)
        return x->method < y->method ? -1 : 1;
    return x->chunks != y->chunks ? x->chunks - y->chunks : (int)x->placing - (int)y->placing;
}

static void find_gains(comparison_t *table)
{
    for (size_t e = 0; e < table->count; e++) {
        entry_t *entry = &table->entries[e];

        entry->gain = (double)NAN;
        for (size_t i = 0; i < table->count; i++) {
            const entry_t *other = &table->entries[i];

            if (strcmp(other->method->name, "1f1b") == 0 && other->placing == entry->placing && other->step > 0.0 &&
                entry->step > 0.0)
                entry->gain = other->step / entry->step - 1.0;
        }
    }
}

dp_status_t comparison_make(comparison_t *table)
{
    size_t methods;
    const dp_method_t *all = dp_schedule_methods(&methods);
    dp_status_t status = DP_OK;

    table->entries = calloc(methods * ARGS_CHUNKS * MOST_PLACINGS, sizeof(*table->entries));
    if (table->entries == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu methods", methods);
    for (size_t m = 0; m < methods; m++) {
        if (all[m].placement != DP_PLACE_LOOP)
            add_entry(table, &all[m], 0);
        for (int k = 0; k < ARGS_CHUNKS && table->args->each_chunks[k] > 0 && all[m].placement == DP_PLACE_LOOP; k++)
            add_entry(table, &all[m], table->args->each_chunks[k]);
    }
    for (size_t e = 0; e < table->count && status >= 0; e++) {
        status = try_entry(table->args, &table->entries[e]);
        table->fitting += table->entries[e].reason[0] == 0;
    }
    find_gains(table);
    qsort(table->entries, table->count, sizeof(*table->entries), by_step);
    return status;
}

void comparison_clear(comparison_t *table)
{
    free(table->entries);
    table->entries = NULL;
}
