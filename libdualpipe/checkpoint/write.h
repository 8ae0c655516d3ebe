/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * write.h: a checkpoint on its way to the disk: each rank writes its file, one of them publishes
 * all.
 *
 * Order, so that a power cut at any moment leaves the checkpoint whole or not there: bytes of a
 * file, its fsync, its name, fsync of the folder; when all files have their names, the index the
 * same way; then the folder gets its name, and the folder above is synced. Errors name the file. */
#ifndef DP_CHECKPOINT_WRITE_H
#define DP_CHECKPOINT_WRITE_H

#include "checkpoint/header.h"

typedef struct dp__write {
    const char *folder; /* of all checkpoints; is there */
    uint64_t step;
    dp__origin_t origin;
    int32_t rank, ranks;
    dp__tensor_t *tensors; /* [n]; names, dtypes and counts; the rest is filled in */
    uint32_t n, parameters;
    const char *data;     /* of all tensors, one after the other */
    const uint32_t *stop; /* atomic; not 0: give up, with DP_ERR_ABORTED */
} dp__write_t;

dp_status_t dp__checkpoint_write(const dp__write_t *write);
/* Whether the files of all ranks have their names. */
bool dp__checkpoint_written(const char *folder, uint64_t step, int32_t ranks);
/* Of files of this origin alone, and never in the place of another run's checkpoint. */
dp_status_t dp__checkpoint_publish(const char *folder, uint64_t step, dp__origin_t origin, int32_t ranks);
/* Removes a checkpoint that did not become complete. */
dp_status_t dp__checkpoint_discard(const char *folder, uint64_t step);
/* Removes all of them: what earlier runs have left. */
dp_status_t dp__checkpoint_clean(const char *folder);
/* Removes complete ones of the run, but for the `keep` newest up to `step`. Later ones stay, and so
 * does what is not known to be the run's. */
dp_status_t dp__checkpoint_keep(const char *folder, uint64_t step, uint64_t run, int32_t keep);

#endif
