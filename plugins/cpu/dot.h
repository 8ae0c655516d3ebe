/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * dot.h: sums whose bits do not depend on the width of vectors. */
#ifndef PLUGINS_CPU_DOT_H
#define PLUGINS_CPU_DOT_H

#include "real.h"

#include <stddef.h>

/* In double, so that neither range nor length of a row matters to float. */
INLINED double cpu_dot(const real_t *restrict a, const real_t *restrict b, size_t n)
{
    double lanes[LANES] = {0}, sum = 0;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (size_t l = 0; l < LANES; l++)
            lanes[l] += (double)a[i + l] * (double)b[i + l];
    for (; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    for (size_t l = 0; l < LANES; l++)
        sum += lanes[l];
    return sum;
}

#endif
