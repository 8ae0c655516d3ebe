/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * pipeline.h: the engine: runs a verified program on one rank, step by step.
 *
 * A job has pp * ep * dp ranks: world rank = (d * ep + e) * pp + p. Ranks with the same (e, d) form
 * a pipeline, ranks with the same (p, d) an expert group. Gradients of experts are summed over the
 * dp ranks with the same (p, e), all others over the ep * dp ranks with the same p. Every (e, d)
 * has its own micro-batches.
 *
 * Life: open, step ... step, close. Open is collective: it builds plugins, stages and channels, and
 * allocates every byte of the run. A step allocates nothing and opens nothing. It runs only
 * programs that verify has accepted for the backend in use.
 *
 * Bits. Gradients of a stage are accumulated micro-batch by micro-batch: the first half of the
 * step's micro-batches in one accumulator, the second in another (or see one_accumulator). Then
 * come half 0 + half 1, the two ends of a shared parameter, and the data group in rank order. So
 * every schedule, pipeline depth and comm backend gives the same bits at the same ep and dp, and so
 * do ranks as threads or processes.
 *
 * Scale. Gradients are sums over all micro-batches of all ep * dp pipelines, of loss_scale times
 * each loss. By default loss_scale is one through their number: gradients are those of the mean
 * loss.
 *
 * Exceptions. No C++ exception may leave a function given to the library; dualpipe.hpp has a
 * wrapper that turns one into an error.
 *
 * Environment, beside that of group.h:
 *   DUALPIPE_PLUGINS=comm=NAME,device=NAME  plugins where the options name none
 *   DUALPIPE_GUARD=1     every call of a segment is checked, slowly
 *   DUALPIPE_TRACE=FILE  dp_pipeline_close of a job that is well writes the last traced steps of
 *                        all ranks to FILE, as dp_timeline_write_chrome does. World rank 0 writes,
 *                        and its environment counts. dp_pipeline_open fails where FILE cannot be
 *                        made (DP_ERR_IO); what fails at close is an error in the log.
 *
 * DUALPIPE_GUARD=1 is for new segments. Calls then run one at a time, and nothing overlaps. Before
 * a call y, dx and scratch are filled with NaN. Before F, saved is filled too; before the first
 * call of a pass, work and backward_buffer. Guard bytes lie behind saved, backward_buffer, work,
 * scratch, y, dx and grads. After the call the step fails, and names rank, stage, segment, pass and
 * micro-batch, when
 *   - the function has changed any of these before its turn on the stream: it computed at once
 *     (stage.h)
 *   - guard bytes have changed: which, and how far beyond the end
 *   - y or dx still has the NaN of before in it when the part is done: it was not overwritten, or
 *     it was added to
 *   - x, dy or params has changed, or the first byte of input or target, whose size only the
 *     trainer knows: the function wrote to what it may only read
 * Guarded memory is larger; steps still allocate nothing. The guard needs a device whose memory the
 * host reaches and which runs host functions (device_cpu). On others, and where steps are captured
 * as graphs, a warning says that nothing is guarded. Some ranks may be guarded and others not.
 *
 * Since 0.2: dp_pipeline_options_t.tokens, .documents, .zero, .one_accumulator, .check_finite,
 * .check_bits, .buddy, .cache_slots, .microbatch_group; dp_step_t.tokens, .documents, .round,
 * .rounds, .microbatches, .requests; dp_chunk_view_t.nshards, .shard_list, .shard_count;
 * dp_build_context_t.tokens, .documents, .cache_slots; dp_pipeline_gather, dp_pipeline_counts,
 * dp_pipeline_exact_sum. */
#ifndef DUALPIPE_PIPELINE_H
#define DUALPIPE_PIPELINE_H

#include <dualpipe/group.h>
#include <dualpipe/stage.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_pipeline dp_pipeline_t;

/** What a stage builder may use: this rank's device and its expert group. */
typedef struct dp_build_context {
    uint32_t struct_size;
    dp_group_t *group;
    const dp_host_t *host;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    const dp_comm_vt_t *comm_vt;
    dp_comm_t *expert_comm; /* the expert group; size 1 when ep is 1 */
    int32_t pipeline_rank, pipeline_size, expert_rank, expert_size, data_rank, data_size;
    uint32_t tokens, documents;         /* of the pipeline's options */
    uint32_t cache_slots, cache_tokens; /* the same */
} dp_build_context_t;
enum { DP_BUILD_CONTEXT_MIN = DP_SIZE_TO(dp_build_context_t, documents) };

/** Makes stage `stage` of `stages`, both counted along the path. Open calls it once for every chunk
 *  of this rank, in chunk order. The stage belongs to the trainer and outlives the pipeline. An
 *  error (with dp_fail) ends the opening on all ranks. */
typedef dp_status_t (*dp_build_stage_fn)(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                                         dp_stage_t **stage_out);

/** How a pipeline is opened. Names and pointers are borrowed until open returns, unless said
 * otherwise. */
typedef struct dp_pipeline_options {
    uint32_t struct_size;

    /* ---- what to run ---- */

    dp_group_t *group;
    int32_t ep, dp;     /* 0: 1. The pipeline has size / (ep * dp) ranks */
    const char *method; /* of the schedule; NULL: "dualpipe"; ignored when `schedule` is given */
    /* NULL, or a custom schedule (schedule.h); borrowed until close */
    const dp_schedule_t *schedule;
    int32_t chunks;       /* of interleaved methods; 0: default */
    int32_t microbatches; /* M per (e, d), both directions together */

    /* ---- the model ---- */

    size_t boundary_bytes; /* tensor between stages, for one micro-batch */
    /* Of parameters: DP_F32, DP_F64, DP_BF16. Gradients are kept, summed and handed out in
     * dp_dtype_accumulator(dtype). */
    dp_dtype_t dtype;
    /* Micro-batches of different length. tokens: most that one has; boundary_bytes is a multiple of
     * it. A step may then say how many each has (dp_step_t.tokens), and messages are as much
     * shorter. Memory and slots stay those of the longest. 0: all are alike. documents: most that a
     * micro-batch has; 0: none. Not together with `graph`: DP_ERR_UNSUPPORTED. */
    uint32_t tokens, documents;

    /* ---- functions of the trainer ---- */

    dp_build_stage_fn build;
    void *user; /* given to these functions */
    /* NULL, or called once by dp_pipeline_close (and by a dp_pipeline_open that fails) after
     * `build` was called. Nothing of the library runs any more; comms and device are still open.
     * Close here what build has opened, and release the trainer's own device memory. Not called
     * when a kernel does not return: what it may be using stays. */
    void (*unbuild)(void *user);
    /* NULL, or called by dp_pipeline_recover, and by an open during which a rank is replaced,
     * before build is called again for every chunk. Nothing runs, nothing is in flight between
     * ranks. Close here what build has opened on the device and the expert group. Parameters and
     * the optimizer's state stay, and so do the stages until recover has returned. */
    void (*retire)(void *user);

    /* ---- plugins ---- */

    /* How ranks talk: a plugin's name or path ("shm" means "comm_shm"). Two, "shm+ofi": the first
     * between ranks of one host, the second between hosts. "auto": comm_shm on one host,
     * comm_shm+comm_ofi (without it comm_mpi) on several; with CUDA comm_cuda_ipc and comm_nccl; of
     * what all ranks can load. All give the same bits. NULL: DUALPIPE_PLUGINS, else "auto". */
    const char *comm;
    const char *device;                           /* NULL: DUALPIPE_PLUGINS, else "device_cpu" */
    const struct dp_device_config *device_config; /* device.h; NULL: defaults */
    /* NULL, or a plugin of dp.profiler/1 (profiler.h; "hook_cupti"). External tools then show the
     * device's work by the name of its operation. In dp_pipeline_timeline() the span of an
     * operation lasts from the start of its first kernel to the end of its last, not from its turn
     * on the stream to the next. Steps replayed as graphs keep the times of turns. */
    const char *profiler;

    /* ---- memory ---- */

    /* K per channel; 0: 2, or as many as the schedule needs: dp_verify_report_t.safe_slots */
    int32_t slots;
    size_t inline_bytes; /* messages up to this size are sent from the compute lane; 0: 16 KiB */
    /* 1: ZeRO-1 (arXiv 1910.02054). Several ranks hold a parameter: mirrors and data groups. Each
     * sums the gradient of its shard, keeps the optimizer's state for that, and updates it.
     * dp_chunk_view_t.shard_list says which shards, dp_pipeline_gather gives them to the others.
     * The optimizer's memory falls by the number of holders: 2 * ep * dp on placements with
     * mirrors, ep * dp on others, without ep for experts. All bits are those of 0. These stay
     * whole: a router's bias, whose update needs all counts; parameters of a part with `reduce` or
     * `placement` (replicas of experts); parameters whose offset or size in bytes is no multiple of
     * 8. A rank alone has its part of the optimizer's state: after a death dp_pipeline_recover
     * returns DP_ERR_LOST, unless `buddy` is set. */
    int32_t zero;

    /* ---- numbers ---- */

    /* 1: a chunk whose micro-batches are of both halves has one accumulator for them instead of
     * two. That saves a copy of its parameters in dp_dtype_accumulator(dtype). Gradients are then
     * summed micro-batch by micro-batch through the whole step. Every schedule of one path (1f1b,
     * zb1p, dualpipev, interleaved, ...) still gives the same bits as every other, but not those of
     * two paths (dualpipe), where this has no effect. */
    int32_t one_accumulator;
    /* 1: the step fails with DP_ERR_NUMERIC at the first output, loss or gradient that is NaN or
     * infinite. The message names rank, step, stage, micro-batch, segment, and the parameter whose
     * gradient or value it is in. Each part of a pass then reads once more what it has made. On
     * devices that keep their memory from the host, and where steps are captured as graphs, this
     * has no effect but a warning. All that crosses a boundary is taken for `dtype`: not for stages
     * that send tensors of another one (dp_boundary_tensor_t). */
    int32_t check_finite;

    /* ---- streams and traces ---- */

    /* 1: steps are replays of one captured graph each: one for training, one for forward_only. The
     * first step runs as always. The next of its kind is captured, which allocates; another input,
     * target or output pointer or loss scale than before captures anew. Needs DP_DEVICE_CAP_GRAPH,
     * DP_COMM_CAP_CAPTURE, and segments that keep to their [capture] mark: dp_segment_call_t.step
     * is that of the capture. Channels get as many slots as divide their messages. With several
     * ranks a draft (draft/graph.h), as a warning at open says: a wait for another rank is then a
     * kernel that spins, on a hardware queue of the driver's choice. */
    int32_t graph;
    /* keep the spans of the last n steps for dp_pipeline_timeline; 0: 1, at most 65536 */
    int32_t trace_steps;
    /* 1: the spans of segments say how long their stream's thread had a core (dp_span_t.busy_ns),
     * at the price of two host functions a segment. For ranks that share cores. Without effect on
     * devices that run no host functions. */
    int32_t cpu_times;

    /* ---- memory that changes by itself ---- */

    /* N > 0: every N-th dp_pipeline_commit (recover.h) compares what several ranks hold (mirrors,
     * data groups, what is no expert also in the expert group): digests of all parameters and
     * summed gradients. dp_pipeline_save compares parameters and states of scope PARAMS and SHARDS.
     * DP_ERR_CORRUPT on all ranks where bits differ: the message names rank, step and parameter.
     * With three copies or more the odd one is wrong. With two, memory that changes again while it
     * is looked at is; else either may be. The update has not been made. dp_pipeline_recover goes
     * on with the copies that are right. The trainer gives all copies the same bits: it may change
     * gradients before the commit, on all that hold them alike. Reads those bytes once; where the
     * host does not reach the device's memory, 32 KiB at a time. 0: nothing is compared */
    int32_t check_bits;

    /* ---- recovery ---- */

    /* 1: a rank whose state no other rank has, by placement or by `zero`, copies it beside each
     * step into memory that the launcher holds (recover.h). That takes two more copies of
     * parameters and registered state. Without effect elsewhere, and where no rank is ever
     * replaced. */
    int32_t buddy;

    /* ---- inference ---- */

    /* Requests whose keys and values each stage keeps from step to step (dp_step_t.requests), at
     * most, and tokens of one; needs `documents`. Both copies of a stage have a cache, of
     * dp_memory_report_t.cache bytes. Both 0: none. DP_ERR_UNSUPPORTED from dp_moe_block_open: the
     * attention plugin keeps none */
    uint32_t cache_slots, cache_tokens;

    /* dp_schedule_request_t.microbatch_group, for `method`; 0: as many as ranks of the pipeline.
     * Larger groups need more slots. Ignored when `schedule` is given */
    int32_t microbatch_group;
} dp_pipeline_options_t;
enum { DP_PIPELINE_OPTIONS_MIN = DP_SIZE_TO(dp_pipeline_options_t, cpu_times) };

/** Opens plugins, agrees on settings, builds stages, lowers and verifies the program, allocates and
 *  connects everything. The caller closes *pipeline_out, which is NULL after a failure. Errors name
 *  the plugin, rank or field at fault. [collective] [blocks] */
DP_API DP_CHECKED dp_status_t dp_pipeline_open(const dp_pipeline_options_t *options, dp_pipeline_t **pipeline_out);
/** Closes, before dp_group_leave; returns at once when the job is aborted. NULL is allowed. When a
 *  kernel does not return after a failure, what it may be using is left behind, the group included,
 *  with a warning: the process should end. [collective] [blocks] */
DP_API void dp_pipeline_close(dp_pipeline_t *pipeline);

/** How a packed micro-batch divides into documents: number i is tokens ends[i-1] (of the first: 0)
 *  to ends[i] - 1. Frozen: never grows. */
typedef struct dp_documents {
    /* [count] rising, from 1 at least; the last one is the micro-batch's tokens */
    const uint32_t *ends;
    uint32_t count; /* 0: it is not divided */
} dp_documents_t;

/** Which request each document of a micro-batch belongs to. Frozen: never grows. */
typedef struct dp_requests {
    /* [documents.count] its slot in the caches, below options.cache_slots; DP_NO_SLOT: nothing is
     * kept of it */
    const uint32_t *slots;
    /* [documents.count] tokens of the request before these: what its slot holds, or fewer, and the
     * rest is forgotten. 0 begins a new request */
    const uint32_t *past;
} dp_requests_t;

/** Data of one step. Arrays are indexed by micro-batch of the step, and borrowed until the step
 * returns. */
typedef struct dp_step {
    uint32_t struct_size;

    /* ---- data ---- */

    /* [M] An entry for each micro-batch that enters (inputs) or ends (targets) on this rank
     * (dp_pipeline_ends); NULL where there is none. A forward_only step may leave out targets; the
     * last stage's segments then get NULL. */
    const void *const *inputs, *const *targets;
    void *const *outputs; /* [M] or NULL: where last stages write their outputs */
    /* With dp_pipeline_options_t.tokens. tokens: [M] or NULL, of each micro-batch, 1 to
     * options.tokens; NULL: all have as many, or what their documents say. documents: [M] or NULL.
     * Both are the same on all ranks of the pipeline; pipelines of other (e, d) have their own. A
     * micro-batch weighs tokens[m] / options.tokens. Its loss is the mean over its own tokens.
     * dp_step_t.loss adds losses so weighted, and dp_segment_call_t.loss_scale is the step's times
     * the weight. So each token counts alike. With loss_scale = options.tokens / (tokens of the
     * whole job) gradients are those of the mean over all tokens. `losses` and aux_loss are as the
     * segments gave them. */
    const uint32_t *tokens;
    const dp_documents_t *documents;

    /* ---- what kind of step ---- */

    int32_t forward_only; /* 1: no backward; gradients are left alone */
    /* Fewer micro-batches than the pipeline was opened for: this step has number 0 to
     * microbatches - 1, on all ranks alike. The others are neither computed nor sent. loss_scale
     * 0: 1 / (microbatches * ep * dp). DP_ERR_UNSUPPORTED with dp_pipeline_options_t.graph.
     * 0: all */
    int32_t microbatches;
    /* 0: 1 / (M * ep * dp * rounds): gradients of the mean loss of the job, see `tokens` */
    double loss_scale;
    /* Gradients of several steps for one update: this step is number `round` (0, 1, ...) of
     * `rounds`; 0: 1. The first zeroes the gradients, the others add to them. The last one sums
     * them over halves, mirrors, shared parameters and data groups: until then they are unfinished.
     * The rounds follow each other, on all ranks alike. forward_only steps may lie between them,
     * and round 0 always begins anew. Losses are each step's own. */
    int32_t round, rounds;

    /* ---- results, the same on every rank of the pipeline ---- */

    /* sum over all micro-batches of this (e, d) of the losses, each with its weight */
    double loss;
    /* sum over all micro-batches of this (e, d) and all parts of what segments added to aux_loss;
     * the same bits for every schedule and number of ranks */
    double aux_loss;
    double *losses; /* [M] or NULL: the loss of each micro-batch */

    /* ---- inference ---- */

    /* [M] or NULL: of each micro-batch that has documents, in a forward_only step, with
     * options.cache_slots. The same on all ranks of the pipeline, as documents are. Tokens of a
     * document come behind those that its slot holds, attend to all of them and are kept; the step
     * costs what the new ones cost. Requests come and go between steps: a slot is free when its
     * caller says so, by past 0. Each copy of a stage has a cache, so a request stays with
     * micro-batches that enter at the same end of the pipeline (dp_pipeline_ends). One that is
     * split between two micro-batches of a step has its first part in the lower one.
     * DP_ERR_INVALID: a slot that cannot be, holds fewer tokens than `past` or has no room left for
     * the document's. A training step, and what recovers a rank, forgets all.
     * Whoever changes parameters between forward_only steps begins all requests anew. */
    const dp_requests_t *requests;
} dp_step_t;
enum { DP_STEP_MIN = DP_SIZE_TO(dp_step_t, losses) };

/**
 * Runs one step: zeroes the gradients, runs all micro-batches forward and backward, sums gradients
 * of both copies of each stage and over the data groups (but see dp_step_t.round). Losses and
 * gradients are final when it returns. Every rank of the job calls it. Errors: the first cause,
 * named; afterwards only dp_pipeline_close is legal. [collective] [blocks]
 */
DP_API DP_CHECKED dp_status_t dp_pipeline_step(dp_pipeline_t *pipeline, dp_step_t *step);

/** What this rank updates of one parameter. Frozen: never grows; `reserved` is zero. */
typedef struct dp_shard {
    uint32_t param; /* index in the view's param_list */
    uint32_t reserved;
    size_t first, count; /* elements first .. first + count - 1 of the parameter */
    /* the first one's place in what the optimizer keeps, of shard_count elements */
    size_t at;
} dp_shard_t;

/** Shards begin and end where a parameter does, or behind a multiple of so many of its elements. */
#define DP_SHARD_BLOCK 1024

/** One chunk of this rank. */
typedef struct dp_chunk_view {
    uint32_t struct_size; /* set by the caller */
    int32_t chunk, path, stage, stages;
    dp_stage_t *stage_object;

    /* ---- parameters and gradients, in device memory: param_count elements each ---- */

    void *params; /* of dtype; zero at first. The trainer fills and updates them between steps */
    /* The summed gradient after a step, of dp_dtype_accumulator(dtype). With options.zero that of
     * this rank's shards; the others hold anything. The trainer may change it between a step and
     * the next: clip it, scale it. Other ranks do not see that. */
    void *grads;
    size_t param_count;
    uint32_t nparams;
    const dp_param_t *param_list; /* [nparams] what lies where */

    /* ---- what this rank updates ---- */

    /* At most one shard of each parameter, in the order of the list. Without options.zero these are
     * all parameters, whole, each with at = its offset, and shard_count = param_count. An optimizer
     * that keeps shard_count elements and goes by this list serves both. */
    uint32_t nshards;
    const dp_shard_t *shard_list;
    size_t shard_count;

    /* ---- sums over the job by hand (dp_pipeline_counts is simpler) ---- */

    /* Of all ranks that hold a parameter, one has 1. `primary` is for parameters that are not
     * sharded: 0 in the mirror's copy, in all data groups but one, on all ranks but one of the
     * expert group. `primary_experts` is for sharded ones; each rank of an expert group has its
     * own. Such a sum counts an expert once for each replica, and a shared parameter
     * (dp_param_t.shared) once for each end; dp_pipeline_counts counts both once. */
    int32_t primary, primary_experts;
} dp_chunk_view_t;
enum { DP_CHUNK_VIEW_MIN = DP_SIZE_TO(dp_chunk_view_t, primary_experts) };
/** The number of chunks of this rank; 0 for NULL. [any] */
DP_API int32_t dp_pipeline_chunks(const dp_pipeline_t *pipeline);
/** A chunk of this rank. The view stays valid until the pipeline is closed; after
 *  dp_pipeline_swap_comm and dp_pipeline_recover stage_object and param_list are others.
 *  DP_ERR_INVALID: no such chunk, or view_out->struct_size is not set. [any] */
DP_API DP_CHECKED dp_status_t dp_pipeline_chunk(const dp_pipeline_t *pipeline, int32_t chunk,
                                                dp_chunk_view_t *view_out);

/* ---- beyond the first trainer: which data are wanted here, norms and other sums, sharded updates
 * ---- */

/** Which micro-batches of a step enter (inputs) or end (targets, losses) on this rank:
 *  first_out[M], last_out[M] are set to 0 or 1; either may be NULL. [any] */
DP_API void dp_pipeline_ends(const dp_pipeline_t *pipeline, uint8_t *first_out, uint8_t *last_out);

/** Behind the update, with options.zero: gives this rank's updated shards to all that hold them,
 *  and gets theirs. The update must be done, on whatever stream, when it is called. The exchange
 *  runs on the reduce lane. A step waits for the parameters of a stage before it first uses them;
 *  so do the pipeline's other collective calls. dp_pipeline_chunk does not wait: read parameters
 *  after dp_pipeline_step or dp_pipeline_sum has returned. A step that follows gradients without it
 *  is refused: DP_ERR_INVALID. In timelines each chunk's is a span of the next step, of kind
 *  DP_SPAN_REDUCE and named "gather". Without options.zero nothing is done, and it succeeds.
 *  [collective] */
DP_API DP_CHECKED dp_status_t dp_pipeline_gather(dp_pipeline_t *pipeline);

/** Sums host doubles over all ranks of the job, in rank order, in place. Same bits everywhere. Add
 *  what belongs to parameters where dp_pipeline_counts says so. [collective] [blocks] */
DP_API DP_CHECKED dp_status_t dp_pipeline_sum(dp_pipeline_t *pipeline, double *values, size_t count);

/** *sum_out: the sum of the values of all ranks, none of them negative, as if added without
 *  rounding and then rounded once. So the bits depend on neither order nor rank. NaN when one is
 *  infinite or not a number. [collective] [blocks] */
DP_API DP_CHECKED dp_status_t dp_pipeline_exact_sum(dp_pipeline_t *pipeline, const double *values, size_t count,
                                                    double *sum_out);

/** Whether this rank adds parameter `param` (index in the view's param_list) of `chunk` to sums
 *  over the job. 1 on exactly one rank of all that hold it, whatever its copies: mirror, data
 *  groups, expert group, replicas of experts, the other end of a shared one. 0 on the others, and
 *  where there is no such parameter. With options.zero 1 on each rank that has a shard of it, and
 *  each adds its shard. Where experts are replicated it may change with their placement. [any] */
DP_API int32_t dp_pipeline_counts(const dp_pipeline_t *pipeline, int32_t chunk, uint32_t param);

/** The L2 norm of the whole model's gradient after a training step: the root of the sum of all
 *  squares, each parameter once (dp_pipeline_counts). DP_PARAM_ROUTER_BIAS has no gradient and is
 *  left out. Squares of DP_SHARD_BLOCK elements of a parameter are added in double in their order,
 *  those sums without rounding (dp_pipeline_exact_sum). So the bits are the same on all ranks, and
 *  for every schedule and number of ranks that give the same gradients, with options.zero or
 *  without. NaN when a gradient is infinite or not a number. Where the host does not reach the
 *  device's memory, gradients are copied 32 KiB at a time: a trainer with kernels adds squares
 *  faster on the device. [collective] [blocks] */
DP_API DP_CHECKED dp_status_t dp_pipeline_gradient_norm(dp_pipeline_t *pipeline, double *norm_out);

#ifdef __cplusplus
}
#endif
#endif
