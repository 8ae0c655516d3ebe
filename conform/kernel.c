/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kernel.c: see kernel.h: memory between guards, blocks and their micro-batches, gradients by
 * differences. */
#include "kernel.h"

#include "device_work.h"

#include <dualpipe/number.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 64-byte alignment is what blocks may count on; behind the memory as much again as a careless
 * kernel may reach. */
enum { GUARD = 512 };

static void *must(void *memory)
{
    if (memory == NULL)
        conform_no_memory();
    return memory;
}

/* ---- a host that can refuse ---- */

typedef struct lab_host {
    dp_host_t table;
    const dp_host_t *inner;
    int refusing, refused;
} lab_host_t;

static void *lab_allocate(const dp_host_t *h, size_t bytes, size_t alignment)
{
    lab_host_t *host = (lab_host_t *)h; /* the table comes first */

    if (__atomic_load_n(&host->refusing, __ATOMIC_ACQUIRE) != 0 &&
        __atomic_sub_fetch(&host->refusing, 1, __ATOMIC_ACQ_REL) == 0) {
        __atomic_store_n(&host->refused, 1, __ATOMIC_RELEASE);
        return NULL;
    }
    return host->inner->allocate(host->inner, bytes, alignment);
}

static void lab_release(const dp_host_t *h, void *memory)
{
    const dp_host_t *inner = ((lab_host_t *)h)->inner;

    inner->release(inner, memory);
}

void conform_lab_refuse(lab_t *lab, int nth)
{
    lab_host_t *host = (lab_host_t *)lab->host;

    __atomic_store_n(&host->refused, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&host->refusing, nth, __ATOMIC_RELEASE);
}

bool conform_lab_refused(lab_t *lab)
{
    lab_host_t *host = (lab_host_t *)lab->host;

    __atomic_store_n(&host->refusing, 0, __ATOMIC_RELEASE);
    return __atomic_load_n(&host->refused, __ATOMIC_ACQUIRE) != 0;
}

bool conform_lab_open(lab_t *lab, conform_t *t)
{
    dp_device_config_t config = {.struct_size = sizeof(config)};
    lab_host_t *host = must(calloc(1, sizeof(*host)));

    memset(lab, 0, sizeof(*lab));
    host->table = *t->host;
    host->table.allocate = lab_allocate;
    host->table.release = lab_release;
    host->inner = t->host;
    lab->t = t;
    lab->vt = t->device;
    lab->host = &host->table;
    CHECK_OK(t, lab->vt->open(t->host, &config, &lab->device), "opening the device");
    CHECK_OK(t, lab->vt->stream_open(lab->device, DP_LANE_COMPUTE, &lab->lanes[0]), "a stream of the device");
    CHECK_OK(t, lab->vt->stream_open(lab->device, DP_LANE_ALL_TO_ALL, &lab->lanes[1]), "a stream of the device");
    return true;
}

static dp_status_t look_at_thread(void *arg)
{
    conform_thread_look(*(conform_thread_t **)arg);
    return DP_OK;
}

/* What ran on a stream has left its thread in the rounding mode that it found. */
static void look_at_lanes(lab_t *lab)
{
    for (int lane = 0; lane < 2 && DP_HAS(lab->vt, dp_device_vt_t, launch); lane++) {
        conform_thread_t now = lab->t->thread, *there = &now;

        if (lab->vt->launch(lab->lanes[lane], look_at_thread, &there, sizeof(there)) < 0 ||
            lab->vt->synchronize(lab->lanes[lane], -1) < 0)
            return;
        now.mask = lab->t->thread.mask; /* streams take no signals */
        if (conform_thread_other(&lab->t->thread, &now) != NULL)
            conform_fail(lab->t, __FILE__, __LINE__, "work on a stream left its thread %s",
                         conform_thread_other(&lab->t->thread, &now));
    }
}

void conform_lab_close(lab_t *lab)
{
    if (!lab->broken && !conform_failed(lab->t))
        look_at_lanes(lab);
    lab->vt->stream_close(lab->lanes[0]);
    lab->vt->stream_close(lab->lanes[1]);
    lab->vt->close(lab->device);
    free((void *)lab->host);
}

bool conform_lab_wait(lab_t *lab, int lane, const char *what)
{
    CHECK_OK(lab->t, lab->vt->synchronize(lab->lanes[lane], -1), "%s, on the stream,", what);
    return true;
}

/* ---- memory ---- */

/* A guard is NaN in every type, and a large number as an integer: who reads it shows it. */
static void fill_guard(unsigned char *guard)
{
    for (int i = 0; i < GUARD; i += 2) {
        guard[i] = 0xf5;
        guard[i + 1] = 0x7f;
    }
}

void *conform_area_memory(const area_t *area)
{
    return area->start + GUARD + area->shift;
}

static unsigned char *front(const area_t *area)
{
    return (unsigned char *)conform_area_memory(area) - GUARD;
}

static unsigned char *behind(const area_t *area)
{
    return (unsigned char *)conform_area_memory(area) + area->bytes;
}

size_t conform_area_count(const area_t *area)
{
    return area->bytes / dp_dtype_bytes(area->dtype);
}

bool conform_area_put(lab_t *lab, const area_t *area, const void *bytes)
{
    if (area->bytes > 0)
        CHECK_OK(lab->t, conform_work_write(lab->vt, lab->lanes[0], conform_area_memory(area), bytes, area->bytes),
                 "writing %s", area->name);
    return true;
}

bool conform_area_poison(lab_t *lab, const area_t *area)
{
    unsigned char *bytes = must(malloc(area->bytes + 1));
    bool fine;

    memset(bytes, 0xff, area->bytes);
    fine = conform_area_put(lab, area, bytes);
    free(bytes);
    return fine;
}

bool conform_area_open(lab_t *lab, area_t *area, const char *name, dp_dtype_t dtype, size_t bytes, size_t shift)
{
    unsigned char guards[2][GUARD];
    void *memory = NULL;

    memset(area, 0, sizeof(*area));
    CHECK_OK(lab->t, lab->vt->allocate(lab->device, bytes + shift + 2 * GUARD, &memory), "allocating %s", name);
    *area = (area_t){name, memory, bytes, shift, dtype};
    fill_guard(guards[0]);
    fill_guard(guards[1]);
    CHECK_OK(lab->t, conform_work_write(lab->vt, lab->lanes[0], front(area), guards[0], GUARD), "writing %s", name);
    CHECK_OK(lab->t, conform_work_write(lab->vt, lab->lanes[0], behind(area), guards[1], GUARD), "writing %s", name);
    return conform_area_poison(lab, area);
}

void conform_area_close(lab_t *lab, area_t *area)
{
    if (area->start != NULL)
        lab->vt->release(lab->device, area->start);
    area->start = NULL;
}

bool conform_area_whole(lab_t *lab, const area_t *area, const char *after)
{
    unsigned char guard[GUARD], seen[GUARD];

    if (area->start == NULL)
        return true;
    fill_guard(guard);
    CHECK_OK(lab->t, conform_work_read(lab->vt, lab->lanes[0], seen, front(area), GUARD), "reading %s", area->name);
    for (int i = 0; i < GUARD; i++)
        CHECK(lab->t, seen[i] == guard[i], "%s wrote in front of %s, at byte %d", after, area->name, i - GUARD);
    CHECK_OK(lab->t, conform_work_read(lab->vt, lab->lanes[0], seen, behind(area), GUARD), "reading %s", area->name);
    for (int i = 0; i < GUARD; i++)
        CHECK(lab->t, seen[i] == guard[i], "%s wrote behind %s: byte %zu of %zu", after, area->name,
              area->bytes + (size_t)i, area->bytes);
    return true;
}

unsigned char *conform_area_bytes(lab_t *lab, const area_t *area)
{
    unsigned char *bytes = must(calloc(area->bytes + 1, 1));
    const dp_status_t status =
        area->bytes > 0 ? conform_work_read(lab->vt, lab->lanes[0], bytes, conform_area_memory(area), area->bytes)
                        : DP_OK;

    if (status == DP_OK)
        return bytes;
    conform_unexpected(lab->t, __FILE__, __LINE__, "read", status, DP_OK, "reading %s", area->name);
    free(bytes);
    return NULL;
}

double *conform_area_read(lab_t *lab, const area_t *area)
{
    unsigned char *bytes = conform_area_bytes(lab, area);
    double *values = must(calloc(conform_area_count(area) + 1, sizeof(*values)));

    for (size_t i = 0; bytes != NULL && i < conform_area_count(area); i++)
        values[i] = dp_number_get(area->dtype, bytes, i);
    if (bytes != NULL) {
        free(bytes);
        return values;
    }
    free(values);
    return NULL;
}

bool conform_area_write(lab_t *lab, const area_t *area, const double *values)
{
    unsigned char *bytes = must(calloc(area->bytes + 1, 1));
    bool fine;

    for (size_t i = 0; i < conform_area_count(area); i++)
        dp_number_set(area->dtype, bytes, i, values[i]);
    fine = conform_area_put(lab, area, bytes);
    free(bytes);
    return fine;
}

/* Whether an input still is what was written. */
static bool area_kept(lab_t *lab, const area_t *area, const double *values, const char *after)
{
    double *now = conform_area_read(lab, area);

    if (now == NULL)
        return false;
    for (size_t i = 0; i < conform_area_count(area); i++)
        CHECK(lab->t, now[i] == values[i], "%s changed its input %s: element %zu is %g, it was %g", after, area->name,
              i, now[i], values[i]);
    free(now);
    return true;
}

/* ---- random numbers, as the type rounds them ---- */

static double rounded(dp_dtype_t dtype, double x)
{
    double room;

    dp_number_set(dtype, &room, 0, x);
    return dp_number_get(dtype, &room, 0);
}

static double random_between(uint64_t *state, double size)
{
    return ((double)(conform_random(state) >> 11) * 0x1p-52 - 1) * size;
}

static double *random_values(dp_dtype_t dtype, uint64_t seed, size_t count, double size)
{
    double *values = must(calloc(count + 1, sizeof(*values)));

    for (size_t i = 0; i < count; i++)
        values[i] = rounded(dtype, random_between(&seed, size));
    return values;
}

/* ---- blocks ---- */

const kind_t *conform_kernel_kind(const conform_t *t)
{
    if (strcmp(conform_job_settings(t->job)->interface, DP_IFACE_ATTENTION) != 0)
        return &conform_kernel_moe;
    return t->variety == 0 ? &conform_kernel_attention : &conform_kernel_latent;
}

void conform_kernel_shape(const block_t *b, void *shape, size_t bytes)
{
    const dp_block_shape_t s = {
        .struct_size = b->shape_bytes != 0 ? b->shape_bytes : sizeof(s),
        .dtype = b->layer.dtype,
        .batch = b->layer.batch,
        .sequence = b->layer.sequence,
        .hidden = b->layer.hidden,
        .norm_eps = b->layer.norm_eps,
    };

    memset(shape, b->tail, bytes);
    memcpy(shape, &s, sizeof(s));
}

void conform_kernel_wrong(const block_t *b, void *config, dp_block_shape_t *shape)
{
    const wrong_t *w = b->wrong;

    if (w == NULL)
        return;
    if (w->pointer)
        memset((unsigned char *)config + w->offset, 0, sizeof(void *));
    else
        memcpy((unsigned char *)(w->in_shape ? (void *)shape : config) + w->offset, &w->bits, sizeof(w->bits));
}

bool conform_kernel_list_is_right(const block_t *b, const expected_t *expected, uint32_t count)
{
    conform_t *t = b->lab->t;
    size_t offset = 0;

    CHECK(t, b->sizes.nparams == count, "there are %u parameters, the header has %u", b->sizes.nparams, count);
    for (uint32_t i = 0; i < count; i++) {
        const expected_t *e = &expected[i];
        const dp_param_t *p = &b->list[i];

        CHECK(t, p->name != NULL && strcmp(p->name, e->name) == 0, "parameter %u is \"%s\", the header has \"%s\"", i,
              p->name != NULL ? p->name : "NULL", e->name);
        CHECK(t, p->kind == e->kind, "%s is of kind %d, not %d", e->name, (int)p->kind, (int)e->kind);
        CHECK(t, p->offset == offset, "%s begins at element %zu, the one before ends at %zu", e->name, p->offset,
              offset);
        CHECK(t, p->count == e->count, "%s has %zu elements, not %zu", e->name, p->count, e->count);
        CHECK(t, p->kind != DP_PARAM_MATRIX || p->fan_in == e->fan_in, "%s has fan_in %u, not %zu", e->name, p->fan_in,
              e->fan_in);
        CHECK(t, p->kind == DP_PARAM_MATRIX || p->start == e->start, "%s starts at %g, not %g", e->name,
              (double)p->start, (double)e->start);
        CHECK(t, (p->sharded != 0) == e->sharded && p->sharded <= 1, "%s: sharded is %u, not %d", e->name, p->sharded,
              (int)e->sharded);
        CHECK(t, p->expert == e->expert, "%s is of expert %d, not %d", e->name, p->expert, e->expert);
        CHECK(t, p->shared == NULL, "%s: the member shared is not NULL", e->name);
        for (size_t r = 0; r < sizeof(p->reserved) / sizeof(p->reserved[0]); r++)
            CHECK(t, p->reserved[r] == 0, "%s: the member reserved is not zero", e->name);
        offset += p->count;
    }
    return true;
}

static size_t boundary(const layer_t *layer)
{
    return conform_layer_tokens(layer) * layer->hidden;
}

static int32_t ranks_of(const block_t *b)
{
    return b->ranks > 0 ? b->ranks : 1;
}

static bool is_bias(const block_t *b, size_t i)
{
    for (uint32_t p = 0; p < b->sizes.nparams; p++)
        if (b->list[p].kind == DP_PARAM_ROUTER_BIAS && i >= b->list[p].offset &&
            i < b->list[p].offset + b->list[p].count)
            return true;
    return false;
}

/* Norms around 1, small matrices; gradients begin with eighths, which sums of any type keep. */
static bool fill_params(block_t *b, uint64_t seed)
{
    const size_t whole = b->kind->whole(&b->layer), own = b->sizes.param_count;
    double *mine = must(calloc(own + 1, sizeof(*mine)));
    bool fine;

    b->values = random_values(b->layer.dtype, seed, whole, 0.5);
    for (size_t i = 0; i < b->layer.hidden; i++)
        b->values[i] = rounded(b->layer.dtype, 1 + b->values[i] / 2);
    b->before = must(calloc(own + 1, sizeof(*b->before)));
    for (size_t i = 0; i < own; i++) {
        mine[i] = b->values[b->kind->index(b, i)];
        b->before[i] = is_bias(b, i) ? 3 : (double)(int64_t)(conform_random(&seed) % 33) / 8 - 2;
    }
    fine = conform_area_write(b->lab, &b->params, mine) && conform_area_write(b->lab, &b->grads, b->before);
    free(mine);
    return fine;
}

/* What the header says of sizes and of the list. */
static bool describe_layer(block_t *b)
{
    conform_t *t = b->lab->t;
    size_t end = 0;

    b->sizes = (dp_block_sizes_t){.struct_size = sizeof(b->sizes)};
    CHECK_OK(t, b->kind->sizes(b, &b->sizes), "sizes");
    CHECK(t, b->sizes.nparams > 0 && b->sizes.nparams < 100000, "sizes speaks of %u parameters", b->sizes.nparams);
    b->list = must(calloc(b->sizes.nparams + 1, sizeof(*b->list)));
    memset(b->list + b->sizes.nparams, 0xa5, sizeof(*b->list));
    CHECK_OK(t, b->kind->params(b, b->list), "params");
    for (size_t i = 0; i < sizeof(*b->list); i++)
        CHECK(t, ((unsigned char *)(b->list + b->sizes.nparams))[i] == 0xa5,
              "params wrote more descriptors than the %u that sizes speaks of", b->sizes.nparams);
    for (uint32_t i = 0; i < b->sizes.nparams; i++)
        if (b->list[i].offset + b->list[i].count > end)
            end = b->list[i].offset + b->list[i].count;
    CHECK(t, end == b->sizes.param_count, "the parameters end at element %zu, sizes says %zu", end,
          b->sizes.param_count);
    return true;
}

static bool place_ends(block_t *b)
{
    const dp_device_vt_t *vt = b->lab->vt;
    const bool host = (vt->caps & DP_DEVICE_CAP_HOST_MEMORY) != 0;
    void *memory = NULL;

    CHECK_OK(b->lab->t, (host ? vt->allocate : vt->host_allocate)(b->lab->device, 3 * sizeof(b->layer.ends), &memory),
             "memory for the ends of documents");
    b->ends = memory;
    memcpy(b->ends, b->layer.ends, sizeof(b->layer.ends));
    return true;
}

static void release_ends(block_t *b)
{
    const dp_device_vt_t *vt = b->lab->vt;
    const bool host = (vt->caps & DP_DEVICE_CAP_HOST_MEMORY) != 0;

    (host ? vt->release : vt->host_release)(b->lab->device, b->ends);
}

bool conform_block_open(block_t *b, lab_t *lab, const layer_t *layer, uint64_t seed)
{
    const dp_dtype_t sums = dp_dtype_accumulator(layer->dtype);
    const size_t element = dp_dtype_bytes(layer->dtype);
    dp_status_t status;

    b->lab = lab;
    b->kind = conform_kernel_kind(lab->t);
    b->layer = *layer;
    b->instance = NULL;
    conform_forget_error();
    status = b->kind->open(b);
    if (status == DP_ERR_UNSUPPORTED) {
        CHECK(lab->t, conform_last_error()[0] != '\0', "open returned DP_ERR_UNSUPPORTED without a message");
        return false;
    }
    CHECK_OK(lab->t, status, "open");
    CHECK(lab->t, b->instance != NULL, "open returned DP_OK and gave no instance");
    if (!describe_layer(b) || !place_ends(b))
        return false;
    return conform_area_open(lab, &b->params, "params", layer->dtype, b->sizes.param_count * element,
                             b->shift * element) &&
           conform_area_open(lab, &b->grads, "grads", sums, b->sizes.param_count * dp_dtype_bytes(sums),
                             b->shift * dp_dtype_bytes(sums)) &&
           conform_area_open(lab, &b->scratch[0], "scratch", layer->dtype, b->sizes.scratch_bytes, 0) &&
           conform_area_open(lab, &b->scratch[1], "scratch", layer->dtype, b->sizes.scratch_bytes, 0) &&
           fill_params(b, seed);
}

bool conform_block_open_any(block_t *b, lab_t *lab, uint64_t seed)
{
    static const dp_dtype_t dtypes[] = {DP_F64, DP_F32, DP_BF16};

    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        for (const layer_t *l = conform_kernel_kind(lab->t)->layers; l->batch > 0; l++) {
            layer_t layer = *l;

            layer.dtype = dtypes[i];
            if (conform_block_open(b, lab, &layer, seed))
                return true;
            if (conform_failed(lab->t))
                return false;
        }
    conform_skip(lab->t, "supports no layer of the suite: %s", conform_last_error());
    conform_lab_close(lab);
    return false;
}

static bool takes_switch(lab_t *lab, block_t b, const char *name)
{
    if (!conform_block_open_any(&b, lab, 61)) /* which skips */
        return false;
    CHECK(lab->t, b.sizes.apart == b.apart && b.sizes.posted == b.posted,
          "open takes %s 1, and sizes say that apart is %d and posted %d", name, (int)b.sizes.apart,
          (int)b.sizes.posted);
    return conform_block_close(&b);
}

bool conform_block_takes_apart(lab_t *lab)
{
    return takes_switch(lab, (block_t){.apart = 1}, "apart");
}

bool conform_block_takes_posted(lab_t *lab)
{
    return takes_switch(lab, (block_t){.posted = 1}, "posted");
}

bool conform_block_close(block_t *b)
{
    lab_t *lab = b->lab;
    double *mine = must(calloc(b->sizes.param_count + 1, sizeof(*mine)));

    for (size_t i = 0; i < b->sizes.param_count; i++)
        mine[i] = b->values[b->kind->index(b, i)];
    if (!lab->broken && !area_kept(lab, &b->params, mine, "one of the calls"))
        return false;
    free(mine);
    b->kind->close(b);
    conform_area_close(lab, &b->params);
    conform_area_close(lab, &b->grads);
    conform_area_close(lab, &b->scratch[0]);
    conform_area_close(lab, &b->scratch[1]);
    release_ends(b);
    free(b->list);
    free(b->values);
    free(b->before);
    return true;
}

double *conform_block_gradients(block_t *b)
{
    double *now = conform_area_read(b->lab, &b->grads);

    for (size_t i = 0; now != NULL && i < b->sizes.param_count; i++)
        now[i] -= b->before[i];
    return now;
}

/* ---- micro-batches ---- */

/* As that rank has it. */
static layer_t layer_of(const block_t *b, int32_t rank)
{
    layer_t layer = b->layer;

    if (b->tokens[rank] > 0)
        layer.tokens = b->tokens[rank];
    return layer;
}

/* Outputs of whichever rank. */
static double *room_for_output(const block_t *b)
{
    return must(calloc((size_t)b->layer.batch * b->layer.sequence * b->layer.hidden, sizeof(double)));
}

/* Where a choice hangs on less than rounding changes, another token is drawn. */
static double *random_input(const block_t *b, const layer_t *layer, uint64_t seed)
{
    const size_t d = layer->hidden;
    const double margin = layer->dtype == DP_BF16 ? 0.02 : 1e-4;
    double *x = random_values(layer->dtype, seed, boundary(layer), 2);
    layer_t token = *layer;

    token.batch = token.sequence = token.tokens = 1;
    for (size_t i = 0; i < boundary(layer) && b->kind->margin != NULL; i += d)
        for (int tries = 0; tries < 100 && b->kind->margin(&token, b->values, x + i) < margin; tries++)
            for (size_t j = i; j < i + d; j++)
                x[j] = rounded(layer->dtype, random_between(&seed, 2));
    return x;
}

bool conform_pass_open(pass_t *p, block_t *b, int32_t microbatch)
{
    const size_t bytes = boundary(&b->layer) * dp_dtype_bytes(b->layer.dtype);
    const double begins = KERNEL_AUX_BEGINS;
    lab_t *lab = b->lab;

    memset(p, 0, sizeof(*p));
    p->block = b;
    p->microbatch = microbatch;
    for (int32_t r = 0; r < ranks_of(b); r++) {
        const layer_t layer = layer_of(b, r);
        const uint64_t seed = (uint64_t)(microbatch * CONFORM_RANKS_MAX + r);

        p->xs[r] = random_input(b, &layer, 1000 + seed);
        p->dys[r] = random_values(layer.dtype, 2000 + seed, boundary(&layer), 1);
        p->chosen[r] = must(calloc(conform_layer_tokens(&layer) * layer.top_k + 1, sizeof(int)));
    }
    return conform_area_open(lab, &p->x, "x", b->layer.dtype, bytes, 0) &&
           conform_area_open(lab, &p->y, "y", b->layer.dtype, bytes, 0) &&
           conform_area_open(lab, &p->dy, "dy", b->layer.dtype, bytes, 0) &&
           conform_area_open(lab, &p->dx, "dx", b->layer.dtype, bytes, 0) &&
           conform_area_open(lab, &p->saved, "saved", b->layer.dtype, b->sizes.saved_bytes, 0) &&
           conform_area_open(lab, &p->work[0], "work of forward", b->layer.dtype, b->sizes.work_bytes, 0) &&
           conform_area_open(lab, &p->work[1], "work of backward", b->layer.dtype, b->sizes.work_bytes, 0) &&
           conform_area_open(lab, &p->backward_buffers[0], "backward buffer of forward", b->layer.dtype,
                             b->sizes.backward_buffer_bytes, 0) &&
           conform_area_open(lab, &p->backward_buffers[1], "backward buffer", b->layer.dtype,
                             b->sizes.backward_buffer_bytes, 0) &&
           conform_area_open(lab, &p->aux, "aux_loss", DP_F64, sizeof(double), 0) &&
           conform_area_write(lab, &p->aux, &begins) && conform_area_write(lab, &p->x, p->xs[b->rank]) &&
           conform_area_write(lab, &p->dy, p->dys[b->rank]);
}

bool conform_pass_close(pass_t *p)
{
    area_t *const all[] = {&p->x,
                           &p->y,
                           &p->dy,
                           &p->dx,
                           &p->saved,
                           &p->work[0],
                           &p->work[1],
                           &p->backward_buffers[0],
                           &p->backward_buffers[1],
                           &p->aux};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (!p->block->lab->broken && !conform_area_whole(p->block->lab, all[i], "one of the calls"))
            return false;
        conform_area_close(p->block->lab, all[i]);
    }
    for (int32_t r = 0; r < ranks_of(p->block); r++) {
        free(p->xs[r]);
        free(p->dys[r]);
        free(p->chosen[r]);
    }
    return true;
}

int conform_pass_lane(const block_t *b, int step)
{
    return b->sizes.posted ? 0 : b->kind->steps[step].lane;
}

dp_io_t conform_pass_io(const pass_t *p, int step)
{
    const block_t *b = p->block;
    const step_t *s = &b->kind->steps[step];
    dp_io_t io = {.struct_size = sizeof(io), .step = 7, .microbatch = p->microbatch};

    io.params = conform_area_memory(&b->params);
    if (b->sizes.backward_buffer_bytes > 0)
        io.backward_buffer = conform_area_memory(&p->backward_buffers[s->phase != FORWARD]);
    io.tokens = b->layer.tokens;
    io.documents = b->layer.documents;
    io.document_ends = b->layer.documents > 0 ? b->ends : NULL;
    io.saved = conform_area_memory(&p->saved);
    io.scratch = conform_area_memory(&b->scratch[conform_pass_lane(b, step)]);
    if (s->phase == WEIGHT)
        io.grads = conform_area_memory(&b->grads);
    else
        io.work = conform_area_memory(&p->work[s->phase]);
    io.x = s->x ? conform_area_memory(&p->x) : NULL;
    io.y = s->y ? conform_area_memory(&p->y) : NULL;
    io.dy = s->dy ? conform_area_memory(&p->dy) : NULL;
    io.dx = s->dx && !p->without_dx ? conform_area_memory(&p->dx) : NULL;
    return io;
}

dp_status_t conform_pass_call(pass_t *p, int step)
{
    struct {
        dp_io_t io;
        unsigned char longer[64];
    } room;
    dp_status_t status;

    memset(&room, p->block->tail, sizeof(room));
    room.io = conform_pass_io(p, step);
    if (p->block->io_bytes != 0)
        room.io.struct_size = p->block->io_bytes;
    status = p->block->kind->call(p, step, &room.io);
    memset(&room, 0xff, sizeof(room)); /* work on the stream may not look at it */
    return status;
}

/* Guards after a call, inputs that it was only to read, and what nobody needs any more. */
static bool check_after(pass_t *p, int step)
{
    const block_t *b = p->block;
    const step_t *s = &b->kind->steps[step];
    const bool last = step + 1 == b->kind->nsteps || s[1].phase != s->phase;
    const area_t *const written[] = {&b->grads,   &b->scratch[0], &b->scratch[1], &p->saved, &p->work[0],
                                     &p->work[1], &p->y,          &p->dx,         &p->aux};

    for (size_t i = 0; i < sizeof(written) / sizeof(written[0]); i++)
        if (!conform_area_whole(b->lab, written[i], s->name))
            return false;
    return (!s->x || (area_kept(b->lab, &p->x, p->xs[b->rank], s->name) && conform_area_poison(b->lab, &p->x))) &&
           (!s->dy || (area_kept(b->lab, &p->dy, p->dys[b->rank], s->name) && conform_area_poison(b->lab, &p->dy))) &&
           (!last || s->phase == WEIGHT || conform_area_poison(b->lab, &p->work[s->phase]));
}

bool conform_pass_step(pass_t *p, int step)
{
    block_t *b = p->block;
    const step_t *s = &b->kind->steps[step];
    bool refused;

    if (!conform_area_poison(b->lab, &b->scratch[conform_pass_lane(b, step)]))
        return false;
    conform_lab_refuse(b->lab, 1);
    CHECK_OK(b->lab->t, conform_pass_call(p, step), "%s", s->name);
    if (!conform_lab_wait(b->lab, conform_pass_lane(b, step), s->name))
        return false;
    refused = conform_lab_refused(b->lab);
    CHECK(b->lab->t, !refused, "%s allocated memory: nothing is allocated in a step", s->name);
    return check_after(p, step);
}

/* What forward had in the backward buffer is gone by then. */
static bool recompute(pass_t *p)
{
    block_t *b = p->block;
    dp_io_t io = {.struct_size = sizeof(io), .step = 7, .microbatch = p->microbatch};

    if (!b->sizes.recomputes)
        return true;
    io.params = conform_area_memory(&b->params);
    io.saved = conform_area_memory(&p->saved);
    io.backward_buffer = b->sizes.backward_buffer_bytes > 0 ? conform_area_memory(&p->backward_buffers[1]) : NULL;
    io.scratch = conform_area_memory(&b->scratch[0]);
    io.tokens = b->layer.tokens;
    io.documents = b->layer.documents;
    io.document_ends = b->layer.documents > 0 ? b->ends : NULL;
    CHECK_OK(b->lab->t, b->kind->recompute(p, &io), "recompute");
    return conform_lab_wait(b->lab, 0, "recompute") &&
           conform_area_whole(b->lab, &p->backward_buffers[1], "recompute") &&
           conform_area_whole(b->lab, &p->saved, "recompute") && conform_area_poison(b->lab, &b->scratch[0]);
}

bool conform_pass_run(pass_t *p, phase_t first, phase_t last)
{
    if (first < BACKWARD && last >= BACKWARD)
        return conform_pass_run(p, first, FORWARD) && conform_pass_run(p, BACKWARD, last);
    if (first == BACKWARD && !recompute(p))
        return false;
    for (int i = 0; i < p->block->kind->nsteps; i++)
        if (p->block->kind->steps[i].phase >= first && p->block->kind->steps[i].phase <= last &&
            !conform_pass_step(p, i))
            return false;
    return true;
}

/* ---- against the reference ---- */

tolerance_t conform_kernel_tolerance(dp_dtype_t dtype)
{
    static const tolerance_t f64 = {1e-11, 1e-7}, f32 = {2e-5, 2e-4}, bf16 = {0x1p-5, 0x1p-4};

    return dtype == DP_F64 ? f64 : dtype == DP_F32 ? f32 : bf16;
}

static double largest(const double *values, size_t count)
{
    double most = 0;

    for (size_t i = 0; i < count; i++)
        most = fabs(values[i]) > most ? fabs(values[i]) : most;
    return most;
}

static const char *name_of(dp_dtype_t dtype)
{
    return dtype == DP_F64 ? "f64" : dtype == DP_F32 ? "f32" : "bf16";
}

/* A sentence's beginning for a result that is wrong. */
static const char *layer_text(const block_t *b, char text[200])
{
    const layer_t *l = &b->layer;
    int at = snprintf(text, 200, "%s, batch %u, sequence %u, tokens %zu, documents %u, hidden %u, ", name_of(l->dtype),
                      l->batch, l->sequence, conform_layer_tokens(l), l->documents, l->hidden);

    if (l->heads > 0)
        snprintf(text + at, (size_t)(200 - at),
                 "heads %u, kv_heads %u, head_dim %u, value_dim %u, q_rank %u, kv_rank %u, rope_dim %u", l->heads,
                 l->kv_heads, l->head_dim, l->value_dim, l->q_rank, l->kv_rank, l->rope_dim);
    else
        snprintf(text + at, (size_t)(200 - at),
                 "experts %u, top_k %u, width %u, shared %u, %s%s, replicas %u, ranks %d", l->experts, l->top_k,
                 l->width, l->shared, l->gate == DP_GATE_SIGMOID ? "sigmoid" : "softmax",
                 l->normalize ? " normalized" : "", b->replicas, ranks_of(b));
    return text;
}

static bool is_near(block_t *b, const char *what, const double *got, const double *wanted, size_t count,
                    double tolerance)
{
    const double scale = largest(wanted, count);
    char text[200];

    for (size_t i = 0; i < count; i++)
        CHECK(b->lab->t, fabs(got[i] - wanted[i]) <= tolerance * scale,
              "%s: %s, element %zu is %.9g, the reference has %.9g", layer_text(b, text), what, i, got[i], wanted[i]);
    return true;
}

/* The reference's choices of every rank; the output and the auxiliary loss of ours. */
static double refer(pass_t *p, double *y)
{
    const block_t *b = p->block;

    for (int32_t r = 0; r < ranks_of(b); r++) {
        const layer_t layer = layer_of(b, r);

        if (r != b->rank)
            b->kind->reference(&layer, b->values, p->xs[r], y, p->chosen[r], false);
    }
    return b->kind->reference(&b->layer, b->values, p->xs[b->rank], y, p->chosen[b->rank], false);
}

bool conform_pass_output_is_right(pass_t *p)
{
    block_t *b = p->block;
    const double tolerance = conform_kernel_tolerance(b->layer.dtype).output;
    double *wanted = room_for_output(b), *got = conform_area_read(b->lab, &p->y);
    double *aux = conform_area_read(b->lab, &p->aux), loss = KERNEL_AUX_BEGINS + refer(p, wanted);
    bool fine = got != NULL && aux != NULL && is_near(b, "the output", got, wanted, boundary(&b->layer), tolerance) &&
                is_near(b, "the auxiliary loss", aux, &loss, 1, tolerance);

    free(wanted);
    free(got);
    free(aux);
    return fine;
}

/* What is differentiated: the sum over micro-batches of sum(y * dy) + aux_scale * auxiliary loss,
 * of ours or of all ranks. */
typedef struct function {
    block_t *b;
    pass_t *const *passes;
    int count;
    bool everyone; /* of all ranks: for what belongs to an expert */
    double *y;
} function_t;

static double value_of(const function_t *f)
{
    double sum = 0;

    for (int m = 0; m < f->count; m++)
        for (int32_t r = 0; r < ranks_of(f->b); r++) {
            const pass_t *p = f->passes[m];
            const layer_t layer = layer_of(f->b, r);

            if (!f->everyone && r != f->b->rank)
                continue;
            sum += KERNEL_AUX_SCALE * f->b->kind->reference(&layer, f->b->values, p->xs[r], f->y, p->chosen[r], true);
            for (size_t i = 0; i < boundary(&layer); i++)
                sum += f->y[i] * p->dys[r][i];
        }
    return sum;
}

/* Along direction[count], added to at[count]: central differences of four points. */
static double slope(const function_t *f, double *at, const double *direction, size_t count)
{
    static const double steps[] = {1, -1, 2, -2}, weights[] = {8, -8, -1, 1};
    const double h = 1e-3;
    double sum = 0, *start = must(malloc(count * sizeof(*start)));

    memcpy(start, at, count * sizeof(*start));
    for (int s = 0; s < 4; s++) {
        for (size_t i = 0; i < count; i++)
            at[i] = start[i] + steps[s] * h * direction[i];
        sum += weights[s] * value_of(f);
    }
    memcpy(at, start, count * sizeof(*start));
    free(start);
    return sum / (12 * h);
}

static double root_mean_square(const double *values, size_t count)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += values[i] * values[i];
    return sqrt(sum / (double)count);
}

/* One tensor's gradient, `least` the scale below which differences do not matter. */
static bool tensor_is_right(const function_t *f, const char *name, const double *got, double *at, size_t count,
                            double least, bool each)
{
    const double tolerance = conform_kernel_tolerance(f->b->layer.dtype).gradient, one = 1;
    const double size = each ? largest(got, count) : root_mean_square(got, count), scale = size > least ? size : least;
    char text[200];

    layer_text(f->b, text);
    for (size_t i = 0; each && i < count; i++) {
        const double wanted = slope(f, at + i, &one, 1);

        CHECK(f->b->lab->t, fabs(got[i] - wanted) <= tolerance * scale,
              "%s: the gradient of %s, element %zu is %.9g, by differences of the reference %.9g", text, name, i,
              got[i], wanted);
    }
    for (uint64_t seed = 1; !each && seed <= 2; seed++) {
        double *direction = random_values(DP_F64, seed, count, 1), along = 0, wanted;

        for (size_t i = 0; i < count; i++) {
            direction[i] /= sqrt((double)count);
            along += direction[i] * got[i];
        }
        wanted = slope(f, at, direction, count);
        free(direction);
        CHECK(f->b->lab->t, fabs(along - wanted) <= 4 * tolerance * scale,
              "%s: the gradient of %s along a random direction is %.9g, by differences of the reference %.9g", text,
              name, along, wanted);
    }
    return true;
}

/* The "gradient" of the router's bias: how often each expert was chosen. */
static bool counts_are_right(const function_t *f, const dp_param_t *bias, const double *got)
{
    const block_t *b = f->b;

    for (size_t e = 0; e < bias->count; e++) {
        double count = 0;

        for (int m = 0; m < f->count; m++)
            for (size_t i = 0; i < conform_layer_tokens(&b->layer) * b->layer.top_k; i++)
                count += f->passes[m]->chosen[b->rank][i] == (int)e;
        CHECK(b->lab->t, got[bias->offset + e] == count,
              "the gradient of %s says that expert %zu was chosen %g times, it was chosen %g times", bias->name, e,
              got[bias->offset + e], count);
    }
    return true;
}

static bool params_are_right(function_t *f, const double *got, bool each)
{
    block_t *b = f->b;
    double least = 0;

    for (uint32_t i = 0; i < b->sizes.nparams; i++)
        if (b->list[i].kind != DP_PARAM_ROUTER_BIAS) {
            const double *tensor = got + b->list[i].offset;
            const double size = each ? largest(tensor, b->list[i].count) : root_mean_square(tensor, b->list[i].count);

            least = size / 4 > least ? size / 4 : least;
        }
    for (uint32_t i = 0; i < b->sizes.nparams; i++) {
        const dp_param_t *p = &b->list[i];
        const size_t at = b->kind->index(b, p->offset);

        f->everyone = at >= b->kind->common(&b->layer);
        if (p->kind == DP_PARAM_ROUTER_BIAS
                ? !counts_are_right(f, p, got)
                : !tensor_is_right(f, p->name, got + p->offset, b->values + at, p->count, least, each))
            return false;
    }
    return true;
}

bool conform_gradients_are_right(block_t *b, pass_t *const *passes, int count, bool each)
{
    function_t f = {.b = b, .passes = passes, .count = count, .y = room_for_output(b)};
    double *got = conform_block_gradients(b);
    bool fine = got != NULL && (b->kind->gather == NULL || b->kind->gather(b, got));

    for (int m = 0; m < count; m++)
        refer(passes[m], f.y);
    for (int m = 0; m < count && fine; m++) {
        const function_t mine = {.b = b, .passes = passes + m, .count = 1, .y = f.y};
        double *dx = conform_area_read(b->lab, &passes[m]->dx);

        if (passes[m]->without_dx) {
            free(dx);
            continue;
        }
        fine = dx != NULL && tensor_is_right(&mine, "x (dx)", dx, passes[m]->xs[b->rank], boundary(&b->layer), 0, each);
        free(dx);
    }
    fine = fine && params_are_right(&f, got, each);
    free(got);
    free(f.y);
    return fine;
}

bool conform_block_is_right(block_t *b, bool each)
{
    pass_t p, *all = &p;

    return conform_area_write(b->lab, &b->grads, b->before) && conform_pass_open(&p, b, 0) &&
           conform_pass_run(&p, FORWARD, WEIGHT) && conform_pass_output_is_right(&p) &&
           conform_gradients_are_right(b, &all, 1, each) && conform_pass_close(&p);
}
