/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * state.h: what a run is made of besides its parameters, by name: state of the optimizer, position in the data, random
 * numbers, the step. It is registered once, after the pipeline was opened; what keeps a run alive then knows all that
 * there is to keep.
 *
 *     for each chunk:  view from dp_pipeline_chunk
 *                      register {.name = "adam.mean", .scope = DP_STATE_PARAMS, .chunk = c, .memory = mean[c]}
 *     once:            register {.name = "step", .scope = DP_STATE_JOB, .host = 1, .memory = &step, .dtype = DP_I64,
 *                                .count = 1}
 *
 * Parameters are always part of it and are not registered; gradients never are. */
#ifndef DUALPIPE_STATE_H
#define DUALPIPE_STATE_H

#include <dualpipe/pipeline.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Whose a state is, and so which ranks have the same bytes of it. */
typedef enum dp_state_scope {
    DP_STATE_PARAMS = 0, /* goes with the parameters of a chunk, element by element: memory has param_count elements at
                             the places of the parameters. Where experts are replicated: with their replicas */
    DP_STATE_STAGE = 1,  /* of the stage of a chunk: the same in its mirror, in all data groups and, unless `sharded`,
                             in the expert group */
    DP_STATE_PIPELINE = 2, /* of a pipeline (e, d): the same on its ranks; other pipelines have their own */
    DP_STATE_JOB = 3       /* the same on every rank */
} dp_state_scope_t;

typedef struct dp_state {
    uint32_t struct_size;
    /* "adam.mean", "data.position": a letter, then letters, digits and . _ -, at most 127 in all; unlike all others of
       this rank (PARAMS: of its chunk). Copied */
    const char *name;
    dp_state_scope_t scope;
    int32_t chunk;    /* PARAMS, STAGE: of this rank */
    int32_t sharded;  /* STAGE, 1: each rank of the expert group has its own, by a name of its own */
    int32_t host;     /* 1: memory of the host; 0: of the pipeline's device */
    void *memory;     /* borrowed until the pipeline is closed; aligned for its elements */
    dp_dtype_t dtype; /* of the elements; DP_U8: any bytes */
    size_t count;     /* elements; PARAMS: 0, the chunk has them */
} dp_state_t;
#define DP_STATE_MIN DP_SIZE_TO(dp_state_t, count)

/** Registers a state. Between two steps of the pipeline, on all ranks the same states in the same order (those of
 *  chunks: for all chunks of the rank). DP_ERR_INVALID names the member that cannot be, or the state of that name that
 *  is there already. [main] */
DP_API dp_status_t dp_pipeline_register_state(dp_pipeline_t *pipeline, const dp_state_t *state);

#ifdef __cplusplus
}
#endif
#endif
