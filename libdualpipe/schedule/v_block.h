/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * v_block.h: schedules on a V that repeat one building block.
 *
 * A block says at which time a rank runs F of chunk 0, F of chunk 1, I of chunk 1 and I of chunk 0
 * of micro-batch 0; micro-batch m follows 6 m later, so that two W's find room in every period. How
 * long activations live in the block bounds the memory. Squeezing keeps a rank's order of F and I,
 * runs each as soon as its input is there, and puts a W into every gap, or before an F for which
 * the block's memory has no room yet. Source: Qi et al., Pipeline Parallelism with Controllable
 * Memory, arXiv 2405.15362. */
#ifndef DP_SCHEDULE_V_BLOCK_H
#define DP_SCHEDULE_V_BLOCK_H

#include <dualpipe/schedule.h>

/* Parts of a block, in the order in which a micro-batch goes through them. */
enum { DP__V_F0, DP__V_F1, DP__V_I1, DP__V_I0, DP__V_PARTS, DP__V_PERIOD = 6 };

/* Times of a rank's parts. */
typedef void (*dp__v_block_fn)(int32_t ranks, int32_t rank, int32_t start_out[DP__V_PARTS]);

dp_status_t dp__v_block_schedule(const char *method, const dp_schedule_request_t *request, dp__v_block_fn block,
                                 dp_schedule_t **schedule_out);

#endif
