/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * state.h: what a run is made of besides its parameters, by name; and checkpoints of it.
 *
 * State is what the optimizer keeps, the position in the data, random numbers, the step. It is
 * registered once, after the pipeline was opened. What keeps a run alive then knows all that there
 * is to keep.
 *
 *     for each chunk:  view from dp_pipeline_chunk register {.name = "adam.mean", .scope =
 *                      DP_STATE_SHARDS, .chunk = c, .memory = mean[c]}
 *     once:            register {.name = "step", .scope = DP_STATE_JOB, .host = 1, .memory = &step,
 *                                .dtype = DP_I64, .count = 1}
 *
 * Parameters are always part of it and are not registered; gradients never are.
 *
 *     once:            dp_pipeline_save_open(pipeline, {.folder = "checkpoints", .keep = 2})
 *     to go on:        dp_pipeline_load(pipeline, "checkpoints", &step)
 *     now and then:    dp_pipeline_save(pipeline, step) between two steps; the next step runs
 *                      beside it
 *
 * A checkpoint (checkpoint.h says how it looks on the disk) can be loaded by another number of
 * pipeline ranks, with another ep, dp, schedule or comm, and with another
 * dp_pipeline_options_t.zero: names do not depend on them. All bits that went in come out. The run
 * goes on with the bits of one that was never interrupted, as far as its sums have the same order.
 * At the same ep and dp they always have (pipeline.h). At another ep or dp the first step's losses
 * are the same; later ones differ by what another order of adding gradients leaves.
 *
 * Since 0.2: DP_STATE_SHARDS. */
#ifndef DUALPIPE_STATE_H
#define DUALPIPE_STATE_H

#include <dualpipe/pipeline.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Whose a state is, and so which ranks have the same bytes of it. */
typedef enum dp_state_scope {
    /* goes with the parameters of a chunk, element by element: memory has
     * dp_chunk_view_t.param_count elements, gaps included, at the places of the parameters. Where
     * experts are replicated: with their replicas */
    DP_STATE_PARAMS = 0,
    /* of the stage of a chunk: the same in its mirror, in all data groups and, unless `sharded`, in
     * the expert group */
    DP_STATE_STAGE = 1,
    /* of a pipeline (e, d): the same on its ranks; other pipelines have their own */
    DP_STATE_PIPELINE = 2,
    DP_STATE_JOB = 3, /* the same on every rank */
    /* what the optimizer keeps: as PARAMS, but of this rank's shards. memory has
     * dp_chunk_view_t.shard_count elements at the places of shard_list. The same as PARAMS without
     * dp_pipeline_options_t.zero */
    DP_STATE_SHARDS = 4
} dp_state_scope_t;

typedef struct dp_state {
    uint32_t struct_size;
    /* "adam.mean", "data.position": a letter, then letters, digits and . _ -, at most 127 in all.
     * Unlike all others of this rank (PARAMS, SHARDS: of its chunk). Copied */
    const char *name;
    dp_state_scope_t scope;
    int32_t chunk; /* PARAMS, SHARDS, STAGE: of this rank */
    /* STAGE, 1: each rank of the expert group has its own, under another name */
    int32_t sharded;
    int32_t host;     /* 1: memory of the host; 0: of the pipeline's device */
    void *memory;     /* borrowed until the pipeline is closed; aligned for its elements */
    dp_dtype_t dtype; /* of the elements; DP_U8: any bytes */
    size_t count;     /* elements; PARAMS, SHARDS: 0, the chunk has them */
    /* 1: a checkpoint may be without it, or have it in another size: dp_pipeline_load then leaves
     * it alone */
    int32_t optional;
} dp_state_t;
enum { DP_STATE_MIN = DP_SIZE_TO(dp_state_t, optional) };

/** Registers a state, between two steps of the pipeline, before dp_pipeline_recover where a buddy
 *  has copies (dp_pipeline_options_t.buddy). All ranks register the same states in the same order,
 *  those of chunks for all chunks of the rank. DP_ERR_INVALID names the member that cannot be, or
 *  the state of that name that is there already. [main] */
DP_API DP_CHECKED dp_status_t dp_pipeline_register_state(dp_pipeline_t *pipeline, const dp_state_t *state);

typedef struct dp_save_options {
    uint32_t struct_size;
    /* made if it is not there, in one that is; all ranks must see the same. Copied */
    const char *folder;
    /* complete checkpoints to leave, the latest one among them; 0: all. Later steps are left alone
     * */
    int32_t keep;
} dp_save_options_t;
enum { DP_SAVE_OPTIONS_MIN = DP_SIZE_TO(dp_save_options_t, keep) };

/** Gets ready to save, once, after everything was registered: host memory for this rank's part of a
 *  checkpoint, and the thread that writes it. The folder is the job's until the last of its
 *  pipelines is closed or its process ends: DP_ERR_INVALID names another job that has it. What
 *  earlier runs left unfinished there is removed. Each tensor is saved by one of the ranks that
 *  hold it, so that all write about the same.
 *  A folder that cannot be used is an error on all ranks; the pipeline is then as it was.
 *  [collective] [blocks] */
DP_API DP_CHECKED dp_status_t dp_pipeline_save_open(dp_pipeline_t *pipeline, const dp_save_options_t *options);

/**
 * Saves parameters and registered state, as they are after `step` steps. What lies in host memory
 * has been copied when it returns. What is the device's is copied beside the next step of the
 * pipeline, which waits for that before it returns. Until then, or until dp_pipeline_save_wait, the
 * trainer changes none of it. Then a thread writes it. DP_OK: in progress. DP_PENDING: nothing was
 * saved, because an earlier save is still being written; a warning says so. A save that fails (the
 * disk is full) costs nothing but itself: a warning tells of it, complete checkpoints stay, and the
 * next save tries again. Other errors: the job has failed. [collective] [blocks]
 */
DP_API DP_CHECKED dp_status_t dp_pipeline_save(dp_pipeline_t *pipeline, uint64_t step);

/** Waits until the latest save is complete, and so on the disk. All ranks get the same result:
 *  DP_OK (also when there was none), or why it failed, mostly DP_ERR_IO. The pipeline works even
 *  so, unless the job has failed. dp_pipeline_close waits as well. [collective] [blocks] */
DP_API DP_CHECKED dp_status_t dp_pipeline_save_wait(dp_pipeline_t *pipeline);

/**
 * Loads the newest checkpoint in `folder` that is whole. One that is broken is passed over with a
 * warning that names file and tensor. Everything registered must be in it, in the same dtype and
 * size, and every parameter of it in the model: DP_ERR_MISMATCH names what is not. *step_out: after
 * how many steps it was saved. DP_PENDING: there is no checkpoint, nothing was changed. After an
 * error the state may be a mixture, and the pipeline has failed. Between two steps, not while a
 * save is in progress. [collective] [blocks]
 */
DP_API DP_CHECKED dp_status_t dp_pipeline_load(dp_pipeline_t *pipeline, const char *folder, uint64_t *step_out);

#ifdef __cplusplus
}
#endif
#endif
