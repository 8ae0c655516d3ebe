/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * replay.c: feeds files to a fuzz target: those named, or its corpus, and every prefix of small
 * ones. */
#include "fuzz.h"

#include <dirent.h>
#include <string.h>

#define LARGEST      (1 << 20)
#define ALL_PREFIXES 300

static long inputs;

static int feed(const char *path)
{
    uint8_t *data = malloc(LARGEST);
    FILE *f = fopen(path, "rb");
    size_t bytes;

    if (f == NULL || data == NULL) {
        perror(path);
        free(data);
        return 1;
    }
    bytes = fread(data, 1, LARGEST, f);
    fclose(f);
    for (size_t end = bytes <= ALL_PREFIXES ? 0 : bytes; end <= bytes; end++) {
        /* so that a sanitizer sees a read behind the end */
        uint8_t *exact = malloc(end > 0 ? end : 1);

        memcpy(exact, data, end);
        (void)LLVMFuzzerTestOneInput(exact, end);
        free(exact);
        inputs++;
    }
    free(data);
    return 0;
}

static int feed_corpus(const char *name)
{
    const char *top = getenv("DP_TEST_SRCDIR");
    char folder[1024], path[2048];
    struct dirent *entry;
    int failures = 0;
    DIR *dir;

    snprintf(folder, sizeof(folder), "%s/tests/fuzz/corpus/%s", top != NULL ? top : ".", name);
    dir = opendir(folder);
    if (dir == NULL) {
        perror(folder);
        return 1;
    }
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        failures += feed(path);
    }
    closedir(dir);
    return failures + (inputs == 0);
}

int main(int argc, char **argv)
{
    const char *name = strrchr(argv[0], '/');
    int failures = 0;

    name = name != NULL ? name + 1 : argv[0];
    if (argc == 1)
        failures = feed_corpus(strncmp(name, "fuzz_", 5) == 0 ? name + 5 : name);
    for (int i = 1; i < argc; i++)
        failures += feed(argv[i]);
    printf("%s: %ld inputs\n", name, inputs);
    return failures > 0;
}
