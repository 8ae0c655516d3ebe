/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_problem.h: one attention instance with its memory: guarded, poisoned, and filled with random
 * values. */
#ifndef ATTENTION_PROBLEM_H
#define ATTENTION_PROBLEM_H

#include "attention_naive.h"
#include "attention_rig.h"

#include <check.h>

enum { GUARD_BYTES = 128, GUARD_VALUE = 0xa5, POISON_NAN = 0xff, POISON_ZERO = 0x00, POISON_LARGE = 0x7e };

/* Elements of a dtype between two guards; the first guard is longer by `shift`, which moves the elements
 * off alignment. */
typedef struct buffer {
    unsigned char *base;
    size_t bytes, shift;
    dp_dtype_t dtype;
} buffer_t;

static inline size_t element_bytes(dp_dtype_t dtype)
{
    return dtype == DP_F32 ? sizeof(float) : sizeof(double);
}

static inline void buffer_open(buffer_t *b, dp_dtype_t dtype, size_t bytes, size_t shift)
{
    void *memory = NULL;

    ck_assert_int_eq(posix_memalign(&memory, GUARD_BYTES, bytes + shift + 2 * GUARD_BYTES), 0);
    *b = (buffer_t){memory, bytes, shift, dtype};
    memset(b->base, GUARD_VALUE, bytes + shift + 2 * GUARD_BYTES);
}

static inline void *buffer_data(const buffer_t *b)
{
    return b->base + GUARD_BYTES + b->shift;
}

static inline size_t buffer_count(const buffer_t *b)
{
    return b->bytes / element_bytes(b->dtype);
}

static inline void buffer_poison(const buffer_t *b, int value)
{
    memset(buffer_data(b), value, b->bytes);
}

static inline double buffer_get(const buffer_t *b, size_t i)
{
    return b->dtype == DP_F32 ? (double)((const float *)buffer_data(b))[i]
                              : ((const double *)buffer_data(b))[i];
}

static inline void buffer_set(const buffer_t *b, size_t i, double value)
{
    if (b->dtype == DP_F32)
        ((float *)buffer_data(b))[i] = (float)value;
    else
        ((double *)buffer_data(b))[i] = value;
}

/* The values as doubles; the caller frees them. */
static inline double *buffer_copy(const buffer_t *b)
{
    double *copy = malloc(buffer_count(b) * sizeof(*copy));

    ck_assert_ptr_nonnull(copy);
    for (size_t i = 0; i < buffer_count(b); i++)
        copy[i] = buffer_get(b, i);
    return copy;
}

static inline void buffer_check(const buffer_t *b)
{
    for (size_t i = 0; i < GUARD_BYTES + b->shift; i++)
        ck_assert_uint_eq(b->base[i], GUARD_VALUE);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        ck_assert_uint_eq(b->base[GUARD_BYTES + b->shift + b->bytes + i], GUARD_VALUE);
}

/* Uniform in [-1, 1), the same on every machine. */
static inline double next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-52 - 1;
}

typedef struct problem {
    rig_t rig;
    dp_attention_config_t config;
    dp_attention_t *attention;
    dp_block_sizes_t sizes;
    size_t shift; /* elements by which all buffers are off alignment */
    buffer_t params, grads, saved, work, scratch, x, y, dy, dx;
} problem_t;

enum { N_BUFFERS = 9 };
static inline buffer_t *problem_buffer(problem_t *p, size_t i)
{
    buffer_t *const all[N_BUFFERS] = {&p->params, &p->grads, &p->saved, &p->work, &p->scratch,
                                      &p->x,      &p->y,     &p->dy,    &p->dx};
    return all[i];
}

static inline void random_fill(const buffer_t *b, uint64_t seed, double scale)
{
    for (size_t i = 0; i < buffer_count(b); i++)
        buffer_set(b, i, scale * next_random(&seed));
}

/* So that both types can start from the same numbers. */
static inline void round_to_float(const buffer_t *b)
{
    for (size_t i = 0; i < buffer_count(b); i++)
        buffer_set(b, i, (double)(float)buffer_get(b, i));
}

/* What a call must not read is poisoned. */
static inline void problem_poison(problem_t *p, int value)
{
    buffer_poison(&p->saved, value);
    buffer_poison(&p->work, value);
    buffer_poison(&p->scratch, value);
    buffer_poison(&p->y, value);
    buffer_poison(&p->dx, value);
}

/* Opens config, which names the rig's device; random x, dy and parameters (gain around 1), grads 0, the
 * rest NaN. */
static inline void problem_open(problem_t *p, const dp_attention_config_t *config, uint64_t seed)
{
    const dp_dtype_t dtype = config->shape.dtype;
    const size_t shift = p->shift * element_bytes(dtype);
    const size_t boundary =
        (size_t)config->shape.batch * config->shape.sequence * config->shape.hidden * element_bytes(dtype);

    p->config = *config;
    ck_assert_msg(p->rig.vt->open(&p->rig.host, config, &p->attention) == DP_OK, "%s", p->rig.message);
    p->sizes = (dp_block_sizes_t){.struct_size = sizeof(p->sizes)};
    ck_assert_int_eq(p->rig.vt->sizes(p->attention, &p->sizes), DP_OK);
    buffer_open(&p->params, dtype, p->sizes.param_count * element_bytes(dtype), shift);
    buffer_open(&p->grads, dtype, p->params.bytes, shift);
    buffer_open(&p->saved, dtype, p->sizes.saved_bytes, shift);
    buffer_open(&p->work, dtype, p->sizes.work_bytes, shift);
    buffer_open(&p->scratch, dtype, p->sizes.scratch_bytes, shift);
    buffer_open(&p->x, dtype, boundary, shift);
    buffer_open(&p->y, dtype, boundary, shift);
    buffer_open(&p->dy, dtype, boundary, shift);
    buffer_open(&p->dx, dtype, boundary, shift);

    random_fill(&p->params, seed, 0.4);
    for (size_t i = 0; i < config->shape.hidden; i++)
        buffer_set(&p->params, i, 1 + buffer_get(&p->params, i));
    random_fill(&p->x, seed + 1, 2);
    random_fill(&p->dy, seed + 2, 1);
    buffer_poison(&p->grads, POISON_ZERO);
    problem_poison(p, POISON_NAN);
}

static inline void problem_check(problem_t *p)
{
    for (size_t i = 0; i < N_BUFFERS; i++)
        buffer_check(problem_buffer(p, i));
}

static inline void problem_close(problem_t *p)
{
    problem_check(p);
    for (size_t i = 0; i < N_BUFFERS; i++)
        free(problem_buffer(p, i)->base);
    p->rig.vt->close(p->attention);
    ck_assert_int_eq(p->rig.allocations, 0);
}

static inline dp_io_t problem_io(const problem_t *p)
{
    return (dp_io_t){.struct_size = sizeof(dp_io_t),
                     .params = buffer_data(&p->params),
                     .saved = buffer_data(&p->saved),
                     .work = buffer_data(&p->work),
                     .scratch = buffer_data(&p->scratch)};
}

static inline void run_forward(problem_t *p)
{
    dp_io_t io = problem_io(p);

    io.x = buffer_data(&p->x);
    io.y = buffer_data(&p->y);
    ck_assert_int_eq(p->rig.vt->forward(p->attention, &io, rig_stream(&p->rig)), DP_OK);
}

static inline void run_backward_input(problem_t *p)
{
    dp_io_t io = problem_io(p);

    io.dy = buffer_data(&p->dy);
    io.dx = buffer_data(&p->dx);
    ck_assert_int_eq(p->rig.vt->backward_input(p->attention, &io, rig_stream(&p->rig)), DP_OK);
}

static inline void run_backward_weight(problem_t *p)
{
    dp_io_t io = problem_io(p);

    io.grads = buffer_data(&p->grads);
    ck_assert_int_eq(p->rig.vt->backward_weight(p->attention, &io, rig_stream(&p->rig)), DP_OK);
}

/* Keeps the bytes of a buffer and poisons it, until unhide. */
static inline unsigned char *hide(const buffer_t *b, int poison)
{
    unsigned char *kept = malloc(b->bytes);

    ck_assert_ptr_nonnull(kept);
    memcpy(kept, buffer_data(b), b->bytes);
    buffer_poison(b, poison);
    return kept;
}

static inline void unhide(const buffer_t *b, unsigned char *kept)
{
    memcpy(buffer_data(b), kept, b->bytes);
    free(kept);
}

/* All passes of one micro-batch. Whatever a pass may not rely on holds `poison` while it runs. */
static inline void run_all(problem_t *p, int poison)
{
    unsigned char *x, *y, *dy, *dx;

    problem_poison(p, poison);
    run_forward(p);
    x = hide(&p->x, poison);
    y = hide(&p->y, poison);
    buffer_poison(&p->scratch, poison);
    run_backward_input(p);
    dy = hide(&p->dy, poison);
    dx = hide(&p->dx, poison);
    buffer_poison(&p->scratch, poison);
    run_backward_weight(p);
    unhide(&p->x, x);
    unhide(&p->y, y);
    unhide(&p->dy, dy);
    unhide(&p->dx, dx);
}

/* max |a - b| over the elements from `first` on; a NaN counts as the largest. */
static inline double largest_difference(const buffer_t *a, const double *b, size_t first)
{
    double error = 0;

    for (size_t i = first; i < buffer_count(a); i++) {
        const double difference = fabs(buffer_get(a, i) - b[i]);

        error = difference <= error ? error : difference;
    }
    return error;
}

/* Largest difference between y and what the definition makes of x, tokens from `from` on. */
static inline double forward_error(const problem_t *p, size_t from)
{
    const naive_t n = naive_of(&p->config);
    double *x = buffer_copy(&p->x), *params = buffer_copy(&p->params);
    double *expected = calloc(buffer_count(&p->y), sizeof(*expected)), error;

    ck_assert_ptr_nonnull(expected);
    ck_assert_uint_eq(p->sizes.param_count, naive_param_count(&n));
    naive_forward(&n, params, x, from, expected);
    error = largest_difference(&p->y, expected, from * n.hidden);
    free(x);
    free(params);
    free(expected);
    return error;
}

#endif
