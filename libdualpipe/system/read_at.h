/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * read_at.h: reads a range of a file. */
#ifndef DP_SYSTEM_READ_AT_H
#define DP_SYSTEM_READ_AT_H

#include <stddef.h>
#include <stdint.h>

/* Reads `bytes` bytes from byte `at` on, however often the kernel gives less. Returns how many are
 * missing: 0 is success; else errno says why, and is 0 where the file ended. */
size_t dp__read_at(int fd, void *data, size_t bytes, uint64_t at);

#endif
