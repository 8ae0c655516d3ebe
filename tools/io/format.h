/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * format.h: the formats in which commands write. */
#ifndef DP_TOOLS_FORMAT_H
#define DP_TOOLS_FORMAT_H

typedef enum format {
    FORMAT_TEXT,
    FORMAT_TSV,
    FORMAT_CSV,
    FORMAT_JSON,
    FORMAT_SVG,
    FORMAT_PNG,
    FORMAT_PDF,
    FORMAT_TRACE,
    FORMAT_COUNT
} format_t;

#endif
