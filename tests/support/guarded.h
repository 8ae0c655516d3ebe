/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * guarded.h: memory between two walls of known bytes, filled with NaN to begin with: a write past
 * an end is seen by guarded_check(), a read of what was never written shows in the results. */
#ifndef DP_TESTS_GUARDED_H
#define DP_TESTS_GUARDED_H

#include <stdlib.h>
#include <string.h>

#include <check.h>

enum { GUARDED_WALL = 256, GUARDED_BRICK = 0xa5 };

typedef struct guarded {
    unsigned char *start;
    size_t bytes;
} guarded_t;

static inline void guarded_poison(const guarded_t *g)
{
    memset(g->start + GUARDED_WALL, 0xff, g->bytes); /* a NaN as float and as double */
}

/* The memory itself, aligned to 64 bytes. */
static inline void *guarded_memory(const guarded_t *g)
{
    return g->start + GUARDED_WALL;
}

static inline guarded_t guarded_allocate(size_t bytes)
{
    guarded_t g = {NULL, bytes};
    void *start;

    ck_assert_int_eq(posix_memalign(&start, 64, bytes + 2 * GUARDED_WALL), 0);
    g.start = start;
    memset(g.start, GUARDED_BRICK, GUARDED_WALL);
    memset(g.start + GUARDED_WALL + bytes, GUARDED_BRICK, GUARDED_WALL);
    guarded_poison(&g);
    return g;
}

static inline guarded_t guarded_zeros(size_t bytes)
{
    guarded_t g = guarded_allocate(bytes);

    memset(guarded_memory(&g), 0, bytes);
    return g;
}

static inline void guarded_check(const guarded_t *g, const char *what)
{
    size_t i;

    for (i = 0; i < GUARDED_WALL; i++) {
        if (g->start[i] != GUARDED_BRICK)
            ck_abort_msg("%s: byte -%zu was written", what, GUARDED_WALL - i);
        if (g->start[GUARDED_WALL + g->bytes + i] != GUARDED_BRICK)
            ck_abort_msg("%s: byte %zu of %zu was written", what, g->bytes + i, g->bytes);
    }
}

static inline void guarded_free(guarded_t *g, const char *what)
{
    guarded_check(g, what);
    free(g->start);
    g->start = NULL;
}

#endif
