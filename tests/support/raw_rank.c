/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * raw_rank.c: either side of the handshake, step by step, so that a test can stop or lie anywhere
 * in it. */
#include "raw_rank.h"

int raw_connect(int port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

void raw_open(raw_t *raw, int fd, const char *secret)
{
    memset(raw, 0, sizeof(*raw));
    dp__wire_init(&raw->wire, fd);
    raw->secret.bytes = strlen(secret);
    memcpy(raw->secret.data, secret, raw->secret.bytes);
}

bool raw_send(raw_t *raw, const dp__frame_t *frame)
{
    return dp__wire_send(&raw->wire, frame) && dp__wire_flush(&raw->wire);
}

dp_status_t raw_receive(raw_t *raw, dp__frame_t *frame)
{
    int64_t end = forked_now_ns() + (int64_t)(5e9 * forked_scale());

    while (forked_now_ns() < end) {
        struct pollfd p = {.fd = raw->wire.fd, .events = POLLIN};
        dp_status_t status = dp__wire_receive(&raw->wire, frame);

        if (status != DP_PENDING)
            return status;
        (void)poll(&p, 1, 100);
    }
    return DP_ERR_TIMEOUT;
}

bool raw_hello(raw_t *raw, int32_t rank, int32_t size)
{
    unsigned char hello[12 + DP__NONCE_BYTES + DP__SHA256_BYTES];
    uint32_t numbers[3] = {DP__PROTOCOL_VERSION, (uint32_t)rank, (uint32_t)size};
    dp__transcript_t *t = &raw->transcript;

    t->version = DP__PROTOCOL_VERSION;
    t->rank = rank;
    t->size = size;
    if (getrandom(t->rank_nonce, DP__NONCE_BYTES, 0) != DP__NONCE_BYTES)
        return false;
    memcpy(hello, numbers, 12);
    memcpy(hello + 12, t->rank_nonce, DP__NONCE_BYTES);
    memcpy(hello + 12 + DP__NONCE_BYTES, t->digest, DP__SHA256_BYTES);
    return raw_send(raw, &(dp__frame_t){.type = DP__FRAME_HELLO, .bytes = sizeof(hello), .payload = hello});
}

bool raw_hear_challenge(raw_t *raw)
{
    dp__frame_t frame;

    if (raw_receive(raw, &frame) != DP_OK || frame.type != DP__FRAME_CHALLENGE || frame.bytes != DP__NONCE_BYTES)
        return false;
    memcpy(raw->transcript.hub_nonce, frame.payload, DP__NONCE_BYTES);
    return true;
}

bool raw_prove(raw_t *raw)
{
    uint8_t proof[DP__SHA256_BYTES];

    dp__secret_prove(&raw->secret, DP__LABEL_RANK_PROOF, &raw->transcript, proof);
    return raw_send(raw, &(dp__frame_t){.type = DP__FRAME_PROOF, .bytes = sizeof(proof), .payload = proof});
}

bool raw_hear_welcome(raw_t *raw)
{
    uint8_t wanted[DP__SHA256_BYTES], ours[DP__SHA256_BYTES], theirs[DP__SHA256_BYTES];
    dp__frame_t frame;

    dp__secret_prove(&raw->secret, DP__LABEL_HUB_PROOF, &raw->transcript, wanted);
    dp__secret_prove(&raw->secret, DP__LABEL_RANK_KEY, &raw->transcript, ours);
    dp__secret_prove(&raw->secret, DP__LABEL_HUB_KEY, &raw->transcript, theirs);
    if (raw_receive(raw, &frame) != DP_OK || frame.type != DP__FRAME_WELCOME || frame.bytes != DP__SHA256_BYTES ||
        memcmp(frame.payload, wanted, sizeof(wanted)) != 0)
        return false;
    dp__wire_seal(&raw->wire, ours, theirs);
    return true;
}

bool raw_introduce(raw_t *raw)
{
    char text[128];
    int bytes = snprintf(text, sizeof(text), "raw%cno machine%clibdualpipe=%s\njob=\n", 0, 0, dp_version());

    return raw_send(raw, &(dp__frame_t){.type = DP__FRAME_INTRODUCE,
                                        .value = (int32_t)getpid(),
                                        .bytes = (uint32_t)bytes,
                                        .payload = (unsigned char *)text});
}
