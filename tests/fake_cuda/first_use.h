/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * first_use.h: lazy loading, for the fakes of libraries. As with CUDA's, the first use of a
 * library's kernel loads it, which takes the context for itself and waits until all its streams are
 * idle: a stream that waits for work which is not enqueued yet, by a rank of the same process, then
 * waits for ever. CUDA_MODULE_LOADING=EAGER turns it off. */
#ifndef FAKE_FIRST_USE_H
#define FAKE_FIRST_USE_H

#include "tests/support/debug.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;
    uint64_t *keys;
    size_t count, room;
} first_use_seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool first_use_is_new(uint64_t key)
{
    bool known = false;

    pthread_mutex_lock(&first_use_seen.lock);
    for (size_t i = 0; i < first_use_seen.count && !known; i++)
        known = first_use_seen.keys[i] == key;
    if (!known && first_use_seen.count == first_use_seen.room) {
        size_t room = first_use_seen.room > 0 ? 2 * first_use_seen.room : 64;
        uint64_t *keys = realloc(first_use_seen.keys, room * sizeof(*keys));

        if (keys != NULL) {
            first_use_seen.keys = keys;
            first_use_seen.room = room;
        }
    }
    if (!known && first_use_seen.count < first_use_seen.room)
        first_use_seen.keys[first_use_seen.count++] = key;
    pthread_mutex_unlock(&first_use_seen.lock);
    return !known;
}

/* Before a library puts its kernel `key` on a stream. */
static void first_use(uint64_t key)
{
    const char *loading = getenv("CUDA_MODULE_LOADING"), *path = debug_entry("lib.cuda");
    void *driver;
    union {
        void *object;
        void (*function)(void);
    } load = {NULL};

    if ((loading != NULL && strcmp(loading, "EAGER") == 0) || path == NULL || !first_use_is_new(key))
        return;
    driver = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (driver == NULL)
        return;
    load.object = dlsym(driver, "fake_load_kernel");
    if (load.object != NULL)
        load.function();
    dlclose(driver);
}

#endif
