/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * model.h: a program prepared for its run: checked ids, durations, numbered messages. */
#ifndef DP_SIMULATE_MODEL_H
#define DP_SIMULATE_MODEL_H

#include "simulate/costs.h"

typedef struct dp__model_chunk {
    double scale; /* of its costs */
    double share; /* of a rank's stage inputs */
    int32_t stage;
    /* chunk of the same rank that is before or after it on the path, -1: none */
    int16_t prev_here, next_here;
} dp__model_chunk_t;

typedef struct dp__model {
    const dp_program_t *program;
    dp_costs_t costs;
    int32_t microbatches;      /* of a path */
    dp__model_chunk_t *chunks; /* [ranks * chunks] */
    /* [nchannels]: channels from one rank to the same other share a link */
    int32_t *link;
    dp__message_time_t *message_time; /* [nchannels] */
    /* [nchannels + 1]: message i of channel c is first_message[c] + i */
    int64_t *first_message;
} dp__model_t;

/* Every id is inside its bounds afterwards. Free with dp__model_clear, also after a failure. */
dp_status_t dp__model_make(const dp_program_t *program, const dp_costs_t *costs, dp__model_t *model);
void dp__model_clear(dp__model_t *model);

static inline const dp__model_chunk_t *dp__model_chunk(const dp__model_t *model, int32_t rank, int32_t chunk)
{
    return &model->chunks[(int64_t)rank * model->program->chunks + chunk];
}

#endif
