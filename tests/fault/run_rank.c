/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_rank.c: a rank for tests of `dualpipe run`: joins by its environment alone, then
 *   run_rank work          works with the others, leaves, exits with 0
 *   run_rank wait          waits until the job ends; SIGINT and SIGTERM interrupt it. Prints why;
 *                          exits with 10, or
 *   with
 *                          13 when another rank has died
 *   run_rank die RANK      as wait, but RANK kills itself
 *   run_rank exit RANK     as wait, but RANK exits with 3 */
#include <dualpipe/group.h>
#include <dualpipe/plugin.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "group/spans.h"
#include "tests/support/coverage.h"

static dp_group_t *group;

static void on_signal(int number)
{
    (void)number;
    dp_group_interrupt(group);
}

static int complain(dp_status_t status)
{
    printf("%s\n", dp_last_error());
    return status == DP_ERR_PEER ? 13 : 10;
}

static int work(void)
{
    int32_t rank = dp_group_rank(group), sum = 0, all[64];
    dp_status_t status = dp_group_all_gather(group, &rank, sizeof(rank), all);

    if (status != DP_OK)
        return complain(status);
    for (int32_t r = 0; r < dp_group_size(group); r++)
        sum += all[r];
    printf("sum %d\n", sum);
    dp_group_leave(group);
    return 0;
}

static int wait_for_the_end(int chosen, const char *how)
{
    const dp_host_t *host = dp_group_host(group);
    const struct timespec nap = {0, 200000000};
    dp_signal_t never = {0, 0};
    dp_span_t *records;
    dp_status_t status = dp__group_recorder(group, 1, &records);
    int code;

    if (status != DP_OK)
        return complain(status);
    records[0] = (dp_span_t){.start_ns = 1,
                             .step = 3,
                             .microbatch = -1,
                             .chunk = -1,
                             .stage = 2,
                             .segment = -1,
                             .kind = DP_SPAN_COMPUTE,
                             .pass = DP_OP_W};
    status = dp_group_barrier(group);
    if (status != DP_OK)
        return complain(status);
    printf("ready\n");
    fflush(stdout);
    if (dp_group_rank(group) == chosen) {
        nanosleep(&nap, NULL);
        if (strcmp(how, "exit") == 0)
            return 3;
        coverage_keep();
        raise(SIGKILL);
    }
    code = complain(host->wait(host, &never, 1, INT64_MAX, "the end"));
    dp_group_leave(group);
    return code;
}

/* LeakSanitizer holds a process that ends by ptrace, and a signal of the launcher that comes then
 * leaves it held for good. The launcher's own leaks are looked for. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = on_signal};
    dp_status_t status;

    if (argc < 2)
        return 2;
    status = dp_group_join(NULL, &group);
    if (status != DP_OK)
        return complain(status);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return strcmp(argv[1], "work") == 0 ? work() : wait_for_the_end(argc > 2 ? atoi(argv[2]) : -1, argv[1]);
}
