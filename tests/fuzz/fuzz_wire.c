/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fuzz_wire.c: what arrives on a control connection. The first byte says as what:
 *   0, 1   any bytes, at the door of rank 0 and at a rank that has said hello
 *   2, 3   any frames out of a member of the job that has lost its mind, at rank 0 and at another
 *          rank
 *   4      a sealed frame, some of whose bytes are changed on the way: it comes out as it went in,
 *          or not at all
 * A frame is told in 8 bytes: type, from, to, id, value, extra (2), payload bytes; then the
 * payload. */
#include "fuzz.h"
#include "tests/support/two_ranks.h"

enum { RANKS = 3, HELD = 96 };

typedef struct input {
    const uint8_t *at, *end;
} input_t;

static uint8_t take(input_t *in)
{
    return in->at < in->end ? *in->at++ : 0;
}

/* Small numbers, and those around the end of the range. */
static uint32_t take_number(input_t *in)
{
    const uint8_t byte = take(in);

    return byte < 200 ? byte : byte < 228 ? (uint32_t)(byte - 256) : 0x7fffffffu - (byte - 228u);
}

static void feed_bytes(dp__process_t *p, dp__connection_t *c, int fd, input_t *in)
{
    while (in->at < in->end && c->phase != DP__PHASE_GONE && !c->closing) {
        const size_t n = in->end - in->at < 4096 ? (size_t)(in->end - in->at) : 4096;

        if (send(fd, in->at, n, MSG_NOSIGNAL) != (ssize_t)n)
            return;
        in->at += n;
        two_receive(p, c);
    }
}

static void feed_frames(dp__process_t *p, input_t *in)
{
    while (in->at < in->end && p->connections.count > 0 && !dp__cause_is_set(&p->cause)) {
        dp__connection_t *c = p->connections.all[take(in) % p->connections.count];
        dp__frame_t frame = {.type = take(in)};
        unsigned char *payload;

        frame.from = (int32_t)take_number(in);
        frame.to = (int32_t)take_number(in);
        frame.id = take_number(in);
        frame.value = (int32_t)take_number(in);
        frame.extra = take(in) % 2 == 0 ? take_number(in) : take_number(in) << 16;
        frame.bytes = take(in);
        if (frame.bytes > (size_t)(in->end - in->at))
            frame.bytes = (uint32_t)(in->end - in->at);
        payload = malloc(frame.bytes + 1); /* exactly, so that a sanitizer sees a read behind it */
        FUZZ_REQUIRE(payload != NULL);
        if (frame.bytes > 0)
            memcpy(payload, in->at, frame.bytes);
        payload[frame.bytes] = '\0';
        in->at += frame.bytes;
        frame.payload = payload;
        if (c->phase != DP__PHASE_GONE && !c->closing)
            (dp__is_hub(p) ? dp__hub_frame : dp__spoke_frame)(p, c, &frame);
        free(payload);
        if (dp__is_hub(p)) {
            if (dp__hang_report_over(p, dp__now_ns()))
                dp__hang_report_conclude(p);
            FUZZ_REQUIRE(p->hub.introduced >= 1 && p->hub.introduced <= RANKS);
            FUZZ_REQUIRE(p->hub.gather.arrived >= 0 && p->hub.gather.arrived < RANKS);
        } else
            FUZZ_REQUIRE(p->control.received <= p->control.bytes);
        for (size_t i = p->connections.count; i-- > 0;) {
            c = p->connections.all[i];
            c->wire.out_begin = c->wire.out_end = 0; /* nobody listens */
            if (c->phase == DP__PHASE_GONE) {
                if (dp__is_hub(p) && c->rank >= 0 && p->contacts[c->rank].connection == c)
                    p->contacts[c->rank].connection = NULL;
                dp__connection_drop(p, c);
            }
        }
    }
    if (dp__cause_is_set(&p->cause))
        FUZZ_REQUIRE(p->cause.status < 0);
}

/* The other side of a connection, which is closed in the end. */
static dp__connection_t *open_connection(dp__process_t *p, dp__phase_t phase, int *fd_out)
{
    dp__connection_t *c;
    int ends[2];

    FUZZ_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    c = dp__connection_new(p, ends[0]);
    FUZZ_REQUIRE(c != NULL);
    c->phase = phase;
    c->deadline_ns = INT64_MAX;
    *fd_out = ends[1];
    return c;
}

static void at_the_door(dp__process_t *p, dp__phase_t phase, input_t *in)
{
    int fd;
    dp__connection_t *c = open_connection(p, phase, &fd);

    feed_bytes(p, c, fd, in);
    close(fd);
}

/* All are there: sealed, introduced or about to be. */
static void from_members(dp__process_t *p, input_t *in)
{
    static const uint8_t key[DP__SHA256_BYTES];
    const int others = dp__is_hub(p) ? RANKS - 1 : 1;
    char out[HELD], offered[HELD] = "", pulled[HELD];
    dp__request_t request = {.id = 1, .data = out, .bytes = 8};
    const uint8_t how = take(in);
    int fds[RANKS];

    for (int r = 0; r < others; r++) {
        dp__connection_t *c = open_connection(p, (how & 1) != 0 ? DP__PHASE_JOINED : DP__PHASE_WELCOME, &fds[r]);

        dp__wire_seal(&c->wire, key, key);
        c->transcript = (dp__transcript_t){.rank = r + 1, .size = RANKS};
        memcpy(c->transcript.digest, p->join.digest, sizeof(p->join.digest));
        if ((how & 1) == 0)
            continue;
        c->rank = dp__is_hub(p) ? r + 1 : 0;
        p->contacts[c->rank].connection = c;
        p->peers.rows[c->rank] = (dp__peer_t){c->rank, 200 + r, dp__machine_add(p, "other", "elsewhere"), 0};
        p->peers.count = dp__is_hub(p) ? RANKS : 1;
        p->hub.introduced += dp__is_hub(p);
        dp__signal_post(&p->join.done, 1);
    }
    p->control = (dp__collective_t){.number = 1, .all_out = out, .bytes = RANKS * (how >> 4)};
    p->collect = (dp__collecting_t){.offered = offered,
                                    .offered_bytes = sizeof(offered),
                                    .offered_in = 2,
                                    .pulled = pulled,
                                    .pulled_in = 2,
                                    .pulled_from = dp__is_hub(p) ? 2 : 0,
                                    .pulled_bytes = sizeof(pulled)};
    if (!dp__is_hub(p))
        p->requests.open = &request;
    else if ((how & 2) != 0)
        (void)dp__hang_report_open(p, 1, DP_ERR_TIMEOUT, "rank 1 has waited too long");
    feed_frames(p, in);
    p->requests.open = NULL;
    for (int r = 0; r < others; r++)
        close(fds[r]);
}

static void changed_on_the_way(input_t *in)
{
    uint8_t key[DP__SHA256_BYTES], back[DP__SHA256_BYTES], payload[64], *bytes;
    const uint32_t length = take(in) % sizeof(payload);
    const dp__frame_t sent = {.type = take(in), .id = take(in), .bytes = length, .payload = payload};
    dp__wire_t from, to;
    dp__frame_t got;
    bool changed = false;
    int ends[2];

    memset(key, take(in), sizeof(key));
    memset(back, 7, sizeof(back));
    memset(payload, take(in), sizeof(payload));
    FUZZ_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    dp__wire_init(&from, ends[0]);
    dp__wire_init(&to, ends[1]);
    dp__wire_seal(&from, key, back);
    dp__wire_seal(&to, back, key);
    FUZZ_REQUIRE(dp__wire_send(&from, &sent));
    bytes = from.out + from.out_begin;
    while (in->at < in->end) {
        const size_t at = take(in) % (from.out_end - from.out_begin);
        const uint8_t flips = take(in);

        bytes[at] ^= flips;
        changed |= flips != 0;
    }
    FUZZ_REQUIRE(dp__wire_flush(&from));
    if (dp__wire_receive(&to, &got) == DP_OK)
        FUZZ_REQUIRE(got.type == sent.type && got.id == sent.id && got.from == 0 && got.to == 0 && got.value == 0 &&
                     got.extra == 0 && got.bytes == length && memcmp(got.payload, payload, length) == 0);
    else
        FUZZ_REQUIRE(changed);
    dp__wire_fini(&from);
    dp__wire_fini(&to);
}

static void be_silent(void *user, int level, const char *origin, const char *message)
{
    (void)user, (void)level, (void)origin, (void)message;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    input_t in = {data, data + bytes};
    const uint8_t as = take(&in) % 5;
    dp__process_t *p;

    dp_log_set(be_silent, NULL, DP_LOG_ERROR);
    /* what is told of spans is read, and no file is made */
    setenv("DUALPIPE_HANG_TRACE", "/nowhere/trace.json", 1);
    if (as == 4) {
        changed_on_the_way(&in);
        return 0;
    }
    p = two_open(as % 2, RANKS);
    if (as < 2)
        at_the_door(p, DP__PHASE_HELLO, &in);
    else
        from_members(p, &in);
    two_close(p);
    return 0;
}
