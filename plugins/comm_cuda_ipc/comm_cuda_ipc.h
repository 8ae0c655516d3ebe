/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_cuda_ipc.h: the objects of the peer-memory transport.
 *
 * Every rank owns blocks of device memory (one from open, one from each start) that its peers have
 * mapped. layout.h says what lies where in them, plan.h what is waited for and written, queue.c
 * puts that on streams, fault.c ends it when something is wrong. */
#ifndef COMM_CUDA_IPC_H
#define COMM_CUDA_IPC_H

#include "kernels.h"
#include "plan.h"
#include "plugins/common/debug.h"
#include "wire.h"

#include "cuda/launch.h"
#include "cuda/module.h"
#include "cuda/side.h"

#include <pthread.h>

#define NAME_BYTES  80
#define LABEL_BYTES 64
#define STREAMS_MAX 16
#define BATCH_MAX   128 /* memory operations in one call of the driver */

/* Memory of a rank of this process, counted: the last of them to let go frees it. */
typedef struct shared_block shared_block_t;

typedef enum block_kind { BLOCK_NONE, BLOCK_SHARED, BLOCK_IMPORTED, BLOCK_OPENED } block_kind_t;

typedef struct block {
    block_kind_t kind;
    unsigned char *base; /* device address */
    size_t bytes;
    shared_block_t *shared;                /* BLOCK_SHARED */
    CUmemGenericAllocationHandle imported; /* BLOCK_IMPORTED */
} block_t;

/* How another process gets at a block. */
typedef enum block_method { METHOD_NONE, METHOD_FD, METHOD_HANDLE } block_method_t;

/* What ranks tell each other of their blocks through the boot service. */
typedef struct announcement {
    uint64_t nonce[2]; /* also in the block: it is the one that was meant */
    uint64_t bytes;    /* 0: nothing to show in this round */
    uint32_t areas, method;
    int32_t ordinal, unused;
    CUipcMemHandle handle; /* METHOD_HANDLE */
} announcement_t;

/* A block that is being connected. */
typedef struct view {
    announcement_t announcement;
    area_t *areas;
    block_t block;
} view_t;

/* A list of blocks that live as long as the instance. */
typedef struct holding holding_t;
struct holding {
    holding_t *next;
    block_t block;
    size_t lines;
    /* [lines] of ours: TARGET_SET | the latest value that a stream waits for; else NULL */
    uint64_t *targets;
};

/* A stream that has carried something of ours, and a mark behind the latest of it: streams may be
 * closed before us. */
typedef struct used_stream {
    const dp_stream_t *stream;
    CUevent mark;
} used_stream_t;

#define TARGET_SET (UINT64_C(1) << 32)

struct dp_comm {
    const dp_host_t *host;
    const dp_host_boot_t *boot;
    const cuda_driver_t *cu;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    CUcontext context;
    CUdevice ordinal;
    char name[NAME_BYTES];
    int32_t rank, nranks;
    int32_t *world; /* [nranks] */
    wire_t *wire;   /* NULL: alone */
    uint32_t round; /* of blocks */
    block_method_t method;
    size_t granularity, memory_bytes;
    holding_t *own, *imported;
    bool broken;  /* an open or start failed: nobody is there to meet */
    bool watched; /* the device asks us */

    /* kernels */
    CUmodule module;
    CUfunction signals, pace, check_tag, put_rows, take_counts, sum[3];
    uint32_t blocks;      /* of a kernel's grid: our share of the device */
    uint32_t has_domains; /* 1: kernels may say that they serve transfers */

    /* traffic */
    plan_group_t base;
    unsigned char **base_lines, **base_payload; /* [nranks] */
    size_t part_bytes;
    dp_channel_end_t *ends;
    dp_exchange_t *exchanges;
    uint64_t parts;
    bool sums_captured;
    plan_t plan;                     /* room for what is being enqueued */
    CUstreamBatchMemOpParams *batch; /* [BATCH_MAX] */
    used_stream_t streams[STREAMS_MAX];
    uint32_t stream_count;
    bool spin;               /* kernels wait, not streams: DUALPIPE_DEBUG=ipc.wait=kernel */
    double link_ns_per_byte; /* of a simulated link; 0: none */

    /* faults */
    ipc_mailbox_t *mailbox; /* pinned */
    CUdeviceptr mailbox_at;
    ipc_report_t report;
    CUstream side; /* for set-up, and to release streams that wait */
    pthread_t watchdog;
    bool watchdog_runs;
    dp_signal_t wake; /* 1: a fault, or close; 2: close */
    uint32_t closing;
};

struct dp_channel_end {
    dp_channel_end_t *next;
    dp_comm_t *comm;
    dp_channel_config_t config;
    char label[LABEL_BYTES];
    bool connected, captured;
    plan_channel_t plan;
    uint64_t count, released; /* messages enqueued, slots given back */
};

struct dp_exchange {
    dp_exchange_t *next;
    dp_comm_t *comm;
    dp_exchange_config_t config;
    char label[LABEL_BYTES];
    bool connected, captured;
    plan_group_t group;
    unsigned char **lines, **payload; /* [nranks] */
    uint64_t count, released;
};

#include "plugins/comm/ends.h"

static inline size_t count_of(int32_t nranks)
{
    return (size_t)nranks;
}
#define WORLD(comm) ((comm)->world[(comm)->rank])

/* block.c */
dp_status_t ipc_block_limits(dp_comm_t *comm);
/* Zeroed memory of ours, told to the others by *announcement; *fd_out (METHOD_FD, else -1) is the
 * caller's. */
dp_status_t ipc_block_create(dp_comm_t *comm, size_t bytes, block_t *block_out, announcement_t *announcement,
                             int *fd_out);
/* Maps the block that was announced. Takes fd (-1: none) in every case. */
dp_status_t ipc_block_import(dp_comm_t *comm, int32_t rank, const announcement_t *announcement, int fd,
                             block_t *block_out);
void ipc_block_drop(dp_comm_t *comm, block_t *block);

/* fault.c */
dp_status_t ipc_fault_open(dp_comm_t *comm);
/* Ends the watchdog. at_rest: no kernel looks at the mailbox any more. */
void ipc_fault_close(dp_comm_t *comm, bool at_rest);
void fault_abort(dp_comm_t *comm);
dp_status_t ipc_fault_check(void *comm);

/* join.c */
dp_status_t ipc_join_open(dp_comm_t *comm);
dp_status_t ipc_join_start(dp_comm_t *comm);
/* Unmaps what is the peers'; frees what is ours. */
void ipc_join_let_go(dp_comm_t *comm);
void ipc_join_let_go_own(dp_comm_t *comm);

/* channel.c */
dp_status_t ipc_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out);
/* The area of one side of the channel as that side's directory has it. */
area_t ipc_channel_area(const dp_channel_end_t *end, bool ours);
void ipc_channel_connect(dp_channel_end_t *end, unsigned char *own_lines, unsigned char *own_payload,
                         unsigned char *far_lines, unsigned char *far_payload);
dp_status_t ipc_channel_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s);
dp_status_t ipc_channel_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                             dp_stream_t *s);
dp_status_t ipc_channel_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s);
dp_status_t ipc_channel_refuse(const dp_channel_end_t *end, const uint32_t words[8]);

/* exchange.c */
dp_status_t ipc_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out);
void ipc_exchange_free(dp_exchange_t *x);
area_t ipc_exchange_area(const dp_exchange_t *x);
dp_status_t ipc_exchange_run(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                             const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                             dp_stream_t *s);
dp_status_t ipc_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s);

/* reduce.c */
void ipc_reduce_size(dp_comm_t *comm, size_t reduce_bytes);
dp_status_t ipc_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s);

#endif
