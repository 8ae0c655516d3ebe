/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * parts.h: an instance of two joined transports as its files see it.
 *
 *   mixed.c       the tables, opening, closing, channels
 *   map.c         who lives where
 *   reductions.c  all_reduce over several hosts
 *   rows.c        exchanges over several hosts */
#ifndef DP_MIXED_PARTS_H
#define DP_MIXED_PARTS_H

#include "mixed/map.h"
#include "mixed/mixed.h"

enum { DP__MIXED_NAME = 64, DP__MIXED_LABEL = 64 };

/* An instance of one of the two. comm NULL: not needed here. */
typedef struct dp__mixed_part {
    const dp_comm_vt_t *vt;
    dp_comm_t *comm;
} dp__mixed_part_t;

/* One end of a way that a sum takes. */
typedef struct dp__mixed_way {
    const dp_comm_vt_t *vt;
    dp_channel_end_t *end; /* NULL: no such way */
    uint32_t count;        /* messages so far */
} dp__mixed_way_t;

/* reductions.c */
typedef struct dp__mixed_reductions {
    size_t block_bytes;
    int32_t lag; /* blocks between a rank's work and that of the next host's */
    dp__mixed_way_t from_run, to_run, from_parent, to_child[DP__MIXED_CHILDREN];
} dp__mixed_reductions_t;

struct dp_comm {
    const dp_host_t *host;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    char name[DP__MIXED_NAME];
    int32_t rank, nranks;
    int32_t *numbers; /* what the map stands on, then world */
    int32_t *world;   /* [nranks] */
    dp__mixed_map_t map;
    dp__mixed_part_t near, far, near_sum, run, far_sum;
    dp__mixed_part_t *alone; /* near or far, when there is nothing else */
    dp__mixed_reductions_t reductions;
    dp_channel_end_t *ends;
    dp_exchange_t *exchanges;
    size_t own_bytes;
    uint32_t starts; /* calls of start that went well */
    bool in_bundle;
    dp__mixed_part_t *bundle; /* whose bracket is open: known with the first transfer */
};

struct dp_channel_end {
    dp_channel_end_t *next;
    dp_comm_t *comm;
    dp__mixed_part_t *part;
    dp_channel_end_t *end; /* of part */
};

/* reductions.c. connect: opens the ways; the parts start afterwards. */
void dp__mixed_reductions_size(dp_comm_t *comm, size_t reduce_bytes);
dp_status_t dp__mixed_reductions_connect(dp_comm_t *comm);
dp_status_t dp__mixed_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s);

/* rows.c */
dp_status_t dp__mixed_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out);
void dp__mixed_exchange_free(dp_exchange_t *x);
dp_exchange_t *dp__mixed_exchange_next(dp_exchange_t *x);
dp_status_t dp__mixed_exchange(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                               const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                               dp_stream_t *s);
dp_status_t dp__mixed_exchange_post(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                                    const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                                    dp_stream_t *s);
dp_status_t dp__mixed_exchange_wait(dp_exchange_t *x, uint32_t number, dp_stream_t *s);
dp_status_t dp__mixed_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s);

#endif
