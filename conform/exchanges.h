/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * exchanges.h: a comm that offers exchanges alone, between ranks that are threads of one process,
 * on any device. It does its work in the call, by copies of the device, and is strict: rows are NaN
 * before they arrive and after their release, slots lie between guards, and whatever a caller does
 * wrong fails the case. */
#ifndef DP_CONFORM_EXCHANGES_H
#define DP_CONFORM_EXCHANGES_H

#include "kernel.h"

#define EXCHANGES_FIRST_ID 40u /* four are the plugin's */

extern const dp_comm_vt_t conform_exchanges_vt;

/* ranks 1, or all of the case's. */
dp_comm_t *conform_exchanges_open(lab_t *lab, int32_t ranks);
/* Of the i-th exchange that the plugin opened; NULL: there are fewer. */
const dp_exchange_config_t *conform_exchanges_config(const dp_comm_t *comm, int32_t i);
/* Rows that this rank has sent rank `to` over it so far. */
int64_t conform_exchanges_sent(const dp_comm_t *comm, int32_t i, int32_t to);
/* Whether slots were left alone and all of them released. */
bool conform_exchanges_close(dp_comm_t *comm);

#endif
