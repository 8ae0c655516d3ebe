/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * frontier.h: the shortest step that is found for each amount of memory. */
#ifndef DP_TOOLS_FRONTIER_H
#define DP_TOOLS_FRONTIER_H

#include <dualpipe/search.h>

#include "args.h"
#include "tools/io/output.h"

enum { FRONTIER_ROWS = 12 };

typedef struct frontier {
    const args_t *args;
    /* by memory; each step shorter than the one before */
    dp_search_result_t rows[FRONTIER_ROWS];
    int32_t count;
} frontier_t;

/* Searches under one limit after the other, each below what was found before, in the time of the
 * request together. DP_ERR_REJECTED: nothing fits. Free with frontier_clear in any case. */
dp_status_t frontier_make(const args_t *args, const dp_search_request_t *request, frontier_t *frontier);
void frontier_clear(frontier_t *frontier);
/* In the format of the command line. */
dp_status_t frontier_put(const frontier_t *frontier, output_t *output);
dp_status_t frontier_draw(const frontier_t *frontier, const char *path);

#endif
