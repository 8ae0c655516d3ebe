/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * progress.h: how far a rank has come, for those who ask. */
#ifndef DP_GROUP_PROGRESS_H
#define DP_GROUP_PROGRESS_H

#include <dualpipe/group.h>

typedef struct dp__progress {
    uint64_t steps; /* taken */
    /* of the latest: all of it, and what this rank computed; 0: not known */
    uint64_t step_ns, busy_ns;
    uint64_t resident_bytes; /* of the process, where it was asked for */
} dp__progress_t;

/* After each step. [main] */
void dp__group_progress(dp_group_t *group, uint64_t steps, uint64_t step_ns, uint64_t busy_ns);
/* What was said last. [any] */
dp__progress_t dp__group_progress_of(const dp_group_t *group);

#endif
