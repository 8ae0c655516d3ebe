/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * verify.c: one step of the job against the same model run serially: in every process, for every
 * data replica, a pipeline of one rank over that replica's micro-batches; gradients of replicas
 * added in order.
 *
 * Losses and the gradients of all that is not an expert must agree to the last bit; experts too
 * unless they are spread over an expert group, where an expert adds up its micro-batches of all
 * replicas in another order. Then the measure is that of the published DualPipe example: 1 - 2
 * sum(xy) / sum(x^2 + y^2), in double.
 *
 * Where experts are replicated, an expert's rows are divided among matrix products in another way,
 * so losses too agree to rounding alone. With --eplb EVERY both sides train for 2 EVERY + 2 steps,
 * so that the placement changes twice and every step's losses and gradients are those of parameters
 * and optimizer state that have moved; at the end all replicas of an expert must be equal to the
 * last bit.
 *
 * With --zero each rank compares its shards. Both sides take one step more, unless experts are
 * spread over an expert group: then the parameters that ranks have got from each other show in
 * every loss and gradient. */
#include "train_moe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE 1e-13

/* Where experts are replicated: relative difference of losses, measure of gradients after steps of
 * training. */
#define LOSS_TOLERANCE(dtype)    ((dtype) == DP_F64 ? 1e-12 : 1e-5)
#define REPLICA_TOLERANCE(dtype) ((dtype) == DP_F64 ? TOLERANCE : 1e-9)

/* What the serial run says of each parameter of the whole model, by number. */
typedef struct expected {
    size_t *at, *count; /* in elements, into grads */
    char *grads;        /* sum over replicas */
} expected_t;

/* A trainer of one rank, which holds the whole model. */
typedef struct serial {
    options_t options;
    dp_group_t *alone;
    trainer_t trainer;
    int is_open;
    expected_t expected;
} serial_t;

typedef struct findings {
    int32_t losses, losses_equal, losses_close;
    double worst_loss;          /* relative difference */
    int32_t exact, exact_equal; /* tensors that must be equal to the last bit */
    int32_t close, close_enough, close_equal;
    int32_t replicas, replicas_equal;
    double worst; /* measure over all tensors of this rank */
    int32_t worst_number;
    int32_t p, e, d;
} findings_t;

/* ---- the serial side ---- */

static void add_to(dp_dtype_t dtype, char *sum, const char *more, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (dtype == DP_F64)
            ((double *)sum)[i] += ((const double *)more)[i];
        else
            ((float *)sum)[i] += ((const float *)more)[i];
}

/* The gradients of a chunk, on the host; the caller frees them. */
static dp_status_t fetch_grads(trainer_t *t, const held_chunk_t *chunk, char **grads_out)
{
    const size_t bytes = chunk->view.param_count * dp_dtype_bytes(dp_dtype_accumulator(t->options->dtype));
    char *grads = malloc(bytes);
    dp_status_t status;

    if (grads == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory to look at the gradients of stage %d", chunk->view.stage);
    status = device_memory_get(&t->memory, grads, chunk->view.grads, bytes);
    if (status < 0)
        free(grads);
    else
        *grads_out = grads;
    return status;
}

static dp_status_t prepare_reference(const trainer_t *serial, expected_t *x)
{
    const held_chunk_t *chunk = &serial->chunks[0];

    x->at = calloc((size_t)serial->nparams, sizeof(*x->at));
    x->count = calloc((size_t)serial->nparams, sizeof(*x->count));
    x->grads = calloc(chunk->view.param_count, dp_dtype_bytes(dp_dtype_accumulator(serial->options->dtype)));
    if (x->at == NULL || x->count == NULL || x->grads == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the gradient of the whole model");
    for (uint32_t i = 0; i < chunk->view.nparams; i++) {
        x->at[chunk->numbers[i]] = chunk->view.param_list[i].offset;
        x->count[chunk->numbers[i]] = chunk->view.param_list[i].count;
    }
    return DP_OK;
}

static int is_replicated(const trainer_t *t)
{
    return t->options->replicas > 0;
}

static int64_t verify_steps(const trainer_t *t)
{
    return t->options->eplb > 0 ? 2 * t->options->eplb + 2 : t->options->zero != 0 && t->options->ep == 1 ? 2 : 1;
}

static void compare_losses(const trainer_t *trainer, const trainer_t *serial, findings_t *found)
{
    for (int32_t microbatch = 0; microbatch < trainer->nlosses; microbatch++) {
        const double ours = trainer->losses[microbatch], theirs = serial->losses[microbatch],
                     d = fabs(ours / theirs - 1);
        found->losses++;
        found->losses_equal += memcmp(&ours, &theirs, sizeof(double)) == 0;
        found->losses_close += d < LOSS_TOLERANCE(trainer->options->dtype);
        found->worst_loss = d <= found->worst_loss ? found->worst_loss : d;
    }
}

/* Every replica's gradient in turn; the first is copied, as 0 + x is not x when x is -0. */
static dp_status_t run_replicas(const trainer_t *trainer, trainer_t *serial, int64_t step, expected_t *x,
                                findings_t *found)
{
    const size_t count = serial->chunks[0].view.param_count;
    const dp_dtype_t dtype = dp_dtype_accumulator(serial->options->dtype);

    for (int32_t replica = 0; replica < trainer->replicas; replica++) {
        char *grads;
        dp_status_t status;

        status = trainer_gradients(serial, step, replica, trainer->replicas);
        if (status < 0)
            return status;
        status = fetch_grads(serial, &serial->chunks[0], &grads);
        if (status < 0)
            return status;
        if (replica == 0)
            memcpy(x->grads, grads, count * dp_dtype_bytes(dtype));
        else
            add_to(dtype, x->grads, grads, count);
        free(grads);
        if (replica == trainer->replica)
            compare_losses(trainer, serial, found);
    }
    return DP_OK;
}

static dp_status_t open_serial(const trainer_t *trainer, serial_t *s)
{
    dp_status_t status = dp_group_local(1, NULL, &s->alone);
    int64_t begin = 0;

    if (status < 0)
        return status;
    s->options = *trainer->options;
    s->options.pp = s->options.ep = s->options.dp = 1;
    s->options.chunks = s->options.microbatch_group = s->options.slots = 0;
    s->options.eplb = s->options.replicas = s->options.zero = 0;
    s->options.schedule = "1f1b";
    if (dp_schedule_paths(dp_pipeline_program(trainer->pipeline)->schedule) == 2)
        s->options.one_accumulator = 0; /* each end has one for its half */
    s->options.recompute = DP_RECOMPUTE_NONE;
    s->options.segments = "whole";
    s->options.own_schedule = NULL;
    s->options.own_partition = NULL;
    status = trainer_open(&s->options, trainer->text, s->alone, &s->trainer);
    s->is_open = status == DP_OK;
    if (status == DP_OK)
        status = trainer_recover(&s->trainer, DP_OK, &begin);
    return status == DP_OK ? prepare_reference(&s->trainer, &s->expected) : status;
}

static void close_serial(serial_t *s)
{
    if (s->is_open)
        trainer_close(&s->trainer);
    dp_group_leave(s->alone);
    free(s->expected.at);
    free(s->expected.count);
    free(s->expected.grads);
}

/* The serial side's training step, with the gradient of all replicas. */
static dp_status_t apply_serially(serial_t *s, int64_t step)
{
    const dp_chunk_view_t *view = &s->trainer.chunks[0].view;
    step_result_t result;
    dp_status_t status = device_memory_put(&s->trainer.memory, (void *)(uintptr_t)view->grads, s->expected.grads,
                                           view->param_count * dp_dtype_bytes(dp_dtype_accumulator(s->options.dtype)));

    return status == DP_OK ? trainer_apply(&s->trainer, step, &result) : status;
}

/* ---- comparison ---- */

static double difference(dp_dtype_t dtype, const char *a, const char *b, size_t count)
{
    double products = 0, squares = 0;

    for (size_t i = 0; i < count; i++) {
        const double x = dp_number_get(dtype, a, i), y = dp_number_get(dtype, b, i);
        products += x * y;
        squares += x * x + y * y;
    }
    return squares == 0 ? 0 : fabs(1 - 2 * products / squares);
}

static double tolerance(const trainer_t *t)
{
    return is_replicated(t) ? REPLICA_TOLERANCE(t->options->dtype) : TOLERANCE;
}

static void compare_param(const trainer_t *t, const expected_t *x, const dp_param_t *param, const dp_shard_t *shard,
                          const char *grads, int32_t number, findings_t *found)
{
    const dp_dtype_t dtype = dp_dtype_accumulator(t->options->dtype);
    const char *ours = grads + (param->offset + shard->first) * dp_dtype_bytes(dtype);
    const char *theirs = x->grads + (x->at[number] + shard->first) * dp_dtype_bytes(dtype);
    const int same_size = x->count[number] == param->count;
    const int same = same_size && memcmp(ours, theirs, shard->count * dp_dtype_bytes(dtype)) == 0;
    const double d = same_size ? difference(dtype, ours, theirs, shard->count) : INFINITY;

    if ((!param->sharded || t->options->ep == 1) && !is_replicated(t)) {
        found->exact++;
        found->exact_equal += same;
    } else {
        found->close++;
        found->close_enough += d < tolerance(t);
        found->close_equal += same;
    }
    if (!(d <= found->worst)) {
        found->worst = d;
        found->worst_number = number;
    }
}

static dp_status_t compare_gradients(trainer_t *t, const expected_t *x, findings_t *found)
{
    for (int32_t c = 0; c < t->nchunks; c++) {
        const held_chunk_t *chunk = &t->chunks[c];
        char *grads;
        const dp_status_t status = fetch_grads(t, chunk, &grads);
        if (status < 0)
            return status;
        for (uint32_t i = 0; i < chunk->view.nshards; i++) {
            const dp_shard_t *shard = &chunk->view.shard_list[i];

            compare_param(t, x, &chunk->view.param_list[shard->param], shard, grads, chunk->numbers[shard->param],
                          found);
        }
        free(grads);
    }
    return DP_OK;
}

/* FNV-1a of all that follows an expert. */
static dp_status_t hash_replicas(trainer_t *t, const model_layer_t *layer, int32_t local, uint64_t *hash_out)
{
    dp_replica_memory_t kept[TRAINER_KEPT];
    const int count = trainer_kept(t, layer, kept);
    dp_status_t status = DP_OK;

    for (int32_t i = 0; i < local; i++)
        hash_out[i] = 0xcbf29ce484222325u;
    for (int m = 0; m < count && status == DP_OK; m++) {
        const size_t bytes = kept[m].bytes;
        uint8_t *memory = malloc((size_t)local * bytes);
        if (memory == NULL)
            return dp_fail(DP_ERR_NOMEM, "no memory to look at %d replicas", local);
        status = device_memory_get(&t->memory, memory, kept[m].memory, (size_t)local * bytes);
        for (size_t i = 0; i < (size_t)local * bytes; i++)
            hash_out[i / bytes] = (hash_out[i / bytes] ^ memory[i]) * 0x100000001b3u;
        free(memory);
    }
    return status;
}

/* hashes [ranks][layers][local], 0 where a rank does not hold the layer: those of one expert must
 * be the same. */
static void compare_hashes(const trainer_t *t, const uint64_t *hashes, int32_t local, findings_t *found)
{
    const options_t *o = t->options;

    for (int64_t layer = 0; layer < o->layers; layer++)
        for (int64_t expert = 0; expert < o->experts; expert++) {
            uint64_t first = 0;
            for (int32_t rank = 0; rank < dp_group_size(t->group); rank++)
                for (int32_t i = 0; i < local; i++) {
                    const uint64_t hash = hashes[(rank * o->layers + layer) * local + i];
                    const int64_t replica = rank / o->pp % o->ep * local + i;
                    if (hash == 0 || t->balance.placement[layer * o->replicas + replica] != expert)
                        continue;
                    first = first == 0 ? hash : first;
                    found->replicas++;
                    found->replicas_equal += hash == first;
                }
        }
}

static dp_status_t compare_replicas(trainer_t *t, findings_t *found)
{
    const int32_t local = options_local_experts(t->options);
    const size_t count = (size_t)t->options->layers * (size_t)local, ranks = (size_t)dp_group_size(t->group);
    uint64_t *hashes;
    dp_status_t status = DP_OK;

    if (!is_replicated(t))
        return DP_OK;
    hashes = calloc((ranks + 1) * count, sizeof(*hashes));
    if (hashes == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory to compare the replicas of %zu ranks", ranks);
    for (int k = 0; k < t->model.nlayers && status == DP_OK; k++)
        status = hash_replicas(t, &t->model.layers[k], local, hashes + t->model.layers[k].number * local);
    if (status == DP_OK)
        status = dp_group_all_gather(t->group, hashes, count * sizeof(*hashes), hashes + count);
    if (status == DP_OK)
        compare_hashes(t, hashes + count, local, found);
    free(hashes);
    return status;
}

static int passed(const trainer_t *t, const findings_t *f)
{
    if (is_replicated(t))
        return f->losses > 0 && f->losses_close == f->losses && f->close > 0 && f->close_enough == f->close &&
               f->replicas > 0 && f->replicas_equal == f->replicas;
    return f->losses > 0 && f->exact > 0 && f->losses_equal == f->losses && f->exact_equal == f->exact &&
           f->close_enough == f->close;
}

/* ---- */

static void print_exact(const trainer_t *t, const findings_t *all, int32_t size, FILE *to)
{
    char where[64];

    fprintf(to, "rank  p  e  d  losses equal  tensors equal  expert shards < %.0e (equal)   worst difference\n",
            TOLERANCE);
    for (int32_t r = 0; r < size; r++) {
        const findings_t *f = &all[r];
        model_describe(&t->model, f->worst_number, where, sizeof(where));
        fprintf(to, "%4d %2d %2d %2d  %5d of %3d  %6d of %4d        %5d of %4d (%4d)   %.1e%s%s %s\n", r, f->p, f->e,
                f->d, f->losses_equal, f->losses, f->exact_equal, f->exact, f->close_enough, f->close, f->close_equal,
                f->worst, f->worst > 0 ? " in " : "", f->worst > 0 ? where : "", passed(t, f) ? "" : "FAILED");
    }
}

static void print_replicated(const trainer_t *t, const findings_t *all, int32_t size, FILE *to)
{
    int64_t replicas = 0;
    double sent = 0;

    fprintf(to, "rank  p  e  d  losses < %.0e (worst)  tensors < %.0e (worst)   replicas equal\n",
            LOSS_TOLERANCE(t->options->dtype), tolerance(t));
    for (int32_t r = 0; r < size; r++) {
        const findings_t *f = &all[r];
        fprintf(to, "%4d %2d %2d %2d    %4d of %4d (%.1e)  %5d of %5d (%.1e)  %4d of %4d %s\n", r, f->p, f->e, f->d,
                f->losses_close, f->losses, f->worst_loss, f->close_enough, f->close, f->worst, f->replicas_equal,
                f->replicas, passed(t, f) ? "" : "FAILED");
    }
    for (int64_t i = 0; i < t->balance.nrecords; i++) {
        replicas += t->balance.records[i].replicas;
        sent += t->balance.records[i].sent;
    }
    fprintf(to, "%lld plans in %lld steps: %lld replicas moved, %.0f bytes sent\n", (long long)t->balance.nrecords,
            (long long)verify_steps(t), (long long)replicas, sent);
}

static dp_status_t conclude(trainer_t *t, const findings_t *found, FILE *to, int *same_out)
{
    const int32_t size = dp_group_size(t->group);
    findings_t *all = calloc((size_t)size, sizeof(*all));
    dp_status_t status = all == NULL ? dp_fail(DP_ERR_NOMEM, "no memory for the findings of %d ranks", size)
                                     : dp_group_all_gather(t->group, found, sizeof(*found), all);

    *same_out = 1;
    for (int32_t r = 0; status == DP_OK && r < size; r++)
        *same_out &= passed(t, &all[r]);
    if (status == DP_OK && dp_group_rank(t->group) == 0) {
        (is_replicated(t) ? print_replicated : print_exact)(t, all, size, to);
        fprintf(to, "verify: %s pp %d ep %d dp %d, %d micro-batches: %s\n", t->options->schedule, (int)t->options->pp,
                (int)t->options->ep, (int)t->options->dp, t->nlosses,
                *same_out ? "the same as a serial run" : "NOT the same as a serial run");
    }
    free(all);
    return status;
}

static dp_status_t verify_step(trainer_t *t, serial_t *serial, int64_t step, findings_t *found)
{
    step_result_t result;
    rebalance_t made;
    dp_status_t status;

    status = trainer_gradients(t, step, t->replica, t->replicas);
    if (status == DP_OK && step == 0)
        status = open_serial(t, serial);
    if (status == DP_OK)
        status = run_replicas(t, &serial->trainer, step, &serial->expected, found);
    if (status == DP_OK)
        status = compare_gradients(t, &serial->expected, found);
    if (status < 0 || step + 1 == verify_steps(t))
        return status;
    status = apply_serially(serial, step);
    if (status == DP_OK)
        status = trainer_apply(t, step, &result);
    return status == DP_OK && balance_is_due(&t->balance, step + 1) ? trainer_rebalance(t, step + 1, &made) : status;
}

dp_status_t verify_run(trainer_t *t, FILE *to, int *same_out)
{
    findings_t found = {
        .p = t->model.context.pipeline_rank, .e = t->model.context.expert_rank, .d = t->model.context.data_rank};
    serial_t serial = {.is_open = 0};
    dp_status_t status = DP_OK;

    for (int64_t step = 0; step < verify_steps(t) && status == DP_OK; step++)
        status = verify_step(t, &serial, step, &found);
    if (status == DP_OK)
        status = compare_replicas(t, &found);
    if (status == DP_OK)
        status = conclude(t, &found, to, same_out);
    close_serial(&serial);
    return status;
}
