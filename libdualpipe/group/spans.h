/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * spans.h: what the engine asks of a group: memory for the spans of the running step, which
 * outlives the rank, and spans of all ranks in one place. */
#ifndef DP_GROUP_SPANS_H
#define DP_GROUP_SPANS_H

#include "timeline/clock.h"

#include <dualpipe/group.h>
#include <dualpipe/timeline.h>

/* The flight recorder: `capacity` span records of this rank in memory that the other ranks of this
 * host have mapped as well. They read there what a dead rank was doing: a record with a start and
 * no end is an operation in progress. May be called again: a recorder lives until it is closed or
 * the group is left, and the latest start of all recorders counts. Ranks of other hosts hear
 * through rank 0, four times a second, what the rank is doing. [collective] [blocks] */
dp_status_t dp__group_recorder(dp_group_t *group, uint32_t capacity, dp_span_t **records_out);
/* Gives back what dp__group_recorder returned. NULL is allowed. [main] */
void dp__group_recorder_close(dp_group_t *group, const dp_span_t *records);
/* The text for spans of this rank whose `name` is this number, 1 to 255; cut at 31 bytes. Without
 * one it is "segment 3(F)". After dp__group_recorder. [main] */
void dp__group_recorder_name(dp_group_t *group, uint16_t name, const char *text);
/* What rank `rank` is or was doing: "step 3: mlp(B) of stage 2, chunk 1, micro-batch 5". Of a rank
 * of another host, on rank 0 (and of rank 0 everywhere), what it told last. "" when nothing is
 * known. [any] */
void dp__group_describe(const dp_group_t *group, int32_t rank, char *text, size_t bytes);

/* Rank `root` gets the bytes of all ranks, of any size: receive is called there in rank order.
 * [collective] [blocks] */
typedef dp_status_t (*dp__receive_fn)(void *user, int32_t rank, const void *data, size_t bytes);
dp_status_t dp__group_collect(dp_group_t *group, int32_t root, const void *mine, size_t bytes, dp__receive_fn receive,
                              void *user);

/* "step 3: mlp(B) of stage 2, chunk 1, micro-batch 5". name: of its segment, "" for none. bytes: at
 * least 1. */
void dp__span_describe(const dp_span_t *span, const char *name, char *text, size_t bytes);

/* ---- what others ask ---- */

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

#define DP__CLOCK_SAMPLES 1024 /* that a rank remembers: some minutes */

/* Round trips to rank 0 since `since_ns` on this rank's clock, some of them made now, in no order;
 * none where the clock is the same. samples_out: [DP__CLOCK_SAMPLES]. [main] [blocks] */
dp_status_t dp__group_clock(dp_group_t *group, int64_t since_ns, dp__clock_sample_t *samples_out, size_t *count_out);

#endif
