/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * races.c: races inside of a block. Kernels of libcuda_races.so are compiled with
 * -fsanitize=thread, whose calls come here instead of to ThreadSanitizer (which sees fibers of one
 * thread, in order). Two threads of a block that touch the same bytes, one of them writing, without
 * a barrier or (in one warp) a collective in between, end the kernel as a trap does, whatever order
 * they ran in.
 *
 * Nothing is reported that is in order: any barrier is taken for one of the whole block, any
 * collective for one of the whole warp, and atomics with an order for a barrier. Atomics themselves
 * do not count. What comes after one another in one order of the threads alone may be missed where
 * a third access lies between, to the same or neighbouring bytes. */
#include "launch.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { GRANULE = 4, FIRST_CELLS = 1 << 12 };

typedef struct access {
    const void *code; /* NULL: none yet */
    uint32_t block_epoch, warp_epoch;
    uint16_t thread;
    uint8_t bytes; /* a bit for each of the granule */
} access_t;

typedef struct cell {
    uintptr_t granule;
    uint64_t serial; /* of the block; another one: free */
    access_t write, read[2];
} cell_t;

/* Of the thread of the host that runs the block. */
typedef struct shadow {
    cell_t *cells;
    size_t size, used;
    uint64_t serial;
} shadow_t;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t kept;
static __thread shadow_t *mine;

static void drop(void *arg)
{
    shadow_t *s = arg;

    free(s->cells);
    free(s);
}

static void make_key(void)
{
    (void)pthread_key_create(&kept, drop);
}

static cell_t *slot(const shadow_t *s, uintptr_t granule)
{
    size_t i = (size_t)(granule * 0x9e3779b97f4a7c15u >> 20) & (s->size - 1);

    while (s->cells[i].serial == s->serial && s->cells[i].granule != granule)
        i = (i + 1) & (s->size - 1);
    return &s->cells[i];
}

static void *need(void *memory)
{
    if (memory == NULL)
        emu_trap("no memory for the shadow of a block");
    return memory;
}

static void grow(shadow_t *s)
{
    const shadow_t before = *s;

    s->size = before.size > 0 ? 2 * before.size : FIRST_CELLS;
    s->cells = need(calloc(s->size, sizeof(*s->cells)));
    for (size_t i = 0; i < before.size; i++)
        if (before.cells[i].serial == s->serial)
            *slot(s, before.cells[i].granule) = before.cells[i];
    free(before.cells);
}

static shadow_t *shadow_of(const emu_block_t *block)
{
    if (mine == NULL) {
        pthread_once(&once, make_key);
        mine = need(calloc(1, sizeof(*mine)));
        (void)pthread_setspecific(kept, mine);
    }
    if (mine->serial != block->serial) {
        mine->serial = block->serial;
        mine->used = 0;
    }
    if (2 * (mine->used + 1) > mine->size)
        grow(mine);
    return mine;
}

static bool unordered(const access_t *a, const access_t *b)
{
    return a->code != NULL && a->thread != b->thread && (a->bytes & b->bytes) != 0 &&
           a->block_epoch == b->block_epoch && (a->thread / 32 != b->thread / 32 || a->warp_epoch == b->warp_epoch);
}

static unsigned long offset_of(const void *code)
{
    Dl_info info;

    return dladdr(code, &info) != 0 ? (unsigned long)((const char *)code - (const char *)info.dli_fbase) : 0;
}

static void report(const access_t *a, const access_t *b, bool writes_a, bool writes_b)
{
    char text[200];

    snprintf(text, sizeof(text),
             "a race in a block: thread %u %s and thread %u %s the same bytes with no barrier in between (code +0x%lx "
             "and +0x%lx)",
             a->thread, writes_a ? "writes" : "reads", b->thread, writes_b ? "writes" : "reads", offset_of(a->code),
             offset_of(b->code));
    emu_trap(text);
}

static void touch_granule(const emu_block_t *block, uintptr_t granule, access_t now, bool writes)
{
    shadow_t *s = shadow_of(block);
    cell_t *c = slot(s, granule);

    if (c->serial != s->serial) {
        *c = (cell_t){.granule = granule, .serial = s->serial};
        s->used++;
    }
    if (unordered(&c->write, &now))
        report(&c->write, &now, true, writes);
    if (!writes) {
        c->read[c->read[0].code != NULL && c->read[0].thread != now.thread] = now;
        return;
    }
    for (int i = 0; i < 2; i++)
        if (unordered(&c->read[i], &now))
            report(&c->read[i], &now, false, true);
    c->write = now;
}

static void touch(const void *at, size_t bytes, bool writes, const void *code)
{
    const emu_self_t *self = emu_self;
    const uintptr_t from = (uintptr_t)at, to = from + bytes;
    access_t now;

    if (self == NULL || emu_owns(at))
        return;
    now = (access_t){.code = code,
                     .block_epoch = self->block->epoch,
                     .warp_epoch = self->block->warp[self->linear / 32].epoch,
                     .thread = (uint16_t)self->linear};
    for (uintptr_t g = from / GRANULE; g * GRANULE < to; g++) {
        now.bytes = 15;
        if (g * GRANULE < from)
            now.bytes = (uint8_t)(15 << (from - g * GRANULE) & 15);
        if ((g + 1) * GRANULE > to)
            now.bytes &= (uint8_t)(15 >> ((g + 1) * GRANULE - to));
        touch_granule(self->block, g, now, writes);
    }
}

void emu_touch(const void *at, size_t bytes, bool writes)
{
    touch(at, bytes, writes, __builtin_return_address(0));
}

/* ---- what the compiler calls ---- */

void __tsan_init(void);
void __tsan_init(void)
{
}

void __tsan_func_entry(void *caller);
void __tsan_func_entry(void *caller)
{
    (void)caller;
}

void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
}

#define TOUCH(name, bytes, writes)                                                                                     \
    void name(void *at);                                                                                               \
    void name(void *at)                                                                                                \
    {                                                                                                                  \
        touch(at, bytes, writes, __builtin_return_address(0));                                                         \
    }
#define TOUCH_BYTES(n)                                                                                                 \
    TOUCH(__tsan_read##n, n, false)                                                                                    \
    TOUCH(__tsan_write##n, n, true)                                                                                    \
    TOUCH(__tsan_unaligned_read##n, n, false)                                                                          \
    TOUCH(__tsan_unaligned_write##n, n, true)
TOUCH_BYTES(1)
TOUCH_BYTES(2)
TOUCH_BYTES(4)
TOUCH_BYTES(8)
TOUCH_BYTES(16)

void __tsan_read_range(void *at, long bytes);
void __tsan_read_range(void *at, long bytes)
{
    touch(at, (size_t)bytes, false, __builtin_return_address(0));
}

void __tsan_write_range(void *at, long bytes);
void __tsan_write_range(void *at, long bytes)
{
    touch(at, (size_t)bytes, true, __builtin_return_address(0));
}

static void order(int order)
{
    if (emu_self != NULL && order != __ATOMIC_RELAXED)
        emu_self->block->epoch++;
}

#define CHANGE(bits, T, name)                                                                                          \
    T __tsan_atomic##bits##_##name(volatile T *at, T value, int how);                                                  \
    T __tsan_atomic##bits##_##name(volatile T *at, T value, int how)                                                   \
    {                                                                                                                  \
        order(how);                                                                                                    \
        return __atomic_##name(at, value, __ATOMIC_SEQ_CST);                                                           \
    }
#define ATOMIC(bits, T)                                                                                                \
    T __tsan_atomic##bits##_load(const volatile T *at, int how);                                                       \
    T __tsan_atomic##bits##_load(const volatile T *at, int how)                                                        \
    {                                                                                                                  \
        order(how);                                                                                                    \
        return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                                  \
    }                                                                                                                  \
    void __tsan_atomic##bits##_store(volatile T *at, T value, int how);                                                \
    void __tsan_atomic##bits##_store(volatile T *at, T value, int how)                                                 \
    {                                                                                                                  \
        order(how);                                                                                                    \
        __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                                 \
    }                                                                                                                  \
    T __tsan_atomic##bits##_exchange(volatile T *at, T value, int how);                                                \
    T __tsan_atomic##bits##_exchange(volatile T *at, T value, int how)                                                 \
    {                                                                                                                  \
        order(how);                                                                                                    \
        return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                                                       \
    }                                                                                                                  \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile T *at, T *expected, T value, int how, int failing);     \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile T *at, T *expected, T value, int how, int failing)      \
    {                                                                                                                  \
        (void)failing;                                                                                                 \
        order(how);                                                                                                    \
        return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);            \
    }                                                                                                                  \
    CHANGE(bits, T, fetch_add)                                                                                         \
    CHANGE(bits, T, fetch_sub)                                                                                         \
    CHANGE(bits, T, fetch_and)                                                                                         \
    CHANGE(bits, T, fetch_or)                                                                                          \
    CHANGE(bits, T, fetch_xor)
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)

void __tsan_atomic_thread_fence(int how);
void __tsan_atomic_thread_fence(int how)
{
    (void)how;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
