/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kernels.h: what the host hands the kernels, and what they tell it when something is wrong. C11
 * and CUDA C. */
#ifndef COMM_CUDA_IPC_KERNELS_H
#define COMM_CUDA_IPC_KERNELS_H

#include <stdint.h>

#define IPC_SIGNALS 24 /* words that one kernel waits for or writes */

typedef enum ipc_fault {
    IPC_FAULT_NONE = 0,
    IPC_FAULT_TAG,      /* object: the channel's end; words: expected tag, found tag */
    IPC_FAULT_OVERFLOW, /* object: the exchange; words: number, rank it was for, rows */
    IPC_FAULT_ROWS,     /* object: the exchange; words: number, rank it came from, number, rows */
    IPC_FAULT_SUM,      /* words: rank, expected number, count low, high, dtype; found the same */
    IPC_FAULT_DEADLINE, /* object: the word's device address; words: expected, found */
    IPC_FAULT_SLOTS     /* object: the word's device address; words: expected, found */
} ipc_fault_t;

/* Pinned host memory that kernels see. The host writes `aborted`, one thread of one kernel the
 * rest. */
typedef struct ipc_mailbox {
    uint32_t aborted;
    uint32_t fault; /* ipc_fault_t; the others are valid once it is not 0 */
    uint64_t object;
    uint32_t words[12];
} ipc_mailbox_t;

/* Where a kernel reports, and hears of an abort. */
typedef struct ipc_report {
    ipc_mailbox_t *mailbox; /* device address */
    uint32_t *taken;        /* device memory: 1 once a fault has been written */
    uint64_t deadline_ns;   /* of one wait */
} ipc_report_t;

/* counter NULL: delta; else what lies there, plus delta. */
typedef struct ipc_value {
    const uint32_t *counter;
    uint32_t delta, unused;
} ipc_value_t;

typedef enum ipc_signal_kind { IPC_WAIT, IPC_WRITE, IPC_EXPECT } ipc_signal_kind_t;

typedef struct ipc_signal {
    uint32_t *word;
    uint32_t value;
    uint16_t kind, relative;
} ipc_signal_t;

/* Waits and writes in order; values are relative to what `counter` held when the kernel began. */
typedef struct ipc_signals {
    ipc_report_t report;
    const uint32_t *counter;
    uint32_t count, unused;
    ipc_signal_t signals[IPC_SIGNALS];
} ipc_signals_t;

typedef struct ipc_check_tag {
    ipc_report_t report;
    uint64_t object;
    const uint32_t *head;
    ipc_value_t number;
    uint32_t expected[4]; /* [0] is not used */
} ipc_check_tag_t;

/* Rows of one rank for all: see layout.h for what lies where in the others' AREA_ROWS. */
typedef struct ipc_put_rows {
    ipc_report_t report;
    uint64_t object;
    const unsigned char *send;
    const int32_t *offsets, *counts;
    const uint64_t *peers; /* [2 * nranks] lines of rank p, payload of rank p */
    uint32_t *done;        /* [nranks] 0 before and after */
    ipc_value_t number;
    uint64_t row_bytes;
    uint64_t head_at, arrived_at; /* bytes from a peer's lines: ours there */
    uint64_t rows_at;             /* bytes from a peer's payload */
    uint32_t nranks, rank, capacity;
    uint32_t share;          /* blocks for each peer */
    double link_ns_per_byte; /* of a simulated link; 0: none */
} ipc_put_rows_t;

typedef struct ipc_take_counts {
    ipc_report_t report;
    uint64_t object;
    const unsigned char *heads; /* [nranks] lines */
    int32_t *counts;            /* [nranks] */
    ipc_value_t number;
    uint32_t nranks, capacity;
} ipc_take_counts_t;

/* Our slice of a part: the sum over in[0], in[1], ... goes to all ranks. */
typedef struct ipc_sum {
    ipc_report_t report;
    const unsigned char *heads; /* [nranks] lines */
    const unsigned char *in;    /* rank p's at in + p * in_stride */
    const uint64_t *peers;      /* as above */
    uint64_t in_stride, out_at; /* out_at: bytes from a peer's payload */
    uint64_t elements, count;   /* of the slice; of the whole sum */
    ipc_value_t number;
    uint32_t nranks, dtype;
} ipc_sum_t;

typedef struct ipc_pace {
    ipc_report_t report;
    uint64_t ns;
} ipc_pace_t;

#endif
