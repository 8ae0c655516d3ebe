/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layout.h: arrays one behind the other in a region of memory. */
#ifndef PLUGINS_COMMON_LAYOUT_H
#define PLUGINS_COMMON_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct layout {
    size_t alignment; /* of every array, in bytes */
    size_t bytes;     /* so far */
    bool overflow;    /* from then on when they outgrow an address space */
} layout_t;

/* Where the next array begins. */
static inline size_t layout_take(layout_t *l, size_t rows, size_t columns, size_t element_bytes)
{
    const size_t at = l->bytes;
    size_t bytes;

    if (__builtin_mul_overflow(rows, columns, &bytes) || __builtin_mul_overflow(bytes, element_bytes, &bytes) ||
        __builtin_add_overflow(bytes, at + l->alignment - 1, &bytes) || bytes > PTRDIFF_MAX)
        l->overflow = true;
    else
        l->bytes = bytes - bytes % l->alignment;
    return at;
}

/* Arrays of saved and of the backward buffer, each kind in a separate region. This bit of an
 * array's place says which. */
#define LAYOUT_BACKWARD_BUFFER ((size_t)1 << (8 * sizeof(size_t) - 1))

typedef struct layout_pair {
    layout_t saved, backward_buffer;
} layout_pair_t;

static inline size_t layout_keep(layout_pair_t *l, bool saved, size_t rows, size_t columns, size_t element_bytes)
{
    return saved ? layout_take(&l->saved, rows, columns, element_bytes)
                 : layout_take(&l->backward_buffer, rows, columns, element_bytes) | LAYOUT_BACKWARD_BUFFER;
}

static inline void *layout_find(void *saved, void *backward_buffer, size_t at)
{
    return (at & LAYOUT_BACKWARD_BUFFER) != 0 ? (char *)backward_buffer + (at & ~LAYOUT_BACKWARD_BUFFER)
                                              : (char *)saved + at;
}

#endif
