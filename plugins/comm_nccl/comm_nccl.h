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

    bool exact;               /* exchanges move as many rows as there are: rows.c */
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
/* Of all ranks. ctas: most blocks of a kernel. */
dp_status_t nccl_communicator_open(dp_comm_t *comm, unsigned ctas, ncclComm_t *comm_out);
/* Of the ranks with this color, in the order of `key`; below 0: we are not in one. All ranks call
 * it. */
dp_status_t nccl_communicator_split(dp_comm_t *comm, int32_t color, int32_t key, unsigned ctas, ncclComm_t *comm_out);
/* NULL when it is over, else fault_abort has it. */
void nccl_communicator_finish(dp_comm_t *comm, ncclComm_t *c);
void nccl_buffer_register(dp_comm_t *comm, ncclComm_t c, void *buffer, size_t bytes);
/* Memory of nccl_memory, of as many bytes on all ranks of the communicator; all of them call it. */
dp_status_t nccl_window_register(dp_comm_t *comm, ncclComm_t *c, void *buffer, size_t bytes, void **handle_out);

/* group.c: between begin and end the lock is held. end returns when the work is on its stream. */
dp_status_t nccl_begin(dp_comm_t *comm);
dp_status_t nccl_end(dp_comm_t *comm, ncclResult_t result, ncclComm_t *const *comms, int count, const char *what);
/* A head (comm->heads) to every other rank of the communicator, and one of each (behind it, in the
 * order of ranks). */
dp_status_t nccl_greet(dp_comm_t *comm, ncclComm_t *c, int32_t rank, int32_t nranks, bool sends, bool receives,
                       dp_stream_t *s, const char *what);
/* NCCL connects two ranks when they first talk, which maps memory and starts threads: better before
 * the first step than while streams wait in it. [blocks until the others have come] */
dp_status_t nccl_connect(dp_comm_t *comm, ncclComm_t *c, int32_t rank, int32_t nranks, bool sends, bool receives);
/* Until a non-blocking call of this communicator is over. */
dp_status_t nccl_settle(dp_comm_t *comm, ncclComm_t *c, const char *what);

/* channel.c */
dp_status_t nccl_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out);
/* Whose communicator it is; one-sided, it has one for itself. */
dp_status_t nccl_channel_keep_pair(dp_channel_end_t *end);
dp_status_t nccl_channel_connect(dp_channel_end_t *end);
/* Whether this message may be enqueued. */
dp_status_t nccl_channel_check(const dp_channel_end_t *end, const dp_message_tag_t *tag, bool sends);
/* What a head holds. */
void nccl_channel_words(const dp_message_tag_t *tag, uint32_t words[4]);
void nccl_channel_free(dp_channel_end_t *end);
dp_status_t nccl_channel_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s);
dp_status_t nccl_channel_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                              dp_stream_t *s);
dp_status_t nccl_channel_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s);
dp_status_t nccl_bundle_begin(dp_comm_t *comm, dp_stream_t *s);
dp_status_t nccl_bundle_end(dp_comm_t *comm, dp_stream_t *s);

/* choose.c */
dp_status_t nccl_channels_wished(const dp_host_t *host, uint32_t *channels_out);
const char *nccl_channels_name(uint32_t channels);
/* What one-sided channels need: refused where they were asked for, else remembered. */
dp_status_t nccl_channels_check(dp_comm_t *comm);
/* All ranks call it, with the same. lacks: the first rank that lacks something; none: nranks.
 * [blocks until the others have come] */
dp_status_t nccl_channels_choose(dp_comm_t *comm, int32_t lacks, const char *lacking);

/* puts.c: one-sided channels. */
dp_status_t nccl_puts_open(dp_comm_t *comm);
/* Both ends, when their communicator is there: makes the window, and greets. */
dp_status_t nccl_puts_connect(dp_channel_end_t *end);
dp_status_t nccl_puts_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s);
dp_status_t nccl_puts_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                           dp_stream_t *s);
dp_status_t nccl_puts_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s);
/* Streams that wait for a message or a credit go on; any thread may call it, and has to again: the
 * other end may put a smaller number. */
void nccl_puts_let_go(dp_comm_t *comm);
void nccl_puts_close(dp_comm_t *comm);

/* exchange.c */
dp_status_t nccl_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out);
dp_status_t nccl_exchange_connect(dp_exchange_t *x);
void nccl_exchange_free(dp_exchange_t *x);
dp_status_t nccl_exchange_run(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                              const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                              dp_stream_t *s);
dp_status_t nccl_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s);

/* rows.c: exchanges of exact sizes, and the thread that makes them. Behind an abort it lets streams
 * go on that wait for rows, or in a one-sided channel. rows_release: streams that wait for rows go
 * on; any thread may call it. */
dp_status_t nccl_rows_choose(dp_comm_t *comm);
/* NCCL has what it launches wait for each other in the order of calls, which threads do not have in
 * common, nor streams that wait. */
bool nccl_rows_are_in_order(void);
dp_status_t nccl_rows_open(dp_comm_t *comm);
dp_status_t nccl_rows_connect(dp_exchange_t *x);
dp_status_t nccl_rows_enqueue(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *offsets,
                              const int32_t *counts, dp_stream_t *s);
void nccl_rows_release(dp_comm_t *comm);
void nccl_rows_close(dp_comm_t *comm);

/* reduce.c */
dp_status_t nccl_reduce_open(dp_comm_t *comm, size_t reduce_bytes);
dp_status_t nccl_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s);

/* ctas.c */
ctas_t nccl_ctas_of(const dp_comm_t *comm);
void nccl_ctas_join(dp_comm_t *comm);
void nccl_ctas_leave(dp_comm_t *comm);
/* Before a start: does all fit that may run at once? */
dp_status_t nccl_ctas_check(dp_comm_t *comm);

/* start.c */
dp_status_t nccl_start(dp_comm_t *comm);

/* fault.c */
dp_status_t nccl_fault_open(dp_comm_t *comm);
void nccl_fault_close(dp_comm_t *comm);
dp_status_t nccl_fault_check(void *arg);
/* What a thread of ours could not do: the host's last error in this thread. The thread that watches
 * ends what is on its way. */
void nccl_fault_tell(dp_comm_t *comm, dp_status_t status);
/* Ends what is on its way; the communicators are gone afterwards. Waits for the device. */
void nccl_fault_abort(dp_comm_t *comm);
/* That has begun. */
bool nccl_fault_aborts(const dp_comm_t *comm);
/* Writes four words on the stream. */
dp_status_t nccl_write_head(dp_comm_t *comm, uint32_t *head, const uint32_t words[4], dp_stream_t *s);
dp_status_t nccl_check_heads(dp_comm_t *comm, const uint32_t *got, uint32_t count, int32_t skip,
                             const uint32_t words[4], uint32_t kind, const void *object, dp_stream_t *s);

#endif
