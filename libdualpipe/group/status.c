/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * status.c: rank 0 answers `dualpipe status`: a socket without a file, "@dualpipe-<uid>-<pid>",
 * on which a user hears what each rank of his job is doing. They are asked as for a hang
 * report, and the job goes on meanwhile. */
#include "base/memory.h"
#include "group/process.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { RANK_BYTES = 640, MOST_BYTES = 128 * 1024 }; /* a socket takes that much without waiting */

static bool tell_address(struct sockaddr_un *address, socklen_t *bytes_out)
{
    const int n = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "dualpipe-%u-%d", (unsigned)geteuid(),
                           (int)getpid());

    address->sun_family = AF_UNIX;
    address->sun_path[0] = '\0'; /* no file */
    *bytes_out = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    return n > 0;
}

/* A job that cannot be asked is none the worse. */
void dp__status_open(dp__process_t *p)
{
    struct sockaddr_un address = {0};
    socklen_t bytes;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 && (!tell_address(&address, &bytes) || bind(fd, (struct sockaddr *)&address, bytes) != 0 ||
                    listen(fd, DP__ASKERS) != 0)) {
        close(fd);
        fd = -1;
    }
    if (fd < 0)
        dp_log(DP_LOG_INFO, "group", "dualpipe status cannot ask this job: %s", strerror(errno));
    p->hub.status.listener = fd;
}

static void drop(dp__process_t *p)
{
    for (int i = 0; i < p->hub.status.count; i++)
        close(p->hub.status.askers[i]);
    p->hub.status.count = 0;
}

void dp__status_close(dp__process_t *p)
{
    drop(p);
    if (p->hub.status.listener >= 0)
        close(p->hub.status.listener);
    p->hub.status.listener = -1;
}

static bool may_ask(int fd)
{
    struct ucred who;
    socklen_t bytes = sizeof(who);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && (who.uid == geteuid() || who.uid == 0);
}

void dp__status_accept(dp__process_t *p)
{
    const int fd = accept4(p->hub.status.listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0) {
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            dp__status_close(p); /* it would be readable all the time */
        return;
    }
    if (p->hub.status.count == DP__ASKERS || !may_ask(fd) || !dp__hang_report_ask(p)) {
        close(fd);
        return;
    }
    p->hub.status.askers[p->hub.status.count++] = fd;
}

/* ---- the answer ---- */

static double milliseconds(uint64_t ns)
{
    return (double)ns * 1e-6;
}

/* Who computes longest in a step, and how much longer than the mean; -1: nobody is known to
 * compute. */
static int32_t find_longest(const dp__process_t *p, double *times_out)
{
    int32_t worst = -1, n = 0;
    double sum = 0;

    for (int32_t r = 0; r < p->group.size; r++) {
        const dp__progress_t *at = &p->hub.hang_report.answers[r].progress;

        n += at->busy_ns > 0;
        sum += (double)at->busy_ns;
        if (at->busy_ns > 0 && (worst < 0 || at->busy_ns > p->hub.hang_report.answers[worst].progress.busy_ns))
            worst = r;
    }
    *times_out = worst < 0 ? 0 : (double)p->hub.hang_report.answers[worst].progress.busy_ns * n / sum;
    return worst;
}

void dp__straggler_find(dp__process_t *p, dp_straggler_t *found)
{
    const dp__straggler_t now = dp__pace_straggler(p->hub.paces, p->group.size, p->hub.straggler - 1);

    p->hub.straggler = now.rank + 1;
    if (now.rank < 0)
        return;
    found->rank = now.rank;
    found->times = now.times;
    dp__peer_name(p, now.rank, found->name, sizeof(found->name));
}

static size_t write_job(dp__process_t *p, char *text, size_t bytes)
{
    const dp__progress_t *first = &p->hub.hang_report.answers[0].progress;
    dp_straggler_t straggler = {.rank = -1};
    double times, resident = 0;
    const int32_t longest = find_longest(p, &times);
    int n;

    for (int32_t r = 0; r < p->group.size; r++)
        resident += (double)p->hub.hang_report.answers[r].progress.resident_bytes;
    n = snprintf(text, bytes, "job of %d rank%s, hosts: %d: %llu steps, the latest took %.1f ms; %.1f MiB resident\n",
                 p->group.size, p->group.size == 1 ? "" : "s", p->machines.count, (unsigned long long)first->steps,
                 milliseconds(first->step_ns), resident / (1 << 20));
    if (longest >= 0)
        n += snprintf(text + n, bytes - (size_t)n, "rank %d computes longest: %.1f ms of it, %.2f times the mean\n",
                      longest, milliseconds(p->hub.hang_report.answers[longest].progress.busy_ns), times);
    dp__straggler_find(p, &straggler);
    if (straggler.rank >= 0)
        n += snprintf(text + n, bytes - (size_t)n,
                      "%s takes %.2f times as long as its peers for the same work, in the latest %d steps\n",
                      straggler.name, straggler.times, DP__PACE_STEPS);
    return (size_t)n;
}

static size_t write_rank(dp__process_t *p, int32_t rank, char *text, size_t bytes)
{
    const dp__answer_t *a = &p->hub.hang_report.answers[rank];
    char name[128], doing[400];
    int n;

    dp__peer_name(p, rank, name, sizeof(name));
    dp__hang_report_describe(p, rank, doing, sizeof(doing));
    n = a->came ? snprintf(text, bytes, "%s: %llu steps, %.1f ms, computes %.1f ms, %.1f MiB; %s\n", name,
                           (unsigned long long)a->progress.steps, milliseconds(a->progress.step_ns),
                           milliseconds(a->progress.busy_ns), (double)a->progress.resident_bytes / (1 << 20), doing)
                : snprintf(text, bytes, "%s: %s\n", name, doing);
    return n < (int)bytes ? (size_t)n : bytes - 1;
}

void dp__status_answer(dp__process_t *p)
{
    char *text = p->hub.status.count > 0 ? dp__allocate(MOST_BYTES, 16) : NULL;
    size_t used = 0;
    int32_t r = 0;

    if (text != NULL)
        used = write_job(p, text, MOST_BYTES);
    for (; text != NULL && r < p->group.size && used + 2 * RANK_BYTES < MOST_BYTES; r++)
        used += write_rank(p, r, text + used, RANK_BYTES);
    if (text != NULL && r < p->group.size)
        used += (size_t)snprintf(text + used, RANK_BYTES, "and %d ranks more, from %d on\n", p->group.size - r, r);
    for (int i = 0; i < p->hub.status.count; i++)
        (void)send(p->hub.status.askers[i], text, used, MSG_NOSIGNAL | MSG_DONTWAIT);
    drop(p);
    dp__free(text);
}
