/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lock.h: one job at a time saves into a folder. Its ranks share a lock (flock) of the file ".lock"
 * there, so that it stays while any of them lives: rank 0 may die and be replaced. With the last of
 * these processes the kernel lets go of it. The text names rank 0. */
#ifndef DP_CHECKPOINT_LOCK_H
#define DP_CHECKPOINT_LOCK_H

#include <dualpipe/status.h>

#include <stdbool.h>

/* Of rank 0. who: the text. held: ranks of this job hold the lock, and so nobody else does.
 * DP_ERR_INVALID names who else does; DP_ERR_IO: nothing can be written to the folder. Where a file
 * system has no locks a warning says so. *fd_out: a descriptor, which lets go
 * when it is closed. */
dp_status_t dp__lock_take(const char *folder, const char *who, bool held, int *fd_out);
/* Of the others, behind rank 0's. */
dp_status_t dp__lock_share(const char *folder, int *fd_out);
/* Whether the descriptor (-1: none) is that of the folder's file: who removes the folder removes
 * the lock. */
bool dp__lock_is_there(const char *folder, int fd);
/* Lets go; the last rank removes the file. fd -1: nothing to do. */
void dp__lock_release(const char *folder, int fd);

#endif
