/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * size.c: sizes of memory on the command line and in what commands say. */
#include "size.h"

#include <string.h>

#include "cost_keys.h"

static const struct {
    const char *name;
    double bytes;
} units[] = {{"TiB", 1024.0 * SIZE_GIB},
             {"GiB", SIZE_GIB},
             {"MiB", SIZE_GIB / 1024.0},
             {"KiB", 1024.0},
             {"bytes", 1.0},
             {"TB", 1e12},
             {"GB", 1e9},
             {"MB", 1e6},
             {"kB", 1e3},
             {"", 1.0}};
enum { UNITS = sizeof(units) / sizeof(units[0]), BINARY = 5 /* those that are printed */ };

int size_read(const command_t *command, const option_row_t *row, void *into, const char *value)
{
    double *bytes = (double *)(void *)((char *)into + row->at);
    const char *end = cost_keys_number(value, bytes);

    for (int i = 0; i < UNITS && end != NULL; i++)
        if (strcmp(end, units[i].name) == 0) {
            *bytes *= units[i].bytes;
            return CMD_OK;
        }
    return command_usage(command, "--%s %s: bytes, or a number with KiB, MiB, GiB or TiB, as 80GiB, is expected",
                         row->name, value);
}

/* Sizes below a unit are told in the next smaller one. */
const char *size_unit(double most, double *bytes_out)
{
    int i = 0;

    while (i < BINARY - 1 && most < units[i].bytes)
        i++;
    *bytes_out = units[i].bytes;
    return units[i].name;
}

const char *size_text(double bytes, char *text, size_t room)
{
    double unit;
    const char *name = size_unit(bytes, &unit);

    snprintf(text, room, "%.4g %s", bytes / unit, name);
    return text;
}
