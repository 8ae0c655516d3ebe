/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_channels.c: dp.comm/1: messages, slots and credits. */
#include "comm_rig.h"
#include "guard.h"

#include <stdio.h>
#include <string.h>

/* Leaves the case unless nothing wrong has arrived. */
#define EXPECT_RIGHT(t, rig, what)                                                                                     \
    EXPECT(t, (rig).wrong == 0, "%s: %llu bytes are not those that were sent", (what), (unsigned long long)(rig).wrong)
#define EXPECT_MET(t) EXPECT(t, conform_meet(t), "another rank failed")

static void messages_arrive_in_order_and_whole(conform_t *t)
{
    static const size_t sizes[] = {1, 100, 4096, 70001};
    rig_t rig;

    if (!conform_rig_open(&rig, t, "pair", 0))
        return;
    for (uint32_t slots = 1; slots <= 4; slots++) {
        line_t line;

        EXPECT_OK(t, conform_line_open(&rig, slots, 1 - t->rank, t->rank == 0, slots, sizes[slots - 1], &line));
        EXPECT_OK(t, rig.vt->start(rig.comm));
        for (uint32_t i = 0; i < 150; i++) {
            size_t bytes = conform_size_of_message(i, line.bytes);

            if (t->rank == 0)
                EXPECT_OK(t, conform_send_message(&line, i, bytes));
            else
                EXPECT_OK(t, conform_receive_message(&line, i, bytes));
        }
        EXPECT_OK(t, conform_synchronize_all(&rig));
        EXPECT_RIGHT(t, rig, "150 messages over one channel");
    }
    conform_rig_close(&rig);
}

static void every_rank_talks_to_every_other(conform_t *t)
{
    enum { BYTES = 300, MESSAGES = 60 };
    line_t to[CONFORM_RANKS_MAX], from[CONFORM_RANKS_MAX];
    rig_t rig;

    if (!conform_rig_open(&rig, t, "mesh", 0))
        return;
    for (int32_t p = 0; p < t->size; p++) {
        if (p == t->rank)
            continue;
        EXPECT_OK(t, conform_line_open(&rig, 5, p, true, 2, BYTES, &to[p]));
        EXPECT_OK(t, conform_line_open(&rig, 5, p, false, 2, BYTES, &from[p]));
    }
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (uint32_t i = 0; i < MESSAGES; i++) {
        for (int32_t k = 1; k < t->size; k++)
            EXPECT_OK(t, conform_send_message(&to[(t->rank + k) % t->size], i, conform_size_of_message(i, BYTES)));
        for (int32_t k = 1; k < t->size; k++)
            EXPECT_OK(t, conform_receive_message(&from[(t->rank + t->size - k) % t->size], i,
                                                 conform_size_of_message(i, BYTES)));
    }
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_RIGHT(t, rig, "messages between all pairs of ranks");
    conform_rig_close(&rig);
}

/* Three channels of one direction whose messages leave together, and one back. */
static void a_bundle_takes_several_channels(conform_t *t)
{
    static const size_t sizes[3] = {64, 5000, 300};
    line_t lines[3], back, *together[3] = {&lines[0], &lines[1], &lines[2]};
    rig_t rig;

    if (!conform_rig_open(&rig, t, "bundles", 0))
        return;
    for (uint32_t i = 0; i < 3; i++) { /* each side opens them in another order */
        uint32_t c = t->rank == 0 ? i : 2 - i;

        EXPECT_OK(t, conform_line_open(&rig, c, 1 - t->rank, t->rank == 0, 2, sizes[c], &lines[c]));
    }
    EXPECT_OK(t, conform_line_open(&rig, 0, 1 - t->rank, t->rank == 1, 2, 100, &back));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (uint32_t i = 0; i < 60; i++) {
        size_t bytes[3];

        for (int c = 0; c < 3; c++)
            bytes[c] = conform_size_of_message(i + (uint32_t)c, sizes[c]);
        if (t->rank == 0) {
            EXPECT_OK(t, conform_send_bundle(together, 3, i, bytes));
            EXPECT_OK(t, conform_receive_message(&back, i, 100));
            continue;
        }
        EXPECT_OK(t, conform_receive_bundle(together, 3, i, bytes));
        for (int c = 0; c < 3; c++) {
            EXPECT_OK(t, conform_arrived(&lines[c], i, rig.streams[DP_LANE_COMPUTE]));
            EXPECT_OK(t, conform_look_at_message(&lines[c], i, bytes[c], rig.streams[DP_LANE_COMPUTE]));
            EXPECT_OK(t, conform_release_message(&lines[c], i, rig.streams[DP_LANE_COMPUTE]));
        }
        EXPECT_OK(t, conform_send_message(&back, i, 100));
    }
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_RIGHT(t, rig, "60 bundles of three messages");
    conform_rig_close(&rig);
}

/* A sender gets as far as there are slots, without the receiver; then it waits for the first of
 * them, in order. */
static void credits_are_the_slots(conform_t *t)
{
    enum { SLOTS = 3, BYTES = 40 };
    dp_stream_t *s;
    line_t line;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "credits", 0))
        return;
    if (rig.matched) {
        conform_skip(t, "the backend is not one-sided");
        conform_rig_close(&rig);
        return;
    }
    EXPECT_OK(t, conform_line_open(&rig, 1, 1 - t->rank, t->rank == 0, SLOTS, BYTES, &line));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    s = rig.streams[t->rank == 0 ? DP_LANE_P2P : DP_LANE_COMPUTE];
    if (t->rank == 0) {
        for (uint32_t i = 0; i < SLOTS; i++)
            EXPECT_OK(t, conform_send_message(&line, i, BYTES));
        EXPECT_STATUS(t, rig.device_vt->synchronize(s, conform_scaled_ns(3)), DP_OK,
                      "sending as many messages as there are slots, nothing received,");
        EXPECT_OK(t, conform_send_message(&line, SLOTS, BYTES));
        EXPECT_STATUS(t, rig.device_vt->synchronize(s, 30000000), DP_ERR_TIMEOUT,
                      "a message more than there are slots, nothing released, for 30 ms");
    }
    EXPECT_MET(t);
    if (t->rank == 1) {
        for (uint32_t i = 0; i < SLOTS; i++) {
            size_t bytes = BYTES;
            line_t *one = &line;

            EXPECT_OK(t, conform_receive_bundle(&one, 1, i, &bytes));
            EXPECT(t, (uintptr_t)line.slot[i] % 16 == 0, "a slot lies at %p, not at a multiple of 16", line.slot[i]);
        }
        /* all slots are full at once, and each has its own message */
        for (uint32_t i = 0; i < SLOTS; i++)
            EXPECT_OK(t, conform_look_at_message(&line, i, BYTES, s));
        EXPECT_STATUS(t, conform_release_message(&line, 1, s), DP_ERR_INVALID,
                      "a release of message 1 before that of 0");
        EXPECT_OK(t, conform_release_message(&line, 0, s));
        EXPECT_OK(t, conform_receive_bundle(&(line_t *){&line}, 1, SLOTS, &(size_t){BYTES}));
        EXPECT_OK(t, conform_look_at_message(&line, SLOTS, BYTES, s));
        EXPECT_STATUS(t, conform_release_message(&line, SLOTS, s), DP_ERR_INVALID,
                      "a release of message 3 before those of 1 and 2");
        EXPECT_OK(t, conform_synchronize_all(&rig));
        EXPECT_RIGHT(t, rig, "one message in each slot");
    }
    EXPECT_OK(t, conform_synchronize_all(&rig)); /* rank 0: the fourth message has gone */
    conform_rig_close(&rig);
}

/* All slots hold messages; slot 0 is read slowly, and released behind that on another stream than
 * the next receive's. */
static void await_flag(conform_t *t, int flag)
{
    while (!conform_raised(t, flag) && dp_group_health(t->group) == DP_OK)
        conform_nap_ms(1);
}

/* Messages larger than what a runtime buffers: a rank that waits for a flag calls nothing, and what
 * was put on its streams and its peer's goes on all the same. The second round needs the credits of
 * the first. */
static void progress_needs_no_caller(conform_t *t)
{
    enum { SLOTS = 2, BYTES = 8 << 20 };
    line_t line;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "progress", 0))
        return;
    if (rig.matched) {
        conform_skip(t, "the backend is not one-sided");
        conform_rig_close(&rig);
        return;
    }
    EXPECT_OK(t, conform_line_open(&rig, 0, 1 - t->rank, t->rank == 0, SLOTS, BYTES, &line));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (int round = 0; round < 2; round++) {
        if (t->rank == 1)
            await_flag(t, 2 * round);
        for (uint32_t i = 0; i < SLOTS; i++)
            EXPECT_OK(t, t->rank == 0 ? conform_send_message(&line, (uint32_t)round * SLOTS + i, BYTES)
                                      : conform_receive_message(&line, (uint32_t)round * SLOTS + i, BYTES));
        EXPECT_STATUS(t, conform_synchronize_all(&rig), DP_OK, "%s two messages of 8 MiB while rank %d calls nothing",
                      t->rank == 0 ? "sending" : "receiving", 1 - t->rank);
        conform_raise(t, 2 * round + t->rank);
        if (t->rank == 0)
            await_flag(t, 2 * round + 1);
    }
    EXPECT_RIGHT(t, rig, "large messages of ranks that call nothing");
    conform_rig_close(&rig);
}

static void a_slot_is_kept_until_its_release_runs(conform_t *t)
{
    enum { BYTES = 4096, SLOTS = 2, ROUNDS = 4 };
    dp_stream_t *s;
    line_t line, *one = &line;
    size_t bytes = BYTES;
    /* freed at the end: that may wait for the whole device, where the sender of a thread waits */
    gate_t gates[ROUNDS];
    uint32_t made = 0;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "late", 0))
        return;
    EXPECT_OK(t, conform_line_open(&rig, 3, 1 - t->rank, t->rank == 0, SLOTS, BYTES, &line));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    s = rig.streams[DP_LANE_ALL_TO_ALL];
    for (uint32_t i = 0; i < SLOTS && t->rank == 1; i++)
        EXPECT_OK(t, conform_receive_bundle(&one, 1, i, &bytes));
    for (uint32_t i = 0; i < ROUNDS + SLOTS; i++) {
        gate_t *gate = &gates[made];

        if (t->rank == 0) {
            EXPECT_OK(t, conform_send_message(&line, i, BYTES));
            continue;
        }
        if (i == ROUNDS)
            break;
        if (conform_gate_make(gate, rig.device_vt, rig.device, t->host) != DP_OK) {
            conform_skip(t, "nothing holds a stream of this device");
            conform_abort(t, DP_ERR_UNSUPPORTED, "skipped");
            break;
        }
        made++;
        EXPECT_OK(t, conform_gate_hold(gate, s));
        EXPECT_OK(t, conform_arrived(&line, i, s));
        if (!rig.matched) { /* what a receive waits for is on its own stream */
            EXPECT_OK(t, rig.device_vt->event_record(line.ready[i % SLOTS], line.way));
            EXPECT_OK(t, rig.device_vt->stream_wait(s, line.ready[i % SLOTS]));
        }
        EXPECT_OK(t, conform_look_at_message(&line, i, BYTES, s));
        EXPECT_OK(t, conform_release_message(&line, i, s));
        /* for the slot that is still being read */
        EXPECT_OK(t, conform_receive_bundle(&one, 1, i + SLOTS, &bytes));
        conform_nap_ms(40);
        conform_gate_open(gate);
        EXPECT_OK(t, rig.device_vt->synchronize(s, -1));
    }
    for (uint32_t i = ROUNDS; i < ROUNDS + SLOTS && t->rank == 1; i++) {
        EXPECT_OK(t, conform_arrived(&line, i, rig.streams[DP_LANE_COMPUTE]));
        EXPECT_OK(t, conform_look_at_message(&line, i, BYTES, rig.streams[DP_LANE_COMPUTE]));
        EXPECT_OK(t, conform_release_message(&line, i, rig.streams[DP_LANE_COMPUTE]));
    }
    if (dp_group_health(t->group) == DP_OK)
        EXPECT_OK(t, conform_synchronize_all(&rig));
    while (made > 0)
        conform_gate_free(&gates[--made]);
    EXPECT_RIGHT(t, rig, "a slot read on one stream while the next message for it was received on another");
    conform_rig_close(&rig);
}

/* Full slots side by side: what arrives in one leaves the others and the neighbouring channel
 * alone. */
static void a_message_keeps_to_its_slot(conform_t *t)
{
    enum { SLOTS = 3, ROUNDS = 6 };
    static const size_t sizes[] = {1, 16, 64, 256, 4096};
    line_t line[2], *one;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "neighbours", 0))
        return;
    for (uint32_t k = 0; k < 5; k++) {
        size_t bytes = sizes[k];

        for (uint32_t c = 0; c < 2; c++)
            EXPECT_OK(t, conform_line_open(&rig, 2 * k + c, 1 - t->rank, t->rank == 0, SLOTS, bytes, &line[c]));
        EXPECT_OK(t, rig.vt->start(rig.comm));
        for (uint32_t i = 0; i < SLOTS + ROUNDS; i++)
            for (uint32_t c = 0; c < 2; c++) {
                dp_stream_t *s = rig.streams[DP_LANE_COMPUTE];

                one = &line[c];
                if (t->rank == 0) {
                    EXPECT_OK(t, conform_send_message(one, i, bytes));
                    continue;
                }
                /* the other slots hold younger messages while this one is written again */
                if (i >= SLOTS) {
                    EXPECT_OK(t, conform_look_at_message(one, i - SLOTS, bytes, s));
                    EXPECT_OK(t, conform_release_message(one, i - SLOTS, s));
                }
                EXPECT_OK(t, conform_receive_bundle(&one, 1, i, &bytes));
                EXPECT_OK(t, conform_arrived(one, i, s));
                for (uint32_t j = i + 1 >= SLOTS ? i + 1 - SLOTS : 0; j <= i; j++)
                    EXPECT_OK(t, conform_look_at_message(one, j, bytes, s));
            }
        for (uint32_t i = ROUNDS; i < ROUNDS + SLOTS && t->rank == 1; i++)
            for (uint32_t c = 0; c < 2; c++) {
                EXPECT_OK(t, conform_look_at_message(&line[c], i, bytes, rig.streams[DP_LANE_COMPUTE]));
                EXPECT_OK(t, conform_release_message(&line[c], i, rig.streams[DP_LANE_COMPUTE]));
            }
        EXPECT_OK(t, conform_synchronize_all(&rig));
        EXPECT(t, rig.wrong == 0,
               "messages of %zu bytes in slots of %zu: %llu bytes of other slots were written, or did not arrive",
               bytes, bytes, (unsigned long long)rig.wrong);
    }
    conform_rig_close(&rig);
}

/* Rank 0 waits for a message of rank 1, which comes only when that of rank 2 has arrived. */
static void no_peer_holds_up_another(conform_t *t)
{
    enum { BYTES = 200 };
    line_t lines[CONFORM_RANKS_MAX], *one;
    size_t bytes = BYTES;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "peers", 0))
        return;
    for (int32_t p = 1; p < 3; p++)
        if (t->rank == 0 || t->rank == p)
            EXPECT_OK(t, conform_line_open(&rig, 0, t->rank == 0 ? p : 0, t->rank != 0, 2, BYTES, &lines[p]));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    if (t->rank == 0) {
        if (!rig.matched)
            lines[2].way = rig.streams[DP_LANE_ALL_TO_ALL];
        for (int32_t p = 1; p < 3; p++) {
            one = &lines[p];
            EXPECT_STATUS(t, conform_receive_bundle(&one, 1, 0, &bytes), DP_OK,
                          "enqueueing a receive whose message is not there");
            if (p == 1)
                EXPECT_STATUS(t, rig.device_vt->synchronize(one->way, 50000000), DP_ERR_TIMEOUT,
                              "a receive whose message is not there, for 50 ms");
        }
        EXPECT_STATUS(t, rig.device_vt->synchronize(lines[2].way, conform_scaled_ns(5)), DP_OK,
                      "a receive from rank 2, while one from rank 1 waits on another stream,");
        conform_raise(t, 0);
        EXPECT_OK(t, rig.device_vt->synchronize(lines[1].way, -1));
        for (int32_t p = 1; p < 3; p++) {
            EXPECT_OK(t, conform_look_at_message(&lines[p], 0, BYTES, lines[p].way));
            EXPECT_OK(t, conform_release_message(&lines[p], 0, lines[p].way));
        }
    } else {
        while (t->rank == 1 && !conform_raised(t, 0) && dp_group_health(t->group) == DP_OK)
            conform_nap_ms(2);
        EXPECT_OK(t, conform_send_message(&lines[t->rank], 0, BYTES));
    }
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_RIGHT(t, rig, "messages of two peers");
    conform_rig_close(&rig);
}

/* `from` ends where a page begins that must not be read. */
static void a_send_reads_no_further_than_its_bytes(conform_t *t)
{
    enum { SLOT = 512 };
    static const size_t sizes[] = {1, 7, 63, 64, 100, SLOT};
    guard_t guard;
    line_t line;
    rig_t rig;

    if (strcmp(t->device->kind, "cpu") != 0) {
        conform_skip(t, "memory of a %s device cannot be fenced", t->device->kind);
        return;
    }
    if (!conform_rig_open(&rig, t, "fenced", 0))
        return;
    EXPECT(t, conform_guard_open(&guard, SLOT), "no memory for a fence");
    EXPECT_OK(t, conform_line_open(&rig, 0, 1 - t->rank, t->rank == 0, 2, SLOT, &line));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (uint32_t i = 0; i < 6; i++) {
        if (t->rank == 0) {
            line.buffers[i % 2] = guard.end - sizes[i];
            EXPECT_OK(t, conform_send_message(&line, i, sizes[i]));
            EXPECT_OK(t, conform_synchronize_all(&rig));
        } else {
            EXPECT_OK(t, conform_receive_message(&line, i, sizes[i]));
        }
    }
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_RIGHT(t, rig, "messages sent from the end of a page");
    conform_rig_close(&rig);
    conform_guard_close(&guard);
}

/* The sender's buffer is written again by the work right behind each send. */
static void from_belongs_to_the_sender_again_behind_the_send(conform_t *t)
{
    enum { BYTES = 1 << 20, TIMES = 12 };
    line_t line;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "again", 0))
        return;
    EXPECT_OK(t, conform_line_open(&rig, 0, 1 - t->rank, t->rank == 0, 3, BYTES, &line));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (uint32_t i = 0; i < TIMES; i++)
        if (t->rank == 0) {
            EXPECT_OK(t, conform_send_message(&line, i, BYTES));
            EXPECT_OK(t, rig.device_vt->zero(line.way, line.buffers[i % 2], BYTES));
            EXPECT_OK(t, rig.device_vt->event_record(line.free[i % 2], line.way));
        } else {
            EXPECT_OK(t, conform_receive_message(&line, i, BYTES));
        }
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_RIGHT(t, rig, "messages whose buffer was zeroed by the work behind the send");
    conform_rig_close(&rig);
}

/* ---- what a message says of itself ---- */

/* The job ends with the first error, as it does when an engine sees one. */
static void send_unlike(conform_t *t, dp_message_tag_t expected)
{
    static const dp_message_tag_t sent = {.step = 3, .microbatch = 5, .bytes = 32};
    const void *data;
    line_t line;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "tags", 0))
        return;
    EXPECT_OK(t, conform_line_open(&rig, 7, 1 - t->rank, t->rank == 1, 2, 32, &line));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    EXPECT_OK(t, conform_begin_bundle(&rig, line.way));
    if (t->rank == 1)
        EXPECT_OK(t, rig.vt->send(line.end, line.buffers[0], &sent, line.way));
    else
        EXPECT_OK(t, rig.vt->recv(line.end, &expected, &data, line.way));
    EXPECT_OK(t, conform_end_bundle(&rig, line.way));
    EXPECT_MET(t); /* before that its send may hear of the end of the job */
    if (t->rank == 0) {
        EXPECT_STATUS(t, conform_synchronize_all(&rig), DP_ERR_PROTOCOL,
                      "a message that says step 3, micro-batch 5, 32 bytes, where %u, %d, %u were expected,",
                      expected.step, expected.microbatch, expected.bytes);
        EXPECT(t, strstr(conform_last_error(), "F chunk 1") != NULL && strstr(conform_last_error(), "rank 1") != NULL,
               "the message of DP_ERR_PROTOCOL has to name the channel by its label and rank 1, it is: %s",
               conform_last_error());
        conform_abort(t, DP_ERR_PROTOCOL, "a wrong message");
    } else {
        (void)conform_synchronize_all(&rig); /* a backend may tell the sender too */
    }
    conform_rig_close(&rig);
}

static void a_message_of_another_step_is_refused(conform_t *t)
{
    send_unlike(t, (dp_message_tag_t){.step = 4, .microbatch = 5, .bytes = 32});
}

static void a_message_of_another_microbatch_is_refused(conform_t *t)
{
    send_unlike(t, (dp_message_tag_t){.step = 3, .microbatch = 6, .bytes = 32});
}

static void a_message_of_another_size_is_refused(conform_t *t)
{
    send_unlike(t, (dp_message_tag_t){.step = 3, .microbatch = 5, .bytes = 31});
}

/* ---- setting up ---- */

static void mistakes_with_channels_are_refused(conform_t *t)
{
    enum { BYTES = 64 };
    dp_channel_end_t *none = NULL;
    dp_message_tag_t tag = conform_tag_of(0, BYTES);
    const void *data;
    line_t line;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "mistakes", 0))
        return;
    EXPECT_STATUS(t, conform_rig_channel(&rig, 1, t->size, true, 2, BYTES, &none), DP_ERR_INVALID,
                  "a channel to a rank behind the last one");
    EXPECT_STATUS(t, conform_rig_channel(&rig, 1, -1, true, 2, BYTES, &none), DP_ERR_INVALID, "a channel to rank -1");
    EXPECT_STATUS(t, conform_rig_channel(&rig, 1, 1 - t->rank, true, 0, BYTES, &none), DP_ERR_INVALID,
                  "a channel of no slots");
    EXPECT_STATUS(t, conform_rig_channel(&rig, 1, 1 - t->rank, true, UINT32_MAX, SIZE_MAX / 2, &none), DP_ERR_INVALID,
                  "a channel whose bytes overflow");
    EXPECT(t, none == NULL, "a channel_open that failed has written its output");

    EXPECT_OK(t, conform_line_open(&rig, 1, 1 - t->rank, t->rank == 0, 2, BYTES, &line));
    EXPECT_STATUS(t, conform_rig_channel(&rig, 1, 1 - t->rank, t->rank == 0, 2, BYTES, &none), DP_ERR_INVALID,
                  "the same end of a channel opened twice");
    if (t->rank == 0)
        EXPECT_STATUS(t, rig.vt->send(line.end, line.buffers[0], &tag, line.way), DP_ERR_INVALID,
                      "a send before start");
    EXPECT_OK(t, rig.vt->start(rig.comm));
    if (t->rank == 0) {
        tag.number = 1;
        EXPECT_STATUS(t, rig.vt->send(line.end, line.buffers[0], &tag, line.way), DP_ERR_INVALID,
                      "the first message sent with number 1");
        tag = conform_tag_of(0, BYTES + 1);
        EXPECT_STATUS(t, rig.vt->send(line.end, line.buffers[0], &tag, line.way), DP_ERR_INVALID,
                      "a message larger than the slot");
        tag = conform_tag_of(0, BYTES);
        EXPECT_STATUS(t, rig.vt->recv(line.end, &tag, &data, line.way), DP_ERR_INVALID, "a receive on the sending end");
        EXPECT_STATUS(t, rig.vt->release(line.end, 0, line.way), DP_ERR_INVALID, "a release on the sending end");
    } else {
        EXPECT_STATUS(t, rig.vt->send(line.end, conform_room(&rig, BYTES), &tag, line.way), DP_ERR_INVALID,
                      "a send on the receiving end");
        EXPECT_STATUS(t, rig.vt->release(line.end, 0, line.way), DP_ERR_INVALID, "a release of a message not received");
        tag.number = 1;
        EXPECT_STATUS(t, rig.vt->recv(line.end, &tag, &data, line.way), DP_ERR_INVALID,
                      "a receive of message 1 before message 0");
    }
    for (uint32_t i = 0; i < 3; i++) /* what was refused has left no trace */
        if (t->rank == 0)
            EXPECT_OK(t, conform_send_message(&line, i, BYTES));
        else
            EXPECT_OK(t, conform_receive_message(&line, i, BYTES));
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_RIGHT(t, rig, "messages after calls that were refused");
    conform_rig_close(&rig);
}

static void releases_out_of_order_are_refused(conform_t *t)
{
    enum { SLOTS = 3, BYTES = 64 };
    line_t line, *one = &line;
    size_t bytes = BYTES;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "order", 0))
        return;
    EXPECT_OK(t, conform_line_open(&rig, 1, 1 - t->rank, t->rank == 0, SLOTS, BYTES, &line));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (uint32_t i = 0; i < SLOTS; i++)
        if (t->rank == 0)
            EXPECT_OK(t, conform_send_message(&line, i, BYTES));
        else
            EXPECT_OK(t, conform_receive_bundle(&one, 1, i, &bytes));
    if (t->rank == 1) {
        EXPECT_STATUS(t, conform_release_message(&line, 1, line.way), DP_ERR_INVALID,
                      "a release of message 1 before that of 0");
        for (uint32_t i = 0; i < SLOTS; i++)
            EXPECT_OK(t, conform_release_message(&line, i, line.way));
        EXPECT_STATUS(t, conform_release_message(&line, 2, line.way), DP_ERR_INVALID, "a second release of message 2");
    }
    EXPECT_OK(t, conform_synchronize_all(&rig));
    conform_rig_close(&rig);
}

/* One rank finds out, or both; the job ends with it. Who closes first leaves nothing to compare
 * with. */
static void unlike_ends(conform_t *t, uint32_t slots, size_t bytes, bool both)
{
    dp_channel_end_t *end;
    dp_status_t status;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "unequal", 0))
        return;
    if (both || t->rank == 0)
        EXPECT_OK(t, conform_rig_channel(&rig, 3, 1 - t->rank, t->rank == 0, slots, bytes, &end));
    conform_forget_error();
    status = rig.vt->start(rig.comm);
    EXPECT(t, status == DP_ERR_MISMATCH || (status < 0 && (conform_raised(t, 0) || conform_raised(t, 1))),
           "start with %s has to return DP_ERR_MISMATCH on a rank that sees it, it returned %s: %s",
           both ? "ends of a channel that differ" : "an end whose peer has opened none", dp_status_name(status),
           conform_last_error());
    if (status == DP_ERR_MISMATCH && !conform_raised(t, 1 - t->rank)) {
        EXPECT(t, strstr(conform_last_error(), "F chunk 1") != NULL,
               "the message of DP_ERR_MISMATCH has to name the channel by its label (F chunk 1), it is: %s",
               conform_last_error());
        conform_raise(t, t->rank);
        /* as an engine does; ends the other one's start */
        conform_abort(t, DP_ERR_MISMATCH, "the ends differ");
    }
    if (dp_group_barrier(t->group) < 0) { /* as the job has ended */
    }
    conform_rig_close(&rig);
}

static void ends_with_other_slots_do_not_connect(conform_t *t)
{
    unlike_ends(t, 2 + (uint32_t)t->rank, 64, true);
}

static void ends_with_other_sizes_do_not_connect(conform_t *t)
{
    unlike_ends(t, 2, 64 + (size_t)t->rank, true);
}

static void an_end_alone_does_not_connect(conform_t *t)
{
    unlike_ends(t, 2, 64, false);
}

static void start_connects_what_is_new(conform_t *t)
{
    line_t lines[3];
    size_t before, after;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "rounds", 0))
        return;
    EXPECT_OK(t, rig.vt->start(rig.comm)); /* nothing yet */
    for (uint32_t round = 0; round < 3; round++) {
        bool sends = (t->rank == 0) == (round != 1);

        before = rig.vt->memory_bytes(rig.comm);
        EXPECT_OK(t, conform_line_open(&rig, round, 1 - t->rank, sends, 2, 128, &lines[round]));
        EXPECT_OK(t, rig.vt->start(rig.comm));
        after = rig.vt->memory_bytes(rig.comm);
        EXPECT(
            t, after >= before + (sends ? 0 : 256),
            "memory_bytes was %zu before a channel of two slots of 128 bytes was opened and connected, and is %zu after",
            before, after);
        for (uint32_t c = 0; c <= round; c++) {
            if (lines[c].sends)
                EXPECT_OK(t, conform_send_message(&lines[c], round - c, 128));
            else
                EXPECT_OK(t, conform_receive_message(&lines[c], round - c, 128));
        }
    }
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_RIGHT(t, rig, "messages over channels of three starts");
    conform_rig_close(&rig);
}

const conform_case_t conform_comm_channels[] = {
    {CONFORM_CASE(messages_arrive_in_order_and_whole, 2,
                  "Messages of every size up to slot_bytes arrive whole and in order, with 1 to 4 slots.")},
    {CONFORM_CASE(every_rank_talks_to_every_other, 4,
                  "Channels of one id between all ordered pairs of ranks do not mix.")},
    {CONFORM_CASE(a_bundle_takes_several_channels, 2,
                  "One bundle takes messages of several channels of one peer and direction.")},
    {CONFORM_CASE(credits_are_the_slots, 2,
                  "One-sided: K messages leave without the receiver, message K + 1 waits until slot 0 was released.")},
    {CONFORM_CASE(progress_needs_no_caller, 2,
                  "One-sided: large messages arrive, and slots are free again, while the other side calls nothing."),
     .hang_seconds = 8},
    {CONFORM_CASE(a_slot_is_kept_until_its_release_runs, 2,
                  "A slot is not written again before its release has run, on whatever stream that was enqueued."),
     .hang_seconds = 5},
    {CONFORM_CASE(a_message_keeps_to_its_slot, 2, "A message is written to its slot and nowhere else.")},
    {CONFORM_CASE(no_peer_holds_up_another, 3,
                  "Calls only enqueue, and a late message holds up nothing on the streams of other peers."),
     .hang_seconds = 10},
    {CONFORM_CASE(a_send_reads_no_further_than_its_bytes, 2, "A send reads tag->bytes of `from` and no byte more.")},
    {CONFORM_CASE(from_belongs_to_the_sender_again_behind_the_send, 2,
                  "Work behind a send may write `from` again: what arrives is what was there before.")},
    {CONFORM_CASE(a_message_of_another_step_is_refused, 2,
                  "A message of another step than expected is DP_ERR_PROTOCOL and names channel and peer.")},
    {CONFORM_CASE(a_message_of_another_microbatch_is_refused, 2,
                  "A message of another micro-batch than expected is DP_ERR_PROTOCOL and names channel and peer.")},
    {CONFORM_CASE(a_message_of_another_size_is_refused, 2,
                  "A message of another size than expected is DP_ERR_PROTOCOL and names channel and peer.")},
    {CONFORM_CASE(mistakes_with_channels_are_refused, 2,
                  "Senseless configs, wrong ends, wrong numbers, calls before start: DP_ERR_INVALID, and no trace.")},
    {CONFORM_CASE(releases_out_of_order_are_refused, 2,
                  "Slots are released in order, each once: else DP_ERR_INVALID.")},
    {CONFORM_CASE(ends_with_other_slots_do_not_connect, 2,
                  "Ends with other slots: start returns DP_ERR_MISMATCH and names the channel.")},
    {CONFORM_CASE(ends_with_other_sizes_do_not_connect, 2,
                  "Ends with other slot sizes: start returns DP_ERR_MISMATCH and names the channel.")},
    {CONFORM_CASE(an_end_alone_does_not_connect, 2,
                  "An end whose peer has opened none: start returns DP_ERR_MISMATCH and names the channel.")},
    {CONFORM_CASE(start_connects_what_is_new, 2,
                  "start may be called again after more was opened; memory_bytes counts the slots it set up.")},
    {0},
};
