/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * memory.h: what a rank holds at most while it goes through its list. */
#ifndef DP_TOOLS_MEMORY_H
#define DP_TOOLS_MEMORY_H

#include <dualpipe/schedule.h>

#include "args.h"

/* Bytes of: a micro-batch's activations on one device; what a deferred weight gradient keeps
 * besides; the weights, gradients and optimizer state of a device's part of the model, of which a
 * rank of two directions has two. */
typedef struct memory_bytes {
    double activation, deferred, weights;
    const double *parts; /* [stages] of each beside the mean stage; NULL: stages are alike */
} memory_bytes_t;

/* Peaks, each at its own time. A chunk that is 1/C of a device counts 1/C. */
typedef struct memory_peaks {
    double activations; /* micro-batches from F until B or W */
    double deferred;    /* micro-batches from I until W */
    double bytes;       /* of all together, at the worst moment */
} memory_peaks_t;

/* As the command line gives them, 0 where it does not. */
memory_bytes_t memory_asked(const args_t *args);
/* DP_ERR_REJECTED: a rank does not fit into its --memory, or holds more than --memory-cap says.
 * DP_ERR_INVALID: --partition is of another number of stages. */
dp_status_t memory_check(const args_t *args, const dp_schedule_t *schedule);
/* Of a schedule that was verified. */
memory_peaks_t memory_of(const dp_schedule_t *schedule, int32_t rank, const memory_bytes_t *bytes);

#endif
