/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * check.c: what every call of an open pipeline refuses. */
#include "engine/engine.h"

#include <unistd.h>

dp_status_t dp__pipeline_check(const dp_pipeline_t *p, const char *call)
{
    if (p == NULL)
        return dp_fail(DP_ERR_INVALID, "%s: the pipeline is NULL", call);
    if (dp__segment_running != NULL)
        return dp_fail(DP_ERR_INVALID,
                       "%s was called from segment %s: a segment computes its own micro-batch and calls no function of "
                       "the pipeline; call it between steps, on the thread that opened the pipeline",
                       call, dp__segment_running);
    if (p->pid != getpid())
        return dp_fail(DP_ERR_INVALID,
                       "%s was called in process %d, and the pipeline was opened in process %d: a child of fork has "
                       "none of its threads; open the pipeline in the process that uses it",
                       call, (int)getpid(), (int)p->pid);
    if (p->run.failed)
        return dp_fail(DP_ERR_INVALID, "%s: this pipeline has failed; close it", call);
    return DP_OK;
}
