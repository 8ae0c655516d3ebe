/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * raw_rank.h: either side of the handshake, step by step, so that a test can stop or lie anywhere
 * in it. */
#ifndef DP_TESTS_RAW_RANK_H
#define DP_TESTS_RAW_RANK_H

#include "forked.h"

#include "group/process.h"

#include <poll.h>
#include <sys/random.h>

typedef struct raw {
    dp__wire_t wire;
    dp__transcript_t transcript;
    dp__secret_t secret;
} raw_t;

int raw_connect(int port);

void raw_open(raw_t *raw, int fd, const char *secret);

bool raw_send(raw_t *raw, const dp__frame_t *frame);

/* The next frame, DP_ERR_TIMEOUT after five seconds. */
dp_status_t raw_receive(raw_t *raw, dp__frame_t *frame);

/* ---- as a rank ---- */

bool raw_hello(raw_t *raw, int32_t rank, int32_t size);

bool raw_hear_challenge(raw_t *raw);

bool raw_prove(raw_t *raw);

bool raw_hear_welcome(raw_t *raw);

/* What a rank without settings says. */
bool raw_introduce(raw_t *raw);

#endif
