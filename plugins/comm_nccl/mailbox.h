/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mailbox.h: what kernels report to the host, in pinned memory. Read by kernels and host code. */
#ifndef COMM_NCCL_MAILBOX_H
#define COMM_NCCL_MAILBOX_H

#include <stdint.h>

enum {
    NCCL_FAULT_NONE = 0,
    NCCL_FAULT_TAG = 1,      /* words: wanted[4], got[4] */
    NCCL_FAULT_OVERFLOW = 2, /* words: exchange, rank, rows: our own */
    NCCL_FAULT_ROWS = 3,     /* words: exchange, rank, rows: the other rank's */
    NCCL_FAULT_SUM = 4       /* words: wanted[4], got[4], rank */
};

#define NCCL_UNORDERED 0x100u /* beside the dtype in the head of a sum */

typedef struct nccl_mailbox {
    uint32_t claim, kind;
    /* set by the host before it ends transfers: what is seen afterwards is no news */
    uint32_t aborted, unused;
    uint64_t object; /* a host pointer */
    uint32_t words[12];
} nccl_mailbox;

#endif
