/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * resume.c: the sweep of jobs that are killed while they save: DualPipe over 4 ranks saves behind
 * each step, and a rank dies before every change of a file that a save makes, in every operation of
 * a step, in the optimizer. The job ends with it, and another one goes on after the newest
 * checkpoint; or it is replaced, and the job goes on. For each kind: how many were tried, how many
 * trained to the end, and how many of them ended with losses, parameters and optimizer of an
 * undisturbed run to the last bit.
 *
 *     DUALPIPE_PLUGIN_PATH=.libs bench/resume [STRIDE [CHANGES]]
 *
 * Every so many operations of a step and changes of files (1: all). Checkpoints lie in $TMPDIR,
 * else /tmp. Exit status 1 when a job did not end well or ended with other bits. */
#include "tests/support/recovering.h"

enum { KERNELS = 2 * LAYERS / R_RANKS * R_MICROBATCHES / 2 * 10, MOST_CHANGES = 64 };

static int stride = 1, changes = 1;
static char folder[256];

typedef struct row {
    const char *what;
    int tried, survived, equal;
} row_t;

static void empty_folder(void)
{
    char command[600];

    snprintf(command, sizeof(command), "rm -rf '%s' && mkdir '%s'", folder, folder);
    ck_assert_int_eq(system(command), 0);
}

static bool all_well(const forked_job_t *job)
{
    for (int r = 0; r < R_RANKS; r++)
        if (!job->results[r].finished || job->results[r].status != DP_OK)
            return false;
    return true;
}

static bool run(r_shared_t *result, const r_death_t *deaths, int n, bool replaced)
{
    const r_setting_t setting = {.method = "dualpipe", .dp = 1, .saves = folder};
    forked_job_t job;
    bool well;

    if (replaced)
        setenv("DUALPIPE_LAUNCH", "respawn=9", 1);
    else
        unsetenv("DUALPIPE_LAUNCH");
    if (replaced)
        r_start(&job, &setting, deaths, n, 30);
    else
        r_start_once(&job, &setting, deaths, n);
    for (int64_t end = forked_now_ns() + 30000000000; forked_now_ns() < end;) {
        int running = 0;

        for (int r = 0; r < R_RANKS; r++) {
            if (job.waits[r] == -1 && waitpid(job.pids[r], &job.waits[r], WNOHANG) != job.pids[r])
                running++;
        }
        if (running == 0)
            break;
        forked_nap(1);
    }
    well = all_well(&job);
    for (int r = 0; r < R_RANKS; r++)
        if (job.waits[r] == -1) {
            kill(job.pids[r], SIGKILL);
            waitpid(job.pids[r], &job.waits[r], 0);
            well = false;
        }
    for (int r = 0; r < R_RANKS && !well && (n == 0 || replaced); r++)
        if (!job.results[r].finished || job.results[r].status != DP_OK)
            printf("rank %d %s: %s\n", r, job.results[r].finished ? "failed" : "did not end", job.results[r].message);
    *result = *(const r_shared_t *)job.shared;
    forked_all_started(&job);
    forked_end(&job);
    return well;
}

/* false: nobody died, since there was less to do. */
static bool try_one(row_t *row, const r_shared_t *due, const r_death_t *death, bool replaced)
{
    r_shared_t result;
    bool well;

    empty_folder();
    well = run(&result, death, 1, replaced);
    if (result.died == 0)
        return false;
    row->tried++;
    if (!replaced)
        well = run(&result, NULL, 0, false);
    row->survived += well;
    row->equal += well && memcmp(result.losses, due->losses, sizeof(due->losses)) == 0 &&
                  memcmp(result.digest, due->digest, sizeof(due->digest)) == 0;
    return true;
}

static bool print_row(const row_t *row)
{
    printf("%-58s %6d %9d %6d\n", row->what, row->tried, row->survived, row->equal);
    fflush(stdout);
    return row->tried > 0 && row->survived == row->tried && row->equal == row->tried;
}

static bool saves(const r_shared_t *due, const char *what, bool replaced)
{
    row_t row = {.what = what};

    for (int32_t rank = 0; rank < R_RANKS; rank++)
        for (int n = rank % changes; n < MOST_CHANGES; n += changes)
            if (!try_one(&row, due, &(r_death_t){rank, 1, R_IN_SAVE, 2, n}, replaced))
                break;
    return print_row(&row);
}

static bool steps(const r_shared_t *due, const char *what, r_moment_t moment, int n)
{
    row_t row = {.what = what};

    for (int32_t rank = 0; rank < R_RANKS; rank++)
        for (int k = n > 1 ? rank % stride : 0; k < n; k += stride)
            (void)try_one(&row, due, &(r_death_t){rank, 1, moment, n > 1 ? k % R_STEPS : 2, k}, false);
    return print_row(&row);
}

START_TEST(sweep)
{
    r_shared_t due;
    bool well;

    snprintf(folder, sizeof(folder), "%s/dualpipe-resume-%d", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp",
             (int)getpid());
    empty_folder();
    well = run(&due, NULL, 0, false);
    ck_assert_msg(well, "the undisturbed run failed; does DUALPIPE_PLUGIN_PATH name the folder of plugins?");
    printf(
        "dualpipe over %d ranks, %d steps with a checkpoint behind each, %d operations of a rank in a step (every %d; changes: every %d)\n",
        R_RANKS, R_STEPS, KERNELS, stride, changes);
    printf("%-58s %6s %9s %6s\n", "killed", "tried", "survived", "equal");
    well = saves(&due, "before each change of files of a save; resumed", false);
    well &= saves(&due, "before each change of files of a save; replaced", true);
    well &= steps(&due, "in an operation of a step; resumed", R_AT_KERNEL, KERNELS);
    well &= steps(&due, "in the optimizer; resumed", R_IN_UPDATE, 1);
    well &= steps(&due, "behind the optimizer; resumed", R_AFTER_UPDATE, 1);
    empty_folder();
    (void)rmdir(folder);
    ck_assert_msg(well, "not all survived with the bits of an undisturbed run");
}
END_TEST

int main(int argc, char **argv)
{
    if (argc > 1 && atoi(argv[1]) > 0)
        stride = atoi(argv[1]);
    if (argc > 2 && atoi(argv[2]) > 0)
        changes = atoi(argv[2]);
    return r_sweep("resume", sweep);
}
