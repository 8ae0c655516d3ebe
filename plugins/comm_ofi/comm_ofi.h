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
#include "wire.h"

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
    uint64_t count, awaited, released;
    uint64_t leaving; /* on the stream: the exchange whose rows were put last */
};

#include "plugins/comm/ends.h"
#include "plugins/comm/posts.h"

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

/* reduce.c */
void ofi_base_size(dp_comm_t *comm, size_t reduce_bytes);
area_t ofi_base_area(const dp_comm_t *comm);
void ofi_base_prepare(dp_comm_t *comm, const region_t *region);
/* Each rank hears from each other one, so that all ways are open. */
dp_status_t ofi_base_greet(dp_comm_t *comm);
/* All ranks are here. */
dp_status_t ofi_base_meet(dp_comm_t *comm);
dp_status_t ofi_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s);

#endif
