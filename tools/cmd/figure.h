/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * figure.h: a simulated plan as a picture or a trace. */
#ifndef DP_TOOLS_FIGURE_H
#define DP_TOOLS_FIGURE_H

#include "plan.h"
#include "tools/io/output.h"

/* Formats svg, png, pdf and trace, of a plan simulated with its timeline. */
dp_status_t figure_write(const plan_t *plan, output_t *output);

#endif
