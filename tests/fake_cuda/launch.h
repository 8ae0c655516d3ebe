/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * launch.h: one launch of a kernel on the emulator. */
#ifndef DP_FAKE_LAUNCH_H
#define DP_FAKE_LAUNCH_H

#include "emulator.h"

#include <pthread.h>
#include <stdbool.h>

typedef enum emu_failure { EMU_FINE = 0, EMU_TRAPPED, EMU_DEADLOCK, EMU_HANG, EMU_NO_MEMORY } emu_failure_t;

typedef struct emu_launch {
    const emu_kernel_t *kernel;
    void **args;
    emu_dim_t grid, block;
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
} emu_launch_t;

/** Runs all blocks; the failure, with launch->message. */
emu_failure_t emu_run(emu_launch_t *launch);
emu_kernel_t *emu_find(const char *name);
uint64_t emu_clock_ns(void);
/** Lets others run while something is waited for, by an eighth of what it took since `since_ns`:
 * each round of a thousand threads that spin costs the others their processor. True: it took
 * $DP_FAKE_HANG_SECONDS. */
bool emu_nap(unsigned rounds, uint64_t since_ns);
double fake_hang_seconds(void);

#endif
