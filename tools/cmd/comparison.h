/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comparison.h: all schedules that fit, by step time. */
#ifndef DP_TOOLS_COMPARISON_H
#define DP_TOOLS_COMPARISON_H

#include "plan.h"
#include "tools/io/output.h"

/* One method with one number of chunks. */
typedef struct entry {
    const dp_method_t *method;
    int32_t chunks; /* asked for; 0: the method's own */
    topology_placing_t placing;
    char label[64];
    char reason[512]; /* why it does not fit; "" when it does */
    double step, bubble, peak, backward_buffer;
    double formula; /* NaN: none, or the run is by segments, which no formula counts */
    int32_t copies; /* of the model's weights */
    int32_t slots;  /* a channel */
    double bytes;   /* of the fullest rank, weights included; NaN: the command line gives none */
    double gain;    /* over 1f1b on the same hosts: its step / this one - 1; NaN: it has no step */
    /* micro-batches of a device, mean over the ranks, whose backward is in two passes, and whose
     * forward runs in a pair */
    double split, paired;
} entry_t;

typedef struct comparison {
    const args_t *args;
    entry_t *entries; /* those that fit first, the shortest step first */
    size_t count, fitting;
} comparison_t;

/* Free with comparison_clear in any case. What does not fit has a reason and is no failure. */
dp_status_t comparison_make(comparison_t *table);
void comparison_clear(comparison_t *table);
/* Whether a format can say that nothing fits. */
bool comparison_is_text(format_t format);
dp_status_t comparison_put(const comparison_t *table, output_t *output);

/* Runs an entry's schedule anew under the costs of `args`, into an entry that has its method,
 * chunks and placing. */
dp_status_t comparison_run(const args_t *args, entry_t *entry);

#endif
