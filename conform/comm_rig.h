/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_rig.h: what the cases of dp.comm/1 are made of: a device, its streams, an instance, and
 * traffic as an engine makes it. Data say where they come from, so that every byte that arrives can
 * be told to be right.
 *
 * Where the device has launch() on host memory, data are made and looked at by the streams. On
 * others they are made on the host, brought to a buffer of the device beforehand and copied from
 * there by the streams, or copied there and looked at later. */
#ifndef CONFORM_COMM_RIG_H
#define CONFORM_COMM_RIG_H

#include "conform.h"
#include "device_work.h"

#define RIG_ROOMS  48
#define RIG_EVENTS 128
#define RIG_SLOTS  4 /* most slots of a channel or exchange here */
#define CAPACITY   5 /* of exchanges, in rows */

typedef struct later later_t; /* something to look at once the streams are at rest */

/* One rank's device with a stream for each lane, and an instance. */
typedef struct rig {
    conform_t *t;
    const dp_device_vt_t *device_vt;
    const dp_comm_vt_t *vt;
    dp_device_vt_t counted; /* the device's table as the plugin gets it: allocations are counted */
    dp_device_t *device;
    dp_stream_t *streams[DP_LANE_COUNT];
    dp_stream_t *ways[CONFORM_RANKS_MAX][2]; /* matched bundles: by peer, and whether we send */
    dp_comm_t *comm;
    void *rooms[RIG_ROOMS]; /* device memory of the case */
    int room_count;
    dp_event_t *events[RIG_EVENTS];
    int event_count;
    bool matched; /* transfers complete in matched bundles: no DP_COMM_CAP_ONE_SIDED */
    bool launches;
    uint64_t wrong;    /* bytes, counts and numbers that were not what had to come */
    uint64_t random;   /* of this rank's delays */
    dp_stream_t *side; /* the rest is for devices without launch() */
    unsigned char *arena;
    size_t used;
    later_t *laters;
    int later_count;
} rig_t;

/* Opens the device alone, or with an instance called `name` of all ranks; false: the case has
 * failed. */
bool conform_rig_device(rig_t *rig, conform_t *t);
bool conform_rig_open(rig_t *rig, conform_t *t, const char *name, size_t reduce_bytes);
/* Opens rig->comm, and asks what it can do. */
dp_status_t conform_rig_join(rig_t *rig, const dp_comm_config_t *config);
dp_status_t conform_rig_open_comm(rig_t *rig, const char *name, int32_t rank, int32_t nranks, const int32_t *world,
                                  size_t reduce_bytes);
void conform_rig_close(rig_t *rig);
void conform_rig_close_device(rig_t *rig);
dp_comm_config_t conform_rig_config(rig_t *rig, const char *name);
/* How many blocks of device memory plugins of this process have asked for so far; how many of this
 * rank they hold. */
int64_t conform_rig_blocks_given(void);
int64_t conform_rig_blocks(const rig_t *rig);

/* Zeroed device memory and events that live as long as the rig; NULL: the case has failed. */
void *conform_room(rig_t *rig, size_t bytes);
dp_event_t *conform_event(rig_t *rig);
/* Between host and device, at once, whatever the streams wait for. */
dp_status_t conform_move(rig_t *rig, void *to, const void *from, size_t bytes);
/* Waits for all streams; then what had to be looked at later has been. The first failure among the
 * streams. */
dp_status_t conform_synchronize_all(rig_t *rig);
/* A short sleep of the stream, sometimes. */
dp_status_t conform_nap_now_and_then(rig_t *rig, dp_stream_t *s);

/* ---- channels ---- */

/* One end of a channel, with what an engine keeps for it: buffers that are sent from, and events.
 * Data are made and looked at on the compute lane; transfers go on `way`: a stream of the peer and
 * direction for matched bundles. */
typedef struct line {
    rig_t *rig;
    dp_channel_end_t *end;
    uint32_t id, slots;
    int32_t peer;
    bool sends;
    size_t bytes; /* of a slot */
    dp_stream_t *way;
    unsigned char *buffers[2];
    dp_event_t *ready[RIG_SLOTS], *free[2];
    const void *slot[RIG_SLOTS]; /* where what was received lies */
} line_t;

dp_status_t conform_rig_channel(rig_t *rig, uint32_t id, int32_t peer, bool sends, uint32_t slots, size_t bytes,
                                dp_channel_end_t **end_out);
dp_status_t conform_line_open(rig_t *rig, uint32_t id, int32_t peer, bool sends, uint32_t slots, size_t bytes,
                              line_t *line);
dp_message_tag_t conform_tag_of(uint32_t number, size_t bytes);
/* Nothing, one byte, odd sizes, all of the slot. */
size_t conform_size_of_message(uint32_t number, size_t slot_bytes);
/* Brackets for one-sided backends too, where they do nothing. */
dp_status_t conform_begin_bundle(rig_t *rig, dp_stream_t *s);
dp_status_t conform_end_bundle(rig_t *rig, dp_stream_t *s);
/* Message `number` of each of n lines of one peer and direction, in one bundle: made and sent; or
 * received. */
dp_status_t conform_send_bundle(line_t *const *lines, int n, uint32_t number, const size_t *bytes);
dp_status_t conform_receive_bundle(line_t *const *lines, int n, uint32_t number, const size_t *bytes);
/* The stream on which what was received is read: its data are there for later work. */
dp_status_t conform_arrived(line_t *line, uint32_t number, dp_stream_t *s);
dp_status_t conform_look_at_message(line_t *line, uint32_t number, size_t bytes, dp_stream_t *s);
dp_status_t conform_release_message(line_t *line, uint32_t number, dp_stream_t *s);
/* All of it for one message, read and released on the compute lane. */
dp_status_t conform_send_message(line_t *line, uint32_t number, size_t bytes);
dp_status_t conform_receive_message(line_t *line, uint32_t number, size_t bytes);

/* ---- exchanges ---- */

/* What a rank sends rows from, or has received. */
typedef struct rows {
    int32_t rank, size;
    uint32_t number;
    size_t row_bytes;
    unsigned char *rows;
    int32_t *offsets, *counts;
    uint64_t *wrong;
} rows_t;

dp_status_t conform_rig_exchange(rig_t *rig, uint32_t id, size_t row_bytes, uint32_t slots, dp_exchange_t **x_out);
/* False when the backend has no exchanges (the case is skipped), or no memory is left. */
bool conform_rows_open(rig_t *rig, size_t row_bytes, rows_t *rows);
/* Rows for exchange `number` made on s and exchanged; `in` gets what arrives, to be looked at on a
 * stream. */
dp_status_t conform_exchange_rows(rig_t *rig, dp_exchange_t *x, rows_t *out, uint32_t number, dp_stream_t *s,
                                  rows_t *in);
/* The same, posted: they arrive when it was awaited, and `out` is theirs until then. */
dp_status_t conform_post_rows(rig_t *rig, dp_exchange_t *x, rows_t *out, uint32_t number, dp_stream_t *s, rows_t *in);
dp_status_t conform_look_at_rows(rig_t *rig, const rows_t *in, dp_stream_t *s);

/* The tables of cases, in the files comm_<name>.c; each ends with name NULL. */
extern const conform_case_t conform_comm_channels[], conform_comm_exchanges[], conform_comm_sums[], conform_comm_ends[];

#endif
