/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * environment.c: what launchers tell a rank about itself. */
#include "group/environment.h"

#include "base/do.h"
#include "base/hash.h"
#include "base/sized.h"
#include "system/entries.h"

#include <dualpipe/group.h>
#include <dualpipe/timeline.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAUNCH "DUALPIPE_LAUNCH"

/* The variables of one kind of launcher; local_rank may be missing. NULL as mark: DUALPIPE_LAUNCH
 * names the job. */
typedef struct form {
    const char *launcher, *mark, *rank, *size, *local_rank;
} form_t;

/* The first form whose mark is there counts: an inner launcher hides the one it was started by. */
static const form_t forms[] = {
    {"dualpipe run", NULL, "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"torchrun", "RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"torchrun", "WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"MPICH", "MPI_LOCALRANKID", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"Slurm", "SLURM_PROCID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
};

/* `text` ends after n characters. */
static bool parse_number(const char *text, size_t n, int32_t low, int32_t high, int32_t *number_out)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    *number_out = (int32_t)value;
    return text[0] >= '0' && text[0] <= '9' && end == text + n && errno == 0 && value >= low && value <= high;
}

dp_status_t dp__environment_number(const char *name, int32_t low, int32_t high, int32_t *number_out)
{
    const char *text = secure_getenv(name);
    int32_t number;

    if (text == NULL)
        return dp_fail(DP_ERR_INVALID, "%s is not in the environment, though other variables of its launcher are",
                       name);
    if (!parse_number(text, strlen(text), low, high, &number))
        return dp_fail(DP_ERR_INVALID, "%s=%.40s: a number from %d to %d was expected", name, text, low, high);
    *number_out = number;
    return DP_OK;
}

dp_status_t dp__launch_number(const char *key, int32_t low, int32_t high, int32_t *number_out)
{
    size_t n;
    const char *text = dp__environment_entry(LAUNCH, key, &n);
    int32_t number;

    if (text == NULL)
        return dp_fail(DP_ERR_INVALID, LAUNCH " has no %s", key);
    if (!parse_number(text, n, low, high, &number))
        return dp_fail(DP_ERR_INVALID, LAUNCH ": %s=%.*s: a number from %d to %d was expected", key,
                       n < 40 ? (int)n : 40, text, low, high);
    *number_out = number;
    return DP_OK;
}

bool dp__launch_has(const char *key)
{
    size_t n;

    return dp__environment_entry(LAUNCH, key, &n) != NULL;
}

static dp_status_t read_form(const form_t *form, dp_group_environment_t *environment_out)
{
    dp_group_environment_t found = {.struct_size = sizeof(found), .launcher = form->launcher};
    char job[DP__JOB_BYTES];

    DO(dp__environment_number(form->size, 1, DP_MAX_RANKS, &found.size));
    DO(dp__environment_number(form->rank, 0, found.size - 1, &found.rank));
    found.local_rank = found.rank; /* all ranks on this host, unless we are told */
    if (secure_getenv(form->local_rank) != NULL)
        DO(dp__environment_number(form->local_rank, 0, found.size - 1, &found.local_rank));
    if (form->mark == NULL && dp__launch_has("respawn"))
        DO(dp__launch_number("respawn", 0, INT32_MAX, &found.respawn));
    if (form->mark == NULL) {
        dp__environment_job(job);
        found.again = dp__launch_has("again");
        found.job = dp__hash_text(DP__HASH_BEGIN, job);
    }
    dp_sized_put(environment_out, &found);
    return DP_OK;
}

dp_status_t dp_group_environment(dp_group_environment_t *environment_out)
{
    const dp_group_environment_t alone = {.struct_size = sizeof(alone), .size = 1, .launcher = "none"};

    DO(dp__sized_check("dp_group_environment: environment_out", environment_out, "dp_group_environment_t",
                       DP_GROUP_ENVIRONMENT_MIN));
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        if (forms[i].mark != NULL ? secure_getenv(forms[i].mark) != NULL : dp__launch_has("run"))
            return read_form(&forms[i], environment_out);
    dp_sized_put(environment_out, &alone);
    return DP_OK;
}

void dp__environment_job(char name[DP__JOB_BYTES])
{
    static const char *const names[] = {"TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
                                        "SLURM_JOB_ID"};
    size_t n;
    const char *job = dp__environment_entry(LAUNCH, "run", &n);

    for (size_t i = 0; job == NULL && i < sizeof(names) / sizeof(names[0]); i++) {
        job = secure_getenv(names[i]);
        n = job != NULL ? strlen(job) : 0;
    }
    snprintf(name, DP__JOB_BYTES, "%.*s", n < DP__JOB_BYTES ? (int)n : DP__JOB_BYTES - 1, job != NULL ? job : "");
}
