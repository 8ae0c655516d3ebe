/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * settings.c: comparing the settings of two ranks, field by field. */
#include "group/settings.h"
#include "group/group.h"

#include <string.h>

#define SHOWN 80 /* characters of a value in the message */

typedef struct field {
    const char *name, *value;
    size_t name_bytes, value_bytes;
} field_t;

/* Steps over the field at *at; false at the end. A line without '=' is a name without a value. */
static bool next_field(const char **at, field_t *field_out)
{
    const char *line = *at, *end, *equals;

    while (*line == '\n')
        line++;
    if (*line == '\0')
        return false;
    end = strchrnul(line, '\n');
    equals = memchr(line, '=', (size_t)(end - line));
    field_out->name = line;
    field_out->name_bytes = (size_t)((equals != NULL ? equals : end) - line);
    field_out->value = equals != NULL ? equals + 1 : end;
    field_out->value_bytes = (size_t)(end - field_out->value);
    *at = end;
    return true;
}

static bool find_field(const char *settings, const field_t *like, field_t *field_out)
{
    while (next_field(&settings, field_out))
        if (field_out->name_bytes == like->name_bytes && memcmp(field_out->name, like->name, like->name_bytes) == 0)
            return true;
    return false;
}

static void append_value(char *text, size_t bytes, const field_t *field, int32_t rank)
{
    if (field == NULL)
        dp__append(text, bytes, "not set on rank %d", rank);
    else
        dp__append(text, bytes, "%.*s%s on rank %d", field->value_bytes < SHOWN ? (int)field->value_bytes : SHOWN,
                   field->value, field->value_bytes > SHOWN ? "..." : "", rank);
}

static void append_difference(char *text, size_t bytes, const field_t *name, const field_t *ours, int32_t our_rank,
                              const field_t *theirs, int32_t their_rank)
{
    dp__append(text, bytes, "%s%.*s is ", text[0] != '\0' ? "; " : "",
               name->name_bytes < SHOWN ? (int)name->name_bytes : SHOWN, name->name);
    append_value(text, bytes, ours, our_rank);
    dp__append(text, bytes, " and ");
    append_value(text, bytes, theirs, their_rank);
}

bool dp__settings_equal(const char *ours, int32_t our_rank, const char *theirs, int32_t their_rank, char *text,
                        size_t bytes)
{
    bool equal = true;
    field_t mine, other;

    text[0] = '\0';
    for (const char *at = ours; next_field(&at, &mine);) {
        bool there = find_field(theirs, &mine, &other);

        if (there && mine.value_bytes == other.value_bytes && memcmp(mine.value, other.value, mine.value_bytes) == 0)
            continue;
        append_difference(text, bytes, &mine, &mine, our_rank, there ? &other : NULL, their_rank);
        equal = false;
    }
    for (const char *at = theirs; next_field(&at, &other);)
        if (!find_field(ours, &other, &mine)) {
            append_difference(text, bytes, &other, NULL, our_rank, &other, their_rank);
            equal = false;
        }
    return equal;
}
