/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * files.h: temporary folders, copies of files, and a count of open descriptors, for tests. */
#ifndef DP_TESTS_FILES_H
#define DP_TESTS_FILES_H

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <check.h>

#define PATH_BYTES 4096

/* A separate folder, for path[PATH_BYTES]; files_remove() takes it away. */
void files_folder(char *path);

void files_remove(const char *folder);

/* "<folder>/<name>", in out[PATH_BYTES]; returns out. */
char *files_path(char *out, const char *folder, const char *name);

/* The whole file, to be given to free(). */
unsigned char *files_read(const char *path, size_t *bytes_out);

/* A new file with mode 0644, whatever was there and whatever the umask. */
void files_write(const char *path, const void *bytes, size_t n);

int files_open_descriptors(void);

#endif
