/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * memory.c: allocation through replaceable hooks. */
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static void *malloc_allocate(void *user, size_t bytes, size_t alignment)
{
    void *memory = NULL;

    (void)user;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void malloc_release(void *user, void *memory)
{
    (void)user;
    free(memory);
}

static const dp_allocator_t malloc_hooks = {NULL, malloc_allocate, malloc_release};
static dp_allocator_t hooks = {NULL, malloc_allocate, malloc_release};

void dp_set_allocator(const dp_allocator_t *replacement)
{
    hooks = replacement != NULL ? *replacement : malloc_hooks;
}

void *dp__allocate(size_t bytes, size_t alignment)
{
    return hooks.allocate(hooks.user, bytes > 0 ? bytes : 1, alignment < 16 ? 16 : alignment);
}

void *dp__calloc(size_t count, size_t bytes)
{
    size_t total;
    void *memory;

    if (!dp__mul(count, bytes, &total))
        return NULL;
    memory = dp__allocate(total, 64);
    if (memory != NULL)
        memset(memory, 0, total);
    return memory;
}

void *dp__enlarge(void *old, size_t used, size_t bytes)
{
    void *memory = dp__allocate(bytes, 64);

    if (memory == NULL)
        return NULL;
    if (used > 0)
        memcpy(memory, old, used);
    dp__free(old);
    return memory;
}

void *dp__grow(void *array, size_t size, uint32_t n, uint32_t *room)
{
    void *grown = n < *room ? array : dp__enlarge(array, n * size, (2 * (size_t)*room + 16) * size);

    if (grown != NULL && n == *room)
        *room = 2 * *room + 16;
    return grown;
}

void dp__free(void *memory)
{
    if (memory != NULL)
        hooks.release(hooks.user, memory);
}

/* A program that writes behind one array would reach the next one unseen. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { GAP = 64 };
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
enum { GAP = 0 };
#endif

bool dp__arrays_make(const dp__array_t *arrays, size_t n)
{
    size_t total = 0, bytes;
    bool fits = true;
    char *at;

    for (size_t k = 0; k < n; k++)
        fits = fits && dp__mul(arrays[k].count, arrays[k].bytes, &bytes) && dp__round_up(bytes, 64, &bytes) &&
               dp__add(bytes, GAP, &bytes) && dp__add(total, bytes, &total);
    at = fits ? dp__calloc(total, 1) : NULL;
    for (size_t k = 0; k < n; k++) {
        memcpy(arrays[k].pointer, &at, sizeof(at));
        if (at == NULL)
            continue;
        bytes = arrays[k].count * arrays[k].bytes;
        ASAN_POISON_MEMORY_REGION(at + bytes, (bytes + 63) / 64 * 64 + GAP - bytes);
        at += (bytes + 63) / 64 * 64 + GAP;
    }
    return at != NULL;
}

char *dp__strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = dp__allocate(bytes, 16);

    return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}
