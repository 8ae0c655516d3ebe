/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * hang_trainer.c: the trainer of examples/recovery, of which one rank misbehaves in a segment:
 * HANG=RANK:loop does not come back from it, HANG=RANK:slow takes SLOW_MS for each of three calls.
 * The process that takes its place does not. `hang_trainer trace PID` holds a process as a debugger
 * does. */
#include <dualpipe/dualpipe.h>

static dp_status_t create_stage(const dp_part_t *part, int32_t nparts, size_t boundary_bytes, dp_dtype_t dtype,
                                dp_stage_t **stage_out);
#define dp_stage_create create_stage
#define main            train_recovery
#include "examples/recovery/recovery.c"
#undef main
#undef dp_stage_create

#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_CALL = 40 };

static int calls; /* by one lane alone */

static dp_status_t misbehave(void *self, const dp_segment_call_t *call)
{
    const char *hang = getenv("HANG"), *rank = getenv("RANK"), *slow = getenv("SLOW_MS");
    dp_group_environment_t told = {.struct_size = sizeof(told)};
    const long ms = slow != NULL ? atol(slow) : 0;
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};

    calls++;
    if (calls >= FIRST_CALL && hang != NULL && rank != NULL && atoi(hang) == atoi(rank) &&
        dp_group_environment(&told) == DP_OK && !told.again) {
        for (volatile int at = 0; strstr(hang, "loop") != NULL;)
            at = at + 1;
        if (calls < FIRST_CALL + 3)
            nanosleep(&pause, NULL);
    }
    return forward(self, call);
}

static dp_status_t create_stage(const dp_part_t *part, int32_t nparts, size_t boundary_bytes, dp_dtype_t dtype,
                                dp_stage_t **stage_out)
{
    dp_segment_t segment = part->segments[0];
    dp_part_t own = *part;

    segment.host_forward = misbehave;
    own.segments = &segment;
    return dp_stage_create(&own, nparts, boundary_bytes, dtype, stage_out);
}

static int trace(pid_t pid)
{
    int status;

    if (ptrace(PTRACE_ATTACH, pid, NULL, NULL) != 0 || waitpid(pid, &status, 0) != pid)
        return 1;
    puts("held");
    fflush(stdout);
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "trace") == 0)
        return trace((pid_t)atoi(argv[2]));
    return train_recovery(argc, argv);
}
