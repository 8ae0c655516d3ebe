/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * publish.c: makes a checkpoint of the files of all ranks; finds, keeps and removes checkpoints. */
#include "base/do.h"
#include "base/memory.h"
#include "checkpoint/files.h"
#include "checkpoint/index.h"
#include "checkpoint/names.h"
#include "checkpoint/read.h"
#include "checkpoint/write.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static dp_status_t path_of(char path[DP__PATH_BYTES], const char *folder, uint64_t step, bool partial)
{
    char name[DP__FILE_NAME_BYTES];

    dp__step_name(name, step, partial);
    return dp__path(path, folder, name);
}

bool dp__checkpoint_written(const char *folder, uint64_t step, int32_t ranks)
{
    char path[DP__PATH_BYTES], name[DP__FILE_NAME_BYTES], file[DP__PATH_BYTES];

    for (int32_t r = 0; r < ranks; r++) {
        dp__rank_name(name, r, ranks);
        if (path_of(path, folder, step, true) < 0 || dp__path(file, path, name) < 0 || access(file, F_OK) != 0)
            return false;
    }
    return true;
}

/* ---- the index ---- */

typedef struct collected {
    dp__header_t *headers;              /* [ranks] */
    char (*names)[DP__FILE_NAME_BYTES]; /* [ranks] */
    dp__index_t index;
} collected_t;

static dp_status_t collect_heads(collected_t *c, const char *path, uint64_t step, dp__origin_t origin, int32_t ranks)
{
    c->index.heads = dp__calloc((size_t)ranks, sizeof(*c->index.heads));
    if (!dp__arrays(DP__ARRAY(c->headers, ranks), DP__ARRAY(c->names, ranks)) || c->index.heads == NULL)
        return dp_fail(DP_ERR_NOMEM, "%s: no memory for the heads of %d files", path, ranks);
    c->index.step = step;
    c->index.run = origin.run;
    for (int32_t r = 0; r < ranks; r++) {
        char file[DP__PATH_BYTES];

        dp__rank_name(c->names[r], r, ranks);
        DO(dp__path(file, path, c->names[r]));
        DO(dp__head_read(file, &c->headers[r]));
        if (c->headers[r].step != step)
            return dp_fail(DP_ERR_INVALID, "%s: of another step", file);
        if (c->headers[r].origin.run != origin.run || c->headers[r].origin.writer != origin.writer)
            return dp_fail(DP_ERR_INVALID, "%s: another job has written it", file);
        c->index.heads[c->index.nheads++] = (dp__index_head_t){c->names[r], c->headers[r].digest};
        c->index.nentries += c->headers[r].n;
        c->index.total_size += c->headers[r].data_bytes;
    }
    return DP_OK;
}

static dp_status_t list_tensors(collected_t *c, const char *path)
{
    uint32_t n = 0;

    c->index.entries = dp__calloc(c->index.nentries + 1, sizeof(*c->index.entries));
    if (c->index.entries == NULL)
        return dp_fail(DP_ERR_NOMEM, "%s: no memory for a list of %u tensors", path, c->index.nentries);
    for (uint32_t r = 0; r < c->index.nheads; r++)
        for (uint32_t i = 0; i < c->headers[r].n; i++)
            c->index.entries[n++] = (dp__index_entry_t){c->headers[r].tensors[i].name, c->names[r]};
    return DP_OK;
}

static dp_status_t write_index(const collected_t *c, const char *folder)
{
    char path[DP__PATH_BYTES], partial[DP__PATH_BYTES + 16], *text;
    size_t bytes;
    dp_status_t status;
    int fd;

    DO(dp__path(path, folder, DP__INDEX_NAME));
    DO(dp__index_make(&c->index, &text, &bytes));
    snprintf(partial, sizeof(partial), "%s.partial", path);
    fd = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        dp__free(text);
        return dp__io_fail(partial);
    }
    status = dp__file_write(fd, partial, text, bytes, 0);
    dp__free(text);
    if (status < 0)
        close(fd);
    else
        status = dp__file_finish(fd, partial);
    if (status >= 0 && rename(partial, path) != 0)
        status = dp__io_fail(path);
    return status < 0 ? status : dp__folder_sync(folder);
}

static dp_status_t index_all(const char *path, uint64_t step, dp__origin_t origin, int32_t ranks)
{
    collected_t c = {0};
    dp_status_t status = collect_heads(&c, path, step, origin, ranks);

    if (status >= 0)
        status = list_tensors(&c, path);
    if (status >= 0)
        status = write_index(&c, path);
    for (int32_t r = 0; c.headers != NULL && r < ranks; r++)
        dp__header_free(&c.headers[r]);
    dp__free(c.headers);
    dp__index_free(&c.index);
    return status;
}

/* Of the checkpoint in a folder; 0: none, or none that says so. */
static dp_status_t find_run(const char *path, uint64_t *run_out)
{
    dp__index_t index;
    const dp_status_t status = dp__index_read(path, &index);

    *run_out = status >= 0 ? index.run : 0;
    dp__index_free(&index);
    return status == DP_ERR_NOMEM ? status : DP_OK;
}

dp_status_t dp__checkpoint_publish(const char *folder, uint64_t step, dp__origin_t origin, int32_t ranks)
{
    char partial[DP__PATH_BYTES], path[DP__PATH_BYTES];
    uint64_t run = 0;

    DO(path_of(partial, folder, step, true));
    DO(path_of(path, folder, step, false));
    if (access(path, F_OK) == 0)
        DO(find_run(path, &run));
    if (run != 0 && run != origin.run)
        return dp_fail(DP_ERR_INVALID, "%s is there already, of another run", path);
    DO(index_all(partial, step, origin, ranks));
    DO(dp__folder_publish(partial, path));
    DO(dp__folder_sync(folder));
    return dp__folder_remove(partial); /* what had the name before */
}

/* ---- folders ---- */

dp_status_t dp__checkpoint_discard(const char *folder, uint64_t step)
{
    char partial[DP__PATH_BYTES];

    DO(path_of(partial, folder, step, true));
    return dp__folder_remove(partial);
}

/* Calls what(user, step) for each folder that is called like a checkpoint. */
static dp_status_t for_each(const char *folder, bool partial, dp_status_t (*what)(void *user, uint64_t step),
                            void *user)
{
    DIR *entries = opendir(folder);
    dp_status_t status = DP_OK;
    struct dirent *entry;
    uint64_t step;

    if (entries == NULL)
        return errno == ENOENT ? DP_PENDING : dp__io_fail(folder);
    while (status >= 0 && (entry = readdir(entries)) != NULL)
        if (dp__step_of_name(entry->d_name, partial, &step))
            status = what(user, step);
    closedir(entries);
    return status;
}

static dp_status_t discard_partial(void *folder, uint64_t step)
{
    return dp__checkpoint_discard(folder, step);
}

dp_status_t dp__checkpoint_clean(const char *folder)
{
    return for_each(folder, true, discard_partial, (void *)folder);
}

typedef struct search {
    const char *folder;
    uint64_t below, found, hollow;
    bool any;
} search_t;

/* Only what is certain counts: other errors are for those who read it. */
static dp_status_t look_for_index(const char *folder, uint64_t step, bool *missing_out)
{
    char path[DP__PATH_BYTES], index[DP__PATH_BYTES];

    DO(path_of(path, folder, step, false));
    DO(dp__path(index, path, DP__INDEX_NAME));
    *missing_out = access(index, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
    return DP_OK;
}

static dp_status_t take_newest(void *user, uint64_t step)
{
    search_t *s = user;
    bool missing;

    if (step >= s->below || (s->any && step <= s->found))
        return DP_OK;
    DO(look_for_index(s->folder, step, &missing));
    if (missing) {
        s->hollow = step > s->hollow ? step : s->hollow;
        return DP_OK;
    }
    s->any = true;
    s->found = step;
    return DP_OK;
}

dp_status_t dp__checkpoint_newest(const char *folder, uint64_t below, uint64_t *step_out, uint64_t *hollow_out)
{
    search_t s = {.folder = folder, .below = below};
    const dp_status_t status = for_each(folder, false, take_newest, &s);

    *step_out = s.found;
    *hollow_out = s.hollow > s.found ? s.hollow : 0;
    return status == DP_OK && !s.any ? DP_PENDING : status;
}

dp_status_t dp_checkpoint_newest(const char *folder, uint64_t below, uint64_t *step_out)
{
    uint64_t hollow;

    if (folder == NULL || step_out == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_checkpoint_newest: folder or step_out is NULL");
    return dp__checkpoint_newest(folder, below, step_out, &hollow);
}

/* First it loses its name, so that no half of it is ever taken for a whole. */
static dp_status_t retire_step(const char *folder, uint64_t step)
{
    char path[DP__PATH_BYTES], partial[DP__PATH_BYTES];

    DO(path_of(path, folder, step, false));
    DO(path_of(partial, folder, step, true));
    if (rename(path, partial) != 0)
        return dp__io_fail(path);
    return dp__folder_remove(partial);
}

dp_status_t dp__checkpoint_keep(const char *folder, uint64_t step, uint64_t run, int32_t keep)
{
    char path[DP__PATH_BYTES];
    uint64_t at = step + 1, whose;
    dp_status_t status;

    for (int32_t n = 0; keep > 0;) {
        status = dp_checkpoint_newest(folder, at, &at);
        if (status != DP_OK)
            return status < 0 ? status : DP_OK;
        DO(path_of(path, folder, at, false));
        DO(find_run(path, &whose));
        if (whose == run && ++n > keep)
            DO(retire_step(folder, at));
    }
    return DP_OK;
}
