/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * hash.h: FNV-1a, 64 bits: over the bytes of a text, or over fields (padding is never hashed). */
#ifndef DP_BASE_HASH_H
#define DP_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define DP__HASH_BEGIN UINT64_C(14695981039346656037)

static inline uint64_t dp__hash_field(uint64_t hash, uint64_t field)
{
    return (hash ^ field) * UINT64_C(1099511628211);
}

static inline uint64_t dp__hash_fields(uint64_t hash, const int64_t *fields, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = dp__hash_field(hash, (uint64_t)fields[i]);
    return hash;
}

static inline uint64_t dp__hash_text(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++)
        hash = dp__hash_field(hash, (unsigned char)*text);
    return hash;
}

#endif
