/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * recorder.c: the wrapped calls. */
#include "config.h"

#include "recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <check.h>

int __real_open(const char *path, int flags, ...);
ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t at);
int __real_close(int fd);
int __real_rename(const char *from, const char *to);
int __real_renameat2(int a, const char *from, int b, const char *to, unsigned flags);
int __real_mkdir(const char *path, mode_t mode);
int __real_rmdir(const char *path);
int __real_unlinkat(int folder, const char *name, int flags);
int __real_unlink(const char *path);

record_t records[RECORDS_MOST];
int nrecords;

static char root[4096];
static bool recording;
static struct {
    int folder;
    char name[RECORD_NAME];
} nodes[NODES_MOST]; /* by which name each is reached now; folder -1: by none */
static int nnodes;
static int node_of_fd[1024];

static struct {
    bool armed, sticky, struck;
    long left;
    int error;
} fault;

static bool strike(void)
{
    if (!fault.armed || (fault.left-- != 0 && !(fault.sticky && fault.struck)))
        return false;
    fault.struck = true;
    errno = fault.error;
    return true;
}

void recorder_fail(long n, bool sticky, int error)
{
    fault.armed = true, fault.sticky = sticky, fault.struck = false, fault.left = n, fault.error = error;
}

bool recorder_failed(void)
{
    fault.armed = false;
    return fault.struck;
}

void recorder_begin(const char *folder)
{
    snprintf(root, sizeof(root), "%s", folder);
    nodes[0].folder = -1;
    nnodes = 1;
    nrecords = 0;
    recording = true;
}

void recorder_end(void)
{
    recording = false;
    for (int i = 0; i < nrecords; i++)
        free(records[i].data);
    nrecords = 0;
}

static record_t *record(record_kind_t kind, int folder, const char *name, int node)
{
    record_t *r = &records[nrecords++];

    ck_assert_int_lt(nrecords, RECORDS_MOST);
    memset(r, 0, sizeof(*r));
    r->kind = kind, r->folder = folder, r->node = node;
    snprintf(r->name, sizeof(r->name), "%s", name);
    return r;
}

void recorder_mark(int mark)
{
    record(RECORD_MARK, 0, "", 0)->mark = mark;
}

static int child(int folder, const char *name)
{
    for (int i = 1; i < nnodes; i++)
        if (nodes[i].folder == folder && strcmp(nodes[i].name, name) == 0)
            return i;
    return -1;
}

/* The folder of a path below the root, and the name in it. -1: it is elsewhere. */
static int locate(const char *path, char name[RECORD_NAME])
{
    char rest[4096], *part = rest, *slash;
    int folder = 0;

    name[0] = '\0';
    if (!recording || strncmp(path, root, strlen(root)) != 0)
        return -1;
    snprintf(rest, sizeof(rest), "%s", path + strlen(root));
    while (*part == '/')
        part++;
    while ((slash = strchr(part, '/')) != NULL) {
        *slash = '\0';
        folder = child(folder, part);
        ck_assert_int_ge(folder, 0);
        part = slash + 1;
    }
    snprintf(name, RECORD_NAME, "%.*s", RECORD_NAME - 1, part);
    return folder;
}

static int add_node(int folder, const char *name)
{
    ck_assert_int_lt(nnodes, NODES_MOST);
    nodes[nnodes].folder = folder;
    snprintf(nodes[nnodes].name, RECORD_NAME, "%s", name);
    return nnodes++;
}

int __wrap_open(const char *path, int flags, ...)
{
    char name[RECORD_NAME];
    const int folder = locate(path, name);
    int node = folder < 0 ? -1 : *name == '\0' ? 0 : child(folder, name), fd;
    va_list args;

    va_start(args, flags);
    fd = strike() ? -1 : __real_open(path, flags, (flags & O_CREAT) != 0 ? va_arg(args, int) : 0);
    va_end(args);
    if (fd < 0)
        return fd;
    if (folder >= 0 && node < 0) {
        node = add_node(folder, name);
        record(RECORD_CREATE, folder, name, node);
    }
    node_of_fd[fd] = node;
    return fd;
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    /* of a call that will fail the first half still comes through, and of a large one a part */
    const size_t some = bytes > 1000 ? bytes / 2 + 1 : bytes;
    const ssize_t n = strike() ? -1 : __real_pwrite(fd, data, some, at);

    if (n > 0 && recording && node_of_fd[fd] >= 0) {
        record_t *r = record(RECORD_WRITE, -1, "", node_of_fd[fd]);
        r->data = malloc((size_t)n);
        memcpy(r->data, data, (size_t)n);
        r->bytes = (size_t)n, r->at = (size_t)at;
    }
    return n;
}

int __wrap_fsync(int fd)
{
    const int result = strike() ? -1 : 0; /* no disk is waited for */

    if (result == 0 && recording && node_of_fd[fd] >= 0)
        record(RECORD_SYNC, -1, "", node_of_fd[fd]);
    return result;
}

int __wrap_close(int fd)
{
    __real_close(fd);
    node_of_fd[fd] = -1;
    return strike() ? -1 : 0;
}

static void move(const char *from, const char *to, bool swap)
{
    char old[RECORD_NAME], fresh[RECORD_NAME];
    const int folder = locate(from, old), there = locate(to, fresh);
    int node, other;

    if (folder < 0)
        return;
    ck_assert_int_eq(folder, there);
    node = child(folder, old), other = child(folder, fresh);
    snprintf(record(swap ? RECORD_SWAP : RECORD_RENAME, folder, old, node)->to, RECORD_NAME, "%s", fresh);
    snprintf(nodes[node].name, RECORD_NAME, "%s", fresh);
    if (other >= 0 && swap)
        snprintf(nodes[other].name, RECORD_NAME, "%s", old);
    else if (other >= 0)
        nodes[other].folder = -1;
}

int __wrap_rename(const char *from, const char *to)
{
    const int result = strike() ? -1 : __real_rename(from, to);

    if (result == 0)
        move(from, to, false);
    return result;
}

int __wrap_renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    const int result = strike() ? -1 : __real_renameat2(a, from, b, to, flags);

    if (result == 0)
        move(from, to, true);
    return result;
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    char name[RECORD_NAME];
    const int folder = locate(path, name), result = strike() ? -1 : __real_mkdir(path, mode);

    if (result == 0 && folder >= 0)
        record(RECORD_MKDIR, folder, name, add_node(folder, name));
    return result;
}

static void gone(int folder, const char *name)
{
    const int node = folder < 0 ? -1 : child(folder, name);

    if (node < 0)
        return;
    record(RECORD_UNLINK, folder, name, node);
    nodes[node].folder = -1;
}

int __wrap_rmdir(const char *path)
{
    char name[RECORD_NAME];
    const int folder = locate(path, name), result = strike() ? -1 : __real_rmdir(path);

    if (result == 0)
        gone(folder, name);
    return result;
}

int __wrap_unlink(const char *path)
{
    char name[RECORD_NAME];
    const int folder = locate(path, name), result = strike() ? -1 : __real_unlink(path);

    if (result == 0)
        gone(folder, name);
    return result;
}

/* The folder is one that opendir has opened. */
int __wrap_unlinkat(int fd, const char *file, int flags)
{
    char link[64], path[4096], name[RECORD_NAME];
    ssize_t n;
    int result;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof(path) - 200);
    ck_assert_int_gt(n, 0);
    snprintf(path + n, sizeof(path) - (size_t)n, "/%.128s", file);
    result = strike() ? -1 : __real_unlinkat(fd, file, flags);
    if (result == 0)
        gone(locate(path, name), name);
    return result;
}
