/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run.h: a run that lasts. Checkpoints (state.h, checkpoint.h), recovery (recover.h), another
 * transport between two steps, and reports on a pipeline: memory, program, timeline. */
#ifndef DUALPIPE_RUN_H
#define DUALPIPE_RUN_H

#include <dualpipe/checkpoint.h>
#include <dualpipe/pipeline.h>
#include <dualpipe/recover.h>
#include <dualpipe/state.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The next step has this number (dp_segment_call_t.step, in messages and traces) instead of one
 *  more than the one before: for a run that goes on after a checkpoint, say. The first has 0; each
 *  step, forward_only or a round, is counted. Between two steps, on all ranks the same.
 *  DP_ERR_INVALID: the pipeline is NULL or has failed. [main] */
DP_API dp_status_t dp_pipeline_set_step(dp_pipeline_t *pipeline, uint32_t step);

/** Which comm plugin carries what ranks a and b of the job tell each other; the same name for all
 *  pairs unless there are two (see dp_pipeline_options_t.comm). NULL: no such rank. Valid until the
 *  next swap, or close. [any] */
DP_API const char *dp_pipeline_comm(const dp_pipeline_t *pipeline, int32_t a, int32_t b);

/** Replaces the comm backend between two steps, by all that dp_pipeline_options_t.comm may say:
 *  calls build again for every chunk (stages hold instances that live on the expert group), keeps
 *  parameters and gradients, then closes the old backend; stages made earlier may be freed
 *  afterwards. A backend that one rank cannot load is refused on all and the old one stays; a
 *  failure after that, or a stage with other segments or sizes than before (DP_ERR_MISMATCH), ends
 *  the job. [collective] [blocks] */
DP_API dp_status_t dp_pipeline_swap_comm(dp_pipeline_t *pipeline, const char *comm);

/** Bytes of device and transport memory, as allocated during open, by purpose. A step uses nothing
 * else. */
typedef struct dp_memory_report {
    uint32_t struct_size; /* set by the caller */
    size_t params, grads, saved, work, boundary, transport, records, total;
    size_t backward_buffer; /* of backwards, beside saved (stage.h) */
} dp_memory_report_t;
#define DP_MEMORY_REPORT_MIN DP_SIZE_TO(dp_memory_report_t, backward_buffer)
/** DP_ERR_INVALID: report_out->struct_size is not set. [any] */
DP_API dp_status_t dp_pipeline_memory(const dp_pipeline_t *pipeline, dp_memory_report_t *report_out);

/** What is being run. Owned by the pipeline; another one after a swap between a one-sided backend
 *  and one with matched groups. [any] */
DP_API const dp_program_t *dp_pipeline_program(const dp_pipeline_t *pipeline);

/** Collects the spans of the last traced steps of all ranks into a timeline on world rank 0 (NULL
 *  elsewhere); the caller frees it. [collective] [blocks] */
DP_API dp_status_t dp_pipeline_timeline(dp_pipeline_t *pipeline, dp_timeline_t **timeline_out);

#ifdef __cplusplus
}
#endif
#endif
