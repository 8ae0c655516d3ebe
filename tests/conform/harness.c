/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * harness.c: runs the cases of a suite, each in a process of its own, ranks as threads or processes, and reports. */
#include "conform.h"

#include "base/wait.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CASE_SECONDS 60

typedef struct plan {
    const conform_suite_t *suite;
    const conform_case_t *test;
    conform_job_t *job;
    conform_mode_t mode;
    int32_t ranks;
    const char *plugin;
    const dp_device_vt_t *device;
    const dp_comm_vt_t *comm;
} plan_t;

typedef struct rank_thread {
    const plan_t *plan;
    int32_t rank;
    pthread_t thread;
} rank_thread_t;

/* ---- what cases call ---- */

void conform_fail(conform_t *t, const char *file, int line, const char *what, const char *fmt, ...)
{
    char text[700], full[1024];
    const char *base = strrchr(file, '/');
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    snprintf(full, sizeof(full), "%s:%d: rank %d: %.280s: %s", base != NULL ? base + 1 : file, line, t->rank,
             what, text);
    conform_job_verdict(t->job, 0, full);
    dp_group_abort(t->group, DP_ERR_ABORTED, "the case has failed");
}

void conform_skip(conform_t *t, const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    conform_job_verdict(t->job, 1, text);
}

bool conform_failed(const conform_t *t)
{
    return conform_job_text(t->job, 0) != NULL;
}

const char *conform_last_error(void)
{
    return dp_last_error();
}

bool conform_meet(conform_t *t)
{
    return dp_group_barrier(t->group) == DP_OK && !conform_failed(t);
}

void conform_abort(conform_t *t, dp_status_t status, const char *message)
{
    dp_group_abort(t->group, status, message);
}

int conform_entries(const char *folder)
{
    DIR *dir = opendir(folder);
    int count = 0;

    while (dir != NULL && readdir(dir) != NULL)
        count++;
    if (dir != NULL)
        closedir(dir);
    return count;
}

conform_held_t conform_held(const conform_t *t)
{
    conform_held_t held = {conform_entries("/proc/self/task"), conform_entries("/proc/self/fd"),
                           conform_host_blocks(t->host)};

    return held;
}

void conform_nap_ms(int ms)
{
    poll(NULL, 0, ms);
}

uint64_t conform_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* ---- running a case ---- */

static void run_rank(const plan_t *plan, int32_t rank, dp_group_t *group)
{
    conform_t t = {.job = plan->job,
                   .group = group,
                   .rank = rank,
                   .size = plan->ranks,
                   .mode = plan->mode,
                   .plugin = plan->plugin,
                   .device = plan->device,
                   .comm = plan->comm};

    t.host = conform_host_create(dp_group_host(group));
    if (t.host == NULL) {
        conform_job_verdict(plan->job, 0, "no memory for a host");
        return;
    }
    plan->test->run(&t);
    dp_group_leave(group);
    conform_host_free(t.host);
}

static void *rank_main(void *arg)
{
    rank_thread_t *r = arg;

    run_rank(r->plan, r->rank, conform_job_group(r->plan->job, r->rank));
    return NULL;
}

static void run_threads(const plan_t *plan)
{
    rank_thread_t ranks[CONFORM_RANKS_MAX];

    for (int32_t i = 0; i < plan->ranks; i++) {
        ranks[i].plan = plan;
        ranks[i].rank = i;
        if (pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]) != 0)
            _exit(3);
    }
    for (int32_t i = 0; i < plan->ranks; i++)
        pthread_join(ranks[i].thread, NULL);
}

static void judge_exit(const plan_t *plan, int32_t rank, int status)
{
    bool victim = (plan->test->flags & CONFORM_VICTIM) != 0 && rank == plan->test->victim;
    char text[128];

    if (victim ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
               : WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    if (WIFSIGNALED(status))
        snprintf(text, sizeof(text), "rank %d died of signal %d", rank, WTERMSIG(status));
    else
        snprintf(text, sizeof(text), "rank %d ended with status %d", rank, WEXITSTATUS(status));
    conform_job_verdict(plan->job, 0, text);
}

static void rank_process(const plan_t *plan, int32_t rank)
{
    dp_group_t *group;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (conform_job_join(plan->job, rank, &group))
        run_rank(plan, rank, group);
    else
        conform_job_verdict(plan->job, 0, dp_last_error());
    exit(0); /* with what a sanitizer checks at exit */
}

static void run_processes(const plan_t *plan)
{
    pid_t pids[CONFORM_RANKS_MAX];

    for (int32_t i = 0; i < plan->ranks; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            rank_process(plan, i);
    }
    conform_job_started(plan->job);
    for (int32_t left = plan->ranks; left > 0; left--) {
        int status;
        pid_t pid = waitpid(-1, &status, 0);

        for (int32_t i = 0; i < plan->ranks; i++)
            if (pids[i] == pid)
                judge_exit(plan, i, status);
    }
}

static void run_case(const plan_t *plan)
{
    bool threads = plan->mode == CONFORM_THREADS;

    if (!(threads ? conform_job_threads(plan->job) : conform_job_listen(plan->job)))
        conform_job_verdict(plan->job, 0, dp_last_error());
    else if (plan->test->ranks == 0)
        run_rank(plan, 0, conform_job_group(plan->job, 0));
    else if (threads)
        run_threads(plan);
    else
        run_processes(plan);
}

/* The exit status of `pid`, or -1 when it had to be killed. */
static int await(pid_t pid, double seconds)
{
    int64_t deadline = dp__now_ns() + dp__scaled_ns(seconds);
    int status;

    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (dp__now_ns() > deadline) {
            kill(-pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        conform_nap_ms(2);
    }
    kill(-pid, SIGKILL); /* ranks that outlived it */
    return status;
}

/* 0 passed, 1 failed, 2 skipped */
static int run_plan(plan_t *plan, const char *title)
{
    const char *failed = NULL, *skipped;
    int status;
    pid_t pid;

    plan->job = conform_job_create(plan->ranks);
    if (plan->job == NULL)
        return 1;
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        run_case(plan);
        exit(0);
    }
    setpgid(pid, pid);
    status = await(pid, CASE_SECONDS);
    failed = conform_job_text(plan->job, 0);
    skipped = conform_job_text(plan->job, 1);
    if (failed == NULL && status == -1)
        failed = "did not end in time and was killed";
    else if (failed == NULL && WIFSIGNALED(status))
        failed = strsignal(WTERMSIG(status));
    else if (failed == NULL && status != 0)
        failed = "the process ended with an error (see above)";
    printf("%-7s %s%s%s\n",
           failed != NULL    ? "FAILED"
           : skipped != NULL ? "skipped"
                             : "passed",
           title, failed != NULL || skipped != NULL ? ": " : "",
           failed != NULL    ? failed
           : skipped != NULL ? skipped
                             : "");
    fflush(stdout);
    status = failed != NULL ? 1 : skipped != NULL ? 2 : 0;
    conform_job_free(plan->job);
    return status;
}

static int run_everywhere(plan_t *plan, int only_mode, int counts[3])
{
    const conform_case_t *test = plan->test;
    char title[128];

    if (test->ranks == 0) {
        plan->ranks = 1;
        plan->mode = CONFORM_THREADS;
        counts[run_plan(plan, test->name)]++;
        return 0;
    }
    for (int mode = CONFORM_THREADS; mode <= CONFORM_PROCESSES; mode++) {
        int32_t first = (test->flags & CONFORM_ALL_SIZES) != 0 ? 1 : test->ranks;

        if ((only_mode >= 0 && mode != only_mode) ||
            (mode == CONFORM_THREADS && (test->flags & CONFORM_VICTIM) != 0))
            continue;
        for (plan->ranks = first; plan->ranks <= test->ranks; plan->ranks++) {
            plan->mode = (conform_mode_t)mode;
            snprintf(title, sizeof(title), "%s, %d %s", test->name, plan->ranks,
                     mode == CONFORM_THREADS ? "threads" : "processes");
            counts[run_plan(plan, title)]++;
        }
    }
    return 0;
}

/* ---- the program ---- */

static const void *load(const char *name, const char *interface, size_t bytes)
{
    const dp_plugin_t *plugin;
    const void *table;

    if (dp_plugin_load(name, &plugin) == DP_OK &&
        dp_plugin_interface(plugin, interface, bytes, &table) == DP_OK)
        return table;
    fprintf(stderr, "%s\n", dp_last_error());
    return NULL;
}

static bool wanted(const char *name, int argc, char **argv)
{
    bool any = false;

    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') {
            i++;
            continue;
        }
        any = true;
        if (strcmp(argv[i], name) == 0)
            return true;
    }
    return !any;
}

static const char *option(const char *name, const char *otherwise, int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    return otherwise;
}

int conform_main(const conform_suite_t *suite, int argc, char **argv)
{
    const char *mode = option("--mode", "both", argc, argv);
    plan_t plan = {.suite = suite, .plugin = option("--plugin", suite->plugin, argc, argv)};
    bool is_comm = strcmp(suite->interface, DP_IFACE_COMM) == 0;
    int counts[3] = {0, 0, 0};

    plan.device = load(is_comm ? option("--device", "device_cpu", argc, argv) : plan.plugin, DP_IFACE_DEVICE,
                       offsetof(dp_device_vt_t, capture_begin));
    if (is_comm)
        plan.comm = load(plan.plugin, DP_IFACE_COMM, sizeof(dp_comm_vt_t));
    if (plan.device == NULL || (is_comm && plan.comm == NULL))
        return 2;
    for (plan.test = suite->cases; plan.test->name != NULL; plan.test++)
        if (wanted(plan.test->name, argc, argv))
            run_everywhere(&plan,
                           strcmp(mode, "threads") == 0     ? 0
                           : strcmp(mode, "processes") == 0 ? 1
                                                            : -1,
                           counts);
    printf("%s: %s: %d passed, %d failed, %d skipped\n", suite->name, plan.plugin, counts[0], counts[1],
           counts[2]);
    return counts[1] > 0 || counts[0] == 0;
}
