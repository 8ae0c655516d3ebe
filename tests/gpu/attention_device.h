/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_device.h: an attention plugin on a CUDA device, with guarded and poisoned memory, and what attention_cpu makes of the
 * same numbers. */
#ifndef ATTENTION_DEVICE_H
#define ATTENTION_DEVICE_H

#include "gpu.h"

#include <dualpipe/number.h>


#include "../support/cuda_host.h"
#include "../unit/attention_problem.h"

/* Memory on the device between two guards. */
typedef struct block {
    CUdeviceptr base;
    size_t bytes;
    dp_dtype_t dtype;
} block_t;

enum { BLOCK_GUARD = 256, N_BLOCKS = 8 };

typedef struct device_problem {
    gpu_t gpu;
    cuda_host_t host;
    dp_device_vt_t device_vt;
    const dp_attention_vt_t *vt;
    dp_attention_config_t config;
    dp_attention_t *attention;
    dp_block_sizes_t sizes;
    block_t params, grads, saved, scratch, x, y, dy, dx;
} device_problem_t;

static inline block_t *problem_block(device_problem_t *p, int i)
{
    block_t *const all[N_BLOCKS] = {&p->params, &p->grads, &p->saved, &p->scratch,
                                    &p->x,      &p->y,     &p->dy,    &p->dx};
    return all[i];
}

/* ---- the device's table: just what plugins ask of it in open() and in a step ---- */

static inline dp_status_t device_allocate(dp_device_t *device, size_t bytes, void **memory_out)
{
    device_problem_t *p = (device_problem_t *)device;
    CUdeviceptr at = 0;
    const dp_status_t st = DP_CU(&p->host.host, p->gpu.cu->cuMemAlloc(&at, bytes), "allocating");

    *memory_out = (void *)(uintptr_t)at;
    return st;
}

static inline void device_release(dp_device_t *device, void *memory)
{
    device_problem_t *p = (device_problem_t *)device;

    if (memory != NULL)
        p->gpu.cu->cuMemFree((CUdeviceptr)(uintptr_t)memory);
}

static inline void *device_native(dp_stream_t *s)
{
    return s;
}

static inline dp_stream_t *problem_stream(const device_problem_t *p)
{
    return (dp_stream_t *)p->gpu.stream;
}

static inline void device_problem_load(device_problem_t *p, const char *plugin_name)
{
    const dp_plugin_t *plugin;
    const void *table;

    gpu_open(&p->gpu);
    cuda_host_open(&p->host);
    p->device_vt = (dp_device_vt_t){.struct_size = sizeof(dp_device_vt_t),
                                    .allocate = device_allocate,
                                    .release = device_release,
                                    .stream_native = device_native};
    GPU_OK(dp_plugin_load(plugin_name, &plugin));
    GPU_OK(dp_plugin_interface(plugin, DP_IFACE_ATTENTION, sizeof(dp_attention_vt_t), &table));
    p->vt = table;
}

static inline void device_problem_unload(device_problem_t *p)
{
    ck_assert_int_eq(p->host.allocations, 0);
    gpu_close(&p->gpu);
}

/* ---- memory ---- */

static inline void *block_at(const block_t *b)
{
    return (void *)(uintptr_t)(b->base + BLOCK_GUARD);
}

static inline size_t block_count(const block_t *b)
{
    return b->bytes / dp_dtype_bytes(b->dtype);
}

static inline void block_poison(device_problem_t *p, const block_t *b, int value)
{
    if (b->bytes > 0)
        GPU_CU(&p->gpu, cuMemsetD8(b->base + BLOCK_GUARD, (unsigned char)value, b->bytes));
}

static inline void block_open(device_problem_t *p, block_t *b, dp_dtype_t dtype, size_t bytes)
{
    *b = (block_t){0, bytes, dtype};
    GPU_CU(&p->gpu, cuMemAlloc(&b->base, bytes + 2 * BLOCK_GUARD));
    GPU_CU(&p->gpu, cuMemsetD8(b->base, GUARD_VALUE, bytes + 2 * BLOCK_GUARD));
    block_poison(p, b, POISON_NAN);
}

static inline void block_close(device_problem_t *p, block_t *b)
{
    unsigned char guard[2][BLOCK_GUARD];

    gpu_read(&p->gpu, guard[0], b->base, BLOCK_GUARD);
    gpu_read(&p->gpu, guard[1], b->base + BLOCK_GUARD + b->bytes, BLOCK_GUARD);
    for (int i = 0; i < BLOCK_GUARD; i++)
        ck_assert_msg(guard[0][i] == GUARD_VALUE && guard[1][i] == GUARD_VALUE, "written outside a buffer");
    GPU_CU(&p->gpu, cuMemFree(b->base));
}

static inline void block_write(device_problem_t *p, const block_t *b, const double *values)
{
    const size_t n = block_count(b);
    unsigned char *raw = malloc(b->bytes + 1);

    for (size_t i = 0; i < n; i++)
        dp_number_set(b->dtype, raw, i, values[i]);
    GPU_CU(&p->gpu, cuMemcpyHtoD(b->base + BLOCK_GUARD, raw, b->bytes));
    free(raw);
}

/* The bytes of a buffer; the caller frees them. */
static inline unsigned char *block_bytes(device_problem_t *p, const block_t *b)
{
    unsigned char *raw = malloc(b->bytes + 1);

    gpu_read(&p->gpu, raw, b->base + BLOCK_GUARD, b->bytes);
    return raw;
}

static inline double *block_values(device_problem_t *p, const block_t *b)
{
    const size_t n = block_count(b);
    unsigned char *raw = block_bytes(p, b);
    double *values = malloc((n + 1) * sizeof(*values));

    for (size_t i = 0; i < n; i++)
        values[i] = dp_number_get(b->dtype, raw, i);
    free(raw);
    return values;
}

/* ---- an instance ---- */

static inline dp_dtype_t sums_of(dp_dtype_t dtype)
{
    return dtype == DP_F64 ? DP_F64 : DP_F32;
}

static inline dp_attention_config_t device_config(device_problem_t *p, dp_dtype_t dtype, const uint32_t n[6])
{
    return (dp_attention_config_t){
        .struct_size = sizeof(dp_attention_config_t),
        .shape = {.struct_size = sizeof(dp_block_shape_t),
                  .dtype = dtype,
                  .batch = n[0],
                  .sequence = n[1],
                  .hidden = n[2]},
        .heads = n[3],
        .kv_heads = n[4],
        .head_dim = n[5],
        .device_vt = &p->device_vt,
        .device = (dp_device_t *)p,
    };
}

static inline void device_problem_open(device_problem_t *p, const dp_attention_config_t *c)
{
    const size_t boundary =
        (size_t)c->shape.batch * c->shape.sequence * c->shape.hidden * dp_dtype_bytes(c->shape.dtype);
    const dp_dtype_t sums = sums_of(c->shape.dtype);

    p->config = *c;
    ck_assert_msg(p->vt->open(&p->host.host, c, &p->attention) == DP_OK, "%s", p->host.message);
    p->sizes = (dp_block_sizes_t){.struct_size = sizeof(p->sizes)};
    ck_assert_int_eq(p->vt->sizes(p->attention, &p->sizes), DP_OK);
    ck_assert_uint_eq(p->sizes.work_bytes, 0);
    block_open(p, &p->params, c->shape.dtype, p->sizes.param_count * dp_dtype_bytes(c->shape.dtype));
    block_open(p, &p->grads, sums, p->sizes.param_count * dp_dtype_bytes(sums));
    block_open(p, &p->saved, c->shape.dtype, p->sizes.saved_bytes);
    block_open(p, &p->scratch, c->shape.dtype, p->sizes.scratch_bytes);
    block_open(p, &p->x, c->shape.dtype, boundary);
    block_open(p, &p->y, c->shape.dtype, boundary);
    block_open(p, &p->dy, c->shape.dtype, boundary);
    block_open(p, &p->dx, c->shape.dtype, boundary);
    block_poison(p, &p->grads, POISON_ZERO);
}

static inline void device_problem_close(device_problem_t *p)
{
    for (int i = 0; i < N_BLOCKS; i++)
        block_close(p, problem_block(p, i));
    p->vt->close(p->attention);
}

static inline dp_io_t device_io(const device_problem_t *p)
{
    return (dp_io_t){.struct_size = sizeof(dp_io_t),
                     .params = block_at(&p->params),
                     .saved = block_at(&p->saved),
                     .scratch = block_at(&p->scratch)};
}

static inline void device_forward(device_problem_t *p)
{
    dp_io_t io = device_io(p);

    io.x = block_at(&p->x);
    io.y = block_at(&p->y);
    ck_assert_msg(p->vt->forward(p->attention, &io, problem_stream(p)) == DP_OK, "%s", p->host.message);
}

static inline void device_backward_input(device_problem_t *p, bool with_dx)
{
    dp_io_t io = device_io(p);

    io.dy = block_at(&p->dy);
    io.dx = with_dx ? block_at(&p->dx) : NULL;
    ck_assert_msg(p->vt->backward_input(p->attention, &io, problem_stream(p)) == DP_OK, "%s",
                  p->host.message);
}

static inline void device_backward_weight(device_problem_t *p)
{
    dp_io_t io = device_io(p);

    io.grads = block_at(&p->grads);
    ck_assert_msg(p->vt->backward_weight(p->attention, &io, problem_stream(p)) == DP_OK, "%s",
                  p->host.message);
}

/* All passes, with whatever a pass may not rely on poisoned. */
static inline void device_run_all(device_problem_t *p, int poison)
{
    block_poison(p, &p->saved, poison);
    block_poison(p, &p->scratch, poison);
    block_poison(p, &p->y, poison);
    block_poison(p, &p->dx, poison);
    device_forward(p);
    GPU_CU(&p->gpu, cuStreamSynchronize(p->gpu.stream));
    block_poison(p, &p->scratch, poison);
    device_backward_input(p, true);
    GPU_CU(&p->gpu, cuStreamSynchronize(p->gpu.stream));
    block_poison(p, &p->scratch, poison);
    device_backward_weight(p);
    GPU_CU(&p->gpu, cuStreamSynchronize(p->gpu.stream));
}

/* The same numbers for both: rounded to the device's type. */
static inline void share(device_problem_t *p, const block_t *to, const buffer_t *from)
{
    const size_t n = block_count(to);

    ck_assert_uint_eq(n, buffer_count(from));
    for (size_t i = 0; i < n; i++)
        buffer_set(from, i,
                   to->dtype == DP_BF16  ? (double)dp_number_of_bf16(dp_number_bf16((float)buffer_get(from, i)))
                   : to->dtype == DP_F32 ? (double)(float)buffer_get(from, i)
                                         : buffer_get(from, i));
    {
        double *values = buffer_copy(from);

        block_write(p, to, values);
        free(values);
    }
}

/* attention_cpu in double on random numbers, which the device gets as well. */
static inline void twin_open(problem_t *cpu, device_problem_t *p, uint64_t seed)
{
    dp_attention_config_t c = p->config;

    ck_assert_msg(rig_open(&cpu->rig, "attention_cpu") == DP_OK, "%s", dp_last_error());
    c.shape.dtype = DP_F64;
    c.device_vt = &cpu->rig.device_vt;
    c.device = (dp_device_t *)&cpu->rig;
    problem_open(cpu, &c, seed);
    share(p, &p->params, &cpu->params);
    share(p, &p->x, &cpu->x);
    share(p, &p->dy, &cpu->dy);
}

static inline double largest_value(const buffer_t *b)
{
    double largest = 0;

    for (size_t i = 0; i < buffer_count(b); i++)
        largest = fabs(buffer_get(b, i)) > largest ? fabs(buffer_get(b, i)) : largest;
    return largest;
}

/* max |device - cpu| / max |cpu| from element `first` on, `count` of them; a NaN counts as infinite. The divisor is at least a
 * quarter of the whole buffer's largest: the gradient of wq, say, vanishes where there is one token. */
static inline double difference(device_problem_t *p, const block_t *b, const buffer_t *twin, size_t first,
                                size_t count)
{
    double *values = block_values(p, b), largest = largest_value(twin) / 4, error = 0;

    for (size_t i = first; i < first + count; i++) {
        const double expected = buffer_get(twin, i), d = fabs(values[i] - expected);

        largest = fabs(expected) > largest ? fabs(expected) : largest;
        error = d <= error ? error : isnan(d) ? (double)INFINITY : d;
    }
    free(values);
    return largest > 0 ? error / largest : error;
}

static inline void check_like_twin(device_problem_t *p, problem_t *cpu, double tolerance)
{
    dp_param_t params[5];
    double d = difference(p, &p->y, &cpu->y, 0, block_count(&p->y));

    ck_assert_msg(d <= tolerance, "y differs by %g, more than %g", d, tolerance);
    d = difference(p, &p->dx, &cpu->dx, 0, block_count(&p->dx));
    ck_assert_msg(d <= tolerance, "dx differs by %g, more than %g", d, tolerance);
    ck_assert_int_eq(p->vt->params(p->attention, params), DP_OK);
    for (int i = 0; i < 5; i++) {
        d = difference(p, &p->grads, &cpu->grads, params[i].offset, params[i].count);
        ck_assert_msg(d <= tolerance, "the gradient of %s differs by %g, more than %g", params[i].name, d,
                      tolerance);
    }
}

#endif
