/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_job.c: the keeper of `dualpipe run` on one host: starts the ranks, watches them, and decides
 * when it is over. */
#include "run_job.h"
#include "run_site.h"
#include "run_verdict.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

const int run_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
const int run_signal_count = sizeof(run_signals) / sizeof(run_signals[0]);

typedef struct job {
    run_site_t site;
    run_verdict_t verdict;
    int signal_fd, life_fd, done_fd;
} job_t;

int run_signal_fd(void)
{
    sigset_t set;
    int fd;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (int i = 0; i < run_signal_count; i++)
        sigaddset(&set, run_signals[i]);
    fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        run_say("signalfd: %s", strerror(errno));
    return fd;
}

bool run_poll(struct pollfd *polls, int count, int timeout_ms)
{
    if (poll(polls, (nfds_t)count, timeout_ms) >= 0)
        return true;
    for (int i = 0; i < count; i++)
        polls[i].revents = 0;
    if (errno == EINTR)
        return true;
    run_say("poll: %s: the job cannot be watched and ends", strerror(errno));
    return false;
}

static int read_signal(int fd, pid_t *from_out)
{
    struct signalfd_siginfo info;
    ssize_t n = read(fd, &info, sizeof(info));

    *from_out = n == (ssize_t)sizeof(info) ? (pid_t)info.ssi_pid : 0;
    if (n == (ssize_t)sizeof(info))
        return (int)info.ssi_signo;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    run_say("signals cannot be read: %s: the job ends", n < 0 ? strerror(errno) : "they are cut off");
    return -1;
}

int run_next_signal(int fd)
{
    pid_t from;

    return read_signal(fd, &from);
}

int run_passed_signal(int fd)
{
    pid_t from;
    int number;

    do
        number = read_signal(fd, &from);
    while (number > 0 && number != SIGCHLD && from != getppid());
    return number;
}

/* ---- watching ---- */

static void take_no_more(job_t *job)
{
    if (run_verdict_close(&job->verdict))
        run_site_close(&job->site);
}

/* An end that nobody takes the place of. */
static void consider_end(job_t *job, const run_end_t *end)
{
    char text[640];

    run_end_write(end, text, sizeof(text));
    run_site_tell_end(&job->site, text);
    take_no_more(job);
    run_verdict_consider(&job->verdict, end);
}

static void start_due(job_t *job)
{
    run_end_t end;

    for (run_due_t due; (due = run_verdict_due(&job->verdict, &end)) != RUN_DUE_NOTHING;)
        if (due == RUN_DUE_START && run_site_start_again(&job->site, end.rank))
            run_verdict_replaced(&job->verdict, &end, job->site.pids[end.rank]);
        else
            consider_end(job, &end);
}

static int left(const job_t *job)
{
    return job->site.running + job->verdict.waiting;
}

static void take_ends(job_t *job)
{
    siginfo_t info;
    char text[512];
    pid_t pid;
    int rank;

    while (run_site_hear(&job->site, text, sizeof(text)))
        if (run_verdict_hear(&job->verdict, text, &rank, &pid))
            run_site_kill_rank(&job->site, rank, pid);
    for (int i = 0; i < job->site.count; i++)
        if (run_site_reap(&job->site, i, &info)) {
            run_end_t end = run_end_of(&info, i);

            if (!run_verdict_replace(&job->verdict, &end))
                consider_end(job, &end);
        }
    start_due(job);
    if (left(job) == 0)
        run_verdict_decide(&job->verdict);
    run_verdict_decide_in_time(&job->verdict);
    run_site_reap_orphans(&job->site);
}

/* false: there are no signals any more. */
static bool heed_signals(job_t *job)
{
    int number;

    while ((number = run_passed_signal(job->signal_fd)) > 0)
        if (number != SIGCHLD && run_verdict_signal(&job->verdict, number))
            run_site_kill(&job->site, number);
    return number == 0;
}

/* false: our parent has died, or the system does not let us watch. */
static bool watch_ranks(job_t *job)
{
    struct pollfd polls[3] = {{.fd = job->signal_fd, .events = POLLIN},
                              {.fd = job->life_fd, .events = POLLIN},
                              {.fd = job->site.tell[0], .events = POLLIN}};

    while (left(job) > 0) {
        bool well = run_poll(polls, 3, run_verdict_nap_ms(&job->verdict)) && heed_signals(job);

        take_ends(job);
        if (!well || polls[1].revents != 0)
            return false;
        if (job->site.running > 0 && run_verdict_overdue(&job->verdict, job->site.running))
            run_site_kill(&job->site, SIGKILL);
        else if (job->verdict.seen) /* whoever is stopped cannot see that it is over */
            run_site_kill(&job->site, SIGCONT);
    }
    return true;
}

bool run_await_relay(int done_fd, int signal_fd, int life_fd)
{
    struct pollfd polls[3] = {
        {.fd = done_fd, .events = POLLIN}, {.fd = signal_fd, .events = POLLIN}, {.fd = life_fd, .events = POLLIN}};

    while (done_fd >= 0) {
        int number;

        if (!run_poll(polls, 3, -1) || polls[2].revents != 0)
            return false;
        if (polls[0].revents != 0)
            return true;
        while ((number = run_passed_signal(signal_fd)) != 0)
            if (number != SIGCHLD)
                return false;
    }
    return true;
}

/* ---- the job ---- */

static bool start_ranks(job_t *job, const run_options_t *options)
{
    const bool relays = options->prefix != RUN_PREFIX_NEVER;
    int error;

    if (!run_site_open(&job->site, relays ? run_site_relay(&job->site, RUN_RELAY_PREFIX) : NULL) ||
        !run_site_name(&job->site) || !run_site_listen(&job->site))
        return false;
    job->signal_fd = run_signal_fd();
    if (job->signal_fd < 0)
        return false;
    if (!run_site_start(&job->site, &error)) {
        if (error != 0) {
            run_say("cannot start \"%s\": %s", options->program[0], strerror(error));
            job->verdict.code = error == ENOENT ? 127 : 126;
        }
        return false;
    }
    if (!relays || run_relay_start(job->site.relay, &job->done_fd))
        return true;
    run_say("no thread to copy the output with");
    return false;
}

int run_job(const run_options_t *options, int life_fd)
{
    job_t job = {.site = {.count = options->ranks,
                          .world = options->ranks,
                          .listener = -1,
                          .tell = {-1, -1},
                          .address = "127.0.0.1",
                          .respawn = options->respawn,
                          .pipes = options->prefix != RUN_PREFIX_NEVER,
                          .program = options->program},
                 .signal_fd = -1,
                 .done_fd = -1,
                 .life_fd = life_fd};
    bool good;

    good = run_verdict_open(&job.verdict, options) && start_ranks(&job, options);
    if (good && !watch_ranks(&job)) {
        run_site_kill(&job.site, SIGKILL);
        good = false;
    }
    if (!good && job.verdict.code == 0)
        job.verdict.code = 1;
    run_kill_descendants();
    take_no_more(&job);
    run_await_relay(job.done_fd, job.signal_fd, job.life_fd);
    if (job.site.relay != NULL && run_relay_lacks(job.site.relay) && job.verdict.code == 0)
        job.verdict.code = 1;
    return job.verdict.code;
}
