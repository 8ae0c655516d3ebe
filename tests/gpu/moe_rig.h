/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_rig.h: moe_cuda under test. Ranks are threads of this process on one device; each has two streams, a comm that offers
 * exchanges alone (they meet in host code and copy on the device), and micro-batches in walled device memory that begins as
 * NaN. Values go in and out as double. */
#ifndef DP_TESTS_MOE_RIG_H
#define DP_TESTS_MOE_RIG_H

#include <dualpipe/moe.h>
#include <dualpipe/number.h>

#include <math.h>
#include <pthread.h>

#include "gpu.h"

enum { RIG_RANKS = 4, RIG_EXCHANGES = 4, RIG_WALL = 256, RIG_BRICK = 0xa5 };

typedef enum step {
    ROUTE,
    DISPATCH,
    EXPERTS,
    COMBINE,
    COMBINE_B,
    EXPERTS_I,
    DISPATCH_B,
    ROUTE_I,
    EXPERTS_W,
    ROUTE_W,
    STEPS
} step_t;

/* ---- a device: nothing but the driver's streams and a list of watches ---- */

struct dp_device {
    gpu_t *gpu;
    dp_watch_fn check;
    void *arg;
};

struct dp_stream {
    CUstream native;
};

static inline void *rig_native(dp_stream_t *s)
{
    return s->native;
}

static inline dp_status_t rig_watch(dp_device_t *device, dp_watch_fn check, void *arg)
{
    device->check = check;
    device->arg = arg;
    return DP_OK;
}

static inline void rig_unwatch(dp_device_t *device, dp_watch_fn check, void *arg)
{
    ck_assert(device->check == check && device->arg == arg);
    device->check = NULL;
}

static inline dp_status_t rig_host_allocate(dp_device_t *device, size_t bytes, void **out)
{
    dp_status_t status = DP_CU(
        device->gpu->host, device->gpu->cu->cuMemHostAlloc(out, bytes, CU_MEMHOSTALLOC_DEVICEMAP), "host");

    if (status >= 0)
        memset(*out, 0, bytes);
    return status;
}

static inline void rig_host_release(dp_device_t *device, void *memory)
{
    (void)device->gpu->cu->cuMemFreeHost(memory);
}

static const dp_device_vt_t rig_device_vt = {
    .struct_size = sizeof(rig_device_vt),
    .stream_native = rig_native,
    .watch = rig_watch,
    .unwatch = rig_unwatch,
    .host_allocate = rig_host_allocate,
    .host_release = rig_host_release,
};

/* ---- a comm: exchanges between threads ---- */

typedef struct rig_group {
    pthread_barrier_t meeting;
    struct {
        CUdeviceptr send;
        int32_t offsets[RIG_RANKS], counts[RIG_RANKS];
        uint32_t id, sequence;
    } post[RIG_RANKS];
} rig_group_t;

struct dp_comm {
    rig_group_t *group;
    gpu_t *gpu;
    int32_t rank, nranks;
    int32_t exchanges;
    dp_exchange_t *opened[RIG_EXCHANGES];
    dp_status_t
        failure; /* of any exchange, as a stream would find it                                         */
    void (*tamper)(dp_exchange_t *e, int32_t *counts,
                   uint32_t round); /* sees what arrived before the receiver */
    uint32_t round; /* of all exchanges                                                                   */
};

struct dp_exchange {
    dp_comm_t *comm;
    dp_exchange_config_t config;
    uint32_t next;
    CUdeviceptr rows, counts;
};

static inline dp_status_t rig_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config,
                                            dp_exchange_t **out)
{
    dp_exchange_t *e = calloc(1, sizeof(*e));

    ck_assert(config->row_bytes % 16 == 0 && comm->exchanges < RIG_EXCHANGES);
    comm->opened[comm->exchanges++] = e;
    e->comm = comm;
    e->config = *config;
    e->rows = gpu_memory(comm->gpu, NULL, (size_t)comm->nranks * config->capacity_rows * config->row_bytes);
    e->counts = gpu_memory(comm->gpu, NULL, RIG_RANKS * sizeof(int32_t));
    *out = e;
    return DP_OK;
}

/* Waits for the stream, meets the others, copies what is for this rank. What it copied before is gone. */
static inline dp_status_t rig_exchange(dp_exchange_t *e, uint32_t sequence, const void *send,
                                       const int32_t *offsets, const int32_t *counts, const void **rows_out,
                                       const int32_t **counts_out, dp_stream_t *s)
{
    dp_comm_t *comm = e->comm;
    rig_group_t *group = comm->group;
    gpu_t *gpu = comm->gpu;
    const size_t row = e->config.row_bytes, slot = e->config.capacity_rows * row;
    int32_t arrived[RIG_RANKS] = {0}, p;

    ck_assert_uint_eq(sequence, e->next);
    GPU_CU(gpu, cuStreamSynchronize(s->native));
    group->post[comm->rank].send = (CUdeviceptr)(uintptr_t)send;
    group->post[comm->rank].id = e->config.id;
    group->post[comm->rank].sequence = sequence;
    GPU_CU(gpu, cuMemcpyDtoH(group->post[comm->rank].offsets, (CUdeviceptr)(uintptr_t)offsets,
                             (size_t)comm->nranks * sizeof(int32_t)));
    GPU_CU(gpu, cuMemcpyDtoH(group->post[comm->rank].counts, (CUdeviceptr)(uintptr_t)counts,
                             (size_t)comm->nranks * sizeof(int32_t)));
    GPU_CU(gpu, cuMemsetD8Async(e->rows, 0xff, (size_t)comm->nranks * slot, s->native));
    pthread_barrier_wait(&group->meeting);
    for (p = 0; p < comm->nranks; p++) {
        const int32_t count = group->post[p].counts[comm->rank];

        ck_assert(group->post[p].id == e->config.id && group->post[p].sequence == sequence);
        arrived[p] = count;
        if (count < 0 || count > (int32_t)e->config.capacity_rows)
            comm->failure = DP_ERR_OVERFLOW;
        else if (count > 0)
            GPU_CU(gpu,
                   cuMemcpyDtoDAsync(e->rows + (size_t)p * slot,
                                     group->post[p].send + (size_t)group->post[p].offsets[comm->rank] * row,
                                     (size_t)count * row, s->native));
    }
    GPU_CU(gpu, cuStreamSynchronize(s->native));
    pthread_barrier_wait(&group->meeting);
    if (comm->tamper != NULL)
        comm->tamper(e, arrived, comm->round);
    comm->round++;
    GPU_CU(gpu, cuMemcpyHtoD(e->counts, arrived, sizeof(arrived)));
    e->next++;
    *rows_out = (const void *)(uintptr_t)e->rows;
    *counts_out = (const int32_t *)(uintptr_t)e->counts;
    return DP_OK;
}

static inline dp_status_t rig_exchange_release(dp_exchange_t *e, uint32_t sequence, dp_stream_t *s)
{
    (void)s;
    ck_assert_uint_eq(sequence + 1, e->next);
    return DP_OK;
}

static const dp_comm_vt_t rig_comm_vt = {
    .struct_size = sizeof(rig_comm_vt),
    .caps = DP_COMM_CAP_ONE_SIDED,
    .exchange_open = rig_exchange_open,
    .exchange = rig_exchange,
    .exchange_release = rig_exchange_release,
};

/* ---- values ---- */

/* What x becomes in this type. */
static inline double rig_rounded(dp_dtype_t t, double x)
{
    return t == DP_F64 ? x : t == DP_F32 ? (double)(float)x : (double)dp_number_of_bf16(dp_number_bf16((float)x));
}

static inline void rig_encode(dp_dtype_t t, void *to, const double *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dp_number_set(t, to, i, from[i]);
}

static inline void rig_decode(dp_dtype_t t, double *to, const void *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = dp_number_get(t, from, i);
}

/* ---- device memory between walls ---- */

typedef struct walled {
    CUdeviceptr start;
    size_t bytes;
} walled_t;

static inline void *walled_memory(const walled_t *w)
{
    return (void *)(uintptr_t)(w->start + RIG_WALL);
}

/* Fills memory and waits for that. */
static inline void rig_fill(gpu_t *gpu, CUdeviceptr at, unsigned char byte, size_t bytes)
{
    if (bytes == 0)
        return;
    GPU_CU(gpu, cuMemsetD8Async(at, byte, bytes, gpu->stream));
    GPU_CU(gpu, cuStreamSynchronize(gpu->stream));
}

static inline void walled_poison(gpu_t *gpu, const walled_t *w)
{
    rig_fill(gpu, w->start + RIG_WALL, 0xff, w->bytes);
}

static inline walled_t walled_allocate(gpu_t *gpu, size_t bytes)
{
    walled_t w = {0, bytes};

    GPU_CU(gpu, cuMemAlloc(&w.start, bytes + 2 * RIG_WALL));
    rig_fill(gpu, w.start, RIG_BRICK, bytes + 2 * RIG_WALL);
    walled_poison(gpu, &w);
    return w;
}

static inline void walled_free(gpu_t *gpu, walled_t *w, const char *what)
{
    unsigned char walls[2 * RIG_WALL];
    size_t i;

    GPU_CU(gpu, cuMemcpyDtoH(walls, w->start, RIG_WALL));
    GPU_CU(gpu, cuMemcpyDtoH(walls + RIG_WALL, w->start + RIG_WALL + w->bytes, RIG_WALL));
    for (i = 0; i < sizeof(walls); i++)
        if (walls[i] != RIG_BRICK)
            ck_abort_msg("%s: written outside of its %zu bytes", what, w->bytes);
    GPU_CU(gpu, cuMemFree(w->start));
    w->start = 0;
}

static inline void walled_set(gpu_t *gpu, const walled_t *w, dp_dtype_t t, const double *values)
{
    void *host = malloc(w->bytes);

    rig_encode(t, host, values, w->bytes / dp_dtype_bytes(t));
    GPU_CU(gpu, cuMemcpyHtoD(w->start + RIG_WALL, host, w->bytes));
    free(host);
}

/* Its values, to be freed. */
static inline double *walled_get(gpu_t *gpu, const walled_t *w, dp_dtype_t t)
{
    const size_t count = w->bytes / dp_dtype_bytes(t);
    double *values = malloc((count + 1) * sizeof(*values));
    void *host = malloc(w->bytes);

    GPU_CU(gpu, cuMemcpyDtoH(host, w->start + RIG_WALL, w->bytes));
    rig_decode(t, values, host, count);
    free(host);
    return values;
}

/* ---- one rank ---- */

typedef struct rig {
    gpu_t gpu;
    dp_device_t device;
    dp_comm_t comm;
    dp_stream_t lanes[2]; /* compute, all-to-all */
    const dp_moe_vt_t *vt;
    dp_moe_t *moe;
    dp_moe_config_t config;
    dp_block_sizes_t sizes;
    walled_t params, grads, scratch[2], placement;
    dp_dtype_t dtype, sums;
} rig_t;

typedef struct pass {
    walled_t x, y, dy, dx, saved, work[2], aux;
    int32_t microbatch;
} pass_t;

static inline int rig_travels(step_t step)
{
    return step == DISPATCH || step == COMBINE || step == COMBINE_B || step == DISPATCH_B;
}

static inline const dp_moe_vt_t *rig_plugin(const char *name)
{
    const dp_plugin_t *plugin = NULL;
    const void *table = NULL;

    GPU_OK(dp_plugin_load(name, &plugin));
    GPU_OK(dp_plugin_interface(plugin, DP_IFACE_MOE, sizeof(dp_moe_vt_t), &table));
    return table;
}

/* Everything up to the plugin's open. */
static inline void rig_prepare(rig_t *r, const dp_moe_config_t *config, rig_group_t *group, int32_t rank,
                               int32_t ranks)
{
    memset(r, 0, sizeof(*r));
    gpu_open(&r->gpu);
    r->device.gpu = &r->gpu;
    r->comm.group = group;
    r->comm.gpu = &r->gpu;
    r->comm.rank = rank;
    r->comm.nranks = ranks;
    r->lanes[0].native = r->gpu.stream;
    GPU_CU(&r->gpu, cuStreamCreateWithPriority(&r->lanes[1].native, CU_STREAM_NON_BLOCKING, 0));
    r->vt = rig_plugin("moe_cuda");
    r->config = *config;
    r->config.device_vt = &rig_device_vt;
    r->config.device = &r->device;
    r->config.comm_vt = &rig_comm_vt;
    r->config.comm = &r->comm;
    r->config.comm_rank = rank;
    r->config.comm_size = ranks;
    r->dtype = config->shape.dtype;
    r->sums = dp_dtype_accumulator(r->dtype);
}

static inline void rig_open(rig_t *r, const dp_moe_config_t *config, rig_group_t *group, int32_t rank,
                            int32_t ranks)
{
    size_t bytes;

    rig_prepare(r, config, group, rank, ranks);
    GPU_OK(r->vt->open(r->gpu.host, &r->config, &r->moe));
    r->sizes.struct_size = sizeof(r->sizes);
    GPU_OK(r->vt->sizes(r->moe, &r->sizes));
    r->params = walled_allocate(&r->gpu, r->sizes.param_count * dp_dtype_bytes(r->dtype));
    bytes = r->sizes.param_count * dp_dtype_bytes(r->sums);
    r->grads = walled_allocate(&r->gpu, bytes);
    rig_fill(&r->gpu, r->grads.start + RIG_WALL, 0, bytes);
    r->scratch[0] = walled_allocate(&r->gpu, r->sizes.scratch_bytes);
    r->scratch[1] = walled_allocate(&r->gpu, r->sizes.scratch_bytes);
    r->placement = walled_allocate(&r->gpu, config->replicas * sizeof(int32_t));
}

static inline void rig_close(rig_t *r)
{
    gpu_t *gpu = &r->gpu;

    int32_t i;

    r->vt->close(r->moe);
    for (i = 0; i < r->comm.exchanges; i++) {
        GPU_CU(gpu, cuMemFree(r->comm.opened[i]->rows));
        GPU_CU(gpu, cuMemFree(r->comm.opened[i]->counts));
        free(r->comm.opened[i]);
    }
    ck_assert_msg(r->device.check == NULL, "a watch was left");
    if (r->moe != NULL) {
        walled_free(gpu, &r->params, "params");
        walled_free(gpu, &r->grads, "grads");
        walled_free(gpu, &r->scratch[0], "scratch of the compute lane");
        walled_free(gpu, &r->scratch[1], "scratch of the all-to-all lane");
        walled_free(gpu, &r->placement, "placement");
    }
    GPU_CU(gpu, cuStreamDestroy(r->lanes[1].native));
    gpu_close(gpu);
}

static inline size_t rig_boundary(const rig_t *r)
{
    return (size_t)r->config.shape.batch * r->config.shape.sequence * r->config.shape.hidden;
}

static inline pass_t pass_open(rig_t *r, const double *x, const double *dy, int32_t microbatch)
{
    const size_t boundary = rig_boundary(r) * dp_dtype_bytes(r->dtype);
    gpu_t *gpu = &r->gpu;
    pass_t p = {.microbatch = microbatch};

    p.x = walled_allocate(gpu, boundary);
    p.y = walled_allocate(gpu, boundary);
    p.dy = walled_allocate(gpu, boundary);
    p.dx = walled_allocate(gpu, boundary);
    p.saved = walled_allocate(gpu, r->sizes.saved_bytes);
    p.work[0] = walled_allocate(gpu, r->sizes.work_bytes);
    p.work[1] = walled_allocate(gpu, r->sizes.work_bytes);
    p.aux = walled_allocate(gpu, sizeof(double));
    walled_set(gpu, &p.x, r->dtype, x);
    walled_set(gpu, &p.dy, r->dtype, dy);
    rig_fill(gpu, p.aux.start + RIG_WALL, 0, sizeof(double));
    return p;
}

static inline void pass_close(rig_t *r, pass_t *p)
{
    gpu_t *gpu = &r->gpu;

    walled_free(gpu, &p->x, "x");
    walled_free(gpu, &p->y, "y");
    walled_free(gpu, &p->dy, "dy");
    walled_free(gpu, &p->dx, "dx");
    walled_free(gpu, &p->saved, "saved");
    walled_free(gpu, &p->work[0], "work of forward");
    walled_free(gpu, &p->work[1], "work of backward");
    walled_free(gpu, &p->aux, "auxiliary loss");
}

static inline dp_moe_io_t pass_io(rig_t *r, pass_t *p, step_t step)
{
    const int weight = step == EXPERTS_W || step == ROUTE_W, backward = step >= COMBINE_B;
    dp_moe_io_t io = {
        .io = {.struct_size = sizeof(io.io),
               .microbatch = p->microbatch,
               .params = walled_memory(&r->params),
               .saved = walled_memory(&p->saved),
               .scratch = walled_memory(&r->scratch[rig_travels(step)])},
        .aux_scale = 3,
    };

    if (weight)
        io.io.grads = walled_memory(&r->grads);
    else
        io.io.work = walled_memory(&p->work[backward]);
    if (step == ROUTE) {
        io.io.x = walled_memory(&p->x);
        io.aux_loss = walled_memory(&p->aux);
        io.placement = r->config.replicas > 0 ? walled_memory(&r->placement) : NULL;
    } else if (step == COMBINE) {
        io.io.y = walled_memory(&p->y);
    } else if (step == COMBINE_B) {
        io.io.dy = walled_memory(&p->dy);
    } else if (step == ROUTE_I) {
        io.io.dx = walled_memory(&p->dx);
    }
    return io;
}

/* The call itself, whatever it comes to. */
static inline dp_status_t pass_call(rig_t *r, step_t step, dp_moe_io_t *io)
{
    dp_status_t (*const calls[STEPS])(dp_moe_t *, const dp_moe_io_t *, dp_stream_t *) = {
        [ROUTE] = r->vt->route,
        [DISPATCH] = r->vt->dispatch,
        [EXPERTS] = r->vt->experts,
        [COMBINE] = r->vt->combine,
        [COMBINE_B] = r->vt->combine_backward,
        [EXPERTS_I] = r->vt->experts_backward_input,
        [DISPATCH_B] = r->vt->dispatch_backward,
        [ROUTE_I] = r->vt->route_backward_input,
        [EXPERTS_W] = r->vt->experts_backward_weight,
        [ROUTE_W] = r->vt->route_backward_weight,
    };
    dp_status_t status = calls[step](r->moe, io, &r->lanes[rig_travels(step)]);

    memset(io, 0xff, sizeof(*io)); /* the work on the stream may not look at it */
    return status;
}

/* A call that must go well, alone on the device; scratch begins as NaN, and what is no longer needed afterwards is gone. */
static inline void pass_step(rig_t *r, pass_t *p, step_t step)
{
    const int travels = rig_travels(step);
    gpu_t *gpu = &r->gpu;
    dp_moe_io_t io = pass_io(r, p, step);

    walled_poison(gpu, &r->scratch[travels]);
    GPU_OK(pass_call(r, step, &io));
    GPU_CU(gpu, cuStreamSynchronize(r->lanes[travels].native));
    GPU_OK(r->device.check(r->device.arg));
    ck_assert_int_eq(r->comm.failure, DP_OK);
    if (step == ROUTE)
        walled_poison(gpu, &p->x);
    if (step == COMBINE_B)
        walled_poison(gpu, &p->dy);
    if (step == COMBINE)
        walled_poison(gpu, &p->work[0]);
    if (step == ROUTE_I)
        walled_poison(gpu, &p->work[1]);
}

static inline void pass_steps(rig_t *r, pass_t *p, step_t first, step_t last)
{
    int s;

    for (s = first; s <= (int)last; s++)
        pass_step(r, p, (step_t)s);
}

#endif
