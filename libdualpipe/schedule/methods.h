/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * methods.h: the built-in methods, one file each. */
#ifndef DP_SCHEDULE_METHODS_H
#define DP_SCHEDULE_METHODS_H

#include "schedule/emit.h"

dp_status_t dp__gpipe(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);
dp_status_t dp__one_f_one_b(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);
dp_status_t dp__interleaved(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);
dp_status_t dp__looped_bfs(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);
dp_status_t dp__interleaved_zb(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);
dp_status_t dp__zb1p(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);
dp_status_t dp__zb2p(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);
dp_status_t dp__zbv(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);
dp_status_t dp__v_half(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);
dp_status_t dp__v_min(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);
dp_status_t dp__dualpipe(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);
dp_status_t dp__dualpipev(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);
dp_status_t dp__interleaved_overlap(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);

#endif
