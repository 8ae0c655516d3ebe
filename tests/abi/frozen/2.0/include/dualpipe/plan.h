/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * plan.h: schedules and programs without a run: made, proven, simulated, planned, searched.
 *
 * A schedule says what each rank computes, in which order (schedule.h). A program adds sends,
 * receives and reductions (program.h). A simulation of one (simulate.h), a run, or the trace of
 * another program (trace.h) gives a timeline (timeline.h). overlap.h and search.h look for better
 * schedules. Nothing here needs a group or a pipeline.
 *
 * Since 0.2. */
#ifndef DUALPIPE_PLAN_H
#define DUALPIPE_PLAN_H

#include <dualpipe/overlap.h>
#include <dualpipe/program.h>
#include <dualpipe/schedule.h>
#include <dualpipe/search.h>
#include <dualpipe/simulate.h>
#include <dualpipe/timeline.h>
#include <dualpipe/trace.h>

#endif
