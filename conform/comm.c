/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm.c: the suite of dp.comm/1. */
#include "comm_rig.h"

static const conform_case_t *const more[] = {conform_comm_exchanges, conform_comm_sums, conform_comm_ends, NULL};

const conform_suite_t conform_comm = {
    .name = "comm",
    .interface = DP_IFACE_COMM,
    .plugin = "comm_shm",
    .table_bytes = DP_COMM_VT_MIN,
    .needs = CONFORM_NEEDS_DEVICE,
    .cases = conform_comm_channels,
    .more = more,
};
