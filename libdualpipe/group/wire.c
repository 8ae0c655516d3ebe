/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * wire.c: frames on a stream socket. A frame is 32 bytes of head, the payload, and, once sealed,
 * HMAC-SHA256 over (sequence number, head, payload) under the key of its direction. All numbers are
 * little-endian. */
#include "group/wire.h"
#include "base/memory.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC      0x31677044u /* "Dpg1" */
#define KEPT_BYTES 4096        /* a larger buffer is for one frame: there are many connections */

void dp__wire_init(dp__wire_t *wire, int fd)
{
    memset(wire, 0, sizeof(*wire));
    wire->fd = fd;
}

void dp__wire_fini(dp__wire_t *wire)
{
    if (wire->fd >= 0)
        close(wire->fd);
    dp__free(wire->body);
    dp__free(wire->out);
    explicit_bzero(wire, sizeof(*wire));
    wire->fd = -1;
}

void dp__wire_seal(dp__wire_t *wire, const uint8_t send_key[DP__SHA256_BYTES],
                   const uint8_t receive_key[DP__SHA256_BYTES])
{
    memcpy(wire->send_key, send_key, DP__SHA256_BYTES);
    memcpy(wire->receive_key, receive_key, DP__SHA256_BYTES);
    wire->sealed = true;
}

/* ---- encoding ---- */

static void encode(const dp__frame_t *frame, uint32_t bytes, unsigned char head[DP__FRAME_HEAD_BYTES])
{
    dp__put_u32(head, MAGIC);
    dp__put_u32(head + 4, frame->type);
    dp__put_u32(head + 8, (uint32_t)frame->from);
    dp__put_u32(head + 12, (uint32_t)frame->to);
    dp__put_u32(head + 16, frame->id);
    dp__put_u32(head + 20, (uint32_t)frame->value);
    dp__put_u32(head + 24, frame->extra);
    dp__put_u32(head + 28, bytes);
}

static void seal(const uint8_t key[DP__SHA256_BYTES], uint64_t sequence, const unsigned char *head, const void *payload,
                 size_t bytes, uint8_t mac[DP__SHA256_BYTES])
{
    dp__hmac_t hmac;

    sequence = htole64(sequence);
    dp__hmac_init(&hmac, key, DP__SHA256_BYTES);
    dp__hmac_update(&hmac, &sequence, sizeof(sequence));
    dp__hmac_update(&hmac, head, DP__FRAME_HEAD_BYTES);
    dp__hmac_update(&hmac, payload, bytes);
    dp__hmac_final(&hmac, mac);
}

/* ---- sending ---- */

static bool make_wire_room(dp__wire_t *wire, size_t bytes)
{
    size_t used = wire->out_end - wire->out_begin, room;
    unsigned char *larger;

    if (wire->out_begin > 0) {
        memmove(wire->out, wire->out + wire->out_begin, used);
        wire->out_begin = 0;
        wire->out_end = used;
    }
    if (used + bytes <= wire->out_room)
        return true;
    room = 2 * wire->out_room > used + bytes ? 2 * wire->out_room : used + bytes;
    larger = dp__enlarge(wire->out, used, room);
    if (larger == NULL)
        return false;
    wire->out = larger;
    wire->out_room = room;
    return true;
}

bool dp__wire_send2(dp__wire_t *wire, const dp__frame_t *frame, const void *first, size_t first_bytes,
                    const void *second, size_t second_bytes)
{
    size_t payload = first_bytes + second_bytes;
    size_t total = DP__FRAME_HEAD_BYTES + payload + (wire->sealed ? DP__SHA256_BYTES : 0);
    unsigned char *at;

    if (!make_wire_room(wire, total))
        return false;
    at = wire->out + wire->out_end;
    encode(frame, (uint32_t)payload, at);
    if (first_bytes > 0)
        memcpy(at + DP__FRAME_HEAD_BYTES, first, first_bytes);
    if (second_bytes > 0)
        memcpy(at + DP__FRAME_HEAD_BYTES + first_bytes, second, second_bytes);
    if (wire->sealed)
        seal(wire->send_key, wire->sent++, at, at + DP__FRAME_HEAD_BYTES, payload, at + DP__FRAME_HEAD_BYTES + payload);
    wire->out_end += total;
    return true;
}

bool dp__wire_send(dp__wire_t *wire, const dp__frame_t *frame)
{
    return dp__wire_send2(wire, frame, frame->payload, frame->bytes, NULL, 0);
}

bool dp__wire_pending(const dp__wire_t *wire)
{
    return wire->out_end > wire->out_begin;
}

/* What is empty takes no more than it must. Without memory for less it stays as it is: later frames
 * need it. */
static void shrink(dp__wire_t *wire)
{
    unsigned char *smaller = wire->out_room > KEPT_BYTES ? dp__allocate(KEPT_BYTES, 16) : NULL;

    wire->out_begin = wire->out_end = 0;
    if (smaller == NULL)
        return;
    dp__free(wire->out);
    wire->out = smaller;
    wire->out_room = KEPT_BYTES;
}

bool dp__wire_flush(dp__wire_t *wire)
{
    while (dp__wire_pending(wire)) {
        ssize_t n =
            send(wire->fd, wire->out + wire->out_begin, wire->out_end - wire->out_begin, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (n < 0) {
            wire->error = errno;
            return false;
        }
        wire->out_begin += (size_t)n;
    }
    shrink(wire);
    return true;
}

/* ---- receiving ---- */

/* DP_OK when *got has reached `bytes`. */
static dp_status_t fill_bytes(dp__wire_t *wire, unsigned char *to, size_t bytes, size_t *got)
{
    while (*got < bytes) {
        ssize_t n = recv(wire->fd, to + *got, bytes - *got, MSG_DONTWAIT);

        if (n == 0)
            return DP_ERR_PEER;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return DP_PENDING;
        if (n < 0) {
            wire->error = wire->error != 0 ? wire->error : errno;
            return DP_ERR_PEER;
        }
        *got += (size_t)n;
        wire->bytes_in += (uint64_t)n;
    }
    return DP_OK;
}

static dp_status_t begin_body(dp__wire_t *wire)
{
    uint32_t bytes = dp__get_u32(wire->head + 28);

    if (dp__get_u32(wire->head) != MAGIC || bytes > (wire->sealed ? DP__FRAME_SEALED_BYTES : DP__FRAME_BARE_BYTES))
        return DP_ERR_PROTOCOL;
    wire->body_bytes = bytes + (wire->sealed ? DP__SHA256_BYTES : 0);
    wire->body_got = 0;
    if (wire->body_bytes + 1 > wire->body_room || wire->body_room > KEPT_BYTES) {
        dp__free(wire->body);
        wire->body_room = 0;
        wire->body = dp__allocate(wire->body_bytes + 1, 16);
        if (wire->body == NULL)
            return DP_ERR_NOMEM;
        wire->body_room = wire->body_bytes + 1;
    }
    return DP_OK;
}

dp_status_t dp__wire_receive(dp__wire_t *wire, dp__frame_t *frame_out)
{
    uint32_t bytes;
    dp_status_t status;

    if (wire->head_got < DP__FRAME_HEAD_BYTES) {
        status = fill_bytes(wire, wire->head, DP__FRAME_HEAD_BYTES, &wire->head_got);
        if (status == DP_OK)
            status = begin_body(wire);
        if (status != DP_OK)
            return status;
    }
    status = fill_bytes(wire, wire->body, wire->body_bytes, &wire->body_got);
    if (status != DP_OK)
        return status;
    bytes = dp__get_u32(wire->head + 28);
    if (wire->sealed) {
        uint8_t mac[DP__SHA256_BYTES];

        seal(wire->receive_key, wire->received++, wire->head, wire->body, bytes, mac);
        if (!dp__digest_equal(mac, wire->body + bytes))
            return DP_ERR_PROTOCOL;
    }
    wire->body[bytes] = '\0';
    *frame_out = (dp__frame_t){.type = dp__get_u32(wire->head + 4),
                               .from = (int32_t)dp__get_u32(wire->head + 8),
                               .to = (int32_t)dp__get_u32(wire->head + 12),
                               .id = dp__get_u32(wire->head + 16),
                               .value = (int32_t)dp__get_u32(wire->head + 20),
                               .extra = dp__get_u32(wire->head + 24),
                               .bytes = bytes,
                               .payload = wire->body};
    wire->head_got = 0;
    return DP_OK;
}
