/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * sha256.c: SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104). */
#include "system/sha256.h"

#include <string.h>

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate_right(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void compress(uint32_t state[8], const uint8_t block[64])
{
    uint32_t w[64], v[8];

    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 | (uint32_t)block[4 * t + 2] << 8 |
               block[4 * t + 3];
    for (int t = 16; t < 64; t++) {
        uint32_t s0 = rotate_right(w[t - 15], 7) ^ rotate_right(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t s1 = rotate_right(w[t - 2], 17) ^ rotate_right(w[t - 2], 19) ^ w[t - 2] >> 10;

        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    memcpy(v, state, sizeof(v));
    for (int t = 0; t < 64; t++) {
        uint32_t choose = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        uint32_t t1 =
            v[7] + (rotate_right(v[4], 6) ^ rotate_right(v[4], 11) ^ rotate_right(v[4], 25)) + choose + k[t] + w[t];
        uint32_t t2 = (rotate_right(v[0], 2) ^ rotate_right(v[0], 13) ^ rotate_right(v[0], 22)) + majority;

        memmove(v + 1, v, 7 * sizeof(v[0]));
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

void dp__sha256_init(dp__sha256_t *h)
{
    /* square roots of the first eight primes */
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

    memcpy(h->state, start, sizeof(start));
    h->bytes = 0;
}

void dp__sha256_update(dp__sha256_t *h, const void *data, size_t bytes)
{
    const uint8_t *from = data;

    while (bytes > 0) {
        size_t at = h->bytes % 64;
        size_t n = 64 - at < bytes ? 64 - at : bytes;

        memcpy(h->block + at, from, n);
        h->bytes += n;
        from += n;
        bytes -= n;
        if (h->bytes % 64 == 0)
            compress(h->state, h->block);
    }
}

void dp__sha256_final(dp__sha256_t *h, uint8_t digest[DP__SHA256_BYTES])
{
    static const uint8_t pad[64] = {0x80};
    uint64_t bits = h->bytes * 8;
    uint8_t length[8];

    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    dp__sha256_update(h, pad, 1 + (119 - h->bytes % 64) % 64);
    dp__sha256_update(h, length, sizeof(length));
    for (int i = 0; i < DP__SHA256_BYTES; i++)
        digest[i] = (uint8_t)(h->state[i / 4] >> (24 - 8 * (i % 4)));
}

void dp__hmac_init(dp__hmac_t *m, const void *key, size_t key_bytes)
{
    uint8_t block[64] = {0}, pad[64];

    if (key_bytes > sizeof(block)) {
        dp__sha256_init(&m->inner);
        dp__sha256_update(&m->inner, key, key_bytes);
        dp__sha256_final(&m->inner, block);
    } else {
        memcpy(block, key, key_bytes);
    }
    for (int i = 0; i < 64; i++)
        pad[i] = block[i] ^ 0x36;
    dp__sha256_init(&m->inner);
    dp__sha256_update(&m->inner, pad, 64);
    for (int i = 0; i < 64; i++)
        pad[i] = block[i] ^ 0x5c;
    dp__sha256_init(&m->outer);
    dp__sha256_update(&m->outer, pad, 64);
}

void dp__hmac_update(dp__hmac_t *m, const void *data, size_t bytes)
{
    dp__sha256_update(&m->inner, data, bytes);
}

void dp__hmac_final(dp__hmac_t *m, uint8_t digest[DP__SHA256_BYTES])
{
    dp__sha256_final(&m->inner, digest);
    dp__sha256_update(&m->outer, digest, DP__SHA256_BYTES);
    dp__sha256_final(&m->outer, digest);
}

int dp__digest_equal(const uint8_t a[DP__SHA256_BYTES], const uint8_t b[DP__SHA256_BYTES])
{
    volatile uint8_t difference = 0;

    for (int i = 0; i < DP__SHA256_BYTES; i++)
        difference |= a[i] ^ b[i];
    return difference == 0;
}
