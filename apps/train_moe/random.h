/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * random.h: random numbers as a function of a key and a counter, so that any rank can draw any
 * number without drawing the ones before it. The mixing function is the finaliser of SplitMix64
 * (Steele, Lea, Flood, OOPSLA 2014). */
#ifndef TRAIN_MOE_RANDOM_H
#define TRAIN_MOE_RANDOM_H

#include <math.h>
#include <stdint.h>

static inline uint64_t random_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A key below `key`: random_key(random_key(seed, step), sequence), say. */
static inline uint64_t random_key(uint64_t key, uint64_t name)
{
    return random_mix(key + 0x9e3779b97f4a7c15u * (name + 1));
}

static inline uint64_t random_bits(uint64_t key, uint64_t counter)
{
    return random_mix(random_key(key, counter));
}

/* In [0, 1). */
static inline double random_uniform(uint64_t key, uint64_t counter)
{
    return (double)(random_bits(key, counter) >> 11) * 0x1p-53;
}

/* Mean 0, variance 1 (Box and Muller, 1958). */
static inline double random_normal(uint64_t key, uint64_t counter)
{
    const double u = 1 - random_uniform(key, 2 * counter), v = random_uniform(key, 2 * counter + 1);

    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

#endif
