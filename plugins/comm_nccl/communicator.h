/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * communicator.h: communicators, and calls of NCCL. */
#ifndef COMM_NCCL_COMMUNICATOR_H
#define COMM_NCCL_COMMUNICATOR_H

#include "comm_nccl.h"

/* comm_nccl.c */
/* Of all ranks. ctas: most blocks of a kernel. */
dp_status_t nccl_communicator_open(dp_comm_t *comm, unsigned ctas, ncclComm_t *comm_out);
/* Of the ranks with this color, in the order of `key`; below 0: we are not in one. All ranks call
 * it. */
dp_status_t nccl_communicator_split(dp_comm_t *comm, int32_t color, int32_t key, unsigned ctas, ncclComm_t *comm_out);
/* NULL when it is over, else nccl_fault_abort has it. */
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

#endif
