/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * output.c: where a command writes. */
#include "output.h"

#include <errno.h>
#include <math.h>
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

static void remove_regular(const char *path)
{
    struct stat info;

    if (stat(path, &info) == 0 && S_ISREG(info.st_mode))
        (void)unlink(path);
}

dp_status_t output_close(output_t *output, dp_status_t status)
{
    int failed;

    if (output->path == NULL) {
        if ((fflush(stdout) != 0 || ferror(stdout)) && status == DP_OK)
            status = dp_fail(DP_ERR_IO, "standard output: %s", strerror(errno));
        return status;
    }
    failed = ferror(output->file);
    failed |= fclose(output->file) != 0;
    if (failed && status == DP_OK)
        status = dp_fail(DP_ERR_IO, "%s: %s", output->path, strerror(errno));
    if (status != DP_OK)
        remove_regular(output->path);
    return status;
}

void output_json_string(FILE *to, const char *text)
{
    fputc('"', to);
    for (const unsigned char *at = (const unsigned char *)text; *at != 0; at++) {
        if (*at == '"' || *at == '\\')
            fprintf(to, "\\%c", *at);
        else if (*at < 0x20 || *at >= 0x7f)
            fprintf(to, "\\u%04x", *at);
        else
            fputc(*at, to);
    }
    fputc('"', to);
}

void output_json_number(FILE *to, double number)
{
    if (isfinite(number))
        fprintf(to, "%.12g", number);
    else
        fputs("null", to);
}
