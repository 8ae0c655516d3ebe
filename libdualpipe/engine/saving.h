/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * saving.h: what the files that save and load share: the tensors of a rank, a snapshot of those
 * that it saves. */
#ifndef DP_ENGINE_SAVING_H
#define DP_ENGINE_SAVING_H

#include "checkpoint/files.h"
#include "checkpoint/write.h"
#include "engine/engine.h"

#include <pthread.h>

/* Something that this rank keeps, as checkpoints call it. */
typedef struct dp__kept {
    const char *name;
    dp_dtype_t dtype;
    size_t count;
    /* a shard: elements from first on of a tensor of `whole`; else 0: all of it */
    size_t first, whole;
    char *memory;
    bool host;      /* memory of the host */
    bool parameter; /* not registered state */
    bool mine;      /* of the ranks that hold it, this one saves it */
    bool optional;
} dp__kept_t;

typedef struct dp__kept_list {
    dp__kept_t *at; /* parameters first */
    uint32_t n;
    char *names;
} dp__kept_list_t;

/* tensors.c: under the placements of experts in use. */
dp_status_t dp__kept_list(const dp_pipeline_t *p, dp__kept_list_t *list_out);
void dp__kept_list_free(dp__kept_list_t *list);

static inline size_t dp__kept_bytes(const dp__kept_t *kept)
{
    return kept->count * dp_dtype_bytes(kept->dtype);
}

/* snapshot.c: a copy of all that is `mine`, in host memory. */
typedef struct dp__snapshot {
    dp__kept_list_t list;  /* names of tensors point into it */
    dp__tensor_t *tensors; /* [n] */
    uint32_t n, parameters;
    char *memory;
    size_t room;
    dp_stream_t *stream;
    bool copying; /* copies are on the stream, or their end was not waited for yet */
} dp__snapshot_t;

/* Takes the memory that a snapshot needs now. */
dp_status_t dp__snapshot_open(dp_pipeline_t *p, dp__snapshot_t *snapshot);
dp_status_t dp__snapshot_begin(dp_pipeline_t *p, dp__snapshot_t *snapshot);
dp_status_t dp__snapshot_finish(dp_pipeline_t *p, dp__snapshot_t *snapshot);
void dp__snapshot_close(dp_pipeline_t *p, dp__snapshot_t *snapshot);

/* What the writing thread is at. */
typedef enum dp__saving_phase {
    DP__SAVED = 0,     /* nothing was ordered, or what was is written */
    DP__WRITING = 1,   /* this rank's own file */
    DP__GATHERING = 2, /* rank 0: the others' files are waited for */
    DP__UNSAVED = 3    /* it failed: status, why */
} dp__saving_phase_t;

struct dp__saving {
    char folder[DP__PATH_BYTES];
    char who[256];    /* what this rank writes into the folder's lock */
    int *folder_lock; /* the pipeline's */
    dp__origin_t origin;
    int32_t keep, rank, ranks;
    uint64_t step; /* of the latest save */
    dp__snapshot_t snapshot;
    pthread_t thread;
    dp_signal_t orders, answers; /* counts: snapshots to be written; written or failed */
    uint32_t ordered;
    uint32_t stop;      /* atomic; the thread ends as soon as it can */
    uint32_t give_up;   /* atomic; rank 0: the other files will not come */
    uint32_t phase;     /* atomic; dp__saving_phase_t */
    bool settled;       /* all ranks know what the latest save came to: status, why */
    dp_status_t status; /* the thread's until it has answered */
    char why[512];
};

#endif
