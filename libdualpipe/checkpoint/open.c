/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * open.c: opening a checkpoint: its index is held against the heads of its files. */
#include "config.h"

#include "base/do.h"
#include "base/memory.h"
#include "checkpoint/files.h"
#include "checkpoint/names.h"
#include "checkpoint/read.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int dp__places_by_name(const void *a, const void *b)
{
    return strcmp(((const dp__place_t *)a)->tensor->name, ((const dp__place_t *)b)->tensor->name);
}

dp_status_t dp__index_read(const char *folder, dp__index_t *index_out)
{
    char path[DP__PATH_BYTES], *text;
    uint64_t bytes;
    int fd;
    dp_status_t status = DP_OK;

    *index_out = (dp__index_t){0};
    DO(dp__path(path, folder, DP__INDEX_NAME));
    DO(dp__file_open(path, &fd, &bytes));
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
    status = dp__index_parse(text, bytes, index_out);
    return status < 0 ? dp__blame_file(status, path) : status;
}

static dp_status_t read_heads(dp_checkpoint_t *c)
{
    char path[DP__PATH_BYTES];

    c->headers = dp__calloc(c->index.nheads + 1, sizeof(*c->headers));
    if (c->headers == NULL)
        return dp_fail(DP_ERR_NOMEM, "%s: no memory for %u heads", c->folder, c->index.nheads);
    for (uint32_t i = 0; i < c->index.nheads; i++) {
        DO(dp__path(path, c->folder, c->index.heads[i].file));
        DO(dp__head_read(path, &c->headers[i]));
        if (c->headers[i].digest != c->index.heads[i].digest)
            return dp_fail(DP_ERR_INVALID, "%s: its head is not what was written: the index has another digest", path);
        if (c->headers[i].step != c->index.step)
            return dp_fail(DP_ERR_INVALID, "%s: of step %" PRIu64 ", the index of step %" PRIu64, path,
                           c->headers[i].step, c->index.step);
    }
    return DP_OK;
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
            c->places[c->count++] = (dp__place_t){&c->headers[i].tensors[k], i, k < c->headers[i].parameters};
    qsort(c->places, c->count, sizeof(*c->places), dp__places_by_name);
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
        const dp__place_t *place = &c->places[i];

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

    dp__step_name(name, step, false);
    DO(dp__path(c->folder, folder, name));
    DO(dp__index_read(c->folder, &c->index));
    if (c->index.step != step)
        return dp_fail(DP_ERR_INVALID, "%s: the index is of step %" PRIu64, c->folder, c->index.step);
    DO(read_heads(c));
    DO(gather_places(c));
    return compare_lists(c);
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
