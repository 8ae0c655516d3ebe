/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * listing.h: schedules as text of several kinds. rank -1: all ranks. */
#ifndef DP_TOOLS_LISTING_H
#define DP_TOOLS_LISTING_H

#include <dualpipe/program.h>

#include "tools/io/output.h"

/* A line per rank, for people. */
dp_status_t listing_text(const dp_schedule_t *schedule, int32_t rank, output_t *output);
/* {"method": ..., "order": [{"rank": 0, "ops": [["F", chunk, mb], ["FB", chunk, mb, chunk2, mb2],
 * ...]}, ...]} */
dp_status_t listing_json(const dp_schedule_t *schedule, int32_t rank, output_t *output);
/* The CSV of torch.distributed.pipelining: a row per rank, stage before the kind, micro-batch after
 * it. */
dp_status_t listing_csv(const dp_schedule_t *schedule, int32_t rank, output_t *output);
/* The TSV with the transfers of the lowered program between the operations. */
dp_status_t listing_transfers(const dp_program_t *program, int32_t rank, output_t *output);

#endif
