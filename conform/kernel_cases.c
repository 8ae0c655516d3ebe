/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kernel_cases.c: what every kind of block has to keep, see kernel.h. */
#include "kernel.h"

#include "device_work.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A case that begins with an instance that the plugin supports; leaves the case otherwise. */
#define OPEN_ANY(t, lab, b, seed)                                                                                      \
    if (!conform_lab_open((lab), (t)) || !conform_block_open_any((b), (lab), (seed)))                                  \
    return

void conform_kernel_params_are_those_of_the_header(conform_t *t)
{
    block_t b = {0};
    lab_t lab;

    OPEN_ANY(t, &lab, &b, 1);
    if (!b.kind->list_is_right(&b) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

/* ---- numbers ---- */

static bool output_of(lab_t *lab, const layer_t *layer, uint64_t seed, int *tried)
{
    block_t b = {0};
    pass_t p;

    if (!conform_block_open(&b, lab, layer, seed))
        return !conform_failed(lab->t);
    ++*tried;
    return conform_pass_open(&p, &b, 0) && conform_pass_run(&p, FORWARD, FORWARD) && conform_pass_output_is_right(&p) &&
           conform_pass_close(&p) && conform_block_close(&b);
}

static bool gradients_of(lab_t *lab, const layer_t *layer, uint64_t seed, bool each, int *tried)
{
    block_t b = {0};
    pass_t p[2], *both[2] = {&p[0], &p[1]};

    if (!conform_block_open(&b, lab, layer, seed))
        return !conform_failed(lab->t);
    ++*tried;
    for (int m = 0; m < 2; m++)
        if (!conform_pass_open(&p[m], &b, m) || !conform_pass_run(&p[m], FORWARD, WEIGHT))
            return false;
    return conform_gradients_are_right(&b, both, 2, each) && conform_pass_close(&p[0]) && conform_pass_close(&p[1]) &&
           conform_block_close(&b);
}

static void numbers(conform_t *t, dp_dtype_t dtype, bool gradients)
{
    const kind_t *kind = conform_kernel_kind(t);
    int tried = 0;
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int large = 0; large < 2; large++)
        for (const layer_t *l = large ? kind->larger : kind->layers; l->batch > 0; l++) {
            layer_t layer = *l;

            layer.dtype = dtype;
            if ((gradients || conform_driver_named() != NULL) && (size_t)l->batch * l->sequence > UINT16_MAX)
                continue; /* differences of so many outputs, or threads, take too long */
            if (gradients ? !gradients_of(&lab, &layer, 5, !large, &tried) : !output_of(&lab, &layer, 5, &tried))
                return;
        }
    if (tried == 0)
        conform_skip(t, "none of the suite's layers: %s", conform_last_error());
    conform_lab_close(&lab);
}

/* y, dx and the gradients of a micro-batch, as bytes. */
typedef struct outcome {
    unsigned char *bytes[3];
    size_t saved_bytes;
} outcome_t;

static void free_outcome(const outcome_t *outcome)
{
    for (int i = 0; i < 3; i++)
        free(outcome->bytes[i]);
}

static bool outcome_of(lab_t *lab, const layer_t *layer, dp_recompute_t level, outcome_t *out)
{
    block_t b = {.recompute = level, .deterministic = 1};
    const area_t *made[3];
    pass_t p;

    if (!conform_block_open(&b, lab, layer, 41))
        return false;
    made[0] = &p.y, made[1] = &p.dx, made[2] = &b.grads;
    if (!conform_pass_open(&p, &b, 0) || !conform_pass_run(&p, FORWARD, WEIGHT))
        return false;
    out->saved_bytes = b.sizes.saved_bytes;
    for (int i = 0; i < 3; i++) {
        out->bytes[i] = conform_area_bytes(lab, made[i]);
        if (out->bytes[i] == NULL)
            return false;
    }
    return conform_pass_close(&p) && conform_block_close(&b);
}

/* One layer at all levels. False: the case is at its end; or the layer is not supported, and
 * nothing failed. */
static bool levels_agree(lab_t *lab, const layer_t *layer, int *tried)
{
    static const char *const names[] = {"y", "dx", "a parameter's gradient"};
    const size_t element = dp_dtype_bytes(layer->dtype), sum = dp_dtype_bytes(dp_dtype_accumulator(layer->dtype));
    const size_t tensor = conform_layer_tokens(layer) * layer->hidden * element;
    size_t before = SIZE_MAX;
    outcome_t none = {0};

    for (int level = DP_RECOMPUTE_NONE; level <= (int)DP_RECOMPUTE_FULL; level++) {
        const size_t bytes[3] = {tensor, tensor, conform_kernel_kind(lab->t)->whole(layer) * sum};
        outcome_t one = {0};

        if (!outcome_of(lab, layer, (dp_recompute_t)level, &one)) {
            free_outcome(&none); /* of a plugin that does not recompute */
            return !conform_failed(lab->t);
        }
        CHECK(lab->t, one.saved_bytes <= before, "level %d keeps %zu bytes, the level before it %zu", level,
              one.saved_bytes, before);
        before = one.saved_bytes;
        for (int i = 0; i < 3 && level > 0; i++) {
            CHECK(lab->t, memcmp(one.bytes[i], none.bytes[i], bytes[i]) == 0,
                  "with level %d %s has other bits than with none", level, names[i]);
            free(one.bytes[i]);
        }
        if (level == 0)
            none = one;
    }
    free_outcome(&none);
    ++*tried;
    return true;
}

void conform_kernel_recomputation_changes_no_bit(conform_t *t)
{
    static const dp_dtype_t dtypes[] = {DP_F64, DP_F32, DP_BF16};
    const kind_t *kind = conform_kernel_kind(t);
    int tried = 0;
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int i = 0; i < 3; i++)
        for (const layer_t *l = kind->layers; l->batch > 0; l++) {
            layer_t layer = *l;

            layer.dtype = dtypes[i];
            if (!levels_agree(&lab, &layer, &tried))
                return;
        }
    if (tried == 0)
        conform_skip(t, "none of the suite's layers: %s", conform_last_error());
    conform_lab_close(&lab);
}

void conform_kernel_microbatches_may_be_shorter(conform_t *t)
{
    static const dp_dtype_t dtypes[] = {DP_F64, DP_F32, DP_BF16};
    int tried = 0;
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int i = 0; i < 3; i++)
        for (const layer_t *l = conform_kernel_kind(t)->shorter; l->batch > 0; l++) {
            layer_t layer = *l;

            layer.dtype = dtypes[i];
            if (!output_of(&lab, &layer, 31, &tried) || !gradients_of(&lab, &layer, 31, true, &tried))
                return;
        }
    if (tried == 0)
        conform_skip(t, "none of the suite's layers: %s", conform_last_error());
    conform_lab_close(&lab);
}

void conform_kernel_outputs_f64(conform_t *t)
{
    numbers(t, DP_F64, false);
}

void conform_kernel_outputs_f32(conform_t *t)
{
    numbers(t, DP_F32, false);
}

void conform_kernel_outputs_bf16(conform_t *t)
{
    numbers(t, DP_BF16, false);
}

void conform_kernel_gradients_f64(conform_t *t)
{
    numbers(t, DP_F64, true);
}

void conform_kernel_gradients_f32(conform_t *t)
{
    numbers(t, DP_F32, true);
}

void conform_kernel_gradients_bf16(conform_t *t)
{
    numbers(t, DP_BF16, true);
}

/* The plugin's own sum(y * dy) + aux_scale * auxiliary loss, with what stands in params and x
 * now. */
static bool own_loss(pass_t *p, double *loss_out)
{
    block_t *b = p->block;
    const double begins = 0;
    double *y, *aux;

    if (!conform_area_write(b->lab, &p->x, p->xs[b->rank]) || !conform_area_write(b->lab, &p->aux, &begins) ||
        !conform_pass_run(p, FORWARD, FORWARD))
        return false;
    y = conform_area_read(b->lab, &p->y);
    aux = conform_area_read(b->lab, &p->aux);
    if (y == NULL || aux == NULL)
        return false;
    *loss_out = KERNEL_AUX_SCALE * *aux;
    for (size_t i = 0; i < conform_area_count(&p->y); i++)
        *loss_out += y[i] * p->dys[b->rank][i];
    free(y);
    free(aux);
    return true;
}

/* Along a random direction of count values, which change writes to the device. */
static bool own_slope(pass_t *p, double *values, size_t count, const area_t *area, const double *gradient,
                      const char *name)
{
    const double h = 1e-5;
    double *start = malloc((count + 1) * sizeof(*start)), *direction = malloc((count + 1) * sizeof(*direction));
    double sides[2], along = 0, size = 0, wanted;
    uint64_t state = 3;

    memcpy(start, values, count * sizeof(*start));
    for (size_t i = 0; i < count; i++) {
        direction[i] = (conform_random(&state) & 1) != 0 ? 1 : -1;
        along += direction[i] * gradient[i];
        size += fabs(gradient[i]);
    }
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < count; i++)
            values[i] = start[i] + (side == 0 ? h : -h) * direction[i];
        if (!conform_area_write(p->block->lab, area, area == &p->x ? p->xs[p->block->rank] : p->block->values) ||
            !own_loss(p, &sides[side]))
            return false;
    }
    memcpy(values, start, count * sizeof(*start));
    free(start);
    free(direction);
    wanted = (sides[0] - sides[1]) / (2 * h);
    CHECK(p->block->lab->t, fabs(along - wanted) <= 1e-5 * (1 + size),
          "the gradient of %s along a random direction is %.9g, by differences of the plugin's own outputs %.9g", name,
          along, wanted);
    return conform_area_write(p->block->lab, area, area == &p->x ? p->xs[p->block->rank] : p->block->values);
}

void conform_kernel_gradients_are_those_of_its_own_loss(conform_t *t)
{
    double *dx, *grads;
    block_t b = {0};
    pass_t p;
    lab_t lab;

    OPEN_ANY(t, &lab, &b, 9);
    if (b.layer.dtype != DP_F64) {
        conform_skip(t, "differences of outputs want f64");
        if (conform_block_close(&b))
            conform_lab_close(&lab);
        return;
    }
    if (!conform_pass_open(&p, &b, 0) || !conform_pass_run(&p, FORWARD, WEIGHT))
        return;
    dx = conform_area_read(&lab, &p.dx);
    grads = conform_block_gradients(&b);
    if (dx == NULL || grads == NULL || !own_slope(&p, p.xs[0], conform_area_count(&p.x), &p.x, dx, "x"))
        return;
    for (uint32_t i = 0; i < b.sizes.nparams; i++)
        if (b.list[i].kind != DP_PARAM_ROUTER_BIAS && !own_slope(&p, b.values + b.list[i].offset, b.list[i].count,
                                                                 &b.params, grads + b.list[i].offset, b.list[i].name))
            return;
    free(dx);
    free(grads);
    if (!conform_pass_close(&p) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

/* ---- when calls are made ---- */

/* dx is for the trainer: it is gone by the time of the weights. Kept for the comparison. */
static bool late_weights(pass_t *p)
{
    lab_t *lab = p->block->lab;
    unsigned char *dx = conform_area_bytes(lab, &p->dx);
    bool fine = dx != NULL && conform_area_poison(lab, &p->x) && conform_area_poison(lab, &p->y) &&
                conform_area_poison(lab, &p->dy) && conform_area_poison(lab, &p->dx) &&
                conform_area_poison(lab, &p->work[0]) && conform_area_poison(lab, &p->work[1]) &&
                conform_pass_run(p, WEIGHT, WEIGHT) && conform_area_put(lab, &p->dx, dx);

    free(dx);
    return fine;
}

void conform_kernel_weight_gradients_may_come_late(conform_t *t)
{
    pass_t p[3], *all[3] = {&p[0], &p[1], &p[2]};
    block_t b = {0};
    lab_t lab;

    OPEN_ANY(t, &lab, &b, 13);
    for (int m = 0; m < 3; m++)
        if (!conform_pass_open(&p[m], &b, m) || !conform_pass_run(&p[m], FORWARD, BACKWARD))
            return;
    for (int m = 2; m >= 0; m--)
        if (!late_weights(&p[m]))
            return;
    if (!conform_gradients_are_right(&b, all, 3, true))
        return;
    for (int m = 0; m < 3; m++)
        if (!conform_pass_close(&p[m]))
            return;
    if (!conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

/* As an F&B pair: calls of one's forward between those of the other's backward. */
static bool pair(pass_t *forward, pass_t *backward)
{
    const kind_t *kind = forward->block->kind;
    int f = 0, i = 0;

    while (f < kind->nsteps || i < kind->nsteps) {
        for (; f < kind->nsteps && kind->steps[f].phase != FORWARD; f++)
            ;
        if (f < kind->nsteps && !conform_pass_step(forward, f++))
            return false;
        for (; i < kind->nsteps && kind->steps[i].phase != BACKWARD; i++)
            ;
        if (i < kind->nsteps && !conform_pass_step(backward, i++))
            return false;
    }
    return true;
}

void conform_kernel_microbatches_in_flight_do_not_meet(conform_t *t)
{
    pass_t p[4], *all[4] = {&p[0], &p[1], &p[2], &p[3]};
    block_t b = {0};
    lab_t lab;

    OPEN_ANY(t, &lab, &b, 17);
    for (int m = 0; m < 4; m++)
        if (!conform_pass_open(&p[m], &b, m))
            return;
    if (!conform_pass_run(&p[0], FORWARD, FORWARD) || !conform_pass_run(&p[1], FORWARD, FORWARD) ||
        !pair(&p[2], &p[0]) || !pair(&p[3], &p[1]) || !conform_pass_run(&p[0], WEIGHT, WEIGHT) ||
        !conform_pass_run(&p[2], BACKWARD, WEIGHT) || !conform_pass_run(&p[1], WEIGHT, WEIGHT) ||
        !conform_pass_run(&p[3], BACKWARD, WEIGHT))
        return;
    for (int m = 0; m < 4; m++)
        if (!conform_pass_output_is_right(&p[m]))
            return;
    if (!conform_gradients_are_right(&b, all, 4, true))
        return;
    for (int m = 0; m < 4; m++)
        if (!conform_pass_close(&p[m]))
            return;
    if (!conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

/* The second layer that the plugin supports, of any type but b's if there is one. */
static bool open_other(block_t *other, block_t *b, uint64_t seed)
{
    static const dp_dtype_t dtypes[] = {DP_BF16, DP_F32, DP_F64};
    const kind_t *kind = b->kind;

    for (int i = 0; i < 3; i++)
        for (const layer_t *l = kind->layers; l->batch > 0; l++) {
            layer_t layer = *l;

            layer.dtype = dtypes[i];
            if (layer.sequence == b->layer.sequence && layer.hidden == b->layer.hidden)
                continue;
            if (conform_block_open(other, b->lab, &layer, seed) || conform_failed(b->lab->t))
                return !conform_failed(b->lab->t);
        }
    conform_skip(b->lab->t, "supports one layer of the suite only");
    if (conform_block_close(b))
        conform_lab_close(b->lab);
    return false;
}

void conform_kernel_instances_do_not_meet(conform_t *t)
{
    block_t a = {0}, b = {0};
    pass_t p, q, *ps = &p, *qs = &q;
    lab_t lab;

    OPEN_ANY(t, &lab, &a, 19);
    if (!open_other(&b, &a, 23) || !conform_pass_open(&p, &a, 0) || !conform_pass_open(&q, &b, 0) ||
        !conform_pass_run(&p, FORWARD, FORWARD) || !conform_pass_run(&q, FORWARD, FORWARD) ||
        !conform_pass_run(&p, BACKWARD, BACKWARD) || !conform_pass_run(&q, BACKWARD, BACKWARD) ||
        !conform_pass_run(&p, WEIGHT, WEIGHT) || !conform_pass_output_is_right(&p) ||
        !conform_gradients_are_right(&a, &ps, 1, true) || !conform_pass_close(&p) || !conform_block_close(&a) ||
        !conform_pass_run(&q, WEIGHT, WEIGHT) || !conform_pass_output_is_right(&q) ||
        !conform_gradients_are_right(&b, &qs, 1, true) || !conform_pass_close(&q) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

void conform_kernel_first_stage_needs_no_dx(conform_t *t)
{
    pass_t p, *all = &p;
    block_t b = {0};
    lab_t lab;

    OPEN_ANY(t, &lab, &b, 29);
    if (!conform_pass_open(&p, &b, 0))
        return;
    p.without_dx = true;
    if (!conform_pass_run(&p, FORWARD, WEIGHT) || !conform_gradients_are_right(&b, &all, 1, true) ||
        !conform_pass_close(&p) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

/* y, dx and gradients of a new instance, with memory elsewhere. */
static bool results(lab_t *lab, size_t shift, unsigned char *out[3], size_t bytes[3])
{
    block_t b = {.deterministic = 1, .shift = shift};
    pass_t before, p;

    if (!conform_block_open_any(&b, lab, 31) || !conform_pass_open(&before, &b, 1))
        return false;
    /* what it leaves behind must not show */
    if (shift > 0 && !conform_pass_run(&before, FORWARD, BACKWARD))
        return false;
    if (!conform_pass_open(&p, &b, 0) || !conform_pass_run(&p, FORWARD, WEIGHT))
        return false;
    for (int i = 0; i < 3; i++) {
        const area_t *area = i == 0 ? &p.y : i == 1 ? &p.dx : &b.grads;

        out[i] = conform_area_bytes(lab, area);
        bytes[i] = area->bytes;
    }
    return conform_pass_close(&before) && conform_pass_close(&p) && conform_block_close(&b);
}

void conform_kernel_same_input_same_bits(conform_t *t)
{
    static const char *const names[] = {"y", "dx", "the gradients of parameters"};
    unsigned char *first[3], *again[3];
    size_t bytes[3];
    lab_t lab;

    if (!conform_lab_open(&lab, t) || !results(&lab, 0, first, bytes))
        return;
    for (size_t shift = 0; shift < 4; shift++) {
        if (!results(&lab, shift, again, bytes))
            return;
        for (int i = 0; i < 3; i++) {
            EXPECT(t, memcmp(first[i], again[i], bytes[i]) == 0,
                   "the same input gave other bits of %s the next time (parameters %zu elements off alignment)",
                   names[i], shift);
            free(again[i]);
        }
    }
    for (int i = 0; i < 3; i++)
        free(first[i]);
    conform_lab_close(&lab);
}

/* Each call is made while its stream is held, and returns; x comes into being on the stream only
 * then. */
void conform_kernel_calls_are_enqueued(conform_t *t)
{
    pass_t p, *all = &p;
    block_t b = {0};
    area_t x, dy;
    lab_t lab;

    OPEN_ANY(t, &lab, &b, 37);
    if (!conform_pass_open(&p, &b, 0) || !conform_area_open(&lab, &x, "a copy of x", b.layer.dtype, p.x.bytes, 0) ||
        !conform_area_open(&lab, &dy, "a copy of dy", b.layer.dtype, p.x.bytes, 0) ||
        !conform_area_write(&lab, &x, p.xs[0]) || !conform_area_write(&lab, &dy, p.dys[0]) ||
        !conform_area_poison(&lab, &p.x) || !conform_area_poison(&lab, &p.dy))
        return;
    for (int i = 0; i < b.kind->nsteps; i++) {
        const step_t *s = &b.kind->steps[i];
        dp_stream_t *stream = lab.lanes[s->lane];
        dp_status_t status;
        gate_t gate;

        if (s->lane == 1) { /* the suite's exchanges wait for their stream */
            if (s->dy && !conform_area_write(&lab, &p.dy, p.dys[0]))
                return;
            if (!conform_pass_step(&p, i))
                return;
            continue;
        }
        status = conform_gate_make(&gate, lab.vt, lab.device, t->host);
        if (status == DP_ERR_UNSUPPORTED) {
            conform_skip(t, "nothing holds a stream of this device");
            return;
        }
        EXPECT_OK(t, status);
        EXPECT_OK(t, conform_gate_hold(&gate, stream));
        if (s->x)
            EXPECT_OK(t, lab.vt->copy(stream, conform_area_memory(&p.x), conform_area_memory(&x), x.bytes));
        if (s->dy)
            EXPECT_OK(t, lab.vt->copy(stream, conform_area_memory(&p.dy), conform_area_memory(&dy), dy.bytes));
        EXPECT_STATUS(t, conform_pass_call(&p, i), DP_OK, "%s", s->name);
        conform_gate_open(&gate);
        if (!conform_lab_wait(&lab, s->lane, s->name))
            return;
        conform_gate_free(&gate);
    }
    if (!conform_pass_output_is_right(&p) || !conform_gradients_are_right(&b, &all, 1, true) ||
        !conform_pass_close(&p) || !conform_block_close(&b))
        return;
    conform_area_close(&lab, &x);
    conform_area_close(&lab, &dy);
    conform_lab_close(&lab);
}

/* Its calls without x, y, dy and gradients where they are given, and without saved. */
void conform_kernel_pointers_that_are_missing_are_named(conform_t *t)
{
    static const struct {
        const char *name;
        size_t offset;
    } pointers[] = {{"x", offsetof(dp_io_t, x)},
                    {"y", offsetof(dp_io_t, y)},
                    {"dy", offsetof(dp_io_t, dy)},
                    {"grads", offsetof(dp_io_t, grads)},
                    {"saved", offsetof(dp_io_t, saved)}};
    block_t b = {0};
    pass_t p;
    lab_t lab;

    OPEN_ANY(t, &lab, &b, 39);
    if (!conform_pass_open(&p, &b, 0))
        return;
    for (int i = 0; i < b.kind->nsteps; i++)
        for (size_t k = 0; k < sizeof(pointers) / sizeof(pointers[0]); k++) {
            const char *name = pointers[k].name, *step = b.kind->steps[i].name;
            dp_io_t io = conform_pass_io(&p, i);
            void **pointer = (void **)(void *)((char *)&io + pointers[k].offset);
            dp_status_t status;

            if (*pointer == NULL)
                continue;
            *pointer = NULL;
            conform_forget_error();
            status = b.kind->call(&p, i, &io);
            EXPECT(t, status == DP_ERR_INVALID, "%s without %s returned %s, it has to be DP_ERR_INVALID: %s", step,
                   name, dp_status_name(status), conform_last_error());
            EXPECT(t, strstr(conform_last_error(), name) != NULL, "%s without %s does not name it: \"%s\"", step, name,
                   conform_last_error());
        }
    if (!conform_lab_wait(&lab, 0, "nothing") || !conform_pass_close(&p) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

/* ---- structs of other versions ---- */

static bool works_with(lab_t *lab, uint32_t config, uint32_t shape, uint32_t io, uint32_t outer)
{
    block_t b = {.config_bytes = config, .shape_bytes = shape, .io_bytes = io, .outer_bytes = outer};

    return conform_block_open_any(&b, lab, 41) && conform_block_is_right(&b, true) && conform_block_close(&b);
}

void conform_kernel_structs_may_grow(conform_t *t)
{
    const kind_t *kind = conform_kernel_kind(t);
    lab_t lab;

    if (!conform_lab_open(&lab, t) ||
        !works_with(&lab, kind->config_min, DP_BLOCK_SHAPE_MIN, DP_IO_MIN, kind->outer_min) ||
        !works_with(&lab, kind->config_min + KERNEL_TAIL, 0, 0, 0) ||
        !works_with(&lab, 0, sizeof(dp_block_shape_t) + KERNEL_TAIL, 0, 0) ||
        !works_with(&lab, 0, 0, sizeof(dp_io_t) + KERNEL_TAIL, kind->outer_min + KERNEL_TAIL))
        return;
    conform_lab_close(&lab);
}

static bool refused(block_t *b, const char *what)
{
    const dp_status_t wanted = b->tail != 0 ? DP_ERR_UNSUPPORTED : DP_ERR_INVALID;
    dp_status_t status;

    b->instance = NULL;
    conform_forget_error();
    status = b->kind->open(b);
    CHECK(b->lab->t, status == wanted, "open with %s returned %s, it has to be %s: %s", what, dp_status_name(status),
          dp_status_name(wanted), conform_last_error());
    CHECK(b->lab->t, conform_last_error()[0] != '\0', "open with %s failed without a message", what);
    CHECK(b->lab->t, b->instance == NULL, "open with %s failed and gave an instance", what);
    return true;
}

void conform_kernel_what_is_not_known_is_refused(conform_t *t)
{
    const kind_t *kind = conform_kernel_kind(t);
    block_t b = {0};
    pass_t p;
    lab_t lab;

    OPEN_ANY(t, &lab, &b, 43);
    if (!conform_pass_open(&p, &b, 0))
        return;
    for (int i = 0; i < 2; i++) {
        block_t bad = {.lab = &lab, .kind = kind, .layer = b.layer, .tail = 1};

        if (i == 0)
            bad.config_bytes = kind->config_min + KERNEL_TAIL;
        else
            bad.shape_bytes = sizeof(dp_block_shape_t) + KERNEL_TAIL;
        if (!refused(&bad, i == 0 ? "a config that asks for what is not known" : "a shape that does"))
            return;
    }
    b.tail = 1;
    for (int step = 0; step < kind->nsteps; step++) {
        b.io_bytes = sizeof(dp_io_t) + KERNEL_TAIL;
        EXPECT_STATUS(t, conform_pass_call(&p, step), DP_ERR_UNSUPPORTED,
                      "%s with an io that asks for what is not known", kind->steps[step].name);
        b.io_bytes = 0;
        b.outer_bytes = kind->outer_min + KERNEL_TAIL;
        if (kind->outer_min > 0)
            EXPECT_STATUS(t, conform_pass_call(&p, step), DP_ERR_UNSUPPORTED,
                          "%s with a struct around io that asks for what is not known", kind->steps[step].name);
        b.outer_bytes = 0;
    }
    if (!conform_pass_close(&p) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

void conform_kernel_short_structs_are_refused(conform_t *t)
{
    const kind_t *kind = conform_kernel_kind(t);
    block_t b = {0};
    pass_t p;
    lab_t lab;

    OPEN_ANY(t, &lab, &b, 43);
    if (!conform_pass_open(&p, &b, 0))
        return;
    for (int i = 0; i < 2; i++) {
        block_t bad = {.lab = &lab, .kind = kind, .layer = b.layer};

        bad.config_bytes = i == 0 ? kind->config_min - 4 : 4;
        if (!refused(&bad, "a config that is too short"))
            return;
        bad.config_bytes = 0;
        bad.shape_bytes = i == 0 ? DP_BLOCK_SHAPE_MIN - 4 : 4;
        if (!refused(&bad, "a shape that is too short"))
            return;
        for (int step = 0; step < kind->nsteps; step++) {
            b.io_bytes = i == 0 ? DP_IO_MIN - 8 : 4;
            EXPECT_STATUS(t, conform_pass_call(&p, step), DP_ERR_INVALID, "%s with an io of %u bytes",
                          kind->steps[step].name, b.io_bytes);
            b.io_bytes = 0;
            b.outer_bytes = i == 0 ? kind->outer_min - 8 : 4;
            if (kind->outer_min > 0)
                EXPECT_STATUS(t, conform_pass_call(&p, step), DP_ERR_INVALID, "%s with a struct around io of %u bytes",
                              kind->steps[step].name, b.outer_bytes);
            b.outer_bytes = 0;
        }
    }
    if (!conform_pass_close(&p) || !conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

void conform_kernel_sizes_writes_what_the_caller_has(conform_t *t)
{
    static const uint32_t lengths[] = {sizeof(dp_block_sizes_t) + KERNEL_TAIL, DP_BLOCK_SIZES_MIN, 16, 4};
    block_t b = {0};
    lab_t lab;

    OPEN_ANY(t, &lab, &b, 47);
    for (int i = 0; i < 4; i++) {
        struct {
            dp_block_sizes_t sizes;
            unsigned char behind[KERNEL_TAIL];
        } room;
        const unsigned char *bytes = (const unsigned char *)&room;
        dp_status_t status;

        memset(&room, 0xa5, sizeof(room));
        room.sizes.struct_size = lengths[i];
        status = b.kind->sizes(&b, &room.sizes);
        EXPECT(t, room.sizes.struct_size == lengths[i], "sizes changed the caller's struct_size of %u", lengths[i]);
        for (size_t at = lengths[i]; at < sizeof(room); at++)
            EXPECT(t, bytes[at] == 0xa5, "sizes wrote to byte %zu of a struct of %u bytes", at, lengths[i]);
        EXPECT(t, lengths[i] < DP_BLOCK_SIZES_MIN || status == DP_OK, "sizes with a struct of %u bytes returned %s: %s",
               lengths[i], dp_status_name(status), conform_last_error());
        EXPECT(t, status != DP_OK || lengths[i] < DP_BLOCK_SIZES_MIN || room.sizes.nparams == b.sizes.nparams,
               "sizes with a struct of %u bytes speaks of %u parameters instead of %u", lengths[i], room.sizes.nparams,
               b.sizes.nparams);
    }
    if (!conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

/* ---- what is refused, and what is left behind ---- */

void conform_kernel_wrong_settings_are_refused(conform_t *t)
{
    block_t b = {0};
    lab_t lab;

    OPEN_ANY(t, &lab, &b, 53);
    for (const wrong_t *w = b.kind->wrongs; w->what != NULL; w++) {
        block_t bad = {.lab = &lab, .kind = b.kind, .layer = b.layer, .wrong = w};

        if (!refused(&bad, w->what))
            return;
    }
    if (!conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

void conform_kernel_memory_that_runs_out_leaves_nothing(conform_t *t)
{
    const int64_t before = conform_held(t).blocks;
    block_t b = {0};
    lab_t lab;

    OPEN_ANY(t, &lab, &b, 59);
    if (!conform_block_close(&b))
        return;
    EXPECT(t, conform_held(t).blocks == before || lab.device != NULL, "blocks");
    for (int nth = 1;; nth++) {
        block_t poor = {.lab = &lab, .kind = b.kind, .layer = b.layer};
        const int64_t held = conform_held(t).blocks;
        dp_status_t status;

        conform_lab_refuse(&lab, nth);
        conform_forget_error();
        status = poor.kind->open(&poor);
        if (!conform_lab_refused(&lab)) {
            EXPECT_OK(t, status);
            poor.kind->close(&poor);
            break;
        }
        EXPECT(t, status == DP_ERR_NOMEM, "open returned %s when allocation %d failed, it has to be DP_ERR_NOMEM",
               dp_status_name(status), nth);
        EXPECT(t, conform_last_error()[0] != '\0', "open without memory failed without a message");
        EXPECT(t, conform_held(t).blocks == held, "open failed and kept %d blocks of the host's memory",
               (int)(conform_held(t).blocks - held));
    }
    conform_lab_close(&lab);
}

void conform_kernel_nothing_is_left_behind(conform_t *t)
{
    conform_held_t held[3];
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    conform_kernel_kind(t)->close_nothing(t);
    for (int i = 0; i < 3; i++) { /* libraries make threads at their first use */
        block_t b = {0};
        pass_t p;

        if (!conform_block_open_any(&b, &lab, 61) || !conform_pass_open(&p, &b, 0) ||
            !conform_pass_run(&p, FORWARD, WEIGHT) || !conform_pass_close(&p) || !conform_block_close(&b))
            return;
        held[i] = conform_held(t);
    }
    EXPECT(t, held[2].blocks == held[1].blocks, "close kept %d blocks of the host's memory",
           (int)(held[2].blocks - held[1].blocks));
    EXPECT(t, held[2].threads == held[1].threads, "close left %d threads", held[2].threads - held[1].threads);
    EXPECT(t, held[2].descriptors == held[1].descriptors, "close left %d descriptors",
           held[2].descriptors - held[1].descriptors);
    conform_lab_close(&lab);
}
