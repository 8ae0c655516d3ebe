/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * out.c: text in bounded blocks. */
#include "schedule/out.h"

#include <stdio.h>
#include <string.h>

void dp__out_open(dp__out_t *out, dp_write_fn write, void *user)
{
    out->write = write;
    out->user = user;
    out->status = DP_OK;
    out->used = 0;
}

static void flush_buffer(dp__out_t *out)
{
    if (out->status >= 0 && out->used > 0)
        out->status = out->write(out->user, out->buffer, out->used);
    out->used = 0;
}

void dp__out_bytes(dp__out_t *out, const char *text, size_t bytes)
{
    for (size_t part; bytes > 0; text += part, bytes -= part) {
        if (out->used == sizeof(out->buffer))
            flush_buffer(out);
        part = bytes < sizeof(out->buffer) - out->used ? bytes : sizeof(out->buffer) - out->used;
        memcpy(out->buffer + out->used, text, part);
        out->used += part;
    }
}

void dp__out_put(dp__out_t *out, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    int bytes;

    va_start(args, fmt);
    bytes = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (bytes < 0 || (size_t)bytes >= sizeof(text)) {
        if (out->status >= 0)
            out->status = dp_fail(DP_ERR_OVERFLOW, "text: %d bytes at once", bytes);
        return;
    }
    dp__out_bytes(out, text, (size_t)bytes);
}

/* Bytes of the UTF-8 character at `at`; 0: none (cut, overlong, a surrogate, past U+10FFFF). */
static size_t utf8_bytes(const unsigned char *at)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t bytes = *at < 0x80 ? 1 : *at >= 0xf0 && *at < 0xf8 ? 4 : *at >= 0xe0 ? 3 : *at >= 0xc0 ? 2 : 0;
    uint32_t code;

    if (bytes < 2 || *at >= 0xf8)
        return bytes == 1 ? 1 : 0;
    code = *at & (0xffu >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3f);
    }
    return code < least[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : bytes;
}

void dp__out_json(dp__out_t *out, const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at != 0;) {
        size_t bytes = utf8_bytes(at);

        if (bytes == 0)
            dp__out_bytes(out, "\\ufffd", 6);
        else if (*at == '"' || *at == '\\')
            dp__out_put(out, "\\%c", *at);
        else if (*at < 0x20)
            dp__out_put(out, "\\u%04x", *at);
        else
            dp__out_bytes(out, (const char *)at, bytes);
        at += bytes > 0 ? bytes : 1;
    }
}

dp_status_t dp__out_close(dp__out_t *out)
{
    flush_buffer(out);
    return out->status;
}
