/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * format.c: the formats by name. */
#include "format.h"

#include <string.h>

int format_read(const command_t *command, const option_row_t *row, void *into, const char *value)
{
    static const char *const names[FORMAT_COUNT] = {"text", "tsv", "csv", "json",  "markdown",
                                                    "svg",  "png", "pdf", "trace", "html"};
    const option_row_t choice = {.name = row->name, .value = row->value, .kind = OPTION_CHOICE, .words = row->words};
    int32_t word;
    int code = option_take(command, &choice, &word, value);

    for (int f = 0; f < FORMAT_COUNT && code == CMD_OK; f++)
        if (strcmp(value, names[f]) == 0)
            *(format_t *)((char *)into + row->at) = (format_t)f;
    return code;
}
