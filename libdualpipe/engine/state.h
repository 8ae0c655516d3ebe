/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * state.h: what outlives a step: the trainer's own state, checkpoints, recovery. */
#ifndef DP_ENGINE_STATE_H
#define DP_ENGINE_STATE_H

#include <dualpipe/run.h>

/* state.c */
static inline size_t dp__state_bytes(const dp_state_t *state)
{
    return state->count * dp_dtype_bytes(state->dtype);
}

void dp__states_free(dp_pipeline_t *p);

/* save.c: nothing without dp_pipeline_save_open. copied: returns when the trainer may change what
 * is being saved. */
dp_status_t dp__save_copied(dp_pipeline_t *p);
void dp__save_close(dp_pipeline_t *p);
/* Another job may save into the folder. */
void dp__save_unlock(dp_pipeline_t *p);

/* recover.c */
typedef struct dp__recovery {
    uint32_t holds; /* 0: nothing yet; n + 1: the state behind n steps that count */
    uint32_t step;  /* run.step at the begin of the step that does not count yet */
    int reformed;   /* the group has come together again, the pipeline is not open yet */
} dp__recovery_t;

/* state.c: what was registered, in that order. */
typedef struct dp__states {
    int32_t n;
    dp_state_t *at; /* names are copies; counts are filled in */
} dp__states_t;

typedef struct dp__saving dp__saving_t; /* saving.h */

/* move.c: rank `to` gets from rank `from` of the job what `what` says. For these two ranks; others
 * return at once. */
/* of stages, parameters among it; of pipeline and job */
enum { DP__MOVE_CHUNKS = 1, DP__MOVE_SHARED = 2 };

dp_status_t dp__move_state(dp_pipeline_t *p, int32_t from, int32_t to, unsigned what);

#endif
