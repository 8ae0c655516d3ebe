/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * eplb_job.h: what `dualpipe eplb` was asked for and what came of it. */
#ifndef DP_TOOLS_EPLB_JOB_H
#define DP_TOOLS_EPLB_JOB_H

#include <dualpipe/eplb.h>
#include <stdbool.h>

#include "args.h"
#include "tools/io/output.h"

typedef struct eplb_job {
    dp_eplb_shape_t shape;
    dp_eplb_options_t options;
    dp_eplb_update_options_t update;
    double decay;
    const char *from, *output; /* NULL: not given */
    char **files;
    int nfiles;
    format_t format;

    float *weights;  /* [layers, experts] */
    int32_t *before; /* [layers, replicas] */
    dp_eplb_placement_t after;
    dp_eplb_moves_t moves; /* from before to after */
    dp_eplb_balance_t balance[2];
    double *gpu_loads[2], *node_loads[2]; /* before, after */
    void *workspace;
    size_t workspace_bytes;
} eplb_job_t;

dp_status_t eplb_put(const eplb_job_t *job, output_t *output);

#endif
