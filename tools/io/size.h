/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * size.h: sizes of memory on the command line and in what commands say. */
#ifndef DP_TOOLS_SIZE_H
#define DP_TOOLS_SIZE_H

#include "options.h"

#define SIZE_GIB 1073741824.0

/* read() of a row whose member is a double: bytes, or a number with KiB, MiB, GiB, TiB, kB, MB, GB
 * or TB behind it. */
int size_read(const command_t *command, const option_row_t *row, void *into, const char *value);
/* "72.4 GiB"; "130 bytes" where there are few. Returns text. */
const char *size_text(double bytes, char *text, size_t room);
/* The unit for a column of numbers up to `most` bytes: "GiB"; how many bytes it is. */
const char *size_unit(double most, double *bytes_out);

#endif
