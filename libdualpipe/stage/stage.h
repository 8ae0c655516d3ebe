/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * stage.h: what the engine sees of a stage: a flat list of segments, each with its place in the
 * stage's memory. */
#ifndef DP_STAGE_STAGE_H
#define DP_STAGE_STAGE_H

#include <dualpipe/device.h>
#include <dualpipe/stage.h>

#include "program/pair.h"

enum { DP__SHARED_BYTES = 64 }; /* of dp_param_t.shared, with the zero at its end */

/* A segment and the part it belongs to. */
typedef struct dp__stage_segment {
    const dp_segment_t *segment;
    int32_t part;
    int32_t first_of_part, last_of_part;
} dp__stage_segment_t;

/* A part, with its segments and sizes copied, and where its memory lies in the stage's. */
typedef struct dp__stage_part {
    dp_part_t part;
    dp_segment_t *segments;
    dp_block_sizes_t sizes;
    size_t params_offset; /* bytes */
    size_t saved_offset, backward_buffer_offset, cache_offset;
    uint32_t first_param; /* in the stage's list */
} dp__stage_part_t;

/* The memory and parameters that a stage asks for. */
typedef struct dp__stage_info {
    int32_t nsegments;
    size_t saved_bytes;   /* per in-flight micro-batch */
    size_t work_bytes;    /* per running pass */
    size_t scratch_bytes; /* per lane */
    size_t param_count;   /* elements, gaps between parts included */
    uint32_t nparams;
    const dp_param_t *param_list; /* names with prefix, offsets within the stage's parameters */
    /* per micro-batch between I and W; a running F has that of one part */
    size_t backward_buffer_bytes;
    size_t cache_bytes; /* from step to step */
} dp__stage_info_t;

struct dp_stage {
    int32_t nparts, nsegments;
    size_t boundary_bytes;
    size_t boundary_room; /* of one of the two boundary tensors in work memory */
    /* of the part that has most of it: behind a forward's work memory, ... */
    size_t backward_buffer_room;
    size_t backward_buffer_at; /* ... so far from its begin */
    dp_dtype_t dtype;
    int host;                      /* a segment has host functions */
    dp__stage_part_t *parts;       /* [nparts] */
    dp__stage_segment_t *segments; /* [nsegments] in forward order */
    dp__segment_shape_t *shapes;   /* [nsegments] for dp__pair_order */
    dp__stage_info_t info;
    dp_segment_t *copies; /* [nsegments], the parts' own */
    dp_param_t *param_list;
    bool rising; /* parameters lie in the order of the list */
    char *names; /* of segments and parameters */
};

/* Where in the accumulator the gradients lie of parameters that begin at byte `offset`. */
static inline size_t dp__grads_offset(dp_dtype_t dtype, size_t offset)
{
    return offset / dp_dtype_bytes(dtype) * dp_dtype_bytes(dp_dtype_accumulator(dtype));
}

/* Name of the segment that this thread is in, NULL outside of one. */
extern _Thread_local const char *dp__segment_running;

/* What segment `index` is called with in pass F, R, I or W: `call` describes the stage (its params,
 * grads, saved, backward_buffer, work, its x, y, dy, dx), *own_out its part, with nothing that the
 * pass may not touch. */
void dp__stage_call(const dp_stage_t *stage, int32_t index, dp_op_kind_t pass, const dp_segment_call_t *call,
                    dp_segment_call_t *own_out);
/* Before the call of a part's first segment in F and its last in I: what goes past the part. */
dp_status_t dp__stage_pass_by(const dp_stage_t *stage, int32_t index, dp_op_kind_t pass, const dp_segment_call_t *call,
                              const dp_segment_call_t *own, const dp_device_vt_t *vt, dp_stream_t *s);
/* Puts the pass on `s`; host functions by vt's launch. */
dp_status_t dp__stage_put(const dp_stage_t *stage, int32_t index, dp_op_kind_t pass, const dp_segment_call_t *own,
                          const dp_device_vt_t *vt, dp_stream_t *s);

/* Puts on `s` what the parts still have to do to the stage's summed gradients. */
dp_status_t dp__stage_reduce(const dp_stage_t *stage, void *grads, dp_stream_t *s);

/* Grows when any part's does. */
uint64_t dp__stage_revision(const dp_stage_t *stage);

#endif
