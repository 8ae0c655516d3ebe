/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * timeline.h: spans by rank and lane: what a run, a simulation or an imported trace did and when.
 *
 * All three have one type, so every figure and report is written once. Times are nanoseconds on one
 * clock for all ranks. For measured runs it is CLOCK_MONOTONIC of the host of rank 0, for simulated
 * ones the time of the model. dp_timeline_clock() says how well the clock of another host is known.
 *
 *     dp_pipeline_timeline(pipeline, &timeline);           // or dp_simulate(), or custom spans
 *     dp_rank_report_t report = {.struct_size = sizeof(report)};
 *     dp_timeline_report(timeline, rank, -1, 1, &report);  // bubble, hidden communication
 *     dp_timeline_write_chrome(timeline, write, file);     // for https://ui.perfetto.dev
 *
 * All functions here return DP_ERR_INVALID for wrong arguments, a missing row among them, and
 * DP_ERR_NOMEM. Each names its other errors. Rows are independent: threads may work on different
 * rows at once. */
#ifndef DUALPIPE_TIMELINE_H
#define DUALPIPE_TIMELINE_H

#include <dualpipe/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a span is. */
typedef enum dp_span_kind {
    /* a segment, or a whole operation, on any lane: pass, chunk, microbatch, segment say which */
    DP_SPAN_COMPUTE = 0,
    DP_SPAN_SEND = 1,
    /* from when its consumer is ready for it until it is there (waiting) */
    DP_SPAN_RECV = 2,
    DP_SPAN_REDUCE = 3, /* reductions of a chunk's gradients; named "gather": dp_pipeline_gather */
    DP_SPAN_STEP = 4    /* one whole step of a rank */
} dp_span_kind_t;

/** One span. Frozen: never grows. */
typedef struct dp_span {
    int64_t start_ns, end_ns; /* 0 <= start <= end */
    /* same non-zero number on the SEND and the RECV of one message: an arrow; 0: none */
    uint64_t flow;
    int32_t step, microbatch; /* microbatch -1: not of a micro-batch */
    int16_t chunk, stage;     /* -1: not of a chunk */
    int16_t segment;          /* index in its stage, -1: a whole operation */
    uint8_t kind, lane;       /* dp_span_kind_t, dp_lane_t */
    uint8_t pass;             /* dp_op_kind_t: F, I, W or R (B: backward as a whole) */
    /* Part of an overlapped pair or a braid: its number on the rank, 1 to DP_SPAN_PAIRS over and
     * over. Neighbours on a lane with the same number belong to the same one. 0: its operation runs
     * alone */
    uint8_t pair;
    /* index into the timeline's names ("attention", "dispatch"), 0: derived from kind */
    uint16_t name;
    /* the part of a COMPUTE span in which the stream's thread had a core: what the work takes where
     * threads wait for cores. 0: not known (see dp_pipeline_options_t.cpu_times), or more than
     * DP_SPAN_BUSY_MAX */
    uint32_t busy_ns;
} dp_span_t;
#define DP_SPAN_BUSY_MAX 2147483647
#define DP_SPAN_PAIRS    255

/** Makes a timeline of `ranks` rows, 1 to DP_MAX_RANKS. Room for spans_per_rank spans is reserved
 * now, so that recording never allocates. The caller frees it. [any] */
DP_API DP_CHECKED dp_status_t dp_timeline_create(int32_t ranks, int64_t spans_per_rank, dp_timeline_t **timeline_out);
/** Frees a timeline. NULL is allowed. [any] */
DP_API void dp_timeline_free(dp_timeline_t *timeline);
/** Registers the name of a segment, 1 to 255 bytes. The same text gives the same number, from 1.
 * DP_ERR_OVERFLOW: 255 names are in use. [main] */
DP_API DP_CHECKED dp_status_t dp_timeline_name(dp_timeline_t *timeline, const char *name, uint16_t *name_out);
/** The text of a name; "" for 0 and for unknown numbers. [any] */
DP_API const char *dp_timeline_name_text(const dp_timeline_t *timeline, uint16_t name);
/** Appends a copy of a span to a row. DP_ERR_INVALID: times, kind, lane, pass, busy time or name
 * out of bounds. DP_ERR_OVERFLOW: the row is full; the span is counted as lost,
 * so the result may be dropped. [main] per row */
DP_API dp_status_t dp_timeline_add(dp_timeline_t *timeline, int32_t rank, const dp_span_t *span);
/** The spans of a row in the order in which they were added; *count_out is their number. NULL and 0
 * for a missing row. Borrowed: valid until the next span is added to the row. [any] */
DP_API const dp_span_t *dp_timeline_spans(const dp_timeline_t *timeline, int32_t rank, int64_t *count_out);
/** Spans of a row that found no room. [any] */
DP_API int64_t dp_timeline_lost(const dp_timeline_t *timeline, int32_t rank);
/** Number of rows; 0 for NULL. [any] */
DP_API int32_t dp_timeline_ranks(const dp_timeline_t *timeline);
/** Removes all spans and counts of lost ones. Names and room stay. [main] */
DP_API void dp_timeline_clear(dp_timeline_t *timeline);

/** What is known of the clock on which a row was measured. Zeros: it is the clock of all rows. */
typedef struct dp_row_clock {
    uint32_t struct_size; /* set by the caller */
    int32_t host;         /* of the rank: dp_host_places_t.host_of */
    int64_t offset_ns;    /* what was added to the row's last time */
    /* every time of the row is right to so much, beside those of rank 0's host: proven by round
     * trips over the control plane, however unequal the two ways, as long as the clocks of two
     * hosts drift apart by no more than 500 ppm. Rows of one host share it */
    int64_t bound_ns;
    /* of the offset: ns in a second, as measured, and how far that may be off */
    double drift, drift_bound;
} dp_row_clock_t;
enum { DP_ROW_CLOCK_MIN = DP_SIZE_TO(dp_row_clock_t, drift_bound) };
/** The clock of a row. [any] */
DP_API DP_CHECKED dp_status_t dp_timeline_clock(const dp_timeline_t *timeline, int32_t rank, dp_row_clock_t *clock_out);

/** Figures of one rank over a window. Times are in ns. COMPUTE spans on the compute lane are
 * computation. COMPUTE spans on other lanes, SEND and REDUCE are communication. Spans are cut at
 * the ends of the window. */
typedef struct dp_rank_report {
    uint32_t struct_size; /* set by the caller */
    int64_t window;       /* length of the window */
    int64_t compute_busy; /* union of the compute lane's spans */
    int64_t comm_busy;    /* union of all communication spans (all-to-all, sends, reductions) */
    int64_t comm_hidden;  /* the part of comm_busy during which the compute lane was busy */
    /* window minus the union of compute and all-to-all spans: nothing of a chunk ran */
    int64_t bubble;
    int64_t waiting; /* union of RECV spans */
} dp_rank_report_t;
enum { DP_RANK_REPORT_MIN = DP_SIZE_TO(dp_rank_report_t, waiting) };

/** Figures of a rank for one step. The window is the DP_SPAN_STEP of that step; without one, first
 * start to last end. step < 0: all steps. common_window 1: from the earliest start to the latest
 * end over all ranks. DP_ERR_INVALID: there is no span to take a window from. [any] */
DP_API DP_CHECKED dp_status_t dp_timeline_report(const dp_timeline_t *timeline, int32_t rank, int32_t step,
                                                 int common_window, dp_rank_report_t *report_out);

/** Writes all rows as one Chrome trace in JSON, which opens in Perfetto. A rank is a process and a
 * lane a thread. Sends and receives are threads apart, and spans that overlap are spread over
 * several threads. Spans are complete events ("X"), in microseconds since the first span, whose
 * absolute time is "baseTimeNanoseconds". Messages of which both ends are there have flow arrows
 * ("s"/"f"). The args are chunk, stage and micro-batch. A row whose clock is another host's has a
 * metadata event "clock" with the members of dp_row_clock_t. `write` gets blocks of at most 16 KiB.
 * Its failure ends the writing and is returned.
 * Format: Trace Event Format,
 * https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. [any] */
DP_API DP_CHECKED dp_status_t dp_timeline_write_chrome(const dp_timeline_t *timeline, dp_write_fn write, void *user);

#ifdef __cplusplus
}
#endif
#endif
