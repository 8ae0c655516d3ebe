/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * emulator.h: how kernels run on the host. Every thread of a block is a fiber; barriers and warp collectives switch between
 * the fibers of a block. A block belongs to one thread of the host, its shared memory is that thread's. */
#ifndef DP_FAKE_EMULATOR_H
#define DP_FAKE_EMULATOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DP_EMU_SLOT    64 /* most bytes that one lane hands to the others of its warp at once */
#define DP_EMU_COPIES  256
#define DP_EMU_THREADS 1024

typedef struct dp_emu_dim {
    unsigned x, y, z;
} dp_emu_dim_t;

/** One group of lanes that meet: see dp_emu_exchange. */
typedef struct dp_emu_meeting {
    unsigned mask, arrived;
    uint32_t generation;
    unsigned char slots[2][32][DP_EMU_SLOT];
} dp_emu_meeting_t;

typedef struct dp_emu_warp {
    unsigned meetings; /* in use */
    dp_emu_meeting_t meeting[8];
} dp_emu_warp_t;

typedef struct dp_emu_barrier {
    unsigned arrived;
    uint32_t generation;
} dp_emu_barrier_t;

struct dp_emu_launch;

typedef struct dp_emu_block {
    dp_emu_dim_t index;
    struct dp_emu_launch *launch;
    unsigned threads, live; /* live: have not returned yet */
    unsigned smid;
    unsigned char *dynamic;
    dp_emu_barrier_t barrier[16];
    dp_emu_warp_t warp[DP_EMU_THREADS / 32];
} dp_emu_block_t;

typedef struct dp_emu_copy {
    void *to;
    const void *from;
    unsigned bytes, group;
} dp_emu_copy_t;

typedef struct dp_emu_self {
    dp_emu_dim_t index, block_index, block_dim, grid_dim;
    unsigned linear, lane;
    dp_emu_block_t *block;
    dp_emu_copy_t *copies; /* asynchronous ones that have not been waited for */
    unsigned ncopies, group;
    /* the scheduler's */
    int state;
    const uint32_t *waits_for;
    uint32_t waits_while;
    const char *what;
    struct dp_emu_fiber *fiber;
} dp_emu_self_t;

/** The thread that runs; threadIdx and its kin read it. */
extern __thread dp_emu_self_t *dp_emu_self;

/** Barrier `id` of `threads` threads; 0: all that have not returned. */
void dp_emu_barrier(int id, unsigned threads);
/** Every lane of `mask` hands in `bytes` and gets the slots of all of them, [32][DP_EMU_SLOT], valid until its next call. */
const unsigned char *dp_emu_exchange(unsigned mask, const void *in, size_t bytes);
/** Lets the other threads of the block run, and other blocks: this one waits for memory to change. */
void dp_emu_spin(void);
/** Ends the kernel as a trap does. */
void dp_emu_trap(const char *why);
void *dp_emu_dynamic_shared(void);

typedef void (*dp_emu_call)(void (*kernel)(void), void **args);
/** What cuModuleGetFunction finds. parameters: their sizes, nparameters of them; static storage. */
typedef struct dp_emu_kernel {
    const char *name;
    void (*kernel)(void);
    dp_emu_call call;
    const size_t *parameters;
    unsigned nparameters;
    struct dp_emu_kernel *next;
} dp_emu_kernel_t;
void dp_emu_register(dp_emu_kernel_t *kernel);

#ifdef __cplusplus
}
#endif
#endif
