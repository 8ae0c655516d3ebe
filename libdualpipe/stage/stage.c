/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * stage.c: chains parts into a stage and hands every segment the memory of its part.
 *
 * Work memory of a pass: two boundary tensors, used in turn for what flows from part to part, then the work memory of
 * the part that is running (parts of one pass run one after the other, so they share it). */
#include "stage/stage.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

#define ALIGNMENT 64
#define MOST_SEGMENTS INT16_MAX /* what the order of a pair can number */

typedef struct dp__stage_part {
    dp_part_t part;
    size_t params_offset; /* bytes */
    size_t saved_offset;
} dp__stage_part_t;

void dp_stage_free(dp_stage_t *stage)
{
    if (stage == NULL)
        return;
    dp__free(stage->names);
    dp__free(stage->params);
    dp__free(stage->shapes);
    dp__free(stage->segments);
    dp__free(stage->parts);
    dp__free(stage);
}

static dp_status_t check_part(const dp_part_t *part, int32_t index)
{
    if (part->struct_size < sizeof(dp_part_t))
        return dp_fail(DP_ERR_INVALID, "part %d: struct_size %u is not that of dp_part_t", index, part->struct_size);
    if (part->nsegments < 1 || part->nsegments > DP_PART_SEGMENTS)
        return dp_fail(DP_ERR_INVALID, "part %d has %d segments, 1 to %d are legal", index, part->nsegments,
                       DP_PART_SEGMENTS);
    if (part->sizes.nparams > 0 && part->params == NULL)
        return dp_fail(DP_ERR_INVALID, "part %d: %u parameters announced, no list given", index, part->sizes.nparams);
    for (int32_t s = 0; s < part->nsegments; s++) {
        const dp_segment_t *segment = &part->segments[s];

        if (segment->name == NULL || segment->name[0] == '\0' || segment->forward == NULL ||
            segment->backward_input == NULL)
            return dp_fail(DP_ERR_INVALID, "part %d segment %d: name, forward and backward_input are required", index, s);
        if (segment->lane != DP_LANE_COMPUTE && segment->lane != DP_LANE_ALL_TO_ALL)
            return dp_fail(DP_ERR_INVALID, "part %d segment %s: a segment runs on the compute or the all-to-all lane",
                           index, segment->name);
    }
    for (uint32_t p = 0; p < part->sizes.nparams; p++) {
        if (part->params[p].name == NULL)
            return dp_fail(DP_ERR_INVALID, "part %d: parameter %u has no name", index, p);
        if (part->params[p].offset > part->sizes.param_count ||
            part->sizes.param_count - part->params[p].offset < part->params[p].count)
            return dp_fail(DP_ERR_INVALID, "part %d parameter %s lies outside the part's %zu elements", index,
                           part->params[p].name, part->sizes.param_count);
    }
    return DP_OK;
}

/* Adds a part's sizes to the stage's and remembers where it starts. false: the sum wraps. */
static bool place_part(dp_stage_t *stage, dp__stage_part_t *part, size_t *params_bytes, size_t *work, size_t *scratch)
{
    const dp_block_sizes_t *sizes = &part->part.sizes;
    size_t bytes;

    part->params_offset = *params_bytes;
    part->saved_offset = stage->info.saved_bytes;
    if (!dp__mul(sizes->param_count, dp_dtype_bytes(stage->dtype), &bytes) || !dp__round_up(bytes, ALIGNMENT, &bytes) ||
        !dp__add(*params_bytes, bytes, params_bytes))
        return false;
    if (!dp__round_up(sizes->saved_bytes, ALIGNMENT, &bytes) ||
        !dp__add(stage->info.saved_bytes, bytes, &stage->info.saved_bytes))
        return false;
    *work = *work < sizes->work_bytes ? sizes->work_bytes : *work;
    *scratch = *scratch < sizes->scratch_bytes ? sizes->scratch_bytes : *scratch;
    stage->info.nparams += sizes->nparams;
    return true;
}

static size_t name_bytes(const dp_part_t *part)
{
    size_t bytes = 0;

    for (uint32_t p = 0; p < part->sizes.nparams; p++)
        bytes += (part->prefix != NULL ? strlen(part->prefix) : 0) + strlen(part->params[p].name) + 1;
    return bytes;
}

/* The stage's own list of parameters: offsets within the stage, names with their part's prefix. */
static dp_status_t list_params(dp_stage_t *stage)
{
    size_t bytes = 1;
    uint32_t n = 0;
    char *at;

    for (int32_t i = 0; i < stage->nparts; i++)
        bytes += name_bytes(&stage->parts[i].part);
    stage->params = dp__calloc(stage->info.nparams + 1u, sizeof(*stage->params));
    stage->names = dp__calloc(1, bytes);
    if (stage->params == NULL || stage->names == NULL)
        return dp_fail(DP_ERR_NOMEM, "stage: no memory for a list of %u parameters", stage->info.nparams);
    at = stage->names;
    for (int32_t i = 0; i < stage->nparts; i++) {
        const dp_part_t *part = &stage->parts[i].part;

        for (uint32_t p = 0; p < part->sizes.nparams; p++, n++) {
            stage->params[n] = part->params[p];
            stage->params[n].offset += stage->parts[i].params_offset / dp_dtype_bytes(stage->dtype);
            stage->params[n].name = at;
            at += snprintf(at, (size_t)(stage->names + bytes - at), "%s%s", part->prefix != NULL ? part->prefix : "",
                           part->params[p].name) + 1;
        }
    }
    stage->info.params = stage->params;
    return DP_OK;
}

static void list_segments(dp_stage_t *stage)
{
    int32_t n = 0;

    for (int32_t i = 0; i < stage->nparts; i++)
        for (int32_t s = 0; s < stage->parts[i].part.nsegments; s++, n++) {
            const dp_segment_t *segment = &stage->parts[i].part.segments[s];

            stage->segments[n] = (dp__stage_segment_t){segment, i, s == 0, s == stage->parts[i].part.nsegments - 1};
            stage->shapes[n] = (dp_segment_shape_t){(uint8_t)segment->role, (uint8_t)segment->lane,
                                                    segment->backward_weight != NULL};
        }
}

static dp_status_t build(dp_stage_t *stage, const dp_part_t *parts)
{
    size_t params_bytes = 0, work = 0, scratch = 0, boundary;
    dp_status_t status;

    stage->parts = dp__calloc((size_t)stage->nparts, sizeof(*stage->parts));
    if (stage->parts == NULL)
        return dp_fail(DP_ERR_NOMEM, "stage: no memory for %d parts", stage->nparts);
    for (int32_t i = 0; i < stage->nparts; i++) {
        status = check_part(&parts[i], i);
        if (status < 0)
            return status;
        stage->parts[i].part = parts[i];
        stage->nsegments += parts[i].nsegments;
        if (stage->nsegments > MOST_SEGMENTS)
            return dp_fail(DP_ERR_INVALID, "stage: more than %d segments", MOST_SEGMENTS);
        if (!place_part(stage, &stage->parts[i], &params_bytes, &work, &scratch))
            return dp_fail(DP_ERR_INVALID, "stage: the sizes of part %d add up to more than memory can hold", i);
    }
    if (!dp__round_up(stage->boundary_bytes, ALIGNMENT, &boundary) || !dp__mul(boundary, 2, &boundary) ||
        !dp__add(boundary, work, &stage->info.work_bytes))
        return dp_fail(DP_ERR_INVALID, "stage: a boundary tensor of %zu bytes is too large", stage->boundary_bytes);
    stage->info.nsegments = stage->nsegments;
    stage->info.scratch_bytes = scratch;
    stage->info.param_count = params_bytes / dp_dtype_bytes(stage->dtype);
    stage->segments = dp__calloc((size_t)stage->nsegments, sizeof(*stage->segments));
    stage->shapes = dp__calloc((size_t)stage->nsegments, sizeof(*stage->shapes));
    if (stage->segments == NULL || stage->shapes == NULL)
        return dp_fail(DP_ERR_NOMEM, "stage: no memory for %d segments", stage->nsegments);
    list_segments(stage);
    return list_params(stage);
}

dp_status_t dp_stage_create(const dp_part_t *parts, int32_t nparts, size_t boundary_bytes, dp_dtype_t dtype,
                            dp_stage_t **stage_out)
{
    dp_stage_t *stage;
    dp_status_t status;

    if (parts == NULL || nparts < 1 || nparts > MOST_SEGMENTS || stage_out == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_stage_create: %d parts; a stage has 1 to %d, and a place for the result", nparts,
                       MOST_SEGMENTS);
    if (dtype != DP_F32 && dtype != DP_F64 && dtype != DP_BF16)
        return dp_fail(DP_ERR_INVALID, "dp_stage_create: dtype %d is not one of parameters", (int)dtype);
    stage = dp__calloc(1, sizeof(*stage));
    if (stage == NULL)
        return dp_fail(DP_ERR_NOMEM, "stage: no memory for its record");
    stage->nparts = nparts;
    stage->boundary_bytes = boundary_bytes;
    stage->dtype = dtype;
    status = build(stage, parts);
    if (status < 0) {
        dp_stage_free(stage);
        return status;
    }
    *stage_out = stage;
    return DP_OK;
}

void dp_stage_describe(const dp_stage_t *stage, dp_stage_info_t *info_out)
{
    *info_out = stage->info;
}

static size_t boundary_stride(const dp_stage_t *stage)
{
    return (stage->boundary_bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
}

/* Where part `i` leaves what the next part in the pass reads. */
static void *boundary(const dp_stage_t *stage, const dp_segment_call_t *call, int32_t i)
{
    return (char *)call->work + (i % 2 != 0 ? boundary_stride(stage) : 0);
}

dp_status_t dp__stage_run(const dp_stage_t *stage, int32_t index, dp_op_kind_t pass, const dp_segment_call_t *call,
                          dp_stream_t *s)
{
    const dp_segment_t *segment = stage->segments[index].segment;
    int32_t i = stage->segments[index].part;
    const dp__stage_part_t *part = &stage->parts[i];
    dp_segment_call_t own = *call;

    own.params = (const char *)call->params + part->params_offset;
    own.grads = call->grads != NULL ? (char *)call->grads + dp__grads_offset(stage->dtype, part->params_offset) : NULL;
    own.saved = (char *)call->saved + part->saved_offset;
    own.work = call->work != NULL ? (char *)call->work + 2 * boundary_stride(stage) : NULL;
    if (i > 0)
        own.input = NULL;
    if (i < stage->nparts - 1)
        own.target = NULL, own.output = NULL, own.loss = NULL;
    if (pass == DP_OP_F) {
        own.x = i > 0 ? boundary(stage, call, i - 1) : call->x;
        own.y = i < stage->nparts - 1 ? boundary(stage, call, i) : call->y;
        return segment->forward(segment->self, &own, s);
    }
    if (pass == DP_OP_I) {
        own.dy = i < stage->nparts - 1 ? boundary(stage, call, i + 1) : call->dy;
        own.dx = i > 0 ? boundary(stage, call, i) : call->dx;
        return segment->backward_input(segment->self, &own, s);
    }
    /* it may run long after its backward: all it has are parameters and what was saved */
    own.work = NULL;
    own.x = own.dy = NULL;
    own.y = own.dx = NULL;
    return segment->backward_weight(segment->self, &own, s);
}

dp_status_t dp__stage_reduce(const dp_stage_t *stage, void *grads, dp_stream_t *s)
{
    size_t size = dp_dtype_bytes(stage->dtype), accumulator = dp_dtype_bytes(dp_dtype_accumulator(stage->dtype));
    dp_status_t status = DP_OK;

    for (int32_t i = 0; i < stage->nparts && status >= 0; i++) {
        const dp__stage_part_t *part = &stage->parts[i];

        if (part->part.reduce != NULL)
            status = part->part.reduce(part->part.reduce_self, (char *)grads + part->params_offset / size * accumulator, s);
    }
    return status;
}

uint64_t dp__stage_revision(const dp_stage_t *stage)
{
    uint64_t sum = 0;

    for (int32_t i = 0; i < stage->nparts; i++)
        sum += stage->parts[i].part.revision != NULL ? *stage->parts[i].part.revision : 0;
    return sum;
}
