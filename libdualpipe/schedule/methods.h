/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * methods.h: the built-in methods, one file each. */
#ifndef DP_SCHEDULE_METHODS_H
#define DP_SCHEDULE_METHODS_H

#include "schedule/emit.h"

dp_status_t dp__one_f_one_b(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);
dp_status_t dp__dualpipe(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);
dp_status_t dp__dualpipev(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);

#endif
