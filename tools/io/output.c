/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * output.c: where a command writes. */
#include "output.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

dp_status_t output_open(output_t *output, const char *path)
{
    output->path = path;
    output->file = path != NULL ? fopen(path, "wb") : stdout;
    return output->file != NULL ? DP_OK : dp_fail(DP_ERR_IO, "%s: %s", path, strerror(errno));
}

dp_status_t output_write(void *output, const char *text, size_t bytes)
{
    output_t *to = output;

    if (fwrite(text, 1, bytes, to->file) == bytes)
        return DP_OK;
    return dp_fail(DP_ERR_IO, "%s: %s", to->path != NULL ? to->path : "standard output", strerror(errno));
}

dp_status_t output_flush(FILE *file, const char *name)
{
    const bool failed = ferror(file) != 0;

    if (fflush(file) != 0)
        return dp_fail(DP_ERR_IO, "%s: %s", name, strerror(errno));
    return failed ? dp_fail(DP_ERR_IO, "%s: an earlier write failed", name) : DP_OK;
}

/* Pipes and devices have nothing to sync: EINVAL. */
static dp_status_t sync_file(FILE *file, const char *name)
{
    dp_status_t status = output_flush(file, name);

    if (status == DP_OK && fsync(fileno(file)) != 0 && errno != EINVAL)
        status = dp_fail(DP_ERR_IO, "%s: %s", name, strerror(errno));
    return status;
}

static void remove_regular(const char *path)
{
    struct stat info;

    if (stat(path, &info) == 0 && S_ISREG(info.st_mode))
        (void)unlink(path);
}

dp_status_t output_close(output_t *output, dp_status_t status)
{
    if (output->path == NULL)
        return status == DP_OK ? output_flush(stdout, "standard output") : status;
    if (status == DP_OK)
        status = sync_file(output->file, output->path);
    if (fclose(output->file) != 0 && status == DP_OK)
        status = dp_fail(DP_ERR_IO, "%s: %s", output->path, strerror(errno));
    if (status != DP_OK)
        remove_regular(output->path);
    return status;
}

/* Bytes of the UTF-8 character that begins there; 0: none does. */
static size_t character_bytes(const unsigned char *at)
{
    static const struct {
        unsigned char low, high, second_low, second_high;
        size_t bytes;
    } forms[] = {{0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
                 {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
                 {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};

    for (size_t f = 0; f < sizeof(forms) / sizeof(forms[0]); f++) {
        size_t k = 2;

        if (at[0] < forms[f].low || at[0] > forms[f].high)
            continue;
        if (at[1] < forms[f].second_low || at[1] > forms[f].second_high)
            return 0;
        while (k < forms[f].bytes && (at[k] & 0xc0) == 0x80)
            k++;
        return k == forms[f].bytes ? k : 0;
    }
    return 0;
}

static void put_string(FILE *to, const char *text, const char *escaped)
{
    fputc('"', to);
    for (const unsigned char *at = (const unsigned char *)text; *at != 0; at++) {
        size_t bytes = *at < 0x80 ? 1 : character_bytes(at);

        if (*at == '"' || *at == '\\')
            fprintf(to, "\\%c", *at);
        else if (*at < 0x20 || *at == 0x7f || strchr(escaped, *at) != NULL)
            fprintf(to, "\\u%04x", *at);
        else if (bytes == 0)
            fputs("\\ufffd", to);
        else
            fwrite(at, 1, bytes, to);
        at += bytes > 1 ? bytes - 1 : 0;
    }
    fputc('"', to);
}

void output_json_string(FILE *to, const char *text)
{
    put_string(to, text, "");
}

void output_script_string(FILE *to, const char *text)
{
    put_string(to, text, "<>&");
}

void output_json_number(FILE *to, double number)
{
    if (isfinite(number))
        fprintf(to, "%.12g", number);
    else
        fputs("null", to);
}

const char *output_sizes(int32_t ranks, int32_t microbatches, char *text, size_t bytes)
{
    snprintf(text, bytes, "%d rank%s, %d micro-batch%s", ranks, ranks == 1 ? "" : "s", microbatches,
             microbatches == 1 ? "" : "es");
    return text;
}
