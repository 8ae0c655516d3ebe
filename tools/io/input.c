/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * input.c: reading whole files. */
#include "input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BYTES 65536

static dp_status_t read_stream(FILE *file, const char *name, size_t most, char **text_out, size_t *bytes_out)
{
    size_t room = 0, used = 0, got;

    do {
        if (room - used < 2) {
            size_t larger = room == 0 ? FIRST_BYTES : 2 * room;
            char *moved = realloc(*text_out, room = larger < most + 2 ? larger : most + 2);

            if (moved == NULL)
                return dp_fail(DP_ERR_NOMEM, "%s: no memory for %zu bytes", name, room);
            *text_out = moved;
        }
        got = fread(*text_out + used, 1, room - used - 1, file);
        used += got;
    } while (got > 0 && used <= most);
    if (ferror(file))
        return dp_fail(DP_ERR_IO, "%s: %s", name, strerror(errno));
    if (used > most)
        return dp_fail(DP_ERR_INVALID, "%s: more than %zu MiB", name, most >> 20);
    (*text_out)[used] = '\0';
    *bytes_out = used;
    return DP_OK;
}

dp_status_t input_read(const char *path, size_t most, char **text_out, size_t *bytes_out)
{
    bool from_stdin = strcmp(path, "-") == 0;
    FILE *file = from_stdin ? stdin : fopen(path, "rb");
    dp_status_t status;

    *text_out = NULL;
    *bytes_out = 0;
    if (file == NULL)
        return dp_fail(DP_ERR_IO, "%s: %s", path, strerror(errno));
    status = read_stream(file, from_stdin ? "standard input" : path, most, text_out, bytes_out);
    if (status != DP_OK) {
        free(*text_out);
        *text_out = NULL;
    }
    if (!from_stdin)
        (void)fclose(file);
    return status;
}

dp_status_t input_split(const char *name, char *text, size_t bytes, input_line_fn take, void *user)
{
    char message[256];
    long number = 0;
    dp_status_t status = DP_OK;

    for (char *line = text, *end = text + bytes; status == DP_OK && line < end;) {
        char *stop = memchr(line, '\n', (size_t)(end - line));

        if (stop == NULL)
            stop = end;
        *stop = '\0';
        number++;
        status = strlen(line) != (size_t)(stop - line) ? dp_fail(DP_ERR_INVALID, "a byte of 0 in the line")
                                                       : take(user, line);
        line = stop + 1;
    }
    if (status != DP_OK) {
        snprintf(message, sizeof(message), "%s", dp_last_error());
        status = dp_fail(status, "%s:%ld: %s", name, number, message);
    }
    return status;
}

dp_status_t input_lines(const char *path, size_t most, input_line_fn take, void *user)
{
    char *text;
    size_t bytes;
    dp_status_t status = input_read(path, most, &text, &bytes);

    if (status == DP_OK)
        status = input_split(path, text, bytes, take, user);
    free(text);
    return status;
}
