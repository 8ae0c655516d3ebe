/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run.h: a run that lasts. Checkpoints (state.h, checkpoint.h), recovery (recover.h), another
 * transport between two steps, and reports on a pipeline: memory, program, timeline.
 *
 * Since 0.2: the header itself, dp_pipeline_set_step, dp_memory_report_t.backward_buffer,
 * .buddy. */
#ifndef DUALPIPE_RUN_H
#define DUALPIPE_RUN_H

#include <dualpipe/checkpoint.h>
#include <dualpipe/pipeline.h>
#include <dualpipe/recover.h>
#include <dualpipe/state.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- while it runs: between two steps ---- */

/** Gives the next step this number, instead of one more than the one before: for a run that goes on
 *  after a checkpoint. The number stands in dp_segment_call_t.step, messages and traces. The first
 *  step has 0; each step counts, be it forward_only or a round. The same on all ranks.
 *  DP_ERR_INVALID: the pipeline is NULL or has failed. [main] */
DP_API DP_CHECKED dp_status_t dp_pipeline_set_step(dp_pipeline_t *pipeline, uint32_t step);

/** Replaces the comm backend by all that dp_pipeline_options_t.comm may say. It calls build again
 *  for every chunk, as stages hold instances that live on the expert group. Parameters and
 *  gradients stay. Then it closes the old backend; stages made earlier may be freed. A backend that
 *  one rank cannot load is refused on all, and the old one stays. A failure after that ends the
 *  job, and so does a stage with other segments or sizes than before (DP_ERR_MISMATCH).
 *  [collective] [blocks] */
DP_API DP_CHECKED dp_status_t dp_pipeline_swap_comm(dp_pipeline_t *pipeline, const char *comm);

/* ---- reports ---- */

/** The comm plugin between ranks a and b of the job. All pairs have the same one unless there are
 *  two (see dp_pipeline_options_t.comm). NULL: no such rank. Valid until the next swap, or close.
 *  [any] */
DP_API const char *dp_pipeline_comm(const dp_pipeline_t *pipeline, int32_t a, int32_t b);

/** Bytes of device and transport memory, as allocated during open, by purpose. A step uses nothing
 * else. */
typedef struct dp_memory_report {
    uint32_t struct_size; /* set by the caller */
    size_t params, grads, saved, work, boundary, transport, records, total;
    size_t backward_buffer; /* of backwards, beside saved (stage.h) */
    /* two copies of what a rank cannot lose (dp_pipeline_options_t.buddy), from the first
     * dp_pipeline_recover on. The launcher holds this memory as well */
    size_t buddy;
    size_t cache; /* what stages keep of requests (dp_pipeline_options_t.cache_slots) */
} dp_memory_report_t;
enum { DP_MEMORY_REPORT_MIN = DP_SIZE_TO(dp_memory_report_t, backward_buffer) };
/** Reports memory. DP_ERR_INVALID: report_out->struct_size is not set. [any] */
DP_API DP_CHECKED dp_status_t dp_pipeline_memory(const dp_pipeline_t *pipeline, dp_memory_report_t *report_out);

/** The program that steps run (program.h). Owned by the pipeline; another one after a swap between
 *  a one-sided backend and one with matched transfers. [any] */
DP_API const dp_program_t *dp_pipeline_program(const dp_pipeline_t *pipeline);

/** Collects the spans of the last traced steps of all ranks into a timeline (timeline.h) on world
 *  rank 0, NULL elsewhere. The caller frees it. [collective] [blocks] */
DP_API DP_CHECKED dp_status_t dp_pipeline_timeline(dp_pipeline_t *pipeline, dp_timeline_t **timeline_out);

#ifdef __cplusplus
}
#endif
#endif
