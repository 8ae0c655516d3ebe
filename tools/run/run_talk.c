/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_talk.c: lines between `dualpipe run` and its agents; control characters and % are sent as
 * %XX. */
#include "run_talk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool make_room_for_line(char **text, size_t *room, size_t wanted)
{
    char *moved;

    if (wanted <= *room)
        return true;
    moved = realloc(*text, 2 * wanted);
    if (moved == NULL)
        return false;
    *text = moved;
    *room = 2 * wanted;
    return true;
}

int talk_read(talk_in_t *in, int fd)
{
    ssize_t n;

    if (in->taken > 0)
        memmove(in->text, in->text + in->taken, in->used - in->taken);
    in->used -= in->taken;
    in->taken = 0;
    if (!make_room_for_line(&in->text, &in->room, in->used + 4096))
        return -1;
    n = read(fd, in->text + in->used, in->room - in->used);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    in->used += (size_t)n;
    return n > 0 ? 1 : -1;
}

char *talk_line(talk_in_t *in)
{
    char *line = in->text, *end = NULL;

    if (in->used > in->taken) {
        line += in->taken;
        end = memchr(line, '\n', in->used - in->taken);
    }
    if (end == NULL)
        return NULL;
    *end = '\0';
    in->taken = (size_t)(end + 1 - in->text);
    return line;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

char *talk_split(char *line)
{
    char *rest = strchr(line, ' '), *to;

    if (rest == NULL)
        return line + strlen(line);
    *rest++ = '\0';
    to = rest;
    for (const char *from = rest; *from != '\0'; from++)
        if (from[0] == '%' && hex(from[1]) >= 0 && hex(from[2]) >= 0) {
            *to++ = (char)(16 * hex(from[1]) + hex(from[2]));
            from += 2;
        } else {
            *to++ = *from;
        }
    *to = '\0';
    return rest;
}

void talk_put(talk_out_t *out, const char *mark, const char *word, const char *argument)
{
    static const char digits[] = "0123456789abcdef";
    char *to;

    if (!make_room_for_line(&out->text, &out->room,
                            out->used + strlen(mark) + strlen(word) + 3 * strlen(argument) + 3)) {
        out->broken = true;
        return;
    }
    to = out->text + out->used;
    to += sprintf(to, "%s%s ", mark, word);
    for (const unsigned char *c = (const unsigned char *)argument; *c != '\0'; c++)
        if (*c < 32 || *c == '%' || *c == 127) {
            *to++ = '%';
            *to++ = digits[*c / 16];
            *to++ = digits[*c % 16];
        } else {
            *to++ = (char)*c;
        }
    *to++ = '\n';
    out->used = (size_t)(to - out->text);
}

void talk_flush(talk_out_t *out, int fd)
{
    size_t done = 0;

    while (done < out->used && !out->broken) {
        ssize_t n = write(fd, out->text + done, out->used - done);

        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0 && errno != EINTR)
            out->broken = true;
        if (n > 0)
            done += (size_t)n;
    }
    if (done > 0)
        memmove(out->text, out->text + done, out->used - done);
    out->used -= done;
}
