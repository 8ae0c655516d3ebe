/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * figures.h: what the traced steps show, and what the same program takes on a device for each
 * rank. */
#ifndef TRAIN_MOE_FIGURES_H
#define TRAIN_MOE_FIGURES_H

#include <stdbool.h>

#include "trainer.h"
#include <dualpipe/simulate.h>

typedef struct figures {
    int32_t steps; /* traced; what is measured are medians over them */
    double step;   /* ms, of all ranks together */
    /* Do lanes of this host wait for cores? Then `computing` is what its cores did, else the rest
     * is what is true. */
    bool shared;
    int32_t ranks, cores; /* of this host */
    /* share of the cores' time spent in segments of compute lanes */
    double computing;
    double bubble, least_bubble, most_bubble; /* shares of the step */
    double communication, hidden;             /* ms, mean over ranks; share of it */

    /* of all traced steps; where threads wait for cores, by their own clocks */
    dp_measured_costs_t costs;
    /* The program with these costs, on a device for each rank: steps in ms, bubbles as shares of
     * them. even: if all stages took the same; the rest is that they do not. formula: NaN where
     * none is published, or counts segments */
    double simulated_step, even_step, simulated_bubble, even_bubble, formula_bubble;
    int32_t slowest_stage;
} figures_t;

/* Sorts the values. NaN: there are none. */
double median_of(double *values, int64_t n);

/* Do lanes of this host wait for cores? */
bool cores_are_shared(const trainer_t *trainer, const dp_timeline_t *timeline);

/* Nothing was computed in it, as where a rank died behind the last step. */
bool figures_missing(const dp_timeline_t *timeline);
/* Rank 0. Free with figures_clear(), after a failure too. */
dp_status_t figures_find(const trainer_t *trainer, const dp_timeline_t *timeline, figures_t *figures);
void figures_clear(figures_t *figures);

#endif
