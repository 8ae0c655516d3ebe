/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * simulate.h: event-driven run of a program under a cost model. Its result is a timeline.
 *
 *     dp_costs_t costs = {.struct_size = sizeof(costs), .f = 1, .i = 1, .w = 1};
 *     dp_simulation_t result = {.struct_size = sizeof(result)};
 *     dp_simulate(program, &costs, 0, &result);            // step_time, bubble, peaks
 *     dp_simulation_clear(&result);
 *
 * Costs may be made up, derived from the segments of a layer (dp_costs_from_segments) or measured
 * (dp_costs_measure). All functions here return DP_ERR_INVALID for wrong arguments and
 * DP_ERR_NOMEM. Each names its other errors.
 *
 * Since 0.2: dp_costs_t.r, .rank_scale, .nlinks, .links; dp_segment_costs_t.r, .list_r,
 * .backward_buffer, .fine_f, .fine_i, .fine_w; dp_simulation_t.peak_backward_buffers. */
#ifndef DUALPIPE_SIMULATE_H
#define DUALPIPE_SIMULATE_H

#include <dualpipe/program.h>
#include <dualpipe/timeline.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Where ranks are, and the links between them. Times and sizes are in the units of the costs that
 * it belongs to. */
typedef struct dp_topology {
    uint32_t struct_size;
    int32_t ranks; /* of the schedule */
    /* [ranks] each rank's host, any numbers; NULL: all on one. Borrowed during a call */
    const int32_t *host_of;
    /* latency of a transfer, and bytes per unit of time (0: without limit), within a host and
     * between hosts. Every ordered pair of ranks has its own link. Where several pairs share a
     * card at once, give each its part */
    double near_hop, near_bandwidth;
    double far_hop, far_bandwidth;
} dp_topology_t;
enum { DP_TOPOLOGY_MIN = DP_SIZE_TO(dp_topology_t, far_bandwidth) };

/** The link from one rank to another, where it is not as all others. Frozen: never grows. */
typedef struct dp_link_costs {
    int32_t from, to;      /* ranks; what comes back has another link */
    double hop, bandwidth; /* as in dp_costs_t */
} dp_link_costs_t;

/** Costs in any one unit of time, for the work of one device on one micro-batch. Where C chunks on
 * a rank share the model (V, loop), a chunk costs 1/C of these. Bidirectional ranks hold full-size
 * stages, so a chunk costs the whole. A pair of stages with different scales costs fb times the
 * mean of the scales, weighted by f and b. Each ordered pair of ranks has its own link. Messages on
 * it follow one another, bytes / bandwidth each, and arrive `hop` after that. Zero: takes no time.
 * b and fb differ: when zero they are sums, when negative they take no time (dp_costs_backward(),
 * dp_costs_pair()). */
typedef struct dp_costs {
    uint32_t struct_size;
    double f, i, w;            /* forward, backward for input, backward for weights */
    double b;                  /* full backward; 0: i + w; negative: takes no time */
    double fb;                 /* overlapped pair; 0: f + b; negative: takes no time */
    double hop;                /* latency of one transfer between ranks, not occupying the rank */
    double barrier;            /* 1: all ranks meet at the end of the step (optimizer), else 0 */
    const double *stage_scale; /* [stages of a path] factor per stage; NULL: 1 everywhere */
    double bytes;              /* size of one message */
    /* bytes per unit of time from one rank to another; 0: without limit */
    double bandwidth;
    /* NULL, or hop and bandwidth by where the two ranks are. Borrowed during a call */
    const dp_topology_t *topology;
    /* NULL: operations take f, i, w, b and fb. Otherwise the run is one of segments on lanes, as
     * the engine enqueues them; f to fb are ignored. Borrowed during a call */
    const struct dp_segment_costs *segments;
    /* R: the time that recomputing forward segments adds to every I and B. It is not part of i, b
     * and fb above */
    double r;
    /* [ranks] factor per rank, of its operations and of its segments on every lane; messages take
     * what their link says. NULL: 1 everywhere. Borrowed during a call */
    const double *rank_scale;
    /* [nlinks] links that count before hop, bandwidth and topology. Borrowed during a call */
    int32_t nlinks;
    const dp_link_costs_t *links;
} dp_costs_t;
enum { DP_COSTS_MIN = DP_SIZE_TO(dp_costs_t, r) };

/** The cost of a full backward, without r. [any] */
DP_API double dp_costs_backward(const dp_costs_t *costs);
/** The cost of an overlapped pair, without r. [any] */
DP_API double dp_costs_pair(const dp_costs_t *costs);

#define DP_SEGMENT_COSTS  4    /* segments of a MoE layer: attention, dispatch, mlp, combine */
#define DP_SEGMENT_FINE   3    /* further ones: project, shared, sum */
#define DP_SEGMENT_LAYERS 4096 /* most layers of a device */

/** Times of one segment of a stage for one micro-batch. Frozen: never grows; `reserved` is zero. */
typedef struct dp_segment_cost {
    uint8_t role, lane;  /* dp_segment_role_t; DP_LANE_COMPUTE or DP_LANE_ALL_TO_ALL */
    uint8_t has_weight;  /* 1: it has a backward for weights */
    uint8_t begins_part; /* 1: the first of its layer, embedding or head */
    uint32_t reserved;
    double f, i, w;
} dp_segment_cost_t;

/** Times of segments for one micro-batch. Either those of one MoE layer ([DP_ROLE_ATTENTION - 1],
 * [DP_ROLE_DISPATCH - 1], ...), of which a device has `layers`; or, with `list`, those of every
 * stage. */
typedef struct dp_segment_costs {
    uint32_t struct_size;
    int32_t layers; /* of one device, 1 to DP_SEGMENT_LAYERS; its stages have equal parts of them */
    double f[DP_SEGMENT_COSTS], i[DP_SEGMENT_COSTS], w[DP_SEGMENT_COSTS];
    /* NULL, or the segments of all stages, in forward order: stage s of `stages` has list[first[s]]
     * to list[first[s + 1] - 1]. Then layers, f, i and w are ignored. Borrowed during a call */
    int32_t stages;
    const int32_t *first; /* [stages + 1] */
    const dp_segment_cost_t *list;
    /* 1: messages leave from the lane that made them, as small ones do between CPUs */
    int32_t inline_messages;
    /* R of the four segments of a layer (those of the all-to-all lane have none) or,
     * [first[stages]], of those of `list`; NULL: none has. Borrowed as list */
    double r[DP_SEGMENT_COSTS];
    const double *list_r;
    /* 1: stages have memory that only backwards have, as where R is not 0 (stage.h) */
    int32_t backward_buffer;
    /* of layers cut finer (types.h): project, shared, sum. A layer has project if it takes time,
     * and shared and sum if one of them does */
    double fine_f[DP_SEGMENT_FINE], fine_i[DP_SEGMENT_FINE], fine_w[DP_SEGMENT_FINE];
} dp_segment_costs_t;
enum { DP_SEGMENT_COSTS_MIN = DP_SIZE_TO(dp_segment_costs_t, backward_buffer) };

/** An overlapped forward and backward of a device. The caller sets struct_size. */
typedef struct dp_pair_figures {
    uint32_t struct_size;
    double time;          /* first start to last end */
    double communication; /* dispatch and combine of both sides */
    /* the part of it during which attention or mlp ran; the rest is exposed */
    double hidden;
} dp_pair_figures_t;
enum { DP_PAIR_FIGURES_MIN = DP_SIZE_TO(dp_pair_figures_t, hidden) };

/** Derives F, I, W, B and F&B of a device from its segments, as the engine runs them. There are two
 * lanes: attention and mlp on one, dispatch and combine on the other. Weight gradients compute.
 * Each lane takes its segments in the order of dp_segment_role_t. F waits for the segment before
 * it, I for the I of the segment after it, and W for the I of the same segment. R stands before its
 * I and waits for its lane alone. So F and I are sums. B is shorter where the dispatch of a
 * gradient runs beside mlp(W), and F&B by all that the order hides. I, B and F&B contain R. The
 * call sets f, i, w, b and fb of `costs` and leaves the rest. Chunks that share a device are equal
 * parts of it. pair_out may be NULL. DP_ERR_INVALID: a cost that is negative or not finite, layers
 * out of bounds, or an R of the all-to-all lane. [any] */
DP_API DP_CHECKED dp_status_t dp_costs_from_segments(const dp_segment_costs_t *segments, dp_costs_t *costs,
                                                     dp_pair_figures_t *pair_out);

/** Costs that a timeline shows, for the simulation of other schedules and sizes. Unit:
 * milliseconds. The caller sets struct_size. What the members point to belongs to the library until
 * dp_measured_costs_clear(). */
typedef struct dp_measured_costs {
    uint32_t struct_size;
    int32_t stages; /* of a path: length of costs->stage_scale */
    /* of a device; b, fb 0 when the schedule has none. stage_scale: time of all spans of a stage,
     * in units of the mean stage */
    const dp_costs_t *costs;
    const dp_segment_costs_t *segments; /* of a layer; NULL: no segment has the name of one */
    /* every segment of every stage, as costs->segments takes it, without stage_scale; NULL: not all
     * were seen */
    const dp_segment_costs_t *stage_segments;
} dp_measured_costs_t;
enum { DP_MEASURED_COSTS_MIN = DP_SIZE_TO(dp_measured_costs_t, stage_segments) };

/** Measures the costs of the schedule that made a timeline (of dp_pipeline_timeline() or
 * dp_simulate()). Row r is pipeline rank r mod P. F, I, W, B and F&B are mean lengths of
 * operations, first start to last end. The compute spans of one operation follow one another in a
 * row. Spans with a busy_ns count with that time. An operation of such spans counts as long as with
 * a core for each lane, so threads that wait for cores do not make it longer. For a schedule with
 * whole backwards only, I and W are the sums of their spans, or half of B each. Segments have the
 * names "attention", "dispatch", "mlp" and "combine". hop is the shortest SEND, because longer ones
 * waited for a slot. Free the result with dp_measured_costs_clear(). DP_ERR_INVALID: there is no
 * forward. [any] */
DP_API DP_CHECKED dp_status_t dp_costs_measure(const dp_timeline_t *timeline, const dp_schedule_t *schedule,
                                               dp_measured_costs_t *measured);
/** Writes a file that `dualpipe simulate --costs FILE` reads: lines NAME=VALUE. A failure of
 * `write` is returned. [any] */
DP_API DP_CHECKED dp_status_t dp_measured_costs_write(const dp_measured_costs_t *measured, dp_write_fn write,
                                                      void *user);
/** Frees what the members point to. [any] */
DP_API void dp_measured_costs_clear(dp_measured_costs_t *measured);

/** The result of a run. The caller sets struct_size. Arrays and timeline belong to the library
 * until dp_simulation_clear(). */
typedef struct dp_simulation {
    uint32_t struct_size;
    /* barrier 1: first start to last end. Barrier 0: the shortest time after which every rank can
     * do the same again: the longest first start to last end of one rank (of two mirror ranks
     * together, whose gradients are summed) */
    double step_time;
    double formula_bubble; /* the published formula for this method, NaN when there is none */
    int32_t ranks;
    double *bubble; /* [ranks] step_time minus busy time */
    /* [ranks] most held at once, from F until B or W, in units of one rank's stage inputs (a chunk
     * that is 1/C of a device counts 1/C) */
    double *peak_activations;
    dp_timeline_t *timeline; /* times scaled by 1e6 (one unit = 1 ms); NULL unless asked for */
    /* [ranks] most backwards alive at once, from the begin of an I or B to the end of
     * its W or B, in the same units: what `backward_buffer` is held for */
    double *peak_backward_buffers;
} dp_simulation_t;
enum { DP_SIMULATION_MIN = DP_SIZE_TO(dp_simulation_t, peak_backward_buffers) };

/** Runs a program. Free the result with dp_simulation_clear().
 *
 * With costs->segments it runs what the engine puts on its streams, command for command. Every lane
 * (compute, all-to-all, p2p) runs its segments and messages in their order and waits for the events
 * that the engine records. An operation waits for the one before it only where they share a lane or
 * memory. A send keeps its stream for bytes / bandwidth. Reductions of gradients take no time. A
 * rank is busy when its compute lane is. The timeline has a span for every segment.
 *
 * Without, it runs the program, every operation as early as it can start:
 * - A rank computes its operations one after the other, in order. An operation waits for the
 *   messages that it consumes. Results are there at its end, those of an FB both. (A stage of one
 *   segment hands its gradient on before W: give costs->segments for that.) Passes of a braid are
 *   separate operations, in the order in which they end. Transfers never keep a rank from
 *   computing.
 * - CREDITS: the sends of a rank leave in order, each as soon as its data are made, its slot is
 *   free and the link is free. The sender knows at once that a slot is free. A message arrives a
 *   hop after its last byte left.
 * - BUNDLES: bundles to one peer follow one another, and so do those from it. One is posted when
 *   the one before it has ended, its data are made and its slots are free. A transfer takes the
 *   link, and then a hop, once both sides have posted it and the link is free. A bundle ends when
 *   all its transfers have ended; then what it received can be used.
 * - Reductions of gradients (REDUCE) take no time.
 * With a timeline, an FB is two spans, F then B, which share the time of the pair in proportion to
 * f and b. Every message is a SEND span from leaving to arriving, and a RECV span while its
 * consumer waits. DP_ERR_INVALID: costs that are not finite, or negative (except b and fb), a
 * topology of another number of ranks, or a program with ids out of bounds. DP_ERR_REJECTED: the
 * program cannot finish; the message names an operation that never starts. [any] */
DP_API DP_CHECKED dp_status_t dp_simulate(const dp_program_t *program, const dp_costs_t *costs, int with_timeline,
                                          dp_simulation_t *result);
/** Lowers a schedule, proves its program and runs it: dp_program_lower(), dp_program_verify() and
 * dp_simulate() in one call, with their errors. options may be NULL. Slots of
 * 0 are DP_SLOTS_NEEDED. Free the result with dp_simulation_clear(). [any] */
DP_API DP_CHECKED dp_status_t dp_evaluate(const dp_schedule_t *schedule, const dp_lower_options_t *options,
                                          const dp_costs_t *costs, int with_timeline, dp_simulation_t *result);
/** Frees arrays and timeline of a result. [any] */
DP_API void dp_simulation_clear(dp_simulation_t *result);

/** A model whose layers do not all cost the same, and how it is to run. */
typedef struct dp_partition_request {
    uint32_t struct_size;
    /* of the model, embedding, head and loss included: what may be cut apart is a layer */
    int32_t layers;
    /* [layers] what each takes beside the others, in any unit, above 0: of a forward and backward
     * together */
    const double *layer_costs;
    const dp_program_t *program; /* says how many stages there are, and in which order they run */
    /* of a device if all stages cost the same; stage_scale is ignored */
    const dp_costs_t *costs;
} dp_partition_request_t;
enum { DP_PARTITION_REQUEST_MIN = DP_SIZE_TO(dp_partition_request_t, costs) };

/** Cuts layers onto the stages of a path such that the simulated step is short. Stage s holds
 * layers first_out[s] to first_out[s + 1] - 1, at least one; first_out has stages + 1 entries
 * (dp_schedule_stages()). It starts from two cuts: the one whose dearest stage is the cheapest, and
 * equal numbers of layers. From each it moves one or two cuts by a layer or two while that shortens
 * the step, and it keeps the better end. So the result is never worse than either start, but not
 * always the best there is. The same request gives the same result. step_out (may be NULL): the
 * step time of dp_simulate() with stage_scale = cost of the stage / mean cost of a stage.
 * DP_ERR_INVALID: fewer layers than stages, a cost that is not above 0, and the errors of
 * dp_simulate(). [any] */
DP_API DP_CHECKED dp_status_t dp_partition(const dp_partition_request_t *request, int32_t *first_out, double *step_out);

#ifdef __cplusplus
}
#endif
#endif
