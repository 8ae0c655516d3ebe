/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_agent.c: the keeper of `dualpipe run --agent`: starts and ends ranks of this host for a
 * `dualpipe run` elsewhere. */
#include "run_job.h"
#include "run_site.h"
#include "run_status.h"
#include "run_talk.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

typedef struct agent {
    run_site_t site;
    talk_in_t in;
    talk_out_t out;
    char **arguments; /* [argument_count + 1] */
    int argument_count;
    bool prefix, started, over; /* over: there is nothing more to do */
    /* a rank may be started again, also when all have ended */
    bool open;
    /* status_fd: rank 0 is being asked; -1: it is not */
    int signal_fd, life_fd, done_fd, status_fd;
    talk_in_t status;
    bool answered;
    int64_t heard_ns, spoke_ns;
    char hint[64]; /* what the host's name means elsewhere */
} agent_t;

static void tell_launcher(agent_t *a, const char *word, const char *argument)
{
    talk_put(&a->out, TALK_MARK, word, argument);
    talk_flush(&a->out, STDERR_FILENO);
}

/* ---- where rank 0 listens ---- */

static bool is_for_others(const struct sockaddr *address)
{
    if (address == NULL)
        return false;
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 != 127;
    return address->sa_family == AF_INET6 &&
           !IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr) &&
           !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static bool write_address(const struct sockaddr *address, char text[64])
{
    socklen_t bytes = address->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

    return getnameinfo(address, bytes, text, 64, NULL, 0, NI_NUMERICHOST) == 0;
}

/* The address that the ssh client has come to. */
static bool address_of_ssh(char text[64])
{
    const char *connection = getenv("SSH_CONNECTION");

    return connection != NULL && sscanf(connection, "%*s %*s %63s", text) == 1 && strncmp(text, "127.", 4) != 0 &&
           strcmp(text, "::1") != 0;
}

/* The one that the host's name means elsewhere, if it is one of ours; else the first that is no
 * loopback, one of IPv4 if there is any; loopback when there is no other. */
static void address_of_interfaces(const char *hint, char text[64])
{
    struct ifaddrs *all = NULL;
    bool found = false;

    if (getifaddrs(&all) != 0)
        all = NULL;
    for (struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next)
        found = is_for_others(i->ifa_addr) && write_address(i->ifa_addr, text) && strcmp(text, hint) == 0;
    for (int family = 0; family < 2 && !found; family++)
        for (struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next)
            if ((i->ifa_flags & IFF_UP) != 0 && is_for_others(i->ifa_addr) &&
                i->ifa_addr->sa_family == (family == 0 ? AF_INET : AF_INET6))
                found = write_address(i->ifa_addr, text);
    if (!found)
        strcpy(text, "127.0.0.1");
    freeifaddrs(all);
}

/* A name is looked up here, and what it means here is told to all others as a number: they may know
 * it otherwise. */
static bool look_up(const char *name, char text[64])
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    bool good = getaddrinfo(name, NULL, &hints, &found) == 0 && write_address(found->ai_addr, text);

    if (found != NULL)
        freeaddrinfo(found);
    return good;
}

static bool listen_for_all(agent_t *a)
{
    char text[80], name[64];

    snprintf(name, sizeof(name), "%s", a->site.address);
    if (name[0] == '\0' && !address_of_ssh(a->site.address))
        address_of_interfaces(a->hint, a->site.address);
    if (name[0] != '\0' && !look_up(name, a->site.address)) {
        run_say("--address %s is not known", name);
        return false;
    }
    if (!run_site_listen(&a->site))
        return false;
    snprintf(text, sizeof(text), "%s %d", a->site.address, a->site.port);
    tell_launcher(a, "listening", text);
    return true;
}

/* ---- the order ---- */

static bool keep_argument(agent_t *a, const char *text)
{
    char **moved = realloc(a->arguments, ((size_t)a->argument_count + 2) * sizeof(*moved));

    if (moved == NULL)
        return false;
    a->arguments = moved;
    moved[a->argument_count++] = strdup(text);
    moved[a->argument_count] = NULL;
    return moved[a->argument_count - 1] != NULL;
}

static bool keep_variable(const char *text)
{
    char *variable = strdup(text);

    if (variable != NULL && putenv(variable) == 0)
        return true;
    run_say("no memory for a variable of the ranks");
    return false;
}

static bool read_secret(agent_t *a, const char *text)
{
    for (int i = 0; i < RUN_SECRET_BYTES; i++)
        if (sscanf(text + 2 * i, "%2hhx", &a->site.secret[i]) != 1)
            return false;
    return true;
}

static bool go_to(const char *folder)
{
    if (chdir(folder) == 0)
        return true;
    run_say("there is no folder %s: %s; --wdir takes one that all hosts have", folder, strerror(errno));
    return false;
}

static bool start_ranks(agent_t *a, const char *where)
{
    run_relay_t *relay;
    char number[16];
    int error = 0;

    if (a->site.count < 1 || a->argument_count == 0 || sscanf(where, "%63s %d", a->site.address, &a->site.port) != 2) {
        run_say("the order is not whole");
        return false;
    }
    a->site.program = a->arguments;
    relay = run_site_relay(&a->site, RUN_RELAY_TAG);
    if (relay != NULL && !a->prefix)
        run_relay_prefix(relay, false);
    if (!run_site_open(&a->site, relay))
        return false;
    if (!run_site_start(&a->site, &error)) {
        snprintf(number, sizeof(number), "%d", error);
        if (error != 0)
            tell_launcher(a, "nothing", number);
        return false;
    }
    a->started = run_relay_start(relay, &a->done_fd);
    if (!a->started)
        run_say("no thread to copy the output with");
    a->open = a->started && a->site.respawn > 0;
    return a->started;
}

/* One that cannot be has ended as it did before; one that has no program ends once more, as a
 * process. */
static void start_again(agent_t *a, const char *end)
{
    int rank = atoi(end), i = rank - a->site.first;
    char text[96];

    if (!a->open || i < 0 || i >= a->site.count || a->site.pids[i] != 0)
        return;
    if (run_site_start_again(&a->site, i)) {
        snprintf(text, sizeof(text), "%.64s %d", end, (int)a->site.pids[i]);
        tell_launcher(a, "again", text);
    } else if (a->site.pids[i] == 0) {
        tell_launcher(a, "end", end);
    }
}

static void close_site(agent_t *a)
{
    if (a->open)
        run_site_close(&a->site);
    a->open = false;
}

/* Rank 0 may be stopped, and answers nobody for seconds: a child asks it. */
static void ask_status(agent_t *a)
{
    pid_t agent = getpid(), child;
    int ends[2];

    if (a->status_fd >= 0 || pipe2(ends, O_CLOEXEC) != 0)
        return;
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    child = fork();
    if (child == 0) {
        FILE *to = fdopen(ends[1], "w");

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (to != NULL && getppid() == agent && run_status(agent, to) > 0)
            (void)fclose(to);
        _exit(0);
    }
    close(ends[1]);
    a->status_fd = ends[0];
    a->answered = false;
}

static void pass_status(agent_t *a)
{
    int came = talk_read(&a->status, a->status_fd);

    for (char *line; (line = talk_line(&a->status)) != NULL; a->answered = true)
        tell_launcher(a, "status", line);
    if (came >= 0)
        return;
    if (!a->answered)
        run_say(RUN_STATUS_NONE);
    close(a->status_fd);
    a->status_fd = -1;
}

/* false: the order cannot be kept. */
static bool obey(agent_t *a, const char *word, const char *argument)
{
    int rank, pid;

    if (strcmp(word, "name") == 0)
        snprintf(a->site.name, sizeof(a->site.name), "%s", argument);
    else if (strcmp(word, "secret") == 0)
        return read_secret(a, argument);
    else if (strcmp(word, "first") == 0)
        a->site.first = atoi(argument);
    else if (strcmp(word, "count") == 0)
        a->site.count = atoi(argument);
    else if (strcmp(word, "world") == 0)
        a->site.world = atoi(argument);
    else if (strcmp(word, "address") == 0)
        snprintf(a->site.address, sizeof(a->site.address), "%s", argument);
    else if (strcmp(word, "hint") == 0)
        snprintf(a->hint, sizeof(a->hint), "%s", argument);
    else if (strcmp(word, "respawn") == 0)
        a->site.respawn = atoi(argument);
    else if (strcmp(word, "begun") == 0)
        a->site.begun = argument[0] == '1';
    else if (strcmp(word, "prefix") == 0)
        a->prefix = argument[0] == '1';
    else if (strcmp(word, "wdir") == 0)
        return go_to(argument);
    else if (strcmp(word, "env") == 0)
        return keep_variable(argument);
    else if (strcmp(word, "arg") == 0)
        return keep_argument(a, argument);
    else if (strcmp(word, "listen") == 0)
        return listen_for_all(a);
    else if (strcmp(word, "ordered") == 0)
        tell_launcher(a, "ready", "");
    else if (strcmp(word, "go") == 0)
        return start_ranks(a, argument);
    else if (strcmp(word, "again") == 0)
        start_again(a, argument);
    else if (strcmp(word, "hung") == 0 && sscanf(argument, "%d %d", &rank, &pid) == 2)
        run_site_kill_rank(&a->site, rank, pid);
    else if (strcmp(word, "close") == 0)
        close_site(a);
    else if (strcmp(word, "ended") == 0 && a->started)
        run_site_tell_end(&a->site, argument);
    else if (strcmp(word, "status") == 0)
        ask_status(a);
    else if (strcmp(word, "signal") == 0)
        run_site_kill(&a->site, atoi(argument));
    else if (strcmp(word, "kill") == 0)
        run_site_kill(&a->site, SIGKILL);
    return true;
}

static void hear_launcher(agent_t *a)
{
    int came = talk_read(&a->in, STDIN_FILENO);
    char *line;

    if (came > 0)
        a->heard_ns = run_now_ns();
    while (came >= 0 && (line = talk_line(&a->in)) != NULL) {
        char *argument = talk_split(line);

        if (!obey(a, line, argument))
            a->over = true;
    }
    if (came < 0)
        a->over = true; /* the connection has ended, and with it the job here */
}

/* ---- while they run ---- */

static void take_ends(agent_t *a)
{
    siginfo_t info;
    char text[512];

    while (run_site_hear(&a->site, text, sizeof(text)))
        tell_launcher(a, "told", text);
    for (int i = 0; a->started && i < a->site.count; i++)
        if (run_site_reap(&a->site, i, &info)) {
            snprintf(text, sizeof(text), "%d %d %d %d", a->site.first + i, (int)info.si_pid, info.si_code,
                     info.si_status);
            tell_launcher(a, "end", text);
        }
    if (a->started)
        run_site_reap_orphans(&a->site);
}

/* A signal to the agent goes to its ranks. false: there are no signals any more. */
static bool heed_signals(agent_t *a)
{
    int number;

    while ((number = run_passed_signal(a->signal_fd)) > 0)
        if (number != SIGCHLD)
            run_site_kill(&a->site, number);
    return number == 0;
}

static void say_alive(agent_t *a)
{
    int64_t now = run_now_ns();

    if (now - a->spoke_ns < TALK_ALIVE_NS)
        return;
    a->spoke_ns = now;
    tell_launcher(a, "alive", "");
}

static void watch_site(agent_t *a)
{
    struct pollfd polls[5] = {{.fd = a->signal_fd, .events = POLLIN},
                              {.fd = a->life_fd, .events = POLLIN},
                              {.fd = STDIN_FILENO, .events = POLLIN},
                              {.events = POLLIN},
                              {.events = POLLIN}};

    while (!a->over && !a->out.broken && (!a->started || a->open || a->site.running > 0)) {
        bool well;

        polls[3].fd = a->status_fd;
        polls[4].fd = a->site.tell[0];
        well = run_poll(polls, 5, 500) && heed_signals(a);
        take_ends(a);
        if (!well || polls[1].revents != 0)
            return;
        if (polls[2].revents != 0)
            hear_launcher(a);
        if (polls[3].revents != 0)
            pass_status(a);
        say_alive(a);
        if (run_now_ns() - a->heard_ns >= TALK_SILENCE_NS)
            return;
    }
}

/* What the ranks have printed last may still be on its way to someone who reads slowly. */
static void await_relay(agent_t *a)
{
    struct pollfd polls[3] = {{.fd = a->done_fd, .events = POLLIN},
                              {.fd = a->life_fd, .events = POLLIN},
                              {.fd = STDIN_FILENO, .events = POLLIN}};
    int came = 0;

    while (came >= 0 && run_now_ns() - a->heard_ns < TALK_SILENCE_NS) {
        if (!run_poll(polls, 3, 500) || polls[0].revents != 0 || polls[1].revents != 0)
            return;
        came = polls[2].revents != 0 ? talk_read(&a->in, STDIN_FILENO) : 0;
        if (came > 0)
            a->heard_ns = run_now_ns();
        say_alive(a);
    }
}

int run_agent(int life_fd)
{
    agent_t a = {.site = {.listener = -1, .tell = {-1, -1}, .pipes = true, .world = 1},
                 .done_fd = -1,
                 .status_fd = -1,
                 .life_fd = life_fd,
                 .signal_fd = run_signal_fd(),
                 .heard_ns = run_now_ns()};
    bool well;

    if (a.signal_fd < 0)
        return 1;
    run_say_as(TALK_MARK "says ");
    (void)fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
    watch_site(&a);
    well = a.started && a.site.running == 0;
    run_site_kill(&a.site, SIGKILL);
    run_kill_descendants();
    close_site(&a);
    tell_launcher(&a, "done", "");
    if (well)
        await_relay(&a);
    tell_launcher(&a, "flushed", "");
    return well ? 0 : 1;
}
