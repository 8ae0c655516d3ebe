/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * read.h: an open checkpoint, for those who read tensors block by block. */
#ifndef DP_CHECKPOINT_READ_H
#define DP_CHECKPOINT_READ_H

#include "checkpoint/files.h"
#include "checkpoint/header.h"
#include "checkpoint/index.h"

#include <dualpipe/checkpoint.h>

typedef struct dp__place {
    const dp__tensor_t *tensor;
    uint32_t file;
    int32_t parameter;
} dp__place_t;

struct dp_checkpoint {
    char folder[DP__PATH_BYTES];
    dp__index_t index;
    dp__header_t *headers; /* [index.nheads] */
    dp__place_t *places;   /* [count] by name */
    uint32_t count;
    int fd; /* of the file read last, -1: none */
    uint32_t open_file;
};

/* By name, for qsort and bsearch. */
int dp__places_by_name(const void *a, const void *b);

/* Opens a file that can be read without waiting, and says its size. */
dp_status_t dp__file_open(const char *path, int *fd_out, uint64_t *bytes_out);
/* The last error again, with the file's name in front. */
dp_status_t dp__blame_file(dp_status_t status, const char *path);

/* Takes bytes at .. at + bytes of a tensor. */
typedef dp_status_t (*dp__piece_fn)(void *user, size_t at, const void *data, size_t bytes);

/* Reads tensor i through `buffer` [room] and checks its digest; after an error it is undefined. */
dp_status_t dp__checkpoint_stream(dp_checkpoint_t *checkpoint, uint32_t i, void *buffer, size_t room, dp__piece_fn take,
                                  void *user);

/* dp_checkpoint_newest; *hollow_out: a newer folder called like a checkpoint without an index, 0:
 * none. */
dp_status_t dp__checkpoint_newest(const char *folder, uint64_t below, uint64_t *step_out, uint64_t *hollow_out);

/* Reads and checks the index of a checkpoint's folder. Errors name it; dp__index_free in any
 * case. */
dp_status_t dp__index_read(const char *folder, dp__index_t *index_out);

/* Reads and checks the head of a file. Errors name it; dp__header_free in any case. */
dp_status_t dp__head_read(const char *path, dp__header_t *header_out);

#endif
