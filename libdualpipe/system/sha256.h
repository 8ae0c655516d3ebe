/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * sha256.h: SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), for the rendezvous and for digests. */
#ifndef DP_SYSTEM_SHA256_H
#define DP_SYSTEM_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define DP__SHA256_BYTES 32

typedef struct dp__sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
} dp__sha256_t;

void dp__sha256_init(dp__sha256_t *h);
void dp__sha256_update(dp__sha256_t *h, const void *data, size_t bytes);
void dp__sha256_final(dp__sha256_t *h, uint8_t digest[DP__SHA256_BYTES]);

typedef struct dp__hmac {
    dp__sha256_t inner, outer;
} dp__hmac_t;
void dp__hmac_init(dp__hmac_t *m, const void *key, size_t key_bytes);
void dp__hmac_update(dp__hmac_t *m, const void *data, size_t bytes);
void dp__hmac_final(dp__hmac_t *m, uint8_t digest[DP__SHA256_BYTES]);

/* 1 when equal, in time that does not depend on where they differ. */
int dp__digest_equal(const uint8_t a[DP__SHA256_BYTES], const uint8_t b[DP__SHA256_BYTES]);

#endif
