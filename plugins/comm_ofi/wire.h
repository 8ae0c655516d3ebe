/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * wire.h: regions and bells, puts on their way, and who looks after completions. */
#ifndef COMM_OFI_WIRE_H
#define COMM_OFI_WIRE_H

#include "plugins/comm/areas.h"

#include <dualpipe/comm.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <pthread.h>
#include <stdalign.h>
#include <stdbool.h>

#define HEAD_BYTES    32
#define ADDRESS_BYTES 128
#define TEXT_BYTES    400
/* A bell's number is sent as 32 bits of completion data: which start made it, and which one of
 * that. */
#define BELL_BITS  20
#define ROUNDS_MAX (1u << (32 - BELL_BITS))

/* How often a bell rang; only who has the lock of the wire rings. */
typedef struct bell {
    alignas(CACHE_LINE) dp_signal_t signal;
    /* of the put that rang it, where credits may come with it; else NULL */
    const struct head *head;
} bell_t;

/* Memory of ours that peers write, and the bells that go with it. */
typedef struct region {
    unsigned char *base; /* NULL: none */
    size_t bytes;
    struct fid_mr *mr; /* NULL without peers */
    void *desc;        /* for puts out of it */
    uint64_t address;  /* where peers say it begins */
    uint64_t key;
    bell_t *bells;
    uint32_t bell_count;
} region_t;

/* Memory of a rank as a put names it. */
typedef struct place {
    int32_t rank;
    uint32_t bell; /* the first of its area, with its round */
    uint64_t address, key;
    uint64_t data_address, data_key;
} place_t;

/* What is sent in front of the data. */
typedef struct head {
    union {
        struct {
            uint32_t number, step;
            int32_t microbatch;
            uint32_t bytes, id;
            int32_t sender;
        } message;
        struct {
            uint32_t number;
            int32_t rows, sender;
        } rows;
        struct {
            uint64_t count;
            uint32_t number, dtype, block;
            int32_t sender;
        } sum;
    };
    /* a bell of the receiver that rings as well, + 1: a credit that comes with a message */
    uint32_t credit;
} head_t;
_Static_assert(sizeof(head_t) == HEAD_BYTES, "the head of a put");

struct op;
typedef struct ticket {
    struct fi_context2 context; /* the provider's */
    struct op *op;
} ticket_t;

typedef struct put {
    int32_t to;
    uint32_t bell, data_bell; /* data_bell: where data that are a separate write ring */
    uint64_t head_at, key;
    bool apart; /* the data are not put right behind the head, but here */
    uint64_t data_at, data_key;
    const void *data;
    void *desc; /* of data in memory of the device that the provider reaches */
    size_t bytes;
    bool delivered; /* it is finished only when it has been placed */
    bool carries;   /* a credit may go with it */
    const char *what;
} put_t;

#define TICKETS 4

/* A put that may be on its way: lies in a region, one thread uses it. */
typedef struct op {
    alignas(CACHE_LINE) dp_signal_t done; /* writes that the provider has let go of */
    uint32_t posted;
    int32_t peer;
    head_t head;
    ticket_t tickets[TICKETS]; /* of writes, and of bells that are separate writes */
    void *desc;
    unsigned char *bounce; /* a copy of the data goes here first; NULL: not needed */
    struct op *next;
    put_t credit;  /* ops for credits: the put that gives one */
    uint32_t owed; /* under the lock: credits that have not left yet */
    struct op *next_owing;
} op_t;

/* The endpoint of an instance, its completions and the thread that looks after them. */
typedef struct wire {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    fi_addr_t *peers; /* [nranks] */
    bool scatter;     /* one write can fill two places */
    bool bounce;      /* data has to be copied to memory first that is registered, or the host's */
    /* data of channels and exchanges go from and to memory of the device itself */
    bool direct;
    char staged[128]; /* why not */
    bool loopback;
    char unlisted[48];   /* this host's address towards rank 0, which no provider had */
    bool delivery;       /* a put can be finished when it has been placed, not when it has left */
    size_t inject_bytes; /* most that one call copies */
    size_t whole_bytes;  /* most that a write carries which rings a bell */
    uint64_t keys;       /* given out so far, where they are ours to choose */
    char provider[64], host[128], local[128];

    pthread_mutex_t lock; /* of all above and of the provider's objects */
    op_t *ops;            /* all of them */
    op_t *owing;          /* under the lock: those with credits that have not left */
    int64_t owing_since;  /* the oldest */
    bool dead;            /* under the lock: the provider is not called any more */
    int64_t lost_ns;      /* under the lock: when a peer was lost; 0: none */
    bool poisoned;        /* every wait has ended with `fault` */
    dp_status_t fault_status;
    char fault[TEXT_BYTES];

    int cq_fd;             /* the provider's, to sleep on; -1: none */
    int wake_fd, nudge_fd; /* wake the thread, and one that drives */
    int32_t waiting;       /* threads that wait, with the one that drives */
    uint32_t drives;       /* how often one began to drive */
    /* a waiting thread looks after the completions; it sleeps until there are some */
    bool driven, asleep;
    bool away, parked; /* the thread keeps away from completions; until it is woken */
    bool stop;         /* the thread is to end */
    bool running;
    pthread_t thread;
} wire_t;

/* wire.c */
/* Head and data on their way to a rank. The data stay untouched until wire_finish. */
dp_status_t ofi_wire_put(dp_comm_t *comm, op_t *op, const put_t *put);
dp_status_t ofi_wire_finish(dp_comm_t *comm, op_t *op, const char *what);
/* The caller gives its memory away while puts out of it may be on their way: none of them goes
 * on. */
void ofi_wire_abandon(dp_comm_t *comm);
/* A credit by op->credit, soon: at once, or with the next message to that rank, or WIRE_OWE_NS
 * later where a thread waits, or a moment later where none does. `slots`: those that the peer
 * writes, all that can be owed. */
#define WIRE_OWE_NS 25000
dp_status_t ofi_wire_owe(dp_comm_t *comm, op_t *op, uint32_t slots);
/* Sends what is owed since that time or longer. Under the lock. */
void ofi_wire_pay(dp_comm_t *comm, int64_t before_ns);
/* Waits on a bell or an op. The message of a failure is about `what`. */
dp_status_t ofi_wire_wait(dp_comm_t *comm, dp_signal_t *signal, uint32_t target, const char *what);
/* Whether a failed wait is news of this rank, which the caller should explain. Else it has the
 * job's first cause, and that is to reach the user as it is. */
bool ofi_wire_is_news(const dp_comm_t *comm, dp_status_t status);
void ofi_op_init(dp_comm_t *comm, op_t *op, int32_t peer, const region_t *region, unsigned char *bounce);
/* The bell of ours with this number in round `round`. */
static inline uint32_t bell_name(uint32_t round, uint32_t bell)
{
    return round << BELL_BITS | bell;
}

/* completions.c */
/* Reads completions that are there; false when there are none. Under the lock; who calls it nudges
 * the driver. */
bool ofi_progress_look(dp_comm_t *comm);
/* Ends every wait with this; the first one counts. Under the lock. */
void ofi_progress_poison(dp_comm_t *comm, dp_status_t status, const char *text);

/* progress.c */
/* As the host's wait() on a signal that the completions move. */
dp_status_t ofi_progress_wait(dp_comm_t *comm, dp_signal_t *signal, uint32_t target, const char *what);
/* The thread that drives looks at its signal again; the thread of the instance at everything. */
void ofi_progress_nudge(dp_comm_t *comm);
void ofi_progress_wake(dp_comm_t *comm);
dp_status_t ofi_progress_start(dp_comm_t *comm);
void ofi_progress_stop(dp_comm_t *comm);

#endif
