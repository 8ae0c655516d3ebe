/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * harness.c: runs the cases of a suite, each in its own process, ranks as threads or processes, and
 * reports. */
#include "conform.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NO_MEMORY    4 /* exit status of a case */
#define CASE_SECONDS 60
#define HANG_SECONDS 20
/* What a plugin's runtime may take to start within an open; MPI asks name services, which may be
 * slow. */
#define START_SECONDS 10

/* One case in one mode with one number of ranks. */
typedef struct trial {
    const conform_suite_t *suite;
    const conform_case_t *test;
    const dp_conform_options_t *options;
    conform_settings_t settings;
    conform_job_t *job;
    char file[256]; /* of the job, when a launcher starts the ranks */
    pid_t kit;
    int output;     /* what the processes of the case print */
    FILE *failures; /* a line for each */
} trial_t;

/* What a rank is given to run with. */
typedef struct tables {
    const void *table;
    const dp_device_vt_t *device;
    const dp_comm_vt_t *comm;
} tables_t;

/* ---- what cases call ---- */

static void fail_with(conform_t *t, const char *file, int line, const char *text)
{
    const char *base = strrchr(file, '/');
    char full[1024];

    snprintf(full, sizeof(full), "rank %d: %.900s [%s:%d]", t->rank, text, base != NULL ? base + 1 : file, line);
    conform_job_verdict(t->job, 0, full);
    dp_group_abort(t->group, DP_ERR_ABORTED, "the case has failed");
}

void conform_fail(conform_t *t, const char *file, int line, const char *fmt, ...)
{
    char text[900];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    fail_with(t, file, line, text);
}

/* The name of the function in "rig.vt->send(end, ...)": "send". */
static int name_of_call(const char *call, const char **name_out)
{
    int length = (int)strcspn(call, "(");

    *name_out = call;
    for (int i = 0; i < length; i++)
        if (call[i] == '.' || call[i] == '>')
            *name_out = call + i + 1;
    if (strncmp(*name_out, "conform_", 8) == 0)
        *name_out += 8;
    return (int)(call + length - *name_out);
}

void conform_unexpected(conform_t *t, const char *file, int line, const char *call, dp_status_t came,
                        dp_status_t expected, const char *fmt, ...)
{
    const char *error = came < 0 ? conform_last_error() : "", *name;
    char text[900], doing[300];
    int length = name_of_call(call, &name);
    va_list args;

    va_start(args, fmt);
    vsnprintf(doing, sizeof(doing), fmt, args);
    va_end(args);
    if (doing[0] == '\0')
        snprintf(doing, sizeof(doing), "%.*s", length, name);
    if (came == expected)
        snprintf(text, sizeof(text), "%s returned %s without a message: a failure says why, by host->fail", doing,
                 dp_status_name(came));
    else
        snprintf(text, sizeof(text), "%s returned %s%s%s%s%s", doing, dp_status_name(came),
                 expected != DP_OK ? ", it has to be " : "", expected != DP_OK ? dp_status_name(expected) : "",
                 error[0] != '\0' ? ": " : "", error);
    fail_with(t, file, line, text);
}

void conform_forget_error(void)
{
    dp_fail(DP_OK, "%s", "");
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

_Noreturn void conform_no_memory(void)
{
    fputs("the suite is out of memory\n", stderr);
    _exit(NO_MEMORY);
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

/* A thread that was joined may still be on the kernel's list for a moment: the fewest of several
 * looks count. */
static int threads_here(void)
{
    int fewest = conform_entries("/proc/self/task");

    for (int look = 0; look < 20; look++) {
        int now;

        conform_nap_ms(5);
        now = conform_entries("/proc/self/task");
        fewest = now < fewest ? now : fewest;
    }
    return fewest;
}

conform_held_t conform_held(const conform_t *t)
{
    conform_held_t held = {threads_here(), conform_entries("/proc/self/fd"), conform_host_blocks(t->host)};

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

int64_t conform_scaled_ns(double seconds)
{
    const char *text = getenv("DUALPIPE_TIMEOUT_SCALE");
    double scale = text != NULL ? strtod(text, NULL) : 1;

    return (int64_t)(seconds * (scale > 0 && scale < 1e6 ? scale : 1) * 1e9);
}

/* ---- the plugins of a trial ---- */

static const char *or_else(const char *text, const char *otherwise)
{
    return text != NULL && text[0] != '\0' ? text : otherwise;
}

static bool is_for(const conform_suite_t *suite, const char *interface)
{
    return strcmp(suite->interface, interface) == 0;
}

static bool needs_device(const conform_suite_t *suite)
{
    return (suite->needs & CONFORM_NEEDS_DEVICE) != 0 && !is_for(suite, DP_IFACE_DEVICE);
}

static bool needs_comm(const conform_suite_t *suite)
{
    return (suite->needs & CONFORM_NEEDS_COMM) != 0 && !is_for(suite, DP_IFACE_COMM);
}

static dp_status_t load_plugins(const char *name, const char *interface, size_t bytes, const void **table_out)
{
    const dp_plugin_t *plugin;
    dp_status_t status = dp_plugin_load(name, &plugin);

    return status < 0 ? status : dp_plugin_interface(plugin, interface, bytes, table_out);
}

static bool load_tables(const conform_suite_t *suite, const void *given, const conform_settings_t *settings,
                        tables_t *tables)
{
    const void *device = NULL, *comm = NULL;
    dp_status_t status = DP_OK;

    tables->table = given;
    if (given == NULL)
        status = load_plugins(settings->plugin, suite->interface, suite->table_bytes, &tables->table);
    if (status == DP_OK && needs_device(suite))
        status = load_plugins(settings->device, DP_IFACE_DEVICE, DP_DEVICE_VT_MIN, &device);
    if (status == DP_OK && needs_comm(suite))
        status = load_plugins(settings->comm, DP_IFACE_COMM, DP_COMM_VT_MIN, &comm);
    tables->device = is_for(suite, DP_IFACE_DEVICE) ? tables->table : device;
    tables->comm = is_for(suite, DP_IFACE_COMM) ? tables->table : comm;
    return status == DP_OK;
}

static dp_status_t probe_one(const char *name, const char *interface, const char *what)
{
    conform_probe_t probe;

    conform_probe(name, &probe);
    if (probe.status < 0)
        return dp_fail(DP_ERR_PLUGIN, "%s%s", what, probe.error);
    for (int i = 0; i < CONFORM_INTERFACES; i++)
        if (strcmp(conform_interfaces[i], interface) == 0) {
            if (!probe.interface[i].offered)
                return dp_fail(DP_ERR_PLUGIN, "%splugin %s does not offer %s", what, name, interface);
            if (probe.interface[i].error[0] != '\0')
                return dp_fail(DP_ERR_PLUGIN, "%s%s", what, probe.interface[i].error);
        }
    return DP_OK;
}

static dp_status_t probe_all(const conform_suite_t *suite, const dp_conform_options_t *options,
                             const conform_settings_t *settings)
{
    dp_status_t status = DP_OK;

    if (options->table == NULL)
        status = probe_one(settings->plugin, suite->interface, "");
    if (status == DP_OK && needs_device(suite))
        status = probe_one(settings->device, DP_IFACE_DEVICE, "what streams are to run on (--device): ");
    if (status == DP_OK && needs_comm(suite))
        status = probe_one(settings->comm, DP_IFACE_COMM, "the transport of dispatch and combine (--comm): ");
    return status;
}

/* ---- the ranks of a case ---- */

static void run_body(const conform_suite_t *suite, const conform_case_t *test, conform_job_t *job,
                     const tables_t *tables, int32_t rank, dp_group_t *group)
{
    const conform_settings_t *settings = conform_job_settings(job);
    conform_t t = {
        .job = job,
        .group = group,
        .rank = rank,
        .size = settings->ranks,
        .mode = (conform_mode_t)settings->mode,
        .plugin = settings->plugin,
        .table = tables->table,
        .device = tables->device,
        .comm = tables->comm,
        .hang_seconds = settings->hang_seconds,
        .settings = settings->settings,
    };

    conform_thread_look(&t.thread);
    t.host = conform_host_create(dp_group_host(group));
    if (t.host == NULL) {
        conform_job_verdict(job, 0, "no memory for a host");
        return;
    }
    if ((test->flags & CONFORM_FORMULA) != 0 && settings->settings[0] != '\0' && suite->own_formula != NULL &&
        suite->own_formula(tables->table))
        conform_skip(&t, "settings may select another formula");
    else
        test->run(&t);
    /* where the job ends, a library may be starting still */
    if (!conform_failed(&t) && conform_thread_kept(&t, __FILE__, __LINE__, "the case's last call") &&
        (test->flags & CONFORM_ABSENT) == 0)
        conform_process_check(&t, settings->launched);
    /* what it opened is still there and uses the group; nobody waits for it any longer */
    if (conform_failed(&t)) {
        dp_group_abort(group, DP_ERR_INTERRUPTED, "the case has failed");
        return;
    }
    dp_group_leave(group);
    conform_host_free(t.host);
}

typedef struct rank_thread {
    const trial_t *trial;
    const tables_t *tables;
    dp_group_t *group;
    int32_t rank;
    pthread_t thread;
} rank_thread_t;

static void *rank_main(void *arg)
{
    rank_thread_t *r = arg;

    run_body(r->trial->suite, r->trial->test, r->trial->job, r->tables, r->rank, r->group);
    return NULL;
}

static void run_threads(const trial_t *trial)
{
    const int32_t n = trial->settings.ranks;
    dp_group_options_t options = {.struct_size = sizeof(options), .hang_seconds = trial->settings.hang_seconds};
    dp_group_t *groups[CONFORM_RANKS_MAX];
    rank_thread_t ranks[CONFORM_RANKS_MAX];
    tables_t tables;

    conform_process_begin();
    if (!load_tables(trial->suite, trial->options->table, &trial->settings, &tables) ||
        dp_group_local(n, &options, groups) != DP_OK) {
        conform_job_verdict(trial->job, 0, dp_last_error());
        return;
    }
    if (trial->test->ranks == 0) {
        run_body(trial->suite, trial->test, trial->job, &tables, 0, groups[0]);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        ranks[i] = (rank_thread_t){.trial = trial, .tables = &tables, .group = groups[i], .rank = i};
        if (pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]) != 0)
            _exit(3);
    }
    for (int32_t i = 0; i < n; i++)
        pthread_join(ranks[i].thread, NULL);
}

/* With what a sanitizer checks at exit, unless the case has failed: it has closed nothing. */
static _Noreturn void end_trial(const trial_t *trial)
{
    if (conform_job_text(trial->job, 0) != NULL)
        _exit(0);
    exit(0);
}

static void join_and_run(const conform_suite_t *suite, const conform_case_t *test, conform_job_t *job,
                         const void *given, int32_t rank)
{
    const conform_settings_t *settings = conform_job_settings(job);
    dp_group_options_t options = {.struct_size = sizeof(options),
                                  .rank = rank,
                                  .size = settings->ranks,
                                  .port = conform_job_port(job, rank),
                                  .hang_seconds = settings->hang_seconds};
    dp_group_t *group;
    tables_t tables;

    conform_process_begin();
    if (load_tables(suite, given, settings, &tables) && dp_group_join(&options, &group) == DP_OK)
        run_body(suite, test, job, &tables, rank, group);
    else
        conform_job_verdict(job, 0, dp_last_error());
}

static void judge_exit(const trial_t *trial, int32_t rank, int status)
{
    bool victim = (trial->test->flags & CONFORM_VICTIM) != 0 && rank == trial->test->victim;
    char text[128];

    if (victim ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    if (WIFSIGNALED(status))
        snprintf(text, sizeof(text), "rank %d died of signal %d (%s)", rank, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(text, sizeof(text), "rank %d ended with status %d", rank, WEXITSTATUS(status));
    conform_job_verdict(trial->job, 0, text);
}

static void rank_process(const trial_t *trial, int32_t rank)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    join_and_run(trial->suite, trial->test, trial->job, trial->options->table, rank);
    end_trial(trial);
}

static void run_processes(trial_t *trial)
{
    pid_t pids[CONFORM_RANKS_MAX];

    for (int32_t i = 0; i < trial->settings.ranks; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            rank_process(trial, i);
    }
    for (int32_t left = trial->settings.ranks; left > 0; left--) {
        int status;
        pid_t pid = waitpid(-1, &status, 0);

        for (int32_t i = 0; i < trial->settings.ranks; i++)
            if (pids[i] == pid)
                judge_exit(trial, i, status);
    }
}

/* ---- ranks that a launcher starts ---- */

/* Adds `word` as one word of a shell command. */
static void add_word(char *command, size_t room, const char *word)
{
    size_t at = strlen(command);

    if (at + 4 < room)
        at += (size_t)snprintf(command + at, room - at, " '");
    for (; *word != '\0' && at + 8 < room; word++)
        at += (size_t)snprintf(command + at, room - at, *word == '\'' ? "'\\''" : "%c", *word);
    snprintf(command + at, room - at, "'");
}

/* This program with its arguments, as the kernel keeps them. */
static bool add_own_command(char *command, size_t room)
{
    char own[4096], line[16384];
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t length = file != NULL ? fread(line, 1, sizeof(line) - 1, file) : 0;
    ssize_t bytes = readlink("/proc/self/exe", own, sizeof(own) - 1);

    if (file != NULL)
        fclose(file);
    if (length == 0 || length == sizeof(line) - 1 || bytes <= 0)
        return false;
    line[length] = '\0';
    own[bytes] = '\0';
    add_word(command, room, own);
    for (size_t at = strlen(line) + 1; at < length; at += strlen(line + at) + 1)
        add_word(command, room, line + at);
    return true;
}

static void run_launched(const trial_t *trial)
{
    const char *launch = trial->options->launch, *number = strstr(launch, "%d");
    char command[32768];

    if (number != NULL)
        snprintf(command, sizeof(command), "exec %.*s%d%s", (int)(number - launch), launch, trial->settings.ranks,
                 number + 2);
    else
        snprintf(command, sizeof(command), "exec %s", launch);
    if (!add_own_command(command, sizeof(command))) {
        conform_job_verdict(trial->job, 0, "/proc does not say how this program was called");
        return;
    }
    add_word(command, sizeof(command), "--rank-of");
    add_word(command, sizeof(command), trial->file);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

int conform_rank(const conform_suite_t *const *suites, const char *file)
{
    dp_group_environment_t environment = {.struct_size = sizeof(environment)};
    conform_job_t *job = conform_job_open(file);
    const conform_settings_t *settings;
    const conform_case_t *test;
    char text[256];

    if (job == NULL) {
        fprintf(stderr, "--rank-of %s: %s; it is for ranks that --launch starts on this host\n", file, strerror(errno));
        return 2;
    }
    settings = conform_job_settings(job);
    if (dp_group_environment(&environment) < 0) {
        conform_job_verdict(job, 0, dp_last_error());
        return 1;
    }
    if (environment.size != settings->ranks) {
        snprintf(text, sizeof(text), "the launcher (%s) started %d ranks, %d were asked for", environment.launcher,
                 environment.size, settings->ranks);
        conform_job_verdict(job, 0, text);
        return 1;
    }
    for (; *suites != NULL; suites++)
        for (int i = 0; (test = conform_case_at(*suites, i)) != NULL && is_for(*suites, settings->interface); i++)
            if (strcmp(test->name, settings->test) == 0) {
                join_and_run(*suites, test, job, NULL, environment.rank);
                return 0;
            }
    conform_job_verdict(job, 0, "a rank that was launched does not know this case");
    return 1;
}

/* ---- one case ---- */

static void log_line(void *user, int level, const char *origin, const char *message)
{
    static const char *const levels[] = {"error", "warning", "info", "debug"};

    dprintf(*(int *)user, "%s: %s: %s\n", origin, level >= 0 && level < 4 ? levels[level] : "?", message);
}

/* The process of a case. Log lines go where they always go; whatever else is printed is caught. */
static void run_case(trial_t *trial)
{
    static int log_to;
    bool processes = trial->settings.mode == CONFORM_PROCESSES;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* it does not outlive the kit, */
    if (getppid() != trial->kit)
        _exit(0); /* which has died meanwhile */
    setpgid(0, 0);
    log_to = dup(2);
    dup2(trial->output, 1);
    dup2(trial->output, 2);
    close(trial->output);
    dp_log_set(log_line, &log_to, DP_LOG_WARN);
    setenv("DUALPIPE_HANG_TRACE", "", 1); /* cases hang on purpose */
    if (processes && trial->options->launch != NULL)
        run_launched(trial);
    else if (processes)
        run_processes(trial);
    else
        run_threads(trial);
    end_trial(trial);
}

/* The exit status of `pid`, or -1 when it had to be killed. */
static int await(pid_t pid, int64_t ns)
{
    int status;

    for (int64_t waited = 0; waitpid(pid, &status, WNOHANG) == 0; waited += 2000000) {
        if (waited > ns) {
            kill(-pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        conform_nap_ms(2);
    }
    kill(-pid, SIGKILL); /* ranks that outlived it */
    return status;
}

/* What the case's processes printed, without blank ends. */
static char *printed(const trial_t *trial)
{
    off_t bytes = lseek(trial->output, 0, SEEK_END);
    char *text = calloc(1, (size_t)(bytes > 0 ? bytes : 0) + 1);
    ssize_t got;

    if (text == NULL)
        return NULL;
    got = pread(trial->output, text, (size_t)(bytes > 0 ? bytes : 0), 0);
    while (got > 0 && (text[got - 1] == '\n' || text[got - 1] == '\0'))
        text[--got] = '\0';
    return text;
}

static void show_printed(const char *text)
{
    for (int lines = 0; *text != '\0' && lines < 40; lines++) {
        int length = (int)strcspn(text, "\n");

        printf("        printed: %.*s\n", length, text);
        text += length + (text[length] == '\n');
    }
}

/* 0 passed, 1 failed, 2 skipped */
static int report(const trial_t *trial, const char *title, int status)
{
    const char *failed = conform_job_text(trial->job, 0), *skipped = conform_job_text(trial->job, 1);
    bool launched = trial->settings.mode == CONFORM_PROCESSES && trial->options->launch != NULL;
    char *output = printed(trial), text[128];

    if (failed == NULL && status == -1)
        failed = "it did not end in time and was killed";
    else if (failed == NULL && WIFSIGNALED(status))
        failed = strsignal(WTERMSIG(status));
    else if (failed == NULL && status != 0 && launched && (trial->test->flags & CONFORM_ABSENT) == 0) {
        snprintf(text, sizeof(text), "the launcher ended with status %d", WEXITSTATUS(status));
        failed = text;
    } else if (failed == NULL && status != 0 && !launched)
        failed = "the process ended with an error";
    else if (failed == NULL && !launched && output != NULL && output[0] != '\0' &&
             (trial->test->flags & CONFORM_VICTIM) == 0)
        failed = "something was printed: a plugin never prints, its words go to host->log";
    printf("%-7s %s%s%s\n",
           failed != NULL    ? "FAILED"
           : skipped != NULL ? "skipped"
                             : "passed",
           title, failed != NULL || skipped != NULL ? ": " : "",
           failed != NULL    ? failed
           : skipped != NULL ? skipped
                             : "");
    if (failed != NULL) {
        printf("        demanded: %s\n", trial->test->sentence);
        fprintf(trial->failures, "FAILED  %s: %s\n", title, failed);
    }
    if (failed != NULL && output != NULL)
        show_printed(output);
    fflush(stdout);
    free(output);
    return failed != NULL ? 1 : skipped != NULL ? 2 : 0;
}

static int run_trial(trial_t *trial, const char *title)
{
    bool launched = trial->settings.mode == CONFORM_PROCESSES && trial->options->launch != NULL;
    int status, result = 1;
    pid_t pid;

    snprintf(trial->settings.test, sizeof(trial->settings.test), "%s", trial->test->name);
    trial->settings.hang_seconds =
        (trial->test->hang_seconds > 0 ? trial->test->hang_seconds : HANG_SECONDS) + (launched ? START_SECONDS : 0);
    trial->settings.launched = launched;
    trial->output = memfd_create("printed", 0);
    trial->job =
        conform_job_create(&trial->settings, launched ? trial->file : NULL, launched ? sizeof(trial->file) : 0);
    if (trial->job == NULL || trial->output < 0) {
        fprintf(trial->failures, "FAILED  %s: no memory to share with its processes: %s\n", title, strerror(errno));
        return 1;
    }
    fflush(NULL);
    trial->kit = getpid();
    pid = fork();
    if (pid == 0)
        run_case(trial);
    if (pid > 0) {
        setpgid(pid, pid);
        status = await(pid, conform_scaled_ns(CASE_SECONDS));
        result = report(trial, title, status);
    } else {
        fprintf(trial->failures, "FAILED  %s: no process: %s\n", title, strerror(errno));
    }
    if (launched)
        unlink(trial->file);
    close(trial->output);
    conform_job_free(trial->job);
    return result;
}

static void run_everywhere(trial_t *trial, int counts[3])
{
    const conform_case_t *test = trial->test;
    uint32_t modes = trial->options->modes != 0 ? trial->options->modes : DP_CONFORM_THREADS | DP_CONFORM_PROCESSES;
    bool victim = (test->flags & CONFORM_VICTIM) != 0;
    char title[128];

    if (test->ranks == 0) {
        trial->settings.ranks = 1;
        trial->settings.mode = CONFORM_THREADS;
        counts[run_trial(trial, test->name)]++;
        return;
    }
    for (int mode = CONFORM_THREADS; mode <= CONFORM_PROCESSES; mode++) {
        int32_t first = (test->flags & CONFORM_ALL_SIZES) != 0 ? 1 : test->ranks;

        if ((modes & (mode == CONFORM_THREADS ? DP_CONFORM_THREADS : DP_CONFORM_PROCESSES)) == 0 ||
            (victim && (mode == CONFORM_THREADS || trial->options->launch != NULL)) ||
            (mode == CONFORM_PROCESSES && (test->flags & CONFORM_ONLY_THREADS) != 0))
            continue;
        for (int32_t ranks = first; ranks <= test->ranks; ranks++) {
            trial->settings.mode = mode;
            trial->settings.ranks = ranks;
            snprintf(title, sizeof(title), "%s, %d %s", test->name, ranks,
                     mode == CONFORM_THREADS ? "threads" : "processes");
            counts[run_trial(trial, title)]++;
        }
    }
}

static bool wanted(const dp_conform_options_t *options, const char *name)
{
    for (const char *const *at = options->cases; at != NULL && *at != NULL; at++)
        if (strcmp(*at, name) == 0)
            return true;
    return options->cases == NULL || *options->cases == NULL;
}

dp_status_t conform_run(const conform_suite_t *suite, const dp_conform_options_t *options,
                        dp_conform_result_t *result_out)
{
    trial_t trial = {.suite = suite, .options = options};
    conform_settings_t *settings = &trial.settings;
    int counts[3] = {0, 0, 0};
    char *failures = NULL;
    size_t bytes;
    dp_status_t status;

    snprintf(settings->interface, sizeof(settings->interface), "%s", suite->interface);
    snprintf(settings->plugin, sizeof(settings->plugin), "%s", or_else(options->plugin, suite->plugin));
    snprintf(settings->device, sizeof(settings->device), "%s", or_else(options->device, "device_cpu"));
    snprintf(settings->comm, sizeof(settings->comm), "%s", or_else(options->comm, "comm_shm"));
    if (options->settings != NULL && strlen(options->settings) >= sizeof(settings->settings))
        return dp_fail(DP_ERR_INVALID, "settings of more than %zu bytes", sizeof(settings->settings) - 1);
    snprintf(settings->settings, sizeof(settings->settings), "%s", or_else(options->settings, ""));
    if (options->launch != NULL && options->table != NULL)
        return dp_fail(DP_ERR_INVALID, "ranks that a launcher starts cannot be given a table: name a plugin");
    status = probe_all(suite, options, settings);
    if (status < 0)
        return status;
    trial.failures = open_memstream(&failures, &bytes);
    if (trial.failures == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a list of failures");
    for (int i = 0; (trial.test = conform_case_at(suite, i)) != NULL; i++)
        if (wanted(options, trial.test->name))
            run_everywhere(&trial, counts);
    fclose(trial.failures);
    printf("%s", failures != NULL ? failures : ""); /* where the end of a log shows them */
    free(failures);
    result_out->passed = counts[0];
    result_out->failed = counts[1];
    result_out->skipped = counts[2];
    return DP_OK;
}
