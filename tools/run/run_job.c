/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_job.c: the keeper of `dualpipe run`: starts the ranks, watches them, and decides when it is over. */
#include "run_job.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECRET_BYTES  32
#define SIGNAL_FACTOR 5  /* a signal asks for an orderly end: that takes longer than dying */
#define PEER_DIED     13 /* by convention, the exit code of a rank that ends because another one has died */
#define DECISION_NS   200000000

const int run_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
const int run_signal_count = sizeof(run_signals) / sizeof(run_signals[0]);

typedef struct job {
    const run_options_t *options;
    pid_t *pids; /* 0: not started, or gone */
    int running;
    int listener, port;
    char name[33];
    uint8_t secret[SECRET_BYTES];
    sigset_t old_mask;
    struct rlimit old_files;
    int signal_fd, life_fd, done_fd;
    run_relay_t *relay;

    int code;  /* of the first rank that failed; 0: none */
    int first; /* who it seems to be until decide_ns; -1: nobody */
    siginfo_t first_info;
    int64_t decide_ns;
    int signals;         /* how many we were sent */
    int64_t deadline_ns; /* when the rest is killed; INT64_MAX: not yet */
    bool killed;
} job_t;

/* ---- before the ranks ---- */

static bool open_listener(job_t *job)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int on = 1;

    job->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (job->listener < 0 || setsockopt(job->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(job->listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        listen(job->listener, job->options->ranks < 128 ? 128 : job->options->ranks) != 0 ||
        getsockname(job->listener, (struct sockaddr *)&address, &bytes) != 0) {
        run_say("no socket on loopback for the ranks to meet at: %s", strerror(errno));
        return false;
    }
    job->port = ntohs(address.sin_port);
    return true;
}

static bool make_names(job_t *job)
{
    uint8_t random[16];

    if (getrandom(random, sizeof(random), 0) != sizeof(random) ||
        getrandom(job->secret, sizeof(job->secret), 0) != sizeof(job->secret)) {
        run_say("the system has no random numbers: %s", strerror(errno));
        return false;
    }
    for (int i = 0; i < 16; i++)
        snprintf(job->name + 2 * i, 3, "%02x", random[i]);
    return true;
}

/* Two pipes and a secret for every rank, all open at the same time. */
static void allow_descriptors(job_t *job)
{
    struct rlimit more;
    rlim_t wanted = 64 + 4 * (rlim_t)job->options->ranks;

    if (getrlimit(RLIMIT_NOFILE, &job->old_files) != 0 || job->old_files.rlim_cur >= wanted)
        return;
    more = job->old_files;
    more.rlim_cur = wanted < more.rlim_max ? wanted : more.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &more);
}

static bool open_signals(job_t *job)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (int i = 0; i < run_signal_count; i++)
        sigaddset(&set, run_signals[i]);
    job->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (job->signal_fd < 0)
        run_say("signalfd: %s", strerror(errno));
    return job->signal_fd >= 0;
}

/* ---- starting a rank ---- */

typedef struct ends {
    int out[2], err[2], secret[2], report[2]; /* [0] to read from; report: errno when there is no program */
} ends_t;

static void close_ends(ends_t *ends)
{
    int *all[] = {ends->out, ends->err, ends->secret, ends->report};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        for (int k = 0; k < 2; k++)
            if (all[i][k] >= 0)
                close(all[i][k]);
}

static bool open_ends(const job_t *job, ends_t *ends)
{
    *ends = (ends_t){{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
    if (job->options->prefix && (pipe2(ends->out, O_CLOEXEC) != 0 || pipe2(ends->err, O_CLOEXEC) != 0))
        return false;
    return pipe2(ends->secret, O_CLOEXEC) == 0 && pipe2(ends->report, O_CLOEXEC) == 0 &&
           write(ends->secret[1], job->secret, SECRET_BYTES) == SECRET_BYTES;
}

static void set_number(const char *name, int number)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", number);
    setenv(name, text, 1);
}

/* Ranks that each use all cores for their matrix products get in each other's way. */
static void share_cores(int ranks)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    if (getenv("OMP_NUM_THREADS") == NULL)
        set_number("OMP_NUM_THREADS", cores > ranks ? (int)(cores / ranks) : 1);
}

static void set_environment(const job_t *job, int rank, const ends_t *ends)
{
    set_number("RANK", rank);
    set_number("WORLD_SIZE", job->options->ranks);
    set_number("LOCAL_RANK", rank);
    set_number("LOCAL_WORLD_SIZE", job->options->ranks);
    set_number("MASTER_PORT", job->port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("DUALPIPE_RUN", job->name, 1);
    set_number("DUALPIPE_SECRET_FD", ends->secret[0]);
    if (rank == 0)
        set_number("DUALPIPE_LISTEN_FD", job->listener);
    else
        unsetenv("DUALPIPE_LISTEN_FD");
    unsetenv("TORCHELASTIC_USE_AGENT_STORE"); /* of a launcher around us */
    share_cores(job->options->ranks);
}

static bool keep_open(int fd)
{
    return fcntl(fd, F_SETFD, 0) == 0;
}

/* In the child: becomes the program. Returns only when that fails, with errno. */
static void become_rank(const job_t *job, int rank, const ends_t *ends, pid_t keeper)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (setpgid(0, 0) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return;
    if (getppid() != keeper)
        _exit(1); /* it died before it could take us with it */
    if (null < 0 || dup2(null, STDIN_FILENO) < 0)
        return;
    if (job->options->prefix && (dup2(ends->out[1], STDOUT_FILENO) < 0 || dup2(ends->err[1], STDERR_FILENO) < 0))
        return;
    if (!keep_open(ends->secret[0]) || (rank == 0 && !keep_open(job->listener)))
        return;
    set_environment(job, rank, ends);
    (void)setrlimit(RLIMIT_NOFILE, &job->old_files);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &job->old_mask, NULL);
    execvp(job->options->program[0], job->options->program);
}

/* 0, or why the program did not start. */
static int read_report(int fd)
{
    int error = 0;

    return read(fd, &error, sizeof(error)) == (ssize_t)sizeof(error) ? error : 0;
}

static bool start_rank(job_t *job, int rank)
{
    pid_t keeper = getpid();
    int error;
    ends_t ends;

    if (!open_ends(job, &ends)) {
        run_say("rank %d: no pipes for it: %s", rank, strerror(errno));
        close_ends(&ends);
        return false;
    }
    job->pids[rank] = fork();
    if (job->pids[rank] == 0) {
        become_rank(job, rank, &ends, keeper);
        error = errno;
        if (write(ends.report[1], &error, sizeof(error)) < 0)
            _exit(126);
        _exit(error == ENOENT ? 127 : 126);
    }
    if (job->pids[rank] < 0) {
        run_say("rank %d: no process for it: %s", rank, strerror(errno));
        job->pids[rank] = 0;
        close_ends(&ends);
        return false;
    }
    job->running++;
    if (job->options->prefix) {
        run_relay_add(job->relay, rank, ends.out[0], STDOUT_FILENO);
        run_relay_add(job->relay, rank, ends.err[0], STDERR_FILENO);
        ends.out[0] = ends.err[0] = -1;
    }
    close(ends.report[1]);
    ends.report[1] = -1;
    error = read_report(ends.report[0]);
    close_ends(&ends);
    if (error == 0)
        return true;
    run_say("cannot start \"%s\": %s", job->options->program[0], strerror(error));
    job->code = error == ENOENT ? 127 : 126;
    return false;
}

static bool start_all(job_t *job)
{
    for (int r = 0; r < job->options->ranks; r++)
        if (!start_rank(job, r))
            return false;
    close(job->listener);
    job->listener = -1;
    return true;
}

/* ---- watching ---- */

static void kill_all(job_t *job, int number)
{
    for (int r = 0; r < job->options->ranks; r++)
        if (job->pids[r] > 0)
            (void)kill(-job->pids[r], number);
}

static int64_t from_now(double seconds)
{
    return run_now_ns() + (int64_t)(seconds * 1e9);
}

/* Others can notice a death and end themselves while the dead rank is still being taken apart by the system. So the
 * first end that is seen is not the first cause yet: for a moment, a better one may come. */
static int weight(const siginfo_t *info)
{
    if (info->si_code != CLD_EXITED)
        return 3;
    return info->si_status == 0 ? 0 : info->si_status == PEER_DIED ? 1 : 2;
}

static void consider(job_t *job, int rank, const siginfo_t *info)
{
    if (job->code != 0 || weight(info) == 0)
        return;
    if (job->first < 0) {
        job->decide_ns = run_now_ns() + DECISION_NS;
        if (job->deadline_ns == INT64_MAX)
            job->deadline_ns = from_now(job->options->grace_seconds);
    } else if (weight(info) <= weight(&job->first_info)) {
        return;
    }
    job->first = rank;
    job->first_info = *info;
}

static void decide(job_t *job)
{
    const siginfo_t *info = &job->first_info;

    if (job->first < 0 || job->code != 0)
        return;
    job->decide_ns = INT64_MAX;
    if (info->si_code == CLD_EXITED) {
        job->code = info->si_status;
        run_say("rank %d (pid %d) exited with status %d", job->first, (int)info->si_pid, info->si_status);
    } else {
        job->code = 128 + info->si_status;
        run_say("rank %d (pid %d) was ended by signal %d (%s)%s", job->first, (int)info->si_pid, info->si_status,
                strsignal(info->si_status), info->si_code == CLD_DUMPED ? ", core dumped" : "");
    }
}

/* Looks at rank `rank` and takes its end in. Its group goes with it, while its number cannot be another's. */
static bool take_end(job_t *job, int rank, siginfo_t *info)
{
    memset(info, 0, sizeof(*info));
    if (job->pids[rank] <= 0 || waitid(P_PID, (id_t)job->pids[rank], info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info->si_pid == 0)
        return false;
    (void)kill(-job->pids[rank], SIGKILL);
    (void)waitpid(job->pids[rank], NULL, 0);
    job->pids[rank] = 0;
    job->running--;
    return true;
}

static bool is_rank(const job_t *job, pid_t pid)
{
    for (int r = 0; r < job->options->ranks; r++)
        if (job->pids[r] == pid)
            return true;
    return false;
}

/* Processes that ranks have started and left behind come to us when they end. */
static void take_orphans(const job_t *job)
{
    for (;;) {
        siginfo_t info = {0};

        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0 || is_rank(job, info.si_pid))
            return; /* a rank that has ended just now has its turn next time */
        (void)waitpid(info.si_pid, NULL, 0);
    }
}

static void take_ends(job_t *job)
{
    siginfo_t info;

    for (int r = 0; r < job->options->ranks; r++)
        if (take_end(job, r, &info))
            consider(job, r, &info);
    if (job->running == 0 || run_now_ns() >= job->decide_ns)
        decide(job);
    take_orphans(job);
}

static void heed_signals(job_t *job)
{
    struct signalfd_siginfo info;

    while (read(job->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD)
            continue;
        job->signals++;
        if (job->signals > 1) {
            job->deadline_ns = 0;
            continue;
        }
        run_say("%s: passed on to the ranks", strsignal((int)info.ssi_signo));
        kill_all(job, (int)info.ssi_signo);
        if (job->deadline_ns == INT64_MAX)
            job->deadline_ns = from_now(SIGNAL_FACTOR * job->options->grace_seconds);
    }
}

static void heed_deadline(job_t *job)
{
    if (job->killed || run_now_ns() < job->deadline_ns)
        return;
    decide(job); /* who is killed by us is no cause */
    job->killed = true;
    run_say("%d rank%s did not end in time: killed", job->running, job->running == 1 ? "" : "s");
    kill_all(job, SIGKILL);
}

static int nap_ms(const job_t *job)
{
    int64_t until = !job->killed && job->deadline_ns < job->decide_ns ? job->deadline_ns : job->decide_ns;
    int64_t left = until - run_now_ns();

    return left <= 0 ? 0 : left < 1000000000 ? (int)(left / 1000000) + 1 : 1000;
}

/* false: our parent has died. */
static bool watch(job_t *job)
{
    struct pollfd polls[2] = {{.fd = job->signal_fd, .events = POLLIN}, {.fd = job->life_fd, .events = POLLIN}};

    while (job->running > 0) {
        (void)poll(polls, 2, nap_ms(job));
        heed_signals(job);
        take_ends(job);
        if (polls[1].revents != 0)
            return false;
        if (job->running > 0)
            heed_deadline(job);
    }
    return true;
}

/* What the ranks have printed last may still be on its way to someone who reads slowly. */
static void await_relay(job_t *job)
{
    struct pollfd polls[3] = {{.fd = job->done_fd, .events = POLLIN},
                              {.fd = job->signal_fd, .events = POLLIN},
                              {.fd = job->life_fd, .events = POLLIN}};

    while (job->done_fd >= 0) {
        struct signalfd_siginfo info;

        (void)poll(polls, 3, -1);
        if (polls[0].revents != 0 || polls[2].revents != 0)
            return;
        while (read(job->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
            if (info.ssi_signo != SIGCHLD)
                return;
    }
}

static bool prepare(job_t *job)
{
    allow_descriptors(job);
    job->pids = calloc((size_t)job->options->ranks, sizeof(job->pids[0]));
    job->relay = job->options->prefix ? run_relay_new(job->options->ranks) : NULL;
    if (job->pids == NULL || (job->options->prefix && job->relay == NULL)) {
        run_say("no memory for %d ranks", job->options->ranks);
        return false;
    }
    return make_names(job) && open_listener(job) && open_signals(job);
}

int run_job(const run_options_t *options, int life_fd)
{
    job_t job = {.options = options,
                 .listener = -1,
                 .signal_fd = -1,
                 .done_fd = -1,
                 .life_fd = life_fd,
                 .first = -1,
                 .decide_ns = INT64_MAX,
                 .deadline_ns = INT64_MAX};
    bool good;

    /* signals are blocked since before the fork; the ranks get the mask that we were started with */
    sigprocmask(SIG_SETMASK, NULL, &job.old_mask);
    for (int i = 0; i < run_signal_count; i++)
        sigdelset(&job.old_mask, run_signals[i]);
    sigdelset(&job.old_mask, SIGCHLD);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTTOU, SIG_IGN); /* neither our group nor theirs is the terminal's; all may write to it */
    prctl(PR_SET_CHILD_SUBREAPER, 1);

    good = prepare(&job) && start_all(&job);
    if (good && options->prefix && !run_relay_start(job.relay, &job.done_fd)) {
        run_say("no thread to copy the output with");
        good = false;
    }
    if (good) {
        if (watch(&job))
            run_kill_descendants();
        else
            kill_all(&job, SIGKILL);
    }
    if (!good && job.code == 0)
        job.code = 1;
    run_kill_descendants();
    await_relay(&job);
    return job.code;
}
