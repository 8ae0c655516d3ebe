/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * wire.h: frames on a non-blocking stream socket, first bare, then each with a sequence number and
 * a MAC. */
#ifndef DP_GROUP_WIRE_H
#define DP_GROUP_WIRE_H

#include "system/sha256.h"

#include <dualpipe/status.h>
#include <endian.h>
#include <stdbool.h>
#include <string.h>

#define DP__FRAME_HEAD_BYTES 32
/* most payload before both sides have proved themselves */
#define DP__FRAME_BARE_BYTES   4064
#define DP__FRAME_SEALED_BYTES (1024u * 1024) /* the table of 4096 ranks fits */
#define DP__CHUNK_BYTES        (256u * 1024)  /* longer data are sent in several frames */
#define DP__NONCE_BYTES        32

typedef enum dp__frame_type {
    /* bare, to rank 0: version, rank, size, nonce, digest of the settings */
    DP__FRAME_HELLO = 1,
    DP__FRAME_CHALLENGE = 2, /* bare, from rank 0: nonce */
    DP__FRAME_PROOF = 3,     /* bare, to rank 0: HMAC */
    DP__FRAME_WELCOME = 4,   /* bare, from rank 0: HMAC; sealed from here on */
    DP__FRAME_REFUSED = 5,   /* from rank 0: value = status, text */
    /* to rank 0: value = pid, id = its last epoch, extra = what it holds, host name, settings */
    DP__FRAME_INTRODUCE = 6,
    DP__FRAME_READY = 7,  /* from rank 0: id = the epoch; who the ranks are, see peers.c */
    DP__FRAME_PUT = 8,    /* to rank 0: id, key, data; value = 1: until all have opened */
    DP__FRAME_GET = 9,    /* to rank 0: id, key */
    DP__FRAME_REPLY = 10, /* from rank 0: id, value = status, data or text */
    /* to rank 0: id = number of the control collective, value = kind, extra = root, data */
    DP__FRAME_GATHER = 11,
    /* from rank 0: id = number of the control collective, extra = offset, data */
    DP__FRAME_ALL = 12,
    DP__FRAME_WANT = 13, /* relayed: id = number of the control collective, extra = offset */
    DP__FRAME_DATA = 14, /* relayed: the same, data */
    /* to rank 0: value = status, text; id = number of a control collective that took too long;
     * extra = 1: nothing is to be found out any more */
    DP__FRAME_ABORT = 15,
    /* from rank 0: value = status, extra = 1: of what cannot be replaced, text */
    DP__FRAME_CAUSE = 16,
    DP__FRAME_SEEN = 17, /* to rank 0: the cause has arrived */
    /* between hosts: value = 1: text is what the sender does, 0: what it did last; a number of 64
     * bits (from rank 0: ns since any rank made progress; to it: one that changes when the rank
     * makes progress), text */
    DP__FRAME_BEAT = 18,
    DP__FRAME_CLOCK = 19, /* to rank 0: the sender's time; from it: the same and rank 0's */
    DP__FRAME_ASK = 20,   /* from rank 0: what are you at? value = 1: and what were you at? */
    /* to rank 0: value = 1: it is in it, + 2: it computes, + 4: with its last spans; extra = 1 +
     * the rank that it waits for; ns for so long, steps, ns of the latest, ns computed in it,
     * resident bytes, text, text of ranks that stand still, then what told_spans.c writes */
    DP__FRAME_TELL = 21,
    DP__FRAME_STEP = 22 /* to rank 0: words of a dp__step_call_t */
} dp__frame_type_t;

typedef struct dp__frame {
    uint32_t type;
    int32_t from, to;
    uint32_t id;
    int32_t value;
    uint32_t extra;
    uint32_t bytes;
    const unsigned char *payload; /* received: valid until the next receive; followed by a NUL */
} dp__frame_t;

/* Members that frames of the handshake have no use for are zero, until a later version finds
 * one. */
static inline bool dp__frame_is_bare(const dp__frame_t *frame)
{
    return frame->from == 0 && frame->to == 0 && frame->id == 0 && frame->extra == 0 &&
           (frame->value == 0 || frame->type == DP__FRAME_REFUSED);
}

/* Numbers are little-endian. */
static inline void dp__put_u32(unsigned char *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof(value));
}
static inline uint32_t dp__get_u32(const unsigned char *at)
{
    uint32_t value;

    memcpy(&value, at, sizeof(value));
    return le32toh(value);
}

typedef struct dp__wire {
    int fd;
    bool sealed;
    uint8_t send_key[DP__SHA256_BYTES], receive_key[DP__SHA256_BYTES];
    uint64_t sent, received; /* sealed frames */
    uint64_t bytes_in;
    int error; /* errno of what broke the connection; 0: the other side has closed it */

    unsigned char head[DP__FRAME_HEAD_BYTES];
    size_t head_got;
    unsigned char *body; /* payload, then MAC when sealed, then a NUL */
    size_t body_bytes, body_got, body_room;

    unsigned char *out;
    size_t out_begin, out_end, out_room;
} dp__wire_t;

/* Takes over fd, which is non-blocking. */
void dp__wire_init(dp__wire_t *wire, int fd);
void dp__wire_fini(dp__wire_t *wire);
/* From the next frame on, in both directions; what waits to be sent stays bare. */
void dp__wire_seal(dp__wire_t *wire, const uint8_t send_key[DP__SHA256_BYTES],
                   const uint8_t receive_key[DP__SHA256_BYTES]);

/* Appends a frame to what is to be sent. false: no memory. */
bool dp__wire_send(dp__wire_t *wire, const dp__frame_t *frame);
/* The same with a payload in two parts. */
bool dp__wire_send2(dp__wire_t *wire, const dp__frame_t *frame, const void *first, size_t first_bytes,
                    const void *second, size_t second_bytes);
bool dp__wire_pending(const dp__wire_t *wire);
/* Sends what the socket takes. false: the connection is broken. */
bool dp__wire_flush(dp__wire_t *wire);

/* DP_OK: a frame; DP_PENDING: not yet; DP_ERR_PEER: the other side has closed or is gone;
 * DP_ERR_PROTOCOL: what came is no frame of ours; DP_ERR_NOMEM. Records no message. */
dp_status_t dp__wire_receive(dp__wire_t *wire, dp__frame_t *frame_out);

#endif
