/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_site.c: starts the ranks of a job on one host and takes in their ends. */
#include "run_site.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- before the ranks ---- */

bool run_site_listen(run_site_t *site)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *where = NULL;
    struct sockaddr_storage bound;
    socklen_t bytes = sizeof(bound);
    char port[8] = "0";
    int on = 1, error = getaddrinfo(site->address, "0", &hints, &where);

    if (error != 0) {
        run_say("%s is no address: %s", site->address, gai_strerror(error));
        return false;
    }
    site->listener = socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (site->listener < 0 || setsockopt(site->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(site->listener, where->ai_addr, where->ai_addrlen) != 0 ||
        listen(site->listener, site->world < 128 ? 128 : site->world) != 0 ||
        getsockname(site->listener, (struct sockaddr *)&bound, &bytes) != 0) {
        run_say("no socket at %s for the ranks to meet at: %s", site->address, strerror(errno));
        freeaddrinfo(where);
        return false;
    }
    freeaddrinfo(where);
    (void)getnameinfo((struct sockaddr *)&bound, bytes, NULL, 0, port, sizeof(port), NI_NUMERICSERV);
    site->port = atoi(port);
    return true;
}

bool run_site_name(run_site_t *site)
{
    uint8_t random[16];

    if (getrandom(random, sizeof(random), 0) != sizeof(random) ||
        getrandom(site->secret, sizeof(site->secret), 0) != sizeof(site->secret)) {
        run_say("the system has no random numbers: %s", strerror(errno));
        return false;
    }
    for (int i = 0; i < 16 && !site->begun; i++)
        snprintf(site->name + 2 * i, 3, "%02x", random[i]);
    return true;
}

/* Two pipes, a secret and its memory for every rank, all open at the same time. */
static void allow_descriptors(run_site_t *site)
{
    struct rlimit more;
    rlim_t wanted = 64 + 5 * (rlim_t)site->count;

    if (getrlimit(RLIMIT_NOFILE, &site->old_files) != 0 || site->old_files.rlim_cur >= wanted)
        return;
    more = site->old_files;
    more.rlim_cur = wanted < more.rlim_max ? wanted : more.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &more);
}

run_relay_t *run_site_relay(const run_site_t *site, run_relay_kind_t kind)
{
    run_relay_t *relay = run_relay_new(2 * (site->count + site->respawn), kind);

    if (relay != NULL)
        run_relay_expect(relay, site->respawn > 0);
    return relay;
}

static bool open_memory(run_site_t *site)
{
    site->memory = calloc((size_t)site->count, sizeof(site->memory[0]));
    for (int i = 0; site->memory != NULL && i < site->count; i++) {
        site->memory[i] = memfd_create("dualpipe-buddy", MFD_CLOEXEC);
        if (site->memory[i] < 0)
            return false;
    }
    return site->memory != NULL;
}

bool run_site_open(run_site_t *site, run_relay_t *relay)
{
    sigprocmask(SIG_SETMASK, NULL, &site->old_mask);
    for (int i = 0; i < run_signal_count; i++)
        sigdelset(&site->old_mask, run_signals[i]);
    sigdelset(&site->old_mask, SIGCHLD);
    signal(SIGPIPE, SIG_IGN);
    /* neither our group nor theirs is the terminal's; all may write to it */
    signal(SIGTTOU, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    allow_descriptors(site);
    site->ends = memfd_create("dualpipe-ends", MFD_CLOEXEC);
    if (site->ends < 0) {
        run_say("no file for the ends of ranks: %s", strerror(errno));
        return false;
    }
    if (site->respawn > 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, site->tell) != 0) {
        run_say("no socket for what ranks tell us: %s", strerror(errno));
        return false;
    }
    if (site->respawn > 0 && !open_memory(site)) {
        run_say("no memory for the states of %d ranks: %s", site->count, strerror(errno));
        return false;
    }
    site->relay = relay;
    site->pids = calloc((size_t)site->count, sizeof(site->pids[0]));
    if (site->pids != NULL && (relay != NULL || !site->pipes))
        return true;
    run_say("no memory for %d ranks", site->count);
    return false;
}

/* ---- starting a rank ---- */

typedef struct ends {
    /* [0] to read from; report: errno when there is no program */
    int out[2], err[2], secret[2], report[2];
} ends_t;

static void close_ends(ends_t *ends)
{
    int *all[] = {ends->out, ends->err, ends->secret, ends->report};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        for (int k = 0; k < 2; k++)
            if (all[i][k] >= 0)
                close(all[i][k]);
}

static bool open_ends(const run_site_t *site, ends_t *ends)
{
    *ends = (ends_t){{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
    if (site->pipes && (pipe2(ends->out, O_CLOEXEC) != 0 || pipe2(ends->err, O_CLOEXEC) != 0))
        return false;
    return pipe2(ends->secret, O_CLOEXEC) == 0 && pipe2(ends->report, O_CLOEXEC) == 0 &&
           write(ends->secret[1], site->secret, RUN_SECRET_BYTES) == RUN_SECRET_BYTES;
}

static bool set_number(const char *name, int number)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", number);
    return setenv(name, text, 1) == 0;
}

/* Ranks that each use all cores for their matrix products get in each other's way. */
static bool share_cores(int ranks)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    return getenv("OMP_NUM_THREADS") != NULL || set_number("OMP_NUM_THREADS", cores > ranks ? (int)(cores / ranks) : 1);
}

static bool set_launch(const run_site_t *site, int i, const ends_t *ends, bool again)
{
    char text[192];
    int n = snprintf(text, sizeof(text), "run=%s,secret=%d,ends=%d", site->name, ends->secret[0], site->ends);

    if (site->first + i == 0)
        n += snprintf(text + n, sizeof(text) - (size_t)n, ",listen=%d", site->listener);
    if (site->respawn > 0)
        n += snprintf(text + n, sizeof(text) - (size_t)n, ",respawn=%d,tell=%d,memory=%d", site->respawn, site->tell[1],
                      site->memory[i]);
    if (again || site->begun)
        snprintf(text + n, sizeof(text) - (size_t)n, ",again=1");
    return setenv("DUALPIPE_LAUNCH", text, 1) == 0;
}

/* false: no memory. */
static bool set_environment(const run_site_t *site, int i, const ends_t *ends, bool again)
{
    unsetenv("TORCHELASTIC_USE_AGENT_STORE"); /* of a launcher around us */
    return set_number("RANK", site->first + i) && set_number("WORLD_SIZE", site->world) &&
           set_number("LOCAL_RANK", i) && set_number("LOCAL_WORLD_SIZE", site->count) &&
           set_number("MASTER_PORT", site->port) && setenv("MASTER_ADDR", site->address, 1) == 0 &&
           set_launch(site, i, ends, again) && share_cores(site->count);
}

static bool keep_open(int fd)
{
    return fcntl(fd, F_SETFD, 0) == 0;
}

/* In the child: becomes the program. Returns only when that fails, with errno. */
static void become_rank(const run_site_t *site, int i, const ends_t *ends, bool again, pid_t keeper)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (setpgid(0, 0) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return;
    if (getppid() != keeper)
        _exit(1); /* it died before it could take us with it */
    if (null < 0 || dup2(null, STDIN_FILENO) < 0)
        return;
    if (site->pipes && (dup2(ends->out[1], STDOUT_FILENO) < 0 || dup2(ends->err[1], STDERR_FILENO) < 0))
        return;
    if (!keep_open(ends->secret[0]) || !keep_open(site->ends) || (site->first + i == 0 && !keep_open(site->listener)))
        return;
    if (site->respawn > 0 && (!keep_open(site->tell[1]) || !keep_open(site->memory[i])))
        return;
    if (!set_environment(site, i, ends, again))
        return;
    (void)setrlimit(RLIMIT_NOFILE, &site->old_files);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &site->old_mask, NULL);
    execvp(site->program[0], site->program);
}

/* 0, or why the program did not start. */
static int read_report(int fd)
{
    int error = 0;

    return read(fd, &error, sizeof(error)) == (ssize_t)sizeof(error) ? error : 0;
}

/* again: it was there before. */
static bool start_rank(run_site_t *site, int i, bool again, int *error_out)
{
    pid_t keeper = getpid();
    int rank = site->first + i, error;
    ends_t ends;

    if (!open_ends(site, &ends)) {
        run_say("rank %d: no pipes for it: %s", rank, strerror(errno));
        close_ends(&ends);
        return false;
    }
    site->pids[i] = fork();
    if (site->pids[i] == 0) {
        become_rank(site, i, &ends, again, keeper);
        error = errno;
        if (write(ends.report[1], &error, sizeof(error)) < 0)
            _exit(126);
        _exit(error == ENOENT ? 127 : 126);
    }
    if (site->pids[i] < 0) {
        run_say("rank %d: no process for it: %s", rank, strerror(errno));
        site->pids[i] = 0;
        close_ends(&ends);
        return false;
    }
    site->running++;
    if (site->pipes) {
        run_relay_add(site->relay, rank, ends.out[0], STDOUT_FILENO);
        run_relay_add(site->relay, rank, ends.err[0], STDERR_FILENO);
        ends.out[0] = ends.err[0] = -1;
    }
    close(ends.report[1]);
    ends.report[1] = -1;
    *error_out = read_report(ends.report[0]);
    close_ends(&ends);
    return *error_out == 0;
}

/* Rank 0 holds a connection to each rank and watches its process; every rank has what its libraries
 * open. What is allowed is known now; later it would be found out by a rank in the middle of
 * joining. */
static bool enough_descriptors(run_site_t *site)
{
    rlim_t wanted = 32 + (site->first == 0 ? 3 * (rlim_t)site->world : 0);

    if (site->old_files.rlim_cur < wanted && site->old_files.rlim_max >= wanted)
        site->old_files.rlim_cur = wanted;
    if (site->old_files.rlim_cur >= wanted)
        return true;
    run_say("%d ranks take up to %llu open files in one of them, and %llu are allowed: raise the limit "
            "(ulimit -n)",
            site->world, (unsigned long long)wanted, (unsigned long long)site->old_files.rlim_max);
    return false;
}

static void shut_door(run_site_t *site)
{
    if (site->listener < 0)
        return;
    if (site->respawn > 0)
        (void)shutdown(site->listener, SHUT_RDWR); /* rank 0 holds it as well */
    close(site->listener);
    site->listener = -1;
}

bool run_site_start(run_site_t *site, int *error_out)
{
    *error_out = 0;
    if (!enough_descriptors(site))
        return false;
    for (int i = 0; i < site->count; i++)
        if (!start_rank(site, i, false, error_out))
            return false;
    if (site->respawn == 0)
        shut_door(site);
    return true;
}

/* ---- while they run ---- */

bool run_site_start_again(run_site_t *site, int i)
{
    int error = 0;

    if (start_rank(site, i, true, &error))
        return true;
    if (error != 0)
        run_say("cannot start \"%s\" again: %s", site->program[0], strerror(error));
    return false;
}

void run_site_tell_end(const run_site_t *site, const char *text)
{
    char line[640];
    int bytes = snprintf(line, sizeof(line), "%s %.500s\n", site->name, text);
    ssize_t n = lseek(site->ends, 0, SEEK_END) < 0 ? -1 : write(site->ends, line, (size_t)bytes);

    if (n != bytes)
        run_say("the ranks cannot be told of an end: %s", n < 0 ? strerror(errno) : "its line is cut off");
}

bool run_site_hear(const run_site_t *site, char *text, size_t bytes)
{
    const size_t name = strlen(site->name);
    char line[1024];
    ssize_t n;

    while (site->tell[0] >= 0 && (n = recv(site->tell[0], line, sizeof(line) - 1, MSG_DONTWAIT)) > 0) {
        line[n] = '\0';
        if (strncmp(line, site->name, name) == 0 && line[name] == ' ') {
            snprintf(text, bytes, "%s", line + name + 1);
            return true;
        }
    }
    return false;
}

void run_site_close(run_site_t *site)
{
    shut_door(site);
    if (site->relay != NULL)
        run_relay_expect(site->relay, false);
}

void run_site_kill(run_site_t *site, int number)
{
    for (int i = 0; site->pids != NULL && i < site->count; i++) /* NULL: nothing was started */
        if (site->pids[i] > 0) {
            (void)kill(-site->pids[i], number);
            (void)kill(-site->pids[i], SIGCONT); /* one that is stopped hears nothing else */
        }
}

void run_site_kill_rank(run_site_t *site, int rank, pid_t pid)
{
    const int i = rank - site->first;

    if (site->pids != NULL && i >= 0 && i < site->count && site->pids[i] == pid)
        (void)kill(-pid, SIGKILL);
}

bool run_site_reap(run_site_t *site, int i, siginfo_t *info)
{
    memset(info, 0, sizeof(*info));
    if (site->pids[i] <= 0 || waitid(P_PID, (id_t)site->pids[i], info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info->si_pid == 0)
        return false;
    (void)kill(-site->pids[i], SIGKILL);
    (void)waitpid(site->pids[i], NULL, 0);
    site->pids[i] = 0;
    site->running--;
    return true;
}

static bool is_rank(const run_site_t *site, pid_t pid)
{
    for (int i = 0; i < site->count; i++)
        if (site->pids[i] == pid)
            return true;
    return false;
}

void run_site_reap_orphans(const run_site_t *site)
{
    for (;;) {
        siginfo_t info = {0};

        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0 || is_rank(site, info.si_pid))
            return; /* a rank that has ended just now has its turn next time */
        (void)waitpid(info.si_pid, NULL, 0);
    }
}
