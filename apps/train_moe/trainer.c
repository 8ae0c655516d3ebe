/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trainer.c: the training step. All ranks take the same decisions from the same bits: losses and
 * sums of squares are summed over the job before anyone looks at them, each parameter counted by
 * one rank. */
#include "trainer.h"

#include "lengths.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- open and close ---- */

/* What lives on the device goes before the device does. */
static void unbuild(void *user)
{
    trainer_t *t = user;

    for (int32_t c = 0; t->chunks != NULL && c < t->nchunks; c++) {
        device_memory_free(&t->memory, t->chunks[c].mean);
        device_memory_free(&t->memory, t->chunks[c].squares);
        device_memory_free(&t->memory, t->chunks[c].master);
        device_memory_free_shared(&t->memory, t->chunks[c].ranges.list);
    }
    device_memory_free_shared(&t->memory, t->squares);
    device_memory_free_shared(&t->memory, t->target_memory);
    device_memory_free_shared(&t->memory, t->token_memory);
    device_memory_close(&t->memory);
    model_close(&t->model);
}

static void retire(void *user)
{
    trainer_t *t = user;

    model_retire(&t->model);
}

static dp_status_t build_stage(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                               dp_stage_t **stage_out)
{
    trainer_t *t = user;

    return model_build_stage(&t->model, context, stage, stages, stage_out);
}

/* GPUs: processes take one each, in turn where there are fewer, as the engine has it; ranks that
 * are threads divide the first among them. */
static dp_device_config_t device_config(const trainer_t *t)
{
    dp_device_config_t config = {.struct_size = sizeof(config), .comm_sms = (uint32_t)t->options->comm_sms};

    if (t->options->threads > 0) {
        config.device = 1;
        config.shares = (uint32_t)dp_group_size(t->group);
        config.share = (uint32_t)dp_group_rank(t->group);
    }
    return config;
}

/* Of the library's attention plugins that of the CPU has caches; others may have none. */
bool trainer_caches(const options_t *o)
{
    const char *named = getenv("DUALPIPE_PLUGINS");

    return o->sample > 0 && o->sample_cache && !o->graph && strcmp(o->device, "cpu") == 0 &&
           (o->attention[0] != '\0' ? strcmp(o->attention, "cpu") == 0
                                    : named == NULL || strstr(named, "attention") == NULL);
}

static dp_status_t open_pipeline(trainer_t *t)
{
    const options_t *o = t->options;
    const bool caches = trainer_caches(o);
    const dp_device_config_t device = device_config(t);
    const dp_pipeline_options_t options = {
        .struct_size = sizeof(options),
        .group = t->group,
        .ep = (int32_t)o->ep,
        .dp = (int32_t)o->dp,
        .method = o->schedule,
        .microbatches = (int32_t)o->microbatches,
        .chunks = (int32_t)o->chunks,
        .microbatch_group = (int32_t)o->microbatch_group,
        .schedule = o->own_schedule,
        .comm = options_plugin(o->comm),
        .device = o->device,
        .device_config = &device,
        .boundary_bytes = model_boundary_bytes(o),
        .dtype = o->dtype,
        .slots = (int32_t)o->slots,
        .trace_steps = (int32_t)o->trace_steps,
        .build = build_stage,
        .user = t,
        .unbuild = unbuild,
        .retire = retire,
        .graph = o->graph,
        .cpu_times = 1,
        .check_finite = o->check_finite,
        .check_bits = (int32_t)o->check_bits,
        .zero = (int32_t)o->zero,
        .buddy = o->buddy && o->eplb == 0, /* experts that move are not gone back with */
        .one_accumulator = o->one_accumulator,
        .tokens = o->varlen || o->documents || caches ? (uint32_t)t->tokens : 0,
        .documents = o->documents || caches ? lengths_most(o) : 0,
        .cache_slots = caches ? (uint32_t)(o->microbatches * o->batch) : 0,
        .cache_tokens = caches ? (uint32_t)o->seq : 0,
    };

    return dp_pipeline_open(&options, &t->pipeline);
}

static int allocate_data(trainer_t *t)
{
    const size_t M = (size_t)t->microbatches;

    if (device_memory_allocate_shared(&t->memory, M * t->tokens, (void **)&t->token_memory) < 0 ||
        device_memory_allocate_shared(&t->memory, M * t->tokens, (void **)&t->target_memory) < 0)
        return 0;
    t->inputs = calloc(M, sizeof(*t->inputs));
    t->targets = calloc(M, sizeof(*t->targets));
    t->losses = calloc((size_t)t->nlosses, sizeof(*t->losses));
    t->lengths = calloc((size_t)t->nlosses, sizeof(*t->lengths));
    t->documents = calloc(M, sizeof(*t->documents));
    t->ends = calloc(M * lengths_most(t->options), sizeof(*t->ends));
    return t->inputs != NULL && t->targets != NULL && t->losses != NULL && t->lengths != NULL && t->documents != NULL &&
           t->ends != NULL;
}

static dp_status_t find_ends(trainer_t *t)
{
    const size_t M = (size_t)t->microbatches;
    uint8_t *first = calloc(2, M), *last = first + M;

    if (first == NULL || !allocate_data(t)) {
        free(first);
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu micro-batches of %zu bytes", M, t->tokens);
    }
    dp_pipeline_ends(t->pipeline, first, last);
    for (size_t microbatch = 0; microbatch < M; microbatch++) {
        t->inputs[microbatch] = first[microbatch] ? t->token_memory + microbatch * t->tokens : NULL;
        t->targets[microbatch] = last[microbatch] ? t->target_memory + microbatch * t->tokens : NULL;
    }
    free(first);
    return DP_OK;
}

static size_t blocks_of(const dp_shard_t *shard)
{
    return (shard->count + DP_SHARD_BLOCK - 1) / DP_SHARD_BLOCK;
}

static dp_status_t allocate_state(trainer_t *t, held_chunk_t *chunk)
{
    const size_t bytes = chunk->view.shard_count * dp_dtype_bytes(dp_dtype_accumulator(t->options->dtype));
    dp_status_t status = device_memory_allocate(&t->memory, bytes, &chunk->mean);

    if (status == DP_OK)
        status = device_memory_allocate(&t->memory, bytes, &chunk->squares);
    if (status == DP_OK && t->options->dtype == DP_BF16)
        status = device_memory_allocate(&t->memory, bytes, &chunk->master);
    if (status == DP_OK)
        status = device_memory_allocate_shared(&t->memory, (chunk->view.nshards + 1) * sizeof(*chunk->ranges.list),
                                               (void **)&chunk->ranges.list);
    if (status == DP_OK)
        adamw_list_ranges(&chunk->view, &chunk->ranges);
    for (uint32_t i = 0; i < chunk->view.nshards; i++)
        t->nblocks += blocks_of(&chunk->view.shard_list[i]);
    return status;
}

/* values: of the whole chunk. */
static dp_status_t put_masters(trainer_t *t, const held_chunk_t *chunk, const char *values)
{
    const size_t size = dp_dtype_bytes(dp_dtype_accumulator(t->options->dtype));
    dp_status_t status = DP_OK;

    for (uint32_t i = 0; i < chunk->view.nshards && status == DP_OK; i++) {
        const dp_shard_t *shard = &chunk->view.shard_list[i];
        const size_t first = chunk->view.param_list[shard->param].offset + shard->first;

        status = device_memory_put(&t->memory, (char *)chunk->master + shard->at * size, values + first * size,
                                   shard->count * size);
    }
    return status;
}

/* First values, made on the host: the master's, and the parameters as their rounding. */
static dp_status_t initialise(trainer_t *t, held_chunk_t *chunk)
{
    const dp_dtype_t dtype = t->options->dtype, wide = dp_dtype_accumulator(dtype);
    const size_t count = chunk->view.param_count;
    char *values = malloc(count * dp_dtype_bytes(wide)), *rounded = malloc(count * dp_dtype_bytes(dtype));
    dp_status_t status = DP_OK;

    if (values == NULL || rounded == NULL) {
        free(values);
        free(rounded);
        return dp_fail(DP_ERR_NOMEM, "no memory for the first parameters of stage %d", chunk->view.stage);
    }
    model_initialise(&t->model, &chunk->view, chunk->numbers, wide, values);
    for (size_t i = 0; i < count; i++)
        dp_number_set(dtype, rounded, i, dp_number_get(wide, values, i));
    if (chunk->master != NULL)
        status = put_masters(t, chunk, values);
    if (status == DP_OK)
        status = device_memory_put(&t->memory, chunk->view.params, rounded, count * dp_dtype_bytes(dtype));
    free(values);
    free(rounded);
    return status;
}

static dp_status_t open_chunk(trainer_t *t, int32_t index)
{
    held_chunk_t *chunk = &t->chunks[index];
    dp_status_t status;

    chunk->view.struct_size = sizeof(chunk->view);
    status = dp_pipeline_chunk(t->pipeline, index, &chunk->view);
    if (status < 0)
        return status;
    chunk->numbers = calloc(chunk->view.nparams + 1, sizeof(*chunk->numbers));
    chunk->counted = calloc(chunk->view.nparams + 1, sizeof(*chunk->counted));
    if (chunk->numbers == NULL || chunk->counted == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the parameters' numbers of stage %d", chunk->view.stage);
    model_number(&t->model, &chunk->view, chunk->numbers);
    status = allocate_state(t, chunk);
    return status == DP_OK ? initialise(t, chunk) : status;
}

/* Numbers, and who counts what, for messages. */
dp_status_t trainer_number(trainer_t *t)
{
    memset(t->owners, 0, (size_t)t->nparams * sizeof(*t->owners));
    for (int32_t c = 0; c < t->nchunks; c++) {
        held_chunk_t *chunk = &t->chunks[c];
        model_number(&t->model, &chunk->view, chunk->numbers);
        for (uint32_t i = 0; i < chunk->view.nparams; i++) {
            chunk->counted[i] =
                chunk->view.param_list[i].kind != DP_PARAM_ROUTER_BIAS && dp_pipeline_counts(t->pipeline, c, i);
        }
        /* whose first elements are counted */
        for (uint32_t i = 0; i < chunk->view.nshards; i++) {
            const dp_shard_t *shard = &chunk->view.shard_list[i];

            if (shard->first == 0 && chunk->counted[shard->param])
                t->owners[chunk->numbers[shard->param]] = dp_group_rank(t->group);
        }
    }
    return dp_pipeline_sum(t->pipeline, t->owners, (size_t)t->nparams);
}

static size_t sum_count(const trainer_t *t)
{
    return (size_t)(t->replicas * t->nlosses + t->nparams) + balance_count(&t->balance) + 1;
}

static dp_status_t open_chunks(trainer_t *t)
{
    dp_status_t status = DP_OK;

    t->nchunks = dp_pipeline_chunks(t->pipeline);
    t->nparams = model_nparams(&t->model);
    t->chunks = calloc((size_t)t->nchunks, sizeof(*t->chunks));
    t->owners = calloc((size_t)t->nparams, sizeof(*t->owners));
    t->sums = calloc(sum_count(t), sizeof(*t->sums));
    if (t->chunks == NULL || t->owners == NULL || t->sums == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d chunks", t->nchunks);
    for (int32_t c = 0; c < t->nchunks && status == DP_OK; c++)
        status = open_chunk(t, c);
    if (status == DP_OK)
        status =
            device_memory_allocate_shared(&t->memory, (t->nblocks + 1) * sizeof(*t->squares), (void **)&t->squares);
    return status;
}

/* Stages may have been built anew. */
static dp_status_t look_again(trainer_t *t)
{
    dp_status_t status = DP_OK;

    model_renewed(&t->model);
    for (int32_t c = 0; c < t->nchunks && status == DP_OK; c++)
        status = dp_pipeline_chunk(t->pipeline, c, &t->chunks[c].view);
    return status == DP_OK ? trainer_number(t) : status;
}

dp_status_t trainer_recover(trainer_t *t, dp_status_t status, int64_t *step)
{
    dp_status_t recovered;

    do {
        recovered = dp_pipeline_recover(t->pipeline, status, step);
        if (recovered < 0 && (recovered != DP_ERR_LOST || *t->options->checkpoint == '\0'))
            return recovered; /* nothing to go on with */
        status = look_again(t);
    } while (status < 0); /* one more has died */
    return recovered;
}

static dp_status_t clear_trainer(trainer_t *t, void *memory, size_t bytes)
{
    void *zeros = calloc(1, bytes);
    const dp_status_t status = zeros == NULL ? dp_fail(DP_ERR_NOMEM, "no memory for %zu zeros", bytes)
                                             : device_memory_put(&t->memory, memory, zeros, bytes);

    free(zeros);
    return status;
}

dp_status_t trainer_begin_again(trainer_t *t)
{
    dp_status_t status = DP_OK;

    balance_forget(&t->balance);
    for (int32_t c = 0; c < t->nchunks && status == DP_OK; c++) {
        held_chunk_t *chunk = &t->chunks[c];
        const size_t bytes = chunk->view.shard_count * dp_dtype_bytes(dp_dtype_accumulator(t->options->dtype));

        status = clear_trainer(t, chunk->mean, bytes);
        if (status == DP_OK)
            status = clear_trainer(t, chunk->squares, bytes);
        if (status == DP_OK)
            status = initialise(t, chunk);
    }
    return status;
}

dp_status_t trainer_open(const options_t *options, const text_t *text, dp_group_t *group, trainer_t *t)
{
    dp_status_t status;

    *t = (trainer_t){
        .options = options,
        .text = text,
        .group = group,
        .model = {.options = options},
        .replicas = (int32_t)(options->ep * options->dp),
        .microbatches = (int32_t)options->microbatches,
        .nlosses = (int32_t)(options->microbatches * options->accumulate),
        .tokens = (size_t)(options->batch * options->seq),
    };
    status = balance_open(options, &t->balance);
    t->model.placement = t->balance.placement;
    if (status == DP_OK)
        status = open_pipeline(t);
    if (status == DP_OK) {
        t->replica = t->model.context.data_rank * t->model.context.expert_size + t->model.context.expert_rank;
        status = device_memory_open(&t->memory, &t->model.context);
    }
    if (status == DP_OK)
        status = find_ends(t);
    if (status == DP_OK)
        status = open_chunks(t);
    if (status < 0)
        trainer_close(t);
    return status;
}

static void free_numbers(held_chunk_t *chunk)
{
    free(chunk->numbers);
    free(chunk->counted);
}

void trainer_close(trainer_t *t)
{
    dp_pipeline_close(t->pipeline);
    model_free(&t->model);
    for (int32_t c = 0; t->chunks != NULL && c < t->nchunks; c++)
        free_numbers(&t->chunks[c]);
    free(t->chunks);
    free(t->owners);
    free(t->sums);
    free(t->losses);
    free(t->lengths);
    free(t->documents);
    free(t->ends);
    free(t->targets);
    free(t->inputs);
    balance_close(&t->balance);
    *t = (trainer_t){0};
}

size_t trainer_optimizer_bytes(const trainer_t *t)
{
    size_t bytes = 0;

    for (int32_t c = 0; c < t->nchunks; c++)
        bytes += (t->options->dtype == DP_BF16 ? 3 : 2) * t->chunks[c].view.shard_count *
                 dp_dtype_bytes(dp_dtype_accumulator(t->options->dtype));
    return bytes;
}

size_t trainer_bytes(const trainer_t *t)
{
    size_t bytes = 2 * (size_t)t->microbatches * t->tokens + trainer_optimizer_bytes(t);

    bytes += dp_moe_block_replica_bytes(t->model.block);
    return bytes;
}

/* ---- gradients ---- */

/* The micro-batches of a round of a training step, as data replica `replica` sees them. */
static void fill_chunk(trainer_t *t, int64_t step, int32_t round, int32_t replica)
{
    const options_t *o = t->options;

    for (int32_t microbatch = 0; microbatch < t->microbatches; microbatch++) {
        const int32_t index = round * t->microbatches + microbatch;
        uint32_t *ends = t->ends + (size_t)microbatch * lengths_most(o), count, first = 0;

        t->lengths[index] = lengths_draw(o, step, replica, index, ends, &count);
        t->documents[microbatch] = (dp_documents_t){ends, count};
        for (uint32_t s = 0; s < count; first = ends[s++]) {
            const size_t at = (size_t)microbatch * t->tokens + first;
            text_sample(t->text, (uint64_t)o->seed, (uint64_t)step, (uint64_t)replica, (uint64_t)index, s,
                        ends[s] - first, t->token_memory + at, t->target_memory + at);
        }
    }
}

/* Tokens of a training step, of all replicas. */
static double count_step(const trainer_t *t, int64_t step, int32_t replicas)
{
    double sum = 0;

    if (!t->options->varlen)
        return (double)t->nlosses * replicas * (double)t->tokens;
    for (int32_t replica = 0; replica < replicas; replica++)
        for (int32_t index = 0; index < t->nlosses; index++)
            sum += lengths_draw(t->options, step, replica, index, NULL, NULL);
    return sum;
}

double trainer_tokens(const trainer_t *t, int64_t steps)
{
    double sum = 0;

    for (int64_t step = 0; step < steps; step++)
        sum += count_step(t, step, t->replicas);
    return sum;
}

dp_status_t trainer_gradients(trainer_t *t, int64_t step, int32_t replica, int32_t replicas)
{
    const options_t *o = t->options;
    const int32_t rounds = (int32_t)o->accumulate;
    dp_status_t status = DP_OK;

    t->step_tokens = count_step(t, step, replicas);
    for (int32_t round = 0; round < rounds && status == DP_OK; round++) {
        dp_step_t one = {
            .struct_size = sizeof(one),
            .inputs = t->inputs,
            .targets = t->targets,
            .loss_scale = 1.0 / (t->step_tokens / (double)t->tokens),
            .losses = t->losses + round * t->microbatches,
            .round = round,
            .rounds = rounds,
            .tokens = o->varlen ? t->lengths + round * t->microbatches : NULL,
            .documents = o->documents ? t->documents : NULL,
        };

        fill_chunk(t, step, round, replica);
        status = dp_pipeline_step(t->pipeline, &one);
    }
    return status;
}

/* ---- sums over the job ---- */

/* Squares of the shards that this rank counts, one after the other; *blocks: how many there are so
 * far. */
static dp_status_t square_chunk(trainer_t *t, const held_chunk_t *chunk, size_t *blocks)
{
    const compute_vt_t *vt = t->model.ends.vt;
    const size_t element = dp_dtype_bytes(dp_dtype_accumulator(t->options->dtype));
    dp_status_t status = DP_OK;

    for (uint32_t i = 0; i < chunk->view.nshards && status == DP_OK; i++) {
        const dp_shard_t *shard = &chunk->view.shard_list[i];
        const size_t first = chunk->view.param_list[shard->param].offset + shard->first;

        if (!chunk->counted[shard->param])
            continue;
        status = vt->sum_of_squares(t->model.ends.compute, (const char *)chunk->view.grads + first * element,
                                    shard->count, t->squares + *blocks, t->memory.stream);
        *blocks += blocks_of(shard);
    }
    return status;
}

/* Of a loss of ours in the mean over all tokens of the step, 1 where all micro-batches have as
 * many. */
static double weight(const trainer_t *t, int32_t i)
{
    return t->lengths[i] / (t->step_tokens / ((double)t->nlosses * t->replicas));
}

/* Of each parameter, to see which is not finite. */
static void add_squares(const trainer_t *t, double *sums)
{
    const double *squares = t->squares;

    memset(sums, 0, (size_t)t->nparams * sizeof(*sums));
    for (int32_t c = 0; c < t->nchunks; c++)
        for (uint32_t i = 0; i < t->chunks[c].view.nshards; i++) {
            const dp_shard_t *shard = &t->chunks[c].view.shard_list[i];

            for (size_t k = 0; k < blocks_of(shard) && t->chunks[c].counted[shard->param]; k++)
                sums[t->chunks[c].numbers[shard->param]] += *squares++;
        }
}

/* *blocks_out: how many squares there are. */
static dp_status_t sum_own_part(trainer_t *t, size_t *blocks_out)
{
    const size_t losses = (size_t)(t->replicas * t->nlosses);
    dp_status_t status = DP_OK;

    memset(t->sums, 0, losses * sizeof(*t->sums));
    for (int32_t i = 0; t->model.context.pipeline_rank == 0 && i < t->nlosses; i++)
        t->sums[t->replica * t->nlosses + i] = t->losses[i] * weight(t, i);
    *blocks_out = 0;
    for (int32_t c = 0; c < t->nchunks && status == DP_OK; c++)
        status = square_chunk(t, &t->chunks[c], blocks_out);
    if (status == DP_OK)
        status = device_memory_finish(&t->memory);
    if (status < 0)
        return status;
    add_squares(t, t->sums + losses);
    t->sums[sum_count(t) - 1] = t->stop != NULL && *t->stop == SIGTERM;
    return trainer_count_tokens(t, t->sums + losses + t->nparams);
}

/* World rank whose last stage computes micro-batch mb of a replica. */
static int32_t loss_rank(const trainer_t *t, int32_t replica, int32_t microbatch)
{
    const dp_schedule_t *schedule = dp_pipeline_program(t->pipeline)->schedule;
    const int32_t path = microbatch < dp_schedule_path_microbatches(schedule, 0) ? 0 : 1;
    dp_place_t place;

    for (int32_t rank = 0; rank < schedule->ranks; rank++)
        for (int32_t chunk = 0; chunk < schedule->chunks; chunk++) {
            dp_schedule_place(schedule, rank, chunk, &place);
            if (place.path == path && place.next_rank < 0)
                return replica * schedule->ranks + rank;
        }
    return -1;
}

static dp_status_t check_losses(const trainer_t *t, int64_t step)
{
    for (int32_t i = 0; i < t->replicas * t->nlosses; i++)
        if (!isfinite(t->sums[i]))
            return dp_fail(DP_ERR_NUMERIC, "rank %d: step %lld: the loss of micro-batch %d is %g",
                           loss_rank(t, i / t->nlosses, i % t->microbatches), (long long)step, i % t->nlosses,
                           t->sums[i]);
    return DP_OK;
}

static dp_status_t check_squares(const trainer_t *t, int64_t step)
{
    const double *squares = t->sums + t->replicas * t->nlosses;
    char where[64];

    for (int32_t i = 0; i < t->nparams; i++)
        if (!isfinite(squares[i])) {
            model_describe(&t->model, i, where, sizeof(where));
            return dp_fail(DP_ERR_NUMERIC, "rank %d: step %lld: the gradient of %s is not finite", (int)t->owners[i],
                           (long long)step, where);
        }
    return DP_OK;
}

static double mean(const double *losses, int32_t n)
{
    double sum = 0;

    for (int32_t i = 0; i < n; i++)
        sum += losses[i];
    return sum / n;
}

/* ---- steps ---- */

/* A chunk from element `first` on, as the optimizer sees it, and what it keeps from `at` on. */
static adamw_tensor_t tensor_at(const trainer_t *t, const held_chunk_t *chunk, size_t first, size_t at, size_t count)
{
    const dp_dtype_t dtype = t->options->dtype;
    const size_t wide = dp_dtype_bytes(dp_dtype_accumulator(dtype));

    return (adamw_tensor_t){
        .params = (char *)chunk->view.params + first * dp_dtype_bytes(dtype),
        .master = chunk->master != NULL ? (char *)chunk->master + at * wide : NULL,
        .mean = (char *)chunk->mean + at * wide,
        .squares = (char *)chunk->squares + at * wide,
        .grads = (const char *)chunk->view.grads + first * wide,
        .count = count,
    };
}

/* One call for all that AdamW updates, one for each router's bias, which is whole on every rank. */
static dp_status_t update_chunk(trainer_t *t, const held_chunk_t *chunk, const adamw_factors_t *factors)
{
    const compute_vt_t *vt = t->model.ends.vt;
    compute_t *compute = t->model.ends.compute;
    const adamw_tensor_t all = tensor_at(t, chunk, 0, 0, chunk->view.param_count);
    dp_status_t status = vt->adamw(compute, factors, &all, &chunk->ranges, t->memory.stream);

    for (uint32_t i = 0; i < chunk->view.nshards && status == DP_OK; i++) {
        const dp_shard_t *shard = &chunk->view.shard_list[i];
        const dp_param_t *param = &chunk->view.param_list[shard->param];
        const adamw_tensor_t bias = tensor_at(t, chunk, param->offset, shard->at, param->count);

        if (param->kind == DP_PARAM_ROUTER_BIAS)
            status = vt->balance(compute, t->options->bias_rate, &bias, t->memory.stream);
    }
    return status;
}

static dp_status_t update(trainer_t *t, int64_t step, double grad_scale)
{
    const adamw_factors_t factors = adamw_factors(t->options, step, grad_scale);
    dp_status_t status = DP_OK;

    for (int32_t c = 0; c < t->nchunks && status == DP_OK; c++)
        status = update_chunk(t, &t->chunks[c], &factors);
    if (status == DP_OK)
        status = device_memory_finish(&t->memory);
    return status == DP_OK ? dp_pipeline_gather(t->pipeline) : status;
}

dp_status_t trainer_apply(trainer_t *t, int64_t step, step_result_t *result_out)
{
    const double clip = t->options->clip;
    double squared = 0;
    size_t blocks;
    dp_status_t status = sum_own_part(t, &blocks);

    if (status < 0)
        return status;
    status = dp_pipeline_sum(t->pipeline, t->sums, sum_count(t));
    if (status == DP_OK)
        status = check_losses(t, step);
    if (status == DP_OK)
        status = check_squares(t, step);
    if (status == DP_OK)
        status = dp_pipeline_exact_sum(t->pipeline, t->squares, blocks, &squared);
    if (status == DP_OK)
        status = dp_pipeline_commit(t->pipeline);
    if (status < 0)
        return status;
    *result_out = (step_result_t){.loss = mean(t->sums, t->replicas * t->nlosses),
                                  .norm = sqrt(squared),
                                  .rate = learning_rate(t->options, step),
                                  .stop = t->sums[sum_count(t) - 1] > 0,
                                  .counts = true};
    if (balance_count(&t->balance) > 0)
        status = balance_observe(&t->balance, t->sums + t->replicas * t->nlosses + t->nparams);
    if (status < 0)
        return status;
    return update(t, step, clip > 0 && result_out->norm > clip ? clip / result_out->norm : 1);
}

dp_status_t trainer_step(trainer_t *t, int64_t step, step_result_t *result_out)
{
    const dp_status_t status = trainer_gradients(t, step, t->replica, t->replicas);

    return status == DP_OK ? trainer_apply(t, step, result_out) : status;
}

static void fill_valid(trainer_t *t)
{
    const options_t *o = t->options;
    const uint64_t each = (uint64_t)(t->microbatches * o->batch);

    for (uint64_t i = 0; i < each; i++)
        text_valid(t->text, (uint64_t)t->replica * each + i, (uint64_t)t->replicas * each, (uint32_t)o->seq,
                   t->token_memory + i * (size_t)o->seq, t->target_memory + i * (size_t)o->seq);
}

dp_status_t trainer_validate(trainer_t *t, double *loss_out)
{
    dp_step_t step = {
        .struct_size = sizeof(step),
        .inputs = t->inputs,
        .targets = t->targets,
        .forward_only = 1,
        .losses = t->losses,
    };
    dp_status_t status;

    fill_valid(t);
    status = dp_pipeline_step(t->pipeline, &step);
    if (status < 0)
        return status;
    memset(t->sums, 0, (size_t)(t->replicas * t->microbatches) * sizeof(*t->sums));
    if (t->model.context.pipeline_rank == 0)
        memcpy(t->sums + t->replica * t->microbatches, t->losses, (size_t)t->microbatches * sizeof(double));
    status = dp_pipeline_sum(t->pipeline, t->sums, (size_t)(t->replicas * t->microbatches));
    *loss_out = mean(t->sums, t->replicas * t->microbatches);
    return status;
}
