/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * read.c: an open checkpoint: the index held against the heads of its files, tensors held against their digests. */
#include "config.h"

#include "checkpoint/read.h"

#include "base/memory.h"
#include "base/sized.h"
#include "checkpoint/files.h"
#include "checkpoint/index.h"
#include "checkpoint/names.h"
#include "checkpoint/xxh64.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 1 << 20 };

typedef struct place {
    const dp__tensor_t *tensor;
    uint32_t file;
    int32_t parameter;
} place_t;

struct dp_checkpoint {
    char folder[DP__PATH_BYTES];
    dp__index_t index;
    dp__header_t *headers; /* [index.nheads] */
    place_t *places;       /* [count] by name */
    uint32_t count;
    int fd; /* of the file read last, -1: none */
    uint32_t open_file;
};

/* Why, with the file's name in front. */
static dp_status_t blame(dp_status_t status, const char *path)
{
    char why[1024];

    snprintf(why, sizeof(why), "%s", dp_last_error());
    return dp_fail(status, "%s: %s", path, why);
}

/* A file that can be read without waiting, and its size. */
static dp_status_t open_regular(const char *path, int *fd_out, uint64_t *bytes_out)
{
    struct stat about;

    *fd_out = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd_out < 0)
        return dp__io_fail(path);
    if (fstat(*fd_out, &about) == 0 && S_ISREG(about.st_mode)) {
        *bytes_out = (uint64_t)about.st_size;
        return DP_OK;
    }
    close(*fd_out);
    *fd_out = -1;
    return dp_fail(DP_ERR_INVALID, "%s: not a regular file", path);
}

static dp_status_t read_head(int fd, const char *path, uint64_t bytes, dp__header_t *header)
{
    unsigned char head[DP__LENGTH_BYTES];
    uint64_t length = 0;
    char *text;
    dp_status_t status;

    if (bytes < sizeof(head))
        return dp_fail(DP_ERR_INVALID, "%s: too short for a safetensors file", path);
    status = dp__file_read(fd, path, head, sizeof(head), 0);
    for (int i = 0; i < DP__LENGTH_BYTES; i++)
        length |= (uint64_t)head[i] << 8 * i;
    if (status < 0)
        return status;
    if (length > DP__HEAD_MOST || length > bytes - sizeof(head))
        return dp_fail(DP_ERR_INVALID, "%s: a head of %" PRIu64 " bytes cannot be in a file of %" PRIu64, path, length,
                       bytes);
    text = dp__allocate(length + 1, 16);
    if (text == NULL)
        return dp_fail(DP_ERR_NOMEM, "%s: no memory for a head of %" PRIu64 " bytes", path, length);
    status = dp__file_read(fd, path, text, length, sizeof(head));
    if (status < 0) {
        dp__free(text);
        return status;
    }
    status = dp__header_parse(text, (uint32_t)length, bytes, header);
    return status < 0 ? blame(status, path) : status;
}

dp_status_t dp__head_read(const char *path, dp__header_t *header)
{
    uint64_t bytes;
    dp_status_t status;
    int fd;

    *header = (dp__header_t){0};
    status = open_regular(path, &fd, &bytes);
    if (status < 0)
        return status;
    status = read_head(fd, path, bytes, header);
    close(fd);
    return status;
}

static dp_status_t read_index(dp_checkpoint_t *c)
{
    char path[DP__PATH_BYTES], *text;
    uint64_t bytes;
    int fd;
    dp_status_t status = dp__path(path, c->folder, DP__INDEX_NAME);

    if (status >= 0)
        status = open_regular(path, &fd, &bytes);
    if (status < 0)
        return status;
    text = bytes <= DP__INDEX_MOST ? dp__allocate(bytes + 1, 16) : NULL;
    if (text == NULL)
        status = bytes <= DP__INDEX_MOST ? dp_fail(DP_ERR_NOMEM, "%s: no memory to read it", path)
                                         : dp_fail(DP_ERR_INVALID, "%s: too large for an index", path);
    if (status >= 0)
        status = dp__file_read(fd, path, text, bytes, 0);
    close(fd);
    if (status < 0) {
        dp__free(text);
        return status;
    }
    status = dp__index_parse(text, bytes, &c->index);
    return status < 0 ? blame(status, path) : status;
}

static dp_status_t read_heads(dp_checkpoint_t *c)
{
    char path[DP__PATH_BYTES];
    dp_status_t status = DP_OK;

    c->headers = dp__calloc(c->index.nheads + 1, sizeof(*c->headers));
    if (c->headers == NULL)
        return dp_fail(DP_ERR_NOMEM, "%s: no memory for %u heads", c->folder, c->index.nheads);
    for (uint32_t i = 0; i < c->index.nheads && status >= 0; i++) {
        status = dp__path(path, c->folder, c->index.heads[i].file);
        if (status >= 0)
            status = dp__head_read(path, &c->headers[i]);
        if (status >= 0 && c->headers[i].digest != c->index.heads[i].digest)
            status =
                dp_fail(DP_ERR_INVALID, "%s: its head is not what was written: the index has another digest", path);
        if (status >= 0 && c->headers[i].step != c->index.step)
            status = dp_fail(DP_ERR_INVALID, "%s: of step %" PRIu64 ", the index of step %" PRIu64, path,
                             c->headers[i].step, c->index.step);
    }
    return status;
}

static int places_by_name(const void *a, const void *b)
{
    return strcmp(((const place_t *)a)->tensor->name, ((const place_t *)b)->tensor->name);
}

static int entries_by_name(const void *a, const void *b)
{
    return strcmp(((const dp__index_entry_t *)a)->name, ((const dp__index_entry_t *)b)->name);
}

static dp_status_t gather_places(dp_checkpoint_t *c)
{
    size_t n = 0;

    for (uint32_t i = 0; i < c->index.nheads; i++)
        n += c->headers[i].n;
    if (n != c->index.nentries)
        return dp_fail(DP_ERR_INVALID, "%s: %zu tensors are in the files, %u in the index", c->folder, n,
                       c->index.nentries);
    c->places = dp__calloc(n + 1, sizeof(*c->places));
    if (c->places == NULL)
        return dp_fail(DP_ERR_NOMEM, "%s: no memory for a list of %zu tensors", c->folder, n);
    for (uint32_t i = 0; i < c->index.nheads; i++)
        for (uint32_t k = 0; k < c->headers[i].n; k++)
            c->places[c->count++] = (place_t){&c->headers[i].tensors[k], i, k < c->headers[i].parameters};
    qsort(c->places, c->count, sizeof(*c->places), places_by_name);
    return DP_OK;
}

/* Both lists say the same, and each name once. */
static dp_status_t compare_lists(dp_checkpoint_t *c)
{
    dp__index_entry_t *entries = c->index.entries;

    if (c->count == 0)
        return dp_fail(DP_ERR_INVALID, "%s: no tensors are in it", c->folder);
    qsort(entries, c->count, sizeof(*entries), entries_by_name);
    for (uint32_t i = 0; i < c->count; i++) {
        const place_t *place = &c->places[i];

        if (i > 0 && strcmp(place[-1].tensor->name, place->tensor->name) == 0)
            return dp_fail(DP_ERR_INVALID, "%s: tensor %s is there twice, in %s and %s", c->folder, place->tensor->name,
                           c->index.heads[place[-1].file].file, c->index.heads[place->file].file);
        if (strcmp(entries[i].name, place->tensor->name) != 0 ||
            strcmp(entries[i].file, c->index.heads[place->file].file) != 0)
            return dp_fail(DP_ERR_INVALID, "%s: tensor %s is in %s, the index has %s in %s", c->folder,
                           place->tensor->name, c->index.heads[place->file].file, entries[i].name, entries[i].file);
    }
    return DP_OK;
}

static dp_status_t open_all(dp_checkpoint_t *c, const char *folder, uint64_t step)
{
    char name[DP__FILE_NAME_BYTES];
    dp_status_t status;

    dp__step_name(name, step, false);
    status = dp__path(c->folder, folder, name);
    if (status >= 0)
        status = read_index(c);
    if (status >= 0 && c->index.step != step)
        status = dp_fail(DP_ERR_INVALID, "%s: the index is of step %" PRIu64, c->folder, c->index.step);
    if (status >= 0)
        status = read_heads(c);
    if (status >= 0)
        status = gather_places(c);
    return status < 0 ? status : compare_lists(c);
}

dp_status_t dp_checkpoint_open(const char *folder, uint64_t step, dp_checkpoint_t **checkpoint_out)
{
    dp_checkpoint_t *c;
    dp_status_t status;

    if (folder == NULL || checkpoint_out == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_checkpoint_open: folder or checkpoint_out is NULL");
    *checkpoint_out = NULL;
    c = dp__calloc(1, sizeof(*c));
    if (c == NULL)
        return dp_fail(DP_ERR_NOMEM, "dp_checkpoint_open: no memory for its record");
    c->fd = -1;
    status = open_all(c, folder, step);
    if (status < 0) {
        dp_checkpoint_close(c);
        return status;
    }
    *checkpoint_out = c;
    return DP_OK;
}

void dp_checkpoint_close(dp_checkpoint_t *c)
{
    if (c == NULL)
        return;
    if (c->fd >= 0)
        close(c->fd);
    for (uint32_t i = 0; c->headers != NULL && i < c->index.nheads; i++)
        dp__header_free(&c->headers[i]);
    dp__free(c->headers);
    dp__free(c->places);
    dp__index_free(&c->index);
    dp__free(c);
}

uint32_t dp_checkpoint_count(const dp_checkpoint_t *c)
{
    return c->count;
}

dp_status_t dp_checkpoint_tensor(const dp_checkpoint_t *c, uint32_t i, dp_checkpoint_tensor_t *tensor_out)
{
    dp_checkpoint_tensor_t tensor = {.struct_size = sizeof(tensor)};
    dp_status_t status = dp__sized_check("dp_checkpoint_tensor: tensor_out", tensor_out, "dp_checkpoint_tensor_t",
                                         DP_CHECKPOINT_TENSOR_MIN);

    if (status < 0)
        return status;
    if (i >= c->count)
        return dp_fail(DP_ERR_INVALID, "tensor %u: the checkpoint has %u", i, c->count);
    tensor.dtype = c->places[i].tensor->dtype;
    tensor.name = c->places[i].tensor->name;
    tensor.file = c->index.heads[c->places[i].file].file;
    tensor.count = c->places[i].tensor->count;
    tensor.parameter = c->places[i].parameter;
    dp_sized_put(tensor_out, &tensor);
    return DP_OK;
}

int64_t dp_checkpoint_find(const dp_checkpoint_t *c, const char *name)
{
    const dp__tensor_t tensor = {.name = name};
    const place_t key = {.tensor = &tensor}, *place;

    place = bsearch(&key, c->places, c->count, sizeof(key), places_by_name);
    return place == NULL ? -1 : place - c->places;
}

static dp_status_t open_file(dp_checkpoint_t *c, uint32_t file, char path[DP__PATH_BYTES])
{
    const dp__header_t *h = &c->headers[file];
    uint64_t bytes;
    dp_status_t status = dp__path(path, c->folder, c->index.heads[file].file);

    if (status < 0 || (c->fd >= 0 && c->open_file == file))
        return status;
    if (c->fd >= 0)
        close(c->fd);
    c->open_file = file;
    status = open_regular(path, &c->fd, &bytes);
    if (status >= 0 && bytes != DP__LENGTH_BYTES + h->length + h->data_bytes)
        return dp_fail(DP_ERR_INVALID, "%s: it has changed since it was opened", path);
    return status;
}

dp_status_t dp__checkpoint_stream(dp_checkpoint_t *c, uint32_t i, void *buffer, size_t room, dp__piece_fn take,
                                  void *user)
{
    const place_t *place = &c->places[i];
    const dp__tensor_t *t = place->tensor;
    const uint64_t start = DP__LENGTH_BYTES + c->headers[place->file].length + t->begin, bytes = t->end - t->begin;
    char path[DP__PATH_BYTES];
    dp__xxh64_t digest;
    dp_status_t status = open_file(c, place->file, path);

    dp__xxh64_begin(&digest);
    for (uint64_t at = 0; at < bytes && status >= 0; at += room) {
        const size_t n = bytes - at < room ? (size_t)(bytes - at) : room;

        status = dp__file_read(c->fd, path, buffer, n, start + at);
        if (status < 0)
            return blame(status, t->name);
        dp__xxh64_add(&digest, buffer, n);
        status = take(user, (size_t)at, buffer, n);
    }
    if (status >= 0 && dp__xxh64_end(&digest) != t->digest)
        return dp_fail(DP_ERR_INVALID, "%s: tensor %s is not what was written: it has another digest", path, t->name);
    return status;
}

static dp_status_t put(void *memory, size_t at, const void *data, size_t bytes)
{
    memcpy((char *)memory + at, data, bytes);
    return DP_OK;
}

dp_status_t dp_checkpoint_read(dp_checkpoint_t *c, uint32_t i, void *memory, size_t bytes)
{
    const dp__tensor_t *t = i < c->count ? c->places[i].tensor : NULL;
    dp_status_t status;
    void *buffer;

    if (t == NULL)
        return dp_fail(DP_ERR_INVALID, "tensor %u: the checkpoint has %u", i, c->count);
    if (t->end - t->begin != bytes)
        return dp_fail(DP_ERR_INVALID, "%s: tensor %s has %" PRIu64 " bytes, not %zu", c->folder, t->name,
                       t->end - t->begin, bytes);
    buffer = dp__allocate(PIECE, 64);
    if (buffer == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory to read tensor %s", t->name);
    status = dp__checkpoint_stream(c, i, buffer, PIECE, put, memory);
    dp__free(buffer);
    return status;
}
