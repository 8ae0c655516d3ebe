/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * plan.h: planning, without a run: schedules and programs made, proven, simulated, planned,
 * searched, and experts placed.
 *
 * A schedule says what each rank computes, in which order (schedule.h). A program adds sends,
 * receives and reductions (program.h). A simulation of one (simulate.h), a run, or the trace of
 * another program (trace.h) gives a timeline (timeline.h). overlap.h and search.h look for better
 * schedules, eplb.h places experts. Nothing here needs a group or a pipeline.
 *
 * Linking. libdualplan has all of this and nothing else. It is an archive that needs libc and libm
 * alone, starts no thread and runs in WebAssembly. Link with `pkg-config --libs dualplan`, or
 * with find_package(dualplan) and dualplan::dualplan in CMake. libdualpipe has the same functions:
 * a program that trains links that one only.
 *
 * Since 0.2. */
#ifndef DUALPIPE_PLAN_H
#define DUALPIPE_PLAN_H

#include <dualpipe/eplb.h>
#include <dualpipe/ffi.h>
#include <dualpipe/model.h>
#include <dualpipe/overlap.h>
#include <dualpipe/program.h>
#include <dualpipe/schedule.h>
#include <dualpipe/search.h>
#include <dualpipe/simulate.h>
#include <dualpipe/timeline.h>
#include <dualpipe/trace.h>

#endif
