/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * emulator.c: fibers, barriers, warps and blocks. A host thread (a runner) takes one block after
 * another. When all threads of its block only spin, another runner starts on the next block, up to
 * what the device could hold at once: blocks that wait for each other make progress, and a grid
 * that is too large for that hangs here as it would there.
 *
 * $DP_FAKE_SEED, a number but 0, has blocks start and threads of a block run in an order drawn from
 * it.
 *
 * To ThreadSanitizer a block is the thread of the host that runs it. A separate state for each
 * fiber would take gigabytes; instead what is compiled here and the kernels do not tell it of calls
 * (EMULATED_CFLAGS, build-aux/sanitize), so that it does not mind that stacks are changed. */
#include "launch.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define STACK_BYTES (256u << 10)
#if defined(__SANITIZE_THREAD__)
/* two mappings for each of 20000 stacks, and its own, are more than vm.max_map_count */
#define GUARD_BYTES 0u
#else
#define GUARD_BYTES (16u << 10)
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SPARE_STACKS 0u
#else
#define SPARE_STACKS 4096u /* that are kept for the next launch */
#endif
#define COPY_BYTES ((size_t)EMU_THREADS * EMU_COPIES * sizeof(emu_copy_t))

enum { FRESH, READY, BLOCKED, SPINNING, GONE };

typedef struct context {
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t context;
#endif
#if defined(__SANITIZE_ADDRESS__)
    void *fake_stack;
    const void *stack;
    size_t stack_bytes;
#endif
} context_t;

typedef struct emu_fiber {
    context_t context;
    unsigned char *stack;
    emu_self_t *self; /* the thread it runs */
    struct runner *runner;
    struct emu_fiber *next;
} fiber_t;

typedef struct runner {
    emu_launch_t *launch;
    context_t home;
    fiber_t *current, *all;
    emu_block_t *block;
    emu_self_t *threads;
    emu_copy_t *copies;
    size_t dynamic_bytes;
    uint64_t serial; /* of its blocks */
} runner_t;

__thread emu_self_t *emu_self;
static __thread runner_t *me;
static emu_kernel_t *kernels;

void emu_register(emu_kernel_t *kernel)
{
    kernel->next = kernels;
    kernels = kernel;
}

emu_kernel_t *emu_find(const char *name)
{
    for (emu_kernel_t *k = kernels; k != NULL; k = k->next)
        if (strcmp(k->name, name) == 0)
            return k;
    return NULL;
}

uint64_t emu_clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- another order ---- */

static uint64_t seed(void)
{
    static uint64_t value = UINT64_MAX;
    uint64_t now = __atomic_load_n(&value, __ATOMIC_RELAXED);

    if (now == UINT64_MAX) {
        const char *text = getenv("DP_FAKE_SEED");

        now = text != NULL ? strtoull(text, NULL, 10) : 0;
        __atomic_store_n(&value, now, __ATOMIC_RELAXED);
    }
    return now;
}

static uint64_t drawn(uint64_t from)
{
    from = (from + seed()) * 0x9e3779b97f4a7c15u;
    from = (from ^ from >> 30) * 0xbf58476d1ce4e5b9u;
    from = (from ^ from >> 27) * 0x94d049bb133111ebu;
    return from ^ from >> 31;
}

/* A walk over 0 .. n - 1 that comes to each once. */
typedef struct order {
    uint64_t n, step, first; /* n 0: in order */
} order_t;

static order_t order_of(uint64_t n, uint64_t draw)
{
    order_t o = {0};

    if (seed() == 0)
        return o;
    o = (order_t){.n = n, .step = drawn(draw) % n | 1, .first = drawn(draw) >> 32};
    /* until they have no divisor in common */
    for (uint64_t a = 0; a != 1; o.step += a == 1 ? 0 : 2) {
        a = n;
        for (uint64_t b = o.step, rest; b != 0; a = b, b = rest)
            rest = a % b;
    }
    return o;
}

static uint64_t place_of(const order_t *o, uint64_t i)
{
    return o->n == 0 ? i : (i * o->step + o->first) % o->n;
}

/* ---- switching ---- */

#if defined(__x86_64__)
void emu_switch(void **from, void *to);
__asm__(".text\n"
        ".p2align 4\n"
        ".hidden emu_switch\n"
        ".globl emu_switch\n"
        ".type emu_switch, @function\n"
        "emu_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size emu_switch, . - emu_switch\n");
#endif

/* `leaving`: the side that is left never comes back. */
static void switch_to(context_t *from, context_t *to, bool leaving)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(leaving ? NULL : &from->fake_stack, to->stack, to->stack_bytes);
#else
    (void)leaving;
#endif
#if defined(__x86_64__)
    emu_switch(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
#endif
}

static void go_home(void)
{
    switch_to(&me->current->context, &me->home, false);
}

static void leave_barriers(emu_block_t *block);
static void fail(int failure, const char *fmt, const char *what);

/* A fiber runs one thread, goes home, and may be given another. */
static void fiber_main(void)
{
#if defined(__SANITIZE_ADDRESS__)
    /* where the runner's own stack is: known only from here */
    __sanitizer_finish_switch_fiber(NULL, &me->home.stack, &me->home.stack_bytes);
#endif
    for (;;) {
        emu_self_t *self = me->current->self;
        emu_launch_t *launch = me->launch;

        launch->kernel->call(launch->kernel->kernel, launch->args);
        self->state = GONE;
        self->block->live--;
        leave_barriers(self->block);
        go_home();
    }
}

/* Runners come and go with every launch whose blocks wait for each other, and each has a stack for
 * every thread of a block: mapping them was most of what a test took. AddressSanitizer would have
 * to be told that they are clean. */
static struct {
    pthread_mutex_t lock;
    unsigned char *stack[SPARE_STACKS + 1];
    unsigned count;
} spare = {.lock = PTHREAD_MUTEX_INITIALIZER};

static unsigned char *stack_take(void)
{
    unsigned char *stack = NULL;

    pthread_mutex_lock(&spare.lock);
    if (spare.count > 0)
        stack = spare.stack[--spare.count];
    pthread_mutex_unlock(&spare.lock);
    if (stack != NULL)
        return stack;
    stack = mmap(NULL, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
    if (stack == MAP_FAILED)
        return NULL;
    (void)mprotect(stack, GUARD_BYTES, PROT_NONE);
    return stack;
}

static void stack_give(unsigned char *stack)
{
    bool fits;

    pthread_mutex_lock(&spare.lock);
    fits = spare.count + 1 <= SPARE_STACKS;
    if (fits)
        spare.stack[spare.count++] = stack;
    pthread_mutex_unlock(&spare.lock);
    if (!fits)
        munmap(stack, STACK_BYTES + GUARD_BYTES);
}

static bool fiber_make(runner_t *r, fiber_t *f)
{
    f->stack = stack_take();
    if (f->stack == NULL)
        return false;
    f->runner = r;
#if defined(__SANITIZE_ADDRESS__)
    f->context.stack = f->stack + GUARD_BYTES;
    f->context.stack_bytes = STACK_BYTES;
#endif
#if defined(__x86_64__)
    {
        void **top = (void **)(f->stack + STACK_BYTES + GUARD_BYTES);

        /* where fiber_main would return to; keeps the stack aligned as after a call */
        *--top = NULL;
        *--top = (void *)(uintptr_t)fiber_main;
        for (int i = 0; i < 6; i++)
            *--top = NULL;
        f->context.sp = top;
    }
#else
    getcontext(&f->context.context);
    f->context.context.uc_stack.ss_sp = f->stack + GUARD_BYTES;
    f->context.context.uc_stack.ss_size = STACK_BYTES;
    f->context.context.uc_link = NULL;
    makecontext(&f->context.context, fiber_main, 0);
#endif
    return true;
}

static void fiber_free(fiber_t *f)
{
    stack_give(f->stack);
}

static void resume(runner_t *r, emu_self_t *self)
{
    r->current = self->fiber;
    emu_self = self;
    switch_to(&r->home, &self->fiber->context, false);
    emu_self = NULL;
}

/* ---- what kernels call ---- */

static void fail(int failure, const char *fmt, const char *what)
{
    emu_launch_t *l = me->launch;
    int none = EMU_FINE;

    pthread_mutex_lock(&l->lock);
    if (l->message[0] == '\0')
        snprintf(l->message, sizeof(l->message), fmt, l->kernel->name, what);
    pthread_mutex_unlock(&l->lock);
    __atomic_compare_exchange_n(&l->failure, &none, failure, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static void block_on(const uint32_t *generation, const char *what)
{
    emu_self_t *self = emu_self;

    self->waits_for = generation;
    self->waits_while = *generation;
    self->what = what;
    self->state = BLOCKED;
    go_home();
}

void emu_barrier(int id, unsigned threads)
{
    emu_block_t *block = emu_self->block;
    emu_barrier_t *b = &block->barrier[id & 15];
    unsigned wanted = threads != 0 ? threads : block->live;

    if (++b->arrived == wanted) {
        b->arrived = 0;
        b->generation++;
        block->epoch++;
    } else {
        block_on(&b->generation, id == 0 ? "__syncthreads" : "a named barrier");
    }
}

/* A thread that returned counts as arrived at __syncthreads. */
static void leave_barriers(emu_block_t *block)
{
    emu_barrier_t *b = &block->barrier[0];

    if (b->arrived > 0 && b->arrived == block->live) {
        b->arrived = 0;
        b->generation++;
        block->epoch++;
    }
}

static emu_gathering_t *find_gathering(emu_warp_t *warp, unsigned mask)
{
    emu_gathering_t *spare = NULL;

    for (unsigned i = 0; i < warp->gatherings; i++) {
        if (warp->gathering[i].mask == mask)
            return &warp->gathering[i];
        if (warp->gathering[i].arrived == 0)
            spare = &warp->gathering[i];
    }
    if (warp->gatherings < sizeof(warp->gathering) / sizeof(warp->gathering[0]))
        spare = &warp->gathering[warp->gatherings++];
    if (spare != NULL) {
        spare->mask = mask;
        spare->arrived = 0;
    }
    return spare;
}

const unsigned char *emu_exchange(unsigned mask, const void *in, size_t bytes)
{
    emu_self_t *self = emu_self;
    emu_warp_t *warp = &self->block->warp[self->linear / 32];
    emu_gathering_t *m = find_gathering(warp, mask);
    uint32_t slot;

    if (m == NULL || bytes > EMU_SLOT)
        emu_trap("a warp collective of a kind that the emulator does not hold");
    if (!(mask >> self->lane & 1))
        emu_trap("a lane calls a warp collective whose mask does not name it");
    slot = m->generation & 1;
    memcpy(m->slots[slot][self->lane], in, bytes);
    m->arrived |= 1u << self->lane;
    if (m->arrived == mask) {
        m->arrived = 0;
        m->generation++;
        warp->epoch++;
    } else {
        block_on(&m->generation, "a warp collective");
    }
    return m->slots[slot][0];
}

void emu_spin(void)
{
    emu_self->state = SPINNING;
    go_home();
}

void emu_trap(const char *why)
{
    fail(EMU_TRAPPED, "kernel %s: %s", why);
    for (;;)
        emu_spin(); /* the runner drops the block */
}

void *emu_dynamic_shared(void)
{
    return emu_self->block->dynamic;
}

bool emu_owns(const void *at)
{
    const unsigned char *stack = emu_self->fiber->stack;

    return (const unsigned char *)at >= stack && (const unsigned char *)at < stack + STACK_BYTES + GUARD_BYTES;
}

/* ---- blocks ---- */

static void prepare_block(runner_t *r, uint64_t number)
{
    emu_launch_t *l = r->launch;
    emu_block_t *b = r->block;
    unsigned char *dynamic = b->dynamic;

    memset(b, 0, sizeof(*b));
    b->dynamic = dynamic;
    if (l->shared_bytes > 0)
        memset(dynamic, 0xcb, l->shared_bytes);
    b->launch = l;
    b->serial = ++r->serial;
    b->threads = b->live = l->block.x * l->block.y * l->block.z;
    b->index.x = (unsigned)(number % l->grid.x);
    b->index.y = (unsigned)(number / l->grid.x % l->grid.y);
    b->index.z = (unsigned)(number / l->grid.x / l->grid.y);
    b->smid = l->sms != NULL ? l->sms[number % l->nsms] : 0;
    for (unsigned i = 0; i < b->threads; i++) {
        emu_self_t *t = &r->threads[i];

        memset(t, 0, sizeof(*t));
        t->index.x = i % l->block.x;
        t->index.y = i / l->block.x % l->block.y;
        t->index.z = i / l->block.x / l->block.y;
        t->block_index = b->index;
        t->block_dim = l->block;
        t->grid_dim = l->grid;
        t->linear = i;
        t->lane = i % 32;
        t->block = b;
        t->copies = r->copies + (size_t)i * EMU_COPIES;
        t->state = FRESH;
    }
}

static void drop_fibers(runner_t *r)
{
    while (r->all != NULL) {
        fiber_t *f = r->all;

        r->all = f->next;
        fiber_free(f);
        free(f);
    }
}

/* One that has finished its thread, or a new one. */
static bool give_fiber(runner_t *r, emu_self_t *self, fiber_t *idle)
{
    fiber_t *f = idle;

    if (f == NULL) {
        f = calloc(1, sizeof(*f));
        if (f == NULL || !fiber_make(r, f)) {
            free(f);
            fail(EMU_NO_MEMORY, "kernel %s: %s", "no memory for a fiber");
            return false;
        }
        f->next = r->all;
        r->all = f;
    }
    self->fiber = f;
    f->self = self;
    return true;
}

static void report_deadlock(runner_t *r)
{
    emu_block_t *b = r->block;
    unsigned waiting = 0, first = 0;
    char what[256];

    for (unsigned i = b->threads; i-- > 0;)
        if (r->threads[i].state == BLOCKED) {
            waiting++;
            first = i;
        }
    snprintf(
        what, sizeof(what),
        "deadlock in block %u,%u,%u: %u of %u threads wait, thread %u first, in %s, and none of the others gets there",
        b->index.x, b->index.y, b->index.z, waiting, b->threads, first, r->threads[first].what);
    fail(EMU_DEADLOCK, "kernel %s: %s", what);
}

static void *help(void *arg);

static void start_helper(emu_launch_t *l)
{
    pthread_mutex_lock(&l->lock);
    if (__atomic_load_n(&l->next, __ATOMIC_RELAXED) < l->total && l->runners < l->resident &&
        l->nhelpers < sizeof(l->helpers) / sizeof(l->helpers[0]) &&
        pthread_create(&l->helpers[l->nhelpers], NULL, help, l) == 0) {
        l->nhelpers++;
        l->runners++;
    }
    pthread_mutex_unlock(&l->lock);
}

bool emu_nap(unsigned rounds, uint64_t since)
{
    struct timespec nap = {0};
    uint64_t waited;

    if (rounds < 20) {
        sched_yield();
        return false;
    }
    waited = emu_clock_ns() - since;
    nap.tv_nsec = waited < 160000 ? 20000 : waited > 8000000 ? 1000000 : (long)(waited / 8);
    nanosleep(&nap, NULL);
    return (double)waited * 1e-9 > fake_hang_seconds();
}

/* All threads spin: others have to do something first. */
static void back_off(runner_t *r, unsigned rounds, uint64_t *since)
{
    if (*since == 0)
        *since = emu_clock_ns();
    if (rounds % 4 == 3)
        start_helper(r->launch);
    if (emu_nap(rounds, *since))
        fail(EMU_HANG, "kernel %s: %s",
             "it spins for so long ($DP_FAKE_HANG_SECONDS) that what it waits for will not come");
}

static void run_block(runner_t *r)
{
    emu_block_t *b = r->block;
    unsigned idle_rounds = 0;
    uint64_t idle_since = 0, round = 0;
    fiber_t *idle[EMU_THREADS];
    unsigned nidle = 0;

    for (fiber_t *f = r->all; f != NULL; f = f->next)
        idle[nidle++] = f;
    while (b->live > 0 && __atomic_load_n(&r->launch->failure, __ATOMIC_ACQUIRE) == EMU_FINE) {
        bool progress = false, spins = false;
        const order_t order = order_of(b->threads, ((uint64_t)b->index.x << 32 ^ (uint64_t)b->index.y << 16) + round++);

        for (unsigned i = 0; i < b->threads; i++) {
            emu_self_t *t = &r->threads[place_of(&order, i)];
            bool spun = t->state == SPINNING;

            if (t->state == GONE || (t->state == BLOCKED && *t->waits_for == t->waits_while))
                continue;
            if (t->state == FRESH && !give_fiber(r, t, nidle > 0 ? idle[--nidle] : NULL))
                return;
            t->state = READY;
            resume(r, t);
            if (t->state == GONE)
                idle[nidle++] = t->fiber;
            spins |= t->state == SPINNING;
            progress |= !spun || t->state != SPINNING;
            if (t->state == SPINNING && __atomic_load_n(&r->launch->failure, __ATOMIC_RELAXED) != EMU_FINE)
                return;
        }
        if (progress) {
            idle_rounds = 0;
            idle_since = 0;
        } else if (spins) {
            back_off(r, idle_rounds++, &idle_since);
        } else if (b->live > 0) {
            report_deadlock(r);
        }
    }
}

/* ---- what a host thread keeps for its next launch ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t kept;

static void drop_runner(void *arg)
{
    runner_t *r = arg;

    drop_fibers(r);
    if (r->block != NULL)
        free(r->block->dynamic);
    free(r->block);
    free(r->threads);
    if (r->copies != NULL)
        munmap(r->copies, COPY_BYTES);
    free(r);
}

static void make_key(void)
{
    (void)pthread_key_create(&kept, drop_runner);
}

static runner_t *make_runner(void)
{
    runner_t *r = calloc(1, sizeof(*r));

    if (r == NULL)
        return NULL;
    r->block = calloc(1, sizeof(*r->block));
    r->threads = calloc(EMU_THREADS, sizeof(*r->threads));
    r->copies = mmap(NULL, COPY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (r->copies == MAP_FAILED)
        r->copies = NULL;
    if (r->block == NULL || r->threads == NULL || r->copies == NULL) {
        drop_runner(r);
        return NULL;
    }
    return r;
}

static bool fit_dynamic(runner_t *r, size_t bytes)
{
    if (r->dynamic_bytes < bytes || r->block->dynamic == NULL) {
        void *memory = NULL;

        if (posix_memalign(&memory, 128, bytes + 128) != 0)
            return false;
        free(r->block->dynamic);
        r->block->dynamic = memory;
        r->dynamic_bytes = bytes;
    }
    return true;
}

static void run_blocks(emu_launch_t *l)
{
    const order_t order = order_of(l->total, l->total); /* the same for all runners */
    uint64_t number;

    pthread_once(&once, make_key);
    if (me == NULL) {
        me = make_runner();
        (void)pthread_setspecific(kept, me);
    }
    if (me == NULL || !fit_dynamic(me, l->shared_bytes)) {
        l->failure = EMU_NO_MEMORY;
        return;
    }
    me->launch = l;
    while (__atomic_load_n(&l->failure, __ATOMIC_ACQUIRE) == EMU_FINE &&
           (number = __atomic_fetch_add(&l->next, 1, __ATOMIC_ACQ_REL)) < l->total) {
        prepare_block(me, place_of(&order, number));
        run_block(me);
    }
    if (__atomic_load_n(&l->failure, __ATOMIC_ACQUIRE) != EMU_FINE)
        drop_fibers(me); /* some stopped half-way */
}

static void *help(void *arg)
{
    emu_launch_t *l = arg;

    run_blocks(l);
    pthread_mutex_lock(&l->lock);
    l->runners--;
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

emu_failure_t emu_run(emu_launch_t *l)
{
    l->next = 0;
    l->total = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
    l->failure = EMU_FINE;
    l->message[0] = '\0';
    l->runners = 1;
    l->nhelpers = 0;
    pthread_mutex_init(&l->lock, NULL);
    run_blocks(l);
    for (;;) { /* helpers start others */
        pthread_t helper;

        pthread_mutex_lock(&l->lock);
        if (l->nhelpers == 0) {
            pthread_mutex_unlock(&l->lock);
            break;
        }
        helper = l->helpers[--l->nhelpers];
        pthread_mutex_unlock(&l->lock);
        pthread_join(helper, NULL);
    }
    pthread_mutex_destroy(&l->lock);
    return (emu_failure_t)l->failure;
}
