/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * files.c: system calls with their whole meaning: all bytes or an error with the file's name. */
#include "config.h"

#include "checkpoint/files.h"

#include "checkpoint/names.h"
#include "system/read_at.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

dp_status_t dp__io_fail(const char *path)
{
    return dp_fail(DP_ERR_IO, "%s: %s", path, strerror(errno));
}

dp_status_t dp__path(char path[DP__PATH_BYTES], const char *folder, const char *name)
{
    const int n = name == NULL ? snprintf(path, DP__PATH_BYTES, "%s", folder)
                               : snprintf(path, DP__PATH_BYTES, "%s/%s", folder, name);

    return n >= 0 && n < DP__PATH_BYTES ? DP_OK : dp_fail(DP_ERR_INVALID, "%.64s...: the path is too long", folder);
}

dp_status_t dp__file_write(int fd, const char *path, const void *data, size_t bytes, uint64_t at)
{
    const char *from = data;

    while (bytes > 0) {
        const ssize_t n = pwrite(fd, from, bytes, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? ENOSPC : errno;
            return dp__io_fail(path);
        }
        from += n, at += (uint64_t)n, bytes -= (size_t)n;
    }
    return DP_OK;
}

dp_status_t dp__file_read(int fd, const char *path, void *data, size_t bytes, uint64_t at)
{
    const size_t missing = dp__read_at(fd, data, bytes, at);

    if (missing == 0)
        return DP_OK;
    return errno != 0 ? dp__io_fail(path)
                      : dp_fail(DP_ERR_INVALID, "%s: %zu bytes are missing at its end", path, missing);
}

dp_status_t dp__file_finish(int fd, const char *path)
{
    const dp_status_t status = fsync(fd) == 0 ? DP_OK : dp__io_fail(path);

    if (close(fd) != 0 && status >= 0)
        return dp__io_fail(path);
    return status;
}

dp_status_t dp__folder_sync(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd < 0 ? dp__io_fail(path) : dp__file_finish(fd, path);
}

dp_status_t dp__folder_make(const char *path)
{
    return mkdir(path, 0777) == 0 || errno == EEXIST ? DP_OK : dp__io_fail(path);
}

dp_status_t dp__folder_begin(const char *path)
{
    char copy[DP__PATH_BYTES];

    if (mkdir(path, 0777) != 0)
        return errno == EEXIST ? DP_OK : dp__io_fail(path);
    snprintf(copy, sizeof(copy), "%s", path);
    return dp__folder_sync(dirname(copy));
}

dp_status_t dp__folder_publish(const char *from, const char *to)
{
    struct stat about;

    if (lstat(to, &about) != 0)
        return rename(from, to) == 0 ? DP_OK : dp__io_fail(to);
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0
               ? DP_OK
               : dp_fail(DP_ERR_IO, "%s is there already and cannot be replaced: %s", to, strerror(errno));
}

dp_status_t dp__folder_remove(const char *path)
{
    DIR *folder = opendir(path);
    dp_status_t status = DP_OK;
    struct dirent *entry;

    if (folder == NULL)
        return errno == ENOENT ? DP_OK : dp__io_fail(path);
    while ((entry = readdir(folder)) != NULL)
        if (dp__file_is_ours(entry->d_name) && unlinkat(dirfd(folder), entry->d_name, 0) != 0 && status >= 0)
            status = dp__io_fail(path);
    closedir(folder);
    return status >= 0 && rmdir(path) != 0 && errno != ENOTEMPTY && errno != EEXIST ? dp__io_fail(path) : status;
}
