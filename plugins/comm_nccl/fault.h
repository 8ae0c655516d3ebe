/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fault.h: what goes wrong on streams, and the thread that ends it. */
#ifndef COMM_NCCL_FAULT_H
#define COMM_NCCL_FAULT_H

#include "comm_nccl.h"

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
