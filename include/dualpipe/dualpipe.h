/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * dualpipe.h: the ten functions of a trainer, in the order of calls.
 *
 *     dp_group_join         joins the job; the launcher says which rank this is        group.h
 *     dp_pipeline_open      calls `build` for each stage of this rank, opens the rest  pipeline.h
 *       dp_stage_create       in `build`: makes a stage of the trainer's functions     stage.h
 *     dp_pipeline_chunks    how many stages this rank holds                            pipeline.h
 *     dp_pipeline_chunk     where parameters and gradients of one of them are          pipeline.h
 *     dp_pipeline_step      runs all micro-batches forward and backward                pipeline.h
 *     dp_pipeline_close     ends the pipeline                                          pipeline.h
 *     dp_stage_free         frees what `build` has made                                stage.h
 *     dp_group_leave        leaves the job, after the pipeline is closed               group.h
 *     dp_last_error         what went wrong, in one sentence                           status.h
 *
 * A whole trainer. Each stage is y = w x, and together they learn to double a number. C++20 takes
 * the same text. `dualpipe run -n 2 -- ./double` runs it on two ranks:
 *
 *     #include <dualpipe/dualpipe.h>
 *     #include <stdio.h>
 *
 *     enum { M = 8 };             // micro-batches in a step
 *     static dp_stage_t *made[2]; // DualPipe keeps two stages on each rank
 *     static int count;
 *
 *     static dp_status_t forward(void *self, const dp_segment_call_t *call)
 *     {
 *         const double w = *(const double *)call->params;
 *         const double *x = (const double *)(call->x ? call->x : call->input);
 *         double *saved = (double *)call->saved; // kept for the backward of this micro-batch
 *
 *         (void)self;
 *         saved[0] = *x;
 *         if (call->y) {
 *             *(double *)call->y = w * *x;
 *         } else { // the last stage
 *             saved[1] = w * *x - *(const double *)call->target;
 *             *call->loss += 0.5 * saved[1] * saved[1];
 *         }
 *         return DP_OK;
 *     }
 *
 *     static dp_status_t backward_input(void *self, const dp_segment_call_t *call)
 *     {
 *         double *saved = (double *)call->saved, *dx = (double *)call->dx;
 *
 *         (void)self;
 *         saved[1] = call->dy ? *(const double *)call->dy : call->loss_scale * saved[1];
 *         if (dx) // NULL in the first stage
 *             *dx = *(const double *)call->params * saved[1];
 *         return DP_OK;
 *     }
 *
 *     static dp_status_t backward_weight(void *self, const dp_segment_call_t *call)
 *     {
 *         const double *saved = (const double *)call->saved;
 *
 *         (void)self;
 *         *(double *)call->grads += saved[0] * saved[1];
 *         return DP_OK;
 *     }
 *
 *     static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage,
 *                              int32_t stages, dp_stage_t **stage_out)
 *     {
 *         const dp_segment_t segment = {.struct_size = sizeof(segment),
 *                                       .name = "times w",
 *                                       .host_forward = forward,
 *                                       .host_backward_input = backward_input,
 *                                       .host_backward_weight = backward_weight};
 *         const dp_param_t w = {.name = "w", .count = 1};
 *         const dp_block_sizes_t sizes = {.struct_size = sizeof(sizes),
 *                                         .saved_bytes = 2 * sizeof(double),
 *                                         .param_count = 1,
 *                                         .nparams = 1};
 *         const dp_part_t part = {.struct_size = sizeof(part),
 *                                 .nsegments = 1,
 *                                 .segments = &segment,
 *                                 .sizes = &sizes,
 *                                 .param_list = &w};
 *         const dp_status_t status = dp_stage_create(&part, 1, sizeof(double), DP_F64, stage_out);
 *
 *         (void)user, (void)context, (void)stage, (void)stages;
 *         if (status >= 0)
 *             made[count++] = *stage_out;
 *         return status;
 *     }
 *
 *     // First values, then gradient descent.
 *     static dp_status_t update(dp_pipeline_t *pipeline, int n)
 *     {
 *         dp_chunk_view_t chunk = {.struct_size = sizeof(chunk)};
 *         dp_status_t status = DP_OK;
 *
 *         for (int c = 0; c < dp_pipeline_chunks(pipeline) && status >= 0; c++) {
 *             status = dp_pipeline_chunk(pipeline, c, &chunk);
 *             if (status >= 0 && n == 0)
 *                 *(double *)chunk.params = 1;
 *             else if (status >= 0)
 *                 *(double *)chunk.params -= 0.1 * *(const double *)chunk.grads;
 *         }
 *         return status;
 *     }
 *
 *     int main(void)
 *     {
 *         double x[M], y[M];
 *         const void *inputs[M], *targets[M];
 *         dp_step_t step = {.struct_size = sizeof(step), .inputs = inputs, .targets = targets};
 *         dp_group_t *group = NULL;
 *         dp_pipeline_t *pipeline = NULL;
 *         dp_status_t status = dp_group_join(NULL, &group);
 *
 *         if (status >= 0) {
 *             const dp_pipeline_options_t options = {.struct_size = sizeof(options),
 *                                                    .group = group,
 *                                                    .method = "dualpipe",
 *                                                    .microbatches = M,
 *                                                    .boundary_bytes = sizeof(double),
 *                                                    .dtype = DP_F64,
 *                                                    .build = build};
 *
 *             status = dp_pipeline_open(&options, &pipeline);
 *         }
 *         for (int m = 0; m < M; m++) {
 *             x[m] = 0.5 * m;
 *             y[m] = 2 * x[m];
 *             inputs[m] = &x[m];
 *             targets[m] = &y[m];
 *         }
 *         for (int n = 0; n < 50 && status >= 0; n++) {
 *             status = update(pipeline, n);
 *             if (status >= 0)
 *                 status = dp_pipeline_step(pipeline, &step);
 *             if (status >= 0 && dp_group_rank(group) == 0)
 *                 printf("step %d, loss %.6f\n", n, step.loss);
 *         }
 *         if (status < 0)
 *             fprintf(stderr, "%s\n", dp_last_error());
 *         dp_pipeline_close(pipeline);
 *         while (count > 0)
 *             dp_stage_free(made[--count]);
 *         dp_group_leave(group);
 *         return status < 0;
 *     }
 *
 * Errors. A call returns a dp_status_t; negative is failure, and dp_last_error() says why. The
 * compiler warns where it is dropped. Structs given to the library begin with struct_size =
 * sizeof(that struct). A member that is zero has its default.
 *
 * C++. dualpipe.hpp has `dualpipe::sized<T>()`, a zeroed struct with its size, and
 * `dualpipe::guarded<f>`, which turns an exception into an error. No exception may leave a function
 * given to the library.
 *
 * Static programs. libdualpipe.a in a dynamic program works; a program linked with -static cannot
 * load plugins, and without a transport and a device no pipeline opens.
 *
 * Beyond the ten:
 *   moe_layers.h  MoE transformer layers out of plugins, experts on several ranks
 *   run.h         a run that lasts: checkpoints, recovery, another transport, memory, timelines
 *   plan.h        schedules made, proven, simulated, planned and searched; traces; experts placed
 *   advanced.h    plugins opened by the trainer itself, numbers of any dtype
 * Plugin authors include the interface that they implement: device.h, comm.h, attention.h, moe.h,
 * profiler.h. */
#ifndef DUALPIPE_DUALPIPE_H
#define DUALPIPE_DUALPIPE_H

#include <dualpipe/group.h>
#include <dualpipe/pipeline.h>
#include <dualpipe/stage.h>

#endif
