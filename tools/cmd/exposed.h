/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * exposed.h: how much of a rank's idle time a message was waited for, and how much it was on its way. */
#ifndef DP_TOOLS_EXPOSED_H
#define DP_TOOLS_EXPOSED_H

#include <dualpipe/timeline.h>

typedef struct exposed {
    double waiting, exposed; /* in units of the costs */
} exposed_t;

/* Of one rank of a simulated timeline. hop: what a transfer takes from leaving to arriving. */
exposed_t exposed_of(const dp_timeline_t *timeline, int32_t rank, double hop);

#endif
