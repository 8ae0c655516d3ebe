/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * estimate.h: what a model takes on GPUs: bytes of a rank, times of segments, a step. */
#ifndef DP_MODEL_ESTIMATE_H
#define DP_MODEL_ESTIMATE_H

#include <dualpipe/model.h>

/* What does not change from layout to layout: a request, copied, with its defaults. */
typedef struct dp__job {
    dp_model_t model;
    dp_gpu_t gpu;
    int32_t gpus, micro_batch, whole_optimizer;
    int64_t sequence, batch;
    dp_segment_costs_t measured; /* zeros: estimated */
    double hop, bandwidth;
} dp__job_t;

/* Bytes of a layout, or why its schedule cannot be. */
dp_status_t dp__estimate_bytes(const dp__job_t *job, dp_layout_t *layout);
/* Times of one whose bytes are known: its program simulated with segments on lanes. Where two slots
 * a channel are too few, it adds the bytes of more, and takes no times if they do not fit. */
dp_status_t dp__estimate_time(const dp__job_t *job, dp_layout_t *layout);
/* A row with the bytes of one rank of its pipeline. */
dp_status_t dp__estimate_rank(const dp__job_t *job, const dp_layout_t *row, int32_t rank, dp_layout_t *layout_out);
/* A step of a row with so many micro-batches; both are the caller's, after a failure too. */
dp_status_t dp__estimate_timeline(const dp__job_t *job, const dp_layout_t *layout, int32_t microbatches,
                                  dp_schedule_t **schedule_out, dp_simulation_t *simulation_out);
/* Seconds that no schedule on these ranks is shorter than: what each computes. */
double dp__estimate_bound(const dp__job_t *job, const dp_layout_t *layout);
/* Of a layer as it is estimated, whatever was measured. */
void dp__estimate_segments(const dp__job_t *job, const dp_layout_t *layout, dp_segment_costs_t *segments_out);

#endif
