/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_shm.h: the objects of the shared-memory transport.
 *
 * Every rank owns segments (one from open, one from each start) that its peers have mapped. A
 * segment begins with a directory of areas; a peer finds an area by kind, id and rank, and believes
 * nothing of it before it has checked it. Each side waits on counters in its own memory, the peer
 * posts them:
 *
 *   AREA_BASE     barriers, staging of reductions
 *   AREA_SLOTS    receiving end of a channel: K slots of head and data, each with its own
 *                 `published`
 *   AREA_CREDIT   sending end of a channel: `credit`
 *   AREA_ROWS     an exchange: credit by peer, heads (with `published`) and rows by slot and
 * peer */
#ifndef COMM_SHM_H
#define COMM_SHM_H

#include "plugins/comm/areas.h"

#include <dualpipe/comm.h>

#include <stdalign.h>
#include <stdbool.h>

#define HOST_BYTES 96

/* A counter alone in its cache line. */
typedef struct line {
    alignas(CACHE_LINE) dp_signal_t signal;
} line_t;

/* A mapping; one of a rank of this process is shared and counted. */
typedef struct segment {
    unsigned char *base; /* NULL: none */
    size_t bytes;
    bool shared;
    int fd; /* ours, until all have mapped it; else -1 */
} segment_t;

/* What ranks tell each other of their segments through the boot service. */
typedef struct segment_record {
    uint64_t nonce[2]; /* also in the segment: it is the one that was meant */
    uint64_t bytes;    /* 0: this rank has nothing to show in this round */
    uint64_t address;  /* in the exporter's memory */
    uint64_t started;  /* of the process, in clock ticks: a pid alone may be reused */
    int32_t pid, fd;
    char host[HOST_BYTES];
} segment_record_t;

/* A segment that is being connected. */
typedef struct view {
    segment_t segment;
    area_t *areas; /* a private copy of the directory */
    uint32_t count;
    bool loaded; /* the fields above are set; of our rank from the start */
} view_t;

/* A list of segments that live as long as the instance. */
typedef struct holding holding_t;
struct holding {
    holding_t *next;
    segment_t segment;
};

/* AREA_BASE of one rank. */
typedef struct base {
    line_t *meet;                  /* [MEET_ROUNDS] */
    line_t *staged, *summed;       /* [nranks] by the rank that posts them */
    struct reduce_head *heads;     /* [2] what a block belongs to */
    unsigned char *in[2], *out[2]; /* a block of our data; our slice of its sum */
} base_t;

struct dp_comm {
    const dp_host_t *host;
    const dp_host_boot_t *boot;
    const dp_device_vt_t *device;
    char name[NAME_BYTES];
    int32_t rank, nranks;
    int32_t *world; /* [nranks] */
    uint32_t round; /* of segments */
    size_t block_bytes;
    size_t memory_bytes;
    holding_t *own, *imported;
    base_t *bases; /* [nranks] */
    dp_channel_end_t *ends;
    dp_exchange_t *exchanges;
    uint32_t barriers;   /* on the host */
    uint32_t blocks;     /* of sums, done so far; the stream's */
    uint32_t reductions; /* enqueued so far */
    bool broken;         /* an open or start failed: nobody is there to meet */
};

struct dp_channel_end {
    dp_channel_end_t *next;
    dp_comm_t *comm;
    dp_channel_config_t config;
    char label[LABEL_BYTES];
    bool connected;
    size_t stride, data_offset; /* of slots; of the data in one */
    unsigned char *slots;       /* of the receiver */
    dp_signal_t *credit;
    /* the sending stream's: spares it the line that the receiver writes */
    uint32_t credit_seen;
    uint64_t count, released; /* messages enqueued, slots given back */
};

struct dp_exchange {
    dp_exchange_t *next;
    dp_comm_t *comm;
    dp_exchange_config_t config;
    char label[LABEL_BYTES];
    bool connected;
    unsigned char **areas; /* [nranks] AREA_ROWS of each rank */
    int32_t *counts;       /* [slots * nranks] received, checked */
    int32_t *sending;      /* [nranks] */
    uint64_t count, awaited, released;
};

#include "plugins/comm/ends.h"
#include "plugins/comm/posts.h"

/* comm_shm.c */
/* Waits on memory of ours. The message of a failure is the host's, about `what`. */
dp_status_t shm_wait(dp_comm_t *comm, dp_signal_t *signal, uint32_t target, const char *what);
/* Whether a failed wait is news of this rank, which the caller should explain. Else it has the
 * job's first cause, and that is to reach the user as it is. */
static inline bool shm_is_news(dp_status_t status)
{
    return status == DP_ERR_TIMEOUT;
}
/* Where `rank` has the area that `expected` describes, in this round; DP_ERR_MISMATCH says what
 * differs. */
dp_status_t shm_find(dp_comm_t *comm, view_t *views, int32_t rank, const area_t *expected, const char *what,
                     unsigned char **at_out);

/* segment.c */
/* `areas` have been laid out in `bytes`. */
dp_status_t shm_segment_create(dp_comm_t *comm, const area_t *areas, uint32_t count, size_t bytes,
                               segment_t *segment_out);
dp_status_t shm_segment_publish(dp_comm_t *comm, const segment_t *segment);
/* Maps the segment of `rank` for this round and copies its directory. */
dp_status_t shm_segment_import(dp_comm_t *comm, int32_t rank, view_t *view);
void shm_segment_drop(segment_t *segment);
/* Nobody opens it any more. */
void shm_segment_close_fd(segment_t *segment);
/* Gives areas their places; returns the size of the segment, 0 when it is beyond reason. */
size_t shm_segment_layout(area_t *areas, uint32_t count);

/* channel.c */
dp_status_t shm_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out);
/* The area of one side of the channel as that side's directory has it. */
area_t shm_channel_area(const dp_channel_end_t *end, bool ours);
dp_status_t shm_channel_connect(dp_channel_end_t *end, view_t *views);
dp_status_t shm_channel_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s);
dp_status_t shm_channel_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                             dp_stream_t *s);
dp_status_t shm_channel_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s);

/* exchange.c */
dp_status_t shm_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out);
void shm_exchange_free(dp_exchange_t *x);
area_t shm_exchange_area(const dp_exchange_t *x);
dp_status_t shm_exchange_connect(dp_exchange_t *x, view_t *views);
dp_status_t shm_exchange_run(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                             const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                             dp_stream_t *s);
dp_status_t shm_exchange_post(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                              const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                              dp_stream_t *s);
dp_status_t shm_exchange_wait(dp_exchange_t *x, uint32_t number, dp_stream_t *s);
dp_status_t shm_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s);

/* reduce.c */
void shm_base_size(dp_comm_t *comm, size_t reduce_bytes);
area_t shm_base_area(const dp_comm_t *comm);
void shm_base_connect(dp_comm_t *comm, int32_t rank, unsigned char *at);
dp_status_t shm_meet(dp_comm_t *comm);
dp_status_t shm_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s);
dp_status_t shm_reduce_scatter(dp_comm_t *comm, void *data, const size_t *bounds, dp_dtype_t dtype, dp_stream_t *s);
dp_status_t shm_all_gather(dp_comm_t *comm, void *data, const size_t *bounds, dp_stream_t *s);

#endif
