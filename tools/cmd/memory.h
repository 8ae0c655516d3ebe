/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * memory.h: what ranks hold, in the bytes of a command line, and whether it fits. */
#ifndef DP_TOOLS_MEMORY_H
#define DP_TOOLS_MEMORY_H

#include <dualpipe/schedule.h>

#include "args.h"

/* [ranks] of a schedule that was verified, with so many slots a channel; the caller frees it.
 * DP_ERR_INVALID: --partition is of another number of stages. */
dp_status_t memory_find(const args_t *args, const dp_schedule_t *schedule, int32_t slots, dp_memory_peaks_t **held_out);
double memory_most(const dp_memory_peaks_t *held, int32_t ranks);
/* DP_ERR_REJECTED: a rank does not fit into its --memory, or holds more than --memory-cap says. Of
 * several the message names the one that is the furthest beyond its memory. */
dp_status_t memory_check(const args_t *args, const dp_schedule_t *schedule, const dp_memory_peaks_t *held);

#endif
