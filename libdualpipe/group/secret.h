/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * secret.h: what the ranks of one job know and strangers do not. */
#ifndef DP_GROUP_SECRET_H
#define DP_GROUP_SECRET_H

#include "group/wire.h"

#define DP__SECRET_MAX_BYTES 4096
#define DP__SECRET_MIN_BYTES 16

typedef struct dp__secret {
    size_t bytes; /* 0: there is none */
    uint8_t data[DP__SECRET_MAX_BYTES];
} dp__secret_t;

/* From `secret` of DUALPIPE_LAUNCH (a pipe, read once in a process and kept) or
 * DUALPIPE_SECRET_FILE; neither: none. DP_ERR_SECURITY when there is something that cannot be
 * trusted. [any] */
dp_status_t dp__secret_load(dp__secret_t *secret_out);

/* What both sides of a handshake have said. */
typedef struct dp__transcript {
    uint32_t version;
    int32_t rank, size; /* as the joining rank says */
    uint8_t rank_nonce[DP__NONCE_BYTES], hub_nonce[DP__NONCE_BYTES];
    uint8_t digest[DP__SHA256_BYTES]; /* of the joining rank's settings */
} dp__transcript_t;

/* HMAC over a label for the role and use, and the transcript. */
#define DP__LABEL_RANK_PROOF "dualpipe 1 proof of a rank"
#define DP__LABEL_HUB_PROOF  "dualpipe 1 proof of rank 0"
#define DP__LABEL_RANK_KEY   "dualpipe 1 frames of a rank"
#define DP__LABEL_HUB_KEY    "dualpipe 1 frames of rank 0"
void dp__secret_prove(const dp__secret_t *secret, const char *label, const dp__transcript_t *transcript,
                      uint8_t out[DP__SHA256_BYTES]);

#endif
