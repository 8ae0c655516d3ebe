/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * emulator.h: how kernels run on the host. Every thread of a block is a fiber; barriers and warp
 * collectives switch between the fibers of a block. A block belongs to one thread of the host, its
 * shared memory is that thread's. */
#ifndef DP_FAKE_EMULATOR_H
#define DP_FAKE_EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EMU_SLOT    64 /* most bytes that one lane hands to the others of its warp at once */
#define EMU_COPIES  256
#define EMU_THREADS 1024

typedef struct emu_dim {
    unsigned x, y, z;
} emu_dim_t;

/** One group of lanes that meet: see emu_exchange. */
typedef struct emu_gathering {
    unsigned mask, arrived;
    uint32_t generation;
    unsigned char slots[2][32][EMU_SLOT];
} emu_gathering_t;

typedef struct emu_warp {
    uint32_t epoch;      /* gatherings that are over */
    unsigned gatherings; /* in use */
    emu_gathering_t gathering[8];
} emu_warp_t;

typedef struct emu_barrier {
    unsigned arrived;
    uint32_t generation;
} emu_barrier_t;

struct emu_launch;

typedef struct emu_block {
    emu_dim_t index;
    struct emu_launch *launch;
    uint64_t serial;        /* of the blocks of this thread of the host */
    uint32_t epoch;         /* barriers that are over */
    unsigned threads, live; /* live: have not returned yet */
    unsigned smid;
    unsigned char *dynamic;
    emu_barrier_t barrier[16];
    emu_warp_t warp[EMU_THREADS / 32];
} emu_block_t;

typedef struct emu_copy {
    void *to;
    const void *from;
    unsigned bytes, group;
} emu_copy_t;

typedef struct emu_self {
    emu_dim_t index, block_index, block_dim, grid_dim;
    unsigned linear, lane;
    emu_block_t *block;
    emu_copy_t *copies; /* asynchronous ones that have not been waited for */
    unsigned ncopies, group;
    /* the scheduler's */
    int state;
    const uint32_t *waits_for;
    uint32_t waits_while;
    const char *what;
    struct emu_fiber *fiber;
} emu_self_t;

/** The thread that runs; threadIdx and its kin read it. */
extern __thread emu_self_t *emu_self;

/** Barrier `id` of `threads` threads; 0: all that have not returned. */
void emu_barrier(int id, unsigned threads);
/** Every lane of `mask` hands in `bytes` and gets the slots of all of them, [32][EMU_SLOT], valid
 *  until its next call. */
const unsigned char *emu_exchange(unsigned mask, const void *in, size_t bytes);
/** Lets the other threads of the block run, and other blocks: this one waits for memory to
 * change. */
void emu_spin(void);
/** Ends the kernel as a trap does. */
void emu_trap(const char *why);
void *emu_dynamic_shared(void);
/** Whether this is on the stack of the thread that runs: nobody else's business. */
bool emu_owns(const void *at);
/** races.c: the running thread reads or writes this. */
void emu_touch(const void *at, size_t bytes, bool writes);

typedef void (*emu_call)(void (*kernel)(void), void **args);
/** What cuModuleGetFunction finds. parameters: their sizes, nparameters of them; static storage. */
typedef struct emu_kernel {
    const char *name;
    void (*kernel)(void);
    emu_call call;
    const size_t *parameters;
    unsigned nparameters;
    struct emu_kernel *next;
    unsigned long launches; /* so far */
} emu_kernel_t;
void emu_register(emu_kernel_t *kernel);

#ifdef __cplusplus
}
#endif
#endif
