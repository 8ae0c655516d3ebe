/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * state.h: what outlives a step: the trainer's own state, checkpoints, recovery. */
#ifndef DP_ENGINE_STATE_H
#define DP_ENGINE_STATE_H

#include <dualpipe/run.h>
#include <stdbool.h>

/* state.c */
static inline size_t dp__state_bytes(const dp_state_t *state)
{
    return state->count * dp_dtype_bytes(state->dtype);
}

void dp__states_free(dp_pipeline_t *p);

/* save.c: nothing without dp_pipeline_save_open. copied: returns when the trainer may change what
 * is being saved. */
dp_status_t dp__save_copied(dp_pipeline_t *p);
/* unlock: another job may save into the folder. */
void dp__save_close(dp_pipeline_t *p, bool unlock);

/* recover.c */
typedef struct dp__recovery {
    uint32_t holds;  /* 0: nothing yet; n + 1: the state behind n steps that count */
    uint32_t step;   /* run.step at the begin of the step that does not count yet */
    int reformed;    /* the group has come together again, the pipeline is not open yet */
    bool wrong;      /* bits.c: we hold nothing, because our memory has changed */
    int32_t corrupt; /* checks of bits that found something, since the latest that did not */
    /* shards: our parameters are not those of `holds` before all have given theirs */
    bool torn;
} dp__recovery_t;

/* state.c: what was registered, in that order. */
typedef struct dp__states {
    int32_t n;
    dp_state_t *at; /* names are copies; counts are filled in */
} dp__states_t;

typedef struct dp__saving dp__saving_t; /* saving.h */

/* bits.c: digest of memory of the device, or of the host's. Where the host does not reach the
 * device's it comes in blocks. */
dp_status_t dp__digest(dp_pipeline_t *p, const char *memory, size_t bytes, bool host, uint64_t *digest_out);
/* With options.check_bits: whether copies are alike, before a step counts or is saved. Collective.
 * DP_ERR_CORRUPT: they are not, and the job has ended. */
dp_status_t dp__bits_open(dp_pipeline_t *p);
dp_status_t dp__bits_check_step(dp_pipeline_t *p);
dp_status_t dp__bits_check_save(dp_pipeline_t *p, uint64_t steps);

/* move.c: rank `to` gets from rank `from` of the job what `what` says. For these two ranks; others
 * return at once. */
/* of stages, parameters among it; of pipeline and job */
enum { DP__MOVE_CHUNKS = 1, DP__MOVE_SHARED = 2 };

dp_status_t dp__move_state(dp_pipeline_t *p, int32_t from, int32_t to, unsigned what);
/* All that a rank holds, in that order. chunk: whose it is, -1: of pipeline and job. */
typedef dp_status_t (*dp__visit_state_fn)(void *user, int32_t chunk, void *memory, size_t bytes);
dp_status_t dp__walk_state(const dp_pipeline_t *p, unsigned what, dp__visit_state_fn visit, void *user);

/* buddy.c: nothing where it is not used. */
enum { DP__COPIES = 2 };

typedef struct dp__buddy {
    struct dp__buddy_head *head; /* mapped; NULL: not used */
    size_t bytes;                /* of a copy, as it lies there */
    dp_stream_t *stream;         /* NULL: nothing was copied in this epoch */
    uint32_t holds;              /* what was copied latest, or is being copied; 0: nothing */
    uint64_t stamp;              /* is copied last */
    int64_t begin_ns, end_ns;    /* of the copy on its stream, for reports */
} dp__buddy_t;

/* Whether a rank's copy counts where it dies: the same on all ranks. */
bool dp__buddy_is_on(const dp_pipeline_t *p);
dp_status_t dp__buddy_open(dp_pipeline_t *p);
/* begin: before a training step. finish: before its commit, which waits for it. */
dp_status_t dp__buddy_begin(dp_pipeline_t *p);
dp_status_t dp__buddy_finish(dp_pipeline_t *p);
/* What is complete there: holds and the number of the next step, `holds` 0: nothing. */
void dp__buddy_list(const dp_pipeline_t *p, uint32_t holds_out[DP__COPIES], uint32_t step_out[DP__COPIES]);
/* All ranks go on with `holds`; restores: we do not have it ourselves. */
dp_status_t dp__buddy_settle(dp_pipeline_t *p, uint32_t holds, bool restores);
/* What is there is unusable. */
void dp__buddy_forget(dp_pipeline_t *p);
/* rest: before what is being copied goes. */
void dp__buddy_rest(dp_pipeline_t *p);
void dp__buddy_close(dp_pipeline_t *p);

#endif
