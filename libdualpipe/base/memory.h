/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * memory.h: allocation through the hooks of dp_set_allocator, and sizes that cannot wrap. */
#ifndef DP_BASE_MEMORY_H
#define DP_BASE_MEMORY_H

#include <dualpipe/status.h>
#include <stdbool.h>

/* Zeroed memory for count * bytes; NULL when there is none or the product wraps. Free: dp__free. */
void *dp__calloc(size_t count, size_t bytes);
void *dp__allocate(size_t bytes, size_t alignment);
/* `bytes` bytes that begin with the `used` bytes of `old`, which is freed. NULL: no memory, and
 * `old` stays. */
void *dp__enlarge(void *old, size_t used, size_t bytes);
/* The array of n with room for one more item, NULL as above. */
void *dp__grow(void *array, size_t size, uint32_t n, uint32_t *room);
void dp__free(void *memory);
/* Arrays that live and go together: free the first alone. false: no memory, and all are NULL. */
typedef struct dp__array {
    void *pointer; /* to the pointer to the array */
    size_t count, bytes;
} dp__array_t;
#define DP__ARRAY(pointer, count)                                                                                      \
    {                                                                                                                  \
        &(pointer), (size_t)(count), sizeof *(pointer)                                                                 \
    }
#define dp__arrays(...)                                                                                                \
    dp__arrays_make((const dp__array_t[]){__VA_ARGS__},                                                                \
                    sizeof((const dp__array_t[]){__VA_ARGS__}) / sizeof(dp__array_t))
bool dp__arrays_make(const dp__array_t *arrays, size_t n);
char *dp__strdup(const char *text);

/* true when the result is exact; on false *out is not to be used. */
static inline bool dp__add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
static inline bool dp__mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
/* Rounds up to a multiple of a power of two. */
static inline bool dp__round_up(size_t a, size_t to, size_t *out)
{
    if (__builtin_add_overflow(a, to - 1, out))
        return false;
    *out &= ~(to - 1);
    return true;
}

#endif
