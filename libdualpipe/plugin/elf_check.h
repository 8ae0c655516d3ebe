/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * elf_check.h: is this file a whole shared object for this machine? Asked before it is mapped. */
#ifndef DP_PLUGIN_ELF_CHECK_H
#define DP_PLUGIN_ELF_CHECK_H

#include <dualpipe/status.h>

/* fd: opened for reading, not moved. size: of the file. DP_ERR_PLUGIN says what is wrong ("is truncated: ..."). */
dp_status_t dp__elf_check(int fd, uint64_t size, const char *path);

#endif
