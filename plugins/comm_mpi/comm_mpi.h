/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_mpi.h: the objects of the transport over MPI.
 *
 * All traffic of a process goes over one communicator and is kept apart by tags: whoever receives
 * chooses the tag, one that its process has used for nothing else, and tells the senders. So
 * nothing is opened together but that one communicator, and no call blocks. What MPI is given to
 * receive into is memory of the instance. */
#ifndef COMM_MPI_H
#define COMM_MPI_H

#include "runtime.h"

#include "plugins/comm/calls.h"

#include <dualpipe/comm.h>

#define NAME_BYTES  64
#define LABEL_BYTES 64

/* What is sent in front of the data of every sum. */
typedef struct sum_head {
    uint64_t count;
    uint32_t number, dtype;
} sum_head_t;

typedef struct talk talk_t; /* with one peer, in start */

struct dp_comm {
    dp_comm_t *next; /* among those that MPI still holds memory of */
    const dp_host_t *host;
    const dp_host_boot_t *boot;
    const dp_device_vt_t *device;
    const runtime_t *mpi; /* NULL: a group of one */
    char name[NAME_BYTES];
    int32_t rank, nranks;
    int32_t *world; /* [nranks] ranks of the job */
    /* [nranks] ranks in mpi->comm; where each rank listens: connecting, sums on the next tag */
    int *places, *tags;
    size_t slice_bytes;              /* most that a rank adds up at a time */
    unsigned char *staging;          /* [nranks - 1] slices */
    sum_head_t sum_head, *sum_heads; /* ours; [nranks - 1] the others' */
    MPI_Request *requests;           /* [4 * (nranks - 1)] of sums */
    size_t memory_bytes;
    uint32_t reductions;
    dp_channel_end_t *ends, *members; /* members: of the open bundle, latest first */
    dp_exchange_t *exchanges;
    talk_t *talks; /* [nranks - 1] during start, and behind one that failed */
    bool broken;   /* a start failed */
    bool bundling;
    dp_stream_t *stream; /* of the open bundle */
};

struct dp_channel_end {
    dp_channel_end_t *next, *next_member;
    dp_comm_t *comm;
    dp_channel_config_t config;
    char label[LABEL_BYTES];
    bool connected;
    int tag; /* of the receiving side */
    size_t stride;
    unsigned char *slots;     /* of a receiving end */
    dp_signal_t released;     /* messages whose slots were given back, as far as streams got */
    dp_message_tag_t head;    /* of the message in transfer; as the stream has it */
    dp_message_tag_t bundled; /* of the message in the open bundle; as the caller has it */
    MPI_Request requests[2];  /* head, data */
    uint64_t count, freed;    /* messages enqueued, given back */
};

struct dp_exchange {
    dp_exchange_t *next;
    dp_comm_t *comm;
    dp_exchange_config_t config;
    char label[LABEL_BYTES];
    bool connected;
    int *tags;             /* [nranks] where each rank listens */
    MPI_Datatype row;      /* of a group of more than one */
    MPI_Request *requests; /* [slots][2 * nranks]: [2 * (nranks - 1)] of each are used */
    MPI_Status *statuses;  /* [2 * nranks] */
    size_t slot_bytes;
    unsigned char *rows; /* [slots][nranks][capacity_rows] */
    int32_t *counts;     /* [slots][nranks] */
    dp_signal_t released;
    uint64_t count, awaited, freed;
};

#include "plugins/comm/ends.h"
#include "plugins/comm/posts.h"

/* comm_mpi.c */
/* Memory of the host, counted and zeroed; NULL records why. */
void *mpi_memory(dp_comm_t *comm, size_t count, size_t bytes);
/* Waits until n requests are done; `what` says in messages whose they are. */
dp_status_t mpi_wait(dp_comm_t *comm, MPI_Request *requests, int n, MPI_Status *statuses, const char *what);
/* The same where requests 0, 1, ... belong to all peers in turn: messages name the one that has not
 * come. */
dp_status_t mpi_wait_peers(dp_comm_t *comm, MPI_Request *requests, int n, MPI_Status *statuses, const char *what);
/* Takes back what can be taken back of n requests; true when some are still in MPI's hands. */
bool mpi_pending(MPI_Request *requests, int n);
/* The outcome of a call that hands something to MPI. */
dp_status_t mpi_check(const dp_comm_t *comm, int code, const char *what);
/* Peers count all ranks but ours in rank order. */
static inline int32_t peer_rank(const dp_comm_t *comm, int i)
{
    return i < comm->rank ? i : i + 1;
}

/* connect.c */
/* Tells all members where we listen and what for; what differs is DP_ERR_MISMATCH. */
dp_status_t mpi_connect_members(dp_comm_t *comm);
dp_status_t mpi_connect_opened(dp_comm_t *comm);
void mpi_talks_free(dp_comm_t *comm);
bool mpi_talks_pending(dp_comm_t *comm);

/* channel.c */
dp_status_t mpi_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out);
void mpi_channel_free(dp_channel_end_t *end);
dp_status_t mpi_channel_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s);
dp_status_t mpi_channel_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                             dp_stream_t *s);
dp_status_t mpi_channel_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s);
dp_status_t mpi_bundle_begin(dp_comm_t *comm, dp_stream_t *s);
dp_status_t mpi_bundle_end(dp_comm_t *comm, dp_stream_t *s);

/* exchange.c */
dp_status_t mpi_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out);
void mpi_exchange_free(dp_exchange_t *x);
dp_status_t mpi_exchange_run(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                             const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                             dp_stream_t *s);
dp_status_t mpi_exchange_post(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                              const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                              dp_stream_t *s);
dp_status_t mpi_exchange_wait(dp_exchange_t *x, uint32_t number, dp_stream_t *s);
dp_status_t mpi_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s);

/* reduce.c */
dp_status_t mpi_reduce_open(dp_comm_t *comm, size_t reduce_bytes);
dp_status_t mpi_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s);

#endif
