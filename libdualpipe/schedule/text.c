/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * text.c: lines, cells and numbers. */
#include "schedule/text.h"

#include <stdio.h>
#include <string.h>

bool dp__lines_next(dp__lines_t *lines, dp__line_t *line)
{
    dp__slice_t text;

    if (lines->rest.text == NULL || lines->rest.bytes == 0)
        return false;
    if (lines->number == 0 && lines->rest.bytes >= 3 && memcmp(lines->rest.text, "\xef\xbb\xbf", 3) == 0)
        lines->rest = (dp__slice_t){lines->rest.text + 3, lines->rest.bytes - 3}; /* UTF-8's mark */
    text = dp__slice_cut(&lines->rest, '\n');
    if (text.bytes > 0 && text.text[text.bytes - 1] == '\r')
        text.bytes--;
    *line = (dp__line_t){lines->name, ++lines->number, text.text, text.bytes};
    return true;
}

dp__slice_t dp__slice_cut(dp__slice_t *rest, char separator)
{
    const char *end = rest->bytes > 0 ? memchr(rest->text, separator, rest->bytes) : NULL;
    dp__slice_t cut = *rest;

    if (end == NULL) {
        *rest = (dp__slice_t){NULL, 0};
        return cut;
    }
    cut.bytes = (size_t)(end - rest->text);
    rest->bytes -= cut.bytes + 1;
    rest->text = end + 1;
    return cut;
}

bool dp__slice_is(dp__slice_t span, const char *text)
{
    return span.bytes == strlen(text) && memcmp(span.text, text, span.bytes) == 0;
}

int dp__slice_shown(dp__slice_t span)
{
    return span.bytes < 40 ? (int)span.bytes : 40;
}

dp_status_t dp__slice_number(const dp__line_t *line, dp__slice_t span, const char *what, int64_t low, int64_t high,
                             int64_t *value_out)
{
    bool negative = span.bytes > 0 && span.text[0] == '-';
    size_t digits = negative ? span.bytes - 1 : span.bytes;
    bool is_number = digits >= 1 && digits <= 18; /* which always fits */
    int64_t value = 0;

    for (size_t i = span.bytes - digits; is_number && i < span.bytes; i++) {
        is_number = span.text[i] >= '0' && span.text[i] <= '9';
        value = 10 * value + (span.text[i] - '0');
    }
    if (!is_number)
        return dp__line_fail(line, "%s is '%.*s'; a number is needed", what, dp__slice_shown(span),
                             span.text != NULL ? span.text : "");
    value = negative ? -value : value;
    if (value < low || value > high)
        return dp__line_fail(line, "%s is %lld; %lld to %lld are possible", what, (long long)value, (long long)low,
                             (long long)high);
    *value_out = value;
    return DP_OK;
}

dp_status_t dp__line_fail(const dp__line_t *line, const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return dp_fail(DP_ERR_INVALID, "%s:%lld: %s", line->name, (long long)line->number, text);
}
