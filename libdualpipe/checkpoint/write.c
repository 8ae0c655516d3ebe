/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * write.c: one rank's file: the tensors, while their digests are taken, then the head with them. */
#include "config.h"

#include "base/do.h"
#include "checkpoint/write.h"

#include "base/memory.h"
#include "checkpoint/files.h"
#include "checkpoint/names.h"
#include "checkpoint/xxh64.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { BLOCK = 4 << 20 };

/* Has the disk begin with what was written; fsync waits for all of it at the end. */
static void start_disk(int fd, uint64_t at, size_t bytes)
{
#ifdef SYNC_FILE_RANGE_WRITE
    (void)sync_file_range(fd, (off_t)at, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
#else
    (void)fd, (void)at, (void)bytes;
#endif
}

static dp_status_t write_tensor(const dp__write_t *w, dp__tensor_t *t, int fd, const char *path, uint64_t start)
{
    const uint64_t bytes = t->end - t->begin;
    dp__xxh64_t digest;

    dp__xxh64_begin(&digest);
    for (uint64_t at = 0; at < bytes; at += BLOCK) {
        const size_t n = bytes - at < BLOCK ? (size_t)(bytes - at) : BLOCK;

        if (__atomic_load_n(w->stop, __ATOMIC_RELAXED) != 0)
            return dp_fail(DP_ERR_ABORTED, "%s: given up", path);
        dp__xxh64_add(&digest, w->data + t->begin + at, n);
        DO(dp__file_write(fd, path, w->data + t->begin + at, n, start + t->begin + at));
        start_disk(fd, start + t->begin + at, n);
    }
    t->digest = dp__xxh64_end(&digest);
    return DP_OK;
}

static dp_status_t write_file(const dp__write_t *w, const char *path)
{
    size_t head_bytes;
    char *head;
    dp_status_t status = DP_OK;
    int fd;

    DO(dp__header_make(w->step, w->origin, w->tensors, w->n, w->parameters, &head, &head_bytes));
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        dp__free(head);
        return dp__io_fail(path);
    }
    for (uint32_t i = 0; i < w->n && status >= 0; i++)
        status = write_tensor(w, &w->tensors[i], fd, path, head_bytes);
    dp__header_sign(head, w->tensors, w->n);
    if (status >= 0)
        status = dp__file_write(fd, path, head, head_bytes, 0);
    dp__free(head);
    if (status >= 0)
        return dp__file_finish(fd, path);
    close(fd);
    return status;
}

dp_status_t dp__checkpoint_write(const dp__write_t *w)
{
    char name[DP__FILE_NAME_BYTES], folder[DP__PATH_BYTES], path[DP__PATH_BYTES], partial[DP__PATH_BYTES + 16];
    dp_status_t status;

    dp__step_name(name, w->step, true);
    DO(dp__path(folder, w->folder, name));
    dp__rank_name(name, w->rank, w->ranks);
    DO(dp__path(path, folder, name));
    status = dp__folder_make(folder);
    if (status < 0 && access(w->folder, F_OK) != 0) { /* somebody has removed it */
        DO(dp__folder_begin(w->folder));
        status = dp__folder_make(folder);
    }
    if (status < 0)
        return status;
    snprintf(partial, sizeof(partial), "%s.partial", path);
    status = write_file(w, partial);
    if (status < 0) {
        unlink(partial); /* the disk may be full */
        return status;
    }
    if (rename(partial, path) != 0)
        return dp__io_fail(path);
    status = dp__folder_sync(folder);
    /* rank 0 has synced and published it meanwhile */
    return status < 0 && access(folder, F_OK) != 0 ? DP_OK : status;
}
