/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * dualpipe.h: everything a trainer needs. Plugin authors include plugin.h and the interface they implement.
 *
 * The short way through: join a group (group.h), describe stages (stage.h), open a pipeline (pipeline.h), call step.
 *
 *     dp_group_join(NULL, &group);
 *     dp_pipeline_open(&(dp_pipeline_options_t){ .struct_size = sizeof(dp_pipeline_options_t), .group = group,
 *                      .method = "dualpipe", .microbatches = 8, .boundary_bytes = bytes, .build = build_stage },
 *                      &pipeline);
 *     dp_pipeline_step(pipeline, &step);
 *     dp_pipeline_close(pipeline);
 *     dp_group_leave(group);
 *
 * Errors: every call returns a dp_status_t; dp_last_error() has the sentence. Structs given to the library start with
 * struct_size = sizeof(that struct); members not set (zero) mean their default. */
#ifndef DUALPIPE_DUALPIPE_H
#define DUALPIPE_DUALPIPE_H

#include <dualpipe/checkpoint.h>
#include <dualpipe/eplb.h>
#include <dualpipe/group.h>
#include <dualpipe/moe_block.h>
#include <dualpipe/number.h>
#include <dualpipe/overlap.h>
#include <dualpipe/pipeline.h>
#include <dualpipe/program.h>
#include <dualpipe/recover.h>
#include <dualpipe/replicas.h>
#include <dualpipe/schedule.h>
#include <dualpipe/search.h>
#include <dualpipe/simulate.h>
#include <dualpipe/stage.h>
#include <dualpipe/state.h>
#include <dualpipe/status.h>
#include <dualpipe/timeline.h>
#include <dualpipe/trace.h>

#endif
