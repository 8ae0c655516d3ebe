/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * messages.h: a transport between two ranks, timed on a stream: one-way latency of 8 bytes,
 * messages in one direction. Work is enqueued behind a gate first, so that the streams alone are
 * measured. */
#ifndef BENCH_MESSAGES_H
#define BENCH_MESSAGES_H

#include <dualpipe/advanced.h>
#include <dualpipe/dualpipe.h>

enum { MESSAGES_SIZES = 9, MESSAGES_SLOTS = 2 };
#define MESSAGES_SMALLEST ((size_t)64 << 10) /* size i is this, shifted by i */

typedef struct messages {
    int32_t rank;
    dp_group_t *group;
    const dp_host_t *host;
    const dp_device_vt_t *device_vt;
    const dp_comm_vt_t *vt;
    dp_device_t *device;
    dp_stream_t *stream;
    dp_comm_t *comm;
    /* data and ping lead from rank 0 to rank 1, pong back */
    dp_channel_end_t *data[MESSAGES_SIZES], *ping, *pong;
    uint32_t data_number[MESSAGES_SIZES], ping_number, pong_number;
    dp_signal_t gate;
    uint32_t gates;
} messages_t;

/* Ends the process with the library's message. */
void messages_check(dp_status_t status);
/* Opens plugin `name` between the two ranks of `group`; each rank has a separate core where there
 * are two. */
void messages_open(messages_t *m, dp_group_t *group, const char *name);
void messages_close(messages_t *m);
/* Seconds one way: half a round trip of send, receive, release. */
double messages_trip(messages_t *m, int trips);
/* Bytes per second of `volume` bytes in messages of size `size`: rank 0 sends, rank 1 says when it
 * has the last. */
double messages_transfer(messages_t *m, int size, size_t volume, const void *from);
/* Sorts them. */
double messages_median(double *values, int count);

#endif
