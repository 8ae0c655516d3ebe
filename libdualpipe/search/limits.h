/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * limits.h: how much memory each rank has, and how much a schedule takes of it. */
#ifndef DP_SEARCH_LIMITS_H
#define DP_SEARCH_LIMITS_H

#include <dualpipe/schedule.h>

/* In bytes, or in micro-batches' activations of a rank: then one has a byte, and nothing else. */
typedef struct dp__limits {
    double *caps;            /* [ranks] infinite: none */
    dp_memory_bytes_t bytes; /* with the fewest slots that a channel has, without parts */
} dp__limits_t;

/* What a micro-batch on each chunk takes of what weights and slots leave of its rank's memory,
 * infinite where they leave nothing, 0 without limit. parts: [stages] beside the mean stage; NULL:
 * alike. */
void dp__limits_shares(const dp__limits_t *limits, const dp_schedule_t *schedule, const double *parts,
                       double *share_out);
/* memory_out: [ranks] the most that each holds at once. */
dp_status_t dp__limits_measure(const dp__limits_t *limits, const dp_schedule_t *schedule, const double *parts,
                               int32_t slots, dp_memory_peaks_t *memory_out);
/* By how much of its limit each rank is beyond it, all ranks together; 0: it fits. */
double dp__limits_excess(const dp__limits_t *limits, const dp_memory_peaks_t *memory, int32_t ranks);

#endif
