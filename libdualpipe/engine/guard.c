/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * guard.c: DUALPIPE_GUARD=1: every call of a segment on its own, with memory that tells what the
 * call did to it.
 *
 * The lane is brought to rest before and after a call, so that the calling thread can look at all
 * memory. Functions that enqueue are called with a gate closed on their stream: nothing they put
 * there runs yet, and what changes nevertheless they did themselves. In the order of a program's
 * list every call can end before the next begins (verify has proved more), so waiting for each
 * leads to no circle. */
#include "engine/guard.h"

#include "base/do.h"
#include "base/hash.h"
#include "base/memory.h"
#include "stage/guard.h"

#include <stdbool.h>
#include <string.h>

/* Memory of a call, and what lies behind it. */
typedef struct region {
    const char *name;
    char *at;
    size_t bytes, behind; /* behind: bytes that are looked at, at most DP__GUARD_BYTES */
    uint64_t hash;
} region_t;

/* What a call may write, and what it may only read. */
enum { SAVED, BACKWARD_BUFFER, WORK, SCRATCH, Y, DX, GRADS, LOSS, AUX_LOSS, WRITTEN };
enum { X = WRITTEN, DY, PARAMS, INPUT, TARGET, REGIONS };

/* ---- open and close ---- */

bool dp__host_can_look(const dp_pipeline_t *p, const char *what)
{
    const uint32_t needed = DP_DEVICE_CAP_HOST_MEMORY | DP_DEVICE_CAP_LAUNCH;
    const bool can = (p->device_vt->caps & needed) == needed && !p->options.graph;

    if (!can)
        dp_log(DP_LOG_WARN, "engine", "%s: %s%s", what, p->device_name,
               p->options.graph ? ": steps are captured as graphs"
                                : " keeps its memory from the host, or runs no host functions");
    return can;
}

dp_status_t dp__guard_open(dp_pipeline_t *p)
{
    if (!dp__guard_wanted() || p->guard.on || !dp__host_can_look(p, "DUALPIPE_GUARD: nothing is guarded"))
        return DP_OK;
    p->guard.copies = dp__allocate((size_t)REGIONS * DP__GUARD_BYTES, 64);
    if (p->guard.copies == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for what is guarded");
    p->guard.on = 1;
    return DP_OK;
}

void dp__guard_close(dp_pipeline_t *p)
{
    dp__free(p->guard.copies);
}

/* ---- the gate ---- */

typedef struct gate {
    const dp_host_t *host;
    dp_signal_t *signal;
    uint32_t value;
} gate_t;

static dp_status_t wait_at_gate(void *arg)
{
    const gate_t *g = arg;

    return g->host->wait(g->host, g->signal, g->value, -1, "a guarded call waits until its function has returned");
}

static dp_status_t close_gate(dp_pipeline_t *p, dp_stream_t *s)
{
    const gate_t gate = {p->host, &p->guard.gate, ++p->guard.calls};

    return p->device_vt->launch(s, wait_at_gate, &gate, sizeof(gate));
}

static void open_gate(dp_pipeline_t *p)
{
    p->host->post(p->host, &p->guard.gate, p->guard.calls);
}

/* ---- the memory of a call ---- */

static void list_regions(const dp_pipeline_t *p, const dp_stage_t *stage, int32_t index, const dp_segment_call_t *call,
                         region_t regions[REGIONS])
{
    const dp_block_sizes_t *sizes = &stage->parts[stage->segments[index].part].sizes;
    const size_t grads = sizes->param_count * dp_dtype_bytes(dp_dtype_accumulator(stage->dtype));
    const size_t params = sizes->param_count * dp_dtype_bytes(stage->dtype);
    const double *aux = p->sums.losses + p->schedule->microbatches, *end = p->sums.losses + dp__losses_count(p);

    regions[SAVED] = (region_t){"saved", call->saved, sizes->saved_bytes, DP__GUARD_BYTES, 0};
    regions[BACKWARD_BUFFER] =
        (region_t){"backward buffer", call->backward_buffer, sizes->backward_buffer_bytes, DP__GUARD_BYTES, 0};
    regions[WORK] = (region_t){"work", call->work, sizes->work_bytes, DP__GUARD_BYTES, 0};
    regions[SCRATCH] = (region_t){"scratch", call->scratch, sizes->scratch_bytes, DP__GUARD_BYTES, 0};
    regions[Y] = (region_t){"y", call->y, call->boundary_bytes, DP__GUARD_BYTES, 0};
    regions[DX] = (region_t){"dx", call->dx, call->boundary_bytes, DP__GUARD_BYTES, 0};
    regions[GRADS] = (region_t){"grads", call->grads, grads, DP__GUARD_BYTES, 0};
    regions[LOSS] = (region_t){"loss", (char *)call->loss, sizeof(double), 0, 0};
    regions[AUX_LOSS] = (region_t){"aux_loss", (char *)call->aux_loss, sizeof(double), 0, 0};
    regions[X] = (region_t){"x", (char *)(uintptr_t)call->x, call->boundary_bytes, 0, 0};
    regions[DY] = (region_t){"dy", (char *)(uintptr_t)call->dy, call->boundary_bytes, 0, 0};
    regions[PARAMS] = (region_t){"params", (char *)(uintptr_t)call->params, params, 0, 0};
    /* of the trainer's memory we know that it has a byte */
    regions[INPUT] = (region_t){"input", (char *)(uintptr_t)call->input, 1, 0, 0};
    regions[TARGET] = (region_t){"target", (char *)(uintptr_t)call->target, 1, 0, 0};
    if (call->loss != NULL)
        regions[LOSS].behind = (size_t)(aux - call->loss - 1) * sizeof(double);
    if (call->aux_loss != NULL)
        regions[AUX_LOSS].behind = (size_t)(end - call->aux_loss - 1) * sizeof(double);
    for (int i = LOSS; i <= AUX_LOSS; i++)
        if (regions[i].behind > DP__GUARD_BYTES)
            regions[i].behind = DP__GUARD_BYTES;
}

static uint64_t hash(const region_t *r)
{
    uint64_t h = DP__HASH_BEGIN, word;
    size_t i = 0;

    for (; i + sizeof(word) <= r->bytes; i += sizeof(word)) {
        memcpy(&word, r->at + i, sizeof(word));
        h = dp__hash_field(h, word);
        h ^= h >> 32;
    }
    for (; i < r->bytes; i++)
        h = dp__hash_field(h, (unsigned char)r->at[i]);
    return h;
}

/* ---- NaN where nothing may be read ---- */

static uint64_t nan_of(dp_dtype_t dtype)
{
    return dtype == DP_F64 ? 0x7ff8a5a5a5a5a5a5u : dtype == DP_F32 ? 0x7fc5a5a5u : 0x7fe5u;
}

/* Quiet NaNs of one payload: what is added to them keeps it. */
static void spoil_tensor(const region_t *r, dp_dtype_t dtype)
{
    const uint64_t nan = nan_of(dtype);
    const size_t size = dp_dtype_bytes(dtype);

    for (size_t i = 0; i + size <= r->bytes && r->at != NULL; i += size)
        memcpy(r->at + i, &nan, size); /* little-endian, as all plugins' hosts are */
}

static size_t still_spoilt(const region_t *r, dp_dtype_t dtype)
{
    const size_t size = dp_dtype_bytes(dtype);
    const uint64_t sign = (uint64_t)1 << (8 * size - 1), nan = nan_of(dtype);
    size_t n = 0;

    for (size_t i = 0; i + size <= r->bytes && r->at != NULL; i += size) {
        uint64_t value = 0;

        memcpy(&value, r->at + i, size);
        n += (value & ~sign) == nan;
    }
    return n;
}

static void spoil(const region_t *r)
{
    if (r->at != NULL)
        memset(r->at, 0xff, r->bytes); /* NaN in every type */
}

/* first: of the segments of the part in this pass; buffer: of those in this F, or in this R and
 * I. */
static void spoil_all(const dp_stage_t *stage, dp_op_kind_t pass, bool first, bool buffer,
                      const region_t regions[REGIONS])
{
    spoil(&regions[SCRATCH]);
    if (buffer)
        spoil(&regions[BACKWARD_BUFFER]);
    if (!first)
        return;
    spoil(&regions[WORK]);
    if (pass == DP_OP_F)
        spoil(&regions[SAVED]);
    spoil_tensor(&regions[Y], stage->dtype);
    spoil_tensor(&regions[DX], stage->dtype);
}

/* ---- before and after ---- */

static void remember(dp_pipeline_t *p, region_t regions[REGIONS])
{
    for (int i = 0; i < REGIONS; i++)
        if (regions[i].at != NULL) {
            regions[i].hash = hash(&regions[i]);
            memcpy(p->guard.copies + (size_t)i * DP__GUARD_BYTES, regions[i].at + regions[i].bytes, regions[i].behind);
        }
}

static dp_status_t check_turn(const region_t regions[REGIONS])
{
    for (int i = 0; i < WRITTEN; i++)
        if (regions[i].at != NULL && hash(&regions[i]) != regions[i].hash)
            return dp_fail(DP_ERR_INVALID,
                           "guard: %s changed before the stream got there: the function computed at once instead of "
                           "putting its work on the stream; give it as a host function (host_forward, ...)",
                           regions[i].name);
    return DP_OK;
}

static dp_status_t check_read(const region_t regions[REGIONS])
{
    for (int i = WRITTEN; i < REGIONS; i++)
        if (regions[i].at != NULL && hash(&regions[i]) != regions[i].hash)
            return dp_fail(DP_ERR_INVALID, "guard: it wrote to %s, which it may only read: change a copy",
                           regions[i].name);
    return DP_OK;
}

static dp_status_t check_behind(const dp_pipeline_t *p, const region_t regions[REGIONS])
{
    for (int i = 0; i < WRITTEN; i++) {
        const region_t *r = &regions[i];
        const unsigned char *before = p->guard.copies + (size_t)i * DP__GUARD_BYTES;
        size_t n = r->at != NULL ? r->behind : 0;

        while (n > 0 && (unsigned char)r->at[r->bytes + n - 1] == before[n - 1])
            n--;
        if (n > 0)
            return dp_fail(DP_ERR_INVALID, "guard: it wrote beyond the end of %s, which has %zu bytes: %s%zu further",
                           r->name, r->bytes, n == DP__GUARD_BYTES ? "at least " : "", n);
    }
    return DP_OK;
}

static dp_status_t check_written(const dp_stage_t *stage, const region_t *r)
{
    const size_t left = still_spoilt(r, stage->dtype);

    if (left == 0)
        return DP_OK;
    return dp_fail(DP_ERR_INVALID,
                   "guard: %zu of the %zu elements of %s still hold the NaN of before: all of it must be overwritten, "
                   "with = and not +=",
                   left, r->bytes / dp_dtype_bytes(stage->dtype), r->name);
}

dp_status_t dp__guard_put(dp_pipeline_t *p, const dp_stage_t *stage, const dp__command_t *call, int32_t span,
                          const dp_segment_call_t *own, dp_stream_t *s)
{
    const dp__stage_segment_t *segment = &stage->segments[call->segment];
    const dp_op_kind_t pass = (dp_op_kind_t)call->op;
    const bool recomputes = stage->shapes[call->segment].recomputes;
    const bool first = pass == DP_OP_F ? segment->first_of_part : pass == DP_OP_I && segment->last_of_part;
    const bool buffer = pass == DP_OP_R ? segment->last_of_part : first && !(pass == DP_OP_I && recomputes);
    const bool last = pass == DP_OP_F ? segment->last_of_part : pass == DP_OP_I && segment->first_of_part;
    region_t regions[REGIONS];
    dp_status_t status, early;

    p->run.enqueueing = -1; /* what fails before is not this call's */
    DO(dp__stream_finish(p, s));
    p->run.enqueueing = span;
    list_regions(p, stage, call->segment, own, regions);
    spoil_all(stage, pass, first, buffer, regions);
    remember(p, regions);
    DO(close_gate(p, s));
    status = dp__stage_put(stage, call->segment, pass, own, p->device_vt, s);
    early = status >= 0 ? check_turn(regions) : status;
    open_gate(p);
    DO(early);
    DO(dp__stream_finish(p, s));
    DO(check_read(regions));
    DO(check_behind(p, regions));
    if (last)
        DO(check_written(stage, &regions[pass == DP_OP_F ? Y : DX]));
    return DP_OK;
}
