/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_hosts.c: the keeper of `dualpipe run --hosts`: an agent on every host, reached by a command
 * such as ssh, and what their news mean for the job. */
#include "run_job.h"
#include "run_order.h"
#include "run_verdict.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOMENT_NS     500000000ll
#define START_SECONDS 60 /* from reaching a host until it is ready */
/* from the order to kill until an agent has done so and says it */
#define LAST_WORDS_NS 5000000000ll

typedef struct host {
    const char *name;
    pid_t pid;    /* of the command that reaches it, and of its process group */
    int to, news; /* its standard input, its standard error */
    int first, count, running;
    /* done: its ranks are gone; flushed: so is all that they have printed */
    bool ready, done, flushed, gone;
    bool lost; /* gone without a word */
    talk_in_t in;
    talk_out_t out;
    int64_t heard_ns;
    int64_t ended_ns; /* when the command that reaches it was seen to have ended */
    char how[160];
    char why[400]; /* it was lost */
} host_t;

typedef struct work {
    run_options_t options; /* the hosts that are left */
    run_site_t site;       /* name, secret and address of the job */
    run_verdict_t verdict;
    host_t *hosts;
    struct pollfd *polls; /* [host_count + 2] */
    run_relay_t *relay;
    sigset_t old_mask;
    bool started, failed; /* failed: nothing will be started */
    bool blind;           /* the system does not let us watch */
    bool lacks;           /* output was dropped, now or before */
    int64_t begun_ns, spoke_ns, killed_ns;
    int signal_fd, life_fd, done_fd;
} work_t;

/* ---- reaching a host ---- */

/* For a shell. NULL: no memory. */
static char *write_command(const char *path)
{
    char *text = malloc(4 * strlen(path) + 32), *to;

    if (text == NULL)
        return NULL;
    to = stpcpy(text, "exec '");
    for (; *path != '\0'; path++)
        to += sprintf(to, *path == '\'' ? "'\\''" : "%c", *path);
    strcpy(to, "' run --agent");
    return text;
}

/* In the child. */
static void become_rsh(const work_t *w, const host_t *host, int in, int out, int err, pid_t keeper)
{
    char *command = write_command(w->options.dualpipe_path), *script = NULL;
    char *argv[] = {"sh", "-c", NULL, "rsh", (char *)host->name, command, NULL};

    if (command == NULL || asprintf(&script, "%s \"$@\"", w->options.rsh) < 0)
        _exit(126);
    argv[2] = script;
    if (setpgid(0, 0) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != keeper ||
        dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0)
        _exit(126);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &w->old_mask, NULL);
    execv("/bin/sh", argv);
    _exit(127);
}

static bool reach(work_t *w, host_t *host, int i)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
    pid_t keeper = getpid();

    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0 ||
        (host->pid = fork()) < 0) {
        run_say("host %s: no process to reach it with: %s", host->name, strerror(errno));
        host->pid = 0;
        return false;
    }
    if (host->pid == 0)
        become_rsh(w, host, in[0], out[1], err[1], keeper);
    close(in[0]);
    close(out[1]);
    close(err[1]);
    host->to = in[1];
    host->news = err[0];
    (void)fcntl(host->to, F_SETFL, O_NONBLOCK);
    (void)fcntl(host->news, F_SETFL, O_NONBLOCK);
    run_relay_add(w->relay, i, out[0], STDOUT_FILENO);
    return true;
}

/* ---- what it is told ---- */

static void tell_host(host_t *host, const char *word, const char *argument)
{
    talk_put(&host->out, "", word, argument);
}

static void tell_all(work_t *w, const char *word, const char *argument)
{
    for (int i = 0; i < w->options.host_count; i++)
        if (!w->hosts[i].gone && !w->hosts[i].done)
            tell_host(&w->hosts[i], word, argument);
}

/* Also those whose ranks are gone: what they have printed may still be on its way. */
static void say_alive(work_t *w)
{
    for (int i = 0; i < w->options.host_count; i++)
        if (!w->hosts[i].gone)
            tell_host(&w->hosts[i], "alive", "");
}

/* ---- what it says ---- */

static bool all_ready(const work_t *w)
{
    for (int i = 0; i < w->options.host_count; i++)
        if (!w->hosts[i].ready)
            return false;
    return true;
}

static host_t *host_of(work_t *w, int rank)
{
    host_t *host = w->hosts;

    while (rank >= host->first + host->count)
        host++;
    return host;
}

static void go(work_t *w)
{
    char where[96];

    snprintf(where, sizeof(where), "%s %d", w->site.address, w->site.port);
    tell_all(w, "go", where);
    w->started = true;
    for (int i = 0; i < w->options.host_count; i++)
        w->hosts[i].running = w->hosts[i].count;
}

/* An end that nobody takes the place of. */
static void consider_host(work_t *w, const run_end_t *end)
{
    char text[640];

    run_end_write(end, text, sizeof(text));
    tell_all(w, "ended", text);
    if (run_verdict_close(&w->verdict))
        tell_all(w, "close", "");
    run_verdict_consider(&w->verdict, end);
}

/* again_out: the process that was started in its place, 0 where the text names none. */
static bool read_end(const host_t *host, const char *text, run_end_t *end_out, int *again_out)
{
    siginfo_t info = {0};
    int rank, pid, code, status;

    *again_out = 0;
    if (sscanf(text, "%d %d %d %d %d", &rank, &pid, &code, &status, again_out) < 4)
        return false;
    info.si_pid = pid;
    info.si_code = code;
    info.si_status = status;
    *end_out = run_end_of(&info, rank);
    end_out->host = host->name;
    return true;
}

/* A rank that waits to be started again counts as running. */
static void take_end(work_t *w, host_t *host, const char *text)
{
    run_end_t end;
    int again;

    if (!read_end(host, text, &end, &again))
        return;
    if (run_verdict_replace(&w->verdict, &end))
        return;
    host->running--;
    consider_host(w, &end);
}

static void start_due(work_t *w)
{
    run_end_t end;
    char text[64];

    for (run_due_t due; (due = run_verdict_due(&w->verdict, &end)) != RUN_DUE_NOTHING;) {
        host_t *host = host_of(w, end.rank);

        snprintf(text, sizeof(text), "%d %d %d %d", end.rank, (int)end.pid,
                 end.how == RUN_DUMPED ? CLD_DUMPED : CLD_KILLED, end.status);
        if (due == RUN_DUE_START) {
            tell_host(host, "again", text);
            continue;
        }
        if (host->running > 0) /* else it is lost */
            host->running--;
        consider_host(w, &end);
    }
}

static void take_again(work_t *w, const host_t *host, const char *text)
{
    run_end_t end;
    int again;

    if (read_end(host, text, &end, &again))
        run_verdict_replaced(&w->verdict, &end, again);
}

/* Without the ends of its ranks: it has given up, and has said why. */
static void take_done(work_t *w, host_t *host)
{
    run_end_t end = {.how = RUN_LOST, .rank = host->first, .host = host->name, .why = host->why};

    host->done = true;
    if (!w->started)
        w->failed = true;
    snprintf(host->why, sizeof(host->why), "host %s did not run its ranks", host->name);
    if (host->running > 0)
        consider_host(w, &end);
    host->running = 0;
}

static void take_word(work_t *w, host_t *host, const char *word, char *argument)
{
    char hung[32];
    pid_t pid;
    int rank;

    if (strcmp(word, "ready") == 0) {
        host->ready = true;
    } else if (strcmp(word, "listening") == 0) {
        (void)sscanf(argument, "%63s %d", w->site.address, &w->site.port);
    } else if (strcmp(word, "end") == 0) {
        take_end(w, host, argument);
    } else if (strcmp(word, "again") == 0) {
        take_again(w, host, argument);
    } else if (strcmp(word, "told") == 0) {
        if (run_verdict_hear(&w->verdict, argument, &rank, &pid)) {
            snprintf(hung, sizeof(hung), "%d %d", rank, (int)pid);
            tell_host(host_of(w, rank), "hung", hung);
        }
    } else if (strcmp(word, "status") == 0) {
        run_clean(argument, strlen(argument));
        fprintf(stderr, "%s\n", argument);
    } else if (strcmp(word, "nothing") == 0) {
        if (!w->failed)
            run_say("cannot start \"%s\" on %s: %s", w->options.program[0], host->name, strerror(atoi(argument)));
        w->verdict.code = atoi(argument) == ENOENT ? 127 : 126;
        w->failed = true;
    } else if (strcmp(word, "done") == 0) {
        take_done(w, host);
    } else if (strcmp(word, "flushed") == 0) {
        host->flushed = true;
    }
}

static void take_line(work_t *w, host_t *host, char *line)
{
    char *ours = strstr(line, TALK_MARK), *argument;

    /* of the command that reaches it, or of a shell there, which may not have ended its line */
    if (ours != line) {
        run_say("%s says: %.*s", host->name, (int)(ours != NULL ? ours - line : (ptrdiff_t)strlen(line)), line);
        if (ours == NULL)
            return;
    }
    line = ours + strlen(TALK_MARK);
    if (strncmp(line, "says ", 5) == 0) {
        run_say("%s: %s", host->name, line + 5);
        return;
    }
    argument = talk_split(line);
    take_word(w, host, line, argument);
}

/* ---- losing it ---- */

static void close_input(host_t *host)
{
    if (host->to >= 0)
        close(host->to);
    host->to = -1;
}

static void lose(work_t *w, host_t *host, const char *how)
{
    run_end_t end = {.how = RUN_LOST, .rank = host->first, .host = host->name, .why = host->why};
    int last = host->first + host->count - 1;

    host->gone = true;
    if (host->pid > 0)
        (void)kill(-host->pid, SIGKILL);
    run_relay_lose(w->relay, (int)(host - w->hosts)); /* whatever else of it holds its pipe */
    close_input(host);
    close(host->news);
    host->news = -1;
    if (host->done)
        return;
    host->lost = true;
    host->running = 0;
    if (!w->started) {
        if (!w->failed)
            run_say("host %s: nothing was started: %s", host->name, how);
        w->failed = true;
        return;
    }
    snprintf(host->why, sizeof(host->why), "host %s with ranks %d to %d is lost: %s", host->name, host->first, last,
             how);
    consider_host(w, &end);
}

static void lose_silent(work_t *w, host_t *host, int64_t ns)
{
    char how[64];

    snprintf(how, sizeof(how), "it has been silent for %d s", (int)(ns / 1000000000));
    lose(w, host, how);
}

/* Whether the command that reaches the host has ended; `how` it has, if so. It is taken in at the
 * end: until then its number stands for its process group. */
static bool has_ended(const work_t *w, host_t *host)
{
    siginfo_t info = {0};

    if (host->ended_ns != 0)
        return true;
    if (waitid(P_PID, (id_t)host->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
        return false;
    host->ended_ns = run_now_ns();
    snprintf(host->how, sizeof(host->how),
             info.si_code == CLD_EXITED ? "\"%.100s\" ended with status %d" : "\"%.100s\" was ended by signal %d",
             w->options.rsh, info.si_status);
    return true;
}

/* It has closed its end of our pipe, and is most likely ending. */
static void lose_closed(work_t *w, host_t *host)
{
    int64_t until = run_now_ns() + MOMENT_NS;

    while (!has_ended(w, host) && run_now_ns() < until)
        (void)poll(NULL, 0, 5);
    lose(w, host, host->ended_ns != 0 ? host->how : "the connection to it has ended");
}

static void hear_host(work_t *w, host_t *host)
{
    int came = talk_read(&host->in, host->news);
    char *line;

    if (came > 0)
        host->heard_ns = run_now_ns();
    while (came >= 0 && (line = talk_line(&host->in)) != NULL)
        take_line(w, host, line);
    if (came < 0)
        lose_closed(w, host);
}

/* ---- watching ---- */

static int running(const work_t *w)
{
    int sum = 0;

    for (int i = 0; i < w->options.host_count; i++)
        sum += w->hosts[i].running;
    return sum;
}

static bool all_over(const work_t *w)
{
    for (int i = 0; i < w->options.host_count; i++)
        if (!w->hosts[i].done && !w->hosts[i].gone)
            return false;
    return true;
}

static void heed_signals(work_t *w)
{
    char number[16];
    int signal;

    while ((signal = run_passed_signal(w->signal_fd)) > 0) {
        if (signal == SIGQUIT) {
            tell_host(&w->hosts[0], "status", "");
            continue;
        }
        snprintf(number, sizeof(number), "%d", signal);
        if (signal != SIGCHLD && run_verdict_signal(&w->verdict, signal))
            tell_all(w, "signal", number);
        w->failed |= signal != SIGCHLD && !w->started;
    }
    w->blind |= signal < 0;
}

/* A login may say nothing until then. Scaled like the limits of the library, which refuses
 * senseless values. */
static double start_seconds(void)
{
    const char *text = getenv("DUALPIPE_TIMEOUT_SCALE");
    const double scale = text != NULL ? strtod(text, NULL) : 1;

    return START_SECONDS * (scale > 0 && scale < 1e6 ? scale : 1);
}

static void lose_late(work_t *w, host_t *host)
{
    char how[64];

    snprintf(how, sizeof(how), "it is not ready after %g s", start_seconds());
    lose(w, host, how);
}

static void heed_time(work_t *w)
{
    /* a job that has a reason to end does not wait long for a host that may be it */
    const int64_t now = run_now_ns(), silence = w->verdict.seen ? TALK_SILENCE_NS / 3 : TALK_SILENCE_NS;

    if (now - w->spoke_ns >= TALK_ALIVE_NS) {
        w->spoke_ns = now;
        say_alive(w);
    }
    if (w->started && run_verdict_overdue(&w->verdict, running(w))) {
        w->killed_ns = now;
        tell_all(w, "kill", "");
    }
    for (int i = 0; i < w->options.host_count; i++) {
        host_t *host = &w->hosts[i];

        if (host->gone || host->flushed)
            continue;
        if (has_ended(w, host) && now - host->ended_ns >= MOMENT_NS) /* what it has said is heard */
            lose(w, host, host->how);
        else if (host->ready && now - host->heard_ns >= silence)
            lose_silent(w, host, silence);
        else if (!host->ready && now - w->begun_ns >= (int64_t)(start_seconds() * 1e9))
            lose_late(w, host);
        else if (w->killed_ns != 0 && now - w->killed_ns >= LAST_WORDS_NS)
            lose(w, host, "it does not say that its ranks are gone");
    }
}

static void serve(work_t *w)
{
    int count = w->options.host_count;

    w->polls[count] = (struct pollfd){.fd = w->signal_fd, .events = POLLIN};
    w->polls[count + 1] = (struct pollfd){.fd = w->life_fd, .events = POLLIN};
    for (int i = 0; i < count; i++) {
        host_t *host = &w->hosts[i];

        if (host->to >= 0)
            talk_flush(&host->out, host->to);
        w->polls[i] = (struct pollfd){.fd = host->news, .events = POLLIN};
    }
    count = run_verdict_nap_ms(&w->verdict);
    w->blind |= !run_poll(w->polls, w->options.host_count + 2, count < 100 ? count : 100);
    heed_signals(w);
    for (int i = 0; i < w->options.host_count; i++)
        if (w->polls[i].revents != 0)
            hear_host(w, &w->hosts[i]);
}

static void watch_hosts(work_t *w)
{
    while (!all_over(w) && !w->failed && !w->blind) {
        serve(w);
        if (w->polls[w->options.host_count + 1].revents != 0)
            return; /* our parent has died */
        if (!w->started && !w->failed && all_ready(w))
            go(w);
        start_due(w);
        if (running(w) == 0 && w->started)
            run_verdict_decide(&w->verdict);
        run_verdict_decide_in_time(&w->verdict);
        heed_time(w);
    }
}

static bool all_flushed(const work_t *w)
{
    for (int i = 0; i < w->options.host_count; i++)
        if (!w->hosts[i].flushed && !w->hosts[i].gone)
            return false;
    return true;
}

/* Agents whose input ends end their ranks, and have a moment to say so. The others hand over what
 * was printed last, which takes as long as somebody reads slowly; a signal or the end of our parent
 * cuts that short. */
static void leave(work_t *w)
{
    int64_t until = run_now_ns() + LAST_WORDS_NS;
    int signals = w->verdict.signals;

    for (int i = 0; i < w->options.host_count; i++)
        if (!w->hosts[i].done)
            close_input(&w->hosts[i]);
    while (!all_flushed(w) && w->verdict.signals == signals && !w->blind) {
        serve(w);
        if (w->polls[w->options.host_count + 1].revents != 0)
            break;
        heed_time(w);
        for (int i = 0; i < w->options.host_count && run_now_ns() >= until; i++)
            if (!w->hosts[i].done && !w->hosts[i].gone)
                lose(w, &w->hosts[i], "it does not say that its ranks are gone");
    }
    for (int i = 0; i < w->options.host_count; i++)
        close_input(&w->hosts[i]);
}

/* Ranks lie by blocks, of one rank more on the first hosts where they do not divide. */
static void place_ranks(work_t *w)
{
    const int hosts = w->options.host_count, ranks = w->options.ranks;

    for (int i = 0, first = 0; i < hosts; first += w->hosts[i++].count)
        w->hosts[i] = (host_t){.name = w->options.hosts[i],
                               .first = first,
                               .count = ranks / hosts + (i < ranks % hosts),
                               .to = -1,
                               .news = -1,
                               .gone = true,
                               .heard_ns = run_now_ns()};
}

static bool order(work_t *w, host_t *host)
{
    w->site.first = host->first;
    w->site.count = host->count;
    return run_order(&host->out, &w->options, &w->site);
}

static bool open_work(work_t *w)
{
    const int hosts = w->options.host_count;
    bool good;

    w->started = w->failed = w->blind = false;
    w->begun_ns = run_now_ns();
    w->killed_ns = 0;
    w->done_fd = -1;
    w->site.port = 0;
    w->verdict = (run_verdict_t){0};
    w->relay = run_relay_new(hosts, RUN_RELAY_UNTAG);
    w->hosts = calloc((size_t)hosts, sizeof(*w->hosts));
    w->polls = calloc((size_t)hosts + 2, sizeof(*w->polls));
    if (w->relay == NULL || w->hosts == NULL || w->polls == NULL) {
        run_say("no memory for %d hosts", hosts);
        return false;
    }
    place_ranks(w);
    w->site.world = w->options.ranks;
    w->site.respawn = w->options.respawn;
    good = run_verdict_open(&w->verdict, &w->options);
    for (int i = 0; i < hosts && good; i++) {
        good = reach(w, &w->hosts[i], i);
        w->hosts[i].gone = !good;
    }
    for (int i = 0; i < hosts && good; i++)
        good = order(w, &w->hosts[i]);
    if (good && !run_relay_start(w->relay, &w->done_fd)) {
        run_say("no thread to copy the output with");
        good = false;
    }
    return good;
}

static void close_work(work_t *w)
{
    for (int i = 0; w->hosts != NULL && i < w->options.host_count; i++) {
        if (w->hosts[i].news >= 0)
            close(w->hosts[i].news);
        free(w->hosts[i].in.text);
        free(w->hosts[i].out.text);
    }
    free(w->verdict.ranks);
    free(w->hosts);
    free(w->polls);
    run_relay_free(w->relay);
    if (w->done_fd >= 0)
        close(w->done_fd);
    w->site.begun = true;
}

/* ---- once, and again on the hosts that are left ---- */

/* A host is lost, all ranks have ended with it, and none by its own decision. */
static bool may_go_on(const work_t *w)
{
    bool lost = false;

    for (int i = 0; i < w->options.host_count; i++)
        lost |= w->hosts[i].lost;
    return lost && !w->blind && w->verdict.signals == 0 && !w->verdict.decided &&
           w->verdict.respawned < w->options.respawn &&
           (w->started ? all_over(w) : w->site.begun && w->verdict.code == 0);
}

/* The exit status; *again_out: it is not the end. */
static int run_once(work_t *w, bool *again_out)
{
    *again_out = false;
    if (open_work(w))
        watch_hosts(w);
    else
        w->failed = true;
    if (w->hosts != NULL && w->polls != NULL) {
        *again_out = may_go_on(w);
        leave(w);
    }
    run_verdict_decide(&w->verdict);
    if ((w->failed || w->blind) && w->verdict.code == 0)
        w->verdict.code = 1;
    for (int i = 0; w->hosts != NULL && i < w->options.host_count; i++)
        if (!w->hosts[i].done && w->hosts[i].pid > 0)
            (void)kill(-w->hosts[i].pid, SIGKILL);
    *again_out = run_await_relay(w->done_fd, w->signal_fd, w->life_fd) && *again_out && w->verdict.signals == 0;
    run_kill_descendants();
    w->lacks |= w->relay != NULL && run_relay_lacks(w->relay);
    return w->verdict.code == 0 && w->lacks ? 1 : w->verdict.code;
}

/* The hosts that are left, with one restart less. false: there is none. */
static bool leave_lost(work_t *w, char **hosts)
{
    const int respawn = w->options.respawn - w->verdict.respawned - 1;
    int left = 0;

    for (int i = 0; i < w->options.host_count; i++)
        if (!w->hosts[i].lost)
            hosts[left++] = w->options.hosts[i];
    if (left == 0)
        return false;
    if (w->hosts[0].lost)
        w->options.address = NULL; /* that of another host */
    w->options.hosts = hosts;
    w->options.host_count = left;
    w->options.respawn = respawn;
    run_say("all %d ranks are started again on the %d host%s left (%d restart%s left)", w->options.ranks, left,
            left == 1 ? "" : "s", respawn, respawn == 1 ? "" : "s");
    return true;
}

int run_hosts(const run_options_t *options, int life_fd)
{
    work_t w = {.options = *options, .signal_fd = run_signal_fd(), .life_fd = life_fd};
    char **hosts = calloc((size_t)options->host_count, sizeof(*hosts));
    bool again = hosts != NULL && w.signal_fd >= 0;
    int code = 1;

    sigprocmask(SIG_SETMASK, NULL, &w.old_mask);
    for (int i = 0; i < run_signal_count; i++)
        sigdelset(&w.old_mask, run_signals[i]);
    sigdelset(&w.old_mask, SIGCHLD);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTTOU, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    while (again && run_site_name(&w.site)) {
        code = run_once(&w, &again);
        again = again && leave_lost(&w, hosts);
        if (again) /* else the relay may still be copying, and we end */
            close_work(&w);
    }
    free(hosts);
    return code;
}
