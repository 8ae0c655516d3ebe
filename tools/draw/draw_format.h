/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_format.h: picture formats. */
#ifndef DP_TOOLS_DRAW_FORMAT_H
#define DP_TOOLS_DRAW_FORMAT_H

#include <dualpipe/schedule.h>

typedef enum draw_format { DRAW_SVG, DRAW_PNG, DRAW_PDF } draw_format_t;

/* By the ending of a file's name: .svg .png .pdf; DP_ERR_INVALID for others. */
dp_status_t draw_format_of(const char *path, draw_format_t *format_out);

/* Opens a file, runs draw(job, format, write, user) on it and closes it. A file that failed is
 * removed. */
typedef dp_status_t (*draw_fn)(const void *job, draw_format_t format, dp_write_fn write, void *user);
dp_status_t draw_save(const char *path, draw_fn draw, const void *job);

#endif
