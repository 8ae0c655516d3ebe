/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * recover.h: a run that outlives its ranks.
 *
 * `dualpipe run --respawn N` starts a new process in the place of a rank that dies. The living
 * ranks keep their processes and their memory. They form the job anew with it, give it the state of
 * the dead rank from a living copy, and all repeat the step. Losses and parameters are those of an
 * undisturbed run, bit for bit, and no checkpoint is read.
 *
 *     dp_pipeline_open(&options, &pipeline);         the same in every process, new ones included
 *     dp_pipeline_register_state(...);               all that a step changes besides the parameters
 *     status = dp_pipeline_recover(pipeline, DP_OK, &step);
 *     while (status >= 0 && step < steps) {
 *         status = dp_pipeline_step(pipeline, &of_step);
 *         ...                                        norms and other sums over ranks
 *         if (status >= 0)
 *             status = dp_pipeline_commit(pipeline);
 *         if (status >= 0) {
 *             update(parameters, gradients);         by this rank alone: nothing that waits for
 *                                                    another rank
 *             step++;
 *         } else {
 *             status = dp_pipeline_recover(pipeline, status, &step);
 *         }
 *     }
 *
 * Which step counts. Up to the commit nothing of a step has been applied, and a rank that fails
 * goes back to its begin. A commit succeeds on all ranks or on none, whenever a rank dies. Where
 * some had heard of it and others had not, it counts, and the others hear so. From there on each
 * rank has all it needs for its update, and makes it, whoever dies meanwhile; nobody goes back
 * behind it, but to a buddy's copy. So no rank has ever applied what another one has rolled back.
 * Behind the last step dp_group_barrier, in the place of a step, keeps all together until everybody
 * has made it.
 *
 * Which state has a copy. DualPipe keeps every stage twice: rank p of a pipeline of P, and its
 * mirror P-1-p. With several data groups each has one more, or two. Line, loop and V placements
 * without data groups have none, and with dp_pipeline_options_t.zero no two ranks have the same
 * shards. There dp_pipeline_options_t.buddy keeps a copy of each rank's state in memory of the
 * launcher, which outlives any rank, or all of them. A rank that dies in its update, or before this
 * copy is complete, takes all back by one step more: what had counted is then taken again, with the
 * same bits. When all holders of a stage have died, and where a rank has no copy,
 * dp_pipeline_recover returns DP_ERR_LOST, and a checkpoint is needed.
 *
 * Recovery works for jobs of processes with one pipeline, started by `dualpipe run --respawn`, rank
 * 0 included, on a device whose memory the host reaches. Elsewhere these calls cost nothing, and a
 * death is the end. docs/recovery.md has the protocol. */
#ifndef DUALPIPE_RECOVER_H
#define DUALPIPE_RECOVER_H

#include <dualpipe/pipeline.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Makes this rank ready for the step that all ranks run next, *step.
 *
 * status DP_OK: once after open, and after everything has been registered. *step: the step that our
 * state is for, the same in all new jobs: 0 where it is freshly made, -1 where a checkpoint is to
 * be read. In a process that has come in a dead one's place the call fills parameters and
 * registered state, and *step becomes the step of the others.
 *
 * status < 0: what any call of the step has returned. When it came of a death that can be made
 * good, or of memory that has changed (DP_ERR_CORRUPT, at most twice in a row), returns DP_OK once
 * that is done: all ranks run step *step from its begin. Stages were built anew (`build`, after
 * dp_pipeline_options_t.retire). Parameters and gradients lie where they were. A save in progress
 * is lost, and dp_pipeline_save_open is called anew. Otherwise returns `status`, or the job's
 * cause, and its message. *step -1: this rank's state is unusable: read a checkpoint.
 *
 * DP_ERR_LOST: the ranks that died were the last that held some stage, or a rank came with -1 and
 * nobody holds anything. The pipeline works (again), but its parameters mean nothing on any rank.
 * All of them read a checkpoint with dp_pipeline_load, then call this again: with DP_OK and its
 * step, or with what went wrong and -1. A rank that reads before the first call cannot be replaced
 * meanwhile, since the others are elsewhere. DP_ERR_PEER: nobody came in the dead rank's place.
 * DP_ERR_MISMATCH: ranks have registered different states. [collective] [blocks]
 */
DP_API DP_CHECKED dp_status_t dp_pipeline_recover(dp_pipeline_t *pipeline, dp_status_t status, int64_t *step);

/** The step counts: all ranks have come so far. Called behind the last call of a step that talks to
 *  other ranks, before the first change of parameters or registered state. Between
 *  dp_pipeline_recover and the next commit is one step. It may have several rounds (dp_step_t), and
 *  is repeated from round 0. Where no rank is ever replaced it waits for nobody, unless
 *  dp_pipeline_options_t.check_bits wants copies compared: DP_ERR_CORRUPT. [collective] [blocks] */
DP_API DP_CHECKED dp_status_t dp_pipeline_commit(dp_pipeline_t *pipeline);

#ifdef __cplusplus
}
#endif
#endif
