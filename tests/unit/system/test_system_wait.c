/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_system_wait.c: the wait primitive: deadline, abort and wake, between threads and between
 * processes. A lost wake costs a sleeping slice (50 ms), so thousands of rounds within Check's
 * limit show that none is lost. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "system/wait.h"
#include "tests/support/suite.h"

#define MS     INT64_C(1000000)
#define ROUNDS 2000
#define NEVER  INT64_MAX

static int64_t in_ms(int64_t ms)
{
    return dp__now_ns() + ms * MS;
}

START_TEST(reached_returns_at_once)
{
    dp_signal_t signal = {5, 0};

    ck_assert_int_eq(dp__signal_wait(&signal, 5, NEVER, NULL), DP_OK);
    /* a deadline in the past does not matter then */
    ck_assert_int_eq(dp__signal_wait(&signal, 4, 0, NULL), DP_OK);
    ck_assert_int_eq(dp__signal_wait(&signal, 0, INT64_MIN, NULL), DP_OK);
    ck_assert_uint_eq(dp__signal_value(&signal), 5);
}
END_TEST

START_TEST(counters_may_wrap)
{
    dp_signal_t signal = {2, 0};

    ck_assert_int_eq(dp__signal_wait(&signal, UINT32_MAX, NEVER, NULL), DP_OK); /* 3 behind */
    /* as far behind as can be told */
    ck_assert_int_eq(dp__signal_wait(&signal, 0x80000003, NEVER, NULL), DP_OK);
    /* as far ahead */
    ck_assert_int_eq(dp__signal_wait(&signal, 0x80000002, 0, NULL), DP_ERR_TIMEOUT);
    signal.value = UINT32_MAX - 1;
    ck_assert_int_eq(dp__signal_wait(&signal, 1, 0, NULL), DP_ERR_TIMEOUT);
    dp__signal_post(&signal, 1);
    ck_assert_int_eq(dp__signal_wait(&signal, 1, 0, NULL), DP_OK);
}
END_TEST

START_TEST(deadline_ends_a_wait_and_not_before)
{
    static const int64_t waits_ms[] = {0, 1, 20, 120}; /* one longer than two slices */
    dp_signal_t signal = {0, 0};

    for (size_t i = 0; i < sizeof(waits_ms) / sizeof(waits_ms[0]); i++) {
        int64_t deadline = in_ms(waits_ms[i]);

        ck_assert_int_eq(dp__signal_wait(&signal, 1, deadline, NULL), DP_ERR_TIMEOUT);
        ck_assert_int_ge(dp__now_ns(), deadline);
    }
    ck_assert_int_eq(dp__signal_wait(&signal, 1, INT64_MIN, NULL), DP_ERR_TIMEOUT);
}
END_TEST

START_TEST(abort_ends_a_wait)
{
    dp_signal_t signal = {0, 0};
    dp__abort_t abort_state = {1};

    ck_assert_int_eq(dp__signal_wait(&signal, 1, NEVER, &abort_state), DP_ERR_ABORTED);
    signal.value = 1; /* what has happened has happened, abort or not */
    ck_assert_int_eq(dp__signal_wait(&signal, 1, NEVER, &abort_state), DP_OK);
}
END_TEST

typedef struct waiter {
    pthread_t thread;
    pid_t tid; /* 0: not started yet */
    dp_signal_t *signal;
    dp__abort_t *abort_state;
    uint32_t target, *begun; /* begun: rounds that waiters have entered */
    dp_status_t status;
} waiter_t;

static void *wait_forever(void *arg)
{
    waiter_t *w = arg;

    __atomic_store_n(&w->tid, gettid(), __ATOMIC_RELEASE);
    w->status = dp__signal_wait(w->signal, w->target, NEVER, w->abort_state);
    return NULL;
}

/* Somebody is past the spin and about to sleep at the value that is there, or asleep already. */
static void until_entered(dp_signal_t *signal)
{
    while (__atomic_load_n(&signal->waiters, __ATOMIC_SEQ_CST) != __atomic_load_n(&signal->value, __ATOMIC_SEQ_CST) + 1)
        sched_yield();
}

static bool is_asleep(pid_t pid, pid_t tid)
{
    char path[64], text[512] = "";
    const char *name_end;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", (int)pid, (int)tid);
    file = fopen(path, "r");
    if (file == NULL)
        return false;
    if (fgets(text, sizeof(text), file) == NULL)
        text[0] = '\0';
    fclose(file);
    name_end = strrchr(text, ')');
    return name_end != NULL && name_end[1] == ' ' && name_end[2] == 'S';
}

/* All threads sleep; in a wait, as they do nothing else. */
static void until_asleep(const waiter_t *w, int count)
{
    for (int i = 0; i < count; i++) {
        pid_t tid;

        do {
            sched_yield();
            tid = __atomic_load_n(&w[i].tid, __ATOMIC_ACQUIRE);
        } while (tid == 0 || !is_asleep(getpid(), tid));
    }
}

START_TEST(abort_is_seen_without_a_wake)
{
    dp_signal_t signal = {0, 0};
    dp__abort_t abort_state = {0};
    waiter_t w = {.signal = &signal, .abort_state = &abort_state, .target = 1, .status = DP_PENDING};

    ck_assert_int_eq(pthread_create(&w.thread, NULL, wait_forever, &w), 0);
    until_asleep(&w, 1);
    __atomic_store_n(&abort_state.word, 7, __ATOMIC_RELEASE);
    pthread_join(w.thread, NULL);
    ck_assert_int_eq(w.status, DP_ERR_ABORTED);
}
END_TEST

START_TEST(one_post_wakes_those_whose_target_is_reached)
{
    enum { N = 8 };
    dp_signal_t signal = {0, 0};
    dp__abort_t abort_state = {0};
    waiter_t w[N];

    for (uint32_t i = 0; i < N; i++) {
        w[i] = (waiter_t){.signal = &signal, .abort_state = &abort_state, .target = i + 1, .status = DP_PENDING};
        ck_assert_int_eq(pthread_create(&w[i].thread, NULL, wait_forever, &w[i]), 0);
    }
    until_asleep(w, N);
    dp__signal_post(&signal, N / 2);
    for (int i = 0; i < N / 2; i++) {
        pthread_join(w[i].thread, NULL);
        ck_assert_int_eq(w[i].status, DP_OK);
    }
    __atomic_store_n(&abort_state.word, 1, __ATOMIC_RELEASE);
    for (int i = N / 2; i < N; i++) {
        pthread_join(w[i].thread, NULL);
        ck_assert_int_eq(w[i].status, DP_ERR_ABORTED);
    }
}
END_TEST

static void *wait_in_rounds(void *arg)
{
    waiter_t *w = arg;

    __atomic_store_n(&w->tid, gettid(), __ATOMIC_RELEASE);
    for (uint32_t i = 1; i <= w->target; i++) {
        __atomic_fetch_add(w->begun, 1, __ATOMIC_SEQ_CST);
        w->status = dp__signal_wait(w->signal, i, NEVER, NULL);
        if (w->status != DP_OK)
            break;
    }
    return NULL;
}

START_TEST(every_post_wakes_all)
{
    enum { N = 6, POSTS = 400 };
    dp_signal_t signal = {0, 0};
    uint32_t begun = 0;
    waiter_t w[N];

    for (int i = 0; i < N; i++) {
        w[i] = (waiter_t){.signal = &signal, .target = POSTS, .begun = &begun, .status = DP_PENDING};
        ck_assert_int_eq(pthread_create(&w[i].thread, NULL, wait_in_rounds, &w[i]), 0);
    }
    for (uint32_t post = 1; post <= POSTS; post++) {
        while (__atomic_load_n(&begun, __ATOMIC_SEQ_CST) < N * post)
            sched_yield();
        until_asleep(w, N);
        dp__signal_post(&signal, post);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(w[i].thread, NULL);
        ck_assert_int_eq(w[i].status, DP_OK);
    }
}
END_TEST

/* Two sides take turns, each posting only when the other is past its spin; payload is plain memory
 * that only the signals order. */
typedef struct table {
    dp_signal_t ping, pong;
    uint64_t payload;
} table_t;

static dp_status_t serve(table_t *t)
{
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        dp_status_t status = dp__signal_wait(&t->ping, i, NEVER, NULL);

        if (status != DP_OK)
            return status;
        if (t->payload != 2 * (uint64_t)i)
            return DP_ERR_PROTOCOL;
        t->payload++;
        until_entered(&t->pong);
        dp__signal_post(&t->pong, i);
    }
    return DP_OK;
}

static void *serve_thread(void *arg)
{
    static dp_status_t status;

    status = serve(arg);
    return &status;
}

static void rally(table_t *t)
{
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        t->payload = 2 * (uint64_t)i;
        until_entered(&t->ping);
        dp__signal_post(&t->ping, i);
        ck_assert_int_eq(dp__signal_wait(&t->pong, i, NEVER, NULL), DP_OK);
        ck_assert_uint_eq(t->payload, 2 * (uint64_t)i + 1);
    }
}

START_TEST(threads_take_turns)
{
    table_t t;
    pthread_t thread;
    void *status;

    memset(&t, 0, sizeof(t));
    ck_assert_int_eq(pthread_create(&thread, NULL, serve_thread, &t), 0);
    rally(&t);
    pthread_join(thread, &status);
    ck_assert_int_eq(*(dp_status_t *)status, DP_OK);
}
END_TEST

static table_t *shared_table(int *fd_out)
{
    int fd = memfd_create("test_system_wait", MFD_CLOEXEC);
    void *memory;

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, sizeof(table_t)), 0);
    memory = mmap(NULL, sizeof(table_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    *fd_out = fd;
    return memory;
}

START_TEST(processes_take_turns)
{
    int fd, status = -1;
    table_t *t = shared_table(&fd);
    pid_t child = fork();

    ck_assert_int_ge(child, 0);
    if (child == 0) {
        /* a separate mapping, at another address: only the memory is shared */
        table_t *mine = mmap(NULL, sizeof(*mine), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

        _exit(mine != MAP_FAILED && mine != t && serve(mine) == DP_OK ? 0 : 1);
    }
    rally(t);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    munmap(t, sizeof(*t));
    close(fd);
}
END_TEST

START_TEST(a_killed_waiter_does_not_stop_the_others)
{
    int fd, status = -1;
    table_t *t = shared_table(&fd);
    pid_t victim = fork(), survivor;

    ck_assert_int_ge(victim, 0);
    if (victim == 0)
        _exit(dp__signal_wait(&t->ping, 1, NEVER, NULL));
    while (!is_asleep(victim, victim))
        sched_yield();
    ck_assert_int_eq(kill(victim, SIGKILL), 0);
    ck_assert_int_eq(waitpid(victim, &status, 0), victim);
    ck_assert(WIFSIGNALED(status));

    survivor = fork();
    ck_assert_int_ge(survivor, 0);
    if (survivor == 0)
        _exit(dp__signal_wait(&t->ping, 1, NEVER, NULL) == DP_OK ? 0 : 1);
    while (!is_asleep(survivor, survivor))
        sched_yield();
    dp__signal_post(&t->ping, 1);
    ck_assert_int_eq(waitpid(survivor, &status, 0), survivor);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    munmap(t, sizeof(*t));
    close(fd);
}
END_TEST

static void on_alarm(int number)
{
    (void)number;
}

START_TEST(interrupting_signals_do_not_end_a_wait)
{
    static const struct itimerval often = {{0, 2000}, {0, 2000}}, off;
    /* no SA_RESTART: system calls return EINTR */
    struct sigaction action = {.sa_handler = on_alarm};
    dp_signal_t signal = {0, 0};
    int64_t deadline;

    ck_assert_int_eq(sigaction(SIGALRM, &action, NULL), 0);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &often, NULL), 0);
    deadline = in_ms(60);
    ck_assert_int_eq(dp__signal_wait(&signal, 1, deadline, NULL), DP_ERR_TIMEOUT);
    ck_assert_int_ge(dp__now_ns(), deadline);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &off, NULL), 0);
}
END_TEST

START_TEST(the_clock_does_not_go_back)
{
    int64_t before = dp__now_ns();

    ck_assert_int_gt(before, 0);
    for (int i = 0; i < 10000; i++) {
        int64_t now = dp__now_ns();

        ck_assert_int_ge(now, before);
        before = now;
    }
}
END_TEST

START_TEST(time_limits_are_scaled)
{
    static const struct {
        const char *scale;
        double seconds;
        int64_t ns;
    } cases[] = {
        {NULL, 1.5, 1500 * MS}, {"1", 1.5, 1500 * MS},   {"10", 1.5, 15000 * MS}, {"0.5", 2, 1000 * MS},
        {"0", 1, 1000 * MS},    {"-3", 1, 1000 * MS},    {"nan", 1, 1000 * MS},   {"inf", 1, 1000 * MS},
        {"soon", 1, 1000 * MS}, {"1e300", 1, 1000 * MS}, {"", 1, 1000 * MS},      {"5", 0, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (cases[i].scale != NULL)
            setenv("DUALPIPE_TIMEOUT_SCALE", cases[i].scale, 1);
        else
            unsetenv("DUALPIPE_TIMEOUT_SCALE");
        ck_assert_msg(dp__scaled_ns(cases[i].seconds) == cases[i].ns, "scale %s: %lld",
                      cases[i].scale != NULL ? cases[i].scale : "(unset)", (long long)dp__scaled_ns(cases[i].seconds));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("system/wait");

    SUITE_ADD(suite, reached_returns_at_once);
    SUITE_ADD(suite, counters_may_wrap);
    SUITE_ADD(suite, deadline_ends_a_wait_and_not_before);
    SUITE_ADD(suite, abort_ends_a_wait);
    SUITE_ADD(suite, abort_is_seen_without_a_wake);
    SUITE_ADD(suite, one_post_wakes_those_whose_target_is_reached);
    SUITE_ADD(suite, every_post_wakes_all);
    SUITE_ADD(suite, threads_take_turns);
    SUITE_ADD(suite, processes_take_turns);
    SUITE_ADD(suite, a_killed_waiter_does_not_stop_the_others);
    SUITE_ADD(suite, interrupting_signals_do_not_end_a_wait);
    SUITE_ADD(suite, the_clock_does_not_go_back);
    SUITE_ADD(suite, time_limits_are_scaled);
    return suite_run(suite);
}
