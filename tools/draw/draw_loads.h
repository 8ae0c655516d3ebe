/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_loads.h: loads of GPUs, layer by layer, before and after. */
#ifndef DP_TOOLS_DRAW_LOADS_H
#define DP_TOOLS_DRAW_LOADS_H

#include "draw_format.h"

typedef struct draw_loads {
    const char *title, *subtitle;
    int32_t layers, gpus, nodes;
    const int32_t *node_first; /* [nodes + 1] GPUs */
    const char *label[2];      /* above each of the two */
    const double *load[2];     /* [layers, gpus] */
} draw_loads_t;

/* DP_ERR_INVALID: no layer, or so many that a cell would not be seen. DP_ERR_UNSUPPORTED: there
 * is no cairo. */
dp_status_t draw_loads_write(const draw_loads_t *picture, draw_format_t format, dp_write_fn write, void *user);

#endif
