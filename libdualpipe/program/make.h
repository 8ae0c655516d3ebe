/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * make.h: a program that is proven. */
#ifndef DP_PROGRAM_MAKE_H
#define DP_PROGRAM_MAKE_H

#include <dualpipe/program.h>

/* Lowers and verifies; slots 0: DP_SLOTS_NEEDED. On failure *program_out is NULL. */
dp_status_t dp__program_make(const dp_schedule_t *schedule, const dp_lower_options_t *options,
                             dp_program_t **program_out);
/* K of the channels between ranks; 2 where there is none. */
int32_t dp__program_slots(const dp_program_t *program);

#endif
