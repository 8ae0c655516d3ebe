/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * files.c: temporary folders, copies of files, and a count of open descriptors, for tests. */
#include "files.h"

void files_folder(char *path)
{
    const char *base = getenv("TMPDIR");

    snprintf(path, PATH_BYTES, "%s/dp-test-XXXXXX", base != NULL && base[0] == '/' ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(path));
}

static int files_remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st;
    (void)kind;
    (void)where;
    return remove(path);
}

void files_remove(const char *folder)
{
    ck_assert_int_eq(nftw(folder, files_remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

char *files_path(char *out, const char *folder, const char *name)
{
    int n = snprintf(out, PATH_BYTES, "%s/%s", folder, name);

    ck_assert_int_gt(n, 0);
    ck_assert_int_lt(n, PATH_BYTES);
    return out;
}

unsigned char *files_read(const char *path, size_t *bytes_out)
{
    FILE *file = fopen(path, "rb");
    unsigned char *bytes;
    long n;

    ck_assert_msg(file != NULL, "%s cannot be read", path);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    n = ftell(file);
    ck_assert_int_ge(n, 0);
    rewind(file);
    bytes = malloc((size_t)n + 1);
    ck_assert_ptr_nonnull(bytes);
    ck_assert_uint_eq(fread(bytes, 1, (size_t)n, file), (size_t)n);
    bytes[n] = '\0';
    fclose(file);
    *bytes_out = (size_t)n;
    return bytes;
}

void files_write(const char *path, const void *bytes, size_t n)
{
    int fd;

    unlink(path);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    ck_assert_msg(fd >= 0, "%s cannot be written", path);
    ck_assert_int_eq(fchmod(fd, 0644), 0);
    ck_assert_int_eq(write(fd, bytes, n), (ssize_t)n);
    ck_assert_int_eq(close(fd), 0);
}

int files_open_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int n = 0;

    ck_assert_ptr_nonnull(folder);
    while (readdir(folder) != NULL)
        n++;
    closedir(folder);
    return n;
}
