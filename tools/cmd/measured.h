/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * measured.h: costs that were measured, from a file of them or from a trace. */
#ifndef DP_TOOLS_MEASURED_H
#define DP_TOOLS_MEASURED_H

#include <dualpipe/simulate.h>

/* Of a file as `dualpipe trace costs` writes it or, where the name ends in .json or .gz, of a
 * trace. Milliseconds; hop and bandwidth are 0 where they are not given. DP_ERR_INVALID: also times
 * of no segment. */
dp_status_t measured_read(const char *path, dp_segment_costs_t *segments_out, double *hop_out, double *bandwidth_out);

#endif
