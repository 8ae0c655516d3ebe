/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_twin.h: what moe_cpu makes of a micro-batch in double, as one rank that holds all experts: the measure for moe_cuda. */
#ifndef DP_TESTS_MOE_TWIN_H
#define DP_TESTS_MOE_TWIN_H

#include <dualpipe/moe.h>

typedef struct twin {
    double *y, *dx, *grads, aux; /* arrays: the twin's */
} twin_t;

/* config: the block's; its dtype, device and comm are not used. params: of all experts. aux_scale is 3. */
twin_t twin_run(const dp_moe_config_t *config, const double *params, const double *x, const double *dy,
                int32_t microbatch, const int32_t *placement);
void twin_free(twin_t *twin);

#endif
