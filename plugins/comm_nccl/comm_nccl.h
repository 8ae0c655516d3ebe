/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_nccl.h: the objects of the NCCL transport.
 *
 * Communicators of one group instance, all non-blocking:
 *   sums    of all ranks, for all_reduce; the others are split off it
 *   rows    of all ranks, for exchanges
 *   pairs   for each peer and direction that has channels, one of two ranks: whatever is late there
 *           holds up nothing
 *   else; where channels are one-sided (puts.c), for each channel
 * A message is two operations of one group: a head of 16 bytes (the tag) and the whole slot. All
 * calls of NCCL are made under one lock and while nothing is broken, so that the thread that
 * watches may abort. */
#ifndef COMM_NCCL_H
#define COMM_NCCL_H

#include "mailbox.h"
#include "nccl_api.h"
#include "plugins/common/debug.h"

#include <dualpipe/comm.h>

#include <pthread.h>
#include <stdbool.h>

#define NAME_BYTES  80
#define LABEL_BYTES 64
#define HEAD_BYTES  16
#define MEMBERS_MAX 64 /* of a group */
#define JOBS_MOST   1024
/* a stream that waits must not be in front of one of ours in a hardware queue */
#define QUEUES_MIN 32

typedef struct pair {
    struct pair *next;
    int32_t peer, sends;
    uint32_t channel; /* where it has a separate one; else 0 */
    ncclComm_t comm;  /* NULL: not connected */
} pair_t;

/* DUALPIPE_DEBUG=nccl.channels */
enum { CHANNELS_GROUPS, CHANNELS_SIGNALS, CHANNELS_AUTO };
#define LACKING_BYTES 256

/* Channels go from one of these ranks of the group to the other. All ranks know the same edges. */
typedef struct edge {
    int32_t from, to;
    uint32_t channel; /* as of a pair */
    bool made;        /* its communicator, where it is ours */
} edge_t;

typedef struct member {
    dp_channel_end_t *end;
    const void *from;
    dp_message_tag_t tag;
} member_t;

/* A buffer that a communicator knows. */
typedef struct registration {
    struct registration *next;
    ncclComm_t comm;
    void *handle;
    bool window;
} registration_t;

/* What streams tell the host and each other of an exchange, by number + 1; in memory of the
 * host. */
typedef struct flags {
    uint32_t ready, counted, done; /* counts are there, the others' have come, rows have */
    uint32_t unused;
} flags_t;

/* An exchange that is to be made. */
typedef struct job {
    dp_exchange_t *exchange;
    uint32_t number;
    const void *send;
} job_t;

/* Blocks of a kernel of each kind of communicator; of those in use, how many there are. */
typedef struct ctas {
    unsigned pair, rows, sums;
    bool confined; /* to a share of the device */
} ctas_t;

struct dp_comm {
    dp_comm_t *next; /* of this process; ctas.c, and what follows */
    ctas_t use;
    const dp_host_t *host;
    const dp_host_boot_t *boot;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    const cuda_driver_t *cu;
    const nccl_api_t *nccl;
    CUcontext context;
    CUmodule module;
    CUfunction check_heads, pack_rows, count_rows, check_counts, sum[3];
    char name[NAME_BYTES];
    int32_t rank, nranks;
    int32_t *world;
    uint32_t round; /* of start */
    bool failed;    /* open did: nobody is there to finish with */
    size_t memory_bytes;

    pthread_mutex_t lock; /* of NCCL and what follows to the registrations */
    bool broken;          /* communicators are gone */
    pair_t *pairs;
    ncclComm_t rows, sums, split; /* split: the one that is being made */
    ncclComm_t tried;
    registration_t *registrations;

    uint32_t channels;           /* that were asked for */
    bool chosen, one_sided;      /* channels are windows, into which senders put: puts.c */
    char lacking[LACKING_BYTES]; /* of what those need; "": nothing that this rank knows of */
    CUstream side;               /* ends waits for them; NULL: not one-sided */
    /* of the window that was made, in a separate communicator, to see whether there are any:
     * choose.c */
    unsigned char *tried_memory;
    void *tried_handle;
    /* this and the next are read by threads of ours as they are: they grow at the head */
    dp_channel_end_t *ends;
    dp_exchange_t *exchanges;
    edge_t *edges; /* by from, then to */
    uint32_t nedges;
    bool grouping;
    dp_stream_t *stream;
    int nmembers;
    member_t members[MEMBERS_MAX];

    bool unordered;         /* sums are NCCL's own, in an order of its choice */
    size_t slice_bytes;     /* of all_reduce, for each rank */
    unsigned char *staging; /* [nranks] slices; NULL: unordered */
    uint32_t *heads;        /* [1 + nranks] heads of a sum: ours, those received */
    uint32_t reductions;

    nccl_mailbox *mailbox;
    pthread_t watcher;
    bool watching, watched;
    dp_signal_t wake;
    uint32_t closing;

    bool exact, exact_wished; /* exchanges move as many rows as there are: rows.c; asked for */
    dp_stream_t *rows_stream; /* of the thread that moves them */
    pthread_t mover;
    bool moving, rows_closing;
    job_t *jobs; /* [JOBS_MOST], a ring */
    uint32_t jobs_posted;
    dp_signal_t jobs_there, jobs_done;
    char trouble[512]; /* what NCCL said; under the lock */
};

struct dp_channel_end {
    dp_channel_end_t *next;
    dp_comm_t *comm;
    dp_channel_config_t config;
    char label[LABEL_BYTES];
    pair_t *pair; /* NULL: not yet started */
    bool connected;
    size_t stride;
    /* receiver: [K] of stride bytes; sender: one, for messages shorter than a slot */
    unsigned char *slots;
    unsigned char *window; /* one-sided: words and slots; NULL: not there yet */
    void *handle;          /* NCCL's, of the window */
    uint64_t awaited;      /* the number that streams wait for in it, and AWAITED; 0: none */
    uint32_t *heads;       /* [K] of HEAD_BYTES, sent or received */
    dp_event_t **released; /* receiver: [K] */
    uint64_t count, freed; /* messages enqueued, slots given back */
};
#define AWAITED (UINT64_C(1) << 32)

struct dp_exchange {
    dp_exchange_t *next;
    dp_comm_t *comm;
    dp_exchange_config_t config;
    char label[LABEL_BYTES];
    bool connected;
    size_t stretch;         /* bytes of the rows of one rank */
    unsigned char *staging; /* [nranks] stretches to send, where sizes are not exact */
    flags_t *flags;         /* where they are; NULL until connected */
    /* behind the flags: [3][nranks] first row and rows for each rank, rows of each */
    int32_t *table;
    unsigned char *slots;  /* [slots][nranks] stretches received */
    int32_t *counts_out;   /* [nranks] */
    int32_t *counts_in;    /* [slots][nranks] */
    dp_event_t **released; /* [slots] */
    uint64_t count, freed;
};

#include "plugins/comm/ends.h"

#define WORLD(comm) ((comm)->world[(comm)->rank])

static inline CUstream native(const dp_comm_t *comm, dp_stream_t *s)
{
    return comm->device_vt->stream_native(s);
}

/* comm_nccl.c */
dp_status_t nccl_device_memory(dp_comm_t *comm, size_t bytes, void *memory_out);
/* What NCCL moves lies in memory that NCCL has made: it can be mapped by peers and registered. */
dp_status_t nccl_memory(dp_comm_t *comm, size_t bytes, void *memory_out);
void nccl_memory_free(dp_comm_t *comm, void *memory);
/* reduce.c */
dp_status_t nccl_reduce_open(dp_comm_t *comm, size_t reduce_bytes);
dp_status_t nccl_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s);

/* ctas.c */
ctas_t nccl_ctas_of(const dp_comm_t *comm);
void nccl_ctas_join(dp_comm_t *comm);
void nccl_ctas_leave(dp_comm_t *comm);
/* Before a start: does all fit that may run at once? */
dp_status_t nccl_ctas_check(dp_comm_t *comm);
/* Of this rank, over all its groups: streams that there will be, the communicators that make two
 * of them each, and hardware queues. */
typedef struct streams {
    uint32_t streams, communicators, queues;
} streams_t;
streams_t nccl_count_streams(const dp_comm_t *comm);

/* start.c */
dp_status_t nccl_start(dp_comm_t *comm);

#endif
