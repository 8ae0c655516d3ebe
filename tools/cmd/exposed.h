/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * exposed.h: how much of a rank's idle time a message was waited for, and how much it was on its
 * way. */
#ifndef DP_TOOLS_EXPOSED_H
#define DP_TOOLS_EXPOSED_H

#include <dualpipe/timeline.h>

typedef struct exposed {
    double waiting, exposed; /* in units of the costs */
} exposed_t;

/* How long each message of a simulated timeline takes from leaving to arriving, by its flow. */
typedef struct ways {
    struct way *at; /* [n] by flow; free with ways_clear */
    int64_t n;
} ways_t;
dp_status_t ways_make(const dp_timeline_t *timeline, ways_t *ways_out);
void ways_clear(ways_t *ways);

/* Of one rank of that timeline. */
exposed_t exposed_of(const dp_timeline_t *timeline, int32_t rank, const ways_t *ways);

#endif
