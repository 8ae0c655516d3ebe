/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * text.c: reading files, splitting them, drawing sequences. */
#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "random.h"

enum { HELD_OUT = 20 };

static dp_status_t append_text(uint8_t **to, size_t *bytes, const uint8_t *from, size_t count)
{
    uint8_t *grown;

    if (count == 0)
        return DP_OK;
    grown = realloc(*to, *bytes + count);

    if (grown == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu bytes of text", *bytes + count);
    memcpy(grown + *bytes, from, count);
    *to = grown;
    *bytes += count;
    return DP_OK;
}

static dp_status_t read_file(FILE *file, const char *path, uint8_t **data, size_t *bytes)
{
    uint8_t chunk[65536];
    dp_status_t status = DP_OK;
    size_t got = 1;

    while (status == DP_OK && got > 0) {
        got = fread(chunk, 1, sizeof(chunk), file);
        status =
            ferror(file) ? dp_fail(DP_ERR_IO, "%s: %s", path, strerror(errno)) : append_text(data, bytes, chunk, got);
    }
    return status;
}

static dp_status_t add_file(text_t *text, const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t bytes = 0, kept;
    dp_status_t status;

    if (file == NULL)
        return dp_fail(DP_ERR_IO, "%s: %s", path, strerror(errno));
    status = read_file(file, path, &data, &bytes);
    kept = bytes - bytes / HELD_OUT;
    if (status == DP_OK)
        status = append_text(&text->train, &text->train_bytes, data, kept);
    if (status == DP_OK)
        status = append_text(&text->valid, &text->valid_bytes, data + kept, bytes - kept);
    for (size_t i = 0; status == DP_OK && i < bytes; i++)
        text->hash = (text->hash ^ data[i]) * 0x100000001b3u; /* FNV-1a */
    text->files++;
    free(data);
    fclose(file);
    return status;
}

/* Symbolic links in that folder are second names of files in it. */
static int is_regular(const char *path)
{
    struct stat about;

    return lstat(path, &about) == 0 && S_ISREG(about.st_mode);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    /* not alphasort: the order must not depend on the locale */
    return strcmp((*a)->d_name, (*b)->d_name);
}

static dp_status_t add_folder(text_t *text, const char *folder)
{
    struct dirent **entries;
    char path[4096];
    dp_status_t status = DP_OK;
    const int n = scandir(folder, &entries, NULL, by_name);

    if (n < 0)
        return dp_fail(DP_ERR_IO, "%s: %s; name files to learn from with --data", folder, strerror(errno));
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
        if (status == DP_OK && is_regular(path))
            status = add_file(text, path);
        free(entries[i]);
    }
    free(entries);
    return status;
}

dp_status_t text_load(char *const *files, int nfiles, uint32_t sequence, text_t *text_out)
{
    text_t text = {.hash = 0xcbf29ce484222325u};
    dp_status_t status = DP_OK;

    if (nfiles == 0)
        status = add_folder(&text, TEXT_DEFAULT_FOLDER);
    for (int i = 0; i < nfiles && status == DP_OK; i++)
        status = add_file(&text, files[i]);
    if (status == DP_OK && (text.train_bytes <= sequence || text.valid_bytes <= sequence))
        status = dp_fail(DP_ERR_INVALID,
                         "%zu bytes of text, %zu of them held out, are too few for sequences of %u: both parts must be "
                         "longer than one; give more with --data or shorten --seq",
                         text.train_bytes + text.valid_bytes, text.valid_bytes, sequence);
    if (status != DP_OK) {
        text_free(&text);
        return status;
    }
    *text_out = text;
    return DP_OK;
}

void text_free(text_t *text)
{
    free(text->train);
    free(text->valid);
    *text = (text_t){0};
}

double text_frequency_loss(const text_t *text)
{
    size_t count[256] = {0};
    double loss = 0;

    for (size_t i = 0; i < text->train_bytes; i++)
        count[text->train[i]]++;
    for (int b = 0; b < 256; b++) {
        const double share = (double)count[b] / (double)text->train_bytes;
        loss -= count[b] == 0 ? 0 : share * log(share);
    }
    return loss;
}

void text_sample(const text_t *text, uint64_t seed, uint64_t step, uint64_t replica, uint64_t microbatch,
                 uint64_t sequence_number, uint32_t sequence, uint8_t *tokens, uint8_t *targets)
{
    const uint64_t key = random_key(random_key(random_key(seed, step), replica), microbatch);
    const size_t at = random_bits(key, sequence_number) % (text->train_bytes - sequence);

    memcpy(tokens, text->train + at, sequence);
    memcpy(targets, text->train + at + 1, sequence);
}

void text_valid(const text_t *text, uint64_t number, uint64_t count, uint32_t sequence, uint8_t *tokens,
                uint8_t *targets)
{
    const size_t at = (size_t)((double)(text->valid_bytes - sequence) * (double)number / (double)count);

    memcpy(tokens, text->valid + at, sequence);
    memcpy(targets, text->valid + at + 1, sequence);
}
