/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * elf_check.h: is this file a whole shared object for this machine, and a plugin by its symbols?
 * Asked before it is loaded, so before any of its code runs. */
#ifndef DP_PLUGIN_ELF_CHECK_H
#define DP_PLUGIN_ELF_CHECK_H

#include <dualpipe/status.h>

/* fd: opened for reading, not moved. size: of the file. DP_ERR_PLUGIN says what is wrong ("is
 * truncated: ..."). */
dp_status_t dp__elf_check(int fd, uint64_t size, const char *path);
/* What its symbols say, for a file that has passed: it must export dp_plugin_entry, of this ABI
 * major where the file itself tells, and neither export other dp_* symbols nor carry parts of
 * libdualpipe.a. A file without section headers tells nothing and passes. preference:
 * dp_plugin_t's, where the file itself tells; else as it was. */
dp_status_t dp__elf_symbols_check(int fd, uint64_t size, const char *path, uint32_t *preference);

#endif
