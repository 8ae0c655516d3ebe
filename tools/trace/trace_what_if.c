/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_what_if.c: a run simulated as it was measured, and again with changes. */
#include "trace_what_if.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/io/cost_keys.h"
#include "trace_run.h"

typedef struct what_if {
    const trace_args_t *args;
    const trace_run_t *run;
    const char *title;
    dp_costs_t costs; /* of the run, changed */
    dp_segment_costs_t segments;
    double *rank_scale;
    dp_link_costs_t links[2 * TRACE_LINKS];
    int32_t *first, *parts; /* [stages + 1], [stages]: of --partition */
    dp_simulation_t before, after;
} what_if_t;

/* ---- changes ---- */

static dp_status_t change_ranks(what_if_t *x)
{
    const int32_t ranks = x->run->schedule->ranks;

    if (x->args->scaled > ranks)
        return dp_fail(DP_ERR_INVALID, "--rank-scale: rank %d: the run has %d", x->args->scaled - 1, ranks);
    x->rank_scale = calloc((size_t)ranks, sizeof(*x->rank_scale));
    if (x->rank_scale == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d ranks", ranks);
    for (int32_t r = 0; r < ranks; r++)
        x->rank_scale[r] = x->run->rank_scale[r] * (x->args->rank_scale != NULL ? x->args->rank_scale[r] : 1.0);
    x->costs.rank_scale = x->rank_scale;
    return DP_OK;
}

static bool are_linked(const dp_program_t *program, const trace_link_t *link)
{
    for (int32_t c = 0; c < program->nchannels; c++)
        for (int way = 0; way < 2; way++)
            if (program->channels[c].src == link->ranks[way] && program->channels[c].dst == link->ranks[1 - way])
                return link->ranks[0] != link->ranks[1];
    return false;
}

/* A message passes its link, and then takes the latency that was measured. What takes time on a
 * link does not keep the lane that made it. */
static dp_status_t change_links(what_if_t *x)
{
    for (int32_t k = 0; k < x->args->nlinks; k++) {
        const trace_link_t *link = &x->args->links[k];

        if (!are_linked(x->run->program, link))
            return dp_fail(DP_ERR_INVALID, "--link: ranks %d and %d send each other nothing in this run",
                           link->ranks[0], link->ranks[1]);
        for (int way = 0; way < 2; way++)
            x->links[2 * k + way] = (dp_link_costs_t){.from = link->ranks[way],
                                                      .to = link->ranks[1 - way],
                                                      .hop = x->costs.hop,
                                                      .bandwidth = link->ms > 0.0 ? 1.0 / link->ms : 0.0};
    }
    if (x->args->nlinks > 0)
        x->segments.inline_messages = 0;
    x->costs.bytes = 1.0;
    x->costs.links = x->links;
    x->costs.nlinks = 2 * x->args->nlinks;
    return DP_OK;
}

static dp_status_t read_parts(what_if_t *x, int32_t stages, int32_t all)
{
    const char *at = x->args->partition;
    int32_t count = 0, sum = 0;

    do {
        double value;
        const char *end = cost_keys_number(at, &value);

        if (end == NULL || (*end != ',' && *end != 0) || value < 1.0 || value > all || value != floor(value) ||
            count == stages)
            return dp_fail(DP_ERR_INVALID, "--partition %s: %d numbers of 1 or more are expected, one for each stage",
                           x->args->partition, stages);
        x->parts[count++] = (int32_t)value;
        sum += (int32_t)value;
        at = end;
    } while (*at++ == ',' && sum <= all);
    if (count != stages || sum != all)
        return dp_fail(DP_ERR_INVALID, "--partition %s: %d stages with %d parts together are expected",
                       x->args->partition, stages, all);
    return DP_OK;
}

static int32_t count_parts(const dp_segment_costs_t *segments, int32_t from, int32_t to)
{
    int32_t parts = 0;

    for (int32_t k = from; k < to; k++)
        parts += k == 0 || segments->list[k].begins_part != 0;
    return parts;
}

/* Parts stay in their order; where one stage ends and the next begins moves. */
static dp_status_t change_partition(what_if_t *x)
{
    const dp_segment_costs_t *had = &x->run->segments;
    int32_t stage = 0, part = 0;
    dp_status_t status;

    if (x->args->partition == NULL)
        return DP_OK;
    if (x->run->costs.segments == NULL)
        return dp_fail(DP_ERR_REJECTED, "--partition: the trace does not have all segments of every stage");
    x->first = calloc((size_t)had->stages + 1, sizeof(*x->first));
    x->parts = calloc((size_t)had->stages, sizeof(*x->parts));
    if (x->first == NULL || x->parts == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d stages", had->stages);
    status = read_parts(x, had->stages, count_parts(had, 0, had->first[had->stages]));
    for (int32_t k = 0; k < had->first[had->stages] && status >= 0; k++) {
        if ((k == 0 || had->list[k].begins_part != 0) && part++ == x->parts[stage]) {
            x->first[++stage] = k;
            part = 1;
        }
        x->first[had->stages] = k + 1;
    }
    x->segments.first = x->first;
    return status;
}

static dp_status_t change_run(what_if_t *x)
{
    dp_status_t status;

    x->costs = x->run->costs;
    if (x->costs.segments != NULL) {
        x->segments = x->run->segments;
        x->costs.segments = &x->segments;
    }
    status = change_ranks(x);
    if (status >= 0)
        status = change_links(x);
    if (status >= 0)
        status = change_partition(x);
    if (status >= 0)
        status = dp_simulate(x->run->program, &x->run->costs, 0, &x->before);
    if (status >= 0)
        status = dp_simulate(x->run->program, &x->costs, 0, &x->after);
    return status;
}

/* ---- output ---- */

static void put_changes(const what_if_t *x, FILE *to)
{
    const char *head = "what if    ";

    for (int32_t r = 0; r < x->args->scaled; r++)
        if (x->args->rank_scale[r] != 1.0) {
            fprintf(to, "%srank %d takes %g times as long\n", head, r, x->args->rank_scale[r]);
            head = "           ";
        }
    for (int32_t k = 0; k < x->args->nlinks; k++) {
        fprintf(to, "%sa message between ranks %d and %d takes %g ms\n", head, x->args->links[k].ranks[0],
                x->args->links[k].ranks[1], x->args->links[k].ms);
        head = "           ";
    }
    if (x->first == NULL)
        return;
    fprintf(to, "%sstages have %s parts instead of ", head, x->args->partition);
    for (int32_t s = 0; s < x->segments.stages; s++)
        fprintf(to, "%s%d", s > 0 ? "," : "",
                count_parts(&x->run->segments, x->run->segments.first[s], x->run->segments.first[s + 1]));
    fputc('\n', to);
}

static void put_result(const what_if_t *x, FILE *to)
{
    const dp_schedule_t *s = x->run->schedule;
    const double before = x->before.step_time, after = x->after.step_time, longer = after - before;
    char sizes[64];

    fprintf(to, "trace      %s, step %d: %s, %d chunk%s per rank (%s)\n", x->title, x->run->step,
            output_sizes(s->ranks, s->microbatches, sizes, sizeof(sizes)), s->chunks, s->chunks == 1 ? "" : "s",
            dp_placement_name(s->placement));
    fprintf(to, "measured   %.6g ms\nsimulated  %.6g ms, %+.1f %%%s\n", x->run->measured_step, before,
            100.0 * (before / x->run->measured_step - 1.0),
            x->run->metered ? ": without the time that threads waited for cores" : "");
    put_changes(x, to);
    fprintf(to, "step       %.6g ms simulated, %.4g ms %s (%+.1f %%)\n", after, fabs(longer),
            longer < 0.0 ? "shorter" : "longer", before > 0.0 ? 100.0 * longer / before : 0.0);
    fputs("\nrank    busy, ms      then     idle      then\n", to);
    for (int32_t r = 0; r < s->ranks; r++)
        fprintf(to, "%4d %11.6g %9.6g %6.1f %%  %6.1f %%\n", r, before - x->before.bubble[r],
                after - x->after.bubble[r], before > 0.0 ? 100.0 * fabs(x->before.bubble[r]) / before : 0.0,
                after > 0.0 ? 100.0 * fabs(x->after.bubble[r]) / after : 0.0);
    fputs("\nidle: not computing, from the step's start to its end, as simulated.\n", to);
}

dp_status_t trace_what_if_put(const trace_args_t *args, const dp_trace_t *trace, const char *title, output_t *output)
{
    trace_run_t run;
    what_if_t x = {.args = args,
                   .run = &run,
                   .title = title,
                   .before = {.struct_size = sizeof(x.before)},
                   .after = {.struct_size = sizeof(x.after)}};
    dp_status_t status = trace_run_read(trace, &run);

    if (status >= 0)
        status = change_run(&x);
    if (status >= 0)
        put_result(&x, output->file);
    dp_simulation_clear(&x.before);
    dp_simulation_clear(&x.after);
    free(x.rank_scale);
    free(x.first);
    free(x.parts);
    trace_run_clear(&run);
    return status;
}
