/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * format.h: the formats in which commands write. */
#ifndef DP_TOOLS_FORMAT_H
#define DP_TOOLS_FORMAT_H

#include "options.h"

typedef enum format {
    FORMAT_TEXT,
    FORMAT_TSV,
    FORMAT_CSV,
    FORMAT_JSON,
    FORMAT_MARKDOWN,
    FORMAT_SVG,
    FORMAT_PNG,
    FORMAT_PDF,
    FORMAT_TRACE,
    FORMAT_HTML,
    FORMAT_COUNT
} format_t;

/* read() of a row whose words are some of "text tsv csv json markdown svg png pdf trace html" and
 * whose member is a format_t. */
int format_read(const command_t *command, const option_row_t *row, void *into, const char *value);

#endif
