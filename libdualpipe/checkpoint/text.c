/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * text.c: a text that grows by doubling. */
#include "checkpoint/text.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

/* Room for `bytes` more and a 0 behind them. */
static bool make_text_room(dp__text_t *text, size_t bytes)
{
    const size_t needed = text->bytes + bytes + 1, room = needed > 2 * text->room ? needed + 1024 : 2 * text->room;
    char *grown;

    if (text->failed || needed <= text->room)
        return !text->failed;
    grown = dp__enlarge(text->at, text->bytes, room);
    text->failed = grown == NULL;
    if (text->failed)
        return false;
    text->at = grown;
    text->room = room;
    return true;
}

void dp__text_add(dp__text_t *text, const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !make_text_room(text, (size_t)n))
        return;
    va_start(args, format);
    vsnprintf(text->at + text->bytes, (size_t)n + 1, format, args);
    va_end(args);
    text->bytes += (size_t)n;
}

void dp__text_add_string(dp__text_t *text, const char *string)
{
    dp__text_add(text, "\"");
    for (;;) {
        const int plain = (int)strcspn(string, "\"\\");

        dp__text_add(text, "%.*s", plain, string);
        if (string[plain] == '\0')
            break;
        dp__text_add(text, "\\%c", string[plain]);
        string += plain + 1;
    }
    dp__text_add(text, "\"");
}

void dp__text_free(dp__text_t *text)
{
    dp__free(text->at);
    *text = (dp__text_t){0};
}
