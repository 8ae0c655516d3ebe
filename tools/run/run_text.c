/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_text.c: what `dualpipe run` says itself. */
#include "run_job.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

int64_t run_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void run_clean(char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] < 32 || text[i] == 127)
            text[i] = '?';
}

static const char *before = "dualpipe run: ";

void run_say_as(const char *text)
{
    before = text;
}

void run_say(const char *fmt, ...)
{
    char text[512];
    int used = snprintf(text, sizeof(text), "%s", before), more;
    va_list args;

    va_start(args, fmt);
    more = vsnprintf(text + used, sizeof(text) - (size_t)used - 1, fmt, args);
    va_end(args);
    more = more < (int)sizeof(text) - used - 1 ? more : (int)sizeof(text) - used - 2;
    run_clean(text + used, (size_t)more);
    used += more;
    text[used++] = '\n';
    if (write(STDERR_FILENO, text, (size_t)used) < 0)
        return; /* nobody listens */
}
