/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * pipeline.h: the engine: runs a verified program on one rank, step by step.
 *
 * A job has pp * ep * dp ranks: world rank = (d * ep + e) * pp + p. Ranks with the same (e, d) form a pipeline; ranks
 * with the same (p, d) an expert group; parameters that are not experts are summed over the ep * dp ranks with the same
 * p, experts over the dp ranks with the same (p, e). Every (e, d) has micro-batches of its own.
 *
 * Life: open (collective; builds plugins, stages, channels; every byte of the run is allocated here) - step ... step -
 * close. A step allocates nothing, opens nothing, and runs only programs that verify has accepted for the backend in
 * use.
 *
 * Bits: gradients of a stage are accumulated micro-batch by micro-batch, the first half of the step's micro-batches in
 * one accumulator, the second in another (but see dp_pipeline_options_t.one_accumulator); then half 0 + half 1; then
 * the two ends of a shared parameter; then over the data group in rank order. So every schedule, pipeline depth, comm
 * backend, ranks as threads or processes, give the same bits at the same ep and dp.
 *
 * Scale. Gradients are sums over all micro-batches of all ep * dp pipelines, of loss_scale times each loss. The default
 * of loss_scale is one through their number: gradients are those of the mean loss.
 *
 * Environment, beside that of group.h:
 *   DUALPIPE_PLUGINS=comm=NAME,device=NAME  plugins where the options name none
 *   DUALPIPE_GUARD=1  every call of a segment is checked, slowly (see below)
 *   DUALPIPE_TRACE=FILE  dp_pipeline_close of a job that is well writes the last traced steps of all ranks to FILE, as
 *                     dp_timeline_write_chrome does, from world rank 0; what rank 0 has in its environment counts
 *
 * DUALPIPE_GUARD=1 is for new segments. Calls then run one at a time, nothing overlaps. Before a call, y, dx and
 * scratch are filled with NaN, saved before F, work and backward_buffer before the first call of a
 * pass as well; behind saved, backward_buffer, work, scratch, y, dx and grads lie guard bytes.
 * After it, the step fails with rank, stage, segment, pass and micro-batch in front when
 *   - the function has changed any of these before its turn on the stream (it computed at once: see stage.h)
 *   - guard bytes have changed: which, and how far beyond the end
 *   - y or dx, when the part is done, still has the NaN of before in it: it was not overwritten, or added to
 * Steps allocate as little as ever, but guarded memory is larger. It needs a device whose memory the host reaches and
 * which runs host functions (device_cpu); on others, and where steps are captured as graphs, a warning says that
 * nothing is guarded. Some ranks may be guarded and others not. */
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
    uint32_t tokens, documents; /* of the pipeline's options */
} dp_build_context_t;
#define DP_BUILD_CONTEXT_MIN DP_SIZE_TO(dp_build_context_t, data_size)

/** Makes stage `stage` of `stages` (both counted along the path). Called during open, once for every chunk of this
 *  rank, in chunk order. The stage belongs to the trainer and outlives the pipeline. An error (with dp_fail) ends the
 *  opening on all ranks. */
typedef dp_status_t (*dp_build_stage_fn)(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                                         dp_stage_t **stage_out);

typedef struct dp_pipeline_options {
    uint32_t struct_size;
    dp_group_t *group;
    int32_t ep, dp;                /* 0: 1. The pipeline has size / (ep * dp) ranks */
    const char *method;            /* NULL: "dualpipe"; not looked at when `schedule` is given */
    int32_t microbatches;          /* M per (e, d), both directions together */
    int32_t chunks;                /* of interleaved methods; 0: default */
    const dp_schedule_t *schedule; /* a schedule of one's own; borrowed until close */
    /* How ranks talk: a plugin's name or path ("shm" means "comm_shm"); two, "shm+ofi": the first between ranks of one
     * host, the second between hosts; or "auto": all on one host comm_shm, several hosts comm_shm+comm_ofi (without it:
     * comm_mpi), with CUDA comm_cuda_ipc and comm_nccl instead, of what all ranks can load. All of them give the same
     * bits. NULL: what DUALPIPE_PLUGINS names, else "auto" */
    const char *comm;
    const char *device;                           /* NULL: DUALPIPE_PLUGINS, else "device_cpu" */
    const struct dp_device_config *device_config; /* NULL: defaults. Borrowed until open returns, as all names above */
    size_t boundary_bytes;                        /* tensor between stages, for one micro-batch */
    dp_dtype_t dtype;    /* of parameters: DP_F32, DP_F64, DP_BF16; gradients are kept, summed over halves, mirrors
                                    and the data group and handed out in dp_dtype_accumulator(dtype) */
    int32_t slots;       /* K per channel; 0: 2 */
    size_t inline_bytes; /* messages up to this size are sent from the compute lane; 0: 16 KiB */
    int32_t trace_steps; /* keep the spans of the last n steps for dp_pipeline_timeline; 0: 1, at most 65536 */
    dp_build_stage_fn build;
    void *user;
    /** NULL or called once by dp_pipeline_close (and by a dp_pipeline_open that fails) after `build` was called: no
     *  work of ours runs any more, comms and device are still open. The place to close the plugins' instances and to
     *  release the trainer's own device memory. Not called when a kernel does not return: what that may be using
     *  stays. */
    void (*unbuild)(void *user);
    /** 1: steps are replays of one captured graph each: one for training, one for forward_only. The first step runs as
     *  always, then the first of a kind is captured (which allocates); another input, target or output pointer or loss
     *  scale than before captures anew. Needs DP_DEVICE_CAP_GRAPH and DP_COMM_CAP_CAPTURE, and segments that keep to
     *  their [capture] mark: dp_segment_call_t.step is that of the capture. Channels get as many slots as divide their
     *  messages. Experimental with several ranks, of which a warning speaks at open: a wait for another rank is then a
     *  kernel that spins, on a hardware queue of the driver's choice. */
    int32_t graph;
    /** NULL, or a plugin with dp.profiler/1 (profiler.h; "hook_cupti"): what the device works on goes by the name of
     *  its operation in external tools, and in dp_pipeline_timeline() the span of an operation with kernels lasts from
     *  the start of its first to the end of its last one, not from its turn on the stream to the next. Steps replayed
     *  as graphs keep the times of turns. */
    const char *profiler;
    /** 1: the spans of segments say how long their stream's thread had a core (dp_span_t.busy_ns), at the price of two
     *  host functions a segment. For ranks that share cores. Without effect on devices that run no host functions. */
    int32_t cpu_times;
    /** NULL, or called by dp_pipeline_recover (and by an open during which a rank is replaced) before it calls build
     *  again for every chunk: no work of ours runs, nothing is on its way between ranks. The place to close what build
     *  has opened on the device and the expert group; parameters and what the optimizer keeps stay, the stages until
     *  recover has returned. */
    void (*retire)(void *user);
    /** 1: the step fails with DP_ERR_NUMERIC at the first output, loss or gradient that is NaN or infinite; the message
     *  names rank, step, stage, micro-batch, segment and the parameter whose gradient or value it is in. Each part of a
     *  pass then reads what it has made once more. Without effect, but for a warning, on devices that keep their memory
     *  from the host, and where steps are captured as graphs. All that crosses a boundary is taken for `dtype`: not for
     *  stages that send tensors of another one (dp_boundary_tensor_t). */
    int32_t check_finite;
    /** 1: ZeRO-1 (arXiv 1910.02054): of the ranks that hold a parameter (mirrors and data groups), each sums the
     *  gradient of its own shard, keeps what the optimizer has for that and updates it; dp_chunk_view_t.shard_list says
     *  which, and dp_pipeline_gather gives it to the others. So the optimizer's memory falls by the number of holders:
     *  2 * ep * dp on placements with mirrors, ep * dp on others, without ep for experts. All bits are those of 0.
     *  Whole stay a router's bias (its update needs all counts), parameters of a part with `reduce` or `placement`
     *  (replicas of experts), and those whose place or size in bytes is no multiple of 8. What a rank has of the
     *  optimizer nobody else has: after a death dp_pipeline_recover says DP_ERR_LOST. */
    int32_t zero;
    /** Micro-batches of different length. tokens: most that one has, of which boundary_bytes is a multiple; a step may
     *  then say how many each has (dp_step_t.tokens), and messages are as much shorter; memory and slots stay those of
     *  the longest. 0: lengths are not known here. documents: most that a micro-batch has; 0: steps have none. Not
     *  together with `graph`: DP_ERR_UNSUPPORTED. */
    uint32_t tokens, documents;
    /** 1: a chunk whose micro-batches are of both halves has one accumulator for them, where it has two: the memory of
     *  a copy of its parameters in dp_dtype_accumulator(dtype) less. Gradients are then summed micro-batch by
     *  micro-batch through the whole step: every schedule of one path (1f1b, zb1p, dualpipev, interleaved, ...) still
     *  gives the same bits as every other, but not those of two paths (dualpipe), on which this has no effect. */
    int32_t one_accumulator;
} dp_pipeline_options_t;
#define DP_PIPELINE_OPTIONS_MIN DP_SIZE_TO(dp_pipeline_options_t, one_accumulator)

/** Opens plugins, agrees on settings, builds stages, lowers and verifies the program, allocates and connects
 *  everything.
 *  Errors name the plugin, rank or field at fault. [collective] [blocks] */
DP_API dp_status_t dp_pipeline_open(const dp_pipeline_options_t *options, dp_pipeline_t **pipeline_out);
/** [collective] [blocks]; at once when the job is aborted. NULL is allowed. When a kernel does not return after a
 *  failure, what it may be using is left behind, the group included, with a warning: the process should end. */
DP_API void dp_pipeline_close(dp_pipeline_t *pipeline);

/** How a packed micro-batch divides into documents: number i is tokens ends[i-1] (of the first: 0) to ends[i] - 1.
 *  Frozen: never grows. */
typedef struct dp_documents {
    const uint32_t *ends; /* [count] rising, from 1 at least; the last one is the micro-batch's tokens */
    uint32_t count;       /* 0: it is not divided */
} dp_documents_t;

/** Data of one step. Arrays are indexed by micro-batch of the step. inputs has an entry for each that enters on this
 *  rank, targets one for each that ends here (see dp_pipeline_ends); without any the array may be NULL. A forward_only
 *  step may leave out targets; the last stage's segments then get NULL. Borrowed until the step returns. */
typedef struct dp_step {
    uint32_t struct_size;
    const void *const *inputs; /* [M] read where this rank holds a first stage */
    /* [M] read where this rank holds a last stage */
    const void *const *targets;
    void *const *outputs; /* [M] or NULL: where last stages write their outputs */
    double loss_scale;    /* 0: 1 / (M * ep * dp), so that gradients are those of the mean loss of the whole job
                             (with `tokens`: of losses that weigh as said there) */
    int32_t forward_only; /* 1: no backward; gradients are left alone */
    double loss;          /* result: sum over all micro-batches of this (e, d) of the losses, each with its weight
                             (see tokens), on every rank */
    double *losses;       /* [M] or NULL: result, of each micro-batch, on every rank */
    double aux_loss;      /* result: sum over all micro-batches of this (e, d) and all parts of what segments added to
                             aux_loss, on every rank; the same bits for every schedule and number of ranks */
    /** Gradients of several steps for one update: this step is number `round` (0, 1, ...) of `rounds`. The first zeroes
     *  the gradients, the others add to them, and the last one sums them over halves, mirrors, shared parameters and
     *  data groups: until then they are not to be looked at. The rounds follow each other, on all ranks alike;
     *  forward_only steps may lie between them, and round 0 always begins anew. Losses are each step's own; the default
     *  of loss_scale is divided by rounds. rounds 0: 1 */
    int32_t round, rounds;
    /** With dp_pipeline_options_t.tokens. tokens: [M] or NULL, of each micro-batch, 1 to options.tokens; NULL: all have
     *  as many, or what their documents say. documents: [M] or NULL. Both on all ranks of the pipeline alike, on which
     *  a message of another size is DP_ERR_PROTOCOL; pipelines of other (e, d) have their own.
     *  A micro-batch weighs tokens[m] / options.tokens: its loss is the mean over its own tokens, dp_step_t.loss adds
     *  losses so weighted, and dp_segment_call_t.loss_scale is the step's times the weight. So each token counts alike,
     *  and with loss_scale = options.tokens / (tokens of the whole job) gradients are those of the mean over all
     *  tokens. `losses` and aux_loss are as the segments gave them. */
    const uint32_t *tokens;
    const dp_documents_t *documents;
} dp_step_t;
#define DP_STEP_MIN DP_SIZE_TO(dp_step_t, documents)

/**
 * Runs one step: zeroes the gradients, all micro-batches forward and backward, sums gradients of both copies of each
 * stage and over the data groups (see dp_step_t.round). Losses and gradients are final when it returns. Every member
 * of the job calls it. Errors: the first cause, named; afterwards only dp_pipeline_close is legal. [collective]
 * [blocks]
 */
DP_API dp_status_t dp_pipeline_step(dp_pipeline_t *pipeline, dp_step_t *step);

/** What this rank updates of one parameter. Frozen: never grows; `reserved` is zero. */
typedef struct dp_shard {
    uint32_t param; /* index in the view's param_list */
    uint32_t reserved;
    size_t first, count; /* elements first .. first + count - 1 of the parameter */
    size_t at;           /* the first one's place in what the optimizer keeps, of shard_count elements */
} dp_shard_t;

/** Shards begin and end where a parameter does, or behind a multiple of so many of its elements. */
#define DP_SHARD_PIECE 1024

/** One chunk of this rank. */
typedef struct dp_chunk_view {
    uint32_t struct_size; /* set by the caller */
    int32_t chunk, path, stage, stages;
    dp_stage_t *stage_object;
    void *params; /* device memory, param_count elements of dtype; the trainer fills and updates it between steps */
    /* the summed gradient after a step: the same elements, of dp_dtype_accumulator(dtype). With options.zero those of
     * our shards; the others hold anything */
    const void *grads;
    size_t param_count;
    uint32_t nparams;
    const dp_param_t *param_list;
    /* For sums over the job (dp_pipeline_sum): one rank of all that hold a parameter has 1. `primary` is of parameters
       that are not sharded: 0 in the mirror's copy, in all data groups but one, on all ranks but one of the expert
       group. `primary_experts` is of sharded ones; each rank of an expert group has its own. Where experts are
       replicated, such a sum counts an expert once for each replica, and a shared parameter (dp_param_t.shared)
       once for each of its two ends; dp_pipeline_counts counts both once. */
    int32_t primary, primary_experts;
    /* what this rank updates, at most one shard of each parameter, in the order of the list. Without
     * options.zero all parameters, each with at = its offset, and shard_count = param_count. An optimizer that keeps
     * shard_count elements and goes by this list does not ask which it is */
    uint32_t nshards;
    const dp_shard_t *shard_list;
    size_t shard_count;
} dp_chunk_view_t;
#define DP_CHUNK_VIEW_MIN DP_SIZE_TO(dp_chunk_view_t, shard_count)
DP_API int32_t dp_pipeline_chunks(const dp_pipeline_t *pipeline);
/** DP_ERR_INVALID: no such chunk, or view_out->struct_size is not set. The view stays as it is until the pipeline is
 *  closed (after dp_pipeline_swap_comm: stage_object and param_list are others). */
DP_API dp_status_t dp_pipeline_chunk(const dp_pipeline_t *pipeline, int32_t chunk, dp_chunk_view_t *view_out);

/** Which micro-batches of a step enter (inputs) or end (targets, losses) on this rank: first_out[M], last_out[M] are
 *  set to 0 or 1; either may be NULL. [any] */
DP_API void dp_pipeline_ends(const dp_pipeline_t *pipeline, uint8_t *first_out, uint8_t *last_out);

/** Behind the update, with options.zero: gives the shards that this rank has updated to all that hold them, and gets
 *  theirs. The update is done, on whatever stream, when it is called. It is put on the reduce lane, and a step waits
 *  for the parameters of a stage before it first uses them; so do the pipeline's other calls. The trainer itself looks
 *  at parameters after dp_pipeline_step or dp_pipeline_sum, which return behind it. A step that comes behind gradients
 *  without it is refused: DP_ERR_INVALID. In timelines each chunk's is a span of the step that comes next, of kind
 *  DP_SPAN_REDUCE and named "gather". Without options.zero nothing is done, and it succeeds. [collective] */
DP_API dp_status_t dp_pipeline_gather(dp_pipeline_t *pipeline);

/** Sums host doubles over all ranks of the job, in rank order. Same bits everywhere. Add what belongs to parameters
 *  where dp_pipeline_counts says so. [collective] [blocks] */
DP_API dp_status_t dp_pipeline_sum(dp_pipeline_t *pipeline, double *values, size_t count);

/** *sum_out: the sum of the values of all ranks, none of them negative, as if added without rounding and then rounded
 *  once: the same bits whatever their order, and whoever has which. NaN when one is infinite or not a number.
 *  [collective] [blocks] */
DP_API dp_status_t dp_pipeline_exact_sum(dp_pipeline_t *pipeline, const double *values, size_t count, double *sum_out);

/** Whether this rank adds parameter `param` (index in the view's param_list) of `chunk` to sums over the job: 1 on
 *  exactly one rank of all that hold it, whatever its copies (mirror, data groups, expert group, replicas of experts,
 *  the other end of a shared one), 0 on the others and where there is no such parameter. With options.zero 1 on each
 *  that has a shard of it, and each adds its shard. Where experts are replicated it may change with their placement.
 *  [any] */
DP_API int32_t dp_pipeline_counts(const dp_pipeline_t *pipeline, int32_t chunk, uint32_t param);

/** The L2 norm of the whole model's gradient after a training step: the root of the sum of all squares, each parameter
 *  once (dp_pipeline_counts); DP_PARAM_ROUTER_BIAS, which has no gradient, left out. Squares of DP_SHARD_PIECE elements
 *  of a parameter are added in double in their order, those sums without any rounding (dp_pipeline_exact_sum): the same
 *  bits on all ranks, for every schedule and every number of ranks that give the same gradients, with options.zero or
 *  without. NaN when a gradient is infinite or not a number. Where the
 *  host does not reach the device's memory, gradients are copied in pieces of 32 KiB: a trainer with kernels adds
 *  squares faster on the device. [collective] [blocks] */
DP_API dp_status_t dp_pipeline_gradient_norm(dp_pipeline_t *pipeline, double *norm_out);

#ifdef __cplusplus
}
#endif
#endif
