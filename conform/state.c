/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * state.c: what calls of a plugin leave as it was: of the thread that makes them, and of the
 * process. */
#include "conform.h"

#include <fenv.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

enum { SIGNALS = 64 };

typedef struct process_state {
    struct sigaction actions[SIGNALS + 1];
    char umask[32], folder[4096];
    dev_t devices[3]; /* of descriptors 0 to 2 */
    ino_t inodes[3];
} process_state_t;

/* Before the plugin of this trial was loaded. */
static process_state_t process;
static char **environment;

/* ---- threads ---- */

/* Rounding, flush-to-zero and traps, without the flags that computing raises. */
static uint32_t float_control(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_stmxcsr() & ~UINT32_C(0x3f);
#elif defined(__aarch64__)
    uint64_t control;

    __asm__("mrs %0, fpcr" : "=r"(control));
    return (uint32_t)control;
#else
    return 0;
#endif
}

void conform_thread_look(conform_thread_t *out)
{
    out->rounding = fegetround();
    out->control = float_control();
    pthread_sigmask(SIG_BLOCK, NULL, &out->mask);
}

static int first_other_signal(const sigset_t *a, const sigset_t *b)
{
    for (int s = 1; s <= SIGNALS; s++)
        if (sigismember(a, s) != sigismember(b, s))
            return s;
    return 0;
}

const char *conform_thread_other(const conform_thread_t *before, const conform_thread_t *now)
{
    if (now->rounding != before->rounding)
        return "in another rounding mode";
    if (now->control != before->control)
        return "with other floating-point settings (flush to zero, traps)";
    return first_other_signal(&before->mask, &now->mask) != 0 ? "with another signal mask" : NULL;
}

bool conform_thread_kept(conform_t *t, const char *file, int line, const char *call)
{
    conform_thread_t now;
    const char *other;

    conform_thread_look(&now);
    other = conform_thread_other(&t->thread, &now);
    if (other != NULL)
        conform_fail(t, file, line, "%.*s left the thread that called it %s: a call leaves that as it was",
                     (int)strcspn(call, "("), call, other);
    return other == NULL;
}

/* ---- the process ---- */

static void look_at_umask(char *out, size_t bytes)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];

    out[0] = '\0';
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, "Umask:", 6) == 0)
            snprintf(out, bytes, "%.*s", (int)strcspn(line + 7, "\n"), line + 7);
    if (file != NULL)
        fclose(file);
}

/* But for the variables of the library and its tests, which change while a job begins. */
static void keep_environment(void)
{
    size_t n = 0;

    while (environ != NULL && environ[n] != NULL)
        n++;
    environment = calloc(n + 1, sizeof(*environment));
    for (size_t i = 0; environment != NULL && i < n; i++)
        if ((environment[i] = strdup(environ[i])) == NULL)
            conform_no_memory();
    if (environment == NULL)
        conform_no_memory();
}

/* Drivers have variables that only their first call reads: those may be set where they were not. */
static void check_environment(conform_t *t)
{
    for (char **entry = environment; entry != NULL && *entry != NULL; entry++) {
        const size_t length = strcspn(*entry, "=");
        char name[256];
        const char *now;

        if (length >= sizeof(name) || strncmp(*entry, "DUALPIPE_", 9) == 0 || strncmp(*entry, "DP_", 3) == 0)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)length, *entry);
        now = getenv(name);
        EXPECT(t, now != NULL && strcmp(now, *entry + length + ((*entry)[length] == '=')) == 0,
               "the plugin changed the environment's variable %s", name);
    }
}

static void look_at_process(process_state_t *out)
{
    memset(out, 0, sizeof(*out));
    for (int s = 1; s <= SIGNALS; s++)
        (void)sigaction(s, NULL, &out->actions[s]); /* some are libc's: they stay zero */
    look_at_umask(out->umask, sizeof(out->umask));
    if (getcwd(out->folder, sizeof(out->folder)) == NULL)
        out->folder[0] = '\0';
    for (int fd = 0; fd < 3; fd++) {
        struct stat st;

        if (fstat(fd, &st) == 0) {
            out->devices[fd] = st.st_dev;
            out->inodes[fd] = st.st_ino;
        }
    }
}

void conform_process_begin(void)
{
    look_at_process(&process);
    keep_environment();
}

void conform_process_check(conform_t *t, bool launched)
{
    process_state_t *now = malloc(sizeof(*now));

    if (now == NULL)
        conform_no_memory();
    look_at_process(now);
    for (int s = 1; s <= SIGNALS; s++)
        EXPECT(t, now->actions[s].sa_handler == process.actions[s].sa_handler,
               "the plugin left another handler for signal %d (%s): it installs none, and restores those that a "
               "library of its installs",
               s, strsignal(s));
    EXPECT(t, strcmp(now->umask, process.umask) == 0, "the plugin left umask %s, it was %s", now->umask, process.umask);
    EXPECT(t, strcmp(now->folder, process.folder) == 0, "the plugin left the process in folder %s, it was in %s",
           now->folder, process.folder);
    if (!launched) /* its runtime has variables, and changes them */
        check_environment(t);
    for (int fd = 0; fd < 3; fd++)
        EXPECT(t, now->devices[fd] == process.devices[fd] && now->inodes[fd] == process.inodes[fd],
               "the plugin left another file at descriptor %d, or none", fd);
    free(now);
}
