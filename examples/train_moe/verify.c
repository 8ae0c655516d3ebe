/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * verify.c: one step of the job against the same model run serially: in every process, for every data
 * replica, a pipeline of one rank over that replica's micro-batches; gradients of replicas added in order.
 *
 * Losses and the gradients of all that is not an expert must agree to the last bit; experts too unless they
 * are spread over an expert group, where an expert adds up its micro-batches of all replicas in another
 * order. Then the measure is that of the published DualPipe example: 1 - 2 sum(xy) / sum(x^2 + y^2), in
 * double. */
#include "train_moe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "number.h"

#define TOLERANCE 1e-13

/* What the serial run says of each parameter of the whole model, by number. */
typedef struct expected {
    size_t *at, *count; /* in elements, into grads */
    char *grads;        /* sum over replicas       */
} expected_t;

typedef struct findings {
    int32_t losses, losses_equal;
    int32_t exact, exact_equal; /* tensors that must be equal to the last bit */
    int32_t close, close_enough, close_equal;
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
    dp_status_t st;

    if (grads == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory to look at the gradients of stage %d", chunk->view.stage);
    st = device_memory_get(&t->memory, grads, chunk->view.grads, bytes);
    if (st < 0)
        free(grads);
    else
        *grads_out = grads;
    return st;
}

static dp_status_t prepare(const trainer_t *serial, expected_t *x)
{
    const held_chunk_t *chunk = &serial->chunks[0];

    x->at = calloc((size_t)serial->nparams, sizeof(*x->at));
    x->count = calloc((size_t)serial->nparams, sizeof(*x->count));
    x->grads = calloc(chunk->view.param_count, dp_dtype_bytes(dp_dtype_accumulator(serial->options->dtype)));
    if (x->at == NULL || x->count == NULL || x->grads == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the gradient of the whole model");
    for (uint32_t i = 0; i < chunk->view.nparams; i++) {
        x->at[chunk->numbers[i]] = chunk->view.param[i].offset;
        x->count[chunk->numbers[i]] = chunk->view.param[i].count;
    }
    return DP_OK;
}

static void compare_losses(const trainer_t *trainer, const trainer_t *serial, findings_t *found)
{
    for (int32_t mb = 0; mb < trainer->microbatches; mb++) {
        found->losses++;
        found->losses_equal += memcmp(&trainer->losses[mb], &serial->losses[mb], sizeof(double)) == 0;
    }
}

/* Every replica's gradient in turn; the first is copied, as 0 + x is not x when x is -0. */
static dp_status_t run_replicas(const trainer_t *trainer, trainer_t *serial, expected_t *x, findings_t *found)
{
    const size_t count = serial->chunks[0].view.param_count;
    const dp_dtype_t dtype = dp_dtype_accumulator(serial->options->dtype);

    for (int32_t replica = 0; replica < trainer->replicas; replica++) {
        char *grads;
        dp_status_t st;

        trainer_fill(serial, 0, replica);
        st = trainer_gradients(serial, 1.0 / (double)(trainer->microbatches * trainer->replicas));
        if (st < 0)
            return st;
        st = fetch_grads(serial, &serial->chunks[0], &grads);
        if (st < 0)
            return st;
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

static dp_status_t run_serially(const trainer_t *trainer, expected_t *x, findings_t *found)
{
    options_t options = *trainer->options;
    dp_group_t *alone = NULL;
    trainer_t serial;
    dp_status_t st = dp_group_local(1, NULL, &alone);

    if (st < 0)
        return st;
    options.pp = options.ep = options.dp = 1;
    options.chunks = options.slots = 0;
    options.schedule = "1f1b";
    st = trainer_open(&options, trainer->text, alone, &serial);
    if (st == DP_OK) {
        st = prepare(&serial, x);
        if (st == DP_OK)
            st = run_replicas(trainer, &serial, x, found);
        trainer_close(&serial);
    }
    dp_group_leave(alone);
    return st;
}

/* ---- comparison ---- */

static double difference(dp_dtype_t dtype, const char *a, const char *b, size_t count)
{
    double products = 0, squares = 0;

    for (size_t i = 0; i < count; i++) {
        const double x = number_get(dtype, a, i), y = number_get(dtype, b, i);
        products += x * y;
        squares += x * x + y * y;
    }
    return squares == 0 ? 0 : fabs(1 - 2 * products / squares);
}

static void compare_param(const trainer_t *t, const expected_t *x, const dp_param_t *param, const char *grads,
                          int32_t number, findings_t *found)
{
    const dp_dtype_t dtype = dp_dtype_accumulator(t->options->dtype);
    const char *ours = grads + param->offset * dp_dtype_bytes(dtype);
    const char *theirs = x->grads + x->at[number] * dp_dtype_bytes(dtype);
    const int same_size = x->count[number] == param->count;
    const int same = same_size && memcmp(ours, theirs, param->count * dp_dtype_bytes(dtype)) == 0;
    const double d = same_size ? difference(dtype, ours, theirs, param->count) : INFINITY;

    if (param->expert < 0 || t->options->ep == 1) {
        found->exact++;
        found->exact_equal += same;
    } else {
        found->close++;
        found->close_enough += d < TOLERANCE;
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
        const dp_status_t st = fetch_grads(t, chunk, &grads);
        if (st < 0)
            return st;
        for (uint32_t i = 0; i < chunk->view.nparams; i++)
            compare_param(t, x, &chunk->view.param[i], grads, chunk->numbers[i], found);
        free(grads);
    }
    return DP_OK;
}

static int passed(const findings_t *f)
{
    return f->losses > 0 && f->exact > 0 && f->losses_equal == f->losses && f->exact_equal == f->exact &&
           f->close_enough == f->close;
}

/* ---- */

static void print_table(const trainer_t *t, const findings_t *all, int32_t size, FILE *to)
{
    char where[64];

    fprintf(to,
            "rank  p  e  d  losses equal  tensors equal  expert shards < %.0e (equal)   worst difference\n",
            TOLERANCE);
    for (int32_t r = 0; r < size; r++) {
        const findings_t *f = &all[r];
        model_describe(&t->model, f->worst_number, where, sizeof(where));
        fprintf(to, "%4d %2d %2d %2d  %5d of %3d  %6d of %4d        %5d of %4d (%4d)   %.1e%s%s %s\n", r,
                f->p, f->e, f->d, f->losses_equal, f->losses, f->exact_equal, f->exact, f->close_enough,
                f->close, f->close_equal, f->worst, f->worst > 0 ? " in " : "", f->worst > 0 ? where : "",
                passed(f) ? "" : "FAILED");
    }
}

static dp_status_t conclude(trainer_t *t, const findings_t *found, FILE *to, int *same_out)
{
    const int32_t size = dp_group_size(t->group);
    findings_t *all = calloc((size_t)size, sizeof(*all));
    dp_status_t st = all == NULL ? dp_fail(DP_ERR_NOMEM, "no memory for the findings of %d ranks", size)
                                 : dp_group_all_gather(t->group, found, sizeof(*found), all);

    *same_out = 1;
    for (int32_t r = 0; st == DP_OK && r < size; r++)
        *same_out &= passed(&all[r]);
    if (st == DP_OK && dp_group_rank(t->group) == 0) {
        print_table(t, all, size, to);
        fprintf(to, "verify: %s pp %d ep %d dp %d, %d micro-batches: %s\n", t->options->schedule,
                (int)t->options->pp, (int)t->options->ep, (int)t->options->dp, t->microbatches,
                *same_out ? "the same as a serial run" : "NOT the same as a serial run");
    }
    free(all);
    return st;
}

dp_status_t verify_run(trainer_t *t, FILE *to, int *same_out)
{
    findings_t found = {
        .p = t->model.context.pp_rank, .e = t->model.context.ep_rank, .d = t->model.context.dp_rank};
    expected_t x = {0};
    dp_status_t st;

    trainer_fill(t, 0, t->replica);
    st = trainer_gradients(t, 1.0 / (double)(t->microbatches * t->replicas));
    if (st == DP_OK)
        st = run_serially(t, &x, &found);
    if (st == DP_OK)
        st = compare_gradients(t, &x, &found);
    if (st == DP_OK)
        st = conclude(t, &found, to, same_out);
    free(x.at);
    free(x.count);
    free(x.grads);
    return st;
}
