/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * formula.c: published bubble formulas, in costs per device (of all chunks of a rank). */
#include "simulate/formula.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* What each rank loses: (ranks / of - 1) times the sum of what stands below, and a chunk's part. */
static const struct formula {
    const char *method;
    double of, f, b, i, w, fb;
    bool of_chunk;
} formulas[] = {
    /* GPipe, arXiv 1811.06965; PipeDream-Flush, arXiv 2006.09503 */
    {"gpipe", .of = 1, .f = 1, .b = 1},
    {"1f1b", .of = 1, .f = 1, .b = 1},
    /* arXiv 2104.04473, section 2.2; of overlapped pairs as long as F + B */
    {"interleaved", .of = 1, .f = 1, .b = 1, .of_chunk = true},
    {"interleaved_overlap", .of = 1, .f = 1, .b = 1, .of_chunk = true},
    /* ZB-H1: DeepSeek-V3, arXiv 2412.19437, table 2; arXiv 2401.10241 */
    {"zb1p", .of = 1, .f = 1, .b = 1, .w = -2},
    /* arXiv 2405.15362: no bubble but the way of one chunk's forward down the ranks */
    {"zbv", .of = 1, .f = 1, .of_chunk = true},
    /* the same, table 1: parts of what 1F1B loses */
    {"v-half", .of = 1, .f = 1.0 / 2, .i = 1.0 / 2, .w = 1.0 / 2},
    {"v-min", .of = 1, .f = 2.0 / 3, .i = 2.0 / 3, .w = 2.0 / 3},
    /* DeepSeek-V3, table 2; deepseek-ai/DualPipe, README: with two stages of half a device */
    {"dualpipe", .of = 2, .fb = 1, .b = 1, .w = -3},
    {"dualpipev", .of = 1, .fb = 1, .b = 1, .w = -3, .of_chunk = true},
};

double dp__formula_bubble(const dp_schedule_t *schedule, const dp_costs_t *c)
{
    for (size_t k = 0; k < sizeof(formulas) / sizeof(formulas[0]) && !schedule->forward_only; k++) {
        const struct formula *x = &formulas[k];

        if (strcmp(schedule->method, x->method) == 0)
            return (schedule->ranks / x->of - 1.0) *
                   (x->f * c->f + x->b * c->b + x->i * c->i + x->w * c->w + x->fb * c->fb) /
                   (x->of_chunk ? schedule->chunks : 1);
    }
    return (double)NAN;
}
