/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * failing_sweep.c: runs a job again and again while the n-th call of a function of libc fails in it
 * (failing_calls.c), and prints how it bore that. Exit status 1 when it crashed, hung, failed
 * without a word or left something behind.
 *
 *   failing_sweep [--who 0,1,launcher] [--calls NAME,...] [--most N] [--limit S] LIBRARY COMMAND...
 *
 * One run without failures counts the calls; of each function all calls, or N of them from the
 * first to the last, fail once, and from then on. %D in COMMAND is a folder of the run, whose tmp/
 * is its TMPDIR: what is there at the end is left behind, and so is a process that outlives the
 * command by a second. */
#include "failing_calls.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GOES_ON, ERROR, CRASH, HANG, SILENT, LEFT, OUTCOMES };
static const char *const outcomes[OUTCOMES] = {"went on", "error", "CRASH", "HANG", "SILENT", "LEFT"};

static const char *const calls[] = {
#define CALL(name, error) #name,
    DP_FAIL_EACH(CALL)
#undef CALL
};

static struct {
    const char *who, *calls, *library;
    char **command;
    uint64_t most;
    double limit;
    char folder[64], tally_path[80], tmp[80];
    uint64_t *tally;
} sweep = {.who = "0,1,launcher", .limit = 30};

typedef struct row {
    uint64_t runs, of[OUTCOMES];
    double worst;
} row_t;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void nap(void)
{
    nanosleep(&(struct timespec){0, 2000000}, NULL);
}
static bool has_word(const char *list, const char *word)
{
    const size_t n = strlen(word);

    for (const char *at = list; at != NULL; at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, word, n) == 0 && (at[n] == ',' || at[n] == '\0'))
            return true;
    return false;
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *where)
{
    (void)about, (void)kind, (void)where;
    return remove(path);
}
static void make_folder(void)
{
    nftw(sweep.folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (mkdir(sweep.folder, 0700) != 0 || mkdir(sweep.tmp, 0700) != 0) {
        perror(sweep.folder);
        exit(2);
    }
}
static bool tmp_is_empty(void)
{
    DIR *folder = opendir(sweep.tmp);
    int entries = 0;

    while (folder != NULL && readdir(folder) != NULL)
        entries++;
    if (folder != NULL)
        closedir(folder);
    return entries <= 2;
}

/* argv with %D filled in; the child's own, never freed. */
static char **fill_in(char **command)
{
    size_t n = 0;
    char **argv;

    while (command[n] != NULL)
        n++;
    argv = calloc(n + 1, sizeof(*argv));
    for (size_t i = 0; i < n && argv != NULL; i++) {
        const char *at = strstr(command[i], "%D");

        argv[i] = command[i];
        if (at != NULL && asprintf(&argv[i], "%.*s%s%s", (int)(at - command[i]), command[i], sweep.folder, at + 2) < 0)
            _exit(98);
    }
    return argv;
}
static void set_number(const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    setenv(name, text, 1);
}
static pid_t start(const char *who, const char *call, uint64_t at, bool on)
{
    char path[96];
    const pid_t pid = fork();
    int fd;

    if (pid != 0)
        return pid;
    setpgid(0, 0);
    snprintf(path, sizeof(path), "%s/out", sweep.folder);
    fd = open(path, O_CREAT | O_WRONLY | O_APPEND, 0600);
    dup2(fd, 1);
    snprintf(path, sizeof(path), "%s/err", sweep.folder);
    fd = open(path, O_CREAT | O_WRONLY | O_APPEND, 0600);
    dup2(fd, 2);
    dup2(open("/dev/null", O_RDONLY), 0);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    setenv("TMPDIR", sweep.tmp, 1);
    setenv("DP_FAIL_TALLY", sweep.tally_path, 1);
    setenv("DP_FAIL_WHO", who, 1);
    if (call != NULL) {
        setenv("DP_FAIL_CALL", call, 1);
        set_number("DP_FAIL_AT", at);
        if (on)
            setenv("DP_FAIL_ON", "1", 1);
    }
    setenv("LD_PRELOAD", sweep.library, 1);
    sweep.command = fill_in(sweep.command);
    execvp(sweep.command[0], sweep.command);
    _exit(127);
}

static bool is_fault(int signal)
{
    return signal == SIGSEGV || signal == SIGABRT || signal == SIGBUS || signal == SIGFPE || signal == SIGILL;
}
/* Whether the job has said anything on standard error; *crashed_out when a rank was ended by a
 * fault. */
static bool read_words(bool *crashed_out)
{
    char path[96], line[1024];
    bool said = false;
    FILE *f;
    int signal;

    snprintf(path, sizeof(path), "%s/err", sweep.folder);
    f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        const char *at = strstr(line, "ended by signal ");

        said = true;
        if (at != NULL && sscanf(at, "ended by signal %d", &signal) == 1 && is_fault(signal))
            *crashed_out = true;
    }
    if (f != NULL)
        fclose(f);
    return said;
}

/* Ends what is left of the job, all of it our children now; true when there was something. */
static bool reap(void)
{
    const double end = now() + 1;
    bool left = false;
    char path[64];
    FILE *f;
    int pid;

    for (;;) {
        const pid_t one = waitpid(-1, NULL, WNOHANG);

        if (one < 0)
            return left;
        if (one > 0)
            continue;
        if (now() > end) {
            left = true;
            snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
            f = fopen(path, "r");
            while (f != NULL && fscanf(f, "%d", &pid) == 1)
                kill(pid, SIGKILL);
            if (f != NULL)
                fclose(f);
        }
        nap();
    }
}

static int run(const char *who, const char *call, uint64_t at, bool on, double *seconds_out)
{
    const double begin = now();
    bool crashed = false, left, said, hung = false;
    int wait_status = 0;
    pid_t pid;

    make_folder();
    memset(sweep.tally, 0, DP_FAIL_TALLY_BYTES);
    pid = start(who, call, at, on);
    while (waitpid(pid, &wait_status, WNOHANG) == 0) {
        if (now() - begin > sweep.limit && !hung) {
            hung = true;
            kill(-pid, SIGKILL);
        }
        nap();
    }
    *seconds_out = now() - begin;
    left = reap();
    said = read_words(&crashed);
    if (hung)
        return HANG;
    if (crashed || (WIFSIGNALED(wait_status) && is_fault(WTERMSIG(wait_status))))
        return CRASH;
    if (left || !tmp_is_empty())
        return LEFT;
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0)
        return GOES_ON;
    /* who cannot write has nobody to tell */
    return said || (call != NULL && strstr("write fwrite sendmsg", call) != NULL) ? ERROR : SILENT;
}

static void show(const char *who, const char *call, uint64_t at, bool on, int outcome, double seconds)
{
    char path[96], line[400];
    FILE *f;

    printf("  %s: %s %llu%s in %s, %.1f s\n", outcomes[outcome], call, (unsigned long long)at, on ? " and on" : "", who,
           seconds);
    snprintf(path, sizeof(path), "%s/err", sweep.folder);
    f = fopen(path, "r");
    for (int i = 0; i < 6 && f != NULL && fgets(line, sizeof(line), f) != NULL; i++)
        printf("      %s%s", line, strchr(line, '\n') != NULL ? "" : "\n");
    if (f != NULL)
        fclose(f);
}

static void print_row(const char *who, const char *call, uint64_t count, const row_t *row)
{
    printf("%-9s %-15s %6llu %6llu", who, call, (unsigned long long)count, (unsigned long long)row->runs);
    for (int i = 0; i < OUTCOMES; i++)
        printf(" %8llu", (unsigned long long)row->of[i]);
    printf(" %8.1f\n", row->worst);
    fflush(stdout);
}

static void sweep_call(const char *who, int call, uint64_t count, row_t *total)
{
    const uint64_t tries = sweep.most > 0 && count > sweep.most ? sweep.most : count;
    row_t row = {0};

    for (uint64_t i = 0; i < tries; i++)
        for (int on = 0; on < 2; on++) {
            const uint64_t at = tries > 1 ? 1 + i * (count - 1) / (tries - 1) : 1;
            double seconds;
            const int outcome = run(who, calls[call], at, on, &seconds);

            if (sweep.tally[DP_FAIL_CALLS] == 0)
                continue; /* this time there were fewer calls */
            row.runs++, row.of[outcome]++;
            row.worst = seconds > row.worst ? seconds : row.worst;
            if (outcome > ERROR)
                show(who, calls[call], at, on, outcome, seconds);
        }
    print_row(who, calls[call], count, &row);
    total->runs += row.runs;
    for (int i = 0; i < OUTCOMES; i++)
        total->of[i] += row.of[i];
    total->worst = row.worst > total->worst ? row.worst : total->worst;
}

static void sweep_process(const char *who, row_t *total)
{
    uint64_t counts[DP_FAIL_CALLS];
    double seconds;
    const int outcome = run(who, NULL, 0, false, &seconds);

    if (outcome != GOES_ON) {
        show(who, "nothing", 0, false, outcome, seconds);
        exit(2);
    }
    memcpy(counts, sweep.tally, sizeof(counts));
    for (int i = 0; i < DP_FAIL_CALLS; i++)
        if (counts[i] > 0 && (sweep.calls == NULL || has_word(sweep.calls, calls[i])))
            sweep_call(who, i, counts[i], total);
}

static void begin(void)
{
    int fd;

    snprintf(sweep.tally_path, sizeof(sweep.tally_path), "/tmp/failing-XXXXXX");
    fd = mkstemp(sweep.tally_path);
    if (fd < 0 || ftruncate(fd, DP_FAIL_TALLY_BYTES) != 0) {
        perror(sweep.tally_path);
        exit(2);
    }
    sweep.tally = mmap(NULL, DP_FAIL_TALLY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    snprintf(sweep.folder, sizeof(sweep.folder), "%.48s.run", sweep.tally_path);
    snprintf(sweep.tmp, sizeof(sweep.tmp), "%s/tmp", sweep.folder);
    unsetenv("RANK");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

int main(int argc, char **argv)
{
    row_t total = {0};
    char *list, *next, *who;
    int at = 1;

    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        if (strcmp(argv[at], "--who") == 0)
            sweep.who = argv[at + 1];
        else if (strcmp(argv[at], "--calls") == 0)
            sweep.calls = argv[at + 1];
        else if (strcmp(argv[at], "--most") == 0)
            sweep.most = strtoull(argv[at + 1], NULL, 10);
        else if (strcmp(argv[at], "--limit") == 0)
            sweep.limit = strtod(argv[at + 1], NULL);
        else
            break;
    }
    if (argc - at < 2 || strncmp(argv[at], "--", 2) == 0) {
        fprintf(stderr, "usage: failing_sweep [--who 0,1,launcher] [--calls NAME,...] [--most N] [--limit S] LIBRARY "
                        "COMMAND...\n");
        return 2;
    }
    sweep.library = argv[at];
    sweep.command = argv + at + 1;
    begin();
    printf("%-9s %-15s %6s %6s %8s %8s %8s %8s %8s %8s %8s\n", "who", "call", "calls", "runs", "went on", "error",
           "crash", "hang", "silent", "left", "worst s");
    list = strdup(sweep.who);
    for (who = strtok_r(list, ",", &next); who != NULL; who = strtok_r(NULL, ",", &next))
        sweep_process(who, &total);
    free(list);
    print_row("all", "", 0, &total);
    nftw(sweep.folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    unlink(sweep.tally_path);
    return total.runs == 0 || total.runs != total.of[GOES_ON] + total.of[ERROR];
}
