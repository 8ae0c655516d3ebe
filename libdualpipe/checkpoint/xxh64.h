/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * xxh64.h: XXH64 with seed 0, a 64-bit digest against accidents (not against forgers), as its
 * specification has it: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md */
#ifndef DP_CHECKPOINT_XXH64_H
#define DP_CHECKPOINT_XXH64_H

#include <stddef.h>
#include <stdint.h>

typedef struct dp__xxh64 {
    uint64_t lane[4], bytes;
    unsigned char kept[32]; /* the last bytes % 32 */
} dp__xxh64_t;

void dp__xxh64_begin(dp__xxh64_t *x);
void dp__xxh64_add(dp__xxh64_t *x, const void *data, size_t bytes);
uint64_t dp__xxh64_end(const dp__xxh64_t *x);

static inline uint64_t dp__xxh64_of(const void *data, size_t bytes)
{
    dp__xxh64_t x;

    dp__xxh64_begin(&x);
    dp__xxh64_add(&x, data, bytes);
    return dp__xxh64_end(&x);
}

#endif
