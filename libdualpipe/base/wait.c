/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * wait.c: waiting on a counter: a short spin, then futex sleeps in slices, so that an abort is always seen. */
#include "base/wait.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 50000000 /* longest sleep without a look at the abort word */
#define PAUSES 40         /* looks a few nanoseconds apart: a partner that is just writing */
#define PATIENCE 24       /* most yields before a sleep */
#define SHORT_NS 20000    /* a sleep shorter than this might have been spared */

/* How many yields this thread's waits are worth: more when they end while yielding, fewer when they end in a sleep all the
 * same. With more ranks than cores yielding threads would otherwise keep each other busy doing nothing. */
static _Thread_local int patience = PATIENCE;

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int64_t dp__now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t dp__scaled_ns(double seconds)
{
    const char *text = getenv("DUALPIPE_TIMEOUT_SCALE");
    double scale = text != NULL ? strtod(text, NULL) : 1;

    if (!(scale > 0 && scale < 1e6))
        scale = 1;
    return (int64_t)(seconds * scale * 1e9);
}

static int reached(const dp_signal_t *signal, uint32_t target, int order)
{
    uint32_t value = order == __ATOMIC_SEQ_CST ? __atomic_load_n(&signal->value, __ATOMIC_SEQ_CST)
                                               : __atomic_load_n(&signal->value, __ATOMIC_ACQUIRE);

    return (int32_t)(value - target) >= 0;
}

static int aborted(const dp__abort_t *abort)
{
    return abort != NULL && __atomic_load_n(&abort->word, __ATOMIC_ACQUIRE) != 0;
}

static void sleep_while(dp_signal_t *signal, uint32_t value, int64_t ns)
{
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};

    /* EAGAIN, EINTR and ETIMEDOUT all mean: look again */
    syscall(SYS_futex, &signal->value, FUTEX_WAIT, value, &t, NULL, 0);
}

uint32_t dp__signal_value(const dp_signal_t *signal)
{
    return __atomic_load_n(&signal->value, __ATOMIC_ACQUIRE);
}

dp_status_t dp__signal_wait(dp_signal_t *signal, uint32_t target, int64_t deadline_ns, const dp__abort_t *abort)
{
    dp_status_t status = DP_OK;
    int64_t started;

    for (int i = 0; i < PAUSES + patience; i++) {
        if (reached(signal, target, __ATOMIC_ACQUIRE)) {
            patience += i >= PAUSES && patience < PATIENCE;
            return DP_OK;
        }
        if (i < PAUSES)
            relax();
        else
            sched_yield();
    }
    started = dp__now_ns();
    /* waiters is raised before the value is read again, and post reads waiters after it has written the value: with
     * sequential consistency on all four, either we see the value or post sees us. */
    __atomic_fetch_add(&signal->waiters, 1, __ATOMIC_SEQ_CST);
    for (;;) {
        uint32_t value = __atomic_load_n(&signal->value, __ATOMIC_SEQ_CST);
        int64_t now, left;

        if ((int32_t)(value - target) >= 0)
            break;
        if (aborted(abort)) {
            status = DP_ERR_ABORTED;
            break;
        }
        now = dp__now_ns();
        if (now >= deadline_ns) {
            status = DP_ERR_TIMEOUT;
            break;
        }
        left = deadline_ns - now;
        sleep_while(signal, value, left < SLICE_NS ? left : SLICE_NS);
    }
    __atomic_fetch_sub(&signal->waiters, 1, __ATOMIC_SEQ_CST);
    if (dp__now_ns() - started < SHORT_NS)
        patience += patience < PATIENCE;
    else
        patience /= 2;
    return status;
}

void dp__signal_post(dp_signal_t *signal, uint32_t value)
{
    __atomic_store_n(&signal->value, value, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&signal->waiters, __ATOMIC_SEQ_CST) != 0)
        syscall(SYS_futex, &signal->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
