/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * xxh64.c: four lanes of 8 bytes each, then the rest, then a last mixing. */
#include "checkpoint/xxh64.h"

#include <string.h>

static const uint64_t prime[5] = {0x9E3779B185EBCA87u, 0xC2B2AE3D27D4EB4Fu, 0x165667B19E3779F9u, 0x85EBCA77C2B2AE63u,
                                  0x27D4EB2F165667C5u};

static uint64_t rotate_left(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

/* Little-endian, whatever the machine is. */
static uint64_t read_word(const unsigned char *at, int bytes)
{
    uint64_t x = 0;

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (bytes == 8) {
        memcpy(&x, at, 8);
        return x;
    }
#endif
    for (int i = 0; i < bytes; i++)
        x |= (uint64_t)at[i] << 8 * i;
    return x;
}

static uint64_t mix_lane(uint64_t lane, uint64_t input)
{
    return rotate_left(lane + input * prime[1], 31) * prime[0];
}

static void mix_stripe(uint64_t lane[4], const unsigned char *at)
{
    for (int i = 0; i < 4; i++)
        lane[i] = mix_lane(lane[i], read_word(at + 8 * i, 8));
}

void dp__xxh64_begin(dp__xxh64_t *x)
{
    *x = (dp__xxh64_t){.lane = {prime[0] + prime[1], prime[1], 0, 0 - prime[0]}};
}

void dp__xxh64_add(dp__xxh64_t *x, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    const size_t kept = x->bytes % 32;

    x->bytes += bytes;
    if (kept > 0) {
        const size_t n = bytes < 32 - kept ? bytes : 32 - kept;

        memcpy(x->kept + kept, at, n);
        at += n, bytes -= n;
        if (kept + n < 32)
            return;
        mix_stripe(x->lane, x->kept);
    }
    for (; bytes >= 32; at += 32, bytes -= 32)
        mix_stripe(x->lane, at);
    if (bytes > 0)
        memcpy(x->kept, at, bytes);
}

/* Fewer than 32 bytes are left. */
static uint64_t add_rest(uint64_t digest, const unsigned char *at, size_t bytes)
{
    for (; bytes >= 8; at += 8, bytes -= 8)
        digest = rotate_left(digest ^ mix_lane(0, read_word(at, 8)), 27) * prime[0] + prime[3];
    if (bytes >= 4) {
        digest = rotate_left(digest ^ read_word(at, 4) * prime[0], 23) * prime[1] + prime[2];
        at += 4, bytes -= 4;
    }
    for (; bytes > 0; at++, bytes--)
        digest = rotate_left(digest ^ *at * prime[4], 11) * prime[0];
    return digest;
}

uint64_t dp__xxh64_end(const dp__xxh64_t *x)
{
    static const int by[4] = {1, 7, 12, 18};
    uint64_t digest = prime[4];

    if (x->bytes >= 32) {
        digest = 0;
        for (int i = 0; i < 4; i++)
            digest += rotate_left(x->lane[i], by[i]);
        for (int i = 0; i < 4; i++)
            digest = (digest ^ mix_lane(0, x->lane[i])) * prime[0] + prime[3];
    }
    digest = add_rest(digest + x->bytes, x->kept, x->bytes % 32);
    digest = (digest ^ digest >> 33) * prime[1];
    digest = (digest ^ digest >> 29) * prime[2];
    return digest ^ digest >> 32;
}
