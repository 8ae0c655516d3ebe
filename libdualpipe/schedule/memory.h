/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * memory.h: what the memory of a rank is made of. */
#ifndef DP_SCHEDULE_MEMORY_H
#define DP_SCHEDULE_MEMORY_H

#include <dualpipe/schedule.h>

/* What a chunk is of a rank with mean stages. */
double dp__memory_part(const dp_schedule_t *schedule, const dp_memory_bytes_t *bytes, int32_t rank, int32_t chunk);
/* Bytes of weights, and of slots for messages from other ranks. */
double dp__memory_fixed(const dp_schedule_t *schedule, const dp_memory_bytes_t *bytes, int32_t rank);

#endif
