/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_format.c: picture formats and files. */
#include "draw_format.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

dp_status_t draw_format_of(const char *path, draw_format_t *format_out)
{
    static const struct {
        const char *ending;
        draw_format_t format;
    } known[] = {{".svg", DRAW_SVG}, {".png", DRAW_PNG}, {".pdf", DRAW_PDF}};
    size_t length = strlen(path);

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (length > 4 && strcmp(path + length - 4, known[i].ending) == 0) {
            *format_out = known[i].format;
            return DP_OK;
        }
    }
    return dp_fail(DP_ERR_INVALID, "%s: a picture's name ends in .svg, .png or .pdf", path);
}

static dp_status_t write_file(void *user, const char *text, size_t bytes)
{
    return fwrite(text, 1, bytes, user) == bytes ? DP_OK : dp_fail(DP_ERR_IO, "%s", strerror(errno));
}

dp_status_t draw_save(const char *path, draw_fn draw, const void *job)
{
    draw_format_t format;
    dp_status_t status = draw_format_of(path, &format);
    FILE *file;

    if (status != DP_OK)
        return status;
    file = fopen(path, "wb");
    if (file == NULL)
        return dp_fail(DP_ERR_IO, "%s: %s", path, strerror(errno));
    status = draw(job, format, write_file, file);
    if (fclose(file) != 0 && status == DP_OK)
        status = dp_fail(DP_ERR_IO, "%s: %s", path, strerror(errno));
    if (status != DP_OK)
        (void)unlink(path);
    return status;
}
