/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * snapshot.c: a copy of what this rank saves, taken on a separate stream while the next step
 * runs: forward and backward only read it. */
#include "base/do.h"
#include "base/memory.h"
#include "engine/saving.h"

#include <string.h>

static void release_snapshot(dp_pipeline_t *p, dp__snapshot_t *s)
{
    if (s->memory != NULL && !p->host_memory)
        p->device_vt->host_release(p->device, s->memory);
    else
        dp__free(s->memory);
    s->memory = NULL;
    s->room = 0;
}

/* Every page is touched now and not when the first snapshot is taken. */
static dp_status_t take_memory(dp_pipeline_t *p, dp__snapshot_t *s, size_t bytes)
{
    void *memory = NULL;
    dp_status_t status = DP_OK;

    if (bytes <= s->room)
        return DP_OK;
    release_snapshot(p, s);
    if (p->host_memory)
        memory = dp__allocate(bytes, 64);
    else
        status = p->device_vt->host_allocate(p->device, bytes, &memory);
    if (status >= 0 && memory == NULL)
        status = dp_fail(DP_ERR_NOMEM, "no memory for a copy of the %zu bytes that this rank saves", bytes);
    if (status < 0)
        return status;
    memset(memory, 0, bytes);
    s->memory = memory;
    s->room = bytes;
    return DP_OK;
}

/* Lists what is ours, as it is placed now. */
static dp_status_t list(dp_pipeline_t *p, dp__snapshot_t *s)
{
    size_t bytes = 0;

    dp__kept_list_free(&s->list);
    dp__free(s->tensors);
    s->tensors = NULL;
    s->n = s->parameters = 0;
    DO(dp__kept_list(p, &s->list));
    s->tensors = dp__calloc(s->list.n + 1, sizeof(*s->tensors));
    if (s->tensors == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a list of %u tensors", s->list.n);
    for (uint32_t i = 0; i < s->list.n; i++) {
        const dp__kept_t *kept = &s->list.at[i];

        if (!kept->mine)
            continue;
        s->tensors[s->n++] = (dp__tensor_t){.name = kept->name, .dtype = kept->dtype, .count = kept->count};
        s->parameters += kept->parameter;
        bytes += dp__kept_bytes(kept);
    }
    return take_memory(p, s, bytes);
}

dp_status_t dp__snapshot_open(dp_pipeline_t *p, dp__snapshot_t *s)
{
    DO(p->device_vt->stream_open(p->device, DP_LANE_REDUCE, &s->stream));
    return list(p, s);
}

static dp_status_t copy_kept(dp_pipeline_t *p, dp__snapshot_t *s, char *to, const dp__kept_t *from, size_t bytes)
{
    if (!from->host)
        return bytes > 0 ? p->device_vt->copy(s->stream, to, from->memory, bytes) : DP_OK;
    memcpy(to, from->memory, bytes);
    return DP_OK;
}

/* Neighbours in memory are copied at once. */
dp_status_t dp__snapshot_begin(dp_pipeline_t *p, dp__snapshot_t *s)
{
    const dp__kept_t *run = NULL;
    size_t at = 0, bytes = 0;

    s->copying = true;
    DO(list(p, s));
    for (uint32_t i = 0; i < s->list.n; i++) {
        const dp__kept_t *kept = &s->list.at[i];

        if (!kept->mine)
            continue;
        if (run != NULL && (run->memory + bytes != kept->memory || run->host != kept->host)) {
            DO(copy_kept(p, s, s->memory + at, run, bytes));
            at += bytes, bytes = 0;
            run = NULL;
        }
        if (run == NULL)
            run = kept;
        bytes += dp__kept_bytes(kept);
    }
    return run != NULL ? copy_kept(p, s, s->memory + at, run, bytes) : DP_OK;
}

dp_status_t dp__snapshot_finish(dp_pipeline_t *p, dp__snapshot_t *s)
{
    s->copying = false;
    return p->device_vt->synchronize(s->stream, -1);
}

void dp__snapshot_close(dp_pipeline_t *p, dp__snapshot_t *s)
{
    if (s->stream != NULL) {
        if (s->copying)
            (void)dp__snapshot_finish(p, s);
        p->device_vt->stream_close(s->stream);
    }
    release_snapshot(p, s);
    dp__kept_list_free(&s->list);
    dp__free(s->tensors);
}
