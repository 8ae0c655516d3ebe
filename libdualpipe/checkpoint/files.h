/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * files.h: files and folders that outlive a power cut: what is written is synced before it gets its
 * name, and the name before anyone is told. Errors are DP_ERR_IO and name the file. */
#ifndef DP_CHECKPOINT_FILES_H
#define DP_CHECKPOINT_FILES_H

#include <dualpipe/status.h>

#include <stdbool.h>

enum { DP__PATH_BYTES = 4096 };

/* DP_ERR_IO with "<path>: <what errno says>". */
dp_status_t dp__io_fail(const char *path);
/* Joins, DP_ERR_INVALID when it is too long. name NULL: the folder itself. */
dp_status_t dp__path(char path[DP__PATH_BYTES], const char *folder, const char *name);

/* All of it, whatever comes in between. */
dp_status_t dp__file_write(int fd, const char *path, const void *data, size_t bytes, uint64_t at);
/* A file that is shorter is an error. */
dp_status_t dp__file_read(int fd, const char *path, void *data, size_t bytes, uint64_t at);
/* fsync and close; a failure of either is one of the file. */
dp_status_t dp__file_finish(int fd, const char *path);
dp_status_t dp__folder_sync(const char *path);
/* Makes the folder, if it is not there. */
dp_status_t dp__folder_make(const char *path);
/* The same for the one that checkpoints are in: its own name is on the disk, too. */
dp_status_t dp__folder_begin(const char *path);
/* Gives `from` the name `to`; what has that name already is swapped with it, in one instant. */
dp_status_t dp__folder_publish(const char *from, const char *to);
/* A folder of a checkpoint, its own files alone: others stay, and the folder with them. */
dp_status_t dp__folder_remove(const char *path);

#endif
