/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * read.c: what is in an open checkpoint; tensors are held against their digests. */
#include "config.h"

#include "base/do.h"
#include "checkpoint/read.h"

#include "base/memory.h"
#include "base/sized.h"
#include "checkpoint/files.h"
#include "checkpoint/xxh64.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 1 << 20 };

uint64_t dp_checkpoint_run(const dp_checkpoint_t *c)
{
    return c->index.run;
}

uint32_t dp_checkpoint_count(const dp_checkpoint_t *c)
{
    return c->count;
}

dp_status_t dp_checkpoint_tensor(const dp_checkpoint_t *c, uint32_t i, dp_checkpoint_tensor_t *tensor_out)
{
    dp_checkpoint_tensor_t tensor = {.struct_size = sizeof(tensor)};

    DO(dp__sized_check("dp_checkpoint_tensor: tensor_out", tensor_out, "dp_checkpoint_tensor_t",
                       DP_CHECKPOINT_TENSOR_MIN));
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
    const dp__place_t key = {.tensor = &tensor}, *place;

    place = bsearch(&key, c->places, c->count, sizeof(key), dp__places_by_name);
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
    status = dp__file_open(path, &c->fd, &bytes);
    if (status >= 0 && bytes != DP__LENGTH_BYTES + h->length + h->data_bytes)
        return dp_fail(DP_ERR_INVALID, "%s: it has changed since it was opened", path);
    return status;
}

dp_status_t dp__checkpoint_stream(dp_checkpoint_t *c, uint32_t i, void *buffer, size_t room, dp__piece_fn take,
                                  void *user)
{
    const dp__place_t *place = &c->places[i];
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
            return dp__blame_file(status, t->name);
        dp__xxh64_add(&digest, buffer, n);
        status = take(user, (size_t)at, buffer, n);
    }
    if (status >= 0 && dp__xxh64_end(&digest) != t->digest)
        return dp_fail(DP_ERR_INVALID, "%s: tensor %s is not what was written: it has another digest", path, t->name);
    return status;
}

static dp_status_t copy_part(void *memory, size_t at, const void *data, size_t bytes)
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
    buffer = dp__allocate(BLOCK, 64);
    if (buffer == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory to read tensor %s", t->name);
    status = dp__checkpoint_stream(c, i, buffer, BLOCK, copy_part, memory);
    dp__free(buffer);
    return status;
}
