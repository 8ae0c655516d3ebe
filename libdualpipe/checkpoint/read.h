/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * read.h: an open checkpoint, as those see it who read tensors piece by piece. */
#ifndef DP_CHECKPOINT_READ_H
#define DP_CHECKPOINT_READ_H

#include "checkpoint/header.h"

#include <dualpipe/checkpoint.h>

/* Takes bytes at .. at + bytes of a tensor. */
typedef dp_status_t (*dp__piece_fn)(void *user, size_t at, const void *data, size_t bytes);

/* Reads tensor i through `buffer` [room], and holds it against its digest: after an error the pieces were worth
 * nothing. */
dp_status_t dp__checkpoint_stream(dp_checkpoint_t *checkpoint, uint32_t i, void *buffer, size_t room, dp__piece_fn take,
                                  void *user);

/* Reads and checks the head of a file. Errors name it; dp__header_free in any case. */
dp_status_t dp__head_read(const char *path, dp__header_t *header_out);

#endif
