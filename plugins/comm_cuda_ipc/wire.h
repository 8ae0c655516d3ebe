/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * wire.h: what ranks of one machine tell each other on the host while they set up and end: that
 * they have come this far, and descriptors of memory. A datagram socket for each rank; no threads,
 * no names in the file system. No CUDA here. */
#ifndef COMM_CUDA_IPC_WIRE_H
#define COMM_CUDA_IPC_WIRE_H

#include <dualpipe/plugin.h>

#include <stdbool.h>

typedef struct wire wire_t;

/* Where a rank can be reached and what it runs in; goes through the boot service. */
typedef struct wire_address {
    char socket[48];     /* abstract name */
    uint64_t nonce[2];   /* a message without it is nobody's */
    uint64_t process[2]; /* with pid: ranks of one process */
    int32_t pid;
    uint32_t uid;
    char machine[40]; /* its boot id */
} wire_address_t;

/* Opens our socket. what: "rank 3, group pipeline.0" for messages, copied. */
dp_status_t ipc_wire_open(const dp_host_t *host, int32_t rank, int32_t nranks, const char *what, wire_t **wire_out);
void ipc_wire_close(wire_t *wire);
const wire_address_t *ipc_wire_own(const wire_t *wire);
/* Tells where another rank is. DP_ERR_UNSUPPORTED: on another machine. */
dp_status_t ipc_wire_introduce(wire_t *wire, int32_t rank, const wire_address_t *address);
bool ipc_wire_same_process(const wire_t *wire, int32_t rank);

/**
 * All ranks meet. `fd` (-1: none) goes to every rank of another process; fds_in[nranks] (NULL: what
 * comes is closed) gets what they sent, -1 for nothing, and belongs to the caller on success.
 * DP_ERR_TIMEOUT, when the job's limit has passed, names a rank that has not come. [blocks]
 */
dp_status_t ipc_wire_meet(wire_t *wire, int fd, int *fds_in);

#endif
