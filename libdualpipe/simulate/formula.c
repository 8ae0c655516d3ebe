/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * formula.c: published bubble formulas, in costs per device (of all chunks of a rank). */
#include "simulate/formula.h"

#include <math.h>
#include <string.h>

/* PipeDream-Flush, arXiv 2006.09503; GPipe, arXiv 1811.06965. */
static double fill_and_drain(double p, double v, const dp_costs_t *c)
{
    (void)v;
    return (p - 1.0) * (c->f + c->b);
}

/* Interleaved 1F1B: arXiv 2104.04473, section 2.2; of overlapped pairs as long as F + B. */
static double interleaved(double p, double v, const dp_costs_t *c)
{
    return (p - 1.0) * (c->f + c->b) / v;
}

/* ZB-H1: DeepSeek-V3, arXiv 2412.19437, table 2; arXiv 2401.10241. */
static double zero_bubble_h1(double p, double v, const dp_costs_t *c)
{
    (void)v;
    return (p - 1.0) * (c->f + c->b - 2.0 * c->w);
}

/* ZB-V, arXiv 2405.15362: no bubble but the way of one chunk's forward down the ranks. */
static double zero_bubble_v(double p, double v, const dp_costs_t *c)
{
    return (p - 1.0) * c->f / v;
}

/* arXiv 2405.15362, table 1: parts of what 1F1B loses. */
static double v_half(double p, double v, const dp_costs_t *c)
{
    (void)v;
    return (p - 1.0) * (c->f + c->i + c->w) / 2.0;
}

static double v_min(double p, double v, const dp_costs_t *c)
{
    (void)v;
    return (p - 1.0) * (c->f + c->i + c->w) * 2.0 / 3.0;
}

/* DeepSeek-V3, arXiv 2412.19437, table 2. */
static double dualpipe(double p, double v, const dp_costs_t *c)
{
    (void)v;
    return (p / 2.0 - 1.0) * (c->fb + c->b - 3.0 * c->w);
}

/* deepseek-ai/DualPipe, README: the same with two stages of half a device on each rank. */
static double dualpipev(double p, double v, const dp_costs_t *c)
{
    return (p - 1.0) * (c->fb + c->b - 3.0 * c->w) / v;
}

double dp__formula_bubble(const dp_schedule_t *schedule, const dp_costs_t *resolved)
{
    static const struct {
        const char *method;
        double (*bubble)(double p, double v, const dp_costs_t *costs);
    } formulas[] = {
        {"gpipe", fill_and_drain},    {"1f1b", fill_and_drain},
        {"interleaved", interleaved}, {"interleaved_overlap", interleaved},
        {"zb1p", zero_bubble_h1},     {"zbv", zero_bubble_v},
        {"v-half", v_half},           {"v-min", v_min},
        {"dualpipe", dualpipe},       {"dualpipev", dualpipev},
    };

    if (schedule->forward_only)
        return (double)NAN;
    for (size_t i = 0; i < sizeof(formulas) / sizeof(formulas[0]); i++)
        if (strcmp(schedule->method, formulas[i].method) == 0)
            return formulas[i].bubble(schedule->ranks, schedule->chunks, resolved);
    return (double)NAN;
}
