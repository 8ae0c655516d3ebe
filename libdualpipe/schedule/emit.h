/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * emit.h: how a method writes its lists: it names kinds and chunks, the micro-batch numbers follow.
 *
 * Every built-in method takes the micro-batches of a chunk in rising order, for F, for B or I, and
 * for W. */
#ifndef DP_SCHEDULE_EMIT_H
#define DP_SCHEDULE_EMIT_H

#include <dualpipe/schedule.h>
#include <stdbool.h>

typedef struct dp__emit {
    const dp_schedule_request_t *request;
    /* per rank; of a path. Operations on micro-batches behind the last are dropped */
    int32_t chunks, microbatches;
    dp_op_t *out; /* NULL while operations are only counted */
    int64_t count;
    int32_t next_f[DP_MAX_CHUNKS], next_b[DP_MAX_CHUNKS], next_w[DP_MAX_CHUNKS];
    int16_t *deferred; /* chunks whose W is deferred, oldest first */
    int64_t deferred_head, deferred_tail;
} dp__emit_t;

/* In a forward-only schedule only forwards remain; a pair is its forward side. */
void dp__emit_f(dp__emit_t *e, int chunk);
void dp__emit_b(dp__emit_t *e, int chunk);
void dp__emit_fb(dp__emit_t *e, int forward_chunk, int backward_chunk);
/* I puts the chunk's W on the queue; dp__emit_w takes the oldest from it, dp__emit_w_of that of a
 * given chunk (a method uses one or the other). */
void dp__emit_i(dp__emit_t *e, int chunk);
void dp__emit_w(dp__emit_t *e);
void dp__emit_w_of(dp__emit_t *e, int chunk);

/* Writes one rank's list. Called twice per rank, to count and to fill, and must do the same both
 * times. */
typedef void (*dp__emit_rank_fn)(dp__emit_t *e, int32_t rank);

/* Takes a caller's request over into *request_out (fields it does not have are 0) after the checks
 * that hold for every method. */
dp_status_t dp__request_check(const char *method, const dp_schedule_request_t *request,
                              dp_schedule_request_t *request_out);

/* The same for a method that has that many chunks on each rank. */
dp_status_t dp__request_check_fixed(const char *method, const dp_schedule_request_t *request, int32_t chunks,
                                    dp_schedule_request_t *request_out);

/* The same for a method of several chunks, 2 unless the request says how many. of_one: the method
 * that has one. in_groups: its micro-batches may pass in groups. */
dp_status_t dp__request_check_loop(const char *method, const char *of_one, bool in_groups,
                                   const dp_schedule_request_t *request, dp_schedule_request_t *request_out);

/* The whole generator of a method whose request was checked: chunks is what the placement needs. */
dp_status_t dp__emit_schedule(const char *method, dp_placement_t placement, int32_t chunks,
                              const dp_schedule_request_t *request, dp__emit_rank_fn emit_rank,
                              dp_schedule_t **schedule_out);

#endif
