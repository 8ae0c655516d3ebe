/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * residual_model.h: a small model in double that touches everything an engine can get wrong: layers
 * of four segments on two lanes, residual inputs, saved and work memory, weights in two of the
 * segments, and a serial run to compare with.
 *
 *   attention  a = x W1            dispatch  b = tanh(a)
 *   mlp        c = b W2 combine y = x + c; at the very end loss = 1/2 sum (y - target)^2
 * and each layer an auxiliary loss of a, which is only counted.
 *
 * The first segment of a pass spoils all memory that is the pass's own from there on, and every
 * segment checks that its scratch is left alone: an order that the engine forgot to keep shows as
 * wrong numbers (and as a race under tsan).
 *
 * With `recompute` a layer keeps x, b and y alone; attention makes a once more, mlp a copy of b,
 * and the gradients that the weights need lie with those. Whoever uses the backward buffer last
 * spoils it. */
#ifndef DP_TESTS_RESIDUAL_MODEL_H
#define DP_TESTS_RESIDUAL_MODEL_H

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>
#include <dualpipe/advanced.h>
#include <dualpipe/dualpipe.h>
#include <dualpipe/plan.h>
#include <dualpipe/run.h>

enum { ROWS = 3, WIDTH = 5, LAYERS = 8, TENSOR = ROWS * WIDTH, WEIGHTS = WIDTH * WIDTH, LAYER_PARAMS = 2 * WEIGHTS };

/* One layer's saved memory, then its work memory of a forward and of a backward. */
typedef struct residual_saved {
    double x[TENSOR], a[TENSOR], b[TENSOR], y[TENSOR], da[TENSOR], dc[TENSOR];
} residual_saved_t;
typedef struct residual_work {
    double c[TENSOR], dy[TENSOR], db[TENSOR];
} residual_work_t;

typedef struct residual_backward_buffer {
    double a[TENSOR], b[TENSOR], da[TENSOR], dc[TENSOR];
} residual_backward_buffer_t;
typedef struct residual_kept {
    double x[TENSOR], b[TENSOR], y[TENSOR];
} residual_kept_t;

/* Where a layer has what. */
typedef struct residual_memory {
    double *x, *a, *b, *y, *da, *dc;
    double *mlp_b; /* that the weights of mlp read */
} residual_memory_t;

enum { SCRATCH = 6 };

typedef struct residual_part {
    const dp_device_vt_t *device;
    dp_segment_t segments[4];
    unsigned delay; /* most yields before a kernel; 0: none */
    unsigned rng;
    unsigned flip; /* bit s: segment s on the other lane than usual */
    int shard;     /* 1: w2 belongs to an expert */
    int recompute;
    long countdown; /* kernels until `fault` is called; 0: never */
    dp_status_t (*fault)(void);
    struct {
        int segment, pass;
        dp_segment_call_t call;
    } failed; /* the kernel that returned fault's error */
} residual_part_t;

typedef struct residual_job {
    residual_part_t *self;
    int segment, pass;
    dp_segment_call_t call;
} residual_job_t;

static double residual_value(unsigned key)
{
    unsigned h = key * 2654435761u;

    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return (double)(h % 20001) / 10000.0 - 1.0;
}

static void residual_params(double *params, int first_layer, int layers)
{
    for (int i = 0; i < layers * LAYER_PARAMS; i++)
        params[i] = 0.5 * residual_value((unsigned)(first_layer * LAYER_PARAMS + i + 17));
}

static void residual_tensor(double *x, unsigned kind, unsigned replica, unsigned microbatch)
{
    for (unsigned i = 0; i < TENSOR; i++)
        x[i] = residual_value(100003u * kind + 7919u * replica + 331u * microbatch + i);
}

/* out = x w, or out = x w^T */
static void residual_multiply(const double *x, const double *w, int transposed, double *out)
{
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < WIDTH; j++) {
            double sum = 0;

            for (int k = 0; k < WIDTH; k++)
                sum += x[r * WIDTH + k] * (transposed ? w[j * WIDTH + k] : w[k * WIDTH + j]);
            out[r * WIDTH + j] = sum;
        }
}

/* dw += x^T dy */
static void residual_weight(const double *x, const double *dy, double *dw)
{
    for (int k = 0; k < WIDTH; k++)
        for (int j = 0; j < WIDTH; j++) {
            double sum = 0;

            for (int r = 0; r < ROWS; r++)
                sum += x[r * WIDTH + k] * dy[r * WIDTH + j];
            dw[k * WIDTH + j] += sum;
        }
}

static double residual_loss(const double *y, const double *target)
{
    double sum = 0;

    for (int i = 0; i < TENSOR; i++)
        sum += 0.5 * (y[i] - target[i]) * (y[i] - target[i]);
    return sum;
}

/* An auxiliary loss of a layer; it has no gradient. */
static double residual_aux(const double *a)
{
    double sum = 0;

    for (int i = 0; i < TENSOR; i++)
        sum += 0.01 * a[i] * a[i];
    return sum;
}

/* ---- the kernels, run by the device's streams ---- */

static residual_memory_t residual_memory(const residual_job_t *job)
{
    residual_saved_t *saved = job->call.saved;
    residual_kept_t *kept = job->call.saved;
    residual_backward_buffer_t *backward_buffer = job->call.backward_buffer;

    if (job->self->recompute)
        return (residual_memory_t){kept->x,           backward_buffer->a,  kept->b,
                                   kept->y,           backward_buffer->da, backward_buffer->dc,
                                   backward_buffer->b};
    return (residual_memory_t){saved->x, saved->a, saved->b, saved->y, saved->da, saved->dc, saved->b};
}

static void residual_forward(const residual_job_t *job, const residual_memory_t *saved, residual_work_t *work)
{
    const dp_segment_call_t *c = &job->call;
    const double *w = c->params;

    switch (job->segment) {
    case 0:
        memset(c->saved, 0xff, job->self->recompute ? sizeof(residual_kept_t) : sizeof(residual_saved_t));
        memset(work, 0xff, sizeof(*work));
        if (job->self->recompute)
            memset(c->backward_buffer, 0xff, sizeof(residual_backward_buffer_t));
        if (c->y != NULL)
            memset(c->y, 0xff, sizeof(work->c));
        memcpy(saved->x, c->x != NULL ? c->x : c->input, sizeof(work->c));
        residual_multiply(saved->x, w, 0, saved->a);
        *c->aux_loss += residual_aux(saved->a);
        break;
    case 1:
        for (int i = 0; i < TENSOR; i++)
            saved->b[i] = tanh(saved->a[i]);
        break;
    case 2:
        residual_multiply(saved->b, w + WEIGHTS, 0, work->c);
        break;
    default:
        for (int i = 0; i < TENSOR; i++)
            saved->y[i] = saved->x[i] + work->c[i];
        if (c->y != NULL)
            memcpy(c->y, saved->y, sizeof(work->c));
        if (c->output != NULL)
            memcpy(c->output, saved->y, sizeof(work->c));
        if (c->target != NULL)
            *c->loss += residual_loss(saved->y, c->target);
    }
}

static void residual_backward(const residual_job_t *job, const residual_memory_t *saved, residual_work_t *work)
{
    const dp_segment_call_t *c = &job->call;
    const double *w = c->params, *dy = c->dy, *target = c->target;
    double *dx = c->dx, t[TENSOR];

    switch (job->segment) {
    case 3:
        memset(work, 0xff, sizeof(*work));
        if (dx != NULL)
            memset(dx, 0xff, sizeof(t));
        for (int i = 0; i < TENSOR; i++)
            work->dy[i] = dy != NULL ? dy[i] : c->loss_scale * (saved->y[i] - target[i]);
        memcpy(saved->dc, work->dy, sizeof(work->dy));
        break;
    case 2:
        residual_multiply(saved->dc, w + WEIGHTS, 1, work->db);
        break;
    case 1:
        for (int i = 0; i < TENSOR && !job->self->recompute; i++)
            saved->da[i] = work->db[i] * (1 - saved->b[i] * saved->b[i]);
        break;
    default:
        for (int i = 0; i < TENSOR && job->self->recompute; i++)
            saved->da[i] = work->db[i] * (1 - tanh(saved->a[i]) * tanh(saved->a[i]));
        residual_multiply(saved->da, w, 1, t);
        for (int i = 0; i < TENSOR && dx != NULL; i++)
            dx[i] = work->dy[i] + t[i];
    }
}

static void residual_delay(residual_part_t *self)
{
    unsigned n;

    if (self->delay == 0)
        return;
    n = __atomic_add_fetch(&self->rng, 2654435761u, __ATOMIC_RELAXED) >> 16;
    for (n %= self->delay; n > 0; n--)
        sched_yield();
}

static void residual_compute(const residual_job_t *job)
{
    const residual_memory_t memory = residual_memory(job), *saved = &memory;
    residual_work_t *work = job->call.work;
    double *grads = job->call.grads;

    if (job->pass == DP_OP_F)
        residual_forward(job, saved, work);
    else if (job->pass == DP_OP_R && job->segment == 0)
        residual_multiply(saved->x, job->call.params, 0, saved->a);
    else if (job->pass == DP_OP_R)
        memcpy(saved->mlp_b, saved->b, sizeof(work->c));
    else if (job->pass == DP_OP_I)
        residual_backward(job, saved, work);
    else if (job->segment == 0)
        residual_weight(saved->x, saved->da, grads);
    else
        residual_weight(saved->mlp_b, saved->dc, grads + WEIGHTS);
    if (job->self->recompute && job->pass == DP_OP_W && job->segment == 0)
        memset(job->call.backward_buffer, 0xff, sizeof(residual_backward_buffer_t));
}

static dp_status_t residual_run(void *arg)
{
    residual_job_t *job = arg;
    double *scratch = job->call.scratch;
    double mark = 1e6 * job->call.microbatch + 1e4 * job->call.stage + 10 * job->segment + job->pass;

    residual_delay(job->self);
    if (job->self->fault != NULL && __atomic_sub_fetch(&job->self->countdown, 1, __ATOMIC_RELAXED) == 0) {
        dp_status_t status = job->self->fault();

        if (status < 0) {
            job->self->failed.segment = job->segment;
            job->self->failed.pass = job->pass;
            job->self->failed.call = job->call;
            return status;
        }
    }
    for (int i = 0; i < SCRATCH; i++)
        scratch[i] = mark + i;
    residual_compute(job);
    for (int i = 0; i < SCRATCH; i++)
        if (scratch[i] != mark + i)
            return DP_ERR_NUMERIC;
    return DP_OK;
}

#define RESIDUAL_FUNCTION(name, segment_, pass_)                                                                       \
    static dp_status_t name(void *self, const dp_segment_call_t *call, dp_stream_t *s)                                 \
    {                                                                                                                  \
        residual_job_t job = {self, segment_, pass_, *call};                                                           \
                                                                                                                       \
        return job.self->device->launch(s, residual_run, &job, sizeof(job));                                           \
    }
RESIDUAL_FUNCTION(residual_f0, 0, DP_OP_F)
RESIDUAL_FUNCTION(residual_f1, 1, DP_OP_F)
RESIDUAL_FUNCTION(residual_f2, 2, DP_OP_F)
RESIDUAL_FUNCTION(residual_f3, 3, DP_OP_F)
RESIDUAL_FUNCTION(residual_i0, 0, DP_OP_I)
RESIDUAL_FUNCTION(residual_i1, 1, DP_OP_I)
RESIDUAL_FUNCTION(residual_i2, 2, DP_OP_I)
RESIDUAL_FUNCTION(residual_i3, 3, DP_OP_I)
RESIDUAL_FUNCTION(residual_w0, 0, DP_OP_W)
RESIDUAL_FUNCTION(residual_w2, 2, DP_OP_W)
RESIDUAL_FUNCTION(residual_r0, 0, DP_OP_R)
RESIDUAL_FUNCTION(residual_r2, 2, DP_OP_R)

static const dp_param_t residual_param_list[2] = {
    {.name = "w1", .kind = DP_PARAM_MATRIX, .count = WEIGHTS, .fan_in = WIDTH},
    {.name = "w2", .kind = DP_PARAM_MATRIX, .offset = WEIGHTS, .count = WEIGHTS, .fan_in = WIDTH},
};
/* w2 as if it were an expert's: not the same on all ranks of the expert group */
static const dp_param_t residual_shard_list[2] = {
    {.name = "w1", .kind = DP_PARAM_MATRIX, .count = WEIGHTS, .fan_in = WIDTH},
    {.name = "w2",
     .kind = DP_PARAM_MATRIX,
     .offset = WEIGHTS,
     .count = WEIGHTS,
     .fan_in = WIDTH,
     .sharded = 1,
     .expert = 5},
};

static const dp_block_sizes_t residual_sizes = {.struct_size = sizeof(residual_sizes),
                                                .saved_bytes = sizeof(residual_saved_t),
                                                .work_bytes = sizeof(residual_work_t),
                                                .scratch_bytes = SCRATCH * sizeof(double),
                                                .param_count = LAYER_PARAMS,
                                                .nparams = 2};

static const dp_block_sizes_t residual_less = {.struct_size = sizeof(residual_less),
                                               .saved_bytes = sizeof(residual_kept_t),
                                               .backward_buffer_bytes = sizeof(residual_backward_buffer_t),
                                               .work_bytes = sizeof(residual_work_t),
                                               .scratch_bytes = SCRATCH * sizeof(double),
                                               .param_count = LAYER_PARAMS,
                                               .nparams = 2};

/* The part points into *self. */
static inline dp_part_t residual_layer(residual_part_t *self)
{
    const dp_segment_t segments[4] = {
        {sizeof(dp_segment_t), "attention", DP_ROLE_ATTENTION, DP_LANE_COMPUTE, self, residual_f0, residual_i0,
         residual_w0, NULL, NULL, NULL, self->recompute ? residual_r0 : NULL, NULL},
        {sizeof(dp_segment_t), "dispatch", DP_ROLE_DISPATCH, DP_LANE_ALL_TO_ALL, self, residual_f1, residual_i1, NULL,
         NULL, NULL, NULL, NULL, NULL},
        {sizeof(dp_segment_t), "mlp", DP_ROLE_MLP, DP_LANE_COMPUTE, self, residual_f2, residual_i2, residual_w2, NULL,
         NULL, NULL, self->recompute ? residual_r2 : NULL, NULL},
        {sizeof(dp_segment_t), "combine", DP_ROLE_COMBINE, DP_LANE_ALL_TO_ALL, self, residual_f3, residual_i3, NULL,
         NULL, NULL, NULL, NULL, NULL},
    };

    memcpy(self->segments, segments, sizeof(segments));
    for (int k = 0; k < 4; k++)
        if ((self->flip >> k & 1) != 0)
            self->segments[k].lane = self->segments[k].lane == DP_LANE_COMPUTE ? DP_LANE_ALL_TO_ALL : DP_LANE_COMPUTE;
    return (dp_part_t){
        .struct_size = sizeof(dp_part_t),
        .nsegments = 4,
        .segments = self->segments,
        .sizes = self->recompute ? &residual_less : &residual_sizes,
        .param_list = self->shard ? residual_shard_list : residual_param_list,
    };
}

/* A stage of layers [stage * LAYERS / stages, (stage + 1) * LAYERS / stages). */
static dp_status_t residual_stage(residual_part_t *self, int32_t stage, int32_t stages, dp_stage_t **stage_out)
{
    int32_t n = LAYERS / stages;
    dp_part_t parts[LAYERS];
    char prefix[LAYERS][16];

    for (int32_t i = 0; i < n; i++) {
        parts[i] = residual_layer(self);
        parts[i].prefix = prefix[i];
        snprintf(prefix[i], sizeof(prefix[i]), "layer%d.", stage * n + i);
    }
    return dp_stage_create(parts, n, sizeof(double) * TENSOR, DP_F64, stage_out);
}

/* ---- the serial run ---- */

typedef struct residual_reference {
    double losses[256];
    double grads[2][LAYERS * LAYER_PARAMS]; /* per half */
    double outputs[256][TENSOR];
    double aux[LAYERS][2]; /* per half */
} residual_reference_t;

/* All micro-batches of one replica, one after the other, no engine anywhere; the last m -
 * first_half of them are summed in the second accumulator. */
static inline void residual_reference_of(residual_reference_t *ref, unsigned replica, int m, int first_half,
                                         double loss_scale)
{
    static _Thread_local double params[LAYERS * LAYER_PARAMS];
    double x[LAYERS + 1][TENSOR], b[LAYERS][TENSOR], a[TENSOR], c[TENSOR], dy[TENSOR], da[TENSOR], target[TENSOR];

    memset(ref, 0, sizeof(*ref));
    residual_params(params, 0, LAYERS);
    for (int microbatch = 0; microbatch < m; microbatch++) {
        double *grads = ref->grads[microbatch < first_half ? 0 : 1];

        residual_tensor(x[0], 1, replica, (unsigned)microbatch);
        residual_tensor(target, 2, replica, (unsigned)microbatch);
        for (int l = 0; l < LAYERS; l++) {
            residual_multiply(x[l], params + l * LAYER_PARAMS, 0, a);
            ref->aux[l][microbatch < m / 2 ? 0 : 1] += residual_aux(a);
            for (int i = 0; i < TENSOR; i++)
                b[l][i] = tanh(a[i]);
            residual_multiply(b[l], params + l * LAYER_PARAMS + WEIGHTS, 0, c);
            for (int i = 0; i < TENSOR; i++)
                x[l + 1][i] = x[l][i] + c[i];
        }
        memcpy(ref->outputs[microbatch], x[LAYERS], sizeof(x[0]));
        ref->losses[microbatch] = residual_loss(x[LAYERS], target);
        for (int i = 0; i < TENSOR; i++)
            dy[i] = loss_scale * (x[LAYERS][i] - target[i]);
        for (int l = LAYERS - 1; l >= 0; l--) {
            residual_multiply(dy, params + l * LAYER_PARAMS + WEIGHTS, 1, c);
            for (int i = 0; i < TENSOR; i++)
                da[i] = c[i] * (1 - b[l][i] * b[l][i]);
            residual_weight(x[l], da, grads + l * LAYER_PARAMS);
            residual_weight(b[l], dy, grads + l * LAYER_PARAMS + WEIGHTS);
            residual_multiply(da, params + l * LAYER_PARAMS, 1, a);
            for (int i = 0; i < TENSOR; i++)
                dy[i] += a[i];
        }
    }
}

static inline void residual_reference(residual_reference_t *ref, unsigned replica, int m, double loss_scale)
{
    residual_reference_of(ref, replica, m, m / 2, loss_scale);
}

#endif
