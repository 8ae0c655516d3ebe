/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_run.c: `dualpipe run`: starts the ranks of a job on this host. */
#include "commands.h"
#include "tools/run/run_job.h"

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

static const char help[] =
    "usage: dualpipe run -n N [OPTIONS] [--] PROGRAM [ARGUMENTS]\n"
    "\n"
    "Starts PROGRAM N times on this host, as ranks 0 to N-1 of one job, and waits for all of them.\n"
    "\n"
    "  -n, --ranks N    how many ranks (1 to 4096)\n"
    "      --no-prefix  let the ranks write to the terminal themselves; otherwise every line that a rank "
    "prints\n"
    "                   is passed on whole, with its rank in front: \"[2] step 10 loss 5.31\"\n"
    "      --prefix     the opposite, and the default\n"
    "      --grace S    after the first failure the other ranks get S seconds to end themselves (5), then "
    "SIGKILL\n"
    "  -h, --help       show this\n"
    "\n"
    "A rank finds itself by its environment: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, "
    "MASTER_PORT\n"
    "(as with torchrun), and DUALPIPE_* for the library: dp_group_join(NULL, &group) needs nothing else. The "
    "ranks meet on\n"
    "loopback and prove to each other that they were started by the same command. Standard input is empty.\n"
    "OMP_NUM_THREADS, when not set, becomes the number of cores divided by N.\n"
    "\n"
    "SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGQUIT are passed on to all ranks, which then get 5 times the "
    "grace; a second one\n"
    "kills. Whatever ends the job, no process is left, also none that a rank has started; that holds for a\n"
    "SIGKILL of this command too.\n"
    "\n"
    "Exit status: 0 when all ranks return 0; else that of the first rank that failed, 128 + n when signal n "
    "ended it, and one\n"
    "line on standard error says which. 127: PROGRAM was not found, 126: it cannot be executed, 2: wrong "
    "usage.\n"
    "\n"
    "Examples:\n"
    "  dualpipe run -n 4 -- ./trainer --steps 100\n"
    "  dualpipe run -n 2 -- sh -c 'echo I am rank $RANK of $WORLD_SIZE'\n";

static int wrong_usage(const char *fmt, const char *argument)
{
    fprintf(stderr, "dualpipe run: ");
    fprintf(stderr, fmt, argument);
    fprintf(stderr, "; dualpipe run --help explains\n");
    return CMD_USAGE;
}

static bool read_ranks(const char *text, int *ranks_out)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    *ranks_out = (int)value;
    return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0 && value >= 1 && value <= MAX_RANKS;
}

static bool read_seconds(const char *text, double *seconds_out)
{
    char *end;

    errno = 0;
    *seconds_out = strtod(text, &end);
    return end != text && *end == '\0' && errno == 0 && *seconds_out >= 0 && *seconds_out <= 1e6;
}

/* -1: go on; else an exit code. */
static int read_options(int argc, char **argv, run_options_t *options)
{
    static const struct option names[] = {
        {"ranks", required_argument, NULL, 'n'}, {"prefix", no_argument, NULL, 'p'},
        {"no-prefix", no_argument, NULL, 'P'},   {"grace", required_argument, NULL, 'g'},
        {"help", no_argument, NULL, 'h'},        {NULL, 0, NULL, 0}};
    int c;

    *options = (run_options_t){.prefix = true, .grace_seconds = 5};
    opterr = 0;
    optind = 0; /* a scan of its own: the words of the program's are not ours */
    while ((c = getopt_long(argc, argv, "+:n:h", names, NULL)) != -1)
        switch (c) {
        case 'n':
            if (!read_ranks(optarg, &options->ranks))
                return wrong_usage("-n %s: a number from 1 to 4096 was expected", optarg);
            break;
        case 'p':
            options->prefix = true;
            break;
        case 'P':
            options->prefix = false;
            break;
        case 'g':
            if (!read_seconds(optarg, &options->grace_seconds))
                return wrong_usage("--grace %s: a number of seconds was expected", optarg);
            break;
        case 'h':
            fputs(help, stdout);
            return CMD_OK;
        case ':':
            return wrong_usage("%s needs a value", argv[optind - 1]);
        default:
            return wrong_usage("there is no option %s", argv[optind - 1]);
        }
    if (options->ranks == 0)
        return wrong_usage("%s is missing", "-n N");
    if (optind == argc)
        return wrong_usage("%s is missing", "the program");
    options->program = argv + optind;
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

/* Waits for the keeper and passes signals on to it. Returns the exit code. */
static int attend(pid_t keeper, int signal_fd)
{
    for (;;) {
        struct signalfd_siginfo info;
        int status;

        if (read(signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
            continue;
        if (info.ssi_signo != SIGCHLD) {
            (void)kill(keeper, (int)info.ssi_signo);
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
        _exit(run_job(options, life[0]));
    }
    close(life[0]);
    return attend(keeper, signal_fd);
}

int cmd_run(int argc, char **argv)
{
    run_options_t options;
    int code = read_options(argc, argv, &options);

    fflush(NULL);
    return code >= 0 ? code : start_keeper(&options);
}
