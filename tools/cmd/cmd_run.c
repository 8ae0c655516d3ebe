/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_run.c: `dualpipe run`: starts the ranks of a job, on this host or on several. */
#include "commands.h"
#include "tools/run/run_job.h"
#include "tools/run/run_status.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_RANKS 4096

static void free_hosts(run_options_t *options)
{
    free(options->hosts);
    free(options->host_names);
    options->hosts = NULL;
}

/* Names divided by commas, each once. One that begins with - would be an option of ssh. */
static bool split_hosts(const char *text, run_options_t *options)
{
    char *next;

    free_hosts(options);
    options->host_names = next = strdup(text);
    options->hosts = calloc(strlen(text) + 1, sizeof(*options->hosts));
    if (next == NULL || options->hosts == NULL)
        return false;
    options->host_count = 0;
    for (char *name; (name = strsep(&next, ",")) != NULL;) {
        if (name[0] == '\0' || name[0] == '-' || strlen(name) > 100)
            return false;
        for (int i = 0; i < options->host_count; i++)
            if (strcmp(options->hosts[i], name) == 0)
                return false;
        options->hosts[options->host_count++] = name;
    }
    return options->host_count <= MAX_RANKS;
}

static bool add_export(const char *text, run_options_t *options)
{
    const char **moved;

    if (text[0] == '\0' || text[0] == '=')
        return false;
    moved = realloc(options->exported, ((size_t)options->export_count + 1) * sizeof(*moved));
    if (moved == NULL)
        return false;
    options->exported = moved;
    moved[options->export_count++] = text;
    return true;
}

static int read_hosts(const command_t *command, const option_row_t *row, void *into, const char *value)
{
    (void)row;
    return split_hosts(value, into)
               ? CMD_OK
               : command_usage(command, "--hosts %s: names divided by commas were expected, each once", value);
}

static int read_export(const command_t *command, const option_row_t *row, void *into, const char *value)
{
    (void)row;
    return add_export(value, into) ? CMD_OK
                                   : command_usage(command, "--export %s: NAME or NAME=VALUE was expected", value);
}

static int read_prefix(const command_t *command, const option_row_t *row, void *into, const char *value)
{
    (void)command, (void)row, (void)value;
    ((run_options_t *)into)->prefix = RUN_PREFIX_ALWAYS;
    return CMD_OK;
}

static int read_no_prefix(const command_t *command, const option_row_t *row, void *into, const char *value)
{
    (void)command, (void)row, (void)value;
    ((run_options_t *)into)->prefix = RUN_PREFIX_NEVER;
    return CMD_OK;
}

static const option_row_t run_options[] = {
    {.name = "ranks",
     .value = "N",
     .kind = OPTION_INT32,
     .at = offsetof(run_options_t, ranks),
     .least = 1,
     .most = MAX_RANKS,
     .letter = 'n',
     .help = "how many ranks in all (1 to 4096)"},
    {.name = "prefix",
     .kind = OPTION_READ,
     .read = read_prefix,
     .help = "the rank in front of every line: \"[2] step 10 loss 5.31\"; the default with more than one rank"},
    {.name = "no-prefix",
     .kind = OPTION_READ,
     .read = read_no_prefix,
     .help = "let the ranks write to the terminal themselves; otherwise each of their lines is passed on whole"},
    {.name = "respawn",
     .value = "N",
     .kind = OPTION_INT32,
     .at = offsetof(run_options_t, respawn),
     .most = MAX_RANKS,
     .help =
         "start up to N ranks again that a signal has ended (a crash, a kill), each in the place of the one that died, for programs that recover from that (train_moe; recover.h) [0]; on the host where it died, at once or, without progress since it died before, after 0.1 to 10 s; when a host is lost, all ranks on the hosts left"},
    {.name = "verbose",
     .kind = OPTION_FLAG,
     .at = offsetof(run_options_t, verbose),
     .help =
         "rank 0 says which ranks are on which host and what they talk over (DUALPIPE_LOG=info, unless that is set)"},
    {.name = "grace",
     .value = "S",
     .kind = OPTION_REAL,
     .at = offsetof(run_options_t, grace_seconds),
     .most = 1e6,
     .help = "after the first failure the other ranks get S seconds to end themselves (5), then SIGKILL"},
    {.name = "hosts",
     .value = "A,B,...",
     .kind = OPTION_READ,
     .read = read_hosts,
     .help = "several hosts: the first gets ranks 0 to N-1, the next N to 2N-1, and so on; what follows is about them"},
    {.name = "ranks-per-host",
     .value = "N",
     .kind = OPTION_INT32,
     .at = offsetof(run_options_t, ranks_per_host),
     .least = 1,
     .most = MAX_RANKS,
     .help = "or -n with a multiple of the number of hosts"},
    {.name = "rsh",
     .value = "COMMAND",
     .kind = OPTION_TEXT,
     .at = offsetof(run_options_t, rsh),
     .help = "what reaches a host; it is given the host's name and a line for a shell there [ssh -o BatchMode=yes]"},
    {.name = "dualpipe-path",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .at = offsetof(run_options_t, dualpipe_path),
     .help = "this command there [the path that it has here]"},
    {.name = "address",
     .value = "ADDRESS",
     .kind = OPTION_TEXT,
     .at = offsetof(run_options_t, address),
     .help =
         "of the first host, for the others: where they meet [the one that ssh has come to, the one its name means, or that of its first interface]"},
    {.name = "wdir",
     .value = "DIR",
     .kind = OPTION_TEXT,
     .at = offsetof(run_options_t, wdir),
     .help = "where the ranks start [the folder that we are in, which has to be there as well]"},
    {.name = "export",
     .value = "NAME[=VALUE]",
     .kind = OPTION_READ,
     .read = read_export,
     .letter = 'x',
     .help = "a variable for the ranks; those named DUALPIPE_* and OMP_* come along anyway"},
    {.name = "agent",
     .kind = OPTION_FLAG,
     .at = offsetof(run_options_t, agent),
     .help = "what is started on each host: does what it is told on standard input"},
    {.kind = OPTION_END}};
static const option_row_t *const run_tables[] = {run_options, NULL};

const command_t command_run = {
    .name = "run",
    .usage =
        "usage: dualpipe run -n N [OPTIONS] [--] PROGRAM [ARGUMENTS]\n"
        "       dualpipe run --hosts A,B,... --ranks-per-host N [OPTIONS] [--] PROGRAM [ARGUMENTS]\n"
        "Starts PROGRAM N times on this host, or on each of several, as ranks 0, 1, ... of one job, and waits for all.\n"
        "\n",
    .tables = run_tables,
    .stops = true,
    .notes =
        "\n"
        "A rank finds itself by its environment: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (as with torchrun), and DUALPIPE_* for the library: dp_group_join(NULL, &group) needs nothing else. The ranks of one host meet on loopback; all prove to each other that they were started by the same command, by a secret that stands in no command line, environment or file. Standard input is empty. OMP_NUM_THREADS, when not set, becomes the number of cores divided by the ranks of the host.\n"
        "\n"
        "SIGINT (Ctrl-C), SIGTERM and SIGHUP are passed on to all ranks, and they are waited for: finishing a step and saving takes its time. A second one kills. Once a rank has failed behind a signal, the others get 5 times the grace. SIGQUIT (Ctrl-\\) prints what all ranks are at, as `dualpipe status` does. Whatever ends the job, no process is left, also none that a rank has started; that holds for a SIGKILL of this command too, and on all hosts, at the latest 15 s after the connection to one is cut.\n"
        "\n"
        "examples:\n"
        "  dualpipe run -n 4 -- ./trainer --steps 100\n"
        "  dualpipe run -n 2 -- sh -c 'echo I am rank $RANK of $WORLD_SIZE'\n"
        "  dualpipe run --hosts node1,node2 --ranks-per-host 4 -- ./trainer --steps 100\n"
        "  dualpipe run --hosts node1,node2 -n 2 --rsh 'ssh -p 2222 -l me' -x LD_LIBRARY_PATH -- ./trainer\n"
        "\n"
        "exit status: 0 when all ranks return 0; else that of the first rank that failed, 128 + n when signal n ended it, and one line on standard error says which. 127: PROGRAM was not found, 126: it cannot be executed, 2: wrong usage, 1: a host cannot be reached or was lost\n"};

/* How the ranks lie on the hosts. -1: well. */
static int place_ranks(run_options_t *options)
{
    if (options->hosts == NULL && (options->ranks_per_host != 0 || options->rsh != NULL || options->address != NULL ||
                                   options->wdir != NULL || options->export_count != 0))
        return command_usage(&command_run, "%s is missing, which the options for several hosts are about",
                             "--hosts A,B");
    if (options->hosts == NULL)
        return options->ranks != 0 ? -1 : command_usage(&command_run, "%s is missing", "-n N");
    if (options->ranks_per_host == 0 && options->ranks == 0)
        return command_usage(&command_run, "%s is missing", "--ranks-per-host N");
    if (options->ranks_per_host == 0 && options->ranks % options->host_count == 0)
        options->ranks_per_host = options->ranks / options->host_count;
    if (options->ranks == 0)
        options->ranks = options->ranks_per_host * options->host_count;
    if (options->ranks != options->ranks_per_host * options->host_count)
        return command_usage(&command_run, "%s: ranks in all, ranks per host and the number of hosts do not agree",
                             "-n");
    return options->ranks <= MAX_RANKS ? -1
                                       : command_usage(&command_run, "%s: more than 4096 ranks", "--ranks-per-host");
}

/* Where this command is, for other hosts. */
static const char *own_path(void)
{
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

    return n > 0 ? path : "dualpipe";
}

/* -1: go on; else an exit code. */
static int read_options(int argc, char **argv, run_options_t *options)
{
    int code;

    *options = (run_options_t){.grace_seconds = 5};
    if (!options_read(&command_run, NULL, argc, argv, options, &code))
        return code;
    if (options->agent)
        return -1;
    code = place_ranks(options);
    if (code >= 0)
        return code;
    if (optind == argc)
        return command_usage(&command_run, "the program is missing");
    options->program = argv + optind;
    if (options->rsh == NULL)
        options->rsh = "ssh -o BatchMode=yes";
    if (options->dualpipe_path == NULL)
        options->dualpipe_path = own_path();
    if (options->prefix == RUN_PREFIX_UNSAID)
        options->prefix = options->ranks > 1 ? RUN_PREFIX_ALWAYS : RUN_PREFIX_NEVER;
    return -1;
}

static void block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGCHLD);
    for (int i = 0; i < run_signal_count; i++)
        sigaddset(set, run_signals[i]);
    sigprocmask(SIG_BLOCK, set, NULL);
}

/* By a child: rank 0 may be stopped, and answers nobody for seconds. */
static void say_status(void)
{
    pid_t self = getpid();

    if (fork() != 0)
        return;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == self && run_status(self, stderr) == 0)
        run_say(RUN_STATUS_NONE);
    _exit(0);
}

/* Waits for the keeper and passes signals on to it. Over several hosts it asks the one where rank 0
 * lives. Returns the exit code. */
static int attend(pid_t keeper, int signal_fd, bool rank_0_is_here)
{
    for (;;) {
        int status, number = run_next_signal(signal_fd);

        if (number < 0) {
            run_kill_descendants();
            return CMD_FAILED;
        }
        if (number == SIGQUIT && rank_0_is_here) {
            say_status();
            continue;
        }
        if (number != SIGCHLD) {
            if (number > 0)
                (void)kill(keeper, number);
            continue;
        }
        if (waitpid(keeper, &status, WNOHANG) != keeper)
            continue;
        run_kill_descendants();
        if (!WIFSIGNALED(status))
            return WEXITSTATUS(status);
        run_say("the process that watches the ranks was ended by signal %d", WTERMSIG(status));
        return 128 + WTERMSIG(status);
    }
}

static int start_keeper(const run_options_t *options)
{
    int life[2], signal_fd;
    sigset_t set;
    pid_t keeper;

    block_signals(&set);
    signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
    if (signal_fd < 0 || pipe2(life, O_CLOEXEC) != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
        run_say("cannot start: %s", strerror(errno));
        return CMD_FAILED;
    }
    keeper = fork();
    if (keeper < 0) {
        run_say("no process to watch the ranks: %s", strerror(errno));
        return CMD_FAILED;
    }
    if (keeper == 0) {
        close(life[1]);
        close(signal_fd);
        (void)setpgid(0, 0); /* the terminal's Ctrl-C is for our parent, which passes it on once */
        _exit(options->agent           ? run_agent(life[0])
              : options->hosts != NULL ? run_hosts(options, life[0])
                                       : run_job(options, life[0]));
    }
    close(life[0]);
    return attend(keeper, signal_fd, options->hosts == NULL);
}

int cmd_run(int argc, char **argv)
{
    run_options_t options;
    int code = read_options(argc, argv, &options);

    fflush(NULL);
    if (code < 0 && options.verbose)
        (void)setenv("DUALPIPE_LOG", "info", 0);
    if (code < 0)
        code = start_keeper(&options);
    free_hosts(&options);
    free(options.exported);
    return code;
}
