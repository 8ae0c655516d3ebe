/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * stage.h: what the engine sees of a stage: a flat list of segments, each with its place in the stage's memory. */
#ifndef DP_STAGE_STAGE_H
#define DP_STAGE_STAGE_H

#include <dualpipe/stage.h>

/* A segment and the part it belongs to. */
typedef struct dp__stage_segment {
    const dp_segment_t *segment;
    int32_t part;
    int32_t first_of_part, last_of_part;
} dp__stage_segment_t;

struct dp_stage {
    int32_t nparts, nsegments;
    size_t boundary_bytes;
    dp_dtype_t dtype;
    struct dp__stage_part *parts;  /* [nparts] */
    dp__stage_segment_t *segments; /* [nsegments] in forward order */
    dp_segment_shape_t *shapes;    /* [nsegments] for dp_pair_order */
    dp_stage_info_t info;
    dp_param_t *params;
    char *names;
};

/* Where in the accumulator the gradients lie of parameters that begin at byte `offset`. */
static inline size_t dp__grads_offset(dp_dtype_t dtype, size_t offset)
{
    return offset / dp_dtype_bytes(dtype) * dp_dtype_bytes(dp_dtype_accumulator(dtype));
}

/* Puts pass F, I or W of segment `index` on `s`. `call` describes the stage: its params, grads, saved, work, its x, y, dy, dx;
 * the segment is called with those of its part. */
dp_status_t dp__stage_run(const dp_stage_t *stage, int32_t index, dp_op_kind_t pass, const dp_segment_call_t *call,
                          dp_stream_t *s);

/* Puts the last word of the parts on the stage's summed gradients on `s`. */
dp_status_t dp__stage_reduce(const dp_stage_t *stage, void *grads, dp_stream_t *s);

/* Grows when any part's does. */
uint64_t dp__stage_revision(const dp_stage_t *stage);

#endif
