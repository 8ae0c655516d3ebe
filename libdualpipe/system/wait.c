/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * wait.c: waiting on a counter: a short spin, then futex sleeps in slices, so that an abort is
 * always seen. */
#include "system/wait.h"
#include "base/environment.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 50000000 /* longest sleep without a look at the abort word */
/* A sleep and a wake take some 5 to 20 us where nobody else runs: less than that is spent looking,
 * and only while nobody else wants the core, which a yield that takes longer than its own system
 * call tells. */
#define SPIN_NS     15000
#define YIELD_NS    2000
#define LOOKS       32 /* between two yields */
#define CROWDED_MAX 256

int64_t dp__scaled_ns(double seconds)
{
    return (int64_t)(seconds * dp__timeout_scale() * 1e9);
}

static int has_reached(const dp_signal_t *signal, uint32_t target)
{
    return (int32_t)(__atomic_load_n(&signal->value, __ATOMIC_ACQUIRE) - target) >= 0;
}

static int is_aborted(const dp__abort_t *abort)
{
    return abort != NULL && __atomic_load_n(&abort->word, __ATOMIC_ACQUIRE) != 0;
}

static void pause_core(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

static int look_at_signal(const dp_signal_t *signal, uint32_t target)
{
    for (int i = 0; i < LOOKS; i++) {
        if (has_reached(signal, target))
            return 1;
        pause_core();
    }
    return has_reached(signal, target);
}

/* After a yield that let others run, so many waits of this thread look once and sleep. */
static _Thread_local int crowded, crowded_next = 1;

/* 1: the value was reached; 0: time to sleep. */
static int spin_on_signal(const dp_signal_t *signal, uint32_t target)
{
    int64_t start, before;

    if (look_at_signal(signal, target))
        return 1;
    if (crowded > 0) {
        crowded--;
        return 0;
    }
    start = before = dp__now_ns();
    while (before - start < SPIN_NS) {
        int64_t after;

        sched_yield();
        after = dp__now_ns();
        if (after - before > YIELD_NS) {
            crowded = crowded_next;
            crowded_next = crowded_next < CROWDED_MAX ? 2 * crowded_next : CROWDED_MAX;
            return has_reached(signal, target);
        }
        if (look_at_signal(signal, target)) {
            crowded_next = 1;
            return 1;
        }
        before = dp__now_ns();
    }
    return 0;
}

static void sleep_while(dp_signal_t *signal, uint32_t value, int64_t ns)
{
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};

    /* EAGAIN, EINTR and ETIMEDOUT all mean: look again */
    syscall(SYS_futex, &signal->value, FUTEX_WAIT, value, &t, NULL, 0);
}

/* `waiters` names the newest value at which somebody went to sleep. A post from that value wakes;
 * later ones find another value there and need not, even while the woken are still on their way. */
static uint32_t asleep_at(uint32_t value)
{
    return value + 1; /* so that 0 in both is a value nobody sleeps at */
}

/* Enters that we sleep at *value_out; false when something changed meanwhile. `waiters` is read
 * before the value: an entry for a newer value than ours is then never replaced. */
static int enter_sleep(dp_signal_t *signal, uint32_t target, uint32_t *value_out)
{
    uint32_t there = __atomic_load_n(&signal->waiters, __ATOMIC_SEQ_CST);
    uint32_t value = __atomic_load_n(&signal->value, __ATOMIC_SEQ_CST);

    *value_out = value;
    if ((int32_t)(value - target) >= 0)
        return 1;
    if (there != asleep_at(value) &&
        !__atomic_compare_exchange_n(&signal->waiters, &there, asleep_at(value), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return 0;
    return __atomic_load_n(&signal->value, __ATOMIC_SEQ_CST) == value;
}

void dp__nap(int64_t ns)
{
    dp_signal_t nothing = {0, 0};

    sleep_while(&nothing, 0, ns);
}

uint32_t dp__signal_value(const dp_signal_t *signal)
{
    return __atomic_load_n(&signal->value, __ATOMIC_ACQUIRE);
}

dp_status_t dp__signal_wait(dp_signal_t *signal, uint32_t target, int64_t deadline_ns, const dp__abort_t *abort)
{
    if (has_reached(signal, target) || spin_on_signal(signal, target))
        return DP_OK;
    for (;;) {
        uint32_t value;
        int64_t now, left;

        if (!enter_sleep(signal, target, &value))
            continue;
        if ((int32_t)(value - target) >= 0)
            return DP_OK;
        if (is_aborted(abort)) /* whoever posts and then ends the job has posted */
            return has_reached(signal, target) ? DP_OK : DP_ERR_ABORTED;
        now = dp__now_ns();
        if (now >= deadline_ns)
            return DP_ERR_TIMEOUT;
        left = deadline_ns - now;
        sleep_while(signal, value, left < SLICE_NS ? left : SLICE_NS);
    }
}

/* We write the value, then read `waiters`; a waiter writes `waiters`, then reads the value: with
 * sequential consistency one of us sees the other. A waiter that read our value already may have
 * entered that one over the one before. */
void dp__signal_post(dp_signal_t *signal, uint32_t value)
{
    uint32_t before = __atomic_exchange_n(&signal->value, value, __ATOMIC_SEQ_CST);
    uint32_t asleep = __atomic_load_n(&signal->waiters, __ATOMIC_SEQ_CST);

    if (asleep == asleep_at(before) || asleep == asleep_at(value))
        syscall(SYS_futex, &signal->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
