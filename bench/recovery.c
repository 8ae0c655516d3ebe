/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * recovery.c: the sweep of deaths: DualPipe over 4 ranks, one or two of which die at every
 * operation of a step, in its commit and update, while they join, build and recover. For each kind:
 * how many were tried, how many jobs trained on, how many of them ended with losses, parameters and
 * optimizer of an undisturbed run to the last bit, and the longest time from the last death until
 * all ranks were ready to take the step again.
 *
 *     DUALPIPE_PLUGIN_PATH=.libs bench/recovery [STRIDE]     STRIDE: every so many operations of a
 *                                                            step (1: all)
 *
 * Exit status 1 when a job did not survive or ended with other bits. What a recovery costs beside a
 * step: recovery_cost.sh. */
#include "tests/support/recovering.h"

enum { KERNELS = 2 * LAYERS / R_RANKS * R_MICROBATCHES / 2 * 10 };

static const r_setting_t setting = {.method = "dualpipe", .dp = 1};

static int stride = 1;

typedef struct row {
    const char *what;
    int tried, survived, equal;
    double worst_ms;
} row_t;

static bool all_well(const forked_job_t *job)
{
    for (int r = 0; r < R_RANKS; r++)
        if (!job->results[r].finished || job->results[r].status != DP_OK)
            return false;
    return true;
}

static void run(r_shared_t *result, const r_death_t *deaths, int n, bool *well_out)
{
    int64_t end;
    forked_job_t job;

    r_start(&job, &setting, deaths, n, 30);
    for (end = forked_now_ns() + 30000000000; !all_well(&job) && forked_now_ns() < end;)
        forked_nap(1);
    *well_out = all_well(&job);
    for (int r = 0; r < R_RANKS; r++) {
        if (!*well_out)
            kill(job.pids[r], SIGKILL);
        if (job.waits[r] == -1)
            waitpid(job.pids[r], &job.waits[r], 0);
    }
    *result = *(const r_shared_t *)job.shared;
    forked_all_started(&job);
    forked_end(&job);
}

static void try_one(row_t *row, const r_shared_t *due, const r_death_t *deaths, int n)
{
    r_shared_t result;
    bool well;

    run(&result, deaths, n, &well);
    row->tried++;
    if (result.died != n) {
        printf("%s: %d of %d deaths came (rank %d)\n", row->what, result.died, n, deaths[0].rank);
        return;
    }
    row->survived += well;
    row->equal += well && memcmp(result.losses, due->losses, sizeof(due->losses)) == 0 &&
                  memcmp(result.digest, due->digest, sizeof(due->digest)) == 0;
    for (int r = 0; r < R_RANKS && well; r++)
        if ((double)(result.back_ns[r] - result.died_ns) / 1e6 > row->worst_ms)
            row->worst_ms = (double)(result.back_ns[r] - result.died_ns) / 1e6;
}

static bool print_row(const row_t *row)
{
    printf("%-46s %6d %9d %6d %8.0f ms\n", row->what, row->tried, row->survived, row->equal, row->worst_ms);
    fflush(stdout);
    return row->survived == row->tried && row->equal == row->tried;
}

static bool operations(const r_shared_t *due)
{
    row_t row = {.what = "killed in an operation of a step"};

    for (int32_t rank = 0; rank < R_RANKS; rank++)
        for (int k = rank % stride; k < KERNELS; k += stride)
            try_one(&row, due, &(r_death_t){rank, 1, R_AT_KERNEL, k % R_STEPS, k}, 1);
    return print_row(&row);
}

/* Every rank, at every step. */
static bool moments(const r_shared_t *due, const char *what, r_moment_t moment, int32_t ranks, int n)
{
    row_t row = {.what = what};

    for (int32_t rank = 0; rank < ranks; rank++)
        for (int32_t step = 0; step < R_STEPS; step++)
            for (int i = 0; i < n; i++)
                try_one(&row, due, &(r_death_t){rank, 1, moment, step, i}, 1);
    return print_row(&row);
}

/* Rank `second` while it, or another, recovers from the death of `first`. */
static bool pairs(const r_shared_t *due, const char *what, r_moment_t moment, bool same, int n)
{
    row_t row = {.what = what};

    for (int32_t first = 0; first < R_RANKS; first++)
        for (int32_t second = 0; second < R_RANKS; second++)
            for (int i = 0; i < n; i++) {
                const r_death_t deaths[] = {{first, 1, R_AT_KERNEL, 2, 7 + 31 * i},
                                            {second, same ? 2 : 1, moment, 3, i}};

                /* its mirror alone holds what it held: both is what nobody survives */
                if ((first == second) == same && (same || second != R_RANKS - 1 - first))
                    try_one(&row, due, deaths, 2);
            }
    return print_row(&row);
}

/* A mirror may die as soon as the new process holds the state. */
static bool mirrors(const r_shared_t *due)
{
    row_t row = {.what = "a rank, then its mirror two steps later"};

    for (int32_t rank = 0; rank < R_RANKS; rank++)
        for (int k = 0; k < 4; k++) {
            const r_death_t deaths[] = {{rank, 1, R_AT_KERNEL, 1, 39 * k},
                                        {R_RANKS - 1 - rank, 1, R_AT_KERNEL, 3, 39 * k}};

            try_one(&row, due, deaths, 2);
        }
    return print_row(&row);
}

START_TEST(sweep)
{
    r_shared_t due;
    bool well;

    setenv("DUALPIPE_LAUNCH", "respawn=9", 1);
    run(&due, NULL, 0, &well);
    ck_assert_msg(well, "the undisturbed run failed; does DUALPIPE_PLUGIN_PATH name the folder of plugins?");
    printf("dualpipe over %d ranks, %d micro-batches, %d steps, %d operations of a rank in a step (every %d)\n",
           R_RANKS, R_MICROBATCHES, R_STEPS, KERNELS, stride);
    printf("%-46s %6s %9s %6s %11s\n", "", "tried", "survived", "equal", "worst");
    well = operations(&due);
    well &= moments(&due, "between the step and its commit", R_AFTER_STEP, R_RANKS, 1);
    well &= moments(&due, "rank 0, when 0 to 3 know that the step counts", R_SENDING, 1, R_RANKS);
    well &= moments(&due, "in the optimizer", R_IN_UPDATE, R_RANKS, 1);
    well &= moments(&due, "behind the optimizer", R_AFTER_UPDATE, R_RANKS, 1);
    well &= pairs(&due, "the new one before it joins", R_BEFORE_JOINING, true, 1);
    well &= pairs(&due, "the new one when it has joined", R_AFTER_JOINING, true, 1);
    well &= pairs(&due, "the new one while it builds", R_BUILDING, true, 2);
    well &= pairs(&due, "the new one before it has the state", R_BEFORE_RECOVERING, true, 1);
    well &= pairs(&due, "another one (no mirror) while it lets go", R_RETIRING, false, 1);
    well &= pairs(&due, "another one (no mirror) in the next step", R_AT_KERNEL, false, 3);
    well &= mirrors(&due);
    ck_assert_msg(well, "not all survived with the bits of an undisturbed run");
}
END_TEST

int main(int argc, char **argv)
{
    if (argc > 1 && atoi(argv[1]) > 0)
        stride = atoi(argv[1]);
    return r_sweep("recovery", sweep);
}
