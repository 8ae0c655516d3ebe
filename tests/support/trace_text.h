/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_text.h: a text in memory as what a JSON reader reads, in blocks of any size. */
#ifndef DP_TESTS_TRACE_TEXT_H
#define DP_TESTS_TRACE_TEXT_H

#include <string.h>

#include "trace/json.h"

typedef struct trace_text {
    const char *text;
    size_t bytes, at, block; /* block 0: all at once */
} trace_text_t;

static inline trace_text_t trace_text_of(const char *text)
{
    return (trace_text_t){.text = text, .bytes = strlen(text)};
}

static inline dp_status_t trace_text_read(void *user, void *buffer, size_t room, size_t *bytes_out)
{
    trace_text_t *from = user;
    size_t n = from->bytes - from->at;

    n = n < room ? n : room;
    n = from->block > 0 && n > from->block ? from->block : n;
    memcpy(buffer, from->text + from->at, n);
    from->at += n;
    *bytes_out = n;
    return DP_OK;
}

#endif
