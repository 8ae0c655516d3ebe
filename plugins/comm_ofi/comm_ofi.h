/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_ofi.h: the objects of the libfabric transport.
 *
 * Every rank owns regions (one from open, one from each start) that its peers may write. What lies
 * in a region is told by a directory of areas, which peers read from the boot service; they believe
 * nothing of it before they have checked it. A rank never reads from a peer, it only puts: one
 * write carries a head, data, and the number of a bell. The bell rings at the receiver when all of
 * it has been placed, and counts how often. Rings may overtake each other on their way and nothing
 * changes: a bell belongs to one slot (or to credits, of which only the number matters).
 *
 *   AREA_BASE     hello by rank, barriers by round, staging of all_reduce by buffer and rank
 *   AREA_SLOTS    receiving end of a channel: a bell for each slot
 *   AREA_CREDIT   sending end of a channel: a bell for credits
 *   AREA_ROWS     an exchange: credits by rank, heads and rows by slot and rank */
#ifndef COMM_OFI_H
#define COMM_OFI_H

#include "gpu.h"

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

/* What ranks tell each other through the boot service, in each round. */
typedef struct record {
    char provider[64];
    char host[128]; /* whose loopback addresses are the same */
    unsigned char name[ADDRESS_BYTES];
    uint64_t address, key, bytes;
    uint32_t name_bytes;
    uint32_t library, areas, bells, scatter, direct, loopback;
} record_t;

/* A region of a peer that is being connected. */
typedef struct view {
    record_t record;
    area_t *areas; /* a private copy of the directory */
    bool loaded;
} view_t;

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

/* Memory of the caller's that is sent from. */
typedef struct lent {
    uint64_t base, id;
    size_t bytes;
    struct fid_mr *mr;
} lent_t;

/* What a channel's end or an exchange has on a device whose memory is out of the host's reach; all
 * zero on others. */
#define LENT 4
typedef struct part {
    gpu_queue_t *queue, *releases;
    unsigned char *shown; /* what has been received; NULL: it is where it was put */
    struct fid_mr *mr;    /* of shown, where peers put it there themselves */
    uint64_t address, key;
    lent_t lent[LENT];
    uint32_t latest;
} part_t;

struct dp_comm {
    const dp_host_t *host;
    const dp_host_boot_t *boot;
    const dp_device_vt_t *device;
    dp_device_t *instance;
    gpu_t *gpu; /* its memory is out of the host's reach; else NULL */
    part_t sums;
    char name[NAME_BYTES];
    int32_t rank, nranks;
    int32_t *world; /* [nranks] */
    wire_t wire;
    region_t *regions; /* [region_count], by round; the array changes under the wire's lock */
    uint32_t region_count;
    size_t block_bytes;
    size_t memory_bytes;
    area_t base;     /* ours */
    region_t ground; /* the first region, where that lies */
    place_t *bases;  /* [nranks] AREA_BASE of each rank */
    dp_channel_end_t *ends;
    dp_exchange_t *exchanges;
    uint32_t barriers;   /* on the host */
    uint32_t blocks;     /* of all_reduce, done so far; the stream's */
    uint32_t reductions; /* enqueued so far */
    bool broken;         /* an open or start failed: nobody is there to meet */
};

struct dp_channel_end {
    dp_channel_end_t *next;
    dp_comm_t *comm;
    dp_channel_config_t config;
    char label[LABEL_BYTES];
    bool connected;
    size_t stride;
    unsigned char *slots; /* of the receiver, ours */
    bell_t *bells;        /* ours: by slot, or of the credits */
    place_t far;          /* the other side's area */
    op_t *op;             /* for sends, or for credits */
    uint32_t *heard;      /* by slot: rings of data that are a separate write */
    part_t part;
    uint64_t count, released; /* messages enqueued, slots given back */
};

struct dp_exchange {
    dp_exchange_t *next;
    dp_comm_t *comm;
    dp_exchange_config_t config;
    char label[LABEL_BYTES];
    bool connected;
    unsigned char *area; /* ours */
    bell_t *bells;
    place_t *far;     /* [nranks] */
    op_t *ops;        /* [nranks] for rows */
    op_t *credits;    /* [nranks] for credits */
    bell_t *own;      /* credits that we give ourselves */
    int32_t *counts;  /* [slots * nranks] received, checked */
    uint32_t *heard;  /* [slots * nranks] rings of rows that are a separate write */
    int32_t *sending; /* [2 * nranks] rows for each rank, and where they begin */
    part_t part;      /* shown: rows and counts by slot */
    uint64_t count, released;
};

#include "plugins/comm/ends.h"

/* comm_ofi.c */
/* As launch() of the device. */
dp_status_t ofi_launch(dp_comm_t *comm, gpu_queue_t *queue, dp_stream_t *s, dp_launch_fn fn, const void *arg,
                       size_t bytes);
/* Where one side may be memory of the device; only in functions that were launched. */
dp_status_t ofi_copy(dp_comm_t *comm, void *to, const void *from, size_t bytes);
/* part.c */
/* releases: with a queue for what is given back. */
dp_status_t ofi_part_open(dp_comm_t *comm, part_t *part, bool releases);
/* Memory of the device where what is received lies; peers may write it where wire.direct is set. */
dp_status_t ofi_part_show(dp_comm_t *comm, part_t *part, size_t bytes);
/* What a put out of memory of the device takes; only one thread at a time, with no put of this part
 * under way. */
dp_status_t ofi_part_lend(dp_comm_t *comm, part_t *part, const void *data, void **desc_out);
/* The provider reaches none of it any more. */
void ofi_part_withdraw(part_t *part);
void ofi_part_free(const dp_comm_t *comm, part_t *part);

/* fabric.c */
/* Chooses provider and interface, and opens everything up to the endpoint. */
dp_status_t ofi_fabric_open(dp_comm_t *comm);
void ofi_fabric_close(dp_comm_t *comm);
/* Says what this rank is reached by. */
dp_status_t ofi_fabric_describe(dp_comm_t *comm, record_t *record);
/* Checks that a peer speaks what we do and can be reached, and makes it known to the endpoint. */
dp_status_t ofi_fabric_add(dp_comm_t *comm, int32_t rank, const record_t *record);
/* Lets peers write the region. */
dp_status_t ofi_fabric_register(dp_comm_t *comm, region_t *region);
/* Memory of the device, where wire.direct is set. Under the lock of the wire. */
dp_status_t ofi_fabric_register_device(dp_comm_t *comm, void *base, size_t bytes, uint64_t access,
                                       struct fid_mr **mr_out);

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

/* join.c */
dp_status_t ofi_join_group(dp_comm_t *comm);
dp_status_t ofi_join_start(dp_comm_t *comm);
/* Where `rank` has the area that `expected` describes, in this round; DP_ERR_MISMATCH says what
 * differs. */
dp_status_t ofi_join_find(dp_comm_t *comm, view_t *views, int32_t rank, const area_t *expected, const char *what,
                          place_t *place_out);
void ofi_join_free_region(dp_comm_t *comm, region_t *region);

/* channel.c */
dp_status_t ofi_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out);
void ofi_channel_free(dp_channel_end_t *end);
/* Before its area is told to others. */
dp_status_t ofi_channel_show(dp_channel_end_t *end);
/* The area of one side of the channel as that side's directory has it. */
area_t ofi_channel_area(const dp_channel_end_t *end, bool ours);
dp_status_t ofi_channel_connect(dp_channel_end_t *end, const area_t *ours, const region_t *region, view_t *views);
dp_status_t ofi_channel_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s);
dp_status_t ofi_channel_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                             dp_stream_t *s);
dp_status_t ofi_channel_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s);

/* exchange.c */
dp_status_t ofi_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out);
void ofi_exchange_free(dp_exchange_t *x);
dp_status_t ofi_exchange_show(dp_exchange_t *x);
area_t ofi_exchange_area(const dp_exchange_t *x);
dp_status_t ofi_exchange_connect(dp_exchange_t *x, const area_t *ours, const region_t *region, view_t *views);
dp_status_t ofi_exchange_run(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                             const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                             dp_stream_t *s);
dp_status_t ofi_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s);

/* reduce.c */
void ofi_base_size(dp_comm_t *comm, size_t reduce_bytes);
area_t ofi_base_area(const dp_comm_t *comm);
void ofi_base_prepare(dp_comm_t *comm, const region_t *region);
/* Each rank hears from each other one, so that all ways are open. */
dp_status_t ofi_base_greet(dp_comm_t *comm);
/* All ranks are here. */
dp_status_t ofi_base_meet(dp_comm_t *comm);
dp_status_t ofi_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s);

static inline void ofi_free(const dp_comm_t *comm, void *memory)
{
    if (memory != NULL)
        comm->host->release(comm->host, memory);
}

#endif
