/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * launch.h: one launch of a kernel on the emulator. */
#ifndef DP_FAKE_LAUNCH_H
#define DP_FAKE_LAUNCH_H

#include "emulator.h"

#include <pthread.h>
#include <stdbool.h>

typedef enum dp_emu_failure { EMU_FINE = 0, EMU_TRAPPED, EMU_DEADLOCK, EMU_HANG, EMU_NO_MEMORY } dp_emu_failure_t;

typedef struct dp_emu_launch {
    const dp_emu_kernel_t *kernel;
    void **args;
    dp_emu_dim_t grid, block;
    size_t shared_bytes;
    const unsigned char *sms; /* [nsms] the SMs that it may use */
    unsigned nsms;
    unsigned resident; /* most blocks that the device holds at once */
    /* the emulator's */
    uint64_t next, total;
    unsigned runners;
    int failure;
    char message[512];
    pthread_mutex_t lock;
    pthread_t helpers[512];
    unsigned nhelpers;
} dp_emu_launch_t;

/** Runs all blocks; the failure, with launch->message. */
dp_emu_failure_t dp_emu_run(dp_emu_launch_t *launch);
const dp_emu_kernel_t *dp_emu_find(const char *name);
uint64_t dp_emu_clock_ns(void);
double fake_hang_seconds(void);

#endif
