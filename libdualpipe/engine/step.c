/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * step.c: runs one step: has it put on the lanes, waits for them, collects what the trainer
 * gets. */
#include "base/do.h"
#include "base/hash.h"
#include "base/sized.h"
#include "engine/engine.h"
#include "group/steps.h"

#include <stdio.h>

static dp_status_t finish_streams(dp_pipeline_t *p)
{
    for (int32_t i = 0; i < dp__stream_count(p); i++)
        DO(dp__stream_finish(p, dp__stream_at(p, i)));
    return DP_OK;
}

static dp_status_t take_step(const dp_pipeline_t *p, const dp_step_t *step, dp_step_t *own)
{
    DO(dp__take("dp_pipeline_step: step", dp_step_t, DP_STEP_MIN, own, step));
    if (p != NULL && p->recovery.reformed)
        return dp_fail(DP_ERR_PEER, "dp_pipeline_step: a rank has been replaced: dp_pipeline_recover goes on");
    return dp__pipeline_check(p, "dp_pipeline_step");
}

/* Every micro-batch of a path that begins or ends here needs the trainer's data. */
static dp_status_t check_list(const dp_pipeline_t *p, const dp_step_t *step, const dp_place_t *place, const char *what,
                              const void *const *list)
{
    const int32_t first = place->path == 1 ? p->schedule->microbatches / 2 : 0;
    const int32_t end = first + dp_schedule_path_microbatches(p->schedule, place->path);

    if (list == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_step_t.%s is NULL, on a rank with stage %d", what, place->stage);
    for (int32_t m = first; m < end && m < step->microbatches; m++)
        if (list[m] == NULL)
            return dp_fail(DP_ERR_INVALID, "dp_step_t.%s[%d] is NULL, on a rank with stage %d", what, m, place->stage);
    return DP_OK;
}

static dp_status_t check_lent(const dp_pipeline_t *p, const dp_step_t *step)
{
    for (int32_t c = 0; c < p->nchunks; c++) {
        const dp_place_t *place = &p->chunks[c].place;

        if (place->prev_rank < 0)
            DO(check_list(p, step, place, "inputs", step->inputs));
        if (place->next_rank < 0 && !step->forward_only)
            DO(check_list(p, step, place, "targets", step->targets));
    }
    return DP_OK;
}

static dp_status_t check_round(const dp_pipeline_t *p, const dp_step_t *step)
{
    if (step->round < 0 || step->round >= step->rounds)
        return dp_fail(DP_ERR_INVALID, "dp_step_t.round is %d of %d rounds", step->round, step->rounds);
    if (!step->forward_only && step->round > 0 && (step->round != p->run.round || step->rounds != p->run.rounds))
        return dp_fail(DP_ERR_INVALID, "dp_step_t.round is %d of %d rounds: %d of %d is next, or 0 of any number",
                       step->round, step->rounds, p->run.round, p->run.rounds);
    return DP_OK;
}

static int32_t count_messages(const dp__plan_t *plan, int32_t link, int32_t microbatches)
{
    int32_t n = 0;

    for (int32_t i = 0; i < plan->commands.npasses; i++)
        n += plan->passes[i].microbatch < microbatches &&
             (plan->passes[i].source == link || plan->passes[i].dest == link);
    return n;
}

/* Messages are numbered as the program counts them, so those of absent micro-batches have to be the
 * last. */
static dp_status_t check_order(const dp_pipeline_t *p, const dp__plan_t *plan, int32_t microbatches)
{
    for (int32_t i = 0; i < plan->commands.npasses; i++) {
        const dp__pass_t *own = &plan->passes[i];
        const dp__step_pass_t *pass = &plan->commands.passes[i];

        if (own->microbatch >= microbatches)
            continue;
        if ((own->source >= 0 && pass->source_at >= count_messages(plan, own->source, microbatches)) ||
            (own->dest >= 0 && pass->dest_at >= count_messages(plan, own->dest, microbatches)))
            return dp_fail(DP_ERR_UNSUPPORTED,
                           "dp_step_t.microbatches is %d of %d: schedule %s does not send its micro-batches in rising "
                           "order; give all of them",
                           microbatches, p->schedule->microbatches, p->schedule->method);
    }
    return DP_OK;
}

static dp_status_t check_microbatches(const dp_pipeline_t *p, const dp__plan_t *plan, const dp_step_t *step)
{
    const int32_t most = p->schedule->microbatches;

    if (step->microbatches < 1 || step->microbatches > most)
        return dp_fail(DP_ERR_INVALID, "dp_step_t.microbatches is %d: the pipeline was opened for 1 to %d",
                       step->microbatches, most);
    if (step->microbatches == most)
        return DP_OK;
    if (p->options.graph)
        return dp_fail(DP_ERR_UNSUPPORTED, "dp_step_t.microbatches is %d of %d: a captured step has all of them",
                       step->microbatches, most);
    return check_order(p, plan, step->microbatches);
}

/* ---- what the other ranks hear ---- */

static uint64_t digest_lengths(const dp_pipeline_t *p, int32_t m, uint64_t hash)
{
    const uint32_t documents = p->lengths.documents[m];

    hash = dp__hash_field(hash, (uint64_t)p->lengths.tokens[m] << 32 | documents);
    for (uint32_t i = 0; i < documents; i++)
        hash = dp__hash_field(hash, p->lengths.ends[(size_t)m * p->options.documents + i]);
    for (uint32_t i = 0; i < documents && p->options.cache_slots > 0 && p->requests.told[m]; i++) {
        const size_t at = (size_t)m * p->options.documents + i;

        hash = dp__hash_field(hash, (uint64_t)p->requests.slot[at] << 32 | p->requests.past[at]);
    }
    return hash;
}

static dp__step_call_t call_of(const dp_pipeline_t *p)
{
    return (dp__step_call_t){.pipeline = p->serial,
                             .call = p->run.calls,
                             .step = p->run.step,
                             .pace_ns = p->run.pace_ns,
                             .first = (uint64_t)(dp_group_rank(p->group) - p->grid.p),
                             .count = (uint64_t)p->grid.pp};
}

static void tell_step(dp_pipeline_t *p, const dp_step_t *step)
{
    dp__step_call_t call = call_of(p);

    call.forward_only = (uint64_t)step->forward_only;
    call.round = (uint64_t)step->round;
    call.rounds = (uint64_t)step->rounds;
    call.microbatches = (uint64_t)step->microbatches;
    call.loss_scale = step->loss_scale;
    call.lengths = DP__HASH_BEGIN;
    for (int32_t m = 0; p->options.tokens > 0 && m < step->microbatches; m++) {
        call.tokens += p->lengths.tokens[m];
        call.documents += p->lengths.documents[m];
        call.lengths = digest_lengths(p, m, call.lengths);
    }
    p->run.calls++;
    dp__group_tell_step(p->group, &call);
}

void dp__step_tell_closed(dp_pipeline_t *p)
{
    dp__step_call_t call = call_of(p);

    call.closed = 1;
    if (!p->run.failed)
        dp__group_tell_step(p->group, &call);
}

/* A step with one rank's update and not the others' would train on, and nothing would look
 * wrong. */
static dp_status_t check_gathered(const dp_pipeline_t *p)
{
    return p->ungathered
               ? dp_fail(DP_ERR_INVALID,
                         "with dp_pipeline_options_t.zero call dp_pipeline_gather behind each update: no rank "
                         "has yet what the others have made of their shards")
               : DP_OK;
}

static void collect_losses(const dp_pipeline_t *p, int32_t microbatches, dp_step_t *step)
{
    const double *aux = p->sums.losses + p->schedule->microbatches;

    step->loss = 0;
    for (int32_t i = 0; i < microbatches; i++) {
        step->loss += dp__lengths_weigh(p, i, p->sums.losses[i]);
        if (step->losses != NULL)
            step->losses[i] = p->sums.losses[i];
    }
    step->aux_loss = 0;
    for (int32_t i = 0; i < p->nparts; i++)
        step->aux_loss += aux[2 * i] + aux[2 * i + 1];
}

static dp_status_t run_step(dp_pipeline_t *p, const dp__plan_t *plan, const dp_step_t *step)
{
    DO(check_microbatches(p, plan, step));
    DO(check_lent(p, step));
    DO(check_round(p, step));
    DO(check_gathered(p));
    DO(dp__lengths_take(p, step));
    DO(dp__requests_take(p, step));
    tell_step(p, step);
    DO(dp__ties_check(p));
    if (!step->forward_only)
        DO(dp__buddy_begin(p));
    DO(p->options.graph ? dp__graph_put(p, plan, step) : dp__step_put(p, plan, step));
    DO(finish_streams(p));
    DO(dp__save_copied(p));
    return dp_group_health(p->group); /* a rank may have found that settings differ */
}

dp_status_t dp_pipeline_step(dp_pipeline_t *p, dp_step_t *step)
{
    int forward_only;
    const dp__plan_t *plan;
    char what[32];
    dp_step_t own;
    dp_status_t status;

    DO(take_step(p, step, &own));
    forward_only = own.forward_only || p->schedule->forward_only;
    own.forward_only = forward_only;
    plan = forward_only && p->programs.forward != NULL ? &p->plans.forward : &p->plans.training;
    if (own.rounds == 0)
        own.rounds = 1;
    if (own.microbatches == 0)
        own.microbatches = p->schedule->microbatches;
    if (own.loss_scale == 0)
        own.loss_scale = 1.0 / ((double)own.microbatches * p->grid.ep * p->grid.dp * own.rounds);
    dp__records_begin(p, plan);
    p->run.plan = plan;
    status = run_step(p, plan, &own);
    if (status < 0) {
        snprintf(what, sizeof(what), "step %u", p->run.step);
        status = dp__engine_fail(p, status, what);
        dp__engine_settle(p); /* what the trainer lent is not used any more */
        return status;
    }
    if (p->gathering)
        p->recovery.torn = false;
    p->gathering = false;
    for (int32_t l = 0; l < p->links.n && !p->graphs.replayed; l++)
        p->links.at[l].base +=
            (uint32_t)(own.microbatches < p->schedule->microbatches ? count_messages(plan, l, own.microbatches)
                                                                    : plan->messages[l]);
    collect_losses(p, own.microbatches, step);
    dp__records_keep(p, plan);
    p->run.step++;
    if (!forward_only) {
        p->run.round = (own.round + 1) % own.rounds;
        p->run.rounds = own.rounds;
        p->ungathered = p->run.round == 0 && dp__zero_is_on(p);
    }
    return DP_OK;
}

dp_status_t dp_pipeline_set_step(dp_pipeline_t *p, uint32_t step)
{
    DO(dp__pipeline_check(p, "dp_pipeline_set_step"));
    p->run.step = p->recovery.step = step;
    return DP_OK;
}
