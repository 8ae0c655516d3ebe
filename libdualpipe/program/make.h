/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * make.h: a program that is proven. */
#ifndef DP_PROGRAM_MAKE_H
#define DP_PROGRAM_MAKE_H

#include <dualpipe/program.h>

/* verify.c: lowers and verifies. The caller frees the program, after a failure as well. */
dp_status_t dp__program_make(const dp_schedule_t *schedule, const dp_lower_options_t *options,
                             dp_program_t **program_out);

#endif
