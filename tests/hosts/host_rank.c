/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * host_rank.c: a rank for tests over several hosts: joins by its environment, then works in steps
 *   with the group alone. host_rank STEPS STEP_MS [SLOW_RANK SLOW_MS]
 * A step is an operation of STEP_MS (F of the stage with the rank's number) and a sum over all
 * ranks; SLOW_RANK does SLOW_MS more in its second step, in operations of STEP_MS. Prints "step N"
 * and at the end "sum X" with all bits, or why it did not come so far; exits with 13 when another
 * rank is to blame, else with 10. DP_TEST_JOIN and DP_TEST_HANG are the group's join_seconds and
 * hang_seconds. */
#include "group/spans.h"

#include <dualpipe/group.h>
#include <dualpipe/plugin.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static dp_group_t *group;
static dp_span_t *records;

static void on_signal(int number)
{
    (void)number;
    dp_group_interrupt(group);
}

static int complain(dp_status_t status)
{
    printf("%s\n", dp_last_error());
    fflush(stdout);
    dp_group_leave(group);
    return status == DP_ERR_PEER ? 13 : 10;
}

static double seconds_of(const char *name)
{
    const char *text = getenv(name);

    return text != NULL ? strtod(text, NULL) : 0;
}

static void operate(int32_t step, int32_t microbatch, int ms)
{
    const struct timespec nap = {ms / 1000, ms % 1000 * 1000000l};
    const dp_host_t *host = dp_group_host(group);

    records[0] = (dp_span_t){.start_ns = host->now_ns(host),
                             .step = step,
                             .microbatch = microbatch,
                             .chunk = -1,
                             .stage = (int16_t)dp_group_rank(group),
                             .segment = -1,
                             .kind = DP_SPAN_COMPUTE,
                             .pass = DP_OP_F};
    nanosleep(&nap, NULL);
    records[0].end_ns = host->now_ns(host);
}

static dp_status_t work(int32_t step, int ms, double *sum)
{
    double mine = 1.0 / (1 + dp_group_rank(group) + 7 * step), all[64];
    dp_status_t status;

    operate(step, 0, ms);
    status = dp_group_all_gather(group, &mine, sizeof(mine), all);
    for (int32_t r = 0; r < dp_group_size(group) && status == DP_OK; r++)
        *sum += all[r];
    return status;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = on_signal};
    dp_group_options_t options = {.struct_size = sizeof(options)};
    int32_t steps = argc > 2 ? atoi(argv[1]) : 1, slow = argc > 4 ? atoi(argv[3]) : -1;
    int ms = argc > 2 ? atoi(argv[2]) : 1, slow_ms = argc > 4 ? atoi(argv[4]) : 0;
    double sum = 0;
    dp_status_t status;

    options.join_seconds = seconds_of("DP_TEST_JOIN");
    options.hang_seconds = seconds_of("DP_TEST_HANG");
    status = dp_group_join(&options, &group);
    if (status != DP_OK)
        return complain(status);
    sigaction(SIGTERM, &action, NULL);
    status = dp__group_recorder(group, 1, &records);
    for (int32_t step = 0; step < steps && status == DP_OK; step++) {
        for (int done = 0; step == 1 && dp_group_rank(group) == slow && done < slow_ms; done += ms)
            operate(step, 1 + done / ms, ms);
        status = work(step, ms, &sum);
        if (status == DP_OK) {
            printf("step %d\n", step);
            fflush(stdout);
        }
    }
    if (status != DP_OK)
        return complain(status);
    printf("sum %a\n", sum);
    dp_group_leave(group);
    return 0;
}
