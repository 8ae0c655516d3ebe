/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * device_work.h: work that cases put on streams and check afterwards, on any device: functions
 * where it has launch(), copies and sums of device memory where it has not. There a stream is held
 * by a wait of the CUDA driver for a value in memory. */
#ifndef DP_TESTS_DEVICE_WORK_H
#define DP_TESTS_DEVICE_WORK_H

#include "conform.h"

/* Steps that have to run in the order 0, 1, ...: on whichever streams, with events between them. */
typedef struct tally {
    const dp_device_vt_t *vt;
    dp_device_t *device;
    bool launches;
    uint64_t sum; /* by launch(): plain memory, only the order of the streams protects it */
    /* otherwise: *value grows by *one, then goes to log[i] */
    double *value, *one, *log;
    uint64_t room, put;
} tally_t;

/* Keeps a stream from getting on until it is opened. */
typedef struct gate {
    const dp_device_vt_t *vt;
    dp_device_t *device;
    const dp_host_t *host;
    bool launches;
    dp_signal_t signal;
    uint32_t *word; /* memory that host and device see */
} gate_t;

bool conform_work_launches(const dp_device_vt_t *vt);

dp_status_t conform_tally_open(tally_t *tally, const dp_device_vt_t *vt, dp_device_t *device, uint64_t steps);
dp_status_t conform_tally_step(tally_t *tally, dp_stream_t *s);
/* How many of the steps put so far ran, in order; UINT64_MAX: some did not run in order. Streams
 * are idle; s is any. */
uint64_t conform_tally_count(tally_t *tally, dp_stream_t *s);
void conform_tally_close(tally_t *tally);

/* lib.cuda of DUALPIPE_DEBUG, up to its comma: another library stands in for the CUDA driver. NULL:
 * none does. */
const char *conform_driver_named(void);

/* DP_ERR_UNSUPPORTED: nothing is known that would hold a stream of this device. */
dp_status_t conform_gate_make(gate_t *gate, const dp_device_vt_t *vt, dp_device_t *device, const dp_host_t *host);
dp_status_t conform_gate_hold(gate_t *gate, dp_stream_t *s);
void conform_gate_open(gate_t *gate);
void conform_gate_free(gate_t *gate);

/* Between host and device memory; waits. s NULL: only where the host sees device memory. */
dp_status_t conform_work_write(const dp_device_vt_t *vt, dp_stream_t *s, void *to, const void *from, size_t bytes);
dp_status_t conform_work_read(const dp_device_vt_t *vt, dp_stream_t *s, void *to, const void *from, size_t bytes);

#endif
