/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * costs_head.h: the first line of costs out of a trace. */
#ifndef DP_TRACE_COSTS_HEAD_H
#define DP_TRACE_COSTS_HEAD_H

#include "schedule/out.h"

/* A title may be a file's name: what would end the comment becomes "?". */
static inline void dp__trace_costs_head(const char *title, dp__out_t *to)
{
    dp__out_put(to, "# Measured in ");
    for (const char *at = title; *at != 0; at++)
        dp__out_put(to, "%c", (unsigned char)*at < ' ' ? '?' : *at);
    dp__out_put(to, ", in milliseconds: dualpipe compare --costs FILE, dualpipe simulate --costs FILE.\n");
}

#endif
