/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * replay.h: runs a schedule on paper: every operation starts when its rank is free and its inputs
 * exist. Transfers take no time. Shares no code with the library. */
#ifndef TESTS_REPLAY_H
#define TESTS_REPLAY_H

#include <dualpipe/schedule.h>

#include <stdlib.h>

typedef struct replay_cost {
    double f, b, i, w, fb; /* of one chunk */
} replay_cost_t;

typedef struct replay_result {
    double step, idle_min, idle_max, idle_sum;
    int stuck;
} replay_result_t;

replay_result_t replay(const dp_schedule_t *s, const replay_cost_t *cost);

#endif
